"""The whole examination: imitations of known servers, the simulator, and servers that are no use."""

import dataclasses
import tomllib

import pytest

from antiphon.check.upstream import asking, leaving
from antiphon.check.upstream.asking import Asker
from antiphon.check.upstream.examine import examine
from antiphon.check.upstream.identity import Unreachable
from antiphon.check.upstream.profile import differences, settings_toml
from antiphon.simulator import Simulator, SimulatorSettings
from check.imitations import LLAMACPP, MISTRAL_LIKE, OLLAMA, OPENAI_LIKE, SGLANG, VLLM, Imitation, Shape


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(leaving, "_PATIENCE", 0.3)
    monkeypatch.setattr(leaving, "_INTERVAL", 0.01)
    monkeypatch.setattr(leaving, "_WAITED", 0.2)


async def report_of(shape, **options):
    async with Imitation(shape) as server, Asker(server.url, **options) as asker:
        return await examine(asker)


def changed(report):
    return {name: one.value for name, one in differences(report).items()}


async def test_vllm():
    report = await report_of(VLLM)
    assert (report.server, report.version, report.profile, report.window) == ("vllm", "0.33.0", "vllm", 200)
    assert report.value("reasoning field") == "reasoning"
    assert report.value("usage") == "in every chunk"
    assert report.value("matched stop") == "stop_reason"
    assert report.value("tool call shape") == "fragmented, 2 pieces of arguments"
    assert report.value("tokenizer") == "/tokenize"
    assert report.value("unknown model") == "HTTP 404, nested: error.message"
    assert report.value("overflow") == "HTTP 400, recognised"
    assert report.value("load report") == "/metrics"
    assert report.value("client leaves").startswith("stops within")
    assert (report.problems, changed(report)) == ([], {})


async def test_sglang():
    report = await report_of(SGLANG)
    assert (report.server, report.version, report.profile) == ("sglang", "0.5.9", "sglang")
    assert report.value("slots") == "16"
    assert report.value("matched stop") == "matched_stop"
    assert report.value("bad request") == "HTTP 400, flat: message"
    assert report.value("unknown model") == "answered all the same"
    assert (report.problems, changed(report)) == ([], {})


async def test_llamacpp_that_goes_on():
    report = await report_of(LLAMACPP)
    assert (report.server, report.version, report.profile, report.window) == (
        "llamacpp",
        "b9000",
        "llamacpp",
        200,
    )
    assert report.value("matched stop") == "not reported"
    assert report.value("tool_choice") == "a named choice is ignored, `required` is obeyed"
    assert report.value("tokenizer") == "/v1/chat/completions/input_tokens"
    assert report.value("load report") == "/slots"
    assert report.value("client leaves") == "goes on"
    assert changed(report) == {}
    assert len(report.problems) == 1
    assert "goes on generating" in report.problems[0]


async def test_ollama():
    report = await report_of(OLLAMA)
    assert (report.server, report.version, report.profile) == ("ollama", "0.14.0", "ollama")
    assert report.value("tool call shape") == "whole, in one fragment"
    assert report.value("tokenizer") == "none"
    assert report.value("overflow") == "cut in silence"
    assert report.value("client leaves") == "unknown"
    assert changed(report) == {}
    assert ["cut in silence" in problem for problem in report.problems] == [True]


async def test_what_is_refused_is_left_out():
    report = await report_of(OPENAI_LIKE)
    assert (report.profile, report.token_limit_field) == ("openai", "max_completion_tokens")
    assert report.value("usage") == "a chunk of its own"
    assert changed(report) == {}
    report = await report_of(MISTRAL_LIKE)
    assert report.profile == "mistral"
    assert report.value("reasoning field") == "content[].thinking"
    assert report.value("bad request") == "HTTP 400, FastAPI: detail"
    assert changed(report) == {}


async def test_an_unknown_server_gets_the_generic_row_and_its_differences():
    shape = Shape(
        reasoning="reasoning",
        usage="continuous",
        choice="required_only",
        load="slots",
        refuses=("response_format",),
    )
    report = await report_of(shape)
    assert (report.server, report.profile) == ("unknown", "generic")
    assert changed(report) == {
        "reasoning_fields_out": ["reasoning"],
        "stream_usage": "continuous",
        "tool_choice": "required_only",
        "drain_report": "slots",
        "response_format": False,
    }
    (one,) = tomllib.loads(settings_toml(report))["upstreams"]
    assert (one["kind"], one["quirks"]) == ("generic", changed(report))


@pytest.mark.parametrize(
    ("change", "label", "value"),
    [
        ({"line_end": "\r\n"}, "line ends", "CRLF"),
        ({"comments": True}, "comments", "1"),
        ({"done": False}, "[DONE]", "does not come"),
        ({"usage": "choice"}, "usage", "choices[0].usage"),
        ({"index": False}, "tool call index", "missing"),
        ({"stop": "stop_reason", "owner": "x"}, "matched stop", "stop_reason"),
        ({"reasoning": None}, "reasoning field", "not seen"),
        ({"errors": "string"}, "bad request", "HTTP 400, a bare string: error"),
        ({"window": 200, "entry": {"max_model_len": 100}}, "overflow", "accepted"),
    ],
)
async def test_shapes_that_are_fine(change, label, value):
    report = await report_of(Shape(**change))
    assert (report.value(label), report.problems) == (value, [])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"content_type": "text/plain"}, "content type text/plain"),
        ({"finish": False}, "no finish_reason: only [DONE]"),
        ({"finish": False, "done": False}, "no finish_reason and no [DONE]"),
        ({"usage": "none"}, "no usage in streams"),
        ({"stop": "ignored"}, "ignores stop strings"),
        ({"choice": "never"}, "never called a tool"),
        ({"window": 200, "entry": {"max_model_len": 200}, "overflow": "Nope."}, "do not compact"),
        ({"slow": True, "leaves": "goes_on"}, "the next request had to wait"),
        ({"key": "secret", "models": False}, "give --api-key-env"),
    ],
)
async def test_what_hurts_is_said(change, words):
    if "key" in change:
        with pytest.raises(Unreachable, match=words):
            await report_of(Shape(**change))
        return
    report = await report_of(Shape(**change))
    assert [words in problem for problem in report.problems] == [True]


async def test_think_tags_that_the_template_opened():
    report = await report_of(Shape(reasoning=None, think_tags="hm</think>"))
    assert changed(report)["think_tags"] == "open"
    report = await report_of(Shape(reasoning=None, think_tags="<think>hm</think>"))
    assert "think_tags" not in changed(report)


async def test_a_key_is_sent():
    report = await report_of(Shape(key="secret"), key="secret")
    assert report.problems == []


async def test_the_version_of_the_path_is_found():
    async with Imitation(VLLM) as server, Asker(server.url.removesuffix("/v1")) as asker:
        report = await examine(asker)
    assert (report.url, report.profile) == (server.url, "vllm")


async def test_a_model_can_be_named():
    async with Imitation(Shape(models=False)) as server, Asker(server.url) as asker:
        with pytest.raises(Unreachable, match="name one with --model"):
            await examine(asker)
        report = await examine(asker, model="imitation")
    assert report.problems == []
    assert {body["model"] for body in server.requests} == {"imitation", "antiphon-check-no-such-model"}


async def test_no_prompt_that_is_too_long_unless_wanted():
    async with Imitation(VLLM) as server, Asker(server.url) as asker:
        report = await examine(asker, fill_window=False)
    assert report.value("overflow") is None
    assert max(len(str(body)) for body in server.requests) < 1000


async def test_a_server_that_says_no_to_everything():
    report = await report_of(dataclasses.replace(VLLM, refuses=("model",)))
    assert len(report.problems) == 1
    assert (
        "does not answer a plain streaming question: HTTP 400. Unsupported parameter: 'model'"
        in report.problems[0]
    )
    assert report.requests < 20


async def test_the_number_of_requests_is_bounded(monkeypatch):
    assert (await report_of(LLAMACPP)).requests <= asking.MOST_REQUESTS
    monkeypatch.setattr(asking, "MOST_REQUESTS", 12)
    report = await report_of(VLLM)
    assert report.requests == 12
    assert "Not everything was asked: 12 requests were sent before." in report.problems


async def test_the_time_is_bounded():
    report = await report_of(VLLM, budget=30.0)
    assert report.problems == []
    async with Imitation(VLLM) as server, Asker(server.url, budget=0.0) as asker:
        with pytest.raises(Unreachable, match="the 0 s for all probes are over"):
            await examine(asker)


async def test_the_simulator():
    simulator = Simulator(SimulatorSettings(token_interval=0.001))
    await simulator.start()
    try:
        async with Asker(simulator.base_url) as asker:
            report = await examine(asker)
    finally:
        await simulator.aclose()
    assert (report.server, report.profile, report.problems) == ("the simulator", "generic", [])
    assert report.value("reasoning field") == "reasoning_content"
    assert report.value("tool_choice") == "obeyed"
    assert changed(report) == {"stream_usage": "continuous"}
