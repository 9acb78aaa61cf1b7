"""From the bytes of a client's request to a plan: which upstream, with which body.

Pure, and picklable from end to end: a body that is small is planned where it arrived, a large one in a
worker process (server.heavy).
"""

from __future__ import annotations

from msgspec import Struct, structs

from antiphon.core.dialects.chat_request import ChatRequest, encode
from antiphon.core.dialects.quirks import by_name
from antiphon.core.parts import Fault
from antiphon.core.surfaces.messages.request import RequestError, parse
from antiphon.server.routing import NoRouteError, RouteTable

# What a clamped answer always gets, should the estimate of the prompt be far too high.
LEAST_ANSWER = 256


class Plan(Struct, frozen=True):
    """`answers_itself`: the request asks for no token at all, no upstream is needed."""

    upstream: str
    model: str
    streaming: bool
    chat: ChatRequest
    answers_itself: bool = False


def plan(body: bytes, table: RouteTable, counting: bool = False) -> Plan | Fault:  # noqa: FBT001, FBT002 - travels to a worker
    """What a request asks for, or why it is refused. Never raises for anything in the body."""
    try:
        request = parse(body, counting=counting)
        route = table.find(request.model)
        quirks = by_name(route.profile)
        chat = encode(request, quirks, model=route.sends)
        if not counting:
            table.check_fit(route, request.model, chat.input_estimate)
            if route.window is not None:
                # Servers that add prompt and limit refuse the sum; the others stop by themselves.
                room = max(LEAST_ANSWER, route.window - chat.input_estimate)
                if request.max_tokens > room:
                    request = structs.replace(request, max_tokens=room)
                    chat = encode(request, quirks, model=route.sends)
    except (RequestError, NoRouteError) as refused:
        return refused.fault
    return Plan(route.upstream, request.model, request.stream, chat, request.warms_cache_only)
