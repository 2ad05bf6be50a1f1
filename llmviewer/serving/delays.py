"""Distributions of think times and waits for tools."""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from typing import Final

import numpy as np

from ..errors import InputError
from ..records import frozen
from ..units import time_s
from .traffic import Times

_MAX_DELAY_S: Final = 1e6
_NOTATION: Final = "must be a time, such as 10 or '500 ms', exponential:MEAN or uniform:LEAST-MOST"


@frozen(kw_only=True)
class Delays:
    """A distribution of times between an answer and the next request. [s]

    draw  returns independent times of 0 or more
    """

    mean_s: float
    draw: Callable[[np.random.Generator, int], Times]


def parse_delays(text: str, name: str) -> Delays:
    """Parses "10", "500 ms", "exponential:10" or "uniform:2-20".

    name  name of the argument, for messages

    Raises InputError if the text is none of these.
    """
    kind, colon, arguments = str(text).strip().partition(":")
    try:
        if not colon:
            fixed_s = _seconds(kind)
            return Delays(mean_s=fixed_s, draw=lambda _, count: np.full(count, fixed_s))
        if kind == "exponential":
            mean_s = _seconds(arguments)
            return Delays(mean_s=mean_s, draw=lambda generator, count: generator.exponential(mean_s, count))
        if kind == "uniform":
            least, _, most = arguments.partition("-")
            ends_s = _seconds(least), _seconds(most)
            if ends_s[0] <= ends_s[1]:
                return Delays(mean_s=sum(ends_s) / 2, draw=lambda generator, count: generator.uniform(*ends_s, count))
    except ValueError:
        pass
    raise InputError(f"{name} {_NOTATION}, of 0 to {_MAX_DELAY_S:g} s; got {text!r}")


def _seconds(text: str) -> float:
    """Raises ValueError unless the text is a time within the limits. [s]"""
    seconds = time_s(text.strip())
    if not isfinite(seconds) or not 0 <= seconds <= _MAX_DELAY_S:
        raise ValueError(text)
    return seconds
