"""A request of an OpenAI client: what must be known of it to route it, and not a word more.

Owns the few members that are read, and the one change that may be made: the bytes of the top-level `model`
value, where the upstream calls the model by another name. Everything else is the upstream's to judge and
passes byte for byte, members that nobody knows and lone surrogates too; so a model's `overrides`
do not apply here.

    request = parse("/chat/completions", b'{"model": "m",  "messages": []}')
    request.model                   -> "m"
    request.sent_as("other").body   -> b'{"model": "other",  "messages": []}'
"""

from __future__ import annotations

import re
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Raw, Struct, structs

from antiphon.core.dialects.chat_request import tokens_of_bytes
from antiphon.core.surfaces.messages.request_reading import RequestError, checked, members_of, printable

__all__ = ["ROUTES", "RelayRequest", "RequestError", "parse"]

ROUTES: Final = ("/chat/completions", "/completions", "/embeddings")
"""What is passed through, as paths under a base URL (platform.openai.com/docs/api-reference)."""


class RelayRequest(Struct, frozen=True):
    """What is known of a request, and its `body` as it came.

    `route` is one of `ROUTES`. `model` is the name that the body has, `model_at` where its value stands.
    `most_tokens` is the client's own limit (None: it set none, or none that can be read), `choices` how many
    answers it wants (`n`, for each prompt). `asks_usage`: a stream will report it. `input_estimate` is in
    tokens and errs on the high side. The last three are what requests of other surfaces have, too.
    """

    route: str
    body: bytes
    model: str
    model_at: tuple[int, int]
    streaming: bool
    most_tokens: int | None
    choices: int
    asks_usage: bool
    input_estimate: int
    side_request: bool = False
    degraded: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()

    @property
    def generates(self) -> bool:
        """The answer is made of tokens."""
        return self.route != "/embeddings"

    @property
    def accept(self) -> str:
        """The media type to ask the upstream for."""
        return "text/event-stream" if self.streaming else "application/json"

    def sent_as(self, model: str) -> RelayRequest:
        """The same request to an upstream that calls the model so."""
        if model == self.model:
            return self
        start, end = self.model_at
        value = msgspec.json.encode(model)
        body = self.body[:start] + value + self.body[end:]
        return structs.replace(self, body=body, model=model, model_at=(start, start + len(value)))


def parse(route: str, body: bytes) -> RelayRequest:
    """Read a body for a route of `ROUTES`. Raises RequestError, whose message begins with the path.

    A member that is given twice is refused: which of the two counts is every reader's own choice, and the
    one that is routed by must be the one that is served.
    """
    # Read with lone surrogates replaced by as many bytes, sent as it came: they are the upstream's to judge.
    mended = checked(body)
    members_of(mended)
    members = _MEMBERS.decode(mended)
    places = _places(mended, members)
    if "model" not in members:
        raise RequestError("model", "Field required")
    streaming = _read(members, "stream", bool | None, "boolean") or False
    return RelayRequest(
        route=route,
        body=body,
        model=_read(members, "model", str, "string"),
        model_at=places["model"],
        streaming=streaming and route != "/embeddings",
        most_tokens=_count(members, "max_completion_tokens") or _count(members, "max_tokens"),
        choices=(_count(members, "n") or 1) * _prompts(members),
        asks_usage=_asks_usage(members) if streaming else True,
        input_estimate=_estimate(members),
    )


_MEMBERS = msgspec.json.Decoder(dict[str, Raw])
_PROMPT = ("messages", "tools", "functions", "prompt", "suffix", "input")
_LARGEST = 2**31
_SPACE = re.compile(rb"[ \t\r\n]*")
_NAME = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_DATA_URL = re.compile(rb'"data:[\w/.+;=-]{1,100};base64,[A-Za-z0-9+/=_-]*')
_DATA_TOKENS = 1600  # about what an image costs, whatever its size on the wire

T = TypeVar("T")


def _read(members: dict[str, Raw], name: str, kind: type[T] | Any, called: str) -> Any:
    raw = members.get(name)
    if raw is None:
        return None
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.DecodeError:
        raise RequestError(name, f"Input should be a valid {called}") from None


def _count(members: dict[str, Raw], name: str) -> int | None:
    """A count, for bookkeeping alone: what cannot be read as one is the upstream's to refuse."""
    try:
        value = msgspec.json.decode(members.get(name, b"null"))
    except (msgspec.DecodeError, RecursionError):
        return None
    whole = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < _LARGEST
    return int(value) if whole else None


def _prompts(members: dict[str, Raw]) -> int:
    """`prompt` may be several: a list of strings, or of lists of token ids."""
    try:
        prompt = msgspec.json.decode(members.get("prompt", b"null"))
    except (msgspec.DecodeError, RecursionError):
        return 1
    several = isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list)
    return len(prompt) if several else 1


def _asks_usage(members: dict[str, Raw]) -> bool:
    try:
        options = msgspec.json.decode(members.get("stream_options", b"null"))
    except (msgspec.DecodeError, RecursionError):
        return False
    return isinstance(options, dict) and options.get("include_usage") is True


def _estimate(members: dict[str, Raw]) -> int:
    size = tokens = 0
    for name in _PROMPT:
        text = bytes(members.get(name, b""))
        size += len(text)
        if b";base64," in text:
            for found in _DATA_URL.finditer(text):
                size -= found.end() - found.start()
                tokens += _DATA_TOKENS
    return tokens + tokens_of_bytes(size)


def _places(body: bytes, members: dict[str, Raw]) -> dict[str, tuple[int, int]]:
    """Where each member's value stands in a body that is known to be one JSON object. Raises RequestError.

    The decoder has measured the values, so that only the names are read again. It keeps the last of two
    equal names: where the value at hand is not the one that it kept, there are two.
    """
    places: dict[str, tuple[int, int]] = {}
    at = _after_space(body, _after_space(body, 0) + 1)  # behind the brace
    while body[at] != ord("}"):
        quoted = _NAME.match(body, at)
        assert quoted is not None  # noqa: S101 -- the body is valid JSON
        name = msgspec.json.decode(quoted[0], type=str)
        start = _after_space(body, _after_space(body, quoted.end()) + 1)  # behind the colon
        value = bytes(members[name])
        end = start + len(value)
        following = _after_space(body, end)
        if name in places or not body.startswith(value, start) or body[following] not in b",}":
            raise RequestError(printable(name), "Given more than once")
        places[name] = (start, end)
        at = following if body[following] == ord("}") else _after_space(body, following + 1)
    return places


def _after_space(body: bytes, at: int) -> int:
    found = _SPACE.match(body, at)
    return found.end() if found else at
