"""The commands `check gateway`, `check upstream` and `check stream`.

Owns their flags, their help and their exit status: 0 good, 1 faults were found, 2 nothing could be judged.

    antiphon check gateway http://127.0.0.1:8080 --listen 19000
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

# Imported inside the commands: `antiphon serve` must not wait for the doctor's libraries.
if TYPE_CHECKING:
    from rich.console import Console

    from antiphon.check.corpus import Case
    from antiphon.check.gateway import Verdict
    from antiphon.check.upstream.findings import Report

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="""Find out what is wrong with a gateway, an inference server or a captured stream.

    The exit status is for CI: 0 all is well, 1 faults were found, 2 nothing could be judged.
    """,
)

_Json = Annotated[
    str | None,
    typer.Option(
        "--json",
        metavar="FILE",
        help="Write the result as JSON to FILE; - is standard output, without a table.",
    ),
]
_Timeout = Annotated[float, typer.Option(min=0.1, help="Seconds that one request may take.")]


def _stop(text: str) -> NoReturn:
    from antiphon.check import report

    report.console(stderr=True).print(report.cell(f"antiphon check: {text}", "red"), soft_wrap=True)
    raise typer.Exit(2)


def _write_json(to: str | None, value: Any) -> None:
    from antiphon.check import report

    if to == "-":
        sys.stdout.write(report.as_json(value) + "\n")
    elif to is not None:
        _write(to, report.as_json(value) + "\n")


def _write(to: str | Path, text: str) -> None:
    try:
        Path(to).write_text(text, encoding="utf-8")
    except OSError as error:
        _stop(f"{to} cannot be written: {error.strerror}")


def _http_url(url: str) -> str:
    if not url.startswith(("http://", "https://")):
        _stop(f"{url}: give an address that begins with http:// or https://")
    return url


# --- gateway --------------------------------------------------------------------------------------


@app.command()
def gateway(
    url: Annotated[
        str, typer.Argument(metavar="URL", help="Where the gateway listens, e.g. http://127.0.0.1:8080.")
    ],
    listen: Annotated[
        int, typer.Option(min=0, max=65535, metavar="PORT", help="Port on which the upstream is played.")
    ] = 19000,
    prefix: Annotated[str, typer.Option(help="What stands before /v1/messages, e.g. /llm.")] = "",
    model: Annotated[str, typer.Option(help="The model name that is asked for.")] = "a-model",
    key: Annotated[str, typer.Option(help="The gateway's key, sent in both headers.")] = "test-key",
    only: Annotated[
        list[str] | None, typer.Option(metavar="ID", help="Play this case only; repeatable.")
    ] = None,
    skip_contested: Annotated[
        bool,
        typer.Option("--skip-contested", help="Leave out failures where projects disagree what is right."),
    ] = False,
    json_file: _Json = None,
    timeout: _Timeout = 15.0,
) -> None:
    """Play known faults of OpenAI-style servers through a gateway, and judge what its client gets.

    This command is both ends: it plays the upstream on PORT, asks the gateway's /v1/messages, and compares.
    It works on any gateway whose upstream can be set. Start that one first:

        antiphon serve --upstream http://127.0.0.1:19000/v1

        antiphon check gateway http://127.0.0.1:8080

    Each case comes from a public bug report. Exit status: 0 every case holds, 1 some do not, 2 no gateway
    answers, the port is taken, or the gateway asks another upstream.
    """
    from antiphon.check import report
    from antiphon.check.corpus import load
    from antiphon.check.gateway import CannotRun

    cases = load()
    unknown = set(only or []) - {case.id for case in cases}
    if unknown:
        _stop(f"--only {', '.join(sorted(unknown))}: there is no such case")
    chosen = [case for case in cases if not only or case.id in only]
    playable = [case for case in chosen if case.playable]
    if not playable:
        _stop("these cases are prose, for tests of your own: nothing to play")
    out = report.console(stderr=json_file == "-")
    player_options = {"prefix": prefix, "model": model, "key": key, "timeout": timeout}
    try:
        verdicts = asyncio.run(_play(_http_url(url), listen, playable, out, player_options))
    except CannotRun as reason:
        _stop(str(reason))
    counted = [v for v in verdicts if not (skip_contested and v.contested and v.outcome == "fails")]
    report.print_verdicts(
        out, counted, prose=len(chosen) - len(playable), left_out=len(verdicts) - len(counted)
    )
    _write_json(json_file, counted)
    if any(verdict.outcome == "fails" for verdict in counted):
        raise typer.Exit(1)


async def _play(
    url: str, port: int, cases: list[Case], out: Console, options: dict[str, Any]
) -> list[Verdict]:
    from antiphon.check.gateway import CannotRun, Player
    from antiphon.check.stand_in import StandIn

    upstream = StandIn(port)
    try:
        await upstream.__aenter__()
    except OSError as error:
        raise CannotRun(
            f"port {port} cannot be listened on: {error.strerror}; choose one with --listen"
        ) from error
    try:
        player = Player(url, upstream, **options)
        await player.prepare()
        verdicts = []
        with out.status("") as status:
            for case in cases:
                status.update(f"{case.id} {case.title}")
                verdicts.append(await player.play(case))
        return verdicts
    finally:
        await upstream.__aexit__(None, None, None)


# --- upstream -------------------------------------------------------------------------------------


@app.command()
def upstream(
    url: Annotated[
        str, typer.Argument(metavar="URL", help="The server's base URL, e.g. http://127.0.0.1:8000/v1.")
    ],
    model: Annotated[str, typer.Option(help="The model to ask; without it the first of /models.")] = "",
    api_key_env: Annotated[
        str | None, typer.Option(metavar="NAME", help="Environment variable with the server's key.")
    ] = None,
    write: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write what was found as a new file of settings for antiphon serve."
        ),
    ] = None,
    skip_overflow: Annotated[
        bool, typer.Option("--skip-overflow", help="Do not send a prompt that is longer than the context.")
    ] = False,
    json_file: _Json = None,
    timeout: _Timeout = 30.0,
    budget: Annotated[float, typer.Option(min=1, help="Seconds for all requests together.")] = 180.0,
) -> None:
    """Ask an inference server what it is and how it answers, and say which kind to call it.

    About 25 small requests over its own HTTP API: reasoning, tool calls, usage, stop strings, tokenizer, line
    ends, errors, and whether it stops generating when its client leaves. One of them is a prompt that does
    not fit, where the window is known and not over 200,000 tokens.

        antiphon check upstream http://127.0.0.1:8000/v1 --write antiphon.toml

    Exit status: 0 it can be used, 1 something will hurt (it is listed), 2 nobody answers there.
    """
    from antiphon.check import report
    from antiphon.check.upstream.asking import Asker
    from antiphon.check.upstream.examine import examine
    from antiphon.check.upstream.identity import Unreachable
    from antiphon.check.upstream.profile import settings_toml

    key = None
    if write is not None and write.exists():
        _stop(f"{write} is there already; --write another, and take over from it what you want")
    if api_key_env is not None and not (key := os.environ.get(api_key_env)):
        _stop(f"--api-key-env {api_key_env}: this environment variable is not set")
    out = report.console(stderr=json_file == "-")

    async def run() -> Report:
        async with Asker(_http_url(url), key=key, timeout=timeout, budget=budget) as asker:
            with out.status("asking"):
                return await examine(asker, model=model, fill_window=not skip_overflow)

    try:
        found = asyncio.run(run())
    except Unreachable as reason:
        _stop(str(reason))
    report.print_report(out, found, api_key_env)
    _write_json(json_file, found)
    if write is not None:
        _write(write, settings_toml(found, api_key_env))
    if found.problems:
        raise typer.Exit(1)


# --- stream ---------------------------------------------------------------------------------------


@app.command()
def stream(
    file: Annotated[str, typer.Argument(metavar="FILE", help="The captured bytes; - is standard input.")],
    json_file: _Json = None,
) -> None:
    """Judge a captured Messages stream, or a whole Message JSON: what it breaks, what clients do with it.

        curl -sN localhost:8080/v1/messages -H 'content-type: application/json' -d @body.json > answer.sse

        antiphon check stream answer.sse

    Exit status: 0 it is legal (a stream that says that it failed is), 1 it breaks rules, 2 it is neither.
    """
    from antiphon.check import report
    from antiphon.check.capture import NotAnAnswer, judge_capture

    try:
        data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        _stop(f"{file} cannot be read: {error.strerror}")
    try:
        judged = judge_capture(data)
    except NotAnAnswer as reason:
        _stop(f"{file}: {reason}")
    report.print_judged(report.console(stderr=json_file == "-"), judged)
    _write_json(json_file, judged)
    if judged.violations:
        raise typer.Exit(1)
