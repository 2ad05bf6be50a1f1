"""Readers of fields that configs of mixtures of experts share: attention, experts, and layers with experts."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

from ...documents import MAX_COUNT, MAX_EXACT_INTEGER, Section
from ...operators.routing import UNGROUPED, Groups
from ...records import frozen
from .attention import LatentAttention, SelfAttention
from .decoder import FeedForward, Layer, Mixer, Residual
from .feed_forward import Experts, Mlp
from .parts import activation

# How scores become weights, how training balanced them, and heads of multi-token prediction, which are no part of a
# pass: none of it changes what is counted.
_IGNORED_FIELDS: Final = """
    output_router_logits router_aux_loss_coef router_jitter_noise input_jitter_noise norm_topk_prob aux_loss_alpha
    seq_aux routed_scaling_factor scoring_func ep_size num_nextn_predict_layers
    num_mtp_layers num_mtp_modules mtp_transformer_layers use_mtp use_routing_bias original_max_position_embeddings
"""

_MEDIA_FIELDS: Final = """
    image_token_id video_token_id vision_start_token_id vision_end_token_id media_placeholder_token_id ignore_index
    boi_token_index eoi_token_index image_token_index use_unified_vision_chunk video_placeholder
"""

_K = TypeVar("_K", bound=Hashable)
_N = TypeVar("_N", bound=Hashable)
_L = TypeVar("_L", bound=LatentAttention)


def ignore_router_fields(config: Section, *extra_fields: str) -> None:
    """Declares fields that change no count: those of routers, and `extra_fields` of the architecture."""
    config.ignore(*_IGNORED_FIELDS.split(), *extra_fields)


def language_model(config: Section, key: str = "text_config") -> Section:
    """The text_config of a vision-language model whose tower for images is left out."""
    config.ignore(*_MEDIA_FIELDS.split())
    return config.section(key)


def latent_attention(
    config: Section,
    kind: type[_L],
    *,
    q_rank: int,
    kv_rank: int | None = 512,
    nope_dim: int | None = 128,
    rope_dim: int | None = 64,
    value_dim: int | None = 128,
) -> _L:
    """Latent attention of the config; sizes are defaults, and a size of None is required. A null q_lora_rank is none:
    queries are projected directly.
    """
    direct = "q_lora_rank" in config and config.get("q_lora_rank") is None
    return kind(
        num_heads=config.integer("num_attention_heads"),
        q_rank=0 if direct else config.integer("q_lora_rank", q_rank),
        kv_rank=config.integer("kv_lora_rank", kv_rank),
        nope_dim=config.integer("qk_nope_head_dim", nope_dim),
        rope_dim=config.integer("qk_rope_head_dim", rope_dim),
        value_dim=config.integer("v_head_dim", value_dim),
        bias=config.flag("attention_bias", default=False),
    )


def experts(config: Section, count: str, chosen: str, *, inner: int, shared: int = 0) -> Experts:
    """Gated experts, as many as field `count` says, of which each token takes as many as `chosen` says.

    shared  width of an MLP that every token takes besides; 0 where there is none
    """
    act = activation(config, "hidden_act", "silu")
    number, top_k = config.integer(count), checked_top_k(config, chosen, count, config.integer(chosen))
    return Experts(
        experts=number,
        chosen=top_k,
        groups=groups(config, number, top_k),
        inner=inner,
        act=act,
        shared=Mlp(inner=shared, act=act, gated=True) if shared else None,
    )


def groups(config: Section, number: int, chosen: int) -> Groups:
    """Groups of `number` experts, of which each token uses `chosen`."""
    count = config.integer("n_group", 1, least=0) or 1
    reached = min(config.integer("topk_group", count, least=0) or count, count)
    if config.get("topk_method") == "greedy":
        return UNGROUPED
    if number % count:
        raise config.error("n_group", f"must divide the {number} experts; got {count}")
    if chosen > reached * number // count:
        problem = f"must be groups of {number // count} with the {chosen} experts of a token between them"
        raise config.error("topk_group", f"{problem}; got {reached}")
    return Groups(count, reached)


def experts_beside_shared(
    config: Section, count: str, *, default: int, inner: int | None = None, each: int | None = None
) -> Experts:
    """Gated experts, as many as field `count` says, each as wide as moe_intermediate_size or `inner`; and those that
    every token takes, as many as n_shared_experts says or is `default`, which are one MLP.

    each  width of one of those, where it is another
    """
    inner = config.integer("moe_intermediate_size") if inner is None else inner
    shared = config.integer("n_shared_experts", default, least=0) * (inner if each is None else each)
    return experts(config, count, "num_experts_per_tok", inner=inner, shared=shared)


def experts_beside_one(config: Section, *, shared: int) -> Experts:
    """Gated experts, num_experts of them, and one that every token takes, as wide as shared_expert_intermediate_size
    says or `shared`.
    """
    return experts(
        config,
        "num_experts",
        "num_experts_per_tok",
        inner=config.integer("moe_intermediate_size", 512),
        shared=config.integer("shared_expert_intermediate_size", shared),
    )


def crossed(
    mixers: Mapping[_K, tuple[str, Mixer]],
    networks: Mapping[_N, tuple[str, FeedForward]],
    each: Iterable[tuple[_K, _N]],
    **options: Any,
) -> list[Layer]:
    """A layer for each entry, which says its mixer and its network by their keys; it is called as both are.

    more  other fields of the layers
    """
    layers = {
        (kind, sort): Layer(mixer=mixer, feed_forward=network, name=f"{first}_{second}", **options)
        for kind, (first, mixer) in mixers.items()
        for sort, (second, network) in networks.items()
    }
    return [layers[entry] for entry in each]


def windows_and_experts(
    mixers: Mapping[bool, Mixer],
    networks: Mapping[bool, FeedForward],
    each: Iterable[tuple[bool, bool]],
    residual: Residual = Residual.PRE,
) -> list[Layer]:
    """A layer for each entry, which says whether it has a window, and whether it has experts; named after both."""
    reach = {slides: ("local" if slides else "global", mixer) for slides, mixer in mixers.items()}
    named = {sparse: ("moe" if sparse else "dense", network) for sparse, network in networks.items()}
    return crossed(reach, named, each, residual=residual)


def checked_top_k(config: Section, chosen: str, count: str, number: int, default: int | None = None) -> int:
    """The `number` of experts that field `chosen` asks for, of those in field `count`, or `default` if it is not there.

    Raises InputError where there are not so many.
    """
    there_are = config.integer(count, default)
    if number > there_are:
        raise config.error(chosen, f"must be at most the {there_are} experts of {count}; got {number}")
    return number


def dense(config: Section, key: str = "intermediate_size") -> Mlp:
    """The MLP of layers without experts."""
    return Mlp(inner=config.integer(key), act=activation(config, "hidden_act", "silu"), gated=True)


@frozen(kw_only=True)
class Kinds:
    """Layers with an MLP and layers with experts behind the same attention."""

    mixer: SelfAttention
    moe: Experts
    dense: Mlp | None = None

    def layers(self, sparse: Iterable[bool]) -> list[Layer]:
        """A layer for each entry: with experts where it is true."""
        moe = Layer(mixer=self.mixer, feed_forward=self.moe, name="moe")
        return [moe if has_experts else self._dense() for has_experts in sparse]

    def _dense(self) -> Layer:
        if self.dense is None:
            raise RuntimeError("a dense layer of a model that has none")
        return Layer(mixer=self.mixer, feed_forward=self.dense, name="dense")


def first_dense(config: Section, default: int) -> list[bool]:
    """Whether each layer has experts: all but the first first_k_dense_replace.

    Raises InputError where moe_layer_freq asks for gaps among them, which no published model has.
    """
    layers = config.count("num_hidden_layers")
    if config.integer("moe_layer_freq", 1) != 1:
        raise config.error("moe_layer_freq", f"must be 1; got {config.integer('moe_layer_freq')}")
    first = config.integer("first_k_dense_replace", default, least=0)
    return [index >= first for index in range(layers)]


def sparse_layers(config: Section, default: int) -> list[bool]:
    """Whether each layer has experts: as mlp_layer_types says, or all but the first."""
    first = first_dense(config, default)
    return listed_sparse(config) or first


def listed_sparse(config: Section) -> list[bool]:
    """Whether each layer has experts, as mlp_layer_types says; empty where it is not there."""
    return [kind == "sparse" for kind in listed(config, "mlp_layer_types", ("dense", "sparse"))]


def integers(config: Section, key: str) -> tuple[int, ...]:
    """A list of whole numbers; none where the key is absent."""
    value = config.get(key)
    value = [] if value is None else value
    if not isinstance(value, list) or not all(isinstance(n, int) and not isinstance(n, bool) for n in value):
        raise config.error(key, f"must be a list of whole numbers; got {value!r}")
    if any(abs(n) > MAX_EXACT_INTEGER for n in value):
        raise config.error(key, f"must be at most {MAX_EXACT_INTEGER} each, the largest that is counted exactly")
    return tuple(value)


def counts(config: Section, key: str) -> tuple[int, ...]:
    """A list of numbers of layers, which are made one by one; none where the key is absent."""
    values = integers(config, key)
    if any(not 0 <= number <= MAX_COUNT for number in values):
        raise config.error(key, f"must be from 0 to {MAX_COUNT} each; got {values}")
    return values


def flagged(config: Section, key: str) -> list[bool]:
    """Whether the list of field `key` has another number than 0 for each layer; empty where the key is absent."""
    values = integers(config, key)
    if values:
        for_each_layer(config, key, values)
    return [bool(number) for number in values]


def kinds(config: Section, key: str, allowed: Sequence[str]) -> list[str]:
    """The list of field `key`, which says of each layer which of `allowed` it is."""
    values = config.texts(key)
    for_each_layer(config, key, values)
    if not set(values) <= set(allowed):
        raise config.error(key, f"must be made of {' and '.join(allowed)}")
    return list(values)


def listed(config: Section, key: str, allowed: Sequence[str]) -> list[str]:
    """Kind of each layer by field `key`; empty if the field is absent."""
    return [] if config.get(key) is None else kinds(config, key, allowed)


def for_each_layer(config: Section, key: str, values: Sequence[object]) -> None:
    """Raises InputError unless `values`, the list of field `key`, has an entry for each layer."""
    layers = config.count("num_hidden_layers")
    if len(values) != layers:
        raise config.error(key, f"must have an entry for each of the {layers} layers; got {len(values)}")
