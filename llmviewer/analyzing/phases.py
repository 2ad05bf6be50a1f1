"""Results of a forward pass, operator by operator: bounds, expected times, and advice."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, field, fields
from functools import cached_property
from typing import Any, Final

import numpy as np

from ..expectation.expected import LATENCY, ExpectedLaunch, ExpectedPass, Interval
from ..expectation.kernels import Kernels
from ..expectation.sources import bound_only_label, bound_only_reason
from ..records import frozen
from ..roofline import Estimate, OperatorEstimate
from ..setting import Setting
from ..variants.evaluation import Evaluation
from ..workload import Workload
from .generation import ends

_MIN_UNMODELLED_SHARE: Final = (
    0.01  # share of the expected time from which operators without a measured kernel are named
)
_MAX_NAMES: Final = 4
_NOT_IN_JSON: Final = ("workload", "compute_advice")  # fields of a Phase that are not in its JSON
_SUMS: Final = ("ops", "bytes", "weight_bytes", "activation_bytes", "kv_bytes")


@frozen(kw_only=True)
class PerCall:
    """Amounts of a single launch of an operator. [OPs], [B], [s]"""

    ops: float
    bytes: float
    weight_bytes: float
    activation_bytes: float
    kv_bytes: float
    bound_time_s: float


@frozen(kw_only=True)
class OperatorResult:
    """An operator of a phase. OPs, bytes and times are totals of its `repeat` launches; `per_call` is one launch.

    attainable_ops_per_s  OPs over the bound: min(peak, intensity x bandwidth) if one unit does all the OPs
    bound                 "memory", "compute" or "link"; `limited_by` names the resource
    link_bytes            bytes to and from other devices, host memory and storage
    compute_dtype         type this device computes in, on its `compute_unit`; `operand_dtype` is the type of operands
    expected_time_s       expected time, from `expectation_source`; 80 % of measured times lie between expected_low_s
                          and expected_high_s, which is None if only the bound is known
    regime                "latency" if fixed costs dominate the expected time, else `bound`
    share                 share of the phase's bound
    shared_launch         names of the operators that the engine runs in its launch, joined by "+"; "" if there is no
                          other, and without an engine
    """

    name: str
    kind: str
    block: str
    repeat: int
    ops: float
    bytes: float
    weight_bytes: float
    activation_bytes: float
    kv_bytes: float
    link_bytes: float
    conversion_ops: float
    intensity: float
    attainable_ops_per_s: float
    bound: str
    limited_by: str
    compute_unit: str
    compute_dtype: str
    operand_dtype: str
    bound_time_s: float
    expected_time_s: float | None
    expected_low_s: float | None
    expected_high_s: float | None
    expectation_source: str
    regime: str | None
    share: float
    shared_launch: str
    per_call: PerCall


@frozen(kw_only=True)
class Total:
    """Totals of a phase.

    bound                the bound of most of its time; time_by_bound_s has the time of each [s]
    expectation_sources  shares of the expected time by source: the main source, then kinds of other sources
    unmodelled_share     share of the expected time of operators of which only the bound is known
    host_s               expected time without a running kernel, as the engine's host has not launched the next one [s]
    time_by_regime_s     expected time of kernels, by regime [s]
    """

    ops: float
    bytes: float
    weight_bytes: float
    activation_bytes: float
    kv_bytes: float
    intensity: float
    attainable_ops_per_s: float
    bound: str
    bound_time_s: float
    expected_time_s: float | None
    expected_low_s: float | None
    expected_high_s: float | None
    expectation_source: str
    expectation_sources: Mapping[str, float]
    unmodelled_share: float | None
    host_s: float | None
    time_by_bound_s: Mapping[str, float]
    time_by_regime_s: Mapping[str, float]


@frozen(kw_only=True)
class Phase:
    """A forward pass: `batch` sequences of q_len new tokens that attend to kv_len tokens.

    Operators and totals are those of one device of `devices`, in all `stages` of a pipeline, for one micro-batch. The
    whole batch is `micro_batches` such passes and takes time_s (expected: expected_time_s), more than the sum over
    operators if stages wait.

    workload  one micro-batch on one device, as techniques change it
    compute_advice  computes `advice` on first use, as it takes about as long as the rest
    """

    devices: int
    stages: int
    batch: int
    micro_batches: int
    time_s: float
    expected_time_s: float | None
    expected_low_s: float | None
    expected_high_s: float | None
    q_len: int
    kv_len: int
    operators: tuple[OperatorResult, ...] = field(repr=False)
    total: Total
    workload: Workload = field(repr=False, compare=False)
    compute_advice: Callable[[], str] = field(repr=False, compare=False)

    @cached_property
    def advice(self) -> str:
        """Sentence on the bound of the phase and the changes that lower it."""
        return self.compute_advice()

    def to_dict(self) -> dict[str, Any]:
        """The phase as JSON."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in _NOT_IN_JSON}
        parts = {"operators": tuple(map(asdict, self.operators)), "total": asdict(self.total)}
        return {**values, **parts, "advice": self.advice}


@frozen(kw_only=True)
class Phases:
    """Both phases; iterates over (name, phase). A model that does not generate has only a prefill."""

    prefill: Phase
    decode: Phase | None

    def __iter__(self) -> Iterator[tuple[str, Phase]]:
        named = (("prefill", self.prefill), ("decode", self.decode))
        return iter([(name, phase) for name, phase in named if phase])


def phase(evaluation: Evaluation, name: str, compute_advice: Callable[[], str]) -> Phase:
    """The phase `name`, "prefill" or "decode"; `compute_advice` computes its advice."""
    setting, workload = evaluation.setting, evaluation.workload(name)
    return _phase(
        setting,
        workload,
        evaluation.estimate(name),
        evaluation.operators_expected(name),
        micro_batches=int(setting.layout.micro_batch_count(evaluation.batch)),
        time_s=float(evaluation.pass_s(name)),
        interval=evaluation.expected_pass_s(name),
        shared=_shared_launches(evaluation, name),
        compute_advice=compute_advice,
    )


def engine_kernels(setting: Setting) -> Kernels | None:
    """The kernels that the engine launches; None without an engine, or if its kernels cannot be modelled."""
    kernels = setting.kernels if setting.engine else None
    return None if kernels is None or isinstance(kernels.device, str) else kernels


def _shared_launches(evaluation: Evaluation, name: str) -> dict[int, str]:
    """Names of the operators that share a launch of the engine, by the index of each."""
    kernels = engine_kernels(evaluation.setting)
    if kernels is None:
        return {}
    launched = evaluation.launched(name, kernels)
    shared: dict[int, str] = {}
    for launch in launched.launches:
        if len(launch.members) > 1:
            names = "+".join(launched.operators[member].operator.name for member in launch.members)
            shared |= dict.fromkeys(launch.members, names)
    return shared


def mixed_phase(setting: Setting, workload: Workload) -> Phase:
    """A pass of one micro-batch that prefills some sequences and decodes others, with the operators of a prefill.

    workload  groups of sequences on one device
    """
    estimate = setting.plan.estimate(workload)
    expected_pass = setting.kernels.expect(estimate.operators, workload) if setting.kernels else None
    modelled_pass = expected_pass if expected_pass and expected_pass.modelled else None
    return _phase(
        setting,
        workload,
        estimate,
        expected_pass,
        micro_batches=1,
        time_s=float(setting.plan.pipelined_s(setting.plan.values(workload), 1, autoregressive=False)),
        interval=modelled_pass.pipelined_s(1, autoregressive=False) if modelled_pass else None,
        shared={},
        compute_advice=str,
    )


def _phase(
    setting: Setting,
    workload: Workload,
    estimate: Estimate,
    expected_pass: ExpectedPass | None,
    *,
    micro_batches: int,
    time_s: float,
    interval: Interval | None,
    shared: Mapping[int, str],
    compute_advice: Callable[[], str],
) -> Phase:
    """A phase from its estimate; lengths of several groups of sequences are means over all sequences."""
    sequences = float(workload.sequences())
    total = _total(estimate, expected_pass, bound_only_label(setting.why_bound_alone))
    launches: Sequence[ExpectedLaunch | None] = (
        expected_pass.launches if expected_pass else [None] * len(estimate.operators)
    )
    expected = [*launches, *[None] * len(estimate.exposed)]  # expected launches wait for their own data
    return Phase(
        devices=setting.layout.devices,
        stages=setting.layout.pp,
        batch=int(sequences),
        micro_batches=micro_batches,
        time_s=time_s,
        **_interval_fields(interval),
        q_len=round(sum(float(group.batch * group.q_len) for group in workload.groups) / sequences),
        kv_len=round(sum(float(group.batch * group.kv_len) for group in workload.groups) / sequences),
        operators=tuple(
            _operator(row, each, total, shared.get(place, ""))
            for place, (row, each) in enumerate(zip(estimate.rows, expected, strict=True))
        ),
        total=total,
        workload=workload,
        compute_advice=compute_advice,
    )


def _interval_fields(interval: Interval | None) -> dict[str, Any]:
    """Expected times, by field name."""
    return {f"expected{end or '_time'}_s": value for end, value in ends(interval).items()}


def _operator(row: OperatorEstimate, launch: ExpectedLaunch | None, phase: Total, shared_launch: str) -> OperatorResult:
    n = row.repeat
    limiting = row.limiting
    expectation = launch if phase.expected_time_s is not None else None
    high = float(n * expectation.high[0]) if expectation and expectation.modelled else None
    return OperatorResult(
        name=row.operator.name,
        kind=row.operator.kind,
        block=row.block.name,
        repeat=n,
        **{field: float(n * getattr(row, field)) for field in (*_SUMS, "link_bytes", "conversion_ops")},
        intensity=float(row.intensity),
        attainable_ops_per_s=float(row.attainable),
        bound=limiting.bound,
        limited_by=str(limiting),
        compute_unit=str(row.compute.unit),
        compute_dtype=row.compute.dtype,
        operand_dtype=row.operand_unit.dtype,
        bound_time_s=float(n * row.time_s),
        expected_time_s=float(n * expectation.expected[0]) if expectation else None,
        expected_low_s=float(n * expectation.low[0]) if expectation else None,
        expected_high_s=high,
        expectation_source=launch.source if launch else phase.expectation_source,
        regime=_regime(row, expectation) if expectation else None,
        share=float(n * row.time_s / phase.bound_time_s),
        shared_launch=shared_launch,
        per_call=PerCall(**{f: float(getattr(row, f)) for f in _SUMS}, bound_time_s=float(row.time_s)),
    )


def _regime(row: OperatorEstimate, each: ExpectedLaunch) -> str:
    if each.latency[0]:
        return LATENCY
    return "link" if row.unprefetched_s > row.time_s else str(row.limiting.bound)


def _total(estimate: Estimate, expected_pass: ExpectedPass | None, why_not: str) -> Total:
    """`why_not`: the source if there are no expected times."""
    by_bound = estimate.seconds_by_bound
    by_regime: dict[str, float] = {}
    modelled_pass = expected_pass if expected_pass and expected_pass.modelled else None
    for row, each in zip(
        estimate.operators, modelled_pass.launches if modelled_pass else (), strict=modelled_pass is not None
    ):
        regime = _regime(row, each)
        by_regime[regime] = by_regime.get(regime, 0.0) + float(row.repeat * each.expected[0])
    sums = {field: float(estimate.sum(field)) for field in _SUMS}
    time_s = float(estimate.time_s)
    return Total(
        **sums,
        intensity=sums["ops"] / sums["bytes"],
        attainable_ops_per_s=sums["ops"] / time_s,
        bound=max(by_bound, key=by_bound.__getitem__),
        bound_time_s=time_s,
        **_interval_fields(modelled_pass.total if modelled_pass else None),
        expectation_source=expected_pass.source if expected_pass else why_not,
        expectation_sources=expected_pass.sources if expected_pass else {why_not: 1.0},
        unmodelled_share=float(modelled_pass.unmodelled_share[0]) if modelled_pass else None,
        host_s=float(np.sum(modelled_pass.total.expected) - np.sum(modelled_pass.kernels.expected))
        if modelled_pass
        else None,
        time_by_bound_s=by_bound,
        time_by_regime_s=by_regime,
    )


def unmodelled_notes(phases: Phases) -> Iterator[str]:
    """Notes on operators of which only the bound is known, if they matter."""
    for name, phase in phases:
        total = phase.total
        if total.expected_time_s is None:
            yield f"bounds only: {bound_only_reason(total.expectation_source)}"
            return
        if total.unmodelled_share and total.unmodelled_share > _MIN_UNMODELLED_SHARE:
            bound_only = dict.fromkeys(op.name for op in phase.operators if op.expected_high_s is None)
            ellipsis = ", ..." if len(bound_only) > _MAX_NAMES else ""
            names = f"{', '.join(list(bound_only)[:_MAX_NAMES])}{ellipsis}"
            yield (
                f"{total.unmodelled_share:.0%} of the expected {name} time is bounds: no measured kernel for {names}"
            )
