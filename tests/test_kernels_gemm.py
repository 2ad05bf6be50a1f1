"""Matrix products, experts, conversions and streams in Triton's interpreter, and what their operators count."""

import random

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from triton.runtime import interpreter  # noqa: E402

from llmviewer.errors import InputError  # noqa: E402
from llmviewer.kernels import gemm, gemm_weight_only, kernel_names, load_kernel, permute  # noqa: E402
from llmviewer.kernels.base import Target, case  # noqa: E402

from .kernel_checks import NEW, cases, converted, moved, named, seed  # noqa: E402

FAMILIES = ("stream", "gemm", "moe", "quantize")
CASES = cases(*FAMILIES)
H100 = Target(sm=90, multiprocessors=132)


@pytest.mark.parametrize(
    ("name", "one"),
    [
        ("gemm", case("fp16", M=50, N=70, K=333, parts=3)),
        ("fused_moe", case("fp16", M=9, N=40, K=72, experts=5, chosen=2)),
    ],
    ids=named,
)
def test_results_repeat_bit_by_bit(name, one):
    kernel = load_kernel(name)
    inputs = kernel.make(one, "cpu", 7)
    assert torch.equal(*kernel.run(**inputs), *kernel.run(**inputs))


@pytest.mark.parametrize(("name", "one"), [(n, c) for n, c in CASES if "moe" not in n and "group" not in n], ids=named)
def test_the_operator_moves_every_tensor_once(name, one):
    """Except for scales of whole operands and of partial blocks."""
    assert load_kernel(name).nbytes(one) == pytest.approx(moved(name, one), rel=2e-3)


def test_a_large_product_is_persistent_and_a_narrow_one_split():
    def launched(**sizes):
        (launch,) = load_kernel("gemm").launches(case("bf16", **sizes), H100)
        return launch.function.fn.__name__, launch.grid

    assert launched(M=8192, N=8192, K=8192) == ("_persistent", (132,))
    assert launched(M=16, N=4096, K=4096) == ("_tiled", (64, 4))  # 64 tiles, of 4 parts each
    assert launched(M=8192, N=8192, K=8191) == ("_tiled", (64 * 32, 1))  # rows that no descriptor can have


@pytest.mark.parametrize(
    ("name", "one"),
    [
        ("gemm", case("fp16", M=50, N=70, K=333, parts=3)),
        ("gemv", case("fp16", M=1, N=13, K=9000)),
        ("gemm_w4a16", case("fp16", M=3, N=40, K=1024, group=128)),
        ("gemm_fp8_block", case("fp8_e4m3", M=20, N=72, K=1280)),
    ],
    ids=named,
)
def test_the_last_program_of_a_tile_adds_all_parts_in_order(name, one, monkeypatch):
    """Bit by bit, in fp32, as often as it is launched."""
    monkeypatch.setattr(interpreter, "_convert_float", converted)
    kernel = load_kernel(name)
    plan = kernel.plan(Target.of(torch.device("cpu")), **kernel.make(one, "cpu", 11))
    (launch,) = plan.launches
    parts, count = launch.arguments["parts_ptr"], launch.arguments["count_ptr"]
    assert parts.shape[0] == launch.grid[1] > 1
    for _ in range(2):
        (y,) = plan()
        total = torch.zeros(y.shape)
        for part in parts:
            total += part
        assert torch.equal(y, total.to(y.dtype))
        assert not count.any()
        y.fill_(float("nan"))


TUNED = [name for name in kernel_names() if load_kernel(name).family in ("gemm", "moe")]


def cut_up(launches):
    """The parts of a launch that its tile decides."""
    sizes = [sorted((name, size) for name, size in each.arguments.items() if type(size) is int) for each in launches]
    return [(each.grid, each.num_warps, each.num_stages, *those) for each, those in zip(launches, sizes, strict=True)]


@pytest.mark.parametrize("name", TUNED)
def test_tuned_tilings_fit_and_differ_from_the_default_tiling(name):
    kernel = load_kernel(name)
    for one in kernel.full_size:
        tilings = kernel.tilings(H100, one)
        assert 2 <= len(set(tilings)) == len(tilings) <= 6
        rule = cut_up(kernel.launches(one, H100))
        for tile in tilings:
            assert cut_up(kernel.launches(one, H100, tile)) != rule
            if isinstance(tile, gemm.GemmTiling):  # operands of all stages
                weight = next(op.weights[0] for op in kernel.operators(one) if op.weights)
                row = tile.block_m * one.torch_dtype.itemsize + tile.block_n * weight.format.bits / 8
                assert row * tile.block_k * tile.num_stages <= 227 * 1024, tile


@pytest.mark.parametrize("m", [1, 16, 64, 128, 256])
def test_sums_beside_others_leave_a_thread_registers(m):
    """A thread has 255: of tiles with more than 64 sums each, some would be in memory."""
    plain = load_kernel("gemm").tilings(H100, case("bf16", M=m, N=4096, K=4096))
    coded = load_kernel("gemm_w4a16").tilings(H100, case("bf16", M=m, N=4096, K=4096, group=128))
    tiles = [*(tile for tile in plain if tile.parts > 1), *coded]
    assert all(tile.block_m * tile.block_n <= 64 * 32 * tile.num_warps for tile in tiles)


@pytest.mark.parametrize("name", TUNED)
def test_tiling_does_not_change_a_product(name, monkeypatch):
    """One of the ways that tuning tries."""
    monkeypatch.setattr(interpreter, "_convert_float", converted)
    kernel = load_kernel(name)
    one = next(each for each in kernel.cases if not (each.get("parts") or each.get("persistent")))
    tile = random.Random(seed(name, one)).choice(kernel.tilings(NEW, one))
    inputs = kernel.make(one, "cpu", seed(name, one))
    (y,), (wanted,) = kernel.plan(NEW, **inputs, tile=tile)(), kernel.reference(**inputs)
    relative, absolute = kernel.tolerance(one)
    torch.testing.assert_close(y.float(), wanted.float(), rtol=relative, atol=absolute, msg=f"{tile}")


@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (16, 4096, 14336), (512, 4096, 14336), (8192, 8192, 8192)])
def test_parts_of_k_are_all_of_it_and_never_empty(m, n, k):
    tile = gemm.tiling(H100, m, n, k, itemsize=2)
    depth = tile.depth(k)
    assert depth % tile.block_k == 0
    assert (tile.parts - 1) * depth < k <= tile.parts * depth


@pytest.mark.slow("in Triton's interpreter")
@pytest.mark.parametrize("pairs", [1400, 20000], ids=["one launch", "parts of the pairs"])
def test_pairs_of_a_token_and_an_expert_are_sorted_by_expert_and_keep_their_order(pairs):
    expert = torch.randint(6, (pairs,), generator=torch.Generator().manual_seed(3)).to(torch.int32)
    launches, order, place, end = permute.sort_pairs(expert, 6)
    for launch in launches:
        launch()
    expert, order = expert.long(), order.long()
    assert torch.equal(order, expert.argsort(stable=True))
    assert torch.equal(place.long()[order], torch.arange(pairs))
    assert torch.equal(end.long(), expert.bincount(minlength=6).cumsum(0))


def test_every_mxfp4_code_dequantizes_to_its_table_value():
    """All bytes under every scale of a range, by products with unit vectors, which are exact."""
    kernel = load_kernel("gemm_mxfp4")
    codes = torch.arange(256, dtype=torch.uint8).view(4, 64)
    w, scale = codes.repeat(6, 1)[None], torch.arange(112, 136, dtype=torch.uint8).repeat_interleave(4).view(1, 24, 4)
    inputs = {"x": torch.eye(128, dtype=torch.float16), "w": w, "scale": scale, "zero": None, "kind": "mxfp4"}
    assert torch.equal(kernel.run(**inputs)[0].float(), kernel.reference(**inputs)[0])


@pytest.mark.parametrize("name", ["gemm_w4a16", "gemm_w8a16"])
def test_every_integer_code_dequantizes_to_its_value(name):
    """All bytes, under every zero point, by products with unit vectors, which are exact."""
    kernel, bits = load_kernel(name), 4 if name == "gemm_w4a16" else 8
    inputs = {
        "x": torch.eye(128, dtype=torch.float16),
        "w": torch.arange(16 * 16 * bits).to(torch.uint8).view(1, 16, 16 * bits),
        "scale": torch.full((1, 16), 0.25, dtype=torch.float16),
        "zero": (16 + 34 * torch.arange(8)).to(torch.uint8)[None, :] if bits == 4 else None,  # 0 and 1, 2 and 3, ...
        "kind": "int4" if bits == 4 else "int8",
    }
    assert torch.equal(kernel.run(**inputs)[0].float(), kernel.reference(**inputs)[0])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_bits_of_codes_are_floats_near_zero(dtype):
    """Values in bf16, too, which the interpreter does not know: exact for each code."""
    of = gemm_weight_only.FLOATS[dtype]
    codes, units = torch.arange(256, dtype=torch.int16), torch.arange(256, dtype=torch.float64) * of["UNIT"]
    for zero in (*range(16), 128):
        found = codes.view(dtype) * (of["UNIT"] / of["MIN_SUBNORMAL"]) - torch.tensor(zero * of["UNIT"], dtype=dtype)
        exact = units - zero * of["UNIT"]
        kept = slice(None) if zero == 128 else slice(16)
        assert torch.equal(found[kept].double(), exact[kept])
    second = (codes[:16] * 16).view(dtype) * (of["UNIT"] / of["MIN_SUBNORMAL"] / 16)
    assert torch.equal(second.double(), units[:16])
    top = 9 if dtype == torch.float16 else 6
    magnitudes = (codes[:8] << top).view(dtype)
    for exponent in range(-15, 10) if dtype == torch.float16 else range(-60, 66):
        scaled = magnitudes * torch.tensor(2.0**exponent * of["BIAS"] / of["BACK"], dtype=dtype)
        wanted = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64) * 2.0**exponent
        assert torch.equal(scaled.double() * of["BACK"], wanted), exponent


def test_an_expert_that_no_token_takes_does_no_harm():
    kernel = load_kernel("grouped_gemm")
    inputs = kernel.make(case("fp16", M=10, N=16, K=16, experts=4, chosen=1), "cpu", 5)
    inputs["ends"] = torch.tensor([0, 7, 7, 10], dtype=torch.int32)
    torch.testing.assert_close(kernel.run(**inputs)[0].float(), kernel.reference(**inputs)[0], rtol=1e-3, atol=1e-3)


def test_a_row_of_zeros_is_quantized_to_zeros():
    codes, scales = load_kernel("quantize").run(x=torch.zeros(2, 64).half(), group=64, dtype=torch.int8)
    assert not codes.any()
    assert scales.isfinite().all()


def test_sizes_that_a_kernel_cannot_take_are_refused():
    w4a16, fp8 = load_kernel("gemm_w4a16"), load_kernel("gemm_fp8_block")
    message = "k and groups of int4 and int8 must be multiples of 128; got k=192, group=64"
    with pytest.raises(InputError, match=f"^{message}$"):
        w4a16.run(**w4a16.make(case("fp16", M=1, N=4, K=192, group=64), "cpu", 0))
    with pytest.raises(InputError, match=r"^n of int4 must be a multiple of 8; got 12$"):
        w4a16.run(**w4a16.make(case("fp16", M=1, N=12, K=128, group=128), "cpu", 0))
    with pytest.raises(InputError, match=r"^k must be a multiple of 128; got 192$"):
        fp8.run(**fp8.make(case("fp8_e4m3", M=1, N=4, K=192), "cpu", 0))


def test_tiles_take_no_more_shared_memory_than_there_is():
    """GPUs of desktops have 99 KB for a block, and those of 12.x the matrix units of 8.x."""
    assert Target(sm=90, multiprocessors=1).shared == 227 * 1024
    assert Target(sm=86, multiprocessors=1).shared == Target(sm=120, multiprocessors=1).shared == 99 * 1024
    small, large = Target(sm=120, multiprocessors=170), Target(sm=80, multiprocessors=170)
    assert gemm.tiling(small, 64, 4096, 4096, 2) == gemm.tiling(large, 64, 4096, 4096, 2)
    assert not gemm.tiling(small, 8192, 8192, 8192, 2).persistent
    one = gemm_weight_only.tiling(small, 64, 4096, 4096, 8)
    assert one.num_stages == 2
    assert gemm_weight_only.tiling(large, 64, 4096, 4096, 8).num_stages == 4
