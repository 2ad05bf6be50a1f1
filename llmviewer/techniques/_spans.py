"""Sequences that share prefixes."""

from __future__ import annotations

from dataclasses import fields

import numpy as np

from ..forms import Num
from ..records import frozen
from ..workload import Spans


@frozen(kw_only=True)
class Shared(Spans):
    """Spans whose shared prefixes are stored and read once.

    common  (tokens of a prefix, sequences that share it); each prefix extends the one before
    """

    common: tuple[tuple[Num, Num], ...] = ()

    @property
    def prefixes(self) -> tuple[tuple[Num, Num], ...]:
        sharing = np.ones(())
        outer = []
        for prefix, copies in reversed(self.common):  # copies of sequences that share a prefix share it too
            sharing = sharing * copies
            outer.append((prefix, sharing))
        return tuple(reversed(outer))

    @property
    def shape(self) -> tuple[int, ...]:
        return np.broadcast_shapes(super().shape, *(np.shape(number) for pair in self.common for number in pair))

    def kv_tokens(self, window: float) -> Num:
        visible = super().kv_tokens(window)
        distinct: Num = 0.0
        before: Num = 0.0
        for prefix, sharing in self.common:
            # Tokens of the prefix within the window.
            visible_prefix = np.clip(visible - (self.kv_len - prefix), 0, prefix)
            distinct, before = (distinct + visible_prefix - before) / sharing, visible_prefix
        return distinct + visible - before

    def kv_streams(self, tile: float, resident: float, window: float) -> Num:
        unshared = Spans(**{f.name: getattr(self, f.name) for f in fields(Spans)})
        saved = unshared.kv_tokens(window) - self.kv_tokens(window)
        return unshared.kv_streams(tile, resident, window) - saved


def shared(s: Spans, *, copies: int, prefix: Num, common: bool, among: Num | None = None) -> Spans:
    """Copies each sequence; if `common`, the first `prefix` tokens are stored once per `among` sequences.

    copies  number of copies of each sequence
    among   default `copies`

    Prefixes that the sequences already share stay shared among all copies.
    """
    values = {f.name: getattr(s, f.name) for f in fields(Spans)}
    values["batch"] = s.batch * copies
    if not common:
        return Spans(**values)
    before = s.common if isinstance(s, Shared) else ()
    return Shared(**values, common=(*before, (prefix, copies if among is None else among)))
