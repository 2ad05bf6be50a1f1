"""OpenELM: the numbers of heads and the widths of MLPs grow from layer to layer (arXiv:2404.14619)."""

from __future__ import annotations

from collections.abc import Sequence

from ..documents import Section
from ..graph import Graph
from ..operators.attention import Heads
from ..precision import Format
from . import architecture
from .blocks.attention import SelfAttention
from .blocks.decoder import Decoder, Layer
from .blocks.feed_forward import Mlp
from .blocks.moe import integers
from .blocks.parts import NormKind, activation


@architecture("openelm")
def build(config: Section, fmt: Format) -> Graph:
    """OpenELM: number of heads and MLP width grow layer by layer."""
    config.ignore(
        "max_context_length", "rope_freq_constant", "rope_max_length", "num_gqa_groups", "qkv_multipliers",
        "normalization_layer_name",
    )  # fmt: skip
    config.choice("normalization_layer_name", ("rms_norm",), "rms_norm")
    hidden, layers = config.integer("model_dim"), config.count("num_transformer_layers")
    norm = NormKind.RMS if config.flag("normalize_qk_projections", default=False) else None
    act, gated = activation(config, "activation_fn_name", "swish"), config.flag("ffn_with_glu", default=True)
    numbers = zip(
        _each(config, "num_query_heads", layers), _each(config, "num_kv_heads", layers), _inner(config, layers),
        strict=True,
    )  # fmt: skip
    head_dim = config.integer("head_dim", 128)

    def layer(queries: int, keys: int, inner: int) -> Layer:
        if queries % keys:
            raise config.error("num_query_heads", f"must be multiples of num_kv_heads; got {queries} and {keys}")
        heads = Heads(num_heads=queries, num_kv_heads=keys, head_dim=head_dim)
        mixer = SelfAttention(heads=heads, rotary_dim=head_dim, fused_qkv=True, qk_norm=norm)
        network = Mlp(inner=inner, act=act, gated=gated, fused=gated)
        return Layer(mixer=mixer, feed_forward=network, name=f"layer_{queries}_{keys}_{inner}")

    return Decoder(
        vocab=config.integer("vocab_size"),
        hidden=hidden,
        layers=[layer(*each) for each in numbers],
        tied=config.flag("share_input_output_layers", default=True),
    ).graph(fmt)


def _each(config: Section, key: str, layers: int) -> Sequence[int]:
    """The number of heads of each layer: a list, or one for all."""
    if not isinstance(config.get(key), list):
        return [config.integer(key)] * layers
    numbers = integers(config, key)
    if len(numbers) != layers or min(numbers) < 1:
        raise config.error(key, f"must be a number of at least 1 for each of the {layers} layers")
    return numbers


def _inner(config: Section, layers: int) -> list[int]:
    """The width of each MLP: a multiple of model_dim, rounded to one of ffn_dim_divisor."""
    hidden, divisor = config.integer("model_dim"), config.integer("ffn_dim_divisor", 256)
    multipliers = config.get("ffn_multipliers")
    factors = multipliers if isinstance(multipliers, list) else [multipliers] * layers
    if len(factors) != layers or not all(
        isinstance(f, int | float) and not isinstance(f, bool) and 0 < f < hidden for f in factors
    ):
        raise config.error("ffn_multipliers", f"must be a number above 0 for each of the {layers} layers")
    return [_rounded(factor * hidden, divisor) for factor in factors]


def _rounded(value: float, divisor: int) -> int:
    """The nearest multiple of `divisor` that is not below 0.9 of `value`, as the model's code rounds."""
    near = max(divisor, int(value + divisor / 2) // divisor * divisor)
    return near + divisor if near < 0.9 * value else near
