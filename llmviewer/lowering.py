"""Lowering: the graphs that a device runs, with techniques, layout and formats applied, and their plans."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property, lru_cache, partial

from .devices.hardware import Hardware
from .errors import InputError
from .graph import Graph, Transform
from .memory import Footprint
from .model import Model
from .operators.attention import Indexer
from .operators.base import Operator
from .operators.linear import LatentExpansion
from .parallel import parallel
from .parallel.layout import Layout, Network
from .parallel.overlap import overlapped
from .parameters import Accounting, AttentionMode, Mla
from .records import frozen
from .roofline import Plan, plan
from .techniques import Technique
from .transforms.absorb import absorb
from .transforms.flash_attention import flash_attention
from .transforms.host import NOTHING_ON_HOST, HostPlacement, is_second_gpu, on_host
from .transforms.offload import ON_DEVICE, Offload, offload
from .transforms.quantize import UNQUANTIZED, Quantization, quantize
from .transforms.skew import skew
from .transforms.survey import survey


@frozen(kw_only=True)
class Lowering:
    """All inputs of graphs and plans; `techniques` are those that change either."""

    model: Model
    hardware: Hardware
    quantization: Quantization
    attention: AttentionMode
    accounting: Accounting
    mla: Mla
    expert_skew: float
    layout: Layout
    offload: Offload
    host: Hardware | None
    placement: HostPlacement
    streams_prompts: bool  # whether the weights of products on the host are fetched for prompts instead
    techniques: tuple[Technique, ...]

    def cached(self) -> Lowering:
        """An equal recent Lowering with its cached graphs and plans, if there is one; else this one."""
        return _cached(self)

    @cached_property
    def graph(self) -> Graph:
        """The graph of a prefill."""
        absorbed = self.mla is Mla.ABSORBED or (self.mla is Mla.AUTO and self._has(Indexer))
        return self._lowered(absorbed=absorbed, decode=False)

    @cached_property
    def decode_graph(self) -> Graph:
        """The graph of a decode step; it differs in latent attention, context parallelism and offloaded caches."""
        absorbed = self.mla is not Mla.NAIVE and self._has(LatentExpansion)
        absorbs_only_decode = absorbed and self.mla is Mla.AUTO and not self._has(Indexer)
        streams = self.streams_prompts and self.placement != NOTHING_ON_HOST
        differs = self._decode_differs or self.offload.kv > 0 or absorbs_only_decode or streams
        return self._lowered(absorbed=absorbed, decode=True) if differs else self.graph

    @property
    def _decode_differs(self) -> bool:
        """Whether layout or techniques differ between decode steps and prefills."""
        return self.layout.cp > 1 or any(one.separate_decode_graph for one in self.techniques)

    def _has(self, kind: type[Operator]) -> bool:
        return any(isinstance(op, kind) for _, op in self._with_techniques(decode=False))

    def _with_techniques(self, *, decode: bool) -> Graph:
        """The model's graph with techniques, before all other lowering."""
        return self.model.graph.then(*(partial(one.network, decode=decode) for one in self.techniques))

    @cached_property
    def plan(self) -> Plan:
        """The plan of a prefill."""
        return plan(self.graph, self.linked, self.host)

    @cached_property
    def decode_plan(self) -> Plan:
        """The plan of a decode step."""
        return self.plan if self.decode_graph is self.graph else plan(self.decode_graph, self.linked, self.host)

    @cached_property
    def footprint(self) -> Footprint:
        """The memory of both graphs, for passes not yet changed by techniques."""
        return Footprint.of(self.graph, self.decode_graph, self.layout, self.offload)

    @cached_property
    def _network(self) -> Network:
        return Network.of(self.hardware, self.layout)

    @cached_property
    def linked(self) -> Hardware:
        """The device with the rates of the links that it uses."""
        linked = self.placement.linked(self.offload.linked(self._network.linked()), self.host)
        return linked.at_datasheet() if self.accounting is Accounting.SURVEY else linked

    def _lowered(self, *, absorbed: bool, decode: bool) -> Graph:
        """The lowered graph."""
        latent = (absorb,) if absorbed else ()
        flash = (flash_attention(self.hardware.on_chip_bytes),) if self.attention is AttentionMode.FLASH else ()
        offloading: tuple[Transform, ...] = (
            *((offload(self.offload, decode=decode),) if self.offload != ON_DEVICE else ()),
            *((self._on_host(decode=decode),) if self.placement != NOTHING_ON_HOST else ()),
        )
        if self.accounting is Accounting.SURVEY:
            self._check_one_precision()
            return self._placed(decode=decode).then(*latent, *flash, survey(self.quantization.scheme), *offloading)
        overlap = (overlapped,) if self.layout.overlap else ()
        from_techniques = (partial(one.lowered, hardware=self.hardware, decode=decode) for one in self.techniques)
        decode_differs = decode and self._decode_differs
        return (self._stored(decode=True) if decode_differs else self._quantized).then(
            *latent, *flash, *from_techniques, *offloading, *overlap
        )

    def _on_host(self, *, decode: bool) -> Transform:
        return on_host(
            self.placement,
            streams_weights=self.streams_prompts and not decode,
            begins_on_host=is_second_gpu(self.host),
        )

    def _check_one_precision(self) -> None:
        """Raises InputError for several precisions, which survey accounting does not support."""
        quantization, must = self.quantization, "accounting survey has one precision for all operators"
        if quantization.overrides and quantization == self.model.quantization:
            hint = "give one with --quant, such as W16A16"
            raise InputError(f"{must}, and {self.model.name} is published in several", hint=hint)
        if quantization.mixture:
            raise InputError(f"{must}, and {quantization.mixture.name} several", hint="try W4A16")
        if quantization.overrides:
            raise InputError(must, hint="drop the overrides of --quant")

    @cached_property
    def _quantized(self) -> Graph:
        """The quantized graph of a prefill, and of a decode step unless _decode_differs."""
        return self._stored(decode=False)

    def _stored(self, *, decode: bool) -> Graph:
        return self._placed(decode=decode).then(quantize(self.quantization, self.model.graph))

    def _placed(self, *, decode: bool) -> Graph:
        """The graph of one device, with techniques and layout, before quantization."""
        base = replace(
            self,
            quantization=UNQUANTIZED,
            attention=AttentionMode.FLASH,
            accounting=Accounting.FAITHFUL,
            mla=Mla.AUTO,
            offload=ON_DEVICE,
            host=None,
            placement=NOTHING_ON_HOST,
            streams_prompts=False,
        ).cached()
        return base.device_decode_graph if decode else base.device_graph

    @cached_property
    def device_graph(self) -> Graph:
        """The graph of one device in a prefill, before formats and kernels are chosen."""
        return self._divided(decode=False)

    @cached_property
    def device_decode_graph(self) -> Graph:
        """The graph of one device in a decode step, before formats and kernels are chosen."""
        return self._divided(decode=True)

    def _divided(self, *, decode: bool) -> Graph:
        shared = (parallel(self._network, decode=decode),) if self.layout.devices > 1 else ()
        return self._with_techniques(decode=decode).then(skew(self.expert_skew), *shared)


@lru_cache(maxsize=32)  # some 0.3 MB each
def _cached(lowering: Lowering) -> Lowering:
    return lowering
