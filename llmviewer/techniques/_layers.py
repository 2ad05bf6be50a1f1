"""Fractions of consecutive layers, written as text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

_NOTATION: Final = re.compile(r"([1-9]\d{0,4})x(0?\.\d{1,9}|[01](?:\.0*)?)")


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


def layers_by_fraction(text: str, *, without: float) -> Mapping[float, set[int]]:
    """Numbers of layers by their fraction, but for those of the fraction `without`."""
    fractions = parse_by_layer(text)
    return {one: {n for n, fraction in enumerate(fractions) if fraction == one} for one in {*fractions} - {without}}
