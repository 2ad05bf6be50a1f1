"""Text part of Gemma 4: Gemma 3 with wider heads in layers of global attention, and layers that share the KV cache of
an earlier one.

In layers of global attention the values are the keys before their norm, where the config says so. Small models have
per-layer embeddings, computed from the token ids and the first embedding. Experts run in parallel to an MLP.
A layer's learned factor folds into the norms and is not counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..documents import Section
from ..forms import Form
from ..graph import Block, Graph
from ..operators.attention import Heads
from ..operators.base import Operator, Tensor
from ..operators.elementwise import ACTIVATION_OPS, Elementwise, Norm, Rope, Route
from ..operators.masks import Causal
from ..precision import Format
from ..records import frozen
from . import architecture
from .blocks.attention import query_rope, scored
from .blocks.class_defaults import TEXT_CLASSES
from .blocks.decoder import Decoder, Layer, Residual
from .blocks.feed_forward import Experts, Mlp
from .blocks.fields import filled, gated_mlp, of_each_layer, sliding_layers
from .blocks.moe import checked_top_k
from .blocks.parts import NormKind, Parts, result
from .blocks.tower import tied_of

_UNIFIED = TEXT_CLASSES["Gemma4TextConfig"] | {"hidden_size_per_layer_input": 0, "sliding_window": 1024}
_GLOBAL_HEAD_DIM = 512  # of layers that attend to all
EMBEDDED, _PER_LAYER = "embed_tokens", "per_layer_inputs"  # left by the blocks before the layers
_ROTATED = 0.25  # of a head of layers that attend to all
_IGNORED = """
    final_logit_softcapping use_bidirectional_attention vocab_size_per_layer_input expert_intermediate_size
    moe_intermediate_size num_experts top_k_experts num_global_key_value_heads use_double_wide_mlp
"""
_MEDIA = """
    audio_token_id boa_token_id boi_token_id eoa_token_id eoa_token_index eoi_token_id
    image_token_id tie_word_embeddings video_token_id vision_soft_tokens_per_image
"""


@frozen(kw_only=True)
class Gemma4Attention:
    """Attention with norms of query, key and value heads; leaves "o_proj".

    rotary_dim   elements of each head that are rotated
    keys_only    values are made of the keys' projection
    borrowed     keys and values are those in the cache of an earlier layer
    """

    heads: Heads
    rotary_dim: int
    keys_only: bool = False
    borrowed: bool = False
    bias: bool = False

    def operators(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]:
        heads = self.heads
        q_proj = parts.project("q_proj", x, heads.q_width, bias=self.bias)
        q_norm = parts.norm("q_norm", q_proj.result, shared=heads.num_heads)
        q = parts.tensor("q_rope", heads.q_width)
        if self.borrowed:
            turned = query_rope(parts, q_norm.result, heads.num_heads * self.rotary_dim)
            launches: tuple[Operator, ...] = (q_proj, q_norm, turned)
        else:
            launches = (q_proj, *self._own(parts, x, q_norm, q))
        key, value = (parts.cache(name, heads.kv_width, heads.mask) for name in ("k_cache", "v_cache"))
        if self.borrowed:
            key, value = replace(key, retained_rows=Form()), replace(value, retained_rows=Form())
        attended = scored(parts, heads, q, (key,), value)
        return (*launches, *attended, parts.project("o_proj", result(attended), x.width, bias=self.bias))

    def _own(self, parts: Parts, x: Tensor, q_norm: Norm, q: Tensor) -> tuple[Operator, ...]:
        heads = self.heads
        k_proj = parts.project("k_proj", x, heads.kv_width, bias=self.bias)
        v_proj = () if self.keys_only else (parts.project("v_proj", x, heads.kv_width, bias=self.bias),)
        k_norm = parts.norm("k_norm", k_proj.result, shared=heads.num_kv_heads)
        v_norm = _unweighted(parts, "v_norm", result((k_proj, *v_proj)))
        v_norm = replace(v_norm, outputs=(parts.cached("v_cache", heads.kv_width),))
        rope = Rope(
            name="rope",
            inputs=(q_norm.result, k_norm.result),
            outputs=(q, parts.cached("k_cache", heads.kv_width)),
            heads=heads,
            rotary_dim=self.rotary_dim,
        )
        return (k_proj, *v_proj, q_norm, k_norm, v_norm, rope)


class OwnEmbeddings(Elementwise):
    """act(gate) times a layer's own part of the embeddings that were made for all layers."""

    def reads(self) -> tuple[Tensor, ...]:
        gate, of_all = self.inputs
        return (gate, replace(of_all, width=gate.width))


@frozen(kw_only=True)
class Gemma4Layer(Layer):
    """A layer whose MLP has experts beside it, or that adds embeddings of its own at its end.

    moe      experts of what the MLP has too; norms follow each of the two, and their sum
    added    width of the layer's own embeddings; 0 where there are none
    of_all   width of those of all layers
    """

    moe: Experts | None = None
    added: int = 0
    of_all: int = 0
    act: str = "gelu_tanh"

    def operators(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]:
        if self.mixer is None or self.feed_forward is None:
            raise RuntimeError("a layer of Gemma 4 without attention or without an MLP")
        launches = self._branch(parts, x, self.mixer, "attn")
        if self.moe:
            launches = (*launches, *self._mixture(parts, result(launches), self.moe))
        else:
            launches = (*launches, *self._branch(parts, result(launches), self.feed_forward, "mlp"))
        return (*launches, *self._own_embeddings(parts, result(launches))) if self.added else launches

    def _mixture(self, parts: Parts, x: Tensor, moe: Experts) -> tuple[Operator, ...]:
        if self.feed_forward is None:
            raise RuntimeError("experts of Gemma 4 without an MLP beside them")
        mlp_norm = parts.norm("mlp_norm", x)
        mlp = self.feed_forward.operators(parts, mlp_norm.result)
        mlp_after = parts.norm("mlp_post_norm_1", result(mlp))
        router_norm, experts_norm = (parts.norm(name, x) for name in ("router_norm", "experts_norm"))
        experts = moe.operators(parts, experts_norm.result, router_input=router_norm.result)
        scale = (parts.weight("per_expert_scale", moe.experts),)
        experts = tuple(replace(op, weights=scale) if isinstance(op, Route) else op for op in experts)
        experts_after = parts.norm("experts_post_norm", result(experts))
        sum_add = parts.add("experts_add", mlp_after.result, experts_after.result)
        after = parts.norm("mlp_post_norm", sum_add.result)
        add = parts.add("mlp_add", x, after.result)
        return (mlp_norm, *mlp, mlp_after, router_norm, experts_norm, *experts, experts_after, sum_add, after, add)

    def _own_embeddings(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]:
        gate = parts.project("per_layer_input_gate", x, self.added)
        inputs = (*gate.outputs, parts.tensor(_PER_LAYER, self.of_all))
        out = parts.tensor("per_layer_act", self.added)
        ops = ACTIVATION_OPS[self.act] + 1
        act = OwnEmbeddings(name=out.name, inputs=inputs, outputs=(out,), ops_per_element=ops)
        projection = parts.project("per_layer_projection", out, x.width)
        norm = parts.norm("per_layer_norm", projection.result)
        return (gate, act, projection, norm, parts.add("per_layer_add", x, norm.result))


@frozen(kw_only=True)
class Gemma4Decoder(Decoder):
    """A decoder that also makes the embeddings of all its layers before the first: `added` wide for each."""

    added: int = 0
    added_vocab: int = 0

    def _blocks(self, parts: Parts) -> list[Block]:
        blocks = super()._blocks(parts)
        if not self.added:
            return blocks
        return [self._per_layer(parts), *(replace(block, side_inputs=(_PER_LAYER,)) for block in blocks)]

    def _per_layer(self, parts: Parts) -> Block:
        """The per-layer embeddings of tokens plus a projection of their first embedding."""
        layers = len(self.layers)
        width = layers * self.added
        looked_up = parts.embed("embed_tokens_per_layer", {"embed_tokens_per_layer.weight": self.added_vocab}, width)
        projection = parts.project("per_layer_model_projection", parts.tensor(EMBEDDED, self.hidden), width)
        norm = parts.norm("per_layer_projection_norm", projection.result, shared=layers)
        scaled_sum = replace(parts.add(_PER_LAYER, norm.result, looked_up.result), ops_per_element=2)  # and scaled
        operators = (looked_up, projection, norm, scaled_sum)
        return Block(name="per_layer", operators=operators, input="", output=_PER_LAYER, side_inputs=(EMBEDDED,))


def _unweighted(parts: Parts, name: str, x: Tensor) -> Norm:
    """RMSNorm without a weight."""
    return replace(parts.norm(name, x, kind=NormKind.PLAIN), ops_per_element=3)


@architecture("gemma4_text")
def build(config: Section, fmt: Format) -> Graph:
    """Gemma 4's language model: sliding-window layers, wider heads in global ones, and shared KV caches."""
    return _decoder(filled(config, TEXT_CLASSES["Gemma4TextConfig"])).graph(fmt)


@architecture("gemma4_unified_text")
def build_unified(config: Section, fmt: Format) -> Graph:
    """Gemma 4 12B: layers have no embeddings of their own."""
    return _decoder(filled(config, _UNIFIED)).graph(fmt)


@architecture("gemma4")
def build_text_of(config: Section, fmt: Format) -> Graph:
    """The decoder of a Gemma 4 with vision and audio: without those towers."""
    config.ignore(*_MEDIA.split())
    return build(_text_of(config), fmt)


@architecture("gemma4_unified")
def build_text_of_unified(config: Section, fmt: Format) -> Graph:
    """Text part alone, without projections of patches and audio."""
    config.ignore(*_MEDIA.split())
    return build_unified(_text_of(config), fmt)


def _text_of(config: Section) -> Section:
    """Section text_config; its head is tied as the config, or else text_config, has it."""
    text = config.section("text_config")
    return filled(text, instead={"tie_word_embeddings": tied_of(config, filled(text, {"tie_word_embeddings": True}))})


def _decoder(config: Section) -> Gemma4Decoder:
    added = config.integer("hidden_size_per_layer_input", 256, least=0)
    kinds = kinds_of_layers(config, pattern=6)
    layers = [
        _layer(config, slides=slides, borrows=borrows, added=added, kv_heads=kv_heads, head_dim=head_dim)
        for (slides, borrows), kv_heads, head_dim in zip(kinds, *_shapes(config, kinds), strict=True)
    ]
    config.ignore(*_IGNORED.split())
    return Gemma4Decoder(
        vocab=config.integer("vocab_size"),
        hidden=config.integer("hidden_size"),
        layers=layers,
        tied=config.flag("tie_word_embeddings", default=True),
        added=added,
        added_vocab=config.integer("vocab_size_per_layer_input", 262144),
    )


def kinds_of_layers(config: Section, *, pattern: int) -> list[tuple[bool, bool]]:
    """(has a window, reads the cache of an earlier layer of its kind) of each layer."""
    sliding = sliding_layers(config, pattern=pattern)
    if sliding[-1]:
        raise config.error("layer_types", "must end with full_attention")
    first = len(sliding) - config.count("num_kv_shared_layers", 0, least=0)
    if set(sliding[: max(first, 0)]) != set(sliding):
        raise config.error("num_kv_shared_layers", "must leave a layer of each kind with a cache of its own")
    return [(slides, index >= first) for index, slides in enumerate(sliding)]


def _shapes(config: Section, kinds: Sequence[tuple[bool, bool]]) -> tuple[list[int], list[int]]:
    """Key-value heads of each layer and their width: transformers from 5.15 writes per_layer_config in the place of
    global_head_dim and num_global_key_value_heads.
    """
    if config.get("per_layer_config") is not None:
        return of_each_layer(config, "num_key_value_heads"), of_each_layer(config, "head_dim")
    head_dim, kv_heads = config.integer("head_dim"), config.integer("num_key_value_heads")
    wide, global_kv_heads = config.integer("global_head_dim", _GLOBAL_HEAD_DIM), kv_heads
    if config.flag("attention_k_eq_v", default=False):
        global_kv_heads = config.integer("num_global_key_value_heads", kv_heads)
    return [kv_heads if slides else global_kv_heads for slides, _ in kinds], [
        head_dim if slides else wide for slides, _ in kinds
    ]


def _layer(config: Section, *, slides: bool, borrows: bool, added: int, kv_heads: int, head_dim: int) -> Gemma4Layer:
    mlp = gated_mlp(config, key="hidden_activation", act="gelu_pytorch_tanh")
    if borrows and config.flag("use_double_wide_mlp", default=False):
        mlp = replace(mlp, inner=2 * mlp.inner)
    kind = "local" if slides else "global"
    return Gemma4Layer(
        mixer=_attention(config, slides=slides, borrows=borrows, kv_heads=kv_heads, head_dim=head_dim),
        feed_forward=mlp,
        residual=Residual.SANDWICH,
        name=f"{kind}_borrowing" if borrows else kind,
        moe=_experts(config, mlp),
        added=added,
        of_all=added * config.count("num_hidden_layers"),
        act=mlp.act,
    )


def _attention(config: Section, *, slides: bool, borrows: bool, kv_heads: int, head_dim: int) -> Gemma4Attention:
    count, keys_only = config.integer("num_attention_heads"), config.flag("attention_k_eq_v", default=False)
    mask = Causal(config.integer("sliding_window", 512)) if slides else Causal()
    rotary_dim = head_dim if slides else int(head_dim * _rotated(config))
    if count % kv_heads:
        raise config.error("num_attention_heads", f"must be a multiple of the {kv_heads} key-value heads; got {count}")
    return Gemma4Attention(
        heads=Heads(num_heads=count, num_kv_heads=kv_heads, head_dim=head_dim, mask=mask),
        rotary_dim=rotary_dim,
        keys_only=keys_only and not slides,
        borrowed=borrows,
        bias=config.flag("attention_bias", default=False),
    )


def _rotated(config: Section) -> float:
    if config.get("rope_parameters") is None:
        return _ROTATED
    rope = config.section("rope_parameters").section("full_attention")
    share = rope.number("partial_rotary_factor", 1.0)
    if not 0 < share <= 1:
        raise rope.error("partial_rotary_factor", f"must be a share above 0 and up to 1; got {share:g}")
    return share


def _experts(config: Section, mlp: Mlp) -> Experts | None:
    if not config.flag("enable_moe_block", default=False):
        return None
    chosen = checked_top_k(config, "top_k_experts", "num_experts", config.integer("top_k_experts"))
    inner = config.integer(config.first("moe_intermediate_size", "expert_intermediate_size"))
    return Experts(experts=config.integer("num_experts"), chosen=chosen, inner=inner, act=mlp.act)
