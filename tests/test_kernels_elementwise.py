"""Norms, softmax, rotations, activations, look-ups and cache writes in Triton's interpreter, and what they count."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from torch.nn import functional  # noqa: E402

from llmviewer.kernels import load_kernel, rope  # noqa: E402
from llmviewer.kernels.base import case  # noqa: E402

from .kernel_checks import cases, check, counted, first_is_fast, moved, named  # noqa: E402

CASES = cases("norm", "softmax", "rope", "activation", "embedding", "kv_write")
ONCE = [(n, c) for n, c in cases("norm", "softmax", "activation") if not c.get("causal")]


@pytest.mark.parametrize(("name", "one"), first_is_fast(CASES), ids=named)
def test_a_kernel_computes_what_its_reference_does(name, one, monkeypatch):
    check(name, one, monkeypatch)


@pytest.mark.parametrize(("name", "one"), ONCE, ids=named)
def test_the_operator_moves_every_tensor_once(name, one):
    assert load_kernel(name).nbytes(one) == moved(name, one)


@pytest.mark.parametrize(
    ("name", "one", "wanted"),
    [
        ("rms_norm", case("fp16", M=3, N=8), [(4 * 3 * 8, 2 * (3 * 8 + 8 + 3 * 8))]),
        # x and the residual read, their sum and y written; the norm reads its weight alone
        ("rms_norm", case("fp16", M=3, N=8, residual=1), [(3 * 8, 2 * 3 * 3 * 8), (4 * 3 * 8, 2 * (8 + 3 * 8))]),
        ("layer_norm", case("fp16", M=3, N=8), [(6 * 3 * 8, 2 * (3 * 8 + 8 + 3 * 8))]),
        (
            "layer_norm",
            case("fp32", M=3, N=8, bias=1, residual=1),
            [(3 * 8, 4 * 3 * 3 * 8), (7 * 3 * 8, 4 * (2 * 8 + 3 * 8))],
        ),
        # 2 sequences, 3 heads, 2 queries, 5 keys: whole rows, or 4 and 5 keys that are read of 5 written
        ("softmax", case("fp16", B=2, heads=3, q=2, kv=5), [(5 * 6 * 10, 2 * 6 * (10 + 10))]),
        ("softmax", case("fp16", B=2, heads=3, q=2, kv=5, causal=1), [(5 * 6 * 9, 2 * 6 * (9 + 10))]),
        # 4 + 2 heads of 8, in and out
        ("rope", case("fp16", tokens=3, heads=4, kv_heads=2, dim=8, rotary=8), [(3 * 3 * 48, 2 * 3 * 2 * 48)]),
        # 6 of 8 elements of a query turn and 2 are copied; keys go all to the cache
        (
            "rope",
            case("fp16", tokens=3, heads=4, kv_heads=2, dim=8, rotary=6),
            [(3 * 3 * 36, 2 * 3 * (2 * 24 + 2 * 16)), (0, 2 * 3 * 2 * 8)],
        ),
        ("silu_and_mul", case("fp16", M=3, N=8), [(5 * 3 * 8, 2 * 3 * 3 * 8)]),
        ("gelu_tanh_and_mul", case("fp16", M=3, N=8), [(10 * 3 * 8, 2 * 3 * 3 * 8)]),
        ("gelu", case("fp16", M=3, N=8), [(5 * 3 * 8, 2 * 2 * 3 * 8)]),
        ("relu2", case("fp16", M=3, N=8), [(2 * 3 * 8, 2 * 2 * 3 * 8)]),
        # a row of the table for each token; of a table of two, those two
        ("embedding", case("fp16", tokens=3, vocab=10, width=8), [(0, 2 * 2 * 3 * 8)]),
        ("embedding", case("fp16", tokens=3, vocab=10, width=8, positions=2), [(3 * 8, 2 * (3 + 2 + 3) * 8)]),
        # k and v in and out; a cache in fp8 takes a byte an element; a token without a slot is not there
        ("kv_write", case("fp16", tokens=3, kv_heads=2, dim=8, page=16), [(0, 2 * 2 * 2 * 3 * 16)]),
        ("kv_write", case("fp16", tokens=3, kv_heads=2, dim=8, page=16, kv_bits=8), [(0, 2 * (2 + 1) * 3 * 16)]),
        ("kv_write", case("fp16", tokens=3, kv_heads=2, dim=8, page=16, padded=1), [(0, 2 * 2 * 2 * 2 * 16)]),
    ],
    ids=named,
)  # fmt: skip
def test_counts_by_hand(name, one, wanted):
    assert counted(load_kernel(name), one) == wanted


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
    """Of fixed q and k at `position`, in fp32, and their product."""
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
