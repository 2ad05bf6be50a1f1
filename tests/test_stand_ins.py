"""Expected times of what no kernel was measured for: their labels, their intervals, and that they are no bounds."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

import llmviewer
from llmviewer import analyze
from llmviewer.devices.files import load_hardware
from llmviewer.expectation.device import find_device
from llmviewer.expectation.device_similarity import matrix_instructions
from llmviewer.expectation.families import Implementation
from llmviewer.expectation.formats import STAND_IN_TYPES, TYPES
from llmviewer.expectation.index import index
from llmviewer.expectation.profile import (
    ANOTHER_KERNEL,
    ANOTHER_LIBRARY,
    ANOTHER_TYPE,
    NO_KERNEL,
    SIMILARITY_CLASSES,
    Profile,
    transfer_errors,
)
from llmviewer.expectation.sources import CALIBRATED, CLASSES, TRANSFERRED
from llmviewer.expectation.transfer import is_sibling, select_fits
from llmviewer.setting import Setting
from llmviewer.workload import Workload

# Together all kinds of operators of decoders, and techniques and formats that no kernel was measured for.
_ASKED = [
    ("qwen3-next-80b-a3b", None, ()),
    ("jetmoe-8b", None, ()),
    ("deepseek-v4-flash", "fp8KV8", ()),
    ("inkling-small", "W2A16", ()),
    ("stripedhyena-7b", "W4A8", ()),
    ("mixtral-8x7b", None, ("sparsity",)),
    ("llama-3.1-8b", "W4A4KV4", ("sparsity",)),
]


@cache
def passes(model, quant, techniques, device):
    setting = Setting.of(model, device, quant=quant, techniques=techniques)
    for phase, plan, workload in (
        ("prefill", setting.plan, Workload.prefill(batch=1, prompt=np.array([700.0, 9000.0]))),
        ("decode", setting.decode_plan, Workload.decode(batch=np.array([1.0, 64.0]), kv_len=3000)),
    ):
        rows = plan.estimate(workload).operators
        yield phase, rows, setting.kernels.expect(rows, workload).launches


def narrowest(classes):
    """The least quotient of the ends of an interval of such classes of sources in profiles/."""
    errors = [error for (_, _, which), error in transfer_errors().items() if which in classes]
    return min(high / low for error in errors for low, high in (error.short, error.long))


@pytest.mark.parametrize("device", ["h100-sxm", "rtx-4090", "jetson-thor", "mi300x"])
def test_stand_in_expectations_are_labelled_and_have_wide_intervals(device):
    """Intervals of every kind of operator in every phase are no narrower than those of any class of sources."""
    seen = set()
    instead = narrowest((ANOTHER_KERNEL, ANOTHER_LIBRARY, ANOTHER_TYPE, NO_KERNEL))
    elsewhere = narrowest(SIMILARITY_CLASSES)
    assert instead > 1.25
    assert elsewhere > 1.03
    for asked in _ASKED:
        for phase, rows, found in passes(*asked, device):
            for row, each in zip(rows, found, strict=True):
                if not each.modelled or each.source.startswith(CALIBRATED):
                    continue
                seen.add((row.operator.kind, phase))
                assert each.source.startswith(CLASSES), each.source
                runs = np.broadcast_to(row.time_s > 0, each.expected.shape)
                expected, low, high, bound = (
                    np.broadcast_to(side, each.expected.shape)[runs]
                    for side in (each.expected, each.low, each.high, row.time_s)
                )
                where = f"{asked} {phase} {row.operator.name}: {each.source}"
                assert np.all(expected > bound), where
                assert np.all(low >= bound * (1 - 1e-9)), where
                least = elsewhere if each.source.startswith(TRANSFERRED) else instead
                free = low > bound * (1 + 1e-9)  # what is cut off at the bound leaves the upper end
                assert np.all(high[free] / low[free] >= least * (1 - 1e-9)), where
                assert np.all(high > expected), where
    assert len({kind for kind, _ in seen}) > 10


def test_few_queries_of_latent_attention_are_read_one_by_one_on_blackwell():
    """TensorRT-LLM's kernels for it give each new token of a sequence a block of its own; others make rows of them. No
    kernel was measured with several, so the interval is of both.
    """
    sizes = {"kv_len": 80000, "q_heads": 16, "kv_heads": 1, "head_dim": 576, "v_head_dim": 512}

    def attention(device, **more):
        (found,) = llmviewer.kernel("attention", device, {**sizes, **more}, quant="fp8KVfp8", library="trtllm")
        return found

    for device in ("b200", "h200-sxm"):
        few, one_by_one, rows = (
            attention(device, **more)
            for more in ({"batch": 64, "q_len": 4}, {"batch": 4 * 64}, {"batch": 64, "q_heads": 64})
        )
        alone = one_by_one if device == "b200" else rows
        assert few.expected_time_s == pytest.approx(alone.expected_time_s)
        assert few.expected_low_s <= rows.expected_low_s * 1.001
        assert few.expected_high_s >= one_by_one.expected_high_s * 0.999
        assert few.source.startswith("stand-in: ")
        assert "no kernel with several queries was measured" in few.source
        assert one_by_one.source == f"calibrated on {device} trtllm"


def test_products_of_other_formats_have_their_own_bytes_and_units():
    """W4A8 in int8 has the bytes of 4-bit weights, the rate of int8, and the interval of a stand-in."""
    sizes = {"M": [1, 2048], "N": 6144, "K": 4096}
    (few, many), (few_8, many_8), (_, many_16) = (
        llmviewer.kernel("gemm", "l40s", sizes, quant=quant, library="trtllm") for quant in ("W4A8", "W8A8", "W4A16")
    )
    assert few.expected_time_s < few_8.expected_time_s
    assert many.expected_time_s == pytest.approx(many_8.expected_time_s, rel=0.1)
    assert many.expected_time_s < 0.6 * many_16.expected_time_s
    assert many.source.startswith("stand-in on l40s: another data type (trtllm 1.0.0, kernels for sq)")
    assert many.expected_high_s / many.expected_low_s > 1.5 * many_8.expected_high_s / many_8.expected_low_s


def test_every_unmeasured_data_type_has_a_measured_stand_in():
    measured = {kernel_fit.implementation.dtype for kernel_fit in index().fits if kernel_fit.family in ("gemm", "moe")}
    for dtype in TYPES:
        assert dtype in measured or measured & {*STAND_IN_TYPES[dtype]}, dtype


def test_sparse_experts_are_as_dense_ones_of_as_many_bytes():
    """Their expected time is not their bound, which would make a change of weights look free."""
    operators = {
        techniques: {
            op.name: op for op in analyze("mixtral-8x7b", "h100-sxm", techniques=techniques).phases.decode.operators
        }
        for techniques in ((), ("sparsity",))
    }
    dense, sparse = (found["expert_down_proj"] for found in operators.values())
    assert sparse.expectation_source.startswith("stand-in: as dense experts with equal weight bytes; calibrated on")
    assert 0.5 < sparse.expected_time_s / dense.expected_time_s < 0.75
    assert sparse.expected_time_s > 1.05 * sparse.bound_time_s
    assert sparse.expected_high_s / sparse.expected_low_s > dense.expected_high_s / dense.expected_low_s


def test_a_newer_kernel_of_a_library_comes_before_a_faster_one_of_an_older_version():
    """vLLM 0.19 takes more than twice as long for int4 experts as the kernel of 0.14, which the interval holds."""
    sizes = {"tokens": 64, "hidden": 4096, "inter": 1536, "experts": 128, "topk": 8}
    (found,) = llmviewer.kernel("moe", "h100-sxm", sizes, quant="W4A16", library="vllm")
    asked = ("h100-sxm", "vllm", "moe", "int4_wo")
    kernels = [
        e for e in index().fits if (e.device, e.implementation.library, e.family, e.implementation.dtype) == asked
    ]
    assert len(kernels) > 1
    newest = max(kernels, key=lambda e: e.release)
    assert newest.implementation.kernel == "vllm_marlin_int4_moe"
    only = Profile(device="h100-sxm", library="vllm", sources=(), fits=(newest,))
    (alone,) = llmviewer.kernel("moe", "h100-sxm", sizes, quant="W4A16", library="vllm", profiles=[only])
    assert found.expected_time_s == pytest.approx(alone.expected_time_s)
    assert found.expected_low_s < 0.5 * found.expected_time_s  # an older version may run
    assert found.expected_high_s == pytest.approx(alone.expected_high_s)


def test_interval_without_a_library_spans_all_libraries():
    """Without measurements or a given library: the fastest library, with an interval that includes the others."""
    sizes = {"batch": 16, "kv_len": 16384, "q_heads": 8, "kv_heads": 1, "head_dim": 576, "v_head_dim": 512}
    anyone, *named = (
        llmviewer.kernel("attention", "rtx-4090", sizes, library=library)[0] for library in ("", "trtllm", "sglang")
    )
    assert anyone.expected_time_s == pytest.approx(min(each.expected_time_s for each in named))
    assert all(anyone.expected_low_s <= each.expected_time_s <= anyone.expected_high_s for each in named)


def test_jetson_thor_has_the_instructions_of_b200_and_is_no_sibling_of_it():
    thor, b200 = find_device("jetson-thor"), find_device("b200")
    assert matrix_instructions(thor) == matrix_instructions(b200) == "blackwell"
    assert {matrix_instructions(find_device(name)) for name in ("rtx-5090", "rtx-pro-6000", "gb10")} == {"ampere"}
    own = next(e for e in index().fits if (e.device, e.family) == ("b200", "gemm"))
    near = select_fits("gemm", thor, Implementation(library="trtllm", dtype="bf16"), index().fits)
    assert {kernel_fit.device for kernel_fit in near.fits} == {"b200"}
    assert not is_sibling(own, thor)


def test_higher_clock_limit_moves_bounds_but_not_expected_times():
    """Expected times follow the datasheet's rates, with which profiles were fitted."""
    hardware = load_hardware("rtx-3090")
    if not hasattr(hardware, "headroom"):
        pytest.skip("no device has another limit than its datasheet's rates")
    faster = replace(hardware, headroom=dict.fromkeys(hardware.rates, 1.3))
    workload = Workload.prefill(batch=1, prompt=np.array([4096.0]))
    one, two = (Setting.of("llama-3.1-8b", device, library="cublas") for device in (hardware, faster))
    before, after = (setting.expected_pass("prefill", workload) for setting in (one, two))
    (place,) = (i for i, row in enumerate(before.operators) if row.operator.name == "up_proj")
    assert after.operators[place].time_s < before.operators[place].time_s
    assert after.launches[place].expected == pytest.approx(before.launches[place].expected)


def test_intervals_widen_beyond_the_measured_sizes():
    sizes = {"kv_len": [100_000, 900_000], "batch": 4, "q_heads": 32, "kv_heads": 8, "head_dim": 128}
    near, far = llmviewer.kernel("attention", "h100-sxm", sizes, library="vllm")
    beyond = transfer_errors()["attention_decode", "all", "beyond the measured sizes"]
    reach, usual = (each.expected_high_s / each.expected_time_s for each in (far, near))
    assert reach >= 0.999 * beyond.long[1] > usual
    (operator,) = (
        op
        for op in analyze("llama-3.1-8b", "h100-sxm", library="vllm", prompt=900_000, gen=2).phases.decode.operators
        if op.name == "attention"
    )
    assert operator.expectation_source.endswith("; beyond the measured sizes")
