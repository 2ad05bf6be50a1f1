"""concurrency_sweep(): throughput against the speed of a request, by concurrency."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import field
from typing import Any, ClassVar, Final, Unpack

import numpy as np

from .. import __version__, arguments
from ..analyzing.facts import finite
from ..devices.hardware import Hardware
from ..errors import InputError
from ..model import Model
from ..options import document_options
from ..records import frozen
from ..rows import Rows
from ..setting import Setting
from .options import LoadCurveArguments
from .outcome import SCHEMA_VERSION, Simulation, summary
from .simulation import simulate

MAX_POINTS: Final = 64  # of a curve
_POINT_INPUTS: Final = ("concurrency", "requests", "max_batch")  # inputs that differ between points


@frozen(kw_only=True)
class Point:
    """A closed loop, at the bound or expected.

    speed             output tokens per second of one request, 1 / mean TPOT; nan if all outputs are of one token [1/s]
    per_device        output token throughput per device [1/s]
    read_and_written  input and output token throughput per device [1/s]
    """

    run: Simulation = field(repr=False)
    concurrency: int
    speed: float
    per_device: float
    read_and_written: float

    @classmethod
    def of(cls, run: Simulation) -> Point:
        tpot, traffic = run.tpot_s, run.traffic
        return cls(
            run=run,
            concurrency=traffic.in_flight or 0,
            speed=1 / float(np.mean(tpot)) if len(tpot) else np.nan,
            per_device=run.tokens_per_s / run.devices,
            read_and_written=float(np.sum(traffic.prompt + traffic.gen)) / run.span_s / run.devices,
        )

    def numbers(self) -> dict[str, Any]:
        """Results of a row of the curve. [s], [1/s]"""
        times = {name: summary(values) for name, values in self.run.metrics.items() if name in ("ttft_s", "latency_s")}
        return {
            "concurrency": self.concurrency,
            "tokens_per_s": self.run.tokens_per_s,
            "tokens_per_s_per_device": self.per_device,
            "all_tokens_per_s_per_device": self.read_and_written,
            "tokens_per_s_of_a_request": self.speed,
            **{f"{key}_{name}": times[name][key] for name in times for key in ("mean", "p50", "p99")},
            "mean_tpot_s": 1 / self.speed,
            "requests_per_s": self.run.requests_per_s,
            "good": self.run.good,
            "preemptions": self.run.preemptions,
            "limit": self.run.limit,
        }


@frozen(kw_only=True, repr=False)
class LoadCurve(Rows):
    """Closed loops of increasing concurrency, each simulated by itself."""

    report: ClassVar = "load_curve"

    runs: tuple[Simulation, ...] = field(repr=False)

    @property
    def setting(self) -> Setting:
        return self.runs[0].setting

    @property
    def unknown(self) -> str:
        return self.runs[0].unknown

    @property
    def bound(self) -> tuple[Point, ...]:
        return tuple(map(Point.of, self.runs))

    @property
    def expected(self) -> tuple[Point, ...]:
        """Empty if there are only bounds."""
        return tuple(Point.of(run.expected) for run in self.runs if run.expected)

    @property
    def inputs(self) -> dict[str, Any]:
        """The arguments, as in the JSON document."""
        shared_inputs = {name: value for name, value in self.runs[0].inputs.items() if name not in _POINT_INPUTS}
        return shared_inputs | {name: [run.inputs[name] for run in self.runs] for name in _POINT_INPUTS}

    def to_dict(self) -> dict[str, Any]:
        """The JSON document; docs/serving.md has its keys."""
        return finite({
            "schema_version": SCHEMA_VERSION,
            "llmviewer_version": __version__,
            "model": self.setting.model.name,
            "hardware": self.setting.hardware.name,
            "inputs": self.inputs,
            "devices": self.runs[0].devices,
            "points": [point.numbers() for point in self.bound],
            "expected": [point.numbers() for point in self.expected] or None,
            "unknown": self.unknown or None,
        })  # fmt: skip

    def rows(self) -> Iterator[dict[str, Any]]:
        """Rows of the CSV table, one per point, first at the bound, then expected."""
        for name, points in (("bound", self.bound), ("expected", self.expected)):
            yield from ({"times": name, **point.numbers()} for point in points)


@document_options(LoadCurveArguments)
def concurrency_sweep(
    model: str | Model | Setting,
    hardware: str | Hardware | None = None,
    *,
    concurrency: Iterable[int],
    progress: Callable[[int, int], object] = lambda finished, points: None,
    **options: Unpack[LoadCurveArguments],
) -> LoadCurve:
    """Simulates closed loops of several concurrencies: a higher one has more throughput and slower requests.

    concurrency  numbers of clients, in increasing order in the result
    progress     called with the number of finished points, and of all

    The options are as in simulate().

    Raises InputError as simulate() does, and for no numbers, too many, or duplicates.
    """
    concurrencies = arguments.as_numbers(
        concurrency if isinstance(concurrency, int | np.ndarray) else tuple(concurrency)
    )
    if not 0 < len(concurrencies) <= MAX_POINTS:
        raise InputError(f"concurrency must be 1 to {MAX_POINTS} numbers; got {len(concurrencies)}")
    arguments.check_unique("concurrency", concurrencies)
    runs: list[Simulation] = []
    for clients in concurrencies:
        runs.append(simulate(model, hardware, concurrency=clients, **options))
        progress(len(runs), len(concurrencies))
    return LoadCurve(runs=tuple(sorted(runs, key=lambda run: run.traffic.in_flight or 0)))
