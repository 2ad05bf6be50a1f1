"""MiniMax-M3: grouped-query attention to blocks of keys, which an indexer selects for each group; experts; a vision
tower where the config has one.

A query's own block is among those chosen and counts as full. The clamped gate, x sigmoid(1.702 x), counts as SiLU.
"""

from __future__ import annotations

from dataclasses import replace

from ..documents import Section
from ..graph import Graph
from ..operators.attention import Heads
from ..operators.base import Operator, Tensor
from ..operators.block_sparse import BlockIndexer
from ..operators.elementwise import Rope
from ..operators.masks import TopK
from ..precision import FP32, Format
from ..records import frozen
from . import architecture
from .blocks.attention import IndexedAttention, SelfAttention
from .blocks.decoder import FeedForward, Layer, Mixer, Prediction
from .blocks.encoder import bidirectional
from .blocks.feed_forward import Experts, Mlp
from .blocks.fields import decoder, grouped_heads, rotary_dim, rotated
from .blocks.moe import (
    checked_top_k,
    crossed,
    flagged,
    for_each_layer,
    ignore_router_fields,
    integers,
    language_model,
    listed,
    listed_sparse,
)
from .blocks.parts import NormKind, Parts, heads_of, result, with_rows
from .blocks.tower import Tower, image_rows, joined, patch_grid, patches_of, projector, tower_activation, vision

_SPARSE = "minimax_m3_sparse"


@architecture("minimax_m3_vl")
def build(config: Section, fmt: Format) -> Graph:
    """A tower for images before the language model: what it leaves of each patch is brought to the model's width, and
    of four together to a token.
    """
    config.ignore(
        "tie_word_embeddings", "video_token_index", "multimodal_projector_bias", "img_token_compression_config",
        "merged_hidden_size", "projector_hidden_size",
    )  # fmt: skip
    text = language_model(config)
    language = build_text(text, fmt)
    if config.get("vision_config") is None:
        return language
    section, hidden = vision(config), text.integer("hidden_size")
    merged = section.integer("spatial_merge_size", 2)
    tower = _tower(section, merged)
    project = _projected(tower, tower.parts(fmt), merged**2, (config.integer("projector_hidden_size", 6144), hidden))
    tokens = tower.grid.patches // merged**2
    return joined(tower.blocks(fmt, tower.stream), project, language, tokens=tokens)


@architecture("minimax_m3_vl_text", "minimax_m3")
def build_text(config: Section, fmt: Format) -> Graph:
    """MiniMax-M3's language model: block-sparse attention chosen by an indexer, experts."""
    ignore_router_fields(
        config, "swiglu_alpha", "swiglu_limit", "hidden_act", "use_gemma_norm", "use_qk_norm", "qk_norm_type",
        "partial_rotary_factor",
    )  # fmt: skip
    heads = grouped_heads(config, kv_heads=4, head_dim=128)
    turned = rotated(config, heads.head_dim, rotary_dim(config, heads.head_dim, default=0.5))
    plain = SelfAttention(heads=heads, rotary_dim=turned, qk_norm=NormKind.RMS)
    moe = Experts(
        experts=config.integer("num_local_experts"),
        chosen=checked_top_k(config, "num_experts_per_tok", "num_local_experts", config.integer("num_experts_per_tok")),
        inner=config.integer("intermediate_size"),
        shared=_mlp(config.integer("shared_intermediate_size", 3072)),
    )
    mixers: dict[bool, tuple[str, Mixer]] = {False: ("full", plain), True: ("sparse", _indexed(config, plain))}
    networks: dict[bool, tuple[str, FeedForward]] = {
        False: ("dense", _mlp(config.integer("dense_intermediate_size", 12288))),
        True: ("moe", moe),
    }
    layers = crossed(mixers, networks, zip(_choosing(config), _with_experts(config), strict=True))
    prediction_layer = Layer(mixer=mixers[True][1], feed_forward=moe)  # as vLLM has it: sparse attention, experts
    prediction = Prediction.of(config, "num_mtp_modules", prediction_layer)
    return decoder(config, layers, prediction=prediction).graph(fmt)


@frozen(kw_only=True)
class BlockIndex:
    """Heads that choose blocks of keys and share a key for each token.

    blocks      that each query keeps
    rotary_dim  elements of each head that are rotated
    """

    heads: Heads
    blocks: int
    rotary_dim: int

    def operators(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]:
        heads = self.heads
        q = parts.project("index_q_proj", x, heads.q_width)
        k = parts.project("index_k_proj", x, heads.head_dim)
        q_norm = parts.norm("index_q_norm", q.result, shared=heads.num_heads, kind=NormKind.RMS)
        k_norm = parts.norm("index_k_norm", k.result, kind=NormKind.RMS)
        rotated = (parts.tensor("index_q_rope", heads.q_width), parts.cached("index_cache", heads.head_dim))
        rope = Rope(
            name="index_rope",
            inputs=(q_norm.result, k_norm.result),
            outputs=rotated,
            heads=heads,
            rotary_dim=self.rotary_dim,
        )
        chosen = Tensor(name="index_choice", width=heads.num_heads * self.blocks, format=FP32)
        indexer = BlockIndexer(
            name="indexer",
            inputs=(rotated[0], parts.cache("index_cache", heads.head_dim)),
            outputs=(chosen,),
            heads=heads,
        )
        return (q, k, q_norm, k_norm, rope, indexer)


def _tower(section: Section, merged: int) -> Tower:
    """Patches are cut through two frames and rotated by time, height and width, as many elements by each."""
    hidden = section.integer("hidden_size", 1280)
    heads = bidirectional(heads_of(section, hidden, "num_attention_heads"))
    mlp = Mlp(inner=section.integer("intermediate_size", 5120), act=tower_activation(section, "gelu"), bias=True)
    attention = SelfAttention(heads=heads, rotary_dim=heads.head_dim // 6 * 6, qkv_bias=True, o_bias=True)
    return Tower(
        grid=patch_grid(
            section, image=2016, patch=14, frames=section.integer("temporal_patch_size", 2), multiple=merged
        ),
        hidden=hidden,
        layers=[Layer(mixer=attention, feed_forward=mlp)] * section.count("num_hidden_layers", 32),
        pre_norm=True,
    )


def _projected(tower: Tower, parts: Parts, merged: int, widths: tuple[int, int]) -> tuple[Operator, ...]:
    """Two linears of each patch, and two of `merged` patches side by side, with an activation between each two."""
    patches = image_rows(tower.grid.patches)
    each = projector(parts, patches_of(tower, parts), widths, "gelu", bias=True)
    first = tuple(op.with_tensors(lambda t: with_rows(t, patches)) for op in each)
    wide = parts.tensor(result(first).name, merged * widths[-1])
    first = (*first[:-1], replace(first[-1], outputs=(wide,)))
    up_proj = parts.project("merge_linear_1", wide, widths[0], bias=True)
    act = parts.activate("merge_act", "gelu", *up_proj.outputs)
    return (*first, up_proj, act, parts.project("merge_linear_2", act.result, widths[1], bias=True))


def _mlp(inner: int) -> Mlp:
    return Mlp(inner=inner, act="silu", gated=True)


def _indexed(config: Section, attention: SelfAttention) -> IndexedAttention:
    """Block-sparse attention with an indexer, from the fields of the checkpoint's own section or of transformers."""
    section = config.section("sparse_attention_config") if config.get("sparse_attention_config") else config
    section.ignore(
        "use_sparse_attention", "sparse_score_type", "sparse_init_block", "sparse_local_block", "index_local_blocks",
        "sparse_disable_index_value",
    )  # fmt: skip

    def indexer_field(checkpoint: str, transformers: str, default: int) -> int:
        return section.integer(section.first(transformers, checkpoint), default)

    blocks = indexer_field("sparse_topk_blocks", "index_topk_blocks", 16)
    keys = blocks * indexer_field("sparse_block_size", "index_block_size", 128)
    heads = Heads(
        num_heads=indexer_field("sparse_num_index_heads", "index_n_heads", 4),
        num_kv_heads=1,
        head_dim=indexer_field("sparse_index_dim", "index_head_dim", 128),
    )
    chosen = replace(attention, heads=replace(attention.heads, mask=TopK(keys)))
    index = BlockIndex(heads=heads, blocks=blocks, rotary_dim=min(attention.rotary_dim, heads.head_dim))
    return IndexedAttention(attention=chosen, index=index)


def _choosing(config: Section) -> list[bool]:
    """Whether each layer attends to blocks that its indexer chooses."""
    if kinds := listed(config, "layer_types", ("full_attention", _SPARSE)):
        return [kind == _SPARSE for kind in kinds]
    if config.get("sparse_attention_config"):
        section = config.section("sparse_attention_config")
        frequencies = integers(section, "sparse_attention_freq")
        if frequencies:
            for_each_layer(config, "sparse_attention_config.sparse_attention_freq", frequencies)
            return [bool(n) for n in frequencies]
    return [False] * config.count("num_hidden_layers")


def _with_experts(config: Section) -> list[bool]:
    """Whether each layer has experts: all where the config does not say."""
    every = [True] * config.count("num_hidden_layers")
    return listed_sparse(config) or flagged(config, "moe_layer_freq") or every
