"""The conventions of "LLM Inference Unveiled" (arXiv:2402.16363), Table 1 and Figures 4 to 8, and of its tool.

No causal mask; every operator at the matrix peak; one format for all activations, no scales; a residual addition reads
one tensor; norms have seven OPs per element and no weights; the MLP activation is as wide as the residual stream; the
prediction head has one OP per multiply-add and activations of a single token; embeddings, rotations and the last norm
are left out, as are embeddings and prediction head in the memory for weights; all outputs of a layer stay until its
end. Everything else is as in the faithful graph.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..forms import LOGITS, ONE, Form
from ..graph import Block, Graph, Transform
from ..operators.attention import QK, SV, FlashAttention, Softmax
from ..operators.base import Operator, Role, Tensor, Weight
from ..operators.compression import Turn
from ..operators.elementwise import Activation, Add, Norm, Quantize, Rope
from ..operators.embedding import Embedding
from ..operators.kinds import OperatorGroup, kind_of
from ..operators.linear import ChosenLinear, Linear, LMHead
from ..precision import FP16, Format, Scheme, product
from ..records import frozen
from ..resource import Resource, matrix


@frozen(kw_only=True)
class Surveyed(Operator):
    """An operator counted by the paper's conventions."""

    ops: Form
    dtype: str  # of all operators' arithmetic

    def arithmetic(self) -> dict[Resource, Form]:
        return {matrix(self.dtype): self.ops}

    def conversion(self) -> Form:
        return Form()


def survey(scheme: Scheme) -> Transform:
    """A transform to the paper's counts, with weights, activations and cache in the bits of `scheme`."""
    formats = _Formats.of(scheme)

    def transform(graph: Graph) -> Graph:
        return Graph(tuple(block for b in graph.blocks if (block := _surveyed(b, formats)).operators))

    return transform


@frozen(kw_only=True)
class _Formats:
    weight: Format
    activation: Format
    kv_cache: Format
    dtype: str

    @classmethod
    def of(cls, scheme: Scheme) -> _Formats:
        weight, activation, kv = (
            replace(f, group=0) if f else FP16 for f in (scheme.weight, scheme.activation, scheme.kv_cache)
        )
        low = max(weight.bits, activation.bits, kv.bits) <= 8
        dtype = product(weight, activation) if low else FP16.compute
        return cls(weight=weight, activation=activation, kv_cache=kv, dtype=dtype)

    def tensor(self, t: Tensor) -> Tensor:
        return replace(t, format=self.kv_cache if t.role is Role.KV_CACHE else self.activation)


def _surveyed(block: Block, formats: _Formats) -> Block:
    operators = tuple(new for op in _without_rope(block) if (new := _counted(op, formats, block)))
    if not block.layers:
        heads = [op for op in operators if kind_of(op.kind).group is OperatorGroup.HEAD]
        return replace(
            block, operators=tuple(replace(op, inputs=(_renamed(op.inputs[0], block.input),)) for op in heads)
        )

    activations = tuple(t.name for op in operators for t in op.outputs if t.role is Role.ACTIVATION)
    operators = tuple(  # a layer's input is the previous layer's output, held once
        op.with_tensors(lambda t: _renamed(t, block.output) if t.name == block.input else t) for op in operators
    )
    return replace(block, operators=operators, input=block.output, live_tensors=activations)


def _renamed(t: Tensor, name: str) -> Tensor:
    return replace(t, name=name)


def _without_rope(block: Block) -> Iterator[Operator]:
    """The operators of `block` without rotations: key projections write to the cache."""
    renamed: dict[str, tuple[str, Role]] = {}
    for op in block.operators:
        if isinstance(op, Rope):
            (q, k), (q_out, k_out) = op.inputs, op.outputs
            renamed |= {q_out.name: (q.name, q.role), k.name: (k_out.name, k_out.role)}
        if isinstance(op, Turn):
            renamed[op.result.name] = (op.inputs[0].name, op.inputs[0].role)

    def rename(t: Tensor) -> Tensor:
        name, role = renamed.get(t.name, (t.name, t.role))
        return replace(t, name=name, role=role)

    return (op.with_tensors(rename) for op in block.operators if not isinstance(op, Rope | Turn))


def _counted(op: Operator, formats: _Formats, block: Block) -> Operator | None:
    """`op` by the conventions above, other operators with their formats only; None if they leave it out."""
    hidden = next((op.inputs[0].width for op in block.operators if op.inputs), 0)
    inputs, outputs = (tuple(map(formats.tensor, ts)) for ts in (op.reads(), op.outputs))
    weights: tuple[Weight, ...] = ()
    match op:
        case LMHead():
            ops = op.weight.numel * LOGITS
            inputs, outputs = (tuple(replace(t, rows=ONE) for t in ts) for ts in (inputs, outputs))
            weights = (replace(op.weight, format=formats.weight, tied=True),)
        case Embedding() | Rope() | Quantize():
            return None
        case ChosenLinear():
            ops = 2 * (op.weight.numel // op.weight.shape[0]) * op.inputs[0].rows  # each row uses one expert
            weights = (replace(op.weight, format=formats.weight),)
        case Linear():
            ops = 2 * op.weight.numel * op.inputs[0].rows
            weights = (replace(op.weight, format=formats.weight),)
        case QK():
            ops = 2 * op.heads.q_width * op.heads.mask.cells
        case SV():
            ops = 2 * op.heads.num_heads * op.heads.out_dim * op.heads.mask.cells
        case Softmax():
            ops = 5 * op.heads.num_heads * op.heads.mask.cells
        case FlashAttention():
            widths = 2 * op.heads.head_dim + 2 * op.heads.out_dim
            ops = op.heads.num_heads * (widths + 5) * op.heads.mask.cells
        case Norm():
            ops = 7 * outputs[0].elements
        case Add():
            ops, inputs = outputs[0].elements, inputs[:1]
        case Activation():
            ops = 2 * hidden * outputs[0].rows
            inputs, outputs = (tuple(replace(t, width=hidden) for t in ts) for ts in (inputs, outputs))
        case _:
            return op.with_tensors(lambda t: t if t.role is Role.STATE else formats.tensor(t))
    return Surveyed(
        name=op.name, kind=op.kind, inputs=inputs, outputs=outputs, weights=weights, ops=ops, dtype=formats.dtype
    )
