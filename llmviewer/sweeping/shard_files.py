"""Designs in folders: shards that are complete or absent, computed by processes, jobs or a Dask cluster.

A shard depends only on the design and its number. So any process can compute any shard, in any order and repeatedly,
and an interrupted sweep resumes with the shards that are absent.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

from ..documents import read_json
from ..errors import InputError
from ..records import frozen
from ..writing import write, write_text

if TYPE_CHECKING:
    from concurrent.futures import ProcessPoolExecutor

    import pyarrow as pa

DESIGN: Final = "design.json"
_ROW_GROUP: Final = 2**17  # rows written and read at a time
_SCHEDULER_TIMEOUT_S: Final = 10  # timeout of a Dask scheduler
_MAX_WAIT_FOR_WORKERS_S: Final = 60  # for a Dask cluster without workers
_POLL_S: Final = 0.5  # interval of polling a Dask cluster

Progress = Callable[[int, int], object]


class ShardWriter(Protocol):
    """Function that writes a shard of the design in `folder`, if that has this key, and returns its number."""

    def __call__(self, folder: Path, shard: int, key: str) -> int: ...


@frozen
class StoredDesign(ABC):
    """Contents of a folder of shards; its fields are those of design.json."""

    @classmethod
    def read(cls, folder: Path) -> Self:
        """The design of the sweep in a folder.

        Raises InputError if there is none, if it is of another command, or if it was edited.
        """
        path = folder / DESIGN
        if not path.exists():
            raise InputError(f"{folder}: must hold a sweep; there is no {DESIGN} in it")
        file = read_json(path)
        if file.data.keys() != {field.name for field in fields(cls)}:
            raise InputError(f"{folder}: contains the sweep of another command or version; give another folder")
        try:
            design = cls(**file.data)
            same = design.text == path.read_text(encoding="utf-8")
        except (TypeError, AttributeError, InputError):
            same = False
        if not same:
            raise InputError(f"{path}: was edited; give another folder, or remove this one")
        return design

    @classmethod
    def with_key(cls, folder: Path, key: str) -> Self:
        """The design in a folder, which has this key.

        Raises InputError if the folder contains another.
        """
        design = cls.read(folder)
        if design.key != key:
            raise InputError(f"{folder}: must contain this sweep; it contains another")
        return design

    @cached_property
    def text(self) -> str:
        """The text of design.json, one line per part."""
        lines = (f"{json.dumps(field.name)}: {json.dumps(getattr(self, field.name))}" for field in fields(self))
        return "{\n" + ",\n".join(lines) + "\n}\n"

    @cached_property
    def key(self) -> str:
        """The digest of the design, which shards carry."""
        return text_hash(self.text)

    @property
    @abstractmethod
    def shards(self) -> int:
        """Number of shards."""

    @abstractmethod
    def points_of(self, shard: int) -> int:
        """Number of points of a shard."""

    @abstractmethod
    def differences(self, other: Self) -> Iterator[tuple[str, Any, Any]]:
        """Yields parts of the request: names, and what they are here and in another design."""

    @property
    @abstractmethod
    def sources(self) -> Mapping[str, str]:
        """Digests of models, devices and files when the design was made, by name."""

    def difference(self, other: Self) -> str:
        """The first difference from another design; "" if none."""
        for name, own_value, other_value in self.differences(other):
            if own_value != other_value:
                return f"{name} is {_abbreviated(other_value)} there and {_abbreviated(own_value)} here"
        changed = [name for name, value in self.sources.items() if other.sources.get(name) != value]
        return f"{changed[0]} has changed since" if changed else ""


def begin_sweep(folder: Path, design: StoredDesign) -> None:
    """Writes the design to a folder without one.

    Raises InputError if the folder holds another design or is not writable.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: must be a folder that can be written to: {error.strerror}") from None
    if not (folder / DESIGN).exists():
        write_text(folder / DESIGN, design.text)
    if difference := design.difference(type(design).read(folder)):
        raise InputError(f"{folder}: contains another sweep: {difference}; give another folder")


def shard_path(folder: Path, shard: int) -> Path:
    """The file of a shard."""
    return folder / f"part-{shard:05d}.parquet"


def is_finished(folder: Path, design: StoredDesign, shard: int) -> bool:
    """Whether a shard of this design is complete. The footer, written last, has the key of the design."""
    import pyarrow as pa
    from pyarrow import parquet

    try:
        about = parquet.read_metadata(shard_path(folder, shard)).metadata or {}
    except (OSError, pa.ArrowException):
        return False
    return bool(about.get(b"design") == design.key.encode() and about.get(b"shard") == str(shard).encode())


def write_rows(
    folder: Path,
    shard: int,
    design: StoredDesign,
    schema: pa.Schema,
    tables: Iterable[pa.Table],
    *,
    refused: Sequence[Mapping[str, str]],
    texts: Sequence[str],
    floats: Sequence[str],
) -> int:
    """Writes the rows of a shard; returns its number.

    refused  what has no rows, with reasons; complete when `tables` are
    texts, floats  columns with few different values, and of measurements

    Raises InputError if the file cannot be written.
    """
    from pyarrow import parquet

    def fill(temporary: Path) -> None:
        with parquet.ParquetWriter(
            temporary,
            schema,
            compression="zstd",
            use_dictionary=list(texts),
            use_byte_stream_split=list(floats),
            write_page_checksum=True,
        ) as file:
            for table in _merged_tables(iter(tables)):
                file.write_table(table, row_group_size=_ROW_GROUP)
            about = {"design": design.key, "shard": str(shard), "refused": json.dumps(refused)}
            file.add_key_value_metadata(about)
        with temporary.open("rb") as whole_file:
            os.fsync(whole_file.fileno())  # else the rename could reach the disk before the data

    try:
        write(shard_path(folder, shard), fill)
    except InputError:
        if not is_finished(folder, design, shard):  # else another process finished first and cleaned up
            raise
    return shard


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a shard that fits the memory.

    Raises InputError if the file is damaged.
    """
    import pyarrow as pa
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path, page_checksum_verification=True) as file:
            rows: list[dict[str, Any]] = file.read().to_pylist()
    except (OSError, pa.ArrowException) as error:
        raise damaged(path, error) from None
    return rows


def damaged(path: Path, error: Exception) -> InputError:
    """The error for a shard that cannot be read."""
    return InputError(f"{path}: is damaged; remove it and run the same command to resume: {error}")


def refusals(path: Path) -> list[dict[str, str]]:
    """Points without rows in a shard, with reasons."""
    from pyarrow import parquet

    settings: list[dict[str, str]] = json.loads(parquet.read_metadata(path).metadata[b"refused"])
    return settings


def run_shards(
    folder: Path,
    design: StoredDesign,
    write_shard: ShardWriter,
    *,
    workers: int = 1,
    shard: tuple[int, int] = (1, 1),
    dask: str | None = None,
    progress: Progress = lambda finished_points, points: None,
    notice: Callable[[str], object] = lambda line: None,
) -> None:
    """Computes the missing shards of a design, or with `shard` = (i, n) those of the i-th of n processes.

    write_shard  computes and writes a shard, in any process
    workers   processes on this machine
    dask      address of a Dask scheduler, whose workers have `folder` under the same path
    progress  called with the number of finished points, and of all; first with the points of existing shards
    notice    called with a line if the run has to wait
    """
    begin_sweep(folder, design)
    process_shards = range(shard[0] - 1, design.shards, shard[1])
    missing_shards = [index for index in process_shards if not is_finished(folder, design, index)]
    points = sum(map(design.points_of, process_shards))
    finished_points = points - sum(map(design.points_of, missing_shards))
    progress(finished_points, points)
    write_one = partial(write_shard, folder.resolve(), key=design.key)
    if dask:
        finishing_shards = _on_dask(dask, write_one, missing_shards, notice)
    elif workers > 1:
        finishing_shards = _in_pool(min(workers, len(missing_shards)), write_one, missing_shards)
    else:
        finishing_shards = map(write_one, missing_shards)
    for index in finishing_shards:
        finished_points += design.points_of(index)
        progress(finished_points, points)
    shard_files = len(list(folder.glob("part-*.parquet")))
    if shard_files >= design.shards and all(is_finished(folder, design, index) for index in range(design.shards)):
        for leftover in folder.glob(".part-*"):  # left by killed processes
            leftover.unlink(missing_ok=True)


def _in_pool(workers: int, write_one: Callable[[int], int], missing_shards: Sequence[int]) -> Iterator[int]:
    """Computes shards in processes of this machine; yields their numbers as they finish."""
    from concurrent.futures import as_completed
    from concurrent.futures.process import BrokenProcessPool

    if not missing_shards:
        return
    with worker_pool(workers) as pool:
        futures = [pool.submit(write_one, index) for index in missing_shards]
        try:
            for future in as_completed(futures):
                yield future.result()
        except BrokenProcessPool:
            raise InputError("a worker was killed, perhaps out of memory; run the same command to resume") from None
        finally:
            pool.shutdown(cancel_futures=True)


def worker_pool(workers: int) -> ProcessPoolExecutor:
    """Processes of this machine, which end with this one."""
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    return ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_end_with_parent)


def _end_with_parent() -> None:
    """Makes a worker exit with its parent, if that is killed, and leave ^C to it."""
    import signal
    from multiprocessing import parent_process
    from threading import Thread

    def watch() -> None:
        parent = parent_process()
        assert parent is not None
        parent.join()
        os._exit(1)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Thread(target=watch, daemon=True).start()


def _on_dask(
    address: str, write_one: Callable[[int], int], missing_shards: Sequence[int], notice: Callable[[str], object]
) -> Iterator[int]:
    """Computes shards on a Dask cluster; yields their numbers as they finish. A lost worker's shards go to another."""
    try:
        from distributed import Client, KilledWorker, as_completed
        from distributed.comm import get_address_host_port
    except ImportError:
        raise InputError("--dask needs the package distributed: pip install 'llmviewer[dask]'") from None
    try:
        get_address_host_port(address)  # a client with an invalid address would log errors
        client = Client(address, timeout=_SCHEDULER_TIMEOUT_S, set_as_default=False)
    except (OSError, ValueError) as error:
        problem = str(error) or type(error).__name__
        raise InputError(f"--dask {address}: no scheduler there: {problem}") from None
    with client:
        futures = client.map(write_one, missing_shards, pure=False)
        completed, last_worker_s, is_reported = as_completed(futures, loop=client.loop), time.monotonic(), False
        try:
            while completed.count():
                batch = completed.next_batch(block=False)
                yield from (future.result() for future in batch)
                if batch or client.ncores():
                    last_worker_s, is_reported = time.monotonic(), False
                elif not is_reported:
                    notice(f"waiting for workers of {address}, which has none")
                    is_reported = True
                elif time.monotonic() - last_worker_s > _MAX_WAIT_FOR_WORKERS_S:
                    must = f"must have workers; it has had none for {_MAX_WAIT_FOR_WORKERS_S} s"
                    raise InputError(f"--dask {address}: {must}; start some with `dask worker {address}`")
                if not batch:
                    time.sleep(_POLL_S)
        except KilledWorker as error:
            raise InputError(f"--dask {address}: {error}; run the same command to resume") from None


def _merged_tables(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Merges small tables, so that a file has no tiny row groups."""
    import pyarrow as pa

    pending_tables: list[pa.Table] = []
    for table in tables:
        pending_tables.append(table)
        if sum(map(len, pending_tables)) >= _ROW_GROUP:
            yield pa.concat_tables(pending_tables)
            pending_tables = []
    if pending_tables:
        yield pa.concat_tables(pending_tables)


def hash_of(path: str) -> str:
    """A hash of a file's text."""
    return text_hash(Path(path).read_text(encoding="utf-8"))


def text_hash(text: str) -> str:
    """A hash of a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def check_same(name: str, current_digest: str, original_digest: str) -> None:
    """Raises InputError if a model, a device or a file has changed since the design was made."""
    if current_digest != original_digest:
        raise InputError(f"{name}: differs from the version that the sweep started with; results would be mixed")


def _abbreviated(value: object) -> str:
    if isinstance(value, list) and len(value) > 4:
        return f"{len(value)} values from {value[0]} to {value[-1]}"
    text = ",".join(map(str, value)) if isinstance(value, list) else str(value or "")
    return text or "nothing"
