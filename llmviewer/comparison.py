"""compare(): models on devices in precisions; where each waits, where that changes, and what more of anything buys."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial, reduce
from math import isnan, nan
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from . import __version__, given
from .arranged import answer, expected_answer
from .errors import InputError
from .expectation.network import Interval
from .expectation.profile import Profile, read_given
from .fleet import Fleet, Known, fleets
from .forms import Num
from .generation import decoding_s
from .graph import Graph
from .hardware import Hardware
from .hardware_files import load_hardware
from .layout import ALONE, Layout, parse_layout
from .memory import Footprint
from .model import Model
from .model_files import load_model
from .parallel.overlap import overlapped
from .resource import Resource, Unit
from .setting import Attention, Setting, arranges, whole
from .techniques import Technique, parse_techniques
from .transforms.flash_attention import flash_attention
from .transforms.quantize import PUBLISHED, unless_published
from .workload import Workload

if TYPE_CHECKING:
    import pandas as pd

Column = npt.NDArray[Any]
Waits = Mapping[tuple[str, str], Num]  # (group, resource) -> how long that group waits for that resource [s]

GROUPS: Final = ("linear", "experts", "attention", "state", "head", "elementwise", "communication")
RESOURCES: Final = ("memory", "matrix", "vector", "link")
BOUNDS: Final = ("memory", "compute", "link")
ALL: Final = "all"  # groups together
SCHEMA_VERSION: Final = 1  # of to_dict()
HOURS: Final = 8766  # of a year
DATA_TYPE, LINK, LAYOUT, TECHNIQUE, WHAT_IF = "data type", "link", "layout", "technique", "what-if"  # refused for what
_GROUP: Final = {
    "linear": "linear", "matmul": "linear", "lm_head": "head", "attention": "attention",
    "experts": "experts", "router": "experts", "route": "experts", "permute": "experts", "combine": "experts",
    "conv": "state", "scan": "state", "communication": "communication",
}  # fmt: skip
_MORE: Final = 1.1  # times the capacity: steps of a whole sequence are too coarse for less
_MOST_SEQUENCES, _LONGEST = 1 << 16, 1 << 17  # where a search for a crossing ends
_FAN: Final = 32  # points looked at together in it
_MOST: Final = 1 << 24  # sequences where a search for the largest batch ends


@dataclass(frozen=True, kw_only=True)
class Pass:
    """A prefill, or the decode step in the middle of the answer: where its time goes, for every batch.

    Of a pipeline, what takes longest: all stages for one micro-batch, and the slowest for each that follows.

    length  tokens of each prompt, or tokens that each sequence attends to
    """

    length: int
    waits: Waits

    @cached_property
    def time_s(self) -> Column:
        return np.asarray(self.spent())

    @property
    def groups(self) -> tuple[str, ...]:
        """Those that take time."""
        return tuple(g for g in GROUPS if np.any(np.greater(self.spent(group=g), 0)))

    def spent(self, *, group: str = ALL, resource: str = "", bound: str = "") -> Num:
        """Time in a group, waiting for a resource or for those of a bound; for any where none is given. [s]"""
        return _spent(self.waits, group=group, resource=resource, bound=bound)

    def shares(self, **of: str) -> Column:
        """Part of the time that is spent so, at every batch."""
        return np.broadcast_to(self.spent(**of) / self.time_s, self.time_s.shape)

    def share(self, at: int = 0, **of: str) -> float:
        """That at the batch in one place."""
        return float(self.shares(**of)[at])

    def bounds(self, group: str = ALL) -> list[str]:
        """What most of the time of a group is bound by, at every batch."""
        times = np.stack([self.shares(group=group, bound=bound) for bound in BOUNDS])
        return [BOUNDS[place] for place in np.argmax(times, axis=0)]

    def bound(self, at: int = 0, group: str = ALL) -> str:
        """That at the batch in one place."""
        return self.bounds(group)[at]

    def sensitivity(self, at: int = 0) -> dict[str, float]:
        """-d log time / d log rate of each resource: the share of the time that waits for it. Together they are 1."""
        return {resource: self.share(at, resource=resource) for resource in RESOURCES}


@dataclass(frozen=True, kw_only=True)
class Largest:
    """Throughput at the largest batch that fits, and what it depends on.

    batch              0 where not one sequence fits
    tokens_per_s       at that batch, all of whose sequences start and end together
    capacity           d log tokens_per_s / d log memory capacity, over a tenth more of it; nan where nothing fits
    """

    batch: int
    tokens_per_s: float
    capacity: float


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What measured kernels are expected to take, at every batch. [s]

    tpot  None where no decode step is taken
    """

    ttft: Interval
    tpot: Interval | None
    source: str


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A model in a precision on a device, or laid out on several. Columns run over `batches`; times are lower bounds.

    asked         the precision as it was asked for, PUBLISHED where none was
    refused       why the device cannot run it, in one line; "" where it can, and all below is empty where not
    obstacle      what that is about: DATA_TYPE, LINK, LAYOUT, TECHNIQUE or WHAT_IF
    tpot_s        nan where no decode step is taken
    tokens_per_s  generated by all sequences; read, where the model does not generate
    total_bytes   weights, cache and live activations, of each device
    decode        None where no token is generated
    """

    setting: Setting
    asked: str
    batches: tuple[int, ...]
    prompt: int
    gen: int
    refused: str
    obstacle: str
    ttft_s: Column
    tpot_s: Column
    latency_s: Column
    tokens_per_s: Column
    weight_bytes: float
    total_bytes: Column
    largest: Largest
    prefill: Pass | None
    decode: Pass | None

    @property
    def model(self) -> Model:
        return self.setting.model

    @property
    def hardware(self) -> Hardware:
        return self.setting.hardware

    @property
    def quant(self) -> str:
        """The precision as --quant takes it: as it was asked for, or what a technique says."""
        return next((one.quant for one in self.setting.techniques if one.quant), self.asked)

    @property
    def layout(self) -> Layout:
        return self.setting.layout

    @property
    def tiers(self) -> tuple[str, ...]:
        """Of the links that its devices talk over."""
        return tuple(resource.dtype for resource in self.setting.linked.rates if resource.unit is Unit.LINK)

    @property
    def fits(self) -> Column:
        return np.less_equal(self.total_bytes, self.hardware.capacity)

    @property
    def passes(self) -> dict[str, Pass]:
        return {name: p for name, p in (("prefill", self.prefill), ("decode", self.decode)) if p}

    @cached_property
    def expected(self) -> Expected | None:
        """None where no more than the bound is known."""
        if not self.prefill:
            return None
        batch, steps = np.asarray(self.batches, dtype=float), self.gen - 1 if self.decode else 0
        found = self.setting.expected_pass("prefill", self.workload("prefill", batch=batch, length=self.prompt))
        if not found:
            return None
        first, rest = expected_answer(self.setting, batch=batch, prompt=self.prompt, gen=steps + 1)
        tpot = rest.map(lambda s: s / steps) if rest else None
        return Expected(ttft=first, tpot=tpot, source=found.source) if first else None

    @cached_property
    def peak(self) -> float:
        """Of the unit that does most launches of the prefill's matrix products, the head apart. [OP/s]"""
        launches: dict[Resource, int] = {}
        for row in self.setting.plan.operators:
            if row.work.wanted.unit is Unit.MATRIX and row.operator.kind != "lm_head":
                launches[row.compute] = launches.get(row.compute, 0) + row.block.repeat
        return self.hardware.rates[max(launches, key=launches.__getitem__)]

    @property
    def library(self) -> str:
        """Whose kernels are expected; "" where that is not known."""
        return self.setting.kernels.library if self.setting.kernels else ""

    def workload(self, phase: str, *, batch: Num, length: Num) -> Workload:
        """A pass, as one device runs it: over prompts of `length` tokens, or of a step that attends to so many."""
        return _workload(self.setting, phase, batch=batch, length=length, prompt=self.prompt)

    def per_joule(self, tokens_per_s: Num) -> Num:
        """Tokens per joule at the TDP of all its devices; nan where their file does not say it. [1/J]"""
        return tokens_per_s / (self.layout.devices * self.hardware.numbers.get("power.tdp", nan))

    def per_dollar(self, tokens_per_s: Num, years: float | None) -> Num:
        """Tokens per dollar of a cloud's price, or of the purchase spread over `years`; nan where unknown. [1/USD]"""
        return 3600 * tokens_per_s / (self.layout.devices * hourly(self.hardware, years))


@dataclass(frozen=True, kw_only=True)
class Crossing:
    """Where a group of operators, or a whole pass, starts to be bound by something else.

    axis  "batch", "prompt" or "context"
    at    the first number along it that is bound by `after`; everything from 1 on is bound by `before`
    """

    cell: Cell
    phase: str
    group: str
    axis: str
    at: int
    before: str
    after: str


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """All models in all precisions in all layouts on all devices, in that order. Lower bounds; throughputs are upper
    ones.

    years         over which a purchase is spread, used all the time; None where only cloud prices count
    bound         without what to expect of measured kernels
    hardware_set  what-ifs on all devices
    library       whose kernels were asked for, "" where nobody did; `profiles` likewise, files by the path given
    """

    batches: tuple[int, ...]
    prompt: int
    gen: int
    years: float | None
    bound: bool
    techniques: tuple[str, ...]
    hardware_set: tuple[str, ...]
    library: str
    profiles: tuple[str, ...]
    cells: tuple[Cell, ...]

    @property
    def layouts(self) -> tuple[Layout, ...]:
        """Those that were asked for; empty where all is on single devices."""
        found = tuple(dict.fromkeys(cell.layout for cell in self.cells))
        return found if any(layout.devices > 1 for layout in found) else ()

    @property
    def answered(self) -> tuple[Cell, ...]:
        """Those that their device can run."""
        return tuple(cell for cell in self.cells if not cell.refused)

    @cached_property
    def crossings(self) -> tuple[Crossing, ...]:
        """Where bounds change: over batches at these lengths, and over lengths at the first batch."""
        return tuple(crossing for cell in self.answered for crossing in _crossings(cell, self))

    def expected(self, cell: Cell) -> Expected | None:
        """What to expect of measured kernels; None where only bounds are asked for, or known."""
        return None if self.bound else cell.expected

    def rows(self) -> Iterator[dict[str, Any]]:
        """One for each cell and batch, in SI units; what is unknown is None."""
        for cell in self.cells:
            yield from self.rows_of(cell)

    def rows_of(self, cell: Cell) -> Iterator[dict[str, Any]]:
        """One for each batch."""
        columns = {
            key: np.broadcast_to(np.asarray(values), len(self.batches)).tolist()
            for key, values in self._columns(cell).items()
        }
        for values in zip(*columns.values(), strict=True):
            yield {key: _plain(value) for key, value in zip(columns, values, strict=True)}

    def _columns(self, cell: Cell) -> dict[str, Any]:
        """What is said of a cell: one value, or one for each batch."""
        largest, expected = cell.largest, self.expected(cell)
        times = {"ttft": expected.ttft, "tpot": expected.tpot} if expected else {"ttft": None, "tpot": None}
        columns: dict[str, Any] = {
            "model": cell.model.name,
            "quant": cell.quant,
            "hardware": cell.hardware.name,
            **self._of_layout(cell),
            "batch": self.batches,
            "ttft_s": cell.ttft_s,
            "tpot_s": cell.tpot_s,
            "latency_s": cell.latency_s,
            "tokens_per_s": cell.tokens_per_s,
            "weight_bytes": cell.weight_bytes,
            "total_bytes": cell.total_bytes,
            "capacity_bytes": cell.hardware.capacity,
            "fits": None if cell.refused else cell.fits,
            "max_batch": None if cell.refused else largest.batch,
            "max_batch_tokens_per_s": largest.tokens_per_s,
            "tokens_per_joule_at_tdp": cell.per_joule(cell.tokens_per_s),
            "tokens_per_dollar": cell.per_dollar(cell.tokens_per_s, self.years),
        }
        for name in ("prefill", "decode"):
            own = cell.passes.get(name)
            columns[f"{name}_bound"] = own.bounds() if own else None
            columns |= {f"{name}_{r}_share": own.shares(resource=r) if own else None for r in RESOURCES}
        for name, interval in times.items():
            for end, side in (("", "expected"), ("_low", "low"), ("_high", "high")):
                columns[f"expected_{name}{end}_s"] = getattr(interval, side) if interval else None
        source = expected.source if expected else None
        return {
            **columns, "expectation_source": source, "capacity_elasticity": largest.capacity,
            "refused": cell.refused or None,
        }  # fmt: skip

    def _of_layout(self, cell: Cell) -> dict[str, Any]:
        """Left out where nobody asked for layouts."""
        return {"layout": str(cell.layout), "devices": cell.layout.devices} if self.layouts else {}

    def to_frame(self) -> pd.DataFrame:
        import pandas as pd

        return pd.DataFrame(list(self.rows()))

    @property
    def inputs(self) -> dict[str, Any]:
        """What was asked, as the JSON document has it."""
        return {
            "quants": list(dict.fromkeys(cell.asked for cell in self.cells)), "batches": list(self.batches),
            "prompt": self.prompt, "gen": self.gen, "years": self.years,
            **({"layouts": list(map(str, self.layouts))} if self.layouts else {}),
            **({"techniques": list(self.techniques)} if self.techniques else {}), **self.said,
        }  # fmt: skip

    @property
    def said(self) -> dict[str, Any]:
        """What was said of devices, and of the kernels that are expected, as the JSON document has it."""
        said = {"hardware_set": list(self.hardware_set), "library": self.library, "profiles": list(self.profiles)}
        return {name: value for name, value in said.items() if value}

    def to_dict(self) -> dict[str, Any]:
        """The JSON document; docs/compare.md has its keys."""
        return {
            "schema_version": SCHEMA_VERSION,
            "llmviewer_version": __version__,
            "inputs": self.inputs,
            "rows": list(self.rows()),
            "groups": list(self.groups()),
            "crossings": [
                {
                    "model": c.cell.model.name, "quant": c.cell.quant, "hardware": c.cell.hardware.name,
                    **self._of_layout(c.cell),
                    **{key: getattr(c, key) for key in ("phase", "group", "axis", "at", "before", "after")},
                }
                for c in self.crossings
            ],
        }  # fmt: skip

    def groups(self) -> Iterator[dict[str, Any]]:
        """Bound and share of every group of operators, one row for each cell, batch, phase and group."""
        for cell in self.answered:
            for name, own in cell.passes.items():
                for group in own.groups:
                    each = zip(self.batches, own.bounds(group), own.shares(group=group).tolist(), strict=True)
                    for batch, bound, share in each:
                        yield {
                            "model": cell.model.name, "quant": cell.quant, "hardware": cell.hardware.name,
                            **self._of_layout(cell),
                            "batch": batch, "phase": name, "group": group, "bound": bound, "share": share,
                        }  # fmt: skip


def compare(
    models: str | Model | Sequence[str | Model],
    hardware: str | Hardware | Sequence[str | Hardware],
    *,
    quants: Sequence[str] = (PUBLISHED,),
    batch: int | Sequence[int] = 1,
    prompt: int = 1024,
    gen: int = 128,
    layout: str | Layout | Sequence[str | Layout] = ALONE,
    techniques: Sequence[str | Mapping[str, object] | Technique] = (),
    years: float | None = None,
    bound: bool = False,
    hardware_set: Sequence[str] = (),
    library: str = "",
    profiles: Sequence[str | Path | Profile] = (),
) -> Comparison:
    """Every model in every precision on every device.

    quants        as those of analyze(), and "published"
    batch         sequences at a time, several numbers for several columns; the bottleneck is shown at the first
    layout        on how many of each device, and how: as that of analyze(); several for as many settings
    techniques    of all settings, as those of analyze()
    years         over which a purchase price is spread, used all the time; without it only cloud prices count
    bound         reports and rows say nothing of measured kernels, and take a tenth of the time
    hardware_set  what-ifs on every device, as those of analyze()
    library       whose kernels times are expected of, and profiles before those that ship, as those of analyze()

    Raises InputError where something given cannot be used, or is given twice; where one device has no unit for one
    precision, no links for one layout, or not the number that a what-if multiplies, or one model cannot be laid out so
    or has no use for a technique, that cell says so instead.
    """
    batches = tuple(whole("batch", b) for b in _several(batch))
    prompt, gen = whole("prompt", prompt), whole("gen", gen)
    given.positive(years=years)
    given.one(library=library)
    given.listed(hardware_set=hardware_set, techniques=techniques, profiles=profiles)
    devices, lacking = _changed(given.several("hardware", hardware), hardware_set)
    listed: dict[str, Sequence[Any]] = {
        "models": [load_model(m) if isinstance(m, str) else m for m in given.several("models", models)],
        "hardware": devices,
        "quants": given.several("quants", quants),
        "batch": batches,
        "layout": [parse_layout(way) if isinstance(way, str) else way for way in given.several("layout", layout)],
    }
    for name, values in listed.items():
        if not values:
            raise InputError(f"{name}: nothing to compare")
        given.each_once(name, values)
    cells: list[Cell] = []
    known, measured, ours = Known(), read_given(profiles), parse_techniques(techniques)
    for model in listed["models"]:
        base = Setting.of(model, devices[0], library=library, profiles=measured)
        for quant in listed["quants"]:
            one = base if quant == PUBLISHED else base.having(quant=quant)
            for way in listed["layout"]:
                laid = one if way == ALONE else replace(one, layout=way)
                laid, why = _under(ours, laid, quant) if ours else (laid, "")
                refused = dict.fromkeys(range(len(devices)), (TECHNIQUE, why)) if why else lacking
                cells += _cells(laid, quant, devices, known, refused, batches=batches, prompt=prompt, gen=gen)
    if all(cell.obstacle in (LINK, LAYOUT, TECHNIQUE, WHAT_IF) for cell in cells):
        raise InputError(cells[0].refused)
    return Comparison(
        batches=batches, prompt=prompt, gen=gen, years=years, bound=bound, techniques=tuple(map(str, ours)),
        hardware_set=tuple(hardware_set), library=library,
        profiles=tuple(dict.fromkeys(profile.name for profile in measured)), cells=tuple(cells),
    )  # fmt: skip


def _changed(
    hardware: Sequence[str | Hardware], changes: Sequence[str]
) -> tuple[list[Hardware], dict[int, tuple[str, str]]]:
    """Devices under what-ifs; and those, by place, of which these make no sense, with the reason.

    Raises InputError where they make sense of none.
    """
    if changes and not all(isinstance(one, str) for one in hardware):
        raise InputError("hardware_set needs hardware given by name; change a Hardware with dataclasses.replace")
    devices = [load_hardware(one) if isinstance(one, str) else one for one in hardware]
    lacking: dict[int, tuple[str, str]] = {}
    for place, name in enumerate(hardware if changes else ()):
        try:
            devices[place] = load_hardware(str(name), changes)
        except InputError as error:
            lacking[place] = WHAT_IF, str(error)
    if devices and len(lacking) == len(devices):
        raise InputError(lacking[0][1])
    return devices, lacking


def _under(techniques: Sequence[Technique], bare: Setting, quant: str) -> tuple[Setting, str]:
    """`bare` with techniques; where they make no sense there, as it is, with the reason."""
    try:
        found = Setting.of(
            bare.model, bare.hardware, quant=unless_published(quant), layout=bare.layout,
            techniques=techniques, library=bare.library, profiles=bare.profiles,
        )  # fmt: skip
    except InputError as error:
        return bare, str(error)
    return found, ""


def memory_share(cell: Cell, phase: str, batches: Sequence[int], lengths: Sequence[int]) -> Column:
    """Part of the time of a pass that waits for memory, [length, batch]."""
    batch, length = (grid.ravel() for grid in np.meshgrid(np.asarray(batches, float), np.asarray(lengths, float)))
    waits = _waits(_alone(cell, phase), cell.setting, phase, batch=batch, length=length, prompt=cell.prompt)
    share = _spent(waits, bound="memory") / _spent(waits)
    return np.broadcast_to(share, (1, len(batch))).reshape(len(lengths), len(batches))


def hourly(device: Hardware, years: float | None) -> float:
    """What an hour of a device costs: in a cloud, else its purchase spread over `years`; nan where unknown. [USD]"""
    if "price.cloud" in device.numbers:
        return device.numbers["price.cloud"]
    return device.numbers.get("price.purchase", nan) / (years * HOURS) if years else nan


def middle(model: Model, *, prompt: int, gen: int) -> int:
    """Tokens that the decode step in the middle of the answer attends to; 0 where there is no such step."""
    return prompt + gen // 2 if model.generates and gen > 1 else 0


def _several(values: Any) -> tuple[Any, ...]:
    return tuple(values) if isinstance(values, Sequence | np.ndarray) and not isinstance(values, str) else (values,)


def _bound(resource: str) -> str:
    return resource if resource in BOUNDS else "compute"


def _fleets(
    one: Setting, phase: str, devices: Mapping[int, Hardware], known: Known | None = None
) -> tuple[list[Fleet], dict[int, str]]:
    """`devices`, by place, each with its links, running a pass of `one` with tiles of attention as large as its own
    memory on chip; and those that have no unit for a data type, with the reason.
    """
    alone = bool(one.techniques)  # they see the attention as it is fused, and may ask for more of a device than that
    alike: dict[object, list[int]] = {}
    for place, device in devices.items():
        wiring = _wiring(device) if one.layout.devices > 1 else None
        alike.setdefault(place if alone else wiring, []).append(place)
    after = (overlapped,) if one.layout.overlap else ()
    bare = one if alone else replace(one, attention=Attention.EAGER, layout=replace(one.layout, overlap=False))
    found: list[Fleet] = []
    refused: dict[int, str] = {}
    for places in alike.values():
        own = replace(bare, hardware=devices[places[0]])
        graph = own.decode_graph if phase == "decode" else own.graph

        def lower(size: float, graph: Graph = graph) -> Graph:
            return graph if alone else graph.then(flash_attention(size), *after)

        together, others = fleets(lower, [devices[place] for place in places], known)
        found += [replace(fleet, devices=tuple(places[n] for n in fleet.devices)) for fleet in together]
        refused |= {places[n]: why for n, why in others.items()}
    return found, refused


def _wiring(device: Hardware) -> object:
    """All that the file of a device says of its links but how fast they are: what is sent depends on no more."""
    return tuple(
        (f.key, None if f.key.endswith((".bandwidth", ".latency")) else f.value)
        for f in device.facts
        if f.key.startswith(("scale_up.", "scale_out.", "host."))
    )


def _alone(cell: Cell, phase: str) -> Fleet:
    """The one device of a cell, running a pass."""
    (fleet,), _ = _fleets(cell.setting, phase, {0: cell.setting.linked})
    return fleet


def _waits(fleet: Fleet, setting: Setting, phase: str, *, batch: Num, length: Num, prompt: Num) -> Waits:
    """What a fleet waits for in a pass of a batch, by group of operators; of a pipeline, while all stages have one
    micro-batch, and the slowest the others. [s], [device, point]
    """
    workload, layout = _workload(setting, phase, batch=batch, length=length, prompt=prompt), setting.layout
    if layout.pp == 1:
        return _by_group(fleet, workload)
    stages, parts = [_by_group(stage, workload) for stage in fleet.stages], layout.parts(batch)
    through, slowest = reduce(partial(_joined, times=1.0), stages), reduce(_longer, stages)
    if phase == "prefill":
        return _joined(through, slowest, times=parts - 1)
    return _longer(through, _joined({}, slowest, times=parts))


def _workload(setting: Setting, phase: str, *, batch: Num, length: Num, prompt: Num) -> Workload:
    share = setting.layout.share(batch)
    if phase == "prefill":
        return setting.prefill(Workload.prefill(batch=share, prompt=length))
    read = np.minimum(prompt, length) if setting.techniques else prompt  # which techniques count from
    return setting.step(Workload.decode(batch=share, kv_len=length, prompt=read))


def _by_group(fleet: Fleet, workload: Workload) -> Waits:
    found: dict[tuple[str, str], Num] = {}
    for (kind, unit), time_s in fleet.waits(workload).items():
        key = _GROUP.get(kind, "elementwise"), str(unit)
        found[key] = found.get(key, 0.0) + time_s
    return found


def _joined(one: Waits, other: Waits, *, times: Num) -> Waits:
    """One, and `times` the other."""
    return {key: one.get(key, 0.0) + times * other.get(key, 0.0) for key in {**one, **other}}


def _longer(one: Waits, other: Waits) -> Waits:
    """The one that takes longer, at every point."""
    first = np.greater_equal(_spent(one), _spent(other))
    return {key: np.where(first, one.get(key, 0.0), other.get(key, 0.0)) for key in {**one, **other}}


def _cells(
    one: Setting,
    asked: str,
    devices: Sequence[Hardware],
    known: Known,
    refused: Mapping[int, tuple[str, str]],
    *,
    batches: Sequence[int],
    prompt: int,
    gen: int,
) -> Iterator[Cell]:
    """A model in a precision on all devices, in their order; `refused` are those, by place, that are out of it, with
    what that is about and the reason.
    """
    settings = [one if device is one.hardware else replace(one, hardware=device) for device in devices]
    why = refused if len(refused) == len(settings) else {**_obstacles(settings), **refused}
    able = [own for place, own in enumerate(settings) if place not in why]
    lengths: dict[str, Any] = {"batches": tuple(batches), "prompt": prompt, "gen": gen}
    answers = _answers(able, asked, known, **lengths) if able else iter(())
    nothing = np.full(len(batches), nan)
    for place, own in enumerate(settings):
        if place not in why:
            yield next(answers)
            continue
        obstacle, reason = why[place]
        yield Cell(
            setting=own, asked=asked, refused=reason, obstacle=obstacle, ttft_s=nothing, tpot_s=nothing,
            latency_s=nothing, tokens_per_s=nothing, weight_bytes=nan, total_bytes=nothing,
            largest=Largest(batch=0, tokens_per_s=nan, capacity=nan), prefill=None, decode=None, **lengths,
        )  # fmt: skip


def _obstacles(settings: Sequence[Setting]) -> dict[int, tuple[str, str]]:
    """What keeps devices, by place, from being laid out so, and the reason: techniques, links, or else the model."""
    found: dict[int, tuple[str, str]] = {}
    for place, own in enumerate(settings):
        try:
            own.agreed()
        except InputError as error:
            found[place] = TECHNIQUE, str(error)
    if settings[0].layout.devices == 1:
        return found
    for place, own in enumerate(settings):
        try:
            own.linked  # noqa: B018
        except InputError as error:
            found.setdefault(place, (LINK, str(error)))
    able = [place for place in range(len(settings)) if place not in found]
    try:
        for place in able[:1]:  # how a model can be cut is the same on all
            settings[place].graph  # noqa: B018
    except InputError as error:
        found |= dict.fromkeys(able, (LAYOUT, str(error)))
    return found


def _answers(
    settings: Sequence[Setting], asked: str, known: Known, *, batches: tuple[int, ...], prompt: int, gen: int
) -> Iterator[Cell]:
    """Settings that differ in their devices alone, all of which have the links that they need."""
    one, layout = settings[0], settings[0].layout
    devices = {place: own.linked for place, own in enumerate(settings)}
    written = gen if one.model.generates else 0
    context = middle(one.model, prompt=prompt, gen=gen)
    footprint = one.footprint
    lengths = {"prompt": prompt, "gen": written}
    capacity = np.array([own.hardware.capacity for own in settings])
    fitting = _largest_batches(footprint, np.stack([capacity, _MORE * capacity], axis=1), **lengths)
    batch = np.asarray(batches, dtype=np.float64)
    points = np.hstack([np.tile(batch, (len(settings), 1)), np.maximum(fitting, 1)])  # what is asked, what fits
    prefills, refused = _fleets(one, "prefill", devices, known)
    steps = prefills if one.decode_graph is one.graph else _fleets(one, "decode", devices, known)[0]
    waits: dict[str, dict[tuple[str, str], Column]] = {"prefill": {}, "decode": {}}
    decoding = np.zeros(points.shape)
    for phase, length, several in (("prefill", prompt, prefills), ("decode", context, steps if context else ())):
        for fleet in several:
            found = _waits(fleet, one, phase, batch=points[fleet.rows], length=length, prompt=prompt)
            _put(waits[phase], fleet, found, points)
    for fleet in steps if context else ():
        decoding[fleet.rows] = decoding_s(fleet, layout, batch=points[fleet.rows], prompt=prompt, gen=gen)
    ttft = sum(waits["prefill"].values(), start=np.zeros(points.shape))
    made = points * (written or prompt)
    with np.errstate(invalid="ignore", divide="ignore"):
        tpot = decoding / (gen - 1) if context else np.full(points.shape, nan)
    for place in set(devices) - set(refused) if arranges(one.techniques) else ():
        try:
            answered = answer(settings[place], batch=points[place], prompt=prompt, gen=gen)
        except InputError as error:  # of a network beside the model
            refused[place] = str(error)
            continue
        ttft[place], tpot[place] = answered.ttft_s, answered.tpot_s
        decoding[place], made[place] = answered.decoding_s, answered.tokens
    latency = ttft + decoding
    with np.errstate(invalid="ignore", divide="ignore"):
        rate = made / latency
        growth = np.log(rate[:, -1] / rate[:, -2]) / np.log(_MORE)
    total = np.broadcast_to(footprint.total_bytes(batch=batch, **lengths), batch.shape)
    weights = float(footprint.parts(batch=1.0, **lengths)[0])
    some, unknown = len(batch), np.full(len(batch), nan)
    for place, own in enumerate(settings):
        fits, able = fitting[place, 0] >= 1, place not in refused
        yield Cell(
            setting=own,
            asked=asked,
            batches=batches,
            prompt=prompt,
            gen=gen,
            refused=refused.get(place, ""),
            obstacle="" if able else DATA_TYPE,
            ttft_s=ttft[place, :some] if able else unknown,
            tpot_s=tpot[place, :some] if able else unknown,
            latency_s=latency[place, :some] if able else unknown,
            tokens_per_s=rate[place, :some] if able else unknown,
            weight_bytes=weights,
            total_bytes=total,
            largest=Largest(
                batch=int(fitting[place, 0]),
                tokens_per_s=float(rate[place, -2]) if fits and able else nan,
                capacity=float(growth[place]) if fits and able else nan,
            ),
            prefill=_pass(waits["prefill"], place, some, prompt) if able else None,
            decode=_pass(waits["decode"], place, some, context) if able and context else None,
        )


def _put(into: dict[tuple[str, str], Column], fleet: Fleet, waits: Waits, points: Column) -> None:
    for key, time_s in waits.items():
        into.setdefault(key, np.zeros(points.shape))[fleet.rows] = time_s


def _pass(waits: Mapping[tuple[str, str], Column], place: int, some: int, length: int) -> Pass:
    own = {key: column[place, :some] for key, column in waits.items()}
    return Pass(length=length, waits={key: column for key, column in own.items() if column.any()})


def _largest_batches(footprint: Footprint, capacity: Column, *, prompt: int, gen: int) -> Column:
    """The largest batch that fits in each capacity, by bisection; 0 where none does. [B]"""
    low, high = np.zeros(capacity.shape), np.full(capacity.shape, float(_MOST))
    while np.any(high - low > 1):
        tried = np.floor((low + high) / 2)
        fits = np.less_equal(footprint.total_bytes(batch=np.maximum(tried, 1), prompt=prompt, gen=gen), capacity)
        fits = fits & (tried >= 1)
        low, high = np.where(fits, tried, low), np.where(fits, high, np.maximum(tried, 1))
    return low


def _crossings(cell: Cell, of: Comparison) -> Iterator[Crossing]:
    """Of one cell: over batches at its lengths, and over lengths at the first batch.

    Looks at powers of two, and between the two that differ, where it takes the bound to change once.
    """
    for phase, own in cell.passes.items():
        fleet = _alone(cell, phase)
        for axis, most in _axes(cell, phase):

            def at(
                numbers: Column, fleet: Fleet = fleet, phase: str = phase, axis: str = axis, own: Pass = own
            ) -> Pass:
                batch, length = (numbers, own.length) if axis == "batch" else (of.batches[0], numbers)
                waits = _waits(fleet, cell.setting, phase, batch=batch, length=length, prompt=cell.prompt)
                times = {key: np.broadcast_to(time_s, (1, len(numbers)))[0] for key, time_s in waits.items()}
                return Pass(length=own.length, waits=times)

            grid = np.array([n for n in 2.0 ** np.arange(most.bit_length()) if n < most] + [float(most)])
            seen = at(grid)
            for group in (ALL, *own.groups):
                before, *others = seen.bounds(group)
                place = next((i for i, bound in enumerate(others) if bound != before), None)
                if place is not None:
                    change, after = _between(at, grid[place], grid[place + 1], group, before)
                    yield Crossing(
                        cell=cell, phase=phase, group=group, axis=axis, at=change, before=before, after=after
                    )  # fmt: skip


def _axes(cell: Cell, phase: str) -> Iterator[tuple[str, int]]:
    """What a pass can be longer or wider in, and how far is looked."""
    yield "batch", _MOST_SEQUENCES
    longest = cell.model.max_context or _LONGEST
    if phase == "prefill":
        yield "prompt", longest
    elif not cell.model.encodes:  # what a decoder beside an encoder attends to begins where the prompt ends
        yield "context", longest


def _between(at: Callable[[Column], Pass], low: float, high: float, group: str, before: str) -> tuple[int, str]:
    """The first number after `low`, at most `high`, that is not bound by `before`, and what it is bound by."""
    while True:
        tried = np.unique(np.round(np.linspace(low, high, _FAN)))
        bounds = at(tried).bounds(group)
        place = next(i for i, bound in enumerate(bounds) if bound != before)
        low, high = tried[place - 1], tried[place]
        if high - low <= 1:
            return int(high), bounds[place]


def _spent(waits: Waits, *, group: str = ALL, resource: str = "", bound: str = "") -> Num:
    """Time in a group, waiting for a resource or for those of a bound; for any where none is given. [s]"""
    chosen = (
        time_s
        for (own, unit), time_s in waits.items()
        if group in (ALL, own) and resource in ("", unit) and bound in ("", _bound(unit))
    )
    return sum(chosen, start=0.0)


def _plain(value: Any) -> Any:
    """`value` for JSON and CSV: whole floats as ints, None for what is unknown."""
    if isinstance(value, float):
        return None if isnan(value) else int(value) if value.is_integer() else float(value)
    return value
