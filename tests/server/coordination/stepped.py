"""A coordinator whose every message is delivered by hand: a room, and two lines for each gateway."""

from __future__ import annotations

from collections import deque
from itertools import count

from antiphon.server.coordination.room import Room

TTL = 1000.0  # seconds: nothing runs out by itself


class Hub:
    """The room and everybody who is connected to it. `now` in milliseconds, moved by hand."""

    def __init__(self) -> None:
        self.now = 1_000_000
        self.order: list = []  # for tests: who was granted, one after the other
        self._born = count(1)
        self.room: Room
        self.ends: dict[str, SteppedCoordinator] = {}
        self.restart()

    def restart(self) -> None:
        """It lost everything."""
        self.room = Room(born=f"b{next(self._born)}", calm=round(TTL * 400))

    def tell(self, notices) -> None:
        for gateway, notice in notices.items():
            end = self.ends[gateway]
            if end.up:
                end.down_line.append(("notice", notice))

    def step(self) -> bool:
        """Deliver one message of everybody, up and down; false if there was none."""
        return any([end.deliver_up() | end.deliver_down() for end in list(self.ends.values())])

    def settle(self) -> None:
        """Deliver everything."""
        for _ in range(10_000):
            if not self.step():
                return
        raise AssertionError("the conversation does not come to an end")


class SteppedCoordinator:
    """One gateway's end. `late` has what a dead connection still carries."""

    def __init__(self, hub: Hub, gateway: str) -> None:
        self.gateway = gateway
        self.ttl = TTL
        self.hub = hub
        self.up = False
        self.up_line: deque = deque()
        self.down_line: deque = deque()
        self.late: deque = deque()
        self.resets = 0
        hub.ends[gateway] = self

    def start(self, listener) -> None:
        self.listener = listener

    def send(self, epoch, operation) -> None:
        if self.up:
            self.up_line.append((epoch, operation))

    def reset(self) -> None:
        self.resets += 1

    async def aclose(self) -> None:
        self.hub.settle()

    def connect(self) -> None:
        assert not self.up
        self.up = True
        self.listener.on_up()

    def disconnect(self) -> None:
        """Nothing more comes down; what is under way up may arrive yet."""
        assert self.up
        self.up = False
        self.late += self.up_line
        self.up_line.clear()
        self.down_line.clear()
        self.listener.on_down()

    def deliver_late(self) -> bool:
        if not self.late:
            return False
        self._apply(*self.late.popleft())
        return True

    def deliver_up(self) -> bool:
        if not self.up_line:
            return False
        self.down_line.append(("answer", self._apply(*self.up_line.popleft())))
        return True

    def deliver_down(self) -> bool:
        if not self.down_line:
            return False
        kind, said = self.down_line.popleft()
        (self.listener.on_answer if kind == "answer" else self.listener.on_notice)(said)
        return True

    def _apply(self, epoch, operation):
        hub = self.hub
        answer, notices = hub.room.apply(self.gateway, epoch, round(TTL * 1000), operation, hub.now)
        hub.tell(notices)
        return answer
