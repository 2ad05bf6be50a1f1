"""Labels and help texts of the controls, texts with them in place of command-line options, and a glossary."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from llmviewer._layout import data_dir
from llmviewer.options import PARAMETERS, RequestOptions
from llmviewer.parameters import DEGREES, declared

LOWER_BOUND_SIGN: Final = ">="
UPPER_BOUND_SIGN: Final = "<="
ORDER_LABELS: Final[Mapping[str, str]] = {  # of waiting requests
    "arrival": "by arrival", "sjf": "shortest output first", "srpt": "least work left first",
    "mlfq": "feedback queues", "vtc": "fair shares",
}  # fmt: skip
_DECLARED: Final = PARAMETERS | declared(RequestOptions)
_OPTION: Final = r"--[a-z][a-z0-9-]*(?: (?!--|or\b|and\b)[^\s;,()]+)?"
_OPTIONS: Final = re.compile(rf"(?<![\w`-]){_OPTION}(?: {_OPTION})*")  # with values, such as "--tp 2 --quant fp8"
_PLACEHOLDER: Final = re.compile(r"[A-Z]+")  # of a value, such as NAME
_SIMULATION: Final = re.compile(r"llmviewer simulate(?: --concurrency [\d,]+)?")


class ControlWords(NamedTuple):
    """Label and one-line help of a control, and its glossary entry."""

    label: str
    about: str
    term: str


def _declared(name: str) -> ControlWords:
    """Label and help of a declared option."""
    parameter = _DECLARED[name]
    return ControlWords(parameter.label, parameter.about, parameter.term)


CONTROLS: Final[Mapping[str, ControlWords]] = {
    "model": ControlWords("Model", "The network. Search by name, or drop in a config.json of another model.", "model"),
    "on": ControlWords("Devices", "One device, or several to compare. Drop in a YAML of another device.", "device"),
    "phase": ControlWords(
        "Phase",
        "Prefill processes the whole prompt in one pass; each decode step generates one token per sequence.",
        "phase",
    ),
    "batch": _declared("batch"),
    "prompt": _declared("prompt"),
    "gen": _declared("gen"),
    "step": ControlWords(
        "Decode step",
        "Step shown by sentence, figures and tables: first, at the mean context (as TPOT), last, or at one.",
        "context",
    ),
    "context": _declared("kv_len"),
    "quant": _declared("quant"),
    "attention": _declared("attention"),
    "tp": _declared("tp"),
    "pp": _declared("pp"),
    "ep": _declared("ep"),
    "dp": _declared("dp"),
    "cp": _declared("cp"),
    "mla": _declared("mla"),
    "accounting": _declared("accounting"),
    "skew": _declared("expert_skew"),
    "images": _declared("images"),
    "offload": _declared("offload"),
    "mtp": _declared("mtp"),
    "library": _declared("library"),
    "engine": _declared("engine"),
    "memory_fraction": _declared("memory_fraction"),
    "max_num_seqs": _declared("max_num_seqs"),
    "max_num_batched_tokens": _declared("max_num_batched_tokens"),
    "max_model_len": _declared("max_model_len"),
    "measured": ControlWords(
        "Measured",
        "Your own measurements of ttft, tpot, latency or tokens_per_s, compared with bound and expectation.",
        "measured time",
    ),
    "techniques": ControlWords(
        "Techniques", "Choose several and edit their parameters; separate them by semicolons.", "technique"
    ),
    "sweep": ControlWords(
        "Show", "Curves over batch size or prompt length, or a figure of arXiv:2402.16363 for this model.", "sweep"
    ),
    "curves": ControlWords("One curve per", "Device, or precision on the first device.", "sweep"),
    "quants": ControlWords(
        "Other precisions", "Shown in the figures beside the current one; separate them by semicolons.", "precision"
    ),
    "traffic": ControlWords(
        "Clients send", "Requests one by one, sessions of several turns, or agents' tasks of several calls.", "session"
    ),
    "session_turns": ControlWords(
        "Turns of a session", "Each repeats the conversation before it; Prompt is its new input.", "session"
    ),
    "think_time": ControlWords(
        "Think time [s]", "From an answer to the next turn: 10, exponential:10 or uniform:2-20.", "session"
    ),
    "system_prompt": ControlWords("System prompt", "Tokens with which every session begins.", "prefix cache"),
    "tasks": ControlWords(
        "Task", "Calls of an agent that wait for answers and tools, in YAML. Drop in one of your own.", "task"
    ),
    "replicas": ControlWords("Replicas", "Copies of the model, each on the devices of its layout.", "replica"),
    "router": ControlWords("Router", "Chooses the replica that serves a request.", "router"),
    "load": ControlWords(
        "Load",
        "Clients that each wait for an answer before they send more, or arrivals at random times.",
        "concurrency",
    ),
    "rates": ControlWords(
        "Arrivals [1/s]",
        "Mean rates of requests, sessions or tasks, at most 8, separated by commas.",
        "arrival rate",
    ),
    "prefill_replicas": ControlWords(
        "Prefill replicas", "Further replicas for prefills alone; the others then only decode.", "disaggregation"
    ),
    "tenants": ControlWords("Tenants", "Share of the requests that each tenant sends: 1,2 or 1,1,8.", "arrival rate"),
    "order": ControlWords(
        "Waiting requests", "Which of them is admitted first; fair shares are those of tenants.", "queue time"
    ),
    "ttft": ControlWords(
        "TTFT target [ms]", "Longest time to first token of the requests within the percentile.", "TTFT"
    ),
    "tpot": ControlWords("TPOT target [ms]", "Longest time per output token of the same requests.", "TPOT"),
    "within": ControlWords("Percentile", "Share of the requests that must be within the targets.", "goodput"),
    "plan_rate": ControlWords("Plan for [req/s]", "Mean rate that the planned servers have to serve.", "arrival rate"),
    "plan_most": ControlWords("At most [devices]", "Devices of all planned servers together.", "replica"),
    "plan_on": ControlWords("Devices of the plan", "Those chosen above, or all with a cloud price.", "device"),
    "pins": ControlWords(
        "Pinned", "Settings to compare with the current one; they are part of the link.", "comparison"
    ),
    "recordings": ControlWords(
        "Several files are",
        "Ranks of a run, or a trace before and one after a change or on a second device.",
        "trace",
    ),
    "passes": ControlWords("Passes", "Number of model passes in the trace, if it cannot be detected.", "trace"),
    "stage": ControlWords("Stage", "Pipeline stage that the trace was recorded on, from 1.", "trace"),
    "op": ControlWords(
        "Operator", "Operator in the inspector. A click on a point, bar, row or node selects it too.", "operator"
    ),
}

_LABELS: Final = {  # of the controls, by the options of the command line that they replace
    **{each.flag or f"--{name.replace('_', '-')}": each.label for name, each in _DECLARED.items()},
    **{f"--{name}": CONTROLS[name].label for name in ("phase", "passes", "stage")},
    **{f"--{name}": f"{CONTROLS[name].label} parallelism" for name in DEGREES},
    "--hardware-set": "what-if",
    "--max-bytes": "",
}


def control_label(name: str) -> str:
    """Label of the control of a field of the page state."""
    return CONTROLS[name].label if name in CONTROLS else "What-ifs"


def page_text(text: str) -> str:
    """`text` with labels of controls in place of options of the command line.

    >>> page_text("fits with --tp 2 --with fusion; give the passes (--passes N)")
    'fits with Tensor parallelism 2 and technique fusion; give the passes (Passes)'
    """
    return _OPTIONS.sub(lambda found: _labelled(found.group()), _SIMULATION.sub("the Serving tab", text))


def _labelled(options: str) -> str:
    """Options of the command line as labels with values; those of other programs unchanged."""
    flags = [one.partition(" ")[::2] for one in re.findall(_OPTION, options)]
    if any(flag not in _LABELS for flag, _ in flags):
        return options
    return " and ".join(_labelled_value(flag, value) for flag, value in flags)


def _labelled_value(flag: str, value: str) -> str:
    label = _LABELS[flag] or f"{flag.removeprefix('--')} of the command line"
    if flag == "--with" and value:
        return f"technique {value}"
    return label if not value or _PLACEHOLDER.fullmatch(value) else f"{label} {value}"


class Term(NamedTuple):
    """An entry of the glossary: a term, its synonyms and its meaning."""

    name: str
    also: str
    meaning: str


def read_glossary() -> tuple[Term, ...]:
    """The terms of docs/glossary.md, in its order: the rows of its table after the head and the rule."""
    lines = (data_dir("docs") / "glossary.md").read_text(encoding="utf-8").splitlines()
    rows = [line.strip("|").split("|") for line in lines if line.startswith("|")]
    return tuple(Term(*(cell.strip() for cell in row)) for row in rows[2:])


GLOSSARY: Final = read_glossary()
