"""The summary of a sweep in shards, as text, JSON or CSV."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import fields
from itertools import groupby
from operator import itemgetter
from typing import Final

from llmviewer.sweeping.axes import NUMBERS
from llmviewer.sweeping.summary import Row, Summary
from llmviewer.units import seconds, si

from .columns import WIDTH, columns
from .tables import csv_of, filled

_MAX_FRONT_ROWS: Final = 20  # of a Pareto front in a text; the other formats have all
_HEADS: Final = {
    "ttft_s": "TTFT", "latency_s": "latency", "tpot_s": "TPOT", "tokens_per_s": "tokens/s", "decode_step_s": "step",
    "decode_tokens_per_s": "tokens/s", "total_bytes": "memory",
}  # fmt: skip


def render(summary: Summary, form: str, width: int = WIDTH) -> str:
    """Summary of a sweep as "text", "json" or "csv"; `width` applies to text."""
    return _text(summary, width) if form == "text" else {"json": _json, "csv": _csv}[form](summary)


def _json(summary: Summary) -> str:
    """The document; design.json beside it has the axes."""
    facts = {field.name: getattr(summary, field.name) for field in fields(summary) if field.name != "design"}
    return json.dumps({**facts, "shards": summary.design.shards}, indent=1) + "\n"


def _csv(summary: Summary) -> str:
    """The best rows; `best` is the measure, or "front"."""
    rows = [*summary.best, *({"best": "front", **row} for row in summary.front)]
    return csv_of(rows) if rows else "best\n"


def _text(summary: Summary, width: int) -> str:
    design, measures = summary.design, summary.measures
    lines = [f"{summary.folder}: {summary.points:,} points; {summary.fitting:,} fit the memory."]
    if summary.finished < design.shards:
        lines.append(f"Incomplete: {summary.finished} of {design.shards} shards; the same sweep command resumes.")
    lines.append("Ranked by expected times, of measured kernels." if summary.expected else "Ranked by roofline bounds.")
    if summary.unknown:
        lines.append(f"{summary.unknown:,} points that fit have no expected time, only bounds, and are not ranked.")
    rows = (*summary.best, *summary.front)
    if not rows:
        lines.append("No point to rank.")
    axes = [name for name in (*design.settings, *NUMBERS) if rows and name in rows[0] and _varies(name, summary)]
    constants = {name: _cell(name, rows[0][name]) for name in axes if len({row[name] for row in rows}) == 1}
    if constants:
        lines.append(f"Constant: {', '.join(f'{name} {text}' for name, text in constants.items())}.")
    varied = [name for name in axes if name not in constants]
    groups = " and ".join(dict.fromkeys((*summary.by, "hardware")))
    parts = ["\n".join(filled(line, width) for line in lines) + "\n"]
    for name, words in dict.fromkeys(
        ((measures.first, "Lowest"), (measures.latency, "Lowest"), (measures.rate, "Highest"))
    ):
        best_rows = [row for row in summary.best if row["best"] == name]
        title = f"{words} {_HEADS[_base_name(name)]} by {groups}"
        parts.append(_table(title, best_rows, varied, dict.fromkeys((name, *measures)), width=width))
    grouping = f" by {' and '.join(summary.by)}" if summary.by else ""
    heads = f"{_HEADS[_base_name(measures.time)]}, {_HEADS[_base_name(measures.rate)]}"
    parts.append(
        _table(
            f"Pareto front ({heads}){grouping}",
            summary.front,
            varied,
            (measures.time, measures.rate, *measures),
            width=width,
            max_rows=_MAX_FRONT_ROWS,
        )
    )
    parts.append(_refusals(summary, width))
    return "\n".join(filter(None, parts))


def _varies(name: str, summary: Summary) -> bool:
    """Whether an axis of the design has values; a context that follows the prompt has none."""
    design_axes = summary.design.numbers if name in NUMBERS else summary.design.settings
    return name in design_axes and any(row[name] not in ("", None) for row in (*summary.best, *summary.front))


def _refusals(summary: Summary, width: int) -> str:
    reasons = sorted(summary.refused, key=itemgetter("reason"))
    lines = [f"Refused: {len(reasons)} setting{'s' * (len(reasons) > 1)}"] if reasons else []
    for reason, counts in groupby(reasons, key=itemgetter("reason")):
        settings = [" ".join(filter(None, (setting[axis] for axis in summary.design.settings))) for setting in counts]
        others = f" and {len(settings) - 1} more" if len(settings) > 1 else ""
        line = f"{settings[0]}{others}: {reason}"
        lines.append(filled(line, width, first="  ", others="    "))
    return "\n".join((*lines, "")) if lines else ""


def _table(
    title: str,
    rows: Sequence[Row],
    axes: Sequence[str],
    measures: Iterable[str],
    *,
    width: int,
    max_rows: int | None = None,
) -> str:
    """The first rows: the axes and the first measure; other measures and memory as far as the width allows."""
    if not rows:
        return ""
    first, *others = (
        name for name in dict.fromkeys((*measures, "total_bytes")) if any(row[name] is not None for row in rows)
    )
    text = _columns(rows[:max_rows], [*axes, first])
    names = [*axes, first]
    for name in others:
        wider = _columns(rows[:max_rows], [*names, name])
        if _width(wider) <= width:
            text, names = wider, [*names, name]
    if _width(text) > width and "model" in axes:  # then models are not a column
        rows_by_model = groupby(sorted(rows[:max_rows], key=itemgetter("model")), key=itemgetter("model"))
        other_names = [name for name in names if name != "model"]
        text = "".join(f"{model}\n{_columns(list(model_rows), other_names)}" for model, model_rows in rows_by_model)
    omitted_note = (
        f"and {len(rows) - max_rows:,} more; --format csv has all\n" if max_rows and len(rows) > max_rows else ""
    )
    return f"{filled(title, width)}\n{text}{omitted_note}"


def _columns(rows: Sequence[Row], names: Sequence[str]) -> str:
    cells = [[_HEADS.get(_base_name(n), n) for n in names], *([_cell(n, row[n]) for n in names] for row in rows)]
    return columns(cells, left=[i for i, name in enumerate(names) if isinstance(rows[0][name], str)], gap=" ")


def _width(text: str) -> int:
    return max(map(len, text.splitlines()))


def _base_name(name: str) -> str:
    return name.removeprefix("expected_")


def _cell(name: str, value: str | float | None) -> str:
    if value is None:
        return "-"
    if isinstance(value, str):
        return value or ("one device" if name == "layout" else "-")
    if name.endswith("_per_s"):
        return f"{value:,.0f}" if 100 <= value < 1e6 else si(value).replace(" ", "")
    return seconds(value) if name.endswith("_s") else f"{si(value)}B" if name.endswith("_bytes") else str(value)
