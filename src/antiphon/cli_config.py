"""The commands `init`, `config check` and `config show`.

Owns their flags, their questions and what is printed. Exit status: 0 it is right, 2 it is not.

    antiphon init --yes
    antiphon config check antiphon.toml
"""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from antiphon.cli_serve import stop, warn, without_keys

# Imported inside the commands: `antiphon serve` must not wait for their libraries.
if TYPE_CHECKING:
    from antiphon.config_file import Loaded
    from antiphon.config_init import Chosen
    from antiphon.config_probe import Found

config_app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Judge a file of settings, and show what is in force.",
)

_File = Annotated[
    Path | None,
    typer.Argument(
        metavar="FILE", help="The settings. Without it: what ANTIPHON_CONFIG names, or ./antiphon.toml."
    ),
]
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


# --- config ---------------------------------------------------------------------------------------


@config_app.command()
def check(file: _File = None) -> None:
    """Read a file as `antiphon serve` would, and say everything that is wrong with it.

    Nothing is started and no upstream is asked. Exit status: 0 it can be served, 2 it cannot.
    """
    loaded = _load(file)
    warn(loaded.warnings)
    if reason := without_keys(loaded.settings):
        stop(reason)
    typer.echo(_summary(loaded))


@config_app.command()
def show(file: _File = None) -> None:
    """Print the settings in force as TOML, each with where it is from. Keys are not shown."""
    from antiphon.config_show import effective

    loaded = _load(file, is_needed=False)
    warn(loaded.warnings)
    typer.echo(effective(loaded), nl=False)


def _load(file: Path | None, *, is_needed: bool = True) -> Loaded:
    from antiphon.config import ConfigError
    from antiphon.config_file import find, load

    path = find(file, os.environ)
    if path is None and is_needed:
        stop("there is no antiphon.toml here: name the file, or make one (antiphon init)")
    try:
        return load(path, os.environ)
    except ConfigError as wrong:
        warn([*wrong.warnings])
        stop(str(wrong))


def _summary(loaded: Loaded) -> str:
    settings = loaded.settings
    upstreams = [f"{each.name} ({each.kind}, {each.slots} slots)" for each in settings.upstreams]
    models = [each.name for each in settings.models]
    return "\n".join(
        [
            f"{loaded.origins.file}: this can be served on {settings.host}:{settings.port}",
            f"  upstreams: {', '.join(upstreams) or 'the embedded ones'}",
            f"  models: {', '.join(models) or 'every name, as the client sends it'}",
            f"  keys: {settings.keys_file or 'none'}",
        ]
    )


# --- init -----------------------------------------------------------------------------------------


def init(
    output: Annotated[Path, typer.Option(metavar="FILE", help="The file to write.")] = Path("antiphon.toml"),
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Ask nothing: take every server that is found.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it is there.")] = False,
) -> None:
    """Write a file of settings for the inference servers that you run.

    Looks for vLLM, SGLang, llama.cpp, Ollama and LM Studio on their usual ports of this machine, and asks
    each server, also one that you name, what it is and how many requests it takes at once.
    """
    from antiphon import config_probe
    from antiphon.config_init import config_text

    if output.exists() and not force:
        stop(f"{output} is there already; --force replaces it, --output writes another")
    found = asyncio.run(_find(config_probe.PORTS))
    servers = _all_of(found) if yes else _ask(found)
    try:
        # "x": what came into being since must not be overwritten either.
        with output.open("w" if force else "x", encoding="utf-8") as file:
            file.write(config_text(servers))
    except OSError as refused:
        stop(f"{output} cannot be written: {refused.strerror}")
    names = ", ".join(each.name for each in servers)
    typer.echo(f"{output} is written, with {names or 'no upstream: the embedded models are served'}.")
    for each in servers:
        if each.key_variable is not None and each.key_variable not in os.environ:
            warn([f"{each.key_variable} is not set: it must have the key of {each.name}"])
    typer.echo(f"Next: antiphon config check {output}, then antiphon serve --config {output}")


async def _find(ports: tuple[tuple[int, str], ...]) -> list[Found]:
    from antiphon.config_probe import find_servers
    from antiphon.server.recognition import look

    return await find_servers(look, ports)


def _all_of(found: list[Found]) -> list[Chosen]:
    from antiphon.config_init import chosen, label

    servers: list[Chosen] = []
    for each in found:
        typer.echo(f"found {label(each)} at {each.base_url}")
        servers.append(chosen(each, [server.name for server in servers]))
    return servers


def _ask(found: list[Found]) -> list[Chosen]:
    """What the user wants of what was found, and what stands elsewhere."""
    from antiphon.config_init import chosen, label

    servers: list[Chosen] = []
    if not found:
        typer.echo("No inference server answers on the usual ports of this machine.")
    for each in found:
        count = f"{len(each.models)} model{'' if len(each.models) == 1 else 's'}"
        count += f", {each.slots} slots" if each.slots else ""
        if typer.confirm(f"Use {label(each)} at {each.base_url} ({count})?", default=True):
            servers.append(chosen(each, [server.name for server in servers]))
    while url := typer.prompt("Another server's base URL (empty: no more)", default="", show_default=False):
        if server := _other(url.strip(), servers):
            servers.append(server)
    return servers


def _other(url: str, servers: list[Chosen]) -> Chosen | None:
    """A server that the user names, with what it tells of itself now."""
    from msgspec.structs import replace

    from antiphon.config_init import Chosen, chosen, label, unused_name
    from antiphon.server.upstream_dial import parse_base_url

    try:
        parse_base_url(url)
    except ValueError as wrong:
        typer.echo(str(wrong), err=True)
        return None
    taken = [server.name for server in servers]
    name = typer.prompt("  Its name", default=unused_name("upstream", taken))
    if name in taken or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", name):
        typer.echo("a name is 1 to 64 letters, digits, . _ or -, and no other server has it", err=True)
        return None
    # The name of a variable, never the key itself: this is shown, and written down.
    variable = typer.prompt(
        "  Environment variable with its key (empty: it wants none)", default="", show_default=False
    )
    if variable and not _VARIABLE_NAME.fullmatch(variable):
        typer.echo(
            "that is not the name of an environment variable; the key itself does not belong here", err=True
        )
        return None
    found = asyncio.run(_look_at(url, os.environ.get(variable) if variable else None))
    if found is None:
        typer.echo("  No server lists its models there now: it is asked again when the gateway starts.")
        return Chosen(name, url, key_variable=variable or None)
    typer.echo(f"  It is {label(found)}{_numbers(found)}.")
    return replace(chosen(found, taken), name=name, key_variable=variable or None)


async def _look_at(url: str, key: str | None) -> Found | None:
    from antiphon.config_probe import find_server
    from antiphon.server.recognition import look

    return await find_server(look, url, key)


def _numbers(found: Found) -> str:
    """How many models and slots it told, for a sentence."""
    models = f"{len(found.models)} model{'' if len(found.models) == 1 else 's'}" if found.models else ""
    slots = f"{found.slots} slots" if found.slots else ""
    told = " and ".join(each for each in (models, slots) if each)
    return f" with {told}" if told else ""
