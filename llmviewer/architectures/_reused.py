"""Parameters that several layers, or several operators of one, share."""

from __future__ import annotations

from dataclasses import dataclass, fields

from ..operators.base import Weight


@dataclass(frozen=True, kw_only=True)
class Reused(Weight):
    """A parameter of an earlier operator. It stays one where it is quantized, as schemes treat both uses alike."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "tied", True)


def again(weight: Weight) -> Reused:
    """Another use of `weight`."""
    return Reused(**{field.name: getattr(weight, field.name) for field in fields(weight)})
