"""What slots cost and keep: overload, fairness, and the price of sharing them. One run prints a table.

Owns the clients and the sums. The upstream is the bench's mock: every answer takes the same half second, so
that 8 slots serve 16 requests a second, and whatever more is asked is overload. Clients come at random
moments whether they are served or not, each on a connection of its own, and do not come again.

    bench/slots.py                       # ten minutes
    bench/slots.py --seconds 2           # a look
    bench/slots.py --arm workers         # one of: alone, workers, redis
    bench/slots.py --picture docs/goodput.svg                                   # draws what it measured
    bench/slots.py --picture docs/goodput.svg --from bench/results/slots-*.json # draws, measures nothing

Results go to bench/results/slots-*.json. Needs Linux; Redis or Valkey for its rows, which are left out
without it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import platform
import random
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import structlog
import uvloop

import control
import goodput_curve
import meters
import wire
from antiphon.server.admission import Lease, Slots
from antiphon.server.coordination import open_coordinator
from antiphon.server.coordination.shared_slots import SharedSlots

HERE = Path(__file__).resolve().parent
SLOTS = 8
EVENTS, RATE = 250, 500  # of one answer; events per second
CAPACITY = SLOTS * RATE / EVENTS  # requests per second
QUEUE = 16  # that may wait: one second's worth
DEADLINE = 5.0  # seconds from a request to its end; what comes later is no goodput
TERMS = goodput_curve.Terms(slots=SLOTS, queue=QUEUE, answer=EVENTS / RATE, deadline=DEADLINE)
LONG_QUEUE, LONG_QUEUE_SESSIONS = 1000, 500
SESSIONS, PACE, FLOOD = 4, 2.0, 100  # well-behaved sessions, requests a second of each, times the pace


@dataclass
class Request:
    """One client from its coming to its end. Times on the monotonic clock."""

    session: str
    came: float
    status: int = 0
    first: float | None = None
    ended: float | None = None
    whole: bool = False  # it saw the end of its message
    over: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def good(self) -> bool:
        return self.whole and self.ended is not None and self.ended - self.came <= DEADLINE


class Client(asyncio.Protocol):
    """A connection with one request."""

    def __init__(self, request: Request, sent: bytes) -> None:
        self._request = request
        self._sent = sent
        self._start = b""
        self._end = b""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        transport.write(self._sent)

    def data_received(self, data: bytes) -> None:
        request = self._request
        if request.first is None:
            self._start += data
            if not request.status and len(self._start) >= 12:
                request.status = int(self._start[9:12])
            if wire.FIRST_CONTENT["messages"] in self._start:
                request.first = time.monotonic()
        self._end = (self._end + data)[-64:]
        if b'{"type":"message_stop"}' in self._end:
            request.whole = True
            self._transport.abort()
        elif request.status >= 400:
            self._transport.abort()

    def leave(self) -> None:
        self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._request.ended = time.monotonic()
        self._request.over.set()


def sent(session: str, *, endless: bool = False, turns: int = 0) -> bytes:
    """A request. `endless`: its answer never ends; `turns`: a conversation of that many came before it."""
    model = wire.script("paced", rate=1) if endless else wire.script("paced", count=EVENTS, rate=RATE)
    plain = wire.request("messages", model)
    if turns:
        body = json.loads(plain.partition(b"\r\n\r\n")[2])
        before = [("user", "Read the next file. " * 20), ("assistant", "It has this in it. " * 30)]
        body["messages"][:0] = [{"role": role, "content": said} for role, said in before] * turns
        longer = json.dumps(body).encode()
        head = plain.partition(b"\r\n\r\n")[0]
        length = b"Content-Length: %d" % len(longer)
        plain = re.sub(rb"Content-Length: \d+", length, head) + b"\r\n\r\n" + longer
    extra = f"Connection: close\r\nX-Claude-Code-Session-Id: {session}\r\nContent-Length"
    return plain.replace(b"Content-Length", extra.encode(), 1)


async def ask(port: int, session: str, said: bytes = b"") -> Request:
    """One request to its end."""
    request = Request(session, time.monotonic())
    client = Client(request, said or sent(session))
    await asyncio.get_running_loop().create_connection(lambda: client, "127.0.0.1", port)
    try:
        await request.over.wait()
    finally:
        client.leave()
    return request


async def arrivals(port: int, rates: dict[str, float], seconds: float) -> list[Request]:
    """Requests at random moments, `rates` a second for each session. Returns when all have ended."""
    tasks: list[asyncio.Task[Request]] = []
    order = random.Random(7)

    async def come(session: str, rate: float) -> None:
        until = time.monotonic() + seconds
        due = time.monotonic()
        while (due := due + order.expovariate(rate)) < until:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            tasks.append(asyncio.create_task(ask(port, session)))

    await asyncio.gather(*(come(session, rate) for session, rate in rates.items()))
    return list(await asyncio.gather(*tasks))


# --- the gateway's arms ---------------------------------------------------------------------------


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def until_open(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 20
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 0.2):
            return
        if time.monotonic() > deadline or process.poll() is not None:
            raise RuntimeError(f"{process.args} does not listen")
        time.sleep(0.05)


@contextlib.contextmanager
def redis() -> Iterator[str | None]:
    """A server of our own, without data; None if this machine has none."""
    program = shutil.which("valkey-server") or shutil.which("redis-server")
    if program is None:
        yield None
        return
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        options = ["--save", "", "--appendonly", "no", "--dir", folder, "--bind", "127.0.0.1"]
        process = subprocess.Popen(
            [program, "--port", str(port), *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            until_open(port, process)
            yield f"redis://127.0.0.1:{port}/0"
        finally:
            process.kill()
            process.wait()


@contextlib.contextmanager
def gateway(upstream: int, *options: str, queue: int = QUEUE) -> Iterator[tuple[int, int]]:
    """A fresh gateway where `queue` may wait: its port and its process id."""
    port = free_port()
    program = Path(sys.executable).parent / "antiphon"
    url = f"http://127.0.0.1:{upstream}/v1"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ANTIPHON_")}
    process = subprocess.Popen(
        [program, "serve", "--upstream", url, "--slots", str(SLOTS), "--port", str(port), *options],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**environment, "ANTIPHON_QUEUE_LENGTH": str(queue)},
    )
    try:
        until_open(port, process)
        yield port, process.pid
    finally:
        process.terminate()
        process.wait(60)


# --- what is measured -----------------------------------------------------------------------------


def quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))] if values else float("nan")


async def overload(port: int, pid: int, seconds: float) -> list[dict[str, Any]]:
    """Goodput, times and CPU at multiples of the capacity. The gateway is warm."""
    rows: list[dict[str, Any]] = []
    for times in (1, 2, 5, 10):
        rates = {f"s{number}": times * CAPACITY / 10 for number in range(10)}
        before, began = meters.cpu(pid), time.monotonic()
        done = await arrivals(port, rates, seconds)
        took, used = time.monotonic() - began, (meters.cpu(pid) - before).total
        served = [one for one in done if one.whole]
        refused = [one for one in done if one.status == 529]
        waits = [one.first - one.came for one in served if one.first]
        rows.append(
            {
                "times": times,
                "offered": len(done),
                "served": len(served),
                "refused": len(refused),
                "other": len(done) - len(served) - len(refused),
                "goodput": goodput(done, began + 1.0, began + seconds),
                "first_p50": quantile(waits, 0.5),
                "first_p99": quantile(waits, 0.99),
                "refusal_p50": quantile([one.ended - one.came for one in refused if one.ended], 0.5),
                "cpu": used / took,
            }
        )
    return rows


async def rejecting(
    port: int, pid: int, times: int, rounds: int, seconds: float, *, floor: bool = False
) -> dict[str, float]:
    """CPU of an answer and of a refusal, in milliseconds, at so many times the capacity: medians of rounds.

    The slots and the queue are full all the time. In every second round others come at random moments; what
    those rounds cost more than the ones beside them is the refusals'. A round's CPU wavers by a tenth or two
    on a virtual machine: the fewer refusals are in it, the longer and the more rounds it takes.

    `floor`: who comes sends no HTTP, and is told 400 before there is a request: what a connection costs.
    """
    other = b"no HTTP\r\n\r\n" if floor else b""
    order, refused, over = random.Random(3), 0, False
    tasks: set[asyncio.Task[bool]] = set()

    async def once(session: str, said: bytes = b"") -> bool:
        nonlocal refused
        was_refused = (await ask(port, session, said)).status in (400, 529)
        refused += was_refused
        return was_refused

    async def busy(session: str) -> None:
        while not over:
            if await once(session):
                await asyncio.sleep(0.05)

    async def flood() -> None:
        while True:
            await asyncio.sleep(order.expovariate((times - 1) * CAPACITY))
            task = asyncio.create_task(once(f"s{order.randrange(10)}", other))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    async def cost() -> tuple[float, float]:
        """CPU of a second, and refusals in it."""
        before, was, began = meters.cpu(pid).total, refused, time.monotonic()
        await asyncio.sleep(seconds)
        took = time.monotonic() - began
        return (meters.cpu(pid).total - before) / took, (refused - was) / took

    full = [asyncio.create_task(busy(f"s{number % 10}")) for number in range(SLOTS + QUEUE)]
    await asyncio.sleep(2.0)
    without = [await cost()]
    answers, refusals, parts = [], [], []
    for _ in range(rounds):
        others = asyncio.create_task(flood())
        some = await cost()
        others.cancel()
        await asyncio.gather(others, *tasks, return_exceptions=True)
        without.append(await cost())
        before, after = without[-2:]
        answer = (before[0] + after[0]) / 2 / CAPACITY
        refusal = (some[0] - (before[0] + after[0]) / 2) / (some[1] - (before[1] + after[1]) / 2)
        answers.append(answer * 1000)
        refusals.append(refusal * 1000)
        parts.append(refusal / answer)
    over = True
    await asyncio.gather(*full)
    return {
        "times": times,
        "floor": floor,
        "serving_ms": statistics.median(answers),
        "rejecting_ms": statistics.median(refusals),
        "of_serving": statistics.median(parts),
        "of_serving_p25": quantile(parts, 0.25),
        "of_serving_p75": quantile(parts, 0.75),
    }


async def resting(pid: int, seconds: float = 2.0) -> float:
    """The share of a core that goes while nobody comes or leaves."""
    before, began = meters.cpu(pid).total, time.monotonic()
    await asyncio.sleep(seconds)
    return (meters.cpu(pid).total - before) / (time.monotonic() - began)


async def until_waiting(port: int, number: int) -> None:
    """Returns when `number` requests wait in the gateway. Raises TimeoutError if they never do."""

    def waiting() -> int:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            length = re.search(rb"^antiphon_queue_length\{.*\} (\S+)$", answer.read(), re.MULTILINE)
        return int(float(length[1])) if length else 0

    async with asyncio.timeout(30):
        while await asyncio.to_thread(waiting) != number:
            await asyncio.sleep(0.1)


async def refusing(port: int, pid: int, *, queue: int, sessions: int, rounds: int = 100) -> dict[str, Any]:
    """CPU of one refusal when they come one on the other and nothing else happens.

    `queue` requests of so many `sessions` wait for endless answers; who is refused is of one that waits already.
    `cost` is milliseconds, by the size of the request in KiB; what goes for those who wait (`resting`, a share
    of a core) is in it. What the gateway must sum up again whenever its queue has changed is not.
    """
    endless = [sent(f"full{number}", endless=True) for number in range(sessions)]
    full: list[asyncio.Task[Request]] = []
    try:
        for number in range(SLOTS + queue):
            session = number % sessions
            full.append(asyncio.create_task(ask(port, f"full{session}", endless[session])))
            if len(full) % 50 == 0:  # a burst longer than the backlog would be sent again after a second
                await asyncio.sleep(0.02)
        await until_waiting(port, queue)
        costs: dict[str, float] = {}
        idle = await resting(pid, 1.0)
        for turns in (0, 100):
            said = sent("full0", turns=turns)
            before, done = meters.cpu(pid).total, []
            for _ in range(rounds):
                done += await asyncio.gather(*(ask(port, "full0", said) for _ in range(8)))
            statuses = Counter(one.status for one in done)
            assert set(statuses) == {529}, statuses
            costs[str(len(said) // 1024)] = (meters.cpu(pid).total - before) / len(done) * 1000
        assert not any(task.done() for task in full), "somebody who waited was sent away"
    finally:
        for task in full:
            task.cancel()
        await asyncio.gather(*full, return_exceptions=True)
    return {"queue": queue, "sessions": sessions, "resting": idle, "cost": costs}


def goodput(done: list[Request], since: float, until: float) -> float:
    """Answers a second in that time. One that was streamed only partly in it counts for that part."""
    parts = 0.0
    for one in done:
        if one.good and one.first is not None and one.ended is not None:
            inside = min(one.ended, until) - max(one.first, since)
            parts += max(0.0, inside) / (one.ended - one.first)
    return parts / (until - since)


def jain(shares: list[float]) -> float:
    return sum(shares) ** 2 / (len(shares) * sum(one * one for one in shares)) if any(shares) else 0.0


async def fairness(port: int, seconds: float) -> dict[str, Any]:
    """One session asks 100 times as often as each of the others; then all of them ask too much."""
    names = [f"quiet{number}" for number in range(SESSIONS)]
    flooded = await arrivals(port, {"flood": FLOOD * PACE, **dict.fromkeys(names, PACE)}, seconds)
    quiet = [one for one in flooded if one.session != "flood"]
    flood = [one for one in flooded if one.session == "flood"]
    waits = [one.first - one.came for one in quiet if one.first]
    greedy = {f"greedy{number}": CAPACITY * (number + 1) for number in range(SESSIONS)}
    all_of_them = await arrivals(port, greedy, seconds)
    served = Counter(one.session for one in all_of_them if one.whole)
    return {
        "quiet_asked": len(quiet),
        "quiet_served": sum(one.good for one in quiet),
        "quiet_first_p50": quantile(waits, 0.5),
        "quiet_first_p99": quantile(waits, 0.99),
        "flood_asked": len(flood),
        "flood_served": sum(one.good for one in flood),
        "jain_unequal_greed": jain([served[name] for name in greedy]),
    }


async def operations(slots: Slots, other: Slots | None, rounds: int) -> dict[str, float]:
    """A slot got and given back with nobody else there, and how soon after a release the next has it."""
    alone, handed = [], []
    for _ in range(rounds):
        began = time.perf_counter()
        lease = await granted(slots, "a")
        lease.release()
        alone.append(time.perf_counter() - began)
    if other is not None:
        for _ in range(rounds // 4):
            held = [await granted(slots, "a") for _ in range(SLOTS)]
            waiting = asyncio.create_task(granted(other, "b"))
            await asyncio.sleep(0.003)  # it has its place in the queue
            began = time.perf_counter()
            held[0].release()
            lease = await waiting
            handed.append(time.perf_counter() - began)
            for one in (*held, lease):
                one.release()
    return {
        "acquire_p50_us": quantile(alone, 0.5) * 1e6,
        "acquire_p99_us": quantile(alone, 0.99) * 1e6,
        "handed_p50_us": quantile(handed, 0.5) * 1e6,
        "handed_p99_us": quantile(handed, 0.99) * 1e6,
    }


async def granted(slots: Slots, owner: str) -> Lease:
    came: asyncio.Future[Lease] = asyncio.get_running_loop().create_future()
    slots.request(owner, came.set_result)
    return came.result() if came.done() else await came


def local_cost(rounds: int = 20_000) -> dict[str, float]:
    """`admission.Slots` alone, without a loop."""
    slots = Slots("bench", SLOTS)
    leases: list[Lease] = []
    took = []
    for _ in range(5):
        began = time.perf_counter()
        for _ in range(rounds):
            slots.request("a", leases.append)
            leases.pop().release()
        took.append((time.perf_counter() - began) / rounds)
    return {"acquire_p50_us": statistics.median(took) * 1e6}


@contextlib.asynccontextmanager
async def shared(where: str) -> AsyncIterator[SharedSlots]:
    slots = SharedSlots("bench", SLOTS, coordinator=open_coordinator(where, "bench"), lost=lambda lease: None)
    slots.start()
    while not slots.view.born:
        await asyncio.sleep(0.01)
    try:
        yield slots
    finally:
        await slots.aclose()


async def shared_cost(where: str, rounds: int) -> dict[str, float]:
    async with shared(where) as one, shared(where) as two:
        await asyncio.sleep(0.5)  # a coordinator that has just begun is calm for a moment
        return await operations(one, two, rounds)


async def serve_coordination(where: str) -> None:
    """In a process of its own: the one that serves the others."""
    async with shared(where):
        print("up", flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


@contextlib.contextmanager
def coordinating_process() -> Iterator[str]:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        where = f"local:{folder}/slots"
        process = subprocess.Popen(
            [sys.executable, __file__, "--serve-coordination", where],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdout.readline()
            yield where
        finally:
            process.stdin.close()
            process.wait(10)
            process.stdout.close()


# --- the run ---------------------------------------------------------------------------------------


def show(arm: str, results: dict[str, Any]) -> None:
    rows, fair = results["overload"], results["fairness"]
    print(f"\n{arm}: overload, {SLOTS} slots of {CAPACITY:.0f} requests/s in all, {QUEUE} may wait\n")
    print(
        "| offered, times capacity | goodput/s | served | refused | first p50 s | p99 s | 529 after ms | CPU |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for row in rows:
        print(
            f"| {row['times']} | {row['goodput']:.1f} | {row['served']} | {row['refused']}"
            f" | {row['first_p50']:.2f} | {row['first_p99']:.2f} | {row['refusal_p50'] * 1000:.1f}"
            f" | {row['cpu']:.0%} |"
        )
    print()
    for cost in results["rejecting"]:
        print(
            f"at {cost['times']} times capacity: serving {cost['serving_ms']:.2f} ms of CPU ({EVENTS} events), "
            f"{'no more than a 400' if cost['floor'] else 'rejecting'} {cost['rejecting_ms']:.2f} ms: "
            f"{cost['of_serving']:.1%} of it "
            f"({cost['of_serving_p25']:.1%} to {cost['of_serving_p75']:.1%} in the middle half of the rounds)"
        )
    print(f"with nothing to do: {results['resting']:.1%} of a core")
    print(
        f"fairness: one session at {FLOOD} times the pace; the others had {fair['quiet_served']} of "
        f"{fair['quiet_asked']} served, first content p50 {fair['quiet_first_p50']:.2f} s, "
        f"p99 {fair['quiet_first_p99']:.2f} s; it had {fair['flood_served']} of {fair['flood_asked']}. "
        f"All greedy, unequally: Jain {fair['jain_unequal_greed']:.3f}"
    )
    if "refusing" in results:
        show_refusing(results["refusing"], results["rejecting"][0]["serving_ms"])


def show_refusing(rows: Iterable[dict[str, Any]], serving: float) -> None:
    """`serving` is milliseconds of CPU for an answer."""
    print(f"\nrefusals one on the other, ms of CPU and of serving an answer of {EVENTS} events\n")
    print("| waiting | of sessions | request | a refusal | of serving | resting |\n|---|---|---|---|---|---|")
    for row in rows:
        for size, cost in row["cost"].items():
            print(
                f"| {row['queue']} | {row['sessions']} | {size} KiB | {cost:.2f} ms | {cost / serving:.1%}"
                f" | {row['resting']:.1%} |"
            )


async def run_arm(upstream: int, options: list[str], seconds: float) -> dict[str, Any]:
    results: dict[str, Any] = {}
    # with workers the CPU is the supervisor's and its children's, and the queue everybody's
    alone = not options
    with gateway(upstream, *options) as (port, pid):
        await arrivals(port, {"warm": CAPACITY}, 1.0)
        results["resting"] = await resting(pid)
        results["overload"] = await overload(port, pid, seconds)
        results["rejecting"] = [
            await rejecting(port, pid, 10, rounds=10, seconds=max(1.0, seconds / 2)),
            await rejecting(port, pid, 50, rounds=10, seconds=max(1.0, seconds / 4)),
            await rejecting(port, pid, 10, rounds=10, seconds=max(1.0, seconds / 4), floor=True),
        ]
        results["fairness"] = await fairness(port, seconds)
        if alone:
            results["refusing"] = [await refusing(port, pid, queue=QUEUE, sessions=1)]
    if alone:
        with gateway(upstream, queue=LONG_QUEUE) as (port, pid):
            results["refusing"].append(
                await refusing(port, pid, queue=LONG_QUEUE, sessions=LONG_QUEUE_SESSIONS)
            )
    return results


def measure(arms: list[str], seconds: float) -> dict[str, Any]:
    results: dict[str, Any] = {}
    run: Callable[..., Any] = uvloop.run
    with redis() as url, contextlib.closing(control.Worker("mock_upstream.py")) as mock:
        upstream = mock.call("listen")
        cost: dict[str, dict[str, float]] = {"this process": local_cost()}
        with coordinating_process() as where:
            cost["local:"] = run(shared_cost(where, 800))
        if url is not None:
            cost["redis://"] = run(shared_cost(url, 800))
        results["cost"] = cost
        print(
            "| slots of | acquire and release p50 | p99 | next one has it p50 | p99 |\n|---|---|---|---|---|"
        )
        for name, row in cost.items():
            cells = [f"{value:.1f} µs" for value in row.values()]
            print(f"| {name} | " + " | ".join((*cells, "", "", "")[:4]) + " |")
        options = {
            "alone": [],
            "workers": ["--workers", "2"],
            "redis": ["--workers", "2", "--coordination", str(url)],
        }
        for arm in arms:
            if arm == "redis" and url is None:
                print("left out: redis (no server)")
                continue
            results[arm] = run(run_arm(upstream, options[arm], seconds))
            show(arm, results[arm])
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=8.0, help="of arrivals for each reading")
    parser.add_argument("--arm", action="append", choices=["alone", "workers", "redis"])
    parser.add_argument("--serve-coordination", metavar="WHERE", help=argparse.SUPPRESS)
    parser.add_argument("--picture", type=Path, metavar="SVG", help="draw the goodput into this file")
    parser.add_argument(
        "--from",
        dest="recorded",
        type=Path,
        nargs="+",
        metavar="JSON",
        help="of earlier runs, the newest last: measure nothing, only draw",
    )
    chosen = parser.parse_args()
    if chosen.recorded:
        if chosen.picture is None:
            parser.error("--from says what to draw: it needs --picture")
        try:
            print(goodput_curve.draw(chosen.picture, chosen.recorded, TERMS))
        except ValueError as wrong:
            parser.error(f"--from: {wrong}")
        return
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(30))
    if chosen.serve_coordination:
        uvloop.run(serve_coordination(chosen.serve_coordination))
        return
    meters.raise_descriptor_limit()
    began, load = datetime.now(UTC), os.getloadavg()[0]
    results = measure(chosen.arm or ["alone", "workers", "redis"], chosen.seconds)
    folder = HERE / "results"
    folder.mkdir(exist_ok=True)
    about = {
        "began": began.isoformat(timespec="seconds"),
        "command": sys.argv[1:],
        "load_before": load,
        "cpus": meters.CPUS,
        "cpu": meters.cpu_model(),
        "python": platform.python_version(),
        "slots": SLOTS,
        "queue": QUEUE,
    }
    path = folder / f"slots-{began:%Y-%m-%dT%H%M%SZ}.json"
    path.write_text(json.dumps({"about": about, "results": results}, indent=1) + "\n")
    print(f"\nload before: {load:.2f} on {meters.CPUS} CPUs; all readings: {path.relative_to(HERE.parent)}")
    if chosen.picture is not None:
        print(goodput_curve.draw(chosen.picture, [path], TERMS))


if __name__ == "__main__":
    main()
