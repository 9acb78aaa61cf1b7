"""Small servers that answer as inference servers do when they are asked what they are.

with serving(VLLM) as port: ...
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from aiohttp import web

Answers = dict[str, Any]
"""JSON by path; a callable is a handler."""


def models(*names: str, owner: str = "x") -> Answers:
    data = [{"id": name, "object": "model", "owned_by": owner} for name in names]
    return {"/v1/models": {"object": "list", "data": data}}


@contextlib.contextmanager
def serving(answers: Answers) -> Iterator[int]:
    """A server in a thread of its own, on a free port."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    runner = web.AppRunner(_app(answers), shutdown_timeout=0.1)

    async def start() -> int:
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        return runner.addresses[0][1]

    try:
        yield asyncio.run_coroutine_threadsafe(start(), loop).result(30)
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)
        loop.close()


def _app(answers: Answers) -> web.Application:
    async def answer(request: web.Request) -> web.StreamResponse:
        found = answers.get(request.path)
        if callable(found):
            return await found(request)
        return web.json_response(found) if found is not None else web.Response(status=404)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    return app
