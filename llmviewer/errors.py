"""The one error a user can cause. Its text is one line: where, what must hold, what was given, what to do."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class InputError(ValueError):
    """Something the user gave cannot be used. The command line prints the text and exits with 2."""


_FEW = 20  # names that can all be told


def suggest(given: str, known: Iterable[str]) -> str:
    """The clause that names the nearest of `known`; all of them where none is near and they are few."""
    names = sorted(known)
    close = get_close_matches(given.lower(), names, n=3, cutoff=0.6)
    if close:
        return f"did you mean {' or '.join(close)}?"
    if len(names) <= _FEW:
        return f"there is {', '.join(names)}"
    nearest = get_close_matches(given.lower(), names, n=3, cutoff=0)
    return f"of {len(names)} names the nearest are {', '.join(nearest)};"
