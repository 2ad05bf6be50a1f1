"""Experts on devices of their own, as text, Markdown, CSV, JSON and HTML."""

from __future__ import annotations

from typing import Final

import numpy as np

from llmviewer.analyzing.afd import Busy, ExpertDisaggregation
from llmviewer.setting import Setting
from llmviewer.units import seconds, si

from .parts import Card
from .report import Report
from .tables import NOTHING, Item, Table, number_item, time_item


def title(found: ExpertDisaggregation) -> str:
    return f"{found.attention.model.title}: attention on {_side(found.attention)}, experts on {_side(found.experts)}"


def headline(found: ExpertDisaggregation) -> str:
    """What was asked, in one line."""
    return (
        f"{title(found)}: decode at a context of {found.kv_len} tokens, {found.attention.quantization}, {found.link} "
        "links between them"
    )


def _side(setting: Setting) -> str:
    devices = setting.layout.devices
    return f"{devices} x {setting.hardware.name}" if devices > 1 else setting.hardware.name


def tables(found: ExpertDisaggregation) -> list[Table]:
    likely = found.likely
    body = []
    for at, limit in enumerate(likely.limits):
        expected = found.expected.expected.step_s[at] if found.expected else np.nan
        body.append((
            Item(text=limit),
            Item(text=f"{found.batch[at]:.0f}", key=found.batch[at]),
            Item(text=f"{found.micro_batches[at]:.0f}", key=found.micro_batches[at]),
            time_item(found.bound.step_s[at]),
            time_item(expected),
            number_item(found.tokens_per_s[at]),
            NOTHING if found.together is None else number_item(found.together[at]),
            *shares(likely, at),
            Item(text="yes" if found.fits[at] else "no"),
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
    """Parts of a step in which attention, experts and links are at work."""
    parts = (part[at] / likely.step_s[at] for part in (likely.attention, likely.experts, likely.links))
    return tuple(Item(text=f"{part:.0%}", key=part) for part in parts)


def remarks(found: ExpertDisaggregation) -> list[str]:
    best = found.best
    lines = []
    if found.fits.any():
        ratio = found.attention_per_expert[best]
        many, of_one = ("attention", "expert") if ratio >= 1 else ("expert", "attention")
        lines.append(
            f"At batch {found.batch[best]:.0f}, {max(ratio, 1 / ratio):.3g} {many} devices for each {of_one} device "
            f"would keep both sides equally busy; here there are {found.attention.layout.devices} and "
            f"{found.experts.layout.devices}."
        )
        lines += _beside(found)
    lines += [
        f"Memory of {name} devices: {si(needed[best])}B of {si(one.hardware.capacity)}B at batch "
        f"{found.batch[best]:.0f}; {_most(most)}."
        for name, one, needed, most in (
            ("attention", found.attention, found.attention_bytes, found.attention_batch),
            ("expert", found.experts, found.expert_bytes, found.expert_batch),
        )
    ]
    return lines


def _beside(found: ExpertDisaggregation) -> list[str]:
    """The most tokens per second with and without disaggregation, of the batches shown that fit."""
    if found.together is None:
        devices = found.attention.layout.devices
        return [f"No comparison without disaggregation: {devices} devices do not divide the experts."]
    if np.isnan(found.together).all():
        return ["Without disaggregation, none of these batches fits."]
    best, other = found.best, int(np.nanargmax(found.together))
    apart, together = found.tokens_per_s[best], found.together[other]
    most = (
        f"Tokens a second and device, at most, of the batches that fit: {number_item(apart).text} with disaggregation, "
        f"{number_item(together).text} without: {apart / together:.3g}x."
    )
    if found.tokens_per_usd is not None and found.together_tokens_per_usd is not None:
        bought = (number_item(found.tokens_per_usd[best]).text, number_item(found.together_tokens_per_usd[other]).text)
        return [most, f"Tokens per dollar: {bought[0]} with disaggregation, {bought[1]} without."]
    return [most]


def _most(batch: int | None) -> str:
    if batch is None:
        return "any batch fits"
    return f"a batch of {batch:,} fits" if batch else "not one sequence fits"


def said(found: ExpertDisaggregation) -> str:
    counted = (
        f"A token goes to {found.copies:.3g} expert devices in a layer. Parts: micro-batches that take turns, so that "
        "one is with the experts while another is with attention. No schedule is faster than the side, or the links, "
        "that all of them keep busy longest, nor than one of them alone (latency)."
    )
    if not found.expected:
        return f"{counted} Of kernels on one of the devices nothing more is known than the bound."
    low, high = (np.mean(side.step_s / found.likely.step_s) for side in (found.expected.low, found.expected.high))
    return f"{counted} 80 % of steps take {low:.2g} to {high:.2g} times what is expected."


def _cards(found: ExpertDisaggregation) -> list[Card]:
    if not found.fits.any():
        return []
    best = found.best
    batch = found.batch[best]
    return [
        Card(label="tokens", value=f"{number_item(found.tokens_per_s[best]).text}/s", about="a device, at most here"),
        Card(label="time per token", value=seconds(found.likely.step_s[best]), about=f"at a batch of {batch:.0f}"),
        Card(label="limit", value=found.likely.limits[best], about="busy longest"),
    ]


REPORT: Final = Report[ExpertDisaggregation](
    name="afd", title=title, headline=headline, tables=tables, remarks=remarks, said=said, cards=_cards
)
