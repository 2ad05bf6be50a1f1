"""Axes of a sweep: parsing and checks."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any, Final

import numpy as np

from .. import arguments
from ..devices.keys import SECTIONS
from ..errors import InputError, suggest
from ..parameters import DEGREES
from ..setting import whole_number

NUMBERS: Final = ("batch", "prompt", "gen", "kv_len", "images")  # axes computed as arrays
TECHNIQUES: Final = ("quant", "attention", "layout")  # axes with one graph per value
DEVICE: Final = frozenset(
    f"{section}.{key}" for section, keys in SECTIONS.items() for key in keys
)  # axes of what-ifs on the device
_MOST: Final = 10_000_000  # values on an axis
_RANGE: Final = re.compile(r"(\d+)\.\.(\d+)(?:([*+])(\d+))?")


def parse_axis(text: str, *, option: str = "--over ", most: int = _MOST) -> tuple[str, list[int] | list[str]]:
    """(axis, values) of a text.

    Examples are "batch=1..256", "batch=1..256*2", "prompt=128..4096+128", "prompt=128,512", "quant=W16A16,W4A16g128",
    "layout=tp=1,tp=4 pp=2" and "memory.bandwidth=1x,2x".

    option  the option, for errors
    most    largest number of values

    Raises InputError if the text does not parse.
    """
    name, equals, given = (part.strip() for part in text.partition("="))
    where = f"{option}{text}"
    own = (*NUMBERS, *TECHNIQUES, *DEGREES)
    if equals and "." in name and name not in DEVICE:
        raise InputError(f"{where}: no number {name!r} in a hardware file; {suggest(name, DEVICE)}")
    if not equals or name not in (*own, *DEVICE):
        near = suggest(name, (*own, *sorted(DEVICE))) if equals else ""
        if near.startswith("did you mean"):
            raise InputError(f"{where}: no axis {name!r}; {near}")
        must = f"must be AXIS=VALUES, with an axis of {', '.join(own)}, in a folder also offload"
        such = "such as batch=1..256, prompt=128,512,2048 or tp=1,2,4"
        raise InputError(f"{where}: {must}, {such}; or a what-if on the device, memory.bandwidth=1x,2x")
    if name not in (*NUMBERS, *DEGREES):
        values = [part.strip() for part in given.split(",")]
        if not all(values):
            such = "memory.bandwidth=1x,2x" if name in DEVICE else "quant=published,fp8"
            raise InputError(f"{where}: must be values with commas between, such as {such}; got {given!r}")
        return name, values
    return name, parse_numbers(given, where=where, most=most)


def parse_numbers(given: str, *, where: str, most: int = _MOST) -> list[int]:
    """The numbers of "8", "1,8,64", "1..64", "1..64*2" or "0..64+16"; `where` is for errors. Ranges include both ends.

    Raises InputError if the text does not parse, a range steps over its end, or there are more than `most` values.
    """
    try:
        ranges = [_values(part.strip()) for part in given.split(",")]
    except ValueError:
        must = "must be whole numbers, or ranges such as 1..256, 1..256*2 (doubling) or 128..4096+128 (in steps)"
        raise InputError(f"{where}: {must}; got {given!r}") from None
    for part, values in zip(given.split(","), ranges, strict=True):
        _check_end(part.strip(), values[-1], where)
    count = sum(_count(values) for values in ranges)
    if count > most:
        raise InputError(f"{where}: must be at most {most} values; got {count}")
    return [value for values in ranges for value in values]


def _check_end(part: str, last: int, where: str) -> None:
    """Raises InputError where a range does not reach what it is said to end at."""
    match = _RANGE.fullmatch(part)
    if match and last != int(match[2]):
        reached = f"{match[1]}..{last}{match[3]}{match[4]}"
        raise InputError(
            f"{where}: {part} must reach its end, and stops at {last}; give {reached}, or {reached},{int(match[2])}"
        )


def _count(values: Sequence[int]) -> int:
    """The length of a range; len() can overflow."""
    return (values.stop - values.start - 1) // values.step + 1 if isinstance(values, range) else len(values)


def _values(part: str) -> Sequence[int]:
    match = _RANGE.fullmatch(part)
    if not match:
        return [int(part)]
    first, last, step = int(match[1]), int(match[2]), int(match[4] or 1)
    if last < first or (match[3] == "*" and (step < 2 or first < 1)) or step < 1:
        raise ValueError(part)
    if match[3] != "*":
        return range(first, last + 1, step)
    values = [first]
    while values[-1] * step <= last:
        values.append(values[-1] * step)
    return values


def laid_out(over: Mapping[str, Sequence[Any]]) -> dict[str, Sequence[Any]]:
    """`over` with its degrees of parallelism as one axis of layouts, in the place of the first degree.

    Raises InputError if layouts are an axis too, or a degree is not a whole number from 1.
    """
    degrees = {name: over[name] for name in DEGREES if name in over}
    if degrees and "layout" in over:
        raise InputError(f"{next(iter(degrees))}: the axis layout also sets it; give one of the two")
    for name, values in degrees.items():
        _check_values(name, values)
    each = ([f"{name}={whole_number(name, value)}" for value in values] for name, values in degrees.items())
    layouts = list(map(" ".join, product(*each)))
    return {"layout" if name in degrees else name: layouts if name in degrees else over[name] for name in over}


def _check_values(name: str, values: object) -> None:
    if isinstance(values, str) or not isinstance(values, Sequence | np.ndarray):
        raise InputError(f"{name}: must be a list of values; got {values!r}")
    if not len(values):
        raise InputError(f"{name}: nothing to sweep over")


def check_axis(name: str, values: Sequence[int] | Sequence[str]) -> None:
    if name not in (*NUMBERS, *TECHNIQUES, *DEVICE):
        raise InputError(f"no axis {name!r} to sweep over; {suggest(name, (*NUMBERS, *TECHNIQUES, *DEVICE))}")
    _check_values(name, values)
    if name in DEVICE:
        for value in values:
            if not isinstance(value, str):
                raise InputError(f"{name}: must be texts, such as '2x' or '155 TOP/s'; got {value!r}")
    elif name in TECHNIQUES:
        for value in values:
            arguments.check_types(**{name: value})
    else:
        for value in values:
            whole_number(name, value, least=0 if name == "images" else 1)
    check_distinct(name, values)


def check_distinct(name: str, values: Sequence[int] | Sequence[str]) -> None:
    """Raises InputError if a value of an axis is given twice."""
    found = np.asarray(values)
    if found.dtype == object or len(np.unique(found)) < len(found):  # None (as published) cannot be sorted among texts
        arguments.check_unique(name, values)
