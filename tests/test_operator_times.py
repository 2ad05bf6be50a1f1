"""Expected times of operators that few models have, held to public measurements of shapes that were not fitted.

Measured times are of ai-dynamo/aiconfigurator (Apache-2.0), aic-core/src/aiconfigurator_core/systems/data: gdn_perf,
mamba2_perf (the only shape of Mamba-2, which was fitted), mhc_module_perf, wideep_deepep_ll_perf (fitted), mla_bmm_perf
and dsa_generation_module_perf.
"""

from pathlib import Path

import numpy as np
import pytest

from llmviewer import analyze
from llmviewer.expectation.index import index
from llmviewer.expectation.profile import shipped
from llmviewer.expectation.rows import read
from llmviewer.expectation.validate import predict

TABLES = sorted((Path(__file__).parent / "operator_times").glob("*.csv"))
TOLERANCE = 0.15


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_operators_of_few_models_take_as_long_as_measured(path):
    found = predict(read(path), shipped())
    measured = found.table.frame["time_us"].to_numpy(float)
    expected = found.columns["expected_us"]
    assert not found.skipped
    assert np.abs(expected / measured - 1) == pytest.approx(0, abs=TOLERANCE)
    assert np.all(found.columns["bound_us"] < measured)
    assert all(str(source).startswith("calibrated on ") for source in found.columns["expected_source"])


def scan(model, library, **asked):
    phase = analyze(model, "h200", library=library, layout="tp=8", prompt=8192, gen=2, **asked).phases.prefill
    return next(row for row in phase.operators if row.kind == "scan")


def test_scans_of_engines_differ_as_their_kernels_do():
    triton, fused = (scan("qwen3.5-397b-a17b", library) for library in ("sglang", "vllm"))
    assert triton.expectation_source.startswith("calibrated on h200-sxm sglang")
    assert fused.expectation_source.startswith("calibrated on h200-sxm vllm")
    assert triton.expected_time_s > 5 * triton.bound_time_s


def test_sparse_attention_is_one_launch_of_many_small_ones():
    """278 us on an H200: all 128 heads, 16 sequences of 32k keys, vLLM."""
    asked = {"library": "vllm", "layout": "dp=8 ep=8", "batch": 128, "prompt": 32767, "gen": 2}
    step = analyze("deepseek-v3.2", "h200", **asked).phases.decode
    layer = [row for row in step.operators if "dsa_decode" in row.expectation_source and row.block == "moe"]
    assert {"q_a_proj", "indexer", "attention", "o_proj"} <= {row.name for row in layer}
    assert sum(row.expected_time_s / row.repeat for row in layer) == pytest.approx(278e-6, rel=TOLERANCE)


def test_tokens_are_sent_to_experts_by_kernels_for_that():
    step = analyze("deepseek-v3", "h200", library="sglang", layout="dp=8 ep=8", batch=1024, gen=2).phases.decode
    sent = [row for row in step.operators if row.name in ("dispatch", "collect")]
    assert sent
    assert all(row.expectation_source.startswith("calibrated on h200-sxm deepep") for row in sent)
    assert all(row.expected_time_s > 2 * row.bound_time_s for row in sent)


def test_an_unmeasured_step_has_the_interval_of_a_stand_in():
    """No decode kernel of Mamba-2 is in public tables."""
    step = analyze("nemotron-3-nano-30b-a3b", "h200", library="vllm", prompt=1024, gen=2).phases.decode
    row = next(row for row in step.operators if row.kind == "scan")
    assert row.expectation_source.startswith("stand-in: as the kernel of delta rules")
    assert row.expected_high_s >= 1.9 * row.expected_time_s


def decoded(model, device, name, **asked):
    return next(row for row in analyze(model, device, **asked).phases.decode.operators if row.name == name)


@pytest.mark.parametrize(("device", "source"), [("a100-80g", "stand-in on a100-sxm-80gb: another library (trtllm"),
                                                ("h100", "transferred from h200-sxm trtllm")])  # fmt: skip
def test_kernels_of_another_library_have_the_interval_of_a_stand_in(device, source):
    """vLLM multiplies 4-bit weights with Marlin's kernels, which were not measured; TensorRT-LLM's were."""
    other = decoded("llama-3.1-8b", device, "down_proj", quant="W4A16g128", library="vllm")
    assert other.expectation_source.startswith(source)
    place = "siblings, " if "h200" in source else ""
    error = index().errors["gemm", "all", f"{place}another library"]
    low, high = (end / other.expected_time_s for end in (other.expected_low_s, other.expected_high_s))
    assert low <= max(error.short[0], error.long[0])
    assert high >= min(error.short[1], error.long[1])
    assert high / low > 1.5


def test_copies_to_experts_that_no_kernel_was_measured_for_say_so():
    engine = decoded("qwen3-30b-a3b", "h100", "permute", engine="huggingface")
    assert engine.expectation_source.startswith("no kernel measured; memory traffic only")
    fused = decoded("qwen3-30b-a3b", "h100", "permute", engine="vllm")
    assert fused.expectation_source.startswith("calibrated on h100-sxm vllm")
    quantized = decoded("opt-350m", "h100", "hidden_to_int8", quant="W8A8", library="triton")
    assert quantized.expectation_source.startswith("calibrated on h100-sxm triton")
