"""Loads of the experts of one device: rows, experts reached, and tiles."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import numpy as np

from .base import Array

TILES: Final = (8, 16, 32, 48, 64, 128)
_DRAWS: Final = 4


def local_loads(tokens: Array, experts: Array, chosen: Array, devices: Array, skew: Array) -> Array:
    """The load of the device with most rows, a row for each shape: its rows, experts with any row, and tiles of each
    height in TILES.

    skew  0 if all experts are equally likely; else the exponent of the density that an expert's share is drawn from,
          between 1 and 0.8 tokens, or 0.01 and 2 for few tokens (the convention of the aiconfigurator collector, which
          made the measurements)
    """
    loads = _even(tokens, experts, chosen, devices)
    rows = np.flatnonzero(skew > 0)
    if len(rows):
        sizes = ((tokens * 2.0**12 + experts) * 2.0**9 + chosen) * 2.0**10 + devices  # with the skew, one number a case
        kinds = np.unique(skew, return_inverse=True)[1].reshape(-1)
        cases_of = sizes.astype(np.int64) * (int(kinds.max()) + 1) + kinds
        _, first, place = np.unique(cases_of[rows], return_index=True, return_inverse=True)
        cases = zip(*(column[rows][first].tolist() for column in (tokens, experts, chosen, devices, skew)), strict=True)
        loads[rows] = np.array([_skewed(int(t), int(e), int(k), int(d), s) for t, e, k, d, s in cases])[place]
    return loads


def _even(tokens: Array, experts: Array, chosen: Array, devices: Array) -> Array:
    local, total = np.maximum(experts // devices, 1), tokens * chosen
    rows_per_expert = total // experts
    larger_experts = np.minimum(np.ceil(total % experts / devices), local)  # experts that have one row more
    tiles = even_tiles(local * rows_per_expert + larger_experts, local)
    return np.concatenate(
        [
            np.stack(
                [local * rows_per_expert + larger_experts, np.where(rows_per_expert > 0, local, larger_experts)], axis=1
            ),
            tiles,
        ],
        axis=1,
    )


def even_tiles(rows: Array, experts: Array) -> Array:
    """Tiles of each height in TILES if `rows` are dealt out evenly to `experts`, a number that may be a mean."""
    rows_per_expert = np.floor(rows / experts)
    larger_experts = rows - rows_per_expert * experts
    heights = np.array(TILES)
    small_tiles, large_tiles = (np.ceil(each[:, None] / heights) for each in (rows_per_expert, rows_per_expert + 1))
    return np.asarray((experts - larger_experts)[:, None] * small_tiles + larger_experts[:, None] * large_tiles)


@lru_cache(maxsize=200_000)
def _skewed(tokens: int, experts: int, chosen: int, devices: int, skew: float) -> tuple[float, ...]:
    local = max(experts // devices, 1)
    total = tokens * chosen
    smallest, largest = (1.0, 0.8 * tokens) if total > experts else (0.01, 2.0)
    uniform = (np.arange(experts) + 0.5) / experts
    power = 1 - skew
    if power:
        drawn = ((largest**power - smallest**power) * uniform + smallest**power) ** (1 / power)
    else:  # what that tends to
        drawn = smallest * (largest / smallest) ** uniform
    shares = drawn / drawn.sum() * total
    counts = np.round(shares)
    order = np.argsort(-shares, kind="stable")
    missing = int(total - counts.sum())  # what rounding took from, or gave to, the most popular
    np.add.at(counts, order[np.arange(abs(missing)) % experts], np.sign(missing))
    counts = np.clip(counts, 0, tokens)
    totals = np.zeros(2 + len(TILES))
    random = np.random.default_rng(0)
    for _ in range(_DRAWS):
        busiest = random.permutation(counts)[: local * devices].reshape(devices, local)
        totals += _summary(busiest[np.argmax(busiest.sum(axis=1))])
    return tuple(totals / _DRAWS)


def _summary(counts: Array) -> tuple[float, ...]:
    rows, reached = float(counts.sum()), float(np.count_nonzero(counts))
    return (rows, reached, *(float(np.ceil(counts / tile).sum()) for tile in TILES))
