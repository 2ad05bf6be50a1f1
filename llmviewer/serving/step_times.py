"""Bounds and expected times of steps with any mix of prompts and decoding sequences.

The ratio of expected time to bound is computed at some shapes, and interpolated linearly between them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cached_property, partial, reduce
from itertools import pairwise
from operator import add, attrgetter
from typing import Any, Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from ..expectation.expected import ExpectedPass
from ..expectation.kernels import Kernels
from ..forms import Num
from ..operators.attention import Attention
from ..records import frozen
from ..roofline import Plan, PlannedOperator
from ..workload import Spans, Workload
from .launch_tables import TabulatedPlan, is_single, remember

# Tiles, and kernels for few rows, end at powers of two: expected times jump just above them.
_BATCHES: Final = (1, 2, 4, 5, 8, 9, 16, 17, 32, 33, 64, 65, 96, 128, 129, 192, 193, 256, 257, 384, 512)
_LENGTHS: Final = (16, 64, 128, 255, 256, 512, 1024, 2048, 4096, 8192, 16384, 65536)
_TOKENS: Final = (
    1, 4, 5, 15, 16, 17, 32, 33, 48, 64, 65, 96, 97, 128, 129, 160, 192, 193, 256, 257, 320, 384, 385, 512, 513, 640,
    768, 769, 1024, 1025, 1280, 1536, 2048, 2049, 3072, 4096, 8192, 16384, 65536,
)  # fmt: skip

Groups = tuple[Spans, ...]
Axis = npt.NDArray[np.float64]


class _Launches(NamedTuple):
    """Launches of a step with prefills and decoding sequences, by the tokens that they process.

    all      launches for all tokens
    prefill  launches only for chunks of prompts, such as the expansion of latents
    decode   launches only for decoding sequences, such as attention to latents
    """

    all: TabulatedPlan
    prefill: TabulatedPlan
    decode: TabulatedPlan

    @classmethod
    def of(cls, *rows: Iterable[PlannedOperator]) -> Self:
        return cls(*(TabulatedPlan(Plan(tuple(each))) for each in rows))


@frozen
class BoundTimes:
    """Lower bounds of steps whose launches follow each other.

    plan         launches of steps with prefills
    decode_plan  launches of steps that only decode
    width        tokens of each decoding sequence in a step
    """

    plan: Plan
    decode_plan: Plan
    width: int

    def time_s(self, groups: Groups, *, decodes: bool = False) -> Num:
        """A step with chunks of prompts and decoding sequences; if it only `decodes`, one group of them. [s]"""
        if decodes:
            return self.decode_plan.time_s(Workload(groups))
        total_s = self._launches.all.time_s(groups)
        if self.decode_plan is self.plan:
            return total_s
        for launches, decoding in ((self._launches.prefill, False), (self._launches.decode, True)):
            if matching_groups := tuple(group for group in groups if self._all_decode(group) is decoding):
                total_s = total_s + _if_any(matching_groups, launches.time_s(matching_groups))
        return total_s

    def _decodes(self, group: Spans) -> Any:
        """Whether a sequence has so few new tokens that it runs on kernels for decoding."""
        return group.q_len <= self.width

    def _all_decode(self, group: Spans) -> bool:
        decodes = self._decodes(group)
        return decodes if isinstance(decodes, bool) else bool(decodes.all())

    @cached_property
    def _launches(self) -> _Launches:
        if self.decode_plan is self.plan:
            return _Launches.of(self.plan.operators, (), ())
        prefill_keys, decode_keys = ({_key(row) for row in each.operators} for each in (self.plan, self.decode_plan))
        return _Launches.of(
            (row for row in self.plan.operators if _key(row) in decode_keys),
            (row for row in self.plan.operators if _key(row) not in decode_keys),
            (row for row in self.decode_plan.operators if _key(row) not in prefill_keys),
        )


def _key(row: PlannedOperator) -> object:
    """Identity of a launch that steps with and without prefills share."""
    return row.block.name, row.operator.name, frozenset(row.busy_s.items())


def decoding_group(width: int, batch: Num, kv_len: Num) -> Spans:
    """Decoding sequences with `width` new tokens each, the first of which attends to `kv_len`."""
    return Spans(batch=batch, q_len=float(width), kv_len=kv_len + width - 1, logits=float(width))


def _if_any(groups: Groups, time_s: Num) -> Num:
    """Time of launches that do not run without sequences. [s]"""
    sequences = sum(group.batch for group in groups)
    if isinstance(sequences, float):
        return time_s if sequences > 0 else 0.0
    return np.where(np.greater(sequences, 0), time_s, 0.0)


@frozen
class ExpectedStepTimes(BoundTimes):
    """Expected times of the kernels of a setting; never below the bound.

    time_of  selects the time from an expected pass
    """

    kernels: Kernels
    time_of: Callable[[ExpectedPass], Num] = attrgetter("kernels.expected")

    @property
    def of_cores(self) -> ExpectedStepTimes:
        """Core time that the launches take from overlapped computation."""
        return replace(self, time_of=attrgetter("core_time_s"))

    def time_s(self, groups: Groups, *, decodes: bool = False) -> Num:
        """Attention separately for each group, other launches by the tokens of all groups. [s]"""
        if decodes:
            (group,) = groups
            return super().time_s(groups, decodes=True) * self._decode_ratio(group.batch, group.past + 1)
        tokens = reduce(add, [group.batch * group.q_len for group in groups])
        total_s = self._attention_apart.all.time_s(groups) * self._other_ratio(tokens, 1.0)
        attention = self._single_attention if is_single(groups) else self._attention
        for group in groups:
            total_s = total_s + attention(group)
        return total_s

    def _single_attention(self, group: Spans) -> Num:
        """Attention of a group of one step. Chunks of prompts recur, contexts of decoding sequences do not. [s]"""
        if self._decodes(group):
            bound = self._attention_apart.decode.time_s((group,)) if group.batch > 0 else 0.0
            return bound * self._decode_attention_ratio(group.batch, group.kv_len)
        key = group.batch, group.q_len, group.kv_len, group.logits
        if key not in self._prefill_attention:
            remember(self._prefill_attention, key, self._attention(group))
        return self._prefill_attention[key]

    @cached_property
    def _prefill_attention(self) -> dict[object, Num]:
        return {}

    def _attention(self, group: Spans) -> Num:
        """Attention of a group, and the launches only for prefills or only for decoding, which have own kernels. [s]"""
        decodes, all_decode = self._decodes(group), self._all_decode(group)
        launches = self._attention_apart.decode if all_decode else self._attention_apart.prefill
        bound = _if_any((group,), launches.time_s((group,)))
        if all_decode:
            return bound * self._decode_attention_ratio(group.batch, group.kv_len)
        prefill_ratio = self._prefill_attention_ratio(group.q_len, group.kv_len)
        if decodes is False or not np.any(decodes):
            return bound * prefill_ratio
        return bound * np.where(decodes, self._decode_attention_ratio(group.batch, group.kv_len), prefill_ratio)

    @cached_property
    def _attention_apart(self) -> _Launches:
        """The launches, with attention among those only for prefills and among those only for decoding."""
        rows, prefill, decode = (launches.plan.operators for launches in self._launches)
        attention, others = (
            tuple(row for row in rows if isinstance(row.operator, Attention) is attends) for attends in (True, False)
        )
        return _Launches.of(others, (*attention, *prefill), (*attention, *decode))

    @cached_property
    def _decode_ratio(self) -> _RatioGrid:
        return self._ratios(self.decode_plan, _BATCHES, _LENGTHS, partial(decoding_group, self.width))

    @cached_property
    def _decode_attention_ratio(self) -> _RatioGrid:
        return self._ratios(self._attention_apart.decode.plan, _BATCHES, _LENGTHS, partial(decoding_group, self.width))

    @cached_property
    def _prefill_attention_ratio(self) -> _RatioGrid:
        return self._ratios(
            self._attention_apart.prefill.plan, _LENGTHS, _LENGTHS,
            lambda q_len, kv_len: Spans(batch=1.0, q_len=q_len, kv_len=np.maximum(q_len, kv_len)),
        )  # fmt: skip

    @cached_property
    def _other_ratio(self) -> _RatioGrid:
        return self._ratios(
            self._attention_apart.all.plan, _TOKENS, (1, 2),
            lambda tokens, _: Spans(batch=1.0, q_len=tokens, kv_len=tokens),
        )  # fmt: skip

    def _ratios(
        self, plan: Plan, rows: Sequence[int], columns: Sequence[int], make_group: Callable[[Num, Num], Spans]
    ) -> _RatioGrid:
        """Ratios of expected time to bound over two axes."""
        axes = tuple(np.array(axis, dtype=float) for axis in (rows, columns))
        x, y = (axis.ravel() for axis in np.meshgrid(*axes, indexing="ij"))
        workload = Workload((make_group(x, y),))
        bound = np.broadcast_to(plan.time_s(workload), x.shape)
        expected = np.ones(x.shape)
        if plan.operators:
            expected = np.broadcast_to(self.time_of(self.kernels.expect_plan(plan, workload)), x.shape)
        ratios = np.divide(expected, bound, out=np.ones(x.shape), where=bound > 0)
        return _RatioGrid(axes[0], axes[1], ratios.reshape(len(rows), len(columns)))


class _RatioGrid:
    """Values over two axes, linear between the logarithms of their points and constant beyond them."""

    def __init__(self, x: Axis, y: Axis, values: Axis) -> None:
        self._axes = _LogAxis(x), _LogAxis(y)
        self._values, self._lists = values, values.tolist()

    def __call__(self, x: Num, y: Num) -> Num:
        x_axis, y_axis = self._axes
        row: Any
        column: Any
        row_fraction: Num
        column_fraction: Num
        if type(x) is type(y) is float:
            row, row_fraction = x_axis.single_position(x)
            column, column_fraction = y_axis.single_position(y)
            corners = [*self._lists[row][column : column + 2], *self._lists[row + 1][column : column + 2]]
        else:
            row, row_fraction = x_axis.position(x)
            column, column_fraction = y_axis.position(y)
            corners = [self._values[row + i, column + j] for i in (0, 1) for j in (0, 1)]
        left = corners[0] * (1 - column_fraction) + corners[1] * column_fraction
        right = corners[2] * (1 - column_fraction) + corners[3] * column_fraction
        ratio: Num = left * (1 - row_fraction) + right * row_fraction
        return ratio


class _LogAxis:
    """Logarithms of the points of an axis."""

    def __init__(self, points: Axis) -> None:
        self._logs = np.log(points)
        self._list = self._logs.tolist()
        self._positions: dict[object, tuple[int, float]] = {}
        self._slopes = [1.0 / (right - left) for left, right in pairwise(self._list)]

    def position(self, values: Num) -> tuple[npt.NDArray[np.intp], Axis]:
        """Index of the point left of each value, and the fraction of the way to the next; clamped at the ends."""
        place = np.asarray(np.interp(np.log(np.maximum(values, 1)), self._logs, np.arange(len(self._logs))))
        left = np.minimum(np.floor(place).astype(np.intp), len(self._logs) - 2)
        return left, place - left

    def single_position(self, value: float) -> tuple[int, float]:
        """position() of one value, without the overhead of arrays; whole numbers recur."""
        if not value.is_integer():
            return self._single_position(value)
        if value not in self._positions:
            remember(self._positions, value, self._single_position(value))
        return self._positions[value]

    def _single_position(self, value: float) -> tuple[int, float]:
        log, last = float(np.log(max(value, 1.0))), len(self._list) - 1
        left = bisect_right(self._list, log) - 1
        if left < 0:
            return 0, 0.0
        if left >= last:
            return last - 1, 1.0
        place = self._slopes[left] * (log - self._list[left]) + left  # as np.interp, to the last bit
        left = min(int(place), last - 1)
        return left, place - left
