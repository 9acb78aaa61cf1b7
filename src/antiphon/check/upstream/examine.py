"""All probes in order, and the report they make together.

Owns the order: identity first (it finds the model), then a plain answer; where that fails the rest would
only repeat the failure.

    async with Asker("http://127.0.0.1:8000/v1") as asker:
        report = await examine(asker)
"""

from __future__ import annotations

import asyncio

from antiphon.check.upstream.answers import probe_answers
from antiphon.check.upstream.asking import Asker
from antiphon.check.upstream.complaints import probe_complaints, probe_tokens
from antiphon.check.upstream.findings import Report
from antiphon.check.upstream.identity import probe_identity
from antiphon.check.upstream.leaving import probe_leaving
from antiphon.check.upstream.tools import probe_tools


async def examine(asker: Asker, *, model: str = "", fill_window: bool = True) -> Report:
    """Examine the server. Raises `identity.Unreachable`, nothing else for what a server can send."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    report = Report(url=asker.base_url, model=model)
    await probe_identity(asker, report)
    if await probe_answers(asker, report):
        await probe_tools(asker, report)
        await probe_tokens(asker, report)
        await probe_complaints(asker, report, fill_window=fill_window)
        await probe_leaving(asker, report)
    if reason := asker.spent():
        report.hurts(f"Not everything was asked: {reason.removeprefix('not asked: ')}.")
    report.requests, report.seconds = asker.requests, loop.time() - began
    return report
