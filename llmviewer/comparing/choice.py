"""choose(): the ranking of devices that qualify for a use, with their number, and why others do not qualify."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, field
from math import inf, isnan
from typing import Any, ClassVar, Final, Unpack

import numpy as np

from .. import __version__, arguments
from .._layout import data_dir
from ..analyzing.costs import Criterion
from ..devices.files import hardware_file, hardware_names, load_hardware, loaded
from ..devices.hardware import Hardware
from ..errors import InputError
from ..expectation.statistics import rank_correlation
from ..forms import Num
from ..model import Model
from ..model_files import load_model
from ..operators.collectives import SCALE_OUT, SCALE_UP
from ..options import ChoiceArguments, FleetOptions, document_options, only
from ..parallel import parallel
from ..parallel.layout import Layout, Network
from ..records import frozen
from ..request import Request, lengths_of
from ..rows import Rows
from ..setting import Setting, opened, quant_text, single_device, whole_number
from ..transforms.quantize import PUBLISHED
from ..variants.changes import narrower
from .cells import LAYOUT, Cell, ExpectedTimes
from .comparison import Comparison, compare
from .limits import Limits, Rejected, closest, expected_faults, faults

# Default precisions: that of the model; weights and activations in the two 8-bit types that devices multiply; and 4-bit
# weights, the smallest in common use (arXiv:2210.17323, arXiv:2306.00978).
QUANTS: Final = (PUBLISHED, "fp8", "W8A8", "W4A16g128")
SCHEMA_VERSION: Final = 2  # of to_dict()
ANNOUNCED: Final = "announced"  # status of a device that is not yet available
_MAX_TENSOR_PARALLELISM: Final = 1024  # largest tensor parallelism: more than the heads of any model
_MIN_RANKED: Final = 3  # fewest devices for a meaningful correlation


_RANKING_UNITS: Final = {
    Criterion.SPEED: "tokens/s",
    Criterion.COST: "tokens/USD",
    Criterion.ENERGY: "tokens/J at TDP",
}  # unit of the ranking


@frozen(kw_only=True)
class Ranked:
    """A device, or the fewest of its kind that qualify, in the best qualifying precision by `merit`.

    merit        expected; at the bound if `expected` is None
    bound_merit  at the bound, which no kernels exceed
    expected     expected times; None if only the bound is known, or requested
    """

    cell: Cell
    merit: float
    bound_merit: float
    expected: ExpectedTimes | None


@frozen(kw_only=True, repr=False)
class Choice(Rows):
    """The result of choose(). `comparison` has a cell for every device, allowed precision and number of devices.

    ranked       devices that qualify, best first: by expected times, or all by bounds where no expected time is known
    unmeasured   devices that qualify by bounds and have no expected times, beside others that have them; best first
    unavailable  devices that were not considered because they are not for sale and were not named
    """

    report: ClassVar = "choice"

    model: Model
    users: int
    quants: tuple[str, ...]
    max_devices: int
    by: Criterion
    limits: Limits
    comparison: Comparison = field(repr=False)
    ranked: tuple[Ranked, ...] = field(repr=False)
    unmeasured: tuple[Ranked, ...] = field(repr=False)
    rejected: tuple[Rejected, ...] = field(repr=False)
    unavailable: tuple[str, ...]

    @property
    def merit(self) -> str:
        """The unit of `merit`."""
        return _RANKING_UNITS[self.by]

    @property
    def priced(self) -> int:
        """Number of devices whose files allow ranking by cost or energy; all for speed."""
        devices = {cell.hardware.name: cell.hardware for cell in self.comparison.cells}.values()
        return sum(self.by.known(device, self.comparison.years) for device in devices)

    def follows(self) -> dict[str, float]:
        """Spearman's rank correlation of the ranking with bandwidth, matrix peak and capacity of all devices together.

        Empty if fewer than three devices qualify, or if all are equal.
        """
        if len(self.ranked) < _MIN_RANKED:
            return {}
        merit, cells = [r.merit for r in self.ranked], [r.cell for r in self.ranked]
        numbers = {
            "memory bandwidth": [cell.layout.devices * cell.hardware.bandwidth() for cell in cells],
            "peak OP/s": [cell.layout.devices * cell.peak for cell in cells],
            "memory capacity": [cell.layout.devices * cell.hardware.capacity for cell in cells],
        }
        correlations = {name: rank_correlation(merit, values) for name, values in numbers.items()}
        return {name: value for name, value in correlations.items() if not isnan(value)}

    def rows(self) -> Iterator[dict[str, Any]]:
        """One row per device: qualifying devices by rank, those that only have bounds, then the others."""
        self.comparison.expect_together(other.cell for other in self.rejected)
        for rank, one in enumerate((*self.ranked, *self.unmeasured), 1):
            yield {
                "rank": rank if rank <= len(self.ranked) else None, **self._facts(one.cell), "merit": one.merit,
                "bound_merit": one.bound_merit, "expected": one.expected is not None, "factor": None, "reason": None,
            }  # fmt: skip
        for other in self.rejected:
            yield {
                "rank": None, **self._facts(other.cell), "merit": None, "bound_merit": None, "expected": None,
                "factor": other.factor, "reason": other.reason,
            }  # fmt: skip

    def _facts(self, cell: Cell) -> dict[str, Any]:
        """The facts of a cell in a comparison, without those that all cells share."""
        shared = {"model", "batch", "refused", "capacity_elasticity"}
        (row,) = self.comparison.rows_of(cell)
        return {key: value for key, value in row.items() if key not in shared}

    @property
    def inputs(self) -> dict[str, Any]:
        """The arguments, as in the JSON document."""
        return {
            "users": self.users, "prompt": self.comparison.prompt, "gen": self.comparison.gen,
            "quants": list(self.quants), "by": str(self.by), "merit": self.merit, "years": self.comparison.years,
            **asdict(self.limits), **({"max_devices": self.max_devices} if self.max_devices > 1 else {}),
            **self.comparison.optional_inputs,
        }  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """The JSON document; docs/compare.md has its keys."""
        return {
            "schema_version": SCHEMA_VERSION,
            "llmviewer_version": __version__,
            "model": self.model.name,
            "inputs": self.inputs,
            "left_out": list(self.unavailable),
            "follows": self.follows(),
            "devices": list(self.rows()),
        }  # fmt: skip


@document_options(ChoiceArguments)
def choose(
    model: str | Model | Setting,
    request: Request | None = None,
    *,
    users: int = 1,
    hardware: Sequence[str | Hardware] | None = None,
    by: str = "speed",
    budget: float | None = None,
    power: float | None = None,
    native: bool = False,
    progress: Callable[[int, int], object] = lambda finished, settings: None,
    **options: Unpack[ChoiceArguments],
) -> Choice:
    """Ranks devices for `users` who each send a prompt of `prompt` tokens at once and get `gen` tokens.

    request      users, prompt and gen in one; a Setting may replace model and options, whose precision then counts
    hardware     devices to choose from; None: shipped devices that are for sale, and those of the user's folder
    by           "speed": tokens of all users per second, from prompts to last tokens; "cost": per dollar; "energy": per
                 joule at TDP
    budget       highest price of all devices together [USD]
    power        highest TDP of all devices together [W]
    native       whether only precisions count that the device's matrix units support
    progress     called with the number of finished combinations of precision and number of devices, and of all

    The options are as in compare(). A device is ranked by its best precision; of the default ones, those that are
    narrower than the published weights count. Devices qualify and are ranked by expected times; those of which only
    bounds are known are listed apart. With `bound`, all are ranked by bounds.

    Raises InputError if an argument is invalid or the model does not generate.
    """
    all_options = arguments.with_defaults(options, ChoiceArguments)
    quants = QUANTS if all_options["quants"] == () else all_options["quants"]
    if request is not None:
        users = request.batch
    prompt, gen = lengths_of(options, request)
    if isinstance(model, Setting):
        quants = (quant_text(model),) if quants is QUANTS else quants
        model, _, options = opened(single_device(model), None, options, ChoiceArguments)
    ranking = arguments.enum_member("by", by, _RANKING_UNITS)
    limits = Limits(budget=budget, power=power, ttft_s=all_options["ttft"], tpot_s=all_options["tpot"], native=native)
    arguments.check_types(model=model)
    devices, unavailable = _devices(hardware)
    precisions, batch = arguments.as_values("quants", quants), whole_number("users", users)
    device_limit, loaded_model = (
        whole_number("max_devices", all_options["max_devices"]),
        load_model(model) if isinstance(model, str) else model,
    )
    if not precisions:
        raise InputError("quants: nothing to choose from")
    if precisions == QUANTS:
        precisions = narrower(loaded_model, precisions)
    if device_limit > _MAX_TENSOR_PARALLELISM:
        raise InputError(f"max_devices must be at most {_MAX_TENSOR_PARALLELISM}; got {device_limit}")
    layouts = [Layout(tp=n) for n in _valid_degrees(loaded_model, loaded(devices[0]), device_limit)]
    comparison = compare(
        loaded_model, devices, quants=precisions, batch=batch, prompt=prompt, gen=gen, years=all_options["years"],
        layout=layouts, progress=progress, **only(options, FleetOptions),
    )  # fmt: skip
    compared_model = comparison.cells[0].model
    if not compared_model.generates:
        raise InputError(f"{compared_model.name} must generate tokens to be ranked by them; use llmviewer compare")
    qualified, rejected = _qualified(comparison, limits, ranking)
    expected = [one for one in qualified if one.expected]
    return Choice(
        model=compared_model, users=comparison.batches[0], quants=precisions, max_devices=device_limit, by=ranking,
        limits=limits, comparison=comparison, ranked=tuple(expected or qualified),
        unmeasured=tuple(one for one in qualified if expected and not one.expected), rejected=rejected,
        unavailable=unavailable,
    )  # fmt: skip


def _devices(hardware: Sequence[str | Hardware] | None) -> tuple[tuple[str | Hardware, ...], tuple[str, ...]]:
    """The devices to choose from, and the names of devices that are not for sale.

    Raises InputError if there are none, or one is given twice.
    """
    unavailable = unsold(map(load_hardware, hardware_names())) if hardware is None else ()
    candidates = hardware_names() if hardware is None else arguments.as_values("hardware", hardware)
    named = tuple(one for one in candidates if one not in unavailable)
    if not named:
        raise InputError("hardware: nothing to choose from")
    devices = [loaded(one) for one in named]
    arguments.check_unique("hardware", devices)
    arguments.check_unique_names(zip(named, (device.name for device in devices), strict=True))
    return named, unavailable


def _qualified(
    comparison: Comparison, limits: Limits, by: Criterion
) -> tuple[tuple[Ranked, ...], tuple[Rejected, ...]]:
    """The smallest qualifying number of each device in its best precision, best first; other devices, closest first."""
    by_device: dict[str, list[Cell]] = {}
    for cell in comparison.cells:
        if cell.obstacle != LAYOUT and not _spans_domains(cell):
            by_device.setdefault(cell.hardware.name, []).append(cell)
    candidates: dict[str, list[Cell]] = {name: [] for name in by_device}
    bound_faults: dict[str, list[list[Rejected]]] = {name: [] for name in by_device}
    for name, cells in by_device.items():
        single_cells = {cell.given_quant: cell for cell in cells if cell.layout.devices == 1}
        for cell in cells:
            reasons = faults(cell, single_cells[cell.given_quant], limits, by=by, years=comparison.years)
            if reasons:
                bound_faults[name].append(reasons)
            else:
                candidates[name].append(cell)
    smallest, exceeded = _smallest(candidates, comparison, limits, by)
    ranked = [smallest[name] for name in by_device if name in smallest]
    rejected = [closest([*exceeded[name], *bound_faults[name]]) for name in by_device if name not in smallest]
    return (
        tuple(sorted(ranked, key=lambda one: -one.merit)),
        tuple(sorted(rejected, key=lambda one: (one.factor, one.excess))),
    )


def _smallest(
    cells: Mapping[str, Sequence[Cell]], comparison: Comparison, limits: Limits, by: Criterion
) -> tuple[dict[str, Ranked], dict[str, list[list[Rejected]]]]:
    """The smallest number of each device that meets the limits, in its best precision, and the limits that the expected
    times of each device exceed.

    cells  by device, within the limits at the bound; those with expected times precede those without
    """
    smallest: dict[str, Ranked] = {}
    exceeded: dict[str, list[list[Rejected]]] = {name: [] for name in cells}
    for devices in sorted({cell.layout.devices for each in cells.values() for cell in each}):
        undecided = {
            name: [cell for cell in cells[name] if cell.layout.devices == devices]
            for name in cells
            if name not in smallest
        }
        best, faulty = _best(undecided, comparison, limits, by)
        smallest |= best
        for name, reasons in faulty.items():
            exceeded[name] += reasons
    return smallest, exceeded


def _best(
    cells: Mapping[str, Sequence[Cell]], comparison: Comparison, limits: Limits, by: Criterion
) -> tuple[dict[str, Ranked], dict[str, list[list[Rejected]]]]:
    """The best precision of each device whose expected times meet the limits, and the limits that others exceed.

    Expected times are evaluated of the best precision at the bound, on all devices together, then of those others whose
    bounds are above it.
    """
    merits = {id(cell): _merit(cell, cell.tokens_per_s, comparison, by) for each in cells.values() for cell in each}
    met: dict[str, list[Ranked]] = {name: [] for name in cells}
    exceeded: dict[str, list[list[Rejected]]] = {name: [] for name in cells}

    def evaluate(tried: Mapping[str, Sequence[Cell]]) -> None:
        comparison.expect_together(cell for each in tried.values() for cell in each)
        for name, cell in ((name, cell) for name, each in tried.items() for cell in each):
            times = comparison.expected(cell)
            reasons = expected_faults(cell, times, limits) if times else []
            if reasons:
                exceeded[name].append(reasons)
            else:
                met[name].append(_ranked(cell, times, comparison, by))

    first = {name: [max(each, key=lambda cell: merits[id(cell)])] for name, each in cells.items() if each}
    evaluate(first)
    reached = {name: max((one.merit for one in each if one.expected), default=-inf) for name, each in met.items()}
    evaluate({
        name: [cell for cell in cells[name] if cell is not one and not merits[id(cell)] < reached[name]]
        for name, (one,) in first.items()
    })  # fmt: skip
    order = {id(cell): -place for each in cells.values() for place, cell in enumerate(each)}
    best = {
        name: max(each, key=lambda one: (one.expected is not None, one.merit, order[id(one.cell)]))
        for name, each in met.items()
        if each
    }
    return best, exceeded


def _ranked(cell: Cell, times: ExpectedTimes | None, comparison: Comparison, by: Criterion) -> Ranked:
    bound_merit = _merit(cell, cell.tokens_per_s, comparison, by)
    expected = cell.result.expected if times else None
    merit = _merit(cell, expected.tokens_per_s, comparison, by) if expected else bound_merit
    return Ranked(cell=cell, merit=merit, bound_merit=bound_merit, expected=times)


def unsold(devices: Iterable[Hardware]) -> tuple[str, ...]:
    """Names of shipped devices that are not for sale; devices of the user's folder are never among them."""
    announced = (device.name for device in devices if device.status == ANNOUNCED)
    return tuple(name for name in announced if hardware_file(name).parent == data_dir("hardware"))


def _valid_degrees(model: Model, device: Hardware, device_limit: int) -> list[int]:
    """Numbers of devices up to `most` that tensor parallelism can divide the model by, on any `device`."""
    degrees = [1]
    for n in range(2, device_limit + 1):
        network = Network(hardware=device, layout=Layout(tp=n), inside=SCALE_UP, outside=SCALE_OUT, domain=inf)
        try:
            parallel(network, decode=False)(model.graph)
        except InputError:
            continue
        degrees.append(n)
    return degrees


def _spans_domains(cell: Cell) -> bool:
    """Whether the devices of a cell span several scale-up domains."""
    if cell.refused or cell.layout.devices == 1:
        return False
    return SCALE_OUT in cell.tiers and len(cell.tiers) > 1


def _merit(cell: Cell, rates: Num, comparison: Comparison, by: Criterion) -> float:
    """The figure that devices are ranked by, from output tokens per second."""
    tokens_per_s = float(np.ravel(rates)[0])
    if by is Criterion.COST:
        return float(cell.per_dollar(tokens_per_s, comparison.years))
    return float(cell.per_joule(tokens_per_s)) if by is Criterion.ENERGY else tokens_per_s
