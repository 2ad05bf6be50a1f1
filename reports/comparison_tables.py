"""The tables of a comparison: times, memory, expected times, bounds by operator, and sensitivities."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import inf, isnan, nan
from typing import Final

import numpy as np

from llmviewer.analyzing.costs import listed
from llmviewer.comparing.breakdown import ALL, BOUNDS, GROUPS, RESOURCES
from llmviewer.comparing.cells import Cell, ExpectedTimes
from llmviewer.comparing.comparison import Comparison
from llmviewer.comparing.crossings import Crossing
from llmviewer.devices.hardware import Hardware
from llmviewer.variants.memory_fixes import memory_fixes

from .tables import DASH, Item, Table, digits, number_item, time_item

WHERE: Final = ("model", "precision", "device", "layout")  # columns that identify the setting of a row
_MAX_EXPLAINED_DEVICES: Final = 4  # devices up to which the text names where their kernels were measured
_TRANSFERRED: Final = "transferred from "
_LETTER: Final = {bound: bound[0].upper() for bound in BOUNDS}
LETTERS: Final = "M: memory-bound, C: compute-bound, L: link-bound"


def tables(comparison: Comparison) -> list[Table]:
    """All tables of the report; rows are settings in the order of the request."""
    cells = comparison.runnable
    phases = [phase for phase in ("prefill", "decode") if any(phase in cell.passes for cell in cells)]
    fitting = [cell for cell in cells if cell.fits.any()]
    comparison.expect_together(fitting)
    ranked = expectations(comparison, sorted(fitting, key=_latency_s) if not comparison.bound else fitting)
    ranked = replace(ranked, title=f"{ranked.title}, the shortest latency first")
    all_tables = [_too_large(comparison), ranked, _times(comparison), _largest(comparison)]
    all_tables += [_where(cells, phase, first_batch(comparison)) for phase in phases]
    all_tables.append(_sensitivities(cells))
    for phase, axis in (("prefill", "prompt"), ("prefill", "batch"), ("decode", "batch"), ("decode", "context")):
        crossings = [c for c in comparison.crossings if (c.phase, c.axis) == (phase, axis)]
        if crossings:
            all_tables.append(_crossings(crossings, phase, axis, comparison))
    texts = [{item.text for item in column} for column in zip(*map(where, comparison.cells), strict=True)]
    alike = [name for name, column in zip(WHERE, texts, strict=True) if len(column) == 1]
    dropped = alike if len(cells) > 1 else [name for name in alike if name != "device"]  # a row has a name
    return [table.without_constants(*dropped) for table in all_tables if table.body]


def _latency_s(cell: Cell) -> tuple[str, float]:
    """Sort key of a setting that fits: its model, and its expected latency at the first batch that fits. [s]"""
    expected = cell.result.expected
    return cell.model.name, float(np.ravel(expected.latency_s)[int(np.argmax(cell.fits))]) if expected else inf


def _without_batch(table: Table, comparison: Comparison) -> Table:
    """The table without its batch column, if all rows agree, as the headline gives it."""
    return table.without_constants("batch") if len(comparison.cells) > 1 == len(comparison.batches) else table


def where(cell: Cell) -> tuple[Item, ...]:
    """The items under WHERE."""
    layout = Item(text=str(cell.layout), key=cell.layout.devices)
    return Item(text=cell.model.name), Item(text=cell.quant), Item(text=cell.hardware.name), layout


def memory_item(cell: Cell, place: int = 0) -> Item:
    """Such as "27.1<85.5": needed and available memory. [GB]"""
    needed_bytes, capacity = float(cell.total_bytes[place]), cell.result.capacity_bytes
    if isnan(needed_bytes):
        return DASH
    sign = "<" if cell.fits[place] else ">"
    return Item(text=f"{digits(needed_bytes / 1e9)}{sign}{digits(capacity / 1e9)}", key=needed_bytes / capacity)


def _times(comparison: Comparison) -> Table:
    """Times of the settings that fit."""
    body = tuple(
        (
            *where(cell), Item(text=str(batch), key=batch), time_item(float(cell.ttft_s[i])),
            time_item(float(cell.tpot_s[i])), time_item(float(cell.latency_s[i])),
            number_item(float(cell.tokens_per_s[i])), memory_item(cell, i),
        )
        for cell in comparison.cells
        for i, batch in enumerate(cell.batches)
        if cell.fits[i] or cell.refused
    )  # fmt: skip
    table = Table(
        title="Time and memory",
        about=f"Roofline lower bounds. Memory{' per device' * bool(comparison.layouts)}: required < available.",
        head=(*WHERE, "batch", "TTFT", "TPOT", "latency", "tokens/s", "memory [GB]"),
        words=WHERE,
        body=body,
    )
    return _without_batch(table, comparison)


def _too_large(comparison: Comparison) -> Table:
    """Settings that do not fit, and the part of the request that would."""
    body = tuple(
        (
            *where(cell), Item(text=str(batch), key=batch), _gigabytes(needed_bytes := float(cell.total_bytes[i])),
            _gigabytes(capacity := cell.result.capacity_bytes),
            Item(text=f"{digits(ratio := needed_bytes / capacity)}x", key=ratio),
            Item(text=str(largest) if (largest := cell.largest.batch) else "none", key=largest),
            Item(text=_what_fits(cell, batch)),
        )
        for cell in comparison.runnable
        for i, batch in enumerate(cell.batches)
        if not cell.fits[i]
    )  # fmt: skip
    each = " per device" * bool(comparison.layouts)
    table = Table(
        title="Does not fit",
        about=f"Memory{each} required and available. Tables of bounds below include these settings as if they fitted.",
        head=(*WHERE, "batch", "needs", "has", "times", "largest batch", "fits with"),
        words=(*WHERE, "fits with"),
        body=body,
    )
    return _without_batch(table, comparison)


def _what_fits(cell: Cell, batch: int) -> str:
    """The first option with which a batch fits; "-" if none is known."""
    fixes = memory_fixes(cell.result.changed(cell.setting, batch))
    return fixes.found[0].typed if fixes and fixes.found else DASH.text


def _gigabytes(value: float) -> Item:
    return Item(text=f"{digits(value / 1e9)} GB", key=value)


def _library_label(cell: Cell) -> str:
    """The library of the expected kernels, with a star if they were measured on other devices."""
    carried = "*" if cell.setting.kernels and cell.setting.kernels.is_unmeasured else ""
    return f"{cell.library}{carried}" if cell.library else "median*"


def expectations(comparison: Comparison, cells: Iterable[Cell]) -> Table:
    """Bounds and expected times side by side, of settings with expected times."""
    library = comparison.library or comparison.engine or "the library with most measurements on the device"
    cells_shown = list(cells)
    body = tuple(
        (
            *where(cell), Item(text=str(batch), key=batch),
            *(item for times in _bounds_and_expected(cell, expected) for item in map(time_item, times[i])),
            Item(text=_library_label(cell)),
        )
        for cell in cells_shown
        if (expected := comparison.expected(cell))
        for i, batch in enumerate(cell.batches)
        if cell.fits[i]
    )  # fmt: skip
    table = Table(
        title="Expected times",
        about=f"Kernels of {library}; *: as measured on similar devices (median: of all their libraries)"
        f"{_relatives(comparison, cells_shown)}. JSON and CSV have intervals and sources.",
        head=(*WHERE, "batch", "TTFT >=", "expected", "TPOT >=", "expected", "kernels"),
        words=(*WHERE, "kernels"),
        body=body,
    )
    return _without_batch(table, comparison)


def _relatives(comparison: Comparison, cells: Iterable[Cell]) -> str:
    """The devices whose measurements were used for devices with a star, if these are few."""
    sources_by_device: dict[str, dict[str, None]] = {}
    for cell in cells:
        expected = comparison.expected(cell)
        if expected and expected.source.startswith(_TRANSFERRED) and _library_label(cell).endswith("*"):
            names = expected.source.removeprefix(_TRANSFERRED).split(", ")
            sources_by_device.setdefault(cell.hardware.name, {}).update(dict.fromkeys(names))
    if not 0 < len(sources_by_device) <= _MAX_EXPLAINED_DEVICES:
        return ""
    return ": " + "; ".join(f"{name} mostly as {', '.join(others)}" for name, others in sources_by_device.items())


def _bounds_and_expected(cell: Cell, result: ExpectedTimes) -> Iterable[Sequence[tuple[float, float]]]:
    """TTFT and TPOT at every batch, at the bound and as expected. [s]"""
    for bound, interval in ((cell.ttft_s, result.ttft), (cell.tpot_s, result.tpot)):
        expected = np.broadcast_to(interval.expected if interval else nan, bound.shape)
        yield list(zip(bound.tolist(), expected.tolist(), strict=True))


def prices_of(devices: Iterable[Hardware]) -> str:
    """Months in which cloud prices of devices were listed; "" without prices."""
    months = listed(devices)
    return f" Cloud prices of {months}." if months else ""


def _largest(comparison: Comparison) -> Table:
    years = comparison.years
    body = tuple(
        (
            *where(cell), Item(text=str(cell.largest.batch), key=cell.largest.batch),
            number_item(rate := cell.largest.tokens_per_s), number_item(float(cell.per_joule(rate))),
            number_item(float(cell.per_dollar(rate, years))), _hundredths(cell.largest.capacity),
        )
        for cell in comparison.runnable
        if cell.largest.batch
    )  # fmt: skip
    spread = f", or of its purchase price over {years:g} years of continuous use" if years else ""
    bought = not years and any(
        "price.purchase" in cell.hardware.numbers and "price.cloud" not in cell.hardware.numbers
        for cell in comparison.runnable
    )
    notes = " --depreciation YEARS counts purchase prices." if bought else ""
    notes += prices_of(cell.hardware for cell in comparison.runnable)
    joined = " Rates are those of all devices of a layout." if comparison.layouts else ""
    return Table(
        title="At the largest batch that fits",
        about="At the bound. Tokens per joule at TDP, per dollar at the cloud price"
        f"{spread}.{notes}{joined} Capacity: % more tokens/s for 1 % more memory.",
        head=(*WHERE, "batch", "tokens/s", "tokens/J", "tokens/USD", "capacity"),
        words=WHERE,
        body=body,
    )


def _where(cells: Sequence[Cell], phase: str, batch_text: str) -> Table:
    """The bound of a pass and of each group of operators, with its share of the time."""
    groups = [g for g in groups_of(cells) if any(phase in c.passes and g in c.passes[phase].groups for c in cells)]
    length = next(cell.passes[phase].length for cell in cells if phase in cell.passes)
    length_text = f"a prompt of {length}" if phase == "prefill" else f"a context of {length}, the middle of the output"
    return Table(
        title=f"Time of {phase} by operator group, at {batch_text} and {length_text}",
        about=f"Bound and share of the time, at lower bounds. {LETTERS}. All: the bound of most of the time.",
        head=(*WHERE, ALL, *groups),
        words=WHERE,
        body=tuple(
            (*where(cell), *(_bound_item(cell, phase, group) for group in (ALL, *groups)))
            for cell in cells
            if phase in cell.passes
        ),
    )


def groups_of(cells: Sequence[Cell]) -> list[str]:
    """Operator groups that occur in any pass of the cells, in the order of GROUPS."""
    return [g for g in GROUPS if any(g in breakdown.groups for cell in cells for breakdown in cell.passes.values())]


def _bound_item(cell: Cell, phase: str, group: str = ALL) -> Item:
    breakdown = cell.passes[phase]
    if group != ALL and group not in breakdown.groups:
        return DASH
    bound = breakdown.bound(0, group)
    share = breakdown.share(0, bound=bound) if group == ALL else breakdown.share(0, group=group)
    return Item(text=f"{_LETTER[bound]} {share:.0%}", key=share, bound=bound)


def _sensitivities(cells: Sequence[Cell]) -> Table:
    """Sensitivity: time saved in each pass per +1 % of each resource."""
    pass_resources = [
        (phase, resource)
        for phase in ("prefill", "decode")
        for resource in RESOURCES
        if any(phase in c.passes and c.passes[phase].share(0, resource=resource) >= 0.005 for c in cells)
    ]
    linked = any(resource == "link" for _, resource in pass_resources)
    links = "; link: bandwidth and message rate" if linked else ""
    return Table(
        title="Sensitivity: time saved (%) per +1 % of each resource",
        about="-d log time / d log rate, at lower bounds. P: prefill, D: decode; memory: bandwidth; matrix, vector: "
        f"peak rates{links}.",
        head=(*WHERE, *(f"{phase[0].upper()} {resource}" for phase, resource in pass_resources)),
        words=WHERE,
        body=tuple((*where(cell), *(_elasticity(cell, *place) for place in pass_resources)) for cell in cells),
    )


def _elasticity(cell: Cell, phase: str, resource: str) -> Item:
    if phase not in cell.passes:
        return DASH
    return _hundredths(cell.passes[phase].share(0, resource=resource))


def _hundredths(value: float) -> Item:
    return DASH if isnan(value) else Item(text=f"{value:.2f}", key=value)


def _crossings(crossings: Sequence[Crossing], phase: str, axis: str, comparison: Comparison) -> Table:
    by_group = {(id(c.cell), c.group): c for c in crossings}
    columns = [g for g in (ALL, *groups_of(comparison.runnable)) if any(c.group == g for c in crossings)]
    cells = [cell for cell in comparison.runnable if phase in cell.passes]
    length = cells[0].passes[phase].length
    condition = first_batch(comparison)
    if axis == "batch":
        condition = f"{'a prompt' if phase == 'prefill' else 'a context'} of {length}"
    marks = "(n): does not fit. " if axis == "batch" else ""
    return Table(
        title=f"{axis.capitalize()} from which the bound of {phase} changes, at {condition}",
        about=f"From M to C unless marked. {marks}-: no change. {LETTERS}.",
        head=(*WHERE, *columns),
        words=WHERE,
        body=tuple((*where(cell), *(_change(by_group.get((id(cell), g)), axis) for g in columns)) for cell in cells),
    )


def _change(crossing: Crossing | None, axis: str) -> Item:
    if crossing is None:
        return Item(text="-", key=1e12)
    letters = _LETTER[crossing.before], _LETTER[crossing.after]
    text = str(crossing.at) + ("" if letters == ("M", "C") else f" {letters[0]}>{letters[1]}")
    if axis == "batch" and crossing.at > crossing.cell.largest.batch:
        text = f"({text})"
    return Item(text=text, key=crossing.at)


def first_batch(comparison: Comparison) -> str:
    """The first batch, in words."""
    return f"batch {comparison.batches[0]}" if comparison.batches else "the largest batch that fits"
