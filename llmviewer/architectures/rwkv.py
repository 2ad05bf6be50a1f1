"""RWKV-4 to 7: recurrent layers only, no attention (arXiv:2305.13048, arXiv:2404.05892, arXiv:2503.14456).

Configs of RWKV-6 come in two dialects: that of the authors, who give the width of a head, and that of
flash-linear-attention, which gives the number of heads and the ranks. RWKV-7 has the latter alone.
"""

from __future__ import annotations

from ..documents import Section
from ..graph import Graph
from ..precision import Format
from . import architecture
from .blocks.decoder import Layer
from .blocks.fields import decoder
from .blocks.parts import NormKind
from .blocks.recurrent import ChannelMix, Rwkv4, Rwkv6, Rwkv7

_HEAD_DIM = 64


@architecture("rwkv")
def build_rwkv4(config: Section, fmt: Format) -> Graph:
    """RWKV-4: a recurrence per channel and channel mixing."""
    hidden = config.integer("hidden_size")
    mixer = Rwkv4(width=config.integer("attention_hidden_size", hidden))
    network = ChannelMix(inner=config.integer("intermediate_size", 4 * hidden))
    return _decoder(config, [Layer(mixer=mixer, feed_forward=network)] * config.count("num_hidden_layers"), fmt)


@architecture("rwkv5")
def build_rwkv5(config: Section, fmt: Format) -> Graph:
    """RWKV-5.2 (Eagle): a matrix-valued recurrence per head with fixed decays."""
    if config.text("model_version", "5_2") != "5_2":
        raise config.error("model_version", f"must be 5_2; got {config.get('model_version')!r}")
    return _heads_decoder(config, fmt, mix_rank=0, decay_rank=0)


@architecture("rwkv6")
def build_rwkv6(config: Section, fmt: Format) -> Graph:
    """RWKV-6 (Finch): RWKV-5 with low-rank token-dependent mixing and decays."""
    wide = config.integer("hidden_size") >= 4096  # the authors' ranks, which their configs leave to the code
    for key in ("expand_k", "expand_v"):
        if config.number(key, 1) != 1:
            raise config.error(key, f"must be 1; got {config.number(key):g}")
    if config.flag("use_glu", default=False) or config.flag("use_short_conv", default=False):
        raise config.error("use_glu", "and use_short_conv must be false: no RWKV-6 has them")
    return _heads_decoder(
        config,
        fmt,
        mix_rank=config.integer(config.first("time_mix_extra_dim", "proj_low_rank_dim"), 64 if wide else 32),
        decay_rank=config.integer(config.first("time_decay_extra_dim", "gate_low_rank_dim"), 128 if wide else 64),
    )


@architecture("rwkv7")
def build_rwkv7(config: Section, fmt: Format) -> Graph:
    """RWKV-7 (Goose): a generalized delta rule per head, ungated channel mixing."""
    hidden, layers = config.integer("hidden_size"), config.count("num_hidden_layers")
    if config.get("attn") is not None:
        raise config.error("attn", "must be null: layers of attention among RWKV-7's are not known")
    if config.get("value_dim") not in (None, hidden, [hidden] * layers):
        raise config.error("value_dim", f"must be {hidden} in every layer, as the hidden size is")
    if not config.flag("norm_first", default=True) or not config.flag("norm_bias", default=True):
        raise config.error("norm_first", "and norm_bias must be true, as all RWKV-7 have them")
    config.choice("hidden_act", ("sqrelu", "relu2"), "sqrelu")
    config.ignore("fuse_linear_cross_entropy", "use_l2warp")
    heads, head_dim = _heads(config, hidden)
    network = ChannelMix(inner=_inner(config, hidden, 4), gated=False)

    def layer(name: str, value_rank: int) -> Layer:
        mixer = Rwkv7(
            heads=heads,
            head_dim=head_dim,
            decay_rank=config.integer("decay_low_rank_dim", 64),
            rate_rank=config.integer("a_low_rank_dim", 64),
            gate_rank=config.integer("gate_low_rank_dim", 128),
            value_rank=value_rank,
        )
        return Layer(mixer=mixer, feed_forward=network, name=name)

    others = [layer("layer", config.integer("v_low_rank_dim", 16))] * (layers - 1)
    return _decoder(config, [layer("first", 0), *others], fmt)


def _heads_decoder(config: Section, fmt: Format, *, mix_rank: int, decay_rank: int) -> Graph:
    hidden = config.integer("hidden_size")
    heads, head_dim = _heads(config, config.integer("attention_hidden_size", hidden))
    mixer = Rwkv6(heads=heads, head_dim=head_dim, mix_rank=mix_rank, decay_rank=decay_rank)
    layer = Layer(mixer=mixer, feed_forward=ChannelMix(inner=_inner(config, hidden, 3.5)))
    return _decoder(config, layer, fmt)


def _heads(config: Section, width: int) -> tuple[int, int]:
    """(number, width) of the heads that divide `width`; the config gives one of both."""
    # The authors' configs have a number of heads that their code does not read.
    config.ignore("num_attention_heads", "head_size_divisor")
    key = config.first("head_size", "head_dim", "num_heads")
    number = config.integer(key, _HEAD_DIM)
    config.ignore("num_heads")  # follows where the width of a head is given
    if width % number:
        raise config.error(key, f"must divide the {width} of all heads; got {number}")
    return (number, width // number) if key == "num_heads" else (width // number, number)


def _inner(config: Section, hidden: int, ratio: float) -> int:
    """The width of the feed-forward network: a multiple of 32, above in one dialect and below in the other."""
    config.ignore("hidden_ratio")  # of use where intermediate_size is not given
    if config.get("intermediate_size") is not None:
        return config.integer("intermediate_size")
    width = int(hidden * config.number("hidden_ratio", ratio))
    return -(-width // 32) * 32 if config.get("hidden_ratio") is not None else width // 32 * 32


def _decoder(config: Section, layers: list[Layer] | Layer, fmt: Format) -> Graph:
    config.ignore(
        "context_length", "max_context_length", "rescale_every", "attn_mode", "fuse_norm", "fuse_cross_entropy",
        "norm_eps", "clamp_min", "conv_size", "share_conv_kernel", "_attn_implementation_autoset",
    )  # fmt: skip
    return decoder(config, layers, norm=NormKind.LAYER, embed_norm=True).graph(fmt)
