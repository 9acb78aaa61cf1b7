"""The real Claude Code CLI, headless, in an empty home, pointed at a gateway on the loopback.

Owns where it is installed, the environment it gets and the reading of its stream-json output. It asserts
nothing.

    cli = ClaudeCode(tmp_path, base_url)
    turn = cli.ask("hi", "--tools", "")
    turn.status, turn.result, turn.blocks("thinking")
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

VERSION = "2.1.197"
# `make live` also plays these tests with the newest release, installed elsewhere.
_MODULES = Path(os.environ.get("ANTIPHON_CLAUDE_CODE_MODULES", Path(__file__).parent / "node_modules"))
_PACKAGES = _MODULES / "@anthropic-ai"
_MACHINE = {"x86_64": "x64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
# npm puts the program itself into one package for each platform; nothing needs to run after the install.
_PROGRAM = _PACKAGES / f"claude-code-{platform.system().lower()}-{_MACHINE}" / "claude"


def missing() -> str | None:
    """Why it cannot be run here; None if it can."""
    return None if _PROGRAM.exists() else "Claude Code: not installed (npm ci in tests/clients)"


@dataclass(frozen=True)
class Turn:
    """What one run printed. `status` is the exit status, None while the process goes on."""

    status: int | None
    messages: list[dict]

    @property
    def result(self) -> dict:
        """The last line: `result` has the text, `is_error` whether it was an error."""
        last = self.messages[-1]
        assert last["type"] == "result", last
        return last

    @property
    def text(self) -> str:
        return self.result["result"]

    def blocks(self, kind: str) -> list[dict]:
        """The content blocks of a type that the model and the tools said, oldest first."""
        spoken = [
            each["message"]["content"] for each in self.messages if each["type"] in ("assistant", "user")
        ]
        lists = [content for content in spoken if isinstance(content, list)]
        return [block for content in lists for block in content if block["type"] == kind]


class ClaudeCode:
    """`home` becomes its home and its working folder."""

    def __init__(self, home: Path, base_url: str, **environment: str) -> None:
        self.folder = home / "work"
        self.folder.mkdir(parents=True)
        self._environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "ANTHROPIC_BASE_URL": base_url,
            "ANTHROPIC_AUTH_TOKEN": "test",
            "ANTHROPIC_MODEL": "reasoning",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "NO_PROXY": "127.0.0.1",
            **environment,
        }

    def move(self, base_url: str) -> None:
        """Its next processes speak to another gateway; home and sessions stay."""
        self._environment["ANTHROPIC_BASE_URL"] = base_url

    def ask(self, prompt: str, *options: str) -> Turn:
        """`claude -p` with this prompt, until it ends."""
        with self.start("--output-format", "stream-json", "--verbose", *options) as process:
            output, errors = process.communicate(prompt, timeout=60)
        lines = [json.loads(line) for line in output.splitlines()]
        assert lines, errors
        return Turn(process.returncode, lines)

    def converse(self, prompts: list[str], *options: str) -> list[Turn]:
        """One process, one turn for each prompt: the next is said when the last was answered."""
        both_ways = ("--input-format", "stream-json", "--output-format", "stream-json", "--verbose")
        turns = []
        with self.start(*both_ways, *options) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            for prompt in prompts:
                said = {"type": "user", "message": {"role": "user", "content": prompt}}
                process.stdin.write(json.dumps(said) + "\n")
                process.stdin.flush()
                messages = []
                for line in process.stdout:
                    messages.append(json.loads(line))
                    if messages[-1]["type"] == "result":
                        break
                turns.append(Turn(process.poll(), messages))
            process.stdin.close()
            process.wait(60)
        return turns

    @contextlib.contextmanager
    def start(self, *options: str) -> Iterator[subprocess.Popen[str]]:
        """The process with pipes at both ends. It is killed when the block is left, if it still runs."""
        with subprocess.Popen(
            [str(_PROGRAM), "-p", *options],
            cwd=self.folder,
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                yield process
            finally:
                process.kill()
