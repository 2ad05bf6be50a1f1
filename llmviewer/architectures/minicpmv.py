"""MiniCPM-V 2.0 to 4.5 and MiniCPM-o 2.6: SigLIP encodes slices of an image; a resampler makes a fixed number of
tokens of each (arXiv:2408.01800).

Fields of the language model stand beside `version`, which says what it is: MiniCPM (2.0), Llama 3 (2.5), Qwen2 (2.6),
MiniCPM4 (4.0) or Qwen3 (4.5). MiniCPM-o's audio encoder is loaded and not run; its speech
decoder is left out.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ..documents import Section
from ..graph import Block, Graph
from ..operators.attention import Heads
from ..operators.base import Operator
from ..operators.elementwise import Permute
from ..precision import Format
from . import architecture, builder
from .blocks.class_defaults import TOWERS
from .blocks.encoder import bidirectional
from .blocks.fields import filled
from .blocks.parts import HIDDEN, NormKind, Parts, with_rows
from .blocks.resampler import FEATURES, Looking
from .blocks.tiles import nearest_slices, picture_size
from .blocks.tower import (
    PatchGrid,
    Shapes,
    Tower,
    auxiliary_block,
    feature_block,
    image_rows,
    joined,
    linears,
    part,
    repeated_tower,
    unused_weights,
    vision,
    vit,
)
from .minicpmv4_6 import nearest, resized

_LANGUAGES: Final = {2.0: "minicpm", 2.5: "llama", 2.6: "qwen2", 4.0: "llama", 4.5: "qwen3"}
_SIDE: Final = 448  # pixels to a side of a slice, or as many in another shape
_HEAD: Final = 128  # elements of a head of the resampler
_SIGLIP: Final = {  # timm's vit_so400m_patch14_siglip_384 without its last layer, which 2.0 names in vision_encoder
    "hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 26, "num_attention_heads": 16,
    "image_size": 448, "patch_size": 14,
}  # fmt: skip
_WHISPER: Final = {  # openai/whisper-medium
    "num_mel_bins": 80, "encoder_layers": 24, "encoder_ffn_dim": 4096, "d_model": 1024, "max_source_positions": 1500,
}  # fmt: skip
_IGNORED: Final = """
    version drop_vision_last_layer batch_vision_input use_image_id slice_mode image_size patch_size max_slice_nums
    scale_resolution vision_encoder mm_use_im_start_end adaptive_slice slice_config vision_batch_size rope_theta
    audio_chunk_length audio_pool_step chunk_input init_audio init_tts init_vision listen_speak_type stream_input
    tts_config default_gen_scale im_start im_end im_end_token im_start_token im_patch_token mm_use_im_patch_token
    vision_hidden_size
"""
_AUDIO_IGNORED: Final = """
    activation_function encoder_attention_heads decoder_attention_heads decoder_ffn_dim decoder_layers
    encoder_layerdrop decoder_layerdrop num_hidden_layers scale_embedding max_target_positions vocab_size
    apply_spec_augment begin_suppress_tokens classifier_proj_size mask_feature_length mask_feature_min_masks
    mask_feature_prob mask_time_length mask_time_min_masks mask_time_prob median_filter_width use_weighted_layer_sum
    suppress_tokens attn_implementation _attn_implementation_autoset
"""


@architecture("minicpmv")
def build(config: Section, fmt: Format) -> Graph:
    """MiniCPM-V 2.0 to 4.5: a SigLIP tower over slices and a resampler, before the language model of its version."""
    version = config.number("version", 2.0)
    if version not in _LANGUAGES:
        raise config.error("version", f"must be one of {', '.join(map(str, _LANGUAGES))}; got {version:g}")
    return _built(config, fmt, _LANGUAGES[version])


@architecture("minicpmo")
def build_o(config: Section, fmt: Format) -> Graph:
    """MiniCPM-o 2.6: MiniCPM-V before Qwen2; the Whisper encoder is counted as memory only."""
    vision_graph = _built(config, fmt, "qwen2")
    if not config.flag("init_audio", default=True):
        return vision_graph
    section = part(config, "audio_config")
    section.ignore(*_AUDIO_IGNORED.split())
    return Graph(
        (*_hearing(filled(section, _WHISPER), config.integer("hidden_size"), Parts(format=fmt)), *vision_graph.blocks)
    )


def _built(config: Section, fmt: Format, kind: str) -> Graph:
    config.ignore(*_IGNORED.split())
    language = filled(config, instead={"model_type": kind, "vision_config": None})
    text, width = builder(language)(language, fmt), config.integer("hidden_size")
    has_vision_config = config.get("vision_config") is not None
    section = filled(
        vision(config) if has_vision_config else Section(_SIGLIP, config.file), TOWERS["SiglipVisionConfig"]
    )
    section.ignore("model_type", "attn_implementation", "_attn_implementation_autoset")
    queries, slices = config.integer("query_num", 64), config.get("max_slice_nums") or 9
    size = picture_size(config)
    rows, columns = nearest_slices(size, _SIDE, most=int(slices))
    patch = section.integer("patch_size")
    overview = _tower(section, resized(size, patch))
    blocks, project = _vision_part(overview, fmt, width, queries)
    if rows * columns == 1:
        return joined(blocks, project, text, tokens=queries)
    each = resized((nearest(size[0], rows) / rows, nearest(size[1], columns) / columns), patch)
    sliced = rows * columns * queries
    read, resampler = _vision_part(replace(_tower(section, each), tiles=rows * columns), fmt, width, queries)
    slice_blocks = repeated_tower((*read, feature_block("projector", resampler, sliced)), "slices")
    parts, tokens = Parts(format=fmt), sliced + queries
    packed = with_rows(parts.tensor("pack", width), image_rows(tokens))
    features = with_rows(parts.tensor(slice_blocks[-1].output, width), image_rows(sliced))
    pack = Permute(name=packed.name, inputs=(project[-1].result, features), outputs=(packed,))
    return joined(
        (*slice_blocks, *blocks),
        (*project, pack),
        text,
        tokens=tokens,
        projected=queries,
        side_inputs=(slice_blocks[-1].output,),
    )


def _tower(config: Section, size: tuple[int, int]) -> Tower:
    """SigLIP for images of `size` pixels, with positions of its own grid."""
    patch = config.integer("patch_size")
    grid = PatchGrid(height=size[0] // patch, width=size[1] // patch, pixels=3 * patch**2)
    return vit(
        config,
        grid,
        "gelu_pytorch_tanh",
        patch_bias=True,
        positions=(config.integer("image_size") // patch) ** 2,
        post_norm=True,
    )


def _vision_part(tower: Tower, fmt: Format, width: int, queries: int) -> tuple[tuple[Block, ...], tuple[Operator, ...]]:
    """The tower, and a resampler: queries attend to the projected patches, whose keys have sines of their places."""
    parts = Parts(format=fmt, norm_kind=NormKind.LAYER)
    count, tiles = tower.grid.patches, tower.tiles
    rows, query_rows = image_rows(count, tiles), image_rows(queries, tiles)
    x = with_rows(parts.tensor(HIDDEN, tower.hidden), rows)
    features = with_rows(parts.tensor("kv_proj", width), rows)
    kv = parts.linear("kv_proj", x, features)
    norm = parts.norm("kv_norm", features)
    place = parts.elementwise(FEATURES, norm.result, ops=1)
    place = replace(place, outputs=(with_rows(place.result, rows),))
    embed = parts.embed("queries", {"queries.weight": queries}, width)
    query = parts.norm("queries_norm", embed.result)
    heads = bidirectional(Heads(num_heads=width // _HEAD, num_kv_heads=width // _HEAD, head_dim=_HEAD))
    looking = Looking(heads=heads, features=count, width=width, tiles=tiles, bias=True)
    attended = looking.operators(parts, query.result)
    last = parts.norm("resampled_norm", attended[-1].result)
    operators = (embed, query, *attended, last, parts.project("linear_1", last.result, width))
    return tower.blocks(fmt, tower.stream), (
        kv,
        norm,
        place,
        *(
            op.with_tensors(lambda t: with_rows(t, query_rows) if t.rows == parts.tensor("", 1).rows else t)
            for op in operators
        ),
    )


def _hearing(config: Section, width: int, parts: Parts) -> tuple[Block, Block]:
    """Whisper's encoder and the projection of its tokens, of which the weights alone count here."""
    hidden, inner, bins = (config.integer(key) for key in ("d_model", "encoder_ffn_dim", "num_mel_bins"))
    layer: Shapes = {
        **{f"{name}_norm.{kind}": (hidden,) for name in ("attn", "mlp") for kind in ("weight", "bias")},
        **linears({f"{name}_proj": (hidden, hidden) for name in "qvo"}),
        "k_proj.weight": (hidden, hidden),
        **linears({"up_proj": (inner, hidden), "down_proj": (hidden, inner)}),
    }
    around: Shapes = {
        **linears({"conv1": (hidden, bins, 3), "conv2": (hidden, hidden, 3)}),
        "positions.weight": (config.integer("max_source_positions"), hidden),
        **{f"norm.{kind}": (hidden,) for kind in ("weight", "bias")},
        **linears({"projection_1": (width, hidden), "projection_2": (width, width)}),
    }
    blocks = (
        unused_weights("hearing", parts, around),
        unused_weights("hearing_layer", parts, layer, config.count("encoder_layers")),
    )
    first, second = (auxiliary_block(block, name="audio") for block in blocks)
    return first, second
