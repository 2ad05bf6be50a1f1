"""Weights with zeros: N:M sparsity and unstructured pruning."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import ceil, log2
from typing import Final

from ..devices.hardware import Hardware
from ..forms import Form
from ..graph import Block, Graph
from ..operators.base import Operator
from ..operators.linear import Linear
from ..precision import Format
from ..records import frozen
from ..resource import Resource
from . import technique
from ._layers import by_layer_problem, change_by_layer, parse_by_layer
from ._linears import ReplacedLinear
from ._parameters import Condition, parameter
from ._technique import Kind, Requirement, SettingView, Technique

_ROUNDED: Final = 0.02  # relative rounding of datasheet rates: 733 and 362 for L40S
_SUPPORTED_N_M: Final = (2, 4)  # the n:m that sparse matrix units support
_HALF: Final = 0.5  # sparsity if none is given
_INDEX_BITS: Final = 16  # per column index within a tile


@frozen(kw_only=True)
class SparseLinear(ReplacedLinear):
    """A linear that does the fraction `density` of its multiply-adds."""

    density: float

    def arithmetic(self) -> dict[Resource, Form]:
        return {resource: self.density * ops for resource, ops in self.of.arithmetic().items()}

    def dequantized(self) -> tuple[Form, ...]:
        return tuple(self.density * elements for elements in self.of.dequantized())


def sparse_linear(op: Linear, density: float, read: Form) -> SparseLinear:
    """`op` with the fraction `density` of its rows per token; a pass reads the fraction `read` of them."""
    return SparseLinear(
        name=op.name,
        kind=op.kind,
        inputs=op.inputs,
        outputs=op.outputs,
        weights=(replace(op.weight, rows=op.weight.shape[0] * read), *op.weights[1:]),
        transfers=op.transfers,
        of=op,
        density=density,
    )


class Sparse(Technique):
    """Zeros in the matrices of linears and experts; heads and routers are unchanged."""

    kind = Kind.COMPRESSION
    requires = Requirement.NEW_WEIGHTS

    def bits(self, dense: float) -> float:
        """Mean stored bits per element, of which a dense one has `dense`."""
        raise NotImplementedError

    def done(self, op: Linear, hardware: Hardware) -> float | None:
        """The fraction of the multiply-adds that is done; None if `op` stays dense."""
        raise NotImplementedError

    def lowered(self, graph: Graph, hardware: Hardware, *, decode: bool) -> Graph:  # noqa: ARG002
        return graph.map(lambda op: self.sparse(op, hardware))

    def sparse(self, op: Operator, hardware: Hardware) -> Operator:
        """`op` with zeros in its matrix, if it is a linear that has them."""
        if not isinstance(op, Linear) or isinstance(op, SparseLinear) or op.left_as_published:
            return op
        density = self.done(op, hardware)
        if density is None:
            return op
        matrix = replace(op.weight, format=self._stored(op.weight.format))
        return SparseLinear(
            name=op.name,
            kind=op.kind,
            inputs=op.inputs,
            outputs=op.outputs,
            weights=(matrix, *op.weights[1:]),
            transfers=op.transfers,
            of=op,
            density=density,
        )

    def _stored(self, fmt: Format) -> Format:
        stored = self.bits(fmt.stored_bits)
        return replace(fmt, name=f"{fmt} {self.name}", bits=stored, group=0, scale_bits=0, zero_bits=0)

    def incompatibility(self, setting: SettingView, others: Sequence[Technique]) -> str:  # noqa: ARG002
        other = next((other for other in others if isinstance(other, Sparse)), None)
        return f"{other.name} also sets weights to zero; give one of the two" if other else ""


@technique("sparsity")
@frozen(kw_only=True)
class Structured(Sparse):
    """N:M sparsity: of every m consecutive weights, n are not zero.

    Effect: weights are stored as the kept values and their positions, of ceil(log2(m)) bits each, and only products
    with kept values are done. Attention, heads and routers are unchanged.
    Formula: bytes = n / m x (bits + index) / bits of the dense ones, 0.5625 for 2:4 in 16 bits; OPs = n / m. If the
    sparse units are not m / n times as fast as the dense ones, such as those of B300 for fp4, OPs are as many as the
    dense units do in that time.
    Source: arXiv:2104.08378, section 3; NVIDIA A100 whitepaper, fine-grained structured sparsity.
    Use when: the device has sparse matrix units: fewer bytes in decode, fewer OPs in the prefill.
    Limits: no gain if the device has no sparse units for the type of a product, or for ratios other than 2:4, which no
    unit supports: those products are stored and computed as if dense, and the report says so. A prefill gains only on
    its linears.
    Not modeled: what sparse kernels lose to dense ones. The expected time is that of a dense product with as many OPs
    and bytes, because no sparse kernels were measured.
    """

    n: int = parameter("weights per group that are not zero", 2, least=1)
    m: int = parameter("weights per group", 4, least=2)

    def bits(self, dense: float) -> float:
        return self.n / self.m * (dense + ceil(log2(self.m)))

    def done(self, op: Linear, hardware: Hardware) -> float | None:
        dense = hardware.supply(op.work().operand_unit)
        rate = hardware.numbers.get(f"sparse.{dense.dtype}")
        if not rate or (self.n, self.m) != _SUPPORTED_N_M:
            return None
        ops_fraction = hardware.rates[dense] / rate
        return self.n / self.m if abs(ops_fraction * self.m / self.n - 1) <= _ROUNDED else ops_fraction

    def incompatibility(self, setting: SettingView, others: Sequence[Technique]) -> str:
        if self.n >= self.m:
            return f"n must be less than m={self.m}; got {self.n}"
        return super().incompatibility(setting, others)

    def notes(self, setting: SettingView) -> tuple[str, ...]:
        graph = setting.decode_graph
        if any(isinstance(op, SparseLinear) for _, op in graph):
            return ()
        sparse_keys = sorted(key for key in setting.hardware.numbers if key.startswith("sparse."))
        units = f"has only 2:4 units ({', '.join(sparse_keys)})" if sparse_keys else "has no sparse matrix units"
        dtypes = {
            op.work().operand_unit.dtype for _, op in graph if isinstance(op, Linear) and not op.left_as_published
        }
        products = f"{self.n}:{self.m} in {', '.join(sorted(dtypes))}"
        return (f"{setting.hardware.name} {units}: products with {products} are stored and computed as if dense",)


@technique("pruning")
@frozen(kw_only=True)
class Unstructured(Sparse):
    """Pruning (SparseGPT, Wanda, movement; by layer: OWL, BESA, ISC): any weights, or blocks of them, may be zero.

    Effect: fewer bytes of weights, if the format omits zeros. All multiply-adds are done, those with zeros too, but for
    whole blocks of zeros (format=blocks). With `layers`, each layer has a sparsity of its own.
    Formula: bits per weight = density x bits + 1 (bitmap), density x (bits + 16) (index of 16 bits), density x (bits +
    16 / block^2) (an index for each block), or unchanged (dense), with density = 1 - sparsity.
    Source: arXiv:2309.10285 (sparse load, dense compute); arXiv:2301.00774; movement: arXiv:2005.07683; blocks of 32 x
    32: arXiv:2109.04838; by layer: arXiv:2310.05175 (OWL).
    Use when: decode is bound by weights, and kernels load a compressed format and fill in the zeros on the chip.
    Limits: no gain in the dense format, nor for a prefill bound by the compute units. Indices take more than the
    omitted zeros below a sparsity of 16 / (bits + 16), a bitmap below 1 / bits.
    Not modeled: filling in the zeros. The expected time is that of a dense product with as many OPs and bytes.
    """

    sparsity: float = parameter("fraction of the weights that is zero", _HALF, least=0, most=1, open=True)
    layers: str = parameter("sparsity of consecutive layers, such as 8x0.6+24x0.75; instead of sparsity", "")
    format: str = parameter("how weights are stored", "dense", choices=("dense", "bitmap", "index", "blocks"))
    block: int = parameter(
        "rows and columns of a block", 32, least=2, most=4096, condition=Condition("format", ("blocks",))
    )

    def lowered(self, graph: Graph, hardware: Hardware, *, decode: bool) -> Graph:
        if not self.layers:
            return super().lowered(graph, hardware, decode=decode)

        def pruned(sparsity: float) -> Callable[[Block], Block]:
            one = replace(self, sparsity=sparsity, layers="")
            return lambda block: block.map(lambda op: one.sparse(op, hardware))

        return Graph(change_by_layer(graph.blocks, self.layers, pruned, unchanged=0.0))

    def bits(self, dense: float) -> float:
        density = 1 - self.sparsity
        indices = {"index": _INDEX_BITS, "blocks": _INDEX_BITS / self.block**2}
        if self.format in indices:
            return density * (dense + indices[self.format])
        return density * dense + 1 if self.format == "bitmap" else dense

    def done(self, op: Linear, hardware: Hardware) -> float | None:  # noqa: ARG002
        return {"dense": None, "blocks": 1 - self.sparsity}.get(self.format, 1.0)

    def incompatibility(self, setting: SettingView, others: Sequence[Technique]) -> str:
        if self.layers and (problem := by_layer_problem(self.layers, setting.model.graph.layers)):
            return f"layers {problem}"
        if self.layers and self.sparsity != _HALF:
            return "give sparsity or layers, which has that of each layer, not both"
        if 1.0 in parse_by_layer(self.layers):
            return f"a layer cannot have a sparsity of 1; got {self.layers!r}"
        return super().incompatibility(setting, others)

    def notes(self, setting: SettingView) -> tuple[str, ...]:  # noqa: ARG002
        if self.format != "dense":
            return ()
        return ("pruning changes nothing in the dense format; give format=bitmap, index or blocks",)
