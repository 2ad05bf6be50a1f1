"""Measures the time of a comparison: `python benchmarks/comparison.py [--check]`.

Five models on all devices in four precisions at 64 batches: times, memory, largest batches, and what every pass waits
for. The fastest of three runs, devices read from their files each time.

--check exits with 1 where the limit is missed.
"""

from __future__ import annotations

import sys
import time

import llmviewer

LIMIT_S = 2.0
_MODELS = ("llama-2-7b", "llama-2-13b", "llama-3.1-70b", "mixtral-8x7b", "deepseek-v3")
_QUANTS = ("published", "W8A8", "fp8", "W4A16g128")


def main() -> int:
    """Times the comparison; 1 if it is above its limit with --check."""
    best, points = float("inf"), 0
    devices = llmviewer.hardware_names()
    for _ in range(3):
        start = time.perf_counter()
        comparison = llmviewer.compare(_MODELS, devices, quants=_QUANTS, batch=range(1, 65))
        best = min(best, time.perf_counter() - start)
        points = len(comparison.cells) * len(comparison.batches)
    grid = f"{len(_MODELS)} models x {len(devices)} devices x {len(_QUANTS)} precisions x 64 batches"
    print(f"comparison  {grid}, {points} points, in {best:.2f} s")
    if best > LIMIT_S:
        print(f"MISSED      above {LIMIT_S} s")
    return 1 if best > LIMIT_S and "--check" in sys.argv else 0


if __name__ == "__main__":
    raise SystemExit(main())
