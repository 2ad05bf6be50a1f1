"""The report on a plan: the cheapest candidates, the Pareto front, and why others miss the targets."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import inf, isnan, nan
from typing import Any, Final

from llmviewer.analyzing.costs import Criterion
from llmviewer.parameters import KvLink, KvTransfer
from llmviewer.serving.candidates import Candidate, PrefillWorkers
from llmviewer.serving.outcome import PERCENTILES, Goals, Simulation, percentile_name, summary
from llmviewer.serving.service_plan import ServicePlan
from llmviewer.units import counted, seconds

from .advice import Folded
from .choice import unsold
from .comparison_tables import prices_of
from .launching import server_commands
from .page_figures import Picture, picture
from .parts import Card, Command, option_words
from .report import Report
from .serving import beyond
from .tables import Item, Reasons, Table, digits, number_item, time_item

_MAX_FIRST_ROWS: Final = 10  # rows of the first table in a text
_MAX_ROWS: Final = 6  # rows of further tables in a text
_MAX_REJECTED_ROWS: Final = 5
_MAX_UNPRICED_NAMES: Final = 10
_MIN_WHOLE_BATCH: Final = 10  # batches from which no decimal is shown
_MIN_BOUND_SHARE: Final = 0.05  # share of bounds in a time from which it is noted
_PERCENTILES: Final = "Percentiles of one replica, with its share of the arrival rate:"
_PERCENTILES_DISAGGREGATED: Final = "Percentiles with separate prefill workers:"
_LINKS: Final = {
    KvLink.SCALE_OUT: "over scale-out links, or through the hosts if there are none",
    KvLink.SCALE_UP: "over scale-up links",
}
_TIME_FACTORS: Final = ("rate", "batch", "time to first token", "time per token")  # factors that depend on step times
_MEANS: Final = "Times of tables are means with Poisson arrivals."


def basis(result: ServicePlan) -> str:
    """The kernels and bounds that the times rest on."""
    if result.kernels is None:
        times = "Times are roofline lower bounds: no plan needs less, and a real one needs more."
    else:
        source = f"{result.kernels} kernels" if result.kernels else "the most measured kernel library of each device"
        times = f"Expected times: from {source}. Bound: roofline lower bound."
    return f"{times} {_MEANS}{_prefill_workers(result)}"


def _prefill_workers(result: ServicePlan) -> str:
    """Assumptions on prefill workers, in words."""
    if not result.kv_transfer:
        return ""
    when = "after" if result.kv_transfer is KvTransfer.AFTER else "during"
    return f" Prefill workers run one prompt at a time; its KV cache is sent {when} prefill, {_LINKS[result.kv_link]}."


def _simulation(result: ServicePlan) -> list[Command]:
    """Commands that simulate one replica of the best, with its prefill workers; none if no plan meets the targets."""
    kinds = (False, True) if result.disaggregated else ()
    candidates = [result.best_of(disaggregated=separate) for separate in kinds] or [result.best]
    return [
        Command(_PERCENTILES_DISAGGREGATED if one.prefill_workers else _PERCENTILES, _command(result.simulation(one)))
        for one in candidates
        if one and isinstance(result.shared_arguments["model"], str)
    ]


def _server(result: ServicePlan) -> list[Command]:
    """The launch command of a replica of the best, if its engine has one."""
    one = result.best
    if one is None or one.prefill_workers:
        return []
    confirmation = result.recommended
    sequences = confirmation.run.max_batch * one.layout.dp if confirmation else one.limit  # as simulated
    return server_commands(result.replica_setting(one), sequences=sequences, tokens=result.prompt + result.gen)


def _command(arguments: dict[str, Any]) -> list[str]:
    model, device = shlex.quote(arguments.pop("model")), shlex.quote(arguments.pop("hardware"))
    return [f"llmviewer simulate {model} {device}", *option_words(arguments)]


def title(result: ServicePlan) -> str:
    """Model, arrival rate and lengths that a deployment is planned for."""
    requests = f"{result.rate:g} request{'s' * (result.rate != 1)}/s"
    return (
        f"Serving {result.model.title}: {requests}, {result.prompt:,} input tokens, "
        f"{counted(result.gen, 'output token')}"
    )


def headline(result: ServicePlan) -> str:
    """The request, and the best in words."""
    within = "".join(f", {target}" for target in _targets(result.goals))
    changed = result.shared_arguments["hardware_set"]
    conditions = f", what if {', '.join(changed)}" if changed else ""
    conditions += "".join(f", {one}" for one in result.shared_arguments["techniques"])
    limit = f", at most {counted(result.max_devices, 'device')}"
    return f"{title(result)}{within}{limit}{conditions}. {best(result)}{ranked(result)}"


def ranked(result: ServicePlan) -> str:
    """The number of candidates with a price, if that decides the ranking."""
    if (
        not result.within_targets
        or result.priced == result.considered
        or Criterion.COST not in (result.by, result.requested_measure or Criterion.COST)
    ):
        return ""
    verb = "has" if result.priced == 1 else "have"
    priced = f"{result.priced} of the {counted(result.considered, 'device')} considered {verb}"
    if result.by is not Criterion.COST:
        return f" Ranked by {result.unit}, as no plan that meets the targets has a price; {priced} one."
    others = ", and only these are ranked; --by energy or --by devices ranks the others too"
    return f" {priced} a price{others if result.best else ''}."


def best(result: ServicePlan) -> str:
    """The cheapest in words."""
    one = result.best
    if one is None:
        if not result.within_targets:
            answer = "No plan is known to meet the targets." if result.unmeasured else "No plan meets the targets."
            return f"{answer}{_at_the_bound(result)}"
        return f"No plan that meets the targets has {_priced(result)}."
    sustained = f"sustains {digits(one.rate_within)} requests/s{_within(result)}"
    return (
        f"Lowest in {result.unit}: {_priced_one(one, result)}{_token_price(one, result)}.{_verdict(result)} Mean TTFT "
        f"{seconds(one.ttft_s)}, TPOT {seconds(one.tpot_s)}; {digits(one.batch)} sequences decode concurrently on each "
        f"replica (batch limit {one.limit}); {sustained}.{_ttft_parts(one)}{_other_kind(one, result)}"
        f"{_at_the_bound(result)}"
    )


def _within(result: ServicePlan) -> str:
    """Condition of the highest rate; "" without targets."""
    return " within the targets" * any(_targets(result.goals))


def _targets(goals: Goals) -> Iterator[str]:
    """The targets in words, such as "p90 TTFT <= 500 ms"."""
    for name, limit_s, percentile in (
        ("TTFT", goals.ttft_s, goals.ttft_percentile), ("TPOT", goals.tpot_s, goals.tpot_percentile),
    ):  # fmt: skip
        if limit_s < inf:
            yield f"{percentile_name(percentile)} {name} <= {seconds(limit_s)}"


def _verdict(result: ServicePlan) -> str:
    """Whether the plan meets its targets when it is simulated, and what was cheaper and did not."""
    if not result.simulations:
        return ""
    one = result.recommended
    if one is None:
        return (
            f" Not confirmed: the {counted(len(result.simulations), 'cheapest plan')}, simulated, miss the targets; "
            "the next meets them in closed form."
        )
    share = f"; {one.run.good:.1%} of the requests are within both" if any(_targets(result.goals)) else ""
    times = "".join(
        f", {percentile_name(percentile)} {name} {seconds(time_s)}"
        for name, time_s, percentile in (
            ("TTFT", one.ttft_s, result.goals.ttft_percentile), ("TPOT", one.tpot_s, result.goals.tpot_percentile),
        )
    )  # fmt: skip
    cheaper = len(result.simulations) - 1
    note = f" ({counted(cheaper, 'cheaper plan')} missed the targets when simulated)" if cheaper else ""
    return f" Simulated{times}{share}{note}."


def _ttft_parts(one: Candidate) -> str:
    """Parts of the time to first token with separate prefill workers."""
    workers = one.prefill_workers
    if not workers:
        return ""
    queued, prefill, transfer = map(seconds, (workers.wait_s, workers.prefill_s, workers.transfer_s))
    return f" TTFT: {queued} queued, {prefill} prefill, {transfer} KV-cache transfer."


def _other_kind(one: Candidate, result: ServicePlan) -> str:
    """The best with separate prefill workers, or without them, where the best is of the other kind."""
    if not result.disaggregated:
        return ""
    separate = not one.prefill_workers
    kind = f"With{'' if separate else 'out'} separate prefill workers"
    other = result.best_of(disaggregated=separate)
    if other is None:
        unpriced = any(bool(each.prefill_workers) is separate for each in result.within_targets)
        return f" {kind}, no plan{' with a price' * unpriced} meets the targets."
    price_ratio = other.price(result.by) / one.price(result.by)
    ratio = f"{price_ratio:.3g} times as much" if price_ratio > 1 else "as much"
    return f" {kind}, the lowest is {_priced_one(other, result)}, {ratio}."


def _token_price(one: Candidate, result: ServicePlan) -> str:
    """Cost of a million output tokens at the requested rate."""
    if result.by is not Criterion.COST or isnan(one.usd_per_h):
        return ""
    dollars = one.usd_per_h / 3600 / (result.rate * result.gen) * 1e6
    return f", {number_item(dollars).text} USD per million output tokens"


def _priced_one(one: Candidate, result: ServicePlan) -> str:
    named, price = f"{devices(one)}, {one.quant}", one.price(result.by)
    if isnan(price):
        return named
    amount = (
        counted(one.devices, "device") if result.by is Criterion.DEVICES else f"{number_item(price).text} {result.unit}"
    )
    return f"{named}: {amount}"


def _at_the_bound(result: ServicePlan) -> str:
    """The cheapest at lower bounds."""
    if result.kernels is None or result.cheapest_at_bound is None:
        return ""
    if isnan(result.cheapest_at_bound.price(result.by)):
        return f" At the bound {_priced_one(result.cheapest_at_bound, result)} would meet the targets."
    return f" At the bound, {_priced_one(result.cheapest_at_bound, result)}: no kernels need less."


def devices(one: Candidate) -> str:
    """Such as "2 x (4 x h100-sxm, tp=4)", with separate prefill workers."""
    if one.prefill_workers:
        return f"{_counted(one.prefill_workers)} prefill, {_counted(one)} decode"
    return _counted(one) if one.copies > 1 or one.layout.devices == 1 else _laid(one)


def _counted(one: Candidate | PrefillWorkers) -> str:
    return f"{one.copies} x ({_laid(one)})" if one.layout.devices > 1 else f"{one.copies} x {one.hardware.name}"


def _laid(one: Candidate | PrefillWorkers) -> str:
    return f"{one.layout.devices} x {one.hardware.name}, {one.layout}"


def _priced(result: ServicePlan) -> str:
    if result.by is Criterion.ENERGY:
        return "a TDP in its file; try --by devices"
    return "a price in its file; try --depreciation, --by energy or --by devices"


def remarks(result: ServicePlan) -> list[str]:
    """Number of settings tried, devices that could not be ranked, and the share of bounds in the best plan."""
    lines = [f"{result.combinations:,} combinations of devices, layouts, precisions, replicas and batches were tried."]
    lines += unsold(result.unavailable)
    if result.without_price:
        lines.append(
            f"Not evaluated: {counted(len(result.without_price), 'device')} without a price. --by energy or --by "
            "devices evaluates all; --hardware-set 'NAME:price.cloud=3 USD/h' sets a price."
        )
    if result.best and result.unpriced:
        omitted_count = len(result.unpriced) - _MAX_UNPRICED_NAMES
        names = ", ".join(result.unpriced[:_MAX_UNPRICED_NAMES]) + f" and {omitted_count} more" * (omitted_count > 0)
        lacking, change = (
            ("TDP", "power.tdp=700 W") if result.by is Criterion.ENERGY else ("price", "price.cloud=3 USD/h")
        )
        lines.append(
            f"Not ranked, because their files have no {lacking}: {names}. --hardware-set "
            f"'{result.unpriced[0]}:{change}' sets it, as does a device file of your own (`llmviewer hardware NAME "
            "--format yaml`)."
        )
    if result.best and result.best.unmodelled > _MIN_BOUND_SHARE:
        lines.append(
            f"{result.best.unmodelled:.0%} of the step time of the best plan is a bound: no kernel was measured for it."
        )
    return [*lines, *beyond(result.model, result.prompt + result.gen)]


def tables(result: ServicePlan) -> list[Table]:
    """The cheapest of every device, the Pareto front, and why others miss the targets."""
    with_bound = result.best and result.kernels is not None
    bound = f"Bound: {result.unit} at roofline lower bounds. " if with_bound else ""
    when = (
        prices_of(kind for one in result.best_by_device for kind in one.device_kinds)
        if result.by is Criterion.COST
        else ""
    )
    lowest, none = f"Lowest {result.unit} of every device that meets the targets", "Devices that meet the targets"
    each = _table(
        result, lowest if result.best else none, result.best_by_device, _MAX_FIRST_ROWS,
        f"{bound}Batch: mean concurrent sequences of each replica < batch limit, the least that serves the rate in "
        f"closed form. Req/s: highest rate{_within(result)}.{when}",
    )  # fmt: skip
    front = _table(result, "Pareto front (price, power, devices, times, req/s)", result.front, _MAX_ROWS)
    why = Reasons(
        title="Devices that miss the targets",
        about=f"By the setting that comes closest; closest first.{_factors(result)}",
        head=("device", "precision", "layout", "why"),
        words=("device", "precision", "layout", "why"),
        body=tuple(
            (
                Item(text=_kinds(one)), Item(text=one.quant), Item(text=_layouts(one)),
                Item(text=_why(one, result), key=one.excess),
            )
            for one in result.rejected
        ),
        most=_MAX_REJECTED_ROWS,
    )  # fmt: skip
    unmeasured = _table(
        result,
        "Devices that meet the targets at the bound, without measured kernels",
        result.unmeasured,
        _MAX_ROWS,
    )
    compared = _kinds_compared(result) if result.disaggregated else []
    if result.top:
        title = f"The {counted(result.top, 'lowest plan')}, in {result.unit}"
        compared = [*compared, _table(result, title, result.within_targets[: result.top], result.top)]
    return [
        table
        for table in (*_recommended(result), *compared, each, front, _without(unmeasured, "bound"), why)
        if table.body
    ]


def _recommended(result: ServicePlan) -> Iterator[Table]:
    """The recommended plan: percentiles of its simulation; rates and sizes of a replica and in total."""
    confirmation = result.recommended
    if confirmation is None:
        return
    run, one = confirmation.run, confirmation.candidate
    names = (("TTFT", "ttft_s"), ("TPOT", "tpot_s"), ("E2E latency", "latency_s"), ("queue time", "wait_s"))
    summaries = [(name, summary(run.metrics[key])) for name, key in names]
    order = "prefill and decode apart" if one.prefill_workers else str(run.policy)
    yield Table(
        title="The plan, simulated",
        about=f"{counted(len(run.traffic), 'request')}, {order}, {_batch_limit(run)}"
        f"{', one replica with its share of the requests' * (not one.prefill_workers)}.",
        head=("time", "mean", *(f"p{q}" for q in PERCENTILES), "max"),
        words=("time",),
        body=tuple(
            (Item(text=name), *(time_item(nan if value is None else value) for value in numbers.values()))
            for name, numbers in summaries
        ),
    )
    yield Table(
        title="The plan, per replica and in total",
        about="",
        head=("", "replicas", "devices", "req/s", "output tokens/s", "USD/h", "W at TDP"),
        words=("",),
        body=tuple(
            (
                Item(text=name), Item(text=str(copies), key=copies), number_item(count),
                number_item(result.rate * share), number_item(result.rate * result.gen * share),
                number_item(one.usd_per_h * part), number_item(one.watts * part),
            )
            for name, copies, count, share, part in _sizes(one)
        ),
    )  # fmt: skip


def _batch_limit(run: Simulation) -> str:
    """The batch limit of a simulation, which is that of the server and no less than a plan needs."""
    engine = run.setting.engine
    return f"max_num_seqs {run.max_batch}, that of {engine.title}" if engine else f"max batch {run.max_batch}"


def _sizes(one: Candidate) -> Iterator[tuple[str, int, int, float, float]]:
    """(name, replicas, devices, share of the requests, share of price and power) of each kind of replica, and in total.

    Price and power of prefill workers are those of their devices.
    """
    workers = one.prefill_workers
    if workers:
        yield "all prefill workers", workers.copies, workers.devices, 1.0, nan
        yield "all decode replicas", one.copies, one.copies * one.layout.devices, 1.0, nan
    elif one.copies > 1:
        yield "a replica", 1, one.layout.devices, 1 / one.copies, 1 / one.copies
    yield "in total", one.copies + (workers.copies if workers else 0), one.devices, 1.0, 1.0


def _kinds_compared(result: ServicePlan) -> list[Table]:
    """The best with and without separate prefill workers, as expected and at the bound."""
    best = [result.best_of(disaggregated=disaggregated) for disaggregated in (False, True)]
    name, with_bound = "Without and with separate prefill workers", result.kernels is not None
    about = (
        f"Output tokens per dollar, and per joule at TDP, at the requested rate. Transfer: {_LINKS[result.kv_link]}."
    )
    expected = _kind_table(f"{name}: expected" if with_bound else name, best, result, about)
    return (
        [expected, _kind_table(f"{name}: at the bound", result.lowest_at_bound, result, "")]
        if with_bound
        else [expected]
    )


def _kind_table(name: str, rows: Sequence[Candidate | None], result: ServicePlan, about: str) -> Table:
    return Folded(
        title=name,
        about=about,
        head=("devices", "precision", result.unit, "TTFT", "TPOT", "transfer", "tok/USD", "tok/J", "req/s"),
        words=("devices", "precision"),
        body=tuple(
            (
                Item(text=devices(one)), Item(text=one.quant), number_item(one.price(result.by)), time_item(one.ttft_s),
                time_item(one.tpot_s), time_item(one.prefill_workers.transfer_s if one.prefill_workers else nan),
                number_item(result.per_dollar(one)), number_item(result.per_joule(one)), number_item(one.rate_within),
            )
            for one in rows if one
        ),
    )  # fmt: skip


def _kinds(one: Candidate) -> str:
    """Names of devices; prefill workers first where they are separate."""
    names = dict.fromkeys(one.device_names)
    if not one.prefill_workers:
        return one.hardware.name
    return " prefill, ".join(names) + (" decode" if len(names) > 1 else ", disaggregated")


def _layouts(one: Candidate) -> str:
    return f"{one.prefill_workers.layout}; {one.layout}" if one.prefill_workers else str(one.layout)


def _why(one: Candidate, result: ServicePlan) -> str:
    """Why a candidate misses the targets, and whether it does so at the bound too."""
    at_bound = result.kernels is not None and one.at_bound is None and one.factor in _TIME_FACTORS
    return f"{one.reason}{', even at the bound' * at_bound}"


def _factors(result: ServicePlan) -> str:
    """Number of devices that each limit rules out, if a text does not name them all."""
    counts = Counter(one.factor for one in result.rejected).most_common()
    if len(result.rejected) <= _MAX_REJECTED_ROWS or len(counts) < 2:
        return ""
    return f" Ruled out by {', '.join(f'{factor}: {count:,}' for factor, count in counts)}."


def _table(result: ServicePlan, name: str, rows: tuple[Candidate, ...], max_rows: int, about: str = "") -> Table:
    heads = (result.unit, "bound", "TTFT", "TPOT", "batch", "req/s")
    table: Table = Folded(
        title=name,
        about=about,
        most=max_rows,
        head=("devices", "precision", *heads),
        words=("devices", "precision"),
        body=tuple(
            (
                Item(text=devices(one)), Item(text=one.quant), number_item(one.price(result.by)),
                number_item((one.at_bound or one).price(result.by)), time_item(one.ttft_s), time_item(one.tpot_s),
                Item(text=f"{one.batch:.{0 if one.batch >= _MIN_WHOLE_BATCH else 1}f}<{one.limit}", key=one.batch),
                number_item(one.rate_within),
            )
            for one in rows
        ),
    )  # fmt: skip
    priced = any(not isnan(one.price(result.by)) for one in rows)
    shown_columns = {result.unit: priced, "bound": priced and result.kernels is not None}
    for head, is_shown in shown_columns.items():
        table = table if is_shown else _without(table, head)
    return table


def _without(table: Table, name: str) -> Table:
    """The table without a column."""
    if name not in table.head:
        return table
    place = table.head.index(name)
    body = tuple((*row[:place], *row[place + 1 :]) for row in table.body)
    return replace(table, head=(*table.head[:place], *table.head[place + 1 :]), body=body)


def _cards(result: ServicePlan) -> list[Card]:
    one = result.best
    if one is None:
        return []
    return [
        Card(label="devices", value=devices(one), about=one.quant),
        Card(label=f"lowest {result.unit}", value=number_item(one.price(result.by)).text,
             about=counted(one.devices, "device")),
        Card(label="TTFT", value=seconds(one.ttft_s), about="mean"),
        Card(label="TPOT", value=seconds(one.tpot_s), about="mean"),
        Card(label="max requests/s", value=digits(one.rate_within),
             about="; ".join(filter(None, (_within(result).strip(), f"{result.rate:g} requested")))),
    ]  # fmt: skip


def _pictures(result: ServicePlan) -> list[list[Picture]]:
    from .pareto_figures import pareto_front

    priced = [one for one in result.within_targets if not isnan(one.price(result.by))]
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
    more=lambda result: [*_simulation(result), *_server(result)],
)
