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

_FLOATS: Final = (
    "ttft_s", "prefill_ops", "prefill_bytes", "decode_step_s", "decode_ops", "decode_bytes", "decode_tokens_per_s",
    "tpot_s", "latency_s", "tokens_per_s", "weight_bytes", "kv_cache_bytes", "activation_bytes", "total_bytes",
)  # fmt: skip
_EXPECTED: Final = (  # columns of expected times
    *(f"expected_{t}{end}_s" for t in ("ttft", "decode_step", "tpot", "latency") for end in ("", "_low", "_high")),
    "expected_decode_tokens_per_s", "expected_tokens_per_s",
)  # fmt: skip
_ROW_GROUP: Final = 2**17  # rows written and read at a time
_PATIENCE_S: Final = 10  # timeout of a Dask scheduler
_WITHOUT_WORKERS_S: Final = 60  # that a Dask cluster may have no workers
_POLL_S: Final = 0.5  # between two questions to a Dask cluster

Progress = Callable[[int, int], object]
_T = TypeVar("_T", Model, Hardware)


def begin(folder: Path, design: Design) -> None:
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
        raise InputError(f"{folder}: holds another sweep: {difference}; give another folder")


def path_of(folder: Path, shard: int) -> Path:
    return folder / f"part-{shard:05d}.parquet"


def finished(folder: Path, design: Design, shard: int) -> bool:
    """Whether a shard of this design is complete: its footer, written last, has the key of the design."""
    import pyarrow as pa
    from pyarrow import parquet

    try:
        about = parquet.read_metadata(path_of(folder, shard)).metadata or {}
    except (OSError, pa.ArrowException):
        return False
    return bool(about.get(b"design") == design.key.encode() and about.get(b"shard") == str(shard).encode())


def write_shard(folder: Path, shard: int, key: str) -> int:
    """Computes and writes a shard of the design in `folder`; returns its number.

    key  of the design that the caller expects

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
            use_byte_stream_split=[*_FLOATS, *(_EXPECTED if design.expects else ())],
            write_page_checksum=True,
        ) as file:
            for table in _gathered(_tables(design, settings, numbers, refused)):
                file.write_table(table, row_group_size=_ROW_GROUP)
            about = {"design": design.key, "shard": str(shard), "refused": json.dumps(refused)}
            file.add_key_value_metadata(about)
        with temporary.open("rb") as whole_file:
            os.fsync(whole_file.fileno())  # else the rename could reach the disk before the data

    try:
        write(path_of(folder, shard), fill)
    except InputError:
        if not finished(folder, design, shard):  # else another process finished first and cleaned up
            raise
    return shard


def schema(design: Design) -> pa.Schema:
    """The columns of a shard; null if a model or design lacks them."""
    import pyarrow as pa

    text = pa.dictionary(pa.int32(), pa.string())
    types = {
        **dict.fromkeys(design.settings, text),
        **dict.fromkeys(NUMBERS, pa.int64()),
        **dict.fromkeys((*_FLOATS, *(_EXPECTED if design.expects else ())), pa.float64()),
    }
    return pa.schema({**types, "fits": pa.bool_()})


def run(
    folder: Path,
    design: Design,
    *,
    workers: int = 1,
    shard: tuple[int, int] = (1, 1),
    dask: str | None = None,
    progress: Progress = lambda done, points: None,
    notice: Callable[[str], object] = lambda line: None,
) -> None:
    """Computes the missing shards of a design, or with `shard` = (i, n) those of the i-th of n processes.

    workers   processes on this machine
    dask      address of a Dask scheduler, whose workers have `folder` under the same path
    progress  called with the number of finished points, and of all; first with the points of existing shards
    notice    called with a line if the run has to wait
    """
    begin(folder, design)
    mine = range(shard[0] - 1, design.shards, shard[1])
    todo = [index for index in mine if not finished(folder, design, index)]
    points = sum(map(design.points_of, mine))
    done = points - sum(map(design.points_of, todo))
    progress(done, points)
    if dask:
        doing = _on_dask(dask, folder, design, todo, notice)
    elif workers > 1:
        doing = _in_pool(min(workers, len(todo)), folder, design, todo)
    else:
        doing = (write_shard(folder, index, design.key) for index in todo)
    for index in doing:
        done += design.points_of(index)
        progress(done, points)
    there = len(list(folder.glob("part-*.parquet")))
    if there >= design.shards and all(finished(folder, design, index) for index in range(design.shards)):
        for left in folder.glob(".part-*"):  # left by killed processes
            left.unlink(missing_ok=True)


def _in_pool(workers: int, folder: Path, design: Design, todo: Sequence[int]) -> Iterator[int]:
    """Numbers of shards as processes of this machine finish them."""
    from concurrent.futures import ProcessPoolExecutor, as_completed
    from concurrent.futures.process import BrokenProcessPool
    from multiprocessing import get_context

    if not todo:
        return
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_end_with_parent) as pool:
        futures = [pool.submit(write_shard, folder, index, design.key) for index in todo]
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
    address: str, folder: Path, design: Design, todo: Sequence[int], notice: Callable[[str], object]
) -> Iterator[int]:
    """Numbers of shards as workers of a Dask cluster finish them; shards of a lost worker go to another."""
    try:
        from distributed import Client, KilledWorker, as_completed
        from distributed.comm import get_address_host_port
    except ImportError:
        raise InputError("--dask needs the package distributed: pip install 'llmviewer[dask]'") from None
    try:
        get_address_host_port(address)  # a client with an invalid address would log errors
        client = Client(address, timeout=_PATIENCE_S, set_as_default=False)
    except (OSError, ValueError) as error:
        problem = str(error) or type(error).__name__
        raise InputError(f"--dask {address}: no scheduler there: {problem}") from None
    with client:
        futures = client.map(partial(write_shard, folder.resolve(), key=design.key), todo, pure=False)
        completed, seen, told = as_completed(futures, loop=client.loop), time.monotonic(), False
        try:
            while completed.count():
                batch = completed.next_batch(block=False)
                yield from (future.result() for future in batch)
                if batch or client.ncores():
                    seen, told = time.monotonic(), False
                elif not told:
                    notice(f"waiting for workers of {address}, which has none")
                    told = True
                elif time.monotonic() - seen > _WITHOUT_WORKERS_S:
                    must = f"must have workers; it has had none for {_WITHOUT_WORKERS_S} s"
                    raise InputError(f"--dask {address}: {must}; start some with `dask worker {address}`")
                if not batch:
                    time.sleep(_POLL_S)
        except KilledWorker as error:
            raise InputError(f"--dask {address}: {error}; run the same command to resume") from None


@cache
def _design(folder: Path, key: str) -> Design:
    design = Design.read(folder)
    if design.key != key:
        raise InputError(f"{folder}: must hold this sweep; it holds another")
    return design


@cache
def _model(name: str, known: str) -> Model:
    return _unchanged(load_model(name), name, known)


@cache
def _hardware(name: str, changes: tuple[str, ...], known: str) -> Hardware:
    return _unchanged(load_hardware(name, changes), name, known)


@cache
def _changed(name: str, changes: tuple[str, ...], own: tuple[str, ...], known: str) -> Hardware | str:
    """A device with the what-ifs of axes, or the reason why they do not apply."""
    _unchanged(load_hardware(name, changes), name, known)  # read again, because the file may have changed
    try:
        return load_hardware(name, (*changes, *own))
    except InputError as error:
        return str(error)


@cache
def _profiles(files: tuple[tuple[str, str], ...]) -> tuple[Profile, ...]:
    """The profiles of (file, digest when the design was made)."""
    found = read_profiles([path for path, _ in files])
    for path, known in files:
        _check_same(path, hash_of(path), known)
    return found


def _unchanged(thing: _T, name: str, known: str) -> _T:
    _check_same(name, digest(thing), known)
    return thing


def _check_same(name: str, here: str, known: str) -> None:
    if here != known:
        raise InputError(f"{name}: differs from that of the machine where the sweep began; results would be mixed")


def _tables(
    design: Design, settings: Sequence[int], numbers: Numbers, refused: list[dict[str, str]]
) -> Iterator[pa.Table]:
    """The rows of each setting; refused settings are added to `refused`."""
    options: dict[str, Any] = {**design.options}
    changes = tuple(options.pop("hardware_set", ()))
    if paths := options.pop("profiles", ()):
        options["profiles"] = _profiles(tuple((path, design.digests[f"profile {path}"]) for path in paths))
    corners = {axis: sorted({min(values), max(values)}) for axis, values in design.numbers.items()}
    for setting in map(design.setting, settings):
        name, own = setting["hardware"], tuple(f"{axis}={v}" for axis, v in setting.items() if axis in DEVICE)
        model = _model(setting["model"], design.digests[f"model {setting['model']}"])
        known = design.digests[f"hardware {name}"]
        device = _changed(name, changes, own, known) if own else _hardware(name, changes, known)
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


def _gathered(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Small tables merged, so that a file has no tiny row groups."""
    import pyarrow as pa

    kept: list[pa.Table] = []
    for table in tables:
        kept.append(table)
        if sum(map(len, kept)) >= _ROW_GROUP:
            yield pa.concat_tables(kept)
            kept = []
    if kept:
        yield pa.concat_tables(kept)
