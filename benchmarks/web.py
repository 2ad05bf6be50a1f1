"""How fast the dashboard is: `python benchmarks/web.py [--check]`.

change  from a control's change to its numbers, in the server: llama-3.1-70b on three devices, each change one that was
        not asked before, and the least of some times of the
        processor, since noise only adds; then the tabs
paint   from an empty browser to the page with its controls, and to its first numbers, where there is a Chromium

--check exits with 1 where a limit is missed.
"""

from __future__ import annotations

import shutil
import sys
import time
from dataclasses import replace

from llmviewer.webapp.answers import answers
from llmviewer.webapp.app import create
from llmviewer.webapp.state import State
from llmviewer.webapp.tabs import TABS

CHANGE_LIMIT_S = 0.150
PAINT_LIMIT_S = 2.0
_ASKED = State(model="llama-3.1-70b", on=("h100-sxm", "l40s", "mi300x"))


def main() -> int:
    create()
    answers(_ASKED)
    batch_s = min(change(replace(_ASKED, batch=batch)) for batch in range(2, 22))
    quants = ("W4A16g128", "W8A8", "fp8", "W8A8KV8", "nvfp4", "W3A16", "W4A16", "KV8", "W8A16", "W4A8")
    quant_s = min(change(replace(_ASKED, quant=quant)) for quant in quants)
    print(f"change    of the batch {batch_s * 1e3:.0f} ms, of the precision {quant_s * 1e3:.0f} ms")
    for tab in TABS:
        print(f"tab       {tab.name} {shown(tab.name) * 1e3:.0f} ms")
    missed = [f"a change takes {s * 1e3:.0f} ms" for s in (batch_s, quant_s) if s > CHANGE_LIMIT_S]
    if shutil.which("chromium"):
        first, numbers = paint()
        print(f"paint     {first:.2f} s, with numbers {numbers:.2f} s")
        if first > PAINT_LIMIT_S:
            missed.append(f"the first paint takes {first:.2f} s, above {PAINT_LIMIT_S} s")
    for line in missed:
        print(f"MISSED    {line}")
    return 1 if missed and "--check" in sys.argv else 0


def change(asked: State) -> float:
    """Of the processor. [s]"""
    start = time.process_time()
    answers(asked)
    return time.process_time() - start


def shown(name: str) -> float:
    """The least of some times that a tab takes of the processor once there are answers. [s]"""
    (tab,) = [one for one in TABS if one.name == name]
    times = []
    for _ in range(5):
        start = time.process_time()
        tab.show(answers(_ASKED), _ASKED).to_plotly_json()
        times.append(time.process_time() - start)
    return min(times)


def paint() -> tuple[float, float]:
    """Until there are controls and until there are numbers; the best of some browsers that are new to the page. [s]"""
    from llmviewer.webapp.screenshots import browsing, serving

    times = []
    with serving() as url, browsing() as browser:
        for _ in range(4):
            page = browser.new_context().new_page()
            start = time.perf_counter()
            page.goto(url)
            page.wait_for_selector("#controls")
            first = time.perf_counter() - start
            page.wait_for_selector("#advice")
            times.append((first, time.perf_counter() - start))
    return min(times)


if __name__ == "__main__":
    raise SystemExit(main())
