"""Names of modules: tensors that transformers saves (oracle/modules.json, made by make_modules.py) and real files."""

from __future__ import annotations

import json
from math import prod

import pytest

from llmviewer.architectures import model_types
from llmviewer.memory import weight_bytes
from llmviewer.model_files import load_model
from llmviewer.stored.module_names import known_layouts
from llmviewer.stored.safetensors_files import read_folder

from .oracle.make_modules import ORACLE, config_of, difference, unfolded

SAVED = json.loads(ORACLE.read_text(encoding="utf-8"))["models"]


def test_every_architecture_has_a_layout():
    missing = set(model_types()) - set(known_layouts())
    assert not missing, "add them to a row of llmviewer/stored/module_layouts.py"
    assert not set(known_layouts()) - set(model_types())


@pytest.mark.parametrize("name", SAVED)
def test_each_tensor_of_a_checkpoint_is_claimed_and_bytes_agree(name):
    entry = SAVED[name]
    assert not difference(config_of(name, entry), unfolded(entry["tensors"]))


@pytest.mark.slow("counts in torch again")
def test_names_are_those_that_transformers_saves_now(recounted):
    recounted("make_modules.py", "falcon-h1-0.5b", "t5-small", "gpt2", "qwen1.5-moe-a2.7b")


@pytest.mark.parametrize("name", ["zamba", "hrm_text", "inkling_text", "jetmoe", "dory", "granitemoe_swa"])
def test_bytes_are_those_of_a_file_that_transformers_saves(tmp_path, name):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    fields = json.loads((ORACLE.parent / "latest.json").read_text(encoding="utf-8"))["models"][name]["config"]
    config = transformers.AutoConfig.for_model(**fields)
    transformers.AutoModelForCausalLM.from_config(config).to(torch.bfloat16).save_pretrained(tmp_path)
    model = load_model(str(tmp_path))
    stored = sum(prod(t.shape) * t.format.stored_bits / 8 for t in read_folder(tmp_path).values())
    assert weight_bytes(model.published) == stored
    assert not [note for note in model.notes if "holds" in note]
