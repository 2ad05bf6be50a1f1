"""`Backend`: kernels of a library that can be launched on a machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, inf
from typing import Any, Final, Protocol

from ..records import frozen
from .problems import Problem
from .timing import Call, Clock, HungError

_MAX_SETS: Final = 256  # most sets of tensors
_UNCACHED_RATIO: Final = 8  # size of all sets over the cache: caches do not evict the oldest data first
_CACHED_RATIO: Final = 0.25  # size of all sets over the cache, to stay in it
COMPARED_ELEMENTS: Final = 2**26  # elements compared at a time, in several fp32 copies
# CUDA errors after which a process can launch nothing more, in the words of cudaGetErrorString.
_FATAL_ERRORS: Final = (
    "illegal memory access",
    "illegal instruction",
    "global/shared address space",
    "misaligned address",
    "invalid program counter",
    "unspecified launch failure",
    "launch timed out",
    "hardware stack error",
    "device-side assert",
    "uncorrectable ECC error",
)


class LaunchError(Exception):
    """A launch without a result, or with a wrong one; it gives no row."""


def breaks(error: Exception) -> bool:
    """Whether the device is unusable for this process after `error`."""
    return isinstance(error, HungError) or any(fatal in str(error) for fatal in _FATAL_ERRORS)


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
    def of(cls, nbytes: float, cache: float, max_sets: int) -> Sets:
        """Enough sets that none stays cached, or, if that takes too many, so few that all do.

        nbytes  bytes of one set that a launch reads and writes
        max_sets  number of sets that fit in memory
        """
        max_count = min(_MAX_SETS, max_sets)
        uncached_count = max(ceil(_UNCACHED_RATIO * cache / nbytes), 1)
        if uncached_count <= max_count or max_count * nbytes >= _UNCACHED_RATIO / 2 * cache:
            return cls(count=min(uncached_count, max_count), loop=0)
        within = max(min(max_count, int(_CACHED_RATIO * cache / nbytes)), 1)
        return cls(count=within, loop=within)


def compare(ours: Any, reference: Any, relative: float, absolute: float) -> None:
    """Raises LaunchError if two tensors differ by more than a tolerance."""
    if ours.shape != reference.shape:
        raise LaunchError(f"its result has shape {tuple(ours.shape)}; its reference has {tuple(reference.shape)}")
    over = -inf
    for result_part, others in zip(
        ours.flatten().split(COMPARED_ELEMENTS), reference.flatten().split(COMPARED_ELEMENTS), strict=True
    ):
        result, due = result_part.float(), others.float()
        if not bool(result.isfinite().all()):
            raise LaunchError("its result is not finite")
        over = max(over, ((result - due).abs() - relative * due.abs()).max().item())
    if over > absolute:
        raise LaunchError(f"differs from its reference by {over:.3g} more than a relative error of {relative:.3g}")
