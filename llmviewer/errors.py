"""The one error a user can cause. Its text is one line: where, what must hold, what was given, what to do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches


class InputError(ValueError):
    """Something the user gave cannot be used. The command line prints the text and exits with 2.

    reason  the text without `hint`, which is what to do
    """

    def __init__(self, reason: str, *, hint: str = "") -> None:
        super().__init__(f"{reason}; {hint}" if hint else reason)
        self.reason = reason


_FEW = 20  # names that can all be told
_MANY = 6  # names that begin or end alike
_FAR = 0.4  # the least part of a name that has to be alike for it to be named


def suggest(given: str, known: Iterable[str], of: Mapping[str, str] | None = None) -> str:
    """The clause that names the nearest of `known`: those that begin with `given`, else those that it is the last part
    of, else those spelt like it.

    All of them where none is near and they are few.

    of  what each is a name of, where one thing has several: it is told by the nearest
    """
    names, wanted = list(known), given.lower()
    begin = sorted((name for name in names if wanted and name.startswith(wanted)), key=lambda name: (len(name), name))
    end = [name for name in names if wanted and name.endswith(f".{wanted}")]
    like = begin or end
    near = _once(like or get_close_matches(wanted, names, n=_MANY * 3, cutoff=0.6), of)[: _MANY if like else 3]
    if near:
        return f"did you mean {' or '.join(near)}?"
    if len(names) <= _FEW:
        return f"there is {', '.join(sorted(names))}"
    far = get_close_matches(wanted, names, n=3, cutoff=_FAR)
    return (
        f"of {len(names)} names the nearest {'is' if len(far) == 1 else 'are'} {', '.join(far)}"
        if far
        else f"none of {len(names)} names is like it"
    )


def _once(names: list[str], of: Mapping[str, str] | None) -> list[str]:
    """The first name of each thing."""
    first: dict[str, str] = {}
    for name in names:
        first.setdefault(of[name] if of else name, name)
    return list(first.values())
