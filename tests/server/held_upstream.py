"""An upstream for real gateway processes that holds every stream until it is told, and counts.

with HeldUpstream() as upstream:
    upstream.base_url
    upstream.inside()          # requests that are being worked on now, by the gateway's port
    upstream.let_go(1)         # one of them runs to its end
    upstream.peak              # the most at once
"""

from __future__ import annotations

import json
import select
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self

_EVENT = b"data: %s\n\n"


def _chunk(**choice) -> bytes:
    return _EVENT % json.dumps({"choices": [{"index": 0, **choice}]}).encode()


class HeldUpstream:
    def __init__(self) -> None:
        self.peak = 0
        self._inside: list[int] = []
        self._lock = threading.Lock()
        self._turns = threading.Semaphore(0)
        held = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args) -> None:
                pass

            def do_GET(self) -> None:
                self.send_response(404)
                self.send_header("content-length", "0")
                self.end_headers()

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["content-length"]))
                held._work(self)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.block_on_close = False
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self.base_url = f"http://127.0.0.1:{self._server.server_port}/v1"

    def inside(self) -> list[int]:
        with self._lock:
            return list(self._inside)

    def let_go(self, requests: int) -> None:
        self._turns.release(requests)

    def _work(self, handler) -> None:
        port = handler.client_address[1]
        with self._lock:
            self._inside.append(port)
            self.peak = max(self.peak, len(self._inside))
        try:
            handler.close_connection = True
            handler.send_response(200)
            handler.send_header("content-type", "text/event-stream")
            handler.end_headers()
            handler.wfile.write(_chunk(delta={"role": "assistant", "content": "Hello"}, finish_reason=None))
            finished = self._wait(handler.connection)
        finally:
            with self._lock:  # before the last bytes: after them another may come
                self._inside.remove(port)
        if finished:
            handler.wfile.write(_chunk(delta={}, finish_reason="stop") + _EVENT % b"[DONE]")

    def _wait(self, connection: socket.socket) -> bool:
        """Until it may go on, or its gateway has gone away."""

        def gone() -> bool:
            return bool(select.select([connection], [], [], 0)[0])

        while not self._turns.acquire(timeout=0.01):
            if gone():
                return False
        if gone():
            self._turns.release()  # somebody who is still there was meant
            return False
        return True

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc) -> None:
        self.let_go(1000)
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
