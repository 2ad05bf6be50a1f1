"""`InputError`, the error that users can cause: one line with where, what must hold, what was given, what to do."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Final

_MAX_WORD_CHARS: Final = 200  # characters without a space: paths and names are shorter
_MAX_TEXT_CHARS: Final = 1000  # characters
_KEPT_END_CHARS: Final = 100  # kept of the end of a long text, which says what to do
_LONG_WORD: Final = re.compile(rf"(\S{{{_MAX_WORD_CHARS}}})\S+")


class InputError(ValueError):
    """Invalid input. The command line prints the text and exits with 2.

    Long words and texts, which quote what was given, are shortened.

    reason  the text without `hint`, which says what to do
    """

    def __init__(self, reason: str, *, hint: str = "") -> None:
        super().__init__(shortened(f"{reason}; {hint}" if hint else reason))
        self.reason = shortened(reason)


class CapacityError(InputError):
    """A request that memory has no room for. This is an answer: the command line prints it and exits with 0."""


def shortened(text: str) -> str:
    """Shortens the text of an error to one printable line, cutting long words and its middle."""
    if not text.isprintable():
        line = " ".join(text.split())
        text = line if line.isprintable() else line.encode("unicode_escape").decode()
    text = _LONG_WORD.sub(r"\1...", text)
    if len(text) <= _MAX_TEXT_CHARS:
        return text
    return f"{text[: _MAX_TEXT_CHARS - _KEPT_END_CHARS]} ... {text[-_KEPT_END_CHARS:]}"


def quoted(value: object) -> str:
    """`value` of a file as an error quotes it."""
    if isinstance(value, str):
        text = repr(value)
    else:
        try:
            text = json.dumps(value, default=str)
        except TypeError:  # a key that JSON does not have
            text = str(value)
    return text if len(text) <= _MAX_WORD_CHARS else f"{text[:_MAX_WORD_CHARS]}..."


_MAX_LISTED_NAMES = 20  # names listed in full
_MAX_SIMILAR_NAMES = 6  # names listed with the same beginning or end
_MIN_SIMILARITY = 0.4  # of a suggested name, as difflib measures it


def suggest(typed_name: str, valid_names: Iterable[str], targets: Mapping[str, str] | None = None) -> str:
    """Suggests the nearest valid names: same beginning, else same last part, else similar spelling.

    Lists all names if none is near and there are few.

    targets  what each name stands for, if things have several names: each thing is suggested once
    """
    from difflib import get_close_matches  # only errors need it

    names, lowered = list(valid_names), typed_name.lower()
    longer_names = [name for name in names if lowered and name.startswith(lowered)]
    same_beginning = sorted(longer_names, key=lambda name: (len(name), name))
    same_last_part = [name for name in names if lowered and name.endswith(f".{lowered}")]
    matching_names = same_beginning or same_last_part
    similar_names = matching_names or get_close_matches(lowered, names, n=_MAX_SIMILAR_NAMES * 3, cutoff=0.6)
    near_names = _one_per_target(similar_names, targets)[: _MAX_SIMILAR_NAMES if matching_names else 3]
    if near_names:
        return f"did you mean {' or '.join(near_names)}?"
    if len(names) <= _MAX_LISTED_NAMES:
        return f"there is {', '.join(sorted(names))}"
    far_names = get_close_matches(lowered, names, n=3, cutoff=_MIN_SIMILARITY)
    if not far_names:
        return "no name is like it"
    return f"the nearest {'is' if len(far_names) == 1 else 'are'} {', '.join(far_names)}"


def _one_per_target(names: list[str], targets: Mapping[str, str] | None) -> list[str]:
    """The first name of each target."""
    first_names: dict[str, str] = {}
    for name in names:
        first_names.setdefault(targets[name] if targets else name, name)
    return list(first_names.values())
