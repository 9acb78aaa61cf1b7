"""Which upstreams may serve a model's name. Pure: facts come in, a route goes out.

    table = RouteTable((Route("smollm2", (Target("local", by_name("llamacpp")),), window=4096),))
    table.find("smollm2").targets[0].upstream   -> "local"

Owns the order in which names are tried: the exact name, a `claude-` alias of one, globs as they stand in the
file, the catch-all. Which of a route's targets gets a request is server.choosing's.
"""

from __future__ import annotations

from fnmatch import fnmatchcase

from msgspec import Struct, structs

from antiphon.config import Fallbacks, Overrides
from antiphon.core import own_faults
from antiphon.core.dialects.quirks import Quirks
from antiphon.core.parts import Fault
from antiphon.core.scrub import legible

ALIAS = "claude-"
"""Names with this prefix are published for every model: Claude Code lists no others."""

ANY = "*"
"""The name of the catch-all."""

_NAMED = 20  # models at most in a refusal
_THERE_IS = "; there is "

# An estimate this many times over the window is no estimate's fault.
_CERTAINLY = 3


class NoRouteError(Exception):
    """No upstream can serve this request; `fault` says why and what would help.

    `fallback` names another model to try instead, if the configuration has one for this.
    """

    def __init__(self, fault: Fault, fallback: str | None = None) -> None:
        super().__init__(fault.message)
        self.fault = fault
        self.fallback = fallback


def without_names(fault: Fault) -> Fault:
    """The fault of an unknown model, without the names of those that are there."""
    return structs.replace(fault, message=fault.message.partition(_THERE_IS)[0])


class Target(Struct, frozen=True):
    """One place where a model runs.

    `sends` is the upstream's name for it (None, in a table only: the client's own); `window` in tokens.
    """

    upstream: str
    quirks: Quirks
    sends: str | None = None
    weight: float = 1.0
    window: int | None = None

    def reads_as(self, other: Target) -> bool:
        """What is written for the one is right for the other."""
        return self.sends == other.sends and self.quirks == other.quirks and self.window == other.window


class Route(Struct, frozen=True):
    """`model` is a name, or a pattern with `*` and `?`. `remedy` is said where a request does not fit."""

    model: str
    targets: tuple[Target, ...]
    window: int | None = None  # tokens of prompt and answer together; None: its targets' own
    remedy: str = ""  # for a request that comes by another name and does not fit
    overrides: Overrides = Overrides()
    fallbacks: Fallbacks = Fallbacks()

    @property
    def exact(self) -> bool:
        """It serves one name."""
        return not any(sign in self.model for sign in "*?[")

    @property
    def widest(self) -> int | None:
        """The largest window among the targets, in tokens; None if one of them is not known."""
        windows = [target.window for target in self.targets]
        known = [window for window in windows if window is not None]
        return max(known) if len(known) == len(windows) else None


class RouteTable(Struct, frozen=True):
    """`listed` has, by upstream, the models that it lists and their windows; an upstream that has not told
    is missing. `by_listing`: a target of the catch-all serves what it lists, if it has told.
    """

    routes: tuple[Route, ...]
    listed: dict[str, dict[str, int | None]] = {}
    by_listing: bool = False

    @property
    def may_replan(self) -> bool:
        """A request may be written a second time: for another model, or a target of another kind."""
        return any(
            route.fallbacks != Fallbacks() or not all(self._alike(route, each) for each in route.targets)
            for route in self.routes
        )

    def _alike(self, route: Route, target: Target) -> bool:
        """It reads as the route's first one, whichever name comes: what they list may differ in windows."""
        first, told = route.targets[0], self.listed.get
        same_windows = route.window is not None or told(target.upstream) == told(first.upstream)
        return first.reads_as(target) and same_windows

    def find(self, model: str) -> Route:
        """The route of a name, with its targets as they are to be asked. Raises NoRouteError."""
        alias = model.removeprefix(ALIAS)
        for name in dict.fromkeys((model, alias)):
            for route in self.routes:
                if route.exact and route.model == name:
                    return self._resolved(route, route.targets, name)
        for route in self.routes:
            if not route.exact and route.model != ANY and fnmatchcase(model, route.model):
                return self._resolved(route, route.targets, model)
        for route in self.routes:
            if route.model == ANY:
                return self._any(route, model, alias)
        raise NoRouteError(self._unknown(model))

    def _any(self, route: Route, model: str, alias: str) -> Route:
        """Its targets that know the name; those that have not told what they know may; one alone must."""
        for name in dict.fromkeys((model, alias)):
            known = tuple(each for each in route.targets if name in self.listed.get(each.upstream, ()))
            if known:
                return self._resolved(route, known if self.by_listing else route.targets, name)
        silent = tuple(each for each in route.targets if each.upstream not in self.listed)
        if self.by_listing and len(route.targets) > 1:
            if not silent:
                raise NoRouteError(self._unknown(model))
            return self._resolved(route, silent, model)
        return self._resolved(route, route.targets, model)

    def _resolved(self, route: Route, targets: tuple[Target, ...], name: str) -> Route:
        asked = []
        for target in targets:
            sends = target.sends or name
            told = self.listed.get(target.upstream, {}).get(sends)
            window = route.window or target.window or told
            asked.append(structs.replace(target, sends=sends, window=window))
        return structs.replace(route, targets=tuple(asked))

    def _unknown(self, model: str) -> Fault:
        known = dict.fromkeys(route.model for route in self.routes if route.exact)
        for route in self.routes:
            for target in route.targets if route.model == ANY else ():
                if target.sends is None:  # names pass through
                    known.update(dict.fromkeys(self.listed.get(target.upstream, ())))
        there = ", ".join(list(known)[:_NAMED]) + (", ..." if len(known) > _NAMED else "")
        said = f"model: {legible(model, limit=200)} is not served here" + (_THERE_IS + there if there else "")
        return Fault("not_found_error", said, 404)


def check_fit(route: Route, tokens: int) -> None:
    """Refuse what no target's window can hold. Raises NoRouteError.

    `tokens` is an estimate on the high side: a request is refused only where no estimate could be that
    wrong, or where the route says that it is a small model in another's place (`remedy`), or has a larger
    one to go to; what comes near is the upstream's to count.
    """
    window = route.widest
    if window is None:
        return
    sure = bool(route.remedy) or route.fallbacks.overflow is not None
    if tokens > (window if sure else window * _CERTAINLY):
        said = f"prompt is too long: {tokens} tokens > {window} maximum. {route.remedy}".strip()
        raise NoRouteError(own_faults.invalid_request(said), route.fallbacks.overflow)
