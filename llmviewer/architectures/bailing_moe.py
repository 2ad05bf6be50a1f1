"""Ling 1.5 and 2.0: grouped-query attention with query and key norms, half of each head rotary in 2.0, experts
(arXiv:2503.05139, arXiv:2510.22115); Ring-linear 2.0: the same with linear attention in most layers
(arXiv:2510.19338).

As inclusionAI/Ling-V2, models/modeling_bailing_moe_v2.py, has it, and SGLang, models/bailing_moe_linear.py. The
correction bias of the router is a buffer and no parameter.
"""

from __future__ import annotations

from dataclasses import replace

from ..documents import Section
from ..graph import Graph
from ..operators.attention import Heads
from ..operators.base import Operator, Tensor
from ..operators.elementwise import Rope
from ..precision import Format
from ..records import frozen
from . import architecture
from .blocks.attention import SelfAttention
from .blocks.decoder import FeedForward, Mixer, Prediction
from .blocks.feed_forward import Experts
from .blocks.fields import decoder, grouped_heads, rotary_dim, rotated
from .blocks.moe import crossed, dense, experts_beside_shared, first_dense, ignore_router_fields
from .blocks.parts import NormKind, Parts
from .blocks.recurrent import SIGMOID, linear_scan

_IGNORED = """
    score_function moe_router_enable_expert_bias router_dtype embedding_dropout output_dropout norm_head norm_softmax
    use_rmsnorm max_window_layers mtp_loss_scaling_factor use_sliding_window multi_gate rotary_type rope_interleave
    linear_backend
"""


@architecture("bailing_moe", "bailing_moe_v2")
def build(config: Section, fmt: Format) -> Graph:
    """Ling 1.5 and 2.0: grouped-query attention in every layer, dense layers first, then experts."""
    sparse = first_dense(config, default=0)
    return _graph(config, fmt, [False] * len(sparse), sparse)


@architecture("bailing_moe_linear", "bailing_moe_linear_v2")
def build_linear(config: Section, fmt: Format) -> Graph:
    """Ring-linear 2.0: Ling 2.0 with linear attention in most layers."""
    config.ignore("linear_rope")
    return _graph(config, fmt, linear_layers(config), first_dense(config, default=0))


def _graph(config: Section, fmt: Format, linear: list[bool], sparse: list[bool]) -> Graph:
    ignore_router_fields(config, *_IGNORED.split())
    mixers: dict[bool, tuple[str, Mixer]] = {False: ("full", attention(config))}
    if any(linear):
        mixers[True] = ("linear", NormedLightningAttention.of(config))
    networks: dict[bool, tuple[str, FeedForward]] = {
        True: ("moe", shared_experts(config)),
        False: ("dense", dense(config)),
    }
    *layers, prediction_layer = crossed(mixers, networks, zip([*linear, False], [*sparse, sparse[-1]], strict=True))
    prediction = Prediction.of(config, "num_nextn_predict_layers", prediction_layer)
    return decoder(config, layers, prediction=prediction).graph(fmt)


def attention(config: Section) -> SelfAttention:
    """Grouped-query attention of Ling: fused QKV, norms of heads and partial rotation where the config says so."""
    heads = grouped_heads(config)
    return SelfAttention(
        heads=heads,
        rotary_dim=rotated(config, heads.head_dim, rotary_dim(config, heads.head_dim)),
        fused_qkv=True,
        qkv_bias=config.flag("use_qkv_bias", default=False),
        o_bias=config.flag("use_bias", default=False),
        qk_norm=NormKind.RMS if config.flag("use_qk_norm", default=False) else None,
    )


def shared_experts(config: Section, default: int = 0) -> Experts:
    """Gated experts, with an MLP for all tokens as wide as several of them."""
    each = config.integer("moe_shared_expert_intermediate_size", config.integer("moe_intermediate_size"))
    return experts_beside_shared(config, "num_experts", default=default, each=each)


def linear_layers(config: Section) -> list[bool]:
    """Whether each layer has linear attention: all but the last of each group, and but those after the last group."""
    layers, group = config.count("num_hidden_layers"), config.integer("layer_group_size")
    return [(index + 1) % group != 0 and index < layers // group * group for index in range(layers)]


@frozen(kw_only=True)
class NormedLightningAttention:
    """Lightning attention whose queries and keys have norms of their heads and are rotated; gated after a norm of
    groups of heads. It leaves "o_proj".
    """

    heads: Heads
    rotary_dim: int
    groups: int
    bias: bool
    o_bias: bool
    qk_norm: bool
    chunk: int = 64  # of flash-linear-attention, which serves it

    @classmethod
    def of(cls, config: Section) -> NormedLightningAttention:
        """Linear attention of a config, with a key and value head for each query head."""
        if config.get("use_linear_silu") or config.get("linear_silu"):
            key = config.first("use_linear_silu", "linear_silu")
            raise config.error(key, "must be false: no published model of this architecture has it")
        count = config.integer("num_attention_heads")
        heads = replace(grouped_heads(config), num_kv_heads=count)
        groups = config.integer("group_norm_size", 1)
        if count % groups:
            raise config.error("group_norm_size", f"must divide the {count} heads; got {groups}")
        return cls(
            heads=heads,
            rotary_dim=rotated(config, heads.head_dim, rotary_dim(config, heads.head_dim)),
            groups=groups,
            bias=config.flag("use_qkv_bias", default=False) or config.flag("use_bias", default=False),
            o_bias=config.flag("use_bias", default=False),
            qk_norm=config.flag("use_qk_norm", default=False),
        )

    def operators(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]:
        heads, width = self.heads, self.heads.q_width
        q, k, v = (parts.tensor(f"{name}_proj", width) for name in "qkv")
        launches: tuple[Operator, ...] = (parts.linear("qkv_proj", x, q, k, v, bias=self.bias),)
        if self.qk_norm:
            norms = [parts.norm(f"{t.name[0]}_norm", t, shared=heads.num_heads) for t in (q, k)]
            launches, (q, k) = (*launches, *norms), (norm.result for norm in norms)
        turned = (parts.tensor("q_rope", width), parts.tensor("k_rope", width))
        rope = Rope(name="rope", inputs=(q, k), outputs=turned, heads=heads, rotary_dim=self.rotary_dim)
        scan = linear_scan(parts, (*turned, v), heads=heads.num_heads, key_dim=heads.head_dim, chunk=self.chunk)
        gate = parts.project("g_proj", x, width)
        norm = parts.elementwise(
            "g_norm",
            scan.result,
            gate.result,
            ops=4 + SIGMOID + 1,
            weights={"g_norm.weight": width},
            normed=width // self.groups,
        )
        return (*launches, rope, scan, gate, norm, parts.project("o_proj", norm.result, x.width, bias=self.o_bias))
