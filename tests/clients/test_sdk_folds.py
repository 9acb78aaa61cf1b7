"""Law 7, the second opinion: the official SDKs fold every stream of the corpus as the gateway does itself.

The corpus's upstream bytes go through the pure pipeline; the client's bytes that come out are served to each
SDK as they are, and its folded message is compared with the pipeline's. A stream that failed must raise.
"""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from pipeline import CORPUS, chunks_of, play

pytestmark = pytest.mark.timeout(120)


def _stops(case):
    return tuple(case["trigger"].get("request", {}).get("stop_sequences", ()))


def _committed():
    """Case id -> result, for each case in which a client gets a stream (and not a plain HTTP error)."""
    for case in CORPUS:
        if case["trigger"]["kind"] in ("openai_sse", "raw_body") and "events" in case["expected"]:
            result = play(chunks_of(case), case["trigger"].get("end", "eof"), stop_sequences=_stops(case))
            assert result.fault is None, case["id"]
            yield case["id"], result


RESULTS = dict(_committed())


def _is_object(text):
    try:
        return isinstance(json.loads(text or "{}"), dict)
    except ValueError:
        return False


def _has_cut_tool(result):
    """A call whose arguments are not one JSON object: each SDK does something else with it."""
    arguments = {}
    for event in result.decoded:
        if event["type"] == "content_block_delta" and event["delta"]["type"] == "input_json_delta":
            arguments[event["index"]] = arguments.get(event["index"], "") + event["delta"]["partial_json"]
    return not all(map(_is_object, arguments.values()))


FAILED = [name for name, result in RESULTS.items() if result.decoded[-1]["type"] == "error"]
WHOLE = [name for name, result in RESULTS.items() if name not in FAILED and not _has_cut_tool(result)]


class _Replay(BaseHTTPRequestHandler):
    """`POST /CASE/v1/messages` gets the client's bytes of that case."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        body = RESULTS[self.path.split("/")[1]].body
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


def folded(sdk, replay, name):
    request = {"model": "a-model", "max_tokens": 64, "messages": [{"role": "user", "content": "hi"}]}
    return sdk.stream(f"{replay}/{name}", request)


def without_nulls(value):
    """SDKs add fields of their own, all of them null here."""
    if isinstance(value, dict):
        return {key: without_nulls(each) for key, each in value.items() if each is not None}
    return [without_nulls(each) for each in value] if isinstance(value, list) else value


@pytest.mark.parametrize("name", WHOLE)
def test_the_sdk_folds_a_stream_as_the_gateway_does(sdk, replay, name):
    answer = folded(sdk, replay, name)
    assert "error" not in answer, answer
    assert without_nulls(answer["message"]) == without_nulls(RESULTS[name].message)


@pytest.mark.parametrize("name", FAILED)
def test_the_sdk_raises_for_a_stream_that_failed(sdk, replay, name):
    answer = folded(sdk, replay, name)
    assert answer["error"]["type"] == RESULTS[name].decoded[-1]["error"]["type"]


def test_most_of_the_corpus_is_here():
    assert len(WHOLE) >= 50
    assert len(FAILED) >= 5
    # Cut tool arguments are the one exception, and a rare one.
    assert len(RESULTS) - len(WHOLE) - len(FAILED) <= 5
