"""Whose fault it is: every failure as an Anthropic error, in one table for each way to learn of it.

Owns the mapping of an upstream's HTTP status, error words, error texts and finish reasons to a `Fault`,
the statuses of Anthropic's error types, this gateway's own failures, and the error body. A new mapping is
one row. It must not do I/O, log or retry: `Fault.should_retry` only says what would help.

    fault_of_response(503, {"retry-after": "3"}, b'{"error":{"message":"Server overloaded"}}')
    -> Fault("overloaded_error", "Server overloaded", 529, retry_after="3")

What is learned weighs in this order: a code that means context overflow; a precise word (a quota, a
rate, a key, a model); a wording of context overflow; the HTTP status, or inside a 200 the code in the
body; a general word; a telling text. See `docs/` of each server as named in the rows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Final, NamedTuple

import msgspec

from antiphon.core import own_faults
from antiphon.core.complaint import Complaint, is_error, read_body, read_error
from antiphon.core.overflow import by_code, normal, overflow
from antiphon.core.own_faults import *  # noqa: F403  -- its __all__ is the list, here it would be a copy
from antiphon.core.parts import Fault
from antiphon.core.retry import retry_after
from antiphon.core.scrub import scrub

__all__ = ["KINDS", "error_body", "fault_of_error", "fault_of_response", "finish_fault", "is_error", "scrub"]
__all__ += own_faults.__all__

# Anthropic's error types, each with its status (platform.claude.com/docs/en/api/errors).
KINDS: Final[Mapping[str, int]] = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "conflict_error": 409,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "api_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
}


class Verdict(NamedTuple):
    """What a client is told. `note` goes before the upstream's own words, where they would mislead alone."""

    kind: str
    status: int
    should_retry: bool | None = None
    note: str = ""


# --- What an upstream's HTTP status means ---------------------------------------------------------

_WRONG_URL = "the upstream has no such path, its base URL looks wrong"
_OUR_KEY = "the upstream did not accept this gateway's key"

STATUS: Final[Mapping[int, Verdict]] = {
    400: Verdict("invalid_request_error", 400),
    # The key is ours: a 401 would make the client ask its user to log in.
    401: Verdict("api_error", 502, should_retry=False, note=_OUR_KEY),
    402: Verdict("billing_error", 402),
    403: Verdict("api_error", 502, should_retry=False, note="the upstream refused this gateway"),
    404: Verdict("not_found_error", 404),
    405: Verdict("api_error", 502, should_retry=False, note=_WRONG_URL),
    407: Verdict("api_error", 502, should_retry=False, note="a proxy before the upstream wants credentials"),
    408: Verdict("timeout_error", 504),
    409: Verdict("conflict_error", 409),
    410: Verdict("not_found_error", 404),
    413: Verdict("request_too_large", 413),
    422: Verdict("invalid_request_error", 400),
    429: Verdict("rate_limit_error", 429),
    499: Verdict("api_error", 502),  # it says that we left, and we are still here
    500: Verdict("api_error", 500),
    501: Verdict("api_error", 502, should_retry=False),
    502: Verdict("api_error", 502),
    503: Verdict("overloaded_error", 529),
    504: Verdict("timeout_error", 504),
    522: Verdict("timeout_error", 504),  # Cloudflare: no connection in time
    524: Verdict("timeout_error", 504),  # Cloudflare: no answer in time
    529: Verdict("overloaded_error", 529),
}
_NO_PATH = Verdict("api_error", 502, should_retry=False, note=_WRONG_URL)
_REDIRECT = Verdict(
    "api_error", 502, should_retry=False, note="the upstream redirects, its base URL looks wrong"
)
_BROKEN = Verdict("api_error", 502)

# Statuses with which servers report a context overflow, by wording alone.
_OVERFLOW_STATUSES = frozenset({400, 413, 422, 500})

# A 404 that speaks of a model is the client's to mend, any other is about a path. `/models` is a path.
_OF_A_MODEL = re.compile(
    r"(?<![/\w])(?:models?|deployments?|adapters?|engines?)(?![a-z])|endpoints? found for", re.IGNORECASE
)

# --- What an upstream's words mean, as the status that they stand for ----------------------------

# Precise words: they count more than the HTTP status. The first row that matches wins.
PRECISE_WORDS: Final[Mapping[str, int]] = {
    "insufficient_quota": 402,  # OpenAI, with 429; no retry helps
    "insufficient_balance": 402,
    "insufficient_credits": 402,
    "billing_error": 402,
    "billing_not_active": 402,
    "billing_hard_limit_reached": 402,
    "payment_required": 402,
    "Arrearage": 402,  # DashScope
    "rate_limit_exceeded": 429,
    "rate_limit_error": 429,
    "rate_limit_reached": 429,
    "rate_limited": 429,
    "RateLimitReached": 429,
    "too_many_requests": 429,
    "RESOURCE_EXHAUSTED": 429,  # Gemini
    "Throttling": 429,  # DashScope
    "ThrottlingException": 429,  # Bedrock
    "invalid_api_key": 401,
    "incorrect_api_key": 401,
    "API_KEY_INVALID": 401,  # Gemini, with 400
    "model_not_found": 404,
    "DeploymentNotFound": 404,  # Azure
    "overloaded_error": 529,
    "engine_overloaded_error": 529,  # Kimi, with 429
    "provider_overloaded": 529,  # OpenRouter
    "server_overloaded": 529,
}
PRECISE_TEXTS: Final = (
    (
        re.compile(
            r"insufficient (?:account )?(?:balance|credits?|funds)|credit balance is too low", re.IGNORECASE
        ),
        402,
    ),
    (re.compile(r"api key not valid|(?:incorrect|invalid) api key", re.IGNORECASE), 401),
    # What a text model was shown is the client's to take out. llama.cpp and Ollama say it with a 500.
    (
        re.compile(
            r"\b(?:image|audio|video) input is not supported|\bmissing data required for image input",
            re.IGNORECASE,
        ),
        400,
    ),
)

# General words: they count where no status and no numeric code says more. HTTP's own phrases
# (`Bad Request`, `NotFoundError`, `InternalServerError`: vLLM) are added from the standard library.
GENERAL_WORDS: Final[Mapping[str, int]] = {
    "invalid_request_error": 400,
    "invalid_request": 400,
    "invalid_prompt": 400,
    "invalid_parameter": 400,
    "INVALID_ARGUMENT": 400,  # gRPC's names: Gemini
    "FAILED_PRECONDITION": 400,
    "OUT_OF_RANGE": 400,
    "validation_error": 400,
    "content_policy_violation": 400,
    "authentication_error": 401,
    "authentication": 401,
    "UNAUTHENTICATED": 401,
    "permission_error": 403,
    "permission_denied": 403,
    "conflict_error": 409,
    "request_too_large": 413,
    "payload_too_large": 413,
    "request_entity_too_large": 413,  # HTTP renamed these phrases, and Python with it
    "content_too_large": 413,
    "unprocessable_entity": 422,
    "unprocessable_content": 422,
    "unprocessable": 422,  # OpenRouter
    "api_error": 500,
    "server_error": 500,
    "server": 500,  # OpenRouter
    "internal": 500,
    "not_supported_error": 501,  # llama.cpp
    "unimplemented": 501,
    "unavailable_error": 503,  # llama.cpp, while it loads a model
    "unavailable": 503,
    "provider_unavailable": 503,
    "server_busy": 503,
    "QueueOverflow": 503,  # vLLM
    "overloaded": 529,
    "timeout_error": 504,
    "timeout": 504,
    "APITimeoutError": 504,
    "DEADLINE_EXCEEDED": 504,
    # MiniMax's base_resp.status_code (platform.minimax.io/docs/api-reference/errorcode)
    "1001": 504,
    "1002": 429,
    "1004": 401,
    "1008": 402,
    "2013": 400,
}
GENERAL_TEXTS: Final = (
    (re.compile(r"rate limit|too many requests|throttl", re.IGNORECASE), 429),
    (
        re.compile(
            r"overloaded|server (?:is )?busy|queue is full|at capacity|pending requests exceeded",
            re.IGNORECASE,
        ),
        529,
    ),
    (re.compile(r"loading model|model is loading", re.IGNORECASE), 503),
    (re.compile(r"timed? ?out\b|deadline exceeded", re.IGNORECASE), 504),
    (re.compile(r"\bunauthorized\b", re.IGNORECASE), 401),
    (re.compile(r"\bmodel\b.{0,200}\b(?:not found|does not exist)", re.IGNORECASE), 404),
)

# finish_reason words that are failures: the status they stand for, and what happened.
FINISH: Final[Mapping[str, tuple[int, str]]] = {
    "error": (502, "the upstream ended the answer with an error"),
    "abort": (502, "the upstream aborted the request"),  # SGLang
    "insufficient_system_resource": (529, "the upstream ran out of resources"),  # DeepSeek
    "network_error": (502, "the upstream reported a network error"),  # GLM
    "load": (529, "the upstream was only loading the model"),  # Ollama
    "unload": (529, "the upstream unloaded the model"),  # Ollama
}

_PRECISE = {normal(word): status for word, status in PRECISE_WORDS.items()}
_GENERAL = {normal(s.phrase): s.value for s in HTTPStatus if s >= 400} | {
    normal(word): status for word, status in GENERAL_WORDS.items()
}


# --- From an upstream's failure to a fault -------------------------------------------------------


def fault_of_response(status: int, headers: Mapping[str, str], body: bytes) -> Fault:
    """The fault in an upstream's answer that is no completion: not 2xx, or 2xx with anything else in it.

    `headers` in any spelling; of `body` the first 64 KiB are enough. Never raises.
    """
    complaint = read_body(body)
    answered = f"answered {_named(status)} with {complaint.form}"
    if 200 <= status < 300:
        if complaint.is_error:
            return _fault(complaint, _inner_verdict(complaint), answered, headers)
        verdict = _BROKEN._replace(note=f"the upstream {answered} instead of a completion")
        return _fault(complaint, verdict, "", headers)
    return _fault(complaint, _outer_verdict(status, complaint), answered, headers)


def fault_of_error(error: object) -> Fault:
    """The fault in decoded JSON, or a bare string, that reports a failure inside a 200. Never raises."""
    complaint = read_error(error)
    return _fault(complaint, _inner_verdict(complaint), "reported an error and gave no reason", {})


def finish_fault(word: str) -> Fault | None:
    """The fault that a `finish_reason` means in any case, None if the word is an ordinary end."""
    row = FINISH.get(word.strip().lower())
    if row is None:
        return None
    verdict = _of_status(row[0])
    return Fault(verdict.kind, row[1], verdict.status)


def _fault(complaint: Complaint, verdict: Verdict | str, happened: str, headers: Mapping[str, str]) -> Fault:
    """`verdict` is the sentence itself for context overflow; `happened` is for an upstream without words."""
    if isinstance(verdict, str):
        return Fault("invalid_request_error", verdict, 400)
    said = scrub(complaint.text)
    words = scrub(", ".join(word for word in complaint.words if normal(word) != "error"), limit=200)
    happened += f" ({words})" if happened and words else ""
    note = scrub(verdict.note)  # it may quote the title of an HTML page
    if note:
        told = said or (f"it {scrub(happened)}" if happened else "")
        message = f"{note}: {told}" if told else note
    else:
        message = said or f"the upstream {scrub(happened)}"
    worth_waiting = (verdict.status == 429 or verdict.status >= 500) and verdict.should_retry is not False
    if not worth_waiting:
        return Fault(verdict.kind, message, verdict.status, None, verdict.should_retry)
    wait = retry_after(headers, limited=verdict.status == 429) or complaint.retry_after
    return Fault(verdict.kind, message, verdict.status, wait, _asked_retry(headers))


def _outer_verdict(status: int, complaint: Complaint) -> Verdict | str:
    too_long = overflow(complaint.text, complaint.words, prompt=complaint.prompt, window=complaint.window)
    if too_long is not None and by_code(complaint.words):
        return too_long
    if (precise := _precise(complaint)) is not None:
        return _of_status(precise)
    if too_long is not None and status in _OVERFLOW_STATUSES:
        return too_long
    if status in (404, 410) and not _OF_A_MODEL.search(
        " ".join((complaint.text, complaint.subject, *complaint.words))
    ):
        return _NO_PATH
    return _of_status(status)


def _inner_verdict(complaint: Complaint) -> Verdict | str:
    too_long = overflow(complaint.text, complaint.words, prompt=complaint.prompt, window=complaint.window)
    if too_long is not None and by_code(complaint.words):
        return too_long
    if (precise := _precise(complaint)) is not None:
        return _of_status(precise)
    if too_long is not None:
        return too_long
    told = [
        *complaint.codes,
        *filter(None, map(_general, complaint.words)),
        *_by_text(GENERAL_TEXTS, complaint.text),
    ]
    return _of_status(told[0]) if told else _BROKEN


def _of_status(status: int) -> Verdict:
    if status in STATUS:
        return STATUS[status]
    if 300 <= status < 400:
        return _REDIRECT
    return STATUS[400] if 400 <= status < 500 else _BROKEN


def _precise(complaint: Complaint) -> int | None:
    said = {normal(word) for word in complaint.words}
    found = [status for word, status in _PRECISE.items() if word in said]
    return next(iter([*found, *_by_text(PRECISE_TEXTS, complaint.text)]), None)


def _general(word: str) -> int | None:
    """`BadRequestError` is `Bad Request`, `ServiceUnavailableException` is `Service Unavailable`."""
    plain = normal(word)
    spellings = (plain, plain.removesuffix("error"), plain.removesuffix("exception"))
    return next((_GENERAL[spelling] for spelling in spellings if spelling in _GENERAL), None)


def _by_text(rows: tuple[tuple[re.Pattern[str], int], ...], text: str) -> list[int]:
    return [status for pattern, status in rows if pattern.search(text)]


def _named(status: int) -> str:
    try:
        return f"{status} ({HTTPStatus(status).phrase})"
    except ValueError:  # not one of HTTP's own, such as 529
        return str(status)


def _asked_retry(headers: Mapping[str, str]) -> bool | None:
    asked = next(
        (value.strip().lower() for name, value in headers.items() if name.lower() == "x-should-retry"), ""
    )
    return {"true": True, "false": False}.get(asked)


# --- Towards the client --------------------------------------------------------------------------


def error_body(fault: Fault, request_id: str) -> bytes:
    """The error body, for HTTP and `event: error` alike: compact JSON, valid UTF-8 whatever is in it."""
    message = fault.message.encode("utf-8", "replace").decode()
    return msgspec.json.encode(
        {
            "type": "error",
            "error": {"type": fault.kind, "message": message},
            "request_id": request_id.encode("utf-8", "replace").decode(),
        }
    )
