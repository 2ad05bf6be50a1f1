"""Shards of a sweep: the rows of its settings, computed by itself in any process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar
from warnings import warn

from ..devices.files import load_hardware
from ..devices.hardware import Hardware
from ..errors import InputError
from ..expectation.profile import Profile, read_profiles
from ..model import Model
from ..model_files import load_model
from .axes import DEVICE, NUMBERS
from .design import SETTINGS, Design, Numbers, digest
from .grid import Sweep, sweep
from .shard_files import check_same, hash_of, run_shards, write_rows

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

_T = TypeVar("_T", Model, Hardware)


def write_shard(folder: Path, shard: int, key: str) -> int:
    """Computes and writes a shard of the design in `folder`; returns its number.

    key  Design.key of the caller's design

    Settings that are refused have no rows; the footer of the file lists them with reasons.
    Raises InputError if the folder, a model or a device has changed since the design was made.
    """
    design = _design(folder, key)
    settings, numbers = design.part(shard)
    refused: list[dict[str, str]] = []
    return write_rows(
        folder, shard, design, schema(design), _tables(design, settings, numbers, refused), refused=refused,
        texts=(*design.settings, *NUMBERS), floats=(*_FLOAT_COLUMNS, *(_EXPECTED_COLUMNS if design.expects else ())),
    )  # fmt: skip


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


def __getattr__(name: str) -> Any:
    """`run`, the name of the last release."""
    if name != "run":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warn("run(folder, design) is now run_shards(folder, design, write_shard)", DeprecationWarning, stacklevel=2)
    return partial(run_shards, write_shard=write_shard)


@cache
def _design(folder: Path, key: str) -> Design:
    return Design.with_key(folder, key)


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
        check_same(path, hash_of(path), original_digest)
    return profiles


def _unchanged(source: _T, name: str, original_digest: str) -> _T:
    check_same(name, digest(source), original_digest)
    return source


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
