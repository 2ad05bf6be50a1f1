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

_TPOT_ROWS: Final = {"mean": "TPOT, mean", "p50": "TPOT, p50", "p99": "TPOT, p99"}


def title(result: Saturation) -> str:
    """The model and its devices."""
    return f"{result.setting.model.title} on {laid(result.setting, result.replicas)}, maximum throughput"


def headline(result: Saturation) -> str:
    """The request in one line."""
    setting, traffic = result.setting, result.traffic
    engine = f"{setting.engine.title}, " if setting.engine else ""
    techniques = "".join(f"{one}, " for one in setting.techniques)
    scope = " per rank" if setting.layout.dp > 1 else ""
    memory_note = "" if result.likely.capped else ", as KV memory allows"
    return (
        f"{title(result)}: {lengths(traffic)}, {setting.quantization}, {techniques}{engine}{result.policy}, max batch "
        f"{result.max_batch}{scope}{memory_note}"
    )


def remarks(result: Saturation) -> list[str]:
    """The bottleneck, and how the throughput was measured."""
    likely = result.likely
    lines = [f"Bottleneck: {likely.limit}"]
    lines += preempted(likely.span.preemptions, likely.span.usage)
    if result.searched:
        lines.append(
            f"Token budget: {result.policy.budget} per step, the smallest from {CHUNKS[0]} to {CHUNKS[-1]} within 1 % "
            "of the highest throughput; larger ones increase TPOT (--policy chunked:TOKENS)."
        )
    lines.append(
        f"Steady state: {counted(likely.span.answered, 'request')} of {len(result.traffic):,} finish in "
        f"{seconds(likely.span_s)}; warm-up and drain are excluded. All requests are queued at the start, so TTFT is "
        "not reported."
    )
    longest = int(np.max(result.traffic.prompt + result.traffic.gen))
    return [*lines, *beyond(result.setting.model, longest)]


def tables(result: Saturation) -> list[Table]:
    """Throughput of the simulation and of the closed form, at the bound and expected."""
    runs = [run for run in (result.bound, result.expected) if run]
    columns = [dict(_sustained(result, run)) for run in runs]
    head = [name for run in ("at the bound", "expected")[: len(runs)] for name in (run, "closed form")]
    columns_shown = [i for i, name in enumerate(head) if result.bound.closed or name != "closed form"]
    rows = [(name, [item for column in columns for item in column[name]]) for name in columns[0]]
    return [
        Table(
            title="Maximum throughput",
            about="Closed form: the maximum over all batches that fit." if result.bound.closed else "",
            head=("quantity", *(head[i] for i in columns_shown)),
            words=("quantity",),
            body=tuple(
                (Item(text=name), *(items[i] for i in columns_shown))
                for name, items in rows
                if any(item.text != "-" for item in items)
            ),
        )
    ]


def _sustained(result: Saturation, run: Sustained) -> Iterator[tuple[str, tuple[Item, Item]]]:
    """Rows of the table: (quantity, (simulated, closed form))."""
    prompt, gen = float(np.mean(result.traffic.prompt)), float(np.mean(result.traffic.gen))
    max_rate = run.closed.max_rate * result.replicas if run.closed else np.nan
    yield "output token throughput (tok/s)", (number_item(run.tokens_per_s), number_item(max_rate * gen))
    yield "input token throughput (tok/s)", (number_item(run.requests_per_s * prompt), number_item(max_rate * prompt))
    yield "request throughput (req/s)", (number_item(run.requests_per_s), number_item(max_rate))
    yield from steps(result.traffic, run.span.usage, result.setting)
    yield "running requests per replica", (number_item(run.running), DASH)
    yield "decode batch per replica", (number_item(run.decoding), DASH)
    tpot = summary(run.span.tpot_s)
    for key, name in _TPOT_ROWS.items():
        yield name, (_time(tpot[key]), DASH)
    yield "max ITL, mean", (_time(summary(run.span.gap_s)["mean"]), DASH)
    yield "tokens/J at TDP", (number_item(result.tokens_per_joule(run)), DASH)
    yield "tokens/USD", (number_item(result.tokens_per_dollar(run)), DASH)


def _time(value: float | None) -> Item:
    return DASH if value is None else time_item(value)


def _cards(result: Saturation) -> list[Card]:
    run = result.likely
    mean = summary(run.span.tpot_s)["mean"]
    return [
        Card(
            label="output token throughput", value=f"{number_item(run.tokens_per_s).text} tok/s", about="of all devices"
        ),
        Card(label="request throughput", value=f"{number_item(run.requests_per_s).text} req/s", about="of all devices"),
        Card(label="TPOT", value=seconds(mean) if mean else "-", about="mean"),
        Card(
            label="running requests", value=f"{run.running:.0f}", about=f"per replica; decode batch {run.decoding:.0f}"
        ),
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
