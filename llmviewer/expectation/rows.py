"""Measured kernels, read from Parquet or CSV (docs/measurements.md), as arrays by device and kernel implementation."""

from __future__ import annotations

import re
import reprlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from ..errors import InputError
from ..records import frozen
from .device import Device, find_device
from .families import FAMILIES, Family, Implementation
from .families.base import EAGER, Array, Shapes
from .families.gemm import BATCHED
from .formats import SCHEMES, cache_bytes, kernel_type, plain_name
from .headers import TYPED, alike, meant, missing
from .tables import in_family_columns

if TYPE_CHECKING:
    import pandas as pd

_LABELS: Final = ("gpu", "framework", "dtype", "kv_dtype", "version")
_COUNTS: Final = ("batch", "tp", "ep", "cols")  # optional columns that are sizes too
_SWITCHES: Final = ("causal", "gated", "private", "prequantized", "eager")
_NON_NEGATIVE: Final = ("window", "reached", "loop", "splits")  # columns in which 0 has a special meaning
_MAX_VERSIONS: Final = 3  # versions listed for an implementation, at most
NO_TIME: Final = "time_us is missing or not positive"
_MIN_BOUND_RATIO: Final = 0.1  # of the bound: a shorter time means other work or another unit
_MARKER_COLUMNS: Final = (  # columns that identify the family of a table without a column "family"
    ("attention_prefill", "q_len"),
    ("attention_decode", "kv_len"),
    ("moe", "experts"),
    ("gemm", "M"),
    ("collectives", "num_gpus"),
    ("scan", "v_heads"),
    ("elementwise", "bytes"),
)
# Libraries whose kernels frameworks call, by family.
_CALLED_LIBRARIES: Final[Mapping[str, Mapping[str, str]]] = {
    "gemm": dict.fromkeys(("sarathi", "hf-transformers", "pytorch", "pytorch/te"), "cublas"),
    "collectives": {"torch.distributed": "nccl"},
    "all_to_all": {"sglang": "deepep", "vllm": "deepep"},
}
# Other names of libraries and operations, by their letters, and the names in profiles and analyses.
_LIBRARIES: Final = {
    **{name: name for name in ("vllm", "sglang", "trtllm", "cublas", "nccl", "pytorch", "triton")},
    **dict.fromkeys(("tensorrt-llm", "tensorrt_llm", "trt-llm"), "trtllm"),
    "torch": "pytorch",
}
_OPERATIONS: Final = {
    **{name.replace("_", ""): name for name in ("all_reduce", "all_gather", "reduce_scatter", "send_recv")},
    **dict.fromkeys(("norm", "rmsnorm", "inputlayernorm", "finallayernorm"), "post_attention_layernorm"),
    **dict.fromkeys(("activation", "actfn", "siluandmul", "swiglu"), "mlp_act"),
    **dict.fromkeys(("rope", "rotaryemb", "rotaryembedding"), "attn_rope"),
    "embedding": "emb",
    "layernorm": "ln",
    "alltoall": "alltoall",
}
_EAGER_LIBRARY: Final = "pytorch"  # library whose element-wise kernels the host launches one by one in public tables
_GRAPH_STATISTIC: Final = "mean_cudagraph"  # the same tensors again and again: what fits stays in the cache
# Sets of weights in the loop of the aiconfigurator collector; for trtllm as many as exceed the cache, up to 5.
_WEIGHT_SETS: Final = {"vllm": 6.0, "sglang": 6.0}
# Products with another name in the aiconfigurator collector: SGLang's int8_wo is its int8_scaled_mm, of activations
# that a chain of torch's operators quantizes row by row (per_token_quant_int8).
_PRODUCT_NAMES: Final = {("sglang", "int8_wo"): "int8_dynamic"}
# Experts chosen, experts and width of models whose experts have no gate (Nemotron 3: mlp_hidden_act is relu2). From
# these versions on the aiconfigurator collector runs them so, while its tables mark only trtllm: with the weights
# of a gate, they would have been read at up to 1.4 times the memory's bandwidth.
_UNGATED: Final = ((6, 128, 2688), (22, 512, 2048), (22, 512, 4096), (22, 512, 8192))
_UNGATED_SINCE: Final[Mapping[str, tuple[float, ...]]] = {"vllm": (0, 24), "sglang": (0, 5, 14)}
# The collector ran all experts of this kernel (vLLM 0.19) on one device, whatever column ep says: times are the same.
_UNSHARDED_KERNEL: Final = "vllm_mxfp4_moe"


@frozen(kw_only=True)
class MeasuredRows:
    """Rows of one kernel implementation on one device.

    places    indices of rows in the table
    measured  measured times; nan if missing [s]
    """

    family: Family
    device: Device
    implementation: Implementation
    version: str
    places: npt.NDArray[np.int64]
    shapes: Shapes
    measured: Array

    def __len__(self) -> int:
        return len(self.places)

    @property
    def timed(self) -> Array:
        """Mask of the rows with a valid time."""
        return np.isfinite(self.measured) & (self.measured > 0)

    @property
    def fittable(self) -> Array:
        """Mask of the rows with a valid time and sizes that are fitted."""
        return self.timed & self.family.fittable(self.shapes)

    @property
    def num_shape_families(self) -> int:
        """Number of different values of shape_families()."""
        return int(self.shape_families().max()) + 1

    def take(self, chosen: Array) -> MeasuredRows:
        shapes = {name: column[chosen] for name, column in self.shapes.items()}
        return replace(self, places=self.places[chosen], shapes=shapes, measured=self.measured[chosen])

    def reliable(self) -> tuple[MeasuredRows, dict[str, int]]:
        """(rows that can be fitted, number of other rows by reason)."""
        reliable_rows, unreliable = np.ones(len(self), dtype=bool), dict[str, int]()
        bound = self.family.bound(self.shapes, self.device, self.implementation)
        for why, wrong in (
            (NO_TIME, ~self.timed),
            (
                "sizes outside those that are fitted (`llmviewer docs measurements`)",
                ~self.family.fittable(self.shapes),
            ),
            ("time_us is less than a tenth of the bound", self.measured < _MIN_BOUND_RATIO * bound),
        ):
            unreliable[why] = int(np.count_nonzero(wrong & reliable_rows))
            reliable_rows &= ~wrong
        return self.take(np.flatnonzero(reliable_rows)), {why: count for why, count in unreliable.items() if count}

    def shape_families(self) -> Array:
        """A number for each row; rows of one weight shape, head layout or model have the same."""
        columns = np.stack([self.shapes[name] for name in self.family.groups], axis=1)
        return np.unique(columns, axis=0, return_inverse=True)[1].reshape(-1)


def joined(groups: Iterable[MeasuredRows]) -> tuple[MeasuredRows, ...]:
    """Joins the rows of each kernel implementation and device over all files."""
    alike: dict[tuple[str, str, Implementation], list[MeasuredRows]] = {}
    for rows in groups:
        alike.setdefault((rows.family.name, rows.device.name, rows.implementation), []).append(rows)
    return tuple(_joined(parts) if len(parts) > 1 else parts[0] for parts in alike.values())


def _joined(parts: Sequence[MeasuredRows]) -> MeasuredRows:
    versions = sorted({version for rows in parts for version in rows.version.split(", ")} - {""})
    measured = np.concatenate([rows.measured for rows in parts])
    return replace(
        parts[0],
        version=", ".join(versions[-_MAX_VERSIONS:]),
        places=np.arange(len(measured)),
        shapes={name: np.concatenate([rows.shapes[name] for rows in parts]) for name in parts[0].shapes},
        measured=measured,
    )


@frozen(kw_only=True)
class MeasurementTable:
    """A file of measurements.

    unread  number of unusable rows, by reason
    """

    path: Path
    frame: pd.DataFrame
    rows: tuple[MeasuredRows, ...]
    unread: dict[str, int]


def read(path: Path) -> MeasurementTable:
    """Reads the measurements in a file.

    Raises InputError if the file cannot be read, lacks a column, or has other values than numbers where they must be.
    """
    return table_of(_frame(path), path)


def table_of(frame: pd.DataFrame, path: Path) -> MeasurementTable:
    """Converts a frame with an index from 0; `path` names it in errors and is not opened.

    Raises InputError if it lacks a column, or has other values than numbers where they must be.
    """
    if "time_us" not in frame and (other := alike(frame, "time_us")):
        raise InputError(
            f"{path}: times must be in a column 'time_us', in microseconds; rename {other!r}, and convert it if it has "
            "another unit"
        )
    unread: Counter[str] = Counter()
    rows: list[MeasuredRows] = []
    user_frame, frame = frame, in_family_columns(frame)
    for i, (family, places) in enumerate(_families(frame, path, unread)):
        if lacking := missing(frame, family):
            if i == 0:
                had = ", ".join(map(repr, user_frame.columns))
                raise InputError(f"{path}: {lacking}; it has {had}{meant(user_frame, family)}")
            unread[lacking] += len(places)
            continue
        extra_columns = (EAGER,) if family.name == "elementwise" else ()
        for column in (*family.columns, *family.optional, "time_us", "loop", "nodes", *extra_columns):
            if column in frame:
                _check_numbers(frame[column], path)
        family_rows = _rows(frame.iloc[places], family, unread)
        rows += [replace(one, places=places[one.places]) for one in family_rows]
    return MeasurementTable(path=path, frame=user_frame, rows=tuple(rows), unread=unread)


def _check_numbers(column: pd.Series[Any], path: Path) -> None:
    """Raises InputError at the first value that is no number. Rows are counted from 1."""
    try:
        column.astype(float)
    except (TypeError, ValueError, OverflowError):
        place = next((i for i, value in enumerate(column) if not _is_number(value)), 0)
        got = reprlib.repr(column.iloc[place])
        raise InputError(f"{path}: row {place + 1}: {column.name}: must be a number; got {got}") from None


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError, OverflowError):
        return False
    return True


def read_csv(file: Path | IO[bytes]) -> pd.DataFrame:
    """Reads a CSV file with labels as text, as version 0.10 is not 0.1."""
    import pandas as pd

    return pd.read_csv(file, low_memory=False, dtype=dict.fromkeys(_LABELS, str))


def _frame(path: Path) -> pd.DataFrame:
    import pandas as pd

    if path.suffix not in (".csv", ".parquet"):
        raise InputError(f"{path}: must end in .csv or .parquet, the formats of measurements")
    try:
        frame = _columns(pd.read_parquet(path)) if path.suffix == ".parquet" else read_csv(path)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise InputError(f"{path}: is a folder; give a file") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
    except ValueError as error:  # what pandas and pyarrow raise for a file of another kind
        raise InputError(f"{path}: is not a table: {' '.join(str(error).split())}") from None
    if not len(frame):
        raise InputError(f"{path}: holds no rows")
    return frame.reset_index(drop=True)


def _columns(frame: pd.DataFrame) -> pd.DataFrame:
    """Restores columns that pandas wrote as an index, which are the last ones of the file."""
    named = [name for name in frame.index.names if name is not None and name not in frame]
    return frame.reset_index(named)[[*frame.columns, *named]] if named else frame


def _families(frame: pd.DataFrame, path: Path, unread: Counter[str]) -> Iterator[tuple[Family, Array]]:
    """Yields each family of a table, in the order of its first row, with the indices of its rows; rows without a family
    belong to the first one.

    Raises InputError if the first family is unknown, or if there is no column "family" and no family has such columns.
    """
    labels = _texts(frame, "family")
    names = list(dict.fromkeys(filter(None, labels)))
    if not names:
        yield _by_columns(frame, path), np.arange(len(frame))
        return
    must = f"family: must be one of {', '.join(FAMILIES)}"
    for i, name in enumerate(names):
        places = np.flatnonzero((labels == name) | ((labels == "") & (i == 0)))
        if name in FAMILIES:
            yield FAMILIES[name], places
        elif i == 0:
            raise InputError(f"{path}: {must}; got {name!r}")
        else:
            unread[f"{must}; got {name!r}"] += len(places)


def _by_columns(frame: pd.DataFrame, path: Path) -> Family:
    for name, mark in _MARKER_COLUMNS:
        if mark in frame or alike(frame, mark):
            return FAMILIES[name]
    had = reprlib.repr(list(frame.columns)).strip("[]")
    raise InputError(f"{path}: no family has these columns: {had}; `llmviewer docs measurements` lists their names")


def _rows(frame: pd.DataFrame, family: Family, unread: Counter[str]) -> Iterator[MeasuredRows]:
    labels = {name: _texts(frame, name) for name in _LABELS}
    for name, plain in (("dtype", plain_name), ("kv_dtype", plain_name), ("framework", _library)):
        labels[name] = _renamed(labels[name], plain)
    eager = labels["framework"] == _EAGER_LIBRARY
    if family.name == "elementwise":
        eager_column = _numbers(frame, EAGER, None)
        eager = np.where(np.isnan(eager_column), eager, eager_column)
    labels["kernel"] = _kernels(frame, family, eager > 0)
    numbers = {name: _numbers(frame, name, None) for name in family.columns}
    numbers |= {name: _numbers(frame, name, default) for name, default in family.optional.items()}
    if "window" in numbers:
        numbers["window"] = np.maximum(numbers["window"], 0)  # FlashAttention calls none -1
    if family.name == "moe" and "distribution" in frame:
        numbers["skew"] = _skews(frame)
    if family.name == "moe":
        numbers["gated"] = np.where(_ungated(labels, numbers), 0.0, numbers["gated"])
        numbers["ep"] = np.where(labels["kernel"] == _UNSHARDED_KERNEL, 1.0, numbers["ep"])
    numbers["loop"] = _numbers(frame, "loop", None)
    replayed = np.array([text.startswith(_GRAPH_STATISTIC) for text in _texts(frame, "stat")], dtype=bool)
    times = frame["time_us"].to_numpy(float) * 1e-6 if "time_us" in frame else np.full(len(frame), np.nan)
    sound = np.ones(len(frame), dtype=bool)
    for why, wrong in _wrong(frame, family, {**numbers, "eager": eager}):
        unread[why] += int(np.count_nonzero(wrong & sound))
        sound &= ~wrong
    keys = frame.assign(**{f"_{name}": column for name, column in labels.items() if name != "version"})
    for label, places_of_label in keys.groupby([f"_{n}" for n in labels if n != "version"], sort=True).indices.items():
        assert isinstance(label, tuple)
        gpu, framework, dtype, kv_dtype, kernel = map(str, label)
        label_rows = np.asarray(places_of_label)
        places = label_rows[sound[label_rows]]
        if not len(places):
            continue
        try:
            device, implementation = find_device(gpu), _implementation(family, framework, dtype, kv_dtype, kernel)
        except InputError as error:
            unread[str(error)] += len(places)
            continue
        shapes = {name: column[places] for name, column in numbers.items()}
        no_loop, loop_columns = (
            np.isnan(shapes["loop"]),
            _loop(family, device, implementation, shapes, replayed[places]),
        )
        shapes |= {name: np.where(no_loop, column, shapes[name]) for name, column in loop_columns.items()}
        versions = sorted(set(labels["version"][places]) - {""})
        yield MeasuredRows(
            family=family,
            device=device,
            implementation=implementation,
            version=", ".join(versions[-_MAX_VERSIONS:]),
            places=places,
            shapes=shapes,
            measured=times[places],
        )


def _wrong(frame: pd.DataFrame, family: Family, numbers: Mapping[str, Array]) -> Iterator[tuple[str, Array]]:
    """Yields each reason why rows are unusable, with a mask of these rows; a row may have several reasons."""
    sizes = {name: column for name, column in numbers.items() if name in family.columns or name in _COUNTS}
    yield "a shape is missing or not positive", ~np.all([np.isfinite(c) & (c > 0) for c in sizes.values()], axis=0)
    counts = {name: numbers[name] for name in (*sizes, "window") if name in numbers}
    integral = [
        c == np.floor(c) for name, c in counts.items() if name != "bytes"
    ]  # a mean of calls may have half a byte
    yield "a size is not a whole number", ~np.all(integral, axis=0)
    switches, others = ([numbers[name] for name in names if name in numbers] for names in (_SWITCHES, _NON_NEGATIVE))
    yield f"{', '.join(_SWITCHES)} must be 0 or 1", ~np.all([np.isin(c, (0, 1)) for c in switches], axis=0)
    yield f"{', '.join(_NON_NEGATIVE)} must be 0 or more", np.any([(c < 0) | np.isinf(c) for c in others], axis=0)
    if "kv_heads" in sizes:
        yield "q_heads must be a multiple of kv_heads", sizes["q_heads"] % np.maximum(sizes["kv_heads"], 1) != 0
    if family.name == "collectives":
        yield "num_gpus must be 2 or more", numbers["num_gpus"] < 2
        yield "more than one node", _numbers(frame, "nodes", 1) > 1
    if family.name == "moe":
        yield "topk must be no more than the experts", numbers["topk"] > numbers["experts"]
        yield "distribution must be balanced or power_law_S, such as power_law_1.2", np.isnan(numbers["skew"])
        yield "ep must be no more than the experts", numbers["ep"] > numbers["experts"]


def _implementation(family: Family, framework: str, dtype: str, kv_dtype: str, kernel: str) -> Implementation:
    library = _CALLED_LIBRARIES.get(family.name, {}).get(framework, framework)
    if family.name == "gemm":
        dtype = _PRODUCT_NAMES.get((library, dtype), dtype)
    if family.name in TYPED:
        if not dtype:
            raise InputError("dtype is missing")
        dtype = SCHEMES.get(dtype, dtype)
        kernel_type(dtype)
    if family.name.startswith("attention"):
        cache_bytes(kv_dtype or "bf16")
        kernel_type(dtype or "bf16")
        return Implementation(library=library, dtype=dtype or "bf16", kv_dtype=kv_dtype or "bf16", kernel=kernel)
    if family.name == "collectives":
        dtype = dtype or "bf16"
    return Implementation(library=library, dtype=dtype, kernel=kernel)


def _kernels(frame: pd.DataFrame, family: Family, eager: Array) -> Array:
    """Kernel names of rows: the name of an operation or algorithm, not of a tiling that the library chooses by shape.
    Element-wise kernels whose times include a host launch get the prefix "eager".
    """
    if family.name == "gemm":
        return np.where(_numbers(frame, "batch", 1) > 1, BATCHED, "").astype(object)
    if family.name == "elementwise":
        operations = _renamed(_texts(frame, "op"), _operation)
        return np.where(eager, f"{EAGER} " + operations, operations)
    if family.names_operations:
        operations = _renamed(_texts(frame, "op"), _operation)
        kernels = _texts(frame, "impl" if "impl" in frame else "kernel")
        return np.asarray(kernels + " " + operations, dtype=object)
    kernel = _texts(frame, "kernel")
    if family.name.startswith("attention") and "attn" in frame:
        attention = _texts(frame, "attn")
        kernel = np.where((attention == "gqa") | (attention == ""), kernel, kernel + " " + attention)
    return np.asarray(kernel, dtype=object)


def _loop(
    family: Family, device: Device, implementation: Implementation, shapes: Shapes, replayed: Array
) -> dict[str, Array]:
    """Default number of loop repetitions of a benchmark, for tables without this column."""
    if family.name == "elementwise":
        return {"loop": np.ones(len(replayed))}
    loop = np.where(replayed, 1.0, 0.0)
    if family.name != "gemm":
        return {"loop": loop}
    rounds: Array | float = (
        1.0
        if implementation.library == "vllm" and implementation.dtype in ("nvfp4", "fp8_block")
        else _WEIGHT_SETS.get(implementation.library, 1)
    )
    if implementation.library == "trtllm":
        weights = shapes["N"] * shapes["K"] * kernel_type(implementation.dtype).weight
        rounds = np.minimum(5, np.ceil(device.l2 / weights))
    return {"loop": loop * rounds, "private": loop * (implementation.library == "sglang")}


def _ungated(labels: Mapping[str, Array], numbers: Mapping[str, Array]) -> Array:
    """Mask of the rows of experts without a gate, which some tables mark wrongly."""
    kinds = np.stack([numbers[name] for name in ("topk", "experts", "hidden")], axis=1)
    alike = np.any([np.all(kinds == kind, axis=1) for kind in _UNGATED], axis=0)
    since = {name: _UNGATED_SINCE.get(name, (inf,)) for name in set(labels["framework"])}
    implementations = zip(labels["framework"], labels["version"], strict=True)
    late = np.array([_release(version) >= since[library] for library, version in implementations])
    ungated: Array = np.logical_and(alike, late)
    return ungated


def _release(version: str) -> tuple[int, ...]:
    """(0, 24, 1) of "0.24.1rc2"."""
    match = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, match[0].split("."))) if match else ()


def _texts(frame: pd.DataFrame, name: str) -> Array:
    if name not in frame:
        return np.full(len(frame), "", dtype=object)
    return frame[name].astype(object).where(frame[name].notna(), "").astype(str).to_numpy(dtype=object)


def _renamed(texts: Array, plain: Callable[[str], str]) -> Array:
    names = {text: plain(text) for text in set(texts)}
    return np.array([names[text] for text in texts], dtype=object)


def _library(name: str) -> str:
    return _LIBRARIES.get(name.strip().lower(), name)


def _operation(name: str) -> str:
    return _OPERATIONS.get(re.sub(r"[\s_-]", "", name.lower()), name)


def _numbers(frame: pd.DataFrame, name: str, default: float | None) -> Array:
    if name not in frame:
        return np.full(len(frame), default if default is not None else np.nan)
    column = frame[name].astype(float)
    return (column if default is None else column.fillna(default)).to_numpy(float)


def _skews(frame: pd.DataFrame) -> Array:
    """Exponents of expert skew: 1.2 of "power_law_1.2"; 0 for "balanced" and missing values; nan for other texts."""
    import pandas as pd

    distribution = frame["distribution"].fillna("balanced").astype(str)
    exponents: Any = pd.to_numeric(distribution.str.extract(r"^power_law_(\d(?:\.\d+)?)$")[0]).to_numpy(float)
    return np.where(distribution.isin(("balanced", "")), 0.0, exponents)
