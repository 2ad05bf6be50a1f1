"""Kernel libraries that are expected to be notably faster than the default."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from ..setting import Setting
from ..workload import Workload
from .phases import Phases

_NOTABLY: Final = 1.25  # times as fast
_SLACK: Final = 0.01  # relative; by it the unmodelled time of a library may exceed that of the default


@dataclass(frozen=True, kw_only=True)
class Faster:
    """The library with the shortest expected time of a phase, notably shorter than that of the default."""

    phase: str
    library: str
    expected_time_s: float
    speed_up: float


def faster(setting: Setting, phases: Phases, workloads: Mapping[str, Workload], batch: int) -> tuple[Faster, ...]:
    """For each phase the fastest library, if it is not the default; nothing if the user chose a library.

    Libraries with more unmodelled time than the default are left out, as they would look fast by their bounds.
    """
    if setting.library or not setting.kernels:
        return ()
    others = [(name, replace(setting, library=name).kernels) for name in setting.kernels.usual[1:]]
    found: dict[str, Faster] = {}
    for name, phase in phases:
        workload, usual, share = workloads[name], phase.expected_time_s, phase.total.unmodelled_share
        if usual is None or share is None or phase.total.expected_time_s is None:
            continue
        least = usual / _NOTABLY
        rows = [row for row in setting.plan_of(name).estimate(workload).operators if row.time_s > 0]
        most = share * phase.total.expected_time_s
        for library, kernels in others:
            assert kernels is not None  # accounting is faithful
            made = kernels.expect(rows, workload)
            alone = float(made.unmodelled_share[0] * np.sum(made.total.expected))
            time_s, *_ = setting.expected(name, made, batch).numbers()
            if alone <= most * (1 + _SLACK) and time_s <= least:
                least = time_s
                found[name] = Faster(phase=name, library=library, expected_time_s=time_s, speed_up=usual / time_s)
    return tuple(found.values())
