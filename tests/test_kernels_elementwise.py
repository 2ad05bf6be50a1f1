"""Norms, softmax, rotations, activations, look-ups and cache writes in Triton's interpreter, and what they count."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from torch.nn import functional  # noqa: E402

from llmviewer.errors import InputError  # noqa: E402
from llmviewer.kernels import load_kernel, rope  # noqa: E402
from llmviewer.kernels import permute as permutation  # noqa: E402

from .kernel_checks import cases, moved, named  # noqa: E402

CASES = cases("norm", "softmax", "rope", "activation", "embedding", "kv_write", "permute")
ONCE = [(n, c) for n, c in cases("norm", "softmax", "activation") if not c.get("causal")]


@pytest.mark.parametrize(("name", "one"), ONCE, ids=named)
def test_the_operator_moves_every_tensor_once(name, one):
    assert load_kernel(name).nbytes(one) == moved(name, one)


def test_each_group_of_a_norm_has_its_largest_code():
    kernel = load_kernel("norm_quantize")
    x, weight = torch.randn(3, 512).to(torch.bfloat16), torch.ones(512, dtype=torch.bfloat16)
    x[:, 128:256] *= 1000
    x[1, 256:384] = 0
    codes, scales = kernel.run(x=x, weight=weight, group=128, dtype=torch.int8)
    largest = codes.view(3, 4, 128).int().abs().amax(2)
    assert largest.tolist() == [[127, 127, 127, 127], [127, 127, 0, 127], [127, 127, 127, 127]]
    assert scales.shape == (4, 3)
    assert (scales[1] > 100 * scales[0]).all()
    with pytest.raises(InputError, match="group must be the width 512, or a power of two that divides it; got 96"):
        kernel.run(x=x, weight=weight, group=96, dtype=torch.int8)


@pytest.mark.parametrize("most", [16384, 100])
def test_tokens_come_back_from_their_experts(most, monkeypatch):
    """260 pairs, sorted by a program for each expert, and by programs for parts of them: half of each of two copies."""
    monkeypatch.setattr(permutation, "_MAX_FEW", most)
    monkeypatch.setattr(permutation, "_MAX_PARTS", 5)
    permute, combine = load_kernel("permute"), load_kernel("combine")
    x, experts = torch.randn(130, 16), 7
    expert = torch.rand(130, experts).topk(2, 1).indices.to(torch.int32)
    copies, place, end = permute.run(x=x, expert=expert, experts=experts)
    assert end.tolist() == [int((expert <= number).sum()) for number in range(experts)]
    of_expert = copies[end[2] : end[3]]
    assert torch.equal(of_expert, x[(expert == 3).any(1)])
    (back,) = combine.run(x=copies, place=place.view(130, 2), weight=torch.full((130, 2), 0.5))
    torch.testing.assert_close(back, x)


def test_layer_norm_is_that_of_torch():
    x, weight, bias = torch.randn(4, 96) + 3, torch.randn(96), torch.randn(96)
    (y,) = load_kernel("layer_norm").run(x=x, weight=weight, bias=bias)
    torch.testing.assert_close(y, functional.layer_norm(x, (96,), weight, bias))


@pytest.mark.parametrize("keys", [50, 17000])
def test_a_query_reads_no_key_after_it(keys):
    """Up to the seven beside the last one that it sees, which come in the same 16 bytes and go nowhere."""
    kernel = load_kernel("softmax")
    scores = torch.randn(2, 3, keys)
    wanted = kernel.reference(scores=scores, causal=True)[0]
    scores[:, 0, keys - 2 :] = float("nan")
    scores[:, 1, keys - 1 :] = float("nan")
    torch.testing.assert_close(kernel.run(scores=scores, causal=True)[0], wanted)


def _rotated(position, neighbours, dim=64):
    """Rotated q and k at `position`, in fp32, and their product."""
    q, k = (torch.linspace(-1, 1, dim).view(1, 1, dim) ** power for power in (1, 2))
    q_out, k_out = load_kernel("rope").run(
        q=q,
        k=k,
        positions=torch.tensor([position], dtype=torch.int32),
        frequencies=rope.frequencies(dim),
        neighbours=neighbours,
    )
    return q_out[0, 0], k_out[0, 0]


@pytest.mark.parametrize("neighbours", [False, True])
def test_scores_depend_on_distances_alone_however_late_the_position(neighbours):
    wanted = _rotated(5, neighbours)[0] @ _rotated(2, neighbours)[1]
    late = 2**24  # where fp32 has no fractions left
    found = _rotated(late + 5, neighbours)[0] @ _rotated(late + 2, neighbours)[1]
    assert found == pytest.approx(wanted.item(), rel=1e-5)
    assert wanted != pytest.approx((_rotated(5, neighbours)[0] @ _rotated(3, neighbours)[1]).item(), rel=1e-2)


def test_halves_and_neighbours_are_the_same_rotation_of_elements_in_another_order():
    order = torch.arange(64).view(2, 32).T.flatten()  # 0, 32, 1, 33, ...
    q, k = torch.randn(2, 3, 2, 64)
    given = {"positions": torch.tensor([1, 10, 100], dtype=torch.int32), "frequencies": rope.frequencies(64)}
    kernel = load_kernel("rope")
    halves = kernel.run(q=q, k=k, **given)
    neighbours = kernel.run(q=q[..., order], k=k[..., order], neighbours=True, **given)
    for one, other in zip(halves, neighbours, strict=True):
        torch.testing.assert_close(one[..., order], other)


def test_position_0_turns_nothing_and_a_quarter_turn_swaps():
    q = torch.tensor([[[1.0, 2.0, 3.0, 4.0]]])
    given = {"q": q, "k": q, "positions": torch.tensor([0], dtype=torch.int32)}
    quarter = torch.tensor([2**62, 2**62], dtype=torch.int64)
    kernel = load_kernel("rope")
    assert torch.equal(kernel.run(**given, frequencies=quarter)[0], q)
    given["positions"] += 5  # a turn and a quarter
    turned = torch.tensor([[[-3.0, -4.0, 1.0, 2.0]]])
    torch.testing.assert_close(kernel.run(**given, frequencies=quarter)[0], turned)


@pytest.mark.filterwarnings("ignore:overflow encountered in exp")  # the interpreter's: to infinity, as is due
def test_activations_stay_finite_far_from_0():
    x = torch.tensor([[-3e4, -100.0, 0.0, 100.0, 3e4]])
    for name, act in (("gelu", "gelu"), ("gelu_tanh", "gelu_tanh"), ("silu_and_mul", "silu")):
        gated = name.endswith("mul")
        given = torch.cat((x, torch.ones_like(x)), 1) if gated else x
        (y,) = load_kernel(name).run(x=given, act=act, gated=gated)
        torch.testing.assert_close(y, x.clamp_min(0))


def test_a_cache_in_fp8_saturates():
    k = torch.tensor([[[1e4, -1e4, 3.0, 0.0]]])
    cache = torch.zeros(1, 1, 1, 4).to(torch.float8_e4m3fn)
    one = torch.ones(1)
    given = {"k": k, "v": k, "slots": torch.zeros(1, dtype=torch.int32), "k_scale": one, "v_scale": one}
    found, _ = load_kernel("kv_write").run(**given, k_cache=cache.clone(), v_cache=cache.clone())
    assert found.float().flatten().tolist() == [448.0, -448.0, 3.0, 0.0]
