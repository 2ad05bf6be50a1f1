"""Norms in Triton's interpreter, and what their operators count."""

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

from llmviewer.kernels import load_kernel
from llmviewer.kernels.base import case

from .kernel_checks import cases, check, counted, moved, named

CASES = cases("norm")


@pytest.mark.parametrize(("name", "one"), CASES, ids=named)
def test_a_kernel_computes_what_its_reference_does(name, one, monkeypatch):
    check(name, one, monkeypatch)


@pytest.mark.parametrize(("name", "one"), CASES, ids=named)
def test_the_operator_moves_every_tensor_once(name, one):
    assert load_kernel(name).nbytes(one) == moved(name, one)


def test_counts_by_hand():
    norm = load_kernel("rms_norm")
    assert counted(norm, case("fp16", M=3, N=8)) == [(4 * 3 * 8, 2 * (3 * 8 + 8 + 3 * 8))]
    # x and the residual read, their sum and y written; the norm reads its weight alone
    with_sum = [(3 * 8, 2 * 3 * 3 * 8), (4 * 3 * 8, 2 * (8 + 3 * 8))]
    assert counted(norm, case("fp16", M=3, N=8, residual=1)) == with_sum
