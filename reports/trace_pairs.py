"""The report on two recorded passes side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath
from typing import Final

from llmviewer.timelines.against import Timeline
from llmviewer.timelines.pairs import PairedRow, Side, TracePair
from llmviewer.units import fold, seconds

from .parts import Card
from .report import Report
from .tables import DASH, Item, Table, digits, time_item

_MAX_KERNELS: Final = 12
_MIN_SHARE: Final = 0.02  # of a pass, from which a change is a sentence
_EQUAL: Final = 5e-4  # difference of a ratio from 1 that is not shown
_NAME: Final = 45  # characters of a kernel's name


def title(result: TracePair) -> str:
    """Model, devices and phase of two recordings."""
    before, after = (each.analysis.hardware.title for each in (result.before, result.after))
    devices = before if before == after else f"{before} and {after}"
    return f"{result.before.analysis.model.title} on {devices}: two recordings of {result.before.phase}"


def headline(result: TracePair) -> str:
    """Time per pass of the second recording, and its speed-up over the first."""
    faster = result.speed_up >= 1
    times = fold(max(result.speed_up, 1 / result.speed_up), 3)
    return (
        f"{title(result)}. A pass takes {seconds(result.after.time_s)} in {PurePath(result.after.file).name}, "
        f"{times} {'faster' if faster else 'slower'} than the {seconds(result.before.time_s)} in "
        f"{PurePath(result.before.file).name}."
    )


def remarks(result: TracePair) -> list[str]:
    """Parts that became faster or slower, and launches that were merged or split."""
    changes = [row for row in result.parts if abs(row.change_s) > _MIN_SHARE * result.before.time_s]
    faster = [row for row in changes if row.change_s < 0]
    slower = [row for row in changes if row.change_s > 0]
    sentences = []
    for word, rows in (("Faster", faster), ("Slower", slower)):
        texts = [f"{row.name} {seconds(abs(row.change_s))}" for row in sorted(rows, key=lambda row: -abs(row.change_s))]
        sentences += [f"{word}: {', '.join(texts)}."] if texts else []
    merged = [row.name for row in result.products if _launches(row.after) < _launches(row.before) and row.after]
    split = [row.name for row in result.products if _launches(row.after) > _launches(row.before) and row.before]
    sentences += [f"Merged into fewer launches: {'; '.join(merged)}."] if merged else []
    sentences += [f"Split into more launches: {'; '.join(split)}."] if split else []
    if result.before.bound_s != result.after.bound_s:
        before, after = seconds(result.before.bound_s), seconds(result.after.bound_s)
        sentences.append(f"The bound of a pass is {before} before and {after} after: the settings differ.")
    return sentences


def _launches(side: Side | None) -> float:
    return side.launches if side else 0.0


def basis(result: TracePair) -> str:
    """Explanation of the columns."""
    reference = "its roofline bound" if result.after.expected_s is None else "its expected time, from measured kernels"
    return (
        "before, after: time per pass in each recording; ratio: after over before; "
        f"{_ratio_heading(result)}: after over {reference} (`llmviewer docs timeline`)."
    )


def tables(result: TracePair) -> list[Table]:
    """Parts of a pass, matrix products and kernels, before and after."""
    parts = _table("Parts of a pass", "part", result.parts, result)
    products = _table("Matrix products of a pass", "products", result.products, result)
    return [parts, *[products][: len(result.products)], *_kernels(result)]


def _ratio_heading(result: TracePair) -> str:
    """Heading of times as a multiple of expected ones, or of bounds."""
    return "x bound" if result.after.expected_s is None else "x expected"


def _table(heading: str, row_heading: str, rows: Sequence[PairedRow], result: TracePair) -> Table:
    return Table(
        title=heading,
        about="",
        head=(row_heading, "before", "after", "ratio", "change", _ratio_heading(result)),
        words=(row_heading,),
        body=tuple(
            (
                Item(text=row.name),
                time_item(row.before.measured_s) if row.before else DASH,
                time_item(row.after.measured_s) if row.after else DASH,
                DASH if row.ratio is None else Item(text=f"{row.ratio:.2f}x", key=row.ratio),
                _change(row),
                _multiple(row.after, result.after),
            )
            for row in rows
        ),
    )


def _change(row: PairedRow) -> Item:
    """The difference of the times, unless it is that of rounding."""
    if row.ratio is not None and abs(row.ratio - 1) < _EQUAL:
        return Item(text="0 s", key=0.0)
    return Item(text=f"{'-' if row.change_s < 0 else '+'}{seconds(abs(row.change_s))}", key=row.change_s)


def _multiple(side: Side | None, recording: Timeline) -> Item:
    """Time as a multiple of the expected one, or of the bound where none is expected."""
    reference_s = None if side is None else side.bound_s if recording.expected_s is None else side.expected_s
    return (
        Item(text=f"{side.measured_s / reference_s:.2f}x", key=side.measured_s / reference_s)
        if side and reference_s
        else DASH
    )


def _kernels(result: TracePair) -> list[Table]:
    rows = result.kernels[:_MAX_KERNELS]
    return [
        Table(
            title="Kernels in only one recording",
            about="" if len(result.kernels) == len(rows) else f"{len(result.kernels) - len(rows)} more: -o FILE.csv.",
            head=("kernel", "in", "launches", "time"),
            words=("kernel", "in"),
            body=tuple(
                (
                    Item(text=row.name if len(row.name) <= _NAME else f"{row.name[: _NAME - 3]}..."),
                    Item(text="after" if row.before is None else "before"),
                    Item(text=digits(side.launches), key=side.launches),
                    time_item(side.measured_s),
                )
                for row in rows
                for side in [row.before or row.after]
                if side
            ),
        )
    ][: len(rows)]


def _cards(result: TracePair) -> list[Card]:
    return [
        Card(label="before", value=seconds(result.before.time_s), about="a pass"),
        Card(label="after", value=seconds(result.after.time_s), about="a pass"),
        Card(label="speed-up", value=fold(result.speed_up, 3), about="before over after"),
    ]


REPORT: Final = Report[TracePair](
    name="timelines", title=title, headline=headline, tables=tables, remarks=remarks, basis=basis, cards=_cards
)
