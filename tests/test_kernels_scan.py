"""Scans over prompts in Triton's interpreter: their states, where chunks end, and keys that are all alike."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from llmviewer.kernels import load_kernel  # noqa: E402
from llmviewer.kernels.base import Target, case  # noqa: E402

from .kernel_checks import cases, moved, named, seed  # noqa: E402

CASES = cases("scan")
DELTA = {"B": 1, "heads": 2, "key_heads": 1, "key_dim": 16, "dim": 32}
ODD = [
    ("mamba2_scan", case("fp32", B=2, T=75, heads=2, dim=16, state=16, groups=1)),
    ("gated_delta_scan", case("fp32", T=75, **DELTA)),
    ("gated_delta_scan", case("fp32", T=75, **DELTA | {"key_heads": 2}, channels=1)),
]
STREAMS = ("xbc", "step", "qkv", "beta", "decay")  # inputs of each token


@pytest.mark.parametrize(("name", "one"), CASES, ids=named)
def test_the_operator_moves_every_tensor_once(name, one):
    assert load_kernel(name).nbytes(one) == moved(name, one)


@pytest.mark.parametrize(("name", "one"), ODD, ids=named)
@pytest.mark.parametrize("cut", [1, 32, 50])
def test_a_prompt_in_two_parts_ends_as_in_one(name, one, cut):
    """Where parts end at the end of a chunk, within one, or after one token; the state is written where it was read."""
    kernel = load_kernel(name)
    inputs = kernel.make(one, "cpu", seed(name, cut))
    whole, state = kernel.run(**inputs)
    left = inputs["state"].clone()
    tokens = {key: value for key, value in inputs.items() if key in STREAMS}
    rest = {key: value for key, value in inputs.items() if key not in (*STREAMS, "state")}
    parts = []
    for part in (slice(None, cut), slice(cut, None)):
        of_part = {key: value[:, part].contiguous() for key, value in tokens.items()}
        y, _ = kernel.run(**of_part, **rest, state=left, into=left)
        parts.append(y)
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(left, state, rtol=1e-4, atol=1e-4)


def test_corrections_of_keys_that_are_all_alike_are_exact():
    """Every token then corrects what the one before wrote: a series of powers would cancel to nothing in fp32."""
    kernel = load_kernel("gated_delta_scan")
    inputs = kernel.make(case("fp32", T=64, **DELTA), "cpu", seed("alike"))
    inputs["qkv"][:, :, :32] = 1.0
    inputs["beta"].fill_(30.0)
    inputs["decay"].fill_(-30.0)
    for ours, theirs in zip(kernel.run(**inputs), kernel.reference(**inputs), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_decays_of_channels_beyond_the_range_of_floats_forget():
    """A channel that keeps everything beside one whose decay over a chunk, divided by, would be infinite."""
    kernel = load_kernel("gated_delta_scan")
    inputs = kernel.make(case("fp32", T=64, **DELTA | {"key_heads": 2}, channels=1), "cpu", seed("range"))
    inputs["decay"].view(1, 64, 2, 2, 8)[:] = torch.tensor([30.0, -30.0])[:, None]
    inputs["a_log"].fill_(1.0)
    for ours, theirs in zip(kernel.run(**inputs), kernel.reference(**inputs), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_few_heads_are_divided_among_programs():
    """2 heads of 64 channels: 4 programs of 32, or 8 of 16 on a GPU with more multiprocessors than 4."""
    kernel = load_kernel("mamba2_scan")
    one = case("fp16", B=1, T=3, heads=2, dim=64, state=16, groups=1)
    inputs = kernel.make(one, "cpu", 0)
    grids = [kernel.plan(Target(sm=90, multiprocessors=n), **inputs).launches[0].grid for n in (2, 4, 9)]
    assert grids == [(2, 2, 1), (2, 2, 1), (4, 2, 1)]
