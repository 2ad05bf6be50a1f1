"""An architecture described in its model file, layer by layer, from the building blocks of the other families.

    model_type: described
    vocab_size: 32000
    hidden_size: 4096
    norm: rms
    layers:
      - repeat: 30
        name: local
        mixer: {kind: attention, num_heads: 32, num_kv_heads: 8, head_dim: 128, rotary_dim: 128, window: 4096}
        feed_forward: {kind: experts, experts: 64, chosen: 4, inner: 1408, shared: {inner: 2816, gated: true}}
      - repeat: 2
        layers: [{mixer: ...}, {mixer: ..., feed_forward: ...}]
    mtp: {repeat: 1}

Keys of a part are the fields of its class; those of Heads stand among those of the attention. docs/descriptions.md
lists them all, and tests/test_described.py makes that list from keys_of().
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, fields, replace
from typing import Any, Final, TypeAlias, TypeVar

from ..documents import MAX_COUNT, Section
from ..graph import Graph
from ..operators.attention import Heads
from ..operators.elementwise import ACTIVATION_OPS
from ..operators.masks import CAUSAL, Causal, Chunked, Mask
from ..precision import NAMED, Format
from ..records import frozen
from . import architecture
from .blocks.attention import Index, LatentAttention, SelfAttention
from .blocks.decoder import FeedForward, Layer, Mixer, Prediction, Residual
from .blocks.feed_forward import Experts, Mlp
from .blocks.fields import decoder
from .blocks.moe import checked_top_k, groups
from .blocks.parts import NormKind
from .blocks.recurrent import (
    H3,
    S5,
    ChannelMix,
    ContinuousConv,
    GatedStateSpace,
    Hyena,
    ImplicitHyena,
    Kda,
    LightningAttention,
    Retention,
    Rwkv4,
    Rwkv6,
    Rwkv7,
    StateSpace,
)
from .blocks.state_space import GatedDeltaNet, GatedLinearRecurrence, Mamba, Mamba2, ShortConvMixer

MIXERS: Final[Mapping[str, type[Any]]] = {
    "attention": SelfAttention,
    "latent_attention": LatentAttention,
    "mamba": Mamba,
    "mamba2": Mamba2,
    "gated_delta_net": GatedDeltaNet,
    "gated_linear_recurrence": GatedLinearRecurrence,
    "kda": Kda,
    "lightning_attention": LightningAttention,
    "retention": Retention,
    "rwkv4": Rwkv4,
    "rwkv6": Rwkv6,
    "rwkv7": Rwkv7,
    "s4": StateSpace,
    "s5": S5,
    "gss": GatedStateSpace,
    "h3": H3,
    "hyena": Hyena,
    "implicit_hyena": ImplicitHyena,
    "ckconv": ContinuousConv,
    "short_conv": ShortConvMixer,
}
FEED_FORWARD: Final[Mapping[str, type[Any]]] = {"mlp": Mlp, "experts": Experts, "channel_mix": ChannelMix}
NESTED: Final[Mapping[str, type[Any]]] = {"Mlp | None": Mlp, "Index | None": Index}  # mappings within a part
_MASKS: Final[Mapping[str, Callable[[int], Mask]]] = {"window": Causal, "chunk": Chunked}
_DEFAULT_ACT: Final = "silu"
_LAYER_KEYS: Final = ("name", "mixer", "feed_forward", "residual")
_GROUP_KEYS: Final = ("repeat", "layers")
_MTP_KEYS: Final = ("repeat", "mixer", "feed_forward", "residual")
_NAME: Final = re.compile(r"[A-Za-z]\w*")
_T = TypeVar("_T")


@architecture("described")
def build(config: Section, fmt: Format) -> Graph:
    """Decoder whose layers the config file describes one by one."""
    hidden = config.integer("hidden_size")
    layers = _layers(config, hidden)
    return decoder(
        config,
        layers,
        norm=NormKind(config.choice("norm", NormKind, NormKind.RMS)),
        head_bias=config.flag("head_bias", default=False),
        positions=config.integer("positions", 0, least=0),
        embed_norm=config.flag("embed_norm", default=False),
        final_norm=config.flag("final_norm", default=True),
        prediction=_prediction(config, hidden, layers[-1]),
    ).graph(fmt)


def _layers(config: Section, hidden: int) -> list[Layer]:
    """The layers of a list, in which `repeat` may cover one layer or the `layers` of a group."""
    layers: list[Layer] = []
    for section in config.sections("layers"):
        if section.has("layers"):
            section.only(_GROUP_KEYS)
            group = [_named_layer(part, hidden) for part in section.sections("layers")]
        else:
            group = [_named_layer(section, hidden, "repeat")]
        repeat = section.count("repeat", 1)
        count = len(layers) + len(group) * repeat
        if count > MAX_COUNT:
            raise section.error("repeat", f"must make at most {MAX_COUNT} layers of all; got {count}")
        layers += group * repeat
    return layers


def _named_layer(section: Section, hidden: int, *other_keys: str) -> Layer:
    section.only((*other_keys, *_LAYER_KEYS))
    layer = _layer(section, hidden)
    if layer is None:
        raise section.error("mixer", "a layer needs a mixer or a feed_forward")
    name = section.text("name", "layer")
    if not _NAME.fullmatch(name):
        raise section.error("name", f"must be a letter, then letters, digits or _; got {name!r}")
    return replace(layer, name=name)


def _layer(section: Section, hidden: int) -> Layer | None:
    """The layer of a mapping; None if it has neither a mixer nor a feed_forward."""
    mixer: Mixer | None = _part(section, "mixer", MIXERS, hidden)
    network: FeedForward | None = _part(section, "feed_forward", FEED_FORWARD, hidden)
    residual = Residual(section.choice("residual", Residual, Residual.PRE))
    return Layer(mixer=mixer, feed_forward=network, residual=residual) if mixer or network else None


def _prediction(config: Section, hidden: int, last: Layer) -> Prediction | None:
    """The multi-token prediction layers under `mtp`; each equals the `last` layer if nothing else is described."""
    if config.get("mtp") is None:
        return None
    section = config.section("mtp")
    section.only(_MTP_KEYS)
    described = _layer(section, hidden)
    if described is None and section.get("residual") is not None:
        raise section.error("residual", "is for a mixer or a feed_forward, and there is none; leave it out")
    return Prediction.of(section, "repeat", described or last, default=1)


@frozen(kw_only=True)
class Key:
    """A key of a described part.

    values   accepted values
    default  None: it must be given
    """

    name: str
    values: str
    default: str | None


def keys_of(kind: type[Any]) -> list[Key]:
    """The keys of a part, in the order of the fields of its class."""
    return [key for field in fields(kind) for key in _READERS[_type_of(field)].keys(field)]


def _part(section: Section, key: str, kinds: Mapping[str, type[Any]], hidden: int) -> Any:
    """The part under `key`, of the kind that it names; None if there is none."""
    if section.get(key) is None:
        return None
    described = section.section(key)
    part = _part_from_section(kinds[described.choice("kind", kinds)], described, besides=("kind",))
    for broken, rule in _RULES[type(part)](part, hidden) if type(part) in _RULES else ():
        raise described.error(broken, rule)
    return part


def _part_from_section(kind: type[_T], section: Section, besides: tuple[str, ...] = ()) -> _T:
    """A part from a mapping with its fields as keys."""
    section.only((*(key.name for key in keys_of(kind)), *besides))
    every = fields(kind)  # type: ignore[arg-type]
    return kind(**{field.name: _READERS[_type_of(field)].read(section, field) for field in every})


@frozen(kw_only=True)
class _FieldReader:
    """Reads fields of one type.

    read    returns the value of a field from a section
    values  accepted values, as text
    many    keys of a field that is not described under its own name; (): one key of its name
    """

    read: Callable[[Section, Field[Any]], Any]
    values: Callable[[Field[Any]], str]
    many: tuple[Key, ...] = ()

    def keys(self, field: Field[Any]) -> tuple[Key, ...]:
        default = _default(field)
        text = None if default is MISSING else "none" if default is None else str(default)
        text = text.lower() if isinstance(default, bool) and text else text
        return self.many or (Key(name=field.name, values=self.values(field), default=text),)


def _type_of(field: Field[Any]) -> str:
    """The annotation of a field, with the name where a type has several uses."""
    return "act" if field.name == "act" else str(field.type)


def _default(field: Field[Any]) -> Any:
    return _DEFAULT_ACT if field.name == "act" and field.default is MISSING else field.default


def _minimum(field: Field[Any]) -> int:
    """The least value of a count: 0 if that is its default, as it then means that there is none."""
    return 0 if field.default == 0 else 1


def _integer(section: Section, field: Field[Any]) -> int:
    default = None if field.default is MISSING else field.default
    return section.integer(field.name, default, least=_minimum(field))


def _optional(section: Section, field: Field[Any], read: Callable[[str], _T]) -> _T | None:
    return read(field.name) if section.get(field.name) is not None else None


def _nested(section: Section, field: Field[Any]) -> Any:
    kind = NESTED[str(field.type)]
    return _optional(section, field, lambda key: _part_from_section(kind, section.section(key)))


def _groups(section: Section, field: Field[Any]) -> Any:  # noqa: ARG001
    chosen = checked_top_k(section, "chosen", "experts", section.integer("chosen"))
    return groups(section, section.integer("experts"), chosen)


def _heads(section: Section, field: Field[Any]) -> Heads:  # noqa: ARG001
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
    """The keys that a query attends to: all before it, or as one of the keys of _MASKS limits them."""
    mask_keys = [key for key in _MASKS if section.get(key) is not None]
    if len(mask_keys) > 1:
        raise section.error(mask_keys[1], f"must stand alone; there is {mask_keys[0]} too")
    return _MASKS[mask_keys[0]](section.integer(mask_keys[0])) if mask_keys else CAUSAL


def _counts(minimum: int) -> str:
    return f"whole number of at least {minimum}"


_HEADS_KEYS: Final = (
    Key(name="num_heads", values=_counts(1), default=None),
    Key(name="num_kv_heads", values="divisor of num_heads", default="num_heads"),
    Key(name="head_dim", values=_counts(1), default=None),
    Key(name="value_dim", values=_counts(0), default="0"),
    Key(name="window", values=_counts(1), default="none"),
    Key(name="chunk", values=_counts(1), default="none"),
)
_GROUPS_KEYS: Final = (
    Key(name="n_group", values="divisor of experts", default="1"),
    Key(name="topk_group", values="whole number up to n_group", default="n_group"),
)
_READERS: Final[Mapping[str, _FieldReader]] = {
    "bool": _FieldReader(
        read=lambda section, field: section.flag(field.name, default=bool(field.default)),
        values=lambda _: "true or false",
    ),
    "int": _FieldReader(read=_integer, values=lambda field: _counts(_minimum(field))),
    "act": _FieldReader(
        read=lambda section, field: section.choice("act", ACTIVATION_OPS, _default(field)),
        values=lambda _: ", ".join(ACTIVATION_OPS),
    ),
    "NormKind | None": _FieldReader(
        read=lambda section, field: _optional(section, field, lambda key: NormKind(section.choice(key, NormKind))),
        values=lambda _: ", ".join(NormKind),
    ),
    "Format | None": _FieldReader(
        read=lambda section, field: _optional(section, field, lambda key: NAMED[section.choice(key, NAMED)]),
        values=lambda _: ", ".join(NAMED),
    ),
    **{
        kind: _FieldReader(
            read=_nested, values=lambda field: f"mapping with the keys of {NESTED[str(field.type)].__name__}"
        )
        for kind in NESTED
    },
    "Heads": _FieldReader(read=_heads, values=lambda _: "", many=_HEADS_KEYS),
    "Groups": _FieldReader(read=_groups, values=lambda _: "", many=_GROUPS_KEYS),
}


Broken: TypeAlias = Iterator[tuple[str, str]]  # keys with the rule that each breaks


def _attention_rules(part: SelfAttention, hidden: int) -> Broken:  # noqa: ARG001
    yield from _above("rotary_dim", part.rotary_dim, part.heads.head_dim)
    yield from _gates(part.gates, part.heads)


def _latent_rules(part: LatentAttention, hidden: int) -> Broken:  # noqa: ARG001
    if part.index and not part.q_rank:
        yield "q_rank", "must be above 0, because the indexer takes its queries from their latent; got 0"
    if part.index and part.chosen:
        yield "chosen", "must be left out where index chooses the keys"
    if part.index:
        yield from _above("rope_dim", part.rope_dim, part.index.head_dim)
    yield from _gates(part.gates, part.heads)


def _mamba2_rules(part: Mamba2, hidden: int) -> Broken:  # noqa: ARG001
    if part.inner != (width := part.heads * part.head_dim):
        yield "inner", f"must be heads x head_dim, {width}; got {part.inner}"
    yield from _divides("groups", part.groups, "heads", part.heads)


def _experts_rules(part: Experts, hidden: int) -> Broken:  # noqa: ARG001
    if part.shared_gate and not part.shared:
        yield "shared_gate", "must be false where there is no shared expert"
    if part.latent_norm and not part.latent:
        yield "latent_norm", "must be false where latent is 0"


def _above(key: str, value: int, maximum: int) -> Broken:
    if value > maximum:
        yield key, f"must be at most the {maximum} of a head; got {value}"


def _gates(gates: int, heads: Heads) -> Broken:
    gate_counts = (0, heads.num_heads, heads.num_heads * heads.out_dim)
    if gates not in gate_counts:
        yield "gates", f"must be 0, one per head ({gate_counts[1]}) or one per element ({gate_counts[2]}); got {gates}"


def _divides(key: str, value: int, total_name: str, amount: int) -> Broken:
    if amount % value:
        yield key, f"must divide {total_name}, {amount}; got {value}"


_RULES: Final[Mapping[type[Any], Callable[[Any, int], Broken]]] = {
    SelfAttention: _attention_rules,
    LatentAttention: _latent_rules,
    Mamba: lambda part, _: _divides("heads", part.heads, "inner", part.inner),
    Mamba2: _mamba2_rules,
    GatedDeltaNet: lambda part, _: _divides("key_heads", part.key_heads, "value_heads", part.value_heads),
    GatedLinearRecurrence: lambda part, _: _divides("blocks", part.blocks, "inner", part.inner),
    Hyena: lambda part, hidden: _divides("groups", part.groups, "hidden_size", hidden),
    Experts: _experts_rules,
}
