"""In which order a request asks the targets of its model. Pure: facts come in, an order goes out.

Owns the rules and their constants. It must not know where the facts come from, and it leaves nobody out: a
target that is not to be asked at all (its circuit is open, it is drained) is not a candidate.

    order([Candidate(name="a", free=5, load=0.4, total=90_000),
           Candidate(name="b", free=2, load=0.8, total=90_000, warm=80_000)], key=root(chain))   -> b, then a

The rules, the first that decides:

1. A free slot goes before a queue.
2. Less to wait for goes before more, in *prompts*: what it takes to compute the whole prompt once. A target
   costs the part of the prompt that is cold there, and its load by its weight. So the warm one is taken until
   it is so much fuller than another that to compute the prompt there is cheaper: a hot prefix spills over,
   and is then warm in two places.
3. Every conversation has a *home*, which its digest chooses (rendezvous hashing). While nobody is known to
   have more, it counts as half warm there. Gateways that know nothing of each other, or were started anew,
   all compute the same home: a new session goes there, and its next turn too, whichever it comes through.
4. Of equals, the one where the session was last served, then the nearest by that digest.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable

from msgspec import Struct

SMALL = 16 * 1024
"""Bytes of a prompt below which its cache counts for less: 5,000 tokens are computed in half a second, which
is no reason to crowd one target."""

HOME = 0.5
"""Of a prompt, taken to be warm at home. Enough for the sessions of several gateways to meet across small
differences in load; not enough to crowd a target that is half full while others are idle. On the fleet of
bench/affinity.py it raises what four gateways find cached from 41 to 72 percent of all tokens, and costs a
gateway that is alone nothing."""

STEP = 1 / 8
"""Prompts within which costs are equal: one slot of eight, and nobody knows more exactly than that."""


class Candidate(Struct, frozen=True, kw_only=True):
    """One target as it is now.

    `free` slots, as this gateway knows them. `load`: requests on it and in its queue for each of its slots,
    by our leases or, where that is more, by its own report; 1 is full. `weight` as configured. `warm` of the
    prompt's `total` bytes are in its cache. `hint`: the session was last served there. `penalty`: what its
    state is taken to cost, in prompts (slow of late, on trial after failures).
    """

    name: str
    free: int
    load: float = 0.0
    weight: float = 1.0
    warm: int = 0
    total: int = 0
    hint: bool = False
    penalty: float = 0.0


def order(candidates: Iterable[Candidate], key: bytes = b"") -> list[Candidate]:
    """The candidates in order of preference.

    `key` stands for the conversation (`prefixes.root`); empty: nothing is known of it, and it has no home.
    """
    given = list(candidates)
    if len(given) < 2:
        return given
    mean = sum(one.weight for one in given) / len(given)
    distances = {one.name: _distance(one, key) for one in given}
    known = any(one.warm > HOME * one.total for one in given)
    home = None if known or not key else min(given, key=lambda one: distances[one.name]).name

    def rank(one: Candidate) -> tuple[bool, int, bool, float, str]:
        warm = max(one.warm, HOME * one.total) if one.name == home else one.warm
        cold = 1.0 - min(warm, one.total) / max(one.total, SMALL)
        # Also past 1: one turn of all slots in the queue costs as much as the prompt. In truth it is several
        # times that, but on a fleet that is full, to flee from queues costs everybody more than it gains.
        load = one.load * mean / one.weight
        return (
            one.free <= 0,
            round((cold + load + one.penalty) / STEP),
            not one.hint,
            distances[one.name],
            one.name,
        )

    return sorted(given, key=rank)


def _distance(one: Candidate, key: bytes) -> float:
    """Rendezvous hashing: each key is nearest to one of the names, to the heavy ones more often."""
    digest = hashlib.sha256(b"%b\0%b" % (key, one.name.encode()), usedforsecurity=False).digest()
    drawn = (int.from_bytes(digest[:8]) + 1) / 2**64  # over 0, at most 1
    return -math.log(drawn) / one.weight
