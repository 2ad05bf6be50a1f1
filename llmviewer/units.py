"""Quantities as text <-> SI floats. The only file that knows prefixes; inside, all numbers are OPs, bytes, seconds."""

from __future__ import annotations

import math
import re
from contextlib import suppress
from typing import Final

_PREFIX: Final = {
    "": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18,
    "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40,
}  # fmt: skip
_SMALL_PREFIX: Final = {
    "m": 1e-3,
    "u": 1e-6,
    "\u00b5": 1e-6,
    "\u03bc": 1e-6,
    "n": 1e-9,
}  # of seconds alone: "80 mB" is a slip
_LONG_UNITS: Final = {"min": 60.0, "h": 3600.0, "d": 86400.0}  # of times [s]
_EXAMPLE: Final = {
    "OP/s": "155 TOP/s", "B/s": "1.5 TB/s", "bit/s": "21 Gbit/s", "B": "80 GB", "Hz": "1800 MHz", "W": "300 W",
    "s": "2 s", "USD/h": "2.5 USD/h", "USD": "30000 USD",
}  # fmt: skip
_SYNONYMS: Final = dict.fromkeys(
    ("FLOP/s", "FLOPS", "FLOPs", "OPS"), "OP/s"
)  # of datasheets, whose multiply-add is two too
_QUANTITY: Final = re.compile(
    r"(\d+(?:\.\d+)?(?:[eE][+-]?\d+)?) ?"
    rf"(?:({'|'.join(_PREFIX)})({'|'.join((*_EXAMPLE, *_SYNONYMS))})|({'|'.join(_SMALL_PREFIX)})(s)"
    rf"|({'|'.join(_LONG_UNITS)}))"
)
TIME_EXAMPLES: Final = "0.5 (seconds), '500 ms' or '2 h'"
_MIN_VALUE: Final = {"OP/s": 1e6, "B/s": 1e3, "s": 1e-12}  # below which, and above which, squares of times overflow
_MAX_VALUE: Final = 1e24
_LONG_TIMES: Final = ((365.25 * 86400, 365.25 * 86400, "years"), (1e5, 86400.0, "days"))  # from how many seconds on
_STEPS: Final = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def parse(text: object, unit: str) -> float:
    """Reads a positive quantity, such as "3.35 TB/s" where `unit` is "B/s", as 3.35e12.

    >>> parse("3.35 TB/s", "B/s")
    3350000000000.0
    >>> parse("80GiB", "B"), parse("500 us", "s"), parse("66.9 TOP/s", "OP/s")
    (85899345920.0, 0.0005, 66900000000000.0)
    >>> parse("1 PFLOP/s", "OP/s"), parse("989 TFLOPS", "OP/s"), parse("1.5 h", "s")
    (1000000000000000.0, 989000000000000.0, 5400.0)
    """
    match = _QUANTITY.fullmatch(text) if isinstance(text, str) else None
    value = float(match[1]) * _scale(match) if match else 0.0
    value = float(f"{value:.15g}")  # or 66.9 T would be 66900000000000.01
    named_unit = match and ("s" if match[6] else match[5] or _SYNONYMS.get(match[3], match[3]))
    if unit != named_unit or not 0 < value < math.inf:
        must = f"must be a positive number and a unit in {unit}, such as '{_EXAMPLE[unit]}'"
        raise ValueError(f"{must}; got {text!r}")
    minimum = _MIN_VALUE.get(unit, 0.0)
    if not minimum <= value <= _MAX_VALUE:
        raise ValueError(f"must be from {minimum:g} to {_MAX_VALUE:g} {unit}; got {text!r}")
    return value


def _scale(match: re.Match[str]) -> float:
    """The unit of a quantity in SI units."""
    if match[6]:
        return _LONG_UNITS[match[6]]
    return _SMALL_PREFIX[match[4]] if match[4] else _PREFIX[match[2]]


def time_s(value: object, *, zero: bool = False, most: float = _MAX_VALUE) -> float:
    """Reads a time: a number of seconds, or a quantity such as "500 ms" or "2 h". [s]

    zero  whether it may be 0
    most  largest time [s]

    >>> time_s(0.5), time_s("500 ms"), time_s("30min"), time_s("0", zero=True)
    (0.5, 0.5, 1800.0, 0.0)

    Raises ValueError if it is neither, or out of range.
    """
    text = str(value).strip()
    with suppress(ValueError):
        time = parse(text, "s") if text[-1:].isalpha() else float(text)
        if 0 <= time <= most and (time or zero):
            return time
    limit = f", of at most {most:g} s" if most < _MAX_VALUE else ""
    raise ValueError(
        f"must be a {'time of 0 or more' if zero else 'positive time'}{limit}: {TIME_EXAMPLES}; got {value!r}"
    )


def si(value: float, digits: int = 3) -> str:
    """`value` with a decimal prefix and `digits` significant digits; follow it with the unit.

    >>> si(154.8e12), si(67108864), si(999.7), si(0)
    ('155 T', '67.1 M', '1.00 k', '0 ')
    """
    if value == 0 or not math.isfinite(value):
        return f"{value:g} "
    for step, prefix in (*_STEPS, (1.0, "")):
        if 2 * abs(value) < step:  # no rounding makes it 1: not worth a text, of which lists have thousands
            continue
        text = significant(value / step, digits)
        if abs(float(text)) >= 1:
            return f"{text} {prefix}"
    return f"{significant(value, digits)} "


def significant(value: float, digits: int = 3) -> str:
    """Fixed-point text of `value` with `digits` significant digits, none of its integer digits dropped.

    >>> significant(4213.7), significant(29.53), significant(0.0042)
    ('4214', '29.5', '0.00420')
    """
    if value == 0:
        return "0"
    magnitude = math.floor(math.log10(abs(float(f"{value:.{digits - 1}e}"))))
    return f"{value:.{max(digits - 1 - magnitude, 0)}f}"


def counted(number: int, noun: str, several: str = "") -> str:
    """A number with its noun.

    >>> counted(1, "device"), counted(1200, "row"), counted(2, "launch", "launches")
    ('1 device', '1,200 rows', '2 launches')
    """
    return f"{number:,} {noun if number == 1 else several or noun + 's'}"


def fold(ratio: float, digits: int = 3) -> str:
    """A ratio as text.

    >>> fold(1398.6, 2), fold(20.96), fold(0.5)
    ('1400x', '21x', '0.5x')
    """
    text = f"{ratio:.{digits}g}"
    return f"{float(text):.0f}x" if "e+" in text else f"{text}x"


def seconds(value: float | None, digits: int = 3) -> str:
    """A duration with a unit that suits its size.

    >>> seconds(0.01829), seconds(2.13e-8), seconds(75.3), seconds(None)
    ('18.3 ms', '21.3 ns', '75.3 s', '-')
    >>> seconds(99999), seconds(1e6), seconds(1.66e10)
    ('99999 s', '11.6 days', '526 years')
    """
    if value is None or math.isnan(value):
        return "-"
    for threshold_s, step, unit in _LONG_TIMES:
        if value >= threshold_s:
            return f"{significant(value / step, digits)} {unit}"
    for step, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if value >= step * (1 - 0.5 * 10.0**-digits):
            return f"{significant(value / step, digits)} {unit}"
    return f"{significant(value / 1e-9, digits)} ns" if value else "0 s"
