"""The vision tower of Segment Anything: window attention, global attention in some layers, relative positions, and
convolutions after the layers (arXiv:2304.02643, appendix A).

A window at the edge of an image is padded with empty patches, which take part as keys.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import Final

from ...documents import Section
from ...operators.attention import QK
from ...operators.base import Operator, Tensor
from ...operators.convolution import Conv2d
from ...operators.images import RelativePositions
from ...operators.masks import Tiled
from ...records import frozen
from .attention import SelfAttention
from .class_defaults import TOWERS
from .decoder import Layer
from .encoder import bidirectional
from .feed_forward import Mlp
from .fields import filled
from .moe import integers
from .parts import NormKind, Parts, heads_of, result, with_rows
from .tower import PatchGrid, Tower, image_rows, patch_grid, patches_of, tower_activation

_IMAGES: Final = TOWERS["SamVisionConfig"] | {"global_attn_indexes": [2, 5, 8, 11]}


@frozen(kw_only=True)
class PlacedAttention:
    """Attention whose scores have biases that queries make of rows and columns between them and a key.

    rows, columns  of patches that a query attends to
    """

    attention: SelfAttention
    rows: int
    columns: int

    def operators(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]:
        launches, heads = self.attention.operators(parts, x), self.attention.heads
        place = next(index for index, op in enumerate(launches) if isinstance(op, QK))
        out = parts.tensor("positions", heads.num_heads * (self.rows + self.columns))
        tables = {"rows": 2 * self.rows - 1, "columns": 2 * self.columns - 1}
        biases = RelativePositions(
            name=out.name,
            inputs=launches[place].inputs[:1],
            outputs=(out,),
            weights=tuple(parts.weight(f"positions.{name}", count, heads.head_dim) for name, count in tables.items()),
            head_dim=heads.head_dim,
        )
        return (*launches[:place], biases, *launches[place:])


def sam_tower(config: Section) -> Tower:
    """SAM's image encoder without its neck."""
    config = filled(config, _IMAGES)
    hidden, grid = config.integer("hidden_size"), patch_grid(config)
    inner = config.integer("mlp_dim", int(hidden * config.number("mlp_ratio", 4)))
    mlp = Mlp(inner=inner, act=tower_activation(config, "gelu"), bias=True)
    window, global_layers = config.integer("window_size", 14, least=0), integers(config, "global_attn_indexes")
    local = Layer(mixer=_attention(config, grid, window), feed_forward=mlp, name="local")
    everywhere = Layer(mixer=_attention(config, grid, 0), feed_forward=mlp, name="global")
    return Tower(
        grid=grid,
        hidden=hidden,
        layers=[everywhere if n in global_layers else local for n in range(config.count("num_hidden_layers"))],
        patch_bias=True,
        positions=grid.patches if config.flag("use_abs_pos", default=True) else 0,
    )


def _attention(config: Section, grid: PatchGrid, window: int) -> SelfAttention | PlacedAttention:
    """Attention within windows of `window` x `window` patches; 0: among all patches."""
    heads = bidirectional(heads_of(config))
    if window:
        heads = replace(heads, mask=Tiled(grid.patches * window**2))
    placed = config.flag("use_rel_pos", default=True)
    bias = config.flag("qkv_bias", default=True)
    plain = SelfAttention(heads=heads, fused_qkv=True, qkv_bias=bias, o_bias=True, alibi=placed)
    if not placed:
        return plain
    return PlacedAttention(attention=plain, rows=window or grid.height, columns=window or grid.width)


def neck(config: Section, tower: Tower, parts: Parts, widths: tuple[int, ...]) -> tuple[Operator, ...]:
    """Filters after the layers, of one patch and of 3 x 3 with a norm after each, and then of 3 x 3 of every second row
    and column, to each of `widths`.
    """
    height, width, out = tower.grid.height, tower.grid.width, config.integer("output_channels", 256)
    operators: tuple[Operator, ...] = ()
    x = patches_of(tower, parts)
    for name, taps in (("neck_1", 1), ("neck_2", 9)):
        conv = _filter(parts, name, x, out, taps=taps)
        operators = (*operators, conv, parts.norm(f"{name}_norm", conv.result, kind=NormKind.LAYER))
        x = result(operators)
    for index, wide in enumerate(widths, start=1):
        height, width = ceil(height / 2), ceil(width / 2)
        x = with_rows(x, image_rows(height * width, tower.tiles))
        operators = (*operators, _filter(parts, f"downsample_{index}", x, wide, taps=9))
        x = result(operators)
    return operators


def _filter(parts: Parts, name: str, x: Tensor, width: int, *, taps: int) -> Conv2d:
    """Convolution without a bias that keeps the number of rows of x."""
    out = with_rows(parts.tensor(name, width), x.rows)
    weight = parts.weight(f"{name}.weight", width, x.width, taps)
    return Conv2d(name=name, inputs=(x,), outputs=(out,), weights=(weight,))
