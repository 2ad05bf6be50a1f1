"""fit(): the shipped models that run on a device, at which precision, how fast, and with how much room."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import field, replace
from itertools import groupby
from typing import Any, ClassVar, Final, NamedTuple, Unpack

from .. import __version__, arguments
from ..devices.files import loaded
from ..devices.hardware import Hardware
from ..devices.local import local_device
from ..errors import InputError
from ..expectation.engines import Engine
from ..expectation.expected import Interval
from ..expectation.whole_passes import has_hbm
from ..model_files import load_model, model_facts
from ..model_index import ModelFacts, all_facts
from ..options import EngineOptions, MachineOptions, document_options
from ..records import frozen
from ..rows import Rows
from ..server_memory import capacity, reserves_memory
from ..setting import Setting, engine_on, whole_number
from ..transforms.quantize import PUBLISHED, parse_quantization
from ..variants.changes import LOCAL_PRECISIONS
from ..variants.evaluation import Evaluation

SCHEMA_VERSION: Final = 1  # of to_dict()
CONTEXT: Final = 8192  # tokens of a conversation
MAX_SHOWN: Final = 30  # models by default: each is evaluated by its own graph
_CHUNK: Final = 512  # prompt tokens of the pass whose activations are counted
_PREFILTER: Final = 0.8  # share of parameters that all models store in the format of their precision
_UNLIMITED: Final = 1 << 20  # tokens, of models whose longest context is unknown
_WIDE_BITS: Final = 16
_NARROW_BITS: Final = 8.5  # weights that are published so narrow need no other precision


class _WeightFormat(NamedTuple):
    """A precision of weights, and the bits of a weight with its scales."""

    quant: str
    bits: float


_SERVER_PRECISIONS: Final = (_WeightFormat("fp8", 8), _WeightFormat("W4A16g128", 4.125))


@frozen(kw_only=True)
class Fitting:
    """A model that runs on the device, one sequence at a time with `context` tokens.

    others       models of the same shape
    evaluation   one sequence of `context` tokens
    max_context  tokens that fit, at most those of the model
    """

    facts: ModelFacts
    others: tuple[str, ...]
    quant: str
    evaluation: Evaluation = field(repr=False)
    max_context: int

    @property
    def memory_bytes(self) -> float:
        """Weights, cache, activations and overhead. [B]"""
        return self.evaluation.memory.total_bytes

    @property
    def usable_bytes(self) -> float:
        """Memory of the device that the engine may use. [B]"""
        return self.evaluation.memory.capacity_bytes

    @property
    def room_bytes(self) -> float:
        """Memory that is left. [B]"""
        return self.usable_bytes - self.memory_bytes

    @property
    def bound_s(self) -> float:
        """Lower bound of a decode step at the end of the context. [s]"""
        return float(self.evaluation.pass_s("decode"))

    @property
    def step_s(self) -> Interval | None:
        """Expected time of that step; None if only the bound is known. [s]"""
        return self.evaluation.expected_pass_s("decode")

    @property
    def tokens_per_s(self) -> float:
        """Expected decode speed; that of the bound if only it is known."""
        return 1 / float(self.step_s.expected if self.step_s else self.bound_s)


class ShorterContext(NamedTuple):
    """The longest context with which a model runs that does not fit with the one asked for, and its precision."""

    model: str
    quant: str
    tokens: int


@frozen(kw_only=True, repr=False)
class MachineFit(Rows):
    """The result of fit(), the largest models first.

    engine      serving engine of memory and expected times; None: no kernels are known on the device, so speeds
                are bounds, and memory is what is physically possible
    is_default_engine  whether the engine was not given
    is_local    whether the device was not given, and is the GPU of this machine
    context     tokens of a conversation
    target      least decode speed [tokens/s]; 0: any
    too_large   shipped models that do not fit in any of the precisions, the smallest first
    shorter     those of them that fit with a shorter context
    too_slow    models that fit, but do not reach tokens_per_s in any of the precisions
    short       models with a shorter context
    unevaluated smaller models, which were not evaluated
    refused     models that the device or the engine cannot run, with the reason
    """

    report: ClassVar = "machine_fit"

    hardware: Hardware
    engine: Engine | None
    is_default_engine: bool
    is_local: bool
    context: int
    target: float
    quants: tuple[str, ...]
    fitting: tuple[Fitting, ...] = field(repr=False)
    too_large: tuple[str, ...] = field(repr=False)
    shorter: tuple[ShorterContext, ...] = field(repr=False)
    too_slow: tuple[str, ...] = field(repr=False)
    short: tuple[str, ...] = field(repr=False)
    unevaluated: tuple[str, ...] = field(repr=False)
    refused: tuple[tuple[str, str], ...] = field(repr=False)

    @property
    def inputs(self) -> dict[str, Any]:
        """The inputs of the JSON document."""
        return {
            "context": self.context, "tokens_per_s": self.target or None,
            "engine": self.engine.name if self.engine else None,
            "quants": list(self.quants), "hardware_set": list(self.hardware.changes),
        }  # fmt: skip

    def rows(self) -> Iterator[dict[str, Any]]:
        """A row for each model that runs."""
        for one in self.fitting:
            step = one.step_s
            yield {
                "model": one.facts.name, "same_shape": " ".join(one.others), "parameters": one.facts.parameters,
                "active_parameters": one.facts.active_parameters, "quant": one.quant,
                "memory_bytes": one.memory_bytes, "room_bytes": one.room_bytes, "max_context": one.max_context,
                "decode_s": one.bound_s, "expected_decode_s": step and float(step.expected),
                "expected_decode_low_s": step and float(step.low), "expected_decode_high_s": step and float(step.high),
                "tokens_per_s": one.tokens_per_s,
            }  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """The JSON document; docs/compare.md has its keys."""
        return {
            "schema_version": SCHEMA_VERSION,
            "llmviewer_version": __version__,
            "hardware": self.hardware.name,
            "capacity_bytes": self.hardware.capacity,
            "inputs": self.inputs,
            "models": [{**row, "same_shape": row["same_shape"].split()} for row in self.rows()],
            "too_large": list(self.too_large),
            "too_large_fitting": [one._asdict() for one in self.shorter],
            "too_slow": list(self.too_slow),
            "shorter_context": list(self.short),
            "not_evaluated": list(self.unevaluated),
            "refused": [{"model": name, "reason": reason} for name, reason in self.refused],
        }


@document_options(MachineOptions)
def fit(
    hardware: str | Hardware | None = None,
    *,
    models: Sequence[str] = (),
    context: int = CONTEXT,
    tokens_per_s: float = 0,
    limit: int | None = MAX_SHOWN,
    progress: Callable[[int, int], object] = lambda finished, models: None,
    **options: Unpack[MachineOptions],
) -> MachineFit:
    """The shipped models that run on a device, each in the widest precision that fits.

    hardware      device; None: the GPU of this machine
    models        beginnings of names, such as "qwen3"; none: all
    context       tokens of prompt and output with which the engine must start
    tokens_per_s  least decode speed, expected or, without measurements, at the bound; precisions get narrower for it
    limit         number of models that are evaluated, the largest first; None: all
    progress      called with the number of evaluated models, and of all

    Without an engine, GPUs with stacked memory (HBM) run vLLM, Apple's MLX and others llama.cpp, if kernels are known.

    Raises InputError if an argument is invalid, or no device is given and this machine has none that is known.
    """
    length, size_limit = whole_number("context", context), None if limit is None else whole_number("limit", limit)
    if tokens_per_s < 0:
        raise InputError(f"tokens_per_s must be at least 0; got {tokens_per_s:g}")
    values = arguments.with_defaults(options, MachineOptions)
    device = loaded(local_device() if hardware is None else hardware, values["hardware_set"])
    quants = arguments.as_values("quants", values["quants"])
    narrow = [text for text in quants if not _in_blocks(text)]
    engine = engine_on(values["engine"], device) if values["engine"] else _engine_of(device, local=not narrow)
    if narrow and engine and engine.name in LOCAL_PRECISIONS:
        raise InputError(
            f"quants: {engine.title} has no weights in {narrow[0]}, only in blocks with a scale each; give one of "
            f"{', '.join(LOCAL_PRECISIONS[engine.name])}, or another engine"
        )
    precisions = tuple(_WeightFormat(text, 0) for text in quants) or _precisions_of(engine)
    search = _Search(device=device, engine=engine, context=length, target=tokens_per_s, precisions=precisions)
    shapes = _shapes(_named(arguments.as_values("models", models)))
    short = [one.name for group in shapes for one in group if one.max_context and one.max_context < length]
    shapes = [group for group in shapes if not (group[0].max_context and group[0].max_context < length)]
    fitting: list[Fitting] = []
    too_large: list[str] = []
    shorter: list[ShorterContext] = []
    too_slow: list[str] = []
    unevaluated: list[str] = []
    refused: list[tuple[str, str]] = []
    for finished, (facts, *others) in enumerate(shapes):
        names = [facts.name, *(one.name for one in others)]
        progress(finished, len(shapes))
        if size_limit is not None and len(fitting) >= size_limit:
            unevaluated += names
            continue
        trial = search.widest(facts)
        if trial.refusal and not trial.evaluation:
            refused += [(name, trial.refusal) for name in names]
        elif trial.evaluation is None or not trial.runs:
            too_large += names
            if trial.longest:
                shorter += [ShorterContext(name, trial.quant, trial.longest) for name in names]
        elif not trial.fast:
            too_slow += names
        else:
            quant, evaluation = trial.quant, trial.evaluation
            fitting.append(
                Fitting(
                    facts=facts, others=tuple(names[1:]), quant=quant, evaluation=evaluation,
                    max_context=_max_context(evaluation.setting, length),
                )
            )  # fmt: skip
    progress(len(shapes), len(shapes))
    return MachineFit(
        hardware=device, engine=engine, is_default_engine=not values["engine"], is_local=hardware is None,
        context=length, target=tokens_per_s, quants=search.quants, fitting=tuple(fitting),
        too_large=tuple(reversed(too_large)), shorter=tuple(reversed(shorter)), too_slow=tuple(too_slow),
        short=tuple(short), unevaluated=tuple(unevaluated), refused=tuple(refused),
    )  # fmt: skip


def _precisions_of(engine: Engine | None) -> tuple[_WeightFormat, ...]:
    """The precisions in which an engine runs models."""
    local = LOCAL_PRECISIONS.get(engine.name) if engine else None
    return tuple(_WeightFormat(quant, bits) for quant, bits in local.items()) if local else _SERVER_PRECISIONS


def _in_blocks(quant: str) -> bool:
    """Whether files of engines on one user's machine store weights so: with 16 bits, or in blocks with a scale each."""
    precision = parse_quantization(quant)
    weight = precision.scheme.weight
    return bool(precision.mixture) or weight is None or weight.group > 0 or weight.bits >= _WIDE_BITS


def _engine_of(device: Hardware, *, local: bool) -> Engine | None:
    """The engine that users of such a device run; None if none of its kernels are known.

    local  whether engines on one user's machine have all precisions
    """
    is_server = has_hbm(device) or not local
    name = "mlx" if device.vendor == "apple" else "vllm" if is_server else "llama.cpp"
    try:
        return engine_on(name, device)
    except InputError:
        return None


def _named(prefixes: Sequence[str]) -> list[ModelFacts]:
    """Facts of shipped models that generate and whose names begin so, the largest first.

    Raises InputError if there is none of a name.
    """
    facts = [one for one in all_facts(lambda name: model_facts(load_model(name))) if one.generates]
    for prefix in prefixes:
        if not any(one.name.startswith(prefix.lower()) for one in facts):
            raise InputError(f"models: no model that generates begins with {prefix!r} (`llmviewer models` lists all)")
    selected = [one for one in facts if not prefixes or one.name.startswith(tuple(map(str.lower, prefixes)))]
    return sorted(selected, key=lambda one: (-one.parameters, one.name))


def _shapes(facts: Sequence[ModelFacts]) -> list[list[ModelFacts]]:
    """Models of one shape together: they have the same times and memory."""

    def shape(one: ModelFacts) -> tuple[object, ...]:
        return (
            -one.parameters, one.active_parameters, one.layers, one.kv_bytes_per_token, one.weight_bytes,
            one.max_context,
        )  # fmt: skip

    return [list(group) for _, group in groupby(sorted(facts, key=lambda one: (*shape(one), one.name)), key=shape)]


class _TriedPrecision(NamedTuple):
    """A precision of a model that was tried; the reason if none could be.

    runs     whether the context fits
    longest  most tokens that fit if it does not
    """

    quant: str = ""
    evaluation: Evaluation | None = None
    runs: bool = False
    longest: int = 0
    fast: bool = False
    refusal: str = ""


@frozen(kw_only=True)
class _Search:
    """Precisions of a model on a device."""

    device: Hardware
    engine: Engine | None
    context: int
    target: float
    precisions: tuple[_WeightFormat, ...]

    @property
    def quants(self) -> tuple[str, ...]:
        """The precisions as users write them."""
        published = (PUBLISHED,) if self.precisions is _SERVER_PRECISIONS else ()
        return (*published, *(one.quant for one in self.precisions))

    def widest(self, facts: ModelFacts) -> _TriedPrecision:
        """The widest precision that fits and is fast enough, or the one that comes closest."""
        closest = _TriedPrecision()
        for one in self._candidates(facts):
            if one.bits * _PREFILTER * facts.parameters / 8 > self.device.capacity:
                continue
            try:
                evaluation = self._evaluated(facts.name, one.quant)
                longest = _longest_context(evaluation.setting, self.context)
                step = evaluation.expected_pass_s("decode") if longest == self.context else None
            except InputError as error:
                closest = closest if closest.evaluation else _TriedPrecision(refusal=str(error))
                continue
            tried = _TriedPrecision(quant=one.quant, evaluation=evaluation, longest=longest)
            if longest == self.context:
                time_s = float(step.expected if step else evaluation.pass_s("decode"))
                closest = tried._replace(runs=True, fast=time_s * self.target <= 1)
            elif not closest.evaluation or closest.longest < longest:
                closest = tried
            if closest.fast:
                break
        return closest

    def _candidates(self, facts: ModelFacts) -> tuple[_WeightFormat, ...]:
        """The precisions in which to try a model, with its own if that is narrow or a server runs it."""
        bits = 8 * facts.weight_bytes / facts.parameters if facts.weight_bytes else 0
        published = _WeightFormat(PUBLISHED, bits)
        if not all(one.bits for one in self.precisions) or not bits:
            return self.precisions
        if bits < _NARROW_BITS:
            return (published, *(one for one in self.precisions if one.bits < bits))
        return (published, *self.precisions) if self.precisions is _SERVER_PRECISIONS else self.precisions

    def _evaluated(self, name: str, quant: str) -> Evaluation:
        options: EngineOptions = {}
        if self.engine:
            options = {"engine": self.engine.name, "max_num_seqs": 1, "max_model_len": self.context}
        setting = Setting.of(name, self.device, quant=None if quant == PUBLISHED else quant, **options)
        prompt = min(_CHUNK, self.context)
        return Evaluation(setting=setting, batch=1, prompt=prompt, gen=2, kv_len=self.context)


def _longest_context(setting: Setting, tokens: int) -> int:
    """Tokens of one sequence that fit, at most `tokens`."""
    if not reserves_memory(setting):
        return tokens if _fits(setting, tokens) else _largest_context(setting, 0, tokens)
    server = capacity(setting, tokens)
    return tokens if server.starts and server.concurrency else min(server.longest_model_len, tokens - 1)


def _max_context(setting: Setting, fitting: int) -> int:
    """Tokens of one sequence that fit, to a hundredth, at most those of the model.

    fitting  tokens that fit
    """
    most = setting.model.max_context or _UNLIMITED
    return most if fitting >= most or _fits(setting, most) else _largest_context(setting, fitting, most)


def _largest_context(setting: Setting, fitting: int, most: int) -> int:
    """Tokens of one sequence that fit, to a hundredth, from `fitting`, which fit, to `most`, which do not."""
    while most - fitting > max(fitting // 100, 1):
        middle = (fitting + most) // 2
        fitting, most = (middle, most) if _fits(setting, middle) else (fitting, middle)
    return fitting


def _fits(setting: Setting, tokens: int) -> bool:
    """Whether one sequence of so many tokens fits, and the server starts with it."""
    if not reserves_memory(setting):
        prompt = min(_CHUNK, tokens)
        total_bytes = setting.footprint.total_bytes(batch=1, prompt=prompt, gen=tokens - prompt)
        return bool(total_bytes <= setting.hardware.capacity)
    assert setting.engine
    options = replace(setting.engine.options, max_model_len=tokens)
    server = capacity(replace(setting, engine=replace(setting.engine, options=options)), tokens)
    return server.starts and server.concurrency > 0
