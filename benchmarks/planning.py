"""How long a plan and advice take: `python benchmarks/planning.py [--check]`.

Plans: 20 devices in 8 layouts, 8 precisions, every number of copies up to 16 devices and 64 batches, of a dense model;
in 16 layouts of one with experts and latent attention, whose prefills and decode steps are two graphs; and of the first
with prompts read apart. Advice: every technique alone, and combinations of up to three. In CPU time of the one thread
that does it.

--check exits with 1 where something takes twice as long as its limit, two times: cores that others use too are slower.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial

from llmviewer.model_files import load_model
from llmviewer.serving.advice import advise
from llmviewer.serving.planning import BATCHES, QUANTS, plan, usual_layouts

_DEVICES = (
    "a10", "a100-sxm-80gb", "b200", "gaudi-3", "gb200", "h100-sxm", "h20-sxm", "h200-sxm", "l4", "l40s", "mi300x",
    "mi325x", "rtx-3090", "rtx-4090", "rtx-5090", "rtx-a6000", "tpu-v5e", "tpu-v6e", "trainium1", "trainium2",
)  # fmt: skip
_PLANS = {"llama-3.1-70b": 6.0, "deepseek-v3": 15.0}  # the most that each may take [s]
_APART, _APART_S = "llama-3.1-70b", 8.0  # with prompts that are read on devices of their own, too
_ADVISED, _ADVICE_S = "llama-3.1-8b", 3.0
_ROOM = 2.0


def main() -> int:
    search = partial(plan, rate=4, ttft=0.5, tpot=0.03, hardware=_DEVICES)
    missed = []
    for model, limit in _PLANS.items():
        layouts = usual_layouts(load_model(model).published)
        asked = f"{len(_DEVICES)} devices x {len(layouts)} layouts x {len(QUANTS)} precisions x {len(BATCHES)} batches"
        missed.append(_missed(f"plan      {model}: {asked}", limit, partial(search, model)))
    apart = partial(search, _APART, disaggregated=True)
    missed.append(_missed(f"plan      {_APART}, --disaggregated: the same", _APART_S, apart))
    missed.append(_missed(f"advise    {_ADVISED} on an h200-sxm", _ADVICE_S, partial(advise, _ADVISED, "h200-sxm")))
    return 1 if any(missed) and "--check" in sys.argv else 0


def _missed(name: str, limit: float, run: Callable[[], object]) -> bool:
    """Whether it takes much longer than `limit` twice. [s]"""
    best = float("inf")
    for _ in range(2):
        start = time.process_time()
        run()
        best = min(best, time.process_time() - start)
        if best <= limit * _ROOM:
            break
    print(f"{name}: {best:.2f} s of CPU time{'' if best <= limit else f', above {limit} s'}", flush=True)
    return best > limit * _ROOM


if __name__ == "__main__":
    raise SystemExit(main())
