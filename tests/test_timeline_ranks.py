"""All ranks of a run: hand-made recordings whose waiting, imbalance, overlap and bubbles are known."""

import json

import pytest

from llmviewer.analyzing.analysis import analyze
from llmviewer.cli import main
from llmviewer.errors import InputError
from llmviewer.reports.trace_ranks import REPORT
from llmviewer.timelines import ranks
from llmviewer.timelines.ranks import compare_ranks, rank_files
from llmviewer.timelines.reading import read_timeline

LAYERS, PASSES = 32, 3
REDUCE, SIDE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "ncclDevKernel_AllGather_RING_LL"


def recorded(*, extra=0.0, reduce_us=15.0, rank=0, overlap_us=0.0, skew_us=0.0, layers=LAYERS, pause=500.0):
    """A trace of a rank: `extra` of each MLP, collectives as long as others need, `overlap_us` beside an MLP. [us]"""
    events, now = [], 1e6 + skew_us

    def launch(name, duration, start=None, stream=7):
        events.append({
            "ph": "X", "cat": "kernel", "name": name, "pid": 0, "ts": now if start is None else start, "dur": duration,
            "args": {"device": 0, "stream": stream},
        })  # fmt: skip

    for _ in range(PASSES):
        now += pause
        launch("embedding_kernel", 5)
        now += 5
        for _ in range(layers):
            for name, duration in (("nvjet_qkv", 20), ("flash_fwd_splitkv_kernel", 10), ("nvjet_o", 12)):
                launch(name, duration)
                now += duration
            launch(REDUCE, 15)
            now += 15
            launch("nvjet_gate_up", 50 + extra)
            if overlap_us:
                launch(SIDE, overlap_us, start=now + 1, stream=20)
            now += 50 + extra
            launch("nvjet_down", 30)
            now += 30
            launch(REDUCE, reduce_us)
            now += reduce_us
        launch("nvjet_lm_head", 100)
        now += 100
    return {"distributedInfo": {"rank": rank, "world_size": 2}, "traceEvents": events}


def written(folder, traces):
    folder.mkdir(exist_ok=True)
    for number, trace in enumerate(traces):
        (folder / f"w{number}.json").write_text(json.dumps(trace))
    return {str(path): read_timeline(path, "decode") for path in rank_files([folder])}


@pytest.fixture(scope="module")
def sharded():
    return analyze("llama-3.1-8b", "h100-sxm", batch=8, tp=2)


def test_the_slowest_rank_and_waiting_for_it(tmp_path, sharded):
    """Rank 1 has 10 us more in each layer; rank 0 enters the next collective 10 us earlier and stays as much longer."""
    traces = [recorded(reduce_us=25, rank=1, skew_us=3e5), recorded(extra=10, rank=0)]  # their clocks differ
    found = compare_ranks(written(tmp_path / "run", traces), sharded, phase="decode", passes=None)
    assert [rank.rank for rank in found.ranks] == [0, 1]
    slow, fast = found.ranks
    assert found.slowest == 0
    assert slow.pass_s == pytest.approx(fast.pass_s)
    assert slow.waiting_s == pytest.approx(0, abs=1e-9)
    assert fast.waiting_s == pytest.approx(LAYERS * 10e-6)
    assert slow.compute_s - fast.compute_s == pytest.approx(LAYERS * 10e-6)
    assert slow.communication_s == pytest.approx(LAYERS * 30e-6)
    mean = (slow.compute_s + fast.compute_s) / 2
    assert found.compute_imbalance == pytest.approx(slow.compute_s / mean)
    assert found.balanced_speed_up == pytest.approx(slow.pass_s / (slow.pass_s - LAYERS * 5e-6))
    for rank in found.ranks:
        assert rank.compute_s + rank.exposed_s + rank.idle_s == pytest.approx(rank.pass_s)
    words = " ".join(REPORT.text(found).split())
    assert "Slowest: rank 0 computes" in words
    assert "Waiting for later ranks in collectives: 160 us of a pass on average" in words
    document = json.loads(REPORT.json(found))
    assert document["slowest_rank"] == 0
    assert document["ranks"][1]["waiting_s"] == pytest.approx(LAYERS * 10e-6)


def test_equal_ranks_and_overlap(tmp_path, sharded):
    """A collective of 20 us on another stream in each layer, beside a product of 50 us."""
    traces = [recorded(rank=rank, overlap_us=20) for rank in range(2)]
    found = compare_ranks(written(tmp_path / "run", traces), sharded, phase="decode", passes=None)
    for rank in found.ranks:
        assert rank.overlapped_s == pytest.approx(LAYERS * 20e-6)
        assert rank.communication_s == pytest.approx(LAYERS * 50e-6)
        assert rank.waiting_s == pytest.approx(0, abs=1e-9)
    words = " ".join(REPORT.text(found).split())
    assert "Ranks compute equally long." in words
    assert "1.60 ms of a pass, 40% of it beside computation" in words
    assert "Waiting" not in words


def test_ranks_with_other_collectives_have_no_waiting(tmp_path, sharded):
    traces = [recorded(rank=0), recorded(rank=1, overlap_us=20)]
    found = compare_ranks(written(tmp_path / "run", traces), sharded, phase="decode", passes=None)
    assert found.mean_waiting_s is None
    assert "Waiting is unknown" in REPORT.text(found)


def test_stages_of_a_pipeline_have_bubbles(tmp_path):
    """Each rank is compared with the operators of its own stage, and its idle share with the expected one."""
    analysis = analyze("llama-3.1-8b", "h100-sxm", batch=8, pp=2)
    traces = [recorded(rank=rank, layers=LAYERS // 2, pause=3000) for rank in range(2)]
    found = compare_ranks(written(tmp_path / "run", traces), analysis, phase="decode", passes=None)
    assert [rank.stage for rank in found.ranks] == [1, 2]
    assert [timeline.layers for timeline in found.timelines] == [LAYERS // 2] * 2
    for rank in found.ranks:
        assert rank.idle_s == pytest.approx(3000e-6, rel=0.01)
        assert 0 <= rank.expected_idle_share < 1
    assert "Pipeline bubbles, idle share of a pass: stage 1 " in REPORT.text(found).replace("\n", " ")


def test_the_command_line_takes_a_folder_or_several_files(tmp_path, capsys):
    folder = tmp_path / "run"
    written(folder, [recorded(rank=0), recorded(rank=1, extra=5)])
    asked = ["llama-3.1-8b", "h100-sxm", "--batch", "8", "--tp", "2"]
    assert main(["timeline", str(folder), *asked]) == 0
    printed = capsys.readouterr().out
    assert main(["timeline", str(folder / "w1.json"), str(folder / "w0.json"), *asked]) == 0
    assert capsys.readouterr().out == printed
    assert "on 2 ranks of NVIDIA H100" in printed.replace("\n", " ")
    page = tmp_path / "ranks.html"
    assert main(["timeline", str(folder), *asked, "-o", str(page)]) == 0
    assert "waiting" in page.read_text()
    assert main(["timeline", str(folder), *asked, "--against", str(folder / "w0.json")]) == 2
    assert "are of a single file" in capsys.readouterr().err


def test_folders_that_have_no_ranks(tmp_path, sharded, monkeypatch):
    (tmp_path / "notes.txt").write_text("no trace")
    with pytest.raises(InputError, match=r"has no file of a profiler \(\.json, "):
        rank_files([tmp_path])
    monkeypatch.setattr(ranks, "MAX_RANKS", 1)
    with pytest.raises(InputError, match="at most 1 files of ranks are read; got 2"):
        rank_files([tmp_path / "a.json", tmp_path / "b.json"])
    sums = tmp_path / "sums.csv"
    sums.write_text("Name,Instances,Total Time (ns)\nflash_fwd_kernel,32,9999\n")
    with pytest.raises(InputError, match="has sums by kernel; ranks are compared by their launches in time"):
        compare_ranks({str(sums): read_timeline(sums, "decode")}, sharded, phase="decode", passes=None)


def test_a_file_given_twice_is_refused(tmp_path, capsys):
    written(tmp_path / "run", [recorded()])
    path = tmp_path / "run" / "w0.json"
    assert (
        main(["timeline", str(path), str(tmp_path / "run" / ".." / "run" / "w0.json"), "llama-3.1-8b", "h100-sxm"]) == 2
    )
    assert capsys.readouterr().err == f"llmviewer: {path}: is given more than once; give one file for each rank\n"


def test_another_number_of_ranks_than_the_layout_has_is_named(tmp_path, sharded):
    for count, remark in ((1, "1 rank recorded; analyzed: tp=2, 2 devices."), (2, "")):
        traces = written(tmp_path / str(count), [recorded(rank=rank) for rank in range(count)])
        said = " ".join(REPORT.text(compare_ranks(traces, sharded, phase=None, passes=None)).split())
        assert remark in said
        assert ("recorded; analyzed" in said) == bool(remark)


def test_ranks_without_numbers_have_those_of_their_names_or_their_order(tmp_path, sharded):
    trace = recorded()
    del trace["distributedInfo"]
    for names, numbers in ((("a-TP-3.json", "b-TP-1.json"), [1, 3]), (("a.json", "b.json"), [0, 1])):
        folder = tmp_path / names[0]
        folder.mkdir()
        for name in names:
            (folder / name).write_text(json.dumps(trace))
        recordings = {str(path): read_timeline(path, "decode") for path in rank_files([folder])}
        found = compare_ranks(recordings, sharded, phase="decode", passes=None)
        assert [rank.rank for rank in found.ranks] == numbers


def test_devices_of_one_file_are_ranks(tmp_path, capsys):
    """The same as two files, numbered as the devices are; without --ranks, the busiest is compared alone."""
    events = []
    for device, trace in enumerate((recorded(reduce_us=25), recorded(extra=10))):
        events += [{**event, "args": {**event["args"], "device": device}} for event in trace["traceEvents"]]
    path = tmp_path / "node.json"
    path.write_text(json.dumps({"traceEvents": events}))
    asked = ["llama-3.1-8b", "h100-sxm", "--batch", "8", "--tp", "2"]
    assert main(["timeline", str(path), *asked, "--ranks"]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert "on 2 ranks of NVIDIA H100" in words
    assert "Slowest: rank 1 computes" in words
    assert main(["timeline", str(path), *asked]) == 0
    assert "One of 2 devices in the file." in " ".join(capsys.readouterr().out.split())
