"""The report on the telemetry of a server beside the times that its steps should take."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath
from typing import Final

from llmviewer.timelines.server_steps import ServerSteps, ServerTime
from llmviewer.units import fold, seconds, si

from .parts import Card, Line
from .phrases import BOUNDS, between
from .report import Report
from .tables import DASH, Item, Table, time_item

_MIN_QUEUE_SHARE: Final = 0.1  # of the time to first token, from which the queue is a remark
_MIN_GAIN: Final = 1.02
_MIN_SHARE_OF_BOUND: Final = 0.97


def title(result: ServerSteps) -> str:
    """Model, device and engine."""
    return f"{result.analysis.model.title} on {result.analysis.hardware.title}: {result.load.title} server"


def headline(result: ServerSteps) -> str:
    """The load of the server, and its time between tokens or of a step."""
    request, first = result.analysis.request, result.times[0]
    layout = f"{result.analysis.inputs['layout']}, " if result.analysis.inputs["layout"] else ""
    return (
        f"{title(result)} in {PurePath(result.file).name}: decode batch {request.batch}, prompt {request.prompt:,}, "
        f"context {request.kv_len or request.prompt + 1:,}, {layout}{result.analysis.inputs['quant']}. "
        f"{first.name[0].upper()}{first.name[1:]} {seconds(first.measured_s)}; >= {seconds(first.bound_s)}"
        f"{_expected_text(first)}."
    )


def _expected_text(time: ServerTime) -> str:
    expected = between(time.expected_s, time.expected_low_s, time.expected_high_s)
    return f", expected {expected}" if expected else ""


def summary(result: ServerSteps) -> list[Line]:
    """The load of a mean step."""
    load = result.load
    lines = [
        ("decode batch", _text(load.batch, "{:.1f} in a mean step")),
        ("prompt", _text(load.prompt, f"{{:,.0f}} tokens{_cached(load.cached)}")),
        ("output", _text(load.output, "{:,.0f} tokens")),
        ("prefill", _text(result.prompts_per_step, "{:.3f} prompts in a mean step")),
        ("running, waiting", _text(load.running, f"{{:,.0f}}, {load.waiting or 0:,.0f}")),
        ("KV cache", _text(load.cache_usage, "{:.0%} in use")),
    ]
    return [Line(label=label, text=text) for label, text in lines if text]


def _text(number: float | None, template: str) -> str:
    """A number in a template; "" if it is unknown."""
    return "" if number is None else template.format(number)


def _cached(share: float | None) -> str:
    return f", {share:.0%} of them in the prefix cache" if share else ""


def remarks(result: ServerSteps) -> list[str]:
    """Gaps, queue, preemptions, and what to record next."""
    return [*_gaps(result), *_below(result), *_queue(result), *_work(result), *_assumed(result)]


def _gaps(result: ServerSteps) -> Iterator[str]:
    gaps = []
    for time in result.times:
        reference_s = time.bound_s if time.expected_s is None else time.expected_s
        if time.measured_s > (time.expected_high_s or reference_s) and time.measured_s > _MIN_GAIN * reference_s:
            gain = f"expected {fold(time.measured_s / reference_s)} faster, " * (time.expected_s is not None)
            gaps.append(f"{time.name}: {gain}{fold(time.measured_s / time.bound_s)} at the bound")
    if gaps:
        text = "; ".join(gaps)
        yield f"{text[0].upper()}{text[1:]}."
        yield f"A trace of some steps shows where: {result.load.profile}; then llmviewer timeline TRACE."


def _below(result: ServerSteps) -> Iterator[str]:
    below = [time.name for time in result.times if time.measured_s < _MIN_SHARE_OF_BOUND * time.bound_s]
    if below:
        yield (
            f"Faster than the bound: {', '.join(below)}; model, precision or layout differ from the server's, drafts "
            "yield several tokens per step, or steps were timed on the host, ahead of the device."
        )


def _queue(result: ServerSteps) -> Iterator[str]:
    load = result.load
    if load.queue_s and load.ttft_s and load.queue_s > _MIN_QUEUE_SHARE * load.ttft_s:
        yield f"Queue: {seconds(load.queue_s)} of a TTFT of {seconds(load.ttft_s)} ({load.queue_s / load.ttft_s:.0%})."
    if load.preemptions:
        yield f"{load.preemptions:,.0f} preemptions: the KV cache is too small for the running requests."


def _work(result: ServerSteps) -> Iterator[str]:
    """The engine's estimate of its work beside the one counted here, and the rates."""
    load = result.load
    if load.ops and load.bytes:
        rates = ""
        if load.token_s:
            share = load.bytes / load.token_s / result.analysis.hardware.bandwidth()
            rates = (
                f"; {si(load.ops / load.token_s)}OP/s and {si(load.bytes / load.token_s)}B/s ({share:.0%} of the "
                "memory's bandwidth)"
            )
        yield (
            f"Work of a mean step, as {load.title} estimates it: {si(load.ops)}OP, {si(load.bytes)}B (counted here: "
            f"{si(result.ops)}OP, {si(result.bytes)}B){rates}."
        )


def _assumed(result: ServerSteps) -> Iterator[str]:
    load = result.load
    missing = {"prompt": load.prompt, "kv-len": load.context, "batch": load.batch}
    names = [f"--{name}" for name, value in missing.items() if value is None]
    if names:
        yield f"The file has no {' and '.join(names)}: those given, or the default, count."
    if load.batch is not None and load.steps is None:
        yield "The decode batch is that of the moment of the file; other numbers are means."


def basis(result: ServerSteps) -> str:
    """Explanation of the times."""
    return (
        f"{BOUNDS}. Expected: measured kernels, with the prefills that requests of these lengths need. Metrics of "
        f"{result.load.title} {result.load.versions} (`llmviewer docs timeline`)."
    )


def tables(result: ServerSteps) -> list[Table]:
    """Times beside bounds and expected times."""
    return [
        Table(
            title="Times of the server",
            about="",
            head=("time", "measured", ">= bound", "expected", "x expected"),
            words=("time",),
            body=tuple(
                (
                    Item(text=time.name),
                    time_item(time.measured_s),
                    time_item(time.bound_s),
                    DASH if time.expected_s is None else time_item(time.expected_s),
                    DASH
                    if not time.expected_s
                    else Item(text=f"{time.measured_s / time.expected_s:.2f}x", key=time.measured_s / time.expected_s),
                )
                for time in result.times
            ),
        )
    ]


def _cards(result: ServerSteps) -> list[Card]:
    first = result.times[0]
    references = {"bound": first.bound_s, "expected": first.expected_s}
    return [
        Card(label=first.name, value=seconds(first.measured_s), about="measured"),
        *(
            Card(label=label, value=seconds(time_s), about=f"{time_s / first.measured_s:.0%} of it")
            for label, time_s in references.items()
            if time_s is not None and first.measured_s
        ),
    ]


REPORT: Final = Report[ServerSteps](
    name="server", title=title, headline=headline, tables=tables, remarks=remarks, basis=basis, summary=summary,
    cards=_cards,
)  # fmt: skip
