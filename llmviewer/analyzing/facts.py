"""Facts of models and devices in JSON documents."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from math import isfinite
from typing import Any, Final

from ..devices.hardware import Hardware
from ..model import Model
from ..model_files import model_facts

_LINK_TIERS: Final = ("scale_up", "scale_out", "host", "storage")


def describe_model(model: Model) -> dict[str, Any]:
    """Facts of a model: parameters, attention, precision, sizes [B], source."""
    return model_facts(model).to_dict()


def describe_hardware(hardware: Hardware) -> dict[str, Any]:
    """The rates of a device, what-ifs included. [OP/s], [B/s], [B], [s]

    rates   of the datasheet
    limits  those that no kernel exceeds, at the highest clock, on which bounds rest
    """
    return {
        "name": hardware.name,
        "title": hardware.title,
        "rates": {str(resource): rate for resource, rate in hardware.rates.items()},
        "limits": {str(resource): hardware.limit(resource) for resource in hardware.rates},
        "links": {key: value for key, value in hardware.numbers.items() if key.partition(".")[0] in _LINK_TIERS},
        "capacity_bytes": hardware.capacity,
        "on_chip_bytes": hardware.on_chip_bytes,
    }


def hardware_facts(hardware: Hardware) -> dict[str, Any]:
    """describe_hardware(), and all numbers of the device's file with their sources. SI units."""
    sources = {key: asdict(source) for key, source in hardware.sources.items()}
    facts = [
        {"key": f.key, "value": f.value, "text": f.text, "source": sources.get(f.source), "note": f.note}
        for f in hardware.facts
    ]
    about = ("vendor", "kind", "architecture", "released", "status", "aliases", "notes")
    return plain({**describe_hardware(hardware), **{key: getattr(hardware, key) for key in about}, "facts": facts})


def _int_if_whole(value: float) -> float | int:
    return int(value) if float(value).is_integer() else value


def finite(document: Mapping[str, Any]) -> dict[str, Any]:
    """`document` with None for numbers that are not finite, which JSON does not have, at all depths."""
    return {key: _map_numbers(value, lambda number: number) for key, value in document.items()}


def plain(document: Mapping[str, Any]) -> dict[str, Any]:
    """finite() with whole floats as ints."""
    return {key: _map_numbers(value, _int_if_whole) for key, value in document.items()}


def _map_numbers(value: Any, change: Callable[[float], float]) -> Any:
    if isinstance(value, Mapping):
        return {key: _map_numbers(item, change) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_map_numbers(item, change) for item in value]
    if isinstance(value, float):
        return change(value) if isfinite(value) else None
    return value
