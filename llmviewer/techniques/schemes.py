"""Quantization by the names of its methods: formats, and what has to be computed besides."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import log2
from typing import ClassVar, Final

from ..forms import Form
from ..graph import Block, Graph
from ..hardware import Hardware
from ..operators.base import Operator, Tensor, Weight
from ..operators.elementwise import Elementwise
from ..operators.linear import Linear
from ..precision import HALF, product, resolved
from ..resource import Resource, matrix
from . import technique
from ._linears import compressible, layers
from ._parameters import parameter
from ._technique import Kind, Machine, Technique


@dataclass(frozen=True, kw_only=True)
class Scheme:
    """What a method stores things in. `source` names the paper, and what of it is taken.

    outliers  part of the columns that stays in 16 bits
    rotated   inputs of o_proj and down_proj are turned by a Hadamard matrix before they are quantized
    """

    quant: str
    source: str
    outliers: float = 0.0
    rotated: bool = False


SCHEMES: Final = {
    "llm.int8": Scheme(quant="W8A8", outliers=0.001, source="arXiv:2208.07339, 0.1 % of the features, recalled"),
    "zeroquant": Scheme(quant="W8A8", source="arXiv:2206.01861: W8A8, quantized by the launch before"),
    "smoothquant": Scheme(quant="W8A8", source="arXiv:2211.10438: scales are folded in beforehand"),
    "gptq": Scheme(quant="W4A16g128", source="arXiv:2210.17323: 4 bits, groups of 128"),
    "gptq-3bit": Scheme(quant="W3A16g128", source="arXiv:2210.17323: 3 bits, groups of 128"),
    "awq": Scheme(quant="W4A16g128", source="arXiv:2306.00978: 4 bits, groups of 128"),
    "qlora": Scheme(quant="nf4", source="arXiv:2305.14314, section 3, without double quantization"),
    "spqr": Scheme(quant="W3A16g16", outliers=0.01, source="arXiv:2306.03078: 3 bits, 1 % apart; groups recalled"),
    "squeezellm": Scheme(quant="W4A16", outliers=0.0045, source="arXiv:2306.07629: 0.45 % kept apart, recalled"),
    "quarot": Scheme(quant="W4A4KV4", rotated=True, source="arXiv:2404.00456, section 4: weights, activations, cache"),
    "spinquant": Scheme(quant="W4A4KV4", rotated=True, source="arXiv:2405.16406: the variant with online rotations"),
    "atom": Scheme(quant="W4A4KV4", outliers=0.03, source="arXiv:2310.19102: 128 of 4096 columns stay apart, recalled"),
    "kvquant": Scheme(quant="KV3", source="arXiv:2401.18079: 3 bits of the 2 to 4 that it has; outliers left out"),
    "billm": Scheme(quant="W1.08A16", source="arXiv:2402.04291: 1.08 bits"),
    "bitnet-b1.58": Scheme(quant="W1.58A8", source="arXiv:2402.17764: ternary weights, 8-bit activations"),
    "fp8": Scheme(quant="fp8", source="arXiv:2209.05433: e4m3"),
    "nvfp4": Scheme(quant="nvfp4", source="NVIDIA Blackwell: 4 bits, one e4m3 scale for 16"),
    "mxfp4": Scheme(quant="mxfp4", source="OCP Microscaling Formats v1.0: weights"),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class OutlierLinear(Linear):
    """The product `low` in few bits and, beside it, one of the part `outliers` of its columns in 16 bits: two GEMMs."""

    dense: ClassVar[bool] = False

    low: Linear
    outliers: float
    wide: Tensor  # the input as those columns have it

    def arithmetic(self) -> dict[Resource, Form]:
        amounts = {r: (1 - self.outliers) * ops for r, ops in self.low.arithmetic().items()}
        both = matrix(product(self.wide.format, self.weights[-1].format))
        rest = 2 * self.outliers * self.low.weight.numel * self.wide.rows
        return {**amounts, both: amounts.get(both, Form()) + rest}

    def dequantized(self) -> tuple[Form, ...]:
        return self.low.dequantized()

    def reads(self) -> tuple[Tensor, ...]:
        return (*self.inputs, replace(self.wide, width=round(self.outliers * self.wide.width)))


@technique("quantized")
@dataclass(frozen=True, kw_only=True)
class Quantized(Technique):
    """A quantization by the name of its method, with what it computes besides.

    Changes: formats as --quant would; outliers (LLM.int8(), SpQR, Atom) are columns in 16 bits, a second GEMM;
    rotations (QuaRot, SpinQuant) are a launch before o_proj and down_proj.
    Formula: bits as the scheme has them; a second GEMM of outliers x k columns; a rotation of d log2(d) OPs a token.
    Source: each scheme's own paper, told by the report.
    Helps: as its formats do: weights in few bits where decode waits for them, activations too where a prompt waits for
    matrix units that have the type.
    Cannot: say what a method does to answers; methods with the same formats take the same time here.
    """

    kind = Kind.COMPRESSION

    scheme: str = parameter("the method", choices=tuple(SCHEMES))
    outliers: float | None = parameter("part of the columns in 16 bits; the method's own if not given", None, least=0,
                                       most=1, open=True)  # fmt: skip

    @property
    def quant(self) -> str:
        return SCHEMES[self.scheme].quant

    @property
    def _outliers(self) -> float:
        return SCHEMES[self.scheme].outliers if self.outliers is None else self.outliers

    def network(self, graph: Graph, *, decode: bool) -> Graph:  # noqa: ARG002
        return graph.map_blocks(_rotated) if SCHEMES[self.scheme].rotated else graph

    def lowered(self, graph: Graph, hardware: Hardware, *, decode: bool) -> Graph:  # noqa: ARG002
        if not self._outliers:
            return graph
        return graph.map_blocks(lambda block: block.map(self._split) if layers(block) else block)

    def _split(self, op: Operator) -> Operator:
        if not compressible(op) or not isinstance(op, Linear):
            return op
        x, n = op.inputs[0], op.weight.shape[0]
        kept = round(self._outliers * op.weight.shape[1])
        if not kept or op.weight.format.bits >= HALF.bits:
            return op
        fmt = resolved(HALF, op.outputs[0].format)
        low = replace(op.weight, shape=(n, op.weight.shape[1] - kept))
        high: Weight = replace(op.weight, name=f"{op.name}.outliers", shape=(n, kept), format=fmt)
        return OutlierLinear(
            name=op.name,
            kind=op.kind,
            inputs=op.inputs,
            outputs=op.outputs,
            weights=(low, *op.weights[1:], high),
            low=op,
            outliers=kept / op.weight.shape[1],
            wide=replace(x, name=f"{x.name}_outliers", format=fmt),
        )

    def notes(self, machine: Machine) -> tuple[str, ...]:  # noqa: ARG002
        return (f"{self.scheme} is {self.quant} ({SCHEMES[self.scheme].source})",)

    def refuses(self, machine: Machine, others: Sequence[Technique]) -> str:  # noqa: ARG002
        if self.outliers and SCHEMES[self.scheme].outliers == 0:
            return f"{self.scheme} leaves no outliers apart; drop outliers"
        return ""


def _rotated(block: Block) -> Block:
    """With a rotation before those linears whose input no norm has made, so that nothing else can take it in."""
    return replace(block, operators=tuple(_turning(block))) if layers(block) else block


def _turning(block: Block) -> Iterator[Operator]:
    for op in block.operators:
        if op.name not in ("o_proj", "down_proj"):
            yield op
            continue
        x = op.inputs[0]
        turned = replace(x, name=f"{x.name}_rotated")
        yield Elementwise(
            name=f"{op.name}_rotation", inputs=(x,), outputs=(turned,), ops_per_element=log2(max(x.width, 2))
        )
        yield replace(op, inputs=(turned, *op.inputs[1:]))
