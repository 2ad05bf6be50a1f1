"""The comparison of settings as an HTML page in one file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from llmviewer.reports import figures
from llmviewer.reports.page import report_page
from llmviewer.reports.page_figures import Picture, picture
from llmviewer.reports.phrases import BOUNDS
from llmviewer.reports.tables import Item, Table

from . import compare
from .compare import ComparedSetting

_PHASES: Final = ("prefill", "decode")


def comparison_page(settings: Sequence[ComparedSetting], phase: str) -> str:
    """A page of the compared settings: differences, numbers, figures of each phase, and operators of one."""
    title = f"Comparison of {len(settings)} settings"
    return report_page(
        title=title,
        headline=f"{title}: {', '.join(one.name for one in settings)}",
        basis=BOUNDS,
        pictures=list(_pictures(settings)),
        tables=list(_tables(settings, phase)),
        remarks=compare.difference_sentences(settings),
        inputs={},
    )


def _tables(settings: Sequence[ComparedSetting], phase: str) -> list[Table]:
    described = [("setting", "inputs"), *((one.label, one.description) for one in settings)]
    numbers, inputs = compare.numbers_table(settings), compare.inputs_table(settings)
    differences = compare.bound_differences(settings, phase)
    bounds = [
        ("operator", *(one.label for one in settings)),
        *((one.operator, *(f"{at[0]} {at[1]:.1%}" if at else "-" for at in one.bounds)) for one in differences),
    ]
    return [
        _table("Settings", "", described),
        *([_table("Inputs that differ", "", inputs)] if inputs else []),
        _table("Numbers", f"In brackets: ratio to {settings[0].label}.", numbers),
        *([_table(f"Operators of {phase} whose bound changes", "Bound and share of the time.", bounds)]
          if differences else []),
    ]  # fmt: skip


def _table(title: str, about: str, lines: Sequence[Sequence[str]]) -> Table:
    """A table of words: a line of heads, then the rows."""
    head, *rows = lines
    body = tuple(tuple(Item(text=cell) for cell in row) for row in rows)
    return Table(title=title, about=about, head=tuple(head), words=tuple(head), body=body)


def _pictures(settings: Sequence[ComparedSetting]) -> list[list[Picture]]:
    """Times and rooflines of each phase that several settings have."""
    rows = []
    for phase in _PHASES:
        analyses = compare.analyses_with_phase(settings, phase)
        if len(analyses) > 1:
            drawn = {"times": figures.phase_bars(analyses, phase), "roofline": figures.rooflines(analyses, phase)}
            rows.append([picture(figure, f"{phase}-{name}") for name, figure in drawn.items()])
    return rows
