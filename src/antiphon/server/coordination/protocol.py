"""What a gateway and a coordinator say to each other about one upstream's slots.

Owns the messages and the two interfaces; no I/O, no clock. Four rules make it safe to lose any message:

- **A ticket's key is its lease's key.** It waits, then it is leased, then it is gone. `Release` ends it in
  whichever of these it is, twice does nothing: a cancel that crosses a grant needs no answer.
- **`Register` is the gateway's whole truth**, sent first on each new connection. What the coordinator has
  beyond it is dropped, what it lacks is added. So nothing else ever needs to be repeated or repaired.
- **Each `Register` begins an epoch**, and what comes with an older one is refused: bytes of a dead
  connection that are read late change nothing. A coordinator that does not know the gateway (it started
  empty; the gateway was silent for longer than its TTL) answers `stale`, and the gateway registers again.
- **Answers come in the order of the operations**, notices between them in the order of the changes.

    gateway                              coordinator
      Register(leases=[], waiting=[])  ->
                                       <-  Answer(limit=8, gateways=2, rank=0)
      Acquire(key="g1:1", share=...)   ->
                                       <-  Answer(granted=["g1:1"])      a slot was free
      Acquire(key="g1:2", share=...)   ->
                                       <-  Answer(waiting=1)
                                       <-  Notice(granted=["g1:2"])      another gateway released
      Release(keys=["g1:1"])           ->
                                       <-  Answer()
"""

from __future__ import annotations

from typing import Protocol, TypeAlias

from msgspec import Struct


class Claim(Struct, frozen=True, array_like=True):
    """One key: a lease that a gateway holds, or a place in the queue that it asks for.

    `share` is 16 hexadecimal digits (a digest: a coordinator need not know who the clients are),
    `priority` one digit, the smaller goes first; the two say nothing about a lease but for fairness.
    """

    key: str
    share: str
    weight: float = 1.0
    priority: int = 0


class Register(Struct, frozen=True, tag=True, omit_defaults=True):
    """Everything that this gateway has. The leases in the order of their grants, the waiters in theirs."""

    limit: int
    past: str = ""  # `Answer.born` of the coordinator's state that these leases come from
    entitled: bool = False  # this gateway was not stalled: leases that are missing are put back at any rate
    set_limit: bool = False  # `limit` is news
    limit_set: int = 0  # `Answer.limit_set` of the limit; the later one counts
    queue_limit: int = 1024
    active: int = 0
    linger: int = 0  # milliseconds in which its leases stay used when it is gone: the server works on
    leases: list[Claim] = []
    waiting: list[Claim] = []


class Renew(Struct, frozen=True, tag=True, omit_defaults=True):
    """The heartbeat: all of this gateway's leases for another TTL. `limit`: it has changed."""

    active: int = 0
    linger: int = 0  # as in `Register`; the last word counts
    limit: int | None = None


class Acquire(Struct, frozen=True, tag=True, omit_defaults=True):
    """A slot, or a place in the queue. `displaced` names who gave way where the queue was full."""

    claim: Claim
    queue_limit: int = 1024


class Release(Struct, frozen=True, tag=True, omit_defaults=True):
    """These neither hold nor wait any more."""

    keys: list[str]
    active: int = 0


class Leave(Struct, frozen=True, tag=True, omit_defaults=True):
    """The gateway stops: everything of it ends now, its leases after `linger` (as in `Register`)."""

    linger: int = 0


Operation: TypeAlias = Register | Renew | Acquire | Release | Leave


class Notice(Struct, frozen=True, omit_defaults=True):
    """What another gateway's operation did for this one's keys."""

    granted: list[str] = []
    displaced: list[str] = []


class Answer(Struct, frozen=True, omit_defaults=True):
    """What became of an operation, and how things stand for everybody.

    `active` is how many leases of *other* gateways have begun to answer. `again`: milliseconds until it is
    worth a look, because leases may have run out by then that somebody waits for.
    """

    stale: bool = False
    granted: list[str] = []
    displaced: list[str] = []
    lost: list[str] = []
    born: str = ""
    limit: int = 0
    limit_set: int = 0  # when the limit was changed last, by the coordinator's clock
    used: int = 0
    waiting: int = 0
    gateways: int = 0  # 0: not told (only `Register` and `Renew` are)
    rank: int = 0
    active: int = 0
    again: int | None = None


class Listener(Protocol):
    """The gateway's side of one coordinator. Called from the loop, never from inside `Coordinator.send`."""

    def on_up(self) -> None:
        """A new connection stands. `Register` must be the first operation on it."""

    def on_down(self) -> None:
        """It is gone, with every answer that was still to come. Another one is being tried."""

    def on_answer(self, answer: Answer) -> None: ...

    def on_notice(self, notice: Notice) -> None: ...


class Coordinator(Protocol):
    """One upstream's coordinator as one gateway sees it. It connects by itself, again and again."""

    @property
    def gateway(self) -> str:
        """The gateway's id: no colon in it. Keys are made of it, a colon and anything."""

    @property
    def ttl(self) -> float:
        """Seconds after which what a silent gateway holds is taken back."""

    def start(self, listener: Listener) -> None: ...

    def send(self, epoch: int, operation: Operation) -> None:
        """Say it, in order; never waits. Does nothing while there is no connection."""

    def reset(self) -> None:
        """Give this connection up (it does not answer): `on_down` comes, and then another try."""

    async def aclose(self) -> None:
        """Send what was said, within a second, and stop. No callback comes afterwards."""
