"""A simulated fleet of inference servers with prefix caches, and the clients that use it, in simulated time.

Owns servers, caches, sessions and the queue; which replica a request is for is a policy's (bench/affinity.py).
No sockets, no clock, chance from a seed: the same figures on every machine.

A replica computes one prompt after the other, at so many tokens a second for what its cache does not have, and
generates for all its slots at once. Its cache is vLLM's: blocks, the least recently used go first, of one prompt
the last; or llama.cpp's: so many whole prompts, of which the one with the longest common beginning is gone on
with. The caches are modelled in tokens, apart from the hash chains that a policy may look at.
"""

from __future__ import annotations

import heapq
import itertools
import json
import random
import statistics
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from antiphon.server.prefixes import CAPACITY, Belief, Chain

LOOK = 1.0  # seconds after which one that waits looks whether another replica has a slot
BLOCK = 64  # tokens
TOKEN = 4  # bytes of text


@dataclass(frozen=True)
class Fleet:
    """What is simulated. Tokens, and requests or tokens a second."""

    replicas: int = 8
    slots: int = 8
    sessions: int = 400
    turns: int = 6
    zipf: float = 1.1  # session number k is the next to ask with a weight of 1 / k ** zipf
    cached_sessions: int = 40  # of their mean size at the end, in one replica's cache
    cache: str = "blocks"
    rate: float = 3.0  # requests a second, all together
    prefill: float = 8000.0
    decode: float = 40.0  # for each slot
    shared: int = 0  # tokens of the system prompt; each session has one of `prompts`, by Zipf too
    prompts: int = 12
    gateways: int = 1  # that know nothing of each other, each with an equal part of the requests
    asks: str = "best"  # where no slot is free: the first of the order alone, or "everywhere"
    believed: int = CAPACITY  # bytes that the index takes a replica to hold
    seed: int = 7


@dataclass
class Session:
    number: int
    prompt: int
    first: int  # tokens of the first turn
    adds: list[tuple[int, int]]  # tokens of each answer, and of what the client says next
    turn: int = 0
    busy: bool = False

    def lengths(self) -> list[int]:
        """Tokens of the first message, and of each of this turn's further ones."""
        return [self.first, *itertools.chain.from_iterable(self.adds[: self.turn])]


@dataclass
class Request:
    session: Session
    gateway: int
    came: float
    body: bytes
    blocks: list[tuple[str, int, int]]  # of the prompt, by what they are
    tokens: int
    answer: int  # tokens
    chain: Chain = ()
    belief: Belief = Belief(0, 0)
    cached: int = 0
    first: float = 0.0  # time of the first token
    best: Replica | None = None  # that it waits for, of all


# --- the fleet ---


class Blocks:
    """vLLM's prefix cache: blocks, of one prompt the first are the last to go."""

    def __init__(self, tokens: int) -> None:
        self._most = tokens // BLOCK
        self._held: OrderedDict[tuple[str, int, int], None] = OrderedDict()

    def take(self, blocks: list[tuple[str, int, int]]) -> int:
        """Tokens of this prompt that were there; all of it is there afterwards."""
        found = sum(1 for _ in itertools.takewhile(self._held.__contains__, blocks))
        for block in reversed(blocks):
            self._held[block] = None
            self._held.move_to_end(block)
        while len(self._held) > self._most:
            self._held.popitem(last=False)
        return found * BLOCK


class Prompts:
    """llama.cpp's: whole prompts. The most similar is gone on with, or else the least recently used replaced."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._held: deque[list[tuple[str, int, int]]] = deque()

    def take(self, blocks: list[tuple[str, int, int]]) -> int:
        def common(held: list[tuple[str, int, int]]) -> int:
            return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(held, blocks)))

        best = max(self._held, key=common, default=None)
        found = 0 if best is None else common(best)
        if best is not None and found * 2 > len(best):  # else it is another conversation's
            self._held.remove(best)
        elif len(self._held) >= self._most:
            self._held.popleft()
        self._held.append(blocks)
        return found * BLOCK


class Replica:
    def __init__(self, number: int, fleet: Fleet, cache: Blocks | Prompts) -> None:
        self.number = number
        self.name = f"gpu-{number}"
        self.target = (self.name, "model")
        self.used = 0  # slots
        self.waiting = 0  # requests that would rather have this one
        self.computes_until = 0.0
        self.cache = cache

    def start(self, request: Request, now: float, fleet: Fleet) -> float:
        """Take a request in; returns when its answer ends."""
        self.used += 1
        request.cached = min(self.cache.take(request.blocks), request.tokens - 1)
        begins = max(now, self.computes_until)
        self.computes_until = begins + (request.tokens - request.cached) / fleet.prefill
        request.first = self.computes_until + 1 / fleet.decode
        return request.first + request.answer / fleet.decode


# --- the plainest choice ---


class RoundRobin:
    """Each in its turn."""

    def __init__(self, fleet: Fleet) -> None:
        self._turn = 0

    def order(self, request: Request, replicas: list[Replica]) -> list[Replica]:
        self._turn = (self._turn + 1) % len(replicas)
        return replicas[self._turn :] + replicas[: self._turn]

    def sent(self, request: Request, replica: Replica) -> None: ...
    def ended(self, request: Request, replica: Replica) -> None: ...


# --- the clients ---


def sessions(fleet: Fleet, chance: random.Random) -> list[Session]:
    weights = [1 / (rank + 1) ** fleet.zipf for rank in range(fleet.prompts)]
    return [
        Session(
            number,
            chance.choices(range(fleet.prompts), weights)[0],
            chance.randint(3000, 9000),
            [(chance.randint(50, 400), chance.randint(200, 3000)) for _ in range(fleet.turns)],
        )
        for number in range(fleet.sessions)
    ]


def size_at_end(session: Session, fleet: Fleet) -> int:
    return fleet.shared + session.first + sum(map(sum, session.adds[: fleet.turns - 1]))


def request_of(session: Session, fleet: Fleet, gateway: int, now: float) -> Request:
    """This turn's body as an upstream gets it, and the same prompt as a server's cache sees it."""

    def text(name: str, tokens: int) -> str:
        return (f"{name} " * (tokens * TOKEN // (len(name) + 1) + 1))[: tokens * TOKEN]

    lengths = session.lengths()
    roles = ("user", "assistant")
    messages = [
        {"role": roles[number % 2], "content": text(f"{session.number}.{number}", length)}
        for number, length in enumerate(lengths)
    ]
    if fleet.shared:
        messages.insert(0, {"role": "system", "content": text(f"prompt {session.prompt}", fleet.shared)})
    own, common = sum(lengths) // BLOCK, fleet.shared // BLOCK
    blocks = [("prompt", session.prompt, number) for number in range(common)]
    blocks += [("session", session.number, number) for number in range(own)]
    body = json.dumps({"model": "model", "stream": True, "messages": messages}, separators=(",", ":"))
    tokens, answer = fleet.shared + sum(lengths), session.adds[session.turn][0]
    return Request(session, gateway, now, body.encode(), blocks, tokens, answer)


def arrivals(fleet: Fleet, chance: random.Random) -> Iterator[float]:
    now = 0.0
    for _ in range(fleet.sessions * fleet.turns):
        now += chance.expovariate(fleet.rate)
        yield now


# --- the run ---


@dataclass
class Result:
    cached: float  # share of all prompt tokens
    possible: float  # the same for one cache without an end that all share
    first_p50: float  # seconds to the first token
    first_p95: float
    busiest: float  # requests of the replica that had most, over the mean
    firsts: list[float] = field(repr=False)


def simulate(fleet: Fleet, choose: Callable[[Fleet], RoundRobin]) -> Result:
    """All requests to their ends."""
    chance = random.Random(fleet.seed)
    people = sessions(fleet, chance)
    mean = statistics.mean(size_at_end(session, fleet) for session in people)
    tokens = int(fleet.cached_sessions * mean)
    replicas = [
        Replica(number, fleet, Blocks(tokens) if fleet.cache == "blocks" else Prompts(fleet.cached_sessions))
        for number in range(fleet.replicas)
    ]
    policy = choose(fleet)
    queue: list[Request] = []
    events: list[tuple[float, int, Callable[[float], None]]] = []
    served: list[Request] = []
    counted = [0] * fleet.replicas
    numbers = itertools.count()

    def at(time: float, event: Callable[[float], None]) -> None:
        heapq.heappush(events, (time, next(numbers), event))

    def begin(request: Request, replica: Replica, now: float) -> None:
        policy.sent(request, replica)
        counted[replica.number] += 1
        served.append(request)
        at(replica.start(request, now, fleet), lambda now: end(request, replica, now))

    def end(request: Request, replica: Replica, now: float) -> None:
        replica.used -= 1
        policy.ended(request, replica)
        request.session.turn += 1
        request.session.busy = False
        request.body = b""
        for waits in queue:  # who came first, of those that take this one
            if waits.best is replica or fleet.asks == "everywhere":
                leave(waits)
                begin(waits, replica, now)
                return

    def leave(request: Request) -> None:
        queue.remove(request)
        if request.best is not None:
            request.best.waiting -= 1

    def look(request: Request, now: float) -> None:
        if request not in queue:
            return
        free = [one for one in policy.order(request, replicas) if one.used < fleet.slots]
        if free:
            leave(request)
            begin(request, free[0], now)
        else:
            at(now + LOOK, lambda now: look(request, now))

    def come(gateway: int, now: float) -> None:
        idle = [one for one in people if not one.busy and one.turn < fleet.turns]
        if not idle:
            return  # everybody waits for an answer
        session = chance.choices(idle, [weights[one.number] for one in idle])[0]
        session.busy = True
        request = request_of(session, fleet, gateway, now)
        wanted = policy.order(request, replicas)
        free = [one for one in wanted if one.used < fleet.slots]
        if free:
            begin(request, free[0], now)
            return
        request.best = wanted[0]
        request.best.waiting += 1
        queue.append(request)
        at(now + LOOK, lambda now: look(request, now))

    weights = [1 / (rank + 1) ** fleet.zipf for rank in range(fleet.sessions)]
    for number, time in enumerate(arrivals(fleet, chance)):
        at(time, lambda now, gateway=number % fleet.gateways: come(gateway, now))
    while events:
        time, _, event = heapq.heappop(events)
        event(time)
    firsts = sorted(request.first - request.came for request in served)
    tokens = sum(one.tokens for one in served)
    endless = Blocks(tokens)
    return Result(
        cached=sum(one.cached for one in served) / tokens,
        possible=sum(endless.take(one.blocks) for one in served) / tokens,
        first_p50=firsts[len(firsts) // 2],
        first_p95=firsts[int(len(firsts) * 0.95)],
        busiest=max(counted) / statistics.mean(counted),
        firsts=firsts,
    )
