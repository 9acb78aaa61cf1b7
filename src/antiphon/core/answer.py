"""What an exchange carries from an upstream to a client, whatever the two speak.

Owns the words for it. `core.translation` is the first of its kinds; their meaning there is the model for
the others. Pure like all of core: bytes come in and go out, time and sockets are the shell's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, TypeAlias

from msgspec import Struct

from antiphon.core.parts import Fault, MessageUsage, StopReason

Head: TypeAlias = tuple[int, list[tuple[bytes, bytes]]]
"""A status and header lines, names in lower case."""


class Whole(Struct, frozen=True):
    """A whole answer that is said as it is; `headers` without those that every answer has."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes


class Answer(Protocol):
    """One answer. It goes out in pieces (`frames`), or whole (`message`) if it is not `streaming`."""

    stop_reason: StopReason | None  # what the client was told, once it was

    # --- what a shell asks ---

    @property
    def streaming(self) -> bool: ...
    @property
    def head(self) -> Head | None:
        """How a stream begins, if it is not the surface's own way."""

    @property
    def committed(self) -> bool:
        """The status may go out: there is content, or a good end, or the client was promised a stream."""

    @property
    def begun(self) -> bool:
        """Some content is there: the first token has come."""

    @property
    def finished(self) -> bool:
        """The upstream gave a reason to stop: what breaks from here on takes nothing away."""

    @property
    def ended(self) -> bool:
        """Nothing more will be taken in."""

    @property
    def broken(self) -> bool:
        """What was written must not look whole: the connection is cut, because no frame can tell."""

    @property
    def fault(self) -> Fault | None:
        """Why there is no good answer, if there is none."""

    @property
    def usage(self) -> MessageUsage: ...
    @property
    def usage_reported(self) -> bool:
        """The upstream told how many tokens it generated."""

    @property
    def pending(self) -> int:
        """About how many bytes are held for a client that does not read."""

    # --- the upstream's side ---

    def feed(self, data: bytes) -> bool:
        """The next bytes of the body. False: nothing changed but what `frames` will give."""

    def end(self, fault: Fault | None = None) -> None:
        """The body is over: None for its regular end, else what cut it."""

    def refuse(self, fault: Fault) -> None:
        """There is no body to read: the upstream, or this gateway, said no."""

    def refuse_response(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        """The upstream's error answer; `headers` in lower case, `body` as far as it was read."""

    def on_head(self, status: int, headers: dict[str, str]) -> None:
        """The head of a good answer, before any of its body."""

    def guess_input(self, tokens: int) -> None: ...
    def count_input(self, tokens: int) -> None: ...

    # --- the client's side ---

    def commit(self) -> None:
        """The client has waited long enough: promise a stream, whatever comes, if this kind of answer can."""

    def frames(self) -> bytes:
        """Everything that may go out now, for one write; empty if there is nothing."""

    def refusal(self, fault: Fault) -> Whole | None:
        """How the failure is said before anything was sent, if it is not the surface's own way."""

    def last_words(self, fault: Fault) -> bytes | None:
        """What a begun stream is told of a bug, if it is not the surface's own frame."""

    def fold(self) -> None:
        """Take what came into the whole message."""

    def message(self) -> bytes | None:
        """The whole message as JSON; None if there is none, then `fault` tells why."""
