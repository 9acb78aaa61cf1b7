"""Whether a target's server may be sent requests now: what its answers, failures and probes say of it.

Owns one circuit for each upstream, and what keeps a server from being asked although nothing is wrong with
it: it loads a model, it is busy, the operator drains it. Pure: the clock and the randomness come in, nothing
awaits, and looking changes nothing. It knows no request and no other target: choosing is the caller's.

    if health.admits(now):
        attempt = health.began(now)              # when the request is sent
        health.succeeded(now, 0.31, attempt)     # at its first content
        health.failed("reset", now, attempt)     # or so; also after it had begun well
        health.abandoned(now, attempt)           # the client left: that says nothing

    closed ---- `consecutive` failures, or too many of the last ones ----> open
    open ------ the back-off has passed, or a server that was gone answers a probe ----> half_open
    half_open - one trial at a time: it succeeds ----> closed; it fails ----> open, for longer
"""

from __future__ import annotations

import random as randomness
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Annotated, Final, Literal, TypeAlias

from msgspec import Meta, Struct

from antiphon.core.failover import Finding, Trouble
from antiphon.server.pace import Pace

State: TypeAlias = Literal["closed", "open", "half_open"]

Seconds = Annotated[float, Meta(gt=0)]
Count = Annotated[int, Meta(ge=1)]

# They pass by themselves and are no failures.
PASSING: Final = frozenset({"loading", "busy"})
# Nothing that could serve is there: when it answers again it may be another process with other abilities.
GONE: Final = frozenset({"connect", "tls", "loading"})
# A connection broke under a request: the process may have ended, and only who asks soon can tell.
BROKEN: Final = frozenset({"reset", "eof"})


class Rules(Struct, frozen=True, kw_only=True):
    """When a circuit opens, and for how long; seconds unless said otherwise.

    `consecutive` failures in a row open it, or `failure_rate` (0 to 1) of at least `volume` outcomes in
    the last `window`. It stays open for `backoff`, doubled with every failed trial up to `backoff_limit`,
    and of that a random part between a half and the whole. A trial holds the door for `trial_limit`.
    `loading_wait`: how long a server that loads is left alone; `busy_wait`: one that is busy and names no
    time, and `busy_limit` is the longest time that it may name.
    """

    consecutive: Count = 3
    failure_rate: Annotated[float, Meta(gt=0, le=1)] = 0.5
    volume: Count = 10
    window: Seconds = 30.0
    backoff: Seconds = 1.0
    backoff_limit: Seconds = 30.0
    trial_limit: Seconds = 30.0
    loading_wait: Seconds = 2.0
    busy_wait: Seconds = 1.0
    busy_limit: Seconds = 60.0


class Attempt(Struct, eq=False):
    """One request to a server. Belongs to the circuit that gave it; nobody else writes here.

    `generation`: how often the circuit had opened when it began. What began before the last opening
    says nothing about the server now: the streams that died with it must not count one by one.
    """

    generation: int
    trial: bool
    said: Literal["nothing", "well", "failed", "left"] = "nothing"


class Circuit:
    """Closed, open or half open. See the module and `Rules`. `random` gives numbers from 0 to 1."""

    __slots__ = (
        "_backoffs",
        "_outcomes",
        "_random",
        "_retry_at",
        "_rules",
        "_run",
        "_trial",
        "_trial_until",
        "opened",
    )

    def __init__(self, rules: Rules, random: Callable[[], float]) -> None:
        self._rules = rules
        self._random = random
        self.opened = 0  # times, since the start; the generation of attempts
        self._retry_at: float | None = None  # None: closed
        self._backoffs = 0  # openings since it was last closed
        self._run = 0  # failures in a row
        self._outcomes: deque[tuple[float, bool]] = deque(maxlen=10 * rules.volume)
        self._trial: Attempt | None = None
        self._trial_until = 0.0

    def set_rules(self, rules: Rules) -> None:
        self._rules = rules
        self._outcomes = deque(self._outcomes, maxlen=10 * rules.volume)

    @property
    def run(self) -> int:
        """Failures in a row."""
        return self._run

    def state(self, now: float) -> State:
        if self._retry_at is None:
            return "closed"
        return "open" if now < self._retry_at else "half_open"

    def admits(self, now: float) -> bool:
        """A request may be sent: it is closed, or half open with nobody on trial."""
        state = self.state(now)
        return state == "closed" or (state == "half_open" and not self._on_trial(now))

    def retry_after(self, now: float) -> float:
        """Seconds until `admits` may be true again; 0: it is."""
        if self._retry_at is None:
            return 0.0
        # A trial ends when it ends: what is known is only when it stops to keep others out.
        held = self._trial_until if self._on_trial(now) else now
        return max(0.0, self._retry_at - now, held - now)

    def began(self, now: float) -> Attempt:
        """A request is sent. The first one at a half-open circuit is its trial, and keeps others out."""
        attempt = Attempt(self.opened, trial=self.state(now) == "half_open" and not self._on_trial(now))
        if attempt.trial:
            self._trial = attempt
            self._trial_until = now + self._rules.trial_limit
        return attempt

    def succeeded(self, now: float, attempt: Attempt | None) -> None:
        """It answered. One that began after the last opening closes the circuit, trial or not."""
        if not self._counts(attempt):
            return
        if self._retry_at is None:
            self._run = 0
            self._outcomes.append((now, True))
        else:
            self._close()

    def failed(self, now: float, attempt: Attempt | None) -> None:
        """It failed. Opens the circuit if that was once too often, or opens it again for longer."""
        if not self._counts(attempt):
            return
        if self._retry_at is None:
            self._run += 1
            self._outcomes.append((now, False))
            if self._run >= self._rules.consecutive or self._rate_too_high(now):
                self._open(now)
        elif attempt is not None or self.admits(now):  # a probe does not speak over the one on trial
            self._open(now)

    def give_back(self, attempt: Attempt | None) -> None:
        """Nothing was learned: if this was the trial, another may have it."""
        if attempt is not None and attempt is self._trial:
            self._trial = None

    def recover(self, now: float) -> None:
        """The server is there again: a trial may be made at once, and the back-off starts anew."""
        if self._retry_at is not None:
            self._retry_at = now
            self._backoffs = 0

    def _counts(self, attempt: Attempt | None) -> bool:
        return attempt is None or attempt.generation == self.opened

    def _on_trial(self, now: float) -> bool:
        return self._trial is not None and now < self._trial_until

    def _rate_too_high(self, now: float) -> bool:
        recent = [good for at, good in self._outcomes if now - at <= self._rules.window]
        failures = recent.count(False)
        return len(recent) >= self._rules.volume and failures >= self._rules.failure_rate * len(recent)

    def _open(self, now: float) -> None:
        rules = self._rules
        # The exponent is bounded by itself: after a week of failures it would not fit a float.
        longest = min(rules.backoff_limit, rules.backoff * 2.0 ** min(self._backoffs, 32))
        self._retry_at = now + longest * (1 + self._random()) / 2
        self._backoffs += 1
        self.opened += 1
        self._trial = None

    def _close(self) -> None:
        self._retry_at = self._trial = None
        self._backoffs = self._run = 0
        self._outcomes.clear()


class HealthStatistics(Struct, frozen=True):
    """A moment's view of one server, for the admin routes and metrics; the counts are since the start.

    `waiting`: it loads a model. `busy`: it asked to be left alone. `drained`: by the operator.
    `retry_after`, `heard` (since a request told something of it, None: never) in seconds. `penalty`: 0 to 1.
    """

    state: State
    waiting: bool
    busy: bool
    drained: bool
    gone: bool
    retry_after: float
    penalty: float
    run: int
    opened: int
    successes: int
    failures: Mapping[str, int]
    heard: float | None


class Health:
    """The health of one upstream. `now` is monotonic, in seconds, everywhere.

    With `only=True` the caller says that it has no other target for this request. Then a request is
    always admitted, unless the operator drains the server: what a server answers is truer than what is
    remembered of it, and an open circuit must not make an outage longer than it is.
    """

    def __init__(
        self,
        rules: Rules | None = None,
        *,
        random: Callable[[], float] = randomness.random,
    ) -> None:
        self._rules = rules or Rules()
        self._circuit = Circuit(self._rules, random)
        self._pace = Pace()
        self._until: dict[Trouble, float] = {}  # for `PASSING`: until when it is left alone
        self._failures: Counter[str] = Counter()
        self._successes = 0
        self._heard: float | None = None
        self.drained = False
        self.gone = False  # not there when it was last asked; see `GONE`
        self.doubtful = False  # perhaps not there any more, and not asked since; see `BROKEN`

    def set_rules(self, rules: Rules) -> None:
        """Other rules, from now on; what was learned under the old ones holds."""
        self._rules = rules
        self._circuit.set_rules(rules)

    # --- May it be asked? -------------------------------------------------------------------------

    def state(self, now: float) -> State:
        """Of the circuit."""
        return self._circuit.state(now)

    def waiting(self, now: float) -> bool:
        """It loads a model: nothing is wrong with it, and it will come."""
        return now < self._until.get("loading", now)

    def busy(self, now: float) -> bool:
        """It said 429, 503 or 529 and has not had its time yet."""
        return now < self._until.get("busy", now)

    def admits(self, now: float, *, only: bool = False) -> bool:
        """New requests may be sent. Looking reserves nothing: a trial is taken by `began`."""
        if self.drained:
            return False
        return only or (self._circuit.admits(now) and not self.waiting(now) and not self.busy(now))

    def retry_after(self, now: float) -> float:
        """Seconds until it may be tried; 0: now. For a drained one the longest back-off: nobody knows."""
        if self.drained:
            return self._rules.backoff_limit
        return max(self._circuit.retry_after(now), 0.0, *(until - now for until in self._until.values()))

    def penalty(self, now: float) -> float:
        """0 to 1: the part of its capacity that placement may take as used because it is slow. See `Pace`."""
        return self._pace.penalty(now)

    # --- What requests say ------------------------------------------------------------------------

    def began(self, now: float) -> Attempt:
        """A request is sent. It ends in one of the calls below; a trial also runs out by itself."""
        return self._circuit.began(now)

    def succeeded(self, now: float, first_byte_seconds: float | None, attempt: Attempt | None = None) -> None:
        """It works: its first content came, or it refused what was wrong (then there is no time to tell).

        What it asked for stands: an answer that was under way does not mean that it is no longer busy.
        """
        if attempt is not None:
            if attempt.said != "nothing":
                return
            attempt.said = "well"
        self._heard = now
        self._successes += 1
        self._circuit.succeeded(now, attempt)
        if first_byte_seconds is not None:
            self._pace.record(now, first_byte_seconds)

    def failed(
        self, kind: Trouble, now: float, attempt: Attempt | None = None, *, retry_after: float | None = None
    ) -> None:
        """It did not work, in which way. `retry_after`: the seconds that a busy server asked for."""
        if attempt is not None:
            if attempt.said in ("failed", "left"):
                return
            attempt.said = "failed"
        self._heard = now
        self._failed(kind, now, attempt, retry_after)

    def _failed(self, kind: Trouble, now: float, attempt: Attempt | None, retry_after: float | None) -> None:
        self._failures[kind] += 1
        self.gone = self.gone or kind in GONE
        self.doubtful = self.doubtful or kind in BROKEN
        if kind in PASSING:
            self._leave_alone(kind, now, retry_after)
            self._circuit.give_back(attempt)
        else:
            self._circuit.failed(now, attempt)

    def abandoned(self, now: float, attempt: Attempt) -> None:
        """The attempt ended for a reason that is not the server's: its client left, this gateway stops."""
        if attempt.said == "nothing":
            attempt.said = "left"
            self._circuit.give_back(attempt)

    def learn(
        self, finding: Finding | None, now: float, attempt: Attempt, *, retry_after: float | None = None
    ) -> None:
        """What a `core.failover.Verdict` found, as one of the three above."""
        if finding is None:
            self.abandoned(now, attempt)
        elif finding == "well":
            self.succeeded(now, None, attempt)
        else:
            self.failed(finding, now, attempt, retry_after=retry_after)

    def _leave_alone(self, kind: Trouble, now: float, asked: float | None) -> None:
        rules = self._rules
        wait = rules.loading_wait
        if kind == "busy":
            wait = min(asked, rules.busy_limit) if asked else rules.busy_wait
        self._until[kind] = max(now + wait, self._until.get(kind, now))

    # --- What probes and the operator say -----------------------------------------------------------

    def answered(self, now: float) -> bool:
        """A probe was answered. True: the server had been gone, so it may be another one now.

        That proves a server and not its work: the circuit of one that was gone goes half open, and a
        request has the proof. The back-off of one that was there all the time is not shortened.
        """
        returned, self.gone, self.doubtful = self.gone, False, False
        if returned:
            self._circuit.recover(now)
        return returned

    def unanswered(self, kind: Trouble, now: float) -> None:
        """A probe was not answered, or with a failure. At a half-open circuit that was the trial."""
        self._failed(kind, now, None, None)
        self.gone, self.doubtful = True, False

    def drain(self) -> None:
        """No new requests; those that run go on. Idempotent."""
        self.drained = True

    def undrain(self) -> None:
        """Undo `drain`. What was learned meanwhile holds."""
        self.drained = False

    def heard_since(self, moment: float) -> bool:
        """A request has told something of it at `moment` or later."""
        return self._heard is not None and self._heard >= moment

    def statistics(self, now: float) -> HealthStatistics:
        """Everything at once; changes nothing."""
        return HealthStatistics(
            state=self.state(now),
            waiting=self.waiting(now),
            busy=self.busy(now),
            drained=self.drained,
            gone=self.gone,
            retry_after=self.retry_after(now),
            penalty=self.penalty(now),
            run=self._circuit.run,
            opened=self._circuit.opened,
            successes=self._successes,
            failures=dict(self._failures),
            heard=None if self._heard is None else max(0.0, now - self._heard),
        )
