"""Real llama.cpp servers with one gateway process in front of them.

Owns how they are started and what they say of their own slots.

    async with LlamaHouse(tmp_path, {"one": Served(slots=2), "two": Served(slots=1)}) as house:
        async with house.ask("Say hello.") as answer: ...
        await house.busy("one")
"""

from __future__ import annotations

import re
import sys
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from antiphon.local import LocalServer, available, slots_busy
from antiphon.local_model import cached_model
from live.house import House

REASON = available() or (None if cached_model() else "the model file is not in the cache (antiphon fetch)")
"""Why there is no llama.cpp here, if there is none."""

NAME = "smollm2"
_CHILD = (sys.executable, "-P", str(Path(__file__).with_name("metered_llamacpp.py")))


@dataclass
class Served:
    """One upstream: how its server is started, and as what kind the gateway is told of it."""

    slots: int = 2
    window: int = 1024
    kind: str = "auto"
    back_after: float = 0.5  # seconds from its death to its restart
    server: LocalServer = field(init=False)

    @property
    def pid(self) -> int:
        assert self.server.pid is not None
        return self.server.pid


class LlamaHouse(House):
    """See the module. Clients ask for `smollm2`, which all have, or for `only-NAME`."""

    def __init__(self, folder: Path, served: dict[str, Served], *, expected: Collection[str] = ()) -> None:
        super().__init__(folder, model=NAME, expected=expected)
        self.served = served
        self.names = served.keys()

    async def serve(self) -> str:
        parts = []
        for name, one in self.served.items():
            one.server = LocalServer(
                cached_model(),
                alias=NAME,
                slots=one.slots,
                window=one.window,
                command=_CHILD,
                backoff=lambda _, one=one: one.back_after,
            )
            await self.opening.enter_async_context(one.server)
            key = self.folder / f"{name}.key"
            key.touch(0o600)
            key.write_text(one.server.api_key)
            parts.append(
                f'[[upstreams]]\nname = "{name}"\nbase_url = "{one.server.base_url}"\nkind = "{one.kind}"\n'
                f'api_key_file = "{key}"\nslots = "auto"\n'
            )
        targets = ", ".join(f'{{ upstream = "{name}" }}' for name in self.served)
        parts.append(f'[[models]]\nname = "{NAME}"\ntargets = [{targets}]\n')
        parts += [f'[[models]]\nname = "only-{name}"\nupstream = "{name}"\n' for name in self.served]
        return "\n".join(parts)

    async def busy(self, name: str) -> int | None:
        server = self.served[name].server
        return await slots_busy(server.base_url, self.session, api_key=server.api_key)

    async def deferred(self, name: str) -> int:
        """How many requests wait inside a server, by its own metrics."""
        server = self.served[name].server
        url = server.base_url.removesuffix("/v1") + "/metrics"
        async with self.session.get(url, headers={"authorization": f"Bearer {server.api_key}"}) as answer:
            page = await answer.text()
        found = re.search(r"^llamacpp:requests_deferred (\S+)$", page, re.MULTILINE)
        assert found, page
        return int(float(found[1]))

    def direct(self, name: str, path: str, body: dict):
        """A request to a server, past the gateway; the context of its answer."""
        server = self.served[name].server
        headers = {"authorization": f"Bearer {server.api_key}"}
        return self.session.post(f"{server.base_url}{path}", json=body, headers=headers)


def without_marks(body: bytes) -> bytes:
    """A Chat Completions answer without what differs each time: its id, its times."""
    body = re.sub(rb'"id":"[^"]*"', b'"id":""', body)
    body = re.sub(rb'"created":\d+', b'"created":0', body)
    return re.sub(rb'"timings":\{[^}]*\}', b'"timings":{}', body)
