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
_MAX_AXIS_VALUES: Final = 10_000_000  # values on an axis
_RANGE: Final = re.compile(r"(\d+)\.\.(\d+)(?:([*+])(\d+))?")


def parse_axis(text: str) -> tuple[str, list[int] | list[str]]:
    """(axis, values) of a text.

    Examples are "batch=1..256", "batch=1..256*2", "prompt=128..4096+128", "prompt=128,512", "quant=W16A16,W4A16g128",
    "layout=tp=1,tp=4 pp=2" and "memory.bandwidth=1x,2x".

    Raises InputError if the text does not parse.
    """
    name, equals, value_text = (part.strip() for part in text.partition("="))
    where = f"--over {text}"
    axes = (*NUMBERS, *TECHNIQUES, *DEGREES)
    if equals and "." in name and name not in DEVICE:
        raise InputError(f"{where}: no number {name!r} in a hardware file; {suggest(name, DEVICE)}")
    if not equals or name not in (*axes, *DEVICE):
        suggestion = suggest(name, (*axes, *sorted(DEVICE))) if equals else ""
        if suggestion.startswith("did you mean"):
            raise InputError(f"{where}: no axis {name!r}; {suggestion}")
        must = f"must be AXIS=VALUES, with an axis of {', '.join(axes)}, in a folder also offload"
        examples = "such as batch=1..256, prompt=128,512,2048 or tp=1,2,4"
        raise InputError(f"{where}: {must}, {examples}; or a what-if on the device, memory.bandwidth=1x,2x")
    if name not in (*NUMBERS, *DEGREES):
        values = [part.strip() for part in value_text.split(",")]
        if not all(values):
            examples = "memory.bandwidth=1x,2x" if name in DEVICE else "quant=published,fp8"
            raise InputError(f"{where}: must be values with commas between, such as {examples}; got {value_text!r}")
        return name, values
    return name, parse_numbers(value_text, where=where)


def parse_numbers(text: str, *, where: str, max_values: int = _MAX_AXIS_VALUES) -> list[int]:
    """The numbers of "8", "1,8,64", "1..64", "1..64*2" or "0..64+16"; `where` is for errors. Ranges include both ends.

    Raises InputError if the text does not parse, a range steps over its end, or there are more than `most` values.
    """
    try:
        ranges = [_values(part.strip()) for part in text.split(",")]
    except ValueError:
        must = "must be whole numbers, or ranges such as 1..256, 1..256*2 (doubling) or 128..4096+128 (in steps)"
        raise InputError(f"{where}: {must}; got {text!r}") from None
    for part, values in zip(text.split(","), ranges, strict=True):
        _check_end(part.strip(), values[-1], where)
    count = sum(_count(values) for values in ranges)
    if count > max_values:
        raise InputError(f"{where}: must be at most {max_values} values; got {count}")
    return [value for values in ranges for value in values]


def _check_end(part: str, last: int, where: str) -> None:
    """Raises InputError if the steps of a range skip its stated end."""
    match = _RANGE.fullmatch(part)
    if match and last != int(match[2]):
        reached = f"{match[1]}..{last}{match[3]}{match[4]}"
        raise InputError(
            f"{where}: {part} must include its end, but its last value is {last}; give {reached}, or "
            f"{reached},{int(match[2])}"
        )


def _count(values: Sequence[int]) -> int:
    """The number of values; len() of a range can overflow."""
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


def with_layouts(over: Mapping[str, Sequence[Any]]) -> dict[str, Sequence[Any]]:
    """Merges the degrees of parallelism in `over` into one axis of layouts, in place of the first degree.

    Raises InputError if layouts are an axis too, or a degree is not a whole number from 1.
    """
    degrees = {name: over[name] for name in DEGREES if name in over}
    if degrees and "layout" in over:
        raise InputError(f"{next(iter(degrees))}: the axis layout also sets this degree; give one of the two")
    for name, values in degrees.items():
        check_values(name, values)
    degree_texts = ([f"{name}={whole_number(name, value)}" for value in values] for name, values in degrees.items())
    layouts = list(map(" ".join, product(*degree_texts)))
    return {"layout" if name in degrees else name: layouts if name in degrees else over[name] for name in over}


def check_values(name: str, values: object) -> None:
    """Raises InputError if the values of an axis are no list, or none."""
    if isinstance(values, str) or not isinstance(values, Sequence | np.ndarray):
        raise InputError(f"{name}: must be a list of values; got {values!r}")
    if not len(values):
        raise InputError(f"{name}: nothing to sweep over")


def check_axis(name: str, values: Sequence[int] | Sequence[str]) -> None:
    """Raises InputError if the axis is unknown, or a value is given twice or does not suit it."""
    if name not in (*NUMBERS, *TECHNIQUES, *DEVICE):
        raise InputError(f"no axis {name!r} to sweep over; {suggest(name, (*NUMBERS, *TECHNIQUES, *DEVICE))}")
    check_values(name, values)
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
    array = np.asarray(values)
    if array.dtype == object or len(np.unique(array)) < len(array):  # None (as published) cannot be sorted among texts
        arguments.check_unique(name, values)
