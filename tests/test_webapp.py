"""The dashboard without a browser: states and their links, views, and callbacks as a browser calls them."""

import base64
import dataclasses
import inspect
import io
import itertools
import json
import math
import os
import re
import subprocess
import sys
import zipfile
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from pkgutil import iter_modules
from urllib.parse import urlencode

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmviewer.analyzing.analysis import analyze
from llmviewer.cli import main
from llmviewer.devices.files import hardware_names
from llmviewer.errors import InputError
from llmviewer.forms import SOURCE, Feature, images, replicas
from llmviewer.reports.drawing import GRID, INK, PAPER
from llmviewer.reports.operator_table import operator_id
from llmviewer.techniques import techniques
from llmviewer.techniques._parameters import declaration
from llmviewer.units import seconds, si
from llmviewer.workload import Workload

pytest.importorskip("dash")

from dash import dcc

from llmviewer.webapp import controls, fields, options, results, state, tabs
from llmviewer.webapp import page as pages
from llmviewer.webapp.app import create
from llmviewer.webapp.state import FIELD_TYPES, FieldError, File, IntegerField, State
from llmviewer.webapp.tabs import TABS
from llmviewer.webapp.tabs import changes as tabs_changes
from llmviewer.webapp.views import changes, formulas, inspector, memory, network, overview
from llmviewer.webapp.words import CONTROLS, GLOSSARY, LOWER_BOUND_SIGN, page_text

from .cases import few_types, for_each

ROOT = Path(__file__).resolve().parent.parent
CONFIG = (
    '{"model_type": "llama", "torch_dtype": "bfloat16", "hidden_size": 512, "intermediate_size": 1024, '
    '"num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 1000}'
)


@pytest.fixture(scope="module")
def app():
    return create()


@pytest.fixture(scope="module")
def client(app):
    return app.server.test_client()


# What is asked, and its link


def _values(kind):
    if isinstance(kind, IntegerField):
        return st.integers(kind.minimum, kind.maximum)
    if isinstance(kind, state.RealField):
        return st.floats(kind.minimum, kind.maximum)
    if isinstance(kind, state.Flag):
        return st.booleans()
    if isinstance(kind, state.OneOf):
        return st.sampled_from(tuple(kind.choices()))
    plain = st.text(st.characters(categories=("L", "N", "P", "S"), exclude_characters="|"), max_size=20)
    if isinstance(kind, state.List):
        inner = plain.filter(bool) if isinstance(kind.kind, state.Text) else _values(kind.kind)
        return st.lists(inner, min_size=kind.min_items, max_size=min(kind.max_items, 4), unique=True)
    return plain


PINS = st.lists(st.integers(1, 99).map("batch={}".format), max_size=4, unique=True)
VALUES = st.fixed_dictionaries(
    {**{name: _values(kind) for name, kind in FIELD_TYPES.items() if name != "set"}, "pins": PINS}
)


@given(VALUES)
def test_links_round_trip_the_state(values):
    asked = State.of(values)
    again, notices = State.of_link(asked.link)
    assert again == asked
    assert notices == ()


@given(st.one_of(st.text(max_size=300), st.binary(max_size=300).map(lambda b: b.decode("latin-1"))))
def test_arbitrary_links_round_trip(query):
    found, _ = State.of_link(query)
    assert State.of_link(found.link)[0] == found


@given(st.sampled_from(tuple(FIELD_TYPES)), st.text(max_size=40))
def test_unusable_link_value_falls_back_to_the_default_with_a_notice(name, text):
    from urllib.parse import quote

    found, notices = State.of_link(f"?{name}={quote(text, safe='', errors='replace')}")
    defaults = name == "pins" or getattr(found, name) == getattr(State(), name)  # a pin stays, with its own notice
    assert defaults or notices == ()
    near, _ = results.nearest_valid(found)
    assert results.device_results(near)


NASTY = (
    "9" * 400, "-1", "nan", "1e999", "\0", "null", "../../etc/passwd", "|" * 50, "|a|", "file:x.json", "file:",
    "<script>", "\N{LATIN SMALL LETTER A WITH RING ABOVE}", "W" * 301, "W999A999", "h100-sxm:memory.bandwidth=1e308x",
    "h100-sxm:a.b=", ":=", "model=gpt2&on=l4", "speculative:draft=/etc/passwd", "weights=2",
    "x.json~AAAA", "layer.q_proj", "${7*7}", "%2e%2e%2f", "__class__",
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(st.sampled_from((*FIELD_TYPES, "file", "unknown")), st.sampled_from(NASTY), min_size=1, max_size=5)
)
def test_a_hostile_link_shows_a_page_with_a_notice(app, parts):
    browser = Browser(app)
    browser.props["link"]["data"] = None  # as when it is opened
    browser.props["url"]["search"] = "?" + urlencode(parts)
    browser.call("link.data", "url.search")
    shown = State.of_link(browser.props["link"]["data"])[0]
    assert results.device_results(shown)
    if parts.keys() & {"model", "on", "phase", "tab", "sweep", "batch", "unknown"}:  # of which none of those is one
        assert browser.props["notices"]["children"]
    assert browser.call("answer.children", "asked.data")


@pytest.mark.parametrize(
    "name", ["/etc/passwd", "../models/gpt2.yaml", "models/gpt2.yaml", "os:getcwd", "org/name", "file:gpt2.json", "."]
)
def test_links_accept_shipped_names_only(name):
    found, notices = State.of_link(f"?model={name}&on={name}")
    assert found == State()
    assert notices
    with pytest.raises(InputError):
        results.device_results(State(model=name))
    with pytest.raises(InputError):
        results.device_results(State(on=(name,)))


@pytest.mark.parametrize("name", [name for name, kind in FIELD_TYPES.items() if isinstance(kind, state.OneOf)])
def test_only_a_model_a_device_or_a_task_may_be_a_file(name):
    found, notices = State.of_link(f"?{name}=file:own.json", [state.File(name="own.json", text="{}")])
    takes_files = name in ("model", "tasks")
    assert getattr(found, name) == ("file:own.json" if takes_files else getattr(State(), name))
    assert bool(notices) != takes_files


def test_a_technique_names_only_models_that_ship():
    results.device_results(State(model="llama-2-7b", techniques=("speculative:draft=llama-68m,gamma=4,alpha=0.8",)))
    for draft in ("os:getcwd", "models/gpt2.yaml", "/etc/passwd"):
        with pytest.raises(InputError, match="must be a model that ships"):
            results.device_results(
                State(model="llama-2-7b", techniques=(f"speculative:draft={draft},gamma=4,alpha=0.8",))
            )
    with pytest.raises(InputError, match="must be a model that ships"):
        results.device_results(State(techniques=("lengths: file = /etc/passwd",)))
    texts = {
        f.name
        for kind in techniques().values()
        for f in dataclasses.fields(kind)
        if "str" in str(f.type) and not declaration(f).choices
    }
    assert texts >= set(results.VERBATIM_PARAMETERS)
    assert texts <= {
        *results.VERBATIM_PARAMETERS,
        "draft",
        "scorer",
        "router",
        "embedder",
        "file",
    }  # look at a further one: can it be a path?


@pytest.mark.parametrize(
    ("name", "said"),
    [("pp", "must be a whole number from 1 to 16"), ("skew", "must be a number from 0 to 10")],
)
def test_a_field_with_a_number_out_of_its_range_gives_none(name, said):
    with pytest.raises(FieldError) as error:
        State.of({name: None})
    assert str(error.value) == f"{name} {said}"


def test_pipeline_degree_of_a_link_is_limited():
    found, notices = State.of_link("?model=llama-3.1-405b&pp=126")
    assert found.pp == 1
    assert notices == ("link: pp: must be a whole number from 1 to 16; got 126; the default is used",)


def test_link_errors_use_the_labels_of_the_page():
    _, notices = State.of_link("?batch=abc&skew=x&set=l4:memory.bandwidth=2x")
    assert notices == (
        "link: batch: must be a whole number from 1 to 65,536; got 'abc'; the default is used",
        "link: skew: must be a number from 0 to 10; got 'x'; the default is used",
        "link: set: 'l4:memory.bandwidth=2x' belongs to no selected device",
    )


@pytest.mark.parametrize(
    ("query", "then", "told"),
    [
        ("batch=64&quant=zzz&tp=2", "?batch=64&tp=2", ["quant: quantization must be bits"]),
        ("tp=16&model=gpt2&batch=8", "?model=gpt2&batch=8", ["tp: tp=16 does not divide the 12 heads"]),
        ("ep=3&dp=4&batch=2", "?batch=2&dp=4", ["ep: ep must divide tp x dp = 4"]),
        ("quant=zzz&techniques=nonsense|medusa&tp=2", "?tp=2&techniques=medusa",
         ["techniques: no technique 'nonsense'", "quant: quantization must be"]),
        ("set=h100-sxm:memory.bandwidth=fast|h100-sxm:memory.capacity=2x&batch=4",
         "?set=h100-sxm:memory.capacity=2x&batch=4", ["set: memory.bandwidth=fast: must be"]),
        ("on=h100-sxm|nothing|l4&batch=4", "?on=h100-sxm|l4&batch=4", ["on: no 'nothing'"]),
        ("on=nothing&batch=x&tp=2", "?tp=2", ["on: no 'nothing'", "batch: must be a whole number"]),
        ("model=gpt2&images=3&mtp=1&batch=7", "?model=gpt2&batch=7", ["mtp: mtp: gpt2 has no", "images: images must"]),
    ],
)  # fmt: skip
def test_invalid_link_field_leaves_the_others(query, then, told):
    found, notices = State.of_link(query)
    shown, more = results.nearest_valid(found)
    assert shown.link == then
    said = (*notices, *more)
    assert len(said) == len(told)
    assert all(line.startswith(f"link: {start}") for line, start in zip(sorted(said), sorted(told), strict=True))


@pytest.mark.parametrize(
    "text",
    [
        "skeleton:outline=1e9",
        "static:length=1_000_000_000",
        "self-speculative:gamma=1024",
        "best-of:n=inf",
        "beam:width=1e999",
    ],
)
def test_technique_parameters_of_the_page_are_limited(text):
    why = results.problem_of(State(techniques=(text,)))
    assert re.fullmatch(r"[a-z-]+: \w+ must be .*; got .*", why), why


def test_a_file_is_in_its_link_and_too_large_a_one_is_not():
    file = results.parse_model_file("my model.json", CONFIG)
    asked = State.of({"model": f"file:{file.name}"}, [file])
    assert State.of_link(asked.link) == (asked, ())
    noise = base64.b64encode(os.urandom(9000)).decode()
    large = File(name="large.json", text=CONFIG[:-1] + f', "_name_or_path": "{noise}"}}')
    asked = State.of({"model": "file:large.json"}, [large])
    assert len(asked.link) < state.MAX_LINK_CHARACTERS
    found, notices = State.of_link(asked.link)
    assert found == State()
    assert "upload it again" in notices[0]
    assert State.of_link(asked.link, [large]) == (asked, ())


def test_decompressed_file_of_a_link_is_limited_in_size():
    packed = base64.urlsafe_b64encode(zlib.compress(b" " * 50_000_000, 9)).decode()
    found, notices = State.of_link(f"?model=file:a.json&file=a.json~{packed}")
    assert found == State()
    assert "too large" in notices[0]


@pytest.mark.parametrize("name", ["../a.json", "a.gguf", "a.safetensors", "A.json", "a/b.yaml", ".json"])
def test_a_file_of_a_link_has_a_plain_name(name):
    packed = base64.urlsafe_b64encode(zlib.compress(CONFIG.encode())).decode()
    _, notices = State.of_link(f"?file={name}~{packed}")
    assert "must be a name such as my-model.json" in notices[0]


@pytest.mark.parametrize(
    ("make", "name", "text", "message"),
    [
        (
            results.parse_model_file,
            "x.json",
            "{",
            "x.json:1:2: is not JSON: Expecting property name enclosed in double quotes",
        ),
        (results.parse_model_file, "x.json", '{"model_type": "no"}', "x.json: model_type: "),
        (results.parse_model_file, "x.py", "import os", "x.py: must be a config.json, or a YAML of a model; got .py"),
        (results.parse_model_file, "x.yaml", "!!python/object/apply:os.getcwd []", "x.yaml:1:1: is not YAML: "),
        (
            results.parse_hardware_file,
            "x.yaml",
            "name: ../x",
            "x.yaml: name: must be lower-case letters, digits, dots and ",
        ),
        (
            results.parse_hardware_file,
            "x.yaml",
            "name: x\nvendor: me",
            (
                "x.yaml: title, kind, architecture, released, status, sources, vector.fp32, memory.capacity, "
                "memory.bandwidth: are missing"
            ),
        ),
        (results.parse_hardware_file, "x.json", "{}", "x.json: must be a YAML like those in hardware/; got .json"),
        (
            results.parse_model_file,
            "x.yaml",
            "a: " + "[" * 400_000 + "]" * 400_000,
            "x.yaml: is not readable YAML: nes",
        ),
        (results.parse_model_file, "x.json", "[" * 400_000, "x.json: is not readable JSON: nested too deeply"),
        (
            results.parse_model_file,
            "x.json",
            '{"hidden_size": ' + "9" * 5000 + "}",
            "x.json: is not readable JSON: a n",
        ),
        (
            results.parse_hardware_file,
            "x.yaml",
            "name: &a x\nb: &b [*a, *a, *a]\nc: &c [*b, *b, *b]\nd: [*c, *c]",
            "x.yaml: b: unknown key; ",
        ),
        (
            results.parse_model_file,
            "x.json",
            " " * 1_000_001,
            "x.json: must have at most 1,000,000 bytes; got 1,000,001",
        ),
    ],
)
def test_unusable_file_is_refused_with_the_reason(make, name, text, message):
    with pytest.raises(InputError) as error:
        make(name, text)
    assert str(error.value).startswith(message)
    assert "/tmp" not in str(error.value)


def test_a_file_is_analyzed_as_from_a_path(tmp_path):
    (tmp_path / "tiny.json").write_text(CONFIG)
    device = (ROOT / "hardware" / "l4.yaml").read_text()
    own = re.sub(r"(?m)^name: .*$", "name: own", re.sub(r"(?m)^aliases: .*$", "", device))
    (tmp_path / "own.yaml").write_text(own)
    files = [results.parse_model_file("tiny.json", CONFIG), results.parse_hardware_file("any.yaml", own)]
    (found,) = results.device_results(State.of({"model": "file:tiny.json", "on": ["file:own.yaml"]}, files))
    expected = analyze(str(tmp_path / "tiny.json"), str(tmp_path / "own.yaml"))
    assert found.analysis.generation == expected.generation
    assert found.analysis.memory == expected.memory


# What is found


ASKED = [
    State(),
    State(model="llama-2-7b", on=("rtx-a6000", "tpu-v5e"), phase="prefill", quant="W4A16g128", prompt=2048, batch=8),
    State(model="deepseek-v3", on=("h200-sxm",), tp=8, mla="naive"),
    State(model="bert-base-uncased", on=("l4",), context=99),
    State(model="mamba-130m", on=("t4",)),
    State(model="t5-small", on=("a100-sxm-80gb",), gen=16),
    State(model="mixtral-8x7b", on=("h100-sxm",), skew=0.8, offload="weights=0.2", attention="eager"),
    State(model="llama-2-7b", on=("rtx-a6000",), accounting="survey"),
    State(on=("h100-sxm",), set=("h100-sxm:memory.bandwidth=2x",), library="vllm"),
]


@pytest.mark.parametrize("asked", ASKED, ids=lambda s: s.link or "usual")
def test_results_equal_those_of_analyze(asked):
    found = results.device_results(asked)
    for one, name in zip(found, asked.on, strict=True):
        expected = analyze(
            asked.model, name, batch=asked.batch, prompt=asked.prompt, gen=asked.gen,
            kv_len=asked.context or None if one.analysis.model.generates else None, quant=asked.quant or None,
            attention=asked.attention or None, accounting=asked.accounting, mla=asked.mla, expert_skew=asked.skew,
            layout=asked.layout, offload=asked.offload, hardware_set=asked.what_ifs(name), library=asked.library,
        )  # fmt: skip
        assert one.analysis.generation == expected.generation
        assert one.analysis.phases == expected.phases
        assert one.analysis.memory == expected.memory


@pytest.mark.parametrize("asked", ASKED, ids=lambda s: s.link or "usual")
def test_every_tab_shows_every_setting(asked):
    found = results.device_results(asked)
    for tab in TABS.values():
        assert json.dumps(tab.show(found, asked).to_plotly_json(), default=lambda c: c.to_plotly_json())
    for op in overview.operator_titles(found, asked.phase):
        one = inspector.operator_details(found[0], asked.phase, op)
        (result,) = [r for r in found[0].phase(asked.phase).operators if operator_id(r) == op]
        assert one.busy_times[0][1] == pytest.approx(result.per_call.bound_time_s)
        assert one.title.startswith(f"{result.name} ")
        assert one.bound == result.bound


def test_operators_that_are_alike_in_several_blocks_are_one():
    (found,) = results.device_results(State(model="deepseek-v3", on=("h200-sxm",), tp=8))
    phase = found.phase("decode")
    rows = {row["called"]: row for row in overview.operator_rows([found], "decode")}
    both = [op for op in phase.operators if op.name == "o_proj"]
    assert [op.block for op in both] == ["dense", "moe"]
    assert rows["o_proj"]["repeat"] == sum(op.repeat for op in both) == 61
    assert rows["o_proj"]["time"] == sum(op.bound_time_s for op in both)
    assert rows["o_proj"]["block"] == "dense, moe"
    titles = {inspector.operator_details(found, "decode", operator_id(op)).title for op in both}
    assert titles == {"o_proj \N{MULTIPLICATION SIGN} 61"}
    named = overview.operator_titles([found], "decode")
    listed = options.operator_options(named, "moe.o_proj")
    assert {"label": "o_proj", "value": "moe.o_proj"} in listed
    assert len(listed) == len(rows) < len(named)


@pytest.mark.parametrize("on", ["on=l4|h100-sxm", "on=l4,h100-sxm", "on=l4&on=h100-sxm"])
def test_hand_written_links_accept_device_aliases(on):
    assert State.of_link(f"?batch=2&batch=4&{on}") == (State(batch=4, on=("l4", "h100-sxm")), ())


def test_the_operators_of_the_table_sum_up_to_the_phase():
    found = results.device_results(ASKED[1])
    rows = overview.operator_rows(found, "prefill")
    for one in found:
        own = [row for row in rows if row["device"] == one.name]
        assert sum(row["time"] for row in own) == pytest.approx(one.analysis.phases.prefill.total.bound_time_s)
    assert len({row["id"] for row in rows}) == len(rows)


def test_bars_and_points_are_those_of_the_operators():
    found = results.device_results(State(on=("h100-sxm", "l4")))
    bars = overview.times_figure({one.name: one for one in found}, "decode").figure
    lengths = {}
    for trace in bars.data:
        if trace.type == "bar" and trace.offset == -0.04:  # of bounds; bars of expected times are below
            for row, length in zip(trace.y, trace.x, strict=True):
                lengths[row.partition("<br>")[0]] = lengths.get(row.partition("<br>")[0], 0) + length
    for one in found:
        assert lengths[one.name] == pytest.approx(1e3 * one.analysis.phases.decode.total.bound_time_s)
    assert overview.selected_points(found, "decode", "layer.up_proj")[0] == [
        op.intensity for one in found for op in one.analysis.phases.decode.operators if op.name == "up_proj"
    ]
    assert overview.selected_points(found, "decode", "") == ([], [])
    traces = overview.roofline_figure({"h100-sxm": found[0]}, "decode").figure.data
    points = {key for trace in traces if trace.customdata is not None for key in trace.customdata}
    assert points <= set(overview.operator_titles(found, "decode"))


def test_figures_show_other_precisions_beside_the_current_one():
    now = State(quants=("W8A8", "W17", "W4A16g128"), batch=16)
    found = results.device_results(now)
    drawn, problems = overview.drawn_results(found, now)
    assert list(drawn) == ["bf16 as published", "W8A8", "W4A16g128"]
    assert len(problems) == 1
    assert problems[0].startswith("W17: quantization 'W17': bits must be")
    changed = analyze("llama-3.1-8b", "h100-sxm", batch=16, gen=128, quant="W8A8")
    assert drawn["W8A8"].analysis.phases.decode.total.bound_time_s == changed.phases.decode.total.bound_time_s
    x, y = overview.selected_points(drawn.values(), "decode", "layer.up_proj")
    assert x == sorted(x)
    assert len(set(x)) == len(y) == 3
    shown = overview.roofline_figure(drawn, "decode").figure
    assert [trace.name.partition(",")[0] for trace in shown.data if "ridge" in (trace.name or "")] == list(drawn)
    moves = next(trace for trace in shown.data if trace.mode == "lines" and None in trace.x)
    assert moves.x.index(None) == 3
    rows = {row.partition("<br>")[0] for trace in overview.times_figure(drawn, "decode").figure.data for row in trace.y}
    assert rows >= set(drawn)
    several, _ = overview.drawn_results(
        results.device_results(replace(now, on=("h100-sxm", "l4", "a100-sxm-80gb"))), now
    )
    assert list(several)[:3] == ["h100-sxm bf16 as published", "h100-sxm W8A8", "h100-sxm W4A16g128"]
    assert len(several) == 8
    assert overview.drawn_results(found, State(quant="W8A8", quants=("W8A8",)))[0].keys() == {"bf16 as published"}
    sizes = memory.memory_figure(found).figure
    for i, one in enumerate(found):
        total = sum(trace.x[i] for trace in sizes.data if trace.type == "bar")
        assert total == pytest.approx(one.analysis.memory.total_bytes / 1e9)


def _drawn_boxes(drawn):
    """Left, upper, right and lower end of each node."""
    return {
        part["data"]["id"]: (
            part["position"]["x"] - network.WIDTH / 2, part["position"]["y"] - part["data"]["tall"] / 2,
            part["position"]["x"] + network.WIDTH / 2, part["position"]["y"] + part["data"]["tall"] / 2,
        ) for part in drawn.elements if part["classes"].startswith("operator")
    }  # fmt: skip


def _drawn_lines(drawn, boxes):
    """The points of each edge, as cytoscape places bends: along the line between centers, and beside it."""
    for part in drawn.elements:
        if not part["classes"].startswith("tensor"):
            continue
        data = part["data"]
        (a, b, c, d), (e, f, g, h) = boxes[data["source"]], boxes[data["target"]]
        x, y, dx, dy = (a + c) / 2, (b + d) / 2, (e + g - a - c) / 2, (f + h - b - d) / 2
        bends = zip(map(float, data.get("along", "").split()), map(float, data.get("beside", "").split()), strict=True)
        long = math.hypot(dx, dy)
        yield (
            (x, d),
            *((x + s * dx - beside * dy / long, y + s * dy + beside * dx / long) for s, beside in bends),
            ((e + g) / 2, f),
        )


def _crosses(start, end, box):
    """Whether a line has points inside a box, half a pixel from its border."""
    low, high = 0.0, 1.0
    for at, to, least, most in zip(start, end, box[:2], box[2:], strict=True):
        if at == to:
            if not least + 0.5 < at < most - 0.5:
                return False
            continue
        first, last = sorted(((least + 0.5 - at) / (to - at), (most - 0.5 - at) / (to - at)))
        low, high = max(low, first), min(high, last)
    return high - low > 1e-6


DRAWN = ("llama-3.1-70b", "t5-small", "longcat-flash", "kimi-k3")


@for_each("name", lambda: sorted({*few_types(), *DRAWN}), fast=DRAWN)
def test_nothing_in_the_network_overlaps_and_every_operator_is_in_it_once(name):
    (found,) = results.device_results(State(model=name, on=("h200-sxm",)))
    phase = found.phase_name("decode")
    drawn = network.network_drawing(found, phase)
    boxes = _drawn_boxes(drawn)
    nodes = [part["data"] for part in drawn.elements if part["classes"].startswith("operator")]
    assert len(boxes) == len(nodes)
    named = {f"{node['fold']}.{one}" for node in nodes if "fold" in node for one in node["names"].split()}
    assert {operator_id(op) for op in found.phase(phase).operators} <= named | {node.get("op") for node in nodes}
    for (a, b, c, d), (e, f, g, h) in itertools.combinations(boxes.values(), 2):
        assert c <= e or g <= a or d <= f or h <= b
    for line in _drawn_lines(drawn, boxes):
        for start, end in itertools.pairwise(line):
            assert start[1] <= end[1]
            beside = [box for box in boxes.values() if box[1] < end[1] and start[1] < box[3]]
            assert not [box for box in beside if _crosses(start, end, box)]
    texts = [node[label] for node in nodes for label in ("label", "label_gap", "label_intensity")]
    assert max(len(line) for text in texts for line in text.splitlines()) * 7 <= network.WIDTH


def test_the_network_inspects_the_slowest_operator_at_first():
    (found,) = results.device_results(State(model="deepseek-v3", on=("h200-sxm",), tp=8))
    slowest = max(found.phase("decode").operators, key=lambda op: op.share)
    title = inspector.operator_details(found, "decode", "", of_block=True).title
    assert title == f"{slowest.name} \N{MULTIPLICATION SIGN} {slowest.repeat}"  # no other block has it


def test_a_folded_block_is_one_node_with_the_sum_of_its_operators():
    (found,) = results.device_results(State(model="llama-3.1-8b"))
    drawn = network.network_drawing(found, "decode", folded=("layer",))
    (node,) = [part["data"] for part in drawn.elements if part["classes"] == "operator folded"]
    layer = [op for op in found.phase("decode").operators if op.block == "layer"]
    assert f"{sum(op.share for op in layer):.1%} · {seconds(sum(op.bound_time_s for op in layer))}" in node["label"]
    ratio = sum(op.expected_time_s for op in layer) / sum(op.bound_time_s for op in layer)
    assert f"{ratio:.3g}x" in node["label_gap"]
    assert drawn.folded == ("layer",)
    edges = {(part["data"]["source"], part["data"]["target"]) for part in drawn.elements if "source" in part["data"]}
    assert edges == {
        ("embedding.embed_tokens", "folded layer"), ("folded layer", "head.final_norm"),
        ("head.final_norm", "head.lm_head"),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("asked", "phase", "idle"),
    [
        (State(model="qwen2.5-vl-7b"), "prefill", "vision"),
        (State(model="qwen2.5-vl-7b", images=1, prompt=2000), "decode", "vision"),
        (State(model="qwen2.5-vl-7b", images=1, prompt=2000), "prefill", None),
        (State(model="t5-small"), "decode", "encoder"),
    ],
)
def test_blocks_that_do_not_run_are_named_and_not_drawn(asked, phase, idle):
    (found,) = results.device_results(asked)
    drawn = network.network_drawing(found, phase)
    assert {name.partition("_")[0] for name in drawn.idle_blocks} == ({idle} if idle else set())
    nodes = {part["data"]["op"].partition(".")[0] for part in drawn.elements if part["classes"] == "operator"}
    assert not nodes & set(drawn.idle_blocks)
    assert {operator_id(op).partition(".")[0] for op in found.phase(phase).operators} == nodes


def variants_of(answer, asked):
    """The variant of each step on a device by the name of the step, the largest gain first, and its state."""
    found, refused = changes.evaluated(answer, asked, tuple(changes.candidates(answer, asked)))
    assert not refused
    return {candidate.name: (candidate.state, variant) for candidate, variant in found}


def test_gains_of_changes_equal_those_of_analyze():
    asked = State(model="llama-3-70b")
    (answer,) = results.device_results(asked)
    by = variants_of(answer, asked)
    before = analyze("llama-3-70b", "h100-sxm").phases.decode.total
    for name, how in {
        "W4A16g128": {"quant": "W4A16g128"}, "fp8": {"quant": "fp8"}, "KV8": {"quant": "KV8"},
        "2 devices": {"layout": "tp=2"}, "8 devices": {"layout": "tp=8"},
    }.items():  # fmt: skip
        after, (state, one) = analyze("llama-3-70b", "h100-sxm", **how), by[name]
        step = after.phases.decode.total
        assert one.gain == pytest.approx(before.bound_time_s / step.bound_time_s)
        assert one.expected_gain == pytest.approx(before.expected_time_s / step.expected_time_s)
        assert changes.time_text(one).startswith(
            f"decode step {LOWER_BOUND_SIGN} {seconds(step.bound_time_s)}, expected "
        )
        assert one.mends == after.memory.fits
        assert results.device_results(state)[0].analysis.generation == after.generation
    _, four_bits = by["W4A16g128"]
    assert changes.gain_text(four_bits) == f"{four_bits.gain:.3g}x faster"
    assert changes.is_worthwhile(four_bits)
    assert not changes.is_worthwhile(by["KV8"][1])
    ranked = [one.likely_gain for _, one in by.values()]
    assert ranked == sorted(ranked, reverse=True)


@pytest.mark.parametrize(
    ("step", "context", "kv_len"), [("", 0, None), ("mean", 0, 1088), ("last", 0, 1151), ("", 3000, 3000)]
)
def test_the_decode_step_chosen_is_that_of_strip_sentence_table_and_changes(step, context, kv_len):
    asked = State(quant="W8A16", step=step, context=context)
    (answer,) = results.device_results(asked)
    decode = analyze("llama-3.1-8b", "h100-sxm", quant="W8A16", kv_len=kv_len).phases.decode
    time = seconds(decode.time_s)
    name, bound, expected = overview.shown_time(answer, asked)
    assert (name, bound) == (
        {"": "step at context 3,000" if context else "first step"}.get(step, f"{step} step"), time,
    )  # fmt: skip
    assert expected.startswith(seconds(decode.expected_time_s))
    assert f"{LOWER_BOUND_SIGN} {time}, expected" in overview.verdict([answer], asked)[1]
    assert time in [card.value for card in overview.cards(answer, asked)]
    assert sum(row["time"] for row in overview.operator_rows([answer], "decode")) == pytest.approx(decode.time_s)
    four_bits = variants_of(answer, asked)["W4A16g128"][1]
    then = analyze("llama-3.1-8b", "h100-sxm", quant="W4A16g128", kv_len=kv_len).phases.decode
    assert f"{LOWER_BOUND_SIGN} {seconds(then.time_s)}," in changes.time_text(four_bits)
    assert f">= {seconds(then.time_s)} (" in overview.advice(answer, "decode")


def test_the_mean_step_takes_the_mean_time():
    """Exactly where the time is linear in the context, which it is while memory bounds every operator."""
    for batch in (1, 16):
        (answer,) = results.device_results(State(batch=batch, step="mean"))
        assert answer.phase("decode").time_s == pytest.approx(answer.analysis.generation.tpot_s, rel=1e-6)


def test_suggested_changes_start_from_the_current_setting():
    asked = State(batch=4, quant="W4A16g128KV8", attention="eager", phase="prefill")
    (answer,) = results.device_results(asked)
    steps = {candidate.name: candidate.state for candidate in changes.candidates(answer, asked)}
    assert steps["Wfp8Afp8KV8"] == replace(asked, quant="Wfp8Afp8KV8")
    assert "W4A16g128KV8" not in steps
    assert steps["flash attention"].attention == "flash"
    assert steps["batch 64"].batch == 64
    _, many = variants_of(answer, asked)["batch 64"]
    after = analyze("llama-3.1-8b", "h100-sxm", batch=64, quant="W4A16g128KV8", attention="eager").generation
    assert many.gain == pytest.approx(16 * answer.analysis.generation.ttft_s / after.ttft_s)
    assert "TTFT" in changes.time_text(many)
    assert [*steps][-3] == "batch 64"
    (full,) = results.device_results(replace(asked, techniques=("medusa:heads=3",)))
    assert "medusa" not in {candidate.name for candidate in changes.technique_candidates(full, asked)}
    assert len(list(changes.technique_candidates(full, asked))) > 30


@pytest.mark.parametrize(
    ("quant", "then"),
    [
        ("W16A16,down_proj=W8A16", "fp8,down_proj=W8A16"),
        ("W8A16,layers.0-3=W16A16", "W8A16KV8,layers.0-3=W16A16"),
        ("Q4_K_M,down_proj=W8A16", "Q4_K_M,KV8,down_proj=W8A16"),
    ],
)
def test_precision_change_keeps_overrides_of_model_parts(quant, then):
    asked = State(model="llama-3-8b", quant=quant)
    (answer,) = results.device_results(asked)
    state, variant = variants_of(answer, asked)[then]
    assert state.quant == then
    after = analyze("llama-3-8b", "h100-sxm", quant=then).phases.decode
    assert variant.gain == pytest.approx(answer.phase("decode").time_s / after.time_s)
    bare = analyze("llama-3-8b", "h100-sxm", quant=then.rpartition(",")[0]).phases.decode
    assert after.time_s != bare.time_s


def test_a_step_in_precision_replaces_a_technique_that_sets_one():
    (answer,) = results.device_results(asked := State(model="llama-3-8b", techniques=("quantized:scheme=awq", "eagle")))
    state, variant = variants_of(answer, asked)["fp8"]
    assert (state.quant, state.techniques) == ("fp8", ("eagle",))
    assert str(variant.result.setting.quantization) == "fp8"


def test_changes_are_ranked_for_every_device():
    asked = State(model="llama-3-70b", on=("h100-sxm", "v100-sxm2-16gb", "mi300x"), batch=64)
    found = results.device_results(asked)
    steps, refused = changes.ranked_changes(found, asked, with_techniques=False)
    for answer in found:
        own, others = changes.evaluated(answer, asked, tuple(changes.candidates(answer, asked)))
        gains = {candidate: one.gain for candidate, one in own}
        shown = {step.candidate: step.variants[answer.name] for step in steps if answer.name in step.variants}
        assert {candidate: one.gain for candidate, one in shown.items()} == gains
        assert all(
            any(line.startswith(candidate.name) and why in line for line in refused) for candidate, why in others
        )
    by = {step.candidate.name: step for step in steps}
    assert list(by["W4A16g128"].variants) == list(asked.on)
    verdicts = [changes.memory_verdict(by["W4A16g128"].variants[name]) for name in asked.on]
    assert verdicts == ["then fits", "does not fit", "fits"]
    (largest,) = (step for step in steps if step.candidate.name.startswith("batch"))
    assert list(largest.variants) == ["mi300x"]  # on which alone more fit
    assert [step.largest_gain for step in steps] == sorted((step.largest_gain for step in steps), reverse=True)
    what, how = overview.heading(found)
    assert what == "Llama 3 70B on NVIDIA H100 SXM5 80 GB and 2 more"
    assert how.startswith("batch 64,")
    assert overview.heading(found[:1])[0] == "Llama 3 70B on NVIDIA H100 SXM5 80 GB"


def test_refused_changes_name_the_devices_that_cannot_run_them():
    heads = "tp=8 does not divide the 12 heads of q_proj in layer; "
    no_link = "m5 has no scale_up.bandwidth in its file; "
    for on, wanted in (
        (("h100-sxm", "mi300x"), [f"8 devices: {heads}"]),
        (("h100-sxm", "mi300x", "m5"),
         [f"8 devices on h100-sxm and mi300x: {heads}", f"2 devices on m5: {no_link}", f"8 devices on m5: {no_link}"]),
    ):  # fmt: skip
        asked = State(model="gpt2", on=on)
        _, refused = changes.ranked_changes(results.device_results(asked), asked, with_techniques=False)
        assert all(line.startswith(start) for line, start in zip(refused, wanted, strict=True)), refused


def test_every_technique_can_be_chosen():
    refused = {}
    for name in (option["value"] for option in options.technique_options()):
        text = fields.techniques_text([name], [])
        assert fields.technique_names([text]) == [name]
        refused[name] = results.problem_of(State(model="llama-3.1-8b", techniques=(text,)))
    assert {name for name, why in refused.items() if why} == {
        "mtp",
        "expert-capacity",
        "denoising",
        "encoder-exit",
    }  # which it has not
    assert techniques().keys() - refused.keys() == {"lengths"}
    assert fields.techniques_text(["sparsity", "window"], ["window:size=99", "medusa"]) == "sparsity; window:size=99"


def test_the_inspector_looks_at_the_pass_that_techniques_make():
    (found,) = results.device_results(State(techniques=("speculative:draft=llama-3.2-1b,gamma=4,alpha=0.7",)))
    one = inspector.operator_details(found, "decode", "layer.down_proj")
    (result,) = [op for op in found.analysis.phases.decode.operators if operator_id(op) == "layer.down_proj"]
    assert one.busy_times[0][1] == pytest.approx(result.per_call.bound_time_s)
    assert found.analysis.phases.decode.q_len == 5
    assert {what: value for what, _, value in one.formulas}["OPs"] == f"{si(result.per_call.ops)}OP"


def test_totals_show_bound_expected_time_interval_and_source():
    asked = State(model="llama-3.1-70b", on=("h100-sxm", "l40s"))
    found = results.device_results(asked)
    heads, *lines = overview.totals(found, asked)
    assert [head.value for head in heads[:2]] == ["device", "memory"]
    at = [head.value for head in heads].index("TPOT >=")
    for one, line in zip(found, lines, strict=True):
        whole = one.analysis.generation
        assert line[at].value == seconds(whole.tpot_s)
        assert heads[at].detail == "expected"
        assert line[at].detail.startswith(f"{seconds(whole.expected_tpot_s)} (")
        assert one.analysis.phases.decode.total.expectation_source.split(", ")[0] in overview.sources(found)
    with_others = results.device_results(
        State(model="llama-3.1-70b", on=("h100-sxm", "l40s", "mi300x"), batch=16, quant="fp8")
    )
    assert overview.sources(with_others) == (
        "Expected: h100-sxm: calibrated on h100-sxm trtllm; l40s: calibrated on l40s trtllm (transferred: 11% of "
        "prefill, 1% of decode); mi300x: transferred from mi355x aiter"
    )
    assert "survey accounting" in overview.sources(results.device_results(State(accounting="survey")))


def test_a_node_of_the_network_shows_the_launches_of_its_own_block():
    (found,) = results.device_results(State(model="deepseek-v3", on=("h200-sxm",), tp=8))
    equal = [op for op in found.analysis.phases.decode.operators if op.name == "q_a_proj"]
    assert len(equal) > 1
    whole = inspector.operator_details(found, "decode", operator_id(equal[0]))
    assert whole.title == f"q_a_proj \N{MULTIPLICATION SIGN} {sum(op.repeat for op in equal)}"
    for op in equal:
        own = inspector.operator_details(found, "decode", operator_id(op), of_block=True)
        assert own.title == f"q_a_proj in {op.block} \N{MULTIPLICATION SIGN} {op.repeat}"
        assert seconds(op.bound_time_s) in dict(own.times)[f"all {op.repeat} {LOWER_BOUND_SIGN}"]
    alone = inspector.operator_details(found, "decode", "head.lm_head", of_block=True)
    assert alone.title == "lm_head \N{MULTIPLICATION SIGN} 1"


def test_operator_improvements_equal_the_changed_analysis():
    (found,) = results.device_results(State())
    one = inspector.operator_details(found, "decode", "layer.down_proj")
    (now,) = [op for op in found.analysis.phases.decode.operators if operator_id(op) == "layer.down_proj"]
    (time,) = [time for name, time, _ in one.improvements if name == "4-bit weights (W4A16g128)"]
    changed = analyze("llama-3.1-8b", "h100-sxm", quant="W4g128").phases.decode
    (then,) = [op for op in changed.operators if operator_id(op) == "layer.down_proj"]
    assert time == seconds(then.bound_time_s)
    assert then.bound_time_s < now.bound_time_s


# The page


def test_every_field_has_a_control_with_a_line_about_it(app):
    page = json.dumps(app.layout.to_plotly_json(), default=lambda c: c.to_plotly_json())
    for name in FIELD_TYPES:
        assert f'"id": "{name}"' in page
    for name, word in CONTROLS.items():
        assert name in FIELD_TYPES
        assert 10 < len(word.about) <= 100
        assert "\n" not in word.about
    assert FIELD_TYPES.keys() - CONTROLS.keys() == {"set", "tab"}
    assert {word.term for word in CONTROLS.values()} <= {term.name for term in GLOSSARY}
    assert [term.name.lower() for term in GLOSSARY] == sorted(term.name.lower() for term in GLOSSARY)


def test_every_tab_is_on_the_page_and_in_its_documentation():
    modules = {module.name for module in iter_modules(tabs.__path__) if hasattr(getattr(tabs, module.name), "TAB")}
    assert set(TABS) == modules
    table = (ROOT / "docs" / "web.md").read_text().partition("| tab | contents |\n|---|---|\n")[2].partition("\n\n")[0]
    assert [line.split("|")[1].strip().lower() for line in table.splitlines()] == list(TABS)


@pytest.mark.parametrize(
    "text", ["", "W4A16g128", "fp8", "W8A8KV8", "nvfp4", "W1.58A8", "W4A16,down_proj=W8A16", "Q4_K_M"]
)
def test_parts_of_a_precision(text):
    parts = fields.operand_formats(text)
    again = fields.precision_text(parts)
    if "," not in text:
        assert fields.operand_formats(again) == parts
    assert fields.operand_formats("W4A16g128") == {"W": "4g128", "A": "16", "KV": "usual"}


def test_a_file_type_of_llama_cpp_is_a_part_beside_others():
    parts = fields.operand_formats("q4_k_m,A8KV8")
    assert parts == {"W": "Q4_K_M", "A": "8", "KV": "8"}
    assert fields.precision_text(parts) == "Q4_K_M,A8KV8"
    assert fields.precision_text({**parts, "W": "4g128"}) == "W4A8g128KV8"


@pytest.mark.parametrize(
    ("quant", "parts", "then"),
    [
        ("W4A16,down_proj=W8A16", {"KV": "8"}, "W4A16KV8,down_proj=W8A16"),
        ("W4A16g32", {"KV": "8"}, "W4A16g32KV8"),  # of which there is no short name
        ("published,layers.0-3=W8A8", {"W": "4g128"}, "W4g128,layers.0-3=W8A8"),
        ("Q4_K_M,A8KV8,down_proj=W8A16", {"A": "fp8"}, "Q4_K_M,Afp8KV8,down_proj=W8A16"),
        ("Q4_K_M,A8", {"W": "8"}, "W8A8"),
        ("W8A16,down_proj=W4A16", {"W": "usual", "A": "usual"}, "down_proj=W4A16"),
        ("nonsense", {"W": "8"}, "W8"),
    ],
)
def test_a_part_of_a_precision_leaves_the_others_as_they_are(quant, parts, then):
    assert fields.precision_text(parts, quant) == then


def test_every_precision_control_value_is_valid():
    for letter, (_, shorts) in fields.OPERANDS.items():
        for short in shorts:
            results.device_results(State(quant=fields.precision_text({letter: short})))


def test_the_style_knows_the_colours_that_figures_are_drawn_in():
    style = (ROOT / "webapp" / "assets" / "style.css").read_text()
    for colour in (INK, GRID, PAPER):
        assert f': {colour}"]' in style


def test_page_has_a_content_security_policy_and_loads_from_its_own_host_only(client):
    response = client.get("/")
    assert "default-src 'self'" in response.headers["Content-Security-Policy"]
    assert not re.findall(r'(?:src|href)="(?!/)', response.text)
    assert client.get("/assets/../state.py").status_code == 404
    assert client.get("/assets/%2e%2e/state.py").status_code == 404


class Browser:
    """A browser's copy of the page, and its calls."""

    def __init__(self, app):
        self.app, self.client = app, app.server.test_client()
        layout = json.loads(self.client.get("/_dash-layout").data)
        self.props = {}
        self._walk(layout)
        self.call("link.data", "url.search")

    def _walk(self, part):
        if isinstance(part, dict):
            if "props" in part and part["props"].get("id"):
                self.props[part["props"]["id"]] = part["props"]
            for inner in part.values():
                self._walk(inner)
        elif isinstance(part, list):
            for inner in part:
                self._walk(inner)

    def _of(self, place):
        return {**place, "value": self.props.get(place["id"], {}).get(place["property"])}

    def call(self, output, *changed):
        """Calls the callback with such an output because of what changed, and keeps what comes back."""
        (found,) = [
            one
            for one in json.loads(self.client.get("/_dash-dependencies").data)
            if output in re.split(r"[.]{2,3}", one["output"])
        ]
        outputs = [
            dict(zip(("id", "property"), part.rpartition(".")[::2], strict=True))
            for part in found["output"].strip(".").split("...")
        ]
        response = self.client.post("/_dash-update-component", json={
            "output": found["output"], "outputs": outputs if ".." in found["output"] else outputs[0],
            "inputs": [self._of(place) for place in found["inputs"]],
            "state": [self._of(place) for place in found["state"]], "changedPropIds": list(changed),
        })  # fmt: skip
        if response.status_code == 204:
            return None
        assert response.status_code == 200, response.text
        for name, props in json.loads(response.data)["response"].items():
            self.props.setdefault(name, {}).update(props)
        return response.text

    def set(self, name, value, prop="value"):
        self.props[name][prop] = value
        return self.call("link.data", f"{name}.{prop}")


def said(browser, name):
    """The error shown at a control, in full where it is long."""
    found = browser.props[f"error-{name}"]["children"]
    return found if isinstance(found, str) else found["props"]["children"][1]


def test_control_change_updates_results_and_link(app):
    browser = Browser(app)
    browser.set("batch", 8)
    assert browser.props["url"]["search"] == "?batch=8"
    assert browser.props["batch-slider"]["value"] == 3
    browser.set("prompt-slider", 11)
    assert browser.props["prompt"]["value"] == 2048
    browser.set("quant-W", "4g128")
    assert browser.props["quant"]["value"] == "W4g128"
    answer = browser.call("answer.children", "asked.data")
    expected = analyze("llama-3.1-8b", "h100-sxm", batch=8, prompt=2048, quant="W4g128").generation
    assert f'"{seconds(expected.tpot_s)}"' in answer
    other = Browser(app)
    other.props["url"]["search"] = browser.props["url"]["search"]
    other.call("link.data", "url.search")
    assert {name: other.props[name]["value"] for name in FIELD_TYPES} == {
        name: browser.props[name]["value"] for name in FIELD_TYPES
    }


def test_error_appears_beside_its_control_and_previous_results_stay(app):
    browser = Browser(app)
    browser.set("batch", 4)
    for name, value, message in (
        ("quant", "W17", "bits must be"), ("ep", 3, "ep must divide"), ("batch", 0, "whole number from 1"),
        ("batch", None, "whole number from 1"), ("offload", "all", "must be weights=PART"), ("tp", 10**9, "1,024"),
        ("techniques", "nothing", "no technique"), ("skew", -1, "number from 0 to 10"),
        ("measured", "tpot=fast", "tpot must be a time with its unit"), ("measured", "speed=1", "no quantity 'speed'"),
    ):  # fmt: skip
        before, kept = browser.props["link"]["data"], browser.props[name].get("value")
        browser.set(name, value)
        assert message in said(browser, name)
        assert browser.props["link"]["data"] == before
        assert browser.props[name]["value"] == value
        browser.set(name, kept)
        assert browser.props[f"error-{name}"]["children"] == ""


def test_internal_error_is_reported_and_previous_results_stay(app, monkeypatch, caplog):
    browser = Browser(app)
    right = results.analyze

    def wrong(setting, request, **asked):
        if request.batch == 77:
            raise KeyError("oops")
        return right(setting, request, **asked)

    monkeypatch.setattr(results, "analyze", wrong)
    browser.set("batch", 77)
    assert "internal error" in said(browser, "batch")
    assert browser.props["link"]["data"] == ""
    assert "KeyError: 'oops'" in caplog.text


def test_long_error_is_abbreviated_and_expandable():
    assert controls.error_text("skew must be a number from 0 to 10") == "skew must be a number from 0 to 10"
    long = f"precision must be {'one or another ' * 20}of these; got 'W4X9'"
    short, whole = controls.error_text(long).children
    assert (short.title, whole) == (long, long)
    assert short.children.startswith("precision must be one or another")
    assert short.children.endswith(" \N{HORIZONTAL ELLIPSIS} got 'W4X9'")
    assert len(short.children) < 120
    without = controls.error_text("of something else " * 20).children[0].children
    assert without.endswith("else of \N{HORIZONTAL ELLIPSIS}")


def test_a_model_that_does_not_generate_has_one_pass_and_no_generated_tokens(app):
    browser = Browser(app)
    both = [{"label": "Decode", "value": "decode"}, {"label": "Prefill", "value": "prefill"}]
    assert browser.props["phase"]["options"] == both
    assert not browser.props["gen"]["disabled"]
    browser.set("model", "bert-base-uncased")
    assert browser.props["phase"]["options"] == [{"label": "One pass", "value": browser.props["phase"]["value"]}]
    assert browser.props["gen"]["disabled"]
    assert browser.props["gen-slider"]["disabled"]
    assert browser.props["link"]["data"] == "?model=bert-base-uncased"
    browser.set("model", "gpt2")
    assert (browser.props["phase"]["options"], browser.props["phase"]["value"]) == (both, "decode")
    assert not browser.props["gen"]["disabled"]


def test_error_in_one_control_does_not_block_others(app):
    browser = Browser(app)
    browser.set("quant", "W17")
    browser.set("batch", 16)
    assert browser.props["link"]["data"] == "?batch=16"
    assert "bits must be" in said(browser, "quant")
    assert browser.props["error-batch"]["children"] == ""


def test_a_number_of_a_device_is_changed_and_put_back(app):
    browser = Browser(app)
    row = next(r for r in browser.props["numbers"]["rowData"] if r["key"] == "memory.bandwidth")
    browser.set("numbers", [{"data": {**row, "value": "2x"}}], "cellValueChanged")
    assert browser.props["set"]["value"] == ["h100-sxm:memory.bandwidth=2x"]
    assert browser.props["set"]["value"][0] in browser.props["set"]["options"]
    browser.set("numbers", [{"data": {**row, "value": "fast"}}], "cellValueChanged")
    assert "memory.bandwidth=fast" in said(browser, "set")
    assert "memory.bandwidth=2x" in browser.props["link"]["data"]
    browser.set("set", [])
    assert browser.props["link"]["data"] == ""


def test_techniques_are_chosen_and_edited(app):
    browser = Browser(app)
    browser.set("techniques-chosen", ["speculative"])
    usual = "speculative:draft=llama-3.2-1b,gamma=4,alpha=0.7"
    assert browser.props["techniques"]["value"] == usual
    assert "gamma" in json.dumps(browser.props["techniques-about"]["children"])
    browser.set("techniques", usual.replace("gamma=4", "gamma=2"))
    answer = browser.call("answer.children", "asked.data")
    expected = analyze("llama-3.1-8b", "h100-sxm", techniques=[usual.replace("gamma=4", "gamma=2")])
    assert f'"{seconds(expected.generation.tpot_s)}"' in answer
    assert f"{expected.effect.speed_up:.3g}x as fast" in answer
    browser.set("techniques-chosen", ["speculative", "mtp"])  # which this model has not
    assert said(browser, "techniques").startswith("mtp: llama-3.1-8b has no known multi-token")
    assert browser.props["techniques"]["value"].endswith("gamma=2,alpha=0.7; mtp")
    assert browser.props["techniques-chosen"]["value"] == ["speculative", "mtp"]
    assert "mtp" not in browser.props["link"]["data"]
    browser.set("techniques-chosen", [])
    assert browser.props["techniques"]["value"] == ""
    assert browser.props["link"]["data"] == ""
    assert browser.props["error-techniques"]["children"] == ""


def test_measured_times_are_compared_with_each_device_of_the_setting_only(app):
    browser = Browser(app)
    browser.set("measured", "tpot=9ms, ttft=40ms")
    rated = analyze("llama-3.1-8b", "h100-sxm", measured={"tpot_s": 9e-3, "ttft_s": 40e-3}).measured
    answer = browser.call("answer.children", "asked.data")
    for label, one in zip(("measured tpot", "measured ttft"), rated, strict=True):
        assert f'"{label} "' in answer
        assert one.said.partition(";")[0][:-1] in answer
    shown, _ = State.of_link(browser.props["link"]["data"] + "&on=h100-sxm|l4")
    told = dict(overview.verdicts(results.device_results(shown)))
    assert list(told) == [f"measured {what} on {name}" for name in shown.on for what in ("tpot", "ttft")]
    assert "slower than 90 % of measured kernels" in told["measured tpot on h100-sxm"]
    assert "no kernel beats the bound" in told["measured tpot on l4"]
    assert "--" not in "".join(told.values())
    found = results.device_results(replace(shown, on=("h100-sxm",)))
    steps, _ = changes.ranked_changes(found, shown, with_techniques=True)
    assert steps
    assert {one.candidate.state.measured for one in steps} == {""}
    assert "measured" not in shown.pin_link("l4")


def test_steps_are_links_to_the_page_on_which_they_are_taken(app):
    browser = Browser(app)
    browser.set("model", "llama-3-70b")
    browser.call("content.children", "asked.data")
    browser.props["changes-of"] = {"data": browser.props["asked"]["data"]}
    quick = json.dumps(json.loads(browser.call("changes.children", "changes-of.data")))
    assert '"href": "?model=llama-3-70b&quant=W4A16g128"' in quick
    assert "medusa" not in quick
    browser.props["more-changes"] = {"n_clicks": 1}
    whole = json.dumps(json.loads(browser.call("changes.children", "more-changes.n_clicks")))
    assert '"href": "?model=llama-3-70b&techniques=medusa"' in whole
    assert "mtp: llama-3-70b has no known multi-token prediction layers" in whole
    for link in re.findall(r'"href": "([^"]*)"', whole):
        state_, notices = State.of_link(link)
        assert not notices
        assert not results.problem_of(state_)


def test_files_are_kept_by_the_browser(app):
    browser = Browser(app)
    browser.props["model-file"]["filename"] = "broken.json"
    browser.set("model-file", "data:application/json;base64," + base64.b64encode(b"{").decode(), "contents")
    assert said(browser, "model").startswith("broken.json:1:2: is not JSON")
    browser.props["model-file"]["filename"] = "tiny.json"
    contents = base64.b64encode(CONFIG.encode()).decode()
    browser.set("model-file", f"data:application/json;base64,{contents}", "contents")
    assert browser.props["model"]["value"] == "file:tiny.json"
    assert browser.props["model"]["options"][0]["value"] == "file:tiny.json"
    assert browser.props["files"]["data"] == [["tiny.json", CONFIG]]
    assert browser.props["error-model"]["children"] == ""
    browser.set("model-file", "nonsense", "contents")
    assert said(browser, "model").startswith("tiny.json")


def test_saved_files_equal_the_command_line_reports(app):
    browser = Browser(app)
    browser.set("batch", 8)
    saved = {}
    for form in ("html", "csv", "json"):
        browser.props[f"save-{form}"]["n_clicks"] = 1
        browser.call("download.data", f"save-{form}.n_clicks")
        saved[form] = browser.props["download"]["data"]
        assert saved[form]["filename"] == f"llama-3.1-8b-h100-sxm.{form}"
    expected = analyze("llama-3.1-8b", "h100-sxm", batch=8)
    assert json.loads(saved["json"]["content"]) == expected.to_dict()
    assert saved["csv"]["content"].count("\n") == 1 + sum(len(phase.operators) for _, phase in expected.phases)
    assert saved["html"]["content"].startswith("<!doctype html>")


def test_of_several_devices_each_has_its_file(app):
    browser = Browser(app)
    browser.set("on", ["l4", "t4"])
    browser.props["save-csv"]["n_clicks"] = 1
    browser.call("download.data", "save-csv.n_clicks")
    saved = browser.props["download"]["data"]
    assert saved["filename"] == "llama-3.1-8b.zip"
    with zipfile.ZipFile(io.BytesIO(base64.b64decode(saved["content"]))) as files:
        assert files.namelist() == ["llama-3.1-8b-l4.csv", "llama-3.1-8b-t4.csv"]
        assert files.read("llama-3.1-8b-t4.csv").startswith(b"phase,name,kind")


def test_many_users_at_once_each_get_their_own_answer(app):
    devices, users = hardware_names()[::3], 20
    asked = [
        State(
            model=("llama-3.1-8b", "gpt2", "qwen3-0.6b")[i % 3], on=(devices[i % len(devices)],), batch=1 + i,
            prompt=64 + 8 * i, quant=("", "W4A16g128", "W8A16")[i // 3 % 3],
            techniques=(("medusa",) if i % 5 == 0 else ()), phase=("decode", "prefill")[i % 2],
        )
        for i in range(users)
    ]  # fmt: skip

    def one(wanted):
        browser = Browser(app)
        browser.props["url"]["search"] = wanted.link
        browser.call("link.data", "url.search")
        assert browser.props["link"]["data"] == wanted.link
        return browser.call("answer.children", "asked.data")

    with ThreadPoolExecutor(users) as pool:
        found = list(pool.map(one, asked))
    for wanted, text in zip(asked, found, strict=True):
        whole = analyze(
            wanted.model, wanted.on[0], batch=wanted.batch, prompt=wanted.prompt, quant=wanted.quant or None,
            techniques=wanted.techniques,
        ).generation  # fmt: skip
        rate = f"{whole.tokens_per_s:.4g}" if whole.tokens_per_s < 999.95 else f"{whole.tokens_per_s:,.0f}"
        for value in (seconds(whole.ttft_s), seconds(whole.tpot_s), rate):
            assert f'"{value}"' in text, (wanted, value)


def test_states_that_differ_in_view_only_share_a_cached_result():
    asked = State(batch=7)
    (first,) = results.device_results(asked)
    (again,) = results.device_results(replace(asked, phase="prefill", tab="memory", op="layer.q_proj"))
    assert first is again


# The command


def test_web_command_names_the_missing_package(capsys):
    code = (
        "import sys; sys.modules['dash'] = None; from llmviewer.cli import main; sys.exit(main(['web', '--no-open']))"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "llmviewer: web: needs the extra `web`: pip install 'llmviewer[web]'\n"
    assert main(["web", "--no-open", "--host", "203.0.113.1"]) == 2
    assert capsys.readouterr().err.startswith("llmviewer: --host 203.0.113.1 --port 8050: cannot listen there")


def test_servers_of_wsgi_find_the_page():
    from llmviewer.webapp.wsgi import server

    assert server.test_client().get("/").status_code == 200


def test_formulas_have_words_for_all_that_a_workload_has():
    made = {
        name: inspect.signature(method).return_annotation
        for name, method in vars(Workload).items()
        if inspect.isfunction(method) and not name.startswith("_")
    }
    assert {name for name, made_of in made.items() if made_of == "Num"} == set(formulas.FEATURES)
    assert {name for name, made_of in made.items() if made_of == "Workload"} | {""} == set(formulas.STREAMS)


@pytest.mark.parametrize(
    ("feature", "told"),
    [
        (Feature("pairs", (4096,)), "query-key pairs in a window of 4,096"),
        (Feature("pairs", (math.inf,), SOURCE), "query-key pairs of the encoder"),
        (Feature("distinct_experts", (256, 8), replicas(1)), "experts selected by any token, 8 of 256 per token"),
        (Feature("distinct_experts", (256, 8), replicas(4)),
         "experts selected by any token, 8 of 256 per token of 4 ranks"),
        (Feature("chosen_kv", (2048,)), "cached tokens read, 2,048 selected per query"),
        (Feature("one", (), images(576)), "pass of images of 576 patches"),
    ],
)  # fmt: skip
def test_features_in_words(feature, told):
    assert formulas.feature_text(feature) == told


def test_memory_fixes_use_the_labels_of_controls():
    (answer,) = results.device_results(State(model="deepseek-v3", tp=8, batch=64, prompt=4096))
    assert "use Tensor parallelism 16 and technique chunked-prefill, " in overview.advice(answer, "decode")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("unknown; give it (--passes N)", "unknown; give it (Passes)"),
        ("use --attention flash", "use Attention flash"),
        ("fits with --tp 2 or --quant fp8 or --offload weights=0.4",
         "fits with Tensor parallelism 2 or Precision fp8 or Offload weights=0.4"),
        ("give the model itself, --with medusa:heads=N", "give the model itself, technique medusa:heads=N"),
        ("set it by --hardware-set scale_up.latency=VALUE", "set it by what-if scale_up.latency=VALUE"),
        ("needs --engine NAME (--with fusion)", "needs Engine (technique fusion)"),
        ("llmviewer simulate --concurrency 1,024 has the queue", "the Serving tab has the queue"),
        ("no --redundant-experts", "no redundant-experts of the command line"),
        ("what `nsys export --type sqlite` wrote", "what `nsys export --type sqlite` wrote"),
        ("record with --cuda-graph-trace=node", "record with --cuda-graph-trace=node"),
    ],
)  # fmt: skip
def test_the_page_names_controls_in_place_of_options(text, shown):
    assert page_text(text) == shown


@pytest.mark.parametrize(
    "asked",
    [
        State(model="llama-3.1-70b"), State(model="deepseek-v3", on=("h200-sxm",), tp=8), State(model="gpt2"),
        State(measured="ttft=400ms, tpot=90ms", engine="vllm", batch=8), State(quant="Q4_K_M"),
        State(set=("h100-sxm:scale_up.bandwidth=2x",)), State(model="vit-huge"), State(model="qwen2-vl-72b"),
    ],
    ids=lambda asked: asked.link,
)  # fmt: skip
def test_no_option_of_the_command_line_is_on_the_page(asked):
    found = results.device_results(asked)
    shown = json.dumps(
        [pages.summary(found, asked), TABS["overview"].show(found, asked)], default=lambda one: one.to_plotly_json()
    )
    assert re.findall(r".{40}(?<![\w-])--(?!wide|narrow)[a-z]+", shown) == []


@pytest.mark.parametrize("layout", [{}, {"dp": 8}, {"pp": 4}])
def test_sentence_and_card_and_inspector_advise_the_same_batch(layout):
    state = State(model="llama-3.1-8b", on=("h100-sxm",), batch=32, **layout)
    (found,) = results.device_results(state)
    (candidate,) = [one for one in changes.candidates(found, state) if one.name.startswith("batch")]
    assert f"{candidate.name} (" in found.analysis.phases.decode.advice
    named = next(operator_id(op) for op in found.analysis.phases.decode.operators if op.name == "down_proj")
    (gain,) = [
        gain
        for name, _, gain in inspector.operator_details(found, "decode", named).improvements
        if name == candidate.name
    ]
    before, after = found.analysis.phases.decode, results.device_results(candidate.state)[0].analysis.phases.decode
    now_s, then_s = (
        next(op.bound_time_s for op in phase.operators if operator_id(op) == named) for phase in (before, after)
    )
    assert gain == f"{after.batch / before.batch * now_s / then_s:.2g}x tokens/s"


def test_content_stays_readable_while_the_server_computes():
    waiting = [
        each
        for shown in (pages.layout(), tabs_changes.placeholder(State()))
        for each in shown._traverse()
        if isinstance(each, dcc.Loading)
    ]
    assert [each.overlay_style["visibility"] for each in waiting] == ["visible"] * 3  # result, trace, what would change


def test_the_search_of_models_finds_repositories_on_the_hub():
    names = {one["value"]: one["names"] for one in options.model_options(())}
    assert "meta-llama/Llama-3.1-70B-Instruct" in names["llama-3.1-70b"].split()
