"""Sequences that share prefixes."""

from __future__ import annotations

from dataclasses import fields

import numpy as np

from ..forms import Num
from ..records import frozen
from ..workload import Spans


@frozen(kw_only=True)
class Shared(Spans):
    """Spans whose shared prefixes are held and read once.

    common  (tokens of a prefix, sequences that share it), each prefix an extension of the one before
    """

    common: tuple[tuple[Num, Num], ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        return np.broadcast_shapes(super().shape, *(np.shape(number) for pair in self.common for number in pair))

    def kv_tokens(self, window: float) -> Num:
        seen = super().kv_tokens(window)
        held: Num = 0.0
        before: Num = 0.0
        for prefix, sharing in self.common:
            left = np.clip(seen - (self.kv_len - prefix), 0, prefix)  # tokens of the prefix within the window
            held, before = (held + left - before) / sharing, left
        return held + seen - before

    def kv_streams(self, tile: float, resident: float, window: float) -> Num:
        alone = Spans(**{f.name: getattr(self, f.name) for f in fields(Spans)})
        saved = alone.kv_tokens(window) - self.kv_tokens(window)
        return alone.kv_streams(tile, resident, window) - saved


def shared(s: Spans, *, copies: int, prefix: Num, common: bool, among: Num | None = None) -> Spans:
    """`copies` of each sequence; if `common`, the first `prefix` tokens are held once per `among` sequences.

    `among` defaults to the copies. Prefixes that the sequences share already stay shared among all copies.
    """
    values = {f.name: getattr(s, f.name) for f in fields(Spans)}
    values["batch"] = s.batch * copies
    if not common:
        return Spans(**values)
    before = s.common if isinstance(s, Shared) else ()
    return Shared(**values, common=(*before, (prefix, copies if among is None else among)))
