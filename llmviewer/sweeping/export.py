"""Tables of sweeps as CSV and Parquet."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import InputError
from ..rows import csv_cell
from ..writing import write

if TYPE_CHECKING:
    import pyarrow as pa

    from .grid import Sweep


def write_sweep(path: Path, blocks: Iterable[Sweep]) -> int:
    """Writes the rows of a sweep as .csv or .parquet, by the suffix of `path`, block by block.

    Returns the number of rows.
    """
    writers = {".csv": _write_csv, ".parquet": _write_parquet}
    if path.suffix not in writers:
        raise InputError(f"{path}: must end in .csv or .parquet, the formats a sweep is written in")
    rows = 0

    def counted() -> Iterator[Sweep]:
        nonlocal rows
        for block in blocks:
            rows += len(block)
            yield block

    write(path, lambda temporary: writers[path.suffix](temporary, counted()))
    return rows


def _write_parquet(path: Path, blocks: Iterator[Sweep]) -> None:
    """Writes one row group per block."""
    from pyarrow import parquet

    first = _table(next(blocks))
    with parquet.ParquetWriter(path, first.schema, compression="zstd") as file:
        for table in chain([first], map(_table, blocks)):
            file.write_table(table.cast(first.schema))


def _write_csv(path: Path, blocks: Iterator[Sweep]) -> None:
    from pyarrow import csv

    with path.open("wb") as file:
        for number, block in enumerate(blocks):
            csv.write_csv(_cells(block), file, csv.WriteOptions(include_header=number == 0))


def sweep_csv(sweep: Sweep) -> bytes:
    """The rows of a sweep as CSV text."""
    import pyarrow as pa
    from pyarrow import csv

    text = pa.BufferOutputStream()
    csv.write_csv(_cells(sweep), text)
    return bytes(text.getvalue())


def _cells(sweep: Sweep) -> pa.Table:
    """The rows as CSV cells: undefined numbers are empty, and no text can be read as a formula."""
    import pyarrow as pa
    import pyarrow.compute as pc

    table = _table(sweep)
    for place, name in enumerate(table.column_names):
        column = table.column(name)
        if pa.types.is_floating(column.type):
            column = pc.if_else(pc.is_nan(column), None, column)
        elif any(csv_cell(text) != text for text in _texts(column)):
            column = pa.array(map(csv_cell, column.to_pylist()), pa.string())
        table = table.set_column(place, name, column)
    return table


def _texts(column: pa.ChunkedArray) -> list[str]:
    """The distinct texts in a column; empty for a column of numbers."""
    import pyarrow as pa

    return list(column.unique().to_pylist()) if pa.types.is_string(column.type) else []


def _table(sweep: Sweep) -> pa.Table:
    import pyarrow as pa

    about = {"model": sweep.model, "hardware": sweep.hardware, "source": "llmviewer sweep"}
    return pa.table(dict(sweep.columns)).replace_schema_metadata(about)
