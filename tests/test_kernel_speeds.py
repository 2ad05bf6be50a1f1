"""docs/kernels.md against the rows of its GPUs; `python -m tests.test_kernel_speeds` rewrites its tables."""

import re
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from llmviewer import analyze
from llmviewer.devices.files import load_hardware
from llmviewer.expectation.profile import shipped
from llmviewer.expectation.rows import read
from llmviewer.expectation.transfer import expect

from . import documented

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "kernels.md"
DEVICES = {"h100": "h100-sxm", "h200": "h200-sxm"}
# Beginnings of the tables
SPEEDS, TRANSFERS, WHOLE = "| kernel | relative to |", "| kernel | data type |", "| GPU | model |"
BANDS = ((1, 1), (2, 16), (32, 64), (128, 256), (512, 1024), (2048, 8192))


def folder(gpu):
    return ROOT / "reports" / "measurements" / gpu


def steps():
    """(GPU, model, sequences, tokens of each, ms) of whole decode steps."""
    return [
        (gpu, *step)
        for gpu in DEVICES
        for step in yaml.safe_load((folder(gpu) / "steps.yaml").read_text(encoding="utf-8"))["steps"]
    ]


@cache
def measured(gpu):
    found = pd.concat([pd.read_parquet(path) for path in sorted(folder(gpu).glob("*.parquet"))], ignore_index=True)
    return found.fillna({"kernel": ""})


def products(rows, kernels, dtype):
    own = rows[(rows.family == "gemm") & (rows.framework == "triton") & (rows.dtype == dtype)]
    return own[own.kernel.isin(kernels)]


def product_speeds(gpu):
    """(kernel, relative to) -> ratios of speeds of matrix products."""
    rows, sizes, l2 = measured(gpu), ["M", "N", "K"], load_hardware(DEVICES[gpu]).numbers["l2.capacity"]
    vendor = rows[(rows.family == "gemm") & (rows.framework == "pytorch")][[*sizes, "time_us"]]
    plain = products(rows, ["gemm", "gemv"], "bf16").merge(vendor, on=sizes, suffixes=("", "_vendor"))
    for least, most in BANDS:
        own = plain[plain.M.between(least, most)]
        yield f"bf16 GEMM, M {tokens(least, most)}", "cuBLAS", own.time_us_vendor / own.time_us
    for dtype, kernel in (("int4_wo", "gemm_w4a16"), ("int8_wo", "gemm_w8a16"), ("w4a16_mxfp4", "gemm_mxfp4")):
        own = products(rows, [kernel], dtype).merge(plain[[*sizes, "time_us"]], on=sizes, suffixes=("", "_plain"))
        own = own[l2 < own.N * own.K * 2]
        for least, most in ((1, 1), (2, 16), (2048, 8192)):
            some = own[own.M.between(least, most)]
            yield f"`{kernel}`, M {tokens(least, most)}", "`gemm` in bf16", some.time_us_plain / some.time_us


def tokens(least, most):
    return f"{least}" if least == most else f"{least} to {most}"


def attention_speeds(gpu):
    """(kernel, relative to) -> ratios of bandwidths, or of speeds of prefill."""
    rows, report = measured(gpu), (folder(gpu) / "report.md").read_text(encoding="utf-8")
    copy = 1e9 * float(re.search(r"over 2 GiB +\d+ +\d+ +(\d+)", report)[1])
    own = rows[(rows.family == "attention_decode") & (rows.framework == "triton") & (rows.loop == 0)]
    for kernel, stored in (("decode_attention", "bf16"), ("decode_attention", "fp8"), ("mla_decode", "bf16")):
        some = own[(own.kernel == kernel) & (own.kv_dtype == stored)]
        rates = some.moved_bytes / (some.time_us * 1e-6) / copy
        for size, chosen in (
            ("64 to 128 MB", some.moved_bytes.between(64e6, 128e6)),
            ("128 to 512 MB", some.moved_bytes.between(128e6, 512e6)),
            ("from 512 MB", some.moved_bytes > 512e6),
        ):
            yield f"`{kernel}`, {stored} cache, {size}", "copy", rates[chosen]
    sizes = ["batch", "q_len", "kv_len", "q_heads", "kv_heads", "head_dim", "window"]
    prompts = rows[(rows.family == "attention_prefill") & (rows.q_len >= 1024)]
    best = prompts[prompts.framework == "pytorch"].groupby(sizes).time_us.min().rename("vendor").reset_index()
    both = prompts[prompts.framework == "triton"].merge(best, on=sizes)
    yield "`flash_attention`, prompts from 1024", "the best SDPA", both.vendor / both.time_us


def expert_speeds(gpu):
    """(kernel, relative to) -> ratios of speeds of experts, where products of as many OPs on as many weights, each of
    one matrix, were measured.
    """
    rows = measured(gpu)
    dense = products(rows, ["gemm"], "bf16").set_index(["M", "N", "K"]).time_us.groupby(level=[0, 1, 2]).min()
    ratios = []
    for one in rows[(rows.family == "moe") & (rows.kernel == "fused_moe")].itertuples():
        each = one.tokens * one.topk / one.experts
        both = (each, 2 * one.experts * one.inter, one.hidden), (each, one.experts * one.hidden, one.inter)
        if all(sizes in dense.index for sizes in both):
            ratios.append(sum(dense[sizes] for sizes in both) / one.time_us)
    yield "`fused_moe`, from 4 tokens an expert", "its products dense, by `gemm`", ratios


def speed_lines():
    """The lines of the table of speeds: rows, median and range of each GPU, "-" for one without rows."""
    cells = {}
    for place, gpu in enumerate(DEVICES):
        for kernel, relative, ratios in (*product_speeds(gpu), *expert_speeds(gpu), *attention_speeds(gpu)):
            if len(ratios):
                low, middle, high = np.quantile(ratios, (0, 0.5, 1))
                line = cells.setdefault((kernel, relative), [kernel, relative, *len(DEVICES) * 3 * ["-"]])
                line[2 + 3 * place : 5 + 3 * place] = str(len(ratios)), f"{middle:.2f}", f"{low:.2f} to {high:.2f}"
    return list(cells.values())


def transfer_lines():
    """The lines of the table of the H100's rows: the median error of profiles without that card's, the share of rows
    within their interval, and the median error and share of its own on rows held out.
    """
    fits, lines = shipped(), []
    for path in sorted(folder("h100").glob("*.parquet")):
        for group in read(path).rows:
            own = [fit for fit in fits if (fit.device, fit.implementation) == ("h100-sxm", group.implementation)]
            if group.implementation.library != "triton" or not own:
                continue
            rows = group.take(np.flatnonzero(group.fittable))
            others = [fit for fit in fits if fit.device != "h100-sxm"]
            other = expect(rows.family.name, rows.shapes, rows.device, rows.implementation, others)
            covered = np.mean((other.low <= rows.measured) & (rows.measured <= other.high))
            held_out, implementation = own[0].held_out, rows.implementation
            assert own[0].rows == len(rows)
            cache = f", {implementation.kv_dtype} cache" if implementation.kv_dtype else ""
            shares = np.median(np.abs(other.expected / rows.measured - 1)), covered, held_out.median, held_out.covered
            name = f"{rows.family.name} {implementation.kernel}".strip()
            lines.append([name, implementation.dtype + cache, str(len(rows)), *(f"{100 * one:.1f}" for one in shares)])
    return lines


def step_line(gpu, model, batch, kv_len, measured_ms):
    """A line of the table of whole steps, with what is expected."""
    report = analyze(model, DEVICES[gpu], batch=batch, kv_len=kv_len, library="triton", techniques=["fusion"])
    step = report.phases.decode
    bound, expected, low, high = (1e3 * s for s in (step.time_s, step.expected_time_s, step.expected_low_s,
                                                    step.expected_high_s))  # fmt: skip
    assert bound < measured_ms
    assert abs(expected / measured_ms - 1) < 0.25
    interval = f"{low:.3g} to {high:.3g}"
    own = [f"{bound:.3g}", f"{expected:.3g}", interval, f"{measured_ms:.3g}"]
    return [gpu.upper(), f"`{model}`", str(batch), str(kv_len), *own]


def test_measured_speeds_match_the_page():
    assert documented.rows("kernels.md", SPEEDS) == speed_lines()


def test_transfer_errors_match_the_page():
    assert documented.rows("kernels.md", TRANSFERS) == transfer_lines()


@pytest.mark.parametrize(("gpu", "model", "batch", "kv_len", "measured_ms"), steps())
def test_whole_steps_take_as_long_as_expected(gpu, model, batch, kv_len, measured_ms):
    assert step_line(gpu, model, batch, kv_len, measured_ms) in documented.rows("kernels.md", WHOLE)


def _replace_table(text, begins, lines):
    start = text.index("\n" + begins) + 1
    first = text.index("\n", text.index("\n", start) + 1) + 1
    last = text.index("\n\n", first)
    return text[:first] + "\n".join(f"| {' | '.join(line)} |" for line in lines) + text[last:]


if __name__ == "__main__":
    page = PAGE.read_text(encoding="utf-8")
    page = _replace_table(page, SPEEDS, speed_lines())
    page = _replace_table(page, TRANSFERS, transfer_lines())
    page = _replace_table(page, WHOLE, [step_line(*step) for step in steps()])
    PAGE.write_text(page, encoding="utf-8")
