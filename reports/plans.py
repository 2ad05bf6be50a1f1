"""A plan as text, Markdown, CSV, JSON and HTML: the cheapest, what no other beats, and what rules the others out."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from math import inf, isnan, nan
from typing import Any, Final

from llmviewer.analyzing.costs import By
from llmviewer.parameters import KvLink, KvTransfer
from llmviewer.serving.candidates import Candidate, Readers
from llmviewer.serving.service_plan import ServicePlan
from llmviewer.units import counted, seconds

from .choice import unsold
from .comparison_tables import prices_of
from .page_figures import Picture, picture
from .parts import Card, Command
from .recommendations import Folded
from .report import Report
from .serving import beyond
from .tables import Item, Reasons, Table, digits, number_item, time_item

_MOST: Final = 10  # rows of the first table that a text has
_OTHERS: Final = 6  # of those after it
_NEAREST: Final = 5  # devices that do not keep to it
_NAMED: Final = 10  # devices that have no price, in words
_TENS: Final = 10
_TOLD: Final = 0.05  # of a time, that is worth a word
_PERCENTILES: Final = "Percentiles of one copy of the best, with its part of the requests:"
_ALL: Final = "Percentiles of the best whose prompts are read apart:"
_LINKS: Final = {
    KvLink.SCALE_OUT: "over scale-out links, or those of hosts where there are none",
    KvLink.SCALE_UP: "over scale-up links",
}
_OPTIONS: Final = {
    "profiles": "profile",
    "techniques": "with",
}  # of the command, where they have other names than in Python
_TIMED: Final = ("rate", "batch", "time to first token", "time per token")  # what rests on how long steps take
_MEANS: Final = "Times are means at random arrivals."


def said(found: ServicePlan) -> str:
    """What the times are."""
    if found.kernels is None:
        times = "Steps take as long as their lower bounds, so no plan needs less, and a real one needs more."
    else:
        own = "the kernels of which most was measured on each device"
        whose = f"{found.kernels}'s kernels" if found.kernels else own
        times = f"Steps take as long as is expected of {whose}; at the bound, as long as no kernel can beat."
    return f"{times} {_MEANS}{_of_readers(found)}"


def _of_readers(found: ServicePlan) -> str:
    """How prompts are read apart, where that was tried."""
    if not found.kv_transfer:
        return ""
    when = "after the prompt is read" if found.kv_transfer is KvTransfer.AFTER else "while the prompt is read"
    return f" Readers take prompts one by one; a cache travels {when}, {_LINKS[found.kv_link]}."


def _simulation(found: ServicePlan) -> list[Command]:
    """What simulates the best: one copy of it, and with its readers where there are any; none where nothing keeps to
    the goals.
    """
    both = [found.best_of(apart=apart) for apart in (False, True)] if found.disaggregated else [found.best]
    return [
        Command(_ALL if one.readers else _PERCENTILES, _command(found.simulation(one)))
        for one in both
        if one and isinstance(found.common["model"], str)
    ]


def _command(asked: dict[str, Any]) -> list[str]:
    model, device = shlex.quote(asked.pop("model")), shlex.quote(asked.pop("hardware"))
    words = [f"llmviewer simulate {model} {device}"]
    for name, value in asked.items():
        option = f"--{_OPTIONS.get(name, name.replace('_', '-'))}"
        each = value if isinstance(value, tuple) else (value,)
        words += [option] if value is True else [f"{option} {shlex.quote(_text(one))}" for one in each]
    return words


def _text(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def title(found: ServicePlan) -> str:
    requests = f"{found.rate:g} request{'s' * (found.rate != 1)}/s"
    return (
        f"Serving {found.model.title}: {requests}, prompts of {found.prompt:,}, answers of "
        f"{counted(found.gen, 'token')}"
    )


def headline(found: ServicePlan) -> str:
    """What was asked, and the best in words."""
    limits = {"first token": found.goals.ttft_s, "a token": found.goals.tpot_s}
    asked = ", ".join(f"{seconds(value)} to the first token" if "first" in name else f"{seconds(value)} a token"
                      for name, value in limits.items() if value < inf)  # fmt: skip
    within = f" within {asked}" if asked else ""
    changed = found.common["hardware_set"]
    under = f", what if {', '.join(changed)}" if changed else ""
    under += "".join(f", {one}" for one in found.common["techniques"])
    most = f", on at most {counted(found.max_devices, 'device')}"
    return f"{title(found)}{within}{most}{under}. {best(found)}{ranked(found)}"


def ranked(found: ServicePlan) -> str:
    """Of how many devices there is a price, where that decides what is ranked."""
    if not found.able or found.priced == found.considered or By.COST not in (found.by, found.asked_by or By.COST):
        return ""
    have = "has" if found.priced == 1 else "have"
    known = f"{found.priced} of the {counted(found.considered, 'device')} considered {have}"
    if found.by is not By.COST:
        return f" Ranked by {found.unit}, as none of what keeps to that has a price; {known} one."
    ways = "; --by energy or --by devices ranks others too"
    return f" {known} a price{f', and only what has one is ranked{ways}' if found.best else ''}."


def best(found: ServicePlan) -> str:
    """The cheapest in words."""
    one = found.best
    if one is None:
        if not found.able:
            known = "No plan is known to keep to that." if found.unmeasured else "No plan keeps to that."
            return f"{known}{_at_the_bound(found)}"
        return f"None of what keeps to that has {_priced(found)}."
    most = f"it keeps to that up to {digits(one.rate_within)} requests/s"
    return (
        f"Lowest in {found.unit}: {_priced_one(one, found)}{_of_tokens(one, found)}. First token after "
        f"{seconds(one.ttft_s)}, {seconds(one.tpot_s)} a token, on average; {digits(one.batch)} sequences decode at a "
        f"time on each copy, which needs room for {one.limit}; {most}.{_first_token(one)}{_other_way(one, found)}"
        f"{_at_the_bound(found)}"
    )


def _first_token(one: Candidate) -> str:
    """What its time is made of, where prompts are read apart."""
    if not one.readers:
        return ""
    waits, reads, travels = map(seconds, (one.readers.wait_s, one.readers.read_s, one.readers.transfer_s))
    return f" Of the time to it a prompt waits {waits} and is read for {reads}; its cache travels for {travels}."


def _other_way(one: Candidate, found: ServicePlan) -> str:
    """The best of those that read prompts apart, where it is no such, or of those that do not."""
    if not found.disaggregated:
        return ""
    way = "all copies read and write" if one.readers else "prompts are read apart"
    other = found.best_of(apart=not one.readers)
    if other is None:
        known = any(bool(each.readers) is not bool(one.readers) for each in found.able)
        return f" Where {way}, nothing{' with a price' * known} keeps to it."
    more = other.price(found.by) / one.price(found.by)
    times = f"{more:.3g} times as much" if more > 1 else "as much"
    return f" Where {way}, the lowest is {_priced_one(other, found)}, {times}."


def _of_tokens(one: Candidate, found: ServicePlan) -> str:
    """What a million tokens cost that are written at the rate asked for."""
    if found.by is not By.COST or isnan(one.usd_per_h):
        return ""
    dollars = one.usd_per_h / 3600 / (found.rate * found.gen) * 1e6
    return f", {number_item(dollars).text} USD for a million tokens written"


def _priced_one(one: Candidate, found: ServicePlan) -> str:
    named, price = f"{devices(one)}, {one.quant}", one.price(found.by)
    if isnan(price):
        return named
    asked = counted(one.devices, "device") if found.by is By.DEVICES else f"{number_item(price).text} {found.unit}"
    return f"{named}: {asked}"


def _at_the_bound(found: ServicePlan) -> str:
    """The cheapest where no kernel can be faster."""
    if found.kernels is None or found.least is None:
        return ""
    if isnan(found.least.price(found.by)):
        return f" At the bound {_priced_one(found.least, found)} would keep to it."
    return f" At the bound, {_priced_one(found.least, found)}: no kernels need less."


def devices(one: Candidate) -> str:
    """Such as "2 x (4 x h100-sxm, tp=4)", and what reads prompts where others do."""
    if one.readers:
        return f"{_counted(one.readers)} read, {_counted(one)} write"
    return _counted(one) if one.copies > 1 or one.layout.devices == 1 else _laid(one)


def _counted(one: Candidate | Readers) -> str:
    return f"{one.copies} x ({_laid(one)})" if one.layout.devices > 1 else f"{one.copies} x {one.hardware.name}"


def _laid(one: Candidate | Readers) -> str:
    return f"{one.layout.devices} x {one.hardware.name}, {one.layout}"


def _priced(found: ServicePlan) -> str:
    if found.by is By.ENERGY:
        return "a TDP in its file; try --by devices"
    return "a price in its file; try --depreciation, --by energy or --by devices"


def remarks(found: ServicePlan) -> list[str]:
    told = [f"{found.tried:,} settings of devices, layouts, precisions, copies and batches were tried."]
    told += unsold(found.left_out)
    if found.best and found.unpriced:
        more = len(found.unpriced) - _NAMED
        names = ", ".join(found.unpriced[:_NAMED]) + f" and {more} more" * (more > 0)
        lacking, change = ("TDP", "power.tdp=700 W") if found.by is By.ENERGY else ("price", "price.cloud=3 USD/h")
        told.append(
            f"Not ranked, as their files have no {lacking}: {names}; --hardware-set '{found.unpriced[0]}:{change}' "
            f"gives that one a {lacking}, and a file of yours (`llmviewer hardware NAME --format yaml`) for good."
        )
    if found.best and found.best.unmodelled > _TOLD:
        told.append(f"{found.best.unmodelled:.0%} of the steps of the best are a bound, as no kernel was measured.")
    return [*told, *beyond(found.model, found.prompt + found.gen)]


def tables(found: ServicePlan) -> list[Table]:
    """The cheapest of every device, the front, and the rest with the reasons."""
    known = found.best and found.kernels is not None
    bound = f"Bound: {found.unit} if no kernel were slower than it must. " if known else ""
    when = prices_of(kind for one in found.each for kind in one.kinds) if found.by is By.COST else ""
    lowest = f"Lowest in {found.unit}" if found.best else "The fewest, as there is nothing to rank by,"
    each = _table(
        found, f"{lowest} of every device that keeps to it", found.each, _MOST,
        f"{bound}TTFT, TPOT: time to first token and per output token. Batch: sequences at a time on each copy, on "
        "average and as many as there is room for. Req/s: the most within the times and the memory."
        f"{when}",
    )  # fmt: skip
    front = _table(
        found, "Beaten by no other in price, power, devices, times and req/s together (Pareto)", found.front, _OTHERS
    )
    why = Reasons(
        title="Devices that do not keep to it",
        about=f"In the setting that comes closest; nearest first.{_factors(found)}",
        head=("device", "precision", "layout", "why"),
        words=("device", "precision", "layout", "why"),
        body=tuple(
            (
                Item(text=_kinds(one)), Item(text=one.quant), Item(text=_layouts(one)),
                Item(text=_why(one, found), key=one.excess),
            )
            for one in found.rejected
        ),
        most=_NEAREST,
    )  # fmt: skip
    unmeasured = _table(
        found,
        "At the bound these keep to it too, but nothing is expected of their kernels",
        found.unmeasured,
        _OTHERS,
    )
    ways = _ways(found) if found.disaggregated else []
    return [table for table in (*ways, each, front, _without(unmeasured, "bound"), why) if table.body]


def _ways(found: ServicePlan) -> list[Table]:
    """The best that read prompts together with writing answers, and apart: as expected, and at the bound."""
    best = [found.best_of(apart=apart) for apart in (False, True)]
    name, known = "Prompts read by all, and apart", found.kernels is not None
    about = f"Tokens written at the rate asked for, per dollar and per joule at TDP. Transfer: {_LINKS[found.kv_link]}."
    likely = _way(f"{name}: as expected" if known else name, best, found, about)
    return [likely, _way(f"{name}: at the bound", found.lowest, found, "")] if known else [likely]


def _way(name: str, rows: Sequence[Candidate | None], found: ServicePlan, about: str) -> Table:
    return Folded(
        title=name,
        about=about,
        head=("devices", "precision", found.unit, "TTFT", "TPOT", "transfer", "tok/USD", "tok/J", "req/s"),
        words=("devices", "precision"),
        body=tuple(
            (
                Item(text=devices(one)), Item(text=one.quant), number_item(one.price(found.by)), time_item(one.ttft_s),
                time_item(one.tpot_s), time_item(one.readers.transfer_s if one.readers else nan),
                number_item(found.per_dollar(one)), number_item(found.per_joule(one)), number_item(one.rate_within),
            )
            for one in rows if one
        ),
    )  # fmt: skip


def _kinds(one: Candidate) -> str:
    """Of devices, by name; what reads prompts first, where others do."""
    names = dict.fromkeys(one.kind)
    if not one.readers:
        return one.hardware.name
    return " read, ".join(names) + (" write" if len(names) > 1 else ", apart")


def _layouts(one: Candidate) -> str:
    return f"{one.readers.layout}; {one.layout}" if one.readers else str(one.layout)


def _why(one: Candidate, found: ServicePlan) -> str:
    """What rules it out, and whether that is so even if no kernel were slower than it must."""
    even = found.kernels is not None and one.least is None and one.factor in _TIMED
    return f"{one.reason}{', even at the bound' * even}"


def _factors(found: ServicePlan) -> str:
    """How many devices each limit rules out, where a text does not name them all."""
    counts = Counter(one.factor for one in found.rejected).most_common()
    if len(found.rejected) <= _NEAREST or len(counts) < 2:
        return ""
    return f" Ruled out by {', '.join(f'{factor}: {count:,}' for factor, count in counts)}."


def _table(found: ServicePlan, name: str, rows: tuple[Candidate, ...], most: int, about: str = "") -> Table:
    heads = (found.unit, "bound", "TTFT", "TPOT", "batch", "req/s")
    whole: Table = Folded(
        title=name,
        about=about,
        most=most,
        head=("devices", "precision", *heads),
        words=("devices", "precision"),
        body=tuple(
            (
                Item(text=devices(one)), Item(text=one.quant), number_item(one.price(found.by)),
                number_item((one.least or one).price(found.by)), time_item(one.ttft_s), time_item(one.tpot_s),
                Item(text=f"{one.batch:.{0 if one.batch >= _TENS else 1}f}<{one.limit}", key=one.batch),
                number_item(one.rate_within),
            )
            for one in rows
        ),
    )  # fmt: skip
    priced = any(not isnan(one.price(found.by)) for one in rows)
    told = {found.unit: priced, "bound": priced and found.kernels is not None}
    for head, there in told.items():
        whole = whole if there else _without(whole, head)
    return whole


def _without(table: Table, name: str) -> Table:
    """The table without a column, if it has it."""
    if name not in table.head:
        return table
    at = table.head.index(name)
    body = tuple((*row[:at], *row[at + 1 :]) for row in table.body)
    return replace(table, head=(*table.head[:at], *table.head[at + 1 :]), body=body)


def _cards(found: ServicePlan) -> list[Card]:
    one = found.best
    if one is None:
        return []
    return [
        Card(label="devices", value=devices(one), about=one.quant),
        Card(label=f"lowest {found.unit}", value=number_item(one.price(found.by)).text,
             about=counted(one.devices, "device")),
        Card(label="time to first token", value=seconds(one.ttft_s), about="on average"),
        Card(label="time per token", value=seconds(one.tpot_s), about="on average"),
        Card(label="most requests/s", value=digits(one.rate_within), about=f"so well, of {found.rate:g}"),
    ]  # fmt: skip


def _pictures(found: ServicePlan) -> list[list[Picture]]:
    from .pareto_figures import pareto_front

    priced = [one for one in found.able if not isnan(one.price(found.by))]
    if not priced:
        return []
    names = {"tpot_s": "time per output token", "ttft_s": "time to first token"}
    pairs = [(key, name) for key, name in names.items() if all(getattr(one, key) > 0 for one in priced)]
    return [[picture(pareto_front(found, key, name), f"front-{key[:4]}") for key, name in pairs]]


REPORT: Final = Report[ServicePlan](
    name="plans",
    title=title,
    headline=headline,
    tables=tables,
    remarks=remarks,
    said=said,
    cards=_cards,
    pictures=_pictures,
    more=_simulation,
)
