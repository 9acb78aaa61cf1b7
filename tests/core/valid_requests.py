"""Valid Messages requests: every block type in every place, as a Hypothesis strategy.

Wherever a model could read something there is an `@`; `marked` makes a word of its own of each and says where
it stands. Owns no judgement of what becomes of a request.

    marked({"system": "say @"}, words)   -> {"system": "say mk0km"}, words == {"mk0km": "system"}
"""

from __future__ import annotations

import base64
import re
from typing import Any

from hypothesis import strategies as st

BASE64 = "base64 of "
WORD = re.compile(r"mk\d+km")

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
BILLING = block("text", text=st.just("x-anthropic-billing-header: cc_version=2; cch=0;\n@"))
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
                told = draw(WORDS | st.lists(TEXT | shown, min_size=1, max_size=2))
                turns.append({"role": "system", "content": told})
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
        "system": MAYBE | st.lists(TEXT | BILLING, max_size=3),
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
