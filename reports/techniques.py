"""Techniques: what there are, one with all that is known of it, and docs/techniques.md."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields
from typing import Any, Final

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
    return "".join((*parts, *_evidence()))


def _evidence() -> Iterator[str]:
    yield "\n## Beside what was published\n\nOurs are bounds: what was measured is to be slower, not faster.\n"
    yield "\n| technique | setting | ours | published | source |\n|---|---|---|---|---|\n"
    for one in EVIDENCE:
        yield f"| `{one.technique}` | {one.setting} | {one.found()} | {one.theirs} | {one.source} |\n"


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
    limits = f" [{parameter.limits}]" if parameter.limits else ""
    return f"{parameter.text}{limits}"


def _default(default: Any) -> str:
    if default is MISSING:
        return "required"
    return "" if default is None else str(default).lower() if isinstance(default, bool) else str(default)
