"""Tokens that do not go through all layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import floor

from ..devices.hardware import Hardware
from ..forms import ONE, WHOLE, replicas, sampled, thinned, together
from ..graph import Block, Graph
from ..operators.base import KEPT, Operator, Tensor, Weight
from ..operators.linear import LMHead
from ..operators.pictures import Place
from . import technique
from ._linears import tied
from ._parameters import parameter
from ._technique import Kind, Machine, Technique, Touches

_ALL = replicas(1)  # the whole pass, in a block that some tokens alone run


@technique("early-exit")
@dataclass(frozen=True, kw_only=True)
class EarlyExit(Technique):
    """Early exit: a decode step ends after `exit` of the layers for tokens that are sure enough.

    Changes: in decode, layers beyond the exit run for the part `stay` of the tokens (by=token), or in that part of the
    steps for all of them (by=batch); keys and values of tokens that leave are filled in from the state at the exit; the
    head runs at the exit too, to say how sure a token is.
    Formula: OPs of the layers beyond = stay x all; by token they are launched, and their weights read, with the chance
    1 - (1 - stay)^tokens that any stays, so that the slowest of a batch decides.
    Source: arXiv:2207.07061, sections 3.2 and 3.4 (by token); arXiv:2307.02628 (by batch).
    Helps: single sequences; by batch also large ones, where all are made to leave at once.
    Cannot: help the prefill, or large batches by token: some token always stays. Weights and cache are held as before.
    """

    kind = Kind.DECODING
    touches = Touches.MODEL
    decode_alone = True
    order = -3  # what layers do is changed where all tokens pass and where some do

    exit: float = parameter("part of the layers before the exit", 0.5, least=0, most=1, open=True)
    stay: float = parameter("part of the tokens that goes on", 0.3, least=0.001, most=1)
    by: str = parameter("who leaves", "token", choices=("token", "batch"))
    sure: str = parameter("what tells how sure a token is", "head", choices=("head", "nothing"))

    def lowered(self, graph: Graph, hardware: Hardware, *, decode: bool) -> Graph:  # noqa: ARG002
        if not decode:
            return graph
        last = floor(self.exit * graph.layers)
        blocks = (piece for block in graph.blocks for piece in cut(block, lambda layer: layer >= last, self._beyond))
        return Graph((*blocks, *(self._asking(graph) if self.sure == "head" else ())))

    def _beyond(self, block: Block) -> Block:
        filling = _filling(block)
        operators = tuple(_always(op) if op in filling else op.with_tensors(_held) for op in block.operators)
        stream = sampled(self.stay) if self.by == "token" else together(self.stay)
        return replace(block, name=f"{block.name}.beyond", operators=operators, stream=stream)

    def _asking(self, graph: Graph) -> Iterator[Block]:
        """The head at the exit, with the weights of the one at the end."""
        for block in graph.blocks:
            if any(isinstance(op, LMHead) for op in block.operators):
                yield replace(block.map(tied), name="exit")

    def refuses(self, machine: Machine, others: Sequence[Technique]) -> str:  # noqa: ARG002
        if machine.model.graph.layers < 2 or floor(self.exit * machine.model.graph.layers) < 1:
            return f"exit={self.exit:g} of the {machine.model.graph.layers} layers leaves none before it"
        return _in_parts(machine)


@technique("mixture-of-depths")
@dataclass(frozen=True, kw_only=True)
class MixtureOfDepths(Technique):
    """Mixture-of-Depths: some layers take only the part `share` of the tokens, which a router chooses.

    Changes: in every `every`-th layer OPs, activations and cache are those of `share` of the tokens, which see none but
    each other; a step launches the layer, and reads its weights, with the chance that any of its tokens is chosen.
    Formula: linears x share, attention x share^2, cache x share; launches and weights x (1 - (1 - share)^tokens) a
    pass.
    Source: arXiv:2404.02258, section 3.
    Helps: single sequences, which skip such layers whole; prefill and large batches through OPs; long contexts through
    the cache.
    Cannot: be switched on in a model that was not trained so. The router, one linear of d x 1, is left out.
    """

    kind = Kind.DECODING
    touches = Touches.MODEL

    share: float = parameter("part of the tokens that such a layer takes", 0.125, least=0.001, most=1)
    every: int = parameter("one of so many layers takes some tokens alone", 2, least=1, most=1024)

    def lowered(self, graph: Graph, hardware: Hardware, *, decode: bool) -> Graph:  # noqa: ARG002
        def routed(block: Block) -> Block:
            return replace(block, name=f"{block.name}.routed", stream=thinned(self.share))

        return Graph(tuple(
            piece for block in graph.blocks for piece in cut(block, lambda n: n % self.every == self.every - 1, routed)
        ))  # fmt: skip

    def refuses(self, machine: Machine, others: Sequence[Technique]) -> str:
        other = next((other for other in others if isinstance(other, EarlyExit)), None)
        if other:
            return f"{other.name} says which tokens skip layers too"
        return _in_parts(machine)


def _in_parts(machine: Machine) -> str:
    """What stands against giving layers some tokens alone: layers that do not have all of a pass as it is."""
    for block in machine.model.graph.blocks:
        own = (op for op in block.operators if not isinstance(op, Place))  # pictures are placed in a prefill alone
        rows = [t.rows for op in own for t in (*op.inputs, *op.outputs)]
        parts = {block.stream, *(feature.stream for form in rows for feature, _ in form.terms)}
        if block.main and block.layers and parts != {WHOLE}:
            return f"layers of {machine.model.name} see a part of a pass as it is"
    return ""


def cut(block: Block, chosen: Callable[[int], bool], change: Callable[[Block], Block]) -> Iterator[Block]:
    """A block of layers in those that are not `chosen` and, changed, those that are; others as they are."""
    layers = block.layers if block.main else ()
    inside, outside = (tuple(n for n in layers if chosen(n) is which) for which in (True, False))
    if outside or not inside:
        yield replace(block, layers=outside) if layers else block
    if inside:
        yield change(replace(block, layers=inside))


def _filling(block: Block) -> tuple[Operator, ...]:
    """The operators that make keys and values, but for what is made of queries alone."""
    wanted = {t.name for op in block.operators for t in op.outputs if t.role in KEPT}
    found: list[Operator] = []
    for op in reversed(block.operators):
        if any(t.name in wanted for t in op.outputs) and not op.name.startswith("q_"):
            found.append(op)
            wanted |= {t.name for t in op.inputs if t.role not in KEPT}
    return tuple(found)


def _always(op: Operator) -> Operator:
    """For all tokens of the pass."""

    def weight(w: Weight) -> Weight:
        rows = w.shape[0] * ONE if w.rows is None else w.rows
        return replace(w, rows=rows.on(_ALL))

    def tensor(t: Tensor) -> Tensor:
        return replace(_held(t), rows=t.rows.on(_ALL))

    return op.with_tensors(tensor).with_weights(weight)


def _held(t: Tensor) -> Tensor:
    """What stays is of all tokens."""
    return replace(t, held=(t.rows if t.held is None else t.held).on(_ALL)) if t.role in KEPT else t
