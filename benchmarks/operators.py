"""Fits kernels of operators that few models have: writes profiles/operators/ and docs/operators.md.

    python benchmarks/operators.py FOLDER            # with linear_attention.parquet, ... (docs/measurements.md)
    python benchmarks/operators.py FOLDER TABLE...   # some of them; fits of other operators stay

Every error is of rows that were not fitted: of shape families that were held out, and of whole devices, whose rows are
expected from the fits of the others.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import yaml

from llmviewer.errors import InputError
from llmviewer.expectation.calibrate import CrossValidatedFit, cross_validate
from llmviewer.expectation.families import FAMILIES
from llmviewer.expectation.profile import (
    FOLDER,
    OPERATORS_FOLDER,
    OTHER_MEMORY,
    OTHER_VENDORS,
    SAME_VENDOR,
    SIBLINGS,
    SIMILARITY_CLASSES,
    TRANSFERRED,
    Error,
    KernelFit,
    Profile,
    coverage_quantile,
    error_of,
    plain_error,
    read_errors,
    to_yaml,
)
from llmviewer.expectation.profile import read as read_profile
from llmviewer.expectation.rows import MeasuredRows, read
from llmviewer.expectation.transfer import expect, select_fits, similarity_class

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "operators.md"
TABLES = ("linear_attention", "mhc", "quantize", "moe_all_to_all", "mla_bmm", "attention_module", "sparse_attention")
SOURCE = "aiconfigurator (github.com/ai-dynamo/aiconfigurator), measured kernels, Apache-2.0, 2026"
MIN_ROWS = 24  # of a fit that ships
ROWS = 1000  # of a stack that are expected from other devices
MAX_TREND_ERROR_RATIO = 0.8  # held-out error with a trend over that without, to ship its 5 kB
PLAIN = ("gemm", "attention_layer")  # families that have many fits, or variants, and ship without trends
MIN_COVERED = 0.75  # of left-out times, below which an interval is raised
MAX_POWER = 2.0  # to which it is raised at most: with two devices, one says little of the other
COVERAGE = 0.8  # of times within an interval
MAX_ERROR = 0.8  # held out, beyond which a fit says less than its interval


def main() -> None:
    """Fits tables of a folder, and writes profiles, their errors and the page."""
    folder, *tables = sys.argv[1:]
    groups = [
        rows
        for name in tables or TABLES
        for rows in read(Path(folder) / f"{name}.parquet").rows
        if len(rows) >= MIN_ROWS
    ]
    validated = [each for rows in groups if (each := _fitted(rows))]
    errors = _transfer_errors(validated)
    fits = [each.kernel_fit for each in validated]
    if tables:
        operations = {_kind(fit) for fit in fits}
        files = sorted(OPERATORS_FOLDER.glob("*.*.yaml"))
        earlier_fits = [fit for path in files for one in read_profile(path) for fit in one.fits]
        fits += [fit for fit in earlier_fits if _kind(fit) not in operations]
        errors = read_errors(OPERATORS_FOLDER / TRANSFERRED) | errors
    _write_profiles(fits)
    OPERATORS_FOLDER.joinpath(TRANSFERRED).write_text(_errors_text(errors), encoding="utf-8")
    subprocess.run([sys.executable, "-m", "llmviewer.expectation.index"], check=True, cwd=ROOT)
    PAGE.write_text("\n".join(_page(fits, errors)), encoding="utf-8")


def _fitted(rows: MeasuredRows) -> CrossValidatedFit | None:
    """The fit of a stack, with a trend only if that is worth its size; None if it has few rows or does not hold."""
    if rows.family.name == "attention_layer":
        rows = rows.take(np.sort(np.random.default_rng(0).permutation(len(rows))[:ROWS]))
    plain = cross_validate(rows, bends=False)
    bent = cross_validate(rows) if rows.family.name not in PLAIN else plain
    if not plain or not bent:
        return None
    plain_mape, bent_mape = (each.kernel_fit.held_out.mape for each in (plain, bent))
    best = bent if bent_mape < MAX_TREND_ERROR_RATIO * plain_mape else plain
    return _by_shape_family(best) if best.kernel_fit.held_out.mape < MAX_ERROR else None


def _by_shape_family(validated: CrossValidatedFit) -> CrossValidatedFit:
    """The fit with the errors of each of its shape families rather than of folds of them, and an interval no wider than
    one that holds 80 % of the times of each: where one of three is far off, what the two others say of it would widen
    the interval to a multiple of that.
    """
    fit, rows = validated.kernel_fit, validated.rows
    if fit.shape_families:
        return validated
    expected, measured, parts = validated.held_out, rows.measured, rows.shape_families()
    error = error_of(expected, measured, parts)
    powers = error.needed(expected, measured)
    holding_each = max(float(np.quantile(powers[parts == part], COVERAGE)) for part in np.unique(parts))
    return replace(validated, kernel_fit=replace(fit, held_out=error.widened(min(holding_each, 1.0))))


def _wide_enough(error: Error, expected: np.ndarray, measured: np.ndarray, parts: np.ndarray) -> Error:
    """The error, its interval raised to the power at which those learned without each part hold 80 % of its times, if
    the parts are too few for an interval that does: of two devices, one is farther off than the other.
    """
    if error.covered >= MIN_COVERED or len(np.unique(parts)) < 2:
        return error
    powers, weights = np.empty(len(parts)), np.empty(len(parts))
    for part in np.unique(parts):
        own_rows = parts == part
        learned = error_of(expected[~own_rows], measured[~own_rows], parts[~own_rows])
        powers[own_rows] = learned.needed(expected[own_rows], measured[own_rows])
        weights[own_rows] = 1 / np.count_nonzero(own_rows)
    return error.widened(float(np.clip(coverage_quantile(powers, weights), 1.0, MAX_POWER)))


Errors = dict[tuple[str, str, str], Error]  # by family, operation and class of source


def _write_profiles(fits: Sequence[KernelFit]) -> None:
    OPERATORS_FOLDER.mkdir(exist_ok=True)
    for old in OPERATORS_FOLDER.glob("*.yaml"):
        old.unlink()
    stacks = defaultdict(list)
    for fit in fits:
        stacks[fit.device, fit.implementation.library].append(fit)
    for (device, library), stack_fits in stacks.items():
        # Sizes tell which of several kernels was measured nearer; a layer has one, and its bytes say little of it.
        profile_fits = [replace(fit, sizes={}) if fit.family == "attention_layer" else fit for fit in stack_fits]
        ordered = sorted(profile_fits, key=lambda e: (*_kind(e), e.implementation.dtype, -e.rows))
        profile = Profile(device=device, library=library, sources=(SOURCE,), fits=tuple(ordered))
        (OPERATORS_FOLDER / f"{device}.{library}.yaml").write_text(to_yaml([profile]), encoding="utf-8")


def _kind(fit: KernelFit) -> tuple[str, str]:
    return fit.family, fit.implementation.operation


def _transfer_errors(validated: Sequence[CrossValidatedFit]) -> Errors:
    """Errors of the rows of each device in turn, expected from the fits of the others."""
    fits = [each.kernel_fit for each in validated]
    times = defaultdict(list)
    for each in validated:
        for near, expected, measured in _expected_elsewhere(each.rows, fits):
            for operation in (each.kernel_fit.implementation.operation, "all"):
                times[each.rows.family.name, operation, near].append((expected, measured, each.rows.device.name))
    errors = {}
    for key, parts in times.items():
        if key[0] in ("elementwise", "gemm") and key[1] == "all":  # which other kernels of them decide
            continue
        expected, measured = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
        devices = np.repeat([part[2] for part in parts], [len(part[0]) for part in parts])
        errors[key] = _wide_enough(error_of(expected, measured, devices), expected, measured, devices)
    return _complete(errors)


def _complete(errors: Errors) -> Errors:
    """Adds intervals across makers; those of other devices of one maker are wider than of siblings as errors are."""
    wider = {
        (family, operation, near): _as_wide(error, errors.get((family, operation, SIBLINGS), error))
        for (family, operation, near), error in errors.items()
        if near == SAME_VENDOR
    }
    shared = read_errors(FOLDER / TRANSFERRED)
    several = [name for name in FAMILIES if (name, "all", OTHER_VENDORS) in shared]
    power = float(np.median([_power_across_makers(shared, name) for name in several]))
    across = {
        (family, operation, OTHER_VENDORS): error.or_wider(
            errors.get((family, operation, OTHER_MEMORY), error)
        ).widened(power)
        for (family, operation, _), error in wider.items()
    }
    return errors | wider | across


def _as_wide(error: Error, of_siblings: Error) -> Error:
    return error.or_wider(of_siblings.widened(max(error.mape / of_siblings.mape, 1.0)))


def _power_across_makers(shared: Errors, name: str) -> float:
    """Power to which intervals within one maker become those across makers, of a family measured on several."""
    within, across = (shared[name, "all", near] for near in (SAME_VENDOR, OTHER_VENDORS))
    return float(np.log(across.long[1]) / np.log(within.long[1]))


def _expected_elsewhere(rows: MeasuredRows, fits: Sequence[KernelFit]) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Yields the class of the nearest other device, expected and measured times."""
    others = [fit for fit in fits if fit.device != rows.device.name and fit.family == rows.family.name]
    rows = rows.take(np.random.default_rng(0).permutation(len(rows))[:ROWS])
    try:
        nearest, *_ = select_fits(rows.family.name, rows.device, rows.implementation, others).fits
    except InputError:
        return
    expectation = expect(rows.family.name, rows.shapes, rows.device, rows.implementation, others)
    if not expectation.source.startswith("no kernel"):
        yield similarity_class(nearest, rows.device), expectation.expected, rows.measured


def _errors_text(errors: Errors) -> str:
    document: dict[str, dict[str, dict[str, object]]] = {}
    for near in SIMILARITY_CLASSES:
        for (family, operation, source_class), error in sorted(errors.items()):
            if source_class == near:
                document.setdefault(family, {}).setdefault(near, {})[operation] = plain_error(error)
    about = "Errors of expectations for devices that nothing was fitted on: each device in turn left out.\n"
    return f"# {about}{yaml.safe_dump({'errors': document}, sort_keys=False, width=120, default_flow_style=None)}"


def _page(fits: Sequence[KernelFit], errors: Errors) -> list[str]:
    lines = [
        "# Operators that few models have: errors of expected times",
        "",
        "Written by `python benchmarks/operators.py FOLDER` from measurements of",
        "[aiconfigurator](https://github.com/ai-dynamo/aiconfigurator) (Apache-2.0).",
        "",
        "- `shapes`: number of measured shape families (heads, channels). With one or two, errors and intervals are",
        "  those of similar kernels fitted to as few ([accuracy.md](accuracy.md#few-shapes)).",
        "- `held out, %` and `median, %`: mean and median error on rows that were not fitted. The first table leaves",
        "  shape families out, the second one devices.",
        "- `10 to 90 %`: the 80 % interval of measured / expected time, for kernels of 20 us or more.",
        "- `in 80 %, %`: share of the left-out times inside an interval that was learned from the other shape families",
        "  or devices. With three shape families, 67 % is usual, as the one with the largest error is outside the",
        "  interval of the two others; the interval that ships is learned from all three.",
        "",
        "Some intervals are changed:",
        "",
        f"- If few devices were measured and the share inside is under {100 * MIN_COVERED:.0f} %, the interval",
        "  for other devices is raised to the power at which those learned without each device contain 80 % of its",
        "  times, at most squared.",
        "- The interval for devices of other vendors is the one within a vendor, raised to the power that families",
        "  measured on devices of several vendors need.",
        "- No interval for other shapes is wider than one that contains 80 % of the times of each measured shape",
        "  family.",
        "",
        "| device | library | operation | kernel | rows | shapes | held out, % | median, % | 10 to 90 % | in 80 %, % |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for fit in sorted(fits, key=lambda e: (e.implementation.operation, e.device, e.implementation.library)):
        one = fit.implementation
        name = one.kernel.removesuffix(one.operation).strip() or "its own"
        stack = f"| {fit.device} | {one.library} | {one.operation} | {name} | {fit.rows:,} "
        stack += f"| {fit.shape_families or '3 or more'} "
        lines.append(stack + _error_cells(fit.held_out))
    lines += ["", "On devices that were not fitted, each device in turn left out:", ""]
    lines += [
        "| operation | nearest device | held out, % | median, % | 10 to 90 % | in 80 %, % |",
        "|---|---|---|---|---|---|",
    ]
    for (_, operation, near), error in sorted(errors.items(), key=lambda one: one[0][1:]):
        if near == OTHER_VENDORS:
            continue
        lines.append(f"| {operation} | {near} " + _error_cells(error))
    return [*lines, ""]


def _error_cells(error: Error) -> str:
    low, high = error.long
    return (
        f"| {100 * error.mape:.1f} | {100 * error.median:.1f} | {low:.2f} to {high:.2f} | {100 * error.covered:.0f} |"
    )


if __name__ == "__main__":
    main()
