r"""The embedded llama.cpp: a supervised child process on a loopback port of its own.

Owns the child's life: its port, its key, its log, readiness, restarts with back-off, its end. Must not
translate anything and is no upstream by itself: the gateway talks to `base_url` like to any other server.

    server = LocalServer(fetch_model())
    await server.start()                 # returns when it is ready
    server.base_url, server.api_key, server.slots, server.window
    await server.aclose()

    starting -> ready -> restarting -> ready ... -> stopped
            \-> failed (the very first start did not work: a restart would not help)

A request for the model while the state is not `ready` is answered 529 with `retry_after`.
"""

from __future__ import annotations

import asyncio
import ctypes.util
import importlib.util
import math
import os
import random
import secrets
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Literal, Self, TypeAlias

import aiohttp
import msgspec
import structlog

from antiphon.local_child import ChildConfig
from antiphon.local_model import cache_folder
from antiphon.local_place import LOOPBACK, Place

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

State: TypeAlias = Literal["starting", "ready", "restarting", "failed", "stopped"]

_READY_WITHIN = 120.0
_TERM_GRACE = 5.0
_CHILD = (sys.executable, "-P", "-m", "antiphon.local_child")

_log = structlog.get_logger("antiphon.local")


class LocalServerError(Exception):
    """The embedded server cannot run. The text says why, where its log is, and what to do."""


def available() -> str | None:
    """None if the embedded server can run here, else the reason in one line. Loads nothing."""
    if os.name != "posix":
        return "the embedded llama.cpp needs Linux or macOS"
    if importlib.util.find_spec("xllamacpp") is None:
        return "xllamacpp is not installed (pip install 'antiphon[local]')"
    if sys.platform == "linux" and ctypes.util.find_library("gomp") is None:
        return "the system's OpenMP library is missing (Debian: apt-get install libgomp1)"
    return None


class LocalServer:
    """One embedded llama.cpp with its supervisor. Use it on one event loop; start it once.

    `slots` and `window` (tokens per slot) are what is asked for until the server has reported its own.
    `on_state` is called synchronously, with the new state, at each change; it must not raise.
    `command`, `stable_after` (seconds without a crash after which back-off starts anew) and `backoff`
    (seconds to wait before restart n, from 0) are for tests.
    """

    def __init__(
        self,
        model: Path,
        *,
        alias: str = "smollm2",
        slots: int = 4,
        window: int = 4096,
        on_state: Callable[[State], None] | None = None,
        command: Sequence[str] = _CHILD,
        stable_after: float = 60.0,
        backoff: Callable[[int], float] | None = None,
    ) -> None:
        self.slots = slots
        self.window = window
        self.state: State = "starting"
        self.api_key = secrets.token_urlsafe(24)
        """The child answers nobody else: send it as `Authorization: Bearer`. New in each gateway process."""
        self._model = model
        self._alias = alias
        self._on_state = on_state
        self._command = tuple(command)
        self._stable_after = stable_after
        self._backoff = backoff or jittered
        self._place: Place | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._child: asyncio.subprocess.Process | None = None
        self._restart_at = 0.0

    @property
    def base_url(self) -> str:
        """`http://127.0.0.1:PORT/v1`, the same over all restarts.

        Raises:
            LocalServerError: not started.

        """
        if self._place is None:
            raise LocalServerError("The embedded llama.cpp has no address before start().")
        return f"http://{LOOPBACK}:{self._place.port}/v1"

    @property
    def pid(self) -> int | None:
        """The child's process id; None while there is no child."""
        return self._child.pid if self._child is not None and self._child.returncode is None else None

    @property
    def log_path(self) -> Path | None:
        """The file with llama.cpp's own output, readable by its owner only; None before `start()`."""
        return self._place.log_path if self._place is not None else None

    @property
    def retry_after(self) -> int:
        """Whole seconds, at least 1, after which a client that found it not ready may try again."""
        if self.state != "restarting":
            return 2
        # Loading takes 1 to 2 s.
        return max(1, math.ceil(self._restart_at - asyncio.get_running_loop().time()) + 2)

    async def start(self) -> None:
        """Start the child and return when it is ready; from then on it is restarted when it ends.

        Raises:
            LocalServerError: it ended, or was not ready in two minutes, in its first start.

        """
        if self._supervisor is not None:
            raise LocalServerError("This LocalServer was started before; make a new one.")
        try:
            place = self._place = Place(cache_folder() / "logs")
        except OSError as error:
            self._enter("failed")
            raise LocalServerError(f"The embedded llama.cpp cannot have a log or a port: {error}") from error
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._supervisor = asyncio.create_task(self._supervise(place, ready), name="local-llamacpp")
        await ready

    async def aclose(self) -> None:
        """End the child (SIGTERM, after 5 s SIGKILL) and wait for it. May be called at any time, twice."""
        supervisor = self._supervisor
        if supervisor is not None and not supervisor.done():
            supervisor.cancel()
            # asyncio.wait and not await: a cancellation of aclose() itself must stay one.
            await asyncio.wait([supervisor])
        if self._place is not None:
            self._place.close()
        self._enter("stopped")

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.aclose()
            raise
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.aclose()

    # --- the supervisor -------------------------------------------------------------------------

    async def _supervise(self, place: Place, ready: asyncio.Future[None]) -> None:
        crashes = 0
        try:
            while True:
                ending, stable = await self._live(place, ready)
                if not ready.done():
                    self._enter("failed")
                    ready.set_exception(_failure(ending, place))
                    return
                crashes = 0 if stable else crashes
                delay = self._backoff(crashes)
                crashes += 1
                self._restart_at = asyncio.get_running_loop().time() + delay
                self._enter("restarting")
                _log.warning(
                    "local_server_restarts", ending=ending, delay=round(delay, 1), log=str(place.log_path)
                )
                await asyncio.sleep(delay)
        except Exception:  # noqa: BLE001 - a task nobody awaits: logged, and the state tells
            # A fault of our own. Without a supervisor nothing restarts, and the state has to say so.
            _log.exception("local_supervisor_failed")
            self._enter("failed")
        finally:
            if not ready.done():
                ready.set_exception(LocalServerError("The embedded llama.cpp was closed while it started."))

    async def _live(self, place: Place, ready: asyncio.Future[None]) -> tuple[str, bool]:
        """One child from start to end: how it ended, and whether it had been stable."""
        place.bound_log()
        try:
            child = await self._spawn(place)
            try:
                await self._until_ready(child)
                if child.returncode is None:
                    self._enter("ready")
                    if not ready.done():
                        ready.set_result(None)
                stable = await self._until_exit(child, place)
            finally:
                await _end(child)
        except TimeoutError:
            return f"was not ready within {_READY_WITHIN:.0f} s", False
        except OSError as error:
            return f"could not be run: {error}", False
        return _ending(child), stable

    async def _spawn(self, place: Place) -> asyncio.subprocess.Process:
        config = ChildConfig(
            model=str(self._model),
            alias=self._alias,
            port=place.port,
            api_key=self.api_key,
            slots=self.slots,
            window=self.window,
            parent=os.getpid(),
        )
        child = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.PIPE,
            stdout=place.log_fd,
            stderr=place.log_fd,
            # Out of the terminal's process group: Ctrl-C reaches the gateway alone, which then ends it.
            start_new_session=True,
        )
        self._child = child
        if child.stdin is not None:
            # Not drained (the pipe holds a line) and never closed: its end tells the child that we are gone.
            child.stdin.write(msgspec.json.encode(config) + b"\n")
        return child

    async def _until_ready(self, child: asyncio.subprocess.Process) -> None:
        """Return when the child is ready or has ended; raise TimeoutError after two minutes of neither."""
        headers = {"authorization": f"Bearer {self.api_key}"}
        timeout = aiohttp.ClientTimeout(total=2)
        async with (
            asyncio.timeout(_READY_WITHIN),
            aiohttp.ClientSession(headers=headers, timeout=timeout) as session,
        ):
            while child.returncode is None and not await self._is_ready(session):  # noqa: ASYNC110 - no event there
                await asyncio.sleep(0.05)

    async def _is_ready(self, session: aiohttp.ClientSession) -> bool:
        root = _root(self.base_url)
        try:
            async with session.get(f"{root}/health") as health:
                if health.status != 200:
                    return False
            async with session.get(f"{root}/props", raise_for_status=True) as answer:
                props = msgspec.json.decode(await answer.read(), type=_Props)
        except (aiohttp.ClientError, TimeoutError, msgspec.DecodeError):
            # Refused while it starts; the caller asks again and has the time limit.
            return False
        self.slots = props.total_slots
        self.window = props.default_generation_settings.n_ctx
        return True

    async def _until_exit(self, child: asyncio.subprocess.Process, place: Place) -> bool:
        """Wait for the child's end; whether it ran for `stable_after` seconds before."""
        stable = False
        while True:
            try:
                async with asyncio.timeout(self._stable_after):
                    await child.wait()
            except TimeoutError:
                stable = True
                place.bound_log()
            else:
                return stable

    def _enter(self, state: State) -> None:
        if state != self.state:
            self.state = state
            if self._on_state is not None:
                self._on_state(state)


async def slots_busy(
    base_url: str, session: aiohttp.ClientSession, *, api_key: str | None = None
) -> int | None:
    """How many slots of a llama.cpp server are processing, by its own report; None if it cannot be asked.

    llama.cpp goes on with a prefill that nobody waits for (to its end, or to the end of a batch if the
    request asked for `return_progress`): a slot is free when this says so, not when the connection is
    closed. It answers within milliseconds in the middle of a prefill too; the limit is 1 s.
    """
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        async with session.get(
            f"{_root(base_url)}/slots",
            headers=headers,
            timeout=aiohttp.ClientTimeout(total=1),
            raise_for_status=True,
        ) as answer:
            slots = msgspec.json.decode(await answer.read(), type=list[_Slot])
    except (aiohttp.ClientError, TimeoutError, msgspec.DecodeError):
        # Switched off (501), another server (404), gone, slow: all mean that it has no report.
        return None
    return sum(slot.is_processing for slot in slots)


def jittered(crashes: int) -> float:
    """Seconds before restart `crashes` (from 0): 0.5, 1, 2, ... at most 30, less up to a half by chance."""
    longest: float = min(30.0, 0.5 * 2.0 ** min(crashes, 10))
    return longest * random.uniform(0.5, 1.0)  # noqa: S311 - spreads restarts, guards nothing


class _Slot(msgspec.Struct):
    is_processing: bool


class _Generation(msgspec.Struct):
    n_ctx: int


class _Props(msgspec.Struct):
    """`/props`: `n_ctx` there is one slot's context, not the server's."""

    total_slots: int
    default_generation_settings: _Generation


def _root(base_url: str) -> str:
    return base_url.rstrip("/").removesuffix("/v1")


async def _end(child: asyncio.subprocess.Process) -> None:
    try:
        if child.returncode is None:
            with suppress(ProcessLookupError):  # it ended by itself in this moment
                child.terminate()
            with suppress(TimeoutError):
                async with asyncio.timeout(_TERM_GRACE):
                    await child.wait()
    finally:
        # Also when this wait is cancelled: nothing may be left behind.
        if child.returncode is None:
            with suppress(ProcessLookupError):
                child.kill()
            await child.wait()


def _ending(child: asyncio.subprocess.Process) -> str:
    status = child.returncode
    if status is not None and status < 0:
        return f"was ended by {signal.Signals(-status).name}"
    return f"ended with status {status}"


def _failure(ending: str, place: Place) -> LocalServerError:
    text = place.log_path.read_bytes()[-4000:].decode(errors="replace")
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    # llama.cpp marks its errors with an E; what Python adds after them says less.
    last = next((line for line in reversed(lines) if " E " in line), lines[-1] if lines else "(nothing)")
    return LocalServerError(
        f"The embedded llama.cpp could not be started: it {ending}. Its log {place.log_path} says: {last!r}. "
        f"To serve another model: `antiphon serve --upstream URL`."
    )
