"""What a run has found, in words: ceilings beside the datasheet, and kernels beside the ceilings."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from ..units import seconds, si
from .ceilings import Ceiling

_VENDOR: Final = ("pytorch", "pytorch-cpu")
_STREAMS: Final = ("read", "write", "copy", "triad")


def ceilings_text(found: Sequence[Ceiling], datasheet: Mapping[str, float], rates: Mapping[str, float]) -> str:
    """A table of streams by size, and one line for each of the others.

    datasheet  rates by key, as its file has them; empty where it has none
    rates      those measured
    """
    streams: dict[int, dict[str, float]] = defaultdict(dict)
    for one in found:
        if one.what in _STREAMS:
            at = streams[1 << round(float(np.log2(one.size)))]
            at[one.what] = max(one.value, at.get(one.what, 0.0))
    lines = [f"{'bandwidth [GB/s]':<18}" + "".join(f"{what:>9}" for what in _STREAMS)]
    for size, values in sorted(streams.items()):
        cells = "".join(f"{values[what] / 1e9:9.1f}" if what in values else f"{'-':>9}" for what in _STREAMS)
        lines.append(f"  over {_binary(size):<11}{cells}")
    others = [one for one in found if one.what not in _STREAMS]
    best: dict[str, Ceiling] = {}
    for one in others:
        if one.what not in best or (one.value > best[one.what].value) == (one.unit != "s"):
            best[one.what] = one
    for one in best.values():
        value = seconds(one.value) if one.unit == "s" else f"{si(one.value)}{one.unit}"
        lines.append(f"{one.what:<18}{value:>18}")
    for key, rate in rates.items():
        if key in datasheet:
            lines.append(f"{key}: {rate / datasheet[key]:.0%} of the datasheet's {si(datasheet[key])}{_unit(key)}")
    return "\n".join(lines) + "\n"


def kernels_text(rows: Iterable[Mapping[str, Any]]) -> str:
    """By kernel: its share of the ceilings, of rows whose tensors come from memory, and of the vendor's speed."""
    kinds: dict[tuple[str, ...], list[Mapping[str, Any]]] = defaultdict(list)
    vendor: dict[tuple[Any, ...], float] = {}
    for row in rows:
        kinds[_kind(row)].append(row)
        if row["framework"] in _VENDOR:
            same = _same(row)
            vendor[same] = min(row["time_us"], vendor.get(same, np.inf))
    head = f"{'kernel':<40}{'rows':>6}{'of the ceiling':>16}{'best':>6}{'of vendor':>11}"
    lines = [head]
    for (framework, *names), own in sorted(kinds.items()):
        shares = [row["ceiling_us"] / row["time_us"] for row in own if not row["loop"]]
        beside = [vendor[_same(row)] / row["time_us"] for row in own if _same(row) in vendor]
        middle, best = (f"{np.median(shares):.0%}", f"{max(shares):.0%}") if shares else ("-", "-")
        ratio = f"{np.median(beside):.0%}" if beside and framework not in _VENDOR else "-"
        name = " ".join(filter(None, (framework, *names)))
        lines.append(f"{name:<40}{len(own):>6}{middle:>16}{best:>6}{ratio:>11}")
    return "\n".join(lines) + "\n"


def _kind(row: Mapping[str, Any]) -> tuple[str, ...]:
    cache = row.get("kv_dtype") or ""
    op = row.get("op") or row["family"]
    return (
        row["framework"],
        row["kernel"],
        op,
        row["dtype"],
        f"{cache} cache" if cache not in ("", row["dtype"]) else "",
    )


def _same(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """What rows of other kernels for the same launch share: the words of the case after the kernel's."""
    words = row["case"].split()
    return row["family"], *words[1 + len(row["kernel"].split()) :]


def _unit(key: str) -> str:
    return "B/s" if key.endswith("bandwidth") else "OP/s"


def _binary(size: int) -> str:
    for step, prefix in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if size >= step:
            return f"{size // step} {prefix}"
    return f"{size} B"
