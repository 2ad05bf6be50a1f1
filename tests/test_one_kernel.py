"""Tests that a single kernel equals the one inside a model."""

import csv
import json
from dataclasses import asdict
from io import StringIO

import numpy as np
import pytest

import llmviewer
from llmviewer import InputError, analyze
from llmviewer.analyzing.one_kernel import SCHEMA_VERSION
from llmviewer.cli import main


def operator(name, phase, model, hardware="h100-sxm", **asked):
    found = getattr(analyze(model, hardware, **asked).phases, phase)
    return next(op for op in found.operators if op.name == name)


def test_a_product_is_counted_by_hand():
    (one,) = llmviewer.kernel("gemm", "h100-sxm", {"M": 16, "N": 4096, "K": 14336})
    assert one.ops == 2 * 16 * 4096 * 14336
    assert one.bytes == 2 * (16 * 14336 + 4096 * 14336 + 16 * 4096)
    assert one.bound_time_s == pytest.approx(one.bytes / 3.352e12, rel=1e-3)
    assert (one.bound, one.dtype, one.quant) == ("memory", "bf16", "bf16")
    (narrow,) = llmviewer.kernel("gemm", "h100-sxm", {"M": 16, "N": 4096, "K": 14336}, quant="W4A16g128")
    assert narrow.bytes == one.bytes - 2 * 4096 * 14336 + 4096 * 14336 * (4 + 20 / 128) / 8


@pytest.mark.parametrize("quant", [None, "W4A16g128", "KV8"])
def test_kernel_estimate_equals_the_operator_inside_a_model(quant):
    asked = {"batch": 16, "prompt": 1000, "gen": 2, "quant": quant}
    down = operator("down_proj", "decode", "llama-3-8b", **asked)
    (alone,) = llmviewer.kernel("gemm", "h100-sxm", {"M": 16, "N": 4096, "K": 14336}, quant=quant)
    assert (alone.ops, alone.bytes) == (down.per_call.ops, pytest.approx(down.per_call.bytes))
    assert alone.bound_time_s == pytest.approx(down.per_call.bound_time_s)
    assert alone.expected_time_s == pytest.approx(down.expected_time_s / down.repeat)
    attention = operator("attention", "decode", "llama-3-8b", **asked)
    sizes = {"batch": 16, "kv_len": 1001, "q_heads": 32, "kv_heads": 8, "head_dim": 128}
    (alone,) = llmviewer.kernel("attention", "h100-sxm", sizes, quant=quant)
    assert (alone.ops, alone.bytes) == (attention.per_call.ops, pytest.approx(attention.per_call.bytes))
    assert alone.expected_time_s == pytest.approx(attention.expected_time_s / attention.repeat)


def test_latent_attention_reads_its_cache_once():
    own = operator("attention", "decode", "deepseek-v2-lite", batch=4, prompt=999, gen=2)
    sizes = {"batch": 4, "kv_len": 1000, "q_heads": 16, "kv_heads": 1, "head_dim": 576, "v_head_dim": 512}
    (alone,) = llmviewer.kernel("attention", "h100-sxm", sizes)
    assert (alone.ops, alone.bytes) == (own.per_call.ops, pytest.approx(own.per_call.bytes))
    assert alone.expected_time_s == pytest.approx(own.expected_time_s / own.repeat)


def test_fused_experts_store_no_intermediate_tensors():
    names = ("permute", "expert_gate_proj", "expert_up_proj", "expert_act", "expert_down_proj", "combine")
    asked = {"batch": 1, "prompt": 4096, "gen": 1, "quant": "W16A16"}
    parts = [operator(name, "prefill", "mixtral-8x7b", "h200-sxm", **asked) for name in names]
    sizes = {"tokens": 4096, "hidden": 4096, "inter": 14336, "experts": 8, "topk": 2}
    (alone,) = llmviewer.kernel("moe", "h200-sxm", sizes)
    assert alone.ops == pytest.approx(sum(op.per_call.ops for op in parts))
    assert alone.bytes < sum(op.per_call.bytes for op in parts)
    weights = 3 * 8 * 4096 * 14336 * 2
    assert alone.bytes == pytest.approx(weights + 2 * 2 * 4096 * 4096, rel=0.01)  # beside them, rows in and out
    assert alone.bound_time_s < sum(op.per_call.bound_time_s for op in parts)
    assert alone.expected_time_s == pytest.approx(sum(op.expected_time_s / op.repeat for op in parts))


def test_size_combinations_are_ordered_and_equal_each_alone():
    sizes = {"M": [1, 300], "K": [4096, 512], "N": 1024}
    found = llmviewer.kernel("gemm", "b200", sizes)
    assert [tuple(each.sizes.values()) for each in found] == [
        (1, 1024, 4096), (1, 1024, 512), (300, 1024, 4096), (300, 1024, 512),
    ]  # fmt: skip
    for each in found:
        (alone,) = llmviewer.kernel("gemm", "b200", each.sizes)
        times = {"expected_time_s", "expected_low_s", "expected_high_s"}  # whose trends are summed in 32 bits
        for field, value in asdict(alone).items():
            assert value == (pytest.approx(getattr(each, field), rel=1e-6) if field in times else getattr(each, field))


def test_where_nothing_was_measured_there_is_the_bound_alone():
    (one,) = llmviewer.kernel("add", "tpu-v5e", {"rows": 8, "cols": 512})
    assert one.expected_time_s is None
    assert one.bytes == 3 * 8 * 512 * 2


@pytest.mark.parametrize(
    ("kernel", "sizes", "error"),
    [
        ("gem", {}, "no kernel 'gem'; did you mean gemm?"),
        ("gemm", {"M": 1, "N": 2}, "gemm: sizes M, N, K are required; give K=VALUES"),
        ("gemm", {"M": 1, "N": 2, "k": 3}, "gemm: no size 'k'; there is K, M, N"),
        ("gemm", {"M": 0, "N": 2, "K": 3}, "gemm: M must be a whole number of at least 1; got 0"),
        ("gemm", {"M": [4, 4], "N": 2, "K": 3}, "gemm: M must have one value or several different ones; got 4, 4"),
        ("gemm", {"M": "16", "N": 2, "K": 3}, "gemm: M must be a whole number of at least 1; got '16'"),
        ("gemm", {"M": 10**20, "N": 2, "K": 3},
         "gemm: M must be at most 9007199254740992, the largest that is counted exactly"),
        ("gemm", {"M": 2**27, "N": 2**27, "K": [1, 2]},
         "gemm: OPs must be at most 9007199254740992, the largest that is counted exactly; got 3.6e+16"),
        ("gemm", None, "gemm: sizes must be a mapping of names to numbers; got None"),
        ("moe", {"tokens": 1, "hidden": 8, "inter": 8, "experts": 2, "topk": 3},
         "moe: topk must be at most experts; got 3 and 2"),
        ("attention", {"kv_len": 4, "q_len": 8, "q_heads": 4, "head_dim": 64},
         "attention: kv_len must be at least q_len, as it includes the tokens of q_len"),
        ("attention", {"kv_len": 4, "q_heads": 4, "kv_heads": 3, "head_dim": 64},
         "attention: q_heads must be a multiple of kv_heads; got 4 and 3"),
    ],
)  # fmt: skip
def test_invalid_sizes_are_refused_in_one_line(kernel, sizes, error):
    with pytest.raises(InputError) as caught:
        llmviewer.kernel(kernel, "h100-sxm", sizes)
    assert str(caught.value) == error


def test_command_rates_a_measured_time_against_the_bound(capsys):
    assert (
        main(["kernel", "gemm", "h200-sxm", "M=1", "N=8192", "K=28672", "--quant", "W4A16g128", "--measured", "33us"])
        == 0
    )
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    (one,) = llmviewer.kernel("gemm", "h200-sxm", {"M": 1, "N": 8192, "K": 28672}, quant="W4A16g128")
    assert f"Measured 33.0 us: {one.bound_time_s / 33e-6:.0%} of the roofline;" in text
    assert main(["kernel"]) == 0
    assert "gemm       M= N= K=" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("size", "time", "why"),
    [
        (
            "M=1",
            "3us",
            "if they are in the 50 MiB L2, of unknown bandwidth, from the launch before, at least 31.3 ns.",
        ),
        ("M=8192", "3\u00b5s", ": check for a raised clock, less work, or another unit."),
    ],
)
def test_a_time_below_the_bound_is_not_called_fast(size, time, why, capsys):
    assert main(["kernel", "gemm", "h100-sxm", size, "N=4096", "K=4096", "--measured", time]) == 0
    text = " ".join(capsys.readouterr().out.partition("Measured ")[2].split())
    assert text.startswith("3.00 us, below the bound (")
    assert text.endswith(why)
    assert "faster than" not in text


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["h200-sxm", "M=1,2", "N=8", "K=8", "--measured", "33us"],
         "--measured: needs one device and one combination of sizes; these are 2"),
        (["h200-sxm", "M=1", "N=8", "K=8", "--measured", "33us", "--format", "json"],
         "--measured: is rated in text output only; leave json out"),
        (["h200-sxm", "M=1", "N=8", "K=8", "--measured", "0.2"],
         "--measured: must be a positive time, such as '31.5 us'; got '0.2'"),
        (["M=1", "N=8", "K=8"], "kernel gemm: needs HARDWARE, and then sizes; `llmviewer kernel` lists them"),
        (["h200-sxm", "M=1", "N=8", "K=8", "dtype=fp8"],
         "gemm: no size 'dtype'; there is K, M, N (formats are --quant)"),
    ],
)  # fmt: skip
def test_invalid_command_line_arguments_are_refused_in_one_line(words, error, capsys):
    assert main(["kernel", "gemm", *words]) == 2
    assert capsys.readouterr().err == f"llmviewer: {error}\n"


def test_each_device_has_its_own_source(capsys):
    assert main(["kernel", "gemm", "h100-sxm,b200", "M=1,64", "N=4096", "K=4096"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "Source: calibrated on h100-sxm trtllm (on h100-sxm); calibrated on b200 trtllm (on b200)." in said


def test_an_intensity_has_no_exponent(capsys):
    assert main(["kernel", "gemm", "h100-sxm", "M=4096", "N=4096", "K=4096"]) == 0
    assert " 1365 " in capsys.readouterr().out


def test_sizes_may_be_of_numpy():
    sizes = {"M": np.array([1, 16]), "N": np.int64(4096), "K": 4096}
    assert [each.sizes["M"] for each in llmviewer.kernel("gemm", "h100-sxm", sizes)] == [1, 16]


def test_json_and_csv_agree(capsys):
    asked = [
        "kernel",
        "attention",
        "h100-sxm,l4",
        "batch=1..16*4",
        "kv_len=4096",
        "q_heads=32",
        "head_dim=128",
        "--format",
    ]
    assert main([*asked, "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    rows = document["kernels"]
    assert document["schema_version"] == SCHEMA_VERSION
    assert main([*asked, "csv"]) == 0
    table = list(csv.DictReader(StringIO(capsys.readouterr().out)))
    assert [(row["hardware"], row["sizes"]["batch"]) for row in rows] == [
        (device, batch) for device in ("h100-sxm", "l4") for batch in (1, 4, 16)
    ]
    assert [float(line["expected_time_s"]) for line in table] == [row["expected_time_s"] for row in rows]
    assert [int(line["batch"]) for line in table] == [row["sizes"]["batch"] for row in rows]


def test_estimates_go_to_a_file_in_the_format_of_its_name(capsys, tmp_path):
    asked, path = ["kernel", "gemm", "h100-sxm", "M=1", "N=64", "K=64"], tmp_path / "gemm.csv"
    assert main([*asked, "-o", str(path)]) == 0
    assert capsys.readouterr() == ("", f"{path}: written\n")
    assert main([*asked, "--format", "csv"]) == 0
    assert path.read_text() == capsys.readouterr().out
    assert main(["kernel", "-o", str(path)]) == 2
    assert capsys.readouterr().err.startswith("llmviewer: kernel needs KERNEL, whose estimates go to ")
