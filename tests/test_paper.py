"""docs/paper.md is what benchmarks/paper.py writes."""

import re
import sys
from importlib import util

import pytest

from llmviewer._layout import ROOT

_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_MOST = 0.05  # of expected times, before the page is made anew


@pytest.fixture(scope="module")
def paper():
    spec = util.spec_from_file_location("paper_page", ROOT / "benchmarks" / "paper.py")
    module = util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def written(heading):
    """The section of the page under a heading."""
    text = (ROOT / "docs" / "paper.md").read_text(encoding="utf-8")
    return next(part for part in text.split("\n## ") if part.startswith(heading))


def test_exact_sections_are_those_of_the_page(paper):
    for section in (paper.table_1(), paper.figures(), paper.table_2()):
        made = section.removeprefix("\n## ")
        assert made.split() == written(made.partition("\n")[0]).split()


def test_table_1_agrees_in_every_number(paper):
    assert "**96 of 96 numbers round to the printed ones**" in paper.table_1()
    assert not paper._rounds_to(68.4e9, "69G")
    assert not paper._rounds_to(1.2, "1.25")


@pytest.mark.slow("remakes tables of expected times")
def test_expected_sections_are_those_of_the_page(paper):
    for section in (paper.table_4(), paper.table_5(), paper.table_6()):
        made = section.removeprefix("\n## ")
        page = written(made.partition("\n")[0])
        assert _NUMBER.sub("", made).split() == _NUMBER.sub("", page).split()
        for ours, theirs in zip(_NUMBER.findall(made), _NUMBER.findall(page), strict=True):
            most = {"rel": _MOST} if "." in theirs else {"abs": 2}  # counts of cells
            assert float(ours) == pytest.approx(float(theirs), **most)
