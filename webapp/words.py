"""The words of the page: what each control is for, in a line, and a glossary of the field's terms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from llmviewer._layout import data_dir
from llmviewer.options import PARAMETERS, RequestOptions
from llmviewer.parameters import declared


class ControlWords(NamedTuple):
    """A control: its label, one line on what it does, and what it is about in the glossary."""

    label: str
    about: str
    term: str


def _declared(name: str) -> ControlWords:
    """The words of an option, as it is declared."""
    parameter = (PARAMETERS | declared(RequestOptions))[name]
    return ControlWords(parameter.label, parameter.about, parameter.term)


CONTROLS: Final[Mapping[str, ControlWords]] = {
    "model": ControlWords(
        "Model", "The network. Type to search by name; drop in a config.json for one that does not ship.", "model"
    ),
    "on": ControlWords(
        "Devices", "One or several, which are compared. Drop in a YAML for one that does not ship.", "device"
    ),
    "phase": ControlWords(
        "Phase", "Prefill reads the whole prompt at once; decode writes one token of each sequence.", "phase"
    ),
    "batch": _declared("batch"),
    "prompt": _declared("prompt"),
    "gen": _declared("gen"),
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
    "measured": ControlWords(
        "Measured", "What you timed: ttft, tpot, latency or tokens_per_s. Says how good that is.", "measured time"
    ),
    "techniques": ControlWords(
        "Techniques", "Choose several; their parameters can be edited, with semicolons between them.", "technique"
    ),
    "sweep": ControlWords(
        "Show", "Curves along batch or length, or a figure of the paper (arXiv:2402.16363) for this model.", "sweep"
    ),
    "curves": ControlWords("A curve for each", "The devices chosen, or precisions on the first of them.", "sweep"),
    "quants": ControlWords(
        "Precisions", "Those of the curves, with semicolons; empty: those of the paper.", "precision"
    ),
    "pins": ControlWords(
        "Pinned", "Settings that are kept to compare the present one with; they are part of the link.", "comparison"
    ),
    "passes": ControlWords("Passes", "Of the model in the trace; needed only where they are not recognised.", "trace"),
    "stage": ControlWords("Stage", "Of a pipeline, that whose device was recorded; the first is 1.", "trace"),
    "op": ControlWords(
        "Operator", "What the inspector shows; a click on a point, bar, row or node chooses it too.", "operator"
    ),
}


class Term(NamedTuple):
    """An entry of the glossary."""

    name: str
    also: str  # other names of the same thing
    meaning: str


def read_glossary() -> tuple[Term, ...]:
    """The terms of docs/glossary.md, in its order: the rows of its table after the head and the rule."""
    lines = (data_dir("docs") / "glossary.md").read_text(encoding="utf-8").splitlines()
    rows = [line.strip("|").split("|") for line in lines if line.startswith("|")]
    return tuple(Term(*(cell.strip() for cell in row)) for row in rows[2:])


GLOSSARY: Final = read_glossary()
