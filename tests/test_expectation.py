"""Laws of the models of kernels, profiles that come back as they were written, and parameters that are found again."""

import math
import re
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import llmviewer
from llmviewer import load_hardware
from llmviewer.devices.files import hardware_file
from llmviewer.errors import InputError
from llmviewer.expectation import calibrate as calibrating
from llmviewer.expectation.calibrate import fit_kernel
from llmviewer.expectation.device import device_of, find_device
from llmviewer.expectation.families import FAMILIES, Implementation
from llmviewer.expectation.families._routing import TILES, even_tiles, local_loads
from llmviewer.expectation.families.base import FittedParameter, uncached_fraction
from llmviewer.expectation.fitting import fit_parameters
from llmviewer.expectation.profile import Error, KernelFit, Profile, error_of, read, shipped, to_yaml, transfer_errors
from llmviewer.expectation.residual import FitResidual, points_of
from llmviewer.expectation.rows import MeasuredRows
from llmviewer.expectation.rows import read as read_rows
from llmviewer.expectation.scaling import scaled_parameters
from llmviewer.expectation.transfer import expect, select_fits
from llmviewer.reports.analysis import REPORT

H100 = find_device("H100-SXM-80GB")
H100_LIMIT = 989.4e12 * 1980 / 1830  # of 16-bit products at the highest clock [OP/s]
ERROR = Error(mape=0.1, median=0.08, mape_short=0.12, mape_long=0.09, covered=0.8, short=(0.8, 1.3), long=(0.9, 1.2))
IMPLEMENTATIONS = {
    "gemm": Implementation(library="vllm", dtype="fp8"),
    "attention_prefill": Implementation(library="vllm", dtype="bf16", kv_dtype="bf16"),
    "attention_decode": Implementation(library="vllm", dtype="bf16", kv_dtype="bf16"),
    "moe": Implementation(library="vllm", dtype="bf16"),
    "elementwise": Implementation(library="vllm", dtype="fp16", kernel="add"),
    "collectives": Implementation(library="nccl", dtype="fp16", kernel="nccl all_reduce"),
    "scan": Implementation(library="vllm", dtype="bf16", kernel="chunk_gated_delta_rule gdn_scan_prefill"),
    "all_to_all": Implementation(library="deepep", dtype="fp8", kernel="deepep_normal dispatch"),
    "attention_layer": Implementation(library="vllm", dtype="bf16", kv_dtype="bf16", kernel="dsa_decode"),
}
SHAPES = {
    "gemm": {"M": 64, "N": 4096, "K": 4096},
    "attention_prefill": {
        "batch": 2, "q_len": 2048, "kv_len": 4096, "q_heads": 32, "kv_heads": 8, "head_dim": 128, "v_head_dim": 128,
    },
    "attention_decode": {
        "batch": 32, "kv_len": 4096, "q_heads": 32, "kv_heads": 8, "head_dim": 128, "v_head_dim": 128,
    },
    "moe": {"tokens": 256, "hidden": 4096, "inter": 1536, "topk": 8, "experts": 128},
    "elementwise": {"rows": 4096, "bytes": 1e8},
    "collectives": {"num_gpus": 8, "bytes": 1e7},
    "scan": {"batch": 2, "q_len": 2048, "k_heads": 16, "k_dim": 128, "v_heads": 32, "v_dim": 128},
    "all_to_all": {"num_gpus": 8, "tokens": 1024, "hidden": 7168, "topk": 8, "experts": 256},
    "attention_layer": {"batch": 16, "q_len": 1, "kv_len": 32768, "heads": 64, "bytes": 1e8, "ops": 1e10},
}  # fmt: skip
GROWS = {
    "gemm": ("M", "N", "K"),
    "attention_prefill": ("batch", "kv_len"),
    "attention_decode": ("batch", "kv_len"),
    "moe": ("tokens",),
    "elementwise": ("rows", "bytes"),
    "collectives": ("bytes",),
    "scan": ("batch", "q_len", "v_heads"),
    "all_to_all": ("tokens", "hidden"),
    "attention_layer": ("batch", "bytes", "ops"),
}


def shapes(name, count=1, **changes):
    """Columns of `count` alike rows."""
    family = FAMILIES[name]
    values = {**family.optional, **SHAPES[name], **changes}
    return {key: np.broadcast_to(np.asarray(value, dtype=float), (count,)).copy() for key, value in values.items()}


def seconds(name, columns, device=H100, variant=""):
    family = FAMILIES[name]
    implementation = IMPLEMENTATIONS[name]
    return family.seconds(
        family.default_parameters(implementation, H100),
        family.features(columns, device, implementation, variant or family.variants[0]),
    )


def usual(name, implementation, variant):
    found = FAMILIES[name].default_parameters(implementation, H100)
    return {
        q.name: float(f"{found[q.name]:.4g}") for q in FAMILIES[name].parameters_of(variant)
    }  # as profiles have them


def kernel_fit(name, device="h100-sxm", **changes):
    implementation = changes.pop("implementation", IMPLEMENTATIONS[name])
    family = FAMILIES[name]
    return KernelFit(
        device=device,
        family=name,
        implementation=implementation,
        variant=family.variants[0],
        parameters=usual(name, implementation, family.variants[0]),
        rows=100,
        version="1.0",
        fit_mape=0.05,
        held_out=ERROR,
    )


@pytest.mark.parametrize("name", FAMILIES)
@given(factor=st.floats(1.01, 64), size=st.floats(0.02, 8))
def test_nothing_is_expected_sooner_than_its_bound(name, factor, size):
    grown = GROWS[name][0]
    columns = shapes(name, **{grown: max(1, round(SHAPES[name][grown] * size * factor))})
    found = expect(name, columns, H100, IMPLEMENTATIONS[name], [kernel_fit(name)])
    assert np.all(found.expected >= found.bound)
    assert np.all(found.bound > 0)
    assert np.all((found.bound <= found.low) & (found.low <= found.expected) & (found.expected <= found.high))


def test_small_batches_use_a_gemv_kernel():
    gemm, implementation = FAMILIES["gemm"], Implementation(library="trtllm", dtype="int4_wo")
    p = usual("gemm", implementation, "waves gemv")
    columns = shapes("gemm", 3, M=np.array([1.0, 4.0, 5.0]), N=16384, K=8192)
    features = {variant: gemm.features(columns, H100, implementation, variant) for variant in ("waves", "waves gemv")}
    tiles, found = (gemm.seconds(p, f) for f in features.values())
    moved = (16384 * 8192 * (1 / 2 + 2 / 128) + 2 * 8192 + 2 * 16384 * p["omega"]) / 3.35e12 / p["gemv_beta"]
    vectors = 2 * 16384 * 8192 / 66.9e12 / p["gemv_alpha"]
    together = sum(t ** p["sharp"] for t in (moved, vectors, 8192 * p["gemv_step_ns"] * 1e-9)) ** (1 / p["sharp"])
    blocks = 16384 / 8 / 132
    assert found[0] == pytest.approx(1e-6 * (p["gemv_us"] + p["gemv_tau_us"] * blocks) + together, rel=1e-3)
    assert found[0] < found[1]
    assert found[1] != tiles[1]
    assert found[2] == tiles[2]


@pytest.mark.parametrize(("dtype", "rows"), [("int8_wo", 15), ("sq", 4)])
def test_a_few_more_rows_of_narrow_weights_have_the_faster_kernel(dtype, rows):
    gemm, implementation = FAMILIES["gemm"], Implementation(library="trtllm", dtype=dtype)
    p = {**usual("gemm", implementation, "waves gemv"), "start_us": 20.0}
    columns = shapes("gemm", 16, M=np.arange(1.0, 17.0), N=1024, K=1024)
    tiles, found = (gemm.seconds(p, gemm.features(columns, H100, implementation, v)) for v in ("waves", "waves gemv"))
    assert np.flatnonzero(found < tiles).tolist() == list(range(rows))
    slow = {**p, "gemv_us": 60.0}
    assert np.flatnonzero(
        gemm.seconds(slow, gemm.features(columns, H100, implementation, "waves gemv")) > tiles
    ).tolist() == [
        0,
        1,
        2,
        3,
    ]


@pytest.mark.parametrize("named", [("gemv_us", "waves"), ("gemv_us", "waves gemv")])
def test_a_profile_has_the_parameters_of_its_variant(tmp_path, named):
    one = replace(kernel_fit("gemm"), variant=named[1], parameters=usual("gemm", IMPLEMENTATIONS["gemm"], "waves"))
    path = tmp_path / "profile.yaml"
    path.write_text(to_yaml([Profile(device="h100-sxm", library="vllm", sources=(), fits=(one,))]))
    if named[1] == "waves":
        assert read(path)[0].fits == (one,)
    else:
        with pytest.raises(InputError, match=r"parameters\.gemv_us: is missing"):
            read(path)


@pytest.mark.parametrize(("name", "column"), [(name, column) for name in FAMILIES for column in GROWS[name]])
def test_more_work_takes_longer(name, column):
    """Over a factor of two, which no choice of tiles outweighs."""
    sizes = SHAPES[name][column] * 2.0 ** np.arange(7)
    times = seconds(name, shapes(name, 7, **{column: sizes}))
    assert np.all(np.diff(times) > 0)


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("A100", "a100-sxm-80gb"), ("a100_sxm", "a100-sxm-80gb"), ("A100-40G", "a100-sxm-40gb"),
        ("NVIDIA B300 SXM6 AC", "b300"), ("NVIDIA RTX 6000 Ada Generation", "rtx-6000-ada"), ("RTX4090", "rtx-4090"),
    ],
)  # fmt: skip
def test_names_of_tables_and_drivers_are_those_of_a_device(written, name):
    assert find_device(written).name == name


@pytest.mark.parametrize("written", ["NVIDIA GeForce RTX 3080 Laptop GPU", "H100 MIG 1g.10gb", "RTX 5090 Ti"])
def test_device_partitions_and_mobile_variants_are_not_matched(written):
    with pytest.raises(InputError, match="no hardware"):
        find_device(written)


@pytest.mark.parametrize("name", FAMILIES)
def test_doubled_rates_halve_the_time_except_latency(name):
    columns = shapes(name, **{GROWS[name][-1]: SHAPES[name][GROWS[name][-1]] * 512})
    rates = {resource: 2 * rate for resource, rate in H100.hardware.rates.items()}
    faster = replace(H100.hardware, rates=rates)
    twice = replace(H100, hardware=faster, bandwidth=2 * H100.bandwidth, link=2 * H100.link)
    ratio = seconds(name, columns, twice) / seconds(name, columns)
    assert 0.5 <= ratio[0] < 0.75
    bounds = [FAMILIES[name].bound(columns, device, IMPLEMENTATIONS[name]) for device in (H100, twice)]
    assert bounds[1] == pytest.approx(bounds[0] / 2)


def test_the_bound_of_a_linear_layer_by_hand():
    columns = shapes("gemm", M=16, N=1024, K=2048)
    moved = 1024 * 2048 + 16 * 2048 + 2 * 16 * 1024
    assert FAMILIES["gemm"].bound(columns, H100, IMPLEMENTATIONS["gemm"]) == pytest.approx(moved / 3352e9)


def test_working_sets_cached_between_loop_iterations_read_no_memory():
    small, large = shapes("attention_decode", batch=1, loop=1), shapes("attention_decode", batch=64, loop=1)
    family, implementation = FAMILIES["attention_decode"], IMPLEMENTATIONS["attention_decode"]
    ops = 2 * 32 * 4096 * 256
    assert family.bound(small, H100, implementation) == pytest.approx(
        ops / H100_LIMIT, rel=1e-9
    )  # 17 MB in a cache of 50 MiB
    cache = 64 * 8 * 4096 * 256 * 2 + 2 * 64 * 32 * 256
    assert family.bound(large, H100, implementation) == pytest.approx((cache - 50 * 2**20) / 3352e9)


def test_pairs_under_a_window_and_with_a_prefix_by_hand():
    q, kv, window = 5, 9, 6
    seen = sum(min(kv - q + i + 1, window) for i in range(q))
    columns = shapes("attention_prefill", batch=1, q_len=q, kv_len=kv, window=window, q_heads=1, kv_heads=1)
    unmoved = replace(H100, bandwidth=1e30)
    ops = 2 * seen * (128 + 128)
    bound = FAMILIES["attention_prefill"].bound(columns, unmoved, IMPLEMENTATIONS["attention_prefill"])
    assert bound == pytest.approx(ops / H100_LIMIT, rel=1e-9)


def loads(*case):
    return local_loads(*(np.array([value], dtype=float) for value in case))[0]


def test_expert_loads_of_a_case_do_not_depend_on_other_cases():
    cases = np.array([[4096, 64, 4, 8, 1.2], [4096, 64, 4, 8, 1.01], [64, 8, 2, 4, 0], [4096, 64, 4, 8, 1.2]])
    found = local_loads(*cases.T)
    assert np.all(found == [loads(*case) for case in cases])


def test_experts_that_all_tokens_reach_alike():
    rows, reached, *tiles = loads(64, 8, 2, 4, 0.0)
    assert (rows, reached) == (32, 2)  # 128 rows over 8 experts, 2 of them here
    assert tiles == [4, 2, 2, 2, 2, 2]  # of 8 to 128 rows


def test_the_most_loaded_device_has_more_than_its_share():
    alike, skewed = (loads(4096, 64, 4, 8, skew)[0] for skew in (0.0, 1.2))
    assert alike == 4096 * 4 / 8
    assert alike < skewed <= 4096 * 4


@pytest.mark.parametrize("name", FAMILIES)
def test_parameters_are_found_again_in_noisy_rows(name):
    pytest.importorskip("scipy")
    family, implementation, random = FAMILIES[name], IMPLEMENTATIONS[name], np.random.default_rng(1)
    grown = {key: np.maximum(1, SHAPES[name][key] * 2.0 ** random.uniform(-4, 5, 400)).round() for key in GROWS[name]}
    if name == "attention_prefill":
        grown["kv_len"] = np.maximum(grown["kv_len"], SHAPES[name]["q_len"])
    columns = shapes(name, 400, **grown)
    features = family.features(columns, H100, implementation, family.variants[0])
    true = family.default_parameters(implementation, H100) | {
        "beta": 0.55,
        "start_us": 1.6 * family.default_parameters(implementation, H100)["start_us"],
    }
    exact = family.seconds(true, features)
    found = fit_parameters(
        family,
        features,
        exact * np.exp(random.normal(0, 0.03, 400)),
        priors=family.default_parameters(implementation, H100),
    )
    assert found.loss < 0.035
    again = family.seconds(found.parameters, features)
    assert np.mean(np.abs(again / exact - 1)) < 0.015
    if name in ("attention_prefill", "elementwise"):  # others add up several fixed times
        assert found.parameters["start_us"] == pytest.approx(true["start_us"], rel=0.15)


def test_errors_by_hand():
    expected, measured = np.array([10e-6, 10e-6, 100e-6, 100e-6]), np.array([8e-6, 10e-6, 100e-6, 125e-6])
    error = error_of(expected, measured, np.array([0, 1, 0, 1]))
    assert error.mape == pytest.approx((0.25 + 0 + 0 + 0.2) / 4)
    assert error.median == pytest.approx(0.1)
    assert (error.mape_short, error.mape_long) == (pytest.approx(0.125), pytest.approx(0.1))
    assert error.short[0] < 1 < error.short[1]


def test_interval_widened_by_the_needed_power_includes_the_time():
    expected, measured = np.array([10e-6, 10e-6, 100e-6, 100e-6]), np.array([6.4e-6, 13e-6, 90e-6, 144e-6])
    needed = ERROR.needed(expected, measured)
    assert needed == pytest.approx([2, 1, 1, 2])
    low, high = ERROR.widened(2).interval(expected)
    assert [low[0], high[1], low[2], high[3]] == pytest.approx([6.4e-6, 16.9e-6, 81e-6, 144e-6])


def test_profiles_survive_a_round_trip(tmp_path):
    profile = Profile(device="h100-sxm", library="vllm", sources=("made up",), fits=tuple(map(kernel_fit, FAMILIES)))
    one = replace(profile, fits=tuple(e for e in profile.fits if e.implementation.library == "vllm"))
    path = tmp_path / "profile.yaml"
    path.write_text(to_yaml([one]))
    assert read(path) == (one,)
    path.write_text(to_yaml([one, one]))
    assert read(path) == (one, one)


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("alpha", "2", "entries[0].parameters.alpha: must be 0.05 to 1; got 2"),
        ("family", "conv", ("entries[0].family: must be one of gemm, attention_prefill, attention_decode, moe, "
         "elementwise, collectives, scan, all_to_all, attention_layer; got 'conv'")),
        ("interval_long", "[1.1, 1.2]", ("entries[0].held_out.interval_long: must be a factor up to 1 and one from 1; "
         "got [1.1, 1.2]")),
    ],
)  # fmt: skip
def test_error_in_a_profile_names_its_key(tmp_path, key, value, problem):
    import yaml

    text = to_yaml([Profile(device="h100-sxm", library="vllm", sources=(), fits=(kernel_fit("gemm"),))])
    plain = yaml.safe_load(text)
    first = plain["entries"][0]
    home = next(part for part in (first, first["parameters"], first["held_out"]) if key in part)
    home[key] = yaml.safe_load(value)
    path = tmp_path / "profile.yaml"
    path.write_text(yaml.safe_dump(plain))
    with pytest.raises(InputError) as error:
        read(path)
    assert str(error.value) == f"{path}: {problem}"


def test_own_fit_ranks_before_fits_of_similar_devices():
    own, other = kernel_fit("gemm"), kernel_fit("gemm", device="h200-sxm")
    assert select_fits("gemm", H100, IMPLEMENTATIONS["gemm"], [other, own]).source == "calibrated on h100-sxm vllm 1.0"
    far = select_fits("gemm", H100, IMPLEMENTATIONS["gemm"], [kernel_fit("gemm", device="a100-sxm-80gb"), other])
    assert far.source == "transferred from h200-sxm vllm"
    with pytest.raises(InputError) as error:
        select_fits("gemm", H100, IMPLEMENTATIONS["gemm"], [])
    assert str(error.value) == "no profile of gemm in fp8 on any GPU"


def test_equivalent_type_on_the_device_ranks_before_other_devices():
    twin, far = (
        replace(kernel_fit("gemm"), implementation=Implementation(library="vllm", dtype="fp16")),
        kernel_fit("gemm", device="h200-sxm"),
    )
    asked = Implementation(library="vllm", dtype="bf16")
    far = replace(far, implementation=asked)
    found = select_fits("gemm", H100, asked, [far, twin])
    assert found.source == "calibrated on h100-sxm vllm 1.0 in fp16"
    assert found.error == transfer_errors()["gemm", "all", "siblings"]  # as sure as from a sibling
    assert (
        select_fits("gemm", H100, asked, [twin, replace(twin, implementation=asked)]).source
        == "calibrated on h100-sxm vllm 1.0"
    )
    block = replace(
        twin, implementation=Implementation(library="vllm", dtype="fp8_block")
    )  # scaled by other kernels: no twin of fp8
    fp8 = replace(far, implementation=Implementation(library="vllm", dtype="fp8"))
    assert select_fits("gemm", H100, fp8.implementation, [block, fp8]).source == "transferred from h200-sxm vllm"
    adds = replace(kernel_fit("elementwise"), implementation=Implementation(library="mine", dtype="bf16", kernel="add"))
    other = replace(
        kernel_fit("elementwise", device="h200-sxm"),
        implementation=Implementation(library="mine", dtype="fp16", kernel="add"),
    )
    moved = select_fits("elementwise", H100, other.implementation, [other, adds])
    assert moved.source == "calibrated on h100-sxm mine 1.0 add in bf16"
    assert moved.error is adds.held_out


def test_source_names_stand_in_libraries_of_the_same_device():
    def of_library(name, device="h100-sxm"):
        return replace(kernel_fit("gemm", device=device), implementation=Implementation(library=name, dtype="fp8"))

    asked = Implementation(library="trtllm", dtype="fp8")
    both = [of_library("vllm"), of_library("sglang"), of_library("trtllm", "l40s")]
    found = select_fits("gemm", H100, asked, both)
    assert found.source == "stand-in on h100-sxm: another library (vllm 1.0 and sglang 1.0)"
    assert found.error == transfer_errors()["gemm", "fp8", "another library"]
    assert select_fits("gemm", find_device("h200-sxm"), asked, both).source == "transferred from h100-sxm vllm/sglang"


def test_equivalent_type_of_the_library_ranks_before_devices_of_another_memory_type():
    asked = Implementation(library="vllm", dtype="fp8_static")
    hopper = replace(kernel_fit("gemm", device="h100-sxm"), implementation=replace(asked, dtype="fp8"))
    ada, near = (replace(kernel_fit("gemm", device=name), implementation=asked) for name in ("l40s", "h100-sxm"))
    assert select_fits("gemm", find_device("h200-sxm"), asked, [ada, hopper]).fits == (hopper,)
    assert select_fits("gemm", find_device("h200-sxm"), asked, [ada, near, hopper]).fits == (near,)
    other = replace(hopper, implementation=replace(hopper.implementation, library="sglang"))
    assert select_fits("gemm", find_device("h200-sxm"), asked, [ada, other]).fits == (ada,)


def test_unmeasured_families_expect_the_bound_without_an_upper_limit():
    found = expect("gemm", shapes("gemm"), H100, IMPLEMENTATIONS["gemm"], [])
    assert found.source == "bound only: no profile of gemm in fp8 on any GPU"
    assert np.all(found.expected == found.bound)
    assert np.all(np.isinf(found.high))


def test_bounds_alone_are_those_beside_expectations_and_need_no_library():
    asked = {"model": "llama-2-7b", "hardware": "h100-sxm", "prompt": 64, "gen": 8}
    whole, alone = llmviewer.analyze(**asked), llmviewer.analyze(**asked, bound=True)
    found, bounds = vars(whole.generation), vars(alone.generation)
    assert bounds == {key: None if key.startswith("expected") else value for key, value in found.items()}
    assert "expect" not in REPORT.text(alone)
    either = {"library": "vllm"}, {"profiles": ["mine.yaml"]}
    for run, other in product((llmviewer.analyze, llmviewer.compare), either):
        with pytest.raises(InputError, match=r"^bound must be given without library, engine and"):
            run("llama-2-7b", "h100-sxm", bound=True, **other)


def test_elementwise_kernels_fall_back_to_another_type_or_to_addition():
    """In an interval of operations that are expected so, where nothing but additions was measured."""
    add, ln = (replace(kernel_fit("elementwise"), implementation=Implementation(library="x", dtype=dtype, kernel=name))
               for dtype, name in (("bf16", "add"), ("fp32", "ln")))  # fmt: skip
    norm = select_fits("elementwise", H100, Implementation(library="y", dtype="bf16", kernel="ln"), [add, ln])
    assert (norm.fits, norm.source) == ((ln,), "calibrated on h100-sxm x 1.0 ln, kernels for fp32")
    other = select_fits("elementwise", H100, Implementation(library="x", dtype="bf16", kernel="clamp"), [add, ln])
    unlike = "no kernel measured; memory traffic only, 1.2 times an addition on h100-sxm x 1.0 add"
    assert (other.fits, other.source, other.memory_traffic_only) == ((add,), unlike, True)
    assert other.error == transfer_errors()["elementwise", "all", "no kernel"]
    scan = select_fits("elementwise", H100, Implementation(library="x", dtype="bf16", kernel="scan"), [add, ln])
    assert scan.error == transfer_errors()["elementwise", "scan", "no kernel"]
    with pytest.raises(InputError, match="no profile of elementwise in bf16 on any GPU"):
        select_fits("elementwise", H100, Implementation(library="x", dtype="bf16", kernel="clamp"), [ln])


def test_a_recurrence_without_measured_rule_has_factors_of_steps_and_of_prompts():
    analysis, errors = llmviewer.analyze("falcon-mamba-7b", "h100-sxm"), transfer_errors()
    for name, kind in (("prefill", "scan"), ("decode", "scan step")):
        (op,) = (op for op in dict(analysis.phases)[name].operators if op.name == "scan")
        assert f"{errors['elementwise', kind, 'no kernel'].scale:.2g} times an addition" in op.expectation_source


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_absorbed_latent_attention_is_expected_from_measured_absorbed_kernels(phase):
    analysis = llmviewer.analyze("deepseek-v3", "h100-sxm", layout="tp=8", engine="sglang", mla="absorbed", prompt=4096)
    op = next(op for op in dict(analysis.phases)[phase].operators if op.name == "attention")
    attention, *cache_write = op.expectation_source.split("; ")
    assert attention == "calibrated on h100-sxm sglang 0.5.14 flash_attention mla_absorb"
    assert cache_write == ["calibrated on h100-sxm sarathi 2024 add"]


def test_missing_core_counts_come_from_a_similar_device_and_are_labelled():
    device = device_of(load_hardware("b100"))
    assert (device.cores, device.assumed) == (find_device("b200").cores, ("cores.count of b200", "l2.capacity of b200"))
    found = expect("gemm", shapes("gemm"), device, IMPLEMENTATIONS["gemm"], [kernel_fit("gemm")])
    assert found.source == "transferred from h100-sxm vllm; assumed cores.count of b200, l2.capacity of b200"
    with pytest.raises(InputError, match="no hardware 'K80'"):
        find_device("K80")


def test_fp32_is_not_rounded_to_tf32_and_uses_matrix_units_that_take_it():
    assert H100.peak("fp32") == pytest.approx(66.9e12)
    assert find_device("MI100").peak("fp32") == pytest.approx(46.1e12)


@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("NVIDIA H100-SXM-80GB", "h100-sxm"), ("nvidia_h100_sxm", "h100-sxm"), ("H100", "h100-sxm"),
        ("AMD Instinct MI250X/MI250", "mi250x"), ("Intel(R) Arc(TM) Pro B60 Graphics", "arc-pro-b60"),
        ("Intel(R) Data Center GPU Max 1550", "gpu-max-1550"),
    ],
)  # fmt: skip
def test_device_lookup_accepts_spellings_of_measured_tables(name, own):
    assert find_device(name).name == own


def test_error_lists_all_missing_device_facts():
    bare = replace(load_hardware("mi300x"), name="bare", architecture="own", facts=())
    with pytest.raises(InputError) as error:
        device_of(bare)
    assert str(error.value) == (
        "bare has no cores.count and no l2.capacity: its file does not say, so kernel times cannot be modelled"
    )


def test_unknown_device_lookup_is_cached(monkeypatch):
    asked = []
    monkeypatch.setattr("llmviewer.expectation.device.load_hardware", lambda name: asked.append(name) or missing(name))
    for _ in range(3):
        with pytest.raises(InputError, match="no hardware 'an abacus of 1945'"):
            find_device("an abacus of 1945")
    assert asked == ["an abacus of 1945"]


def missing(name):
    raise InputError(f"no hardware {name!r}")


def test_user_hardware_file_may_contain_the_vendor_name(tmp_path, monkeypatch):
    text = hardware_file("h100-sxm").read_text()
    own = text.replace("name: h100-sxm\n", "name: nvidia-h100-sxm\n").split("aliases:")
    (tmp_path / "nvidia-h100-sxm.yaml").write_text(own[0] + own[1].partition("\n")[2])
    assert find_device("NVIDIA H100-SXM").name == "h100-sxm"
    monkeypatch.setenv("LLMVIEWER_HARDWARE_PATH", str(tmp_path))
    assert find_device("NVIDIA H100-SXM").name == "nvidia-h100-sxm"
    assert find_device("h100-sxm").name == "h100-sxm"


def test_changed_user_hardware_file_is_reloaded(tmp_path, monkeypatch):
    monkeypatch.setenv("LLMVIEWER_HARDWARE_PATH", str(tmp_path))
    text = hardware_file("h100-sxm").read_text()
    assert find_device("h100-sxm").bandwidth == 3.352e12
    for bandwidth in (3.5, 0.35):
        (tmp_path / "h100-sxm.yaml").write_text(text.replace("bandwidth: 3352 GB/s", f"bandwidth: {bandwidth} TB/s"))
        assert find_device("h100-sxm").bandwidth == bandwidth * 1e12


def test_rows_of_a_shape_family_stay_together():
    columns = shapes("gemm", 4, N=[256, 512, 256, 512], M=[1, 2, 3, 4])
    rows = MeasuredRows(
        family=FAMILIES["gemm"],
        device=H100,
        implementation=IMPLEMENTATIONS["gemm"],
        version="",
        places=np.arange(4),
        shapes=columns,
        measured=np.ones(4),
    )
    a, b, c, d = rows.shape_families()
    assert a == c != b == d


def test_few_shape_families_are_held_out_one_by_one_to_choose_a_variant(monkeypatch):
    """The variant that the rows were made with is found; what it is judged by are other folds."""
    pytest.importorskip("scipy")
    family, implementation, random = (
        FAMILIES["attention_prefill"],
        IMPLEMENTATIONS["attention_prefill"],
        np.random.default_rng(3),
    )
    asked = []
    shuffled = calibrating._shuffled
    monkeypatch.setattr(calibrating, "_shuffled", lambda *given: asked.append(given[1:]) or shuffled(*given))
    columns = shapes(
        "attention_prefill",
        240,
        batch=2.0 ** random.integers(0, 5, 240),
        q_len=2.0 ** random.integers(7, 12, 240),
        q_heads=np.repeat([8, 16, 32, 64], 60),
        kv_heads=8,
    )
    columns["kv_len"] = columns["q_len"].copy()  # fmt: skip
    exact = family.seconds(
        family.default_parameters(implementation, H100),
        family.features(columns, H100, implementation, "16 packed only"),
    )
    rows = MeasuredRows(
        family=family,
        device=H100,
        implementation=implementation,
        version="",
        places=np.arange(240),
        shapes=columns,
        measured=exact * np.exp(random.normal(0, 0.02, 240)),
    )
    assert fit_kernel(rows).variant == "16 packed only"
    assert asked == [(0,), (1, 4)]
    order, fold = shuffled(rows, 1, 4)
    assert sorted(order) == list(range(240))
    assert len({(f, h) for f, h in zip(fold, columns["q_heads"], strict=True)}) == 4 == len(set(fold))
    assert len(set(shuffled(rows, 0)[1])) == 3


def test_profiles_that_ship_are_within_their_limits_and_name_known_devices():
    fits = shipped()
    assert {e.family for e in fits} == set(FAMILIES)
    assert all(find_device(e.device).name == e.device for e in fits)
    assert all(0 < e.held_out.short[0] <= 1 <= e.held_out.short[1] for e in fits)


@pytest.mark.slow("fits many rows")
def test_fits_on_few_rows_shrink_to_a_prior_of_similar_devices():
    pytest.importorskip("scipy")
    family, implementation, random = FAMILIES["gemm"], IMPLEMENTATIONS["gemm"], np.random.default_rng(2)
    true = family.default_parameters(implementation, H100) | {"alpha": 0.4, "quantize_us": 12, "start_us": 6}
    relative = replace(kernel_fit("gemm", device="h200-sxm"), parameters=true)

    def rows(count, least, most):
        columns = shapes("gemm", count, M=2.0 ** random.integers(least, most, count),
                         N=2.0 ** random.integers(8, 15, count), K=2.0 ** random.integers(8, 14, count))  # fmt: skip
        exact = family.seconds(true, family.features(columns, H100, implementation, family.variants[0]))
        noisy = exact * np.exp(random.normal(0, 0.05, count))
        return MeasuredRows(
            family=family,
            device=H100,
            implementation=implementation,
            version="",
            places=np.arange(count),
            shapes=columns,
            measured=noisy,
        )

    few, rest = rows(20, 0, 5), rows(400, 8, 14)  # of few tokens, which do not tell how fast many are

    def error(priors):
        found = fit_kernel(few, priors)
        return np.mean(np.abs(expect("gemm", rest.shapes, H100, implementation, [found]).expected / rest.measured - 1))

    assert error([relative]) < min(0.06, error([]))


def test_small_batch_kernel_variant_needs_rows_of_small_batches(monkeypatch):
    pytest.importorskip("scipy")
    family, implementation = FAMILIES["gemm"], IMPLEMENTATIONS["gemm"]
    monkeypatch.setattr(type(family), "variants", ("persistent gemv", "persistent"))

    def variant(least):
        random = np.random.default_rng(3)
        columns = shapes("gemm", 60, **{name: np.round(2.0 ** random.uniform(8, 13, 60)) for name in ("N", "K")})
        columns["M"] = np.round(2.0 ** random.uniform(least, 12, 60))
        exact = family.seconds(usual("gemm", implementation, "persistent gemv"),
                               family.features(columns, H100, implementation, "persistent gemv"))  # fmt: skip
        rows = MeasuredRows(
            family=family,
            device=H100,
            implementation=implementation,
            version="",
            places=np.arange(60),
            shapes=columns,
            measured=exact,
        )
        return fit_kernel(rows).variant

    assert variant(0) == "persistent gemv"
    assert variant(6) == "persistent"


def test_intervals_hold_80_percent_of_parts_that_differ():
    random = np.random.default_rng(3)
    part = np.repeat(np.arange(40), 50)
    shift = random.normal(0, 0.2, 40)[part]
    expected = np.full(len(part), 1e-4)
    measured = expected * np.exp(shift + random.normal(0, 0.02, len(part)))
    error = error_of(expected, measured, part)
    assert 0.7 < error.covered < 0.9
    inside = (measured > expected * error.long[0]) & (measured < expected * error.long[1])
    assert np.mean(inside) > 0.75
    assert error.long[1] < 1.6


def test_opposite_errors_of_two_groups_give_a_symmetric_interval():
    """Two similar devices, each expected from the other: an interval that includes both is not widened further."""
    random = np.random.default_rng(6)
    part = np.repeat([0, 1], 1000)
    expected = np.full(len(part), 1e-4)
    measured = expected * np.exp(np.where(part == 0, 0.05, -0.05) + random.normal(0, 0.02, len(part)))
    error = error_of(expected, measured, part)
    assert error.long[0] == pytest.approx(1 / error.long[1])
    inside = (measured > expected * error.long[0]) & (measured < expected * error.long[1])
    assert 0.75 < np.mean(inside) < 0.85


def test_intervals_count_a_part_of_few_rows_as_much_as_one_of_many():
    random = np.random.default_rng(5)
    part = np.concatenate([np.zeros(2000), np.repeat(np.arange(1, 9), 50)])
    expected = np.full(len(part), 1e-4)
    shift = np.where(part == 0, 0, 0.25 * (-1) ** part)
    measured = expected * np.exp(shift + random.normal(0, 0.1, len(part)))
    error = error_of(expected, measured, part)
    inside = (measured > expected * error.long[0]) & (measured < expected * error.long[1])
    assert 0.75 < np.mean([np.mean(inside[part == one]) for one in range(9)]) < 0.9
    assert np.mean(inside) > 0.95  # of rows, most of which are of one part


def table_of(factor, count=1200):
    """Rows that are `factor` of their shape times what the usual parameters say, and the entry that says it."""
    random = np.random.default_rng(4)
    columns = shapes("attention_decode", count, batch=2.0 ** random.uniform(0, 9, count).round(1),
                     kv_len=2.0 ** random.uniform(7, 17, count).round(1))  # fmt: skip
    own = kernel_fit("attention_decode")
    exact = FAMILIES["attention_decode"].seconds(
        own.parameters, FAMILIES["attention_decode"].features(columns, H100, own.implementation, own.variant)
    )
    names, points, factors = points_of(FAMILIES["attention_decode"], columns, factor(columns))
    residual = FitResidual(columns=names, points=points, factors=factors, mape=0.03, interval=(0.95, 1.05))
    return replace(own, residual=residual), columns, exact * factor(columns)


def wave(columns):
    return 1.4 + 0.3 * np.sin(np.log2(columns["kv_len"]))


def test_residual_correction_reproduces_measured_shapes_and_interpolates():
    own, columns, times = table_of(wave)
    found = expect("attention_decode", columns, H100, own.implementation, [own])
    assert found.expected == pytest.approx(times, rel=1e-3)
    assert set(found.sources) == {"measured shape on h100-sxm vllm 1.0"}
    between = {**columns, "kv_len": columns["kv_len"] * 1.1}
    near = expect("attention_decode", between, H100, own.implementation, [own])
    alone = expect("attention_decode", between, H100, own.implementation, [replace(own, residual=None)])
    exact = alone.expected * wave(between)
    assert np.mean(np.abs(near.expected / exact - 1)) < 0.3 * np.mean(np.abs(alone.expected / exact - 1))
    assert "calibrated, 8 neighbours on h100-sxm vllm 1.0" in set(near.sources)
    assert np.all((near.low <= near.expected) & (near.expected <= near.high))


def test_residual_correction_vanishes_far_from_measured_shapes():
    own, columns, _ = table_of(wave)
    far = {**columns, "q_heads": columns["q_heads"] * 2.0**40}
    alone = expect("attention_decode", far, H100, own.implementation, [replace(own, residual=None)])
    names = (*own.residual.columns, "q_heads")
    points = np.column_stack([own.residual.points, np.full(len(own.residual.points), 32.0)])
    widened = replace(own, residual=replace(own.residual, columns=names, points=points))
    found = expect("attention_decode", far, H100, own.implementation, [widened])
    assert found.expected == pytest.approx(alone.expected, rel=5e-3)
    assert set(found.sources) == {"calibrated on h100-sxm vllm 1.0"}


def test_residual_survives_a_profile_round_trip(tmp_path):
    own, columns, _ = table_of(wave)
    path = tmp_path / "profile.yaml"
    path.write_text(to_yaml([Profile(device="h100-sxm", library="vllm", sources=(), fits=(own,))]))
    ((again,),) = (profile.fits for profile in read(path))
    before, after = (expect("attention_decode", columns, H100, own.implementation, [e]) for e in (own, again))
    assert after.expected == pytest.approx(before.expected, rel=1e-3)
    path.write_text(path.read_text().replace("columns: [batch, kv_len]", "columns: [batch, lanes]"))
    with pytest.raises(InputError) as error:
        read(path)
    known = "batch, kv_len, q_heads, kv_heads, head_dim, v_head_dim, window, loop, splits"
    problem = f"entries[0].residual.columns: must be some of {known}; got batch, lanes"
    assert str(error.value) == f"{path}: {problem}"


def test_kernels_that_ignore_the_window_take_full_attention_time():
    hidden, seen = (shapes("attention_prefill", q_len=8192, kv_len=8192, window=w) for w in (128, 0))
    full = seconds("attention_prefill", seen, variant="128")
    assert seconds("attention_prefill", hidden, variant="128 blind") == full
    assert seconds("attention_prefill", hidden, variant="128") < 0.5 * full


def test_tiles_of_prompts_have_the_rows_that_a_library_gives_them():
    columns = shapes("attention_prefill", 2, batch=1, q_len=96, kv_len=96, q_heads=32, kv_heads=8, head_dim=[64, 128])
    for variant, tiles in (
        ("192 packed width", [2 * 8, 3 * 8]), ("256 only", [32, 32]), ("16 packed only", [24 * 8, 24 * 8]),
    ):  # fmt: skip
        found = FAMILIES["attention_prefill"].features(columns, H100, IMPLEMENTATIONS["attention_prefill"], variant)
        assert found["waves"].shape[1] == 1
        assert found["waves"][:, 0] * 132 == pytest.approx(tiles)


def test_heads_that_go_alone_under_a_window_read_its_keys_again():
    windowed = shapes("attention_decode", batch=512, window=4096, kv_len=8192)
    apart, shared = (seconds("attention_decode", windowed, variant=v) for v in ("128 apart", "128"))
    assert apart > 1.5 * shared


def test_a_cache_is_cut_by_the_rule_of_the_library_by_hand():
    """TensorRT-LLM's XQA kernels: 128 keys or more a part, the root of 8 times as many parts, 8 waves of blocks."""
    columns = shapes("attention_decode", 5, batch=[1, 16, 512, 1, 512], kv_len=[8192, 65536, 65536, 64, 1024],
                     window=[0, 0, 0, 0, 128], q_heads=4, kv_heads=1)  # fmt: skip
    found = FAMILIES["attention_decode"].features(columns, H100, IMPLEMENTATIONS["attention_decode"], "32 rule")
    assert found["waves"][:, 0] * 132 == pytest.approx([23, 16 * 64, 512 * 2, 1, 512 * 2])
    assert found["keys"][:, 0] == pytest.approx([8192 / 23, 1024, 32768, 64, 128])  # a window is in one part of two
    assert found["busy"][-1, 0] * 132 == pytest.approx(512)
    assert np.all(np.isinf(found["split"][:, 1:]))


def cut(variant, **changes):
    """Parts of each cache, and the features."""
    count = max(len(np.atleast_1d(value)) for value in changes.values())
    columns = shapes("attention_decode", count, **changes)
    found = FAMILIES["attention_decode"].features(columns, H100, IMPLEMENTATIONS["attention_decode"], variant)
    assert np.all(np.isinf(found["split"][:, 1:]))
    return (columns["kv_len"] / found["keys"][:, 0]).tolist(), found


def test_a_cache_is_cut_by_the_rules_of_other_libraries_by_hand():
    """FlashAttention-3: 1.1 times the blocks of 128 keys, over 132 cores, are 1, 35 and 35 a part. FlashAttention-2: of
    264 places 128, or 2 x 128, are filled. SGLang: 132 cores are 792 for 4,096 keys, shared by 512 tiles.
    """
    one = {"q_heads": 4, "kv_heads": 1}
    assert cut("128 listed", batch=[1, 16, 2], kv_len=[8192, 4096, 32768], kv_heads=[1, 8, 8])[0] == [32, 1, 8]
    assert cut("128 listed", **one, kv_len=[2048, 2048], batch=1, head_dim=[64, 256])[0] == [11, 26]
    assert cut("128 tall waves", batch=[1, 16, 32], kv_len=[16384, 4096, 4096], kv_heads=[1, 8, 8])[0] == [128, 2, 1]
    assert cut("128 short triton gradual", batch=[1, 64], kv_len=[64, 4096])[0] == [8, 2]


def test_rows_that_are_made_of_heads_are_copied_where_they_are_not_in_that_order():
    found = cut("128 tall waves", batch=[1, 2, 2, 2, 2], kv_heads=[8, 1, 8, 32, 8], window=[0, 0, 0, 0, 1024])[1]
    assert found["turned"].tolist() == [False, False, True, False, False]
    assert found["split"][:, 0].tolist() == [1, 1, 1, 0, 0]  # no part of a cache that is not shared
    assert found["busy"][-1, 0] * 132 == pytest.approx(2 * 32)


def test_segments_are_of_the_whole_cache_and_most_are_empty_under_a_window():
    found = cut("128 triton segments", batch=[1, 1, 16, 17], kv_len=[65536, 64, 1024, 1024], window=[128, 0, 0, 0])[1]
    assert found["waves"][:, 0] * 132 == pytest.approx([8 * 16, 8 * 2, 128 * 16, 17 * 8])
    assert found["idle"][:, 0] * 132 == pytest.approx([0, 8 * 14, 0, 0])  # of 32 keys or more
    assert found["busy"][:, 0] * 132 == pytest.approx([8, 8 * 2, 128 * 16, 17 * 8])


def test_a_part_beyond_the_last_key_takes_less_than_others():
    decode, implementation, variant = (
        FAMILIES["attention_decode"],
        IMPLEMENTATIONS["attention_decode"],
        "128 triton segments",
    )
    features = decode.features(shapes("attention_decode", 2, batch=16, kv_len=[64, 512]), H100, implementation, variant)
    p = usual("attention_decode", implementation, variant) | {"overlap": 0.0, "resident": 1.0}
    all_alike, none = (decode.seconds(p | {"idle": idle}, features) for idle in (1.0, 0.0))
    ends = (p["tau_us"] + p["row_ns"] * 1e-3 * 4) * 1e-6
    assert all_alike - none == pytest.approx([128 * 14 / 132 * ends, 0])


def test_loop_working_set_is_the_sum_of_keys_queries_and_partial_results():
    """1,024 keys and values of 8 heads, queries and results of 32, and of each of 16 parts 32 sums of 4 bytes."""
    found = cut("128 triton segments", kv_len=1024, batch=1, loop=1)[1]
    assert found["reuse"].tolist() == [[1024 * 8 * 256 * 2 + 32 * 256 * 2 + 16 * 32 * 128 * 4]]


def test_blocks_of_masked_attention_get_larger_before_there_are_more_and_come_in_waves():
    """With 8 and 4 heads, 17 and 33 blocks of all threads a head: 136 are two waves of 132 cores, 132 one."""
    changes = {
        "q_heads": [8, 4, 1, 64],
        "kv_heads": [8, 4, 1, 64],
        "batch": [1, 1, 1, 32],
        "kv_len": [65536] * 3 + [64],
    }
    columns = shapes("attention_decode", 4, **changes)
    columns["kv_len"][2] = 600
    found = FAMILIES["attention_decode"].features(
        columns, H100, IMPLEMENTATIONS["attention_decode"], "32 shared rule masked"
    )
    assert columns["kv_len"] / found["keys"][:, 0] == pytest.approx([17, 33, 2, 1])  # 512 keys a turn of 1,024 threads
    assert found["waves"][:, 0] == pytest.approx([2, 1, 1, 4])  # 4 blocks of 256 threads are on a core
    assert found["filled"][:, 0] == pytest.approx([136 / 264, 1, 2 / 132, 2048 / 528 / 4])


def test_key_splits_share_tiles_round_robin_and_may_be_idle():
    """XQA makes 8 parts of 1,024 keys and 23 of 8,192, of which a window of 128 leaves one tile, or two of 64."""
    changes = {"batch": 1, "q_heads": 8, "kv_heads": 1, "kv_len": [1024, 8192, 8192], "window": [0, 0, 128]}
    for way, used, keys in (("dealt", [4, 23, 1], [256, 512, 128]), ("dealt64", [8, 23, 2], [128, 384, 64])):
        columns = shapes("attention_decode", 3, **changes)
        found = FAMILIES["attention_decode"].features(
            columns, H100, IMPLEMENTATIONS["attention_decode"], f"32 shared {way} masked"
        )
        assert found["waves"][:, 0] * 132 == pytest.approx([8, 23, 23])
        assert found["busy"][:, 0] * 132 == pytest.approx(used)
        assert found["keys"][:, 0].tolist() == keys
        assert found["passed"].tolist() == [0, 0, 0]


def test_masked_attention_counts_idle_cores():
    columns = shapes("attention_decode", 3, batch=1, kv_len=[1024, 1024, 128], q_heads=64, kv_heads=[4, 8, 33])
    found = FAMILIES["attention_decode"].features(
        columns, H100, IMPLEMENTATIONS["attention_decode"], "32 shared dealt masked worth"
    )
    assert found["masked"][:, 0].tolist() == [True, False, False]  # 4 x 32, 4 x 64 and 4 x 33 of 132 blocks
    assert found["waves"][:2, 0] * 132 == pytest.approx([2 * 132, 8 * 8])
    more = usual("attention_decode", IMPLEMENTATIONS["attention_decode"], "32 shared dealt masked worth")
    times = [
        FAMILIES["attention_decode"].seconds(more | {"masked_us": us, "summed_us": 1, "overlap": 0, "single": 1}, found)
        for us in (1, 4)
    ]
    assert times[1] - times[0] == pytest.approx([2 * 3e-6, 0, 0], abs=1e-12)


def test_generated_kernels_fill_the_device_once_with_parts_of_two_steps():
    found = cut("128 gen", batch=[1, 4, 16, 1], kv_len=[4096, 65536, 65536, 512], q_heads=32, kv_heads=8)
    assert found[0] == [8, 4, 1, 1]
    assert found[1]["keys"][:, 0].tolist() == [512, 16384, 65536, 512]


def test_parts_of_128_keys_or_more_fill_two_places_of_each_core():
    """Among 264 places, 8 tiles have 33 each, of 1,986 keys; 32 tiles have 8, 512 none to spare."""
    found = cut("128 filled", batch=[1, 1, 4, 64], kv_len=[1024, 65536, 65536, 4096], q_heads=32, kv_heads=8)[1]
    assert found["keys"][:, 0].tolist() == [128, 1986, 8192, 4096]
    assert found["busy"][:, 0] * 132 == pytest.approx([8 * 8, 8 * 33, 32 * 8, 512])


def test_tile_fixed_time_grows_with_heads_and_head_size():
    columns = shapes(
        "attention_decode", 3, batch=1, kv_len=64, kv_heads=1, q_heads=[1, 64, 64], head_dim=[64, 128, 256]
    )
    family, implementation = FAMILIES["attention_decode"], IMPLEMENTATIONS["attention_decode"]
    found = family.features(columns, H100, implementation, "128 one")
    assert found["rows"][:, 0].tolist() == [0.5, 64, 128]
    assert found["thin"].tolist() == [True, False, False]
    none, some = (
        family.seconds(
            usual("attention_decode", implementation, "128") | {"row_ns": ns, "overlap": 0, "single": 1}, found
        )
        for ns in (1, 11)
    )
    assert some - none == pytest.approx(1e-8 * found["rows"][:, 0], rel=1e-6)


def test_writing_a_token_to_the_cache_takes_a_block_of_up_to_512_threads():
    columns = shapes("attention_prefill", 3, batch=16, q_len=1024, kv_heads=[1, 4, 32])
    found = FAMILIES["attention_prefill"].features(columns, H100, IMPLEMENTATIONS["attention_prefill"], "64")
    assert found["stores"] == pytest.approx(np.array([128, 512, 512]) * 16 * 1024 / (2048 * 132))
    other = Implementation(library="sglang", dtype="bf16", kv_dtype="bf16")
    assert not np.any(FAMILIES["attention_prefill"].features(columns, H100, other, "64")["stores"])


def test_heads_of_another_kernel_are_cut_as_suits_them():
    columns = shapes("attention_decode", 3, kv_len=65536, batch=1, q_heads=[1, 4, 64], kv_heads=1)
    found = FAMILIES["attention_decode"].features(columns, H100, IMPLEMENTATIONS["attention_decode"], "32 shared one")
    assert np.isfinite(found["split"][:, 1:]).all(axis=1).tolist() == [True, False, True]
    assert found["single"].tolist() == [True, False, True]


@pytest.mark.parametrize(
    ("variant", "tiles"),
    [
        ("waves fixed", [16, 16, 16, 8 * 8, 10 * 8]),  # clusters of two tiles: nine rows of them take ten
        ("persistent narrow", [16, 16, 16, 8 * 8, 9 * 8]),
        ("waves sm89", [16, 16, 2 * 8, 8 * 8, 9 * 8]),
        ("waves rowwise", [16, 2 * 16, 2 * 16, 8 * 8, 9 * 8]),
        ("waves sm100", [8, 8, 2 * 8, 8 * 8, 10 * 8]),
    ],
)
def test_sizes_decide_the_tile_where_a_library_has_it_so(variant, tiles):
    columns = shapes("gemm", 5, M=np.array([16.0, 64.0, 65.0, 1000.0, 1025.0]), N=1024, K=4096)
    found = FAMILIES["gemm"].features(columns, H100, Implementation(library="vllm", dtype="fp8"), variant)
    assert found["tiles"][:, 0] * 132 == pytest.approx(tiles)


def test_ada_tiles_depend_on_columns():
    columns = shapes("gemm", 3, M=1024, N=np.array([4096.0, 8192.0, 16384.0]), K=4096)
    found = FAMILIES["gemm"].features(columns, H100, Implementation(library="vllm", dtype="fp8"), "waves sm89")
    assert found["tiles"][:, 0] * 132 == pytest.approx([8 * 32, 4 * 64, 8 * 128])


def deepgemm(m: int, n: int, k: int, cores: int) -> int:
    """Tiles of the layout with the fewest cycles, candidate by candidate and in whole numbers, as DeepGEMM counts."""
    best, least = 0, math.inf
    few = [size for size in (16, 32) if m <= size]
    for down, right in ((1, 1), (1, 2), (2, 1)):
        for block_m in (64, 128, *few, 256):
            for block_n in (*range(16, 129, 16), 144, 160, 192):
                tiles = -(-m // block_m) * -(-n // block_n)
                waves = -(-tiles // cores)
                if (block_m > 128 and block_n > 128) or (down * right > 1 and waves == 1):
                    continue
                ends = 2 * block_m * block_n
                l2 = (k * (block_m // right + block_n // down) + ends) * tiles // int(min(64 * cores, 8e6 / 1.3e3))
                l1 = (k * (block_m + max(64, block_m) + 2 * block_n) + 2 * ends) * tiles // (128 * cores)
                cycles = int(max(l1, l2) / (tiles / (waves * cores)))
                if cycles < least:
                    best, least = tiles, cycles
    return best


@pytest.mark.parametrize("m", [1, 17, 64, 192, 256, 1024, 4096])
@pytest.mark.parametrize("n", [768, 2112, 4096, 16384])
def test_deepgemm_tile_choice_minimizes_cycles(m, n):
    columns = shapes("gemm", 1, M=float(m), N=float(n), K=7168)
    found = FAMILIES["gemm"].features(
        columns, H100, Implementation(library="sglang", dtype="fp8_block"), "waves fewest"
    )
    assert found["tiles"][0, 0] * 132 == pytest.approx(deepgemm(m, n, 7168, 132))


def test_a_large_tile_of_one_wave_spills():
    """The tile is not that of 192 rows, and two waves share what they load."""
    gemm, implementation = FAMILIES["gemm"], Implementation(library="sglang", dtype="fp8_block")
    p = usual("gemm", implementation, "waves fewest")
    columns = shapes("gemm", 3, M=np.array([192.0, 256.0, 512.0]), N=16384, K=16384)
    features = gemm.features(columns, H100, implementation, "waves fewest")
    assert features["spills"][:, 0].tolist() == [False, True, False]
    plain = gemm.seconds({**p, "spill": 1}, features)
    compute = 2 * 256 * 16384 * 16384 / (128 / 132) / 1978.9e12 / p["alpha"] + 1e-6 * p["tau_us"]
    later = gemm.seconds(p, features) / plain
    assert later[[0, 2]].tolist() == [1, 1]
    assert 1.5 < later[1] < 3
    assert gemm.seconds(p, features)[1] == pytest.approx(3 * compute, rel=0.15)


def test_coarse_tiles_have_64_rows_at_least_and_cut_k_into_up_to_16_parts():
    gemm, implementation = FAMILIES["gemm"], Implementation(library="vllm", dtype="bf16")
    few, many = (shapes("gemm", M=m, N=1024, K=4096) for m in (16, 64))
    alike = [gemm.features(c, H100, implementation, "persistent coarse")["tiles"] * 132 for c in (few, many)]
    assert alike[0].tolist() == alike[1].tolist()
    assert (alike[0].min(), alike[0].max()) == pytest.approx((1024 / 256, 1024 / 64 * 16))


def test_clocks_fall_where_a_kernel_lasts_by_hand():
    gemm, implementation = FAMILIES["gemm"], Implementation(library="vllm", dtype="bf16")
    p = {**usual("gemm", implementation, "persistent"), "alpha": 0.75, "hot": 0.2, "start_us": 0.3}
    features = gemm.features(
        shapes("gemm", 2, M=[1024.0, 65536.0], N=16384, K=16384), H100, implementation, "persistent"
    )
    longer = gemm.seconds(p, features) / gemm.seconds({**p, "hot": 0}, features) - 1
    lasting = 2 * np.array([1024, 65536]) * 16384**2 / 989.4e12 / p["alpha"]
    assert longer == pytest.approx(0.2 * lasting / (lasting + 1e-3), rel=0.1)


def test_a_loop_outgrows_the_cache_as_gradually_as_it_was_measured_to():
    gemm, implementation = FAMILIES["gemm"], Implementation(library="vllm", dtype="bf16")
    p = {**usual("gemm", implementation, "persistent"), "first_us": 0, "eta": 1, "eta_x": 1}
    weights = np.array([0.8, 0.9, 1.1, 1.2]) * H100.l2
    columns = shapes("gemm", 4, M=1, N=weights / 2 / 8192, K=8192, loop=1)
    features = gemm.features(columns, H100, implementation, "persistent")
    assert uncached_fraction(features["lasting"], H100.l2, 1, 0.4) == pytest.approx([0, 0.25, 0.75, 1], abs=0.01)
    abrupt, gradual = (gemm.seconds({**p, "width": width}, features) for width in (0.1, 0.6))
    assert np.sign(gradual - abrupt).tolist() == [1, 1, -1, -1]
    late = gemm.seconds({**p, "width": 0.1, "first_us": 9}, features) - abrupt
    assert late[:2].tolist() == [0, 0]
    assert late[2:] == pytest.approx(9e-6, rel=0.1)


@pytest.mark.parametrize(("device", "dtype", "most"), [
    ("rtx-3090", "bf16", 71), ("rtx-4090", "fp16", 165.2), ("rtx-4090", "fp8", 330.3), ("rtx-4090", "int8", 660.6),
    ("rtx-5090", "fp8", 419), ("rtx-5090", "int8", 838),
    ("h100-sxm", "bf16", 989.4), ("b300", "bf16", 2250),
])  # fmt: skip
def test_cards_that_add_up_at_half_their_rate_lose_nothing_more(device, dtype, most):
    gemm, implementation, own = FAMILIES["gemm"], Implementation(library="vllm", dtype=dtype), find_device(device)
    features = gemm.features(shapes("gemm", M=16384, N=16384, K=16384), own, implementation, "persistent")
    p = {**usual("gemm", implementation, "persistent"), "hot": 0, "alpha": 0.6, "tau_us": 0.01, "sharp": 12}
    reached = 2 * 16384**3 / gemm.seconds(p, features) / 1e12
    halved = device.startswith("rtx") and dtype != "int8"
    assert reached == pytest.approx(most * (1 if halved else 0.6), rel=0.05)


def test_a_search_begins_again_where_there_are_two_valleys():
    pytest.importorskip("scipy")

    class Valleys(type(FAMILIES["elementwise"])):
        parameters = (
            FittedParameter(name="place", prior=1, low=0.01, high=10, meaning="of a valley", restart_factor=0.2),
        )

        def seconds(self, p, features):
            away = np.log(p["place"])
            return np.exp(features["one"] * (0.3 + away**2 + 0.698 * away**3))  # flat at 1, nothing at 0.2

    one = np.linspace(1, 2, 200)
    found = fit_parameters(Valleys(), {"one": one}, np.ones(200), priors={"place": 1.3})
    assert found.parameters["place"] == pytest.approx(0.2, rel=0.02)
    assert found.loss < 0.01


def test_quantization_takes_its_rows_and_its_bytes_by_hand():
    """A block of threads a row: what the rows take is shared by cores, whatever their width."""
    gemm, implementation = FAMILIES["gemm"], Implementation(library="vllm", dtype="fp8")
    p = usual("gemm", implementation, "waves fixed")
    features = gemm.features(
        shapes("gemm", 2, M=np.array([256.0, 8192.0]), N=256, K=512), H100, implementation, "waves fixed"
    )
    bare = gemm.seconds({**p, "row_us": 0, "quantize_us": 0}, features)
    rows = 1e-6 * p["row_us"] * np.array([256, 8192]) / 132
    assert gemm.seconds(p, features) - bare == pytest.approx(rows + 1e-6 * p["quantize_us"])
    moved = gemm.seconds(p, features) - gemm.seconds({**p, "passes": 0}, features)
    assert moved == pytest.approx(p["passes"] * np.array([256, 8192]) * 512 * 3 / H100.bandwidth)


def test_cached_operands_are_quantized_at_cache_bandwidth():
    gemm, implementation = FAMILIES["gemm"], Implementation(library="vllm", dtype="fp8")
    p = usual("gemm", implementation, "waves fixed")
    columns = shapes("gemm", 1, M=64.0, N=256.0, K=512.0) | {"loop": np.ones(1), "private": np.zeros(1)}
    features = gemm.features(columns, H100, implementation, "waves fixed")
    apart = [gemm.seconds(q, features) - gemm.seconds({**q, "passes": 0}, features) for q in (p, {**p, "eta_x": 0})]
    assert apart[1] / apart[0] == pytest.approx(p["lambda"])  # profiles of before have it all from memory


def test_tiles_of_64_heads_take_as_long_however_few_there_are():
    """As FlashMLA's and those of TensorRT-LLM's latent attention; of 128 heads there are two, each with all keys."""
    heads = shapes("attention_decode", 4, batch=64, kv_len=8192, q_heads=[2, 16, 64, 128], kv_heads=1, head_dim=576,
                   v_head_dim=512)  # fmt: skip
    found = FAMILIES["attention_decode"].features(heads, H100, IMPLEMENTATIONS["attention_decode"], "128 tall one")
    assert found["waves"][:, 0] * 132 == pytest.approx([64, 64, 64, 128])
    full = 2 * 64 * 64 * 8192 * (576 + 512) / 989.4e12
    assert found["padded"] == pytest.approx([full, full, full, 2 * full], rel=1e-2)


@pytest.mark.parametrize("variant", ["128", "128 tall", "128 narrow", "128 gen", "128 listed"])
def test_more_heads_than_the_largest_tile_takes_are_in_several(variant):
    heads = shapes("attention_decode", 3, batch=64, kv_len=8192, q_heads=[128, 129, 256], kv_heads=1, head_dim=576,
                   v_head_dim=512)  # fmt: skip
    one, more, twice = seconds("attention_decode", heads, variant=variant)
    assert one <= more <= twice < 2.5 * one


def test_profiles_without_newer_parameters_load_with_defaults(tmp_path):
    one = kernel_fit("attention_decode")
    path = tmp_path / "profile.yaml"
    path.write_text(to_yaml([Profile(device="h100-sxm", library="vllm", sources=(), fits=(one,))]))
    path.write_text(re.sub(r"(ramp_us|overlap|part_us): [\d.]+,?\s*", "", path.read_text()))
    assert "ramp_us" not in path.read_text()
    (found,) = read(path)[0].fits
    assert found.parameters == {**one.parameters, "ramp_us": 0, "overlap": 0, "part_us": 0}
    path.write_text(to_yaml([Profile(device="h100-sxm", library="vllm", sources=(), fits=(found,))]))
    assert read(path)[0].fits == (found,)
    kept = path.read_text()
    path.write_text(kept.replace("ramp_us: 0.0", "ramp_us: 61"))
    with pytest.raises(InputError, match=r"ramp_us: must be 0\.05 to 60; got 61"):
        read(path)


def test_keys_that_are_always_cut_into_as_many_parts_take_no_less_where_they_are_few():
    few, many = (shapes("attention_decode", batch=64, kv_len=kv) for kv in (64, 512))
    always, best = ([seconds("attention_decode", s, variant=v)[0] for s in (few, many)] for v in ("128 always", "128"))
    assert always[0] > 0.85 * always[1]
    assert best[0] < 0.7 * best[1]
    assert always[0] > 3 * best[0]


def test_kernels_without_expert_filtering_compute_all_copies_of_a_token():
    def times(variant, **changes):
        columns = shapes("moe", 5, tokens=16384, experts=256, ep=[1, 2, 8, 16, 32], **changes)
        found = seconds("moe", columns, variant=variant)
        return found / found[0]

    assert times("whole") == pytest.approx([1, 1, 1, 0.5, 0.25], rel=0.1)  # 8 copies: each of 8 devices has one
    assert np.all(times("")[1:] < [0.6, 0.2, 0.15, 0.1])  # with a start that stays
    assert np.all(np.diff(times("whole", skew=1.2)) < 0)


@pytest.mark.parametrize(
    ("variant", "tokens", "ep", "rows"),
    [
        ("triton", 128, 1, 16),  # as many tokens as experts
        ("triton", 144, 1, 64),
        ("tokens", 32, 1, 16),
        ("tokens", 96, 1, 32),
        ("tokens", 512, 1, 64),
        ("tokens", 1024, 1, 128),
        ("mean", 272, 1, 32),  # 17 rows an expert
        ("mean", 512, 1, 32),
        ("mean", 528, 1, 64),
        ("mean", 64, 8, 32),  # 4 rows an expert, of 32 copies of tokens: those of other devices' experts count
        ("marlin", 112, 1, 8),  # 7 rows an expert
        ("marlin", 128, 1, 16),
        ("marlin", 640, 1, 48),
        ("marlin", 4096, 1, 64),
        ("tall", 16, 1, 128),
    ],
)
def test_kernel_tiles_follow_their_library(variant, tokens, ep, rows):
    columns = shapes("moe", tokens=tokens, ep=ep)
    found = FAMILIES["moe"].features(columns, H100, IMPLEMENTATIONS["moe"], variant)
    an_expert = tokens * 8 / 128
    assert (found["up padded"] / found["up ops"])[0, 0] == pytest.approx(rows * np.ceil(an_expert / rows) / an_expert)
    weights = np.ceil(an_expert / rows) * 128 / ep * 2 * 1536 * 4096 * 2
    assert found["up l2"][0, 0] * H100.bandwidth > weights  # that every tile reads, besides its rows


def test_rows_that_the_cache_holds_are_passed_over_sooner():
    family = FAMILIES["moe"]
    few, many = (shapes("moe", tokens=tokens, hidden=1024, inter=256) for tokens in (64, 65536))
    for columns, sooner in ((few, True), (many, False)):
        features = family.features(columns, H100, IMPLEMENTATIONS["moe"], "")
        none, all_of_it = (
            family.seconds(family.default_parameters(IMPLEMENTATIONS["moe"], H100) | {"held": held}, features)
            for held in (0, 1)
        )
        assert (all_of_it < none) == sooner


def test_untuned_kernels_rank_last():
    moe, asked = kernel_fit("moe", device="h200-sxm"), Implementation(library="vllm", dtype="bf16", kernel="another")
    slow, usual_one = (
        replace(moe, variant=v, implementation=replace(moe.implementation, kernel=v)) for v in ("tall", "tokens")
    )
    assert select_fits("moe", H100, asked, [replace(slow, rows=900), usual_one]).fits == (usual_one,)
    assert select_fits("moe", H100, slow.implementation, [slow, usual_one]).fits == (slow,)


def test_the_bound_of_a_few_tokens_has_the_experts_that_no_routing_avoids():
    asked = {"tokens": 4, "topk": 8, "experts": 128, "hidden": 4096, "inter": 1536}
    family, implementation = FAMILIES["moe"], IMPLEMENTATIONS["moe"]
    even, lucky = (family.bound(shapes("moe", skew=skew, **asked), H100, implementation)[0] for skew in (0, 1.2))
    expert = 3 * 4096 * 1536 * 2
    assert even == pytest.approx((32 * expert + 4 * 4 * 4096) / H100.bandwidth, rel=1e-3)
    assert lucky == pytest.approx((8 * expert + 4 * 4 * 4096) / H100.bandwidth, rel=1e-3)
    assert family.bound(shapes("moe", skew=1.2, **asked | {"tokens": 16}), H100, implementation)[0] > 2 * lucky


def test_experts_without_a_gate_are_known_by_their_sizes_where_a_table_does_not_say_it(tmp_path):
    path = tmp_path / "moe.csv"
    same = "fp8,64,{hidden},1856,6,128,10\n"
    path.write_text(
        "gpu,framework,version,dtype,tokens,hidden,inter,topk,experts,time_us\n"
        + "".join(
            f"H100-SXM,{framework},{version},{same.format(hidden=hidden)}"
            for framework, version, hidden in (
                ("vllm", "0.24.0", 2688), ("vllm", "0.19.0", 2688), ("vllm", "0.24.0", 2048), ("trtllm", "1.3", 2688),
            )
        )
    )  # fmt: skip
    gated = np.concatenate([rows.shapes["gated"][np.argsort(rows.places)] for rows in read_rows(path).rows])
    assert gated.tolist() == [1, 0, 1, 1]  # trtllm says it itself


def test_mxfp4_experts_measured_on_one_device_ignore_the_ep_column(tmp_path):
    path = tmp_path / "moe.csv"
    path.write_text(
        "gpu,framework,version,kernel,dtype,tokens,hidden,inter,topk,experts,ep,time_us\n"
        + "".join(
            f"H200-SXM,vllm,0.19.0,{kernel},w4a16_mxfp4,64,2880,2880,4,128,8,700\n" for kernel in ("vllm_mxfp4_moe", "")
        )
    )
    assert {rows.implementation.kernel: rows.shapes["ep"].tolist() for rows in read_rows(path).rows} == {
        "vllm_mxfp4_moe": [1], "": [8],
    }  # fmt: skip


def test_devices_that_share_a_host_slow_each_other_down():
    l40s, implementation = find_device("l40s"), IMPLEMENTATIONS["collectives"]
    family = FAMILIES["collectives"]

    def each(device, count):
        """A device's bytes in a second."""
        columns = shapes("collectives", num_gpus=count, bytes=1e9)
        moved = 2 * (count - 1) / count * 1e9
        return moved / family.seconds(p, family.features(columns, device, implementation, "ring"))

    p = family.default_parameters(implementation, H100) | {"own": 0}

    assert each(l40s, 8) < 0.4 * each(l40s, 2)
    assert each(H100, 8) == pytest.approx(each(H100, 2), rel=0.05)


def test_collectives_read_and_write_the_device_share_in_memory():
    family, implementation = FAMILIES["collectives"], IMPLEMENTATIONS["collectives"]
    columns = shapes("collectives", num_gpus=2, bytes=1e9)

    def longer(device, implementation=implementation):
        """How many times as long it takes with a share of its own as without, half of what it sends and receives."""
        features = family.features(columns, device, implementation, "ring")
        with_own, without = (
            family.seconds(family.default_parameters(implementation, H100) | {"own": own}, features) for own in (0.5, 0)
        )
        return (with_own / without).item()

    assert longer(H100) == pytest.approx(1.25, rel=0.01)
    assert longer(find_device("l40s")) == 1  # over a host, which its memory does not wait for
    assert longer(H100, replace(implementation, kernel="nccl send_recv")) == 1


def test_a_protocol_between_the_short_and_the_long_one_helps_messages_between():
    family, implementation = FAMILIES["collectives"], IMPLEMENTATIONS["collectives"]
    columns = shapes("collectives", 3, bytes=np.array([1e3, 2e6, 1e9]))
    p = family.default_parameters(implementation, H100) | {"sharp": 1, "own": 0}
    two, three = (
        family.seconds(
            {q.name: p[q.name] for q in family.parameters_of(v)}, family.features(columns, H100, implementation, v)
        )
        for v in ("ring", "ring between")
    )
    start = (p["start_us"] + 7 * p["hop_us"] + p["between_us"]) * 1e-6
    assert three[1] == pytest.approx(start + 2 * 7 / 8 * 2e6 / 450e9 / p["beta"] / p["between"])
    assert three[1] < 0.9 * two[1]
    assert three[[0, 2]].tolist() == two[[0, 2]].tolist()


def test_switches_that_add_take_long_messages_of_types_that_they_add_by_hand():
    family, implementation = FAMILIES["collectives"], IMPLEMENTATIONS["collectives"]
    columns = shapes("collectives", 2, bytes=np.array([1e6, 1e9]))

    def found(device, implementation=implementation, variant="ring switched"):
        p = {q.name: family.default_parameters(implementation, H100)[q.name] for q in family.parameters_of(variant)} | {
            "sharp": 1
        }
        return family.seconds(p, family.features(columns, device, implementation, variant))

    p, ring = family.default_parameters(implementation, H100), found(H100, variant="ring")
    added = p["switched_us"] * 1e-6 + (1 + 1 / 8) * 1e9 / 450e9 / p["switched"]
    assert found(H100).tolist() == [ring[0], pytest.approx(added)]
    assert added < ring[1]
    for other in ({"device": find_device("a100-sxm-80gb")}, {"implementation": replace(implementation, dtype="int8")},
                  {"implementation": replace(implementation, kernel="nccl alltoall")}):  # fmt: skip
        asked = {"device": H100} | other
        assert np.array_equal(found(**asked), found(**asked, variant="ring"))


def test_kernels_that_move_bytes_are_expected_from_all_generations_with_such_memory_and_from_all_hosts():
    implementation = Implementation(library="pytorch", dtype="fp32", kernel="eager add")
    own = [
        kernel_fit("elementwise", device=d, implementation=implementation)
        for d in ("p100-pcie-16gb", "t4", "a100-pcie-40gb", "mi100")
    ]
    for one, start in zip(own, (44, 25, 3, 17), strict=True):  # 5 of which are the device's at most
        one.parameters["start_us"] = start
    found = select_fits("elementwise", find_device("v100-pcie-32gb"), implementation, own)
    starts = {e.device: e.parameters["start_us"] for e in found.fits}
    host = (20 + 12) / 2  # the median of 39, 20, 0 and 12
    assert starts == {"p100-pcie-16gb": 5 + host, "a100-pcie-40gb": 3 + host}
    found = select_fits("elementwise", find_device("v100-pcie-32gb"), replace(implementation, kernel="add"), own)
    starts = {e.device: e.parameters["start_us"] for e in found.fits}
    assert starts == {"p100-pcie-16gb": 5, "a100-pcie-40gb": 3}  # in a graph, no host launches it


def test_a_core_takes_as_long_for_a_row_as_it_is_long():
    family = FAMILIES["elementwise"]
    columns = shapes("elementwise", 2, rows=1, bytes=1, cols=[1, 100_000])
    p = {
        **family.default_parameters(IMPLEMENTATIONS["elementwise"], H100),
        "start_us": 2.0,
        "element_ns": 0.2,
        "row_ns": 1e-9,
        "sharp": 20,
    }
    for variant, times in (("", (2e-6, 2e-6)), ("long", (2.0002e-6, 22e-6))):
        features = family.features(columns, H100, IMPLEMENTATIONS["elementwise"], variant)
        assert family.seconds(p, features).tolist() == pytest.approx(times)
    assert family.covers_variant("long", columns)
    assert not family.covers_variant("long", shapes("elementwise", cols=8192))
    assert family.covers_variant("", columns)


def test_host_launched_and_device_launched_kernels_prefer_fits_of_their_own_class():
    eager, other = (Implementation(library=name, dtype="fp32", kernel=kernel) for name, kernel in
                    (("pytorch", "eager softmax"), ("triton", "softmax")))  # fmt: skip
    own = [kernel_fit("elementwise", device="a100-pcie-40gb", implementation=eager, rows=900),
           kernel_fit("elementwise", device="h200-sxm", implementation=other, rows=56)]  # fmt: skip
    own[0].parameters["start_us"] = 33
    for device in ("h200-sxm", "h100-sxm", "a100-pcie-40gb"):
        assert [e.implementation for e in select_fits("elementwise", find_device(device), eager, own).fits] == [eager]
        asked = replace(other, library="vllm")
        assert [e.implementation for e in select_fits("elementwise", find_device(device), asked, own).fits] == [other]
    (alone,) = select_fits("elementwise", find_device("a100-pcie-40gb"), replace(other, library="vllm"), own[:1]).fits
    assert alone.parameters["start_us"] == 5
    assert alone.trend is None
    assert (
        expect("elementwise", shapes("elementwise"), find_device("a100-pcie-40gb"), eager, own[:1]).expected.min()
        >= 33e-6
    )
    for unknown, start in (("eager tanh", 33), ("tanh", 5)):  # as an addition
        add = [kernel_fit("elementwise", device="t4", implementation=replace(eager, kernel="eager add"))]
        add[0].parameters["start_us"] = 33
        (as_add,) = select_fits("elementwise", find_device("t4"), replace(eager, kernel=unknown), add).fits
        assert as_add.parameters["start_us"] == start


@pytest.mark.parametrize(
    ("device", "factor"),
    [("h100-sxm", 1), ("h200-sxm", 3.352 / 4.8), ("b200", 1), ("l40s", (3352 / 132) / (864 / 142))],
)
def test_an_l2_cache_goes_with_the_cores_of_its_architecture_or_before_another_kind_of_memory(device, factor):
    known = kernel_fit("gemm")
    assert scaled_parameters(find_device(device), known)["lambda"] == pytest.approx(known.parameters["lambda"] * factor)


@pytest.mark.parametrize(
    ("own", "device", "needed"),
    [
        ("a100-sxm-80gb", "a100-pcie-80gb", 400 / 300),
        ("h100-sxm", "h100-pcie", (756.4 / 350) / (989.4 / 700) / (1980 / 1755) ** 2),
        ("h100-sxm", "h200-sxm", 1),
        ("a100-sxm-80gb", "h100-sxm", 1),  # of another generation, whose chips need less
        ("rtx-3090", "rtx-a6000", 1),  # matrix units at half the rate do not say what the others draw
    ],
)
def test_a_sibling_with_less_power_for_as_many_products_has_a_lower_clock(own, device, needed):
    known = kernel_fit("gemm", device=own)
    known.parameters.update({"alpha": 0.8, "tau_us": 1.0})
    found = scaled_parameters(find_device(device), known)
    clocks = find_device(own).clock / find_device(device).clock
    assert found["alpha"] == pytest.approx(0.8 / needed ** (1 / 3), rel=2e-3)
    assert found["tau_us"] == pytest.approx(clocks * needed ** (1 / 3), rel=2e-3)


@pytest.mark.parametrize("device", ["gb300", "rtx-pro-6000-server", "h100-pcie", "a100-pcie-80gb"])
def test_higher_clock_never_slows_matrix_products_down(device):
    implementation, tokens = Implementation(library="vllm", dtype="bf16"), np.array([16.0, 256, 4096, 16384])
    shapes = {"M": tokens, **dict.fromkeys(("N", "K"), np.full(4, 8192.0)), "loop": 0 * tokens, "private": 0 * tokens,
              "batch": np.ones(4)}  # fmt: skip
    faster = device_of(load_hardware(device, ["clock.boost=1.2x"]))
    times = [expect("gemm", shapes, d, implementation, shipped()).expected for d in (faster, find_device(device))]
    assert np.all(times[0] <= times[1] * (1 + 1e-9))


def test_an_l2_cache_without_stacked_memory_is_as_fast_as_was_measured_of_both_generations_but_not_of_an_earlier_one():
    older, newer = kernel_fit("gemm", device="rtx-3090"), kernel_fit("gemm", device="l40s")
    cores = (936 / 82) / (864 / 142)
    to_newer, to_older = (
        scaled_parameters(find_device("l40s"), older),
        scaled_parameters(find_device("rtx-3090"), newer),
    )
    assert to_newer["lambda"] == pytest.approx(
        older.parameters["lambda"] * cores * (14.7 * 2.52) / (17 * 1.695), rel=2e-3
    )
    assert to_older["lambda"] == pytest.approx(newer.parameters["lambda"] / cores, rel=2e-3)
    assert (
        scaled_parameters(find_device("arc-pro-b60"), older)["lambda"] == older.parameters["lambda"]
    )  # of which it was not


def test_l2_bandwidth_scales_by_both_device_files():
    known = kernel_fit("gemm", device="mi355x")
    own, device = (8000 / (8 * 16 * 128 * 2.4)), (5324.8 / (8 * 2048 * 2.1))
    assert scaled_parameters(find_device("mi300x"), known)["lambda"] == pytest.approx(
        known.parameters["lambda"] * own / device, rel=2e-3
    )


@pytest.mark.parametrize(
    ("device", "hot"),
    [
        ("h20-sxm", 0),  # 148 TOP/s and 400 W for 989 and 700
        ("h200-sxm", 0.2),
        ("h100-pcie", 0.2),  # needs more of its 350 W: not slowed less, and how much more was not measured
        ("a100-sxm-80gb", 0.2),  # less, but of an earlier generation
        ("mi300x", 0.2),
    ],
)
def test_a_power_limit_slows_less_what_multiplies_less_for_a_watt(device, hot):
    known = kernel_fit("gemm")
    known.parameters["hot"] = 0.2
    assert scaled_parameters(find_device(device), known)["hot"] == pytest.approx(hot)


def test_where_power_does_not_tell_the_clock_is_higher_for_what_feeds_products_too():
    """From an L40S (362 TOP/s, 350 W, 2.52 GHz) to an RTX PRO 6000 Server Edition (467.8, 600 and 2.43)."""
    known = kernel_fit("gemm", device="l40s")
    known.parameters.update({"alpha": 0.8, "hot": 0.3, "tau_us": 1.0})
    server = find_device("rtx-pro-6000-server")
    needed = (467.8 / 600) / (362.05 / 350) * (2.43 / 2.52) ** 2
    faster = 0.95 / 0.8
    found = scaled_parameters(server, known)
    l2 = (864 / (142 * 14.7 * 2.52)) / (1597 / (188 * 17.7 * 2.43))  # as measured of both generations
    assert found["alpha"] == pytest.approx(0.95)
    assert found["lambda"] == pytest.approx(known.parameters["lambda"] * l2 * faster, rel=1e-3)
    assert found["tau_us"] == pytest.approx(2.52 / 2.43 / faster)
    assert found["hot"] == pytest.approx(max(1.3 * needed * faster - 1, 0), abs=1e-3)
    assert scaled_parameters(find_device("l4"), known)["alpha"] < 0.8  # of which each watt does more
    for name, reached in (("attention_prefill", 0.95), ("moe", 0.95), ("attention_decode", 0.8)):
        known = kernel_fit(name, device="l40s")
        known.parameters.update({"alpha": 0.8})
        assert scaled_parameters(server, known)["alpha"] == pytest.approx(reached, rel=0.02)  # which waits for memory


@pytest.mark.parametrize(
    ("own", "device", "factor"),
    [
        ("h100-sxm", "l40s", 2),
        ("l40s", "b200", 1 / 2),
        ("h100-sxm", "b200", 1),
        ("l40s", "t4", 1),
        ("l40s", "mi300x", 1),
    ],
)
def test_of_a_cache_in_halves_half_is_of_use(own, device, factor):
    known = kernel_fit("gemm", device=own)
    found = scaled_parameters(find_device(device), known)
    assert {n: found[n] / known.parameters[n] for n in ("eta", "eta_x")} == {"eta": factor, "eta_x": factor}


def test_fixed_times_are_as_many_clocks_but_over_a_host_and_of_another_maker():
    known, far = kernel_fit("attention_decode"), kernel_fit("collectives")

    def quotients(kernel_fit, device):
        found = scaled_parameters(find_device(device), kernel_fit)
        return {
            n: found[n] / value for n, value in kernel_fit.parameters.items() if n not in ("lambda", "eta", "alpha")
        }

    clocks = pytest.approx(1980 / 1410)
    timed = quotients(known, "a100-sxm-80gb")
    assert {n for n, q in timed.items() if q == clocks} == {n for n in timed if n.endswith(("_us", "_ns"))}
    assert {q for q in timed.values() if q != clocks} == {1}
    assert quotients(far, "a100-sxm-80gb")["hop_us"] == clocks
    for entry_, device in ((far, "l40s"), (known, "mi300x"), (known, "h20-sxm")):  # its clock is not known
        assert set(quotients(entry_, device).values()) == {1}


def test_exponentials_take_as_many_clocks_however_fast_matrices_are_multiplied():
    known = kernel_fit("attention_prefill")

    def quotient(device):
        return scaled_parameters(find_device(device), known)["softmax"] / known.parameters["softmax"]

    assert quotient("b200") == pytest.approx((2250 / 148 / 1965) / (989.4 / 132 / 1980))
    assert quotient("h20-sxm") == pytest.approx((148 / 78) / (989.4 / 132))
    assert quotient("h200-sxm") == pytest.approx(1)
    assert quotient("a100-sxm-80gb") == 1  # hides less of them
    known = kernel_fit("attention_prefill", device="b200")  # which does half as many in a clock
    assert quotient("b300") == pytest.approx((1965 / 2032) / 2)


def test_what_ifs_do_not_change_cache_and_in_flight_bytes_per_core():
    known = kernel_fit("attention_decode")
    for change, factor in {"cores.count=2x": 2, "memory.bandwidth=2x": 1 / 2}.items():
        found = scaled_parameters(device_of(load_hardware("h100-sxm", [change])), known)
        both = {name: factor * known.parameters[name] for name in ("kappa", "lambda")}
        assert found == pytest.approx(known.parameters | both)


@given(rows=st.integers(1, 5000), experts=st.integers(1, 300))
def test_tiles_of_rows_that_are_shared_out_by_brute_force(rows, experts):
    own = [rows // experts + (i < rows % experts) for i in range(experts)]
    found = even_tiles(np.array([float(rows)]), np.array([float(experts)]))
    assert found[0] == pytest.approx([sum(-(-each // tile) for each in own) for tile in TILES])


def test_experts_that_random_choices_all_but_reach_have_no_further_tile():
    """32 rows and a trifle get no second tile of 32: 1024 x 4 choices among 128 experts stay within 2e-13."""
    every, most = (shapes("moe", tokens=1024, topk=4, experts=128, reached=n) for n in (0, 128 * (1 - 1e-13)))
    assert seconds("moe", most, variant="mean") == pytest.approx(seconds("moe", every, variant="mean"))


@pytest.mark.parametrize("name", ["gemm", "attention_prefill", "attention_decode", "moe"])
@given(cores=st.sampled_from([2, 3, 4, 8]), size=st.floats(0.02, 8))
def test_more_cores_never_slow_a_kernel_down(name, cores, size):
    """Except where work is split for the cores, which costs a few more blocks."""
    grown = GROWS[name][0]
    columns = shapes(name, **{grown: max(1, round(SHAPES[name][grown] * size))})
    more = device_of(load_hardware("h100-sxm", [f"cores.count={cores}x"]))
    one, other = (
        expect(name, columns, device, IMPLEMENTATIONS[name], [kernel_fit(name)]).expected[0] for device in (H100, more)
    )
    assert other <= 1.05 * one


def test_matrix_units_of_a_what_if_do_not_speed_up_exponentials():
    known = kernel_fit("attention_prefill")
    faster = device_of(load_hardware("h100-sxm", ["matrix.bf16=2x", "matrix.fp16=2x"]))
    more = device_of(load_hardware("h100-sxm", ["cores.exponentials_per_clock=32"]))
    assert scaled_parameters(H100, known) == known.parameters
    assert scaled_parameters(faster, known)["softmax"] == pytest.approx(2 * known.parameters["softmax"])
    assert scaled_parameters(more, known)["softmax"] == pytest.approx(known.parameters["softmax"] / 2)


def test_slower_matrix_units_that_wait_for_others_reach_more_of_their_peak():
    known = kernel_fit("attention_decode")
    alpha = known.parameters["alpha"]

    def waiting(device):
        return (1 / scaled_parameters(find_device(device), known)["alpha"] - 1) / (1 / alpha - 1)

    assert waiting("a100-sxm-80gb") == pytest.approx((312 / 108 / 1410) / (989.4 / 132 / 1980))
    assert waiting("h20-sxm") == pytest.approx((148 / 78) / (989.4 / 132))  # its clock is not known
    assert waiting("b200") == pytest.approx(1)  # has kernels of its own
    assert waiting("mi300x") == pytest.approx(1)
    products = kernel_fit("gemm")
    assert scaled_parameters(find_device("a100-sxm-80gb"), products)["alpha"] == products.parameters["alpha"]


def test_faster_matrix_units_wait_as_many_clocks_where_the_kernel_is_the_same():
    """In the same matrix instructions, or compiled: A100 has twice the units of an L40S, B200 8 times."""
    for name, device, kernel, same in (
        ("attention_decode", "a100-sxm-80gb", "vllm_flash_attn", True),
        ("attention_decode", "b200", "vllm_flash_attn", False),
        ("attention_decode", "b200", "vllm_triton_attn", True),
        ("attention_prefill", "b200", "vllm_triton_attn", True),
        ("attention_prefill", "a100-sxm-80gb", "vllm_flash_attn", False),
    ):
        known = kernel_fit(name, device="l40s", implementation=replace(IMPLEMENTATIONS[name], kernel=kernel))
        known.parameters["alpha"] = 0.4
        other, own = find_device(device), find_device("l40s")
        clocks = other.multiplies / own.multiplies * own.clock / other.clock
        found = scaled_parameters(other, known)
        assert clocks > 1.9
        assert found["alpha"] == pytest.approx(1 / (1 + 1.5 * clocks) if same else 0.4, rel=0.15)  # less power, too
        if same and name == "attention_prefill":
            assert found["softmax"] / found["alpha"] == pytest.approx(
                known.parameters["softmax"] / 0.4 * clocks, rel=0.15
            )


def test_starts_of_tiles_are_hidden_by_others_as_shared_memory_has_room_for():
    """192 KiB of a core of an A100, 128 of an L40S; compiled kernels need little of it."""
    for name, kernel, device, factor in (
        ("attention_prefill", "vllm_flash_attn", "l40s", 192 / 128),
        ("attention_decode", "vllm_flash_attn", "l40s", 192 / 128),
        ("attention_decode", "vllm_triton_attn", "l40s", 1),
        ("attention_prefill", "vllm_flash_attn", "h100-sxm", 1),  # has kernels of its own
        ("moe", "moe_torch_flow", "l40s", 1),
    ):
        known = kernel_fit(name, device="a100-sxm-80gb", implementation=replace(IMPLEMENTATIONS[name], kernel=kernel))
        clocks = find_device("a100-sxm-80gb").clock / find_device(device).clock
        found = scaled_parameters(find_device(device), known)
        assert found["tau_us"] == pytest.approx(known.parameters["tau_us"] * clocks * factor, rel=0.01)


def test_a_core_takes_no_more_bytes_in_a_clock_where_it_takes_less_than_memory_has():
    known = kernel_fit("attention_decode")
    usual = known.parameters["beta"]

    def others(device, beta):
        """Time per byte over the memory's time."""
        known.parameters["beta"] = beta
        return 1 / scaled_parameters(device, known)["beta"] - 1 / usual

    own = 1 / 0.4 - 1 / usual
    assert others(find_device("h200-sxm"), 0.4) == pytest.approx(own * 4800 / 3352)
    assert others(find_device("h20-sxm"), 0.4) == pytest.approx(
        own * (4000 / 78) / (3352 / 132)
    )  # its clock is not known
    assert others(device_of(load_hardware("h100-sxm", ["memory.bandwidth=2x"])), 0.4) == pytest.approx(2 * own)
    assert others(find_device("b200"), 0.4) == pytest.approx(own)  # has kernels of its own
    assert others(find_device("h200-sxm"), 0.95) == pytest.approx(1 / 0.95 - 1 / usual)


@pytest.mark.parametrize(
    ("own", "device", "factor"),
    [("h100-sxm", "a100-sxm-80gb", 989.4e3 / 132 / 1980 / 2.048), ("l40s", "a100-sxm-80gb", 1),
     ("h100-sxm", "b200", (989.4 / 132 / 1980) / (2250 / 148 / 1965))],
)  # fmt: skip
def test_kernels_in_instructions_of_ampere_do_as_much_in_a_clock_on_later_devices(own, device, factor):
    for kernel, quotient in (("sglang_marlin_moe", factor), ("sglang_fused_moe_triton", 1)):
        known = kernel_fit(
            "moe", device=own, implementation=replace(IMPLEMENTATIONS["moe"], dtype="int4_wo", kernel=kernel)
        )
        known.parameters["alpha"] = 0.3
        assert scaled_parameters(find_device(device), known)["alpha"] == pytest.approx(0.3 * quotient, rel=2e-3)


def test_attention_is_expected_from_the_same_kernel_before_the_same_kind_of_memory():
    """By name and matrix instructions, or compiled for all. Of others all libraries' speak alike, but between siblings,
    where a library has the same ones by other names.
    """
    asked = IMPLEMENTATIONS["attention_decode"]

    def measured(device, kernel, library="vllm"):
        implementation = replace(asked, kernel=kernel, library=library)
        return replace(kernel_fit("attention_decode", device=device, implementation=implementation), rows=1000)

    fa2, fa3 = measured("a100-sxm-80gb", "vllm_flash_attn"), measured("h100-sxm", "vllm_flash_attn_fa3")
    other, triton = measured("h100-sxm", "fa3", "sglang"), measured("b200", "vllm_triton_attn")
    for device, kernel, own in (
        ("l40s", "vllm_flash_attn_fa2", (fa2,)),
        ("h200-sxm", "vllm_flash_attn_fa3", (fa3,)),
        ("h200-sxm", "vllm_flash_attn", (fa3,)),
        ("b200", "vllm_flashinfer_trtllmdecode", (fa3, other)),
        ("l40s", "vllm_triton_attn", (triton,)),
    ):
        known = [e for e in (fa2, fa3, other, triton) if e.device != device]
        assert select_fits("attention_decode", find_device(device), replace(asked, kernel=kernel), known).fits == own


def test_cards_with_reduced_matrix_rate_are_similar_devices():
    """Except for matrix products, whose model includes the slower matrix units."""
    measured = ("rtx-3090", "l40s", "a100-sxm-80gb")
    asked = IMPLEMENTATIONS["attention_prefill"]
    own = [replace(kernel_fit("attention_prefill", device=d), rows=1000) for d in measured]
    for device, nearest in (("rtx-4090", "rtx-3090"), ("rtx-a6000", "l40s"), ("h100-sxm", "a100-sxm-80gb")):
        assert select_fits("attention_prefill", find_device(device), asked, own).fits == (own[measured.index(nearest)],)
    products = [replace(kernel_fit("gemm", device=d), rows=1000) for d in measured]
    for device, nearest in (("rtx-4090", "l40s"), ("rtx-a6000", "rtx-3090"), ("h100-sxm", "a100-sxm-80gb")):
        assert select_fits("gemm", find_device(device), IMPLEMENTATIONS["gemm"], products).fits == (
            products[measured.index(nearest)],
        )
    moved = [replace(kernel_fit("elementwise"), device=e.device) for e in own]
    assert len(select_fits("elementwise", find_device("rtx-4090"), IMPLEMENTATIONS["elementwise"], moved).fits) == 2


def test_graph_launched_messages_prefer_fits_of_graph_launched_messages():
    """A launch by a host takes longer than the message does: 44 us of eager ones of vLLM on A100, 5 of a graph's."""
    kernels = {how: f"vLLM_custom_{how} all_reduce" for how in ("eager", "graph")}
    asked = {how: Implementation(library="vllm", dtype="bf16", kernel=kernel) for how, kernel in kernels.items()}
    eager = replace(kernel_fit("collectives", device="a100-sxm-80gb", implementation=asked["eager"]), rows=1000)
    graph = replace(kernel_fit("collectives", device="h100-sxm", implementation=asked["graph"]), rows=1000)
    a100, both = find_device("a100-sxm-80gb"), [eager, graph]
    assert select_fits("collectives", a100, asked["graph"], both).fits == (graph,)
    assert select_fits("collectives", H100, asked["eager"], both).fits == (eager,)
    short = expect("collectives", shapes("collectives", num_gpus=4, bytes=16384), a100, asked["graph"], shipped())
    assert 4e-6 < short.expected[0] < 10e-6


def test_products_are_expected_from_all_generations_the_further_ones_less():
    """Each by the median of its own, where the memory is of the same kind; but siblings say it alone."""
    asked = IMPLEMENTATIONS["gemm"]

    def known(device, alpha):
        own = replace(kernel_fit("gemm", device=device), rows=1000)
        return replace(own, parameters={**own.parameters, "alpha": alpha})

    hopper, ampere = [known("h100-sxm", 0.7), known("h200-sxm", 0.8)], known("a100-sxm-80gb", 0.4)
    other = known("l40s", 0.2)
    columns, b200 = shapes("gemm", 3, M=np.array([1, 512, 8192])), find_device("b200")

    def expected(*fits):
        return np.log(expect("gemm", columns, b200, asked, fits).expected)

    found = select_fits("gemm", b200, asked, [other, ampere, *hopper])
    assert found.fits == (*hopper, ampere)
    assert found.source == "transferred from h100-sxm vllm, h200-sxm vllm, a100-sxm-80gb vllm"
    near, far = expected(*hopper), expected(ampere)
    # Ada was between them: Ampere is three generations away, Hopper one
    assert expected(other, ampere, *hopper) == pytest.approx((near + far / 4) / (1 + 1 / 4))
    assert select_fits("gemm", find_device("gh200"), asked, [ampere, *hopper]).fits == tuple(hopper)
    prompts = [replace(kernel_fit("attention_prefill", device=e.device), rows=1000) for e in (*hopper, ampere)]
    assert select_fits("attention_prefill", b200, IMPLEMENTATIONS["attention_prefill"], prompts).fits == tuple(
        prompts[:2]
    )


def test_a_launch_by_a_host_does_not_go_with_the_clock_of_the_device():
    own = kernel_fit("elementwise", device="t4")
    for start, elsewhere in ((2, 2 * 1590 / 1063), (25, 5 * 1590 / 1063 + 20)):
        known = replace(own, parameters={**own.parameters, "start_us": start})
        assert scaled_parameters(find_device("p4"), known)["start_us"] == pytest.approx(elsewhere, rel=1e-3)


def test_fits_on_few_rows_of_another_library_or_architecture_rank_last():
    asked = Implementation(library="vllm", dtype="bf16")
    far = replace(kernel_fit("gemm", device="h100-sxm"), implementation=asked, rows=2000)
    few = replace(kernel_fit("gemm", device="a100-pcie-80gb"), implementation=replace(asked, library="cublas"), rows=73)
    a100 = find_device("a100-sxm-80gb")
    assert select_fits("gemm", a100, asked, [far, few]).fits == (far,)
    assert select_fits("gemm", a100, asked, [far, replace(few, rows=2000)]).fits[0].device == "a100-pcie-80gb"
    assert select_fits("gemm", a100, asked, [far, replace(few, implementation=asked)]).fits[0].rows == few.rows
    assert select_fits("gemm", a100, asked, [few]).fits == (few,)
    some, ada = replace(far, rows=73), replace(kernel_fit("gemm", device="l40s"), implementation=asked, rows=2000)
    assert select_fits("gemm", a100, asked, [some, ada]).fits == (ada,)


def test_experts_of_mxfp4_get_activations_of_mxfp8_where_libraries_give_them_such():
    """TensorRT-LLM and SGLang do so on data-center Blackwell, where w4a8_mxfp4_mxfp8 was measured with SGLang only."""

    def expected(hardware, **asked):
        found = llmviewer.analyze("gpt-oss-120b", hardware, batch=32, **asked)
        return found, next(row for row in found.phases.decode.operators if row.name == "expert_down_proj")

    asked = "published,expert_*=Amxfp8"
    for library in ("trtllm", "sglang"):
        found, experts = expected("b200", library=library)
        kernel = "sglang 0.5.14 sglang_flashinfer_trtllm_moe"
        assert experts.expectation_source == {
            "sglang": f"calibrated on b200 {kernel}; two shape families measured",
            "trtllm": f"stand-in on b200: another library ({kernel})",
        }[library]  # fmt: skip
        _, narrow = expected("b200", library=library, quant=asked)
        assert experts.expected_time_s == pytest.approx(narrow.expected_time_s, rel=0.01)
        assert f"{library} quantizes the activations of experts with MXFP4 weights to MXFP8 here" in str(found.notes)
    for hardware, library in (("b200", "vllm"), ("h100-sxm", "trtllm"), ("rtx-5090", "trtllm")):
        assert "MXFP8 here" not in str(expected(hardware, library=library)[0].notes)
    assert "MXFP8 here" not in str(expected("b200", quant=asked)[0].notes)


def test_note_names_a_notably_faster_library():
    asked = {"model": "deepseek-v3", "hardware": "h200-sxm", "layout": "tp=8", "batch": 4}
    found = llmviewer.analyze(**asked)
    fastest = {one.phase: one for one in found.faster}
    assert set(fastest) == {"prefill", "decode"}
    others = {library: llmviewer.analyze(**asked, library=library) for library in ("trtllm", "sglang", "vllm")}
    assert not any(other.faster for other in others.values())  # were asked for
    for name, phase in found.phases:
        times = {library: dict(other.phases)[name].expected_time_s for library, other in others.items()}
        assert times["trtllm"] == phase.expected_time_s
        best = min(times, key=times.__getitem__)
        assert (best, times[best]) == (fastest[name].library, pytest.approx(fastest[name].expected_time_s))
        assert fastest[name].speed_up == pytest.approx(phase.expected_time_s / times[best])
    assert fastest["prefill"].speed_up > 1.5
    assert found.remarks[:-1] == found.notes
    said = "expected to be faster than trtllm, the default library: prefill 1."
    assert found.remarks[-1].startswith(said)
    assert found.to_dict()["notes"][-1] == found.remarks[-1]
    assert found.to_dict()["faster"][0]["library"] == fastest["prefill"].library


@pytest.mark.parametrize(
    ("model", "device", "asked"),
    [
        ("llama-3.1-8b", "b200", {}),  # by less than a quarter
        ("gpt-oss-20b", "b200", {"engine": "vllm"}),
        ("gpt-oss-20b", "b200", {"accounting": "survey", "quant": "W16A16"}),
        ("gpt-oss-20b", "rtx-a6000", {}),  # no library can stand for it
        ("gpt-oss-20b", "tpu-v5e", {}),
    ],
)
def test_no_faster_library_is_named_without_a_clear_gain(model, device, asked):
    found = llmviewer.analyze(model, device, **asked)
    assert found.faster == ()
    assert found.remarks == found.notes


def test_of_two_kinds_of_device_each_has_its_own_default():
    found = llmviewer.disaggregate("gpt-oss-20b", "h200-sxm", "l40s")
    joint, decode = found.joint, llmviewer.analyze("gpt-oss-20b", "l40s")
    assert [one.phase for one in joint.faster] == ["decode"]
    assert joint.faster == tuple(one for one in decode.faster if one.phase == "decode")


def test_unified_cache_loses_the_whole_working_set_beyond_its_capacity():
    """All comes from it as long as it fits, and none of 1.41 times as much; from one in two halves, some of both."""
    decode = FAMILIES["attention_decode"]
    for name, outgrown in (("l40s", True), ("a100-sxm-80gb", False)):
        device = find_device(name)
        keys = np.array([1.0, 1.41]) * device.l2 / (64 * 8 * 256 * 2)
        sizes = {"batch": 64, "q_heads": 32, "kv_heads": 8, "head_dim": 128, "v_head_dim": 128} | decode.optional
        shapes = {key: np.full(2, float(size)) for key, size in sizes.items()} | {"kv_len": keys}
        implementation = IMPLEMENTATIONS["attention_decode"]

        def times(loop, useful, device=device, shapes=shapes, implementation=implementation):
            features = decode.features({**shapes, "loop": np.full(2, loop)}, device, implementation, "")
            return decode.seconds(
                decode.default_parameters(implementation, device) | {"eta": useful, "lambda": 5.0}, features
            )

        kept, gone = times(1.0, 2.0), times(0.0, 1.2)
        assert kept[1] < 0.5 * gone[1]
        found = (times(1.0, 1.2) - kept) / (gone - kept)
        assert (found == pytest.approx([0, 1], abs=1e-6)) == outgrown
        assert outgrown or np.all((found > 0.1) & (found < 0.9))
