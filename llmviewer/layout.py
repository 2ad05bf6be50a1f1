"""How a model lies on several devices of one kind, and which links they use to talk about which part of it.

Ranks are numbered as engines place them: tensor parallelism innermost, on the fastest links, then context and data
parallelism, and pipeline stages outermost. Experts lie on the ranks of tensor and data parallelism together.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf, prod
from typing import Final

import numpy as np

from .errors import InputError
from .forms import Num
from .hardware import Hardware
from .operators.collectives import OUT, UP, Algorithm, Group
from .resource import hop, link

_HOST: Final = "host"
_PORTS: Final = {"ring": 2, "torus2d": 4, "torus3d": 6}
_DEGREES: Final = ("tp", "pp", "ep", "dp", "cp")


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Degrees of parallelism; `devices` is their product, experts apart.

    tp  tensor: every weight, head and expert is cut
    pp  pipeline: layers are shared out
    ep  expert: experts are shared out among ranks of tp x dp
    dp  data: sequences are shared out; attention and dense layers are copied
    cp  context: the tokens of a prompt and of the cache are shared out

    overlap        collectives travel while the launch before them still works
    micro_batches  parts of a batch that follow each other through the pipeline; as many as stages, or sequences, if 0
    """

    tp: int = 1
    pp: int = 1
    ep: int = 1
    dp: int = 1
    cp: int = 1
    micro_batches: int = 0
    algorithm: Algorithm = Algorithm.AUTO
    hierarchical: bool = False
    overlap: bool = False

    def __post_init__(self) -> None:
        for name in _DEGREES:
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1; got {getattr(self, name)}")
        ranks = self.tp * self.dp
        if ranks % self.ep:
            near = nearest_divisors(ranks, self.ep)
            raise InputError(
                f"ep must divide the {ranks} ranks of tp x dp, on which experts lie; got {self.ep}; try {near}"
            )
        if self.ep > self.tp and self.ep % self.tp:
            raise InputError(f"ep must be a multiple of tp={self.tp} where it is larger; got {self.ep}")
        if self.ep < self.tp and self.tp % self.ep:
            raise InputError(f"ep must divide tp={self.tp} where it is smaller; got {self.ep}")

    @property
    def devices(self) -> int:
        return self.tp * self.pp * self.dp * self.cp

    def __str__(self) -> str:
        degrees = [f"{name}={value}" for name in _DEGREES if (value := getattr(self, name)) > 1]
        return " ".join(degrees) or "one device"

    def local(self, batch: Num) -> Num:
        """Sequences of a batch that the busiest rank of data parallelism has."""
        return batch if self.dp == 1 else np.ceil(np.divide(batch, self.dp))

    def parts(self, batch: Num) -> Num:
        """Micro-batches that those are cut into for the pipeline."""
        return 1 if self.pp == 1 else np.minimum(self.micro_batches or self.pp, self.local(batch))

    def share(self, batch: Num) -> Num:
        """Sequences of one micro-batch."""
        return self.local(batch) if self.pp == 1 else np.ceil(self.local(batch) / self.parts(batch))


ALONE = Layout()


def parse_layout(text: str) -> Layout:
    """Read "tp=8 pp=2", "dp=16,ep=16" or "" for one device.

    Raises InputError where the text is none of these.
    """
    degrees: dict[str, int] = {}
    for part in text.replace(",", " ").split():
        name, _, value = part.partition("=")
        if name not in _DEGREES or not value.isdecimal() or name in degrees:
            raise InputError(
                f"layout {text!r}: must be degrees of {', '.join(_DEGREES)}, such as tp=8 pp=2; got {part!r}"
            )
        degrees[name] = int(value)
    return replace(ALONE, **degrees)  # type: ignore[arg-type]


def nearest_divisors(number: int, wanted: int) -> str:
    """The divisors of `number` on both sides of `wanted`, as text."""
    able = [n for n in range(1, number + 1) if number % n == 0]
    below, above = [n for n in able if n < wanted], [n for n in able if n > wanted]
    return " or ".join(map(str, (*below[-1:], *above[:1])))


@dataclass(frozen=True, kw_only=True)
class Network:
    """The links of a device, as far as a layout uses them.

    domain  devices that the links inside join
    """

    hardware: Hardware
    layout: Layout
    inside: str
    domain: float

    @classmethod
    def of(cls, hardware: Hardware, layout: Layout) -> Network:
        """Devices meet on their scale-up links, or on their host links where they have none."""
        inside = UP if f"{UP}.bandwidth" in hardware.numbers else _HOST
        domain = hardware.numbers.get(f"{UP}.devices", inf) if inside == UP else inf
        network = cls(hardware=hardware, layout=layout, inside=inside, domain=domain)
        if layout.devices > 1:
            hardware.fact(f"{inside}.bandwidth")
        return network

    def group(self, *names: str) -> Group:
        """The ranks that differ in the degrees named, neighbours of each other."""
        order = ("tp", "cp", "dp", "pp")
        size = prod(getattr(self.layout, name) for name in names)
        stride = prod(getattr(self.layout, name) for name in order[: order.index(names[0])])
        return self.members("+".join(names), size, stride)

    def members(self, name: str, size: int, stride: int) -> Group:
        """`size` ranks, every `stride`-th one; as many in a domain as it has room for."""
        room = [n for n in range(1, size + 1) if size % n == 0 and (n == 1 or stride * n <= self.domain)]
        inner = 1 if stride >= self.domain else room[-1]
        topology = str(next((f.value for f in self.hardware.facts if f.key == f"{UP}.topology"), "switch"))
        domain = int(self.domain) if self.domain < inf else size
        return Group(
            name=name,
            inner=inner,
            outer=size // inner,
            inside=self.inside,
            algorithm=self.layout.algorithm,
            hierarchical=self.layout.hierarchical,
            topology=topology if self.inside == UP else "switch",
            ports=max(domain - 1, 1) if topology == "mesh" else _PORTS.get(topology, 1),
            reducing=self.inside == UP and any(f.key == f"{UP}.in_network" for f in self.hardware.facts),
        )

    def linked(self) -> Hardware:
        """The device with its links among what it supplies. A latency that is not known counts as none.

        Raises InputError where the layout spans domains and nothing is known of the links between them.
        """
        if self.layout.devices == 1:
            return self.hardware
        tiers = [self.inside]
        if self.layout.devices > self.domain:
            tiers.append(OUT)
        rates = {link(tier): self.hardware.fact(f"{tier}.bandwidth") for tier in tiers}
        hops = {hop(tier): self._hops_per_s(tier) for tier in tiers}
        return replace(self.hardware, rates={**self.hardware.rates, **rates, **hops})

    def _hops_per_s(self, tier: str) -> float:
        latency = self.hardware.numbers.get(f"{tier}.latency")
        return 1 / latency if latency else inf
