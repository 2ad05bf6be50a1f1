"""Changed numbers of a device (--hardware-set, "what-ifs"), and the rates that are derived from them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from ..errors import InputError, suggest
from ..units import parse
from .hardware import Fact, products
from .keys import COUNT, ON_CHIP, SECTIONS, TEXT, TOPOLOGY

_WHAT_IF_NOTE: Final = "what-if: --hardware-set"
_FACTOR_LIMITS: Final = (1e-9, 1e9)
_FACTOR: Final = re.compile(r"(?:x(\d+(?:\.\d+)?)|(\d+(?:\.\d+)?)x)")
_PRODUCT_TOLERANCE: Final = 0.03  # relative difference up to which a number is the product of others
_DERIVED_BLOCKS: Final = {  # blocks of keys whose numbers scale with a product
    "matrix": ("matrix", "sparse"), "vector": ("vector",), "memory": ("memory.bandwidth",),
}  # fmt: skip
_CORES: Final = "cores.count"
_CAPACITY: Final = "memory.capacity"
_USABLE: Final = "memory.usable"
_BOOST: Final = "clock.boost"
_HIGHEST: Final = "clock.max"
_EFFECTIVE_KEYS: Final[Mapping[str, str]] = {  # key to set in place of one that neither bounds nor expectations read
    **dict.fromkeys(("clock.base", "clock.boost", "clock.matrix", "clock.max"), "matrix.bf16 or vector.fp32"),
    "cores.matrix_fp16_per_clock": "matrix.fp16 or matrix.bf16",
    "cores.vector_fp32_per_clock": "vector.fp32",
    **dict.fromkeys(("clock.memory", "memory.bus_width", "memory.data_rate"), "memory.bandwidth"),
    **dict.fromkeys((f"{level}.bandwidth" for level in ON_CHIP), "memory.bandwidth"),
    "power.idle": "power.tdp",
}


def apply_what_ifs(
    facts: Mapping[str, Fact], changes: Sequence[str], name: str
) -> tuple[dict[str, Fact], tuple[str, ...]]:
    """Applies `changes` such as "memory.bandwidth=2x" to the facts of the device `name`.

    Returns the facts and the derived changes in words, such as "matrix rates 2x". A number that a what-if sets is not
    derived from others.

    Raises InputError if a what-if is invalid, or if no number that it changes is used.
    """
    changed_facts, change_by_key = dict(facts), dict[str, str]()
    for change in changes:
        fact = _changed_fact(change, changed_facts, name)
        if fact.key in change_by_key:
            raise InputError(f"{change}: {fact.key} is given twice; give each once")
        changed_facts[fact.key] = fact
        change_by_key[fact.key] = change
    if (
        _CAPACITY in change_by_key
        and _USABLE not in change_by_key
        and not _FACTOR.fullmatch(changed_facts[_CAPACITY].text)
    ):
        changed_facts.pop(_USABLE, None)
    ratios, factors = _ratios(_numbers(facts), _numbers(changed_facts))
    for key in change_by_key:
        if key in _EFFECTIVE_KEYS and key not in factors:
            raise InputError(
                f"{change_by_key[key]}: no number of {name} that is used depends on it; set {_EFFECTIVE_KEYS[key]}"
            )
    derived: dict[str, None] = {}
    for key, fact in changed_facts.items():
        ratio = ratios.get(key, ratios.get(key.partition(".")[0], 1.0))
        if ratio != 1 and key not in change_by_key and isinstance(fact.value, float):
            text = f"{ratio:.4g}x"
            changed_facts[key] = replace(fact, text=text, value=fact.value * ratio, source="", note="what-if: follows")
            block = key.partition(".")[0]
            derived[f"{key if block in ('memory', 'clock') else f'{block} rates'} {text}"] = None
    return changed_facts, tuple(derived)


def sets_rate(fact: Fact) -> bool:
    """Whether a what-if replaces the file's quantity rather than scaling it."""
    return fact.note.startswith(_WHAT_IF_NOTE) and not _FACTOR.fullmatch(fact.text)


def _ratios(before: Mapping[str, float], after: Mapping[str, float]) -> tuple[dict[str, float], set[str]]:
    """The factor on the numbers of each block, and the keys that they depend on.

    All rates scale with the number of cores, usable memory with capacity, the highest clock with the boost clock, and
    numbers that are products of others in the file with their factors.
    """
    cores, capacity = (after[key] / before[key] if key in before else 1.0 for key in (_CORES, _CAPACITY))
    ratios = {follower: cores for block in ("matrix", "vector") for follower in _DERIVED_BLOCKS[block]}
    ratios[_USABLE] = capacity
    products_after = {product.key.partition(".")[0]: product for product in products(after)}
    factors: set[str] = set()
    if _BOOST in before and _HIGHEST in after:
        factors.add(_HIGHEST)
        ratios[_HIGHEST] = after[_BOOST] / before[_BOOST]
    for product in products(before):
        product_before = product.of(before)
        if abs(product_before / before[product.key] - 1) <= _PRODUCT_TOLERANCE:
            block = product.key.partition(".")[0]
            factors |= {*product.factors, *products_after[block].factors}
            ratios |= dict.fromkeys(_DERIVED_BLOCKS[block], products_after[block].of(after) / product_before)
    return ratios, factors


def _numbers(facts: Mapping[str, Fact]) -> dict[str, float]:
    return {key: fact.value for key, fact in facts.items() if isinstance(fact.value, float)}


def _changed_fact(change: str, facts: Mapping[str, Fact], name: str) -> Fact:
    """The fact that a what-if sets, new or replaced."""
    key, equals, value_text = (part.strip() for part in change.partition("="))
    where = change or "a what-if"
    if not equals:
        raise InputError(f"{where}: must be KEY=VALUE, such as memory.bandwidth=2x or 'matrix.fp16=155 TOP/s'")
    units = {f"{section}.{k}": unit for section, keys in SECTIONS.items() for k, unit in keys.items()}
    units = {k: unit for k, unit in units.items() if unit not in (TEXT, TOPOLOGY)}
    device, colon, bare_key = key.rpartition(":")
    if colon and bare_key in units:
        raise InputError(f"{where}: a single device cannot be changed here; leave out {device}:")
    if key not in units:
        raise InputError(f"{where}: no number {key!r} in a hardware file; {suggest(key, units)}")
    factor = _FACTOR.fullmatch(value_text)
    if factor and key not in facts:
        raise InputError(f"{where}: {name} has no {key} to multiply; give a quantity with its unit")
    try:
        value = (
            _scaled_value(facts[key], float(factor[1] or factor[2])) if factor else _quantity(value_text, units[key])
        )
    except ValueError as error:
        hint = "; a factor such as 2x works too" if key in facts and not factor else ""
        raise InputError(f"{where}: {error}{hint}") from None
    return Fact(key=key, text=value_text, value=value, source="", note=f"{_WHAT_IF_NOTE} {change}")


def _scaled_value(fact: Fact, factor: float) -> float:
    if isinstance(fact.value, str) or not _FACTOR_LIMITS[0] <= factor <= _FACTOR_LIMITS[1]:
        raise ValueError(f"a factor must be between {_FACTOR_LIMITS[0]:g} and {_FACTOR_LIMITS[1]:g}; got {factor:g}")
    return fact.value * factor


def _quantity(text: str, unit: str) -> float:
    if unit != COUNT:
        return parse(text, unit)
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"must be a whole number of at least 1; got {text!r}")
    return float(text)
