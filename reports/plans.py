"""The report on a plan: the cheapest candidates, the Pareto front, and why others miss the targets."""

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

from .advice import Folded
from .choice import unsold
from .comparison_tables import prices_of
from .page_figures import Picture, picture
from .parts import Card, Command
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


def basis(result: ServicePlan) -> str:
    """The kernels and bounds that the times rest on."""
    if result.kernels is None:
        times = "Steps take as long as their lower bounds, so no plan needs less, and a real one needs more."
    else:
        own = "the kernels of which most was measured on each device"
        whose = f"{result.kernels}'s kernels" if result.kernels else own
        times = f"Steps take as long as is expected of {whose}; at the bound, as long as no kernel can beat."
    return f"{times} {_MEANS}{_of_readers(result)}"


def _of_readers(result: ServicePlan) -> str:
    """How prefill workers were tried."""
    if not result.kv_transfer:
        return ""
    when = "after the prompt is read" if result.kv_transfer is KvTransfer.AFTER else "while the prompt is read"
    return f" Readers take prompts one by one; a cache travels {when}, {_LINKS[result.kv_link]}."


def _simulation(result: ServicePlan) -> list[Command]:
    """Commands that simulate one replica of the best, with its prefill workers; none if no plan meets the targets."""
    both = [result.best_of(apart=apart) for apart in (False, True)] if result.disaggregated else [result.best]
    return [
        Command(_ALL if one.readers else _PERCENTILES, _command(result.simulation(one)))
        for one in both
        if one and isinstance(result.common["model"], str)
    ]


def _command(arguments: dict[str, Any]) -> list[str]:
    model, device = shlex.quote(arguments.pop("model")), shlex.quote(arguments.pop("hardware"))
    words = [f"llmviewer simulate {model} {device}"]
    for name, value in arguments.items():
        option = f"--{_OPTIONS.get(name, name.replace('_', '-'))}"
        each = value if isinstance(value, tuple) else (value,)
        words += [option] if value is True else [f"{option} {shlex.quote(_text(one))}" for one in each]
    return words


def _text(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def title(result: ServicePlan) -> str:
    requests = f"{result.rate:g} request{'s' * (result.rate != 1)}/s"
    return (
        f"Serving {result.model.title}: {requests}, prompts of {result.prompt:,}, answers of "
        f"{counted(result.gen, 'token')}"
    )


def headline(result: ServicePlan) -> str:
    """The request, and the best in words."""
    limits = {"first token": result.goals.ttft_s, "a token": result.goals.tpot_s}
    asked = ", ".join(f"{seconds(value)} to the first token" if "first" in name else f"{seconds(value)} a token"
                      for name, value in limits.items() if value < inf)  # fmt: skip
    within = f" within {asked}" if asked else ""
    changed = result.common["hardware_set"]
    under = f", what if {', '.join(changed)}" if changed else ""
    under += "".join(f", {one}" for one in result.common["techniques"])
    most = f", on at most {counted(result.max_devices, 'device')}"
    return f"{title(result)}{within}{most}{under}. {best(result)}{ranked(result)}"


def ranked(result: ServicePlan) -> str:
    """The number of candidates with a price, if that decides the ranking."""
    if not result.able or result.priced == result.considered or By.COST not in (result.by, result.asked_by or By.COST):
        return ""
    have = "has" if result.priced == 1 else "have"
    known = f"{result.priced} of the {counted(result.considered, 'device')} considered {have}"
    if result.by is not By.COST:
        return f" Ranked by {result.unit}, as no plan that meets the targets has a price; {known} one."
    ways = "; --by energy or --by devices ranks others too"
    return f" {known} a price{f', and only what has one is ranked{ways}' if result.best else ''}."


def best(result: ServicePlan) -> str:
    """The cheapest in words."""
    one = result.best
    if one is None:
        if not result.able:
            known = "No plan is known to meet the targets." if result.unmeasured else "No plan meets the targets."
            return f"{known}{_at_the_bound(result)}"
        return f"No plan that meets the targets has {_priced(result)}."
    most = f"it sustains {digits(one.rate_within)} requests/s within the targets"
    return (
        f"Lowest in {result.unit}: {_priced_one(one, result)}{_of_tokens(one, result)}. First token after "
        f"{seconds(one.ttft_s)}, {seconds(one.tpot_s)} a token, on average; {digits(one.batch)} sequences decode at a "
        f"time on each copy, which needs room for {one.limit}; {most}.{_first_token(one)}{_other_way(one, result)}"
        f"{_at_the_bound(result)}"
    )


def _first_token(one: Candidate) -> str:
    """Parts of the time to first token with separate prefill workers."""
    if not one.readers:
        return ""
    waits, reads, travels = map(seconds, (one.readers.wait_s, one.readers.read_s, one.readers.transfer_s))
    return f" Of the time to it a prompt waits {waits} and is read for {reads}; its cache travels for {travels}."


def _other_way(one: Candidate, result: ServicePlan) -> str:
    """The best with separate prefill workers, or without them, where the best is of the other kind."""
    if not result.disaggregated:
        return ""
    way = "all copies read and write" if one.readers else "prompts are read apart"
    other = result.best_of(apart=not one.readers)
    if other is None:
        known = any(bool(each.readers) is not bool(one.readers) for each in result.able)
        return f" Where {way}, nothing{' with a price' * known} meets the targets."
    more = other.price(result.by) / one.price(result.by)
    times = f"{more:.3g} times as much" if more > 1 else "as much"
    return f" Where {way}, the lowest is {_priced_one(other, result)}, {times}."


def _of_tokens(one: Candidate, result: ServicePlan) -> str:
    """Cost of a million output tokens at the requested rate."""
    if result.by is not By.COST or isnan(one.usd_per_h):
        return ""
    dollars = one.usd_per_h / 3600 / (result.rate * result.gen) * 1e6
    return f", {number_item(dollars).text} USD for a million tokens written"


def _priced_one(one: Candidate, result: ServicePlan) -> str:
    named, price = f"{devices(one)}, {one.quant}", one.price(result.by)
    if isnan(price):
        return named
    asked = counted(one.devices, "device") if result.by is By.DEVICES else f"{number_item(price).text} {result.unit}"
    return f"{named}: {asked}"


def _at_the_bound(result: ServicePlan) -> str:
    """The cheapest at lower bounds."""
    if result.kernels is None or result.least is None:
        return ""
    if isnan(result.least.price(result.by)):
        return f" At the bound {_priced_one(result.least, result)} would meet the targets."
    return f" At the bound, {_priced_one(result.least, result)}: no kernels need less."


def devices(one: Candidate) -> str:
    """Such as "2 x (4 x h100-sxm, tp=4)", with separate prefill workers."""
    if one.readers:
        return f"{_counted(one.readers)} read, {_counted(one)} write"
    return _counted(one) if one.copies > 1 or one.layout.devices == 1 else _laid(one)


def _counted(one: Candidate | Readers) -> str:
    return f"{one.copies} x ({_laid(one)})" if one.layout.devices > 1 else f"{one.copies} x {one.hardware.name}"


def _laid(one: Candidate | Readers) -> str:
    return f"{one.layout.devices} x {one.hardware.name}, {one.layout}"


def _priced(result: ServicePlan) -> str:
    if result.by is By.ENERGY:
        return "a TDP in its file; try --by devices"
    return "a price in its file; try --depreciation, --by energy or --by devices"


def remarks(result: ServicePlan) -> list[str]:
    lines = [f"{result.tried:,} settings of devices, layouts, precisions, copies and batches were tried."]
    lines += unsold(result.left_out)
    if result.best and result.unpriced:
        more = len(result.unpriced) - _NAMED
        names = ", ".join(result.unpriced[:_NAMED]) + f" and {more} more" * (more > 0)
        lacking, change = ("TDP", "power.tdp=700 W") if result.by is By.ENERGY else ("price", "price.cloud=3 USD/h")
        lines.append(
            f"Not ranked, as their files have no {lacking}: {names}; --hardware-set '{result.unpriced[0]}:{change}' "
            f"gives that one a {lacking}, and a file of yours (`llmviewer hardware NAME --format yaml`) for good."
        )
    if result.best and result.best.unmodelled > _TOLD:
        lines.append(f"{result.best.unmodelled:.0%} of the steps of the best are a bound, as no kernel was measured.")
    return [*lines, *beyond(result.model, result.prompt + result.gen)]


def tables(result: ServicePlan) -> list[Table]:
    """The cheapest of every device, the Pareto front, and why others miss the targets."""
    known = result.best and result.kernels is not None
    bound = f"Bound: {result.unit} if no kernel were slower than it must. " if known else ""
    when = prices_of(kind for one in result.each for kind in one.kinds) if result.by is By.COST else ""
    lowest = f"Lowest in {result.unit}" if result.best else "The fewest, as there is nothing to rank by,"
    each = _table(
        result, f"{lowest} of every device that meets the targets", result.each, _MOST,
        f"{bound}TTFT, TPOT: time to first token and per output token. Batch: sequences at a time on each copy, on "
        "average and as many as there is room for. Req/s: the most within the times and the memory."
        f"{when}",
    )  # fmt: skip
    front = _table(result, "Pareto front (price, power, devices, times, req/s)", result.front, _OTHERS)
    why = Reasons(
        title="Devices that miss the targets",
        about=f"In the setting that comes closest; nearest first.{_factors(result)}",
        head=("device", "precision", "layout", "why"),
        words=("device", "precision", "layout", "why"),
        body=tuple(
            (
                Item(text=_kinds(one)), Item(text=one.quant), Item(text=_layouts(one)),
                Item(text=_why(one, result), key=one.excess),
            )
            for one in result.rejected
        ),
        most=_NEAREST,
    )  # fmt: skip
    unmeasured = _table(
        result,
        "Devices that meet the targets at the bound, without measured kernels",
        result.unmeasured,
        _OTHERS,
    )
    ways = _ways(result) if result.disaggregated else []
    return [table for table in (*ways, each, front, _without(unmeasured, "bound"), why) if table.body]


def _ways(result: ServicePlan) -> list[Table]:
    """The best with and without separate prefill workers, as expected and at the bound."""
    best = [result.best_of(apart=apart) for apart in (False, True)]
    name, known = "Prompts read by all, and apart", result.kernels is not None
    about = (
        f"Tokens written at the rate asked for, per dollar and per joule at TDP. Transfer: {_LINKS[result.kv_link]}."
    )
    expected = _way(f"{name}: as expected" if known else name, best, result, about)
    return [expected, _way(f"{name}: at the bound", result.lowest, result, "")] if known else [expected]


def _way(name: str, rows: Sequence[Candidate | None], result: ServicePlan, about: str) -> Table:
    return Folded(
        title=name,
        about=about,
        head=("devices", "precision", result.unit, "TTFT", "TPOT", "transfer", "tok/USD", "tok/J", "req/s"),
        words=("devices", "precision"),
        body=tuple(
            (
                Item(text=devices(one)), Item(text=one.quant), number_item(one.price(result.by)), time_item(one.ttft_s),
                time_item(one.tpot_s), time_item(one.readers.transfer_s if one.readers else nan),
                number_item(result.per_dollar(one)), number_item(result.per_joule(one)), number_item(one.rate_within),
            )
            for one in rows if one
        ),
    )  # fmt: skip


def _kinds(one: Candidate) -> str:
    """Names of devices; prefill workers first where they are separate."""
    names = dict.fromkeys(one.kind)
    if not one.readers:
        return one.hardware.name
    return " read, ".join(names) + (" write" if len(names) > 1 else ", apart")


def _layouts(one: Candidate) -> str:
    return f"{one.readers.layout}; {one.layout}" if one.readers else str(one.layout)


def _why(one: Candidate, result: ServicePlan) -> str:
    """Why a candidate misses the targets, and whether it does so at the bound too."""
    even = result.kernels is not None and one.least is None and one.factor in _TIMED
    return f"{one.reason}{', even at the bound' * even}"


def _factors(result: ServicePlan) -> str:
    """How many devices each limit rules out, if a text does not name them all."""
    counts = Counter(one.factor for one in result.rejected).most_common()
    if len(result.rejected) <= _NEAREST or len(counts) < 2:
        return ""
    return f" Ruled out by {', '.join(f'{factor}: {count:,}' for factor, count in counts)}."


def _table(result: ServicePlan, name: str, rows: tuple[Candidate, ...], most: int, about: str = "") -> Table:
    heads = (result.unit, "bound", "TTFT", "TPOT", "batch", "req/s")
    table: Table = Folded(
        title=name,
        about=about,
        most=most,
        head=("devices", "precision", *heads),
        words=("devices", "precision"),
        body=tuple(
            (
                Item(text=devices(one)), Item(text=one.quant), number_item(one.price(result.by)),
                number_item((one.least or one).price(result.by)), time_item(one.ttft_s), time_item(one.tpot_s),
                Item(text=f"{one.batch:.{0 if one.batch >= _TENS else 1}f}<{one.limit}", key=one.batch),
                number_item(one.rate_within),
            )
            for one in rows
        ),
    )  # fmt: skip
    priced = any(not isnan(one.price(result.by)) for one in rows)
    shown_columns = {result.unit: priced, "bound": priced and result.kernels is not None}
    for head, there in shown_columns.items():
        table = table if there else _without(table, head)
    return table


def _without(table: Table, name: str) -> Table:
    """The table without a column."""
    if name not in table.head:
        return table
    at = table.head.index(name)
    body = tuple((*row[:at], *row[at + 1 :]) for row in table.body)
    return replace(table, head=(*table.head[:at], *table.head[at + 1 :]), body=body)


def _cards(result: ServicePlan) -> list[Card]:
    one = result.best
    if one is None:
        return []
    return [
        Card(label="devices", value=devices(one), about=one.quant),
        Card(label=f"lowest {result.unit}", value=number_item(one.price(result.by)).text,
             about=counted(one.devices, "device")),
        Card(label="time to first token", value=seconds(one.ttft_s), about="on average"),
        Card(label="time per token", value=seconds(one.tpot_s), about="on average"),
        Card(label="max requests/s", value=digits(one.rate_within),
             about=f"within the targets; {result.rate:g} requested"),
    ]  # fmt: skip


def _pictures(result: ServicePlan) -> list[list[Picture]]:
    from .pareto_figures import pareto_front

    priced = [one for one in result.able if not isnan(one.price(result.by))]
    if not priced:
        return []
    names = {"tpot_s": "time per output token", "ttft_s": "time to first token"}
    pairs = [(key, name) for key, name in names.items() if all(getattr(one, key) > 0 for one in priced)]
    return [[picture(pareto_front(result, key, name), f"front-{key[:4]}") for key, name in pairs]]


REPORT: Final = Report[ServicePlan](
    name="plans",
    title=title,
    headline=headline,
    tables=tables,
    remarks=remarks,
    basis=basis,
    cards=_cards,
    pictures=_pictures,
    more=_simulation,
)
