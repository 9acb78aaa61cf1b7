"""The fair queue: nobody is starved by a flood, order holds inside a share, leaving costs nothing."""

from collections import Counter, deque

from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.server.fairness import FairQueue, Priority


def drain(queue, used=None):
    used = Counter(used)
    out = []
    while (item := queue.pop(used)) is not None:
        out.append(item)
    return out


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


def test_who_uses_fewer_slots_goes_first():
    queue = FairQueue()
    queue.push("a0", share="a")
    queue.push("b0", share="b")
    assert queue.pop({"a": 3, "b": 1}) == "b0"


def test_weights():
    queue = FairQueue()
    queue.weigh("a", 2.0)
    queue.push("a0", share="a")
    queue.push("b0", share="b")
    assert queue.pop({"a": 3, "b": 2}) == "a0"
    assert queue.pop({"a": 4, "b": 2}) == "b0"


def test_interactive_before_background_inside_a_share_only():
    queue = FairQueue()
    queue.push("title", share="a", priority=Priority.BACKGROUND)
    queue.push("main", share="a")
    queue.push("other", share="b", priority=Priority.BACKGROUND)
    assert drain(queue) == ["main", "other", "title"]


def test_leaving():
    queue = FairQueue()
    queue.push("a", share="a")
    assert queue.remove("a") is True
    assert queue.remove("a") is False
    assert len(queue) == 0
    assert queue.pop({}) is None


def test_the_expected_order_is_the_order():
    queue = FairQueue()
    for number in range(3):
        queue.push(f"a{number}", share="a")
        queue.push(f"b{number}", share="b", priority=Priority.BACKGROUND)
    used = Counter({"a": 1})
    expected = queue.in_order(used)
    served = []
    while (item := queue.pop(used)) is not None:
        used[item[0]] += 1
        served.append(item)
    assert served == expected
    assert len(queue) == 0


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
            share = queue.pop(used)[0]
            used[share] += 1
            served[share] += 1
            running.append((step + 1, share))
    assert served["calm"] >= 0.95 * 4 * 200
    assert served["flood"] >= 0.95 * 4 * 200


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
    assert sorted(queue.in_order({})) == sorted(waiting)
    assert sorted(drain(queue)) == sorted(waiting)


def test_a_full_queue_makes_room_at_the_cost_of_who_waits_most():
    queue = FairQueue()
    for number in range(4):
        queue.push(f"a{number}", share="a")
    queue.push("a-title", share="a", priority=Priority.BACKGROUND)
    queue.push("b0", share="b")
    assert queue.newest_of_longest(than="b") == "a-title"
    assert queue.newest_of_longest(than="a") is None
    assert queue.newest_of_longest(than="new") == "a-title"
    queue.remove("a-title")
    assert queue.newest_of_longest(than="b") == "a3"


def test_a_newcomers_place_is_where_fairness_would_put_it():
    queue = FairQueue()
    for number in range(20):
        queue.push(f"a{number}", share="a")
    assert queue.ahead_of_newcomer("a", {"a": 1}) == 20
    assert queue.ahead_of_newcomer("b", {"a": 1}) == 0
    assert queue.ahead_of_newcomer("b", {"a": 1, "b": 3}) == 2
    queue.push("b0", share="b")
    ahead = queue.ahead_of_newcomer("b", Counter({"a": 1}))
    queue.push("b1", share="b")
    assert queue.in_order(Counter({"a": 1})).index("b1") == ahead


SHARES = st.sampled_from("abcde")


@settings(deadline=None, max_examples=400)
@given(
    waiting=st.lists(SHARES, max_size=25),
    used=st.dictionaries(SHARES, st.integers(0, 4)),
    weights=st.dictionaries(SHARES, st.sampled_from([0.5, 1.0, 2.0, 3.0])),
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
        queue.pop(used)
    ahead = queue.ahead_of_newcomer(newcomer, used)
    queue.push("newcomer", share=newcomer)
    assert queue.in_order(used).index("newcomer") == ahead


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
                del waiting[queue.pop(used)]
        loser = queue.newest_of_longest(than=newcomer, weight=weight)
        longest = longest_of(waiting, weights, newcomer, weight)
        assert (None if loser is None else waiting[loser][0]) in (longest or {None})
        if loser is not None:
            assert loser == max(
                (n for n in waiting if waiting[n][0] == waiting[loser][0]), key=lambda n: (waiting[n][1], n)
            )
        before = queue.ahead_of_newcomer(newcomer, used)
        assert queue.ahead_of_newcomer(newcomer, used) == before
        queue.push("newcomer", share=newcomer, priority=Priority.BACKGROUND)
        assert queue.in_order(used).index("newcomer") == before
        queue.remove("newcomer")
        (
            queue.newest_of_longest(than=newcomer),
            queue.ahead_of_newcomer(newcomer, used),
        )  # remembered from here


def test_a_weight_that_is_only_thought_of_changes_nothing():
    queue = FairQueue()
    for number in range(8):
        queue.push(f"a{number}", share="a")
        queue.push(f"b{number}", share="b")
    light = queue.ahead_of_newcomer("a", {})
    assert light == queue.ahead_of_newcomer("a", {}, 1.0) == 16
    assert queue.ahead_of_newcomer("a", {}, 4.0) == 11  # the three of b that have a load of 2 or less
    assert queue.weight("a") == 1.0
    assert queue.newest_of_longest(than="a") is None
    assert queue.newest_of_longest(than="a", weight=2.0) == "b7"
    assert queue.ahead_of_newcomer("a", {}) == light
