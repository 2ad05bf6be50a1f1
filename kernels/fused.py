"""Several operators of the engine in one launch."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Self

from ..forms import Form
from ..operators.base import KEPT, Operator, Tensor
from ..resource import Resource


@dataclass(frozen=True, kw_only=True)
class Fused(Operator):
    """What `parts` compute; of their tensors, those that cross the memory bus."""

    parts: tuple[Operator, ...]

    kind: str = "fused"

    @classmethod
    def of(cls, parts: tuple[Operator, ...], *, read: Collection[str]) -> Self:
        """Tensors that one part writes and another reads stay on the chip, unless other launches `read` them or they
        are kept.
        """
        inputs: dict[str, Tensor] = {}
        outputs: dict[str, Tensor] = {}
        for part in parts:
            inputs |= {t.name: t for t in part.reads() if t.name not in outputs and t.name not in inputs}
            outputs |= {t.name: t for t in part.writes()}
        return cls(
            name=" + ".join(part.name for part in parts),
            inputs=tuple(inputs.values()),
            outputs=tuple(t for name, t in outputs.items() if name in read or t.role in KEPT),
            weights=tuple(weight for part in parts for weight in part.weights),
            parts=parts,
        )

    def arithmetic(self) -> dict[Resource, Form]:
        amounts: dict[Resource, Form] = {}
        for part in self.parts:
            for resource, ops in part.arithmetic().items():
                amounts[resource] = amounts.get(resource, Form()) + ops
        return amounts
