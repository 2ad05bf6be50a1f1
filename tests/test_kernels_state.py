"""One decode step of convolutions and scans in Triton's interpreter, and what their operators count."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from llmviewer.kernels import load_kernel  # noqa: E402
from llmviewer.kernels.base import case  # noqa: E402

from .kernel_checks import cases, moved, named  # noqa: E402

CASES = cases("state")


@pytest.mark.parametrize(("name", "one"), CASES, ids=named)
def test_the_operator_moves_every_tensor_once(name, one):
    assert load_kernel(name).nbytes(one) == moved(name, one)


@pytest.mark.parametrize(("name", "one"), [(n, c) for n, c in CASES if c.dtype == "fp16"], ids=named)
def test_the_state_is_written_where_it_was_read_and_nowhere_else(name, one):
    """In a cache of all sequences, of which the others' states stay; in fp32 it keeps what fp16 would lose."""
    kernel = load_kernel(name)
    inputs = kernel.make(one, "cpu", 4)
    wanted, state = kernel.reference(**inputs)
    cache = torch.full((one["B"] + 2, *inputs["state"].shape[1:]), 7.0, dtype=inputs["state"].dtype)
    own = cache[1:-1]
    own.copy_(inputs["state"])
    y, left = kernel.run(**inputs | {"state": own, "into": own})
    assert left is own
    assert (cache[[0, -1]] == 7).all()
    relative = 2**-20 if state.dtype == own.dtype else 0
    torch.testing.assert_close(own.float(), state, rtol=relative, atol=relative)
    torch.testing.assert_close(y.float(), wanted, rtol=2**-8, atol=2**-8)


def _steps(name, one, tokens, streams):
    """The kernel's result of `tokens` steps from a state of zeros: inputs named `streams` are new in each."""
    kernel = load_kernel(name)
    inputs = kernel.make(one, "cpu", 6)
    state = torch.zeros_like(inputs["state"])
    seen = [{stream: kernel.make(one, "cpu", 10 + t)[stream] for stream in streams} for t in range(tokens)]
    ys = [kernel.run(**inputs | step | {"state": state, "into": state})[0].clone() for step in seen]
    return inputs, {s: torch.stack([step[s] for step in seen], 1) for s in streams}, torch.stack(ys, 1)


def test_steps_of_a_convolution_are_a_convolution():
    inputs, seen, ys = _steps("causal_conv_update", case("fp32", B=2, C=24, taps=4, bias=1), 7, ("x",))
    padded = torch.nn.functional.pad(seen["x"].transpose(1, 2), (3, 0))
    wanted = torch.nn.functional.conv1d(padded, inputs["weight"].T[:, None], inputs["bias"], groups=24)
    torch.testing.assert_close(ys, torch.nn.functional.silu(wanted).transpose(1, 2), rtol=1e-5, atol=1e-5)


def test_steps_of_mamba2_are_attention_with_decays():
    """The dual form (arXiv:2405.21060, section 3.2): y[t] = sum over s of (C[t] . B[s]) decay(s..t) step[s] x[s]."""
    one = case("fp32", B=2, heads=4, dim=8, state=16, groups=2)
    inputs, seen, ys = _steps("mamba2_update", one, 6, ("xbc", "step"))
    x, b, c = seen["xbc"].split((32, 32, 32), 2)
    x, b, c = x.view(2, 6, 4, 8), *(t.view(2, 6, 2, 16).repeat_interleave(2, 2) for t in (b, c))
    steps = torch.nn.functional.softplus(seen["step"] + inputs["bias"])
    logs = (-inputs["a_log"].exp() * steps).cumsum(1)
    decay = (logs[:, :, None] - logs[:, None]).exp().permute(0, 3, 1, 2).tril()
    weights = torch.einsum("bthn,bshn->bhts", c, b) * decay * steps.transpose(1, 2)[:, :, None]
    wanted = torch.einsum("bhts,bshp->bthp", weights, x) + inputs["d"][:, None] * x
    torch.testing.assert_close(ys, wanted.flatten(2), rtol=1e-4, atol=1e-4)


def test_steps_of_the_delta_rule_are_those_of_transformers_in_chunks():
    modeling = pytest.importorskip("transformers.models.qwen3_next.modeling_qwen3_next")
    one = case("fp32", B=2, heads=4, key_heads=2, key_dim=16, dim=24)
    inputs, seen, ys = _steps("gated_delta_update", one, 9, ("qkv", "beta", "decay"))
    q, k, v = seen["qkv"].split((32, 32, 96), 2)
    q, k = (x.view(2, 9, 2, 16).repeat_interleave(2, 2) for x in (q, k))
    logs = -inputs["a_log"].exp() * torch.nn.functional.softplus(seen["decay"] + inputs["bias"])
    wanted, _ = modeling.torch_chunk_gated_delta_rule(
        q, k, v.view(2, 9, 4, 24), g=logs, beta=seen["beta"].sigmoid(), chunk_size=4, use_qk_l2norm_in_kernel=True
    )
    torch.testing.assert_close(ys, wanted.flatten(2), rtol=1e-4, atol=1e-4)


def test_a_decay_of_each_channel_that_is_everywhere_the_same_is_one_of_the_head():
    kernel, sizes = load_kernel("gated_delta_update"), {"B": 2, "heads": 4, "key_heads": 4, "key_dim": 16, "dim": 16}
    inputs = kernel.make(case("fp32", **sizes), "cpu", 3)
    spread = {"decay": inputs["decay"].repeat_interleave(16, 1), "bias": inputs["bias"].repeat_interleave(16)}
    for head, channel in zip(kernel.run(**inputs), kernel.run(**inputs | spread), strict=True):
        torch.testing.assert_close(head, channel, rtol=1e-5, atol=1e-6)
