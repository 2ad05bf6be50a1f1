"""The report on a simulation of requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np

from llmviewer.expectation.engines import Engine
from llmviewer.model import Model
from llmviewer.serving.clients import CLIENTS
from llmviewer.serving.metrics import Usage
from llmviewer.serving.outcome import PERCENTILES, Simulation, summary
from llmviewer.serving.routers import ROUND_ROBIN
from llmviewer.serving.saturation import Saturation
from llmviewer.serving.traffic import Times, Traffic
from llmviewer.setting import Setting
from llmviewer.units import counted, seconds, si

from .page_figures import Picture, picture
from .parts import Card
from .report import Report
from .tables import DASH, Item, Table, digits, number_item, time_item

_NAMES: Final = {
    "wait_s": "queue time", "ttft_s": "TTFT", "tpot_s": "TPOT", "gap_s": "max ITL", "latency_s": "E2E latency",
}  # fmt: skip
_TASK_NAMES: Final = {
    "latency_s": "E2E latency", "serving_s": "without waits", "calls": "requests", "prompt": "input tokens",
    "cached": "cached input tokens",
}  # fmt: skip
_STATISTICS: Final = {"mean": "mean of all", "p50": "median of all"}
_SUMMARY: Final = ("mean", *(f"p{q}" for q in PERCENTILES), "max")
_NOTABLE_FIRST_ROUND: Final = 1.5  # ratio of mean TTFTs from which the first round is reported
_NOTABLE_DRAIN: Final = 0.1  # share of the span from which the drain is reported
_ROUGH_CHUNKS: Final = 4  # chunks per prompt from which the closed-form TTFT is rough
_BOUND: Final = (
    "At the bound: each step takes its roofline lower bound. It bounds this schedule; another policy may serve more."
)


def basis(result: Simulation | Saturation) -> str:
    """The kernels and bounds that the times rest on."""
    if result.expected is None:
        return f"{_BOUND} {unknown(result.unknown)}".strip()
    setting = result.setting
    if setting.engine:
        return f"{_BOUND} Expected: step times of {setting.engine.description}{_of_servers(setting.engine)}"
    return f"{_BOUND} Expected: step times from {kernels(setting)}, without launch gaps and scheduler overhead."


def _of_servers(engine: Engine) -> str:
    """Multiples of expected times that published servers took, as a sentence; "" if none were compared."""
    servers = engine.servers
    if servers is None:
        return ""
    tpot, ttft = (" to ".join(f"{factor:g}" for factor in span) for span in (servers.tpot, servers.ttft))
    return (
        f" Eight of ten of {servers.results} published servers took {tpot} times the expected TPOT and {ttft} times "
        "the expected TTFT (llmviewer docs inferencex)."
    )


def unknown(why: str) -> str:
    """The reason why there are only bounds."""
    return f"No expected times: {why}." if why else ""


def kernels(setting: Setting) -> str:
    """Sources of the expected times of kernels."""
    sources = setting.kernels
    if not sources or not sources.library:
        return "kernels measured on similar devices"
    return f"measured {sources.library} kernels{' of similar devices' if sources.is_unmeasured else ''}"


def beyond(model: Model, tokens: int) -> list[str]:
    """A note on requests longer than the context of the model."""
    max_context = model.max_context
    exceeds = 0 < max_context < tokens
    return [f"{tokens:,} tokens exceed the context length of {model.name}, {max_context:,}."] if exceeds else []


def title(result: Simulation) -> str:
    """The model, its devices and the number of requests, and of sessions or tasks."""
    traffic, kind = result.traffic, _kind(result.traffic)
    tasks = f" of {counted(traffic.task_count, kind)}" if kind else ""
    return f"{models(result)}: {counted(len(traffic), 'request')}{tasks}"


def models(result: Simulation) -> str:
    """The model and its devices, or each of several by its name."""
    named = [f"{name} ({one.setting.model.title}) on {devices(one)}" for name, one in result.models.items()]
    return ", ".join(named) or f"{result.setting.model.title} on {devices(result)}"


def _kind(traffic: Traffic) -> str:
    """Kind of tasks: "session" or "task"; "" if each request is by itself."""
    return traffic.calls.kind if traffic.calls else ""


def devices(result: Simulation) -> str:
    """Devices of all replicas, such as "1 x h100-sxm for prefill and 2 x (4 x h100-sxm, tp=4) for decode"."""
    decode, *prefill = [laid(setting, replicas, counted=result.reads is not None) for setting, replicas in result.sides]
    return f"{prefill[0]} for prefill and {decode} for decode" if prefill else decode


def laid(setting: Setting, replicas: int, *, counted: bool = False) -> str:
    """Devices of equal replicas, such as "2 x (4 x h100-sxm, tp=4)"; "1 x h100-sxm" for a single one if `counted`."""
    name, layout = setting.hardware.name, setting.layout
    one = f"({layout.devices} x {name}, {layout})" if layout.devices > 1 else name
    return f"{replicas} x {one}" if replicas > 1 or counted else one.strip("()")


def preempted(times: int, usage: Usage) -> list[str]:
    """Preemptions, and the prefill tokens that they add."""
    added = usage.reread / max(usage.read, 1)
    cause = f"{counted(times, 'preemption')} because the KV cache was full"
    return [f"{cause}; recomputation adds {added:.1%} to the prefill tokens."] if times else []


def _first_round(run: Simulation) -> list[str]:
    """TTFT of the requests that come together at the start of a closed loop, beside others and what is published."""
    clients = run.traffic.in_flight or 0
    if run.traffic.calls or not 1 < clients < len(run.traffic):
        return []
    first, later = (float(np.mean(part)) for part in np.split(run.ttft_s, [clients]))
    if not run.client and first < _NOTABLE_FIRST_ROUND * later:
        return []
    line = f"TTFT: {seconds(first)} for the first {clients}, which come together, {seconds(later)} for others (means)"
    if not run.client:
        return [f"{line}."]
    client, figures = CLIENTS[run.client], summary(run.ttft_s)
    return [f"{line}; {client.title} publishes the {_STATISTICS[client.ttft]}, {seconds(figures[client.ttft] or 0.0)}."]


def _fleet(run: Simulation) -> list[str]:
    """Failures of replicas and autoscaling, with what became of requests."""
    if not run.fleet or not run.rules:
        return []
    log, lines = run.fleet, []
    if run.rules.outages:
        numbers_by_way = {way: getattr(log, way) for way in ("migrated", "recomputed", "restarted", "failed")}
        ways = ", ".join(f"{number:,} {way}" for way, number in numbers_by_way.items() if number) or "none"
        lost = f"; {log.lost_tokens:,} output tokens lost" if log.lost_tokens else ""
        lines.append(f"Failures: {counted(log.failures, 'replica')}; unfinished requests: {ways}{lost}.")
    if run.rules.scaling:
        least, most = (limit(number for _, number in log.serving) for limit in (min, max))
        serving = counted(most, "replica") if least == most else f"{least} to {most} replicas"
        lines.append(
            f"Autoscaling: {serving} in service, {digits(run.mean_replicas)} paid for on average; "
            f"{counted(log.starts, 'start')} of {seconds(run.rules.startup_s)}."
        )
    return lines


def _prefix_cache(result: Simulation) -> list[str]:
    """Prefix cache: the share of prompts that could hit it, and the share that did."""
    if result.traffic.blocks is None:
        return []
    source = "conversation" if result.traffic.calls else "prompt"
    repeated = (
        f"Prefix cache: {result.traffic.repeated:.1%} of the prompt tokens repeat a prefix of an earlier {source}"
    )
    if result.reads:
        return [f"{repeated} and are never recomputed: the prefix cache of prefill replicas is unlimited here."]
    evicted = f"; {result.usage.evicted:,.0f} tokens were evicted for lack of memory" if result.usage.evicted else ""
    separate = f"; each of the {result.servers} replicas has its own cache" if result.servers > 1 else ""
    most = f", {result.usage.there_at_most:.1%} at most with any eviction (Belady)" if result.usage.evicted else ""
    return [f"{repeated}; hit rate {result.usage.there:.1%}{most}{evicted}{separate}."]


def lengths(traffic: Traffic) -> str:
    """Input and output tokens of a request, as means if they vary."""
    prompt, gen = (round(float(np.mean(each))) for each in (traffic.prompt, traffic.gen))
    alike = all(np.ptp(each) == 0 for each in (traffic.prompt, traffic.gen))
    return f"{'' if alike else 'mean '}{prompt:,} input and {gen:,} output tokens"


def headline(result: Simulation) -> str:
    """The request in one line."""
    traffic = result.traffic
    begins = "that begin at {} per second" if _kind(traffic) else "at {} req/s"
    rate = begins.format(digits(traffic.task_rate)) if traffic.task_rate < np.inf else "all at the start"
    rate = f"at concurrency {traffic.in_flight}" if traffic.in_flight else rate
    order = "" if result.reads else f", {result.policy}"
    order = f", {result.setting.engine.title}{order}" if result.setting.engine else order
    order = "".join(f", {one}" for one in result.setting.techniques) + order
    order = order if result.router == ROUND_ROBIN else f"{order}, router {result.router}"
    order += _changes(result)
    scope = " per rank" if result.setting.layout.dp > 1 else ""
    targets = f"; targets: {_targets(result)}" if _targets(result) else ""
    return (
        f"{title(result)} {rate}, {lengths(traffic)}, {result.setting.quantization}{order}, max batch "
        f"{result.max_batch}{scope}{targets}"
    )


def _changes(result: Simulation) -> str:
    """The rules of failures and autoscaling; "" without any."""
    if not result.rules:
        return ""
    outages, scaling = result.rules.outages, result.rules.scaling
    failing = f", MTBF {seconds(outages.mtbf_s)} per replica ({outages.recovery})" if outages else ""
    scaled = ""
    if scaling:
        scaled = (
            f", autoscaled from {scaling.least} to {scaling.most} replicas at {digits(scaling.target)} requests each"
        )
    return f"{failing}{scaled}, start-up {seconds(result.rules.startup_s)}"


def lockstep(traffic: Traffic) -> list[str]:
    """A note on clients of a closed loop whose requests are equal, so that they start and finish together."""
    if not traffic.in_flight or traffic.in_flight == 1 or np.ptp(traffic.prompt) or np.ptp(traffic.gen):
        return []
    note = (
        "All requests have the same lengths, so that clients keep in step: prefills come in waves, and rates differ "
        "from those of real lengths (--gen-lengths uniform:LEAST-MOST varies them)."
    )
    return [note]


def remarks(result: Simulation) -> list[str]:
    """The bottleneck, and what qualifies the results."""
    likely = result.likely
    lines = [f"Bottleneck: {likely.limit}"]
    lines += _first_round(likely)
    lines += preempted(likely.preemptions, likely.usage)
    if likely.usage.paused:
        moved = f"; {si(likely.usage.swapped)}B of KV cache moved to the host and back" if likely.usage.swapped else ""
        lines.append(f"Order: requests gave their place to others {likely.usage.paused:,.0f} times{moved}.")
    lines += _fleet(likely)
    lines += _prefix_cache(likely)
    if likely.usage.padding:
        share = likely.usage.padding / (likely.usage.padding + likely.usage.read + likely.usage.written)
        lines.append(f"Padding: {share:.0%} of all computed tokens.")
    if likely.drained > _NOTABLE_DRAIN and likely.traffic.in_flight:
        lines.append(
            f"Drain: in the last {likely.drained:.0%} of the {seconds(likely.span_s)}, fewer than "
            f"{likely.traffic.in_flight} {_kind(likely.traffic) or 'request'}s are running, which lowers the "
            "throughput. More requests (--requests) reduce that share."
        )
    elif likely.drained > _NOTABLE_DRAIN:
        lines.append(
            f"Drain: in the last {likely.drained:.0%} of the {seconds(likely.span_s)}, no request arrives, which "
            f"lowers throughput, also per joule and per dollar: {digits(likely.requests_per_s)} req/s finish, "
            f"{digits(likely.traffic.rate)} arrive.{' This is no overload.' if likely.closed else ''} More requests "
            "(--requests) reduce that share."
        )
    if result.traffic.later:
        lines.append(f"Trace: {counted(result.traffic.later, 'later request')} not simulated (--requests).")
    if result.traffic.empty:
        lines.append(f"Trace: {counted(result.traffic.empty, 'request')} without output tokens not simulated.")
    longest = int(np.max(result.traffic.prompt + result.traffic.gen))
    return [*lines, *lockstep(result.traffic), *beyond(result.setting.model, longest)]


def tables(result: Simulation) -> list[Table]:
    """Latencies of requests, expected and at the bound, and throughput."""
    bound = _times(result, "Latency at the bound", about=True)
    expected = [_times(result.expected, "Latency, expected", about=False)] if result.expected else []
    return [*expected, bound, *_tasks(result), *_models(result), _service(result), *_tenants(result.likely)]


def _tasks(result: Simulation) -> Iterator[Table]:
    """Sessions or tasks as wholes, expected and at the bound."""
    for run, basis in ((result.expected, ", expected"), (result, " at the bound")):
        if not run or not run.tasks:
            continue
        body = []
        for key, values in run.tasks.metrics.items():
            show = time_item if key.endswith("_s") else number_item
            body.append((Item(text=_TASK_NAMES[key]), *_statistics(values, show)))
        kind = run.tasks.kind
        about = (
            "Without waits: the longest chain of its requests, without think times and tools." if run is result else ""
        )
        yield Table(
            title=f"{kind.capitalize()}s{basis}", about=about, head=(f"per {kind}", *_SUMMARY),
            words=(f"per {kind}",), body=tuple(body),
        )  # fmt: skip


def _models(result: Simulation) -> Iterator[Table]:
    """Calls, load and cost of each model of tasks, expected and at the bound."""
    for run, basis in ((result.expected, ", expected"), (result, " at the bound")):
        if not run or not run.models:
            continue
        body = []
        for one in run.by_model():
            ttft, latency = (one["times"][key]["mean"] for key in ("ttft_s", "latency_s"))
            body.append((
                Item(text=one["name"]), _share(one["tasks"]), number_item(one["calls_per_task"]),
                _optional_time(ttft), _optional_time(latency), _share(one["utilization"]),
                number_item(one["usd_per_task"]), number_item(one["token_usd_per_task"]),
            ))  # fmt: skip
        yield Table(
            title=f"Models{basis}",
            about="USD per task: of its devices, idle or busy; by tokens: at the prices of the file.",
            head=("model", "of tasks", "calls per task", "mean TTFT", "mean E2E", "busy", "USD per task", "by tokens"),
            words=("model",), body=tuple(body),
        )  # fmt: skip


def _tenants(run: Simulation) -> list[Table]:
    """Latencies and tokens of each tenant."""
    if not run.traffic.tenant_names:
        return []
    body = []
    for tenant in run.by_tenant():
        times = (tenant[key][name] for key in ("ttft_s", "latency_s") for name in ("mean", "p99"))
        body.append((
            Item(text=tenant["tenant"]), number_item(tenant["requests"]),
            *map(_optional_time, times),
            number_item(tenant["input_tokens_per_s"]), number_item(tenant["tokens_per_s"]),
        ))  # fmt: skip
    return [
        Table(
            title="Tenants",
            about="",
            head=("tenant", "requests", "mean TTFT", "p99 TTFT", "mean E2E", "p99 E2E", "input tok/s", "output tok/s"),
            words=("tenant",),
            body=tuple(body),
        )
    ]


def _times(result: Simulation, name: str, *, about: bool) -> Table:
    return Table(
        title=name,
        about="ITL: time between two output tokens of a request; max ITL is its longest." if about else "",
        head=("per request", *_SUMMARY),
        words=("per request",),
        body=tuple((Item(text=_NAMES[key]), *_statistics(values, time_item)) for key, values in result.metrics.items()),
    )


def _statistics(values: Times, show: Callable[[float], Item]) -> Iterator[Item]:
    """Items of the statistics in _SUMMARY."""
    figures = summary(values)
    return (DASH if (value := figures[name]) is None else show(value) for name in _SUMMARY)


def _service(result: Simulation) -> Table:
    """Throughput and means of the simulation and of the closed form, at the bound and expected."""
    runs = [run for run in (result, result.expected) if run]
    columns = [dict(_quantities(run)) for run in runs]
    names = dict.fromkeys(name for column in columns for name in column)
    empty = (DASH, DASH)
    rows = [(name, [item for column in columns for item in column.get(name, empty)]) for name in names]
    filled_rows = [(name, items) for name, items in rows if any(item.text != "-" for item in items)]
    head = [name for run in ("at the bound", "expected")[: len(runs)] for name in (run, "closed form")]
    columns_shown = [i for i, name in enumerate(head) if result.closed or name != "closed form"]
    return Table(
        title="Throughput",
        about=f"Closed form: steady-state means{_rough(result)}." if result.closed else "",
        head=("quantity", *(head[i] for i in columns_shown)),
        words=("quantity",),
        body=tuple((Item(text=name), *(items[i] for i in columns_shown)) for name, items in filled_rows),
    )


def _rough(result: Simulation) -> str:
    """A caveat about the closed form for prompts of many chunks."""
    has_many_chunks = result.policy.shares and np.mean(result.traffic.prompt) > _ROUGH_CHUNKS * result.policy.budget
    return "; its TTFT is up to 20 % too low for prompts of many chunks" if has_many_chunks else ""


def _quantities(run: Simulation) -> Iterator[tuple[str, tuple[Item, Item]]]:
    """Rows of the throughput table: (quantity, (simulated, closed form))."""
    closed = run.closed
    if _targets(run):
        yield "requests within targets", (_share(run.good), DASH)
        yield "goodput (req/s)", (number_item(run.good * run.requests_per_s), DASH)
    yield "mean TTFT", (time_item(_mean(run.metrics["ttft_s"])), _optional_time(closed.ttft_s if closed else None))
    yield "mean TPOT", (time_item(_mean(run.metrics["tpot_s"])), _optional_time(closed.tpot_s if closed else None))
    if run.policy.drains:  # the closed form has the batch while one is served
        running = run.usage.sequence_s / (run.replicas * run.span_s)
        batch = closed.batch * closed.utilization if closed else None
        yield "mean batch per replica", (number_item(running), _optional_number(batch))
    else:
        decoding = closed.batch if closed else None
        yield "mean decode batch per replica", (number_item(run.decoding), _optional_number(decoding))
    if run.prefill_replicas:
        yield "prefill replicas busy", (_share(run.reading_utilization), DASH)
    yield from steps(run.traffic, run.usage, run.setting)
    yield (
        "decode replicas busy" if run.prefill_replicas else "replicas busy",
        (_share(run.utilization), _share(closed.utilization) if closed else DASH),
    )
    if run.fleet:
        yield "replicas paid for", (number_item(run.mean_replicas), DASH)
        yield "failed requests", (_share(1 - float(np.mean(run.finished))), DASH)
    yield "request throughput (req/s)", (number_item(run.requests_per_s), DASH)
    max_rate = closed.max_rate * run.replicas if closed else None
    yield "max request throughput (req/s)", (DASH, _optional_number(max_rate))
    if kind := _kind(run.traffic):
        yield f"{kind}s per second", (number_item(run.tasks_per_s), DASH)
        yield f"USD per {kind}", (number_item(run.usd_per_task), DASH)
    yield "output token throughput (tok/s)", (number_item(run.tokens_per_s), DASH)
    yield "tokens/J at TDP", (number_item(run.tokens_per_joule), DASH)
    yield "tokens/USD", (number_item(run.tokens_per_dollar), DASH)


def steps(traffic: Traffic, usage: Usage, setting: Setting) -> Iterator[tuple[str, tuple[Item, Item]]]:
    """Rows on techniques in decode steps and prefills: (quantity, (simulated, closed form))."""
    leaves = max((one.acceptance_probabilities for one in setting.techniques), key=len, default=(1.0,))
    if len(leaves) > 1:
        yield "output tokens per decode step", (number_item(traffic.tokens_per_step), number_item(sum(leaves)))
    if usage.known:
        yield "prefix-cache hit rate", (_share(usage.there), DASH)


def _optional_time(value: float | None) -> Item:
    if value is None:
        return DASH
    return Item(text="unbounded", key=np.inf) if value == np.inf else time_item(value)


def _optional_number(value: float | None) -> Item:
    return DASH if value is None else number_item(value)


def _share(value: float) -> Item:
    return Item(text=f"{value:.1%}", key=value)


def _mean(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
    return float(np.mean(values)) if len(values) else np.nan


def _targets(result: Simulation) -> str:
    """Latency targets, such as "TTFT <= 1 s"; "" without any."""
    goals = {"TTFT": result.goals.ttft_s, "TPOT": result.goals.tpot_s}
    return ", ".join(f"{name} <= {seconds(value)}" for name, value in goals.items() if value < np.inf)


def _cards(result: Simulation) -> list[Card]:
    run = result.likely
    ttft, tpot = summary(run.metrics["ttft_s"]), summary(run.metrics["tpot_s"])
    cards = [
        Card(label="TTFT", value=seconds(ttft["p50"]), about=_spread(ttft)),
        Card(label="TPOT", value=seconds(tpot["p50"]), about=_spread(tpot)),
        Card(
            label="output token throughput",
            value=f"{number_item(run.tokens_per_s).text} tok/s",
            about=f"{digits(run.requests_per_s)} req/s" + _drain(run),
        ),
        Card(
            label="decode replicas busy" if run.prefill_replicas else "replicas busy",
            value=f"{run.utilization:.0%}",
            about=_load(run),
        ),
    ]
    if _targets(run):
        cards.append(Card(label="requests within the targets", value=f"{run.good:.1%}", about=_targets(run)))
    return cards


def _drain(run: Simulation) -> str:
    """The share of the time after the last arrival, which lowers the throughput."""
    return f"; {run.drained:.0%} of the time is drain" if run.drained > _NOTABLE_DRAIN else ""


def _spread(times: dict[str, float | None]) -> str:
    """Median and 99th percentile of a time, in words."""
    return f"median; p99 {seconds(times['p99'])}" if times["p50"] else ""


def _load(run: Simulation) -> str:
    """The arrival rate and the maximum throughput, or the concurrency."""
    if not run.closed or run.traffic.rate == np.inf:
        return f"of the time; concurrency {run.traffic.in_flight}" if run.traffic.in_flight else "of the time"
    max_rate = digits(run.closed.max_rate * run.replicas)
    return f"of the time; {digits(run.traffic.rate)} req/s arrive, max {max_rate} req/s"


def _pictures(result: Simulation) -> list[list[Picture]]:
    from .simulation_figures import queue, spread

    return [[picture(queue(result.likely), "queue"), picture(spread(result), "spread")]]


REPORT: Final = Report[Simulation](
    name="serving",
    title=title,
    headline=headline,
    tables=tables,
    remarks=remarks,
    basis=basis,
    cards=_cards,
    pictures=_pictures,
)
