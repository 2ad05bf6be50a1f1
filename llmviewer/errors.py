"""`InputError`, the error that users can cause: one line with where, what must hold, what was given, what to do."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Final

_LONGEST_WORD: Final = 200  # characters without a space: paths and names are shorter
_LONGEST_TEXT: Final = 1000  # characters
_END: Final = 100  # characters that stay of the end of a text, which says what to do
_LONG_WORD: Final = re.compile(rf"(\S{{{_LONGEST_WORD}}})\S+")


class InputError(ValueError):
    """Invalid input. The command line prints the text and exits with 2.

    Long words and texts, which quote what was given, are shortened.

    reason  the text without `hint`, which says what to do
    """

    def __init__(self, reason: str, *, hint: str = "") -> None:
        super().__init__(shortened(f"{reason}; {hint}" if hint else reason))
        self.reason = shortened(reason)


def shortened(text: str) -> str:
    """The text of an error as one printable line without what is too long in it."""
    if not text.isprintable():
        line = " ".join(text.split())
        text = line if line.isprintable() else line.encode("unicode_escape").decode()
    text = _LONG_WORD.sub(r"\1...", text)
    return text if len(text) <= _LONGEST_TEXT else f"{text[: _LONGEST_TEXT - _END]} ... {text[-_END:]}"


def shown(value: object) -> str:
    """`value` of a file as an error quotes it."""
    if isinstance(value, str):
        text = repr(value)
    else:
        try:
            text = json.dumps(value, default=str)
        except TypeError:  # a key that JSON does not have
            text = str(value)
    return text if len(text) <= _LONGEST_WORD else f"{text[:_LONGEST_WORD]}..."


_FEW = 20  # names listed in full
_MANY = 6  # names listed with the same beginning or end
_FAR = 0.4  # least similarity of a name to be suggested


def suggest(given: str, known: Iterable[str], of: Mapping[str, str] | None = None) -> str:
    """A clause with the nearest names of `known`: same beginning, else same last part, else similar spelling.

    If no name is near and there are few, it lists all of them.

    of  the thing that each name stands for, if things have several names: each thing is listed once
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
    return f"the nearest {'is' if len(far) == 1 else 'are'} {', '.join(far)}" if far else "no name is like it"


def _once(names: list[str], of: Mapping[str, str] | None) -> list[str]:
    """The first name of each thing that names stand for."""
    first: dict[str, str] = {}
    for name in names:
        first.setdefault(of[name] if of else name, name)
    return list(first.values())
