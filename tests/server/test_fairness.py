"""The fair queue: nobody is starved by a flood, order holds inside a share, leaving costs nothing."""

import heapq
import itertools
import random
from collections import Counter, deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.server.fairness import PATIENCE, REMEMBERED, FairQueue, Priority


def drain(queue):
    out = []
    while (item := queue.pop({}, 1)) is not None:
        out.append(item)
    return out


def saturated(slots, weights, *, holds=lambda share, choose: choose.expovariate(1.0), grants=6000):
    """What part of the grants, and of the time on slots, each share gets if all of them always wait."""
    queue, choose, number = FairQueue(), random.Random(5), itertools.count()
    for share, weight in weights.items():
        queue.weigh(share, weight)
        for _ in range(3):
            queue.push((share, next(number)), share=share)
    used, running, got, time = Counter(), [], Counter(), Counter()
    now = 0.0
    for _ in range(grants):
        if len(running) == slots:
            now, gone, held = heapq.heappop(running)
            used[gone] -= 1
            time[gone] += held
        share = queue.pop(used, slots)[0]
        queue.push((share, next(number)), share=share)
        used[share] += 1
        got[share] += 1
        held = holds(share, choose)
        heapq.heappush(running, (now + held, share, held))
    total = sum(time.values())
    return {share: got[share] / grants for share in weights}, {
        share: time[share] / total for share in weights
    }


def test_one_share_is_first_come_first_served():
    queue = FairQueue()
    for number in range(5):
        queue.push(number, share="a")
    assert drain(queue) == [0, 1, 2, 3, 4]


def test_shares_take_turns():
    queue = FairQueue()
    for number in range(4):
        queue.push(f"a{number}", share="a")
    queue.push("b0", share="b")
    queue.push("b1", share="b")
    assert drain(queue) == ["a0", "b0", "a1", "b1", "a2", "a3"]


def test_who_uses_less_than_its_part_goes_first():
    queue = FairQueue()
    queue.push("a0", share="a")
    queue.push("b0", share="b")
    assert queue.pop({"a": 2, "b": 1}, 4) == "b0"  # a has half of the slots


def test_who_runs_without_waiting_has_a_part_too():
    queue = FairQueue()
    queue.push("a0", share="a")
    queue.push("b0", share="b")
    assert queue.pop({"a": 1, "b": 0, "c": 2}, 3) == "b0"


def test_weights():
    queue = FairQueue()
    queue.weigh("a", 2.0)
    queue.push("a0", share="a")
    queue.push("b0", share="b")
    assert queue.pop({"a": 3, "b": 2}, 6) == "a0"
    assert queue.pop({"a": 4, "b": 1}, 6) == "b0"


@pytest.mark.parametrize("slots", [1, 2, 4, 8, 64])
@pytest.mark.parametrize(
    "weights",
    [
        {"heavy": 3.0, "light": 1.0},
        {"heavy": 9.0, "light": 1.0},
        {"heavy": 8.0} | {f"light{number}": 1.0 for number in range(12)},
        {"heavy": 4.0} | {f"light{number}": 1.0 for number in range(20)},
        {"light": 0.25, "one": 1.0, "other": 1.0},
        {f"same{number}": 1.0 for number in range(13)},
    ],
)
def test_a_weight_is_a_part_of_the_slots_however_few_there_are(slots, weights):
    got, time = saturated(slots, weights, grants=8000)
    for share, weight in weights.items():
        due = weight / sum(weights.values())
        assert got[share] == pytest.approx(due, rel=0.15 if slots < 64 else 0.25), share
        assert time[share] == pytest.approx(due, rel=0.2), share


def test_slots_that_are_held_for_long_are_shared_too():
    def holds(share, choose):
        return choose.expovariate(1.0) * (50.0 if share == "long" else 1.0)

    _, time = saturated(8, {"long": 1.0, "short": 1.0}, holds=holds, grants=20_000)
    assert time["short"] == pytest.approx(0.5, abs=0.03)
    got, time = saturated(8, {"long": 1.0} | {f"s{number}": 1.0 for number in range(19)}, holds=holds)
    assert time["long"] < 0.14  # one slot of eight, which is the least that it can have
    assert got["s0"] == pytest.approx(got["s18"], rel=0.1)


def test_who_was_away_has_no_claim_to_what_it_missed():
    queue = FairQueue()
    queue.push("early", share="away")
    queue.pop({}, 1)
    for number in range(100):
        queue.push(f"a{number}", share="a")
        queue.pop({}, 1)
    for number in range(4):
        queue.push(f"away{number}", share="away")
        queue.push(f"b{number}", share="a")
    assert "".join(item[0] for item in drain(queue)) == "aabababb"


def test_interactive_before_background_inside_a_share_only():
    queue = FairQueue()
    queue.push("title", share="a", priority=Priority.BACKGROUND)
    queue.push("main", share="a")
    queue.push("other", share="b", priority=Priority.BACKGROUND)
    assert drain(queue) == ["main", "other", "title"]


def test_a_background_request_waits_for_so_many_others_and_no_more():
    queue = FairQueue()
    queue.push("title", share="a", priority=Priority.BACKGROUND)
    served = []
    for number in range(3 * PATIENCE):
        queue.push(number, share="a")
        queue.push(1000 + number, share="a")
        served.append(queue.pop({}, 1))
    assert served.index("title") == PATIENCE


def test_leaving():
    queue = FairQueue()
    queue.push("a", share="a")
    assert queue.remove("a") is True
    assert queue.remove("a") is False
    assert len(queue) == 0
    assert queue.pop({}, 1) is None


def test_the_expected_order_is_the_order():
    queue = FairQueue()
    queue.weigh("b", 2.0)
    for number in range(3):
        queue.push(f"a{number}", share="a")
        queue.push(f"b{number}", share="b", priority=Priority.BACKGROUND)
    queue.push("b3", share="b")
    expected = queue.in_order()
    assert len(queue) == 7
    assert drain(queue) == expected


def test_a_flood_of_a_hundred_times_leaves_the_others_their_share():
    """Two shares on 8 slots, unit service times; one asks 100 times as much as the other can use."""
    queue, used, running = FairQueue(), Counter(), deque()
    served = Counter()
    arrivals = {"flood": 800, "calm": 4}  # at each step; calm's own share would be 4 slots
    for step in range(200):
        for share, count in arrivals.items():
            for number in range(count):
                if len(queue) < 5000 or share == "calm":
                    queue.push((share, step, number), share=share)
        while running and running[0][0] <= step:
            used[running.popleft()[1]] -= 1
        while sum(used.values()) < 8:
            share = queue.pop(used, 8)[0]
            used[share] += 1
            served[share] += 1
            running.append((step + 1, share))
    assert served["calm"] >= 0.95 * 4 * 200
    assert served["flood"] >= 0.95 * 4 * 200


def test_what_is_remembered_of_shares_is_bounded():
    queue = FairQueue()
    queue.push("waits", share="waits")
    for number in range(3 * REMEMBERED):
        queue.push(number, share=f"s{number}")
        while queue.pop({"waits": 1}, 1) != number:  # it has its part, so that it waits on
            pass
    assert len(queue._due) <= REMEMBERED
    assert queue.pop({}, 1) == "waits"


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(list(Priority)), st.booleans()), max_size=40)
)
def test_nothing_is_lost_or_served_twice(moves):
    queue, waiting = FairQueue(), []
    for number, (share, priority, leaves) in enumerate(moves):
        queue.push(number, share=share, priority=priority)
        waiting.append(number)
        if leaves:
            gone = waiting.pop(0)
            assert queue.remove(gone)
    assert len(queue) == len(waiting)
    assert sorted(queue.in_order()) == sorted(waiting)
    assert sorted(drain(queue)) == sorted(waiting)


def test_a_full_queue_makes_room_at_the_cost_of_who_waits_most():
    queue = FairQueue()
    for number in range(4):
        queue.push(f"a{number}", share="a")
    queue.push("a-title", share="a", priority=Priority.BACKGROUND)
    queue.push("b0", share="b")
    assert queue.newest_of_longest(than="b") == "a-title"
    assert queue.newest_of_longest(than="a", priority=Priority.BACKGROUND) is None
    assert queue.newest_of_longest(than="new") == "a-title"
    queue.remove("a-title")
    assert queue.newest_of_longest(than="b") == "a3"


def test_an_interactive_request_takes_the_place_of_a_background_one_of_its_own():
    queue = FairQueue()
    queue.push("a0", share="a")
    assert queue.newest_of_longest(than="a") is None
    queue.push("title", share="a", priority=Priority.BACKGROUND)
    assert queue.newest_of_longest(than="a") == "title"
    assert queue.newest_of_longest(than="a", priority=Priority.BACKGROUND) is None
    for number in range(9):
        queue.push(f"b{number}", share="b")
    assert queue.newest_of_longest(than="a") == "b8"


def test_a_newcomers_place_is_where_fairness_would_put_it():
    queue = FairQueue()
    for number in range(20):
        queue.push(f"a{number}", share="a")
    assert queue.ahead_of_newcomer("a") == 20
    assert queue.ahead_of_newcomer("b") == 1
    queue.push("b0", share="b")
    assert queue.ahead_of_newcomer("b") == 3
    queue.push("b1", share="b")
    assert queue.in_order().index("b1") == 3


def test_who_has_no_name_is_nobody_else():
    """A client without an address waits as the share "", which may be known, beside others that are not."""
    queue = FairQueue()
    for number in range(5):
        queue.push(number, share="")
    assert queue.ahead_of_newcomer("new") == 1
    assert queue.ahead_of_newcomer("") == 5


SHARES = st.sampled_from("abcde")


@settings(deadline=None, max_examples=400)
@given(
    waiting=st.lists(SHARES, max_size=25),
    used=st.dictionaries(SHARES, st.integers(0, 4)),
    weights=st.dictionaries(SHARES, st.sampled_from([0.3, 0.5, 1.0, 2.0, 3.0, 7.0])),
    pops=st.integers(0, 6),
    newcomer=SHARES,
)
def test_what_is_counted_ahead_is_what_would_be_served_ahead(waiting, used, weights, pops, newcomer):
    queue = FairQueue()
    for share, weight in weights.items():
        queue.weigh(share, weight)
    for number, share in enumerate(waiting):
        queue.push(number, share=share)
    for _ in range(pops):
        queue.pop(used, 4)
    ahead = queue.ahead_of_newcomer(newcomer)
    queue.push("newcomer", share=newcomer)
    assert queue.in_order().index("newcomer") == ahead


MOVES = st.one_of(
    st.tuples(st.just("push"), SHARES, st.sampled_from(list(Priority))),
    st.tuples(st.just("weigh"), SHARES, st.sampled_from([0.5, 1.0, 3.0])),
    st.tuples(st.just("use"), SHARES, st.integers(0, 3)),
    st.tuples(st.just("remove"), st.integers(0, 50)),
    st.tuples(st.just("pop")),
)


def longest_of(waiting, weights, than, weight):
    """The shares that wait most for their weight, if it is more than `than` would with one more."""
    sizes = Counter(share for share, _ in waiting.values())
    loads = {share: size / weights.get(share, 1.0) for share, size in sizes.items() if share != than}
    most = max(loads.values(), default=0.0)
    return {share for share in loads if loads[share] == most} if most > (sizes[than] + 1) / weight else set()


@settings(deadline=None, max_examples=200)
@given(st.lists(MOVES, max_size=40), SHARES, st.sampled_from([1.0, 2.0]))
def test_what_is_asked_again_is_answered_anew_after_every_change(moves, newcomer, weight):
    queue, waiting, weights, used = FairQueue(), {}, {}, Counter()
    for number, move in enumerate(moves):
        match move:
            case "push", share, priority:
                queue.push(number, share=share, priority=priority)
                waiting[number] = share, priority
            case "weigh", share, heavy:
                queue.weigh(share, heavy)
                weights[share] = heavy
            case "use", share, slots:
                used[share] = slots
            case "remove", index if waiting:
                gone = sorted(waiting)[index % len(waiting)]
                queue.remove(gone)
                del waiting[gone]
            case ("pop",) if waiting:
                del waiting[queue.pop(used, 4)]
        loser = queue.newest_of_longest(than=newcomer, weight=weight, priority=Priority.BACKGROUND)
        longest = longest_of(waiting, weights, newcomer, weight)
        assert (None if loser is None else waiting[loser][0]) in (longest or {None})
        if loser is not None:
            assert loser == max(
                (n for n in waiting if waiting[n][0] == waiting[loser][0]), key=lambda n: (waiting[n][1], n)
            )
        before = queue.ahead_of_newcomer(newcomer)
        assert queue.ahead_of_newcomer(newcomer) == before
        queue.push("newcomer", share=newcomer, priority=Priority.BACKGROUND)
        assert queue.in_order().index("newcomer") == before
        queue.remove("newcomer")
        (
            queue.newest_of_longest(than=newcomer),
            queue.ahead_of_newcomer(newcomer),
        )  # remembered from here


def test_a_weight_that_is_only_thought_of_changes_nothing():
    queue = FairQueue()
    for number in range(8):
        queue.push(f"a{number}", share="a")
        queue.push(f"b{number}", share="b")
    light = queue.ahead_of_newcomer("a")
    assert light == queue.ahead_of_newcomer("a", 1.0) == 16
    assert queue.ahead_of_newcomer("a", 4.0) == 10  # the two of b whose turn is before its second
    assert queue.weight("a") == 1.0
    assert queue.newest_of_longest(than="a") is None
    assert queue.newest_of_longest(than="a", weight=2.0) == "b7"
    assert queue.ahead_of_newcomer("a") == light
