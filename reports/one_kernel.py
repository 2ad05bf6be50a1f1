"""Estimates of one kernel as text, JSON and CSV."""

from __future__ import annotations

from collections.abc import Sequence

from llmviewer import __version__
from llmviewer.analyzing.one_kernel import KINDS, SCHEMA_VERSION, KernelEstimate
from llmviewer.expectation.sources import bound_only_reason
from llmviewer.units import fold, seconds, si

from .columns import WIDTH, columns
from .operator_table import number
from .tables import csv_of, filled, json_of


def render_text(estimates: Sequence[KernelEstimate], measured_s: float | None = None, width: int = WIDTH) -> str:
    """Table with a line for each combination of sizes, under the sizes that all share."""
    first, *_ = estimates
    alike = {name: size for name, size in first.sizes.items() if all(each.sizes[name] == size for each in estimates)}
    devices = list(dict.fromkeys(each.hardware for each in estimates))
    sizes = ", ".join(f"{name} {size}" for name, size in alike.items() if size)
    where = f" on {devices[0]}" if len(devices) == 1 else ""
    formula = KINDS[first.kernel].what.partition(";")[0]
    head = f"{first.kernel}, {formula}{where}: {', '.join(filter(None, (sizes, first.quant)))}."
    several = [name for name in first.sizes if name not in alike]
    named = (["device"] if len(devices) > 1 else []) + several
    lines = [[*named, "OPs", "bytes", "OP/B", "limit", "bound", "expected", "from", "to", "of bound"]]
    for each in estimates:
        differing = ([each.hardware] if len(devices) > 1 else []) + [str(each.sizes[name]) for name in several]
        lines.append([
            *differing, si(each.ops).replace(" ", ""), si(each.bytes).replace(" ", ""), number(each.intensity),
            each.bound, seconds(each.bound_time_s), *_expected(each),
        ])  # fmt: skip
    words = {lines[0].index("limit"), *({0} if len(devices) > 1 else ())}
    text = f"{filled(head, width)}\n\n{columns(lines, left=words, gap=' ')}\n{filled(_legend(estimates), width)}\n"
    return text if measured_s is None else f"{text}{filled(_measured(first, measured_s), width)}\n"


def _expected(each: KernelEstimate) -> list[str]:
    if each.expected_time_s is None:
        return ["-", "-", "-", "-"]
    star = "*" if each.latency else ""
    sides = (seconds(each.expected_low_s), seconds(each.expected_high_s))
    return [seconds(each.expected_time_s) + star, *sides, f"{each.bound_time_s / each.expected_time_s:.0%}"]


def _legend(estimates: Sequence[KernelEstimate]) -> str:
    expected = [each for each in estimates if each.expected_time_s is not None]
    text = f"bound: roofline lower bound, {_conditions(estimates)}; limit: the resource that sets it."
    if not expected:
        why = bound_only_reason(estimates[0].source)
        return f"{text} No expected time: {why or 'no kernel was measured'}."
    text += " expected: from measured kernels; from, to: 80 % interval; of bound: bound / expected. "
    text += f"Source: {_sources(expected)}."
    return text + (
        " *: mostly launch overhead and other fixed costs." if any(each.latency for each in expected) else ""
    )


def _conditions(estimates: Sequence[KernelEstimate]) -> str:
    """Clock and caches that the bounds assume, and bounds under other conditions."""
    one = estimates[0] if len(estimates) == 1 else None
    clock = "the maximum clock"
    if any(each.datasheet_time_s > each.bound_time_s for each in estimates):
        clock += f" ({seconds(one.datasheet_time_s)} at datasheet rates)" if one else ", above that of datasheet rates"
    cache = "all tensors in device memory"
    if one and one.repeated_time_s < one.bound_time_s:
        cache += f" (at least {seconds(one.repeated_time_s)} if {_cached(one)} from the launch before)"
    return f"at {clock}, with {cache}"


def _cached(each: KernelEstimate) -> str:
    """The share of the tensors that fits the last-level cache, in words."""
    share = "they" if each.bytes <= each.cache_bytes else f"{each.cache_bytes / each.bytes:.0%} of them"
    speed = "" if each.cache_bytes_per_s else ", of unknown bandwidth,"
    return f"{share} are in the {each.cache_bytes / 2**20:,.0f} MiB {each.cache}{speed}"


def _sources(estimates: Sequence[KernelEstimate]) -> str:
    """Sources of expected times, with their devices if there are several."""
    devices: dict[str, list[str]] = {}
    for each in estimates:
        devices.setdefault(each.source, []).append(each.hardware)
    if len(devices) == 1:
        return next(iter(devices))
    return "; ".join(f"{source} (on {', '.join(dict.fromkeys(names))})" for source, names in devices.items())


def _measured(each: KernelEstimate, measured_s: float) -> str:
    if measured_s < each.bound_time_s:
        below = f"Measured {seconds(measured_s)}, below the bound ({fold(measured_s / each.bound_time_s, 2)})"
        if measured_s >= each.repeated_time_s:
            cached = f"possible if {_cached(each)} from the launch before, at least {seconds(each.repeated_time_s)}"
            return f"{below} with all tensors in device memory: {cached}."
        return f"{below}: check for a raised clock, less work, or another unit."
    text = f"Measured {seconds(measured_s)}: {each.bound_time_s / measured_s:.0%} of the roofline"
    if each.expected_time_s is None or each.expected_low_s is None or each.expected_high_s is None:
        return text + "."
    inside = each.expected_low_s <= measured_s <= each.expected_high_s
    place = "within the 80 % interval" if inside else "faster than 90 % of such kernels"
    place = "slower than 90 % of such kernels" if measured_s > each.expected_high_s else place
    return f"{text}; {number(measured_s / each.expected_time_s)}x expected, {place}."


def render_json(estimates: Sequence[KernelEstimate]) -> str:
    """JSON document of the estimates, with the versions of its schema and of llmviewer."""
    kernels = [each.to_dict() for each in estimates]
    return json_of({"schema_version": SCHEMA_VERSION, "llmviewer_version": __version__, "kernels": kernels})


def render_csv(estimates: Sequence[KernelEstimate]) -> str:
    """A row for each estimate, with its sizes as columns."""
    rows = [each.to_dict() for each in estimates]
    return csv_of({"kernel": row["kernel"], "hardware": row["hardware"], **row.pop("sizes"), **row} for row in rows)


def render_kinds(width: int = WIDTH) -> str:
    """The kinds of kernels with their sizes."""
    margin = " " * 11
    lines = []
    for name, kind in KINDS.items():
        sizes = " ".join(
            (*(f"{size}=" for size in kind.needed), *(f"[{s}={default}]" for s, default in kind.usual.items()))
        )
        lines.append(filled(sizes, width, first=f"{name:<11}", others=margin))
        lines.append(filled(kind.what, width, first=margin, others=margin))
    return "\n".join(lines) + "\n"
