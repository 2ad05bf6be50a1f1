"""Parameters of every shipped model against transformers (oracle/parameters.json, made by make_parameters.py)."""

from __future__ import annotations

import json

import pytest

from llmviewer.model_files import load_model, model_names

from .cases import for_each
from .oracle.make_parameters import ORACLE, PAGE, page, specs

STORED = json.loads(ORACLE.read_text(encoding="utf-8"))
REMAKE = "run python tests/oracle/make_parameters.py"


def test_every_row_is_of_a_model():
    assert STORED["models"].keys() <= {*model_names()}, REMAKE


@for_each("name", model_names)
def test_parameters_equal_those_of_another_count(name):
    """The count of the class in transformers if there is one, else that of the model's file."""
    row = STORED["models"].get(name) or specs()[name]
    assert load_model(name).parameters == row["parameters"]


def test_counts_that_are_no_class_of_transformers_are_those_of_the_models_file():
    files = specs()
    own = {name: row for name, row in STORED["models"].items() if row["counted"] in ("by hand", "file")}
    assert all(row["parameters"] == files[name]["parameters"] for name, row in own.items())
    by_hand = {name for name, row in own.items() if row["counted"] == "by hand"}
    assert by_hand == {name for name in own if "by hand" in " ".join(str(files[name]["source"]["note"]).split())}


def test_the_page_is_made_of_these_counts():
    assert PAGE.read_text(encoding="utf-8") == page(STORED), REMAKE


@pytest.mark.slow("counts in torch again")
def test_parameters_json_equals_a_transformers_recount(recounted):
    """Each eighth model is recounted: versions are pinned. Needs the extra `oracle`; skipped without it."""
    recounted("make_parameters.py", *model_names()[::8])
