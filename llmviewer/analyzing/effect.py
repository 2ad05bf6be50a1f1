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

_LARGEST: Final = 4096  # largest batch searched
_FAN: Final = 16  # batches evaluated at a time
_LONG: Final = 512  # most generated tokens in the search for batches
_FASTER: Final = 1.001  # speed-up from which a batch is counted among those where techniques pay: beyond rounding
_ALIKE: Final = 1e-12  # relative tolerance for rounding of amounts
_AS_LONG: Final = 1e-9  # and of times, which are summed step by step or in closed form
_AMOUNTS: Final = ("ops", "weight_bytes", "activation_bytes", "kv_bytes")
_WHOLE: Final = ("ops", "bytes")


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
class Whole:
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
    def of(cls, evaluation: Evaluation) -> Whole:
        work = {name: evaluation.amount(name) for name in _WHOLE}
        return cls(**evaluation.bounds.numbers(), **work, memory_bytes=float(evaluation.memory_bytes))

    def alike(self, other: Whole) -> bool:
        """Whether both are equal but for rounding."""
        pairs = zip(asdict(self).values(), asdict(other).values(), strict=True)
        return all(ours == theirs or isclose(ours, theirs, rel_tol=_AS_LONG) for ours, theirs in pairs)


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
    result: Whole
    without: Whole
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
        result=Whole.of(evaluation),
        without=Whole.of(variant.base),
        pays_from_batch=first,
        pays_up_to_batch=last,
        findings={f.key: f.value for f in findings},
        said=(*(f.text for f in findings if f.text), *_said(first, last)),
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
    asked = {"batch": batch, "prompt": prompt, "gen": gen}
    found = []
    for one in (setting, bare):
        read = one.prefill(Workload.prefill(batch=batch, prompt=prompt))
        step = one.step(Workload.decode(batch=batch, kv_len=prompt + 1, prompt=prompt))
        passes = (one.plan.estimate(read), one.decode_plan.estimate(step))
        schedule = one.schedule(**asked)
        runs = (*schedule.first, *schedule.rest)
        found.append((
            *([estimate.sum(name) for name in _AMOUNTS] for estimate in passes),
            one.footprint.parts(**asked),
            (sum(run.passes for run in schedule.rest if run.main), *(sum(r.amount(n) for r in runs) for n in _WHOLE)),
        ))  # fmt: skip
    signs = ["".join(map(_sign, ours, theirs)) for ours, theirs in zip(*found, strict=True)]
    return Changes(**dict(zip(("prefill", "step", "held", "answer"), signs, strict=True)))


def _sign(ours: Num, theirs: Num) -> str:
    more = float(ours) - float(theirs)
    return "=" if abs(more) <= _ALIKE * max(abs(float(theirs)), 1) else "-" if more < 0 else "+"


def _pays(variant: Variant) -> tuple[int | None, int | None]:
    """Effect.pays_from_batch and Effect.pays_up_to_batch."""
    prompt, gen = variant.base.prompt, min(variant.base.gen, _LONG)

    def faster(batch: Num) -> npt.NDArray[np.bool_]:
        ours, theirs = (
            Evaluation(setting=one.setting, batch=np.asarray(batch), prompt=prompt, gen=gen).bounds.decoding_s
            for one in (variant.result, variant.base)
        )
        return np.greater(theirs, np.multiply(ours, _FASTER))

    tried = np.unique(np.geomspace(1, _LARGEST, _FAN).round())
    found = faster(tried)
    if not np.any(found):
        return None, 0
    first = int(np.argmax(found))
    after = np.flatnonzero(~found[first:]) + first
    start = _smallest(faster, tried[first - 1], tried[first]) if first else 1
    return start, _smallest(lambda b: ~faster(b), tried[after[0] - 1], tried[after[0]]) - 1 if after.size else None


def _smallest(holds: Callable[[Num], npt.NDArray[np.bool_]], low: float, high: float) -> int:
    """The smallest integer in (low, high] that `holds`, which is false at `low` and true at `high`."""
    while high - low > 1:
        tried = np.unique(np.linspace(low, high, _FAN).round())
        place = int(np.argmax(holds(tried[1:]))) + 1
        low, high = tried[place - 1], tried[place]
    return int(high)


def _said(first: int | None, last: int | None) -> tuple[str, ...]:
    if first is None:
        return ()
    if first == 1:
        return (f"decode is faster up to batch {last}, if it fits",) if last else ()
    upto = f"to {last}" if last else "on"
    return (f"decode is faster from batch {first} {upto}, if it fits",)


def _run(run: Run, *, before: bool) -> RunResult:
    numbers = {"passes": run.passes, "time_s": run.time_s, **{name: run.amount(name) for name in _WHOLE}}
    return RunResult(name=run.name, before=before, **{name: float(number) for name, number in numbers.items()})
