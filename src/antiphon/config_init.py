"""The text of a new file of settings: the servers that were chosen, and comments that lead on.

Owns that text. Whatever comes from a server (names, versions) is quoted as TOML or cleaned: it cannot add a
line to the file. No key is in it, only the names of variables.

    config_text([Chosen("vllm", "http://127.0.0.1:8000/v1", models=("qwen3-coder",))])
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final
from urllib.parse import urlsplit

import tomlkit
from msgspec import Struct

from antiphon.config import DEFAULT_SLOTS
from antiphon.config_checks import ANTHROPIC
from antiphon.config_probe import Found
from antiphon.core.dialects import quirks

LABELS: Final = {
    "vllm": "vLLM",
    "sglang": "SGLang",
    "llamacpp": "llama.cpp",
    "ollama": "Ollama",
    "lmstudio": "LM Studio",
    "generic": "a server of no known kind",
}
"""How people call the servers; every other kind is called by its own name."""

PORTS: Final = range(8080, 9080)
"""Where the gateway listens: the first that no chosen server has."""

_HEAD: Final = """\
# Antiphon's settings. Every setting, with its default and meaning: docs/configuration.md.
#
#     antiphon config check     is it right?
#     antiphon config show      what is in force, and where each setting is from
#     antiphon serve            reads ./antiphon.toml; --config reads another
#
# A running gateway takes a changed file up by itself, or on SIGHUP. ${NAME} in a text is the environment
# variable of that name.

[server]
host = "127.0.0.1"    # other addresses need keys: antiphon key new NAME
port = 8080
# keys_file = "antiphon-keys.json"
# strict = true       # refuse requests that cannot be carried in full
"""

_NO_SERVER: Final = """
# Without upstreams the embedded models are served. Yours:
#
# [[upstreams]]
# name = "gpu1"
# base_url = "http://127.0.0.1:8000/v1"
# api_key = "${GPU1_KEY}"
"""

_ALL_NAMES: Final = """
# Any model name passes through as it is. To give clients other names, or to set something:
#
# [[models]]
# name = "claude-*"                 # exact, or a glob; * is the catch-all
# upstream = {upstream}
# model = {model}
# [models.overrides]
# temperature = 0.6
"""

_CLAUDE: Final = """
# Every other name: Claude Code asks for several of its own. Without this they are a 404.
[[models]]
name = "*"
upstream = {upstream}
model = {model}
#
# [[models]]
# name = "claude-*"                 # exact, or a glob; the first that fits wins over *
# upstream = {upstream}
# model = {model}
"""

_TAIL: Final = """
# [limits]              # seconds, or bytes
# first_token = 600
# queue_timeout = 300
"""

_LONGEST_NAME: Final = 200  # characters of a model's name that is worth an entry
_NOT_PLAIN: Final = re.compile(r"[^\x20-\x7e]+")


class Chosen(Struct, frozen=True):
    """A server for the file. `key_variable` names the environment variable with its key.

    `about` is what was found there, "" where nobody answered; `slots` what it told.
    """

    name: str
    base_url: str
    kind: str = "auto"
    about: str = ""
    slots: int | None = None
    key_variable: str | None = None
    models: tuple[str, ...] = ()


def label(found: Found) -> str:
    """How a server is called before people: `vLLM 0.33.0`."""
    name = LABELS.get(found.kind, found.kind)
    return _plain(f"{name} {found.version}" if found.version else name)


def chosen(found: Found, taken: Iterable[str]) -> Chosen:
    """A server that was found, under a name that no other has."""
    return Chosen(
        unused_name(found.kind, taken),
        found.base_url,
        kind=_kind(found),
        about=f"{label(found)}, by its port: it gave no sign of its kind" if found.is_guess else label(found),
        slots=found.slots,
        models=found.models,
    )


def _kind(found: Found) -> str:
    """What the file says: `auto` wherever the gateway will find it out too, and in time."""
    row = quirks.by_name(found.kind)
    if row.speaks == "messages":
        return ANTHROPIC
    # What gave no sign of itself would not be recognised later either; a key must travel in the right header.
    return found.kind if found.is_guess or row.auth != "bearer" else "auto"


def unused_name(kind: str, taken: Iterable[str]) -> str:
    """A name after the kind: `vllm`, or `vllm-2` where that is taken."""
    names = set(taken)
    numbered = (f"{kind}-{number}" for number in range(2, len(names) + 3))
    return kind if kind not in names else next(name for name in numbered if name not in names)


def config_text(servers: Sequence[Chosen]) -> str:
    """The whole file. It can be loaded as it is, once the variables that it names are set."""
    if not servers:
        return _HEAD + _NO_SERVER + _TAIL
    port = _free_port(servers)
    parts = [_HEAD.replace(f"port = {PORTS[0]}", f"port = {port}"), *(_upstream(each) for each in servers)]
    first = next((each for each in servers if each.models), servers[0])
    sample = {
        "upstream": _quoted(first.name),
        "model": _quoted(first.models[0] if first.models else "the server's name for it"),
    }
    places = _places(servers)
    if len(servers) > 1 and places:
        # Without a list every name would go to every server, also to those that do not have it.
        parts += [f"\n{_model(name, upstreams)}" for name, upstreams in places.items()]
        parts.append(_CLAUDE.format(**sample))
    else:
        parts.append(_ALL_NAMES.format(**sample))
    return "".join([*parts, _TAIL])


def _free_port(servers: Sequence[Chosen]) -> int:
    """Where none of the servers on this machine listens: llama.cpp's usual port is ours too."""
    taken = {urlsplit(each.base_url).port for each in servers}
    return next(port for port in PORTS if port not in taken)


def _upstream(server: Chosen) -> str:
    slots = '"auto"' if server.slots is None else str(server.slots)
    lines = [
        "",
        "[[upstreams]]",
        f"name = {_quoted(server.name)}" + (f"    # {_plain(server.about)}" if server.about else ""),
        f"base_url = {_quoted(server.base_url)}",
        f"kind = {_quoted(server.kind)}",
        f"slots = {slots}    # {_slots_told(server)}",
    ]
    if server.key_variable is not None:
        lines.append(f'api_key = "${{{server.key_variable}}}"')
    return "\n".join(lines) + "\n"


def _slots_told(server: Chosen) -> str:
    if server.slots is None and server.about:
        return f"requests at once: it does not tell, so this is {DEFAULT_SLOTS}; set how many it takes"
    return "requests that it may work on at once; the others wait here"


def _places(servers: Sequence[Chosen]) -> dict[str, list[str]]:
    """The upstreams of each model. A name with a star or a question mark would be read as a glob."""
    found: dict[str, list[str]] = {}
    for server in servers:
        for model in dict.fromkeys(server.models):
            if 0 < len(model) <= _LONGEST_NAME and not set(model) & {"*", "?"}:
                found.setdefault(model, []).append(server.name)
    return found


def _model(name: str, upstreams: Sequence[str]) -> str:
    lines = ["[[models]]", f"name = {_quoted(name)}"]
    if len(upstreams) == 1:
        lines.append(f"upstream = {_quoted(upstreams[0])}")
    else:
        targets = ", ".join(f"{{ upstream = {_quoted(each)} }}" for each in upstreams)
        lines.append(f"targets = [{targets}]")
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    """A text as TOML, whatever is in it; a dollar sign stays one."""
    quoted: str = tomlkit.item(text.replace("$", "$$")).as_string()
    return quoted


def _plain(text: str) -> str:
    """A text for a comment."""
    return _NOT_PLAIN.sub(" ", text)[:_LONGEST_NAME]
