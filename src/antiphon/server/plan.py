"""From the bytes of a client's request to a plan: which upstreams may serve it, and with which body.

Pure, and picklable from end to end: where a body is planned is server.planning's decision.

    Planner(table, sealer).plan(body)   -> Plan(model="smollm2", target=Target("local", ...), ...), or a Fault
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from functools import partial

from msgspec import Struct, structs

from antiphon.config import Fallbacks
from antiphon.core import own_faults
from antiphon.core.dialects import messages_request
from antiphon.core.dialects.chat_request import ChatRequest, encode
from antiphon.core.dialects.documents import ReadPdf, may_hold_documents, open_documents
from antiphon.core.parts import Fault
from antiphon.core.seal import Sealer
from antiphon.core.surfaces.messages.request import MessagesRequest, RequestError, parse
from antiphon.core.surfaces.openai.request import RelayRequest
from antiphon.core.surfaces.openai.request import parse as parse_relay
from antiphon.server.prefixes import Chain, prefix_chain
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
    chat: ChatRequest | RelayRequest
    answers_itself: bool = False
    path: str = "/chat/completions"  # below the upstream's base URL
    chain: Chain = ()  # of the prompt that is sent: what may be in a cache already

    @property
    def asks_usage(self) -> bool:
        """The upstream will tell what it used."""
        if isinstance(self.chat, RelayRequest):
            return self.chat.asks_usage
        return self.target.quirks.stream_usage != "none"

    @property
    def accept(self) -> str:
        """The media type to ask the upstream for."""
        return self.chat.accept if isinstance(self.chat, RelayRequest) else "text/event-stream"

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
    """Everything that a request's plan depends on beside the request.

    `models`: globs of the names that its key may ask for; empty: all.
    """

    table: RouteTable
    sealer: Sealer
    models: tuple[str, ...] = ()

    def plan(
        self, body: bytes, counting: bool = False, read_pdf: ReadPdf | None = None, aim: Aim = ANYWHERE
    ) -> Plan | Fault:
        """What a request asks for, or why it is refused. Never raises for anything in the body.

        `counting`: it is a body of `count_tokens`. `read_pdf` opens its PDFs, and what that raises beside
        UnreadableError comes out here; None: PDFs are refused.
        """
        try:
            request = parse(body, counting=counting)
            self._let_in(request.model)
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
        """For the wanted target, else the first that can take it. Raises RequestError, NoRouteError."""
        route = self.table.find(name)
        refused: RequestError | None = None
        asked: list[Target] = []
        for target in route.targets if wanted is None else (wanted,):
            if any(target.reads_as(other) for other in asked):
                continue
            asked.append(target)
            try:
                return self._write_for(request, body, name, counting, read_pdf, route, target)
            except RequestError as error:
                refused = refused or error  # of the first: its words are about the request
        raise refused or NoRouteError(own_faults.no_upstream(1))

    def _write_for(
        self,
        request: MessagesRequest,
        body: bytes,
        name: str,
        counting: bool,
        read_pdf: ReadPdf | None,
        route: Route,
        target: Target,
    ) -> Plan:
        """Raises RequestError, NoRouteError."""
        quirks = target.quirks
        if quirks.speaks == "messages":
            return self._pass_on(request, body, name, counting, route, target)
        if read_pdf is not None and may_hold_documents(body):
            request = open_documents(request, read_pdf, images=quirks.images != "none")
        sends = target.sends or request.model
        write = partial(
            encode,
            quirks=quirks,
            model=sends,
            unseal=partial(self.sealer.open, quirks.name, sends),
            pseudonym=self.sealer.pseudonym,
            overrides=route.overrides,
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
        empty = request.warms_cache_only
        chain = () if counting else prefix_chain(chat.body)
        return Plan(request.model, name, request.stream, route, target, chat, empty, quirks.path, chain)

    def _pass_on(
        self,
        request: MessagesRequest,
        body: bytes,
        name: str,
        counting: bool,
        route: Route,
        target: Target,
    ) -> Plan:
        """The plan for a server that speaks Messages itself. Raises RequestError, NoRouteError."""
        write = partial(
            messages_request.encode,
            body,
            model=target.sends or request.model,
            overrides=route.overrides,
            counting=counting,
            keeps_unsigned_thinking=target.quirks.unsigned_thinking,
            drops_billing_header=not target.quirks.billing_header,
            request=request,
        )
        sent = write()
        if not counting:
            check_fit(route, sent.input_estimate)
            if target.window is not None:
                room = max(LEAST_ANSWER, target.window - sent.input_estimate)
                if request.max_tokens > room:
                    sent = write(max_tokens=room)
        empty = request.warms_cache_only
        chain = () if counting else prefix_chain(sent.body)
        path = target.quirks.path
        return Plan(request.model, name, request.stream, route, target, sent, empty, path, chain)

    def relay(self, body: bytes, path: str, aim: Aim = ANYWHERE) -> Plan | Fault:
        """What an OpenAI client asks for; it passes as it is. `path` is the upstream's, below its base URL.

        Never raises for anything in the body.
        """
        try:
            request = parse_relay(path, body)
            self._let_in(request.model)
            route = self.table.find(aim.model or request.model)
            targets = tuple(filter(_relays, route.targets))
            route = structs.replace(route, targets=targets, fallbacks=self._relayed(route.fallbacks))
            if not route.targets:
                return _NOT_RELAYED
            target = aim.target or route.targets[0]
            sent = request.sent_as(target.sends or request.model)
        except (RequestError, NoRouteError) as refused:
            return refused.fault
        name = aim.model or request.model
        return Plan(
            request.model,
            name,
            request.streaming,
            route,
            target,
            sent,
            path=path,
            chain=() if path == "/embeddings" else prefix_chain(sent.body),
        )

    def _let_in(self, model: str) -> None:
        """Before anything else is told of a model: one that a key may not use is not there for it.

        Raises NoRouteError (protocol: B, unknown model).
        """
        if self.models and not any(fnmatchcase(model, glob) for glob in self.models):
            _NOTHING.find(model)

    def _relayed(self, fallbacks: Fallbacks) -> Fallbacks:
        """Those with a server that speaks what OpenAI clients speak: no other is a way out for them."""
        kept = {why: name for why, name in structs.asdict(fallbacks).items() if name and self._takes(name)}
        return Fallbacks(**kept)

    def _takes(self, name: str) -> bool:
        try:
            return any(map(_relays, self.table.find(name).targets))
        except NoRouteError:
            return False


def _relays(target: Target) -> bool:
    """Its server speaks what OpenAI clients speak."""
    return target.quirks.speaks == "chat"


_NOTHING = RouteTable(())
_NOT_RELAYED = Fault(
    "not_found_error", "this model's server speaks the Messages API only: POST /v1/messages", 404
)
