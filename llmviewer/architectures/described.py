"""An architecture that is described in its file, layer by layer, with the parts that all others are made of.

    model_type: described
    vocab_size: 32000
    hidden_size: 4096
    norm: rms
    layers:
      - repeat: 30
        name: local
        mixer: {kind: attention, num_heads: 32, num_kv_heads: 8, head_dim: 128, rotary_dim: 128, window: 4096}
        feed_forward: {kind: experts, experts: 64, chosen: 4, inner: 1408, shared: {inner: 2816, gated: true}}

Keys are the fields of the parts' classes; those of Heads stand among those of the attention.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields
from typing import Any, Final, TypeVar

from ..documents import Section
from ..graph import Graph
from ..operators.attention import Heads
from ..operators.elementwise import ACTIVATION_OPS
from ..operators.masks import CAUSAL, Causal, Chunked, Mask
from ..precision import Format
from . import architecture
from ._attention import LatentAttention, SelfAttention
from ._decoder import FeedForward, Layer, Mixer, Residual
from ._feed_forward import Experts, Mlp
from ._fields import decoder
from ._moe import at_most, groups
from ._parts import NormKind
from ._recurrent import ChannelMix, Hyena, Kda, LightningAttention, Retention, Rwkv4, Rwkv6, Rwkv7
from ._state_space import GatedDeltaNet, Mamba, Mamba2

_MIXERS: Final[Mapping[str, type[Any]]] = {
    "attention": SelfAttention,
    "latent_attention": LatentAttention,
    "mamba": Mamba,
    "mamba2": Mamba2,
    "gated_delta_net": GatedDeltaNet,
    "kda": Kda,
    "lightning_attention": LightningAttention,
    "retention": Retention,
    "rwkv4": Rwkv4,
    "rwkv6": Rwkv6,
    "rwkv7": Rwkv7,
    "hyena": Hyena,
}
_FEED_FORWARD: Final[Mapping[str, type[Any]]] = {"mlp": Mlp, "experts": Experts, "channel_mix": ChannelMix}
_MASKS: Final[Mapping[str, Callable[[int], Mask]]] = {"window": Causal, "chunk": Chunked}
_GROUPS: Final = ("n_group", "topk_group")
_T = TypeVar("_T")


@architecture("described")
def build(config: Section, fmt: Format) -> Graph:
    layers = [layer for section in config.sections("layers") for layer in _layers(section)]
    return decoder(
        config,
        layers,
        norm=NormKind(config.choice("norm", NormKind, NormKind.RMS)),
        head_bias=config.flag("head_bias", default=False),
        positions=config.integer("positions", 0, least=0),
        embed_norm=config.flag("embed_norm", default=False),
        final_norm=config.flag("final_norm", default=True),
    ).graph(fmt)


def _layers(section: Section) -> list[Layer]:
    section.only(("repeat", "name", "mixer", "feed_forward", "residual"))
    mixer: Mixer | None = _part(section, "mixer", _MIXERS)
    network: FeedForward | None = _part(section, "feed_forward", _FEED_FORWARD)
    if not mixer and not network:
        raise section.error("mixer", "a layer needs a mixer or a feed_forward")
    residual = Residual(section.choice("residual", Residual, Residual.PRE))
    layer = Layer(mixer=mixer, feed_forward=network, residual=residual, name=section.text("name", "layer"))
    return [layer] * section.integer("repeat", 1)


def _part(section: Section, key: str, kinds: Mapping[str, type[Any]]) -> Any:
    """The part under `key` of the kind that it names; None where there is none."""
    if section.get(key) is None:
        return None
    described = section.section(key)
    made = _made(kinds[described.choice("kind", kinds)], described, besides=("kind",))
    if isinstance(made, SelfAttention) and made.rotary_dim > made.heads.head_dim:
        must = f"must be at most the {made.heads.head_dim} of a head; got {made.rotary_dim}"
        raise described.error("rotary_dim", must)
    return made


def _made(kind: type[_T], section: Section, besides: tuple[str, ...] = ()) -> _T:
    """A part from a mapping with its fields as keys."""
    found = {f.name: f for f in fields(kind)}  # type: ignore[arg-type]
    takes_heads = "heads" in found and found["heads"].type == "Heads"
    nested = [*(f.name for f in fields(Heads) if f.name != "mask"), *_MASKS] if takes_heads else []
    grouped = {name for name, f in found.items() if f.type == "Groups"}  # said as configs say them
    said = found.keys() - grouped - ({"heads"} if nested else set())
    section.only((*said, *nested, *(_GROUPS if grouped else ()), *besides))
    values = {name: _value(section, f) for name, f in found.items() if not (nested and name == "heads")}
    if nested:
        values["heads"] = _heads(section)
    return kind(**values)


def _value(section: Section, field: Field[Any]) -> Any:
    default = None if field.default is MISSING else field.default
    if field.type == "bool":
        return section.flag(field.name, default=bool(default))
    if field.type == "int":
        return section.integer(field.name, default, least=0)
    if field.name == "act":
        return section.choice("act", ACTIVATION_OPS, default)
    if field.type == "Groups":
        chosen = at_most(section, "chosen", "experts", section.integer("chosen"))
        return groups(section, section.integer("experts"), chosen)
    if field.type == "Mlp | None":
        return _made(Mlp, section.section(field.name)) if section.get(field.name) is not None else None
    if field.type == "NormKind | None":
        return NormKind(section.choice(field.name, NormKind)) if section.get(field.name) is not None else None
    raise TypeError(f"{field.name}: a field of type {field.type} cannot be described yet")


def _heads(section: Section) -> Heads:
    num_heads = section.integer("num_heads")
    num_kv_heads = section.integer("num_kv_heads", num_heads)
    if num_heads % num_kv_heads:
        raise section.error("num_heads", f"must be a multiple of the {num_kv_heads} key-value heads; got {num_heads}")
    return Heads(
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=section.integer("head_dim"),
        value_dim=section.integer("value_dim", 0, least=0),
        mask=_mask(section),
    )


def _mask(section: Section) -> Mask:
    """What a query sees: all before it, or what one of the keys says."""
    given = [key for key in _MASKS if section.get(key) is not None]
    if len(given) > 1:
        raise section.error(given[1], f"must stand alone; there is {given[0]} too")
    return _MASKS[given[0]](section.integer(given[0])) if given else CAUSAL
