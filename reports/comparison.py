"""The report on a comparison."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import isnan, nan
from operator import itemgetter
from typing import TYPE_CHECKING, Final

import numpy as np

from llmviewer.analyzing.analysis import Analysis, analyze
from llmviewer.comparing.breakdown import ALL
from llmviewer.comparing.cells import Cell
from llmviewer.comparing.comparison import Comparison
from llmviewer.operators.collectives import SCALE_OUT, SCALE_UP
from llmviewer.transforms.quantize import unless_published
from llmviewer.units import seconds

from .comparison_tables import first_batch, groups_of, tables
from .page_figures import Picture, picture
from .parts import Card
from .report import Report
from .tables import digits

if TYPE_CHECKING:
    import plotly.graph_objects as go

MAX_PICTURED: Final = 6  # settings in a figure, whose lines can still be distinguished


def bounds_basis(comparison: Comparison) -> str:
    """The bounds that times and rates rest on."""
    marked = "" if comparison.bound else " unless marked expected"
    return (
        f"Times are roofline lower bounds{marked}. Throughput, tokens per joule (at TDP) and tokens per dollar follow "
        "from them, so they are upper bounds."
    )


def _cards(comparison: Comparison) -> list[Card]:
    """The best settings that fit."""
    cells = [cell for cell in comparison.runnable if cell.fits[0]]
    times = (("shortest TTFT", "ttft"), ("shortest TPOT", "tpot"))
    cards = [card for label, name in times for card in _shortest(label, name, cells, comparison)]
    measures: tuple[tuple[str, Callable[[Cell], float]], ...] = (
        ("most tokens/s, at the bound", lambda c: c.largest.tokens_per_s),
        ("most tokens/J at TDP, at the bound", lambda c: float(c.per_joule(c.largest.tokens_per_s))),
    )
    for label, measure in measures:
        measured_cells = [cell for cell in cells if not isnan(measure(cell))]
        if measured_cells:
            best = max(measured_cells, key=measure)
            setting = _description(best, comparison, best.largest.batch)
            about = f"{digits(measure(best))}; {setting}, the largest that fits"
            cards.append(Card(label=label, value=best.hardware.name, about=about))
    return cards


def _shortest(label: str, name: str, cells: Iterable[Cell], comparison: Comparison) -> Iterator[Card]:
    """The setting with the shortest expected time at the first batch; by bounds where no expected time is known."""
    times_of_cells = [(*_first(cell, name, comparison), cell) for cell in cells]
    measured = any(not isnan(expected) for expected, _, _ in times_of_cells)
    ranked = [(expected if measured else bound, bound, cell) for expected, bound, cell in times_of_cells]
    able = [one for one in ranked if not isnan(one[0])]
    if able:
        time_s, bound, best = min(able, key=itemgetter(0))
        times = f"{seconds(time_s)} expected, " * measured + f"{seconds(bound)} at the bound"
        about = f"{times}; {_description(best, comparison, best.batches[0])}"
        yield Card(label=f"{label}{', expected' * measured}", value=best.hardware.name, about=about)


def _first(cell: Cell, name: str, comparison: Comparison) -> tuple[float, float]:
    """Expected time, nan if unknown, and bound at the first batch. [s]"""
    times, bound = comparison.expected(cell), getattr(cell, f"{name}_s")
    interval = getattr(times, name) if times else None
    return float(np.broadcast_to(interval.expected if interval else nan, bound.shape)[0]), float(bound[0])


def _description(cell: Cell, comparison: Comparison, batch: int) -> str:
    """A setting in a few words; with its model if there are several."""
    model, *others = _setting(cell, comparison)
    several = len({one.model.name for one in comparison.cells}) > 1
    return f"{' '.join([model] * several + others)}, batch {batch}"


def title(comparison: Comparison) -> str:
    """Models and devices, by name if few, else by number."""
    models, devices = _distinct(comparison)
    return f"{_names_or_count(models, 'models')} on {_names_or_count(devices, 'devices')}"


def headline(comparison: Comparison) -> str:
    """The request in one line."""
    quants = dict.fromkeys(cell.quant for cell in comparison.cells)
    batches = comparison.batches
    batch = f"batches {batches[0]} to {batches[-1]}" if len(batches) > 1 else first_batch(comparison)
    generates = any(cell.model.generates for cell in comparison.cells)
    output = f" input, {comparison.gen} output" * generates
    lengths = f"{comparison.prompt}{output} tokens"
    layouts = f", layout {', '.join(map(str, comparison.layouts))}" if comparison.layouts else ""
    conditions = f", with {' and '.join(comparison.techniques)}" if comparison.techniques else ""
    conditions += f", engine {comparison.engine}" if comparison.engine else ""
    conditions += f", what if {', '.join(comparison.hardware_set)}" if comparison.hardware_set else ""
    return f"{title(comparison)}{layouts}: {batch}, {lengths}, {', '.join(quants)}, flash attention{conditions}"


def _distinct(comparison: Comparison) -> tuple[list[str], list[str]]:
    models = dict.fromkeys(cell.model.title for cell in comparison.cells)
    return list(models), list(dict.fromkeys(cell.hardware.name for cell in comparison.cells))


def _names_or_count(names: Sequence[str], plural: str) -> str:
    return ", ".join(names) if len(names) <= 3 else f"{len(names)} {plural}"


def remarks(comparison: Comparison) -> list[str]:
    """Differences of bounds between devices, and notes."""
    lines = list(_differences(comparison))
    lines += [
        f"{cell.hardware.name} cannot run {' '.join(_setting(cell, comparison))}: {cell.refused}."
        for cell in comparison.cells
        if cell.refused
    ]
    fitting = [cell for cell in comparison.runnable if cell.fits.any()]
    lines += [*followers(comparison.runnable), *of_models(comparison), *boxes(fitting)]
    return [*lines, *([] if comparison.bound else between(fitting))]


def followers(cells: Iterable[Cell]) -> Iterator[str]:
    """Numbers that follow from what-ifs, with their devices."""
    names: dict[tuple[str, ...], dict[str, None]] = {}
    for cell in cells:
        if cell.hardware.derived_changes:
            names.setdefault(cell.hardware.derived_changes, {})[cell.hardware.name] = None
    for follows, devices in names.items():
        yield f"The what-ifs also change, on {_names_or_count(list(devices), 'devices')}: {', '.join(follows)}."


def of_models(comparison: Comparison) -> Iterator[str]:
    """Notes on models, on any device."""
    for name, model in {cell.model.name: cell.model for cell in comparison.cells}.items():
        yield from (f"{name}: {note}." for note in model.notes)
        written = comparison.gen if model.generates else 0
        context = max(comparison.prompt, written) if model.is_encoder_decoder else comparison.prompt + written
        if model.max_context and context > model.max_context:
            yield f"{context:,} tokens exceed the {model.max_context:,} positions of {name}."


def boxes(cells: Sequence[Cell]) -> list[str]:
    """Devices that are assumed to share a host beyond their scale-up domain, as PCIe cards do."""
    names = dict.fromkeys(
        cell.hardware.name
        for cell in cells
        if cell.layout.devices > 1 and cell.hardware.numbers.get(f"{SCALE_UP}.devices", 0) < cell.layout.devices
        if SCALE_OUT not in cell.tiers
    )
    devices = _names_or_count(list(names), "kinds of device")
    note = f"Unknown number of devices per host for {devices}: assumes that all devices of a layout share a host."
    return [note] if names else []


def between(cells: Iterable[Cell]) -> list[str]:
    """Layouts with optimistic expected times, because collectives between domains were not measured."""
    names = dict.fromkeys(str(cell.layout) for cell in cells if SCALE_OUT in cell.tiers and cell.expected)
    reason = "collectives between scale-up domains were not measured; expected as within one domain, or at their"
    return [f"{_names_or_count(list(names), 'layouts')}: {reason} bound. They take longer."] if names else []


def _differences(comparison: Comparison) -> Iterable[str]:
    """A sentence for each group of operators with different bounds on different devices."""
    cells = comparison.runnable
    kinds: dict[tuple[str, ...], list[Cell]] = {}
    for cell in cells:
        kinds.setdefault(_setting(cell, comparison), []).append(cell)
    for setting, bounds in kinds.items():
        several = f" of {' '.join(setting)}" if len(kinds) > 1 else ""
        for phase in ("prefill", "decode"):
            for group in (ALL, *groups_of(bounds)):
                names_by_bound: dict[str, list[str]] = {}
                for cell in bounds:
                    if phase in cell.passes and (group == ALL or group in cell.passes[phase].groups):
                        names_by_bound.setdefault(cell.passes[phase].bound(0, group), []).append(cell.hardware.name)
                if len(names_by_bound) > 1:
                    name = f"{several} is" if group == ALL else f", {group}{several}:"
                    parts = (
                        f"{bound}-bound on {_names_or_count(names, 'devices')}"
                        for bound, names in names_by_bound.items()
                    )
                    yield f"{phase.capitalize()}{name} {' and '.join(parts)}."


def _setting(cell: Cell, comparison: Comparison) -> tuple[str, ...]:
    """The setting without the device."""
    layout = (f"with {cell.layout}",) if comparison.layouts and cell.layout.devices > 1 else ()
    return cell.model.name, cell.quant, *(layout or ("on one device",) * bool(comparison.layouts))


def pictured(cells: Sequence[Cell]) -> Sequence[Cell]:
    """The settings of the figures: the first ones that fit; the first of all if none fits."""
    fitting = [cell for cell in cells if cell.fits[0]]
    return (fitting or list(cells))[:MAX_PICTURED]


def _left_out(comparison: Comparison) -> list[str]:
    """A note on the settings that the figures leave out."""
    pictured_cells = {id(cell) for cell in pictured(comparison.runnable)}
    others = [cell for cell in comparison.runnable if id(cell) not in pictured_cells]
    too_large = sum(not cell.fits[0] for cell in others)
    reasons = (
        f"{too_large} do{'es' * (too_large == 1)} not fit" if too_large else "",
        f"only {MAX_PICTURED} are drawn" if too_large < len(others) else "",
    )
    several = f"{len(others)} setting{'s' * (len(others) > 1)}"
    return [f"Not in the figures: {several} ({' and '.join(filter(None, reasons))})."] if others else []


def pictures(cells: Sequence[Cell], comparison: Comparison) -> list[list[Picture]]:
    """Rows of figures: rooflines, times by bound, and maps of bounds."""
    from .comparison_figures import bound_map, names, time_by_bound
    from .rooflines import rooflines

    named = names(cells)
    phases = [phase for phase in ("prefill", "decode") if any(phase in cell.passes for cell in cells)]
    analyses = {name: _analysis(cell, comparison) for name, cell in named.items()}
    rows: list[list[go.Figure]] = [
        [rooflines(analyses, phase) for phase in phases],
        [time_by_bound(named, phase) for phase in phases],
        [bound_map(cell, name, phases[-1]) for name, cell in named.items()],
    ]
    return [[picture(figure, f"picture-{i}-{j}") for j, figure in enumerate(row)] for i, row in enumerate(rows)]


def _analysis(cell: Cell, comparison: Comparison) -> Analysis:
    """The full analysis of a cell."""
    return analyze(
        cell.model, cell.hardware, quant=unless_published(cell.given_quant), batch=cell.batches[0],
        prompt=comparison.prompt,        gen=comparison.gen, layout=cell.layout, techniques=cell.setting.techniques,
    )  # fmt: skip


REPORT: Final = Report[Comparison](
    name="comparison",
    title=title,
    headline=headline,
    tables=tables,
    remarks=remarks,
    basis=bounds_basis,
    cards=_cards,
    pictures=lambda comparison: pictures(pictured(comparison.runnable), comparison),
    undrawn=_left_out,
)
