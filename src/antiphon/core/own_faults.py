"""What goes wrong on this gateway's side of the wire, ready made: one fault for each way.

Owns kind, status and words of every failure that no upstream has described. `core.faults` hands these
names on, so `faults.UPSTREAM_CUT` and `faults.queue_full(3)` are how they are used. No text here names an
address, a path or a key, and what a client sent is quoted on one line and cut.
"""

from __future__ import annotations

from typing import Final

from antiphon.core.parts import Fault
from antiphon.core.scrub import legible

__all__ = [
    "COORDINATOR_GONE",
    "FOREIGN_HOST",
    "FOREIGN_PAGE",
    "HEADERS_TOO_LARGE",
    "NOT_JSON_TYPE",
    "REQUEST_TIMEOUT",
    "SHUTTING_DOWN",
    "UPSTREAM_CONNECT_TIMEOUT",
    "UPSTREAM_CUT",
    "UPSTREAM_EMPTY",
    "UPSTREAM_MALFORMED",
    "UPSTREAM_RESTARTING",
    "UPSTREAM_STALLED",
    "UPSTREAM_TIMEOUT",
    "UPSTREAM_TOO_LARGE",
    "UPSTREAM_UNREACHABLE",
    "WRONG_KEY",
    "internal",
    "invalid_request",
    "method_not_allowed",
    "no_upstream",
    "not_found",
    "queue_full",
    "queue_timeout",
    "too_large",
]

# --- The upstream ---------------------------------------------------------------------------------

UPSTREAM_UNREACHABLE: Final = Fault("api_error", "the upstream cannot be reached", 502)
UPSTREAM_CONNECT_TIMEOUT: Final = Fault(
    "timeout_error", "the upstream took too long to accept a connection", 504
)
UPSTREAM_TIMEOUT: Final = Fault("timeout_error", "the upstream took too long to begin its answer", 504)
UPSTREAM_STALLED: Final = Fault("timeout_error", "the upstream fell silent in the middle of its answer", 504)
UPSTREAM_CUT: Final = Fault("api_error", "the upstream's stream ended before its answer was complete", 502)
UPSTREAM_EMPTY: Final = Fault("api_error", "the upstream returned an empty stream", 502)
UPSTREAM_MALFORMED: Final = Fault("api_error", "the upstream sent malformed data", 502)
UPSTREAM_TOO_LARGE: Final = Fault("api_error", "the upstream sent more than this gateway can hold", 502)
UPSTREAM_RESTARTING: Final = Fault(
    "overloaded_error", "the model's server is restarting", 529, retry_after="5"
)

# --- This gateway ---------------------------------------------------------------------------------

SHUTTING_DOWN: Final = Fault("overloaded_error", "this gateway is shutting down", 529, retry_after="5")
# After it is back it takes up to a second until that is noticed, and 2.4 s until slots are given out again.
COORDINATOR_GONE: Final = Fault(
    "overloaded_error",
    "this gateway cannot share its slots now: its coordinator does not answer",
    529,
    retry_after="4",
)
WRONG_KEY: Final = Fault("authentication_error", "the API key is missing or not valid", 401)
FOREIGN_PAGE: Final = Fault("permission_error", "this gateway answers no requests of web pages", 403)
FOREIGN_HOST: Final = Fault("permission_error", "this gateway is not served under that Host name", 403)
NOT_JSON_TYPE: Final = Fault("invalid_request_error", "the content-type must be application/json", 415)
HEADERS_TOO_LARGE: Final = Fault("invalid_request_error", "the request's headers are too large", 431)
REQUEST_TIMEOUT: Final = Fault("invalid_request_error", "the request took too long to arrive", 408)


def no_upstream(retry_after: int) -> Fault:
    """Every server of the model is known to be ill. `retry_after` in seconds, at least 1."""
    return Fault("overloaded_error", "no server of this model takes requests now", 529, _seconds(retry_after))


def queue_full(retry_after: int) -> Fault:
    """No place in the queue. `retry_after` in seconds, at least 1."""
    return Fault("overloaded_error", "all slots are taken and the queue is full", 529, _seconds(retry_after))


def queue_timeout(retry_after: int) -> Fault:
    """No slot came free in time, or none would have. `retry_after` in seconds, at least 1."""
    return Fault("overloaded_error", "no slot came free in time", 529, _seconds(retry_after))


def internal(request_id: str) -> Fault:
    """A bug of this gateway; the log has the traceback under `request_id`."""
    return Fault(
        "api_error", f"internal error in this gateway, see its log for {legible(request_id, limit=100)}", 500
    )


def invalid_request(message: str, *, status: int = 400) -> Fault:
    """The client's mistake, in a text that begins with the field's path: `messages.3.content: ...`."""
    return Fault("invalid_request_error", legible(message) or "the request is not valid", status)


def not_found(path: str) -> Fault:
    """No such route."""
    return Fault("not_found_error", f"nothing is served at {legible(path, limit=200)}", 404)


def method_not_allowed(method: str, path: str) -> Fault:
    """A route that does not take this method."""
    said = f"{legible(method, limit=20)} is not allowed at {legible(path, limit=200)}"
    return Fault("invalid_request_error", said, 405)


def too_large(limit: int) -> Fault:
    """A request body of more than `limit` bytes."""
    return Fault("request_too_large", f"the request's body is larger than {limit} bytes", 413)


def _seconds(wait: int) -> str:
    return str(max(wait, 1))
