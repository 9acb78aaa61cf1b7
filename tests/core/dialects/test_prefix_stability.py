"""What goes upstream is byte-stable from turn to turn, for every row, so that a server's prefix cache holds.

The body of turn n without its closing is the beginning of turn n+1's, from the tools on. Rows whose servers
take `cache_control` are compared without these marks: they move on by their nature and are no prompt.
"""

import json
import pathlib

import pytest
from msgspec.structs import replace

from antiphon.core.dialects.chat_request import encode
from antiphon.core.dialects.overrides import Overrides
from antiphon.core.dialects.quirks import GENERIC, by_name, names
from antiphon.core.seal import Sealer
from antiphon.core.surfaces.messages.request import parse
from turns import assistant, call, picture, result, system, text, user

REQUESTS = pathlib.Path(__file__).parents[2] / "data" / "requests"
RECORDED = [json.loads(path.read_text())["body"] for path in sorted(REQUESTS.glob("*.json"))]
SEALER = Sealer(b"k" * 32)
MARK = {"cache_control": {"type": "ephemeral"}}
ROWS = [
    *(row for row in map(by_name, names()) if row.speaks == "chat"),
    replace(GENERIC, name="in-place", system_turns="in_place"),
]
LONG_NAME = "mcp__a_server_with_a_long_name__" + "n" * 60


def billing(number):
    return text(f"x-anthropic-billing-header: cc_version=2.1.{number}; cch={number:05};")


def conversation(row):
    """Bodies of a conversation, as a client keeps one: marks move, headers change, everything is appended."""
    state = SEALER.seal(row.name, "m", {"reasoning_details": [{"type": "reasoning.encrypted", "data": "d"}]})
    thought = {"type": "thinking", "thinking": "Hm.", "signature": state}
    first = (text("<system-reminder>context</system-reminder>"), text("What is in a.txt and b.txt?"))
    calls = (call("toolu_1", "read", path="a.txt"), call("functions.read:1", LONG_NAME, path="b.txt"))
    second = (
        result("toolu_1", "A"),
        result("functions.read:1", [text("B"), picture()], is_error=True),
    )
    third = (text("And c.txt?"),)
    turns = [
        (user(*marked(first)), system("Skills: none.")),
        (
            user(*first),
            system("Skills: none."),
            assistant(thought, text("I look."), *calls),
            user(*marked(second)),
        ),
        (
            user(*first),
            system("Skills: none."),
            assistant(thought, text("I look."), *calls),
            user(*second),
            assistant(thought, text("Done.")),
            user(*marked(third)),
        ),
        (
            user(*first),
            system("Skills: none."),
            assistant(thought, text("I look."), *calls),
            user(*second),
            assistant(thought, text("Done.")),
            user(*third),
            assistant(call("call_9", "read", path="c.txt")),
            user(*marked([result("call_9")])),
        ),
    ]
    tools = [{"name": name, "input_schema": {"type": "object"}} for name in ("read", LONG_NAME, "a")]
    for number, messages in enumerate(turns):
        yield {
            "model": "m",
            "max_tokens": 1000 - number,  # as where an answer's room is what the prompt leaves
            "system": [billing(number), text("You write code."), text("Rules.") | MARK],
            "tools": tools,
            "messages": list(messages),
            "thinking": {"type": "adaptive"},
            "output_config": {"effort": "high"},
            "metadata": {"user_id": '{"session_id": "s"}'},
        }


def marked(blocks):
    return [*blocks[:-1], blocks[-1] | MARK]


def bodies(row, requests, overrides=None):
    for request in requests:
        yield encode(
            parse(json.dumps(request).encode()),
            row,
            unseal=lambda sealed: SEALER.open(row.name, "m", sealed),
            pseudonym=SEALER.pseudonym,
            overrides=overrides,
        ).body


def prompt(body, row):
    """The body from the tools on, without its closing and without marks."""
    start = body.index(b'"tools":')
    assert body.index(b'"messages":') > start
    if row.cache_control:
        for value in (b'{"type":"ephemeral"}', b'{"type": "ephemeral"}'):
            body = body.replace(b',"cache_control":' + value, b"")
    return body[start:].removesuffix(b"]}")


def check(sent, row):
    prompts = [prompt(body, row) for body in sent]
    for earlier, later in zip(prompts, prompts[1:], strict=False):
        assert later.startswith(earlier)
        assert len(later) > len(earlier)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_turn_begins_with_the_bytes_of_the_one_before(row):
    sent = list(bodies(row, conversation(row)))
    assert len(sent) == 4
    check(sent, row)
    assert not any(b"billing-header" in body for body in sent)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_recorded_turns(row):
    sent = list(bodies(row, RECORDED))
    assert len(sent) == 3
    check(sent, row)
    assert not any(b"billing-header" in body for body in sent)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_what_the_operator_sets_is_stable_too(row):
    set_ = Overrides(
        temperature=0.2, thinking=True, effort="low", system_prefix="Plain.", chat_template_kwargs={"a": 1}
    )
    sent = list(bodies(row, conversation(row), set_))
    check(sent, row)
    assert all(b"Plain." in body for body in sent)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_before_the_tools_only_the_limit_of_the_answer_changes(row):
    heads = []
    for body in bodies(row, conversation(row)):
        decoded = json.loads(body)
        del decoded["messages"], decoded[row.token_limit_field]
        heads.append(json.dumps(decoded))
    assert len(set(heads)) == 1


def test_the_same_request_is_the_same_bytes():
    for row in ROWS:
        assert list(bodies(row, conversation(row))) == list(bodies(row, conversation(row)))


def test_a_mark_that_moves_is_seen_where_it_is_understood():
    def marks(row):
        sent = [json.loads(body) for body in bodies(row, conversation(row))]
        return [json.dumps(body["messages"]).count("cache_control") for body in sent]

    assert marks(by_name("openrouter")) == marks(by_name("qwen")) == [2, 2, 2, 1]  # the last result is empty
    assert marks(GENERIC) == [0, 0, 0, 0]


def test_a_session_keeps_its_cache_key():
    row = by_name("openai")
    keys = {json.loads(body)["prompt_cache_key"] for body in bodies(row, conversation(row))}
    assert keys == {SEALER.pseudonym('{"session_id": "s"}')}
    (other,) = bodies(row, [next(conversation(row)) | {"metadata": {"user_id": '{"session_id": "t"}'}}])
    assert json.loads(other)["prompt_cache_key"] not in keys
