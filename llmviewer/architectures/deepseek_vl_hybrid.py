"""DeepSeek-VL 7B: SigLIP and, at a higher resolution, the tower of Segment Anything; the features of both are
concatenated (arXiv:2403.05525, section 3.1).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ..documents import Section
from ..forms import images
from ..graph import Block, Graph
from ..operators.base import Operator, Tensor
from ..operators.convolution import Conv2d
from ..operators.elementwise import Permute
from ..precision import Format
from . import architecture
from .blocks.fields import filled
from .blocks.parts import HIDDEN, NormKind, Parts, result, reused_weight, with_rows
from .blocks.sam import sam_tower
from .blocks.tower import UNUSED, Tower, image_rows, joined, language, part, projector, vision
from .siglip import plain_tower, pooled_head

_HIGH: Final = "high_features"
_INTERPOLATION: Final = 7  # OPs to weigh and add four neighbours
_SAM_IGNORED: Final = "num_pos_feats model_type"


@architecture("deepseek_vl_hybrid")
def build(config: Section, fmt: Format) -> Graph:
    """DeepSeek-VL 7B: SigLIP and Segment Anything towers, features side by side, before a Llama."""
    text, width = language(filled(config, {"tie_word_embeddings": True, "text_config": {}}), fmt, "llama")
    section = vision(filled(config, {"vision_config": {}}))
    high = part(config, "high_res_vision_config")
    high.ignore(*_SAM_IGNORED.split())
    tower, second = plain_tower(section), sam_tower(high)
    parts, grid = tower.parts(fmt), tower.grid
    if grid.height != grid.width:
        raise section.error("image_size", f"must be that of a square; got {grid.height} x {grid.width} patches")
    channels = high.integer("output_channels", 256)
    features = _high(second, parts, channels, grid.height)
    before = [replace(block, name=f"high_{block.name}") for block in second.blocks(fmt, second.stream)]
    before.append(
        Block(name="high_features", operators=features, input=HIDDEN, output=_HIGH, stream=images(grid.patches))
    )
    project = _aligned(parts, tower, 4 * channels, width)
    head = (replace(b, name=f"unused_{b.name}", stream=UNUSED) for b in pooled_head(section, tower, fmt))
    blocks = (*before, *tower.blocks(fmt, tower.stream), *head)
    return joined(blocks, project, text, tokens=grid.patches, side_inputs=(_HIGH,))


def _aligned(parts: Parts, tower: Tower, high: int, width: int) -> tuple[Operator, ...]:
    """Half of a token of each tower, GELU and a projection."""
    low = parts.project("vision_proj", parts.tensor(HIDDEN, tower.hidden), width // 2, bias=True)
    fine = parts.project("high_proj", parts.tensor(_HIGH, high), width // 2, bias=True)
    joined_tensor = parts.tensor("both", width)
    join = Permute(name=joined_tensor.name, inputs=(fine.result, low.result), outputs=(joined_tensor,))
    act = parts.activate("both_act", "gelu", joined_tensor)
    return (low, fine, join, act, *projector(parts, act.result, (width,), "gelu", bias=True))


def _high(tower: Tower, parts: Parts, channels: int, side: int) -> tuple[Operator, ...]:
    """Features of the layers, and, scaled, of the first global layer, brought to `side` x `side` tokens by the same
    convolutions.
    """
    last = _neck(tower, parts, "neck", channels)
    scaled = _scaled_down(parts, "last", result(last), channels, side)
    early = _neck(tower, parts, "early_neck", channels)
    reused = tuple(op.with_weights(reused_weight) for op in _scaled_down(parts, "early", result(early), channels, side))
    out = with_rows(parts.tensor(_HIGH, 4 * channels), image_rows(side**2))
    add = parts.elementwise(_HIGH, result(scaled), result(reused), ops=2, weights={"alpha": 1})
    return (*last, *scaled, *early, *reused, replace(add, outputs=(out,)))


def _neck(tower: Tower, parts: Parts, name: str, channels: int) -> tuple[Operator, ...]:
    """Convolutions of 1 x 1 and 3 x 3 patches, with a norm after each."""
    operators: tuple[Operator, ...] = ()
    x = with_rows(parts.tensor(HIDDEN, tower.hidden), image_rows(tower.grid.patches))
    for place, taps in (("1", 1), ("2", 9)):
        conv = _convolution(parts, f"{name}_{place}", x, channels, taps)
        operators = (*operators, conv, parts.norm(f"{name}_{place}_norm", conv.result, kind=NormKind.LAYER))
        x = result(operators)
    return operators


def _scaled_down(parts: Parts, name: str, x: Tensor, channels: int, side: int) -> tuple[Operator, ...]:
    """Interpolation to four times the tokens to a side, and two convolutions with stride 2."""
    resized = parts.elementwise(f"{name}_resize", x, ops=_INTERPOLATION)
    resized = resized.with_tensors(lambda t: with_rows(t, image_rows((4 * side) ** 2)) if t is not x else t)
    operators: tuple[Operator, ...] = (resized,)
    for place, (left, wide) in enumerate(((2 * side, 2 * channels), (side, 4 * channels)), start=1):
        source = with_rows(result(operators), image_rows(left**2))
        conv = _convolution(parts, f"{name}_down_{place}", source, wide, 9)
        operators = (*operators, replace(conv, inputs=(result(operators),)))
    return operators


def _convolution(parts: Parts, name: str, x: Tensor, width: int, taps: int) -> Conv2d:
    """A convolution without bias, of as many rows as x has."""
    out = with_rows(parts.tensor(name, width), x.rows)
    return Conv2d(
        name=name, inputs=(x,), outputs=(out,), weights=(parts.weight(f"{name}.weight", width, x.width, taps),)
    )
