"""The file that holds the records of keys: read in one piece, replaced in one piece.

Owns its form (`{"version": 1, "keys": [...]}`) and how it is written: under a lock of its own, into a new
file that takes the old one's place, so that a reader never sees half of it and two writers lose nothing. What
a record is comes in as a type; nothing here knows keys.

    rows, stamp = read_rows(path, Key)
    with edit_rows(path, Key) as rows:       # a list; what is in it at the end is what the file has
        rows.append(key)
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import stat
from collections.abc import Generator
from pathlib import Path
from typing import Final, Literal, TypeAlias, TypeVar

import msgspec

R = TypeVar("R")

Stamp: TypeAlias = tuple[int, int, int, int, int]
"""What changes whenever the file is another one: device, inode, size, times of content and inode (ns)."""

_LARGEST: Final = 16 * 1024 * 1024  # bytes; a hundred thousand keys


class KeysFileError(Exception):
    """The file cannot be used; the text says why, and quotes nothing of it. `stamp` None: it is not there."""

    def __init__(self, said: str, stamp: Stamp | None = None) -> None:
        super().__init__(said)
        self.stamp = stamp


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Outline of the file; each record is decoded by its own type."""

    version: Literal[1]
    keys: tuple[msgspec.Raw, ...]


def stamp_of(path: Path) -> Stamp:
    """Raises KeysFileError."""
    try:
        return _stamp(path.stat())
    except OSError as refused:
        raise KeysFileError(_reason(refused)) from None


def read_rows(path: Path, row: type[R]) -> tuple[list[R], Stamp]:
    """The records, and the stamp of the file that they were read from. Raises KeysFileError."""
    stamp: Stamp | None = None
    try:
        # Not to wait for a writer, should it be a pipe: whoever reads may be a loop that carries streams.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            found = os.fstat(descriptor)
            stamp = _stamp(found)
            if not stat.S_ISREG(found.st_mode):
                raise KeysFileError("it is not a file", stamp)
            data = file.read(_LARGEST + 1)
    except OSError as refused:
        raise KeysFileError(_reason(refused), stamp) from None
    if len(data) > _LARGEST:
        raise KeysFileError(f"it is larger than {_LARGEST} bytes", stamp)
    return _decode(data, row, stamp), stamp


@contextlib.contextmanager
def edit_rows(path: Path, row: type[R]) -> Generator[list[R], None, None]:
    """The records, to be changed; written when the block ends without an exception. A missing file is empty.

    Other writers wait meanwhile. Raises KeysFileError.
    """
    path = Path(os.path.realpath(path))  # a link stays one
    try:
        with _locked(path.with_name(path.name + ".lock")):
            try:
                rows, _ = read_rows(path, row)
            except KeysFileError as refused:
                if refused.stamp is not None or path.exists():
                    raise
                rows = []
            yield rows
            data = _encode(rows)
            _decode(data, row, None)  # what no gateway would read is not written
            _replace(path, data)
    except OSError as refused:
        raise KeysFileError(_reason(refused)) from None


def _decode(data: bytes, row: type[R], stamp: Stamp | None) -> list[R]:
    rows: list[R] = []
    where = ""
    try:
        for number, raw in enumerate(msgspec.json.decode(data, type=_File).keys, 1):
            where = f"key {number}: "
            rows.append(msgspec.json.decode(raw, type=row))
    except (msgspec.DecodeError, UnicodeDecodeError) as wrong:
        raise KeysFileError(f"{where}{wrong}", stamp) from None
    return rows


def _encode(rows: list[R]) -> bytes:
    return msgspec.json.format(msgspec.json.encode({"version": 1, "keys": rows}), indent=2) + b"\n"


@contextlib.contextmanager
def _locked(path: Path) -> Generator[None, None, None]:
    # A file of its own: the keys file is another one after each change, and a lock would stay with the old.
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _replace(path: Path, data: bytes) -> None:
    """`data` in the file's place, on the disk before it returns; owner and group stay who they were."""
    try:
        before = path.stat()
    except FileNotFoundError:
        before = None
    fresh = path.with_name(f"{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            if before is not None:
                _keep_owner(file.fileno(), before)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _keep_owner(descriptor: int, before: os.stat_result) -> None:
    """Who could read the file before still can: an operator's `sudo` must not lock the gateway out."""
    here = os.fstat(descriptor)
    if (here.st_uid, here.st_gid) != (before.st_uid, before.st_gid):
        os.fchown(descriptor, before.st_uid, before.st_gid)
    os.fchmod(descriptor, 0o600 | (stat.S_IMODE(before.st_mode) & 0o040))


def _stamp(found: os.stat_result) -> Stamp:
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def _reason(refused: OSError) -> str:
    return (refused.strerror or type(refused).__name__).lower()
