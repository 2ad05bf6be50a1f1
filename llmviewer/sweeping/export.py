"""Tables of sweeps as CSV and Parquet."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import InputError
from ..rows import csv_cell
from ..writing import write

if TYPE_CHECKING:
    import pyarrow as pa

    from .grid import Sweep


def write_sweep(path: Path, sweep: Sweep) -> None:
    """Writes the rows of a sweep as .csv or .parquet, by the suffix of `path`."""
    from pyarrow import parquet

    if path.suffix == ".csv":
        text = sweep_csv(sweep)
        write(path, lambda temporary: temporary.write_bytes(text))
    elif path.suffix == ".parquet":
        table = _table(sweep)
        write(path, lambda temporary: parquet.write_table(table, temporary, compression="zstd"))
    else:
        raise InputError(f"{path}: must end in .csv or .parquet, the formats a sweep is written in")


def sweep_csv(sweep: Sweep) -> bytes:
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import csv

    text = pa.BufferOutputStream()
    table = _table(sweep)
    for place, name in enumerate(table.column_names):
        column = table.column(name)
        if pa.types.is_floating(column.type):
            column = pc.if_else(pc.is_nan(column), None, column)  # an empty cell
        elif any(csv_cell(text) != text for text in _texts(column)):
            column = pa.array(map(csv_cell, column.to_pylist()), pa.string())
        table = table.set_column(place, name, column)
    csv.write_csv(table, text)
    return bytes(text.getvalue())


def _texts(column: pa.ChunkedArray) -> list[str]:
    """The different texts in a column; none if it has numbers."""
    import pyarrow as pa

    return list(column.unique().to_pylist()) if pa.types.is_string(column.type) else []


def _table(sweep: Sweep) -> pa.Table:
    import pyarrow as pa

    about = {"model": sweep.model, "hardware": sweep.hardware, "source": "llmviewer sweep"}
    return pa.table(dict(sweep.columns)).replace_schema_metadata(about)
