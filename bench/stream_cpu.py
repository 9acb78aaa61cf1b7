#!/usr/bin/env python3
"""The bench: what a streamed event, a stream and a cancellation cost, beside nginx passing the same bytes.

    make bench                                        everything, about ten minutes
    .venv/bin/python bench/stream_cpu.py --quick      a look, figures not to be quoted
    .venv/bin/python bench/stream_cpu.py --only cpu,memory
    .venv/bin/python bench/stream_cpu.py --hold 60    200 streams through the gateway, to attach a profiler

Owns the command line, the report and the targets; measures.py has the methods, docs/performance.md what
came out. Linux only: the readings come from /proc.
"""

from __future__ import annotations

import argparse
import datetime as dt
import importlib.metadata
import json
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

from rich.console import Console
from rich.table import Table

import arms
import measures
import meters
import wire
from control import Worker

QUIET = 0.5  # load average (1 minute) above which figures are not to be quoted
NEIGHBOURS = 0.10  # of the machine's CPU time that others may take during a reading
RESULTS = arms.HERE / "results"

TARGETS = {  # at most
    "ratio_to_nginx": 1.8,
    "ttft_added_p50_ms": 2.0,
    "kib_per_stream": 48.0,
    "cancel_p99_ms": 20.0,
}

console = Console(highlight=False, width=118 if not sys.stdout.isatty() else None)


def main() -> int:
    """Run what was asked for. Exit status 3: the machine is not quiet; 0 also where a target is missed."""
    options = _options()
    plan = measures.QUICK if options.quick else measures.Plan()
    given = {name: getattr(options, name) for name in ("rounds", "window", "streams")}
    plan = replace(plan, **{name: value for name, value in given.items() if value is not None})
    about = _about()
    if options.wait:
        _wait_until_quiet(options.wait)
        about = _about()
    load = about["load_average"][0]
    console.print(_about_line(about))
    if load > QUIET:
        console.print(
            f"[bold red]The load average is {load:.2f}: above {QUIET} the figures say more of the neighbours than of "
            f"the gateway.[/]"
        )
        if not options.force:
            console.print("Wait for a quiet moment, or give --force and do not quote what comes out.")
            return 3
    with_nginx = arms.nginx_program() is not None
    if not with_nginx:
        console.print(
            "[bold yellow]nginx is missing: its arm is left out, and with it the ratio.[/] On Debian: "
            "apt-get install --no-install-recommends nginx-light (the bench starts its own; the system's can stay off)."
        )
    meters.raise_descriptor_limit()
    with Worker("mock_upstream.py") as mock, Worker("load_client.py") as client:
        bench = measures.Bench(mock, client, with_nginx=with_nginx, say=_say)
        if options.hold:
            return _hold(bench, plan, options.hold)
        results: dict[str, Any] = {}
        for name in options.only:
            console.rule(PARTS[name][0])
            results[name] = PARTS[name][1](bench, plan)
    about["load_average_at_end"] = os.getloadavg()
    readings = results.get("cpu", {}).get("rounds", [])
    document = {
        "about": about,
        "plan": asdict(plan),
        "quiet": load <= QUIET and all(reading["others"] <= NEIGHBOURS for reading in readings),
        "quick": options.quick,
        **results,
    }
    document["targets"] = _judge(results)
    _print_report(document)
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{about['date'].replace(':', '')}.json"
    path.write_text(json.dumps(document, indent=1) + "\n")
    console.print(f"\nAll readings: {path}")
    return 0


PARTS: dict[str, tuple[str, Callable[[measures.Bench, measures.Plan], dict[str, Any]]]] = {
    "cpu": ("CPU per streamed event", measures.cpu_per_event),
    "ttft": ("time to first content", measures.time_to_first_content),
    "memory": ("memory per stream", measures.memory_per_stream),
    "stalled": ("stalled readers", measures.stalled_readers),
    "cancel": ("cancel latency", measures.cancel_latency),
}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--only", type=_parts, default=list(PARTS), help=f"some of {','.join(PARTS)}")
    parser.add_argument("--quick", action="store_true", help="short and small: a look, not a measurement")
    parser.add_argument("--force", action="store_true", help="also on a machine that is not quiet")
    parser.add_argument("--wait", type=float, metavar="MINUTES", help="so long for a quiet machine")
    parser.add_argument("--rounds", type=int, help="of the CPU part (default 5)")
    parser.add_argument("--window", type=float, help="seconds of one CPU reading (default 10)")
    parser.add_argument("--streams", type=int, help="of the CPU part (default 200)")
    parser.add_argument(
        "--hold", type=float, metavar="SECONDS", help="only keep the CPU part's load on the gateway"
    )
    return parser.parse_args()


def _parts(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in PARTS:
            raise argparse.ArgumentTypeError(f"{name}: there is {', '.join(PARTS)}")
    return names


def _hold(bench: measures.Bench, plan: measures.Plan, seconds: float) -> int:
    """Keep the load on, for a profiler that is started by hand."""
    with arms.gateway(bench.upstream) as arm:
        bench.open(arm, plan.streams)
        console.print(
            f"{plan.streams} streams of {measures.RATE} events/s through pid {arm.pid} for {seconds:g} s"
        )
        time.sleep(seconds)
        bench.close()
    return 0


def _wait_until_quiet(minutes: float) -> None:
    deadline = time.monotonic() + minutes * 60
    while os.getloadavg()[0] > QUIET and time.monotonic() < deadline:
        time.sleep(2)


def _say(text: str) -> None:
    console.print(f"  {text}", style="dim")


# --- about this run ---


def _about() -> dict[str, Any]:
    packages = ("antiphon", "uvicorn", "uvloop", "httptools", "msgspec")
    versions = {name: importlib.metadata.version(name) for name in packages}
    versions["python"] = platform.python_version()
    program = arms.nginx_program()
    if program is not None:
        said = subprocess.run([program, "-v"], capture_output=True, text=True, check=False).stderr
        versions["nginx"] = (re.findall(r"nginx/(\S+)", said) or ["?"])[0]
    commit = subprocess.run(
        ["git", "-C", str(arms.HERE), "describe", "--always", "--dirty"],
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    return {
        "date": dt.datetime.now(dt.UTC).replace(microsecond=0).isoformat().removesuffix("+00:00") + "Z",
        "command": " ".join(["bench/stream_cpu.py", *sys.argv[1:]]),
        "commit": commit,
        "versions": versions,
        "cpus": meters.CPUS,
        "cpu": meters.cpu_model(),
        "kernel": platform.release(),
        "load_average": os.getloadavg(),
        "event_size": wire.EVENT_SIZE,
        "gateway": arms.gateway_command(0, 0)[1:],
    }


def _about_line(about: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    return (
        f"{about['date']}  commit {about['commit']}\n{about['cpus']} CPUs ({about['cpu']}), Linux {about['kernel']}, "
        f"load average {about['load_average'][0]:.2f}\n{versions}"
    )


# --- the report ---


def _judge(results: dict[str, Any]) -> list[dict[str, Any]]:
    """Each target that was measured, with what came out."""
    found: dict[str, float] = {}
    if "ratio_to_nginx" in results.get("cpu", {}):
        found["ratio_to_nginx"] = results["cpu"]["ratio_to_nginx"]["median"]
    if "ttft" in results:
        cases = ("one at a time", "20 streams")
        found["ttft_added_p50_ms"] = max(results["ttft"][case]["antiphon"]["added_p50"] for case in cases)
    if "memory" in results:
        found["kib_per_stream"] = results["memory"]["antiphon"]["kib_per_stream"]
    if "cancel" in results:
        rows = results["cancel"]["antiphon"].values()
        unseen = any(row["seen"] < row["fit"] for row in rows)
        found["cancel_p99_ms"] = float("inf") if unseen else max(row["p99"] for row in rows)
    return [
        {"target": name, "at_most": TARGETS[name], "measured": value, "met": value <= TARGETS[name]}
        for name, value in found.items()
    ]


def _print_report(document: dict[str, Any]) -> None:
    for name in PARTS:
        if name in document:
            console.print(_TABLES[name](document[name]))
    if document["targets"]:
        table = _table("Targets", "", "measured", "at most", "")
        for row in document["targets"]:
            verdict = "[green]met[/]" if row["met"] else "[bold red]missed[/]"
            table.add_row(row["target"], f"{row['measured']:.2f}", f"{row['at_most']:g}", verdict)
        console.print(table)
    if not document["quiet"] or document["quick"]:
        console.print("[bold red]Not to be quoted: the machine was not quiet, or the run was a quick one.[/]")


def _table(title: str, first: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column(first)
    for column in columns:
        table.add_column(column, justify="right")
    return table


def _cpu_table(part: dict[str, Any]) -> Table:
    title = f"CPU per streamed event: {part['streams']} streams of {part['rate']} events/s"
    if part["streams"] < part["asked_streams"]:
        title += f" (the machine could not carry {part['asked_streams']})"
    columns = ("µs, median", "min to max", "user + system", "reads/event", "delivered", "others' CPU")
    table = _table(title, "", *columns)
    for name, row in part["arms"].items():
        mine = [reading for reading in part["rounds"] if reading["arm"] == name]
        us = row["us_per_event"]
        table.add_row(
            name,
            f"{us['median']:.1f}",
            f"{us['min']:.1f} to {us['max']:.1f}",
            f"{row['user_us']['median']:.1f} + {row['system_us']['median']:.1f}",
            _reads(row),
            f"{min(reading['delivered'] for reading in mine):.3f}",
            f"{max(reading['others'] for reading in mine):.0%}",
        )
    if "ratio_to_nginx" in part:
        ratio = part["ratio_to_nginx"]
        table.add_row("ratio", f"{ratio['median']:.2f}", f"{ratio['min']:.2f} to {ratio['max']:.2f}")
    return table


def _reads(row: dict[str, Any]) -> str:
    """Reads of the client and, where the kernel counts them, of the arm itself."""
    own = row["reads_per_event"]["median"]
    text = f"client {row['client_reads_per_event']['median']:.2f}"
    return f"{text}, own {own:.2f}" if own > 0.1 else text


def _ttft_table(part: dict[str, Any]) -> Table:
    table = _table("Time to first content, ms", "", "", "p50", "p99", "added p50", "added p99", "samples")
    for case, by_arm in part.items():
        for name, row in by_arm.items():
            added = ["", ""] if name == "direct" else [f"{row['added_p50']:.2f}", f"{row['added_p99']:.2f}"]
            table.add_row(case, name, f"{row['p50']:.2f}", f"{row['p99']:.2f}", *added, str(row["samples"]))
    return table


def _memory_table(part: dict[str, Any]) -> Table:
    table = _table("Memory (PSS)", "", "streams", "KiB per stream", "kept afterwards", "idle, MiB")
    for name, row in part.items():
        kept = row["kib_per_stream_kept_afterwards"]
        table.add_row(
            name, str(row["streams"]), f"{row['kib_per_stream']:.1f}", f"{kept:.1f}", f"{row['idle_mib']:.1f}"
        )
    return table


def _stalled_table(part: dict[str, Any]) -> Table:
    columns = ("clients", "KiB per client", "at the peak", "MiB sent to each", "upstream stopped", "after s")
    table = _table("Stalled readers: growth of PSS", "", *columns)
    for name, row in part.items():
        table.add_row(
            name,
            str(row["clients"]),
            f"{row['kib_per_client']:.0f}",
            f"{row['kib_per_client_peak']:.0f}",
            f"{row['mib_sent_per_client']:.1f}",
            "yes" if row["upstream_stopped"] else "NO",
            f"{row['seconds_until_still']:.1f}",
        )
    return table


def _cancel_table(part: dict[str, Any]) -> Table:
    title = "Cancel: the client's close to the end of the upstream's socket, ms"
    table = _table(title, "", "", "p50", "p99", "max", "seen / trials")
    for arm, phases in part.items():
        for phase, row in phases.items():
            quantiles = [f"{row[name]:.2f}" for name in ("p50", "p99", "max")]
            table.add_row(arm, phase, *quantiles, f"{row['seen']} / {row['fit']}")
    return table


_TABLES: dict[str, Callable[[dict[str, Any]], Table]] = {
    "cpu": _cpu_table,
    "ttft": _ttft_table,
    "memory": _memory_table,
    "stalled": _stalled_table,
    "cancel": _cancel_table,
}

if __name__ == "__main__":
    sys.exit(main())
