"""analyze(): a model on a device, operator by operator, for prefill and decode; memory; and the whole generation."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, field, fields, replace
from functools import cache, cached_property, partial
from math import isclose
from typing import TYPE_CHECKING, Any, ClassVar, Final, Unpack, overload

from .. import __version__, arguments
from ..devices.hardware import Hardware
from ..errors import CapacityError, InputError
from ..memory import Memory
from ..model import Model
from ..options import AnalysisArguments, RequestOptions, SettingOptions, document_options, only
from ..records import frozen
from ..request import Inputs, Request
from ..rows import Rows
from ..server_memory import Capacity, capacity, reserves_memory
from ..setting import Setting
from ..units import counted, fold, seconds, si
from ..variants.evaluation import Evaluation
from ..variants.libraries import FasterLibrary, faster_libraries
from ..variants.memory_fixes import MemoryFixes, memory_fixes
from .advice import advice
from .facts import describe_hardware, describe_model, plain
from .generation import GenerationResult
from .measured import RatedMeasurement, rate_measurements
from .measured import check as check_measured
from .notes import notes, robot_notes, server_notes
from .phases import OperatorResult, Phases, phase, unmodelled_notes
from .precision_effect import PrecisionEffect, precision_effect

if TYPE_CHECKING:
    from .effect import Effect

SCHEMA_VERSION: Final = 1  # of to_dict(); incremented when a key changes its meaning or is removed
MAX: Final = "max"  # value of batch: the largest that fits
_CUDA_CONTEXT_BYTES: Final = 1e9  # upper end of the memory of a CUDA context [B]


@frozen(kw_only=True, repr=False)
class Analysis(Rows):
    """Result of analyze(), in OPs, bytes and seconds.

    setting   model, device, precision, layout, techniques and kernels
    request   batch and lengths; gen and kv_len are None if the model does not generate
    effect    effect of techniques; None without techniques
    precision_effect  effect of a precision other than the published one, by phase and on the generation; None without
    measured  verdicts on times that the user measured
    find_faster    computes `faster` on first use, as it is slow and only reports show it
    find_memory_fixes     computes `memory_fixes` likewise
    evaluation  of the generation, the base of variants; None for devices of two kinds
    """

    report: ClassVar = "analysis"

    setting: Setting = field(repr=False, compare=False)
    model: Model
    hardware: Hardware
    request: Request
    phases: Phases = field(repr=False)
    memory: Memory = field(repr=False)
    generation: GenerationResult
    notes: tuple[str, ...] = field(repr=False)
    effect: Effect | None = field(default=None, repr=False)
    precision_effect: Mapping[str, PrecisionEffect] | None = field(default=None, repr=False)
    measured: tuple[RatedMeasurement, ...] = field(default=(), repr=False)
    find_faster: Callable[[], tuple[FasterLibrary, ...]] = field(default=tuple, repr=False, compare=False)
    evaluation: Evaluation | None = field(default=None, repr=False, compare=False)
    find_memory_fixes: Callable[[], MemoryFixes | None] = field(default=lambda: None, repr=False, compare=False)

    @cached_property
    def inputs(self) -> Inputs:
        """The arguments, as in the JSON document."""
        goal = {"batch_found": self.request.largest, "tpot_goal_s": self.request.tpot_s}
        return Inputs({**self.request.inputs(), **self.setting.inputs(), **goal})

    @cached_property
    def capacity(self) -> Capacity:
        """Capacity of the server, for requests of this length; without an engine, what memory allows at most."""
        return capacity(self.setting, self.request.longest)

    @cached_property
    def faster(self) -> tuple[FasterLibrary, ...]:
        """Fastest library of each phase, if it is not the default and the user chose none."""
        return self.find_faster()

    @cached_property
    def memory_fixes(self) -> MemoryFixes | None:
        """Changes that make the request fit the memory; None if it fits."""
        return self.find_memory_fixes()

    @property
    def remarks(self) -> tuple[str, ...]:
        """The notes, and libraries that are expected to be notably faster than the default."""
        by_library: dict[str, list[str]] = {}
        for one in self.faster:
            phase = one.phase if self.model.generates else "the one pass"
            by_library.setdefault(one.library, []).append(f"{phase} {fold(one.speed_up, 2)}")
        alternatives = "; ".join(f"{' and '.join(gains)} with --library {name}" for name, gains in by_library.items())
        heading = f"expected to be faster than {self.inputs['library']}, the default library"
        return (*self.notes, *((f"{heading}: {alternatives}",) if alternatives else ()))

    def to_dict(self) -> dict[str, Any]:
        """The JSON document; docs/json.md lists its keys. Whole numbers are ints, unknown values None."""
        model, hardware = self.model, self.hardware
        document = {
            "schema_version": SCHEMA_VERSION,
            "llmviewer_version": __version__,
            "model": describe_model(model),
            "hardware": describe_hardware(hardware),
            "inputs": self.inputs,
            "phases": {"decode": None} | {name: phase.to_dict() for name, phase in self.phases},
            "memory": {
                **asdict(self.memory),
                "total_bytes": self.memory.total_bytes,
                "fits": self.memory.fits,
                "kv_capacity_tokens": self.capacity.kv_capacity_tokens,
                "server": asdict(self.capacity),
            },
            "generation": asdict(self.generation),
            "effect": asdict(self.effect) | {"speed_up": self.effect.speed_up} if self.effect else None,
            "precision_effect": {name: asdict(one) for name, one in self.precision_effect.items()}
            if self.precision_effect
            else None,
            "measured": [asdict(one) for one in self.measured],
            "faster": [asdict(one) for one in self.faster],
            "notes": list(self.remarks),
        }
        return plain(document)

    def rows(self) -> Iterator[dict[str, Any]]:
        """Rows of all operators by phase, with the fields of OperatorResult."""
        names = [f.name for f in fields(OperatorResult) if f.name != "per_call"]
        for phase_name, one in self.phases:
            for op in one.operators:
                yield {"phase": phase_name, **{name: getattr(op, name) for name in names}}


@overload
def analyze(setting: Setting, request: Request, /, *, measured: Mapping[str, float] | None = None) -> Analysis: ...


@overload
def analyze(
    model: str | Model,
    hardware: str | Hardware,
    *,
    measured: Mapping[str, float] | None = None,
    **options: Unpack[AnalysisArguments],
) -> Analysis: ...


@document_options(AnalysisArguments)
def analyze(
    model: str | Model | Setting,
    hardware: str | Hardware | Request,
    *,
    measured: Mapping[str, float] | None = None,
    **options: Unpack[AnalysisArguments],
) -> Analysis:
    """Bounds and expected times of `model` on `hardware`, for prefill, decode and a whole generation.

    Also analyze(setting, request), of a Setting and a Request.

    model, hardware  shipped names, paths of files, or objects
    batch            "max": as many sequences as fit the memory
    prompt, gen      with encoder and decoder, tokens of each; `gen` is ignored for models that do not generate
    images           `prompt` includes their tokens, and the prefill runs their encoder
    measured         what took how long on your machine, such as {"tpot_s": 0.025}: the result rates it; of "ttft_s",
                     "tpot_s", "latency_s" [s] and "tokens_per_s" [1/s] of the generation

    Raises InputError, with one line of text, if an argument is invalid.
    """
    if isinstance(model, Setting):
        setting, request, batch_is_max = model, hardware, False
        if not isinstance(request, Request):
            raise InputError(f"request must be a Request, which follows a Setting; got {request!r}")
        if options:
            raise InputError(f"{next(iter(options))} must be left out after a Setting and a Request, which have it")
    elif isinstance(hardware, Request):
        raise InputError(f"model must be a Setting before a Request; got {model!r}")
    else:
        arguments.check_options(options, AnalysisArguments)
        setting = Setting.of(model, hardware, **only(options, SettingOptions))
        numbers: Any = only(options, RequestOptions)
        batch_is_max = isinstance(numbers.get("batch"), str) and numbers["batch"] == MAX
        request = Request.of(**numbers | ({"batch": 1} if batch_is_max else {}))
    tpot = options.get("tpot")
    _check_tpot(tpot, batch_is_max)
    measured_values = check_measured(measured)
    request = request.of_model(setting.model)
    if batch_is_max:
        request = largest_request(setting, request, tpot=tpot)
    request.check_countable()
    if setting.engine:
        setting.engine.check_accepts(request.longest)
    return _analysis(setting, request, measured_values)


def largest_request(setting: Setting, request: Request, *, tpot: float | None = None) -> Request:
    """The request with the largest batch that fits the memory, and whose time per output token is at most `tpot` [s].

    Raises InputError if no sequence fits, the memory does not limit the batch, or even one sequence takes longer.
    """
    request = request.of_model(setting.model)
    read = {"prompt": request.prompt, "images": request.images}
    batch = _max_batch_in_memory(setting, gen=request.longest - request.prompt, **read)
    if tpot is not None:
        batch = _max_batch_within_tpot(setting, tpot, batch, gen=request.gen or 0, **read)
    return replace(request, batch=batch, largest=True, tpot_s=tpot)


def _analysis(setting: Setting, request: Request, measured_values: Mapping[str, float]) -> Analysis:
    """analyze() of a setting and a request with all numbers; `took` as in check_measured()."""
    evaluation = Evaluation.of(setting, request)
    evaluation.expect_all()
    memory = evaluation.memory
    max_batch = memory.max_batch if request.tpot_s is None else request.batch  # a larger batch would exceed the limit
    if setting.engine and (running := setting.engine.options.max_num_seqs):
        running *= setting.layout.dp
        max_batch = running if max_batch is None else min(max_batch, running)
    fixes = cache(partial(memory_fixes, evaluation))
    phase_by_name = {
        name: phase(evaluation, name, partial(advice, evaluation, name, max_batch=max_batch, fixes=fixes))
        for name in evaluation.phases
    }
    phases = Phases(prefill=phase_by_name["prefill"], decode=phase_by_name.get("decode"))
    result = GenerationResult.of(evaluation)
    technique_effect = _effect(evaluation) if setting.techniques else None
    return Analysis(
        setting=setting,
        model=setting.model,
        hardware=setting.hardware,
        request=request,
        phases=phases,
        memory=memory,
        generation=result,
        notes=(
            *(_largest_note(setting, request, memory) if request.largest else _low_memory_note(setting, memory)),
            *robot_notes(setting.model, result, evaluation.gen),
            *notes(evaluation, generated=request.longest - request.prompt),
            *server_notes(setting, request.batch, prompt_tokens=request.batch * request.prompt),
            *(_no_effect_note(setting, technique_effect) if technique_effect else ()),
            *(() if setting.bound else unmodelled_notes(phases)),
        ),
        effect=technique_effect,
        precision_effect=precision_effect(evaluation),
        measured=rate_measurements(measured_values, result, setting),
        find_faster=partial(faster_libraries, evaluation),
        evaluation=evaluation,
        find_memory_fixes=fixes,
    )


def _max_batch_in_memory(setting: Setting, *, prompt: int, gen: int, images: int) -> int:
    """The largest batch that fits.

    Raises InputError if no sequence fits, or the batch is unlimited.
    """
    device, one = setting.hardware, Evaluation(setting=setting, batch=1, prompt=prompt, gen=gen, images=images).memory
    max_batch = one.max_batch
    if max_batch is None:
        raise InputError(f"batch max: the memory of {device.name} does not limit the batch; give a number")
    if not max_batch:
        each = "each device" if setting.layout.devices > 1 else "it"
        raise CapacityError(
            f"batch max: {setting.model.name} with one sequence of {prompt + gen} tokens does not fit {device.name}: "
            f"{each} needs {si(one.total_bytes)}B (weights {si(one.weight_bytes)}B, KV cache "
            f"{si(one.kv_cache_bytes)}B, live activations {si(one.activation_bytes)}B) and has "
            f"{si(one.capacity_bytes)}B; use fewer bits (--quant), more devices (--tp) or larger ones"
        )
    return max_batch


def _check_tpot(tpot: float | None, batch_is_max: bool) -> None:
    """Raises InputError if tpot is not positive, or given without batch max."""
    arguments.check_positive(tpot=tpot)
    if tpot is not None and not batch_is_max:
        raise InputError("tpot must come with batch max, which it limits; give batch max or leave out tpot")


def _max_batch_within_tpot(setting: Setting, tpot: float, max_batch: int, *, prompt: int, gen: int, images: int) -> int:
    """The largest batch up to `most` whose time per output token is at most `tpot`.

    Raises InputError if even one sequence takes longer, or there is no time per output token.
    """
    if gen < 2:
        raise InputError(f"tpot needs at least two generated tokens; got {gen}; leave it out")

    def took_s(batch: int) -> float:
        evaluation = Evaluation(setting=setting, batch=batch, prompt=prompt, gen=gen, images=images)
        return float(evaluation.likely.tpot_s)

    batch = bisect_right(range(1, max_batch + 1), tpot, key=took_s)
    if not batch:
        raise InputError(
            f"batch max: with one sequence, a token takes {seconds(took_s(1))}, longer than tpot, {seconds(tpot)}"
        )
    return batch


def _largest_note(setting: Setting, request: Request, memory: Memory) -> Iterator[str]:
    """Conditions under which the batch is the largest."""
    batch, tpot = request.batch, request.tpot_s
    if tpot is not None:
        yield f"batch max: {counted(batch, 'sequence')} fit the memory with TPOT <= {seconds(tpot)}"
        return
    each = " of each device" if setting.layout.devices > 1 else ""
    parts = (
        "weights, KV cache, and activations of one prefill of all prompts, without overhead of allocators and engines"
    )
    if reserves_memory(setting):
        parts = "weights, KV cache, activations of a step, and the engine's own memory"
    fitting = f"{counted(batch, 'sequence')} of {request.longest:,} tokens fit {si(memory.capacity_bytes)}B{each}"
    yield f"batch max: {fitting}: {parts}"


def _low_memory_note(setting: Setting, memory: Memory) -> Iterator[str]:
    """A warning if less memory is left than a CUDA context may take, which engines reserve."""
    if reserves_memory(setting):
        return
    spare = memory.capacity_bytes - memory.total_bytes
    if 0 <= spare < _CUDA_CONTEXT_BYTES:
        uncounted = "allocators, engines and drivers (0.3 to 1 GB for a CUDA context) are not counted"
        yield f"{si(spare)}B free may be too little: {uncounted}"


def _no_effect_note(setting: Setting, effect: Effect) -> list[str]:
    """A note where techniques change neither times nor work nor memory."""
    compared = [one for one in setting.techniques if not one.one_pass or one.baseline() != one]
    if not compared or not effect.result.alike(effect.without) or not isclose(effect.expected_speed_up or 1.0, 1.0):
        return []
    verb = "have" if len(compared) > 1 else "has"
    named = " and ".join(map(str, compared))
    return [f"{named} {verb} no effect on {setting.model.name} here: times, work and memory are those without"]


def _effect(evaluation: Evaluation) -> Effect:
    from .effect import effect  # few analyses have techniques

    return effect(evaluation)
