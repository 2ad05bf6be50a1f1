"""Columns that tables of measurements lack, and what they may call them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from .families import Family

if TYPE_CHECKING:
    import pandas as pd

_REQUIRED_COLUMNS: Final = ("gpu", "framework")
TYPED: Final = ("gemm", "moe")  # families whose rows must have a data type
# What other tables call our columns, by letters in lower case; read under our names only, since units may differ.
_COLUMN_SYNONYMS: Final[Mapping[str, tuple[str, ...]]] = {
    "gpu": ("device", "hardware", "gpuname", "gputype", "system", "accelerator"),
    "framework": ("library", "backend", "engine", "provider", "kernellibrary"),
    "dtype": ("datatype", "precision", "quantization", "quant", "type"),
    "time_us": ("latencyus", "durationus", "us", "time", "latency", "duration", "timems", "latencyms", "ms", "timens",
                "latencyns", "durationns", "ns", "medianus", "meanus"),
    "kv_len": ("context", "contextlen", "contextlength", "seqlen", "sequencelength", "isl"),
    "q_len": ("inputlen", "promptlen", "prompt"),
    "batch": ("batchsize", "bs"),
    "q_heads": ("numheads", "numattentionheads", "heads", "nheads"),
    "kv_heads": ("numkvheads", "numkeyvalueheads", "nkvheads"),
    "head_dim": ("headsize",),
    "tokens": ("numtokens",),
    "experts": ("numexperts",),
    "hidden": ("hiddensize",),
    "inter": ("intersize", "intermediatesize", "moeintermediatesize"),
    "num_gpus": ("gpus", "ranks", "worldsize", "nranks"),
    "bytes": ("size", "messagesize", "sizebytes"),
}  # fmt: skip


def missing(frame: pd.DataFrame, family: Family) -> str:
    """Error message for missing columns of the family; "" if none is missing."""
    lacking = [repr(column) for column in _required_columns(family) if column not in frame]
    return f"{family.name} needs the column{'s' * (len(lacking) > 1)} {', '.join(lacking)}" if lacking else ""


def _required_columns(family: Family) -> tuple[str, ...]:
    return (*_REQUIRED_COLUMNS, *(["dtype"] if family.name in TYPED else []), *family.columns)


def alike(frame: pd.DataFrame, column: str) -> str | None:
    """The column of the table that may be meant by one of ours, which it lacks; None if there is none."""
    letters = {_letters(str(name)): str(name) for name in frame.columns}
    called = (_letters(column), *_COLUMN_SYNONYMS.get(column, ()))
    return next((letters[name] for name in called if name in letters), None)


def meant(frame: pd.DataFrame, family: Family) -> str:
    """Suggested renames of similar columns, as a clause of an error message; "" if there are none."""
    similar_columns = {column: alike(frame, column) for column in _required_columns(family) if column not in frame}
    renamed = [f"{name!r} to {column!r}" for column, name in similar_columns.items() if name]
    return f"; rename {', '.join(renamed)}" if renamed else ""


def _letters(name: str) -> str:
    return re.sub(r"[^a-z]", "", name.lower())
