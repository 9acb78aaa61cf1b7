"""Drives the official Python SDK: one JSON command a line on stdin, one JSON answer a line on stdout.

Runs in an environment that has the SDK and nothing of this project (`install.py` makes it), in any major.
`sdk_script.mjs` is its twin for TypeScript. A command is

    {"op": "create" | "stream" | "count" | "models", "base_url": "http://...", "request": {...}, "leave_after": 3}
    {"op": "turn", "base_url": ..., "request": {...}, "say": "hi", "first": true, "streaming": true}

where `leave_after` closes a stream after so many events. A `turn` adds what the user says to the
conversation and the SDK's own `message.content` after it, as its users do; `first` begins another. The
answer is what the SDK gives its user:

    {"message": {...}, "events": ["message_start", ...]}     the folded message
    {"left": true}
    {"input_tokens": 12}
    {"models": ["reasoning", ...]}
    {"error": {"class": "RateLimitError", "status": 429, "type": ..., "message": ..., ...}}
"""

from __future__ import annotations

import json
import sys

import anthropic

conversation: list = []


def perform(command: dict) -> dict:
    # No retries: a test asks how one answer is understood.
    client = anthropic.Anthropic(base_url=command["base_url"], api_key="test-key", max_retries=0, timeout=60)
    with client:
        if command["op"] == "create":
            return {"message": plain(client.messages.create(**command["request"]))}
        if command["op"] == "count":
            return {"input_tokens": client.messages.count_tokens(**command["request"]).input_tokens}
        if command["op"] == "models":
            return {"models": [model.id for model in client.models.list(**command["request"])]}
        if command["op"] == "turn":
            return {"message": plain(turn(client, command))}
        seen = []
        with client.messages.stream(**command["request"]) as stream:
            for event in stream:
                seen.append(event.type)
                if len(seen) == command.get("leave_after"):
                    return {"left": True}
            return {"message": plain(stream.get_final_message()), "events": seen}


def turn(client, command: dict):
    if command["first"]:
        conversation.clear()
    conversation.append({"role": "user", "content": command["say"]})
    request = command["request"] | {"messages": conversation}
    if command["streaming"]:
        with client.messages.stream(**request) as stream:
            message = stream.get_final_message()
    else:
        message = client.messages.create(**request)
    conversation.append({"role": "assistant", "content": message.content})
    return message


def plain(message) -> dict:
    return message.to_dict(mode="json", warnings=False)  # without what the server did not send


def described(error: Exception) -> dict:
    told = {"class": type(error).__name__, "message": str(error)}
    if isinstance(error, anthropic.APIStatusError):
        body = error.body if isinstance(error.body, dict) else {}
        told["status"] = error.status_code
        told["type"] = body.get("error", {}).get("type")
        told["message"] = body.get("error", {}).get("message")
        told["request_id"] = error.request_id
        told["retry_after"] = error.response.headers.get("retry-after")
    return told


def main() -> None:
    print(json.dumps({"version": anthropic.__version__}), flush=True)
    for line in sys.stdin:
        try:
            answer = perform(json.loads(line))
        except Exception as error:  # whatever the SDK raises is the answer
            answer = {"error": described(error)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
