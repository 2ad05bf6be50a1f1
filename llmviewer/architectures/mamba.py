"""Mamba and Mamba-2: state-space layers only, no attention (arXiv:2312.00752, arXiv:2405.21060)."""

from __future__ import annotations

from math import ceil

from ..documents import Section
from ..graph import Graph
from ..precision import Format
from . import architecture
from .blocks.decoder import Layer
from .blocks.fields import decoder
from .blocks.state_space import SILU, Mamba, Mamba2


@architecture("mamba", "falcon_mamba")
def build_mamba(config: Section, fmt: Format) -> Graph:
    """Mamba and Falcon Mamba: a selective state space in every layer, no MLP."""
    hidden = config.integer("hidden_size")
    step_rank = (
        ceil(hidden / 16) if config.get("time_step_rank") in (None, "auto") else config.integer("time_step_rank")
    )
    mixer = Mamba(
        inner=config.integer("intermediate_size", config.integer("expand", 2) * hidden),
        state=config.integer("state_size", 16),
        taps=config.integer("conv_kernel", 4),
        step_rank=step_rank,
        conv_bias=config.flag("use_conv_bias", default=True),
        bias=config.flag("use_bias", default=False),
    )
    _ignore_fields(config)
    return _decoder(config, mixer, hidden, fmt)


@architecture("mamba2")
def build_mamba2(config: Section, fmt: Format) -> Graph:
    """Mamba-2: state-space duality with scalar decays per head in every layer, no MLP."""
    hidden = config.integer("hidden_size", 4096)
    heads, head_dim = config.integer("num_heads", 128), config.integer("head_dim", 64)
    inner = config.integer("expand", 2) * hidden
    if heads * head_dim != inner:
        raise config.error("num_heads", f"times head_dim must be the {inner} of expand x hidden_size; got {heads}")
    mixer = Mamba2(
        inner=inner,
        heads=heads,
        head_dim=head_dim,
        state=config.integer("state_size", 128),
        groups=config.integer("n_groups", 8),
        taps=config.integer("conv_kernel", 4),
        chunk=config.integer("chunk_size", 256),
        conv_bias=config.flag("use_conv_bias", default=True),
        bias=config.flag("use_bias", default=False),
    )
    _ignore_fields(config)
    return _decoder(config, mixer, hidden, fmt)


def _decoder(config: Section, mixer: Mamba | Mamba2, hidden: int, fmt: Format) -> Graph:
    return decoder(
        config, Layer(mixer=mixer, feed_forward=None), hidden=hidden, tied=config.text("model_type") != "mamba2"
    ).graph(fmt)


def _ignore_fields(config: Section) -> None:
    config.choice("hidden_act", SILU, "silu")
    config.ignore(
        "rms_norm", "residual_in_fp32", "rescale_prenorm_residual", "time_step_limit",
        "time_step_scale", "time_step_min", "time_step_max", "time_step_floor", "time_step_init_scheme",
        "norm_before_gate",
        "use_mambapy", "use_associative_scan", "mixer_rms_eps", "d_inner", "d_model", "n_layer", "ssm_cfg",
        "fused_add_norm", "pad_vocab_size_multiple",
    )  # fmt: skip
