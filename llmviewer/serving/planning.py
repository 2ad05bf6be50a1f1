"""plan(): which devices, how many, laid out how, in which precision and with which batch, serve a load for least."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache, partial
from math import inf, isfinite, isnan
from pathlib import Path
from typing import Any, Final

import numpy as np

from .. import __version__, given
from ..choice import unsold
from ..costs import By
from ..errors import InputError
from ..expectation.engines import find_engine
from ..expectation.kernels import Kernels
from ..expectation.profile import Profile
from ..facts import finite
from ..fleet import Known
from ..graph import Graph
from ..hardware import Hardware
from ..hardware_files import hardware_names, loaded
from ..layout import Layout, parse_layout
from ..model import Model
from ..operators.linear import ExpertsLinear
from ..setting import Setting, whole
from ..transforms.quantize import PUBLISHED, parse_quantization
from .candidates import POLICY, PRICES, Candidate, Load, StepTimes, judged
from .outcome import Goals
from .passes import LaidOut, Left, laid_out
from .service import check_bound

QUANTS: Final = (PUBLISHED, "fp8", "W8A8", "W4A16g128", "W4A8g128", "KV8")
LAYOUTS: Final = ("", "tp=2", "tp=4", "tp=8", "tp=16", "pp=2", "tp=2 pp=2", "tp=4 pp=2")
EXPERTS_ON: Final = (2, 4, 8, 16)  # devices that experts are shared out among, where they are as many on each
BATCHES: Final = tuple(sorted({*range(1, 33), *(round(32 * 2 ** (i / 6)) for i in range(1, 33))}))  # 64, to 1290
SCHEMA_VERSION: Final = 1  # of to_dict()
_MOST_DEVICES: Final = 100_000
_AT_ONCE: Final = 1 << 22  # numbers of copies and batches, of all devices, that are judged together
_NUMBERS: Final = (
    "copies", "limit", "batch", "utilization", "ttft_s", "tpot_s", "rate_within", "max_rate", "memory", "usd_per_h",
    "watts", "unmodelled", "excess",
)  # fmt: skip
_BOUND: Final = ("copies", "ttft_s", "tpot_s", "rate_within", "max_rate", "usd_per_h", "watts")


@dataclass(frozen=True, kw_only=True)
class ServicePlan:
    """The answer. Every candidate has the fewest copies that keep to the goals, or that come closest.

    kernels     whose times are expected, "" where that is of which most was measured on each; None where all is of
                lower bounds
    able        those that keep to them, cheapest first, of equal prices the precision published, then the one with the
                most bits; those without a price last
    unmeasured  those that do at the bound, where nothing is expected of their kernels
    least       the cheapest where steps take as long as their lower bounds: no kernels need less
    rejected    for each device that is in none of them, the candidate that comes closest; nearest first
    considered  how many devices were; `priced` of them have a price, and `left_out` are those that nobody named and
                nobody can buy
    asked_by    what was asked to be low; None where that was left to what is known
    tried       how many settings of devices, layouts, precisions, copies and batches there were
    common      arguments of plan() that simulate() has too
    """

    model: Model = field(repr=False)
    rate: float
    prompt: int
    gen: int
    goals: Goals
    by: By
    asked_by: By | None
    years: float | None
    max_devices: int
    considered: int
    priced: int
    left_out: tuple[str, ...]
    quants: tuple[str, ...]
    kernels: str | None
    able: tuple[Candidate, ...] = field(repr=False)
    unmeasured: tuple[Candidate, ...] = field(repr=False)
    least: Candidate | None = field(repr=False)
    rejected: tuple[Candidate, ...] = field(repr=False)
    tried: int
    common: Mapping[str, Any] = field(repr=False)

    @property
    def unit(self) -> str:
        """Of what is to be low."""
        return PRICES[self.by]

    @property
    def best(self) -> Candidate | None:
        """The cheapest; None where none keeps to the goals, or none of them has a price."""
        return next((one for one in self.able if not isnan(one.price(self.by))), None)

    @property
    def each(self) -> tuple[Candidate, ...]:
        """The cheapest of every device that keeps to the goals."""
        return _each(self.able)

    @property
    def unpriced(self) -> tuple[str, ...]:
        """Devices that keep to the goals and have no price."""
        return tuple(one.hardware.name for one in self.each if isnan(one.price(self.by)))

    @property
    def front(self) -> tuple[Candidate, ...]:
        """Those that no other beats in all of cost, power, devices, both times and the most that it serves so well."""
        if not self.able:
            return ()
        least = np.array([
            [_worst(c.usd_per_h), _worst(c.watts), c.devices, c.ttft_s, c.tpot_s, -c.rate_within] for c in self.able
        ])  # fmt: skip
        kept = []
        for place, own in enumerate(least):
            beaten = np.all(least <= own, axis=1) & np.any(least < own, axis=1)
            same = np.all(least[:place] == own, axis=1)
            if not np.any(beaten) and not np.any(same):
                kept.append(self.able[place])
        return tuple(kept)

    def simulation(self, one: Candidate) -> dict[str, Any]:
        """The arguments of simulate() for one copy of a candidate, with its part of the requests."""
        asked: dict[str, Any] = {
            "rate": self.rate / one.copies, "prompt_lengths": str(self.prompt), "gen_lengths": str(self.gen),
            "policy": POLICY, "max_batch": int(one.layout.local(one.limit)),
            "quant": None if one.quant == PUBLISHED else one.quant,
            "layout": str(one.layout) if one.layout.devices > 1 else None, "ttft": self.goals.ttft_s,
            "tpot": self.goals.tpot_s, **self.common,
        }  # fmt: skip
        given = {name: value for name, value in asked.items() if value not in (None, "", (), inf)}
        return {"hardware": one.hardware.name, **given}

    def rows(self) -> Iterator[dict[str, Any]]:
        """One for each candidate that keeps to the goals, cheapest first, then those that do at the bound alone, and
        those that do not.
        """
        front = {id(one) for one in self.front}
        for rank, one in enumerate((*self.able, *self.unmeasured, *self.rejected), 1):
            least = one.least or one
            yield finite({
                "rank": rank if rank <= len(self.able) else None, "pareto": id(one) in front,
                "expected": one.least is not None, "hardware": one.hardware.name,
                "quant": one.quant, "layout": str(one.layout), "devices": one.devices or None,
                **{name: getattr(one, name) for name in _NUMBERS},
                **{f"bound_{name}": getattr(least, name) for name in _BOUND},
                "factor": one.factor or None, "reason": one.reason or None,
            })  # fmt: skip

    @property
    def inputs(self) -> dict[str, Any]:
        """What was asked, as the JSON document has it."""
        return finite({
            "rate": self.rate, "prompt": self.prompt, "gen": self.gen, "by": str(self.by), "years": self.years,
            "max_devices": self.max_devices, "quants": list(self.quants), "kernels": self.kernels,
            **asdict(self.goals),
        })  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """The JSON document; docs/serving.md has its keys."""
        rows = list(self.rows())
        able, known = len(self.able), len(self.able) + len(self.unmeasured)
        best = next((row for row, one in zip(rows, self.able, strict=False) if one is self.best), None)
        return finite({
            "schema_version": SCHEMA_VERSION,
            "llmviewer_version": __version__,
            "model": self.model.name,
            "inputs": self.inputs,
            "tried": self.tried, "considered": self.considered, "priced": self.priced, "left_out": list(self.left_out),
            "best": best,
            "least": None if self.least is None else {
                "hardware": self.least.hardware.name, "quant": self.least.quant, "layout": str(self.least.layout),
                "devices": self.least.devices, **{name: getattr(self.least, name) for name in _BOUND},
            },
            "candidates": rows[:able],
            "unmeasured": rows[able:known],
            "rejected": rows[known:],
        })  # fmt: skip


def plan(
    model: str | Model,
    *,
    rate: float,
    ttft: float = inf,
    tpot: float = inf,
    prompt: int = 1024,
    gen: int = 256,
    hardware: Sequence[str | Hardware] | None = None,
    max_devices: int = 16,
    layouts: Sequence[str] | None = None,
    quants: Sequence[str] = QUANTS,
    batches: Sequence[int] = BATCHES,
    by: str | None = None,
    years: float | None = None,
    library: str = "",
    engine: str = "",
    profiles: Sequence[str | Path | Profile] = (),
    hardware_set: Sequence[str] = (),
    bound: bool = False,
    progress: Callable[[int, int], object] = lambda done, settings: None,
) -> ServicePlan:
    """The cheapest way to serve `rate` requests a second within `ttft` and `tpot` seconds on average.

    prompt, gen  tokens of each request, which come at random (Poisson)
    hardware     those that can be bought of those that ship, and those of the user's folder, if None
    layouts      of one copy of the model, as "tp=4 pp=2"; "" is one device; if None those of usual_layouts()
    batches      limits of sequences at a time among which one is chosen, and 1
    by           "cost", "energy" (watts at TDP) or "devices"; the first of these that is known, if None
    years        over which a purchase is spread where a device has no cloud price
    library      whose kernels are expected; of which most was measured on each device if ""
    engine       that launches them; no gaps between them if ""
    profiles     files that `llmviewer calibrate` wrote, before those that ship
    hardware_set what-ifs on every device, as those of analyze()
    bound        whether lower bounds are to keep to the goals, and nothing is expected
    progress     is told of layouts and precisions done, and of how many there are

    Prompts are read before others go on (prefill-first), in the closed form of docs/serving.md.

    Raises InputError where something given cannot be used.
    """
    given.number(rate=rate, ttft=ttft, tpot=tpot)
    given.positive(years=years)
    given.one(library=library, engine=engine)
    quants, layouts = given.several("quants", quants), layouts if layouts is None else given.several("layouts", layouts)
    wanted, goals = None if by is None else given.among("by", by, PRICES), Goals(ttft_s=ttft, tpot_s=tpot)
    prompt, gen, max_devices = whole("prompt", prompt), whole("gen", gen), whole("max_devices", max_devices)
    if not 0 < rate < inf:
        raise InputError(f"rate must be a positive number of requests a second; got {rate:g}")
    limits = np.array(sorted({1, *(whole("batches", batch) for batch in given.counts(batches))}), dtype=np.float64)
    named = _loaded(hardware_names() if hardware is None else hardware, hardware_set)
    left = unsold(named.values()) if hardware is None else ()
    devices = [device for name, device in named.items() if name not in left]
    if limits[-1] < 2:
        raise InputError("batches must have a number above 1, for sequences that decode together; got none")
    for name, values in (("hardware", devices), ("layouts", layouts), ("quants", quants)):
        if values is not None and not len(values):
            raise InputError(f"{name}: nothing to plan with")
    check_bound(bound, library, engine, profiles)
    made = find_engine(engine, library) if engine else None
    eager = made.attention if made else None
    _check(max_devices, layouts or ())
    base = Setting.of(model, devices[0], attention=eager, library=library, profiles=profiles)
    if not base.model.generates or base.model.encodes:
        raise InputError(
            f"{base.model.name} is not served token by token; plan is of models that continue their prompts"
        )
    laid = [one for one in map(parse_layout, layouts or usual_layouts(base.graph)) if one.devices <= max_devices]
    load = Load(rate=rate, prompt=prompt, gen=gen, goals=goals, limits=limits, max_devices=max_devices, years=years)

    @cache
    def kernels(device: str) -> Kernels:
        return Kernels(named[device], made.library if made else library, base.profiles, engine=made)

    search, tried = _Search(load, None if bound else kernels), 0
    found: list[Candidate] = []
    settings = [(quant, layout) for quant in dict.fromkeys(quants) for layout in dict.fromkeys(laid)]
    ones: dict[tuple[str, Layout], Setting] = {}
    for done, (quant, layout) in enumerate(settings, 1):
        ones[quant, layout] = replace(base if quant == PUBLISHED else base.having(quant=quant), layout=layout)
        found += search.candidates(ones[quant, layout], quant, devices)
        tried += len(devices) * (max_devices // layout.devices) * len(limits)
        progress(done, len(settings))
    for layout in laid if layouts else ():
        _check_divides([one for one in found if one.layout == layout])
    keeping = [one for one in found if not one.factor]
    chosen = wanted or next((b for b in PRICES if any(not isnan(one.price(b)) for one in keeping)), By.COST)

    order = partial(_order, chosen)
    keeping.sort(key=order)
    able = tuple(one for one in keeping if one.least or bound)
    least = min((one.least or one for one in found if one.least or not one.factor), key=order, default=None)
    served = {one.hardware.name for one in keeping}
    missed: dict[str, list[Candidate]] = {}
    for candidate in found:
        if candidate.hardware.name not in served:
            missed.setdefault(candidate.hardware.name, []).append(candidate)
    closest = [search.closest(own, ones) for own in missed.values()]
    common = {
        "model": model, "library": library, "engine": engine, "profiles": tuple(profiles), "bound": bound or None,
        "hardware_set": tuple(hardware_set),
    }  # fmt: skip
    return ServicePlan(
        common=common, model=base.model, rate=rate, prompt=prompt, gen=gen, goals=goals, by=chosen, asked_by=wanted,
        years=years, considered=len(devices), priced=sum(By.COST.known(device, years) for device in devices),
        left_out=left, max_devices=max_devices, quants=tuple(quants), able=able,
        kernels=None if bound else made.title if made else library,
        unmeasured=_each([one for one in keeping if not (one.least or bound)]), least=least,
        rejected=tuple(sorted(closest, key=_missed)), tried=tried,
    )  # fmt: skip


def _loaded(hardware: Sequence[str | Hardware], changes: Sequence[str]) -> dict[str, Hardware]:
    """By name, each once."""
    given.listed(hardware_set=changes)
    devices = (loaded(device, changes) for device in given.several("hardware", hardware))
    return {device.name: device for device in devices}


def usual_layouts(graph: Graph) -> tuple[str, ...]:
    """Those that are tried where none are given: with experts, also on so many devices as divide them."""
    linears = (op for block in graph.blocks for op in block.operators if isinstance(op, ExpertsLinear))
    experts = {op.weight.shape[0] for op in linears}
    parts = [n for n in EXPERTS_ON if experts and not any(count % n for count in experts)]
    return *LAYOUTS, *(f"{name}={n} ep={n}" for name in ("tp", "dp") for n in parts)


def _check(max_devices: int, layouts: Sequence[str]) -> None:
    """Raises InputError where all layouts take more devices."""
    if max_devices > _MOST_DEVICES:
        raise InputError(f"max_devices must be at most {_MOST_DEVICES}; got {max_devices}")
    fewest = min((parse_layout(layout).devices for layout in layouts), default=1)
    if fewest > max_devices:
        raise InputError(f"max_devices must be at least {fewest}, as many as the layouts given take; got {max_devices}")


def _check_divides(found: Sequence[Candidate]) -> None:
    """Raises InputError where the model does not lie in their layout in any precision."""
    able = [one for one in found if one.factor != "link"]
    if able and all(one.factor == "layout" for one in able):
        raise InputError(able[0].reason.removeprefix("layout: "))


def _each(candidates: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """The first of every device."""
    found: dict[str, Candidate] = {}
    for one in candidates:
        found.setdefault(one.hardware.name, one)
    return tuple(found.values())


def _missed(one: Candidate) -> tuple[bool, bool, float]:
    """How far off the goals: those that keep to them at the bound come closer than those that do not, and those that
    there is memory for closer than others.
    """
    return one.least is None, not one.max_rate > 0, one.excess


@dataclass(frozen=True)
class _Search:
    """What every setting is tried on. `kernels` are those of a device by its name; None where all is of bounds."""

    load: Load
    kernels: Callable[[str], Kernels] | None
    known: Known = field(default_factory=Known)

    def candidates(
        self, one: Setting, quant: str, devices: Sequence[Hardware], *, large: bool = False
    ) -> Iterator[Candidate]:
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

    def closest(self, found: list[Candidate], ones: Mapping[tuple[str, Layout], Setting]) -> Candidate:
        """That of one device which comes closest to the goals, the first of several; others are as far off at least.

        ones  settings by their precisions and layouts
        """
        while True:
            place, one = min(enumerate(found), key=lambda pair: _missed(pair[1]))
            if one.reason:
                return one
            setting = ones[one.quant, one.layout]
            (found[place],) = self.candidates(setting, one.quant, [one.hardware], large=True)


def _left(one: Left, quant: str, layout: Layout) -> Candidate:
    reason = one.reason and f"{one.factor}: {one.reason}"
    return Candidate(
        hardware=one.device, quant=quant, layout=layout, factor=one.factor, excess=one.excess, reason=reason
    )


def _order(by: By, one: Candidate) -> tuple[float, int, tuple[float, ...], float]:
    return _worst(one.price(by)), one.devices, _bits_less(one.quant), one.tpot_s


@cache
def _bits_less(quant: str) -> tuple[float, ...]:
    """Bits of weights, operands and cache, below 0; the fewer there are, the more answers may suffer."""
    scheme = parse_quantization(quant).scheme
    return tuple(-(fmt.bits if fmt else inf) for fmt in (scheme.weight, scheme.activation, scheme.kv_cache))


def _worst(value: float) -> float:
    return inf if isnan(value) else value
