"""The report on a sweep in shards, as text, JSON or CSV."""

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

_SHOWN: Final = 20  # rows of a front in a text; the other formats have all
_HEADS: Final = {
    "ttft_s": "TTFT", "latency_s": "latency", "tpot_s": "TPOT", "tokens_per_s": "tokens/s", "decode_step_s": "step",
    "decode_tokens_per_s": "tokens/s", "total_bytes": "memory",
}  # fmt: skip


def render(summary: Summary, form: str, width: int = WIDTH) -> str:
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
    design, of = summary.design, summary.measures
    lines = [f"{summary.folder}: {summary.points:,} points, {summary.fitting:,} of which fit on their device."]
    if summary.finished < design.shards:
        lines.append(f"Not finished: {summary.finished} of {design.shards} shards; the same sweep command goes on.")
    lines.append(
        "Ranked by what measured kernels are expected to take." if summary.expected else "Times are lower bounds."
    )
    if summary.unknown:
        lines.append(f"Of {summary.unknown:,} of those that fit nothing is expected, only bounds are known.")
    rows = (*summary.best, *summary.front)
    if not rows:
        lines.append("There is nothing to rank.")
    axes = [name for name in (*design.settings, *NUMBERS) if rows and name in rows[0] and _told(name, summary)]
    alike = {name: _cell(name, rows[0][name]) for name in axes if len({row[name] for row in rows}) == 1}
    if alike:
        lines.append(f"All below: {', '.join(f'{name} {text}' for name, text in alike.items())}.")
    varied = [name for name in axes if name not in alike]
    among = " and ".join(dict.fromkeys((*summary.by, "hardware")))
    parts = ["\n".join(filled(line, width) for line in lines) + "\n"]
    for name, words in dict.fromkeys(((of.first, "Least"), (of.latency, "Least"), (of.rate, "Most"))):
        own = [row for row in summary.best if row["best"] == name]
        title = f"{words} {_HEADS[_bare(name)]} of each {among}"
        parts.append(_table(title, own, varied, dict.fromkeys((name, *of)), width=width))
    each = f" of each {' and '.join(summary.by)}" if summary.by else ""
    heads = f"{_HEADS[_bare(of.time)]} for any {_HEADS[_bare(of.rate)]}"
    parts.append(
        _table(f"Least {heads}{each}", summary.front, varied, (of.time, of.rate, *of), width=width, most=_SHOWN)
    )
    parts.append(_refusals(summary, width))
    return "\n".join(filter(None, parts))


def _told(name: str, summary: Summary) -> bool:
    """Whether an axis varies: not a context that follows the prompt, nor one that was not given."""
    asked = summary.design.numbers if name in NUMBERS else summary.design.settings
    return name in asked and any(row[name] not in ("", None) for row in (*summary.best, *summary.front))


def _refusals(summary: Summary, width: int) -> str:
    reasons = sorted(summary.refused, key=itemgetter("reason"))
    lines = [f"Refused: {len(reasons)} setting{'s' * (len(reasons) > 1)}"] if reasons else []
    for reason, counts in groupby(reasons, key=itemgetter("reason")):
        settings = [" ".join(filter(None, (setting[axis] for axis in summary.design.settings))) for setting in counts]
        more = f" and {len(settings) - 1} more" if len(settings) > 1 else ""
        line = f"{settings[0]}{more}: {reason}"
        lines.append(filled(line, width, first="  ", others="    "))
    return "\n".join((*lines, "")) if lines else ""


def _table(
    title: str, rows: Sequence[Row], axes: Sequence[str], of: Iterable[str], *, width: int, most: int | None = None
) -> str:
    """The first rows: the axes and the first measures of `of`; other measures and memory as far as the width allows."""
    if not rows:
        return ""
    first, *others = (
        name for name in dict.fromkeys((*of, "total_bytes")) if any(row[name] is not None for row in rows)
    )
    text = _columns(rows[:most], [*axes, first])
    names = [*axes, first]
    for name in others:
        wider = _columns(rows[:most], [*names, name])
        if _width(wider) <= width:
            text, names = wider, [*names, name]
    if _width(text) > width and "model" in axes:  # then models are not a column
        apart = groupby(sorted(rows[:most], key=itemgetter("model")), key=itemgetter("model"))
        left = [name for name in names if name != "model"]
        text = "".join(f"{model}\n{_columns(list(own), left)}" for model, own in apart)
    more = f"and {len(rows) - most:,} more; --format csv has all\n" if most and len(rows) > most else ""
    return f"{filled(title, width)}\n{text}{more}"


def _columns(rows: Sequence[Row], names: Sequence[str]) -> str:
    cells = [[_HEADS.get(_bare(n), n) for n in names], *([_cell(n, row[n]) for n in names] for row in rows)]
    return columns(cells, left=[i for i, name in enumerate(names) if isinstance(rows[0][name], str)], gap=" ")


def _width(text: str) -> int:
    return max(map(len, text.splitlines()))


def _bare(name: str) -> str:
    return name.removeprefix("expected_")


def _cell(name: str, value: str | float | None) -> str:
    if value is None:
        return "-"
    if isinstance(value, str):
        return value or ("one device" if name == "layout" else "-")
    if name.endswith("_per_s"):
        return f"{value:,.0f}" if 100 <= value < 1e6 else si(value).replace(" ", "")
    return seconds(value) if name.endswith("_s") else f"{si(value)}B" if name.endswith("_bytes") else str(value)
