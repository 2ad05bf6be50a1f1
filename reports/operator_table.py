"""The table of a phase's operators: one row for operators that are the same in several blocks."""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from math import inf
from typing import Any, Final, NamedTuple

import click

from llmviewer.analyzing.analysis import Analysis
from llmviewer.analyzing.phases import OperatorResult, PerCall, Phase, Total
from llmviewer.parameters import Accounting
from llmviewer.records import frozen
from llmviewer.units import seconds, si

from .columns import WIDTH, columns
from .tables import BOUND_COLOR, Conclusion, Heading, Item, Table, filled

HEADINGS: Final = {  # names and meanings of columns, where there is room
    "operator": Heading("operator", ""),
    "x": Heading("\N{MULTIPLICATION SIGN}", "launches in one pass; +: in the launch of the row above"),
    "OPs": Heading("OPs", "arithmetic; a multiply-add is two OPs"),
    "weights": Heading("weights [B]", "bytes of weights moved"),
    "activ.": Heading("activations [B]", "bytes of activations moved"),
    "KV": Heading("KV cache [B]", "bytes of KV cache moved"),
    "OP/B": Heading("OP/B", "arithmetic intensity"),
    "OP/s": Heading("attainable [OP/s]", "arithmetic over the lower bound of time"),
    "bound": Heading("bound", "resource that sets the lower bound"),
    "in": Heading("computed in", "data type that this device computes in"),
    "time": Heading("time", "lower bound"),
    "expected": Heading("expected", "expected time, from measured kernels"),
    "share": Heading("share", "of the phase's time"),
}
COLUMNS: Final = tuple(HEADINGS)
WORDS: Final = ("operator", "bound", "in")  # columns of words
SMALL_SHARE: Final = 0.01  # share of time below which a long table may leave operators out

_SUMS: Final = (
    "repeat", "ops", "bytes", "weight_bytes", "activation_bytes", "kv_bytes", "link_bytes", "conversion_ops",
    "bound_time_s", "expected_time_s", "expected_low_s", "expected_high_s", "share",
)  # fmt: skip
_MAX_FULL_ROWS: Final = 24  # operators
# Column names of a text: lower bounds of times are marked as such.
_SHORT_HEADS: Final = {"weights": "wts.", "activ.": "act.", "time": ">=time"}
_NAME_COLUMNS: Final = 12  # columns left for names, below which numbers are written closer
_MIN_NAME_COLUMNS: Final = 8  # columns of names, however little room there is


@frozen(kw_only=True, eq=False, repr=False)  # which would slow down the start of analyze
class OperatorTable(Table):
    """The operators of a phase.

    shortened  rows of a text in place of all, where a long table has one line for small operators
    """

    shortened: tuple[tuple[Item, ...], ...] = ()

    def text_rows(self) -> list[tuple[Item, ...]]:
        return [*(self.shortened or self.body), self.total]

    def text(self, width: int = WIDTH, table_width: int = sys.maxsize) -> str:
        names, cells = self._narrow(table_width)
        lines: list[list[str]] = []
        heads = _fitted([name for name, *_ in cells], table_width - _width_without_names(cells))
        for (first, *continuation), (_, *numbers) in zip(heads, cells, strict=True):
            lines += [[first, *numbers], *([text, *len(numbers) * [""]] for text in continuation)]

        def style(line: int, column: int, text: str) -> str:
            if line == 0:
                return click.style(text, dim=True)
            color = BOUND_COLOR.get(text.strip()) if names[column] == "bound" else None
            total = line == len(lines) - 1
            return click.style(text, fg=color, bold=total) if color or total else text

        body = columns(lines, left=[names.index(name) for name in WORDS], gap=" ", style=style)
        return f"{click.style(filled(self.title, width), bold=True)}\n{body}{self.below(width)}"

    def _narrow(self, table_width: int) -> tuple[list[str], list[list[str]]]:
        """Columns of a text and its rows, the head first, written closer where there is little room."""
        unknown = self.total[COLUMNS.index("expected")].text == seconds(None)
        omitted_column = "expected" if unknown else "OP/s"  # there is no room for both
        names = [name for name in COLUMNS if name != omitted_column]
        indices = [COLUMNS.index(name) for name in names]
        cells = [[line[index] for index in indices] for line in self.lines()]
        if "expected" in names or _width_without_names(cells) > table_width - _NAME_COLUMNS:
            cells = [[name, *(_SHORT_HEADS.get(text, text.replace(" ", "")) for text in line)] for name, *line in cells]
        return names, cells


class Merged(NamedTuple):
    """An operator whose launches are the same in several blocks.

    parts  the operator in each block
    total  all its launches, as one operator of the first block
    title  a unique name: its own, with its blocks where several rows have that name
    """

    parts: tuple[OperatorResult, ...]
    total: OperatorResult
    title: str


def operator_table(
    phase: Phase, *, title: str, subject: str, conclusion: str, per_call: bool, brief: bool
) -> OperatorTable:
    """The table of a phase.

    subject     name of the phase
    conclusion  sentence on what bounds the phase
    per_call    amounts and times of one launch of an operator, instead of all its launches
    brief       a text of a long table has one line for all small operators
    """
    *body, total = rows(phase, per_call=per_call)
    *shortened, _ = rows(phase, per_call=per_call, brief=brief)
    return OperatorTable(
        title=title, about="", head=COLUMNS, words=WORDS, body=tuple(body), total=total, shortened=tuple(shortened),
        headings=HEADINGS, conclusion=Conclusion(subject, phase.total.bound, conclusion),
    )  # fmt: skip


def operator_id(op: OperatorResult) -> str:
    """BLOCK.NAME, unique in a graph."""
    return f"{op.block}.{op.name}"


def merged(phase: Phase) -> list[Merged]:
    """The operators of a phase, in launch order, with those that are the same in several blocks as one.

    Tables show them so; JSON and CSV have each block's.
    """
    equal_operators: dict[tuple[object, ...], list[OperatorResult]] = {}
    for op in phase.operators:
        equal_operators.setdefault((op.name, op.kind, op.per_call, op.limited_by, op.expectation_source), []).append(op)
    blocks: dict[str, list[list[str]]] = {}
    for parts in equal_operators.values():
        blocks.setdefault(parts[0].name, []).append([op.block for op in parts])
    return [
        Merged(parts=tuple(parts), total=_sum(parts), title=_title(parts, blocks[parts[0].name]))
        for parts in equal_operators.values()
    ]


def _title(parts: Sequence[OperatorResult], rows: Sequence[Sequence[str]]) -> str:
    """The name alone if no other row has it; else with the blocks of this row.

    rows  blocks of each row with that name
    """
    name, blocks = parts[0].name, [op.block for op in parts]
    if len(rows) == 1:
        return name
    return f"{name} ({_common(blocks, [block for row in rows if row != blocks for block in row])})"


def _common(blocks: Sequence[str], others: Sequence[str]) -> str:
    """Words in the names of all `blocks` and of no other; else the first block and the number of the rest.

    >>> _common(["local_dense", "local_moe"], ["global_moe"]), _common(["local", "global"], ["local_cut"])
    ('local', 'local +1')
    """
    first, *following_blocks = blocks
    words = [word for word in first.split("_") if all(word in block.split("_") for block in blocks)]
    if not following_blocks or not words or any(set(words) <= set(block.split("_")) for block in others):
        return f"{first} +{len(following_blocks)}" if following_blocks else first
    return "_".join(words)


def _sum(parts: Sequence[OperatorResult]) -> OperatorResult:
    """All parts as one operator; a field that is unknown for one is unknown for all."""
    if len(parts) == 1:
        return parts[0]
    values = {field: [getattr(op, field) for op in parts] for field in _SUMS}
    sums: dict[str, Any] = {field: None if None in each else sum(each) for field, each in values.items()}
    return replace(parts[0], **sums)


def rows(phase: Phase, *, per_call: bool, brief: bool = False) -> list[tuple[Item, ...]]:
    """Rows of the operators, in the order of COLUMNS, and one for the whole phase.

    per_call  amounts and times of one launch, instead of all launches
    brief     a long table has one row for all operators that take little of the time
    """
    table = merged(phase)
    small_operators = _small_operators(table, phase.total) if brief else []
    body = [(place, one) for place, one in enumerate(table) if one not in small_operators]
    items = [_operator(place, one, per_call=per_call) for place, one in body]
    return [*items, *([_summary_row(small_operators)] if small_operators else []), _total(phase.total)]


def shortens(phase: Phase) -> bool:
    """Whether the brief table of a phase omits operators."""
    return bool(_small_operators(merged(phase), phase.total))


def _small_operators(table: Sequence[Merged], total: Total) -> list[Merged]:
    """Operators of a long table that take little of the time, both at the bound and as expected."""

    def is_small(op: OperatorResult) -> bool:
        expected = (op.expected_time_s or 0) < SMALL_SHARE * (total.expected_time_s or inf)
        return op.share < SMALL_SHARE and expected

    return [one for one in table if is_small(one.total)] if len(table) > _MAX_FULL_ROWS else []


def shows_calls(analysis: Analysis, per_call: bool | None) -> bool:
    """Whether amounts are of one launch: as `per_call` says; by default only in survey accounting, as in its paper."""
    return analysis.setting.accounting is Accounting.SURVEY if per_call is None else per_call


def computed_in(op: OperatorResult) -> str:
    """The data type of its arithmetic; "-" without arithmetic, and where a link bounds it."""
    return op.compute_dtype if op.ops and op.bound != "link" else "-"


def expected_s(op: OperatorResult, *, per_call: bool) -> float | None:
    """Expected time of all launches of an operator, or of one."""
    return op.expected_time_s / op.repeat if per_call and op.expected_time_s is not None else op.expected_time_s


def _is_counted_before(op: OperatorResult) -> bool:
    """Whether another operator begins the launch that runs it, which may be one of the layer before."""
    return bool(op.shared_launch) and op.shared_launch.partition("+")[0] != op.name


def _operator(place: int, merged: Merged, *, per_call: bool) -> tuple[Item, ...]:
    op = merged.total
    amounts = op.per_call if per_call else op
    time_s = expected_s(op, per_call=per_call)
    return (
        Item(text=merged.title, key=place),
        Item(text="+" if _is_counted_before(op) else str(op.repeat), key=op.repeat),
        *_amounts(amounts),
        Item(text=number(op.intensity), key=op.intensity),
        Item(text=_compact(op.attainable_ops_per_s), key=op.attainable_ops_per_s),
        Item(text=op.bound, bound=op.bound),
        Item(text=computed_in(op)),
        Item(text=seconds(amounts.bound_time_s), key=amounts.bound_time_s),
        Item(text=seconds(time_s), key=time_s or 0),
        Item(text=f"{op.share:.1%}", key=op.share),
    )


def _summary_row(operators: Sequence[Merged]) -> tuple[Item, ...]:
    """The row of all launches of small operators."""
    op = _sum([one.total for one in operators])
    return (
        Item(text=f"{len(operators)} under {SMALL_SHARE:.0%}"),
        Item(text=str(op.repeat)),
        *_amounts(op),
        *4 * (Item(text=""),),
        Item(text=seconds(op.bound_time_s)),
        Item(text=seconds(op.expected_time_s)),
        Item(text=f"{op.share:.1%}"),
    )


def _total(total: Total) -> tuple[Item, ...]:
    return (
        Item(text="total"),
        Item(text=""),
        *_amounts(total),
        Item(text=number(total.intensity)),
        Item(text=_compact(total.attainable_ops_per_s)),
        Item(text=total.bound, bound=total.bound),
        Item(text=""),
        Item(text=seconds(total.bound_time_s)),
        Item(text=seconds(total.expected_time_s)),
        Item(text="100%"),
    )


def _amounts(source: OperatorResult | PerCall | Total) -> tuple[Item, ...]:
    amounts = (source.ops, source.weight_bytes, source.activation_bytes, source.kv_bytes)
    return tuple(Item(text=_compact(amount), key=amount) for amount in amounts)


def rate(value: float) -> str:
    """Four significant digits; from 1000 on, all digits of the integer part."""
    return f"{value:.4g}" if value < 999.95 else f"{value:,.0f}"


def number(value: float) -> str:
    """Three significant digits, no exponent below a million."""
    return f"{value:.0f}" if 100 <= value < 1e6 else f"{value:.3g}"


def _compact(value: float) -> str:
    return si(value).replace(" ", "") if value else "-"


def _width_without_names(cells: Sequence[Sequence[str]]) -> int:
    """Columns that a text needs beside those of the names."""
    return sum(1 + max(map(len, column)) for column in zip(*(line[1:] for line in cells), strict=True))


def _fitted(names: Sequence[str], width: int) -> list[list[str]]:
    """The lines of each name within `width`.

    A name that begins with the one above, or with the last one in full, shows the rest of it, indented.

    >>> _fitted(["o_proj", "o_proj_lora_in", "o_proj_lora_out", "logits_all_gather"], 12)
    [['o_proj'], ['  lora_in'], ['  lora_out'], ['logits_all_', ' gather']]
    """
    if max(map(len, names)) <= width:
        return [[name] for name in names]
    width = max(width, _MIN_NAME_COLUMNS)
    lines = []
    full = ""
    for before, name in pairwise(("", *names)):
        above = next((one for one in (before, full) if one and name.startswith(f"{one}_")), "")
        lines.append(_broken(f"  {name.removeprefix(f'{above}_')}" if above else name, width))
        full = full if above else name
    return lines


def _broken(name: str, width: int) -> list[str]:
    """The lines of a name, broken at spaces and after underscores and commas."""
    if len(name) <= width:
        return [name]
    indent = len(name) - len(name.lstrip()) + 1
    spaced = re.sub(r"([_,])(?=.)", r"\1 ", name)
    lines = textwrap.wrap(spaced, width, subsequent_indent=indent * " ", break_on_hyphens=False)
    return [re.sub(r"([_,]) ", r"\1", line) for line in lines]
