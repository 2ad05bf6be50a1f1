"""xLSTM: a matrix memory in place of attention (arXiv:2503.13427, section 3)."""

from __future__ import annotations

from ..documents import Section
from ..graph import Graph
from ..operators.base import Operator, Tensor
from ..operators.state_space import Scan
from ..precision import Format
from ..records import frozen
from . import architecture
from .blocks.decoder import Layer
from .blocks.feed_forward import Mlp
from .blocks.fields import decoder, require_false
from .blocks.parts import Parts
from .blocks.recurrent import SIGMOID
from .blocks.state_space import kept

_RUNTIME = """
    autocast_kernel_dtype chunkwise_kernel sequence_kernel step_kernel mode eps inference_state_dtype
    max_inference_chunksize return_last_states norm_reduction_force_float32 gate_soft_cap output_logit_soft_cap
    weight_mode embedding_dim num_blocks
"""


@frozen(kw_only=True)
class MatrixLstm:
    """C = f C + i v k^T and n = f n + i k; C q / max(|n . q|, 1), in chunks.

    OPs of a pair within a chunk: Q K^T and the result; of a token: C q, v k^T, and both for n (arXiv:2503.14376).

    heads                heads
    key_dim, value_dim   elements of a key and of a value per head
    chunk                tokens of a chunk
    """

    heads: int
    key_dim: int
    value_dim: int
    chunk: int

    def operators(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]:
        keys, values = self.heads * self.key_dim, self.heads * self.value_dim
        widths = {"q_proj": keys, "k_proj": keys, "v_proj": values, "g_proj": values}
        projections = tuple(parts.project(name, x, width) for name, width in widths.items())
        gates = tuple(parts.project(name, x, self.heads, bias=True) for name in ("input_gate", "forget_gate"))
        state = kept("scan_state", self.heads * (self.key_dim * self.value_dim + self.key_dim + 1))
        scan = Scan(
            name="scan",
            inputs=(*(op.result for op in (*projections[:3], *gates)), state),
            outputs=(parts.tensor("scan", values), state),
            pair_ops=self.heads * 2 * (self.key_dim + self.value_dim),
            token_ops=self.heads * 4 * self.key_dim * (self.value_dim + 1),
            chunk=self.chunk,
            heads=self.heads,
            groups=self.heads,
        )
        norm = parts.elementwise(
            "scan_norm",
            scan.result,
            projections[3].result,
            ops=6 + SIGMOID + 1,  # LayerNorm of each head without a bias, and the gate
            weights={"scan_norm.weight": values},
            normed=self.value_dim,
        )
        return (*projections, *gates, scan, norm, parts.project("out_proj", norm.result, x.width))


@architecture("xlstm")
def build(config: Section, fmt: Format) -> Graph:
    """xLSTM: a matrix LSTM (mLSTM) and a gated MLP in every layer."""
    config.ignore(*_RUNTIME.split())
    require_false(config, "use_bias", "biases of these projections are not modelled")
    hidden = config.integer(config.first("hidden_size", "embedding_dim"), 4096)
    heads = config.integer("num_heads", 8)
    keys, values = (
        _multiple(config, key, default, hidden, 64) for key, default in (("qk_dim_factor", 0.5), ("v_dim_factor", 1.0))
    )
    for key, width in (("qk_dim_factor", keys), ("v_dim_factor", values)):
        if width % heads:
            raise config.error(key, f"must make a width that the {heads} heads divide; got {width}")
    mixer = MatrixLstm(
        heads=heads, key_dim=keys // heads, value_dim=values // heads, chunk=config.integer("chunk_size", 64)
    )
    inner = _multiple(config, "ffn_proj_factor", 2.667, hidden, config.integer("ffn_round_up_to_multiple_of", 64))
    layer = Layer(mixer=mixer, feed_forward=Mlp(inner=inner, act="silu", gated=True))
    layers = [layer] * config.count(config.first("num_hidden_layers", "num_blocks"), 32)
    final = config.flag("add_out_norm", default=True)
    return decoder(config, layers, hidden=hidden, final_norm=final).graph(fmt)


def _multiple(config: Section, key: str, default: float, hidden: int, multiple: int) -> int:
    """`hidden` times a factor, rounded up to a multiple."""
    factor = config.number(key, default)
    if not 0 < factor < hidden:
        raise config.error(key, f"must be above 0; got {factor:g}")
    return int((hidden * factor + multiple - 1) // multiple) * multiple or multiple
