r"""`<think>` in the content of an answer: which characters are reasoning and which are the answer.

Owns the splitter. It holds back only the shortest suffix that may still become a tag (and white space that
may be all of a thought), and it looks for the opening tag only where templates put it: at the start of the
content.

    tags = ThinkTags("auto")
    tags.split("<thi")          -> []
    tags.split("nk>plan")       -> [(True, "plan")]
    tags.split("</think>\nHi")  -> [(False, "Hi")]
"""

from __future__ import annotations

from typing import Literal, TypeAlias

Mode: TypeAlias = Literal["auto", "off", "open"]
Pieces: TypeAlias = list[tuple[bool, str]]
"""(is reasoning, text), in order; no text is empty."""

OPEN, CLOSE = "<think>", "</think>"


class ThinkTags:
    """`auto`: a tag at the start opens it; `open`: the template opened it already; `off`: no tags."""

    __slots__ = ("_blank", "_held", "_state")

    def __init__(self, mode: Mode) -> None:
        # "start": only white space yet; "inside"; "closed": only white space since; "off": text it is
        self._state = {"auto": "start", "open": "inside", "off": "off"}[mode]
        self._held = ""
        self._blank = True  # inside: nothing but white space so far

    @property
    def off(self) -> bool:
        """Whatever comes is text."""
        return self._state == "off"

    def stop(self) -> Pieces:
        """A reasoning field was seen, or the content has ended: give back what was held."""
        held, self._held = self._held, ""
        inside = self._state == "inside"
        self._state = "off"
        if not held or (inside and self._blank and held.isspace()):
            return []
        return [(inside, held)]

    def split(self, text: str) -> Pieces:
        """Split the next piece of content."""
        out: Pieces = []
        text = self._held + text
        self._held = ""
        if self._state == "start":
            text = self._open(text, out)
        if self._state == "inside":
            text = self._close(text, out)
        if self._state == "closed":
            text = text.lstrip()  # white space right after the tag belongs to it
            if text:
                self._state = "off"
        if text:
            out.append((False, text))
        return out

    def _open(self, text: str, out: Pieces) -> str:
        """Find the opening tag, or that there is none; return what is behind it."""
        body = text.lstrip()
        if body.startswith(OPEN):
            self._state = "inside"
            return body[len(OPEN) :]
        if not OPEN.startswith(body):
            self._state = "off"
            return text
        # White space alone never opens a block, so it need not wait for what comes.
        blank = text[: len(text) - len(body)]
        if blank:
            out.append((False, blank))
        self._held = body
        return ""

    def _close(self, text: str, out: Pieces) -> str:
        """Take what is a thought; return what is behind the closing tag."""
        thought, closed, rest = text.partition(CLOSE)
        if closed:
            self._state = "closed"
        else:
            keep = _ambiguous(thought)
            if self._blank and thought[: len(thought) - keep].isspace():
                keep = len(thought)  # a thought of white space alone is none: wait for more
            self._held = thought[len(thought) - keep :]
            thought = thought[: len(thought) - keep]
        if thought and not (self._blank and thought.isspace()):
            self._blank = False
            out.append((True, thought))
        return rest


def _ambiguous(text: str) -> int:
    """The length of the longest suffix that may be the beginning of the closing tag."""
    for length in range(min(len(CLOSE) - 1, len(text)), 0, -1):
        if CLOSE.startswith(text[-length:]):
            return length
    return 0
