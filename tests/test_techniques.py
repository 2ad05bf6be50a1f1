"""Techniques: by hand, against networks that are made that way, and laws that hold for all of them."""

from __future__ import annotations

import json
import re
from dataclasses import astuple, fields, replace
from functools import cache
from importlib import import_module
from itertools import combinations, pairwise
from math import ceil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmviewer._layout import ROOT
from llmviewer.analyzing.analysis import analyze
from llmviewer.analyzing.effect import changes
from llmviewer.cli import main
from llmviewer.devices.files import load_hardware
from llmviewer.errors import InputError
from llmviewer.forms import evaluate
from llmviewer.generation import generation
from llmviewer.memory import weight_bytes
from llmviewer.model import kv_cache_bytes
from llmviewer.model_files import load_model
from llmviewer.operators.base import Role
from llmviewer.reports import techniques as report
from llmviewer.reports.analysis import REPORT
from llmviewer.resource import Unit, matrix
from llmviewer.setting import Setting
from llmviewer.techniques import (
    Kind,
    Requirement,
    Technique,
    declaration,
    overrides,
    parse_technique,
    parse_techniques,
    techniques,
)
from llmviewer.techniques import technique as registered
from llmviewer.techniques.schemes import SCHEMES
from llmviewer.techniques.tokens import TokenPruning
from llmviewer.units import seconds
from llmviewer.variants.changes import deployed_precisions, lower_bits
from llmviewer.workload import Sequences, Workload

from .cases import first_fast

A100 = load_hardware("a100-sxm-80gb")
LLAMA = "llama-2-7b"
MATRICES = 32 * (4 * 4096**2 + 3 * 4096 * 11008)  # numbers in the linears of its layers
TOKEN = 524288  # bytes of its cache for one token
SPECULATIVE = "speculative:draft=llama-68m,gamma=4,alpha=0.7"
GIVEN = {  # what has to be said
    "speculative": "draft=llama-68m,alpha=0.7",
    "phrase-copying": "phrases=1000,tau=2",
    "window": "size=64",
    "quantized": "scheme=quarot",
    "structured-pruning": "heads=0.5,ffn=0.5",
    "sparse-activation": "share=0.25",
    "lengths": f"file={Path(__file__).with_name('lengths.txt')}",
}
SURFACE = (
    "llama-2-7b", "gpt2", "falcon-7b", "mistral-7b-v0.1", "qwen3-8b", "gemma-2-9b", "mixtral-8x7b", "deepseek-v3",
    "deepseek-v3.2", "mamba-2.8b", "jamba-v0.1", "gpt-oss-20b", "flan-t5-base", "bert-base-uncased", "bloom-560m",
    "phi-2", "llama-4-scout", "llava-1.5-7b",
)  # fmt: skip
model = cache(load_model)


def written(name):
    return f"{name}:{GIVEN[name]}" if name in GIVEN else name


def setting(*asked, of=LLAMA, hardware=A100, **options):
    return Setting.of(model(of) if isinstance(of, str) else of, hardware, techniques=asked, **options)


def plan_of(found, phase, workload, field):
    """An amount of one pass."""
    return float(found.plan_of(phase).estimate(workload).sum(field))


def step(kv_len=1025, batch=1, prompt=0):
    return Workload.decode(batch=batch, kv_len=kv_len, prompt=prompt)


def refused(*asked, **options):
    with pytest.raises(InputError) as caught:
        setting(*asked, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def made(tmp_path, **changes):
    """Llama 2 7B with other fields."""
    config = {
        "model_type": "llama", "torch_dtype": "float16", "hidden_act": "silu", "hidden_size": 4096,
        "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32,
        "vocab_size": 32000, "tie_word_embeddings": False, "head_dim": 128,
    }  # fmt: skip
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config | changes), encoding="utf-8")
    return load_model(str(path))


def tried(*asked, **options):
    """The setting, or why it is refused."""
    try:
        return setting(*asked, **options), ""
    except InputError as error:
        return None, str(error)


def same(one, other):
    """Both passes take the same of everything."""
    for phase, workload in (("prefill", Workload.prefill(batch=2, prompt=300)), ("decode", step(301, batch=2))):
        for field in ("ops", "weight_bytes", "activation_bytes", "kv_bytes", "time_s"):
            ours, theirs = (plan_of(found, phase, workload, field) for found in (one, other))
            assert ours == pytest.approx(theirs, rel=1e-12), (phase, field)
    sizes = {"batch": 2, "prompt": 300, "gen": 9}
    assert one.footprint.parts(**sizes) == pytest.approx(other.footprint.parts(**sizes))


# What is written, and what is wrong with it.


def test_technique_text_round_trips():
    for name in techniques():
        one = parse_technique(written(name))
        assert parse_technique(str(one)) == one
    assert parse_technique({"speculative": {"draft": "llama-68m", "alpha": 0.7}}) == parse_technique(
        "speculative: draft = llama-68m, alpha=0.7"
    )
    assert parse_technique({"fusion": None}) == parse_technique("fusion")
    exact = parse_technique("speculative:draft=llama-68m,alpha=0.123456789")
    assert str(exact) == "speculative:alpha=0.123456789,draft=llama-68m"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("sparsty", "no technique 'sparsty': did you mean sparsity? (`llmviewer techniques` lists all)"),
        ("speculative", ("speculative: draft must be given: draft model: any MODEL that `llmviewer analyze` "
         "accepts")),
        ("sparsity:k=2", "sparsity: no parameter 'k'; there is m, n"),
        ("no-cache:k=2", "no-cache: no parameter 'k'; it has no parameters"),
        ("", ("a technique must be NAME or NAME:key=value,key=value, such as "
         "speculative:draft=llama-68m,gamma=4; got ''")),
        ("quantized:scheme=gtpq", ("quantized: no scheme 'gtpq': did you mean gptq? "
         "(`llmviewer techniques quantized` lists all)")),
        ("sparsity:n=1,n=2", "sparsity: n is given twice; got 'sparsity:n=1,n=2'"),
        ({"speculative": {"draft": None}}, "speculative: draft must be one value; got nothing"),
        ({"window": {"size": [4]}}, "window: size must be one value; got [4]"),
        ("window:size=abc", "window: size must be a whole number, at least 1; got 'abc'"),
        ("window:size=1.5", "window: size must be a whole number, at least 1; got '1.5'"),
        ("window:size=0", "window: size must be at least 1; got 0"),
        ("pruning:sparsity=1", "pruning: sparsity must be between 0 and 1; got 1.0"),
        ("pruning:sparsity=nan", "pruning: sparsity must be a number, between 0 and 1; got 'nan'"),
        ("pruning:format=csr", "pruning: format must be one of dense, bitmap, index, blocks; got 'csr'"),
        ("fusion:qkv=maybe", "fusion: qkv must be true or false; got 'maybe'"),
        ("fusion:qkv", ("a technique must be NAME or NAME:key=value,key=value, such as "
         "speculative:draft=llama-68m,gamma=4; got 'qkv' in 'fusion:qkv'")),
    ],
)  # fmt: skip
def test_malformed_technique_text_is_refused_in_one_line(text, error):
    with pytest.raises(InputError) as caught:
        parse_technique(text)
    assert str(caught.value) == error


@pytest.mark.parametrize(
    ("asked", "options", "error"),
    [
        (("speculative:draft=llama-68m",), {}, ("speculative: give alpha (acceptance rate) or tau (mean tokens "
         "per pass)")),
        (("speculative:draft=llama-68m,alpha=.5,tau=2",), {}, ("speculative: give alpha (acceptance rate) or tau (mean "
         "tokens per pass), not both")),
        (("speculative:draft=llama-68m,tau=6",), {}, ("speculative: tokens per pass must be at most 5; got 6; give "
         "alpha, or tau up to 5")),
        (("speculative:draft=llama-68m,alpha=.5,tree=4xx2",), {}, ("speculative: tree must be candidates after each "
         "token, by depth, such as 4x2x2; got '4xx2'")),
        (("speculative:draft=flan-t5-base,alpha=.5",), {}, ("speculative: flan-t5-base cannot draft for llama-2-7b: "
         "both must generate, and have an encoder or none")),
        ((SPECULATIVE,), {"of": "bert-base-uncased"}, ("speculative: bert-base-uncased does not generate, so it has "
         "no decode passes to change")),
        ((SPECULATIVE, "medusa"), {}, "medusa: speculative also drafts tokens; give one of the two"),
        (("medusa:nodes=3",), {}, "medusa: a tree of 3 nodes has no path of 4 tokens; give nodes=4 or more"),
        (("mtp",), {}, "mtp: llama-2-7b has no known multi-token prediction layers"),
        (("window:size=9", "h2o"), {}, "h2o: window also selects the keys that queries see; give one of the two"),
        (("window:size=9000",), {"of": "mistral-7b-v0.1"}, ("window: no attention of mistral-7b-v0.1 sees more than "
         "9000 tokens")),
        (("sparsity:n=4",), {}, "sparsity: n must be less than m=4; got 4"),
        (("sparsity", "pruning"), {}, "pruning: sparsity also sets weights to zero; give one of the two"),
        (("quantized:scheme=awq",), {"quant": "W8"}, ("quantized: is W4A16g128, and --quant W8 also sets the "
         "precision; give one of the two")),
        (("no-cache", "best-of"), {}, "no-cache: best-of needs a cache"),
        (("kv-quant",), {"attention": "eager"}, ("kv-quant: eager attention cannot read a cache of mixed "
         "precision; use --attention flash")),
        (("mla", "h2o"), {}, "mla: h2o changes keys and values that mla removes"),
        (("skeleton", "beam"), {}, ("skeleton: beam also changes the passes of a generation; give one of "
         "the two")),
        (("cross-layer-kv",), {"of": "deepseek-v3"}, ("cross-layer-kv: deepseek-v3 has no layers whose keys and "
         "values are only their own")),
        (("chunked-prefill",), {"layout": "pp=2"}, "chunked-prefill: is not supported in a pipeline; leave out pp"),
        (("sparsity",), {"accounting": "survey"}, "sparsity: is not supported in survey accounting; use faithful"),
        (("low-rank:targets=nothing",), {}, ("low-rank: no linear is called 'nothing'; there is down_proj, gate_proj, "
         "k_proj, o_proj, q_proj, up_proj, v_proj")),
        (("low-rank:rank=99999999",), {}, ("low-rank: rank must be at most 4096, the largest of any matrix; got "
         "99999999")),
        (("speculative:draft=llama-68m,,alpha=0.5",), {}, "got '' in 'speculative:draft=llama-68m,,alpha=0.5'"),
        (("lora:targets=q_proj+W_pack",), {}, ("lora: no linear is called 'W_pack'; there is down_proj, gate_proj, "
         "k_proj, o_proj, q_proj, up_proj, v_proj")),
        (("lora:merged=true,adapters=2",), {}, "lora: only one adapter can be merged; got adapters=2; drop merged"),
        (("structured-pruning",), {}, "structured-pruning: give heads, ffn, experts, layers or hidden below 1"),
    ],
)  # fmt: skip
def test_inapplicable_techniques_are_refused_with_the_reason(asked, options, error):
    assert error in refused(*asked, **options)


def test_user_techniques_may_be_redefined_and_must_declare_kind_and_requirement(monkeypatch):
    monkeypatch.setattr("llmviewer.techniques._KINDS", {})

    def of(**said):
        return type("Own", (Technique,), {"__module__": "notebook", "__doc__": "Own.", **said})

    whole = {"kind": Kind.DECODING, "requires": Requirement.NOTHING}
    for _ in range(2):  # a cell that is run twice
        registered("own")(of(**whole))
    with pytest.raises(RuntimeError, match=r"^'own' is registered twice: notebook.Own and llmviewer.techniques"):
        registered("own")(Technique)
    with pytest.raises(RuntimeError, match=r"^notebook\.Own must set kind and requires$"):
        registered("other")(of())
    with pytest.raises(InputError, match=r"^notebook\.Own has no name; put @technique\('NAME'\) above its class$"):
        parse_techniques([of(**whole)()])


def test_deprecated_plugin_hook_names_work_with_a_warning(monkeypatch):
    monkeypatch.setattr("llmviewer.techniques._KINDS", {})
    with pytest.warns(DeprecationWarning, match=r"^llmviewer\.techniques\.Touches is now Requirement$"):
        old_enum = import_module("llmviewer.techniques").Touches
    body = {
        "__module__": "notebook", "kind": Kind.DECODING, "touches": old_enum.MODEL, "leaves": (1.0, 0.5),
        "refuses": lambda self, setting, others: "an old reason",
    }  # fmt: skip
    with pytest.warns(DeprecationWarning, match=r"^notebook\.Old\.\w+ is now \w+$") as warned:
        kind = registered("old")(type("Old", (Technique,), body))
    assert len(warned) == 3
    assert kind.requires is Requirement.NEW_WEIGHTS
    assert kind().acceptance_probabilities == (1.0, 0.5)
    with pytest.raises(InputError, match=r"an old reason"):
        setting(kind())


def test_techniques_are_a_list_without_duplicates():
    with pytest.raises(InputError, match=r"^sparsity is given twice; give it once, with all its parameters$"):
        parse_techniques(["sparsity", "sparsity:n=1"])
    with pytest.raises(InputError, match=r"^techniques must be a list, such as \['sparsity'\]; got 'sparsity'$"):
        parse_techniques("sparsity")


def test_every_technique_documents_effect_formula_source_and_limits():
    for name, kind in techniques().items():
        described = report.describe(kind)
        assert described["about"].keys() >= {"effect", "formula", "source", "use when"}, name
        assert described["about"].keys() & {"limits", "not modeled"}, name
        assert described["summary"], name
        assert all(parameter["about"] for parameter in described["parameters"]), name


def test_documentation_page_is_generated_from_the_techniques():
    page = (ROOT / "docs" / "techniques.md").read_text(encoding="utf-8")
    assert page == report.render_markdown(techniques()), "make it anew: llmviewer techniques -o docs/techniques.md"


# The command line, and files.


def test_techniques_command_lists_all_and_shows_one(capsys):
    assert main(["techniques"]) == 0
    listed = capsys.readouterr().out
    assert all(f"  {name} " in listed for name in techniques())
    assert main(["techniques", "speculative"]) == 0
    shown = capsys.readouterr().out
    assert "arXiv:2211.17192" in shown
    assert max(map(len, (listed + shown).splitlines())) <= 80
    assert main(["techniques", "sparsity", "--format", "json"]) == 0
    (one,) = json.loads(capsys.readouterr().out)
    assert [p["name"] for p in one["parameters"]] == ["n", "m"]
    assert main(["techniques", "sparsty"]) == 2
    assert capsys.readouterr().err == "llmviewer: no technique 'sparsty': did you mean sparsity?\n"


def test_analyze_reports_the_gain_of_techniques(capsys):
    assert main(["analyze", LLAMA, "a100-sxm-80gb", "--with", SPECULATIVE, "--with", "sparsity"]) == 0
    text = capsys.readouterr().out
    assert "2.77 tokens per pass; prefill once" in text
    assert "verification is free (within 10% of a decode step) up to" in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 80
    assert main(["analyze", LLAMA, "a100-sxm-80gb", "--with", SPECULATIVE, "--format", "json"]) == 0
    effect = json.loads(capsys.readouterr().out)["effect"]
    assert effect["techniques"] == ["speculative:alpha=0.7,draft=llama-68m"]
    assert effect["tokens_per_step"] == pytest.approx(2.7731)
    assert effect["speed_up"] == pytest.approx(effect["without"]["latency_s"] / effect["result"]["latency_s"])
    assert [run["name"] for run in effect["runs"]] == [
        "prefill", "prompt of draft llama-68m", "draft llama-68m", "verification",
    ]  # fmt: skip
    assert main(["analyze", LLAMA, "a100-sxm-80gb", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["effect"] is None


def test_the_decode_step_shown_is_the_verification():
    found = analyze(LLAMA, A100, techniques=[SPECULATIVE])
    assert (found.phases.decode.q_len, found.phases.decode.kv_len) == (5, 1029)
    assert found.inputs["techniques"] == ("speculative:alpha=0.7,draft=llama-68m",)


SCENARIO = """\
model: llama-2-7b
hardware: a100-sxm-80gb
batch: 8
kv-len: 2000
with:
  - sparsity
  - speculative: {draft: llama-68m, gamma: 4, alpha: 0.7}
"""


def test_command_line_options_override_the_scenario(tmp_path, capsys):
    path = tmp_path / "mine.yaml"
    path.write_text(SCENARIO, encoding="utf-8")
    assert main(["analyze", "--scenario", str(path), "--batch", "2", "--format", "json"]) == 0
    inputs = json.loads(capsys.readouterr().out)["inputs"]
    assert (inputs["batch"], inputs["kv_len"], inputs["prompt"]) == (2, 2000, 1024)
    assert inputs["techniques"] == ["sparsity", "speculative:alpha=0.7,draft=llama-68m"]


def test_scenario_keys_are_the_option_names(tmp_path, capsys):
    path = tmp_path / "mine.yaml"
    path.write_text("model: gpt2\nhardware: t4\nformat: json\nprofile: []\nprompt: 1e3\nkv_len: 2000\nmtp: false")
    assert main(["analyze", "--scenario", str(path)]) == 0
    inputs = json.loads(capsys.readouterr().out)["inputs"]
    assert (inputs["prompt"], inputs["kv_len"]) == (1000, 2000)


def test_tokens_to_generate_are_refused_in_a_scenario_as_on_the_command_line(tmp_path, capsys):
    path = tmp_path / "mine.yaml"
    path.write_text("model: bert-base-uncased\nhardware: t4\ngen: 5\n")
    assert main(["analyze", "--scenario", str(path)]) == 2
    assert "gen must be left out: bert-base-uncased does not generate" in capsys.readouterr().err


def test_an_axis_and_an_option_of_one_scenario_exclude_each_other(tmp_path, capsys):
    path = tmp_path / "mine.yaml"
    path.write_text("model: gpt2\nhardware: t4\nbatch: 4\nover: [batch=1..3]\n")
    assert main(["sweep", "--scenario", str(path)]) == 2
    assert "--batch: the axis batch of --over sets it too" in capsys.readouterr().err
    assert main(["sweep", "--scenario", str(path), "--over", "batch=1,2"]) == 0


def test_a_scenario_names_files_as_they_are(tmp_path, capsys):
    (tmp_path / "one, two.txt").write_text("100\n", encoding="utf-8")
    path = tmp_path / "mine.yaml"
    asked = f"with:\n- lengths: {{file: '{tmp_path / 'one, two.txt'}'}}"
    path.write_text(SCENARIO.partition("with:")[0] + asked, encoding="utf-8")
    assert main(["analyze", "--scenario", str(path), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["phases"]["prefill"]["q_len"] == 100


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ("batch: 8", "bach: 8", "bach: unknown key; did you mean batch?"),
        ("batch: 8", "batch: [8]", "batch: must be one value; got [8]"),
        ("batch: 8", "batch: 8.5", "must be a whole number, or max for the largest that fits; got '8.5'"),
        ("batch: 8", "tp: 2.9", "mine.yaml: tp: must be a whole number; got '2.9'"),
        ("kv-len: 2000", "prompt: true", "mine.yaml: prompt: must be a whole number; got 'True'"),
        ("kv-len: 2000", "expert-skew: true", "mine.yaml: expert-skew: must be a number; got 'True'"),
        ("batch: 8", "mtp: 3", "mine.yaml: mtp: '3' is not a valid boolean."),
        ("batch: 8", "form: json", "mine.yaml: form: unknown key; did you mean format?"),
        ("batch: 8", "format: jsn", "mine.yaml: format: 'jsn' is not one of 'text', 'json',"),
        ("batch: 8", "profile: x.yaml", 'mine.yaml: profile: must be a list; got "x.yaml"'),
        ("- sparsity", "- sparsty", "no technique 'sparsty': did you mean sparsity?"),
        ("gamma: 4", "gama: 4", "speculative: no parameter 'gama'; did you mean gamma?"),
    ],
)
def test_invalid_scenario_is_refused_in_one_line(tmp_path, capsys, old, new, error):
    path = tmp_path / "mine.yaml"
    path.write_text(SCENARIO.replace(old, new), encoding="utf-8")
    assert main(["analyze", "--scenario", str(path)]) == 2
    assert error in capsys.readouterr().err


def test_techniques_are_for_one_kind_of_device(capsys):
    asked = ["analyze", LLAMA, "a100-sxm-80gb", "--decode-hardware", "h100-sxm", "--with", "fusion"]
    assert main(asked) == 2
    assert capsys.readouterr().err.startswith("llmviewer: --with is not supported with --prefill-")


# The schedule.


@pytest.mark.parametrize("layout", ["", "tp=2", "dp=2", "cp=2", "pp=2", "pp=4 tp=2"])
@pytest.mark.parametrize("name", [LLAMA, "mistral-7b-v0.1", "deepseek-v2-lite", "flan-t5-base", "jamba-v0.1"])
def test_without_techniques_the_schedule_is_the_generation(name, layout):
    bare = setting(of=name, layout=layout)
    found = bare.schedule(batch=3, prompt=100, gen=50)
    asked = generation(bare.plan, bare.decode_plan, batch=3, prompt=100, gen=50, layout=bare.layout)
    assert found.ttft_s == pytest.approx(float(asked.ttft_s), rel=1e-12)
    assert found.decoding_s == pytest.approx(float(asked.latency_s - asked.ttft_s), rel=1e-12)
    assert found.tokens_per_step == 1


def test_one_token_takes_the_prefills_alone():
    found = analyze(LLAMA, A100, gen=1, techniques=[SPECULATIVE])
    assert found.generation.tpot_s is None
    assert [run.name for run in found.effect.runs] == ["prefill", "prompt of draft llama-68m"]


# Speculative decoding.


@pytest.mark.parametrize(("alpha", "gamma", "tokens"), [(0, 4, 1), (1, 4, 5), (0.5, 2, 1.75), (0.8, 1, 1.8)])
def test_tokens_of_a_pass(alpha, gamma, tokens):
    assert tokens == pytest.approx(gamma + 1 if alpha == 1 else (1 - alpha ** (gamma + 1)) / (1 - alpha))
    assert parse_technique(f"speculative:draft=llama-68m,gamma={gamma},alpha={alpha}").tokens == pytest.approx(tokens)
    drawn = np.random.default_rng(1).random((200_000, gamma)) < alpha
    assert (1 + np.cumprod(drawn, axis=1).sum(axis=1)).mean() == pytest.approx(tokens, rel=0.01)


def test_passes_of_speculative_decoding_by_hand():
    """Three drafts at contexts n, n + 1, n + 2, then four tokens at once, for each two tokens."""
    found = setting("speculative:draft=llama-68m,gamma=3,tau=2")
    draft = Setting.of("llama-68m", A100, quant="W16A16")
    schedule = found.schedule(batch=2, prompt=10, gen=4)
    runs = {run.name: run for run in (*schedule.first, *schedule.rest)}
    contexts = (11, 12, 13)
    drafting = sum(float(draft.plan.time_s(step(n + j, batch=2))) for n in contexts for j in range(3)) / 2
    verifying = sum(float(found.plan.time_s(Workload.verify(batch=2, draft=3, past=n - 1))) for n in contexts) / 2
    assert runs["draft llama-68m"].time_s == pytest.approx(drafting, rel=1e-12)
    assert runs["verification"].time_s == pytest.approx(verifying, rel=1e-12)
    assert runs["verification"].passes == 1.5
    prompt_s = draft.plan.time_s(Workload.prefill(batch=2, prompt=10))
    assert runs["prompt of draft llama-68m"].time_s == prompt_s
    assert schedule.ttft_s == runs["prefill"].time_s + prompt_s  # which is before the first token


def test_a_tree_is_drafted_by_depth_and_verified_whole():
    found = setting("speculative:draft=llama-68m,tree=4x2,alpha=0.5")
    drafts, verification = found.schedule(batch=1, prompt=10, gen=2).rest
    assert drafts.workload.groups[0].q_len.tolist() == [1, 4]
    assert drafts.workload.groups[0].kv_len.tolist() == [11, 15]
    assert verification.workload.groups[0].q_len == 1 + 4 + 8
    reached = 1 - 0.5**4
    assert found.techniques[0].tokens == 1 + reached + reached * (1 - 0.5**2)


def test_a_pass_is_whole_where_few_tokens_are_wanted():
    """The last token alone takes a whole pass, however many would be accepted."""
    found, bare = setting("retrieval:length=4,tau=5"), setting()
    for gen, passes in ((2, 1), (5, 1), (6, 1), (11, 2)):
        (run,) = found.schedule(batch=1, prompt=100, gen=gen).rest
        assert run.passes == pytest.approx(passes)
    asked = {"batch": 1, "prompt": 100, "gen": 2}
    assert found.schedule(**asked).latency_s >= bare.schedule(**asked).latency_s


@given(st.integers(1, 16), st.floats(0, 1), st.sampled_from((1, 8, 64, 512)))
def test_no_draft_gains_more_than_the_tokens_of_a_pass(gamma, alpha, batch):
    found = setting(f"speculative:draft=llama-68m,gamma={gamma},alpha={alpha}")
    asked = {"batch": batch, "prompt": 128, "gen": 5}
    gain = setting().schedule(**asked).decoding_s / found.schedule(**asked).decoding_s
    assert gain <= found.techniques[0].tokens * (1 + 1e-9)


def test_a_draft_that_costs_nothing_gains_its_tokens_while_steps_wait_for_weights():
    found, bare = setting("retrieval:length=3,tau=2"), setting()
    gains = [bare.schedule(batch=b, prompt=16, gen=9).tpot_s / found.schedule(batch=b, prompt=16, gen=9).tpot_s
             for b in (1, 16, 256, 2048)]  # fmt: skip
    assert gains[0] == pytest.approx(2, rel=0.005)
    assert all(before > after for before, after in pairwise(gains))
    assert gains[-1] < 0.6


def test_layout_error_names_the_draft_model():
    with pytest.raises(InputError) as caught:
        analyze("mixtral-8x7b", "h100-sxm", layout="tp=8", techniques=[SPECULATIVE])
    assert str(caught.value) == (
        "llama-68m runs beside mixtral-8x7b in the same layout: tp=8 does not divide the 12 heads of q_proj in layer; "
        "choose another model in place of llama-68m"
    )


def test_verification_is_free_up_to_the_stated_batch():
    found = setting(SPECULATIVE)
    told = {f.key: f.value for f in found.techniques[0].findings(found, found.step(step()))}
    free = told["free_up_to_batch"]
    over = [float(found.plan.time_s(Workload.verify(batch=b, draft=4, past=1024)) / found.plan.time_s(step(batch=b)))
            for b in (1, free, free + 1)]  # fmt: skip
    assert over[0] == pytest.approx(told["verification_over_step"])
    assert over[1] <= 1.1 < over[2]
    assert told["free_from_batch"] == 1


@pytest.mark.parametrize(("dp", "first", "last"), [(1, 9, 73), (2, 17, 146)])
def test_verification_is_free_from_the_stated_batch(dp, first, last):
    """One sequence reads more experts to verify five tokens; many read all of them anyway."""
    asked = {"techniques": ["retrieval:length=4"], "layout": f"tp=2 dp={dp}"}
    found = analyze("mixtral-8x7b", "h100-sxm", batch=dp, **asked).effect
    words = f"from batch {first} to {last} at this context"
    assert found.said[1] == f"verification is free (within 10% of a decode step) {words}"
    assert (found.findings["free_from_batch"], found.findings["free_up_to_batch"]) == (first, last)
    for batch, free in ((first - 1, False), (first, True), (last, True), (last + 1, False)):
        over = analyze("mixtral-8x7b", "h100-sxm", batch=batch, gen=2, **asked).effect.findings
        assert (over["verification_over_step"] <= 1.1) == free


def test_technique_pays_up_to_the_stated_batch():
    found = analyze(LLAMA, A100, techniques=["contextual-sparsity"]).effect
    assert found.said[-1] == f"decode is faster up to batch {found.pays_up_to_batch}, if it fits"
    gains = []
    for batch in (found.pays_up_to_batch, found.pays_up_to_batch + 1):
        asked = {"batch": batch, "prompt": 1024, "gen": 128}
        gains.append(setting().schedule(**asked).tpot_s / setting("contextual-sparsity").schedule(**asked).tpot_s)
    assert gains[0] > 1.001 >= gains[1]
    for asked, pays in (("no-cache", (None, 0)), ("sparsity", (1, None))):
        found = analyze(LLAMA, A100, techniques=[asked]).effect
        assert (found.pays_from_batch, found.pays_up_to_batch) == pays


def test_technique_pays_from_the_stated_batch():
    """One sequence reads more experts to verify four tokens; many read all of them anyway."""
    h200, asked = load_hardware("h200-sxm"), "retrieval:length=3,tau=1.8"
    found = analyze("mixtral-8x7b", h200, techniques=[asked]).effect
    ends = f"from batch {found.pays_from_batch} to {found.pays_up_to_batch}"
    assert found.said[-1] == f"decode is faster {ends}, if it fits"
    assert 1 < found.pays_from_batch < found.pays_up_to_batch
    ours, theirs = (setting(*some, of="mixtral-8x7b", hardware=h200) for some in ((asked,), ()))
    edges = (found.pays_from_batch, found.pays_up_to_batch + 1)
    for inside, batch in zip((True, False), edges, strict=True):
        for off, gains in ((0, inside), (-1, not inside)):
            asked = {"batch": batch + off, "prompt": 1024, "gen": 128}
            assert (theirs.schedule(**asked).tpot_s > 1.001 * ours.schedule(**asked).tpot_s) == gains


def test_copies_on_several_devices_verify_for_free_together():
    one, two = (setting(SPECULATIVE, layout=layout) for layout in ("", "dp=2"))
    free = [{f.key: f.value for f in found.techniques[0].findings(found, found.step(step()))}["free_up_to_batch"]
            for found in (one, two)]  # fmt: skip
    assert free[1] == 2 * free[0]


def test_the_host_launches_one_at_a_time():
    found, bare = setting("launches:each=20", of="llama-68m"), setting(of="llama-68m")
    asked = {"batch": 1, "prompt": 100, "gen": 9}
    count = sum(block.repeat for block, _ in found.decode_graph)
    assert found.schedule(**asked).tpot_s == pytest.approx(20e-6 * count)
    assert setting("launches:each=0.01", of="llama-68m").schedule(**asked).tpot_s == bare.schedule(**asked).tpot_s
    fused = setting("launches:each=20", "fusion", of="llama-68m").schedule(**asked)
    assert fused.tpot_s < found.schedule(**asked).tpot_s
    result = analyze("llama-68m", A100, techniques=["launches:each=1000"]).generation
    assert result.expected_tpot_s == pytest.approx(result.tpot_s)  # the host sets both
    drafts = setting("launches:each=20", SPECULATIVE).schedule(**asked).rest
    assert all(run.host_s > 0 for run in drafts)


def test_a_launch_that_is_not_given_takes_a_range_or_what_its_engine_states():
    asked = {"techniques": ["launches"], "prompt": 100, "gen": 9}
    free = analyze("llama-3.2-1b", A100, **asked)
    count = free.effect.findings["launches_per_step"]
    found = free.generation
    assert found.tpot_s == pytest.approx(19e-6 * count)
    assert found.expected_tpot_s == pytest.approx(28e-6 * count)
    assert (found.expected_tpot_low_s, found.expected_tpot_high_s) == pytest.approx((19e-6 * count, 57e-6 * count))
    eager = analyze("llama-3.2-1b", A100, **asked, engine="huggingface")
    assert eager.generation.tpot_s == pytest.approx(49.1e-6 * eager.effect.findings["launches_per_step"])


def test_host_launches_layers_that_any_token_runs():
    """16 layers of 32 come to a sequence with the chance of a quarter, and to a crowd always."""
    found = setting("launches:each=1000", "mixture-of-depths:share=0.25")
    each = len(found.decode_graph.blocks[1].operators)
    skipped = [float(found.schedule(batch=batch, prompt=64, gen=2).rest[0].host_s) for batch in (1, 100)]
    assert skipped[1] - skipped[0] == pytest.approx(16 * each * 0.75e-3)


def test_draft_model_weights_are_counted_in_memory():
    sizes = {"batch": 3, "prompt": 100, "gen": 28}
    weights, cached, _ = setting(SPECULATIVE).footprint.parts(**sizes)
    own = setting().footprint.parts(**sizes)
    assert weights - own[0] == 2 * 68030208
    assert cached - own[1] == 3 * 128 * 2 * 2 * 2 * 768


def test_drafts_of_several_answers_are_as_many():
    asked = {"batch": 2, "prompt": 50, "gen": 9}
    one, other = (setting(*order).schedule(**asked) for order in (("best-of", SPECULATIVE), (SPECULATIVE, "best-of")))
    assert one.latency_s == other.latency_s
    drafts = next(run for run in one.rest if run.name == "draft llama-68m")
    assert drafts.workload.groups[0].batch == 8


def test_medusa_heads_by_hand():
    found = setting("medusa:heads=3,nodes=16,tau=2")
    held = 2 * 3 * (4096 * 4096 + 4096 + 32000 * 4096)
    ours, theirs = (f.footprint.parts(batch=1, prompt=9, gen=1)[0] for f in (found, setting()))
    assert ours - theirs == held
    heads = found.schedule(batch=1, prompt=9, gen=3).rest[0]
    assert heads.amount("ops") == pytest.approx(3 * (2 * 4096 * (4096 + 32000) + 5 * 4096))


def test_an_eagle_layer_is_a_layer_a_projection_and_the_head():
    found = setting("eagle:version=1,num_speculative_tokens=5,tau=5")
    layer = next(block for block in found.graph.blocks if block.layers)
    held = sum(w.device_bytes for op in layer.operators for w in op.weights) + 2 * 2 * 4096 * 4096
    extra = (f.footprint.parts(batch=1, prompt=9, gen=1)[0] for f in (found, setting()))
    assert next(extra) - next(extra) == held


def test_eagle_3_drafts_a_chain_with_a_smaller_head_as_engines_run_it():
    found = setting("eagle", of="llama-3.1-8b", hardware=load_hardware("h100-sxm"))
    (technique,) = found.techniques
    assert (technique.depth, technique.proposed) == (3, 3)
    assert technique.tokens == pytest.approx(1 + 0.71 + 0.71**2 + 0.71**3)
    draft, verification = found.schedule(batch=1, prompt=9, gen=3).rest[-2:]
    (head,) = (row.operator for row in draft.plan.operators if row.operator.kind == "lm_head")
    assert head.weight.shape == (32_000, 4096)
    (joined,) = (row.operator for row in draft.plan.operators if row.operator.name == "draft_proj")
    assert joined.weight.shape == (4096, 3 * 4096)
    (whole,) = (row.operator for row in verification.plan.operators if row.operator.kind == "lm_head")
    assert whole.weight.shape == (128_256, 4096)


@pytest.mark.parametrize(("text", "depth", "proposed", "tokens"), [("eagle:version=1", 5, 25, 3.6),
    ("eagle:version=2", 6, 60, 4.75), ("eagle:gamma=5,nodes=16,tau=3", 5, 16, 3),
    ("eagle:version=1,gamma=2,alpha=0.5", 2, 2, 1.75)])  # fmt: skip
def test_a_draft_has_the_acceptance_that_was_measured_with_it(text, depth, proposed, tokens):
    technique = parse_technique(text)
    assert (technique.depth, technique.proposed, technique.tokens) == (depth, proposed, pytest.approx(tokens))


def test_a_chain_of_eagle_1_has_no_published_acceptance():
    with pytest.raises(InputError, match="give alpha"):
        setting("eagle:version=1,gamma=3")


@pytest.mark.parametrize("name", ["speculative:draft=llama-68m,alpha=0.7,", "eagle:", "mtp:", "medusa:", "retrieval:"])
def test_the_engines_name_of_drafted_tokens_is_accepted(name):
    assert parse_technique(f"{name}num_speculative_tokens=4").depth == 4


def test_a_parameter_is_given_under_one_of_its_names():
    with pytest.raises(InputError, match=r"^mtp: num_speculative_tokens and gamma are the same; give one of them$"):
        parse_technique("mtp:gamma=1,num_speculative_tokens=2")


def test_further_predicted_tokens_are_accepted_as_often_as_the_first():
    assert [parse_technique(f"mtp:gamma={n}").tokens for n in (1, 2)] == pytest.approx([1.85, 1 + 0.85 + 0.85**2])


def test_layers_that_predict_are_those_of_the_model():
    found = setting("mtp", of="deepseek-v3", hardware=load_hardware("b200"), layout="tp=8")
    whole = Setting.of("deepseek-v3", "b200", mtp=True, layout="tp=8")
    asked = {"batch": 1, "prompt": 9, "gen": 1}
    weights, both = found.footprint.parts(**asked)[0], whole.footprint.parts(**asked)[0]
    assert weights == pytest.approx(both, rel=1e-9)


def test_some_layers_draft_for_all():
    found = setting("self-speculative:layers=0.25,gamma=2,tau=2")
    draft, verification = found.schedule(batch=1, prompt=9, gen=3).rest
    assert (draft.passes, verification.passes) == (2, 1)
    assert [row.block.repeat for row in draft.plan.operators if row.operator.name == "q_proj"] == [8]
    assert draft.amount("ops") < verification.amount("ops")
    assert found.footprint.parts(batch=1, prompt=9, gen=1) == setting().footprint.parts(batch=1, prompt=9, gen=1)


def test_the_first_layers_draft_with_an_adapter():
    found = setting("kangaroo:exit=0.25,gamma=2,tau=2")
    draft, verification = found.schedule(batch=1, prompt=9, gen=3).rest
    assert (draft.passes, verification.passes) == (2, 1)
    repeats = [row.block.repeat for row in draft.plan.operators if row.operator.name == "q_proj"]
    assert repeats == [8, 1]  # layers, adapter
    assert [row.operator.name for row in draft.plan.operators][-2:] == ["final_norm", "lm_head"]
    held, alone = (one.footprint.parts(batch=1, prompt=9, gen=1) for one in (found, setting()))
    assert held[0] - alone[0] == 2 * (4 * 4096**2 + 2 * 4096)
    assert held[1] / alone[1] == 33 / 32
    assert "has no attention like the adapter's" in refused("kangaroo", of="mamba-130m")
    of_latent = setting("kangaroo", of="deepseek-v3")  # heads of 192 elements, which do not divide the width of 7168
    (adapter,) = of_latent.techniques[0].auxiliary_graphs(of_latent)
    assert adapter.parameters == 4 * 7168**2 + 2 * 7168


def test_a_group_of_drafts_by_hand():
    """Three models of four tokens each: a depth is reached if any is accepted so far."""
    one, group = (setting(f"speculative:draft=llama-68m,alpha=0.5{more}") for more in ("", ",drafts=3"))
    asked = {"batch": 1, "prompt": 100, "gen": 9}
    assert group.techniques[0].tokens == 1 + sum(1 - (1 - 0.5**depth) ** 3 for depth in (1, 2, 3, 4))
    for times in zip(*(found.schedule(**asked).rest for found in (one, group)), strict=True):
        each = [run.time_s * found.techniques[0].tokens for run, found in zip(times, (one, group), strict=True)]
        if times[0].name.startswith("draft"):
            assert each[1] == pytest.approx(3 * each[0], rel=1e-9)
        elif times[0].main:
            assert [run.workload.groups[0].q_len for run in times] == [5, 13]
    held = [found.footprint.parts(**asked) for found in (setting(), one, group)]
    for part in (0, 1):
        assert held[2][part] - held[0][part] == pytest.approx(3 * (held[1][part] - held[0][part]))
    assert "a tree is drafted by one model" in refused("speculative:draft=llama-68m,alpha=0.5,drafts=2,tree=2x2")


def test_n_grams_draft_for_the_draft():
    """Five tokens by passes that yield two on average: three passes, each over the tokens that it yields."""
    staged = setting("speculative:draft=llama-68m,gamma=5,alpha=0.5,staged=2")
    plain = setting("speculative:draft=llama-68m,gamma=5,alpha=0.5")
    drafter = staged.techniques[0].drafter(staged)
    assert (drafter.widths, drafter.before) == ((2, 2, 1), (0, 2, 4))
    asked = {"batch": 1, "prompt": 512, "gen": 65}
    times = [found.schedule(**asked).tpot_s for found in (staged, plain, setting())]
    assert times[0] < times[1] < times[2]
    assert staged.techniques[0].tokens == plain.techniques[0].tokens
    for number, reason in (("6", "at most gamma=5"), ("1.2", "saves none of 5 passes")):
        assert reason in refused(f"speculative:draft=llama-68m,gamma=5,alpha=0.5,staged={number}")


# Several answers, other passes.


@pytest.mark.parametrize(("prompt", "tokens"), [("shared", 100 + 4 * 28), ("read-once", 212), ("copied", 4 * 128)])
def test_the_cache_of_several_answers(prompt, tokens):
    found = setting(f"best-of:n=4,prompt={prompt}").footprint.parts(batch=3, prompt=100, gen=28)
    assert found[1] == 3 * tokens * TOKEN


def test_a_prompt_read_once_is_read_once():
    shared, once = (setting(f"best-of:n=4,prompt={how}") for how in ("shared", "read-once"))
    asked = step(1001, prompt=1000)
    read = [plan_of(found, "decode", found.step(asked), "kv_bytes") for found in (shared, once)]
    assert read[0] - read[1] == pytest.approx(3 * 1000 * TOKEN)


def test_without_a_cache_every_step_is_a_prefill():
    found = setting("no-cache").schedule(batch=2, prompt=10, gen=4)
    plan = setting().plan
    by_hand = sum(float(plan.time_s(Workload.prefill(batch=2, prompt=n))) for n in (11, 12, 13))
    assert found.decoding_s == pytest.approx(by_hand, rel=1e-12)
    assert setting("no-cache").footprint.parts(batch=2, prompt=10, gen=4)[1] == 0


def test_a_skeleton_by_hand():
    found = setting("skeleton:points=4,outline=2,instruction=3").schedule(batch=1, prompt=10, gen=9)
    plan = setting().plan
    outline, instructions, points = found.rest
    assert outline.time_s == pytest.approx(sum(float(plan.time_s(step(n))) for n in (11, 12)), rel=1e-12)
    assert instructions.time_s == plan.time_s(Workload((Sequences(batch=4, q_len=3, kv_len=15),)))
    assert points.time_s == pytest.approx(sum(float(plan.time_s(step(n, batch=4))) for n in (16, 17)), rel=1e-12)
    kept = setting("skeleton:points=4,outline=2,instruction=3").footprint.parts(batch=1, prompt=10, gen=8)
    assert kept[1] == (12 + 4 * (3 + 2)) * TOKEN


def test_a_skeleton_graph_by_hand():
    """Five points in two turns: three, then two that first read an answer of two tokens."""
    found = setting("skeleton:points=5,outline=2,instruction=3,levels=2").schedule(batch=1, prompt=10, gen=10)
    plan = setting().plan
    _, first, points, second, rest = found.rest
    assert first.time_s == plan.time_s(Workload((Sequences(batch=3, q_len=3, kv_len=15),)))
    assert points.time_s == pytest.approx(sum(float(plan.time_s(step(n, batch=3))) for n in (16, 17)), rel=1e-12)
    assert second.time_s == plan.time_s(Workload((Sequences(batch=2, q_len=5, kv_len=17),)))
    assert rest.time_s == pytest.approx(sum(float(plan.time_s(step(n, batch=2))) for n in (18, 19)), rel=1e-12)
    several = setting("skeleton:points=8,levels=4").schedule(batch=1, prompt=10, gen=17)
    assert [float(run.passes) for run in several.rest] == [40, 1, 2, 3, 6]
    assert "levels must be at most points=8; got 9" in refused("skeleton:levels=9")


def test_a_router_reads_the_prompt_and_sends_a_part_of_the_requests():
    found = setting("skeleton:router=roberta-base,suitable=0.25")
    asked = {"batch": 2, "prompt": 100, "gen": 65}
    all_so, none = (setting(*one).schedule(**asked) for one in (("skeleton",), ()))
    routed = found.schedule(**asked)
    assert routed.decoding_s == pytest.approx(0.25 * all_so.decoding_s + 0.75 * none.decoding_s, rel=1e-12)
    router = setting(of="roberta-base").plan.time_s(Workload.prefill(batch=2, prompt=100))
    assert routed.ttft_s == pytest.approx(none.ttft_s + router, rel=1e-12)
    weights = [one.footprint.parts(**asked)[0] for one in (found, setting())]
    assert weights[0] - weights[1] == pytest.approx(2 * load_model("roberta-base").parameters, rel=0.001)


def test_a_parallel_draft_is_a_pass_of_the_whole_model():
    """PaSS: four look-ahead tokens, of which a pass drafts five; the next pass verifies five and adds one."""
    found = setting("parallel-draft:alpha=0.5")
    draft, verified = found.schedule(batch=1, prompt=100, gen=2).rest
    plan = setting().plan
    assert draft.time_s == plan.time_s(Workload.verify(batch=1, draft=4, past=100))
    assert verified.time_s == plan.time_s(Workload.verify(batch=1, draft=5, past=100))
    assert found.techniques[0].tokens == 2 + 0.5 + 0.25 + 0.125 + 0.0625
    assert found.footprint.parts(batch=1, prompt=100, gen=9) == setting().footprint.parts(batch=1, prompt=100, gen=9)
    assert "tokens of both passes are at least 2" in refused("parallel-draft:tau=1.5")


def test_forks_by_hand():
    """Two branches of four tokens: two before the fork, two after it, beside those of the other branch."""
    found = setting("fork:branches=2,lead=0.5")
    plan, (run,) = setting().plan, found.schedule(batch=3, prompt=10, gen=9).rest
    batches = (3, 3, 6, 6, 3, 3)
    by_hand = sum(float(plan.time_s(step(11 + n, batch=batch))) for n, batch in enumerate(batches))
    assert run.time_s == pytest.approx(by_hand, rel=1e-12)
    assert found.footprint.parts(batch=3, prompt=10, gen=8)[1] == 3 * (10 + 6) * TOKEN  # four of the first, two of one
    assert found.techniques[0].tree.most == 2


@given(branches=st.integers(2, 32), lead=st.floats(0.01, 0.99), depth=st.integers(1, 2), tokens=st.integers(1, 900))
def test_forks_write_the_whole_answer(branches, lead, depth, tokens):
    found = setting(f"fork:branches={branches},lead={lead},depth={depth}")
    (run,) = found.schedule(batch=1, prompt=10, gen=tokens + 1).rest
    assert np.sum(run.workload.sequences()) == pytest.approx(tokens)
    steps = tokens * (lead + (1 - lead) / branches * (1 if depth == 1 else lead + (1 - lead) / branches))
    assert run.passes == ceil(steps - 1e-9)
    assert found.techniques[0].tree.peak <= 1 + 1e-9


def test_drafts_of_forked_sequences_have_their_batch():
    """Three drafts of each step, with as many sequences as the step has."""
    found = setting("fork:branches=2,lead=0.5", "eagle:gamma=3,tau=1")
    run = next(run for run in found.schedule(batch=1, prompt=10, gen=9).rest if run.name == "draft layer")
    assert run.workload.groups[0].batch.tolist() == [1] * 6 + [2] * 6 + [1] * 6


# Tokens that skip layers, neurons that are not needed.


BERT = "bert-base-uncased"


@pytest.mark.parametrize(("layers", "every"), [(0.5, 1), (0.3, 3), (0.9, 2)])
def test_sequences_leave_an_encoder_at_its_exits(layers, every):
    """The same part leaves at each exit, so that a sequence runs the mean; a layer is read if any sequence is left."""
    found, bare = (setting(*one, of=BERT) for one in ((f"encoder-exit:layers={layers},every={every}",), ()))
    asked = Workload.prefill(batch=8, prompt=128)
    ups = [row for row in found.plan.estimate(asked).operators if row.operator.name == "up_proj"]
    (whole,) = (row for row in bare.plan.estimate(asked).operators if row.operator.name == "up_proj")
    shares = [row.ops / whole.ops for row in ups]
    assert np.mean(shares) == pytest.approx(layers)
    left = sorted(set(np.round(shares, 12)), reverse=True)
    assert left[0] == 1
    assert len(left) == 12 / every
    assert [after / before for before, after in pairwise(left)] == pytest.approx([left[1]] * (len(left) - 1))
    read = [row.weight_bytes / whole.weight_bytes for row in ups]
    assert read == pytest.approx([1 - (1 - share) ** 8 for share in shares], rel=1e-3)  # biases are read too
    exits = [row for row in found.plan.estimate(asked).operators if row.operator.name == "pooler_dense"]
    assert len(exits) == 12 / every - 1
    assert exits[0].ops == 8 * 2 * 768**2


def test_each_layer_may_have_a_sparsity_of_its_own():
    """OWL, BESA and ISC: the mean sparsity sets the bytes, of which each layer reads what is left of it."""
    own, mean = (
        setting(f"pruning:format=bitmap,{one}")
        for one in ("layers=8x0.6+24x0.75", f"sparsity={(8 * 0.6 + 24 * 0.75) / 32}")
    )
    assert weight_bytes(own.graph) == pytest.approx(weight_bytes(mean.graph), rel=1e-9)
    rows = [row for row in own.decode_plan.estimate(step()).operators if row.operator.name == "down_proj"]
    stored = [(row.repeat, float(row.weight_bytes) / (4096 * 11008)) for row in rows]
    assert sorted(stored) == [(8, pytest.approx((0.4 * 16 + 1) / 8)), (24, pytest.approx((0.25 * 16 + 1) / 8))]
    for asked, error in (
        ("layers=8x0.6", "layers must have 32 layers; got 8"), ("layers=6", "layers must be fractions of consecutive"),
        ("layers=32x1", "a layer cannot have a sparsity of 1"),
        ("layers=32x0.5,sparsity=0.6", "give sparsity or layers"),
    ):  # fmt: skip
        assert error in refused(f"pruning:{asked}")


def test_layers_of_nested_networks_are_mixed_and_matched():
    """MatFormer: each layer has a part of its neurons, so that a model is of any size between those of the parts."""
    found = setting("structured-pruning:mix=8x0.25+16x0.5+8x1").graph
    widths = {op.weight.shape[0]: block.repeat for block, op in found if op.name == "up_proj"}
    assert widths == {2752: 8, 5504: 16, 11008: 8}
    sizes = [setting(f"structured-pruning:{one}").graph.parameters for one in ("ffn=0.5", "mix=16x0.5+16x1")]
    whole = setting().graph.parameters
    assert whole - sizes[1] == (whole - sizes[0]) / 2
    for asked, error in (
        ("mix=16x0.5", "mix must have 32 layers; got 16"), ("mix=32x1", "give heads, ffn"), ("mix=32x0", "above 0"),
        ("mix=32x0.5,ffn=0.5", "drop ffn"),
    ):  # fmt: skip
        assert error in refused(f"structured-pruning:{asked}")


def test_the_classifier_of_an_exit_by_hand():
    """FastBERT: 46.1 million OPs for 128 tokens of BERT (table 1 of arXiv:2004.02178), beside attention; and weights
    of its own.
    """
    found = setting("encoder-exit:classifier=student,layers=0.999", of=BERT)
    rows = found.plan.estimate(Workload.prefill(batch=1, prompt=128)).operators
    first = [row for row in rows if row.block.name == "exit.0"]
    products = sum(float(row.ops) for row in first if row.operator.kind == "linear")
    assert products == pytest.approx(46.1e6, rel=0.002)
    narrow = 768 * 128 + 5 * 128**2 + 6 * 128 + 2 * 128 + 2
    assert found.graph.parameters - setting(of=BERT).graph.parameters == 11 * narrow
    assert "llama-2-7b is no encoder of text alone" in refused("encoder-exit")
    assert "layers must be above 0.25" in refused("encoder-exit:every=3,layers=0.2", of=BERT)


def test_early_exit_saves_the_layers_beyond_the_exit():
    found, bare = setting("early-exit:exit=0.5,stay=0.25,sure=nothing"), setting()
    assert found.plan.time_s(step()) == bare.plan.time_s(step())  # the prefill's graph
    layer = plan_of(bare, "decode", step(), "weight_bytes") - 2 * 4096 * (32000 + 1 + 1)
    read = plan_of(found, "decode", step(), "weight_bytes") - 2 * 4096 * (32000 + 1 + 1)
    filled = 2 * (2 * 4096 * 4096 + 4096) / (layer / 32)  # keys, values and the norm before them, for all
    assert read / layer == pytest.approx(0.5 + 0.5 * (filled + (1 - filled) * 0.25), rel=1e-6)
    many = plan_of(found, "decode", step(batch=64), "weight_bytes") - 2 * 4096 * (32000 + 64 + 1)
    assert many / layer == pytest.approx(1, rel=1e-4)  # some token always stays


def test_a_jump_is_a_linear_before_the_head_at_the_exit():
    found, plain = setting("early-exit:jump=true"), setting("early-exit")
    assert plan_of(found, "decode", step(), "ops") - plan_of(plain, "decode", step(), "ops") == 2 * 4096**2
    held = [one.footprint.parts(batch=1, prompt=9, gen=1)[0] for one in (found, plain)]
    assert held[0] - held[1] == 2 * 4096**2
    assert "jump is not supported in a pipeline" in refused("early-exit:jump=true", layout="pp=2")


def test_tokens_that_halt_leave_keys_and_values_to_the_layers_beyond():
    """A token runs half of the layers on average, but for norm, keys and values, in prompts and steps."""
    found, bare = setting("halting:layers=0.5"), setting()
    for phase, asked in (("prefill", Workload.prefill(batch=1, prompt=1000)), ("decode", step())):
        amounts = [
            {name: sum(float(row.repeat * row.ops) for row in one.plan_of(phase).estimate(asked).operators
                       if row.operator.name == name) for name in ("q_proj", "down_proj", "v_proj")}
            for one in (found, bare)
        ]  # fmt: skip
        ratios = {name: amounts[0][name] / amounts[1][name] for name in amounts[0]}
        assert ratios == pytest.approx({"q_proj": 0.5, "down_proj": 0.5, "v_proj": 1}, rel=1e-6)
    cached = [one.footprint.parts(batch=1, prompt=99, gen=1)[1] for one in (found, bare)]
    assert cached[0] == cached[1]
    shared = setting("halting:shared=true").footprint.parts(batch=1, prompt=9, gen=1)[0]
    assert shared == 2 * (MATRICES / 32 + 2 * 4096 + 4096 + 2 * 32000 * 4096)  # a layer, last norm, tables
    assert "layers must be above 0.0312" in refused("halting:layers=0.03")


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ("multiplicative:modules=4097", "modules must be at most 4096, the outputs of q_proj; got 4097"),
        ("mixture-of-depths:every=33", "every must be at most the 32 layers; got 33"),
        ("cross-layer-kv:every=33", "every must be at most the 32 layers; got 33"),
        ("kv-quant:bits=8,group=4", "must make less than 16 bits per element; they make 16"),
        ("low-rank:rank=64,ratio=0.3", "ratio has no effect with rank=64"),
        ("rag:vectors=0,dim=64", "dim has no effect with vectors=0"),
        ("segment-recurrence:ratio=4", "ratio has no effect without compressed memories"),
        ("speculative:draft=llama-68m,alpha=0.7,tree=4x2,gamma=3", "leave out tree or gamma=3"),
        ("structured-pruning:layers=0.5,first=4", "first and last keep heads, neurons and experts"),
        ("structured-pruning:heads=0.999", "heads must leave out a head of llama-2-7b; got 0.999"),
        ("structured-pruning:layers=0.999", "layers must leave out one of 32; got 0.999"),
    ],
)
def test_a_parameter_that_would_change_nothing_is_refused(asked, reason):
    assert reason in refused(asked)


def test_pruned_tokens_and_heads_are_gone_from_later_layers():
    """SpAtten (arXiv:2012.09852): 1.9 times fewer tokens and 1.1 times fewer heads, together 2.1 times fewer OPs."""
    prompt, wide = Workload.prefill(batch=1, prompt=1000), Workload.prefill(batch=64, prompt=1000)
    found, bare = setting("token-pruning:tokens=0.526316,heads=0.909091"), setting()

    def ratio(phase, asked, field, name):
        amounts = [
            sum(row.repeat * float(getattr(row, field)) for row in one.plan_of(phase).estimate(asked).operators
                if row.operator.name == name) for one in (bare, found)
        ]  # fmt: skip
        return amounts[0] / amounts[1]

    assert ratio("prefill", prompt, "ops", "down_proj") == pytest.approx(1.9, rel=1e-5)
    assert ratio("prefill", prompt, "ops", "q_proj") == pytest.approx(2.1, rel=0.06)  # late layers have least of both
    assert ratio("decode", step(), "ops", "down_proj") == 1  # new tokens run all layers
    pairs = ratio("decode", step(), "ops", "attention")
    assert pairs == pytest.approx(2.1, rel=0.06)
    assert ratio("decode", step(), "kv_bytes", "attention") == pytest.approx(pairs, rel=2e-3)  # but for what it writes
    assert ratio("decode", step(), "weight_bytes", "q_proj") == pytest.approx(1.1, rel=1e-5)
    assert ratio("prefill", wide, "weight_bytes", "q_proj") == pytest.approx(1, abs=1e-3)  # some sequence needs each
    cached = [one.footprint.parts(batch=1, prompt=999, gen=1)[1] for one in (bare, found)]
    assert cached[0] / cached[1] == pytest.approx(pairs, rel=1e-6)
    assert "tokens must be above 0.156, of the layers that keep all" in refused("token-pruning:tokens=0.1")
    assert "give tokens or heads below 1" in refused("token-pruning:tokens=1,heads=1")
    eager = [setting(*asked, attention="eager") for asked in ((), ("token-pruning:heads=1",))]
    scores = [sum(float(row.activation_bytes) * row.repeat for row in one.plan.estimate(prompt).operators
                  if row.operator.name == "softmax") for one in eager]  # fmt: skip
    assert scores[1] / scores[0] == pytest.approx(np.mean(np.square(TokenPruning()._left(32)[0])))


def test_a_token_that_attention_skips_has_no_projections_and_no_keys():
    """SeqBoat (arXiv:2306.11197): a quarter of the tokens attends, to the last 64 that do."""
    found, bare = setting("sparse-activation:share=0.25,window=64"), setting()
    states = 2 * 8 * 4096  # of a layer: 8 complex modes of a channel
    for phase, asked in (("prefill", Workload.prefill(batch=1, prompt=1000)), ("decode", step())):
        amounts = [
            {name: sum(float(row.repeat * row.ops) for row in one.plan_of(phase).estimate(asked).operators
                       if row.operator.name == name) for name in ("q_proj", "o_proj", "down_proj")}
            for one in (found, bare)
        ]  # fmt: skip
        ratios = {name: amounts[0][name] / amounts[1][name] for name in amounts[0]}
        assert ratios == pytest.approx({"q_proj": 0.25, "o_proj": 0.25, "down_proj": 1})
    cached = found.footprint.parts(batch=1, prompt=999, gen=1)[1]
    assert cached == 64 * TOKEN + 32 * 4 * states
    held = [one.footprint.parts(batch=1, prompt=9, gen=1)[0] for one in (found, bare)]
    assert held[0] - held[1] == 2 * 32 * (4096 + 2 * states + 2 * 4096 + 2)  # D, poles and residues, two scores
    assert "no causal attention" in refused("sparse-activation:share=0.5", of="bert-base-uncased")
    assert "streaming also selects" in refused("sparse-activation:share=0.5,window=9", "streaming")


def test_memories_of_hidden_states_are_projected_by_each_pass():
    """Transformer-XL (arXiv:1901.02860): segments of 512 with as many remembered states of d elements."""
    found, bare = setting("segment-recurrence:tokens=512,memory=512"), setting()
    late = step(4001)

    def ops(one, name):
        return sum(float(row.repeat * row.ops) for row in one.decode_plan.estimate(late).operators
                   if row.operator.name == name)  # fmt: skip

    assert ops(found, "k_proj") / ops(bare, "k_proj") == 513
    assert ops(found, "q_proj") == ops(bare, "q_proj")
    assert ops(found, "attention") / ops(bare, "attention") == pytest.approx(513 / 4001)
    cached = [one.footprint.parts(batch=1, prompt=4000, gen=1)[1] for one in (found, bare)]
    assert cached[0] / cached[1] == pytest.approx(512 / 4001 / 2)  # d elements, not d of a key and of a value
    (run,) = found.schedule(batch=1, prompt=2048, gen=1).first
    keys = [float(k) for k in found.plan.estimate(run.workload).sum("kv_bytes")]
    assert keys[1] == keys[2] == keys[3] > keys[0]
    more = setting("segment-recurrence:tokens=512,memory=512,compressed=256,ratio=4")
    assert ops(more, "k_proj") / ops(bare, "k_proj") == 769
    assert ops(more, "compress") == 32 * 2 * 4096**2
    assert "window also changes what tokens attend to" in refused("segment-recurrence", "window:size=99")
    assert "no causal attention whose keys and values are projected" in refused("segment-recurrence", of="deepseek-v3")


def test_a_copied_phrase_is_scored_with_the_words_and_read_by_the_next_step():
    found = setting("phrase-copying:phrases=1000,tau=2")
    (run,) = found.schedule(batch=1, prompt=100, gen=9).rest
    assert run.passes == 4  # of eight tokens
    assert run.workload.groups[0].q_len == 2
    assert plan_of(found, "decode", step(), "weight_bytes") - plan_of(setting(), "decode", step(), "weight_bytes") == (
        2 * 1000 * 4096
    )
    assert found.graph.parameters - setting().graph.parameters == 1000 * 4096


def test_groups_of_neurons_are_chosen_by_one_linear():
    """MoEfication: as many OPs and bytes as neurons one by one, and a router of d x groups."""
    groups, free = setting("contextual-sparsity:groups=96"), setting("contextual-sparsity:rank=0")
    router = 4096 * 96
    assert plan_of(groups, "decode", step(), "ops") - plan_of(free, "decode", step(), "ops") == 32 * 2 * router
    held = [one.footprint.parts(batch=1, prompt=9, gen=1)[0] for one in (groups, free)]
    assert held[0] - held[1] == 32 * 2 * router
    assert "rank has no effect with groups=96" in refused("contextual-sparsity:groups=96,rank=512")
    assert "groups must be at most 11008" in refused("contextual-sparsity:groups=11009")


def test_a_multiplicative_layer_and_a_convolution_are_a_projection():
    """64 modules of 64 columns: as many OPs as the matrix, and few weights."""
    found, bare = setting("multiplicative:modules=64,kernel=3"), setting()
    held = weight_bytes(bare.graph) - weight_bytes(found.graph)
    assert held == 2 * 32 * 3 * (4096**2 - 2 * 64 * 4096 - 9 * 64**2)
    more = plan_of(found, "decode", step(), "ops") - plan_of(bare, "decode", step(), "ops")
    assert more == 32 * 3 * (4096 * 64 + 2 * 9 * 64 * 64**2)
    assert "not split among the ranks of tp=2" in refused("multiplicative", layout="tp=2")


def test_blocks_of_zeros_are_neither_read_nor_computed():
    found, bare = setting("pruning:sparsity=0.75,format=blocks,block=32"), setting()
    asked = Workload.prefill(batch=1, prompt=64)
    rows = [{row.operator.name: row for row in one.plan.estimate(asked).operators} for one in (found, bare)]
    assert rows[0]["up_proj"].ops == 0.25 * rows[1]["up_proj"].ops
    left = weight_bytes(bare.graph) - weight_bytes(found.graph)
    assert left == pytest.approx(2 * MATRICES * (1 - 0.25 * (16 + 16 / 32**2) / 16))


def test_batch_early_exit_ends_all_sequences_together():
    one, many = (
        plan_of(setting("early-exit:by=batch,sure=nothing"), "decode", step(batch=b), "weight_bytes") for b in (1, 64)
    )
    assert many - one == pytest.approx(63 * 2 * 4096)  # rows of the embedding


def test_mixture_of_depths_by_hand():
    found, bare = setting("mixture-of-depths:share=0.25,every=2"), setting()
    asked = Workload.prefill(batch=1, prompt=1000)
    rows = {row.block.name: row for row in found.plan.estimate(asked).operators if row.operator.name == "q_proj"}
    assert rows["layer.routed"].ops == 0.25 * rows["layer"].ops
    attention = {
        row.block.name: row.ops for row in found.plan.estimate(asked).operators if row.operator.name == "attention"
    }
    assert attention["layer.routed"] == pytest.approx(attention["layer"] / 16)
    cached = (f.footprint.parts(batch=1, prompt=900, gen=100)[1] for f in (found, bare))
    assert next(cached) == pytest.approx(next(cached) * (0.5 + 0.5 * 0.25))


@pytest.mark.parametrize("batch", [1, 4, 32])
def test_a_batch_reads_the_union_of_its_neurons(batch):
    found, bare = setting("contextual-sparsity:active=0.2,rank=0"), setting()
    neurons = 2 * 32 * 3 * 4096 * 11008
    read = [plan_of(f, "decode", step(batch=batch), "weight_bytes") for f in (found, bare)]
    assert read[1] - read[0] == pytest.approx(neurons * 0.8**batch)
    ops = [plan_of(f, "decode", step(batch=batch), "ops") for f in (found, bare)]
    assert ops[1] - ops[0] == pytest.approx(0.8 * neurons * batch)


def test_a_predictor_runs_before_each_network_and_is_held():
    found, none = setting("contextual-sparsity:rank=100"), setting("contextual-sparsity:rank=0")
    numbers = 32 * 100 * (4096 + 11008)
    extra = {name: plan_of(found, "decode", step(batch=3), name) - plan_of(none, "decode", step(batch=3), name)
             for name in ("ops", "weight_bytes")}  # fmt: skip
    assert extra == {"ops": pytest.approx(2 * 3 * numbers), "weight_bytes": pytest.approx(2 * numbers)}
    held = [f.footprint.parts(batch=1, prompt=9, gen=1)[0] for f in (found, none)]
    assert held[0] - held[1] == 2 * numbers
    assert found.plan.time_s(step()) == none.plan.time_s(step())  # the prefill's graph


def test_inactive_heads_are_not_projected():
    found, bare = setting("contextual-sparsity:active=0.5,heads=0.25,rank=0"), setting()
    read = plan_of(bare, "decode", step(), "weight_bytes") - plan_of(found, "decode", step(), "weight_bytes")
    assert read == pytest.approx(2 * 32 * (0.5 * 3 * 4096 * 11008 + 0.75 * 2 * 4096**2))


def test_report_states_the_expected_speedup_of_techniques():
    asked = {"batch": 8, "prompt": 512, "gen": 64}
    bare, drafted, unknown = (
        analyze("llama-3.1-8b", device, **asked, techniques=techniques)
        for device, techniques in (("h100-sxm", ()), ("h100-sxm", ["medusa"]), ("tpu-v5e", ["medusa"]))
    )
    assert bare.effect is None
    gain = bare.generation.expected_latency_s / drafted.generation.expected_latency_s
    assert drafted.effect.expected_speed_up == pytest.approx(gain)
    assert f"x as fast at the bound ({gain:.3g}x expected)" in " ".join(REPORT.text(drafted).split())
    assert unknown.effect.expected_speed_up is None


# Attention and cache.


@pytest.mark.parametrize(("asked", "window"), [("window:size=64", 64), ("streaming:sinks=4,window=60", 64)])
def test_a_window_is_a_model_that_has_one(tmp_path, asked, window):
    config = {"model_type": "mistral", "sliding_window": window}
    same(setting(asked), setting(of=made(tmp_path, **config)))


def test_a_window_that_a_model_has_stays_where_it_is_narrower():
    found = setting("window:size=3000", of="gemma-2-9b")
    masks = {str(op.heads.mask) for _, op in found.graph if op.kind == "attention"}
    assert masks == {"window 3000"}  # gemma 2 has 4096 and all
    assert {str(op.heads.mask) for _, op in setting("window:size=5000", of="gemma-2-9b").graph
            if op.kind == "attention"} == {"window 4096", "window 5000"}  # fmt: skip


def test_h2o_decode_steps_read_the_retained_keys_only():
    found, bare = setting("h2o:heavy=100,recent=28"), setting()
    prompt = Workload.prefill(batch=1, prompt=1000)
    for field in ("ops", "activation_bytes", "weight_bytes", "kv_bytes"):
        assert plan_of(found, "prefill", prompt, field) == plan_of(bare, "prefill", prompt, field)
    full, short = (plan_of(found, "decode", step(n), "kv_bytes") for n in (2000, 129))
    assert full == short == plan_of(bare, "decode", step(129), "kv_bytes")
    assert found.footprint.parts(batch=2, prompt=1000, gen=9)[1] == 2 * 128 * TOKEN


@pytest.mark.parametrize(("quant", "part"), [(None, 1 / 2), ("nvfp4", 13.5 / 18)])
def test_sparse_product_speedup_follows_the_sparse_rates_of_the_file(quant, part):
    """B300 gains a third from sparsity in fp4, and twice in other types."""

    def ops(techniques):
        found = analyze("llama-3.1-8b", "b300", quant=quant, techniques=techniques).to_frame()
        return found[(found.phase == "prefill") & (found["name"] == "gate_proj")].ops.item()

    assert ops(["sparsity"]) / ops([]) == pytest.approx(part)


def test_blocks_of_keys_by_density():
    found, bare = setting("block-sparse:density=0.25,block=0"), setting()
    pairs = 32 * 32 * 1000 * 1001 / 2 * (4 * 128 + 5)
    asked = Workload.prefill(batch=1, prompt=1000)
    assert plan_of(bare, "prefill", asked, "ops") - plan_of(found, "prefill", asked, "ops") == pytest.approx(
        0.75 * pairs
    )
    read = (plan_of(f, "decode", step(1000), "kv_bytes") for f in (bare, found))
    assert next(read) - next(read) == 750 * TOKEN
    assert found.footprint.parts(batch=1, prompt=99, gen=1)[1] == 100 * TOKEN


def test_choosing_blocks_compares_each_query_with_the_extremes_of_16_keys():
    """In each of 32 layers: 2 x 2 x 128 OPs for each of 32 heads and block of 16 keys, and one to compare its score;
    the least and the largest of 32 x 128 elements of 2 bytes of each block are read, and held beside the cache.
    """
    chosen, free = setting("block-sparse:density=0.25"), setting("block-sparse:density=0.25,block=0")
    ops, read = (plan_of(chosen, "decode", step(1000), what) - plan_of(free, "decode", step(1000), what)
                 for what in ("ops", "kv_bytes"))  # fmt: skip
    assert ops == pytest.approx(32 * 32 * (2 * 2 * 128 + 1) * 1000 / 16)
    assert read == pytest.approx(32 * 2 * 32 * 128 * 2 * 1000 / 16)
    held = [one.footprint.parts(batch=1, prompt=99, gen=1)[1] for one in (chosen, free)]
    assert held[0] - held[1] == pytest.approx(32 * 2 * 32 * 128 * 2 * 100 / 16)


def test_strided_attention_adds_every_nth_earlier_key():
    """Sparse Transformer: a window of 64, of the 936 keys before it one in 64; and the new token is written."""
    found = setting("sparse-pattern:local=64,globals=0,random=0,stride=64")
    assert plan_of(found, "decode", step(1000), "kv_bytes") == pytest.approx((64 + 936 / 64 + 1) * TOKEN)


def test_global_tokens_of_an_encoder_attend_to_all():
    """Longformer in BERT: 64 keys on either side and 32 global ones; 32 global queries attend to all 4096 keys."""
    bare, found = (
        Setting.of("bert-base", "a100-sxm-80gb", techniques=names)
        for names in ((), ("sparse-pattern:local=128,globals=32,random=0",))
    )
    reach = (128 + 2 * 32) // 2
    near = sum(min(4095, place + reach) - max(0, place - reach) + 1 for place in range(4096))
    whole = Workload.prefill(batch=1, prompt=4096)
    saved = plan_of(bare, "prefill", whole, "ops") - plan_of(found, "prefill", whole, "ops")
    assert saved == pytest.approx(12 * 12 * (4096**2 - near) * (4 * 64 + 5))


@pytest.mark.parametrize(
    ("asked", "keys", "directions"),
    [
        ("lsh,size=16,rounds=4", 2 * 16 * 4, 4 * 16 / 2),
        ("routing,clusters=50", 1000 / 50, 50),
        ("sinkhorn,size=32", 2 * 32, 0),
    ],
)
def test_clusters_of_keys(asked, keys, directions):
    """A step reads the keys of its cluster and writes one; a head compares its query with directions or centroids."""
    found = setting(f"clustered-attention:by={asked}")
    assert plan_of(found, "decode", step(1000), "kv_bytes") == pytest.approx((keys + 1) * TOKEN)
    attention = 32 * 32 * (4 * 128 + 5)
    bare = plan_of(setting(), "decode", step(1000), "ops") - attention * 1000
    choosing = plan_of(found, "decode", step(1000), "ops") - bare - attention * keys
    assert choosing == pytest.approx(32 * 32 * (2 * 128 + 1) * directions)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (
            "eagle:version=1,draft_vocabulary=8000",
            "draft_vocabulary has no effect with version=1; give version=3 or leave it out",
        ),
        ("clustered-attention:clusters=50", "clusters has no effect with by=lsh; give by=routing or leave it out"),
        (
            "clustered-attention:by=sinkhorn,rounds=2",
            "rounds has no effect with by=sinkhorn; give by=lsh or leave it out",
        ),
        (
            "clustered-attention:by=routing,size=3",
            "size has no effect with by=routing; give by=lsh or sinkhorn or leave it out",
        ),
    ],
)
def test_parameters_without_effect_are_refused(asked, said):
    with pytest.raises(InputError, match=f"^{asked.partition(':')[0]}: {said}$"):
        setting(asked)


@pytest.mark.parametrize(
    ("asked", "tokens"), [("paged:block=16", 112), ("paged:block=1", 101), ("static:length=4096", 4096)]
)
def test_pages_of_the_cache(asked, tokens):
    found = setting(asked)
    assert found.footprint.parts(batch=3, prompt=100, gen=1)[1] == 3 * tokens * TOKEN
    (waste,) = found.techniques[0].findings(found, step(101))
    assert waste.value == pytest.approx(1 - 101 / tokens)


def test_a_cache_in_two_bits_with_its_last_tokens_whole():
    found, bare = setting("kv-quant:bits=2,group=32,residual=128"), setting()
    tokens = 1000
    low = TOKEN * (tokens - 128) * 3 / 16 + TOKEN * 128  # 2 bits, and 32 of scale and zero point for 32
    assert found.footprint.parts(batch=2, prompt=tokens - 1, gen=1)[1] == pytest.approx(2 * low)
    written = TOKEN * 3 / 16
    assert plan_of(found, "decode", step(tokens), "kv_bytes") == pytest.approx(low + written)
    asked = Workload.prefill(batch=1, prompt=500)
    assert plan_of(found, "prefill", asked, "time_s") == plan_of(bare, "prefill", asked, "time_s")


def test_layers_that_borrow_keys_make_none():
    found, bare = setting("cross-layer-kv:every=2"), setting()
    asked = Workload.prefill(batch=1, prompt=100)
    ops = (plan_of(f, "prefill", asked, "ops") for f in (bare, found))
    assert next(ops) - next(ops) == 16 * 100 * (2 * 2 * 4096**2 + 3 * 4096)
    assert found.footprint.parts(batch=1, prompt=99, gen=1)[1] == 50 * TOKEN
    assert weight_bytes(bare.graph) - weight_bytes(found.graph) == 16 * 2 * 2 * 4096**2
    written = plan_of(bare, "decode", step(), "kv_bytes") - plan_of(found, "decode", step(), "kv_bytes")
    assert written == TOKEN / 2  # they read as before


def test_notes_name_converted_weights_of_fused_products():
    analyses = [analyze(LLAMA, A100, quant="W4A8g128", techniques=names) for names in ((), ("fusion",))]
    bare, fused = ([note for note in one.notes if "are converted" in note] for one in analyses)
    assert fused == bare != []


@pytest.mark.parametrize("quant", [None, "fp8", "W32A32"])
def test_fused_products_have_the_precisions_that_advice_offers_without_fusion(quant):
    bare, fused = (Setting.of(LLAMA, "h100-sxm", quant=quant, techniques=names) for names in ((), ("fusion",)))
    for offered in (lower_bits, deployed_precisions):
        assert [one.name for one in offered(fused)] == [one.name for one in offered(bare)]


def test_one_projection_of_queries_keys_and_values_gets_narrower():
    found, bare = setting("cross-layer-kv:every=12", of="gpt2"), setting(of="gpt2")
    assert weight_bytes(bare.graph) - weight_bytes(found.graph) == 11 * 4 * (2 * 768 * 768 + 2 * 768)


def test_linear_attention_costs_the_same_however_long_the_context():
    found = setting("linear-attention")
    assert found.decode_plan.time_s(step(100)) == found.decode_plan.time_s(step(100_000))
    state = 4 * 32 * 32 * 128 * 129
    assert found.footprint.parts(batch=3, prompt=5000, gen=9)[1] == 3 * state


def test_a_latent_instead_of_keys_and_values():
    found, bare = setting("mla:rank=512,rope=64"), setting()
    assert found.footprint.parts(batch=1, prompt=99, gen=1)[1] == 100 * 32 * (512 + 64) * 2
    layer = 4096 * 4096 + 4096 * (512 + 64) + 512 + 512 * 32 * (64 + 128)
    assert weight_bytes(bare.graph) - weight_bytes(found.graph) == 2 * 32 * (3 * 4096**2 - layer)
    names = [op.name for block in found.decode_graph.blocks if block.layers for op in block.operators]
    assert "q_absorb" in names  # a step does not expand the cache
    assert "kv_b_proj" in [op.name for _, op in found.graph]


def test_mixtures_of_keys_are_made_of_each_and_kept():
    found, bare = setting("low-rank-attention:rank=100"), setting()
    assert found.footprint.parts(batch=3, prompt=1000, gen=9)[1] == 3 * 100 * TOKEN
    seen = 4 * 128 + 5  # OPs of a pair and head
    ops = plan_of(bare, "decode", step(1000), "ops") - plan_of(found, "decode", step(1000), "ops")
    assert ops == 32 * (32 * 900 * seen - 2 * 100 * 2 * 4096)


# Prompts.


def test_a_compressed_prompt_is_a_shorter_one():
    found = setting("prompt-compression:ratio=0.25").schedule(batch=2, prompt=400, gen=9)
    short = setting().schedule(batch=2, prompt=100, gen=9)
    assert (found.ttft_s, found.decoding_s) == (short.ttft_s, short.decoding_s)
    asked = {"batch": 2, "gen": 9}
    parts = setting("prompt-compression:ratio=0.25").footprint.parts(prompt=400, **asked)
    assert parts == setting().footprint.parts(prompt=100, **asked)


def test_prompt_compression_scorer_prefills_the_whole_prompt():
    scored = setting("prompt-compression:ratio=0.5,scorer=llama-68m").schedule(batch=1, prompt=400, gen=2)
    small = Setting.of("llama-68m", A100, quant="W16A16")
    plain = setting("prompt-compression:ratio=0.5").schedule(batch=1, prompt=400, gen=2)
    assert scored.ttft_s - plain.ttft_s == pytest.approx(
        float(small.plan.time_s(Workload.prefill(batch=1, prompt=400))), rel=1e-9
    )


def test_a_scorer_with_several_passes_keeps_a_budget():
    """LLMLingua: one pass chooses among examples, another among tokens."""
    asked = {"batch": 1, "prompt": 400, "gen": 2}
    plain = setting().schedule(batch=1, prompt=100, gen=2)
    once, twice = (
        setting(f"prompt-compression:budget=100,scorer=llama-68m,passes={n}").schedule(**asked) for n in (1, 2)
    )
    assert (twice.ttft_s - plain.ttft_s) == pytest.approx(2 * (once.ttft_s - plain.ttft_s))
    assert twice.decoding_s == plain.decoding_s
    assert "passes=2 needs a scorer" in refused("prompt-compression:passes=2")


def test_idle_matrix_units_could_train_the_draft():
    """6 OPs for each parameter and token (OSD): what a verification leaves of the A100's 312 TOP/s."""
    found = setting(SPECULATIVE)
    told = {f.key: f.value for f in found.techniques[0].findings(found, found.step(step()))}
    time_s = float(found.decode_plan.time_s(found.step(step())))
    idle = found.hardware.rates[matrix("fp16")] * time_s - plan_of(found, "decode", found.step(step()), "ops")
    assert told["idle_training_tokens"] == pytest.approx(idle / (6 * load_model("llama-68m").parameters))


def test_passages_make_a_prompt_longer():
    found = setting("rag:passages=3,tokens=100,vectors=0").schedule(batch=1, prompt=400, gen=9)
    assert found.latency_s == setting().schedule(batch=1, prompt=700, gen=9).latency_s


@pytest.mark.parametrize(
    ("scheme", "bits", "table"), [("aqlm", 2, 65536 * 8), ("pv-tuning", 2, 65536 * 8), ("gobo", None, 8)]
)
def test_tables_of_values_are_read_with_each_matrix(scheme, bits, table):
    """AQLM's 7B has 2.29 bits with one codebook of 16 bits for each matrix (arXiv:2401.06118, table 1)."""
    found = setting(f"quantized:scheme={scheme}")
    tables = [w for _, op in found.graph for w in op.weights if w.name.endswith(".table")]
    assert {w.numel for w in tables} == {table}
    assert {op.name for _, op in found.graph if any(w in tables for w in op.weights)} == {
        "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj",
    }  # fmt: skip
    if bits:
        plain = setting(quant=f"W{bits}A16")
        assert weight_bytes(found.graph) - weight_bytes(plain.graph) == 7 * 32 * 2 * table
        matrices = 32 * (4 * 4096**2 + 3 * 4096 * 11008)
        assert round(bits + 7 * 32 * 16 * table / matrices, 2) == 2.29
        step = Workload.decode(batch=1, kv_len=512)
        assert found.decode_plan.time_s(step) > 1.08 * plain.decode_plan.time_s(step)
        halves = setting(f"quantized:scheme={scheme}", layout="tp=2").graph  # each device has the whole table
        assert {w.numel for _, op in halves for w in op.weights if w.name.endswith(".table")} == {table}


def test_a_table_of_each_row_and_scales_of_each_plane():
    rows = setting("quantized:scheme=squeezellm").graph
    tables = [w for _, op in rows for w in op.weights if w.name.endswith(".table")]
    assert {w.shape for w in tables} == {(4096, 16), (11008, 16)}
    planes, plain = (weight_bytes(setting(f"quantized:scheme={name}").graph) for name in ("lut-gemm", "gptq"))
    assert planes > 1.09 * plain


def test_a_search_reads_all_vectors_once_for_all_questions():
    asked = {"batch": 4, "prompt": 400, "gen": 9}
    ttft = [setting(f"rag:vectors={n}").schedule(**asked).ttft_s for n in (0, 1_000_000)]
    nbytes = 2 * 1_000_000 * 768 + 4 * 2 * (768 + 1_000_000)  # vectors, questions and scores
    assert ttft[1] - ttft[0] == pytest.approx(nbytes / A100.bandwidth(), rel=1e-6)
    held = [analyze(LLAMA, A100, **asked, techniques=[f"rag:vectors={n}"]).memory.weight_bytes for n in (0, 1_000_000)]
    assert held[1] - held[0] == 2 * 1_000_000 * 768
    encoded = setting("rag:vectors=0,embedder=bge-m3").schedule(**asked).ttft_s
    alone = setting(of="bge-m3", quant="W16A16").plan.time_s(Workload.prefill(batch=4, prompt=400))
    assert encoded - ttft[0] == pytest.approx(float(alone), rel=1e-6)


def test_expected_times_of_projections_are_their_own_beside_a_choice_of_blocks():
    """Not those of a layer of sparse attention that was measured as one, of another model."""
    sparse, bare = (analyze(LLAMA, A100, techniques=some, prompt=3999) for some in (["block-sparse"], []))
    times = [{op.name: op.expected_time_s for op in one.phases.decode.operators} for one in (sparse, bare)]
    for name in ("q_proj", "k_proj", "o_proj"):
        assert times[0][name] == times[1][name]
    assert sparse.generation.expected_tpot_high_s < 2 * sparse.generation.expected_tpot_s
    assert sparse.generation.expected_tpot_s < bare.generation.expected_tpot_s


def test_cached_prefix_is_not_prefilled():
    found = setting("prefix-cache:hit=0.75")
    chunk = setting().plan.time_s(Workload.chunk(batch=2, chunk=100, past=300))
    assert found.schedule(batch=2, prompt=400, gen=1).ttft_s == chunk
    assert found.footprint.parts(batch=2, prompt=400, gen=8)[1] == (300 + 2 * 108) * TOKEN
    alone = setting("prefix-cache:hit=0.75,common=false")
    assert alone.footprint.parts(batch=2, prompt=400, gen=8)[1] == 2 * 408 * TOKEN


@pytest.mark.parametrize(
    ("other", "tokens"),
    [
        ("best-of:n=4", 300 + 2 * 100 + 8 * 8),
        ("best-of:n=4,prompt=read-once", 300 + 2 * 100 + 8 * 8),
        ("best-of:n=4,prompt=copied", 8 * 408),
        ("beam:width=2", 300 + 2 * 100 + 4 * 8),
        ("skeleton:points=4,outline=40,instruction=20", 300 + 2 * (100 + 40) + 8 * (20 + 2)),
        ("best-of:n=4+rag:passages=1,tokens=400", 600 + 2 * 200 + 8 * 8),
    ],
)
def test_outputs_with_a_common_prefix_store_it_once(other, tokens):
    """300 tokens of both prompts, the other 100 of each, and what each answer has by itself."""
    asked = ("prefix-cache:hit=0.75", *other.split("+"))
    for order in (asked, asked[::-1]):
        held = setting(*order).footprint.parts(batch=2, prompt=400, gen=8)[1]
        assert held == pytest.approx(tokens * TOKEN)


@pytest.mark.parametrize(("prompt", "chunk"), [(1000, 300), (1000, 1000), (7, 100), (1024, 512)])
def test_chunks_do_the_work_of_the_whole_and_read_the_cache_again(prompt, chunk):
    found, bare = setting(f"chunked-prefill:tokens={chunk}"), setting()
    (run,) = found.schedule(batch=2, prompt=prompt, gen=1).first
    assert run.passes == -(-prompt // chunk)
    assert float(run.amount("ops")) == pytest.approx(
        plan_of(bare, "prefill", Workload.prefill(batch=2, prompt=prompt), "ops")
    )
    ends = [*range(chunk, prompt, chunk), prompt]
    whole = [
        bare.plan.time_s(Workload.chunk(batch=2, chunk=e - s, past=s)) for s, e in zip([0, *ends], ends, strict=False)
    ]
    assert run.time_s <= sum(whole)  # logits are those of the last chunk
    assert run.time_s == pytest.approx(sum(whole), rel=0.02)


def test_chunks_read_the_cache_again():
    """Keys of 1000 tokens are written once, and read by chunks that end at 300, 600, 900 and 1000."""
    found = setting("chunked-prefill:tokens=300")
    (told,) = found.techniques[0].findings(found, step(1001, prompt=1000))
    assert told.value == pytest.approx((300 + 600 + 900 + 1000 + 1000) / (1000 + 1000))


def test_prompts_of_all_lengths_packed_and_padded():
    """100, 100, 300 and 1000 tokens, of four prompts."""
    plan = setting().plan
    packed = setting(written("lengths")).schedule(batch=4, prompt=7, gen=3)
    asked = Workload.prefill(batch=2, prompt=100) + Workload.prefill(batch=1, prompt=300)
    assert packed.ttft_s == pytest.approx(float(plan.time_s(asked + Workload.prefill(batch=1, prompt=1000))), rel=1e-12)
    steps = [
        step(100 + n, batch=2, prompt=100) + step(300 + n, prompt=300) + step(1000 + n, prompt=1000) for n in (1, 2)
    ]
    assert packed.decoding_s == pytest.approx(sum(float(plan.time_s(one)) for one in steps), rel=1e-12)
    padded = setting(f"{written('lengths')},packed=false").schedule(batch=4, prompt=7, gen=3)
    assert padded.latency_s == setting().schedule(batch=4, prompt=1000, gen=3).latency_s
    (found,) = setting(written("lengths")).techniques[0].findings(setting(), step())
    assert found.value == 1 - 1500 / 4000
    cached = [setting(f"{written('lengths')},packed={packed}").footprint.parts(batch=4, prompt=7, gen=3)[1]
              for packed in ("true", "false")]  # fmt: skip
    assert cached == [(1500 + 4 * 3) * TOKEN, 4 * 1003 * TOKEN]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("12\nmany\n", "2: must be a whole number from 1 to 999999999; got 'many'"),
        ("\n", " must have from 1 to 1000 different lengths"),
    ],
)
def test_error_in_a_lengths_file_names_its_line(tmp_path, text, error):
    path = tmp_path / "lengths.txt"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as caught:
        setting(f"lengths:file={path}").schedule(batch=1, prompt=9, gen=2)
    assert f"{path}:{error}" in str(caught.value)


# Compression.


def test_2_of_4_weights_by_hand():
    found, bare = setting("sparsity"), setting()
    saved = weight_bytes(bare.graph) - weight_bytes(found.graph)
    assert saved == 2 * MATRICES * (1 - 0.5625)
    asked = Workload.prefill(batch=1, prompt=512)
    ops = (plan_of(f, "prefill", asked, "ops") for f in (bare, found))
    assert next(ops) - next(ops) == 512 * MATRICES


def test_sparse_units_are_needed():
    for asked, hardware in (("sparsity", "v100-sxm2-32gb"), ("sparsity:n=1", "a100-sxm-80gb")):
        found = setting(asked, hardware=load_hardware(hardware))
        same(found, setting(hardware=load_hardware(hardware)))
        (note,) = found.techniques[0].notes(found)
        assert "stored and computed as if dense" in note
    assert setting("sparsity").techniques[0].notes(setting("sparsity")) == ()


def test_formats_of_unstructured_zeros():
    dense, even = setting("pruning:sparsity=0.5"), setting("pruning:sparsity=0.0625,format=bitmap")
    same(dense, setting())
    assert weight_bytes(even.graph) == weight_bytes(setting().graph)  # a bit for each of 16
    index = setting("pruning:sparsity=0.5,format=index")
    assert weight_bytes(index.graph) == weight_bytes(setting().graph)  # 16 bits for each of the half that is left
    asked = Workload.prefill(batch=1, prompt=512)
    assert plan_of(even, "prefill", asked, "ops") == plan_of(setting(), "prefill", asked, "ops")


def test_fewer_neurons_are_a_narrower_model(tmp_path):
    same(setting("structured-pruning:ffn=0.25"), setting(of=made(tmp_path, intermediate_size=2752)))


def test_fewer_heads_are_a_model_with_fewer(tmp_path):
    config = {"num_attention_heads": 8, "num_key_value_heads": 8}
    same(setting("structured-pruning:heads=0.25"), setting(of=made(tmp_path, **config)))


def test_fewer_groups_are_a_model_with_fewer(tmp_path):
    whole = made(tmp_path, num_key_value_heads=8)
    config = {"num_attention_heads": 16, "num_key_value_heads": 4}
    same(setting("structured-pruning:heads=0.5", of=whole), setting(of=made(tmp_path, **config)))


def test_a_part_of_the_width_is_a_narrower_model(tmp_path):
    same(setting("structured-pruning:hidden=0.5"), setting(of=made(tmp_path, hidden_size=2048)))
    assert "hidden cannot narrow permute of mixtral-8x7b; drop hidden" in refused(
        "structured-pruning:hidden=0.5", of="mixtral-8x7b"
    )


def test_fewer_layers_are_a_shallower_model(tmp_path):
    same(setting("structured-pruning:layers=0.75"), setting(of=made(tmp_path, num_hidden_layers=24)))


def test_layers_at_the_ends_stay_whole():
    thin = "structured-pruning:heads=0.5,ffn=0.5"
    of = [setting(*some).graph.parameters for some in ((), (thin,), (f"{thin},first=3,last=5",))]
    assert of[0] - of[2] == (of[0] - of[1]) * 24 / 32
    assert "first and last leave none of the 32 layers to prune" in refused(
        "structured-pruning:heads=0.5,first=16,last=16"
    )


def test_a_product_of_thin_matrices_breaks_even_at_its_rank():
    even = setting("low-rank:rank=2048,targets=q_proj")
    assert weight_bytes(even.graph) == weight_bytes(setting().graph)
    finding = even.techniques[0].findings(even, step())[0]
    assert finding.value == 4096 * 4096 / 8192
    half = setting("low-rank:rank=1024,targets=q_proj")
    assert weight_bytes(setting().graph) - weight_bytes(half.graph) == 2 * 32 * 2 * 1024 * 4096
    ops = (plan_of(f, "decode", step(), "ops") for f in (setting(), half))
    assert next(ops) - next(ops) == 2 * 32 * 2 * 1024 * 4096


@pytest.mark.parametrize(("batch", "adapters"), [(1, 1), (1, 50), (8, 50)])
def test_adapters_beside_each_matrix(batch, adapters):
    found, bare = setting(f"lora:rank=8,adapters={adapters}"), setting()
    one = 32 * 8 * (4 * 8192 + 3 * (4096 + 11008))
    assert weight_bytes(found.graph) - weight_bytes(bare.graph) == 2 * adapters * one
    asked = step(batch=batch)
    ops, read = (
        plan_of(found, "decode", asked, f) - plan_of(bare, "decode", asked, f) for f in ("ops", "weight_bytes")
    )
    assert ops == pytest.approx(2 * one * batch)
    assert read == pytest.approx(2 * one * adapters * (1 - (1 - 1 / adapters) ** batch))
    same(setting("lora:merged=true"), bare)


@pytest.mark.parametrize("technique", ["lora:rank=8", "low-rank:rank=8"])
def test_several_targets_sum_the_single_ones(technique):
    bare, *alone, both = (
        weight_bytes(setting(*asked).graph)
        for asked in ((), *((f"{technique},targets={t}",) for t in ("q_proj", "v_proj", "q_proj+v_proj")))
    )
    assert both - bare == sum(each - bare for each in alone) != 0


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_scheme_is_its_formats(scheme):
    own = SCHEMES[scheme]
    found = setting(f"quantized:scheme={scheme}")
    plain = setting(*map(str, own.techniques), quant=own.quant or None)
    assert found.quantization == plain.quantization
    if not (own.outliers or own.rotated or own.rotates_all or own.table or own.row_table):
        same(found, plain)
    assert found.bare().quantization == setting().quantization
    (note,) = found.techniques[0].notes(found)
    assert note == f"{scheme} is {own} ({own.source})"
    assert re.search(r"arXiv:\d{4}\.\d{5}|NVIDIA Blackwell|OCP|no quantization", own.source)


def test_a_scheme_that_is_more_than_formats_is_those_techniques():
    same(setting("quantized:scheme=kivi"), setting("kv-quant:bits=2,group=32,residual=128"))
    same(setting("quantized:scheme=kivi", quant="W4A16g128"), setting("kv-quant", quant="W4A16g128"))
    same(setting("quantized:scheme=zeroquant-v2"), setting("lora:rank=8", quant="W4A16g128"))
    assert refused("quantized:scheme=kivi", "kv-quant") == "quantized: kivi includes kv-quant; drop kv-quant"


def test_rotations_around_each_linear():
    found, plain = setting("quantized:scheme=quip"), setting(quant="W2A16")
    extra = plan_of(found, "decode", step(), "ops") - plan_of(plain, "decode", step(), "ops")
    d, inner = 4096 * np.log2(4096), 11008 * np.log2(11008)
    assert extra == pytest.approx(32 * (8 * d + 3 * (d + inner)))
    extra = plan_of(setting("quantized:scheme=spinquant"), "decode", step(), "ops")
    assert extra - plan_of(setting(quant="W4A4KV4"), "decode", step(), "ops") == pytest.approx(32 * inner)


def test_other_precisions_for_some_layers_go_with_techniques():
    whole, some = (setting("fusion", quant=quant) for quant in ("W4A16", "W4A16,layers.0-3=W16A16"))
    assert weight_bytes(some.graph) - weight_bytes(whole.graph) == pytest.approx(4 / 32 * MATRICES * 1.5)


def test_outliers_are_a_second_product():
    low, some, wide = setting(quant="W8A8"), setting("quantized:scheme=llm.int8,outliers=0.25"), setting()
    asked = Workload.prefill(batch=1, prompt=2048)
    times = [plan_of(f, "prefill", asked, "time_s") for f in (low, some, wide)]
    assert times[0] < times[1] < times[2]
    assert plan_of(some, "prefill", asked, "ops") == pytest.approx(plan_of(low, "prefill", asked, "ops"))
    assert weight_bytes(some.graph) - weight_bytes(low.graph) == pytest.approx(MATRICES / 4)


def test_a_rotation_is_d_log_d():
    found, plain = setting("quantized:scheme=quarot"), setting(quant="W4A4KV4")
    extra = plan_of(found, "decode", step(), "ops") - plan_of(plain, "decode", step(), "ops")
    assert extra == pytest.approx(32 * (4096 * np.log2(4096) + 11008 * np.log2(11008)))


# Launches.


@pytest.mark.parametrize(("method", "ops"), [("greedy", 1), ("temperature", 8), ("top-p", 8 + np.log2(32000))])
def test_choosing_a_token_reads_the_logits(method, ops):
    found, bare = setting(f"sampling:method={method}"), setting()
    extra = {name: plan_of(found, "decode", step(batch=3), name) - plan_of(bare, "decode", step(batch=3), name)
             for name in ("ops", "activation_bytes")}  # fmt: skip
    assert extra["ops"] == pytest.approx(3 * 32000 * ops)
    assert extra["activation_bytes"] == pytest.approx(3 * (32000 * 2 + 4))


def test_splits_of_attention_are_written_and_read():
    found, bare = setting("split-kv:splits=8"), setting()
    moved = plan_of(found, "decode", step(), "activation_bytes") - plan_of(bare, "decode", step(), "activation_bytes")
    assert moved == 32 * 2 * 32 * 8 * (128 + 2) * 4
    asked = Workload.prefill(batch=1, prompt=100)
    assert plan_of(found, "prefill", asked, "time_s") == plan_of(bare, "prefill", asked, "time_s")
    (busy,) = setting("split-kv:splits=2").techniques[0].findings(found, step())
    assert busy.value == 2 * 32 / 108


@pytest.mark.parametrize(
    ("batch", "prompt", "least", "most"), [(1, 16384, 2, 4), (1, 512, 0.7, 1.5), (4, 16384, 0.95, 1.02)]
)
def test_splits_are_expected_to_gain_where_cores_idle(batch, prompt, least, most):
    """FlashDecoding gains with few sequences and long contexts (pytorch.org/blog/flash-decoding): 32 of 108 cores are
    busy without splits and all with 4; with four sequences all are busy without.
    """
    asked = {"batch": batch, "prompt": prompt, "gen": 2}
    whole, parts = (
        sum(
            op.expected_time_s
            for op in analyze("llama-2-7b", "a100-sxm-80gb", techniques=[one], **asked).phases.decode.operators
            if op.name.startswith("attention")
        )
        for one in ("split-kv:splits=1", "split-kv:splits=4")
    )
    assert least < whole / parts < most


def test_a_layer_is_seven_launches():
    found = setting("fusion")
    (layer,) = (block for block in found.graph.blocks if block.layers)
    assert [op.name for op in layer.operators] == [
        "attn_norm", "q+k+v+rope", "attention", "o+add", "mlp_norm", "gate+up+act", "down+add",
    ]  # fmt: skip


def test_fusing_moves_less_and_computes_the_same():
    found, bare = setting("fusion"), setting()
    asked = Workload.prefill(batch=1, prompt=1000)
    for field in ("ops", "weight_bytes", "kv_bytes"):
        assert plan_of(found, "prefill", asked, field) == pytest.approx(plan_of(bare, "prefill", asked, field))
    saved = plan_of(bare, "prefill", asked, "activation_bytes") - plan_of(found, "prefill", asked, "activation_bytes")
    rows = 2 * 1000 * 32
    hidden, inner = 4096 * rows, 11008 * rows
    # inputs of q, k, v and of gate, up read once; q and k, gate and up, o and down not written and read again
    assert saved == pytest.approx(2 * hidden + hidden + 2 * 2 * hidden + 2 * 2 * inner + 2 * 2 * hidden)
    assert plan_of(found, "prefill", asked, "time_s") < plan_of(bare, "prefill", asked, "time_s")


# Laws.


@pytest.mark.parametrize("name", first_fast(SURFACE, "every technique on every kind of model", 6))
def test_every_technique_runs_or_is_refused_in_a_line(name):
    """On every kind of network: graphs that can be run as they stand, and numbers that are numbers."""
    device = load_hardware("h200-sxm")
    run = 0
    for technique in techniques():
        found, why = tried(written(technique), of=name, hardware=device)
        if found is None:
            assert why.startswith(f"{technique}: ")
            continue
        found.graph.check()
        found.decode_graph.check()
        schedule = found.schedule(batch=2, prompt=700, gen=5)
        assert 0 < float(schedule.latency_s) < np.inf, technique
        assert float(found.footprint.total_bytes(batch=2, prompt=700, gen=5)) > 0, technique
        run += 1
    assert run >= 5


@pytest.mark.parametrize("layout", ["tp=2", "tp=2 dp=2", "cp=2", "pp=2"])
def test_techniques_on_several_devices(layout):
    run = 0
    for technique in techniques():
        found, why = tried(written(technique), layout=layout)
        if found is None:
            assert why
            continue
        found.graph.check()
        found.decode_graph.check()
        assert float(found.schedule(batch=4, prompt=700, gen=5).latency_s) > 0
        run += 1
    assert run >= 8


def amounts(found):
    """Everything that counts, of a prefill, a step, memory and the whole."""
    sizes = {"batch": 2, "prompt": 700, "gen": 9}
    passes = (("prefill", found.prefill(Workload.prefill(batch=2, prompt=700))),
              ("decode", found.step(step(701, batch=2, prompt=700))))  # fmt: skip
    of_each = [plan_of(found, phase, asked, name) for phase, asked in passes for name in (*SUMS, "time_s")]
    return [*of_each, float(found.schedule(**sizes).latency_s), *map(float, found.footprint.parts(**sizes))]


SUMS = ("ops", "weight_bytes", "activation_bytes", "kv_bytes")
EQUALS = [pair for pair in combinations(techniques(), 2)
          if techniques()[pair[0]].order == techniques()[pair[1]].order]  # fmt: skip


@settings(max_examples=60)
@given(st.sampled_from(EQUALS))
def test_techniques_without_a_declared_order_commute(pair):
    found, _ = tried(*map(written, pair))
    if found:
        other = replace(found, techniques=found.techniques[::-1])
        assert amounts(found) == pytest.approx(amounts(other), rel=1e-12)


def test_techniques_that_do_not_commute_apply_in_a_fixed_order(tmp_path):
    narrow = made(tmp_path, num_attention_heads=16, num_key_value_heads=16)
    for one in ("mla", "linear-attention", "quantized:scheme=quarot", "low-rank:ratio=0.5"):  # of what is left
        same(setting("structured-pruning:heads=0.5", one), setting(one, of=narrow))
    lora, sparse = setting("lora"), setting("lora", "sparsity")
    assert weight_bytes(lora.graph) - weight_bytes(sparse.graph) == 2 * MATRICES * (1 - 0.5625)  # adapters are dense
    adapted = {op.name.removesuffix("_lora_in") for _, op in sparse.graph if op.name.endswith("_lora_in")}
    for others in (("early-exit",), ("contextual-sparsity",), ("mixture-of-depths",), ("quantized:scheme=llm.int8",)):
        found = setting("lora", *others).decode_graph
        for block in found.blocks:
            names = {op.name.removesuffix("_lora_in") for op in block.operators if op.name.endswith("_lora_in")}
            assert names == (adapted if block.layers else set()), others
    rotated = [op for _, op in setting("low-rank", "quantized:scheme=quarot").graph if op.name.endswith("_rotation")]
    assert {op.inputs[0].width for op in rotated} == {4096, 11008}  # not what is between factors
    reserved = setting("static:length=4096", "kv-quant").footprint.parts(batch=1, prompt=99, gen=1)[1]
    assert reserved == pytest.approx((4096 * 3 + 100 * 13) / 16 * TOKEN)  # all in few bits, and what is there in full


def test_adapters_of_a_quantized_cache_write_it_and_compute_in_16_bits():
    graph = setting("lora", quant="W4A16KV4").graph
    between = [t for _, op in graph if op.name.endswith("_lora_out") for t in op.inputs]
    assert {t.format.bits for t in between} == {16}
    assert {t.format.bits for _, op in graph for t in op.outputs if t.role is Role.KV_CACHE} == {4}


PAIRS = [pair for pair in combinations(techniques(), 2)]  # noqa: C416


@given(st.sampled_from(PAIRS))
def test_result_does_not_depend_on_the_order_of_techniques(pair):
    (one, why), (other, why_not) = (tried(*map(written, order)) for order in (pair, reversed(pair)))
    if one is None:
        assert why == why_not
        assert why.split(":")[0] in pair
        return
    asked = {"batch": 2, "prompt": 300, "gen": 9}
    assert one.graph == other.graph
    assert float(one.schedule(**asked).latency_s) == float(other.schedule(**asked).latency_s)
    assert one.footprint.parts(**asked) == other.footprint.parts(**asked)
    one.graph.check()
    one.decode_graph.check()


CHANGES = {  # - lowers, = conserves, + raises, ? depends: OPs, weights, activations, cache of prefill and of step;
    # weights, cache, activations held; passes of the model, OPs, bytes of an answer
    "beam": "==== ++++ =+= =++",
    "best-of": "==== ++++ =+= =++",
    "contextual-sparsity": "==== -?+= +== =-?",
    "denoising": "==== ==== === -??",
    "eagle": "==== ++++ ++= -+-",
    "early-exit": "==== -?-- === =--",
    "encoder-exit": "-?-= -?-= +=- =-?",
    "halting": "-?-- -?-- === =--",
    "kangaroo": "==== ++++ ++= -+-",
    "lookahead": "==== ++++ === -+?",
    "medusa": "==== ++++ +== -+-",
    "mixture-of-depths": "-=-- -?-- =-= =--",
    "mtp": "==== ++++ +++ -+-",
    "no-cache": "==== ++++ =-+ =++",
    "parallel-draft": "==== ++++ === -+-",
    "phrase-copying:phrases=1000,tau=2": "+++= ++++ +=? -?-",
    "retrieval": "==== ++++ === -+-",
    "sampling": "+=+= +=+= === =++",
    "self-speculative": "==== ++++ === -+-",
    "fork": "==== ++++ =-= ---",
    "skeleton": "==== ++++ =+= ?+?",
    "speculative:draft=llama-68m,alpha=0.7": "==== ++++ ++= -+-",
    "block-sparse": "-=++ -=+- =+= =--",
    "clustered-attention": "-=+= -=+- === =--",
    "cross-layer-kv": "---- ---- --= =--",
    "h2o:heavy=100,recent=28": "==== -==- =-= =--",
    "kv-quant": "==== ===- =-= ==-",
    "linear-attention": "-=+- -=+- =-= =--",
    "low-rank-attention": "-=+= -=+- =-= =--",
    "mla": "---- ?-+- --= =--",
    "paged": "==== ==== =?= ===",
    "sparse-pattern": "-=== -==- === =--",
    "segment-recurrence:memory=256,tokens=256": "-?-- +=+? =-? =??",
    "sparse-activation:share=0.25": "-+-- -?-? +?= =-?",
    "static": "==== ==== =+= ===",
    "streaming:sinks=4,window=508": "-=== -==- =-= =--",
    "token-pruning": "-?-- -?=- =-= =--",
    "window:size=512": "-=== -==- =-= =--",
    "lora": "+++= +++= +=+ =++",
    "low-rank": "--+= --+= -== =-?",
    "multiplicative": "+-+= +-+= -=? =+?",
    "pruning": "==== ==== === ===",
    "quantized:scheme=quarot": "+=+= +=+= ==+ =++",
    "sparsity": "--== --== -== =--",
    "structured-pruning:heads=0.5,ffn=0.5": "---- ---- --- =--",
    "expert-capacity": "+=+= +=+= ==+ =++",
    "fusion": "==-= ==-= ==- ==-",
    "launches": "==== ==== === ===",
    "split-kv": "==== +=+= === =++",
    "chunked-prefill": "-?-- ==== ==- ==+",
    "prefix-cache": "-?-- ==== =?- =--",
    "prompt-compression": "-?-- -==- =-- =--",
    "rag": "+?++ +==+ +++ =++",
}


def test_every_technique_without_a_file_parameter_declares_its_changes():
    assert {asked.partition(":")[0] for asked in CHANGES} == techniques().keys() - {"lengths"}


@pytest.mark.parametrize("asked", CHANGES)
@settings(max_examples=5)
@given(batch=st.integers(1, 256), prompt=st.integers(1000, 9000), gen=st.integers(33, 700))
def test_each_technique_changes_the_declared_quantities_only(asked, batch, prompt, gen):
    found = astuple(changes(changing(asked), batch=batch, prompt=prompt, gen=gen))
    for told, sign in zip(CHANGES[asked].replace(" ", ""), "".join(found), strict=True):
        assert told in ("?", sign), found


# Products that ranks of tensor parallelism replicate, as engines do: those to and from narrow tensors.
REPLICATED = {
    "contextual-sparsity": "predictor_in", "encoder-exit": "(pooler|head)_dense|classifier", "mla": "kv_a_proj",
    "lora": r"([qkv]|gate|up)_proj_lora_in|(o|down)_proj_lora_out",
    "low-rank": r"([qkv]|gate|up)_proj_in|(o|down)_proj", "sparse-activation:share=0.25": "activation_scores",
}  # fmt: skip


@pytest.mark.parametrize("asked", [name for name in CHANGES if overrides(parse_technique(name), "network", "lowered")
                                   and name != "multiplicative"])  # fmt: skip
def test_ranks_of_tensor_parallelism_divide_every_product(asked):
    """Two ranks together do the OPs of one, and again those of the products that are named above."""
    workload = Workload.decode(batch=4, kv_len=513)
    for phase in ("prefill", "decode"):
        ops = {}
        for layout in ("", "tp=2"):
            for row in setting(asked, of=OTHER.get(asked, LLAMA), layout=layout).plan_of(phase).operators:
                twice = re.fullmatch(REPLICATED.get(asked, "") + "|router|kv_a_proj|q_a_proj", row.operator.name)
                forms = [form for unit, form in row.work.amounts if unit.unit is Unit.MATRIX]
                key = layout, bool(twice)
                ops[key] = ops.get(key, 0.0) + row.block.repeat * sum(float(evaluate(f, workload)) for f in forms)
        assert 2 * ops["tp=2", False] == pytest.approx(ops["", False])
        assert ops.get(("tp=2", True), 0) == pytest.approx(ops.get(("", True), 0))


@cache
def changing(asked):
    return setting(asked, of=OTHER.get(asked, LLAMA))


OTHER = {"mtp": "deepseek-v3", "expert-capacity": "mixtral-8x7b", "denoising": "llada-8b",
         "encoder-exit": "bert-base-uncased"}  # fmt: skip


@given(st.text(max_size=30) | st.from_regex(r"(sparsity|window|speculative)(:[a-z]+=[a-z0-9.]+(,[a-z]+=[0-9.]+)?)?"))
def test_any_text_is_a_technique_or_one_line(text):
    try:
        found, why = parse_technique(text).name, "one line"
    except InputError as error:
        found, why = "", str(error)
    assert found in techniques() or len(why.splitlines()) == 1


NUMBERS = [(name, f.name) for name, kind in techniques().items() for f in fields(kind)
           if str(f.type).removesuffix(" | None") in ("int", "float")]  # fmt: skip


@pytest.mark.parametrize(("name", "parameter"), NUMBERS)
def test_parameters_at_their_limits(name, parameter):
    (f,) = (f for f in fields(techniques()[name]) if f.name == parameter)
    told = [part for part in GIVEN.get(name, "").split(",") if part and not part.startswith(f"{parameter}=")]
    whole = str(f.type).startswith("int")
    low, high = declaration(f).least, declaration(f).most if declaration(f).most < np.inf else 2**53 if whole else 1e6
    inside = (low + 1e-9, high - 1e-9) if declaration(f).open else (low, high)
    for value in inside:
        found, why = tried(f"{name}:{','.join((*told, f'{parameter}={value!r}'))}", of=OTHER.get(name, LLAMA))
        if found is None:
            assert f"must be {declaration(f).limits}" not in why
            continue
        assert 0 < float(found.schedule(batch=2, prompt=300, gen=5).latency_s) < np.inf
        assert 0 < float(found.footprint.total_bytes(batch=2, prompt=300, gen=5)) < np.inf
    for value in (low - 1, *([high + 1] if declaration(f).most < np.inf else [2**54] if whole else [])):
        _, why = tried(f"{name}:{','.join((*told, f'{parameter}={value!r}'))}", of=OTHER.get(name, LLAMA))
        assert why.startswith(f"{name}: {parameter} must be ")


def test_limits_of_parameters_are_held_by_objects_too():
    kind = techniques()["window"]
    with pytest.raises(InputError, match=r"^window: size must be at least 1; got 0$"):
        kind(size=0)
    assert [f.name for f in fields(kind)] == ["size"]
    assert replace(kind(size=4), size=5).tokens == 5


def test_json_text_and_scenario_agree(tmp_path, capsys):
    """The same question as options, as a file and in Python."""
    asked = ["--with", SPECULATIVE, "--with", "kv-quant:bits=4", "--batch", "4", "--prompt", "700"]
    path = tmp_path / "mine.yaml"
    lines = ("model: llama-2-7b", "hardware: a100-sxm-80gb", "batch: 4", "prompt: 700", "with:",
             "- kv-quant: {bits: 4}", "- speculative: {draft: llama-68m, gamma: 4, alpha: 0.7}")  # fmt: skip
    path.write_text("\n".join(lines), encoding="utf-8")
    told = []
    for question in ([LLAMA, "a100-sxm-80gb", *asked], ["--scenario", str(path)]):
        texts = []
        for form in ("json", "text"):
            assert main(["analyze", *question, "--format", form]) == 0
            texts.append(capsys.readouterr().out)
        told.append(texts)
    assert told[0] == told[1]
    document, text = json.loads(told[0][0]), " ".join(told[0][1].split())
    python = analyze(LLAMA, A100, batch=4, prompt=700, techniques=["kv-quant:bits=4", SPECULATIVE]).to_dict()
    assert document["effect"] == python["effect"]
    whole, effect = document["generation"], document["effect"]
    assert whole["latency_s"] == effect["result"]["latency_s"] == sum(run["time_s"] for run in effect["runs"])
    assert f"latency >= {seconds(whole['latency_s'])}" in text
    assert f"E2E {effect['speed_up']:.3g}x as fast" in text
    assert all(f"{run['name']} " in text and f"({seconds(run['time_s'])})" in text for run in effect["runs"])
    assert all(said in text for said in effect["said"])


def test_full_model_caches_keys_and_values_of_every_layer():
    assert kv_cache_bytes(setting().graph, batch=1, context=1) == TOKEN


def test_half_of_the_experts_is_a_model_with_four_of_eight(tmp_path):
    """Router, memory, OPs and weight traffic equal those of a config with half of the experts."""
    config = {"model_type": "mixtral", "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2,
              "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 1000, "num_experts_per_tok": 2,
              "torch_dtype": "float16"}  # fmt: skip
    graphs = {}
    for count in (8, 4):
        path = tmp_path / f"{count}.json"
        path.write_text(json.dumps({**config, "num_local_experts": count}), encoding="utf-8")
        graphs[count] = Setting.of(
            str(path), "a100-sxm-80gb", techniques=("structured-pruning:experts=0.5",) * (count == 8)
        )
    pruned, four = graphs[8], graphs[4]
    assert pruned.graph.parameters == four.graph.parameters
    assert pruned.graph.active_parameters == four.graph.active_parameters
    for workload in (step(500, batch=3), Workload.prefill(batch=1, prompt=7)):
        for field in ("ops", "bytes", "weight_bytes"):
            assert plan_of(pruned, "decode", workload, field) == pytest.approx(plan_of(four, "decode", workload, field))


def test_experts_chosen_by_groups_are_not_pruned():
    with pytest.raises(InputError, match="chooses groups of experts first; drop experts"):
        Setting.of("deepseek-v3", "h200-sxm", techniques=("structured-pruning:experts=0.5",))


def test_random_features_widen_the_state_of_linear_attention():
    """256 features of heads of 128: a state of 32 x 256 x 129 fp32 in each of 32 layers, and the products that map."""
    wide, plain = setting("linear-attention:features=256"), setting("linear-attention")
    states = [one.footprint.parts(batch=1, prompt=99, gen=1)[1] for one in (wide, plain)]
    assert states[0] == 2 * states[1] == 32 * 32 * 256 * 129 * 4
    ops = [plan_of(one, "decode", step(100), "ops") for one in (wide, plain)]
    a_token = 2 * 128 * 129 + 4 * 128 + 2 * 128 * 256  # of the further 128 features, and of the map
    a_pair = 2 * 128  # a step is a chunk of one token, which attends to itself
    assert ops[0] - ops[1] == pytest.approx(32 * (2 * 32 * a_token + 32 * a_pair))
