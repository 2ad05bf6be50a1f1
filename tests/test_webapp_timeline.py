"""The dashboard's timeline: what `llmviewer timeline` reports of the same trace, and uploads that may be anything."""

import gzip
import json

import pytest

from llmviewer._layout import ROOT
from llmviewer.analyzing.analysis import analyze
from llmviewer.errors import InputError
from llmviewer.reports.timeline import REPORT
from llmviewer.timelines.against import timeline as compare_trace

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
    drawn = page(tab._timeline_content(found, 1))
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
