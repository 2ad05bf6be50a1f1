"""A launch that waits for what comes from, or goes to, where parts of tensors are kept."""

from __future__ import annotations

from dataclasses import dataclass

from ..forms import Form
from ..resource import Resource, vector
from .base import Operator


@dataclass(frozen=True, kw_only=True)
class Transfer(Operator):
    """Its `transfers`, and nothing else."""

    kind: str = "transfer"

    def arithmetic(self) -> dict[Resource, Form]:
        return {vector("fp32"): Form()}
