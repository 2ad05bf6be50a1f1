"""Text part of Mistral Large 4: latent attention to keys selected by the indexer of this layer or an earlier one,
layers without positions, latents shared by several layers, experts.

Queries have no latent of their own, and a learned line in the logarithm of their position scales each head of them.
"""

from __future__ import annotations

from dataclasses import replace

from ..documents import Section
from ..forms import Form
from ..graph import Block, Graph
from ..operators.base import Operator, Tensor
from ..operators.elementwise import Elementwise
from ..precision import Format
from ..records import frozen
from . import architecture
from .blocks.attention import Index, LatentAttention, query_rope
from .blocks.decoder import Decoder, FeedForward, Layer
from .blocks.encoder import holding
from .blocks.fields import decoder
from .blocks.moe import (
    dense,
    experts_beside_shared,
    for_each_layer,
    ignore_router_fields,
    integers,
    latent_attention,
    sparse_layers,
)
from .blocks.parts import NormKind, Parts, result
from .deepseek import own_index
from .llama_like import rotated_layers


class ScaledIndex(Index):
    """An indexer whose queries come from x after a norm, and are scaled by their position."""

    def operators(self, parts: Parts, x: Tensor, latent: Tensor, rope_dim: int) -> tuple[Operator, ...]:
        norm = parts.norm("index_q_norm", latent, kind=NormKind.LAYER)
        *launches, indexer = super().operators(parts, x, norm.result, rope_dim)
        query, *others = indexer.inputs
        scale = _scaled(parts, "index_q_scale", query, self.num_heads)
        return (norm, *launches, scale, replace(indexer, inputs=(scale.result, *others)))


@frozen(kw_only=True)
class ScaledLatentAttention(LatentAttention):
    """Latent attention whose queries are scaled by their position; where `rope_dim` is 0, nothing is rotated.

    borrowed  latents and the rotated part of keys are those in the cache of an earlier layer
    """

    borrowed: bool = False

    def operators(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]:
        q_proj = parts.project("q_proj", x, self.heads.q_width)
        launches: tuple[Operator, ...] = (q_proj,)
        if self.borrowed and self.rope_dim:
            launches = (q_proj, query_rope(parts, result(launches), self.num_heads * self.rope_dim))
        elif not self.borrowed:
            launches = (q_proj, *self._own(parts, x, result(launches)))
        query = parts.tensor("q_rope", self.heads.q_width) if self.rope_dim else q_proj.result
        scale = _scaled(parts, "q_scale", query, self.num_heads)
        chosen = self.index.operators(parts, x, x, self.rope_dim) if self.index else ()
        caches = self._caches(parts)
        if self.borrowed:
            caches = tuple(replace(t, retained_rows=Form()) for t in caches)
        attended = self._attended(parts, scale.result, *caches)
        o_proj = parts.project("o_proj", result(attended), x.width, bias=self.bias)
        return (*launches, scale, *chosen, *attended, o_proj)


def _scaled(parts: Parts, name: str, query: Tensor, num_heads: int) -> Elementwise:
    """Each head of queries, scaled: a product for each element, and a product and a sum for the scale of each head."""
    scale_weights = tuple(parts.weight(f"{name}.{part}", num_heads) for part in ("scale", "bias"))
    out = replace(query, name=name)
    ops = 1 + 2 * num_heads / query.width
    return Elementwise(name=name, inputs=(query,), outputs=(out,), weights=scale_weights, ops_per_element=ops)


@frozen(kw_only=True)
class LearnedRotation(Decoder):
    """A decoder whose positions have a learned number for each pair that is rotated."""

    rope_dim: int

    def _embedding(self, parts: Parts) -> Block:
        return super()._embedding(parts).map(lambda op: holding(op, parts, {"rotary.alpha": (self.rope_dim // 2,)}))


@architecture("mistral_large4_text")
def build(config: Section, fmt: Format) -> Graph:
    """Mistral Large 4's language model: sparse latent attention, latents shared by layers, experts."""
    ignore_router_fields(config, "rope_interleave", "final_logit_softcapping", "layer_types", "kv_sharing_modes")
    # Keys and values are expanded for every head, and heads are as wide as their parts.
    config.ignore("num_key_value_heads", "head_dim", "qk_head_dim")
    moe = experts_beside_shared(config, "n_routed_experts", default=1)
    networks: dict[bool, FeedForward] = {True: moe, False: dense(config)}
    rotated = rotated_layers(config)
    each = zip(sparse_layers(config, default=1), rotated, _borrowed(config, rotated), own_index(config), strict=True)
    layers = [
        Layer(
            mixer=_attention(config, rotates=rotates, borrows=borrows, has_indexer=has_indexer),
            feed_forward=networks[has_experts],
            name=("moe" if has_experts else "dense")
            + ("" if rotates else "_nope")
            + ("_borrowing" if borrows else "")
            + ("" if has_indexer else "_shared"),
        )
        for has_experts, rotates, borrows, has_indexer in each
    ]
    plain = decoder(config, layers)
    return LearnedRotation(**vars(plain), rope_dim=config.integer("qk_rope_head_dim", 64)).graph(fmt)


def _attention(config: Section, *, rotates: bool, borrows: bool, has_indexer: bool) -> ScaledLatentAttention:
    plain = latent_attention(config, ScaledLatentAttention, q_rank=0, nope_dim=64)
    chosen = config.integer("index_topk", 2048)
    index = ScaledIndex(
        num_heads=config.integer("index_n_heads", 32), head_dim=config.integer("index_head_dim", 128), chosen=chosen
    )
    return replace(
        plain,
        nope_dim=plain.nope_dim + (0 if rotates else plain.rope_dim),
        rope_dim=plain.rope_dim if rotates else 0,
        index=index if has_indexer else None,
        chosen=0 if has_indexer else chosen,
        borrowed=borrows,
    )


def _borrowed(config: Section, rotated: list[bool]) -> list[bool]:
    """Whether each layer attends to the latents of an earlier one, which kv_source_layers names."""
    if config.get("kv_source_layers") is None:
        return [False] * len(rotated)
    sources = integers(config, "kv_source_layers")
    for_each_layer(config, "kv_source_layers", sources)
    for layer, source in enumerate(sources):
        if not (0 <= source <= layer and sources[source] == source and rotated[source] == rotated[layer]):
            raise config.error(
                "kv_source_layers",
                f"must name, for layer {layer}, itself or an earlier layer with latents of its own and, like it, "
                f"{'with' if rotated[layer] else 'without'} positions; got {source}",
            )
    return [source != layer for layer, source in enumerate(sources)]
