"""The one error a user can cause. Its text is one line: where, what must hold, what was given, what to do."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class InputError(ValueError):
    """Something the user gave cannot be used. The command line prints the text and exits with 2."""


_FEW = 20  # names that can all be told
_MANY = 6  # names that begin or end alike
_FAR = 0.4  # the least part of a name that has to be alike for it to be named


def suggest(given: str, known: Iterable[str]) -> str:
    """The clause that names the nearest of `known`: those that begin with `given`, else those that it is the last part
    of, else those spelt like it.

    All of them where none is near and they are few.
    """
    names, wanted = list(known), given.lower()
    begin = sorted((name for name in names if wanted and name.startswith(wanted)), key=lambda name: (len(name), name))
    end = [name for name in names if wanted and name.endswith(f".{wanted}")]
    near = begin[:_MANY] or end[:_MANY] or get_close_matches(wanted, names, n=3, cutoff=0.6)
    if near:
        return f"did you mean {' or '.join(near)}?"
    if len(names) <= _FEW:
        return f"there is {', '.join(sorted(names))}"
    far = get_close_matches(wanted, names, n=3, cutoff=_FAR)
    return (
        f"of {len(names)} names the nearest are {', '.join(far)}" if far else f"none of {len(names)} names is like it"
    )
