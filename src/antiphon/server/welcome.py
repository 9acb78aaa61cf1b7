"""What a gateway says when it is ready: what it serves, and the lines that point clients at it.

Owns the text; the CLI prints it. Of an upstream it tells the name, never the address or the key.
"""

from __future__ import annotations

from msgspec import Struct
from rich.markup import escape

from antiphon.config import ModelSettings, Settings, UpstreamSettings
from antiphon.server.backends import SIMULATED_MODEL
from antiphon.server.embedded import LOCAL_MODEL

LISTED = 8
"""So many upstreams, and so many models, are listed; of more only the number is told."""

_LOCAL_IS = "llama.cpp with SmolLM2-135M-Instruct: a real, very small model (takes seconds to load)"
_SIMULATED_NOTE = (
    "\n              (this is the simulator: Claude Code's prompt of 26,000 tokens "
    "does not fit the small model)"
)


class _Told(Struct, frozen=True):
    """What is said of the models: the first lines, and a name for the examples below them."""

    lines: list[str]
    model: str
    claude_model: str
    note: str = ""


def welcome(settings: Settings, port: int, config: str | None = None) -> str:
    """Text with rich markup, for the port that was really bound; `config` is the file that was read."""
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    base = f"http://{host}:{port}"
    told = _of_upstreams(settings, base) if settings.upstreams else _of_embedded(settings, base)
    from_file = [] if config is None else [f"  settings from {escape(config)}"]
    claude = f"ANTHROPIC_BASE_URL={base} ANTHROPIC_AUTH_TOKEN={_key(settings)}"
    body = (
        f'{{"model":"{told.model}","max_tokens":64,"stream":true,'
        '"messages":[{"role":"user","content":"hi"}]}'
    )
    header = " -H 'x-api-key: KEY'" if settings.keys_file else ""
    return "\n".join(
        [
            *told.lines,
            *from_file,
            "",
            f"  curl        curl -N {base}/v1/messages -H 'content-type: application/json'{header} \\",
            f"                -d '{body}'".replace("[{", r"\[{"),
            f'  SDK         anthropic.Anthropic(base_url="{base}", api_key="{_key(settings)}")',
            f"  Claude Code {claude} ANTHROPIC_MODEL={told.claude_model} claude{told.note}",
            "",
            "  Ctrl-C drains and stops; a second one stops at once.",
        ]
    )


def _of_upstreams(settings: Settings, base: str) -> _Told:
    serves = f"[bold]Antiphon[/] serves [bold]{base}/v1/messages[/] from"
    one, *others = settings.upstreams
    if others:
        lines = [
            f"{serves} {len(settings.upstreams)} upstreams{_processes(settings)}",
            *_listed([f"{each.name:<14} {_facts(each)}" for each in settings.upstreams]),
        ]
    else:
        lines = [f"{serves} your upstream ({_facts(one)}{_processes(settings)})"]
    if settings.models:
        names = [f"{each.name:<14} {_places(each)}" for each in settings.models]
        lines += ["  models", *(f"  {line}" for line in _listed(names))]
    else:
        lines.append("  any model name passes through: put your server's name where MODEL stands")
    exact = next((each.name for each in settings.models if not _is_glob(each.name)), "MODEL")
    return _Told(lines, exact, exact)


def _of_embedded(settings: Settings, base: str) -> _Told:
    source = f"its embedded upstreams{_processes(settings)}"
    lines = [
        f"[bold]Antiphon[/] serves [bold]{base}/v1/messages[/] from {source}",
        f"  {LOCAL_MODEL:<10} {_LOCAL_IS}",
        f"  {SIMULATED_MODEL:<10} the simulator: scripted thinking, text and tool calls",
    ]
    return _Told(lines, LOCAL_MODEL, SIMULATED_MODEL, _SIMULATED_NOTE)


def _listed(lines: list[str]) -> list[str]:
    shown = [f"  {escape(line)}" for line in lines[:LISTED]]
    more = len(lines) - LISTED
    return [*shown, f"  and {more} more"] if more > 0 else shown


def _facts(upstream: UpstreamSettings) -> str:
    slots = "slots auto" if upstream.slots == "auto" else f"{upstream.slots} slots"
    return f"{slots}, kind {upstream.kind}"


def _places(model: ModelSettings) -> str:
    return "at " + ", ".join(dict.fromkeys(target.upstream for target in model.targets))


def _is_glob(name: str) -> bool:
    return "*" in name or "?" in name


def _key(settings: Settings) -> str:
    return "KEY" if settings.keys_file else "none"


def _processes(settings: Settings) -> str:
    return f", {settings.workers} workers" if settings.workers > 1 else ""
