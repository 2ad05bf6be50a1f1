"""The dashboard's validation: errors of the profiles that ship, and uploads that may be anything."""

import base64
import io
import json

import numpy as np
import pandas as pd
import pytest

from llmviewer.errors import InputError
from llmviewer.expectation.device import find_device
from llmviewer.expectation.families import FAMILIES
from llmviewer.expectation.index import index
from llmviewer.expectation.profile import SIMILARITY_CLASSES
from llmviewer.expectation.rows import read
from llmviewer.expectation.validate import predict, validate

pytest.importorskip("dash")

from dash import no_update

from llmviewer.webapp.app import create
from llmviewer.webapp.results import device_results
from llmviewer.webapp.state import State
from llmviewer.webapp.tabs import validation as tab
from llmviewer.webapp.views import uploads, validation

GEMM = pd.DataFrame({
    "gpu": ["H100-SXM-80GB"] * 3 + ["l40s", "nothing"], "framework": ["vllm"] * 5, "dtype": ["bf16"] * 5,
    "M": [1, 128, 4096, 64, 1], "N": [4096] * 5, "K": [4096] * 5, "time_us": [14.0, 16.0, 300.0, None, 3.0],
    "remark": ["=1+1"] * 5,
})  # fmt: skip


def _csv(frame):
    return frame.to_csv(index=False).encode()


def _parquet(frame):
    out = io.BytesIO()
    frame.to_parquet(out, index=False)
    return out.getvalue()


def _unscored(found):
    """Reasons of rows that are not scored."""
    return [int(line.partition(" row")[0]) for line in validation.skipped_reasons(found)]


def _page(part):
    return json.dumps(part.to_plotly_json(), default=lambda c: c.to_plotly_json())


def test_error_table_equals_the_errors_of_the_profiles():
    found = device_results(State(on=("h100-sxm", "l4")))
    fits = [kernel_fit for kernel_fit in index().fits if kernel_fit.device == "h100-sxm"]
    rows = validation.profile_rows(found)
    assert [row["held_out"] for row in rows] == [kernel_fit.held_out.mape for kernel_fit in fits]
    assert {row["device"] for row in rows} == {"h100-sxm"}
    assert validation.unmeasured_devices(found) == ["l4"]
    figure = validation.errors_figure(found).figure
    dots = {trace.name: sorted(trace.x) for trace in figure.data if trace.type == "box"}
    assert dots["h100-sxm"] == sorted(kernel_fit.held_out.mape for kernel_fit in fits)
    carried = sorted(error.mape for key, error in index().errors.items() if key[-1] in SIMILARITY_CLASSES)
    assert dots["transferred from other devices"] == carried
    assert len(dots) == 5
    assert sum(map(len, dots.values())) == len(fits) + len(index().errors)
    assert len(validation.transfer_table()) == 1 + len(index().errors)


def test_source_table_equals_the_sources_of_the_analysis():
    found = device_results(State(on=("h100-sxm", "l4")))
    lines = validation.source_table(found)[1:]
    totals = [phase.total for one in found for _, phase in one.analysis.phases]
    assert [line[-1] for line in lines] == [total.expectation_source for total in totals]
    survey = validation.source_table(device_results(State(accounting="survey")))
    assert {line[3] for line in survey[1:]} == {"-"}


@pytest.mark.parametrize(
    "state", [State(), State(on=("l4", "t4")), State(accounting="survey"), State(model="resnet-50")]
)
def test_every_answer_is_shown(state):
    state = state if state.model != "resnet-50" else State(model="bert-base-uncased")
    assert "validation-errors" in _page(tab.show(device_results(state), state))


@pytest.mark.parametrize(("name", "write"), [("mine.csv", _csv), ("mine.parquet", _parquet)])
def test_an_upload_is_scored_as_validate_does(name, write, tmp_path):
    path = tmp_path / "mine.csv"
    GEMM.to_csv(path, index=False)
    expected = validate([predict(read(path), index().fits)])
    found = uploads.scored_measurements(name, write(GEMM))
    assert repr(found.scores.groups) == repr(expected.groups)  # nan is not equal to itself
    assert sum(_unscored(found)) == sum(expected.skipped.values()) == 2
    assert [row["row"] for row in found.scores.worst] == [row["row"] for row in expected.worst]
    figure = validation.scatter_figure(found, name).figure
    assert list(figure.data[0].x) == [14.0, 16.0, 300.0]
    np.testing.assert_allclose(figure.data[0].y, found.predictions.columns["expected_us"][:3])
    assert validation.score_table(found).lines()[1][:5] == ("gemm", "h100-sxm", "bf16", "calibrated", "3")
    heads, *rows = validation.prediction_rows(found)
    assert [row[0] for row in rows] == [1, 2, 3, 4]
    assert "remark" not in heads
    assert "expected_us" in heads


def test_versions_of_an_upload_are_no_numbers():
    found = uploads.scored_measurements("a.csv", _csv(GEMM.assign(version="0.10")))
    assert set(found.predictions.table.frame["version"]) == {"0.10"}


def test_rows_without_times_are_predicted_and_not_drawn():
    found = uploads.scored_measurements("a.csv", _csv(GEMM.drop(columns="time_us")))
    assert validation.scatter_figure(found, "a") is None
    assert "expected_us" in validation.prediction_rows(found)[0]


def _swelling():
    return _parquet(GEMM.assign(framework="x" * 2000))


def _nested():
    return _parquet(GEMM.assign(framework=[["vllm"]] * 5))


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.json", b"{}", "a.json: must end in .csv or .parquet, the formats of measurements"),
        ("a.csv", b"", "a.csv: is not a table: No columns to parse from file"),
        ("a.csv", b"gpu,framework\n", "a.csv: holds no rows"),
        ("a.csv", b"x,y\n1,2\n", "a.csv: no family has these columns"),
        ("a.csv", b"gpu,M\nh100,1\n", "a.csv: gemm needs the columns 'framework', 'dtype', 'N', 'K'"),
        ("a.csv", b"\xff\xfe\x00\x01\n1", "a.csv: is not a table: "),
        ("a.csv", b"M" + b",x" * 300 + b"\n", "a.csv: must have at most 200 columns; got 301"),
        ("a.csv", b"M\n" + b"1\n" * 20_001, "a.csv: must have at most 20,000 rows; got 20,001"),
        (
            "a.csv",
            _csv(GEMM.assign(gpu="/etc/h100.yaml")),
            "a.csv: gpu: no device '/etc/h100.yaml'; the nearest are h100-sxm",
        ),
        ("a.csv", b"x" * 5_000_001, "a.csv: must have at most 5,000,000 bytes; got 5,000,001"),
        ("a.csv", _csv(pd.concat([GEMM.assign(gpu=f"d{i}") for i in range(101)])), "a.csv: must have at most 100 devi"),
        ("a.csv", _csv(GEMM.assign(family="os.system")), "a.csv: family: must be one of gemm, "),
        ("a.parquet", b"PAR1 not really PAR1", "a.parquet: is not a table: "),
        ("a.parquet", b"", "a.parquet: is not a table: "),
        ("a.parquet", _swelling(), "a.parquet: framework: must be texts of at most 1000 characters"),
        ("a.parquet", _nested(), "a.parquet: framework: must be numbers or texts; got list"),
    ],
)
def test_unusable_upload_is_refused_with_the_reason(name, data, message):
    with pytest.raises(InputError) as error:
        uploads.scored_measurements(name, data)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)
    assert "/tmp" not in str(error.value)


@pytest.mark.parametrize("family", FAMILIES.values(), ids=lambda f: f.name)
def test_strange_numbers_are_not_scored_and_break_nothing(family):
    strange = [0, -1, "nonsense", "", "inf", "nan", "1e308", "1e11", 3.5]
    table = pd.DataFrame({
        "gpu": "h100-sxm", "framework": "vllm", "dtype": "bf16", "family": family.name, "op": "all_reduce",
        **dict.fromkeys((*family.columns, *family.optional), strange), "time_us": strange,
    })  # fmt: skip
    found = uploads.scored_measurements("a.csv", _csv(table))
    assert sum(found.scores.skipped.values()) >= 6
    assert _page(tab._result(found, "a.csv"))


def test_device_names_resolve_as_in_measurements_and_never_to_files():
    for called in ("H100-SXM-80GB", "NVIDIA H100_SXM", "h100-sxm", "Nvidia L40S", "A100-SXM4-80GB-foo", "MI300X"):
        assert uploads._device_name(called) == find_device(called).name
    for called in ("", "nothing", "nvidia", "/data/h100-sxm.yaml", "hardware/h100-sxm.yaml", "nvidia-x.yml", "../h100"):
        assert uploads._device_name(called) == ""


def test_rows_on_unknown_devices_cost_nothing_and_are_counted():
    table = pd.concat([GEMM.assign(gpu=f"a-b-c-d-e-f-g-h-i-j-k-{i}") for i in range(90)] + [GEMM])
    found = uploads.scored_measurements("a.csv", _csv(table))
    assert sum(one.expected.rows for one in found.scores.groups) == 3
    assert sum(found.unknown_devices.values()) == 90 * 5 + 1
    assert {int(line[0]) for line in validation.worst_table(found).lines()[1:]} == {451, 452, 453}
    assert validation.skipped_reasons(found)[0].startswith("5 rows: no device 'a-b-c-")


def test_expert_parallelism_beyond_the_experts_is_not_scored():
    columns = {"num_tokens": 64, "hidden": 4096, "inter": 14336, "topk": 2, "experts": 8, "ep": [8, 57]}
    table = pd.DataFrame({
        "gpu": "h100-sxm", "framework": "vllm", "dtype": "bf16", "family": "moe", "distribution": "power_law_1.2",
        **{name: columns.get(name, 1) for name in (*FAMILIES["moe"].columns, *FAMILIES["moe"].optional)},
        "time_us": [100.0, 100.0], "ep": [8, 57], "experts": 8,
    })  # fmt: skip
    found = uploads.scored_measurements("a.csv", _csv(table))
    assert _unscored(found) == [1]


def test_a_fault_is_one_line(monkeypatch):
    def broken(*_args):
        raise ZeroDivisionError("a\nb")

    monkeypatch.setattr(uploads, "predict", broken)
    with pytest.raises(InputError, match=r"^a\.csv: internal error of llmviewer; details are in the server log"):
        uploads.scored_measurements("a.csv", _csv(GEMM))


def test_columns_that_stand_twice_are_read_once():
    text = b"gpu,framework,dtype,M,N,K,M,time_us\nh100-sxm,vllm,bf16,1,4096,4096,2,10\n"
    assert len(uploads.scored_measurements("a.csv", text).scores.groups) == 1


def test_page_reports_errors_and_saves_valid_predictions():
    app = create()
    read_, save = (
        next(one["callback"].__wrapped__ for key, one in app.callback_map.items() if name in key)
        for name in ("measured-result", "measured-download")
    )
    packed = base64.b64encode(_csv(GEMM)).decode()
    result, error = read_(f"data:text/csv;base64,{packed}", "mine.csv")
    assert "measured-scatter" in _page(result)
    assert error == ""
    for contents, name in (("data:,nonsense!", "mine.csv"), (f"data:;base64,{packed}", "mine.exe"), ("x", None)):
        kept, error = read_(contents, name)
        assert kept is no_update
        assert error.startswith(f"{name or 'file'}: ")
    content = save(1, f"data:text/csv;base64,{packed}", "mine.csv")["content"]
    assert len(content.splitlines()) == 5
