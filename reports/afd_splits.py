"""The report on the best splits of devices between attention and experts."""

from __future__ import annotations

from typing import Final

from llmviewer.analyzing.afd_splits import Split, Splits
from llmviewer.units import seconds

from .afd import shares
from .parts import Card
from .report import Report
from .tables import Item, Table, number_item, time_item

_SHOWN: Final = 8


def title(result: Splits) -> str:
    best = result.splits[0].found
    kinds = f"attention on {best.attention.hardware.name}, experts on {best.experts.hardware.name}"
    return f"{best.attention.model.title} on {result.devices} devices: {kinds}"


def headline(result: Splits) -> str:
    """The request in one line."""
    best = result.splits[0].found
    goal = f", a token each in {seconds(result.tpot)}" if result.tpot else ""
    return (
        f"{title(result)}: decode at a context of {best.kv_len} tokens, {best.attention.quantization}, {best.link} "
        f"links between them{goal}"
    )


def _row(split: Split) -> tuple[Item, ...]:
    found, at = split.found, split.at
    expected = found.expected.expected.step_s[at] if found.expected else float("nan")
    return (
        Item(text=str(found.attention.layout)),
        Item(text=str(found.experts.layout.devices), key=found.experts.layout.devices),
        Item(text=f"{found.batch[at]:.0f}", key=found.batch[at]),
        Item(text=f"{found.micro_batches[at]:.0f}", key=found.micro_batches[at]),
        time_item(found.bound.step_s[at]),
        time_item(expected),
        number_item(split.tokens_per_s),
        *shares(found.likely, at),
    )


def tables(result: Splits) -> list[Table]:
    return [
        Table(
            title="Best splits",
            about="tokens/s: of each device on average; TPOT: the bound; attn, experts, links: part of the time that "
            "they are busy.",
            head=("attention", "on", "batch", "parts", "TPOT", "expect", "tokens/s", "attn", "experts", "links"),
            words=("attention",),
            body=tuple(map(_row, result.splits[:_SHOWN])),
        )
    ]


def remarks(result: Splits) -> list[str]:
    split = result.splits[0]
    best, at = split.found, split.at
    lines = [f"Of {result.tried} splits, {len(result.splits)} fit and are in time; each with its best batch and parts."]
    if best.together is not None and best.together[at] > 0:
        together = number_item(best.together[at]).text
        lines.append(
            f"Without disaggregation, on {best.attention.hardware.name} alone with as many sequences per device: "
            f"{together} tokens a second and device."
        )
    return lines


def basis(result: Splits) -> str:  # noqa: ARG001
    return "Columns are those of `llmviewer afd` with the layout and devices of a row, which says more of each."


def _cards(result: Splits) -> list[Card]:
    best = result.splits[0]
    sides = f"{best.found.attention.layout.devices} + {best.found.experts.layout.devices}"
    return [
        Card(label="devices", value=sides, about="for attention and experts"),
        Card(label="tokens", value=f"{number_item(best.tokens_per_s).text}/s", about="a device"),
        Card(label="time per token", value=seconds(best.found.likely.step_s[best.at]), about="of a step"),
    ]


REPORT: Final = Report[Splits](
    name="afd-splits", title=title, headline=headline, tables=tables, remarks=remarks, basis=basis, cards=_cards
)
