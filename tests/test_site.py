"""The documentation as one site: it builds without a warning or the network."""

import subprocess
import sys
from pathlib import Path

import pytest

import llmviewer

pytest.importorskip("sphinx")
ROOT = Path(__file__).parents[1]


@pytest.mark.slow("reads every page and the whole public interface: 11 s of CPU")
def test_the_site_builds_with_every_public_name(tmp_path):
    build = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", "-c", "docs/site", "."]
    run = subprocess.run([*build, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.stderr == ""
    page = (tmp_path / "docs" / "site" / "api.html").read_text()
    assert [name for name in llmviewer.__all__ if name[0] != "_" and f'id="llmviewer.{name}"' not in page] == []
    assert (tmp_path / "index.html").is_file()
