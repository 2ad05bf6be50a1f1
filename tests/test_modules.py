"""Names of modules: tensors that transformers saves (oracle/modules.json, made by make_modules.py) and real files."""

from __future__ import annotations

import json

import pytest

from llmviewer.architectures import model_types
from llmviewer.stored.module_names import known_layouts

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
