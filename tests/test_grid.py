"""sweep(): the grid in order, every column equal to analyze() of the point."""

import csv

import numpy as np
import pytest
from pyarrow import parquet

import llmviewer
from llmviewer.cli import main
from llmviewer.devices.files import load_hardware
from llmviewer.errors import InputError
from llmviewer.sweeping.axes import parse_axis
from llmviewer.sweeping.export import sweep_csv, write_sweep
from llmviewer.sweeping.grid import sweep, sweep_blocks


def test_every_point_equals_its_own_analysis():
    over = {"quant": ["published", "KV8"], "batch": [1, 7], "memory.bandwidth": ["1x", "2x"], "prompt": [100, 3000]}
    result = llmviewer.sweep("gpt-oss-20b", "h100-sxm", over, gen=32, hardware_set=["memory.capacity=14 GB"])
    frame = result.to_frame()
    assert len(frame) == len(result) == 16
    for row in frame.itertuples():
        changes = ["memory.capacity=14 GB", f"memory.bandwidth={frame['memory.bandwidth'][row.Index]}"]
        point = {"quant": row.quant, "batch": row.batch, "prompt": row.prompt, "hardware_set": changes}
        one = llmviewer.analyze("gpt-oss-20b", "h100-sxm", gen=32, **point)
        assert row.ttft_s == one.generation.ttft_s
        assert row.tpot_s == one.generation.tpot_s
        assert row.latency_s == one.generation.latency_s
        assert row.tokens_per_s == one.generation.tokens_per_s
        assert row.decode_step_s == pytest.approx(one.phases.decode.total.bound_time_s, rel=1e-12)
        assert row.prefill_ops == one.phases.prefill.total.ops
        assert row.decode_bytes == pytest.approx(one.phases.decode.total.bytes, rel=1e-12)
        assert row.total_bytes == one.memory.total_bytes
        assert row.fits == one.memory.fits


def test_the_last_axis_runs_fastest_and_techniques_may_stand_anywhere():
    result = llmviewer.sweep("gpt2", "t4", {"batch": [1, 2], "quant": ["W16A16", "W8A8"], "prompt": [5, 6]})
    points = list(zip(*(result.columns[name].tolist() for name in ("batch", "quant", "prompt")), strict=True))
    assert points == [
        (1, "W16A16", 5), (1, "W16A16", 6), (1, "W8A8", 5), (1, "W8A8", 6),
        (2, "W16A16", 5), (2, "W16A16", 6), (2, "W8A8", 5), (2, "W8A8", 6),
    ]  # fmt: skip


def test_a_grid_larger_than_a_chunk_is_filled_and_reported_on():
    told = []
    result = llmviewer.sweep(
        "gpt2", "t4", {"batch": list(range(1, 301)), "prompt": list(range(1, 101))},
        progress=lambda done, points: told.append((done, points)),
    )  # fmt: skip
    assert told == [(16384, 30000), (30000, 30000)]
    alone = llmviewer.sweep("gpt2", "t4", {"prompt": [100]}, batch=300)
    assert result.columns["ttft_s"][-1] == alone.columns["ttft_s"][0]


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("batch=1..4", [1, 2, 3, 4]),
        ("batch=1..16*4", [1, 4, 16]),
        ("prompt=128..512+128", [128, 256, 384, 512]),
        ("kv_len=1,2..3,10", [1, 2, 3, 10]),
        ("quant=W16A16, W4A16g128", ["W16A16", "W4A16g128"]),
        ("matrix.bf16=1x, 155 TOP/s", ["1x", "155 TOP/s"]),
    ],
)
def test_axis_syntax_by_example(text, values):
    assert parse_axis(text) == (text.split("=")[0], values)


@pytest.mark.parametrize(
    "text", ["batch", "depth=1", "batch=a", "batch=5..1", "batch=1..8*1", "batch=0..8*2", "batch=", "l2.capacity=,"]
)
def test_malformed_axis_is_refused_with_its_syntax(text):
    with pytest.raises(InputError, match=r"^--over .*must be"):
        parse_axis(text)


def test_an_unknown_or_empty_axis_is_refused():
    with pytest.raises(InputError, match=r"^no axis 'bacth' to sweep over; did you mean batch\?$"):
        llmviewer.sweep("gpt2", "t4", {"bacth": [1]})
    with pytest.raises(InputError, match=r"^--over l3\.size=2x: no number 'l3\.size' in a hardware file; "):
        parse_axis("l3.size=2x")
    with pytest.raises(InputError, match=r"^batch: nothing to sweep over$"):
        llmviewer.sweep("gpt2", "t4", {"batch": []})


def test_as_published_may_stand_among_precisions_once():
    assert len(llmviewer.sweep("gpt2", "t4", {"quant": [None, "fp8"]}).to_frame()) == 2
    with pytest.raises(InputError, match=r"^quant: None is given twice; give each once$"):
        llmviewer.sweep("gpt2", "t4", {"quant": [None, "fp8", None]})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"over": 0}, "over must be a mapping of axes to their values; got 0"),
        ({"over": {"batch": None}}, "batch: must be a list of values; got None"),
        ({"over": {"quant": "fp8"}}, "quant: must be a list of values; got 'fp8'"),
        ({"over": {"quant": [8]}}, "quant must be text; got 8"),
        ({"over": {"quant": ["published", "fp8", "published"]}}, "quant: published is given twice; give each once"),
        ({"over": {"batch": [8, 1, 8]}}, "batch: 8 is given twice; give each once"),
        ({"prompt": None}, "prompt must be a whole number of at least 1; got None"),
        ({"kv_len": -1}, "kv_len must be a whole number of at least 1; got -1"),
        ({"library": "vllm"}, "library: applies only to expected times; give expected=True (--expected)"),
        ({"expert_skew": "x"}, "expert_skew must be a number; got 'x'"),
        ({"offload": 0}, "offload must be text or an Offload; got 0"),
        ({"hardware_set": "memory.bandwidth=2x"}, "hardware_set must be a list of text; got 'memory.bandwidth=2x'"),
        ({"over": {"memory.bandwidth": [2]}}, "memory.bandwidth: must be texts, such as '2x' or '155 TOP/s'; got 2"),
        (
            {"over": {"matrix.fp8": ["2x"]}},
            "matrix.fp8=2x: t4 has no matrix.fp8 to multiply; give a quantity with its unit",
        ),
        (
            {"over": {"memory.bandwidth": ["2x"]}, "hardware_set": ["memory.bandwidth=3x"]},
            (
                "--hardware-set memory.bandwidth=3x: the axis memory.bandwidth also sets memory.bandwidth; give one of "
                "the two"
            ),
        ),
        (
            {"over": {"memory.bandwidth": ["2x"]}, "hardware": load_hardware("t4")},
            "what-ifs need hardware given by name; change a Hardware with dataclasses.replace",
        ),
    ],
)
def test_errors_of_the_python_function_name_its_arguments(arguments, message):
    with pytest.raises(InputError) as caught:
        llmviewer.sweep(**{"model": "gpt2", "hardware": "t4", "over": {"batch": [1]}, **arguments})
    assert str(caught.value) == message


def test_expected_columns_equal_those_of_analyze():
    over = {"batch": [1, 8], "prompt": [128, 1000], "gen": [1, 9]}
    for row in llmviewer.sweep("llama-3-8b", "h100-sxm", over, expected=True).to_frame().to_dict("records"):
        point = {axis: int(row[axis]) for axis in over}
        one = llmviewer.analyze("llama-3-8b", "h100-sxm", **point).generation
        for field in ("ttft", "tpot", "latency"):
            for end in ("", "_low", "_high"):
                found, wanted = row[f"expected_{field}{end}_s"], getattr(one, f"expected_{field}{end}_s")
                assert found == pytest.approx(wanted, rel=1e-6) if wanted else found != found
        assert row["expected_tokens_per_s"] == pytest.approx(one.expected_tokens_per_s, rel=1e-6)


def test_layouts_are_an_axis(capsys):
    ways = ["tp=1", "tp=4", "tp=2 pp=2"]
    found = llmviewer.sweep("llama-3.1-70b", "h100-sxm", {"layout": ways, "batch": [8, 64]}, gen=64, expected=True)
    assert found.columns["layout"].tolist() == [way for way in ways for _ in range(2)]
    for i, way in enumerate(ways):
        alone = llmviewer.sweep("llama-3.1-70b", "h100-sxm", {"batch": [8, 64]}, gen=64, expected=True, layout=way)
        for name, column in alone.columns.items():
            assert found.columns[name][2 * i : 2 * i + 2].tolist() == column.tolist(), name
    asked = ["sweep", "llama-3.1-70b", "h100-sxm", "--over"]
    assert main([*asked, "layout=tp=1,tp=2 pp=2"]) == 0
    header, *rows = csv.reader(capsys.readouterr().out.splitlines())
    assert [row[header.index("layout")] for row in rows] == ["tp=1", "tp=2 pp=2"]
    for over, said in (("tp=0,1", "tp must be a whole number of at least 1; got 0"), ("tp=3", "the 64 heads")):
        assert main([*asked, over]) == 2
        assert said in capsys.readouterr().err
    assert main([*asked, "layout=tp=2", "--tp", "4"]) == 2
    assert "--tp: the axis layout of --over sets it too" in capsys.readouterr().err


def test_degrees_are_one_axis_of_layouts(capsys):
    over = {"tp": [1, 2], "batch": [1, 8], "pp": [1, 4]}
    found = llmviewer.sweep("llama-3.1-70b", "h100-sxm", over)
    ways = ["tp=1 pp=1", "tp=1 pp=4", "tp=2 pp=1", "tp=2 pp=4"]
    same = llmviewer.sweep("llama-3.1-70b", "h100-sxm", {"layout": ways, "batch": [1, 8]})
    assert {name: column.tolist() for name, column in found.columns.items()} == {
        name: column.tolist() for name, column in same.columns.items()
    }
    asked = ["sweep", "llama-3.1-70b", "h100-sxm", "--over", "tp=1,2"]
    for also, said in (
        (["--over", "layout=tp=4"], "tp: the axis layout also sets this degree; give one of the two"),
        (["--pp", "2"], "--pp: the axis tp of --over sets it too; give one of them"),
        (["--over", "pp=2,2"], "layout: tp=1 pp=2 is given twice; give each once"),
    ):
        assert main([*asked, *also]) == 2
        assert said in capsys.readouterr().err
    with pytest.raises(InputError, match="tp: must be a list of values; got 2"):
        llmviewer.sweep("llama-3.1-70b", "h100-sxm", {"tp": 2})


@pytest.mark.parametrize("block", [1, 7, 1000])
def test_blocks_of_a_sweep_are_its_rows(tmp_path, block):
    over = {"quant": ["W16A16", "W8A8"], "batch": [1, 2, 3], "attention": ["flash", "eager"]}
    question = ("llama-68m", "h100-sxm", over)
    whole = sweep(*question, gen=4)
    blocks = list(sweep_blocks(*question, gen=4, block=block))
    assert len(blocks) == -(-len(whole) // block)
    for name, column in whole.columns.items():
        np.testing.assert_array_equal(np.concatenate([one.columns[name] for one in blocks]), column)
    for ending in ("csv", "parquet"):
        assert write_sweep(tmp_path / f"a.{ending}", blocks) == write_sweep(tmp_path / f"b.{ending}", [whole]) == 12
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes() == sweep_csv(whole)
    stored = parquet.ParquetFile(tmp_path / "a.parquet")
    assert stored.num_row_groups == len(blocks)
    assert stored.read().equals(parquet.read_table(tmp_path / "b.parquet"))
