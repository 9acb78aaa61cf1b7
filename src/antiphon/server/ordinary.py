"""The ordinary routes: health, models, metrics, and the operator's. Starlette serves them.

Owns their paths and their JSON. Nothing here streams and nothing here is fast; the streaming paths never
come through this module.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

import msgspec
import structlog
from msgspec import structs
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route as Path

from antiphon.core import own_faults
from antiphon.core.faults import error_body
from antiphon.core.parts import Fault
from antiphon.core.scrub import legible
from antiphon.observe.metrics import CONTENT_TYPE
from antiphon.server.admission import LeaseState
from antiphon.server.catalog import model_fields, page
from antiphon.server.entry import WRONG_ADMIN_KEY, Identity
from antiphon.server.overview import statistics
from antiphon.server.worker_peers import Question, merged_slots

if TYPE_CHECKING:
    from antiphon.server.app import Gateway
    from antiphon.server.upstreams import Upstream

log = structlog.get_logger("antiphon.server")

PREFIXES = ("", "/llm")
_YES, _NO = b"yes", b"no"  # to a question of another worker
_LONGEST_PAGE = 1000  # protocol: Messages API, GET /v1/models, `limit`


Handler = Callable[[Request], Awaitable[Response]]


def _for_operators(handle: Handler) -> Handler:
    """The door looks at the path that a client has sent, this at where Starlette has brought it."""

    @wraps(handle)
    async def handling(request: Request) -> Response:
        if not _who(request).operator:
            return _refuse(WRONG_ADMIN_KEY, request)
        return await handle(request)

    return handling


class OrdinaryRoutes:
    """`app` is an ASGI application; it expects `antiphon.request_id` and `antiphon.who` in the scope."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self.app = Starlette(
            routes=[
                Path("/healthz", self._health, methods=["GET"]),
                Path("/metrics", self._metrics, methods=["GET"]),
                *(
                    Path(path, _for_operators(handle), methods=[method])
                    for method, path, handle in (
                        ("GET", "/admin", self._overview),
                        ("GET", "/admin/slots", self._slots),
                        ("DELETE", "/admin/slots/{request_id}", self._cancel),
                        ("GET", "/admin/upstreams", self._upstreams),
                    )
                ),
                Path(
                    "/admin/upstreams/{name}/drain", _for_operators(self._drain), methods=["POST", "DELETE"]
                ),
                Path("/", _empty, methods=["HEAD", "GET"]),
                Path("/api/hello", _empty, methods=["HEAD", "GET"]),
                *(Path(f"{prefix}/v1/models", self._models, methods=["GET"]) for prefix in PREFIXES),
                *(
                    Path(f"{prefix}/v1/models/{{id:path}}", self._model, methods=["GET"])
                    for prefix in PREFIXES
                ),
            ],
            exception_handlers={HTTPException: _http_error},
        )

    async def _health(self, request: Request) -> Response:
        if self._gateway.draining:
            return JSONResponse({"status": "draining"}, status_code=503)
        return JSONResponse({"status": "ok"})

    async def _metrics(self, request: Request) -> Response:
        return Response(self._gateway.metrics.exposition(), headers={"content-type": CONTENT_TYPE})

    async def _models(self, request: Request) -> Response:
        query = request.query_params
        limit = _page_size(query.get("limit", "20"))
        if limit is None:
            said = f"limit: must be from 1 to {_LONGEST_PAGE}"
            return _refuse(own_faults.invalid_request(said), request)
        who = _who(request)
        listed = page(
            [model for model in await self._gateway.backend.models() if who.allows(model.id)],
            limit=limit,
            after_id=query.get("after_id"),
            before_id=query.get("before_id"),
        )
        return JSONResponse(listed)

    async def _model(self, request: Request) -> Response:
        wanted = request.path_params["id"]
        for model in await self._gateway.backend.models():
            if model.id == wanted and _who(request).allows(wanted):
                return JSONResponse(model_fields(model))
        return _refuse(Fault("not_found_error", f"model: {legible(wanted, limit=200)}", 404), request)

    # --- the operator's ---

    async def _overview(self, request: Request) -> Response:
        return _json(statistics(self._gateway))

    async def _upstreams(self, request: Request) -> Response:
        return _json({"upstreams": statistics(self._gateway).upstreams})

    async def _drain(self, request: Request) -> Response:
        """Drain an upstream, or undo that. One that is leaving is drained anyway."""
        gateway, name = self._gateway, request.path_params["name"]
        if name not in gateway.backend.upstreams:
            return _refuse(Fault("not_found_error", "no such upstream", 404), request)
        drains, wanted = gateway.drains, request.method == "POST"
        if wanted:
            drains.drain(name)
        else:
            drains.undrain(name)
        drains.apply(gateway.backend.upstreams)
        log.info("upstream_drained" if wanted else "upstream_undrained", upstream=name)
        now = statistics(gateway).upstreams
        return _json(next(each for each in now if each.name == name and not each.leaving))

    async def _slots(self, request: Request) -> Response:
        shown, peers = self.slots(), self._gateway.peers
        if peers is not None:
            shown = merged_slots([shown, *map(json.loads, await peers.ask(Question()))])
        return JSONResponse(shown)

    def slots(self) -> dict[str, dict[str, Any]]:
        """Who holds what and who waits in this process, by upstream."""
        backend = self._gateway.backend
        shown = {name: self._of_upstream(each) for name, each in backend.upstreams.items()}
        for each in backend.leaving:
            name = each.name
            while name in shown:  # another server has its name by now: what runs here must be seen too
                name += " (leaving)"
            shown[name] = self._of_upstream(each)
        return shown

    def _of_upstream(self, upstream: Upstream) -> dict[str, Any]:
        """Who holds what and who waits, at this moment."""
        now = self._gateway.clock()
        live = {exchange.job.request_id: exchange for exchange in self._gateway.live}
        slots = upstream.slots
        leases = []
        for lease in slots.leases():
            exchange, draining = live.get(lease.owner), lease.state is LeaseState.DRAINING
            # Its request may run on elsewhere: what drains is what it was when it left.
            whose = lease.left if draining else exchange and exchange.left
            phase = lease.state.value if draining else exchange and exchange.phase.value
            leases.append(
                {
                    "lease": lease.owner,
                    "state": lease.state.value,
                    "key": (whose and whose.key) or None,
                    "share": lease.share,
                    "age_seconds": round(now - lease.since, 1),
                    "model": whose and whose.model,
                    "phase": phase,
                    "output_tokens": whose and whose.output_tokens,
                }
            )
        queue = []
        for position, ticket in enumerate(slots.waiting()):
            exchange = live.get(ticket.owner)
            queue.append(
                {
                    "lease": ticket.owner,
                    "position": position,
                    "key": exchange.job.key or None if exchange else None,
                    "share": ticket.share,
                    "waited_seconds": round(now - ticket.since, 1),
                    "expected_wait_seconds": round(slots.expected_wait(position), 1),
                }
            )
        return {**structs.asdict(slots.statistics()), "leases": leases, "queue": queue}

    async def _cancel(self, request: Request) -> Response:
        wanted, peers = request.path_params["request_id"], self._gateway.peers
        cancelled = self._gateway.cancel(wanted)
        if not cancelled and peers is not None:
            cancelled = _YES in await peers.ask(Question(cancel=wanted))
        if cancelled:
            return JSONResponse({"cancelled": wanted})
        return _refuse(Fault("not_found_error", "no such lease", 404), request)

    def answer(self, question: Question) -> bytes:
        """What another worker asks."""
        if question.cancel is None:
            return json.dumps(self.slots()).encode()
        return _YES if self._gateway.cancel(question.cancel) else _NO


def _who(request: Request) -> Identity:
    """Who the door let in."""
    who: Identity = request.scope["antiphon.who"]
    return who


def _json(value: Any) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")


def _page_size(asked: str) -> int | None:
    digits = asked.isascii() and asked.isdigit() and len(asked) <= len(str(_LONGEST_PAGE))
    return int(asked) if digits and 1 <= int(asked) <= _LONGEST_PAGE else None


async def _empty(request: Request) -> Response:
    return Response(status_code=200)


async def _http_error(request: Request, error: Exception) -> Response:
    """404 and 405 in Anthropic's shape."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    headers = dict(error.headers or {}) if isinstance(error, HTTPException) else {}
    path = request.url.path
    fault = (
        own_faults.method_not_allowed(request.method, path) if status == 405 else own_faults.not_found(path)
    )
    return _refuse(fault, request, headers)


def _refuse(fault: Fault, request: Request, headers: dict[str, str] | None = None) -> Response:
    body = error_body(fault, request.scope["antiphon.request_id"])
    return Response(body, status_code=fault.status, headers=headers, media_type="application/json")
