"""RetNet: multi-scale retention instead of attention (arXiv:2307.08621), as implemented by flash-linear-attention, and
by torchscale and its port to transformers.

Of the three forms of retention, which give the same, a prompt takes the chunkwise one, of which the recurrent one is
the case of a single token; the fields that choose a form are defaults of calls.
"""

from __future__ import annotations

from ..documents import Section
from ..graph import Graph
from ..precision import Format
from . import architecture
from .blocks.decoder import Layer
from .blocks.feed_forward import Mlp
from .blocks.fields import decoder, require_false, require_true
from .blocks.parts import activation
from .blocks.recurrent import Retention

_MULTIPLE = 256  # flash-linear-attention rounds the width of MLPs up to these


@architecture("retnet")
def build(config: Section, fmt: Format) -> Graph:
    """RetNet: multi-scale retention, with fields of torchscale or of flash-linear-attention."""
    return _torchscale(config, fmt) if config.get("decoder_embed_dim") is not None else _fla(config, fmt)


def _fla(config: Section, fmt: Format) -> Graph:
    hidden, heads = config.integer("hidden_size"), config.integer("num_heads", 8)
    for key in ("attn", "feature_map", "attnres_block_size"):
        if config.get(key) is not None:
            raise config.error(key, f"must be null: it is not known for this architecture; got {config.get(key)!r}")
    if config.integer("num_kv_heads", heads) != heads:
        raise config.error("num_kv_heads", f"must be the {heads} of num_heads; got {config.get('num_kv_heads')}")
    if config.flag("use_short_conv", default=False) or not config.flag("use_output_gate", default=True):
        raise config.error("use_short_conv", "must be false, and use_output_gate true, as all RetNets have it")
    config.ignore(
        "attn_mode", "conv_size", "share_conv_kernel", "fuse_norm", "fuse_swiglu", "fuse_cross_entropy",
        "fuse_linear_cross_entropy", "use_l2warp", "norm_eps", "hidden_ratio",
    )  # fmt: skip
    ratio = config.number("hidden_ratio", 2)
    return _decoder(
        config,
        fmt,
        hidden=hidden,
        layers=config.count("num_hidden_layers"),
        mixer=Retention(
            heads=heads,
            key_dim=_of_head(config, "num_heads", heads, hidden * config.number("expand_k", 1)),
            value_dim=_of_head(config, "num_heads", heads, hidden * config.number("expand_v", 2)),
            chunk=64,
            norm_weight=config.flag("elementwise_affine", default=True),
        ),
        network=Mlp(
            inner=config.integer("intermediate_size", -(-int(hidden * ratio * 2 / 3) // _MULTIPLE) * _MULTIPLE),
            act=activation(config, "hidden_act", "swish"),
            gated=True,
        ),
    )


def _torchscale(config: Section, fmt: Format) -> Graph:
    hidden, heads = config.integer("decoder_embed_dim"), config.integer("decoder_retention_heads", 3)
    require_true(config, "use_glu", "MLPs without a gate are not known for this architecture")
    require_false(config, "deepnorm", "norms before the branches are known alone")
    subln = config.flag("subln", default=True)
    if not config.flag("decoder_normalize_before", default=True) and not subln:
        raise config.error("decoder_normalize_before", "must be true: norms before the branches are known alone")
    config.ignore(
        "forward_impl", "no_scale_embedding", "use_lm_decay", "z_loss_coeff", "drop_path_rate", "layernorm_eps",
        "use_ffn_rms_norm", "disable_fused_ops", "output_retentions",
    )  # fmt: skip
    return _decoder(
        config,
        fmt,
        hidden=hidden,
        layers=config.count("decoder_layers", 12),
        mixer=Retention(
            heads=heads,
            key_dim=_of_head(config, "decoder_retention_heads", heads, hidden),
            value_dim=_of_head(
                config, "decoder_retention_heads", heads, config.integer("decoder_value_embed_dim", 1280)
            ),
            chunk=config.integer("recurrent_chunk_size", 512),
        ),
        network=Mlp(
            inner=config.integer("decoder_ffn_embed_dim", 1280),
            act=activation(config, "activation_fn", "gelu"),
            gated=True,
        ),
        embed_norm=config.flag("layernorm_embedding", default=False),
    )


def _of_head(config: Section, key: str, heads: int, width: float) -> int:
    """Width of a head, `width` shared by all heads."""
    if width % heads:
        raise config.error(key, f"must divide the {width:g} of all heads; got {heads}")
    return int(width) // heads


def _decoder(
    config: Section,
    fmt: Format,
    *,
    hidden: int,
    layers: int,
    mixer: Retention,
    network: Mlp,
    embed_norm: bool = False,
) -> Graph:
    return decoder(
        config, [Layer(mixer=mixer, feed_forward=network)] * layers, hidden=hidden, embed_norm=embed_norm
    ).graph(fmt)
