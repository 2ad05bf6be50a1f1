"""What techniques would buy, as text, Markdown, CSV, JSON and HTML."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final

from llmviewer import __version__
from llmviewer.serving.advising import Advice, For, Line
from llmviewer.units import seconds, si

from .comparison import csv_of, json_of, time_item
from .listing import Item, Table, markdowns, texts
from .page import Card, template

_MOST: Final = 12  # combinations in words
_SAID: Final = (
    "Times are lower bounds, so a gain is that of the bounds. Techniques have their usual parameters; what they do to "
    "the answers is not weighed."
)
_NAMES: Final = {
    For.LATENCY: "the whole answer", For.TTFT: "the time to first token", For.TPOT: "the time per token",
    For.THROUGHPUT: "tokens per second",
}  # fmt: skip


def render_text(found: Advice) -> str:
    return texts(headline(found), tables(found), remarks(found))


def render_markdown(found: Advice) -> str:
    return markdowns(headline(found), tables(found), remarks(found))


def render_csv(found: Advice) -> str:
    """One row for each line."""
    return csv_of(_rows(found))


def render_json(found: Advice) -> str:
    return json_of(found.to_dict())


def render_html(found: Advice) -> str:
    """The whole page: tables alone."""
    from . import drawing

    best = [line for lines in (found.alone, found.together) for line in lines[:1]]
    return template("comparison.html.j2").render(
        title=title(found),
        setting=headline(found),
        bounds_said=_SAID,
        remarks=remarks(found)[:-1],
        cards=[
            Card(label="best" if line in found.alone else "best together", value=f"{line.gain:.2f}x", about=line.name)
            for line in best
        ],
        pictures=[],
        tables=tables(found),
        version=__version__,
        inputs=json.dumps(found.to_dict()["inputs"], indent=2),
        plotly_js="",  # no figure
        ink=drawing.INK,
        grid=drawing.GRID,
        paper=drawing.PAPER,
    )


def title(found: Advice) -> str:
    setting = found.base.setting
    return f"What would help {setting.model.title} on {setting.hardware.title}"


def headline(found: Advice) -> str:
    """What was asked, and where it stands."""
    base = found.base
    using = f", with {', '.join(found.given)}" if found.given else ""
    there = base.setting.hardware.capacity
    large = f" It does not fit: {si(base.memory_bytes)}B of {si(there)}B; gains are over its bound."
    fits = "" if base.fits else large
    return (
        f"{title(found)}: batch {found.batch}, prompt {found.prompt}, {found.gen} generated, "
        f"{base.setting.quantization}{using}. {_NAMES[found.wanted].capitalize()} is to be better. Without more: first "
        f"token {seconds(base.ttft_s)}, {seconds(base.tpot_s)} a token, {base.tokens_per_s:.3g} tokens/s; decode steps "
        f"are {base.bound}-bound, the prefill {base.reading}-bound.{fits}"
    )


def remarks(found: Advice) -> list[str]:
    said = []
    if found.idle:
        said.append(f"Would not help here: {', '.join(line.name for line in found.idle)}.")
    if found.large:
        said.append(f"Would not fit the memory: {', '.join(line.name for line in found.large)}.")
    said += [f"Not here: {option.name}: {reason.removeprefix(f'{option.name}: ')}." for option, reason in found.refused]
    return [*said, _SAID]


def tables(found: Advice) -> list[Table]:
    alone = _table(
        "Alone", found.alone,
        "Gain: times better. Relieves: of a device, for each token; passes are those of the model. Left: what bounds a "
        "decode step then.",
    )  # fmt: skip
    together = _table("Together, each better than its parts", found.together[:_MOST], "")
    return [table for table in (alone, together) if table.body]


def _table(name: str, lines: Sequence[Line], about: str) -> Table:
    return Table(
        title=name,
        about=about,
        head=("technique", "gain", "TTFT", "TPOT", "relieves", "left"),
        words=("technique", "relieves", "left"),
        body=tuple(
            (
                Item(text=line.name), Item(text=f"{line.gain:.2f}x", key=line.gain), time_item(line.result.ttft_s),
                time_item(line.result.tpot_s), Item(text=line.relieves),
                Item(text=line.result.bound, bound=line.result.bound),
            )
            for line in lines
        ),
    )  # fmt: skip


def _rows(found: Advice) -> Iterator[dict[str, Any]]:
    document = found.to_dict()
    for kind in ("alone", "together", "no_help", "too_large"):
        for line in document[kind]:
            yield {"kind": kind, **line, "techniques": " + ".join(line["techniques"])}
