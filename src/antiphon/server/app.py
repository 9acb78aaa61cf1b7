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

from antiphon.config import Limits, Settings
from antiphon.core import own_faults
from antiphon.core.parts import Fault, MessageUsage
from antiphon.core.seal import Sealer
from antiphon.core.surfaces.messages.events import usage_fields
from antiphon.observe.log import log_bug
from antiphon.observe.metrics import Metrics
from antiphon.server import clients, gate
from antiphon.server.answering import Answering
from antiphon.server.answers import answer_headers, respond, respond_fault
from antiphon.server.asgi_link import AsgiLink
from antiphon.server.catalog import Model
from antiphon.server.choosing import Chooser
from antiphon.server.edge import EdgeProtocol, link_of
from antiphon.server.exchange import Exchange
from antiphon.server.exchange_terms import Job
from antiphon.server.ordinary import PREFIXES, OrdinaryRoutes
from antiphon.server.plan import ANYWHERE, Aim, Plan, Planner
from antiphon.server.planning import Planning
from antiphon.server.retries import Retries
from antiphon.server.retry_budget import RetryBudget
from antiphon.server.routing import RouteTable
from antiphon.server.surface import MESSAGES as MESSAGES_SURFACE
from antiphon.server.upstreams import Upstream

Receive: TypeAlias = Callable[[], Awaitable[Any]]
Send: TypeAlias = Callable[[Any], Awaitable[None]]
Replan: TypeAlias = Callable[[Aim], Awaitable[Plan | Fault]]

log = structlog.get_logger("antiphon.server")

MESSAGES = frozenset(f"{prefix}/v1/messages" for prefix in PREFIXES)
COUNT_TOKENS = frozenset(f"{path}/count_tokens" for path in MESSAGES)
_ID_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZabcdefghjkmnpqrstvwxyz"


class _Told:
    """ASGI's send, and whether the answer has begun."""

    __slots__ = ("_send", "started")

    def __init__(self, send: Send) -> None:
        self._send = send
        self.started = False

    async def __call__(self, message: Any) -> None:
        self.started = True
        await self._send(message)


class Backend(Protocol):
    """What stands behind the gateway: upstreams by name, and the table that chooses among them."""

    @property
    def table(self) -> RouteTable: ...
    @property
    def upstreams(self) -> dict[str, Upstream]: ...
    async def models(self) -> list[Model]: ...
    async def start(self) -> None: ...
    def expire(self, now: float) -> None: ...
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
        self._budget = RetryBudget(per_request=settings.retries.budget, now=clock())
        self.metrics = Metrics(known_models=self._known_models, upstreams=lambda: backend.upstreams)
        self._ordinary = OrdinaryRoutes(self).app

    # --- ASGI ---

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
            return
        request_id = self.new_request_id()
        told = _Told(send)
        try:
            await self._route(scope, receive, told, request_id)
        except Exception as error:
            if told.started:
                raise  # the server logs it and cuts the answer off: half of it must not look whole
            log_bug(log, error, request_id=request_id)
            await respond_fault(send, own_faults.internal(request_id), request_id)

    async def _route(self, scope: Any, receive: Receive, send: Send, request_id: str) -> None:
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
        kept = list(body) if self.backend.table.may_replan else None
        planned = await self._plan(body)
        del body  # it would stay for as long as the answer takes
        if self.draining:
            planned = own_faults.SHUTTING_DOWN
        if isinstance(planned, Fault):
            await respond_fault(send, planned, request_id, _CLOSE if self.draining else ())
            return
        strict = self.settings.strict or _asks_strict(scope["headers"])
        if strict and planned.chat.degraded:
            await respond_fault(send, _too_much_lost(planned), request_id)
            return
        if planned.answers_itself:
            await self._answer_empty(planned, send, request_id)
            return

        async def replan(aim: Aim) -> Plan | Fault:
            again = await self._plan(list(kept or ()), aim=aim)
            if strict and isinstance(again, Plan) and again.chat.degraded:
                return _too_much_lost(again)
            return again

        await self._run(planned, replan, scope, receive, send, request_id)

    async def _run(
        self, planned: Plan, replan: Replan, scope: Any, receive: Receive, send: Send, request_id: str
    ) -> None:
        job = Job(
            request_id,
            planned,
            MESSAGES_SURFACE,
            replan,
            share=clients.share(scope),
            priority=clients.priority(scope["headers"], planned.chat),
            patience=clients.patience(scope["headers"]),
        )
        self._budget.earn(self.clock())
        exchange = Exchange(
            job,
            chooser=Chooser(self.backend.upstreams, clock=self.clock),
            answering=Answering(self.limits, self._sealer),
            retries=Retries(self.settings.retries, self._budget, clock=self.clock),
            limits=self.limits,
            clock=self.clock,
            upstream_closed=self.metrics.closing.observe,
        )
        self.live.add(exchange)
        link = link_of(scope)
        try:
            if link is not None:
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
            self.metrics.observe(exchange.record)

    async def _read_body(
        self, scope: Any, receive: Receive, send: Send, request_id: str
    ) -> list[bytes] | None:
        """The request's body in pieces, or None: the client left, or was told that it is too large."""
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
                return pieces
            if not length:
                size += len(pieces[-1])
        await respond_fault(send, own_faults.too_large(limit), request_id, _CLOSE)
        return None

    async def _plan(self, body: list[bytes], *, counting: bool = False, aim: Aim = ANYWHERE) -> Plan | Fault:
        planner = Planner(self.backend.table, self._sealer)
        return await self._planning.plan(planner, body, counting=counting, aim=aim)

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
        headers = answer_headers(request_id, planned.chat.degraded)
        await respond(send, 200, msgspec.json.encode(message), headers)

    async def _count_tokens(self, scope: Any, receive: Receive, send: Send, request_id: str) -> None:
        body = await self._read_body(scope, receive, send, request_id)
        if body is None:
            return
        planned = await self._plan(body, counting=True)
        if isinstance(planned, Fault):
            await respond_fault(send, planned, request_id)
            return
        # Bounded to two seconds and harmless to finish: a client that leaves here costs nothing.
        upstream = self.backend.upstreams.get(planned.target.upstream)
        counted = None if upstream is None else await upstream.counter.count(planned.chat.body)
        tokens = planned.chat.input_estimate if counted is None else counted
        said = b"estimate" if counted is None else b"exact"
        headers = [*answer_headers(request_id, planned.chat.degraded), (b"antiphon-token-count", said)]
        await respond(send, 200, b'{"input_tokens":%d}' % tokens, headers)

    # --- time and the end ---

    def _known_models(self) -> set[str]:
        table = self.backend.table
        exact = {route.model for route in table.routes if route.exact}
        return exact.union(*table.listed.values())

    def new_request_id(self) -> str:
        return "req_" + "".join(secrets.choice(_ID_ALPHABET) for _ in range(24))

    async def _tick_for_ever(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + self.limits.tick
            await asyncio.sleep(self.limits.tick)
            self.metrics.loop_lag.observe(max(0.0, loop.time() - due))
            self.tick(self.clock())

    def tick(self, now: float) -> None:
        """The one coarse ticker: every time limit of every request is looked at here."""
        for exchange in list(self.live):
            exchange.tick(now)
        for edge in list(self.edges):
            edge.tick(now)
        self.backend.expire(now)
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
        self._planning.close()


_CLOSE = ((b"connection", b"close"),)


def _too_much_lost(planned: Plan) -> Fault:
    said = f"{planned.chat.degraded[0]}: cannot be carried to this upstream (antiphon-strict)"
    return own_faults.invalid_request(said)


def _asks_strict(headers: list[tuple[bytes, bytes]]) -> bool:
    return any(name == b"antiphon-strict" and value.strip().lower() == b"true" for name, value in headers)


def _with_request_id(send: Send, request_id: str) -> Send:
    async def sending(message: Any) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", []), (b"request-id", request_id.encode())]
        await send(message)

    return sending
