"""Placement of layers, experts or attention on the host, which computes them beside its own memory: a CPU, or a second
GPU.

A launch on the host reads its weights and its part of the KV cache from host memory, and runs on the host's units.
Activations cross the host link wherever a launch reads what the other side wrote. Source: llama.cpp (`--n-cpu-moe`,
`--n-gpu-layers`), ktransformers (arXiv:2501.12948 served with experts on the CPU), FastDecode (arXiv:2403.11421:
attention on the CPU).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from itertools import groupby
from typing import Final

from ..devices.hardware import Hardware
from ..errors import InputError
from ..forms import Form, total
from ..graph import Block, Graph, Transform
from ..operators.attention import Attention
from ..operators.base import RETAINED_ROLES, Operator, Role, Tensor, Weight
from ..operators.elementwise import Combine, Permute
from ..operators.linear import ExpertsLinear
from ..operators.transfer import Transfer
from ..records import frozen
from ..resource import Resource, link
from .offload import HOST

_OUTWARD: Final = f"to {HOST}"  # the direction of the host link away from the device
_ALL: Final = 1 << 30  # layers: more than any model has
_MUST: Final = "must be layers, experts or attention, each alone or with a number of layers, such as experts=36"


@frozen(kw_only=True)
class HostPlacement:
    """Numbers of layers, from the first, whose launches run on the host.

    layers     whole layers
    experts    routed experts alone
    attention  attention and its KV cache alone
    """

    layers: int = 0
    experts: int = 0
    attention: int = 0

    def __str__(self) -> str:
        counts = ((f.name, getattr(self, f.name)) for f in fields(self))
        return ",".join(name if count >= _ALL else f"{name}={count}" for name, count in counts if count)

    def linked(self, hardware: Hardware, host: Hardware | None) -> Hardware:
        """The device with the rates of the link to its host, to a second GPU through the links of both to the CPU.

        Raises InputError if its bandwidth is unknown.
        """
        if not str(self):
            return hardware
        bandwidth = hardware.fact(f"{HOST}.bandwidth")
        if is_second_gpu(host):
            assert host
            bandwidth = min(bandwidth, host.fact(f"{HOST}.bandwidth"))
        return replace(hardware, rates={**hardware.rates, link(HOST): bandwidth, link(_OUTWARD): bandwidth})


NOTHING_ON_HOST: Final = HostPlacement()


def is_second_gpu(host: Hardware | None) -> bool:
    """Whether a host is another GPU, not a CPU."""
    return host is not None and host.kind != "cpu"


def parse_host_placement(text: str) -> HostPlacement:
    """The HostPlacement of a text such as "experts=36", "experts" (of all layers) or "layers=20,attention".

    Raises InputError if it does not parse.
    """
    counts: dict[str, int] = {}
    names = [f.name for f in fields(HostPlacement)]
    for part in filter(None, text.replace(" ", ",").split(",")):
        name, equals, number = part.partition("=")
        count = _layer_count(number) if equals else _ALL
        if name not in names or name in counts or not count:
            raise InputError(f"on_host {text!r}: {_MUST}; got {part!r}")
        counts[name] = count
    return HostPlacement(**counts)


def _layer_count(text: str) -> int:
    """A number of layers; 0 where it is none."""
    return int(text) if text.isdecimal() and len(text) < len(str(_ALL)) else 0


def on_host(
    placement: HostPlacement, *, streams_weights: bool = False, begins_on_host: bool = False
) -> Transform:  # fmt: skip
    """A transform that runs launches on the host as `placement` says.

    begins_on_host   whether the embedding is where the first layer is, as in a pipeline of two GPUs
    streams_weights  whether the device runs the products of this pass all the same, with weights that it fetches over
                     the host link, as llama.cpp does for prompts

    Raises InputError if the model has no experts or no attention to place.
    """

    def transform(graph: Graph) -> Graph:
        for name, kind in (("experts", ExpertsLinear), ("attention", Attention)):
            if getattr(placement, name) and not any(isinstance(op, kind) for _, op in graph):
                raise InputError(f"on_host {str(placement)!r}: the model has no {name}; leave {name} out")
        blocks = tuple(part for block in graph.blocks for part in _split(block, placement))
        if streams_weights:
            return Graph(tuple(_streamed(block, placement) for block in blocks))
        placed = Graph(tuple(_placed(block, placement) for block in blocks))
        if not begins_on_host or not placement.layers:
            return _with_boundary(placed, placement, ("to", "from"))
        return _with_boundary(_beginning_on_host(placed), placement, ("from",))

    return transform


def _split(block: Block, placement: HostPlacement) -> Iterator[Block]:
    """Yields the parts of a block whose layers are placed alike."""

    def placed_parts(layer: int) -> tuple[bool, ...]:
        return tuple(layer < count for count in (placement.layers, placement.experts, placement.attention))

    parts = [tuple(layers) for _, layers in groupby(block.layers, placed_parts)] if block.main else []
    if len(parts) < 2:
        yield block
        return
    for layers in parts:
        yield replace(block, name=f"{block.name} from {layers[0]}", layers=layers)


def _placed(block: Block, placement: HostPlacement) -> Block:
    """The block with launches of the host, and transfers before and after those within it."""
    if not block.layers or not block.main:
        return block
    first = block.layers[0]
    if first < placement.layers:
        return block.map(_moved)
    chosen = _chosen(block, experts=first < placement.experts, attention=first < placement.attention)
    return replace(block, operators=tuple(_crossing(block, chosen))) if chosen else block


def _streamed(block: Block, placement: HostPlacement) -> Block:
    """The block with products on the device, whose weights it fetches, and attention on the host."""
    if not block.layers or not block.main:
        return block
    first = block.layers[0]
    is_whole = first < placement.layers
    chosen = _chosen(block, experts=False, attention=is_whole or first < placement.attention)
    experts = _chosen(block, experts=first < placement.experts, attention=False)
    block = block.map(lambda op: _fetching(op) if op.name not in chosen and (is_whole or op.name in experts) else op)
    return replace(block, operators=tuple(_crossing(block, chosen))) if chosen else block


def _fetching(op: Operator) -> Operator:
    """The operator with weights in host memory, which it fetches."""
    size = total(w.nbytes for w in op.weights)
    stored = op.with_weights(lambda w: replace(w, offloaded=1.0))
    return replace(stored, transfers=((link(HOST), size),)) if size else op


def _chosen(block: Block, *, experts: bool, attention: bool) -> frozenset[str]:
    """Names of the operators of a block that run on the host."""
    kinds = (*((ExpertsLinear, Permute) if experts else ()), *((Attention,) if attention else ()))
    names = {op.name for op in block.operators if isinstance(op, kinds)}
    host_tensors = {t.name for op in block.operators if op.name in names for t in op.outputs}
    for op in block.operators:  # what runs between them, on their results alone
        if op.inputs and not op.weights and all(t.name in host_tensors for t in op.inputs):
            names.add(op.name)
            host_tensors |= {t.name for t in op.outputs}
    return frozenset(names)


def _crossing(block: Block, chosen: frozenset[str]) -> Iterator[Operator]:
    """Yields the operators with transfers of what one side reads and the other wrote."""
    sides: dict[str, bool] = {}  # whether a tensor was written on the host
    crossed: set[tuple[str, bool]] = set()
    for op in block.operators:
        op_on_host = op.name in chosen
        arriving = []
        for t in op.inputs:
            is_cache = t.role in RETAINED_ROLES
            written_on_host = sides.get(t.name, is_cache and op_on_host)
            if written_on_host != op_on_host and (t.name, op_on_host) not in crossed:
                crossed.add((t.name, op_on_host))
                arriving.append(t)
        size = _crossing_bytes(op, arriving)
        if size:
            yield _transfer(f"{op.name}_{'to' if op_on_host else 'from'}_host", size, outward=op_on_host)
        yield _moved(op) if op_on_host else op
        sides |= {t.name: op_on_host for t in op.outputs}


def _crossing_bytes(op: Operator, tensors: list[Tensor]) -> Form:
    """Bytes that cross the link for the inputs `tensors`. [B]

    Rows of a cache are those of this pass. Experts read a token once, whose result can be summed before it returns.
    """
    size = Form()
    for t in tensors:
        if isinstance(op, Combine):
            size = op.result.nbytes if t.role is Role.ACTIVATION else size
        else:
            size = size + (replace(t, rows=op.result.rows) if t.role in RETAINED_ROLES else t).nbytes
    return size


def _moved(op: Operator) -> Operator:
    """The operator on the host, with its weights and cache in host memory."""

    def weight(w: Weight) -> Weight:
        return replace(w, offloaded=1.0)

    def tensor(t: Tensor) -> Tensor:
        return replace(t, offloaded=1.0) if t.role in RETAINED_ROLES else t

    return replace(op.with_weights(weight).with_tensors(tensor), name=f"{op.name}@{HOST}", transfers=(), on_host=True)


def _transfer(name: str, size: Form, *, outward: bool) -> Operator:
    resource: Resource = link(_OUTWARD if outward else HOST)
    return Transfer(name=name, inputs=(), outputs=(), transfers=((resource, size),), on_host=True)


def _beginning_on_host(graph: Graph) -> Graph:
    """The graph with all blocks before its first layer on the host, and copies of weights tied to theirs."""
    first = next(index for index, block in enumerate(graph.blocks) if block.layers and block.main)

    def untied(op: Operator) -> Operator:
        return op.with_weights(lambda w: replace(w, tied=False) if w.name == "lm_head.weight" else w)

    return Graph((
        *(block.map(_moved) for block in graph.blocks[:first]), graph.blocks[first],
        *(block if block.layers else block.map(untied) for block in graph.blocks[first + 1 :]),
    ))  # fmt: skip


def _with_boundary(graph: Graph, placement: HostPlacement, ways: tuple[str, ...]) -> Graph:
    """The graph with the hidden states that cross the link: "to" the host before its first layer, and "from" it after
    its last one.
    """
    on_host = [block for block in graph.blocks if block.layers and block.main and block.layers[0] < placement.layers]
    if not on_host:
        return graph
    hidden = next(t for t in on_host[0].operators[0].inputs if t.role is Role.ACTIVATION)
    crossings = tuple(
        _transfer(f"hidden_{way}_host", hidden.nbytes, outward=way == "to") for way in ways
    )  # fmt: skip
    once = next(block for block in graph.blocks if not block.layers and block.main)
    return graph.map_blocks(
        lambda block: replace(block, operators=(*block.operators, *crossings)) if block is once else block
    )
