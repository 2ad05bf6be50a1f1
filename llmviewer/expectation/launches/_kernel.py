"""The kernels that a library launches for operators."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ...forms import Num
from ...records import frozen
from ..families import FAMILIES, Implementation
from ..families._family import Array


@frozen(kw_only=True)
class LibraryKernel:
    """A kernel: its family, its library and its shapes, which are numbers or arrays over the workload.

    where   the workloads in which it runs
    instead another kernel for the same work in some of them, which runs if it takes less time
    apart   the same for one query at a time, which some libraries run, if it is of a few queries of each sequence
    hosted  whether messages go through the host although devices also have links of their own
    traffic whether no kernel of such work was measured, so that its bound and its bytes are all that is known
    """

    family: str
    implementation: Implementation
    shapes: Mapping[str, Num]
    where: Num = True
    instead: LibraryKernel | None = None
    apart: LibraryKernel | None = None
    hosted: bool = False
    traffic: bool = False

    @cached_property
    def identity(self) -> tuple[Hashable, ...]:
        """What distinguishes it from others, wherever each runs; in plain values, as they are compared often."""
        implementation, sizes = self.implementation, (_content(name, size) for name, size in self.shapes.items())
        return (
            self.family,
            implementation.library,
            implementation.dtype,
            implementation.kv_dtype,
            implementation.kernel,
            self.hosted,
            *sizes,
        )

    def columns(self, chosen: Array) -> dict[str, Array]:
        """The columns of its family for the workloads `chosen`; columns that are not given have the values of a single
        run.
        """
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

    cores    that its kernels occupy while anything travels
    start_s  for which they occupy all cores before and after that [s]
    reach    part of the links' bandwidth that they reach
    """

    cores: float
    start_s: float = 0.0
    reach: float = 1.0


@frozen(kw_only=True)
class KernelSequence:
    """Kernels that run one after another for some operators together.

    members  indices of the operators in their estimate
    kernels  none if no kernel is known; `remark` then says why
    beside   kernels that run at the same time
    sending  how they send, for a collective
    remark   what the measured kernels lack
    instead  the class of stand-ins that the kernels are of, if they were measured for other work; "" if not
    partial  whether the kernels are only a part of what runs, of the rest of which just the bound is known
    often    the part of passes in which they run at all, for operators that only some tokens reach
    """

    members: tuple[int, ...]
    kernels: tuple[LibraryKernel, ...] = ()
    beside: tuple[LibraryKernel, ...] = ()
    sending: Sending | None = None
    remark: str = ""
    instead: str = ""
    partial: bool = False
    often: Num = 1.0

    @cached_property
    def every(self) -> tuple[LibraryKernel, ...]:
        """All kernels that may run."""
        others = (other for kernel in self.kernels for other in (kernel.instead, kernel.apart) if other)
        return *self.kernels, *others, *self.beside


def _content(name: str, size: Num) -> Hashable:
    """What distinguishes a size of a shape from others."""
    return name, (size.dtype.char, size.tobytes()) if isinstance(size, np.ndarray) else size
