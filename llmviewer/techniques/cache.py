"""Storage of the KV cache: in pages, in fewer bits, for fewer layers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from typing import Final

import numpy as np

from ..devices.hardware import Hardware
from ..forms import Feature, Form, kv_tokens, total
from ..graph import Block, Graph
from ..operators.attention import QK, SV, FlashAttention
from ..operators.base import Operator, Role, Tensor
from ..operators.collectives import Collective
from ..operators.elementwise import Elementwise, Rope
from ..operators.linear import Linear
from ..precision import HALF, Format
from ..records import frozen
from ..workload import Workload
from . import technique
from ._layers import split_layers
from ._masks import causal_masks
from ._parameters import parameter
from ._technique import Finding, Kind, Requirement, SettingView, Technique

_SCALE_BITS: Final = 16  # of a scale, and of a zero point


class Allocated(Technique):
    """Memory for the cache is allocated in pages of `page` tokens of one sequence."""

    kind = Kind.ATTENTION
    requires = Requirement.NOTHING
    order = -1  # before techniques that add bytes to what pages hold

    @property
    def page(self) -> int:
        """Tokens per page."""
        raise NotImplementedError

    def lowered(self, graph: Graph, hardware: Hardware, *, decode: bool) -> Graph:  # noqa: ARG002
        return graph.map(lambda op: op.with_tensors(self._paged))

    def _paged(self, t: Tensor) -> Tensor:
        if t.role is not Role.KV_CACHE:
            return t
        cached_rows = t.rows if t.retained_rows is None else t.retained_rows
        return replace(t, retained_rows=total(c * self._pages(feature) for feature, c in cached_rows.terms))

    def _pages(self, feature: Feature) -> Form:
        if feature.name == "kv_tokens":
            feature = feature._replace(name="kv_pages", arguments=(self.page, *feature.arguments))
        return Form(((feature, 1.0),))

    def incompatibility(self, setting: SettingView, others: Sequence[Technique]) -> str:  # noqa: ARG002
        other = next((other for other in others if isinstance(other, Allocated)), None)
        return f"{other.name} also allocates the cache; give one of the two" if other else ""

    def findings(self, setting: SettingView, step: Workload) -> tuple[Finding, ...]:  # noqa: ARG002
        used, allocated = step.kv_tokens(np.inf), step.kv_pages(self.page, np.inf)
        waste = float(1 - used / allocated)
        return (
            Finding(
                key="cache_waste",
                value=waste,
                text=f"{waste:.1%} of the memory allocated to a cache of full attention is unused at this context",
            ),
        )


@technique("paged")
@frozen(kw_only=True)
class Paged(Allocated):
    """PagedAttention: memory for the cache is allocated in blocks of a few tokens; block=1 is token by token.

    Effect: the cache takes more memory than its tokens need, as the last block of a sequence is not full.
    Formula: cache of a sequence = ceil(tokens / block) blocks; (block - 1) / 2 tokens are wasted on average.
    Source: arXiv:2309.06180, section 4.
    Use when: the alternative is to reserve memory for the longest sequence: more sequences fit.
    Limits: it makes no step faster.
    Not modeled: looking up block tables.
    """

    block: int = parameter("tokens per block", 16, unit="tokens", least=1)

    @property
    def page(self) -> int:
        return self.block


@technique("static")
@frozen(kw_only=True)
class Static(Allocated):
    """Static allocation: memory for `length` tokens of each sequence is reserved from the start.

    Effect: the cache takes as much memory as is reserved.
    Formula: cache of a sequence = `length` tokens; a longer sequence takes another reservation.
    Source: arXiv:2309.06180, section 3.1.
    Use when: simplicity is enough, or as the baseline of `paged`.
    Limits: few sequences fit if their lengths are not known in advance.
    """

    length: int = parameter("tokens reserved per sequence", 4096, unit="tokens", least=1)

    @property
    def page(self) -> int:
        return self.length


@frozen(kw_only=True)
class ResidualAttention(FlashAttention):
    """FlashAttention over a quantized cache whose last tokens are not quantized: the bytes of `extra` more rows."""

    extra: Form

    def reads(self) -> tuple[Tensor, ...]:
        query, *cached = super().reads()
        return (query, *(replace(t, rows=t.rows + self.extra) for t in cached))


@technique("kv-quant")
@frozen(kw_only=True)
class KvQuant(Technique):
    """KV quantization with a residual window (KIVI): old keys and values in few bits, the last tokens unchanged.

    Effect: fewer bytes of cache in memory and read in decode. The prefill attends to the unquantized keys and values
    that it has just computed.
    Formula: bits per element = bits + 32 / group (a 16-bit scale and zero point), except for the last `residual` tokens
    of a sequence; converting an element costs 2 OPs when it is read.
    Source: arXiv:2402.02750, section 3.
    Use when: contexts are long or batches large: for memory, and if decode is bound by the cache.
    Limits: no gain for the prefill, nor for steps bound by weights. `--quant KV4` is the same without a residual
    window.
    Not modeled: quantizing tokens when they leave the window.
    """

    kind = Kind.ATTENTION
    requires = Requirement.OTHER_OUTPUT
    separate_decode_graph = True

    bits: int = parameter("bits per element, without scales", 2, least=1, most=8)
    group: int = parameter("elements that share a scale", 32, least=1)
    residual: int = parameter("last tokens that are not quantized", 128, unit="tokens", least=0)

    def lowered(self, graph: Graph, hardware: Hardware, *, decode: bool) -> Graph:  # noqa: ARG002
        return graph.map(lambda op: self._quantized(op, decode=decode))

    def _quantized(self, op: Operator, *, decode: bool) -> Operator:
        cached = [t for t in op.inputs if t.role is Role.KV_CACHE]
        if decode and cached and isinstance(op, FlashAttention):
            values = {field.name: getattr(op, field.name) for field in fields(op)}
            op = ResidualAttention(**values, extra=self._extra(cached[0].format))
        return op.with_tensors(lambda t: self._stored(t, decode=decode) if t.role is Role.KV_CACHE else t)

    def _stored(self, t: Tensor, *, decode: bool) -> Tensor:
        cached_rows = t.rows if t.retained_rows is None else t.retained_rows
        if t.left_as_published:
            return t
        if not cached_rows:  # cached by another layer
            return t if not decode else replace(t, format=self._format(t.format))
        if not decode:
            bits_ratio = self._format(t.format).stored_bits / t.format.stored_bits
            return replace(t, retained_rows=bits_ratio * (cached_rows + self._extra(t.format)))
        return replace(t, format=self._format(t.format), retained_rows=cached_rows + self._extra(t.format))

    def _format(self, plain_format: Format) -> Format:
        compute = "int4" if self.bits <= 4 else "int8"
        low = Format(
            f"int{self.bits}", self.bits, compute, group=self.group, scale_bits=_SCALE_BITS, zero_bits=_SCALE_BITS
        )
        return low if low.stored_bits < plain_format.stored_bits else plain_format

    def _extra(self, plain_format: Format) -> Form:
        """Extra bytes of the unquantized residual window, in rows of quantized tokens."""
        if not self.residual:
            return Form()
        return (plain_format.stored_bits / self._format(plain_format).stored_bits - 1) * kv_tokens(self.residual)

    def incompatibility(self, setting: SettingView, others: Sequence[Technique]) -> str:  # noqa: ARG002
        if not list(causal_masks(setting.model.graph)):
            return f"{setting.model.name} has no causal attention with a KV cache"
        if setting.attention == "eager":
            return "eager attention cannot read a cache of mixed precision; use --attention flash"
        plain = max(setting.model.format, HALF, key=lambda one: one.stored_bits)
        if self._format(plain) == plain:
            bits = self.bits + 2 * _SCALE_BITS / self.group
            return f"bits and group must make less than {plain.stored_bits:g} bits per element; they make {bits:g}"
        return ""


@technique("cross-layer-kv")
@frozen(kw_only=True)
class CrossLayerCache(Technique):
    """Cross-layer attention: of every `every` layers, the first computes keys and values, and all use them.

    Effect: the other layers have no key and value projections and no cache of their own; they read that of the first.
    Formula: cache / every; key and value projections / every; bytes read from the cache unchanged.
    Source: arXiv:2405.12981, section 2.2.
    Use when: memory limits context or batch.
    Limits: each layer still reads the cache. The model must be trained with it.
    """

    kind = Kind.ATTENTION
    requires = Requirement.NEW_WEIGHTS
    order = -4  # before techniques that split layers by tokens

    every: int = parameter("layers that share keys and values", 2, least=2, most=1024)

    def lowered(self, graph: Graph, hardware: Hardware, *, decode: bool) -> Graph:  # noqa: ARG002
        return Graph(tuple(piece for block in graph.blocks for piece in self._shared(block)))

    def _shared(self, block: Block) -> Iterable[Block]:
        """The layers of `block` that keep their cache, and those that use another layer's."""
        if not _has_own_cache(block):
            return (block,)
        return split_layers(block, lambda n: n % self.every != 0, _with_shared_cache)

    def incompatibility(self, setting: SettingView, others: Sequence[Technique]) -> str:  # noqa: ARG002
        if not any(_has_own_cache(block) for block in setting.model.graph.blocks):
            return f"{setting.model.name} has no layers whose keys and values are only their own"
        if self.every > setting.model.graph.layers:
            return f"every must be at most the {setting.model.graph.layers} layers; got {self.every}"
        return ""


def _has_own_cache(block: Block) -> bool:
    """Whether the layers of `block` attend to exactly the keys and values that they write."""
    written = {t.name for op in block.operators for t in op.outputs if t.role is Role.KV_CACHE}
    read = {
        t.name
        for op in block.operators
        if isinstance(op, QK | SV | FlashAttention)
        for t in op.inputs
        if t.role is Role.KV_CACHE
    }
    communicated = {
        t.name for op in block.operators if isinstance(op, Collective) for t in op.inputs
    }  # communicated, so attention reads copies
    return block.main and written - communicated == read and bool(written)


def _with_shared_cache(block: Block) -> Block:
    """`block` with the keys and values of another layer."""
    operators: list[Operator] = []
    unused = {t.name for op in block.operators for t in op.outputs if t.role is Role.KV_CACHE}
    for op in reversed(block.operators):
        used = tuple(t for t in op.outputs if t.name not in unused)
        if op.outputs and not used:
            unused |= {t.name for t in op.inputs} - _read_elsewhere(block, op)
            continue
        if len(used) < len(op.outputs):
            if isinstance(op, Rope):
                unused.add(op.inputs[1].name)
            op = _with_outputs(op, used)  # noqa: PLW2901
        operators.append(op.with_tensors(lambda t: replace(t, retained_rows=Form()) if t.role is Role.KV_CACHE else t))
    return replace(block, name=f"{block.name}.borrowing", operators=tuple(reversed(operators)))


def _read_elsewhere(block: Block, op: Operator) -> set[str]:
    return {t.name for other in block.operators if other is not op for t in other.inputs}


def _with_outputs(op: Operator, used: tuple[Tensor, ...]) -> Operator:
    """`op` with only the outputs `used`: a rotation of queries, or fewer columns of a projection."""
    if isinstance(op, Rope):
        rotated_elements = op.heads.num_heads * op.rotary_dim
        return Elementwise(
            name=op.name,
            kind=op.kind,
            inputs=op.inputs[:1],
            outputs=used,
            ops_per_element=3 * rotated_elements / op.inputs[0].width,
        )
    if isinstance(op, Linear):
        width_fraction = sum(t.width for t in used) / sum(t.width for t in op.outputs)
        narrower = [replace(w, shape=(round(w.shape[0] * width_fraction), *w.shape[1:])) for w in op.weights]
        return replace(op, outputs=used, weights=tuple(narrower))
    return replace(op, outputs=used)
