"""CPU time of plans, of a choice and of advice: `python benchmarks/planning.py [--check]`.

Plans: 20 devices in 8 layouts, 8 precisions, every number of copies up to 16 devices and 64 batches, of a dense model;
in 16 layouts of one with experts and latent attention, whose prefills and decode steps are two graphs; and of the first
with separate prefill workers. Choice: all devices in 4 precisions, of a model that few hold and of one that most run,
with expected times. Advice: every technique alone, and combinations of up to three. In CPU time of the one thread that
does it.

--check exits with 1 if one of them takes longer than twice its limit, two times: cores that others use too are slower.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial

from llmviewer.comparing.choice import choose
from llmviewer.model_files import load_model
from llmviewer.serving.advice import advise
from llmviewer.serving.planning import BATCHES, QUANTS, default_layouts, plan

_DEVICES = (
    "a10", "a100-sxm-80gb", "b200", "gaudi-3", "gb200", "h100-sxm", "h20-sxm", "h200-sxm", "l4", "l40s", "mi300x",
    "mi325x", "rtx-3090", "rtx-4090", "rtx-5090", "rtx-a6000", "tpu-v5e", "tpu-v6e", "trainium1", "trainium2",
)  # fmt: skip
_PLAN_LIMITS_S = {"llama-3.1-70b": 3.9, "deepseek-v3": 5.9}
_DISAGGREGATED_MODEL, _DISAGGREGATED_LIMIT_S = "llama-3.1-70b", 6.5
_CHOICE_LIMITS_S = {"deepseek-v3": 0.9, "llama-3.1-8b": 3.0}
_ADVICE_MODEL, _ADVICE_LIMIT_S = "llama-3.1-8b", 2.0
_TOLERANCE = 2.0  # factor on the limits


def main() -> int:
    """Times plans, a choice and advice; 1 if one is above its limit with --check."""
    search = partial(plan, rate=4, ttft=0.5, tpot=0.03, hardware=_DEVICES)
    missed = []
    for model, limit_s in _PLAN_LIMITS_S.items():
        layouts = default_layouts(load_model(model).published)
        size = f"{len(_DEVICES)} devices x {len(layouts)} layouts x {len(QUANTS)} precisions x {len(BATCHES)} batches"
        missed.append(_misses(f"plan      {model}: {size}", limit_s, partial(search, model)))
    disaggregated = partial(search, _DISAGGREGATED_MODEL, disaggregated=True)
    name = f"plan      {_DISAGGREGATED_MODEL}, --disaggregated: the same"
    missed.append(_misses(name, _DISAGGREGATED_LIMIT_S, disaggregated))
    for model, limit_s in _CHOICE_LIMITS_S.items():
        missed.append(_misses(f"choose    {model}: all devices", limit_s, partial(choose, model)))
    advice = partial(advise, _ADVICE_MODEL, "h200-sxm")
    missed.append(_misses(f"advise    {_ADVICE_MODEL} on an h200-sxm", _ADVICE_LIMIT_S, advice))
    return 1 if any(missed) and "--check" in sys.argv else 0


def _misses(name: str, limit_s: float, run: Callable[[], object]) -> bool:
    """Whether a run takes longer than the limit with its tolerance, two times."""
    best_s = float("inf")
    for _ in range(2):
        start = time.process_time()
        run()
        best_s = min(best_s, time.process_time() - start)
        if best_s <= limit_s * _TOLERANCE:
            break
    print(f"{name}: {best_s:.2f} s of CPU time{'' if best_s <= limit_s else f', above {limit_s} s'}", flush=True)
    return best_s > limit_s * _TOLERANCE


if __name__ == "__main__":
    raise SystemExit(main())
