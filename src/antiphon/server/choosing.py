"""Among the targets of a route: which may be asked now, and in which order.

Owns the question; the order itself is server.placement's, what is warm is server.prefixes', who is well is
server.health's. It holds no state of a request.

    chooser = Chooser(backend.upstreams, clock=time.monotonic)
    chooser.places(plan, without=())     -> [Place(target, upstream), ...], the best first
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping

from antiphon.core import own_faults
from antiphon.core.parts import Fault
from antiphon.server.plan import Plan
from antiphon.server.seats import Place
from antiphon.server.upstreams import Upstream


class Chooser:
    """`upstreams` by name, as they are now; `clock` is monotonic, in seconds."""

    def __init__(self, upstreams: Mapping[str, Upstream], *, clock: Callable[[], float]) -> None:
        self._upstreams = upstreams
        self._clock = clock

    def places(self, plan: Plan, without: Collection[str] = ()) -> list[Place]:
        """Where this request may go, the best first. `without`: names of upstreams that have failed it."""
        now = self._clock()
        there = []
        for target in plan.route.targets:
            upstream = self._upstreams.get(target.upstream)
            if upstream is not None and target.upstream not in without and upstream.refusal() is None:
                there.append(Place(target, upstream))
        only = len(there) == 1 and not without
        well = [place for place in there if place.upstream.health.admits(now, only=only)]
        if well or without:
            return well
        # All of them are ill: what a server answers is truer than what is remembered of it.
        return [place for place in there if place.upstream.health.admits(now, only=True)]

    def admits(self, plan: Plan, place: Place, without: Collection[str] = ()) -> bool:
        """Whether it may still be asked, or there is no better place."""
        if place.upstream.health.admits(self._clock()):
            return True
        return all(other.upstream is place.upstream for other in self.places(plan, without))

    def refusal(self, plan: Plan) -> Fault:
        """Why there is no place at all."""
        for target in plan.route.targets:
            upstream = self._upstreams.get(target.upstream)
            refused = None if upstream is None else upstream.refusal()
            if refused is not None:
                return refused
        now = self._clock()
        there = [
            self._upstreams[each.upstream] for each in plan.route.targets if each.upstream in self._upstreams
        ]
        wait = min((each.health.retry_after(now) for each in there), default=1.0)
        return own_faults.no_upstream(math.ceil(wait))
