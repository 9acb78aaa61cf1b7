"""Notices that the settings' files have changed, reads them again, and hands on what can be used.

Owns when they are read: on a signal at once, else when a file's stamp (inode, size, time) is another and
stood still for one more look: an editor replaces or rewrites a file in several steps. Who applies them is
not its business; files that cannot be used leave everything as it is, and the log says why.

    watch = ConfigWatch(lambda: loaded.again(os.environ), gateway.apply, loaded.files)
    watch.tick(clock())          # every limits.tick seconds
    watch.check_now()            # on SIGHUP
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, TypeAlias

import structlog

from antiphon.config import ConfigError
from antiphon.config_file import Loaded

log = structlog.get_logger("antiphon.server")

INTERVAL: Final = 1.0
"""Seconds between two looks at the files, at least."""

_Stamp: TypeAlias = tuple[int, int, int] | None
_Stamps: TypeAlias = dict[Path, _Stamp]


class ConfigWatch:
    """See the module.

    `load` reads everything anew and raises ConfigError; it is called in the loop, for some milliseconds.
    `apply` gets what was read, also where only a file beside the settings has changed (the keys'); what it
    raises, as ConfigError too, refuses the new settings. `files` are those that were read first.
    """

    def __init__(
        self, load: Callable[[], Loaded], apply: Callable[[Loaded], None], files: Iterable[Path]
    ) -> None:
        self._load = load
        self._apply = apply
        self._stamps = _stamps(files)
        self._seen: _Stamps | None = None  # other stamps that the last look found
        self._next = 0.0

    def tick(self, now: float) -> None:
        """Look at the files, if the last look is long enough ago. `now` in seconds of a monotonic clock."""
        if now < self._next:
            return
        self._next = now + INTERVAL
        found = _stamps(self._stamps)
        if found == self._stamps:
            self._seen = None
        elif found != self._seen:
            self._seen = found
        else:
            self.check_now()

    def check_now(self) -> bool:
        """Read the files, changed or not. Whether what they say is in force now."""
        # Before they are read: what is written meanwhile is a change of its own.
        self._stamps, self._seen = _stamps(self._stamps), None
        try:
            loaded = self._load()
            self._apply(loaded)
        except ConfigError as refused:
            # No traceback: it is the file that is wrong.
            log.error("config_refused", errors=list(refused.errors))  # noqa: TRY400
            self._stamps = {**_stamps(refused.files), **self._stamps}
            return False
        log.info("config_loaded", files=[str(file) for file in loaded.files], warnings=loaded.warnings)
        self._stamps = {file: self._stamps.get(file, _stamp(file)) for file in loaded.files}
        return True


def _stamps(files: Iterable[Path]) -> _Stamps:
    return {file: _stamp(file) for file in files}


def _stamp(file: Path) -> _Stamp:
    """What is different once a file was written or replaced; None where there is none to be read."""
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns
