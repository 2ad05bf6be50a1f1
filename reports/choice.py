"""The report on a choice: the ranking, what it correlates with, and why other devices do not qualify."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import isinf
from typing import Final

import numpy as np

from llmviewer.analyzing.costs import Criterion
from llmviewer.comparing.cells import Cell
from llmviewer.comparing.choice import ANNOUNCED, Choice, Ranked
from llmviewer.comparing.limits import MEMORY, Rejected
from llmviewer.devices.hardware import Hardware
from llmviewer.forms import Num
from llmviewer.records import frozen
from llmviewer.units import counted, fold, seconds

from .columns import WIDTH
from .comparison import bounds_basis, boxes, followers, of_models, pictured, pictures
from .comparison_tables import LETTERS, expectations, memory_item, prices_of
from .page_figures import Picture, picture
from .parts import Card
from .report import Report
from .tables import Item, Table, filled, number_item, time_item

_MAX_CARDS: Final = 6  # first devices of the ranking
_MAX_ROWS: Final = 20  # rows of a table in a text, and devices of a reason
_MAX_NAMES: Final = 8  # devices that a remark names


def _cards(choice: Choice) -> list[Card]:
    """The first devices of the ranking."""
    return [
        Card(
            label=f"rank {rank}",
            value=one.cell.hardware.name,
            about=f"{number_item(one.merit).text} {choice.merit} {_basis(one)}, {one.cell.quant}"
            + f", {one.cell.layout}" * (one.cell.layout.devices > 1),
        )
        for rank, one in enumerate(choice.ranked[:_MAX_CARDS], 1)
    ]


def title(choice: Choice) -> str:
    """Model, concurrent users and lengths that devices are ranked for."""
    users = f"{choice.users} concurrent user{'s'[: choice.users > 1]}"
    comparison = choice.comparison
    tokens = f"{comparison.prompt} input, {comparison.gen} output tokens"
    return f"A device for {choice.model.title}: {users}, {tokens}"


def headline(choice: Choice) -> str:
    """The request, and how many devices qualify."""
    limits = choice.limits
    conditions_given = [
        f"price <= {limits.budget:,.0f} USD" if limits.budget else "",
        f"TDP <= {limits.power:g} W" if limits.power else "",
        f"TTFT <= {seconds(limits.ttft_s)}" if limits.ttft_s else "",
        f"TPOT <= {seconds(limits.tpot_s)}" if limits.tpot_s else "",
        "native data types only" if limits.native else "",
        f"at most {choice.max_devices} devices of a kind" if choice.max_devices > 1 else "",
        f"engine {choice.comparison.engine}" if choice.comparison.engine else "",
        f"what if {', '.join(choice.comparison.hardware_set)}" if choice.comparison.hardware_set else "",
    ]
    conditions = ", ".join((f"precisions allowed: {', '.join(choice.quants)}", *filter(None, conditions_given)))
    count = counted(len(choice.ranked) + len(choice.unmeasured) + len(choice.rejected), "device")
    bounds_note = f"; {len(choice.unmeasured)} more qualify by bounds alone" * bool(choice.unmeasured)
    basis = f" {_basis(choice.ranked[0])}" if choice.ranked else ""
    qualify = f"{len(choice.ranked)} of {count} qualify, ranked by {choice.merit}{basis}{bounds_note}"
    return f"{title(choice)}; {conditions}. {qualify}{_cheapest(choice)}{_priced_devices(choice)}"


def _cheapest(choice: Choice) -> str:
    """The first of a ranking by cost, in dollars for a million tokens."""
    if choice.by is not Criterion.COST or not choice.ranked:
        return ""
    first = choice.ranked[0]
    dollars = f"{1e6 / first.merit:.3g} USD per million output tokens"
    return f". Lowest: {first.cell.hardware.name}, {first.cell.quant}, {dollars}"


def _basis(one: Ranked) -> str:
    return "expected" if one.expected else "at the bound"


def _priced_devices(choice: Choice) -> str:
    """The number of devices with a price or power, if some have none."""
    considered = len(choice.ranked) + len(choice.unmeasured) + len(choice.rejected)
    if choice.priced == considered:
        return ""
    devices = f". Of these {counted(considered, 'device')} {choice.priced} {'has' if choice.priced == 1 else 'have'}"
    if choice.by is Criterion.ENERGY:
        return f"{devices} a known TDP; only these are ranked"
    years = "; --depreciation YEARS counts purchase prices too" if choice.comparison.years is None else ""
    return f"{devices} a known price; only these are ranked{years}"


def unsold(left_out: Sequence[str]) -> list[str]:
    """Devices that are not included because they are not available, and how to include them."""
    if not left_out:
        return []
    return [f"Not included: {', '.join(left_out)} (announced, not yet available; --hardware NAME includes one)."]


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
    if choice.by is Criterion.SPEED:
        lines.append("What tokens cost: --by cost, and at a rate of requests llmviewer plan.")
    return [
        *lines,
        *unsold(choice.unavailable),
        (
            f"{_counted(choice)} Each device is ranked in its best allowed precision; accuracy is not considered. All "
            "users send their prompts at once, so TTFT is the worst case."
        ),
        *followers(one.cell for one in choice.ranked),
        *of_models(choice.comparison),
        *boxes([one.cell for one in choice.ranked]),
        *_sold(choice),
    ]


def _sold(choice: Choice) -> Iterator[str]:
    """Devices whose power is that of a whole package, and devices that are not yet for sale."""
    cells = [one.cell for one in (*choice.ranked, *choice.unmeasured)]
    shared = {cell.hardware.name: str(part) for cell in cells if (part := _fact(cell.hardware, "power.shared"))}
    if shared:
        named = ", ".join(f"{name} ({part})" for name, part in list(shared.items())[:_MAX_NAMES])
        yield f"Counted with what it is sold with, in price and power: {named}."
    announced = dict.fromkeys(cell.hardware.name for cell in cells if cell.hardware.status == ANNOUNCED)
    if announced:
        yield f"Announced, not yet available, with figures of their makers: {', '.join(announced)}."


def _fact(device: Hardware, key: str) -> object:
    return next((fact.value for fact in device.facts if fact.key == key), None)


def _counted(choice: Choice) -> str:
    if choice.max_devices == 1:
        return "Single devices."
    return (
        f"The smallest number of devices that qualifies, up to {choice.max_devices} on one host with tensor "
        "parallelism; costs and powers are those of all devices."
    )


def tables(choice: Choice) -> list[Table]:
    """Ranked devices, their expected times, and rejected devices with reasons; empty tables are omitted."""
    expected = expectations(choice.comparison, [one.cell for one in choice.ranked])
    expected = expected.without_constants("model", "batch", "layout")
    all_tables = (_ranked(choice), expected, _unmeasured(choice), _rejected(choice))
    return [replace(table, most=_MAX_ROWS) for table in all_tables if table.body]


def _ranked(choice: Choice) -> Table:
    expected = any(one.expected for one in choice.ranked)
    title = f"Devices by {choice.merit}, {'expected' if expected else 'at the bound'}"
    about = "Tokens and times are expected; <=: at the bound. " if expected else ""
    return _devices(choice.ranked, choice, title=title, about=about)


def _unmeasured(choice: Choice) -> Table:
    title = "Devices that qualify by bounds; no expected time of their kernels is known"
    return _devices(choice.unmeasured, choice, title=title, about="")


def _devices(ranked: Sequence[Ranked], choice: Choice, *, title: str, about: str) -> Table:
    several = "n: number of devices. " if choice.max_devices > 1 else ""
    each = " per device" if choice.max_devices > 1 else ""
    priced = ("USD/h",) if choice.by is Criterion.COST else ()
    years = f", else the purchase price over {choice.comparison.years:g} years" if choice.comparison.years else ""
    when = prices_of(one.cell.hardware for one in ranked)
    price = f"USD/h: the cloud price{years}.{when} " if priced else ""
    head = ("device", "n", "precision", choice.merit, "<=", *priced, "TTFT", "TPOT", "memory [GB]", "users", "P", "D")
    table = Table(
        title=title,
        about=f"{several}{about}{price}Memory: required{each} < available. Users: maximum concurrency by memory. P, D: "
        f"bound of most of the prefill and of a decode step. {LETTERS}.",
        head=head,
        words=("device", "precision"),
        body=tuple(_row(one, choice) for one in ranked),
    )
    dropped = (*(("n",) if choice.max_devices == 1 else ()), *(() if any(one.expected for one in ranked) else ("<=",)))
    return table.without(*dropped)


def _row(one: Ranked, choice: Choice) -> tuple[Item, ...]:
    cell, times = one.cell, one.expected
    ttft, tpot = (times.ttft, times.tpot) if times else (None, None)
    return (
        Item(text=cell.hardware.name),
        Item(text=str(cell.layout.devices), key=cell.layout.devices),
        Item(text=cell.quant),
        number_item(one.merit),
        number_item(one.bound_merit),
        *((number_item(cell.usd_per_h(choice.comparison.years)),) if choice.by is Criterion.COST else ()),
        time_item(_first(ttft.expected if ttft else cell.ttft_s)),
        time_item(_first(tpot.expected if tpot else cell.tpot_s)),
        memory_item(cell),
        Item(text=str(cell.largest.batch), key=cell.largest.batch),
        *(_bound(cell, phase) for phase in ("prefill", "decode")),
    )


def _first(values: Num) -> float:
    return float(np.ravel(values)[0])


def _bound(cell: Cell, phase: str) -> Item:
    if phase not in cell.passes:
        return Item(text="-")
    bound = cell.passes[phase].bound()
    return Item(text=bound[0].upper(), bound=bound)


def _rejected(choice: Choice) -> Table:
    return _Grouped(
        title="Devices that do not qualify",
        about="By the allowed precision that comes closest.",
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

    def text(self, width: int = WIDTH, table_width: int = sys.maxsize) -> str:  # noqa: ARG002 (no columns)
        lines = (filled(f"{reason}: {self._named(names)}", width, others="  ") for reason, names in self.groups)
        return "\n".join((filled(self.title, width), *lines, self.below(width)))

    def _named(self, names: Sequence[str]) -> str:
        omitted_count = len(names) - len(names[: self.most])
        return f"{', '.join(names[: self.most])}{f' and {omitted_count} more' if omitted_count else ''}"

    def _left_out(self) -> int:
        return sum(len(names) - len(names[: self.most]) for _, names in self.groups)


def _groups(rejected: Sequence[Rejected]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Devices with the same reason, nearest first, with the factor by which each fails; one device has its full reason.

    Reasons without a factor, such as an unknown price, come last.
    """
    groups: dict[str, list[Rejected]] = {}
    for one in sorted(rejected, key=lambda one: isinf(one.excess)):
        limit = "available" if one.factor == MEMORY else "allowed"
        shared = one.reason if isinf(one.excess) else f"{one.factor}, over what is {limit}"
        groups.setdefault(shared, []).append(one)
    for shared, members in groups.items():
        names = [one.cell.hardware.name for one in members]
        if len(members) == 1:
            yield names[0], (members[0].reason,)
        else:
            folds = ("" if isinf(one.excess) else f" {fold(one.excess)}" for one in members)
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

    for quantity in ("memory bandwidth", "peak OP/s"):
        yield picture(ranking(choice, quantity), f"ranking-{quantity.split()[0]}")


def _expected_basis(choice: Choice) -> str:
    if not any(one.expected for one in choice.ranked):
        return bounds_basis(choice.comparison)
    return (
        "Rates and times are expected; >= and <= are roofline bounds, which no kernels beat. Devices without expected "
        "times have bounds alone."
    )


REPORT: Final = Report[Choice](
    name="choice",
    title=title,
    headline=headline,
    tables=tables,
    remarks=remarks,
    basis=_expected_basis,
    cards=_cards,
    pictures=_pictures,
)
