"""One frozen tree of settings. CLI flags, environment names and docs/configuration.md derive from it.

Owns defaults, their units and their meaning. It reads nothing by itself: `from_environment` is given
the environment.

    settings = Settings(limits=limits_from_environment(os.environ))
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias, get_type_hints

import msgspec
from msgspec import Meta, Struct

MIB = 1024 * 1024

Seconds = Annotated[float, Meta(gt=0)]
Bytes = Annotated[int, Meta(ge=1024)]
Count = Annotated[int, Meta(ge=1)]

PdfMode: TypeAlias = Literal["text", "images", "refuse"]
"""What becomes of a PDF: its text, its pages as images where the server takes any (else text), or a 400."""


CoordinationPolicy: TypeAlias = Literal["local_share", "closed"]
"""Without its coordinator a gateway admits its share of the slots, or nobody."""


class ConfigError(Exception):
    """A setting that cannot be used; the text says which, and what would do."""


class Limits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Every limit of the gateway: seconds, or bytes. Environment: `ANTIPHON_` and the name in capitals."""

    connect: Annotated[Seconds, Meta(description="to connect to an upstream; then 504")] = 10.0
    first_token: Annotated[
        Seconds, Meta(description="from the request to the first content; then 504, or `event: error`")
    ] = 600.0
    gap: Annotated[Seconds, Meta(description="between two reads from an upstream; then `event: error`")] = (
        180.0
    )
    finish_grace: Annotated[
        Seconds, Meta(description="after a finish reason without `[DONE]`; then success")
    ] = 2.0
    finish_grace_usage: Annotated[
        Seconds, Meta(description="the same while usage that was asked for is missing")
    ] = 5.0
    settle: Annotated[
        Seconds,
        Meta(description="after `[DONE]` for the upstream's HTTP message to end; then it is dropped"),
    ] = 0.1
    request_headers: Annotated[Seconds, Meta(description="for a client to send its headers; then 408")] = 20.0
    request_body: Annotated[Seconds, Meta(description="between two pieces of a client's body; then 408")] = (
        60.0
    )
    write_stall: Annotated[
        Seconds, Meta(description="for which a client may leave a full buffer unread; then it is dropped")
    ] = 60.0
    commit_after: Annotated[
        Seconds, Meta(description="after which a stream starts with `message_start` whatever comes")
    ] = 12.0
    ping_interval: Annotated[Seconds, Meta(description="of silence in a started stream; then `ping`")] = 10.0
    queue_timeout: Annotated[Seconds, Meta(description="to wait for a slot; then 529")] = 300.0
    release_grace: Annotated[
        Seconds, Meta(description="for which an upstream without a report is taken to work on after a cancel")
    ] = 5.0
    drain: Annotated[
        Seconds, Meta(description="for which streams may run on after SIGTERM; then `event: error`")
    ] = 30.0
    keep_alive: Annotated[Seconds, Meta(description="for which an idle client connection is kept")] = 75.0
    upstream_idle: Annotated[Seconds, Meta(description="for which an idle upstream connection is kept")] = 3.0
    tick: Annotated[Seconds, Meta(description="between two looks at all of the above")] = 1.0
    max_body: Annotated[Bytes, Meta(description="of a request body; more is 413")] = 32 * MIB
    max_headers: Annotated[Bytes, Meta(description="of request or response headers; more is 431 or 502")] = (
        64 * 1024
    )
    max_frame: Annotated[Bytes, Meta(description="of one event from an upstream")] = 16 * MIB
    max_held: Annotated[
        Bytes, Meta(description="that one exchange may hold back; more is `event: error`")
    ] = 8 * MIB
    max_fold: Annotated[Bytes, Meta(description="of a non-streaming answer; more is 502")] = 32 * MIB
    max_behind: Annotated[
        Bytes, Meta(description="held for a client that does not read before its upstream is paused")
    ] = 256 * 1024
    heavy_body: Annotated[
        Bytes, Meta(description="of a request body from which on it is parsed in a worker process")
    ] = MIB
    heavy_time: Annotated[
        Seconds, Meta(description="that the worker process may take for one body; then 400")
    ] = 20.0
    queue_length: Annotated[
        Count, Meta(description="requests that may wait for one upstream; more is 529")
    ] = 1024


SlotCount: TypeAlias = Count | Literal["auto"]
"""Sequence slots of a server; `auto`: what it tells, `DEFAULT_SLOTS` while it has not told."""

DEFAULT_SLOTS = 8


class UpstreamSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One inference server. `api_key` is never shown.

    `kind` names a row of core/dialects/quirks.py, or is `auto`: recognised by its own answers.
    """

    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
    base_url: str
    api_key: str | None = None
    slots: SlotCount = "auto"
    kind: str = "auto"
    think_tags: Literal["auto", "off", "open"] | None = None  # None: what its row says
    quirks: dict[str, Any] = {}  # fields of its row that are otherwise here

    def __repr__(self) -> str:
        return f"UpstreamSettings({self.name!r}, slots={self.slots!r}, kind={self.kind!r})"


class TargetSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One place where a model runs. `model` is the upstream's name for it (None: the one the client sent)."""

    upstream: str
    model: str | None = None
    weight: Annotated[float, Meta(gt=0)] = 1.0


class Overrides(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is set in every request for a model, whatever the client says; None: nothing."""

    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    thinking: bool | None = None
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    max_tokens: Count | None = None  # a cap
    chat_template_kwargs: dict[str, Any] = {}
    system_prefix: str = ""  # goes before the client's own system prompt


class Fallbacks(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Names of `[[models]]` that are tried instead, before anything was promised; by what went wrong."""

    overflow: str | None = None  # the prompt does not fit this one's window
    overloaded: str | None = None  # no slot in time, or its servers say 429, 503 or 529
    failed: str | None = None  # every target failed


class ModelSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A name that clients use: exact, or a glob with `*` and `?`; `*` alone is the catch-all.

    Exact names win over globs, then the first in the file. `window` in tokens, prompt and answer together.
    """

    name: Annotated[str, Meta(min_length=1)]
    targets: Annotated[tuple[TargetSettings, ...], Meta(min_length=1)]
    window: Count | None = None
    overrides: Overrides = Overrides()
    fallbacks: Fallbacks = Fallbacks()


class Coordination(Struct, frozen=True, kw_only=True):
    """How several gateways share slots. `where` is never shown: it may hold a password.

    `gateways` is how many are taken to share while the coordinator has never answered.
    """

    where: str  # redis://, rediss:// or unix://, or local:FOLDER
    policy: CoordinationPolicy = "local_share"
    gateways: int = 1

    def __repr__(self) -> str:
        return f"Coordination({self.where.partition(':')[0]!r}, policy={self.policy!r})"


class Settings(Struct, frozen=True, kw_only=True):
    """What one gateway process runs with."""

    host: str = "127.0.0.1"
    port: int = 8080
    upstreams: tuple[UpstreamSettings, ...] = ()  # none: the embedded ones
    models: tuple[ModelSettings, ...] = ()  # none: every name, at every upstream, as the client sent it
    allow_anonymous: bool = False  # without keys, also others than this machine are served
    keys_file: str | None = None  # None: there are no keys
    coordination: Coordination | None = None  # None: the slots are this process's own
    workers: int = 1
    limits: Limits = Limits()
    strict: bool = False
    pdf: PdfMode = "text"
    log_level: str = "info"
    log_json: bool = False


def limits_from_environment(environ: Mapping[str, str]) -> Limits:
    """The limits with what `ANTIPHON_<NAME>` overrides. Raises ConfigError."""
    given: dict[str, str] = {}
    names = {f"ANTIPHON_{name.upper()}": name for name in Limits.__struct_fields__}
    for variable, name in names.items():
        if variable in environ:
            given[name] = environ[variable]
    try:
        return msgspec.convert(given, Limits, strict=False)
    except msgspec.ValidationError as refused:
        raise ConfigError(f"environment: {refused} (ANTIPHON_...)") from None


def limits_table() -> list[tuple[str, str, str]]:
    """(environment name, default, meaning) of every limit, for the docs."""
    rows = []
    for name, hint in get_type_hints(Limits, include_extras=True).items():
        notes = [note.description for note in hint.__metadata__ if note.description]
        default = getattr(Limits(), name)
        rows.append((f"ANTIPHON_{name.upper()}", f"{default:.12g}", notes[-1]))
    return rows


def is_loopback(host: str) -> bool:
    """A name or address that only this machine can reach."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
