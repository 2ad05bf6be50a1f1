"""Fused launches: intermediate tensors stay on the chip."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Self

from ..forms import Form, total
from ..records import frozen
from ..resource import Resource
from .base import RETAINED_ROLES, Operator, Tensor
from .kinds import declare


@frozen(kw_only=True)
class Fused(Operator):
    """Several operators in one launch: inputs are read once, and only `outputs` are written."""

    parts: tuple[Operator, ...]

    kind: str = declare("fused", "Several operators in one launch.")

    @classmethod
    def of(cls, parts: tuple[Operator, ...], *, kept_outputs: Collection[str]) -> Self:
        """`parts` in one launch, which writes only `kept_outputs`, caches and states."""
        intermediates = {t.name for part in parts for t in part.outputs}
        return cls(
            name=" + ".join(part.name for part in parts),
            inputs=unique_tensors(t for part in parts for t in part.reads() if t.name not in intermediates),
            outputs=unique_tensors(
                t for part in parts for t in part.writes() if t.name in kept_outputs or t.role in RETAINED_ROLES
            ),
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
        intermediates = {t.name for part in self.parts for t in part.outputs}
        return unique_tensors(t for part in self.parts for t in part.reads() if t.name not in intermediates)

    def writes(self) -> tuple[Tensor, ...]:
        output_names = {t.name for t in self.outputs}
        return unique_tensors(t for part in self.parts for t in part.writes() if t.name in output_names)

    def link_traffic(self) -> dict[Resource, Form]:
        sent = [part.link_traffic() for part in self.parts]
        return {link: total(each.get(link, Form()) for each in sent) for one in sent for link in one}

    def conversion(self) -> Form:
        return total(part.conversion() for part in self.parts)

    def state(self) -> tuple[Tensor, ...]:
        return tuple(t for part in self.parts for t in part.state())


def parts_of(op: Operator) -> tuple[Operator, ...]:
    """The operators of a launch: the parts of a fused one, else `op` alone."""
    return op.parts if isinstance(op, Fused) else (op,)


def unique_tensors(tensors: Iterable[Tensor]) -> tuple[Tensor, ...]:
    """The tensors without duplicates by name, in order of first occurrence."""
    return tuple({t.name: t for t in tensors}.values())
