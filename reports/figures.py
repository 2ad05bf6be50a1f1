"""Figures as functions: those of "LLM Inference Unveiled" (arXiv:2402.16363), and time and memory of analyses.

They import no file, page or command, so that reports and the dashboard show the same figures.
"""

from .analysis_figures import memories, memory_bar, operator_bars, phase_bars, time_bars
from .precision_figures import CASES, MemoryCase, decode_time, memory_bars, prefill_time
from .rooflines import roofline, roofline_dtypes, rooflines

__all__ = [
    "CASES", "MemoryCase", "decode_time", "memories", "memory_bar", "memory_bars", "operator_bars", "phase_bars",
    "prefill_time", "roofline", "roofline_dtypes", "rooflines", "time_bars",
]  # fmt: skip
