"""Sweeps in shards: the rows of sweep(), whoever works them out, in whatever order, and however often it is killed."""

import contextlib
import csv
import io
import json
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from itertools import product
from math import prod
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

import llmviewer
from llmviewer.cli import main
from llmviewer.errors import InputError
from llmviewer.sweeping import shard_files, shards
from llmviewer.sweeping.axes import NUMBERS
from llmviewer.sweeping.design import SETTINGS, Design, digest, matching_names
from llmviewer.sweeping.shard_files import DESIGN, begin_sweep, is_finished, run_shards, shard_path
from llmviewer.sweeping.shards import schema, write_shard
from llmviewer.sweeping.summary import summarize

from .cases import first_fast

run = partial(run_shards, write_shard=write_shard)
OVER = {"batch": [1, 2, 3, 4, 5], "prompt": [64, 128, 256], "gen": [2, 16], "quant": ["W16A16", "W4A16g128"]}
ARGUMENTS = (
    "sweep", "gpt2,llama-2-7b", "t4,h100-sxm", "--over", "batch=1..5", "--over", "prompt=64,128,256", "--over",
    "gen=2,16", "--over", "quant=W16A16,W4A16g128", "--shard-points", "12",
)  # fmt: skip


def design(shard_points=12, **more):
    return Design.of(["gpt2", "llama-2-7b"], ["t4", "h100-sxm"], {**OVER, **more}, shard_points=shard_points)


def contents(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.glob("part-*"))}


def rows(folder):
    tables = [parquet.read_table(path, partitioning=None) for path in sorted(folder.glob("part-*"))]
    return pa.concat_tables(tables).to_pandas(types_mapper={pa.int64(): pd.Int64Dtype()}.get)


def wait_for(what, seconds=60):
    end = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < end
        time.sleep(0.02)
    return found


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A finished sweep of 240 points in 24 shards, worked out in this process."""
    folder = tmp_path_factory.mktemp("whole")
    run(folder, design())
    return folder


@pytest.mark.parametrize("shard_points", first_fast([12, 7, 100, 1000], "writes many shards"))
def test_rows_are_those_of_sweep_in_the_order_of_the_design(tmp_path, shard_points):
    asked = design(shard_points)
    run(tmp_path, asked)
    frame = rows(tmp_path)
    assert len(frame) == asked.points == 240
    numbers = {axis: OVER[axis] for axis in ("batch", "prompt", "gen")}
    alone = [
        llmviewer.sweep(model, device, numbers, quant=quant)
        for model, device, quant in product(["gpt2", "llama-2-7b"], ["t4", "h100-sxm"], OVER["quant"])
    ]
    for name in frame.columns.difference(["model", "hardware", "layout", "offload", "images"]):
        assert frame[name].tolist() == [value for result in alone for value in result.columns[name].tolist()], name
    assert frame["model"].tolist() == ["gpt2"] * 120 + ["llama-2-7b"] * 120
    assert frame["images"].isna().all()


def test_the_schema_has_every_column_of_a_sweep():
    columns = llmviewer.sweep("gpt2", "t4", {"batch": [1], "images": [0]}, gen=2).columns
    assert columns.keys() <= set(schema(design()).names)
    assert set(schema(design()).names) - columns.keys() == {"model", "hardware", "layout", "offload"}
    asked = {"over": {"batch": [1], "images": [0]}, "gen": 2, "expected": True}
    more = llmviewer.sweep("gpt2", "t4", **asked).columns.keys() - columns.keys()
    assert set(schema(Design.of(["gpt2"], ["t4"], {}, expected=True)).names) - set(schema(design()).names) == more


EXPECTED = {"over": {**OVER, "quant": ["W16A16", "fp8"]}, "expected": True, "library": "vllm"}


@pytest.mark.slow("starts worker processes")
def test_expected_columns_do_not_depend_on_the_number_of_workers(tmp_path):
    models, devices = ["gpt2", "llama-2-7b"], ["h100-sxm", "i9-13900k"]
    asked = Design.of(models, devices, EXPECTED["over"], shard_points=30, expected=True, library="vllm")
    run(tmp_path / "one", asked)
    run(tmp_path / "two", asked, workers=2)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    frame = rows(tmp_path / "one")
    numbers = {axis: OVER[axis] for axis in ("batch", "prompt", "gen")}
    alone = llmviewer.sweep("llama-2-7b", "h100-sxm", numbers, quant="fp8", expected=True, library="vllm")
    mine = frame[(frame["model"] == "llama-2-7b") & (frame["hardware"] == "h100-sxm") & (frame["quant"] == "fp8")]
    for name, column in alone.columns.items():
        assert mine[name].tolist() == pytest.approx(column.tolist(), nan_ok=True) if name != "quant" else True, name
    assert frame[frame["hardware"] == "i9-13900k"]["expected_ttft_s"].isna().all()


def test_summary_ranks_by_expected_times(tmp_path, capsys):
    run(tmp_path / "all", Design.of(["gpt2"], ["h100-sxm", "t4", "i9-13900k"], OVER, expected=True))
    found, points = summarize(tmp_path / "all", expected=True), rows(tmp_path / "all")
    assert {row["best"] for row in found.best} == {
        "expected_ttft_s", "expected_latency_s", "expected_tokens_per_s"
    }  # fmt: skip
    able = points[points["fits"]]
    for row in found.best:
        own = able[able["hardware"] == row["hardware"]][row["best"]]
        assert row[row["best"]] == (own.max() if row["best"].endswith("_per_s") else own.min())
    assert found.unknown == int((able["hardware"] == "i9-13900k").sum())
    assert main(["sweep", "--summary", f"{tmp_path}/all", "--expected"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "Ranked by expected times, of measured kernels." in out
    assert f"{found.unknown} points that fit have no expected time" in out
    run(tmp_path / "none", Design.of(["gpt2"], ["t4"], OVER))
    with pytest.raises(InputError, match=r"none: has no expected times; run a sweep with --expected"):
        summarize(tmp_path / "none", expected=True)


def test_changed_profile_is_refused_on_resume(tmp_path):
    from llmviewer._layout import ROOT

    shipped = next((ROOT / "profiles").glob("*.yaml"))
    mine = tmp_path / "mine.yaml"
    mine.write_text(shipped.read_text())
    asked = {"expected": True, "profiles": [mine]}
    first = Design.of(["gpt2"], ["h100-sxm"], {"batch": [1]}, **asked)
    run(tmp_path / "all", first)
    assert rows(tmp_path / "all")["expected_ttft_s"].notna().all()
    mine.write_text(f"{shipped.read_text()}\n# another one\n")
    with pytest.raises(InputError, match=r"contains another sweep: profile .*mine.yaml has changed since; "):
        run(tmp_path / "all", Design.of(["gpt2"], ["h100-sxm"], {"batch": [1]}, **asked))


@pytest.mark.slow("writes many shards")
def test_techniques_are_the_same_in_a_folder(tmp_path):
    asked = {"techniques": ["speculative:draft=llama-68m,gamma=4,alpha=0.7"]}
    over = {"batch": [1, 8], "gen": [64], "layout": ["", "tp=2", "pp=2"]}
    run(tmp_path, Design.of(["llama-2-7b", "bert-base-uncased"], ["h100-sxm"], over, **asked), workers=2)
    frame = rows(tmp_path)
    assert frame["layout"].tolist() == ["", "", "tp=2", "tp=2"]  # no pipeline, no encoder
    for row in frame.to_dict("records"):
        layout = row["layout"]
        one = llmviewer.analyze("llama-2-7b", "h100-sxm", batch=int(row["batch"]), gen=64, layout=layout, **asked)
        assert row["tpot_s"] == pytest.approx(one.generation.tpot_s)
    refused = {(one["model"], one["layout"]) for one in summarize(tmp_path).refused}
    assert ("llama-2-7b", "pp=2") in refused
    assert len(refused) == 4


@pytest.mark.parametrize(
    ("model", "device", "line"),
    [
        (
            "bert-base-uncased",
            "h100-sxm",
            "bert-base-uncased h100-sxm published: gen: bert-base-uncased has no decode steps",
        ),
        ("llama-2-70b", "rtx-4090", "2 points; 0 fit the memory."),
    ],
)
def test_summary_without_a_valid_point_states_it(tmp_path, capsys, model, device, line):
    run(tmp_path, Design.of([model], [device], {"batch": [1, 2], "gen": [4]}))
    assert main(["sweep", "--summary", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "No point to rank." in out
    assert "Lowest" not in out
    assert line in " ".join(out.split())


def test_a_summary_is_80_wide_where_names_are_long(tmp_path, capsys):
    over = {"batch": [1, 8, 300], "prompt": [64, 1024], "gen": [2, 16], "quant": ["fp8", "W4A16g128"]}
    over["layout"] = ["", "tp=2 pp=2"]
    models = ["mistral-small-3.1-24b", "qwen3-30b-a3b"]
    run(tmp_path, Design.of(models, ["v100-sxm2-16gb", "h100-sxm"], over))
    assert main(["sweep", "--summary", str(tmp_path), "--by", "model,prompt,gen,layout"]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    for word in (
        "Lowest TTFT by model and prompt and gen",
        "Highest tokens/s",
        *models,
        "v100-sxm2-16gb",
        "tp=2 pp=2",
    ):
        assert word in out


@given(
    lengths=st.lists(st.integers(1, 7), min_size=1, max_size=4),
    settings=st.lists(st.integers(1, 3), min_size=len(SETTINGS), max_size=len(SETTINGS)),
    most=st.integers(1, 60),
)
def test_shards_are_the_whole_cut_up(lengths, settings, most):
    numbers = dict(zip(("batch", "prompt", "gen", "kv_len"), ([*range(1, n + 1)] for n in lengths), strict=False))
    texts = {axis: [f"{axis}{i}" for i in range(n)] for axis, n in zip(SETTINGS, settings, strict=True)}
    asked = Design(settings=texts, numbers=numbers, options={}, digests={}, shard_points=most)
    found = []
    for shard in range(asked.shards):
        places, block = asked.part(shard)
        assert 0 < asked.points_of(shard) == len(places) * prod(map(len, block.values())) <= most
        found += [(place, point) for place in places for point in product(*block.values())]
    assert found == [(place, point) for place in range(prod(settings)) for point in product(*numbers.values())]
    points = [tuple(asked.setting(place).values()) for place in range(prod(settings))]
    assert points == list(product(*texts.values()))


@pytest.mark.slow("starts worker processes")
def test_the_same_bytes_from_two_workers_and_from_shards_in_any_order(whole, tmp_path):
    run(tmp_path / "two", design(), workers=2)
    assert contents(tmp_path / "two") == contents(whole)
    for part in (3, 1, 2):
        run(tmp_path / "parts", design(), shard=(part, 3))
    assert contents(tmp_path / "parts") == contents(whole)
    run(tmp_path / "parts", design(), workers=2)  # nothing left to do


def test_a_number_of_shards_that_does_not_divide_leaves_none_out(whole, tmp_path):
    told = []
    run(tmp_path, design(), shard=(5, 7), progress=lambda done, points: told.append((done, points)))
    names = [shard_path(tmp_path, index).name for index in range(4, 24, 7)]
    assert sorted(contents(tmp_path)) == names
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    points = sum(map(design().points_of, range(4, 24, 7)))
    assert (told[0], told[-1]) == ((0, points), (points, points))


@pytest.mark.slow("starts worker processes")
def test_killed_sweep_resumes_and_keeps_finished_shards(tmp_path):
    many = (
        "gpt2", "t4,h100-sxm", "--over", "batch=1..1000", "--over", "prompt=1..400", "--gen", "64", "--shard-points",
        "20000", "--workers", "2", "-o", str(tmp_path / "killed"),
    )  # fmt: skip
    folder = tmp_path / "killed"
    process = subprocess.Popen([sys.executable, "-m", "llmviewer", "sweep", *many], stderr=subprocess.DEVNULL)
    wait_for(lambda: len(list(folder.glob("part-*"))) >= 3)
    workers = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    process.kill()
    process.wait()
    wait_for(lambda: not any(Path(f"/proc/{worker}").exists() for worker in workers))  # they do not outlive it
    asked = Design.read(folder)
    there = {index for index in range(asked.shards) if is_finished(folder, asked, index)}
    assert 3 <= len(there) < asked.shards == 40
    assert len(list(folder.glob("part-*"))) == len(there)  # whole or not there
    before = {index: shard_path(folder, index).stat().st_mtime_ns for index in there}
    (folder / ".part-00007.parquet.left.parquet").write_text("by who was killed")
    assert main(["sweep", *many]) == 0
    assert {index: shard_path(folder, index).stat().st_mtime_ns for index in there} == before
    assert not list(folder.glob(".part-*"))
    run(tmp_path / "alone", asked)
    assert contents(folder) == contents(tmp_path / "alone")


def test_a_shard_that_is_cut_short_or_of_another_design_is_done_again(whole, tmp_path):
    run(tmp_path, design())
    data = shard_path(tmp_path, 3).read_bytes()
    shard_path(tmp_path, 3).write_bytes(data[: len(data) // 2])
    shard_path(tmp_path, 4).write_bytes(data)
    shard_path(tmp_path, 5).write_bytes(b"")
    other = tmp_path / "other"
    run(other, design(13))
    shard_path(other, 6).replace(shard_path(tmp_path, 6))
    assert [index for index in range(24) if not is_finished(tmp_path, design(), index)] == [3, 4, 5, 6]
    run(tmp_path, design())
    assert contents(tmp_path) == contents(whole)


def test_second_writer_of_a_finished_shard_succeeds(whole, tmp_path, monkeypatch):
    def cleaned_away(path, fill):
        raise InputError(f"{path}: cannot be written: No such file or directory")

    begin_sweep(tmp_path, design())
    monkeypatch.setattr(shard_files, "write", cleaned_away)
    assert write_shard(whole, 3, design().key) == 3
    with pytest.raises(InputError, match=r"part-00003.parquet: cannot be written"):
        write_shard(tmp_path, 3, design().key)


def test_a_shard_with_a_flipped_byte_is_found_when_it_is_read(whole, tmp_path):
    begin_sweep(tmp_path, design())
    data = bytearray(shard_path(whole, 0).read_bytes())
    data[60] ^= 1
    shard_path(tmp_path, 0).write_bytes(data)
    with pytest.raises(
        InputError, match=r"part-00000.parquet: is damaged; remove it and run the same command to resume"
    ):
        summarize(tmp_path)


@pytest.mark.parametrize(
    ("other", "line"),
    [
        ({"batch": [1, 2]}, "batch is 5 values from 1 to 5 there and 1,2 here"),
        ({"quant": ["fp8"]}, "quant is W16A16,W4A16g128 there and fp8 here"),
        ({"kv_len": [9]}, "kv_len is nothing there and 9 here"),
        ({"shard_points": 9}, "shard_points is 12 there and 9 here"),
    ],
)
def test_another_design_is_refused(whole, other, line):
    with pytest.raises(InputError) as error:
        run(whole, design(**other))
    assert str(error.value) == f"{whole}: contains another sweep: {line}; give another folder"


def test_a_device_that_has_changed_since_is_not_mixed_in(tmp_path, monkeypatch):
    own = tmp_path / "own"
    own.mkdir()
    text = (Path(llmviewer.__file__).parent.parent / "hardware" / "t4.yaml").read_text()
    (own / "t4.yaml").write_text(text.replace("bandwidth: 320 GB/s", "bandwidth: 300 GB/s"))
    run(tmp_path / "sweep", design(), shard=(1, 2))
    key = design().key
    monkeypatch.setenv("LLMVIEWER_HARDWARE_PATH", str(own))
    with pytest.raises(
        InputError, match=r": contains another sweep: hardware t4 has changed since; give another folder$"
    ):
        run(tmp_path / "sweep", design())
    shards._hardware.cache_clear()  # a worker elsewhere, with another file
    with pytest.raises(InputError, match=r"^t4: differs from the version that the sweep started with"):
        write_shard(tmp_path / "sweep", 1, key)
    shards._hardware.cache_clear()


def test_a_digest_is_of_the_layers_that_predict_too():
    model = llmviewer.load_model("deepseek-v3")
    other = replace(model, with_prediction=replace(model.with_prediction, graph=model.graph))
    assert len({digest(one) for one in (model, other, replace(model, with_prediction=None))}) == 3


def test_what_ifs_apply_to_the_hardware_file_of_the_design(tmp_path, monkeypatch):
    text = (Path(llmviewer.__file__).parent.parent / "hardware" / "t4.yaml").read_text()
    monkeypatch.setenv("LLMVIEWER_HARDWARE_PATH", str(tmp_path))
    found = []
    for bandwidth in ("320", "160"):
        (tmp_path / "t4.yaml").write_text(text.replace("bandwidth: 320 GB/s", f"bandwidth: {bandwidth} GB/s"))
        asked = Design.of(["gpt2"], ["t4"], {"memory.bandwidth": ["2x"], "batch": [1]}, shard_points=1)
        begin_sweep(tmp_path / bandwidth, asked)
        write_shard(tmp_path / bandwidth, 0, asked.key)
        found.append(rows(tmp_path / bandwidth)["decode_step_s"][0])
    assert found[1] == pytest.approx(2 * found[0], rel=0.01)
    before = Design.of(["gpt2"], ["t4"], {"memory.bandwidth": ["3x"], "batch": [1]})
    begin_sweep(tmp_path / "before", before)
    (tmp_path / "t4.yaml").write_text(text)
    with pytest.raises(InputError, match=r"^t4: differs from the version that the sweep started with"):
        write_shard(tmp_path / "before", 0, before.key)


@pytest.mark.parametrize("shard_points", first_fast([2, 1000], "writes many shards"))
def test_settings_that_cannot_run_are_listed_and_the_rest_goes_on(tmp_path, shard_points):
    models, devices, layouts = (
        ["llama-2-7b", "bert-base-uncased", "gemma-3-4b-vision"],
        ["t4", "p100-sxm2"],
        ["", "tp=3"],
    )
    numbers = {"batch": [1, 2], "prompt": [64, 512], "gen": [2, 4], "images": [0, 1]}  # an image takes 256 tokens
    for images in ([0], [0, 1]):
        over = {**numbers, "images": images, "layout": layouts}
        folder = tmp_path / str(len(images))
        run(folder, Design.of(models, devices, over, shard_points=shard_points))
        found = summarize(folder)
        reasons = {tuple(r[axis] for axis in ("model", "hardware", "layout")): r["reason"] for r in found.refused}
        points = 0
        for model, hardware, layout in product(models, devices, layouts):
            reason = reasons.pop((model, hardware, layout), None)
            with pytest.raises(InputError) if reason else contextlib.nullcontext() as error:
                points += len(llmviewer.sweep(model, hardware, {**numbers, "images": images}, layout=layout))
            assert reason is None or reason == str(error.value)
        assert not reasons
        assert found.points == points
        assert (points > 0) == (images == [0])
        assert len(found.refused) >= 4


@pytest.mark.slow("writes many shards")
def test_what_ifs_are_an_axis_and_a_device_without_the_number_is_refused(tmp_path, capsys):
    over = {"batch": [1, 8], "gen": [4], "memory.bandwidth": ["1x", "2x"], "matrix.fp8": ["1x", "2x"]}
    models, changes = ["llama-2-7b"], ["memory.capacity=1 TB"]
    asked = Design.of(models, ["h100-sxm", "t4"], {**over, "quant": ["fp8"]}, shard_points=6, hardware_set=changes)
    run(tmp_path / "one", asked)
    run(tmp_path / "two", asked, workers=2)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    frame = rows(tmp_path / "one")
    axes = {name: over[name] for name in ("memory.bandwidth", "matrix.fp8", "batch", "gen")}  # numbers come last
    alone = llmviewer.sweep("llama-2-7b", "h100-sxm", axes, quant="fp8", hardware_set=changes)
    for name, column in alone.columns.items():
        assert frame[name].tolist() == column.tolist() or name == "quant", name
    by = ["--by", "memory.bandwidth,matrix.fp8"]
    assert main(["sweep", "--summary", str(tmp_path / "one"), *by]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    assert "t4 has no matrix.fp8 to multiply" in " ".join(out.split())
    assert len(summarize(tmp_path / "one", by=("memory.bandwidth",)).refused) == 4
    with pytest.raises(InputError, match=r"^matrix.fp8=2x: t4 has no matrix.fp8 to multiply"):
        Design.of(models, ["t4"], {"matrix.fp8": ["2x"]})


@contextlib.contextmanager
def process(*arguments):
    started = subprocess.Popen([sys.executable, "-m", *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield started
    finally:
        started.kill()
        started.wait()


def listens(host, port):
    with socket.socket() as client:
        return client.connect_ex((host, port)) == 0


@pytest.mark.slow("starts worker processes")
def test_a_dask_cluster_that_loses_a_worker_finishes_the_sweep(tmp_path):
    pytest.importorskip("distributed")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        host, port = free.getsockname()
    address = f"tcp://{host}:{port}"
    asked = Design.of(
        ["gpt2"],
        ["t4", "h100-sxm"],
        {"batch": range(1, 251), "prompt": range(1, 401), "gen": [64]},
        shard_points=5000,
    )
    folder = tmp_path / "dask"
    worker = ("dask", "worker", address, "--no-nanny", "--nthreads", "1", "--no-dashboard", "--local-directory")
    with (
        process("dask", "scheduler", "--host", address, "--no-dashboard"),
        process(*worker, str(tmp_path / "a")) as doomed,
        process(*worker, str(tmp_path / "b")),
    ):
        wait_for(lambda: listens(host, port))
        told = []

        def progress(done, points):
            told.append(done)
            if len(told) == 6:
                doomed.send_signal(signal.SIGKILL)

        run(folder, asked, dask=address, progress=progress)
        assert doomed.poll() == -signal.SIGKILL
    assert (told[0], told[-1]) == (0, asked.points)
    run(tmp_path / "alone", asked)
    assert contents(folder) == contents(tmp_path / "alone")


def test_a_dask_cluster_without_workers_is_not_waited_for(tmp_path, monkeypatch):
    pytest.importorskip("distributed")
    monkeypatch.setattr(shard_files, "_MAX_WAIT_FOR_WORKERS_S", 1)
    monkeypatch.setattr(shard_files, "_SCHEDULER_TIMEOUT_S", 120)  # it starts meanwhile, while other tests run
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    notices = []
    with (
        process("dask", "scheduler", "--host", address, "--no-dashboard"),
        pytest.raises(InputError, match=rf"^--dask {address}: must have workers; it has had none for 1 s; start "),
    ):
        run(tmp_path, design(), dask=address, notice=notices.append)
    assert notices == [f"waiting for workers of {address}, which has none"]


def test_a_dask_scheduler_that_is_not_there_is_one_line(tmp_path, monkeypatch):
    pytest.importorskip("distributed")
    monkeypatch.setattr(shard_files, "_SCHEDULER_TIMEOUT_S", 1)
    with pytest.raises(InputError, match=r"^--dask tcp://127.0.0.1:9: no scheduler there: "):
        run(tmp_path, design(), dask="tcp://127.0.0.1:9")


def test_an_address_that_is_none_is_one_line(tmp_path):
    """In a process of its own, which prints what objects say when they are dropped."""
    pytest.importorskip("distributed")
    command = [sys.executable, "-m", "llmviewer", "sweep", "gpt2", "t4", "--over", "batch=1", "--dask", "nonsense"]
    done = subprocess.run(
        [*command, "-o", f"{tmp_path}/sweep/"], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 2
    assert done.stderr.startswith("llmviewer: --dask nonsense: no scheduler there: ")
    assert done.stderr.count("\n") == 1


def test_missing_distributed_package_is_refused_with_an_install_hint(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(InputError, match=r"^--dask needs the package distributed: pip install 'llmviewer\[dask\]'$"):
        run(tmp_path, design(), dask="tcp://127.0.0.1:9")


def beaten(one, other, least, most):
    return (
        other[least] <= one[least]
        and other[most] >= one[most]
        and (other[least] < one[least] or other[most] > one[most])
    )


@pytest.mark.parametrize("by", [(), ("model",), ("model", "prompt", "quant")])
@pytest.mark.parametrize("gen", first_fast([True, False], "looks at every point"))
def test_summary_equals_a_scan_of_all_points(tmp_path, monkeypatch, by, gen):
    monkeypatch.setattr("llmviewer.sweeping.summary._MAX_CANDIDATES", 10)
    over = {**OVER, "batch": [1, 2, 64, 4096], "prompt": [64, 128, 4096]}
    if not gen:
        del over["gen"]
    run(tmp_path, Design.of(["gpt2", "llama-2-7b"], ["t4", "h100-sxm"], over, shard_points=17))
    found, points = summarize(tmp_path, by), rows(tmp_path).to_dict("records")
    able = [point for point in points if point["fits"]]
    assert (found.points, found.fitting) == (len(points), len(able))
    assert 0 < len(able) < len(points)
    latency, least, most = (
        ("latency_s", "tpot_s", "tokens_per_s") if gen else ("decode_step_s", "decode_step_s", "decode_tokens_per_s")
    )

    def alike(one, other, axes):
        return all(one[axis] == other[axis] for axis in axes)

    front = []
    for i, one in enumerate(able):
        group = [other for other in able if alike(one, other, by)]
        first = not any(alike(one, other, (*by, least, most)) for other in able[:i])
        if first and not any(beaten(one, other, least, most) for other in group):
            front.append(one)
    front.sort(key=lambda point: [point[axis] for axis in (*by, least)])
    assert [dict(row) for row in found.front] == [{name: one[name] for name in found.front[0]} for one in front]
    each = (*by, "hardware")
    wanted = {}
    for one in able:
        for measure, sign in (("ttft_s", 1), (latency, 1), (most, -1)):
            key = (*(one[axis] for axis in each), measure)
            if key not in wanted or sign * one[measure] < sign * wanted[key][measure]:
                wanted[key] = one
    assert {(*(row[axis] for axis in each), row["best"]) for row in found.best} == wanted.keys()
    for row in found.best:
        one = wanted[*(row[axis] for axis in each), row["best"]]
        assert {name: one[name] for name in row if name != "best"} == {n: v for n, v in row.items() if n != "best"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--summary", ".", "-o", "found.html"], "found.html: must end in one of .txt, .csv, .json; or give --format"),
        (["--summary", ".", "llama-2-7b"], "--summary reads a folder; leave out llama-2-7b"),
        (
            ["llama-2-7b", "l4", "--over", "batch=1,2", "--format", "json"],
            "--format applies to --summary; points are written by the suffix of the output file, or as CSV",
        ),
    ],
)
def test_summary_only_options_are_refused_without_a_summary(tmp_path, monkeypatch, capsys, arguments, message):
    assert main([*ARGUMENTS, "-o", f"{tmp_path}/", "--shard", "1/2"]) == 0
    capsys.readouterr()
    monkeypatch.chdir(tmp_path)
    assert main(["sweep", *arguments]) == 2
    assert capsys.readouterr().err == f"llmviewer: {message}\n"
    assert not (tmp_path / "found.html").exists()


def test_incomplete_summary_is_marked_in_every_format(tmp_path, capsys):
    assert main([*ARGUMENTS, "-o", f"{tmp_path}/new/", "--shard", "1/2"]) == 0
    assert capsys.readouterr().err == f"{tmp_path}/new: 120 points in 12 shards\n"
    assert main(["sweep", "--summary", f"{tmp_path}/new", "--by", "model,quant"]) == 0
    text = capsys.readouterr().out
    assert "Incomplete: 12 of 24 shards" in text
    assert "Lowest TTFT by model and quant and hardware" in text
    assert main(["sweep", "--summary", f"{tmp_path}/new", "--format", "csv"]) == 0
    lines = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert main(["sweep", "--summary", f"{tmp_path}/new", "-o", f"{tmp_path}/found.json"]) == 0
    document = json.loads((tmp_path / "found.json").read_text())
    assert (document["finished"], document["shards"]) == (12, 24)
    assert [row["best"] for row in lines] == [row["best"] for row in document["best"]] + ["front"] * len(
        document["front"]
    )
    assert float(lines[0]["ttft_s"]) == document["best"][0]["ttft_s"]


def test_the_command_line_fills_a_folder_as_python_does(whole, tmp_path, capsys):
    assert main([*ARGUMENTS, "--workers", "2", "-o", str(tmp_path)]) == 0
    assert contents(tmp_path) == contents(whole)
    assert (tmp_path / DESIGN).read_text() == (whole / DESIGN).read_text()


def test_progress_line_shows_rate_and_time_left(monkeypatch, capsys):
    from llmviewer.cli import sweep

    clock = iter([0, 0, 5, 20, 30])
    monkeypatch.setattr(sweep.time, "monotonic", lambda: next(clock))
    told = sweep._SweepProgress()
    for done in (1000, 2000, 3000, 4000):
        told(done, 10_000_000)
    assert capsys.readouterr().err == (
        "3,000 of 10,000,000 points, 100/s, 27:46:10 left\n4,000 of 10,000,000 points, 100/s, 27:46:00 left\n"
    )


def test_names_are_lists_patterns_or_all():
    known = ["Qwen3-8b", "gpt2", "qwen3-4b"]
    assert matching_names("gpt2,qwen3*,gpt2", known, command="models") == ["gpt2", "Qwen3-8b", "qwen3-4b"]
    assert matching_names("all", known, command="models") == known
    assert matching_names("a/path.json", known, command="models") == ["a/path.json"]


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ("gpt3* t4 -o DIR/", "'gpt3*' matches no name that `llmviewer models` lists"),
        ("gpt2 t5? -o DIR/", "'t5?' matches no name that `llmviewer hardware` lists"),
        ("gpt2 t4,T4 -o DIR/", "hardware t4 and hardware T4 are both called t4; leave one out"),
        (
            "gpt2,opt-125m t4 --over batch=1",
            "gpt2,opt-125m: several models or devices need a folder; give one with -o DIR/",
        ),
        ("gpt2 t4 --workers 2", "-o DIR/ must name the folder that --workers, --shard and --dask write to"),
        ("gpt2 t4 -o DIR/ --shard 3/2", "--shard must be I/N with I from 1 to N, such as 3/40; got '3/2'"),
        (
            "gpt2 t4 -o DIR/ --workers 2 --dask tcp://h:1",
            "--workers and --dask exclude each other: a Dask cluster has workers of its own",
        ),
        ("gpt2 t4 -o DIR/ --over batch=0", "batch must be a whole number of at least 1; got 0"),
        ("gpt2 t4 -o DIR/ --over batch=1 --over batch=2", "--over: an axis is given twice; got batch=1, batch=2"),
        ("gpt2 t4 -o DIR/ --over attention=fast", "attention must be one of eager, flash; got 'fast'"),
        (
            "gpt2 t4 -o DIR/ --over layout=xp=2",
            "layout 'xp=2': must be degrees of tp, pp, ep, dp, cp, such as tp=8 pp=2; got 'xp=2'",
        ),
        (
            "gpt2 t4 -o DIR/ --tp 2 --pp 2 --micro-batches 3",
            "--micro-batches, --collective, --hierarchical-all-to-all and --overlap are not for sweeps in a folder",
        ),
        ("gpt2 t4 -o DIR/file/", "DIR/file: must be a folder that can be written to: File exists"),
        ("--summary DIR", "DIR: must hold a sweep; there is no design.json in it"),
        (
            "--summary DIR/edited",
            "DIR/edited/design.json: was edited; give another folder, or remove this one",
        ),
        (
            "--summary WHOLE --by depth",
            f"--by must name axes of {', '.join((*SETTINGS, *NUMBERS))}; got 'depth'",
        ),
        ("gpt2", "sweep needs HARDWARE: llmviewer sweep MODEL HARDWARE --over AXIS=VALUES"),
        ("gpt2 t4", "sweep needs --over AXIS=VALUES, such as --over batch=1..256*2"),
    ],
)
def test_mistakes_get_one_line(whole, tmp_path, capsys, arguments, line):
    (tmp_path / "file").write_text("")
    (tmp_path / "edited").mkdir()
    (tmp_path / "edited" / DESIGN).write_text((whole / DESIGN).read_text().replace(": 12", ": 12.5"))
    placed = [a.replace("DIR", str(tmp_path)).replace("WHOLE", str(whole)) for a in arguments.split()]
    assert main(["sweep", *placed]) == 2
    out = capsys.readouterr()
    assert out.out == ""
    assert out.err.replace(str(tmp_path), "DIR") == f"llmviewer: {line}\n"
