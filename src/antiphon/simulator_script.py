"""What the simulated model says: a deterministic answer, token by token, for one chat request.

It owns the shape of a request as the simulator reads it and the words of every answer. It must not
know sockets, clocks or logs: `simulator.py` paces and sends what this file yields. One token is one
delta; ids come in as an argument, so the same request always gets the same words.

    script = Script(read_request(b'{"messages":[{"role":"user","content":"hi"}]}'), call_id="call_1")
    [delta for delta in script]   # {"reasoning_content": "The"}, ..., {"content": "Hello!"}, ...
    script.finish_reason          # "stop"

What decides the answer, in this order (the prompt is the user's text since the model last spoke):

1. lines `call NAME {json}` in the prompt: exactly these calls, with this text as arguments;
2. `tool_choice` `required` or a function: a call;
3. a tool result since the model last spoke: a closing text that quotes it;
4. the word `long` in the prompt: words without end, until `max_tokens`;
5. tools: a call of the tool that the prompt names, else of the first; two calls of the first two
   tools if the prompt has the word `parallel`;
6. otherwise a short text.

Each answer starts with a little reasoning unless `reasoning_effort` is `none`. `call` lines need
tools in the request, and `tool_choice: "none"` or no tools means text.
"""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeAlias

import msgspec
from msgspec import Meta, Struct

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

MODEL = "reasoning"
"""The one model that the simulator lists. It answers to any other name as well."""

DEFAULT_MAX_TOKENS = 32_768
"""Tokens of an answer whose request sets no limit: the word `long` must end some day."""

_PLAIN_THOUGHT = "The user wrote something short, so I think for a moment and then I answer in one sentence."
_PLAIN_ANSWER = "Hello! I am a scripted model: first I think, then I answer, one token at a time."
_LONG_THOUGHT = "This will be long."
_LONG_ANSWER = "One choir sings a line, the other choir answers it, and so it goes on and on."
_CALL_THOUGHT = "A tool can tell me that, so I call it."
_RESULT_THOUGHT = "The tool has answered."
_QUOTED = 80  # characters of a tool's result in the closing text

Delta: TypeAlias = dict[str, Any]


# --- The request ---------------------------------------------------------------------------------


class RequestError(ValueError):
    """The request cannot be answered: HTTP 400. The text is for the client."""


class _Part(Struct):
    text: str = ""


class _Message(Struct):
    role: str
    content: str | list[_Part] | None = None

    @property
    def text(self) -> str:
        if isinstance(self.content, list):
            return "\n".join(part.text for part in self.content if part.text)
        return self.content or ""


class _Function(Struct):
    name: str
    parameters: dict[str, Any] | None = None


class _Tool(Struct):
    function: _Function


class _FunctionName(Struct):
    name: str


class _NamedTool(Struct):
    function: _FunctionName


class _StreamOptions(Struct):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


_Limit: TypeAlias = Annotated[int, Meta(ge=1)] | None


class ChatRequest(Struct):
    """The fields of `POST /v1/chat/completions` that change the answer. All others are ignored."""

    messages: Annotated[list[_Message], Meta(min_length=1)]
    model: str = MODEL
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    max_tokens: _Limit = None
    max_completion_tokens: _Limit = None
    stop: str | list[str] | None = None
    tools: list[_Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | _NamedTool | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    simulate: dict[str, Any] | None = None
    prompt_tokens: int = 1  # counted by `read_request`: a quarter of the body's bytes, at least 1

    @property
    def limit(self) -> int:
        """How many tokens the answer may have."""
        return self.max_completion_tokens or self.max_tokens or DEFAULT_MAX_TOKENS

    @property
    def stops(self) -> list[str]:
        stops = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return [stop for stop in stops if stop]

    @property
    def turn(self) -> list[_Message]:
        """The messages since the model last spoke (a prefill at the end does not count as speaking)."""
        messages = list(self.messages)
        while messages and messages[-1].role == "assistant":
            messages.pop()
        spoken = (index for index in range(len(messages), 0, -1) if messages[index - 1].role == "assistant")
        return messages[next(spoken, 0) :]

    @property
    def prompt(self) -> str:
        """The last user text of this turn, without what a client adds to it in `<system-reminder>` tags."""
        texts = [message.text for message in self.turn if message.role == "user"]
        return _REMINDER.sub("", texts[-1]) if texts else ""


_REMINDER = re.compile(r"<system-reminder>.*?</system-reminder>", re.DOTALL)


def read_request(body: bytes) -> ChatRequest:
    """Parse a request body. Raises `RequestError` for bad JSON, missing fields and wrong types."""
    try:
        request = msgspec.json.decode(body, type=ChatRequest)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RequestError(f"The request body cannot be read: {error}") from error
    request.prompt_tokens = max(1, len(body) // 4)
    options = request.stream_options
    if options is not None and not request.stream:
        raise RequestError("stream_options is only allowed when stream is true")
    if options is not None and options.continuous_usage_stats and not options.include_usage:
        raise RequestError("stream_options.continuous_usage_stats needs include_usage")
    if isinstance(request.tool_choice, _NamedTool):
        named = request.tool_choice.function.name
        if all(tool.function.name != named for tool in request.tools or []):
            raise RequestError("tool_choice names a function that is not in tools")
    return request


# --- The answer ----------------------------------------------------------------------------------


class _Call(NamedTuple):
    name: str
    arguments: str


class _Token(NamedTuple):
    kind: Literal["reasoning", "content", "tool"]
    delta: Delta


class Script:
    """One answer. Iterating says it; the counters and reasons are current at every step.

    Each step is one token: its delta, or None while the token is held back because a `stop` string
    may begin in it. Text held back when the answer ends comes as one last delta that is no token.
    `stop` strings are looked for in the content, not in the reasoning or in arguments.
    """

    def __init__(self, request: ChatRequest, call_id: str) -> None:
        self._request = request
        self._call_id = call_id
        self.completion_tokens = 0
        self.reasoning_tokens = 0
        self.finish_reason: Literal["stop", "length", "tool_calls"] | None = None
        self.stop_reason: str | None = None
        """The `stop` string that ended the answer, as vLLM reports it in its last choice."""

    def usage(self) -> dict[str, Any]:
        """OpenAI's `usage` object for what has been said so far."""
        prompt = self._request.prompt_tokens
        return {
            "prompt_tokens": prompt,
            "completion_tokens": self.completion_tokens,
            "total_tokens": prompt + self.completion_tokens,
            "completion_tokens_details": {"reasoning_tokens": self.reasoning_tokens},
        }

    def __iter__(self) -> Iterator[Delta | None]:
        calls = _planned_calls(self._request)
        # A named function ends with `stop`, as OpenAI and vLLM have it.
        named = isinstance(self._request.tool_choice, _NamedTool)
        held = ""
        for token in _say(self._request, calls, self._call_id):
            if self.completion_tokens == self._request.limit:
                self.finish_reason = "length"
                break
            self.completion_tokens += 1
            if token.kind == "reasoning":
                self.reasoning_tokens += 1
            if token.kind != "content":
                yield token.delta
                continue
            said, held, self.stop_reason = _cut_at_stop(held + token.delta["content"], self._request.stops)
            yield {"content": said} if said else None
            if self.stop_reason is not None:
                break
        if held:
            yield {"content": held}
        if self.finish_reason is None:
            self.finish_reason = "tool_calls" if calls and not named else "stop"


def _cut_at_stop(text: str, stops: list[str]) -> tuple[str, str, str | None]:
    """What may be said of `text`, what must be held (it may begin a stop string), the stop string found."""
    found = [(text.index(stop), stop) for stop in stops if stop in text]
    if found:
        at, stop = min(found)
        return text[:at], "", stop
    held = max((_overlap(text, stop) for stop in stops), default=0)
    return text[: len(text) - held], text[len(text) - held :], None


def _overlap(text: str, stop: str) -> int:
    """How many characters at the end of `text` are a beginning of `stop`."""
    return next((n for n in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:n])), 0)


def _say(request: ChatRequest, calls: list[_Call], call_id: str) -> Iterator[_Token]:
    results = [message.text for message in request.turn if message.role == "tool"]
    answer: Iterable[str]
    if calls:
        thought, answer = _CALL_THOUGHT, ()
    elif results:
        quote = " ".join(results[-1].split())[:_QUOTED]
        thought, answer = _RESULT_THOUGHT, _words(f'The tool said "{quote}", and that is the answer.')
    elif _has_word("long", request.prompt):
        thought, answer = _LONG_THOUGHT, _endless(_LONG_ANSWER)
    else:
        thought, answer = _PLAIN_THOUGHT, _words(_PLAIN_ANSWER)
    if request.reasoning_effort != "none":
        for word in _words(thought):
            yield _Token("reasoning", {"reasoning_content": word})
    for word in answer:
        yield _Token("content", {"content": word})
    for index, call in enumerate(calls):
        opening = {"index": index, "id": f"{call_id}_{index}", "type": "function"}
        yield _tool_token(opening | {"function": {"name": call.name, "arguments": ""}})
        for at in range(0, len(call.arguments), 6):
            yield _tool_token({"index": index, "function": {"arguments": call.arguments[at : at + 6]}})


def _tool_token(fragment: dict[str, Any]) -> _Token:
    return _Token("tool", {"tool_calls": [fragment]})


def _words(text: str) -> list[str]:
    return re.findall(r"\s*\S+", text)


def _endless(text: str) -> Iterator[str]:
    return itertools.chain(_words(text), itertools.cycle(_words(f" {text}")))


def _has_word(word: str, text: str) -> bool:
    return re.search(rf"\b{word}\b", text, re.IGNORECASE) is not None


# --- Tool calls ----------------------------------------------------------------------------------

_CALL_LINE = re.compile(r"^[ \t]*call[ \t]+(\S+)[ \t]+(\{.*\})\s*?$", re.MULTILINE)


# An agent's full tool box is no request to use it: calling the first of 24 tools at every "hi" would start
# sub-agents that start sub-agents.
_FEW_TOOLS = 8


def _planned_calls(request: ChatRequest) -> list[_Call]:
    tools = [tool.function for tool in request.tools or []]
    choice, prompt = request.tool_choice, request.prompt
    if not tools or choice == "none":
        return []
    most = 1 if request.parallel_tool_calls is False else len(tools)
    if written := [_Call(name, text) for name, text in _CALL_LINE.findall(prompt)]:
        return written[:1] if request.parallel_tool_calls is False else written
    if isinstance(choice, _NamedTool):
        chosen = [tool for tool in tools if tool.name == choice.function.name][:1]
    else:
        spoken = any(message.role == "tool" for message in request.turn) or _has_word("long", prompt)
        if choice != "required" and spoken:
            return []
        wanted = 2 if _has_word("parallel", prompt) else 1
        mentioned = [tool for tool in tools if re.search(rf"(?<!\w){re.escape(tool.name)}(?!\w)", prompt)]
        if choice != "required" and not mentioned and len(tools) > _FEW_TOOLS:
            return []
        chosen = (mentioned + [tool for tool in tools if tool not in mentioned])[: min(wanted, most)]
    return [_Call(tool.name, _arguments(tool)) for tool in chosen]


def _arguments(tool: _Function) -> str:
    schema = tool.parameters or {}
    value = example(schema, schema)
    return msgspec.json.encode(value if isinstance(value, dict) else {}).decode()


def example(schema: Any, root: dict[str, Any], depth: int = 0) -> Any:
    """A small value that satisfies a JSON schema as far as that is easy.

    Knows `const`, `default`, `enum`, `examples`, local `$ref`, `anyOf`, `oneOf`, `allOf`, types,
    required properties, and the least length or value. Not `pattern`, `not` or `if`. `root` is the
    document that `$ref` points into; below a depth of 16 it answers None.
    """
    if not isinstance(schema, dict) or depth > 16:
        return None
    for key in ("const", "default"):
        if key in schema:
            return schema[key]
    for key in ("enum", "examples"):
        if isinstance(schema.get(key), list) and schema[key]:
            return schema[key][0]
    if isinstance(schema.get("$ref"), str):
        return example(_resolve(schema["$ref"], root), root, depth + 1)
    for key in ("anyOf", "oneOf"):
        if options := [option for option in _list(schema.get(key)) if option.get("type") != "null"]:
            return example(options[0], root, depth + 1)
    if parts := _list(schema.get("allOf")):
        values = [example(part, root, depth + 1) for part in parts]
        if all(isinstance(value, dict) for value in values):
            return {key: item for value in values for key, item in value.items()}
        return values[0]
    return _of_type(schema, root, depth)


def _of_type(schema: dict[str, Any], root: dict[str, Any], depth: int) -> Any:
    kind = schema.get("type", "object" if "properties" in schema else "string")
    if isinstance(kind, list):
        kind = next((name for name in kind if name != "null"), "null")
    if kind == "object":
        properties = schema.get("properties")
        properties = properties if isinstance(properties, dict) else {}
        required = schema.get("required")
        names = [name for name in required if isinstance(name, str)] if isinstance(required, list) else []
        return {name: example(properties.get(name, {}), root, depth + 1) for name in names}
    if kind == "array":
        least = _number(schema.get("minItems"), 1)
        return [example(schema.get("items", {}), root, depth + 1) for _ in range(min(int(least), 16))]
    if kind in {"integer", "number"}:
        above = _number(schema.get("exclusiveMinimum"), None)
        least = _number(schema.get("minimum"), 1 if above is None else above + 1)
        value = min(least, _number(schema.get("maximum"), least))
        return int(value) if kind == "integer" else value
    if kind == "boolean":
        return True
    if kind == "string":
        text = _FORMATS.get(str(schema.get("format")), "example")
        return text.ljust(min(int(_number(schema.get("minLength"), 0)), 256), "x")
    return None


_FORMATS = {
    "date": "2026-01-31",
    "date-time": "2026-01-31T12:00:00Z",
    "time": "12:00:00Z",
    "email": "someone@example.com",
    "uri": "https://example.com/",
    "uuid": "00000000-0000-4000-8000-000000000000",
}


def _number(value: Any, otherwise: Any) -> Any:
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else otherwise


def _list(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _resolve(reference: str, root: dict[str, Any]) -> Any:
    """The target of a local reference such as `#/$defs/place`; None if there is none."""
    target: Any = root
    for step in reference.removeprefix("#").split("/")[1:]:
        target = target.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(target, dict) else None
    return target
