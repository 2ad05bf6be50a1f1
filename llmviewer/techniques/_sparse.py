"""Attention to a part of the keys: the base of techniques that choose it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import inf
from typing import Final

from ..forms import Form, kv_tokens
from ..graph import Block, Graph
from ..operators.attention import QK, Heads
from ..operators.base import Operator, Role, Tensor
from ..operators.block_sparse import BlockScorer
from ..operators.masks import Compressed, Mask
from ..precision import FP32
from ._masks import bidirectional_masks, causal_masks, replace_masks
from ._technique import Kind, Requirement, SettingView, Technique
from .window import Windowed

_SUMMARIES: Final = "block_keys"  # cached tensor of what stands for blocks of keys


class SparseAttention(Technique):
    """Full attention becomes attention to fewer keys; the model's own windows are unchanged."""

    kind = Kind.ATTENTION
    requires = Requirement.OTHER_OUTPUT

    @property
    def mask(self) -> Mask:
        """The mask that replaces full causal masks."""
        raise NotImplementedError

    @property
    def bidirectional_mask(self) -> Mask | None:
        """The mask that replaces full bidirectional masks of encoders; None if they are unchanged."""
        return None

    def choosing(self, query: Tensor, key: Tensor, heads: Heads) -> Iterator[Operator]:  # noqa: ARG002
        """Yields launches before attention that choose its keys."""
        return iter(())

    def network(self, graph: Graph, *, decode: bool) -> Graph:  # noqa: ARG002
        changed = replace_masks(
            graph, lambda mask: self.mask if mask.window == inf else None, bidirectional=self.bidirectional_mask
        )
        return Graph(
            tuple(
                self._with_choosing(new) if new is not old else new
                for old, new in zip(graph.blocks, changed.blocks, strict=True)
            )
        )

    def _with_choosing(self, block: Block) -> Block:
        operators: list[Operator] = []
        for op in block.operators:
            if isinstance(op, QK):
                operators.extend(self.choosing(op.inputs[0], op.inputs[1], op.heads))
            operators.append(op)
        return replace(block, operators=tuple(operators))

    def incompatibility(self, setting: SettingView, others: Sequence[Technique]) -> str:
        conflicting = next((other for other in others if isinstance(other, SparseAttention | Windowed)), None)
        if conflicting:
            return f"{conflicting.name} also selects the keys that queries see; give one of the two"
        graph = setting.model.graph
        encodes = self.bidirectional_mask is not None and list(bidirectional_masks(graph))
        if not encodes and not any(mask.window == inf for mask in causal_masks(graph)):
            return f"{setting.model.name} has no full causal attention"
        return ""


def block_scorer(query: Tensor, key: Tensor, heads: Heads, block: int, vectors: int) -> BlockScorer:
    """A launch that scores blocks of `block` keys by `vectors` vectors each, which the cache holds beside the keys."""
    scorer = replace(heads, head_dim=vectors * heads.head_dim, value_dim=0, mask=Compressed(block))
    rows: Form = kv_tokens() / block
    summaries = Tensor(
        name=_SUMMARIES, width=vectors * key.width, format=key.format, rows=rows, role=Role.KV_CACHE, retained_rows=rows
    )
    choice = Tensor(name="block_choice", width=heads.num_heads, format=FP32)
    return BlockScorer(name="choose_blocks", inputs=(query, summaries), outputs=(choice,), heads=scorer)
