"""docs/kernels.md against the rows of an H200 that it is about."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from llmviewer import analyze

from . import documented

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "reports" / "measurements" / "h200"
L2 = 60 * 2**20
STEPS = yaml.safe_load((FOLDER / "steps.yaml").read_text(encoding="utf-8"))["steps"]
BANDS = ((1, 1), (2, 16), (32, 64), (128, 256), (512, 1024), (2048, 8192))


@pytest.fixture(scope="module")
def rows():
    found = pd.concat([pd.read_parquet(path) for path in sorted(FOLDER.glob("*.parquet"))], ignore_index=True)
    return found.fillna({"kernel": ""})


def summary(name, beside, ratios):
    """A row of the page's table: the median and the range of speeds."""
    low, middle, high = np.quantile(ratios, (0, 0.5, 1))
    return [name, beside, str(len(ratios)), f"{middle:.2f}", f"{low:.2f} to {high:.2f}"]


def told():
    return documented.rows("kernels.md", "| kernel | relative to |")


def products(rows, kernels, dtype):
    own = rows[(rows.family == "gemm") & (rows.framework == "triton") & (rows.dtype == dtype)]
    return own[own.kernel.isin(kernels)]


def test_measured_matrix_product_speeds_match_the_page(rows):
    sizes = ["M", "N", "K"]
    vendor = rows[(rows.family == "gemm") & (rows.framework == "pytorch")][[*sizes, "time_us"]]
    plain = products(rows, ["gemm", "gemv"], "bf16").merge(vendor, on=sizes, suffixes=("", "_vendor"))
    for least, most in BANDS:
        own = plain[plain.M.between(least, most)]
        tokens = f"{least}" if least == most else f"{least} to {most}"
        assert summary(f"bf16 GEMM, M {tokens}", "cuBLAS", own.time_us_vendor / own.time_us) in told()
    for dtype, kernel in (("int4_wo", "gemm_w4a16"), ("int8_wo", "gemm_w8a16"), ("w4a16_mxfp4", "gemm_mxfp4")):
        own = products(rows, [kernel], dtype).merge(plain[[*sizes, "time_us"]], on=sizes, suffixes=("", "_plain"))
        own = own[own.N * own.K * 2 > L2]
        for least, most in ((1, 1), (2, 16), (2048, 8192)):
            some = own[own.M.between(least, most)]
            tokens = f"{least}" if least == most else f"{least} to {most}"
            assert summary(f"`{kernel}`, M {tokens}", "`gemm` in bf16", some.time_us_plain / some.time_us) in told()


def test_measured_attention_bandwidth_matches_the_page(rows):
    copy = 1e9 * float(re.search(r"over 2 GiB +\d+ +\d+ +(\d+)", (FOLDER / "report.md").read_text())[1])
    own = rows[(rows.family == "attention_decode") & (rows.framework == "triton") & (rows.loop == 0)]
    for kernel, cache in (("decode_attention", "bf16"), ("decode_attention", "fp8"), ("mla_decode", "bf16")):
        some = own[(own.kernel == kernel) & (own.kv_dtype == cache)]
        rates = some.moved_bytes / (some.time_us * 1e-6) / copy
        for size, chosen in (
            ("64 to 128 MB", some.moved_bytes.between(L2, 128e6)),
            ("128 to 512 MB", some.moved_bytes.between(128e6, 512e6)),
            ("from 512 MB", some.moved_bytes > 512e6),
        ):
            assert summary(f"`{kernel}`, {cache} cache, {size}", "copy", rates[chosen]) in told()
    sizes = ["batch", "q_len", "kv_len", "q_heads", "kv_heads", "head_dim", "window"]
    prompts = rows[(rows.family == "attention_prefill") & (rows.q_len >= 1024)]
    best = prompts[prompts.framework == "pytorch"].groupby(sizes).time_us.min().rename("vendor").reset_index()
    both = prompts[prompts.framework == "triton"].merge(best, on=sizes)
    assert summary("`flash_attention`, prompts from 1024", "the best SDPA", both.vendor / both.time_us) in told()


@pytest.mark.parametrize(("model", "batch", "kv_len", "measured_ms"), STEPS)
def test_whole_steps_take_as_long_as_expected(model, batch, kv_len, measured_ms):
    report = analyze(model, "h200-sxm", batch=batch, kv_len=kv_len, library="triton", techniques=["fusion"])
    step = report.phases.decode
    bound, expected, low, high = (1e3 * s for s in (step.time_s, step.expected_time_s, step.expected_low_s,
                                                    step.expected_high_s))  # fmt: skip
    assert bound < measured_ms
    assert abs(expected / measured_ms - 1) < 0.25
    line = [
        f"`{model}`", str(batch), str(kv_len), f"{bound:.3g}", f"{expected:.3g}", f"{low:.3g} to {high:.3g}",
        f"{measured_ms:.3g}",
    ]  # fmt: skip
    assert line in documented.rows("kernels.md", "| model | batch |")
