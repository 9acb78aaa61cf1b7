"""A real vLLM on the CPU, with weights that spell known answers, and one gateway process in front of it.

Owns how it is started and what its metrics say. It runs with the Python that `ANTIPHON_VLLM_PYTHON` names;
`install_vllm.py` makes one.

    async with VllmHouse(tmp_path) as house:
        told = await house.told("Hi.", model="native")
        await house.metrics()      -> (0, 0)    it is idle
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from live.house import House
from live_gateway import free_port, wait_until

PYTHON = os.environ.get("ANTIPHON_VLLM_PYTHON")
REASON = None if PYTHON else "ANTIPHON_VLLM_PYTHON names no Python that has vLLM"

SLOTS = 8
WINDOW = 2048
_READY_WITHIN = 240.0  # seconds; on two idle cores it is 40
_WEIGHTS = Path(__file__).with_name("scripted_weights.py")
_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}
# Its parser takes all for thinking that comes before a `</think>` unless the template's own switch is off. What
# its `/v1/messages` makes of `thinking: disabled` is not that switch.
_QUIET = "overrides = { chat_template_kwargs = { enable_thinking = false } }\n"
_OPTIONS = (
    *("--served-model-name", "reasoning", "--max-num-seqs", str(SLOTS), "--max-model-len", str(WINDOW)),
    *("--host", "127.0.0.1", "--dtype", "bfloat16", "--enforce-eager", "--reasoning-parser", "qwen3"),
    *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
)


@contextlib.contextmanager
def vllm(folder: Path) -> Iterator[str]:
    """vLLM on a free port; its base URL. Its processes are a group of their own, and end with it."""
    assert PYTHON is not None
    model, port, log = folder / "weights", free_port(), folder / "vllm.log"
    environment = {**os.environ, **_ENVIRONMENT}
    subprocess.run([PYTHON, str(_WEIGHTS), str(model)], check=True, env=environment, capture_output=True)
    command = [PYTHON, "-m", "vllm.entrypoints.cli.main", "serve", str(model), "--port", str(port)]
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*command, *_OPTIONS],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def ready() -> bool:
        assert process.poll() is None, log.read_text()[-4000:]
        with (
            contextlib.suppress(OSError),
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health") as answer,
        ):
            return answer.status == 200
        return False

    try:
        wait_until(ready, "vLLM", _READY_WITHIN)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(20)
        with contextlib.suppress(ProcessLookupError):  # its engine has gone with it
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


class VllmHouse(House):
    """See the module. Models: `chat` is its Chat Completions route, `native` its own `/v1/messages`; `-quiet`
    behind either switches thinking off."""

    names = ("chat", "messages")

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, model="chat")
        self.base_url = ""

    async def serve(self) -> str:
        running = vllm(self.folder)
        self.base_url = await asyncio.to_thread(running.__enter__)
        self.opening.push_async_exit(lambda *exc: asyncio.to_thread(running.__exit__, *exc))
        parts = [
            f'[[upstreams]]\nname = "{name}"\nbase_url = "{self.base_url}"\nkind = "{kind}"\nslots = {SLOTS}\n'
            for name, kind in (("chat", "auto"), ("messages", "anthropic"))
        ]
        for name, upstream in (("chat", "chat"), ("native", "messages")):
            model = f'[[models]]\nname = "{name}{{suffix}}"\nupstream = "{upstream}"\nmodel = "reasoning"\n'
            parts.append(model.format(suffix=""))
            parts.append(model.format(suffix="-quiet") + _QUIET)
        return "\n".join(parts)

    async def metrics(self) -> tuple[int, int]:
        """How many requests run in it, and how many wait, by its own metrics."""
        async with self.session.get(f"{self.base_url.removesuffix('/v1')}/metrics") as answer:
            page = await answer.text()
        return _value(page, "num_requests_running"), _value(page, "num_requests_waiting")

    async def busy(self, name: str) -> int:
        return sum(await self.metrics())

    def direct(self, path: str, body: dict):
        """A request past the gateway; the context of its answer."""
        return self.session.post(f"{self.base_url}{path}", json=body)


def _value(page: str, name: str) -> int:
    found = re.findall(rf"^vllm:{name}\{{[^}}]*\}} (\S+)$", page, re.MULTILINE)
    assert found, f"no {name} in its metrics"
    return int(sum(map(float, found)))
