"""The search space of a plan: a model in every precision and layout, on every device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, groupby
from math import isfinite
from typing import Any, Final, NamedTuple

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

_AT_ONCE: Final = 1 << 22  # numbers of copies and batches, of all devices, that are judged together


class Timed(NamedTuple):
    """Devices at some places of a placement, and what the steps of all of its devices take."""

    laid: Placement
    places: Sequence[int]
    times: StepTimes


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
            for each in placements(one, devices, self.load, self.known, large=large):
                if isinstance(each, Excluded):
                    found[one.layout, each.device.name] = _excluded(each, quant, one.layout)
                else:
                    bounds.append(Timed(each, each.able, each.bounds(self.load)))
                    found |= self._judged(quant, bounds[-1])
        pairing = None if large else self.pairing
        used: set[Key] = set()
        if pairing:
            pairs, used = self._paired(quant, settings[0], bounds, pairing)
            found |= pairs
        if self.kernels:
            asked = [
                (laid, [p for p in able if not found[key := laid.key(p)].factor or key in used])
                for laid, able, _ in bounds
            ]
            times = expected(asked, self.load, self.kernels)
            likely = [
                Timed(laid, [p for p in places if isfinite(own.alone[p])], own)
                for (laid, places), own in zip(asked, times, strict=True)
            ]
            again = {key: one for each in likely for key, one in self._judged(quant, each).items()}
            if pairing:
                again |= self._paired(quant, settings[0], likely, pairing)[0]
            for key, one_of in again.items():
                if not found[key].factor:
                    found[key] = replace(one_of, least=found[key])
        yield from found.values()
        told()

    def _judged(self, quant: str, timed: Timed, *, writing: bool = False) -> dict[Any, Candidate]:
        """Each of them as copies that do all, or that write alone."""
        laid, places, times = timed
        load, needed = self.load, laid.needed.whole
        if writing:
            load, needed, times = load.writing, laid.needed.writing, times.writing
        together = max(1, _AT_ONCE * laid.layout.devices // (load.max_devices * len(load.limits)))
        found: dict[Any, Candidate] = {}
        for start in range(0, len(places), together):
            some = places[start : start + together]
            devices = [laid.devices[place] for place in some]
            each = judged(devices, (quant, laid.layout), times.only(some), needed, load)
            found.update(zip(map(laid.key, some), each, strict=True))
        return found

    def _paired(
        self, quant: str, one: Setting, several: Sequence[Timed], pairing: Pairing
    ) -> tuple[dict[Any, Candidate], set[Key]]:
        """Some of them that read for the others; and the settings that do well so."""
        writers: dict[Any, Candidate] = {}
        readers: list[Reader] = []
        for laid, places, times in several:
            writing = [place for place in places if pairing.writes(laid.devices[place])]
            writers |= self._judged(quant, Timed(laid, writing, times), writing=True)
            readers += Reader.each(laid, [place for place in places if pairing.reads(laid.devices[place])], times)
        moved = float(moved_bytes(one, float(self.load.prompt)))
        return paired(readers, list(writers.values()), pairing, moved=moved, load=self.load)

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
