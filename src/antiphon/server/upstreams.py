"""An upstream as an exchange sees it: its facts, its connections and its slots in one place.

Owns the wiring of one configured (or embedded) inference server, and the watch over draining leases:
it asks a server that has a report which of its slots are still busy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypedDict

import aiohttp
from msgspec import Struct, structs

from antiphon.config import DEFAULT_SLOTS, CoordinationPolicy, Limits, UpstreamSettings
from antiphon.core.dialects.quirks import Quirks, by_name
from antiphon.core.parts import Fault
from antiphon.core.recognise import hosted_kind
from antiphon.local import slots_busy
from antiphon.server.admission import Slots
from antiphon.server.coordination.protocol import Coordinator
from antiphon.server.coordination.shared_slots import SharedSlots
from antiphon.server.counting import PrefixCounts, TokenCounter
from antiphon.server.health import Health, Rules
from antiphon.server.upstream import UpstreamPool

# What is true of a server on whichever of its surfaces it is asked.
_OF_THE_SERVER = ("cancels_everywhere", "drain_report", "slots_report", "probe")

POLL = 0.1  # seconds between two looks at a server's report while leases drain
LOOK = 5.0  # seconds between two looks while it works, and nothing drains
BusyReport = Callable[[], Awaitable[int | None]]


class Sharing(Struct, frozen=True):
    """What makes an upstream's slots those of several gateways; see coordination.SharedSlots.

    `lost` is told the request id of an exchange whose lease others have by now.
    """

    coordinator: Coordinator
    lost: Callable[[str], None]
    policy: CoordinationPolicy = "local_share"
    gateways: int = 1


def quirks_of(settings: UpstreamSettings) -> Quirks:
    """The facts that its settings give; what is not recognised yet is taken to be generic."""
    kind = "generic" if settings.kind == "auto" else settings.kind
    if kind == "anthropic":  # the API itself has its own row
        kind = hosted_kind(settings.base_url) or kind
    return _with_own(by_name(kind), settings)


def _with_own(row: Quirks, settings: UpstreamSettings) -> Quirks:
    own = dict(settings.quirks)
    if settings.think_tags is not None:
        own["think_tags"] = settings.think_tags
    return structs.replace(row, **own) if own else row


def _pool_limits(limits: Limits) -> _PoolLimits:
    return {
        "idle_limit": limits.upstream_idle,
        "settle": limits.settle,
        "max_header_bytes": limits.max_headers,
    }


class _PoolLimits(TypedDict):
    idle_limit: float
    settle: float
    max_header_bytes: int


class Upstream:
    """See the module.

    `session` is for what is not inference: tokenizers. `busy` asks the server how many of its slots work
    (None: it cannot say now). `unavailable` gives the fault of a server that takes no requests now.
    `sharing` None: the slots are this process's own.
    """

    def __init__(
        self,
        settings: UpstreamSettings,
        limits: Limits,
        *,
        session: aiohttp.ClientSession | None = None,
        busy: BusyReport | None = None,
        unavailable: Callable[[], Fault | None] = lambda: None,
        sharing: Sharing | None = None,
        health: Health | None = None,
    ) -> None:
        self.name = settings.name
        self.health = health or Health()
        self._settings = settings
        self._limits = limits
        self._session = session
        self._given_busy = busy
        self._retired: list[TokenCounter] = []  # counters of what this server was taken to be before
        self.quirks: Quirks = quirks_of(settings)
        self.prefix_counts = PrefixCounts()
        self.counter = self._new_counter()
        self.pool = UpstreamPool(
            settings.base_url,
            api_key=settings.api_key,
            auth=self.quirks.auth,
            **_pool_limits(limits),
        )
        self._told: int | None = None  # how many slots the server has told that it has
        slots = DEFAULT_SLOTS if settings.slots == "auto" else settings.slots
        self._shared: SharedSlots | None = None
        if sharing is None:
            self.slots = Slots(
                settings.name,
                slots,
                queue_limit=limits.queue_length,
                on_draining=self._watch,
            )
        else:
            self.slots = self._shared = SharedSlots(
                settings.name,
                slots,
                coordinator=sharing.coordinator,
                lost=lambda lease: sharing.lost(lease.owner),
                guess=settings.slots == "auto",
                policy=sharing.policy,
                gateways=sharing.gateways,
                queue_limit=limits.queue_length,
                on_draining=self._watch,
                linger=self._linger,
            )
        self._busy = self._report()
        self._reports = self._busy is not None  # it answered when it was last asked
        self._unavailable = unavailable
        self._watcher: asyncio.Task[None] | None = None
        self._next_look = 0.0

    def _new_counter(self) -> TokenCounter:
        settings = self._settings
        return TokenCounter(
            self.quirks.tokenizer, settings.base_url, self._session, settings.api_key, self.quirks.auth
        )

    def _report(self) -> BusyReport | None:
        """What says which of its slots work: what was given, or its own route, if it has one."""
        session, settings = self._session, self._settings
        if self._given_busy is not None or session is None or self.quirks.drain_report != "slots":
            return self._given_busy

        async def busy() -> int | None:
            return await slots_busy(settings.base_url, session, api_key=settings.api_key)

        return busy

    def adopt(self, kind: str | None, slots: int | None) -> None:
        """What it has told: its kind (None: the configuration says), and its slots (None: it did not say)."""
        # A server that gives no sign now (`generic`) is slow, not another one.
        is_another = self._settings.kind == "auto" and kind not in (None, "generic", self.quirks.name)
        if kind is not None and self._settings.kind == "auto":
            self._become(_with_own(by_name(kind), self._settings))
        elif kind is not None and self._settings.kind == "anthropic":
            # Its own `/v1/messages` is answered by the same server: it stops and reports as that one does.
            row = by_name(kind)
            facts = {name: getattr(row, name) for name in _OF_THE_SERVER}
            self._become(_with_own(structs.replace(by_name(self.quirks.name), **facts), self._settings))
        before = self._told
        if slots is not None or is_another:
            self._told = slots
        if self._settings.slots == "auto":
            self._adopt_slots(slots, before)

    def _adopt_slots(self, slots: int | None, before: int | None) -> None:
        """`before`: what had been told until now."""
        if slots is not None:
            self.slots.set_slots(slots)
        elif self._told is None and (self._shared is None or before == self.slots.statistics().slots):
            # A guess. Where others share, it only takes back what we had said of another server.
            self.slots.set_slots(DEFAULT_SLOTS)

    def reconfigure(self, settings: UpstreamSettings, limits: Limits, rules: Rules) -> None:
        """Other settings of the server at the same address, for what is asked of it from now on.

        Raises ValueError for a key that no header can carry, before anything has changed.
        """
        self.pool.configure(settings.api_key, self.quirks.auth, **_pool_limits(limits))
        was, self._settings, self._limits = self._settings, settings, limits
        self.health.set_rules(rules)
        self.slots.set_queue_limit(limits.queue_length)
        if settings.api_key != was.api_key:
            self._retired.append(self.counter)
            self.counter = self._new_counter()
        if settings.kind != "auto":
            self._become(quirks_of(settings))
        else:
            self._become(_with_own(by_name(self.quirks.name), settings))
        if settings.slots != was.slots:
            # `auto`: what was configured holds until the server has told, which is asked anew.
            known = self._told if settings.slots == "auto" else settings.slots
            if known is not None:
                self.slots.set_slots(known)

    def _become(self, quirks: Quirks) -> None:
        if quirks == self.quirks:
            return
        counts = (quirks.tokenizer, quirks.auth) != (self.quirks.tokenizer, self.quirks.auth)
        self.quirks = quirks
        self.pool.configure(self._settings.api_key, quirks.auth, **_pool_limits(self._limits))
        if counts:
            self._retired.append(self.counter)
            self.counter = self._new_counter()
        self._busy = self._report()
        self._reports = self._busy is not None
        if self._shared is not None:
            self._shared.linger = self._linger

    @property
    def _linger(self) -> float:
        """Seconds for which the server may work on for a gateway that is gone."""
        return 0.0 if self.quirks.cancels_everywhere else self._limits.release_grace

    @property
    def idle(self) -> bool:
        """Nobody holds a slot of it, and nobody waits for one."""
        numbers = self.slots.statistics()
        return not (numbers.held or numbers.draining or numbers.waiting)

    def works(self) -> bool:
        """A request runs there now."""
        return self.slots.statistics().held > 0

    def start(self) -> None:
        """Join those that share the slots. From the running loop, once; nothing to do where nobody shares."""
        if self._shared is not None:
            self._shared.start()

    @property
    def cancels_everywhere(self) -> bool:
        return self.quirks.cancels_everywhere

    def refusal(self) -> Fault | None:
        """Why it takes no request now, if it takes none: its server is down or starting."""
        return self._unavailable()

    def expire(self, now: float) -> None:
        """Free draining leases whose grace has run out, where no report of the server's is the proof."""
        if self._busy is None or not self._reports:
            self.slots.expire(now)
        if now >= self._next_look and self.works():
            self._next_look = now + LOOK
            self._watch()

    def _watch(self) -> None:
        if self._busy is not None and (self._watcher is None or self._watcher.done()):
            self._watcher = asyncio.get_running_loop().create_task(self._watch_drain(self._busy))

    async def _watch_drain(self, busy: BusyReport) -> None:
        # Two looks that agree: between them, a lease that the server had just finished is released.
        last: int | None = None
        looks = 0  # two at least, also where nothing drains: the report is compared with our count
        while self.slots.draining or looks < 2:
            looks += 1
            now = await busy()
            self._reports = now is not None
            if now is not None and last is not None:
                self.slots.settle(max(now, last))
            last = now
            await asyncio.sleep(POLL)

    async def aclose(self) -> None:
        """For when its exchanges are closed: what they held is given back before this gateway leaves."""
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.gather(self._watcher, return_exceptions=True)
        if self._shared is not None:
            await self._shared.aclose()
        for counter in (self.counter, *self._retired):
            await counter.aclose()
        await self.pool.aclose()
