"""The scripts do what the room does: the same operations, the same answers."""

from __future__ import annotations

import random

import msgspec
import pytest
import redis

from antiphon.server.coordination.protocol import (
    Acquire,
    Answer,
    Claim,
    Leave,
    Register,
    Release,
    Renew,
)
from antiphon.server.coordination.redis_scripts import KEY_NAMES, SCRIPTS
from antiphon.server.coordination.room import Room
from antiphon.server.fairness import PATIENCE, REMEMBERED

TTL = 600_000  # milliseconds: nothing runs out
SHARES = [f"{number:016x}" for number in (1, 10, 11, 12, 13, 14)]
WEIGHTS = (1.0, 1.0, 1.0, 0.3, 2.0, 7.0)


class Scripts:
    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self._run = {name: client.register_script(script) for name, script in SCRIPTS.items()}
        self._keys = [f"t:{{up}}:{name}" for name in KEY_NAMES]

    def apply(self, gateway, epoch, ttl, operation, now) -> Answer:
        script = self._run[type(operation).__name__]
        arguments = [gateway, epoch, ttl, msgspec.json.encode(operation), 200_000, "t:{up}:to:"]
        return msgspec.json.decode(script(keys=self._keys, args=arguments), type=Answer)

    def key(self, name: str) -> str:
        return self._keys[KEY_NAMES.index(name)]

    def state(self):
        leases = {key.decode() for key in self._client.zrange(self._keys[4], 0, -1)}
        waiting = {key.decode() for key in self._client.hkeys(self._keys[7])}
        assert self._client.hlen(self._keys[5]) == len(leases)
        assert self._client.zcard(self._keys[6]) == len(waiting)
        return leases, waiting


@pytest.mark.parametrize("seed", range(12))
def test_the_same_operations_have_the_same_answers(redis_server, seed) -> None:
    choose = random.Random(seed)
    with redis.Redis(port=redis_server.port) as client:
        scripts, room = Scripts(client), Room(born="r", calm=200_000)
        epochs = {"g1": 0, "g2": 0, "g3": 0}
        keys: dict[str, list[Claim]] = {name: [] for name in epochs}
        number = 0

        def both(gateway, operation) -> Answer:
            answers = [side.apply(gateway, epochs[gateway], TTL, operation, 1000) for side in (scripts, room)]
            answers[1] = answers[1][0]
            # what depends on the clock, or on a name that is made up
            mine, theirs = (msgspec.structs.replace(a, born="", again=None, limit_set=0) for a in answers)
            assert mine == theirs
            leases, waiting = scripts.state()
            assert (leases, waiting) == (set(room._leases), set(room._waiting))
            return mine

        def register(gateway, **options) -> None:
            epochs[gateway] += 1
            held = [claim for claim in keys[gateway] if claim.key in room._leases]
            waits = [claim for claim in keys[gateway] if claim.key not in room._leases]
            both(gateway, Register(limit=4, leases=held, waiting=waits, **options))

        for gateway in epochs:
            register(gateway)
        for _ in range(250):
            gateway = choose.choice(list(epochs))
            act = choose.random()
            if act < 0.5:
                number += 1
                which = choose.randrange(len(SHARES))
                weight = WEIGHTS[which] if choose.random() < 0.9 else 1.5
                claim = Claim(f"{gateway}:{number}", SHARES[which], weight, choose.choice((0, 0, 1)))
                keys[gateway].append(claim)
                both(gateway, Acquire(claim, queue_limit=choose.choice((12, 12, 1000))))
            elif act < 0.8 and keys[gateway]:
                claim = keys[gateway].pop(choose.randrange(len(keys[gateway])))
                both(gateway, Release([claim.key], active=choose.randrange(3)))
            elif act < 0.88:
                both(gateway, Renew(active=choose.randrange(3), limit=choose.choice((None, None, 2, 3, 5))))
            elif act < 0.94:
                keys[gateway] = [c for c in keys[gateway] if choose.random() < 0.7]
                register(gateway, active=1)
            elif act < 0.97:
                stale = epochs[gateway]
                epochs[gateway] = stale - 1
                assert both(gateway, Renew()).stale
                epochs[gateway] = stale
            elif act < 0.98:
                both(gateway, Leave(linger=choose.choice((0, TTL))))
                keys[gateway].clear()
                register(gateway)


def test_a_full_queue_displaces_the_same(redis_server) -> None:
    with redis.Redis(port=redis_server.port) as client:
        for side in (Scripts(client), Room(born="r", calm=200_000)):

            def apply(gateway, operation, side=side) -> Answer:
                answer = side.apply(gateway, 1, TTL, operation, 1000)
                return answer[0] if isinstance(answer, tuple) else answer

            def acquire(key, share, priority=0, apply=apply) -> Answer:
                return apply("g1", Acquire(Claim(key, share, 1.0, priority), queue_limit=3))

            apply("g1", Register(limit=1))
            assert acquire("g1:1", SHARES[0]).granted == ["g1:1"]
            for number, priority in ((2, 1), (3, 0), (4, 0)):
                assert acquire(f"g1:{number}", SHARES[0], priority).displaced == []
            assert acquire("g1:5", SHARES[0], 1).displaced == ["g1:5"]
            assert acquire("g1:6", SHARES[0]).displaced == ["g1:2"]  # in the background, so the last to go
            assert acquire("g1:7", SHARES[0]).displaced == ["g1:7"]
            assert acquire("g1:8", SHARES[1]).displaced == ["g1:6"]
            assert acquire("g1:9", SHARES[1]).displaced == ["g1:9"]  # it would wait as much as the other
            assert acquire("g1:10", SHARES[2]).displaced == ["g1:4"]


def test_what_is_remembered_of_shares_is_bounded(redis_server) -> None:
    with redis.Redis(port=redis_server.port) as client:
        scripts = Scripts(client)
        scripts.apply("g1", 1, TTL, Register(limit=1), 0)
        scripts.apply("g1", 1, TTL, Acquire(Claim("g1:held", SHARES[0])), 0)
        scripts.apply("g1", 1, TTL, Acquire(Claim("g1:waits", SHARES[1])), 0)
        scripts.apply("g1", 1, TTL, Renew(limit=3), 0)
        for number in range(REMEMBERED + 100):
            scripts.apply("g1", 1, TTL, Acquire(Claim(f"g1:{number}", f"{number + 100:016x}")), 0)
            scripts.apply("g1", 1, TTL, Release([f"g1:{number}"]), 0)
        assert client.zcard(scripts.key("served")) <= REMEMBERED
        assert [client.zcard(scripts.key(name)) for name in ("queue", "turns", "loads")] == [0, 0, 0]
        assert client.hlen(scripts.key("lines")) == 0


def test_a_limit_is_forgotten_with_the_last_gateway(redis_server) -> None:
    with redis.Redis(port=redis_server.port) as client:
        for side in (Scripts(client), Room(born="r", calm=200_000)):

            def limit(gateway, operation, side=side) -> int:
                answer = side.apply(gateway, 1, TTL, operation, 1000)
                return (answer[0] if isinstance(answer, tuple) else answer).limit

            assert limit("g1", Register(limit=2, set_limit=True)) == 2
            assert limit("g2", Register(limit=8)) == 2  # it does not know
            limit("g1", Leave())
            assert limit("g2", Renew()) == 2
            limit("g2", Leave())
            assert limit("g3", Register(limit=8)) == 8


def test_without_a_queue_free_slots_are_granted_all_the_same(redis_server) -> None:
    with redis.Redis(port=redis_server.port) as client:
        for side in (Scripts(client), Room(born="r", calm=200_000)):

            def apply(operation, side=side) -> Answer:
                answer = side.apply("g1", 1, TTL, operation, 1000)
                return answer[0] if isinstance(answer, tuple) else answer

            apply(Register(limit=2, queue_limit=0))
            for number in (1, 2):
                claim = Claim(f"g1:{number}", SHARES[0])
                assert apply(Acquire(claim, queue_limit=0)).granted == [claim.key]
            assert apply(Acquire(Claim("g1:3", SHARES[1]), queue_limit=0)).displaced == ["g1:3"]


def test_a_background_request_is_served_after_as_many_others(redis_server) -> None:
    with redis.Redis(port=redis_server.port) as client:
        served = []
        for side in (Scripts(client), Room(born="r", calm=200_000)):

            def apply(operation, side=side) -> list[str]:
                answer = side.apply("g1", 1, TTL, operation, 1000)
                return (answer[0] if isinstance(answer, tuple) else answer).granted

            apply(Register(limit=1))
            order = apply(Acquire(Claim("g1:held", SHARES[0])))
            apply(Acquire(Claim("g1:title", SHARES[0], 1.0, 1)))
            for number in range(2 * PATIENCE):
                apply(Acquire(Claim(f"g1:{number}", SHARES[0])))
                apply(Acquire(Claim(f"g1:b{number}", SHARES[0])))
                order += apply(Release([order[-1]]))
            served.append(order)
        assert served[0] == served[1]
        assert served[0].index("g1:title") == PATIENCE + 1


def test_what_is_missing_is_put_back_or_lost(redis_server) -> None:
    with redis.Redis(port=redis_server.port) as client:
        for side in (Scripts(client), Room(born="r", calm=200_000)):

            def apply(gateway, operation, side=side) -> Answer:
                answer = side.apply(gateway, 1, TTL, operation, 1000)
                return answer[0] if isinstance(answer, tuple) else answer

            claim = [Claim(f"g1:{number}", SHARES[0]) for number in range(4)]
            assert apply("g1", Register(limit=2, leases=claim[:3])).lost == ["g1:2"]
            assert apply("g2", Register(limit=2, waiting=[Claim("g2:1", SHARES[1])])).granted == []
            answer = apply("g3", Register(limit=2, entitled=True, leases=[Claim("g3:1", SHARES[1])]))
            assert (answer.used, answer.lost) == (3, [])
            # calm now: a release frees nothing for others before everybody has spoken
            answer = apply("g1", Release(["g1:0", "g1:1"]))
            assert (answer.used, answer.waiting) == (1, 1)
            assert 0 < answer.again <= TTL * 2 // 5


def test_an_empty_start_that_was_not_empty_before_is_calm(redis_server) -> None:
    with redis.Redis(port=redis_server.port) as client:
        for side in (Scripts(client), Room(born="r", calm=200_000)):

            def apply(gateway, operation, side=side) -> Answer:
                answer = side.apply(gateway, 1, TTL, operation, 1000)
                return answer[0] if isinstance(answer, tuple) else answer

            apply("g1", Register(limit=2))
            assert apply("g1", Acquire(Claim("g1:1", SHARES[0]))).granted == ["g1:1"]
            apply("g2", Register(limit=2, past="before"))
            answer = apply("g2", Acquire(Claim("g2:1", SHARES[0])))
            assert (answer.granted, answer.waiting) == ([], 1)
            assert 0 < answer.again <= 200_000
