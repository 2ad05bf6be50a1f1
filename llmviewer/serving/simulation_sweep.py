"""simulation_sweep(): simulations of many settings and loads with several seeds each, in shards of a folder."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Unpack

import numpy as np

from .. import __version__
from ..analyzing.facts import finite
from ..arguments import as_list
from ..devices.files import load_hardware
from ..errors import InputError
from ..model_files import load_model
from ..options import document_options
from ..records import frozen
from ..rows import Rows
from ..sweeping.design import digest
from ..sweeping.shard_files import (
    check_same,
    hash_of,
    is_finished,
    read_rows,
    refusals,
    run_shards,
    shard_path,
    write_rows,
)
from .confidence import CONFIDENCE, MeanEstimate
from .options import SimulationArguments
from .outcome import SCHEMA_VERSION, Simulation, summary
from .simulation import simulate
from .simulation_design import NUMBER_AXES, REAL_AXES, SimulationDesign

if TYPE_CHECKING:
    import pyarrow as pa

_TIMES: Final = {
    "wait_s": ("mean",), "ttft_s": ("mean", "p50", "p90", "p99"), "tpot_s": ("mean", "p99"), "gap_s": ("p99",),
    "latency_s": ("mean", "p99"),
}  # fmt: skip
MEASURES: Final = (
    *(f"{name}_{time}" for time, names in _TIMES.items() for name in names), "requests_per_s", "tokens_per_s", "good",
    "goodput_requests_per_s", "utilization", "mean_replicas", "failed", "preemptions", "hit_rate", "tasks_per_s",
    "tokens_per_joule_at_tdp", "tokens_per_dollar",
)  # fmt: skip
_PREFIXES: Final = ("", "expected_")
_TEXTS: Final = ("limit", "unknown")

Measures = Mapping[str, MeanEstimate]


@frozen(kw_only=True)
class Combination:
    """Values of the axes, and estimates of their simulations. [s], [1/s]

    seeds     number of its simulations
    bound     estimates of MEASURES with steps at the bound
    expected  the same with steps at their expected times; None without any
    limit     bottleneck in the first of the simulations
    unknown   why there are no expected times; "" if there are
    """

    axes: Mapping[str, Any]
    seeds: int
    bound: Measures
    expected: Measures | None
    limit: str
    unknown: str

    @property
    def likely(self) -> Measures:
        """The expected estimates if there are any, else those at the bound."""
        return self.expected or self.bound


@frozen(kw_only=True, repr=False)
class SimulationSweep(Rows):
    """Simulations of a design, of which `finished` exist.

    points   combinations that were simulated, in the order of the design
    refused  simulations that cannot run, with reasons
    """

    report: ClassVar = "simulation_sweep"

    design: SimulationDesign = field(repr=False)
    points: tuple[Combination, ...]
    refused: tuple[Mapping[str, str], ...]
    finished: int

    @property
    def unknown(self) -> str:
        """Why a combination has no expected times; "" if all have."""
        return next((point.unknown for point in self.points if point.unknown), "")

    @property
    def has_goals(self) -> bool:
        """Whether there are latency targets."""
        return bool({"ttft", "tpot"} & self.design.options.keys())

    @property
    def inputs(self) -> dict[str, Any]:
        """The arguments, as in the JSON document."""
        return finite({**self.design.options, "axes": dict(self.design.axes), "seeds": list(self.design.seeds)})

    def to_dict(self) -> dict[str, Any]:
        """The JSON document; docs/serving.md has its keys."""
        return finite({
            "schema_version": SCHEMA_VERSION,
            "llmviewer_version": __version__,
            "model": self.design.axes["model"],
            "hardware": self.design.axes["hardware"],
            "inputs": self.inputs,
            "confidence": CONFIDENCE,
            "simulations": self.design.shards,
            "finished": self.finished,
            "points": [
                {
                    "axes": dict(point.axes), "seeds": point.seeds, **_numbers(point.bound),
                    "expected": _numbers(point.expected) if point.expected else None, "limit": point.limit,
                    "unknown": point.unknown or None,
                }
                for point in self.points
            ],
            "refused": list(self.refused),
        })  # fmt: skip

    def rows(self) -> Iterator[dict[str, Any]]:
        """Rows of the CSV table, one per combination: means, and half the width of their intervals."""
        for point in self.points:
            row: dict[str, Any] = {**point.axes, "seeds": point.seeds}
            for prefix, measures in zip(_PREFIXES, (point.bound, point.expected), strict=True):
                for name, estimate in (measures or {}).items():
                    row |= {f"{prefix}{name}": estimate.mean, f"{prefix}{name}_half": estimate.half}
            yield row | {"limit": point.limit}


def _numbers(measures: Measures) -> dict[str, Any]:
    """Estimates for the JSON document."""
    return {name: {"mean": one.mean, "low": one.low, "high": one.high} for name, one in measures.items()}


@document_options(SimulationArguments)
def simulation_sweep(
    models: str | Sequence[str],
    hardware: str | Sequence[str],
    over: Mapping[str, Sequence[Any]] | None = None,
    *,
    seeds: int | None = None,
    folder: str | Path | None = None,
    workers: int = 1,
    shard: tuple[int, int] = (1, 1),
    dask: str | None = None,
    progress: Callable[[int, int], object] = lambda finished, simulations: None,
    message: Callable[[str], object] = lambda line: None,
    **options: Unpack[SimulationArguments],
) -> SimulationSweep:
    """Simulates all combinations of the values of `over`, each with several seeds, and estimates their means.

    over      axes and their values: rate, concurrency, replicas, policy, router, prompt, gen, quant, layout, ..., or a
              number of the device, such as "memory.bandwidth" with values "1x" and "2x"
    seeds     simulations of each combination; all combinations have the same seeds. None: 5, or one with `arrivals`
    folder    folder of shards, in which a sweep resumes; None: a temporary one
    workers   processes on this machine; with shard = (i, n) only every n-th simulation is run, from the i-th on, and
              with `dask`, the address of a scheduler, its workers run them
    progress  called with the number of finished simulations, and of all
    message   called with a line if the sweep has to wait

    The options are as in simulate().

    Raises InputError as simulate() does if no combination can be simulated.
    """
    design = SimulationDesign.of(as_list(models), as_list(hardware), over or {}, seeds=seeds, **options)
    running: dict[str, Any] = {
        "workers": workers, "shard": shard, "dask": dask, "progress": progress, "notice": message,
    }  # fmt: skip
    if folder is not None:
        run_shards(Path(folder), design, write_shard, **running)
        return read_sweep(Path(folder))
    with tempfile.TemporaryDirectory() as temporary:
        run_shards(Path(temporary), design, write_shard, **running)
        return read_sweep(Path(temporary))


def read_sweep(folder: Path) -> SimulationSweep:
    """The finished simulations in a folder.

    Raises InputError if it holds no sweep of simulations, a shard is damaged, or all simulations were refused.
    """
    design = SimulationDesign.read(folder)
    shards = [shard for shard in range(design.shards) if is_finished(folder, design, shard)]
    runs: dict[int, list[Mapping[str, Any]]] = {}
    refused: dict[str, Mapping[str, str]] = {}
    for shard in shards:
        for row in read_rows(shard_path(folder, shard)):
            runs.setdefault(shard % design.combinations, []).append(row)
        refused |= {str({**one, "seed": ""}): one for one in refusals(shard_path(folder, shard))}
    if refused and not runs and len(shards) == design.shards:
        raise InputError(next(iter(refused.values()))["reason"])
    points = tuple(_point(design.combination(number), rows) for number, rows in sorted(runs.items()))
    return SimulationSweep(design=design, points=points, refused=tuple(refused.values()), finished=len(shards))


def _point(axes: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> Combination:
    """The estimates of a combination from its simulations."""
    bound, expected = (
        {name: MeanEstimate.of(np.array([row[f"{prefix}{name}"] for row in rows], dtype=float)) for name in MEASURES}
        for prefix in _PREFIXES
    )
    limit, unknown = (rows[0][name] or "" for name in _TEXTS)
    has_expected = not np.isnan(expected["requests_per_s"].mean)
    return Combination(
        axes=axes, seeds=len(rows), bound=bound, expected=expected if has_expected else None, limit=limit,
        unknown=unknown,
    )  # fmt: skip


def write_shard(folder: Path, shard: int, key: str) -> int:
    """Runs a simulation of the design in `folder` and writes its row; returns its number.

    key  SimulationDesign.key of the caller's design

    Raises InputError if the folder, a model, a device or a file has changed since the design was made.
    """
    design = _design(folder, key)
    rows, refused = [], []
    try:
        rows.append(_row(design, shard, simulate(**design.arguments(shard))))
    except InputError as error:
        values = design.combination(shard) | {"seed": design.seed(shard), "reason": str(error)}
        refused.append({name: str(value) for name, value in values.items()})
    floats = tuple(f"{prefix}{name}" for prefix in _PREFIXES for name in MEASURES)
    schema = _schema(design, floats)
    return write_rows(
        folder, shard, design, schema, [_table(rows, schema)], refused=refused, texts=_TEXTS, floats=floats
    )


@cache
def _design(folder: Path, key: str) -> SimulationDesign:
    """The design in a folder, whose models, devices and files are still the same."""
    design = SimulationDesign.with_key(folder, key)
    changes = tuple(design.options.get("hardware_set", ()))
    for source, original in design.digests.items():
        kind, _, name = source.partition(" ")
        if kind == "file":
            current = hash_of(name)
        else:
            current = digest(load_model(name) if kind == "model" else load_hardware(name, changes))
        check_same(name, current, original)
    return design


def _row(design: SimulationDesign, shard: int, run: Simulation) -> dict[str, Any]:
    """The row of a simulation."""
    row = design.combination(shard) | {"seed": design.seed(shard), "limit": run.likely.limit, "unknown": run.unknown}
    for prefix, one in zip(_PREFIXES, (run, run.expected), strict=True):
        row |= {f"{prefix}{name}": value for name, value in (measures(one) if one else {}).items()}
    return row


def measures(run: Simulation) -> dict[str, float | None]:
    """MEASURES of a simulation at the bound, or of one as expected. [s], [1/s]"""
    times = {name: summary(values) for name, values in run.metrics.items()}
    return {
        **{f"{name}_{time}": times[time][name] for time, names in _TIMES.items() for name in names},
        "requests_per_s": run.requests_per_s, "tokens_per_s": run.tokens_per_s, "good": run.good,
        "goodput_requests_per_s": run.good * run.requests_per_s, "utilization": run.utilization,
        "mean_replicas": run.mean_replicas, "failed": 1 - float(np.mean(run.finished)),
        "preemptions": float(run.preemptions), "hit_rate": run.hit_rate, "tasks_per_s": run.tasks_per_s,
        "tokens_per_joule_at_tdp": run.tokens_per_joule, "tokens_per_dollar": run.tokens_per_dollar,
    }  # fmt: skip


def _schema(design: SimulationDesign, floats: Sequence[str]) -> pa.Schema:
    import pyarrow as pa

    axis_types = {**dict.fromkeys(REAL_AXES, pa.float64()), **dict.fromkeys(NUMBER_AXES, pa.int64())}
    types = {
        **{axis: axis_types.get(axis, pa.string()) for axis in design.axes}, "seed": pa.int64(),
        **dict.fromkeys(floats, pa.float64()), **dict.fromkeys(_TEXTS, pa.string()),
    }  # fmt: skip
    return pa.schema(types)


def _table(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.Table:
    import pyarrow as pa

    return pa.Table.from_pylist([{name: row.get(name) for name in schema.names} for row in rows], schema=schema)
