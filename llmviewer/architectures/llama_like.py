"""Decoders near LLaMA with positions, a window or an activation that no row of `llama.FAMILIES` describes."""

from __future__ import annotations

from dataclasses import replace
from math import inf

from ..documents import Section
from ..graph import Graph
from ..operators.base import Operator, Tensor
from ..operators.elementwise import Activation
from ..operators.masks import Causal
from ..precision import Format
from . import architecture
from .blocks.attention import SelfAttention
from .blocks.decoder import FeedForward, Layer, SharedLayer
from .blocks.feed_forward import Mlp
from .blocks.fields import (
    attention,
    decoder,
    gated_mlp,
    grouped_heads,
    sliding_layers,
    sliding_window,
)
from .blocks.parts import NormKind, Parts, activation
from .blocks.tower import language

_BAICHUAN_7B = 4096  # width of the Baichuan models with rotary positions; the others have ALiBi
_GRANITE_WINDOW = 128
_PATTERN = 4  # of which the first layer has no window
_SMOLLM3_KV_HEADS = 4
_XIELU = "xielu"


@architecture("granite_swa")
def build_granite_swa(config: Section, fmt: Format) -> Graph:
    """Granite with sliding-window layers and a gated MLP."""
    return granite_swa(config, fmt, gated_mlp(config), tied=True)


def granite_swa(config: Section, fmt: Format, network: FeedForward, *, tied: bool) -> Graph:
    """Granite with a window in layers by layer_types, and a learned logit (sink) of each head; layers without a
    layer_rope_theta have no positions.

    network  feed-forward network of every layer
    """
    config.ignore("embedding_multiplier", "attention_multiplier", "residual_multiplier", "logits_scaling")
    plain = attention(config, sinks=True)
    window = sliding_window(config, _GRANITE_WINDOW)
    layers = []
    sliding = sliding_layers(config, pattern=_PATTERN, first=True)
    for slides, rotates in zip(sliding, _rotated_layers(config), strict=True):
        heads = replace(plain.heads, mask=Causal(window)) if slides else plain.heads
        mixer = replace(plain, heads=heads, rotary_dim=heads.head_dim if rotates else 0)
        name = ("local" if slides else "global") + ("" if rotates else "_unrotated")
        layers.append(Layer(mixer=mixer, feed_forward=network, name=name))
    return decoder(config, layers, tied=tied).graph(fmt)


def _rotated_layers(config: Section) -> list[bool]:
    """Whether each layer has a theta to rotate by."""
    thetas, layers = config.get("layer_rope_theta"), config.count("num_hidden_layers")
    if thetas is None:
        return [True] * layers
    if not isinstance(thetas, list) or len(thetas) != layers:
        raise config.error("layer_rope_theta", f"must be a list of {layers} numbers")
    return [bool(theta) for theta in thetas]


@architecture("baichuan")
def build_baichuan(config: Section, fmt: Format) -> Graph:
    """Baichuan: fused q, k and v; the 7B rotates, the 13B has ALiBi (arXiv:2309.10305)."""
    alibi = config.integer("hidden_size") != _BAICHUAN_7B
    config.ignore("model_max_length", "_from_model_config", "gradient_checkpointing", "z_loss_weight")
    heads = grouped_heads(config)
    mixer = SelfAttention(heads=heads, rotary_dim=0 if alibi else heads.head_dim, fused_qkv=True, alibi=alibi)
    return decoder(config, Layer(mixer=mixer, feed_forward=gated_mlp(config))).graph(fmt)


@architecture("smollm3")
def build_smollm3(config: Section, fmt: Format) -> Graph:
    """Every fourth layer has no positions (arXiv:2501.18795)."""
    heads = grouped_heads(config, kv_heads=_SMOLLM3_KV_HEADS)
    mixer = attention(config, heads)
    rotated = Layer(mixer=mixer, feed_forward=gated_mlp(config), name="rope")
    window = sliding_window(config) if config.flag("use_sliding_window", default=False) else inf
    unrotated = replace(mixer, rotary_dim=0, heads=replace(heads, mask=Causal(window)))
    other = replace(rotated, mixer=unrotated, name="nope")
    config.ignore("layer_types")  # says the same
    return decoder(config, [rotated if rotates else other for rotates in rotated_layers(config)], tied=True).graph(fmt)


def rotated_layers(config: Section) -> list[bool]:
    """Whether each layer has positions: `no_rope_layers` holds 1 where it does."""
    layers = config.count("num_hidden_layers")
    interval = config.integer("no_rope_layer_interval", 4)
    flags = config.get("no_rope_layers")
    if flags is None:
        return [(index + 1) % interval != 0 for index in range(layers)]
    if not isinstance(flags, list) or len(flags) != layers or not all(item in (0, 1) for item in flags):
        raise config.error("no_rope_layers", f"must be a list of {layers} times 0 or 1")
    return [bool(item) for item in flags]


class LearnedMlp(Mlp):
    """An MLP whose activation has two numbers that are learned (arXiv:2411.13010)."""

    def operators(self, parts: Parts, x: Tensor, prefix: str = "", act_name: str = "mlp_act") -> tuple[Operator, ...]:
        learned = tuple(parts.weight(f"{act_name}.{name}", 1) for name in ("alpha_p", "alpha_n"))
        launches = super().operators(parts, x, prefix, act_name)
        return tuple(replace(op, weights=learned) if isinstance(op, Activation) else op for op in launches)


@architecture("apertus1p5")
def build_apertus_omni(config: Section, fmt: Format) -> Graph:
    """The language model; the tokenizers of images and audio are left out."""
    config.ignore("image_token_id", "audio_token_id")
    config.ignore("image_token_offset", "audio_token_offset")
    text, _ = language(config, fmt, "apertus1p5_text")
    return text


@architecture("apertus", "apertus1p5_text")
def build_apertus(config: Section, fmt: Format) -> Graph:
    """Norms of each query and key head, an MLP without a gate whose activation is learned (arXiv:2509.14233). The head
    of 1.5 has fewer rows than the embedding: those of text.
    """
    config.ignore("post_norm", "qk_norm", "mlp_bias")
    act = activation(config, "hidden_act", _XIELU)
    kind = LearnedMlp if act == _XIELU else Mlp
    network = kind(inner=config.integer("intermediate_size"), act=act)
    layer = Layer(mixer=attention(config, qk_norm=NormKind.RMS), feed_forward=network)
    words = config.integer("output_vocab_size", 0, least=0)
    words = 0 if words == config.integer("vocab_size") else words
    if words and config.flag("tie_word_embeddings", default=False):
        raise config.error("output_vocab_size", "must be null where the head is the embedding")
    return decoder(config, layer, words=words).graph(fmt)


@architecture("mobilellm")
def build_mobilellm(config: Section, fmt: Format) -> Graph:
    """LLaMA that may run each layer twice, with a cache for each run (arXiv:2402.14905, section 3.4)."""
    act = activation(config, "hidden_act", "silu")
    layer = Layer(
        mixer=attention(config), feed_forward=Mlp(inner=config.integer("intermediate_size"), act=act, gated=True)
    )
    runs = [layer, SharedLayer.of(layer)] if config.flag("layer_sharing", default=False) else [layer]
    tied = config.flag("share_embedding", default=config.flag("tie_word_embeddings", default=False))
    return replace(decoder(config, runs * config.count("num_hidden_layers")), tied=tied).graph(fmt)
