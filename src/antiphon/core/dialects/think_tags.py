"""`<think>` in the content of an answer: which characters are reasoning and which are the answer.

Owns the splitter. It holds back only the shortest suffix that may still become a tag, and it looks for
the opening tag only where templates put it: at the start of the content.

    tags = ThinkTags("auto")
    tags.split("<thi")        -> []
    tags.split("nk>plan")     -> [(True, "plan")]
    tags.split("</think>\\nHi") -> [(False, "Hi")]
"""

from __future__ import annotations

from typing import Literal, TypeAlias

Mode: TypeAlias = Literal["auto", "off", "open"]

OPEN, CLOSE = "<think>", "</think>"


class ThinkTags:
    """`auto`: a tag at the start opens it; `open`: the template opened it already; `off`: no tags."""

    __slots__ = ("_blank", "_held", "_state")

    def __init__(self, mode: Mode) -> None:
        # "start": nothing but white space yet; "inside"; "after": only white space since the close; "off"
        self._state = {"auto": "start", "open": "inside", "off": "off"}[mode]
        self._held = ""
        self._blank = True  # inside: nothing but white space so far

    @property
    def off(self) -> bool:
        return self._state == "off"

    def stop(self) -> list[tuple[bool, str]]:
        """A reasoning field was seen, or the content has ended: give back what was held."""
        held, self._held = self._held, ""
        inside = self._state == "inside"
        self._state = "off"
        if not held or (inside and self._blank and held.isspace()):
            return []
        return [(inside, held)]

    def split(self, text: str) -> list[tuple[bool, str]]:
        """Split the next piece of content into (is reasoning, text) pairs, in order."""
        text = self._held + text
        self._held = ""
        if self._state == "start":
            body = text.lstrip()
            if not body.startswith(OPEN):
                if OPEN.startswith(body):
                    self._held = text
                    return []
                self._state = "off"
                return [(False, text)]
            self._state = "inside"
            text = body[len(OPEN) :]
        out: list[tuple[bool, str]] = []
        if self._state == "inside":
            thought, closed, text = text.partition(CLOSE)
            if not closed:
                keep = _ambiguous(thought)
                if self._blank and thought.isspace():
                    keep = len(thought)  # a thought of white space alone is none: wait for more
                self._held = thought[len(thought) - keep :]
                thought = thought[: len(thought) - keep]
            if thought and not (self._blank and thought.isspace()):
                self._blank = False
                out.append((True, thought))
            if not closed:
                return out
            self._state = "after"
        if self._state == "after":
            text = text.lstrip()  # white space right after the tag belongs to it
            if not text:
                return out
            self._state = "off"
        if text:
            out.append((False, text))
        return out


def _ambiguous(text: str) -> int:
    """The length of the longest suffix that may be the beginning of the closing tag."""
    for length in range(min(len(CLOSE) - 1, len(text)), 0, -1):
        if CLOSE.startswith(text[-length:]):
            return length
    return 0
