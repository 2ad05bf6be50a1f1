"""Measurements that a user drops in, which may be anything: read, checked, and scored."""

from __future__ import annotations

import io
import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from llmviewer.devices.files import hardware_aliases, plain_names
from llmviewer.devices.names import name_candidates
from llmviewer.documents import normalized
from llmviewer.errors import InputError, suggest
from llmviewer.expectation import rows as measurements
from llmviewer.expectation.families import FAMILIES
from llmviewer.expectation.index import index
from llmviewer.expectation.validate import Predictions, Validation, predict, validate
from llmviewer.records import frozen

if TYPE_CHECKING:
    import pandas as pd

_LOG: Final = logging.getLogger(__name__)
LARGEST: Final = 5_000_000  # of a file of measurements [B]
_MOST_ROWS, _MOST_COLUMNS, _MOST_DEVICES, _MOST_STACKS = 20_000, 200, 100, 2000
_MOST_UNPACKED: Final = 200_000_000  # [B]
_LARGEST: Final = 1e12  # of a size or a time; what is larger is no measurement
_LARGEST_OF: Final = {"experts": 4096, "topk": 4096, "tp": 4096, "ep": 4096, "num_gpus": 65_536}
_LONGEST_LABEL: Final = 1000  # characters
_LABELS: Final = (
    "gpu", "framework", "version", "kernel", "dtype", "kv_dtype", "stat", "family", "attn", "distribution", "op",
    "impl",
)  # fmt: skip
_NUMBERS: Final = frozenset(
    ("time_us", "loop", "nodes", *(n for f in FAMILIES.values() for n in (*f.columns, *f.optional)))
)
_STACK: Final = ("gpu", "framework", "kernel", "dtype", "kv_dtype", "op", "impl", "attn")


@frozen(kw_only=True)
class Measured:
    """A user's own measurements, scored.

    places   of the rows that are on a known device, in the file
    unknown  how many are on others, by what these are called
    """

    predictions: Predictions
    scores: Validation
    places: npt.NDArray[np.intp]
    unknown: Counter[str]


def measured(title: str, data: bytes) -> Measured:
    """Bound and expectation against the rows of a .csv or .parquet (docs/measurements.md).

    Raises InputError, which names the file and what is wrong with it.
    """
    suffix = f".{title.rpartition('.')[2].lower()}"
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
            names = chain.from_iterable(hardware_aliases().values())
            raise InputError(f"{title}: gpu: no device {first!r}; {suggest(first, names)}")
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
    table = measurements.table_of(frame.reset_index(drop=True), Path(title))
    return predict(table, index().fits)


@lru_cache(maxsize=1)
def _devices() -> Mapping[str, str]:
    """Every name that a device goes by, as `normalized` writes it, with its own."""
    return plain_names()


def _device(called: str) -> str:
    """The device that a table calls so, as measurements.read finds it; nothing where there is none.

    Files are not looked at: a name of a user is none of a path, and a thousand unknown ones take no time.
    """
    return next(
        (_devices()[normalized(name)] for name in (called, *name_candidates(called)) if normalized(name) in _devices()),
        "",
    )


def _csv(title: str, data: bytes) -> pd.DataFrame:
    head, rows = data.partition(b"\n")[0], data.count(b"\n") - data.endswith(b"\n")
    _check(title, rows=rows, columns=1 + head.count(b","))
    try:
        return measurements.read_csv(io.BytesIO(data))
    except (ValueError, OverflowError) as error:  # a table of another kind, or no text
        raise InputError(f"{title}: is not a table: {' '.join(str(error).split())[:200]}") from None


def _parquet(title: str, data: bytes) -> pd.DataFrame:
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
        raise InputError(f"{title}: no family has these columns; `llmviewer docs measurements` lists their names")
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
