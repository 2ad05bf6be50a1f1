"""Memory of a request on each device, and the largest batch and context that fit."""

from __future__ import annotations

from collections.abc import Sequence

from llmviewer.reports import figures
from llmviewer.reports.page_figures import PageFigure, page_figure
from llmviewer.reports.phrases import per_device

from ..results import DeviceResult


def memory_figure(results: Sequence[DeviceResult]) -> PageFigure:
    """Bars of the memory by part, one per device."""
    return page_figure(figures.memories({one.name: one.analysis for one in results}))


def per_device_note(results: Sequence[DeviceResult]) -> str:
    """Note that sizes are per device; empty for a single device."""
    each = next((per_device(one.analysis) for one in results), "")
    return f"; sizes{each}" if each else ""
