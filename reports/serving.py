"""A simulation of requests as text, Markdown, CSV, JSON and HTML."""

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
from .tables import NOTHING, Item, Table, digits, number_item, time_item

_NAMES: Final = {
    "wait_s": "wait to be read", "ttft_s": "time to first token", "tpot_s": "time per token",
    "gap_s": "longest gap", "latency_s": "whole answer",
}  # fmt: skip
_DRAINED: Final = 0.1  # of the span, that is worth a word
_MANY: Final = 4  # steps of a prompt, from which on the closed form with chunks is rough
_BOUND: Final = "At the bound: steps take as long as their lower bounds, which no kernel beats."


def said(found: Simulation | Saturation) -> str:
    """What the times are."""
    if found.expected is None:
        return f"{_BOUND} {unknown(found.unknown)}".strip()
    setting = found.setting
    if setting.engine:
        return f"{_BOUND} Expected: as of {setting.engine.said}"
    gaps = "without gaps between them; what a scheduler takes is not counted."
    return f"{_BOUND} Expected: as of {kernels(setting)}, {gaps}"


def unknown(why: str) -> str:
    """Why there is nothing but bounds."""
    return f"No time is expected above it: {why}." if why else ""


def kernels(setting: Setting) -> str:
    """Whose are expected."""
    found = setting.kernels
    if not found or not found.library:
        return "kernels measured on devices like it"
    return f"kernels of {found.library}{' on devices like it' if found.carried else ''}"


def beyond(model: Model, tokens: int) -> list[str]:
    """That a request is longer than the model was made for, where it is."""
    most = model.max_context
    return [f"{tokens:,} tokens are more than the {most:,} positions of {model.name}."] if 0 < most < tokens else []


def title(found: Simulation) -> str:
    return f"{found.setting.model.title}: {counted(len(found.traffic), 'request')} on {devices(found)}"


def devices(found: Simulation) -> str:
    """Such as "2 x (4 x h100-sxm, tp=4) and 1 x h100-sxm that read prompts"."""
    parts = [laid(setting, copies, counted=found.reads is not None) for setting, copies in found.sides]
    return f"{parts[1]} that read prompts and {parts[0]} that decode" if found.reads else parts[0]


def laid(setting: Setting, copies: int, *, counted: bool = False) -> str:
    """Such as "2 x (4 x h100-sxm, tp=4)"; `counted` where one is "1 x h100-sxm"."""
    name, layout = setting.hardware.name, setting.layout
    one = f"({layout.devices} x {name}, {layout})" if layout.devices > 1 else name
    return f"{copies} x {one}" if copies > 1 or counted else one.strip("()")


def preempted(times: int, usage: Usage) -> list[str]:
    """How often requests lost their cache, where any did, and what reading them again costs."""
    again = usage.reread / max(usage.read, 1)
    lost = f"{times:,} times a request lost its cache, as memory was full, and was read again"
    return [f"{lost}: {again:.1%} more tokens to read."] if times else []


def _kept(found: Simulation) -> list[str]:
    """What of prompts whose blocks a trace names could be found in a cache, and what was."""
    if found.traffic.blocks is None:
        return []
    came = f"{found.traffic.repeated:.1%} of all tokens of prompts were in prompts before them"
    if found.reads:
        return [f"{came}, and none of these are read: what is kept between requests has no limit here."]
    gone = f": {found.usage.evicted:,.0f} tokens had to go, as memory was full" if found.usage.evicted else ""
    apart = f"; each of {found.servers} copies has a cache of its own" if found.servers > 1 else ""
    return [f"{came}, and {found.usage.there:.1%} were still in a cache{gone}{apart}."]


def lengths(traffic: Traffic) -> str:
    """Of prompts and answers, on average where they differ."""
    prompt, gen = (round(float(np.mean(each))) for each in (traffic.prompt, traffic.gen))
    alike = all(np.ptp(each) == 0 for each in (traffic.prompt, traffic.gen))
    return f"prompts of {prompt:,} and answers of {counted(gen, 'token')}{'' if alike else ' on average'}"


def headline(found: Simulation) -> str:
    """What was asked, in one line."""
    traffic = found.traffic
    rate = f"{digits(traffic.rate)} a second" if traffic.rate < np.inf else "all at once"
    rate = f"{traffic.in_flight} in flight" if traffic.in_flight else rate
    order = "" if found.reads else f", {found.policy}"
    order = f", {found.setting.engine.title}{order}" if found.setting.engine else order
    order = "".join(f", {one}" for one in found.setting.techniques) + order
    each = " on each rank" if found.setting.layout.dp > 1 else ""
    return (
        f"{title(found)}, {rate}, {lengths(traffic)}, {found.setting.quantization}{order}, at most "
        f"{found.max_batch} at a time{each}"
    )


def remarks(found: Simulation) -> list[str]:
    likely = found.likely
    lines = [f"What limits: {likely.limit}"]
    lines += preempted(likely.preemptions, likely.usage)
    lines += _kept(likely)
    if likely.usage.padding:
        part = likely.usage.padding / (likely.usage.padding + likely.usage.read + likely.usage.written)
        lines.append(f"{part:.0%} of all tokens read and written are padding.")
    if likely.drained > _DRAINED and likely.traffic.in_flight:
        lines.append(
            f"In the last {likely.drained:.0%} of the {seconds(likely.span_s)} fewer than "
            f"{likely.traffic.in_flight} are in flight, as nobody comes any more: what there is a second is lower by "
            "that. With more requests (--requests) the part is smaller."
        )
    elif likely.drained > _DRAINED:
        lines.append(
            f"In the last {likely.drained:.0%} of the {seconds(likely.span_s)} nobody comes any more, so what there is "
            f"a second, per joule and per dollar is lower by that: {digits(likely.requests_per_s)} requests/s are "
            f"answered, and {digits(likely.traffic.rate)} come.{' That is no overload.' if likely.closed else ''} With "
            "more requests (--requests) the part is smaller."
        )
    if found.traffic.later:
        lines.append(f"Of the file, {counted(found.traffic.later, 'later request')} left out: --requests takes more.")
    if found.traffic.empty:
        lines.append(f"Of the file, {counted(found.traffic.empty, 'request')} with an answer of 0 tokens left out.")
    longest = int(np.max(found.traffic.prompt + found.traffic.gen))
    return [*lines, *beyond(found.setting.model, longest)]


def tables(found: Simulation) -> list[Table]:
    if not found.expected:
        return [_times(found, "Times of requests, at the bound", about=True), _device(found)]
    expected = _times(found.expected, "Times of requests, as expected", about=False)
    return [expected, _times(found, "The same requests, at the bound", about=True), _device(found)]


def _times(found: Simulation, name: str, *, about: bool) -> Table:
    names = ("mean", *(f"p{q}" for q in PERCENTILES), "max")
    body = []
    for key, values in found.metrics.items():
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


def _device(found: Simulation) -> Table:
    """What was simulated beside the means that the closed form gives, at the bound and as expected."""
    runs = [run for run in (found, found.expected) if run]
    columns = [dict(_service(run)) for run in runs]
    names = dict.fromkeys(name for column in columns for name in column)
    empty = (NOTHING, NOTHING)
    rows = [(name, [item for column in columns for item in column.get(name, empty)]) for name in names]
    kept = [(name, items) for name, items in rows if any(item.text != "-" for item in items)]
    head = [name for run in ("at the bound", "expected")[: len(runs)] for name in (run, "closed form")]
    shown = [i for i, name in enumerate(head) if found.closed or name != "closed form"]
    return Table(
        title="Service",
        about=f"Closed form: means of the steady state{_rough(found)}." if found.closed else "",
        head=("quantity", *(head[i] for i in shown)),
        words=("quantity",),
        body=tuple((Item(text=name), *(items[i] for i in shown)) for name, items in kept),
    )


def _rough(found: Simulation) -> str:
    """How far off it was found to be where prompts take many steps, which those that decode meanwhile slow down."""
    many = found.policy.shares and np.mean(found.traffic.prompt) > _MANY * found.policy.budget
    return ", which for prompts of many steps has times to first token up to a fifth too low" if many else ""


def _service(run: Simulation) -> Iterator[tuple[str, tuple[Item, Item]]]:
    """(quantity, (simulated, closed form))"""
    closed = run.closed
    if min(run.goals.ttft_s, run.goals.tpot_s) < np.inf:
        yield f"within {_goals(run)}", (_share(run.good), NOTHING)
        yield "of these requests/s", (number_item(run.good * run.requests_per_s), NOTHING)
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
        yield "devices that read busy", (_share(run.reading_utilization), NOTHING)
    yield from steps(run.traffic, run.usage, run.setting)
    yield "device busy", (_share(run.utilization), _share(closed.utilization) if closed else NOTHING)
    yield "requests/s", (number_item(run.requests_per_s), NOTHING)
    most = closed.max_rate * run.copies if closed else None
    yield "requests/s that can be served", (NOTHING, _known(most))
    yield "tokens/s", (number_item(run.tokens_per_s), NOTHING)
    yield "tokens/J at TDP", (number_item(run.tokens_per_joule), NOTHING)
    yield "tokens/USD", (number_item(run.tokens_per_dollar), NOTHING)


def steps(traffic: Traffic, usage: Usage, setting: Setting) -> Iterator[tuple[str, tuple[Item, Item]]]:
    """(quantity, (simulated, as techniques say)) of what they make of steps that decode and of prompts."""
    leaves = max((one.leaves for one in setting.techniques), key=len, default=(1.0,))
    if len(leaves) > 1:
        yield "tokens a step leaves of a sequence", (number_item(traffic.tokens_per_step), number_item(sum(leaves)))
    if usage.known:
        yield "part of prompts in a cache already", (_share(usage.there), NOTHING)


def _closed(value: float | None) -> Item:
    if value is None:
        return NOTHING
    return Item(text="grows", key=np.inf) if value == np.inf else time_item(value)


def _known(value: float | None) -> Item:
    return NOTHING if value is None else number_item(value)


def _share(value: float) -> Item:
    return Item(text=f"{value:.1%}", key=value)


def _mean(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
    return float(np.mean(values)) if len(values) else np.nan


def _goals(found: Simulation) -> str:
    goals = {"TTFT": found.goals.ttft_s, "TPOT": found.goals.tpot_s}
    return ", ".join(f"{name} {seconds(value)}" for name, value in goals.items() if value < np.inf)


def _cards(found: Simulation) -> list[Card]:
    run = found.likely
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
    """Why fewer are answered than come, where that is no overload."""
    return f", {run.drained:.0%} of the time after the last request" if run.drained > _DRAINED else ""


def _spread(times: dict[str, float | None]) -> str:
    """What the number of a card is, and how far requests are from it."""
    return f"for half of the requests; at most {seconds(times['p99'])} for 99%" if times["p50"] else ""


def _busy(run: Simulation) -> str:
    """How far from full they are: a device works all the time long before it serves as many as it can."""
    whose = "of the time, those that decode" if run.readers else "of the time"
    if not run.closed or run.traffic.rate == np.inf:
        return f"{whose}; {run.traffic.in_flight} requests in flight" if run.traffic.in_flight else whose
    return (
        f"{whose}; {digits(run.traffic.rate)} requests/s come, {digits(run.closed.max_rate * run.copies)} can be served"
    )


def _pictures(found: Simulation) -> list[list[Picture]]:
    from .simulation_figures import queue, spread

    return [[picture(queue(found.likely), "queue"), picture(spread(found), "spread")]]


REPORT: Final = Report[Simulation](
    name="serving",
    title=title,
    headline=headline,
    tables=tables,
    remarks=remarks,
    said=said,
    cards=_cards,
    pictures=_pictures,
)
