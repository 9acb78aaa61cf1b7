"""The bytes that the bench's processes exchange: requests, upstream events, marks to recognise them by.

Owns what is on the wire, made once at import; it opens no socket.

    request("messages", script("paced", rate=50))    -> a whole HTTP request for the gateway
    EVENTS[0]                                        -> one upstream event of EVENT_SIZE bytes, chunk-framed

What the mock upstream is to do stands in the model's name, which every proxy passes on unchanged:
`MODE.COUNT.RATE.ID` with the modes of mock_upstream.py.
"""

from __future__ import annotations

import json

EVENT_SIZE = 230  # bytes of one event as the upstream sends it: `data: {...}` and the blank line

_WORDS = " the model reads a line and writes the next one with care so that nobody has to wait".split()

HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncache-control: no-cache\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
LAST_CHUNK = b"0\r\n\r\n"

PATHS = {"messages": "/v1/messages", "chat": "/v1/chat/completions"}

# What the first *content* event has and nothing before it: the role's chunk says `"content":""`.
FIRST_CONTENT = {"messages": b'"type":"text_delta"', "chat": b'"delta":{"content":" '}


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _frame(delta: dict[str, str], finish: str | None = None, *, size: int = 0) -> bytes:
    """One Chat Completions event, as vLLM writes it, filled up to `size` bytes in the id."""
    document = {
        "id": "chatcmpl-",
        "object": "chat.completion.chunk",
        "created": 1764400000,
        "model": "bench",
        "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}],
    }

    def encode() -> bytes:
        return b"data: " + json.dumps(document, separators=(",", ":")).encode() + b"\n\n"

    document["id"] = "chatcmpl-" + ("9f3a7c1e5b2d8046" * 16)[: max(0, size - len(encode()))]
    return encode()


EVENTS = tuple(_chunk(_frame({"content": f" {word}"}, size=EVENT_SIZE)) for word in _WORDS)
OPENING = _chunk(_frame({"role": "assistant", "content": ""}))
ENDING = _chunk(_frame({}, "stop")) + _chunk(b"data: [DONE]\n\n") + LAST_CHUNK
# One write each of the upstream that sends as fast as it can. The kernels hold some 3 MiB for a client
# that does not read; large events fill that soon, then come small ones: those cost a proxy most to keep.
FLOOD_FILLING = _chunk(_frame({"content": " reads" * 2700})) * 2
FLOOD_FILLINGS = 72
FLOOD = b"".join(EVENTS) * 4


def script(mode: str, *, count: int = 0, rate: int = 0, number: int = 0) -> str:
    """A model name that tells the mock what to do. `count` 0: without end; `rate`: events per second."""
    return f"{mode}.{count}.{rate}.{number}"


def request(surface: str, model: str) -> bytes:
    """A streaming request with one short user message, for a path of PATHS."""
    document = {
        "model": model,
        "max_tokens": 100_000,
        "stream": True,
        "messages": [{"role": "user", "content": "Say something long."}],
    }
    if surface == "chat":
        document["stream_options"] = {"include_usage": True}
    body = json.dumps(document).encode()
    head = (
        f"POST {PATHS[surface]} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"Accept: text/event-stream\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body
