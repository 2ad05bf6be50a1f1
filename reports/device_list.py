"""The list of devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from llmviewer.devices.index import DeviceRow
from llmviewer.units import si

from .columns import WIDTH, columns
from .tables import filled

_NARROW: Final = ("fp8", "int8", "fp4")


def hardware_list(devices: Sequence[DeviceRow], width: int = WIDTH) -> str:
    """Memory and peak rates of devices, a line each."""
    head = ("device", "memory", "bandwidth", "16-bit", *_NARROW, "fp32")
    lines = [(row.name, f"{si(row.capacity_bytes)}B", f"{si(row.bandwidth)}B/s", *_rates(row)) for row in devices]
    announced = ", ".join(row.name for row in devices if row.status == "announced")
    notes = ["Dense OP/s of matrix units, fp32 of vector units; a multiply-add is two OPs."]
    notes += [f"Announced: {announced}."] if announced else []
    return columns([head, *lines], left=(0,), gap=" ") + "".join(f"{filled(note, width)}\n" for note in notes)


def _rates(row: DeviceRow) -> tuple[str, ...]:
    """Peak matrix rates of fp16 (of bf16 without fp16) and narrower types, and the vector rate of fp32."""
    wide = "fp16" if "fp16" in row.matrix else "bf16"
    rates = (*(row.matrix.get(dtype) for dtype in (wide, *_NARROW)), row.vector.get("fp32"))
    return tuple(si(rate).rstrip() if rate else "-" for rate in rates)
