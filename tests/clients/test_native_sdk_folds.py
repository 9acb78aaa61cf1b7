"""The second opinion for native upstreams: the official SDKs fold what the passage says as it does itself."""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from native import (
    args,
    delta,
    end,
    error,
    message_start,
    said,
    signed,
    start,
    stop,
    tell,
    text_block,
    thought,
    tool_block,
)
from pipeline import DATA

pytestmark = pytest.mark.timeout(120)

CITATION = {
    "type": "char_location",
    "cited_text": "a",
    "document_index": 0,
    "document_title": "t",
    "start_char_index": 0,
    "end_char_index": 1,
}
STREAMS = {
    path.name: [path.read_bytes()] for path in sorted((DATA / "native").iterdir()) if path.suffix != ".md"
} | {
    "interleaved": [
        message_start(), start(0, "tool_use", id="a"), start(1, "tool_use", id="b"),
        args(0, '{"x":'), args(1, '{"y":'), args(0, "1}"), args(1, "2}"), stop(0), stop(1), *end("tool_use"),
    ],
    "never started": [said(0, "x"), thought(1, "y"), signed(1, "s"), *end()],
    "empty": [message_start(), *text_block(0), *end()],
    "no arguments": [message_start(), *tool_block(0, ""), *end()],
    "server tool": [
        message_start(), start(0, "server_tool_use", id="s1", name="web_search", input={}), args(0, '{"query":"q"}'), stop(0),
        start(1, citations=[]), said(1, "x"), delta(1, "citations_delta", citation=CITATION), stop(1), *end(),
    ],
    "error": [message_start(), start(0), said(0, "x"), error()],
}  # fmt: skip
BODIES = {str(number): tell(frames).body for number, frames in enumerate(STREAMS.values())}


class _Replay(BaseHTTPRequestHandler):
    """`POST /NUMBER/v1/messages` gets the client's bytes of that stream."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        body = BODIES[self.path.split("/")[1]]
        self.send_response(200)
        self.send_header("content-type", "text/event-stream; charset=utf-8")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


@pytest.fixture(scope="module")
def replay():
    with ThreadingHTTPServer(("127.0.0.1", 0), _Replay) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def without_nulls(value):
    """SDKs add fields of their own, all of them null here."""
    if isinstance(value, dict):
        return {key: without_nulls(each) for key, each in value.items() if each is not None}
    return [without_nulls(each) for each in value] if isinstance(value, list) else value


@pytest.mark.parametrize("name", STREAMS)
def test_the_sdk_folds_a_stream_as_the_passage_does(sdk, replay, name):
    request = {"model": "a-model", "max_tokens": 64, "messages": [{"role": "user", "content": "hi"}]}
    answer = sdk.stream(f"{replay}/{list(STREAMS).index(name)}", request)
    whole = tell(STREAMS[name], streaming=False)
    if whole.fault is not None:
        assert answer["error"]["type"] == whole.fault.kind
    else:
        assert without_nulls(answer["message"]) == without_nulls(whole.message)
