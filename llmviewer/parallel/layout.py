"""Degrees of parallelism, and the links between the devices of each group.

Ranks are numbered as in engines: tensor parallelism innermost, on the fastest links, then context and data parallelism,
and pipeline stages outermost. Experts are divided among the ranks of tensor and data parallelism together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from math import inf, isqrt, prod
from typing import Any, Final

import numpy as np

from ..devices.hardware import Hardware
from ..errors import InputError
from ..forms import Num
from ..operators.collectives import SCALE_OUT, SCALE_UP, Group
from ..parameters import DEGREES, MAX_DEGREE, Algorithm
from ..records import frozen
from ..resource import hop, link

_HOST: Final = "host"
_PORTS: Final = {"ring": 2, "cube": 3, "torus2d": 4, "torus3d": 6}
TWO_BATCHES: Final = "two-batch-overlap"  # its name in the text of a layout
_REDUNDANT: Final = "redundant-experts"
_DIGITS: Final = 4000  # digits that Python's int() reads (at most 4300)


@frozen(kw_only=True)
class Layout:
    """Degrees of parallelism; `devices` is their product without ep.

    tp  tensor parallelism: weights, heads and experts are cut
    pp  pipeline parallelism: layers are divided among stages
    ep  expert parallelism: experts are divided among the ranks of tp x dp
    dp  data parallelism: sequences are divided; attention and dense layers are replicated
    cp  context parallelism: tokens of the prompt and of the cache are divided

    micro_batches      micro-batches that a batch is cut into for the pipeline; 0: as many as stages, or as sequences if
                       there are fewer
    collective         algorithm of collectives
    hierarchical_all_to_all  all-to-alls send data for another domain to the peer at the same position, which
                       forwards it
    overlap            collectives overlap with the launch before them
    two_batch_overlap  a batch is cut into two micro-batches; collectives of one overlap with computation of the other
    batch_sharded_attention  ranks that share a key head divide sequences, instead of each having all of its keys
    redundant_experts  copies of popular experts in each layer, to balance the load of ranks
    """

    tp: int = 1
    pp: int = 1
    ep: int = 1
    dp: int = 1
    cp: int = 1
    micro_batches: int = 0
    collective: Algorithm = Algorithm.AUTO
    hierarchical_all_to_all: bool = False
    overlap: bool = False
    two_batch_overlap: bool = False
    batch_sharded_attention: bool = False
    redundant_experts: int = 0

    def __post_init__(self) -> None:
        for name in DEGREES:
            _check_range(name, getattr(self, name), minimum=1)
        _check_range("micro_batches", self.micro_batches, minimum=0)
        _check_range("redundant_experts", self.redundant_experts, minimum=0)
        ranks = self.tp * self.dp
        if ranks % self.ep:
            if ranks == 1:
                raise InputError(
                    f"ep must divide tp x dp, the ranks that hold experts, which is 1; got {self.ep}; give "
                    f"tp={self.ep} or dp={self.ep}, too"
                )
            near = nearest_divisors(ranks, self.ep)
            raise InputError(
                f"ep must divide tp x dp = {ranks}, the ranks that hold experts; got {self.ep}; try {near}"
            )
        if self.ep % self.tp and self.tp % self.ep:
            raise InputError(f"ep must be a divisor or a multiple of tp={self.tp}; got {self.ep}")
        for name, (used, otherwise) in _DEPENDENT_SETTINGS.items():
            if getattr(self, name) != getattr(type(self), name) and not used(self):
                raise InputError(otherwise)

    @property
    def devices(self) -> int:
        return self.tp * self.pp * self.dp * self.cp

    def __str__(self) -> str:
        degrees = [f"{name}={value}" for name in DEGREES if (value := getattr(self, name)) > 1]
        ways = [f"{_REDUNDANT}={self.redundant_experts}"] * (self.redundant_experts > 0)
        ways += [TWO_BATCHES] * self.two_batch_overlap
        return " ".join((*degrees, *ways)) or "one device"

    @property
    def splits_batches(self) -> bool:
        """Whether a batch is cut into micro-batches."""
        return self.pp > 1 or self.two_batch_overlap

    @property
    def waiting_ranks(self) -> int:
        """Data-parallel ranks that wait for each other in every step: each has experts for the tokens of all."""
        return self.dp if self.ep > self.tp else 1

    def rank_batch(self, batch: Num) -> Num:
        """Sequences on the busiest rank of data parallelism."""
        return batch if self.dp == 1 else np.ceil(np.divide(batch, self.dp))

    def micro_batch_count(self, batch: Num) -> Num:
        """Micro-batches on the busiest rank; all but the last have micro_batch_size(batch) sequences."""
        return 1 if not self.splits_batches else np.ceil(self.rank_batch(batch) / self.micro_batch_size(batch))

    def micro_batch_size(self, batch: Num) -> Num:
        """Sequences of the largest micro-batch."""
        local = self.rank_batch(batch)
        requested_parts = 2 if self.two_batch_overlap else self.micro_batches or self.pp
        return local if not self.splits_batches else np.ceil(local / np.minimum(requested_parts, local))

    def live_sequences(self, batch: Num) -> Num:
        """Sequences whose activations are live at the same time on the busiest rank."""
        return self.rank_batch(batch) if self.two_batch_overlap else self.micro_batch_size(batch)


def _check_range(name: str, number: int, *, minimum: int) -> None:
    """Raises InputError if `number` is below `least` or above MAX_DEGREE."""
    if number < minimum:
        raise InputError(f"{name} must be at least {minimum}; got {number}")
    if number > MAX_DEGREE:
        raise InputError(f"{name} must be at most {MAX_DEGREE}; got {number}")


def _shares(layout: Layout) -> bool:
    return layout.tp * layout.cp * layout.ep > 1


_DEPENDENT_SETTINGS: Final[
    Mapping[str, tuple[Callable[[Layout], bool], str]]
] = {  # (layouts that it affects, error for others)
    "micro_batches": (lambda layout: layout.pp > 1, "micro_batches need a pipeline; give pp"),
    "collective": (_shares, "an algorithm of collectives needs ranks that share a tensor; give tp, cp or ep"),
    "hierarchical_all_to_all": (
        lambda layout: layout.ep > layout.tp,
        "a hierarchical all-to-all needs experts on other ranks than their tokens; give dp, and ep above tp",
    ),
    "overlap": (
        lambda layout: _shares(layout) and not layout.two_batch_overlap,
        "overlap needs collectives between launches; give tp, cp or ep, and no two-batch overlap",
    ),
    "two_batch_overlap": (
        lambda layout: _shares(layout) and layout.pp == 1,
        "two-batch overlap needs collectives and no pipeline; give tp, cp or ep, and no pp",
    ),
    "batch_sharded_attention": (
        lambda layout: layout.tp > 1 and layout.cp == 1,
        "batch-sharded attention needs ranks that share key heads and hold whole sequences; give tp, and no cp",
    ),
    "redundant_experts": (
        lambda layout: layout.ep > 1,
        "redundant experts need expert parallelism; give ep",
    ),
}

ONE_DEVICE = Layout()


def layouts(degrees: Iterable[Mapping[str, Any]], **ways: Any) -> list[Layout]:
    """A layout for each mapping of degrees, with those of the other settings `ways` that affect it.

    Raises InputError if one of `ways` affects no layout.
    """
    bare_layouts = [Layout(**one) for one in degrees]
    for name, way in ways.items():
        used, otherwise = _DEPENDENT_SETTINGS[name]
        if way != getattr(Layout, name) and not any(map(used, bare_layouts)):
            raise InputError(otherwise)
    return [
        replace(one, **{name: way for name, way in ways.items() if _DEPENDENT_SETTINGS[name][0](one)})
        for one in bare_layouts
    ]


def parse_layout(text: str) -> Layout:
    """Parse text such as "tp=8 pp=2", "dp=16,ep=16", "dp=16 ep=16 two-batch-overlap", or "" for one device.

    Raises InputError if it does not parse.
    """
    fields: dict[str, Any] = {}
    for part in text.replace(",", " ").split():
        name, _, value = part.partition("=")
        field = name.replace("-", "_")
        flag = part == TWO_BATCHES
        number = name in (*DEGREES, _REDUNDANT) and value.isdecimal() and len(value) <= _DIGITS
        if field in fields or not (flag or number):
            raise InputError(
                f"layout {text!r}: must be degrees of {', '.join(DEGREES)}, such as tp=8 pp=2; got {part!r}"
            )
        fields[field] = flag or int(value)
    return replace(ONE_DEVICE, **fields)


def nearest_divisors(number: int, target: int) -> str:
    """The nearest divisors of `number` below and above `wanted`, as text."""
    small_divisors = [n for n in range(1, isqrt(number) + 1) if number % n == 0]
    divisors = [*small_divisors, *(number // n for n in reversed(small_divisors))]
    below, above = [n for n in divisors if n < target], [n for n in divisors if n > target]
    return " or ".join(map(str, (*below[-1:], *above[:1])))


@frozen(kw_only=True)
class Network:
    """The links that a layout uses.

    inside, outside  kinds of links within a domain and between domains
    domain           devices that the links inside connect
    """

    hardware: Hardware
    layout: Layout
    inside: str
    outside: str
    domain: float

    @classmethod
    def of(cls, hardware: Hardware, layout: Layout) -> Network:
        """The links of a device under a layout.

        Devices communicate over scale-up links within a domain, else over host links, else over scale-out links.
        Domains communicate over scale-out links; bridged cards without them, over host links.
        """
        known_tiers = [tier for tier in (SCALE_UP, _HOST, SCALE_OUT) if f"{tier}.bandwidth" in hardware.numbers]
        inside = known_tiers[0] if known_tiers else SCALE_UP
        bridged = "bridge" in str(hardware.file_values.get(f"{SCALE_UP}.type"))
        outside = _HOST if bridged and SCALE_OUT not in known_tiers else SCALE_OUT
        domain = hardware.numbers.get(f"{SCALE_UP}.devices", inf) if inside == SCALE_UP else inf
        network = cls(hardware=hardware, layout=layout, inside=inside, outside=outside, domain=domain)
        if layout.devices > 1:
            hardware.fact(f"{inside}.bandwidth")
        return network

    def group(self, *names: str) -> Group:
        """The group of ranks that differ in the named degrees, which are adjacent in the numbering."""
        order = ("tp", "cp", "dp", "pp")
        size = prod(getattr(self.layout, name) for name in names)
        stride = prod(getattr(self.layout, name) for name in order[: order.index(names[0])])
        return self.members("+".join(names), size, stride)

    def members(self, name: str, size: int, stride: int) -> Group:
        """The group of `size` ranks at a distance of `stride`, as many per domain as fit."""
        largest_inner = int(min(size, max(self.domain / stride, 1)))
        inner = next(n for n in range(largest_inner, 0, -1) if size % n == 0)
        topology = str(self.hardware.file_values.get(f"{SCALE_UP}.topology", "switch"))
        domain = int(self.domain) if self.domain < inf else size
        return Group(
            name=name,
            inner=inner,
            outer=size // inner,
            inside=self.inside,
            outside=self.outside,
            algorithm=self.layout.collective,
            hierarchical=self.layout.hierarchical_all_to_all,
            topology=topology if self.inside == SCALE_UP else "switch",
            ports=max(domain - 1, 1) if topology == "mesh" else _PORTS.get(topology, 1),
            in_network=self.inside == SCALE_UP and f"{SCALE_UP}.in_network" in self.hardware.file_values,
            overlapped=self.layout.two_batch_overlap,
        )

    @property
    def wiring(self) -> tuple[float, Group]:
        """The facts that graphs depend on: devices of equal wiring have graphs with the same communication."""
        domain, every = min(self.domain, self.layout.devices), self.members("", self.layout.devices, 1)
        return domain, every if domain < self.layout.devices else replace(every, outside="")

    def linked(self) -> Hardware:
        """The device with rates of its links. Unknown latencies count as 0.

        Raises InputError if the layout spans domains and the bandwidth between them is unknown.
        """
        if self.layout.devices == 1:
            return self.hardware
        tiers = [self.inside]
        if self.layout.devices > self.domain:
            tiers.append(self.outside)
        rates = {link(tier): self.hardware.fact(f"{tier}.bandwidth") for tier in tiers}
        hops = {hop(tier): self._hops_per_s(tier) for tier in tiers}
        return replace(self.hardware, rates={**self.hardware.rates, **rates, **hops})

    def _hops_per_s(self, tier: str) -> float:
        latency = self.hardware.numbers.get(f"{tier}.latency")
        return 1 / latency if latency else inf
