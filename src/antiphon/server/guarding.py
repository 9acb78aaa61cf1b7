"""Callbacks whose bug ends their own exchange and nothing else.

Owns the one `try` that every callback of an exchange runs under. What a bug does is the exchange's
`fail_internally`.

    guarded = guard(lambda self: self._exchange.fail_internally)

    @guarded
    def on_granted(self, place, lease): ...
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, TypeAlias, TypeVar

S = TypeVar("S")
P = ParamSpec("P")

Failing: TypeAlias = Callable[[BaseException], None]
"""What is told of a bug."""


def guard(
    failing: Callable[[S], Failing],
) -> Callable[[Callable[Concatenate[S, P], None]], Callable[Concatenate[S, P], None]]:
    """A decorator for the methods of a class; `failing` finds the exchange's way out from its object."""

    def guarded(method: Callable[Concatenate[S, P], None]) -> Callable[Concatenate[S, P], None]:
        @wraps(method)
        def wrapper(self: S, /, *args: P.args, **kwargs: P.kwargs) -> None:
            try:
                method(self, *args, **kwargs)
            except Exception as error:  # noqa: BLE001 - every bug has this one exit
                failing(self)(error)

        return wrapper

    return guarded
