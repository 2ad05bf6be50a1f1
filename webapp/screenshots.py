"""Screenshots of tabs at desktop and phone width: `python -m llmviewer.webapp.screenshots FOLDER [NAME...]`."""

from __future__ import annotations

import logging
import shutil
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from llmviewer._layout import ROOT

from .state import State
from .tabs import TABS
from .tabs.timeline import TRACE

if TYPE_CHECKING:
    from flask import Flask
    from playwright.sync_api import Browser, Page

WIDTHS: Final = {"desk": 1280, "phone": 400}
_DARK_TAB, _DARK = "overview", "dark"  # taken in the dark color scheme too, under this name
_PALETTE_SIZES: Final = (96, 48, 32, 24)  # the first one that makes the file small enough
_MAX_FILE_BYTES: Final = 150_000
_TIMEOUT_MS: Final = 120_000  # simulations of the serving tab take long on a busy machine
_NO_REQUESTS: Final = """() => {
  const now = performance.now();
  const loading = document.querySelector('[data-dash-is-loading="true"]');
  if (!window.lastRequest || loading) window.lastRequest = { at: now, polls: 0 };
  return ++window.lastRequest.polls > 8 && now - window.lastRequest.at > 400;
}"""  # a response may trigger the next request a moment later, and be handled for long without a poll
EXAMPLE: Final = State(model="llama-3.1-70b", on=("h100-sxm", "l40s", "mi300x"), batch=16)
_TRACE: Final = ROOT / "reports" / "examples" / "timeline.csv"
_STATES: Final = {  # of tabs that show another example
    "timeline": State(on=("rtx-4090",), prompt=476, quant="Q4_K_M", phase="prefill"),  # the recorded setting
    "serving": State(quant="fp8"),
}
FLAGS: Final = (  # for a container, without access to other hosts
    "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--no-first-run", "--disable-default-apps",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)  # fmt: skip


def main(arguments: Sequence[str]) -> int:
    """Takes screenshots; `arguments` is the folder, and the names of those wanted, such as "memory-phone"; else all."""
    folder, *names = arguments
    Path(folder).mkdir(parents=True, exist_ok=True)
    kinds = [(tab, name, width) for name, width in WIDTHS.items() for tab in TABS]
    with serving(_with_trace) as url, browsing() as browser:
        for tab, name, width in [*kinds, (_DARK_TAB, _DARK, WIDTHS["desk"])]:
            if not names or f"{tab}-{name}" in names:
                address = f"{url}{link(tab, state=_STATES.get(tab, EXAMPLE))}"
                take_screenshot(browser, address, Path(folder) / f"{tab}-{name}.png", width=width, dark=name == _DARK)
    return 0


def _with_trace(server: Flask) -> None:
    server.config[TRACE] = _TRACE


def take_screenshot(browser: Browser, url: str, file: Path, *, width: int, dark: bool = False) -> None:
    """Saves a screenshot of a whole page."""
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light", reduced_motion="reduce"
    )
    page = context.new_page()
    page.set_default_timeout(_TIMEOUT_MS)
    open_page(page, url)
    page.wait_for_function("!document.querySelector('#serving-stop:enabled')")  # all points are simulated
    wait_until_loaded(page)
    page.evaluate("window.scrollTo(0, document.body.scrollHeight)")  # figures outside the window may not be drawn
    page.wait_for_timeout(400)
    height = page.evaluate("document.documentElement.scrollHeight")
    page.set_viewport_size({"width": width, "height": height})  # keeps sticky elements in place
    wait_until_loaded(page)
    page.screenshot(path=file)
    context.close()
    shrink(file)


def shrink(file: Path) -> None:
    """Reduces the colors of an image to a palette of frequent and distant ones, until the file is small enough."""
    from PIL import Image

    with Image.open(file) as picture:
        pixels = np.asarray(picture.convert("RGB")).astype(np.int64)
    packed, colour_indices, counts = np.unique(pixels @ (65536, 256, 1), return_inverse=True, return_counts=True)
    colours = np.stack((packed >> 16, packed >> 8 & 255, packed & 255), axis=1)
    for max_colours in _PALETTE_SIZES:
        nearest_distance, nearest_color = np.full(len(colours), np.inf), np.zeros(len(colours), np.uint8)
        palette: list[int] = []
        for place in range(min(max_colours, len(colours))):
            worth = np.sqrt(counts) * nearest_distance if place else counts
            chosen = colours[worth.argmax()]
            palette += chosen.tolist()
            distance = ((colours - chosen) ** 2).sum(axis=1)
            nearest_color[distance < nearest_distance] = place
            nearest_distance = np.minimum(nearest_distance, distance)
        image = Image.fromarray(nearest_color[colour_indices].reshape(pixels.shape[:2]), "P")
        image.putpalette(palette)
        image.save(file, optimize=True)
        if file.stat().st_size <= _MAX_FILE_BYTES:
            return


def link(tab: str, *, state: State = EXAMPLE) -> str:
    """Link to a tab."""
    query = state.link
    return query if tab == State.tab else f"{query}&tab={tab}" if query else f"?tab={tab}"


@contextmanager
def serving(prepare: Callable[[Flask], None] = lambda server: None, port: int = 0) -> Iterator[str]:
    """Serves the page and yields its address; `prepare` configures the server, port 0 takes a free one."""
    from werkzeug.serving import make_server

    from .app import create

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    pages = create().server
    prepare(pages)
    server = make_server("127.0.0.1", port, pages, threaded=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def browsing() -> Iterator[Browser]:
    """A headless Chromium of this machine."""
    from playwright.sync_api import sync_playwright

    path = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, headless=True, args=list(FLAGS))
        try:
            yield browser
        finally:
            browser.close()


def open_page(page: Page, url: str) -> None:
    """Opens a page and waits until it is loaded completely."""
    page.goto(url)
    wait_until_loaded(page)


def wait_until_loaded(page: Page) -> None:
    """Waits until no request is pending and all figures are drawn."""
    page.wait_for_selector("#advice", state="attached")
    page.wait_for_selector("#content > *")
    page.evaluate("delete window.lastRequest")
    page.wait_for_function(_NO_REQUESTS)
    page.wait_for_function(  # grids that are shown at all
        "[...document.querySelectorAll('.grid')].every(one => !one.offsetParent || one.querySelector('.ag-root')"
        " || one.closest('details:not([open])'))"
    )
    page.wait_for_function(
        "[...document.querySelectorAll('.dash-graph')].every(one => one.querySelector('.xaxislayer-above'))"
    )


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
