"""From the bytes of a client's request to a plan: which upstream, with which body.

Pure, and picklable from end to end: where a body is planned is server.planning's decision.

    Planner(table, sealer).plan(body)   -> Plan(upstream="local", model="smollm2", ...), or a Fault
"""

from __future__ import annotations

from functools import partial

from msgspec import Struct, structs

from antiphon.core.dialects.chat_request import ChatRequest, encode
from antiphon.core.dialects.documents import ReadPdf, may_hold_documents, open_documents
from antiphon.core.dialects.quirks import by_name
from antiphon.core.parts import Fault
from antiphon.core.seal import Sealer
from antiphon.core.surfaces.messages.request import RequestError, parse
from antiphon.server.routing import NoRouteError, RouteTable

# What a clamped answer always gets, should the estimate of the prompt be far too high.
LEAST_ANSWER = 256


class Plan(Struct, frozen=True):
    """`model` is the client's name, `sends` the upstream's.

    `answers_itself`: the request asks for no token at all, no upstream is needed.
    """

    upstream: str
    model: str
    sends: str
    streaming: bool
    chat: ChatRequest
    answers_itself: bool = False


class Planner(Struct, frozen=True):
    """Everything that a request's plan depends on beside the request."""

    table: RouteTable
    sealer: Sealer

    def plan(self, body: bytes, counting: bool = False, read_pdf: ReadPdf | None = None) -> Plan | Fault:
        """What a request asks for, or why it is refused. Never raises for anything in the body.

        `counting`: it is a body of `count_tokens`. `read_pdf` opens its PDFs, and what that raises beside
        UnreadableError comes out here; None: PDFs are refused.
        """
        try:
            request = parse(body, counting=counting)
            route = self.table.find(request.model)
            quirks = by_name(route.profile)
            if read_pdf is not None and may_hold_documents(body):
                request = open_documents(request, read_pdf, images=quirks.images != "none")
            sends = route.sends or request.model
            write = partial(
                encode,
                quirks=quirks,
                model=sends,
                unseal=partial(self.sealer.open, quirks.name, sends),
                pseudonym=self.sealer.pseudonym,
            )
            chat = write(request)
            if not counting:
                self.table.check_fit(route, request.model, chat.input_estimate)
                if route.window is not None:
                    # Servers that add prompt and limit refuse the sum; the others stop by themselves.
                    room = max(LEAST_ANSWER, route.window - chat.input_estimate)
                    if request.max_tokens > room:
                        del chat  # a large one would stay while the next is written
                        chat = write(structs.replace(request, max_tokens=room))
        except (RequestError, NoRouteError) as refused:
            return refused.fault
        return Plan(route.upstream, request.model, sends, request.stream, chat, request.warms_cache_only)
