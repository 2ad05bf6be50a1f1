"""A simulation of requests as text, Markdown, CSV, JSON and HTML."""

from __future__ import annotations

import json
from typing import Final

import numpy as np

from llmviewer import __version__
from llmviewer.serving.engines import TABLE
from llmviewer.serving.service import PERCENTILES, Simulation, summary
from llmviewer.units import seconds

from .comparison import csv_of, json_of, number_item, time_item
from .listing import Item, Table, markdowns, texts
from .page import Card, Picture, picture, plotly_js, template

_NAMES: Final = {
    "wait_s": "wait to be read", "ttft_s": "time to first token", "tpot_s": "time per token",
    "gap_s": "longest gap", "latency_s": "whole answer",
}  # fmt: skip
_SAID: Final = "Steps take as long as their lower bounds; what a scheduler itself takes is not counted."


def said(found: Simulation) -> str:
    """What the times are."""
    if not found.engine:
        return _SAID
    engine = found.engine
    how = f"its {engine.fitted} was fitted to" if engine.fitted else "nothing was fitted to"
    kernels = f"{engine.title} on kernels of {engine.library}"
    return f"Steps take as long as is expected of {kernels}; {how} its row of {TABLE}. {engine.note}"


def render_text(found: Simulation) -> str:
    return texts(headline(found), tables(found), remarks(found))


def render_markdown(found: Simulation) -> str:
    return markdowns(headline(found), tables(found), remarks(found))


def render_csv(found: Simulation) -> str:
    """One row for each request."""
    return csv_of(found.rows())


def render_json(found: Simulation) -> str:
    return json_of(found.to_dict())


def render_html(found: Simulation) -> str:
    """The whole page. It holds plotly.js, so it is some five megabytes long."""
    from . import drawing

    return template("comparison.html.j2").render(
        title=title(found),
        setting=headline(found),
        bounds_said=said(found),
        remarks=remarks(found)[:-1],
        cards=_cards(found),
        pictures=_pictures(found),
        tables=tables(found),
        version=__version__,
        inputs=json.dumps(found.to_dict()["inputs"], indent=2),
        plotly_js=plotly_js(),
        ink=drawing.INK,
        grid=drawing.GRID,
        paper=drawing.PAPER,
    )


def title(found: Simulation) -> str:
    return f"{found.setting.model.title}: {len(found.traffic):,} requests on {devices(found)}"


def devices(found: Simulation) -> str:
    """Such as "2 x (4 x h100-sxm) and 1 x h100-sxm that read prompts"."""
    parts = []
    for setting, copies in found.sides:
        name = setting.hardware.name
        one = f"({setting.layout.devices} x {name})" if setting.layout.devices > 1 else name
        parts.append(f"{copies} x {one}" if copies > 1 or found.reads else one.strip("()"))
    return f"{parts[1]} that read prompts and {parts[0]} that decode" if found.reads else parts[0]


def headline(found: Simulation) -> str:
    """What was asked, in one line."""
    traffic = found.traffic
    rate = f"{traffic.rate:.3g} a second" if traffic.rate < np.inf else "all at once"
    order = "" if found.reads else f", {found.policy}"
    order = f", {found.engine.title}{order}" if found.engine else order
    order = "".join(f", {one}" for one in found.setting.techniques) + order
    return (
        f"{title(found)}, {rate}, prompts of {np.mean(traffic.prompt):.0f} and answers of {np.mean(traffic.gen):.0f} "
        f"tokens on average, {found.setting.quantization}{order}, at most {found.max_batch} at a time"
    )


def remarks(found: Simulation) -> list[str]:
    lines = [f"What limits: {found.limit}"]
    if found.preemptions:
        again = found.usage.reread / max(found.usage.read, 1)
        lines.append(
            f"{found.preemptions:,} times a request lost its cache, as memory was full, and was read again: "
            f"{again:.1%} more tokens to read."
        )
    if found.usage.padding:
        part = found.usage.padding / (found.usage.padding + found.usage.read + found.usage.written)
        lines.append(f"{part:.0%} of all tokens read and written are padding.")
    return [*lines, said(found)]


def tables(found: Simulation) -> list[Table]:
    return [_times(found), _device(found)]


def _times(found: Simulation) -> Table:
    names = ("mean", *(f"p{q}" for q in PERCENTILES), "max")
    body = []
    for key, values in found.metrics.items():
        figures = summary(values)
        cells = (time_item(np.nan if (value := figures[name]) is None else value) for name in names)
        body.append((Item(text=_NAMES[key]), *cells))
    return Table(
        title="Times of requests",
        about="p99: 99 of 100 requests take no longer. Longest gap: between two tokens of an answer.",
        head=("of a request", *names),
        words=("of a request",),
        body=tuple(body),
    )


def _device(found: Simulation) -> Table:
    """What was simulated beside the means that the closed form gives."""
    closed, span = found.expected, found.copies * found.span_s
    rows: list[tuple[str, Item, Item]] = [
        (
            "mean time to first token",
            time_item(float(np.mean(found.ttft_s))),
            _closed(closed.ttft_s if closed else None),
        ),
        ("mean time per token", time_item(_mean(found.tpot_s)), _closed(closed.tpot_s if closed else None)),
        (
            "sequences at a time, each copy",
            number_item(found.usage.sequence_s / span),
            _plain(closed.batch if closed else None),
        ),
        ("device works", _share(found.utilization), _share(closed.utilization) if closed else _NOTHING),
        ("requests/s", number_item(found.requests_per_s), _NOTHING),
        ("most requests/s of all copies", _NOTHING, _plain(closed.max_rate * found.copies if closed else None)),
        ("tokens/s", number_item(found.tokens_per_s), _NOTHING),
        ("tokens/J at TDP", number_item(found.tokens_per_joule), _NOTHING),
        ("tokens/USD", number_item(found.tokens_per_dollar), _NOTHING),
    ]
    if found.readers:
        rows.insert(4, ("devices that read work", _share(found.reading_utilization), _NOTHING))
    if min(found.goals.ttft_s, found.goals.tpot_s) < np.inf:
        rows.insert(0, (f"within {_goals(found)}", _share(found.good), _NOTHING))
        rows.insert(1, ("of these requests/s", number_item(found.good * found.requests_per_s), _NOTHING))
    kept = [row for row in rows if any(item.text != "-" for item in row[1:])]
    return Table(
        title="Service",
        about="",
        head=("quantity", "simulated", "closed form"),
        words=("quantity",),
        body=tuple((Item(text=name), *items) for name, *items in kept),
    )


_NOTHING: Final = Item(text="-", key=-1.0)


def _closed(value: float | None) -> Item:
    if value is None:
        return _NOTHING
    return Item(text="grows", key=np.inf) if value == np.inf else time_item(value)


def _plain(value: float | None) -> Item:
    return _NOTHING if value is None else number_item(value)


def _share(value: float) -> Item:
    return Item(text=f"{value:.1%}", key=value)


def _mean(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
    return float(np.mean(values)) if len(values) else np.nan


def _goals(found: Simulation) -> str:
    goals = {"first token": found.goals.ttft_s, "a token": found.goals.tpot_s}
    return ", ".join(f"{seconds(value)} {name}" for name, value in goals.items() if value < np.inf)


def _cards(found: Simulation) -> list[Card]:
    ttft, tpot = summary(found.ttft_s), summary(found.tpot_s)
    cards = [
        Card(label="time to first token", value=seconds(ttft["p50"]), about=f"p99 {seconds(ttft['p99'])}"),
        Card(label="time per token", value=seconds(tpot["p50"]), about=f"p99 {seconds(tpot['p99'])}"),
        Card(
            label="tokens/s", value=number_item(found.tokens_per_s).text, about=f"{found.requests_per_s:.3g} requests/s"
        ),
        Card(label="device works", value=f"{found.utilization:.0%}", about=found.limit.partition(":")[0]),
    ]
    if min(found.goals.ttft_s, found.goals.tpot_s) < np.inf:
        cards.append(Card(label="within the goals", value=f"{found.good:.1%}", about=_goals(found)))
    return cards


def _pictures(found: Simulation) -> list[list[Picture]]:
    from .queues import queue, spread

    return [[picture(queue(found), "queue"), picture(spread(found), "spread")]]
