"""What a plan is found among: a model in every precision and layout, on every device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, groupby
from math import isfinite
from typing import Any, Final

from ..comparing.fleet import Known
from ..devices.hardware import Hardware
from ..expectation.kernels import Kernels
from ..parallel.layout import Layout
from ..setting import Setting
from .candidates import Candidate, judged
from .fleet_times import Key, Placement, expected
from .load import Load, StepTimes
from .pairing import Pairing, Reader, paired
from .placement import Excluded, placements
from .prefill_pool import moved_bytes

Timed = tuple[Placement, Sequence[int], StepTimes]  # devices at some places, and what their steps take

_AT_ONCE: Final = 1 << 22  # numbers of copies and batches, of all devices, that are judged together


@dataclass(frozen=True, kw_only=True)
class Search:
    """Every setting on every device.

    settings  by precision, as it was asked for, and layout
    kernels   of a device by its name; None where all is of bounds
    pairing   of copies that read prompts with others that write answers; None where all do both
    """

    load: Load
    devices: Sequence[Hardware]
    settings: Mapping[tuple[str, Layout], Setting]
    kernels: Callable[[str], Kernels] | None
    pairing: Pairing | None = None
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
        found: dict[tuple[object, ...], Candidate] = {}
        bounds: list[Timed] = []
        for one in settings:
            if found:
                told()
            every = list(placements(one, devices, self.load, self.known, large=large))
            laid = [(each, each.able, each.bounds(self.load)) for each in every if isinstance(each, Placement)]
            own = self._judged(quant, laid)
            for each in every:
                if isinstance(each, Excluded):
                    found[one.layout, each.device.name] = _excluded(each, quant, one.layout)
                else:
                    found |= {key: own[key] for key in map(each.key, each.able)}
            bounds += laid
        pairing = None if large else self.pairing
        used: set[Key] = set()
        if pairing:
            pairs, used = self._paired(quant, settings[0], bounds, pairing)
            found |= pairs
        if self.kernels:
            likely = self._expected([
                (each, [p for p in able if not found[key := each.key(p)].factor or key in used])
                for each, able, _ in bounds
            ])  # fmt: skip
            again = self._judged(quant, likely)
            if pairing:
                again |= self._paired(quant, settings[0], likely, pairing)[0]
            for key, told_of in again.items():
                if not found[key].factor:
                    found[key] = replace(told_of, least=found[key])
        yield from found.values()
        told()

    def _expected(self, several: Sequence[tuple[Placement, Sequence[int]]]) -> list[Timed]:
        """Those of the devices at some places of whose kernels anything is expected, and what their steps take."""
        assert self.kernels
        times = expected(several, self.load, self.kernels)
        return [
            (laid, [p for p in places if isfinite(own.alone[p])], own)
            for (laid, places), own in zip(several, times, strict=True)
        ]

    def _judged(self, quant: str, several: Sequence[Timed], *, writing: bool = False) -> dict[Any, Candidate]:
        """Devices at some places of several, and what their steps take: as copies that do all, or write alone."""
        found: dict[Any, Candidate] = {}
        for layout, same in groupby(several, key=lambda each: each[0].layout):
            alike = list(same)
            every = [(laid.key(place), laid.devices[place]) for laid, places, _ in alike for place in places]
            if not every:
                continue
            load, needed = self.load, alike[0][0].needed
            whole = StepTimes.of_all([times.only(places) for _, places, times in alike])
            together = max(1, _AT_ONCE * layout.devices // (load.max_devices * len(load.limits)))
            for start in range(0, len(every), together):
                keys, devices = zip(*every[start : start + together], strict=True)
                times = whole.only(range(start, start + len(keys)))
                asked = quant, layout
                each = (
                    judged(devices, asked, times.writing, needed.writing, load.writing)
                    if writing
                    else judged(devices, asked, times, needed.whole, load)
                )
                found.update(zip(keys, each, strict=True))
        return found

    def _paired(
        self, quant: str, one: Setting, several: Sequence[Timed], pairing: Pairing
    ) -> tuple[dict[Any, Candidate], set[Key]]:
        """Devices at some places of several, some of which read for the others; and the settings that do well so."""
        writing = [(laid, [p for p in own if pairing.writes(laid.devices[p])], times) for laid, own, times in several]
        writers = list(self._judged(quant, writing, writing=True).values())
        readers = [
            reader
            for laid, own, times in several
            for reader in Reader.each(laid, [p for p in own if pairing.reads(laid.devices[p])], times)
        ]
        moved = float(moved_bytes(one, float(self.load.prompt)))
        return paired(readers, writers, pairing, moved=moved, load=self.load)

    def closest(self, found: Sequence[Candidate]) -> list[Candidate]:
        """For each device or pair that keeps to the goals in no setting, the candidate that comes closest; nearest
        first.

        What has no reason yet is worked out where none comes closer, for then the others are as far off at least.
        """
        served = {one.kind for one in found if not one.factor}
        missed: dict[tuple[str, ...], dict[tuple[str, Layout], Candidate]] = {}
        for one in found:
            if one.kind not in served:
                missed.setdefault(one.kind, {})[one.quant, one.layout] = one
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
                    missed[one.kind][quant, layout] = one


def _excluded(one: Excluded, quant: str, layout: Layout) -> Candidate:
    reason = one.reason and f"{one.factor}: {one.reason}"
    return Candidate(
        hardware=one.device, quant=quant, layout=layout, factor=one.factor, excess=one.excess, reason=reason
    )


def _missed(one: Candidate) -> tuple[bool, bool, float]:
    """How far off the goals: those that keep to them at the bound come closer than those that do not, and those that
    there is memory for closer than others.
    """
    return one.least is None, not one.max_rate > 0, one.excess
