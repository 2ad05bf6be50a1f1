"""Bounds and expected times of steps with any mix of prompts and decoding sequences.

The ratio of expected time to bound is computed at some shapes, and interpolated linearly between them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from operator import attrgetter
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from ..expectation.expected import ExpectedPass
from ..expectation.kernels import Kernels
from ..forms import Num
from ..operators.attention import Attention
from ..records import frozen
from ..roofline import Plan, PlannedOperator
from ..workload import Spans, Workload

# Tiles, and kernels for few rows, end at powers of two: expected times jump just above them.
_BATCHES: Final = (1, 2, 4, 5, 8, 9, 16, 17, 32, 33, 64, 65, 96, 128, 129, 192, 193, 256, 257, 384, 512)
_LENGTHS: Final = (16, 64, 128, 255, 256, 512, 1024, 2048, 4096, 8192, 16384, 65536)
_TOKENS: Final = (
    1, 4, 5, 15, 16, 17, 32, 33, 48, 64, 65, 96, 97, 128, 129, 160, 192, 193, 256, 257, 320, 384, 385, 512, 513, 640,
    768, 769, 1024, 1025, 1280, 1536, 2048, 2049, 3072, 4096, 8192, 16384, 65536,
)  # fmt: skip

Groups = tuple[Spans, ...]


class _Shares(NamedTuple):
    """Launches of a step with prefills and decoding sequences: those for all its tokens, and those only for chunks of
    prompts or only for single tokens, such as latent attention, which expands the latents of prompts alone.
    """

    all: Plan
    read: Plan
    decode: Plan


@frozen
class BoundTimes:
    """Lower bounds of steps whose launches follow each other.

    plan, decode_plan  of steps with prefills, and of those that only decode
    width              tokens of each decoding sequence in a step
    """

    plan: Plan
    decode_plan: Plan
    width: int

    def time_s(self, groups: Groups, *, decodes: bool = False) -> Num:
        """A step with chunks of prompts and decoding sequences; if it only `decodes`, one group of them. [s]"""
        if decodes:
            return self.decode_plan.time_s(Workload(groups))
        total_s = self._shares.all.time_s(Workload(groups))
        if self.decode_plan is self.plan:
            return total_s
        for plan, decoding in ((self._shares.read, False), (self._shares.decode, True)):
            if matching_groups := tuple(group for group in groups if self._decodes(group) is decoding):
                total_s = total_s + _if_any(matching_groups, plan.time_s(Workload(matching_groups)))
        return total_s

    def _few(self, group: Spans) -> Any:
        """Whether a sequence has so few new tokens that it runs on kernels for decoding."""
        return np.less_equal(group.q_len, self.width)

    def _decodes(self, group: Spans) -> bool:
        return bool(self._few(group).all())

    @cached_property
    def _shares(self) -> _Shares:
        if self.decode_plan is self.plan:
            return _Shares(self.plan, Plan(()), Plan(()))
        mine, theirs = ({_key(row) for row in each.operators} for each in (self.plan, self.decode_plan))
        return _Shares(
            Plan(tuple(row for row in self.plan.operators if _key(row) in theirs)),
            Plan(tuple(row for row in self.plan.operators if _key(row) not in theirs)),
            Plan(tuple(row for row in self.decode_plan.operators if _key(row) not in mine)),
        )


def _key(row: PlannedOperator) -> object:
    """Identity of a launch that steps with and without prefills share."""
    return row.block.name, row.operator.name, frozenset(row.busy_s.items())


def decoding_group(width: int, batch: Num, kv_len: Num) -> Spans:
    """Decoding sequences with `width` new tokens each, the first of which attends to `kv_len`."""
    return Spans(batch=batch, q_len=float(width), kv_len=kv_len + width - 1, logits=float(width))


def _if_any(groups: Groups, time_s: Num) -> Num:
    """Time of launches that do not run without sequences. [s]"""
    return np.where(np.greater(sum(group.batch for group in groups), 0), time_s, 0.0)


@frozen
class ExpectedStepTimes(BoundTimes):
    """Expected times of the kernels of a setting.

    sought  the time that is read from each pass
    """

    kernels: Kernels
    sought: Callable[[ExpectedPass], Num] = attrgetter("kernels.expected")

    @property
    def of_cores(self) -> ExpectedStepTimes:
        """Core time that it takes from overlapped computation."""
        return replace(self, sought=attrgetter("core_time_s"))

    def time_s(self, groups: Groups, *, decodes: bool = False) -> Num:
        """Attention of each group by itself, others by the tokens of all groups; never below the bound. [s]"""
        if decodes:
            (group,) = groups
            return super().time_s(groups, decodes=True) * self._decode(group.batch, group.past + 1)
        tokens = sum(group.batch * group.q_len for group in groups)
        others = self._apart.all
        total_s = others.time_s(Workload(groups)) * self._others(tokens, 1)
        for group in groups:
            total_s = total_s + self._attention(group)
        return total_s

    def _attention(self, group: Spans) -> Num:
        """Attention of a group, and the launches only for its kind: single tokens have kernels of their own. [s]"""
        decodes = self._few(group)
        all_decode = decodes.all()
        plan = self._apart.decode if all_decode else self._apart.read
        bound = _if_any((group,), plan.time_s(Workload((group,))))
        if all_decode:
            return bound * self._attending(group.batch, group.kv_len)
        read = self._reading(group.q_len, group.kv_len)
        return bound * (np.where(decodes, self._attending(group.batch, group.kv_len), read) if decodes.any() else read)

    @cached_property
    def _apart(self) -> _Shares:
        """The shares, with attention among those only for prompts and only for single tokens."""
        shared, read, decode = self._shares
        attention, others = (
            tuple(row for row in shared.operators if isinstance(row.operator, Attention) is attends)
            for attends in (True, False)
        )
        return _Shares(Plan(others), Plan((*attention, *read.operators)), Plan((*attention, *decode.operators)))

    @cached_property
    def _decode(self) -> Callable[[Num, Num], Num]:
        return self._grid(self.decode_plan, _BATCHES, _LENGTHS, partial(decoding_group, self.width))

    @cached_property
    def _attending(self) -> Callable[[Num, Num], Num]:
        return self._grid(self._apart.decode, _BATCHES, _LENGTHS, partial(decoding_group, self.width))

    @cached_property
    def _reading(self) -> Callable[[Num, Num], Num]:
        return self._grid(
            self._apart.read, _LENGTHS, _LENGTHS,
            lambda part, end: Spans(batch=1.0, q_len=part, kv_len=np.maximum(part, end)),
        )  # fmt: skip

    @cached_property
    def _others(self) -> Callable[[Num, Num], Num]:
        return self._grid(
            self._apart.all, _TOKENS, (1, 2), lambda tokens, _: Spans(batch=1.0, q_len=tokens, kv_len=tokens)
        )

    def _grid(
        self, plan: Plan, rows: Sequence[int], columns: Sequence[int], make_group: Callable[[Num, Num], Spans]
    ) -> Callable[[Num, Num], Num]:
        """Ratio of expected time to bound, by two numbers, linear between their logarithms."""
        axes = tuple(np.array(axis, dtype=float) for axis in (rows, columns))
        first, second = (axis.ravel() for axis in np.meshgrid(*axes, indexing="ij"))
        workload = Workload((make_group(first, second),))
        bound = np.broadcast_to(plan.time_s(workload), first.shape)
        expected = np.ones(first.shape)
        if plan.operators:
            expected = np.broadcast_to(self.sought(self.kernels.expect_plan(plan, workload)), first.shape)
        shape = tuple(map(len, axes))
        ratio = np.divide(expected, bound, out=np.ones(first.shape), where=bound > 0).reshape(shape)
        logs = tuple(map(np.log, axes))

        def ratio_at(x: Num, y: Num) -> Num:
            row, row_fraction = _grid_position(np.log(np.maximum(x, 1)), logs[0])
            column, column_fraction = _grid_position(np.log(np.maximum(y, 1)), logs[1])
            left, right = (
                ratio[row + i, column] * (1 - column_fraction) + ratio[row + i, column + 1] * column_fraction
                for i in (0, 1)
            )
            interpolated: Num = left * (1 - row_fraction) + right * row_fraction
            return interpolated

        return ratio_at


def _grid_position(
    values: Num, places: npt.NDArray[np.float64]
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.float64]]:
    """The index to the left of each number, and its fraction of the way to the next; clamped at the ends."""
    column = np.asarray(np.interp(values, places, np.arange(len(places))))
    left = np.minimum(np.floor(column).astype(np.intp), len(places) - 2)
    return left, column - left
