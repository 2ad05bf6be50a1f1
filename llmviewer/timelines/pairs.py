"""Two recordings of the same model, part by part: before and after a change, or on two devices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, field
from typing import Any, Final

from .. import __version__
from ..errors import InputError
from ..records import frozen
from .against import Timeline
from .kinds import IDLE
from .products import ProductOfPass

SCHEMA_VERSION: Final = 1


@frozen(kw_only=True)
class Side:
    """The times of a row in one of two recordings. [s]

    launches    launches in a pass
    expected_s  None if only the bound is known
    """

    launches: float
    measured_s: float
    bound_s: float
    expected_s: float | None


@frozen(kw_only=True)
class PairedRow:
    """A part, matrix products or a kernel in both recordings; None where one of them has none.

    kind  "part", "product" or "kernel"
    """

    kind: str
    name: str
    before: Side | None
    after: Side | None

    @property
    def change_s(self) -> float:
        """Time that the second recording takes more in a pass. [s]"""
        before, after = (side.measured_s if side else 0.0 for side in (self.before, self.after))
        return after - before

    @property
    def ratio(self) -> float | None:
        """Time after over time before; None if one of them has none."""
        if not self.before or not self.after or not self.before.measured_s:
            return None
        return self.after.measured_s / self.before.measured_s


@frozen(kw_only=True)
class TracePair:
    """Two recorded passes of one model.

    parts     parts of a pass, and idle time
    products  matrix products; those that one of the recordings merges share a row
    kernels   kernels that only one of the recordings has, by decreasing time
    """

    before: Timeline
    after: Timeline
    parts: tuple[PairedRow, ...]
    products: tuple[PairedRow, ...] = field(repr=False)
    kernels: tuple[PairedRow, ...] = field(repr=False)

    @property
    def speed_up(self) -> float:
        """Time of a pass before over that after."""
        return self.before.time_s / self.after.time_s

    @property
    def inputs(self) -> dict[str, Any]:
        return {"before": self.before.inputs, "after": self.after.inputs}

    def rows(self) -> Iterator[dict[str, Any]]:
        """Rows of parts, products and kernels."""
        for row in (*self.parts, *self.products, *self.kernels):
            sides = {
                f"{name}_{key}": value
                for name, side in (("before", row.before), ("after", row.after))
                for key, value in (asdict(side) if side else {}).items()
            }
            yield {"kind": row.kind, "name": row.name, **sides, "change_s": row.change_s, "ratio": row.ratio}

    def to_dict(self) -> dict[str, Any]:
        """The JSON document; docs/timeline.md lists its keys."""
        lists = {"parts": self.parts, "products": self.products, "kernels": self.kernels}
        return {
            "schema_version": SCHEMA_VERSION,
            "llmviewer_version": __version__,
            "inputs": self.inputs,
            "before": self.before.to_dict(),
            "after": self.after.to_dict(),
            "speed_up": self.speed_up,
            **{
                name: [asdict(row) | {"change_s": row.change_s, "ratio": row.ratio} for row in rows]
                for name, rows in lists.items()
            },
        }


def pair(before: Timeline, after: Timeline) -> TracePair:
    """Two recordings side by side.

    Raises InputError if they are not of the same model and phase.
    """
    for quantity, one, other in (
        ("model", before.analysis.model.name, after.analysis.model.name),
        ("phase", before.phase, after.phase),
    ):
        if one != other:
            raise InputError(f"both recordings must be of one {quantity}; got {one} and {other}")
    return TracePair(
        before=before,
        after=after,
        parts=tuple(_parts(before, after)),
        products=tuple(_products(before.products, after.products)),
        kernels=tuple(_kernels(before, after)),
    )


def _parts(before: Timeline, after: Timeline) -> list[PairedRow]:
    sides = [
        {
            part.part: Side(
                launches=part.launches, measured_s=part.measured_s, bound_s=part.bound_s, expected_s=part.expected_s
            )
            for part in each.parts
            if part.measured_s
        }
        for each in (before, after)
    ]
    for each, side in zip((before, after), sides, strict=True):
        if each.idle_s is not None:
            side[IDLE] = Side(launches=0, measured_s=each.idle_s, bound_s=0.0, expected_s=each.host_s)
    return _joined("part", *sides)


def _kernels(before: Timeline, after: Timeline) -> list[PairedRow]:
    """Kernels that only one of the recordings has."""
    sides = [
        {
            kernel.name: Side(launches=kernel.launches, measured_s=kernel.measured_s, bound_s=0.0, expected_s=None)
            for kernel in each.kernels
        }
        for each in (before, after)
    ]
    return [row for row in _joined("kernel", *sides) if row.before is None or row.after is None]


def _joined(kind: str, before: Mapping[str, Side], after: Mapping[str, Side]) -> list[PairedRow]:
    """Rows of both sides, those of most time in either of them first."""
    rows = [
        PairedRow(kind=kind, name=name, before=before.get(name), after=after.get(name))
        for name in dict.fromkeys((*before, *after))
    ]
    return sorted(rows, key=lambda row: -max(side.measured_s for side in (row.before, row.after) if side))


def _products(before: Sequence[ProductOfPass], after: Sequence[ProductOfPass]) -> Iterator[PairedRow]:
    """Matrix products in order; those that one recording merges, such as q, k and v, share a row."""
    groups: list[tuple[str, frozenset[str]]] = []
    for product in (*before, *after):
        names = frozenset(product.operators)
        touching = [one for one in groups if one[0] == product.block and one[1] & names]
        joined = (product.block, names.union(*(one[1] for one in touching)))
        place = groups.index(touching[0]) if touching else len(groups)
        groups = [one for one in groups if one not in touching]
        groups.insert(place, joined)
    several = len({block for block, _ in groups}) > len(("layer", "head"))
    for block, names in groups:
        sides = [
            [product for product in each if product.block == block and names >= set(product.operators)]
            for each in (before, after)
        ]
        order = dict.fromkeys(name for each in sides for product in each for name in product.operators)
        title = f"{block}: " * several + ", ".join(order)
        yield PairedRow(kind="product", name=title, before=_side(sides[0]), after=_side(sides[1]))


def _side(products: Sequence[ProductOfPass]) -> Side | None:
    """The products of one recording together; None if there are none."""
    if not products:
        return None
    expected = [product.expected_s for product in products]
    numbers = [value for value in expected if value is not None]
    return Side(
        launches=sum(product.launches for product in products),
        measured_s=sum(product.measured_s for product in products),
        bound_s=sum(product.bound_s for product in products),
        expected_s=sum(numbers) if len(numbers) == len(products) else None,
    )
