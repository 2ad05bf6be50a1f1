"""Settings of the whole suite."""

import gc
import json
import os
import runpy
import shutil
import sys
import textwrap
import warnings
from pathlib import Path

import pytest
from hypothesis import settings

# `python -m pytest` looks for packages in the checkout first, where transformers takes our kernels/ for a package of
# that name which it knows. Ours are imported as llmviewer.kernels.
_ROOT = Path(__file__).resolve().parent.parent
_ORACLE = _ROOT / "tests" / "oracle"
_MESSAGES = _ROOT / "tests" / "golden" / "messages.json"
sys.path[:] = [path for path in sys.path if Path(path or ".").resolve() != _ROOT]

# One thread each, before numpy, scipy and torch are imported: matrices are small, and every core has its tests.
for _threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_threads, "1")

os.environ.setdefault("TRITON_INTERPRET", "1")  # before triton is imported: kernels run where there is no GPU

os.environ.pop("COLUMNS", None)  # reports are cut to it, and it is not the same everywhere

# The same cases in every run; LLMVIEWER_TEST_SEED=N draws others.
_FIXED = not os.environ.get("LLMVIEWER_TEST_SEED")
settings.register_profile("suite", deadline=None, derandomize=_FIXED, max_examples=60)
settings.load_profile("suite")

# Hundreds of thousands of modules, functions and tests stay until the end: a collector that looks through them again
# and again, after as few new objects as Python usually waits for, takes an eighth of the time of the suite.
gc.set_threshold(100_000)


def pytest_addoption(parser):
    parser.addoption("--all", action="store_true", help="run slow tests and all cases, as CI does")
    parser.addoption("--write-messages", action="store_true", help="keep messages in tests/golden/messages.json")


def pytest_configure(config):
    config.addinivalue_line("markers", "slow(reason): runs only with --all")


def pytest_collection_modifyitems(config, items):
    marked = {item: mark for item in items if (mark := item.get_closest_marker("slow"))}
    if nameless := [item.nodeid for item, mark in marked.items() if not mark.args]:
        raise pytest.UsageError(f"{nameless[0]}: pytest.mark.slow needs a reason")
    if marked and not config.getoption("all"):
        config.hook.pytest_deselected(items=list(marked))
        items[:] = [item for item in items if item not in marked]
    # Tests in a browser wait for it, 412 s where they compute 28 s: one worker begins with them, others have the cores.
    items.sort(key=lambda item: "browser" not in getattr(item, "fixturenames", ()))


def pytest_collection_finish():
    gc.freeze()


@pytest.fixture
def recounted(monkeypatch, capsys):
    """Runs a script of oracle/ with --check, of some models where they are named, and holds it to find no difference.
    In this process, where torch and transformers may be loaded already; skips the test where they are not to be had.
    """

    def run(script, *models):
        for needed in ("torch", "transformers"):
            pytest.importorskip(needed)
        monkeypatch.syspath_prepend(_ORACLE)  # they import each other
        monkeypatch.setattr(sys, "argv", [script, "--check", *(["--only", ",".join(models)] if models else [])])
        with warnings.catch_warnings(action="ignore"), pytest.raises(SystemExit) as ended:
            runpy.run_path(str(_ORACLE / script), run_name="__main__")
        said = capsys.readouterr().out
        assert ended.value.code == 0, said
        assert not models or f": {len(models)} models, no difference" in said

    return run


@pytest.fixture
def golden(request):
    """Asserts that a message has the given facts and is, as a whole, the one kept in golden/messages.json.

    --write-messages keeps the messages of the tests that run, for git to show what has changed.
    """
    kept = json.loads(_MESSAGES.read_text(encoding="utf-8"))
    own, writing, messages = kept.get(request.node.name, []), request.config.getoption("write_messages"), []

    def check(message, *facts):
        messages.append(message)
        assert "\n" not in message
        assert [fact for fact in facts if fact not in message] == []
        assert writing or [message] == own[len(messages) - 1 : len(messages)]

    yield check
    if writing:
        text = json.dumps(kept | {request.node.name: messages}, indent=1, sort_keys=True, ensure_ascii=False)
        _MESSAGES.write_text(text + "\n", encoding="utf-8")
    else:
        assert len(messages) == len(own)


@pytest.fixture(scope="session")
def browser():
    """The machine's Chromium, one for all tests of a process; skips the test where there is none."""
    pytest.importorskip("playwright")
    if not shutil.which("chromium"):
        pytest.skip("needs Chromium")
    from llmviewer.webapp.screenshots import browsing

    with browsing() as chromium:
        yield chromium


@pytest.fixture(scope="session")
def triton_cache():
    """The user's folder of kernels that earlier runs compiled, by hash of source, options and Triton's version."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "llmviewer" / "triton"


@pytest.fixture
def own(request, tmp_path, monkeypatch):
    """A module of the user's in the folder that the tool runs in, which has the text OWN of the test's: its name and a
    colon, before what is named of it.
    """
    (tmp_path / "own_model.py").write_text(textwrap.dedent(request.module.OWN))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "own_model", raising=False)
    return "own_model:"
