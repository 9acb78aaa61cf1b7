"""What of a request does not reach the upstream, in the two classes of which every request keeps account.

*Ignored* cannot change the answer (caching, metadata, betas): it goes to the log and to counters, so its
paths have `*` for an index and their number stays small. *Degraded* changes what the model sees or may
do: its paths are exact, because the client is told. A path holds our own field names and indices only.

    losses.ignore("messages.3.content.0.cache_control")   -> ignored  ("messages.*.content.*.cache_control",)
    losses.degrade("tools.2")                             -> degraded ("tools.2",)
"""

from __future__ import annotations

import re

_INDEX = re.compile(r"\.\d+(?=\.|$)")


class Losses:
    """Collects paths, each once, in the order in which they were met."""

    __slots__ = ("_degraded", "_ignored")

    def __init__(self, ignored: tuple[str, ...] = (), degraded: tuple[str, ...] = ()) -> None:
        self._ignored = dict.fromkeys(ignored)
        self._degraded = dict.fromkeys(degraded)

    def ignore(self, path: str) -> None:
        self._ignored[_INDEX.sub(".*", path)] = None

    def degrade(self, path: str) -> None:
        self._degraded[path] = None

    def carried(self, path: str) -> None:
        """What was taken to be ignored has found its way after all."""
        self._ignored.pop(_INDEX.sub(".*", path), None)

    @property
    def ignored(self) -> tuple[str, ...]:
        return tuple(self._ignored)

    @property
    def degraded(self) -> tuple[str, ...]:
        return tuple(self._degraded)
