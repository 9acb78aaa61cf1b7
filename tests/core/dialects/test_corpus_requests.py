"""Every request case of the corpus, from the client's bytes to the upstream's, judged as `run.py` judges."""

import importlib.util
import json
import pathlib
from types import SimpleNamespace

import pytest

from antiphon.core.dialects.chat_request import encode
from antiphon.core.dialects.quirks import GENERIC, OPENAI
from antiphon.core.surfaces.messages.request import RequestError, parse

CONFORMANCE = pathlib.Path(__file__).parents[2] / "conformance"
CASES = [json.loads(line) for line in (CONFORMANCE / "corpus.jsonl").read_text().rstrip("\n").split("\n")]
REQUESTS = [case for case in CASES if case["trigger"]["kind"] == "anthropic_request"]
MODEL = "a-model"
HEADERS = {"content-type": "application/json", "request-id": "req_1"}


@pytest.fixture(scope="module")
def run():
    spec = importlib.util.spec_from_file_location("conformance_run", CONFORMANCE / "run.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def gateway(upstream):
    """The client side of `run.py`, answered by parse and encode instead of a server."""

    class Client:
        def send(self, method, path, payload, headers=None):
            body = payload.encode() if isinstance(payload, str) else json.dumps(payload).encode()
            try:
                out = encode(parse(body), GENERIC)
            except RequestError as refused:
                error = {"type": refused.fault.kind, "message": refused.fault.message}
                answer = {"type": "error", "error": error, "request_id": HEADERS["request-id"]}
                return refused.fault.status, HEADERS, json.dumps(answer).encode(), True
            upstream.requests.append({"body": json.loads(out.body), "headers": {}})
            return 200, HEADERS, b"{}", True

    return Client()


@pytest.mark.parametrize("case", REQUESTS, ids=lambda case: case["id"])
def test_case(run, case):
    upstream = SimpleNamespace(trigger=None, requests=[])
    assert run.run_case(case, gateway(upstream), upstream, MODEL) is None


def test_the_corpus_has_request_cases():
    assert len(REQUESTS) == 25


def by_id(wanted):
    return next(case for case in CASES if case["id"] == wanted)


def test_rqt_01_tool_choice():
    for choice, expected in by_id("RQT-01")["trigger"]["cases"]:
        whole = {
            "model": "m",
            "max_tokens": 1,
            "messages": [{"role": "user", "content": "q"}],
            "tool_choice": choice,
        }
        whole["tools"] = [{"name": "f", "input_schema": {"type": "object", "properties": {}}}]
        assert json.loads(encode(parse(json.dumps(whole).encode()), GENERIC).body)["tool_choice"] == expected


def test_rqt_09_long_names_where_the_server_has_the_limit():
    body = by_id("RQT-09")["trigger"]["body"]
    out = encode(parse(json.dumps(body).encode()), OPENAI)
    (tool,) = json.loads(out.body)["tools"]
    assert len(tool["function"]["name"]) <= 64
    assert out.tool_names == {tool["function"]["name"]: body["tools"][0]["name"]}


def test_rqm_09_names_the_block_and_its_media_type():
    with pytest.raises(RequestError, match=r"messages\.0\.content\.1.*document.*application/pdf"):
        encode(parse(json.dumps(by_id("RQM-09")["trigger"]["body"]).encode()), GENERIC)


def test_rqm_15_names_the_id():
    with pytest.raises(RequestError, match=r"tool_use_id.*gone"):
        encode(parse(json.dumps(by_id("RQM-15")["trigger"]["body"]).encode()), GENERIC)
