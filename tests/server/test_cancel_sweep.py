"""Law 8: a cancellation at every point of an exchange, and a bug at every one of its callbacks.

A point lies between any two callbacks of the loop, and before and after each callback of the exchange. A
scenario is played once for each of its points; whatever is injected there, nothing is left behind, the
one who waits for the slot gets it, and what the client has is the beginning of a legal stream.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from antiphon.core.dialects.chat_stream import ChatStream
from antiphon.core.stream import Stream
from antiphon.core.surfaces.messages.events import EventEncoder
from antiphon.core.surfaces.messages.fold import Fold
from antiphon.server import attempt, exchange, seeking
from antiphon.server.admission import Slots
from antiphon.server.attempt import Attempt
from antiphon.server.exchange import Exchange
from antiphon.server.seeking import Seeking
from antiphon.server.upstream import UpstreamPool
from antiphon.server.upstreams import Upstream
from server.harness import (
    DONE,
    SSE_HEAD,
    USAGE,
    Client,
    House,
    Visit,
    chunk,
    frame,
    judge,
    on_asyncio,
    tool,
    turns,
    until,
)

GUARDS: dict[type, Callable[..., Any]] = {
    Exchange: exchange.guarded,
    Seeking: seeking.guarded,
    Attempt: attempt.guarded,
}
CALLBACKS: list[tuple[type, str]] = [
    (Seeking, "begin"),
    (Seeking, "on_granted"),
    (Attempt, "on_open"),
    (Attempt, "on_head"),
    (Attempt, "on_body"),
    (Attempt, "on_read"),
    (Attempt, "on_end"),
    (Attempt, "on_lost"),
    (Exchange, "on_client_gone"),
    (Exchange, "on_client_paused"),
    (Exchange, "on_client_resumed"),
    (Exchange, "tick"),
]
PIECES = [
    SSE_HEAD,
    chunk(frame({"role": "assistant", "content": ""})),
    chunk(frame({"reasoning_content": "SECRET thought"})),
    chunk(frame({"content": "SECRET answer"})),
    chunk(frame(tool('{"a": ', call_id="c1", name="f"))),
    chunk(frame(tool("1}"))) + chunk(frame(finish="tool_calls")),
    chunk(USAGE),
    chunk(DONE) + b"0\r\n\r\n",
]


def play(visit: Visit, pieces: list[bytes] = PIECES, then: Callable[[], None] = lambda: None) -> None:
    """Send a piece for each turn of the loop, so that each is read alone."""
    loop = asyncio.get_running_loop()

    def step(number: int) -> None:
        if visit.side.transport.is_closing():
            return
        if number == len(pieces):
            then()
            return
        visit.raw(pieces[number])
        loop.call_soon(loop.call_soon, step, number + 1)

    step(0)


class Points:
    """Counts the points of a run and calls `inject` at one of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.passed = 0
        self.at = 0  # 0: at none
        self.inject: Callable[[], None] = lambda: None
        self.armed = self.running = False
        self._inside = False
        run = asyncio.Handle._run

        def stepped(handle: asyncio.Handle) -> None:
            run(handle)
            self.point()

        monkeypatch.setattr(asyncio.Handle, "_run", stepped)
        for owner, name in CALLBACKS:
            monkeypatch.setattr(owner, name, self._around(getattr(owner, name)))

    def _around(self, method: Callable[..., None]) -> Callable[..., None]:
        def around(*args: Any) -> None:
            if self.armed and method.__name__ == "begin":  # what comes before is the edge's business
                self.armed, self.running = False, True
            self.point()
            method(*args)
            self.point()

        return around

    def point(self) -> None:
        if self.running and not self._inside:
            self.passed += 1
            if self.passed == self.at:
                self._inside = True
                try:
                    self.inject()
                finally:
                    self._inside = False


def client_gone(house: House, client: Client) -> None:
    with contextlib.suppress(StopIteration):
        edge = client.edge
        edge._disconnect_cycle()
        if edge.listener is not None:
            edge.listener.on_client_gone()
        edge.transport.abort()


def reset_client(house: House, client: Client) -> None:
    client.rst()


def half_close(house: House, client: Client) -> None:
    if not client.transport.is_closing():
        client.half_close()


def cancel_task(house: House, client: Client) -> None:
    with contextlib.suppress(StopIteration):
        first = client.edge.cycle
        for task in list(house.server.server_state.tasks):
            if not task.done() and task.get_coro().cr_frame.f_locals["self"] is first:
                task.cancel()


def pause_and_resume(house: House, client: Client) -> None:
    """The buffer is full, and a few callbacks later it is not."""
    with contextlib.suppress(StopIteration):
        edge = client.edge
        edge.pause_writing()
        loop = asyncio.get_running_loop()
        loop.call_later(0.002, lambda: edge.transport.is_closing() or edge.resume_writing())


def tick_early(house: House, client: Client) -> None:
    house.tick(12)


def tick_late(house: House, client: Client) -> None:
    house.tick(100_000)


def shut_down(house: House, client: Client) -> None:
    for each in list(house.gateway.live):
        each.close("shutdown")


def reset_upstream(house: House, client: Client) -> None:
    for visit in house.upstream.visits[-1:]:
        if not visit.side.transport.is_closing():
            visit.reset()


LEAVES = (client_gone, reset_client, half_close, cancel_task)
STAYS = (pause_and_resume, tick_early, tick_late, shut_down, reset_upstream)


def judge_answer(client: Client, *, stays: bool, late: bool = False) -> None:
    response = client.so_far
    if response is None or response.status == 408:  # a tick may come before the request is there
        assert late or not stays
        return
    if response.headers["content-type"].startswith("text/event-stream"):
        found = judge.violations(response.events, prefix=not stays)
        assert not found, (found, response.body)
        if stays:
            assert response.complete
            assert response.kinds[-1] in ("message_stop", "error")
    elif response.complete and response.status == 200:
        assert response.json["type"] == "message"
    elif response.complete:
        assert response.status in (502, 504, 529), response
        assert response.json["request_id"] == response.headers["request-id"]


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("event", [*LEAVES, *STAYS], ids=lambda event: event.__name__)
@on_asyncio
async def test_an_event_at_every_point(event, stream, monkeypatch) -> None:
    points = Points(monkeypatch)
    stays = event in STAYS
    async with House(slots=1, limits={"settle": 0.001}) as house:
        house.upstream.answering = play
        for at in range(1, 2000):
            client, heir = await house.client(), await house.client()
            points.passed, points.at = 0, at
            points.inject = lambda client=client: event(house, client)
            points.armed = True
            client.ask("SECRET", stream=stream)
            heir.ask("heir", stream=stream)
            for each in (client, heir):
                await each.until(lambda each=each: may_have_ended(each))
            points.running = False
            judge_answer(client, stays=stays, late=event is tick_late)
            judge_answer(heir, stays=True, late=event is tick_late)
            for each in (client, heir):
                each.transport.abort()
            await until(lambda: not house.gateway.edges)
            if event is cancel_task:  # uvicorn's own line; nobody cancels its tasks but a forced exit
                house.records.lines[:] = [
                    line for line in house.records.lines if "ASGI application" not in line
                ]
            await house.check()
            house.upstream.visits.clear()
            house.clients.clear()
            house.said.entries.clear()
            if points.passed < at:
                break
        assert at > 30


# --- A bug at every callback ------------------------------------------------------------------------

INNER: list[tuple[type, str]] = [
    (ChatStream, "feed"),
    (ChatStream, "end"),
    (Stream, "receive"),
    (Stream, "take"),
    (Stream, "commit"),
    (EventEncoder, "encode"),
    (Fold, "add"),
    (Fold, "message"),
    (UpstreamPool, "post"),
    (Slots, "request"),
    (Upstream, "refusal"),
    *CALLBACKS,
]


class SecretError(Exception):
    pass


@contextlib.contextmanager
def raising(owner: type, name: str, at: int, *, always: bool) -> Iterator[list[int]]:
    """Let a method raise at its nth call (and `always`: at every later one). Yields its number of calls."""
    method = getattr(owner, name)
    calls = [0]
    inner = getattr(method, "__wrapped__", method) if owner in GUARDS else method

    def wrong(*args: Any, **kwargs: Any) -> Any:
        calls[0] += 1
        if name == "on_granted":
            args[0]._seat = args[1:]  # its first line, which cannot fail: before it nobody has the slot
        if at and (calls[0] >= at if always else calls[0] == at):
            raise SecretError("SEC" + "RET")  # not as the source line that a traceback shows
        return inner(*args, **kwargs)

    setattr(owner, name, GUARDS[owner](wrong) if owner in GUARDS else wrong)
    try:
        yield calls
    finally:
        setattr(owner, name, method)


async def plain(house: House, client: Client) -> None:
    client.ask("SECRET")
    play(await house.visit())


async def whole(house: House, client: Client) -> None:
    client.ask("SECRET", stream=False)
    play(await house.visit())


async def in_one_read(house: House, client: Client) -> None:
    client.ask("SECRET")
    (await house.visit()).raw(b"".join(PIECES))


async def begun_early(house: House, client: Client) -> None:
    """`commit_after`, a ping, a full buffer and its end."""
    client.ask("SECRET")
    visit = await house.visit()
    for _ in range(4):
        house.tick(13)
        await turns()
    with contextlib.suppress(StopIteration):
        client.edge.pause_writing()
        await turns()
        client.edge.resume_writing()
    if not visit.closed.is_set():
        play(visit)


async def cut(house: House, client: Client) -> None:
    client.ask("SECRET")
    visit = await house.visit()
    play(visit, PIECES[:5], visit.cut)


async def refused(house: House, client: Client) -> None:
    client.ask("SECRET")
    (await house.visit()).refuse(500)


async def timed_out(house: House, client: Client) -> None:
    client.ask("SECRET")
    play(await house.visit(), PIECES[:4])
    await turns(30)
    house.tick(1)
    house.tick(1000)


async def queued(house: House, client: Client) -> None:
    """Granted by somebody else's end: the bug is in a callback that a stranger called."""
    visits = house.upstream.visits
    holder = await house.ask("holder", stream=False)
    await until(lambda: visits or may_have_ended(holder))
    client.ask("SECRET")
    await until(lambda: house.stats[2] == 1 or asked(visits) or may_have_ended(client))
    for visit in visits:
        if visit.tag == "holder":
            visit.refuse(400)
    assert (await holder.response()).status in (400, 500)
    await until(lambda: asked(visits) or may_have_ended(client))
    for visit in visits:
        if visit.tag == "SECRET":
            play(visit)


def asked(visits: list[Visit]) -> bool:
    return any(visit.tag == "SECRET" for visit in visits)


def may_have_ended(client: Client) -> bool:
    response = client.so_far
    return client.ended or bool(response and response.complete)


@pytest.mark.parametrize("always", [False, True], ids=["once", "from then on"])
@pytest.mark.parametrize(
    "scenario",
    [plain, whole, in_one_read, begun_early, cut, refused, timed_out, queued],
    ids=lambda scenario: scenario.__name__,
)
@on_asyncio
async def test_a_bug_at_every_callback(scenario, always) -> None:
    hits = 0
    async with House(slots=1, limits={"settle": 0.001}) as house:

        async def run_once() -> Client:
            house.upstream._fresh = asyncio.Queue()
            client = await house.client()
            played = asyncio.ensure_future(scenario(house, client))
            await client.until(lambda: may_have_ended(client))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if client.so_far and client.so_far.status == 200 else 0.01):
                    await played
            return client

        for owner, name in INNER:
            with raising(owner, name, 0, always=False) as calls:
                client = await run_once()
                total = calls[0]
            await clean(house)
            for at in range(1, total + 1):
                with raising(owner, name, at, always=always):
                    client = await run_once()
                    response = client.so_far
                    where = f"{name} at call {at}"
                    assert response is not None, where
                    bugs = [entry for entry in house.said.entries if entry["event"] == "internal"]
                    own = [bug for bug in bugs if bug["request_id"] == response.headers["request-id"]]
                    assert len(own) <= 1, where
                    assert "SECRET" not in repr(house.said.entries), where
                    if own:
                        hits += 1
                        assert "SecretError" in own[0]["error"]
                        judge_bug(response, where)
                    house.said.entries[:] = [entry for entry in house.said.entries if entry not in bugs]
                    await clean(house)
    assert hits > 5


def judge_bug(response: Any, where: str) -> None:
    assert response.complete, where
    if response.status == 200:
        end = response.events[-1]
        if end["type"] == "message_stop":
            return  # everything was said already
        assert end["type"] == "error", (where, response.body)
        assert end["error"]["type"] == "api_error", where
        assert end["request_id"] == response.headers["request-id"]
        if response.kinds[0] != "error":
            assert not judge.violations(response.events), where
    else:
        assert response.status == 500, (where, response)
        assert response.json["request_id"] == response.headers["request-id"]
        assert response.json["error"]["type"] == "api_error"


async def clean(house: House) -> None:
    for client in house.clients:
        client.transport.abort()
    house.clients.clear()
    await until(lambda: not house.gateway.edges)
    await house.check()
    house.upstream.visits.clear()
    house.said.entries.clear()
