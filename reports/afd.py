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
    return f"{result.attention.model.title}: attention on {_side(result.attention)}, experts on {_side(result.experts)}"


def headline(result: ExpertDisaggregation) -> str:
    """The request in one line."""
    return (
        f"{title(result)}: decode at a context of {result.kv_len} tokens, {result.attention.quantization}, "
        f"{result.link} links between them"
    )


def _side(setting: Setting) -> str:
    devices = setting.layout.devices
    return f"{devices} x {setting.hardware.name}" if devices > 1 else setting.hardware.name


def tables(result: ExpertDisaggregation) -> list[Table]:
    busy = result.likely
    body = []
    for at, limit in enumerate(busy.limits):
        expected = result.expected.expected.step_s[at] if result.expected else np.nan
        body.append((
            Item(text=limit),
            Item(text=f"{result.batch[at]:.0f}", key=result.batch[at]),
            Item(text=f"{result.micro_batches[at]:.0f}", key=result.micro_batches[at]),
            time_item(result.bound.step_s[at]),
            time_item(expected),
            number_item(result.tokens_per_s[at]),
            DASH if result.together is None else number_item(result.together[at]),
            *shares(busy, at),
            Item(text="yes" if result.fits[at] else "no"),
        ))  # fmt: skip
    return [
        Table(
            title="Decode steps",
            about="TPOT: the bound; tokens/s: of each device on average, beside that of as many devices that have "
            "attention and experts together; attn, experts, links: part of the time that they are busy.",
            head=(
                "limit", "batch", "parts", "TPOT", "expect", "tokens/s", "together", "attn", "experts", "links",
                "fits",
            ),
            words=("limit",),
            body=tuple(body),
        ).without_constants("expect", "together")
    ]  # fmt: skip


def shares(likely: Busy, at: int) -> tuple[Item, ...]:
    """Shares of a step in which attention, experts and links are busy."""
    times = (busy_s[at] / likely.step_s[at] for busy_s in (likely.attention, likely.experts, likely.links))
    return tuple(Item(text=f"{busy_s:.0%}", key=busy_s) for busy_s in times)


def remarks(result: ExpertDisaggregation) -> list[str]:
    best = result.best
    lines = []
    if result.fits.any():
        ratio = result.attention_per_expert[best]
        many, each = ("attention", "expert") if ratio >= 1 else ("expert", "attention")
        lines.append(
            f"At batch {result.batch[best]:.0f}, {max(ratio, 1 / ratio):.3g} {many} devices for each {each} device "
            f"would keep both sides equally busy; here there are {result.attention.layout.devices} and "
            f"{result.experts.layout.devices}."
        )
        lines += _beside(result)
    lines += [
        f"Memory of {name} devices: {si(needed[best])}B of {si(one.hardware.capacity)}B at batch "
        f"{result.batch[best]:.0f}; {_most(most)}."
        for name, one, needed, most in (
            ("attention", result.attention, result.attention_bytes, result.attention_batch),
            ("expert", result.experts, result.expert_bytes, result.expert_batch),
        )
    ]
    return lines


def _beside(result: ExpertDisaggregation) -> list[str]:
    """The highest throughput with and without disaggregation, of the batches shown that fit."""
    if result.together is None:
        devices = result.attention.layout.devices
        return [f"No comparison without disaggregation: {devices} devices do not divide the experts."]
    if np.isnan(result.together).all():
        return ["Without disaggregation, none of these batches fits."]
    best, other = result.best, int(np.nanargmax(result.together))
    apart, together = result.tokens_per_s[best], result.together[other]
    most = (
        f"Tokens a second and device, at most, of the batches that fit: {number_item(apart).text} with disaggregation, "
        f"{number_item(together).text} without: {apart / together:.3g}x."
    )
    if result.tokens_per_usd is not None and result.together_tokens_per_usd is not None:
        bought = (
            number_item(result.tokens_per_usd[best]).text,
            number_item(result.together_tokens_per_usd[other]).text,
        )
        return [most, f"Tokens per dollar: {bought[0]} with disaggregation, {bought[1]} without."]
    return [most]


def _most(batch: int | None) -> str:
    if batch is None:
        return "any batch fits"
    return f"a batch of {batch:,} fits" if batch else "not one sequence fits"


def basis(result: ExpertDisaggregation) -> str:
    counted = (
        f"A token goes to {result.copies:.3g} expert devices in a layer. Parts: micro-batches that take turns, so that "
        "one is with the experts while another is with attention. No schedule is faster than the side, or the links, "
        "that all of them keep busy longest, nor than one of them alone (latency)."
    )
    if not result.expected:
        return f"{counted} Of kernels on one of the devices nothing more is known than the bound."
    low, high = (np.mean(side.step_s / result.likely.step_s) for side in (result.expected.low, result.expected.high))
    return f"{counted} 80 % of steps take {low:.2g} to {high:.2g} times what is expected."


def _cards(result: ExpertDisaggregation) -> list[Card]:
    if not result.fits.any():
        return []
    best = result.best
    batch = result.batch[best]
    return [
        Card(label="tokens", value=f"{number_item(result.tokens_per_s[best]).text}/s", about="a device, at most here"),
        Card(label="time per token", value=seconds(result.likely.step_s[best]), about=f"at a batch of {batch:.0f}"),
        Card(label="limit", value=result.likely.limits[best], about="busy longest"),
    ]


REPORT: Final = Report[ExpertDisaggregation](
    name="afd", title=title, headline=headline, tables=tables, remarks=remarks, basis=basis, cards=_cards
)
