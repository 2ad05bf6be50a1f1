"""A recorded pass beside its analysis, as text, Markdown, CSV, JSON and HTML."""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import Final

import numpy as np

from llmviewer.timelines.against import IDLE, PartOfPass, Recorded
from llmviewer.timelines.kinds import Part
from llmviewer.units import counted, seconds

from .listing import NOTHING, Item, Table, digits, time_item
from .page import Card, Picture, picture
from .report import Report

_KERNELS: Final = 15  # in words
_NAME: Final = 33  # characters of a kernel's name
_PLAIN: Final = re.compile(r"^(?:void |std::enable_if<.*?>::type )+")
_BESIDE: Final = 0.05  # of a pass, below which nothing is worth a word
_BELOW: Final = 0.97  # of its bound, from which a part is said to be below it


def title(found: Recorded) -> str:
    return f"{found.analysis.model.title} on {found.analysis.hardware.title}: {found.phase} as it was recorded"


def headline(found: Recorded) -> str:
    asked, shown = found.analysis.inputs, found.of_phase
    length = f"context {shown.kv_len}" if found.phase == "decode" else f"{shown.q_len} tokens a prompt"
    layout = f"{asked.layout}, " if asked.layout else ""
    total = shown.total
    sides = f"{seconds(total.expected_low_s)} to {seconds(total.expected_high_s)}"
    expect = f"; expect {seconds(total.expected_time_s)} ({sides})" if total.expected_time_s is not None else ""
    return (
        f"{title(found)} in {PurePath(found.file).name}: batch {asked.batch}, {length}, {layout}{asked.quant}. A pass "
        f"takes {_taken(found)}; at least {seconds(total.bound_time_s)}{expect}."
    )


def _taken(found: Recorded) -> str:
    if found.idle_s is None:
        return f"{seconds(found.time_s)} in kernels, of which the file has sums alone"
    return f"{seconds(found.time_s)}, in {found.idle_s / found.time_s:.0%} of which nothing runs"


def remarks(found: Recorded) -> list[str]:
    return [*_others(found), *_partial(found), *_over(found), *_below(found), *_averaged(found)]


def _others(found: Recorded) -> list[str]:
    """Where the engine named the pass, and it is not what was asked for."""
    step, batch = found.passes.step, found.analysis.inputs.batch
    decodes = found.phase == "decode"
    if step is None or (step.reads, step.writes) == ((0, batch) if decodes else (batch, 0)):
        return []
    reads, writes = counted(step.reads, "prompt"), counted(step.writes, "token")
    return [f"These passes read {reads} and write {writes}, as the engine named them; asked was a batch of {batch}."]


def _partial(found: Recorded) -> list[str]:
    """Where a pass has too few launches for the model."""
    if not 0 < found.mixing < found.layers:
        return []
    few = f"Passes have {found.mixing:.3g} launches that mix tokens, and {found.analysis.model.name} {found.layers}"
    return [f"{few} layers that do: they are parts of passes (--passes says how many there are), or another model's."]


def _over(found: Recorded) -> list[str]:
    """Where a pass takes longer than is expected, most first."""
    over = [
        (part.measured_s - part.expected_s, f"{part.part} {_times(part.measured_s, part.expected_s)}")
        for part in found.parts
        if part.expected_s and part.measured_s > (part.expected_high_s or part.expected_s)
    ]
    host = found.of_phase.total.host_s or 0.0
    if found.idle_s is not None:
        over.append((found.idle_s - host, f"{IDLE}, as the host, or what it waits for, is late"))
    told = [
        f"{text}, {seconds(more)} more" for more, text in sorted(over, reverse=True) if more > _BESIDE * found.time_s
    ]
    return [f"Slower than expected: {'; '.join(told)}."] if told else []


def _times(measured: float, expected: float) -> str:
    return f"{measured / expected:.2g} times what is expected"


def _below(found: Recorded) -> list[str]:
    """Where kernels are faster than can be; elementwise ones are, where they are fused."""
    parts = (part for part in found.parts if part.part != Part.ELEMENTWISE)
    below = [part.part for part in parts if 0 < part.measured_s < _BELOW * part.bound_s]
    why = "batch, lengths, precision or layout were others than those given, or operands stood in a cache"
    return [f"Faster than the bound: {' and '.join(below)}; {why}."] if below else []


def _averaged(found: Recorded) -> list[str]:
    mean, each = found.passes, found.passes.each_s
    left = f"; {counted(mean.others, 'other')}, of other kernels or cut off, left out" if mean.others else ""
    spread = ""
    if len(each) > 1:
        spread = f", {seconds(float(np.quantile(each, 0.2)))} to {seconds(float(np.quantile(each, 0.8)))} (p20 to p80)"
    ranks = f" One of the {found.devices} devices of the file." if found.devices > 1 else ""
    return [f"Mean of {counted(mean.passes, 'pass', 'passes')}{spread}{left}.{ranks}"]


def said(_: Recorded) -> str:
    return (
        "at least: what no kernel beats; expect: what measured kernels take. Kernels are told apart by their names, "
        "and fused ones count where most of their work is (docs/timeline.md)."
    )


def tables(found: Recorded) -> list[Table]:
    return [_parts(found), *_products(found), _kernels(found)]


def _parts(found: Recorded) -> Table:
    rows = [_part(found, part) for part in found.parts]
    if found.idle_s is not None:
        host = found.of_phase.total.host_s
        rows.append((
            Item(text=IDLE), NOTHING, time_item(found.idle_s), _share(found.idle_s, found), NOTHING,
            NOTHING if host is None else time_item(host), NOTHING,
        ))  # fmt: skip
    return Table(
        title=f"Parts of a pass, {seconds(found.time_s)}",
        about="",
        head=("part", "launches", "recorded", "share", "at least", "expect", "of it"),
        words=("part",),
        body=tuple(rows),
    )


def _part(found: Recorded, part: PartOfPass) -> tuple[Item, ...]:
    return (
        Item(text=part.part),
        Item(text=digits(part.launches), key=part.launches),
        time_item(part.measured_s),
        _share(part.measured_s, found),
        time_item(part.bound_s) if part.bound_s else NOTHING,
        time_item(part.expected_s) if part.expected_s else NOTHING,
        _ratio(part.measured_s, part.expected_s),
    )


def _share(taken: float, found: Recorded) -> Item:
    return Item(text=f"{taken / found.time_s:.1%}", key=taken / found.time_s)


def _products(found: Recorded) -> list[Table]:
    several = len({product.block for product in found.products}) > 2
    rows = [
        (
            Item(text=f"{product.block}: " * several + ", ".join(product.operators)),
            Item(text=digits(product.launches), key=product.launches),
            time_item(product.measured_s / product.launches),
            time_item(product.bound_s / product.launches),
            time_item(product.expected_s / product.launches) if product.expected_s else NOTHING,
            _ratio(product.measured_s, product.expected_s),
        )
        for product in found.products
    ]
    return [
        Table(
            title="Matrix products, each",
            about="By their order in a pass; at least and expect are of operators one by one.",
            head=("products", "launches", "recorded", "at least", "expect", "of it"),
            words=("products",),
            body=tuple(rows),
        )
    ][: len(rows)]


def _ratio(measured_s: float, expected_s: float | None) -> Item:
    return Item(text=f"{measured_s / expected_s:.2f}x", key=measured_s / expected_s) if expected_s else NOTHING


def _kernels(found: Recorded) -> Table:
    more = len(found.kernels) - _KERNELS
    rest = sum(kernel.measured_s for kernel in found.kernels[_KERNELS:])
    about = f"{counted(more, 'kernel')} more: {seconds(rest)}; -o FILE.csv or .json has all." if more > 0 else ""
    return Table(
        title="Kernels of a pass",
        about=about,
        head=("kernel", "part", "launches", "each", "all", "share"),
        words=("kernel", "part"),
        body=tuple(
            (
                Item(text=_short(kernel.name)),
                Item(text=kernel.part),
                Item(text=digits(kernel.launches), key=kernel.launches),
                time_item(kernel.measured_s / kernel.launches),
                time_item(kernel.measured_s),
                _share(kernel.measured_s, found),
            )
            for kernel in found.kernels[:_KERNELS]
        ),
    )


def _short(name: str) -> str:
    plain = _PLAIN.sub("", name)
    return plain if len(plain) <= _NAME else f"{plain[: _NAME - 3]}..."


def _cards(found: Recorded) -> list[Card]:
    total = found.of_phase.total
    others = {"at least": total.bound_time_s, "expected": total.expected_time_s, IDLE: found.idle_s}
    return [Card(label="a pass", value=seconds(found.time_s), about="recorded")] + [
        Card(label=label, value=seconds(taken), about=f"{taken / found.time_s:.0%} of it")
        for label, taken in others.items()
        if taken is not None
    ]


def _pictures(found: Recorded) -> list[list[Picture]]:
    from .recordings import part_bars

    return [[picture(part_bars(found), "parts")]]


REPORT: Final = Report[Recorded](
    name="timeline",
    title=title,
    headline=headline,
    tables=tables,
    remarks=remarks,
    said=said,
    cards=_cards,
    pictures=_pictures,
)
