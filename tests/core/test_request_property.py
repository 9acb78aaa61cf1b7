"""Any valid Messages request becomes a legal Chat Completions body, and everything in it is accounted for.

Requests are drawn with `@` wherever a model could read something; each `@` becomes a word of its own whose
path is known. Afterwards every word is in the body, once and on the right side of the conversation, or its
path is named as degraded or ignored, or the whole request was refused with the path of what cannot be carried.

Where the `openai` package is installed its own types judge the body as well.
"""

from __future__ import annotations

import base64
import importlib.util
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from msgspec import structs

from antiphon.core.dialects.chat_request import ChatRequest, encode
from antiphon.core.dialects.quirks import GENERIC, Quirks, by_name, names
from antiphon.core.surfaces.messages.request import RequestError, parse

BASE64 = "base64 of "
ROWS = [*map(by_name, names()), structs.replace(GENERIC, images="none", system_turns="in_place")]

# --- Requests -------------------------------------------------------------------------------------

WORDS = st.sampled_from(["@", "say @", "@\nand on", " @ ", '"@" \\ \u2028 é 😀', "<b>@</b>", "@\x00\x7f"])
MAYBE = st.sampled_from(["", " ", "\n"]) | WORDS
CACHE = {"cache_control": st.just({"type": "ephemeral"})}


def block(kind: str, optional: dict | None = None, **members: Any) -> st.SearchStrategy[dict]:
    given_as = {
        name: each if isinstance(each, st.SearchStrategy) else st.just(each) for name, each in members.items()
    }
    return st.fixed_dictionaries({"type": st.just(kind), **given_as}, optional=optional or {})


TEXT = block("text", text=MAYBE, optional={**CACHE, "citations": st.none() | st.just([])})
BASE64_SOURCE = block("base64", media_type=st.sampled_from(["image/png", "image/jpeg"]), data="iVBORw0KGgo@")
URL_SOURCE = block("url", url=st.sampled_from(["https://pictures.example/@.png", "http://a.example/?q=@"]))
IMAGE = block("image", source=BASE64_SOURCE | URL_SOURCE, optional=CACHE)
CITED = st.none() | st.fixed_dictionaries({"enabled": st.booleans()})
DOCUMENT = block(
    "document",
    source=st.one_of(
        block("text", media_type="text/plain", data=WORDS),
        block("content", content=WORDS | st.lists(TEXT | IMAGE, min_size=1, max_size=2)),
        block("base64", media_type=st.sampled_from(["text/plain", "application/json"]), data=f"{BASE64}@"),
    ),
    optional={"title": st.none() | WORDS, "context": st.none() | WORDS, "citations": CITED, **CACHE},
)
SEARCH_RESULT = block(
    "search_result",
    source=WORDS,
    title=WORDS,
    content=st.lists(block("text", text=WORDS), min_size=1, max_size=2),
    optional={"citations": CITED},
)
REFERENCE = block("tool_reference", tool_name=st.sampled_from(["later", "search_files"]))
SHOWN = st.one_of(TEXT, IMAGE, DOCUMENT, SEARCH_RESULT)
NOT_CARRIED = st.one_of(
    block("document", source=block("base64", media_type="application/pdf", data="JVBERi0@")),
    block("document", source=block("url", url="https://documents.example/@.pdf")),
    block("document", source=block("file", file_id="file_@")),
    block("image", source=block("file", file_id="file_@")),
    block("container_upload", file_id="file_@"),
)
THOUGHT = st.one_of(
    block("thinking", thinking=WORDS, signature=st.sampled_from(["", "EqQBCgIYAhIM"])),
    block("redacted_thinking", data="@"),
)
SERVER_SIDE = st.one_of(
    block(
        "server_tool_use", id="srvtoolu_1", name="web_search", input=st.fixed_dictionaries({"query": WORDS})
    ),
    block(
        "web_search_tool_result",
        tool_use_id="srvtoolu_1",
        content=st.lists(
            block(
                "web_search_result", url="https://found.example/@", title=WORDS, encrypted_content="sealed"
            ),
            min_size=1,
            max_size=2,
        ),
    ),
    block("mcp_tool_use", id="mcptoolu_1", name="find", server_name="here", input=st.just({"q": "@"})),
    block("mcp_tool_result", tool_use_id="mcptoolu_1", content=st.lists(TEXT, max_size=1)),
)
SCALAR = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), WORDS
)
VALUE = st.recursive(
    SCALAR,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("ab"), inner),
    max_leaves=4,
)
TOOL_NAMES = ("read_file", "n" * 100, "bash", "later", "search_files")
CALL = block(
    "tool_use",
    id="",
    name=st.sampled_from(TOOL_NAMES),
    input=st.dictionaries(st.sampled_from(["path", "a b", "é"]), VALUE, max_size=2),
    optional=CACHE,
)
RESULT = block(
    "tool_result",
    tool_use_id="",
    optional={"content": MAYBE | st.lists(SHOWN | REFERENCE, max_size=3), "is_error": st.booleans(), **CACHE},
)
IDS = st.sampled_from(["toolu_01{}", "call_{}", "toolu_apAABjYWxsXz{}", "functions.f:{}", "{}"])


@st.composite
def conversations(draw: st.DrawFn) -> list[dict]:
    """Turns as a client keeps them: what is asked, said, called, answered, and system turns between."""
    turns: list[dict] = []
    shown = SHOWN if draw(st.integers(0, 3)) else SHOWN | NOT_CARRIED
    said = st.one_of(TEXT, THOUGHT, SERVER_SIDE)
    form = draw(IDS)
    asked = 0
    for _ in range(draw(st.integers(1, 3))):
        first = draw(
            WORDS | st.lists(shown, max_size=3).map(lambda each: [{"type": "text", "text": "@"}, *each])
        )
        turns.append({"role": "user", "content": first})
        while draw(st.booleans()):
            calls = draw(st.lists(CALL, max_size=3))
            for call in calls:
                asked += 1
                call["id"] = form.format(asked)
            spoken = draw(st.lists(said, min_size=0 if calls else 1, max_size=3))
            turns.append({"role": "assistant", "content": [*spoken, *calls]})
            results = [draw(RESULT) | {"tool_use_id": call["id"]} for call in draw(st.permutations(calls))]
            if results or draw(st.booleans()):
                more = draw(st.lists(shown, min_size=0 if results else 1, max_size=2))
                turns.append({"role": "user", "content": [*results, *more]})
            if draw(st.integers(0, 3)) == 0:
                turns.append(
                    {"role": "system", "content": draw(WORDS | st.lists(TEXT, min_size=1, max_size=2))}
                )
    if draw(st.integers(0, 4)) == 0:
        turns.append({"role": "assistant", "content": draw(WORDS)})  # to be continued
    return turns


SCHEMA = st.sampled_from(
    [
        {
            "type": "object",
            "properties": {"path": {"type": "string", "description": "@"}},
            "required": ["path"],
        },
        {"type": "object"},
        {"type": "object", "properties": {}, "required": None},
        {"$ref": "#/$defs/x", "$defs": {"x": {"type": "object", "description": "@"}}},
        {"anyOf": [{"type": "object"}, {"type": "null"}], "additionalProperties": False, "$schema": "@"},
    ]
)
OWN_TOOL = st.fixed_dictionaries(
    {"name": st.sampled_from(TOOL_NAMES), "input_schema": SCHEMA},
    optional={
        "type": st.sampled_from([None, "custom"]),
        "description": WORDS,
        "strict": st.booleans(),
        "defer_loading": st.booleans(),
        "input_examples": st.lists(st.just({"path": "@"}), max_size=1),
        "eager_input_streaming": st.booleans(),
        **CACHE,
    },
)
DEFINED_TOOL = st.sampled_from(
    [
        {"type": "bash_20250124", "name": "bash"},
        {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool", "max_characters": 1000},
        {"type": "memory_20250818", "name": "memory"},
        {"type": "computer_20250124", "name": "computer", "display_width_px": 800, "display_height_px": 600},
    ]
)
SERVER_TOOL = st.sampled_from(
    [
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 2},
        {"type": "code_execution_20250825", "name": "code_execution"},
        {"type": "tool_search_tool_regex_20251119", "name": "tool_search_tool_regex"},
        {"type": "telepathy_20301231", "name": "telepathy"},
    ]
)
TOOLS = st.lists(
    st.one_of(OWN_TOOL, OWN_TOOL, DEFINED_TOOL, SERVER_TOOL), max_size=4, unique_by=lambda each: each["name"]
)


@st.composite
def requests(draw: st.DrawFn) -> dict:
    tools = draw(TOOLS)
    choices = [{"type": "auto"}, {"type": "none"}]
    if tools:
        choices += [{"type": "any"}, {"type": "tool", "name": tools[0]["name"]}]
    choice = st.sampled_from(choices).flatmap(
        lambda each: (
            st.just(each)
            | st.booleans().map(
                lambda single: (
                    each if each["type"] == "none" else {**each, "disable_parallel_tool_use": single}
                )
            )
        )
    )
    effort = st.sampled_from(["low", "medium", "high", "xhigh", "max"])
    shape = block("json_schema", schema=SCHEMA)
    budget = st.integers(1024, 10_000)
    optional = {
        "system": MAYBE | st.lists(TEXT, max_size=3),
        "stream": st.booleans(),
        "tool_choice": choice,
        "stop_sequences": st.lists(WORDS | st.just(""), max_size=6),
        "temperature": st.floats(0, 1),
        "top_p": st.floats(0, 1),
        "top_k": st.integers(0, 100),
        "thinking": st.one_of(
            block("enabled", budget_tokens=budget, optional={"display": st.just("summarized")}),
            block("disabled"),
            block("adaptive", optional={"display": st.just("omitted")}),
        ),
        "output_config": st.fixed_dictionaries({}, optional={"effort": effort, "format": shape}),
        "output_format": shape,
        "metadata": st.just({"user_id": "user_1_account_2"}),
        "service_tier": st.sampled_from(["auto", "standard_only"]),
        "context_management": st.sampled_from(
            [
                {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
                {"edits": [{"type": "clear_tool_uses_20250919"}]},
            ]
        ),
        "container": st.just("container_1"),
    }
    whole = draw(
        st.fixed_dictionaries(
            {"model": st.just("a-model"), "max_tokens": st.integers(0, 40_000), "messages": conversations()},
            optional=optional,
        )
    )
    return {**whole, "tools": tools} if tools or draw(st.booleans()) else whole


def marked(value: Any, words: dict[str, str], path: str = "") -> Any:
    """The value with a word of its own for each `@`; `words` gets each word's path."""
    if isinstance(value, dict):
        return {name: marked(each, words, f"{path}.{name}".lstrip(".")) for name, each in value.items()}
    if isinstance(value, list):
        return [marked(each, words, f"{path}.{i}") for i, each in enumerate(value)]
    if not isinstance(value, str) or "@" not in value:
        return value
    word = f"mk{len(words)}km"
    words[word] = path
    if value.startswith(BASE64):
        return base64.b64encode(value.removeprefix(BASE64).replace("@", word).encode()).decode()
    return value.replace("@", word)


# --- The body -------------------------------------------------------------------------------------

FUNCTION_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
ROLES = {
    "system": {"role", "content"},
    "user": {"role", "content"},
    "assistant": {"role", "content", "tool_calls"},
    "tool": {"role", "tool_call_id", "content"},
}
Check = Callable[[Any], bool]


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def is_strings(value: Any) -> bool:
    return isinstance(value, list) and value != [] and all(isinstance(each, str) and each for each in value)


BODY: dict[str, Check] = {
    "model": lambda value: value == "a-model",
    "messages": lambda value: isinstance(value, list) and value != [],
    "max_tokens": is_count,
    "max_completion_tokens": is_count,
    "temperature": is_number,
    "top_p": is_number,
    "stop": is_strings,
    "stream": lambda value: value is True,
    "stream_options": lambda value: (
        value.pop("include_usage") is True and set(value) <= {"continuous_usage_stats"}
    ),
    "tools": lambda value: isinstance(value, list) and value != [],
    "tool_choice": lambda value: True,
    "parallel_tool_calls": lambda value: value is False,
    "response_format": lambda value: (
        value["type"] == "json_schema" and isinstance(value["json_schema"]["schema"], dict)
    ),
    "reasoning_effort": lambda value: isinstance(value, str),
}
"""Source: OpenAI's API reference for `POST /v1/chat/completions`."""


def check_body(body: dict, quirks: Quirks) -> None:
    """It has the members and types of the API, and beside them only what this server's row says."""
    own = {name for name, _ in (*quirks.members, *quirks.prefill, *quirks.thinking_off)}
    own |= {quirks.thinking_budget_field} if quirks.thinking_budget_field else set()
    own |= {"top_k"} if quirks.send_top_k else set()
    assert set(body) <= set(BODY) | own, set(body) - set(BODY) - own
    assert {"model", "messages", "stream", quirks.token_limit_field} <= set(body)
    for name in set(body) & set(BODY):
        assert BODY[name](body[name]), (name, body[name])
    if quirks.max_stop is not None:
        assert len(body.get("stop", ())) <= quirks.max_stop
    check_tools(body, quirks)
    check_messages(body["messages"], quirks)


def check_tools(body: dict, quirks: Quirks) -> None:
    functions = {}
    for tool in body.get("tools", ()):
        assert set(tool) == {"type", "function"}
        assert tool["type"] == "function"
        function = tool["function"]
        assert {"name", "parameters"} <= set(function) <= {"name", "parameters", "description", "strict"}
        assert FUNCTION_NAME.fullmatch(function["name"])
        assert len(function["name"]) <= (quirks.tool_name_limit or 128)
        assert function["parameters"]["type"] == "object"
        assert isinstance(function["parameters"]["properties"], dict)
        assert isinstance(function.get("description", ""), str)
        assert function["name"] not in functions
        functions[function["name"]] = function
    choice = body.get("tool_choice", "auto")
    if not functions:
        assert not {"tools", "tool_choice", "parallel_tool_calls"} & set(body)
    elif isinstance(choice, dict):
        assert choice == {"type": "function", "function": {"name": choice["function"]["name"]}}
        assert choice["function"]["name"] in functions
    else:
        assert choice in {"auto", "none", "required"}


def check_messages(messages: list[dict], quirks: Quirks) -> None:
    reasoning = {*quirks.reasoning_fields_out, "reasoning_details", "extra_content"}
    waiting: list[str] = []
    used: set[str] = set()
    for message in messages:
        role = message["role"]
        allowed = ROLES[role] | (reasoning if role == "assistant" else set())
        assert set(message) <= allowed, set(message) - allowed
        if role == "tool":
            assert message["tool_call_id"] == waiting.pop(0)
            assert isinstance(message["content"], str)
            continue
        assert not waiting, "a call without its result"
        if role == "assistant":
            for call in message.get("tool_calls", ()):
                assert set(call) - {"extra_content"} == {"id", "type", "function"}
                assert call["type"] == "function"
                assert isinstance(json.loads(call["function"]["arguments"]), dict)
                assert FUNCTION_NAME.fullmatch(call["function"]["name"])
                assert call["id"] not in used
                used.add(call["id"])
                waiting.append(call["id"])
            assert "tool_calls" not in message or message["tool_calls"]
            assert isinstance(message["content"], str) or (message["content"] is None and waiting)
        elif role == "system":
            assert isinstance(message["content"], str)
            assert message["content"]
        else:
            check_user_content(message["content"])


def check_user_content(content: Any) -> None:
    assert content
    if isinstance(content, str):
        return
    for part in content:
        if part["type"] == "text":
            assert set(part) == {"type", "text"}
            assert isinstance(part["text"], str)
        else:
            assert part == {"type": "image_url", "image_url": {"url": part["image_url"]["url"]}}
            assert part["image_url"]["url"].startswith(("data:image/", "https://", "http://"))


def openai_types() -> Callable[[dict], None]:
    """The judgement of OpenAI's own types, or none where the package is not installed."""
    if importlib.util.find_spec("openai") is None:
        return lambda body: None
    from openai.types.chat.completion_create_params import CompletionCreateParamsStreaming
    from pydantic import TypeAdapter

    adapter = TypeAdapter(CompletionCreateParamsStreaming)

    def exhaust(value: Any) -> None:
        """Lists are read lazily there: what nobody takes out is not judged."""
        for each in value.values() if isinstance(value, dict) else value:
            if not isinstance(each, str | bytes) and hasattr(each, "__iter__"):
                exhaust(each)

    return lambda body: exhaust(adapter.validate_python(body))


accepted_by_openai = openai_types()

# --- What became of each word ---------------------------------------------------------------------


def strings(value: Any, path: tuple = ()) -> Iterator[tuple[tuple, str]]:
    if isinstance(value, dict):
        for name, each in value.items():
            yield from strings(each, (*path, name))
    elif isinstance(value, list):
        for i, each in enumerate(value):
            yield from strings(each, (*path, i))
    elif isinstance(value, str):
        yield path, value


def beneath(path: str, named: tuple[str, ...]) -> bool:
    return any(path == each or path.startswith(f"{each}.") for each in named)


SIDES = {"user": {"user", "tool"}, "assistant": {"assistant"}, "system": {"user", "system"}}
# Losses that cannot change the answer: reasoning that the server does not want back, and what is sealed.
QUIET = re.compile(r"messages\.\d+\.content\.\d+\.(thinking|data)")


def check_account(words: dict[str, str], whole: dict, body: dict, out: ChatRequest) -> None:
    found: dict[str, list[tuple]] = {word: [] for word in words}
    for where, text in strings(body):
        for word in re.findall(r"mk\d+km", text):
            found[word].append(where)
    for word, path in words.items():
        places = found[word]
        parts = path.split(".")
        if not places:
            silent = QUIET.fullmatch(path) and beneath(re.sub(r"\.\d+", ".*", path), out.ignored)
            assert silent or beneath(path, out.degraded) or is_held_back(parts, whole), (path, out.degraded)
            continue
        in_reasoning = path.endswith(".thinking")
        assert len(places) == 1 or in_reasoning, (path, places)
        if parts[0] == "messages":
            (role,) = {body["messages"][place[1]]["role"] for place in places if place[0] == "messages"}
            assert role in SIDES[whole["messages"][int(parts[1])]["role"]], (path, places)
        if ".source.data" in path or ".source.url" in path:
            source = owner(whole, parts)
            if source["type"] == "image":
                assert places[0][-2:] == ("image_url", "url")


def owner(whole: dict, parts: list[str]) -> dict:
    """The block whose source a word is in."""
    value: Any = whole
    for part in parts[: len(parts) - 2]:
        value = value[int(part) if isinstance(value, list) else part]
    return value


def is_held_back(parts: list[str], whole: dict) -> bool:
    """A tool that is not offered because the client says so: deferred, or another one is demanded."""
    if parts[0] in {"output_config", "output_format"}:
        # Both at once: the newer one counts.
        return parts[0] == "output_format" and "format" in whole.get("output_config", {})
    if parts[0] != "tools":
        return False
    tool = whole["tools"][int(parts[1])]
    forced = whole.get("tool_choice", {})
    return (
        bool(tool.get("defer_loading"))
        or forced.get("type") == "none"
        or forced.get("name", tool["name"]) != tool["name"]
    )


def check_calls(whole: dict, body: dict, out: ChatRequest) -> None:
    """Each call and its result arrive once, in order, with the right name, arguments and one another."""
    blocks = [
        each for turn in whole["messages"] if isinstance(turn["content"], list) for each in turn["content"]
    ]
    wanted = [each for each in blocks if each["type"] == "tool_use"]
    sent = [call for message in body["messages"] for call in message.get("tool_calls", ())]
    names_back = [out.tool_names.get(call["function"]["name"], call["function"]["name"]) for call in sent]
    assert names_back == [each["name"] for each in wanted]
    assert [json.loads(call["function"]["arguments"]) for call in sent] == [each["input"] for each in wanted]
    upstream_id = {each["id"]: call["id"] for each, call in zip(wanted, sent, strict=True)}
    tool_messages = {
        each["tool_call_id"]: each["content"] for each in body["messages"] if each["role"] == "tool"
    }
    for each in blocks:
        if each["type"] == "tool_result":
            text = tool_messages.pop(upstream_id[each["tool_use_id"]])
            assert text.startswith("Error: ") == bool(each.get("is_error"))
            said = {
                word
                for where, said in strings(each.get("content", ""))
                if "url" not in where and "data" not in where
                for word in re.findall(r"mk\d+km", said)
            }
            assert all(word in text for word in said)
    assert not tool_messages
    assert out.history_tool_ids == frozenset(upstream_id)


def resolves(path: str, whole: Any) -> bool:
    """The path is one of the request: of something in it, or of a member that it lacks."""
    value = whole
    parts = path.split(".")
    for i, part in enumerate(parts):
        if isinstance(value, list) and part.isdigit() and int(part) < len(value):
            value = value[int(part)]
        elif isinstance(value, dict) and part in value:
            value = value[part]
        else:
            return i == len(parts) - 1 and isinstance(value, dict)
    return True


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@given(requests(), st.sampled_from(ROWS))
def test_every_valid_request_is_carried_and_accounted_for(drawn: dict, quirks: Quirks) -> None:
    words: dict[str, str] = {}
    whole = marked(drawn, words)
    try:
        out = encode(parse(json.dumps(whole).encode()), quirks)
    except RequestError as refused:
        event("refused")
        assert refused.fault.status == 400
        path = refused.fault.message.partition(":")[0]
        assert resolves(path, whole), refused.fault.message
        return
    event("carried")
    body = json.loads(out.body)
    accepted_by_openai(json.loads(out.body))
    check_account(words, whole, body, out)
    check_calls(whole, body, out)
    check_body(body, quirks)
    assert all(resolves(path, whole) for path in out.degraded), out.degraded
