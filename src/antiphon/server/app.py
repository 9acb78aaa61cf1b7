"""The ASGI application: routes, limits on bodies, health, and the life of the gateway.

Owns which path does what. The streaming paths are dispatched here, before Starlette, which serves the
ordinary routes; how a request runs is server.exchange's.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Protocol, TypeAlias

import msgspec
import structlog
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route as Path

from antiphon.config import Limits, Settings
from antiphon.core import own_faults
from antiphon.core.faults import error_body
from antiphon.core.parts import Fault, MessageUsage
from antiphon.core.seal import Sealer
from antiphon.core.surfaces.messages.events import usage_fields
from antiphon.server import gate
from antiphon.server.asgi_link import AsgiLink
from antiphon.server.catalog import Model, model_fields, page
from antiphon.server.edge import EdgeProtocol, link_of
from antiphon.server.exchange import Exchange, Job, respond, respond_fault
from antiphon.server.plan import Plan, Planner
from antiphon.server.planning import Planning
from antiphon.server.routing import RouteTable
from antiphon.server.upstreams import Upstream

Receive: TypeAlias = Callable[[], Awaitable[Any]]
Send: TypeAlias = Callable[[Any], Awaitable[None]]

log = structlog.get_logger("antiphon.server")

_PREFIXES = ("", "/llm")
MESSAGES = frozenset(f"{prefix}/v1/messages" for prefix in _PREFIXES)
COUNT_TOKENS = frozenset(f"{path}/count_tokens" for path in MESSAGES)
_ID_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZabcdefghjkmnpqrstvwxyz"


class Backend(Protocol):
    """What stands behind the gateway: upstreams by name, and the table that chooses among them."""

    @property
    def table(self) -> RouteTable: ...
    @property
    def upstreams(self) -> dict[str, Upstream]: ...
    async def models(self) -> list[Model]: ...
    async def start(self) -> None: ...
    async def aclose(self) -> None: ...


class Gateway:
    """One gateway process.

    `sealer` None: what is sealed lasts as long as the process. `clock` is monotonic, in seconds; tests
    give their own and call `tick`.
    """

    def __init__(
        self,
        settings: Settings,
        backend: Backend,
        *,
        sealer: Sealer | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings = settings
        self._sealer = sealer or Sealer(secrets.token_bytes(32))
        self.limits: Limits = settings.limits
        self.clock = clock
        self.backend = backend
        self.edges: set[EdgeProtocol] = set()
        self.live: set[Exchange] = set()
        self.draining = False
        self._drain_deadline: float | None = None
        self._planning = Planning(self.limits, settings.pdf)
        self._ordinary = Starlette(
            routes=[
                Path("/healthz", self._health, methods=["GET"]),
                Path("/", _empty, methods=["HEAD", "GET"]),
                Path("/api/hello", _empty, methods=["HEAD", "GET"]),
                *(Path(f"{prefix}/v1/models", self._models, methods=["GET"]) for prefix in _PREFIXES),
                *(
                    Path(f"{prefix}/v1/models/{{id:path}}", self._model, methods=["GET"])
                    for prefix in _PREFIXES
                ),
            ],
            exception_handlers={HTTPException: _http_error},
        )

    # --- ASGI ---

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
            return
        request_id = self.new_request_id()
        refused = gate.refusal(scope["method"], scope["headers"])
        if refused is not None:
            await respond_fault(send, refused, request_id)
            return
        path = scope["path"].rstrip("/") or "/"
        if path not in MESSAGES and path not in COUNT_TOKENS:
            scope = {**scope, "path": path, "raw_path": None, "antiphon.request_id": request_id}
            await self._ordinary(scope, receive, _with_request_id(send, request_id))
        elif scope["method"] != "POST":
            fault = own_faults.method_not_allowed(scope["method"], path)
            await respond_fault(send, fault, request_id, ((b"allow", b"POST"),))
        elif path in COUNT_TOKENS:
            await self._count_tokens(scope, receive, send, request_id)
        else:
            await self._messages(scope, receive, send, request_id)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        async with self.running():
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
        await send({"type": "lifespan.shutdown.complete"})

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """The gateway's life: its upstreams, its ticker."""
        await self.backend.start()
        ticker = asyncio.get_running_loop().create_task(self._tick_for_ever())
        try:
            yield
        finally:
            ticker.cancel()
            await asyncio.gather(ticker, return_exceptions=True)
            for exchange in list(self.live):
                exchange.close("shutdown")
            self._planning.close()
            await self.backend.aclose()

    # --- POST /v1/messages ---

    async def _messages(self, scope: Any, receive: Receive, send: Send, request_id: str) -> None:
        body = await self._read_body(scope, receive, send, request_id)
        if body is None:
            return
        planned = await self._plan(body)
        del body
        if self.draining:
            planned = own_faults.SHUTTING_DOWN
        if isinstance(planned, Fault):
            await respond_fault(send, planned, request_id, _CLOSE if self.draining else ())
            return
        strict = self.settings.strict or _asks_strict(scope["headers"])
        if strict and planned.chat.degraded:
            said = f"{planned.chat.degraded[0]}: cannot be carried to this upstream (antiphon-strict)"
            await respond_fault(send, own_faults.invalid_request(said), request_id)
            return
        if planned.answers_itself:
            await self._answer_empty(planned, send, request_id)
            return
        await self._run(planned, scope, receive, send, request_id)

    async def _run(self, planned: Plan, scope: Any, receive: Receive, send: Send, request_id: str) -> None:
        job = Job(request_id, planned.model, planned.streaming, planned.chat)
        exchange = Exchange(
            job, upstream=self.backend.upstreams[planned.upstream], limits=self.limits, clock=self.clock
        )
        self.live.add(exchange)
        link = link_of(scope)
        try:
            if link is not None:
                if link.transport.is_closing():
                    return  # gone while its request was planned: nobody would be told
                await exchange.serve(link, send)
            else:
                plain = AsgiLink(receive, send)
                plain.start()
                try:
                    await exchange.serve(plain, plain.send)
                finally:
                    await plain.stop()
        finally:
            self.live.discard(exchange)
            exchange.record.write()

    async def _read_body(self, scope: Any, receive: Receive, send: Send, request_id: str) -> bytes | None:
        """The request's body, or None: the client left, or was told that it is too large."""
        limit = self.limits.max_body
        length = next((value for name, value in scope["headers"] if name == b"content-length"), b"")
        pieces: list[bytes] = []
        size = int(length) if length.isdigit() else 0
        while size <= limit:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            pieces.append(message.get("body", b""))
            if not message.get("more_body"):
                return b"".join(pieces) if len(pieces) > 1 else pieces[0]
            if not length:
                size += len(pieces[-1])
        await respond_fault(send, own_faults.too_large(limit), request_id, _CLOSE)
        return None

    async def _plan(self, body: bytes, *, counting: bool = False) -> Plan | Fault:
        planner = Planner(self.backend.table, self._sealer)
        return await self._planning.plan(planner, body, counting=counting)

    async def _answer_empty(self, planned: Plan, send: Send, request_id: str) -> None:
        """`max_tokens: 0` asks for no token: the answer is known (protocol: Messages API, max_tokens)."""
        usage = MessageUsage(planned.chat.input_estimate, 0)
        message: dict[str, Any] = {
            "id": f"msg_{secrets.token_hex(12)}",
            "type": "message",
            "role": "assistant",
            "model": planned.model,
            "content": [],
            "stop_reason": "max_tokens",
            "stop_sequence": None,
            "usage": usage_fields(usage, final=True),
        }
        await respond(send, 200, msgspec.json.encode(message), [(b"request-id", request_id.encode())])

    async def _count_tokens(self, scope: Any, receive: Receive, send: Send, request_id: str) -> None:
        body = await self._read_body(scope, receive, send, request_id)
        if body is None:
            return
        planned = await self._plan(body, counting=True)
        if isinstance(planned, Fault):
            await respond_fault(send, planned, request_id)
            return
        # Bounded to two seconds and harmless to finish: a client that leaves here costs nothing.
        counted = await self.backend.upstreams[planned.upstream].counter.count(planned.chat.body)
        tokens = planned.chat.input_estimate if counted is None else counted
        said = b"estimate" if counted is None else b"exact"
        headers = [(b"request-id", request_id.encode()), (b"antiphon-token-count", said)]
        await respond(send, 200, b'{"input_tokens":%d}' % tokens, headers)

    # --- ordinary routes ---

    async def _health(self, request: Request) -> Response:
        if self.draining:
            return JSONResponse({"status": "draining"}, status_code=503)
        return JSONResponse({"status": "ok"})

    async def _models(self, request: Request) -> Response:
        query = request.query_params
        limit = query.get("limit", "20")
        if not limit.isdigit() or not 1 <= int(limit) <= 1000:
            return _fault_response(own_faults.invalid_request("limit: must be from 1 to 1000"), request)
        listed = page(
            await self.backend.models(),
            limit=int(limit),
            after_id=query.get("after_id"),
            before_id=query.get("before_id"),
        )
        return JSONResponse(listed)

    async def _model(self, request: Request) -> Response:
        wanted = request.path_params["id"]
        for model in await self.backend.models():
            if model.id == wanted:
                return JSONResponse(model_fields(model))
        return _fault_response(Fault("not_found_error", f"model: {wanted}", 404), request)

    # --- time and the end ---

    def new_request_id(self) -> str:
        return "req_" + "".join(secrets.choice(_ID_ALPHABET) for _ in range(24))

    async def _tick_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self.limits.tick)
            self.tick(self.clock())

    def tick(self, now: float) -> None:
        """The one coarse ticker: every time limit of every request is looked at here."""
        for exchange in list(self.live):
            exchange.tick(now)
        for edge in list(self.edges):
            edge.tick(now)
        for upstream in self.backend.upstreams.values():
            upstream.expire(now)
        if self._drain_deadline is not None and now >= self._drain_deadline:
            for exchange in list(self.live):
                exchange.close("shutdown")

    def drain(self) -> None:
        """Take no more requests; those that run may run on until the deadline."""
        if not self.draining:
            self.draining = True
            self._drain_deadline = self.clock() + self.limits.drain
            log.info("draining", exchanges=len(self.live), seconds=self.limits.drain)

    def stop_now(self) -> None:
        """No more patience: every exchange ends with an honest error at the next tick of the loop."""
        for exchange in list(self.live):
            exchange.close("shutdown")


_CLOSE = ((b"connection", b"close"),)


def _asks_strict(headers: list[tuple[bytes, bytes]]) -> bool:
    return any(name == b"antiphon-strict" and value.strip().lower() == b"true" for name, value in headers)


def _with_request_id(send: Send, request_id: str) -> Send:
    async def sending(message: Any) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", []), (b"request-id", request_id.encode())]
        await send(message)

    return sending


async def _empty(request: Request) -> Response:
    return Response(status_code=200)


async def _http_error(request: Request, error: Exception) -> Response:
    """404 and 405 of the ordinary routes, in Anthropic's shape."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    headers = dict(error.headers or {}) if isinstance(error, HTTPException) else {}
    path = request.url.path
    fault = (
        own_faults.method_not_allowed(request.method, path) if status == 405 else own_faults.not_found(path)
    )
    return _fault_response(fault, request, headers)


def _fault_response(fault: Fault, request: Request, headers: dict[str, str] | None = None) -> Response:
    body = error_body(fault, request.scope["antiphon.request_id"])
    return Response(body, status_code=fault.status, headers=headers, media_type="application/json")
