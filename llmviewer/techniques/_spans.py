"""Sequences of which some share what is before them."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from ..forms import Num
from ..workload import Spans


@dataclass(frozen=True, kw_only=True)
class Shared(Spans):
    """Spans of which `sharing` each have their first `prefix` tokens in common, in memory and where they are read."""

    prefix: Num = 0
    sharing: Num = 1

    def kv_tokens(self, window: float) -> Num:
        seen = super().kv_tokens(window)
        common = np.clip(seen - (self.kv_len - self.prefix), 0, self.prefix)  # of the prefix, what a window has left
        return seen - common * (1 - 1 / self.sharing)

    def kv_streams(self, tile: float, resident: float, window: float) -> Num:
        alone = Spans(**{f.name: getattr(self, f.name) for f in fields(Spans)})
        saved = alone.kv_tokens(window) - self.kv_tokens(window)
        return alone.kv_streams(tile, resident, window) - saved


def shared(s: Spans, *, copies: int, prefix: Num, common: bool, among: Num | None = None) -> Spans:
    """`copies` of each sequence, whose first `prefix` tokens are there once if they are `common`: once for `among`
    sequences, which are the copies if not given.
    """
    values = {f.name: getattr(s, f.name) for f in fields(Spans)}
    values["batch"] = s.batch * copies
    return Shared(**values, prefix=prefix, sharing=copies if among is None else among) if common else Spans(**values)
