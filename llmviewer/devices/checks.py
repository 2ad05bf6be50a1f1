"""Checks that the numbers of a hardware file are consistent and physically possible."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from math import inf
from typing import Final

from ..documents import normalized
from .hardware import ROUNDING, Hardware, products
from .keys import ON_CHIP

_TYPE_ORDERS: Final = (  # from wide to narrow; bf16 and fp16 may have different rates
    ("fp64", "fp32", "tf32", "fp16", "fp8", "fp6", "fp4"),
    ("fp64", "fp32", "tf32", "bf16", "fp8", "fp6", "fp4"),
    ("int32", "int8", "int4", "int1"),
)
_RIDGE_POINT_LIMITS: Final = (0.01, 10_000)  # OP/B; outside it, a prefix of a unit is wrong
_PCIE: Final = {  # bit/s per lane, without coding (128b/130b) or, for PCIe 6.0, flit checks
    "3": 8e9 * 128 / 130, "4": 16e9 * 128 / 130, "5": 32e9 * 128 / 130, "6": 64e9 * 242 / 256,
}  # fmt: skip
_PCIE_LINK: Final = re.compile(r"PCIe ([3456])(?:\.0)? x(\d+)")
# All links of a GPU by NVLink generation, one way; NVIDIA publishes twice that. 4 x 20, 6 x 25, 12 x 25, ... [B/s]
_NVLINK: Final = {"1": 80e9, "2": 150e9, "3": 300e9, "4": 450e9, "5": 900e9, "6": 1800e9}
_NVLINK_LINKS: Final = re.compile(r"NVLink ([1-6])\b")
_MEMORY: Final = re.compile(r"(HBM|GDDR|LPDDR|MRDIMM|DDR)(\d?)", re.IGNORECASE)
# The fastest pin rate by generation, with E and X variants, of standards and makers (recalled). [Gbit/s]
_MAX_PIN_RATES: Final = {
    "HBM2": 3.6, "HBM3": 9.2, "HBM4": 11, "GDDR5": 12, "GDDR6": 24, "GDDR7": 48, "LPDDR4": 4.3,
    "LPDDR5": 10.7, "DDR4": 3.2, "DDR5": 8.8, "MRDIMM": 12.8,
}  # fmt: skip
_PIN_RATE_MARGIN: Final = 1.5  # for later chips with higher clocks
# Bandwidth over capacity, limited by the pins of a chip: HBM of Fiji with 512 GB/s for 4 GiB (recalled) has 119, GDDR6X
# of an RTX 3080 71, LPDDR and DDR of shipped devices up to 6. [1/s]
_MAX_BANDWIDTH_PER_CAPACITY: Final = {"HBM": 200, "GDDR": 200, "LPDDR": 40, "DDR": 40, "MRDIMM": 40}
_MAX_OPS_PER_CORE_CLOCK: Final = {  # four times those of any shipped device; an accelerator's core may be a whole chip
    "gpu": {"matrix": 2**18, "vector": 2**12},
    "cpu": {"matrix": 2**14, "vector": 2**12},
    "accelerator": {"matrix": 2**23, "vector": 2**15},
}
_DATE: Final = re.compile(r"20\d\d-(?:0[1-9]|1[0-2])(?:-(?:0[1-9]|[12]\d|3[01]))?")


def violations(device: Hardware) -> tuple[str, ...]:
    """Implausible numbers of a device, one line each, starting with the key."""
    return tuple(line for check in CHECKS.values() for line in check(device))


def name_clashes(device: Hardware, aliases: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Names of a device that other devices also have, one line each.

    aliases  all names of each device
    """
    device_names = (device.name, *device.aliases)
    return tuple(
        f"aliases: {name} is a name of {other} too"
        for other, names in aliases.items()
        if other != device.name
        for name in device_names
        if normalized(name) in map(normalized, names)
    )


def _order_violations(device: Hardware) -> Iterator[str]:
    numbers, reported_pairs = device.numbers, set()
    for unit in ("matrix", "sparse", "vector"):
        for order in _TYPE_ORDERS:
            rate_keys = [key for dtype in order if (key := f"{unit}.{dtype}") in numbers]
            for wide, narrow in pairwise(rate_keys):
                if numbers[narrow] < numbers[wide] * (1 - ROUNDING) and (wide, narrow) not in reported_pairs:
                    reported_pairs.add((wide, narrow))
                    yield f"{narrow}: must not be below {wide}, whose type is wider"


def _unit_violations(device: Hardware) -> Iterator[str]:
    numbers = device.numbers
    for key, rate in numbers.items():
        unit, _, dtype = key.partition(".")
        matrix = numbers.get(f"matrix.{dtype}")
        if unit == "vector" and matrix and rate > matrix * (1 + ROUNDING):
            yield f"{key}: must not be above matrix.{dtype}"
        if unit in ("matrix", "vector"):
            ridge = rate / numbers["memory.bandwidth"]
            if not _RIDGE_POINT_LIMITS[0] < ridge < _RIDGE_POINT_LIMITS[1]:
                low, high = _RIDGE_POINT_LIMITS
                yield f"{key}: its ridge point, {ridge:g} OP/B, must be between {low} and {high}"


def _sparsity_violations(device: Hardware) -> Iterator[str]:
    for fact in device.facts:
        unit, _, dtype = fact.key.partition(".")
        if unit != "sparse":
            continue
        dense = device.numbers.get(f"matrix.{dtype}")
        if dense is None:
            yield f"{fact.key}: there is no matrix.{dtype}"
        elif not _agrees(device.numbers[fact.key], 2 * dense) and not fact.note:
            yield f"{fact.key}: must be twice matrix.{dtype}, or have a note with the reason"


def _peak_violations(device: Hardware) -> Iterator[str]:
    """Checks peak = units x width x clock, if all are given."""
    yield from (line for line in _product_violations(device) if not line.startswith("memory."))
    clock = device.numbers.get("clock.matrix")
    if clock and clock == device.numbers.get("clock.boost", device.numbers.get("clock.base")):
        yield "clock.matrix: equals the boost clock; leave it out"
    highest, boost = (device.numbers.get(f"clock.{key}", 0.0) / 1e6 for key in ("max", "boost"))
    if highest and highest <= boost:
        yield f"clock.max: must be above clock.boost, {boost:,.0f} MHz, or be left out; got {highest:,.0f} MHz"


def _product_violations(device: Hardware) -> Iterator[str]:
    for product in products(device.numbers):
        expected = product.of(device.numbers)
        if not _agrees(device.numbers[product.key], expected):
            per = f" / {product.per:g}" if product.per > 1 else ""
            scale, unit = (1e9, "GB/s") if product.key.startswith("memory.") else (1e12, "TOP/s")
            must = f"{' x '.join(product.factors)}{per} = {expected / scale:,.6g} {unit}"
            yield f"{product.key}: must be {must}; got {device.numbers[product.key] / scale:,.6g} {unit}"


def _bandwidth_violations(device: Hardware) -> Iterator[str]:
    """Checks bandwidth = width x rate of memory pins and PCIe lanes, and that NVLink exceeds no generation's total."""
    numbers = device.numbers
    yield from (line for line in _product_violations(device) if line.startswith("memory."))
    links = _NVLINK_LINKS.search(_text(device, "scale_up.type"))
    if links and numbers.get("scale_up.bandwidth", 0) > _NVLINK[links[1]] * (1 + ROUNDING):
        limit, got = _NVLINK[links[1]] / 1e9, numbers["scale_up.bandwidth"] / 1e9
        yield f"scale_up.bandwidth: must be at most {limit:,.0f} GB/s, that of {links[0]} one way; got {got:,.6g} GB/s"
    link = _PCIE_LINK.search(_text(device, "host.type"))
    if link and "host.bandwidth" in numbers:
        expected = _PCIE[link[1]] * int(link[2]) / 8
        if not _agrees(numbers["host.bandwidth"], expected):
            yield f"host.bandwidth: must be {expected / 1e9:.4g} GB/s, that of {link[0]} one way"


def _memory_type_violations(device: Hardware) -> Iterator[str]:
    """Checks that the memory type allows the bandwidth, by its pin rate and its capacity."""
    numbers = device.numbers
    memory_type = _text(device, "memory.type")
    match = _MEMORY.search(memory_type)
    if memory_type and not match:  # SRAM, unknown types
        return
    kind, generation = (match[1].upper(), "".join(match.groups()).upper()) if match else ("HBM", "")
    bandwidth, capacity = numbers["memory.bandwidth"], numbers["memory.capacity"]
    rate = numbers.get("memory.data_rate", bandwidth * 8 / numbers.get("memory.bus_width", inf))
    fastest = _MAX_PIN_RATES.get(generation, inf) * _PIN_RATE_MARGIN
    if rate > fastest * 1e9:
        key = "data_rate" if "memory.data_rate" in numbers else "bandwidth"
        yield f"memory.{key}: must be at most {fastest:g} Gbit/s a pin, of {memory_type}; got {rate / 1e9:,.6g} Gbit/s"
    limit = _MAX_BANDWIDTH_PER_CAPACITY[kind] * capacity
    if bandwidth > limit:
        memory = memory_type or "memory without memory.type (SRAM would have no limit)"
        yield (
            f"memory.bandwidth: must be at most {limit / 1e9:,.0f} GB/s, {_MAX_BANDWIDTH_PER_CAPACITY[kind]} reads of "
            f"its {capacity / 2**30:g} GiB per second for {memory}; got {bandwidth / 1e9:,.0f} GB/s"
        )


def _core_rate_violations(device: Hardware) -> Iterator[str]:
    """Checks the OPs per core and clock, if cores and clocks are given."""
    numbers = device.numbers
    clock = numbers.get("clock.boost", numbers.get("clock.base"))
    if not clock or "cores.count" not in numbers:
        return
    for key, rate in numbers.items():
        unit = key.partition(".")[0]
        limit = _MAX_OPS_PER_CORE_CLOCK[device.kind].get(unit)
        ops = rate / numbers["cores.count"] / (numbers.get("clock.matrix", clock) if unit == "matrix" else clock)
        if limit and ops > limit:
            yield f"{key}: must be at most {limit:,} OPs per core and clock of kind {device.kind}; got {ops:,.0f}"


def _private_memory_violations(device: Hardware) -> Iterator[str]:
    """Checks that memory private to the cores of a GPU divides equally among them."""
    count = device.numbers.get("cores.count")
    for level in ("registers", "shared_memory"):
        key = f"{level}.capacity"
        if count and device.kind == "gpu" and device.numbers.get(key, 0) % (2**10 * count):
            each = device.numbers[key] / 2**10 / count
            yield f"{key}: must be whole KiB of each of {count:,.0f} cores; got {each:,.6g} KiB"


def _memory_level_violations(device: Hardware) -> Iterator[str]:
    """Checks that memory further from the units is larger and slower."""
    numbers = device.numbers
    capacity = numbers["memory.capacity"]
    if not 0.5 * capacity <= numbers.get("memory.usable", capacity) <= capacity:
        yield "memory.usable: must be between half of memory.capacity and memory.capacity"
    for level in ON_CHIP:
        if numbers.get(f"{level}.capacity", 0) >= capacity:
            yield f"{level}.capacity: must be below memory.capacity"
    bandwidth_keys = [key for level in (*ON_CHIP, "memory") if (key := f"{level}.bandwidth") in numbers]
    for inner, outer in pairwise(bandwidth_keys):
        if numbers[outer] > numbers[inner]:
            yield f"{outer}: must not be above {inner}, which is nearer to the units"
    for link in ("scale_up", "scale_out"):
        if numbers.get(f"{link}.bandwidth", 0) > numbers["memory.bandwidth"]:
            yield f"{link}.bandwidth: must not be above memory.bandwidth"


def _link_violations(device: Hardware) -> Iterator[str]:
    topology, devices = _text(device, "scale_up.topology"), device.numbers.get("scale_up.devices")
    if devices is not None and devices < 2:
        yield "scale_up.devices: must be at least 2"
    if topology and devices is not None and (topology == "pair") != (devices == 2):
        yield f"scale_up.topology: two devices are a pair, more are not; got {topology} of {devices:.0f}"


def _power_and_price_violations(device: Hardware) -> Iterator[str]:
    if device.numbers.get("power.idle", 0) > device.numbers.get("power.tdp", inf):
        yield "power.idle: must not be above power.tdp"
    prices = {fact.key: str(fact.value) for fact in device.facts if fact.key.startswith("price.")}
    date = prices.get("price.date")
    if prices and not _DATE.fullmatch(date or ""):
        got = f"got {date!r}" if date else "it is missing"
        yield f"price.date: must be the day or the month of the price, such as 2024-06; {got}"


def _source_violations(device: Hardware) -> Iterator[str]:
    used = {fact.source for fact in device.facts}
    for key, source in device.sources.items():
        if key not in used:
            yield f"sources.{key}: no number cites it"
        if not 1970 <= source.year <= 2100:
            yield f"sources.{key}.year: must be a year; got {source.year}"
        if source.url and not source.url.startswith(("https://", "http://")):
            yield f"sources.{key}.url: must begin with https://; got {source.url!r}"
    if not 1970 <= device.released <= 2100:
        yield f"released: must be a year; got {device.released}"


CHECKS: Final[Mapping[str, Callable[[Hardware], Iterator[str]]]] = {
    "narrower types not slower": _order_violations,
    "matrix units not slower than vector units, ridge points": _unit_violations,
    "sparse rates twice the dense ones": _sparsity_violations,
    "peak = units x width x clock": _peak_violations,
    "bandwidth = width x rate": _bandwidth_violations,
    "bandwidths of memory types": _memory_type_violations,
    "OPs per core and clock": _core_rate_violations,
    "equal memory per core": _private_memory_violations,
    "memories larger and slower outwards": _memory_level_violations,
    "links": _link_violations,
    "power and price": _power_and_price_violations,
    "sources": _source_violations,
}


def _text(device: Hardware, key: str) -> str:
    return next((str(fact.value) for fact in device.facts if fact.key == key), "")


def _agrees(value: float, expected: float) -> bool:
    return abs(value / expected - 1) <= ROUNDING
