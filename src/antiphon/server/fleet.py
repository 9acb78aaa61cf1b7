"""The upstreams of a configuration: what they are, what they list, and how a request's model finds them.

Owns their life, also across a reload: an upstream that is gone from the configuration keeps its streams
and is closed after the last one. Which one gets a request is server.choosing's.

    fleet = Fleet(settings)
    await fleet.start()                # recognises those of kind `auto`, at most two seconds
    fleet.table.find("qwen3")          -> Route(targets=...)
    fleet.apply(new_settings)          # synchronous; what has to be awaited runs on behind it
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

import aiohttp
import structlog

from antiphon.config import HealthSettings, ModelSettings, Settings, UpstreamSettings
from antiphon.core.dialects.address import below, key_headers
from antiphon.server.backends import nobody, session_for_facts, shared_name, sharing
from antiphon.server.catalog import Catalog, Model, ask_upstream, with_aliases
from antiphon.server.health import Health, Rules
from antiphon.server.prefixes import PrefixIndex
from antiphon.server.probes import Prober, Watched, probe_url
from antiphon.server.recognition import look
from antiphon.server.routing import ANY, Route, RouteTable, Target
from antiphon.server.upstream_dial import parse_base_url
from antiphon.server.upstreams import Sharing, Upstream

log = structlog.get_logger("antiphon.server")


class _Member:
    """One upstream and what it lists."""

    def __init__(
        self, settings: UpstreamSettings, upstream: Upstream, session: aiohttp.ClientSession
    ) -> None:
        self.settings = settings
        self.upstream = upstream
        self._session = session
        self.catalog = Catalog(self._ask)

    async def _ask(self) -> list[Model] | None:
        one, auth = self.settings, self.upstream.quirks.auth
        return await ask_upstream(self._session, one.base_url, one.api_key, auth)

    @property
    def listed(self) -> dict[str, int | None] | None:
        """The models that it lists, with their windows; None: it has not told."""
        known = self.catalog.known
        return {model.id: model.window for model in known.values()} if self.catalog.told else None


class Fleet:
    """`lost` is told the request id of an exchange whose slot others have by now. `probes`: servers of which
    no request tells are looked after. `clock` is monotonic, in seconds.

    Raises ValueError for a base URL that is none, and what `backends.sharing` raises.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        lost: Callable[[str], None] = nobody,
        clock: Callable[[], float] = time.monotonic,
        probes: bool = True,
    ) -> None:
        self._settings = settings
        self._probes = probes
        self._lost = lost
        self._clock = clock
        self._members: dict[str, _Member] = {}
        self._leaving: list[_Member] = []  # gone from the configuration, not from their streams
        self._closing: set[asyncio.Task[None]] = set()
        self._session: aiohttp.ClientSession | None = None
        self._prober: Prober | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._table: tuple[object, RouteTable] | None = None
        self.upstreams: dict[str, Upstream] = {}
        self.prefixes = PrefixIndex()  # what is in whose cache; longer than any configuration
        for one in settings.upstreams:
            _check(one)
        # Of those that have no `Upstream` yet.
        self._sharings = self._shared(settings, settings.upstreams)

    def _shared(self, settings: Settings, which: Iterable[UpstreamSettings]) -> dict[str, Sharing | None]:
        places = Counter(shared_name(one.base_url) for one in settings.upstreams)
        return {
            one.name: sharing(settings.coordination, one, self._lost, twins=places[shared_name(one.base_url)])
            for one in which
        }

    # --- what an exchange and the routes ask ---

    @property
    def table(self) -> RouteTable:
        """By what is known now. Built anew when a list, a kind or the configuration has changed."""
        members = self._members
        seen = (
            self._settings.models,
            tuple((name, each.upstream.quirks, each.catalog.version) for name, each in members.items()),
        )
        if self._table is None or self._table[0] != seen:
            self._table = (seen, self._build())
        if self._by_listing and len(members) > 1:
            for member in members.values():
                if member.catalog.old:
                    self._spawn(member.catalog.models())
        return self._table[1]

    @property
    def leaving(self) -> list[Upstream]:
        """Those that are gone from the configuration, while their last streams run."""
        return [member.upstream for member in self._leaving]

    @property
    def _by_listing(self) -> bool:
        return not self._settings.models

    def _build(self) -> RouteTable:
        listed = {name: told for name, each in self._members.items() if (told := each.listed) is not None}
        if self._by_listing:
            targets = tuple(Target(name, each.upstream.quirks) for name, each in self._members.items())
            return RouteTable((Route(ANY, targets),), listed, by_listing=True)
        routes = [self._route(model) for model in self._settings.models]
        return RouteTable(tuple(route for route in routes if route.targets), listed)

    def _route(self, model: ModelSettings) -> Route:
        targets = tuple(
            Target(each.upstream, self._members[each.upstream].upstream.quirks, each.model, each.weight)
            for each in model.targets
            if each.upstream in self._members
        )
        return Route(model.name, targets, model.window, "", model.overrides, model.fallbacks)

    async def models(self) -> list[Model]:
        """What clients may ask for: the configured names, and what upstreams list whose names pass through.

        Cancel safe.
        """
        await asyncio.gather(*(each.catalog.models() for each in self._members.values()))
        table = self.table
        models = {
            route.model: Model(route.model, table.find(route.model).widest)
            for route in table.routes
            if route.exact
        }
        through = [
            target.upstream
            for route in table.routes
            if route.model == ANY
            for target in route.targets
            if target.sends is None
        ]
        for name in through:
            models = {**self._members[name].catalog.known, **models}
        return with_aliases(list(models.values()))

    # --- life ---

    async def start(self) -> None:
        self._session = session_for_facts()
        for one in self._settings.upstreams:
            self._add(one)
        health = self._settings.health
        self._prober = Prober(
            self._watched,
            self._session,
            clock=self._clock,
            returned=self._returned,
            interval=health.interval,
            recovery=health.recovery,
        )
        if self._probes and health.probes:
            self._prober.start()
        unknown = [each for each in self._members.values() if _asks(each.settings)]
        await asyncio.gather(*(self._recognise(each) for each in unknown))
        # Windows and aliases are worth knowing early; nothing waits for them.
        for member in self._members.values():
            self._spawn(self._list(member))

    def _add(self, one: UpstreamSettings) -> None:
        if self._session is None:
            raise RuntimeError("the fleet has not started")
        upstream = Upstream(
            one,
            self._settings.limits,
            session=self._session,
            sharing=self._sharings.pop(one.name),
            health=Health(_rules(self._settings.health)),
        )
        upstream.start()
        self._members[one.name] = _Member(one, upstream, self._session)
        self.upstreams[one.name] = upstream

    async def _recognise(self, member: _Member) -> None:
        """Ask a server what it is. Never raises for what it says; bounded by `look`."""
        one = member.settings
        if self._session is None:
            return
        found = await look(self._session, one.base_url, one.api_key)
        member.upstream.adopt(found.kind, found.slots)
        log.info(
            "upstream_recognised",
            upstream=one.name,
            kind=member.upstream.quirks.name,
            version=found.version,
            slots=member.upstream.slots.statistics().slots,
        )

    async def _list(self, member: _Member) -> None:
        """Ask a new server what it lists. Who is to be recognised, and not there yet, returns later."""
        await member.catalog.models()
        if member.catalog.told:
            return
        one, session = member.settings, self._session
        auth = member.upstream.quirks.auth
        if session is not None and await ask_upstream(session, below(one.base_url, "/v1"), one.api_key, auth):
            log.warning("base_url_looks_wrong", upstream=one.name, hint="its models are below /v1")
        if _asks(one):
            member.upstream.health.gone = True

    def _watched(self) -> Iterable[Watched]:
        for name, each in self._members.items():
            one, upstream = each.settings, each.upstream
            url = probe_url(one.base_url, upstream.quirks.probe)
            headers = key_headers(upstream.quirks.auth, one.api_key)
            yield Watched(name, url, upstream.health, upstream.works, headers)

    def _returned(self, name: str) -> None:
        """A server that was gone is back: it may be another one now."""
        member = self._members.get(name)
        if member is None:
            return
        if _asks(member.settings):
            self._spawn(self._recognise(member))
        self.prefixes.forget_upstream(name)
        member.catalog.forget()
        self._spawn(member.catalog.models())

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- a new configuration ---

    def apply(self, settings: Settings) -> None:
        """Take over upstreams and models; running streams keep what they have.

        Raises what `Fleet` raises, before anything has changed.
        """
        wanted = {one.name: one for one in settings.upstreams}
        for one in settings.upstreams:
            _check(one)
        new = [one for one in settings.upstreams if self._known(one) is None]
        sharings = self._shared(settings, new)
        self._settings, self._sharings, self._table = settings, sharings, None
        members = [self._known(one) for one in settings.upstreams]
        self._leaving = [each for each in (*self._members.values(), *self._leaving) if each not in members]
        self._members.clear()
        self.upstreams.clear()
        for one, member in zip(wanted.values(), members, strict=True):
            if member is None:
                self._add(one)
                self._spawn(self._list(self._members[one.name]))
                if _asks(one):
                    self._spawn(self._recognise(self._members[one.name]))
            else:
                self._keep(member, one)
        if self._prober is not None:
            self._prober.set_pace(settings.health.interval, settings.health.recovery)
        self.sweep()

    def _known(self, one: UpstreamSettings) -> _Member | None:
        """Who these settings are of: a server may come back while its last streams run."""
        for member in (*self._members.values(), *self._leaving):
            if member.settings.name == one.name and _same_server(member.settings, one):
                return member
        return None

    def _keep(self, member: _Member, one: UpstreamSettings) -> None:
        was, member.settings = member.settings, one
        self._members[one.name], self.upstreams[one.name] = member, member.upstream
        member.upstream.reconfigure(one, self._settings.limits, _rules(self._settings.health))
        # What it has told holds: a server that is slow to answer now is not another one.
        if (one.kind == "auto" != was.kind) or (one.slots == "auto" != was.slots):
            self._spawn(self._recognise(member))

    def sweep(self) -> None:
        """Close those that have left with their last stream. About once a second."""
        for member in list(self._leaving):
            if member.upstream.idle:
                self._leaving.remove(member)
                # Not one of `_tasks`: an end of the whole fleet must not leave it half closed.
                task = asyncio.get_running_loop().create_task(member.upstream.aclose())
                self._closing.add(task)
                task.add_done_callback(self._closing.discard)

    def expire(self, now: float) -> None:
        """See `Upstream.expire`; also of those that are leaving. About once a second."""
        for member in (*self._members.values(), *self._leaving):
            member.upstream.expire(now)
        self.sweep()

    async def aclose(self) -> None:
        if self._prober is not None:
            await self._prober.aclose()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for member in (*self._members.values(), *self._leaving):
            await member.upstream.aclose()
        await asyncio.gather(*self._closing)
        if self._session is not None:
            await self._session.close()


def _check(one: UpstreamSettings) -> None:
    """Raises ValueError."""
    try:
        parse_base_url(one.base_url)
    except ValueError as wrong:
        raise ValueError(f"upstream {one.name}: {wrong}") from None


def _rules(health: HealthSettings) -> Rules:
    return Rules(
        consecutive=health.open_after,
        failure_rate=health.failure_rate,
        volume=health.volume,
        window=health.window,
        backoff=health.backoff_first,
        backoff_limit=health.backoff_max,
        busy_wait=health.busy_wait,
        busy_limit=health.busy_limit,
    )


def _asks(one: UpstreamSettings) -> bool:
    """There is something that only the server can tell."""
    return one.kind in ("auto", "anthropic") or one.slots == "auto"


def _same_server(one: UpstreamSettings, other: UpstreamSettings) -> bool:
    """What differs can be changed under running streams."""
    return one.base_url == other.base_url
