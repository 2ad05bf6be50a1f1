"""Expected times of operators that few models have, held to public measurements of shapes that were not fitted.

Measured times are of ai-dynamo/aiconfigurator (Apache-2.0), aic-core/src/aiconfigurator_core/systems/data: gdn_perf,
mamba2_perf (the only shape of Mamba-2, which was fitted).
"""

from pathlib import Path

import numpy as np
import pytest

from llmviewer import analyze
from llmviewer.expectation.profile import shipped
from llmviewer.expectation.rows import read
from llmviewer.expectation.validate import predict

TIMES = Path(__file__).parent / "operator_times.csv"
TOLERANCE = 0.15


def test_layers_of_few_models_take_as_long_as_measured():
    found = predict(read(TIMES), shipped())
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


def test_an_unmeasured_step_has_the_interval_of_a_stand_in():
    """No decode kernel of Mamba-2 is in public tables."""
    step = analyze("nemotron-3-nano-30b-a3b", "h200", library="vllm", prompt=1024, gen=2).phases.decode
    row = next(row for row in step.operators if row.kind == "scan")
    assert row.expectation_source.startswith("stand-in: as the kernel of delta rules")
    assert row.expected_high_s >= 1.9 * row.expected_time_s
