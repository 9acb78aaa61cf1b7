"""The five measurements. Each takes a Bench and a Plan and returns plain data for the report.

Owns the methods: what is opened in which order, when readings are taken, what makes a reading unfit. It
knows no target and prints nothing but progress.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import arms
import meters
import wire
from arms import Arm
from control import Worker

RATE = 50  # events per second of a stream
STALL_LIMIT = 28  # seconds; a proxy may drop a client whose window was shut for 30
FAIR = 0.98  # of what was offered must be delivered, or the machine is too small for the load


@dataclass(frozen=True)
class Plan:
    """How much of everything. Times in seconds."""

    rounds: int = 5
    streams: int = 200
    warm_up: float = 3.0
    window: float = 10.0
    ttft_trials: int = 300
    ttft_rounds: int = 3
    ttft_seconds: float = 6.0
    memory_streams: int = 1000
    stalled_clients: int = 20
    cancel_trials: int = 200


QUICK = Plan(
    rounds=2,
    streams=100,
    warm_up=1.0,
    window=3.0,
    ttft_trials=50,
    ttft_rounds=1,
    ttft_seconds=3.0,
    memory_streams=200,
    stalled_clients=5,
    cancel_trials=40,
)


class Bench:
    """The mock upstream, the load client, and the arms that this machine has."""

    def __init__(self, mock: Worker, client: Worker, *, with_nginx: bool, say: Callable[[str], None]) -> None:
        self.mock = mock
        self.client = client
        self.say = say
        self.upstream: int = mock.call("listen")
        self.starts: list[Callable[[int], AbstractContextManager[Arm]]] = [arms.gateway]
        if with_nginx:
            self.starts.insert(0, arms.nginx)
        self._numbers = itertools.count(1)

    def open(self, arm: Arm, streams: int, rate: int = RATE) -> None:
        """Endless streams through an arm, opened over a second or as 200 a second."""
        self.client.call(
            "open_streams",
            port=arm.port,
            surface=arm.surface,
            model=wire.script("paced", rate=rate),
            streams_wanted=streams,
            within=max(1.0, streams / 200),
        )

    def close(self) -> None:
        """Leave all streams, and wait until the upstream sends none. Raises RuntimeError if it goes on."""
        self.client.call("close_streams")
        deadline = time.monotonic() + 10
        while self.mock.call("count")["streaming"]:
            if time.monotonic() > deadline:
                raise RuntimeError("the upstream still sends 10 s after its clients have left")
            time.sleep(0.05)

    def next_numbers(self, count: int) -> int:
        """The first of `count` numbers that no request had before."""
        return [next(self._numbers) for _ in range(count)][0]


# --- CPU per streamed event ---


def cpu_per_event(bench: Bench, plan: Plan) -> dict[str, Any]:
    """Interleaved rounds; the order of the arms turns round each time."""
    if len(bench.starts) == 2:
        with bench.starts[0](bench.upstream) as first, bench.starts[1](bench.upstream) as second:
            return _cpu_rounds(bench, plan, [first, second])
    with bench.starts[0](bench.upstream) as only:
        return _cpu_rounds(bench, plan, [only])


def _cpu_rounds(bench: Bench, plan: Plan, running: list[Arm]) -> dict[str, Any]:
    streams = _bearable(bench, plan, running)
    rounds = []
    for number in range(plan.rounds):
        order = running if number % 2 == 0 else running[::-1]
        for arm in order:
            reading, tries = _fair_reading(bench, plan, arm, streams)
            rounds.append({"round": number + 1, "arm": arm.name, "tries": tries, **reading})
            bench.say(
                f"round {number + 1}/{plan.rounds} {arm.name}: {reading['us_per_event']:.1f} µs per event, "
                f"{reading['delivered']:.3f} of the events, others took {reading['others']:.0%} of the machine"
            )
    summary = {}
    for arm in running:
        mine = [row for row in rounds if row["arm"] == arm.name]
        columns = ("us_per_event", "user_us", "system_us", "client_reads_per_event", "reads_per_event")
        summary[arm.name] = {name: _spread([row[name] for row in mine]) for name in columns}
    result = {
        "streams": streams,
        "asked_streams": plan.streams,
        "rate": RATE,
        "rounds": rounds,
        "arms": summary,
    }
    if len(running) == 2:
        ratios = [
            _row(rounds, number, "antiphon")["us_per_event"] / _row(rounds, number, "nginx")["us_per_event"]
            for number in range(1, plan.rounds + 1)
        ]
        result["ratio_to_nginx"] = _spread(ratios)
    return result


def _row(rounds: list[dict[str, Any]], number: int, arm: str) -> dict[str, Any]:
    return next(row for row in rounds if row["round"] == number and row["arm"] == arm)


def _bearable(bench: Bench, plan: Plan, running: list[Arm]) -> int:
    """How many streams this machine can carry with every arm, mock and client included."""
    streams = plan.streams
    while True:
        readings = [_cpu_reading(bench, arm, streams, 1.0, 3.0) for arm in running]
        if all(_fair(reading) for reading in readings) or streams <= 20:
            return streams
        bench.say(f"{streams} streams are too many for this machine now: trying fewer, for all arms")
        streams = int(streams * 0.8)


def _fair_reading(bench: Bench, plan: Plan, arm: Arm, streams: int) -> tuple[dict[str, Any], int]:
    """A reading in which nobody was starved, if one of three is; and how many it took."""
    for tries in (1, 2, 3):
        reading = _cpu_reading(bench, arm, streams, plan.warm_up, plan.window)
        if _fair(reading):
            break
        bench.say(f"{arm.name}: {reading['delivered']:.3f} of the events were delivered: read once more")
    return reading, tries


def _fair(reading: dict[str, Any]) -> bool:
    return min(reading["delivered"], reading["offered"]) >= FAIR and reading["held_back"] == 0


def _cpu_reading(bench: Bench, arm: Arm, streams: int, warm_up: float, window: float) -> dict[str, Any]:
    assert arm.pid is not None
    bench.open(arm, streams)
    time.sleep(warm_up)
    bench.mock.call("count")
    own = (bench.mock.pid, bench.client.pid)

    def look() -> tuple[Any, ...]:
        client, mock = bench.client.call("count"), bench.mock.call("count")
        used = [meters.cpu(pid).total for pid in own] + [time.process_time()]
        return client, mock, meters.cpu(arm.pid), meters.reads(arm.pid), meters.machine(), used

    before = look()
    time.sleep(window)
    after = look()
    bench.close()
    seconds = after[0]["at"] - before[0]["at"]
    events = after[0]["events"] - before[0]["events"]
    sent = after[1]["events"] - before[1]["events"]
    if after[0]["lost"] or not events:
        raise RuntimeError(f"{arm.name}: {after[0]['lost']} streams were lost, {events} events came")
    used, machine = after[2] - before[2], after[4] - before[4]
    own_used = [b - a for a, b in zip(before[5], after[5], strict=True)]
    everything = seconds * meters.CPUS
    return {
        "us_per_event": used.total / events * 1e6,
        "user_us": used.user / events * 1e6,
        "system_us": used.system / events * 1e6,
        "client_reads_per_event": (after[0]["reads"] - before[0]["reads"]) / events,
        "reads_per_event": (after[3] - before[3]) / events,
        "events": events,
        "seconds": seconds,
        "bytes_per_event": (after[0]["octets"] - before[0]["octets"]) / events,
        "delivered": events / sent,
        "offered": sent / (streams * RATE * seconds),
        "held_back": after[1]["held_back"] - before[1]["held_back"],
        "latest_timer_ms": after[1]["latest_timer_ms"],
        "cpu_share": used.total / seconds,
        "mock_share": own_used[0] / seconds,
        "client_share": own_used[1] / seconds,
        "others": max(0.0, machine.busy - used.total - sum(own_used)) / everything,
        "stolen": machine.stolen / everything,
    }


# --- time to first content ---


def time_to_first_content(bench: Bench, plan: Plan) -> dict[str, Any]:
    """What each arm adds to the direct way, in ms: difference of the quantiles."""
    running: list[Arm] = [arms.direct(bench.upstream)]
    found: dict[str, dict[str, list[float]]] = {}

    def note(case: str, arm: str, seconds: list[float]) -> None:
        found.setdefault(case, {}).setdefault(arm, []).extend(value * 1000 for value in seconds)

    def run() -> None:
        every = [[arm.name, arm.port, arm.surface] for arm in running]
        for case, fresh in (("one at a time", False), ("one at a time, new connection", True)):
            times = bench.client.call("first_content_alone", arms=every, trials=plan.ttft_trials, fresh=fresh)
            for name, seconds in times.items():
                note(case, name, seconds)
            bench.say(f"{case}: done")
        for number in range(plan.ttft_rounds):
            for arm in running if number % 2 == 0 else running[::-1]:
                place = {"port": arm.port, "surface": arm.surface, "lanes": 20}
                among = bench.client.call("first_content_among", **place, seconds=plan.ttft_seconds)
                note("20 streams", arm.name, among)
                at_once = bench.client.call("first_content_at_once", **place, trials=10)
                note("20 in the same instant", arm.name, at_once)
            bench.say(f"20 streams, round {number + 1}/{plan.ttft_rounds}: done")

    _with_all(bench, running, run)
    result: dict[str, Any] = {}
    for case, by_arm in found.items():
        base = {q: quantile(by_arm["direct"], q) for q in (0.5, 0.99)}
        result[case] = {
            name: {
                "samples": len(values),
                "p50": quantile(values, 0.5),
                "p99": quantile(values, 0.99),
                "added_p50": quantile(values, 0.5) - base[0.5],
                "added_p99": quantile(values, 0.99) - base[0.99],
            }
            for name, values in by_arm.items()
        }
    return result


def _with_all(bench: Bench, running: list[Arm], run: Callable[[], None]) -> None:
    """Run with every arm started and warm."""

    def start(rest: list[Callable[[int], AbstractContextManager[Arm]]]) -> None:
        if not rest:
            run()
            return
        with rest[0](bench.upstream) as arm:
            _warm(bench, arm)
            running.append(arm)
            start(rest[1:])

    start(bench.starts)


def _warm(bench: Bench, arm: Arm) -> None:
    bench.open(arm, 20)
    time.sleep(1)
    bench.close()


# --- memory ---


def memory_per_stream(bench: Bench, plan: Plan) -> dict[str, Any]:
    """PSS with many open streams of one event a second, less the warm idle process's. Fresh processes."""
    result = {}
    for start in bench.starts:
        with start(bench.upstream) as arm:
            assert arm.pid is not None
            _warm(bench, arm)
            time.sleep(4)  # idle upstream connections are gone, too
            idle = meters.pss(arm.pid)
            bench.open(arm, plan.memory_streams, rate=1)
            time.sleep(3)
            full = meters.pss(arm.pid)
            open_now = bench.client.call("count")["open"]
            bench.close()
            time.sleep(4)
            result[arm.name] = {
                "streams": open_now,
                "idle_mib": idle / 2**20,
                "kib_per_stream": (full - idle) / open_now / 1024,
                "kib_per_stream_kept_afterwards": (meters.pss(arm.pid) - idle) / open_now / 1024,
            }
            bench.say(f"{arm.name}: {result[arm.name]['kib_per_stream']:.1f} KiB per stream")
    return result


def stalled_readers(bench: Bench, plan: Plan) -> dict[str, Any]:
    """Growth with clients that never read while the upstream sends as fast as it can. Fresh processes."""
    result = {}
    for start in bench.starts:
        with start(bench.upstream) as arm:
            assert arm.pid is not None
            _warm(bench, arm)
            time.sleep(4)
            idle, before = meters.pss(arm.pid), bench.mock.call("count")
            place = {"port": arm.port, "surface": arm.surface}
            bench.client.call("stall", **place, clients=plan.stalled_clients)
            began = still_since = time.monotonic()
            peak, flooded, stopped = 0, -1, False
            while not stopped and time.monotonic() - began < STALL_LIMIT:
                time.sleep(0.25)
                now = bench.mock.call("count")
                peak = max(peak, meters.pss(arm.pid))
                if now["flooded"] != flooded:
                    flooded, still_since = now["flooded"], time.monotonic()
                still = time.monotonic() - still_since
                stopped = still >= 3 and now["paused"] == plan.stalled_clients
            grown = meters.pss(arm.pid) - idle
            bench.client.call("unstall")
            result[arm.name] = {
                "clients": plan.stalled_clients,
                "kib_per_client": grown / plan.stalled_clients / 1024,
                "kib_per_client_peak": max(0, peak - idle) / plan.stalled_clients / 1024,
                "mib_sent_per_client": (flooded - before["flooded"]) / plan.stalled_clients / 2**20,
                "upstream_stopped": stopped,
                "seconds_until_still": still_since - began,
            }
            bench.say(f"{arm.name}: {result[arm.name]['kib_per_client']:.0f} KiB per stalled client")
    return result


# --- cancellation ---

PHASES = {"midstream": "paced", "prefill": "prefill", "before headers": "silent"}


def cancel_latency(bench: Bench, plan: Plan) -> dict[str, Any]:
    """From the client's close to the moment when the upstream sees its own socket end, in ms."""
    running: list[Arm] = [arms.direct(bench.upstream)]
    result: dict[str, Any] = {}

    def run() -> None:
        for arm in running:
            for phase, mode in PHASES.items():
                for how in ("fin", "rst"):
                    result.setdefault(arm.name, {})[f"{phase}, {how.upper()}"] = _leave(
                        bench, plan, arm, mode, how
                    )
            bench.say(f"{arm.name}: done")

    _with_all(bench, running, run)
    return result


def _leave(bench: Bench, plan: Plan, arm: Arm, mode: str, how: str) -> dict[str, Any]:
    bench.mock.call("moments")
    first = bench.next_numbers(plan.cancel_trials)
    place = {"port": arm.port, "surface": arm.surface, "mode": mode, "how": how}
    closed = bench.client.call("leave", **place, first_number=first, trials=plan.cancel_trials, lanes=4)
    arrived: dict[str, float] = {}
    gone: dict[str, float] = {}
    deadline = time.monotonic() + 5
    while len(gone) < len(closed) and time.monotonic() < deadline:
        time.sleep(0.1)
        moments = bench.mock.call("moments")
        arrived.update(moments["arrived"])
        gone.update(moments["gone"])
    # A request that had not arrived when its client left was cancelled in another phase.
    fit = [number for number, moment in closed.items() if arrived.get(number, moment) < moment]
    waits = [(gone[number] - closed[number]) * 1000 for number in fit if number in gone]
    return {
        "trials": len(closed),
        "fit": len(fit),
        "seen": len(waits),
        "p50": quantile(waits, 0.5),
        "p99": quantile(waits, 0.99),
        "max": max(waits, default=float("nan")),
    }


# --- numbers ---


def quantile(values: list[float], q: float) -> float:
    """The value below which a share `q` lies, without interpolation."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))] if ordered else float("nan")


def _spread(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}
