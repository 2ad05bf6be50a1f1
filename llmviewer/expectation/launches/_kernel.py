"""The kernels that a library runs for operators."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ...forms import Num
from ..families import FAMILIES, Stack
from ..families._family import Array


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """One kernel: its family, whose it is and its shapes, as numbers or arrays over the workload.

    where   the workloads in which it is what is run
    instead another kernel that does the same work in some of them, run where it takes less time
    hosted  whether messages go over the links of a host, where devices have others too
    """

    family: str
    stack: Stack
    shapes: Mapping[str, Num]
    where: Num = True
    instead: Kernel | None = None
    hosted: bool = False

    @cached_property
    def identity(self) -> tuple[Hashable, ...]:
        """What tells it from others, wherever each is run; in plain values, which are compared often."""
        stack, sizes = self.stack, (_content(name, size) for name, size in self.shapes.items())
        return self.family, stack.library, stack.dtype, stack.kv_dtype, stack.kernel, self.hosted, *sizes

    def columns(self, chosen: Array) -> dict[str, Array]:
        """The columns of its family in the workloads `chosen`; what is not said is as it is where nothing repeats."""
        family = FAMILIES[self.family]
        wanted = {**dict.fromkeys(family.columns, 0.0), **family.optional}
        columns = {key: np.asarray(self.shapes.get(key, usual), dtype=float) for key, usual in wanted.items()}
        count = np.count_nonzero(chosen)
        return {
            key: np.broadcast_to(column, chosen.shape)[chosen] if column.ndim else np.full(count, column)
            for key, column in columns.items()
        }


class Sending(NamedTuple):
    """How a collective sends, as far as that differs from its bound.

    cores    that its kernels take as long as anything travels
    start_s  how long they take all cores before anything does, and after [s]
    reach    part of the links that they use
    """

    cores: float
    start_s: float = 0.0
    reach: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Launch:
    """Kernels that run one after another for some operators together.

    members  places of the operators in their estimate
    kernels  none where no kernel is known: then `remark` is why
    beside   those that run at the same time as they do
    sending  how they send, where they are a collective
    remark   what the kernels that were measured do not have
    partial  whether they are a part of what is run, of the rest of which no more than its bound is known
    often    the part of passes in which they run at all: where some tokens alone come, there may be none
    """

    members: tuple[int, ...]
    kernels: tuple[Kernel, ...] = ()
    beside: tuple[Kernel, ...] = ()
    sending: Sending | None = None
    remark: str = ""
    partial: bool = False
    often: Num = 1.0

    @cached_property
    def every(self) -> tuple[Kernel, ...]:
        """All kernels that it may run."""
        instead = (kernel.instead for kernel in self.kernels if kernel.instead)
        return *self.kernels, *instead, *self.beside


def _content(name: str, size: Num) -> Hashable:
    """What tells a size of a shape from others."""
    return name, (size.dtype.char, size.tobytes()) if isinstance(size, np.ndarray) else size
