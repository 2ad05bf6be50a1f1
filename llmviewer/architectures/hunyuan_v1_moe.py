"""Hunyuan-A13B: every layer has experts and a shared one, queries and keys have norms.

Fields that may differ by layer are numbers, or lists with one for each.
"""

from __future__ import annotations

from ..documents import Section
from ..graph import Graph
from ..precision import Format
from . import architecture
from ._decoder import Layer
from ._feed_forward import Experts, Mlp
from ._fields import attention, decoder
from ._moe import at_most, costless, for_each_layer, integers
from ._parts import NormKind, activation


@architecture("hunyuan_v1_moe")
def build(config: Section, fmt: Format) -> Graph:
    costless(config, "eod_token_id", "attention_head_dim", "use_mixed_mlp_moe")
    for flag in ("use_cla", "use_mla", "mlp_bias"):
        if config.flag(flag, default=False):
            raise config.error(flag, "must be false; it is not modelled")
    if config.integer("moe_layer_num_skipped", 0, least=0):
        raise config.error("moe_layer_num_skipped", "must be 0: every layer has experts")
    norm = NormKind.RMS if config.flag("use_qk_norm", default=True) else None
    mixer = attention(config, share=1, qk_norm=norm)
    act, count = activation(config, "hidden_act", "silu"), config.integer("num_experts")
    chosen, inner, shared = (
        _each(config, key, default)
        for key, default in (
            ("moe_topk", 1),
            ("moe_intermediate_size", config.integer("intermediate_size")),
            ("num_shared_expert", 1),
        )
    )
    layers = [
        Layer(
            mixer=mixer,
            feed_forward=Experts(
                experts=count,
                chosen=at_most(config, "moe_topk", "num_experts", chosen[index]),
                inner=inner[index],
                act=act,
                shared=Mlp(inner=shared[index] * config.integer("intermediate_size"), act=act, gated=True),
            ),
            name="moe",
        )
        for index in range(config.integer("num_hidden_layers"))
    ]
    return decoder(config, layers).graph(fmt)


def _each(config: Section, key: str, default: int) -> tuple[int, ...]:
    """The field of each layer."""
    if not isinstance(config.get(key), list):
        return (config.integer(key, default),) * config.integer("num_hidden_layers")
    numbers = integers(config, key)
    for_each_layer(config, key, numbers)
    if min(numbers) < 1:
        raise config.error(key, f"must be at least 1 in every layer; got {min(numbers)}")
    return numbers
