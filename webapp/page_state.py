"""Page state that a callback receives: a link, and the files that the browser stores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from .payloads import files_of
from .state import State


def shown_state(link: str | None, files: Sequence[Sequence[str]] | None) -> State:
    """The state that the page shows."""
    return State.of_link(link or "", files_of(files))[0]


def analysis_link(state: State) -> str:
    """Link without tab and operator: its callbacks do not run again when only these change."""
    return replace(state, tab="overview", op="").link
