"""The report on a simulation of requests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from llmviewer.model import Model
from llmviewer.serving.metrics import Usage
from llmviewer.serving.outcome import PERCENTILES, Simulation, summary
from llmviewer.serving.saturation import Saturation
from llmviewer.serving.traffic import Traffic
from llmviewer.setting import Setting
from llmviewer.units import counted, seconds

from .page_figures import Picture, picture
from .parts import Card
from .report import Report
from .tables import DASH, Item, Table, digits, number_item, time_item

_NAMES: Final = {
    "wait_s": "wait to be read", "ttft_s": "time to first token", "tpot_s": "time per token",
    "gap_s": "longest gap", "latency_s": "whole answer",
}  # fmt: skip
_DRAINED: Final = 0.1  # of the span, that is worth a word
_MANY: Final = 4  # steps of a prompt, from which on the closed form with chunks is rough
_BOUND: Final = "At the bound: steps take as long as their lower bounds, which no kernel beats."


def basis(result: Simulation | Saturation) -> str:
    """The kernels and bounds that the times rest on."""
    if result.expected is None:
        return f"{_BOUND} {unknown(result.unknown)}".strip()
    setting = result.setting
    if setting.engine:
        return f"{_BOUND} Expected: as of {setting.engine.said}"
    gaps = "without gaps between them; what a scheduler takes is not counted."
    return f"{_BOUND} Expected: as of {kernels(setting)}, {gaps}"


def unknown(why: str) -> str:
    """Why only bounds are known."""
    return f"No time is expected above it: {why}." if why else ""


def kernels(setting: Setting) -> str:
    """Sources of the expected times of kernels."""
    sources = setting.kernels
    if not sources or not sources.library:
        return "kernels measured on devices like it"
    return f"kernels of {sources.library}{' on devices like it' if sources.carried else ''}"


def beyond(model: Model, tokens: int) -> list[str]:
    """A note on requests longer than the context of the model."""
    most = model.max_context
    return [f"{tokens:,} tokens are more than the {most:,} positions of {model.name}."] if 0 < most < tokens else []


def title(result: Simulation) -> str:
    return f"{result.setting.model.title}: {counted(len(result.traffic), 'request')} on {devices(result)}"


def devices(result: Simulation) -> str:
    """Such as "2 x (4 x h100-sxm, tp=4) and 1 x h100-sxm for prefill"."""
    parts = [laid(setting, copies, counted=result.reads is not None) for setting, copies in result.sides]
    return f"{parts[1]} that read prompts and {parts[0]} that decode" if result.reads else parts[0]


def laid(setting: Setting, copies: int, *, counted: bool = False) -> str:
    """Such as "2 x (4 x h100-sxm, tp=4)"; `counted` where one is "1 x h100-sxm"."""
    name, layout = setting.hardware.name, setting.layout
    one = f"({layout.devices} x {name}, {layout})" if layout.devices > 1 else name
    return f"{copies} x {one}" if copies > 1 or counted else one.strip("()")


def preempted(times: int, usage: Usage) -> list[str]:
    """How often requests were preempted, and what recomputing their cache costs."""
    again = usage.reread / max(usage.read, 1)
    lost = f"{times:,} times a request lost its cache, as memory was full, and was read again"
    return [f"{lost}: {again:.1%} more tokens to read."] if times else []


def _kept(result: Simulation) -> list[str]:
    """Prefix cache: the share of prompts that could hit it, and the share that did."""
    if result.traffic.blocks is None:
        return []
    came = f"{result.traffic.repeated:.1%} of all tokens of prompts were in prompts before them"
    if result.reads:
        return [f"{came}, and none of these are read: what is kept between requests has no limit here."]
    gone = f": {result.usage.evicted:,.0f} tokens had to go, as memory was full" if result.usage.evicted else ""
    apart = f"; each of {result.servers} copies has a cache of its own" if result.servers > 1 else ""
    return [f"{came}, and {result.usage.there:.1%} were still in a cache{gone}{apart}."]


def lengths(traffic: Traffic) -> str:
    """Input and output tokens, as means where they vary."""
    prompt, gen = (round(float(np.mean(each))) for each in (traffic.prompt, traffic.gen))
    alike = all(np.ptp(each) == 0 for each in (traffic.prompt, traffic.gen))
    return f"prompts of {prompt:,} and answers of {counted(gen, 'token')}{'' if alike else ' on average'}"


def headline(result: Simulation) -> str:
    """The request in one line."""
    traffic = result.traffic
    rate = f"{digits(traffic.rate)} a second" if traffic.rate < np.inf else "all at once"
    rate = f"{traffic.in_flight} in flight" if traffic.in_flight else rate
    order = "" if result.reads else f", {result.policy}"
    order = f", {result.setting.engine.title}{order}" if result.setting.engine else order
    order = "".join(f", {one}" for one in result.setting.techniques) + order
    each = " on each rank" if result.setting.layout.dp > 1 else ""
    return (
        f"{title(result)}, {rate}, {lengths(traffic)}, {result.setting.quantization}{order}, at most "
        f"{result.max_batch} at a time{each}"
    )


def remarks(result: Simulation) -> list[str]:
    likely = result.likely
    lines = [f"Bottleneck: {likely.limit}"]
    lines += preempted(likely.preemptions, likely.usage)
    lines += _kept(likely)
    if likely.usage.padding:
        part = likely.usage.padding / (likely.usage.padding + likely.usage.read + likely.usage.written)
        lines.append(f"{part:.0%} of all tokens read and written are padding.")
    if likely.drained > _DRAINED and likely.traffic.in_flight:
        lines.append(
            f"In the last {likely.drained:.0%} of the {seconds(likely.span_s)} fewer than "
            f"{likely.traffic.in_flight} are in flight, after the last arrival, which lowers the throughput. "
            "More requests (--requests) make that share smaller."
        )
    elif likely.drained > _DRAINED:
        lines.append(
            f"In the last {likely.drained:.0%} of the {seconds(likely.span_s)} no request arrives, which lowers "
            f"throughput, also per joule and per dollar: {digits(likely.requests_per_s)} requests/s finish, and "
            f"{digits(likely.traffic.rate)} arrive.{' That is no overload.' if likely.closed else ''} More requests "
            "(--requests) make that share smaller."
        )
    if result.traffic.later:
        lines.append(f"Of the file, {counted(result.traffic.later, 'later request')} left out: --requests takes more.")
    if result.traffic.empty:
        lines.append(f"Of the file, {counted(result.traffic.empty, 'request')} with an answer of 0 tokens left out.")
    longest = int(np.max(result.traffic.prompt + result.traffic.gen))
    return [*lines, *beyond(result.setting.model, longest)]


def tables(result: Simulation) -> list[Table]:
    if not result.expected:
        return [_times(result, "Times of requests, at the bound", about=True), _device(result)]
    expected = _times(result.expected, "Times of requests, as expected", about=False)
    return [expected, _times(result, "The same requests, at the bound", about=True), _device(result)]


def _times(result: Simulation, name: str, *, about: bool) -> Table:
    names = ("mean", *(f"p{q}" for q in PERCENTILES), "max")
    body = []
    for key, values in result.metrics.items():
        figures = summary(values)
        cells = (time_item(np.nan if (value := figures[name]) is None else value) for name in names)
        body.append((Item(text=_NAMES[key]), *cells))
    return Table(
        title=name,
        about="p99: 99 of 100 requests take no longer. Longest gap: between two tokens of an answer." if about else "",
        head=("of a request", *names),
        words=("of a request",),
        body=tuple(body),
    )


def _device(result: Simulation) -> Table:
    """Means of the simulation beside the closed form, at the bound and as expected."""
    runs = [run for run in (result, result.expected) if run]
    columns = [dict(_service(run)) for run in runs]
    names = dict.fromkeys(name for column in columns for name in column)
    empty = (DASH, DASH)
    rows = [(name, [item for column in columns for item in column.get(name, empty)]) for name in names]
    kept = [(name, items) for name, items in rows if any(item.text != "-" for item in items)]
    head = [name for run in ("at the bound", "expected")[: len(runs)] for name in (run, "closed form")]
    shown = [i for i, name in enumerate(head) if result.closed or name != "closed form"]
    return Table(
        title="Service",
        about=f"Closed form: means of the steady state{_rough(result)}." if result.closed else "",
        head=("quantity", *(head[i] for i in shown)),
        words=("quantity",),
        body=tuple((Item(text=name), *(items[i] for i in shown)) for name, items in kept),
    )


def _rough(result: Simulation) -> str:
    """Why the closed form is approximate with chunked prefills of many steps."""
    many = result.policy.shares and np.mean(result.traffic.prompt) > _MANY * result.policy.budget
    return ", which for prompts of many steps has times to first token up to a fifth too low" if many else ""


def _service(run: Simulation) -> Iterator[tuple[str, tuple[Item, Item]]]:
    """(quantity, (simulated, closed form))"""
    closed = run.closed
    if min(run.goals.ttft_s, run.goals.tpot_s) < np.inf:
        yield f"within {_goals(run)}", (_share(run.good), DASH)
        yield "of these requests/s", (number_item(run.good * run.requests_per_s), DASH)
    yield (
        "mean time to first token",
        (time_item(float(np.mean(run.ttft_s))), _closed(closed.ttft_s if closed else None)),
    )
    yield "mean time per token", (time_item(_mean(run.tpot_s)), _closed(closed.tpot_s if closed else None))
    if run.policy.drains:  # in closed form those of a batch, as long as one is served
        held = run.usage.sequence_s / (run.copies * run.span_s)
        batch = closed.batch * closed.utilization if closed else None
        yield "sequences at a time, each copy", (number_item(held), _known(batch))
    else:
        decoding = closed.batch if closed else None
        yield "sequences that decode, each copy", (number_item(run.decoding), _known(decoding))
    if run.readers:
        yield "devices that read busy", (_share(run.reading_utilization), DASH)
    yield from steps(run.traffic, run.usage, run.setting)
    yield "device busy", (_share(run.utilization), _share(closed.utilization) if closed else DASH)
    yield "requests/s", (number_item(run.requests_per_s), DASH)
    most = closed.max_rate * run.copies if closed else None
    yield "requests/s that can be served", (DASH, _known(most))
    yield "tokens/s", (number_item(run.tokens_per_s), DASH)
    yield "tokens/J at TDP", (number_item(run.tokens_per_joule), DASH)
    yield "tokens/USD", (number_item(run.tokens_per_dollar), DASH)


def steps(traffic: Traffic, usage: Usage, setting: Setting) -> Iterator[tuple[str, tuple[Item, Item]]]:
    """(quantity, (simulated, closed form)) of decode steps and prefills with techniques."""
    leaves = max((one.leaves for one in setting.techniques), key=len, default=(1.0,))
    if len(leaves) > 1:
        yield "tokens a step leaves of a sequence", (number_item(traffic.tokens_per_step), number_item(sum(leaves)))
    if usage.known:
        yield "part of prompts in a cache already", (_share(usage.there), DASH)


def _closed(value: float | None) -> Item:
    if value is None:
        return DASH
    return Item(text="grows", key=np.inf) if value == np.inf else time_item(value)


def _known(value: float | None) -> Item:
    return DASH if value is None else number_item(value)


def _share(value: float) -> Item:
    return Item(text=f"{value:.1%}", key=value)


def _mean(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
    return float(np.mean(values)) if len(values) else np.nan


def _goals(result: Simulation) -> str:
    goals = {"TTFT": result.goals.ttft_s, "TPOT": result.goals.tpot_s}
    return ", ".join(f"{name} {seconds(value)}" for name, value in goals.items() if value < np.inf)


def _cards(result: Simulation) -> list[Card]:
    run = result.likely
    ttft, tpot = summary(run.ttft_s), summary(run.tpot_s)
    cards = [
        Card(label="time to first token", value=seconds(ttft["p50"]), about=_spread(ttft)),
        Card(label="time per token", value=seconds(tpot["p50"]), about=_spread(tpot)),
        Card(
            label="tokens written",
            value=f"{number_item(run.tokens_per_s).text}/s",
            about=f"{digits(run.requests_per_s)} answers/s" + _until_empty(run),
        ),
        Card(label="devices busy", value=f"{run.utilization:.0%}", about=_busy(run)),
    ]
    if min(run.goals.ttft_s, run.goals.tpot_s) < np.inf:
        cards.append(Card(label="requests within the goals", value=f"{run.good:.1%}", about=_goals(run)))
    return cards


def _until_empty(run: Simulation) -> str:
    """Drain: the share of the time after the last arrival, which lowers the throughput."""
    return f", {run.drained:.0%} of the time after the last request" if run.drained > _DRAINED else ""


def _spread(times: dict[str, float | None]) -> str:
    """Median and 99th percentile of a time, in words."""
    return f"for half of the requests; at most {seconds(times['p99'])} for 99%" if times["p50"] else ""


def _busy(run: Simulation) -> str:
    """Load and highest load, or requests in flight, beside the busy time of a card."""
    whose = "of the time, those that decode" if run.readers else "of the time"
    if not run.closed or run.traffic.rate == np.inf:
        return f"{whose}; {run.traffic.in_flight} requests in flight" if run.traffic.in_flight else whose
    return (
        f"{whose}; {digits(run.traffic.rate)} requests/s come, {digits(run.closed.max_rate * run.copies)} can be served"
    )


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
