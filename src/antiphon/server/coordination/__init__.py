"""Many gateways, one set of slots.

Owns what several gateway processes must agree on: who holds a slot of an upstream, who waits, who is next.
`SharedSlots` is `admission.Slots` whose grants come from a coordinator; what a coordinator is, is in
`protocol`. There are two: Valkey or Redis (`redis_coordinator`), and the first process on this machine
(`local_coordinator`, which keeps its state in a `room`). See docs/decisions/0010-shared-slots.md.

    coordinator = open_coordinator("redis://host:6379/0", "5f0e1c9a", name="vllm")
    slots = SharedSlots("vllm", 8, coordinator=coordinator, lost=abort_the_exchange_of)
    slots.start()                  # in a running loop; requests may be made before it is connected
    ...
    await slots.aclose()
"""

from __future__ import annotations

from pathlib import Path

from antiphon.server.coordination.protocol import Coordinator

TTL = 6.0  # seconds after which what a silent gateway holds is taken back


def open_coordinator(where: str, upstream: str, *, name: str | None = None, ttl: float = TTL) -> Coordinator:
    """The coordinator of one upstream: `redis://`, `rediss://` or `unix://`, or `local:FOLDER`.

    FOLDER is one that only this user can write to; the processes that name the same one share slots.
    `upstream` is what all gateways call it, and others may read; `name` is what this one's log calls it.
    Raises ValueError for anything else, and for a URL that cannot be used, without its text; OSError for a
    folder that cannot be used; ModuleNotFoundError where the redis client is not installed.
    """
    scheme, _, rest = where.partition(":")
    if scheme == "local" and rest:
        from antiphon.server.coordination.local_coordinator import LocalCoordinator

        return LocalCoordinator(Path(rest), upstream, ttl=ttl, name=name)
    if scheme in ("redis", "rediss", "unix") and rest.startswith("//"):
        from antiphon.server.coordination.redis_coordinator import RedisCoordinator

        return RedisCoordinator(where, upstream, ttl=ttl, name=name)
    # The text does not repeat it: a URL may hold a password.
    raise ValueError("coordination: must begin with redis://, rediss:// or unix://, or be local:FOLDER")
