"""Text part of GLM-5.3-Flash: three layers of Kimi delta attention to one of latent attention without positions, to
groups of keys that an indexer selects; hyper-connections, whose mean goes to the head; experts.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ..documents import Section
from ..forms import TOKENS
from ..graph import Graph
from ..operators.attention import Heads, Indexer
from ..operators.base import Operator, Tensor
from ..operators.compression import Compress
from ..operators.linear import Router
from ..operators.masks import Compressed
from ..precision import FP32, Format
from ..records import frozen
from . import architecture
from .blocks.attention import Index, LatentAttention
from .blocks.decoder import FeedForward, Layer, Mixer
from .blocks.fields import decoder, require_false
from .blocks.hyper_connections import HyperConnections
from .blocks.moe import dense, experts_beside_shared, ignore_router_fields, listed, sparse_layers
from .blocks.parts import NormKind, Parts
from .blocks.recurrent import Kda
from .blocks.state_space import unfinished
from .deepseek import own_index

_LINEAR, _INDEXED, _FULL = _KINDS = ("linear_attention", "indexed_attention", "full_attention")
_EVERY: Final = 4  # layers, of which the last one attends
_IGNORED: Final = """
    rope_interleave indexer_rope_interleave index_share_for_mtp_iteration moe_router_dtype swiglu_limit hc_eps
    linear_lower_bound num_key_value_heads head_dim qk_head_dim rope_parameters
"""


@frozen(kw_only=True)
class PooledIndex(Index):
    """An indexer that chooses groups of `pool` tokens, by one key for each: a mean of theirs, weighted by gates.

    The cache has the keys of groups, and keys and gates of the tokens of one that is not full.

    chosen  keys that each query attends to, those of the last group among them, full or not
    pools   groups that it keeps
    """

    pool: int
    pools: int

    def operators(self, parts: Parts, x: Tensor, latent: Tensor, rope_dim: int) -> tuple[Operator, ...]:  # noqa: ARG002
        mask, width = Compressed(self.pool), self.head_dim
        heads = Heads(num_heads=self.num_heads, num_kv_heads=1, head_dim=width, mask=mask)
        q = parts.project("index_q_proj", latent, heads.q_width)
        k, gate = (parts.project(f"index_{part}_proj", x, width) for part in ("k", "gate"))
        weights = parts.project("index_weights", x, self.num_heads, kind=Router)
        norm = parts.norm("index_k_norm", k.result, kind=NormKind.LAYER)
        state = unfinished("index_state", 2 * self.pool * width, parts)
        compress = Compress(
            name="index_entries",
            inputs=(norm.result, gate.result, state),
            outputs=(replace(parts.cached("index_cache", width), rows=TOKENS / self.pool),),
            weights=(parts.weight("index_entries.position_bias", self.pool, width),),
            rotary_dim=0,
            normed=False,
        )
        chosen = Tensor(name="index_choice", width=1, rows=Compressed(self.pool, self.pools).pairs, format=FP32)
        indexer = Indexer(
            name="indexer",
            inputs=(q.result, parts.cache("index_cache", width, mask), weights.result),
            outputs=(chosen,),
            heads=heads,
        )
        return (q, k, gate, weights, norm, compress, indexer)


class MeanOfStreams(HyperConnections):
    """Streams whose mean goes to the last norm."""

    def last(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]:
        return (parts.elementwise("hc_head", x, width=x.width // self.streams, ops=self.streams),)


@architecture("glm5_next_text")
def build(config: Section, fmt: Format) -> Graph:
    """GLM-5.3-Flash's language model: Kimi delta attention, sparse latent attention, hyper-connections, experts."""
    ignore_router_fields(config, *_IGNORED.split())
    require_false(config, "mlp_bias", "biases of these MLPs are not modelled")
    hyper = MeanOfStreams(streams=config.integer("hc_mult", 4), iterations=config.integer("hc_sinkhorn_iters", 20))
    types = _layer_types(config)
    has_indexer = own_index(config, types.index(_INDEXED) if _INDEXED in types else 0)
    mixers: dict[tuple[str, bool], Mixer] = {}
    for has_index in (True, False):
        mixers[_LINEAR, has_index] = _kda(config)
        mixers[_INDEXED, has_index] = _attention(config, has_indexer=has_index)
    moe = experts_beside_shared(config, "n_routed_experts", default=1)
    networks: dict[bool, FeedForward] = {True: moe, False: dense(config)}
    layers = [
        Layer(
            mixer=mixers[kind, has_index],
            feed_forward=networks[sparse],
            hyper=hyper,
            name=f"{_name(kind, has_indexer=has_index)}_{'moe' if sparse else 'dense'}",
        )
        for kind, has_index, sparse in zip(types, has_indexer, sparse_layers(config, default=3), strict=True)
    ]
    return decoder(config, layers, hyper=hyper).graph(fmt)


def _name(kind: str, *, has_indexer: bool) -> str:
    return "kda" if kind == _LINEAR else "mla" if has_indexer else "mla_shared"


def _layer_types(config: Section) -> list[str]:
    layer_types = [_LINEAR if kind == _LINEAR else _INDEXED for kind in listed(config, "layer_types", _KINDS)]
    return layer_types or [
        _INDEXED if (index + 1) % _EVERY == 0 else _LINEAR for index in range(config.count("num_hidden_layers"))
    ]


def _kda(config: Section) -> Kda:
    heads, head_dim = config.integer("linear_num_heads", 64), config.integer("linear_head_dim", 128)
    taps = config.integer("linear_conv_kernel_dim", 4)
    if config.get("linear_attn_config") is None:
        return Kda(heads=heads, head_dim=head_dim, taps=taps)
    linear = config.section("linear_attn_config")
    linear.ignore("gate_lower_bound", "safe_gate", "kda_layers", "full_attn_layers")
    return Kda(
        heads=linear.integer("num_heads", heads),
        head_dim=linear.integer("head_dim", head_dim),
        taps=linear.integer("short_conv_kernel_size", taps),
    )


def _attention(config: Section, *, has_indexer: bool) -> LatentAttention:
    if config.integer("qk_rope_head_dim", 0, least=0):
        raise config.error("qk_rope_head_dim", "must be 0: this attention has no positions")
    topk, pool = config.integer("index_topk", 2048), config.integer("index_kpool", 16)
    if topk % pool:
        raise config.error("index_topk", f"must be a multiple of index_kpool, {pool}; got {topk}")
    # Of a group that is not full, a query attends to half on average.
    chosen = topk + (pool // 2 if config.flag("index_kpool_always_select_tail", default=True) else 0)
    index = PooledIndex(
        num_heads=config.integer("index_n_heads", 32),
        head_dim=config.integer("index_head_dim", 128),
        chosen=chosen,
        pool=pool,
        pools=topk // pool,
    )
    return LatentAttention(
        num_heads=config.integer("num_attention_heads", 64),
        q_rank=config.integer("q_lora_rank", 1536),
        kv_rank=config.integer("kv_lora_rank", 512),
        nope_dim=config.integer("qk_nope_head_dim", 256),
        rope_dim=0,
        value_dim=config.integer("v_head_dim", 256),
        bias=config.flag("attention_bias", default=False),
        index=index if has_indexer else None,
        chosen=0 if has_indexer else chosen,
    )
