"""The picture of docs/slots.md: goodput against offered load, from the results of bench/slots.py.

Owns the reading of those results and where the curves go; how a picture looks is pictures.py's. It measures
nothing. Two panels, since no curve leaves the capacity by more than its own breadth on a scale that begins at 0:
the whole on the left, the last percents on the right.

    draw(Path("docs/goodput.svg"), [Path("bench/results/slots-2026-11-29T220000Z.json")], terms)
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pictures import BOLD, DASHED, END, FAINT_INK, MIDDLE, SMALL, Card

ARMS = {  # name, colour, and a width: the curves lie on each other, so those that are drawn first are wider
    "alone": ("one process", "#1a7f37", 5.0),
    "workers": ("--workers 2", "#8250df", 3.0),
    "redis": ("--workers 2, Redis", "#e16f24", 1.5),
}
SHARE = 0.95  # of the capacity: the target

Curve = list[tuple[int, float]]  # offered, times the capacity; goodput, answers a second


@dataclass(frozen=True)
class Terms:
    """On what terms it was measured. `answer` and `deadline` are seconds."""

    slots: int
    queue: int
    answer: float
    deadline: float

    @property
    def capacity(self) -> float:
        """Answers a second."""
        return self.slots / self.answer


def draw(path: Path, results: Iterable[Path], terms: Terms) -> str:
    """Write the picture, each arm from the last of `results` that has it; returns a line that says what was drawn.

    Raises ValueError if a file is of other terms, or if none has an arm.
    """
    curves: dict[str, Curve] = {}
    days: dict[str, str] = {}
    for one in results:
        document = json.loads(one.read_text())
        about = document["about"]
        found = about.get("slots"), about.get("queue")
        if found != (terms.slots, terms.queue):
            raise ValueError(f"{one} is of {found[0]} slots and a queue of {found[1]}, not of {terms}")
        for arm in ARMS.keys() & document["results"].keys():
            curves[arm] = [(row["times"], row["goodput"]) for row in document["results"][arm]["overload"]]
            days[arm] = about["began"][:10]
    if not curves:
        raise ValueError("no arm was measured there")
    path.write_text(picture(curves, terms, " and ".join(sorted(set(days.values())))))
    missing = [name for arm, (name, _, _) in ARMS.items() if arm not in curves]
    return f"picture: {path}" + (f" (without {'; '.join(missing)})" if missing else "")


def picture(curves: Mapping[str, Curve], terms: Terms, measured: str) -> str:
    """An SVG of the curves, by arm; `measured` says when."""
    arms = [arm for arm in ARMS if arm in curves]
    shares = {arm: [(times, rate / terms.capacity) for times, rate in curves[arm]] for arm in arms}
    lowest = {arm: min(share for _, share in shares[arm]) for arm in arms}
    highest = max(share for arm in arms for _, share in shares[arm])
    card = Card(860, 378, f"Goodput against offered load: {'; '.join(ARMS[arm][0] for arm in arms)}")
    bottom, height, width = 256.0, 206.0, 320.0

    def panel(left: float, heading: str, low: float, high: float, ticks: Iterable[tuple[float, str]]) -> None:
        """From `low` to `high`, which are shares of the capacity; so are the places of `ticks`."""

        def across(times: float) -> float:
            return left + width * (0.04 + 0.92 * math.log10(times))

        def up(share: float) -> float:
            return bottom - height * (share - low) / (high - low)

        card.text(left - 36, 32, heading, BOLD)
        for share, words in ticks:
            card.line(left, up(share), left + width, up(share))
            card.text(left - 8, up(share) + 4, words, f"{SMALL} {END}")
        for times in (1, 2, 5, 10):
            card.line(across(times), bottom, across(times), bottom + 5)
            card.text(across(times), bottom + 20, f"{times}", f"{SMALL} {MIDDLE}")
        card.text(left + width / 2, bottom + 40, "requests offered, times the capacity", f"{SMALL} {MIDDLE}")
        for arm in arms:
            _, colour, thick = ARMS[arm]
            places = [(across(times), up(share)) for times, share in shares[arm]]
            card.curve(places, colour, thick)
            for x, y in places:
                card.dot(x, y, colour, 2 + thick / 2)
        for share, words, below in (
            (1.0, f"capacity, {terms.capacity:g}/s", -6),
            (SHARE, f"{SHARE:.0%} of it", 14),
        ):
            card.line(left, up(share), left + width, up(share), FAINT_INK, DASHED)
            card.text(left + width, up(share) + below, words, f"{SMALL} {END}")

    panel(
        60,
        f"Goodput: whole answers a second, each within {terms.deadline:g} s",
        0.0,
        max(1.15, highest + 0.05),
        [(part / 4, f"{terms.capacity * part / 4:g}/s") for part in range(5)],
    )
    floor = math.floor(100 * min(SHARE - 0.01, *lowest.values()))
    panel(
        500,
        f"The same in percent of the capacity, from {floor}% on",
        floor / 100,
        max(1.01, highest + 0.005),
        [(percent / 100, f"{percent}%") for percent in range(100, floor - 1, -1 if floor > 90 else -10)],
    )
    for number, arm in enumerate(arms):
        name, colour, thick = ARMS[arm]
        x = 60 + 265 * number
        card.dot(x, 324, colour, 2 + thick / 2)
        # rounded down: "at least" must stay true
        card.text(x + 12, 328, f"{name}: at least {math.floor(lowest[arm] * 1000) / 10:.1f}%")
    card.text(
        24,
        360,
        f"{terms.slots} slots, answers of {terms.answer:g} s, {terms.queue} may wait; who is refused does not come"
        f" again. Measured {measured}: bench/slots.py",
        SMALL,
    )
    return card.svg()
