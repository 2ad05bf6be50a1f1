"""Readers of fields that many configs share. Defaults are those of the classes in transformers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import Any, Final

from ...documents import Section
from ...operators.attention import Heads
from .attention import SelfAttention
from .decoder import Decoder, Layer
from .feed_forward import Mlp
from .parts import NormKind, activation, heads_of

_SLIDING: Final = "sliding_attention"
_LAYER_TYPES: Final = (_SLIDING, "full_attention")


def require_false(config: Section, key: str, why: str) -> None:
    """Raises InputError, with the reason `why`, if a flag is set that is not supported."""
    if config.flag(key, default=False):
        raise config.error(key, f"must be false: {why}")


def require_true(config: Section, key: str, why: str) -> None:
    """Raises InputError, with the reason `why`, if a flag is cleared that must be set."""
    if not config.flag(key, default=True):
        raise config.error(key, f"must be true: {why}")


def check_width(config: Section, key: str, width: int, owner: str, default: int | None = None) -> None:
    """Raises InputError if field `key` is not the `width` of what it is added to or multiplied with."""
    configured_width = config.integer(key, width if default is None else default)
    if configured_width != width:
        raise config.error(key, f"must be the {width} of {owner}; got {configured_width}")


def filled(
    config: Section, fields: Mapping[str, Any] | None = None, *, instead: Mapping[str, Any] | None = None
) -> Section:
    """`config` with `fields` where it says nothing, such as the defaults of its class; `instead` holds in any case."""
    fields = fields or {}
    values = {key: value for key, value in config.data.items() if value is not None or key not in fields}
    left_out = {key: value for key, value in fields.items() if not config.has(key)}
    return config.with_data({**left_out, **values, **(instead or {})})


def labels_of(config: Section) -> int:
    """Classes that a classifier tells apart: the names that they have, or as many as transformers has by itself."""
    names = config.get("id2label")
    config.ignore("num_labels", "label2id")
    return len(names) if isinstance(names, dict) and names else config.integer("num_labels", 2)


def decoder(
    config: Section,
    layers: Sequence[Layer] | Layer,
    *,
    hidden: int = 0,
    norm: NormKind = NormKind.RMS,
    tied: bool = False,
    **options: Any,
) -> Decoder:
    """A Decoder with the vocabulary and width of the config, or with `hidden` for its width.

    layers  as many as num_hidden_layers says, where it is one
    tied    what the class has where the config does not say
    more    other fields of the Decoder
    """
    return Decoder(
        vocab=config.integer("vocab_size"),
        hidden=hidden or config.integer("hidden_size"),
        layers=[layers] * config.count("num_hidden_layers") if isinstance(layers, Layer) else layers,
        norm=norm,
        tied=config.flag("tie_word_embeddings", default=tied),
        **options,
    )


def grouped_heads(config: Section, *, kv_heads: int = 0, head_dim: int = 0, window: float = inf) -> Heads:
    """Heads by the usual field names; `kv_heads` and `head_dim` are defaults, 0: derived from other fields."""
    kv_heads = config.integer("num_key_value_heads", kv_heads or config.integer("num_attention_heads"))
    return heads_of(config, num_kv_heads=kv_heads, head_dim=head_dim or None, window=window)


def attention(
    config: Section,
    heads: Heads | None = None,
    *,
    share: float | None = None,
    bias: bool | None = False,
    **options: Any,
) -> SelfAttention:
    """Attention of grouped_heads, or of `heads`.

    share  of each head that is rotated where the config does not say; None is all of it, whatever that says
    bias   of all projections where attention_bias does not say; None is none, whatever that says
    more   other fields of SelfAttention
    """
    heads = heads or grouped_heads(config)
    biased = bias is not None and config.flag("attention_bias", default=bias)
    rotated = heads.head_dim if share is None else rotary_dim(config, heads.head_dim, default=share)
    fields: dict[str, Any] = {"heads": heads, "rotary_dim": rotated, "qkv_bias": biased, "o_bias": biased}
    return SelfAttention(**fields | options)


def gated_mlp(config: Section, *, key: str = "hidden_act", act: str = "silu") -> Mlp:
    """MLP with a gate (SwiGLU by default) of the config's intermediate_size, with biases where mlp_bias says so."""
    bias = config.flag("mlp_bias", default=False)
    inner = config.integer("intermediate_size")
    return Mlp(inner=inner, act=activation(config, key, act), gated=True, bias=bias)


def rotary_dim(
    config: Section, head_dim: int, *, key: str = "partial_rotary_factor", default: float = 1.0, kind: str = ""
) -> int:
    """Elements of each head that are rotated, from their share: newer files have that in rope_parameters, which may
    say it of each `kind` of layer, whatever it is of all.
    """
    section, name = config, key
    if config.get("rope_parameters") is not None:
        rope = config.section("rope_parameters")
        if rope.get(kind) is not None:
            section, name = rope.section(kind), "partial_rotary_factor"
        elif config.get(key) is None:
            section, name = rope, "partial_rotary_factor"
    share = section.number(name, default)
    if not 0 <= share <= 1:
        raise section.error(name, f"must be a share from 0 to 1; got {share:g}")
    return int(head_dim * share)


def rotated(config: Section, head_dim: int, default: int | None = None) -> int:
    """Elements of each head that are rotated, by their number; `default`, all if not given, where there is none."""
    rotary_dim = config.integer("rotary_dim", head_dim if default is None else default)
    if rotary_dim > head_dim:
        raise config.error("rotary_dim", f"must be at most the {head_dim} of a head; got {rotary_dim}")
    return rotary_dim


def of_each_layer(config: Section, key: str) -> list[int]:
    """Field `key` of each layer: as per_layer_config says it of some, or as all have it."""
    common_value, layers = config.integer(key), config.count("num_hidden_layers")
    values = [common_value] * layers
    if config.get("per_layer_config") is None:
        return values
    section = config.section("per_layer_config")
    for index in section:
        if not str(index).isdecimal() or int(index) >= layers:
            raise section.error(str(index), f"must be the index of one of the {layers} layers")
        values[int(index)] = section.section(index).integer(key, common_value)
    return values


def sliding_window(config: Section, default: float = inf) -> float:
    """Number of keys in a sliding window; inf if the field is null."""
    if config.get("sliding_window") is None:
        return inf if "sliding_window" in config else default
    return config.integer("sliding_window", int(default) if default < inf else None)


def sliding_layers(config: Section, *, pattern: int, first: bool = False) -> list[bool]:
    """Whether each layer has a window: by layer_types, or all but the last of every `pattern` layers, or the first."""
    layers = config.count("num_hidden_layers")
    if config.get("layer_types") is None:
        pattern = config.integer("sliding_window_pattern", pattern)
        return [(index + (not first)) % pattern != 0 for index in range(layers)]
    kinds = config.texts("layer_types")
    unknown = [kind for kind in kinds if kind not in _LAYER_TYPES]
    if len(kinds) != layers or unknown:
        actual = f"{len(kinds)} of them" if not unknown else repr(unknown[0])
        raise config.error("layer_types", f"must be {layers} of {' and '.join(_LAYER_TYPES)}; got {actual}")
    config.ignore("sliding_window_pattern")
    return [kind == _SLIDING for kind in kinds]


def alternating(local: Layer, other: Layer, sliding: Sequence[bool]) -> list[Layer]:
    """Layers of two kinds in their order, named after what they attend to; "layer" where all are of one kind."""
    if len(set(sliding)) == 2:
        local, other = replace(local, name="local"), replace(other, name="global")
    return [local if slides else other for slides in sliding]
