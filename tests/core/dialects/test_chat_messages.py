"""The conversation: order, merging, tool results, ids, thinking."""

import json

import pytest
from msgspec.structs import replace

from antiphon.core import tool_ids
from antiphon.core.dialects.chat_request import encode
from antiphon.core.dialects.quirks import GENERIC, MISTRAL, OLLAMA, OPENAI, VLLM
from antiphon.core.surfaces.messages.request import parse
from turns import assistant, call, outcome, picture, refusal, result, said, sent, system, text, user

# --- system ------------------------------------------------------------------------------------------------


def test_system_as_a_string_and_as_blocks():
    assert sent(user("q"), system="S") == [{"role": "system", "content": "S"}, said("q")]
    blocks = [text("one"), text(""), text("two")]
    assert sent(user("q"), system=blocks)[0] == {"role": "system", "content": "one\n\ntwo"}
    for nothing in ("", [], [text("")]):
        assert sent(user("q"), system=nothing) == [said("q")]


@pytest.mark.parametrize("rest", ["", "\nThe rest"])
def test_the_billing_line_is_left_out(rest):
    line = "x-anthropic-billing-header: cc_version=2.1.197; cch=1;" + rest
    for value in (line, [text(line)]):
        out = outcome(user("q"), system=value)
        assert b"billing" not in out.body
        assert (b"The rest" in out.body) == bool(rest)
        assert (out.ignored, out.degraded) == (("system.*",), ())
    assert sent(user("q"), system=[text(line), text("S")])[0]["content"].endswith("S")


def test_a_system_turn_becomes_text_of_the_neighbouring_user_turn():
    wrapped = "<system-reminder>\nnote\n</system-reminder>"
    assert sent(user("q"), system("note")) == [said(f"q\n{wrapped}")]
    assert sent(user("q"), system("note"), assistant("a"), user("b")) == [
        said(f"q\n{wrapped}"),
        {"role": "assistant", "content": "a"},
        said("b"),
    ]
    assert sent(user("q"), assistant("a"), system("note"), user("b"))[2] == said(f"{wrapped}\nb")


def test_a_text_that_is_wrapped_already_is_not_wrapped_again():
    note = "\n<system-reminder>x</system-reminder>"
    assert sent(user("q"), system(text(note))) == [said("q\n" + note)]


def test_system_turns_before_the_conversation_are_the_system_prompt():
    assert sent(system("A"), system(text("B")), user("q"), system="S")[0] == {
        "role": "system",
        "content": "S\n\nA\n\nB",
    }


def test_a_system_turn_never_comes_between_a_call_and_its_result():
    turns = (user("q"), assistant(call()), system("note"), user(result(content="r"), text("go")))
    merged = sent(*turns)
    assert [message["role"] for message in merged] == ["user", "assistant", "tool", "user"]
    assert merged[3] == said("<system-reminder>\nnote\n</system-reminder>\ngo")
    in_place = sent(*turns, to=replace(GENERIC, system_turns="in_place"))
    assert [message["role"] for message in in_place] == ["user", "assistant", "tool", "system", "user"]
    assert (in_place[3]["content"], in_place[4]["content"]) == ("note", "go")


FOUND = {"type": "search_result", "source": "s", "title": "t", "content": [text("Found.")]}
SUMMARY = {"type": "compaction", "content": "So far: all well."}


def paper(*content):
    return {"type": "document", "source": {"type": "content", "content": list(content)}}


@pytest.mark.parametrize(
    ("block", "words"),
    [
        (paper(text("All of it.")), "<document>\nAll of it.\n</document>"),
        (
            FOUND,
            "<search_result>\n<source>s</source>\n<title>t</title>\nFound.\n</search_result>",
        ),
        (SUMMARY, "So far: all well."),
    ],
)
def test_a_system_turn_may_hold_whatever_is_text(block, words):
    in_place = replace(GENERIC, system_turns="in_place")
    for turns, to, expected in (
        ((user("q"), system(block)), GENERIC, [said(f"q\n<system-reminder>\n{words}\n</system-reminder>")]),
        ((user("q"), system(block)), in_place, [said("q"), {"role": "system", "content": words}]),
        ((system(block), user("q")), GENERIC, [{"role": "system", "content": words}, said("q")]),
    ):
        assert sent(*turns, to=to) == expected
        assert outcome(*turns, to=to).degraded == ()


def test_an_image_of_a_system_turn_stands_in_the_user_turn_or_is_refused():
    parts = sent(user("q"), system(picture(), text("n")))[0]["content"]
    assert [part["type"] for part in parts] == ["text", "image_url", "text"]
    refused = "image: a system message can hold text only"
    in_place = replace(GENERIC, system_turns="in_place")
    for block in (picture(), paper(text("t"), picture())):
        assert refusal(system(text("n"), block), user("q")) == f"messages.0.content.1: {refused}"
        assert refusal(user("q"), system(block), to=in_place) == f"messages.1.content.0: {refused}"
    assert refusal(user("q"), system(picture()), to=replace(GENERIC, images="none")).startswith(
        "messages.1.content.0: image: "
    )


def test_what_a_system_turn_cannot_hold_is_refused_by_its_path():
    pdf = {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="}
    for block in (
        {"type": "document", "source": pdf},
        {"type": "container_upload", "file_id": "file_1"},
        {"type": "new_block"},
        {"type": "thinking", "thinking": "t"},
        call(),
        result(),
    ):
        assert refusal(user("q"), system(text("n"), block)).startswith("messages.1.content.1")


def test_what_no_model_reads_is_ignored_in_a_system_turn():
    fallback = {"type": "fallback", "from": {"model": "a"}, "to": {"model": "b"}}
    out = outcome(user("q"), system(fallback))
    assert (out.ignored, out.degraded) == (("messages.*.content.*",), ())


# --- turns ---------------------------------------------------------------------------------------------------


def test_texts_of_one_turn_are_one_string():
    assert sent(user(text("a"), text(""), text("b"))) == [said("a\nb")]


def test_neighbouring_turns_of_one_side_are_one_message():
    assert sent(user("a"), user("b")) == [said("a\nb")]
    assert sent(user("q"), assistant("a"), assistant(text("b"), call()), user(result()))[1] == {
        "role": "assistant",
        "content": "a\nb",
        "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
    }


def test_empty_turns_leave_no_trace():
    assert sent(user("a"), assistant(), user(text("b"))) == [said("a\nb")]
    assert sent(user("a"), assistant(text("")), user(text("b"))) == [said("a\nb")]
    assert refusal(user("")) == "messages: at least one message with content is required"
    assert refusal(system("only")) == "messages: at least one message with content is required"


def test_a_leading_assistant_turn_passes():
    assert sent(assistant("a"), user("b")) == [{"role": "assistant", "content": "a"}, said("b")]


def test_the_next_turn_begins_with_the_bytes_of_this_one():
    turns = [
        user(text("q"), text("r")),
        system("note"),
        assistant(
            {"type": "thinking", "thinking": "t", "signature": "s"}, text("x"), call("a", x=1), call("b")
        ),
        user(result("b", "rb"), result("a", [text("ra"), picture()]), text("go")),
        assistant("done"),
        user("more"),
        assistant(call("toolu_apAABh")),
        user(result("toolu_apAABh")),
    ]
    ends = [2, 4, 6, 8]
    bodies = [outcome(*turns[:end]).body.removesuffix(b"]}") for end in ends]
    for earlier, later in zip(bodies, bodies[1:], strict=False):
        assert later.startswith(earlier)


# --- tool calls and results -------------------------------------------------------------------------------------


def test_a_turn_that_only_calls_has_null_content():
    assert sent(user("q"), assistant(text(""), call()), user(result()))[1]["content"] is None
    row = replace(GENERIC, null_content="empty")
    assert sent(user("q"), assistant(text(""), call()), user(result()), to=row)[1]["content"] == ""


def test_arguments_are_the_same_json_without_white_space():
    block = '{"type":"tool_use","id":"a","name":"f","input": { "z" : 1.00000000000000000001, "a":[ 12345678901234567890123, "x  y" ] }}'
    turns = '{"role":"assistant","content":[%s]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"a"}]}'
    whole = '{"model":"m","max_tokens":1,"messages":[' + turns % block + "]}"
    message = json.loads(encode(parse(whole.encode()), GENERIC).body)["messages"][0]
    assert (
        message["tool_calls"][0]["function"]["arguments"]
        == '{"z":1.00000000000000000001,"a":[12345678901234567890123,"x  y"]}'
    )


def test_a_call_without_input_has_empty_arguments():
    for block in (
        {"type": "tool_use", "id": "a", "name": "f"},
        {"type": "tool_use", "id": "a", "name": "f", "input": None},
    ):
        messages = sent(user("q"), assistant(block), user(result()))
        assert messages[1]["tool_calls"][0]["function"]["arguments"] == "{}"


def test_results_come_first_and_in_the_order_of_the_calls():
    messages = sent(
        user("q"),
        assistant(call("a"), call("b")),
        user(text("wait"), result("b", "rb"), result("a", "ra"), text("go")),
    )
    assert messages[2:] == [
        {"role": "tool", "tool_call_id": "a", "content": "ra"},
        {"role": "tool", "tool_call_id": "b", "content": "rb"},
        said("wait\ngo"),
    ]


def test_results_may_come_in_several_turns():
    messages = sent(
        user("q"), assistant(call("a"), call("b")), user(result("a", "ra")), user(result("b", "rb"))
    )
    assert [message.get("tool_call_id") for message in messages] == [None, None, "a", "b"]


@pytest.mark.parametrize(
    ("content", "string"),
    [
        (None, ""),
        ("", ""),
        ([], ""),
        ("x", "x"),
        ([text("x"), text("y")], "x\ny"),
        ([{"type": "tool_reference", "tool_name": "T"}], "tool T is now available"),
        (
            [{"type": "search_result", "source": "s", "title": "t", "content": [text("c")]}],
            "<search_result>\n<source>s</source>\n<title>t</title>\nc\n</search_result>",
        ),
    ],
)
def test_what_a_result_becomes(content, string):
    assert sent(user("q"), assistant(call()), user(result("a", content)))[2]["content"] == string


def test_an_error_is_marked():
    assert (
        sent(user("q"), assistant(call()), user(result("a", "boom", is_error=True)))[2]["content"]
        == "Error: boom"
    )
    assert (
        sent(user("q"), assistant(call()), user(result("a", "fine", is_error=False)))[2]["content"] == "fine"
    )


def test_images_of_results_follow_after_all_results():
    messages = sent(
        user("q"),
        assistant(call("a"), call("b")),
        user(result("a", [text("see"), picture()]), result("b", "rb"), text("go")),
    )
    assert messages[2:4] == [
        {"role": "tool", "tool_call_id": "a", "content": "see\n[image]"},
        {"role": "tool", "tool_call_id": "b", "content": "rb"},
    ]
    assert messages[4] == said(
        [{"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}, text("go")]
    )


def test_images_are_put_where_they_were_whatever_the_texts_are():
    pictures = [picture("QQ=="), picture("Qg==")]
    (message,) = sent(user(text("a\0"), pictures[0], text("\0\0"), pictures[1]))
    assert message["content"] == [
        text("a\0"),
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,QQ=="}},
        text("\0\0"),
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,Qg=="}},
    ]


ORPHAN = "messages.{}: unexpected `tool_use_id` found in `tool_result` blocks: {}. Each `tool_result` block must have a corresponding `tool_use` block in the previous message."
UNANSWERED = "messages.{}: `tool_use` ids were found without `tool_result` blocks immediately after: {}. Each `tool_use` block must have a corresponding `tool_result` block in the next message."


def test_calls_and_results_must_pair():
    assert refusal(user(result("gone", "r"))) == ORPHAN.format("0.content.0", "gone")
    assert refusal(user("q"), assistant("a"), user(text("x"), result("b"))) == ORPHAN.format(
        "2.content.1", "b"
    )
    assert refusal(user("q"), assistant(call("a"), call("b")), user(result("a"))) == UNANSWERED.format(1, "b")
    assert refusal(user("q"), assistant(call("a"), call("b")), user("no")) == UNANSWERED.format(1, "a, b")
    assert refusal(
        user("q"), assistant(call()), user(result()), assistant("x"), user(result())
    ) == ORPHAN.format("4.content.0", "a")
    assert "multiple `tool_result` blocks with id: a" in refusal(
        user("q"), assistant(call()), user(result(), result())
    )
    assert "ids must be unique: a" in refusal(user("q"), assistant(call(), call()), user(result()))
    assert "ids must be unique: a" in refusal(user("q"), assistant(call()), assistant(call()), user(result()))


def test_a_last_turn_that_calls_is_refused_too():
    calls = (user("q"), assistant(text("x"), call("a")))
    assert refusal(*calls) == UNANSWERED.format(1, "a")
    assert refusal(*calls, assistant("y")) == UNANSWERED.format(1, "a")
    assert refusal(*calls, user("")) == UNANSWERED.format(1, "a")
    assert refusal(*calls, system("n")) == UNANSWERED.format(1, "a")


def test_blocks_on_the_wrong_side_are_refused():
    assert (
        refusal(user(call())) == "messages.0.content.0: `tool_use` blocks can only be in `assistant` messages"
    )
    assert refusal(user({"type": "thinking", "thinking": "t"})).startswith("messages.0.content.0: `thinking`")
    assert refusal(user("q"), assistant(result())).startswith("messages.1.content.0: `tool_result`")


# --- ids ---------------------------------------------------------------------------------------------------------


def zeros(count):
    return bytes(count)


def test_a_wrapped_id_is_unwrapped_on_both_sides():
    client = tool_ids.outgoing("functions.f:0", taken=(), entropy=zeros)
    out = outcome(user("q"), assistant(call(client)), user(result(client, "r")))
    messages = json.loads(out.body)["messages"]
    assert messages[1]["tool_calls"][0]["id"] == messages[2]["tool_call_id"] == "functions.f:0"
    assert out.history_tool_ids == {client}


def test_an_id_that_an_upstream_repeats_stays_apart():
    again = tool_ids.outgoing("call_0", taken={"call_0"}, entropy=zeros)
    third = tool_ids.outgoing("call_0", taken={"call_0", again}, entropy=lambda n: b"\1" * n)
    turns = (
        *(user("q"), assistant(call("call_0")), user(result("call_0"))),
        *(assistant(call(again)), user(result(again)), assistant(call(third)), user(result(third))),
    )
    ids = [message["tool_call_id"] for message in sent(*turns) if message["role"] == "tool"]
    assert ids == ["call_0", again, third]


def test_an_id_that_a_client_repeats_in_a_later_turn_passes():
    messages = sent(user("q"), assistant(call()), user(result()), assistant(call()), user(result()))
    assert [message["tool_call_id"] for message in messages if message["role"] == "tool"] == ["a", "a"]


def test_nine_alphanumerics_where_a_server_demands_them():
    turns = (
        user("q"),
        assistant(call("toolu_01A"), call("Ab3Ab3Ab3")),
        user(result("toolu_01A"), result("Ab3Ab3Ab3")),
    )
    messages = sent(*turns, to=MISTRAL)
    made, kept = (item["id"] for item in messages[1]["tool_calls"])
    assert kept == "Ab3Ab3Ab3"
    assert len(made) == 9
    assert made.isalnum()
    assert [message["tool_call_id"] for message in messages[2:]] == [made, kept]
    assert sent(*turns, to=MISTRAL) == messages
    assert sent(*turns)[1]["tool_calls"][0]["id"] == "toolu_01A"


# --- thinking ------------------------------------------------------------------------------------------------------

THOUGHT = {"type": "thinking", "thinking": "t", "signature": "sealed"}
REDACTED = {"type": "redacted_thinking", "data": "ZZ"}


def test_reasoning_goes_back_on_turns_that_call():
    out = outcome(user("q"), assistant(THOUGHT, REDACTED, THOUGHT, call()), user(result()))
    message = json.loads(out.body)["messages"][1]
    assert message["reasoning_content"] == "t\nt"
    assert "reasoning" not in message
    assert b"sealed" not in out.body
    assert b"ZZ" not in out.body
    assert "messages.*.content.*" in out.ignored
    assert out.degraded == ()


def test_reasoning_of_other_turns_is_left_out():
    out = outcome(user("q"), assistant(THOUGHT, text("a")), user("next"))
    assert json.loads(out.body)["messages"][1] == {"role": "assistant", "content": "a"}
    assert (out.ignored, out.degraded) == (("messages.*.content.*.thinking",), ())


def test_a_turn_of_thinking_alone_leaves_no_trace_but_joins_its_calls():
    assert sent(user("q"), assistant(THOUGHT), user("next")) == [said("q\nnext")]
    assert (
        sent(user("q"), assistant(THOUGHT), assistant(call()), user(result()))[1]["reasoning_content"] == "t"
    )


def test_thinking_without_text_sends_nothing():
    omitted = {"type": "thinking", "thinking": "", "signature": "x"}
    assert "reasoning_content" not in sent(user("q"), assistant(omitted, call()), user(result()))[1]
    assert sent(user("q"), assistant({"type": "thinking"}, text("a")), user("b"))[1]["content"] == "a"


def test_each_server_has_its_own_names_and_times_for_reasoning():
    calling = (user("q"), assistant(THOUGHT, call()), user(result()))
    plain = (user("q"), assistant(THOUGHT, text("a")), user("b"))
    message = sent(*calling, to=VLLM)[1]
    assert (message["reasoning_content"], message["reasoning"]) == ("t", "t")
    assert "reasoning_content" not in sent(*calling, to=OLLAMA)[1]
    assert sent(*calling, to=OLLAMA)[1]["reasoning"] == "t"
    assert not {"reasoning", "reasoning_content"} & sent(*calling, to=OPENAI)[1].keys()
    always = replace(GENERIC, reasoning_when="always")
    assert sent(*plain, to=always)[1]["reasoning_content"] == "t"
    assert sent(user("q"), assistant(THOUGHT), user("b"), to=always)[1] == {
        "role": "assistant",
        "content": "",
        "reasoning_content": "t",
    }
