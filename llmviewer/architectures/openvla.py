"""OpenVLA and Prismatic: DINOv2 and SigLIP encode the same patches, whose features are concatenated, before a Llama 2
(arXiv:2406.09246, arXiv:2402.07865).

The features are those of the layer before the last. An action is seven tokens of the answer.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ..documents import Section
from ..graph import Actions, Block, Graph
from ..operators.attention import Heads
from ..operators.elementwise import Permute
from ..precision import Format
from ..records import frozen
from . import architecture
from .blocks.encoder import bidirectional, leaving
from .blocks.feed_forward import Mlp
from .blocks.fields import filled
from .blocks.moe import integers
from .blocks.parts import HIDDEN, with_rows
from .blocks.tower import UNUSED, PatchGrid, Tower, image_rows, joined, language, layer, projector, scaled_layer
from .siglip import pooled_head

_ACTION: Final = 7  # tokens: a position, a rotation and a gripper
_FIRST: Final = "first_features"
_IGNORED: Final = """
    arch_specifier hf_llm_id image_resize_strategy llm_backbone_id llm_max_length n_action_bins norm_stats
    output_projector_states pad_to_multiple_of timm_override_act_layers vision_backbone_id image_token_index
    use_fused_vision_backbone
"""


@frozen(kw_only=True)
class Vit:
    """A vision transformer of timm.

    learned  class and register tokens, to which no positions are added
    scaled   whether branches are scaled per element
    pools    whether the checkpoint has a head that pools, which does not run
    """

    hidden: int
    layers: int
    inner: int
    learned: int = 0
    scaled: bool = False
    pools: bool = False


_TOWERS: Final = {  # by the begin of their names in timm
    "vit_large_patch14_reg4_dinov2": Vit(hidden=1024, layers=24, inner=4096, learned=5, scaled=True),
    "vit_so400m_patch14_siglip": Vit(hidden=1152, layers=27, inner=4304, pools=True),
}
_PATCH: Final = 14
_HEADS: Final = 16


@architecture("openvla")
def build(config: Section, fmt: Format) -> Graph:
    """OpenVLA: Prismatic whose answer is an action of seven tokens."""
    return replace(build_prismatic(config, fmt), actions=Actions(count=1, steps=_ACTION, denoising=False))


@architecture("prismatic")
def build_prismatic(config: Section, fmt: Format) -> Graph:
    """Prismatic: DINOv2 and SigLIP features side by side before a Llama 2."""
    config.ignore(*_IGNORED.split())
    text, width = language(filled(config, {"text_config": {}}), fmt, "llama")
    names = config.texts("timm_model_ids") or ("vit_large_patch14_reg4_dinov2", "vit_so400m_patch14_siglip_224")
    sizes = integers(config, "image_sizes") or (224,) * len(names)
    if len(sizes) != len(names) or len(names) > 2:
        raise config.error("image_sizes", f"must be one for each of one or two towers; got {len(sizes)}")
    towers = [_tower(config, name, size) for name, size in zip(names, sizes, strict=True)]
    (first, _), *others = towers
    parts, patches = first.parts(fmt), first.grid.patches
    if any(tower.grid.patches != patches for tower, _ in others):
        raise config.error("image_sizes", "must be such that both towers have as many patches")
    blocks = [block for number, one in enumerate(towers) for block in _blocks(*one, fmt, number, len(towers))]
    rows, wide = image_rows(patches), sum(tower.hidden for tower, _ in towers)
    last = with_rows(parts.tensor(HIDDEN, towers[-1][0].hidden), rows)
    if not others:
        project = projector(parts, last, (width, width), "gelu", bias=True)
        return joined(blocks, project, text, tokens=patches)
    join = Permute(
        name="both", inputs=(with_rows(parts.tensor(_FIRST, first.hidden), rows), last),
        outputs=(parts.tensor("both", wide),),
    )  # fmt: skip
    project = (join, *projector(parts, join.result, (4 * wide, width, width), "gelu", bias=True))
    return joined(blocks, project, text, tokens=patches, side_inputs=(_FIRST,))


def _tower(config: Section, name: str, size: int) -> tuple[Tower, Vit]:
    vit = next((sizes for begin, sizes in _TOWERS.items() if name.startswith(begin)), None)
    if vit is None:
        raise config.error("timm_model_ids", f"must begin with one of {', '.join(_TOWERS)}; got {name!r}")
    side = size // _PATCH
    grid = PatchGrid(height=side, width=side, pixels=3 * _PATCH**2)
    heads = bidirectional(Heads(num_heads=_HEADS, num_kv_heads=_HEADS, head_dim=vit.hidden // _HEADS))
    plain = layer(heads, Mlp(inner=vit.inner, act="gelu", bias=True), fused_qkv=True)
    return (
        Tower(
            grid=grid,
            hidden=vit.hidden,
            layers=[scaled_layer(plain) if vit.scaled else plain] * vit.layers,
            patch_bias=True,
            learned=vit.learned,
            positions=grid.patches,
            post_norm=True,
            run=vit.layers - 1,
        ),
        vit,
    )


def _blocks(tower: Tower, vit: Vit, fmt: Format, number: int, towers: int) -> list[Block]:
    """The tower's blocks; of two towers, the first one leaves _FIRST."""
    blocks = list(tower.blocks(fmt, tower.stream))
    if vit.pools:
        config = Section({"hidden_size": vit.hidden, "intermediate_size": vit.inner, "num_attention_heads": _HEADS}, "")
        blocks += [replace(b, name=f"unused_{b.name}", stream=UNUSED) for b in pooled_head(config, tower, fmt)]
    if number or towers == 1:
        return blocks
    last = max(index for index, block in enumerate(blocks) if block.layers and block.stream != UNUSED)
    blocks[last] = replace(blocks[last], operators=leaving(blocks[last].operators, _FIRST), output=_FIRST)
    return [replace(block, name=f"first_{block.name}") for block in blocks]
