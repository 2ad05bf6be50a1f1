"""Distributions of think times and waits for tools."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import numpy as np

from ..errors import InputError
from ..records import frozen
from ..units import TIME_EXAMPLES, time_s
from .traffic import Times

_MAX_DELAY_S: Final = 1e6
_NOTATION: Final = f"must be a time, {TIME_EXAMPLES}, exponential:MEAN or uniform:LEAST-MOST"

_time_s = partial(time_s, zero=True, most=_MAX_DELAY_S)


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
            fixed_s = _time_s(kind)
            return Delays(mean_s=fixed_s, draw=lambda _, count: np.full(count, fixed_s))
        if kind == "exponential":
            mean_s = _time_s(arguments)
            return Delays(mean_s=mean_s, draw=lambda generator, count: generator.exponential(mean_s, count))
        if kind == "uniform":
            least, _, most = arguments.partition("-")
            ends_s = _time_s(least), _time_s(most)
            if ends_s[0] <= ends_s[1]:
                return Delays(mean_s=sum(ends_s) / 2, draw=lambda generator, count: generator.uniform(*ends_s, count))
    except ValueError:
        pass
    raise InputError(f"{name} {_NOTATION}, of 0 to {_MAX_DELAY_S:g} s; got {text!r}")
