"""analyze(): a model on a device, operator by operator, for prefill and decode; memory; and the whole generation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from . import __version__
from .advice import Cure, advise, find_cures
from .answering import GenerationResult, ends, generated, scheduled
from .documents import LARGEST
from .effect import Effect, effect
from .errors import InputError
from .expectation.network import (
    BOUND_ONLY,
    LATENCY,
    Expected,
    Interval,
    Pass,
)
from .expectation.profile import Profile
from .facts import describe_hardware, describe_model, plain
from .hardware import Hardware
from .layout import ALONE, Layout
from .memory import Memory, largest_batch, memory
from .model import Model
from .notes import notes
from .roofline import Estimate, OperatorEstimate
from .setting import Accounting, Attention, Mla, Setting, arranges, check_images, whole
from .techniques import Schedule, Technique
from .transforms.offload import ON_DEVICE, Offload
from .units import counted, fold, si
from .workload import Workload

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd

SCHEMA_VERSION: Final = 1  # of to_dict(); rises when a key changes its meaning or goes
MAX: Final = "max"  # in place of a batch: the largest that fits
_NO_KERNELS: Final = f"{BOUND_ONLY}: survey accounting counts what no kernel does"
_TOLD: Final = 0.01  # of the time expected, when operators of which only the bound is known are named
_NAMED: Final = 4
_NOTABLY: Final = 1.25  # times as fast, when another library's kernels are told of
_SUMS: Final = ("ops", "bytes", "weight_bytes", "activation_bytes", "kv_bytes")


@dataclass(frozen=True, kw_only=True)
class PerCall:
    """One launch of an operator."""

    ops: float
    bytes: float
    weight_bytes: float
    activation_bytes: float
    kv_bytes: float
    bound_time_s: float


@dataclass(frozen=True, kw_only=True)
class OperatorResult:
    """One operator of a phase. OPs, bytes and times are of all its `repeat` launches; `per_call` is of one.

    attainable_ops_per_s  OPs over the bound; min(peak, intensity x bandwidth) where one unit does all the OPs
    bound                 "memory", "compute" or "link"; `limited_by` names the resource
    link_bytes            to and from other devices, host memory and storage
    compute_dtype         the type this device computes in, on its `compute_unit`; operands ask for `operand_dtype`
    expected_time_s       what to expect of real kernels, as `expectation_source` says; of measured times, 80 % lie from
                          expected_low_s to expected_high_s, which is None where only the bound is known
    regime                "latency" where fixed costs are most of what is expected, else `bound`
    share                 part of the phase's bound
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
    per_call: PerCall


@dataclass(frozen=True, kw_only=True)
class Total:
    """A phase as a whole. `bound` is what most of its time is bound by; `time_by_bound_s` has the parts. [s]

    unmodelled_share  of the time expected, that of operators of which only the bound is known
    host_s            of the time expected, that in which no kernel runs: the engine's host is not done with the next
    time_by_regime_s  parts of the time expected in which kernels run
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
    unmodelled_share: float | None
    host_s: float | None
    time_by_bound_s: Mapping[str, float]
    time_by_regime_s: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Phase:
    """One forward pass: `batch` sequences of q_len new tokens that attend to kv_len.

    Of several devices, this is what one of them does, in every stage of a pipeline. `micro_batches` such passes follow
    each other through it, and the batch of all takes `time_s`, and as expected `expected_time_s`: more than the sum
    over operators where stages wait.
    """

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
    advice: str


@dataclass(frozen=True, kw_only=True)
class Phases:
    """Both phases; iterates over (name, phase). A model that does not generate has one pass, the prefill."""

    prefill: Phase
    decode: Phase | None

    def __iter__(self) -> Iterator[tuple[str, Phase]]:
        named = (("prefill", self.prefill), ("decode", self.decode))
        return iter([(name, phase) for name, phase in named if phase])


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """What was asked. gen and kv_len are None where the model does not generate.

    batch_found  the batch is the largest that fits, which was asked for in place of a number
    """

    batch: int
    prompt: int
    gen: int | None
    kv_len: int | None
    images: int
    quant: str
    attention: Attention
    accounting: Accounting
    mla: Mla
    expert_skew: float
    mtp: bool
    layout: str
    devices: int
    offload: str
    hardware_set: tuple[str, ...]
    techniques: tuple[str, ...] = ()
    library: str = ""  # whose kernels are expected: as asked, or what stands in
    engine: str = ""  # that launches them
    profiles: tuple[str, ...] = ()  # before those that ship, files by the path that was given
    batch_found: bool = False


@dataclass(frozen=True, kw_only=True)
class Faster:
    """The library whose kernels are expected to be fastest in a phase, notably faster than the default's."""

    phase: str
    library: str
    expected_time_s: float
    speed_up: float


@dataclass(frozen=True, kw_only=True)
class Analysis:
    """All that analyze() finds, as plain numbers in OPs, bytes and seconds.

    rivals  works out `faster`, which is for reports and takes a part of the time of an analysis
    """

    model: Model
    hardware: Hardware
    inputs: Inputs
    phases: Phases
    memory: Memory
    generation: GenerationResult
    notes: tuple[str, ...]
    effect: Effect | None = None  # of techniques, where any were asked for
    rivals: Callable[[], tuple[Faster, ...]] = field(default=tuple, repr=False, compare=False)

    @cached_property
    def faster(self) -> tuple[Faster, ...]:
        """By phase, the fastest library where that is not the default, and none was asked for."""
        return self.rivals()

    @property
    def remarks(self) -> tuple[str, ...]:
        """The notes, and whether another library than the default is expected to be notably faster."""
        by_library: dict[str, list[str]] = {}
        for one in self.faster:
            phase = one.phase if self.model.generates else "the one pass"
            by_library.setdefault(one.library, []).append(f"{phase} {fold(one.speed_up, 2)}")
        said = "; ".join(f"{' and '.join(gains)} with --library {name}" for name, gains in by_library.items())
        usual = f"other libraries than {self.inputs.library}, the default here, are faster"
        return (*self.notes, *((f"as expected of kernels, {usual}: {said}",) if said else ()))

    def to_dict(self) -> dict[str, Any]:
        """The JSON document; docs/json.md has its keys. Whole numbers are ints, what is unknown is None."""
        model, hardware = self.model, self.hardware
        document = {
            "schema_version": SCHEMA_VERSION,
            "llmviewer_version": __version__,
            "model": describe_model(model),
            "hardware": describe_hardware(hardware),
            "inputs": asdict(self.inputs),
            "phases": {"decode": None} | {name: asdict(phase) for name, phase in self.phases},
            "memory": {
                **asdict(self.memory),
                "total_bytes": self.memory.total_bytes,
                "fits": self.memory.fits,
            },
            "generation": asdict(self.generation),
            "effect": asdict(self.effect) | {"speed_up": self.effect.speed_up} if self.effect else None,
            "faster": [asdict(one) for one in self.faster],
            "notes": list(self.remarks),
        }
        return plain(document)

    def to_frame(self) -> pd.DataFrame:
        """One row per phase and operator, the fields of OperatorResult as columns."""
        import pandas as pd

        names = [f.name for f in fields(OperatorResult) if f.name != "per_call"]
        return pd.DataFrame(
            {"phase": phase_name, **{name: getattr(op, name) for name in names}}
            for phase_name, phase in self.phases
            for op in phase.operators
        )


def analyze(
    model: str | Model,
    hardware: str | Hardware,
    *,
    batch: int | str = 1,
    prompt: int = 1024,
    gen: int = 128,
    kv_len: int | None = None,
    images: int = 0,
    quant: str | None = None,
    attention: str | None = None,
    accounting: str = "faithful",
    mla: str = "auto",
    expert_skew: float = 0,
    mtp: bool = False,
    layout: str | Layout = ALONE,
    offload: str | Offload = ON_DEVICE,
    hardware_set: Sequence[str] = (),
    techniques: Sequence[str | Mapping[str, object] | Technique] = (),
    library: str = "",
    engine: str = "",
    profiles: Sequence[str | Path | Profile] = (),
) -> Analysis:
    """The roofline of `model` on `hardware`.

    model, hardware  names that ship, paths of files, or objects
    batch            sequences at a time; "max" are as many as fit the memory
    prompt, gen      tokens read and tokens written, of each of `batch` sequences: by encoder and decoder where there
                     are both; what does not generate writes none
    kv_len           tokens that the decode step shown attends to, its own included; those of the first step if None
    images           pictures in each prompt, of which their tokens are a part; a tower reads them in the prefill
    quant            such as "W4A16g128", "W8A8KV8", "fp8" or "W4A16,down_proj=W8A16"; as published if None
    attention        "flash" or "eager"; "flash" if None, but "eager" in the survey's accounting
    mla              "naive" or "absorbed" latent attention; naive in the prefill and absorbed in decode if "auto"
    expert_skew      popularity of experts is rank^-expert_skew; all are alike popular at 0
    mtp              every pass also runs the layers that predict further tokens, once for each of its tokens
    layout           degrees of parallelism, such as "tp=8 pp=2"; `batch` is that of all devices together
    offload          parts that lie in host memory or on storage, such as "weights=0.5,kv=0.2@storage"
    hardware_set     what-ifs such as "memory.bandwidth=2x"
    techniques       such as "speculative:draft=llama-68m,gamma=4,alpha=0.7" (docs/techniques.md)
    library          whose kernels times are expected of, such as "vllm"; the one of which most was measured on the
                     device if ""
    profiles         files that `llmviewer calibrate` wrote, before those that ship
    engine           that launches them, such as "huggingface" (docs/serving.md); without gaps between them if ""

    Raises InputError, one line of text, where something given cannot be used.
    """
    setting = Setting.of(
        model,
        hardware,
        quant=quant,
        attention=attention,
        accounting=accounting,
        mla=mla,
        expert_skew=expert_skew,
        mtp=mtp,
        layout=layout,
        offload=offload,
        hardware_set=hardware_set,
        techniques=techniques,
        library=library,
        engine=engine,
        profiles=profiles,
    )
    return analyzed(setting, batch=batch, prompt=prompt, gen=gen, kv_len=kv_len, images=images, mtp=mtp)


def analyzed(
    setting: Setting, *, batch: int | str, prompt: int, gen: int, kv_len: int | None, images: int, mtp: bool
) -> Analysis:
    """What analyze() finds of a setting."""
    given = None if batch == MAX else whole("batch", batch)
    prompt, gen = whole("prompt", prompt), whole("gen", gen)
    check_images(setting.model, prompt=prompt, images=whole("images", images, least=0))
    context = _context(setting.model, prompt=prompt, kv_len=kv_len)
    written = gen if context else 0
    longest = max(gen, context - prompt) if context else 0  # the step shown has to fit too
    batch = _most(setting, prompt=prompt, gen=longest, images=images) if given is None else given
    if batch * (prompt + longest) > LARGEST:
        must = f"batch x tokens of a sequence must be at most {LARGEST}, the largest that is counted exactly"
        raise InputError(f"{must}; got {batch} x {prompt + longest}")
    share = int(setting.layout.share(batch))
    prefill = setting.prefill(Workload.prefill(batch=share, prompt=prompt, images=images))
    decode = setting.step(Workload.decode(batch=share, kv_len=context, prompt=prompt)) if context else None
    asked = {"batch": batch, "prompt": prompt, "gen": written or 1, "images": images}
    schedule = setting.schedule(**asked) if setting.techniques else None
    footprint = memory(
        setting.footprint, setting.hardware.capacity, batch=batch, prompt=prompt, gen=longest, images=images
    )
    cures = find_cures(setting, footprint, batch=batch, prompt=prompt, gen=longest, images=images)

    def fits(changed: Setting) -> bool:
        """Whether an offer has room, where what is asked has."""
        needed = changed.footprint.total_bytes(batch=batch, prompt=prompt, gen=longest, images=images)
        return not footprint.fits or float(needed) <= footprint.capacity_bytes

    told = partial(_phase, setting, fits=fits, cures=cures)
    phases = Phases(
        prefill=told("prefill", prefill, footprint.max_batch, batch),
        decode=told("decode", decode, footprint.max_batch, batch) if decode else None,
    )
    if schedule and written and arranges(setting.techniques):
        answer = scheduled(setting, schedule)
    else:
        answer = generated(setting, batch=batch, prompt=prompt, gen=written, images=images)
    return Analysis(
        model=setting.model,
        hardware=setting.hardware,
        inputs=Inputs(
            batch=batch,
            prompt=prompt,
            gen=written or None,
            kv_len=context,
            images=images,
            quant=str(setting.quantization),
            attention=setting.attention,
            accounting=setting.accounting,
            mla=setting.mla,
            expert_skew=setting.expert_skew,
            mtp=mtp,
            layout=str(setting.layout) if setting.layout.devices > 1 else "",
            devices=setting.layout.devices,
            offload=str(setting.offload),
            hardware_set=tuple(setting.hardware.changes),
            techniques=tuple(map(str, setting.techniques)),
            library=setting.kernels.library if setting.kernels else "",
            engine=setting.engine.name if setting.engine else "",
            profiles=tuple(dict.fromkeys(profile.name for profile in setting.profiles)),
            batch_found=given is None,
        ),
        phases=phases,
        memory=footprint,
        generation=answer,
        notes=(
            *(_said(setting, batch=batch, tokens=prompt + longest) if given is None else ()),
            *notes(setting, batch=batch, prompt=prompt, written=longest, images=images),
            *_unmodelled(phases),
        ),
        effect=_effect(setting, schedule, decode, answer, **asked) if schedule else None,
        rivals=partial(_faster, setting, phases, {"prefill": prefill, "decode": decode}, batch),
    )


def _faster(
    setting: Setting, phases: Phases, workloads: Mapping[str, Workload | None], batch: int
) -> tuple[Faster, ...]:
    """What Analysis.faster is. A library that lacks kernels which the default has is not held against it: of those
    only the bound is known.
    """
    if setting.library or not setting.kernels:
        return ()
    others = [(name, replace(setting, library=name).kernels) for name in setting.kernels.usual[1:]]
    found: dict[str, Faster] = {}
    for name, phase in phases:
        workload, usual, share = workloads[name], phase.expected_time_s, phase.total.unmodelled_share
        if workload is None or usual is None or share is None or phase.total.expected_time_s is None:
            continue
        least = usual / _NOTABLY
        rows = [row for row in setting.plan_of(name).estimate(workload).operators if row.time_s > 0]
        most = share * phase.total.expected_time_s
        for library, kernels in others:
            assert kernels is not None  # accounting is faithful
            made = kernels.expect(rows, workload)
            alone = float(made.unmodelled_share[0] * np.sum(made.total.expected))
            time_s, *_ = setting.expected(name, made, batch).numbers()
            if alone <= most * (1 + _TOLD) and time_s <= least:
                least = time_s
                found[name] = Faster(phase=name, library=library, expected_time_s=time_s, speed_up=usual / time_s)
    return tuple(found.values())


def _most(setting: Setting, *, prompt: int, gen: int, images: int) -> int:
    """The largest batch that fits.

    Raises InputError where not one sequence does, or nothing limits them.
    """
    device, size = setting.hardware, {"prompt": prompt, "gen": gen, "images": images}
    found = largest_batch(setting.footprint, device.capacity, **size)
    if found is None:
        raise InputError(f"batch max: nothing in the memory of {device.name} limits the batch; give a number")
    if not found:
        weights, cache, live = map(float, setting.footprint.parts(batch=1, **size))
        each = "each device" if setting.layout.devices > 1 else "it"
        raise InputError(
            f"batch max: {setting.model.name} with one sequence of {prompt + gen} tokens does not fit {device.name}: "
            f"{each} needs {si(weights + cache + live)}B (weights {si(weights)}B, KV cache {si(cache)}B, live "
            f"activations {si(live)}B) and has {si(device.capacity)}B; use fewer bits (--quant), more devices (--tp) "
            "or larger ones"
        )
    return found


def _said(setting: Setting, *, batch: int, tokens: int) -> Iterator[str]:
    """That the batch was found, and of what."""
    where = f"the {si(setting.hardware.capacity)}B of {'each' if setting.layout.devices > 1 else 'the'} device"
    yield (
        f"batch max: {counted(batch, 'sequence')} of {tokens} tokens: as many as have room for weights, KV cache and "
        f"the live activations of all prompts read at once in {where}; what allocators and engines keep is not counted"
    )


def _effect(
    setting: Setting, schedule: Schedule, step: Workload | None, answer: GenerationResult, **asked: int
) -> Effect:
    """effect(), with what is expected of it."""
    found, with_it = effect(setting, schedule, step, **asked), answer.expected_latency_s
    without = generated(setting.bare(), **asked).expected_latency_s if with_it else None
    return replace(found, expected_speed_up=without / with_it) if with_it and without else found


def _context(model: Model, *, prompt: int, kv_len: int | None) -> int | None:
    """Tokens that the decode step shown attends to; None where there is none."""
    given = None if kv_len is None else whole("kv_len", kv_len)
    if not model.generates:
        if given:
            raise InputError(f"kv_len is of a decode step, and {model.name} does not generate; leave it out")
        return None
    if given and model.encodes and given <= prompt:
        must = f"kv_len must be more than the {prompt} tokens of the prompt, which the encoder of {model.name} reads"
        raise InputError(f"{must}; got {given}")
    return given or prompt + 1


def _unmodelled(phases: Phases) -> Iterator[str]:
    """Of what no time above the bound is expected, where it is worth telling."""
    for name, phase in phases:
        total = phase.total
        if total.expected_time_s is None:
            yield f"no time is expected above the bound: {total.expectation_source.removeprefix(f'{BOUND_ONLY}: ')}"
            return
        if total.unmodelled_share and total.unmodelled_share > _TOLD:
            alone = dict.fromkeys(op.name for op in phase.operators if op.expectation_source.startswith(BOUND_ONLY))
            more = ", ..." if len(alone) > _NAMED else ""
            names = f"{', '.join(list(alone)[:_NAMED])}{more}"
            yield f"{total.unmodelled_share:.0%} of the {name} expected is the bound: no kernel of {names} was measured"


def _phase(
    setting: Setting,
    name: str,
    workload: Workload,
    max_batch: int | None,
    batch: int,
    *,
    fits: Callable[[Setting], bool],
    cures: Sequence[Cure] | None,
) -> Phase:
    (sequences,) = workload.groups
    rows = setting.plan_of(name).estimate(workload).operators
    estimate = Estimate(operators=tuple(row for row in rows if row.time_s > 0))  # what is run in this pass
    found = setting.kernels.expect(estimate.operators, workload) if setting.kernels else None
    whole = setting.expected(name, found, batch) if found and found.modelled else None
    total = _total(estimate, found)
    launches: Sequence[Expected | None] = found.launches if found else [None] * len(estimate.operators)
    return Phase(
        batch=int(sequences.batch),
        micro_batches=int(setting.layout.parts(batch)),
        time_s=float(setting.time_s(name, workload, batch)),
        **_expected(whole),
        q_len=int(sequences.q_len),
        kv_len=int(sequences.kv_len),
        operators=tuple(_operator(row, each, total) for row, each in zip(estimate.operators, launches, strict=True)),
        total=total,
        advice=advise(
            setting, workload, name, estimate, found, batch=batch, max_batch=max_batch, fits=fits, cures=cures
        ),
    )


def _expected(whole: Interval | None) -> dict[str, Any]:
    """Fields of what a phase is expected to take."""
    return {f"expected{end or '_time'}_s": value for end, value in ends(whole).items()}


def _operator(row: OperatorEstimate, each: Expected | None, phase: Total) -> OperatorResult:
    n = row.repeat
    limiting = row.limiting
    known = each if phase.expected_time_s is not None else None
    high = float(n * known.high[0]) if known and known.modelled else None
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
        operand_dtype=row.wanted.dtype,
        bound_time_s=float(n * row.time_s),
        expected_time_s=float(n * known.expected[0]) if known else None,
        expected_low_s=float(n * known.low[0]) if known else None,
        expected_high_s=high,
        expectation_source=each.source if each else _NO_KERNELS,
        regime=_regime(row, known) if known else None,
        share=float(n * row.time_s / phase.bound_time_s),
        per_call=PerCall(**{f: float(getattr(row, f)) for f in _SUMS}, bound_time_s=float(row.time_s)),
    )


def _regime(row: OperatorEstimate, each: Expected) -> str:
    return LATENCY if each.latency[0] else str(row.limiting.bound)


def _total(estimate: Estimate, found: Pass | None) -> Total:
    by_bound = estimate.waits_s
    by_regime: dict[str, float] = {}
    known = found if found and found.modelled else None
    for row, each in zip(estimate.operators, known.launches if known else (), strict=known is not None):
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
        **_expected(known.total if known else None),
        expectation_source=found.source if found else _NO_KERNELS,
        unmodelled_share=float(known.unmodelled_share[0]) if known else None,
        host_s=float(np.sum(known.total.expected) - np.sum(known.kernels.expected)) if known else None,
        time_by_bound_s=by_bound,
        time_by_regime_s=by_regime,
    )
