"""The operator table of a phase as texts: what the screen, Markdown and HTML have in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any, Final

from llmviewer.analyzing.analysis import Analysis
from llmviewer.analyzing.phases import OperatorResult, PerCall, Phase, Total
from llmviewer.parameters import Accounting
from llmviewer.units import seconds, si

COLUMNS: Final = (
    "operator", "x", "OPs", "weights", "activ.", "KV", "OP/B", "OP/s", "bound", "in", "time", "expect",
    "share",
)  # fmt: skip
_SUMS: Final = (
    "repeat", "ops", "bytes", "weight_bytes", "activation_bytes", "kv_bytes", "link_bytes", "conversion_ops",
    "bound_time_s", "expected_time_s", "expected_low_s", "expected_high_s", "share",
)  # fmt: skip
LITTLE: Final = 0.01  # of the time, below which a long table can leave operators out
_LONG: Final = 24  # operators of a table
LEGEND: Final = (
    "OPs and bytes moved (weights, activations, KV cache), arithmetic intensity, attainable performance, "
    "what bounds it, the type it is computed in, the least time it takes, and what to expect of real kernels"
)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of texts, in the order of COLUMNS."""

    cells: tuple[str, ...]
    bound: str


@dataclass(frozen=True, kw_only=True)
class Merged:
    """An operator whose launches do the same in several blocks.

    parts  it in each block
    whole  all its launches, as one of the block of the first
    title  what it is called so that no other is: its name, and where others bear it, its blocks
    """

    parts: tuple[OperatorResult, ...]
    whole: OperatorResult
    title: str


def merged(phase: Phase) -> list[Merged]:
    """The operators of a phase, those that are the same in several blocks together, in the order of the first of them.

    This is what tables show; JSON and CSV have each block's.
    """
    found: dict[tuple[object, ...], list[OperatorResult]] = {}
    for op in phase.operators:
        found.setdefault((op.name, op.kind, op.per_call, op.limited_by, op.expectation_source), []).append(op)
    blocks: dict[str, list[list[str]]] = {}
    for parts in found.values():
        blocks.setdefault(parts[0].name, []).append([op.block for op in parts])
    return [
        Merged(parts=tuple(parts), whole=_sum(parts), title=_title(parts, blocks[parts[0].name]))
        for parts in found.values()
    ]


def _title(parts: Sequence[OperatorResult], rows: Sequence[Sequence[str]]) -> str:
    """Its name alone if it has the only one of the `rows` of that name, of which these are the blocks."""
    name, own = parts[0].name, [op.block for op in parts]
    if len(rows) == 1:
        return name
    return f"{name} ({_common(own, [block for row in rows if row != own for block in row])})"


def _common(own: Sequence[str], others: Sequence[str]) -> str:
    """Words that the names of all of one's `own` blocks have and those of no other; else the first, and how many more.

    >>> _common(["local_dense", "local_moe"], ["global_moe"]), _common(["local", "global"], ["local_cut"])
    ('local', 'local +1')
    """
    first, *more = own
    words = [word for word in first.split("_") if all(word in block.split("_") for block in own)]
    if not more or not words or any(set(words) <= set(block.split("_")) for block in others):
        return f"{first} +{len(more)}" if more else first
    return "_".join(words)


def _sum(parts: Sequence[OperatorResult]) -> OperatorResult:
    """All of them as one; what is not known of one is not known of all, such as the end of an interval."""
    if len(parts) == 1:
        return parts[0]
    values = {field: [getattr(op, field) for op in parts] for field in _SUMS}
    sums: dict[str, Any] = {field: None if None in each else sum(each) for field, each in values.items()}
    return replace(parts[0], **sums)


def rows(phase: Phase, *, per_call: bool, brief: bool = False) -> list[Row]:
    """A line for each operator, of all its launches or of one, and one for the whole.

    brief  a long table has those that take long, and one line for all others together
    """
    table = merged(phase)
    small = _small(table, phase.total) if brief else []
    shown = [_operator(one, per_call=per_call) for one in table if one not in small]
    return [*shown, *([_together(small)] if small else []), _total(phase.total)]


def shortens(phase: Phase) -> bool:
    """Whether the brief table of a phase leaves operators out."""
    return bool(_small(merged(phase), phase.total))


def _small(table: Sequence[Merged], total: Total) -> list[Merged]:
    """Of a long table, the operators that take little of the time, at the bound and as expected."""

    def little(op: OperatorResult) -> bool:
        expected = (op.expected_time_s or 0) < LITTLE * (total.expected_time_s or inf)
        return op.share < LITTLE and expected

    return [one for one in table if little(one.whole)] if len(table) > _LONG else []


def shows_calls(analysis: Analysis, per_call: bool | None) -> bool:
    """Whether OPs, bytes and times are those of one launch: as asked, else as the paper's table in its accounting."""
    return analysis.inputs.accounting is Accounting.SURVEY if per_call is None else per_call


def computed_in(op: OperatorResult) -> str:
    """The data type of its arithmetic, where there is any that is not all waiting for a link."""
    return op.compute_dtype if op.ops and op.bound != "link" else "-"


def expected_s(op: OperatorResult, *, per_call: bool) -> float | None:
    """What all launches of an operator are expected to take, or one of them."""
    return op.expected_time_s / op.repeat if per_call and op.expected_time_s is not None else op.expected_time_s


def _operator(merged: Merged, *, per_call: bool) -> Row:
    op = merged.whole
    amounts = op.per_call if per_call else op
    cells = (
        merged.title,
        str(op.repeat),
        *_amounts(amounts),
        number(op.intensity),
        _short(op.attainable_ops_per_s),
        op.bound,
        computed_in(op),
        seconds(amounts.bound_time_s),
        seconds(expected_s(op, per_call=per_call)),
        f"{op.share:.1%}",
    )
    return Row(cells=cells, bound=op.bound)


def _together(small: Sequence[Merged]) -> Row:
    """All launches of operators that have no line of their own."""
    op = _sum([one.whole for one in small])
    cells = (
        f"{len(small)} under {LITTLE:.0%}",
        str(op.repeat),
        *_amounts(op),
        *4 * ("",),
        seconds(op.bound_time_s),
        seconds(op.expected_time_s),
        f"{op.share:.1%}",
    )
    return Row(cells=cells, bound="")


def _total(total: Total) -> Row:
    cells = (
        "total",
        "",
        *_amounts(total),
        number(total.intensity),
        _short(total.attainable_ops_per_s),
        total.bound,
        "",
        seconds(total.bound_time_s),
        seconds(total.expected_time_s),
        "100%",
    )
    return Row(cells=cells, bound=total.bound)


def _amounts(of: OperatorResult | PerCall | Total) -> tuple[str, ...]:
    return tuple(_short(value) for value in (of.ops, of.weight_bytes, of.activation_bytes, of.kv_bytes))


def rate(value: float) -> str:
    """Four digits, or as many as it takes to write it out."""
    return f"{value:.4g}" if value < 999.95 else f"{value:,.0f}"


def number(value: float) -> str:
    """Three significant digits, no exponent below a million."""
    return f"{value:.0f}" if 100 <= value < 1e6 else f"{value:.3g}"


def _short(value: float) -> str:
    return si(value).replace(" ", "") if value else "-"
