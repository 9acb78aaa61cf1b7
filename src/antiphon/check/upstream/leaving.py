"""Does it stop generating when its client leaves? The slot of a client that left is worth a lot.

Owns one long question that is left after its first words. What the server does then is read from its own
numbers (`/slots`, `/metrics`), else guessed from how long another request takes, else unknown.

    await probe_leaving(asker, report)
    report.value("client leaves")   -> "stops within 0.3 s"
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Final

import aiohttp

from antiphon.check.upstream.answers import question
from antiphon.check.upstream.asking import Asker
from antiphon.check.upstream.findings import Report

_TOKENS: Final = 2048
_TEXT: Final = (
    "Count from 1 to 2000 in words, one number on each line. A long answer is wanted; do not stop early."
)
_PATIENCE: Final = 6.0  # seconds until "it goes on" is said
_PROMPT: Final = 2.5  # seconds; SGLang looks every two
_ENOUGH: Final = 1024 * 1024  # bytes that are no frames: it talks, whatever it says
_INTERVAL: Final = 0.1
_WAITED: Final = 1.0  # seconds more than usual: the next request stood in a queue
_RUNNING: Final = re.compile(
    rb"^(?:vllm:num_requests_running|sglang:num_running_reqs|llamacpp:requests_processing)(?:\{[^}]*\})?\s+"
    rb"([0-9.eE+]+)",
    re.MULTILINE,
)
Busy = Callable[[], Awaitable[int | None]]
"""How many requests the server works on, None if it does not tell."""


async def probe_leaving(asker: Asker, report: Report) -> None:
    """Add what happens when the client leaves, and where it can be seen."""
    where, busy = await _report_of_load(asker)
    if where == "/slots":
        report.measure("drain_report", "slots", "/slots says which slots are busy")
    report.say("leaving", "load report", where or "none")
    before = await busy()
    baseline = None if where else (await asker.chat(question(report, "hi", 1))).seconds
    try:
        during = await _ask_and_leave(asker, report, busy)
    except (TimeoutError, aiohttp.ClientError, OSError) as error:
        report.say(
            "leaving", "client leaves", "unknown", f"no stream to leave: {error or type(error).__name__}"
        )
        return
    if where is None:
        await _time_follow_up(asker, report, baseline or 0.0)
    elif during is None or before is None or during <= before:
        report.say("leaving", "client leaves", "unknown", f"{where} did not show the request")
    else:
        await _watch(report, where, busy, before)


async def _report_of_load(asker: Asker) -> tuple[str | None, Busy]:
    async def slots() -> int | None:
        entries = (await asker.get("/slots", at_root=True)).json
        if not isinstance(entries, list):
            return None
        return sum(bool(entry.get("is_processing")) for entry in entries if isinstance(entry, dict))

    async def metrics() -> int | None:
        values = _RUNNING.findall((await asker.get("/metrics", at_root=True)).body)
        try:
            return sum(int(float(value)) for value in values) if values else None
        except ValueError:
            return None

    async def nothing() -> int | None:
        return None

    for where, busy in (("/slots", slots), ("/metrics", metrics)):
        if await busy() is not None:
            return where, busy
    return None, nothing


async def _ask_and_leave(asker: Asker, report: Report, busy: Busy) -> int | None:
    """Read the first words, see how busy the server is, and close the connection."""
    async with asker.opened(question(report, _TEXT, _TOKENS, stream=True)) as response:
        read = b""
        async for piece in response.content.iter_any():
            read += piece
            if read.count(b"data:") >= 2 or len(read) > _ENOUGH:
                break
        return await busy()


async def _watch(report: Report, where: str, busy: Busy, before: int) -> None:
    loop = asyncio.get_running_loop()
    left = loop.time()
    while True:
        now = await busy()
        waited = loop.time() - left
        if now is not None and now <= before:
            break
        if waited > _PATIENCE:
            report.say("leaving", "client leaves", "goes on", f"{where} still shows it after {waited:.0f} s")
            report.measure("cancels_everywhere", False, "it goes on after its client left")
            report.hurts(
                "It goes on generating for a client that left: each abandoned request keeps a slot until"
                " its end."
            )
            return
        await asyncio.sleep(_INTERVAL)
    note = f"{where}, while it generates; a prefill was not tried"
    fast = report.tokens_per_second
    if fast and _TOKENS / fast < 2 * waited:
        report.say("leaving", "client leaves", "unknown", "it answers too fast to tell")
    elif waited <= _PROMPT:
        report.say("leaving", "client leaves", f"stops within {max(waited, _INTERVAL):.1f} s", note)
    else:
        report.say("leaving", "client leaves", f"stops late, after {waited:.1f} s", note)


async def _time_follow_up(asker: Asker, report: Report, baseline: float) -> None:
    """With no report a follow-up that has to wait is the only sign; one that has not proves nothing."""
    after = (await asker.chat(question(report, "hi", 1))).seconds
    if after > 5 * baseline + _WAITED:
        report.say("leaving", "client leaves", "goes on", f"the next request waited {after:.1f} s")
        report.measure("cancels_everywhere", False, "the next request had to wait")
        report.hurts("It goes on generating for a client that left: the next request had to wait.")
    else:
        report.say(
            "leaving", "client leaves", "unknown", "it reports no load, and the next request did not wait"
        )
