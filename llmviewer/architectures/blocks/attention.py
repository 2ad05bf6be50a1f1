"""Attention mixers. The result of each is "o_proj"."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from ...operators.attention import QK, SV, Heads, Indexer, Softmax
from ...operators.base import Operator, Tensor
from ...operators.elementwise import Elementwise, Rope
from ...operators.linear import LatentExpansion, Router
from ...operators.masks import CAUSAL, Causal, TopK
from ...precision import FP32, Format
from ...records import frozen
from .parts import NormKind, Parts, result


@frozen(kw_only=True)
class SelfAttention:
    """Grouped-query attention with a KV cache and scores in memory.

    The projection or the rotation that computes keys and values writes them to the cache.

    rotary_dim     elements of each head with rotary positions; 0: none
    alibi          whether positions are biases on the scores
    fused_qkv      whether one projection computes queries, keys and values
    qkv_bias       whether the projections of queries, keys and values have biases
    o_bias         whether the output projection has a bias
    qk_norm        norm of queries and keys before the rotation
    qk_norm_whole  whether this norm is over all heads, not per head
    sinks          whether every head has a learned logit in the softmax
    gated          whether the result is scaled by the sigmoid of a gate that the query projection computes
    gates          width of a projection of x whose sigmoid scales the result: one per head or per element; 0: none
    """

    heads: Heads
    rotary_dim: int = 0
    alibi: bool = False
    fused_qkv: bool = False
    qkv_bias: bool = False
    o_bias: bool = False
    qk_norm: NormKind | None = None
    qk_norm_whole: bool = False
    sinks: bool = False
    gated: bool = False
    gates: int = 0

    def within(self, window: float) -> SelfAttention:
        """Adds a window of `window` keys and rotation of whole heads."""
        heads = replace(self.heads, mask=Causal(window))
        return replace(self, heads=heads, rotary_dim=heads.head_dim)

    def operators(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]:
        heads = self.heads
        straight = not self.rotary_dim and not self.qk_norm  # keys need nothing before they are cached
        q = parts.tensor("q_proj", heads.q_width)
        k = parts.kept("k_cache", heads.kv_width, heads.mask) if straight else parts.tensor("k_proj", heads.kv_width)
        v = parts.kept("v_cache", heads.num_kv_heads * heads.out_dim, heads.mask)
        gate = (parts.tensor("attn_gate", heads.num_heads * heads.out_dim),) if self.gated else ()
        named = {"q_proj": (q, *gate), "k_proj": (k,), "v_proj": (v,)}
        if self.fused_qkv:
            named = {"qkv_proj": (q, k, v, *gate)}
        projections = [parts.linear(name, x, *outputs, bias=self.qkv_bias) for name, outputs in named.items()]
        prepared = self._prepared(parts, q, k)
        q = prepared[-1].result if self.rotary_dim else prepared[0].result if prepared else q
        scored = self._scores(parts, q)
        if gate:  # sigmoid, four OPs, and a product
            scored = (*scored, parts.elementwise("gated_attention", result(scored), gate[0], ops=5))
        if self.gates:
            scored = (*scored, *gated(parts, x, result(scored), self.gates))
        o_proj = parts.project("o_proj", result(scored), x.width, bias=self.o_bias)
        return (*projections, *prepared, *scored, o_proj)

    def _prepared(self, parts: Parts, q: Tensor, k: Tensor) -> tuple[Operator, ...]:
        """Norms and rotation between projections and scores; the last of them writes keys to the cache."""
        heads, cached = self.heads, parts.kept("k_cache", self.heads.kv_width, self.heads.mask)
        norms: tuple[Operator, ...] = ()
        if self.qk_norm:
            groups = (1, 1) if self.qk_norm_whole else (heads.num_heads, heads.num_kv_heads)
            q_norm = parts.norm("q_norm", q, shared=groups[0], kind=self.qk_norm)
            k_norm = parts.norm("k_norm", k, shared=groups[1], kind=self.qk_norm)
            if not self.rotary_dim:
                k_norm = replace(k_norm, outputs=(cached,))
            norms = (q_norm, k_norm)
            q, k = q_norm.result, k_norm.result
        if not self.rotary_dim:
            return norms
        rotated = (parts.tensor("q_rope", heads.q_width), cached)
        rope = Rope(name="rope", inputs=(q, k), outputs=rotated, heads=heads, rotary_dim=self.rotary_dim)
        return (*norms, rope)

    def _scores(self, parts: Parts, q: Tensor) -> tuple[Operator, ...]:
        heads = self.heads
        k = parts.cache("k_cache", heads.kv_width, heads.mask)
        v = parts.cache("v_cache", heads.num_kv_heads * heads.out_dim, heads.mask)
        sinks = (parts.weight("sinks", heads.num_heads),) if self.sinks else ()
        qk, softmax, sv = scored(parts, heads, q, (k,), v, bias=self.alibi)
        return (qk, replace(softmax, weights=sinks), sv)


class KeyChooser(Protocol):
    """Chooses keys for an attention over the same x."""

    def operators(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]: ...


@frozen(kw_only=True)
class IndexedAttention:
    """Grouped-query attention to keys that `index` chooses."""

    attention: SelfAttention
    index: KeyChooser

    def operators(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]:
        launches = self.attention.operators(parts, x)
        scores = next(place for place, op in enumerate(launches) if isinstance(op, QK))
        return (*launches[:scores], *self.index.operators(parts, x), *launches[scores:])


@frozen(kw_only=True)
class LatentAttention:
    """Multi-head latent attention: keys and values are expanded from a cached latent (arXiv:2405.04434, section 2.1).

    This is the naive form, in which every pass expands the whole context; transforms.absorb gives the absorbed form.

    num_heads         heads of queries, keys and values
    kv_rank           width of the latent of keys and values
    nope_dim          elements of a head without position, expanded from the latent
    value_dim         elements of a value per head
    q_rank            width of the latent of queries; 0: they are projected directly
    rope_dim          rotated elements, with one key for all heads; 0: none
    bias              whether the projections to latents and the output projection have biases
    index             indexer that chooses the keys of each query; None: see `chosen`
    chosen            keys per query, chosen by the indexer of an earlier layer; 0: attention to all keys
    gates             width of a projection of x whose sigmoid scales the result: one per head or per element; 0: none
    sinks             whether every head has a learned logit in the softmax
    window            keys that a query attends to if none are chosen; 0: all
    k_rope_norm       whether the rotated part of keys has a norm before the rotation
    """

    num_heads: int
    kv_rank: int
    nope_dim: int
    value_dim: int
    q_rank: int = 0
    rope_dim: int = 0
    bias: bool = False
    index: Index | None = None
    chosen: int = 0
    gates: int = 0
    sinks: bool = False
    window: int = 0
    k_rope_norm: bool = False

    @property
    def seen(self) -> Causal:
        """The mask of keys that a query may attend to, or choose from."""
        return Causal(self.window) if self.window else CAUSAL

    @property
    def heads(self) -> Heads:
        chosen = self.index.chosen if self.index else self.chosen
        return Heads(
            num_heads=self.num_heads,
            num_kv_heads=self.num_heads,
            head_dim=self.nope_dim + self.rope_dim,
            value_dim=self.value_dim,
            mask=TopK(chosen) if chosen else self.seen,
        )

    def operators(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]:
        queries = self._queries(parts, x)
        projections = self._own(parts, x, result(queries))
        latent = replace(queries[-1].inputs[0], width=self.q_rank)
        chosen = self.index.operators(parts, x, latent, self.rope_dim) if self.index else ()
        query = parts.tensor("q_rope", self.heads.q_width) if self.rope_dim else result(queries)
        attended = self._attended(parts, query, *self._caches(parts))
        if self.gates:
            attended = (*attended, *gated(parts, x, result(attended), self.gates))
        o_proj = parts.project("o_proj", result(attended), x.width, bias=self.bias)
        return (*queries, *projections, *chosen, *attended, o_proj)

    def _own(self, parts: Parts, x: Tensor, q: Tensor) -> tuple[Operator, ...]:
        """Writes the latent and the rotated part of keys to the cache, and rotates queries."""
        outputs = [parts.tensor("kv_a_proj", self.kv_rank)]
        if self.rope_dim:
            outputs.append(parts.tensor("k_rope", self.rope_dim))
        down = parts.linear("kv_a_proj", x, *outputs, bias=self.bias)
        norm = parts.norm("kv_a_norm", outputs[0], kind=NormKind.RMS)
        norm = replace(norm, outputs=(parts.cached("latent_cache", self.kv_rank),))
        if not self.rope_dim:
            return (down, norm)
        k_norm = (parts.norm("k_rope_norm", outputs[1], kind=NormKind.RMS),) if self.k_rope_norm else ()
        rope = Rope(
            name="rope",
            inputs=(q, result(k_norm) if k_norm else outputs[1]),
            outputs=(parts.tensor("q_rope", q.width), parts.cached("rope_cache", self.rope_dim)),
            heads=replace(self.heads, num_kv_heads=1),
            rotary_dim=self.rope_dim,
        )
        return (down, norm, *k_norm, rope)

    def _caches(self, parts: Parts) -> tuple[Tensor, ...]:
        """Caches that attention reads: the latent, and the rotated part of keys if there is one."""
        latent = parts.cache("latent_cache", self.kv_rank, self.seen)
        return (latent, parts.cache("rope_cache", self.rope_dim, self.heads.mask)) if self.rope_dim else (latent,)

    def _attended(self, parts: Parts, q: Tensor, latent: Tensor, *rotated: Tensor) -> tuple[Operator, ...]:
        """Expands keys and values from the cached `latent`, and attends to them and to the `rotated` part of keys."""
        heads = self.heads
        k, v = (
            replace(parts.tensor(name, width), rows=self.seen.keys_read)
            for name, width in (("k_nope", self.num_heads * self.nope_dim), ("v", self.num_heads * self.value_dim))
        )
        up_proj = parts.linear("kv_b_proj", latent, k, v, kind=LatentExpansion)
        k, v = (replace(t, rows=heads.mask.keys_read) for t in (k, v))
        qk, softmax, sv = scored(parts, heads, q, (k, *rotated), v)
        sinks = (parts.weight("sinks", self.num_heads),) if self.sinks else ()
        return (up_proj, qk, replace(softmax, weights=sinks), sv)

    def _queries(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]:
        if not self.q_rank:
            return (parts.project("q_proj", x, self.heads.q_width),)
        down = parts.project("q_a_proj", x, self.q_rank, bias=self.bias)
        norm = parts.norm("q_a_norm", down.result, kind=NormKind.RMS)
        return (down, norm, parts.project("q_b_proj", norm.result, self.heads.q_width))


@frozen(kw_only=True)
class Index:
    """The lightning indexer of DeepSeek Sparse Attention: a small attention that chooses keys (arXiv:2512.02556).

    num_heads  heads of its queries, which share one key per token, in a cache of its own
    head_dim   elements of its queries and keys
    chosen     keys that it chooses per query
    format     format of its queries and keys in their product; None: that of the model
    """

    num_heads: int
    head_dim: int
    chosen: int
    format: Format | None = None

    def own(self, t: Tensor) -> Tensor:
        """An operand in the indexer's own format, which quantization does not change."""
        return replace(t, format=self.format, left_as_published=True) if self.format else t

    def operators(self, parts: Parts, x: Tensor, latent: Tensor, rope_dim: int) -> tuple[Operator, ...]:
        """Queries from the `latent` of attention's queries; keys and weights of heads from x.

        With a `rope_dim` of 0 nothing is rotated, and the norm of keys writes them to the cache.
        """
        heads = Heads(num_heads=self.num_heads, num_kv_heads=1, head_dim=self.head_dim)
        q = parts.project("index_q_proj", latent, heads.q_width)
        k = parts.project("index_k_proj", x, self.head_dim)
        weights = parts.project("index_weights", x, self.num_heads, kind=Router)
        norm = parts.norm("index_k_norm", k.result, kind=NormKind.LAYER)
        cached = self.own(parts.cached("index_cache", self.head_dim))
        launches: tuple[Operator, ...] = (q, k, weights, replace(norm, outputs=(cached,)))
        query = q.result
        if rope_dim:
            query = self.own(parts.tensor("index_q_rope", heads.q_width))
            rope = Rope(
                name="index_rope",
                inputs=(q.result, norm.result),
                outputs=(query, cached),
                heads=heads,
                rotary_dim=rope_dim,
            )
            launches = (q, k, weights, norm, rope)
        chosen = Tensor(name="index_choice", width=1, rows=TopK(self.chosen).pairs, format=FP32)
        index = Indexer(
            name="indexer",
            inputs=(query, self.own(parts.cache("index_cache", self.head_dim)), weights.result),
            outputs=(chosen,),
            heads=heads,
        )
        return (*launches, index)


@frozen(kw_only=True)
class QueryRope(Elementwise):
    """Rotation of queries alone: three OPs for each of the `turned` elements, and the others stay where they are."""

    turned: int

    kind: str = Rope.kind

    def reads(self) -> tuple[Tensor, ...]:
        return (replace(self.inputs[0], width=self.turned),)

    def writes(self) -> tuple[Tensor, ...]:
        return (replace(self.outputs[0], width=self.turned),)


def query_rope(parts: Parts, q: Tensor, turned: int) -> QueryRope:
    """The rotation of `turned` elements of each row of queries."""
    out = parts.tensor("q_rope", q.width)
    return QueryRope(name="rope", inputs=(q,), outputs=(out,), ops_per_element=3 * turned / q.width, turned=turned)


def gated(parts: Parts, x: Tensor, attended: Tensor, gates: int) -> tuple[Operator, ...]:
    """The scaled result of attention: a multiplication per element, and four OPs per sigmoid of a gate."""
    gate = parts.project("g_proj", x, gates)
    out = replace(attended, name="gated_attention")
    inputs = (attended, gate.result)
    ops = 1 + 4 * gates / out.width
    return (gate, Elementwise(name=out.name, inputs=inputs, outputs=(out,), ops_per_element=ops))


def scored(
    parts: Parts, heads: Heads, q: Tensor, keys: tuple[Tensor, ...], v: Tensor, *, bias: bool = False
) -> tuple[QK, Softmax, SV]:
    """Scores, softmax and weighted sum as three launches; the result is "attention"."""
    scores, probs = (
        Tensor(name=name, width=heads.num_heads, rows=heads.mask.cells, format=parts.format)
        for name in ("scores", "probs")
    )
    out = parts.tensor("attention", heads.num_heads * heads.out_dim)
    return (
        QK(name="qk_matmul", inputs=(q, *keys), outputs=(scores,), heads=heads),
        Softmax(name="softmax", inputs=(scores,), outputs=(probs,), heads=heads, bias=bias),
        SV(name="sv_matmul", inputs=(probs, v), outputs=(out,), heads=heads),
    )
