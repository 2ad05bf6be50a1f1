"""Choosing tokens in Triton's interpreter: what top-k and top-p leave, ties, and how often each token is drawn."""

from math import e, log2

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from llmviewer.kernels import load_kernel, sparse_indexer  # noqa: E402
from llmviewer.kernels.base import case  # noqa: E402

from .cases import first_fast  # noqa: E402
from .kernel_checks import NEW, cases, moved, named  # noqa: E402

CASES = cases("sampling")
HALVES = torch.tensor(log2(e))  # the temperature at which a logit that is 1 less has half the weight, to the last bit


@pytest.mark.parametrize(("name", "one"), CASES, ids=named)
def test_the_operator_moves_every_tensor_once(name, one):
    assert load_kernel(name).nbytes(one) == moved(name, one)


def drawn(logits, draws, *, k=0, p=1.0, temperature=HALVES):
    """How often each token is drawn from one row, of u from 0 to 1 in equal steps."""
    rows = (torch.as_tensor(logits).expand(draws, -1).contiguous(), temperature.expand(draws).contiguous())
    tokens = load_kernel("sample").run(
        logits=rows[0],
        temperature=rows[1],
        top_k=torch.full((draws,), k, dtype=torch.int32),
        top_p=torch.full((draws,), p),
        uniform=(torch.arange(draws) + 0.5) / draws,
    )[0]
    return tokens.long().bincount(minlength=len(logits)).tolist()


TILINGS = load_kernel("sample").tilings(None, None)
LOGITS_OF = (("bf16", 0.3), ("fp32", 1.0), ("fp16", 3.0))  # data type, scale

# Weights 1/8, 1, 1/2, 1/4, 1/8, of which the sum is 2: of 16 draws 1, 8, 4, 2, 1; of 3 of the two largest alone 2, 1.
LOGITS = [-3.0, 0.0, -1.0, -2.0, -3.0]


@pytest.mark.parametrize(
    ("kept", "wanted"),
    first_fast(
        [
            ({}, [1, 8, 4, 2, 1]),
            ({"k": 1}, [0, 2, 0, 0, 0]),
            ({"k": 2}, [0, 2, 1, 0, 0]),
            ({"k": 4}, [1, 8, 4, 2, 1]),  # the fourth and the fifth are alike
            ({"k": 9}, [1, 8, 4, 2, 1]),
            ({"p": 0.0}, [0, 2, 0, 0, 0]),
            ({"p": 0.5}, [0, 2, 0, 0, 0]),  # exactly half of the sum
            ({"p": 0.5 + 2.0**-20}, [0, 2, 1, 0, 0]),
            ({"p": 0.75}, [0, 2, 1, 0, 0]),
            ({"p": 0.875 + 2.0**-20}, [1, 8, 4, 2, 1]),
            ({"k": 2, "p": 0.6}, [0, 2, 0, 0, 0]),  # two thirds of what top-k has left
            ({"k": 2, "p": 0.7}, [0, 2, 1, 0, 0]),
        ],
        "in Triton's interpreter",
        3,
    ),
)
def test_sampling_frequencies_equal_the_probabilities(kept, wanted):
    assert drawn(LOGITS, sum(wanted), **kept) == wanted


@pytest.mark.slow("in Triton's interpreter")
def test_logits_below_the_k_largest_are_never_drawn():
    """They count neither for top-k nor for the sum that u is a part of."""
    assert drawn([*LOGITS, *6 * [-6.0]], 16, k=5) == [1, 8, 4, 2, 1, *6 * [0]]


@pytest.mark.slow("in Triton's interpreter")
def test_temperature_flattens_and_masked_tokens_are_never_drawn():
    assert drawn([0.0, -2.0, float("-inf")], 10, temperature=2 * HALVES) == [7, 3, 0]  # 1 : 1/2
    assert drawn([0.0, -2.0, float("-inf")], 10) == [8, 2, 0]  # 1 : 1/4


def test_zeros_of_both_signs_are_alike():
    assert drawn([-0.0, 0.0, -1.0], 4, k=1) == [2, 2, 0]


@pytest.mark.slow("in Triton's interpreter")
@pytest.mark.parametrize(
    ("dtype", "scale", "tile"),
    [(*LOGITS_OF[place % 3], tile) for place, tile in enumerate([*TILINGS, TILINGS[0], TILINGS[0]])],
    ids=str,
)
def test_tokens_are_those_of_a_sort_whatever_the_tiling(dtype, scale, tile):
    """A k of few logits, of more than half of the groups of 128 and of nearly all, each with and without top-p; top-p
    alone, of nearly nothing and of nearly all; thresholds on both sides of 0, and tokens that are masked.
    """
    kernel, rows, vocab = load_kernel("sample"), 10, 5000
    inputs = kernel.make(case(dtype, rows=rows, vocab=vocab, k=1, percent=50), "cpu", 5)
    inputs["logits"] = (inputs["logits"].float() * scale / 3).to(inputs["logits"].dtype)
    inputs["logits"][:, 4000:4700] = float("-inf")
    inputs["top_k"] = torch.tensor([5, 5, 50, 50, 4200, 4200, 0, 0, 0, 0], dtype=torch.int32)
    inputs["top_p"] = torch.tensor([0.9, 1.0, 0.9, 1.0, 0.9, 1.0, 0.02, 0.5, 0.999, 1.0])
    assert kernel.run(**inputs, tile=tile)[0].tolist() == kernel.reference(**inputs)[0].tolist()


@pytest.mark.slow("in Triton's interpreter")
def test_a_flat_row_keeps_more_than_registers_hold():
    """All 5000 logits are alike, so all stay, whatever k is."""
    tokens = drawn([1.5] * 5000, 4, k=3)
    assert [token for token, times in enumerate(tokens) if times] == [625, 1875, 3125, 4375]


def test_the_first_of_the_largest_is_taken():
    logits = torch.zeros(3, 9000)
    logits[0, [70, 4000, 8999]] = 1.0
    logits[1, [4096, 8192]] = 1.0
    assert load_kernel("argmax").run(logits=logits)[0].tolist() == [70, 4096, 0]


@pytest.mark.slow("in Triton's interpreter")
def test_tokens_repeat_bit_by_bit_whatever_the_type_that_holds_the_logits():
    inputs = load_kernel("sample").make(case("bf16", rows=4, vocab=5000, k=50, percent=90), "cpu", 3)
    first, again = (load_kernel("sample").run(**inputs)[0] for _ in range(2))
    wide = load_kernel("sample").run(**inputs | {"logits": inputs["logits"].float()})[0]
    assert torch.equal(first, again)
    assert torch.equal(first, wide)


def test_queries_of_a_prompt_are_scored_for_in_parts_of_any_size(monkeypatch):
    """Three queries at a time of seven, two of them a program, and the last block of keys is not for the first ones."""
    kernel = load_kernel("sparse_indexer")
    inputs = kernel.make(case("fp16", B=1, q=7, heads=4, dim=32, kv=70, page=16, chosen=5), "cpu", 3)
    monkeypatch.setattr(sparse_indexer, "_MAX_SCORES", 3 * 70)
    plan = kernel.plan(NEW, **inputs, tile=sparse_indexer.IndexerTiling(keys=64, queries=2))
    assert [launch.grid for launch in plan.launches] == [(2, 2, 1), (3, 1)] * 2 + [(2, 1, 1), (1, 1)]
    assert plan()[0].equal(kernel.reference(**inputs)[0])
