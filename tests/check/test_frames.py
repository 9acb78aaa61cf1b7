"""Frames: the SSE rules, each fault of framing, agreement with the pinned decoder."""

import json
import random
import re

import pytest

from antiphon.check.frames import read_frames
from antiphon.check.rules import RULES
from check import samples as s
from pipeline import run as pinned

PING = b'event: ping\ndata: {"type":"ping"}\n\n'

BROKEN = [
    (b"\xef\xbb\xbf" + PING, "frame.bom", 1),
    (PING + b'event: x\ndata: {"type":"x","t":"\xff"}\n\n', "frame.utf8", None),
    (PING + b'data: {"type":"ping"}\n\n', "frame.no_event", 2),
    (PING + b'event: x\ndata: {"type":"y"}\n\n', "frame.name", 2),
    (PING + b"event: x\ndata: {\n\n", "frame.json", 2),
    (PING + b"event: x\ndata: [1]\n\n", "frame.object", 2),
    (PING + b"data: [DONE]\n\n", "frame.done", 2),
    (b"id: 1\n" + PING, "frame.field", 1),
    (PING + b"retry: 5\n" + PING, "frame.field", 2),
    (PING + PING[:-1], "frame.unfinished", 2),
    (PING + PING[:-2], "frame.unfinished", 2),
]


@pytest.mark.parametrize(("body", "rule", "at"), BROKEN)
def test_a_fault_of_framing_is_named(body, rule, at):
    _, found = read_frames(body)
    assert [(v.rule, v.at) for v in found] == [(rule, at)]


def test_every_rule_of_framing_has_a_row():
    assert {rule for _, rule, _ in BROKEN} == {rule for rule in RULES if rule.startswith("frame.")}


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_all_three_line_ends(end):
    frames, found = read_frames(s.sse(s.legal(), end))
    assert found == []
    assert [frame.event for frame in frames] == s.legal()
    assert [frame.line for frame in frames[:3]] == [1, 4, 7]


def test_legal_oddities():
    body = b': hello\n\nevent:ping\ndata:{\ndata: "type":\ndata: "ping"}\nother: x\n\n\n'
    frames, found = read_frames(body)
    assert (frames[0].event, frames[0].name, frames[0].line, found) == ({"type": "ping"}, "ping", 3, [])


def test_only_line_ends_end_lines():
    event = {"type": "x", "t": "a\u2028b\u0085c"}
    frames, found = read_frames(f"event: x\ndata: {json.dumps(event, ensure_ascii=False)}\n\n".encode())
    assert ([frame.event for frame in frames], found) == ([event], [])


def test_an_unfinished_frame_is_read_all_the_same():
    frames, _ = read_frames(PING.rstrip())
    assert frames[0].event == {"type": "ping"}


@pytest.mark.parametrize("seed", range(20))
def test_agrees_with_the_pinned_decoder(seed):
    rng = random.Random(seed)
    for _ in range(20):
        events = rng.choice([s.legal(), s.failed(), *s.CORPUS_STREAMS.values()])
        body = s.sse(events, rng.choice(["\n", "\r\n"]))
        at = rng.randrange(len(body))
        body = rng.choice(
            [body, body[:at], body[:at] + body[at + 1 :], body[at:], body[:at] + b"\xff" + body[at:]]
        )
        if re.search(rb"\r(?!\n)", body):
            continue  # a lone CR ends a line here, as the standard says, and not there
        frames, mine = read_frames(body)
        wanted, theirs = pinned.decode_sse(body)
        assert [frame.event for frame in frames if frame.event is not None] == wanted
        assert bool(mine) == bool(theirs), (body[-80:], mine, theirs)
