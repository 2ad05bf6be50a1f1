"""How good expectations are: fits the profiles that ship, and writes docs/accuracy.md.

    python benchmarks/accuracy.py FOLDER    # with gemm.parquet, moe.parquet, ... as docs/measurements.md describes them

Every error is of rows that were not fitted: of shape families that were held out, three folds; and of whole devices,
whose rows are expected from the parameters of all others.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections import defaultdict
from math import isfinite
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import yaml

from llmviewer.expectation.calibrate import LEAST, entry_of
from llmviewer.expectation.device import find
from llmviewer.expectation.families import FAMILIES
from llmviewer.expectation.profile import (
    FOLDER,
    TRANSFERRED,
    Entry,
    Error,
    Profile,
    error_of,
    plain_error,
    to_yaml,
)
from llmviewer.expectation.rows import Rows, read
from llmviewer.expectation.transfer import expect

ROOT = Path(__file__).resolve().parent.parent
SOURCES = {
    "aiconfigurator": "aiconfigurator (github.com/ai-dynamo/aiconfigurator), measured kernels, Apache-2.0, 2026",
    "vidur": "vidur (github.com/microsoft/vidur), profiling data, MIT, 2024",
    "infersim": "InferSim (github.com/alibaba/InferSim), bench_data, Apache-2.0, 2025",
    "aiter": "AITER (github.com/ROCm/aiter), tuned configurations, MIT, 2026",
    "llmservingsim": "LLMServingSim (github.com/casys-kaist/LLMServingSim), profiler, MIT",
    "neusight": "NeuSight (github.com/sitar-lab/NeuSight), operator data, MIT",
    "apex_plus": "APEX+ (github.com/microsoft/apex_plus), nccl-tests, MIT, 2024",
    "simumax": "SimuMax (github.com/MooreThreads/SimuMax), Apache-2.0, 2025",
}
NOT_FITTED = {"llmcompass"}  # wall clock with the time of the framework in it
AIMS = {  # family, data types: must and aim [%] on a known device, and on one never fitted
    ("gemm", "16 bit"): (8, 6, 12, 10),
    ("gemm", "quantized"): (12, 8, 25, 18),
    ("attention_prefill", "all"): (9, 6, 18, 14),
    ("attention_decode", "all"): (10, 6, 22, 15),
    ("moe", "all"): (18, 12, 30, 22),
    ("elementwise", "all"): (9, 6, 18, 12),
    ("collectives", "NCCL"): (10, 7, 14, 10),
    ("collectives", "custom"): (18, 10, 25, 18),
}


def main() -> None:
    folder = Path(sys.argv[1])
    groups: list[Rows] = []
    sources: dict[tuple[str, str], set[str]] = defaultdict(set)
    for name in FAMILIES:
        table = read(folder / f"{name}.parquet")
        origin = table.frame["source"].astype(str).to_numpy()
        for rows in table.rows:
            kept = rows.take(np.flatnonzero(~np.isin(origin[rows.places], list(NOT_FITTED))))
            if name == "collectives" and kept.stack.library == "torch.distributed":
                continue  # three repeats each, and ranks that wait for others
            if len(kept) >= LEAST:
                groups.append(kept)
                sources[kept.device.name, kept.stack.library] |= set(origin[kept.places])
    with multiprocessing.Pool(2) as pool:
        fitted = pool.map(entry_of, groups, chunksize=4)
        pairs = [(rows, entry) for rows, entry in zip(groups, fitted, strict=True) if entry]
        entries = [entry for _, entry in pairs]
        transfers = pool.starmap(_transfer, [(rows, entries) for rows, _ in pairs], chunksize=4)
    _write_profiles(entries, sources)
    moved = [(entry, *found) for (_, entry), found in zip(pairs, transfers, strict=True) if found is not None]
    _write_transferred(moved)
    (ROOT / "docs" / "accuracy.md").write_text(_document(entries, moved, _speed(groups, entries)), encoding="utf-8")


def _transfer(rows: Rows, entries: list[Entry]) -> tuple[Any, Any] | None:
    """Expected and measured, with the parameters of other devices only."""
    kept = rows.family.kept(rows.shapes) & np.isfinite(rows.measured) & (rows.measured > 0)
    rows = rows.take(np.flatnonzero(kept)[:1500])
    others = [e for e in entries if e.device != rows.device.name]
    found = expect(rows.family.name, rows.shapes, rows.device, rows.stack, others)
    return None if found.source.startswith("bound") else (found.expected, rows.measured)


def _write_profiles(entries: list[Entry], sources: dict[tuple[str, str], set[str]]) -> None:
    FOLDER.mkdir(exist_ok=True)
    for old in FOLDER.glob("*.yaml"):
        old.unlink()
    by_stack = defaultdict(list)
    for entry in entries:
        by_stack[entry.device, entry.stack.library].append(entry)
    for (device, library), own in by_stack.items():
        profile = Profile(
            device=device,
            library=library,
            sources=tuple(SOURCES[s] for s in sorted(sources[device, library])),
            entries=tuple(sorted(own, key=lambda e: (e.family, e.stack.dtype, e.stack.kv_dtype, -e.rows))),
        )
        name = f"{device}.{library.replace('.', '-').replace('/', '-')}.yaml"
        (FOLDER / name).write_text(to_yaml([profile]), encoding="utf-8")


def _write_transferred(moved: list[tuple[Entry, Any, Any]]) -> None:
    errors: dict[str, dict[str, Any]] = defaultdict(dict)
    for name in FAMILIES:
        own = [m for m in moved if m[0].family == name]
        for dtype in sorted({m[0].stack.dtype for m in own}):
            errors[name][dtype] = plain_error(_pooled([m for m in own if m[0].stack.dtype == dtype]))
        if own:
            errors[name]["all"] = plain_error(_pooled(own))
    about = "Errors of expectations for devices that nothing was fitted on: each device in turn left out.\n"
    text = yaml.safe_dump({"errors": dict(errors)}, sort_keys=False, width=120, default_flow_style=None)
    (FOLDER / TRANSFERRED).write_text(f"# {about}{text}", encoding="utf-8")


def _pooled(moved: list[tuple[Entry, Any, Any]]) -> Error:
    devices = [np.full(len(m[1]), sum(map(ord, m[0].device))) for m in moved]
    expected, measured = (np.concatenate([m[i] for m in moved]) for i in (1, 2))
    return error_of(expected, measured, np.concatenate(devices))


def _kind(entry: Entry) -> tuple[str, str]:
    if entry.family == "gemm":
        kinds = {"bf16": "16 bit", "fp16": "16 bit", "fp32": "fp32"}
        return "gemm", kinds.get(entry.stack.dtype, "quantized")
    if entry.family == "collectives":
        if "scale_up.bandwidth" not in find(entry.device).hardware.numbers:
            return "collectives", "over PCIe"
        return "collectives", "NCCL" if entry.stack.library.startswith("nccl") else "custom"
    return entry.family, "all"


def _speed(groups: list[Rows], entries: list[Entry]) -> dict[str, float]:
    """Expectations a second on one core, by family."""
    speeds = {}
    for name in FAMILIES:
        rows = max((g for g in groups if g.family.name == name), key=len)
        expect(name, rows.shapes, rows.device, rows.stack, entries)
        start = time.perf_counter()
        for _ in range(5):
            expect(name, rows.shapes, rows.device, rows.stack, entries)
        speeds[name] = 5 * len(rows) / (time.perf_counter() - start)
    return speeds


def _document(entries: list[Entry], moved: list[tuple[Entry, Any, Any]], speed: dict[str, float]) -> str:
    lines = [
        "# Accuracy of expectations",
        "",
        "Made by `python benchmarks/accuracy.py FOLDER` from the public measurements that the profiles name. Each",
        "stack (device, library, data type, kernel) is fitted on at most 1,500 rows.",
        "",
        "- **Held out**: three folds by shape family (weight shapes; head layouts; model shapes; widths; numbers of",
        "  devices): the error of a fold is that of parameters fitted on the other two.",
        "- **Other device**: every row of a device, from the parameters of all other devices.",
        "- Rows of the newest version of each library only; versions are not compared. Which way of laying out work a",
        "  kernel has (its variant) is chosen on all rows.",
        "- Errors are means of |expected / measured - 1|; the table shows medians over stacks, with the worst in",
        "  brackets. `in 80 %` is the share of times in an interval learned from other folds, or other devices.",
        "- fp32 linear layers (of vector units, with a launch of 17 to 47 us in their times) are in the tables by",
        "  stack only, as are collectives of devices without links of their own. Fallback kernels, those of libraries",
        "  where they have no better one, count like all others.",
        "",
        (
            "| family | stacks | held out, % | median row, % | under 20 us | over 20 us | in 80 %, % | must / aim "
            "| other device, % | must / aim | in 80 %, % |"
        ),
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for kind, (must, aim, far_must, far_aim) in AIMS.items():
        own = [e for e in entries if _kind(e) == kind]
        far = [m for m in moved if _kind(m[0]) == kind]
        held = [e.held_out for e in own]
        lines.append(
            f"| {kind[0]}, {kind[1]} | {len(own)} | {_middle([h.mape for h in held])} "
            f"| {_median([h.median for h in held])} | {_median([h.mape_short for h in held])} "
            f"| {_median([h.mape_long for h in held])} | {_median([h.covered for h in held])} | {must} / {aim} "
            f"| {_middle([_mape(m) for m in far])} | {far_must} / {far_aim} | {100 * _pooled(far).covered:.0f} |"
        )
    lines += [
        "",
        "Expectations a second on one core: " + ", ".join(f"{n} {s:,.0f}" for n, s in speed.items()) + ".",
        "",
    ]
    lines += ["## By stack", ""]
    far_by = {id(m[0]): _mape(m) for m in moved}
    for name in FAMILIES:
        lines += [f"### {name}", "", ("| device | library | data type | kernel | rows | held out, % | median, % "
                  "| under 20 us | over 20 us | in 80 %, % | other device, % |"),
                  "|---|---|---|---|---|---|---|---|---|---|---|"]  # fmt: skip
        for e in sorted((e for e in entries if e.family == name), key=lambda e: (e.device, e.stack.library)):
            h = e.held_out
            dtype = e.stack.dtype + (f", {e.stack.kv_dtype} cache" if e.stack.kv_dtype else "")
            numbers = (h.mape, h.median, h.mape_short, h.mape_long, h.covered, far_by.get(id(e), float("nan")))
            lines.append(
                f"| {e.device} | {e.stack.library} | {dtype} | {e.stack.kernel} | {e.rows} | "
                + " | ".join(_percent(n) for n in numbers) + " |"
            )  # fmt: skip
        lines.append("")
    return "\n".join(lines)


def _mape(moved: tuple[Entry, Any, Any]) -> float:
    return float(np.mean(np.abs(moved[1] / moved[2] - 1)))


def _median(values: list[float]) -> str:
    known = [v for v in values if isfinite(v)]
    return _percent(float(np.median(known))) if known else "-"


def _middle(values: list[float]) -> str:
    return f"{_median(values)} ({100 * max(values):.0f})"


def _percent(value: float) -> str:
    return f"{100 * value:.1f}" if isfinite(value) else "-"


if __name__ == "__main__":
    main()
