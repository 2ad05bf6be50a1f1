"""Collectives. Byte counts are per device, over its own links; all devices send at once.

A group spans tiers: `inner` members share a domain, and there are `outer` domains. Message sizes are from "Collective
communication: theory, practice and experience" (doi:10.1002/cpe.1206) and NCCL's ring and tree algorithms. AUTO is a
lower bound on all of them: the fewest bytes and the fewest consecutive messages.
"""

from __future__ import annotations

from math import ceil, log2
from typing import Final

from ..forms import ONE, Form, total
from ..parameters import Algorithm
from ..records import frozen
from ..resource import Resource, hop, link, vector
from .base import Operator
from .kinds import OperatorGroup, declare
from .routing import ExpertChoice

SCALE_UP, SCALE_OUT = "scale_up", "scale_out"


# Largest fraction of a device's links that lead to members of a group in the hybrid cube mesh of a DGX-1, by size of
# the group: two of a V100's six links go to one neighbour, three of a P100's four to the other corners of a face.
CUBE_LINKS: Final = {2: 1 / 3, 3: 1 / 2, 4: 3 / 4}
CUBE_NEIGHBOURS: Final = 4  # devices to which a device has a direct link


@frozen(kw_only=True)
class Group:
    """Devices that communicate: `inner` in each of `outer` domains.

    inside, outside  links within a domain and between domains
    algorithm        of reductions
    hierarchical     whether all-to-alls send data for another domain to the peer at the same position there, which
                     forwards it within the domain
    topology         of the links within a domain
    ports            links of a device to different neighbours, without a switch
    in_network         whether switches within a domain reduce (NVLink SHARP)
    overlapped         whether its collectives overlap the computation of another micro-batch
    """

    name: str
    inner: int
    outer: int = 1
    inside: str = SCALE_UP
    outside: str = SCALE_OUT
    algorithm: Algorithm = Algorithm.AUTO
    hierarchical: bool = False
    topology: str = "switch"
    ports: int = 1
    in_network: bool = False
    overlapped: bool = False

    @property
    def size(self) -> int:
        return self.inner * self.outer

    @property
    def tiers(self) -> tuple[tuple[str, int], ...]:
        """(link, members that communicate) of each tier that the group spans."""
        return tuple((tier, n) for tier, n in ((self.inside, self.inner), (self.outside, self.outer)) if n > 1)


@frozen(kw_only=True)
class Collective(Operator):
    """Communication among all members of `group`; reductions run on the vector units as data arrive."""

    group: Group

    kind: str = declare("communication", "Data exchanged between devices.", group=OperatorGroup.COMMUNICATION)

    @property
    def overlapped(self) -> bool:
        return self.group.overlapped

    def arithmetic(self) -> dict[Resource, Form]:
        return {vector("fp32"): Form()}

    def conversion(self) -> Form:
        """Vector OPs of conversions; none if inputs and outputs have the same format."""
        alike = {t.format for t in self.inputs} == {t.format for t in self.outputs}
        return Form() if alike else super().conversion()

    def link_traffic(self) -> dict[Resource, Form]:
        amounts: dict[Resource, Form] = {}
        for tier, members in self.group.tiers:
            inside = tier == self.group.inside
            share, hops = self.traffic(members, inside=inside)
            amounts[link(tier)] = share * (self.detour() if inside else 1.0) * self.payload()
            amounts[hop(tier)] = hops * ONE
        return amounts

    def detour(self) -> float:
        """Factor on the time over all links of a device: a mesh or cube uses only the links to members."""
        group = self.group
        if group.topology == "cube":
            return 1 / CUBE_LINKS.get(group.inner, 1.0)
        return group.ports / (group.inner - 1) if group.topology == "mesh" else 1.0

    def payload(self) -> Form:
        """The bytes that `traffic` scales: by default those of the inputs."""
        return total(t.nbytes for t in self.inputs)

    def traffic(self, members: int, *, inside: bool) -> tuple[float, float]:
        """(multiple of the payload that a device sends in a tier, consecutive messages)"""
        raise NotImplementedError


class AllReduce(Collective):
    """The sum of all members' tensors, on all members: each device sends at least 2 (p - 1) / p of it.

    With switches that reduce, a device sends its tensor once and receives the sum once; AUTO assumes that. Between
    domains each member reduces the part that it has after a reduce-scatter within its domain.
    """

    def traffic(self, members: int, *, inside: bool) -> tuple[float, float]:
        part = 1.0 if inside else 1 / self.group.inner
        halves = 2 * (members - 1) / members
        share, hops = {
            Algorithm.AUTO: (1.0 if inside and self.group.in_network else halves, 1.0),
            Algorithm.RING: (halves, 2.0 * (members - 1)),
            Algorithm.TREE: (2.0, 2.0 * ceil(log2(members))),
            Algorithm.ONE_SHOT: (members - 1.0, 1.0),
            Algorithm.TWO_SHOT: (halves, 2.0),
        }[self.group.algorithm]
        return part * share, hops

    def arithmetic(self) -> dict[Resource, Form]:
        return {vector("fp32"): (self.group.size - 1) / self.group.size * total(t.elements for t in self.outputs)}


class AllGather(Collective):
    """The parts of all members, on all members: each device receives and sends (p - 1) / p of the whole."""

    def payload(self) -> Form:
        return total(t.nbytes for t in self.outputs)

    def traffic(self, members: int, *, inside: bool) -> tuple[float, float]:
        part = 1.0 if inside else 1 / self.group.inner
        return part * (members - 1) / members, members - 1.0 if self.group.algorithm is Algorithm.RING else 1.0


class ReduceScatter(Collective):
    """The sum of all members' tensors, one part on each member: the traffic of an all-gather, reversed."""

    def traffic(self, members: int, *, inside: bool) -> tuple[float, float]:
        part = 1.0 if inside else 1 / self.group.inner
        return part * (members - 1) / members, members - 1.0 if self.group.algorithm is Algorithm.RING else 1.0


@frozen(kw_only=True)
class AllToAll(Collective):
    """Rows from each member to each other member, or tokens to the members with their experts.

    A token is sent to a member once. With AUTO it is sent to another domain once and forwarded within it; a named
    algorithm sends a copy to each of its experts directly.

    choice  how tokens choose the experts that members share; None: equal parts for all members
    copies  rows of the input per token
    """

    choice: ExpertChoice | None = None
    copies: float = 1.0

    @property
    def direct(self) -> bool:
        """Whether each copy is sent directly to its expert, as with DeepEP's low-latency kernels."""
        return self.group.algorithm is not Algorithm.AUTO and not self.group.hierarchical

    @property
    def load_factor(self) -> float:
        """Rows that the busiest member receives and any member sends, as a multiple of its own rows."""
        return self.group.size * self._share_needed(1)

    @property
    def domain_load_factor(self) -> float:
        """`load_factor` with each row counted once per domain that needs it."""
        return self.group.outer * self._share_needed(self.group.inner)

    def _share_needed(self, members: int) -> float:
        """Fraction of the rows that at least one of `members` needs."""
        size, domains = self.group.size, self.group.outer
        if self.choice is None:
            return members / size
        if self.direct:
            return members * max(map(sum, self.choice.shares(size, domains))) / self.copies
        return max(self.choice.needed(members, ranks=size, domains=domains)) / self.copies

    def traffic(self, members: int, *, inside: bool) -> tuple[float, float]:
        group, remote_share = self.group, (self.group.outer - 1) / self.group.outer
        if group.hierarchical:
            return (self.load_factor if inside else self.domain_load_factor) * (members - 1) / members, members - 1.0
        local_share = self.load_factor * (group.inner - 1) / group.size
        if self.direct:
            return local_share if inside else remote_share * self.load_factor, float(
                members - 1 if inside else group.size - group.inner
            )
        return local_share + remote_share * (
            self.load_factor - self.domain_load_factor
        ) if inside else remote_share * self.domain_load_factor, 1.0

    def detour(self) -> float:
        """Mean links that a row crosses: in a ring or torus a quarter of each side, in a cube two to non-neighbours."""
        group = self.group
        if group.topology == "cube" and group.inner > 1 + CUBE_NEIGHBOURS:
            others = group.inner - 1
            return (2 * others - CUBE_NEIGHBOURS) / others
        sides = {"ring": 1, "torus2d": 2, "torus3d": 3}.get(group.topology)
        return max(sides * group.inner ** (1 / sides) / 4, 1.0) if sides else super().detour()


class Send(Collective):
    """Tensors sent from one device to the next."""

    def traffic(self, members: int, *, inside: bool) -> tuple[float, float]:  # noqa: ARG002
        return 1.0, 1.0

    def detour(self) -> float:
        """All data cross one of the device's links."""
        return float(self.group.ports)
