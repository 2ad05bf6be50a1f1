"""Measures the response times of the dashboard: `python benchmarks/web.py [--check]`.

change  results after a change of a control: llama-3.1-70b on three devices, deepseek-v3 on one; every change is new;
        the minimum of several CPU times, since noise only adds
tab     each tab in addition, and *What would help* on all three devices; for deepseek-v3 as a ratio to its results
served  in a browser, all that the server does from such a change to the new numbers on the page
paint   from an empty browser to the page with its controls, and to its first numbers

The last two need a Chromium. --check exits with 1 where a limit is missed.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from flask import Flask, g, request

from llmviewer.webapp.app import create
from llmviewer.webapp.results import device_results
from llmviewer.webapp.state import State
from llmviewer.webapp.tabs import TABS
from llmviewer.webapp.tabs.components import Tab
from llmviewer.webapp.views import changes

if TYPE_CHECKING:
    from playwright.sync_api import Browser

CHANGE_LIMIT_S = 0.150
PAINT_LIMIT_S = 2.0
LARGE_MODEL_LIMIT_S = 0.100  # results of deepseek-v3 on a device
HELP_LIMIT = 6.0  # *What would help* for deepseek-v3, over its results
_STATE = State(model="llama-3.1-70b", on=("h100-sxm", "l40s", "mi300x"))
_LARGE_MODEL = State(model="deepseek-v3", on=("h200-sxm",), tp=8)
_QUANTS = ("W4A16g128", "W8A8", "fp8", "W8A8KV8", "nvfp4", "W3A16", "W4A16", "KV8", "W8A16", "W4A8")


def main() -> int:
    """Times changes, tabs and paints of the page; 1 if one is above its limit with --check."""
    create()
    device_results(_STATE)
    batch_s = min(spent(device_results, replace(_STATE, batch=batch)) for batch in range(2, 22))
    quant_s = min(spent(device_results, replace(_STATE, quant=quant)) for quant in _QUANTS)
    print(f"change    of the batch {batch_s * 1e3:.0f} ms, of the precision {quant_s * 1e3:.0f} ms")
    limits = [("a change", batch_s, CHANGE_LIMIT_S), ("a change", quant_s, CHANGE_LIMIT_S)]
    several = replace(_STATE, tab="sweeps", curves="precisions", quants=_QUANTS[:6])
    looked_at = {name: (tab, _STATE) for name, tab in TABS.items()}
    looked_at["sweeps of 6 precisions"] = looked_at["sweeps"][0], several
    for name, (tab, state) in looked_at.items():
        tab_s = min(spent(draw_tab, tab, state) for _ in range(5))
        print(f"tab       {name} {tab_s * 1e3:.0f} ms")
    steps_s = min(spent(stepped, replace(_STATE, batch=batch)) for batch in (2, 3, 5, 6))
    print(f"tab       what would help {steps_s * 1e3:.0f} ms, after the numbers")
    device_results(_LARGE_MODEL)
    batches = range(2, 10)
    large_s = min(spent(device_results, replace(_LARGE_MODEL, batch=batch)) for batch in batches)
    help_s = min(spent(stepped, replace(_LARGE_MODEL, batch=batch)) for batch in batches)  # of the same, cached results
    print(f"change    of deepseek-v3 {large_s * 1e3:.0f} ms; what would help {help_s / large_s:.1f} times that")
    limits += [("a change of deepseek-v3", large_s, LARGE_MODEL_LIMIT_S)]
    limits += [("what would help for deepseek-v3", help_s, HELP_LIMIT * large_s)]
    if shutil.which("chromium"):
        from llmviewer.webapp.screenshots import browsing

        with serving_timed() as (url, times), browsing() as browser:
            first_s, numbers_s = paint(browser, url)
            print(f"paint     {first_s:.2f} s, with numbers {numbers_s:.2f} s")
            served_s = served(browser, url, times)
            print(f"served    until the new numbers {served_s * 1e3:.0f} ms of the server")
        limits += [("the first paint", first_s, PAINT_LIMIT_S), ("a change in a browser", served_s, CHANGE_LIMIT_S)]
    missed = [f"{label} takes {s * 1e3:.0f} ms, above {limit * 1e3:.0f} ms" for label, s, limit in limits if s > limit]
    for line in missed:
        print(f"MISSED    {line}")
    return 1 if missed and "--check" in sys.argv else 0


def spent(work: Any, *arguments: Any) -> float:
    """CPU time. [s]"""
    start = time.process_time()
    work(*arguments)
    return time.process_time() - start


def draw_tab(tab: Tab, state: State) -> None:
    """Draws a tab with the results of a state."""
    tab.show(device_results(state), state).to_plotly_json()


def stepped(state: State) -> None:
    """Ranks the changes of *What would help* for a state."""
    changes.ranked_changes(device_results(state), state, with_techniques=False)


@contextmanager
def serving_timed() -> Iterator[tuple[str, list[tuple[str, float]]]]:
    """The address of a page, and what the processor is told to take for each request: (output, seconds)."""
    from llmviewer.webapp.screenshots import serving

    times: list[tuple[str, float]] = []

    def start() -> None:
        g.start = time.thread_time()

    def end(response: Any) -> Any:
        if request.method == "POST":
            times.append((request.get_json()["output"], time.thread_time() - g.start))
        return response

    def timed(server: Flask) -> None:
        server.before_request(start)
        server.after_request(end)

    with serving(timed) as url:
        yield url, times


def paint(browser: Browser, url: str) -> tuple[float, float]:
    """Until there are controls and until there are numbers; the best of some browsers that are new to the page. [s]"""
    found = []
    for _ in range(4):
        context = browser.new_context()
        page = context.new_page()
        start = time.perf_counter()
        page.goto(url)
        page.wait_for_selector("#controls")
        first_s = time.perf_counter() - start
        page.wait_for_selector("#advice")
        found.append((first_s, time.perf_counter() - start))
        context.close()
    return min(found)


def served(browser: Browser, url: str, times: list[tuple[str, float]]) -> float:
    """Shortest of some changes in a browser: time on the server from request to answer. [s]"""
    from llmviewer.webapp.screenshots import open_page, wait_until_loaded

    page = browser.new_page()
    open_page(page, f"{url}{_STATE.link}")
    found = []
    for batch in range(30, 38):
        times.clear()
        page.fill("#batch", str(batch))
        page.press("#batch", "Enter")
        page.wait_for_function(f"document.querySelector('#answer h2').innerText.includes('batch {batch},')")
        wait_until_loaded(page)
        found.append(sum(s for output, s in times if "link.data" in output or output == "answer.children"))
    return min(found)


if __name__ == "__main__":
    raise SystemExit(main())
