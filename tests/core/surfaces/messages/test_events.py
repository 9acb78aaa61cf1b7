"""Events as bytes: every frame, to the letter."""

import pytest

from antiphon.core.parts import (
    BlockStart,
    BlockStop,
    Error,
    Event,
    Fault,
    InputJsonDelta,
    MessageDelta,
    MessageStart,
    MessageStop,
    MessageUsage,
    Ping,
    SignatureDelta,
    TextDelta,
    ThinkingDelta,
)
from antiphon.core.surfaces.messages.events import _ENCODE, PING, EventEncoder, delta_fields, usage_fields


def encode(*events):
    return EventEncoder(message_id="msg_1", model='m"1', request_id="req_1").encode(events)


FRAMES = [
    (
        MessageStart(MessageUsage(9, 1, estimated=("input",))),
        (
            b'event: message_start\ndata: {"type":"message_start","message":{"id":"msg_1","type":"message","role":"assistant",'
            b'"model":"m\\"1","content":[],"stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":9,"output_tokens":1}}}\n\n'
        ),
    ),
    (
        BlockStart(0, "text"),
        b'event: content_block_start\ndata: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}\n\n',
    ),
    (
        BlockStart(1, "thinking"),
        (
            b'event: content_block_start\ndata: {"type":"content_block_start","index":1,'
            b'"content_block":{"type":"thinking","thinking":"","signature":""}}\n\n'
        ),
    ),
    (
        BlockStart(2, "tool_use", "a", "f"),
        (
            b'event: content_block_start\ndata: {"type":"content_block_start","index":2,'
            b'"content_block":{"type":"tool_use","id":"a","name":"f","input":{}}}\n\n'
        ),
    ),
    (
        TextDelta(0, 'a\n"\u2028é'),
        'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,'
        '"delta":{"type":"text_delta","text":"a\\n\\"\u2028é"}}\n\n'.encode(),
    ),
    (
        ThinkingDelta(1, "b"),
        b'event: content_block_delta\ndata: {"type":"content_block_delta","index":1,"delta":{"type":"thinking_delta","thinking":"b"}}\n\n',
    ),
    (
        InputJsonDelta(2, '{"x"'),
        (
            b'event: content_block_delta\ndata: {"type":"content_block_delta","index":2,'
            b'"delta":{"type":"input_json_delta","partial_json":"{\\"x\\""}}\n\n'
        ),
    ),
    (
        SignatureDelta(1, "s"),
        b'event: content_block_delta\ndata: {"type":"content_block_delta","index":1,"delta":{"type":"signature_delta","signature":"s"}}\n\n',
    ),
    (BlockStop(12), b'event: content_block_stop\ndata: {"type":"content_block_stop","index":12}\n\n'),
    (
        MessageDelta("end_turn", None, MessageUsage(1, 2)),
        (
            b'event: message_delta\ndata: {"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},'
            b'"usage":{"input_tokens":1,"output_tokens":2}}\n\n'
        ),
    ),
    (MessageStop(), b'event: message_stop\ndata: {"type":"message_stop"}\n\n'),
    (Ping(), PING),
    (
        Error(Fault("overloaded_error", "busy", 529)),
        b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error","message":"busy"},"request_id":"req_1"}\n\n',
    ),
]


@pytest.mark.parametrize("event, frame", FRAMES, ids=lambda value: type(value).__name__)
def test_frames(event, frame):
    assert encode(event) == frame


def test_every_event_has_a_frame():
    assert set(_ENCODE) == set(Event.__args__) == {type(event) for event, _ in FRAMES}


def test_many_are_one_piece_in_their_order():
    assert encode(*(event for event, _ in FRAMES)) == b"".join(frame for _, frame in FRAMES)
    assert encode() == b""


def test_a_delta_s_prefix_is_its_block_s_and_kind_s():
    encoder = EventEncoder(message_id="m", model="m", request_id="r")
    for index in (0, 1, 0):
        for kind in (TextDelta, ThinkingDelta):
            text = encoder.encode([kind(index, "x")]).decode()
            assert (
                f'"index":{index},' in text
                and f'"{"text" if kind is TextDelta else "thinking"}_delta"' in text
            )


def test_usage():
    usage = MessageUsage(1, 2, 3, 4, 5)
    both = {
        "input_tokens": 1,
        "output_tokens": 2,
        "cache_creation_input_tokens": 3,
        "cache_read_input_tokens": 4,
    }
    assert usage_fields(usage, final=False) == both
    assert usage_fields(usage, final=True) == {**both, "output_tokens_details": {"thinking_tokens": 5}}
    assert usage_fields(MessageUsage(1, 2, 0, 0), final=True)["cache_read_input_tokens"] == 0


def test_the_end():
    assert delta_fields(MessageDelta("stop_sequence", "END", MessageUsage(1, 2))) == {
        "stop_reason": "stop_sequence",
        "stop_sequence": "END",
    }
    assert delta_fields(MessageDelta("refusal", None, MessageUsage(1, 2)))["stop_details"] == {
        "type": "refusal",
        "category": None,
        "explanation": None,
    }
