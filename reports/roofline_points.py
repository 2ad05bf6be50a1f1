"""Rooflines and bars before they are drawn: roofs, points with labels, and pieces of bars."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from itertools import groupby
from math import isclose
from typing import Final, NamedTuple, Self

from llmviewer.analyzing.phases import OperatorResult, Phase
from llmviewer.devices.hardware import Hardware
from llmviewer.records import frozen
from llmviewer.resource import Resource, Unit
from llmviewer.transforms.offload import HOST
from llmviewer.units import seconds, si

from .operator_table import number, operator_id

_MAX_HOVER_NAMES: Final = 20  # of others, by name
OTHER: Final = 0.01  # share of time below which operators of a phase are put together
_COINCIDENCE: Final = 0.02  # points that differ by less fall together [of their value]
_LABEL_CHARS, _LABEL_LINES = 24, 3  # of the names of a point [characters], and how many
_PIECE_CHARS: Final = 11  # of a line of a name in a piece of a bar [characters]
_SPACE: Final = "\N{NO-BREAK SPACE}"


class Roof(NamedTuple):
    """Highest performance of a unit: min(rate, intensity x bandwidth). [OP/s, B/s]"""

    unit: Resource
    rate: float
    bandwidth: float

    @classmethod
    def of(cls, device: Hardware, unit: Resource) -> Self:
        return cls(unit, device.limit(unit), device.bandwidth())

    @property
    def ridge(self) -> float:
        """Intensity above which arithmetic is the bound. [OP/B]"""
        return self.rate / self.bandwidth

    @property
    def name(self) -> str:
        return f"{self.unit.dtype} {self.unit.unit}"


def roofs(phase: Phase, device: Hardware) -> list[Roof]:
    """The roof of the unit with most of the OPs, then those of other working units with another peak."""
    ops: dict[Resource, float] = {}
    for op in phase.operators:
        if is_on_host(op):
            continue
        unit = Resource(Unit(op.compute_unit), op.compute_dtype)
        ops[unit] = ops.get(unit, 0) + op.ops
    ranked = sorted((unit for unit in ops if ops[unit]), key=ops.__getitem__, reverse=True)
    main, *others = (Roof.of(device, unit) for unit in ranked)
    return [main, *(roof for roof in others if roof.rate != main.rate)]


def is_on_host(op: OperatorResult) -> bool:
    """Whether the host runs an operator, whose roof is another."""
    return op.limited_by.partition(" ")[2].startswith(HOST)


@frozen(kw_only=True)
class RooflinePoint:
    """Operators of one kind that coincide on a roofline."""

    operators: tuple[OperatorResult, ...]

    @property
    def kind(self) -> str:
        return self.operators[0].kind

    @property
    def bound(self) -> str:
        return self.operators[0].bound

    @property
    def share(self) -> float:
        return self.sum("share")

    @property
    def intensity(self) -> float:
        """Intensity of all operators together. [OP/B]"""
        return self.sum("ops") / self.sum("bytes")

    @property
    def attainable(self) -> float:
        """Performance at the bound of all operators together. [OP/s]"""
        return self.sum("ops") / self.sum("bound_time_s")

    @property
    def expected(self) -> float | None:
        """Expected performance of all operators together; None where only the bound is known. [OP/s]"""
        all_expected = all(op.expected_time_s is not None for op in self.operators)
        return self.sum("ops") / self.sum("expected_time_s") if all_expected else None

    @property
    def operator(self) -> str:
        """BLOCK.NAME of the operator with the largest share."""
        return operator_id(max(self.operators, key=lambda op: op.share))

    @property
    def label(self) -> str:
        """Names and share on a few narrow lines; many names are cut."""
        names = joined(op.name for op in self.operators).replace(" ", _SPACE).replace("/", "/ ")
        lines = textwrap.wrap(names, _LABEL_CHARS, max_lines=_LABEL_LINES, placeholder="\N{HORIZONTAL ELLIPSIS}")
        return f"{'<br>'.join(lines).replace('/ ', '/')}{_SPACE}{self.share:.0%}"

    @property
    def lines(self) -> int:
        """Number of lines of the label."""
        return 1 + self.label.count("<br>")

    def sum(self, field: str) -> float:
        return float(sum(getattr(op, field) for op in self.operators))

    def alike(self, op: OperatorResult) -> bool:
        one = self.operators[0]
        return (op.kind, op.bound) == (one.kind, one.bound) and all(
            isclose(a, b, rel_tol=_COINCIDENCE)
            for a, b in ((op.intensity, one.intensity), (op.attainable_ops_per_s, one.attainable_ops_per_s))
        )

    def hover(self, phase: str) -> str:
        names = [f"{op.name} × {op.repeat}" for op in self.operators]
        lines = [", ".join(names[i : i + 3]) for i in range(0, len(names), 3)]
        moved = (("weights", "weight_bytes"), ("activations", "activation_bytes"), ("KV cache", "kv_bytes"))
        parts = ", ".join(f"{name} {si(self.sum(field))}B" for name, field in moved if self.sum(field))
        limits = ", ".join(dict.fromkeys(op.limited_by for op in self.operators))
        return "<br>".join(
            (
                f"<b>{',<br>'.join(lines)}</b> ({self.kind}{', together' if len(names) > 1 else ''})",
                f"{si(self.sum('ops'))}OP, {si(self.sum('bytes'))}B: {parts}",
                f"{number(self.intensity)} OP/B, attainable {si(self.attainable)}OP/s",
                f"{self.bound}-bound, by {limits}",
                f"{seconds(self.sum('bound_time_s'))}, {self.share:.1%} of {phase}" + self._expectation(),
            )
        )

    def _expectation(self) -> str:
        if self.expected is None:
            return ""
        regimes = ", ".join(dict.fromkeys(op.regime for op in self.operators if op.regime))
        return f"<br>expected {seconds(self.sum('expected_time_s'))} ({regimes}), {si(self.expected)}OP/s"


def points(phase: Phase) -> list[RooflinePoint]:
    """The operators with OPs that are not bound by a link, coinciding ones as one, the largest share of time first."""
    groups: list[RooflinePoint] = []
    for op in phase.operators:
        if op.ops and op.bound != "link" and not is_on_host(op):
            home = next((i for i, point in enumerate(groups) if point.alike(op)), None)
            if home is None:
                groups.append(RooflinePoint(operators=(op,)))
            else:
                groups[home] = RooflinePoint(operators=(*groups[home].operators, op))
    return sorted(groups, key=lambda point: point.share, reverse=True)


def about(phase: Phase) -> str:
    """The phase, its time, and its operators that are no points."""
    tokens = f"{phase.q_len} token{'s'[: phase.q_len > 1]}"
    without = {
        "no OPs": joined(op.name for op in phase.operators if not op.ops and op.bound != "link"),
        "on the link": joined(op.name for op in phase.operators if op.bound == "link"),
        "on the host": joined(op.name for op in phase.operators if op.ops and is_on_host(op)),
    }
    left_out = ", ".join(f"{names} ({why})" for why, names in without.items() if names)
    time = seconds(phase.total.bound_time_s)
    return f"batch {phase.batch}, {tokens} at a context of {phase.kv_len}, >= {time}" + (
        f"; not shown: {left_out}" if left_out else ""
    )


def joined(names: Iterable[str]) -> str:
    """Names, those with the same last word together.

    >>> joined(["q_proj", "k_proj", "attention"])
    'q/k_proj, attention'
    """
    heads: dict[str, list[str]] = {}
    for name in dict.fromkeys(names):
        head, line, tail = name.rpartition("_")
        heads.setdefault(line + tail, []).append(head)
    return ", ".join("/".join(firsts) + tail for tail, firsts in heads.items())


@frozen(kw_only=True)
class Piece:
    """A part of a phase's bar, `share` long from `start`: operators of one name, or small ones together.

    operator    BLOCK.NAME of the one with the largest share; "" of small ones together
    kind        kind of the one with the largest share
    expected_s  expected time; None where only the bound is known
    """

    row: str
    name: str
    operator: str
    kind: str
    bound: str
    start: float
    share: float
    expected_s: float | None
    text: str
    hover: str


def pieces(phase: Phase, row: str) -> list[Piece]:
    """The operators of a phase as parts of its bar, grouped by bound, that with the most time first.

    Small ones are those with less than OTHER of the time, at the bound and as expected.
    """
    operators_by_key: dict[tuple[str, str], list[OperatorResult]] = {}
    for op in sorted(phase.operators, key=lambda op: -op.share):
        operators_by_key.setdefault((op.bound, op.name), []).append(op)
    shares = {key: sum(op.share for op in ops) for key, ops in operators_by_key.items()}
    by_bound, expected_total_s = phase.total.time_by_bound_s, phase.total.expected_time_s
    expected_s = {key: sum(op.expected_time_s or 0.0 for op in ops) for key, ops in operators_by_key.items()}
    small = {
        key for key, share in shares.items()
        if share < OTHER and (not expected_total_s or expected_s[key] < OTHER * expected_total_s)
    }  # fmt: skip
    ranked = sorted(operators_by_key, key=lambda key: (-by_bound[key[0]], key[0], key in small, -shares[key]))
    bars: list[Piece] = []
    start = 0.0
    for (bound, name), keys in groupby(ranked, key=lambda key: (key[0], "" if key in small else key[1])):
        keys_of_piece = list(keys)
        share = sum(shares[key] for key in keys_of_piece)
        times = [(key[1], sum(op.bound_time_s for op in operators_by_key[key])) for key in keys_of_piece]
        times_expected = [op.expected_time_s for key in keys_of_piece for op in operators_by_key[key]]
        expected = None if None in times_expected else sum(filter(None, times_expected))
        hover = f"<b>{name or 'other'}</b>: {seconds(sum(s for _, s in times))}, {share:.1%}, {bound}-bound"
        hover += "".join(f"<br>{each} {seconds(time_s)}" for each, time_s in times[:_MAX_HOVER_NAMES] if not name)
        hover += f"<br>and {len(times) - _MAX_HOVER_NAMES} more" if len(times) > _MAX_HOVER_NAMES else ""
        text = f"{_narrow(name or 'other')}<br>{share:.0%}"
        largest = operators_by_key[keys_of_piece[0]][0]
        bars.append(Piece(
            row=row, name=name or "other", operator=operator_id(largest) if name else "", kind=largest.kind,
            bound=bound, start=start, share=share,
            expected_s=expected, text=text, hover=hover,
        ))  # fmt: skip
        start += share
    return bars


def _narrow(name: str) -> str:
    """A name that goes on in the next line behind an underscore, where it is long.

    >>> _narrow("down_proj"), _narrow("expert_down_proj")
    ('down_proj', 'expert_<br>down_proj')
    """
    return "<br>".join(textwrap.wrap(name.replace("_", "_ "), _PIECE_CHARS)).replace("_ ", "_")
