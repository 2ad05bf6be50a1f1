"""Quantization methods by name: formats and additional operators."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from math import log2
from typing import Final

from ..devices.hardware import Hardware
from ..forms import Form
from ..graph import Block, Graph
from ..operators.base import Operator, Role, Tensor, Weight
from ..operators.elementwise import Elementwise
from ..operators.linear import Linear
from ..precision import HALF, product, resolved
from ..records import frozen
from ..resource import Resource, matrix
from . import technique
from ._linears import ReplacedLinear, is_main_layer, is_plain_linear, original_linear
from ._parameters import parameter
from ._technique import Kind, Requirement, SettingView, Technique
from .cache import KvQuant
from .factors import Lora


@frozen(kw_only=True)
class Method:
    """Formats and additional operators of a method; `source` names the paper and the variant taken.

    quant     as for --quant; "" if weights and activations are unchanged
    outliers  fraction of the columns in 16 bits
    rotated      names of linears, with wildcards, whose inputs are rotated by a Hadamard matrix before quantization
    rotates_all  whether inputs and results of all linears are rotated
    table        values in 16 bits that each matrix reads beside its weights: (rows, columns)
    row_table    values in 16 bits of a table of each row of a matrix
    techniques   further techniques of the method
    """

    quant: str
    source: str
    outliers: float = 0.0
    rotated: tuple[str, ...] = ()
    rotates_all: bool = False
    table: tuple[int, int] | None = None
    row_table: int = 0
    techniques: tuple[Technique, ...] = ()

    def __str__(self) -> str:
        return ", ".join(
            filter(
                None,
                (
                    self.quant,
                    f"{self.outliers:.3g} of the columns in 16 bits" if self.outliers else "",
                    f"inputs of {' and '.join(self.rotated)} rotated" if self.rotated else "",
                    "inputs and results rotated" if self.rotates_all else "",
                    "a table of {:,} x {:,} values for a matrix".format(*self.table) if self.table else "",
                    f"a table of {self.row_table} values for a row" if self.row_table else "",
                    *map(str, self.techniques),
                ),
            )
        )


SCHEMES: Final = {
    "half": Method(quant="W16A16", source="no quantization"),
    "w8a32": Method(quant="W8A32", source="arXiv:2109.12948, of BERT"),
    "w32a8": Method(quant="W32A8", source="arXiv:2109.12948, of BERT"),
    "w8a8": Method(quant="W8A8", source="arXiv:2109.12948, of BERT"),
    "mixed-16-8": Method(quant="W8A8,*down_proj=W8A16", source="arXiv:2109.12948: 16 bits at the end of networks"),
    "peg": Method(quant="W8A8", source="arXiv:2109.12948: a scale for each of a few groups of an activation"),
    "q-bert": Method(quant="W3A8g128", source="arXiv:1909.05840: 2 to 4 bits, 3 taken; groups recalled"),
    "gobo": Method(
        quant="W3A16", outliers=0.001, table=(1, 8), source="arXiv:2005.03842: 99.9 % in 3 bits, of a table of 8"
    ),
    "llm.int8": Method(quant="W8A8", outliers=0.001, source="arXiv:2208.07339, 0.1 % of the features, recalled"),
    "zeroquant": Method(quant="W8A8", source="arXiv:2206.01861: W8A8, quantized by the launch before"),
    "zeroquant-v2": Method(
        quant="W4A16g128", techniques=(Lora(rank=8),), source="arXiv:2303.08302: low-rank compensation, rank recalled"
    ),
    "zeroquant-fp": Method(quant="Wmxfp4Afp8", source="arXiv:2307.09782: fp4 and fp8; scales as those of MXFP4"),
    "smoothquant": Method(quant="W8A8", source="arXiv:2211.10438: scales are folded in beforehand"),
    "outlier-suppression": Method(quant="W8A8", source="arXiv:2209.13325, arXiv:2304.09145: the widest that they have"),
    "rptq": Method(quant="W4A8", source="arXiv:2304.01089, recalled: columns are put in order by the norm before"),
    "olive": Method(quant="W4A4", source="arXiv:2304.07493, recalled: an outlier takes the place beside it"),
    "qllm": Method(quant="W4A4", source="arXiv:2310.08041, recalled: its low-rank weights are merged"),
    "omniquant": Method(quant="W4A4", source="arXiv:2308.13137, recalled: the narrowest for activations"),
    "affinequant": Method(quant="W4A4", source="arXiv:2403.12544, recalled: the narrowest for activations"),
    "fptq": Method(quant="W4A8", source="arXiv:2308.15987, recalled"),
    "quarot": Method(
        quant="W4A4KV4", rotated=("o_proj", "*down_proj"),
        source="arXiv:2404.00456, section 4: weights, activations, cache",
    ),
    "spinquant": Method(
        quant="W4A4KV4", rotated=("*down_proj",), source="arXiv:2405.16406: the variant with online rotations"
    ),
    "quip": Method(quant="W2A16", rotates_all=True, source="arXiv:2307.13304: 2 bits"),
    "quip-sharp": Method(quant="W2A16", rotates_all=True, source="arXiv:2402.04396: 2 bits of a table for 8 weights"),
    "gptq": Method(quant="W4A16g128", source="arXiv:2210.17323: 4 bits, groups of 128"),
    "gptq-3bit": Method(quant="W3A16g128", source="arXiv:2210.17323: 3 bits, groups of 128"),
    "awq": Method(quant="W4A16g128", source="arXiv:2306.00978: 4 bits, groups of 128"),
    "owq": Method(quant="W3A16", outliers=0.1 / 13, source="arXiv:2306.02272: columns that make 3 bits 3.1"),
    "spqr": Method(quant="W3A16g16", outliers=0.01, source="arXiv:2306.03078: 3 bits, 1 % apart; groups recalled"),
    "squeezellm": Method(
        quant="W4A16", outliers=0.0045, row_table=16,
        source="arXiv:2306.07629: 16 values for each row; 0.45 % kept apart, recalled",
    ),
    "lut-gemm": Method(
        quant="W4A16g32",
        source="arXiv:2206.09557: 4 planes of bits, each with a scale for 128 weights; its tables count as converting",
    ),
    "aqlm": Method(
        quant="W2A16", table=(65536, 8), source="arXiv:2401.06118: 16 bits for 8 weights, one codebook for each matrix"
    ),
    "pv-tuning": Method(quant="W2A16", table=(65536, 8), source="arXiv:2405.14852: AQLM's format, tuned otherwise"),
    "finequant": Method(quant="W4A16g128", source="arXiv:2308.09723: 4 bits; groups taken as those of GPTQ"),
    "quantease": Method(quant="W3A16", source="arXiv:2309.01885, recalled"),
    "norm-tweaking": Method(quant="W4A16", source="arXiv:2309.02784, recalled"),
    "k-bit": Method(quant="W4A16g64", source="arXiv:2212.09720: 4 bits; blocks of 64, recalled"),
    "pb-llm": Method(quant="W1.7A16", source="arXiv:2310.00034: 10 % in 8 bits, the others in 1, recalled"),
    "billm": Method(
        quant="W1.08A16", source="arXiv:2402.04291: 1.08 bits; a bit more that marks groups, recalled, is left out"
    ),
    "bitnet": Method(quant="W1A8", source="arXiv:2310.11453: 1 bit, 8-bit activations"),
    "bitnet-b1.58": Method(quant="W1.58A8", source="arXiv:2402.17764: ternary weights, 8-bit activations"),
    "tsld": Method(quant="W1.58A16", source="arXiv:2308.06744: ternary weights"),
    "llm-qat": Method(quant="W4A8KV4", source="arXiv:2305.17888: weights and cache in 4 bits"),
    "flexgen": Method(
        quant="W4g64A16KV4g64", source="arXiv:2303.06865: groups of 64 (flexgen/flex_opt.py); see also --offload"
    ),
    "atom": Method(quant="W4A4KV4", outliers=0.03, source="arXiv:2310.19102: 128 of 4096 columns stay apart, recalled"),
    "llm-fp4": Method(quant="Wmxfp4Amxfp4", source="arXiv:2310.16836: fp4; scales as those of MXFP4"),
    "wkvquant": Method(quant="W4A16KV4", source="arXiv:2402.12065"),
    "kvquant": Method(quant="KV2", source="arXiv:2401.18079: the 2 of its 2 to 4 bits with which a cache of a million "
        "tokens fits an A100; outliers left out"),
    "kivi": Method(quant="", techniques=(KvQuant(),), source="arXiv:2402.02750"),
    "fp8-kv": Method(quant="KVfp8", source="arXiv:2407.09111, section 2.4: the cache of vLLM in fp8"),
    "qlora": Method(
        quant="nf4dq", techniques=(Lora(rank=64),),
        source="arXiv:2305.14314, section 3, with double quantization; rank recalled",
    ),
    "loftq": Method(quant="nf4", techniques=(Lora(rank=16),), source="arXiv:2310.08659; rank recalled"),
    "lq-lora": Method(
        quant="W2.75A16", techniques=(Lora(rank=64),), source="arXiv:2311.12023, recalled: bits on average, rank"
    ),
    "qa-lora": Method(quant="W4A16g32", source="arXiv:2309.14717: adapters merge; groups recalled"),
    "peqa": Method(quant="W4A16", source="arXiv:2305.14152: scales alone are tuned"),
    "fp8": Method(quant="fp8", source="arXiv:2209.05433: e4m3"),
    "nvfp4": Method(quant="nvfp4", source="NVIDIA Blackwell: 4 bits, one e4m3 scale for 16"),
    "mxfp4": Method(quant="mxfp4", source="OCP Microscaling Formats v1.0: weights"),
}  # fmt: skip


@frozen(kw_only=True)
class OutlierLinear(ReplacedLinear):
    """Two GEMMs: one in few bits, and one in 16 bits for the fraction `outliers` of the columns."""

    outliers: float
    wide: Tensor  # the input in the format of the outlier columns

    def arithmetic(self) -> dict[Resource, Form]:
        amounts = {r: (1 - self.outliers) * ops for r, ops in self.of.arithmetic().items()}
        wide_unit = matrix(product(self.wide.format, self.weights[-1].format))
        outlier_ops = 2 * self.outliers * self.of.weight.numel * self.wide.rows
        return {**amounts, wide_unit: amounts.get(wide_unit, Form()) + outlier_ops}

    def dequantized(self) -> tuple[Form, ...]:
        return self.of.dequantized()

    def reads(self) -> tuple[Tensor, ...]:
        return (*self.inputs, replace(self.wide, width=round(self.outliers * self.wide.width)))


@technique("quantized")
@frozen(kw_only=True)
class Quantized(Technique):
    """Quantization by the name of its method, with the operators that the method adds.

    Effect: formats as with --quant. Outliers (LLM.int8(), SpQR, Atom) are columns in 16 bits, a second GEMM. Rotations
    (QuaRot, SpinQuant, QuIP) are launches of their own. Compensation and adapters (ZeroQuant-V2, QLoRA) are as in
    `lora`, a residual window (KIVI) as in `kv-quant`. Tables of values (AQLM, SqueezeLLM, GOBO) are read beside the
    weights of each matrix.
    Formula: bits as in the scheme; a second GEMM of outliers x k columns; a rotation of d log2(d) OPs per token. A
    table of 65,536 x 8 values (AQLM) takes 1 MiB, as 4096 x 1024 weights in 2 bits do.
    Source: each scheme's own paper, which the report names.
    Use when: decode is bound by weights (few-bit weights), or the prefill by matrix units that support the type
    (few-bit activations too).
    Limits: it says nothing about accuracy, and methods with the same formats take the same time. For other precisions
    of some layers or linears use --quant, as in W4A16g128,layers.0-3=W16A16.
    Not modeled: outliers that are not columns, rotations of queries and keys; the look-up of each value costs as much
    as converting a weight.
    """

    kind = Kind.COMPRESSION
    requires = Requirement.OTHER_OUTPUT

    scheme: str = parameter("the method", choices=tuple(SCHEMES))
    outliers: float | None = parameter(
        "fraction of the columns in 16 bits; that of the method if not given", None, least=0, most=1, open=True
    )

    @classmethod
    def values(cls) -> Mapping[str, str]:
        return {name: f"{scheme} ({scheme.source})" for name, scheme in SCHEMES.items()}

    @property
    def _method(self) -> Method:
        return SCHEMES[self.scheme]

    @property
    def separate_decode_graph(self) -> bool:
        return any(one.separate_decode_graph for one in self._method.techniques)

    @property
    def quant(self) -> str:
        return self._method.quant

    @property
    def _outliers(self) -> float:
        return self._method.outliers if self.outliers is None else self.outliers

    def network(self, graph: Graph, *, decode: bool) -> Graph:  # noqa: ARG002
        return (
            graph.map_blocks(lambda block: _with_input_rotations(block, self._method.rotated))
            if self._method.rotated
            else graph
        )

    def lowered(self, graph: Graph, hardware: Hardware, *, decode: bool) -> Graph:
        split = graph.map_blocks(self._split) if self._outliers else graph
        rotated = split.map_blocks(_with_rotations) if self._method.rotates_all else split
        if self._method.table or self._method.row_table:
            rotated = rotated.map_blocks(lambda block: block.map(self._with_table) if is_main_layer(block) else block)
        return rotated.then(
            *(partial(one.lowered, hardware=hardware, decode=decode) for one in self._method.techniques)
        )

    def _with_table(self, op: Operator) -> Operator:
        """`op` with the table of its quantized values."""
        plain = original_linear(op)
        if not isinstance(op, Linear) or not is_plain_linear(plain) or op.weight.format.bits >= HALF.bits:
            return op
        shape = self._method.table or (op.weight.shape[0], self._method.row_table)
        values = Weight(name=f"{op.name}.table", shape=shape, format=resolved(HALF, op.result.format))
        return replace(op, weights=(*op.weights, values))

    def _split(self, block: Block) -> Block:
        return block.map(self._with_outliers) if is_main_layer(block) else block

    def _with_outliers(self, op: Operator) -> Operator:
        if not is_plain_linear(op) or not isinstance(op, Linear):
            return op
        x, n = op.inputs[0], op.weight.shape[0]
        num_outliers = round(self._outliers * op.weight.shape[1])
        if not num_outliers or op.weight.format.bits >= HALF.bits:
            return op
        fmt = resolved(HALF, op.result.format)
        low = replace(op.weight, shape=(n, op.weight.shape[1] - num_outliers))
        high: Weight = replace(op.weight, name=f"{op.name}.outliers", shape=(n, num_outliers), format=fmt)
        return OutlierLinear(
            name=op.name,
            kind=op.kind,
            inputs=op.inputs,
            outputs=op.outputs,
            weights=(low, *op.weights[1:], high),
            of=op,
            outliers=num_outliers / op.weight.shape[1],
            wide=replace(x, name=f"{x.name}_outliers", format=fmt),
        )

    def notes(self, setting: SettingView) -> tuple[str, ...]:
        technique_notes = (note for one in self._method.techniques for note in one.notes(setting))
        return (f"{self.scheme} is {self._method} ({self._method.source})", *technique_notes)

    def incompatibility(self, setting: SettingView, others: Sequence[Technique]) -> str:
        if self.outliers and self._method.outliers == 0:
            return f"{self.scheme} has no outlier columns; drop outliers"
        repeated = next((o for o in others for one in self._method.techniques if o.name == one.name), None)
        if repeated:
            return f"{self.scheme} includes {repeated.name}; drop {repeated.name}"
        return next((why for one in self._method.techniques if (why := one.incompatibility(setting, others))), "")


def _with_input_rotations(block: Block, names: Sequence[str]) -> Block:
    """Adds a rotation before the linears `names`, which no norm precedes that could absorb it."""

    def turning(op: Operator) -> Iterator[Operator]:
        if not (isinstance(op, Linear) and any(fnmatchcase(op.name, name) for name in names)):
            yield op
            return
        x = op.inputs[0]
        rotated = replace(x, name=f"{x.name}_rotated")
        yield _rotation(f"{op.name}_rotation", (x,), (rotated,))
        yield replace(op, inputs=(rotated, *op.inputs[1:]))

    return (
        replace(block, operators=tuple(new for op in block.operators for new in turning(op)))
        if is_main_layer(block)
        else block
    )


def _with_rotations(block: Block) -> Block:
    """Adds rotations before and after each linear."""

    def turning(op: Operator) -> Iterator[Operator]:
        if not is_plain_linear(op):
            yield op
            return
        x = op.inputs[0]
        before = replace(x, name=f"{op.name}_input", role=Role.ACTIVATION, retained_rows=None)
        after = tuple(replace(t, name=f"{t.name}_turned", role=Role.ACTIVATION, retained_rows=None) for t in op.outputs)
        yield _rotation(f"{op.name}_rotation", (x,), (before,))
        yield replace(op, inputs=(before, *op.inputs[1:]), outputs=after)
        yield _rotation(f"{op.name}_rotation_back", after, op.outputs)

    return (
        replace(block, operators=tuple(new for op in block.operators for new in turning(op)))
        if is_main_layer(block)
        else block
    )


def _rotation(name: str, inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...]) -> Elementwise:
    """Rotation of whole rows by a Hadamard matrix: d log2(d) additions per row of width d."""
    width = sum(t.width for t in outputs)
    ops = width * log2(max(width, 2)) / outputs[0].width
    return Elementwise(name=name, inputs=inputs, outputs=outputs, ops_per_element=ops)
