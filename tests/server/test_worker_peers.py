"""Workers that ask each other: everybody is heard, the dead and the slow are left out."""

from __future__ import annotations

import asyncio
import json
import socket

from structlog.testing import capture_logs

from antiphon.server import worker_peers
from antiphon.server.worker_peers import Peers, Question, merged_slots


class Worker:
    def __init__(self, folder, monkeypatch, pid: int) -> None:
        monkeypatch.setattr(worker_peers.os, "getpid", lambda: pid)
        self.pid = pid
        self.heard: list[Question] = []
        self.peers = Peers(folder, self._answer)

    def _answer(self, question: Question) -> bytes:
        self.heard.append(question)
        return json.dumps({"pid": self.pid, "cancelled": question.cancel == f"req_{self.pid}"}).encode()


async def workers(folder, monkeypatch, *pids: int) -> list[Worker]:
    there = [Worker(folder, monkeypatch, pid) for pid in pids]
    for worker in there:
        await worker.peers.start()
    return there


async def test_everybody_else_is_asked(tmp_path, monkeypatch) -> None:
    one, two, three = await workers(tmp_path, monkeypatch, 1, 2, 3)
    answers = [json.loads(answer) for answer in await one.peers.ask(Question())]
    assert [answer["pid"] for answer in answers] == [2, 3]
    answers = [json.loads(answer) for answer in await two.peers.ask(Question(cancel="req_3"))]
    assert [answer["cancelled"] for answer in answers] == [False, True]
    assert (one.heard, three.heard[-1]) == ([Question(cancel="req_3")], Question(cancel="req_3"))
    for worker in (one, two, three):
        await worker.peers.aclose()
    assert list(tmp_path.iterdir()) == []


async def test_the_socket_of_a_dead_one_is_cleared_away(tmp_path, monkeypatch) -> None:
    one, two = await workers(tmp_path, monkeypatch, 1, 2)
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(tmp_path / "peer-9.sock"))
    dead.close()
    with capture_logs() as said:
        assert len(await one.peers.ask(Question())) == 1
    assert said == []
    assert not (tmp_path / "peer-9.sock").exists()
    for worker in (one, two):
        await worker.peers.aclose()


async def test_a_slow_one_is_left_out(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(worker_peers, "_PATIENCE", 0.05)
    (one,) = await workers(tmp_path, monkeypatch, 1)
    with socket.socket(socket.AF_UNIX) as slow, capture_logs() as said:
        slow.bind(str(tmp_path / "peer-9.sock"))
        slow.listen()
        assert await one.peers.ask(Question()) == []
    assert [line["reason"] for line in said] == ["TimeoutError"]
    await one.peers.aclose()


async def test_what_is_no_question_has_no_answer(tmp_path, monkeypatch) -> None:
    (one,) = await workers(tmp_path, monkeypatch, 1)
    with capture_logs() as said:
        reader, writer = await asyncio.open_unix_connection(tmp_path / "peer-1.sock")
        writer.write(b"nonsense\n")
        assert await reader.read() == b""
        writer.close()
    assert [line["event"] for line in said] == ["worker_peer"]
    assert one.heard == []
    await one.peers.aclose()


def of_worker(
    *, held: int, free: int, leases: list[tuple[str, float]], queue: list[tuple[str, float]]
) -> dict:
    return {
        "slots": 4,
        "held": held,
        "draining": 0,
        "free": free,
        "waiting": len(queue),
        "leases": [{"lease": name, "age_seconds": age} for name, age in leases],
        "queue": [{"lease": name, "waited_seconds": waited} for name, waited in queue],
    }


def test_slots_are_everybodys_and_the_rest_is_added_up() -> None:
    one = {"up": of_worker(held=2, free=1, leases=[("a", 9.0), ("b", 1.0)], queue=[("q", 2.0)])}
    two = {
        "up": of_worker(held=1, free=0, leases=[("c", 5.0)], queue=[("r", 3.0)]),
        "new": of_worker(held=0, free=4, leases=[], queue=[]),
    }
    whole = merged_slots([one, two])
    up = whole["up"]
    assert (up["slots"], up["free"], up["held"], up["waiting"]) == (4, 0, 3, 2)
    assert [lease["lease"] for lease in up["leases"]] == ["a", "c", "b"]
    assert [ticket["lease"] for ticket in up["queue"]] == ["r", "q"]
    assert whole["new"]["free"] == 4
    assert len(one["up"]["leases"]) == 2  # what was handed in is as it was
