"""Among the targets of a route: which may be asked now, and in which order.

Owns the question; the order itself is server.placement's, what is warm is server.prefixes', who is well is
server.health's. It holds no state of a request.

    chooser = Chooser(backend.upstreams, prefixes, clock=time.monotonic)
    chooser.places(plan, without=())     -> [Place(target, upstream), ...], the best first
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping

from antiphon.core import own_faults
from antiphon.core.parts import Fault
from antiphon.server.placement import Candidate, order
from antiphon.server.plan import Plan
from antiphon.server.prefixes import PrefixIndex, root
from antiphon.server.seats import Place
from antiphon.server.upstreams import Upstream

_MUCH = 4  # a quarter of the prompt


class Chooser:
    """`upstreams` by name, as they are now; `clock` is monotonic, in seconds.

    `session` stands for the client's session, "" for none.
    """

    def __init__(
        self,
        upstreams: Mapping[str, Upstream],
        prefixes: PrefixIndex | None = None,
        *,
        clock: Callable[[], float],
        session: str = "",
    ) -> None:
        self._upstreams = upstreams
        self.prefixes = prefixes or PrefixIndex()
        self._clock = clock
        self.session = session

    def places(self, plan: Plan, without: Collection[str] = ()) -> list[Place]:
        """Where this request may go, the best first. `without`: names of upstreams that have failed it."""
        return self.ordered(plan, self.eligible(plan, without))

    def eligible(self, plan: Plan, without: Collection[str] = ()) -> list[Place]:
        """The same in no order, which costs a small part of it."""
        now = self._clock()
        there = []
        for target in plan.route.targets:
            upstream = self._upstreams.get(target.upstream)
            if upstream is not None and target.upstream not in without and upstream.refusal() is None:
                there.append(Place(target, upstream))
        only = len(there) == 1 and not without
        well = [place for place in there if place.upstream.health.admits(now, only=only)]
        if not well and not without:
            # All of them are ill: what a server answers is truer than what is remembered of it.
            well = [place for place in there if place.upstream.health.admits(now, only=True)]
        return well

    def stays(self, plan: Plan, place: Place) -> bool:
        """It is worth to wait for this place a while, because much of the prompt is in its cache.

        To take whatever slot is free first would throw away every cache as soon as all of them are busy: on
        the full fleet of bench/affinity.py that is 12 % of the tokens cached in place of 55.
        """
        chain = plan.chain
        return bool(chain) and self.prefixes.warm(place.key, chain) * _MUCH > chain[-1].size

    def ordered(self, plan: Plan, places: list[Place]) -> list[Place]:
        """These places, the best for this request first."""
        if len(places) < 2:
            return places
        now = self._clock()
        last = self.prefixes.last_target(self.session) if self.session else None
        by_name = {f"{place.key[0]} {place.key[1]}": place for place in places}
        candidates = [
            self._candidate(name, place, plan, now, hint=place.key == last) for name, place in by_name.items()
        ]
        return [by_name[each.name] for each in order(candidates, key=root(plan.chain))]

    def _candidate(self, name: str, place: Place, plan: Plan, now: float, *, hint: bool) -> Candidate:
        upstream, chain = place.upstream, plan.chain
        numbers = upstream.slots.statistics()
        return Candidate(
            name=name,
            free=numbers.free,
            load=(numbers.slots - numbers.free + numbers.waiting) / max(1, numbers.slots),
            weight=place.target.weight,
            warm=self.prefixes.warm(place.key, chain),
            total=chain[-1].size if chain else 0,
            hint=hint,
            penalty=upstream.health.penalty(now),
        )

    def admits(self, plan: Plan, place: Place, without: Collection[str] = ()) -> bool:
        """Whether it may still be asked: it is well, or none of the others is. Never one that is drained."""
        now, health = self._clock(), place.upstream.health
        if health.admits(now) or not health.admits(now, only=True):
            return health.admits(now)
        return not any(other.upstream.health.admits(now) for other in self.eligible(plan, without))

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
