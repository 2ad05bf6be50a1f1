"""The dashboard's sweeps: the same numbers as sweep(), crossings to the sequence, links that are wrong."""

import csv
import io
import json
from dataclasses import replace

import numpy as np
import pytest

from llmviewer.analyzing.analysis import analyze
from llmviewer.sweeping.grid import sweep

pytest.importorskip("dash")

from llmviewer.webapp.app import create
from llmviewer.webapp.results import device_results
from llmviewer.webapp.state import SWEEPS, State
from llmviewer.webapp.tabs import sweeps as tab
from llmviewer.webapp.views import sweep_curves, sweeps

ASKED = [
    State(model="llama-3.1-70b", on=("h100-sxm", "mi300x"), batch=16),
    State(model="llama-3.1-70b", on=("h100-sxm",), batch=16, tp=8, context=3000),
    State(model="llama-2-7b", on=("rtx-a6000",), accounting="survey", quant="W4A16"),
    State(model="llama-3.1-70b", on=("h100-sxm",), tp=2, pp=4, batch=8),
    State(model="t5-small", on=("l4",), sweep="length", gen=16),
    State(model="bert-base-uncased", on=("l4",), sweep="length", batch=4),
    State(model="deepseek-v3", on=("h200-sxm",), tp=8, sweep="length", mla="naive"),
    State(model="mamba-130m", on=("t4",)),
]


def _page(part):
    return json.dumps(part.to_plotly_json(), default=lambda c: c.to_plotly_json())


def _lines(asked):
    own, problems = sweep_curves.sweep_curves(device_results(asked), asked)
    assert problems == ()
    return own


@pytest.mark.parametrize("asked", ASKED, ids=lambda s: s.link)
def test_lines_are_those_of_sweep(asked):
    for line in _lines(asked):
        axis = "batch" if asked.sweep == "batch" else "prompt"
        generates = line.setting.model.generates
        expected = sweep(
            asked.model, line.name, {axis: [int(x) for x in line.x]}, batch=asked.batch, prompt=asked.prompt,
            gen=asked.gen if generates else None, kv_len=asked.context or None, quant=asked.quant or None,
            accounting=asked.accounting, mla=asked.mla, layout=asked.layout, expected=False,
        ).columns  # fmt: skip
        np.testing.assert_allclose(line.time_s("prefill", line.x), expected["ttft_s"], rtol=1e-12)
        if generates:
            np.testing.assert_allclose(line.time_s("decode", line.x), expected["decode_step_s"], rtol=1e-12)
        np.testing.assert_allclose(line.memory(line.x), expected["total_bytes"], rtol=1e-12)


@pytest.mark.parametrize("asked", ASKED[:4], ids=lambda s: s.link)
def test_the_present_setting_is_on_its_line(asked):
    for line, name in zip(_lines(asked), asked.on, strict=True):
        at = np.array([float(asked.batch)])
        assert at[0] in line.x
        found = analyze(
            asked.model, name, batch=asked.batch, quant=asked.quant or None, accounting=asked.accounting,
            layout=asked.layout, kv_len=asked.context or None,
        )  # fmt: skip
        assert line.time_s("prefill", at)[0] == pytest.approx(found.generation.ttft_s)
        assert line.time_s("decode", at)[0] == pytest.approx(found.phases.decode.time_s)
        whole = line.expected_s("decode", at)
        assert (whole is None) == (found.phases.decode.expected_time_s is None)
        if whole is not None:
            assert whole[0] == pytest.approx(found.phases.decode.expected_time_s)
        assert line.bounds("decode", at) == [found.phases.decode.total.bound]


def test_techniques_change_the_pass_and_leave_throughput_out():
    asked = State(model="llama-2-7b", techniques=("medusa:tau=2.5",))
    (line,) = _lines(asked)
    found = analyze("llama-2-7b", "h100-sxm", techniques=["medusa:tau=2.5"]).phases.decode
    assert line.time_s("decode", np.array([1.0]))[0] == pytest.approx(found.time_s)
    assert set(sweeps.curve_figures([line], asked)) == {"sweep-decode", "sweep-prefill", "sweep-memory"}


def test_stated_bound_changes_match_the_curves():
    asked = ASKED[0]
    own = {line.name: line for line in _lines(asked)}
    rows = sweeps.crossing_table(list(own.values()), asked)[1:]
    turns = [(int(at.replace(",", "")), name, said) for at, name, said in rows if "bound" in said]
    assert len(turns) >= 2
    for at, phase, said in turns:
        line, before, after = own[said.partition(":")[0]], said.split()[2].strip("-"), said.split()[4]
        name = phase.split()[0]
        seen = line.bounds(name, np.array([at - 1.0, float(at)]))
        assert seen == [before, after.removesuffix("-bound")]


def test_stated_crossings_match_the_curves():
    asked = State(model="llama-3.1-8b", on=("a100-sxm-80gb", "l4"), set=("l4:memory.bandwidth=10x",))
    own = {line.name: line for line in _lines(asked)}
    rows = [row for row in sweeps.crossing_table(list(own.values()), asked)[1:] if "becomes faster" in row[2]]
    assert rows
    for at, phase, said in rows:
        faster, slower = (own[name] for name in said.split(" becomes faster than "))
        places = np.array([float(at.replace(",", "")) - 1, float(at.replace(",", ""))])
        a, b = (line.time_s(phase.split()[0], places) for line in (faster, slower))
        assert a[0] >= b[0]
        assert a[1] < b[1]


def test_invalid_precisions_are_reported_and_others_shown():
    asked = State(curves="precisions", quants=("W17", "W4A16", "nonsense"))
    own, problems = sweep_curves.sweep_curves(device_results(asked), asked)
    assert [line.name for line in own] == ["W4A16"]
    assert [problem.partition(":")[0] for problem in problems] == ["W17", "nonsense"]
    page = _page(tab.show(device_results(asked), asked))
    assert "bits must be" in page
    none = replace(asked, quants=("W17",))
    assert tab.show(device_results(none), none)


def test_map_shows_bounds_and_misfits():
    asked = State(model="llama-3.1-70b", on=("mi300x",))
    (found,) = sweeps.bound_maps(device_results(asked), asked)
    heat, crosses = found.figure.data
    for batch, context in (("1", "1k"), ("1024", "128"), ("256", "2k")):
        length = {"1k": 1024, "128": 128, "2k": 2048}[context]
        expected = analyze(
            "llama-3.1-70b", "mi300x", batch=int(batch), prompt=min(1024, length - 1), kv_len=length, gen=1,
        )  # fmt: skip
        total = expected.phases.decode.total
        share = heat.z[list(heat.y).index(context)][list(heat.x).index(batch)]
        assert share == pytest.approx(total.time_by_bound_s["memory"] / total.bound_time_s)
        crossed = (batch, context) in set(zip(crosses.x, crosses.y, strict=True))
        assert crossed == (not expected.memory.fits)


@pytest.mark.parametrize("name", SWEEPS)
@pytest.mark.parametrize("model", ["llama-2-7b", "bert-base-uncased"])
def test_every_sweep_is_shown_or_states_why_not(name, model):
    asked = State(model=model, on=("rtx-a6000",), sweep=name)
    page = _page(tab.show(device_results(asked), asked))
    assert "sweep-" in page or "does not generate" in page


@pytest.mark.parametrize("name", [name for name in SWEEPS if name.startswith("figure")])
def test_paper_figures_are_labelled_and_linked_to_their_setting(name):
    paper, notices = State.of_link(f"{tab._PAPER[name]}&tab=sweeps&sweep={name}")
    assert notices == ()
    own = _page(tab.show(device_results(paper), paper))
    assert f'Figure {name[-1]} of \\"LLM Inference Unveiled\\" (arXiv:2402.16363)' in own
    assert "in the setting of the paper" in own
    other = replace(paper, model="gpt2", tp=2)
    shown = _page(tab.show(device_results(other), other))
    assert "the setting of the paper" in shown
    assert "for gpt2 on rtx-a6000" in shown
    assert ("without parallelism, offloading and techniques" in shown) == (name[-1] in "678")


def test_figures_7_and_8_have_the_paper_s_numbers():  # of its notebook, on a device of 154.84 rather than 154.8 TOP/s
    for name, column in (("figure-7", {1: 34.5943, 16: 51.4911}), ("figure-8", {16: 33.7631, 100: 35.4532})):
        paper, _ = State.of_link(f"{tab._PAPER[name]}&sweep={name}")
        curve = sweeps.paper_figure(device_results(paper), paper).figure.data[0]
        found = dict(zip(curve.x, curve.y, strict=True))
        assert {x: found[x] for x in column} == pytest.approx(column, rel=1e-5)


def test_memory_that_all_devices_need_is_one_curve_under_each_of_their_limits():
    asked = State(model="llama-3.1-70b", on=("h100-sxm", "mi300x"))
    figure = sweeps.curve_figures(_lines(asked), asked)["sweep-memory"].figure
    assert [trace.name for trace in figure.data] == ["needed", "h100-sxm: 85.5 GB", "mi300x: 206 GB"]
    limits = [analyze("llama-3.1-70b", name).memory.capacity_bytes for name in asked.on]
    assert [trace.y[0] for trace in figure.data[1:]] == limits
    asked = State(curves="precisions", quants=("W16A16", "W4A16"))
    figure = sweeps.curve_figures(_lines(asked), asked)["sweep-memory"].figure
    assert [trace.name for trace in figure.data] == ["W16A16", "W4A16", "h100-sxm: 85.5 GB"]


def test_ticks_are_round():
    asked = State(model="llama-3.1-70b", on=("h100-sxm", "l40s"))
    for one in sweeps.curve_figures(_lines(asked), asked).values():
        assert not [text for text in one.figure.layout.yaxis.ticktext if ".0" in text]
        assert list(one.figure.layout.xaxis.ticktext)[-1] == "1024"


def test_devices_without_a_map_are_counted():
    names = ("h100-sxm", "l4", "t4", "l40s", "mi300x", "a10")
    found = device_results(State(on=names))
    assert "The first 4 of 6 devices." in _page(tab.show(found, State(on=names)))


def test_the_link_has_what_is_swept_and_falls_back():
    asked = State(sweep="length", curves="precisions", quants=("W4A16", "W8A8"), tab="sweeps")
    assert State.of_link(asked.link) == (asked, ())
    found, notices = State.of_link("?sweep=figure-9&curves=all&quants=" + "x" * 400)
    assert found == State()
    assert len(notices) == 3


def test_all_points_are_saved():
    app = create()
    callback = next(one for key, one in app.callback_map.items() if "sweeps-download" in key)
    saved = callback["callback"].__wrapped__(1, "?on=h100-sxm|l4", [])
    rows = list(csv.DictReader(io.StringIO(saved["content"])))
    assert {row["of"] for row in rows} == {"h100-sxm", "l4"}
    one = next(row for row in rows if (row["of"], row["batch"]) == ("l4", "64"))
    expected = sweep("llama-3.1-8b", "l4", {"batch": [64]}, gen=128).columns
    assert float(one["decode_step_s"]) == pytest.approx(expected["decode_step_s"][0])
    assert one["fits"] == str(bool(expected["fits"][0]))
