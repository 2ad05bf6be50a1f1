"""Narrower keys and values: a latent per token, or a fixed number of mixtures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf

from ..architectures.blocks.attention import LatentAttention
from ..architectures.blocks.parts import Parts
from ..devices.hardware import Hardware
from ..forms import TOKENS, Form, kv_tokens, pairs
from ..graph import Block, Graph
from ..operators.attention import QK, Attention
from ..operators.base import Operator, Role
from ..operators.kinds import OperatorGroup, declare
from ..operators.masks import Causal, Mask
from ..precision import product
from ..records import frozen
from ..resource import Resource, matrix
from . import technique
from ._masks import causal_masks, replace_masks
from ._parameters import parameter
from ._technique import Kind, Requirement, SettingView, Technique
from .cache import Allocated


@technique("mla")
@frozen(kw_only=True)
class TransMla(Technique):
    """Conversion to multi-head latent attention (TransMLA): keys and values of all heads come from a cached latent.

    Effect: the key and value projections become a projection to a latent of width `rank` and a rotated key of `rope`
    elements that all heads share, and an expansion of the latent. The cache holds latent and rotated key. A decode step
    absorbs the expansion into queries and outputs (--mla).
    Formula: cache per token and layer = rank + rope elements instead of 2 x key heads x head size.
    Source: arXiv:2502.07864; arXiv:2405.04434, section 2.1.
    Use when: a model with many key heads has long contexts or large batches. Its projections get smaller too.
    Limits: a step has more OPs per pair, which counts at long contexts. The model must be fine-tuned.
    """

    kind = Kind.ATTENTION
    requires = Requirement.NEW_WEIGHTS
    order = -5  # before techniques on linears, which then apply to its projections

    rank: int = parameter("width of the latent", 512, least=1)
    rope: int = parameter("rotated elements per head", 64, least=1)

    def network(self, graph: Graph, *, decode: bool) -> Graph:  # noqa: ARG002
        return graph.map_blocks(self._converted)

    def _converted(self, block: Block) -> Block:
        attention = _self_attention(block)
        if not attention:
            return block
        first, last, qk = attention
        x, out = block.operators[first].inputs[0], block.operators[last]
        heads = qk.heads
        mixer = LatentAttention(
            num_heads=heads.num_heads,
            q_rank=0,
            kv_rank=self.rank,
            nope_dim=heads.head_dim - self.rope,
            rope_dim=self.rope,
            value_dim=heads.out_dim,
        )
        projections = mixer.operators(Parts(format=x.format), x)
        projections = (*projections[:-1], replace(out, inputs=(projections[-1].inputs[0],)))
        return replace(block, operators=(*block.operators[:first], *projections, *block.operators[last + 1 :]))

    def incompatibility(self, setting: SettingView, others: Sequence[Technique]) -> str:
        conflicting = next((other for other in others if _changes_attention(other)), None)
        if conflicting:
            return f"{conflicting.name} changes keys and values that mla removes"
        convertible = [attention for block in setting.model.graph.blocks if (attention := _self_attention(block))]
        if not convertible:
            return f"{setting.model.name} has no full attention with plain q, k and v projections"
        head_dim = min(qk.heads.head_dim for _, _, qk in convertible)
        if self.rope >= head_dim:
            return f"rope must be less than the {head_dim} elements of a head; got {self.rope}"
        return ""


def _self_attention(block: Block) -> tuple[int, int, QK] | None:
    """Indices of the first and last operator of plain full attention in `block`, and its QK; None if there is none."""
    scores = [op for op in block.operators if isinstance(op, QK)]
    ends = [i for i, op in enumerate(block.operators) if op.name == "o_proj"]
    starts = [i for i, op in enumerate(block.operators) if op.name in ("q_proj", "qkv_proj")]
    if len(scores) != 1 or len(ends) != 1 or len(starts) != 1 or not block.main:
        return None
    mask, keys = scores[0].heads.mask, scores[0].inputs[1:]
    plain = type(mask) is Causal and mask.window == inf and len(keys) == 1
    gated = len(block.operators[starts[0]].outputs) not in (1, 3)
    return (starts[0], ends[0], scores[0]) if plain and not gated else None


@frozen
class Projected(Mask):
    """`rank` mixtures of the keys up to the query."""

    rank: int

    @property
    def pairs(self) -> Form:
        return pairs(self.rank)

    @property
    def cells(self) -> Form:
        return pairs(self.rank)

    @property
    def keys_read(self) -> Form:
        return kv_tokens(self.rank)

    def __str__(self) -> str:
        return f"{self.rank} mixtures"


@frozen(kw_only=True)
class Mixing(Operator):
    """Mixes keys or values of all tokens: a multiply-add per element and mixture."""

    rank: int

    kind: str = declare(
        "projection", "Keys or values of all tokens mixed into a few.", group=OperatorGroup.LINEAR, product=True
    )

    def arithmetic(self) -> dict[Resource, Form]:
        x = self.inputs[0]
        return {matrix(product(x.format, x.format)): 2 * self.rank * x.width * TOKENS}


@technique("low-rank-attention")
@frozen(kw_only=True)
class LowRankAttention(Technique):
    """Low-rank attention (Linformer): queries see `rank` mixtures of all keys and values.

    Effect: pairs and cache are those of `rank` tokens; keys and values are mixed as they arrive.
    Formula: pairs n x rank; mixing costs 2 x rank OPs per element of a key and a value.
    Source: arXiv:2006.04768, section 4.
    Use when: prompts are long, as attention becomes linear in their length; or contexts are, as the cache stops
    growing.
    Limits: the model must be trained with it.
    Not modeled: weights of the mixing matrices.
    """

    kind = Kind.ATTENTION
    requires = Requirement.NEW_WEIGHTS

    rank: int = parameter("mixtures of keys and of values", 256, least=1)

    def network(self, graph: Graph, *, decode: bool) -> Graph:  # noqa: ARG002
        return replace_masks(graph, lambda mask: Projected(self.rank) if mask.window == inf else None)

    def lowered(self, graph: Graph, hardware: Hardware, *, decode: bool) -> Graph:  # noqa: ARG002
        return graph.map_blocks(self._mixed)

    def _mixed(self, block: Block) -> Block:
        masks = {str(op.heads.mask) for op in block.operators if isinstance(op, Attention)}
        if str(Projected(self.rank)) not in masks:
            return block
        operators: list[Operator] = []
        for op in block.operators:
            written = [t for t in op.outputs if t.role is Role.KV_CACHE]
            new = {t.name: replace(t, name=f"{t.name}_new", role=Role.ACTIVATION) for t in written}
            operators.append(replace(op, outputs=tuple(new.get(t.name, t) for t in op.outputs)))
            operators += [
                Mixing(name=f"{t.name}_mix", inputs=(new[t.name],), outputs=(t,), rank=self.rank) for t in written
            ]
        return replace(block, operators=tuple(operators))

    def incompatibility(self, setting: SettingView, others: Sequence[Technique]) -> str:
        conflicting = next((other for other in others if _changes_attention(other)), None)
        if conflicting:
            return f"{conflicting.name} also changes keys and values; give one of the two"
        if not any(mask.window == inf for mask in causal_masks(setting.model.graph)):
            return f"{setting.model.name} has no full causal attention"
        return ""


def _changes_attention(technique: Technique) -> bool:
    """Whether a technique changes keys and values, not only where they are stored."""
    return technique.kind is Kind.ATTENTION and not isinstance(technique, Allocated)
