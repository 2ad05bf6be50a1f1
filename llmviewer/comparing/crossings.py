"""Crossings: batches and lengths at which the bound of a pass changes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from ..records import frozen
from .breakdown import ALL, Breakdown, bound_times
from .cells import Cell
from .fleet import Column, Fleet

_MAX_BATCH, _MAX_CONTEXT = 1 << 16, 1 << 17  # limits of the search for crossings
_POINTS_AT_ONCE: Final = 32  # points of the search that are computed together


@frozen(kw_only=True)
class Crossing:
    """A change of the bound of a group of operators or of a whole pass.

    axis  "batch", "prompt" or "context"
    at    the first number that is bound by `after`; smaller ones are bound by `before`
    """

    cell: Cell
    phase: str
    group: str
    axis: str
    at: int
    before: str
    after: str


def crossings_of(cell: Cell) -> Iterator[Crossing]:
    """Crossings of one cell: over batches at its lengths, and over lengths at the first batch.

    The search compares powers of two, and assumes one change between two that differ.
    """
    for phase, breakdown in cell.passes.items():
        fleet = cell.fleet(phase)
        for axis, limit in _axes(cell, phase):
            search_line = _Line(cell=cell, fleet=fleet, phase=phase, axis=axis)
            grid = np.array([n for n in 2.0 ** np.arange(limit.bit_length()) if n < limit] + [float(limit)])
            breakdowns = search_line.at(grid)
            for group in (ALL, *breakdown.groups):
                before, *others = breakdowns.bounds(group)
                place = next((i for i, bound in enumerate(others) if bound != before), None)
                if place is not None:
                    change, after = search_line.change(grid[place], grid[place + 1], group, before)
                    yield Crossing(
                        cell=cell, phase=phase, group=group, axis=axis, at=change, before=before, after=after
                    )  # fmt: skip


def _axes(cell: Cell, phase: str) -> Iterator[tuple[str, int]]:
    """(axis, limit of the search) of a pass."""
    yield "batch", _MAX_BATCH
    longest = cell.model.max_context or _MAX_CONTEXT
    if phase == "prefill":
        yield "prompt", longest
    elif not cell.model.is_encoder_decoder:  # with an encoder, the decoder's context starts after the prompt
        yield "context", longest


@frozen(kw_only=True)
class _Line:
    """A pass of a cell along one axis."""

    cell: Cell
    fleet: Fleet
    phase: str
    axis: str

    def at(self, numbers: Column) -> Breakdown:
        own_length = self.cell.passes[self.phase].length
        batch, length = (numbers, own_length) if self.axis == "batch" else (self.cell.batches[0], numbers)
        bound_by = bound_times(
            self.fleet, self.cell.setting, self.phase, batch=batch, length=length, prompt=self.cell.prompt
        )  # fmt: skip
        times = {key: np.broadcast_to(time_s, (1, len(numbers)))[0] for key, time_s in bound_by.items()}
        return Breakdown(length=own_length, waits=times)

    def change(self, low: float, high: float, group: str, before: str) -> tuple[int, str]:
        """The first number in (low, high] that is not bound by `before`, and its bound."""
        while True:
            tried = np.unique(np.round(np.linspace(low, high, _POINTS_AT_ONCE)))
            bounds = self.at(tried).bounds(group)
            place = next(i for i, bound in enumerate(bounds) if bound != before)
            low, high = tried[place - 1], tried[place]
            if high - low <= 1:
                return int(high), bounds[place]
