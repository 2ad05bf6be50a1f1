"""What the kernels of a step are expected to take, from the expectation at some shapes: over its bound, that is a line
between them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from ..expectation.network import Kernels
from ..forms import Num
from ..operators.attention import Attention
from ..roofline import Plan
from ..workload import Spans, Workload

_BATCHES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
_LENGTHS: Final = (16, 64, 256, 1024, 4096, 16384, 65536)
_TOKENS: Final = (1, 4, 16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048, 4096, 16384, 65536)


@dataclass(frozen=True)
class Paces:
    """The kernels of a setting, for steps of any mixture.

    plan, decode_plan  of steps that read, and of those that decode alone
    """

    kernels: Kernels
    plan: Plan
    decode_plan: Plan

    def decode_s(self, *, batch: Num, kv_len: Num) -> Num:
        """A step in which sequences decode alone. [s]"""
        bound = self.decode_plan.time_s(Workload((Spans(batch=batch, q_len=1.0, kv_len=kv_len),)))
        return bound * self._decode(batch, kv_len)

    def mixed_s(self, groups: tuple[Spans, ...]) -> Num:
        """A step that reads parts of prompts beside what decodes: attention to each of them by itself, all else by the
        tokens of all together. It is never below its bound, as no part is. [s]
        """
        tokens = sum(group.batch * group.q_len for group in groups)
        attention, others = self._parts
        found = others.time_s(Workload(groups)) * self._others(tokens, 1)
        for group in groups:
            found = found + attention.time_s(Workload((group,))) * self._attention(group)
        return found

    def _attention(self, group: Spans) -> Num:
        """What attention to it is expected to take over its bound: single tokens have kernels of their own."""
        once = np.less_equal(group.q_len, 1)
        if np.all(once):
            return self._attending(group.batch, group.kv_len)
        read = self._reading(group.q_len, group.kv_len)
        return np.where(once, self._attending(group.batch, group.kv_len), read) if np.any(once) else read

    @cached_property
    def _parts(self) -> tuple[Plan, Plan]:
        """Attention, and all else."""
        rows = self.plan.operators
        own = tuple(row for row in rows if isinstance(row.operator, Attention))
        return Plan(own), Plan(tuple(row for row in rows if not isinstance(row.operator, Attention)))

    @cached_property
    def _decode(self) -> Callable[[Num, Num], Num]:
        return self._grid(
            self.decode_plan, _BATCHES, _LENGTHS, lambda batch, length: Spans(batch=batch, q_len=1.0, kv_len=length)
        )

    @cached_property
    def _attending(self) -> Callable[[Num, Num], Num]:
        return self._grid(
            self._parts[0], _BATCHES, _LENGTHS, lambda batch, length: Spans(batch=batch, q_len=1.0, kv_len=length)
        )

    @cached_property
    def _reading(self) -> Callable[[Num, Num], Num]:
        return self._grid(
            self._parts[0], _LENGTHS, _LENGTHS,
            lambda part, end: Spans(batch=1.0, q_len=part, kv_len=np.maximum(part, end)),
        )  # fmt: skip

    @cached_property
    def _others(self) -> Callable[[Num, Num], Num]:
        return self._grid(
            self._parts[1], _TOKENS, (1, 2), lambda tokens, _: Spans(batch=1.0, q_len=tokens, kv_len=tokens)
        )

    def _grid(
        self, plan: Plan, rows: Sequence[int], columns: Sequence[int], of: Callable[[Num, Num], Spans]
    ) -> Callable[[Num, Num], Num]:
        """What is expected over the bound, by two numbers, between whose logarithms it is a line."""
        axes = tuple(np.array(axis, dtype=float) for axis in (rows, columns))
        first, second = (axis.ravel() for axis in np.meshgrid(*axes, indexing="ij"))
        workload = Workload((of(first, second),))
        bound = np.broadcast_to(plan.time_s(workload), first.shape)
        expected = np.ones(first.shape)
        if plan.operators:
            expected = np.broadcast_to(self.kernels.run(plan, workload).kernels.expected, first.shape)
        shape = tuple(map(len, axes))
        ratio = np.divide(expected, bound, out=np.ones(first.shape), where=bound > 0).reshape(shape)
        logs = tuple(map(np.log, axes))

        def pace(one: Num, other: Num) -> Num:
            row, part = _between(np.log(np.maximum(one, 1)), logs[0])
            column, rest = _between(np.log(np.maximum(other, 1)), logs[1])
            left, right = (ratio[row + i, column] * (1 - rest) + ratio[row + i, column + 1] * rest for i in (0, 1))
            found: Num = left * (1 - part) + right * part
            return found

        return pace


def _between(at: Num, places: npt.NDArray[np.float64]) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.float64]]:
    """The place on the left of each number, and how far it is from there to the next; the ends go no further."""
    column = np.asarray(np.interp(at, places, np.arange(len(places))))
    left = np.minimum(np.floor(column).astype(np.intp), len(places) - 2)
    return left, column - left
