"""Effect of a quantization on bounds: operators that it leaves memory-bound or compute-bound, or moves between them.

Source: arXiv:2402.16363, section 3.1.1: memory to memory gains as bytes shrink, memory to compute in part, compute to
compute nothing unless a unit multiplies the narrower type faster.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from ..errors import InputError
from ..records import frozen
from ..variants.evaluation import Evaluation

TOTAL: Final = "generation"  # all passes of a generation, beside its phases


@frozen(kw_only=True)
class BoundShift:
    """Operators with the bound `before` in the published precision and `after` in the chosen one.

    before, after  "memory", "compute" or "link"
    share          share of the time at the bound in the published precision
    """

    before: str
    after: str
    share: float


@frozen(kw_only=True)
class PrecisionEffect:
    """Effect of a precision on a phase.

    speed_up  time at the bound in the published precision over that in the chosen one
    shifts    largest share first
    """

    speed_up: float
    shifts: tuple[BoundShift, ...]


def precision_effect(evaluation: Evaluation) -> dict[str, PrecisionEffect] | None:
    """The effect of the precision by phase, and on all of the generation.

    None in the published precision, and where that cannot be evaluated.
    """
    setting = evaluation.setting
    published = setting.model.quantization
    if str(setting.quantization) == str(published):
        return None
    others = tuple(one for one in setting.techniques if not one.quant)
    base = evaluation.changed(replace(setting, techniques=others, quantization=published, unnamed=None))
    try:
        base.setting.plan  # noqa: B018  # survey accounting has one precision, devices may lack another
    except InputError:
        return None
    times = {name: _times(base, evaluation, name) for name in evaluation.phases}
    effects = {
        name: _effect(by_bound.items(), float(base.pass_s(name) / evaluation.pass_s(name)))
        for name, by_bound in times.items()
    }
    if len(times) > 1:
        before, after = base.bounds, evaluation.bounds
        weights = {"prefill": before.ttft_s, "decode": before.latency_s - before.ttft_s}
        shares = [
            (bounds, time_s / sum(by_bound.values()) * float(weights[name]))
            for name, by_bound in times.items()
            for bounds, time_s in by_bound.items()
        ]
        effects[TOTAL] = _effect(shares, float(before.latency_s / after.latency_s))
    return effects


def _times(base: Evaluation, evaluation: Evaluation, phase: str) -> Mapping[tuple[str, str], float]:
    """Time of `base` by the bounds (before, after) of operators that both settings have. [s]"""
    bounds = {(row.block.name, row.operator.name): str(row.limiting.bound) for row in evaluation.estimate(phase).rows}
    times: dict[tuple[str, str], float] = defaultdict(float)
    for row in base.estimate(phase).rows:
        after = bounds.get((row.block.name, row.operator.name))
        if after:
            times[str(row.limiting.bound), after] += float(row.repeat * row.time_s)
    return times


def _effect(times: Iterable[tuple[tuple[str, str], float]], speed_up: float) -> PrecisionEffect:
    """The effect of a phase, of times by the bounds before and after."""
    sums: dict[tuple[str, str], float] = defaultdict(float)
    for bounds, time_s in times:
        sums[bounds] += time_s
    total = sum(sums.values())
    shifts = [BoundShift(before=one, after=other, share=each / total) for (one, other), each in sums.items()]
    return PrecisionEffect(speed_up=speed_up, shifts=tuple(sorted(shifts, key=lambda shift: -shift.share)))
