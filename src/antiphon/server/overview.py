"""Everything that a gateway can say of itself at one moment, for the admin routes.

Owns the shape of that snapshot. It reads and changes nothing, and holds no address, no key and nothing of a
request. Who holds which slot is server.ordinary's, figures over time are observe.metrics'.

    statistics(gateway)   -> GatewayStatistics(draining=False, exchanges=3, upstreams=(...), ...)
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from msgspec import Struct

from antiphon.server.admission import SlotStatistics
from antiphon.server.health import HealthStatistics
from antiphon.server.retry_budget import BudgetStatistics

if TYPE_CHECKING:
    from antiphon.server.app import Gateway
    from antiphon.server.upstreams import Upstream


class UpstreamStatistics(Struct, frozen=True):
    """One server. `kind` is the row of core.dialects.quirks that it is taken for.

    `leaving`: it is gone from the configuration, its last streams run. `models`: what it lists; None: it has
    not told, or it was not asked.
    """

    name: str
    kind: str
    leaving: bool
    slots: SlotStatistics
    health: HealthStatistics
    models: tuple[str, ...] | None


class GatewayStatistics(Struct, frozen=True):
    """One process. `exchanges`: requests that run or wait. `draining`: it takes no more."""

    draining: bool
    exchanges: int
    retries: BudgetStatistics
    upstreams: tuple[UpstreamStatistics, ...]


def statistics(gateway: Gateway) -> GatewayStatistics:
    """The moment's snapshot. An upstream that leaves may have the name of one that has taken its place."""
    backend, now = gateway.backend, gateway.clock()
    listed = backend.table.listed
    there = [_of(each, now, models=listed.get(name)) for name, each in backend.upstreams.items()]
    leaving = [_of(each, now, leaving=True) for each in backend.leaving]
    return GatewayStatistics(
        draining=gateway.draining,
        exchanges=len(gateway.live),
        retries=gateway.budget.statistics(now),
        upstreams=(*there, *leaving),
    )


def _of(
    upstream: Upstream, now: float, *, leaving: bool = False, models: Collection[str] | None = None
) -> UpstreamStatistics:
    return UpstreamStatistics(
        name=upstream.name,
        kind=upstream.quirks.name,
        leaving=leaving,
        slots=upstream.slots.statistics(),
        health=upstream.health.statistics(now),
        models=None if models is None else tuple(models),
    )
