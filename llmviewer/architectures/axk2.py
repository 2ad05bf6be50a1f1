"""A.X K2: DeepSeek-V3.2 with low-rank gates after norms, and with sigmoid gates on the output of attention, projected
from the query latent before and after its norm.
"""

from __future__ import annotations

from dataclasses import replace

from ..documents import Section
from ..graph import Graph
from ..operators.base import Operator, Tensor
from ..operators.elementwise import Elementwise
from ..precision import Format
from ..records import frozen
from . import architecture
from .blocks.attention import LatentAttention
from .blocks.decoder import FeedForward, Layer, Mixer
from .blocks.fields import decoder
from .blocks.moe import dense, experts_beside_shared, ignore_router_fields, latent_attention, sparse_layers
from .blocks.parts import NormKind, Parts, result
from .deepseek import check_sparse, published_index

_SCALED = 5  # OPs of an element for a sigmoid and a product


class GatedLatentAttention(LatentAttention):
    """Latent attention whose queries come with gates of the result, from their latent before and after its norm."""

    def _queries(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]:
        down = parts.project("q_a_proj", x, self.q_rank, bias=self.bias)
        norm = parts.norm("q_a_norm", down.result, kind=NormKind.RMS)
        joined_tensor = parts.tensor("q_a_norm", 2 * self.q_rank)  # what was normalized, and beside it what it was
        norm = replace(norm, outputs=(joined_tensor,), ops_per_element=norm.ops_per_element / 2)
        outputs = (parts.tensor("q_b_proj", self.heads.q_width), self._gate(parts))
        return (down, norm, parts.linear("q_gate_proj", joined_tensor, *outputs))

    def _gate(self, parts: Parts) -> Tensor:
        return parts.tensor("attn_gate", self.num_heads * self.value_dim)

    def _attended(self, parts: Parts, q: Tensor, latent: Tensor, *rotated: Tensor) -> tuple[Operator, ...]:
        operators = super()._attended(parts, q, latent, *rotated)
        return (*operators, _scaled("gated_attention", result(operators), self._gate(parts)))


@frozen(kw_only=True)
class Gated:
    """`run` of x scaled by the sigmoids of what two products of low `rank` make of it."""

    run: Mixer | FeedForward
    rank: int
    name: str

    def operators(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]:
        down = parts.project(f"{self.name}_gate_down", x, self.rank)
        act = parts.activate(f"{self.name}_gate_act", "silu", down.result)
        up_proj = parts.project(f"{self.name}_gate_up", act.result, x.width)
        scaled = _scaled(f"{self.name}_gated_norm", x, up_proj.result)
        return (down, act, up_proj, scaled, *self.run.operators(parts, scaled.result))


def _scaled(name: str, x: Tensor, gate: Tensor) -> Elementwise:
    return Elementwise(name=name, inputs=(x, gate), outputs=(replace(x, name=name),), ops_per_element=_SCALED)


@architecture("axk2")
def build(config: Section, fmt: Format) -> Graph:
    """A.X K2: DeepSeek-V3.2's sparse latent attention, with a low-rank gate after the norms of every branch."""
    ignore_router_fields(config, "rope_interleave")
    # Keys and values are expanded for every head, and heads are as wide as their parts.
    config.ignore("num_key_value_heads", "head_dim", "qk_head_dim")
    check_sparse(config)
    rank = config.integer("gated_norm_rank", 16)
    plain = latent_attention(
        config, GatedLatentAttention, q_rank=384, kv_rank=128, nope_dim=64, rope_dim=32, value_dim=64
    )
    attention = Gated(run=replace(plain, index=published_index(config, heads=16)), rank=rank, name="attn")
    moe = experts_beside_shared(config, "n_routed_experts", default=1)
    networks: dict[bool, FeedForward] = {True: Gated(run=moe, rank=rank, name="mlp"), False: dense(config)}
    layers = [
        Layer(mixer=attention, feed_forward=networks[sparse], name="moe" if sparse else "dense")
        for sparse in sparse_layers(config, default=1)
    ]
    return decoder(config, layers).graph(fmt)
