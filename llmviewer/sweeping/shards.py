"""Sharded sweeps: a design is cut into shards, each one Parquet file that is complete or absent.

A shard depends only on the design and its number. So any process can compute any shard, in any order and repeatedly,
and an interrupted sweep resumes with the shards that are absent.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ..devices.files import load_hardware
from ..devices.hardware import Hardware
from ..errors import InputError
from ..expectation.profile import Profile, read_profiles
from ..model import Model
from ..model_files import load_model
from ..writing import write, write_text
from .axes import DEVICE, NUMBERS
from .design import DESIGN, SETTINGS, Design, Numbers, digest, hash_of
from .grid import Sweep, sweep

if TYPE_CHECKING:
    import pyarrow as pa

_FLOAT_COLUMNS: Final = (
    "ttft_s", "prefill_ops", "prefill_bytes", "decode_step_s", "decode_ops", "decode_bytes", "decode_tokens_per_s",
    "tpot_s", "latency_s", "tokens_per_s", "weight_bytes", "kv_cache_bytes", "activation_bytes", "total_bytes",
)  # fmt: skip
_EXPECTED_COLUMNS: Final = (  # columns of expected times
    *(f"expected_{t}{end}_s" for t in ("ttft", "decode_step", "tpot", "latency") for end in ("", "_low", "_high")),
    "expected_decode_tokens_per_s", "expected_tokens_per_s",
)  # fmt: skip
_ROW_GROUP: Final = 2**17  # rows written and read at a time
_SCHEDULER_TIMEOUT_S: Final = 10  # timeout of a Dask scheduler
_MAX_WAIT_FOR_WORKERS_S: Final = 60  # for a Dask cluster without workers
_POLL_S: Final = 0.5  # interval of polling a Dask cluster

Progress = Callable[[int, int], object]
_T = TypeVar("_T", Model, Hardware)


def begin_sweep(folder: Path, design: Design) -> None:
    """Writes the design to a folder without one.

    Raises InputError if the folder holds another design or is not writable.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: must be a folder that can be written to: {error.strerror}") from None
    if not (folder / DESIGN).exists():
        write_text(folder / DESIGN, design.text)
    if difference := design.difference(Design.read(folder)):
        raise InputError(f"{folder}: contains another sweep: {difference}; give another folder")


def shard_path(folder: Path, shard: int) -> Path:
    """The file of a shard."""
    return folder / f"part-{shard:05d}.parquet"


def is_finished(folder: Path, design: Design, shard: int) -> bool:
    """Whether a shard of this design is complete. The footer, written last, has the key of the design."""
    import pyarrow as pa
    from pyarrow import parquet

    try:
        about = parquet.read_metadata(shard_path(folder, shard)).metadata or {}
    except (OSError, pa.ArrowException):
        return False
    return bool(about.get(b"design") == design.key.encode() and about.get(b"shard") == str(shard).encode())


def write_shard(folder: Path, shard: int, key: str) -> int:
    """Computes and writes a shard of the design in `folder`; returns its number.

    key  Design.key of the caller's design

    Settings that are refused have no rows; the footer of the file lists them with reasons.
    Raises InputError if the folder, a model or a device has changed since the design was made.
    """
    from pyarrow import parquet

    design = _design(folder, key)
    settings, numbers = design.part(shard)
    refused: list[dict[str, str]] = []

    def fill(temporary: Path) -> None:
        with parquet.ParquetWriter(
            temporary,
            schema(design),
            compression="zstd",
            use_dictionary=[*design.settings, *NUMBERS],
            use_byte_stream_split=[*_FLOAT_COLUMNS, *(_EXPECTED_COLUMNS if design.expects else ())],
            write_page_checksum=True,
        ) as file:
            for table in _merged_tables(_tables(design, settings, numbers, refused)):
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


def schema(design: Design) -> pa.Schema:
    """The columns of a shard; a column is null if a model or design lacks it."""
    import pyarrow as pa

    text = pa.dictionary(pa.int32(), pa.string())
    types = {
        **dict.fromkeys(design.settings, text),
        **dict.fromkeys(NUMBERS, pa.int64()),
        **dict.fromkeys((*_FLOAT_COLUMNS, *(_EXPECTED_COLUMNS if design.expects else ())), pa.float64()),
    }
    return pa.schema({**types, "fits": pa.bool_()})


def run(
    folder: Path,
    design: Design,
    *,
    workers: int = 1,
    shard: tuple[int, int] = (1, 1),
    dask: str | None = None,
    progress: Progress = lambda finished_points, points: None,
    notice: Callable[[str], object] = lambda line: None,
) -> None:
    """Computes the missing shards of a design, or with `shard` = (i, n) those of the i-th of n processes.

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
    if dask:
        finishing_shards = _on_dask(dask, folder, design, missing_shards, notice)
    elif workers > 1:
        finishing_shards = _in_pool(min(workers, len(missing_shards)), folder, design, missing_shards)
    else:
        finishing_shards = (write_shard(folder, index, design.key) for index in missing_shards)
    for index in finishing_shards:
        finished_points += design.points_of(index)
        progress(finished_points, points)
    shard_files = len(list(folder.glob("part-*.parquet")))
    if shard_files >= design.shards and all(is_finished(folder, design, index) for index in range(design.shards)):
        for leftover in folder.glob(".part-*"):  # left by killed processes
            leftover.unlink(missing_ok=True)


def _in_pool(workers: int, folder: Path, design: Design, missing_shards: Sequence[int]) -> Iterator[int]:
    """Computes shards in processes of this machine; yields their numbers as they finish."""
    from concurrent.futures import ProcessPoolExecutor, as_completed
    from concurrent.futures.process import BrokenProcessPool
    from multiprocessing import get_context

    if not missing_shards:
        return
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_end_with_parent) as pool:
        futures = [pool.submit(write_shard, folder, index, design.key) for index in missing_shards]
        try:
            for future in as_completed(futures):
                yield future.result()
        except BrokenProcessPool:
            raise InputError("a worker was killed, perhaps out of memory; run the same command to resume") from None
        finally:
            pool.shutdown(cancel_futures=True)


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
    address: str, folder: Path, design: Design, missing_shards: Sequence[int], notice: Callable[[str], object]
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
        futures = client.map(partial(write_shard, folder.resolve(), key=design.key), missing_shards, pure=False)
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


@cache
def _design(folder: Path, key: str) -> Design:
    design = Design.read(folder)
    if design.key != key:
        raise InputError(f"{folder}: must contain this sweep; it contains another")
    return design


@cache
def _model(name: str, original_digest: str) -> Model:
    return _unchanged(load_model(name), name, original_digest)


@cache
def _hardware(name: str, changes: tuple[str, ...], original_digest: str) -> Hardware:
    return _unchanged(load_hardware(name, changes), name, original_digest)


@cache
def _changed_hardware(
    name: str, changes: tuple[str, ...], axis_changes: tuple[str, ...], original_digest: str
) -> Hardware | str:
    """A device with the what-ifs of axes, or the reason why they do not apply."""
    _unchanged(load_hardware(name, changes), name, original_digest)  # read again, because the file may have changed
    try:
        return load_hardware(name, (*changes, *axis_changes))
    except InputError as error:
        return str(error)


@cache
def _profiles(files: tuple[tuple[str, str], ...]) -> tuple[Profile, ...]:
    """The profiles of (file, digest when the design was made)."""
    profiles = read_profiles([path for path, _ in files])
    for path, original_digest in files:
        _check_same(path, hash_of(path), original_digest)
    return profiles


def _unchanged(source: _T, name: str, original_digest: str) -> _T:
    _check_same(name, digest(source), original_digest)
    return source


def _check_same(name: str, current_digest: str, original_digest: str) -> None:
    if current_digest != original_digest:
        raise InputError(f"{name}: differs from the version that the sweep started with; results would be mixed")


def _tables(
    design: Design, settings: Sequence[int], numbers: Numbers, refused: list[dict[str, str]]
) -> Iterator[pa.Table]:
    """Yields the rows of each setting; settings that sweep() refuses are appended to `refused`."""
    options: dict[str, Any] = {**design.options}
    changes = tuple(options.pop("hardware_set", ()))
    if paths := options.pop("profiles", ()):
        options["profiles"] = _profiles(tuple((path, design.digests[f"profile {path}"]) for path in paths))
    corners = {axis: sorted({min(values), max(values)}) for axis, values in design.numbers.items()}
    for setting in map(design.setting, settings):
        name, axis_changes = setting["hardware"], tuple(f"{axis}={v}" for axis, v in setting.items() if axis in DEVICE)
        model = _model(setting["model"], design.digests[f"model {setting['model']}"])
        original_digest = design.digests[f"hardware {name}"]
        device = (
            _changed_hardware(name, changes, axis_changes, original_digest)
            if axis_changes
            else _hardware(name, changes, original_digest)
        )
        if isinstance(device, str):
            refused.append({**setting, "reason": device})
            continue
        try:
            swept = partial(sweep, model, device, **{**options, **{axis: setting[axis] for axis in SETTINGS[2:]}})
            if len(design.blocks) > 1:  # all shards must refuse the same settings
                swept(over=corners)
            result = swept(over=numbers)
        except InputError as error:
            refused.append({**setting, "reason": str(error)})
            continue
        yield _table(setting, result, schema(design))


def _table(setting: Mapping[str, str], swept: Sweep, columns: pa.Schema) -> pa.Table:
    import numpy as np
    import pyarrow as pa

    rows = len(swept)
    first = {axis: str(swept.columns[axis][0]) for axis in ("quant", "attention")}
    texts = {**setting, "model": swept.model, "hardware": swept.hardware, **first}
    arrays = []
    for field in columns:
        if field.name in texts:
            column = pa.DictionaryArray.from_arrays(np.zeros(rows, dtype=np.int32), [texts[field.name]])
        elif field.name in swept.columns:
            column = pa.array(swept.columns[field.name]).cast(field.type, safe=False)
        else:
            column = pa.nulls(rows, field.type)
        arrays.append(column)
    return pa.Table.from_arrays(arrays, schema=columns)


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
