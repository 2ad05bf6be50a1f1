"""The search space of a plan: a model in every precision and layout, on every device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from itertools import count, groupby
from math import isfinite
from typing import Any, Final, NamedTuple

from ..comparing.fleet import Known
from ..devices.hardware import Hardware
from ..expectation.kernels import Kernels
from ..parallel.layout import Layout
from ..records import frozen
from ..setting import Setting
from .candidates import Candidate, judged
from .fleet_times import Key, Placement, expected
from .load import Load, StepTimes
from .pairing import Pairing, Reader, paired
from .placement import Excluded, placements
from .prefill_pool import moved_bytes

_MAX_JUDGED: Final = 1 << 22  # numbers of copies and batches, of all devices, that are judged together


class Timed(NamedTuple):
    """Times of steps on the devices of a placement, and the places of those to judge."""

    placement: Placement
    places: Sequence[int]
    times: StepTimes


@frozen(kw_only=True)
class _Precision:
    """A model in one precision, in some layouts on some devices.

    candidates  by layout and devices
    bounds      placements with their lower bounds
    paired      settings that prefill or decode in a pair that keeps to the goals at the bound
    """

    quant: str
    settings: Sequence[Setting]
    candidates: dict[Any, Candidate]
    bounds: Sequence[Timed]
    paired: set[Key]

    def keeping(self) -> Iterator[tuple[Placement, list[int]]]:
        """Places of each placement that keep to the goals at the bound."""
        for placement, places, _ in self.bounds:
            keys = map(placement.key, places)
            yield (
                placement,
                [
                    p
                    for p, key in zip(places, keys, strict=True)
                    if not self.candidates[key].factor or key in self.paired
                ],
            )


@frozen(kw_only=True)
class Search:
    """Every setting on every device.

    settings  by precision, as given, and layout
    kernels   of a device by its name; None for bounds only
    pairing   of prefill copies with decode copies; None where all copies do both
    """

    load: Load
    devices: Sequence[Hardware]
    settings: Mapping[tuple[str, Layout], Setting]
    kernels: Callable[[str], Kernels] | None
    pairing: Pairing | None = None
    known: Known = field(default_factory=Known)

    @property
    def tried(self) -> int:
        """Number of combinations of devices, layouts, precisions, copies and batches."""
        copies = sum(self.load.max_devices // layout.devices for _, layout in self.settings)
        return len(self.devices) * copies * len(self.load.limits)

    def candidates(self, progress: Callable[[int, int], object]) -> Iterator[Candidate]:
        """Candidates of every setting on every device: the fewest copies that keep to the goals, or the closest ones.

        progress  called with the number of finished settings, and of all
        """
        done = count(1)
        by_quant = groupby(self.settings.items(), key=lambda item: item[0][0])
        wanted = [(quant, [one for _, one in same], self.devices) for quant, same in by_quant]
        for one in self._searched(wanted, large=False):
            for _ in one.settings:
                progress(next(done), len(self.settings))
            yield from one.candidates.values()

    def _searched(
        self, wanted: Sequence[tuple[str, Sequence[Setting], Sequence[Hardware]]], *, large: bool
    ) -> Iterator[_Precision]:
        """Candidates of each precision; those that keep to the goals at the bound are held to them as expected too.

        The kernels of a device are evaluated for all precisions together.

        large  whether devices without memory for the smallest batch are worked out too
        """
        bounds = [self._bounded(quant, settings, devices, large=large) for quant, settings, devices in wanted]
        if not self.kernels:
            yield from bounds
            return
        keeping = [list(one.keeping()) for one in bounds]
        times = expected([pair for pairs in keeping for pair in pairs], self.load, self.kernels)
        for one, pairs in zip(bounds, keeping, strict=True):
            each = [(placement, places, next(times)) for placement, places in pairs]
            likely = [Timed(laid, [p for p in places if isfinite(own.alone[p])], own) for laid, places, own in each]
            again = {key: found for timed in likely for key, found in self._judged(one.quant, timed).items()}
            if self.pairing and not large:
                again |= self._paired(one.quant, one.settings[0], likely, self.pairing)[0]
            least = one.candidates
            kept = {key: replace(found, least=least[key]) for key, found in again.items() if not least[key].factor}
            yield replace(one, candidates=least | kept)

    def _bounded(
        self, quant: str, settings: Sequence[Setting], devices: Sequence[Hardware], *, large: bool
    ) -> _Precision:
        found: dict[Any, Candidate] = {}
        bounds: list[Timed] = []
        for one in settings:
            for each in placements(one, devices, self.load, self.known, large=large):
                if isinstance(each, Excluded):
                    found[one.layout, each.device.name] = _excluded(each, quant, one.layout)
                else:
                    bounds.append(Timed(each, each.able, each.bounds(self.load)))
                    found |= self._judged(quant, bounds[-1])
        used: set[Key] = set()
        if self.pairing and not large:
            pairs, used = self._paired(quant, settings[0], bounds, self.pairing)
            found |= pairs
        return _Precision(quant=quant, settings=settings, candidates=found, bounds=bounds, paired=used)

    def _judged(self, quant: str, timed: Timed, *, writing: bool = False) -> dict[Any, Candidate]:
        """Each device as copies that prefill and decode, or that only decode."""
        placement, places, times = timed
        load, needed = self.load, placement.needed.whole
        if writing:
            load, needed, times = load.writing, placement.needed.writing, times.writing
        together = max(1, _MAX_JUDGED * placement.layout.devices // (load.max_devices * len(load.limits)))
        found: dict[Any, Candidate] = {}
        for start in range(0, len(places), together):
            some = places[start : start + together]
            devices = [placement.devices[place] for place in some]
            each = judged(devices, (quant, placement.layout), times.only(some), needed, load)
            found.update(zip(map(placement.key, some), each, strict=True))
        return found

    def _paired(
        self, quant: str, one: Setting, several: Sequence[Timed], pairing: Pairing
    ) -> tuple[dict[Any, Candidate], set[Key]]:
        """Pairs of prefill copies and decode copies; and the settings of those that keep to the goals."""
        decoders: dict[Any, Candidate] = {}
        prefillers: list[Reader] = []
        for placement, places, times in several:
            decoding = [place for place in places if pairing.writes(placement.devices[place])]
            decoders |= self._judged(quant, Timed(placement, decoding, times), writing=True)
            prefilling = [place for place in places if pairing.reads(placement.devices[place])]
            prefillers += Reader.each(placement, prefilling, times)
        moved = float(moved_bytes(one, float(self.load.prompt)))
        return paired(prefillers, list(decoders.values()), pairing, moved=moved, load=self.load)

    def closest(self, found: Sequence[Candidate]) -> list[Candidate]:
        """For each device or pair that keeps to the goals in no setting, the candidate that comes closest; nearest
        first.

        A candidate without a reason is worked out if none comes closer: the others are then at least as far off.
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
            wanted = [(quant, [self.settings[quant, layout]], own) for (quant, layout), own in further.items()]
            for (quant, layout), each in zip(further, self._searched(wanted, large=True), strict=True):
                for one in each.candidates.values():
                    missed[one.kind][quant, layout] = one


def _excluded(one: Excluded, quant: str, layout: Layout) -> Candidate:
    reason = one.reason and f"{one.factor}: {one.reason}"
    return Candidate(
        hardware=one.device, quant=quant, layout=layout, factor=one.factor, excess=one.excess, reason=reason
    )


def _missed(one: Candidate) -> tuple[bool, bool, float]:
    """Distance from the goals: candidates that keep to them at the bound come closer than those that do not, and those
    with enough memory closer than others.
    """
    return one.least is None, not one.max_rate > 0, one.excess
