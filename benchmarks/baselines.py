"""Compares kernel models with simpler and with learned ones, on rows that none of them was fitted to.

    pip install scikit-learn
    python benchmarks/baselines.py FOLDER    # with gemm.parquet, moe.parquet, ... of docs/measurements.md

It writes docs/baselines.md. Held out: half of the shape families of a stack, expected from the other half. Another
device: the rows of a stack, expected from the stacks of the same data type and kind of operation on all other devices.
The models:

- the roofline with datasheet rates;
- the roofline with three constants: a start, and the parts of arithmetic and of bandwidth that are reached;
- ours: the parameters of a family, with their trend on the own device (the variant is the one that ships);
- gradient-boosted trees (scikit-learn, HistGradientBoostingRegressor) on logarithms of the sizes and of the two least
  times, of measured / roofline;
- the mean of the nearest 5 rows in the same features, by their distance, of measured / roofline.
"""

from __future__ import annotations

import sys
import zlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from accuracy import TABLES
from scipy.optimize import least_squares
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.neighbors import KNeighborsRegressor
from stand_ins import ROOT

from llmviewer.expectation.calibrate import _Problem
from llmviewer.expectation.families.base import Array, Family, Features, FittedParameter, Parameters
from llmviewer.expectation.index import index
from llmviewer.expectation.profile import KernelFit
from llmviewer.expectation.rows import MeasuredRows, read
from llmviewer.expectation.transfer import expect

PAGE = ROOT / "docs" / "baselines.md"
STACKS = 6  # of a family, spread over its devices and libraries
ROWS = 1000  # of a stack
EARNED_ROWS = 300  # of a stack on which each parameter is tried
MIN_ROWS = {"collectives": 100}  # of a stack, by family
MIN_FAMILIES = {"collectives": 2}  # shape families of a stack, by family: few have more numbers of devices
OTHER_MIN_ROWS, OTHER_MIN_FAMILIES = 200, 4  # of the other families
MAX_OTHERS = 300  # rows of each stack on another device that a model learns from
MODELS = ("roofline", "three constants", "ours", "boosted trees", "nearest rows")
NEIGHBOURS = 5
MIN_SPREAD = 1e-6  # standard deviation of a feature that counts


def least_times(rows: MeasuredRows) -> Array:
    """Least times of arithmetic and of memory traffic, and the roofline; a column each. [s]"""
    ops, moved = rows.family.ideal_times(rows.shapes, rows.device, rows.implementation)
    bound = rows.family.bound(rows.shapes, rows.device, rows.implementation)
    return np.stack([np.maximum(ops, 1e-12), np.maximum(moved, 1e-12), np.maximum(bound, 1e-9)], axis=1)


def features_of(rows: MeasuredRows) -> Array:
    """Logarithms of the sizes and of the least times, a column each."""
    sizes = [np.log2(1 + np.asarray(rows.shapes[name], dtype=float)) for name in sorted(rows.shapes)]
    return np.column_stack([*sizes, np.log2(least_times(rows))])


def three_constants(times: Array, measured: Array) -> Array:
    """Start and the parts of the peak and of the bandwidth that fit best, as logarithms."""

    def residuals(position: Array) -> Array:
        return np.log(with_constants(position, times)) - np.log(measured)

    start = np.log([5e-6, 0.6, 0.8])
    return np.asarray(least_squares(residuals, start, loss="soft_l1", f_scale=0.1, max_nfev=60).x)


def with_constants(position: Array, times: Array) -> Array:
    """A start, and the longer of arithmetic and memory traffic at the parts of their rates that are reached. [s]"""
    start, alpha, beta = np.exp(np.clip(position, np.log([1e-8, 1e-3, 1e-3]), np.log([1e-2, 2.0, 2.0])))
    return np.asarray(start + np.maximum(times[:, 0] / alpha, times[:, 1] / beta))


def learned(fitted: Sequence[MeasuredRows], rows: MeasuredRows) -> dict[str, Array]:
    """Expected times by the models that need nothing but rows. [s]"""
    times = np.concatenate([least_times(one) for one in fitted])
    measured = np.concatenate([one.measured for one in fitted])
    features = np.concatenate([features_of(one) for one in fitted])
    ratios, least = np.log(measured / times[:, 2]), least_times(rows)
    spread = np.std(features, axis=0)
    spread[spread < MIN_SPREAD] = np.inf  # what did not vary says nothing of rows in which it does
    trees = HistGradientBoostingRegressor(max_iter=150, random_state=0).fit(features, ratios)
    near = KNeighborsRegressor(min(NEIGHBOURS, len(ratios)), weights="distance").fit(features / spread, ratios)
    return {
        "roofline": least[:, 2],
        "three constants": with_constants(three_constants(times, measured), least),
        "boosted trees": least[:, 2] * np.exp(trees.predict(features_of(rows))),
        "nearest rows": least[:, 2] * np.exp(near.predict(features_of(rows) / spread)),
    }


def halves(rows: MeasuredRows) -> Array:
    """The half, 0 or 1, that the shape family of each row is in."""
    return np.asarray(np.random.default_rng(0).permutation(rows.num_shape_families)[rows.shape_families()] % 2)


def ours(rows: MeasuredRows, fit: KernelFit, half: Array, *, bends: bool) -> Array:
    """Time of each row by parameters that are fitted to the other half, and by their trend if it `bends`. [s]"""
    problem = _Problem(
        rows=rows,
        variant=fit.variant,
        features=rows.family.features(rows.shapes, rows.device, rows.implementation, fit.variant),
        priors=rows.family.default_parameters(rows.implementation, rows.device),
        bound=rows.family.bound(rows.shapes, rows.device, rows.implementation),
    )
    return problem.held_out((np.random.default_rng(1).permutation(len(rows)), half), bends)[0]


def ours_held_out(rows: MeasuredRows, fit: KernelFit) -> float:
    """Mean error of the parameters alone on half of the shape families, fitted to the other half."""
    return error(ours(rows, fit, halves(rows), bends=False), rows)


def held_out(rows: MeasuredRows, fit: KernelFit) -> dict[str, float]:
    """Mean error of each model on half of the shape families of a stack, fitted to the other half."""
    half = halves(rows)
    expected = {name: np.empty(len(rows)) for name in MODELS}
    expected["ours"] = ours(rows, fit, half, bends=True)
    for part in (0, 1):
        other = [rows.take(np.flatnonzero(half != part))]
        for name, times in learned(other, rows.take(np.flatnonzero(half == part))).items():
            expected[name][half == part] = times
    return {name: error(times, rows) for name, times in expected.items()}


class _Without:
    """A family of kernels with a parameter at its default instead of fitted."""

    def __init__(self, family: Family, fixed: FittedParameter) -> None:
        self._family, self._fixed = family, fixed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._family, name)

    def parameters_of(self, variant: str) -> tuple[FittedParameter, ...]:
        return tuple(one for one in self._family.parameters_of(variant) if one.name != self._fixed.name)

    def seconds(self, p: Parameters, features: Features) -> Array:
        value = self._fixed.prior if self._fixed.default is None else self._fixed.default
        return self._family.seconds({**p, self._fixed.name: value}, features)


def earned(rows: MeasuredRows, fit: KernelFit) -> dict[str, float]:
    """Growth of the held-out error of a stack with each parameter at its default instead of fitted."""
    with_all = ours_held_out(rows, fit)
    return {
        one.name: ours_held_out(replace(rows, family=_Without(rows.family, one)), fit) - with_all  # type: ignore[arg-type]
        for one in rows.family.parameters_of(fit.variant)
    }


def elsewhere(rows: MeasuredRows, others: Sequence[MeasuredRows], fits: Sequence[KernelFit]) -> dict[str, float]:
    """Mean error of each model on a device that none has seen."""
    remaining = [fit for fit in fits if fit.device != rows.device.name]
    ours = expect(rows.family.name, rows.shapes, rows.device, rows.implementation, remaining).expected
    return {name: error(times, rows) for name, times in {**learned(others, rows), "ours": ours}.items()}


def error(expected: Array, rows: MeasuredRows) -> float:
    """Mean of |expected / measured - 1|."""
    return float(np.mean(np.abs(np.maximum(expected, 1e-9) / rows.measured - 1)))


def sampled(rows: MeasuredRows, count: int) -> MeasuredRows:
    """So many rows at random."""
    return rows.take(np.sort(np.random.default_rng(0).permutation(len(rows))[:count]))


def compared(stacks: Sequence[MeasuredRows]) -> tuple[dict[str, list[float]], ...]:
    """Errors by model, held out and on another device, and what each parameter earns, of stacks of one family."""
    fits = {(fit.device, fit.family, fit.implementation): fit for fit in index().fits}
    able = [
        rows
        for rows in stacks
        if len(rows) >= MIN_ROWS.get(rows.family.name, OTHER_MIN_ROWS)
        and rows.num_shape_families >= MIN_FAMILIES.get(rows.family.name, OTHER_MIN_FAMILIES)
        and (rows.device.name, rows.family.name, rows.implementation) in fits
    ]
    able.sort(key=lambda rows: zlib.crc32(repr((rows.device.name, rows.implementation)).encode()))
    near: dict[str, list[float]] = defaultdict(list)
    far: dict[str, list[float]] = defaultdict(list)
    growth: dict[str, list[float]] = defaultdict(list)
    for stack in able[:STACKS]:
        rows = sampled(stack, ROWS)
        fit = fits[rows.device.name, rows.family.name, rows.implementation]
        for name, value in held_out(rows, fit).items():
            near[name].append(value)
        for name, value in earned(sampled(rows, EARNED_ROWS), fit).items():
            growth[name].append(value)
        others = [sampled(one, MAX_OTHERS) for one in stacks if is_alike(one, rows)]
        if others:
            for name, value in elsewhere(rows, others, index().fits).items():
                far[name].append(value)
    return near, far, growth


def is_alike(one: MeasuredRows, rows: MeasuredRows) -> bool:
    """Whether a stack is of another device, the same data types and the same operation or kind of attention."""
    has_operations = rows.family.names_operations
    kinds = [
        (kernel.dtype, kernel.kv_dtype, kernel.operation if has_operations else kernel.attention_kind)
        for kernel in (one.implementation, rows.implementation)
    ]
    return one.device.name != rows.device.name and kinds[0] == kinds[1]


def earnings(name: str, growth: Mapping[str, list[float]]) -> list[str]:
    """Lines of a family's parameters, those that earn the most on some stack first."""
    return [
        f"| {name} | {parameter} | {len(values)} | {100 * np.median(values):.1f} | {100 * max(values):.1f} |"
        for parameter, values in sorted(growth.items(), key=lambda item: -max(item[1]))
    ]


def main() -> None:
    """Writes the page: a table for rows held out, one for other devices, and what each parameter earns."""
    tables: dict[str, list[str]] = {"held out": [], "another device": []}
    parameters: list[str] = []
    for name in TABLES:
        stacks = []
        for rows in read(Path(sys.argv[1]) / f"{name}.parquet").rows:
            usable = rows.take(np.flatnonzero(rows.fittable))
            if len(usable):
                stacks.append(usable)
        *errors_of_models, growth = compared(stacks)
        parameters += earnings(name, growth)
        for lines, errors in zip(tables.values(), errors_of_models, strict=True):
            if errors:
                values = " | ".join(f"{100 * np.median(errors[model]):.1f}" for model in MODELS)
                lines.append(f"| {name} | {len(errors['ours'])} | {values} |")
    head = [f"| family | stacks | {' | '.join(MODELS)} |", f"|---|---|{'---|' * len(MODELS)}"]
    text = [
        "# Baselines",
        "",
        "Errors of the kernel models of expected times, of simpler models and of machine learning, on rows that none",
        "of them was fitted to. Written by `python benchmarks/baselines.py FOLDER` from the public measurements",
        "that the profiles name.",
        "",
        "A **stack** is the rows of one kernel, library, device and data type. Compared are up to",
        f"{STACKS} of each family, with {OTHER_MIN_FAMILIES} shape families or more (collectives: two",
        "numbers of devices). Numbers are medians over stacks of the mean of |expected / measured - 1|, in per cent.",
        "",
        "- **roofline**: rates of the datasheet.",
        "- **three constants**: the roofline with a start-up time and fractions of peak and bandwidth, all fitted.",
        "- **ours**: the parameters of a family with their trend on the same device. The variant is the one that",
        "  ships, which was chosen on all rows.",
        "- **boosted trees** and **nearest rows**: gradient-boosted trees, and the mean of the nearest rows",
        f"  ({NEIGHBOURS}). Both predict measured / roofline from logarithms of the sizes and of the least times of",
        "  arithmetic and memory.",
        "",
        "Held out: half of the shape families of a stack, expected from the other half.",
        "",
        *head,
        *tables["held out"],
        "",
        "On a device that no model has seen, from the same data types on all others:",
        "",
        *head,
        *tables["another device"],
        "",
        "## What each parameter earns",
        "",
        "Increase of the held-out error of `ours`, without trends, if a parameter stays at its default instead of",
        f"being fitted, in percentage points: median and largest over the same stacks, {EARNED_ROWS} rows of each. A",
        "parameter whose largest increase is below 0.3 is not needed on these stacks; with a negative one, the fitted",
        "value makes other shapes worse.",
        "",
        "| family | parameter | stacks | median | largest |",
        "|---|---|---|---|---|",
        *parameters,
        "",
    ]
    PAGE.write_text("\n".join(text), encoding="utf-8")


if __name__ == "__main__":
    main()
