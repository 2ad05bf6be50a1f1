"""The operator table of a phase as texts: what the screen, Markdown and HTML have in common."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from llmviewer.analyzing.analysis import Analysis
from llmviewer.analyzing.phases import OperatorResult, PerCall, Phase, Total
from llmviewer.lowering import Accounting
from llmviewer.units import seconds, si

COLUMNS: Final = (
    "operator", "x", "OPs", "weights", "activ.", "KV", "OP/B", "OP/s", "bound", "in", "time", "expect",
    "share",
)  # fmt: skip
_SUMS: Final = (
    "repeat", "ops", "bytes", "weight_bytes", "activation_bytes", "kv_bytes", "link_bytes", "conversion_ops",
    "bound_time_s", "expected_time_s", "expected_low_s", "expected_high_s", "share",
)  # fmt: skip
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
    title  what it is called so that no other is: its name, with its first block where others bear it
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
    bearers = Counter(parts[0].name for parts in found.values())
    return [
        Merged(
            parts=tuple(parts),
            whole=_sum(parts),
            title=f"{parts[0].name} ({parts[0].block})" if bearers[parts[0].name] > 1 else parts[0].name,
        )
        for parts in found.values()
    ]


def _sum(parts: Sequence[OperatorResult]) -> OperatorResult:
    first = parts[0]
    sums = {field: sum(getattr(op, field) for op in parts) for field in _SUMS if getattr(first, field) is not None}
    return replace(first, **sums) if len(parts) > 1 else first


def rows(phase: Phase, *, per_call: bool) -> list[Row]:
    """A line for each operator, of all its launches or of one, and one for the whole."""
    return [*(_operator(one, per_call=per_call) for one in merged(phase)), _total(phase.total)]


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
    return f"{value:.4g}" if value < 9999.5 else f"{value:,.0f}"


def number(value: float) -> str:
    """Three significant digits, no exponent below a million."""
    return f"{value:.0f}" if 100 <= value < 1e6 else f"{value:.3g}"


def _short(value: float) -> str:
    return si(value).replace(" ", "") if value else "-"
