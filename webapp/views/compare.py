"""Comparison of settings: the pinned ones and the current one on each of its devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from llmviewer.errors import InputError
from llmviewer.records import frozen
from llmviewer.reports import figures
from llmviewer.reports.page_figures import PageFigure, page_figure
from llmviewer.reports.phrases import headline
from llmviewer.reports.side_by_side import ComparedSetting, analyses_with_phase, setting_names

from ..errors import error_line
from ..results import DeviceResult, device_results
from ..state import State, pin_name

LETTERS: Final = "ABCDEF"  # of pins


@frozen(kw_only=True)
class PinnedSetting(ComparedSetting):
    """A setting of the page: its place among the pins, -1 for the current setting; labels are the name or letter of a
    pin, "now" or the device.
    """

    pin: int


def compared_settings(results: Sequence[DeviceResult], state: State) -> tuple[list[PinnedSetting], tuple[str, ...]]:
    """The pinned settings, then the current one on each device; and errors of pins."""
    pinned: list[tuple[str, int, DeviceResult]] = []
    problems: list[str] = []
    for place, (letter, pin) in enumerate(zip(LETTERS, state.pins, strict=False)):
        pinned_state, notices = State.of_link(pin, state.files)
        problems += [f"{letter}: {notice.removeprefix('link: ')}" for notice in notices]
        try:
            label = f"{letter} {pin_name(pin)}".strip()
            pinned.append((label, place, device_results(pinned_state)[0]))
        except InputError as error:
            problems.append(f"{letter}: {error_line(error)}")
    has_unpinned_rival = state.pins and len(results) == 1
    entries = [*pinned, *(("now" if has_unpinned_rival else one.name, -1, one) for one in results)]
    labels, places, each = zip(*entries, strict=True)
    names = setting_names(labels, [one.name for one in each], [one.analysis for one in each])
    settings = [
        PinnedSetting(name=name, label=label, description=headline(one.analysis), analysis=one.analysis, pin=place)
        for name, label, place, one in zip(names, labels, places, each, strict=True)
    ]
    return settings, tuple(problems)


def times_figure(settings: Sequence[ComparedSetting], phase: str) -> PageFigure:
    """Bars of the time of a phase, one per setting."""
    return page_figure(figures.phase_bars({one.label: one.analysis for one in settings}, phase))


def roofline_figure(settings: Sequence[ComparedSetting], phase: str) -> PageFigure | None:
    """Operators of the phase under the roofs of all settings that have it; None if fewer than two have."""
    analyses = analyses_with_phase(settings, phase)
    return page_figure(figures.rooflines(analyses, phase)) if len(analyses) > 1 else None
