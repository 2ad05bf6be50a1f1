"""models/index.json matches the models.

`python tests/test_model_index.py` remakes it.
"""

import json
import shutil
import subprocess
import sys

import pytest

from llmviewer import model_index
from llmviewer.model_files import load_model, model_facts, model_names
from llmviewer.model_index import PATH, ModelFacts, all_facts, index, to_json


def built(name):
    return model_facts(load_model(name))


def test_the_index_is_of_the_models():
    was, now = PATH.read_text(encoding="utf-8").splitlines(), to_json(map(built, model_names())).splitlines()
    moved = [line for line in now if line not in was]
    assert not moved, f"`python tests/test_model_index.py` remakes {PATH.name}: {moved[:3]}"
    assert len(was) == len(now)


def test_lists_need_no_graph():
    def build(name):
        raise AssertionError(name)

    assert [one.name for one in all_facts(build)] == list(model_names())
    code = "import sys, llmviewer.cli; llmviewer.cli.main(['models']); print('numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("\nFalse\n")


def test_model_facts_round_trip_through_json():
    facts = index()["gpt-oss-20b"]
    assert ModelFacts.of(json.loads(to_json([facts]))["gpt-oss-20b"]["facts"]) == facts == built("gpt-oss-20b")


@pytest.fixture
def copied(tmp_path, monkeypatch):
    """A folder with the index and two of its models."""
    for name in ("gpt2.yaml", "llama-2-7b.yaml", "index.json"):
        shutil.copy(PATH.parent / name, tmp_path)
    monkeypatch.setattr(model_index, "PATH", tmp_path / "index.json")
    index.cache_clear()
    yield tmp_path
    index.cache_clear()


def test_models_that_the_index_does_not_know_are_built(copied):
    assert index().keys() == {"gpt2", "llama-2-7b"}
    (copied / "gpt2.yaml").write_text((copied / "gpt2.yaml").read_text() + "# longer\n")
    (copied / "another.yaml").write_text("")
    index.cache_clear()
    asked = []
    found = all_facts(lambda name: asked.append(name) or built("gpt2"))
    assert [one.name for one in found] == ["gpt2", "gpt2", "llama-2-7b"]
    assert asked == ["another", "gpt2"]
    (copied / "index.json").unlink()
    index.cache_clear()
    assert index() == {}


if __name__ == "__main__":
    PATH.write_text(to_json(map(built, model_names())), encoding="utf-8")
