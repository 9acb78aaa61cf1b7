"""A scripted OpenAI-style upstream for demos and tests: `antiphon simulate`, and the model `reasoning`.

It owns the server: routes, pacing, the form of the answers on the wire, and doing the faults. What
the model says is in `simulator_script.py`, what can go wrong in `simulator_faults.py`, the request log
in `simulator_log.py`. The gateway must not use it other than over HTTP. It is an aiohttp.web server:
that one hands out its transport (a reset needs the socket) and cancels a handler the moment its client
goes away.

    simulator = Simulator(SimulatorSettings(log_path=Path("/tmp/requests.log")))
    await simulator.start()
    ...                       # POST f"{simulator.base_url}/chat/completions"
    await simulator.aclose()
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import struct
import sys
import time
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

import msgspec
from aiohttp import web

from antiphon.simulator_faults import Faults, Struck, faults_for, strike
from antiphon.simulator_log import Record, open_log
from antiphon.simulator_script import MODEL, ChatRequest, Delta, RequestError, Script, read_request

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

__all__ = ["MODEL", "Faults", "Simulator", "SimulatorSettings", "open_log", "run"]

_MAX_BODY = 64 * 1024 * 1024  # bytes; above what the gateway itself lets through


@dataclass(frozen=True)
class SimulatorSettings:
    """`token_interval` is in seconds; `port` 0 takes a free one; without `log_path` nothing is logged."""

    host: str = "127.0.0.1"
    port: int = 0
    token_interval: float = 0.020
    log_path: Path | None = None
    faults: Faults = field(default_factory=Faults)


# --- Errors and frames ---------------------------------------------------------------------------

_ERROR_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}


def _error_body(status: int, message: str) -> dict[str, Any]:
    kind = _ERROR_TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": None, "code": status}}


def _json(status: int, body: dict[str, Any]) -> web.Response:
    return web.Response(status=status, body=msgspec.json.encode(body), content_type="application/json")


@web.middleware
async def _errors_as_json(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Unknown routes, wrong methods and too large bodies get a body in OpenAI's shape too."""
    try:
        return await handler(request)
    except web.HTTPException as error:
        return _json(
            error.status, _error_body(error.status, f"{error.reason} ({request.method} {request.path})")
        )


def _frame(data: dict[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(data) + b"\n\n"


async def _for_ever() -> NoReturn:
    await asyncio.get_running_loop().create_future()
    raise AssertionError("nobody resolves this future")


# --- The server ----------------------------------------------------------------------------------


class Simulator:
    """The server. `start` once, `aclose` once or more; both run on the same event loop.

    `log` takes the request log when the settings name no `log_path`; it stays open.
    """

    def __init__(self, settings: SimulatorSettings, log: TextIO | None = None) -> None:
        self._settings = settings
        self._log = log
        self._own_log: TextIO | None = None
        self._runner: web.AppRunner | None = None
        self._answering: set[asyncio.Task[Any]] = set()
        self._requests = 0
        self._closing = False
        self._port = settings.port

    @property
    def port(self) -> int:
        """The port that it listens on; after `start` never 0."""
        return self._port

    @property
    def base_url(self) -> str:
        """What an OpenAI client calls its base URL: `http://127.0.0.1:PORT/v1`."""
        host = self._settings.host
        return f"http://{f'[{host}]' if ':' in host else host}:{self._port}/v1"

    async def start(self) -> None:
        """Open the log and listen. Raises OSError for a log that `open_log` refuses or a taken port."""
        if self._settings.log_path is not None:
            self._log = self._own_log = open_log(self._settings.log_path)
        app = web.Application(client_max_size=_MAX_BODY, middlewares=[_errors_as_json])
        app.router.add_get("/health", self._health)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/chat/completions", self._chat)
        # The timeout only bounds what `aclose` has not ended itself.
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=1.0)
        try:
            await self._runner.setup()
            await web.TCPSite(self._runner, self._settings.host, self._settings.port).start()
        except BaseException:
            await self.aclose()
            raise
        self._port = self._runner.addresses[0][1]

    async def aclose(self) -> None:
        """Stop listening and end every answer (outcome `stopped`). No task or descriptor is left."""
        self._closing = True
        for task in self._answering:
            task.cancel()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
        if self._own_log is not None:
            self._own_log.close()
            self._log = self._own_log = None

    def _write_log(self, line: str) -> None:
        if self._log is None:
            return
        try:
            self._log.write(line)
            self._log.flush()
        except OSError as error:
            # A full disk must not end an answer.
            logging.getLogger(__name__).warning("the simulator's log cannot be written: %s", error.strerror)

    async def _health(self, _: web.Request) -> web.Response:
        return _json(200, {"status": "ok"})

    async def _models(self, _: web.Request) -> web.Response:
        model = {"id": MODEL, "object": "model", "created": int(time.time()), "owned_by": "antiphon"}
        return _json(200, {"object": "list", "data": [model]})

    async def _chat(self, http: web.Request) -> web.StreamResponse:
        self._requests += 1
        record = Record(self._requests, self._write_log)
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 -- a coroutine always runs in one; this is for mypy
        self._answering.add(task)
        try:
            return await self._serve(http, record)
        except (asyncio.CancelledError, ConnectionError):
            record.finish("stopped" if self._closing else "cancelled")
            raise
        finally:
            self._answering.discard(task)
            record.finish("failed")  # counts only if nothing else was said before: a bug

    async def _serve(self, http: web.Request, record: Record) -> web.StreamResponse:
        try:
            request = read_request(await http.read())
            faults = faults_for(request, self._settings.faults)
        except (RequestError, web.RequestPayloadError) as error:
            record.finish("rejected")
            return _json(400, _error_body(400, str(error)))
        except web.HTTPException:
            record.finish("rejected")
            raise
        record.model = MODEL if request.model == MODEL else "other"
        record.stream = "true" if request.stream else "false"
        await asyncio.sleep(faults.delay_headers)
        if faults.status is not None:
            record.fault = "status"
            record.finish("fault")
            response = _json(faults.status, _error_body(faults.status, "The simulator was told to fail."))
            if faults.retry_after is not None:
                response.headers["retry-after"] = f"{faults.retry_after:g}"
            return response
        answer = _Answer(http, request, faults, self._settings.token_interval, record)
        return await (answer.stream() if request.stream else answer.whole())


class _Answer:
    """One answer on its way to its client."""

    def __init__(
        self, http: web.Request, request: ChatRequest, faults: Faults, token_interval: float, record: Record
    ) -> None:
        self._http = http
        self._request = request
        self._faults = faults
        self._token_interval = token_interval
        self._record = record
        unique = uuid.uuid4().hex  # tool ids must be new in a conversation whose words repeat
        self._script = record.script = Script(request, call_id=f"call_{unique[:16]}")
        self._id = f"chatcmpl-{unique}"
        self._created = int(time.time())
        self._frames = 0
        self._due = 0.0  # the loop's time at which the next token is due

    async def stream(self) -> web.StreamResponse:
        options = self._request.stream_options
        response = web.StreamResponse(
            headers={"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}
        )
        await response.prepare(self._http)
        try:
            await self._begin()
            await self._send(response, self._chunk({"role": "assistant", "content": ""}))
            for delta in self._script:
                await self._pace()
                if delta is not None:
                    await self._send(response, self._chunk(delta))
            await self._send(response, self._chunk({}, self._script.finish_reason))
            if options is not None and options.include_usage:
                usage = self._script.usage()
                await self._send(response, self._object("chat.completion.chunk", []) | {"usage": usage})
        except Struck as struck:
            await self._break(struck.name, response)
            return response
        # From here on the client has everything: if it leaves now, it was still answered.
        self._record.finish("completed")
        await response.write_eof(b"data: [DONE]\n\n")
        return response

    async def whole(self) -> web.StreamResponse:
        deltas: list[Delta] = []
        try:
            await self._begin()
            self._count_frame()
            for delta in self._script:
                await self._pace()
                if delta is not None:
                    deltas.append(delta)
                    self._count_frame()
        except Struck as struck:
            return await self._break(struck.name, None)
        choice = self._choice(self._script.finish_reason) | {"message": _fold(deltas)}
        self._record.finish("completed")
        return _json(200, self._object("chat.completion", [choice]) | {"usage": self._script.usage()})

    async def _begin(self) -> None:
        await asyncio.sleep(self._faults.delay_first_token)
        self._due = asyncio.get_running_loop().time()
        strike(self._faults, 0)

    async def _pace(self) -> None:
        """Wait for the next token's time. A reader that was slow gets no burst afterwards."""
        now = asyncio.get_running_loop().time()
        self._due = max(self._due + self._token_interval, now)
        await asyncio.sleep(self._due - now)

    async def _send(self, response: web.StreamResponse, data: dict[str, Any]) -> None:
        await response.write(_frame(data))
        self._count_frame()

    def _count_frame(self) -> None:
        self._frames += 1
        strike(self._faults, self._frames)

    async def _break(self, name: str, response: web.StreamResponse | None) -> web.StreamResponse:
        """Let the fault `name` happen. `response` is the open stream, None when nothing was sent yet."""
        self._record.fault = name
        if name == "stall_after":
            await _for_ever()
        self._record.finish("fault")
        error = _error_body(500, "The simulator was told to fail.")
        if name == "error_after":
            if response is None:
                return _json(500, error)
            await response.write_eof(_frame(error) + b"data: [DONE]\n\n")
            return response
        transport = self._http.transport
        if transport is None:
            raise ConnectionResetError("the client went first")
        if name == "reset_after":
            # A linger time of zero makes close() send RST.
            transport.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
            )
            transport.abort()
        else:
            transport.close()
        # The server finds the transport closed when it wants to end the message, and leaves it at that.
        return response or web.Response()

    def _object(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": kind,
            "created": self._created,
            "model": self._request.model,
            "choices": choices,
        }

    def _choice(self, finish_reason: str | None) -> dict[str, Any]:
        choice = {"index": 0, "logprobs": None, "finish_reason": finish_reason}
        if finish_reason is not None:
            choice["stop_reason"] = self._script.stop_reason
        return choice

    def _chunk(self, delta: Delta, finish_reason: str | None = None) -> dict[str, Any]:
        chunk = self._object("chat.completion.chunk", [self._choice(finish_reason) | {"delta": delta}])
        options = self._request.stream_options
        if options is not None and options.include_usage:
            chunk["usage"] = self._script.usage() if options.continuous_usage_stats else None
        return chunk


def _fold(deltas: list[Delta]) -> dict[str, Any]:
    """The message of an answer without streaming."""
    message: dict[str, Any] = {"role": "assistant", "content": None}
    for delta in deltas:
        for key in ("reasoning_content", "content"):
            if key in delta:
                message[key] = (message.get(key) or "") + delta[key]
        for fragment in delta.get("tool_calls", []):
            calls = message.setdefault("tool_calls", [])
            if "id" in fragment:
                function = dict(fragment["function"])
                calls.append({"id": fragment["id"], "type": "function", "function": function})
            else:
                calls[fragment["index"]]["function"]["arguments"] += fragment["function"]["arguments"]
    return message


# --- The command ---------------------------------------------------------------------------------


def run(settings: SimulatorSettings) -> None:
    """Serve until SIGINT or SIGTERM, then return. Without a `log_path` the request log is the output.

    Raises OSError, as `Simulator.start` does.
    """
    asyncio.run(_run(settings))


async def _run(settings: SimulatorSettings) -> None:
    simulator = Simulator(settings, log=sys.stdout)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    await simulator.start()
    try:
        sys.stdout.write(_greeting(simulator.base_url, settings.log_path))
        sys.stdout.flush()
        await stop.wait()
    finally:
        await simulator.aclose()


def _greeting(base_url: str, log_path: Path | None) -> str:
    return (
        f"The simulator serves model {MODEL} at {base_url}"
        f"{f', its log is {log_path}' if log_path else ''}. Try:\n\n"
        f"  curl -N {base_url}/chat/completions -H 'content-type: application/json' \\\n"
        f"""    -d '{{"model":"{MODEL}","stream":true,"messages":[{{"role":"user","content":"hi"}}]}}'\n\n"""
        "The word `long` in the prompt makes it talk on, `[[stall_after=3]]` or `[[status=503]]` makes it\n"
        "fail. Ctrl-C ends it.\n"
    )
