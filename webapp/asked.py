"""What a callback is given of a state: a link, and the files that the browser holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from .payloads import files_of
from .state import State


def asked(link: str | None, files: Sequence[Sequence[str]] | None) -> State:
    """The state that the page shows."""
    return State.of_link(link or "", files_of(files))[0]


def kept(state: State) -> str:
    """`state` for callbacks of tabs, which do not run anew where another tab or operator is looked at."""
    return replace(state, tab="overview", op="").link
