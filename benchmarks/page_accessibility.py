"""Checks every tab of the dashboard in both color schemes: `python benchmarks/page_accessibility.py [AXE]`.

AXE is axe.min.js of axe-core (npm, MPL-2.0); without it, `npm pack` downloads the version named here. Prints a line per
violation; exits with 1 if one is serious or critical. Needs a Chromium.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmviewer.webapp.screenshots import EXAMPLE, browsing, link, open_page, serving
from llmviewer.webapp.tabs import TABS

if TYPE_CHECKING:
    from playwright.sync_api import Browser

PACKAGE = "axe-core@4.14.1"
SERIOUS = ("serious", "critical")
_WIDTHS = {"light": 1280, "dark": 390}
_TIMEOUT_MS = 120_000  # of a busy machine
_RUN = "async () => (await axe.run(document, {resultTypes: ['violations']})).violations"
_ADVISED = ("best-practice", "experimental")  # tags of rules beyond WCAG


def main(arguments: list[str]) -> int:
    """Prints the violations; 1 if one is serious."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(arguments[0]) if arguments else _download(Path(folder))
        serious = 0
        with serving() as url, browsing() as browser:
            for scheme, tab, violation in _violations(browser, url, script):
                first = violation["nodes"][0]
                print(f"{scheme:5} {tab:10} {violation['impact']:8} {violation['id']}: {len(violation['nodes'])} x "
                      f"{first['html'][:160]}")  # fmt: skip
                serious += violation["impact"] in SERIOUS
    print(f"{serious} serious violations in {len(TABS)} tabs and {len(_WIDTHS)} color schemes")
    return 1 if serious else 0


def _download(folder: Path) -> Path:
    """axe.min.js of the package, in a folder."""
    subprocess.run(["npm", "pack", "--silent", PACKAGE], cwd=folder, check=True, capture_output=True)  # noqa: S607
    (archive,) = folder.glob("*.tgz")
    with tarfile.open(archive) as files:
        files.extract("package/axe.min.js", folder, filter="data")
    return folder / "package" / "axe.min.js"


def _violations(browser: Browser, url: str, script: Path) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Color scheme, tab and violation."""
    for scheme, width in _WIDTHS.items():
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)  # type: ignore[arg-type]
        page = context.new_page()
        page.set_default_timeout(_TIMEOUT_MS)
        for tab in TABS:
            open_page(page, f"{url}{link(tab, state=EXAMPLE)}")
            page.add_script_tag(path=script)
            for violation in page.evaluate(_RUN):
                if not set(_ADVISED) & set(violation["tags"]):
                    yield scheme, tab, violation
        context.close()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
