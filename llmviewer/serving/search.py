"""What a plan is found among: a model in every precision and layout, on every device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, groupby
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
from .passes import Key, LaidOut, expected

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
        done = count(1)
        for quant, same in groupby(self.settings.items(), key=lambda item: item[0][0]):
            settings = [one for _, one in same]
            yield from self._on(self.devices, settings, quant, told=lambda: progress(next(done), len(self.settings)))

    def _on(
        self,
        devices: Sequence[Hardware],
        settings: Sequence[Setting],
        quant: str,
        *,
        large: bool = False,
        told: Callable[[], object] = lambda: None,
    ) -> Iterator[Candidate]:
        """A model in a precision and some layouts on every device: the fewest copies that do, or those that come
        closest.

        Those that keep to the goals at the bound are held to them as expected too.

        large  whether those that have no memory for it are worked out too
        told   is called for each setting, for the last when all is done
        """
        found: dict[Key, Candidate] = {}
        fine: list[tuple[LaidOut, list[int]]] = []
        for one in settings:
            if found:
                told()
            every = list(laid_out(one, devices, self.load, self.known, large=large))
            laid = [each for each in every if isinstance(each, LaidOut)]
            own = self._judged(quant, [(each, each.able, each.bounds(self.load)) for each in laid])
            for each in every:
                if isinstance(each, Left):
                    found[one.layout, each.device.name] = _left(each, quant, one.layout)
                else:
                    found |= {key: own[key] for key in map(each.key, each.able)}
            fine.extend((each, [place for place in each.able if not own[each.key(place)].factor]) for each in laid)
        if self.kernels:
            times = expected(fine, self.load, self.kernels)
            for _, same in groupby(zip(fine, times, strict=True), key=lambda pair: pair[0][0].layout):
                known = [(each, [p for p in places if isfinite(own.alone[p])], own) for (each, places), own in same]
                for key, told_of in self._judged(quant, known).items():
                    found[key] = replace(told_of, least=found[key])
        yield from found.values()
        told()

    def _judged(self, quant: str, several: Sequence[tuple[LaidOut, Sequence[int], StepTimes]]) -> dict[Key, Candidate]:
        """Devices at some places of several, all in one layout, and what their steps take."""
        every = [(laid.key(place), laid.devices[place]) for laid, places, _ in several for place in places]
        if not every:
            return {}
        first = several[0][0]
        whole = StepTimes.of_all([times.only(places) for _, places, times in several])
        found: dict[Key, Candidate] = {}
        together = max(1, _AT_ONCE * first.layout.devices // (self.load.max_devices * len(self.load.limits)))
        for start in range(0, len(every), together):
            keys, devices = zip(*every[start : start + together], strict=True)
            times = whole.only(range(start, start + len(keys)))
            each = judged(devices, (quant, first.layout), times, first.needed, self.load)
            found.update(zip(keys, each, strict=True))
        return found

    def closest(self, found: Sequence[Candidate]) -> list[Candidate]:
        """For each device that keeps to the goals in no setting, the candidate that comes closest; nearest first.

        What has no reason yet is worked out where none comes closer, for then the others are as far off at least.
        """
        served = {one.hardware.name for one in found if not one.factor}
        missed: dict[str, dict[tuple[str, Layout], Candidate]] = {}
        for one in found:
            if one.hardware.name not in served:
                missed.setdefault(one.hardware.name, {})[one.quant, one.layout] = one
        while True:
            closest = [min(own.values(), key=_missed) for own in missed.values()]
            further: dict[tuple[str, Layout], list[Hardware]] = {}
            for one in closest:
                if not one.reason:
                    further.setdefault((one.quant, one.layout), []).append(one.hardware)
            if not further:
                return sorted(closest, key=_missed)
            for (quant, layout), devices in further.items():
                for one in self._on(devices, [self.settings[quant, layout]], quant, large=True):
                    missed[one.hardware.name][quant, layout] = one


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
