"""Networks that are LLaMA's but for biases, fused projections, positions, norms, activations or constants; each says
what differs.
"""

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
from .blocks.decoder import FeedForward, Layer, Prediction, Residual
from .blocks.feed_forward import Mlp
from .blocks.fields import (
    alternating,
    attention,
    decoder,
    gated_mlp,
    grouped_heads,
    rotary_dim,
    sliding_layers,
    sliding_window,
    without,
)
from .blocks.parts import NormKind, Parts, activation
from .blocks.tower import language

_HEAD_DIM = 128
_BAICHUAN_7B = 4096  # width of the Baichuan models with rotary positions; the others have ALiBi
_MINISTRAL_WINDOW = 4096
_GRANITE_WINDOW = 128
_CWM_WINDOW = 8192
_PATTERN = 4  # of which the first layer has no window
_SMOLLM3_KV_HEADS = 4
_XIELU = "xielu"


@architecture("granite")
def build_granite(config: Section, fmt: Format) -> Graph:
    """Embeddings, scores, branches and logits are scaled by constants (arXiv:2405.04324)."""
    config.costless("embedding_multiplier", "attention_multiplier", "residual_multiplier", "logits_scaling")
    return _build(config, fmt, attention(config))


@architecture("hyperclovax")
def build_hyperclovax(config: Section, fmt: Format) -> Graph:
    """Granite, whose branches have a norm at their end too, unless use_post_norm says otherwise."""
    config.costless("embedding_multiplier", "attention_multiplier", "residual_multiplier", "logits_scaling")
    residual = Residual.SANDWICH if config.flag("use_post_norm", default=True) else Residual.PRE
    layer = _layer(config, attention(config))
    return decoder(config, [replace(layer, residual=residual)] * config.count("num_hidden_layers")).graph(fmt)


@architecture("cwm")
def build_cwm(config: Section, fmt: Format) -> Graph:
    """Of every four layers all but the first have a window (arXiv:2510.02387)."""
    sliding = sliding_layers(config, pattern=_PATTERN, first=True)
    heads = grouped_heads(config, head_dim=_HEAD_DIM)
    windowed = replace(heads, mask=Causal(sliding_window(config, _CWM_WINDOW)))
    local, other = (_layer(config, SelfAttention(heads=own)) for own in (windowed, heads))
    return decoder(config, alternating(local, other, sliding)).graph(fmt)


@architecture("minicpm")
def build_minicpm(config: Section, fmt: Format) -> Graph:
    """Embeddings, branches and logits are scaled by constants; the head is tied (arXiv:2404.06395)."""
    if config.get("num_experts") is not None:
        raise config.error("num_experts", "no architecture for a MiniCPM with experts")
    config.costless("scale_emb", "dim_model_base", "scale_depth", "max_length")
    return _build(config, fmt, attention(config), tied=True)


@architecture("mimo")
def build_mimo(config: Section, fmt: Format) -> Graph:
    """Biases on q, k and v; layers that predict further tokens."""
    without(config, "use_sliding_window", "no published model of this architecture has a window")
    config.costless("use_mrope")
    layer = _layer(config, attention(config, bias=True, o_bias=False))
    prediction = Prediction.of(config, "num_nextn_predict_layers", layer)
    return decoder(config, layer, prediction=prediction).graph(fmt)


@architecture("internlm")
def build_internlm(config: Section, fmt: Format) -> Graph:
    bias = config.flag("bias", default=True)
    return _build(config, fmt, SelfAttention(heads=grouped_heads(config), qkv_bias=bias, o_bias=bias))


@architecture("internlm2")
def build_internlm2(config: Section, fmt: Format) -> Graph:
    """One projection for q, k and v (arXiv:2403.17297)."""
    bias = config.flag("bias", default=True)
    config.costless("attn_implementation")
    mixer = SelfAttention(heads=grouped_heads(config), fused_qkv=True, qkv_bias=bias, o_bias=bias)
    return _build(config, fmt, mixer)


@architecture("internlm3")
def build_internlm3(config: Section, fmt: Format) -> Graph:
    """Heads are 128 wide; qkv_bias and bias are one, of attention and MLP, in what transformers writes too."""
    bias = config.flag(config.first("attention_bias", "qkv_bias"), default=False)
    mlp_bias = config.flag(config.first("mlp_bias", "bias"), default=False)
    if mlp_bias != bias:
        raise config.error(config.first("mlp_bias", "bias"), "must be as that of the projections of attention")
    mixer = SelfAttention(heads=grouped_heads(config, head_dim=_HEAD_DIM), qkv_bias=bias, o_bias=bias)
    return _build(config, fmt, mixer, mlp_bias=bias)


@architecture("granite_swa")
def build_granite_swa(config: Section, fmt: Format) -> Graph:
    return granite_swa(config, fmt, gated_mlp(config), tied=True)


def granite_swa(config: Section, fmt: Format, network: FeedForward, *, tied: bool) -> Graph:
    """Granite with a window in the layers that layer_types says, and a learned logit of each head; a layer whose theta
    is none has no positions.

    network  of every layer
    """
    config.costless("embedding_multiplier", "attention_multiplier", "residual_multiplier", "logits_scaling")
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
    """One projection for q, k and v; the 7B rotates, the 13B has ALiBi (arXiv:2309.10305)."""
    alibi = config.integer("hidden_size") != _BAICHUAN_7B
    config.costless("model_max_length", "_from_model_config", "gradient_checkpointing", "z_loss_weight")
    return _build(config, fmt, SelfAttention(heads=grouped_heads(config), fused_qkv=True, alibi=alibi))


@architecture("seed_oss")
def build_seed_oss(config: Section, fmt: Format) -> Graph:
    heads = grouped_heads(config, head_dim=_HEAD_DIM)
    config.costless("residual_dropout")
    o_bias = config.flag("attention_out_bias", default=False)
    return _build(config, fmt, attention(config, heads, bias=True, o_bias=o_bias))


@architecture("ernie4_5")
def build_ernie(config: Section, fmt: Format) -> Graph:
    """The dense models of ERNIE 4.5, of which use_bias says all biases."""
    bias = config.flag("use_bias", default=False)
    heads = grouped_heads(config, head_dim=_HEAD_DIM)
    return _build(config, fmt, SelfAttention(heads=heads, qkv_bias=bias, o_bias=bias), mlp_bias=bias, tied=True)


@architecture("helium")
def build_helium(config: Section, fmt: Format) -> Graph:
    return _build(config, fmt, attention(config, grouped_heads(config, head_dim=_HEAD_DIM), o_bias=False))


@architecture("ministral3")
def build_ministral3(config: Section, fmt: Format) -> Graph:
    heads = grouped_heads(config, head_dim=_HEAD_DIM, window=sliding_window(config))
    return _build(config, fmt, SelfAttention(heads=heads))


@architecture("ministral")
def build_ministral(config: Section, fmt: Format) -> Graph:
    """A window in all layers, or in those that layer_types says."""
    plain = SelfAttention(heads=grouped_heads(config))
    window = sliding_window(config, _MINISTRAL_WINDOW)
    windowed = replace(plain, heads=replace(plain.heads, mask=Causal(window)))
    if config.get("layer_types") is None or window == inf:
        return _build(config, fmt, windowed)
    layers = alternating(_layer(config, windowed), _layer(config, plain), sliding_layers(config, pattern=1))
    return decoder(config, layers).graph(fmt)


@architecture("nanochat")
def build_nanochat(config: Section, fmt: Format) -> Graph:
    """Norms that learn nothing, of the embedding too, and of queries and keys; squared ReLU. Queries and keys are
    normalized after their rotation, not before, which changes no count.
    """
    config.costless("final_logit_softcapping")
    mixer = attention(config, qk_norm=NormKind.UNIT)
    mlp = Mlp(inner=config.integer("intermediate_size"), act=activation(config, "hidden_act", "relu2"))
    return decoder(config, Layer(mixer=mixer, feed_forward=mlp), norm=NormKind.UNIT, embed_norm=True).graph(fmt)


@architecture("stablelm", "stablelm_epoch")
def build_stablelm(config: Section, fmt: Format) -> Graph:
    """LayerNorm, and part of each head rotated (arXiv:2402.17834). The 12B has attention and MLP side by side under one
    norm, and a norm for each head of queries and keys.
    """
    heads = grouped_heads(config)
    mixer = SelfAttention(
        heads=heads,
        rotary_dim=rotary_dim(
            config, heads.head_dim, key=config.first("partial_rotary_factor", "rope_pct"), default=0.25
        ),
        qkv_bias=config.flag("use_qkv_bias", default=False),
        qk_norm=NormKind.LAYER_NO_BIAS if config.flag("qk_layernorm", default=False) else None,
        qk_norm_whole=True,  # each head has weights of its own, so they are as many as the heads are wide
    )
    parallel = config.flag("use_parallel_residual", default=False)
    layer = Layer(
        mixer=mixer,
        feed_forward=gated_mlp(config),
        residual=Residual.PARALLEL if parallel else Residual.PRE,
    )
    config.costless("norm_eps", "rotary_scaling_factor", "use_bias")
    return decoder(config, layer, norm=NormKind.LAYER).graph(fmt)


@architecture("smollm3")
def build_smollm3(config: Section, fmt: Format) -> Graph:
    """Every fourth layer has no positions (arXiv:2501.18795)."""
    heads = grouped_heads(config, kv_heads=_SMOLLM3_KV_HEADS)
    mixer = attention(config, heads)
    rotated = Layer(mixer=mixer, feed_forward=gated_mlp(config), name="rope")
    window = sliding_window(config) if config.flag("use_sliding_window", default=False) else inf
    unrotated = replace(mixer, rotary_dim=0, heads=replace(heads, mask=Causal(window)))
    other = replace(rotated, mixer=unrotated, name="nope")
    config.costless("layer_types")  # says the same
    return decoder(config, [rotated if turns else other for turns in rotated_layers(config)], tied=True).graph(fmt)


def rotated_layers(config: Section) -> list[bool]:
    """Whether each layer has positions: `no_rope_layers` holds 1 where it does."""
    layers = config.count("num_hidden_layers")
    interval = config.integer("no_rope_layer_interval", 4)
    given = config.get("no_rope_layers")
    if given is None:
        return [(index + 1) % interval != 0 for index in range(layers)]
    if not isinstance(given, list) or len(given) != layers or not all(item in (0, 1) for item in given):
        raise config.error("no_rope_layers", f"must be a list of {layers} times 0 or 1")
    return [bool(item) for item in given]


class LearnedMlp(Mlp):
    """An MLP whose activation has two numbers that are learned (arXiv:2411.13010)."""

    def operators(self, parts: Parts, x: Tensor, prefix: str = "", act_name: str = "mlp_act") -> tuple[Operator, ...]:
        learned = tuple(parts.weight(f"{act_name}.{name}", 1) for name in ("alpha_p", "alpha_n"))
        made = super().operators(parts, x, prefix, act_name)
        return tuple(replace(op, weights=learned) if isinstance(op, Activation) else op for op in made)


@architecture("apertus1p5")
def build_apertus_omni(config: Section, fmt: Format) -> Graph:
    """What makes tokens of pictures and sound is left out."""
    config.costless("image_token_id", "audio_token_id")
    config.costless("image_token_offset", "audio_token_offset")
    text, _ = language(config, fmt, "apertus1p5_text")
    return text


@architecture("apertus", "apertus1p5_text")
def build_apertus(config: Section, fmt: Format) -> Graph:
    """Norms of each query and key head, an MLP without a gate whose activation is learned (arXiv:2509.14233). The head
    of 1.5 has fewer rows than the embedding: those of text.
    """
    config.costless("post_norm", "qk_norm", "mlp_bias")
    act = activation(config, "hidden_act", _XIELU)
    kind = LearnedMlp if act == _XIELU else Mlp
    network = kind(inner=config.integer("intermediate_size"), act=act)
    layer = Layer(mixer=attention(config, qk_norm=NormKind.RMS), feed_forward=network)
    words = config.integer("output_vocab_size", 0, least=0)
    words = 0 if words == config.integer("vocab_size") else words
    if words and config.flag("tie_word_embeddings", default=False):
        raise config.error("output_vocab_size", "must be null where the head is the embedding")
    return decoder(config, layer, words=words).graph(fmt)


@architecture("nemotron")
def build_nemotron(config: Section, fmt: Format) -> Graph:
    """Nemotron-4 and Minitron: LayerNorm with 1 + weight, half of each head rotated, squared ReLU and no gate
    (arXiv:2402.16819).
    """
    return _with_squares(config, fmt, norm=NormKind.LAYER, rotated=0.5, bias=False)


@architecture("arcee")
def build_arcee(config: Section, fmt: Format) -> Graph:
    """AFM: squared ReLU and no gate."""
    return _with_squares(config, fmt, norm=NormKind.RMS, rotated=1, bias=False)


@architecture("jais2")
def build_jais2(config: Section, fmt: Format) -> Graph:
    """LayerNorm, biases, squared ReLU and no gate."""
    return _with_squares(config, fmt, norm=NormKind.LAYER, rotated=1, bias=True)


def _with_squares(config: Section, fmt: Format, *, norm: NormKind, rotated: float, bias: bool) -> Graph:
    heads = grouped_heads(config, head_dim=config.integer("kv_channels", 0))
    key = config.first("partial_rotary_factor", "rope_percent", "rope_percentage")
    mixer = attention(config, heads, bias=bias, rotary_dim=rotary_dim(config, heads.head_dim, key=key, default=rotated))
    mlp = Mlp(
        inner=config.integer("intermediate_size"),
        act=activation(config, "hidden_act", "relu2"),
        bias=config.flag("mlp_bias", default=bias),
    )
    config.costless("norm_eps", "rope_percent", "rope_percentage")
    return decoder(config, Layer(mixer=mixer, feed_forward=mlp), norm=norm).graph(fmt)


def _build(config: Section, fmt: Format, mixer: SelfAttention, *, tied: bool = False, mlp_bias: bool = False) -> Graph:
    return decoder(config, _layer(config, mixer, mlp_bias=mlp_bias), tied=tied).graph(fmt)


def _layer(config: Section, mixer: SelfAttention, *, mlp_bias: bool = False) -> Layer:
    """Rotates all of each head, unless positions are biases on the scores."""
    rotary_dim = 0 if mixer.alibi else mixer.heads.head_dim
    mlp = gated_mlp(config)
    return Layer(
        mixer=replace(mixer, rotary_dim=rotary_dim),
        feed_forward=replace(mlp, bias=True) if mlp_bias else mlp,
    )
