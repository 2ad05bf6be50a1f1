"""A short run of benchmarks/fuzz.py, always of the same inputs, and that it notices what it looks for."""

import json
import sys
import warnings
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from llmviewer.errors import InputError

PATH = Path(__file__).parents[1] / "benchmarks" / "fuzz.py"


@pytest.fixture(scope="module")
def fuzz():
    spec = spec_from_file_location("fuzz", PATH)
    made = module_from_spec(spec)
    sys.modules["fuzz"] = made
    spec.loader.exec_module(made)
    yield made
    del sys.modules["fuzz"]


@pytest.mark.slow("runs many mutated inputs")
def test_mutated_inputs_of_every_kind_end_in_a_result_or_in_one_line(fuzz):
    found = fuzz.fuzz(list(fuzz.KINDS), range(10), strict=True)
    assert {fault for _, fault in found} == {fuzz.REFUSED}
    assert found.total() < 0.9 * 10 * len(fuzz.KINDS)  # the others are used


def refuse(text):
    raise InputError(text)


@pytest.mark.parametrize(
    ("run", "fault"),
    [
        (lambda: None, ""),
        (lambda: refuse("a: must be b; got c"), "refused"),
        (lambda: {}["a"], "KeyError"),
        (lambda: sys.exit(3), "SystemExit"),
        (lambda: warnings.warn("overflow", RuntimeWarning, stacklevel=1), "RuntimeWarning"),
    ],
)
def test_the_fuzzer_notices(fuzz, run, fault):
    assert fuzz.check(run, strict=False).startswith(fault)


@pytest.mark.parametrize("result", [{"a": [{"weight_bytes": -1}]}, {"ttft_s": float("nan")}, {"ops": -2.5}])
def test_fuzzer_detects_impossible_amounts(fuzz, monkeypatch, result):
    monkeypatch.setattr(fuzz, "main", lambda _: 0 * sys.stdout.write(json.dumps(result)))
    assert "in the result" in fuzz.check(lambda: fuzz.command("analyze"), strict=False)
