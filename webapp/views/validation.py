"""How far to trust a number: errors of the profiles behind it, and expectations against a user's own measurements."""

from __future__ import annotations

import logging
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from llmviewer.errors import InputError, suggest
from llmviewer.expectation import rows as measurements
from llmviewer.expectation.families import FAMILIES
from llmviewer.expectation.index import index
from llmviewer.expectation.profile import SIBLINGS, Entry, Error
from llmviewer.expectation.validate import Predictions, Validation, predict, validate
from llmviewer.facts import finite
from llmviewer.hardware_files import hardware_aliases
from llmviewer.reports.trust import Dot, against, errors
from llmviewer.units import counted, seconds

from ..answers import Answer
from .shown import Shown, shown

if TYPE_CHECKING:
    import pandas as pd

_LOG: Final = logging.getLogger(__name__)
LARGEST: Final = 5_000_000  # of a file of measurements [B]
_MOST_ROWS, _MOST_COLUMNS, _MOST_DEVICES, _MOST_STACKS = 20_000, 200, 100, 2000
_MOST_UNPACKED: Final = 200_000_000  # [B]
_FROM: Final = {near: name for name, near in SIBLINGS.items()}
_LARGEST: Final = 1e12  # of a size or a time; what is larger is no measurement
_LARGEST_OF: Final = {"experts": 4096, "topk": 4096, "tp": 4096, "ep": 4096, "num_gpus": 65_536}
_LONGEST_LABEL: Final = 1000  # characters
_MAKERS: Final = ("nvidia", "amd", "intel", "instinct")  # in front of names of devices
_MOST_WORDS: Final = 12  # of those
_MOST_POINTS, _MOST_GROUPS = 4000, 6  # of a figure
_LABELS: Final = (
    "gpu", "framework", "version", "kernel", "dtype", "kv_dtype", "stat", "family", "attn", "distribution", "op",
    "impl",
)  # fmt: skip
_NUMBERS: Final = frozenset(
    ("time_us", "loop", "nodes", *(n for f in FAMILIES.values() for n in (*f.columns, *f.optional)))
)
_STACK: Final = ("gpu", "framework", "kernel", "dtype", "kv_dtype", "op", "impl", "attn")


def rests_on(found: Sequence[Answer]) -> list[tuple[str, ...]]:
    """What is expected of each phase on each device, how sure, and of what: heads, then a line for each."""
    lines: list[tuple[str, ...]] = [("device", "phase", "at least", "expected", "80 % interval", "rests on")]
    for one in found:
        for name, phase in one.analysis.phases:
            total = phase.total
            low, high = total.expected_low_s, total.expected_high_s
            between = "-" if low is None else f"{seconds(low)} to {seconds(high)}" if high else f"from {seconds(low)}"
            lines.append((
                one.name, name, seconds(total.bound_time_s), seconds(total.expected_time_s), between,
                total.expectation_source,
            ))  # fmt: skip
    return lines


def profiles(found: Sequence[Answer]) -> list[dict[str, Any]]:
    """A row for each stack that was measured on one of the devices, its errors in shares of 1."""
    return [
        {
            "id": str(i), "device": entry.device, "family": _said(entry.family), "library": entry.stack.library,
            "version": entry.version, "dtype": _dtype(entry), "kernel": entry.stack.kernel, "rows": entry.rows,
            "fitted": entry.fit_mape, **_errors(entry.held_out),
        }
        for i, entry in enumerate(_entries(found))
    ]  # fmt: skip


def transfers() -> list[tuple[str, ...]]:
    """Errors on a device that nothing was fitted on: heads, then a line for each part of a family."""
    lines: list[tuple[str, ...]] = [
        ("family", "of", "from", "mean error", "median row", "under 20 us", "over 20 us", "in the 80 %")
    ]
    for (family, part, near), error in sorted(index().errors.items()):
        numbers = (error.mape, error.median, error.mape_short, error.mape_long, error.covered)
        lines.append((_said(family), part, _FROM[near], *map(_percent, numbers)))
    return lines


def unmeasured(found: Sequence[Answer]) -> list[str]:
    """The devices that no profile is of."""
    measured = {entry.device for entry in index().entries}
    return [one.name for one in found if one.analysis.hardware.name not in measured]


def errors_figure(found: Sequence[Answer]) -> Shown:
    """Errors of the profiles of the devices, and of transfers to devices that were not measured."""
    named: dict[str, list[Dot]] = {}
    for entry in _entries(found):
        error, stack = entry.held_out, entry.stack
        words = " ".join(filter(None, (stack.library, entry.version, stack.kernel, _dtype(entry))))
        text = f"<b>{words}</b><br>{_percent(error.mape)} off, {counted(entry.rows, 'row')}"
        named.setdefault(entry.device, []).append(Dot(_said(entry.family), error.mape, text))
    for (family, part, near), error in sorted(index().errors.items()):
        text = f"<b>{part}</b>, carried over from {_FROM[near]}<br>{_percent(error.mape)} off"
        named.setdefault(f"not measured, from {_FROM[near]}", []).append(Dot(_said(family), error.mape, text))
    order = [_said(name) for name in FAMILIES]
    named = {name: sorted(dots, key=lambda dot: order.index(dot.row)) for name, dots in named.items()}
    about = "of shapes that were not fitted; a dot for each library, data type and kernel"
    return shown(errors(named, "Errors of what is expected", about))


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A user's own measurements, scored.

    places   of the rows that are on a known device, in the file
    unknown  how many are on others, by what these are called
    """

    predictions: Predictions
    scores: Validation
    places: npt.NDArray[np.intp]
    unknown: Counter[str]


def measured(name: str, data: bytes) -> Measured:
    """Bound and expectation against the rows of a .csv or .parquet (docs/measurements.md).

    Raises InputError, which names the file and what is wrong with it.
    """
    title = Path(name.replace("\\", "/")).name[:80]
    suffix = Path(title).suffix.lower()
    if suffix not in (".csv", ".parquet"):
        raise InputError(f"{title}: must end in .csv or .parquet, the formats of measurements")
    if len(data) > LARGEST:
        raise InputError(f"{title}: must have at most {LARGEST:,} bytes; got {len(data):,}")
    frame = _plain(_csv(title, data) if suffix == ".csv" else _parquet(title, data), title)
    places, unknown = np.arange(len(frame)), Counter[str]()
    if "gpu" in frame:
        called = {gpu: _device(gpu) for gpu in frame["gpu"].unique()}
        unknown.update(gpu for gpu in frame["gpu"] if not called[gpu])
        frame["gpu"] = frame["gpu"].map(called)
        places = np.flatnonzero(frame["gpu"] != "")
        if not len(places):
            first = next(iter(unknown))[:60]
            raise InputError(f"{title}: gpu: no device {first!r}; {suggest(first, _devices())}")
    try:
        predictions = _predicted(frame.iloc[places], title)
        scores = validate([predictions])
    except InputError:
        raise
    except Exception:  # noqa: BLE001 - the page stays, and the log says what to mend
        _LOG.exception("measurements with the columns %s", ", ".join(frame.columns))
        raise InputError(
            f"{title}: llmviewer has a fault and cannot score this; the log of the server has more"
        ) from None
    return Measured(predictions=predictions, scores=scores, places=places, unknown=unknown)


def _predicted(frame: pd.DataFrame, title: str) -> Predictions:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "measured.parquet"
        frame.to_parquet(path, index=False)
        try:
            table = measurements.read(path)
        except InputError as error:
            raise InputError(str(error).replace(str(path), title)) from None
    return predict(table, index().entries)


def scatter(one: Measured, name: str) -> Shown | None:
    """Expected against measured times; None where no row has both."""
    frame, expected = one.predictions.table.frame, one.predictions.columns["expected_us"]
    if "time_us" not in frame:
        return None
    times = frame["time_us"].to_numpy(float)
    groups: dict[str, list[Any]] = {}
    for rows in one.predictions.table.rows:
        ours = expected[rows.places]
        good = np.isfinite(times[rows.places]) & (times[rows.places] > 0) & np.isfinite(ours) & (ours > 0)
        if good.any():
            called = " ".join(filter(None, (rows.device.name, rows.stack.library, rows.stack.dtype)))
            groups.setdefault(called, []).append(rows.places[good])
    if not groups:
        return None
    places = {key: np.concatenate(parts) for key, parts in groups.items()}
    ranked = sorted(places, key=lambda key: -len(places[key]))
    kept = {key: places[key] for key in ranked[: _MOST_GROUPS - (len(ranked) > _MOST_GROUPS)]}
    if len(ranked) > _MOST_GROUPS:
        kept["others"] = np.concatenate([places[key] for key in ranked[len(kept) :]])
    count = sum(map(len, kept.values()))
    each = max(1, math.ceil(count / _MOST_POINTS))
    named = {key: (times[own[::each]], expected[own[::each]]) for key, own in kept.items()}
    every = "" if each == 1 else f"; one of {each} is drawn"
    return shown(against(named, f"Expected against measured: {name}", f"{counted(count, 'row')}{every}"))


def scores(one: Measured) -> list[tuple[str, ...]]:
    """Errors by family, device and data type: heads, then a line for each."""
    lines: list[tuple[str, ...]] = [(
        "family", "device", "data type", "from", "rows", "mean error", "median row", "under 20 us", "over 20 us",
        "bias", "within 20 %", "in the 80 %", "bound's error", "faster than bound",
    )]  # fmt: skip
    for group in one.scores.groups:
        own = group.expected
        shares = (own.mape, own.median, own.mape_short, own.mape_long, own.bias, own.within_20, own.covered)
        lines.append((
            _said(group.family), group.device, group.dtype, group.source, f"{own.rows:,}", *map(_percent, shares),
            _percent(group.bound.mape), f"{group.violations:,}",
        ))  # fmt: skip
    return lines


def worst(one: Measured) -> list[tuple[str, ...]]:
    """The rows that are farthest off: heads, then a line for each."""
    lines: list[tuple[str, ...]] = [("row", "what", "measured", "expected", "at least", "off")]
    for row in one.scores.worst:
        facts = {key: value for key, value in row.items() if key != "row" and not key.endswith("_us") and value != ""}
        what = ", ".join(f"{k} {v:g}" if isinstance(v, float) else v for k, v in facts.items())
        times = (row["time_us"], row["expected_us"], row["bound_us"])
        off = row["expected_us"] / row["time_us"] - 1
        place = one.places[row["row"] - 1] + 1
        lines.append((str(place), what, *(seconds(1e-6 * time) for time in times), f"{off:+.0%}"))
    return lines


def skipped(one: Measured) -> list[str]:
    """Rows that were not scored, with the reason."""
    unknown = Counter({f"no device {called[:60]!r}": count for called, count in one.unknown.items()})
    return [
        f"{counted(count, 'row')}: {reason}"
        for reason, count in (Counter(one.scores.skipped) + unknown).most_common(10)
    ]


def predicted(one: Measured) -> list[tuple[Any, ...]]:
    """The rows on known devices, with what is predicted: heads, then a line for each."""
    frame = one.predictions.frame()
    rows = zip(one.places + 1, frame.itertuples(index=False, name=None), strict=True)
    return [("row", *frame.columns), *((int(place), *row) for place, row in rows)]


@lru_cache(maxsize=1)
def _devices() -> Mapping[str, str]:
    """Every name that a device goes by, with its own."""
    return {alias.lower(): name for name, names in hardware_aliases().items() for alias in names}


def _device(called: str) -> str:
    """The device that a table calls so, as measurements.read finds it; nothing where there is none.

    Files are not looked at: a name of a user is none of a path, and a thousand unknown ones take no time.
    """
    words = re.split(r"[\s_/-]+", called.strip().lower())[:_MOST_WORDS]
    starts = (0, 1) if words[0] in _MAKERS else (0,)
    tried = ("-".join(words[start:end]) for end in range(len(words), 0, -1) for start in starts if start < end)
    return next((_devices()[name] for name in (called.strip().lower(), *tried) if name in _devices()), "")


def _entries(found: Sequence[Answer]) -> list[Entry]:
    names = {one.analysis.hardware.name for one in found}
    return [entry for entry in index().entries if entry.device in names]


def _errors(error: Error) -> dict[str, float | None]:
    return finite({
        "held_out": error.mape, "median": error.median, "short": error.mape_short, "long": error.mape_long,
        "covered": error.covered,
    })  # fmt: skip


def _said(family: str) -> str:
    return family.replace("_", " ")


def _dtype(entry: Entry) -> str:
    cache = entry.stack.kv_dtype
    return f"{entry.stack.dtype}, {cache} cache" if cache and cache != entry.stack.dtype else entry.stack.dtype


def _percent(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.1%}"


def _csv(title: str, data: bytes) -> pd.DataFrame:
    import io

    head, rows = data.partition(b"\n")[0], data.count(b"\n") - data.endswith(b"\n")
    _check(title, rows=rows, columns=1 + head.count(b","))
    try:
        return measurements.read_csv(io.BytesIO(data))
    except (ValueError, OverflowError) as error:  # a table of another kind, or no text
        raise InputError(f"{title}: is not a table: {' '.join(str(error).split())[:200]}") from None


def _parquet(title: str, data: bytes) -> pd.DataFrame:
    import io

    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(io.BytesIO(data))
        about = file.metadata
        _check(title, rows=about.num_rows, columns=about.num_columns)
        groups = [about.row_group(i) for i in range(about.num_row_groups)]
        if sum(group.total_byte_size for group in groups) > _MOST_UNPACKED:
            raise InputError(f"{title}: is larger than {_MOST_UNPACKED:,} bytes when unpacked")
        names = [name for name in file.schema_arrow.names if name in _NUMBERS or name in _LABELS]
        # As dictionaries, a long text that many rows have is held once.
        texts = [f.name for f in file.schema_arrow if pa.types.is_string(f.type) or pa.types.is_large_string(f.type)]
        table = pq.ParquetFile(io.BytesIO(data), read_dictionary=texts).read(columns=names)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InputError(f"{title}: is not a table: {' '.join(str(error).split())[:200]}") from None
    for name in names:
        _check_kind(title, name, table[name])
    frame: pd.DataFrame = table.to_pandas()
    return frame


def _check_kind(title: str, name: str, column: Any) -> None:
    """Raises InputError where a column holds other than numbers and short texts."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    values = [chunk.dictionary for chunk in column.chunks] if pa.types.is_dictionary(kind) else [column]
    for part in values:
        if pa.types.is_string(part.type) or pa.types.is_large_string(part.type):
            if (pc.max(pc.utf8_length(part)).as_py() or 0) > _LONGEST_LABEL:
                raise InputError(f"{title}: {name}: must be texts of at most {_LONGEST_LABEL} characters")
        elif not (
            pa.types.is_integer(part.type)
            or pa.types.is_floating(part.type)
            or pa.types.is_boolean(part.type)
            or pa.types.is_null(part.type)
        ):
            raise InputError(f"{title}: {name}: must be numbers or texts; got {part.type}")


def _check(title: str, *, rows: int, columns: int) -> None:
    for what, number, most in (("rows", rows, _MOST_ROWS), ("columns", columns, _MOST_COLUMNS)):
        if number > most:
            raise InputError(f"{title}: must have at most {most:,} {what}; got {number:,}")


def _plain(frame: pd.DataFrame, title: str) -> pd.DataFrame:
    """The columns that are read, numbers as numbers and labels as short texts."""
    import pandas as pd

    if not len(frame):
        raise InputError(f"{title}: holds no rows")
    kept: dict[str, Any] = {}
    for name in map(str, frame.columns):
        if name in _NUMBERS:
            numbers = pd.to_numeric(_texts(frame[name]), errors="coerce").to_numpy(float)
            kept[name] = np.where(np.abs(numbers) <= _LARGEST_OF.get(name, _LARGEST), numbers, np.nan)
        elif name in _LABELS:
            kept[name] = _texts(frame[name])
    if not kept:
        raise InputError(f"{title}: no family has these columns; docs/measurements.md says what they are called")
    found = pd.DataFrame(kept)
    labels = [name for name in _STACK if name in found]
    for columns, most, what in (
        (["gpu"], _MOST_DEVICES, "devices"),
        (labels, _MOST_STACKS, "libraries, data types and kernels"),
    ):
        count = len(found[columns].drop_duplicates()) if "gpu" in found else 0
        if count > most:
            raise InputError(f"{title}: must have at most {most:,} {what}; got {count:,}")
    return found


def _texts(column: Iterable[Any]) -> pd.Series[str]:
    """Of any column; empty where there is nothing."""
    import pandas as pd

    values = pd.Series(list(column), dtype=object)
    return values.where(values.notna(), "").astype(str).str.slice(0, _LONGEST_LABEL)
