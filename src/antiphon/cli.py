"""The command line: which commands there are, and the small ones `fetch` and `simulate`.

Owns flags and what is printed; everything that they start lives elsewhere, and so do the larger commands
(`cli_serve`, `cli_config`, `cli_keys`, `check.cli`).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from antiphon import __version__
from antiphon.check.cli import app as check_app
from antiphon.cli_config import config_app, init
from antiphon.cli_keys import app as key_app
from antiphon.cli_serve import serve, stop

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Anthropic Messages clients on the inference servers you own.",
)
app.add_typer(check_app, name="check")
app.add_typer(config_app, name="config")
app.add_typer(key_app, name="key")


def _version(show: bool) -> None:
    if show:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True)] = False,
) -> None:
    pass


app.command()(serve)
app.command()(init)


@app.command()
def fetch() -> None:
    """Fetch the embedded model (once; it is kept in the cache folder)."""
    from antiphon.local import available
    from antiphon.local_model import LocalModelError, fetch_model

    reason = available()
    if reason is not None:
        typer.echo(f"antiphon: no embedded model: {reason}", err=True)
        return
    try:
        fetch_model()
    except LocalModelError as error:
        stop(str(error))


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
        # The log's refusals are whole sentences; of a port only the number says which errno it was.
        if error.errno is None:
            stop(str(error))
        stop(f"--port {port}: {os.strerror(error.errno)}; choose another with --port")


def main() -> None:
    """The console script's entry."""
    app()


if __name__ == "__main__":
    main()
