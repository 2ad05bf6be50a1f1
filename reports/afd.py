"""The report on attention and experts on separate devices."""

from __future__ import annotations

from typing import Final

import numpy as np

from llmviewer.analyzing.afd import Busy, ExpertDisaggregation
from llmviewer.setting import Setting
from llmviewer.units import seconds, si

from .parts import Card
from .report import Report
from .tables import DASH, Item, Table, number_item, time_item


def title(result: ExpertDisaggregation) -> str:
    """Model and the devices of each side."""
    return f"{result.attention.model.title}: attention on {_side(result.attention)}, experts on {_side(result.experts)}"


def headline(result: ExpertDisaggregation) -> str:
    """The request in one line."""
    return (
        f"{title(result)}: decode at context {result.kv_len}, {result.attention.quantization}, "
        f"{result.link} links between them"
    )


def _side(setting: Setting) -> str:
    devices = setting.layout.devices
    return f"{devices} x {setting.hardware.name}" if devices > 1 else setting.hardware.name


def tables(result: ExpertDisaggregation) -> list[Table]:
    """The batches: step time, throughput, and busy shares of attention, experts and links."""
    busy = result.likely
    body = []
    for place, limit in enumerate(busy.limits):
        expected = result.expected.expected.step_s[place] if result.expected else np.nan
        body.append((
            Item(text=limit),
            Item(text=f"{result.batch[place]:.0f}", key=result.batch[place]),
            Item(text=f"{result.micro_batches[place]:.0f}", key=result.micro_batches[place]),
            time_item(result.bound.step_s[place]),
            time_item(expected),
            number_item(result.tokens_per_s[place]),
            DASH if result.together is None else number_item(result.together[place]),
            *shares(busy, place),
            Item(text="yes" if result.fits[place] else "no"),
        ))  # fmt: skip
    return [
        Table(
            title="Decode steps",
            about="tokens/s: mean per device, disaggregated and colocated (as many devices, each with attention and "
            "experts); attn, experts, links: utilization.",
            head=(
                "limit", "batch", "mb", "TPOT >=", "expected", "tokens/s", "colocated", "attn", "experts", "links",
                "fits",
            ),
            words=("limit",),
            body=tuple(body),
        ).without_constants("expected", "colocated")
    ]  # fmt: skip


def shares(likely: Busy, place: int) -> tuple[Item, ...]:
    """Shares of a step in which attention, experts and links are busy."""
    times = (busy_s[place] / likely.step_s[place] for busy_s in (likely.attention, likely.experts, likely.links))
    return tuple(Item(text=f"{busy_s:.0%}", key=busy_s) for busy_s in times)


def remarks(result: ExpertDisaggregation) -> list[str]:
    """Device ratio that would balance both sides at the best batch, and the memory that each side needs."""
    best = result.best
    lines = []
    if result.fits.any():
        ratio = result.attention_per_expert[best]
        larger, smaller = ("attention", "expert") if ratio >= 1 else ("expert", "attention")
        lines.append(
            f"At batch {result.batch[best]:.0f}, {max(ratio, 1 / ratio):.3g} {larger} devices per {smaller} device "
            f"would balance both sides; this split has {result.attention.layout.devices} and "
            f"{result.experts.layout.devices}."
        )
        lines += _comparison(result)
    lines += [
        f"Memory of {name} devices: {si(needed_bytes[best])}B of {si(one.hardware.capacity)}B at batch "
        f"{result.batch[best]:.0f}; {_max_batch_text(max_batch)}."
        for name, one, needed_bytes, max_batch in (
            ("attention", result.attention, result.attention_bytes, result.attention_batch),
            ("expert", result.experts, result.expert_bytes, result.expert_batch),
        )
    ]
    return lines


def _comparison(result: ExpertDisaggregation) -> list[str]:
    """The highest throughput with and without disaggregation, of the batches shown that fit."""
    if result.together is None:
        devices = result.attention.layout.devices
        return [f"No comparison without disaggregation: {devices} devices do not divide the number of experts."]
    if np.isnan(result.together).all():
        return ["Without disaggregation, none of these batches fits."]
    best, other = result.best, int(np.nanargmax(result.together))
    disaggregated_rate, together_rate = result.tokens_per_s[best], result.together[other]
    rates = (
        "Highest tokens/s per device of the batches that fit: "
        f"{number_item(disaggregated_rate).text} with disaggregation, "
        f"{number_item(together_rate).text} without: {disaggregated_rate / together_rate:.3g}x."
    )
    if result.tokens_per_usd is not None and result.together_tokens_per_usd is not None:
        per_dollar = (
            number_item(result.tokens_per_usd[best]).text,
            number_item(result.together_tokens_per_usd[other]).text,
        )
        return [rates, f"Tokens per dollar: {per_dollar[0]} with disaggregation, {per_dollar[1]} without."]
    return [rates]


def _max_batch_text(batch: int | None) -> str:
    if batch is None:
        return "any batch fits"
    return f"a batch of {batch:,} fits" if batch else "no sequence fits"


def basis(result: ExpertDisaggregation) -> str:
    """Explanation of the columns, and the 80 % interval of expected times."""
    explanation = (
        f"A token is sent to {result.copies:.3g} expert devices per layer. mb: micro-batches, which alternate between "
        "attention and experts. TPOT is at least the time of the busiest of attention, experts and links, and the "
        "latency of one micro-batch."
    )
    if not result.expected:
        return f"{explanation} Only bounds: no kernels were measured for one of the devices."
    low, high = (np.mean(side.step_s / result.likely.step_s) for side in (result.expected.low, result.expected.high))
    return f"{explanation} 80 % interval: {low:.2g} to {high:.2g} times the expected time."


def _cards(result: ExpertDisaggregation) -> list[Card]:
    if not result.fits.any():
        return []
    best = result.best
    batch = result.batch[best]
    return [
        Card(label="tokens", value=f"{number_item(result.tokens_per_s[best]).text}/s", about="highest per device"),
        Card(label="TPOT", value=seconds(result.likely.step_s[best]), about=f"at a batch of {batch:.0f}"),
        Card(label="limit", value=result.likely.limits[best], about="busy longest"),
    ]


REPORT: Final = Report[ExpertDisaggregation](
    name="afd", title=title, headline=headline, tables=tables, remarks=remarks, basis=basis, cards=_cards
)
