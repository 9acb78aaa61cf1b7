"""Which upstream serves a model's name. Pure: facts come in, a route goes out.

table = RouteTable(routes=(Route(model="smollm2", upstream="local", profile="llamacpp", window=4096),))
table.choose("smollm2", tokens=100).upstream   -> "local"
"""

from __future__ import annotations

from msgspec import Struct

from antiphon.core import own_faults
from antiphon.core.parts import Fault


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
    """Tried in order: the exact name first, then the route for any name."""

    routes: tuple[Route, ...]

    def find(self, model: str) -> Route:
        """The route of a name. Raises NoRouteError."""
        for route in self.routes:
            if route.model == model:
                return route
        for route in self.routes:
            if route.model is None:
                return route
        known = ", ".join(route.model for route in self.routes if route.model)
        raise NoRouteError(
            Fault("not_found_error", f"model: {model} is not served here; there is {known}", 404)
        )

    def check_fit(self, route: Route, model: str, tokens: int) -> None:
        """Refuse what a catch-all's window cannot hold, with the remedy. Raises NoRouteError.

        `tokens` is an estimate on the high side, so a request that names the route's own model is left
        to the upstream, which counts exactly.
        """
        if route.model is None and route.window is not None and tokens > route.window:
            said = f"prompt is too long: {tokens} tokens > {route.window} maximum. {route.remedy}".strip()
            raise NoRouteError(own_faults.invalid_request(said))
