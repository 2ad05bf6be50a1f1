"""profiles/*.yaml: fitted parameters of a library's kernels on a device, with sources and errors."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from functools import cache, cached_property
from math import isfinite, nan
from pathlib import Path
from typing import Any, Final

import numpy as np

from .._layout import data_dir
from ..documents import Section, read_yaml
from ..errors import InputError
from ..records import frozen
from .device import find_device
from .families import FAMILIES, Family, Implementation
from .families.base import Array, FittedParameter, Shapes
from .residual import FitResidual
from .residual import plain as plain_residual
from .statistics import mean
from .trend import Trend
from .trend import plain as plain_trend

SHORT_S: Final = 20e-6  # shorter kernels, dominated by launches and clocks, have separate errors
FOLDER: Final = data_dir("profiles")
OPERATORS_FOLDER: Final = FOLDER / "operators"  # of operators that few models have (benchmarks/operators.py)
_ENTRY: Final = (
    "family", "dtype", "kv_dtype", "kernel", "variant", "parameters", "rows", "shape_families", "version", "sizes",
    "fit_mape", "held_out", "trend", "residual",
)  # fmt: skip
_HELD_OUT: Final = ("mape", "median", "short", "long", "covered", "interval_short", "interval_long")


@frozen(kw_only=True)
class Error:
    """Errors on rows that were not fitted: mean and median absolute error, relative, of all, short and long kernels.

    covered      share of measured times within intervals learned from other parts of the rows
    short, long  80 % interval of measured / expected, for short and long kernels
    scale        factor on expected times, of sources that are too fast or too slow on the whole
    """

    mape: float
    median: float
    mape_short: float
    mape_long: float
    covered: float
    short: tuple[float, float]
    long: tuple[float, float]
    scale: float = 1.0

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Error:
        """Inverse of plain_error()."""
        return cls(
            mape=document["mape"],
            median=document["median"],
            mape_short=document.get("short", nan),
            mape_long=document.get("long", nan),
            covered=document.get("covered", nan),
            short=tuple(document["interval_short"]),
            long=tuple(document["interval_long"]),
            scale=document.get("scale", 1.0),
        )

    def interval(self, expected: Array) -> tuple[Array, Array]:
        """(low, high) of the 80 % interval. [s]"""
        brief = expected < SHORT_S
        low = np.where(brief, self.short[0], self.long[0])
        return expected * low, expected * np.where(brief, self.short[1], self.long[1])

    def needed(self, expected: Array, measured: Array) -> Array:
        """Power to which the interval must be raised to reach the measured time, by row."""
        ratio = measured / expected
        return np.where(expected < SHORT_S, _distance(ratio, self.short), _distance(ratio, self.long))

    def or_wider(self, other: Error) -> Error:
        """Widens both intervals to contain those of another error."""
        short_interval, long_interval = (
            (min(interval[0], theirs[0]), max(interval[1], theirs[1]))
            for interval, theirs in ((self.short, other.short), (self.long, other.long))
        )
        return replace(self, short=short_interval, long=long_interval)

    def widened(self, power: float) -> Error:
        """Raises the interval to a power."""
        return replace(self, short=_widened(self.short, power), long=_widened(self.long, power))


@frozen(kw_only=True)
class KernelFit:
    """Fit of one kernel implementation on one device.

    shape_families  number of measured shape families where they are few (FEW_SHAPES), so that what `held_out` says of
                    others is borrowed from fits with more; 0 if they are many
    sizes     range of each size of measured shapes, per device
    trend     residuals that are smooth over shapes, if they lower held-out errors
    residual  remaining residuals, if there are many rows
    """

    device: str
    family: str
    implementation: Implementation
    variant: str
    parameters: Mapping[str, float]
    rows: int
    version: str
    fit_mape: float
    held_out: Error
    shape_families: int = 0
    sizes: Mapping[str, tuple[float, float]] = field(default_factory=dict, repr=False)
    trend: Trend | None = None
    residual: FitResidual | None = None

    @cached_property
    def held_out_mape(self) -> float:
        """Mean absolute error on rows that were not fitted, relative."""
        return self.held_out.mape

    @property
    def release(self) -> tuple[int, ...]:
        """Newest version as numbers, such as (0, 24, 0) for "0.22.0, 0.24.0"."""
        return tuple(map(int, re.findall(r"\d+", self.version.rpartition(", ")[2])))

    def beyond(self, shapes: Shapes) -> Array:
        """Number of sizes outside the measured range, by shape; not those by which shape families differ if the fit is
        of few of them, as `held_out` is of others then.
        """
        groups = FAMILIES[self.family].groups
        return self._outside(shapes, [name for name in self.sizes if not (self.shape_families and name in groups)])

    def is_of_other_family(self, shapes: Shapes) -> Array:
        """Mask of the shapes of a family that is outside the measured ones."""
        return self._outside(shapes, [name for name in self.sizes if name in FAMILIES[self.family].groups]) > 0

    def _outside(self, shapes: Shapes, names: Sequence[str]) -> Array:
        """Number of these sizes outside the measured range, by shape."""
        sizes = FAMILIES[self.family].sizes(shapes)
        outside = [
            (sizes[name] < smallest * (1 - _SIZE_TOLERANCE)) | (sizes[name] > largest * (1 + _SIZE_TOLERANCE))
            for name, (smallest, largest) in ((name, self.sizes[name]) for name in names)
        ]
        return np.sum(outside, axis=0, dtype=int) if outside else np.zeros(1, dtype=int)


class FitGroup(tuple[KernelFit, ...]):
    """Fits that are compared by identity, so that what is selected from them can be cached."""

    __slots__ = ()

    __eq__ = object.__eq__
    __hash__ = object.__hash__


@frozen(kw_only=True)
class Profile:
    """Fits of one library's kernels on one device.

    file  path that it was read from, as given; "" for shipped ones
    """

    device: str
    library: str
    sources: tuple[str, ...]
    fits: tuple[KernelFit, ...] = field(repr=False)
    file: str = field(default="", compare=False)

    @property
    def name(self) -> str:
        """The file, or DEVICE.LIBRARY for shipped profiles."""
        return self.file or f"{self.device}.{self.library}"


_SIZE_TOLERANCE: Final = 1e-3  # relative tolerance of sizes, which are written with four digits
_OPTIONAL_SIZES: Final = ("window", "causal", "gated")  # optional columns that are sizes


def sizes_of(family: Family, shapes: Shapes) -> dict[str, tuple[float, float]]:
    """(minimum, maximum) of each size over shapes."""
    sizes_by_name = _profile_sizes(family, shapes)
    return {name: (float(np.min(sizes)), float(np.max(sizes))) for name, sizes in sizes_by_name.items()}


def _profile_sizes(family: Family, shapes: Shapes) -> dict[str, Array]:
    names = (*family.columns, *_OPTIONAL_SIZES)
    return {name: sizes for name, sizes in family.sizes(shapes).items() if name in names}


def error_of(expected: Array, measured: Array, part: Array) -> Error:
    """The error of expected times on rows that were not fitted; `part` assigns rows to parts, such as shape families.

    Parts differ more than rows within one, and future rows are of yet another part. So intervals are widened or
    narrowed until 80 % of the times of a part lie within an interval learned from the other parts; parts count equally.
    Where there are two, one is too fast as often as the other is too slow by it, so their intervals are symmetric.
    """
    ratio = measured / expected
    errors = np.abs(expected / measured - 1)
    brief = expected < SHORT_S
    _, place, count = np.unique(part, return_inverse=True, return_counts=True)
    weight = 1 / count[place.reshape(-1)]
    mirrored = len(count) == 2
    powers = np.empty(len(ratio))
    parts = [(part == one, part != one if np.any(part != one) else part == one) for one in np.unique(part)]
    for in_part, others in parts:
        for length_class in (brief, ~brief):
            rows = in_part & length_class
            powers[rows] = _distance(ratio[rows], _percentiles(ratio, length_class & others, others, mirrored=mirrored))
    inside = np.zeros(len(ratio), dtype=bool)
    for in_part, others in parts:
        inside |= in_part & (powers <= coverage_quantile(powers[others], weight[others]))
    wider = min(coverage_quantile(powers, weight), _MAX_WIDENING)
    return Error(
        covered=float(np.average(inside, weights=weight)),
        mape=float(np.mean(errors)),
        median=float(np.median(errors)),
        mape_short=mean(errors[brief]),
        mape_long=mean(errors[~brief]),
        short=_widened(_percentiles(ratio, brief, brief | True, mirrored=mirrored), wider),
        long=_widened(_percentiles(ratio, ~brief, brief | True, mirrored=mirrored), wider),
    )


_COVERAGE: Final = 0.8
_MAX_WIDENING: Final = 4.0  # largest power by which an interval is widened
_MIN_HALF_WIDTH: Final = 0.01  # least half-width of an interval


def coverage_quantile(values: Array, weight: Array) -> float:
    """The weighted 80th percentile."""
    return float(np.quantile(values, _COVERAGE, weights=weight, method="inverted_cdf"))


def _distance(ratio: Array, interval: tuple[float, float]) -> Array:
    """Log distances of ratios from 1, in units of the interval's half-widths."""
    low, high = _log_half_widths(interval)
    return np.asarray(np.log(ratio) / np.where(ratio < 1, -low, high))


def _widened(interval: tuple[float, float], factor: float) -> tuple[float, float]:
    low, high = _log_half_widths(interval)
    return float(np.exp(-low * factor)), float(np.exp(high * factor))


def _log_half_widths(interval: tuple[float, float]) -> tuple[float, float]:
    """Log half-widths of an interval. The shorter one is at least a third of the longer one, as few parts may make it
    short by chance.
    """
    low, high = -np.log(interval[0]), np.log(interval[1])
    min_side = max(low, high, _MIN_HALF_WIDTH) / 3
    return max(low, min_side), max(high, min_side)


_MIN_PERCENTILE_ROWS: Final = 30


def _percentiles(ratio: Array, chosen: Array, instead: Array, *, mirrored: bool) -> tuple[float, float]:
    """10th and 90th percentiles of the chosen ratios, of `instead` if they are few; 1 is always inside. Both sides
    are the 80th percentile of distances from 1 if `mirrored`.
    """
    ratios = ratio[chosen] if np.count_nonzero(chosen) >= _MIN_PERCENTILE_ROWS else ratio[instead]
    if not len(ratios):
        return 1.0, 1.0
    if mirrored:
        distance = float(np.exp(np.quantile(np.abs(np.log(ratios)), _COVERAGE)))
        return 1 / distance, distance
    low, high = np.exp(np.quantile(np.log(ratios), (0.1, 0.9)))
    return float(min(low, 1)), float(max(high, 1))


def to_yaml(profiles: Sequence[Profile]) -> str:
    """The YAML text of profiles, which read() reads."""
    import yaml

    documents = [_plain(profile) for profile in profiles]
    data = documents[0] if len(documents) == 1 else {"profiles": documents}
    return yaml.safe_dump(data, sort_keys=False, width=120, default_flow_style=None)


def _plain(profile: Profile) -> dict[str, Any]:
    return {
        "device": profile.device,
        "library": profile.library,
        "sources": list(profile.sources),
        "entries": [plain_entry(fit) for fit in profile.fits],
    }


def plain_entry(fit: KernelFit) -> dict[str, Any]:
    """An entry of a profile file as plain values for YAML, without empty ones; numbers have 4 digits."""
    labels = {
        "dtype": fit.implementation.dtype,
        "kv_dtype": fit.implementation.kv_dtype,
        "kernel": fit.implementation.kernel,
    }
    error = fit.held_out
    plain = {
        "family": fit.family,
        **{key: value for key, value in labels.items() if value},
        "variant": fit.variant,
        "parameters": {name: _rounded(value) for name, value in fit.parameters.items()},
        "rows": fit.rows,
        "shape_families": fit.shape_families or "",
        "version": fit.version,
        "sizes": {name: [_rounded(end) for end in ends] for name, ends in fit.sizes.items()} or "",
        "fit_mape": _rounded(fit.fit_mape),
        "held_out": plain_error(error),
        "trend": plain_trend(fit.trend) if fit.trend else "",
        "residual": plain_residual(fit.residual) if fit.residual else "",
    }
    return {key: value for key, value in plain.items() if value != ""}


def plain_error(error: Error) -> dict[str, Any]:
    """The error on held-out rows as plain values for YAML, without unknown ones; numbers have 4 digits."""
    numbers = {"mape": error.mape, "median": error.median, "short": error.mape_short, "long": error.mape_long,
               "covered": error.covered}  # fmt: skip
    return {
        **{name: _rounded(value) for name, value in numbers.items() if value == value},  # noqa: PLR0124 - not nan
        "interval_short": [_rounded(v) for v in error.short],
        "interval_long": [_rounded(v) for v in error.long],
        **({"scale": _rounded(error.scale)} if error.scale != 1 else {}),
    }


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


def read(path: Path) -> tuple[Profile, ...]:
    """Reads the profiles in a file.

    Raises InputError, with file and key, if it is invalid.
    """
    top = read_yaml(path)
    sections = top.sections("profiles") if "profiles" in top else [top]
    return tuple(replace(_profile(section), file=str(path)) for section in sections)


def read_profiles(files_or_profiles: Sequence[str | Path | Profile]) -> tuple[Profile, ...]:
    """Returns the user's profiles, given as files or as profiles.

    Raises InputError if a file is invalid or its device is unknown.
    """
    profiles: list[Profile] = []
    for one in files_or_profiles:
        for profile in (one,) if isinstance(one, Profile) else read(Path(one)):
            try:
                name = find_device(profile.device).name
            except InputError as error:
                raise InputError(f"{_place(one)}device: {error}") from None
            if name != profile.device:
                raise InputError(f"{_place(one)}device: must be the name {name}; got {profile.device!r}")
            profiles.append(profile)
    return tuple(profiles)


def _place(file_or_profile: str | Path | Profile) -> str:
    return "" if isinstance(file_or_profile, Profile) else f"{file_or_profile}: "


def _profile(section: Section) -> Profile:
    section.only(("device", "library", "sources", "entries"))
    device, library = section.text("device"), section.text("library")
    fits = tuple(_entry(part, device, library) for part in section.sections("entries"))
    return Profile(device=device, library=library, sources=section.texts("sources"), fits=fits)


def _entry(section: Section, device: str, library: str) -> KernelFit:
    section.only(_ENTRY)
    family = FAMILIES[section.choice("family", FAMILIES)]
    variant = section.choice("variant", family.variants, family.variants[0])
    held_out = section.section("held_out")
    held_out.only(_HELD_OUT)
    return KernelFit(
        device=device,
        family=family.name,
        implementation=Implementation(
            library=library,
            dtype=section.text("dtype", ""),
            kv_dtype=section.text("kv_dtype", ""),
            kernel=section.text("kernel", ""),
        ),
        variant=variant,
        parameters=_parameters(section.section("parameters"), family.parameters_of(variant)),
        rows=section.integer("rows"),
        shape_families=section.integer("shape_families", 0),
        version=section.text("version", ""),
        sizes=_sizes(section.section("sizes"), family) if "sizes" in section else {},
        fit_mape=section.number("fit_mape"),
        held_out=read_error(held_out),
        trend=_trend(section.section("trend"), family) if "trend" in section else None,
        residual=_residual(section.section("residual"), family) if "residual" in section else None,
    )


def _sizes(section: Section, family: Family) -> dict[str, tuple[float, float]]:
    section.only((*family.columns, *family.optional))
    sizes = {}
    for name in section:
        ends = section.get(name)
        if not _numbers(ends, 2) or not 0 <= ends[0] <= ends[1]:
            raise section.error(name, f"must be the least and the most; got {ends!r}")
        sizes[name] = (float(ends[0]), float(ends[1]))
    return sizes


def _numbers(value: Any, count: int) -> bool:
    return isinstance(value, list) and len(value) == count and all(isinstance(v, int | float) for v in value)


def _columns(section: Section, allowed: Sequence[str]) -> tuple[str, ...]:
    columns = section.texts("columns")
    if not columns or set(columns) - set(allowed):
        raise section.error("columns", f"must be some of {', '.join(allowed)}; got {', '.join(columns) or 'none'}")
    return columns


def _trend(section: Section, family: Family) -> Trend:
    section.only(("columns", "nodes"))
    columns = _columns(section, family.size_names)
    nodes = section.text("nodes")
    for node in nodes.split(";"):
        if not _is_node(node, len(columns) + 1):
            raise section.error("nodes", f"must be {', '.join(columns)} and a weight of each; got {node.strip()!r}")
    return Trend(columns=columns, nodes=nodes)


def _is_node(text: str, count: int) -> bool:
    """Whether a text has `count` numbers: sizes, and a weight at the end."""
    try:
        *sizes, weight = map(float, text.split())
    except ValueError:
        return False
    return len(sizes) == count - 1 and min(sizes) >= 0 and all(map(isfinite, (*sizes, weight)))


def _residual(section: Section, family: Family) -> FitResidual:
    section.only(("columns", "mape", "interval", "points"))
    columns = _columns(section, (*family.columns, *family.optional))
    points = section.get("points")
    try:
        rows = np.asarray(points, dtype=float).reshape(len(points), len(columns) + 1)
    except (TypeError, ValueError):
        rows = np.zeros((0, 1))
    if not len(rows) or not np.all(np.isfinite(rows)) or np.any(rows[:, :-1] < 0) or np.any(rows[:, -1] <= 0):
        raise section.error("points", f"must be rows of {', '.join(columns)} and a factor above 0")
    mape, interval = section.number("mape"), _pair(section, "interval")
    return FitResidual(columns=columns, points=rows[:, :-1], factors=rows[:, -1], mape=mape, interval=interval)


def _parameters(section: Section, fitted: Sequence[FittedParameter]) -> dict[str, float]:
    section.only(parameter.name for parameter in fitted)
    values = {}
    for parameter in fitted:
        value = section.number(parameter.name, parameter.default)
        if value != parameter.default and not parameter.low * 0.999 <= value <= parameter.high * 1.001:
            raise section.error(parameter.name, f"must be {parameter.low} to {parameter.high}; got {value}")
        values[parameter.name] = value
    return values


def read_error(section: Section) -> Error:
    """Reads the error on held-out rows; mean errors that the section lacks are nan.

    Raises InputError, with file and key, if a number or an interval is missing or invalid.
    """
    intervals = {key: _pair(section, key) for key in ("interval_short", "interval_long")}
    required = {key: section.number(key) for key in ("mape", "median")}
    others = {key: section.number(key, nan) for key in ("short", "long", "covered")}
    return Error.of(intervals | required | others | {"scale": section.number("scale", 1.0)})


def _pair(section: Section, key: str) -> tuple[float, float]:
    value = section.get(key)
    if not _numbers(value, 2):
        raise section.error(key, f"must be two factors; got {value!r}")
    low, high = map(float, value)
    if not 0 < low <= 1 <= high:
        raise section.error(key, f"must be a factor up to 1 and one from 1; got {value!r}")
    return low, high


@cache
def profiles() -> tuple[Profile, ...]:
    """Shipped profiles."""
    return tuple(profile for path in profile_files() if path.name not in ERROR_FILES for profile in read(path))


def profile_files() -> list[Path]:
    """Files of shipped profiles and of errors, those of operators that few models have at the end."""
    return [path for folder in (FOLDER, OPERATORS_FOLDER) for path in sorted(folder.glob("*.yaml"))]


@cache
def shipped() -> tuple[KernelFit, ...]:
    """Fits of all shipped profiles."""
    return tuple(fit for profile in profiles() for fit in profile.fits)


TRANSFERRED: Final = "transferred.yaml"
STAND_INS: Final = "stand_ins.yaml"
SPREADS: Final = "few_shapes.yaml"
ERROR_FILES: Final = (TRANSFERRED, STAND_INS, SPREADS)
SIBLINGS: Final = "siblings"
SAME_VENDOR: Final = "same maker"
OTHER_MEMORY: Final = "other memory"
OTHER_VENDORS: Final = "others"
SIMILARITY_CLASSES: Final = (
    SIBLINGS,
    SAME_VENDOR,
    OTHER_MEMORY,
    OTHER_VENDORS,
)  # of the nearest device that was measured, the nearest first
FEW_SHAPES: Final[Mapping[int, str]] = {1: "one shape family", 2: "two shape families"}
ANOTHER_KERNEL: Final = "another kernel"
ANOTHER_LIBRARY: Final = "another library"
ANOTHER_TYPE: Final = "another data type"
NO_KERNEL: Final = "no kernel"
BEYOND_SIZES: Final = "beyond the measured sizes"


@cache
def transfer_errors() -> Mapping[tuple[str, str, str], Error]:
    """Errors of transfers from other devices and of stand-ins, by family, kind of attention or data type, and class of
    source.

    Classes of devices are SIMILARITY_CLASSES: a sibling, of the same architecture and kind of memory; another device of
    the same vendor, for kernels that move bytes with the same kind of memory or another; one of another vendor. Classes
    of stand-ins are another kernel of the library, another library and another data type, on the device itself or,
    after the class of a device and a comma, on another. Further classes are operators without a kernel, sizes beyond
    those that a kernel was measured with, and other shapes than the one or two families (FEW_SHAPES) that it was
    measured with.
    """
    paths = [path for path in profile_files() if path.name in ERROR_FILES]
    return {key: error for path in paths for key, error in read_errors(path).items()}


def read_errors(path: Path) -> dict[tuple[str, str, str], Error]:
    """Reads a file of errors, with the keys of transfer_errors()."""
    families = read_yaml(path).section("errors")
    return {
        (name, part, source_class): read_error(families.section(name).section(source_class).section(part))
        for name in families
        for source_class in families.section(name)
        for part in families.section(name).section(source_class)
    }
