"""From the bytes of a client's request to a plan: which upstreams may serve it, and with which body.

Pure, and picklable from end to end: where a body is planned is server.planning's decision.

    Planner(table, sealer).plan(body)   -> Plan(model="smollm2", target=Target("local", ...), ...), or a Fault
"""

from __future__ import annotations

from functools import partial
from typing import Literal

from msgspec import Struct, structs

from antiphon.core.dialects.chat_request import ChatRequest, encode
from antiphon.core.dialects.documents import ReadPdf, may_hold_documents, open_documents
from antiphon.core.parts import Fault
from antiphon.core.seal import Sealer
from antiphon.core.surfaces.messages.request import MessagesRequest, RequestError, parse
from antiphon.server.routing import NoRouteError, Route, RouteTable, Target, check_fit

# What a clamped answer always gets, should the estimate of the prompt be far too high.
LEAST_ANSWER = 256

# Fallbacks that may follow one another: a table that names itself in a circle ends here.
_LONGEST_CHAIN = 4


class Plan(Struct, frozen=True):
    """`model` is the client's name; `chat` is written for `target`, one of the route's.

    `answers_itself`: the request asks for no token at all, no upstream is needed.
    """

    model: str
    name: str  # by which the route was found: the client's, or a fallback's
    streaming: bool
    route: Route
    target: Target
    chat: ChatRequest
    answers_itself: bool = False
    carries: Literal["chat"] = "chat"  # how the answer is read: see server.answering
    path: str = "/chat/completions"

    @property
    def sends(self) -> str:
        """The upstream's name for the model."""
        return self.target.sends or self.model


class Aim(Struct, frozen=True):
    """Where a plan has to lead, when it is not the first for its request.

    `model`: the route of another name than the client's. `target`: this one of the route's.
    """

    model: str | None = None
    target: Target | None = None


ANYWHERE = Aim()


class Planner(Struct, frozen=True):
    """Everything that a request's plan depends on beside the request."""

    table: RouteTable
    sealer: Sealer

    def plan(
        self, body: bytes, counting: bool = False, read_pdf: ReadPdf | None = None, aim: Aim = ANYWHERE
    ) -> Plan | Fault:
        """What a request asks for, or why it is refused. Never raises for anything in the body.

        `counting`: it is a body of `count_tokens`. `read_pdf` opens its PDFs, and what that raises beside
        UnreadableError comes out here; None: PDFs are refused.
        """
        try:
            request = parse(body, counting=counting)
            name = aim.model or request.model
            for _ in range(_LONGEST_CHAIN):
                try:
                    return self._write(request, body, name, counting, read_pdf, aim.target)
                except NoRouteError as refused:
                    if refused.fallback is None:
                        return refused.fault
                    name, aim, last = refused.fallback, ANYWHERE, refused.fault
        except (RequestError, NoRouteError) as refused:
            return refused.fault
        return last

    def _write(
        self,
        request: MessagesRequest,
        body: bytes,
        name: str,
        counting: bool,
        read_pdf: ReadPdf | None,
        wanted: Target | None,
    ) -> Plan:
        """Raises RequestError, NoRouteError."""
        route = self.table.find(name)
        target = wanted or route.targets[0]
        quirks = target.quirks
        if read_pdf is not None and may_hold_documents(body):
            request = open_documents(request, read_pdf, images=quirks.images != "none")
        sends = target.sends or request.model
        write = partial(
            encode,
            quirks=quirks,
            model=sends,
            unseal=partial(self.sealer.open, quirks.name, sends),
            pseudonym=self.sealer.pseudonym,
        )
        chat = write(request)
        if not counting:
            check_fit(route, chat.input_estimate)
            if target.window is not None:
                # Servers that add prompt and limit refuse the sum; the others stop by themselves.
                room = max(LEAST_ANSWER, target.window - chat.input_estimate)
                if request.max_tokens > room:
                    del chat  # a large one would stay while the next is written
                    chat = write(structs.replace(request, max_tokens=room))
        return Plan(request.model, name, request.stream, route, target, chat, request.warms_cache_only)
