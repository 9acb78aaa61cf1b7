"""One frozen tree of settings. The file, the CLI flags, the environment names and the docs derive from it.

Owns defaults, their units, their meaning and which of them are secrets. It reads nothing by itself:
config_file.py fills the tree, config_tables.py tells what is in it.

    settings = Settings(upstreams=(UpstreamSettings(name="gpu1", base_url="http://127.0.0.1:8000/v1"),))
    settings.limits.gap                      # 180.0
"""

from __future__ import annotations

import ipaddress
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta, Struct

from antiphon.core.dialects.overrides import Overrides as Overrides  # noqa: PLC0414 - part of the tree

MIB = 1024 * 1024

Seconds = Annotated[float, Meta(gt=0)]
Bytes = Annotated[int, Meta(ge=1024, le=1024 * 1024 * MIB)]
Count = Annotated[int, Meta(ge=1, le=1_000_000)]
Text = Annotated[str, Meta(min_length=1)]

PdfMode: TypeAlias = Literal["text", "images", "refuse"]
"""What becomes of a PDF: its text, its pages as images where the server takes any (else text), or a 400."""

CoordinationPolicy: TypeAlias = Literal["local_share", "closed"]
"""Without its coordinator a gateway admits its share of the slots, or nobody."""

LogLevel: TypeAlias = Literal["debug", "info", "warning", "error"]

SECRETS = frozenset({"api_key", "admin_key", "coordination"})
"""Members whose value is never shown; a coordination's URL may hold a password."""


class ConfigError(Exception):
    """A setting that cannot be used; the text says which, and what would do.

    `errors` has one line for each thing that is wrong; `warnings` what else was noticed; `files` are those
    that were read, or should have been: a change in one of them may mend it. No line holds a secret.
    """

    def __init__(self, *errors: str, warnings: tuple[str, ...] = (), files: tuple[Path, ...] = ()) -> None:
        super().__init__("\n".join(errors))
        self.errors = errors
        self.warnings = warnings
        self.files = files


# --- Server ---------------------------------------------------------------------------------------


class ServerSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How this gateway listens, works and logs. Environment: `ANTIPHON_` and the name in capitals."""

    host: Annotated[
        Text, Meta(description="where to listen; others than loopback need keys, or `allow_anonymous`")
    ] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535, description="0 takes a free one")] = 8080
    workers: Annotated[
        int, Meta(ge=1, le=1024, description="processes on the port; they share the slots")
    ] = 1
    strict: Annotated[bool, Meta(description="refuse requests that cannot be carried in full")] = False
    pdf: Annotated[
        PdfMode,
        Meta(description="what becomes of PDFs: their text, their pages as images, or a 400"),
    ] = "text"
    log_level: Annotated[
        LogLevel, Meta(description="`warning` leaves out the lines of requests that went well")
    ] = "info"
    log_json: Annotated[bool, Meta(description="log lines as JSON")] = False
    allow_anonymous: Annotated[bool, Meta(description="without keys, serve others than this machine too")] = (
        False
    )
    keys_file: Annotated[
        Text | None,
        Meta(description="where clients' keys are kept (their hashes); without it there are none"),
    ] = None
    admin_key: Annotated[
        Text | None,
        Meta(description="guards `/admin/*`; without it: this machine, while there are no keys"),
    ] = None
    coordination_policy: Annotated[
        CoordinationPolicy,
        Meta(
            description="without its coordinator: `local_share` admits this gateway's share of the slots, "
            "`closed` nobody"
        ),
    ] = "local_share"

    def __repr__(self) -> str:
        # The types that hold other secrets hide them themselves.
        values = {name: getattr(self, name) for name in self.__struct_fields__}
        hidden = {name for name in SECRETS if isinstance(values.get(name), str)}
        shown = [f"{name}={'***' if name in hidden else repr(values[name])}" for name in values]
        return f"{type(self).__name__}({', '.join(shown)})"


class Coordination(Struct, frozen=True, kw_only=True):
    """How several gateways share slots. `where` is never shown: it may hold a password.

    `gateways` is how many are taken to share while the coordinator has never answered.
    """

    where: str  # redis://, rediss:// or unix://, or local:FOLDER
    policy: CoordinationPolicy = "local_share"
    gateways: int = 1

    def __repr__(self) -> str:
        return f"Coordination({self.where.partition(':')[0]!r}, policy={self.policy!r})"


# --- Limits ---------------------------------------------------------------------------------------


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
    tick: Annotated[Seconds, Meta(le=60, description="between two looks at all of the above")] = 1.0
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
        int,
        Meta(
            ge=0,
            le=10**9,
            description="requests that may wait for one upstream; more is 529; 0: none waits, 529 at once "
            "where every slot is taken",
        ),
    ] = 1024


class HealthSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When a target is taken out of the choice, and when it is tried again."""

    interval: Annotated[Seconds, Meta(description="between two probes of an upstream")] = 10.0
    open_after: Annotated[
        Count, Meta(description="failures in a row after which a target gets no requests")
    ] = 3
    failure_rate: Annotated[
        float, Meta(gt=0, le=1, description="or this share of at least `volume` outcomes within `window`")
    ] = 0.5
    volume: Annotated[Count, Meta(description="outcomes, at least, of which that share is taken")] = 10
    window: Annotated[Seconds, Meta(description="in which those outcomes lie")] = 30.0
    backoff_first: Annotated[Seconds, Meta(description="until it is tried again, the first time")] = 1.0
    backoff_max: Annotated[
        Seconds, Meta(description="the longest such wait: it doubles with every failure")
    ] = 30.0
    probes: Annotated[
        bool, Meta(description="ask servers of which no request tells; false: where every call is counted")
    ] = True
    recovery: Annotated[
        Seconds, Meta(description="between two probes of one that is gone, or loads its model")
    ] = 2.0
    busy_wait: Annotated[
        Seconds,
        Meta(description="for which one that says 429, 503 or 529 is left alone, if it names no time"),
    ] = 1.0
    busy_limit: Annotated[Seconds, Meta(description="the longest time that it may name")] = 60.0


class RetrySettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How often a request is sent before its client has been promised anything."""

    attempts: Annotated[
        Count, Meta(description="in total, the first one too, each at another target; 1: never again")
    ] = 2
    budget: Annotated[
        float,
        Meta(ge=0, le=1, description="share of all requests that may be second attempts, so that storms end"),
    ] = 0.2


# --- Upstreams and models -------------------------------------------------------------------------


SlotCount: TypeAlias = Count | Literal["auto"]
"""Sequence slots of a server; `auto`: what it tells, `DEFAULT_SLOTS` while it has not told."""

DEFAULT_SLOTS = 8


class UpstreamSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One inference server. `api_key` is never shown.

    `kind` names a row of core/dialects/quirks.py, or is `auto`: recognised by its own answers.
    """

    name: Annotated[
        str,
        Meta(
            pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$",
            title='1 to 64 letters, digits, ".", "_" or "-", the first a letter or digit',
            description="what models, logs and metrics call it",
        ),
    ]
    base_url: Annotated[
        Text, Meta(description="what stands before `/chat/completions`; usually it ends in `/v1`")
    ]
    api_key: Annotated[Text | None, Meta(description="sent to it; clients' own keys never are")] = None
    slots: Annotated[
        SlotCount, Meta(description="requests that it may work on at once; `auto`: what it tells, else 8")
    ] = "auto"
    kind: Annotated[
        Text, Meta(description="what kind of server it is; `auto`: recognised by its own answers")
    ] = "auto"
    think_tags: Annotated[
        Literal["auto", "off", "open"] | None,
        Meta(description="how `<think>` in its text is read; without it as its kind says"),
    ] = None
    quirks: Annotated[
        dict[str, Any], Meta(description="facts of its kind that are otherwise for this server")
    ] = {}

    def __repr__(self) -> str:
        return f"UpstreamSettings({self.name!r}, slots={self.slots!r}, kind={self.kind!r})"


class TargetSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One place where a model runs."""

    upstream: Annotated[Text, Meta(description="the `name` of one of the upstreams")]
    model: Annotated[
        Text | None, Meta(description="the upstream's name for it; without it the one that the client sent")
    ] = None
    weight: Annotated[float, Meta(gt=0, description="its share, beside the model's other targets")] = 1.0


class Fallbacks(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Names of `[[models]]` that are tried instead, before anything was promised; by what went wrong."""

    overflow: Annotated[
        Text | None, Meta(description="the model for prompts that do not fit this one's window")
    ] = None
    overloaded: Annotated[
        Text | None,
        Meta(description="the model for when no slot comes in time, or its servers say 429, 503 or 529"),
    ] = None
    failed: Annotated[Text | None, Meta(description="the model for when every target failed")] = None


class ModelSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A name that clients use: exact, or a glob with `*` and `?`; `*` alone is the catch-all.

    Exact names win over globs, then the first in the file. `window` in tokens, prompt and answer together.
    """

    name: Annotated[
        Text,
        Meta(description="what clients ask for: exact, or a glob with `*` and `?`; `*` is the catch-all"),
    ]
    targets: Annotated[
        tuple[TargetSettings, ...], Meta(min_length=1, description="where it runs: a list of tables")
    ]
    window: Annotated[
        Annotated[int, Meta(ge=1, le=10**9)] | None,
        Meta(description="tokens of prompt and answer together; without it what its server tells"),
    ] = None
    overrides: Annotated[Overrides, Meta(description="a table: what is set in every request for it")] = (
        Overrides()
    )
    fallbacks: Annotated[Fallbacks, Meta(description="a table: the models that are tried instead")] = (
        Fallbacks()
    )


# --- The tree -------------------------------------------------------------------------------------


class Settings(ServerSettings, frozen=True, kw_only=True):
    """What one gateway process runs with."""

    upstreams: tuple[UpstreamSettings, ...] = ()  # none: the embedded ones
    models: tuple[ModelSettings, ...] = ()  # none: every name, at every upstream, as the client sent it
    coordination: Coordination | None = None  # None: the slots are this process's own
    limits: Limits = Limits()
    health: HealthSettings = HealthSettings()
    retries: RetrySettings = RetrySettings()


@lru_cache(maxsize=1024)
def is_loopback(host: str) -> bool:
    """A name or address that only this machine can reach."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
