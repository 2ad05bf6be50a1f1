"""How many tokens reach the experts of one device."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import numpy as np

from ._family import Array

TILES: Final = (16, 32, 64, 128)
_DRAWS: Final = 4


@lru_cache(maxsize=200_000)
def local_load(tokens: int, experts: int, chosen: int, devices: int, skew: float) -> tuple[float, ...]:
    """Of the device with the most: rows, experts with any, and tiles of 16, 32, 64 and 128 rows.

    skew  0: all experts alike; else the exponent of the density that an expert's share is drawn from, between 1 and
          0.8 tokens, or 0.01 and 2 where tokens are few (the convention of the aiconfigurator collector, whose
          measurements have it)
    """
    local = max(experts // devices, 1)
    total = tokens * chosen
    if skew <= 0:
        counts = np.full(local, total // experts) + (np.arange(local) < (total % experts) / max(devices, 1))
        return _summary(counts.astype(float))
    least, most = (1.0, 0.8 * tokens) if total > experts else (0.01, 2.0)
    uniform = (np.arange(experts) + 0.5) / experts
    power = 1 - skew
    drawn = ((most**power - least**power) * uniform + least**power) ** (1 / power)
    shares = drawn / drawn.sum() * total
    whole = np.round(shares)
    order = np.argsort(-shares, kind="stable")
    missing = int(total - whole.sum())  # what rounding took from, or gave to, the most popular
    np.add.at(whole, order[np.arange(abs(missing)) % experts], np.sign(missing))
    whole = np.clip(whole, 0, tokens)
    found = np.zeros(2 + len(TILES))
    random = np.random.default_rng(0)
    for _ in range(_DRAWS):
        busiest = random.permutation(whole)[: local * devices].reshape(devices, local)
        found += _summary(busiest[np.argmax(busiest.sum(axis=1))])
    return tuple(found / _DRAWS)


def _summary(counts: Array) -> tuple[float, ...]:
    rows, reached = float(counts.sum()), float(np.count_nonzero(counts))
    return (rows, reached, *(float(np.ceil(counts / tile).sum()) for tile in TILES))
