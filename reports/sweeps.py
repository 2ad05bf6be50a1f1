"""What a sweep of shards found, as text, JSON or CSV."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import fields
from itertools import groupby
from operator import itemgetter
from typing import Final

from llmviewer.shard_summary import Row, Summary, rate, time
from llmviewer.shards import SETTINGS
from llmviewer.units import seconds, si

from .columns import columns

_SHOWN: Final = 20  # rows of a front in a text; the other formats have all
_LEFT: Final = ("best", *SETTINGS)


def render(summary: Summary, form: str) -> str:
    return {"json": _json, "csv": _csv, "text": _text}[form](summary)


def _json(summary: Summary) -> str:
    """design.json beside it says what was asked."""
    facts = {field.name: getattr(summary, field.name) for field in fields(summary) if field.name != "design"}
    return json.dumps({**facts, "shards": summary.design.shards}, indent=1) + "\n"


def _csv(summary: Summary) -> str:
    """`best` is the measure that a row is the best in, or "front"."""
    rows = [*summary.best, *({"best": "front", **row} for row in summary.front)]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else ["best"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _text(summary: Summary) -> str:
    design = summary.design
    lines = [f"{summary.folder}: {summary.points:,} points, {summary.fitting:,} of which fit on their device."]
    if summary.finished < design.shards:
        lines.append(f"Not finished: {summary.finished} of {design.shards} shards; the same sweep command goes on.")
    among = " and ".join(dict.fromkeys((*summary.by, "hardware")))
    lines += ["", f"Best of each {among}", _table(summary.best)]
    each = f" of each {' and '.join(summary.by)}" if summary.by else ""
    lines += [f"Least {time(design)} for any {rate(design)}{each}", _table(summary.front, _SHOWN)]
    reasons = sorted(summary.refused, key=itemgetter("reason"))
    if reasons:
        lines.append(f"Refused: {len(reasons)} settings")
    for reason, found in groupby(reasons, key=itemgetter("reason")):
        settings = [" ".join(filter(None, (setting[axis] for axis in SETTINGS))) for setting in found]
        more = f" and {len(settings) - 1} more" if len(settings) > 1 else ""
        lines.append(f"  {settings[0]}{more}: {reason}")
    return "\n".join(lines) + "\n"


def _table(rows: Sequence[Row], most: int | None = None) -> str:
    """The first rows, without columns that say nothing."""
    if not rows:
        return "none\n"
    names = [name for name in rows[0] if any(row[name] not in ("", None) for row in rows)]
    cells = [names, *([_cell(name, row[name]) for name in names] for row in rows[:most])]
    left = [i for i, name in enumerate(names) if name in _LEFT]
    more = f"and {len(rows) - most:,} more; --format csv has all\n" if most and len(rows) > most else ""
    return columns(cells, left=left) + more


def _cell(name: str, value: str | float | None) -> str:
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    if name.endswith("_per_s"):
        return f"{si(value)}/s"
    return seconds(value) if name.endswith("_s") else f"{si(value)}B" if name.endswith("_bytes") else str(value)
