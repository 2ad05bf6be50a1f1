"""Compares a recorded pass of a model with its analysis, by parts of the pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np

from .. import __version__
from ..analyzing.analysis import Analysis
from ..analyzing.phases import OperatorResult, Phase, Total, mixed_phase
from ..errors import InputError
from ..parallel.pipeline import SEND
from ..parameters import AttentionMode
from ..records import frozen
from ..setting import Setting, whole_number
from ..workload import Workload
from .elementwise import ElementwiseOfPass, elementwise_of
from .idle import IdleCause, IdleGap, idle_by_cause, idle_gaps
from .kinds import (
    COVERED_BY,
    KernelOfPass,
    Part,
    PartOfPass,
    in_layers,
    known_sum,
    marks_a_layer,
    mixes,
    part_of_operator,
    parts_of,
)
from .launches import KernelSums, RecordedLaunches
from .modules import parts_by_module
from .next_steps import NextStep, next_steps
from .passes import MIXED, MeanPass, mean_pass, mixed_workload, sole_phase
from .products import IdentifiedProducts, Place, ProductOfPass, identify, product_counts
from .reading import MAX_UNPACKED, read_timeline

SCHEMA_VERSION: Final = 1
_MAX_NAME_CHARS: Final = 60  # characters of a kernel in an error
_EAGER: Final = 2  # products of a layer's eager attention
_ANOTHER_MODEL: Final = 1.5  # times as many kernels of products as the model has, beyond which it was another one


@frozen(kw_only=True)
class Timeline:
    """A recorded pass with its analysis.

    parts        parts with kernels or operators, by decreasing measured time
    identified   matrix products in order, with the kernels that were identified as theirs
    elementwise  the elementwise part, by groups of operators that kernels run together
    stage        pipeline stage of the recorded device, from 1; None without a pipeline
    operators    operators of the pass or stage
    part_by_name  part of each kernel in the recording
    of_phase     the analyzed phase that the recording is compared with
    kernels      kernels by name, by decreasing time
    layers       layers of the model that mix tokens; `mixing` counts launches that do
    devices      devices in the file (CPU: threads), of which one is compared
    host         whether kernels are operators of a CPU
    """

    file: str
    phase: str
    analysis: Analysis = field(repr=False)
    passes: MeanPass
    parts: tuple[PartOfPass, ...]
    identified: IdentifiedProducts = field(repr=False)
    elementwise: tuple[ElementwiseOfPass, ...] = field(repr=False)
    kernels: tuple[KernelOfPass, ...] = field(repr=False)
    layers: int
    devices: int
    host: bool
    stage: int | None
    operators: tuple[OperatorResult, ...] = field(repr=False)
    recording: RecordedLaunches | KernelSums = field(repr=False)
    part_by_name: Mapping[str, Part] = field(repr=False)
    of_phase: Phase = field(repr=False)

    @property
    def products(self) -> tuple[ProductOfPass, ...]:
        """Matrix products with identified kernels, in order."""
        return self.identified.products

    @property
    def mixing(self) -> float:
        """Launches of a pass that mix tokens, one per layer."""
        return sum(kernel.launches for kernel in self.kernels if marks_a_layer(kernel.name, Part(kernel.part)))

    @property
    def _total(self) -> Total | None:
        """Totals of the phase; None for a pipeline stage."""
        return self.of_phase.total if self.stage is None else None

    @property
    def bound_s(self) -> float:
        """Lower bound of the pass. [s]"""
        return sum(op.bound_time_s for op in self.operators)

    @property
    def expected_s(self) -> float | None:
        """Expected time of the pass as it was launched; of a pipeline stage without host time; None if unknown. [s]"""
        launched_s = known_sum(part.expected_s for part in self.parts if part.bound_s)
        analyzed_s = self._total.expected_time_s if self._total else None
        if launched_s is None or analyzed_s is None:
            return launched_s
        # The total has idle time, and less than the sum where operators overlap.
        return analyzed_s + launched_s - sum(op.expected_time_s or 0.0 for op in self.of_phase.operators)

    @property
    def expected_low_s(self) -> float | None:
        """Lower end of the 80 % interval. [s]"""
        return self._relative_to_expected(self._total.expected_low_s if self._total else None)

    @property
    def expected_high_s(self) -> float | None:
        """Upper end of the 80 % interval. [s]"""
        return self._relative_to_expected(self._total.expected_high_s if self._total else None)

    def _relative_to_expected(self, end_s: float | None) -> float | None:
        """An end of the interval of the analyzed pass, for the pass as it was launched. [s]"""
        analyzed_s = self._total.expected_time_s if self._total else None
        return end_s * self.expected_s / analyzed_s if end_s and analyzed_s and self.expected_s else None

    @property
    def host_s(self) -> float | None:
        """Expected time in which no kernel runs. [s]"""
        return self._total.host_s if self._total else None

    @property
    def time_s(self) -> float:
        """Measured time of a pass, including idle time if known. [s]"""
        return self.passes.busy_s if self.passes.time_s is None else self.passes.time_s

    @property
    def idle_s(self) -> float | None:
        """Measured time in which no kernel runs; None if the file has only sums by kernel. [s]"""
        return None if self.passes.time_s is None else max(self.passes.time_s - self.passes.busy_s, 0.0)

    @cached_property
    def idle_gaps(self) -> tuple[IdleGap, ...]:
        """Gaps in which no kernel runs, in the whole recording; empty if the file has only sums by kernel."""
        if isinstance(self.recording, KernelSums):
            return ()
        return tuple(idle_gaps(self.recording, self.part_by_name))

    @cached_property
    def idle_by_cause(self) -> Mapping[IdleCause, float]:
        """Idle time of a pass by what the device waited for, the longest first. [s]"""
        return idle_by_cause(self.idle_gaps, self.passes.spans)

    @property
    def next_steps(self) -> tuple[NextStep, ...]:
        """The largest gaps to the expected times, with what closes them."""
        gpu = not self.host and self.stage is None
        engine = self.analysis.setting.engine
        return next_steps(
            self.parts,
            time_s=self.time_s,
            idle_s=self.idle_by_cause if gpu else {},
            host_s=self.host_s or 0.0,
            engine=engine.name if engine else "",
            references=self.references,
            weight_formats=self._weight_formats,
        )

    @property
    def _weight_formats(self) -> Mapping[str, frozenset[str]]:
        """Names of the formats of weights in each part."""
        parts = {op.name: part_of_operator(op) for op in self.operators}
        formats: dict[str, set[str]] = {}
        for _, op in self.analysis.setting.graph:
            if op.name in parts:
                formats.setdefault(parts[op.name], set()).update(weight.format.name for weight in op.weights)
        return {part: frozenset(names) for part, names in formats.items()}

    @property
    def references(self) -> Mapping[str, str]:
        """Source of the expected time of each part: that of its longest operator."""
        longest: dict[str, OperatorResult] = {}
        for op in sorted(self.operators, key=lambda op: op.expected_time_s or 0.0):
            longest[part_of_operator(op)] = op
        return {part: op.expectation_source for part, op in longest.items() if op.expected_time_s}

    @property
    def inputs(self) -> dict[str, Any]:
        """The arguments, as in the JSON document."""
        return {"file": self.file, "phase": self.phase, "stage": self.stage, **self.analysis.inputs}

    def rows(self) -> Iterator[dict[str, Any]]:
        """Rows of parts, matrix products, elementwise work and kernels, in this order."""
        for part in self.parts:
            numbers = {name: value for name, value in asdict(part).items() if name != "covers"}
            yield {"kind": "part", "name": "+".join((part.part, *part.covers)), **numbers}
        for product in self.products:
            yield {"kind": "product", **_row(product, Part.PRODUCTS)}
        for work in self.elementwise:
            yield {"kind": "elementwise", **_row(work, Part.ELEMENTWISE)}
        for kernel in self.kernels:
            yield {"kind": "kernel", **asdict(kernel)}

    def to_dict(self) -> dict[str, Any]:
        """The JSON document; docs/timeline.md lists its keys."""
        each = self.passes.each_s
        return {
            "schema_version": SCHEMA_VERSION,
            "llmviewer_version": __version__,
            "model": self.analysis.model.name,
            "hardware": self.analysis.hardware.name,
            "inputs": self.inputs,
            "passes": self.passes.passes,
            "passes_left_out": self.passes.others,
            "pass_time_s": self.passes.time_s,
            "pass_time_p20_s": float(np.quantile(each, 0.2)) if len(each) else None,
            "pass_time_p80_s": float(np.quantile(each, 0.8)) if len(each) else None,
            "busy_s": self.passes.busy_s,
            "idle_s": self.idle_s,
            "idle_by_cause_s": dict(self.idle_by_cause),
            "bound_time_s": self.bound_s,
            "expected_time_s": self.expected_s,
            "expected_low_s": self.expected_low_s,
            "expected_high_s": self.expected_high_s,
            "parts": [asdict(part) for part in self.parts],
            "products": [
                {**asdict(product), "matched": product.matched, "score": product.score} for product in self.products
            ],
            "elementwise": [asdict(work) for work in self.elementwise],
            "kernels": [asdict(kernel) for kernel in self.kernels],
            "next_steps": [step._asdict() for step in self.next_steps],
        }


def _row(work: ProductOfPass | ElementwiseOfPass, part: Part) -> dict[str, Any]:
    names = ("launches", "measured_s", "bound_s", "expected_s")
    return {
        "name": "+".join(work.operators), "part": part.value, **{name: getattr(work, name) for name in names}
    }  # fmt: skip


def timeline(
    file: str | Path,
    analysis: Analysis,
    *,
    phase: str | None = None,
    passes: int | None = None,
    stage: int | None = None,
    max_bytes: int = MAX_UNPACKED,
) -> Timeline:
    """Compares a recorded pass with its bound and expected time.

    file       file of a profiler, one of reading.FORMATS; with several ranks, of one rank
    analysis   analysis with the model, device, batch, lengths, precision and layout of the recording
    phase      "prefill", "decode" or "mixed" (passes that do both, as the engine names them): the passes to compare;
               None: the phase of all passes that the engine named, else decode, or prefill if the model has no other
    passes     number of passes in the file; None: as named by the engine, else counted by launches that mix tokens
    stage      pipeline stage of the recorded device, from 1
    max_bytes  largest size of the file, unpacked [B]

    Raises InputError, with one line of text, if an argument or the file is invalid.
    """
    recording = read_timeline(Path(file), phase or "decode", max_bytes=whole_number("max_bytes", max_bytes))
    return compare_recording(recording, analysis, file=str(file), phase=phase, passes=passes, stage=stage)


def compare_recording(
    recording: RecordedLaunches | KernelSums,
    analysis: Analysis,
    *,
    file: str,
    phase: str | None,
    passes: int | None,
    stage: int | None,
) -> Timeline:
    """Compares a recording that was read already; `file` is its name in errors."""
    phase = phase or default_phase(recording, analysis)
    passes = None if passes is None else whole_number("passes", passes)
    phases = dict(analysis.phases)
    if analysis.model.generates:
        phases[MIXED] = analysis.phases.prefill  # whose operators it has, until its sequences are known
    if phase not in phases:
        raise InputError(f"phase must be {' or '.join(phases)} of {analysis.model.name}; got {phase!r}")
    if recording.host != (analysis.hardware.kind == "cpu"):
        ran = "operators of a CPU, and no kernel of a GPU" if recording.host else "kernels of a GPU"
        raise InputError(f"{file}: has {ran}; hardware must be the device they ran on; got {analysis.hardware.name}")
    of_phase = phases[phase]
    operators = _stage_operators(of_phase, stage)
    layers = sum(op.repeat for op in operators if mixes(op))
    if not layers and not passes:
        raise InputError(
            f"the number of recorded passes is unknown: {analysis.model.name} has no attention or state to count "
            "them by; give it (--passes N)"
        )
    modules = recording.modules if isinstance(recording, RecordedLaunches) else ()
    parts = parts_of(set(recording.names), operators, parts_by_module(recording.names, modules) if any(modules) else {})
    fused_attention = _attention_kernel(parts) if analysis.setting.attention is AttentionMode.EAGER else None
    if fused_attention:
        raise InputError(
            f"{file}: has kernels of fused attention ({fused_attention[:_MAX_NAME_CHARS]}), and the analysis is of "
            "eager attention; give --attention flash"
        )
    graph = analysis.setting.decode_graph if phase == "decode" else analysis.setting.graph
    graph = graph if stage is None else graph.of_stage(stage - 1)
    min_products, max_products = product_counts(graph, operators)
    try:
        mean = mean_pass(recording, parts, layers=layers, products=min_products, passes=passes, phase=phase)
    except InputError as error:
        raise InputError(f"{file}: {error}") from None
    if phase == MIXED:
        request = analysis.request
        workload = mixed_workload(mean.steps, prompt=request.prompt, kv_len=request.kv_len or request.prompt + 1)
        of_phase = mixed_phase(analysis.setting, workload)
        operators = _stage_operators(of_phase, stage)
    kernels_of_products = sum(map(len, mean.products))
    fused = all(part_of_operator(op) is not Part.EXPERTS for op in operators)  # else each expert may be a product
    if fused and kernels_of_products > _ANOTHER_MODEL * (max_products + _EAGER * layers):
        raise InputError(
            f"{file}: a pass has {kernels_of_products} matrix-product kernels, {analysis.model.name} {max_products}: "
            "give the model that was recorded, or the number of passes (--passes N)"
        )
    expected_s = _expected_products(analysis.setting, phase, of_phase.workload)
    identified = identify(mean.products, graph, operators, expected_s)
    operators = _with_kernels(operators, identified)
    kernels = sorted(
        (
            KernelOfPass(name=name, part=part, launches=mean.launches[name], measured_s=mean.kernels_s[name])
            for name, part in in_layers(parts, mean.launches, operators, layers).items()
        ),
        key=lambda kernel: -kernel.measured_s,
    )
    return Timeline(
        file=file,
        phase=phase,
        analysis=analysis,
        passes=mean,
        parts=_parts(kernels, operators, identified),
        elementwise=elementwise_of(
            [kernel for kernel in kernels if kernel.part == Part.ELEMENTWISE],
            [op for op in operators if part_of_operator(op) is Part.ELEMENTWISE],
        ),
        identified=identified,
        kernels=tuple(kernels),
        layers=layers,
        devices=recording.devices,
        host=recording.host,
        stage=stage,
        operators=tuple(operators),
        recording=recording,
        of_phase=of_phase,
        part_by_name={**parts, **{kernel.name: Part(kernel.part) for kernel in kernels}},
    )


def default_phase(recording: RecordedLaunches | KernelSums, analysis: Analysis) -> str:
    """The phase to compare if none is given."""
    return (sole_phase(recording) or "decode") if analysis.model.generates else "prefill"


def _attention_kernel(parts: Mapping[str, Part]) -> str | None:
    """A kernel that computes the attention of a layer in one launch; None if there is none."""
    kernels = (name for name, part in parts.items() if part is Part.ATTENTION and marks_a_layer(name, part))
    return min(kernels, default=None)


def _stage_operators(phase: Phase, stage: int | None) -> Sequence[OperatorResult]:
    """The operators of a pipeline stage, up to its send to the next one."""
    if phase.stages == 1:
        if stage is not None:
            raise InputError(f"stage must be left out without a pipeline (pp); got {stage}")
        return phase.operators
    if stage is None or not 1 <= stage <= phase.stages:
        raise InputError(f"stage must be 1 to {phase.stages}, the pipeline stage of the recorded device; got {stage}")
    ends = [place for place, op in enumerate(phase.operators, 1) if op.name == SEND]
    return phase.operators[[0, *ends][stage - 1] : [*ends, None][stage - 1]]


def _expected_products(setting: Setting, phase: str, workload: Workload) -> Callable[[Place], float | None]:
    """The expected time of a kernel that computes some products of a block together. [s]"""
    kernels = setting.kernels
    rows = setting.plan_of(phase).estimate(workload).operators

    def expected_s(place: Place) -> float | None:
        block, names = place
        block_rows = [row for row in rows if row.block.name == block and row.operator.name in names]
        expected_pass = kernels.expect(block_rows, workload) if kernels and block_rows else None
        if expected_pass is None or not expected_pass.modelled:
            return None
        return sum(float(launch.expected[0]) for launch in expected_pass.launches)

    return expected_s


def _with_kernels(operators: Sequence[OperatorResult], identified: IdentifiedProducts) -> Sequence[OperatorResult]:
    """Operators without the products that no kernel ran, such as the head of a base model."""
    if not identified.products:
        return operators
    ran = {(product.block, name) for product in identified.products for name in product.operators}
    return [op for op in operators if part_of_operator(op) is not Part.PRODUCTS or (op.block, op.name) in ran]


def _parts(
    kernels: Iterable[KernelOfPass], operators: Iterable[OperatorResult], identified: IdentifiedProducts
) -> tuple[PartOfPass, ...]:
    kernels_by_part: dict[str, list[KernelOfPass]] = {part: [] for part in Part}
    for kernel in kernels:
        kernels_by_part[kernel.part].append(kernel)
    operators_by_part: dict[str, list[OperatorResult]] = {part: [] for part in Part}
    covers: dict[str, tuple[str, ...]] = dict.fromkeys(Part, ())
    for op in operators:
        operators_by_part[part_of_operator(op)].append(op)
    for part, covering_part in COVERED_BY.items():
        if operators_by_part[part] and not kernels_by_part[part] and kernels_by_part[covering_part]:
            operators_by_part[covering_part] += operators_by_part.pop(part)
            covers[covering_part] += (part.value,)
    parts = (
        _part(p, covers[p], kernels_by_part[p], operators_by_part.get(p, []))
        for p in Part
        if kernels_by_part[p] or operators_by_part.get(p)
    )
    parts = (_as_launched(part, identified) if part.part == Part.PRODUCTS else part for part in parts)
    return tuple(sorted(parts, key=lambda part: -part.measured_s))


def _as_launched(products: PartOfPass, identified: IdentifiedProducts) -> PartOfPass:
    """The part of matrix products, with the expected times of the launches that were recorded.

    Operators have those of the launches that the kernel library merges; the interval is as wide, relative to them.
    """
    launched_s = known_sum(product.expected_s for product in identified.products)
    merged_s = identified.merged_expected_s
    if products.expected_s is None or launched_s is None or not merged_s:
        return products
    expected_s = products.expected_s - merged_s + launched_s  # beside those that it covers
    ratio = expected_s / products.expected_s
    low_s, high_s = products.expected_low_s, products.expected_high_s
    return replace(
        products,
        expected_s=expected_s,
        expected_low_s=None if low_s is None else low_s * ratio,
        expected_high_s=None if high_s is None else high_s * ratio,
    )


def _part(
    name: str, covers: tuple[str, ...], kernels: list[KernelOfPass], operators: list[OperatorResult]
) -> PartOfPass:
    return PartOfPass(
        part=name,
        covers=covers,
        launches=sum(kernel.launches for kernel in kernels),
        measured_s=sum(kernel.measured_s for kernel in kernels),
        bound_s=sum(op.bound_time_s for op in operators),
        expected_s=known_sum(op.expected_time_s for op in operators),
        expected_low_s=known_sum(op.expected_low_s for op in operators),
        expected_high_s=known_sum(op.expected_high_s for op in operators),
    )
