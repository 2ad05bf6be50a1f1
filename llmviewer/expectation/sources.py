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
STAND_IN_DTYPE: Final = ", kernels for "  # precedes a similar data type that stands in
CLASSES: Final = (
    "transferred",
    STAND_IN,
    "no kernel measured",
    BOUND_ONLY,
)  # first words of labels, besides "calibrated on"


def bound_only_label(why: str) -> str:
    """Label of a time for which only the bound is known."""
    return f"{BOUND_ONLY}: {why}"


def bound_only_reason(source: str) -> str:
    """Reason in a "bound only" label; "" if there is none."""
    return source.removeprefix(bound_only_label(""))


def stand_in_label(why: str, source: str) -> str:
    """Label of kernels with label `source` that stand in for other work."""
    return f"{STAND_IN}: {why}; {source}"
