"""The command `serve`: its flags, what it refuses before anything is started, what is printed then.

Owns the flags' names, and which of them make a tree of one upstream; their defaults and meanings are
config.py's, the values are read by config_file.py.

    antiphon serve --config antiphon.toml --port 8090
    antiphon serve --upstream http://127.0.0.1:8000/v1 --kind vllm
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from antiphon.config_tables import IN_ENVIRONMENT, Member, UpstreamTable, members

# Imported inside the functions: `antiphon --help` must not wait for the server's libraries.
if TYPE_CHECKING:
    from antiphon.config import Settings
    from antiphon.config_file import Flag, Loaded
    from antiphon.config_lines import KeyPath
    from antiphon.server.embedded import EmbeddedServers


def stop(text: str) -> NoReturn:
    """Say why, and exit with status 2."""
    from rich.console import Console
    from rich.markup import escape

    console = Console(stderr=True, highlight=False)
    for line in text.split("\n"):
        console.print(f"[bold red]antiphon:[/] {escape(line)}", soft_wrap=True)
    raise typer.Exit(2)


def warn(warnings: list[str]) -> None:
    """Say what is strange, and go on."""
    for line in warnings:
        typer.echo(f"antiphon: warning: {line}", err=True)


def without_keys(settings: Settings) -> str | None:
    """Why these settings must not be served now: their keys cannot be read, or an open address has none."""
    if settings.keys_file is None:
        return None  # the settings themselves were refused, where that is not enough
    from antiphon.config import ConfigError, is_loopback
    from antiphon.server.keys import Keyring

    try:
        keys = Keyring(Path(settings.keys_file)).keys()
    except ConfigError as wrong:
        return str(wrong)
    now = time.time()
    if settings.allow_anonymous or is_loopback(settings.host) or any(key.good(now) for key in keys):
        return None
    return (
        f"{settings.keys_file} has no key that is good now, and {settings.host} is not this machine alone: "
        "make a key (antiphon key new NAME), or set allow_anonymous = true"
    )


# --- Flags out of the tree ------------------------------------------------------------------------


_SERVER = {member.name: member for member in members(IN_ENVIRONMENT["server"])}
_UPSTREAM = {member.name: member for member in members(UpstreamTable)}


def _option(member: Member, *spellings: str, metavar: str | None = None) -> Any:
    """A flag for a setting. Its own default is None: what is not given is taken from elsewhere."""
    default = member.default
    shown = str(default) if isinstance(default, str | int) and default not in (False, "") else False
    if metavar is None and len(member.choices) > 1:
        metavar = "|".join(member.choices)
    sentence = member.meaning[:1].upper() + member.meaning[1:]
    return typer.Option(*spellings, help=f"{sentence}.", show_default=shown, metavar=metavar)


def serve(
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The settings. Without it: what ANTIPHON_CONFIG names, or ./antiphon.toml if there is one.",
        ),
    ] = None,
    upstream: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Serve one upstream without a file, e.g. http://127.0.0.1:8000/v1."),
    ] = None,
    api_key_env: Annotated[
        str | None, typer.Option(metavar="NAME", help="The environment variable with that upstream's key.")
    ] = None,
    slots: Annotated[str | None, _option(_UPSTREAM["slots"], metavar="auto|N")] = None,
    kind: Annotated[str | None, _option(_UPSTREAM["kind"], "--kind", "--profile")] = None,
    port: Annotated[int | None, _option(_SERVER["port"], metavar="N")] = None,
    host: Annotated[str | None, _option(_SERVER["host"])] = None,
    allow_anonymous: Annotated[
        bool | None, _option(_SERVER["allow_anonymous"], "--allow-anonymous/--no-allow-anonymous")
    ] = None,
    keys_file: Annotated[str | None, _option(_SERVER["keys_file"], metavar="FILE")] = None,
    strict: Annotated[bool | None, _option(_SERVER["strict"], "--strict/--no-strict")] = None,
    pdf: Annotated[str | None, _option(_SERVER["pdf"])] = None,
    workers: Annotated[int | None, _option(_SERVER["workers"], metavar="N")] = None,
    coordination: Annotated[str | None, _option(_SERVER["coordination"], metavar="WHERE")] = None,
    coordination_policy: Annotated[str | None, _option(_SERVER["coordination_policy"])] = None,
    log_level: Annotated[str | None, _option(_SERVER["log_level"])] = None,
    log_json: Annotated[bool | None, _option(_SERVER["log_json"], "--log-json/--no-log-json")] = None,
) -> None:
    """Serve /v1/messages from the upstreams of a file, from one upstream, or from the embedded models.

    A flag stands over the environment, that over the file, that over the default. Each setting of the
    file's tables server and limits has a name in the environment: ANTIPHON_PORT, ANTIPHON_GAP.
    """
    from antiphon.config_file import Flag

    given: dict[KeyPath, Flag] = {}
    for name, value in {
        "host": host,
        "port": port,
        "workers": workers,
        "strict": strict,
        "pdf": pdf,
        "log_level": None if log_level is None else log_level.lower(),
        "log_json": log_json,
        "allow_anonymous": allow_anonymous,
        "keys_file": keys_file,
        "coordination": coordination,
        "coordination_policy": coordination_policy,
    }.items():
        if value is not None:
            given["server", name] = Flag(value, f"--{name.replace('_', '-')}")
    given |= _one_upstream(config, upstream, api_key_env, slots, kind)
    loaded = _load(None if upstream is not None else config, given, is_alone=upstream is not None)
    warn(loaded.warnings)
    if reason := without_keys(loaded.settings):
        stop(reason)
    _run(loaded)


def _one_upstream(
    config: Path | None, upstream: str | None, api_key_env: str | None, slots: str | None, kind: str | None
) -> dict[KeyPath, Flag]:
    """The tree of one upstream that `--upstream` and the flags beside it make."""
    from antiphon.config_file import Flag

    beside = {"--api-key-env": api_key_env, "--slots": slots, "--kind": kind}
    if upstream is None:
        for spelling, value in beside.items():
            if value is not None:
                stop(f"{spelling}: needs --upstream; in a file this stands in [[upstreams]]")
        return {}
    if config is not None:
        stop("--upstream: contradicts --config, whose upstreams are in the file; give one of them")
    values: dict[str, Flag] = {
        "name": Flag("upstream", "--upstream"),
        "base_url": Flag(upstream, "--upstream"),
    }
    if slots is not None:
        values["slots"] = Flag(slots, "--slots")
    if kind is not None:
        values["kind"] = Flag(kind, "--kind")
    if api_key_env is not None:
        if not (key := os.environ.get(api_key_env)):
            stop(f"--api-key-env {api_key_env}: this environment variable is not set")
        values["api_key"] = Flag(key, "--api-key-env", api_key_env)
    return {("upstreams", 0, name): flag for name, flag in values.items()}


def _load(config: Path | None, flags: dict[KeyPath, Flag], *, is_alone: bool) -> Loaded:
    """The settings; with `is_alone` no file is read, also none that is there without being named."""
    from antiphon.config import ConfigError
    from antiphon.config_file import find, load

    path = find(config, os.environ)
    if is_alone and path is not None:
        warn([f"{path} is not read: --upstream is given"])
        path = None
    try:
        return load(path, os.environ, flags)
    except ConfigError as wrong:
        warn([*wrong.warnings])
        stop(str(wrong))


# --- Running --------------------------------------------------------------------------------------


def _run(loaded: Loaded) -> None:
    from antiphon.config import ConfigError
    from antiphon.observe import log
    from antiphon.server.seal_key import load_sealer
    from antiphon.server.serve import gateway_for, taken
    from antiphon.server.serve import serve as run
    from antiphon.server.workers import run_workers

    settings = loaded.settings
    try:
        sealer = load_sealer(os.environ)
    except ConfigError as wrong:
        stop(str(wrong))
    if busy := taken(settings.host, settings.port):
        stop(f"--port {settings.port}: {busy}; choose another with --port (make run PORT=...)")
    log.configure(level=settings.log_level, as_json=settings.log_json)
    embedded = None if settings.upstreams else _embedded()
    try:
        gateway = gateway_for(settings, sealer, embedded, loaded)
    except ModuleNotFoundError:
        stop("--coordination: the redis client is not installed (pip install 'antiphon[fleet]')")
    except (ConfigError, ValueError, OSError) as wrong:
        stop(str(wrong))
    if settings.workers == 1:
        run(gateway, on_started=lambda bound: _greet(settings, bound, loaded.origins.file))
        return
    try:
        status = run_workers(
            settings,
            sealer,
            embedded,
            loaded=loaded,
            policy=settings.coordination_policy,
            on_started=lambda bound: _greet(settings, bound, loaded.origins.file),
        )
    except OSError as refused:
        stop(f"--port {settings.port}: {refused.strerror}")
    raise typer.Exit(status)


def _embedded() -> EmbeddedServers:
    """The embedded servers; the model's file is fetched if it is not there."""
    from antiphon.local import available
    from antiphon.local_model import LocalModelError, fetch_model
    from antiphon.server.embedded import EmbeddedServers

    reason = available()
    if reason is not None:
        return EmbeddedServers(model_file=None, reason=reason)
    try:
        return EmbeddedServers(model_file=fetch_model(), reason="")
    except LocalModelError as error:
        return EmbeddedServers(model_file=None, reason=str(error))


def _greet(settings: Settings, port: int, file: Path | None) -> None:
    from rich.console import Console

    from antiphon.server.welcome import welcome

    said = welcome(settings, port, None if file is None else str(file))
    Console(highlight=False, soft_wrap=True).print(said)
    sys.stdout.flush()
