"""Molmo: CLIP encodes overlapping crops of an image and a thumbnail; attention pooling merges four patches into a
token, before a Qwen2, an OLMo or an OLMoE (arXiv:2409.17146, section 2).

The tower and the connector are those of the released code, which the config does not describe. The 1B names its fields
as OLMo does.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ..documents import Section
from ..graph import Graph
from ..precision import Format
from . import architecture, builder
from .blocks.decoder import Layer, Residual
from .blocks.encoder import holding
from .blocks.feed_forward import Mlp
from .blocks.fields import attention, decoder, filled
from .blocks.parts import HIDDEN, NormKind, Parts, with_rows
from .blocks.tiles import best_fit, picture_size
from .blocks.tower import image_rows, joined, patch_grid, vit
from .molmo2 import grid_tokens, pooled_patches

_CLIP: Final = {  # openai/clip-vit-large-patch14-336, up to the layer before the last
    "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 23, "num_attention_heads": 16,
    "image_size": 336, "patch_size": 14, "hidden_act": "quick_gelu",
}  # fmt: skip
_TAPPED: Final = 2  # layers whose features are side by side
_CROPS: Final = 12  # at most, by the processor's default
_OVERLAP: Final = 8  # patches of a row or column that two crops share
_ADDED_WORDS: Final = 128
_NAMES: Final = {  # in the 1B: in OLMoE
    "d_model": "hidden_size", "n_layers": "num_hidden_layers", "n_heads": "num_attention_heads",
    "n_kv_heads": "num_key_value_heads", "moe_num_experts": "num_experts", "moe_top_k": "num_experts_per_tok",
}  # fmt: skip
_IGNORED: Final = """
    additional_vocab_size clip_qkv embedding_size use_position_ids layer_norm_type layer_norm_with_affine
    attention_layer_norm_with_affine moe_dropless moe_loss_weight moe_zloss_weight moe_mlp_impl moe_shared_expert
    moe_lbl_in_fp32 moe_log_expert_assignment moe_capacity_factor moe_normalize_expert_weights image_feature_dropout
    block_type activation_type rope rope_full_precision rope_impl alibi flash_attention bias_for_layer_norm
    include_bias residual_dropout response_residual_dropout embedding_dropout crop_mode max_crops overlap_margins
    use_col_tokens always_start_with_space default_inference_len system_prompt_kind message_formatting prompt_type
    image_padding_embed image_pooling_2d image_pooling_h image_pooling_w image_projector vit_layers vision_backbone
    unconditioned max_sequence_length max_position_embeddings precision qkv_bias norm_after weight_tying
    multi_query_attention attention_layer_norm mlp_ratio scale_logits initializer_range normalize_input_embeds
"""


@architecture("molmo")
def build(config: Section, fmt: Format) -> Graph:
    """Molmo: CLIP over overlapping crops, attention pooling of 2 x 2 patches, before Qwen2, OLMo or OLMoE."""
    config.ignore(*_IGNORED.split(), *_NAMES, "mlp_hidden_size")
    named = config.with_data({_NAMES.get(key, key): value for key, value in config.data.items()})
    text, inner = _text(named, fmt)
    width = named.integer("hidden_size")
    section = Section(_CLIP, config.file)
    crop = patch_grid(section)
    tower = vit(section, crop, "quick_gelu", learned=1, positions=crop.patches + 1, pre_norm=True)
    patch = section.integer("patch_size")
    stride, shared = (crop.height - _OVERLAP) * patch, _OVERLAP * patch
    size = picture_size(config)
    rows, columns = best_fit((size[0] - shared, size[1] - shared), (stride, stride), most=_CROPS)
    tower = replace(tower, tiles=rows * columns + 1)
    tokens = grid_tokens(crop, 1, 1) + grid_tokens(crop, rows, columns)
    parts, wide = tower.parts(fmt), _TAPPED * tower.hidden
    x = with_rows(parts.tensor(HIDDEN, wide), image_rows(crop.patches, tower.tiles))
    padded = parts.elementwise("pad_embed", x, ops=4, weights={"pad_embed.weight": 2 * wide})
    padded = padded.with_tensors(lambda t: with_rows(t, x.rows))
    adapter = {"hidden_size": tower.hidden, "num_attention_heads": 16, "head_dim": 64, "intermediate_size": inner,
               "text_hidden_size": width, "hidden_act": "silu"}  # fmt: skip
    project = (padded, *pooled_patches(Section(adapter, config.file), parts, padded.result, tokens))
    return joined(tower.blocks(fmt, tower.stream), project, text, tokens=tokens)


def _text(config: Section, fmt: Format) -> tuple[Graph, int]:
    """The language model with the words for images in a table of their own, and the width inside the connector."""
    config = filled(config, {"tie_word_embeddings": config.flag("weight_tying", default=False)})
    shape = (config.integer("additional_vocab_size", _ADDED_WORDS, least=0), config.integer("hidden_size"))
    if config.get("num_experts") is not None:
        return _sparse(config, fmt, shape)
    inner = config.integer("intermediate_size")
    if inner % 2:
        raise config.error("intermediate_size", f"must be twice the width of the MLP; got {inner}")
    words = config.integer("embedding_size", config.integer("vocab_size"))
    config = filled(config, instead={"vocab_size": words})
    normed = NormKind.RMS if config.flag("attention_layer_norm", default=False) else None
    bias = config.flag("qkv_bias", default=False)
    layer = Layer(
        mixer=attention(config, share=1, bias=None, qkv_bias=bias, fused_qkv=True, qk_norm=normed, qk_norm_whole=True),
        feed_forward=Mlp(inner=inner // 2, act="silu", gated=True, fused=True),
        residual=Residual.INNER if config.flag("norm_after", default=False) else Residual.PRE,
    )
    return _with_words(decoder(config, layer).graph(fmt), shape, fmt), inner // 2


def _sparse(config: Section, fmt: Format, shape: tuple[int, int]) -> tuple[Graph, int]:
    """An OLMoE, whose experts are half as wide as mlp_hidden_size says, gate and values together."""
    inner = config.integer("mlp_hidden_size", 2048) // 2
    words = config.integer("embedding_size", config.integer("vocab_size"))
    fixed_fields = {"model_type": "olmoe", "intermediate_size": inner, "vocab_size": words}
    olmoe = filled(config, instead=fixed_fields)
    return _with_words(builder(olmoe)(olmoe, fmt), shape, fmt), inner


def _with_words(text: Graph, shape: tuple[int, int], fmt: Format) -> Graph:
    first, *others = text.blocks
    extended = first.map(lambda op: holding(op, Parts(format=fmt), {"additional_tokens.weight": shape}))
    return Graph((extended, *others))
