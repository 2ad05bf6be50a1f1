"""Sweeps that outgrow one machine: a design is cut into shards, each of them one Parquet file, whole or not there.

A shard depends on the design and its number alone. So any process may work out any shard, in any order and twice, and
what was killed is what is not there yet.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from functools import cache, cached_property, partial
from inspect import signature
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from . import __version__
from .documents import read_json
from .errors import InputError
from .expectation.profile import Profile, read_given
from .export import write, write_text
from .given import told_apart
from .grid import (
    DEVICE,
    NUMBERS,
    Sweep,
    check_changes,
    check_distinct,
    check_expected,
    check_techniques,
    parse_axis,
    sweep,
)
from .hardware import Hardware
from .hardware_files import load_hardware
from .model import Model
from .model_files import load_model
from .setting import Setting, whole
from .techniques import parse_techniques
from .transforms.quantize import PUBLISHED, unless_published

if TYPE_CHECKING:
    import pyarrow as pa

SETTINGS: Final = ("model", "hardware", "quant", "attention", "layout", "offload")  # of sweep(), a graph for each value
SHARD_POINTS: Final = 1_000_000
DESIGN: Final = "design.json"
_USUAL: Final = {"batch": [1], "prompt": [1024]}
_FLOATS: Final = (
    "ttft_s", "prefill_ops", "prefill_bytes", "decode_step_s", "decode_ops", "decode_bytes", "decode_tokens_per_s",
    "tpot_s", "latency_s", "tokens_per_s", "weight_bytes", "kv_cache_bytes", "activation_bytes", "total_bytes",
)  # fmt: skip
_EXPECTED: Final = (  # of what is expected, where that is asked for
    *(f"expected_{t}{end}_s" for t in ("ttft", "decode_step", "tpot", "latency") for end in ("", "_low", "_high")),
    "expected_decode_tokens_per_s", "expected_tokens_per_s",
)  # fmt: skip
_TOGETHER: Final = 500  # settings of a shard at most: to lower one takes as long as to work out thousands of points
_ROW_GROUP: Final = 2**17  # rows that are written, and read back, at a time

_PATIENCE_S: Final = 10  # for a scheduler to answer

Numbers = Mapping[str, Sequence[int]]
Progress = Callable[[int, int], object]
_T = TypeVar("_T", Model, Hardware)


@dataclass(frozen=True, kw_only=True)
class Design:
    """Every combination of settings and numbers; the last axis runs fastest.

    settings      values of each of SETTINGS, and of some of DEVICE, as a user writes them; "" is what sweep() takes if
                  not told
    numbers       values of some of NUMBERS
    options       other arguments of sweep() that are not as usual, the same for all
    digests       of what the names of models, devices and profiles stood for when the design was made
    shard_points  points that a shard has at most
    """

    settings: Mapping[str, Sequence[str]]
    numbers: Numbers
    options: Mapping[str, Any]
    digests: Mapping[str, str]
    shard_points: int = SHARD_POINTS
    version: str = __version__

    def __post_init__(self) -> None:
        whole("shard_points", self.shard_points)
        for axis, values in (*self.settings.items(), *self.numbers.items()):
            if not len(values):
                raise InputError(f"{axis}: nothing to sweep over")
        for axis, numbers in self.numbers.items():
            for value in numbers:
                whole(axis, value, least=0 if axis == "images" else 1)

    @classmethod
    def of(
        cls,
        models: Sequence[str],
        hardware: Sequence[str],
        over: Mapping[str, Sequence[int] | Sequence[str]],
        *,
        shard_points: int = SHARD_POINTS,
        **options: Any,
    ) -> Design:
        """From what a user writes; `over` is by SETTINGS, NUMBERS and DEVICE.

        Raises InputError where a name is not known, or a value does not parse.
        """
        for axis in over:
            if axis not in (*SETTINGS[2:], *NUMBERS, *DEVICE):
                raise InputError(f"no axis {axis!r} to sweep over; there is {', '.join((*SETTINGS[2:], *NUMBERS))}")
            check_distinct(axis, over[axis])
        given = {"model": models, "hardware": hardware, **over}
        axes = (*SETTINGS, *(axis for axis in over if axis in DEVICE))
        settings = {axis: list(map(str, dict.fromkeys(given.get(axis, [""])))) for axis in axes}
        settings["quant"] = [unless_published(quant) or PUBLISHED for quant in settings["quant"]]
        usual = {name: parameter.default for name, parameter in signature(sweep).parameters.items()}
        unusual = {name: value for name, value in options.items() if value != usual[name]}
        changes, expected = unusual.pop("hardware_set", ()), unusual.pop("expected", False)
        ours = parse_techniques(unusual.pop("techniques", ()))
        check_techniques(ours, over, None)
        check_changes(changes, over)
        profiles = [str(path) for path in unusual.pop("profiles", ())]
        measured = read_given(profiles)
        check_expected(unusual.get("library", ""), profiles, expected=expected)
        loaded = {f"model {name}": load_model(name) for name in settings["model"]}
        devices = {f"hardware {name}": load_hardware(name, changes) for name in settings["hardware"]}
        told_apart((asked, one.name) for asked, one in loaded.items())
        told_apart((asked, one.name) for asked, one in devices.items())
        for axis in axes[len(SETTINGS) :]:
            for value in settings[axis]:
                _check_change(settings["hardware"], changes, f"{axis}={value}")
        written = ({axis: v} for axis in SETTINGS[2:] for v in settings[axis] if unless_published(v))
        parsed: list[dict[str, Any]] = [unusual, *written]
        for asked in parsed:
            Setting.of(next(iter(loaded.values())), next(iter(devices.values())), profiles=measured, **asked)
        numbers = {**_USUAL, **over}
        return cls(
            settings=settings,
            numbers={axis: list(map(int, numbers[axis])) for axis in NUMBERS if axis in numbers},
            options={
                **unusual,
                **({"hardware_set": list(changes)} if changes else {}),
                **({"techniques": list(map(str, ours))} if ours else {}),
                **({"expected": True} if expected else {}),
                **({"profiles": profiles} if profiles else {}),
            },
            digests={
                **{name: digest(thing) for named in (loaded, devices) for name, thing in named.items()},
                **{f"profile {path}": _hash_of(path) for path in profiles},
            },
            shard_points=shard_points,
        )

    @classmethod
    def read(cls, folder: Path) -> Design:
        """The design of the sweep in a folder.

        Raises InputError where there is none, or where it was edited.
        """
        path = folder / DESIGN
        if not path.exists():
            raise InputError(f"{folder}: holds no sweep; there is no {DESIGN} in it")
        file = read_json(path)
        try:
            design = cls(**file.data)
            same = design.text == path.read_text(encoding="utf-8")
        except (TypeError, AttributeError, InputError):
            same = False
        if not same:
            raise InputError(f"{path}: is not as it was written; give another folder, or remove this one")
        return design

    @cached_property
    def text(self) -> str:
        """What design.json holds: a line for each part."""
        lines = (f"{json.dumps(field.name)}: {json.dumps(getattr(self, field.name))}" for field in fields(self))
        return "{\n" + ",\n".join(lines) + "\n}\n"

    @cached_property
    def key(self) -> str:
        """What a shard carries to say of which design it is."""
        return _hash(self.text)

    def difference(self, other: Design) -> str:
        """The first thing in which another design differs; "" where nothing does."""
        for name, here, there in (
            ("version", self.version, other.version),
            *(
                (axis, self.settings.get(axis), other.settings.get(axis))
                for axis in {**self.settings, **other.settings}
            ),
            *((axis, self.numbers.get(axis), other.numbers.get(axis)) for axis in NUMBERS),
            *((name, self.options.get(name), other.options.get(name)) for name in {**self.options, **other.options}),
            ("shard_points", self.shard_points, other.shard_points),
        ):
            if here != there:
                return f"{name} is {_shown(there)} there and {_shown(here)} here"
        changed = [name for name, value in self.digests.items() if other.digests.get(name) != value]
        return f"{changed[0]} has changed since" if changed else ""

    @cached_property
    def shape(self) -> tuple[int, ...]:
        return tuple(map(len, self.settings.values()))

    @cached_property
    def blocks(self) -> tuple[Numbers, ...]:
        """The numbers, in as few grids as have no more points than a shard."""
        return tuple(_cut(self.numbers, self.shard_points))

    @cached_property
    def together(self) -> int:
        """Settings that share a shard."""
        return min(max(1, self.shard_points // prod(map(len, self.numbers.values()))), _TOGETHER)

    @property
    def expects(self) -> bool:
        """Whether it has columns of what is expected."""
        return bool(self.options.get("expected"))

    @property
    def points(self) -> int:
        return prod(self.shape) * prod(map(len, self.numbers.values()))

    @property
    def shards(self) -> int:
        return -(-prod(self.shape) // self.together) * len(self.blocks)

    def setting(self, number: int) -> dict[str, str]:
        """One of the settings, by its place."""
        values = {}
        for axis, given in reversed(list(self.settings.items())):
            number, place = divmod(number, len(given))
            values[axis] = given[place]
        return {axis: values[axis] for axis in self.settings}

    def part(self, shard: int) -> tuple[range, Numbers]:
        """The settings, by their places, and the numbers of a shard."""
        group, block = divmod(shard, len(self.blocks))
        first = group * self.together
        return range(first, min(first + self.together, prod(self.shape))), self.blocks[block]

    def points_of(self, shard: int) -> int:
        settings, numbers = self.part(shard)
        return len(settings) * prod(map(len, numbers.values()))


def parse_over(text: str) -> tuple[str, list[int] | list[str]]:
    """Read "layout=tp=8,tp=4 pp=2", or what parse_axis() reads."""
    axis, equals, values = (part.strip() for part in text.partition("="))
    if equals and axis in ("layout", "offload"):  # which may be empty
        return axis, [value.strip() for value in values.split(",")]
    return parse_axis(text)


def named(text: str, known: Sequence[str], *, command: str) -> list[str]:
    """The names in "llama-2-7b,qwen3*", or of "all" that are `known`; `command` lists those.

    Raises InputError where a pattern fits none.
    """
    names: list[str] = []
    for part in filter(None, map(str.strip, text.split(","))):
        pattern = "*" if part == "all" else part.lower()
        found = [name for name in known if fnmatchcase(name.lower(), pattern)] if set("*?[") & set(pattern) else [part]
        if not found:
            raise InputError(f"{part!r} fits no name that `llmviewer {command}` lists")
        names += found
    return list(dict.fromkeys(names))


def digest(thing: Model | Hardware) -> str:
    """Of all that results depend on."""
    if isinstance(thing, Model):
        run = ((one.graph, one.quantization) for one in (thing, thing.predicting) if one)  # mtp runs the other one
        return _hash(repr((thing.name, *run)))
    return _hash(repr((thing, thing.numbers)))


def begin(folder: Path, design: Design) -> None:
    """Writes the design down where the folder has none.

    Raises InputError where the folder holds another one, or cannot be written to.
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
    """Whether a shard is there, whole, and of this design: its footer comes last and says so."""
    import pyarrow as pa
    from pyarrow import parquet

    try:
        about = parquet.read_metadata(path_of(folder, shard)).metadata or {}
    except (OSError, pa.ArrowException):
        return False
    return bool(about.get(b"design") == design.key.encode() and about.get(b"shard") == str(shard).encode())


def write_shard(folder: Path, shard: int, key: str) -> int:
    """Works out a shard of the design in `folder` and puts it there. Returns its number.

    key  of the design that whoever asks has in mind

    Settings that cannot run are no rows: the file's footer says which and why.
    Raises InputError where the folder, a model or a device is not what it was when the design was made.
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
            os.fsync(whole_file.fileno())  # a rename may reach the disk before the data

    try:
        write(path_of(folder, shard), fill)
    except InputError:
        if not finished(folder, design, shard):  # else another process was first and has cleaned up
            raise
    return shard


def schema(design: Design) -> pa.Schema:
    """The columns of a shard; those that a model or a design does not have are null."""
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
) -> None:
    """Works out all shards of a design, or those that `shard` = (i, n) leaves to the i-th of n, that are not there yet.

    workers   processes on this machine
    dask      address of a scheduler; its workers see `folder` under the same path
    progress  is told of points done, and of how many there are: first of those that were there
    """
    begin(folder, design)
    mine = range(shard[0] - 1, design.shards, shard[1])
    todo = [index for index in mine if not finished(folder, design, index)]
    points = sum(map(design.points_of, mine))
    done = points - sum(map(design.points_of, todo))
    progress(done, points)
    if dask:
        doing = _on_dask(dask, folder, design, todo)
    elif workers > 1:
        doing = _in_pool(min(workers, len(todo)), folder, design, todo)
    else:
        doing = (write_shard(folder, index, design.key) for index in todo)
    for index in doing:
        done += design.points_of(index)
        progress(done, points)
    there = len(list(folder.glob("part-*.parquet")))
    if there >= design.shards and all(finished(folder, design, index) for index in range(design.shards)):
        for left in folder.glob(".part-*"):  # by who was killed
            left.unlink(missing_ok=True)


def _in_pool(workers: int, folder: Path, design: Design, todo: Sequence[int]) -> Iterator[int]:
    """The shards as processes of this machine finish them."""
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
            raise InputError("a worker was killed, perhaps for want of memory; the same command goes on") from None
        finally:
            pool.shutdown(cancel_futures=True)


def _end_with_parent() -> None:
    """A worker whose parent was killed would wait for work for ever. One that ^C reaches leaves it to its parent."""
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


def _on_dask(address: str, folder: Path, design: Design, todo: Sequence[int]) -> Iterator[int]:
    """The shards as the workers of a Dask cluster finish them. Those of a worker that is lost go to another."""
    try:
        from distributed import Client, KilledWorker, as_completed
        from distributed.comm import get_address_host_port
    except ImportError:
        raise InputError("--dask needs the package distributed: pip install 'llmviewer[dask]'") from None
    try:
        get_address_host_port(address)  # a client that cannot read it makes noise when it is dropped
        client = Client(address, timeout=_PATIENCE_S, set_as_default=False)
    except (OSError, ValueError) as error:
        problem = str(error) or type(error).__name__
        raise InputError(f"--dask {address}: no scheduler there: {problem}") from None
    with client:
        futures = client.map(partial(write_shard, folder.resolve(), key=design.key), todo, pure=False)
        try:
            for future in as_completed(futures, loop=client.loop):
                yield future.result()
        except KilledWorker as error:
            raise InputError(f"--dask {address}: {error}; the same command goes on") from None


@cache
def _design(folder: Path, key: str) -> Design:
    design = Design.read(folder)
    if design.key != key:
        raise InputError(f"{folder}: holds another sweep than the one asked for")
    return design


@cache
def _model(name: str, known: str) -> Model:
    return _unchanged(load_model(name), name, known)


@cache
def _hardware(name: str, changes: tuple[str, ...], known: str) -> Hardware:
    return _unchanged(load_hardware(name, changes), name, known)


@cache
def _changed(name: str, changes: tuple[str, ...], own: tuple[str, ...], known: str) -> Hardware | str:
    """A device under what-ifs that axes go over, or why they make no sense of it."""
    _unchanged(load_hardware(name, changes), name, known)  # which is read again, as it may be another file by now
    try:
        return load_hardware(name, (*changes, *own))
    except InputError as error:
        return str(error)


@cache
def _profiles(files: tuple[tuple[str, str], ...]) -> tuple[Profile, ...]:
    """Those of files, each with the digest that it had."""
    found = read_given([path for path, _ in files])
    for path, known in files:
        _check_same(path, _hash_of(path), known)
    return found


def _unchanged(thing: _T, name: str, known: str) -> _T:
    _check_same(name, digest(thing), known)
    return thing


def _check_same(name: str, here: str, known: str) -> None:
    if here != known:
        raise InputError(f"{name}: is not here what it was where the sweep was started, so results would be mixed")


def _tables(
    design: Design, settings: Sequence[int], numbers: Numbers, refused: list[dict[str, str]]
) -> Iterator[pa.Table]:
    """The rows of each setting. Those that cannot run are added to `refused`."""
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
            if len(design.blocks) > 1:  # what one shard refuses, all have to
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
    """Small tables together, so that a file does not fall apart into row groups of a few points."""
    import pyarrow as pa

    kept: list[pa.Table] = []
    for table in tables:
        kept.append(table)
        if sum(map(len, kept)) >= _ROW_GROUP:
            yield pa.concat_tables(kept)
            kept = []
    if kept:
        yield pa.concat_tables(kept)


def _cut(numbers: Numbers, most: int) -> Iterator[Numbers]:
    """Grids of at most `most` points that make up the whole, in its order."""
    if prod(map(len, numbers.values())) <= most:
        yield numbers
        return
    axis = next(axis for axis, values in numbers.items() if len(values) > 1)
    values = numbers[axis]
    inner = prod(map(len, numbers.values())) // len(values)
    step = max(1, most // inner)
    for start in range(0, len(values), step):
        yield from _cut({**numbers, axis: values[start : start + step]}, most)


def _check_change(devices: Sequence[str], changes: Sequence[str], change: str) -> None:
    """Raises InputError where a what-if makes sense of no device."""
    found: list[InputError] = []
    for name in devices:
        try:
            load_hardware(name, (*changes, change))
        except InputError as error:
            found.append(error)
        else:
            return
    raise found[0]


def _hash_of(path: str) -> str:
    return _hash(Path(path).read_text(encoding="utf-8"))


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _shown(value: object) -> str:
    if isinstance(value, list) and len(value) > 4:
        return f"{len(value)} values from {value[0]} to {value[-1]}"
    text = ",".join(map(str, value)) if isinstance(value, list) else str(value or "")
    return text or "nothing"
