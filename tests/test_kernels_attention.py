"""Attention in Triton's interpreter, and what its operators count."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from llmviewer.errors import InputError  # noqa: E402
from llmviewer.kernels import load_kernel  # noqa: E402
from llmviewer.kernels.base import Target, case  # noqa: E402

from .kernel_checks import cases, check, counted, moved, named  # noqa: E402

CASES = cases("attention")


@pytest.mark.parametrize(("name", "one"), CASES, ids=named)
def test_a_kernel_computes_what_its_reference_does(name, one, monkeypatch):
    check(name, one, monkeypatch)


def _full(one):
    """Whether it reads all that is in the cache: no window, and no page in part."""
    return not one.get("window") and (not one.get("page") or not (one["kv"] % one["page"] or one.get("ragged")))


@pytest.mark.parametrize(("name", "one"), [(n, c) for n, c in CASES if _full(c)], ids=named)
def test_the_operator_moves_every_tensor_once(name, one):
    """But for where sequences begin, and their pages."""
    assert load_kernel(name).nbytes(one) == pytest.approx(moved(name, one), rel=2e-3)


def test_counts_by_hand():
    # Queries at positions 3 and 4 of 5 see 4 + 5 keys, and with a window of 2 two each, of 3 that are read.
    chunk = {"B": 1, "heads": 4, "kv_heads": 2, "dim": 8, "q": 2, "kv": 5}
    flash = load_kernel("flash_attention")
    whole = (4 * 9 * (2 * 8 + 2 * 8 + 5), 2 * (2 * 2 * 32 + 2 * 5 * 16))
    windowed = (4 * 4 * (2 * 8 + 2 * 8 + 5), 2 * (2 * 2 * 32 + 2 * 3 * 16))
    assert counted(flash, case("fp16", **chunk)) == [whole]
    assert counted(flash, case("fp16", **chunk, window=2)) == [windowed]

    # One query sees all 5 keys; an fp8 cache takes a byte an element, whose conversion is no OP of the model.
    decode, one = load_kernel("decode_attention"), {"B": 2, "heads": 4, "kv_heads": 2, "dim": 8, "kv": 5, "page": 16}
    ops = 2 * 4 * 5 * (2 * 8 + 2 * 8 + 5)
    assert counted(decode, case("fp16", **one)) == [(ops, 2 * (2 * 2 * 32 + 2 * 2 * 5 * 16))]
    assert counted(decode, case("fp16", **one, kv_bits=8)) == [(ops, 2 * 2 * 2 * 32 + 2 * 2 * 5 * 16)]
    # half a byte an element, and for each group of 4 of a token's key and value a scale and a zero of 2 bytes
    packed = 2 * 2 * 5 * (16 / 2 + 4 * 2 * 2)
    assert counted(decode, case("fp16", **one, kv_bits=4, group=4)) == [(ops, 2 * 2 * 2 * 32 + packed)]
    # 4 heads over one latent of 8 and 2 rotated elements, which is read once
    latent = case("fp16", B=2, heads=4, latent=8, rope=2, kv=5, page=16)
    wanted = (2 * 4 * 5 * (2 * 10 + 2 * 8 + 5), 2 * (2 * 4 * 10 + 2 * 5 * 10 + 2 * 4 * 8))
    assert counted(load_kernel("mla_decode"), latent) == [wanted]


@pytest.mark.parametrize(
    ("name", "one", "kept"),
    [
        ("decode_attention", case("fp16", B=2, heads=4, kv_heads=2, dim=32, kv=301, page=16, ragged=100), ("k", "v")),
        (
            "decode_attention",
            case("fp16", B=2, heads=4, kv_heads=2, dim=32, kv=301, page=16, ragged=100, kv_bits=4, group=8),
            ("k_scale", "v_scale"),
        ),
        ("mla_decode", case("fp16", B=1, heads=4, latent=64, rope=16, kv=701, page=64), ("cache",)),
    ],
    ids=named,
)
def test_splits_agree_and_read_nothing_past_the_end(name, one, kept):
    """What is in a page after a sequence's last token is poison, and so is every page that is no sequence's."""
    kernel = load_kernel(name)
    inputs = kernel.make(one, "cpu", 2)
    wanted = kernel.reference(**inputs)[0]
    table, lengths = inputs["table"].long(), inputs["lengths"].tolist()
    for tensor in (inputs[key] for key in kept):
        page = tensor.shape[1]
        for pages, length in zip(table, lengths, strict=True):
            tensor[pages[length // page], length % page :] = float("nan")
            tensor[pages[length // page + 1 :]] = float("nan")
    launches = set()
    for multiprocessors in (1, 4, 64):
        plan = kernel.plan(Target(sm=90, multiprocessors=multiprocessors), **inputs)
        launches.add((len(plan.launches), plan.launches[0].grid[0]))
        torch.testing.assert_close(plan()[0].float(), wanted, rtol=2e-3, atol=2e-3)
    assert len(launches) > 1


def test_groups_of_int4_that_a_kernel_cannot_take_are_refused():
    kernel = load_kernel("decode_attention")
    for dim, group in ((96, 32), (80, 20), (20, 4)):
        inputs = kernel.make(
            case("fp16", B=1, heads=1, kv_heads=1, dim=dim, kv=5, page=16, kv_bits=4, group=group), "cpu", 0
        )
        message = f"groups of int4 must be a head, its halves, or powers of two in them; got {dim // group} of {dim}"
        with pytest.raises(InputError, match=f"^{message}$"):
            kernel.run(**inputs)


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
