"""compare() and sweep() under techniques: every cell and every row equals its own analyze()."""

from __future__ import annotations

import csv
import io

import pytest

import llmviewer
from llmviewer.cli import main
from llmviewer.comparing.cells import TECHNIQUE
from llmviewer.comparing.comparison import compare
from llmviewer.errors import InputError
from llmviewer.reports.comparison import REPORT
from llmviewer.setting import Setting, changes_passes
from llmviewer.sweeping.grid import sweep
from llmviewer.techniques import parse_technique, techniques

from .cases import first_fast
from .test_techniques import GIVEN, SPECULATIVE

MODELS = ("llama-2-7b", "mixtral-8x7b", "deepseek-v3")
# of models without decode steps: test_denoising.py, test_techniques.py
DECODING = [name for name in techniques() if name not in ("denoising", "encoder-exit")]
TIMES = ("ttft_s", "tpot_s", "latency_s")
EXPECTED = ("expected_ttft_s", "expected_tpot_s", "expected_latency_s", "expected_tokens_per_s")


def written(name):
    return f"{name}:{GIVEN[name]}" if name in GIVEN else name


def model_for(technique):
    """The first of a few models that the technique makes sense for."""
    for name in MODELS:
        try:
            Setting.of(name, "h100-sxm", techniques=[technique])
        except InputError:
            continue
        return name
    raise AssertionError(technique)


@pytest.mark.parametrize("name", first_fast(DECODING, "every technique", 21))
def test_cell_equals_the_analysis(name):
    asked = {"prompt": 600, "gen": 50, "techniques": [written(name)]}
    model = model_for(written(name))
    found = compare(model, "h100-sxm", batch=[1, 7], **asked)
    (cell,) = found.cells
    for i, batch in enumerate(found.batches):
        one = llmviewer.analyze(model, "h100-sxm", batch=batch, **asked)
        for field in (*TIMES, "tokens_per_s"):
            assert getattr(cell, field)[i] == pytest.approx(getattr(one.generation, field), rel=1e-12), field
        assert cell.total_bytes[i] == pytest.approx(one.memory.total_bytes, rel=1e-12)
        assert cell.largest.batch == one.memory.max_batch
        assert cell.expected.ttft.expected[i] == pytest.approx(one.generation.expected_ttft_s)
        assert cell.expected.tpot.expected[i] == pytest.approx(one.generation.expected_tpot_s)
    assert found.techniques == tuple(map(str, [parse_technique(written(name))]))
    assert found.crossings  # looked for along batches and lengths, whatever becomes of these


@pytest.mark.parametrize("name", first_fast(DECODING, "every technique", 8))
def test_sweep_row_equals_the_analysis(name):
    asked, model = {"techniques": [written(name)]}, model_for(written(name))
    over = {"batch": [1, 7], "prompt": [300, 601], "gen": [2, 50]}
    rows = sweep(model, "h100-sxm", over, expected=True, **asked).to_frame().to_dict("records")
    assert len(rows) == 8
    for row in rows[::3]:  # each value of each axis is there, not always beside the same others
        point = {axis: int(row[axis]) for axis in over}
        one = llmviewer.analyze(model, "h100-sxm", **point, **asked)
        for field in (*TIMES, "tokens_per_s", *EXPECTED):
            assert row[field] == pytest.approx(getattr(one.generation, field), rel=1e-6), (field, point)
        assert row["decode_step_s"] == pytest.approx(one.phases.decode.total.bound_time_s, rel=1e-12)
        assert row["total_bytes"] == pytest.approx(one.memory.total_bytes, rel=1e-12)
        if changes_passes([parse_technique(written(name))]):
            assert row["decode_tokens_per_s"] != row["decode_tokens_per_s"]  # not known
        else:
            assert row["decode_tokens_per_s"] == pytest.approx(row["batch"] / row["decode_step_s"])


@pytest.mark.parametrize("layout", ["tp=2", "tp=4", "dp=2"])
def test_techniques_go_with_layouts(layout):
    asked = {"techniques": [SPECULATIVE, "chunked-prefill"], "layout": layout}
    (cell,) = compare("llama-2-7b", "a100-sxm-80gb", batch=[4], **asked).cells
    (row,) = sweep("llama-2-7b", "a100-sxm-80gb", {"batch": [4]}, gen=128, **asked).to_frame().to_dict("records")
    one = llmviewer.analyze("llama-2-7b", "a100-sxm-80gb", batch=4, **asked).generation
    for field in (*TIMES, "tokens_per_s"):
        assert float(getattr(cell, field)[0]) == pytest.approx(getattr(one, field), rel=1e-12)
        assert row[field] == pytest.approx(getattr(one, field), rel=1e-12)


def test_devices_compared_together_equal_each_alone():
    asked = {"techniques": ["window:size=64"], "batch": [1, 16]}
    together = compare("llama-2-7b", ["h100-sxm", "rtx-4090", "l4"], **asked)
    for cell in together.cells:
        (alone,) = compare("llama-2-7b", cell.hardware, **asked).cells
        assert cell.ttft_s.tolist() == alone.ttft_s.tolist()
        assert cell.decode.sensitivity() == alone.decode.sensitivity()


def test_bounds_and_shares_describe_the_executed_pass():
    (plain,), (verified,) = (
        compare("llama-2-7b", "h100-sxm", batch=64, techniques=asked).cells for asked in ((), (SPECULATIVE,))
    )
    assert float(verified.decode.time_s[0]) > float(plain.decode.time_s[0])
    assert float(verified.tpot_s[0]) < float(plain.tpot_s[0])


def test_cell_states_why_a_technique_does_not_apply():
    found = compare(["llama-2-7b", "bert-base-uncased"], "h100-sxm", techniques=[SPECULATIVE])
    able, other = found.cells
    assert not able.refused
    assert other.obstacle == TECHNIQUE
    assert other.refused.startswith("speculative: ")
    text = REPORT.text(found)
    assert f"with {parse_technique(SPECULATIVE)}" in " ".join(text.split())
    assert "h100-sxm cannot run bert-base-uncased published: speculative: " in " ".join(text.split())
    with pytest.raises(InputError, match=r"^speculative: "):
        compare("bert-base-uncased", "h100-sxm", techniques=[SPECULATIVE])
    one, both = compare(
        "llama-2-7b", "h100-sxm", quants=["published", "fp8"], techniques=["quantized:scheme=quarot"]
    ).cells
    assert not one.refused
    assert both.refused.endswith("also sets the precision; give one of the two")


def test_the_page_shows_a_technique():
    page = REPORT.html(compare("llama-2-7b", "h100-sxm", techniques=[SPECULATIVE, written("lengths")]))
    assert "speculative:" in page


def test_on_the_command_line(capsys):
    assert main(["compare", "llama-2-7b", "h100-sxm", "--with", SPECULATIVE, "--format", "csv"]) == 0
    (row,) = csv.DictReader(io.StringIO(capsys.readouterr().out))
    one = llmviewer.analyze("llama-2-7b", "h100-sxm", techniques=[SPECULATIVE]).generation
    assert float(row["tpot_s"]) == pytest.approx(one.tpot_s)
    assert main(["sweep", "llama-2-7b", "h100-sxm", "--with", SPECULATIVE, "--over", "batch=1", "--gen", "128"]) == 0
    (row,) = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert float(row["tpot_s"]) == pytest.approx(one.tpot_s)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (
            ["--with", SPECULATIVE],
            "speculative: changes the passes of a generation; give the output length gen (--gen)",
        ),
        (
            ["--with", "quantized:scheme=quarot", "--over", "quant=fp8"],
            "quantized: sets precision W4A4KV4, as the axis quant does; give one of the two",
        ),
        (["--with", "window:size=64", "--with", "window:size=32"], "window is given twice; "),
        (["--with", "magic"], "no technique 'magic': "),
    ],
)
@pytest.mark.parametrize("folder", [False, True])
def test_mistakes_get_one_line(tmp_path, capsys, options, line, folder):
    into = ["-o", f"{tmp_path}/new/"] if folder else []
    assert main(["sweep", "llama-2-7b", "h100-sxm", "--over", "batch=1,2", *options, *into]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"llmviewer: {line}")
    assert err.count("\n") == 1
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("layout", ["pp=2", "tp=2 pp=4"])
@pytest.mark.parametrize("technique", ["lora", "early-exit", "kv-quant"])
def test_expected_time_of_a_pipeline_equals_the_analysis(technique, layout):
    asked = {"layout": layout, "techniques": [technique], "batch": 4, "prompt": 512, "gen": 64}
    one = llmviewer.analyze("llama-3-8b", "h100-sxm", **asked).generation
    row = llmviewer.compare(["llama-3-8b"], ["h100-sxm"], **asked).to_frame().iloc[0]
    assert row.expected_ttft_s == pytest.approx(one.expected_ttft_s, rel=1e-3)
    assert row.expected_tpot_s == pytest.approx(one.expected_tpot_s, rel=1e-3)
