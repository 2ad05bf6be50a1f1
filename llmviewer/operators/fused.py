"""Fused launches: intermediate tensors stay on the chip."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Self

from ..forms import Form, total
from ..records import frozen
from ..resource import Resource
from .base import KEPT, Operator, Tensor
from .kinds import declare


@frozen(kw_only=True)
class Fused(Operator):
    """Several operators in one launch: inputs are read once, and only `outputs` are written."""

    parts: tuple[Operator, ...]

    kind: str = declare("fused", "Several operators in one launch.")

    @classmethod
    def of(cls, parts: tuple[Operator, ...], *, read: Collection[str]) -> Self:
        """`parts` in one launch, which writes only tensors named in `read`, caches and states."""
        made = {t.name for part in parts for t in part.outputs}
        return cls(
            name=" + ".join(part.name for part in parts),
            inputs=once(t for part in parts for t in part.reads() if t.name not in made),
            outputs=once(t for part in parts for t in part.writes() if t.name in read or t.role in KEPT),
            weights=tuple(weight for part in parts for weight in part.weights),
            parts=parts,
        )

    def arithmetic(self) -> dict[Resource, Form]:
        amounts: dict[Resource, Form] = {}
        for part in self.parts:
            for resource, ops in part.arithmetic().items():
                amounts[resource] = amounts.get(resource, Form()) + ops
        return amounts

    def reads(self) -> tuple[Tensor, ...]:
        made = {t.name for part in self.parts for t in part.outputs}
        return once(t for part in self.parts for t in part.reads() if t.name not in made)

    def writes(self) -> tuple[Tensor, ...]:
        left = {t.name for t in self.outputs}
        return once(t for part in self.parts for t in part.writes() if t.name in left)

    def sent(self) -> dict[Resource, Form]:
        sent = [part.sent() for part in self.parts]
        return {link: total(each.get(link, Form()) for each in sent) for one in sent for link in one}

    def conversion(self) -> Form:
        return total(part.conversion() for part in self.parts)

    def state(self) -> tuple[Tensor, ...]:
        return tuple(t for part in self.parts for t in part.state())


def once(tensors: Iterable[Tensor]) -> tuple[Tensor, ...]:
    """The tensors without duplicates by name, in order of first occurrence."""
    return tuple({t.name: t for t in tensors}.values())
