"""What devices send each other. Bytes are those that one device puts on its links; all devices do so at once.

A group spans tiers: `inner` of its members share a domain, and there are `outer` such parts. Sizes are those of
"Collective communication: theory, practice and experience" (doi:10.1002/cpe.1206) and of NCCL's ring and tree
algorithms. AUTO is what none of them beats: the fewest bytes and the fewest messages that wait for each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from math import ceil, log2
from typing import Final

from ..forms import ONE, Form, total
from ..resource import Resource, hop, link, vector
from .base import Operator
from .routing import Choice

UP, OUT = "scale_up", "scale_out"


class Algorithm(StrEnum):
    """How a reduction travels."""

    AUTO = "auto"
    RING = "ring"
    TREE = "tree"
    ONE_SHOT = "one-shot"
    TWO_SHOT = "two-shot"


# Of the links of a device in the hybrid cube mesh of a DGX-1, the most that join it to others of a group: two of a
# V100's six go to one neighbour, three of a P100's four to the other corners of a face. Four devices are neighbours.
CUBE_LINKS: Final = {2: 1 / 3, 3: 1 / 2, 4: 3 / 4}
CUBE_NEIGHBOURS: Final = 4


@dataclass(frozen=True, kw_only=True)
class Group:
    """Devices that talk to each other: `inner` in each of `outer` domains.

    inside, outside  the links that are used within a domain and between them
    algorithm        how reductions travel
    hierarchical     how all-to-alls do: what is for another domain goes to the peer of the same place there, which
                     passes it on inside
    topology         of the links inside
    ports            links inside of one device that lead to different neighbours, where there is no switch
    reducing         whether switches inside add up what passes them
    beside           whether its collectives travel while another micro-batch computes
    """

    name: str
    inner: int
    outer: int = 1
    inside: str = UP
    outside: str = OUT
    algorithm: Algorithm = Algorithm.AUTO
    hierarchical: bool = False
    topology: str = "switch"
    ports: int = 1
    reducing: bool = False
    beside: bool = False

    @property
    def size(self) -> int:
        return self.inner * self.outer

    @property
    def tiers(self) -> tuple[tuple[str, int], ...]:
        """The tiers that it spans, with the members that meet in each."""
        return tuple((tier, n) for tier, n in ((self.inside, self.inner), (self.outside, self.outer)) if n > 1)


@dataclass(frozen=True, kw_only=True)
class Collective(Operator):
    """Every member of `group` sends and receives; what is reduced is added on the vector units as it comes in."""

    group: Group

    kind: str = "communication"

    @property
    def beside(self) -> bool:
        return self.group.beside

    def arithmetic(self) -> dict[Resource, Form]:
        return {vector("fp32"): Form()}

    def conversion(self) -> Form:
        """None where rows arrive in the format that they leave in."""
        alike = {t.format for t in self.inputs} == {t.format for t in self.outputs}
        return Form() if alike else super().conversion()

    def sent(self) -> dict[Resource, Form]:
        amounts: dict[Resource, Form] = {}
        for tier, members in self.group.tiers:
            inside = tier == self.group.inside
            share, hops = self.travel(members, inside=inside)
            amounts[link(tier)] = share * (self.detour() if inside else 1.0) * self.payload()
            amounts[hop(tier)] = hops * ONE
        return amounts

    def detour(self) -> float:
        """Over all links inside, of which a mesh or cube can use only those to members, and a ring or torus both
        directions.
        """
        group = self.group
        if group.topology == "cube":
            return 1 / CUBE_LINKS.get(group.inner, 1.0)
        return group.ports / (group.inner - 1) if group.topology == "mesh" else 1.0

    def payload(self) -> Form:
        """The bytes that `travel` is a multiple of: by default those of its inputs."""
        return total(t.nbytes for t in self.inputs)

    def travel(self, members: int, *, inside: bool) -> tuple[float, float]:
        """(multiple of the payload that a device sends in a tier, messages that wait for each other)"""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class AllReduce(Collective):
    """The sum of all members' tensors, for all of them: at least 2 (p - 1) / p of it leaves each device.

    Where a switch adds, each device's tensor has to leave it once, and the sum to come once: with AUTO no more does.
    Across domains each member reduces the part that it has after a reduce-scatter inside.
    """

    def travel(self, members: int, *, inside: bool) -> tuple[float, float]:
        part = 1.0 if inside else 1 / self.group.inner
        halves = 2 * (members - 1) / members
        share, hops = {
            Algorithm.AUTO: (1.0 if inside and self.group.reducing else halves, 1.0),
            Algorithm.RING: (halves, 2.0 * (members - 1)),
            Algorithm.TREE: (2.0, 2.0 * ceil(log2(members))),
            Algorithm.ONE_SHOT: (members - 1.0, 1.0),
            Algorithm.TWO_SHOT: (halves, 2.0),
        }[self.group.algorithm]
        return part * share, hops

    def arithmetic(self) -> dict[Resource, Form]:
        return {vector("fp32"): (self.group.size - 1) / self.group.size * total(t.elements for t in self.outputs)}


@dataclass(frozen=True, kw_only=True)
class AllGather(Collective):
    """Every member's part, for all of them: (p - 1) / p of the whole reaches each device, and as much leaves it."""

    def payload(self) -> Form:
        return total(t.nbytes for t in self.outputs)

    def travel(self, members: int, *, inside: bool) -> tuple[float, float]:
        part = 1.0 if inside else 1 / self.group.inner
        return part * (members - 1) / members, members - 1.0 if self.group.algorithm is Algorithm.RING else 1.0


@dataclass(frozen=True, kw_only=True)
class ReduceScatter(Collective):
    """The sum of all members' tensors, a part of it for each: as much as an all-gather the other way."""

    def travel(self, members: int, *, inside: bool) -> tuple[float, float]:
        part = 1.0 if inside else 1 / self.group.inner
        return part * (members - 1) / members, members - 1.0 if self.group.algorithm is Algorithm.RING else 1.0


@dataclass(frozen=True, kw_only=True)
class AllToAll(Collective):
    """Rows that each member has for each other, or those of tokens for the members that have their experts. A token
    goes once to a member; between domains it goes once, too, and is passed on inside, but where an algorithm is named,
    which sends straight.

    choice  of the experts that members share out; None where each member has as much for each other
    copies  rows of the input for each token
    """

    choice: Choice | None = None
    copies: float = 1.0

    @property
    def parts(self) -> float:
        """How much of the rows of its input one device holds: as much comes to the busiest member, and leaves any."""
        return self.group.size * self._needed(1)

    @property
    def visits(self) -> float:
        """The same once for every domain that has to have it."""
        return self.group.outer * self._needed(self.group.inner)

    def _needed(self, members: int) -> float:
        """Of the rows, those that so many members have to have."""
        size = self.group.size
        return self.choice.needed(members, of=size) / self.copies if self.choice else members / size

    def travel(self, members: int, *, inside: bool) -> tuple[float, float]:
        group, away = self.group, (self.group.outer - 1) / self.group.outer
        if group.hierarchical:
            return (self.parts if inside else self.visits) * (members - 1) / members, members - 1.0
        own = self.parts * (group.inner - 1) / group.size
        if group.algorithm is Algorithm.AUTO:
            return own + away * (self.parts - self.visits) if inside else away * self.visits, 1.0
        return own if inside else away * self.parts, float(members - 1 if inside else group.size - group.inner)

    def detour(self) -> float:
        """Devices that a row passes on its way: a quarter of each side of a ring or torus, on average; of a cube's
        corners one that has no link to its goal.
        """
        group = self.group
        if group.topology == "cube" and group.inner > 1 + CUBE_NEIGHBOURS:
            others = group.inner - 1
            return (2 * others - CUBE_NEIGHBOURS) / others
        sides = {"ring": 1, "torus2d": 2, "torus3d": 3}.get(group.topology)
        return max(sides * group.inner ** (1 / sides) / 4, 1.0) if sides else super().detour()


@dataclass(frozen=True, kw_only=True)
class Send(Collective):
    """Tensors from one device to the next."""

    def travel(self, members: int, *, inside: bool) -> tuple[float, float]:  # noqa: ARG002
        return 1.0, 1.0

    def detour(self) -> float:
        """One of the links that lead to different neighbours."""
        return float(self.group.ports)
