"""What a gateway says when it is ready: what it serves, and the lines that point clients at it.

Owns the text; the CLI prints it.
"""

from __future__ import annotations

from antiphon.config import Settings
from antiphon.server.backends import SIMULATED_MODEL
from antiphon.server.embedded import LOCAL_MODEL

_LOCAL_IS = "llama.cpp with SmolLM2-135M-Instruct: a real, very small model (takes seconds to load)"


def welcome(settings: Settings, port: int) -> str:
    """Text with rich markup, for the port that was really bound."""
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    base = f"http://{host}:{port}"
    if settings.upstreams:
        model = "MODEL"
        one = settings.upstreams[0]
        facts = f"{one.slots} slots, kind {one.kind}{_processes(settings)}"
        lines = [
            f"[bold]Antiphon[/] serves [bold]{base}/v1/messages[/] from your upstream ({facts})",
            "  any model name passes through: put your server's name where MODEL stands",
        ]
        claude = f"ANTHROPIC_BASE_URL={base} ANTHROPIC_AUTH_TOKEN=none ANTHROPIC_MODEL={model} claude"
        note = ""
    else:
        model = LOCAL_MODEL
        source = f"its embedded upstreams{_processes(settings)}"
        lines = [
            f"[bold]Antiphon[/] serves [bold]{base}/v1/messages[/] from {source}",
            f"  {LOCAL_MODEL:<10} {_LOCAL_IS}",
            f"  {SIMULATED_MODEL:<10} the simulator: scripted thinking, text and tool calls",
        ]
        claude = (
            f"ANTHROPIC_BASE_URL={base} ANTHROPIC_AUTH_TOKEN=none ANTHROPIC_MODEL={SIMULATED_MODEL} claude"
        )
        note = (
            "\n              (this is the simulator: Claude Code's prompt of 26,000 tokens "
            "does not fit the small model)"
        )
    body = (
        f'{{"model":"{model}","max_tokens":64,"stream":true,"messages":[{{"role":"user","content":"hi"}}]}}'
    )
    return "\n".join(
        [
            *lines,
            "",
            f"  curl        curl -N {base}/v1/messages -H 'content-type: application/json' \\",
            f"                -d '{body}'".replace("[{", r"\[{"),
            f'  SDK         anthropic.Anthropic(base_url="{base}", api_key="none")',
            f"  Claude Code {claude}{note}",
            "",
            "  Ctrl-C drains and stops; a second one stops at once.",
        ]
    )


def _processes(settings: Settings) -> str:
    return f", {settings.workers} workers" if settings.workers > 1 else ""
