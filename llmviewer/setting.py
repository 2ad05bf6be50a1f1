"""`Setting`: a model on a device with techniques; the only module that combines them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from functools import cached_property, lru_cache, reduce
from typing import Any, Final, Self, TypedDict, TypeVar, Unpack, cast
from weakref import WeakValueDictionary

import numpy as np

from . import arguments
from .devices.files import loaded
from .devices.hardware import Hardware
from .documents import MAX_EXACT_INTEGER
from .errors import InputError
from .expectation.engines import AS_SHIPPED, Engine, ServerOptions, find_engine
from .expectation.expected import ExpectedPass, Interval
from .expectation.kernels import Kernels
from .expectation.library import check_library
from .expectation.profile import Profile, read_profiles
from .expectation.whole_passes import HOST_ENGINE, backend_of
from .forms import Num
from .graph import Graph
from .lowering import Lowering
from .memory import Footprint, Shapes
from .model import Model
from .model_files import load_model
from .operators.embedding import Embedding
from .operators.linear import ExpertsLinear, Linear, LMHead
from .options import PARAMETERS, EngineOptions, LayoutOptions, PassOptions, SettingOptions
from .parallel.layout import ONE_DEVICE, Layout, parse_layout
from .parameters import Accounting, Algorithm, AttentionMode, Mla
from .precision import default_group
from .records import frozen
from .roofline import Plan, plan
from .techniques import Run, Schedule, Technique, overrides, parameter_without_effect, parse_techniques
from .transforms.host import NOTHING_ON_HOST, HostPlacement, is_second_gpu, parse_host_placement
from .transforms.offload import ON_DEVICE, Offload, parse_offload
from .transforms.quantize import PUBLISHED, Quantization, parse_quantization
from .workload import Workload

_O = TypeVar("_O")
_PADDED_FORMAT: Final = "mxfp4"
_HOST_LINK: Final = "host.bandwidth"  # which devices lack that share memory with a CPU
_MOST_STEPS: Final = 1 << 24  # of a generation; arrays of their lengths take 128 MB


class HostFields(TypedDict):
    """Fields of a Setting on the host."""

    host: Hardware | None
    placement: HostPlacement


class ChangedOptions(TypedDict, total=False):
    """Options that Setting.having() changes; an empty precision or attention stays as it is."""

    quant: str
    attention: str
    tp: int
    layout: str
    offload: str
    on_host: str
    techniques: Sequence[str | Technique]
    library: str


@frozen(kw_only=True)
class Setting:
    """A model on a device with techniques, for any workload."""

    model: Model
    hardware: Hardware
    quantization: Quantization
    attention: AttentionMode
    accounting: Accounting
    mla: Mla = Mla.AUTO
    expert_skew: float = 0
    layout: Layout = ONE_DEVICE
    offload: Offload = ON_DEVICE
    host: Hardware | None = None  # CPU that runs the launches that `placement` names
    placement: HostPlacement = NOTHING_ON_HOST
    decodes_only: bool = False  # whether prefills run on other devices
    techniques: tuple[Technique, ...] = ()
    unnamed: Quantization | None = None  # the precision without a technique that sets one
    library: str = ""  # kernel library of expected times; "": the one with most measurements on the device
    engine: Engine | None = None  # serving engine; None: launches without gaps
    profiles: tuple[Profile, ...] = ()  # take precedence over shipped ones
    bound: bool = False  # whether to give lower bounds only
    mtp: bool = False  # whether every pass also runs the layers for multi-token prediction, which `model` then has

    @classmethod
    def of(cls, model: str | Model, hardware: str | Hardware, **options: Unpack[SettingOptions]) -> Self:
        """The setting of options as users write them.

        The default attention is that of the engine if one is given, eager in survey accounting, else flash.

        Raises InputError if a name is unknown or an argument does not parse.
        """
        arguments.check_types(model=model, hardware=hardware)
        values = arguments.with_defaults(options, SettingOptions)
        arguments.check_bound_only(values["bound"], values["library"], values["engine"], values["profiles"])
        accounting = arguments.enum_member("accounting", values["accounting"], Accounting)
        device = loaded(hardware, values["hardware_set"])
        profiles = read_profiles(values["profiles"])
        engine = engine_on(
            values["engine"], device, library=values["library"], accounting=accounting, profiles=profiles,
            options=server_options(values),
        )  # fmt: skip
        attention = values["attention"] or (engine.attention if engine else _default_attention(accounting))
        network = load_model(model) if isinstance(model, str) else model
        if engine:
            engine.check_starts(device, network.max_context)
        techniques = parse_techniques(values["techniques"])
        network = _with_mtp_layers(network, techniques) if values["mtp"] else network
        quant = _quant_of(values["quant"], techniques)
        quantization = _precision(quant, network, engine, device)
        if network.unsupported_quantization and not quantization.scheme.weight:
            raise InputError(
                f"{network.unsupported_quantization}: its weights may be of any size; give --quant, such as W4A16g128"
            )
        return cls(
            model=network,
            hardware=device,
            quantization=quantization,
            attention=arguments.enum_member("attention", attention, AttentionMode),
            accounting=accounting,
            mla=arguments.enum_member("mla", values["mla"], Mla),
            expert_skew=values["expert_skew"],
            layout=layout_of(values),
            offload=offload_of(values),
            **host_of(values),
            techniques=techniques,
            unnamed=network.quantization if quant != values["quant"] else None,
            library=engine.library if engine else check_library(values["library"], profiles),
            engine=engine,
            profiles=profiles,
            bound=values["bound"],
            mtp=values["mtp"],
        ).agreed()

    def __repr__(self) -> str:
        """The call that makes the setting, with the options that are not the defaults."""
        changes = {"hardware_set": self.hardware.changes, "host_set": self.host.changes if self.host else ()}
        changed: dict[str, Any] = {**changes, **options_of(self, SettingOptions)}
        options = (f", {name}={_shown_option(value)!r}" for name, value in changed.items() if value)
        return f"Setting.of({self.model.name!r}, {self.hardware.name!r}{''.join(options)})"

    def inputs(self) -> dict[str, Any]:
        """The options of the setting, as in JSON documents."""
        return {
            "quant": str(self.quantization),
            "attention": self.attention,
            "accounting": self.accounting,
            "mla": self.mla,
            "expert_skew": self.expert_skew,
            "mtp": self.mtp,
            "layout": str(self.layout) if self.layout.devices > 1 else "",
            "devices": self.layout.devices,
            "offload": str(self.offload),
            "host": self.host.name if self.host else "",
            "host_set": tuple(self.host.changes) if self.host else (),
            "on_host": str(self.placement),
            "hardware_set": tuple(self.hardware.changes),
            "techniques": tuple(map(str, self.techniques)),
            "library": self.kernels.library if self.kernels else "",
            **engine_inputs(self.engine),
            "profiles": tuple(dict.fromkeys(profile.name for profile in self.profiles)),
        }

    def agreed(self) -> Self:
        """The setting itself, after checks.

        Raises InputError, with the reason, if a technique does not apply here or cannot be combined with another.
        """
        if self.host and self.layout.devices > 1:
            raise InputError("host: launches run on the host of one device; leave out parallelism")
        if self.host and self.engine and self.engine.name != HOST_ENGINE:
            raise InputError(
                f"host: {self.engine.title} computes nothing on the host; leave out engine, or use {HOST_ENGINE}"
            )
        if self.host and self.accounting is Accounting.SURVEY:
            raise InputError("host: is not supported in survey accounting; use faithful")
        for one in self.techniques:
            others = [other for other in self.techniques if other is not one]
            if not self.model.generates and not one.one_pass and (one.separate_decode_graph or changes_passes([one])):
                raise InputError(
                    f"{one.name}: {self.model.name} does not generate, so it has no decode passes to change"
                )
            reason = parameter_without_effect(one) or one.incompatibility(self, others)
            if overrides(one, "step", "schedule") and self.layout.pp > 1:
                reason = reason or "is not supported in a pipeline; leave out pp"
            if self.accounting is Accounting.SURVEY and overrides(one, "lowered"):
                reason = reason or "is not supported in survey accounting; use faithful"
            if reason:
                raise InputError(f"{one.name}: {reason}")
        return self

    @property
    def streams_prompts(self) -> bool:
        """Whether weights of launches on the host are fetched for prompts, as the engine does."""
        runs_there = self.engine is not None and self.engine.name == HOST_ENGINE
        return self.host is not None and runs_there and not is_second_gpu(self.host)

    @cached_property
    def lowering(self) -> Lowering:
        """Graphs and plans, shared by settings that differ only in passes and expected kernels."""
        inherited_fields = {f.name: getattr(self, f.name) for f in fields(Lowering)}
        graph_techniques = (
            one for one in self.techniques if overrides(one, "network", "lowered") or one.separate_decode_graph
        )
        return Lowering(**(inherited_fields | {"techniques": tuple(graph_techniques)})).cached()

    @property
    def graph(self) -> Graph:
        """The graph of a prefill."""
        return self.lowering.graph

    @property
    def decode_graph(self) -> Graph:
        """The graph of a decode step."""
        return self.lowering.decode_graph

    @property
    def plan(self) -> Plan:
        """The plan of a prefill."""
        return self.lowering.plan

    @property
    def decode_plan(self) -> Plan:
        """The plan of a decode step."""
        return self.lowering.decode_plan

    @property
    def linked(self) -> Hardware:
        """The device with the rates of the links that it uses."""
        return self.lowering.linked

    def plan_of(self, phase: str) -> Plan:
        """The plan of "prefill" or "decode"."""
        return self.decode_plan if phase == "decode" else self.plan

    def time_s(self, phase: str, workload: Workload, batch: Num) -> Num:
        """The bound of a phase for a batch of all devices, whose micro-batches are `workload`. [s]"""
        plan = self.plan_of(phase)
        return plan.pipelined_s(
            plan.values(workload), self.layout.micro_batch_count(batch), autoregressive=phase == "decode"
        )

    def expected_time(self, phase: str, workload: Workload, batch: Num) -> Interval | None:
        """The expected time of a phase, as in time_s(); None if only the bound is known. [s]"""
        one_micro_batch = self.expected_pass(phase, workload)
        return self.expected(phase, one_micro_batch, batch) if one_micro_batch else None

    def expected(self, phase: str, one_micro_batch: ExpectedPass, batch: Num) -> Interval:
        """The expected time of a phase, from that of one micro-batch. [s]"""
        return one_micro_batch.pipelined_s(self.layout.micro_batch_count(batch), autoregressive=phase == "decode")

    def expected_pass(self, phase: str, workload: Workload) -> ExpectedPass | None:
        """The expected pass of a micro-batch; None if only its bound is known."""
        result = self.kernels.expect_plan(self.plan_of(phase), workload) if self.kernels else None
        return result if result and result.modelled else None

    @cached_property
    def host_embeddings(self) -> float:
        """Embeddings of tokens that the engine keeps in host memory, of a device that has memory of its own. [B]"""
        memory = self.engine.memory if self.engine else None
        if not (memory and memory.host_embeddings and _HOST_LINK in self.hardware.numbers):
            return 0.0
        if any(weight.tied for _, op in self.graph for weight in op.weights):
            return 0.0  # the head, which the device computes, has the same table
        return sum(w.stored_bytes for _, op in self.graph if isinstance(op, Embedding) for w in op.weights)

    def _padding_of(self, stage: int) -> float:
        """Padding of experts in MXFP4 by the engine on a device of a pipeline stage. [B]"""
        multiple = self.engine.memory.mxfp4_multiple if self.engine and self.engine.memory else 0
        if not multiple:
            return 0.0
        graph = self.graph.of_stage(stage) if self.layout.pp > 1 else self.graph
        width = next((op.weight.shape[1] for _, op in self.model.graph if isinstance(op, LMHead)), 0)
        padded = -(-width // multiple) * multiple / width - 1 if width else 0.0
        return padded * sum(
            block.repeat * weight.stored_bytes
            for block, op in graph
            if isinstance(op, ExpertsLinear)
            for weight in op.weights
            if weight.format.name == _PADDED_FORMAT and width in weight.shape
        )

    @cached_property
    def footprint(self) -> Footprint:
        model_footprint = self.lowering.footprint.decoding() if self.decodes_only else self.lowering.footprint
        changes = [self._padding_of(stage) for stage in range(self.layout.pp)]
        changes[0] -= self.host_embeddings
        if any(changes):
            stages = tuple(
                replace(stage, weight_bytes=stage.weight_bytes + change)
                for stage, change in zip(model_footprint.stages, changes, strict=True)
            )
            model_footprint = replace(model_footprint, stages=stages)
        if not self.techniques:
            return model_footprint
        shapes = Shapes(prefill=self.prefill, step=self.step, kept=self.kept)
        auxiliary = (
            Footprint.of(graph, layout=self.layout) for one in self.techniques for graph in one.auxiliary_graphs(self)
        )
        return replace(
            model_footprint, shapes=shapes, beside=tuple(replace(other, shapes=shapes) for other in auxiliary)
        )

    @property
    def why_bound_alone(self) -> str:
        """Why there are no expected times; "" if there are."""
        if self.bound:
            return "only bounds were requested"
        if is_second_gpu(self.host) and not self.engine:
            return f"kernels of two GPUs in one pass are those of an engine; give --engine {HOST_ENGINE}"
        return "survey accounting counts what no kernel does" if self.accounting is Accounting.SURVEY else ""

    @cached_property
    def kernels(self) -> Kernels | None:
        """The measured kernels of expected times; None if there are none."""
        if self.why_bound_alone:
            return None
        if self.profiles:
            return Kernels(self.hardware, self.library, self.profiles, engine=self.engine, host=self.host)
        return _shipped(self.hardware, self.library, self.engine, self.host)

    def prefill(self, workload: Workload) -> Workload:
        """The pass that processes the prompts, as changed by techniques."""
        return reduce(lambda pass_, one: one.prefill(pass_), self.techniques, workload)

    def step(self, workload: Workload) -> Workload:
        """A decode step, as changed by techniques."""
        return reduce(lambda pass_, one: one.step(pass_), self.techniques, workload)

    def kept(self, workload: Workload) -> Workload:
        """The sequences whose cache is held at the end, as changed by techniques."""
        return reduce(lambda pass_, one: one.retained_cache(pass_), self.techniques, workload)

    def schedule(self, *, batch: Num, prompt: int, gen: int, images: int = 0) -> Schedule:
        """The passes of a generation with the techniques; without any, a prefill and a decode step per further token.

        Raises InputError if there are too many steps.
        """
        if gen > _MOST_STEPS:
            raise InputError(f"gen must be at most {_MOST_STEPS}, because steps are computed one by one; got {gen}")
        share, parts = self.layout.micro_batch_size(batch), self.layout.micro_batch_count(batch)
        first = Workload.prefill(batch=share, prompt=prompt, images=images)
        steps = Workload.decode(batch=share, kv_len=prompt + np.arange(1.0, gen), prompt=prompt, images=images)
        plain = Schedule(
            first=(Run(name="prefill", plan=self.plan, workload=first, parts=parts),),
            rest=(Run(name="decode", plan=self.decode_plan, workload=steps, parts=parts, autoregressive=True),)
            if gen > 1
            else (),
            answer=batch * gen,
            steps=gen - 1,
        )
        return reduce(lambda schedule, one: one.schedule(schedule, self), self.techniques, plain)

    def helper(self, model: Model, quant: str | None) -> Setting:
        """Another model on the same devices, without techniques.

        quant  its precision; None: that of this setting for all linears

        Raises InputError if it cannot have the same layout.
        """
        same_scheme = Quantization(scheme=self.quantization.scheme, mixture=self.quantization.mixture)
        quantization = parse_quantization(quant).over(model.quantization) if quant else same_scheme
        helper_setting = replace(
            self, model=model, quantization=quantization, offload=ON_DEVICE, host=None, placement=NOTHING_ON_HOST,
            techniques=(), mtp=False,
        )  # fmt: skip
        try:
            helper_setting.graph  # noqa: B018  # which lays it out
        except InputError as error:
            situation = f"{model.name} runs beside {self.model.name} in the same layout"
            hint = f"choose another model in place of {model.name}"  # the error suggests other degrees
            raise InputError(f"{situation}: {error.reason}", hint=hint) from None
        return helper_setting

    def bare(self) -> Self:
        """The setting without techniques, but for those that count the passes of a model that does not generate."""
        techniques = tuple(one.baseline() for one in self.techniques if one.one_pass)
        return replace(self, techniques=techniques, quantization=self.unnamed or self.quantization, unnamed=None)

    def planned(self, graph: Graph) -> Plan:
        """The plan of a lowered graph on the device."""
        return plan(graph, self.linked, self.host)

    def having(self, **options: Unpack[ChangedOptions]) -> Self:
        """The setting with other options, as users write them.

        Raises InputError if an option does not parse, or techniques do not apply then.
        """
        changed: dict[str, Any] = {}
        if quant := options.get("quant"):
            changed["quantization"] = _precision(quant, self.model, self.engine, self.hardware)
        if attention := options.get("attention"):
            changed["attention"] = arguments.enum_member("attention", attention, AttentionMode)
        if "tp" in options:
            changed["layout"] = replace(self.layout, tp=options["tp"])
        if "layout" in options:
            changed["layout"] = parse_layout(options["layout"])
        if "offload" in options:
            changed["offload"] = parse_offload(options["offload"])
        if "on_host" in options:
            changed["placement"] = parse_host_placement(options["on_host"])
        if "techniques" in options:
            changed["techniques"] = parse_techniques(options["techniques"])
            changed["unnamed"] = None if quant else self.unnamed  # a precision replaces that of a technique
        if "library" in options:
            changed["library"] = check_library(options["library"], self.profiles)
        return replace(self, **changed).agreed()


def changes_passes(techniques: Iterable[Technique]) -> bool:
    """Whether techniques change the passes of a generation: a prefill and a decode step per further token."""
    return any(overrides(one, "prefill", "step", "retained_cache", "schedule") for one in techniques)


def check_images(model: Model, *, prompt: int, images: int) -> None:
    """Raises InputError if the model takes no images, or the prompt is too short for them."""
    if images and not model.has_tower:
        reason = "has no vision or audio tower"
        if model.is_encoder_decoder:
            reason = "has its whole input in prompt"
        raise InputError(f"images must be 0: {model.name} {reason}; got {images}")
    if prompt < images * model.image_tokens:
        each = f"the {model.image_tokens} tokens of each of {images} images of {model.name}"
        raise InputError(f"prompt must be at least {images * model.image_tokens}, {each}; got {prompt}")


def check_countable(batch: int, tokens: int) -> None:
    """Raises InputError if `batch` sequences of `tokens` tokens cannot be counted exactly."""
    if batch * tokens > MAX_EXACT_INTEGER:
        must = f"batch x tokens of a sequence must be at most {MAX_EXACT_INTEGER}, the largest that is counted exactly"
        raise InputError(f"{must}; got {batch} x {tokens}")


def whole_number(name: str, value: object, least: int = 1) -> int:
    """`value` as an int.

    Raises InputError if it is no whole number from `least` to 2**53, up to which floats are exact.
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise InputError(f"{name} must be a whole number of at least {least}; got {value!r}")
    if value > MAX_EXACT_INTEGER:
        raise InputError(f"{name} must be at most {MAX_EXACT_INTEGER}, the largest that is counted exactly")
    return int(value)


def setting_of(
    model: str | Model | Setting, hardware: str | Hardware | None, **options: Unpack[SettingOptions]
) -> Setting:
    """`model` if it is a Setting, else that of a model, a device and options.

    Raises InputError if a Setting comes with a device or with options, or a model without a device.
    """
    if isinstance(model, Setting):
        extra_arguments = ["hardware"] * (hardware is not None) + list(options)
        if extra_arguments:
            raise InputError(f"{extra_arguments[0]} must be left out after a Setting, which has it")
        return model
    if hardware is None:
        raise InputError("hardware must be given with a model; or give a Setting in place of both")
    return Setting.of(model, hardware, **options)


def opened(
    model: str | Model | Setting, hardware: str | Hardware | None, options: _O, kind: type[_O]
) -> tuple[str | Model, str | Hardware, _O]:
    """Model, device and options of a function that also takes a Setting in their place.

    Raises InputError as setting_of() and options_of() do.
    """
    if isinstance(model, Setting):
        values = cast("Mapping[str, Any]", options)
        own_options = {name: value for name, value in values.items() if name not in SettingOptions.__annotations__}
        extra_arguments = ["hardware"] * (hardware is not None) + [name for name in values if name not in own_options]
        if extra_arguments:
            raise InputError(f"{extra_arguments[0]} must be left out after a Setting, which has it")
        all_options: Any = {**cast("Mapping[str, Any]", options_of(model, kind)), **own_options}
        return model.model, model.hardware, all_options
    if hardware is None:
        raise InputError("hardware must be given with a model; or give a Setting in place of both")
    return model, hardware, options


def quant_text(setting: Setting) -> str:
    """The precision of a setting as compare(), choose() and plan() take it, where no technique sets it."""
    published = setting.quantization == setting.model.quantization or setting.unnamed is not None
    return PUBLISHED if published else str(setting.quantization)


def single_device(setting: Setting) -> Setting:
    """The setting without what compare(), choose() and plan() take by themselves: a layout and a precision."""
    quantization = setting.quantization if setting.unnamed is not None else setting.model.quantization
    return replace(setting, layout=ONE_DEVICE, quantization=quantization)


def options_of(setting: Setting, kind: type[_O]) -> _O:
    """The options of a setting, as users write them, that `kind` declares; its device has the what-ifs.

    Raises InputError for an option of the setting that `kind` does not declare.
    """
    names_precision = setting.unnamed is None and setting.quantization != setting.model.quantization
    attention = setting.engine.attention if setting.engine else _default_attention(setting.accounting)
    values: dict[str, Any] = {
        "quant": str(setting.quantization) if names_precision else None,
        "attention": None if setting.attention == attention else str(setting.attention),
        "accounting": str(setting.accounting), "mla": str(setting.mla), "expert_skew": setting.expert_skew,
        "layout": setting.layout if setting.layout != ONE_DEVICE else "",
        "offload": setting.offload if setting.offload != ON_DEVICE else "",
        "host": setting.host or "", "on_host": str(setting.placement), "mtp": setting.mtp,
        "techniques": setting.techniques, "library": "" if setting.engine else setting.library,
        **engine_inputs(setting.engine), "profiles": setting.profiles, "bound": setting.bound,
    }  # fmt: skip
    changed = {name: value for name, value in values.items() if value != PARAMETERS[name].default}
    unsupported = next((name for name in changed if name not in kind.__annotations__), "")
    if unsupported:
        raise InputError(f"{unsupported} of the Setting is not supported here: {values[unsupported]}; leave it out")
    return cast("_O", changed)


def _shown_option(value: object) -> object:
    """The value of an option as users write it."""
    if isinstance(value, Hardware | Profile):
        return value.name
    if isinstance(value, tuple | list):
        return tuple(map(_shown_option, value))
    return value if isinstance(value, bool | int | float) else str(value)


def layout_of(options: LayoutOptions) -> Layout:
    """The layout of `layout`, or of degrees of parallelism and how collectives run.

    Raises InputError if both are given, or they do not fit together.
    """
    layout = options.get("layout", "")
    parsed_layout = parse_layout(layout) if isinstance(layout, str) else layout
    degrees: dict[str, Any] = {f.name: options.get(f.name, f.default) for f in fields(Layout)}
    changed_degree = next((name for name, value in degrees.items() if value != getattr(ONE_DEVICE, name)), "")
    if changed_degree and layout not in ("", ONE_DEVICE):
        raise InputError(f"layout must be left out beside {changed_degree}, which it sets too; give one of them")
    degrees["collective"] = arguments.enum_member("collective", degrees["collective"], Algorithm)
    return Layout(**degrees) if changed_degree else parsed_layout


def offload_of(options: PassOptions) -> Offload:
    """Parts of weights and KV cache outside of device memory.

    Raises InputError if it does not parse.
    """
    offload, synchronous = options["offload"], options["offload_sync"]
    if isinstance(offload, str):
        return parse_offload(f"{offload} sync" if synchronous else offload)
    return replace(offload, synchronous=True) if synchronous else offload


def host_of(options: PassOptions) -> HostFields:
    """The host and what runs on it.

    Raises InputError if one of both is missing, the host is neither CPU nor GPU, or an option does not parse.
    """
    placement = options["on_host"]
    placement = parse_host_placement(placement) if isinstance(placement, str) else placement
    if not options["host"]:
        if placement != NOTHING_ON_HOST or options["host_set"]:
            raise InputError(
                "on_host and host_set need a host; name a CPU with host, such as ryzen-9-9950x, or a second GPU"
            )
        return {"host": None, "placement": placement}
    if placement == NOTHING_ON_HOST:
        raise InputError("on_host must say what the host computes, such as experts, experts=36, layers=20 or attention")
    host = loaded(options["host"], options["host_set"])
    if host.kind not in ("cpu", "gpu"):
        raise InputError(f"host must be a CPU, or a second GPU; got {host.name}, a {host.kind}")
    return {"host": host, "placement": placement}


def server_options(values: EngineOptions) -> ServerOptions:
    """Options with which the server of an engine starts.

    Raises InputError if a number is not within the limits of its option.
    """
    for name in ("memory_fraction", "max_num_seqs", "max_num_batched_tokens", "max_model_len"):
        value: Any = values[name]
        if value is not None and not PARAMETERS[name].holds(value):
            raise InputError(f"{name} must be {PARAMETERS[name].limits}; got {value!r}")
    return ServerOptions(
        version=values["engine_version"], experts_kernel=values["experts_kernel"],
        memory_fraction=values["memory_fraction"], max_num_seqs=values["max_num_seqs"],
        max_num_batched_tokens=values["max_num_batched_tokens"], max_model_len=values["max_model_len"],
    )  # fmt: skip


def engine_inputs(engine: Engine | None) -> EngineOptions:
    """An engine and the options of its server, as users write them."""
    options = engine.options if engine else AS_SHIPPED
    return {
        "engine": engine.name if engine else "", "engine_version": options.version,
        "experts_kernel": options.experts_kernel, "memory_fraction": options.memory_fraction,
        "max_num_seqs": options.max_num_seqs, "max_num_batched_tokens": options.max_num_batched_tokens,
        "max_model_len": options.max_model_len,
    }  # fmt: skip


def check_engine_options(options: ServerOptions) -> None:
    """Raises InputError if options of a server are given without an engine."""
    name = next((f.name for f in fields(ServerOptions) if getattr(options, f.name)), "")
    if name:
        option = "engine_version" if name == "version" else name
        raise InputError(f"{option} must be given with an engine, whose option it is; give --engine NAME, such as vllm")


def _default_attention(accounting: Accounting) -> AttentionMode:
    return AttentionMode.EAGER if accounting is Accounting.SURVEY else AttentionMode.FLASH


def _with_mtp_layers(model: Model, techniques: Sequence[Technique]) -> Model:
    """The model with its multi-token prediction layers.

    Raises InputError if it has none, or if a technique drafts with them.
    """
    for one in techniques:
        if one.runs_mtp_layers:
            layers = f"the layers that --with {one.name} drafts with between passes"
            raise InputError(f"mtp: runs in every pass {layers}; leave one out")
    if model.with_prediction is None:
        raise InputError(f"mtp: {model.no_prediction_reason}")
    return model.with_prediction


_KERNELS_IN_USE: Final[WeakValueDictionary[object, Kernels]] = WeakValueDictionary()


@lru_cache(maxsize=16)
def _shipped(hardware: Hardware, library: str, engine: Engine | None, host: Hardware | None) -> Kernels:
    """Kernels of the shipped profiles, shared between settings because they cache results: those of the last devices,
    and those that any setting, such as one of another precision on many devices, still has.
    """
    key = hardware, library, engine, host
    kernels = _KERNELS_IN_USE.get(key)
    if kernels is None:
        kernels = _KERNELS_IN_USE[key] = Kernels(hardware, library, engine=engine, host=host)
    return kernels


def engine_on(
    name: str,
    hardware: Hardware,
    *,
    library: str = "",
    accounting: Accounting = Accounting.FAITHFUL,
    profiles: Sequence[Profile] = (),
    options: ServerOptions = AS_SHIPPED,
) -> Engine | None:
    """The engine of a name on a device; None for "".

    Raises InputError if there is no such engine, if another argument excludes it, or if no kernels are known on the
    device.
    """
    if not name:
        check_engine_options(options)
        return None
    engine = find_engine(name, library, options)
    if accounting is Accounting.SURVEY:
        raise InputError("engine: survey accounting counts what no kernel does; use faithful")
    why = Kernels(hardware, profiles=profiles, engine=engine).device
    if isinstance(why, str):
        raise InputError(why if engine.has_whole_passes else f"engine: no kernels are known on {hardware.name}: {why}")
    return engine


def _precision(quant: str | None, model: Model, engine: Engine | None, hardware: Hardware) -> Quantization:
    """A precision as users write it, with the activations that the kernels of an engine have; None: as published.

    Raises InputError if the precision does not parse, or the engine does not run on the device.
    """
    quantization = model.quantization
    if quant:
        quantization = parse_quantization(quant).as_in(model.checkpoints).over(model.quantization)
    if quantization != model.quantization:
        _check_groups(quantization, model)
    if engine is None or not engine.has_whole_passes:
        return quantization
    return backend_of(engine.name, hardware).operands(quantization, model.graph)


def _check_groups(quantization: Quantization, model: Model) -> None:
    """Raises InputError if weights have groups of a size that divides no row of any matrix of `model`.

    Rows that are shorter than a group have one scale each.
    """
    weight = quantization.scheme.weight
    if weight is None or weight.group == default_group(weight):
        return
    linears = (op for _, op in model.graph if isinstance(op, Linear) and not op.left_as_published)
    rows = sorted({op.weight.shape[-1] for op in linears})
    if rows and all(row > weight.group and row % weight.group for row in rows):
        raise InputError(
            f"quantization {quantization}: groups must divide the rows of a matrix; groups of {weight.group} divide "
            f"none of those of {model.name}, of {', '.join(map(str, rows[:4]))}{' ...' * (len(rows) > 4)} values; try "
            "g128 or g64"
        )


def _quant_of(quant: str | None, techniques: Sequence[Technique]) -> str | None:
    """The precision that --quant or a technique sets.

    Raises InputError if more than one sets it.
    """
    setters = [one for one in techniques if one.quant]
    if setters and (quant or len(setters) > 1):
        other = f"--quant {quant}" if quant else setters[1].name
        raise InputError(
            f"{setters[0].name}: is {setters[0].quant}, and {other} also sets the precision; give one of the two"
        )
    return setters[0].quant if setters else quant
