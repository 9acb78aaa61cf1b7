"""A tiny gateway with one chosen fault, for the doctor to find.

It asks its upstream and then says what its fault makes it say; without a fault it translates plain text only.
"""

from __future__ import annotations

import asyncio
import json

from aiohttp import ClientError, ClientSession, web
from aiohttp.test_utils import TestServer

from check import samples as s


class BrokenGateway:
    """`async with BrokenGateway("http://127.0.0.1:P/v1", fault) as gateway: gateway.url`."""

    def __init__(self, upstream, fault="none"):
        self.upstream, self.fault = upstream, fault
        app = web.Application()
        app.router.add_post("/llm/v1/messages", self.answer)
        app.router.add_post("/v1/messages", self.answer)
        self.server = TestServer(app, host="127.0.0.1")

    async def __aenter__(self):
        await self.server.start_server()
        self.url = f"http://127.0.0.1:{self.server.port}"
        return self

    async def __aexit__(self, *_):
        await self.server.close()

    async def ask(self, body, headers):
        async with (
            ClientSession() as session,
            session.post(self.upstream + "/chat/completions", json=body, headers=headers) as reply,
        ):
            try:
                return reply.status, await reply.text(), True
            except ClientError:
                return reply.status, "", False

    async def answer(self, request):
        body = await request.json()
        if self.fault == "hangs":
            await asyncio.Event().wait()
        if self.fault == "goes nowhere":
            return web.json_response({"fine": True})
        sent = {"model": body["model"], "messages": body["messages"], "stream": bool(body.get("stream"))}
        sent |= {"thinking": {}} if self.fault == "forwards everything" else {}
        sent |= {"messages": body["messages"][:1]} if self.fault == "first message only" else {}
        headers = dict(request.headers) if self.fault == "forwards headers" else {}
        headers = {k: v for k, v in headers.items() if k.lower() in ("x-api-key", "cookie")}
        status, text, whole = await self.ask(sent, headers)
        if self.fault == "asks twice":
            await self.ask(sent, headers)
        if status != 200:
            return web.Response(status=status, text=text, content_type="application/json")
        if not body.get("stream"):
            return web.json_response({"type": "message"})
        events = self.events(body["model"], text, whole)
        data = s.sse(events)
        if self.fault == "no event lines":
            data = b"".join(b"data: " + json.dumps(e).encode() + b"\n\n" for e in events)
        if self.fault == "no last blank line":
            data = data[:-1]
        if self.fault == "cut off":
            response = web.StreamResponse(headers={"content-type": "text/event-stream"})
            await response.prepare(request)
            await response.write(data)
            request.transport.abort()
            return response
        kind = "text/plain" if self.fault == "content type" else "text/event-stream"
        return web.Response(body=data, headers={"content-type": kind})

    def events(self, model, text, whole):
        chunks = [json.loads(line[6:]) for line in text.split("\n") if line.startswith("data: {")]
        deltas = [chunk["choices"][0]["delta"] for chunk in chunks if chunk.get("choices")]
        said = "".join(delta.get("content") or "" for delta in deltas)
        thought = "".join(delta.get("reasoning_content") or "" for delta in deltas)
        start = s.start(model=model, id="msg_1", usage={"input_tokens": 3, "output_tokens": 0})
        if self.fault == "upstream id":
            start["message"]["id"] = "chatcmpl-9"
        if self.fault == "thinking as text":
            blocks = [
                s.block(0, type="text", text=""),
                s.delta(0, type="thinking_delta", thinking=thought),
                s.stop(0),
            ]
        else:
            blocks = [s.block(0, type="text", text=""), s.delta(0, type="text_delta", text=said), s.stop(0)]
        return [start, *(blocks if said or thought else []), s.finish(input_tokens=3), s.END]
