"""Division of images into tiles, which a vision tower reads separately, beside a small version of the whole image."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import ceil, log
from typing import Final

from ...documents import Section
from .tower import sides

_SIDE: Final = 1024  # pixels of an image to each side, where a config does not say


def picture_size(config: Section) -> tuple[int, int]:
    """Height and width of images, from an optional field that users may add. [pixels]"""
    return sides(config, "picture_size", _SIDE)


def best_resolution(size: tuple[int, int], resolutions: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """The one of `resolutions`, height and width, in which most of an image's pixels are kept, with the least beside
    them, as select_best_resolution of transformers has it.
    """

    def worth(resolution: tuple[int, int]) -> tuple[int, int]:
        scale = min(side / image_side for side, image_side in zip(resolution, size, strict=True))
        effective_pixels = min(int(size[0] * scale) * int(size[1] * scale), size[0] * size[1])
        return effective_pixels, effective_pixels - resolution[0] * resolution[1]

    return max(resolutions, key=worth)


def closest_grid(size: tuple[int, int], tile: tuple[int, int], *, least: int, most: int) -> tuple[int, int]:
    """Rows and columns of tiles, `least` to `most` of them, whose shape is nearest to that of an image; of such the
    largest that covers less than twice its area, as get_optimal_tiled_canvas of transformers has it for InternVL.
    """
    shape, area = size[1] / size[0], size[0] * size[1]
    every = ((rows, columns) for columns in range(1, most + 1) for rows in range(1, most // columns + 1))
    best, nearest = (1, 1), float("inf")
    for rows, columns in sorted((g for g in every if g[0] * g[1] >= least), key=lambda g: g[0] * g[1]):
        ratio_error = abs(shape - columns / rows)
        if ratio_error < nearest or (ratio_error == nearest and area > tile[0] * tile[1] * rows * columns / 2):
            best, nearest = (rows, columns), ratio_error
    return best


def best_fit(size: tuple[int, int], tile: tuple[int, int], *, most: int) -> tuple[int, int]:
    """Rows and columns of the tiles, `most` at most, into which an image fits with the least room to spare, or, where
    it fits none, is shrunk least; of such the fewest, as get_best_fit of transformers has it for Llama 4.
    """

    def scale(grid: tuple[int, int]) -> Fraction:
        return min(Fraction(n * side, image_side) for n, side, image_side in zip(grid, tile, size, strict=True))

    every = [(rows, columns) for rows in range(1, most + 1) for columns in range(1, most // rows + 1)]
    scales = {grid: scale(grid) for grid in every}
    fitting = [s for s in scales.values() if s >= 1]
    target_scale = min(fitting) if fitting else max(scales.values())
    return min((grid for grid in every if scales[grid] == target_scale), key=lambda grid: grid[0] * grid[1])


def longest_side(size: tuple[int, int], tile: tuple[int, int], tiles: int) -> tuple[int, int]:
    """Rows and columns of the tiles of an image whose longer side is brought to `tiles` of them, as the processor of
    Idefics3 has it: the shorter side is brought to an even number of pixels, and then to whole tiles.
    """
    if size[0] > size[1]:
        columns, rows = longest_side(size[::-1], tile[::-1], tiles)
        return rows, columns
    short_tiles = tiles * tile[1] * size[0] // size[1]
    return max(ceil((short_tiles + short_tiles % 2) / tile[0]), 1), tiles


def nearest_slices(size: tuple[int, int], side: int, *, most: int) -> tuple[int, int]:
    """Rows and columns of slices, about as many as there are `side` x `side` pixels in an image, in the shape nearest
    to its own, as get_sliced_grid of transformers has it for MiniCPM-V; 1, 1 where it is not cut.
    """
    target_slices = min(ceil(size[0] * size[1] / side**2), most)
    counts = (
        [n for n in (target_slices - 1, target_slices, target_slices + 1) if 1 < n <= most] if target_slices > 1 else []
    )
    grids = [(rows, n // rows) for n in counts for rows in range(1, n + 1) if n % rows == 0]
    shape = log(size[1] / size[0])
    return min(grids, key=lambda grid: (abs(shape - log(grid[1] / grid[0])), -grid[0]), default=(1, 1))
