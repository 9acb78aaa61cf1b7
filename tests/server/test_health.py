"""A server's health: what shuts it out, for how long, what lets it in again, and what says nothing."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from antiphon.core.failover import ROWS
from antiphon.server.health import Health, Rules

RULES = Rules()
COUNTED = ["connect", "tls", "reset", "eof", "protocol", "timeout", "status", "refused"]


def healthy(**rules):
    """The longest back-off of each step: no jitter to think about."""
    return Health(Rules(**rules), random=lambda: 1.0)


def fail(health, now=0.0, times=1, kind="status"):
    for _ in range(times):
        health.failed(kind, now, health.began(now))


def opened(now=0.0, **rules):
    health = healthy(**rules)
    fail(health, now, health._rules.consecutive)
    assert health.state(now) == "open"
    return health


# --- opening ---


def test_a_new_one_is_well():
    health = healthy()
    assert (health.state(0.0), health.admits(0.0), health.retry_after(0.0)) == ("closed", True, 0.0)
    assert not (health.waiting(0.0) or health.busy(0.0) or health.drained or health.gone)


@pytest.mark.parametrize("kind", COUNTED)
def test_it_opens_after_failures_in_a_row(kind):
    health = healthy(consecutive=3)
    fail(health, times=2, kind=kind)
    assert health.state(0.0) == "closed"
    fail(health, kind=kind)
    assert health.state(0.0) == "open"
    assert not health.admits(0.0)
    assert health.retry_after(0.0) == RULES.backoff


def test_a_success_ends_the_row():
    health = healthy(consecutive=3)
    for _ in range(5):
        fail(health, times=2)
        for _ in range(8):
            health.succeeded(0.0, 0.1, health.began(0.0))
    assert health.state(0.0) == "closed"


def test_it_opens_when_too_many_of_the_last_ones_failed():
    health = healthy(consecutive=100, failure_rate=0.5, volume=10, window=30.0)
    for number in range(5):
        health.succeeded(float(number), 0.1, health.began(float(number)))
        if number < 4:
            fail(health, float(number))
    assert health.state(5.0) == "closed"  # nine outcomes are too few
    fail(health, 5.0)
    assert health.state(5.0) == "open"


def test_what_is_longer_ago_than_the_window_does_not_count():
    health = healthy(consecutive=100, failure_rate=0.5, volume=10, window=30.0)
    for _ in range(9):
        fail(health, 0.0)
    fail(health, 31.0)
    assert health.state(31.0) == "closed"


def test_a_refused_request_says_that_the_server_is_well():
    health = healthy(consecutive=3)
    for _ in range(5):
        fail(health, times=2)
        health.learn("well", 0.0, health.began(0.0))
        health.learn("well", 0.0, health.began(0.0))
        health.learn("well", 0.0, health.began(0.0))
    assert health.state(0.0) == "closed"
    assert health.penalty(0.0) == 0.0


# --- half open ---


def test_one_trial_at_a_time():
    health = opened()
    now = RULES.backoff
    assert health.state(now) == "half_open"
    assert health.admits(now)
    assert health.admits(now)  # looking takes nothing
    trial = health.began(now)
    assert trial.trial
    assert not health.admits(now)
    assert health.retry_after(now) == RULES.trial_limit
    health.succeeded(now, 0.1, trial)
    assert health.state(now) == "closed"
    assert health.admits(now)


def test_a_failed_trial_doubles_the_back_off_up_to_the_limit():
    health, now, waits = opened(), 0.0, []
    for _ in range(8):
        waits.append(health.retry_after(now))
        now += waits[-1]
        fail(health, now)
    assert waits == [1, 2, 4, 8, 16, 30, 30, 30]


def test_a_success_forgets_the_back_off():
    health = opened()
    fail(health, 1.0)
    health.succeeded(3.0, 0.1, health.began(3.0))
    fail(health, 3.0, times=3)
    assert health.retry_after(3.0) == RULES.backoff


def test_the_back_off_is_jittered_between_half_and_whole():
    for drawn, wait in ((0.0, 0.5), (0.5, 0.75), (1.0, 1.0)):
        health = Health(random=lambda drawn=drawn: drawn)
        fail(health, times=3)
        assert health.retry_after(0.0) == wait


def test_a_client_that_leaves_gives_its_trial_back():
    health = opened()
    trial = health.began(1.0)
    health.abandoned(1.0, trial)
    assert health.state(1.0) == "half_open"
    assert health.admits(1.0)
    assert health.began(1.0).trial


def test_a_trial_that_nobody_ends_keeps_others_out_for_a_while_only():
    health = opened(trial_limit=30.0)
    health.began(1.0)
    assert not health.admits(30.9)
    assert health.admits(31.0)
    assert health.began(31.0).trial


@pytest.mark.parametrize("kind", ["loading", "busy"])
def test_what_passes_gives_the_trial_back_and_costs_no_back_off(kind):
    health = opened()
    health.failed(kind, 1.0, health.began(1.0))
    assert health.state(1.0) == "half_open"
    assert not health.admits(1.0)
    assert health.admits(1.0 + max(RULES.loading_wait, RULES.busy_wait))
    assert health.statistics(1.0).opened == 1


# --- attempts that ended late ---


def test_streams_that_die_with_their_server_open_it_once():
    health = healthy()
    attempts = [health.began(0.0) for _ in range(50)]
    for attempt in attempts:
        health.succeeded(0.5, 0.5, attempt)
    for attempt in attempts:
        health.failed("reset", 1.0, attempt)
    assert health.retry_after(1.0) == RULES.backoff
    assert health.statistics(1.0).failures == {"reset": 50}


def test_what_began_before_it_opened_proves_nothing():
    health = healthy()
    old = health.began(0.0)
    fail(health, 0.0, 3)
    health.succeeded(0.5, 0.5, old)
    assert health.state(0.5) == "open"


def test_an_attempt_counts_once_and_a_broken_answer_once_more():
    health = healthy(consecutive=2)
    attempt = health.began(0.0)
    health.succeeded(0.0, 0.1, attempt)
    health.succeeded(0.0, 0.1, attempt)
    assert health.statistics(0.0).successes == 1
    health.failed("eof", 1.0, attempt)
    health.failed("eof", 1.0, attempt)
    health.abandoned(1.0, attempt)
    assert health.state(1.0) == "closed"
    assert health.statistics(1.0).failures == {"eof": 1}


def test_who_left_says_nothing_afterwards():
    health = healthy(consecutive=1)
    attempt = health.began(0.0)
    health.abandoned(0.0, attempt)
    health.failed("reset", 0.0, attempt)  # its connection, which we closed
    health.succeeded(0.0, 0.1, attempt)
    assert health.state(0.0) == "closed"
    assert health.statistics(0.0).successes == 0


# --- waiting, busy, drained ---


def test_a_server_that_loads_is_waiting_and_not_broken():
    health = healthy(loading_wait=2.0)
    for _ in range(50):
        health.failed("loading", 0.0, health.began(0.0))
    assert health.state(0.0) == "closed"
    assert health.waiting(1.9)
    assert not health.admits(1.9)
    assert health.retry_after(0.5) == 1.5
    assert not health.waiting(2.0)
    assert health.admits(2.0)


@pytest.mark.parametrize(("asked", "wait"), [(None, 1.0), (0.0, 1.0), (7.0, 7.0), (86400.0, 60.0)])
def test_a_busy_server_is_left_alone_for_as_long_as_it_asks(asked, wait):
    health = healthy(busy_wait=1.0, busy_limit=60.0)
    for _ in range(50):
        health.failed("busy", 0.0, health.began(0.0), retry_after=asked)
    assert health.state(0.0) == "closed"
    assert health.busy(0.0) and not health.waiting(0.0)
    assert health.retry_after(0.0) == wait
    assert not health.admits(wait - 0.1)
    assert health.admits(wait)


def test_a_shorter_wish_does_not_undo_a_longer_one():
    health = healthy()
    health.failed("busy", 0.0, retry_after=20.0)
    health.failed("busy", 1.0, retry_after=2.0)
    health.succeeded(1.0, 0.2, health.began(0.0))  # one that was under way
    assert health.retry_after(1.0) == 19.0


def test_the_only_target_is_always_tried_unless_it_is_drained():
    health = opened()
    health.failed("loading", 0.0)
    health.failed("busy", 0.0, retry_after=50.0)
    assert not health.admits(0.0)
    assert health.admits(0.0, only=True)
    health.drain()
    assert not health.admits(0.0, only=True)


def test_a_server_that_works_again_for_its_only_target_is_closed_at_once():
    health = opened()
    attempt = health.began(0.1)
    assert not attempt.trial
    health.succeeded(0.2, 0.1, attempt)
    assert health.state(0.2) == "closed"


def test_draining_stops_new_ones_only():
    health = healthy()
    running = health.began(0.0)
    health.drain()
    health.drain()
    assert not health.admits(0.0)
    assert health.retry_after(0.0) == RULES.backoff_limit
    health.succeeded(1.0, 0.1, running)
    assert health.statistics(1.0).drained
    health.undrain()
    assert health.admits(1.0)
    assert health.retry_after(1.0) == 0.0


# --- slowness ---


def test_slowness_is_a_penalty_and_no_failure():
    health = healthy()
    for _ in range(20):
        health.succeeded(0.0, 0.2, health.began(0.0))
    assert health.penalty(0.0) == 0.0
    for _ in range(10):
        health.succeeded(0.0, 60.0, health.began(0.0))
    assert health.penalty(0.0) > 0.5
    assert health.admits(0.0)


# --- probes ---


def test_probes_alone_can_open_it():
    health = healthy(consecutive=3)
    for _ in range(3):
        health.unanswered("connect", 0.0)
    assert health.state(0.0) == "open"


def test_a_probe_lets_a_server_in_that_was_gone_and_a_request_has_the_proof():
    health = opened()
    for now in (1.0, 3.0, 7.0):  # as trials
        health.unanswered("connect", now)
    assert health.retry_after(7.0) == 8.0
    assert health.answered(7.5) is True
    assert health.state(7.5) == "half_open"
    assert health.answered(7.5) is False
    fail(health, 7.5)
    assert health.retry_after(7.5) == RULES.backoff  # anew


def test_a_probe_does_not_shorten_the_back_off_of_one_that_was_there_all_the_time():
    health = opened()
    fail(health, 1.0, kind="status")
    assert health.answered(1.5) is False
    assert health.state(1.5) == "open"
    assert health.retry_after(1.5) == 1.5


def test_an_answered_probe_is_no_success_of_the_work():
    health = healthy(consecutive=3)
    fail(health, 0.0, 2)
    health.answered(0.0)
    fail(health, 0.0)
    assert health.state(0.0) == "open"


def test_failed_probes_of_an_open_one_do_not_make_it_longer():
    health = opened()
    for _ in range(10):
        health.unanswered("connect", 0.5)
    assert health.retry_after(0.5) == 0.5


def test_a_failed_probe_does_not_speak_over_the_one_on_trial():
    health = opened()
    trial = health.began(1.0)
    health.unanswered("timeout", 1.5)
    health.succeeded(2.0, 1.0, trial)
    assert health.state(2.0) == "closed"


@pytest.mark.parametrize("kind", ["connect", "tls", "loading"])
def test_requests_notice_too_that_a_server_was_gone(kind):
    health = healthy()
    fail(health, kind=kind)
    assert health.gone
    health.succeeded(5.0, 0.1, health.began(5.0))
    assert health.gone  # until a probe has asked who it is now
    assert health.answered(6.0) is True
    assert not health.gone


@pytest.mark.parametrize("kind", ["reset", "eof", "status", "timeout", "busy"])
def test_a_lost_connection_alone_is_no_new_server(kind):
    health = healthy()
    fail(health, kind=kind)
    assert not health.gone
    assert health.doubtful == (kind in ("reset", "eof"))  # but somebody should look
    assert health.answered(1.0) is False
    assert not health.doubtful


def test_a_broken_connection_and_then_no_answer_is_a_server_that_is_gone():
    health = healthy()
    fail(health, kind="reset")
    health.unanswered("connect", 1.0)
    assert (health.gone, health.doubtful) == (True, False)
    assert health.answered(2.0) is True


# --- numbers ---


def test_the_statistics_of_a_moment():
    health = opened(1.0)
    seen = health.statistics(1.25)
    assert seen.state == "open"
    assert (seen.run, seen.opened, seen.successes, seen.failures) == (3, 1, 0, {"status": 3})
    assert (seen.retry_after, seen.heard) == (0.75, 0.25)
    assert health.statistics(1.25) == seen
    assert healthy().statistics(0.0).heard is None


def test_every_finding_of_the_failover_table_can_be_learned():
    for verdict in ROWS.values():
        health = healthy()
        attempt = health.began(0.0)
        health.learn(verdict.finding, 0.0, attempt)
        assert attempt.said == {None: "left", "well": "well"}.get(verdict.finding, "failed")


# --- against a model ---


class HealthModel(RuleBasedStateMachine):
    """The model knows no deque, no generation and no exponent: lists, dates and who began when."""

    attempts = Bundle("attempts")

    def __init__(self):
        super().__init__()
        self.rules = Rules(
            consecutive=3, volume=6, window=20.0, failure_rate=0.5, backoff=1.0, backoff_limit=8.0,
            trial_limit=10.0, loading_wait=2.0, busy_wait=1.0, busy_limit=5.0,
        )  # fmt: skip
        self.health = Health(self.rules, random=lambda: 1.0)
        self.now = 0.0
        self.began = {}  # attempt: the order in which things happened
        self.order = 0
        self.outcomes = []  # (when, good) since it was last closed
        self.open_until = None
        self.opened_at = -1  # in that order
        self.next_backoff = 1.0
        self.trial = None
        self.trial_began = 0.0
        self.alone_until = 0.0
        self.drained = False
        self.gone = False
        self.over = set()
        self.well = set()

    def tick(self):
        self.order += 1
        return self.order

    def fresh(self, attempt):
        return attempt is None or self.began[attempt] > self.opened_at

    def model_state(self):
        if self.open_until is None:
            return "closed"
        return "open" if self.now < self.open_until else "half_open"

    def on_trial(self):
        return self.trial is not None and self.now < self.trial_began + self.rules.trial_limit

    def door_open(self):
        return self.model_state() == "closed" or (self.model_state() == "half_open" and not self.on_trial())

    def model_open(self):
        self.open_until = self.now + self.next_backoff
        self.next_backoff = min(8.0, self.next_backoff * 2)
        self.opened_at = self.tick()
        self.trial = None

    def model_failed(self, attempt):
        if not self.fresh(attempt):
            return
        if self.open_until is not None:
            if attempt is not None or self.door_open():
                self.model_open()
            return
        self.outcomes.append((self.now, False))
        last = [good for _, good in self.outcomes[-3:]]
        lately = [good for when, good in self.outcomes[-60:] if self.now - when <= 20.0]
        if last == [False] * 3 or (len(lately) >= 6 and sum(lately) * 2 <= len(lately)):
            self.model_open()

    def model_succeeded(self, attempt):
        if not self.fresh(attempt):
            return
        if self.open_until is None:
            self.outcomes.append((self.now, True))
        else:
            self.open_until = self.trial = None
            self.outcomes = []
            self.next_backoff = 1.0

    @rule(seconds=st.sampled_from([0.25, 0.5, 1.0, 2.0, 7.0, 30.0]))
    def pass_time(self, seconds):
        self.now += seconds

    @rule(target=attempts)
    def begin(self):
        free = self.model_state() == "half_open" and not self.on_trial()
        attempt = self.health.began(self.now)
        assert attempt.trial == free
        if free:
            self.trial, self.trial_began = attempt, self.now
        self.began[attempt] = self.tick()
        return attempt

    @rule(attempt=attempts, seconds=st.sampled_from([None, 0.1, 30.0]))
    def succeed(self, attempt, seconds):
        self.health.succeeded(self.now, seconds, attempt)
        if attempt not in self.over | self.well:
            self.well.add(attempt)
            self.model_succeeded(attempt)

    @rule(attempt=attempts, kind=st.sampled_from(COUNTED))
    def fail(self, attempt, kind):
        self.health.failed(kind, self.now, attempt)
        if attempt not in self.over:
            self.over.add(attempt)
            self.gone = self.gone or kind in ("connect", "tls")
            self.model_failed(attempt)

    @rule(attempt=attempts, loads=st.booleans(), asked=st.sampled_from([None, 3.0, 99.0]))
    def pass_by(self, attempt, loads, asked):
        self.health.failed("loading" if loads else "busy", self.now, attempt, retry_after=asked)
        if attempt not in self.over:
            self.over.add(attempt)
            self.gone = self.gone or loads
            wait = 2.0 if loads else min(asked or 1.0, 5.0)
            self.alone_until = max(self.alone_until, self.now + wait)
            if attempt is self.trial:
                self.trial = None

    @rule(attempt=attempts)
    def leave(self, attempt):
        self.health.abandoned(self.now, attempt)
        if attempt not in self.over | self.well:
            self.over.add(attempt)
            if attempt is self.trial:
                self.trial = None

    @rule()
    def probe_answered(self):
        assert self.health.answered(self.now) == self.gone
        if self.gone and self.open_until is not None:
            self.open_until = min(self.open_until, self.now)
            self.next_backoff = 1.0
        self.gone = False

    @rule(kind=st.sampled_from(["connect", "timeout", "status"]))
    def probe_failed(self, kind):
        self.health.unanswered(kind, self.now)
        self.gone = True
        self.model_failed(None)

    @rule(drained=st.booleans())
    def operate(self, drained):
        self.drained = drained
        (self.health.drain if drained else self.health.undrain)()

    @invariant()
    def agrees(self):
        health, now = self.health, self.now
        assert health.state(now) == self.model_state()
        alone = now < self.alone_until
        assert (health.waiting(now) or health.busy(now)) == alone
        assert health.admits(now) == (self.door_open() and not alone and not self.drained)
        assert health.admits(now, only=True) == (not self.drained)
        assert health.gone == self.gone

    @invariant()
    def it_comes_back_by_itself(self):
        """Whatever happened, when the time that it names has passed it may be tried."""
        health = self.health
        if not self.drained:
            wait = health.retry_after(self.now)
            assert (wait == 0.0) == health.admits(self.now)
            assert wait <= 10.0  # the longest of the rules
            assert health.admits(self.now + wait + 1e-6)


TestHealthModel = HealthModel.TestCase
TestHealthModel.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
