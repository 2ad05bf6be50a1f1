"""Attention in Triton's interpreter, what its operators count, and what compilers make of it."""

from functools import partial

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from llmviewer.errors import InputError  # noqa: E402
from llmviewer.kernels import load_kernel  # noqa: E402
from llmviewer.kernels.base import Target, case  # noqa: E402
from llmviewer.kernels.decode_attention import DecodeTiling, choose_splits  # noqa: E402

from .cases import first_fast  # noqa: E402
from .kernel_checks import NEW, cases, compiled, moved, named  # noqa: E402

CASES = cases("attention")


def _full(one):
    """Whether it reads all that is in the cache: no window, and no page in part."""
    return not one.get("window") and (not one.get("page") or not (one["kv"] % one["page"] or one.get("ragged")))


@pytest.mark.parametrize(("name", "one"), [(n, c) for n, c in CASES if _full(c)], ids=named)
def test_the_operator_moves_every_tensor_once(name, one):
    """Except for sequence offsets and page tables."""
    assert load_kernel(name).nbytes(one) == pytest.approx(moved(name, one), rel=2e-3)


@pytest.mark.parametrize(
    ("name", "one", "kept"),
    first_fast(
        [
            (
                "decode_attention",
                case("fp16", B=2, heads=4, kv_heads=2, dim=32, kv=901, page=16, ragged=100),
                ("k", "v"),
            ),
            (
                "decode_attention",
                case("fp16", B=2, heads=4, kv_heads=2, dim=32, kv=901, page=16, ragged=100, kv_bits=4, group=8),
                ("k_scale", "v_scale"),
            ),
            ("mla_decode", case("fp16", B=1, heads=4, latent=64, rope=16, kv=701, page=64), ("cache",)),
        ],
        "in Triton's interpreter",
    ),
    ids=named,
)
def test_splits_agree_and_read_nothing_past_the_end(name, one, kept):
    """Pages are poisoned after a sequence's last token, and wholly if they are no sequence's."""
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


@pytest.mark.parametrize(
    ("name", "one"),
    first_fast(
        [
            ("flash_attention", case("fp16", B=2, heads=2, kv_heads=1, dim=32, q=150, kv=170, ragged=70)),
            ("flash_attention", case("fp16", B=1, heads=1, kv_heads=1, dim=128, q=129, kv=129, window=50)),
            ("decode_attention", case("fp16", B=1, heads=6, kv_heads=2, dim=32, kv=601, page=16)),
            ("decode_attention", case("fp16", B=1, heads=2, kv_heads=1, dim=32, kv=300, page=16, kv_bits=8)),
            ("mla_decode", case("fp16", B=1, heads=40, latent=64, rope=16, kv=301, page=16)),
        ],
        "in Triton's interpreter",
    ),
    ids=named,
)
def test_tilings_do_not_change_the_result(name, one):
    kernel = load_kernel(name)
    inputs = kernel.make(one, "cpu", 4)
    (wanted,) = kernel.reference(**inputs)
    tilings = kernel.tilings(NEW, one)
    assert 1 <= len(tilings) <= 6
    assert len(set(tilings)) == len(tilings)
    for tile in tilings:
        (found,) = kernel.plan(NEW, **inputs, tile=tile)()
        torch.testing.assert_close(found.float(), wanted, rtol=2e-3, atol=2e-3)


def test_prompts_shorter_than_a_tile_have_no_other_tilings():
    kernel = load_kernel("flash_attention")
    assert not kernel.tilings(NEW, case("fp16", B=1, heads=2, kv_heads=1, dim=128, q=32, kv=400))


@pytest.mark.parametrize("kv_bits", first_fast([16, 4], "in Triton's interpreter"))
def test_the_last_program_merges_splits_again_and_again(kv_bits):
    """In the launch itself where they are few, and in one of its own where one program would be at it for long."""
    kernel = load_kernel("decode_attention")
    more = {"kv_bits": 4, "group": 64} if kv_bits == 4 else {}
    inputs = kernel.make(case("fp16", B=2, heads=17, kv_heads=1, dim=128, kv=70, page=16, ragged=40, **more), "cpu", 3)
    (wanted,) = kernel.reference(**inputs)
    launches = []
    for splits in (2, 16):  # 17 heads x 16 splits x 128 elements are too many
        plan = kernel.plan(NEW, **inputs, tile=DecodeTiling(keys=16, splits=splits))
        launches.append(len(plan.launches))
        first = plan()[0].clone()
        torch.testing.assert_close(first.float(), wanted, rtol=2e-3, atol=2e-3)
        assert torch.equal(plan()[0], first)
    assert launches == [1, 2]


def test_splits_keep_multiprocessors_at_work_to_the_end():
    """Two programs each: 16 x 8 take two splits, 8 take 33, 200 five (1000 on 264 places), and 2048 none."""
    two = partial(choose_splits, Target(sm=90, multiprocessors=132), resident=2)
    assert [two(programs, 8192) for programs in (128, 8, 200, 2048)] == [2, 32, 5, 1]
    assert two(8, 32768) == 33
    assert two(1, 200) == 1  # too short


def test_early_launches_are_of_hopper_and_wait_in_all_their_launches():
    """Else Triton's launcher gets no option, and older GPUs no instruction for it."""
    kernel = load_kernel("mla_decode")
    one = kernel.full_size[0]
    tile = DecodeTiling(keys=32, splits=4, num_warps=8, early=True)
    for sm, early in ((80, False), (90, True), (120, True)):
        launches = kernel.launches(one, Target(sm=sm, multiprocessors=100), tile)
        assert len(launches) == 2
        for launch in launches:
            assert (launch.early, launch.arguments["EARLY"], launch.options.get("launch_pdl", False)) == (early,) * 3
    assert not any(launch.early for launch in kernel.launches(one, Target(sm=90, multiprocessors=100)))


# What the launches of sm_90 take, as the text that a process of its own prints.
SCRIPT = """
import dataclasses, json, sys
from llmviewer.kernels import aot, load_kernel

for name, place in (wanted.split(":") for wanted in sys.argv[1:]):
    kernel = load_kernel(name)
    launch, *_ = kernel.launches(kernel.full_size[int(place)], aot.TARGETS[1])
    found = aot.compile_launch(launch, 90)
    keys, dim = launch.arguments["BLOCK_N"], launch.arguments["DIM"]
    rate = found.rate(2 * keys * dim, launch.num_warps)
    print(json.dumps(dataclasses.asdict(found) | {"rate": rate}))
"""


@pytest.mark.slow("compiles kernels")
def test_hopper_has_the_slots_and_the_registers(triton_cache):
    """Instructions leave a cache in fp8 half more than the H200's 4.8 TB/s, of 132 multiprocessors
    at 1755 MHz at least, and three programs fit on one; with heads of 256 registers do not run out, for want of which
    ptxas waits for each product.
    """
    decode, flash = compiled(SCRIPT, [("decode_attention", 3), ("flash_attention", 3)], triton_cache)
    assert decode["rate"] > 1.5 * 4.8e12 / 132 / 1.755e9
    assert decode["registers"] <= 65536 / (3 * 128)
    assert flash["registers"] < 250
    assert not decode["spills"] + flash["spills"]


def test_groups_of_int4_that_a_kernel_cannot_take_are_refused():
    kernel = load_kernel("decode_attention")
    for dim, group in ((96, 32), (80, 20), (20, 4)):
        inputs = kernel.make(
            case("fp16", B=1, heads=1, kv_heads=1, dim=dim, kv=5, page=16, kv_bits=4, group=group), "cpu", 0
        )
        message = f"groups of int4 must be a head, its halves, or powers of two in them; got {dim // group} of {dim}"
        with pytest.raises(InputError, match=f"^{message}$"):
            kernel.run(**inputs)


def test_heads_of_fp8_must_be_even():
    kernel = load_kernel("decode_attention")
    inputs = kernel.make(case("fp16", B=1, heads=1, kv_heads=1, dim=5, kv=5, page=16, kv_bits=8), "cpu", 0)
    with pytest.raises(InputError, match=r"^heads in fp8 must have an even number of elements; got 5$"):
        kernel.run(**inputs)


@pytest.mark.parametrize(("dim", "sizes"), [(40, {}), (32, {"window": 5}), (32, {"both_ways": 1})])
def test_warps_are_specialized_for_plain_causal_attention_only(dim, sizes):
    kernel = load_kernel("flash_attention")
    inputs = kernel.make(case("fp16", B=1, heads=1, kv_heads=1, dim=dim, q=9, kv=9, specialized=1, **sizes), "cpu", 0)
    with pytest.raises(InputError, match=rf"a head size that is a power of two; got head size {dim}, window="):
        kernel.run(**inputs)


def test_queries_ignore_later_keys_and_other_sequences():
    kernel = load_kernel("flash_attention")
    inputs = kernel.make(case("fp16", B=2, heads=2, kv_heads=1, dim=32, q=40, kv=40), "cpu", 1)
    (before,) = kernel.run(**inputs)
    for name in "kv":
        inputs[name][30:40] = 100.0  # the last ten keys of the first sequence
    (after,) = kernel.run(**inputs)
    assert torch.equal(before[:30], after[:30])
    assert torch.equal(before[40:], after[40:])
    assert not torch.equal(before[30:40], after[30:40])
