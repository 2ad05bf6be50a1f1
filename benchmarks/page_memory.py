"""Memory of a worker of the dashboard: `python benchmarks/page_memory.py [--states 300] [--seed 0] [--check]`.

Analyzes random settings of all models and devices, each shown on a random tab, with its totals and with what would
help, as the callbacks of the page do. Prints the memory of the process on the way. --check exits with 1 where it
exceeds the limit.
"""

from __future__ import annotations

import argparse
import random
import time
from pathlib import Path

from llmviewer.errors import InputError
from llmviewer.webapp import page
from llmviewer.webapp.app import create
from llmviewer.webapp.cpu_limit import start_limit
from llmviewer.webapp.results import device_results, hardware_catalogue, model_catalogue, problem_of
from llmviewer.webapp.state import State
from llmviewer.webapp.tabs import TABS
from llmviewer.webapp.views import changes

LIMIT_MB = 250.0
_TABS = ("overview", "network", "memory", "sweeps", "compare", "validation")


def main() -> int:
    """Prints the memory; 1 if the limit is missed with --check."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--states", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    create()
    rng, start_s, count, most_mb = random.Random(options.seed), time.process_time(), 0, _memory_mb()  # noqa: S311
    print(f"at the start: {most_mb:.0f} MB")
    for number in range(1, options.states + 1):
        count += _show(_random_state(rng))
        most_mb = max(most_mb, _memory_mb())
        if number % 50 == 0:
            print(f"{number} settings, {count} possible: {_memory_mb():.0f} MB", flush=True)
    each_s = (time.process_time() - start_s) / max(count, 1)
    print(f"largest: {most_mb:.0f} MB (limit {LIMIT_MB:g} MB); CPU time of a setting: {each_s:.2f} s")
    return 1 if options.check and most_mb > LIMIT_MB else 0


def _random_state(rng: random.Random) -> State:
    return State(
        model=rng.choice(list(model_catalogue())),
        on=tuple(rng.sample(list(hardware_catalogue()), rng.choice((1, 1, 1, 2, 3)))),
        batch=2 ** rng.randrange(9), prompt=2 ** rng.randrange(5, 15), gen=2 ** rng.randrange(1, 10),
        quant=rng.choice(("", "", "fp8", "W4A16g128", "W8A8")), tp=rng.choice((1, 1, 2, 4, 8)),
        phase=rng.choice(("decode", "prefill")), tab=rng.choice(_TABS),
    )  # fmt: skip


def _show(state: State) -> bool:
    """Shows a state on its tab; False if it is impossible."""
    start_limit()
    if problem_of(state):
        return False
    results = device_results(state)
    page.summary(results, state)
    try:
        TABS[state.tab].show(results, state)
        for one in results:
            changes.evaluated(one, state, list(changes.candidates(one, state)))
    except InputError:  # takes too long
        pass
    return True


def _memory_mb() -> float:
    """Memory of this process. [MB]"""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) * 1024 / 1e6


if __name__ == "__main__":
    raise SystemExit(main())
