"""Techniques: what there are, one with all that is known of it, and docs/techniques.md."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields
from typing import Any, Final

from llmviewer.analyzing.effect import changes
from llmviewer.setting import Setting
from llmviewer.techniques import About, Technique, about

from .evidence import EVIDENCE

_SECTION: Final = re.compile(r"^([A-Z][a-z ]+): (.*)$")
_HEAD: Final = """\
# Techniques

What people do to make inference faster, one at a time or together:

```
llmviewer analyze llama-2-7b a100-sxm-80gb --with speculative:draft=llama-68m,gamma=4,alpha=0.7 --with sparsity
llmviewer techniques [NAME]        # what there is; one with its parameters, formula and limits; --format json
llmviewer analyze --scenario mine.yaml
```

```python
import llmviewer

llmviewer.analyze("llama-2-7b", "a100-sxm-80gb", techniques=["speculative:draft=llama-68m,gamma=4,alpha=0.7"])
```

A scenario is a YAML file with any option of the command by its name, and what the command line says comes before it:

```yaml
model: llama-2-7b
hardware: a100-sxm-80gb
batch: 8
with:
  - sparsity
  - speculative: {draft: llama-68m, gamma: 4, alpha: 0.7}
```

The report says what each pass of the generation takes, the tokens that a pass of the model leaves, and what time, OPs,
bytes and memory are with the techniques and without; `effect` of the JSON has the numbers. The order in which
techniques are given changes nothing. All times are lower bounds: what a technique needs besides, such as looking up
tables of pages, choosing what to evict or drawing samples, is left out unless its text counts it.

Sources say where a formula or a number can be found. The tokens of a pass are those of arXiv:2404.14294, table 5, as
read, and of arXiv:2412.19437, as quoted; numbers of sections and other defaults are recalled from the papers named.

This page is made by `llmviewer techniques -o docs/techniques.md` from the descriptions in `llmviewer/techniques/`.
"""

_BESIDE: Final = """
## Beside what was published

Each row is a claim of a survey, by its id in `tests/test_ledger.py`, which holds ours within what the claim leaves
possible. Ours are bounds: what was measured is slower, and where it was on the same device, the table says by how much.
"""
_MODEL: Final = "llama-2-7b"
_MODELS: Final = {"mtp": "deepseek-v3", "expert-capacity": "mixtral-8x7b"}  # where that has nothing to change
_HARDWARE: Final = "a100-sxm-80gb"
_ASKED: Final = {"batch": 2, "prompt": 3999, "gen": 128}
EXAMPLES: Final = {  # parameters that have to be given
    "speculative": "draft=llama-68m,alpha=0.7",
    "window": "size=1024",
    "quantized": "scheme=quarot",
    "structured-pruning": "heads=0.5,ffn=0.5",
}
_OWN: Final = '''
## One of your own

A class like those of `llmviewer/techniques/`: its fields are its parameters, and it overrides what it changes of
`Technique`: the graph (`network`, or `lowered` once it has its formats), the passes (`prefill`, `step`, `schedule`),
the cache that is held (`kept`). Python takes it from anywhere, by its name or as `Shortlist(words=16_000)`. Commands
and the dashboard have it where the variable `LLMVIEWER_PLUGINS` names its file, or a module (several as in `PATH`):

```
LLMVIEWER_PLUGINS=shortlist.py llmviewer analyze llama-3.1-8b h100-sxm --with shortlist:words=16000
```

A package that is installed brings its own by an entry point of the group `llmviewer` that names the module.
Architectures, under `@architecture("model_type")`, come in alike.

```python
from dataclasses import dataclass, replace

import llmviewer
from llmviewer.graph import Graph
from llmviewer.operators.base import Operator
from llmviewer.operators.linear import LMHead
from llmviewer.techniques import Kind, Technique, Touches, parameter, technique


@technique("shortlist")
@dataclass(frozen=True, kw_only=True)
class Shortlist(Technique):
    """Shortlist: steps score the most frequent words alone."""

    kind = Kind.DECODING
    touches = Touches.ANSWERS

    words: int = parameter("words that are scored", 32_000, least=1)

    @property
    def decode_alone(self) -> bool:
        return True  # a step runs another graph than the prefill

    def network(self, graph: Graph, *, decode: bool) -> Graph:
        return graph.map(self._shortened) if decode else graph

    def _shortened(self, op: Operator) -> Operator:
        if not isinstance(op, LMHead) or op.weight.shape[0] <= self.words:
            return op
        logits = replace(op.outputs[0], width=self.words)
        return replace(op, outputs=(logits,)).with_weights(
            lambda w: replace(w, shape=(self.words, *w.shape[1:]), rows=None)  # all of its rows are read
        )


llmviewer.analyze("llama-3.2-1b", "l4", techniques=["shortlist:words=16000"]).effect.speed_up  # 1.22
```
'''
_GLANCE: Final = f"""
## At a glance

What each lowers (-), raises (+) and leaves alone (·): of the prefill and of a step OPs, bytes of weights, activations
and cache; weights, cache and live activations that are held; of a whole answer the passes of the model after the
first token, OPs and bytes. For {_MODEL} (mtp: {_MODELS["mtp"]}, expert-capacity: {_MODELS["expert-capacity"]}) on
{_HARDWARE}, {_ASKED["batch"]} prompts of {_ASKED["prompt"]} tokens and {_ASKED["gen"]} generated; quantizations beside
the same formats. The step of what proposes tokens is the verification of several; of chunks the last is shown.
"""
_ELSEWHERE: Final = """
## What is asked otherwise

Some of what makes inference faster is an option of its own, and goes with every technique:

| what | how |
|---|---|
| scores on the chip (FlashAttention) or in memory | `--attention flash`, `--attention eager`; see also `split-kv` |
| formats of weights, activations and cache; others for some layers | `--quant W4A16g128,layers.0-3=W16A16` |
| weights and cache in host memory or on storage (FlexGen) | `--offload weights=0.5,kv=0.2@storage` |
| latent attention of models that have it | `--mla absorbed`, `--mla naive` |
| several devices | `--tp`, `--pp`, `--ep`, `--dp`, `--cp`; [parallel.md](parallel.md) |
| batches of requests that come and go, engines, prefill and decode apart | [serving.md](serving.md) |

Distillation makes another model: `llmviewer compare bert-base-uncased a100-sxm-80gb --also distilbert-base-uncased`
says what the smaller one takes. A distilled draft is one that is right more often: `alpha` of the forms of speculative
decoding.
"""


def render_list(known: Mapping[str, type[Technique]], width: int) -> str:
    """A line for each, those of one kind together."""
    margin = max(map(len, known)) + 4
    lines: list[str] = []
    kind = None
    for name, technique in known.items():
        if technique.kind != kind:
            kind = technique.kind
            lines += ["", kind.capitalize()] if lines else [kind.capitalize()]
        text = textwrap.fill(_first(technique), width - margin).replace("\n", "\n" + margin * " ")
        lines.append(f"  {name}".ljust(margin) + text)
    lines += ["", textwrap.fill("`llmviewer techniques NAME`: the parameters, formula and limits of one.", width)]
    return "\n".join(lines) + "\n"


def render_card(technique: type[Technique], width: int) -> str:
    """One with its parameters, and what is known of it."""
    lines = [textwrap.fill(f"{technique.name}: {_first(technique)}", width), ""]
    lines += [
        textwrap.fill(f"{label}: {text}" if label else text, width, subsequent_indent="  ")
        for label, text in _sections(technique)
    ]
    told = _parameters(technique)
    lines += ["", "Parameters" if told else "No parameters."]
    margin = max((len(name) for name, _, _ in told), default=0) + 4
    for name, default, parameter in told:
        text = textwrap.fill(_parameter(default, parameter), width - margin).replace("\n", "\n" + margin * " ")
        lines.append(f"  {name}".ljust(margin) + text)
    values = technique.values()
    lines += ["", "Names"] if values else []
    margin = max(map(len, values), default=0) + 4
    for name, meaning in values.items():
        text = textwrap.fill(meaning, width - margin).replace("\n", "\n" + margin * " ")
        lines.append(f"  {name}".ljust(margin) + text)
    return "\n".join(lines) + "\n"


def render_markdown(known: Mapping[str, type[Technique]]) -> str:
    """The page of the documentation."""
    parts, kind = [_HEAD], None
    for name, technique in known.items():
        if technique.kind != kind:
            kind = technique.kind
            parts.append(f"\n## {kind.capitalize()}\n")
        parts.append(f"\n### {name}\n\n{_first(technique)}\n")
        said = [f"- {label}: {text}" if label else text for label, text in _sections(technique)]
        parts.append("\n" + "\n".join(said) + "\n")
        if told := _parameters(technique):
            parts.append("\n| parameter | default | what |\n|---|---|---|\n")
            parts += [
                f"| `{name}` | {_default(default)} | {_plain(parameter)} |\n" for name, default, parameter in told
            ]
        if values := technique.values():
            parts.append("\n| name | what |\n|---|---|\n")
            parts += [f"| `{name}` | {meaning} |\n" for name, meaning in values.items()]
    without_files = {name: technique for name, technique in known.items() if name != "lengths"}
    return "".join((*parts, *_changes(without_files), _ELSEWHERE, _OWN, *_evidence()))


def _changes(known: Mapping[str, type[Technique]]) -> Iterator[str]:
    yield _GLANCE
    yield "\n| technique | prefill | step | held | answer |\n|---|---|---|---|---|\n"
    for name in known:
        text = f"{name}:{EXAMPLES[name]}" if name in EXAMPLES else name
        setting = Setting.of(_MODELS.get(name, _MODEL), _HARDWARE, techniques=[text])
        found = changes(setting, **_ASKED)
        yield f"| `{text}` | {' | '.join(_aligned(signs) for signs in vars(found).values())} |\n"


def _aligned(signs: str) -> str:
    return f"`{' '.join(signs).replace('=', '·')}`"


def _evidence() -> Iterator[str]:
    yield _BESIDE
    yield "\n| claim | asked | ours | published | source |\n|---|---|---|---|---|\n"
    for one in EVIDENCE:
        yield f"| {one.id} | `{one.knob}` | {one.said} | {one.theirs} | {one.source} |\n"


def describe(technique: type[Technique]) -> dict[str, Any]:
    """One of them for programs."""
    return {
        "name": technique.name,
        "kind": technique.kind,
        "summary": _first(technique),
        "about": {label.lower() or "note": text for label, text in _sections(technique)},
        "parameters": [
            {
                "name": name,
                "about": parameter.text,
                "unit": parameter.unit,
                "default": None if default is MISSING else default,
                "required": default is MISSING,
                "limits": parameter.limits,
            }
            for name, default, parameter in _parameters(technique)
        ],
        "values": dict(technique.values()),
    }


def _first(technique: type[Technique]) -> str:
    return technique.text().split("\n", 1)[0]


def _sections(technique: type[Technique]) -> list[tuple[str, str]]:
    """(label, text) of what follows the first line; lines without a label of their own go on from the one before."""
    found: list[tuple[str, str]] = []
    for line in technique.text().split("\n")[1:]:
        match = _SECTION.match(line)
        if match:
            found.append((match[1], match[2]))
        elif line.strip():
            label, text = found.pop() if found else ("", "")
            found.append((label, f"{text} {line.strip()}".strip()))
    return found


def _parameters(technique: type[Technique]) -> list[tuple[str, Any, About]]:
    return [(f.name, f.default, about(f)) for f in fields(technique)]


def _parameter(default: Any, parameter: About) -> str:
    given = (
        "must be given" if default is MISSING else "" if default in (None, "") else f"{_default(default)} if not given"
    )
    return f"{_plain(parameter)}{f'; {given}' if given else ''}"


def _plain(parameter: About) -> str:
    unit = "" if parameter.unit in parameter.text else parameter.unit
    limits = ", ".join(filter(None, (unit, parameter.limits)))
    return f"{parameter.text} [{limits}]" if limits else parameter.text


def _default(default: Any) -> str:
    if default is MISSING:
        return "required"
    if isinstance(default, float):
        return f"{default:g}"
    return "" if default is None else str(default).lower() if isinstance(default, bool) else str(default)
