"""Valkey or Redis as the coordinator: slow, standing still, gone, and back without its data."""

from __future__ import annotations

import asyncio

import pytest
import redis
import structlog

from antiphon.config import Coordination, UpstreamSettings
from antiphon.server.backends import nobody, sharing
from antiphon.server.coordination.shared_slots import CoordinatorGoneError
from server.coordination.fleet import until
from server.coordination.servers import RedisServer, SlowProxy

TTL = 1.5


def _client(server) -> redis.Redis:
    return redis.Redis(port=server.port)


async def _two(fleet, url, slots=2, ttl=TTL, **options):
    one, two = await fleet.member(url, slots, ttl, **options), await fleet.member(url, slots, ttl, **options)
    one.slots._look()
    await until(lambda: one.slots.view.gateways == two.slots.view.gateways == 2)
    return one, two


async def test_restarted_empty_it_learns_what_is_held(redis_server, fleet) -> None:
    """No slot is granted twice: first everybody says what it holds."""
    one, two = await _two(fleet, redis_server.url)
    one.request()
    two.request()
    await until(lambda: one.held == two.held == 1)
    one.request()
    redis_server.kill()
    redis_server.start()
    await until(lambda: one.slots.view.used == two.slots.view.used == 2)
    two.request()
    await until(lambda: one.slots.view.waiting == 2 or one.slots._look())
    await asyncio.sleep(TTL * 0.6)  # longer than calm
    assert (one.held, two.held) == (1, 1)
    one.granted[0].release()
    await until(lambda: one.held + two.held == 2)
    assert one.lost == two.lost == []


async def test_flushed_on_open_connections_the_next_heartbeat_tells_it(redis_server, fleet) -> None:
    one, two = await _two(fleet, redis_server.url)
    one.request()
    two.request()
    await until(lambda: one.held == two.held == 1)
    with _client(redis_server) as client:
        client.flushall()
    one.request()  # its answer is `stale`
    await until(lambda: one.slots.view.used == 2 and two.slots.view.used == 2)
    await asyncio.sleep(TTL * 0.6)
    assert (one.held, two.held) == (1, 1)
    two.granted[0].release()
    await until(lambda: one.held == 2)


async def test_without_its_scripts_it_gets_them_again(redis_server, fleet) -> None:
    one, _ = await _two(fleet, redis_server.url)
    with _client(redis_server) as client:
        client.script_flush()
    one.request()
    await until(lambda: one.held == 1)


async def test_gone_each_gateway_has_its_share_until_it_is_back(redis_server, fleet) -> None:
    one, two = await _two(fleet, redis_server.url, 3)
    one.request()
    await until(lambda: one.held == 1)
    redis_server.kill()
    for _ in range(4):
        one.request()
        two.request()
    await until(lambda: one.slots.alone and two.slots.alone)
    assert sorted((one.held, two.held)) == [1, 2]
    redis_server.start()
    await until(lambda: not one.slots.alone and not two.slots.alone)
    await asyncio.sleep(TTL * 0.6)
    assert one.held + two.held == 3
    for _ in range(9):
        member = one if one.held else two
        before = len(one.granted) + len(two.granted)
        member.slots.leases()[0].release()
        await until(
            lambda before=before: (
                len(one.granted) + len(two.granted) > before
                or not (one.slots.statistics().waiting + two.slots.statistics().waiting)
            )
        )
        assert one.held + two.held <= 3
    assert len(one.granted) + len(two.granted) == 9
    assert one.lost == two.lost == []


async def test_gone_and_closed_nobody_is_admitted(redis_server, fleet) -> None:
    one = await fleet.member(redis_server.url, 1, TTL, policy="closed")
    one.request()
    await until(lambda: one.held == 1)
    one.request()
    redis_server.kill()
    await until(lambda: one.displaced == 1)
    with pytest.raises(CoordinatorGoneError):
        one.request()
    assert one.held == 1
    redis_server.start()
    await until(lambda: not one.slots.alone)
    assert one.lost == []
    one.granted[0].release()
    one.request()
    await until(lambda: one.held == 1)


async def test_never_there_each_takes_its_part_of_the_gateways_that_were_named(redis_server, fleet) -> None:
    redis_server.kill()
    one = await fleet.member(redis_server.url, 8, TTL, wait=False, gateways=4)
    for _ in range(9):
        one.request()
    await until(lambda: one.slots.alone)
    assert one.held == 2
    redis_server.start()
    await until(lambda: one.held == 8)


async def test_standing_still_for_longer_than_the_ttl_costs_nobody_a_lease(redis_server, fleet) -> None:
    """When it runs again all leases are out of date at once: nothing is taken back before all have spoken."""
    one, two = await _two(fleet, redis_server.url)
    one.request()
    two.request()
    await until(lambda: one.held == two.held == 1)
    redis_server.stop()
    one.request()
    two.request()
    await until(lambda: one.slots.alone and two.slots.alone)
    await asyncio.sleep(TTL)
    assert (one.held, two.held) == (1, 1)
    redis_server.go_on()
    await until(lambda: not one.slots.alone and not two.slots.alone)
    await asyncio.sleep(TTL * 0.6)
    assert (one.held, two.held) == (1, 1)
    assert one.lost == two.lost == []
    one.granted[0].release()
    await until(lambda: one.held + two.held == 2)


async def test_a_pause_within_the_patience_is_only_slow(redis_server, fleet) -> None:
    one, _ = await _two(fleet, redis_server.url, 2, 6.0)
    with _client(redis_server) as client:
        client.client_pause(300)
    one.request()
    assert one.held == 0
    await until(lambda: one.held == 1)
    assert one.slots._epoch == 1  # the same connection, the same conversation


async def test_slower_than_the_patience_it_counts_as_gone(redis_server, fleet) -> None:
    proxy = SlowProxy(redis_server.port)
    await proxy.start()
    one = await fleet.member(f"redis://127.0.0.1:{proxy.port}", 2, TTL)
    one.request()
    await until(lambda: one.held == 1)
    proxy.delay = 5.0
    one.request()
    await until(lambda: one.slots.alone)
    assert one.held == 2
    proxy.delay = 0.0
    await until(lambda: not one.slots.alone)
    assert one.held == 2
    await until(lambda: one.slots.view.used == 2)
    await one.slots.aclose()
    await proxy.aclose()


async def test_a_slow_server_only_makes_it_slow(redis_server, fleet) -> None:
    proxy = SlowProxy(redis_server.port)
    proxy.delay = 0.03
    await proxy.start()
    one = await fleet.member(f"redis://127.0.0.1:{proxy.port}", 2, 6.0)
    two = await fleet.member(redis_server.url, 2, 6.0)
    cancelled = [one.request() for _ in range(5)]
    kept = one.request()
    for ticket in cancelled:
        ticket.cancel()
    two.request()
    await until(lambda: one.held == 1 and two.held == 1)
    assert kept.lease is one.granted[0]
    assert len(one.granted) == 1
    await one.slots.aclose()
    await proxy.aclose()


async def test_all_keys_of_an_upstream_lie_in_one_slot_of_a_cluster(redis_server, fleet) -> None:
    one = await fleet.member(redis_server.url, 1)
    one.request()
    one.request()
    await until(lambda: one.held == 1)
    with _client(redis_server) as client:
        keys = client.keys("*")
        assert len(keys) >= 6
        assert {key[: key.index(b"}") + 1] for key in keys} == {b"antiphon:{up}"}
        one.slots._look()
        await until(lambda: all(client.pttl(key) > 0 for key in client.keys("*")))


async def test_what_is_stored_tells_no_address(redis_server, fleet) -> None:
    one = UpstreamSettings(name="gpu-1", base_url="http://vllm.internal:8000/v1", slots=1)
    other = UpstreamSettings(name="upstream", base_url="http://VLLM.internal:8000/v1/", slots=1)
    coordination = Coordination(where=redis_server.url)
    members = []
    for settings in (one, other):
        shared = sharing(coordination, settings, nobody)
        members.append(await fleet.member(redis_server.url, 1, coordinator=shared.coordinator))
    for member in members:
        member.request()
    await until(lambda: sum(member.held for member in members) == 1)
    with _client(redis_server) as client:
        keys = b" ".join([*client.keys("*"), *client.pubsub_channels("*")])
    assert keys
    for told in (b"vllm", b"internal", b"8000", b"http", b"gpu", b"upstream"):
        assert told not in keys


async def test_nothing_that_is_raised_ends_it_and_nothing_of_it_is_told(redis_server, fleet) -> None:
    """What the client raises may hold the password, in its text and in its frames."""
    one = await fleet.member(redis_server.url, 1, 0.3, wait=False)
    connection_class, raised = one.coordinator._connection_class, []

    def failing(**options):
        if len(raised) < 3:
            raised.append(options)
            raise [TypeError, LookupError, ZeroDivisionError][len(raised) - 1]("s3cret")
        return connection_class(**options)

    one.coordinator._connection_class = failing
    with structlog.testing.capture_logs() as logs:
        await until(lambda: one.slots.view.born)
    told = [entry for entry in logs if entry["event"] == "coordination_failed"]
    assert [entry["reason"] for entry in told] == ["TypeError", "LookupError", "ZeroDivisionError"]
    assert not any("exc_info" in entry for entry in logs)
    assert "s3cret" not in repr(logs)


async def test_what_fails_while_it_is_closed_does_not_end_it(redis_server, fleet, monkeypatch) -> None:
    one = await fleet.member(redis_server.url, 1, 0.6)

    async def failing(self, *args, **kwargs):
        monkeypatch.undo()
        raise LookupError("s3cret")

    monkeypatch.setattr(one.coordinator._connection_class, "disconnect", failing)
    with structlog.testing.capture_logs() as logs:
        redis_server.kill()
        await until(lambda: any(entry["event"] == "coordination_failed" for entry in logs))
        redis_server.start()
        await until(lambda: not one.slots.alone and one.slots._up and not one.slots._registering)
    assert "s3cret" not in repr(logs)


async def test_only_the_one_connection_and_two_tasks(redis_server, fleet) -> None:
    one = await fleet.member(redis_server.url, 1)
    before = len(asyncio.all_tasks())
    for _ in range(200):
        one.request()
    await until(lambda: one.slots.view.waiting == 199)
    assert len(asyncio.all_tasks()) == before
    with _client(redis_server) as client:
        assert sum(entry["cmd"] == "evalsha" for entry in client.client_list()) == 1


async def test_in_a_cluster_it_goes_to_the_node_that_has_the_slot(redis_server, fleet, tmp_path) -> None:
    nodes = []
    try:
        for name in ("a", "b"):
            (tmp_path / name).mkdir()
            nodes.append(RedisServer(tmp_path / name, cluster=True, binary=redis_server.binary))
            nodes[-1].start()
        with _client(nodes[0]) as empty, _client(nodes[1]) as full:
            full.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
            empty.execute_command("CLUSTER", "MEET", "127.0.0.1", nodes[1].port, nodes[1].bus_port)
            await until(lambda: b"cluster_state:ok" in empty.execute_command("CLUSTER", "INFO"))
        one, two = [await fleet.member(node.url, 1, 6.0) for node in nodes]
        one.request()
        await until(lambda: one.held == 1)
        two.request()
        await until(lambda: two.slots.view.waiting == 1)
        one.granted[0].release()
        await until(lambda: two.held == 1)
        await one.slots.aclose()
        await two.slots.aclose()
    finally:
        for node in nodes:
            node.close()
