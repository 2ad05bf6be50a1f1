"""The report of a session as text: ceilings against the datasheet, and kernels against the ceilings."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from ..records import frozen
from ..units import counted, seconds, si, significant
from .ceilings import Ceiling, disturbed

_Row = Mapping[str, Any]
_VENDOR_FRAMEWORKS: Final = ("pytorch", "pytorch-cpu")
_STREAMS: Final = ("read", "write", "copy", "triad")
_MIN_GEMM_WIDTH: Final = 4096  # least N and K of a compute-bound GEMM, and
_MIN_GEMM_ROWS: Final = 2048  # its least M
_MIN_PROMPT: Final = 1024  # least tokens of a long prompt
_MAX_SKINNY_ROWS: Final = 16  # most rows of a skinny GEMM


def ceilings_text(
    measured_ceilings: Sequence[Ceiling], datasheet: Mapping[str, float], rates: Mapping[str, float]
) -> str:
    """A table of bandwidths by size, and one line for each other ceiling.

    datasheet  rates in the device's file, by key; empty if it has none
    rates      measured rates, by key
    """
    streams: dict[int, dict[str, float]] = defaultdict(dict)
    for one in measured_ceilings:
        if one.what in _STREAMS:
            by_name = streams[_about(one.size)]
            by_name[one.what] = max(one.value, by_name.get(one.what, 0.0))
    spoilt = {(name, _about(size)) for name, size in disturbed(measured_ceilings)}
    lines = [f"{'bandwidth [GB/s]':<18}" + "".join(f"{name:>9} " for name in _STREAMS).rstrip()]
    for size, values in sorted(streams.items()):
        cells = ((significant(values[w] / 1e9) if w in values else "-", _mark((w, size) in spoilt)) for w in _STREAMS)
        lines.append(f"  over {_binary(size):<11}" + "".join(f"{text:>9}{mark}" for text, mark in cells).rstrip())
    others = [one for one in measured_ceilings if one.what not in _STREAMS]
    best: dict[str, Ceiling] = {}
    for one in others:
        if one.what not in best or (one.value > best[one.what].value) == (one.unit != "s"):
            best[one.what] = one
    for one in best.values():
        value = seconds(one.value) if one.unit == "s" else f"{si(one.value)}{one.unit}"
        mark = _mark(any(name == one.what for name, _ in spoilt))  # a disturbed size may be the best one
        lines.append(f"{one.what:<18}{value:>18}{mark}".rstrip())
    for key, rate in rates.items():
        if key in datasheet:
            lines.append(f"{key}: {rate / datasheet[key]:.0%} of the datasheet's {si(datasheet[key])}{_unit(key)}")
    if spoilt:
        lines += [
            "? disturbed by other programs in every repetition: the true ceiling is higher,",
            "  and shares of it are lower; run the same command again to measure these again",
        ]
    return "\n".join(lines) + "\n"


def kernels_text(rows: Iterable[_Row]) -> str:
    """A table by kernel: median and best share of the ceiling, for rows with tensors not in a cache, and median speed
    relative to the vendor's library.
    """
    every = list(rows)
    vendor = _fastest(every, lambda row: row["framework"] in _VENDOR_FRAMEWORKS)
    kinds: dict[tuple[str, ...], list[_Row]] = defaultdict(list)
    for row in every:
        kinds[_kind(row)].append(row)
    head = f"{'kernel':<46}{'rows':>5}{'of ceiling':>12}{'best':>6}{'of vendor':>11}"
    lines = [head]
    for (framework, *names), rows_of_kind in sorted(kinds.items()):
        shares = [row["ceiling_us"] / row["time_us"] for row in rows_of_kind if not row["loop"]]
        vendor_ratios = [vendor[_same(row)] / row["time_us"] for row in rows_of_kind if _same(row) in vendor]
        middle, best = (f"{np.median(shares):.0%}", f"{max(shares):.0%}") if shares else ("-", "-")
        ratio = f"{np.median(vendor_ratios):.0%}" if vendor_ratios and framework not in _VENDOR_FRAMEWORKS else "-"
        name = " ".join(dict.fromkeys(filter(None, (framework, *names))))  # an operation may have its kernel's name
        lines.append(f"{name:<46}{len(rows_of_kind):>5}{middle:>12}{best:>6}{ratio:>11}")
    return "\n".join(lines) + "\n"


@frozen(kw_only=True)
class Goal:
    """A target for the speed of this package's kernels.

    what   launches that it applies to
    of     reference that their speed is divided by
    least  target for the median ratio
    """

    what: str
    of: str
    least: float


_GEMM: Final = Goal(what=f"bf16 GEMM, M >= {_MIN_GEMM_ROWS}, N, K >= {_MIN_GEMM_WIDTH}", of="cuBLAS", least=0.9)
_FLASH: Final = Goal(what=f"FlashAttention, prompts >= {_MIN_PROMPT}", of="the best SDPA", least=0.75)
_DECODE: Final = Goal(what="decode attention beyond L2", of="copy bandwidth", least=0.85)
_SKINNY: Final = Goal(what=f"bf16 GEMM, M <= {_MAX_SKINNY_ROWS}, beyond L2", of="copy bandwidth", least=0.85)
_W4A16: Final = Goal(what="W4A16 GEMV, bf16 weights beyond L2", of="the bf16 GEMV", least=3.0)


def goals(rows: Iterable[_Row], measured_ceilings: Sequence[Ceiling], cache: float) -> dict[Goal, list[float]]:
    """The ratios of the rows of each goal; empty without rows or without a reference.

    measured_ceilings  the copy of most bytes is the copy bandwidth of memory
    cache  size of L2 [B]
    """
    every = list(rows)
    vendor = _fastest(every, lambda row: row["framework"] in _VENDOR_FRAMEWORKS)
    plain = _fastest(every, lambda row: _ours(row, "gemm", "bf16") and row["M"] == 1)
    copies = [one for one in measured_ceilings if one.what == "copy"]
    longest = max((one.size for one in copies), default=0)
    copy = max((one.value for one in copies if one.size == longest), default=np.nan)
    reached: dict[Goal, list[float]] = {goal: [] for goal in (_GEMM, _FLASH, _DECODE, _SKINNY, _W4A16)}
    for row in every:
        same, moved = _same(row), row.get("moved_bytes", 0)
        beyond, rate = moved > cache and not row["loop"], moved / (row["time_us"] * 1e-6)
        if _ours(row, "gemm", "bf16"):
            if min(row["N"], row["K"]) >= _MIN_GEMM_WIDTH and row["M"] >= _MIN_GEMM_ROWS and same in vendor:
                reached[_GEMM].append(vendor[same] / row["time_us"])
            if row["M"] <= _MAX_SKINNY_ROWS and beyond:
                reached[_SKINNY].append(rate / copy)
        elif _ours(row, "gemm", "int4_wo") and row["M"] == 1 and 2 * row["N"] * row["K"] > cache:
            other = plain.get(tuple(word.replace("int4_wo", "bf16") for word in same))
            reached[_W4A16].extend([other / row["time_us"]] if other else ())
        elif _ours(row, "attention_prefill", "bf16") and row["q_len"] >= _MIN_PROMPT and same in vendor:
            reached[_FLASH].append(vendor[same] / row["time_us"])
        elif _ours(row, "attention_decode", "bf16") and beyond:
            reached[_DECODE].append(rate / copy)
    return {goal: [one for one in values if np.isfinite(one)] for goal, values in reached.items()}


def goals_text(reached: Mapping[Goal, Sequence[float]]) -> str:
    """A table of goals: target, median, verdict and range of rows."""
    lines = [f"{'median speed of':<36}{'relative to':<16}{'goal':>5}{'is':>6}"]
    for goal, values in reached.items():
        line = f"{goal.what:<36}{goal.of:<16}{goal.least:5.2f}"
        if not values:
            lines.append(f"{line}{'-':>6}  not measured")
            continue
        middle = float(np.median(values))
        verdict = "met" if middle >= goal.least else f"{1 - middle / goal.least:.0%} short"
        lines.append(f"{line}{middle:6.2f}  {verdict}")
        lines.append(f"  {counted(len(values), 'row')}, {min(values):.2f} to {max(values):.2f}")
    return "\n".join(lines) + "\n"


def report(title: str, versions: Mapping[str, str], parts: Mapping[str, str]) -> str:
    """The report in Markdown.

    parts  sections as printed, by heading
    """
    lines = [f"# {title}", "", ", ".join(f"{name} {version}" for name, version in versions.items()), ""]
    for heading, text in parts.items():
        lines += [f"## {heading}", "", "```", text.rstrip("\n"), "```", ""]
    return "\n".join(lines)


def _ours(row: _Row, family: str, dtype: str) -> bool:
    return (row["framework"], row["family"], row["dtype"]) == ("triton", family, dtype)


def _fastest(rows: Iterable[_Row], is_included: Callable[[_Row], bool]) -> dict[tuple[Any, ...], float]:
    """The shortest time of each launch over all `wanted` rows. [us]"""
    best_us: dict[tuple[Any, ...], float] = {}
    for row in filter(is_included, rows):
        best_us[_same(row)] = min(row["time_us"], best_us.get(_same(row), np.inf))
    return best_us


def _kind(row: _Row) -> tuple[str, ...]:
    cache = row.get("kv_dtype") or ""
    op = row.get("op") or row["family"].removeprefix("attention_")
    return (
        row["framework"],
        row["kernel"],
        op,
        row["dtype"],
        f"{cache} cache" if cache not in ("", row["dtype"]) else "",
    )


def _same(row: _Row) -> tuple[Any, ...]:
    """The key of a launch, equal for all kernels: the words of the case after the name of the kernel."""
    words = row["case"].split()
    return row["family"], *words[1 + len(row["kernel"].split()) :]


def _unit(key: str) -> str:
    return "B/s" if key.endswith("bandwidth") else "OP/s"


def _about(size: int) -> int:
    """The nearest power of two, as a third of one is not a whole number."""
    return 1 << round(float(np.log2(size))) if size else 0


def _mark(spoilt: bool) -> str:
    return "?" if spoilt else " "


def _binary(size: int) -> str:
    for step, prefix in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if size >= step:
            return f"{size // step} {prefix}"
    return f"{size} B"
