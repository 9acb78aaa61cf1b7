"""Which upstreams the operator drains: by name, so that a drain outlives a reload that makes one anew.

Owns the names. What a drain means is server.health's (`Health.drain`). Several workers share them as a folder
with an empty file for each: an order that one worker is given holds in all of them, also in one that is
started later.

    drains = Drains()                       # Drains(folder): shared with whoever else has this folder
    drains.drain("gpu-1")
    drains.apply(backend.upstreams)         # after every change of either, and about once a second
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol


class _Health(Protocol):
    def drain(self) -> None: ...
    def undrain(self) -> None: ...


class _Upstream(Protocol):
    @property
    def health(self) -> _Health: ...


class Drains:
    """`folder` is made if it is not there; whoever may write there may drain. Raises OSError.

    Names are those of upstreams, which are file names too (`config.UpstreamSettings.name`).
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._names: set[str] = set()
        self._applied: set[str] = set()
        if folder is not None:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def drain(self, name: str) -> None:
        """No new requests for the upstream of this name, from the next `apply` on. Idempotent."""
        self._names.add(name)
        if self._folder is not None:
            (self._folder / name).touch()

    def undrain(self, name: str) -> None:
        """Undo `drain`. Idempotent."""
        self._names.discard(name)
        if self._folder is not None:
            (self._folder / name).unlink(missing_ok=True)

    def apply(self, upstreams: Mapping[str, _Upstream]) -> None:
        """Tell these upstreams; one that nobody has drained here is left as it is."""
        if self._folder is not None and self._folder.is_dir():  # else the supervisor is gone, and we go too
            self._names = {path.name for path in self._folder.iterdir()}
        for name, upstream in upstreams.items():
            if name in self._names:
                upstream.health.drain()
            elif name in self._applied:
                upstream.health.undrain()
        self._applied = set(self._names)
