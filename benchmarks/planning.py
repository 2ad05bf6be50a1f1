"""How long a plan takes: `python benchmarks/planning.py [--check]`.

20 devices in 8 layouts, 6 precisions, every number of copies up to 16 devices and 64 batches, of a dense model and of
one with experts. The faster of two runs, devices read from their files each time.

--check exits with 1 where the limit is missed.
"""

from __future__ import annotations

import sys
import time

from llmviewer.serving.planning import BATCHES, LAYOUTS, QUANTS, plan

LIMIT_S = 5.0
_MODELS = ("llama-3.1-70b", "mixtral-8x7b")
_DEVICES = (
    "a10", "a100-sxm-80gb", "b200", "gaudi-3", "gb200", "h100-sxm", "h20-sxm", "h200-sxm", "l4", "l40s", "mi300x",
    "mi325x", "rtx-3090", "rtx-4090", "rtx-5090", "rtx-a6000", "tpu-v5e", "tpu-v6e", "trainium1", "trainium2",
)  # fmt: skip


def main() -> int:
    asked = f"{len(_DEVICES)} devices x {len(LAYOUTS)} layouts x {len(QUANTS)} precisions x {len(BATCHES)} batches"
    missed = False
    for model in _MODELS:
        best, tried = float("inf"), 0
        for _ in range(2):
            start = time.perf_counter()
            tried = plan(model, rate=4, ttft=0.5, tpot=0.03, hardware=_DEVICES).tried
            best = min(best, time.perf_counter() - start)
        print(f"plan      {model}: {asked}, {tried:,} settings with their copies, in {best:.2f} s")
        if best > LIMIT_S:
            print(f"MISSED    above {LIMIT_S} s")
            missed = True
    return 1 if missed and "--check" in sys.argv else 0


if __name__ == "__main__":
    raise SystemExit(main())
