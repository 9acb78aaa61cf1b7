"""Which inference server is it? Judged by what it says of itself, and by where it stands.

Owns the signs of each server, as tables, and where its version and its slots are told. It asks nobody:
what was answered comes in as `Evidence`, what is wrong with an answer only makes it no sign.

    recognise(Evidence("http://127.0.0.1:8080/v1", owners=("llamacpp",), answers={"/props": {...}}))
    -> Recognition(kind="llamacpp", version="b7500", slots=4)
    recognise(Evidence("https://api.mistral.ai/v1"))   -> Recognition("mistral")
    recognise(Evidence("http://127.0.0.1:9/v1"))       -> Recognition("generic")
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final, TypeAlias
from urllib.parse import urlsplit

from msgspec import Struct

from antiphon.core.dialects.quirks import GENERIC, for_version

Path: TypeAlias = tuple[str, ...]

LARGEST_SLOTS: Final = 65536
"""What claims to run more sequences at once is not believed."""


class Evidence(Struct, frozen=True, kw_only=True):
    """What is known of a server. All of it may be wrong, or from something between it and us.

    `owners`: each `owned_by` of its model list; `servers`: each `server` header that came; `answers`: decoded
    JSON by route, where there was some; `metrics`: the beginning of `/metrics`.
    """

    base_url: str
    owners: tuple[str, ...] = ()
    servers: tuple[str, ...] = ()
    answers: Mapping[str, Any] = {}
    metrics: bytes = b""


class Recognition(Struct, frozen=True):
    """`kind` is the name of a row of `core.dialects.quirks`, `generic` for whatever gives no sign.

    `version` is in the server's own words; `slots` is how many sequences it says that it runs at once.
    """

    kind: str = GENERIC.name
    version: str | None = None
    slots: int | None = None


# --- The signs ------------------------------------------------------------------------------------


class Sign(Struct, frozen=True):
    """An answer on `route` that has one of the members `any_of` counts `weight` for `kind`.

    `version` and `slots` are where in it they stand.
    """

    kind: str
    route: str
    any_of: tuple[str, ...]
    weight: int = 3
    version: Path = ()
    slots: Path = ()


SERVER_INFO: Final = ("/server_info?config_format=json", "/get_server_info")

SIGNS: Final = (
    # Its own API; `/v1` is only an adapter to it.
    Sign("ollama", "/api/version", ("version",), version=("version",)),
    Sign(
        "llamacpp",
        "/props",
        ("total_slots", "default_generation_settings"),
        version=("build_info",),
        slots=("total_slots",),
    ),
    # What it resolved for itself is told by its schedulers (`_scheduled`), not by this setting.
    *(
        Sign(
            "sglang",
            route,
            ("internal_states", "max_running_requests", "tp_size"),
            version=("version",),
            slots=("max_running_requests",),
        )
        for route in SERVER_INFO
    ),
    # In development mode only, and nowhere else: /metrics, /load and /version do not tell it.
    Sign(
        "vllm",
        SERVER_INFO[0],
        ("vllm_config",),
        slots=("vllm_config", "scheduler_config", "max_num_seqs"),
    ),
    # Others have this route as well: a weak sign.
    Sign("vllm", "/version", ("version",), weight=1, version=("version",)),
)
"""Answers that only one server gives, the strongest first."""

OWNERS: Final = {
    "vllm": "vllm",
    "sglang": "sglang",
    "llamacpp": "llamacpp",
    "library": "ollama",
    "organization_owner": "lmstudio",
    # Not `openai`: gateways of many kinds say that of every model.
    "system": "openai",
    "openai-internal": "openai",
    "mistralai": "mistral",
}
"""`owned_by` in a model list."""

SERVERS: Final = {"llama.cpp": "llamacpp"}
"""How a `server` header begins."""

METRICS: Final = {b"vllm:": "vllm", b"sglang:": "sglang", b"llamacpp:": "llamacpp"}
"""Prefixes of metrics."""

HOSTS: Final = (
    (re.compile(r"api\.anthropic\.com"), "anthropic-api"),
    (re.compile(r"api\.openai\.com"), "openai"),
    (re.compile(r".+\.(openai|services\.ai|cognitiveservices)\.azure\.com"), "azure"),
    (re.compile(r"openrouter\.ai"), "openrouter"),
    (re.compile(r"api\.deepseek\.com"), "deepseek"),
    (re.compile(r"api\.(moonshot\.(ai|cn)|kimi\.com)"), "kimi"),
    (re.compile(r"api\.z\.ai|open\.bigmodel\.cn"), "glm"),
    (re.compile(r"dashscope[a-z-]*\.aliyuncs\.com"), "qwen"),
    (re.compile(r"api\.minimaxi?\.(io|com|chat)"), "minimax"),
    (re.compile(r"(api|codestral)\.mistral\.ai"), "mistral"),
    (re.compile(r"generativelanguage\.googleapis\.com"), "gemini"),
    (re.compile(r"api\.groq\.com"), "groq"),
    (re.compile(r"api(-inference)?\.together\.(xyz|ai)"), "together"),
    (re.compile(r"(.+\.)?api\.x\.ai"), "xai"),
)
"""Hosted APIs by the whole of their host name."""

ROUTES: Final = tuple(dict.fromkeys(sign.route for sign in SIGNS))
"""What to ask below `root_url`, beside `/models` below the base URL."""

_VERSION_DIRECTORY = re.compile(r"/v\d+(beta)?$")


# --- The judgement --------------------------------------------------------------------------------


def recognise(evidence: Evidence) -> Recognition:
    """The server that most signs speak for. Never raises."""
    hosted = hosted_kind(evidence.base_url)
    votes = _votes(evidence)
    kind = hosted or (votes.most_common(1)[0][0] if votes else GENERIC.name)
    version = slots = None
    for sign in SIGNS:
        if sign.kind == kind and _is_seen(sign, evidence):
            answer = evidence.answers[sign.route]
            version = version or _words(_at(answer, sign.version))
            slots = slots or _scheduled(answer) or _count(_at(answer, sign.slots))
    return Recognition(for_version(kind, version), version, slots)


def hosted_kind(base_url: str) -> str | None:
    """The hosted API at this address: nobody needs to be asked. None for any other address."""
    try:
        host = (urlsplit(base_url).hostname or "").rstrip(".")
    except ValueError:
        return None
    return next((kind for pattern, kind in HOSTS if pattern.fullmatch(host)), None)


def root_url(base_url: str) -> str:
    """The server without the version in its path, and without a query: where `/props` and the like are."""
    return _VERSION_DIRECTORY.sub("", base_url.partition("?")[0].rstrip("/"))


def owners_of(models: Any) -> tuple[str, ...]:
    """Each `owned_by` of a decoded model list, once, in lower case."""
    data = models.get("data") if isinstance(models, dict) else None
    entries = data if isinstance(data, list) else []
    told = [entry.get("owned_by") for entry in entries if isinstance(entry, dict)]
    return tuple(dict.fromkeys(owner.lower() for owner in told if isinstance(owner, str)))


def _votes(evidence: Evidence) -> Counter[str]:
    votes: Counter[str] = Counter()
    for kind in {sign.kind for sign in SIGNS}:
        # A server's routes speak once: two of them are no more proof than one.
        weights = [sign.weight for sign in SIGNS if sign.kind == kind and _is_seen(sign, evidence)]
        votes[kind] += max(weights, default=0)
    for owner in evidence.owners:
        votes[OWNERS.get(owner, "")] += 2
    for name in evidence.servers:
        for start, kind in SERVERS.items():
            votes[kind] += 2 * name.lower().startswith(start)
    for prefix, kind in METRICS.items():
        votes[kind] += 3 * (prefix in evidence.metrics)
    del votes[""]
    return +votes


def _is_seen(sign: Sign, evidence: Evidence) -> bool:
    answer = evidence.answers.get(sign.route)
    return isinstance(answer, dict) and any(answer.get(name) is not None for name in sign.any_of)


def _scheduled(answer: Any) -> int | None:
    """SGLang: what each of its schedulers runs at most, all together."""
    states = _at(answer, ("internal_states",))
    if not isinstance(states, list):
        return None
    told = [_count(_at(state, ("effective_max_running_requests_per_dp",))) for state in states]
    counts = [count for count in told if count is not None]
    return _count(sum(counts)) if len(counts) == len(states) else None


def _at(answer: Any, path: Path) -> Any:
    for name in path:
        answer = answer.get(name) if isinstance(answer, dict) else None
    return answer if path else None


def _words(value: Any) -> str | None:
    """A short printable text, or nothing: it is shown."""
    if not isinstance(value, str) or not 0 < len(value) <= 64 or not value.isprintable():
        return None
    return value


def _count(value: Any) -> int | None:
    is_count = isinstance(value, int) and not isinstance(value, bool) and 0 < value <= LARGEST_SLOTS
    return value if is_count else None
