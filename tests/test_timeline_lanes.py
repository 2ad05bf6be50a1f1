"""Lanes of launches in time: causes of idle gaps by hand, the arrays of the figure, and its bars in a browser."""

import json

import numpy as np
import pytest

from llmviewer.analyzing.analysis import analyze
from llmviewer.reports import timeline_lanes
from llmviewer.reports.timeline import REPORT
from llmviewer.reports.timeline_lanes import lane_figure
from llmviewer.timelines.against import timeline
from llmviewer.timelines.idle import IdleCause
from llmviewer.timelines.kinds import Part
from tests.test_timelines import HEAD, LAYER, LAYERS, laid, traced

KERNELS = (  # (kernel, start, duration, when the host called for it) of a pass of one layer [us]
    ("embedding_kernel", 0, 10, -8), ("nvjet_qkv", 20, 10, 15),  # called for while the device is idle
    ("flash_fwd_splitkv_kernel", 50, 10, 46),  # called for after cudaStreamSynchronize, which ended at 45
    ("ncclDevKernel_AllReduce", 80, 10, 47), ("nvjet_o", 93, 10, 48),  # queued long before, beside a collective
    ("nvjet_gate_up", 110, 10, 49),  # queued long before
)  # fmt: skip
GAPS = {
    IdleCause.HOST: 10, IdleCause.SYNCHRONIZATION: 20, IdleCause.COMMUNICATION: 20 + 3, IdleCause.QUEUED: 7,
}  # fmt: skip


@pytest.fixture(scope="module")
def llama():
    return analyze("llama-3.1-8b", "h100-sxm", batch=8)


def called(kernels, waits=()):
    """A trace of kernels with the calls that launched them, and of calls in which the host waits. [us]"""
    events = []
    for number, (name, start, duration, call) in enumerate(kernels):
        args = {"device": 0, "stream": 7, "correlation": number}
        events.append({"ph": "X", "cat": "kernel", "name": name, "ts": 1e6 + start, "dur": duration, "args": args})
        runtime = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1}
        events.append({**runtime, "ts": 1e6 + call, "dur": 1, "args": {"correlation": number}})
    for number, (start, end) in enumerate(waits):
        events.append({
            "ph": "X", "cat": "cuda_runtime", "name": "cudaStreamSynchronize", "pid": 1, "tid": 1, "ts": 1e6 + start,
            "dur": end - start, "args": {"correlation": 1000 + number},
        })  # fmt: skip
    return {"traceEvents": events}


def test_causes_of_idle_time_by_hand(tmp_path):
    path = tmp_path / "t.json"
    path.write_text(json.dumps(called(KERNELS, [(21, 45)])))
    found = timeline(path, analyze("llama-3.1-8b", "h100-sxm", batch=8), passes=1)
    assert {gap: 1e6 * time_s for gap, time_s in found.idle_by_cause.items()} == pytest.approx(GAPS, abs=1e-4)
    assert sum(found.idle_by_cause.values()) == pytest.approx(found.idle_s)
    assert found.to_dict()["idle_by_cause_s"] == dict(found.idle_by_cause)


def test_without_calls_of_the_host_the_cause_is_unknown(tmp_path, llama):
    path = tmp_path / "t.json"
    path.write_text(json.dumps(traced(laid([LAYER] * 3))))
    found = timeline(path, llama)
    assert list(found.idle_by_cause) == [IdleCause.UNKNOWN]
    assert found.idle_by_cause[IdleCause.UNKNOWN] == pytest.approx(found.idle_s)


def test_the_figure_has_every_launch_with_its_part_and_reference(tmp_path, llama):
    path = tmp_path / "t.json"
    path.write_text(json.dumps(traced(laid([LAYER] * 4))))
    found = timeline(path, llama)
    meta = lane_figure(found).layout.meta
    assert len(meta["start"]) == 4 * (LAYERS * len(LAYER) + len(HEAD)) == len(meta["lane"]) == len(meta["reference"])
    assert meta["start"] == sorted(meta["start"])
    assert meta["start"][found.passes.spans[0][0]] == 0
    parts = list(Part)
    time_of = dict.fromkeys(parts, 0.0)
    for kernel, duration in zip(meta["kernel"], meta["duration"], strict=True):
        time_of[parts[meta["kernels"][kernel][1]]] += duration
    for part in found.parts:
        assert time_of[Part(part.part)] == pytest.approx(4e6 * part.measured_s, abs=0.1)
    down = next(place for place, kernel in enumerate(meta["kernel"]) if meta["kernels"][kernel][0] == "nvjet_down")
    within = found.passes.spans[0][0] + down
    assert meta["references"][meta["reference"][within]].startswith("down_proj: mean 40.0 us, >= ")
    assert sum(meta["gaps"]["duration"]) == pytest.approx(1e6 * sum(gap.duration for gap in found.idle_gaps), abs=0.5)
    assert not REPORT.undrawn(found)


def test_launches_not_drawn_are_counted_and_summaries_have_no_lanes(tmp_path, llama, monkeypatch):
    path = tmp_path / "t.json"
    path.write_text(json.dumps(traced(laid([LAYER] * 4))))
    found = timeline(path, llama)
    monkeypatch.setattr(timeline_lanes, "MAX_LAUNCHES", 500)
    begin = found.passes.spans[0][0]
    assert lane_figure(found).layout.meta["start"][0] == 0
    total = len(found.recording.names)
    assert begin + 500 < total
    assert REPORT.undrawn(found) == [f"{total - 500:,} of {total:,} launches are not drawn."]
    sums = tmp_path / "sums.csv"
    sums.write_text("Name,Instances,Total Time (ns)\nflash_fwd_kernel,32,9999\nnvjet_qkv,32,99999\n")
    assert lane_figure(timeline(sums, llama)) is None


@pytest.mark.slow("draws in a browser")
def test_a_hundred_thousand_launches_are_few_bars_that_add_up(tmp_path, llama, browser):
    """Bars cover all launches of the range shown, however few; in a short range, each launch has its own."""
    count = 100_000 // (LAYERS * len(LAYER) + len(HEAD)) + 1
    path = tmp_path / "t.json"
    path.write_text(json.dumps(traced(laid([LAYER] * count))))
    found = timeline(path, llama)
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    wrong = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    (tmp_path / "t.html").write_text(REPORT.html(found))
    page.goto(f"file://{tmp_path}/t.html")
    page.wait_for_function("document.getElementById('lanes').data.some((bars) => bars.x.length)")
    assert page.evaluate("document.getElementById('lanes').layout.meta.start.length") > 100_000

    def bars(low, high):
        page.evaluate(
            """async ([low, high]) => {
              await Plotly.relayout("lanes", { "xaxis.range[0]": low, "xaxis.range[1]": high });
              await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
            }""",
            [low, high],
        )
        return page.evaluate("document.getElementById('lanes').data.map((bars) => [bars.name, bars.x, bars.hovertext])")

    meta = lane_figure(found).layout.meta
    everything = bars(meta["start"][0], meta["start"][-1] + 400)
    assert 100 < sum(len(widths) for _, widths, _ in everything) < 5_000
    hovers = [text for _, _, texts in everything for text in texts if " in " in text]
    assert sum(int(text.split(" in ")[0].replace(",", "")) for text in hovers) >= 100_000
    one = bars(0.0, 300.0)
    starts = np.array(meta["start"])
    ends = starts + np.array(meta["duration"])
    shown = int(np.sum((starts <= 300) & (ends >= 0)))
    launches = [text for name, _, texts in one for text in texts if not name.startswith("idle")]
    assert len(launches) == shown
    assert any("down_proj: mean 40.0 us, >= " in text and "expected " in text for text in launches)
    assert not wrong
    page.close()
