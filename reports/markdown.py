"""The report of an analysis as Markdown."""

from __future__ import annotations

from llmviewer.analyzing.analysis import Analysis
from llmviewer.analyzing.phases import Phase

from .operator_table import COLUMNS, LEGEND, rows, shows_calls
from .text import Lines, called, headline, phase_line, sentence, summary


def render_markdown(analysis: Analysis, *, per_call: bool | None = None) -> str:
    return report(headline(analysis), summary(analysis), analysis, per_call=per_call)


def report(head: str, said: Lines, analysis: Analysis, *, per_call: bool | None) -> str:
    """The phases of `analysis` under `head` and what is `said` first."""
    calls = shows_calls(analysis, per_call)
    lines = [
        f"# {head}",
        "",
        "| | |",
        "|---|---|",
        *(f"| {label} | {value} |" for label, value in said),
        "",
    ]
    for name, phase in analysis.phases:
        lines += [f"## {phase_line(called(analysis, name), phase, per_call=calls)}", "", sentence(phase.advice), ""]
        lines += [*_table(phase, per_call=calls), ""]
    lines += [f"{LEGEND}.", ""]
    lines += [f"- {sentence(note)}" for note in analysis.remarks]
    return "\n".join(lines).rstrip() + "\n"


def _table(phase: Phase, *, per_call: bool) -> list[str]:
    left = {"operator", "bound", "in"}
    marks = ["---" if column in left else "---:" for column in COLUMNS]
    body = [f"| {' | '.join(row.cells)} |" for row in rows(phase, per_call=per_call)]
    return [f"| {' | '.join(COLUMNS)} |", f"|{'|'.join(marks)}|", *body]
