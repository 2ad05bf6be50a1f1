"""Files of vLLM's layerwise profiler: trees of modules with the kernels they launched, one per pass.

The format is that of `LayerwiseProfileResults.convert_stats_to_dict()` (vllm/profiler/layerwise_profile.py), and of
examples/offline_inference/profiling.py, which puts one of prefill and one of each decode step into a file.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from ..errors import InputError
from .launches import KernelSums, is_time, kernel_sums

_SUMMARY: Final = "summary_stats"


def is_layerwise(document: Any) -> bool:
    """Whether a JSON document has the form of a layerwise profile."""
    return isinstance(document, dict) and any(True for _ in _passes(document))


def of_layerwise(document: dict[str, Any], path: Path, phase: str) -> KernelSums:
    """The kernels of the passes of a phase.

    Raises InputError if there are none or a pass has the wrong form.
    """
    passes = [contents for name, contents in _passes(document) if not name or name.split("_")[0] == phase]
    if not passes:
        raise InputError(f"{path}: has no {phase}; got {', '.join(name for name, _ in _passes(document))}")
    try:
        kernels = [kernel for one in passes for node in one[_SUMMARY] for kernel in _kernels(node)]
    except (AttributeError, KeyError, OverflowError, RecursionError, TypeError, ValueError):
        raise InputError(f"{path}: {_SUMMARY} must be a tree of entry and children, as vLLM writes it") from None
    return kernel_sums(kernels, passes=len(passes))


def _passes(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """(name, contents) of each pass; a file of a single pass has no name for it."""
    for name, contents in ({"": document} | document).items():
        if isinstance(contents, dict) and _SUMMARY in contents:
            yield name, contents


def _kernels(node: dict[str, Any]) -> Iterator[tuple[str, float, float]]:
    """(name, launches, time) of leaves, which are kernels, or modules without kernels with a time of 0. [s]"""
    for child in node["children"]:
        yield from _kernels(child)
    entry = node["entry"]
    time_s = 1e-6 * float(entry["cuda_time_us"])
    if not node["children"] and time_s:
        launches = float(entry["invocations"])
        if not is_time(time_s) or not is_time(launches):
            raise ValueError("not finite")
        yield str(entry["name"]), launches, time_s
