"""analyze(): a model on a device, operator by operator, for prefill and decode; memory; and the whole generation."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, Final

from . import __version__
from .advice import advise, fitting
from .errors import InputError
from .generation import generation, prefill_s, step_s
from .hardware import Hardware
from .layout import ALONE, Layout
from .memory import Memory, memory
from .model import Model
from .notes import notes
from .roofline import Estimate, OperatorEstimate
from .setting import Accounting, Attention, Mla, Setting, check_images, whole
from .transforms.offload import ON_DEVICE, Offload
from .workload import Workload

if TYPE_CHECKING:
    import pandas as pd

SCHEMA_VERSION: Final = 1  # of to_dict(); rises when a key changes its meaning or goes
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
    expected_time_s       what to expect of real kernels; None until a calibration exists
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
    share: float
    per_call: PerCall


@dataclass(frozen=True, kw_only=True)
class Total:
    """A phase as a whole. `bound` is what most of its time is bound by; `time_by_bound_s` has the parts. [s]"""

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
    time_by_bound_s: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Phase:
    """One forward pass: `batch` sequences of q_len new tokens that attend to kv_len.

    Of several devices, this is what one of them does, in every stage of a pipeline. `micro_batches` such passes follow
    each other through it, and the batch of all takes `time_s`: more than the sum over operators where stages wait.
    """

    batch: int
    micro_batches: int
    time_s: float
    q_len: int
    kv_len: int
    operators: tuple[OperatorResult, ...]
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
class GenerationResult:
    """Lower bounds. tpot_s, the mean over the decode steps, is None where one token is generated: no step is taken.

    A model that does not generate takes ttft_s for its one pass, and tokens_per_s are those that it reads.
    """

    ttft_s: float
    tpot_s: float | None
    latency_s: float
    tokens_per_s: float


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """What was asked. gen and kv_len are None where the model does not generate."""

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


@dataclass(frozen=True, kw_only=True)
class Analysis:
    """All that analyze() finds, as plain numbers in OPs, bytes and seconds."""

    model: Model
    hardware: Hardware
    inputs: Inputs
    phases: Phases
    memory: Memory
    generation: GenerationResult
    notes: tuple[str, ...]

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
            "notes": list(self.notes),
        }
        return {key: _plain(value) for key, value in document.items()}

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
    batch: int = 1,
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
) -> Analysis:
    """The roofline of `model` on `hardware`.

    model, hardware  names that ship, paths of files, or objects
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
    )
    return analyzed(setting, batch=batch, prompt=prompt, gen=gen, kv_len=kv_len, images=images, mtp=mtp)


def analyzed(
    setting: Setting, *, batch: int, prompt: int, gen: int, kv_len: int | None, images: int, mtp: bool
) -> Analysis:
    """What analyze() finds of a setting."""
    batch, prompt, gen = (whole(n, v) for n, v in (("batch", batch), ("prompt", prompt), ("gen", gen)))
    check_images(setting.model, prompt=prompt, images=whole("images", images, least=0))
    context = _context(setting.model, prompt=prompt, kv_len=kv_len)
    written = gen if context else 0
    longest = max(gen, context - prompt) if context else 0  # the step shown has to fit too
    share = int(setting.layout.share(batch))
    prefill = Workload.prefill(batch=share, prompt=prompt, images=images)
    decode = Workload.decode(batch=share, kv_len=context, prompt=prompt) if context else None
    footprint = memory(
        setting.footprint, setting.hardware.capacity, batch=batch, prompt=prompt, gen=longest, images=images
    )
    offloaded = fitting(setting, footprint, batch=batch, prompt=prompt, gen=longest, images=images)
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
        ),
        phases=Phases(
            prefill=_phase(setting, "prefill", prefill, footprint.max_batch, batch, offloaded=offloaded),
            decode=_phase(setting, "decode", decode, footprint.max_batch, batch, offloaded=offloaded)
            if decode
            else None,
        ),
        memory=footprint,
        generation=_generation(setting, batch=batch, prompt=prompt, gen=written, images=images),
        notes=notes(setting, prompt=prompt, written=longest, images=images),
    )


def describe_model(model: Model) -> dict[str, Any]:
    """The facts of a model that a list of models shows."""
    return {
        "name": model.name,
        "title": model.title,
        "model_type": model.model_type,
        "parameters": model.parameters,
        "active_parameters": model.active_parameters,
        "layers": model.graph.layers,
        "attention": model.attention,
        "generates": model.generates,
        "dtype": model.format.name,
        "kv_bytes_per_token": _whole(model.kv_bytes_per_token),
        "image_tokens": model.image_tokens,
        "max_context": model.max_context or None,
        "source": model.source,
        "aliases": list(model.aliases),
    }


def describe_hardware(hardware: Hardware) -> dict[str, Any]:
    """The rates that an analysis used, what-ifs included. [OP/s], [B/s], [B]"""
    return {
        "name": hardware.name,
        "title": hardware.title,
        "rates": {str(resource): rate for resource, rate in hardware.rates.items()},
        "capacity_bytes": hardware.capacity,
        "on_chip_bytes": hardware.on_chip_bytes if math.isfinite(hardware.on_chip_bytes) else None,
    }


def hardware_facts(hardware: Hardware) -> dict[str, Any]:
    """describe_hardware() and every number of the device's file, each with its source. SI units."""
    sources = {key: asdict(source) for key, source in hardware.sources.items()}
    facts = [
        {"key": f.key, "value": f.value, "text": f.text, "source": sources.get(f.source), "note": f.note}
        for f in hardware.facts
    ]
    about = ("vendor", "kind", "architecture", "released", "status", "aliases", "notes")
    document = {**describe_hardware(hardware), **{key: getattr(hardware, key) for key in about}, "facts": facts}
    return {key: _plain(value) for key, value in document.items()}


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


def _generation(setting: Setting, *, batch: int, prompt: int, gen: int, images: int) -> GenerationResult:
    """Of `gen` tokens, or of one pass where none are written."""
    if not gen:
        time_s = float(prefill_s(setting.plan, setting.layout, batch=batch, prompt=prompt, images=images))
        return GenerationResult(ttft_s=time_s, tpot_s=None, latency_s=time_s, tokens_per_s=batch * prompt / time_s)
    asked = {"batch": batch, "prompt": prompt, "gen": gen, "images": images}
    answer = generation(setting.plan, setting.decode_plan, layout=setting.layout, **asked)
    return GenerationResult(
        ttft_s=float(answer.ttft_s),
        tpot_s=None if gen == 1 else float(answer.tpot_s),
        latency_s=float(answer.latency_s),
        tokens_per_s=float(answer.tokens_per_s),
    )


def _phase(
    setting: Setting, name: str, workload: Workload, max_batch: int | None, batch: int, *, offloaded: Setting | None
) -> Phase:
    (sequences,) = workload.groups
    plan, layout = setting.plan_of(name), setting.layout
    lengths = {"batch": batch, "prompt": sequences.source}
    time_s = (
        step_s(plan, layout, kv_len=sequences.kv_len, **lengths)
        if name == "decode"
        else prefill_s(plan, layout, images=sequences.images, **lengths)
    )
    rows = plan.estimate(workload).operators
    estimate = Estimate(operators=tuple(row for row in rows if row.time_s > 0))  # what is run in this pass
    total = _total(estimate)
    return Phase(
        batch=int(sequences.batch),
        micro_batches=int(layout.parts(batch)),
        time_s=float(time_s),
        q_len=int(sequences.q_len),
        kv_len=int(sequences.kv_len),
        operators=tuple(_operator(row, total.bound_time_s) for row in estimate.operators),
        total=total,
        advice=advise(setting, workload, name, estimate, max_batch=max_batch, offloaded=offloaded),
    )


def _operator(row: OperatorEstimate, phase_s: float) -> OperatorResult:
    n = row.repeat
    limiting = row.limiting
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
        expected_time_s=None,
        share=float(n * row.time_s / phase_s),
        per_call=PerCall(**{f: float(getattr(row, f)) for f in _SUMS}, bound_time_s=float(row.time_s)),
    )


def _total(estimate: Estimate) -> Total:
    by_bound: dict[str, float] = {}
    for row in estimate.operators:
        bound = row.limiting.bound
        by_bound[bound] = by_bound.get(bound, 0.0) + float(row.repeat * row.time_s)
    sums = {field: float(estimate.sum(field)) for field in _SUMS}
    time_s = float(estimate.time_s)
    return Total(
        **sums,
        intensity=sums["ops"] / sums["bytes"],
        attainable_ops_per_s=sums["ops"] / time_s,
        bound=max(by_bound, key=by_bound.__getitem__),
        bound_time_s=time_s,
        expected_time_s=None,
        time_by_bound_s=by_bound,
    )


def _whole(value: float) -> float | int:
    return int(value) if float(value).is_integer() else value


def _plain(value: Any) -> Any:
    """`value` for JSON: whole floats as ints, so that counts read as counts."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return _whole(value) if isinstance(value, float) else value
