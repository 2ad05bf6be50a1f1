"""What a callback is given of a state: a link, and the files that the browser holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from .state import File, State


def asked(link: str | None, files: Sequence[Sequence[str]] | None) -> State:
    """The state that the page shows."""
    return State.of_link(link or "", unpacked(files))[0]


def kept(state: State) -> str:
    """`state` for callbacks of tabs, which do not run anew where another tab or operator is looked at."""
    return replace(state, tab="overview", op="").link


def packed(files: Sequence[File]) -> list[list[str]]:
    return [[file.name, file.text] for file in files]


def unpacked(files: Sequence[Sequence[str]] | None) -> tuple[File, ...]:
    return tuple(File(name=str(name), text=str(text)) for name, text in files or ())
