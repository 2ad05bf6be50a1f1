"""Pictures of every tab at the width of a desk and of a phone: `python -m llmviewer.webapp.screenshots FOLDER`."""

from __future__ import annotations

import logging
import shutil
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from .state import State
from .tabs import TABS

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

WIDTHS: Final = {"desk": 1280, "phone": 400}
ASKED: Final = State(model="llama-3.1-70b", on=("h100-sxm", "l40s", "mi300x"), batch=16)
FLAGS: Final = (  # a browser that is alone in a container, and cannot reach another host
    "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--no-first-run", "--disable-default-apps",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)  # fmt: skip


def main(arguments: Sequence[str]) -> int:
    folder = Path(arguments[0] if arguments else "docs")
    folder.mkdir(parents=True, exist_ok=True)
    with serving() as url, browsing() as browser:
        for name, width in WIDTHS.items():
            page = browser.new_page(viewport={"width": width, "height": 900})
            for tab in TABS:
                open_page(page, f"{url}{link(tab.name)}")
                for end in ("document.body.scrollHeight", "0"):  # what is not looked at may not be drawn
                    page.evaluate(f"window.scrollTo(0, {end})")
                    page.wait_for_timeout(400)
                page.screenshot(path=folder / f"web-{tab.name}-{name}.png", full_page=True)
            page.close()
    return 0


def link(tab: str, *, asked: State = ASKED) -> str:
    """The link of a tab."""
    query = asked.link
    return query if tab == State.tab else f"{query}&tab={tab}" if query else f"?tab={tab}"


@contextmanager
def serving() -> Iterator[str]:
    """The address of a page that is served for a while."""
    from werkzeug.serving import make_server

    from .app import create

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = make_server("127.0.0.1", 0, create().server, threaded=True)
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
    page.wait_for_selector("#advice")
    page.wait_for_selector("#content > *")
    page.wait_for_load_state("networkidle")
    page.wait_for_timeout(400)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
