"""Llama-Nemotron (DeciLM): LLaMA whose layers were pruned individually by architecture search (arXiv:2411.19146).

A layer may have no attention, or a matrix in its place, and an MLP of any width.
"""

from __future__ import annotations

from ..documents import Section
from ..graph import Graph
from ..operators.base import Operator, Tensor
from ..precision import Format
from ..records import frozen
from . import architecture
from .blocks.attention import SelfAttention
from .blocks.decoder import FeedForward, Layer, Mixer
from .blocks.feed_forward import Mlp
from .blocks.fields import decoder, require_false
from .blocks.moe import for_each_layer
from .blocks.parts import Parts, activation, heads_of

_ROUND = 256  # widths of MLPs are multiples of it


@architecture("nemotron-nas", "deci")
def build(config: Section, fmt: Format) -> Graph:
    """Layers by `block_configs`; fields that all layers share are outside of it."""
    config.ignore("intermediate_size", "num_key_value_heads", "mlp_bias")
    require_false(config, "attention_bias", "biases of this attention are not modelled")
    blocks = config.sections("block_configs")
    for_each_layer(config, "block_configs", blocks)
    layers = (_layer(config, block) for block in blocks)
    return decoder(config, [one for one in layers if one.mixer or one.feed_forward]).graph(fmt)  # others do nothing


@frozen(kw_only=True)
class Matrix:
    """A matrix in the place of a mixer or a network; leaves `name`."""

    name: str

    def operators(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]:
        return (parts.project(self.name, x, x.width),)


def _layer(config: Section, block: Section) -> Layer:
    """Named after its attention and the width of its MLP."""
    mixer, network = _mixer(config, block.section("attention")), _network(config, block.section("ffn"))
    attention = "full" if isinstance(mixer, SelfAttention) else "linear" if mixer else "none"
    width = network.inner if isinstance(network, Mlp) else "linear" if network else "none"
    return Layer(mixer=mixer, feed_forward=network, name=f"{attention}_{width}")


def _mixer(config: Section, attention: Section) -> Mixer | None:
    for key in (
        "window_length",
        "num_sink_tokens",
        "sparsify",
        "unshifted_sink",
        "use_prefill_window_in_sink_attention",
    ):
        if attention.get(key):
            raise attention.error(key, f"is not modelled; got {attention.get(key)!r}")
    if attention.flag("no_op", default=False):
        return None
    if attention.flag("replace_with_linear", default=False):
        return Matrix(name="linear_attn")
    heads = config.integer("num_attention_heads")
    group = attention.integer("n_heads_in_group")
    if heads % group:
        raise attention.error("n_heads_in_group", f"must divide the {heads} heads; got {group}")
    layer_heads = heads_of(config, num_kv_heads=heads // group)
    return SelfAttention(heads=layer_heads, rotary_dim=layer_heads.head_dim)


def _network(config: Section, ffn: Section) -> FeedForward | None:
    if ffn.get("sparsify"):
        raise ffn.error("sparsify", f"is not modelled; got {ffn.get('sparsify')!r}")
    if ffn.flag("no_op", default=False):
        return None
    if ffn.flag("replace_with_linear", default=False):
        return Matrix(name="linear_mlp")
    inner = int(2 * ffn.number("ffn_mult") * config.integer("hidden_size") / 3)
    act = activation(config, "hidden_act", "silu")
    return Mlp(inner=-(-inner // _ROUND) * _ROUND, act=act, gated=True)
