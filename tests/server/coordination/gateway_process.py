"""One gateway as a process of its own: commands on stdin, one a line, what happens on stdout.

python gateway_process.py WHERE TTL SLOTS LINGER
request a            asks for a slot as owner `a`
end a                cancels or releases it
flood N              N requests; each is released the moment it is granted and asked for again
-> up | granted a | lost a | displaced a
"""

from __future__ import annotations

import asyncio
import sys

from antiphon.server.coordination import open_coordinator
from antiphon.server.coordination.shared_slots import SharedSlots


def say(*words) -> None:
    print(*words, flush=True)


async def main(where: str, ttl: str, limit: str, linger: str) -> None:
    coordinator = open_coordinator(where, "up", ttl=float(ttl))
    slots = SharedSlots(
        "up",
        int(limit),
        coordinator=coordinator,
        lost=lambda lease: say("lost", lease.owner),
        patience=5.0,
        linger=float(linger),
    )
    slots.start()
    while not slots.view.born:
        await asyncio.sleep(0.01)
    say("up")
    leases: dict = {}
    tickets: dict = {}

    def granted(lease) -> None:
        leases[lease.owner] = lease
        say("granted", lease.owner)

    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    while line := (await reader.readline()).decode().split():
        match line:
            case ["request", owner]:
                tickets[owner] = slots.request(owner, granted, share=owner[0])
            case ["end", owner]:
                tickets.pop(owner).cancel()
                if owner in leases:
                    leases.pop(owner).release()
    await slots.aclose()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
