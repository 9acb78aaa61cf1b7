"""An OpenAI-style upstream that keeps what it was sent, byte for byte, and answers what it was told to.

Owns the recorded requests and one answer at a time. It judges nothing.

    with RecordingUpstream() as upstream:
        ...                       # a gateway with upstream.base_url behind it is asked
        upstream.requests[-1].body
"""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self


def chunk(delta: dict, finish_reason: str | None = None) -> str:
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    return json.dumps({"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": "m", "choices": [choice]})


def sse(*data: str) -> bytes:
    return "".join(f"data: {line}\n\n" for line in data).encode()


@dataclass(frozen=True)
class Answer:
    status: int = 200
    body: bytes = sse(chunk({"role": "assistant", "content": "ok"}), chunk({}, "stop"), "[DONE]")
    headers: dict[str, str] = field(default_factory=lambda: {"content-type": "text/event-stream"})

    @classmethod
    def error(cls, status: int, error: dict, **headers: str) -> Self:
        return cls(status, json.dumps({"error": error}).encode(), {"content-type": "application/json", **headers})


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
        self.answer = Answer()
        self.requests: list[Recorded] = []
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"

    def reset(self) -> None:
        self.answer = Answer()
        self.requests.clear()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: RecordingUpstream

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.requests.append(Recorded(self.path, headers, body))
        answer = self.server.answer
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(answer.body)))
        self.end_headers()
        self.wfile.write(answer.body)

    def log_message(self, format: str, *args: object) -> None:
        """Requests are in `requests`; standard error is for trouble."""
