"""The graph of one device under parallelism: sharded operators, pipeline stages, and collectives between ranks."""

from __future__ import annotations

from dataclasses import replace

from ..graph import Block, Graph, Transform
from ..operators.base import Weight
from ..operators.elementwise import Permute, Route
from ..operators.linear import ExpertsLinear
from ..operators.routing import UNGROUPED, ExpertChoice
from ._placement import BlockSharding
from .context import shared_context
from .experts import ExpertPlaces
from .layout import Network
from .pipeline import staged
from .sequences import shared_sequences


def parallel(network: Network, *, decode: bool) -> Transform:
    """The transform to the graph of one device of each pipeline stage, in a decode step or a prefill.

    It raises InputError, with degrees that are possible, if something cannot be divided evenly.
    """
    layout = network.layout

    def one(block: Block) -> Block:
        if block.stream.name == "images":  # engines replicate image encoders on all ranks
            return block
        placed = BlockSharding(block, network.group("tp"), expert_places(block, network)).placed()
        return shared_sequences(block, placed, network) if layout.batch_sharded_attention else placed

    def transform(graph: Graph) -> Graph:
        if layout.tp * layout.ep > 1:
            graph = graph.map_blocks(one)
        if layout.cp > 1:
            graph = shared_context(network.group("cp"), decode=decode)(graph)
        return staged(graph, layout.pp, network.group("pp")) if layout.pp > 1 else graph

    return transform


def expert_places(block: Block, network: Network) -> ExpertPlaces:
    """The placement of the experts of a block on ranks.

    Raises InputError if they cannot be divided evenly.
    """
    layout = network.layout
    stride = 1 if layout.ep <= layout.tp else layout.cp  # beyond tensor parallelism, data parallelism comes next
    places = ExpertPlaces(group=network.members("ep", layout.ep, stride), tensor=layout.tp)
    for op in block.operators:
        if isinstance(op, ExpertsLinear):
            choice = replace(_choice(block, op.weight), redundant=layout.redundant_experts)
            return replace(places, choice=choice).check()
    return places


def busiest(graph: Graph, network: Network) -> float:
    """The largest load of a rank over the mean of all ranks, in the most uneven block."""
    return max((expert_places(block, network).load for block in graph.blocks), default=1.0)


def _choice(block: Block, experts: Weight) -> ExpertChoice:
    """The choice of experts by tokens in a block."""
    number = experts.shape[0]
    groups = max((op.groups for op in block.operators if isinstance(op, Route)), default=UNGROUPED)
    chosen = round(experts.active * number)
    return ExpertChoice(experts=number, top_k=chosen, groups=groups, skew=_skew(block, experts))


def _skew(block: Block, experts: Weight) -> float:
    """The exponent by which popularity falls with rank; 0 if all experts have the same capacity for tokens."""
    gathered = (f for op in block.operators if isinstance(op, Permute) for f in op.outputs[0].rows.features())
    if any(f.name == "expert_rows" for f in gathered):
        return 0.0
    chosen = (f.arguments for f in experts.rows.features() if f.name == "distinct_experts") if experts.rows else ()
    return max((arguments[2] for arguments in chosen if len(arguments) > 2), default=0.0)
