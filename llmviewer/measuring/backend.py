"""What a backend is: kernels that can be launched on a machine, for the launches that are asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, inf
from typing import Any, Final, Protocol

from .problems import Problem
from .timing import Call, Clock, HungError

_SETS: Final = 256  # of tensors, at most
_BEYOND: Final = 8  # times the cache, that sets take together: caches do not drop the oldest first
_WITHIN: Final = 0.25  # of the cache
AT_ONCE: Final = 2**26  # elements that are looked at, which takes several copies of them in fp32
_FATAL: Final = (  # CUDA errors after which a process gets nothing more done: cudaError, in cudaGetErrorString's words
    "illegal memory access", "illegal instruction", "global/shared address space", "misaligned address",
    "invalid program counter", "unspecified launch failure", "launch timed out", "hardware stack error",
    "device-side assert", "uncorrectable ECC error",
)  # fmt: skip


class LaunchError(Exception):
    """A launch that gave no result, or a wrong one. No row is made of it."""


def breaks(error: Exception) -> bool:
    """Whether the device gives this process nothing more after it."""
    return isinstance(error, HungError) or any(fatal in str(error) for fatal in _FATAL)


class Backend(Protocol):
    """Kernels of one library on one device.

    framework  as tables of measurements call the library
    versions   of packages, and what else decides how fast it is
    """

    framework: str
    version: str
    versions: Mapping[str, str]
    clock: Clock

    def own(self) -> Sequence[Problem]:
        """Launches that no operator of a model is by itself."""

    def kernels(self, problem: Problem) -> Sequence[str]:
        """Those that solve a problem, by the names that tables have for them; none where it has none."""

    def check(self, problem: Problem, kernel: str) -> None:
        """A small case against a reference.

        Raises LaunchError where it is wrong.
        """

    def tilings(self, problem: Problem, kernel: str) -> Sequence[Any]:
        """A few other ways to cut its work up than the one that the kernel chooses by rule."""

    def room(self, problem: Problem, kernel: str, memory: float) -> int:
        """How many sets of its tensors so many bytes hold."""

    def calls(self, problem: Problem, kernel: str, sets: int, tiling: Any = None) -> Sequence[Call]:
        """Launches on so many sets of tensors of random numbers; each returns what it computed.

        tiling  one of `tilings`

        Raises LaunchError where that computes something else than the rule's.
        """

    def finite(self, outputs: Any) -> bool:
        """Whether all that a call returned is numbers."""


@dataclass(frozen=True, kw_only=True)
class Sets:
    """How often the tensors of a launch are there, for a benchmark to go round.

    loop  as tables of measurements have it: 0 where none is in the cache when its turn comes, else how many all are
    """

    count: int
    loop: int

    @classmethod
    def of(cls, nbytes: float, cache: float, room: int) -> Sets:
        """So many that the cache has none of them, or, where that takes too many, so few that it has all.

        nbytes  that are read and written of one of them
        room    for how many there is memory
        """
        most = min(_SETS, room)
        wanted = max(ceil(_BEYOND * cache / nbytes), 1)
        if wanted <= most or most * nbytes >= _BEYOND / 2 * cache:
            return cls(count=min(wanted, most), loop=0)
        within = max(min(most, int(_WITHIN * cache / nbytes)), 1)
        return cls(count=within, loop=within)


def compare(ours: Any, wanted: Any, relative: float, absolute: float) -> None:
    """Raises LaunchError where two tensors differ by more than a tolerance."""
    if ours.shape != wanted.shape:
        raise LaunchError(f"gives {tuple(ours.shape)} where its reference gives {tuple(wanted.shape)}")
    over = -inf
    for some, others in zip(ours.flatten().split(AT_ONCE), wanted.flatten().split(AT_ONCE), strict=True):
        found, due = some.float(), others.float()
        if not bool(found.isfinite().all()):
            raise LaunchError("gives what is no number")
        over = max(over, ((found - due).abs() - relative * due.abs()).max().item())
    if over > absolute:
        raise LaunchError(f"is off its reference by {over:.3g} above a relative {relative:.3g}")
