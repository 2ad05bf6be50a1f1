"""Public tables of operators of one architecture, in the columns of families (docs/measurements.md).

Their rows have sizes of a layer, and an operation of it in the column `op`. The columns that a table has decide how it
is read; other tables stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

_INDEXED: Final = "dsa"  # family of layers that may reuse the keys that an indexer of another layer chose
_DELTA_RULES: Final = ("gdn", "kda")  # whose kernels for single tokens differ only in the width of the decay


def in_family_columns(frame: pd.DataFrame) -> pd.DataFrame:
    """The table with a column `family`, and sizes in the columns of families, where it is one of those known here."""
    for marks, read in _READERS:
        if set(marks) <= set(frame.columns):
            return read(frame)
    return frame


def _linear_attention(frame: pd.DataFrame) -> pd.DataFrame:
    """Scans of a rule (gdn, kda, mamba2) in chunks or token by token; convolutions, which only move bytes."""
    operation = frame["op"].fillna("").astype(str)
    scans = operation.str.contains("scan")
    rule = frame["family"].fillna("").astype(str)
    chunk = frame["chunk"].astype(float) if "chunk" in frame else np.nan
    token_by_token = scans & ~operation.str.endswith("prefill") & rule.isin(_DELTA_RULES)
    return frame.assign(
        family=np.where(scans, "scan", "elementwise"),
        op=np.where(scans, rule.mask(token_by_token, "delta") + "_" + operation, operation),
        cols=frame.get("conv_channels", 1.0),
        chunk=np.where(operation.str.endswith("prefill"), chunk, 1.0),
        rows=frame["batch"].astype(float) * frame["q_len"].astype(float),
        dtype=frame.get("dtype", "bf16"),
    )


def _hyper_connections(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.assign(family="elementwise", rows=frame["tokens"].astype(float))


def _all_to_all(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.assign(family="all_to_all")


def _attention_layers(frame: pd.DataFrame) -> pd.DataFrame:
    """Attention of a layer by family and phase; layers that reuse a choice of keys have an operation of their own."""
    chooses = frame["indexer"].astype(bool) if "indexer" in frame else True
    reusing = np.where(chooses | (frame["family"] != _INDEXED), "", "_reusing")
    operation = frame["family"].astype(str) + reusing + "_" + frame["phase"].astype(str)
    return frame.assign(family="attention_layer", op=operation)


def _sparse_attention(frame: pd.DataFrame) -> pd.DataFrame:
    heads = frame["index_heads"].where(frame["index_heads"] > 0, frame["heads_native"])
    return frame.assign(family="attention_layer", heads=heads, ops=frame["ops"].clip(lower=1))


# Columns that mark a table, and how it is read.
_READERS: Final[tuple[tuple[tuple[str, ...], Callable[[pd.DataFrame], pd.DataFrame]], ...]] = (
    (("family", "op", "batch", "q_len", "v_heads", "v_dim", "bytes"), _linear_attention),
    (("op", "tokens", "streams", "bytes"), _hyper_connections),
    (("op", "impl", "num_gpus", "tokens", "hidden", "topk", "experts"), _all_to_all),
    (("family", "phase", "q_len", "kv_len", "heads", "bytes", "ops"), _attention_layers),
    (("op", "q_len", "kv_len", "index_heads", "heads_native", "bytes", "ops"), _sparse_attention),
)
