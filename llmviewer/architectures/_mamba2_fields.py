"""What configs of hybrids say of their Mamba-2 in fields of the same names (Bamba, Falcon-H1, Granite 4)."""

from __future__ import annotations

from ..documents import Section
from ._state_space import Mamba2


def mamba2(config: Section, *, inner: int = 0, norm: bool = True) -> Mamba2:
    """The mixer that a config describes, `inner` wide, or mamba_expand times the hidden size.

    Raises InputError where its heads do not fill that width.
    """
    inner = inner or config.integer("mamba_expand", 2) * config.integer("hidden_size")
    heads = config.integer("mamba_n_heads", 128)
    if inner % heads:
        raise config.error("mamba_n_heads", f"must divide the inner width {inner}; got {heads}")
    head_dim = inner // heads if config.get("mamba_d_head") in (None, "auto") else config.integer("mamba_d_head")
    if heads * head_dim != inner:
        raise config.error("mamba_d_head", f"times {heads} heads must be the inner width {inner}; got {head_dim}")
    config.costless("time_step_min", "time_step_max", "time_step_floor", "time_step_limit", "mamba_norm_before_gate")
    return Mamba2(
        inner=inner,
        heads=heads,
        head_dim=head_dim,
        state=config.integer("mamba_d_state", 256),
        groups=config.integer("mamba_n_groups", 1),
        taps=config.integer("mamba_d_conv", 4),
        chunk=config.integer("mamba_chunk_size", 256),
        conv_bias=config.flag("mamba_conv_bias", default=True),
        bias=config.flag("mamba_proj_bias", default=False),
        norm=norm,
    )
