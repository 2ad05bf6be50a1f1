"""Snowflake Arctic: experts applied to the input of a layer, beside a dense MLP applied to the output of attention."""

from __future__ import annotations

from ..documents import Section
from ..graph import Graph
from ..operators.base import Operator, Tensor
from ..precision import Format
from ..records import frozen
from . import architecture
from .blocks.decoder import FeedForward, Layer
from .blocks.feed_forward import Experts, Mlp
from .blocks.fields import attention, decoder, grouped_heads, sliding_window
from .blocks.moe import dense, experts, ignore_router_fields
from .blocks.parts import Parts, result


@frozen(kw_only=True)
class DenseAndExperts(Layer):
    """a = x + attention(n(x)); a + mlp(n(a)) + experts(n(x)).

    dense  the MLP beside the experts
    """

    dense: Mlp

    def operators(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]:
        if self.mixer is None or self.feed_forward is None:
            raise RuntimeError("attention and experts are needed")
        attended = self._branch(parts, x, self.mixer, "attn")
        norm = parts.norm("residual_norm", result(attended))
        mlp = self.dense.operators(parts, norm.result, prefix="residual_", act_name="residual_act")
        moe_norm = parts.norm("mlp_norm", x)
        moe = self.feed_forward.operators(parts, moe_norm.result)
        add = parts.add("mlp_add", result(attended), result(mlp), result(moe))
        return (*attended, norm, *mlp, moe_norm, *moe, add)


@architecture("arctic")
def build(config: Section, fmt: Format) -> Graph:
    """Snowflake Arctic: dense layers alternate with routed experts, which stand beside a residual MLP."""
    ignore_router_fields(
        config, "enable_expert_tensor_parallelism", "moe_eval_capacity_factor", "moe_min_capacity",
        "moe_token_dropping", "moe_train_capacity_factor", "max_sequence_length", "quantization",
    )  # fmt: skip
    mixer = attention(config, grouped_heads(config, window=sliding_window(config)), share=1)
    every = config.integer("moe_layer_frequency", 2)
    inner, hidden = config.integer("intermediate_size"), config.integer("hidden_size")
    has_residual_mlp = config.flag("use_residual", default=config.flag("parallel_attn_mlp_res", default=False))
    moe: Experts = experts(config, "num_local_experts", "num_experts_per_tok", inner=inner)
    dense_network: FeedForward = dense(config)
    plain = Layer(mixer=mixer, feed_forward=dense_network, name="dense")
    sparse = Layer(mixer=mixer, feed_forward=moe, name="moe")
    if has_residual_mlp:
        wide = Mlp(inner=hidden, act=moe.act, gated=True)
        sparse = DenseAndExperts(mixer=mixer, feed_forward=moe, dense=wide, name="moe")
    layers = [plain if (index + 1) % every else sparse for index in range(config.count("num_hidden_layers"))]
    return decoder(config, layers).graph(fmt)
