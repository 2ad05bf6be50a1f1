"""Recurrence from segment to segment, with memories of hidden states."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from ..architectures.blocks.parts import Parts
from ..forms import TOKENS
from ..graph import Block, Graph
from ..operators.attention import QK, SV
from ..operators.base import Operator, Role, Tensor
from ..operators.elementwise import Norm, Rope
from ..operators.linear import Linear
from ..records import frozen
from ..workload import Workload
from . import technique
from ._masks import causal_masks, replace_self_attention_mask
from ._parameters import parameter
from ._technique import Finding, Kind, Requirement, SettingView, Technique, overrides
from .eviction import Budget
from .prompts import ChunkedPrefill

_MEMORY: Final = "memory"
_RATIO: Final = 3
_PAIR: Final = 2  # a query and keys, probabilities and values; keys and values


@technique("segment-recurrence")
@frozen(kw_only=True)
class SegmentRecurrence(ChunkedPrefill):
    """Segment recurrence (Transformer-XL): segments attend to themselves and to remembered hidden states.

    Effect: prompts are processed in segments of `tokens` tokens. Every layer remembers the hidden states that it read
    of the last `memory` tokens before the pass, instead of their keys and values, which each pass projects again. Of
    those before, a Compressive Transformer keeps one for each `ratio`, at most `compressed`, which a convolution makes.
    Formula: keys = memory + compressed + tokens of the segment; cache: d elements for each remembered token and layer;
    projections of keys and values: 2 x d x 2 x key width OPs for each key of a pass; convolution: 2 d^2 OPs per token.
    Source: arXiv:1901.02860, section 3.2 (github.com/kimiyoung/transformer-xl, pytorch/mem_transformer.py projects
    memory and segment together); compressed: arXiv:1911.05507, section 3.
    Use when: texts are far longer than a segment: time and memory of a token stop growing.
    Limits: the model must be trained with it. A step projects keys and values of the whole memory for one token, half
    as many as a segment of as many tokens; caches of keys and values with a window (`window`) project none again.
    Not modeled: the projection of relative positions and its product with queries.
    """

    kind = Kind.ATTENTION
    requires = Requirement.NEW_WEIGHTS

    memory: int = parameter("tokens before a pass that are remembered", 512, unit="tokens", least=1)
    compressed: int = parameter("compressed memories of tokens before those", 0, unit="tokens", least=0)
    ratio: int = parameter("tokens of a compressed memory", _RATIO, least=2, most=1024)

    def network(self, graph: Graph, *, decode: bool) -> Graph:  # noqa: ARG002
        return graph.map_blocks(lambda block: self._recurrent(block) if _projected(block) else block)

    def _recurrent(self, block: Block) -> Block:
        """The block whose attention projects what is remembered."""
        key_value_names = _projected(block)
        mask = Budget(self.memory + self.compressed)
        with_mask = replace_self_attention_mask(block, lambda _: mask)
        first = next(op for op in block.operators if isinstance(op, Linear) and _names(op.outputs) & key_value_names)
        x = first.inputs[0]
        parts = Parts(format=x.format)
        remember = replace(parts.elementwise("remember", x, ops=0), outputs=(parts.cached(_MEMORY, x.width),))

        def tensor(t: Tensor) -> Tensor:
            if t.name not in key_value_names:
                return t
            return replace(t, role=Role.ACTIVATION, rows=mask.keys_read, retained_rows=None)

        def operator(op: Operator) -> Operator:
            changed = op.with_tensors(tensor)
            if not (isinstance(op, Linear) and _names(op.outputs) & key_value_names):
                return changed
            return replace(changed, inputs=(parts.cache(_MEMORY, x.width, mask),))

        operators = [operator(op) for op in with_mask.operators]
        place = block.operators.index(first)
        extra = (remember, *(self._compressing(parts, x) if self.compressed else ()))
        return replace(block, operators=(*operators[:place], *extra, *operators[place:]))

    def _compressing(self, parts: Parts, x: Tensor) -> Iterator[Linear]:
        """The convolution that makes one memory of `ratio` tokens."""
        rows = TOKENS / self.ratio
        read = replace(x, width=self.ratio * x.width, rows=rows)
        compress = parts.project("compress", read, x.width)
        yield replace(compress, outputs=(replace(compress.result, rows=rows),))

    def findings(self, setting: SettingView, step: Workload) -> tuple[Finding, ...]:
        (s,) = step.groups
        text = f"prompts are one segment: tokens={self.tokens} changes nothing" if s.source <= self.tokens else ""
        return (*super().findings(setting, step), *((Finding(key="one_segment", value=1, text=text),) if text else ()))

    def incompatibility(self, setting: SettingView, others: Sequence[Technique]) -> str:
        if self.ratio != _RATIO and not self.compressed:
            return "ratio has no effect without compressed memories; give compressed or leave it out"
        other = next((one for one in others if one.kind is Kind.ATTENTION and overrides(one, "network")), None)
        other = other or next((one for one in others if isinstance(one, ChunkedPrefill)), None)
        if other:
            return f"{other.name} also changes what tokens attend to; give one of the two"
        if not any(_projected(block) for block in setting.model.graph.blocks):
            return f"{setting.model.name} has no causal attention whose keys and values are projected"
        return super().incompatibility(setting, others)


def _names(tensors: Sequence[Tensor]) -> set[str]:
    return {t.name for t in tensors}


def _projected(block: Block) -> set[str]:
    """Names of the cached keys and values of causal attention, and of what they are made of by linears; or empty."""
    graph = Graph((block,))
    attention = [op for op in block.operators if isinstance(op, QK | SV)]
    if not list(causal_masks(graph)) or any(len(op.inputs) != _PAIR for op in attention):
        return set()
    names = {op.inputs[1].name for op in attention}
    projected_names: set[str] = set()  # by linears
    for op in reversed(block.operators):
        outputs = _names(op.outputs) & names
        if outputs and isinstance(op, Linear):
            projected_names |= outputs
        elif outputs and isinstance(op, Rope | Norm):
            names |= {x.name for x, y in zip(op.inputs, op.outputs, strict=True) if y.name in names}
    return names if len(projected_names) == _PAIR else set()
