"""The body of a chat completion request: members, order, what is left out and said so."""

import json
import pathlib

import pytest
from msgspec.structs import replace

from antiphon.core.dialects.chat_request import encode
from antiphon.core.dialects.quirks import (
    GENERIC,
    LLAMACPP,
    MISTRAL,
    OLLAMA,
    OPENAI,
    SGLANG,
    VLLM,
    by_name,
    names,
)
from antiphon.core.surfaces.messages.request import RequestError, parse

REQUESTS = pathlib.Path(__file__).parents[2] / "data" / "requests"
RECORDED = [json.loads(path.read_text())["body"] for path in sorted(REQUESTS.glob("*.json"))]


def request(*messages, **fields):
    user = {"role": "user", "content": "hi"}
    whole = {"model": "m", "max_tokens": 64, "messages": list(messages) or [user], **fields}
    return parse(json.dumps(whole).encode())


def sent(*messages, to=GENERIC, **fields):
    return json.loads(encode(request(*messages, **fields), to).body)


# --- members -------------------------------------------------------------------------------------------


def test_the_smallest_body():
    out = encode(request(), GENERIC)
    assert out.body == (
        b'{"model":"m","max_tokens":64,"stream":true,"stream_options":{"include_usage":true},'
        b'"messages":[{"role":"user","content":"hi"}]}'
    )
    assert (out.ignored, out.degraded, out.stop_sequences) == ((), (), ())
    assert (out.history_tool_ids, out.tool_names) == (frozenset(), {})


def test_the_upstream_is_asked_to_stream_whatever_the_client_wants():
    assert sent(stream=False)["stream"] is sent(stream=True)["stream"] is True


def test_the_model_may_have_another_name_upstream():
    assert json.loads(encode(request(), GENERIC, model="up").body)["model"] == "up"
    assert json.loads(encode(request(), GENERIC, model="").body)["model"] == ""


def test_sampling():
    body = sent(temperature=1, top_p=0.9, stop_sequences=["A", "B"])
    assert (repr(body["temperature"]), body["top_p"], body["stop"]) == ("1", 0.9, ["A", "B"])


def test_top_k_goes_where_it_is_known_and_is_degraded_elsewhere():
    for row in (VLLM, SGLANG, LLAMACPP):
        out = encode(request(top_k=5), row)
        assert json.loads(out.body)["top_k"] == 5
        assert out.degraded == ()
    for row in (GENERIC, OLLAMA, OPENAI):
        out = encode(request(top_k=5), row)
        assert "top_k" not in json.loads(out.body)
        assert out.degraded == ("top_k",)


def test_the_token_limit_has_two_names():
    assert sent()["max_tokens"] == 64
    assert "max_completion_tokens" not in sent()
    assert sent(to=OPENAI)["max_completion_tokens"] == 64
    assert "max_tokens" not in sent(to=OPENAI)


def test_usage_is_asked_for_as_far_as_the_server_goes():
    assert sent()["stream_options"] == {"include_usage": True}
    assert sent(to=VLLM)["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
    assert "stream_options" not in sent(to=MISTRAL)


def test_stop_sequences():
    out = encode(request(stop_sequences=["", "A"]), GENERIC)
    assert json.loads(out.body)["stop"] == ["A"]
    assert out.stop_sequences == ("A",)
    assert out.ignored == ("stop_sequences.*",)
    assert "stop" not in sent(stop_sequences=[])
    assert "stop" not in sent(stop_sequences=[""])
    assert len(sent(stop_sequences=list("ABCDE"))["stop"]) == 5
    with pytest.raises(RequestError, match=r"^stop_sequences: at most 4"):
        encode(request(stop_sequences=list("ABCDE")), OPENAI)
    assert len(sent(stop_sequences=list("ABCD"), to=OPENAI)["stop"]) == 4


def test_nothing_of_the_client_but_its_question_travels():
    out = encode(
        request(
            metadata={"user_id": "secret-1"}, container={"id": "secret-2"}, service_tier="auto", zz="secret-3"
        ),
        VLLM,
    )
    assert b"secret" not in out.body
    assert out.ignored == ("zz", "service_tier", "metadata")
    assert out.degraded == ("container",)


def test_metadata_is_ignored_unless_a_pseudonym_went_out():
    def ignored(row, metadata, pseudonym=str.upper):
        return encode(request(metadata=metadata), row, pseudonym=pseudonym).ignored

    assert ignored(OPENAI, {"user_id": "u"}) == ()
    assert ignored(OPENAI, {"user_id": "u"}, None) == ("metadata",)
    assert ignored(GENERIC, {"user_id": "u"}) == ("metadata",)
    for empty in ({}, {"user_id": None}, {"user_id": ""}, {"user_id": 1}, {"other": "u"}):
        assert ignored(OPENAI, empty) == ("metadata",)


# --- structured output -------------------------------------------------------------------------------------

FORMAT = {"type": "json_schema", "schema": {"type": "object", "properties": {}}}


@pytest.mark.parametrize("fields", [{"output_config": {"format": FORMAT}}, {"output_format": FORMAT}])
def test_a_json_schema_for_the_answer(fields):
    wanted = {"name": "output", "schema": FORMAT["schema"], "strict": True}
    assert sent(**fields)["response_format"] == {"type": "json_schema", "json_schema": wanted}
    without = replace(GENERIC, response_format=False)
    out = encode(request(**fields), without)
    assert b"response_format" not in out.body
    assert out.degraded == ("output_config.format",)


def test_the_newer_of_two_formats_counts():
    other = {"type": "json_schema", "schema": {"type": "array"}}
    out = encode(request(output_config={"format": FORMAT}, output_format=other), GENERIC)
    assert json.loads(out.body)["response_format"]["json_schema"]["schema"] == FORMAT["schema"]
    assert out.ignored == ("output_format",)


# --- thinking -------------------------------------------------------------------------------------------------


def test_the_generic_profile_says_nothing_about_thinking():
    plain = sent()
    for thinking in (
        {"type": "adaptive"},
        {"type": "enabled", "budget_tokens": 2048},
        {"type": "between_tools"},
        {"type": "new"},
    ):
        out = encode(request(thinking=thinking, output_config={"effort": "high"}), GENERIC)
        assert json.loads(out.body) == plain
        assert out.ignored == ("output_config.effort", "thinking")
        assert out.degraded == ()


def test_thinking_that_cannot_be_turned_off_is_degraded():
    out = encode(request(thinking={"type": "disabled"}), GENERIC)
    assert json.loads(out.body) == sent()
    assert out.degraded == ("thinking",)


def test_thinking_is_turned_off_where_there_is_a_switch():
    off = {"chat_template_kwargs": {"enable_thinking": False}}
    for row, members in ((VLLM, off), (SGLANG, off), (LLAMACPP, off), (OLLAMA, {"reasoning_effort": "none"})):
        out = encode(request(thinking={"type": "disabled"}, output_config={"effort": "high"}), row)
        assert members.items() <= json.loads(out.body).items()
        assert json.loads(out.body).get("reasoning_effort") == members.get("reasoning_effort")
        assert (out.ignored, out.degraded) == (("output_config.effort",), ())


def test_effort_goes_as_the_servers_own_word():
    for effort, word in (("low", "low"), ("high", "high"), ("xhigh", "high"), ("max", "high")):
        assert sent(to=VLLM, output_config={"effort": effort})["reasoning_effort"] == word
    out = encode(request(output_config={"effort": "heroic"}), VLLM)
    assert b"reasoning_effort" not in out.body
    assert out.ignored == ("output_config.effort",)


def test_a_budget_goes_where_there_is_a_field_for_it():
    thinking = {"type": "enabled", "budget_tokens": 2048}
    assert sent(to=LLAMACPP, thinking=thinking)["reasoning_budget_tokens"] == 2048
    assert "budget" not in json.dumps(sent(to=VLLM, thinking=thinking))


# --- prefill ------------------------------------------------------------------------------------------------------


def test_a_trailing_assistant_turn_is_continued():
    turns = ({"role": "user", "content": "Count"}, {"role": "assistant", "content": "1, 2,"})
    flags = {"continue_final_message": True, "add_generation_prompt": False}
    for row in (VLLM, SGLANG):
        body = sent(*turns, to=row)
        assert flags.items() <= body.items()
        assert body["messages"][-1] == {"role": "assistant", "content": "1, 2,"}
        assert not flags.keys() & sent(to=row).keys()
    for row in (GENERIC, LLAMACPP):
        body = sent(*turns, to=row)
        assert body["messages"][-1] == {"role": "assistant", "content": "1, 2,"}
        assert not flags.keys() & body.keys()
    body = sent(*turns, to=MISTRAL)
    assert body["messages"][-1] == {"role": "assistant", "content": "1, 2,", "prefix": True}
    assert "prefix" not in json.dumps(sent(*turns, {"role": "user", "content": "go on"}, to=MISTRAL))


def test_a_client_is_told_where_its_last_turn_may_not_be_continued():
    turns = (
        {"role": "user", "content": "Count"},
        {"role": "assistant", "content": "1,"},
        {"role": "assistant", "content": "2,"},
        {"role": "assistant", "content": ""},
    )
    told = {row.name for row in map(by_name, names()) if encode(request(*turns), row).degraded}
    continue_it = {"vllm", "vllm-0.11", "sglang", "llamacpp", "kimi", "qwen", "mistral"}
    assert told == set(names()) - continue_it
    assert encode(request(*turns), GENERIC).degraded == ("messages.2",)
    answered = encode(request(*turns, {"role": "user", "content": "go on"}), GENERIC)
    assert answered.degraded == ()


def test_an_empty_last_turn_is_no_prefill():
    user = {"role": "user", "content": "q"}
    for last in ([], [{"type": "text", "text": ""}]):
        turns = (user, {"role": "assistant", "content": last})
        assert "continue_final_message" not in sent(*turns, to=VLLM)
        assert encode(request(*turns), GENERIC).degraded == ()


# --- the estimate ----------------------------------------------------------------------------------------------------


def test_the_estimate_grows_with_what_is_sent():
    text = "The quick brown fox jumps over the lazy dog. " * 100  # 4500 bytes, about 1000 tokens
    small = encode(request(), GENERIC).input_estimate
    large = encode(request({"role": "user", "content": text}), GENERIC).input_estimate
    assert 1 <= small < 40
    assert 1000 < large < 1500
    tool = {"name": "f", "description": text, "input_schema": {"type": "object", "properties": {}}}
    assert encode(request(tools=[tool]), GENERIC).input_estimate > 1000


def test_an_image_counts_flat():
    def estimate(size):
        source = {"type": "base64", "media_type": "image/png", "data": "A" * size}
        return encode(
            request({"role": "user", "content": [{"type": "image", "source": source}]}), GENERIC
        ).input_estimate

    assert estimate(4) == estimate(400_000) > 1000


# --- real requests -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", range(len(RECORDED)))
def test_a_recorded_turn_is_carried_without_degradation(number):
    turn = RECORDED[number]
    out = encode(parse(json.dumps(turn).encode()), GENERIC)
    assert out.degraded == ()
    assert set(out.ignored) == {
        "metadata",
        "context_management",
        "messages.*.content.*.cache_control",
        "system.*.cache_control",
        "system.*",
        "output_config.effort",
        "thinking",
    }
    body = json.loads(out.body)
    assert set(body) == {"model", "max_tokens", "stream", "stream_options", "tools", "messages"}
    assert b"x-anthropic-billing-header" not in out.body
    assert b"device_id" not in out.body
    assert [tool["function"]["name"] for tool in body["tools"]] == [tool["name"] for tool in turn["tools"]]
    assert [tool["function"]["parameters"] for tool in body["tools"]] == [
        tool["input_schema"] for tool in turn["tools"]
    ]


def test_the_second_and_third_turn_begin_with_the_bytes_of_the_one_before():
    assert len(RECORDED) == 3
    bodies = [encode(parse(json.dumps(turn).encode()), GENERIC).body for turn in RECORDED]
    for earlier, later in zip(bodies, bodies[1:], strict=False):
        assert later.startswith(earlier.removesuffix(b"]}"))
        assert len(later) > len(earlier)


def test_the_third_recorded_turn_as_messages():
    body = json.loads(encode(parse(json.dumps(RECORDED[2]).encode()), GENERIC).body)
    roles = [message["role"] for message in body["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "assistant", "tool", "tool"]
    first, second = (message for message in body["messages"] if message["role"] == "assistant")
    assert first["reasoning_content"] == RECORDED[2]["messages"][2]["content"][0]["thinking"]
    assert [call["id"] for call in second["tool_calls"]] == ["call_b/2", "toolu_c3"]
    assert second["content"] is None
    note = RECORDED[2]["messages"][1]["content"]
    assert body["messages"][1]["content"].endswith(f"<system-reminder>\n{note}\n</system-reminder>")
