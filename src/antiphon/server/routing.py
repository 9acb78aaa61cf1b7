"""Which upstream serves a model's name. Pure: facts come in, a route goes out.

table = RouteTable((Route("local", "llamacpp", model="smollm2", window=4096),))
table.find("smollm2").upstream   -> "local"
"""

from __future__ import annotations

from msgspec import Struct, structs

from antiphon.core import own_faults
from antiphon.core.parts import Fault

ALIAS = "claude-"
"""Names with this prefix are published for every model: Claude Code lists no others."""

# An estimate this many times over the window is no estimate's fault.
_CERTAINLY = 3


class NoRouteError(Exception):
    """No upstream can serve this request; `fault` says why and what would help."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.message)
        self.fault = fault


class Route(Struct, frozen=True):
    """`model` None: any name. `sends` is the name that the upstream gets (None: the client's own)."""

    upstream: str
    profile: str
    model: str | None = None
    sends: str | None = None
    window: int | None = None  # tokens of prompt and answer together, where it is known
    remedy: str = ""  # for a request that comes by another name and does not fit


class RouteTable(Struct, frozen=True):
    """Tried in order: the exact name, a `claude-` alias of one, the route for any name.

    `windows` has the models that the upstream of the last kind lists, with their windows.
    """

    routes: tuple[Route, ...]
    windows: dict[str, int | None] = {}

    def find(self, model: str) -> Route:
        """The route of a name. Raises NoRouteError."""
        alias = model.removeprefix(ALIAS)
        for name in dict.fromkeys((model, alias)):
            for route in self.routes:
                if route.model == name:
                    return route
        for route in self.routes:
            if route.model is None:
                return self._any(route, model, alias)
        known = ", ".join(route.model for route in self.routes if route.model)
        raise NoRouteError(
            Fault("not_found_error", f"model: {model} is not served here; there is {known}", 404)
        )

    def _any(self, route: Route, model: str, alias: str) -> Route:
        if model not in self.windows and alias in self.windows:
            route = structs.replace(route, sends=alias)
        window = self.windows.get(route.sends or model)
        return route if window is None else structs.replace(route, window=window)

    def check_fit(self, route: Route, model: str, tokens: int) -> None:
        """Refuse what the window cannot hold. Raises NoRouteError.

        `tokens` is an estimate on the high side: a request that names the route's own model is refused
        only where no estimate could be that wrong; what comes near is the upstream's to count.
        """
        if route.window is None:
            return
        allowed = route.window if route.remedy else route.window * _CERTAINLY
        if tokens > allowed:
            said = f"prompt is too long: {tokens} tokens > {route.window} maximum. {route.remedy}".strip()
            raise NoRouteError(own_faults.invalid_request(said))
