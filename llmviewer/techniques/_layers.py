"""Changes of some layers, and fractions of consecutive layers as text."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cache
from typing import Final

import numpy as np

from ..graph import Block

_BISECTION_STEPS: Final = 53  # to the last bit of a float

_NOTATION: Final = re.compile(r"([1-9]\d{0,4})x(0?\.\d{1,9}|[01](?:\.0*)?)")


def split_layers(
    block: Block, is_inside_layer: Callable[[int], bool], change: Callable[[Block], Block]
) -> Iterator[Block]:
    """Splits `block` into the layers outside and, changed by `change`, inside; other blocks are unchanged."""
    layers = block.layers if block.main else ()
    inside, outside = (tuple(n for n in layers if is_inside_layer(n) is is_inside) for is_inside in (True, False))
    if outside or not inside:
        yield replace(block, layers=outside) if layers else block
    if inside:
        yield change(replace(block, layers=inside))


def parse_by_layer(text: str) -> tuple[float, ...]:
    """A fraction for each layer, from text such as "8x0.6+24x0.75"; empty if it does not parse."""
    pieces = [_NOTATION.fullmatch(piece.strip()) for piece in text.split("+")]
    if not all(pieces):
        return ()
    return tuple(float(piece[2]) for piece in pieces if piece for _ in range(int(piece[1])))


def by_layer_problem(text: str, layers: int) -> str:
    """The reason why `text` has no fraction for each of `layers` layers; "" if it has."""
    fractions = parse_by_layer(text)
    if not fractions:
        return f"must be fractions of consecutive layers, such as 8x0.6+24x0.75; got {text!r}"
    return f"must have {layers} layers; got {len(fractions)} in {text!r}" if len(fractions) != layers else ""


def change_by_layer(
    blocks: Iterable[Block], text: str, change: Callable[[float], Callable[[Block], Block]], *, unchanged: float
) -> tuple[Block, ...]:
    """Blocks with their layers split and changed by `change` of the fraction of each, but for the one `unchanged`."""
    fractions = parse_by_layer(text)
    for one in {*fractions} - {unchanged}:
        layers = {n for n, fraction in enumerate(fractions) if fraction == one}
        blocks = [piece for block in blocks for piece in split_layers(block, layers.__contains__, change(one))]
    return tuple(blocks)


@cache
def shares_left(mean: float, every: int, layers: int) -> tuple[float, ...]:
    """Fractions of sequences or tokens that run the layers before each exit, of which the same part leaves at each."""
    exits = np.arange(layers) // every
    low, high = 0.0, 1.0
    for _ in range(_BISECTION_STEPS):
        stay = (low + high) / 2
        low, high = (stay, high) if np.mean(stay**exits) < mean else (low, stay)
    return tuple((high ** np.arange(exits[-1] + 1.0)).tolist())
