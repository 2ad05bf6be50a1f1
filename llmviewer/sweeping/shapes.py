"""Shapes of a model: depth, width, heads and experts as axes over the fields of its config."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import product
from math import prod
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ..documents import Section
from ..errors import InputError, suggest
from ..model import Model
from ..model_files import decoder_fields, model_of_config, read_config
from ..records import frozen
from ..setting import whole_number
from .axes import check_distinct, parse_numbers

# Axes, and the names of their fields in the configs of different families.
SHAPE_AXES: Final[Mapping[str, tuple[str, ...]]] = {
    "depth": ("num_hidden_layers", "n_layer", "num_layers", "n_layers"),
    "width": ("hidden_size", "n_embd", "d_model", "dim"),
    "heads": ("num_attention_heads", "n_head", "num_heads", "n_heads"),
    "kv_heads": ("num_key_value_heads", "num_kv_heads", "n_head_kv"),
    "ffn": ("intermediate_size", "n_inner", "ffn_dim", "d_ff", "hidden_dim"),
    "expert_ffn": ("moe_intermediate_size",),
    "experts": ("num_experts", "num_local_experts", "n_routed_experts"),
    "top_k": ("num_experts_per_tok", "num_experts_per_token"),
    "vocab": ("vocab_size",),
}
SIZES: Final = ("width", "heads", "kv_heads", "ffn", "expert_ffn", "vocab")  # axes that only enlarge tensors
MAX_CANDIDATES: Final = 1_000_000
_HEAD_DIM: Final = ("head_dim", "d_kv", "kv_channels", "attention_head_size")
_FFN_MULTIPLE: Final = 64  # widths of feed-forward networks that follow the width of the model are multiples of it


def parse_shape_axis(text: str) -> tuple[str, list[int]]:
    """(axis, values) of a text such as "depth=16..48+8" or "experts=8,16".

    Raises InputError if the text does not parse.
    """
    name, equals, values = (part.strip() for part in text.partition("="))
    where = f"--over {text}"
    if not equals:
        raise InputError(f"{where}: must be AXIS=VALUES, such as depth=16..48+8; axes are {', '.join(SHAPE_AXES)}")
    return name, parse_numbers(values, where=where, max_values=MAX_CANDIDATES)


@frozen(kw_only=True)
class ShapeSpace:
    """All combinations of values of shape axes, with the fields that follow them.

    Fields that are no axis keep the value of the model, but follow the width: heads in number, so that their size
    stays, feed-forward networks in proportion (to multiples of 64), and key-value heads in groups of as many queries.

    axes  values of each axis, by name: one of SHAPE_AXES, or any whole number of the config
    """

    name: str
    model: Model
    config: Section
    axes: Mapping[str, tuple[int, ...]]

    @classmethod
    def of(cls, model: str, axes: Mapping[str, Sequence[int]]) -> ShapeSpace:
        """The space of the model of a name.

        Raises InputError if the model has no config.json, the config no field of an axis, or a value is invalid.
        """
        if not axes:
            raise InputError("over: nothing to search over; give axes, such as depth=16..48+8")
        config = read_config(model)
        space = cls(name=model, model=model_of_config(config, model), config=config, axes={})
        for axis, values in axes.items():
            space.field_of(axis)
            if not isinstance(values, list | tuple | range | np.ndarray) or not len(values):
                raise InputError(f"{axis}: must be a list of whole numbers; got {values!r}")
            for value in values:
                whole_number(axis, value)
            check_distinct(axis, values)
        count = prod(map(len, axes.values()))
        if count > MAX_CANDIDATES:
            raise InputError(f"over: must have at most {MAX_CANDIDATES:,} combinations; got {count:,}")
        checked = {axis: tuple(int(value) for value in values) for axis, values in axes.items()}
        return cls(name=model, model=space.model, config=config, axes=checked)

    @cached_property
    def _fields(self) -> Mapping[str, Any]:
        return decoder_fields(self.config)

    def field_of(self, axis: str) -> str:
        """The field of the config that an axis sets.

        Raises InputError if there is none.
        """
        names = SHAPE_AXES.get(axis, (axis,))
        field = next((name for name in names if type(self._fields.get(name)) is int), "")
        if field:
            return field
        if axis in SHAPE_AXES:
            axes = [
                each for each, fields in SHAPE_AXES.items() if any(type(self._fields.get(n)) is int for n in fields)
            ]
            absent = f"the config of {self.name} has no field of it ({', '.join(names)})"
            others = f"its axes are {', '.join(axes)}" if axes else "give a whole number of the config by its name"
            raise InputError(f"{axis}: {absent}; {others}")
        numbers = [name for name, value in self._fields.items() if type(value) is int]
        raise InputError(f"no axis {axis!r} of the shape of {self.name}; {suggest(axis, (*SHAPE_AXES, *numbers))}")

    def _base(self, axis: str) -> int | None:
        """The value of an axis in the model itself; None if its config has no such field."""
        names = SHAPE_AXES.get(axis, (axis,))
        return next((value for name in names if type(value := self._fields.get(name)) is int), None)

    @property
    def has_head_size(self) -> bool:
        """Whether the config gives the size of a head, which is else width / heads."""
        return any(type(self._fields.get(name)) is int for name in _HEAD_DIM)

    @cached_property
    def columns(self) -> dict[str, npt.NDArray[np.int64]]:
        """Values of the axes, and of sizes that follow the width, of every candidate; 0 where there is none."""
        grid = np.array(list(product(*self.axes.values())), dtype=np.int64)
        columns = dict(zip(self.axes, grid.T, strict=True))
        width, heads, kv_heads = (self._base(axis) for axis in ("width", "heads", "kv_heads"))
        if "width" in columns and width:
            scale = columns["width"]
            if heads and "heads" not in columns:
                columns["heads"] = _whole(scale * heads, width)
            for axis in ("ffn", "expert_ffn"):
                if (base := self._base(axis)) and axis not in columns:
                    columns[axis] = (
                        np.maximum(np.rint(scale * base / width / _FFN_MULTIPLE), 1).astype(np.int64) * _FFN_MULTIPLE
                    )
        if "heads" in columns and heads and kv_heads and "kv_heads" not in columns:
            single = np.ones_like(columns["heads"])
            columns["kv_heads"] = single if kv_heads == 1 else _whole(columns["heads"] * kv_heads, heads)
        return columns

    @cached_property
    def head_size(self) -> npt.NDArray[np.int64]:
        """Size of a head where it is width / heads, else 0; -1 where it is no whole number."""
        count = next(iter(self.columns.values())).size
        width, heads = (self._column(axis, count) for axis in ("width", "heads"))
        if self.has_head_size or not np.all(heads > 0):
            return np.zeros(count, dtype=np.int64)
        return np.where(width % heads, -1, width // heads)

    def _column(self, axis: str, count: int) -> npt.NDArray[np.int64]:
        return self.columns[axis] if axis in self.columns else np.full(count, self._base(axis) or 0)

    @cached_property
    def refused(self) -> npt.NDArray[Any]:
        """Candidates whose heads do not divide the width, or whose key-value heads the heads."""
        count = self.head_size.size
        heads, kv_heads = (self._column(axis, count) for axis in ("heads", "kv_heads"))
        is_valid = (self.head_size >= 0) & (heads >= 0) & (kv_heads >= 0)
        refused: npt.NDArray[Any] = ~is_valid | (heads % np.maximum(kv_heads, 1) != 0)
        return refused

    def groups(self) -> Iterator[npt.NDArray[np.int64]]:
        """Candidates that differ in sizes and depth alone, so that their graphs have the same operators.

        Also equal are the size of a head and the queries per key-value head, on which tiles of attention depend.
        """
        count = self.head_size.size
        structural = [column for axis, column in self.columns.items() if axis not in (*SIZES, "depth")]
        heads, kv_heads = (self._column(axis, count) for axis in ("heads", "kv_heads"))
        keys = np.stack([*structural, self.head_size, np.where(kv_heads > 0, heads // np.maximum(kv_heads, 1), 0)])
        candidates = np.flatnonzero(~self.refused)
        _, group = np.unique(keys[:, candidates], axis=1, return_inverse=True)
        for i in range(group.max(initial=-1) + 1):
            yield candidates[group.ravel() == i]

    def divided(self, group: npt.NDArray[np.int64], axis: str) -> list[npt.NDArray[np.int64]]:
        """The candidates of a group by their values of an axis."""
        values = self.columns[axis][group]
        return [group[values == value] for value in np.unique(values)]

    def changes(self, candidate: int) -> dict[str, int]:
        """Fields of the config that a candidate sets."""
        return {self.field_of(axis): int(column[candidate]) for axis, column in self.columns.items()}

    def candidate(self, index: int) -> Model:
        """The model of a candidate.

        Raises InputError if its fields contradict each other.
        """
        text = ",".join(f"{axis}={int(self.columns[axis][index])}" for axis in self.axes)
        return model_of_config(self.config, f"{self.name}:{text}", self.changes(index))


def _whole(numerator: npt.NDArray[np.int64], denominator: int) -> npt.NDArray[np.int64]:
    """The quotient where it is a whole number, else -1."""
    return np.where(numerator % denominator, -1, numerator // denominator)
