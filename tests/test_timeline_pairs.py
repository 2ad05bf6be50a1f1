"""Two recordings of one model side by side."""

import json

import pytest

from llmviewer.analyzing.analysis import analyze
from llmviewer.cli import main
from llmviewer.errors import InputError
from llmviewer.reports.trace_pairs import REPORT
from llmviewer.timelines.against import timeline
from llmviewer.timelines.pairs import pair

LAYERS = 32
MERGED = (("nvjet_qkv", 20), ("flash_fwd", 10), ("nvjet_o", 10), ("nvjet_gate_up", 70), ("nvjet_down", 40))
APART = (
    ("nvjet_q", 14), ("nvjet_k", 8), ("nvjet_v", 8), ("flash_fwd", 25), ("direct_copy_kernel", 2), ("nvjet_o", 10),
    ("nvjet_gate", 36), ("nvjet_up", 36), ("nvjet_down", 40),
)  # fmt: skip


def trace(layer, idle):
    """Two passes of equal layers and a head, with a pause before each. [us]"""
    events, now = [], 0.0
    for _ in range(2):
        now += idle
        for name, duration in (*(layer * LAYERS), ("nvjet_head", 320)):
            events.append({"cat": "kernel", "name": name, "ts": now, "dur": duration, "args": {"device": 0}})
            now += duration
    return json.dumps({"traceEvents": events})


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("traces")
    (folder / "apart.json").write_text(trace(APART, 900.0))
    (folder / "merged.json").write_text(trace(MERGED, 100.0))
    analysis = analyze("llama-3.1-8b", "h100-sxm", batch=8)
    return folder, *(timeline(folder / f"{name}.json", analysis) for name in ("apart", "merged"))


def test_parts_and_products_are_side_by_side(pairs):
    """By hand, in microseconds of a pass."""
    _, before, after = pairs
    found = pair(before, after)
    times = {
        row.name: tuple(round(1e6 * side.measured_s) if side else None for side in (row.before, row.after))
        for row in (*found.parts, *found.products)
    }
    assert times == {
        "matrix products": (152 * LAYERS + 320, 140 * LAYERS + 320), "attention": (25 * LAYERS, 10 * LAYERS),
        "data movement": (2 * LAYERS, None), "idle": (450, 50),
        "q_proj, k_proj, v_proj": (30 * LAYERS, 20 * LAYERS), "o_proj": (10 * LAYERS, 10 * LAYERS),
        "gate_proj, up_proj": (72 * LAYERS, 70 * LAYERS), "down_proj": (40 * LAYERS, 40 * LAYERS),
        "lm_head": (320, 320),
    }  # fmt: skip
    assert found.speed_up == pytest.approx(before.time_s / after.time_s)
    assert sum(row.change_s for row in found.parts) == pytest.approx(after.time_s - before.time_s)
    assert {row.name for row in found.kernels if row.after is None} == {
        "nvjet_q", "nvjet_k", "nvjet_v", "direct_copy_kernel", "nvjet_gate", "nvjet_up",
    }  # fmt: skip
    said = " ".join(REPORT.text(found).split())
    assert "Merged into fewer launches: q_proj, k_proj, v_proj; gate_proj, up_proj." in said


def test_the_two_directions_mirror_each_other(pairs):
    _, before, after = pairs
    there, back = pair(before, after), pair(after, before)
    assert there.speed_up * back.speed_up == pytest.approx(1)
    ours, theirs = ({row.name: row for row in one.parts} for one in (there, back))
    assert ours.keys() == theirs.keys()
    for name, row in ours.items():
        assert (row.before, row.after) == (theirs[name].after, theirs[name].before)


def test_only_recordings_of_one_model_are_compared(pairs):
    folder, before, _ = pairs
    other = timeline(folder / "merged.json", analyze("mistral-7b-v0.1", "h100-sxm", batch=8))
    with pytest.raises(
        InputError, match=r"^both recordings must be of one model; got llama-3\.1-8b and mistral-7b-v0\.1$"
    ):
        pair(before, other)


def test_the_command_line_compares_two_files_on_two_devices(pairs, capsys):
    folder, *_ = pairs
    command = ["timeline", str(folder / "apart.json"), "llama-3.1-8b", "h100-sxm", "--batch", "8"]
    both = [*command, "--against", str(folder / "merged.json"), "--against-hardware", "mi300x"]
    assert main([*both, "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["before"]["hardware"], document["after"]["hardware"]) == ("h100-sxm", "mi300x")
    assert main(both) == 0
    assert "H100 SXM5 80 GB and AMD Instinct MI300X" in " ".join(capsys.readouterr().out.split())
    assert main([*command, "--against-quant", "fp8"]) == 2
    assert "describe a second recording" in capsys.readouterr().err
