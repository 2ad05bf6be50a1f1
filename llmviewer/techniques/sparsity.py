"""Weights of which some are zero."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, log2
from typing import Final

from ..devices.hardware import Hardware
from ..forms import Form
from ..graph import Graph
from ..operators.base import Operator
from ..operators.linear import Linear
from ..precision import Format
from ..resource import Resource
from . import technique
from ._linears import Instead
from ._parameters import parameter
from ._technique import Kind, Machine, Technique, Touches

_ROUNDED: Final = 0.02  # by which rates of a data sheet may miss a ratio: 733 for 362 of L40S
_IN_UNITS: Final = (2, 4)  # kept, and of how many: what sparse matrix units multiply
_INDEX_BITS: Final = 16  # of a column within a tile


@dataclass(frozen=True, kw_only=True)
class SparseLinear(Instead):
    """A product of whose multiply-adds the part `density` is done."""

    density: float

    def arithmetic(self) -> dict[Resource, Form]:
        return {resource: self.density * ops for resource, ops in self.of.arithmetic().items()}

    def dequantized(self) -> tuple[Form, ...]:
        return tuple(self.density * elements for elements in self.of.dequantized())


@dataclass(frozen=True, kw_only=True)
class Sparse(Technique):
    """Zeros in the matrices of linears and experts; heads and routers stay as they are."""

    kind = Kind.COMPRESSION
    touches = Touches.MODEL

    def bits(self, dense: float) -> float:
        """What an element takes on average, of `dense` bits where it is not zero."""
        raise NotImplementedError

    def done(self, op: Linear, hardware: Hardware) -> float | None:
        """The part of the multiply-adds that is done; None where `op` has to be stored and done as it was."""
        raise NotImplementedError

    def lowered(self, graph: Graph, hardware: Hardware, *, decode: bool) -> Graph:  # noqa: ARG002
        return graph.map(lambda op: self._sparse(op, hardware))

    def _sparse(self, op: Operator, hardware: Hardware) -> Operator:
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

    def refuses(self, machine: Machine, others: Sequence[Technique]) -> str:  # noqa: ARG002
        other = next((other for other in others if isinstance(other, Sparse)), None)
        return f"{other.name} says which weights are zero" if other else ""


@technique("sparsity")
@dataclass(frozen=True, kw_only=True)
class Structured(Sparse):
    """N:M sparsity: of every m weights that follow each other, n are not zero.

    Changes: weights are stored as the values kept and their places, of ceil(log2(m)) bits each; only products with
    values kept are done. Attention, heads and routers stay as they are.
    Formula: bytes = n / m x (bits + index) / bits of the dense ones, 0.5625 for 2:4 in 16 bits; OPs = n / m. Where
    sparse units are not m / n times as fast as dense ones, such as those of B300 for fp4, OPs are as many as the dense
    ones do in the time.
    Source: arXiv:2104.08378, section 3; NVIDIA A100 whitepaper, fine-grained structured sparsity.
    Helps: on devices with sparse matrix units, in decode through bytes and in prefill through OPs.
    Cannot: help where the device has no sparse units for the type of a product, or for other ratios than 2:4, which
    no unit multiplies: those are stored and computed as if dense, and the report says so. A prompt gains no more than
    its part in linears.
    Left out: what sparse kernels lose to dense ones: none was measured, so what is expected is a dense product of as
    many OPs and bytes.
    """

    n: int = parameter("weights of a group that are not zero", 2, least=1)
    m: int = parameter("weights of a group", 4, least=2)

    def bits(self, dense: float) -> float:
        return self.n / self.m * (dense + ceil(log2(self.m)))

    def done(self, op: Linear, hardware: Hardware) -> float | None:
        dense = hardware.supply(op.work().wanted)
        rate = hardware.numbers.get(f"sparse.{dense.dtype}")
        if not rate or (self.n, self.m) != _IN_UNITS:
            return None
        part = hardware.rates[dense] / rate
        return self.n / self.m if abs(part * self.m / self.n - 1) <= _ROUNDED else part

    def refuses(self, machine: Machine, others: Sequence[Technique]) -> str:
        if self.n >= self.m:
            return f"n must be less than m={self.m}; got {self.n}"
        return super().refuses(machine, others)

    def notes(self, machine: Machine) -> tuple[str, ...]:
        graph = machine.decode_graph
        if any(isinstance(op, SparseLinear) for _, op in graph):
            return ()
        has = sorted(key for key in machine.hardware.numbers if key.startswith("sparse."))
        units = f"has 2:4 units alone ({', '.join(has)})" if has else "has no sparse matrix units"
        wanted = {op.work().wanted.dtype for _, op in graph if isinstance(op, Linear) and not op.left_as_published}
        what = f"{self.n}:{self.m} in {', '.join(sorted(wanted))}"
        return (f"{machine.hardware.name} {units}: products with {what} are stored and computed as if dense",)


@technique("pruning")
@dataclass(frozen=True, kw_only=True)
class Unstructured(Sparse):
    """Unstructured pruning: any weights are zero, as SparseGPT and Wanda leave them.

    Changes: the bytes of weights, where a format leaves out zeros; every multiply-add is done, zeros too.
    Formula: bits of a weight = density x bits + 1 (bitmap), density x (bits + 16) (index of 16 bits), or as they are
    (dense), with density = 1 - sparsity.
    Source: arXiv:2309.10285 (sparse load, dense compute); arXiv:2301.00774.
    Helps: decode that waits for weights, where kernels load a compressed format and fill in the zeros on the chip.
    Cannot: help in the dense format, nor a prefill that waits for matrix units; indices outweigh the zeros left out
    below a sparsity of 16 / (bits + 16), a bitmap below 1 / bits.
    Left out: what it takes to fill in the zeros; what is expected is a dense product of as many OPs and bytes.
    """

    sparsity: float = parameter("part of the weights that is zero", 0.5, least=0, most=1, open=True)
    format: str = parameter("how weights are stored", "dense", choices=("dense", "bitmap", "index"))

    def bits(self, dense: float) -> float:
        density = 1 - self.sparsity
        return {"dense": dense, "bitmap": density * dense + 1, "index": density * (dense + _INDEX_BITS)}[self.format]

    def done(self, op: Linear, hardware: Hardware) -> float | None:  # noqa: ARG002
        return None if self.format == "dense" else 1.0

    def notes(self, machine: Machine) -> tuple[str, ...]:  # noqa: ARG002
        if self.format != "dense":
            return ()
        return ("pruned weights in the dense format are read and multiplied like others: nothing changes",)
