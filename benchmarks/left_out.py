"""Errors of expected times and coverage of their intervals on rows that they know nothing of, by family and source.

    python benchmarks/left_out.py FOLDER    # with gemm.parquet, moe.parquet, ... of docs/measurements.md

Each measured stack is expected from the profiles that ship without those of its device, of its device and siblings, of
all devices with its kind of memory, of its library on the device, of its kernel on the device and of its kernel
anywhere. The class of a source is that of the nearest fit which remains. An error is the median over stacks of mean
errors. In a coverage, devices count equally, and of stand-ins stacks, as they do where intervals are learned
(benchmarks/accuracy.py and stand_ins.py).
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from llmviewer.errors import InputError
from llmviewer.expectation.index import device_traits, index
from llmviewer.expectation.profile import KernelFit
from llmviewer.expectation.rows import MeasuredRows, read
from llmviewer.expectation.transfer import expect, is_sibling, select_fits, source_class

ROWS = 300  # of a stack
MIN_STACKS = 5  # of a class whose numbers are printed
TABLES = ("gemm", "attention_prefill", "attention_decode", "moe", "elementwise", "collectives")


@dataclass(kw_only=True)
class Coverage:
    """Mean errors of stacks, and the share of times within their intervals, by device.

    is_stand_in  whether the source is another kernel, library or data type, whose intervals count stacks equally
    """

    is_stand_in: bool = False
    errors: list[float] = field(default_factory=list)
    inside: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    @property
    def error(self) -> float:
        """Median over stacks."""
        return float(np.median(self.errors))

    @property
    def covered(self) -> float:
        """Mean over devices of the mean over stacks; over all stacks if it is a stand-in."""
        means = [np.mean(shares) for shares in self.inside.values()]
        weights = [len(shares) if self.is_stand_in else 1 for shares in self.inside.values()]
        return float(np.average(means, weights=weights))


def remaining_fits(rows: MeasuredRows, fits: Sequence[KernelFit]) -> Iterator[list[KernelFit]]:
    """The fits that remain without those that know the most of a stack, a rule at a time."""
    device, implementation = rows.device, rows.implementation
    yield [fit for fit in fits if fit.device != device.name]
    yield [fit for fit in fits if fit.device != device.name and not is_sibling(fit, device)]
    yield [fit for fit in fits if device_traits(fit.device).stacked != device.stacked]
    yield [fit for fit in fits if (fit.device, fit.implementation.library) != (device.name, implementation.library)]
    yield [fit for fit in fits if (fit.device, fit.implementation) != (device.name, implementation)]
    yield [fit for fit in fits if fit.implementation != implementation]


def coverages(groups: Iterable[MeasuredRows], fits: Sequence[KernelFit]) -> Mapping[tuple[str, str], Coverage]:
    """Errors and coverage by family and class of source."""
    coverage_by_source: dict[tuple[str, str], Coverage] = {}
    for rows in groups:
        of_family = [fit for fit in fits if fit.family == rows.family.name]
        sources = set()
        for remaining in remaining_fits(rows, of_family):
            try:
                nearest, *_ = select_fits(rows.family.name, rows.device, rows.implementation, remaining).fits
            except InputError:
                continue
            source = source_class(nearest, rows.device, rows.implementation)
            if not source or source in sources:
                continue
            sources.add(source)
            expected = expect(rows.family.name, rows.shapes, rows.device, rows.implementation, remaining)
            one = coverage_by_source.setdefault((rows.family.name, source), Coverage(is_stand_in="another" in source))
            one.errors.append(float(np.mean(np.abs(expected.expected / rows.measured - 1))))
            is_inside = (rows.measured >= expected.low) & (rows.measured <= expected.high)
            one.inside[rows.device.name].append(float(np.mean(is_inside)))
    return dict(sorted(coverage_by_source.items()))


def stacks(path: Path, count: int = ROWS) -> Iterator[MeasuredRows]:
    """The stacks of a table, with at most `count` rows each."""
    for rows in read(path).rows:
        usable = np.flatnonzero(rows.fittable)
        if len(usable):
            yield rows.take(np.sort(np.random.default_rng(0).permutation(usable)[:count]))


def main() -> None:
    """Prints a line for each family and class of source."""
    folder = Path(sys.argv[1])
    groups = [rows for name in TABLES for rows in stacks(folder / f"{name}.parquet")]
    print(f"{'family':18s} {'source':38s} {'stacks':>6s} {'devices':>7s} {'error, %':>9s} {'in 80 %, %':>11s}")
    for (family, source), one in coverages(groups, index().fits).items():
        if len(one.errors) >= MIN_STACKS:
            counts = f"{len(one.errors):6d} {len(one.inside):7d}"
            print(f"{family:18s} {source:38s} {counts} {100 * one.error:9.1f} {100 * one.covered:11.0f}")


if __name__ == "__main__":
    main()
