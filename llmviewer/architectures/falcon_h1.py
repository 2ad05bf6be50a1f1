"""Falcon-H1: attention and Mamba-2 side by side in every layer, on the same norm (arXiv:2507.22448)."""

from __future__ import annotations

from dataclasses import dataclass

from ..documents import Section
from ..graph import Graph
from ..operators.base import Operator, Tensor
from ..precision import Format
from . import architecture
from ._attention import SelfAttention
from ._decoder import Layer
from ._fields import attention, decoder, gated_mlp, grouped_heads
from ._mamba2_fields import mamba2
from ._parts import Parts, result
from ._state_space import Mamba2

# Multipliers are constants that fold into the weights next to them.
_COSTLESS = """
    attention_in_multiplier attention_out_multiplier embedding_multiplier key_multiplier lm_head_multiplier
    mlp_multipliers ssm_in_multiplier ssm_multipliers ssm_out_multiplier mlp_expansion_factor num_logits_to_keep
    time_step_rank
"""


@dataclass(frozen=True, kw_only=True)
class SideBySide:
    """Two mixers of the same x, their results added; leaves "mixers_add"."""

    mamba: Mamba2
    attention: SelfAttention

    def operators(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]:
        mamba, attention = self.mamba.operators(parts, x), self.attention.operators(parts, x)
        return (*mamba, *attention, parts.add("mixers_add", result(mamba), result(attention)))


@architecture("falcon_h1")
def build(config: Section, fmt: Format) -> Graph:
    if config.get("attn_layer_indices") is not None:
        raise config.error("attn_layer_indices", "must be null: every layer attends")
    if not config.flag("mamba_use_mlp", default=True):
        raise config.error("mamba_use_mlp", "must be true: every layer has an MLP")
    if config.flag("projectors_bias", default=False) != config.flag("mamba_proj_bias", default=False):
        raise config.error("projectors_bias", "must be as mamba_proj_bias: a bias of one projection is not modelled")
    inner = 0 if config.get("mamba_d_ssm") is None else config.integer("mamba_d_ssm")
    if inner:
        config.costless("mamba_expand")
    mamba = mamba2(config, inner=inner, norm=config.flag("mamba_rms_norm", default=False))
    mixer = SideBySide(mamba=mamba, attention=attention(config, grouped_heads(config, kv_heads=8)))
    layer = Layer(mixer=mixer, feed_forward=gated_mlp(config))
    config.costless(*_COSTLESS.split())
    return decoder(config, layer).graph(fmt)
