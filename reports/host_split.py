"""The report on a model that is split between a device and its host."""

from __future__ import annotations

from typing import Final

from llmviewer.comparing.host_split import HostSplit, SplitPoint
from llmviewer.units import counted, si, significant

from .drawing import BLUE, ORANGE, frame
from .page_figures import Picture, picture
from .parts import Card, Command
from .phrases import BOUNDS
from .report import Report
from .tables import DASH, Item, Table, number_item, time_item


def title(result: HostSplit) -> str:
    """Model, device and host."""
    return f"{result.model.title} on {result.hardware.title} and {result.host.title}"


def headline(result: HostSplit) -> str:
    """The best split with its speed, or that none fits."""
    request = result.request
    subject = f"batch {request.batch}, prompt {request.prompt}, {request.gen} generated"
    best = result.best
    if best is None:
        largest = max(one.host_bytes for one in result.points)
        host = f" The host has {si(result.host.capacity)}B, and needs {si(largest)}B." if _lacks_host(result) else ""
        return f"{title(result)}: {subject}. Does not fit with any number of layers on the host.{host}"
    where = f"--on-host {best.on_host}" if best.layers else "all of it on the device"
    return (
        f"{title(result)}: {subject}. Fastest that fits: {where}, {_rate(best)} (bound by {best.bound}), "
        f"{si(best.device_bytes)}B of {si(best.evaluation.capacity_bytes)}B on the device, {si(best.host_bytes)}B of "
        f"{si(result.host.capacity)}B on the host."
    )


def _lacks_host(result: HostSplit) -> bool:
    """Whether the memory of the host is what rules out a split that has room on the device."""
    return any(one.device_bytes <= one.evaluation.capacity_bytes and not one.fits_host for one in result.points)


def _rate(point: SplitPoint) -> str:
    bound = 1 / float(point.evaluation.bounds.tpot_s)
    expected = f", expected {1 / point.tpot_s:.3g}" if point.evaluation.expected else ""
    return f"<= {bound:.3g} tokens/s per sequence{expected}"


def tables(result: HostSplit) -> list[Table]:
    """A row for each number of layers."""
    return [
        Table(
            title="Splits by layers on the host",
            about=f"Layers: number of first layers {_computed(result.part)}. Both sides wait for each other: TPOT is "
            "their sum. Host and link time: shares of a decode step at the bound.",
            head=("layers", "fits", "device", "host", "TTFT >=", "expected", "TPOT >=", "expected", "tokens/s",
                  "host time", "link time"),
            words=("fits",),
            body=tuple(_row(one) for one in result.points),
        )
    ]  # fmt: skip


def _computed(part: str) -> str:
    return "that the host computes" if part == "layers" else f"whose {part} the host computes"


def _row(one: SplitPoint) -> tuple[Item, ...]:
    bounds, expected = one.evaluation.bounds, one.evaluation.expected
    sides = one.sides
    step_s = sum(sides)
    return (
        Item(text=str(one.layers), key=one.layers),
        Item(text="yes" if one.fits else "not the host" if not one.fits_host else "no", alarm=not one.fits),
        Item(text=f"{si(one.device_bytes)}B", key=one.device_bytes),
        Item(text=f"{si(one.host_bytes)}B", key=one.host_bytes),
        time_item(float(bounds.ttft_s)),
        time_item(float(expected.ttft_s)) if expected else DASH,
        time_item(float(bounds.tpot_s)),
        time_item(one.tpot_s) if expected else DASH,
        number_item(1 / one.tpot_s) if one.fits else DASH,
        Item(text=f"{sides.host / step_s:.0%}", key=sides.host / step_s),
        Item(text=f"{sides.link / step_s:.0%}", key=sides.link / step_s),
    )


def remarks(result: HostSplit) -> list[str]:
    """Gain of more device memory, and the treatment of prompts."""
    sentences = []
    best = result.best
    if best:
        too_large = (one for one in result.points if not one.fits and one.layers < best.layers)
        other = max(too_large, key=lambda one: one.layers, default=None)
        if other:
            room = other.device_bytes - best.device_bytes
            gain = significant(best.tpot_s / other.tpot_s)
            part = f"the {result.part} of " * (result.part != "layers")
            layers = counted(best.layers - other.layers, "more layer")
            sentences.append(f"{si(room)}B more device memory would hold {part}{layers}: {gain}x decode speed.")
    if any(one.evaluation.setting.streams_prompts for one in result.points):
        sentences.append(
            "Prompts: llama.cpp copies weights of products to the device from 32 tokens on; TTFT is counted so."
        )
    return sentences


def basis(result: HostSplit) -> str:
    """Explanation of bounds and expected times."""
    evaluation = result.points[0].evaluation
    if evaluation.expected:
        return f"{BOUNDS} of both sides. Expected: passes that users of llama.cpp measured on such devices."
    why = evaluation.setting.why_bound_alone
    return f"{BOUNDS} of both sides." + f" No expected times: {why}." * bool(why)


def _cards(result: HostSplit) -> list[Card]:
    best = result.best
    if best is None:
        return [Card(label="memory", value="does not fit", about="with any number of layers on the host", alarm=True)]
    return [
        Card(label="on the host", value=best.on_host or "nothing", about=f"{si(best.host_bytes)}B there"),
        Card(label="tokens/s", value=f"{1 / best.tpot_s:.3g}", about=f"of each sequence, bound by {best.bound}"),
    ]


def _more(result: HostSplit) -> list[Command]:
    best = result.best
    if best is None or not best.layers:
        return []
    setting = best.evaluation.setting
    precision, published = str(setting.quantization), str(setting.model.quantization)
    quant = ("--quant", precision) if precision != published else ()
    engine = ("--engine", setting.engine.name) if setting.engine else ()
    where = ("--host", result.host.name, "--on-host", best.on_host)
    words = ("llmviewer", "analyze", result.model.name, result.hardware.name, *quant, *engine, *where)
    return [Command(purpose="The fastest split in detail:", words=words)]


def _pictures(result: HostSplit) -> list[list[Picture]]:
    """Tokens per second over the number of layers on the host."""
    figure = frame("Decode speed by the split", "filled: fits both memories")
    layers = [one.layers for one in result.points]
    rates = {"at the bound": [1 / float(one.evaluation.bounds.tpot_s) for one in result.points]}
    if result.points[0].evaluation.expected:
        rates["expected"] = [1 / one.tpot_s for one in result.points]
    symbols = ["circle" if one.fits else "circle-open" for one in result.points]
    for (name, values), color in zip(rates.items(), (BLUE, ORANGE), strict=False):
        figure.add_scatter(
            x=layers, y=values, mode="lines+markers", name=name, line={"color": color, "width": 1.5},
            marker={"color": color, "size": 9, "symbol": symbols},
            hovertemplate="%{x} layers: %{y:.3g} tokens/s<extra></extra>",
        )  # fmt: skip
    figure.update_xaxes(title_text=f"layers {_computed(result.part)}")
    figure.update_yaxes(title_text="tokens/s of each sequence", rangemode="tozero")
    return [[picture(figure, "split")]]


REPORT: Final = Report[HostSplit](
    name="split",
    title=title,
    headline=headline,
    tables=tables,
    remarks=remarks,
    basis=basis,
    cards=_cards,
    more=_more,
    pictures=_pictures,
)
