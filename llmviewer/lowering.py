"""Lowering: the graphs that a device runs, with techniques, layout and formats applied, and their plans."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property, lru_cache, partial

from .devices.hardware import Hardware
from .errors import InputError
from .graph import Graph
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
from .transforms.offload import ON_DEVICE, Offload, offload
from .transforms.quantize import AS_IT_IS, Quantization, quantize
from .transforms.skew import skew
from .transforms.survey import survey


@frozen(kw_only=True)
class Lowering:
    """Everything that graphs and plans depend on; `techniques` are those that change them."""

    model: Model
    hardware: Hardware
    quantization: Quantization
    attention: AttentionMode
    accounting: Accounting
    mla: Mla
    expert_skew: float
    layout: Layout
    offload: Offload
    techniques: tuple[Technique, ...]

    def remembered(self) -> Lowering:
        """An equal recent Lowering with its cached graphs and plans, if there is one; else this one."""
        return _remembered(self)

    @cached_property
    def graph(self) -> Graph:
        """The graph of a prefill."""
        absorbed = self.mla is Mla.ABSORBED or (self.mla is Mla.AUTO and self._has(Indexer))
        return self._lowered(absorbed=absorbed, decode=False)

    @cached_property
    def decode_graph(self) -> Graph:
        """The graph of a decode step; it differs in latent attention, context parallelism and offloaded caches."""
        absorbed = self.mla is not Mla.NAIVE and self._has(LatentExpansion)
        apart = absorbed and self.mla is Mla.AUTO and not self._has(Indexer)
        differs = self._placed_apart or self.offload.kv > 0 or apart
        return self._lowered(absorbed=absorbed, decode=True) if differs else self.graph

    @property
    def _placed_apart(self) -> bool:
        """Whether layout or techniques differ between decode steps and prefills."""
        return self.layout.cp > 1 or any(one.separate_decode_graph for one in self.techniques)

    def _has(self, kind: type[Operator]) -> bool:
        return any(isinstance(op, kind) for _, op in self._changed(decode=False))

    def _changed(self, *, decode: bool) -> Graph:
        """The model's graph with techniques, before all other lowering."""
        return self.model.graph.then(*(partial(one.network, decode=decode) for one in self.techniques))

    @cached_property
    def plan(self) -> Plan:
        """The plan of a prefill."""
        return plan(self.graph, self.linked)

    @cached_property
    def decode_plan(self) -> Plan:
        """The plan of a decode step."""
        return self.plan if self.decode_graph is self.graph else plan(self.decode_graph, self.linked)

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
        linked = self.offload.linked(self._network.linked())
        return linked.at_datasheet() if self.accounting is Accounting.SURVEY else linked

    def _lowered(self, *, absorbed: bool, decode: bool) -> Graph:
        """The lowered graph."""
        latent = (absorb,) if absorbed else ()
        flash = (flash_attention(self.hardware.on_chip_bytes),) if self.attention is AttentionMode.FLASH else ()
        away = (offload(self.offload, decode=decode),) if self.offload != ON_DEVICE else ()
        if self.accounting is Accounting.SURVEY:
            self._check_one_precision()
            return self._placed(decode=decode).then(*latent, *flash, survey(self.quantization.scheme), *away)
        joined = (overlapped,) if self.layout.overlap else ()
        ours = (partial(one.lowered, hardware=self.hardware, decode=decode) for one in self.techniques)
        apart = decode and self._placed_apart
        return (self._stored(decode=True) if apart else self._quantized).then(*latent, *flash, *ours, *away, *joined)

    def _check_one_precision(self) -> None:
        """Raises InputError for several precisions, which survey accounting does not support."""
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
        """The quantized graph of a prefill, and of a decode step unless _placed_apart."""
        return self._stored(decode=False)

    def _stored(self, *, decode: bool) -> Graph:
        return self._placed(decode=decode).then(quantize(self.quantization, self.model.graph))

    def _placed(self, *, decode: bool) -> Graph:
        """The graph of one device, with techniques and layout, before quantization."""
        base = replace(
            self,
            quantization=AS_IT_IS,
            attention=AttentionMode.FLASH,
            accounting=Accounting.FAITHFUL,
            mla=Mla.AUTO,
            offload=ON_DEVICE,
        ).remembered()
        return base.decode_part if decode else base.part

    @cached_property
    def part(self) -> Graph:
        """The graph of one device in a prefill, before formats and kernels are chosen."""
        return self._shared_out(decode=False)

    @cached_property
    def decode_part(self) -> Graph:
        """The graph of one device in a decode step, before formats and kernels are chosen."""
        return self._shared_out(decode=True)

    def _shared_out(self, *, decode: bool) -> Graph:
        shared = (parallel(self._network, decode=decode),) if self.layout.devices > 1 else ()
        return self._changed(decode=decode).then(skew(self.expert_skew), *shared)


@lru_cache(maxsize=128)
def _remembered(lowering: Lowering) -> Lowering:
    return lowering
