#!/usr/bin/env python3
"""Which replica gets a request: round robin, least loaded and prefix affinity on one simulated fleet.

    .venv/bin/python bench/affinity.py             every row, a minute; writes docs/affinity.svg
    .venv/bin/python bench/affinity.py --quick     the first row of the table only, one seed, writes nothing

Owns the choices that are compared and what is shown of them; the fleet is bench/replicas.py's. Requests have real
bodies, and the gateway's own `prefix_chain`, `PrefixIndex` and `order` decide; what a replica says of a request
when it has ended (its cached tokens) is all that the index ever hears of its cache.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import sys
import timeit
from collections.abc import Callable
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import meters
from antiphon.server.placement import Candidate, order
from antiphon.server.prefixes import CAPACITY, PrefixIndex, prefix_chain, root
from pictures import BOLD, DASHED, END, FAINT_INK, MIDDLE, SMALL, Card
from replicas import Fleet, Replica, Request, Result, RoundRobin, simulate

HERE = Path(__file__).resolve().parent
PICTURE = HERE.parent / "docs" / "affinity.svg"
SEEDS = (7, 8, 9, 10, 11)  # the first one's figures are quoted


# --- the choices ---


class LeastLoaded(RoundRobin):
    """The one with the fewest requests; in turn among equals."""

    def order(self, request: Request, replicas: list[Replica]) -> list[Replica]:
        rotated = super().order(request, replicas)
        return sorted(rotated, key=lambda replica: replica.used + replica.waiting)


class Affinity(RoundRobin):
    """The gateway's."""

    def __init__(self, fleet: Fleet) -> None:
        self._slots = fleet.slots
        self._gateways = [PrefixIndex(capacity=fleet.believed) for _ in range(fleet.gateways)]

    def order(self, request: Request, replicas: list[Replica]) -> list[Replica]:
        index, chain = self._gateways[request.gateway], prefix_chain(request.body)
        request.chain = chain
        candidates = [
            Candidate(
                name=str(replica.number),
                free=self._slots - replica.used,
                load=(replica.used + replica.waiting) / self._slots,
                warm=index.warm(replica.target, chain),
                total=chain[-1].size,
            )
            for replica in replicas
        ]
        return [replicas[int(one.name)] for one in order(candidates, root(chain))]

    def sent(self, request: Request, replica: Replica) -> None:
        index = self._gateways[request.gateway]
        request.belief = index.learn(replica.target, request.chain)

    def ended(self, request: Request, replica: Replica) -> None:
        index = self._gateways[request.gateway]
        index.observed(replica.target, request.chain, request.belief, request.cached, request.tokens)


POLICIES: dict[str, Callable[[Fleet], RoundRobin]] = {
    "round robin": RoundRobin,
    "least loaded": LeastLoaded,
    "prefix affinity": Affinity,
}


def every(fleet: Fleet) -> dict[str, Result]:
    """What each of the policies makes of it."""
    return {policy: simulate(fleet, choose) for policy, choose in POLICIES.items()}


def cost() -> dict[str, float]:
    """Microseconds for a request of Claude Code's, as it is sent to a server of the Messages API; the best of many."""
    recorded = HERE.parent / "tests" / "data" / "requests" / "claude-code-2.1.197-turn3.json"
    body = json.dumps(json.loads(recorded.read_text())["body"], separators=(",", ":")).encode()
    chain, index = prefix_chain(body), PrefixIndex()
    targets = [(f"gpu-{number}", "model") for number in range(Fleet.replicas)]
    for target in targets:
        index.learn(target, chain)
    candidates = [Candidate(name=name, free=1, total=chain[-1].size) for name, _ in targets]
    work: dict[str, Callable[[], Any]] = {
        "prefix_chain": lambda: prefix_chain(body),
        "warm, 8 targets": lambda: [index.warm(target, chain) for target in targets],
        "order, 8 targets": lambda: order(candidates, root(chain)),
        "learn": lambda: index.learn(targets[0], chain),
    }
    measured = {
        name: min(timeit.repeat(run, number=100, repeat=20)) / 100 * 1e6 for name, run in work.items()
    }
    return {"body_bytes": len(body), "links": len(chain), **measured}


# --- what is shown ---

BASE = Fleet(seed=SEEDS[0])
ROWS = {
    "the fleet of the picture": BASE,
    "twice the requests": replace(BASE, rate=6.0),
    "more than it can serve": replace(BASE, rate=9.0),
    "the same, waiting at all replicas at once": replace(BASE, rate=9.0, asks="everywhere"),
    "a system prompt of 2,000 tokens in common": replace(BASE, shared=2000),
    "of 8,000": replace(BASE, shared=8000),
    "whole prompts cached (llama.cpp)": replace(BASE, cache="prompts"),
    "four gateways that share slots and nothing else": replace(BASE, gateways=4),
    "half the cache": replace(BASE, cached_sessions=20),
    "the cache taken to be 8 times what it is": replace(BASE, believed=8 * CAPACITY),
    "an eighth": replace(BASE, believed=CAPACITY // 8),
}


def show(name: str, results: dict[str, Result]) -> None:
    cells = [f"{one.cached:.0%}, {one.first_p50:.2f}, {one.first_p95:.2f}" for one in results.values()]
    most = next(iter(results.values())).possible
    print(f"| {name} | {most:.0%} | " + " | ".join(cells) + " |", flush=True)


def claim(results: dict[str, Result]) -> tuple[float, float]:
    """How many times round robin's share of cached tokens affinity has, and its p95 over round robin's."""
    plain, ours = results["round robin"], results["prefix affinity"]
    return ours.cached / plain.cached, ours.first_p95 / plain.first_p95


COLOURS = {"round robin": "#9a6700", "least loaded": "#8250df", "prefix affinity": "#1a7f37"}


def picture(results: dict[str, Result]) -> str:
    """An SVG: cached shares on the left, how soon the first token comes on the right."""
    card = Card(860, 330, "Prefix affinity against round robin and least loaded, on a simulated fleet")
    card.text(24, 32, "Prompt tokens found in the cache", BOLD)
    left, wide = 24, 330
    for number, (name, result) in enumerate(results.items()):
        y = 62 + 68 * number
        card.text(left, y, name)
        card.bar(left, y + 8, wide, 24)
        card.bar(left, y + 8, wide * result.cached, 24, COLOURS[name])
        card.text(left + wide * result.cached + 6, y + 25, f"{result.cached:.0%}", BOLD)
    most = left + wide * next(iter(results.values())).possible
    card.line(most, 64, most, 242, FAINT_INK, DASHED)
    card.text(most, 258, "the most there could be", f"{SMALL} {MIDDLE}")

    card.text(430, 32, "Requests whose first token had come, by seconds", BOLD)
    x0, y0, width, height = 470.0, 250.0, 350.0, 200.0
    low, high = math.log(0.1), math.log(10.0)

    def place(seconds: float) -> float:
        return x0 + width * (math.log(min(max(seconds, 0.1), 10.0)) - low) / (high - low)

    for seconds in (0.1, 0.3, 1.0, 3.0, 10.0):
        card.line(place(seconds), y0, place(seconds), y0 - height)
        card.text(place(seconds), y0 + 18, f"{seconds:g} s", f"{SMALL} {MIDDLE}")
    for share in (0.0, 0.5, 0.95):
        card.line(x0, y0 - height * share, x0 + width, y0 - height * share)
        card.text(x0 - 8, y0 - height * share + 4, f"{share:.0%}", f"{SMALL} {END}")
    for name, result in results.items():
        firsts = result.firsts
        shares = [number / 100 for number in range(101)]
        points = [
            (place(firsts[min(len(firsts) - 1, int(share * len(firsts)))]), y0 - height * share)
            for share in shares
        ]
        card.curve(points, COLOURS[name])
        card.dot(place(result.first_p95), y0 - height * 0.95, COLOURS[name])
    for number, (name, result) in enumerate(results.items()):
        y = y0 - 52 + 18 * number
        card.dot(x0 + 222, y - 4, COLOURS[name])
        card.text(x0 + 232, y, f"p95 {result.first_p95:.2f} s", 'font-size="12"')
    fleet = BASE
    card.text(
        24,
        304,
        f"{fleet.replicas} replicas, {fleet.sessions} sessions of {fleet.turns} turns, Zipf {fleet.zipf:g}, a cache of"
        f" {fleet.cached_sessions} sessions in each replica, {fleet.rate:g} requests a second. Simulated:"
        " bench/affinity.py",
        SMALL,
    )
    return card.svg()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="the first row only; writes nothing")
    quick = parser.parse_args().quick
    began = datetime.now(UTC)
    print("cached tokens, p50 and p95 of the seconds to the first token\n")
    print("| fleet | cached at most | " + " | ".join(POLICIES) + " |")
    print("|---|---|" + "---|" * len(POLICIES))
    rows: dict[str, dict[str, Result]] = {}
    for name, fleet in list(ROWS.items())[: 1 if quick else None]:
        rows[name] = every(fleet)
        show(name, rows[name])
    first = next(iter(rows.values()))
    times, slower = claim(first)
    print(f"\naffinity finds {times:.1f} times what round robin finds, at {slower:.2f} of its p95")
    if quick:
        return
    others = [claim(every(replace(BASE, seed=seed))) for seed in SEEDS[1:]]
    print("with other seeds: " + ", ".join(f"{times:.1f} times at {slower:.2f}" for times, slower in others))
    micros = cost()
    print(
        f"cost for a request of {micros['body_bytes']:.0f} bytes, in microseconds: "
        + ", ".join(f"{name} {value:.0f}" for name, value in list(micros.items())[2:])
    )
    document = {
        "about": {
            "began": began.isoformat(timespec="seconds"),
            "command": sys.argv[1:],
            "cpu": meters.cpu_model(),
            "python": platform.python_version(),
        },
        "rows": {
            name: {
                "fleet": asdict(ROWS[name]),
                **{policy: {**asdict(one), "firsts": None} for policy, one in results.items()},
            }
            for name, results in rows.items()
        },
        "other_seeds": others,
        "cost_us": micros,
    }
    folder = HERE / "results"
    folder.mkdir(exist_ok=True)
    path = folder / f"affinity-{began:%Y-%m-%dT%H%M%SZ}.json"
    path.write_text(json.dumps(document, indent=1) + "\n")
    PICTURE.write_text(picture(first))
    print(f"all readings: {path.relative_to(HERE.parent)}; picture: {PICTURE.relative_to(HERE.parent)}")


if __name__ == "__main__":
    main()
