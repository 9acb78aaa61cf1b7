"""From the bytes of a client's request to a plan: which upstream, with which body.

Pure, and picklable from end to end: a body that is small is planned where it arrived, a large one in a
worker process (server.heavy).
"""

from __future__ import annotations

from msgspec import Struct

from antiphon.core.dialects.chat_request import ChatRequest, encode
from antiphon.core.dialects.quirks import by_name
from antiphon.core.parts import Fault
from antiphon.core.surfaces.messages.request import RequestError, parse
from antiphon.server.routing import NoRouteError, RouteTable


class Plan(Struct, frozen=True):
    """`chat` is None for a request that asks for no token at all: it is answered here."""

    upstream: str
    model: str
    streaming: bool
    chat: ChatRequest
    answers_itself: bool = False


def plan(body: bytes, table: RouteTable) -> Plan | Fault:
    """What a request asks for, or why it is refused. Never raises for anything in the body."""
    try:
        request = parse(body)
        route = table.find(request.model)
        chat = encode(request, by_name(route.profile), model=route.sends)
        table.check_fit(route, request.model, chat.input_estimate)
    except (RequestError, NoRouteError) as refused:
        return refused.fault
    return Plan(route.upstream, request.model, request.stream, chat, request.warms_cache_only)
