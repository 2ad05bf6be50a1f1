"""The report on a choice: the ranking, what it correlates with, and why other devices do not qualify."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import isinf
from typing import Final

import numpy as np

from llmviewer.analyzing.costs import By
from llmviewer.comparing.cells import Cell
from llmviewer.comparing.choice import Choice, Ranked
from llmviewer.comparing.limits import MEMORY, Rejected
from llmviewer.expectation.expected import Interval
from llmviewer.records import frozen
from llmviewer.units import counted, fold, seconds

from .columns import WIDTH
from .comparison import BOUNDS_BASIS, boxes, followers, of_models, pictured, pictures
from .comparison_tables import LETTERS, expectations, memory_item, prices_of
from .page_figures import Picture, picture
from .parts import Card
from .report import Report
from .tables import Item, Table, filled, number_item, time_item

_FIRST: Final = 6  # of the ranking, to see first
_MOST: Final = 20  # rows of a table in words, and devices of a reason
_NAMED: Final = 8  # devices that a remark names


def _cards(choice: Choice) -> list[Card]:
    """The first devices of the ranking."""
    return [
        Card(
            label=f"rank {rank}",
            value=one.cell.hardware.name,
            about=f"{number_item(one.merit).text} {choice.merit} at the bound, {one.cell.quant}"
            + f", {one.cell.layout}" * (one.cell.layout.devices > 1),
        )
        for rank, one in enumerate(choice.ranked[:_FIRST], 1)
    ]


def title(choice: Choice) -> str:
    users = f"{choice.users} user{'s'[: choice.users > 1]}"
    of = choice.comparison
    return f"A device for {choice.model.title}: {users}, prompts of {of.prompt}, answers of {of.gen} tokens"


def headline(choice: Choice) -> str:
    """The request, and how many devices qualify."""
    limits = choice.limits
    goals = [
        f"at most {limits.budget:,.0f} USD" if limits.budget else "",
        f"at most {limits.power:g} W" if limits.power else "",
        f"first token within {seconds(limits.ttft_s)}" if limits.ttft_s else "",
        f"{seconds(limits.tpot_s)} a token at most" if limits.tpot_s else "",
        "native data types alone" if limits.native else "",
        f"at most {choice.max_devices} devices of a kind" if choice.max_devices > 1 else "",
        f"engine {choice.comparison.engine}" if choice.comparison.engine else "",
        f"what if {', '.join(choice.comparison.hardware_set)}" if choice.comparison.hardware_set else "",
    ]
    conditions = ", ".join((f"precisions allowed: {', '.join(choice.quants)}", *filter(None, goals)))
    count = counted(len(choice.ranked) + len(choice.rejected), "device")
    by_bound = " by their bounds" * bool(limits.ttft_s or limits.tpot_s)
    known, fast_enough = _in_time(choice)
    expected = f", {len(fast_enough)} as expected of measured kernels" * bool(known)
    qualify = f"{len(choice.ranked)} of {count} qualify{by_bound}{expected}, ranked by {choice.merit}"
    return f"{title(choice)}; {conditions}. {qualify}{_known(choice)}"


def _known(choice: Choice) -> str:
    """The number of devices with a price or power, if some have none."""
    considered = len(choice.ranked) + len(choice.rejected)
    if choice.priced == considered:
        return ""
    known = f". Of these {counted(considered, 'device')} {choice.priced} {'has' if choice.priced == 1 else 'have'}"
    if choice.by is By.ENERGY:
        return f"{known} a known TDP, without which none is ranked"
    years = "; with --depreciation YEARS that of a purchase counts too" if choice.comparison.years is None else ""
    return f"{known} a known price, without which none is ranked{years}"


def unsold(left_out: Sequence[str]) -> list[str]:
    """Devices that were left out as they are not available, and how to include them."""
    if not left_out:
        return []
    return [f"Left out, as they are announced but not yet available: {', '.join(left_out)}. --hardware NAME has one."]


def remarks(choice: Choice) -> list[str]:
    """Correlation of the ranking with numbers of the devices, and notes on devices and models."""
    follows = choice.follows()
    lines = []
    if follows:
        first, *weaker = sorted(follows.items(), key=lambda item: -abs(item[1]))
        others = ", ".join(f"{name} {value:.3f}" for name, value in weaker)
        lines.append(
            f"The ranking follows {first[0]} most: rank correlation {first[1]:.3f} (Spearman)"
            + (f"; {others}." if others else ".")
        )
    return [
        *lines,
        *unsold(choice.left_out),
        *_on_times(choice),
        (
            f"{_counted(choice)} A device is ranked in the allowed precision that is best on it; what a precision does "
            "to the answers is not counted. "
            "All users send their prompts at once: that is the longest time to first token."
        ),
        *followers(one.cell for one in choice.ranked),
        *of_models(choice.comparison),
        *boxes([one.cell for one in choice.ranked]),
    ]


def _in_time(choice: Choice) -> tuple[int, list[str]]:
    """Devices within the time limits at the bound: those with expected times, and those that are expected to be too."""
    limits = {key: limit for key, limit in (("ttft", choice.limits.ttft_s), ("tpot", choice.limits.tpot_s)) if limit}
    ranked = (one.cell for one in choice.ranked if limits)
    known = {cell.hardware.name: found for cell in ranked if (found := choice.comparison.expected(cell))}
    kept = [
        name
        for name, found in known.items()
        if all(_late(getattr(found, key), limit) <= 1 for key, limit in limits.items())
    ]
    return len(known), kept


def _on_times(choice: Choice) -> Iterator[str]:
    """The devices within the time limits at the bound that are expected to keep them."""
    known, kept = _in_time(choice)
    if known:
        more = f" and {len(kept) - _NAMED} more" if len(kept) > _NAMED else ""
        yield (
            f"Devices qualify by bounds. As expected of measured kernels, {len(kept)} of the {known} of which "
            f"something is known keep to the times allowed{': ' * bool(kept)}{', '.join(kept[:_NAMED])}{more}. "
            "`llmviewer plan` looks for what does."
        )


def _late(times: Interval | None, limit: float) -> float:
    """The longest expected time over its limit; 0 without a limit."""
    return float(np.max(times.expected)) / limit if times else 0.0


def _counted(choice: Choice) -> str:
    if choice.max_devices == 1:
        return "Single devices."
    return (
        f"The fewest devices of a kind that qualify, of all numbers up to {choice.max_devices} by which tensor "
        "parallelism can cut the model, in one box; costs and powers are of all of them."
    )


def tables(choice: Choice) -> list[Table]:
    expected = expectations(choice.comparison, [one.cell for one in choice.ranked])
    found = (_ranked(choice), expected.without_constants("model", "batch", "layout"), _rejected(choice))
    return [replace(table, most=_MOST) for table in found if table.body]


def _ranked(choice: Choice) -> Table:
    several = "n: how many. " if choice.max_devices > 1 else ""
    each = " of each device" if choice.max_devices > 1 else ""
    priced = ("USD/h",) if choice.by is By.COST else ()
    years = f", a purchase spread over {choice.comparison.years:g} years" if choice.comparison.years else ""
    when = prices_of(one.cell.hardware for one in choice.ranked)
    price = f"USD/h: the cloud price{years}.{when} " if priced else ""
    table = Table(
        title=f"Devices by {choice.merit}",
        about=f"{several}{price}TTFT: time to first token. TPOT: time per output token. Memory: what is needed{each}, "
        "and what there is. Users: as many fit. P, D: what most of the prefill and of a decode step is bound by. "
        f"{LETTERS}.",
        head=("device", "n", "precision", choice.merit, *priced, "TTFT", "TPOT", "memory [GB]", "users", "P", "D"),
        words=("device", "precision"),
        body=tuple(_row(one, choice) for one in choice.ranked),
    )
    return table if choice.max_devices > 1 else table.without_constants("n")


def _row(one: Ranked, choice: Choice) -> tuple[Item, ...]:
    cell = one.cell
    return (
        Item(text=cell.hardware.name),
        Item(text=str(cell.layout.devices), key=cell.layout.devices),
        Item(text=cell.quant),
        number_item(one.merit),
        *((number_item(cell.usd_per_h(choice.comparison.years)),) if choice.by is By.COST else ()),
        time_item(float(cell.ttft_s[0])),
        time_item(float(cell.tpot_s[0])),
        memory_item(cell),
        Item(text=str(cell.largest.batch), key=cell.largest.batch),
        *(_bound(cell, phase) for phase in ("prefill", "decode")),
    )


def _bound(cell: Cell, phase: str) -> Item:
    if phase not in cell.passes:
        return Item(text="-")
    bound = cell.passes[phase].bound()
    return Item(text=bound[0].upper(), bound=bound)


def _rejected(choice: Choice) -> Table:
    return _Grouped(
        title="Devices that do not qualify",
        about="In the allowed precision that comes closest.",
        head=("device", "precision", "why"),
        words=("device", "precision", "why"),
        body=tuple(map(_reason, choice.rejected)),
        groups=tuple(_groups(choice.rejected)),
    )


@frozen(kw_only=True)
class _Grouped(Table):
    """A table of which a text shows only `groups`: (reason, names of the rows with that reason).

    most  names of each group that a text has; None for all
    """

    groups: tuple[tuple[str, tuple[str, ...]], ...]

    def text(self, width: int = WIDTH) -> str:
        lines = (filled(f"{reason}: {self._named(names)}", width, others="  ") for reason, names in self.groups)
        return "\n".join((filled(self.title, width), *lines, self.below(width)))

    def _named(self, names: Sequence[str]) -> str:
        more = len(names) - len(names[: self.most])
        return f"{', '.join(names[: self.most])}{f' and {more} more' if more else ''}"

    def _left_out(self) -> int:
        return sum(len(names) - len(names[: self.most]) for _, names in self.groups)


def _groups(rejected: Sequence[Rejected]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Devices with the same reason, nearest first, with the factor by which each fails; one device has its full reason.

    Reasons without a factor, such as an unknown price, come last.
    """
    found: dict[str, list[Rejected]] = {}
    for one in sorted(rejected, key=lambda one: isinf(one.excess)):
        limit = "there is" if one.factor == MEMORY else "is allowed"
        shared = one.reason if isinf(one.excess) else f"{one.factor}, of what {limit}"
        found.setdefault(shared, []).append(one)
    for shared, those in found.items():
        names = [one.cell.hardware.name for one in those]
        if len(those) == 1:
            yield names[0], (those[0].reason,)
        else:
            folds = ("" if isinf(one.excess) else f" {fold(one.excess)}" for one in those)
            yield shared, tuple(map("".join, zip(names, folds, strict=True)))


def _reason(one: Rejected) -> tuple[Item, ...]:
    return Item(text=one.cell.hardware.name), Item(text=one.cell.quant), Item(text=one.reason, key=one.excess)


def _pictures(choice: Choice) -> list[list[Picture]]:
    """Figures of the ranking over numbers of the devices, and of the best devices side by side."""
    if not choice.ranked:
        return []
    return [list(_rankings(choice)), *pictures(pictured([one.cell for one in choice.ranked]), choice.comparison)]


def _rankings(choice: Choice) -> Iterator[Picture]:
    from .comparison_figures import ranking

    for by in ("memory bandwidth", "peak OP/s"):
        yield picture(ranking(choice, by), f"ranking-{by.split()[0]}")


REPORT: Final = Report[Choice](
    name="choice",
    title=title,
    headline=headline,
    tables=tables,
    remarks=remarks,
    basis=lambda choice: BOUNDS_BASIS,
    cards=_cards,
    pictures=_pictures,
)
