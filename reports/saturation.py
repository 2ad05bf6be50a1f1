"""The report on the highest load that replicas of a model sustain."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from llmviewer.serving.outcome import summary
from llmviewer.serving.saturation import CHUNKS, Saturation, Sustained
from llmviewer.units import counted, seconds

from .parts import Card
from .report import Report
from .serving import basis, beyond, laid, lengths, preempted, steps
from .tables import DASH, Item, Table, number_item, time_item

_TIMES = {"mean": "time per token, mean", "p50": "time per token, p50", "p99": "time per token, p99"}


def title(result: Saturation) -> str:
    return f"{result.setting.model.title}: what {laid(result.setting, result.copies)} serves at most"


def headline(result: Saturation) -> str:
    """The request in one line."""
    setting, traffic = result.setting, result.traffic
    engine = f"{setting.engine.title}, " if setting.engine else ""
    techniques = "".join(f"{one}, " for one in setting.techniques)
    each = " on each rank" if setting.layout.dp > 1 else ""
    room = "" if result.likely.capped else ", as many as memory nearly always has room for"
    return (
        f"{title(result)}: {lengths(traffic)}, {setting.quantization}, {techniques}{engine}{result.policy}, at most "
        f"{result.max_batch} at a time{each}{room}"
    )


def remarks(result: Saturation) -> list[str]:
    likely = result.likely
    lines = [f"Bottleneck: {likely.limit}"]
    lines += preempted(likely.span.preemptions, likely.span.usage)
    if result.searched:
        lines.append(
            f"Steps are of {result.policy.budget} tokens: of {CHUNKS[0]} to {CHUNKS[-1]} the fewest that serve within "
            "1 % of the highest throughput. Larger ones slow down decoding (--policy chunked:TOKENS)."
        )
    lines.append(
        f"Steady state: {counted(likely.span.answered, 'request')} of {len(result.traffic):,} that all arrive at the "
        f"start, in {seconds(likely.span_s)}; warm-up and drain are excluded, and queueing times say nothing."
    )
    longest = int(np.max(result.traffic.prompt + result.traffic.gen))
    return [*lines, *beyond(result.setting.model, longest)]


def tables(result: Saturation) -> list[Table]:
    """The simulation beside the closed form, at the bound and as expected."""
    runs = [run for run in (result.bound, result.expected) if run]
    columns = [dict(_sustained(result, run)) for run in runs]
    head = [name for run in ("at the bound", "expected")[: len(runs)] for name in (run, "closed form")]
    shown = [i for i, name in enumerate(head) if result.bound.closed or name != "closed form"]
    rows = [(name, [item for column in columns for item in column[name]]) for name in columns[0]]
    return [
        Table(
            title="At saturation",
            about="Closed form: the most over all batches that fit." if result.bound.closed else "",
            head=("quantity", *(head[i] for i in shown)),
            words=("quantity",),
            body=tuple(
                (Item(text=name), *(items[i] for i in shown))
                for name, items in rows
                if any(item.text != "-" for item in items)
            ),
        )
    ]


def _sustained(result: Saturation, run: Sustained) -> Iterator[tuple[str, tuple[Item, Item]]]:
    """(quantity, (simulated, closed form))"""
    prompt, gen = float(np.mean(result.traffic.prompt)), float(np.mean(result.traffic.gen))
    most = run.closed.max_rate * result.copies if run.closed else np.nan
    yield "tokens/s written", (number_item(run.tokens_per_s), number_item(most * gen))
    yield "tokens/s read", (number_item(run.requests_per_s * prompt), number_item(most * prompt))
    yield "requests/s", (number_item(run.requests_per_s), number_item(most))
    yield from steps(result.traffic, run.span.usage, result.setting)
    yield "sequences at a time, each copy", (number_item(run.running), DASH)
    yield "of these decode", (number_item(run.decoding), DASH)
    tpot = summary(run.span.tpot_s)
    for key, name in _TIMES.items():
        yield name, (_time(tpot[key]), DASH)
    yield "longest gap, mean", (_time(summary(run.span.gap_s)["mean"]), DASH)
    yield "tokens/J at TDP", (number_item(result.tokens_per_joule(run)), DASH)
    yield "tokens/USD", (number_item(result.tokens_per_dollar(run)), DASH)


def _time(value: float | None) -> Item:
    return DASH if value is None else time_item(value)


def _cards(result: Saturation) -> list[Card]:
    run = result.likely
    mean = summary(run.span.tpot_s)["mean"]
    return [
        Card(label="tokens written", value=f"{number_item(run.tokens_per_s).text}/s", about="by all devices together"),
        Card(label="answers", value=f"{number_item(run.requests_per_s).text}/s", about="as many requests are admitted"),
        Card(label="time per token", value=seconds(mean) if mean else "-", about="mean of the answers"),
        Card(label="sequences at a time", value=f"{run.running:.0f}", about=f"in each copy; {run.decoding:.0f} decode"),
    ]


REPORT: Final = Report[Saturation](
    name="saturation",
    title=title,
    headline=headline,
    tables=tables,
    remarks=remarks,
    basis=basis,
    cards=_cards,
)
