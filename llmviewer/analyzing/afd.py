"""afd(): decode steps with attention on one kind of device and experts on another (arXiv:2504.02263, arXiv:2507.19427).

Attention-FFN disaggregation (AFD): tokens of all attention devices go to the devices of their experts and come back in
every layer. A batch is cut into micro-batches, so that one is with the experts while others are with attention.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, reduce
from math import isnan, nan
from typing import Any, ClassVar, Final, Unpack

import numpy as np
import numpy.typing as npt

from .. import __version__, arguments
from ..devices.files import changes_by_device
from ..devices.hardware import Hardware
from ..errors import InputError
from ..expectation.launches import STRAIGHT, Sending
from ..forms import Num
from ..graph import Block, Graph
from ..memory import Footprint, largest_batch
from ..model import Model
from ..model_files import load_model
from ..operators.base import Operator, Tensor
from ..operators.collectives import AllToAll
from ..operators.elementwise import Combine, Permute
from ..operators.linear import ExpertsLinear
from ..options import ExpertArguments, ExpertOptions, document_options, only
from ..parallel import expert_places
from ..parallel.layout import ONE_DEVICE, Layout, Network, nearest_divisors, parse_layout
from ..parameters import KvLink
from ..records import frozen
from ..rows import Rows
from ..setting import Setting, opened, whole_number
from ..workload import Workload
from .costs import Devices, per_dollar
from .disaggregation import in_one_domain, latency_s, link_bytes_per_s

SCHEMA_VERSION: Final = 1
MAX_MICRO_BATCHES: Final = 8  # the largest number that is tried
Array = npt.NDArray[np.float64]


@frozen(kw_only=True)
class Busy:
    """Busy time of each part in a decode step of the whole batch. Arrays over batches.

    attention, experts   all micro-batches on the devices of that side [s]
    dispatch, collect    transfers of all micro-batches to the experts, and back [s]
    alone                latency of one micro-batch through all layers, without waiting for others [s]
    """

    attention: Array
    experts: Array
    dispatch: Array
    collect: Array
    alone: Array

    @cached_property
    def step_s(self) -> Array:
        """Time of the step: the longest busy time or the latency of one micro-batch, whichever is longer. [s]"""
        return reduce(np.maximum, (self.attention, self.experts, self.links, self.alone))

    @property
    def links(self) -> Array:
        """Busy time of the busier direction. [s]"""
        return np.maximum(self.dispatch, self.collect)

    @property
    def limits(self) -> list[str]:
        """The part that determines the time of each step: attention, experts, links, or latency of one micro-batch."""
        parts = {"attention": self.attention, "experts": self.experts, "links": self.links, "latency": self.alone}
        return [list(parts)[n] for n in np.argmax(np.stack(list(parts.values())), axis=0)]

    def at(self, places: npt.NDArray[np.intp]) -> Busy:
        """The entries at some indices."""
        return Busy(**{name: getattr(self, name)[places] for name in _PARTS})


_PARTS: Final = ("attention", "experts", "dispatch", "collect", "alone")
_INTERVAL_NAMES: Final = ("expected", "low", "high")


@frozen(kw_only=True)
class Expected:
    """Expected times of a step and their 80 % interval.

    Links have the efficiency of an all-to-all that sends each copy of a token directly to the device of its expert.
    """

    expected: Busy
    low: Busy
    high: Busy


@frozen(kw_only=True, repr=False)
class ExpertDisaggregation(Rows):
    """Decode steps for every batch: lower bounds, and expected times if kernels of both sides are known.

    attention, experts  settings of the two sides; experts are divided among all devices of theirs
    batch               sequences on all attention devices together
    micro_batches       micro-batches per batch: as requested, else those of 1 to 8 with the shortest step
    together            tokens per second and device without disaggregation, on attention devices alone, with as many
                        sequences per device; nan: does not fit, None: the devices do not divide the experts
    copies              mean number of devices that a token is sent to in a layer
    attention_bytes, expert_bytes  memory per device of a side [B]
    attention_batch, expert_batch  largest batch that fits the memory of a side; None: unlimited
    years               years over which the purchase price is spread, for devices without a cloud price
    """

    report: ClassVar = "afd"

    attention: Setting
    experts: Setting
    link: KvLink
    kv_len: int
    batch: Array
    micro_batches: Array
    bound: Busy
    expected: Expected | None
    together: Array | None
    copies: float
    attention_bytes: Array
    expert_bytes: Array
    attention_batch: int | None
    expert_batch: int | None
    years: float | None = None

    @property
    def devices(self) -> int:
        """Number of devices of both sides."""
        return self.attention.layout.devices + self.experts.layout.devices

    @property
    def likely(self) -> Busy:
        """Expected times, else the bound."""
        return self.expected.expected if self.expected else self.bound

    @property
    def tokens_per_s(self) -> Array:
        """Tokens per second and device. [1/s]"""
        return self.batch / self.likely.step_s / self.devices

    @property
    def tokens_per_usd(self) -> Array | None:
        """Tokens per dollar; None if a side has no price. [1/USD]"""
        devices = [(one.hardware, one.layout.devices) for one in (self.attention, self.experts)]
        return self._per_usd(self.tokens_per_s * self.devices, devices)

    @property
    def together_tokens_per_usd(self) -> Array | None:
        """Tokens per dollar without disaggregation; None if unknown. [1/USD]"""
        return None if self.together is None else self._per_usd(self.together, [(self.attention.hardware, 1)])

    def _per_usd(self, tokens_per_s: Array, devices: Devices) -> Array | None:
        per_usd = np.asarray(per_dollar(tokens_per_s, devices, self.years))
        return None if np.isnan(per_usd).all() else per_usd

    @property
    def fits(self) -> npt.NDArray[np.bool_]:
        """Whether a batch fits the memory of both sides."""
        inside = (
            self.batch <= (np.inf if limit is None else limit) for limit in (self.attention_batch, self.expert_batch)
        )
        return reduce(np.logical_and, inside)

    @property
    def best(self) -> int:
        """Index of the batch with most tokens per second, of those that fit."""
        return int(np.argmax(np.where(self.fits, self.tokens_per_s, 0)))

    @property
    def attention_per_expert(self) -> Array:
        """Attention devices per expert device at which both sides would be equally busy."""
        ratio = self.attention.layout.devices / self.experts.layout.devices
        return ratio * self.likely.attention / self.likely.experts

    @property
    def inputs(self) -> Mapping[str, Any]:
        """The arguments."""
        return {
            "model": self.attention.model.name,
            "attention hardware": self.attention.hardware.name,
            "attention layout": str(self.attention.layout),
            "expert hardware": self.experts.hardware.name,
            "expert devices": self.experts.layout.devices,
            "redundant experts": self.experts.layout.redundant_experts,
            "link": self.link,
            "kv_len": self.kv_len,
            "quant": str(self.attention.quantization),
        }

    def rows(self) -> Iterator[dict[str, Any]]:
        """One row per batch."""
        likely, limits = self.likely, self.likely.limits
        interval_columns = {
            f"{end}_step_s": getattr(self.expected, end).step_s if self.expected else None for end in _INTERVAL_NAMES
        }
        columns: dict[str, Array | None] = {
            "bound_step_s": self.bound.step_s,
            **interval_columns,
            "tokens_per_s_per_device": self.tokens_per_s,
            "together_tokens_per_s_per_device": self.together,
            "tokens_per_usd": self.tokens_per_usd,
            "together_tokens_per_usd": self.together_tokens_per_usd,
            **{f"{part}_busy": getattr(likely, part) / likely.step_s for part in _PARTS[:-1]},
            "attention_bytes": self.attention_bytes,
            "expert_bytes": self.expert_bytes,
        }
        for place, batch in enumerate(self.batch):
            row: dict[str, Any] = {"batch": int(batch), "micro_batches": int(self.micro_batches[place])}
            known_values = {
                name: column[place]
                for name, column in columns.items()
                if column is not None and not isnan(column[place])
            }
            row |= {name: float(known_values[name]) if name in known_values else None for name in columns}
            yield row | {"limited_by": limits[place], "fits": bool(self.fits[place])}

    def to_dict(self) -> dict[str, Any]:
        """The JSON document; docs/afd.md has its keys."""
        return {
            "schema_version": SCHEMA_VERSION,
            "llmviewer_version": __version__,
            "inputs": {name.replace(" ", "_"): value for name, value in self.inputs.items()},
            "copies": self.copies,
            "attention_batch": self.attention_batch,
            "expert_batch": self.expert_batch,
            "steps": list(self.rows()),
        }


@document_options(ExpertArguments)
def afd(
    model: str | Model | Setting,
    attention_hardware: str | Hardware | None = None,
    expert_hardware: str | Hardware | None = None,
    *,
    attention_layout: str | Layout = ONE_DEVICE,
    expert_devices: int = 1,
    **options: Unpack[ExpertArguments],
) -> ExpertDisaggregation:
    """Decode steps of `batch` sequences at a context of `kv_len` tokens, with experts on separate devices.

    attention_layout   degrees of tp and dp of the devices that hold everything but the experts
    expert_devices     devices that the experts are divided among
    expert_hardware    None: as attention_hardware

    The options are as in analyze(); a Setting may replace model, attention_hardware and options.

    Raises InputError if an argument is invalid or the model has no experts.
    """
    if isinstance(model, Setting) and attention_layout == ONE_DEVICE:
        model, attention_layout = replace(model, layout=ONE_DEVICE), model.layout
    step_options = arguments.with_defaults(options, ExpertArguments)
    kv_len = whole_number("kv_len", step_options["kv_len"])
    model, attention_hardware, side_options = opened(
        model, attention_hardware, only(options, ExpertOptions), ExpertOptions
    )
    expert_hardware = attention_hardware if expert_hardware is None else expert_hardware
    arguments.check_types(model=model)
    loaded = load_model(model) if isinstance(model, str) else model
    all_options = arguments.with_defaults(side_options, ExpertOptions)
    layout = parse_layout(attention_layout) if isinstance(attention_layout, str) else attention_layout
    if layout.ep * layout.pp * layout.cp > 1:
        raise InputError(f"attention_layout must have degrees of tp and dp only; got {attention_layout}")
    expert_count, micro_batch_count = (
        whole_number("expert_devices", expert_devices),
        whole_number("micro_batches", step_options["micro_batches"], least=0),
    )
    sizes = np.array([whole_number("batch", n) for n in arguments.as_numbers(step_options["batch"])], dtype=np.float64)
    arguments.check_positive(years=step_options["years"])
    expert_layout = Layout(
        dp=expert_count,
        ep=expert_count,
        redundant_experts=whole_number("redundant_experts", all_options["redundant_experts"], least=0),
    )
    attention_changes, expert_changes = changes_by_device(
        (attention_hardware, expert_hardware), all_options["hardware_set"]
    )
    shared_options = all_options | {"redundant_experts": 0}  # `expert_layout` has them
    attention = Setting.of(
        loaded, attention_hardware, layout=layout, **shared_options | {"hardware_set": attention_changes}
    )
    experts = Setting.of(
        loaded, expert_hardware, layout=expert_layout, **shared_options | {"hardware_set": expert_changes}
    )
    checked_link = _checked_link(attention, experts, arguments.enum_member("link", step_options["link"], KvLink))
    sides = _Sides(attention, experts, checked_link, kv_len)
    counts = np.array([micro_batch_count] if micro_batch_count else range(1, MAX_MICRO_BATCHES + 1), dtype=np.float64)
    batches = np.tile(sizes, len(counts))
    parts = np.minimum(np.repeat(counts, len(sizes)), batches)
    bounds, likely = sides.bound(parts, batches), sides.expected(parts, batches)
    steps = (likely.expected if likely else bounds).step_s.reshape(len(counts), -1)
    best = np.argmin(steps, axis=0) * len(sizes) + np.arange(len(sizes))
    lengths: dict[str, Any] = {"prompt": kv_len, "gen": 0}
    needed_bytes = [np.broadcast_to(one.total_bytes(batch=sizes, **lengths), sizes.shape) for one in sides.footprints]
    footprints = zip(sides.footprints, sides, strict=True)
    max_batches = [largest_batch(one, side.hardware.capacity, **lengths) for one, side in footprints]
    return ExpertDisaggregation(
        attention=attention,
        experts=experts,
        link=checked_link,
        kv_len=kv_len,
        batch=sizes,
        micro_batches=parts[best],
        bound=bounds.at(best),
        expected=likely and Expected(**{end: getattr(likely, end).at(best) for end in _INTERVAL_NAMES}),
        together=sides.colocated(sizes),
        copies=sides.copies,
        attention_bytes=needed_bytes[0],
        expert_bytes=needed_bytes[1],
        attention_batch=max_batches[0],
        expert_batch=max_batches[1],
        years=step_options["years"],
    )


def _checked_link(attention: Setting, experts: Setting, link: KvLink) -> KvLink:
    """The link.

    Raises InputError if it does not connect both sides.
    """
    (attention_devices, attention_hardware), (expert_devices, expert_hardware) = (
        (one.layout.devices, one.hardware) for one in (attention, experts)
    )
    if link is KvLink.SCALE_UP and not in_one_domain(
        (attention_hardware, attention_devices), (expert_hardware, expert_devices)
    ):
        raise InputError(
            "link must be scale-out unless both sides fit in one scale-up domain; got "
            f"{attention_devices} x {attention_hardware.name} and "
            f"{expert_devices} x {expert_hardware.name}"
        )
    return link


def expert_operators(block: Block) -> tuple[Operator, ...]:
    """Operators that run on the expert devices: from the permutation of tokens by expert to their recombination."""
    routed_tensors: set[str] = set()
    operators = []
    for op in block.operators:
        if isinstance(op, Permute) or routed_tensors & {t.name for t in op.inputs}:
            operators.append(op)
            routed_tensors |= set() if isinstance(op, Combine) else {t.name for t in op.outputs}
    return tuple(operators)


@frozen(kw_only=True)
class _Crossing:
    """Traffic per token between the sides in equal layers.

    layers          number of these layers
    dispatch_bytes  sent to one device, in the format of the experts' operands [B]
    collect_bytes   sent back by one device [B]
    reached         share of tokens with an expert on a device, for each device
    """

    layers: int
    dispatch_bytes: float
    collect_bytes: float
    reached: tuple[float, ...]

    @classmethod
    def of(cls, block: Block, expert_ops: Sequence[Operator], setting: Setting) -> _Crossing:
        first = next(op for op in expert_ops if isinstance(op, ExpertsLinear))
        experts, devices = first.weight.shape[0], setting.layout.ep
        if experts % devices and not setting.layout.redundant_experts:
            near = nearest_divisors(experts, devices)
            raise InputError(f"expert_devices must divide the {experts} experts; got {devices}; try {near}")
        places = expert_places(block, Network.of(setting.hardware, setting.layout))
        return cls(
            layers=block.repeat,
            dispatch_bytes=_row_bytes(first.inputs[0]),
            collect_bytes=_row_bytes(expert_ops[-1].result),
            reached=places.choice.needed(1, ranks=devices, domains=places.group.outer),
        )


def _row_bytes(tensor: Tensor) -> float:
    return tensor.width * tensor.format.stored_bits / 8


class _Sides:
    """Both settings, the traffic between them, and the memory of a device of each side."""

    def __init__(self, attention: Setting, experts: Setting, link: KvLink, kv_len: int) -> None:
        self._attention, self._experts, self._kv_len = attention, experts, kv_len
        blocks = replace(experts, layout=ONE_DEVICE).decode_graph.blocks
        crossings = [
            _Crossing.of(block, expert_ops, experts) for block in blocks if (expert_ops := expert_operators(block))
        ]
        if not crossings:
            raise InputError(f"{experts.model.name} has no routed experts to put on separate devices")
        layers = sum(one.layers for one in crossings)
        self.copies = sum(one.layers * sum(one.reached) for one in crossings) / layers
        graphs = [_graph(one, expert_side=one is experts) for one in self]
        self._plans = [one.planned(graph) for one, graph in zip(self, graphs, strict=True)]
        self.footprints = [
            Footprint.of(graph, layout=one.layout).decoding() for one, graph in zip(self, graphs, strict=True)
        ]
        send_bytes_per_s, receive_bytes_per_s = (link_bytes_per_s(one.hardware, link) for one in self)
        send_bytes_per_s *= attention.layout.devices
        # Per token and byte: all copies leave over the links of all attention devices; the busiest expert device gets
        # those for its experts.
        seconds_per_byte = [
            (one, max(sum(one.reached) / send_bytes_per_s, max(one.reached) / receive_bytes_per_s)) for one in crossings
        ]
        self._dispatch_s = sum(one.layers * one.dispatch_bytes * pace for one, pace in seconds_per_byte)
        self._collect_s = sum(one.layers * one.collect_bytes * pace for one, pace in seconds_per_byte)
        self._messages = 2 * layers  # that a micro-batch waits for, one after another
        self._link = Sending(cores=0, start_s=max(latency_s(one.hardware, link) for one in self))
        reach = STRAIGHT.reach if link is KvLink.SCALE_OUT else 1.0
        self._expected_link = Sending(cores=0, start_s=max(self._link.start_s, STRAIGHT.start_s), reach=reach)

    def __iter__(self) -> Iterator[Setting]:
        return iter((self._attention, self._experts))

    def _workloads(self, parts: Array, batch: Array) -> tuple[Workload, ...]:
        """The share of one micro-batch of a device, for each side."""
        size = np.ceil(batch / parts)
        return tuple(Workload.decode(batch=one.layout.micro_batch_size(size), kv_len=self._kv_len) for one in self)

    def bound(self, parts: Array, batch: Array) -> Busy:
        """Lower bounds of busy times for micro-batches and batches."""
        sides = zip(self._plans, self._workloads(parts, batch), strict=True)
        return self._busy(parts, batch, self._link, *(plan.time_s(workload) for plan, workload in sides))

    def expected(self, parts: Array, batch: Array) -> Expected | None:
        """Expected times; None if the kernels of a side are unknown."""
        kernels = [one.kernels for one in self]
        totals = []
        for side_kernels, plan, workload in zip(kernels, self._plans, self._workloads(parts, batch), strict=True):
            expected_pass = side_kernels.expect_plan(plan, workload) if side_kernels else None
            if expected_pass is None or not expected_pass.modelled:
                return None
            totals.append(expected_pass.total)
        link = self._expected_link
        return Expected(
            **{end: self._busy(parts, batch, link, *(getattr(one, end) for one in totals)) for end in _INTERVAL_NAMES}
        )

    def _busy(self, parts: Array, batch: Array, link: Sending, attention: Num, experts: Num) -> Busy:
        tokens = np.ceil(batch / parts)
        dispatch_s, collect_s = (tokens * each / link.reach for each in (self._dispatch_s, self._collect_s))
        busy_times = (np.broadcast_to(parts * one, tokens.shape) for one in (attention, experts, dispatch_s, collect_s))
        latency = self._messages * link.start_s
        single_s = np.broadcast_to(attention + experts + dispatch_s + collect_s + latency, tokens.shape)
        return Busy(**dict(zip(_PARTS, (*busy_times, single_s), strict=True)))

    def colocated(self, batch: Array) -> Array | None:
        """ExpertDisaggregation.together for `batch`."""
        attention, devices = self._attention, self._attention.layout.devices
        copies = self._experts.layout.redundant_experts
        try:
            colocated = replace(
                attention, layout=replace(attention.layout, ep=devices, redundant_experts=copies), decodes_only=True
            )
            colocated.decode_plan  # noqa: B018  # raises if the layout is impossible
        except InputError:
            return None
        share = np.ceil(batch * devices / (devices + self._experts.layout.devices))
        workload = Workload.decode(batch=colocated.layout.micro_batch_size(share), kv_len=self._kv_len)
        likely = colocated.expected_time("decode", workload, share)
        step = likely.expected if likely else colocated.time_s("decode", workload, share)
        needed_bytes = colocated.footprint.total_bytes(batch=share, prompt=self._kv_len, gen=0)
        return np.where(needed_bytes <= colocated.hardware.capacity, share / step / devices, nan)


def _graph(setting: Setting, *, expert_side: bool) -> Graph:
    """The graph of one side, without the all-to-alls of experts, whose traffic goes between the sides instead."""

    def runs(block: Block) -> Block:
        expert_names = {op.name for op in expert_operators(block)}
        side_operators = (op for op in block.operators if (op.name in expert_names) is expert_side)
        return replace(
            block, operators=tuple(op for op in side_operators if not (expert_side and isinstance(op, AllToAll)))
        )

    return Graph(tuple(block for block in map(runs, setting.decode_graph.blocks) if block.operators))
