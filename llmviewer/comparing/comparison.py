"""compare(): models on devices in precisions, with bottlenecks, crossings of bounds and sensitivities."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import field, replace
from functools import cached_property
from itertools import product
from typing import Any, ClassVar, Final, Unpack

import numpy as np

from .. import __version__, arguments
from ..analyzing.analysis import MAX
from ..analyzing.facts import plain
from ..devices.files import changes_by_device, loaded
from ..devices.hardware import Hardware
from ..errors import InputError
from ..expectation.profile import Profile, read_profiles
from ..expectation.whole_passes import typical
from ..model import Model
from ..model_files import load_model
from ..options import ComparisonArguments, EngineOptions, document_options, only
from ..parallel.layout import ONE_DEVICE, Layout, parse_layout
from ..records import frozen
from ..request import Request, lengths_of
from ..rows import Rows
from ..setting import Setting, engine_inputs, engine_on, quant_text, server_options, whole_number
from ..techniques import Technique, parse_techniques
from ..transforms.quantize import PUBLISHED, unless_published
from .breakdown import RESOURCES
from .cells import ENGINE, LAYOUT, LINK, TECHNIQUE, WHAT_IF, Cell, ExpectedTimes, cells_of, expect_cells
from .crossings import Crossing, crossings_of
from .fleet import WorkCache

SCHEMA_VERSION: Final = 1  # of to_dict()


@frozen(kw_only=True, repr=False)
class Comparison(Rows):
    """Cells of all models, precisions, layouts and devices, in that order; times are lower bounds.

    batches       empty if each cell is at its largest batch that fits
    years         time of continuous use over which a purchase price is spread; None: only cloud prices count
    bound         whether there are no expected times
    hardware_set  what-ifs on all devices
    library       kernel library given; "": none
    engine        serving engine given; "": none
    profiles      profiles given; files by path
    """

    report: ClassVar = "comparison"

    batches: tuple[int, ...]
    prompt: int
    gen: int
    years: float | None
    bound: bool
    techniques: tuple[str, ...]
    hardware_set: tuple[str, ...]
    library: str
    engine: str
    profiles: tuple[str, ...]
    cells: tuple[Cell, ...] = field(repr=False)

    @cached_property
    def layouts(self) -> tuple[Layout, ...]:
        """The layouts given; empty if all cells are single devices."""
        distinct = tuple(dict.fromkeys(cell.layout for cell in self.cells))
        return distinct if any(layout.devices > 1 for layout in distinct) else ()

    @property
    def runnable(self) -> tuple[Cell, ...]:
        """Cells that their devices can run."""
        return tuple(cell for cell in self.cells if not cell.refused)

    @cached_property
    def crossings(self) -> tuple[Crossing, ...]:
        """Crossings of bounds: over batches at the given lengths, and over lengths at the first batch."""
        return tuple(crossing for cell in self.runnable for crossing in crossings_of(cell))

    def expected(self, cell: Cell) -> ExpectedTimes | None:
        """Expected times of a cell; None if only bounds are wanted or known."""
        return None if self.bound else cell.expected

    def expect_together(self, cells: Iterable[Cell]) -> None:
        """Evaluates the expected times of cells, if they are wanted; takes less time than one after another."""
        if not self.bound:
            expect_cells([cell for cell in cells if not cell.refused])

    def rows(self) -> Iterator[dict[str, Any]]:
        """One row per cell and batch, in SI units; None: unknown."""
        self.expect_together(self.cells)
        for cell in self.cells:
            yield from self.rows_of(cell)

    def rows_of(self, cell: Cell) -> Iterator[dict[str, Any]]:
        """The rows of one cell, one per batch."""
        columns = {
            key: np.broadcast_to(np.asarray(values), len(cell.batches)).tolist()
            for key, values in self._columns(cell).items()
        }
        for values in zip(*columns.values(), strict=True):
            yield plain(dict(zip(columns, values, strict=True)))

    def _columns(self, cell: Cell) -> dict[str, Any]:
        """Columns of a cell: one value, or one per batch."""
        largest, expected = cell.largest, self.expected(cell)
        times = {"ttft": expected.ttft, "tpot": expected.tpot} if expected else {"ttft": None, "tpot": None}
        columns: dict[str, Any] = {
            "model": cell.model.name,
            "quant": cell.quant,
            "hardware": cell.hardware.name,
            **self._of_layout(cell),
            "batch": cell.batches,
            "ttft_s": cell.ttft_s,
            "tpot_s": cell.tpot_s,
            "latency_s": cell.latency_s,
            "tokens_per_s": cell.tokens_per_s,
            "weight_bytes": cell.weight_bytes,
            "total_bytes": cell.total_bytes,
            "capacity_bytes": cell.result.capacity_bytes,
            "fits": None if cell.refused else cell.fits,
            "max_batch": None if cell.refused else largest.batch,
            "max_batch_tokens_per_s": largest.tokens_per_s,
            "tokens_per_joule_at_tdp": cell.per_joule(cell.tokens_per_s),
            "tokens_per_dollar": cell.per_dollar(cell.tokens_per_s, self.years),
        }
        for name in ("prefill", "decode"):
            breakdown = cell.passes.get(name)
            columns[f"{name}_bound"] = breakdown.bounds() if breakdown else None
            columns |= {f"{name}_{r}_share": breakdown.shares(resource=r) if breakdown else None for r in RESOURCES}
        for name, interval in times.items():
            for end, side in (("", "expected"), ("_low", "low"), ("_high", "high")):
                columns[f"expected_{name}{end}_s"] = getattr(interval, side) if interval else None
        source = expected.source if expected else None
        return {
            **columns, "expectation_source": source, "capacity_elasticity": largest.capacity,
            "refused": cell.refused or None,
        }  # fmt: skip

    def _of_layout(self, cell: Cell) -> dict[str, Any]:
        """Columns of the layout; empty if no layouts are given."""
        return {"layout": str(cell.layout), "devices": cell.layout.devices} if self.layouts else {}

    @property
    def inputs(self) -> dict[str, Any]:
        """The arguments, as in the JSON document."""
        return {
            "quants": list(dict.fromkeys(cell.given_quant for cell in self.cells)),
            "batches": list(self.batches) or [MAX],
            "prompt": self.prompt, "gen": self.gen, "years": self.years,
            **({"layouts": list(map(str, self.layouts))} if self.layouts else {}),
            **({"techniques": list(self.techniques)} if self.techniques else {}), **self.optional_inputs,
        }  # fmt: skip

    @property
    def optional_inputs(self) -> dict[str, Any]:
        """The arguments on devices and expected kernels, as in the JSON document."""
        given_inputs = {
            "hardware_set": list(self.hardware_set), "library": self.library, "engine": self.engine,
            "profiles": list(self.profiles),
        }  # fmt: skip
        return {name: value for name, value in given_inputs.items() if value}

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
        """Bounds and shares: one row per cell, batch, phase and group of operators."""
        for cell in self.runnable:
            for name, breakdown in cell.passes.items():
                for group in breakdown.groups:
                    each = zip(
                        cell.batches, breakdown.bounds(group), breakdown.shares(group=group).tolist(), strict=True
                    )
                    for batch, bound, share in each:
                        yield {
                            "model": cell.model.name, "quant": cell.quant, "hardware": cell.hardware.name,
                            **self._of_layout(cell),
                            "batch": batch, "phase": name, "group": group, "bound": bound, "share": share,
                        }  # fmt: skip


@document_options(ComparisonArguments)
def compare(
    models: str | Model | Setting | Sequence[str | Model | Setting],
    hardware: str | Hardware | Sequence[str | Hardware] | Request | None = None,
    *,
    layout: str | Layout | Sequence[str | Layout] = ONE_DEVICE,
    progress: Callable[[int, int], object] = lambda finished, settings: None,
    **options: Unpack[ComparisonArguments],
) -> Comparison:
    """Every model in every precision on every device.

    Also compare(settings, request), of Settings and a Request: one cell for each setting.

    batch         one number or several; bottlenecks are those of the first. "max": the largest that fits, cell by cell
    layout        degrees of parallelism as in analyze(); one or several
    progress      called with the number of finished combinations of model, precision and layout, and of all

    The options apply to all cells, as in analyze(). `hardware_set` changes every device, or one, as in
    "l40s:price.cloud=1 USD/h"; `bound` takes a tenth of the time.

    Raises InputError if an argument is invalid or given twice. A cell is refused, with the reason, if its device lacks
    a unit for the precision, links for the layout, kernels of the engine or the number that a what-if multiplies, or if
    its model cannot be laid out so or does not allow a technique.
    """
    if isinstance(hardware, Request):
        return _of_settings(arguments.as_list(models), hardware, years=options.get("years"))
    if hardware is None:
        raise InputError("hardware must be given with models; or give Settings and a Request")
    all_options = arguments.with_defaults(options, ComparisonArguments)
    batch = all_options["batch"]
    at_largest_batch = isinstance(batch, str) and batch == MAX
    batches = (1,) if at_largest_batch else tuple(whole_number("batch", b) for b in arguments.as_numbers(batch))
    prompt, gen = lengths_of(options)
    years = all_options["years"]
    arguments.check_positive(years=years)
    library, engine, bound = all_options["library"], all_options["engine"], all_options["bound"]
    arguments.check_bound_only(bound, library, engine, all_options["profiles"])
    devices, without_fact = _changed(arguments.as_values("hardware", hardware), all_options["hardware_set"])
    loaded_models = [load_model(m) if isinstance(m, str) else m for m in arguments.as_values("models", models)]
    precisions = arguments.as_values("quants", (PUBLISHED,) if all_options["quants"] == () else all_options["quants"])
    layouts = [
        parse_layout(setting_layout) if isinstance(setting_layout, str) else setting_layout
        for setting_layout in arguments.as_values("layout", layout)
    ]
    listed: dict[str, Sequence[object]] = {
        "models": loaded_models, "hardware": devices, "quants": precisions, "batch": batches, "layout": layouts,
    }  # fmt: skip
    for name, values in listed.items():
        if not values:
            raise InputError(f"{name}: nothing to compare")
        arguments.check_unique(name, values)
    work_cache, parsed_profiles, parsed_techniques = (
        WorkCache(),
        read_profiles(all_options["profiles"]),
        parse_techniques(all_options["techniques"]),
    )
    engine_options = only(all_options, EngineOptions)
    base_device, without_kernels = _engine_devices(engine_options, library, devices, parsed_profiles)
    bases = [
        Setting.of(model, base_device, library=library, profiles=parsed_profiles, **engine_options)
        for model in loaded_models
    ]
    for base in bases:
        if base.engine:
            base.engine.check_accepts(prompt + gen)
    settings = list(product(bases, precisions, layouts))
    cells: list[Cell] = []
    for finished, (base, quant, setting_layout) in enumerate(settings, 1):
        setting, refusal = _setting(base, quant, setting_layout, parsed_techniques)
        refused = (
            dict.fromkeys(range(len(devices)), (TECHNIQUE, refusal)) if refusal else {**without_fact, **without_kernels}
        )
        new_cells = cells_of(setting, quant, devices, work_cache, refused, batches=batches, prompt=prompt, gen=gen)
        cells += (_fullest(cell, work_cache) if at_largest_batch else cell for cell in new_cells)
        progress(finished, len(settings))
    if all(cell.obstacle in (LINK, LAYOUT, TECHNIQUE, WHAT_IF, ENGINE) for cell in cells):
        raise InputError(cells[0].refused)
    return Comparison(
        batches=() if at_largest_batch else batches, prompt=prompt, gen=gen, years=years, bound=bound,
        techniques=tuple(map(str, parsed_techniques)),
        hardware_set=tuple(all_options["hardware_set"]), library=library, engine=engine,
        profiles=tuple(dict.fromkeys(profile.name for profile in parsed_profiles)), cells=tuple(cells),
    )  # fmt: skip


def _of_settings(settings: Sequence[object], request: Request, *, years: float | None) -> Comparison:
    """A cell for each setting.

    Raises InputError if one is no Setting, or none can run the request.
    """
    work_cache, cells = WorkCache(), list[Cell]()
    for setting in settings:
        if not isinstance(setting, Setting):
            raise InputError(f"models must be Settings before a Request; got {setting!r}")
        numbers = request.of_model(setting.model)
        lengths: dict[str, Any] = {"batches": (numbers.batch,), "prompt": numbers.prompt, "gen": numbers.gen or 0}
        cells += cells_of(setting, quant_text(setting), [setting.hardware], work_cache, {}, **lengths)
    if not cells:
        raise InputError("models: nothing to compare")
    if all(cell.obstacle in (LINK, LAYOUT, TECHNIQUE, WHAT_IF, ENGINE) for cell in cells):
        raise InputError(cells[0].refused)

    def shared(texts: Iterable[str]) -> str:
        distinct = set(texts)
        return distinct.pop() if len(distinct) == 1 else ""

    return Comparison(
        batches=cells[0].batches, prompt=cells[0].prompt, gen=cells[0].gen, years=years,
        bound=all(cell.setting.bound for cell in cells), techniques=(), hardware_set=(),
        library=shared("" if cell.setting.engine else cell.setting.library for cell in cells),
        engine=shared(cell.setting.engine.name if cell.setting.engine else "" for cell in cells), profiles=(),
        cells=tuple(cells),
    )  # fmt: skip


def _changed(
    hardware: Sequence[str | Hardware], changes: Sequence[str]
) -> tuple[list[Hardware], dict[int, tuple[str, str]]]:
    """Devices with what-ifs; and (obstacle, reason), by index, of those to which they do not apply.

    Raises InputError if they apply to none.
    """
    device_changes = list(zip(hardware, changes_by_device(hardware, changes), strict=True))
    devices = [
        loaded(device, () if isinstance(device, str) else changes_of_device)
        for device, changes_of_device in device_changes
    ]
    without_fact: dict[int, tuple[str, str]] = {}
    for place, (device, changes_of_device) in enumerate(device_changes):
        try:
            devices[place] = loaded(device, changes_of_device)
        except InputError as error:
            without_fact[place] = WHAT_IF, str(error)
    if devices and len(without_fact) == len(devices):
        raise InputError(without_fact[0][1])
    return devices, without_fact


def _engine_devices(
    engine_options: EngineOptions, library: str, devices: Sequence[Hardware], profiles: Sequence[Profile]
) -> tuple[Hardware, dict[int, tuple[str, str]]]:
    """The device of the base setting; and (obstacle, reason), by index, of devices that an engine does not run on.

    Raises InputError if it runs on none, or library is given too.
    """
    without_kernels: dict[int, tuple[str, str]] = {}
    engine, options, reason = engine_options["engine"], server_options(engine_options), ""
    for place, device in enumerate(devices):
        try:
            engine_on(engine, device, library=library, profiles=profiles, options=options)
        except InputError as error:
            without_kernels[place], reason = (ENGINE, f"no kernels of {engine} are known on it"), str(error)
    runnable = [device for place, device in enumerate(devices) if place not in without_kernels]
    if not runnable:
        raise InputError(reason)
    return typical(engine, runnable), without_kernels


def _setting(base: Setting, quant: str, layout: Layout, techniques: Sequence[Technique]) -> tuple[Setting, str]:
    """`base` with these changes; without techniques, and with the reason, if they do not apply."""
    quantized = base if quant == PUBLISHED else base.having(quant=quant)
    bare = quantized if layout == ONE_DEVICE else replace(quantized, layout=layout)
    if not techniques:
        return bare, ""
    try:
        changed = Setting.of(
            bare.model, bare.hardware, quant=unless_published(quant), layout=bare.layout,
            techniques=techniques, profiles=bare.profiles, library="" if bare.engine else bare.library,
            **engine_inputs(bare.engine),
        )  # fmt: skip
    except InputError as error:
        return bare, str(error)
    return changed, ""


def _fullest(cell: Cell, work_cache: WorkCache) -> Cell:
    """The cell at the largest batch that fits; unchanged if no sequence fits."""
    if cell.refused or cell.largest.batch < 2:
        return cell
    lengths: dict[str, Any] = {"prompt": cell.prompt, "gen": cell.gen}
    return next(
        cells_of(
            cell.setting, cell.given_quant, [cell.hardware], work_cache, {}, batches=(cell.largest.batch,), **lengths
        )
    )
