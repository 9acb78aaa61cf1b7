"""Imitations of inference servers, one shape for each: what they say, in which form, when they stop.

async with Imitation(VLLM) as server: ...   # server.url is its base URL
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field

from aiohttp import web
from aiohttp.test_utils import TestServer


@dataclass(frozen=True)
class Shape:
    """The defaults are a plain server that is good at everything and says nothing of itself."""

    owner: str = "someone"
    model: str = "imitation"
    models: bool = True
    entry: dict = field(default_factory=dict)  # more members of the model's entry
    routes: dict = field(default_factory=dict)  # path below the root -> body of the answer
    server_header: str | None = None
    reasoning: str | None = "reasoning_content"
    think_tags: str | None = None
    line_end: str = "\n"
    content_type: str = "text/event-stream"
    done: bool = True
    finish: bool = True
    comments: bool = False
    usage: str = "end"  # end, continuous, choice, none
    refuses: tuple = ()  # members of a request that are a 400
    stop: str | None = None  # stop_reason, matched_stop, "ignored", None: not reported
    choice: str = "named"  # named, required_only, ignored, never
    tools: str = "fragments"  # or whole
    index: bool = True
    errors: str = "nested"  # nested, flat, string, detail
    any_model: bool = False
    window: int | None = None
    overflow: str = "cut"  # or the words
    load: str | None = None  # "slots" or a metric's name
    leaves: str = "stops"  # or goes_on
    tokenize: str | None = None
    key: str | None = None
    slow: bool = False


VLLM = Shape(
    owner="vllm", entry={"max_model_len": 200}, routes={"/version": {"version": "0.33.0"}}, reasoning="reasoning",
    usage="continuous", stop="stop_reason", window=200, load="vllm:num_requests_running", tokenize="/tokenize",
    overflow="This model's maximum context length is 200 tokens. However, your request has 241 input tokens.",
)  # fmt: skip
SGLANG = Shape(
    owner="sglang", entry={"max_model_len": 200}, usage="continuous", stop="matched_stop", errors="flat", window=200,
    routes={"/server_info": {"version": "0.5.9", "max_running_requests": 16}}, load="sglang:num_running_reqs",
    tokenize="/tokenize", any_model=True,
    overflow="The input (241 tokens) is longer than the model's context length (200 tokens).",
)  # fmt: skip
LLAMACPP = Shape(
    owner="llamacpp", server_header="llama.cpp", any_model=True, choice="required_only", window=200, load="slots",
    routes={"/props": {"default_generation_settings": {"n_ctx": 200}, "total_slots": 2, "build_info": "b9000"}},
    leaves="goes_on", tokenize="/v1/chat/completions/input_tokens",
    overflow="request (241 tokens) exceeds the available context size (200 tokens), try increasing it",
)  # fmt: skip
OLLAMA = Shape(
    owner="library", routes={"/api/version": {"version": "0.14.0"}}, reasoning="reasoning", choice="ignored",
    tools="whole", window=200, entry={"context_length": 200}, overflow="cut",
)  # fmt: skip
OPENAI_LIKE = Shape(owner="system", refuses=("max_tokens", "continuous_usage_stats"), reasoning=None)
MISTRAL_LIKE = Shape(
    owner="mistralai", refuses=("stream_options",), reasoning="parts", errors="detail", tools="whole"
)


class Imitation:
    """The server. `requests` keeps the bodies of what was asked."""

    def __init__(self, shape):
        self.shape, self.requests, self.running = shape, [], 0
        app = web.Application(client_max_size=1 << 26)
        app.router.add_route("*", "/{path:.*}", self.answer)
        self.server = TestServer(app, host="127.0.0.1")

    async def __aenter__(self):
        await self.server.start_server()
        self.url = f"http://127.0.0.1:{self.server.port}/v1"
        return self

    async def __aexit__(self, *_):
        await self.server.close()

    def error(self, status, text):
        body = {
            "nested": {"error": {"message": text, "type": "invalid_request_error"}},
            "flat": {"object": "error", "message": text, "code": status},
            "string": {"error": text},
            "detail": {"detail": [{"loc": ["body"], "msg": text, "type": "value_error"}]},
        }[self.shape.errors]
        return web.json_response(body, status=status)

    async def answer(self, request):
        shape, path = self.shape, request.path
        headers = {"server": shape.server_header} if shape.server_header else {}
        if shape.key and request.headers.get("authorization") != f"Bearer {shape.key}":
            return web.json_response({"error": "Unauthorized"}, status=401)
        if path in shape.routes:
            return web.json_response(shape.routes[path])
        if path == "/v1/models" and shape.models:
            entry = {"id": shape.model, "object": "model", "owned_by": shape.owner, **shape.entry}
            return web.json_response({"object": "list", "data": [entry]}, headers=headers)
        if path == "/slots" and shape.load == "slots":
            return web.json_response([{"id": n, "is_processing": n < self.running} for n in range(2)])
        if path == "/metrics" and shape.load not in (None, "slots"):
            return web.Response(text=f'# TYPE x gauge\n{shape.load}{{model="m"}} {self.running:.1f}\n')
        if path == shape.tokenize:
            return web.json_response({"count": 5, "input_tokens": 5, "max_model_len": 200})
        if path == "/v1/chat/completions":
            body = await request.json()
            self.requests.append(body)
            return await self.chat(request, body)
        return self.error(404, "Not Found")

    async def chat(self, request, body):
        shape = self.shape
        if not isinstance(body["messages"], list):
            return self.error(400, "messages must be a list")
        if body["model"] != shape.model and not shape.any_model:
            return self.error(404, f"The model {body['model']} does not exist.")
        for name in shape.refuses:
            if name in body or name in body.get("stream_options", {}):
                instead = "Use 'max_completion_tokens' instead." if name == "max_tokens" else ""
                return self.error(400, f"Unsupported parameter: '{name}'. {instead}")
        text = body["messages"][0]["content"]
        words = len(text.split())
        if shape.window and words > shape.window and shape.overflow != "cut":
            return self.error(400, shape.overflow)
        if "Count from 1 to 2000" in text:
            return await self.talk_on(request)
        if shape.slow and self.running:
            await asyncio.sleep(0.4)
        usage = {
            "prompt_tokens": min(words, shape.window or words),
            "completion_tokens": 4,
            "total_tokens": 9,
        }
        if not body.get("stream"):
            choice = {
                "index": 0,
                "message": {"role": "assistant", "content": "ok"},
                "finish_reason": "length",
            }
            return web.json_response({"object": "chat.completion", "choices": [choice], "usage": usage})
        frames = self.frames(body, usage)
        data = "".join(f"data: {json.dumps(f)}{shape.line_end * 2}" for f in frames)
        data = (f": keep-alive{shape.line_end * 2}" if shape.comments else "") + data
        data += f"data: [DONE]{shape.line_end * 2}" if shape.done else ""
        return web.Response(body=data.encode(), headers={"content-type": shape.content_type})

    async def talk_on(self, request):
        """Words until the client leaves; a server that goes on keeps the slot for ever."""
        self.running += 1
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        try:
            await response.prepare(request)
            while True:
                await response.write(b'data: {"choices":[{"index":0,"delta":{"content":"one "}}]}\n\n')
                await asyncio.sleep(0.002)
        except ConnectionError:
            return response
        finally:
            self.running -= self.shape.leaves == "stops"

    def frames(self, body, usage):
        shape = self.shape
        deltas = [{"role": "assistant", "content": ""}]
        if shape.reasoning == "parts":
            deltas.append({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}]})
        elif shape.reasoning:
            deltas += [{shape.reasoning: "hm"}, {shape.reasoning: " so"}]
        reason, matched = "stop", None
        if self.calls(body):
            deltas += self.call()
            reason = "tool_calls"
        elif body.get("stop") and shape.stop != "ignored":
            deltas.append({"content": "Th"})
            matched = body["stop"][0]
        else:
            deltas += [
                {"content": word} for word in (shape.think_tags or "", "Two and three", " are five.") if word
            ]
        choices = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
        if shape.finish:
            last = {"index": 0, "delta": {}, "finish_reason": reason}
            last |= {shape.stop: matched} if shape.stop not in (None, "ignored") else {}
            last |= {"usage": usage} if shape.usage == "choice" else {}
            choices.append(last)
        frames = [{"object": "chat.completion.chunk", "choices": [choice]} for choice in choices]
        options = body.get("stream_options") or {}
        if shape.usage == "continuous" and options.get("continuous_usage_stats"):
            frames = [frame | {"usage": usage} for frame in frames]
        if shape.usage in ("end", "continuous") and (
            options.get("include_usage") or "stream_options" in shape.refuses
        ):
            frames.append({"object": "chat.completion.chunk", "choices": [], "usage": usage})
        return frames

    def calls(self, body):
        choice, how = body.get("tool_choice"), self.shape.choice
        if not body.get("tools") or how == "never":
            return False
        if isinstance(choice, dict):
            return how == "named"
        if choice == "required":
            return how in ("named", "required_only")
        return "Use the tool" in body["messages"][0]["content"]

    def call(self):
        index = {"index": 0} if self.shape.index else {}
        head = {**index, "id": "call_1", "type": "function"}
        if self.shape.tools == "whole":
            return [
                {
                    "tool_calls": [
                        {**head, "function": {"name": "get_weather", "arguments": '{"city":"Oslo"}'}}
                    ]
                }
            ]
        return [
            {"tool_calls": [{**head, "function": {"name": "get_weather", "arguments": ""}}]},
            {"tool_calls": [{**index, "function": {"arguments": '{"city":'}}]},
            {"tool_calls": [{**index, "function": {"arguments": '"Oslo"}'}}]},
        ]
