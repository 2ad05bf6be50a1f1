"""A tower without attention: each linear layer folds neighbouring cells of a patch into channels, until the patch is
one token (arXiv:2203.09795, section 4.3, whose hMLP stem this makes deeper).
"""

from __future__ import annotations

from itertools import combinations, pairwise
from math import ceil, comb, log, prod
from typing import Final, TypeAlias

from ...documents import Section
from ...operators.base import Operator
from .parts import Parts, result, with_rows
from .tower import image_rows

Scale: TypeAlias = tuple[int, int, int, int]  # frames, rows and columns of a patch that are one cell, and its channels

_ALIGNMENT: Final = 64  # channels are multiples of it
_MOST_PLANS: Final = 100_000


def fold_layers(parts: Parts, scales: tuple[Scale, ...], patches: int, width: int) -> tuple[Operator, ...]:
    """The layers between `scales`, over an image of so many patches; each patch leaves a token of `width`."""
    cells, last = prod(scales[-1][:3]), len(scales) - 2
    x = parts.tensor("pixels", scales[0][3])
    operators: tuple[Operator, ...] = ()
    for index, (before, after) in enumerate(pairwise(scales)):
        folded = prod(after[:3]) // prod(before[:3]) * before[3]
        rows = image_rows(patches * cells // prod(after[:3]))
        out = with_rows(parts.tensor(f"fold_{index}", width if index == last else after[3]), rows)
        operators = (*operators, parts.linear(out.name, with_rows(parts.tensor(x.name, folded), rows), out))
        if index < last:
            norm = parts.norm(f"{out.name}_norm", out)
            operators = (*operators, norm, parts.activate(f"{out.name}_act", "gelu", norm.result))
        x = result(operators)
    return operators


def scales_of(config: Section) -> tuple[Scale, ...]:
    """Scale before the first layer and after each, as transformers' plan_out_scales chooses them.

    Rows and columns are folded by the prime factors of patch_size, the largest first, then frames. Of these scales each
    layer has the one whose size is nearest to an even step of its logarithm; fewer layers than scales have different
    ones, which are nearest in all.
    """
    side, frames = config.integer("patch_size"), config.integer("temporal_patch_size")
    channels, layers = config.integer("num_channels"), config.count("num_hidden_layers")
    scales: list[Scale] = [(1, 1, 1, channels)]
    for factor in _primes(side):
        tall = scales[-1][1] * factor
        scales.append((1, tall, tall, _aligned(tall**2 * channels)))
    for factor in _primes(frames):
        deep = scales[-1][0] * factor
        scales.append((deep, side, side, side**2 * channels * deep * _ALIGNMENT))  # not divided by it there, either
    sizes = [log(prod(scale[:3])) for scale in scales]
    total = log(side**2 * frames * channels)
    ideal = [total * step / layers for step in range(layers + 1)]
    if layers >= len(scales):
        chosen = [min(range(len(scales)), key=lambda place: abs(step - sizes[place])) for step in ideal]
    elif comb(len(scales), layers + 1) > _MOST_PLANS:
        raise config.error("patch_size", f"must have few prime factors for {layers} layers; got {side}")
    else:
        plans = combinations(range(len(scales)), layers + 1)
        chosen = list(min(plans, key=lambda plan: sum(abs(a - sizes[b]) for a, b in zip(ideal, plan, strict=True))))
    return tuple(scales[place] for place in (0, *chosen[1:-1], len(scales) - 1))


def _aligned(channels: int) -> int:
    return ceil(channels / _ALIGNMENT) * _ALIGNMENT


def _primes(number: int) -> list[int]:
    """Prime factors, the largest first."""
    factors: list[int] = []
    factor = 2
    while factor * factor <= number:
        while number % factor == 0:
            factors.append(factor)
            number //= factor
        factor += 1
    return sorted((*factors, *([number] if number > 1 else [])), reverse=True)
