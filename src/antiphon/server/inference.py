"""The routes that need an upstream: a request's body becomes a plan, the plan an exchange.

Owns what happens between a request's last byte and its exchange: the key's limits, the plan, strict mode. How
the exchange runs is server.exchange's; what a body means is the planner's. Every way out of here ends what
the key was charged for.

    await inference.messages(request)         # POST /v1/messages
    await inference.count_tokens(request)
    await inference.relay(request, "/chat/completions")
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Awaitable, Callable
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec
import structlog
from msgspec import Struct

from antiphon.core import own_faults
from antiphon.core.parts import Fault, MessageUsage
from antiphon.core.surfaces.messages.events import usage_fields
from antiphon.observe.record import ExchangeRecord
from antiphon.server import clients
from antiphon.server.answering import Answering
from antiphon.server.answers import Headers, Receive, Send, answer_headers, respond
from antiphon.server.asgi_link import AsgiLink
from antiphon.server.choosing import Chooser
from antiphon.server.edge import link_of
from antiphon.server.entry import Identity
from antiphon.server.exchange import Exchange
from antiphon.server.exchange_terms import Job
from antiphon.server.key_limits import Admission, Refusal
from antiphon.server.plan import ANYWHERE, Aim, Plan, Planner
from antiphon.server.reading import TooLargeError, read_body
from antiphon.server.retries import Retries
from antiphon.server.routing import without_names
from antiphon.server.surface import MESSAGES, OPENAI, Surface
from antiphon.server.turnstile import turned_away

if TYPE_CHECKING:
    from antiphon.server.app import Gateway

log = structlog.get_logger("antiphon.exchange")

CLOSE: tuple[tuple[bytes, bytes], ...] = ((b"connection", b"close"),)
NO_WAIT = (b"antiphon-queue-ms", b"0")


class Asked(Struct, frozen=True):
    """One request of a client that may ask: ASGI's three, and who it is."""

    scope: Any
    receive: Receive
    send: Send
    request_id: str
    identity: Identity


class _Again:
    """Plans the same request for somewhere else. Keeps its body until `forget`."""

    __slots__ = ("_body", "_plan")

    def __init__(
        self, body: list[bytes], plan: Callable[[list[bytes], Aim], Awaitable[Plan | Fault]]
    ) -> None:
        self._body = body
        self._plan = plan

    async def __call__(self, aim: Aim) -> Plan | Fault:
        return await self._plan(list(self._body), aim)

    def forget(self) -> None:
        self._body.clear()


class Inference:
    """See the module. It lives as long as its gateway, and reads its settings with every request."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    # --- the routes ---

    async def messages(self, asked: Asked) -> None:
        """`POST /v1/messages`."""
        body = await self._body(asked, MESSAGES)
        if body is None or await self._turned_away(body, MESSAGES, asked):
            return
        table = self._gateway.backend.table
        kept = list(body) if table.may_replan else []
        planned = await self._plan(asked, body)
        del body  # it would stay for as long as the answer takes
        planned = self._allowed(planned, asked)
        if isinstance(planned, Fault):
            await self._refuse(asked, MESSAGES, planned)
            return
        if planned.answers_itself:
            await self._answer_empty(planned, asked)
            return

        async def replan(again: list[bytes], aim: Aim) -> Plan | Fault:
            return self._allowed(await self._plan(asked, again, aim=aim), asked, runs=True)

        await self._run(planned, MESSAGES, _Again(kept, replan), asked)

    async def relay(self, asked: Asked, path: str) -> None:
        """An OpenAI client's request, which passes as it is. `path` below a base URL."""
        body = await self._body(asked, OPENAI)
        if body is None or await self._turned_away(body, OPENAI, asked):
            return
        kept = list(body) if self._gateway.backend.table.may_replan else []
        planned = await self._gateway.planning.relay(self._planner(asked), body, path)
        del body
        planned = self._allowed(planned, asked)
        if isinstance(planned, Fault):
            await self._refuse(asked, OPENAI, planned)
            return

        async def replan(again: list[bytes], aim: Aim) -> Plan | Fault:
            planned = await self._gateway.planning.relay(self._planner(asked), again, path, aim)
            return self._allowed(planned, asked, runs=True)

        await self._run(planned, OPENAI, _Again(kept, replan), asked)

    async def count_tokens(self, asked: Asked) -> None:
        """`POST /v1/messages/count_tokens`."""
        body = await self._body(asked, MESSAGES)
        if body is None:
            return
        planned = await self._plan(asked, body, counting=True)
        if isinstance(planned, Fault):
            await self._refuse(asked, MESSAGES, _for(asked.identity, planned))
            return
        # Bounded to four seconds and harmless to finish: a client that leaves here costs nothing.
        tokens, by = await self._counted(planned)
        headers = answer_headers(asked.request_id, planned.chat.degraded)
        if by is None:
            headers.append((b"antiphon-token-count", b"estimate"))
        else:
            headers += [(b"antiphon-token-count", b"exact"), (b"antiphon-upstream", by.encode())]
        self._gateway.metrics.counted(by or planned.target.upstream, exact=by is not None)
        await respond(asked.send, 200, b'{"input_tokens":%d}' % tokens, headers)

    async def _counted(self, planned: Plan) -> tuple[int, str | None]:
        """The tokens, and the server that counted them; None: no server did, they are estimated.

        A server of its model that is well: two are asked at most, for each has two seconds.
        """
        backend = self._gateway.backend
        chooser = Chooser(backend.upstreams, backend.prefixes, clock=self._gateway.clock)
        alike = (each for each in chooser.places(planned) if each.target.reads_as(planned.target))
        for place in islice(alike, 2):
            tokens = await place.upstream.counter.count(planned.chat.body)
            if tokens is not None:
                return tokens, place.upstream.name
        return planned.chat.input_estimate, None

    # --- from a body to an exchange ---

    async def _body(self, asked: Asked, surface: Surface) -> list[bytes] | None:
        """The request's body, or None: the client left, or was told that it is too large."""
        limit = self._gateway.limits.max_body
        try:
            return await read_body(asked.scope, asked.receive, limit)
        except TooLargeError:
            await self._refuse(asked, surface, own_faults.too_large(limit), CLOSE)
            return None

    async def _turned_away(self, body: list[bytes], surface: Surface, asked: Asked) -> bool:
        """Nobody could serve it now: it is told so before its body is translated."""
        gateway, identity = self._gateway, asked.identity
        if gateway.draining or sum(map(len, body)) >= gateway.limits.heavy_body:
            return False  # to look for a name in a large body would hold up the loop
        turned = turned_away(
            body,
            gateway.backend.table,
            gateway.backend.upstreams,
            share=identity.share,
            weight=identity.weight,
            priority=clients.asked_priority(asked.scope["headers"], identity.highest),
            patience=clients.patience(asked.scope["headers"]),
            allowed=identity.allows,
        )
        if turned is None:
            return False
        now = gateway.clock()
        record = ExchangeRecord(
            request_id=asked.request_id,
            surface=surface.name,
            key=identity.name,
            model=turned.model,
            upstream=turned.upstream,
            streaming=turned.streaming,
            began=now,
            ended=now,
            cause="overload",
            status=surface.status_of(turned.fault),
            error=turned.fault.kind,
        )
        where = ((b"antiphon-upstream", turned.upstream.encode()), NO_WAIT)
        try:
            await surface.respond(asked.send, turned.fault, asked.request_id, where)
        finally:
            record.write()
            gateway.metrics.observe(record)
        return True

    def _planner(self, asked: Asked) -> Planner:
        key = asked.identity.key
        models = () if key is None else key.models
        return Planner(self._gateway.backend.table, self._gateway.sealer, models)

    async def _plan(
        self, asked: Asked, body: list[bytes], *, counting: bool = False, aim: Aim = ANYWHERE
    ) -> Plan | Fault:
        return await self._gateway.planning.plan(self._planner(asked), body, counting=counting, aim=aim)

    def _allowed(self, planned: Plan | Fault, asked: Asked, *, runs: bool = False) -> Plan | Fault:
        """The plan, or why it must not be carried out, whatever the upstreams would say.

        `runs`: it is for a request that runs already, which may run on while the gateway drains.
        """
        if self._gateway.draining and not runs:
            return own_faults.SHUTTING_DOWN
        if isinstance(planned, Fault):
            return _for(asked.identity, planned)
        strict = (
            self._gateway.settings.strict or asked.identity.strict or _asks_strict(asked.scope["headers"])
        )
        if strict and planned.chat.degraded:
            said = f"{planned.chat.degraded[0]}: cannot be carried to this upstream (antiphon-strict)"
            return own_faults.invalid_request(said)
        return planned

    async def _refuse(
        self, asked: Asked, surface: Surface, fault: Fault, extra: tuple[tuple[bytes, bytes], ...] = ()
    ) -> None:
        if self._gateway.draining and extra != CLOSE:
            extra = (*extra, *CLOSE)
        self._gateway.metrics.refused(fault.kind, surface.name)
        log.info(
            "refused",
            request_id=asked.request_id,
            surface=surface.name,
            error=fault.kind,
            status=surface.status_of(fault),
            **({"key": asked.identity.name} if asked.identity.name else {}),
        )
        await surface.respond(asked.send, fault, asked.request_id, extra)

    async def _answer_empty(self, planned: Plan, asked: Asked) -> None:
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
        headers = answer_headers(asked.request_id, planned.chat.degraded)
        await respond(asked.send, 200, msgspec.json.encode(message), headers)

    async def _run(self, planned: Plan, surface: Surface, again: _Again, asked: Asked) -> None:
        """One exchange, within what its key may use up."""
        gateway, identity = self._gateway, asked.identity
        said = await gateway.key_limits.check(identity.key, planned.chat.input_estimate, time.time())
        if isinstance(said, Refusal):
            gateway.metrics.limited(identity.name, said.limit)
            await self._refuse(asked, surface, said.fault, said.headers)
            return
        exchange = None
        try:
            exchange = self._exchange(planned, surface, again, asked, said)
            await self._serve(exchange, asked)
        finally:
            said.finish(None if exchange is None else exchange.charged)

    def _exchange(
        self, planned: Plan, surface: Surface, again: _Again, asked: Asked, admission: Admission
    ) -> Exchange:
        gateway, identity, headers = self._gateway, asked.identity, asked.scope["headers"]
        gateway.budget.earn(gateway.clock())
        session = clients.session(headers)
        job = Job(
            asked.request_id,
            planned,
            surface,
            again,
            forget=again.forget,
            share=identity.share,
            weight=identity.weight,
            key=identity.name,
            headers=admission.headers,
            session=session,
            forwarded=clients.api_headers(headers),
            priority=clients.priority(headers, planned.chat, identity.highest),
            patience=clients.patience(headers),
        )
        return Exchange(
            job,
            chooser=Chooser(
                gateway.backend.upstreams,
                gateway.backend.prefixes,
                clock=gateway.clock,
                session=session,
            ),
            answering=Answering(gateway.limits, gateway.sealer),
            retries=Retries(gateway.settings.retries, gateway.budget, clock=gateway.clock),
            limits=gateway.limits,
            clock=gateway.clock,
            upstream_closed=gateway.metrics.closing.observe,
        )

    async def _serve(self, exchange: Exchange, asked: Asked) -> None:
        gateway = self._gateway
        gateway.live.add(exchange)
        link = link_of(asked.scope)
        try:
            if link is not None:
                await exchange.serve(link, asked.send)
            else:
                plain = AsgiLink(asked.receive, asked.send)
                plain.start()
                try:
                    await exchange.serve(plain, plain.send)
                finally:
                    await plain.stop()
        finally:
            gateway.live.discard(exchange)
            exchange.record.write()
            gateway.metrics.observe(exchange.record)


def _for(identity: Identity, fault: Fault) -> Fault:
    """The fault as this one may hear it: without the names of models that its key may not use."""
    limited = identity.limited and fault.kind == "not_found_error"
    return without_names(fault) if limited else fault


def _asks_strict(headers: Headers) -> bool:
    return any(name == b"antiphon-strict" and value.strip().lower() == b"true" for name, value in headers)
