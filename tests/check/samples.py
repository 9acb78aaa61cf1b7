"""Streams for the judge's tests: a legal one that has every block, the corpus made concrete, mutations."""

from __future__ import annotations

import copy
import itertools
import json

from pipeline import CORPUS


def start(**message):
    return {
        "type": "message_start",
        "message": {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": "m",
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": 5, "output_tokens": 1},
            **message,
        },
    }


def block(index, **content):
    return {"type": "content_block_start", "index": index, "content_block": content}


def delta(index, **members):
    return {"type": "content_block_delta", "index": index, "delta": members}


def stop(index):
    return {"type": "content_block_stop", "index": index}


def finish(reason="end_turn", sequence=None, **usage):
    return {
        "type": "message_delta",
        "delta": {"stop_reason": reason, "stop_sequence": sequence},
        "usage": {"output_tokens": 7, **usage},
    }


END = {"type": "message_stop"}
PING = {"type": "ping"}
THINKING = [
    block(0, type="thinking", thinking="", signature=""),
    delta(0, type="thinking_delta", thinking="hm"),
    delta(0, type="signature_delta", signature="c2ln"),
    stop(0),
]
TEXT = [block(1, type="text", text=""), delta(1, type="text_delta", text="Hello"), stop(1)]
TOOL = [
    block(2, type="tool_use", id="toolu_1", name="f", input={}),
    delta(2, type="input_json_delta", partial_json='{"a":'),
    delta(2, type="input_json_delta", partial_json="1}"),
    stop(2),
]


def legal():
    """0 start, 1 ping, 2-5 thinking, 6-8 text, 9-12 tool, 13 message_delta, 14 message_stop."""
    return copy.deepcopy([start(), PING, *THINKING, *TEXT, *TOOL, finish("tool_use"), END])


def short(*between, reason="end_turn"):
    """message_start, one text block, `between`, the end."""
    text = [block(0, type="text", text=""), delta(0, type="text_delta", text="Hi"), stop(0)]
    return copy.deepcopy([start(), *text, *between, finish(reason), END])


def failed():
    return copy.deepcopy(
        [
            start(),
            *THINKING,
            TEXT[0],
            TEXT[1],
            {"type": "error", "error": {"type": "api_error", "message": "gone"}},
        ]
    )


def sse(events, end="\n"):
    return "".join(f"event: {e.get('type')}{end}data: {json.dumps(e)}{end}{end}" for e in events).encode()


def concrete(events):
    """A corpus stream with its wildcards filled in."""
    count = itertools.count(1)

    def fill(value):
        if isinstance(value, dict):
            return {key: fill(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [fill(inner) for inner in value]
        if isinstance(value, str) and value.startswith("<") and value.endswith(">"):
            word = value[1:-1]
            if word.startswith("int"):
                return 3
            return f"{'msg_' if word.startswith('msg_') else 'id_'}{next(count)}"
        return value

    return fill(events)


CORPUS_STREAMS = {
    case["id"]: concrete(case["expected"]["events"]) for case in CORPUS if "events" in case["expected"]
}


def _places(value, path=()):
    """Every member and item of a JSON value, as (path, value)."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*path, key), inner
        yield from _places(inner, (*path, key))


def mutate(events, rng):
    """One fault more: an event lost, doubled, moved or added, or a member lost or replaced."""
    events = copy.deepcopy(events)
    at = rng.randrange(len(events))
    how = rng.randrange(6)
    if how == 0:
        del events[at]
    elif how == 1:
        events.insert(at, copy.deepcopy(events[at]))
    elif how == 2:
        events.insert(rng.randrange(len(events)), events.pop(at))
    elif how == 3:
        kinds = [
            PING,
            END,
            start(),
            stop(0),
            stop(1),
            delta(0, type="text_delta", text="x"),
            finish(),
            "x",
            None,
        ]
        kinds += [
            {"type": "new_event"},
            {"type": None},
            {},
            {"type": "error"},
            block(1, type="text", text=""),
        ]
        events.insert(at, copy.deepcopy(rng.choice(kinds)))
    else:
        places = [(path, inner) for path, inner in _places(events) if len(path) > 1]
        path, old = rng.choice(places)
        holder = events
        for key in path[:-1]:
            holder = holder[key]
        if how == 4:
            del holder[path[-1]]
        else:
            # A number only where a number was: see the values that only one judge minds.
            new = [None, "", "tool_use", [], {}, ["x"]] + ([-1, 0, 7] if isinstance(old, int) else [])
            holder[path[-1]] = copy.deepcopy(rng.choice(new))
    return events
