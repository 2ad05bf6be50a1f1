"""Attention in Triton's interpreter, and what its operators count."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from llmviewer.kernels import load_kernel  # noqa: E402
from llmviewer.kernels.base import case  # noqa: E402

from .kernel_checks import cases, check, counted, moved, named  # noqa: E402

CASES = cases("attention")


@pytest.mark.parametrize(("name", "one"), CASES, ids=named)
def test_a_kernel_computes_what_its_reference_does(name, one, monkeypatch):
    check(name, one, monkeypatch)


@pytest.mark.parametrize(("name", "one"), [(n, c) for n, c in CASES if not c.get("window")], ids=named)
def test_the_operator_moves_every_tensor_once(name, one):
    """But for where sequences begin."""
    assert load_kernel(name).nbytes(one) == pytest.approx(moved(name, one), rel=2e-3)


def test_counts_by_hand():
    # Queries at positions 3 and 4 of 5 see 4 + 5 keys, and with a window of 2 two each, of 3 that are read.
    chunk = {"B": 1, "heads": 4, "kv_heads": 2, "dim": 8, "q": 2, "kv": 5}
    flash = load_kernel("flash_attention")
    whole = (4 * 9 * (2 * 8 + 2 * 8 + 5), 2 * (2 * 2 * 32 + 2 * 5 * 16))
    windowed = (4 * 4 * (2 * 8 + 2 * 8 + 5), 2 * (2 * 2 * 32 + 2 * 3 * 16))
    assert counted(flash, case("fp16", **chunk)) == [whole]
    assert counted(flash, case("fp16", **chunk, window=2)) == [windowed]


def test_a_query_does_not_see_what_comes_after_it_nor_other_sequences():
    kernel = load_kernel("flash_attention")
    inputs = kernel.make(case("fp16", B=2, heads=2, kv_heads=1, dim=32, q=40, kv=40), "cpu", 1)
    (before,) = kernel.run(**inputs)
    for name in "kv":
        inputs[name][30:40] = 100.0  # the last ten keys of the first sequence
    (after,) = kernel.run(**inputs)
    assert torch.equal(before[:30], after[:30])
    assert torch.equal(before[40:], after[40:])
    assert not torch.equal(before[30:40], after[30:40])
