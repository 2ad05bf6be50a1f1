"""Sweeps of simulations: rows are those of simulate(), intervals those of closed forms, and shards resume."""

from __future__ import annotations

import json
from itertools import product

import numpy as np
import pytest

from llmviewer import InputError, simulate
from llmviewer.cli import main
from llmviewer.serving.confidence import MeanEstimate, student_t
from llmviewer.serving.simulation_design import SimulationDesign, parse_simulation_axis
from llmviewer.serving.simulation_sweep import MEASURES, measures, read_sweep, simulation_sweep, write_shard
from llmviewer.sweeping.shard_files import run_shards, shard_path

MODEL, DEVICE = "llama-68m", "h100-sxm"
OVER = {"rate": [100, 300], "policy": ["chunked:512", "fcfs,order=sjf"]}
LOAD = {"requests": 50, "gen_lengths": "uniform:1-40"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("sweep")
    simulation_sweep(MODEL, DEVICE, OVER, seeds=3, folder=path, bound=True, **LOAD)
    return path


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.glob("part-*")}


@pytest.mark.parametrize(("freedom", "table"), [
    (1, 12.706), (2, 4.303), (4, 2.776), (9, 2.262), (29, 2.045), (120, 1.980)
])  # fmt: skip
def test_student_s_t_is_that_of_printed_tables(freedom, table):
    assert student_t(freedom) == pytest.approx(table, abs=6e-4)


def test_intervals_contain_the_mean_as_often_as_they_claim():
    drawn = np.random.default_rng(1).normal(3.0, 2.0, size=(4000, 4))
    estimates = [MeanEstimate.of(values) for values in drawn]
    assert np.mean([one.low <= 3 <= one.high for one in estimates]) == pytest.approx(0.95, abs=0.015)


def test_the_mean_time_in_the_queue_m_d_1_is_within_its_interval_and_more_seeds_narrow_it():
    """Prompts alone, one a step, of equal length, which wait for load / (2 (1 - load)) of their time."""
    alone_s = simulate(MODEL, DEVICE, rate=1, requests=1, prompt_lengths=1024, gen_lengths=1, bound=True).ttft_s[0]
    load = 0.5
    how = {"prompt_lengths": 1024, "gen_lengths": 1, "policy": "prefill-first:1", "requests": 3000, "bound": True}
    few, many = (simulation_sweep(MODEL, DEVICE, {"rate": [load / alone_s]}, seeds=n, **how).points[0] for n in (4, 16))
    ttft_s = alone_s * (1 + load / (2 * (1 - load)))
    for point in (few, many):
        estimate = point.bound["mean_ttft_s"]
        assert estimate.low <= ttft_s <= estimate.high
    assert many.bound["mean_ttft_s"].half < 0.05 * ttft_s
    assert many.bound["mean_ttft_s"].half < few.bound["mean_ttft_s"].half


def test_estimates_are_the_means_of_simulations(folder):
    found = read_sweep(folder)
    assert found.finished == found.design.shards == 12
    for point, (rate, policy) in zip(found.points, product(*OVER.values()), strict=True):
        assert (point.axes["rate"], point.axes["policy"], point.seeds) == (rate, policy, 3)
        runs = [simulate(MODEL, DEVICE, rate=rate, policy=policy, seed=i, bound=True, **LOAD) for i in range(3)]
        alone = [measures(run) for run in runs]
        for name in MEASURES:
            values = [one[name] for one in alone]
            if None not in values:
                assert point.bound[name].mean == pytest.approx(np.mean(values), nan_ok=True), name
        assert point.expected is None


def test_expected_times_have_estimates_too():
    found = simulation_sweep(MODEL, DEVICE, {"replicas": [1, 2]}, seeds=2, rate=300, **LOAD)
    one, two = found.points
    run = simulate(MODEL, DEVICE, rate=300, replicas=2, seed=1, **LOAD)
    assert two.expected["mean_ttft_s"].high >= np.mean(run.expected.ttft_s)
    for each in (one, two):
        assert each.expected["mean_latency_s"].mean > each.bound["mean_latency_s"].mean
    assert two.likely["mean_latency_s"].mean < one.likely["mean_latency_s"].mean


def test_shards_are_the_same_by_any_process_and_resume(folder, tmp_path):
    design = SimulationDesign.read(folder)
    told = []
    for part in (2, 1):
        run_shards(
            tmp_path, design, write_shard, shard=(part, 2), progress=lambda done, of: told.append((done, of))
        )  # fmt: skip
    assert told[0] == (0, 6)
    assert told[-1] == (6, 6)
    assert contents(tmp_path) == contents(folder)
    shard_path(tmp_path, 5).write_bytes(b"cut short")
    shard_path(tmp_path, 11).unlink()
    kept = shard_path(tmp_path, 4).stat().st_mtime_ns
    assert read_sweep(tmp_path).finished == 10
    again = simulation_sweep(MODEL, DEVICE, OVER, seeds=3, folder=tmp_path, bound=True, **LOAD)
    assert again.finished == 12
    assert shard_path(tmp_path, 4).stat().st_mtime_ns == kept
    assert contents(tmp_path) == contents(folder)
    with pytest.raises(
        InputError, match=r"contains another sweep: seeds is 0,1,2 there and 0,1 here; give another fold"
    ):
        simulation_sweep(MODEL, DEVICE, OVER, seeds=2, folder=tmp_path, bound=True, **LOAD)


def test_folders_of_other_commands_are_named(folder, tmp_path, capsys):
    assert main(["sweep", "--summary", str(folder)]) == 2
    assert "contains the sweep of another command or version; give another folder" in capsys.readouterr().err
    assert main(["sweep", MODEL, DEVICE, "--over", "batch=1,2", "-o", f"{tmp_path}/"]) == 0
    with pytest.raises(InputError, match="contains the sweep of another command or version; give another folder"):
        simulation_sweep(MODEL, DEVICE, OVER, folder=tmp_path, bound=True, **LOAD)


@pytest.mark.slow("starts worker processes")
def test_two_workers_write_the_same_shards(folder, tmp_path):
    simulation_sweep(MODEL, DEVICE, OVER, seeds=3, folder=tmp_path, workers=2, bound=True, **LOAD)
    assert contents(tmp_path) == contents(folder)


@pytest.mark.slow("starts a worker process")
def test_a_second_process_simulates_the_expected_times_meanwhile():
    how = {"rate": 300, "replicas": 2, "router": "least-loaded", "mtbf": 0.5, "startup": 0.1, **LOAD}
    one, two = (simulate(MODEL, DEVICE, workers=workers, **how) for workers in (1, 2))
    for before, after in ((one, two), (one.expected, two.expected)):
        assert np.array_equal(before.finish_s, after.finish_s)
        assert before.usage == after.usage
        assert before.fleet == after.fleet


def test_an_unfinished_sweep_has_every_combination_with_fewer_seeds(folder, tmp_path, capsys):
    design = SimulationDesign.read(folder)
    run_shards(tmp_path, design, write_shard, shard=(1, 1), progress=lambda *_: None)
    for shard in range(8, 12):
        shard_path(tmp_path, shard).unlink()
    found = read_sweep(tmp_path)
    assert [point.seeds for point in found.points] == [2, 2, 2, 2]
    text = str(found)
    assert "Incomplete: 8 of 12 simulations; the same command resumes." in text
    assert all("seeds" in table.splitlines()[1] for table in text.split(" at the bound")[1:])


def test_replicas_are_one_column(capsys):
    load = ("--rate", "300", "--requests", "20", "--seeds", "2", "--bound", "--router", "least-loaded")
    assert main(["simulate", MODEL, DEVICE, "--over", "replicas=1,2", *load]) == 0
    head = capsys.readouterr().out.split("Throughput at the bound")[1].splitlines()[1].split()
    assert head == ["replicas", "tok/s", "busy"]


def test_a_file_that_has_changed_since_is_not_mixed_in(tmp_path):
    trace = tmp_path / "trace.csv"
    trace.write_text("timestamp,prompt,gen\n0,100,10\n0.01,200,20\n")
    how = {"arrivals": trace, "folder": tmp_path / "sweep", "bound": True}
    found = simulation_sweep(MODEL, DEVICE, {"replicas": [1, 2]}, **how)
    assert [point.seeds for point in found.points] == [1, 1]
    assert np.isnan(found.points[0].bound["mean_ttft_s"].half)
    trace.write_text("timestamp,prompt,gen\n0,100,10\n0.01,200,30\n")
    with pytest.raises(InputError, match=r"contains another sweep: file .*trace.csv has changed since; give another"):
        simulation_sweep(MODEL, DEVICE, {"replicas": [1, 2]}, **how)


def test_what_cannot_run_is_refused_and_the_rest_goes_on(capsys):
    over = {"layout": ["", "tp=5"], "memory.bandwidth": ["1x", "2x"]}
    found = simulation_sweep(MODEL, DEVICE, over, seeds=2, rate=100, bound=True, **LOAD)
    assert [(point.axes["layout"], point.axes["memory.bandwidth"]) for point in found.points] == [
        ("", "1x"),
        ("", "2x"),
    ]
    assert len(found.refused) == 2
    assert "tp=5" in found.refused[0]["layout"]
    assert "Refused: layout tp=5 memory.bandwidth 1x: " in " ".join(str(found).split())
    slow, fast = found.points
    assert fast.bound["mean_tpot_s"].mean < slow.bound["mean_tpot_s"].mean
    with pytest.raises(InputError, match=r"policy must be one of"):
        simulation_sweep(MODEL, DEVICE, {"policy": ["none"]}, seeds=2, rate=100, **LOAD)


def test_command_line_has_text_json_csv_and_a_page(tmp_path, capsys):
    asked = (
        "simulate", "llama-68m", "h100-sxm,l4", "--over", "rate=20,40", "--over", "policy=chunked:512;fcfs,order=sjf",
        "--seeds", "2", "--requests", "20", "--gen", "8", "--ttft", "10ms", "--bound",
    )  # fmt: skip
    assert main([*asked, "-o", str(tmp_path / "sweep")]) == 0
    text = " ".join(capsys.readouterr().out.split())
    for words in (
        "llama-68m on h100-sxm, l4: 16 simulations, 2 seeds, 2 values of rate, 2 values of policy",
        "hardware rate policy TTFT p99 TTFT TPOT E2E", "hardware rate policy tok/s busy within",
        "Highest rate within the targets",
        "95% confidence interval of the mean over seeds",
    ):  # fmt: skip
        assert words in text
    assert main([*asked, "-o", str(tmp_path / "sweep"), "--shard", "1/2"]) == 0
    assert main([*asked, "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out.split("\n{", 1)[-1].join(("{", "")))
    assert document["simulations"] == document["finished"] == 16
    point = document["points"][0]
    assert point["axes"] == {"model": "llama-68m", "hardware": "h100-sxm", "rate": 20.0, "policy": "chunked:512"}
    assert point["mean_ttft_s"]["low"] <= point["mean_ttft_s"]["mean"] <= point["mean_ttft_s"]["high"]
    assert main([*asked, "-o", str(tmp_path / "one.csv")]) == 0
    lines = (tmp_path / "one.csv").read_text().splitlines()
    assert len(lines) == 9
    assert {"rate", "policy", "seeds", "mean_ttft_s", "mean_ttft_s_half"} <= set(lines[0].split(","))
    assert main([*asked, "-o", str(tmp_path / "one.html")]) == 0
    page = (tmp_path / "one.html").read_text()
    assert "Mean TTFT" in page
    assert "error_y" in page


@pytest.mark.parametrize(
    ("extra", "told"),
    [
        (("--over", "rate"), "--over rate: must be AXIS=VALUES, with an axis of rate, scale_target, concurrency"),
        (("--over", "rat=1"), "--over rat=1: no axis 'rat'; did you mean rate"),
        (("--over", "rate=fast"), "--over rate=fast: must be positive numbers; got 'fast'"),
        (("--over", "rate=1", "--rate", "3"), "rate: the axis rate also sets it; give one of the two"),
        (("--over", "rate=1,1"), "rate"),
        (("--over", "tp=1,2", "--tp", "2", "--rate", "1"), "tp: the axis layout also sets it; give one of the two"),
        (("--over", "policy=,", "--rate", "1"), "must be values with commas or semicolons between; got ','"),
        (("--over", "rate=1", "--over", "rate=2"), "--over: an axis is given twice"),
        (("--workers", "2", "--rate", "max"), "--workers runs the simulations of --over and --seeds"),
        (("--shard", "1/2", "--rate", "1"), "--shard runs the simulations of --over and --seeds"),
        (("--over", "rate=1", "--shard", "1/2"), "-o DIR/ must name the folder that --shard and --dask write to"),
        (
            ("--rate", "max", "--seeds", "2"),
            (
                "--rate max must be left out with --over and --seeds: "
                "give --over rate=... or --over concurrency=... instead"
            ),
        ),
        (("--rate", "1", "--seeds", "1000000000000"), "over: must be at most 100000 simulations, seeds included"),
        (("--over", "replicas=1..200000", "--rate", "1"), "over: must be at most 100000 simulations, seeds included"),
        (("--over", "replicas=1,2"), "exactly one of rate (--rate, in req/s)"),
    ],
)
def test_invalid_requests_are_one_line(extra, told, capsys):
    assert main(["simulate", MODEL, DEVICE, "--requests", "2", "--bound", *extra]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert len(error.strip().splitlines()) == 1


def test_axes_of_texts_have_semicolons_where_values_have_commas():
    assert parse_simulation_axis("rate=0.5,2") == ("rate", [0.5, 2.0])
    assert parse_simulation_axis("rate=1..8*2") == ("rate", [1.0, 2.0, 4.0, 8.0])
    assert parse_simulation_axis("replicas=1..8*2") == ("replicas", [1, 2, 4, 8])
    assert parse_simulation_axis("policy=chunked:512;fcfs,order=sjf") == ("policy", ["chunked:512", "fcfs,order=sjf"])
    assert parse_simulation_axis("layout=,tp=2") == ("layout", ["", "tp=2"])
