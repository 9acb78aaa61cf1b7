#!/usr/bin/env python3
"""What a request costs: CPU for each non-streaming request, by size, beside nginx passing the same bytes.

    .venv/bin/python bench/request_cost.py            every size, about three minutes
    .venv/bin/python bench/request_cost.py --quick    a look, figures not to be quoted
    .venv/bin/python bench/request_cost.py --only claude-code-1 --hold 60    for a profiler

Owns the requests and the loop that sends them; arms, meters and the upstream are those of stream_cpu.py. A
client keeps LANES connections busy, each with one request after another. The upstream answers each with one
event of text and the end, so what is measured is the way of the request: reading, translating, sending.
`planning` is reading and translating alone, in this process; `others` is what neighbours took of the machine.
Linux only: the readings come from /proc.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import uvloop
from rich.table import Table

import arms
import meters
import stream_cpu
import wire
from antiphon.core.dialects.quirks import by_name
from antiphon.core.seal import Sealer
from antiphon.server.plan import Plan, Planner
from antiphon.server.routing import ANY, Route, RouteTable, Target
from arms import Arm
from control import Worker
from load_client import TimedStream
from measures import _spread as spread

RECORDED = arms.HERE.parent / "tests" / "data" / "requests"
LANES = 4
WARM_UP = 0.5  # seconds
AT_MOST_MS = 1.5  # for a request as large as Claude Code's
SIZES = {"1 KB": 1_000, "10 KB": 10_000, "100 KB": 100_000, "1 MB": 1_000_000}

_CLAUDE_CODE = "claude-code-"  # and the number of the turn
_PARAGRAPH = 'The choir sings a line, "and another answers":\n\tfor line in song:\n\t\tprint(line)\n' * 12
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


# --- requests ---


def bodies() -> dict[str, bytes]:
    """The bodies by name: conversations of each size, and what Claude Code sent."""
    found = {name: conversation(size) for name, size in SIZES.items()}
    for path in sorted(RECORDED.glob("*.json")):
        body = json.loads(path.read_text())["body"]
        found[f"{_CLAUDE_CODE}{path.stem[-1]}"] = _encoded({**body, "stream": False})
    return found


def conversation(size: int) -> bytes:
    """A chat of exactly `size` bytes, in turns of about 1 KB."""

    def body(turns: list[str]) -> bytes:
        roles = ("user", "assistant")
        messages = [{"role": roles[i % 2], "content": text} for i, text in enumerate(turns)]
        return _encoded({"max_tokens": 1000, "messages": messages})

    turns = ["Hi."]
    while len(body([*turns, _PARAGRAPH, _PARAGRAPH])) < size:
        turns += [_PARAGRAPH] * max(2, (size - len(body(turns))) // len(_PARAGRAPH) // 4 * 2)
    while len(body(turns)) > size:
        del turns[-2:]
    turns[0] += "x" * (size - len(body(turns)))
    return body(turns)


def _encoded(document: dict[str, Any]) -> bytes:
    """As SDKs write it, except that the model comes first: it tells the upstream what to do."""
    document.pop("model", None)
    model = wire.script("paced", count=1, rate=1000)
    return json.dumps({"model": model, **document}, separators=(",", ":")).encode()


def http_request(surface: str, body: bytes) -> bytes:
    head = (
        f"POST {wire.PATHS[surface]} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


# --- the client ---


class Connection(TimedStream):
    """Asks one whole answer after another: chunked, as nginx passes it, or with a length, as we send it."""

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        head, gap, body = self._received.partition(b"\r\n\r\n")
        length = _LENGTH.search(head)
        whole = bool(gap) and length is not None and len(body) >= int(length[1])
        if whole and self._done is not None and not self._done.done():
            self._done.set_result(None)

    async def ask_whole(self, request: bytes) -> None:
        """Raises RuntimeError for every status but 200."""
        await self.ask(request, b"HTTP/1.1 200")


class Load:
    """LANES connections that ask the same again and again, until `stop`."""

    def __init__(self, arm: Arm, body: bytes) -> None:
        self.answered = 0
        self._port = arm.port
        self._request = http_request(arm.surface, body)
        self._running = True

    async def lane(self) -> None:
        _, connection = await asyncio.get_running_loop().create_connection(
            Connection, "127.0.0.1", self._port
        )
        while self._running:
            await connection.ask_whole(self._request)
            self.answered += 1
        connection.close()

    @contextlib.asynccontextmanager
    async def on(self) -> Any:
        lanes = [asyncio.ensure_future(self.lane()) for _ in range(LANES)]
        try:
            yield self
        finally:
            self._running = False
            await asyncio.gather(*lanes)


async def reading(arm: Arm, body: bytes, window: float, own: int) -> dict[str, Any]:
    """CPU of the arm for each request. `own` is the upstream's process: its CPU is not a neighbour's."""
    assert arm.pid is not None
    async with Load(arm, body).on() as load:
        await asyncio.sleep(WARM_UP)

        def look() -> tuple[Any, ...]:
            ours = meters.cpu(own).total + time.process_time()
            return time.monotonic(), load.answered, meters.cpu(arm.pid), meters.machine(), ours

        before = look()
        await asyncio.sleep(window)
        after = look()
    seconds, requests = after[0] - before[0], after[1] - before[1]
    used, machine = after[2] - before[2], after[3] - before[3]
    if not requests:
        raise RuntimeError(f"{arm.name}: no answer to {len(body)} bytes in {seconds:.1f} s")
    others = machine.busy - used.total - (after[4] - before[4])
    return {
        "ms": used.total / requests * 1e3,
        "user_ms": used.user / requests * 1e3,
        "system_ms": used.system / requests * 1e3,
        "requests": requests,
        "others": max(0.0, others) / (seconds * meters.CPUS),
    }


def planning(body: bytes, times: int = 15) -> float:
    """Milliseconds for reading and translating a body, in this process: the best of several."""
    planner = Planner(RouteTable((Route(ANY, (Target("upstream", by_name("generic")),)),)), Sealer(bytes(32)))
    best = float("inf")
    for _ in range(times):
        start = time.process_time()
        plan = planner.plan(body, read_pdf=_no_pdf)
        best = min(best, time.process_time() - start)
        if not isinstance(plan, Plan):
            raise RuntimeError(plan.message)
    return best * 1e3


def _no_pdf(path: str, *_: object) -> NoReturn:
    """The gateway looks for PDFs in every request; in these there is none."""
    raise AssertionError(path)


# --- the run ---


def main() -> int:
    """Exit status 0 also where the target is missed: the table says so."""
    options = _options()
    wanted = {name: body for name, body in bodies().items() if not options.only or name in options.only}
    rounds, window = (1, 1.0) if options.quick else (options.rounds, options.window)
    about = stream_cpu._about()
    about["command"] = " ".join(["bench/request_cost.py", *sys.argv[1:]])
    stream_cpu.console.print(stream_cpu._about_line(about))
    rows = []
    with Worker("mock_upstream.py") as mock, running(mock.call("listen")) as every_arm:
        if options.hold:
            uvloop.run(_hold(every_arm[-1], next(iter(wanted.values())), options.hold))
            return 0
        for number in range(rounds):
            for name, body in wanted.items():
                for arm in every_arm if number % 2 == 0 else every_arm[::-1]:
                    found = uvloop.run(reading(arm, body, window, mock.pid))
                    rows.append({"round": number + 1, "case": name, "arm": arm.name, **found})
            stream_cpu.console.print(f"  round {number + 1} of {rounds}", style="dim")
    about["load_average_at_end"] = os.getloadavg()
    document = {
        "about": about,
        "quiet": max(row["others"] for row in rows) <= stream_cpu.NEIGHBOURS,
        "quick": options.quick,
        "lanes": LANES,
        "rounds": rows,
        "cases": {name: _summary(rows, name, body) for name, body in wanted.items()},
    }
    stream_cpu.console.print(_report(document))
    if not document["quiet"] or options.quick:
        stream_cpu.console.print("[bold red]The machine was shared, or the run was a quick one.[/]")
    stream_cpu.RESULTS.mkdir(exist_ok=True)
    path = stream_cpu.RESULTS / f"requests-{about['date'].replace(':', '')}.json"
    path.write_text(json.dumps(document, indent=1) + "\n")
    stream_cpu.console.print(f"\nAll readings: {path}")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--only", type=lambda text: text.split(","), help=f"some of {','.join(bodies())}")
    parser.add_argument("--quick", action="store_true", help="one short round: a look, not a measurement")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--window", type=float, default=2.0, help="seconds of one reading")
    parser.add_argument(
        "--hold", type=float, metavar="SECONDS", help="only keep the first load on the gateway"
    )
    return parser.parse_args()


@contextlib.contextmanager
def running(upstream: int) -> Iterator[list[Arm]]:
    """nginx, if this machine has it, and a fresh gateway."""
    with contextlib.ExitStack() as stack:
        starts: list[Callable[[int], Any]] = [arms.gateway]
        if arms.nginx_program() is not None:
            starts.insert(0, arms.nginx)
        yield [stack.enter_context(start(upstream)) for start in starts]


async def _hold(arm: Arm, body: bytes, seconds: float) -> None:
    stream_cpu.console.print(f"requests of {len(body)} bytes through pid {arm.pid} for {seconds:g} s")
    async with Load(arm, body).on():
        await asyncio.sleep(seconds)


def _summary(rows: list[dict[str, Any]], case: str, body: bytes) -> dict[str, Any]:
    summary: dict[str, Any] = {"bytes": len(body), "planning_ms": planning(body)}
    mine = [row for row in rows if row["case"] == case]
    for arm in dict.fromkeys(row["arm"] for row in mine):
        of_arm = [row for row in mine if row["arm"] == arm]
        columns = ("ms", "user_ms", "system_ms", "requests", "others")
        summary[arm] = {name: spread([row[name] for row in of_arm]) for name in columns}
    return summary


def _report(document: dict[str, Any]) -> Table:
    columns = ("bytes", "antiphon", "min to max", "user + system", "planning", "nginx", "others", "at most")
    table = Table(title="CPU per non-streaming request, ms", title_justify="left")
    table.add_column("request", no_wrap=True)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    for name, case in document["cases"].items():
        ms, user, system = (case["antiphon"][column] for column in ("ms", "user_ms", "system_ms"))
        nginx = f"{case['nginx']['ms']['median']:.3f}" if "nginx" in case else ""
        limit = ""
        if name.startswith(_CLAUDE_CODE):
            limit = f"{AT_MOST_MS:g}: " + ("met" if ms["median"] <= AT_MOST_MS else "MISSED")
        table.add_row(
            name,
            f"{case['bytes']:,}",
            f"{ms['median']:.3f}",
            f"{ms['min']:.3f} to {ms['max']:.3f}",
            f"{user['median']:.2f} + {system['median']:.2f}",
            f"{case['planning_ms']:.2f}",
            nginx,
            f"{case['antiphon']['others']['max']:.0%}",
            limit,
        )
    return table


if __name__ == "__main__":
    sys.exit(main())
