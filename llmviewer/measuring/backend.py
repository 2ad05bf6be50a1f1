"""`Backend`: kernels of a library that can be launched on a machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, inf
from typing import Any, Final, Protocol

from ..records import frozen
from .problems import Problem
from .timing import Call, Clock, HungError

_SETS: Final = 256  # most sets of tensors
_BEYOND: Final = 8  # size of all sets over the cache: caches do not evict the oldest data first
_WITHIN: Final = 0.25  # size of all sets over the cache, to stay in it
AT_ONCE: Final = 2**26  # elements compared at once, in several fp32 copies
_FATAL: Final = (  # CUDA errors after which a process gets nothing more done: cudaError, in cudaGetErrorString's words
    "illegal memory access", "illegal instruction", "global/shared address space", "misaligned address",
    "invalid program counter", "unspecified launch failure", "launch timed out", "hardware stack error",
    "device-side assert", "uncorrectable ECC error",
)  # fmt: skip


class LaunchError(Exception):
    """A launch without a result, or with a wrong one; it gives no row."""


def breaks(error: Exception) -> bool:
    """Whether the device is unusable for this process after `error`."""
    return isinstance(error, HungError) or any(fatal in str(error) for fatal in _FATAL)


class Backend(Protocol):
    """Kernels of one library on one device.

    framework  name of the library in tables of measurements
    versions   versions of packages, and other settings that affect speed
    """

    framework: str
    version: str
    versions: Mapping[str, str]
    clock: Clock

    def own(self) -> Sequence[Problem]:
        """Launches besides those of operators of models."""

    def kernels(self, problem: Problem) -> Sequence[str]:
        """Names, as in tables, of the kernels for a problem; empty if there are none."""

    def check(self, problem: Problem, kernel: str) -> None:
        """Checks a small case against a reference.

        Raises LaunchError if it is wrong.
        """

    def tilings(self, problem: Problem, kernel: str) -> Sequence[Any]:
        """A few tilings other than the one that the kernel chooses by rule."""

    def room(self, problem: Problem, kernel: str, memory: float) -> int:
        """Number of sets of its tensors that fit in `memory` bytes."""

    def calls(self, problem: Problem, kernel: str, sets: int, tiling: Any = None) -> Sequence[Call]:
        """Launches on `sets` sets of random tensors; each returns its outputs.

        tiling  one of `tilings`; None: that of the rule

        Raises LaunchError if the outputs differ from those of the rule's tiling.
        """

    def finite(self, outputs: Any) -> bool:
        """Whether all outputs of a call are finite."""


@frozen(kw_only=True)
class Sets:
    """Number of copies of the tensors of a launch, which a benchmark uses in turn.

    loop  as in tables of measurements: 0 if no set is cached when its turn comes, else the number of sets
    """

    count: int
    loop: int

    @classmethod
    def of(cls, nbytes: float, cache: float, room: int) -> Sets:
        """Enough sets that none stays cached, or, if that takes too many, so few that all do.

        nbytes  bytes of one set that a launch reads and writes
        room    number of sets that fit in memory
        """
        most = min(_SETS, room)
        wanted = max(ceil(_BEYOND * cache / nbytes), 1)
        if wanted <= most or most * nbytes >= _BEYOND / 2 * cache:
            return cls(count=min(wanted, most), loop=0)
        within = max(min(most, int(_WITHIN * cache / nbytes)), 1)
        return cls(count=within, loop=within)


def compare(ours: Any, wanted: Any, relative: float, absolute: float) -> None:
    """Raises LaunchError if two tensors differ by more than a tolerance."""
    if ours.shape != wanted.shape:
        raise LaunchError(f"its result has shape {tuple(ours.shape)}; its reference has {tuple(wanted.shape)}")
    over = -inf
    for some, others in zip(ours.flatten().split(AT_ONCE), wanted.flatten().split(AT_ONCE), strict=True):
        found, due = some.float(), others.float()
        if not bool(found.isfinite().all()):
            raise LaunchError("its result is not finite")
        over = max(over, ((found - due).abs() - relative * due.abs()).max().item())
    if over > absolute:
        raise LaunchError(f"differs from its reference by {over:.3g} more than a relative error of {relative:.3g}")
