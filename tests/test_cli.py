"""The command line as a user meets it: what it prints, where it writes, and one line for every mistake."""

import csv
import io
import json
import os
import re
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

import click
import pytest

from llmviewer import cli
from llmviewer.cli import main
from llmviewer.writing import write_text

ROOT = Path(__file__).parents[1]


def run(capsys, *arguments):
    """(exit code, stdout, stderr)"""
    code = main(arguments)
    out = capsys.readouterr()
    return code, out.out, out.err


def test_analyze_prints_one_screen_with_both_phases_memory_and_advice(capsys):
    code, out, err = run(capsys, "analyze", "llama-2-7b", "rtx-a6000", "--prompt", "2048")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) < 68
    assert lines[0].startswith("Llama 2 7B on NVIDIA RTX A6000: batch 1, prompt 2048, 128 generated")
    for text in ("TTFT ", "Prefill: 2,048 tokens", "Decode: 1 token", "Prefill is compute-bound",
                 "Decode is memory-bound", "weights 13.5", "largest that fits", "roofline bounds"):  # fmt: skip
        assert text in out


def test_precision_names_of_rows_are_valid_option_values(capsys):
    question = ("gpt-oss-20b", "h100-sxm", "--prompt", "64")
    precisions = ("--quant", "published", "--quant", "KV8")
    _, out, _ = run(capsys, "compare", *question, *precisions, "--bound", "--format", "csv")
    named = [row["quant"] for row in csv.DictReader(io.StringIO(out))]
    assert named == ["published", "KV8"]
    _, swept, _ = run(capsys, "sweep", *question, "--over", f"quant={','.join(named)}")
    assert [row["quant"] for row in csv.DictReader(io.StringIO(swept))] == named
    alone, left = (
        run(capsys, "analyze", *asked, "--format", "json") for asked in ((*question, *precisions[:2]), question)
    )
    assert alone == left


def test_json_has_device_links_with_what_ifs_applied(capsys):
    _, out, _ = run(
        capsys, "analyze", "llama-2-7b", "h100-sxm", "--format", "json", "--hardware-set", "scale_up.bandwidth=2x",
    )  # fmt: skip
    assert json.loads(out)["hardware"]["links"] == {
        "scale_up.bandwidth": 900e9, "scale_up.devices": 8, "scale_out.bandwidth": 50e9, "host.bandwidth": 63e9,
    }  # fmt: skip


def test_analyze_json_has_the_keys_of_the_contract(capsys):
    code, out, _ = run(capsys, "analyze", "llama-2-7b", "rtx-a6000", "--format", "json")
    document = json.loads(out)
    assert code == 0
    for phase in ("prefill", "decode"):
        operators = document["phases"][phase]["operators"]
        for op in operators:
            assert {
                "name", "kind", "repeat", "ops", "bytes", "weight_bytes", "activation_bytes", "kv_bytes", "intensity",
                "attainable_ops_per_s", "bound", "compute_dtype", "bound_time_s", "expected_time_s", "per_call",
            } <= op.keys()  # fmt: skip
            assert op["bound_time_s"] <= op["expected_low_s"] <= op["expected_time_s"] <= op["expected_high_s"]
            assert op["expectation_source"].startswith(("calibrated on", "transferred from"))
            assert op["regime"] in (op["bound"], "latency")
            assert op["bytes"] == op["weight_bytes"] + op["activation_bytes"] + op["kv_bytes"]
            assert op["ops"] == op["repeat"] * op["per_call"]["ops"]
        total = document["phases"][phase]["total"]
        for key in ("ops", "bytes", "weight_bytes", "activation_bytes", "kv_bytes"):
            assert total[key] == sum(op[key] for op in operators)
        for key in ("bound_time_s", "expected_time_s"):
            assert total[key] == pytest.approx(sum(op[key] for op in operators), rel=1e-12)
        assert total["unmodelled_share"] == 0
        assert sum(total["time_by_regime_s"].values()) == pytest.approx(total["expected_time_s"])
    assert document["memory"].keys() >= {
        "weight_bytes", "kv_cache_bytes", "activation_bytes", "total_bytes", "capacity_bytes", "fits", "max_batch",
        "max_context",
    }  # fmt: skip
    assert document["generation"].keys() == {
        "ttft_s", "tpot_s", "latency_s", "tokens_per_s", "expected_tokens_per_s",
        *(f"expected_{what}{end}_s" for what in ("ttft", "tpot", "latency") for end in ("", "_low", "_high")),
    }  # fmt: skip
    assert document["inputs"]["batch"] == 1
    assert document["llmviewer_version"]


def test_survey_accounting_prints_the_paper_s_table_per_launch(capsys):
    _, out, _ = run(
        capsys, "analyze", "llama-2-7b", "rtx-a6000", "--prompt", "2048", "--kv-len", "2048", "--batch", "1",
        "--accounting", "survey",
    )  # fmt: skip
    table = [line.split() for line in out.splitlines()]
    q_proj = next(cells for cells in table if cells[:1] == ["q_proj"])
    assert q_proj[:9] == ["q_proj", "32", "68.7G", "33.6M", "33.6M", "-", "1024", "155T", "compute"]


def test_csv_has_a_row_per_phase_and_operator(capsys):
    _, out, _ = run(capsys, "analyze", "gpt2", "t4", "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [row["name"] for row in rows if row["phase"] == "decode"] == [
        "embed_tokens", "attn_norm", "qkv_proj", "attention", "o_proj", "attn_add", "mlp_norm", "up_proj", "mlp_act",
        "down_proj", "mlp_add", "final_norm", "lm_head",
    ]  # fmt: skip


def test_the_format_follows_the_name_of_the_output_file(capsys, tmp_path):
    for suffix, begin in ((".json", "{"), (".csv", "phase,"), (".md", "# Llama"), (".html", "<!"), (".txt", "Llama")):
        path = tmp_path / f"report{suffix}"
        assert run(capsys, "analyze", "llama-2-7b", "rtx-a6000", "-o", str(path))[0] == 0
        assert path.read_text().lower().startswith(begin.lower())


def test_models_lists_all_as_objects_and_shows_one(capsys):
    _, out, _ = run(capsys, "models", "--format", "json")
    by_name = {model["name"]: model for model in json.loads(out)}
    assert by_name["llama-2-7b"]["parameters"] == by_name["llama-2-7b"]["active_parameters"] == 6738415616
    assert by_name["llama-3-8b"]["kv_bytes_per_token"] == 131072  # 2 x 8 heads x 128 x 32 layers x 2 B
    _, out, _ = run(capsys, "models", "llama-2-7b", "--format", "json")
    assert json.loads(out) == by_name["llama-2-7b"]
    _, out, _ = run(capsys, "models", "llama-2-7b")
    assert "6,738,415,616" in out


@pytest.mark.parametrize(
    ("asked", "listed", "left_out"),
    [
        (("models", "qwen3"), "qwen3-8b", "qwen2.5-32b"),
        (("models", "meta-llama"), "llama-3.1-8b", "codellama-7b"),
        (("hardware", "amd"), "mi300x", "h100-sxm"),
        (("hardware", "Ada"), "rtx-4090", "rtx-3090"),
        (("hardware", "RTX 50"), "rtx-5090", "rtx-4090"),
    ],
)
def test_name_substring_filters_the_list(capsys, asked, listed, left_out):
    code, out, _ = run(capsys, *asked)
    names = {line.split()[0] for line in out.splitlines() if line}
    assert (code, listed in names, left_out in names) == (0, True, False)
    _, out, _ = run(capsys, *asked, "--format", "json")
    assert {each["name"] for each in json.loads(out)} <= names


def test_models_are_listed_as_they_were_published_within_80_columns(capsys):
    """gpt-oss-120b: 60.8 GiB, and 5.13 active without the table (arXiv:2508.10925, table 1)."""
    _, out, _ = run(capsys, "models")
    lines = out.splitlines()
    assert max(map(len, lines)) <= 80
    assert "gpt-oss-120b                   117B 5.71B 65.2G mxfp4 GQA        74k  37k   131k" in lines
    assert "deepseek-v3                    671B 37.6B  673G fp8   MLA        70k  70k   164k" in lines
    assert "mimo-v2-flash                  309B 15.4B  618G bf16  GQA       223k  23k   262k" in lines
    _, out, _ = run(capsys, "models", "gpt-oss-120b", "--format", "json")
    facts = json.loads(out)
    assert round(facts["weight_bytes"] / 2**30, 1) == 60.8
    assert facts["quantization"] == "published: mxfp4 weights; bf16: q_proj, k_proj, v_proj, o_proj"
    assert round((facts["active_parameters"] - facts["looked_up_parameters"]) / 1e9, 2) == 5.13
    _, out, _ = run(capsys, "models", "gpt-oss-120b")
    assert max(map(len, out.splitlines())) <= 80
    assert "quantized             mxfp4 weights; bf16: q_proj, k_proj, v_proj, o_proj\n" in out
    assert "weights               65.2 GB\n" in out
    assert "KV cache per token    73,728 B within all windows, 36,864 B beyond them\n" in out  # 18 layers
    _, out, _ = run(capsys, "models", "llama-2-7b", "--format", "json")
    assert json.loads(out)["quantization"] == "as published"


def test_devices_are_listed_within_80_columns(capsys):
    _, out, _ = run(capsys, "hardware")
    assert max(map(len, out.splitlines())) <= 80
    assert "vr200                    300 GB 22.0 TB/s 4.00 P 17.5 P  250 T 35.0 P  130 T" in out.splitlines()


def test_hardware_shows_every_number_with_its_source(capsys):
    _, out, _ = run(capsys, "hardware", "h100-sxm", "--format", "json")
    device = json.loads(out)
    assert device["name"] == "h100-sxm"
    facts = {fact["key"]: fact for fact in device["facts"]}
    assert facts["matrix.fp16"]["value"] == 989.4e12
    assert all(fact["source"]["title"] for fact in facts.values())
    _, out, _ = run(capsys, "hardware", "h100-sxm")
    assert "matrix.fp16" in out
    assert "bf16 fp16 295, fp8 int8 590; vector units fp64" in " ".join(out.split())  # 989.4 and 1978.9 over 3.35
    assert "Sources" in out
    _, out, _ = run(capsys, "hardware", "--format", "json")
    assert [d["name"] for d in json.loads(out)] == sorted(d["name"] for d in json.loads(out))


def test_double_the_bandwidth_halves_a_memory_bound_step(capsys):
    def step(*more):
        _, out, _ = run(capsys, "analyze", "llama-2-7b", "rtx-a6000", "--format", "json", *more)
        return json.loads(out)["phases"]["decode"]["total"]["bound_time_s"]

    assert step("--hardware-set", "memory.bandwidth=2x") == pytest.approx(step() / 2, rel=1e-12)


def test_sweep_writes_points_to_stdout_csv_and_parquet(capsys, tmp_path):
    import pyarrow.parquet as pq

    question = ("sweep", "llama-2-7b", "rtx-a6000", "--over", "batch=1..4*2", "--over", "prompt=128,512")
    _, out, _ = run(capsys, *question)
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [(row["batch"], row["prompt"]) for row in rows] == [
        ("1", "128"), ("1", "512"), ("2", "128"), ("2", "512"), ("4", "128"), ("4", "512"),
    ]  # fmt: skip
    for name in ("points.csv", "points.parquet"):
        assert run(capsys, *question, "-o", str(tmp_path / name))[0] == 0
    assert pq.read_table(tmp_path / "points.parquet").num_rows == 6
    assert (tmp_path / "points.csv").read_text() == out


@pytest.mark.parametrize("figure", ["roofline", "dtypes", "memory", "decode-time", "prefill-time"])
def test_plot_writes_a_page_that_needs_no_network(capsys, tmp_path, figure):
    path = tmp_path / "figure.html"
    assert run(capsys, "plot", figure, "llama-2-7b", "rtx-a6000", "-o", str(path))[0] == 0
    page = path.read_text()
    assert "Plotly.newPlot" in page
    assert 'src="http' not in page


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["analyze", "llama-2-7", "rtx-a6000"], "no model 'llama-2-7': did you mean llama-2-7b or llama-2-70b?"),
        (["analyze", "llama-2-7b", "a600"], "no hardware 'a600': did you mean a6000"),
        (["analyze", "llama-2-7b", "rtx-a6000", "--prompt", "0"],
         "--prompt must be a whole number of at least 1; got 0"),
        (["analyze", "llama-2-7b", "rtx-a6000", "--prompt", "x"],
         "Invalid value for '--prompt': must be a whole number; got 'x'"),
        (["analyze", "llama-2-7b"], "analyze needs HARDWARE: llmviewer analyze MODEL HARDWARE; `llmviewer hardware` "),
        (["compare", "gpt2"], "compare needs HARDWARE: llmviewer compare MODEL HARDWARE...; `llmviewer hardware` "),
        (["choose"], "choose needs MODEL: llmviewer choose MODEL; `llmviewer models` lists all"),
        (["plan", "gpt2"], "plan needs --rate R: Mean arrival rate in req/s (Poisson arrivals)"),
        (["analyze", "gpt2", "t4", "l4"],
         "analyze takes one HARDWARE; got 'l4' as well: `llmviewer compare gpt2 t4 l4` takes several"),
        (["simulate", "gpt2", "t4", "l4", "--rate", "1"],
         "simulate takes one HARDWARE; got 'l4' as well: `llmviewer plan gpt2 --hardware t4,l4 --rate R` takes"),
        (["advise", "gpt2", "t4", "l4"], "advise takes one HARDWARE; got 'l4' as well: give each by itself"),
        (["sweep", "gpt2", "t4", "l4"],
         "sweep takes one HARDWARE; got 'l4' as well: `llmviewer sweep gpt2 t4,l4 --over"),
        (["analyze", "h100-sxm", "gpt2"], "no hardware 'gpt2': that is a model"),
        (["analyze", "gpt2", "8xh100"],
         "no hardware '8xh100': give h100 and how many share the model, such as --tp 8 (`llmviewer "),
        (["choose", "h100"], "no model 'h100': that is a device; a model comes first (`llmviewer models` lists all)"),
        (["sweep", "gpt2", "t4", "--batch", "1..8"],
         "Invalid value for '--batch': must be a whole number; got '1..8'; `llmviewer sweep` takes --over batch=1..8"),
        (["analyze", "gpt2", "t4", "--batch", "1,8"],
         "Invalid value for '--batch': must be a whole number, or max for the largest that fits; got '1,8'; "),
        (["analyze", "gpt2", "t4", "--bound", "--library", "vllm"],
         "--bound must be given without library, engine and profiles; leave them out"),
        (["analyze", "gpt2", "t4", "--dtype", "fp8"], "No such option '--dtype'. Here it is --quant."),
        (["analyze", "gpt2", "t4", "--tp-size", "2"], "No such option '--tp-size'. Here it is --tp."),
        (["hardware", "--dtype", "fp8"], "No such option '--dtype'. `llmviewer --help` and"),
        (["benchmark"], "no command 'benchmark': "),
        (["analyse", "llama-2-7b"], "no command 'analyse': did you mean analyze? (`llmviewer --help` describes all)"),
        (["analyze", "llama-2-7b", "rtx-a6000", "--quant", "W4X"], "quantization must be bits or formats of W"),
        (["analyze", "llama-2-7b", "rtx-a6000", "--attention", "x"],
         "--attention must be one of eager, flash; got 'x'"),
        (["sweep", "llama-2-7b", "rtx-a6000", "--over", "batch"], "--over batch: must be AXIS=VALUES"),
        (["sweep", "llama-2-7b", "rtx-a6000", "--over", "batches=1,2"],
         "--over batches=1,2: no axis 'batches'; did you mean batch?"),
        (["sweep", "llama-2-7b", "rtx-a6000", "--over", "bandwidth=1x,2x"],
         "--over bandwidth=1x,2x: no axis 'bandwidth'; did you mean host.bandwidth or "),
        (["sweep", "llama-2-7b", "rtx-a6000", "--over", "batch=4..1"], "--over batch=4..1: must be whole numbers"),
        (["sweep", "llama-2-7b", "rtx-a6000", "--over", "batch=0,1"], "batch must be a whole number of at least 1"),
        (["sweep", "gpt2", "rtx-a6000", "--over", "batch=1", "-o", "x.xls"], "x.xls: must end in .csv or .parquet"),
        (["plot", "roofline", "llama-2-7b", "rtx-a6000", "-o", "x.gif"], "x.gif: must end in .html"),
    ],
)  # fmt: skip
def test_input_error_is_one_line_on_stderr_and_exit_code_2(capsys, arguments, line):
    code, out, err = run(capsys, *arguments)
    assert code == 2
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith(f"llmviewer: {line}")


MODEL_FILES = "give a .json, .yaml, .gguf or .safetensors file, or a folder with a config.json"
LENGTHS = (
    "must be a number of tokens, uniform:LEAST-MOST, lognormal:KEY=TOKENS,KEY=TOKENS with two of mean, p50, p90, p95 "
    "and p99, one of sharegpt4, arxiv, lmsys-chat, translation, or the name of a text file with one length a line, of "
    "1 to 16777216 tokens"
)
NUMBERS = "must be whole numbers, or ranges such as 1..256, 1..256*2 (doubling) or 128..4096+128 (in steps)"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ("analyze gpt2 t4 --quant=", "--quant must not be empty; leave it out"),
        ("analyze gpt2 t4 --quant fp8 --batch 2 --quant W8A8", "--quant must be given once; got it 2 times"),
        ("simulate gpt2 t4 --rate 1 --prompt-lengths foo --gen 9", f"--prompt-lengths: {LENGTHS}; got 'foo'"),
        ("simulate gpt2 t4 --rate 1 --prompt foo --gen-lengths 9", f"--prompt: {LENGTHS}; got 'foo'"),
        ("simulate gpt2 t4 --rate 1 --gen=foo", f"--gen: {LENGTHS}; got 'foo'"),
        ("simulate gpt2 t4", ("exactly one of rate (--rate, in req/s), arrivals (--arrivals, a trace file) and "
         "concurrency (--concurrency, a number of clients) must be given")),
        ("plan gpt2 --rate 4 --rate 5 --rate=6", "--rate must be given once; got it 3 times"),
        ("plan gpt2 t4 --rate 4", "plan takes no 't4' by itself; give it as --hardware"),
        ("choose gpt2 t4", "choose takes no 't4' by itself; give it as --hardware"),
        ("analyze ./nofolder t4", "./nofolder: there is no such file or folder"),
        ("analyze gpt2 ../nofolder", "../nofolder: there is no such file or folder"),
        ("analyze gpt2 h100,l40s", ("no hardware 'h100,l40s': give one; `llmviewer compare` takes several "
         "(`llmviewer hardware` lists all)")),
        ("analyze gpt2,llama-2-7b t4", ("no model 'gpt2,llama-2-7b': give one; `llmviewer compare` takes several, and "
         "sweeps to a folder do")),
        ("analyze gpt2 t4 --kv-len 0", "--kv-len must be a whole number of at least 1; got 0"),
        ("plot rofline gpt2 t4", "no figure 'rofline': did you mean roofline?"),
        ("plot memory gpt2 t4 --quant 'W4;W4'", "--quant: W4 is given twice; give each once"),
        ("compare gpt2 all h100", "all includes every device; leave out the other names"),
        ("choose gpt2 --hardware all,h100", "all includes every device; leave out the other names"),
        ("analyze gpt2 t4 --with foo",
         "no technique 'foo': the nearest are fork, fusion (`llmviewer techniques` lists all)"),
        ("analyze gpt2 t4 --with eagle,fusion",
         "a technique is given by itself: --with eagle --with fusion; got 'eagle,fusion'"),
        ("analyze gpt2 t4 --with KV4", "no technique 'KV4': it is a precision; give it as --quant KV4"),
        ("analyze gpt2 t4 --with W8A8", "no technique 'W8A8': it is a precision; give it as --quant W8A8"),
        ("analyze gpt2 t4 --with Q4_K_M", "no technique 'Q4_K_M': it is a precision; give it as --quant Q4_K_M"),
        ("analyze gpt2 t4 --offload=", "--offload must not be empty; leave it out"),
        ("models ''", "[NAME] must not be empty; leave it out"),
        ("choose gpt2 --users 0", "Invalid value for '--users': must be a whole number of at least 1; got 0"),
        ("analyze /dev/null t4", f"/dev/null: must be a model file; {MODEL_FILES}"),
        ("analyze gpt2 /dev", "/dev: must be a .yaml file, or a name that `llmviewer hardware` lists"),
        ("analyze bert-base-uncased t4 --gen 10",
         "--gen must be left out: bert-base-uncased does not generate"),
        ("models gpt2 -o g.foo", "g.foo: must end in one of .txt, .json, .dot, .mmd, .mermaid; or give --format"),
        ("models gpt2 --format json -o x.dot", "x.dot: ends in .dot, and --format is json; leave one of them out"),
        ("analyze gpt2 t4 -o ''", "-o / --output must not be empty; give a path, such as ./name"),
        ("compare gpt2 t4 -o ' '", "-o / --output must not be empty; give a path, such as ./name"),
        ("calibrate rows.csv -o ''", "-o / --output must not be empty; give a path, such as ./name"),
        ("measure -o ''", "-o / --output must not be empty; give a path, such as ./name"),
        ("sweep gpt2 t4 --over batch=1 -o ''", "-o / --output must not be empty; leave it out"),
        ("analyze gpt2 t4 --profile ''", "--profile must not be empty; give a path, such as ./name"),
        ("timeline '' gpt2 t4", "FILE must not be empty; give a path, such as ./name"),
        ("analyze gpt2 t4 --format csv -o x.json", "x.json: ends in .json, and --format is csv; leave one of them out"),
        ("analyze gpt2 t4 -o x.foo", "x.foo: must end in one of .json, .csv, .md, .html, .txt; or give --format"),
        ("sweep gpt2 t4 --over batch=1..10000000000000",
         "--over batch=1..10000000000000: must be at most 10000000 values; got 10000000000000"),
        ("sweep gpt2 t4 --over batch=1..10001 --over prompt=1..10001",
         "a sweep must have at most 100000000 points; got 100020001; write shards with -o DIR/"),
        ("compare gpt2 t4 --batch 1..1000000000", "--batch=1..1000000000: must be at most 1000 values; got 1000000000"),
        ("compare gpt2 t4 --batch 1..8192*4",
         ("--batch=1..8192*4: 1..8192*4 must include its end, but its last value is 4096; give 1..4096*4, or "
          "1..4096*4,8192")),
        ("kernel gemm t4 M=1,2..20+8 N=1 K=1",
         "M=1,2..20+8: 2..20+8 must include its end, but its last value is 18; give 2..18+8, or 2..18+8,20"),
        ("analyze gpt2 t4 --with chunked-prefill --prompt 1000000000000",
         ("chunked-prefill: a prompt must have at most 1048576 chunks of 512 tokens, because each is evaluated; got "
          "1000000000000 tokens")),
        ("afd deepseek-v3 h100-sxm h100-sxm --batch 1..10000",
         "--batch=1..10000: must be at most 1000 values; got 10000"),
        ("plan gpt2 --rate 1 --hardware t4,l4,a10 --max-devices 100000",
         ("--max-devices must make at most 300,000,000 combinations of devices, layouts, precisions, replicas and "
          "batches; 100000 makes 432,000,000: lower it, or name a few devices")),
        ("compare gpt2 t4 --batch x", f"--batch=x: {NUMBERS}; got 'x'"),
        ("compare gpt2 t4 --depreciation 0", "--depreciation must be a positive number; got 0"),
        ("compare gpt2 t4 --quant fp8 --quant fp8", "--quant: fp8 is given twice; give each once"),
        ("choose gpt2 --quant ''", "--quant must not be empty; leave it out"),
        ("choose gpt2 -o x.foo", "x.foo: must end in one of .json, .csv, .md, .html, .txt; or give --format"),
        ("sweep gpt2 t4 --over batch=1,2,1", "batch: 1 is given twice; give each once"),
        ("sweep gpt2 t4 --over batch=1,2,1 -o new/", "batch: 1 is given twice; give each once"),
        ("sweep gpt2 t4 --over batch=1,2 --batch 4", "--batch: the axis batch of --over sets it too; give one of them"),
        ("sweep gpt2 t4 --over quant=fp8 --quant fp8 -o new/",
         "--quant: the axis quant of --over sets it too; give one of them"),
        ("sweep gpt2 t4 --over layout=tp=2 --tp 4 -o new/",
         "--tp: the axis layout of --over sets it too; give one of them"),
        ("sweep gpt2 t4 --over kv_len=9 --kv-len 9",
         "--kv-len: the axis kv_len of --over sets it too; give one of them"),
        ("sweep gpt2 t4 --over memory.bandwidth=6TB/s..24TB/s --over batch=1",
         ("memory.bandwidth=6TB/s..24TB/s: must be a positive number and a unit in B/s, such as "
         "'1.5 TB/s'; got '6TB/s..24TB/s'; a factor such as 2x works too")),
        ("sweep gpt2 t4 --over batch=1 --library vllm",
         "--library: applies only to expected times; give expected=True (--expected)"),
    ],
)  # fmt: skip
def test_command_line_errors_name_the_option_as_typed(capsys, tmp_path, monkeypatch, arguments, line):
    monkeypatch.chdir(tmp_path)
    assert run(capsys, *shlex.split(arguments)) == (2, "", f"llmviewer: {line}\n")
    assert list(tmp_path.iterdir()) == []


def test_command_without_arguments_prints_the_help(capsys):
    assert main([]) == 0
    nothing = capsys.readouterr()
    assert main(["--help"]) == 0
    assert nothing == capsys.readouterr()
    assert nothing.out.startswith("Usage: llmviewer [OPTIONS] COMMAND [ARGS]...\n")


def test_long_invalid_values_are_truncated_in_errors(capsys, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "llama", "num_hidden_layers": "9" * 5000}))
    code, out, err = run(capsys, "models", str(path))
    assert (code, out) == (2, "")
    assert "num_hidden_layers: must be a whole number of at least 1; got '999" in err
    assert err.endswith("9...\n")
    assert len(err) < 400 + len(str(path))


def test_output_file_suffix_selects_the_graph_format(capsys, tmp_path):
    for name, begin in (("g.dot", "digraph"), ("g.mmd", "flowchart"), ("g.json", "{"), ("g.txt", "gpt-2")):
        assert run(capsys, "models", "gpt2", "-o", str(tmp_path / name))[0] == 0
        assert (tmp_path / name).read_text().lower().startswith(begin)


def test_full_disk_on_standard_output_is_one_error_line():
    command = f"{sys.executable} -m llmviewer analyze gpt2 t4 > /dev/full"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    said = "llmviewer: cannot write to standard output: No space left on device\n"
    assert (done.returncode, done.stderr) == (2, said)


def test_written_files_follow_the_umask_without_changing_it(tmp_path, monkeypatch):
    (tmp_path / "plain").write_text("")
    monkeypatch.setattr(os, "umask", lambda mask: pytest.fail("it is of all threads of the process"))
    write_text(tmp_path / "report.txt", "said")
    assert (tmp_path / "report.txt").read_text() == "said"
    assert (tmp_path / "report.txt").stat().st_mode == (tmp_path / "plain").stat().st_mode
    assert len(list(tmp_path.iterdir())) == 2


def test_unwritable_output_leaves_no_partial_file(capsys, tmp_path):
    missing = tmp_path / "no" / "report.json"
    code, _, err = run(capsys, "analyze", "llama-2-7b", "rtx-a6000", "-o", str(missing))
    assert (code, err) == (2, f"llmviewer: {missing}: cannot be written: No such file or directory\n")
    code, _, err = run(capsys, "analyze", "llama-2-7b", "rtx-a6000", "-o", str(tmp_path))
    assert (code, err) == (2, f"llmviewer: {tmp_path}: is a folder; give a file to write to\n")
    assert list(tmp_path.iterdir()) == []


def test_closed_pipe_is_no_error():
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    command = f"{sys.executable} -m llmviewer sweep llama-2-7b rtx-a6000 --over batch=1..50000 | head -n 1"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, env=environment, check=False
    )
    assert done.stderr == ""
    assert done.stdout.startswith('"quant"')


def test_the_command_line_loads_nothing_heavy():
    code = (
        "import sys, llmviewer.cli\n"
        "llmviewer.cli.main(['--version'])\n"
        "print([m for m in ('torch', 'triton', 'pandas', 'plotly', 'dash', 'numpy', 'pyarrow') if m in sys.modules])\n"
        "llmviewer.cli.main(['analyze', 'gpt2', 't4', '--format', 'json'])\n"
        "print([m for m in ('torch', 'triton', 'pandas', 'plotly', 'dash', 'pyarrow') if m in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert lines[1] == "[]"
    assert lines[-1] == "[]"


def test_every_command_is_listed_and_in_the_readme():
    modules = {name: import_module(f"{cli.__name__}.{name}") for _, name, _ in iter_modules(cli.__path__)}
    defined = {
        one.name: (name, one.get_short_help_str(limit=100))
        for name, module in modules.items()
        for one in vars(module).values()
        if isinstance(one, click.Command) and one.callback and one.callback.__module__ == module.__name__
    }
    assert defined == cli._COMMANDS, "llmviewer/cli/__init__.py has the module and the summary of each command"
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [name for name in defined if not re.search(rf"llmviewer {name}\b", readme)] == []
