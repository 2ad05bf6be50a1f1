"""A gate on how good expectations are, by rows that `llmviewer measure` measured: 55 kernels of torch on an EPYC.

`llmviewer measure --backend cpu --family attention,gemm` made them, with one thread, on two cores that others used too.
tests/test_gpu_accuracy.py has a sample of public measurements of GPUs.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from llmviewer.expectation.fitting import fit_parameters, pick
from llmviewer.expectation.rows import read

MEASURED = Path(__file__).parent / "measured" / "epyc"
# Rows, and the most that their mean error may be: a fifth above what it was when they were measured.
GATES = {"gemm": (27, 0.18), "attention_decode": (18, 0.036), "attention_prefill": (10, 0.11)}


@pytest.fixture(params=GATES)
def rows(request, monkeypatch):
    pytest.importorskip("scipy")
    monkeypatch.setenv("LLMVIEWER_HARDWARE_PATH", str(MEASURED))
    (found,) = read(MEASURED / f"{request.param}.csv").rows
    return found


def halves(rows):
    """Expected time of each row, from the parameters of the half that it is not in. [s]"""
    half = np.random.default_rng(0).permutation(len(rows)) % 2
    family, expected = rows.family, np.empty(len(rows))
    features = family.features(rows.shapes, rows.device, rows.implementation, family.variants[0])
    for which in (0, 1):
        own, other = np.flatnonzero(half == which), np.flatnonzero(half != which)
        found = fit_parameters(
            family,
            pick(features, other),
            rows.measured[other],
            priors=family.default_parameters(rows.implementation, rows.device),
        )
        expected[own] = family.seconds(found.parameters, pick(features, own))
    return expected


def error(rows):
    return np.mean(np.abs(halves(rows) / rows.measured - 1))


def test_half_of_our_rows_expects_the_other_half(rows):
    count, most = GATES[rows.family.name]
    assert len(rows) == count
    assert error(rows) < most


def test_the_gate_shuts_before_rows_that_no_model_explains(rows):
    mixed = replace(rows, measured=np.random.default_rng(1).permutation(rows.measured))
    assert error(mixed) > 2 * GATES[rows.family.name][1]


def test_no_row_is_faster_than_its_bound(rows):
    assert np.all(rows.family.bound(rows.shapes, rows.device, rows.implementation) <= rows.measured)
