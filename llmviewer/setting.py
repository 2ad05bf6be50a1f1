"""What is asked: a model on a device, for a workload, under techniques. The one place that puts graphs together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property, lru_cache, partial, reduce
from pathlib import Path
from typing import Self, TypeVar

import numpy as np

from . import given
from .documents import LARGEST
from .errors import InputError
from .expectation.engines import Engine, find_engine
from .expectation.expected import ExpectedPass, Interval
from .expectation.kernels import Kernels
from .expectation.library import check_library
from .expectation.profile import Profile, read_given
from .forms import Num
from .graph import Graph
from .hardware import Hardware
from .hardware_files import loaded
from .layout import ALONE, Layout, Network, parse_layout
from .memory import Footprint, Shapes
from .model import Model
from .model_files import load_model
from .operators.attention import Indexer
from .operators.base import Operator
from .operators.linear import LatentExpansion
from .parallel import parallel
from .parallel.overlap import overlapped
from .roofline import Plan, plan
from .techniques import Run, Schedule, Technique, altered, parse_techniques
from .transforms.absorb import absorb
from .transforms.flash_attention import flash_attention
from .transforms.offload import ON_DEVICE, Offload, offload, parse_offload
from .transforms.quantize import Quantization, parse_quantization, quantize
from .transforms.skew import skew
from .transforms.survey import survey
from .workload import Workload

_E = TypeVar("_E", bound=StrEnum)


class Attention(StrEnum):
    """eager: three launches, scores in memory; flash: one launch, scores on the chip."""

    EAGER = "eager"
    FLASH = "flash"


class Mla(StrEnum):
    """How latent attention is computed. naive: expand the cache; absorbed: bring the queries to it; auto: naive in a
    prefill, absorbed in a decode step and where an indexer chooses keys for every query, as serving engines do.
    """

    AUTO = "auto"
    NAIVE = "naive"
    ABSORBED = "absorbed"


class Accounting(StrEnum):
    """faithful: what the model's kernels have to do; survey: as "LLM Inference Unveiled" counts (arXiv:2402.16363)."""

    FAITHFUL = "faithful"
    SURVEY = "survey"


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A model on a device under techniques; workloads are given to what it makes."""

    model: Model
    hardware: Hardware
    quantization: Quantization
    attention: Attention
    accounting: Accounting
    mla: Mla = Mla.AUTO
    expert_skew: float = 0
    layout: Layout = ALONE
    offload: Offload = ON_DEVICE
    decodes_only: bool = False  # other devices read the prompts
    techniques: tuple[Technique, ...] = ()
    unnamed: Quantization | None = None  # the precision without the technique that names another one
    library: str = ""  # whose kernels times are expected of; of which most was measured on the device if ""
    engine: Engine | None = None  # that launches them; they follow each other without gaps where there is none
    profiles: tuple[Profile, ...] = ()  # before those that ship

    @classmethod
    def of(
        cls,
        model: str | Model,
        hardware: str | Hardware,
        *,
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
    ) -> Setting:
        """From what a user writes. Attention is flash, but eager in the survey's accounting, and as the engine has it,
        unless said otherwise.

        Raises InputError where something is not known or does not parse.
        """
        given.one(model=model, hardware=hardware, quant=quant, attention=attention, accounting=accounting, mla=mla)
        given.one(layout=layout, offload=offload, library=library, engine=engine)
        given.listed(hardware_set=hardware_set, techniques=techniques, profiles=profiles)
        given.number(expert_skew=expert_skew)
        counted = member(Accounting, "accounting", accounting)
        device = loaded(hardware, hardware_set)
        measured = read_given(profiles)
        made = _engine(engine, library, counted, Kernels(device, profiles=measured)) if engine else None
        usual = Attention.EAGER if counted is Accounting.SURVEY else Attention.FLASH
        usual = member(Attention, "attention", made.attention) if made else usual
        own = load_model(model) if isinstance(model, str) else model
        ours = parse_techniques(techniques)
        own = _predicting(own, ours) if mtp else own
        named, published = _one_quant(quant, ours), own.quantization
        asked = parse_quantization(named).over(published) if named else published
        if own.unknown and not asked.scheme.weight:
            raise InputError(f"{own.unknown}: its weights may be of any size; give --quant, such as W4A16g128")
        return cls(
            model=own,
            hardware=device,
            quantization=asked,
            attention=member(Attention, "attention", attention) if attention else usual,
            accounting=counted,
            mla=member(Mla, "mla", mla),
            expert_skew=expert_skew,
            layout=parse_layout(layout) if isinstance(layout, str) else layout,
            offload=parse_offload(offload) if isinstance(offload, str) else offload,
            techniques=ours,
            unnamed=published if named != quant else None,
            library=made.library if made else check_library(library, measured),
            engine=made,
            profiles=measured,
        ).agreed()

    def agreed(self) -> Self:
        """Itself.

        Raises InputError, with the reason, where a technique makes no sense here or beside another one.
        """
        for one in self.techniques:
            others = [other for other in self.techniques if other is not one]
            reason = one.refuses(self, others)
            passes = arranges([one])
            if passes and not self.model.generates:
                reason = reason or f"{self.model.name} does not generate: there are no passes to arrange"
            if passes and self.layout.pp > 1:
                reason = reason or "in a pipeline, how its passes follow each other is not known here; leave out pp"
            if self.accounting is Accounting.SURVEY and altered(one, "lowered"):
                reason = reason or "accounting survey has conventions of its own; use faithful"
            if reason:
                raise InputError(f"{one.name}: {reason}")
        return self

    @cached_property
    def graph(self) -> Graph:
        """What a prefill runs."""
        absorbed = self.mla is Mla.ABSORBED or (self.mla is Mla.AUTO and self._has(Indexer))
        return self._lowered(absorbed=absorbed, decode=False)

    @cached_property
    def decode_graph(self) -> Graph:
        """What a decode step runs: the same graph, but for latent attention, context parallelism and a cache that is
        fetched.
        """
        absorbed = self.mla is not Mla.NAIVE and self._has(LatentExpansion)
        apart = absorbed and self.mla is Mla.AUTO and not self._has(Indexer)
        differs = self._placed_apart or self.offload.kv > 0 or apart
        return self._lowered(absorbed=absorbed, decode=True) if differs else self.graph

    @property
    def _placed_apart(self) -> bool:
        """Whether ranks or techniques tell decode steps from prefills."""
        return self.layout.cp > 1 or any(one.decode_alone for one in self.techniques)

    def _has(self, kind: type[Operator]) -> bool:
        return any(isinstance(op, kind) for _, op in self._changed(decode=False))

    def _changed(self, *, decode: bool) -> Graph:
        """The model's graph as techniques change it, before everything else."""
        return self.model.graph.then(*(partial(one.network, decode=decode) for one in self.techniques))

    @cached_property
    def plan(self) -> Plan:
        """A prefill, laid out on the device."""
        return plan(self.graph, self.linked)

    @cached_property
    def decode_plan(self) -> Plan:
        """A decode step, laid out on the device."""
        return self.plan if self.decode_graph is self.graph else plan(self.decode_graph, self.linked)

    def plan_of(self, phase: str) -> Plan:
        """The plan of "prefill" or "decode"."""
        return self.decode_plan if phase == "decode" else self.plan

    def time_s(self, phase: str, workload: Workload, batch: Num) -> Num:
        """The bound of a phase for a batch of all devices, whose micro-batches are `workload`. [s]"""
        plan = self.plan_of(phase)
        return plan.in_parts(plan.values(workload), self.layout.parts(batch), turns=phase == "decode")

    def expected_time(self, phase: str, workload: Workload, batch: Num) -> Interval | None:
        """What the same is expected to take; None where no more than the bound is known. [s]"""
        found = self.expected_pass(phase, workload)
        return self.expected(phase, found, batch) if found else None

    def expected(self, phase: str, found: ExpectedPass, batch: Num) -> Interval:
        """What the same is expected to take, `found` being that of one micro-batch."""
        return found.in_parts(self.layout.parts(batch), turns=phase == "decode")

    def expected_pass(self, phase: str, workload: Workload) -> ExpectedPass | None:
        """A micro-batch as measured kernels are expected to run it; None where only its bound is known."""
        found = self.kernels.run(self.plan_of(phase), workload) if self.kernels else None
        return found if found and found.modelled else None

    @cached_property
    def footprint(self) -> Footprint:
        whole = Footprint.of(self.graph, self.decode_graph, self.layout, self.offload)
        whole = whole.decoding() if self.decodes_only else whole
        if not self.techniques:
            return whole
        shapes = Shapes(prefill=self.prefill, step=self.step, kept=self.kept)
        held = (Footprint.of(graph, layout=self.layout) for one in self.techniques for graph in one.beside(self))
        return replace(whole, shapes=shapes, beside=tuple(replace(other, shapes=shapes) for other in held))

    @cached_property
    def kernels(self) -> Kernels | None:
        """Of which times are expected; none in the survey's accounting, whose work no kernel does."""
        if self.accounting is Accounting.SURVEY:
            return None
        if self.profiles:
            return Kernels(self.hardware, self.library, self.profiles, engine=self.engine)
        return _shipped(self.hardware, self.library, self.engine)

    def prefill(self, workload: Workload) -> Workload:
        """What techniques make of the pass that reads the prompts."""
        return reduce(lambda pass_, one: one.prefill(pass_), self.techniques, workload)

    def step(self, workload: Workload) -> Workload:
        """What techniques make of a decode step."""
        return reduce(lambda pass_, one: one.step(pass_), self.techniques, workload)

    def kept(self, workload: Workload) -> Workload:
        """Of which sequences techniques hold the cache in the end."""
        return reduce(lambda pass_, one: one.kept(pass_), self.techniques, workload)

    def schedule(self, *, batch: Num, prompt: int, gen: int, images: int = 0) -> Schedule:
        """The passes of a generation under the techniques: a prefill and a decode step for each token after the first,
        where there are none.
        """
        share, parts = self.layout.share(batch), self.layout.parts(batch)
        first = Workload.prefill(batch=share, prompt=prompt, images=images)
        steps = Workload.decode(batch=share, kv_len=prompt + np.arange(1.0, gen), prompt=prompt, images=images)
        plain = Schedule(
            first=(Run(name="prefill", plan=self.plan, workload=first, parts=parts),),
            rest=(Run(name="decode", plan=self.decode_plan, workload=steps, parts=parts, turns=True),)
            if gen > 1
            else (),
            answer=batch * gen,
            steps=gen - 1,
        )
        return reduce(lambda schedule, one: one.schedule(schedule, self), self.techniques, plain)

    def helper(self, model: Model, quant: str | None) -> Setting:
        """Another model on the same device, in another precision or, where it is None, in that of all linears of this
        one; techniques leave it alone.

        Raises InputError where it cannot be laid out as this one is.
        """
        own = Quantization(scheme=self.quantization.scheme, mixture=self.quantization.mixture)
        quantization = parse_quantization(quant).over(model.quantization) if quant else own
        made = replace(self, model=model, quantization=quantization, offload=ON_DEVICE, techniques=())
        try:
            made.graph  # noqa: B018  # which lays it out
        except InputError as error:
            both = f"{model.name} runs beside {self.model.name} in the same layout"
            hint = f"choose another model in place of {model.name}"  # the error's own is of degrees that suit it alone
            raise InputError(f"{both}: {error.reason}", hint=hint) from None
        return made

    def bare(self) -> Self:
        """The same without techniques."""
        return replace(self, techniques=(), quantization=self.unnamed or self.quantization, unnamed=None)

    def planned(self, graph: Graph) -> Plan:
        """A graph that has been lowered, laid out on the device."""
        return plan(graph, self.linked)

    @cached_property
    def _network(self) -> Network:
        return Network.of(self.hardware, self.layout)

    @cached_property
    def linked(self) -> Hardware:
        """The device with the links that it uses."""
        return self.offload.linked(self._network.linked())

    def _lowered(self, *, absorbed: bool, decode: bool) -> Graph:
        """The model's graph under the techniques asked for."""
        latent = (absorb,) if absorbed else ()
        flash = (flash_attention(self.hardware.on_chip_bytes),) if self.attention is Attention.FLASH else ()
        away = (offload(self.offload, decode=decode),) if self.offload != ON_DEVICE else ()
        if self.accounting is Accounting.SURVEY:
            self._check_one_precision()
            return self._placed(decode=decode).then(*latent, *flash, survey(self.quantization.scheme), *away)
        joined = (overlapped,) if self.layout.overlap else ()
        ours = (partial(one.lowered, hardware=self.hardware, decode=decode) for one in self.techniques)
        apart = decode and self._placed_apart
        return (self._stored(decode=True) if apart else self._quantized).then(*latent, *flash, *ours, *away, *joined)

    def _check_one_precision(self) -> None:
        """Raises InputError where operators have several, which the survey's accounting does not know."""
        asked, must = self.quantization, "accounting survey has one precision for all operators"
        if asked.overrides and asked == self.model.quantization:
            hint = "give one with --quant, such as W16A16"
            raise InputError(f"{must}, and {self.model.name} is published in several", hint=hint)
        if asked.mixture:
            raise InputError(f"{must}, and {asked.mixture.name} several", hint="try W4A16")
        if asked.overrides:
            raise InputError(must, hint="drop the overrides of --quant")

    @cached_property
    def _quantized(self) -> Graph:
        """What a prefill runs, and a decode step that is not _placed_apart."""
        return self._stored(decode=False)

    def _stored(self, *, decode: bool) -> Graph:
        return self._placed(decode=decode).then(quantize(self.quantization, self.model.graph))

    def _placed(self, *, decode: bool) -> Graph:
        """What each device runs of the model as techniques change it."""
        shared = (parallel(self._network, decode=decode),) if self.layout.devices > 1 else ()
        return self._changed(decode=decode).then(skew(self.expert_skew), *shared)

    def having(self, *, quant: str | None = None, attention: str | None = None) -> Self:
        """The same with another precision or attention, where one is given, as a user writes it."""
        return replace(
            self,
            quantization=parse_quantization(quant).over(self.model.quantization) if quant else self.quantization,
            attention=member(Attention, "attention", attention) if attention else self.attention,
        )


def arranges(techniques: Iterable[Technique]) -> bool:
    """Whether a generation is other passes than a prefill and a decode step for each token after the first."""
    return any(altered(one, "prefill", "step", "kept", "schedule") for one in techniques)


def check_images(model: Model, *, prompt: int, images: int) -> None:
    """Raises InputError where the model sees no pictures, or a prompt has no room for so many."""
    if images and not model.sees:
        raise InputError(f"images must be 0: {model.name} has no tower for pictures; got {images}")
    if prompt < images * model.image_tokens:
        each = f"the {model.image_tokens} tokens of each of {images} pictures of {model.name}"
        raise InputError(f"prompt must be at least {images * model.image_tokens}, {each}; got {prompt}")


def whole(name: str, value: object, least: int = 1) -> int:
    """`value` as an int.

    Raises InputError where it is no whole number from `least` to 2**53, up to which floats are exact.
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise InputError(f"{name} must be a whole number of at least {least}; got {value!r}")
    if value > LARGEST:
        raise InputError(f"{name} must be at most {LARGEST}, the largest that is counted exactly")
    return int(value)


def _predicting(model: Model, techniques: Sequence[Technique]) -> Model:
    """The model with its layers that predict further tokens.

    Raises InputError where it has none, and where a technique drafts with them.
    """
    for one in techniques:
        if one.predicts:
            layers = f"the layers that --with {one.name} drafts with between passes"
            raise InputError(f"mtp: runs in every pass {layers}; leave one out")
    if model.predicting is None:
        raise InputError(f"mtp: {model.name} has no layers that predict further tokens, or none that are known")
    return model.predicting


@lru_cache(maxsize=16)
def _shipped(hardware: Hardware, library: str, engine: Engine | None) -> Kernels:
    """Those of the profiles that ship, which settings share, as they remember what they were asked."""
    return Kernels(hardware, library, engine=engine)


def _engine(name: str, library: str, accounting: Accounting, kernels: Kernels) -> Engine:
    """The engine of a name.

    Raises InputError where there is none such, where something else that is given excludes it, and where nothing is
    known of kernels on the device.
    """
    engine = find_engine(name, library)
    if accounting is Accounting.SURVEY:
        raise InputError("engine: survey accounting counts what no kernel does; use faithful")
    if isinstance(kernels.device, str):
        raise InputError(f"engine: nothing is known of kernels on {kernels.hardware.name}: {kernels.device}")
    return engine


def _one_quant(given: str | None, techniques: Sequence[Technique]) -> str | None:
    """The precision asked for, by --quant or by a technique.

    Raises InputError where more than one says it.
    """
    named = [one for one in techniques if one.quant]
    if named and (given or len(named) > 1):
        other = f"--quant {given}" if given else named[1].name
        raise InputError(f"{named[0].name}: is {named[0].quant}, and {other} says the precision too; give one of them")
    return named[0].quant if named else given


def member(kind: type[_E], name: str, value: str) -> _E:
    """The one of `kind` that a user calls `value`."""
    try:
        return kind(value)
    except ValueError:
        raise InputError(f"{name} must be one of {', '.join(kind)}; got {value!r}") from None
