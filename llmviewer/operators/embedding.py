"""Embedding tables, looked up by token and position."""

from __future__ import annotations

from dataclasses import dataclass

from ..forms import Form
from ..resource import Resource, vector
from .base import Operator


@dataclass(frozen=True, kw_only=True)
class Embedding(Operator):
    """hidden[tokens, width] = the sum of one row of each table."""

    kind: str = "embedding"

    def arithmetic(self) -> dict[Resource, Form]:
        return {vector("fp32"): (len(self.weights) - 1) * self.outputs[0].elements}
