"""Techniques and architectures of others, by a variable."""

import json
import os

import pytest

from llmviewer import architectures, techniques
from llmviewer._layout import ROOT
from llmviewer.cli import main
from llmviewer.documents import read_yaml

CONFIG = read_yaml(ROOT / "models" / "llama-2-7b.yaml").data["config"]
OWN = '''
from dataclasses import dataclass
from llmviewer.analyzing.analysis import analyze
from llmviewer.architectures import architecture
from llmviewer.architectures.llama import FAMILIES
from llmviewer.techniques import Kind, Technique, Requirement, technique

@technique("{name}")
@dataclass(frozen=True, kw_only=True)
class Own(Technique):
    """Own."""
    kind = Kind.GRAPH
    requires = Requirement.NOTHING

architecture("{name}")(FAMILIES["llama"].graph)
analyze("llama-2-7b", "h100-sxm", techniques=["{name}"])  # as it is a module, it may use what it adds

'''


@pytest.fixture(autouse=True)
def forgotten():
    yield
    for registry in (techniques._KINDS, architectures._BUILDERS):
        registry.pop("plugged", None)


def test_plugins_bring_techniques_and_architectures(monkeypatch, tmp_path, capsys):
    path, config = tmp_path / "own.py", tmp_path / "config.json"
    path.write_text(OWN.format(name="plugged"))
    config.write_text(json.dumps({**CONFIG, "model_type": "plugged"}))
    monkeypatch.setenv("LLMVIEWER_PLUGINS", os.pathsep.join(["textwrap", str(path)]))
    assert main(["analyze", str(config), "h100-sxm", "--with", "plugged"]) == 0
    assert "with plugged" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        (None, "must be an existing .py file or an importable module"),
        ("import nothing_here", "cannot be imported (ModuleNotFoundError: No module named 'nothing_here')"),
        (OWN.format(name="mtp"), "cannot be imported (RuntimeError: 'mtp' is registered twice: "),
    ],
)  # fmt: skip
def test_failing_plugin_import_is_refused_in_one_line(text, wrong, monkeypatch, tmp_path, capsys):
    path = tmp_path / "own.py"
    if text:
        path.write_text(text)
    monkeypatch.setenv("LLMVIEWER_PLUGINS", str(path))
    assert main(["analyze", "llama-2-7b", "h100-sxm", "--with", "mtp"]) == 2
    assert capsys.readouterr().err.startswith(f"llmviewer: LLMVIEWER_PLUGINS: {path}: {wrong}")
