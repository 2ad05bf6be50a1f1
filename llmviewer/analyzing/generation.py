"""GenerationResult: bounds and expected times of a whole generation, as numbers."""

from __future__ import annotations

from collections.abc import Sequence
from operator import add
from typing import Any

from ..expectation.expected import Interval
from ..records import frozen
from ..variants.evaluation import Evaluation


@frozen(kw_only=True)
class GenerationResult:
    """Lower bounds of a generation, and expected times, which are None if only bounds are known. [s], [1/s]

    tpot_s is the mean over decode steps, None if there are none. For a model that does not generate, ttft_s is the time
    of its one pass, and tokens_per_s counts prompt tokens.
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

    @classmethod
    def of(cls, evaluation: Evaluation) -> GenerationResult:
        """The numbers of a single batch."""
        expected: dict[str, Any] = _expected(evaluation)
        return cls(**evaluation.bounds.numbers(), **expected)


def _expected(evaluation: Evaluation) -> dict[str, float | None]:
    """Expected fields of GenerationResult."""
    if evaluation.intervals is None:
        return {}
    first, rest = evaluation.intervals
    steps, tokens = float(evaluation.bounds.steps), float(evaluation.bounds.tokens)
    total = first.join(rest, add)
    each = rest.map(lambda s: s / steps) if steps else None
    values: dict[str, float | None] = {"expected_tokens_per_s": tokens / total.numbers()[0]}
    for name, interval in (("ttft", first), ("tpot", each), ("latency", total)):
        values |= {f"expected_{name}{end}_s": value for end, value in ends(interval).items()}
    return values


def ends(interval: Interval | None) -> dict[str, float | None]:
    """The expected time and its 80 % interval, by suffix of field names. [s]"""
    numbers: Sequence[float | None] = interval.numbers() if interval else (None, None, None)
    return dict(zip(("", "_low", "_high"), numbers, strict=True))
