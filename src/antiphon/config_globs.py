"""Which globs fit every name that another glob fits: what stands behind such a one is never reached.

Owns that comparison. Which names a glob fits is server.routing's to say: `*`, `?`, and sets in brackets, of
which nothing is claimed here.

    covers("claude-*", "claude-*haiku*")   -> True
    covers("claude-*haiku*", "claude-*")   -> False
"""

from __future__ import annotations

from typing import Final

CATCH_ALL: Final = "*"
"""It is tried last, wherever it stands in a file."""

_OTHER: Final = "\0"  # stands for every letter that neither glob has
_MOST: Final = 2_000  # states that are looked at: a comparison that takes more says nothing


def is_glob(name: str) -> bool:
    """It fits more than one name, and its place in the file decides which of them it gets."""
    return name != CATCH_ALL and ("*" in name or "?" in name)


def covers(wide: str, narrow: str) -> bool:
    """Every name that `narrow` fits, `wide` fits too. Never true by mistake; false where brackets are."""
    if "[" in wide or "[" in narrow:
        return False
    if not wide.strip("*"):
        return True
    # Both read the same name, letter by letter: whenever `narrow` may be at its end, `wide` must be too.
    letters = [*sorted({*wide, *narrow} - {"*", "?"}), _OTHER]
    first = (_behind_stars(narrow, {0}), _behind_stars(wide, {0}))
    seen, ahead = {first}, [first]
    while ahead:
        if len(seen) > _MOST:
            return False
        in_narrow, in_wide = ahead.pop()
        if len(narrow) in in_narrow and len(wide) not in in_wide:
            return False
        for letter in letters:
            after = (_read(narrow, in_narrow, letter), _read(wide, in_wide, letter))
            if after[0] and after not in seen:
                seen.add(after)
                ahead.append(after)
    return True


def _read(glob: str, places: frozenset[int], letter: str) -> frozenset[int]:
    """Where in a glob one may be after another letter, from these places."""
    reached = {at for at in places if glob[at : at + 1] == "*"}
    reached |= {at + 1 for at in places if glob[at : at + 1] in {letter, "?"}}
    return _behind_stars(glob, reached)


def _behind_stars(glob: str, places: set[int]) -> frozenset[int]:
    """With the places behind stars, which fit nothing too."""
    found = set(places)
    for at in range(len(glob)):
        if at in found and glob[at] == "*":
            found.add(at + 1)
    return frozenset(found)
