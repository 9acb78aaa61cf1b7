"""The bench's pictures: an SVG on a white card, put together from plain shapes.

Owns how they look: the card, the fonts, the greys. The card is there because GitHub shows pictures on a light page
and on a dark one, and the same ink must be read on both. No script, no outside font. It must not know what is
drawn: scales and colours are the caller's.

    card = Card(860, 330, "What is shown, for a reader who cannot see it")
    card.text(24, 32, "A heading", BOLD)
    card.curve([(24, 200), (300, 60)], "#1a7f37")
    path.write_text(card.svg())
"""

from __future__ import annotations

from collections.abc import Iterable
from xml.sax.saxutils import escape

INK, FAINT_INK, RULE, EMPTY = "#1f2328", "#59636e", "#d1d9e0", "#f0f2f5"
BOLD = 'font-weight="600"'
SMALL = f'font-size="11" fill="{FAINT_INK}"'
MIDDLE, END = 'text-anchor="middle"', 'text-anchor="end"'
DASHED = 'stroke-dasharray="3 3"'


class Card:
    """A picture that is being drawn; what comes later lies on top. Lengths are in its own pixels, y goes down.

    `more` is attributes, as SVG writes them; words are escaped here.
    """

    def __init__(self, width: int, height: int, title: str) -> None:
        font = f'font-family="system-ui, sans-serif" font-size="13" fill="{INK}"'
        size = f'viewBox="0 0 {width} {height}"'
        self._parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-labelledby="title" {font}>',
            f'<title id="title">{escape(title)}</title>',
            f'<rect width="{width}" height="{height}" rx="8" fill="#ffffff"/>',
        ]

    def text(self, x: float, y: float, words: str, more: str = "") -> None:
        """`words` from `x` on, their base line at `y`."""
        self._parts.append(f'<text x="{x:.1f}" y="{y:.1f}" {more}>{escape(words)}</text>')

    def line(self, x1: float, y1: float, x2: float, y2: float, colour: str = RULE, more: str = "") -> None:
        self._parts.append(
            f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" {more}/>'
        )

    def bar(self, x: float, y: float, width: float, height: float, colour: str = EMPTY) -> None:
        self._parts.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="3" fill="{colour}"/>'
        )

    def curve(self, points: Iterable[tuple[float, float]], colour: str, width: float = 2) -> None:
        """Straight from point to point."""
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self._parts.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width:g}"/>'
        )

    def dot(self, x: float, y: float, colour: str, radius: float = 4) -> None:
        self._parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}" fill="{colour}"/>')

    def svg(self) -> str:
        """The whole document."""
        return "\n".join([*self._parts, "</svg>", ""])
