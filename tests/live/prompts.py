"""What live tests ask: text of any length, a tool's turns, an image."""

from __future__ import annotations

import pytest

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}}
TOOL = {
    "name": "get_weather",
    "description": "The weather of a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
TOOL_TURNS = [
    {"role": "user", "content": "How is the weather in Paris?"},
    {
        "role": "assistant",
        "content": [
            {"type": "text", "text": "I look it up."},
            {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Paris"}},
        ],
    },
    {
        "role": "user",
        "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "Sunny, 21 degrees."}],
    },
]
COUNTED = [
    pytest.param({"messages": [{"role": "user", "content": "Say hello."}]}, id="text"),
    pytest.param({"system": "Be brief.", "messages": [{"role": "user", "content": "naïve 🙂"}]}, id="system"),
    pytest.param({"messages": TOOL_TURNS, "tools": [TOOL]}, id="tool result"),
]
"""Requests whose tokens are counted."""


def words(number: int, count: int) -> str:
    """Text that begins like that of no other number; five tokens a word for SmolLM2."""
    return " ".join(f"w{(number * 131 + n) * 7919 % 9973}" for n in range(count))
