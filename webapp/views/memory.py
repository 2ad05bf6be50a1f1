"""Memory of a request on each device, and the largest batch and context that fit."""

from __future__ import annotations

from collections.abc import Sequence

from llmviewer.reports import figures
from llmviewer.reports.page_figures import PageFigure, page_figure
from llmviewer.reports.phrases import largest, memory_margin, per_device
from llmviewer.units import si

from ..results import DeviceResult


def memory_figure(results: Sequence[DeviceResult]) -> PageFigure:
    """Bars of the memory by part, one per device."""
    return page_figure(figures.memories({one.name: one.analysis for one in results}))


def per_device_note(results: Sequence[DeviceResult]) -> str:
    """Note that sizes are per device; empty for a single device."""
    each = next((per_device(one.analysis) for one in results), "")
    return f"; sizes{each}" if each else ""


def capacity_table(results: Sequence[DeviceResult]) -> list[tuple[str, ...]]:
    """Sizes, verdict, and largest batch and context per device: a line of heads, then one per device."""
    heads = (
        "device", "verdict", "weights", "KV cache", "activations", "total", "device memory", "largest batch",
        "longest context",
    )  # fmt: skip
    lines = []
    for one in results:
        memory = one.analysis.memory
        margin, word = memory_margin(memory)
        sizes = (memory.weight_bytes, memory.kv_cache_bytes, memory.activation_bytes, memory.total_bytes)
        lines.append((
            one.name, f"{'fits' if memory.fits else 'does not fit'}, {si(margin)}B {word}",
            *(f"{si(size)}B" for size in (*sizes, memory.capacity_bytes)),
            largest(memory.max_batch), largest(memory.max_context),
        ))  # fmt: skip
    return [heads, *lines]
