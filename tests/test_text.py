"""The report on a terminal: what is cut where there is no room, and that nothing is where there is no terminal."""

import re
from dataclasses import replace
from pathlib import Path

import click
import pytest

from llmviewer.analyzing.analysis import analyze
from llmviewer.cli import main
from llmviewer.devices.files import load_hardware
from llmviewer.reports.analysis import REPORT, report
from llmviewer.reports.operator_table import COLUMNS, merged, rate, rows
from llmviewer.reports.phrases import between, headline, sentence
from llmviewer.reports.tables import Item, Table
from llmviewer.request import Request
from llmviewer.setting import Setting
from llmviewer.units import fold, seconds, si

CALLS = ("per-call", "all-calls")


@pytest.fixture(scope="module")
def analysis():
    return analyze("mixtral-8x7b", "h100-sxm", layout="tp=2")


def texts(row):
    return tuple(item.text for item in row)


def tables(text):
    """The lines of operators, of both phases."""
    lines = click.unstyle(text).splitlines()
    heads = [i for i, line in enumerate(lines) if line.startswith("operator ")]
    return [
        line
        for head in heads
        for line in lines[head : next(i for i in range(head, len(lines)) if "total" in lines[i]) + 1]
    ]


def test_tables_fit_the_terminal(analysis):
    lines = tables(REPORT.text(analysis, table_width=80))
    assert max(map(len, lines)) <= 80
    assert any(line.startswith("  all_reduce ") for line in lines)  # under the operator whose outputs it adds up


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("mixtral-8x7b", {"layout": "tp=2"}),
        ("deepseek-v3", {"layout": "tp=8 ep=8", "batch": 256}),  # gate_proj of experts, and of those that are shared
    ],
)
def test_names_that_have_no_room_are_broken_and_whole(name, asked):
    found = analyze(name, "h200-sxm", **asked)
    names = [row.title for _, phase in found.phases for row in merged(phase)]
    told: list[str] = []
    for line in tables(REPORT.text(found, table_width=80)):
        if len(line) > 60:
            told.append(re.split(r"(?<=\S) +\d", line)[0])
        else:  # what is left of a name
            told[-1] += line.strip() if told[-1].endswith("_") else f" {line.strip()}"
    told = [text for text in told if not text.startswith("operator ") and text != "total"]
    assert len(told) == len(names) < len(tables(REPORT.text(found, table_width=80))) - 4
    for text, name in zip(told, names, strict=True):
        assert name == text or (text.startswith("  ") and name.endswith(f"_{text.strip()}"))


def test_merged_small_operators_may_lack_an_upper_bound():
    """No kernel in fp32 of one small operator is known on this device, only its bound; of others there is more."""
    (_, phase), *_ = analyze("nomic-embed-text-v2-moe", "b200", layout="tp=4").phases
    small = [row.total for row in merged(phase) if row.total.share < 1 / 100]
    assert 0 < sum(op.expected_high_s is None for op in small) < len(small)
    (line,) = [texts(row) for row in rows(phase, per_call=False, brief=True) if "under" in row[0].text]
    assert re.fullmatch(r"[\d.]+us", line[-2].replace(" ", ""))


@pytest.mark.slow("the longest tables")
def test_long_table_merges_small_operators_into_one_line():
    found = analyze("kimi-k3", "h200-sxm")
    shown = [re.split(" {2,}", line)[0] for line in tables(report(brief=True).text(found))]
    for (_, phase), left_out in zip(found.phases, [text for text in shown if "under 1%" in text], strict=True):
        table, total = merged(phase), phase.total
        small = [
            row.total
            for row in table
            if row.total.bound_time_s < total.bound_time_s / 100
            and row.total.expected_time_s < total.expected_time_s / 100
        ]
        (line,) = [texts(row) for row in rows(phase, per_call=False, brief=True) if "under" in row[0].text]
        assert line[:2] == (left_out, str(sum(op.repeat for op in small))) == (f"{len(small)} under 1%", line[1])
        assert line[-3] == seconds(sum(op.bound_time_s for op in small))
        assert line[-1] == f"{sum(op.share for op in small):.1%}"
        assert len(rows(phase, per_call=False, brief=True)) == len(table) - len(small) + 2


@pytest.mark.slow("the longest tables")
def test_only_a_long_table_on_the_screen_leaves_operators_out(capsys, tmp_path):
    def told(name, *options):
        assert main(["analyze", name, "h200-sxm", *options]) == 0
        text = capsys.readouterr().out
        return len(tables(text)), "--all lists the operators" in text

    def lines(name):
        return sum(2 + len(merged(phase)) for _, phase in analyze(name, "h200-sxm").phases)

    few, noted = told("kimi-k3")
    assert few < lines("kimi-k3") / 3
    assert noted
    assert told("kimi-k3", "--all") == (lines("kimi-k3"), False)
    assert told("llama-3.1-8b") == (lines("llama-3.1-8b"), False)
    path = tmp_path / "kimi.txt"
    told("kimi-k3", "-o", str(path))
    assert len(tables(path.read_text())) == lines("kimi-k3")


@pytest.mark.parametrize("form", ["csv", "json", "html", "markdown"])
def test_a_format_that_has_every_operator_takes_no_all(capsys, form):
    assert main(["analyze", "gpt2", "t4", "--format", form, "--all"]) == 2
    assert (
        capsys.readouterr().err
        == f"llmviewer: --all applies to text; leave it out with {form}, which has every operator\n"
    )


def test_merged_row_is_named_by_the_common_part_of_its_blocks():
    table = merged(analyze("gemma-3n-e2b", "h200-sxm").phases.prefill)
    blocks = {row.title: [part.block for part in row.parts] for row in table}
    assert blocks["attention (local)"] == ["local_cut", "local", "local_borrowing"]
    assert blocks["attention (global)"] == ["global_cut", "global", "global_borrowing"]
    assert blocks["mlp_act (cut)"] == ["local_cut", "global_cut"]
    assert blocks["mlp_act (local +3)"] == ["local", "global", "local_borrowing", "global_borrowing"]  # cut has both


def test_all_parts_of_an_operator_stand_under_it():
    found = analyze("llama-3.1-8b", "h100-sxm", techniques=["lora:rank=16"], layout="tp=2")
    lines = tables(REPORT.text(found, table_width=80))
    under = [line.split()[0] for line in lines if line.startswith("  ")]
    projections = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    assert under.count("lora_in") == under.count("lora_out") == 2 * len(projections)
    assert not [line for line in lines if "lora" in line and not line.startswith("  lora")]
    assert "all_reduce" in under


def test_a_row_of_one_launch_has_its_times_too(capsys):
    def cells(*options):
        assert main(["analyze", "llama-3.1-8b", "h100-sxm", *options]) == 0
        text = capsys.readouterr().out
        lines = [line.strip("| ").replace(" | ", "|").split("|") for line in text.splitlines() if line[:2] == "| "]
        return text, next(line for line in lines if line[0] == "gate_proj"), next(x for x in lines if x[0] == "total")

    found = analyze("llama-3.1-8b", "h100-sxm").phases.prefill
    op = next(op for op in found.operators if op.name == "gate_proj")
    (text, one, whole), (other, every, total) = (cells("--format", "markdown", f"--{which}") for which in CALLS)
    assert one[:2] == every[:2] == ["gate_proj", "32"]
    assert one[10:12] == [seconds(op.bound_time_s / 32), seconds(op.expected_time_s / 32)]
    assert every[10:12] == [seconds(op.bound_time_s), seconds(op.expected_time_s)]
    assert whole == total
    assert text.count("(one launch per row)") == 2
    assert "launch per row" not in other


@pytest.mark.parametrize(
    ("layout", "memory", "part", "amounts"),
    [
        ("tp=2", " of each device, ", "", " (one device)"),
        ("pp=2", " of the fullest device, ", ", one of 2 micro-batches, ",
         " (one device per stage)"),
    ],
)  # fmt: skip
def test_report_of_several_devices_labels_per_device_numbers(layout, memory, part, amounts):
    text = " ".join(REPORT.text(analyze("llama-3.1-8b", "h100-sxm", batch=4, layout=layout)).split())
    assert text.count(memory) == 1
    assert text.count(part) == 2 or not part
    assert text.count(amounts) == 2


@pytest.mark.parametrize("form", ["csv", "json", "html"])
@pytest.mark.parametrize("option", ["--per-call", "--all-calls"])
def test_a_format_that_has_all_launches_takes_no_other(capsys, form, option):
    assert main(["analyze", "gpt2", "t4", "--format", form, option]) == 2
    assert capsys.readouterr().err == (
        "llmviewer: --per-call and --all-calls apply to text and markdown; leave them out with "
        f"{form}, which has the launches of each operator\n"
    )


def test_operators_without_arithmetic_show_no_data_type():
    found = analyze("llama-3.1-8b", "h100-sxm", layout="tp=2").phases.prefill
    shown = {row[0].text: row[COLUMNS.index("in")].text for row in rows(found, per_call=False)}
    assert shown["embed_tokens"] == shown["o_proj_all_reduce"] == "-"
    assert (shown["o_proj"], shown["attn_norm"]) == ("bf16", "fp32")


def test_headline_names_the_kernel_library_of_an_engine():
    for name, said in (
        ("openppl", "openppl with kernels of cublas (standing in for its own)"),
        ("lightllm", "lightllm with kernels of sglang (standing in for its own, time between steps fitted)"),
        ("flashdecoding++", "flashdecoding++ with kernels of vllm (kernels' factor fitted)"),
        ("tensorrt-llm", "tensorrt-llm with kernels of trtllm"),
    ):
        assert headline(analyze("gpt2", "h100-sxm", engine=name)).endswith(f", engine {said}")
    assert "kernels" not in headline(analyze("gpt2", "h100-sxm"))


@pytest.mark.parametrize("name", ["kimi-k3", "gemma-3n-e2b", "switch-base-8", "deepseek-v4-flash"])
def test_an_operator_that_does_the_same_in_several_blocks_has_one_row(name):
    found = analyze(name, "h200-sxm")
    assert len(REPORT.text(found).splitlines()) < 200
    for _, phase in found.phases:
        table = merged(phase)
        assert sorted(map(id, (part for row in table for part in row.parts))) == sorted(map(id, phase.operators))
        assert len({row.title for row in table}) == len(table) < len(phase.operators)
        for field in ("ops", "bytes", "bound_time_s"):
            assert sum(getattr(row.total, field) for row in table) == pytest.approx(getattr(phase.total, field))
        for row in table:
            assert row.total.repeat * row.total.per_call.ops == pytest.approx(row.total.ops)


@pytest.mark.parametrize("there", [{}, {"table_width": 120}])
def test_names_are_whole_where_there_is_room_or_no_terminal(analysis, there):
    text = "\n".join(tables(REPORT.text(analysis, **there)))
    assert "…" not in text
    for phase in (analysis.phases.prefill, analysis.phases.decode):
        assert all(f"\n{op.name} " in text for op in phase.operators)


@pytest.mark.parametrize(
    ("name", "device", "asked"),
    [
        ("mixtral-8x7b", "tpu-v5e", {"batch": 1000}),  # without what is expected
        ("gemma-3n-e2b", "wse-3", {"batch": 64, "prompt": 100_000, "quant": "fp8"}),
        ("deepseek-v3.1", "m2-max", {"batch": 5000, "prompt": 32768}),
        ("llama-3.1-70b", "h100-sxm", {"layout": "tp=8"}),
    ],
)
def test_tables_of_large_numbers_fit_too(name, device, asked):
    lines = tables(REPORT.text(analyze(name, device, **asked), table_width=80))
    assert max(map(len, lines)) <= 80
    assert max(map(len, lines)) > 60


def test_a_bracket_has_two_ends():
    assert between(0.0253, 0.02531, 0.02532) == "25.3 ms"
    assert between(0.0253, 0.0241, 0.0266) == "25.3 ms (24.1 to 26.6 ms)"
    assert between(None, None, None) == ""
    setting = Setting.of("llama-3.1-8b", "a100-sxm-80gb", engine="huggingface")
    host = replace(setting.engine.host, launch_range=(1.0, 1.0))
    found = analyze(replace(setting, engine=replace(setting.engine, host=host)), Request())
    whole = found.generation
    assert whole.expected_tpot_low_s == whole.expected_tpot_high_s
    text = " ".join(click.unstyle(REPORT.text(found)).split())
    assert f"expected {seconds(whole.expected_tpot_s)} E2E latency" in text
    total = found.phases.decode.total
    assert f"expected {seconds(total.expected_time_s)} ({total.expectation_source}" in text


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("scale_up.latency of h100-sxm is not known", "scale_up.latency of h100-sxm is not known."),
        ("tp=2: norm run on every rank", "tp=2: norm run on every rank."),
        ("gpt2 does not generate", "gpt2 does not generate."),
        ("weights of q_proj in int4 are multiplied in bf16", "Weights of q_proj in int4 are multiplied in bf16."),
        ("what-if: cores.count=2x", "What-if: cores.count=2x."),
    ],
)
def test_sentences_are_capitalized_unless_they_start_with_code(text, told):
    assert sentence(text) == told


def test_options_are_not_cut_at_their_hyphens(capsys):
    assert main(["analyze", "llama-3.1-8b", "h100-sxm", "--tp", "8"]) == 0
    assert not [line for line in capsys.readouterr().out.splitlines() if line.endswith("-")]


def test_links_that_nothing_is_sent_over_need_no_note():
    copies = analyze("llama-3.1-8b", "h100-sxm", layout="dp=8", batch=8)
    cut = analyze("llama-3.1-8b", "h100-sxm", layout="tp=8", batch=8)
    experts = analyze("mixtral-8x7b", "h100-sxm", layout="dp=8 ep=8", batch=8)
    told = [any("scale_up.latency" in note for note in found.notes) for found in (copies, cut, experts)]
    assert told == [False, True, True]
    assert not any("PCIe" in note or "links" in note for note in analyze("gpt2", "l4", layout="dp=2", batch=2).notes)
    assert any("host links" in note for note in analyze("llama-3.1-8b", "l4", layout="tp=2").notes)


def test_repr_in_a_notebook_is_short():
    found = analyze("deepseek-v3", "h200-sxm", layout="dp=8 ep=8", batch=8)
    setting = Setting.of("deepseek-v3", "h200-sxm", mtp=True)
    assert len(repr(found)) < 1_000
    for thing in (setting, setting.plan):
        assert len(repr(thing)) < 2_000
    assert repr(found).startswith("DeepSeek-V3 on 8 x NVIDIA H200 SXM 141 GB (ep=8 dp=8): batch 8, prompt 1024, 128\n")
    what_if = load_hardware("h200-sxm", ["memory.bandwidth=2x"])
    assert repr(what_if) == "Hardware('h200-sxm', 'memory.bandwidth=2x')"


def test_the_layouts_in_the_documentation_have_these_bounds():
    text = (Path(__file__).parent.parent / "docs" / "parallel.md").read_text()
    for layout in ("tp=8", "tp=4 pp=2", "tp=2 pp=4"):
        found = analyze("llama-3.1-70b", "h100-sxm", layout=layout, batch=16, prompt=2048)
        whole = found.generation
        cells = (f"`{layout}`", seconds(whole.ttft_s), seconds(whole.tpot_s), rate(whole.tokens_per_s))
        assert f"| {' | '.join(cells)} | {si(found.memory.total_bytes)}B |" in text


@pytest.mark.parametrize(("columns", "most"), [("60", 60), ("20", 40), ("120", 80)])
def test_words_are_as_wide_as_a_narrow_terminal_and_tables_are_whole(capsys, monkeypatch, columns, most):
    monkeypatch.setenv("COLUMNS", columns)
    assert main(["analyze", "llama-3.1-8b", "h100-sxm"]) == 0
    text = capsys.readouterr().out
    rows = tables(text)
    assert max(map(len, rows)) <= max(most, 80)
    assert len(rows[0]) > 60
    assert most - 12 < max(len(line) for line in text.splitlines() if line not in rows) <= most


@pytest.mark.parametrize(
    "asked",
    ["compare gpt2 t4 l4", "kernel gemm t4 M=1 N=64 K=64", "models gpt2", "hardware t4", "kernel"],
)
def test_other_reports_wrap_their_words_on_a_narrow_terminal_and_leave_tables_whole(capsys, monkeypatch, asked):
    lines = {}
    for columns in ("50", "80", "200"):
        monkeypatch.setenv("COLUMNS", columns)
        assert main(asked.split()) == 0
        lines[columns] = capsys.readouterr().out.splitlines()
    assert lines["50"] != lines["80"] == lines["200"]
    assert {line for line in lines["50"] if len(line) > 50} <= set(lines["80"])  # words would break elsewhere


def test_large_numbers_are_formatted_readably():
    assert (fold(1398.6, 2), fold(812.3, 2), fold(20.96), fold(0.5)) == ("1400x", "810x", "21x", "0.5x")
    assert (seconds(99999), seconds(1e6), seconds(1.66e10)) == ("99999 s", "11.6 days", "526 years")


@pytest.mark.parametrize(("columns", "most"), [("80", 80), ("", None)])
def test_width_without_a_terminal_follows_the_environment(capsys, monkeypatch, columns, most):
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns:
        monkeypatch.setenv("COLUMNS", columns)
    assert main(["analyze", "llama-3.1-8b", "h100-sxm", "--tp", "8"]) == 0
    widest = max(map(len, tables(capsys.readouterr().out)))
    assert widest <= most if most else widest > 80


_WIDE = Table(
    title="Wide", about="", head=("model name", "expected time", "host share", "notes"), words=("model name", "notes"),
    body=tuple(tuple(Item(text=text) for text in row) for row in (
        ("llama-3.1-70b-instruct", "12.5 ms", "10%", "as published"), ("gpt2", "1.00 ms", "5%", "-"),
    )),
)  # fmt: skip


def test_a_table_breaks_heads_then_words_to_fit():
    whole = _WIDE.text(table_width=61).splitlines()
    assert whole[1:3] == ["model name             expected time host share notes", _WIDE.text().splitlines()[2]]
    assert _WIDE.text(table_width=50).splitlines()[1:4] == [
        "model name             expected  host notes",
        "                           time share",
        "llama-3.1-70b-instruct  12.5 ms   10% as published",
    ]
    assert _WIDE.text(table_width=44).splitlines()[3:5] == [
        "llama-3.1-70b-  12.5 ms   10% as published",
        " instruct",
    ]


def test_a_table_leaves_out_spare_columns_and_says_so():
    text = replace(_WIDE, spare=("notes",)).text(table_width=50)
    assert text.splitlines()[1] == "model name             expected time host share"
    assert text.endswith("\nLeft out for width: notes.\n")
    assert "Left out" not in replace(_WIDE, spare=("notes",)).text()


def test_columns_without_room_go_on_under_the_others_and_none_is_lost():
    lines = _WIDE.text(table_width=36).splitlines()[1:]
    assert max(map(len, lines)) <= 36
    assert [line for line in lines if line.startswith("llama")] == [
        "llama-3.1-70b-instruct  12.5 ms", "llama-3.1-70b-instruct   10%", "llama-3.1-70b-instruct as published",
    ]  # fmt: skip
