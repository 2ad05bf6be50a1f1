"""Every documented choice of every technique in the commands that take one: a result, or one line that refuses it.

Defaults and choices in words meet analyze, compare and sweep. All choices, also numbers at their limits and the named
methods of quantization, meet one of the commands in turn; the slow ones, plan and advise, have fewer turns.
"""

from __future__ import annotations

import math
from dataclasses import MISSING, fields
from itertools import cycle

import pytest

from llmviewer.analyzing.analysis import analyze
from llmviewer.cli import main
from llmviewer.errors import InputError
from llmviewer.reports.analysis import REPORT
from llmviewer.techniques import declaration, parse_technique, techniques

MODEL, DEVICE = "llama-68m", "h100-sxm"
SIZE = ("--prompt", "300", "--gen", "20")
NEEDED = {"draft": "llama-68m", "size": "256", "scheme": "half", "phrases": "1000", "share": "0.25"}
TEXTS = {"tree": ("4x2x2",), "scorer": ("opt-125m",), "router": ("roberta-base",),
         "targets": ("*", "q_proj+v_proj"), "draft": ("opt-125m",),
         "scorer_quant": ("W8A8,scorer=opt-125m",), "draft_quant": ("W4A16g128",)}  # fmt: skip
COMMANDS = {
    "analyze": ("analyze", MODEL, DEVICE, *SIZE, "--batch", "2"),
    "compare": ("compare", MODEL, DEVICE, "l40s", *SIZE, "--bound"),
    "sweep": ("sweep", MODEL, DEVICE, "--over", "batch=1,4", "--over", "prompt=100,300", "--gen", "20"),
    "simulate": ("simulate", MODEL, DEVICE, *SIZE, "--rate", "5", "--requests", "10", "--bound"),
    "plan": ("plan", MODEL, "--hardware", "l40s", *SIZE, "--rate", "1", "--bound"),
    "advise": ("advise", MODEL, DEVICE, *SIZE, *(word for kind in ("answers", "draft", "model")
                                                 for word in ("--without", kind))),
}  # fmt: skip
TURNS = (*("analyze", "compare", "sweep", "simulate") * 3, "plan", "advise")
FORMATS = ("text", "markdown", "json", "csv")
WORDS = ("str", "bool")


def values(field):
    """Documented values of a parameter: its choices, or its limits."""
    if field.name in TEXTS:
        return TEXTS[field.name]
    kind, limits = str(field.type), declaration(field)
    if limits.choices:
        return limits.choices
    if kind == "bool":
        return ("true", "false")
    if kind.startswith("str"):
        return ()
    step = 0 if not limits.open else 1 if kind.startswith("int") else 0.001
    return [f"{end:g}" for end in (limits.least + step, limits.most - step) if math.isfinite(end)]


def specs(lengths):
    """(whether it is in words, text) of each documented value of a parameter, and of the defaults of each technique."""
    for name, kind in techniques().items():
        needed = {f.name: NEEDED.get(f.name, lengths) for f in fields(kind) if f.default is MISSING}
        given = [(True, {}), *((str(f.type) in WORDS, {f.name: value}) for f in fields(kind) for value in values(f))]
        for in_words, values_given in given:
            parameters = ",".join(f"{key}={value}" for key, value in {**needed, **values_given}.items())
            yield in_words and "scheme" not in values_given, f"{name}:{parameters}".removesuffix(":")


@pytest.fixture(scope="module")
def every_choice(tmp_path_factory):
    path = tmp_path_factory.mktemp("choices") / "lengths.txt"
    path.write_text("100\n200\n300\n")
    return list(specs(path))


def test_the_choices_are_those_of_all_techniques(every_choice):
    texts = {text for _, text in every_choice}
    assert {text.partition(":")[0] for text in texts} == set(techniques())
    assert {"beam:prompt=read-once", "best-of:prompt=read-once", "fusion:qkv=false"} <= texts
    assert all(map(parse_technique, texts))


@pytest.mark.slow("runs every choice of every technique")
@pytest.mark.parametrize("command", COMMANDS)
def test_each_choice_ends_in_a_result_or_in_one_line(every_choice, capsys, tmp_path, command):
    accepted = 0
    for number, (in_words, text) in enumerate(every_choice):
        if TURNS[number % len(TURNS)] != command and not (in_words and command in ("compare", "sweep")):
            continue
        form = FORMATS[number % len(FORMATS)]
        written = ("-o", str(tmp_path / "s.csv")) if command == "sweep" else ("--format", form)
        code = main([*COMMANDS[command], *written, "--with", text])
        lines = capsys.readouterr().err.splitlines()
        assert code in (0, 2), text
        assert code == 0 or len(lines) == 1, (text, lines)
        accepted += code == 0
    assert accepted > 5


@pytest.mark.slow("runs every choice of every technique")
def test_each_choice_in_words_is_written(every_choice):
    others = cycle((REPORT.html, *(REPORT.json, REPORT.csv) * 7))
    for text in (text for in_words, text in every_choice if in_words):
        try:
            analysis = analyze(MODEL, DEVICE, prompt=300, gen=20, batch=2, techniques=[text])
        except InputError:
            continue
        for render in (REPORT.text, REPORT.markdown, next(others)):
            assert render(analysis), text


WITH = {"prompt-compression": {"scorer": "opt-125m"}, "fusion": {"add": "false"}}  # what other parameters need
SAID_TO_CHANGE_NOTHING = ("changes nothing", "no effect")
DEEP = ("llama-3.2-1b", "mixtral-8x7b", "llada-8b", "bert-base-uncased")  # the first that takes a technique is walked


def others_than(default, field):
    """Values of a parameter other than its default."""
    if field.name in TEXTS or declaration(field).choices or str(field.type) == "bool":
        return [value for value in values(field) if str(value).lower() != str(default).lower()]
    if not isinstance(default, int | float):
        return []
    near = (default + 1, 2 * default + 3, default // 2) if isinstance(default, int) else (default / 2, default * 1.5)
    return [value for value in (*near, 0.25) if value != default and declaration(field).holds(value)][:2]


@pytest.mark.slow("analyzes two values of every parameter of every technique")
def test_accepted_parameter_changes_a_result_or_is_noted_as_without_effect(tmp_path):
    """A parameter that some setting accepts without effect must be refused, or described so in a note."""
    lengths = tmp_path / "lengths.txt"
    lengths.write_text("100\n200\n300\n")
    walked, silent = 0, []
    for name, kind in techniques().items():
        needed = {f.name: NEEDED.get(f.name, lengths) for f in fields(kind) if f.default is MISSING}
        for context in ({}, WITH[name]) if name in WITH else ({},):
            base, model = first_result(name, needed | context)
            for f in (f for f in fields(kind) if base and f.name not in needed | context):
                for value in others_than(f.default, f):
                    try:
                        other = numbers(name, needed | context | {f.name: value}, model)
                    except InputError:
                        continue
                    walked += 1
                    if other == base and not any(said in str(other["notes"]) for said in SAID_TO_CHANGE_NOTHING):
                        silent.append((name, context, f.name, value))
    silent.remove(("kangaroo", {}, "exit", 0.03125))  # of 16 layers, half a layer is one, as 0.0625 are
    assert walked > 100
    assert [each for each in silent if each[:3] != ("fusion", {}, "norm")] == []  # additions have norms in them then


def first_result(name, given):
    """The document of the first model that takes a technique, and that model; (None, "") if none does."""
    for model in DEEP:
        try:
            return numbers(name, given, model), model
        except InputError:
            continue
    return None, ""


def numbers(name, given, model):
    text = f"{name}:{','.join(f'{key}={value}' for key, value in given.items())}".removesuffix(":")
    document = analyze(model, DEVICE, prompt=300, gen=20, batch=2, techniques=[text], bound=True).to_dict()
    document["effect"].pop("techniques")
    return {key: value for key, value in document.items() if key != "inputs"}
