"""The whole generation: its lower bounds, and what is expected of real kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import add

import numpy as np

from ..expectation.expected import Interval
from ..generation import generation, prefill_s
from ..setting import Setting
from ..techniques import Schedule
from .arranged import NOTHING, expected_answer, runs_expected


@dataclass(frozen=True, kw_only=True)
class GenerationResult:
    """Lower bounds, and what is expected. tpot_s, the mean over the decode steps, is None where one token is generated:
    no step is taken.

    A model that does not generate takes ttft_s for its one pass, and tokens_per_s are those that it reads. What is
    expected is None where only bounds are known.
    """

    ttft_s: float
    tpot_s: float | None
    latency_s: float
    tokens_per_s: float
    expected_ttft_s: float | None = None
    expected_ttft_low_s: float | None = None
    expected_ttft_high_s: float | None = None
    expected_tpot_s: float | None = None
    expected_tpot_low_s: float | None = None
    expected_tpot_high_s: float | None = None
    expected_latency_s: float | None = None
    expected_latency_low_s: float | None = None
    expected_latency_high_s: float | None = None
    expected_tokens_per_s: float | None = None


def generated(setting: Setting, *, batch: int, prompt: int, gen: int, images: int) -> GenerationResult:
    """The whole generation of `gen` tokens, or the one pass where none are written."""
    asked = {"prompt": prompt, "images": images}
    first, rest = expected_answer(setting, batch=np.array([batch]), gen=gen or 1, **asked)
    if gen <= 1:
        rest = NOTHING if first else None
    if not gen:
        time_s = float(prefill_s(setting.plan, setting.layout, batch=batch, **asked))
        return GenerationResult(
            ttft_s=time_s,
            tpot_s=None,
            latency_s=time_s,
            tokens_per_s=batch * prompt / time_s,
            **_expected(first, rest, steps=0, tokens=batch * prompt),
        )
    answer = generation(setting.plan, setting.decode_plan, layout=setting.layout, batch=batch, gen=gen, **asked)
    return GenerationResult(
        ttft_s=float(answer.ttft_s),
        tpot_s=None if gen == 1 else float(answer.tpot_s),
        latency_s=float(answer.latency_s),
        tokens_per_s=float(answer.tokens_per_s),
        **_expected(first, rest, steps=gen - 1, tokens=batch * gen),
    )


def scheduled(setting: Setting, schedule: Schedule) -> GenerationResult:
    """The whole generation, in the passes that techniques arrange."""
    first, rest = (runs_expected(setting.kernels, runs) for runs in (schedule.first, schedule.rest))
    return GenerationResult(
        ttft_s=float(schedule.ttft_s),
        tpot_s=float(schedule.tpot_s) if schedule.rest else None,
        latency_s=float(schedule.latency_s),
        tokens_per_s=float(schedule.answer / schedule.latency_s),
        **_expected(first, rest, steps=float(schedule.steps), tokens=float(schedule.answer)),
    )


def _expected(first: Interval | None, rest: Interval | None, *, steps: float, tokens: float) -> dict[str, float | None]:
    """Fields of GenerationResult, from what is expected until the first token and after it.

    Errors of both are those of the same kernels, so they add.
    """
    if first is None or rest is None:
        return {}
    whole = first.join(rest, add)
    each = rest.map(lambda s: s / steps) if steps else None
    found: dict[str, float | None] = {"expected_tokens_per_s": tokens / whole.numbers()[0]}
    for name, interval in (("ttft", first), ("tpot", each), ("latency", whole)):
        found |= {f"expected_{name}{end}_s": value for end, value in ends(interval).items()}
    return found


def ends(interval: Interval | None) -> dict[str, float | None]:
    """What is expected, and between what most measured times lie. [s]"""
    numbers: Sequence[float | None] = interval.numbers() if interval else (None, None, None)
    return dict(zip(("", "_low", "_high"), numbers, strict=True))
