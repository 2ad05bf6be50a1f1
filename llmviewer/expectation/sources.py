"""Where an expectation comes from, as text: "calibrated on ...", "transferred from ..." or "bound only: WHY"."""

from __future__ import annotations

from typing import Final

BOUND_ONLY: Final = "bound only"


def unknown(why: str) -> str:
    """The source of what nothing above the bound is known of."""
    return f"{BOUND_ONLY}: {why}"


def why_unknown(source: str) -> str:
    """Why nothing above the bound is known, by such a source; "" by none."""
    return source.removeprefix(unknown(""))
