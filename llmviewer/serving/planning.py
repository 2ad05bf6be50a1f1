"""plan(): which devices, how many, laid out how, in which precision and with which batch, serve a load for least."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from enum import StrEnum
from functools import reduce
from math import inf, isfinite, isnan, nan
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from .. import __version__
from ..comparison import PUBLISHED, hourly
from ..errors import InputError
from ..fleet import Fleet, Known, fleets
from ..graph import Graph
from ..hardware import Hardware
from ..hardware_files import hardware_names, load_hardware
from ..layout import Layout, Network, parse_layout
from ..memory import Footprint
from ..model import Model
from ..setting import Attention, Setting, whole
from ..transforms.flash_attention import flash_attention
from ..units import seconds, si
from ..workload import Workload
from .service import Goals

Grid = npt.NDArray[np.float64]  # [device, copies] or [device, copies, batch]

QUANTS: Final = (PUBLISHED, "fp8", "W8A8", "W4A16g128", "W4A8g128", "KV8")
LAYOUTS: Final = ("", "tp=2", "tp=4", "tp=8", "tp=16", "pp=2", "tp=2 pp=2", "tp=4 pp=2")
BATCHES: Final = tuple(sorted({*range(1, 33), *(round(32 * 2 ** (i / 6)) for i in range(1, 33))}))  # 64, to 1290
SCHEMA_VERSION: Final = 1  # of to_dict()
_TAIL: Final = 3.09  # deviations above the mean that 999 of 1000 moments stay below, where sequences vary normally
_LEAST: Final = 0.05  # of how steeply it falls: no batch is twenty times as wide


class By(StrEnum):
    """What a plan is to be low in."""

    COST = "cost"
    ENERGY = "energy"
    DEVICES = "devices"

    @property
    def unit(self) -> str:
        """Of what is to be low."""
        return {"cost": "USD/h", "energy": "W at TDP", "devices": "devices"}[self]


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """Copies of a model on devices of one kind, at the rate asked for shared out among them. Times are lower bounds.

    quant        the precision as it was asked for, PUBLISHED where none was
    copies       of the model, each laid out alike
    limit        sequences at a time for which each copy has room; `batch` is how many there are on average
    utilization  of the time of each copy that prompts are read in
    max_rate     requests that all copies serve at most [1/s]
    usd_per_h    of all devices; nan where a file has no price. `watts` likewise, at TDP
    memory       needed over there is, at `limit`
    factor       what rules it out: "", "data type", "layout", "memory", "rate", "batch", "time to first token" or
                 "time per token"
    excess       over what is allowed or there; inf where that is no matter of degree
    reason       both, in words
    """

    hardware: Hardware
    quant: str
    layout: Layout
    copies: int = 0
    limit: int = 0
    batch: float = nan
    utilization: float = nan
    ttft_s: float = nan
    tpot_s: float = nan
    max_rate: float = nan
    memory: float = nan
    usd_per_h: float = nan
    watts: float = nan
    factor: str = ""
    excess: float = 1.0
    reason: str = ""

    @property
    def devices(self) -> int:
        return self.copies * self.layout.devices

    def price(self, by: By) -> float:
        """What is to be low; nan where unknown."""
        return {By.COST: self.usd_per_h, By.ENERGY: self.watts, By.DEVICES: float(self.devices)}[by]


@dataclass(frozen=True, kw_only=True)
class ServicePlan:
    """The answer. Every candidate has the fewest copies that keep to the goals, or that come closest.

    able      those that keep to them, cheapest first, those without a price last
    rejected  for each device that is in none of them, the candidate that comes closest
    tried     how many settings of devices, layouts, precisions, copies and batches there were
    """

    model: Model
    rate: float
    prompt: int
    gen: int
    goals: Goals
    by: By
    years: float | None
    max_devices: int
    quants: tuple[str, ...]
    able: tuple[Candidate, ...]
    rejected: tuple[Candidate, ...]
    tried: int

    @property
    def best(self) -> Candidate | None:
        """The cheapest; None where none keeps to the goals, or none of them has a price."""
        return next((one for one in self.able if not isnan(one.price(self.by))), None)

    @property
    def each(self) -> tuple[Candidate, ...]:
        """The cheapest of every device that keeps to the goals."""
        found: dict[str, Candidate] = {}
        for one in self.able:
            found.setdefault(one.hardware.name, one)
        return tuple(found.values())

    @property
    def unpriced(self) -> tuple[str, ...]:
        """Devices that keep to the goals and have no price."""
        return tuple(one.hardware.name for one in self.each if isnan(one.price(self.by)))

    @property
    def front(self) -> tuple[Candidate, ...]:
        """Those that no other beats in all of cost, power, devices, both times and the most that it serves."""
        if not self.able:
            return ()
        least = np.array([
            [_worst(c.usd_per_h), _worst(c.watts), c.devices, c.ttft_s, c.tpot_s, -c.max_rate] for c in self.able
        ])  # fmt: skip
        kept = []
        for place, own in enumerate(least):
            beaten = np.all(least <= own, axis=1) & np.any(least < own, axis=1)
            same = np.all(least[:place] == own, axis=1)
            if not np.any(beaten) and not np.any(same):
                kept.append(self.able[place])
        return tuple(kept)

    def rows(self) -> Iterator[dict[str, Any]]:
        """One for each candidate that keeps to the goals, cheapest first, then those that do not."""
        front = {id(one) for one in self.front}
        for rank, one in enumerate((*self.able, *self.rejected), 1):
            yield {
                "rank": rank if not one.factor else None, "pareto": id(one) in front, "hardware": one.hardware.name,
                "quant": one.quant, "layout": str(one.layout), "devices": one.devices or None,
                **{
                    f.name: _plain(getattr(one, f.name))
                    for f in fields(Candidate)
                    if f.name not in ("hardware", "quant", "layout", "factor", "reason")
                },
                "factor": one.factor or None, "reason": one.reason or None,
            }  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """The JSON document; docs/serving.md has its keys."""
        rows = list(self.rows())
        able = len(self.able)
        best = next((row for row, one in zip(rows, self.able, strict=False) if one is self.best), None)
        return {
            "schema_version": SCHEMA_VERSION,
            "llmviewer_version": __version__,
            "model": self.model.name,
            "inputs": {
                "rate": self.rate, "prompt": self.prompt, "gen": self.gen, "by": str(self.by), "years": self.years,
                "max_devices": self.max_devices, "quants": list(self.quants),
                **{key: value if isfinite(value) else None for key, value in asdict(self.goals).items()},
            },
            "tried": self.tried,
            "best": best,
            "candidates": rows[:able],
            "rejected": rows[able:],
        }  # fmt: skip


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
    layouts: Sequence[str] = LAYOUTS,
    quants: Sequence[str] = QUANTS,
    batches: Sequence[int] = BATCHES,
    by: str | None = None,
    years: float | None = None,
    progress: Callable[[int, int], object] = lambda done, settings: None,
) -> ServicePlan:
    """The cheapest way to serve `rate` requests a second within `ttft` and `tpot` seconds on average.

    prompt, gen  tokens of each request, which come at random (Poisson)
    hardware     those that ship and those of the user's folder, if None
    layouts      of one copy of the model, as "tp=4 pp=2"; "" is one device
    batches      limits of sequences at a time among which one is chosen
    by           "cost", "energy" (watts at TDP) or "devices"; the first of these that is known, if None
    years        over which a purchase is spread where a device has no cloud price
    progress     is told of layouts and precisions done, and of how many there are

    Prompts are read before others go on (prefill-first), in the closed form of docs/serving.md.

    Raises InputError where something given cannot be used.
    """
    wanted = _by(by)
    goals = Goals(ttft_s=ttft, tpot_s=tpot)
    prompt, gen, max_devices = whole("prompt", prompt), whole("gen", gen), whole("max_devices", max_devices)
    if not 0 < rate < inf:
        raise InputError(f"rate must be a positive number of requests a second; got {rate:g}")
    if years is not None and not 0 < years < inf:
        raise InputError(f"years must be a positive number; got {years:g}")
    limits = np.array(sorted({whole("batches", batch) for batch in batches}), dtype=np.float64)
    names = hardware_names() if hardware is None else hardware
    devices = [load_hardware(device) if isinstance(device, str) else device for device in names]
    laid = [layout for layout in map(parse_layout, layouts) if layout.devices <= max_devices]
    if len(limits) and limits[-1] < 2:
        raise InputError(
            f"batches must have a number above 1, for sequences that decode together; got {limits[-1]:.0f}"
        )
    for name, given in (("hardware", devices), ("layouts", laid), ("quants", quants), ("batches", batches)):
        if not len(given):
            raise InputError(f"{name}: nothing to plan with")
    base = Setting.of(model, devices[0])
    if not base.model.generates or base.model.encodes:
        raise InputError(
            f"{base.model.name} is not served token by token; plan is of models that continue their prompts"
        )
    load = _Load(rate=rate, prompt=prompt, gen=gen, goals=goals, limits=limits, max_devices=max_devices, years=years)
    known, tried = Known(), 0
    found: list[Candidate] = []
    settings = [(quant, layout) for quant in dict.fromkeys(quants) for layout in dict.fromkeys(laid)]
    for done, (quant, layout) in enumerate(settings, 1):
        one = replace(base if quant == PUBLISHED else base.having(quant=quant), layout=layout)
        found += _candidates(one, quant, devices, load, known)
        tried += len(devices) * (max_devices // layout.devices) * len(limits)
        progress(done, len(settings))
    able = [one for one in found if not one.factor]
    chosen = wanted or next((b for b in By if any(not isnan(one.price(b)) for one in able)), By.COST)
    able.sort(key=lambda one: (_worst(one.price(chosen)), one.devices, one.tpot_s))
    served = {one.hardware.name for one in able}
    closest: dict[str, Candidate] = {}
    for candidate in found:
        name = candidate.hardware.name
        if name not in served and (name not in closest or candidate.excess < closest[name].excess):
            closest[name] = candidate
    return ServicePlan(
        model=base.model, rate=rate, prompt=prompt, gen=gen, goals=goals, by=chosen, years=years,
        max_devices=max_devices, quants=tuple(quants), able=tuple(able),
        rejected=tuple(sorted(closest.values(), key=lambda one: (one.factor, one.excess))), tried=tried,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class _Load:
    """What is asked of every setting."""

    rate: float
    prompt: int
    gen: int
    goals: Goals
    limits: Grid
    max_devices: int
    years: float | None

    @property
    def middle(self) -> float:
        """What a sequence that decodes attends to on average. [tokens]"""
        return self.prompt + self.gen / 2


def _candidates(
    one: Setting, quant: str, devices: Sequence[Hardware], load: _Load, known: Known
) -> Iterator[Candidate]:
    """A model in a precision and a layout on every device: the fewest copies that do, or those that come closest."""
    eager = replace(one, attention=Attention.EAGER)
    alike: dict[
        object, list[tuple[Hardware, Hardware]]
    ] = {}  # devices whose links make the same graph, with them linked
    for device in devices:
        try:
            network = Network.of(device, one.layout)
            linked = network.linked()
        except InputError as error:
            yield _refused(device, quant, one.layout, "layout", str(error))
            continue
        alike.setdefault(_signature(network), []).append((device, linked))
    footprint: Footprint | None = None  # the same on all, as links hold nothing
    for members in alike.values():
        own = [device for device, _ in members]
        lowered = replace(eager, hardware=own[0])
        try:
            graphs = (lowered.graph, lowered.decode_graph)
        except InputError as error:
            yield from (_refused(device, quant, one.layout, "layout", str(error)) for device in own)
            continue
        linked_only = [linked for _, linked in members]
        prefills, refused = fleets(_flash(graphs[0]), linked_only, known)
        steps = prefills if graphs[1] is graphs[0] else fleets(_flash(graphs[1]), linked_only, known)[0]
        for place, reason in refused.items():
            yield _refused(own[place], quant, one.layout, "data type", reason)
        if len(refused) == len(own):
            continue
        tile = flash_attention(own[0].on_chip_bytes)
        footprint = footprint or Footprint.of(tile(graphs[0]), tile(graphs[1]), one.layout)
        times = _Times.of(prefills, steps, one.layout, load, len(own))
        needed = _needed(footprint, one.layout, load)
        able = [place for place in range(len(own)) if place not in refused]
        asked = (quant, one.layout)
        yield from _judged([own[p] for p in able], asked, times.only(able), needed, load)


def _flash(graph: Graph) -> Callable[[float], Graph]:
    return lambda size: flash_attention(size)(graph)


def _signature(network: Network) -> object:
    """What the graph of a device depends on beside its memory on chip."""
    if network.layout.devices == 1:
        return None
    own = {f.key: str(f.value) for f in network.hardware.facts if f.key in ("scale_up.topology", "scale_up.in_network")}
    mesh = own.get("scale_up.topology") == "mesh"  # whose links are as many as its devices
    return network.inside, network.domain if mesh else min(network.domain, network.layout.devices), tuple(own.items())


@dataclass(frozen=True, kw_only=True)
class _Times:
    """A prompt's way through a copy, when another can follow, [device]; a decode step, [device, batch]. [s]"""

    through: Grid
    every: Grid
    step: Grid

    @classmethod
    def of(cls, prefills: Sequence[Fleet], steps: Sequence[Fleet], layout: Layout, load: _Load, count: int) -> _Times:
        through, every = np.full(count, nan), np.full(count, nan)
        step = np.full((count, len(load.limits)), nan)
        for fleet in prefills:
            values = fleet.values(Workload.prefill(batch=np.array([[1.0]]), prompt=float(load.prompt)))
            own = np.broadcast_to(fleet.seconds(values), (len(fleet.rows), 1))[:, 0]
            through[fleet.rows] = own
            slowest = _slowest(fleet, values, len(fleet.rows), 1)[:, 0] if layout.pp > 1 else own
            every[fleet.rows] = slowest / layout.dp
        for fleet in steps:
            batch = np.asarray(layout.share(load.limits))[None, :]
            values = fleet.values(Workload.decode(batch=batch, kv_len=load.middle))
            shape = (len(fleet.rows), len(load.limits))
            own_step = np.broadcast_to(fleet.seconds(values), shape)
            if layout.pp > 1:
                turns = np.broadcast_to(layout.parts(load.limits), shape)
                own_step = np.maximum(own_step, turns * _slowest(fleet, values, *shape))
            step[fleet.rows] = own_step
        return cls(through=through, every=every, step=step)

    def only(self, rows: Sequence[int]) -> _Times:
        return _Times(through=self.through[rows], every=self.every[rows], step=self.step[rows])


def _slowest(fleet: Fleet, values: Any, devices: int, points: int) -> Grid:
    """The stage of a pipeline that takes longest. [s]"""
    stages: dict[int, list[int]] = {}
    for place, row in enumerate(fleet.operators):
        stages.setdefault(row.block.stage, []).append(place)
    each = (
        Fleet(
            tuple(fleet.operators[p] for p in places), devices=fleet.devices, keys=tuple(fleet.keys[p] for p in places)
        )
        for places in stages.values()
    )
    times = (np.broadcast_to(stage.seconds(values), (devices, points)) for stage in each)
    return reduce(np.maximum, times)


def _needed(footprint: Footprint, layout: Layout, load: _Load) -> Grid:
    """Memory of a device for each limit of the batch, whole answers cached, while one prompt is read. [B], [batch]"""
    gen, prompt = float(load.gen), float(load.prompt)
    weights, cache, _ = footprint.parts(batch=load.limits, prompt=prompt, gen=gen)
    reading = footprint.parts(batch=float(layout.dp * layout.pp), prompt=prompt, gen=gen)[2]
    writing = footprint.parts(batch=load.limits, prompt=1.0, gen=prompt + gen - 1)[2]
    return np.broadcast_to(weights + cache + np.maximum(reading, writing), load.limits.shape)


def _judged(
    devices: Sequence[Hardware], asked: tuple[str, Layout], times: _Times, needed: Grid, load: _Load
) -> Iterator[Candidate]:
    """The closed form of the steady state for every device and number of copies, and what it is to be held to."""
    quant, layout = asked
    copies = np.arange(1.0, load.max_devices // layout.devices + 1)
    rate = load.rate / copies[None, :]
    through, every = times.through[:, None], times.every[:, None]
    wanted = load.gen - 1
    limits = load.limits
    busy = rate * every
    step = times.step[:, None, :]
    with np.errstate(divide="ignore", invalid="ignore"):
        tpot = np.where(busy[..., None] < 1, step / (1 - busy[..., None]), inf)  # by sequences that decode together
        missing = rate[..., None] * wanted * tpot - (limits - 1)  # a sequence has one less than them beside it
        at, stable = _crossing(missing)
        batch = _at(limits - 1, at)
        step_s, tpot_s = _at(np.broadcast_to(step, missing.shape), at), _at(tpot, at)
        decoding = (1 - busy) * (1 - np.exp(-batch))
        residual = rate * every * every / 2 + decoding * step_s / 2
        ttft_s = np.where(stable, through + residual / (1 - busy), inf)
        tpot_s = np.where(stable, tpot_s, inf) if wanted else np.zeros(stable.shape)
        able = 1 / (every[..., None] + wanted * step / (limits - (wanted > 0)))  # by the batch, each beside the others
        # Little's law gives the mean, where `missing` is 0. The steeper it falls there the less they vary around it:
        # with Poisson's variance, the mean, where decode steps are as long for any batch.
        steepness = np.where(stable & (at > 0), np.maximum(_slope(missing, limits, at), _LEAST), 1.0)
        room = np.where(stable, 1 + batch + _TAIL * np.sqrt(batch / steepness), 1.0)
    place = np.minimum(np.searchsorted(limits, room), len(limits) - 1)
    capacity = np.array([[device.capacity] for device in devices])
    most = np.max(able, axis=2)
    fitting = np.max(np.where(needed <= capacity, able[:, 0, :], 0.0), axis=1)
    memory = needed[place] / capacity
    over = {
        "memory": np.where(stable, memory, needed[0] / capacity),
        "rate": np.where(stable, 1.0, rate / most),
        "batch": room / limits[-1],
        "time to first token": np.where(stable, ttft_s, 0.0) / load.goals.ttft_s,
        "time per token": np.where(stable, tpot_s, 0.0) / load.goals.tpot_s,
    }
    worst = reduce(np.maximum, over.values())
    fine = stable & (worst <= 1)
    first = np.where(np.any(fine, axis=1), np.argmax(fine, axis=1), np.argmin(worst, axis=1))
    for row, device in enumerate(devices):
        at_row = row, int(first[row])
        count = int(copies[at_row[1]])
        factor = "" if fine[at_row] else max(over, key=lambda name: over[name][at_row])
        numbers = {name: float(over[name][at_row]) for name in over}
        one = Candidate(
            hardware=device, quant=quant, layout=layout, copies=count, limit=int(limits[place[at_row]]),
            batch=float(batch[at_row]), utilization=float(busy[at_row]), ttft_s=float(ttft_s[at_row]),
            tpot_s=float(tpot_s[at_row]), max_rate=float(fitting[row] * count), memory=numbers["memory"],
            usd_per_h=count * layout.devices * hourly(device, load.years),
            watts=count * layout.devices * device.numbers.get("power.tdp", nan),
            factor=factor, excess=numbers[factor] if factor else 1.0,
        )  # fmt: skip
        yield replace(one, reason=_reason(one, load)) if factor else one


def _crossing(missing: Grid) -> tuple[Grid, npt.NDArray[np.bool_]]:
    """Where a row of the last axis falls to 0, as a place with its fraction, and whether it does."""
    place = np.argmax(missing <= 0, axis=-1)
    stable = np.take_along_axis(missing, place[..., None], axis=-1)[..., 0] <= 0
    before = np.maximum(place - 1, 0)
    left, right = (np.take_along_axis(missing, p[..., None], axis=-1)[..., 0] for p in (before, place))
    fraction = np.where(place > 0, left / np.where(left == right, 1.0, left - right), 0.0)
    return np.where(stable, before + fraction, 0.0), stable


def _at(values: Grid, at: Grid) -> Grid:
    """Entries of the last axis at places with fractions."""
    low = np.floor(at).astype(int)
    high = np.minimum(low + 1, values.shape[-1] - 1)
    if values.ndim == 1:
        left, right = values[low], values[high]
    else:
        left, right = (np.take_along_axis(values, p[..., None], axis=-1)[..., 0] for p in (low, high))
    mixed: Grid = left + (at - low) * (right - left)
    return mixed


def _slope(values: Grid, over: Grid, at: Grid) -> Grid:
    """How steeply entries of the last axis fall at places with fractions."""
    high = np.maximum(np.ceil(at).astype(int), 1)
    left, right = (np.take_along_axis(values, p[..., None], axis=-1)[..., 0] for p in (high - 1, high))
    fall: Grid = (left - right) / (over[high] - over[high - 1])
    return fall


def _reason(one: Candidate, load: _Load) -> str:
    times = f"{one.excess:.3g}x"
    if one.factor == "memory":
        there = one.hardware.capacity
        return f"memory: {si(one.excess * there)}B, {times} the {si(there)}B of each device"
    if one.factor == "batch":
        return f"batch: {one.excess * load.limits[-1]:.0f} sequences at a time, of {load.limits[-1]:.0f} at most"
    if one.factor == "rate":
        return (
            f"rate: {load.rate / one.excess:.4g} requests/s at most on {one.devices} devices, of {load.rate:.4g} asked"
        )
    value, goal = (
        (one.ttft_s, load.goals.ttft_s) if one.factor == "time to first token" else (one.tpot_s, load.goals.tpot_s)
    )
    return f"{one.factor}: {seconds(value)}, {times} the {seconds(goal)} allowed"


def _refused(device: Hardware, quant: str, layout: Layout, factor: str, reason: str) -> Candidate:
    return Candidate(
        hardware=device, quant=quant, layout=layout, factor=factor, excess=inf, reason=f"{factor}: {reason}"
    )


def _by(text: str | None) -> By | None:
    if text is None:
        return None
    try:
        return By(text)
    except ValueError:
        raise InputError(f"by must be one of {', '.join(By)}; got {text!r}") from None


def _worst(value: float) -> float:
    return inf if isnan(value) else value


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not isfinite(value) else value
