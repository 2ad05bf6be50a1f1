"""Settings of the whole suite."""

import os
import sys
import textwrap
from pathlib import Path

import pytest
from hypothesis import settings

# `python -m pytest` looks for packages in the checkout first, where transformers takes our kernels/ for a package of
# that name which it knows. Ours are imported as llmviewer.kernels.
_ROOT = Path(__file__).resolve().parent.parent
sys.path[:] = [path for path in sys.path if Path(path or ".").resolve() != _ROOT]

os.environ.setdefault("TRITON_INTERPRET", "1")  # before triton is imported: kernels run where there is no GPU

os.environ.pop("COLUMNS", None)  # reports are cut to it, and it is not the same everywhere

settings.register_profile("suite", deadline=None, derandomize=True, max_examples=60)  # the same cases on every machine
settings.load_profile("suite")


@pytest.fixture
def own(request, tmp_path, monkeypatch):
    """A module of the user's in the folder that the tool runs in, which has the text OWN of the test's: its name and a
    colon, before what is named of it.
    """
    (tmp_path / "own_model.py").write_text(textwrap.dedent(request.module.OWN))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "own_model", raising=False)
    return "own_model:"
