"""Fits the shipped profiles and writes docs/accuracy.md, the errors of expected times.

    python benchmarks/accuracy.py FOLDER            # with gemm.parquet, moe.parquet, ... of docs/measurements.md
    python benchmarks/accuracy.py FOLDER --refit    # also what follows from the same rows and code as last time
    python benchmarks/accuracy.py --ours            # only profiles of reports/measurements, and their part of the page

Every error is of rows that were not fitted: of shape families that were held out, three folds; and of whole devices,
whose rows are expected from the parameters of all others. A second table shows what 50 rows of a stack are worth, and
what neighbours of measured shapes add; a third whether what is expected scales as measurements do.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from multiprocessing.pool import Pool
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import yaml
from expectation import expectation_rates
from fitted import REFIT_OPTION, Results, digest_of, digest_of_entry
from scipy import stats

from llmviewer import hardware_names
from llmviewer.expectation.calibrate import MIN_ROWS as MIN_FITTED_ROWS
from llmviewer.expectation.calibrate import (
    cross_validate,
    fit_kernel,
    held_out_times,
    nearest_fits,
)
from llmviewer.expectation.device import Device, find_device
from llmviewer.expectation.families import Family, Implementation
from llmviewer.expectation.index import device_traits, index
from llmviewer.expectation.profile import (
    FEW_SHAPES,
    FOLDER,
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
    to_yaml,
    transfer_errors,
)
from llmviewer.expectation.profile import read as profile_of
from llmviewer.expectation.residual import MIN_ROWS as LEAST_POINTS
from llmviewer.expectation.rows import MeasuredRows, read
from llmviewer.expectation.transfer import (
    expect,
    few_shapes_error,
    is_sibling,
    select_fits,
    similarity_class,
    source_class,
)

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "accuracy.md"
MEASUREMENTS = ROOT / "reports" / "measurements"
OURS = "llmviewer measure"  # as the source of rows
SOURCES = {
    "aiconfigurator": "aiconfigurator (github.com/ai-dynamo/aiconfigurator), measured kernels, Apache-2.0, 2026",
    "vidur": "vidur (github.com/microsoft/vidur), profiling data, MIT, 2024",
    "infersim": "InferSim (github.com/alibaba/InferSim), bench_data, Apache-2.0, 2025",
    "aiter": "AITER (github.com/ROCm/aiter), tuned configurations, MIT, 2026",
    "llmservingsim": "LLMServingSim (github.com/casys-kaist/LLMServingSim), profiler, MIT",
    "neusight": "NeuSight (github.com/sitar-lab/NeuSight), operator data, MIT",
    "apex_plus": "APEX+ (github.com/microsoft/apex_plus), nccl-tests, MIT, 2024",
    OURS: "llmviewer measure, rows in reports/measurements, Apache-2.0, 2026",
    "simumax": "SimuMax (github.com/MooreThreads/SimuMax), Apache-2.0, 2025",
}
MIN_STACK_ROWS = 40  # rows of a stack that ships
DEVICES = 3  # from which intervals for others of their maker can be learned
CLEARLY_BETTER = 0.97  # fitted and held-out error of a fit over those of the one that ships, to replace it
FEW_ROWS = 50  # rows that a user measures in minutes
TRIED = 12  # stacks of a kind that are tried with so few
# Families that most models have; benchmarks/operators.py fits the others.
TABLES = ("gemm", "attention_prefill", "attention_decode", "moe", "elementwise", "collectives")
FAMILY_TABLES = {name: f"{name}.parquet" for name in TABLES} | {  # whose kernels have one or two shapes on some devices
    "scan": "linear_attention.parquet",
    "attention_layer": "attention_module.parquet",
}
NOT_FITTED = {"llmcompass"}  # wall clock with the time of the framework in it
AIMS = {  # family, data types: must and aim [%] on a known device, and on one never fitted
    ("gemm", "16 bit"): (8, 5, 12, 9),
    ("gemm", "quantized"): (12, 6.5, 25, 15),
    ("attention_prefill", "all"): (9, 4, 18, 14),
    ("attention_decode", "all"): (10, 5, 22, 12),
    ("moe", "all"): (18, 9, 30, 20),
    ("elementwise", "all"): (9, 6, 18, 12),
    ("collectives", "NCCL"): (10, 7, 14, 10),
    ("collectives", "custom"): (18, 8, 25, 18),
}
HOSTED = "collectives", "over PCIe"
# Whose time over twice of what is flat below the first, and linear above the second, of these quotients.
SCALING = {
    "gemm": ("M", 1.25, 1.7),
    "attention_decode": ("kv_len", 1.25, 1.7),
    "attention_prefill": ("q_len", 1.3, 2.8),
}
WEAK = """\
## Where it is weak, and why

- Norms on A100 and H100 come from Sarathi (2024): a plain RMSNorm as in early vLLM, with one block per row, which reads
  the row twice, one word per load, and takes up to three times the bound. They stand in for all libraries on these
  devices, and on all others but the H200, whose norms are our Triton kernels; newer kernels are faster but were not
  measured elsewhere.
- TensorRT-LLM has two kernels for decode attention on Hopper and Ada, XQA and masked attention; the model chooses
  between them and splits caches as their sources do. Errors are 7 to 9 % if query heads share keys, most of which XQA
  runs; 9 to 12 % if none share keys or more than 32 do, which masked attention runs; and 10 to 15 % for heads of 192
  elements. With 8-bit caches on Ada, masked attention takes about 50 ns per key, which its source does not explain:
  16 %.
- Element-wise kernels of PyTorch on another device: their times include 16 to 57 us of a launch by the host, which
  varies with the host, not with the device. The launch of the median host is assumed. It is two thirds of that with
  P100 and 1.5 times that with MI100, where errors are 32 and 29 %; elsewhere they are 6 to 13 %. With the right launch
  they would be 3 to 10 %.
- Attention on another device: kernels for Blackwell (TensorRT-LLM's, in all libraries) were measured on B200 only.
  Their decode times, expected from kernels of other devices, are 15 to 37 % off. Some kernels resemble none that was
  measured elsewhere: TensorRT-LLM's masked attention with 8-bit caches on Ada, latent attention in Triton, and Intel's
  are 45 to 69 % off. Of SGLang's latent attention over a prompt, the absorbed form was measured on Hopper and L40S, and
  the expanded one, which it runs, on B200 only; TensorRT-LLM's stands in elsewhere.
- NCCL on B200 takes 1.5 times as long to start as on Hopper, and 1.6 times as long for each further device, at the same
  clock: 20 to 28 % off if expected from other devices.
- Other vendors than NVIDIA have one or two fits per device. Expected times for similar devices are rough and their
  intervals wide: that of decode attention reaches from a quarter of the expected time to 5.5 times it.
"""
OWN_TITLE = "## Rows of our own"
Moved = tuple[KernelFit, Any, Any, str]  # expected, measured, and how near the nearest is
AGREEING = {"gemm": 87, "attention_decode": 80, "attention_prefill": 88}


@dataclass(frozen=True, kw_only=True)
class Stack:
    """Measured rows of a kernel implementation on a device, and its fit to them."""

    rows: MeasuredRows
    kernel_fit: KernelFit


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """Rows that `llmviewer measure` recorded on a machine, the error of their fit, and the fit if it ships."""

    machine: str
    rows: MeasuredRows
    error: Error
    kernel_fit: KernelFit | None


def main() -> None:
    """Fits measurements, writes their profiles and the page of accuracy; with --ours, of recorded tables only."""
    if sys.argv[1] == "--ours":
        _write_ours()
        return
    _run("few_shapes.py")  # what fits to few shapes borrow
    folder = Path(sys.argv[1])
    groups: list[MeasuredRows] = []
    sources: dict[tuple[str, str], set[str]] = defaultdict(set)
    for name in TABLES:
        table = read(folder / f"{name}.parquet")
        origin = table.frame["source"].astype(str).to_numpy()
        for rows in table.rows:
            fitted_rows = rows.take(np.flatnonzero(~np.isin(origin[rows.places], list(NOT_FITTED))))
            if "torch.distributed" in set(table.frame["framework"].iloc[fitted_rows.places]):
                fitted_rows = _sends(fitted_rows, table.frame["kernel"])
            if len(fitted_rows) >= MIN_STACK_ROWS:
                groups.append(fitted_rows)
                sources[fitted_rows.device.name, fitted_rows.implementation.library] |= set(origin[fitted_rows.places])
    with multiprocessing.Pool(2) as pool:
        recorded = _recorded(pool)
        ours = [one.kernel_fit for one in recorded if one.kernel_fit]
        stacks = _write_fits(pool, groups, ours, sources)
        fits = [stack.kernel_fit for stack in stacks]
        public = {_stack(kernel_fit) for kernel_fit in fits}
        every = [*fits, *(kernel_fit for kernel_fit in ours if _stack(kernel_fit) not in public)]
        moved = _transfers(pool, stacks, every, _device)
        nearer = {id(m[0]) for m in moved if m[3] == SAME_VENDOR}
        related = [stack for stack in stacks if id(stack.kernel_fit) not in nearer and _has_siblings(stack, every)]
        without_siblings = _transfers(pool, related, every, _siblings)
        movers = [stack for stack in stacks if not stack.rows.family.generation_dependent]
        across = _transfers(pool, movers, every, _memory)
        sample_errors = _sample_errors(pool, _spread_stacks(stacks), every)
        near = _near_errors(pool, [stack for stack in _spread_stacks(stacks) if len(stack.rows) >= LEAST_POINTS])
        agreements = _agreements(pool, stacks)
    every_way = _every_way(moved, without_siblings, across)
    _write_transferred(every_way)
    subprocess.run([sys.executable, "-m", "llmviewer.expectation.index"], check=True, cwd=ROOT)
    sections = [
        *_carried(every_way),
        *_few_shapes(),
        *_worth(sample_errors, near),
        *_scaling(agreements),
        *_violations(groups),
        *_recorded_section(recorded),
    ]
    text = _document(fits, moved, [*sections, *WEAK.splitlines(), ""])
    PAGE.write_text(text, encoding="utf-8")
    _run("stand_ins.py")


def _write_ours() -> None:
    """Fits recorded tables only: writes their profiles and their part of the page."""
    with multiprocessing.Pool(2) as pool:
        recorded = _recorded(pool)
    ours = [one.kernel_fit for one in recorded if one.kernel_fit and not _is_public(one.kernel_fit)]
    _write_profiles(ours, {_stack(kernel_fit): {OURS} for kernel_fit in ours})
    subprocess.run([sys.executable, "-m", "llmviewer.expectation.index"], check=True, cwd=ROOT)
    before, _, after = PAGE.read_text(encoding="utf-8").partition(OWN_TITLE)
    rest = after[after.index("\n## ") :]
    PAGE.write_text(before + "\n".join(_recorded_section(recorded)).rstrip() + "\n" + rest, encoding="utf-8")


def _run(name: str) -> None:
    """Runs another benchmark with the arguments of this one."""
    subprocess.run([sys.executable, str(ROOT / "benchmarks" / name), *sys.argv[1:]], check=True, cwd=ROOT)


def _write_fits(
    pool: Pool, groups: Sequence[MeasuredRows], ours: list[KernelFit], sources: dict[tuple[str, str], set[str]]
) -> list[Stack]:
    """Fits all stacks with enough rows but those whose rows and code are the same as of the profiles that ship, and
    writes the profiles; what is read from them is what all errors are of. A fit that ships stays unless the new one is
    clearly better.
    """
    usable = [rows.take(np.flatnonzero(rows.fittable)) for rows in groups]
    usable = [rows for rows in usable if len(rows) >= MIN_FITTED_ROWS]
    results = Results("fits", is_refit=REFIT_OPTION in sys.argv)
    digests, shipped = [digest_of(rows) for rows in usable], _shipped()
    earlier = [shipped.get(_key(rows)) for rows in usable]
    fits = [
        fit if fit and results.known.get(digest) == digest_of_entry(fit) else None
        for fit, digest in zip(earlier, digests, strict=True)
    ]
    missing = [place for place, fit in enumerate(fits) if not fit]
    new_fits = pool.imap(_fitted_again, [(usable[place], earlier[place]) for place in missing])
    for place, fitted in zip(missing, new_fits, strict=True):
        fits[place] = fitted
        print(f"fits: {place + 1} of {len(fits)}", file=sys.stderr, flush=True)
    found = list(map(_with_borrowed_error, filter(None, fits)))
    public = {_stack(fit) for fit in found}
    for old in FOLDER.glob("*.*.yaml"):
        old.unlink()
    added = [fit for fit in ours if _stack(fit) not in public]
    for fit in added:
        sources[_stack(fit)].add(OURS)
    _write_profiles([*found, *added], sources)
    shipped = _shipped()
    stacks = [Stack(rows=rows, kernel_fit=shipped[_key(rows)]) for rows in usable]
    results.replace({digest: digest_of_entry(stack.kernel_fit) for digest, stack in zip(digests, stacks, strict=True)})
    return stacks


def _fitted_again(work: tuple[MeasuredRows, KernelFit | None]) -> KernelFit | None:
    """The fit to rows, or the earlier one with its errors on them, unless the new one is better by more than searches
    from other rows of a stack differ: they end at equally good fits, which expect other devices differently.
    """
    rows, earlier = work
    fit = fit_kernel(rows)
    if not fit or not earlier or not _has_parameters(earlier, rows.family):
        return fit
    validated = cross_validate(rows, variants=(earlier.variant,), bends=earlier.trend is not None)
    assert validated is not None
    kept_fit = replace(
        validated.kernel_fit, parameters=earlier.parameters, trend=earlier.trend, fit_mape=_error(rows, earlier)
    )
    return fit if _loss(fit) < CLEARLY_BETTER * _loss(kept_fit) else kept_fit


def _has_parameters(fit: KernelFit, family: Family) -> bool:
    """Whether a fit has the parameters that its variant has today."""
    return fit.variant in family.variants and set(fit.parameters) == {q.name for q in family.parameters_of(fit.variant)}


def _loss(fit: KernelFit) -> float:
    return fit.fit_mape + fit.held_out.mape


def _shipped() -> dict[tuple[str, str, Implementation], KernelFit]:
    """The fits of the profiles in the folder, by device, family and implementation."""
    fits = (fit for path in FOLDER.glob("*.*.yaml") for profile in profile_of(path) for fit in profile.fits)
    return {(fit.device, fit.family, fit.implementation): fit for fit in fits}


def _key(rows: MeasuredRows) -> tuple[str, str, Implementation]:
    return rows.device.name, rows.family.name, rows.implementation


def _with_borrowed_error(fit: KernelFit) -> KernelFit:
    """A fit whose error is that of like kernels if it has few shapes."""
    few = fit.shape_families
    return replace(fit, held_out=few_shapes_error(fit.family, few, fit.held_out)) if few else fit


def _every_way(moved: list[Moved], without_siblings: list[Moved], across: list[Moved]) -> list[Moved]:
    """Transfers between devices, also of devices with siblings from others, and to another kind of memory without all
    devices that have it.
    """
    nearer = [m for m in moved if m[3] != OTHER_MEMORY]
    same_vendor = {id(m[0]) for m in nearer if m[3] == SAME_VENDOR}
    further_transfers = [m for m in without_siblings if m[3] == SAME_VENDOR and id(m[0]) not in same_vendor]
    return [*nearer, *further_transfers, *(m for m in across if m[3] == OTHER_MEMORY)]


def _device(kernel_fit: KernelFit, device: Device) -> bool:
    """Whether a fit is of the device."""
    return kernel_fit.device == device.name


def _siblings(kernel_fit: KernelFit, device: Device) -> bool:
    """Whether a fit is of the device or a sibling."""
    return is_sibling(kernel_fit, device)


def _memory(kernel_fit: KernelFit, device: Device) -> bool:
    """Whether a fit is of a device with the same kind of memory."""
    return device_traits(kernel_fit.device).stacked == device.stacked


def _sends(rows: MeasuredRows, kernels: Any) -> MeasuredRows:
    """Keeps NCCL send/recv rows between devices at one switch. In the other rows, with three repeats each, ranks start
    at different times.
    """
    switched = kernels.iloc[rows.places].astype(str).str.endswith("_dgx").to_numpy()
    chosen = switched if rows.implementation.kernel == "nccl send_recv" else np.zeros(len(rows), dtype=bool)
    return rows.take(np.flatnonzero(chosen))


def _spread_stacks(all_stacks: list[Stack]) -> list[Stack]:
    """Stacks of every kind, spread over its devices and libraries."""
    kinds: dict[tuple[str, str], list[Stack]] = defaultdict(list)
    for stack in all_stacks:
        if len(stack.rows) >= 6 * FEW_ROWS and _kind(stack.kernel_fit) in AIMS:
            kinds[_kind(stack.kernel_fit)].append(stack)
    return [
        stacks[i]
        for stacks in kinds.values()
        for i in sorted({round(j) for j in np.linspace(0, len(stacks) - 1, TRIED)})
    ]


def _sample_errors(pool: Pool, stacks: list[Stack], fits: list[KernelFit]) -> list[tuple[tuple[str, str], float]]:
    """Kinds of the stacks, and errors on all other rows of what FEW_ROWS random rows and other devices say."""
    priors = [
        nearest_fits(stack.rows, [fit for fit in fits if fit.device != stack.kernel_fit.device]) for stack in stacks
    ]
    digests = [digest_of(stack.rows, *prior) for stack, prior in zip(stacks, priors, strict=True)]
    arguments = [(stack.rows, prior) for stack, prior in zip(stacks, priors, strict=True)]
    errors = Results("few rows", is_refit=REFIT_OPTION in sys.argv).starmap(pool, _sample_error, arguments, digests)
    return [(_kind(stack.kernel_fit), error) for stack, error in zip(stacks, errors, strict=True)]


def _sample_error(rows: MeasuredRows, priors: Sequence[KernelFit]) -> float:
    order = np.random.default_rng(0).permutation(len(rows))
    fitted = fit_kernel(rows.take(order[:FEW_ROWS]), priors)
    assert fitted is not None
    return _error(rows.take(order[FEW_ROWS:]), fitted)


def _near_errors(pool: Pool, stacks: list[Stack]) -> list[tuple[tuple[str, str], float, float]]:
    """Kinds of the stacks, and errors on rows held out at random, without and with what neighbours of measured shapes
    add.
    """
    arguments = [(stack.rows, stack.kernel_fit.variant) for stack in stacks]
    digests = [digest_of(rows, variant) for rows, variant in arguments]
    errors = Results("residuals", is_refit=REFIT_OPTION in sys.argv).starmap(pool, _near, arguments, digests)
    return [(_kind(stack.kernel_fit), *error) for stack, error in zip(stacks, errors, strict=True)]


def _near(rows: MeasuredRows, variant: str) -> tuple[float, float]:
    order = np.random.default_rng(0).permutation(len(rows))[:5000]
    fitted_rows, rest = (rows.take(order[np.arange(len(order)) % 5 != 0]), rows.take(order[::5]))
    validated = cross_validate(fitted_rows, residual=True, variants=(variant,))
    assert validated is not None
    return _error(rest, replace(validated.kernel_fit, residual=None)), _error(rest, validated.kernel_fit)


def _error(rows: MeasuredRows, kernel_fit: KernelFit) -> float:
    expectation = expect(rows.family.name, rows.shapes, rows.device, rows.implementation, [kernel_fit])
    return float(np.mean(np.abs(expectation.expected / rows.measured - 1)))


def _carried(moved: list[Moved]) -> list[str]:
    lines = [
        "## From siblings and from others",
        "",
        "The error on another device, by its nearest measured device: a sibling, with the same architecture and kind",
        "of memory (H100 and H200; A100 with PCIe and with NVLink); another device of the same vendor; one of another",
        "vendor; and for kernels that only move bytes, which devices with the same kind of memory run alike, one with",
        "another (all devices with the own kind left out). Medians over fits with the worst in brackets, %. Each has",
        "its own intervals; other kernels, libraries and types of one vendor are [stand-ins](#stand-ins). Devices with",
        "siblings count among others of the same vendor too, without their siblings;",
        f"for siblings, and for types that fewer than {DEVICES} devices have, they are learned from all types of a",
        "family. `wide` is the upper end of the interval over the lower one, for kernels of 20 us or more.",
        "",
        "Most families have at most one device whose nearest is of another vendor, which is too few to learn an",
        "interval from. Instead, the family's interval for the same vendor is widened by raising it to a power: the",
        "one at which it holds 80 % of the times on all such devices of the family and on one hypothetical device,",
        "each counting equally. The hypothetical device stands for the one asked for: its times are those of the",
        "other families, each counting equally, spread wider as Student's t distribution is wider than the normal one",
        "for so few devices. `in 80 %` is learned without the device itself; for the only device of a family that",
        "leaves the other families, which do not show that experts carry over better than attention.",
        "",
        (
            "| family | fits | siblings | in 80 % | wide | fits | same vendor | in 80 % | wide "
            "| fits | other memory | in 80 % | wide | fits | other vendor | in 80 % | wide |"
        ),
        f"|{'---|' * 17}",
    ]
    for kind in AIMS:
        texts = [
            f"{len(transfers)} | {_middle([_mape(m) for m in transfers])} | {100 * error.covered:.0f} | {_wide(error)}"
            if error
            else "0 | - | - | -"
            for transfers, error in _groups(kind, moved)
        ]
        lines.append(f"| {kind[0]}, {kind[1]} | {' | '.join(texts)} |")
    return [*lines, ""]


def _few_shapes() -> list[str]:
    lines = [
        "## Few shapes",
        "",
        "Written by `python benchmarks/few_shapes.py FOLDER`. Fits with more shape families than one or two, fitted to",
        "so few of them, on the rows of all others; each fit counts equally, and `in 80 %` is learned from the other",
        "fits. Stacks that have so few take this error and this interval. Collectives with two numbers of devices",
        "have those of leaving out each of the two, as none has more than two.",
        "",
        "| family | fitted to | stacks that have so few | error, % | median, % | 10 to 90 % | in 80 %, % |",
        "|---|---|---|---|---|---|---|",
    ]
    errors = transfer_errors()
    for name in FAMILY_TABLES:
        for count, source in FEW_SHAPES.items():
            number = sum(fit.family == name and fit.shape_families == count for fit in index().fits)
            if error := errors.get((name, "all", source)):
                numbers = f"{_percent(error.mape)} | {_percent(error.median)}"
                lines.append(
                    f"| {name} | {source} | {number} | {numbers} | {error.long[0]:.2f} to {error.long[1]:.2f} "
                    f"| {100 * error.covered:.0f} |"
                )
    return [*lines, ""]


def _worth(sample_errors: list[Any], near: list[Any]) -> list[str]:
    lines = [
        "## Fifty rows, and thousands",
        "",
        (
            f"The error on all other rows of a fit if only {FEW_ROWS} random rows are measured, "
            "with parameters drawn towards"
        ),
        f"those of other devices (`calibrate` does so by itself). And for fits of {LEAST_POINTS:,} rows or more, the",
        "error of the fit alone and with its residual (`calibrate --residual`), on a random fifth of the rows held",
        "out. Medians over fits with the worst in brackets, %.",
        "",
        "| family | fits | 50 rows | 1.3 x must | fits | alone | with residual |",
        "|---|---|---|---|---|---|---|",
    ]
    for kind, (must, *_) in AIMS.items():
        tried, close = [f[1] for f in sample_errors if f[0] == kind], [n[1:] for n in near if n[0] == kind]
        lines.append(
            f"| {kind[0]}, {kind[1]} | {len(tried)} | {_middle(tried) if tried else '-'} | {1.3 * must:.1f} "
            f"| {len(close)} "
            f"| {_median([c[0] for c in close])} | {_middle([c[1] for c in close]) if close else '-'} |"
        )
    return [*lines, ""]


def _agreements(pool: Pool, stacks: list[Stack]) -> list[tuple[str, list[float]]]:
    """Families of the stacks of 16-bit types, and what _agreement() finds of each."""
    chosen = [
        stack
        for stack in stacks
        if stack.kernel_fit.family in SCALING and stack.kernel_fit.implementation.dtype in ("bf16", "fp16")
    ]
    digests = [digest_of(stack.rows, stack.kernel_fit.variant, bool(stack.kernel_fit.trend)) for stack in chosen]
    found = Results("regimes", is_refit=REFIT_OPTION in sys.argv).starmap(
        pool, _agreement, [(stack,) for stack in chosen], digests
    )
    return [(stack.kernel_fit.family, numbers) for stack, numbers in zip(chosen, found, strict=True) if numbers]


def _agreement(stack: Stack) -> list[float]:
    """The number of pairs of rows with twice the size, and the parts of them that agree, that do the opposite and of
    which the bound agrees; [] if they are few.
    """
    size, flat, linear = SCALING[stack.kernel_fit.family]
    pairs = _pairs(stack, size)
    if len(pairs) < MIN_STACK_ROWS:
        return []
    measured, expected, bound = np.digitize(pairs, (flat, linear)).T
    parts = (measured == expected, np.abs(measured - expected) == 2, measured == bound)
    return [len(pairs), *(float(np.mean(part)) for part in parts)]


def _scaling(agreements: list[tuple[str, list[float]]]) -> list[str]:
    """Whether times grow as measured ones do when the work doubles."""
    lines = [
        "## Regimes",
        "",
        "Pairs of rows that differ by a factor of two in one size. A pair is flat if its measured times grow by less",
        "than the first factor, linear if by more than the second, else mixed. `agreeing` is the share of pairs whose",
        "expected times, held out, are of the same class; `opposite` of those that are flat instead of linear or",
        "linear instead of flat; `bound` of those whose bounds are of the same class. Medians over fits of 16-bit",
        "data types.",
        "",
        "| family | size | flat below | linear above | pairs | agreeing, % | opposite, % | must, % | bound, % |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, (size, flat, linear) in SCALING.items():
        numbers = np.array([of_stack for family, of_stack in agreements if family == name])
        agree, opposite, bound = np.median(numbers[:, 1:], axis=0)
        lines.append(
            f"| {name} | {size} | {flat} | {linear} | {numbers[:, 0].sum():,.0f} | {_percent(agree)} "
            f"| {_percent(opposite)} | {AGREEING[name]} | {_percent(bound)} |"
        )
    return [*lines, ""]


def _pairs(stack: Stack, size: str) -> Any:
    """Quotients of times at twice the size: measured, expected and of the bound; a row each."""
    shapes, rows = stack.rows.shapes, stack.rows
    bound = rows.family.bound(shapes, rows.device, rows.implementation)
    grown = {size, "kv_len"} if size == "q_len" else {size}
    names = sorted(shapes)
    place = {key: i for i, key in enumerate(zip(*(shapes[n].tolist() for n in names), strict=True))}
    twice = zip(*((shapes[n] * (2 if n in grown else 1)).tolist() for n in names), strict=True)
    pairs = [(i, place[key]) for i, key in enumerate(twice) if key in place]
    if len(pairs) < MIN_STACK_ROWS:
        return np.zeros((0, 3))
    first, second = np.array(pairs).T
    times = (rows.measured, held_out_times(rows, stack.kernel_fit), np.maximum(bound, 1e-12))
    return np.stack([t[second] / t[first] for t in times], axis=1)


def _violations(groups: Iterable[MeasuredRows]) -> list[str]:
    """Table of the measurements that are faster than the bounds."""
    counts: dict[str, Any] = defaultdict(lambda: np.zeros(5))
    for rows in groups:
        is_fp32_product = (rows.family.name, rows.implementation.dtype) == ("gemm", "fp32")
        fittable = rows.take(np.flatnonzero(rows.fittable & (not is_fp32_product)))
        plain = {**fittable.shapes, "loop": np.zeros(len(fittable))}
        ideal = rows.family.bound(plain, rows.device, rows.implementation)
        bound_s = rows.family.bound(fittable.shapes, rows.device, rows.implementation)
        cold, slack = bound_s >= ideal / 2, 1.005
        over, over_own = ideal > slack * fittable.measured, bound_s > slack * fittable.measured
        counts[rows.family.name] += [sum(cold), sum(cold & over), sum(~cold), sum(~cold & over), sum(~cold & over_own)]
    lines = [
        "## Measured faster than the bound",
        "",
        "A benchmark's loop leaves data in the L2 cache, which is then not read from memory; the bound of such rows",
        "counts only what a cache of that size cannot keep. Rows are cold if that is more than half of the roofline.",
        "Shares are of rows measured more than 0.5 % below a bound. For mixtures of experts with fewer tokens than",
        "experts and routing by popularity, the bound counts only the experts that no routing can avoid.",
        "",
        "| family | cold rows | under the bound, % | rows in L2 | under the roofline, % | under the bound, % |",
        "|---|---|---|---|---|---|",
    ]
    for name, (cold, over, warm, plain, bound_s) in counts.items():
        shares = [_percent(a / b) if b else "-" for a, b in ((over, cold), (plain, warm), (bound_s, warm))]
        lines.append(f"| {name} | {cold:,.0f} | {shares[0]} | {warm:,.0f} | {shares[1]} | {shares[2]} |")
    return [*lines, ""]


def _recorded(pool: Pool) -> list[Recorded]:
    """The stacks of the tables that `llmviewer measure` recorded, fitted where rows or code changed."""
    machines: list[str] = []
    groups: list[MeasuredRows] = []
    for path in sorted(MEASUREMENTS.rglob("*.parquet")):
        os.environ["LLMVIEWER_HARDWARE_PATH"] = str(path.parent / "hardware")
        for rows in read(path).rows:
            usable = rows.take(np.flatnonzero(rows.fittable))
            if len(usable) >= MIN_FITTED_ROWS:
                machines.append(path.parent.name)
                groups.append(usable)
    os.environ.pop("LLMVIEWER_HARDWARE_PATH", None)
    results, shipped = Results("recorded", is_refit=REFIT_OPTION in sys.argv), _shipped()
    digests = [digest_of(rows) for rows in groups]
    fits = [shipped.get(_key(rows)) if _ships(rows) else None for rows in groups]
    entries = [digest_of_entry(fit) if fit else "" for fit in fits]
    known_results = [results.known.get(digest, (None, None)) for digest in digests]
    errors = [
        error if entry == own_entry else None for (error, entry), own_entry in zip(known_results, entries, strict=True)
    ]
    missing = [place for place, error in enumerate(errors) if not error]
    for place, fit in zip(missing, pool.imap(fit_kernel, [groups[place] for place in missing]), strict=True):
        errors[place] = plain_error(fit.held_out)
        fits[place] = fit if _ships(groups[place]) else None
        entries[place] = digest_of_entry(fit) if fits[place] else ""
    results.replace({digest: [*one] for digest, *one in zip(digests, errors, entries, strict=True)})
    return [
        Recorded(machine=machine, rows=rows, error=Error.of(error), kernel_fit=fit)
        for machine, rows, error, fit in zip(machines, groups, errors, fits, strict=True)
    ]


def _ships(rows: MeasuredRows) -> bool:
    """Whether a fit to rows of ours is to expect others' kernels, too: not PyTorch's element-wise ones, some of which
    are several launches, as no engine runs them.
    """
    composed = (rows.family.name, rows.implementation.library) == ("elementwise", "pytorch")
    return rows.device.name in hardware_names() and not composed


def _stack(kernel_fit: KernelFit) -> tuple[str, str]:
    """Device and library of a fit, which have one profile."""
    return kernel_fit.device, kernel_fit.implementation.library


def _is_public(kernel_fit: KernelFit) -> bool:
    """Whether the profile that a fit would be in is of public measurements, which have many more rows than ours."""
    path = _path(*_stack(kernel_fit))
    return path.exists() and any(set(one.sources) != {SOURCES[OURS]} for one in profile_of(path))


def _recorded_section(recorded: list[Recorded]) -> list[str]:
    lines = [
        OWN_TITLE,
        "",
        "Measured by `llmviewer measure` and committed with the ceilings of their machine (reports/measurements); none",
        "is in the tables above. Profiles of the H100's and the H200's ship, but for PyTorch's element-wise",
        "operations, some of which are several launches, and for cuBLAS on the H100, of which public measurements",
        "have more rows. Each is fitted and held out as above, or has the error of like kernels where it has one or",
        "two shape families. A test fits one half of the shape families of the two largest fits of each table and",
        "checks the other.",
        "",
        "| machine | library | data type | kernel | rows | held out, % | median, % | in 80 %, % | under the bound, % |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for one in recorded:
        rows, implementation, error = one.rows, one.rows.implementation, one.error
        bound = rows.family.bound(rows.shapes, rows.device, rows.implementation)
        under = float(np.mean(bound > 1.005 * rows.measured))
        numbers = map(_percent, (error.mape, error.median, error.covered, under))
        types = (
            f"{implementation.dtype}, {implementation.kv_dtype} cache"
            if implementation.kv_dtype
            else implementation.dtype
        )
        names = (
            one.machine,
            implementation.library,
            types,
            f"{rows.family.name} {implementation.kernel}".strip(),
        )
        lines.append(f"| {' | '.join(names)} | {len(rows)} | {' | '.join(numbers)} |")
    return [*lines, ""]


def _transfers(
    pool: Pool, stacks: list[Stack], fits: list[KernelFit], left_out: Callable[[KernelFit, Device], bool]
) -> list[Moved]:
    """The stacks as other fits expect them, without those left out; not those of which there are no others."""
    found = pool.starmap(_transfer, [(stack.rows, fits, left_out) for stack in stacks], chunksize=4)
    return [(stack.kernel_fit, *times) for stack, times in zip(stacks, found, strict=True) if times]


def _has_siblings(stack: Stack, fits: list[KernelFit]) -> bool:
    """Whether siblings of the device have fits of the family."""
    device, family = stack.rows.device, stack.kernel_fit.family
    return any(fit.family == family and fit.device != device.name and _siblings(fit, device) for fit in fits)


def _transfer(
    rows: MeasuredRows, fits: list[KernelFit], left_out: Callable[[KernelFit, Device], bool]
) -> tuple[Any, Any, str] | None:
    """Expected and measured, with what the other fits say only, and how near the nearest of them is."""
    rows = rows.take(np.flatnonzero(rows.fittable)[:1500])
    others = [e for e in fits if e.family == rows.family.name and not left_out(e, rows.device)]
    expectation = expect(rows.family.name, rows.shapes, rows.device, rows.implementation, others)
    if expectation.source.startswith("bound"):
        return None
    nearest, *_ = select_fits(rows.family.name, rows.device, rows.implementation, others).fits
    near = similarity_class(nearest, rows.device)
    if near != OTHER_VENDORS:  # few are of other vendors, most of them of other libraries
        near = source_class(nearest, rows.device, rows.implementation)
    return expectation.expected, rows.measured, near


def _write_profiles(fits: list[KernelFit], sources: dict[tuple[str, str], set[str]]) -> None:
    FOLDER.mkdir(exist_ok=True)
    by_stack = defaultdict(list)
    for kernel_fit in fits:
        by_stack[kernel_fit.device, kernel_fit.implementation.library].append(kernel_fit)
    for (device, library), stack_fits in by_stack.items():
        profile = Profile(
            device=device,
            library=library,
            sources=tuple(SOURCES[s] for s in sorted(sources[device, library])),
            fits=tuple(
                sorted(stack_fits, key=lambda e: (e.family, e.implementation.dtype, e.implementation.kv_dtype, -e.rows))
            ),
        )
        _path(device, library).write_text(to_yaml([profile]), encoding="utf-8")


def _path(device: str, library: str) -> Path:
    return FOLDER / f"{device}.{library.replace('.', '-').replace('/', '-')}.yaml"


def _write_transferred(moved: list[Moved]) -> None:
    errors: dict[str, dict[str, dict[str, Any]]] = {name: {} for name in TABLES}
    for name in TABLES:
        transfers = {
            near: _transfers_from(near, [m for m in moved if m[0].family == name]) for near in SIMILARITY_CLASSES
        }
        parts: dict[str, list[Moved]] = defaultdict(list)
        for m in transfers[SAME_VENDOR]:  # few are nearer, or further
            parts[m[0].implementation.attention_kind or m[0].implementation.dtype].append(m)
        for near, rows in transfers.items():
            if not rows:
                continue
            separate_parts = sorted(parts.items()) if near == SAME_VENDOR else []
            part_errors = {
                part: _pooled(transferred) for part, transferred in separate_parts if _devices(transferred) >= DEVICES
            } | {"all": _pooled(rows)}
            if near == OTHER_VENDORS:
                wide = _widened(name, moved)
                part_errors["all"] = replace(
                    part_errors["all"], short=wide.short, long=wide.long, covered=_inside(rows, moved)
                )
            errors[name][near] = {part: plain_error(error) for part, error in part_errors.items()}
    about = "Errors of expectations for devices that nothing was fitted on: each device in turn left out.\n"
    text = yaml.safe_dump({"errors": errors}, sort_keys=False, width=120, default_flow_style=None)
    (FOLDER / TRANSFERRED).write_text(f"# {about}{text}", encoding="utf-8")


def _transfers_from(near: str, moved: list[Moved]) -> list[Moved]:
    """Transfers whose source is as near; within one vendor, without messages over hosts, which depend on the host."""
    return [m for m in moved if m[3] == near and (near != SAME_VENDOR or _kind(m[0]) != HOSTED)]


def _devices(moved: list[Moved]) -> int:
    return len({m[0].device for m in moved})


def _widened(name: str, moved: list[Moved]) -> Error:
    """The error of a family within one maker, its interval to the power that holds 80 % of times across makers.

    Those of its devices, each alike, and of one more: what the other families' devices need, each family alike, times
    what Student's t adds for so few devices.
    """
    within = {
        family: _pooled(_transfers_from(SAME_VENDOR, [m for m in moved if m[0].family == family])) for family in TABLES
    }
    factors: dict[str, dict[str, list[Any]]] = defaultdict(lambda: defaultdict(list))
    others = _transfers_from(OTHER_VENDORS, moved)
    for kernel_fit, expected, measured, _ in others:
        factors[kernel_fit.family][kernel_fit.device].append(within[kernel_fit.family].needed(expected, measured))
    uncertain = stats.t.ppf(0.9, _devices(others) - 1) / stats.norm.ppf(0.9)
    parts = [(np.concatenate(factors_of_device), 1.0) for factors_of_device in factors.pop(name, {}).values()]
    for devices in factors.values():
        weight = 1 / len(factors) / len(devices)
        parts += [(uncertain * np.concatenate(factors_of_device), weight) for factors_of_device in devices.values()]
    weights = np.concatenate([np.full(len(values), weight / len(values)) for values, weight in parts])
    return within[name].widened(coverage_quantile(np.concatenate([values for values, _ in parts]), weights))


def _pooled(moved: list[Moved]) -> Error:
    devices = [np.full(len(m[1]), sum(map(ord, m[0].device))) for m in moved]
    expected, measured = (np.concatenate([m[i] for m in moved]) for i in (1, 2))
    return error_of(expected, measured, np.concatenate(devices))


def _groups(kind: tuple[str, str], moved: list[Moved]) -> Iterator[tuple[list[Moved], Error | None]]:
    """The stacks of a kind that come from as near, for each nearness, and the error whose intervals they have."""
    of_family = [m for m in moved if m[0].family == kind[0]]
    for near in SIMILARITY_CLASSES:
        transfers = [m for m in _transfers_from(near, of_family) if _kind(m[0]) == kind]
        if not transfers:
            yield transfers, None
        elif near == OTHER_VENDORS:
            yield transfers, replace(_widened(kind[0], moved), covered=_inside(transfers, moved))
        else:
            yield transfers, _pooled(_transfers_from(near, of_family) if near == SIBLINGS else transfers)


def _inside(others: list[Moved], moved: list[Moved]) -> float:
    """The part of times across makers in intervals learned without the device, the mean over devices."""
    parts = []
    for device in sorted({m[0].device for m in others}):
        learned = _widened(others[0][0].family, [m for m in moved if m[0].device != device])
        transfers = [m for m in others if m[0].device == device]
        expected, measured = (np.concatenate([m[i] for m in transfers]) for i in (1, 2))
        parts.append(np.mean(learned.needed(expected, measured) <= 1))
    return float(np.mean(parts))


def _covered(kind: tuple[str, str], moved: list[Moved]) -> float:
    """The mean over devices."""
    coverage = [(_devices(transfers), error.covered) for transfers, error in _groups(kind, moved) if error]
    return sum(count * covered for count, covered in coverage) / sum(count for count, _ in coverage)


def _kind(kernel_fit: KernelFit) -> tuple[str, str]:
    if kernel_fit.family == "gemm":
        kinds = {"bf16": "16 bit", "fp16": "16 bit", "fp32": "fp32"}
        return "gemm", kinds.get(kernel_fit.implementation.dtype, "quantized")
    if kernel_fit.family == "collectives":
        if "scale_up.bandwidth" not in find_device(kernel_fit.device).hardware.numbers:
            return HOSTED
        return "collectives", "NCCL" if kernel_fit.implementation.library.startswith("nccl") else "custom"
    return kernel_fit.family, "all"


def _document(fits: list[KernelFit], moved: list[Moved], sections: list[str]) -> str:
    lines = [
        "# Accuracy of expected times",
        "",
        "How far expected times are from measured kernels, by what was measured:",
        "",
        "| measured | read |",
        "|---|---|",
        "| the kernel on this device, other shapes | *held out* in the first table |",
        "| only other devices | *other device*, and [by the nearest measured device](#from-siblings-and-from-others) |",
        "| another kernel, library or data type | [stand-ins](#stand-ins) |",
        "| a few rows of your own | [fifty rows](#fifty-rows-and-thousands) |",
        "| the same rows, by simpler and by learned models | [baselines.md](baselines.md) |",
        "",
        "[Where it is weak, and why](#where-it-is-weak-and-why) names the kernels that are farthest off; [the last",
        "tables](#by-fit) have every fit. Whole servers are in [serving.md](serving.md#engines) and",
        "[inferencex.md](inferencex.md).",
        "",
        "Written by `python benchmarks/accuracy.py FOLDER` from the public measurements that the profiles name. A",
        "**fit** has one set of parameters, for a kernel of a library on a device in a data type, fitted to at most",
        "1,500 rows, and a trend, fitted to 6,000: the part of the residuals that is smooth over shapes.",
        "",
        "- **Held out**: three folds by shape family (weight shapes; head layouts; model shapes; widths; numbers of",
        "  devices). Each fold is expected from parameters fitted to the other two, and from their trend if that",
        "  lowers the error by 3 %. Of two families each is left out in turn.",
        "- **Few shapes**: rows of one or two families do not say how far further ones are. The error and the interval",
        "  of such a fit are [those of like kernels](#few-shapes) fitted to as many; `shapes` in the last tables and",
        "  the source of an expected time say so.",
        "- **Other device**: all rows of a device, expected from the parameters of all other devices.",
        "- Errors are means of |expected / measured - 1|. Tables have medians over fits, with the worst in brackets.",
        "- `in 80 %` is the share of times within the 80 % interval, which is learned from other folds or other",
        "  devices.",
        "- `must / aim` are the largest error allowed and the error aimed at.",
        "- Only rows of the newest version of each library count. A kernel's variant (how it divides work) is chosen",
        "  on all rows.",
        "- fp32 linear layers (on vector units; their times include a launch of 17 to 47 us) and collectives of",
        "  devices without links of their own are only in the last tables. Fallback kernels, which libraries use if",
        "  they have no better one, count like all others.",
        "- Intervals for another device count each measured device equally, not each row; `in 80 %` beside it is the",
        "  mean over devices. Only four devices with links of their own were measured. Siblings, to which trends",
        "  transfer, other devices of the same vendor, and devices of other vendors have separate intervals.",
        "",
        (
            "| family | fits | held out, % | median row, % | under 20 us | over 20 us | in 80 %, % | must / aim "
            "| other device, % | must / aim | in 80 %, % |"
        ),
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for kind, (must, aim, far_must, far_aim) in AIMS.items():
        kind_fits = [e for e in fits if _kind(e) == kind]
        far = [m for m in moved if _kind(m[0]) == kind]
        errors = [e.held_out for e in kind_fits]
        lines.append(
            f"| {kind[0]}, {kind[1]} | {len(kind_fits)} | {_middle([h.mape for h in errors])} "
            f"| {_median([h.median for h in errors])} | {_median([h.mape_short for h in errors])} "
            f"| {_median([h.mape_long for h in errors])} | {_median([h.covered for h in errors])} | {must} / {aim} "
            f"| {_middle([_mape(m) for m in far])} | {far_must} / {far_aim} | {100 * _covered(kind, moved):.0f} |"
        )
    lines += [
        "",
        "Expected times per second on one core, from given shapes, best of five runs: "
        + ", ".join(f"{n} {s:,.0f}" for n, s in expectation_rates().items())
        + ".",
        "",
        *sections,
    ]
    lines += ["## By fit", ""]
    far_by = {id(m[0]): _mape(m) for m in moved}
    for name in TABLES:
        lines += [f"### {name}", "", ("| device | library | data type | kernel | rows | shapes | held out, % "
                  "| median, % | under 20 us | over 20 us | in 80 %, % | other device, % |"),
                  "|---|---|---|---|---|---|---|---|---|---|---|---|"]  # fmt: skip
        for e in sorted((e for e in fits if e.family == name), key=_place):
            h = e.held_out
            dtype = e.implementation.dtype + (
                f", {e.implementation.kv_dtype} cache" if e.implementation.kv_dtype else ""
            )
            numbers = (h.mape, h.median, h.mape_short, h.mape_long, h.covered, far_by.get(id(e), float("nan")))
            lines.append(
                f"| {e.device} | {e.implementation.library} | {dtype} | {e.implementation.kernel} | {e.rows} "
                f"| {e.shape_families or '3 or more'} | "
                + " | ".join(_percent(n) for n in numbers) + " |"
            )  # fmt: skip
        lines.append("")
    return "\n".join(lines)


def _place(kernel_fit: KernelFit) -> tuple[str, str, str, str, int]:
    """Sort key of a fit in a table by implementation, and in its profile."""
    return (
        kernel_fit.device,
        kernel_fit.implementation.library,
        kernel_fit.implementation.dtype,
        kernel_fit.implementation.kv_dtype,
        -kernel_fit.rows,
    )


def _wide(error: Error) -> str:
    return f"{error.long[1] / error.long[0]:.3g}"


def _mape(moved: Moved) -> float:
    return float(np.mean(np.abs(moved[1] / moved[2] - 1)))


def _median(values: list[float]) -> str:
    finite = [v for v in values if isfinite(v)]
    return _percent(float(np.median(finite))) if finite else "-"


def _middle(values: list[float]) -> str:
    return f"{_median(values)} ({100 * max(values):.0f})"


def _percent(value: float) -> str:
    return f"{100 * value:.1f}" if isfinite(value) else "-"


if __name__ == "__main__":
    main()
