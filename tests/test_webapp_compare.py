"""The dashboard's comparison: pins in the link, numbers and words that are those of analyze()."""

import base64
import csv
import io
import json
import re
import zipfile
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmviewer.analyzing.analysis import analyze
from llmviewer.reports import side_by_side
from llmviewer.units import seconds, si

pytest.importorskip("dash")

from dash._callback_context import context_value
from dash._utils import AttributeDict

from llmviewer.webapp.app import create
from llmviewer.webapp.results import device_results, parse_model_file
from llmviewer.webapp.state import MAX_PINS, State
from llmviewer.webapp.tabs import compare as tab
from llmviewer.webapp.views import compare
from tests.test_webapp import CONFIG, Browser

FULL = State(model="llama-3.1-70b", on=("mi300x",), batch=16)
W4 = replace(FULL, quant="W4A16g128", pins=(FULL.pin_link("mi300x"),))


@pytest.fixture(scope="module")
def app():
    return create()


def _shown(state):
    return json.dumps(tab.show(device_results(state), state).to_plotly_json(), default=lambda c: c.to_plotly_json())


def test_pin_round_trips_the_setting():
    asked = State(
        model="deepseek-v3", on=("h200-sxm", "mi300x"), tp=8, offload="weights=0.5,kv=0.2@storage", tab="compare",
        set=("mi300x:memory.bandwidth=2x", "h200-sxm:memory.bandwidth=3x"), op="a.b", sweep="length",
        techniques=("window:size=4096", "skeleton"), pins=("batch=2",), phase="prefill",
    )  # fmt: skip
    again, notices = State.of_link(asked.pin_link("mi300x"))
    assert notices == ()
    assert again == replace(asked.analysis_inputs, on=("mi300x",), set=("mi300x:memory.bandwidth=2x",))
    assert State().pin_link("h100-sxm") == "model=llama-3.1-8b"
    several = replace(asked, pins=tuple(asked.pin_link(name) for name in asked.on))
    assert State.of_link(several.link) == (several, ())


def test_a_file_that_only_a_pin_names_stays_in_the_link():
    file = parse_model_file("tiny.json", CONFIG)
    pin = State.of({"model": "file:tiny.json"}, [file]).pin_link("h100-sxm")
    asked = State.of({"pins": [pin]}, [file])
    assert State.of_link(asked.link) == (asked, ())
    settings, problems = compare.compared_settings(device_results(asked), asked)
    assert problems == ()
    assert settings[0].analysis.model.name == "tiny"
    without = replace(asked, files=())
    settings, problems = compare.compared_settings(device_results(without), without)
    assert [one.label for one in settings] == ["A", "now"]
    assert "A: file:tiny.json is an uploaded file that the link does not contain; upload it again" in problems


@given(st.lists(st.text(max_size=80), max_size=8))
def test_arbitrary_pins_never_fail(pins):
    from urllib.parse import urlencode

    state, _ = State.of_link(urlencode({"pins": "|".join(pins)}))
    found = device_results(State())
    settings, _ = compare.compared_settings(found, state)
    assert settings[-1].analysis is found[0].analysis
    assert tab.show(found, state)


@pytest.mark.parametrize(
    ("pin", "message"),
    [
        ("model=../../etc/passwd", "A: model: no '../../etc/passwd'"),
        ("batch=0", "A: batch: must be a whole number"),
        ("tp=7", "A: tp=7 does not divide"),
        ("quant=W17", "A: quantization 'W17'"),
        ("pins=pins=pins=batch%3D2", ""),
    ],
)
def test_invalid_pin_is_reported(pin, message):
    state = State(pins=(pin,))
    settings, problems = compare.compared_settings(device_results(state), state)
    assert problems[0].startswith(message) if message else not problems
    assert settings[-1].pin == -1
    assert "Unpin A" in _shown(state)


def test_unknown_link_key_suggests_the_right_key():
    told = {query: State.of_link(query)[1] for query in ("?hw=h100", "?kv-len=3", "?batches=3")}
    assert told == {
        "?hw=h100": ("link: no setting 'hw'; in a link it is on",),
        "?kv-len=3": ("link: no setting 'kv-len'; in a link it is context",),
        "?batches=3": ("link: no setting 'batches'; did you mean batch or rates?",),
    }


def test_invalid_pins_are_reported_on_every_tab():
    state, notices = State.of_link("?tab=overview&pins=zzz|batch%3D0|batch%3D8")
    assert state.pins == ("zzz", "batch=0", "batch=8")
    assert notices == (
        "link: pins: no setting 'zzz'; no name is like it",
        "link: pins: batch: must be a whole number from 1 to 65,536; got 0; the default is used",
    )


def test_pins_are_limited_in_number_and_length():
    many = [f"batch={i}" for i in range(1, MAX_PINS + 2)]
    for pins, kept in (("|".join(many), tuple(many[:MAX_PINS])), ("x" * 5000, ())):
        state, notices = State.of_link(f"?pins={pins.replace('=', '%3D')}")
        assert state.pins == kept
        assert notices[0].startswith("link: pins: must ")


def test_numbers_equal_those_of_analyze():
    settings, problems = compare.compared_settings(device_results(W4), W4)
    assert problems == ()
    heads, *lines = side_by_side.numbers_table(settings).lines()
    assert heads == ("", "A: as published", "now: W4A16g128")
    found = {line[0]: line[1:] for line in lines}
    a = analyze("llama-3.1-70b", "mi300x", batch=16)
    b = analyze("llama-3.1-70b", "mi300x", batch=16, quant="W4A16g128")
    times = a.generation.tpot_s, b.generation.tpot_s
    assert found["TPOT >="] == (
        seconds(times[0]),
        f"{seconds(times[1])} ({times[1] / times[0]:.3g}x)",
    )
    assert found["memory"][0] == f"{si(a.memory.total_bytes)}B"
    assert found["largest batch"][1].startswith(f"{b.memory.max_batch:,} (")
    assert found["decode bound"] == ("memory", "memory")
    raw = dict(zip(*side_by_side.csv_lines(settings)[:2], strict=True))
    assert raw["ttft_s"] == a.generation.ttft_s
    assert raw["expected_tpot_s"] == a.generation.expected_tpot_s
    assert raw["fits"] is True


def _said(before, after):
    """The page's comparison of two settings on a device each."""
    state = replace(after, pins=(before.pin_link(before.on[0]),))
    settings, problems = compare.compared_settings(device_results(state), state)
    assert problems == ()
    return [said.removeprefix("A to now: ") for said in side_by_side.difference_sentences(settings)]


def test_explanation_states_the_speedup_and_its_cause():
    decode, prefill = _said(FULL, replace(W4, pins=()))
    a = analyze("llama-3.1-70b", "mi300x", batch=16)
    b = analyze("llama-3.1-70b", "mi300x", batch=16, quant="W4A16g128")
    weights = b.phases.decode.total.weight_bytes / a.phases.decode.total.weight_bytes
    bound = a.generation.tpot_s / b.generation.tpot_s
    likely = a.generation.expected_tpot_s / b.generation.expected_tpot_s
    expected = f" (expected: {max(likely, 1 / likely):.3g}x {'faster' if likely > 1 else 'slower'})"
    assert abs(likely / bound - 1) > 0.02
    assert decode == f"{bound:.3g}x faster decode{expected}: weights read {weights:.3g}x."
    assert prefill.startswith("prefill as fast")
    assert _said(FULL, FULL) == ["decode as fast.", "prefill as fast."]


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ({}, {"on": ("l40s",)}, r"3\.88x slower decode.*: memory bandwidth 0\.258x\."),
        ({}, {"on": ("l40s",)}, r"[\d.]+x slower prefill.*: memory bandwidth 0\.258x, peak 0\.342x.*"),
        ({}, {"batch": 64}, r".* 64x the batch\."),
        ({}, {"batch": 64}, r"1\.64x slower decode.*: KV cache moved 64x, activations moved 64x\."),
        ({"prompt": 16}, {"prompt": 16, "batch": 1024}, r".*memory- to compute-bound\."),
        ({}, {"set": ("h100-sxm:memory.bandwidth=2x",)}, r"2x faster decode.*: memory bandwidth 2x\."),
        ({}, {"set": ("h100-sxm:memory.bandwidth=2x",)}, r"[\d.]+x faster prefill.*: memory bandwidth 2x\."),
        ({}, {"tp": 8}, r"[\d.]+x faster decode.*: 1 to 8 devices, weights read per device 0\.125x.*"),
        ({}, {"pp": 2}, r"decode as fast: 1 to 2 devices\."),
        (
            {},
            {"offload": "weights=0.5"},
            r".* decode.*: 0% to 96% of the time in link transfers, memory- to link-bound\.",
        ),
        ({"batch": 64}, {"model": "mixtral-8x7b", "batch": 64}, r"[\d.]+x slower decode.*: weights read 6\.\d+x.*"),
        (
            {"prompt": 8192},
            {"prompt": 8192, "attention": "eager"},
            r"[\d.]+x slower prefill.*compute- to memory-bound\.",
        ),
    ],
)
def test_explanation_names_the_changed_settings(before, after, message):
    assert any(re.fullmatch(message, said) for said in _said(State(**before), State(**after))), _said(
        State(**before), State(**after)
    )


def test_explanation_states_tokens_per_pass():
    decode, _ = _said(State(), State(techniques=("medusa:tau=2.5",)))
    times = [analyze("llama-3.1-8b", "h100-sxm", techniques=w).generation.tpot_s for w in ((), ("medusa:tau=2.5",))]
    assert decode.startswith(f"{times[0] / times[1]:.3g}x faster decode")
    assert "1 to 2.5 tokens per pass" in decode
    state = State(techniques=("medusa:tau=2.5",), pins=(State().pin_link("h100-sxm"),))
    assert "more than one token per sequence" in _shown(state)
    table = {
        line[0]: line[1:]
        for line in side_by_side.numbers_table(compare.compared_settings(device_results(state), state)[0]).lines()
    }
    assert table["tokens per pass and sequence"] == ("-", "2.5")


def test_explanation_compares_the_chosen_decode_step():
    decode, _ = _said(State(context=2048), State(context=100_000))
    a, b = (analyze("llama-3.1-8b", "h100-sxm", kv_len=n).phases.decode.time_s for n in (2048, 100_000))
    assert decode.startswith(f"{b / a:.3g}x slower decode")


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ([{}, {}], ["A: h100-sxm", "now: h100-sxm"]),
        ([{}, {"on": ("l4",)}], ["A: h100-sxm", "now: l4"]),
        ([{"batch": 4}, {"batch": 64, "quant": "W4A16"}], ["A: as published, batch 4", "now: W4A16, batch 64"]),
        ([{}, {"tp": 2}], ["A: one device", "now: tp=2"]),
        ([{"techniques": ("medusa",)}, {}], ["A: medusa", "now: no technique"]),
        ([{}, {"context": 4096}], ["A: the first step", "now: context 4,096"]),
        (
            [{"model": "gpt2"}, {"on": ("l4", "t4")}],
            ["A: gpt2, h100-sxm", "llama-3.1-8b, l4", "llama-3.1-8b, t4"],
        ),
        ([{"on": ("l4", "t4")}], ["l4", "t4"]),
        ([{}, {"tp": 2}, {"quant": "W4A16"}, {}], ["A: as published, one device", "B: tp=2", "C: W4A16", "now"]),
        ([{"library": "vllm"}, {}], ["A: vllm", "now: most measured library"]),
        ([{}, {"engine": "vllm"}], ["A: no engine, most measured library", "now: vllm"]),
        ([{"batch": 4}, {"on": ("h100-sxm", "l4")}], ["A: h100-sxm, batch 4", "h100-sxm, batch 1", "l4, batch 1"]),
    ],
    ids=str,
)
def test_names_state_the_differences_between_settings(changes, names):
    *pinned, now = (State(**one) for one in changes)
    state = replace(now, pins=tuple(one.pin_link(one.on[0]) for one in pinned))
    assert [one.name for one in compare.compared_settings(device_results(state), state)[0]] == names


def test_operators_that_move_are_bound_otherwise():
    state = replace(
        State(model="llama-3.1-8b", batch=512, on=("h100-sxm", "l40s")), pins=(State().pin_link("h100-sxm"),)
    )
    settings, _ = compare.compared_settings(device_results(state), state)
    moved = side_by_side.bound_differences(settings, "decode")
    assert moved
    for one in moved:
        bounds = set()
        for place, setting in zip(one.bounds, settings, strict=True):
            ops = {f"{op.block}.{op.name}": op for op in setting.phase("decode").operators}
            assert place == (ops[one.operator].bound, ops[one.operator].share)
            bounds.add(place[0])
        assert len(bounds) > 1
    others = {key for s in settings for key in (f"{o.block}.{o.name}" for o in s.phase("decode").operators)}
    for key in others - {one.operator for one in moved}:
        bounds = {op.bound for s in settings for op in s.phase("decode").operators if f"{op.block}.{op.name}" == key}
        assert len(bounds) == 1
    assert side_by_side.bound_differences(compare.compared_settings(device_results(W4), W4)[0], "decode") == []


@pytest.mark.parametrize(
    "state",
    [
        State(), W4, State(on=("h100-sxm", "l4")), State(model="bert-base-uncased", pins=("model=gpt2",)),
        State(model="gpt2", phase="prefill", pins=("model=t5-small", "model=mamba-130m&on=l4", "accounting=survey")),
    ],
    ids=lambda s: s.link or "usual",
)  # fmt: skip
def test_every_comparison_is_shown(state):
    page = _shown(state)
    assert ("compare-times" in page) == (len(state.on) + len(state.pins) > 1)


def _press(app, browser, which, at, count, names=()):
    """The page's state after one of the buttons is pressed, or a name is changed."""
    (found,) = [o for o in json.loads(browser.client.get("/_dash-dependencies").data) if "pins.value@" in o["output"]]
    ids = {kind: [{kind: i} for i in range(number)] for kind, number in count.items()}
    inputs = [
        [{"id": one, "property": "n_clicks", "value": 1 if (kind, i) == (which, at) else None}
         for i, one in enumerate(ids[kind])]
        for kind in ("pin", "unpin")
    ]  # fmt: skip
    inputs.append([{"id": {"pin-name": i}, "property": "value", "value": value} for i, value in enumerate(names)])
    name = found["output"].rpartition(".")[2]
    response = browser.client.post("/_dash-update-component", json={
        "output": found["output"], "outputs": {"id": "pins", "property": name}, "inputs": inputs,
        "state": [
            {"id": part, "property": "data", "value": browser.props[part]["data"]} for part in ("asked", "files")
        ],
        "changedPropIds": [f'{{"{which}":{at}}}.{"value" if which == "pin-name" else "n_clicks"}'] if which else [],
    })  # fmt: skip
    if response.status_code == 204:
        return False
    assert response.status_code == 200, response.text
    ((value,),) = [list(props.values()) for props in json.loads(response.data)["response"].values()]
    browser.set("pins", value)
    return True


def test_buttons_pin_and_unpin_a_setting(app):
    browser = Browser(app)
    browser.set("batch", 4)
    assert not _press(app, browser, "", 0, {"pin": 1, "unpin": 0})
    assert _press(app, browser, "pin", 0, {"pin": 1, "unpin": 0})
    browser.set("batch", 8)
    browser.set("on", ["h100-sxm", "l4"])
    assert _press(app, browser, "pin", 1, {"pin": 2, "unpin": 1})
    state, notices = State.of_link(browser.props["url"]["search"])
    assert (state.pins, notices) == (("batch=4", "on=l4&batch=8"), ())
    other = Browser(app)
    other.props["url"]["search"] = browser.props["url"]["search"]
    other.call("link.data", "url.search")
    assert other.props["pins"]["value"] == "batch=4|on=l4&batch=8"
    names = {"names": ["first | & more", ""]}
    assert _press(app, browser, "pin-name", 0, {"pin": 2, "unpin": 2}, **names)
    named = State.of_link(browser.props["url"]["search"])[0]
    assert named.pins == ("batch=4&name=first+%7C+%26+more", "on=l4&batch=8")
    settings, _ = compare.compared_settings(device_results(named), named)
    assert [one.label for one in settings] == ["A first | & more", "B", "h100-sxm", "l4"]
    assert not _press(app, browser, "pin-name", 0, {"pin": 2, "unpin": 2}, **names)  # as it is
    assert _press(app, browser, "pin-name", 0, {"pin": 2, "unpin": 2}, names=["", ""])
    assert State.of_link(browser.props["url"]["search"])[0].pins == ("batch=4", "on=l4&batch=8")
    assert _press(app, browser, "unpin", 0, {"pin": 2, "unpin": 2})
    assert State.of_link(browser.props["url"]["search"])[0].pins == ("on=l4&batch=8",)


def test_inputs_that_differ_stand_in_a_table():
    settings, _ = compare.compared_settings(device_results(W4), W4)
    assert side_by_side.inputs_table(settings).lines() == [("", "A", "now"), ("precision", "as published", "W4A16g128")]
    assert side_by_side.inputs_table(settings[:1]).body == ()


def test_the_report_has_the_pinned_settings_and_their_comparison(app):
    asked = replace(W4, pins=(f"{W4.pins[0]}&name=before",))
    save = next(one["callback"].__wrapped__ for key, one in app.callback_map.items() if key == "download.data")
    context_value.set(AttributeDict(triggered_inputs=[{"prop_id": "save-html.n_clicks"}]))
    saved = save(1, None, None, asked.link, [])
    with zipfile.ZipFile(io.BytesIO(base64.b64decode(saved["content"]))) as files:
        assert sorted(files.namelist()) == ["A.html", "comparison.html", "llama-3.1-70b-mi300x.html"]
        page = files.read("comparison.html").decode()
        assert "batch 16" in files.read("A.html").decode()
    settings, _ = compare.compared_settings(device_results(asked), asked)
    assert "A before" in page
    assert all(
        f">{cell}<" in page.replace("\n", "")
        for line in side_by_side.numbers_table(settings).lines()[1:]
        for cell in line[1:]
    )
    assert 'id="decode-roofline"' in page


def test_the_numbers_are_saved(app):
    callback = next(one for key, one in app.callback_map.items() if "compare-download" in key)
    saved = callback["callback"].__wrapped__(1, W4.link, [])
    rows = list(csv.DictReader(io.StringIO(saved["content"])))
    expected = analyze("llama-3.1-70b", "mi300x", batch=16, quant="W4A16g128").generation
    assert [row["setting"] for row in rows] == ["A: as published", "now: W4A16g128"]
    assert float(rows[1]["tpot_s"]) == expected.tpot_s
