"""Techniques: the list, the card of one, and docs/techniques.md."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, fields, replace
from typing import Any, Final

from llmviewer.analyzing.effect import changes
from llmviewer.parameters import Parameter
from llmviewer.setting import Setting
from llmviewer.techniques import Technique, aliases, declaration

from .evidence import EVIDENCE

_SECTION: Final = re.compile(r"^([A-Z][a-z ]+): (.*)$")
_HEAD: Final = """\
# Techniques

Techniques make inference faster or smaller. They apply alone or combined:

```
llmviewer analyze llama-2-7b a100-sxm-80gb --with speculative:draft=llama-68m,gamma=4,alpha=0.7 --with sparsity
llmviewer techniques [NAME]        # list all, or show the parameters, formula and limits of one; --format json
llmviewer analyze --scenario mine.yaml
```

```python
import llmviewer

llmviewer.analyze("llama-2-7b", "a100-sxm-80gb", techniques=["speculative:draft=llama-68m,gamma=4,alpha=0.7"])
```

A scenario is a YAML file of options by their names. Options on the command line take precedence:

```yaml
model: llama-2-7b
hardware: a100-sxm-80gb
batch: 8
with:
  - sparsity
  - speculative: {draft: llama-68m, gamma: 4, alpha: 0.7}
```

The report shows each pass of the generation, the tokens per pass, and time, OPs, bytes and memory with and without the
techniques (`effect` in the JSON). The order in which techniques are given does not matter. Times are lower bounds:
overheads such as looking up block tables, choosing what to evict or drawing samples are left out unless the description
counts them.

"Source" names where a formula or number can be found. Default tokens per pass are from arXiv:2404.14294, table 5 (read
in the paper), and from quotations of arXiv:2412.19437, arXiv:2406.16858 and the model card that `eagle` names; that of
`kangaroo` follows from a published gain. Section numbers and other defaults, also those marked "recalled", are from
memory of the papers and were not checked against them.

`llmviewer techniques -o docs/techniques.md` generates this page from the descriptions in `llmviewer/techniques/`.
"""

_COMPARISON: Final = """
## Comparison with published results

Each row is a claim of a survey, with its id in `tests/test_ledger.py`, which checks that our number is consistent with
the claim. Our numbers are bounds, so measured gains are lower. If a gain was measured on the same device, the table
gives the ratio of ours to it.
"""
_MODEL: Final = "llama-2-7b"
_MODELS: Final = {  # if _MODEL has nothing to change
    "mtp": "deepseek-v3",
    "expert-capacity": "mixtral-8x7b",
    "denoising": "llada-8b",
    "encoder-exit": "bert-base-uncased",
}
_HARDWARE: Final = "a100-sxm-80gb"
_REQUEST: Final = {"batch": 2, "prompt": 3999, "gen": 128}
EXAMPLES: Final = {  # required parameters
    "speculative": "draft=llama-68m,alpha=0.7",
    "phrase-copying": "phrases=1000,tau=2",
    "window": "size=1024",
    "quantized": "scheme=quarot",
    "structured-pruning": "heads=0.5,ffn=0.5",
    "sparse-activation": "share=0.25",
}
_ADDING: Final = '''
## Adding a technique

A technique is a class like those in `llmviewer/techniques/`. Its fields are its parameters, and it overrides the
methods of `Technique` for what it changes: the graph (`network`, or `lowered` once formats are set), the passes
(`prefill`, `step`, `schedule`), or the cache in memory (`retained_cache`). Python code can define it anywhere and pass
its name or an instance, such as `Shortlist(words=16_000)`. Commands and the dashboard load it from the files or modules
that the variable `LLMVIEWER_PLUGINS` lists, separated as in `PATH`:

```
LLMVIEWER_PLUGINS=shortlist.py llmviewer analyze llama-3.1-8b h100-sxm --with shortlist:words=16000
```

An installed package adds techniques through an entry point of the group `llmviewer` that names the module.
Architectures, under `@architecture("model_type")`, are added in the same ways.

```python
from dataclasses import dataclass, replace

import llmviewer
from llmviewer.graph import Graph
from llmviewer.operators.base import Operator
from llmviewer.operators.linear import LMHead
from llmviewer.techniques import Kind, Technique, Requirement, parameter, technique


@technique("shortlist")
@dataclass(frozen=True, kw_only=True)
class Shortlist(Technique):
    """Shortlist: decode steps score only the most frequent words."""

    kind = Kind.DECODING
    requires = Requirement.OTHER_OUTPUT

    words: int = parameter("words that are scored", 32_000, least=1)

    @property
    def separate_decode_graph(self) -> bool:
        return True  # decode steps run another graph than the prefill

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

What each technique lowers (-), raises (+) or leaves unchanged (·), in this order:

- **prefill**, **step**: OPs; bytes of weights, activations and cache. For techniques that draft tokens the step is a
  verification; for `chunked-prefill` the prefill is the last chunk.
- **memory**: weights, cache, live activations.
- **answer**: passes of the model after the first token, OPs, bytes.

The setting is {_MODEL} ({", ".join(f"{name}: {model}" for name, model in _MODELS.items())}) on {_HARDWARE} with
{_REQUEST["batch"]} prompts of {_REQUEST["prompt"]} tokens and {_REQUEST["gen"]} generated. `quantized` is compared
with the same formats.
"""
_OTHER_OPTIONS: Final = """
## Other options

These are options of their own and combine with every technique:

| feature | option |
|---|---|
| scores on the chip (FlashAttention) or in memory | `--attention flash`, `--attention eager`; see also `split-kv` |
| formats of weights, activations and cache; others for some layers | `--quant W4A16g128,layers.0-3=W16A16` |
| weights and cache in host memory or on storage (FlexGen) | `--offload weights=0.5,kv=0.2@storage` |
| latent attention in models that have it | `--mla absorbed`, `--mla naive` |
| several devices | `--tp`, `--pp`, `--ep`, `--dp`, `--cp`; [parallel.md](parallel.md) |
| continuous batching, engines, separate devices for prefill and decode | [serving.md](serving.md) |

Distillation yields another model, to be compared with the original:
`llmviewer compare bert-base-uncased a100-sxm-80gb --also distilbert-base-uncased`. A distilled draft model has a higher
acceptance rate, `alpha`.
"""


def render_list(technique_classes: Mapping[str, type[Technique]], width: int) -> str:
    """The list of techniques in `width` columns, one line each, grouped by kind."""
    margin = max(map(len, technique_classes)) + 4
    lines: list[str] = []
    kind = None
    for name, technique in technique_classes.items():
        if technique.kind != kind:
            kind = technique.kind
            lines += ["", kind.capitalize()] if lines else [kind.capitalize()]
        text = textwrap.fill(_summary(technique), width - margin).replace("\n", "\n" + margin * " ")
        lines.append(f"  {name}".ljust(margin) + text)
    lines += ["", textwrap.fill("`llmviewer techniques NAME` shows the parameters, formula and limits of one.", width)]
    return "\n".join(lines) + "\n"


def render_card(technique: type[Technique], width: int) -> str:
    """The description of one technique in `width` columns: summary, sections, parameters, names of values."""
    lines = [textwrap.fill(f"{technique.name}: {_summary(technique)}", width), ""]
    lines += [
        textwrap.fill(f"{label}: {text}" if label else text, width, subsequent_indent="  ")
        for label, text in _sections(technique)
    ]
    parameters = _parameters(technique)
    lines += ["", "Parameters" if parameters else "No parameters."]
    margin = max((len(name) for name, _, _ in parameters), default=0) + 4
    for name, default, parameter in parameters:
        text = textwrap.fill(_parameter(default, parameter), width - margin).replace("\n", "\n" + margin * " ")
        lines.append(f"  {name}".ljust(margin) + text)
    values = technique.values()
    lines += ["", "Names"] if values else []
    margin = max(map(len, values), default=0) + 4
    for name, meaning in values.items():
        text = textwrap.fill(meaning, width - margin).replace("\n", "\n" + margin * " ")
        lines.append(f"  {name}".ljust(margin) + text)
    return "\n".join(lines) + "\n"


def render_markdown(technique_classes: Mapping[str, type[Technique]]) -> str:
    """The page docs/techniques.md."""
    parts, kind = [_HEAD], None
    for name, technique in technique_classes.items():
        if technique.kind != kind:
            kind = technique.kind
            parts.append(f"\n## {kind.capitalize()}\n")
        parts.append(f"\n### {name}\n\n{_summary(technique)}\n")
        sections = [f"- {label}: {text}" if label else text for label, text in _sections(technique)]
        parts.append("\n" + "\n".join(sections) + "\n")
        if parameters := _parameters(technique):
            parts.append("\n| parameter | default | meaning |\n|---|---|---|\n")
            parts += [
                f"| `{name}` | {_default(default)} | {_parameter_text(parameter)} |\n"
                for name, default, parameter in parameters
            ]
        if values := technique.values():
            parts.append("\n| name | meaning |\n|---|---|\n")
            parts += [f"| `{name}` | {meaning} |\n" for name, meaning in values.items()]
    without_files = {name: technique for name, technique in technique_classes.items() if name != "lengths"}
    return "".join((*parts, *_changes(without_files), _OTHER_OPTIONS, _ADDING, *_evidence()))


def _changes(technique_classes: Mapping[str, type[Technique]]) -> Iterator[str]:
    yield _GLANCE
    yield "\n| technique | prefill | step | memory | answer |\n|---|---|---|---|---|\n"
    for name in technique_classes:
        text = f"{name}:{EXAMPLES[name]}" if name in EXAMPLES else name
        setting = Setting.of(_MODELS.get(name, _MODEL), _HARDWARE, techniques=[text])
        effects = changes(setting, **_REQUEST)
        yield f"| `{text}` | {' | '.join(_aligned(signs) for signs in vars(effects).values())} |\n"


def _aligned(signs: str) -> str:
    return f"`{' '.join(signs).replace('=', '·')}`"


def _evidence() -> Iterator[str]:
    yield _COMPARISON
    yield "\n| claim | setting | ours | published | source |\n|---|---|---|---|---|\n"
    for one in EVIDENCE:
        yield f"| {one.id} | `{one.knob}` | {one.text} | {one.theirs} | {one.source} |\n"


def describe(technique: type[Technique]) -> dict[str, Any]:
    """The description of one technique as JSON types."""
    return {
        "name": technique.name,
        "kind": technique.kind,
        "summary": _summary(technique),
        "about": {label.lower() or "note": text for label, text in _sections(technique)},
        "parameters": [
            {
                "name": name,
                "about": parameter.about,
                "unit": parameter.unit,
                "default": None if default is MISSING else default,
                "required": default is MISSING,
                "limits": parameter.limits,
            }
            for name, default, parameter in _parameters(technique)
        ],
        "values": dict(technique.values()),
    }


def _summary(technique: type[Technique]) -> str:
    return technique.text().split("\n", 1)[0]


def _sections(technique: type[Technique]) -> list[tuple[str, str]]:
    """(label, text) of each section after the summary; a line without a label continues the section before it."""
    sections: list[tuple[str, str]] = []
    for line in technique.text().split("\n")[1:]:
        match = _SECTION.match(line)
        if match:
            sections.append((match[1], match[2]))
        elif line.strip():
            label, text = sections.pop() if sections else ("", "")
            sections.append((label, f"{text} {line.strip()}".strip()))
    return sections


def _parameters(technique: type[Technique]) -> list[tuple[str, Any, Parameter]]:
    def described(f: Field[Any]) -> Parameter:
        names = aliases(f)
        return replace(
            declaration(f), about=f"{declaration(f).about}; also {', '.join(names)}" if names else declaration(f).about
        )

    return [(f.name, f.default, described(f)) for f in fields(technique)]


def _parameter(default: Any, parameter: Parameter) -> str:
    default_text = "required" if default is MISSING else "" if default in (None, "") else f"default {_default(default)}"
    return f"{_parameter_text(parameter)}{f'; {default_text}' if default_text else ''}"


def _parameter_text(parameter: Parameter) -> str:
    unit = "" if parameter.unit in parameter.about else parameter.unit
    limits = ", ".join(filter(None, (unit, parameter.limits)))
    return f"{parameter.about} [{limits}]" if limits else parameter.about


def _default(default: Any) -> str:
    if default is MISSING:
        return "required"
    if isinstance(default, float):
        return f"{default:g}"
    return "" if default is None else str(default).lower() if isinstance(default, bool) else str(default)
