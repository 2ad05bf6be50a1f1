"""What-ifs (--hardware-set): changed numbers of a device, and the rates that follow from them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from ..errors import InputError, suggest
from ..units import parse
from .hardware import Fact, products
from .keys import COUNT, ON_CHIP, SECTIONS, TEXT, TOPOLOGY

_GIVEN: Final = "what-if: --hardware-set"
_FACTORS: Final = (1e-9, 1e9)
_FACTOR: Final = re.compile(r"(?:x(\d+(?:\.\d+)?)|(\d+(?:\.\d+)?)x)")
_FITS: Final = 0.03  # relative tolerance within which a number follows from the product of others
_FOLLOWERS: Final = {  # blocks of keys whose numbers scale with a product
    "matrix": ("matrix", "sparse"), "vector": ("vector",), "memory": ("memory.bandwidth",),
}  # fmt: skip
_CORES: Final = "cores.count"
_CAPACITY: Final = "memory.capacity"
_USABLE: Final = "memory.usable"
_BOOST: Final = "clock.boost"
_HIGHEST: Final = "clock.max"
_COUNTED: Final[Mapping[str, str]] = {  # counted key in place of one that neither bounds nor expectations read
    **dict.fromkeys(("clock.base", "clock.boost", "clock.matrix", "clock.max"), "matrix.bf16 or vector.fp32"),
    "cores.matrix_fp16_per_clock": "matrix.fp16 or matrix.bf16",
    "cores.vector_fp32_per_clock": "vector.fp32",
    **dict.fromkeys(("clock.memory", "memory.bus_width", "memory.data_rate"), "memory.bandwidth"),
    **dict.fromkeys((f"{level}.bandwidth" for level in ON_CHIP), "memory.bandwidth"),
    "power.idle": "power.tdp",
}


def altered(facts: Mapping[str, Fact], changes: Sequence[str], name: str) -> tuple[dict[str, Fact], tuple[str, ...]]:
    """The facts of the device `name` with `changes` such as "memory.bandwidth=2x", and the consequences in words.

    A consequence is, for example, "matrix rates 2x". A number that a what-if sets does not follow from others.

    Raises InputError if a what-if is invalid, or changes nothing that is counted.
    """
    found, given = dict(facts), dict[str, str]()
    for change in changes:
        fact = _changed(change, found, name)
        if fact.key in given:
            raise InputError(f"{change}: {fact.key} is given twice; give each once")
        found[fact.key] = fact
        given[fact.key] = change
    if _CAPACITY in given and _USABLE not in given and not _FACTOR.fullmatch(found[_CAPACITY].text):
        found.pop(_USABLE, None)
    ratios, factors = _ratios(_numbers(facts), _numbers(found))
    for key in given:
        if key in _COUNTED and key not in factors:
            raise InputError(
                f"{given[key]}: nothing that is counted of {name} is known to follow from it; set {_COUNTED[key]}"
            )
    follows: dict[str, None] = {}
    for key, fact in found.items():
        ratio = ratios.get(key, ratios.get(key.partition(".")[0], 1.0))
        if ratio != 1 and key not in given and isinstance(fact.value, float):
            text = f"{ratio:.4g}x"
            found[key] = replace(fact, text=text, value=fact.value * ratio, source="", note="what-if: follows")
            block = key.partition(".")[0]
            follows[f"{key if block in ('memory', 'clock') else f'{block} rates'} {text}"] = None
    return found, tuple(follows)


def sets_rate(fact: Fact) -> bool:
    """Whether a what-if sets a quantity in place of the file's, rather than scaling it."""
    return fact.note.startswith(_GIVEN) and not _FACTOR.fullmatch(fact.text)


def _ratios(before: Mapping[str, float], after: Mapping[str, float]) -> tuple[dict[str, float], set[str]]:
    """The factor on the numbers of each block, and the keys that they follow from.

    All rates follow from the number of cores, usable memory from capacity, the highest clock from the boost clock,
    other numbers if they are products in the file.
    """
    cores, capacity = (after[key] / before[key] if key in before else 1.0 for key in (_CORES, _CAPACITY))
    ratios = {follower: cores for block in ("matrix", "vector") for follower in _FOLLOWERS[block]}
    ratios[_USABLE] = capacity
    then = {product.key.partition(".")[0]: product for product in products(after)}
    factors: set[str] = set()
    if _BOOST in before and _HIGHEST in after:
        factors.add(_HIGHEST)
        ratios[_HIGHEST] = after[_BOOST] / before[_BOOST]
    for product in products(before):
        now = product.of(before)
        if abs(now / before[product.key] - 1) <= _FITS:
            block = product.key.partition(".")[0]
            factors |= {*product.factors, *then[block].factors}
            ratios |= dict.fromkeys(_FOLLOWERS[block], then[block].of(after) / now)
    return ratios, factors


def _numbers(facts: Mapping[str, Fact]) -> dict[str, float]:
    return {key: fact.value for key, fact in facts.items() if isinstance(fact.value, float)}


def _changed(change: str, facts: Mapping[str, Fact], name: str) -> Fact:
    """The fact that a what-if sets, new or replaced."""
    key, equals, given = (part.strip() for part in change.partition("="))
    where = change or "a what-if"
    if not equals:
        raise InputError(f"{where}: must be KEY=VALUE, such as memory.bandwidth=2x or 'matrix.fp16=155 TOP/s'")
    units = {f"{section}.{k}": unit for section, keys in SECTIONS.items() for k, unit in keys.items()}
    units = {k: unit for k, unit in units.items() if unit not in (TEXT, TOPOLOGY)}
    device, colon, own = key.rpartition(":")
    if colon and own in units:
        raise InputError(f"{where}: one of the devices alone cannot be changed here; leave out {device}:")
    if key not in units:
        raise InputError(f"{where}: no number {key!r} in a hardware file; {suggest(key, units)}")
    factor = _FACTOR.fullmatch(given)
    if factor and key not in facts:
        raise InputError(f"{where}: {name} has no {key} to multiply; give a quantity with its unit")
    try:
        value = _times(facts[key], float(factor[1] or factor[2])) if factor else _quantity(given, units[key])
    except ValueError as error:
        hint = "; a factor such as 2x works too" if key in facts and not factor else ""
        raise InputError(f"{where}: {error}{hint}") from None
    return Fact(key=key, text=given, value=value, source="", note=f"{_GIVEN} {change}")


def _times(fact: Fact, factor: float) -> float:
    if isinstance(fact.value, str) or not _FACTORS[0] <= factor <= _FACTORS[1]:
        raise ValueError(f"a factor must be between {_FACTORS[0]:g} and {_FACTORS[1]:g}; got {factor:g}")
    return fact.value * factor


def _quantity(text: str, unit: str) -> float:
    if unit != COUNT:
        return parse(text, unit)
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"must be a whole number of at least 1; got {text!r}")
    return float(text)
