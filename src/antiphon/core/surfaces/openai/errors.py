"""Errors as OpenAI clients expect them: `{"error": {"message", "type", "param", "code"}}`.

Owns the words and statuses of that shape for this gateway's faults, and what of an upstream's own error
answer may pass. It decides nothing about whose fault a failure is: that is `core.faults`.

    error_body(Fault("invalid_request_error", "model: Field required", 400))
    -> b'{"error":{"message":"model: Field required","type":"invalid_request_error","param":"model",...}}'

Source of the words: platform.openai.com/docs/guides/error-codes and the answers of the API itself. The
official SDKs choose their exceptions by status alone and come back by themselves after 408, 409, 429 and
any 5xx, `x-should-retry` before that; they read the request's id from `x-request-id`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from antiphon.core.answer import Whole
from antiphon.core.faults import fault_of_response
from antiphon.core.parts import Fault
from antiphon.core.scrub import legible, scrub


class Words(NamedTuple):
    """`type` and `code` of a fault."""

    type: str
    code: str | None = None


KINDS: Final[Mapping[str, Words]] = {
    "invalid_request_error": Words("invalid_request_error"),
    "authentication_error": Words("invalid_request_error", "invalid_api_key"),
    "billing_error": Words("insufficient_quota", "insufficient_quota"),
    "permission_error": Words("invalid_request_error", "permission_denied"),
    "not_found_error": Words("invalid_request_error", "model_not_found"),
    "conflict_error": Words("invalid_request_error"),
    "request_too_large": Words("invalid_request_error", "request_too_large"),
    "rate_limit_error": Words("rate_limit_error", "rate_limit_exceeded"),
    "api_error": Words("server_error"),
    "timeout_error": Words("server_error", "timeout"),
    "overloaded_error": Words("server_error", "overloaded"),
}

_OVERLOADED = 529  # Anthropic's own; the rest of the world says 503
_FIELD = re.compile(r"([A-Za-z_][\w.-]{0,200}): ")  # how the message of an invalid request begins


def status_of(fault: Fault) -> int:
    """The HTTP status that an OpenAI client is told."""
    return 503 if fault.status == _OVERLOADED else fault.status


def error_body(fault: Fault, request_id: str = "") -> bytes:
    """The error body, for HTTP and for a stream's last frame alike: compact JSON, valid UTF-8.

    `request_id` is for surfaces whose bodies have a place for it; here it is in the headers alone.
    """
    words = KINDS[fault.kind]
    message = fault.message.encode("utf-8", "replace").decode()
    field = _FIELD.match(message) if fault.kind in ("invalid_request_error", "not_found_error") else None
    param = field[1] if field else None
    return msgspec.json.encode(
        {"error": {"message": message, "type": words.type, "param": param, "code": words.code}}
    )


def error_frame(fault: Fault, request_id: str = "") -> bytes:
    """A stream's last frame: the official SDKs raise on a frame with an `error`, at any place."""
    return b"data: %b\n\n" % error_body(fault)


def refusal(fault: Fault) -> Whole:
    """A fault as an HTTP answer."""
    headers = [(b"content-type", b"application/json")]
    if fault.retry_after is not None:
        headers.append((b"retry-after", fault.retry_after.encode("ascii", "replace")))
    if fault.should_retry is not None:
        headers.append((b"x-should-retry", b"true" if fault.should_retry else b"false"))
    return Whole(status_of(fault), headers, error_body(fault))


def upstream_refusal(status: int, headers: Mapping[str, str], body: bytes) -> tuple[Fault, Whole]:
    """An upstream's error answer: what it means here, and what the client is told.

    `headers` have names in lower case; of a body longer than 64 KiB its beginning is enough. Status and
    body are the upstream's own, byte for byte, with two exceptions. What is about this gateway and not
    about the request (its key, a redirect, a proxy in between) is a 502 in OpenAI's shape. A body that names
    an address, a path or a key passes without them, and one that is no JSON object as an error that
    says the same in OpenAI's shape.
    """
    fault = fault_of_response(status, headers, body)
    if _is_ours(status, fault):
        return fault, refusal(fault)
    fit = _fit_body(body)
    if fit is None:
        told = refusal(fault)
        # a 404 without a model is a route that this server lacks, and the route was the client's choice
        return fault, Whole(status, told.headers, told.body)
    return fault, Whole(status, passing_headers(headers), fit)


_PASSING = (
    "content-type",
    "retry-after",
    "retry-after-ms",
    "x-should-retry",
    "openai-model",
    "openai-processing-ms",
    "openai-version",
)
_PASSING_PREFIX = "x-ratelimit-"


def passing_headers(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    """The upstream's headers that a client gets, beside those of this gateway.

    What it is (content-type), when to come back, and limits: clients pace themselves by them. No framing and
    no cookies, no name of the account behind the gateway's key, and no request id: the client's is this
    gateway's.
    """
    return [
        (name.encode("latin-1"), value.encode("latin-1"))
        for name, value in headers.items()
        if name in _PASSING or name.startswith(_PASSING_PREFIX)
    ]


def _is_ours(status: int, fault: Fault) -> bool:
    """The upstream refuses this gateway, not the request."""
    about_routes = status in (404, 405, 410)  # which a client chooses here
    return status < 500 and fault.status == 502 and not about_routes


_MOST_STRINGS = 256  # an error is a few of them; scrubbing is the dear part


class _UnfitError(Exception):
    """A body that does not pass, not even in parts."""


def _fit_body(body: bytes) -> bytes | None:
    """The body as a client may have it; None if it is nothing that an OpenAI client could read."""
    try:
        document = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return None
    if not isinstance(document, dict):
        return None
    scrubbing = _Scrubbing()
    try:
        fit = scrubbing.walk(document)
    except (_UnfitError, RecursionError):
        return None
    return msgspec.json.encode(fit) if scrubbing.found else body


class _Scrubbing:
    """Takes out of a document what no client may see. `found`: there was something."""

    def __init__(self) -> None:
        self.found = False
        self._strings = 0

    def walk(self, value: Any) -> Any:
        """The value as it may pass. Raises _UnfitError for a name that may not, and for too many strings."""
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, list):
            return [self.walk(item) for item in value]
        if isinstance(value, dict):
            for name in value:
                if self._text(name) != name:
                    raise _UnfitError
            return {name: self.walk(item) for name, item in value.items()}
        return value

    def _text(self, text: str) -> str:
        self._strings += 1
        if self._strings > _MOST_STRINGS:
            raise _UnfitError
        limit = 2 * len(text) + 64  # nothing is cut, also where `[address]` is longer than the address
        clean = scrub(text, limit=limit)
        if clean == legible(text, limit=limit):
            return text  # with its line breaks
        self.found = True
        return clean
