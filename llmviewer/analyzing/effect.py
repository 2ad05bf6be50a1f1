"""Effect of techniques on a generation: its passes, times, work and memory with them and without."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from math import isclose
from typing import Final

import numpy as np
import numpy.typing as npt

from ..forms import Num
from ..records import frozen
from ..setting import Setting
from ..techniques import Run
from ..variants.evaluation import Evaluation
from ..variants.variant import Variant
from ..workload import Workload

_MAX_BATCH: Final = 4096  # largest batch searched
_BATCHES_AT_ONCE: Final = 16  # batches evaluated at a time
_MAX_SEARCH_TOKENS: Final = 512  # generated tokens in the search for batches
_MIN_SPEED_UP: Final = 1.001  # speed-up from which techniques pay at a batch; smaller ones may be rounding
_AMOUNT_TOLERANCE: Final = 1e-12  # relative tolerance for rounding of amounts
_TIME_TOLERANCE: Final = 1e-9  # relative; times are summed step by step or in closed form
_AMOUNTS: Final = ("ops", "weight_bytes", "activation_bytes", "kv_bytes")
_TOTAL_AMOUNTS: Final = ("ops", "bytes")


@frozen(kw_only=True)
class RunResult:
    """Passes of one kind in a generation.

    before  whether they run before the first token
    passes  mean number of passes
    """

    name: str
    before: bool
    passes: float
    time_s: float
    ops: float
    bytes: float


@frozen(kw_only=True)
class GenerationTotals:
    """Totals of a generation. Times are lower bounds; tpot_s is None if one token is generated.

    ops, bytes    all passes, on one device of each pipeline stage [OP], [B]
    memory_bytes  peak memory [B]
    """

    ttft_s: float
    tpot_s: float | None
    latency_s: float
    tokens_per_s: float
    ops: float
    bytes: float
    memory_bytes: float

    @classmethod
    def of(cls, evaluation: Evaluation) -> GenerationTotals:
        work = {name: evaluation.amount(name) for name in _TOTAL_AMOUNTS}
        return cls(**evaluation.bounds.numbers(), **work, memory_bytes=float(evaluation.memory_bytes))

    def alike(self, other: GenerationTotals) -> bool:
        """Whether both are equal up to rounding."""
        pairs = zip(asdict(self).values(), asdict(other).values(), strict=True)
        return all(ours == theirs or isclose(ours, theirs, rel_tol=_TIME_TOLERANCE) for ours, theirs in pairs)


@frozen(kw_only=True)
class Effect:
    """Effect of techniques on a generation.

    tokens_per_step    tokens per sequence and pass of the model, after the first token; None if there is no such pass
    pays_from_batch    smallest batch with a faster decode; None: no batch up to 4096
    pays_up_to_batch   end of the range of batches, from pays_from_batch, with a faster decode; 0: none, None: 4096 or
                       more
    findings, said     conditions under which techniques pay, as numbers by key and as text
    expected_speed_up  expected latency without the techniques over that with them; None if only bounds are known
    """

    techniques: tuple[str, ...]
    runs: tuple[RunResult, ...]
    tokens_per_step: float | None
    result: GenerationTotals
    without: GenerationTotals
    pays_from_batch: int | None
    pays_up_to_batch: int | None
    findings: dict[str, float | None]
    said: tuple[str, ...]
    expected_speed_up: float | None = None

    @property
    def speed_up(self) -> float:
        """Latency without the techniques over that with them, of lower bounds."""
        return self.without.latency_s / self.result.latency_s


def effect(evaluation: Evaluation) -> Effect:
    """The effect of the techniques of the setting of `evaluation`."""
    setting, schedule = evaluation.setting, evaluation.schedule
    step = evaluation.workload("decode") if evaluation.kv_len else None
    variant = Variant(changes=(), base=evaluation.changed(setting.bare()), result=evaluation)
    findings = [f for one in setting.techniques if step for f in one.findings(setting, step)]
    first, last = _pays(variant) if schedule.rest else (None, 0)
    return Effect(
        techniques=tuple(map(str, setting.techniques)),
        runs=(*(_run(run, before=True) for run in schedule.first), *(_run(run, before=False) for run in schedule.rest)),
        tokens_per_step=float(schedule.tokens_per_step) if schedule.rest else None,
        result=GenerationTotals.of(evaluation),
        without=GenerationTotals.of(variant.base),
        pays_from_batch=first,
        pays_up_to_batch=last,
        findings={f.key: f.value for f in findings},
        said=(*(f.text for f in findings if f.text), *_batch_range(first, last)),
        expected_speed_up=variant.expected_gain,
    )


@frozen(kw_only=True)
class Changes:
    """Quantities that techniques lower (-), leave unchanged (=) or raise (+), one sign each.

    prefill, step  OPs, weight bytes, activation bytes and KV-cache bytes of one pass
    held           memory of weights, cache and live activations
    answer         passes of the model after the first token; OPs and bytes of all passes
    """

    prefill: str
    step: str
    held: str
    answer: str


def changes(setting: Setting, *, batch: int, prompt: int, gen: int) -> Changes:
    """Changes by the techniques of `setting`, against the same precision without them."""
    bare = replace(setting, techniques=())
    request = {"batch": batch, "prompt": prompt, "gen": gen}
    amounts = []
    for one in (setting, bare):
        prefill = one.prefill(Workload.prefill(batch=batch, prompt=prompt))
        step = one.step(Workload.decode(batch=batch, kv_len=prompt + 1, prompt=prompt))
        passes = (one.plan.estimate(prefill), one.decode_plan.estimate(step))
        schedule = one.schedule(**request)
        runs = (*schedule.first, *schedule.rest)
        amounts.append((
            *([estimate.sum(name) for name in _AMOUNTS] for estimate in passes),
            one.footprint.parts(**request),
            (
                sum(run.passes for run in schedule.rest if run.main),
                *(sum(run.amount(name) for run in runs) for name in _TOTAL_AMOUNTS),
            ),
        ))  # fmt: skip
    signs = ["".join(map(_sign, ours, theirs)) for ours, theirs in zip(*amounts, strict=True)]
    return Changes(**dict(zip(("prefill", "step", "held", "answer"), signs, strict=True)))


def _sign(ours: Num, theirs: Num) -> str:
    difference = float(ours) - float(theirs)
    return "=" if abs(difference) <= _AMOUNT_TOLERANCE * max(abs(float(theirs)), 1) else "-" if difference < 0 else "+"


def _pays(variant: Variant) -> tuple[int | None, int | None]:
    """Effect.pays_from_batch and Effect.pays_up_to_batch."""
    prompt, gen = variant.base.prompt, min(variant.base.gen, _MAX_SEARCH_TOKENS)

    def faster(batch: Num) -> npt.NDArray[np.bool_]:
        ours, theirs = (
            Evaluation(setting=one.setting, batch=np.asarray(batch), prompt=prompt, gen=gen).bounds.decoding_s
            for one in (variant.result, variant.base)
        )
        return np.greater(theirs, np.multiply(ours, _MIN_SPEED_UP))

    batches = np.unique(np.geomspace(1, _MAX_BATCH, _BATCHES_AT_ONCE).round())
    faster_batches = faster(batches)
    if not np.any(faster_batches):
        return None, 0
    first = int(np.argmax(faster_batches))
    after = np.flatnonzero(~faster_batches[first:]) + first
    start = _smallest(faster, batches[first - 1], batches[first]) if first else 1
    return start, _smallest(lambda b: ~faster(b), batches[after[0] - 1], batches[after[0]]) - 1 if after.size else None


def _smallest(holds: Callable[[Num], npt.NDArray[np.bool_]], low: float, high: float) -> int:
    """The smallest integer in (low, high] that `holds`, which is false at `low` and true at `high`."""
    while high - low > 1:
        numbers = np.unique(np.linspace(low, high, _BATCHES_AT_ONCE).round())
        place = int(np.argmax(holds(numbers[1:]))) + 1
        low, high = numbers[place - 1], numbers[place]
    return int(high)


def _batch_range(first: int | None, last: int | None) -> tuple[str, ...]:
    if first is None:
        return ()
    if first == 1:
        return (f"decode is faster up to batch {last}, if it fits",) if last else ()
    upto = f"to {last}" if last else "on"
    return (f"decode is faster from batch {first} {upto}, if it fits",)


def _run(run: Run, *, before: bool) -> RunResult:
    numbers = {"passes": run.passes, "time_s": run.time_s, **{name: run.amount(name) for name in _TOTAL_AMOUNTS}}
    return RunResult(name=run.name, before=before, **{name: float(number) for name, number in numbers.items()})
