"""Embedding tables, looked up by token and position."""

from __future__ import annotations

from typing import ClassVar

from ..forms import Form
from ..records import frozen
from ..resource import Resource, vector
from .base import Operator, Sharding
from .kinds import declare


@frozen(kw_only=True)
class Embedding(Operator):
    """hidden[tokens, width] = the sum of one row of each table."""

    sharding: ClassVar[Sharding] = Sharding.TABLE

    kind: str = declare(
        "embedding",
        "A row of the table looked up for each token.",
        measured="emb",
        traced="(?<!rotary_)embedding|indexSelect|gather_kernel",
        symbol="triangle-down",
    )

    def arithmetic(self) -> dict[Resource, Form]:
        return {vector("fp32"): (len(self.weights) - 1) * self.outputs[0].elements}
