"""The dashboard's timeline: what `llmviewer timeline` reports of the same trace, and uploads that may be anything."""

import base64
import gzip
import json

import pytest

from llmviewer._layout import ROOT
from llmviewer.analyzing.analysis import analyze
from llmviewer.errors import InputError
from llmviewer.reports.server_steps import REPORT as SERVER
from llmviewer.reports.timeline import REPORT
from llmviewer.reports.trace_pairs import REPORT as PAIR
from llmviewer.timelines.against import timeline as compare_trace
from llmviewer.timelines.ranks import compare_ranks
from llmviewer.timelines.reading import parse_timeline
from llmviewer.timelines.server_steps import compare_server, request_of

pytest.importorskip("dash")

from dash import no_update
from dash._callback_context import context_value
from dash._utils import AttributeDict

from llmviewer.webapp.app import create
from llmviewer.webapp.results import device_results
from llmviewer.webapp.state import State
from llmviewer.webapp.tabs import timeline as tab
from llmviewer.webapp.views import timeline
from llmviewer.webapp.views.timeline import DroppedTrace

from . import test_server_telemetry as telemetry
from . import test_timeline_pairs as pairs
from . import test_timeline_ranks as ranks

EXAMPLE = ROOT / "reports" / "examples" / "timeline.csv"
ASKED = State(on=("rtx-4090",), quant="Q4_K_M", prompt=476, phase="prefill")


def page(part):
    return json.dumps(part, default=lambda c: c.to_plotly_json())


@pytest.mark.parametrize("trace", [EXAMPLE, DroppedTrace(EXAMPLE.name, EXAMPLE.read_bytes())], ids=["path", "dropped"])
def test_page_report_equals_the_command_line_report(trace):
    analysis = analyze("llama-3.1-8b", "rtx-4090", quant="Q4_K_M", prompt=476)
    expected = compare_trace(EXAMPLE, analysis, phase="prefill")
    found = timeline.timeline_of(trace, device_results(ASKED)[0], ASKED)
    assert REPORT.text(found) == REPORT.text(expected)
    assert found.inputs == expected.inputs | {"file": EXAMPLE.name}
    drawn = page(tab._content(REPORT, found, 1))
    cells = [item.text for table in REPORT.tables(expected) for row in table.body for item in row]
    assert len(cells) > 100
    assert all(json.dumps(text) in drawn for text in cells)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.json", b"{", "a.json: is not valid JSON, perhaps cut off: "),
        ("a.json", b'{"traceEvents": [{"cat": "kernel"', "a.json: is not valid JSON, perhaps cut off: "),
        ("a.json", b'{"traceEvents": []}', "a.json: has no kernel that ran; record CUDA activities"),
        ("a.txt", b"", "a.txt: is empty; must be a trace of torch.profiler (.json, .json.gz)"),
        ("a.sqlite", b"SQLite format 3\x00nothing", "a.sqlite: must be a database from `nsys export --type sqlite`"),
        ("a.gz", b"\x1f\x8bnothing at all", "a.gz: cannot be read: "),
        ("a.csv", b"Name,Start,Duration\na,b,c", "a.csv:2: Start and Duration must be numbers; got a,b,c"),
        ("a.json", b"x" * (timeline.MAX_TRACE_BYTES + 1), "a.json: must have at most 50,000,000 bytes; got 50,000,001"),
    ],
)
def test_unusable_trace_is_refused_with_the_reason(name, data, message):
    with pytest.raises(InputError) as error:
        timeline.timeline_of(DroppedTrace(name, data), device_results(State())[0], State())
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)
    assert "/tmp" not in str(error.value)


def test_decompressed_trace_is_limited_in_size(monkeypatch):
    monkeypatch.setattr(timeline, "MAX_UNPACKED_BYTES", 1000)
    with pytest.raises(InputError, match=r"^a\.gz: must have at most 1,000 bytes, unpacked$"):
        timeline.timeline_of(DroppedTrace("a.gz", gzip.compress(b" " * 1001)), device_results(State())[0], State())


def test_missing_trace_file_and_invalid_stage_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"^t\.json: the file no longer exists$"):
        timeline.timeline_of(tmp_path / "t.json", device_results(State())[0], State())
    asked = State(on=("rtx-4090",), pp=2)
    with pytest.raises(InputError, match=r"^stage must be 1 to 2"):
        timeline.timeline_of(EXAMPLE, device_results(asked)[0], asked)
    wrong = State(on=("epyc-9755",))
    with pytest.raises(
        InputError, match=r"^timeline\.csv: has kernels of a GPU; hardware must be the device they ran on"
    ):
        timeline.timeline_of(EXAMPLE, device_results(wrong)[0], wrong)


def test_an_error_about_passes_stands_beside_their_control(monkeypatch):
    def refuse(*_):
        raise InputError("the number of recorded passes is unknown; give it (--passes N)")

    monkeypatch.setattr(timeline, "timeline_of", refuse)
    app = create(EXAMPLE)
    read = next(one["callback"].__wrapped__ for key, one in app.callback_map.items() if "timeline-result" in key)
    with app.server.app_context():
        errors = read(None, ASKED.link, None, [])[1:]
    assert errors == ("", "the number of recorded passes is unknown; give it (Passes)")


def test_a_trace_is_read_again_only_where_it_changed(tmp_path, monkeypatch):
    read = []
    real = timeline.read_timeline
    monkeypatch.setattr(timeline, "read_timeline", lambda *given, **more: read.append(given) or real(*given, **more))
    path = tmp_path / "t.csv"
    path.write_bytes(EXAMPLE.read_bytes())
    for asked in (ASKED, State(on=("rtx-4090",), phase="prefill")):
        timeline.timeline_of(path, device_results(asked)[0], asked)
    assert len(read) == 1
    path.write_bytes(EXAMPLE.read_bytes() + b"\n")
    timeline.timeline_of(path, device_results(ASKED)[0], ASKED)
    assert len(read) == 2


def test_a_trace_that_the_page_was_started_with_is_shown_and_saved():
    app = create(EXAMPLE)
    read, save = (
        next(one["callback"].__wrapped__ for key, one in app.callback_map.items() if name in key)
        for name in ("timeline-result", "timeline-download")
    )
    with app.server.app_context():
        shown, error, _ = read(None, ASKED.link, None, [])
        assert error == ""
        assert "timeline-parts" in page(shown)
        kept, error, _ = read("data:,nonsense!", ASKED.link, "mine.json", [])
        assert kept is no_update
        assert error == "mine.json: was not transferred completely; upload it again"
        context_value.set(AttributeDict(triggered_inputs=[{"prop_id": "timeline-csv.n_clicks"}]))
        saved = save(None, 1, None, None, None, ASKED.link, [])
    assert saved["filename"] == "timeline.csv"
    assert saved["content"].startswith("kind,name,")


def dropped(name, content):
    return DroppedTrace(name, content.encode() if isinstance(content, str) else json.dumps(content).encode())


def test_several_files_are_the_ranks_of_a_run_as_on_the_command_line(tmp_path):
    traces = {
        "rank-0.json": ranks.recorded(reduce_us=25, rank=0),
        "rank-1.json": ranks.recorded(extra=10, rank=1),
    }
    state = State(batch=8, tp=2)
    files = [dropped(*one) for one in traces.items()]
    report, found = timeline.recorded(files, device_results(state), state)
    recordings = {one.name: parse_timeline(one.data, one.name, "decode", max_bytes=10**8) for one in files}
    expected = compare_ranks(
        recordings, analyze("llama-3.1-8b", "h100-sxm", batch=8, tp=2), phase="decode", passes=None
    )
    assert report.text(found) == report.text(expected)
    drawn = page(tab._content(report, found, 1))
    assert "Slowest: rank 1 computes" in drawn
    assert {name in drawn for name in ("timeline-ranks", "timeline-lanes")} == {True}
    with pytest.raises(InputError, match=r"rank-0\.json: is given more than once"):
        timeline.recorded([files[0], files[0]], device_results(state), state)


def test_two_files_are_a_change_where_the_control_says_so():
    files = [
        dropped("apart.json", pairs.trace(pairs.APART, 900.0)),
        dropped("merged.json", pairs.trace(pairs.MERGED, 100.0)),
    ]
    state = State(batch=8, recordings="pair", on=("h100-sxm", "h200-sxm"))
    report, found = timeline.recorded(files, device_results(state), state)
    assert report is PAIR
    assert [one.analysis.hardware.name for one in (found.before, found.after)] == ["h100-sxm", "h200-sxm"]
    assert found.speed_up == pytest.approx(found.before.time_s / found.after.time_s)
    assert "First of 2 devices" not in page(tab._content(report, found, 2))
    three = State(batch=8, recordings="pair", on=("h100-sxm", "h200-sxm", "l4"))
    _, found = timeline.recorded(files, device_results(three), three)
    assert found.after.analysis.hardware.name == "h200-sxm"
    with pytest.raises(InputError, match="must be two; got 3"):
        timeline.recorded([*files, files[0]], device_results(state), state)


def test_metrics_of_a_server_are_compared_at_their_own_batch_and_lengths(tmp_path):
    state = State(batch=999, prompt=7)
    report, found = timeline.recorded([dropped("metrics.txt", telemetry.VLLM)], device_results(State()), state)
    load = telemetry.load_of(tmp_path, telemetry.VLLM)
    analysis = analyze("llama-3.1-8b", "h100-sxm", **request_of(load))
    expected = compare_server(load, analysis, file="metrics.txt")
    assert json.loads(report.json(found)) == json.loads(report.json(expected))
    assert report is SERVER
    later = telemetry.VLLM.replace(" 19900.0", " 39800.0").replace(" 238.8", " 477.6")
    files = [dropped("a.txt", telemetry.VLLM), dropped("b.txt", later)]
    with pytest.raises(InputError, match=r"a\.txt|b\.txt"):
        timeline.recorded(files[::-1], device_results(State()), state)
    big = dropped("metrics.txt", telemetry.VLLM + "# \n" * 2_000_000)
    with pytest.raises(InputError, match="must have at most 5,000,000 bytes"):
        timeline.recorded([big], device_results(State()), state)
    trace = dropped("trace.json", ranks.recorded(rank=0))
    for mixed in ([files[0], trace], [trace, files[0]]):
        with pytest.raises(InputError, match=r"a\.txt: is of a server, but other files are traces"):
            timeline.recorded(mixed, device_results(State()), state)
    with pytest.raises(InputError, match="one file, or an earlier and a later one; got 3"):
        timeline.recorded([files[0]] * 3, device_results(State()), state)


def test_several_dropped_files_reach_the_report(tmp_path):
    app = create()
    read = next(one["callback"].__wrapped__ for key, one in app.callback_map.items() if "timeline-result" in key)
    state = State(batch=8, tp=2)
    texts = [json.dumps(ranks.recorded(extra=10 * rank, reduce_us=25 - 10 * rank, rank=rank)) for rank in range(2)]
    contents = ["data:," + base64.b64encode(text.encode()).decode() for text in texts]
    with app.server.app_context():
        shown, *errors = read(contents, state.link, ["a.json", "b.json"], [])
    assert errors == ["", ""]
    assert "2 ranks" in page(shown)
