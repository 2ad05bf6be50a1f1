"""Transfers of offloaded tensors as launches of their own."""

from __future__ import annotations

from dataclasses import dataclass

from ..forms import Form
from ..resource import Resource, vector
from .base import Operator


@dataclass(frozen=True, kw_only=True)
class Transfer(Operator):
    """A launch that only does its `transfers`."""

    kind: str = "transfer"

    def arithmetic(self) -> dict[Resource, Form]:
        return {vector("fp32"): Form()}
