"""Qwen3.8-Flash-Next: three layers of gated delta rule to one of gated attention to key blocks that an indexer
selects; hyper-connections with element-wise gates; experts; and n-gram embedding layers.

Before it stands the tower of Qwen3-VL, as before Qwen3.5. The layer that predicts a further token is left out.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil, isqrt
from typing import Final

from ..documents import Section
from ..forms import TOKENS, Form, table_rows
from ..graph import Graph
from ..operators.attention import Heads, Indexer
from ..operators.base import Operator, Tensor
from ..operators.compression import Compress, Turn
from ..operators.elementwise import Elementwise, Norm
from ..operators.embedding import Embedding
from ..operators.masks import Compressed, TopK
from ..operators.state_space import CausalConv
from ..precision import FP32, Format
from ..records import frozen
from . import architecture
from .blocks.attention import IndexedAttention
from .blocks.decoder import Layer, Mixer
from .blocks.fields import decoder, filled
from .blocks.hyper_connections import HyperConnections
from .blocks.moe import ignore_router_fields, integers, language_model, listed
from .blocks.parts import Parts, result
from .blocks.recurrent import SIGMOID
from .blocks.state_space import kept, unfinished
from .blocks.tower import tied_of
from .qwen3_next import delta, experts, gated_attention
from .qwen_vl import seeing

_LINEAR, _INDEXED, _FULL = _KINDS = ("linear_attention", "indexed_attention", "full_attention")
_GATE: Final = 10  # OPs of a stream's gate: scale, magnitude, bound, root, sign, product, sigmoid
_IGNORED: Final = """
    seed split_ngram_parts output_gate_type mamba_ssm_dtype partial_rotary_factor decoder_sparse_step mlp_only_layers
    mtp_num_hidden_layers mtp_use_dedicated_embeddings mtp ple_embedding_dtype attn_output_gate
"""


@frozen(kw_only=True)
class GatedStreams(HyperConnections):
    """Streams whose mean, each element times a gate, goes on; a result comes back to each by a weight of its own.

    rank  that gates are made through
    """

    rank: int
    iterations: int = 0

    def taken(self, parts: Parts, name: str, x: Tensor) -> tuple[tuple[Operator, ...], Tensor]:
        norm = by_stream(parts, f"{name}_norm", x, self.streams)
        back = parts.project(f"{name}_hc_back", norm.result, self.streams)
        return (norm, back, *self._gated(parts, f"{name}_hc", norm.result)), back.result

    def merged(self, parts: Parts, name: str, x: Tensor, branch: Tensor, back: Tensor) -> Elementwise:
        plain = super().merged(parts, name, x, branch, back)
        weights = (SIGMOID + 2) * self.streams / x.width
        return replace(plain, ops_per_element=plain.ops_per_element + weights)

    def last(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]:
        norm = by_stream(parts, "final_norm", x, self.streams)
        return (norm, *self._gated(parts, "hc_head", norm.result))

    def _gated(self, parts: Parts, name: str, x: Tensor) -> tuple[Operator, ...]:
        down = parts.project(f"{name}_down", x, self.rank)
        act = parts.activate(f"{name}_act", "silu", down.result)
        up_proj = parts.project(f"{name}_up", act.result, x.width)
        ops = self.streams * (SIGMOID + 2)  # and a product, and a sum or the quotient
        mean = parts.elementwise(name, x, up_proj.result, width=x.width // self.streams, ops=ops)
        return (down, act, up_proj, mean)


def by_stream(parts: Parts, name: str, x: Tensor, streams: int) -> Norm:
    """The norm of each stream, with weights of its own."""
    return replace(parts.norm(name, x), group=x.width // streams)


@frozen(kw_only=True)
class MeanIndex:
    """An indexer that chooses groups of `pool` tokens, by the mean of their keys; its heads count alike.

    The cache has the keys of groups, and those of the tokens of one that is not full.
    """

    num_heads: int
    head_dim: int
    rotary_dim: int
    pool: int
    pools: int

    def operators(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]:
        mask, width = Compressed(self.pool), self.head_dim
        heads = Heads(num_heads=self.num_heads, num_kv_heads=1, head_dim=width, mask=mask)
        q, k = parts.tensor("index_q_proj", heads.q_width), parts.tensor("index_k_proj", width)
        projection = parts.linear("index_qk_proj", x, q, k)
        norm = parts.norm("index_q_norm", q, shared=self.num_heads)
        query = parts.tensor("index_q_rope", heads.q_width)
        rope = Turn(
            name=query.name,
            inputs=norm.outputs,
            outputs=(query,),
            num_heads=self.num_heads,
            rotary_dim=self.rotary_dim,
        )
        state = unfinished("index_state", self.pool * width, parts)
        compress = Compress(
            name="index_entries",
            inputs=(k, state),
            outputs=(replace(parts.cached("index_cache", width), rows=TOKENS / self.pool),),
            weights=(parts.weight("index_k_norm.weight", width),),
            rotary_dim=self.rotary_dim,
        )
        chosen = Tensor(name="index_choice", width=1, rows=Compressed(self.pool, self.pools).pairs, format=FP32)
        indexer = Indexer(
            name="indexer", inputs=(query, parts.cache("index_cache", width, mask)), outputs=(chosen,), heads=heads
        )
        return (projection, norm, rope, compress, indexer)


@frozen(kw_only=True)
class NGrams:
    """Embeddings of n-grams of the last tokens, added to every stream: a gated value and a filtered one.

    Each of `tables` has as many rows as it says, and the results lie side by side. The numbers of the last tokens,
    which stay for the next ones, are not counted.

    rows      of all tables together, with what fills them up
    width     of all results together
    dilation  tokens between two taps of the filter
    """

    tables: tuple[int, ...]
    rows: int
    width: int
    streams: int
    taps: int
    dilation: int

    def operators(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]:
        embed = self._embedding(parts)
        key, value = (
            parts.project(f"ngrams_{name}_proj", embed.result, width)
            for name, width in (("k", x.width), ("v", x.width // self.streams))
        )
        key_norm = by_stream(parts, "ngrams_k_norm", key.result, self.streams)
        query_norm = by_stream(parts, "ngrams_q_norm", x, self.streams)
        inputs = (key_norm.result, query_norm.result, value.result)
        ops = 3 + _GATE * self.streams / x.width  # the product of key and query, and that of its gate and the value
        gated = parts.elementwise("ngrams_gated", *inputs, ops=ops)
        norm = by_stream(parts, "ngrams_norm", gated.result, self.streams)
        state = kept("ngrams_state", x.width * (self.taps - 1) * self.dilation, parts)
        conv = CausalConv(
            name="ngrams_conv",
            inputs=(*norm.outputs, state),
            outputs=(parts.tensor("ngrams_conv", x.width), state),
            weights=(parts.weight("ngrams_conv.weight", x.width, self.taps),),
            taps=self.taps,
        )
        add = parts.add("ngrams_add", x, gated.result, conv.result)
        return (embed, key, value, key_norm, query_norm, gated, norm, conv, add)

    def _embedding(self, parts: Parts) -> Embedding:
        table = parts.weight("ngrams.weight", self.rows, self.width // len(self.tables))
        read = sum((table_rows(rows) for rows in self.tables), Form())
        table = replace(table, rows=read, active=len(self.tables) / self.rows)
        return Embedding(name="ngrams", inputs=(), outputs=(parts.tensor("ngrams", self.width),), weights=(table,))


@frozen(kw_only=True)
class LookingUp(Layer):
    """A layer before which the last tokens are looked up."""

    ngrams: NGrams

    def operators(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]:
        launches = self.ngrams.operators(parts, x)
        return (*launches, *super().operators(parts, result(launches)))


@architecture("qwen4_exp")
def build(config: Section, fmt: Format) -> Graph:
    """Qwen3.8-Flash-Next: its language model behind the tower of Qwen3-VL."""
    text = language_model(config)
    language = build_text(filled(text, instead={"tie_word_embeddings": tied_of(config, text)}), fmt)
    return seeing(config, language, fmt)


@architecture("qwen4_exp_text")
def build_text(config: Section, fmt: Format) -> Graph:
    """Qwen3.8-Flash-Next's language model: gated DeltaNet 3:1 with sparse attention, gated streams, experts."""
    ignore_router_fields(config, *_IGNORED.split())
    hyper = GatedStreams(streams=config.integer("hc_count", 4), rank=config.integer("hc_lowrank", 320))
    mixers: dict[str, Mixer] = {_LINEAR: delta(config, fused=False), _INDEXED: _indexed(config)}
    network = experts(config)
    layers = [
        Layer(mixer=mixers[kind], feed_forward=network, hyper=hyper, name=kind.split("_")[0])
        for kind in _layer_types(config)
    ]
    for place, ngrams in _looked_up(config, hyper.streams).items():
        plain = layers[place]
        layers[place] = LookingUp(
            mixer=plain.mixer, feed_forward=network, hyper=hyper, name=f"{plain.name}_ngrams", ngrams=ngrams
        )
    return decoder(config, layers, hyper=hyper, final_norm=False).graph(fmt)


def _layer_types(config: Section) -> list[str]:
    every = config.integer("full_attention_interval", 4)
    layer_types = [_LINEAR if kind == _LINEAR else _INDEXED for kind in listed(config, "layer_types", _KINDS)]
    return layer_types or [
        _LINEAR if (index + 1) % every else _INDEXED for index in range(config.count("num_hidden_layers"))
    ]


def _indexed(config: Section) -> IndexedAttention:
    if config.integer("indexer_kv_heads", 1) != 1:
        raise config.error("indexer_kv_heads", "must be 1: all heads of this indexer share a key")
    plain = gated_attention(config)
    budget, pool = config.integer("indexer_budget"), config.integer("indexer_compress_ratio")
    if budget % pool:
        raise config.error("indexer_budget", f"must be a multiple of indexer_compress_ratio, {pool}; got {budget}")
    index = MeanIndex(
        num_heads=config.integer("indexer_n_heads"),
        head_dim=config.integer("indexer_head_dim"),
        rotary_dim=plain.rotary_dim,
        pool=pool,
        pools=budget // pool,
    )
    mask = TopK(budget + pool // 2)  # of a group that is not full, a query attends to half on average
    return IndexedAttention(attention=replace(plain, heads=replace(plain.heads, mask=mask)), index=index)


def _looked_up(config: Section, streams: int) -> dict[int, NGrams]:
    """N-gram embeddings by layer. The rows of tables are successive primes."""
    size = config.integer("ngram_size", 3, least=2)
    heads = (size - 1) * config.integer("heads_per_ngram", 8)
    width = config.integer("ple_embed_dim", config.integer("hidden_size"))
    multiple, layers = config.integer("make_ngram_vocab_size_divisible_by", 128), config.count("num_hidden_layers")
    numbers = sorted(set(integers(config, "ple_layer_ids")))
    if any(not 1 <= number <= layers for number in numbers):
        raise config.error("ple_layer_ids", f"must be numbers of the {layers} layers, the first of which is 1")
    if width % heads:
        raise config.error("ple_embed_dim", f"must be a multiple of the {heads} tables; got {width}")
    primes = _primes(config.integer("ngram_vocab_size_base", 20_000_000), heads * len(numbers))
    ngrams_by_layer = {}
    for index, number in enumerate(numbers):
        tables = primes[index * heads : (index + 1) * heads]
        ngrams_by_layer[number - 1] = NGrams(
            tables=tables,
            rows=ceil(sum(tables) / multiple) * multiple,
            width=width,
            streams=streams,
            taps=config.integer("ple_conv_kernel_size", 4),
            dilation=size,
        )
    return ngrams_by_layer


def _primes(lower_bound: int, count: int) -> tuple[int, ...]:
    """The first `count` prime numbers that are at least `least`."""
    primes: list[int] = []
    number = max(lower_bound, 2)
    while len(primes) < count:
        if all(number % divisor for divisor in range(2, isqrt(number) + 1)):
            primes.append(number)
        number += 1
    return tuple(primes)
