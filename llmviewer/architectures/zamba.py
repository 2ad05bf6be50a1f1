"""Zamba and Zamba2: Mamba or Mamba-2 in every layer, some preceded by a transformer block with shared weights
(arXiv:2405.16712, arXiv:2411.15242).

The block sees the layer's input beside the embedding, twice as wide as either; what it makes is added to the input of
the layer's Mamba and not to the residual stream. Layers of Zamba2 that
share a block have low-rank adapters of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil

from ..documents import Section
from ..graph import Graph
from ..operators.attention import Heads
from ..operators.base import Operator, Tensor
from ..operators.elementwise import Add, Elementwise, Rope
from ..operators.linear import Linear
from ..precision import Format
from ..records import frozen
from . import architecture
from .blocks.attention import scored
from .blocks.decoder import Decoder, Layer, Mixer
from .blocks.feed_forward import Mlp
from .blocks.parts import Parts, activation, result, reused_weight
from .blocks.state_space import SILU, Mamba, Mamba2

_MAMBA = ("mamba", "linear_attention")
_HYBRID = "hybrid"
_EMBEDDED = "embed_tokens"  # left by the block before the layers
_IGNORED = """
    attention_hidden_size attn_layer_offset attn_layer_period ffn_hidden_size hybrid_layer_ids
    kv_channels mamba_headdim use_associative_scan num_logits_to_keep num_query_groups
    time_step_floor time_step_limit time_step_max time_step_min use_conv_bias use_long_context use_mamba_kernels
    use_mem_eff_path conv_kernel d_model d_state expand
"""


@frozen(kw_only=True)
class SharedBlock:
    """Attention and a gated MLP without residuals, on a layer's input beside the embedding; leaves "linear".

    rank       of the adapters of the MLP, and of queries, keys and values where `adapted`; 0 where there are none
    reused     its parameters are those of an earlier layer, but for the adapters and the last projection
    """

    heads: Heads
    inner: int
    act: str
    rank: int = 0
    adapted: bool = False
    rotated: bool = False
    bias: bool = False
    reused: bool = False

    def operators(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]:
        embedded = parts.tensor(_EMBEDDED, x.width)
        wide = parts.tensor("concat", 2 * x.width)
        concat = Elementwise(name="concat", inputs=(x, embedded), outputs=(wide,), ops_per_element=0)
        norm = parts.norm("attn_norm", wide)
        attention = self._attention(parts, norm.result, x.width)
        mlp_norm = parts.norm("mlp_norm", result(attention))
        mlp = self._mlp(parts, mlp_norm.result)
        shared = (concat, norm, *attention, mlp_norm, *mlp)
        if self.reused:
            shared = tuple(op if "adapter" in op.name else op.with_weights(reused_weight) for op in shared)
        return (*shared, parts.project("linear", result(shared), x.width))

    def _attention(self, parts: Parts, x: Tensor, width: int) -> tuple[Operator, ...]:
        heads = self.heads
        q, v = parts.tensor("q", heads.q_width), parts.cached("v_cache", heads.kv_width)
        k = parts.tensor("k", heads.kv_width) if self.rotated else parts.cached("k_cache", heads.kv_width)
        operators = [op for name, out in (("q", q), ("k", k), ("v", v)) for op in self._projected(parts, name, x, out)]
        if self.rotated:
            outputs = (parts.tensor("q_rope", heads.q_width), parts.cached("k_cache", heads.kv_width))
            operators.append(Rope(name="rope", inputs=(q, k), outputs=outputs, heads=heads, rotary_dim=heads.head_dim))
            q = outputs[0]
        key, value = (parts.cache(name, heads.kv_width, heads.mask) for name in ("k_cache", "v_cache"))
        attended = scored(parts, heads, q, (key,), value)
        return (*operators, *attended, parts.project("o_proj", result(attended), width))

    def _projected(self, parts: Parts, name: str, x: Tensor, out: Tensor) -> tuple[Operator, ...]:
        if not self.adapted:
            return (parts.linear(f"{name}_proj", x, out),)
        plain = parts.project(f"{name}_proj", x, out.width)
        return self._with_adapter(parts, plain, name, x, out)

    def _mlp(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]:
        if not self.rank:
            return Mlp(inner=self.inner, act=self.act, gated=True, bias=self.bias).operators(parts, x)
        plain = parts.project("gate_up_proj", x, 2 * self.inner, bias=self.bias)
        gate_up = self._with_adapter(parts, plain, "gate_up", x, parts.tensor("gate_up", 2 * self.inner))
        halved = tuple(replace(result(gate_up), width=self.inner, name=name) for name in ("mlp_gate", "mlp_up"))
        *before, add = gate_up
        gate_up = (*before, Add(name=add.name, inputs=add.inputs, outputs=halved, ops_per_element=2))  # of each half
        mid = parts.activate("mlp_act", self.act, *halved)
        return (*gate_up, mid, parts.project("down_proj", mid.result, x.width, bias=self.bias))

    def _with_adapter(self, parts: Parts, plain: Linear, name: str, x: Tensor, out: Tensor) -> tuple[Operator, ...]:
        """The result of `plain` with that of a low-rank pair of x added."""
        down = parts.project(f"{name}_adapter_down", x, self.rank)
        up_proj = parts.project(f"{name}_adapter_up", down.result, out.width)
        add = parts.add(f"{name}_add", plain.result, up_proj.result)
        return (plain, down, up_proj, replace(add, outputs=(out,)))


@frozen(kw_only=True)
class HybridLayer(Layer):
    """A layer whose Mamba sees its input with a shared block's result added; the residual stream does without."""

    shared: SharedBlock
    given: tuple[str, ...] = (_EMBEDDED,)

    def operators(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]:
        if self.mixer is None:
            raise RuntimeError("a hybrid layer without Mamba")
        shared = self.shared.operators(parts, x)
        add = parts.add("shared_add", x, result(shared))
        norm = parts.norm("mamba_norm", add.result)
        launches = self.mixer.operators(parts, norm.result)
        return (*shared, add, norm, *launches, parts.add("mamba_add", x, result(launches)))


@architecture("zamba2")
def build(config: Section, fmt: Format) -> Graph:
    """Zamba2: Mamba-2 layers and shared transformer blocks with low-rank adapters per layer."""
    hidden = config.integer("hidden_size", 2560)
    shared = replace(
        _shared(config, hidden, heads=32),
        rank=config.integer("adapter_rank", 128),
        adapted=config.flag("use_shared_attention_adapter", default=False),
        rotated=config.flag("use_mem_rope", default=False),
        bias=config.flag("add_bias_linear", default=False),
    )
    if not config.texts("layers_block_type"):
        raise config.error("layers_block_type", "is missing; it says which layers have a shared block")
    kinds, blocks = _kinds(config, config.count("num_hidden_layers", 54)), config.count("num_mem_blocks", 1)
    return _decoder(config, hidden, _mamba2(config, hidden), shared, kinds, blocks=blocks).graph(fmt)


@architecture("zamba")
def build_zamba(config: Section, fmt: Format) -> Graph:
    """Zamba: a shared block, whose attention has no positions; Mamba heads with separate steps."""
    hidden, layers = config.integer("hidden_size", 3712), config.count("num_hidden_layers", 76)
    shared = _shared(config, hidden, heads=16)
    kinds = _kinds(config, layers) if config.texts("layers_block_type") else _pattern(config, layers)
    return _decoder(config, hidden, _mamba(config, hidden), shared, kinds).graph(fmt)


def _decoder(
    config: Section, hidden: int, mamba: Mixer, first: SharedBlock, kinds: Sequence[str], *, blocks: int = 1
) -> Decoder:
    """`blocks` shared blocks like `first`, each of which layers later take again."""
    reused_layer = replace(first, reused=True)
    layers: list[Layer] = []
    for index, kind in enumerate(kinds):
        if kind != _HYBRID:
            layers.append(Layer(mixer=mamba, feed_forward=None, name="mamba"))
            continue
        reused = kinds[:index].count(_HYBRID) >= blocks
        name = "hybrid_again" if reused else "hybrid"
        layers.append(HybridLayer(mixer=mamba, feed_forward=None, shared=reused_layer if reused else first, name=name))
    config.choice("hidden_mamba_act", SILU, "silu")
    config.ignore(*_IGNORED.split())
    return Decoder(
        vocab=config.integer("vocab_size", 32000),
        hidden=hidden,
        layers=layers,
        tied=config.flag("tie_word_embeddings", default=True),
    )


def _pattern(config: Section, layers: int) -> tuple[str, ...]:
    """The third layer has the block, and of those after it every so manieth."""
    period, offset = config.integer("attn_layer_period", 6), config.integer("attn_layer_offset", 4, least=0)
    later = (_HYBRID if index % period == offset else _MAMBA[0] for index in range(layers - 3))
    return (_MAMBA[0], _MAMBA[0], _HYBRID, *later)[:layers]


def _kinds(config: Section, layers: int) -> tuple[str, ...]:
    """Kind of each layer."""
    kinds = config.texts("layers_block_type")
    unknown = [kind for kind in kinds if kind not in (*_MAMBA, _HYBRID)]
    if len(kinds) != layers or unknown:
        actual = f"{len(kinds)} of them" if not unknown else repr(unknown[0])
        raise config.error("layers_block_type", f"must be {layers} of {_MAMBA[0]} and {_HYBRID}; got {actual}")
    return kinds


def _mamba(config: Section, hidden: int) -> Mamba:
    inner, heads = _inner(config, hidden, heads=2)
    rank = config.get("mamba_dt_rank")
    return Mamba(
        inner=inner,
        state=config.integer("mamba_d_state", 16),
        taps=config.integer("mamba_d_conv", 4),
        step_rank=ceil(hidden / 16) if rank in (None, "auto") else config.integer("mamba_dt_rank"),
        conv_bias=config.flag("mamba_conv_bias", default=True),
        bias=config.flag("mamba_proj_bias", default=False),
        heads=heads,
    )


def _inner(config: Section, hidden: int, *, heads: int) -> tuple[int, int]:
    """The width of Mamba, and its heads."""
    inner, heads = config.integer("mamba_expand", 2) * hidden, config.integer("n_mamba_heads", heads)
    if inner % heads:
        raise config.error("n_mamba_heads", f"must divide the inner width {inner}; got {heads}")
    return inner, heads


def _mamba2(config: Section, hidden: int) -> Mamba2:
    inner, heads = _inner(config, hidden, heads=8)
    return Mamba2(
        inner=inner,
        heads=heads,
        head_dim=inner // heads,
        state=config.integer("mamba_d_state", 64),
        groups=config.integer("mamba_ngroups", 1),
        taps=config.integer("mamba_d_conv", 4),
        chunk=config.integer("chunk_size", 256),
        bias=config.flag("add_bias_linear", default=False),
    )


def _shared(config: Section, hidden: int, *, heads: int) -> SharedBlock:
    count = config.integer("num_attention_heads", heads)
    kv_heads = config.integer("num_key_value_heads", count)
    key = config.first("attention_head_dim", "head_dim")
    if (2 * hidden % count and config.get(key) is None) or count % kv_heads:
        raise config.error(
            "num_attention_heads",
            f"must divide twice the hidden size {hidden} and be a multiple of {kv_heads} key-value heads; got {count}",
        )
    return SharedBlock(
        heads=Heads(num_heads=count, num_kv_heads=kv_heads, head_dim=config.integer(key, 2 * hidden // count)),
        inner=config.integer("intermediate_size", 4 * hidden),
        act=activation(config, "hidden_act", "gelu"),
    )
