"""Drives the official OpenAI Python SDK: one JSON command a line on stdin, one JSON answer a line on stdout.

Runs in an environment that has the SDK and nothing of this project, in any major. A command is

    {"op": "chat" | "stream" | "complete" | "embed" | "models", "base_url": ..., "request": {...}, "leave_after": 3}

where `leave_after` closes a stream after so many chunks. The answer is what the SDK gives its user:

    {"answer": {...}, "request_id": "req_..."}
    {"chunks": [{...}, ...]}
    {"left": true}
    {"models": ["reasoning", ...]}
    {"error": {"class": "RateLimitError", "status": 429, "type": ..., "code": ..., "message": ..., ...}}
"""

from __future__ import annotations

import json
import sys

import openai


def perform(command: dict) -> dict:
    # No retries: a test asks how one answer is understood.
    client = openai.OpenAI(
        base_url=f"{command['base_url']}/v1", api_key="test-key", max_retries=0, timeout=60
    )
    with client:
        request = command["request"]
        if command["op"] == "chat":
            return whole(client.chat.completions.create(**request))
        if command["op"] == "complete":
            return whole(client.completions.create(**request))
        if command["op"] == "embed":
            return whole(client.embeddings.create(**request))
        if command["op"] == "models":
            return {"models": [model.id for model in client.models.list()]}
        chunks = []
        with client.chat.completions.create(**request, stream=True) as stream:
            for chunk in stream:
                chunks.append(plain(chunk))
                if len(chunks) == command.get("leave_after"):
                    return {"left": True}
        return {"chunks": chunks}


def whole(answer) -> dict:
    return {"answer": plain(answer), "request_id": answer._request_id}


def plain(answer) -> dict:
    return answer.to_dict(mode="json", warnings=False)  # without what the server did not send


def described(error: Exception) -> dict:
    told = {"class": type(error).__name__, "message": str(error)}
    if isinstance(error, openai.APIError):
        told |= {"type": error.type, "code": error.code, "param": error.param}
        # a whole answer's error has its message in the body, a stream's is the error
        told["message"] = error.body.get("message") if isinstance(error.body, dict) else error.message
    if isinstance(error, openai.APIStatusError):
        told["status"] = error.status_code
        told["request_id"] = error.request_id
        told["retry_after"] = error.response.headers.get("retry-after")
    return told


def main() -> None:
    print(json.dumps({"version": openai.__version__}), flush=True)
    for line in sys.stdin:
        try:
            answer = perform(json.loads(line))
        except Exception as error:  # whatever the SDK raises is the answer
            answer = {"error": described(error)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
