"""profiles/*.yaml: parameters of a library's kernels on a device, where they come from and how good they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np

from .._layout import data_dir
from ..documents import Section, read_yaml
from .families import FAMILIES, Family, Stack
from .families._family import Array

SHORT_S: Final = 20e-6  # below, launches and clocks decide; errors are told apart
FOLDER: Final = data_dir("profiles")
_ENTRY: Final = (
    "family", "dtype", "kv_dtype", "kernel", "variant", "parameters", "rows", "version", "fit_mape", "held_out",
)  # fmt: skip
_HELD_OUT: Final = ("mape", "median", "short", "long", "covered", "interval_short", "interval_long")


@dataclass(frozen=True, kw_only=True)
class Error:
    """Of rows that were not fitted: mean and median absolute percentage, and those of short and of long kernels.

    covered      the share of measured times in an interval that was learned from other shape families than theirs
    short, long  factors on the expectation between which 80 % of the measured times lie
    """

    mape: float
    median: float
    mape_short: float
    mape_long: float
    covered: float
    short: tuple[float, float]
    long: tuple[float, float]

    def interval(self, expected: Array) -> tuple[Array, Array]:
        """From and to. [s]"""
        brief = expected < SHORT_S
        low = np.where(brief, self.short[0], self.long[0])
        return expected * low, expected * np.where(brief, self.short[1], self.long[1])


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One stack on one device."""

    device: str
    family: str
    stack: Stack
    variant: str
    parameters: Mapping[str, float]
    rows: int
    version: str
    fit_mape: float
    held_out: Error


@dataclass(frozen=True, kw_only=True)
class Profile:
    """What one library's kernels reach on one device."""

    device: str
    library: str
    sources: tuple[str, ...]
    entries: tuple[Entry, ...] = field(repr=False)


def error_of(expected: Array, measured: Array, part: Array) -> Error:
    """What is said of expectations for rows that were not fitted, which fall into parts."""
    ratio = measured / expected
    off = np.abs(expected / measured - 1)
    brief = expected < SHORT_S
    inside = np.zeros(len(ratio), dtype=bool)
    for one in np.unique(part):
        own, others = part == one, part != one
        for which in (brief, ~brief):
            low, high = _middle(ratio, which & others, others)
            inside |= own & which & (ratio >= low) & (ratio <= high)
    return Error(
        covered=float(np.mean(inside)),
        mape=float(np.mean(off)),
        median=float(np.median(off)),
        mape_short=_mean(off[brief]),
        mape_long=_mean(off[~brief]),
        short=_middle(ratio, brief, brief | True),
        long=_middle(ratio, ~brief, brief | True),
    )


def _mean(values: Array) -> float:
    return float(np.mean(values)) if len(values) else float("nan")


_FEW: Final = 30


def _middle(ratio: Array, chosen: Array, instead: Array) -> tuple[float, float]:
    """The 10th and 90th percentiles, of others where few are chosen; the expectation itself is always inside."""
    some = ratio[chosen] if np.count_nonzero(chosen) >= _FEW else ratio[instead]
    if not len(some):
        return 1.0, 1.0
    low, high = np.exp(np.quantile(np.log(some), (0.1, 0.9)))
    return float(min(low, 1)), float(max(high, 1))


def to_yaml(profiles: Sequence[Profile]) -> str:
    """The text of a file that read() reads."""
    import yaml

    documents = [_plain(profile) for profile in profiles]
    data = documents[0] if len(documents) == 1 else {"profiles": documents}
    return yaml.safe_dump(data, sort_keys=False, width=120, default_flow_style=None)


def _plain(profile: Profile) -> dict[str, Any]:
    return {
        "device": profile.device,
        "library": profile.library,
        "sources": list(profile.sources),
        "entries": [_plain_entry(entry) for entry in profile.entries],
    }


def _plain_entry(entry: Entry) -> dict[str, Any]:
    labels = {"dtype": entry.stack.dtype, "kv_dtype": entry.stack.kv_dtype, "kernel": entry.stack.kernel}
    error = entry.held_out
    plain = {
        "family": entry.family,
        **{key: value for key, value in labels.items() if value},
        "variant": entry.variant,
        "parameters": {name: _rounded(value) for name, value in entry.parameters.items()},
        "rows": entry.rows,
        "version": entry.version,
        "fit_mape": _rounded(entry.fit_mape),
        "held_out": plain_error(error),
    }
    return {key: value for key, value in plain.items() if value != ""}


def plain_error(error: Error) -> dict[str, Any]:
    numbers = {"mape": error.mape, "median": error.median, "short": error.mape_short, "long": error.mape_long,
               "covered": error.covered}  # fmt: skip
    return {
        **{name: _rounded(value) for name, value in numbers.items() if value == value},  # noqa: PLR0124 - not nan
        "interval_short": [_rounded(v) for v in error.short],
        "interval_long": [_rounded(v) for v in error.long],
    }


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


def read(path: Path) -> tuple[Profile, ...]:
    """The profiles of a file.

    Raises InputError, with the file and the key, where it is wrong.
    """
    top = read_yaml(path)
    sections = top.sections("profiles") if "profiles" in top else [top]
    return tuple(map(_profile, sections))


def _profile(section: Section) -> Profile:
    section.only(("device", "library", "sources", "entries"))
    device, library = section.text("device"), section.text("library")
    entries = tuple(_entry(part, device, library) for part in section.sections("entries"))
    return Profile(device=device, library=library, sources=section.texts("sources"), entries=entries)


def _entry(section: Section, device: str, library: str) -> Entry:
    section.only(_ENTRY)
    of = FAMILIES[section.choice("family", FAMILIES)]
    held_out = section.section("held_out")
    held_out.only(_HELD_OUT)
    return Entry(
        device=device,
        family=of.name,
        stack=Stack(
            library=library,
            dtype=section.text("dtype", ""),
            kv_dtype=section.text("kv_dtype", ""),
            kernel=section.text("kernel", ""),
        ),
        variant=section.choice("variant", of.variants, of.variants[0]),
        parameters=_parameters(section.section("parameters"), of),
        rows=section.integer("rows"),
        version=section.text("version", ""),
        fit_mape=section.number("fit_mape"),
        held_out=read_error(held_out),
    )


def _parameters(section: Section, of: Family) -> dict[str, float]:
    section.only(parameter.name for parameter in of.parameters)
    found = {}
    for parameter in of.parameters:
        value = section.number(parameter.name)
        if not parameter.low * 0.999 <= value <= parameter.high * 1.001:
            raise section.error(parameter.name, f"must be {parameter.low} to {parameter.high}; got {value}")
        found[parameter.name] = value
    return found


def read_error(section: Section) -> Error:
    nan = float("nan")
    short, long = (_pair(section, f"interval_{which}") for which in ("short", "long"))
    return Error(
        mape=section.number("mape"),
        median=section.number("median"),
        mape_short=section.number("short", nan),
        mape_long=section.number("long", nan),
        covered=section.number("covered", nan),
        short=short,
        long=long,
    )


def _pair(section: Section, key: str) -> tuple[float, float]:
    value = section.get(key)
    if not isinstance(value, list) or len(value) != 2 or not all(isinstance(v, int | float) for v in value):
        raise section.error(key, f"must be two factors; got {value!r}")
    low, high = map(float, value)
    if not 0 < low <= 1 <= high:
        raise section.error(key, f"must be a factor up to 1 and one from 1; got {value!r}")
    return low, high


@cache
def shipped() -> tuple[Entry, ...]:
    """All entries of the profiles that ship."""
    paths = sorted(path for path in FOLDER.glob("*.yaml") if path.name != TRANSFERRED)
    return tuple(entry for path in paths for profile in read(path) for entry in profile.entries)


TRANSFERRED: Final = "transferred.yaml"


@cache
def transferred() -> Mapping[tuple[str, str], Error]:
    """By family and data type, the error of expectations for a device that nothing was fitted on."""
    path = FOLDER / TRANSFERRED
    if not path.exists():
        return {}
    top = read_yaml(path)
    return {
        (name, dtype): read_error(top.section("errors").section(name).section(dtype))
        for name in top.section("errors")
        for dtype in top.section("errors").section(name)
    }
