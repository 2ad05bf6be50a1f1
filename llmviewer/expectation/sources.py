"""Source labels of expected times; each begins with its class.

- calibrated on DEVICE LIBRARY VERSION KERNEL: the kernel itself, measured on the device
- stand-in on DEVICE: WHY (LIBRARY VERSION KERNEL): another kernel, library or data type, measured on the device
- stand-in: WHY; ...: a kernel for other work
- transferred from DEVICES: measured on other devices
- no kernel measured; memory traffic only, ...: the time of the bytes, times what kernels of such operators take
- bound only: WHY: nothing above the bound is known
"""

from __future__ import annotations

from typing import Final

BOUND_ONLY: Final = "bound only"
CALIBRATED: Final = "calibrated on "
TRANSFERRED: Final = "transferred from "
STAND_IN: Final = "stand-in"
NOT_MEASURED: Final = "no kernel measured; memory traffic only"
STAND_IN_DTYPE: Final = ", kernels for "  # a type that is alike, and not the one that is asked for
CLASSES: Final = ("transferred", STAND_IN, "no kernel measured", BOUND_ONLY)  # as they begin, beside calibrated ones


def bound_only_label(why: str) -> str:
    """The source of what nothing above the bound is known of."""
    return f"{BOUND_ONLY}: {why}"


def bound_only_reason(source: str) -> str:
    """Why nothing above the bound is known, by such a source; "" by none."""
    return source.removeprefix(bound_only_label(""))


def stand_in_label(why: str, source: str) -> str:
    """The source of kernels, that of `source`, which stand in for work that they do not do."""
    return f"{STAND_IN}: {why}; {source}"
