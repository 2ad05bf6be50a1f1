"""`DecoderFamily`: a row for a decoder that differs from LLaMA by flags alone; the default of each field is LLaMA's.

A field is a value that no config changes, or names the field of config.json that decides and what holds without it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field, replace
from functools import partial
from math import inf
from typing import Final, TypeAlias

from ...documents import Section
from ...graph import Graph
from ...precision import Format
from ...records import frozen
from . import moe
from .attention import SelfAttention
from .decoder import FeedForward, Layer, Prediction, Residual
from .feed_forward import Mlp
from .fields import decoder, grouped_heads, require_false, rotary_dim, sliding_layers, sliding_window
from .parts import ACTIVATIONS, NormKind, activation, heads_of

LayerFlags: TypeAlias = Callable[[Section], list[bool]]  # reads a flag of each layer


@frozen
class ConfigFlag:
    """A flag of the config; `default` holds where the config does not have it."""

    key: str
    default: bool = False

    def read(self, config: Section) -> bool:
        return config.flag(self.key, default=self.default)


Switch: TypeAlias = bool | ConfigFlag


def _is_enabled(config: Section, switch: Switch) -> bool:
    return switch if isinstance(switch, bool) else switch.read(config)


@frozen
class RotaryShare:
    """Share of each head that is rotated, by the first of `keys` in the config; `default` holds where it has none."""

    default: float
    keys: tuple[str, ...] = ("partial_rotary_factor",)

    def read(self, config: Section, head_dim: int) -> int:
        return rotary_dim(config, head_dim, key=config.first(*self.keys), default=self.default)


@frozen(kw_only=True)
class QkNorm:
    """Norms of queries and keys.

    kind   how they are computed
    whole  whether a norm has weights for all heads; else the heads share them
    when   whether there are norms
    """

    kind: NormKind = NormKind.RMS
    whole: bool = False
    when: Switch = True


@frozen
class NormPlacement:
    """NormPlacement of norms by a flag."""

    flag: ConfigFlag
    true: Residual
    false: Residual = Residual.PRE


def every_layer(config: Section) -> list[bool]:
    """All layers."""
    return [True] * config.count("num_hidden_layers")


def all_but_last_of(period: int) -> LayerFlags:
    """Layers by layer_types, or all but the last of every `period` layers."""
    return partial(sliding_layers, pattern=period)


def all_but_first_of(period: int) -> LayerFlags:
    """Layers by layer_types, or all but the first of every `period` layers."""
    return partial(sliding_layers, pattern=period, first=True)


def listed_or_every(config: Section) -> list[bool]:
    """Layers by layer_types, or all."""
    return every_layer(config) if config.get("layer_types") is None else sliding_layers(config, pattern=1)


@frozen
class SlidingWindow:
    """Layers with a sliding window.

    keys         width where the config has no sliding_window; inf: no window. Null: no window
    layers       which layers have it
    full_rotary  whether layers with full attention have rotary positions if others have a window
    """

    keys: float = inf
    layers: LayerFlags = every_layer
    full_rotary: bool = True


@frozen(kw_only=True)
class ExpertFields:
    """Fields of the config that describe a mixture of experts.

    count         number of routed experts
    top_k         experts per token
    width         width between the projections of an expert
    shared_count  number of shared experts, as wide as the routed ones; "": see shared_width
    shared_width  width of the shared expert; "": no shared expert
    layers        which layers have experts; the others have an MLP
    """

    count: str = "num_experts"
    top_k: str = "num_experts_per_tok"
    width: str = "moe_intermediate_size"
    shared_count: str = ""
    shared_width: str = ""
    layers: LayerFlags = every_layer

    def read(self, config: Section, act: str) -> FeedForward:
        inner = config.integer(self.width)
        shared = config.integer(self.shared_width, 0, least=0) if self.shared_width else 0
        if self.shared_count:
            shared = config.integer(self.shared_count, 0, least=0) * inner
        experts = moe.experts(config, self.count, self.top_k, inner=inner, shared=shared)
        return replace(experts, act=activation(config, "hidden_act", act))


_BIAS: Final = ConfigFlag("attention_bias")


@frozen(kw_only=True)
class DecoderFamily:
    """Differences of a decoder from LLaMA.

    also         other model types of the same network
    config       adapts a config to these fields, or raises InputError where they cannot describe it
    kv_heads     key-value heads where the config has no num_key_value_heads; 0: as many as heads; None: as many as
                 heads, whatever the config has
    head_dim     width of a head where the config has no head_dim; 0: the hidden size is shared among the heads
    rotary       share of each head that is rotated; None: all
    window       sliding window; None: full attention in all layers
    fused_qkv    whether one projection computes queries, keys and values
    qk_norm      norms of queries and keys before their rotation
    act          activation function where the config has no `act_key`
    gated        whether the activation of a gate scales the up projection
    fused_mlp    whether one projection computes gate and up
    experts      a mixture of experts in place of the MLP
    norm         kind of all other norms
    residual     placement of norms and additions
    embed_norm   whether a norm follows the embedding
    tied         whether the head is the embedding where the config does not say
    prediction   field with the number of layers of multi-token prediction; "": none
    ignored      fields that change no count
    refused      flags that must be false, with the reason
    """

    also: tuple[str, ...] = ()
    config: Callable[[Section], Section] | None = None
    kv_heads: int | None = 0
    head_dim: int = 0
    rotary: RotaryShare | None = None
    window: SlidingWindow | None = None
    fused_qkv: bool = False
    qkv_bias: Switch = _BIAS
    o_bias: Switch = _BIAS
    qk_norm: QkNorm | None = None
    act: str = "silu"
    act_key: str = "hidden_act"
    gated: bool = True
    fused_mlp: bool = False
    mlp_bias: Switch = ConfigFlag("mlp_bias")
    experts: ExpertFields | None = None
    norm: NormKind = NormKind.RMS
    residual: Residual | NormPlacement = Residual.PRE
    embed_norm: bool = False
    tied: bool = False
    head_bias: Switch = False
    prediction: str = ""
    ignored: str = ""
    refused: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raises ValueError if fields contradict each other or the activation function is unknown."""
        if self.act not in ACTIVATIONS:
            raise ValueError(f"act must be one of {', '.join(ACTIVATIONS)}; got {self.act!r}")
        if self.fused_mlp and not self.gated:
            raise ValueError("fused_mlp is for a gated MLP: there is no gate to fuse")
        if self.experts and (self.fused_mlp or not self.gated):
            raise ValueError("fused_mlp and gated are for an MLP: experts are gated and not fused")

    def graph(self, config: Section, fmt: Format) -> Graph:
        config = self.config(config) if self.config else config
        for flag, reason in self.refused.items():
            require_false(config, flag, reason)
        config.ignore(*self.ignored.split())
        if self.experts:
            moe.ignore_router_fields(config)
        layers = self._layers(config)
        return decoder(
            config,
            layers,
            norm=self.norm,
            tied=self.tied,
            embed_norm=self.embed_norm,
            head_bias=_is_enabled(config, self.head_bias),
            prediction=Prediction.of(config, self.prediction, layers[-1]) if self.prediction else None,
        ).graph(fmt)

    def _layers(self, config: Section) -> list[Layer]:
        """Layers in their order, named by their attention and network where these differ between layers."""
        slides, width = [False] * config.count("num_hidden_layers"), inf
        if self.window and (width := sliding_window(config, self.window.keys)) < inf:
            slides = self.window.layers(config)
        sparse = self.experts.layers(config) if self.experts else [False] * len(slides)
        mixers = {slid: self._attention(config, width, slid=slid) for slid in set(slides)}
        networks = {has_experts: self._network(config, has_experts=has_experts) for has_experts in set(sparse)}
        kinds = {
            (slid, has_experts): Layer(
                mixer=mixer,
                feed_forward=network,
                residual=self._residual(config),
                name=self._name(slid=slid if len(mixers) > 1 else None, has_experts=has_experts),
            )
            for slid, mixer in mixers.items()
            for has_experts, network in networks.items()
        }
        return [kinds[kind] for kind in zip(slides, sparse, strict=True)]

    def _name(self, *, slid: bool | None, has_experts: bool) -> str:
        """Name of a layer; `slid` is None where the attention of all layers is one."""
        attention = {None: "", True: "local", False: "global"}[slid]
        network = ("moe" if has_experts else "dense") if self.experts else ""
        return "_".join(filter(None, (attention, network))) or "layer"

    def _residual(self, config: Section) -> Residual:
        if isinstance(self.residual, Residual):
            return self.residual
        return self.residual.true if self.residual.flag.read(config) else self.residual.false

    def _attention(self, config: Section, width: float, *, slid: bool) -> SelfAttention:
        """Attention of layers that slide over `width` keys, or of those with full attention."""
        window = width if slid else inf
        if self.kv_heads is None:
            heads = heads_of(config, head_dim=self.head_dim or None, window=window)
        else:
            heads = grouped_heads(config, kv_heads=self.kv_heads, head_dim=self.head_dim, window=window)
        rotated = self.rotary.read(config, heads.head_dim) if self.rotary else heads.head_dim
        if self.window and not self.window.full_rotary and window == inf > width:
            rotated = 0
        qk_norm = self.qk_norm if self.qk_norm and _is_enabled(config, self.qk_norm.when) else None
        return SelfAttention(
            heads=heads,
            rotary_dim=rotated,
            fused_qkv=self.fused_qkv,
            qkv_bias=_is_enabled(config, self.qkv_bias),
            o_bias=_is_enabled(config, self.o_bias),
            qk_norm=qk_norm.kind if qk_norm else None,
            qk_norm_whole=qk_norm.whole if qk_norm else False,
        )

    def _network(self, config: Section, *, has_experts: bool) -> FeedForward:
        if self.experts and has_experts:
            return self.experts.read(config, self.act)
        return Mlp(
            inner=config.integer("intermediate_size"),
            act=activation(config, self.act_key, self.act),
            gated=self.gated,
            bias=_is_enabled(config, self.mlp_bias),
            fused=self.fused_mlp,
        )
