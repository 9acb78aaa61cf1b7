"""What an OpenAI client sends and gets through a live gateway, to the byte: SDKs would read and write it again."""

from __future__ import annotations

import http.client

import pytest

from recording_upstream import Answer, sse

pytestmark = pytest.mark.timeout(60)

ODD = b'{"z": 1.0,\r\n  "model" :"m\\u006f","messages":[ {"role":"user","content":"\\ud83d"} ], "x":1e400 }'


def exchanged(base_url: str, body: bytes, path: str = "/v1/chat/completions"):
    connection = http.client.HTTPConnection(base_url.removeprefix("http://"), timeout=30)
    try:
        connection.request("POST", path, body, {"content-type": "application/json"})
        answer = connection.getresponse()
        return answer, answer.read()
    finally:
        connection.close()


@pytest.mark.parametrize("prefix", ["", "/llm"])
@pytest.mark.parametrize("route", ["/chat/completions", "/completions", "/embeddings"])
def test_a_whole_answer_passes_byte_for_byte_both_ways(recorded, prefix, route):
    said = b'{ "id": "x",\n\n "usage": {"prompt_tokens": 1.0}, "odd": 1e400, "s": "\xc3\xa9\\u00e9" }\n'
    headers = {"content-type": "application/json; charset=utf-8", "x-ratelimit-limit-requests": "9"}
    recorded.upstream.answer = Answer(body=said, headers=headers)
    answer, body = exchanged(recorded.base_url, ODD, f"{prefix}/v1{route}")
    assert (answer.status, body) == (200, said)
    assert {name: answer.headers[name] for name in headers} == headers
    assert answer.headers["request-id"] == answer.headers["x-request-id"]
    assert answer.headers["antiphon-upstream"] and answer.headers["antiphon-queue-ms"]
    (request,) = recorded.upstream.requests
    assert (request.path, request.body) == (f"/v1{route}", ODD)


def test_a_stream_passes_byte_for_byte(recorded):
    said = b': hello\r\n\r\nevent: x\r\ndata:  { "choices" : [] }\r\n\r\n' + sse("[DONE]")
    recorded.upstream.answer = Answer(body=said)
    answer, body = exchanged(recorded.base_url, b'{"model":"m","stream":true}')
    assert (answer.status, body) == (200, said)
    assert answer.headers["content-type"] == "text/event-stream"


def test_a_stream_without_its_done_ends_as_it_came(recorded):
    recorded.upstream.answer = Answer(body=sse('{"choices":[]}'))
    _, body = exchanged(recorded.base_url, b'{"model":"m","stream":true}')
    assert body == sse('{"choices":[]}')


def test_a_cut_stream_has_no_end(recorded):
    recorded.upstream.answer = Answer.dying('{"choices":[]}')
    with pytest.raises(http.client.IncompleteRead) as cut:
        exchanged(recorded.base_url, b'{"model":"m","stream":true}')
    assert cut.value.partial.startswith(sse('{"choices":[]}') + b'data: {"error":{')


def test_an_error_passes_byte_for_byte(recorded):
    said = b'{"error": {"message": "no\\nway",  "code": null}}'
    recorded.upstream.answer = Answer(status=422, body=said, headers={"content-type": "application/json"})
    answer, body = exchanged(recorded.base_url, b'{"model":"m"}')
    assert (answer.status, body) == (422, said)


def test_a_wrong_method_is_refused_in_openais_shape(recorded):
    connection = http.client.HTTPConnection(recorded.base_url.removeprefix("http://"), timeout=30)
    connection.request("GET", "/v1/chat/completions")
    answer = connection.getresponse()
    assert (answer.status, answer.headers["allow"]) == (405, "POST")
    assert b'"param":' in answer.read()
    connection.close()
