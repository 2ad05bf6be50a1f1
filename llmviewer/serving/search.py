"""What a plan is found among: a model in every precision and layout, on every device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import isfinite
from typing import Final

from ..expectation.kernels import Kernels
from ..fleet import Known
from ..hardware import Hardware
from ..layout import Layout
from ..setting import Setting
from .candidates import Candidate, judged
from .laying_out import Left, laid_out
from .load import Load, StepTimes
from .passes import LaidOut

_AT_ONCE: Final = 1 << 22  # numbers of copies and batches, of all devices, that are judged together


@dataclass(frozen=True, kw_only=True)
class Search:
    """Every setting on every device.

    settings  by precision, as it was asked for, and layout
    kernels   of a device by its name; None where all is of bounds
    """

    load: Load
    devices: Sequence[Hardware]
    settings: Mapping[tuple[str, Layout], Setting]
    kernels: Callable[[str], Kernels] | None
    known: Known = field(default_factory=Known)

    @property
    def tried(self) -> int:
        """How many settings of devices, layouts, precisions, copies and batches there are."""
        copies = sum(self.load.max_devices // layout.devices for _, layout in self.settings)
        return len(self.devices) * copies * len(self.load.limits)

    def candidates(self, progress: Callable[[int, int], object]) -> Iterator[Candidate]:
        """Of every setting on every device: the fewest copies that do, or those that come closest.

        progress  is told of settings done, and of how many there are
        """
        for done, ((quant, _), one) in enumerate(self.settings.items(), 1):
            yield from self._on(self.devices, one, quant)
            progress(done, len(self.settings))

    def _on(self, devices: Sequence[Hardware], one: Setting, quant: str, *, large: bool = False) -> Iterator[Candidate]:
        """A model in a precision and a layout on every device: the fewest copies that do, or those that come closest.

        Those that keep to the goals at the bound are held to them as expected too.

        large  whether those that have no memory for it are worked out too
        """
        for laid in laid_out(one, devices, self.load, self.known, large=large):
            if isinstance(laid, Left):
                yield _left(laid, quant, one.layout)
                continue
            for place, reason in laid.refused.items():
                yield _left(Left(device=laid.devices[place], factor="data type", reason=reason), quant, one.layout)
            judge = partial(self._judged, laid, quant)
            found = judge(laid.bounds(self.load), [p for p in range(len(laid.devices)) if p not in laid.refused])
            if self.kernels:
                fine = [place for place, own in found.items() if not own.factor]
                times = laid.expected(self.load, self.kernels, fine)
                told = judge(times, [place for place in fine if isfinite(times.alone[place])])
                found |= {place: replace(own, least=found[place]) for place, own in told.items()}
            yield from found.values()

    def _judged(self, laid: LaidOut, quant: str, times: StepTimes, places: Sequence[int]) -> dict[int, Candidate]:
        found: dict[int, Candidate] = {}
        together = max(1, _AT_ONCE * laid.layout.devices // (self.load.max_devices * len(self.load.limits)))
        for start in range(0, len(places), together):
            part = places[start : start + together]
            own = [laid.devices[place] for place in part]
            each = judged(own, (quant, laid.layout), times.only(part), laid.needed, self.load)
            found.update(zip(part, each, strict=True))
        return found

    def closest(self, found: Sequence[Candidate]) -> list[Candidate]:
        """For each device that keeps to the goals in no setting, the candidate that comes closest; nearest first."""
        served = {one.hardware.name for one in found if not one.factor}
        missed: dict[str, list[Candidate]] = {}
        for one in found:
            if one.hardware.name not in served:
                missed.setdefault(one.hardware.name, []).append(one)
        return sorted(map(self._closest, missed.values()), key=_missed)

    def _closest(self, found: Sequence[Candidate]) -> Candidate:
        """Of one device, the first of several; others are as far off at least."""
        own = list(found)
        while True:
            place, one = min(enumerate(own), key=lambda pair: _missed(pair[1]))
            if one.reason:
                return one
            setting = self.settings[one.quant, one.layout]
            (own[place],) = self._on([one.hardware], setting, one.quant, large=True)


def _left(one: Left, quant: str, layout: Layout) -> Candidate:
    reason = one.reason and f"{one.factor}: {one.reason}"
    return Candidate(
        hardware=one.device, quant=quant, layout=layout, factor=one.factor, excess=one.excess, reason=reason
    )


def _missed(one: Candidate) -> tuple[bool, bool, float]:
    """How far off the goals: those that keep to them at the bound come closer than those that do not, and those that
    there is memory for closer than others.
    """
    return one.least is None, not one.max_rate > 0, one.excess
