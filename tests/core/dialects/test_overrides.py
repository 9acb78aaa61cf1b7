"""What the operator sets for a model, whatever the client says; and what became of the client's."""

import json

import msgspec
import pytest

from antiphon.core.dialects.chat_request import encode
from antiphon.core.dialects.overrides import Overrides, overridden
from antiphon.core.dialects.quirks import DEEPSEEK, GENERIC, OLLAMA, QWEN, VLLM
from antiphon.core.surfaces.messages.request import parse


def request(**fields):
    user = {"role": "user", "content": "hi"}
    return parse(json.dumps({"model": "m", "max_tokens": 64, "messages": [user], **fields}).encode())


def outcome(overrides, to=VLLM, **fields):
    out = encode(request(**fields), to, overrides=overrides)
    return json.loads(out.body), out


def test_nothing_set_changes_nothing():
    plain = request(temperature=0.5, thinking={"type": "adaptive"}, output_config={"effort": "high"})
    assert overridden(plain, Overrides()) is plain
    assert encode(plain, VLLM, overrides=Overrides()) == encode(plain, VLLM)


@pytest.mark.parametrize("name", ["temperature", "top_p"])
def test_sampling(name):
    set_ = Overrides(**{name: 0.25})
    for asked, lost in (({}, ()), ({name: 0.25}, ()), ({name: 0.5}, (name,))):
        body, out = outcome(set_, **asked)
        assert body[name] == 0.25
        assert (out.ignored, out.degraded) == (lost, ())
    assert name not in outcome(Overrides())[0]


def test_max_tokens_is_a_cap():
    body, out = outcome(Overrides(max_tokens=32))
    assert (body["max_tokens"], out.ignored) == (32, ("max_tokens",))
    body, out = outcome(Overrides(max_tokens=64))
    assert (body["max_tokens"], out.ignored) == (64, ())
    assert overridden(request(max_tokens=0), Overrides(max_tokens=32)).warms_cache_only


def test_thinking_off():
    off = {"enable_thinking": False}
    for asked in ({}, {"thinking": {"type": "disabled"}}):
        body, out = outcome(Overrides(thinking=False), **asked)
        assert (body["chat_template_kwargs"], out.ignored) == (off, ())
    body, out = outcome(Overrides(thinking=False), thinking={"type": "enabled", "budget_tokens": 2048})
    assert (body["chat_template_kwargs"], out.ignored) == (off, ("thinking",))


def test_thinking_off_takes_the_effort_with_it():
    body, out = outcome(Overrides(thinking=False, effort="high"), output_config={"effort": "low"})
    assert "reasoning_effort" not in body
    assert out.ignored == ("output_config.effort",)
    assert outcome(Overrides(thinking=False, effort="high"))[1].ignored == ()


def test_thinking_that_cannot_be_turned_off_is_told():
    assert outcome(Overrides(thinking=False), GENERIC)[1].degraded == ("thinking",)


def test_thinking_on():
    body, out = outcome(Overrides(thinking=True), thinking={"type": "disabled"})
    assert (body["chat_template_kwargs"], out.ignored) == ({"enable_thinking": True}, ("thinking",))
    for asked in ({}, {"thinking": {"type": "adaptive"}}):
        body, out = outcome(Overrides(thinking=True), QWEN, **asked)
        assert (body["enable_thinking"], out.ignored) == (True, ())
    enabled = {"type": "enabled", "budget_tokens": 2048}
    assert outcome(Overrides(thinking=True), QWEN, thinking=enabled)[0]["thinking_budget"] == 2048


def test_effort():
    body, out = outcome(Overrides(effort="max"), DEEPSEEK)
    assert (body["reasoning_effort"], out.ignored) == ("max", ())
    body, out = outcome(Overrides(effort="low"), DEEPSEEK, output_config={"effort": "high"})
    assert (body["reasoning_effort"], out.ignored) == ("low", ("output_config.effort",))
    assert outcome(Overrides(effort="low"), DEEPSEEK, output_config={"effort": "low"})[1].ignored == ()
    assert "reasoning_effort" not in outcome(Overrides(), DEEPSEEK)[0]


def test_an_effort_leaves_the_form_of_the_answer():
    wanted = {"format": {"type": "json_schema", "schema": {"type": "object"}}, "effort": "low"}
    body, _ = outcome(Overrides(effort="high"), output_config=wanted)
    assert (body["reasoning_effort"], body["response_format"]["type"]) == ("high", "json_schema")


def test_template_arguments_are_merged_and_win():
    set_ = Overrides(chat_template_kwargs={"thinking": True, "a.b": 1})
    assert outcome(set_)[0]["chat_template_kwargs"] == {"thinking": True, "a.b": 1}
    disabled = {"type": "disabled"}
    body, _ = outcome(set_, thinking=disabled)
    assert body["chat_template_kwargs"] == {"enable_thinking": False, "thinking": True, "a.b": 1}
    body, _ = outcome(Overrides(chat_template_kwargs={"enable_thinking": True}), thinking=disabled)
    assert body["chat_template_kwargs"] == {"enable_thinking": True}
    assert outcome(set_, OLLAMA)[0]["chat_template_kwargs"] == {"thinking": True, "a.b": 1}
    assert VLLM.thinking_off == (("chat_template_kwargs", {"enable_thinking": False}),)


def test_the_prefix_stands_before_the_clients_system_prompt():
    def system(**fields):
        return outcome(Overrides(system_prefix="Speak plainly."), **fields)[0]["messages"][0]["content"]

    assert system() == "Speak plainly."
    assert system(system="S") == "Speak plainly.\n\nS"
    billing = "x-anthropic-billing-header: cc_version=1;"
    blocks = [{"type": "text", "text": billing}, {"type": "text", "text": "S"}]
    assert system(system=blocks) == "Speak plainly.\n\nS"
    assert outcome(Overrides())[0]["messages"][0]["role"] == "user"


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": 3},
        {"top_p": -1},
        {"effort": "huge"},
        {"max_tokens": 0},
        {"thinking": "yes"},
        {"tempature": 1},
    ],
)
def test_wrong_values_are_refused_where_they_are_read(wrong):
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(wrong, Overrides)
