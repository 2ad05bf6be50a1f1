"""Pictures of every tab at the width of a desk and of a phone: `python -m llmviewer.webapp.screenshots FOLDER`."""

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
_DARK: Final = "overview"  # the tab that is shown in the dark too
_COLOURS: Final = (96, 48, 32, 24)  # of a picture: the first of these that makes it small
_LARGEST: Final = 150_000  # of a picture [B]
_QUIET: Final = """() => {
  const now = performance.now();
  if (window.asked === undefined || document.querySelector('[data-dash-is-loading="true"]')) window.asked = now;
  return now - window.asked > 400;
}"""  # one answer may ask for the next a moment later
ASKED: Final = State(model="llama-3.1-70b", on=("h100-sxm", "l40s", "mi300x"), batch=16)
_TRACE: Final = ROOT / "reports" / "examples" / "timeline.csv"
_TRACED: Final = State(on=("rtx-4090",), prompt=476, quant="Q4_K_M", phase="prefill")  # as it was recorded
FLAGS: Final = (  # a browser that is alone in a container, and cannot reach another host
    "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--no-first-run", "--disable-default-apps",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)  # fmt: skip


def main(arguments: Sequence[str]) -> int:
    folder = Path(arguments[0] if arguments else "docs")
    folder.mkdir(parents=True, exist_ok=True)
    with serving(_with_trace) as url, browsing() as browser:
        for name, width in WIDTHS.items():
            for tab in TABS:
                asked = _TRACED if tab == "timeline" else ASKED
                take(browser, f"{url}{link(tab, asked=asked)}", folder / f"{tab}-{name}.png", width=width)
        take(browser, f"{url}{link(_DARK)}", folder / f"{_DARK}-dark.png", width=WIDTHS["desk"], dark=True)
    return 0


def _with_trace(server: Flask) -> None:
    server.config[TRACE] = _TRACE


def take(browser: Browser, url: str, file: Path, *, width: int, dark: bool = False) -> None:
    """A picture of a whole page."""
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light", reduced_motion="reduce"
    )
    page = context.new_page()
    open_page(page, url)
    page.evaluate("window.scrollTo(0, document.body.scrollHeight)")  # what is not looked at may not be drawn
    page.wait_for_timeout(400)
    whole = page.evaluate("document.documentElement.scrollHeight")
    page.set_viewport_size({"width": width, "height": whole})  # so that what sticks to the window stays in place
    settled(page)
    page.screenshot(path=file)
    context.close()
    shrink(file)


def shrink(file: Path) -> None:
    """Few colours: one after another that which is frequent and far from those before."""
    from PIL import Image

    with Image.open(file) as picture:
        pixels = np.asarray(picture.convert("RGB")).astype(np.int64)
    packed, of, counts = np.unique(pixels @ (65536, 256, 1), return_inverse=True, return_counts=True)
    colours = np.stack((packed >> 16, packed >> 8 & 255, packed & 255), axis=1)
    for most in _COLOURS:
        far, near = np.full(len(colours), np.inf), np.zeros(len(colours), np.uint8)
        palette: list[int] = []
        for place in range(min(most, len(colours))):
            worth = np.sqrt(counts) * far if place else counts
            chosen = colours[worth.argmax()]
            palette += chosen.tolist()
            distance = ((colours - chosen) ** 2).sum(axis=1)
            near[distance < far] = place
            far = np.minimum(far, distance)
        small = Image.fromarray(near[of].reshape(pixels.shape[:2]), "P")
        small.putpalette(palette)
        small.save(file, optimize=True)
        if file.stat().st_size <= _LARGEST:
            return


def link(tab: str, *, asked: State = ASKED) -> str:
    """The link of a tab."""
    query = asked.link
    return query if tab == State.tab else f"{query}&tab={tab}" if query else f"?tab={tab}"


@contextmanager
def serving(prepare: Callable[[Flask], None] = lambda server: None, port: int = 0) -> Iterator[str]:
    """The address of a page that is served for a while, once `prepare` has seen its server; 0 takes a free port."""
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
    """The Chromium of this machine, without a window."""
    from playwright.sync_api import sync_playwright

    path = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, headless=True, args=list(FLAGS))
        try:
            yield browser
        finally:
            browser.close()


def open_page(page: Page, url: str) -> None:
    """Opens a page and waits until all that it shows is there."""
    page.goto(url)
    settled(page)


def settled(page: Page) -> None:
    """Waits until nothing is asked of the server any more and figures are drawn."""
    page.wait_for_selector("#advice", state="attached")
    page.wait_for_selector("#content > *")
    page.evaluate("delete window.asked")
    page.wait_for_function(_QUIET)
    page.wait_for_function(
        "[...document.querySelectorAll('.dash-graph')].every(one => one.querySelector('.xaxislayer-above'))"
    )


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
