"""The report of an analysis as Markdown."""

from __future__ import annotations

from llmviewer.analysis import Analysis, Phase

from .table import COLUMNS, LEGEND, rows, shows_calls
from .text import headline, phase_line, sentence, summary


def render(analysis: Analysis, *, per_call: bool | None = None) -> str:
    calls = shows_calls(analysis, per_call)
    lines = [
        f"# {headline(analysis)}",
        "",
        "| | |",
        "|---|---|",
        *(f"| {label} | {value} |" for label, value in summary(analysis)),
        "",
    ]
    for name, phase in analysis.phases:
        lines += [f"## {phase_line(name, phase, per_call=calls)}", "", sentence(phase.advice), ""]
        lines += [*_table(phase, per_call=calls), ""]
    lines += [f"{LEGEND}.", ""]
    lines += [f"- {sentence(note)}" for note in analysis.notes]
    return "\n".join(lines).rstrip() + "\n"


def _table(phase: Phase, *, per_call: bool) -> list[str]:
    left = {"operator", "bound", "in"}
    marks = ["---" if column in left else "---:" for column in COLUMNS]
    body = [f"| {' | '.join(row.cells)} |" for row in rows(phase, per_call=per_call)]
    return [f"| {' | '.join(COLUMNS)} |", f"|{'|'.join(marks)}|", *body]
