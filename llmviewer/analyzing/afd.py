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
from ..options import ExpertOptions, document_options
from ..parallel import expert_places
from ..parallel.layout import ONE_DEVICE, Layout, Network, nearest_divisors, parse_layout
from ..parameters import KvLink
from ..records import frozen
from ..rows import Rows
from ..setting import Setting, whole_number
from ..workload import Workload
from .costs import Devices, per_dollar
from .disaggregation import joined, latency_s, sent_bytes_per_s

SCHEMA_VERSION: Final = 1
MOST_MICRO_BATCHES: Final = 8  # that are tried
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
        """What sets the time of the step: attention, experts, links, or latency of one micro-batch."""
        parts = {"attention": self.attention, "experts": self.experts, "links": self.links, "latency": self.alone}
        return [list(parts)[n] for n in np.argmax(np.stack(list(parts.values())), axis=0)]

    def at(self, places: npt.NDArray[np.intp]) -> Busy:
        """The entries at some indices."""
        return Busy(**{name: getattr(self, name)[places] for name in _PARTS})


_PARTS: Final = ("attention", "experts", "dispatch", "collect", "alone")
_ENDS: Final = ("expected", "low", "high")


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
        return self._bought(self.tokens_per_s * self.devices, devices)

    @property
    def together_tokens_per_usd(self) -> Array | None:
        return None if self.together is None else self._bought(self.together, [(self.attention.hardware, 1)])

    def _bought(self, tokens_per_s: Array, devices: Devices) -> Array | None:
        found = np.asarray(per_dollar(tokens_per_s, devices, self.years))
        return None if np.isnan(found).all() else found

    @property
    def fits(self) -> npt.NDArray[np.bool_]:
        inside = (
            self.batch <= (np.inf if most is None else most) for most in (self.attention_batch, self.expert_batch)
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
        ends = {f"{end}_step_s": getattr(self.expected, end).step_s if self.expected else None for end in _ENDS}
        columns: dict[str, Array | None] = {
            "bound_step_s": self.bound.step_s,
            **ends,
            "tokens_per_s_per_device": self.tokens_per_s,
            "together_tokens_per_s_per_device": self.together,
            "tokens_per_usd": self.tokens_per_usd,
            "together_tokens_per_usd": self.together_tokens_per_usd,
            **{f"{part}_busy": getattr(likely, part) / likely.step_s for part in _PARTS[:-1]},
            "attention_bytes": self.attention_bytes,
            "expert_bytes": self.expert_bytes,
        }
        for at, batch in enumerate(self.batch):
            row: dict[str, Any] = {"batch": int(batch), "micro_batches": int(self.micro_batches[at])}
            known = {
                name: column[at] for name, column in columns.items() if column is not None and not isnan(column[at])
            }
            row |= {name: float(known[name]) if name in known else None for name in columns}
            yield row | {"limited_by": limits[at], "fits": bool(self.fits[at])}

    def to_dict(self) -> dict[str, Any]:
        return {
            "schema_version": SCHEMA_VERSION,
            "llmviewer_version": __version__,
            "inputs": {name.replace(" ", "_"): value for name, value in self.inputs.items()},
            "copies": self.copies,
            "attention_batch": self.attention_batch,
            "expert_batch": self.expert_batch,
            "steps": list(self.rows()),
        }


@document_options(ExpertOptions)
def afd(
    model: str | Model,
    attention_hardware: str | Hardware,
    expert_hardware: str | Hardware,
    *,
    attention_layout: str | Layout = ONE_DEVICE,
    expert_devices: int = 1,
    batch: int | Sequence[int] = 1,
    kv_len: int = 4096,
    micro_batches: int = 0,
    link: str = "scale-out",
    years: float | None = None,
    **options: Unpack[ExpertOptions],
) -> ExpertDisaggregation:
    """Decode steps of `batch` sequences at a context of `kv_len` tokens, with experts on separate devices.

    attention_layout   degrees of tp and dp of the devices that hold everything but the experts
    expert_devices     devices that the experts are divided among
    batch              sequences on all attention devices together; one number or several
    micro_batches      micro-batches per batch; 0: those of 1 to 8 with the shortest step
    link               between the sides: "scale-out", or "scale-up" if both are in one scale-up domain
    years              years over which the purchase price is spread, for devices without a cloud price

    The options are as in analyze().

    Raises InputError if an argument is invalid or the model has no experts.
    """
    arguments.check_types(model=model)
    loaded = load_model(model) if isinstance(model, str) else model
    given = arguments.with_defaults(options, ExpertOptions)
    layout = parse_layout(attention_layout) if isinstance(attention_layout, str) else attention_layout
    if layout.ep * layout.pp * layout.cp > 1:
        raise InputError(f"attention_layout must have degrees of tp and dp only; got {attention_layout}")
    many, cut = whole_number("expert_devices", expert_devices), whole_number("micro_batches", micro_batches, least=0)
    sizes = np.array([whole_number("batch", n) for n in arguments.as_numbers(batch)], dtype=np.float64)
    arguments.check_positive(years=years)
    laid = Layout(
        dp=many, ep=many, redundant_experts=whole_number("redundant_experts", given["redundant_experts"], least=0)
    )
    own, others = changes_by_device((attention_hardware, expert_hardware), given["hardware_set"])
    each = given | {"redundant_experts": 0}  # `laid` has them
    attention = Setting.of(loaded, attention_hardware, layout=layout, **each | {"hardware_set": own})
    experts = Setting.of(loaded, expert_hardware, layout=laid, **each | {"hardware_set": others})
    way = _joined(attention, experts, arguments.enum_member("link", link, KvLink))
    pair = _Sides(attention, experts, way, whole_number("kv_len", kv_len))
    tried = np.array([cut] if cut else range(1, MOST_MICRO_BATCHES + 1), dtype=np.float64)
    every = np.tile(sizes, len(tried))
    parts = np.minimum(np.repeat(tried, len(sizes)), every)
    bounds, likely = pair.bound(parts, every), pair.expected(parts, every)
    steps = (likely.expected if likely else bounds).step_s.reshape(len(tried), -1)
    best = np.argmin(steps, axis=0) * len(sizes) + np.arange(len(sizes))
    held: dict[str, Any] = {"prompt": kv_len, "gen": 0}
    needed = [np.broadcast_to(one.total_bytes(batch=sizes, **held), sizes.shape) for one in pair.footprints]
    room = zip(pair.footprints, pair, strict=True)
    most = [largest_batch(one, side.hardware.capacity, **held) for one, side in room]
    return ExpertDisaggregation(
        attention=attention,
        experts=experts,
        link=way,
        kv_len=kv_len,
        batch=sizes,
        micro_batches=parts[best],
        bound=bounds.at(best),
        expected=likely and Expected(**{end: getattr(likely, end).at(best) for end in _ENDS}),
        together=pair.together(sizes),
        copies=pair.copies,
        attention_bytes=needed[0],
        expert_bytes=needed[1],
        attention_batch=most[0],
        expert_batch=most[1],
        years=years,
    )


def _joined(attention: Setting, experts: Setting, link: KvLink) -> KvLink:
    """The link, if it connects both sides."""
    (some, other), (many, others) = ((one.layout.devices, one.hardware) for one in (attention, experts))
    if link is KvLink.SCALE_UP and not joined((other, some), (others, many)):
        raise InputError(
            f"link must be scale-out unless both sides fit in one scale-up domain; got {some} x {other.name} and "
            f"{many} x {others.name}"
        )
    return link


def expert_operators(block: Block) -> tuple[Operator, ...]:
    """Operators that run on the expert devices: from the permutation of tokens by expert to their recombination."""
    carried: set[str] = set()
    found = []
    for op in block.operators:
        if isinstance(op, Permute) or carried & {t.name for t in op.inputs}:
            found.append(op)
            carried |= set() if isinstance(op, Combine) else {t.name for t in op.outputs}
    return tuple(found)


@frozen(kw_only=True)
class _Crossing:
    """Traffic per token between the sides in equal layers.

    reached  for each device, the share of tokens with an expert on it
    """

    layers: int
    there_bytes: float  # to one device, in the format of the experts' operands
    back_bytes: float
    reached: tuple[float, ...]

    @classmethod
    def of(cls, block: Block, own: Sequence[Operator], setting: Setting) -> _Crossing:
        first = next(op for op in own if isinstance(op, ExpertsLinear))
        experts, devices = first.weight.shape[0], setting.layout.ep
        if experts % devices and not setting.layout.redundant_experts:
            near = nearest_divisors(experts, devices)
            raise InputError(f"expert_devices must divide the {experts} experts; got {devices}; try {near}")
        places = expert_places(block, Network.of(setting.hardware, setting.layout))
        return cls(
            layers=block.repeat,
            there_bytes=_row_bytes(first.inputs[0]),
            back_bytes=_row_bytes(own[-1].result),
            reached=places.choice.needed(1, ranks=devices, domains=places.group.outer),
        )


def _row_bytes(tensor: Tensor) -> float:
    return tensor.width * tensor.format.stored_bits / 8


class _Sides:
    """Both settings, the traffic between them, and the memory of a device of each side."""

    def __init__(self, attention: Setting, experts: Setting, link: KvLink, kv_len: int) -> None:
        self._attention, self._experts, self._kv_len = attention, experts, kv_len
        blocks = replace(experts, layout=ONE_DEVICE).decode_graph.blocks
        crossings = [_Crossing.of(block, own, experts) for block in blocks if (own := expert_operators(block))]
        if not crossings:
            raise InputError(f"{experts.model.name} has no experts that could be on devices of their own")
        layers = sum(one.layers for one in crossings)
        self.copies = sum(one.layers * sum(one.reached) for one in crossings) / layers
        graphs = [_graph(one, apart=one is experts) for one in self]
        self._plans = [one.planned(graph) for one, graph in zip(self, graphs, strict=True)]
        self.footprints = [
            Footprint.of(graph, layout=one.layout).decoding() for one, graph in zip(self, graphs, strict=True)
        ]
        leaves, comes = (sent_bytes_per_s(one.hardware, link) for one in self)
        leaves *= attention.layout.devices
        # Per token and byte: all copies leave over the links of all attention devices; the busiest expert device gets
        # those for its experts.
        paces = [(one, max(sum(one.reached) / leaves, max(one.reached) / comes)) for one in crossings]
        self._there_s = sum(one.layers * one.there_bytes * pace for one, pace in paces)
        self._back_s = sum(one.layers * one.back_bytes * pace for one, pace in paces)
        self._messages = 2 * layers  # that a micro-batch waits for, one after another
        self._way = Sending(cores=0, start_s=max(latency_s(one.hardware, link) for one in self))
        reach = STRAIGHT.reach if link is KvLink.SCALE_OUT else 1.0
        self._likely_way = Sending(cores=0, start_s=max(self._way.start_s, STRAIGHT.start_s), reach=reach)

    def __iter__(self) -> Iterator[Setting]:
        return iter((self._attention, self._experts))

    def _workloads(self, parts: Array, batch: Array) -> tuple[Workload, ...]:
        """The share of one micro-batch of a device, for each side."""
        size = np.ceil(batch / parts)
        return tuple(Workload.decode(batch=one.layout.micro_batch_size(size), kv_len=self._kv_len) for one in self)

    def bound(self, parts: Array, batch: Array) -> Busy:
        each = zip(self._plans, self._workloads(parts, batch), strict=True)
        return self._busy(parts, batch, self._way, *(plan.time_s(workload) for plan, workload in each))

    def expected(self, parts: Array, batch: Array) -> Expected | None:
        """Expected times; None if the kernels of a side are unknown."""
        kernels = [one.kernels for one in self]
        found = []
        for known, plan, workload in zip(kernels, self._plans, self._workloads(parts, batch), strict=True):
            run = known.expect_plan(plan, workload) if known else None
            if run is None or not run.modelled:
                return None
            found.append(run.total)
        way = self._likely_way
        return Expected(**{end: self._busy(parts, batch, way, *(getattr(one, end) for one in found)) for end in _ENDS})

    def _busy(self, parts: Array, batch: Array, way: Sending, attention: Num, experts: Num) -> Busy:
        tokens = np.ceil(batch / parts)
        there, back = (tokens * each / way.reach for each in (self._there_s, self._back_s))
        whole = (np.broadcast_to(parts * one, tokens.shape) for one in (attention, experts, there, back))
        waits = self._messages * way.start_s
        alone = np.broadcast_to(attention + experts + there + back + waits, tokens.shape)
        return Busy(**dict(zip(_PARTS, (*whole, alone), strict=True)))

    def together(self, batch: Array) -> Array | None:
        """ExpertDisaggregation.together for `batch`."""
        one, devices = self._attention, self._attention.layout.devices
        copies = self._experts.layout.redundant_experts
        try:
            both = replace(one, layout=replace(one.layout, ep=devices, redundant_experts=copies), decodes_only=True)
            both.decode_plan  # noqa: B018  # which lays it out
        except InputError:
            return None
        share = np.ceil(batch * devices / (devices + self._experts.layout.devices))
        workload = Workload.decode(batch=both.layout.micro_batch_size(share), kv_len=self._kv_len)
        likely = both.expected_time("decode", workload, share)
        step = likely.expected if likely else both.time_s("decode", workload, share)
        held = both.footprint.total_bytes(batch=share, prompt=self._kv_len, gen=0)
        return np.where(held <= both.hardware.capacity, share / step / devices, nan)


def _graph(setting: Setting, *, apart: bool) -> Graph:
    """The graph of one side, without the all-to-alls of experts, whose traffic goes between the sides instead."""

    def runs(block: Block) -> Block:
        own = {op.name for op in expert_operators(block)}
        kept = (op for op in block.operators if (op.name in own) is apart)
        return replace(block, operators=tuple(op for op in kept if not (apart and isinstance(op, AllToAll))))

    return Graph(tuple(block for block in map(runs, setting.decode_graph.blocks) if block.operators))
