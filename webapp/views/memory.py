"""Memory of a request on each device, and the largest batch and context that fit."""

from __future__ import annotations

from collections.abc import Sequence

from llmviewer.reports import figures
from llmviewer.reports.page_figures import PageFigure, page_figure
from llmviewer.reports.phrases import largest, memory_margin, per_device
from llmviewer.units import si

from ..answers import Answer


def bars(found: Sequence[Answer]) -> PageFigure:
    return page_figure(figures.memories({one.name: one.analysis for one in found}))


def whose(found: Sequence[Answer]) -> str:
    """Such as "; sizes are those of each device"; nothing where one device has it all."""
    each = next((per_device(one.analysis) for one in found), "")
    return f"; sizes are those{each}" if each else ""


def table(found: Sequence[Answer]) -> list[tuple[str, ...]]:
    """A line of heads, then one for each device."""
    heads = (
        "device", "weights", "KV cache", "activations", "in all", "memory", "verdict", "largest batch",
        "longest context",
    )  # fmt: skip
    lines = []
    for one in found:
        memory = one.analysis.memory
        rest, word = memory_margin(memory)
        sizes = (memory.weight_bytes, memory.kv_cache_bytes, memory.activation_bytes, memory.total_bytes)
        lines.append((
            one.name, *(f"{si(size)}B" for size in (*sizes, memory.capacity_bytes)),
            f"{'fits' if memory.fits else 'does not fit'}, {si(rest)}B {word}",
            largest(memory.max_batch), largest(memory.max_context),
        ))  # fmt: skip
    return [heads, *lines]
