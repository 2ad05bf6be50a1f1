"""Power and hourly cost of devices, tokens per joule and per dollar, and criteria to rank devices by."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from math import isnan, nan
from typing import Final, TypeAlias

from ..devices.hardware import Hardware
from ..forms import Num

Devices: TypeAlias = Iterable[tuple[Hardware, float]]  # (device, mean count)

_HOURS: Final = 8766  # per year
_MONTH: Final = len("2026-10")


def watts(devices: Devices) -> float:
    """Total TDP; nan if a device's file has none. [W]"""
    return float(sum(count * device.numbers.get("power.tdp", nan) for device, count in devices))


def usd_per_h(devices: Devices, years: float | None) -> float:
    """Total cost per hour, as of hourly(). [USD/h]"""
    return float(sum(count * hourly(device, years) for device, count in devices))


def hourly(device: Hardware, years: float | None) -> float:
    """Cloud price of one device, else its purchase price spread over `years`; nan if there is no price. [USD/h]"""
    if "price.cloud" in device.numbers:
        return device.numbers["price.cloud"]
    return device.numbers.get("price.purchase", nan) / (years * _HOURS) if years else nan


def listed(devices: Iterable[Hardware]) -> str:
    """Dates of the cloud prices: "2026-10", or "2026-08 to 2026-10"; "" if no file has the price used."""
    months = sorted(
        str(fact.value)[:_MONTH]
        for device in devices
        if "price.cloud" in device.numbers and not any(change.startswith("price.cloud=") for change in device.changes)
        for fact in device.facts
        if fact.key == "price.date"
    )
    return " to ".join(dict.fromkeys((*months[:1], *months[-1:])))


def per_joule(tokens_per_s: Num, devices: Devices) -> Num:
    """Tokens per joule, with all devices at TDP. [1/J]"""
    return tokens_per_s / watts(devices)


def per_dollar(tokens_per_s: Num, devices: Devices, years: float | None) -> Num:
    """Tokens per dollar, with all devices paid for all the time. [1/USD]"""
    return 3600 * tokens_per_s / usd_per_h(devices, years)


class Criterion(StrEnum):
    """Criterion to rank devices by: tokens per second, cost, energy, or number of devices."""

    SPEED = "speed"
    COST = "cost"
    ENERGY = "energy"
    DEVICES = "devices"

    def known(self, device: Hardware, years: float | None) -> bool:
        """Whether a device's file has the numbers that this criterion needs; prices as of hourly()."""
        if self is Criterion.COST:
            return not isnan(hourly(device, years))
        return self is not Criterion.ENERGY or "power.tdp" in device.numbers
