"""JetMoE: MLP experts, and attention experts with query and output projections of their own over shared keys and
values (arXiv:2404.07413, section 2).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ..documents import Section
from ..forms import TOKENS
from ..graph import Graph
from ..operators.attention import Heads
from ..operators.base import Operator, Tensor
from ..operators.elementwise import Elementwise, Rope, Route
from ..operators.linear import ChosenLinear, Router
from ..precision import Format
from ..records import frozen
from . import architecture
from .blocks.attention import scored
from .blocks.decoder import Layer
from .blocks.feed_forward import BiasedExperts, experts_linear
from .blocks.fields import decoder
from .blocks.moe import checked_top_k, ignore_router_fields
from .blocks.parts import Parts, activation, result

_IGNORED: Final = "num_attention_heads aux_loss_coef glu rotary_percent bias applied_layer_norm moe_num_experts"


@frozen(kw_only=True)
class MixtureOfAttention:
    """Attention whose heads are those of the experts that a token chooses; leaves "attn_combine". Of several devices
    each has all of it.

    heads  of all experts that a token chooses, which share as many keys as one of them has heads
    """

    heads: Heads
    experts: int
    chosen: int

    def operators(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]:
        heads, width = self.heads, self.heads.kv_width
        router = parts.project("attn_router", x, self.experts, kind=Router)
        weights = parts.tensor("attn_route", self.chosen)
        route = Route(name="attn_route", inputs=router.outputs, outputs=(weights,), top_k=self.chosen)
        copies = self._moved((x, weights), self._copies("attn_permute", x))
        launches = self._linear(parts, "expert_q_proj", copies.result, width)
        q, k = parts.tensor("q", heads.q_width), parts.tensor("k", width)
        gather = self._moved(launches.outputs, q)
        kv = parts.linear("kv_proj", x, k, parts.cached("v_cache", width))
        turned = (parts.tensor("q_rope", heads.q_width), parts.cached("k_cache", width))
        rope = Rope(name="rope", inputs=(q, k), outputs=turned, heads=heads, rotary_dim=heads.head_dim)
        attended = scored(parts, heads, turned[0], (parts.cache("k_cache", width),), parts.cache("v_cache", width))
        scatter = self._moved((result(attended), weights), self._copies("attn_scatter", k))
        back = self._linear(parts, "expert_o_proj", scatter.result, x.width)
        combine = self._moved((*back.outputs, weights), parts.tensor("attn_combine", x.width), ops=2 * self.chosen)
        return (router, route, copies, launches, gather, kv, rope, *attended, scatter, back, biased(parts, combine))

    def _moved(self, inputs: tuple[Tensor, ...], out: Tensor, *, ops: int = 0) -> Elementwise:
        """Rows of experts from those of tokens, or back."""
        return Elementwise(name=out.name, inputs=inputs, outputs=(out,), ops_per_element=ops)

    def _copies(self, name: str, x: Tensor) -> Tensor:
        return replace(x, name=name, rows=self.chosen * TOKENS)

    def _linear(self, parts: Parts, name: str, x: Tensor, width: int) -> Operator:
        return experts_linear(parts, name, x, width, experts=self.experts, chosen=self.chosen, kind=ChosenLinear)


def biased(parts: Parts, op: Operator) -> Operator:
    """The projection `op` with a bias vector as its only weight."""
    return replace(op, weights=(parts.weight(f"{op.name}.bias", op.result.width),))


@architecture("jetmoe")
def build(config: Section, fmt: Format) -> Graph:
    """JetMoE: mixtures of attention heads and of MLPs, with keys and values shared by all experts."""
    ignore_router_fields(config, *_IGNORED.split())
    count = config.integer("num_local_experts", 8)
    chosen = checked_top_k(
        config, "num_experts_per_tok", "num_local_experts", config.integer("num_experts_per_tok", 2), 8
    )
    kv_heads = config.integer("num_key_value_heads", 16)
    heads = Heads(
        num_heads=chosen * kv_heads,
        num_kv_heads=kv_heads,
        head_dim=config.integer(config.first("kv_channels", "head_dim"), 128),
    )
    layer = Layer(
        mixer=MixtureOfAttention(heads=heads, experts=count, chosen=chosen),
        feed_forward=BiasedExperts(
            experts=count,
            chosen=chosen,
            inner=config.integer("intermediate_size", 5632),
            act=activation(config, "activation_function", "silu"),
        ),
    )
    return decoder(config, [layer] * config.count("num_hidden_layers", 12), tied=True).graph(fmt)
