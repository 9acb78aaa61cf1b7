"""Without a server: the first process serves, and another one when it dies."""

from __future__ import annotations

import asyncio
import signal
import struct
import time

import pytest
import structlog

from antiphon.server.coordination import open_coordinator
from server.coordination.fleet import until

TTL = 60.0  # so long that no heartbeat and no TTL can be what helps


async def test_one_of_them_serves(tmp_path, fleet) -> None:
    members = [await fleet.member(f"local:{tmp_path / 's'}", 2, TTL) for _ in range(3)]
    assert [member.coordinator.serves for member in members].count(True) == 1


async def test_a_killed_server_is_replaced_and_every_lease_is_kept(tmp_path, fleet) -> None:
    where = f"local:{tmp_path / 's'}"
    server = await fleet.process(where, 3, TTL)
    one, two = await fleet.member(where, 3, TTL), await fleet.member(where, 3, TTL)
    server.say("request a")
    await server.hears("granted a")
    one.request()
    two.request()
    await until(lambda: one.held == two.held == 1)
    for member in (one, two):
        member.request()
        member.request()
    await until(lambda: one.slots.view.waiting + two.slots.view.waiting > 0)
    server.signal(signal.SIGKILL)
    await until(lambda: one.held + two.held == 3)
    assert one.coordinator.serves != two.coordinator.serves
    assert not one.slots.alone
    assert one.lost == two.lost == []
    one.granted[0].release()
    await until(lambda: len(one.granted) + len(two.granted) == 4)
    assert one.held + two.held == 3


async def test_a_lease_ends_with_its_connection(tmp_path, fleet) -> None:
    where = f"local:{tmp_path / 's'}"
    one = await fleet.member(where, 1, TTL)
    other = await fleet.process(where, 1, TTL)
    other.say("request a")
    await other.hears("granted a")
    one.request()
    await until(lambda: one.slots.view.waiting == 1)
    other.signal(signal.SIGKILL)
    await until(lambda: one.held == 1)


LINGER = 0.5


async def test_what_a_killed_gateway_held_lingers_where_its_server_works_on(tmp_path, fleet) -> None:
    where = f"local:{tmp_path / 's'}"
    one = await fleet.member(where, 1, TTL)
    other = await fleet.process(where, 1, TTL, LINGER)
    other.say("request a")
    await other.hears("granted a")
    one.request()
    await until(lambda: one.slots.view.waiting == 1)
    killed = time.monotonic()
    other.signal(signal.SIGKILL)
    await until(lambda: one.held == 1)
    assert time.monotonic() - killed >= LINGER - 0.01  # whole milliseconds there


async def test_it_lingers_too_if_it_was_the_one_that_served(tmp_path, fleet) -> None:
    where = f"local:{tmp_path / 's'}"
    server = await fleet.process(where, 2, TTL, LINGER)
    one, two = await fleet.member(where, 2, TTL, linger=LINGER), await fleet.member(where, 2, TTL)
    server.say("request a")
    await server.hears("granted a")
    one.request()
    await until(lambda: one.held == 1)
    two.request()
    await until(lambda: two.slots.view.waiting == 1)
    killed = time.monotonic()
    server.signal(signal.SIGKILL)
    await until(lambda: two.held == 1)
    assert time.monotonic() - killed >= LINGER - 0.01
    assert one.lost == two.lost == []
    # And what lingered then is not inherited again.
    for member in (one, two):
        member.granted[0].release()
    serving, other = (one, two) if one.coordinator.serves else (two, one)
    await serving.slots.aclose()
    other.request()
    other.request()
    await until(lambda: other.held == 2)


async def test_what_the_serving_process_had_lingers_of_all_its_gateways(tmp_path, fleet) -> None:
    """Two upstreams of one process may be at one URL: their leases are orphans at the same moment."""
    where = f"local:{tmp_path / 's'}"
    one, two = await fleet.member(where, 4, TTL, linger=2.0), await fleet.member(where, 4, TTL, linger=3.0)
    for member, slots in ((one, 1), (two, 2)):
        for _ in range(slots):
            member.request()
    await until(lambda: (one.held, two.held) == (1, 2))
    (lock,) = (tmp_path / "s").glob("*.lock")
    assert struct.unpack("=QQ", lock.read_bytes()) == (3, 3000)
    for lease in (*one.granted, *two.granted):
        lease.release()
    await until(lambda: struct.unpack("=QQ", lock.read_bytes())[0] == 0)


async def test_nothing_that_is_raised_ends_it(tmp_path, fleet) -> None:
    one = await fleet.member(f"local:{tmp_path / 's'}", 1, 0.3, wait=False)
    up, raised = one.slots.on_up, []

    def failing() -> None:
        if len(raised) < 2:
            raised.append(1)
            raise LookupError
        up()

    one.slots.on_up = failing
    with structlog.testing.capture_logs() as logs:
        await until(lambda: one.slots.view.born)
    assert [entry["event"] for entry in logs].count("coordination_failed") == 2


async def test_a_server_that_leaves_hands_over(tmp_path, fleet) -> None:
    where = f"local:{tmp_path / 's'}"
    first, second = await fleet.member(where, 1, TTL), await fleet.member(where, 1, TTL)
    second.request()
    await until(lambda: second.held == 1)
    await first.slots.aclose()
    await until(lambda: second.coordinator.serves and second.slots.view.gateways == 1)
    second.request()
    second.granted[0].release()
    await until(lambda: len(second.granted) == 2)


async def test_what_is_not_our_protocol_ends_its_own_connection(tmp_path, fleet) -> None:
    folder = tmp_path / "s"
    one = await fleet.member(f"local:{folder}", 1, TTL)
    (path,) = folder.glob("*.sock")
    reader, writer = await asyncio.open_unix_connection(str(path))
    writer.write(b"GET / HTTP/1.1\r\n\r\n")
    assert await reader.read() == b""
    writer.close()
    one.request()
    await until(lambda: one.held == 1)


async def test_a_folder_of_others_is_refused(tmp_path) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o755)
    with pytest.raises(ValueError, match="closed to others"):
        open_coordinator(f"local:{folder}", "up")


async def test_the_socket_is_gone_when_the_last_one_leaves(tmp_path, fleet) -> None:
    folder = tmp_path / "s"
    one = await fleet.member(f"local:{folder}", 1, TTL)
    assert list(folder.glob("*.sock"))
    await one.slots.aclose()
    assert not list(folder.glob("*.sock"))
