"""Measures how far kernels are from those that stand in for them: writes profiles/stand_ins.yaml.

    python benchmarks/stand_ins.py FOLDER    # with gemm.parquet, moe.parquet, ... of docs/measurements.md

It also writes the part of docs/accuracy.md on them.

Each measured stack is expected from the profiles that ship, without fits; those are left out that are nearer than a
class of stand-ins: the stack itself, so that another kernel of the library remains; its library; its data type; each
also without the device, and without siblings of the device. A cache in fp8 is expected from the same kernel with one in
bf16, and the other way round. The error of a class is that of all its stacks, each of which counts equally, as do parts
of any error.

Sizes beyond those that a kernel was measured with: every ninth stack is fitted to its rows of the lower 60 % of one
size, and expected at twice that and more. That takes some minutes.

Operators of which profiles have no kernel are expected from their memory traffic: as an addition of as many bytes, or
of as many as memory moves in the time of their bound, times the median of measured / expected. FOLDER/linear_attention
and mhc.parquet have rows of such operators, of aiconfigurator (github.com/ai-dynamo/aiconfigurator, Apache-2.0: gdn,
kda, mamba2 and mhc_module), with their least bytes and their bound; experts and element-wise operations, each as if it
were an addition, are the others. The error of all of them but experts is that of kinds without rows. The choice of
tokens has the factor of a row on each of our cards (reports/measurements), too few for an interval: it has that of all
kinds, at its own factor and at that of all.
"""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml
from fitted import REFIT_OPTION, Results, digest_of

from llmviewer.errors import InputError
from llmviewer.expectation.calibrate import fit_kernel
from llmviewer.expectation.device import Device, find_device
from llmviewer.expectation.families import Implementation
from llmviewer.expectation.families.base import MICROSECOND
from llmviewer.expectation.profile import (
    ANOTHER_TYPE,
    BEYOND_SIZES,
    FOLDER,
    NO_KERNEL,
    OTHER_VENDORS,
    STAND_INS,
    Error,
    KernelFit,
    error_of,
    plain_error,
    shipped,
)
from llmviewer.expectation.rows import MeasuredRows, read
from llmviewer.expectation.transfer import (
    Estimator,
    FitSelection,
    expect,
    has_equal_cost_types,
    is_sibling,
    select_fits,
    source_class,
)

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "accuracy.md"
TITLE = "## Stand-ins"
NEXT = "## Few shapes"
TABLES = ("gemm", "attention_prefill", "attention_decode", "moe")  # of kernels that differ by library
ROWS = 500  # of a stack
MIN_ROWS = 40
FEWER = 10  # of operators without a kernel
IMPLEMENTATIONS = 6  # from which a class of one data type or kind of attention has an error of its own
NINTH = 9
_GROWING = {"gemm": "M", "moe": "tokens", "attention_decode": "kv_len", "attention_prefill": "q_len"}
MEASUREMENTS = ROOT / "reports" / "measurements"
_CHOICES = ("argmax", "sample")  # of tokens, each measured at one size
_KINDS = {"scan": "scan", "conv": "conv", "mhc": "hyper_connection"}  # of operators, by the first word of operations
Times = tuple[np.ndarray, np.ndarray]  # expected and measured [s]
_FitFilter = Callable[[KernelFit], bool]


def main() -> None:
    """Writes the errors of stand-ins for missing fits, from the measurements in a folder."""
    folder = Path(sys.argv[1])
    tables = [folder / f"{name}.parquet" for name in TABLES]
    groups = [rows for path in tables for rows in measured(path)]
    errors: dict[str, dict[str, dict[str, object]]] = defaultdict(lambda: defaultdict(dict))
    experts = [rows for rows in groups if rows.family.name == "moe"]
    results = Results("beyond the measured sizes", is_refit=REFIT_OPTION in sys.argv)
    class_errors = classes(groups, shipped()) | beyond(groups, results) | traffic(folder, experts)
    for (family, source, part), error in class_errors.items():
        errors[family][source][part] = plain_error(error)
    about = "Errors of stand-ins: python benchmarks/stand_ins.py, from the measurements that the profiles name.\n"
    plain = {family: dict(class_errors) for family, class_errors in errors.items()}
    text = yaml.safe_dump({"errors": plain}, sort_keys=False, width=120, default_flow_style=None)
    (FOLDER / STAND_INS).write_text(f"# {about}{text}", encoding="utf-8")
    subprocess.run([sys.executable, "-m", "llmviewer.expectation.index"], check=True, cwd=ROOT)
    page = PAGE.read_text(encoding="utf-8")
    before, _, after = page.partition(TITLE if TITLE in page else NEXT)
    after = after[after.index("\n## ") + 1 :] if TITLE in page else NEXT + after
    PAGE.write_text(before + "\n".join(section(class_errors)) + after, encoding="utf-8")


def section(errors: Mapping[tuple[str, str, str], Error]) -> list[str]:
    """The part of the page on stand-ins."""
    lines = [
        TITLE,
        "",
        "Written by `python benchmarks/stand_ins.py FOLDER`. Where the kernel, the library or the data type that is",
        "asked for was not measured, another stands in. Its error is found by leaving out of the profiles that ship",
        "whatever is nearer to each measured fit: its kernel, its library, its data type, and each of these",
        "without the device, or without its siblings. Each fit counts equally. `10 to 90 %` are measured / expected",
        "of kernels of 20 us or more, of which intervals of such sources are made; `in 80 %` is learned from the",
        "other fits. Intervals are as wide as kernels differ: one of a library may be a fallback that it rarely",
        "runs. Sizes beyond those measured: every ninth fit, fitted to the lower 60 % of one size.",
        "",
        "| family | source | median error, % | 10 to 90 % | in 80 %, % |",
        "|---|---|---|---|---|",
    ]
    for (family, source, part), error in errors.items():
        if part == "all" and source != NO_KERNEL:
            lines.append(f"| {family} | {source} | {_error_text(error)} |")
    lines += [
        "",
        "Operators without any measured kernel are expected from memory traffic alone: as an addition of as many",
        "bytes, or of as many as memory moves in the time of their bound, times a factor: the median of measured /",
        "expected of kernels of that kind (public rows of scans, convolutions and hyper-connections; experts; our",
        "kernels that choose tokens), or else of all kinds. The choice of tokens was measured at one size only, on two",
        "devices, so its interval is that of all kinds, at its factor and at theirs.",
        "",
        "| operator | factor | median error, % | 10 to 90 % | in 80 %, % |",
        "|---|---|---|---|---|",
    ]
    for (_, source, part), error in errors.items():
        if source == NO_KERNEL:
            lines.append(f"| {'any other' if part == 'all' else part} | {error.scale:.2f} | {_error_text(error)} |")
    return [*lines, "", ""]


def _error_text(error: Error) -> str:
    low, high = error.long
    covered = "-" if np.isnan(error.covered) else f"{100 * error.covered:.0f}"
    return f"{100 * error.median:.0f} | {low:.2f} to {high:.2f} | {covered}"


def measured(path: Path) -> Iterator[MeasuredRows]:
    """The stacks of a table, each with so few rows that all count alike."""
    for rows in read(path).rows:
        fittable = np.flatnonzero(rows.fittable)
        if len(fittable) >= MIN_ROWS:
            yield rows.take(np.sort(np.random.default_rng(0).permutation(fittable)[:ROWS]))


def classes(groups: Sequence[MeasuredRows], fits: Sequence[KernelFit]) -> dict[tuple[str, str, str], Error]:
    """The error of each class of stand-ins, by family and by data type or kind of attention."""
    times_of_class: dict[tuple[str, str, str], list[Times]] = defaultdict(list)
    for rows in groups:
        sources = set()
        for left_out in without(rows, [e for e in fits if e.family == rows.family.name]):
            try:
                choice = select_fits(rows.family.name, rows.device, rows.implementation, left_out)
            except InputError:
                continue
            source = source_class(choice.fits[0], rows.device, rows.implementation)
            if source in sources:
                continue
            sources.add(source)
            expected = expect(rows.family.name, rows.shapes, rows.device, rows.implementation, left_out).expected
            for part in ("all", rows.implementation.attention_kind or rows.implementation.dtype):
                times_of_class[rows.family.name, source, part].append((expected, rows.measured))
        other = [replace(e, implementation=rows.implementation) for e in fits if _of_another_cache(e, rows)]
        if other:
            expected = expect(rows.family.name, rows.shapes, rows.device, rows.implementation, other).expected
            times_of_class[rows.family.name, ANOTHER_TYPE, "all"].append((expected, rows.measured))
    return {
        key: pooled(times)
        for key, times in sorted(times_of_class.items())
        if "another" in key[1] and not key[1].startswith(OTHER_VENDORS) and len(times) >= IMPLEMENTATIONS
    }


def beyond(groups: Sequence[MeasuredRows], results: Results) -> dict[tuple[str, str, str], Error]:
    """The error of sizes beyond those that a kernel was fitted to, by family."""
    samples: dict[str, list[tuple[MeasuredRows, MeasuredRows]]] = defaultdict(list)
    for family in dict.fromkeys(rows.family.name for rows in groups):
        for rows in [rows for rows in groups if rows.family.name == family and len(rows) == ROWS][::NINTH]:
            sizes = rows.shapes[_GROWING[family]]
            size_limit = np.quantile(sizes, 0.6)
            smaller, larger = (
                rows.take(np.flatnonzero(chosen)) for chosen in (sizes <= size_limit, sizes >= 2 * size_limit)
            )
            if len(larger) >= MIN_ROWS:
                samples[family].append((smaller, larger))
    digests = [
        digest_of(parts[0][0], *(digest_of(rows) for sample in parts for rows in sample)) for parts in samples.values()
    ]
    with multiprocessing.Pool(2) as pool:
        errors = results.starmap(pool, _beyond, [(of_family,) for of_family in samples.values()], digests)
    return {(family, BEYOND_SIZES, "all"): Error.of(error) for family, error in zip(samples, errors, strict=True)}


def _beyond(samples: Sequence[tuple[MeasuredRows, MeasuredRows]]) -> dict[str, Any]:
    """The error of fits to the first rows of each sample on its others."""
    times: list[Times] = []
    for smaller, larger in samples:
        if kernel_fit := fit_kernel(smaller):
            choice = FitSelection(fits=(kernel_fit,), error=kernel_fit.held_out, source="")
            estimator = Estimator(selection=choice, device=larger.device, implementation=larger.implementation)
            times.append((estimator.expect(larger.shapes).expected, larger.measured))
    return plain_error(pooled(times))


def _of_another_cache(kernel_fit: KernelFit, rows: MeasuredRows) -> bool:
    implementation, other = rows.implementation, kernel_fit.implementation
    alike = (kernel_fit.family, kernel_fit.device) == (rows.family.name, rows.device.name)
    return alike and implementation != other == replace(implementation, kv_dtype=other.kv_dtype)


def traffic(folder: Path, experts: Sequence[MeasuredRows]) -> dict[tuple[str, str, str], Error]:
    """The error of operators of which only memory traffic and bounds are known, by kind."""
    times_of_kind: dict[str, list[Times]] = defaultdict(list)
    for rows in experts:
        times_of_kind["experts"].append((_added(rows.device, _moved(rows), rows.shapes["tokens"]), rows.measured))
    for name in ("linear_attention", "mhc"):
        frame = pd.read_parquet(folder / f"{name}.parquet").query("stat != 'mean_eager'")
        labels = [label for label in ("family", "op", "gpu", "framework") if label in frame]
        for label, group in frame.groupby(labels):
            device, kind = find_device(label[-2]), _KINDS.get(label[-3].partition("_")[0], "")
            if not kind or len(group) < FEWER:
                continue
            sampled = group.sample(min(len(group), ROWS), random_state=0)
            suffix = label[-3].rpartition("_")[2]
            step = f" {suffix}" if suffix in ("step", "verify") else ""
            seconds = sampled["bound_us"].to_numpy() * MICROSECOND
            nbytes = np.maximum(sampled["bytes"].to_numpy(float), seconds * device.bandwidth)
            tokens = sampled["tokens"] if name == "mhc" else sampled["batch"] * sampled["q_len"]
            times = _added(device, nbytes, tokens.to_numpy(float)), sampled["time_us"].to_numpy() * MICROSECOND
            times_of_kind[kind + step].append(times)
    for rows in measured(folder / "elementwise.parquet"):
        if not rows.implementation.kernel.endswith("add"):
            implementation = replace(
                rows.implementation, kernel="eager add" if rows.implementation.host_launched else "add"
            )
            choice = select_fits("elementwise", rows.device, implementation, shipped())
            times = (
                Estimator(selection=choice, device=rows.device, implementation=implementation)
                .expect(rows.shapes)
                .expected
            )
            times_of_kind[rows.implementation.kernel].append((times, rows.measured))
    kinds = {"all": [_joined(sampled) for kind, sampled in times_of_kind.items() if kind != "experts"]}
    kinds |= {
        kind: sampled
        for kind, sampled in times_of_kind.items()
        if kind.partition(" ")[0] in {"experts", *_KINDS.values()}
    }
    errors = {kind: scaled(sampled) for kind, sampled in sorted(kinds.items())}
    errors |= {kind: _of_few(scaled(sampled), errors["all"]) for kind, sampled in chosen_tokens().items()}
    return {("elementwise", NO_KERNEL, kind): error for kind, error in errors.items()}


def chosen_tokens() -> dict[str, list[Times]]:
    """The times of additions of as many bytes, and those of kernels that choose tokens, by kernel."""
    times: dict[str, list[Times]] = defaultdict(list)
    for path in sorted(MEASUREMENTS.glob("h*/elementwise.parquet")):
        for rows in read(path).rows:
            if rows.implementation.kernel in _CHOICES:
                expected = _added(rows.device, rows.shapes["bytes"], rows.shapes["rows"])
                times[rows.implementation.kernel].append((expected, rows.measured))
    return times


def _of_few(error: Error, all_kinds: Error) -> Error:
    """The error of a kind with too few rows for an interval of its own."""
    ratio = all_kinds.scale / error.scale
    short, long = ((low * min(ratio, 1), high * max(ratio, 1)) for low, high in (all_kinds.short, all_kinds.long))
    return replace(error, short=short, long=long, covered=float("nan"))


def _moved(rows: MeasuredRows) -> np.ndarray:
    """The bytes that memory moves in the time of the bound of each row."""
    plain = {**rows.shapes, "loop": np.zeros(len(rows))}
    return rows.family.bound(plain, rows.device, rows.implementation) * rows.device.bandwidth


def _added(device: Device, nbytes: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """The time of an addition that moves as many bytes, again and again. [s]"""
    implementation = Implementation(library="", dtype="fp16", kernel="add")
    shapes = {"rows": np.maximum(rows, 1), "bytes": nbytes, "cols": np.ones(len(rows)), "loop": np.ones(len(rows))}
    choice = select_fits("elementwise", device, implementation, shipped())
    return Estimator(selection=choice, device=device, implementation=implementation).expect(shapes).expected


def scaled(times: Sequence[Times]) -> Error:
    """The error of expected times that are multiplied by the median of measured / expected, at least 1."""
    ratios = np.concatenate([took / expected for expected, took in times])
    weights = np.concatenate([np.full(len(took), 1 / len(took)) for _, took in times])
    scale = max(float(np.quantile(ratios, 0.5, weights=weights, method="inverted_cdf")), 1.0)
    return replace(pooled([(scale * expected, took) for expected, took in times]), scale=scale)


def without(rows: MeasuredRows, fits: Sequence[KernelFit]) -> Iterator[list[KernelFit]]:
    """The entries that classes of stand-ins leave, nearer classes first."""
    implementation = rows.implementation
    devices: tuple[_FitFilter, ...] = (
        lambda e: True,
        lambda e: e.device != rows.device.name,
        lambda e: e.device != rows.device.name and not is_sibling(e, rows.device),
    )
    stacks: tuple[_FitFilter, ...] = (
        lambda e: (
            (e.implementation.library, e.implementation.kernel) != (implementation.library, implementation.kernel)
        ),
        lambda e: e.implementation.library != implementation.library,
        lambda e: not has_equal_cost_types(e, implementation),
    )
    for of_stack in stacks:
        for of_device in devices:
            yield [e for e in fits if of_stack(e) and of_device(e)]


def _joined(times: Sequence[Times]) -> Times:
    """The times of a kind on all devices, as those of one part."""
    return np.concatenate([each[0] for each in times]), np.concatenate([each[1] for each in times])


def pooled(times: Sequence[Times]) -> Error:
    """The error over several groups of times, each of which is a cluster."""
    expected, took = (np.concatenate([each[i] for each in times]) for i in (0, 1))
    return error_of(expected, took, np.repeat(np.arange(len(times)), [len(each[0]) for each in times]))


if __name__ == "__main__":
    main()
