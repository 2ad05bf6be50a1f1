"""DeepSeek-VL2: SigLIP encodes tiles of an image and a thumbnail; four patches make a token before a DeepSeek-V2,
whose tiny version has plain attention (arXiv:2412.10302).

A learned token ends each row of tokens, and another one separates the whole from the tiles. SigLIP's pooling head is in
the checkpoint and does not run.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import Any, Final

from ..documents import Section
from ..graph import Graph
from ..operators.base import Operator
from ..operators.elementwise import Permute
from ..precision import Format
from . import architecture, builder
from .blocks.fields import filled
from .blocks.parts import HIDDEN, Parts, with_rows
from .blocks.tiles import best_resolution, picture_size
from .blocks.tower import UNUSED, Tower, image_rows, joined, part, projector
from .siglip import plain_tower, pooled_head

_SO400M: Final = {"width": 1152, "layers": 27, "heads": 16, "mlp_ratio": 3.7362, "patch_size": 14, "image_size": 384}
_SIZES: Final = {  # of vision_config's model_name
    "siglip_so400m_patch14_384": _SO400M,
    "siglip_so400m_patch14_224": {**_SO400M, "image_size": 224},
    "siglip_large_patch16_384": {
        "width": 1024, "layers": 24, "heads": 16, "mlp_ratio": 4.0, "patch_size": 16, "image_size": 384,
    },
}  # fmt: skip
_TEXT: Final = {  # as DeepseekV2Config of the released code has it
    "vocab_size": 102400, "hidden_size": 4096, "intermediate_size": 11008, "moe_intermediate_size": 1407,
    "num_hidden_layers": 30, "num_attention_heads": 32, "num_key_value_heads": 32, "moe_layer_freq": 1,
    "first_k_dense_replace": 0, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "qk_nope_head_dim": 128, "topk_method": "gready",
}  # fmt: skip
_IGNORED: Final = "candidate_resolutions tile_tag global_view_pos model_type"
_VISION_IGNORED: Final = """
    model_type global_pool ignore_head class_token num_classes use_checkpoint weight_init deterministic
    num_recomputing_layers cls params
"""
_MOST_TILES: Final = 9


@architecture("deepseek_vl_v2")
def build(config: Section, fmt: Format) -> Graph:
    """DeepSeek-VL2: a SigLIP tower over tiles and a thumbnail, before a DeepSeek-V2."""
    config.ignore(*_IGNORED.split())
    text, width = _text(config, fmt)
    section = part(config, "vision_config")
    section.ignore(*_VISION_IGNORED.split())
    tower, head = _tower(section, fmt)
    adapter = part(config, "projector_config")
    adapter.ignore("model_type", "token_pooling", "input_dim", "n_embed")
    side = adapter.integer("downsample_ratio", 2)
    adapter.choice("projector_type", ("downsample_mlp_gelu",), "downsample_mlp_gelu")
    pixels = section.integer("image_size", 384)
    rows, columns = _grid(config, pixels)
    tower = replace(tower, tiles=rows * columns + 1)
    each = ceil(tower.grid.height / side)
    tokens = each * (each + 1) + 1 + rows * each * (columns * each + 1)
    parts = tower.parts(fmt)
    squares = _squares(adapter, tower, parts, side, width)
    packed = with_rows(parts.tensor("pack", width), image_rows(tokens))
    learned = tuple(parts.weight(f"{name}.weight", width) for name in ("newline", "separator"))
    pack = Permute(name=packed.name, inputs=(squares[-1].result,), outputs=(packed,), weights=learned)
    unused = (replace(block, name=f"unused_{block.name}", stream=UNUSED) for block in head)
    blocks = (*tower.blocks(fmt, tower.stream), *unused)
    every = each**2 * tower.tiles
    return joined(blocks, (*squares, pack), text, tokens=tokens, projected=every)


def _text(config: Section, fmt: Format) -> tuple[Graph, int]:
    key = config.first("language_config", "text_config")
    filled_config = filled(part(config, key), _TEXT)
    filled_config.ignore("lm_head", "rm_head", "use_mla", "routed_scaling_factor", "auto_map")
    plain = not filled_config.flag("use_mla", default=True)
    text = filled(filled_config, instead={"model_type": "deepseek_ocr2_text" if plain else "deepseek_v2"})
    return builder(text)(text, fmt), text.integer("hidden_size")


def _tower(config: Section, fmt: Format) -> tuple[Tower, Any]:
    """SigLIP and the head that pools its patches."""
    named = config.choice("model_name", _SIZES, "siglip_so400m_patch14_384")
    sizes = filled(config, _SIZES[named])
    width = sizes.integer("width")
    fields = {
        "hidden_size": width,
        "intermediate_size": int(width * sizes.number("mlp_ratio")),
        "num_hidden_layers": sizes.count("layers"),
        "num_attention_heads": sizes.integer("heads"),
        "image_size": sizes.integer("image_size"),
        "patch_size": sizes.integer("patch_size"),
    }
    section = Section(fields, config.file)
    tower = plain_tower(section)
    return tower, pooled_head(section, tower, fmt)


def _grid(config: Section, side: int) -> tuple[int, int]:
    """Rows and columns of the tiles of an image."""
    resolutions = config.get("candidate_resolutions")
    every = [[side * m, side * n] for m in range(1, _MOST_TILES + 1) for n in range(1, _MOST_TILES // m + 1)]
    sizes = every if resolutions is None else resolutions
    pairs = [tuple(one) for one in sizes if isinstance(one, list) and len(one) == 2] if isinstance(sizes, list) else []
    all_multiples = all(isinstance(n, int) and n > 0 and n % side == 0 for pair in pairs for n in pair)
    if not pairs or len(pairs) != len(sizes) or not all_multiples:
        raise config.error("candidate_resolutions", f"must be widths and heights in tiles of {side} x {side}")
    height, width = picture_size(config)
    best = best_resolution((width, height), [(w, h) for w, h in pairs])
    return best[1] // side, best[0] // side


def _squares(config: Section, tower: Tower, parts: Parts, side: int, width: int) -> tuple[Operator, ...]:
    """Squares of patches side by side, filled up to whole squares, and an MLP."""
    inner = int(width * config.number("mlp_ratio", 1))
    depth, each = config.count("depth", 2), ceil(tower.grid.height / side)
    x = with_rows(parts.tensor(HIDDEN, tower.hidden), image_rows(tower.grid.patches, tower.tiles))
    wide = with_rows(parts.tensor("squares", side**2 * tower.hidden), image_rows(each**2, tower.tiles))
    join = Permute(name=wide.name, inputs=(x,), outputs=(wide,))
    rest = projector(parts, parts.tensor(wide.name, wide.width), (*[inner] * (depth - 1), width), "gelu", bias=True)
    return (join, *rest)
