"""The command line: `antiphon serve`, `simulate`, `fetch`.

Owns flags and what is printed; everything that they start lives elsewhere.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, NoReturn, cast, get_args

import typer
from rich.console import Console

from antiphon import __version__
from antiphon.check.cli import app as check_app

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Anthropic Messages clients on the inference servers you own.",
)
app.add_typer(check_app, name="check")
_err = Console(stderr=True, highlight=False)


def _stop(text: str) -> NoReturn:
    _err.print(f"[bold red]antiphon:[/] {text}", soft_wrap=True)
    raise typer.Exit(2)


def _version(show: bool) -> None:
    if show:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True)] = False,
) -> None:
    pass


@app.command()
def serve(
    upstream: Annotated[
        str | None, typer.Option(help="Base URL of an OpenAI-style server, e.g. http://127.0.0.1:8000/v1.")
    ] = None,
    api_key_env: Annotated[
        str | None, typer.Option(help="Name of the environment variable with the upstream's key.")
    ] = None,
    slots: Annotated[int, typer.Option(min=1, help="Requests that the upstream may work on at once.")] = 8,
    profile: Annotated[
        str, typer.Option(help="What kind of server it is: vllm, sglang, llamacpp, ollama, ...")
    ] = ("generic"),
    port: Annotated[int, typer.Option(min=0, max=65535)] = 8080,
    host: Annotated[str, typer.Option(help="Loopback only, while there are no keys.")] = "127.0.0.1",
    strict: Annotated[bool, typer.Option(help="Refuse requests that cannot be carried in full.")] = False,
    pdf: Annotated[
        str, typer.Option(envvar="ANTIPHON_PDF", help="What becomes of PDFs: text, images or refuse.")
    ] = "text",
    workers: Annotated[
        int,
        typer.Option(min=1, envvar="ANTIPHON_WORKERS", help="Processes on the port; they share the slots."),
    ] = 1,
    coordination: Annotated[
        str | None,
        typer.Option(
            envvar="ANTIPHON_COORDINATION",
            help="Where gateways share slots: redis://, rediss://, unix:// (Valkey, Redis) or local:FOLDER.",
        ),
    ] = None,
    coordination_policy: Annotated[
        str,
        typer.Option(
            envvar="ANTIPHON_COORDINATION_POLICY",
            help="When that is gone: local_share admits this gateway's share of the slots, closed nobody.",
        ),
    ] = "local_share",
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
    log_json: Annotated[bool, typer.Option("--log-json", help="Log lines as JSON.")] = False,
) -> None:
    """Serve /v1/messages from one upstream, or from the embedded models."""
    from antiphon.config import (
        ConfigError,
        Coordination,
        CoordinationPolicy,
        PdfMode,
        Settings,
        UpstreamSettings,
        is_loopback,
        limits_from_environment,
    )
    from antiphon.core.dialects import quirks
    from antiphon.observe import log
    from antiphon.server.embedded import EmbeddedServers
    from antiphon.server.seal_key import load_sealer
    from antiphon.server.serve import gateway_for, taken
    from antiphon.server.serve import serve as run
    from antiphon.server.workers import run_workers

    if log_level.lower() not in ("debug", "info", "warning", "error"):
        _stop(f"--log-level {log_level}: debug, info, warning or error")
    if pdf not in get_args(PdfMode):
        _stop(f"--pdf {pdf}: {', '.join(get_args(PdfMode))}")
    if coordination_policy not in get_args(CoordinationPolicy):
        _stop(f"--coordination-policy {coordination_policy}: {' or '.join(get_args(CoordinationPolicy))}")
    if coordination is not None and upstream is None:
        _stop("--coordination: needs --upstream; the embedded ones are this gateway's own")
    if not is_loopback(host):
        _stop(f"--host {host}: only loopback addresses are served while the gateway has no keys")
    if profile not in quirks.names():
        _stop(f"--profile {profile}: there is {', '.join(quirks.names())}")
    try:
        limits = limits_from_environment(os.environ)
        sealer = load_sealer(os.environ)
    except ConfigError as wrong:
        _stop(str(wrong))
    api_key = None
    if api_key_env is not None:
        api_key = os.environ.get(api_key_env)
        if not api_key:
            _stop(f"--api-key-env {api_key_env}: this environment variable is not set")
    if busy := taken(host, port):
        _stop(f"--port {port}: {busy}; choose another with --port (make run PORT=...)")
    log.configure(level=log_level, as_json=log_json)
    one, embedded = None, None
    if upstream is not None:
        one = UpstreamSettings(name="upstream", base_url=upstream, api_key=api_key, slots=slots, kind=profile)
    else:
        model_file, reason = _embedded_model()
        embedded = EmbeddedServers(model_file=model_file, reason=reason)
    shared, policy = None, cast("CoordinationPolicy", coordination_policy)
    if coordination is not None:
        shared = Coordination(where=coordination, policy=policy)
    settings = Settings(
        host=host,
        port=port,
        upstreams=() if one is None else (one,),
        limits=limits,
        strict=strict,
        log_level=log_level,
        log_json=log_json,
        pdf=cast("PdfMode", pdf),
        coordination=shared,
        workers=workers,
    )
    try:
        gateway = gateway_for(settings, sealer, embedded)
    except ModuleNotFoundError:
        _stop("--coordination: the redis client is not installed (pip install 'antiphon[fleet]')")
    except (ValueError, OSError) as wrong:
        _stop(str(wrong))
    if workers == 1:
        run(gateway, on_started=lambda bound: _print_serving(settings, bound))
        return
    try:
        status = run_workers(
            settings,
            sealer,
            embedded,
            policy=policy,
            on_started=lambda bound: _print_serving(settings, bound),
        )
    except OSError as refused:
        _stop(f"--port {port}: {refused.strerror}")
    raise typer.Exit(status)


def _embedded_model() -> tuple[Path | None, str]:
    """The embedded model's file, fetched if it is not there; or why there is none."""
    from antiphon.local import available
    from antiphon.local_model import LocalModelError, fetch_model

    reason = available()
    if reason is not None:
        return None, reason
    try:
        return fetch_model(), ""
    except LocalModelError as error:
        return None, str(error)


def _print_serving(settings: object, port: int) -> None:
    from antiphon.config import Settings
    from antiphon.server.welcome import welcome

    if isinstance(settings, Settings):
        Console(highlight=False, soft_wrap=True).print(welcome(settings, port))
        sys.stdout.flush()


@app.command()
def fetch() -> None:
    """Fetch the embedded model (once; it is kept in the cache folder)."""
    from antiphon.local import available
    from antiphon.local_model import LocalModelError, fetch_model

    reason = available()
    if reason is not None:
        _err.print(f"antiphon: no embedded model: {reason}", soft_wrap=True)
        return
    try:
        fetch_model()
    except LocalModelError as error:
        _stop(str(error))


@app.command()
def simulate(
    port: Annotated[int, typer.Option(min=0, max=65535)] = 8081,
    log: Annotated[Path | None, typer.Option(help="One line for each request; emptied at start.")] = None,
    token_interval: Annotated[float, typer.Option(min=0, help="Milliseconds for one token.")] = 20.0,
    delay_headers: Annotated[float, typer.Option(min=0, help="Fault: seconds before the headers.")] = 0.0,
    delay_first_token: Annotated[float, typer.Option(min=0, help="Fault: seconds of prefill silence.")] = 0.0,
    stall_after: Annotated[int | None, typer.Option(min=0, help="Fault: silence after N frames.")] = None,
    cut_after: Annotated[int | None, typer.Option(min=0, help="Fault: close after N frames.")] = None,
    reset_after: Annotated[int | None, typer.Option(min=0, help="Fault: reset after N frames.")] = None,
    error_after: Annotated[
        int | None, typer.Option(min=0, help="Fault: an error object after N frames.")
    ] = None,
    status: Annotated[
        int | None, typer.Option(min=400, max=599, help="Fault: answer with this status.")
    ] = None,
) -> None:
    """A scripted OpenAI-style upstream, for demos and tests."""
    from antiphon.simulator import Faults, SimulatorSettings, run

    faults = Faults(
        delay_headers=delay_headers,
        delay_first_token=delay_first_token,
        stall_after=stall_after,
        cut_after=cut_after,
        reset_after=reset_after,
        error_after=error_after,
        status=status,
    )
    try:
        run(SimulatorSettings(port=port, log_path=log, token_interval=token_interval / 1000, faults=faults))
    except OSError as error:
        _stop(str(error))


def main() -> None:
    """The console script's entry."""
    app()


if __name__ == "__main__":
    main()
