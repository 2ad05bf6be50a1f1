"""Uploaded measurements: untrusted tables, read, checked and scored."""

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
MAX_UPLOAD_BYTES: Final = 5_000_000
_MAX_ROWS, _MAX_COLUMNS, _MAX_DEVICES, _MAX_IMPLEMENTATIONS = 20_000, 200, 100, 2000
_MAX_UNPACKED_BYTES: Final = 200_000_000
_MAX_VALUE: Final = 1e12  # of a size or time
_MAX_BY_COLUMN: Final = {"experts": 4096, "topk": 4096, "tp": 4096, "ep": 4096, "num_gpus": 65_536}
_MAX_LABEL_CHARACTERS: Final = 1000
_LABELS: Final = (
    "gpu", "framework", "version", "kernel", "dtype", "kv_dtype", "stat", "family", "attn", "distribution", "op",
    "impl",
)  # fmt: skip
_NUMBERS: Final = frozenset(
    ("time_us", "loop", "nodes", *(n for f in FAMILIES.values() for n in (*f.columns, *f.optional)))
)
_STACK: Final = ("gpu", "framework", "kernel", "dtype", "kv_dtype", "op", "impl", "attn")


@frozen(kw_only=True)
class ScoredMeasurements:
    """The user's measurements, scored.

    row_positions    positions in the file of the rows on known devices
    unknown_devices  number of rows per unknown device name
    """

    predictions: Predictions
    scores: Validation
    row_positions: npt.NDArray[np.intp]
    unknown_devices: Counter[str]


def scored_measurements(title: str, data: bytes) -> ScoredMeasurements:
    """Scores expected times against the rows of a .csv or .parquet (docs/measurements.md).

    Raises InputError with the name of the file and the problem.
    """
    suffix = f".{title.rpartition('.')[2].lower()}"
    if suffix not in (".csv", ".parquet"):
        raise InputError(f"{title}: must end in .csv or .parquet, the formats of measurements")
    if len(data) > MAX_UPLOAD_BYTES:
        raise InputError(f"{title}: must have at most {MAX_UPLOAD_BYTES:,} bytes; got {len(data):,}")
    frame = _checked_columns(_csv(title, data) if suffix == ".csv" else _parquet(title, data), title)
    row_positions, unknown = np.arange(len(frame)), Counter[str]()
    if "gpu" in frame:
        device_names = {gpu: _device_name(gpu) for gpu in frame["gpu"].unique()}
        unknown.update(gpu for gpu in frame["gpu"] if not device_names[gpu])
        frame["gpu"] = frame["gpu"].map(device_names)
        row_positions = np.flatnonzero(frame["gpu"] != "")
        if not len(row_positions):
            first = next(iter(unknown))[:60]
            names = chain.from_iterable(hardware_aliases().values())
            raise InputError(f"{title}: gpu: no device {first!r}; {suggest(first, names)}")
    try:
        predictions = _predicted(frame.iloc[row_positions], title)
        scores = validate([predictions])
    except InputError:
        raise
    except Exception:  # noqa: BLE001 - the page stays, and the log says what to mend
        _LOG.exception("measurements with the columns %s", ", ".join(frame.columns))
        raise InputError(f"{title}: internal error of llmviewer; details are in the server log") from None
    return ScoredMeasurements(
        predictions=predictions, scores=scores, row_positions=row_positions, unknown_devices=unknown
    )


def _predicted(frame: pd.DataFrame, title: str) -> Predictions:
    table = measurements.table_of(frame.reset_index(drop=True), Path(title))
    return predict(table, index().fits)


@lru_cache(maxsize=1)
def _devices_by_alias() -> Mapping[str, str]:
    """Names of devices by all their aliases, as normalized() writes them."""
    return plain_names()


def _device_name(alias: str) -> str:
    """Name of the device with an alias in a table; empty if unknown.

    No files are searched: the user's texts are never paths, and many unknown ones stay fast.
    """
    names = _devices_by_alias()
    spellings = (normalized(name) for name in (alias, *name_candidates(alias)))
    return next((names[spelling] for spelling in spellings if spelling in names), "")


def _csv(title: str, data: bytes) -> pd.DataFrame:
    head, rows = data.partition(b"\n")[0], data.count(b"\n") - data.endswith(b"\n")
    _check_size(title, rows=rows, columns=1 + head.count(b","))
    try:
        return measurements.read_csv(io.BytesIO(data))
    except (ValueError, OverflowError) as error:  # another kind of table, or not a text
        raise InputError(f"{title}: is not a table: {' '.join(str(error).split())[:200]}") from None


def _parquet(title: str, data: bytes) -> pd.DataFrame:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(io.BytesIO(data))
        about = file.metadata
        _check_size(title, rows=about.num_rows, columns=about.num_columns)
        groups = [about.row_group(i) for i in range(about.num_row_groups)]
        if sum(group.total_byte_size for group in groups) > _MAX_UNPACKED_BYTES:
            raise InputError(f"{title}: is larger than {_MAX_UNPACKED_BYTES:,} bytes when unpacked")
        names = [name for name in file.schema_arrow.names if name in _NUMBERS or name in _LABELS]
        # Dictionary columns store a long text of many rows once.
        texts = [f.name for f in file.schema_arrow if pa.types.is_string(f.type) or pa.types.is_large_string(f.type)]
        table = pq.ParquetFile(io.BytesIO(data), read_dictionary=texts).read(columns=names)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InputError(f"{title}: is not a table: {' '.join(str(error).split())[:200]}") from None
    for name in names:
        _check_column_type(title, name, table[name])
    frame: pd.DataFrame = table.to_pandas()
    return frame


def _check_column_type(title: str, name: str, column: Any) -> None:
    """Raises InputError if a column holds other than numbers and short texts."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    values = [chunk.dictionary for chunk in column.chunks] if pa.types.is_dictionary(kind) else [column]
    for part in values:
        if pa.types.is_string(part.type) or pa.types.is_large_string(part.type):
            if (pc.max(pc.utf8_length(part)).as_py() or 0) > _MAX_LABEL_CHARACTERS:
                raise InputError(f"{title}: {name}: must be texts of at most {_MAX_LABEL_CHARACTERS} characters")
        elif not (
            pa.types.is_integer(part.type)
            or pa.types.is_floating(part.type)
            or pa.types.is_boolean(part.type)
            or pa.types.is_null(part.type)
        ):
            raise InputError(f"{title}: {name}: must be numbers or texts; got {part.type}")


def _check_size(title: str, *, rows: int, columns: int) -> None:
    for item_name, number, limit in (("rows", rows, _MAX_ROWS), ("columns", columns, _MAX_COLUMNS)):
        if number > limit:
            raise InputError(f"{title}: must have at most {limit:,} {item_name}; got {number:,}")


def _checked_columns(frame: pd.DataFrame, title: str) -> pd.DataFrame:
    """The known columns, numbers as floats and labels as short texts.

    Raises InputError if there are none, or too many devices or implementations.
    """
    import pandas as pd

    if not len(frame):
        raise InputError(f"{title}: holds no rows")
    checked: dict[str, Any] = {}
    for name in map(str, frame.columns):
        if name in _NUMBERS:
            numbers = pd.to_numeric(_text_column(frame[name]), errors="coerce").to_numpy(float)
            checked[name] = np.where(np.abs(numbers) <= _MAX_BY_COLUMN.get(name, _MAX_VALUE), numbers, np.nan)
        elif name in _LABELS:
            checked[name] = _text_column(frame[name])
    if not checked:
        raise InputError(f"{title}: no family has these columns; `llmviewer docs measurements` lists their names")
    table = pd.DataFrame(checked)
    labels = [name for name in _STACK if name in table]
    for columns, limit, item_name in (
        (["gpu"], _MAX_DEVICES, "devices"),
        (labels, _MAX_IMPLEMENTATIONS, "libraries, data types and kernels"),
    ):
        count = len(table[columns].drop_duplicates()) if "gpu" in table else 0
        if count > limit:
            raise InputError(f"{title}: must have at most {limit:,} {item_name}; got {count:,}")
    return table


def _text_column(column: Iterable[Any]) -> pd.Series[str]:
    """A column as short texts; empty texts for missing values."""
    import pandas as pd

    values = pd.Series(list(column), dtype=object)
    return values.where(values.notna(), "").astype(str).str.slice(0, _MAX_LABEL_CHARACTERS)
