"""The kernels that a library launches for operators."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ...forms import Num
from ...records import frozen
from ..families import FAMILIES, Implementation
from ..families.base import Array


@frozen(kw_only=True)
class LibraryKernel:
    """A kernel: its family, its implementation and its shapes, which are numbers or arrays over the workload.

    where                the workloads in which it runs
    alternative          a kernel for the same work in some workloads, which runs if it takes less time
    per_query            the kernel for one query of each sequence at a time, where libraries run several queries so
    hosted               whether messages go through the host although devices also have links of their own
    memory_traffic_only  whether no kernel of such work was measured, so that only its bound and its bytes are known
    """

    family: str
    implementation: Implementation
    shapes: Mapping[str, Num]
    where: Num = True
    alternative: LibraryKernel | None = None
    per_query: LibraryKernel | None = None
    hosted: bool = False
    memory_traffic_only: bool = False

    @cached_property
    def identity(self) -> tuple[Hashable, ...]:
        """Key of the kernel, whatever the workloads in which it runs; plain values, which compare fast."""
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

    @cached_property
    def is_plain(self) -> bool:
        """Whether its experts have no gate."""
        return float(np.min(self.shapes.get("gated", 1.0))) == 0

    def columns(self, chosen: Array) -> dict[str, Array]:
        """The columns of its family for the workloads of the mask `chosen`; columns that are not given have the values
        of a single run.
        """
        family = FAMILIES[self.family]
        defaults = {**dict.fromkeys(family.columns, 0.0), **family.optional}
        count = np.count_nonzero(chosen)

        def column(value: Array) -> Array:
            if not value.ndim:
                return np.full(count, value)
            return (value if value.shape == chosen.shape else np.full(chosen.shape, value))[chosen]

        return {
            key: column(np.asarray(self.shapes.get(key, default), dtype=float)) for key, default in defaults.items()
        }


class Sending(NamedTuple):
    """Cores and links that a collective occupies, as far as they differ from its bound.

    cores    number of cores that its kernels occupy while a message travels
    start_s  time for which its kernels occupy all cores before and after that [s]
    reach    fraction of the links' bandwidth that is reached
    setup_s  time until a message travels, in which its kernels occupy `cores` [s]
    """

    cores: float
    start_s: float = 0.0
    reach: float = 1.0
    setup_s: Num = 0.0


@frozen(kw_only=True)
class KernelSequence:
    """Kernels that run one after another for some operators together.

    members          indices of the operators in their estimate
    kernels          empty if no kernel is known; `remark` then gives the reason
    concurrent       kernels that run at the same time
    sending          cores and links that a collective occupies; None for other operators
    remark           difference between the measured kernels and this work
    stand_in_class   class of stand-ins that the kernels belong to, if they were measured for other work, else ""
    partial          whether the kernels cover only some of the work, of the rest of which just the bound is known
    run_probability  fraction of passes in which the kernels run, for operators that only some tokens reach
    """

    members: tuple[int, ...]
    kernels: tuple[LibraryKernel, ...] = ()
    concurrent: tuple[LibraryKernel, ...] = ()
    sending: Sending | None = None
    remark: str = ""
    stand_in_class: str = ""
    partial: bool = False
    run_probability: Num = 1.0

    @cached_property
    def all_kernels(self) -> tuple[LibraryKernel, ...]:
        """All kernels that may run."""
        others = (other for kernel in self.kernels for other in (kernel.alternative, kernel.per_query) if other)
        return *self.kernels, *others, *self.concurrent


def _content(name: str, size: Num) -> Hashable:
    """Hashable content of a size of a shape."""
    return name, (size.dtype.char, size.tobytes()) if isinstance(size, np.ndarray) else size
