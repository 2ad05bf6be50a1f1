"""The report on the best splits of devices between attention and experts."""

from __future__ import annotations

from typing import Final

from llmviewer.analyzing.afd_splits import Split, Splits
from llmviewer.units import seconds

from .afd import shares
from .parts import Card
from .report import Report
from .tables import Item, Table, number_item, time_item

_MAX_ROWS: Final = 8  # rows of the table


def title(result: Splits) -> str:
    """Model, number of devices and the kinds of each side."""
    best = result.splits[0].result
    kinds = f"attention on {best.attention.hardware.name}, experts on {best.experts.hardware.name}"
    return f"{best.attention.model.title} on {result.devices} devices: {kinds}"


def headline(result: Splits) -> str:
    """The request in one line."""
    best = result.splits[0].result
    goal = f", TPOT <= {seconds(result.tpot)}" if result.tpot else ""
    return (
        f"{title(result)}: decode at context {best.kv_len}, {best.attention.quantization}, {best.link} "
        f"links between them{goal}"
    )


def _row(split: Split) -> tuple[Item, ...]:
    result, place = split.result, split.place
    expected = result.expected.expected.step_s[place] if result.expected else float("nan")
    return (
        Item(text=str(result.attention.layout)),
        Item(text=str(result.experts.layout.devices), key=result.experts.layout.devices),
        Item(text=f"{result.batch[place]:.0f}", key=result.batch[place]),
        Item(text=f"{result.micro_batches[place]:.0f}", key=result.micro_batches[place]),
        time_item(result.bound.step_s[place]),
        time_item(expected),
        number_item(split.tokens_per_s),
        *shares(result.likely, place),
    )


def tables(result: Splits) -> list[Table]:
    """The best splits with batch, micro-batches, TPOT, throughput and utilization."""
    return [
        Table(
            title="Best splits",
            about="EP: expert devices. mb: micro-batches. tokens/s: mean per device; the rest: utilization.",
            head=(
                "attention",
                "EP",
                "batch",
                "mb",
                "TPOT >=",
                "expected",
                "tokens/s",
                "attn",
                "experts",
                "links",
            ),
            words=("attention",),
            body=tuple(map(_row, result.splits[:_MAX_ROWS])),
        )
    ]


def remarks(result: Splits) -> list[str]:
    """Number of splits that qualify, and the throughput without disaggregation."""
    split = result.splits[0]
    best, place = split.result, split.place
    count = f"{len(result.splits)} of {result.tried} splits"
    lines = [f"{count} fit and meet the target; each with its best batch and micro-batches."]
    if best.together is not None and best.together[place] > 0:
        together_rate = number_item(best.together[place]).text
        lines.append(
            f"Without disaggregation, on {best.attention.hardware.name} with as many sequences per device: "
            f"{together_rate} tokens/s per device."
        )
    return lines


def basis(result: Splits) -> str:  # noqa: ARG001
    """The command that has the details of a split."""
    return "`llmviewer afd` with the layout and devices of a row has the details of that split."


def _cards(result: Splits) -> list[Card]:
    best = result.splits[0]
    sides = f"{best.result.attention.layout.devices} + {best.result.experts.layout.devices}"
    return [
        Card(label="devices", value=sides, about="for attention and experts"),
        Card(label="tokens", value=f"{number_item(best.tokens_per_s).text}/s", about="per device"),
        Card(label="TPOT", value=seconds(best.result.likely.step_s[best.place]), about="of a step"),
    ]


REPORT: Final = Report[Splits](
    name="afd-splits", title=title, headline=headline, tables=tables, remarks=remarks, basis=basis, cards=_cards
)
