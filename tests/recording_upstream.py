"""An OpenAI-style upstream that keeps what it was sent, byte for byte, and answers what it was told to.

Owns the recorded requests and the answers to come. It judges nothing.

    with RecordingUpstream() as upstream:
        upstream.script = [Answer.dying(chunk({"content": "a"}))]
        ...                       # a gateway with upstream.base_url behind it is asked
        upstream.requests[-1].body

Answers come from `script`, one for each request; when it is empty, `answer` is given for ever.
"""

from __future__ import annotations

import json
import socket
import struct
import sys
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal, Self


def chunk(delta: dict, finish_reason: str | None = None) -> str:
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    return json.dumps(
        {"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": "m", "choices": [choice]}
    )


def opens(call_id: str, name: str, arguments: str = "", *, index: int = 0) -> str:
    """The first fragment of a tool call."""
    function = {"name": name, "arguments": arguments}
    fragment = {"index": index, "id": call_id, "type": "function", "function": function}
    return chunk({"tool_calls": [fragment]})


def more(arguments: str, *, index: int = 0) -> str:
    """A later fragment of a tool call."""
    fragment = {"index": index, "function": {"arguments": arguments}}
    return chunk({"tool_calls": [fragment]})


def sse(*data: str) -> bytes:
    return "".join(f"data: {line}\n\n" for line in data).encode()


@dataclass(frozen=True)
class Answer:
    """`end`: the HTTP message is whole, or its connection is closed (FIN) or reset (RST) before its end."""

    status: int = 200
    body: bytes = sse(chunk({"role": "assistant", "content": "ok"}), chunk({}, "stop"), "[DONE]")
    headers: dict[str, str] = field(default_factory=lambda: {"content-type": "text/event-stream"})
    end: Literal["whole", "cut", "reset"] = "whole"
    pause: float = 0.0  # seconds between the body and the end

    @classmethod
    def of(cls, *data: str) -> Self:
        return cls(body=sse(*data))

    @classmethod
    def dying(cls, *data: str, end: Literal["whole", "cut", "reset"] = "cut", pause: float = 0.0) -> Self:
        return cls(body=sse(*data), end=end, pause=pause)

    @classmethod
    def error(cls, status: int, error: dict, **headers: str) -> Self:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return cls(
            status, json.dumps({"error": error}).encode(), {"content-type": "application/json", **named}
        )


@dataclass(frozen=True)
class Recorded:
    path: str
    headers: dict[str, str]  # lower-case names
    body: bytes

    @property
    def json(self) -> dict:
        return json.loads(self.body)


class RecordingUpstream(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.reset()
        self._thread = threading.Thread(
            target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        )

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"

    def reset(self) -> None:
        self.answer = Answer()
        self.script: list[Answer] = []
        self.requests: list[Recorded] = []

    def next_answer(self) -> Answer:
        return self.script.pop(0) if self.script else self.answer

    def handle_error(self, request: object, client_address: object) -> None:
        """A gateway that resets a connection which it has no more use for is no trouble of this server's."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # an answer in two writes would wait 40 ms
    server: RecordingUpstream

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.requests.append(Recorded(self.path, headers, body))
        answer = self.server.next_answer()
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        if answer.body:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(answer.body), answer.body))
        time.sleep(answer.pause)
        if answer.end == "whole":
            self.wfile.write(b"0\r\n\r\n")
            return
        if answer.end == "reset":
            # A linger time of zero makes close() send RST.
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True

    def log_message(self, *args: object) -> None:
        """Requests are in `requests`; standard error is for trouble."""
