"""Kernel libraries that are expected to be notably faster than the default."""

from __future__ import annotations

from typing import Final

import numpy as np

from ..expectation.expected import ExpectedPass
from ..records import frozen
from .evaluation import Evaluation
from .variant import Change, Variant

# Times as fast. More than other changes need: users rarely exchange their library, and what is expected of libraries
# with few measurements differs by chance.
_MIN_SPEED_UP: Final = 1.25
_UNMODELLED_TOLERANCE: Final = 0.01  # relative; by it the unmodelled time of a library may exceed that of the default


@frozen(kw_only=True)
class FasterLibrary:
    """The library with the shortest expected time of a phase, notably shorter than that of the default."""

    phase: str
    library: str
    expected_time_s: float
    speed_up: float


def faster_libraries(base: Evaluation) -> tuple[FasterLibrary, ...]:
    """The fastest library of each phase, if it is not the default; nothing if the user chose a library.

    Libraries with more unmodelled time than the default are left out, as they would look fast by their bounds.
    """
    setting = base.setting
    base.expect(*base.phases)
    default_passes = {phase: pass_ for phase in base.phases if (pass_ := base.expected_pass(phase))}
    if setting.library or not setting.kernels or not default_passes:
        return ()
    fastest: dict[str, FasterLibrary] = {}
    for library in setting.kernels.default_libraries[1:]:
        change = Change(name=library, group="library", options={"library": library})
        variant = Variant(changes=(change,), base=base, result=base.in_library(change.applied(setting)))
        variant.result.expect(*default_passes)
        for phase, pass_ in default_passes.items():
            library_pass, gain = variant.result.expected_pass(phase), variant.expected_pass_gain(phase)
            min_gain = fastest[phase].speed_up if phase in fastest else _MIN_SPEED_UP
            if (
                library_pass
                and gain
                and gain >= min_gain
                and _unmodelled_s(library_pass) <= _unmodelled_s(pass_) * (1 + _UNMODELLED_TOLERANCE)
            ):
                expected = variant.result.expected_pass_s(phase)
                assert expected
                fastest[phase] = FasterLibrary(
                    phase=phase, library=library, expected_time_s=float(expected.expected), speed_up=gain
                )
    return tuple(fastest[phase] for phase in base.phases if phase in fastest)


def _unmodelled_s(pass_: ExpectedPass) -> float:
    """Expected time of operators of which only the bound is known. [s]"""
    return float(np.sum(pass_.unmodelled_share * pass_.total.expected))
