"""What devices draw and cost by the hour, how many tokens that buys, and what devices are ranked by."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from math import isnan, nan
from typing import Final, TypeAlias

from ..devices.hardware import Hardware
from ..forms import Num

Devices: TypeAlias = Iterable[tuple[Hardware, int]]  # and how many there are of each

_HOURS: Final = 8766  # of a year


def watts(devices: Devices) -> float:
    """At TDP; nan where a file does not say it. [W]"""
    return float(sum(count * device.numbers.get("power.tdp", nan) for device, count in devices))


def usd_per_h(devices: Devices, years: float | None) -> float:
    """In a cloud, else the purchase spread over `years`; nan where a file has no price. [USD/h]"""
    return float(sum(count * hourly(device, years) for device, count in devices))


def hourly(device: Hardware, years: float | None) -> float:
    """What an hour of one device costs, likewise. [USD]"""
    if "price.cloud" in device.numbers:
        return device.numbers["price.cloud"]
    return device.numbers.get("price.purchase", nan) / (years * _HOURS) if years else nan


def per_joule(tokens_per_s: Num, devices: Devices) -> Num:
    """Tokens per joule at the TDP of all devices all the time. [1/J]"""
    return tokens_per_s / watts(devices)


def per_dollar(tokens_per_s: Num, devices: Devices, years: float | None) -> Num:
    """Tokens per dollar of what all devices cost all the time. [1/USD]"""
    return 3600 * tokens_per_s / usd_per_h(devices, years)


class By(StrEnum):
    """What devices are ranked by: how fast they write, or what they take for it."""

    SPEED = "speed"
    COST = "cost"
    ENERGY = "energy"
    DEVICES = "devices"

    def known(self, device: Hardware, years: float | None) -> bool:
        """Whether the file of a device says enough to rank it by that; prices as of hourly()."""
        if self is By.COST:
            return not isnan(hourly(device, years))
        return self is not By.ENERGY or "power.tdp" in device.numbers
