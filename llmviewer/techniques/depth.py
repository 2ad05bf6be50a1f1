"""Techniques that skip layers for some tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import floor

from ..architectures.blocks.parts import HIDDEN, Parts
from ..devices.hardware import Hardware
from ..forms import ONE, WHOLE_PASS, Stream, pass_fraction, replicas, sampled, thinned
from ..graph import Block, Graph
from ..operators.base import RETAINED_ROLES, Operator, Tensor, Weight
from ..operators.images import Place
from ..operators.linear import LMHead
from ..precision import HALF, resolved
from ..records import frozen
from . import technique
from ._layers import shares_left, split_layers
from ._linears import with_tied_weights
from ._parameters import Condition, parameter
from ._technique import Kind, Requirement, SettingView, Technique
from .drafts import auxiliary_model

_ALL = replicas(1)  # the whole pass, in a block that only some tokens run


@technique("early-exit")
@frozen(kw_only=True)
class EarlyExit(Technique):
    """Early exit: in decode, tokens of sufficient confidence leave after the fraction `exit` of the layers.

    Effect: in decode, layers beyond the exit run for the fraction `stay` of the tokens (by=token), or for all tokens in
    that fraction of the steps (by=batch). Keys and values of tokens that exit are filled in from the hidden state at
    the exit. The head also runs at the exit, to measure confidence; with `jump`, after a linear that stands for the
    layers beyond.
    Formula: OPs beyond the exit = stay x all. By token, those layers are launched and their weights read with
    probability 1 - (1 - stay)^tokens, that any token of the batch stays. A jump has d^2 parameters.
    Source: arXiv:2207.07061, sections 3.2 and 3.4 (by token); arXiv:2307.02628 (by batch); jump: arXiv:2303.09435.
    Use when: sequences run alone; by batch also in large batches, all of whose tokens are made to exit together.
    Limits: no gain for the prefill, nor by token for large batches, in which some token always stays. Weights and cache
    take as much memory as before.
    """

    kind = Kind.DECODING
    requires = Requirement.NEW_WEIGHTS
    separate_decode_graph = True
    order = -3  # before techniques that change layers, so that they change both parts

    exit: float = parameter("fraction of the layers before the exit", 0.5, least=0, most=1, open=True)
    stay: float = parameter("fraction of the tokens that continue after the exit", 0.3, least=0.001, most=1)
    by: str = parameter("whether tokens exit one by one or with their batch", "token", choices=("token", "batch"))
    sure: str = parameter("what measures confidence", "head", choices=("head", "nothing"))
    jump: bool = parameter(
        "whether a linear takes the hidden state to that of the last layer",
        default=False, condition=Condition("sure", ("head",)),
    )  # fmt: skip

    def lowered(self, graph: Graph, hardware: Hardware, *, decode: bool) -> Graph:  # noqa: ARG002
        if not decode:
            return graph
        last = floor(self.exit * graph.layers)
        blocks = (
            piece for block in graph.blocks for piece in split_layers(block, lambda layer: layer >= last, self._beyond)
        )
        return Graph((*blocks, *(self._asking(graph) if self.sure == "head" else ())))

    def _beyond(self, block: Block) -> Block:
        part = part_of_tokens(block, sampled(self.stay) if self.by == "token" else pass_fraction(self.stay))
        return replace(part, name=f"{block.name}.beyond")

    def _asking(self, graph: Graph) -> Iterator[Block]:
        """The head at the exit, with the weights of the final head."""
        if self.jump:
            yield _jump_block(graph)
        for block in graph.blocks:
            if any(isinstance(op, LMHead) for op in block.operators):
                yield replace(block.map(with_tied_weights), name="exit")

    def auxiliary_graphs(self, setting: SettingView) -> tuple[Graph, ...]:
        if not self.jump or self.sure != "head":
            return ()
        model = setting.model
        return (setting.helper(auxiliary_model(model, (_jump_block(model.graph),)), "W16A16").decode_graph,)

    def incompatibility(self, setting: SettingView, others: Sequence[Technique]) -> str:  # noqa: ARG002
        if setting.model.graph.layers < 2 or floor(self.exit * setting.model.graph.layers) < 1:
            return f"exit must leave a layer before it; got exit={self.exit:g} of {setting.model.graph.layers} layers"
        if self.jump and setting.layout.pp > 1:
            return "jump is not supported in a pipeline; leave out jump or pp"
        return partial_layers_reason(setting)


@technique("halting")
@frozen(kw_only=True)
class Halting(Technique):
    """Adaptive computation time (Universal Transformer): a token stops at the layer at which it has computed enough.

    Effect: after each layer the same fraction of the tokens stops, such that a token runs the fraction `layers` of the
    layers on average. Keys and values of tokens that stopped are computed from the state that they stopped with. A
    layer is launched, and its weights read, with the probability that any token of the pass is left. With `shared`, all
    layers are one, whose weights are held once.
    Formula: tokens left after n layers = stay^n; their mean over layers is `layers`.
    Source: arXiv:1603.08983 (ACT); arXiv:1807.03819, section 2.2 (Universal Transformer).
    Use when: easy tokens need few layers, and sequences run alone or prompts are bound by the compute units.
    Limits: the model must be trained with it. No gain in weights read by large batches.
    Not modeled: the halting unit, a linear of d x 1.
    """

    kind = Kind.DECODING
    requires = Requirement.NEW_WEIGHTS
    separate_decode_graph = True
    order = -3  # before techniques that change layers, so that they change all parts

    layers: float = parameter("mean fraction of the layers that a token runs", 0.5, least=0, most=1, open=True)
    shared: bool = parameter("whether all layers are one", default=False)

    def network(self, graph: Graph, *, decode: bool) -> Graph:  # noqa: ARG002
        if not self.shared:
            return graph
        first = next(block.layers[0] for block in graph.blocks if block.main and block.layers)
        pieces = (
            piece
            for block in graph.blocks
            for piece in split_layers(block, lambda n: n != first, lambda part: part.map(with_tied_weights))
        )
        return Graph(tuple(pieces))

    def lowered(self, graph: Graph, hardware: Hardware, *, decode: bool) -> Graph:  # noqa: ARG002
        left = shares_left(self.layers, 1, graph.layers)

        def pieces() -> Iterator[Block]:
            for block in graph.blocks:
                if not (block.main and block.layers):
                    yield block
                    continue
                for layer in block.layers:
                    part = replace(block, layers=(layer,))
                    yield part_of_tokens(part, sampled(left[layer])) if left[layer] < 1 else part

        return Graph(tuple(pieces()))

    def incompatibility(self, setting: SettingView, others: Sequence[Technique]) -> str:
        other = next((one for one in others if isinstance(one, EarlyExit | MixtureOfDepths)), None)
        if other:
            return f"{other.name} also lets tokens skip layers; give one of the two"
        least = 1 / setting.model.graph.layers
        if self.layers <= least:
            return f"layers must be above {least:.3g}, the first layer; got {self.layers:g}"
        return partial_layers_reason(setting)


@technique("mixture-of-depths")
@frozen(kw_only=True)
class MixtureOfDepths(Technique):
    """Mixture-of-Depths: some layers process only the fraction `share` of the tokens, chosen by a router.

    Effect: every `every`-th layer has the OPs, activations and cache of `share` of the tokens, which attend only to
    each other. A step launches such a layer, and reads its weights, with the probability that any of its tokens is
    chosen.
    Formula: linears x share, attention x share^2, cache x share; launches and weights x (1 - (1 - share)^tokens) per
    pass.
    Source: arXiv:2404.02258, section 3.
    Use when: single sequences can skip such layers entirely, large batches are bound by OPs, or long contexts by the
    cache.
    Limits: the model must be trained with it.
    Not modeled: the router, a linear of d x 1.
    """

    kind = Kind.DECODING
    requires = Requirement.NEW_WEIGHTS

    share: float = parameter("fraction of the tokens that such a layer processes", 0.125, least=0.001, most=1)
    every: int = parameter("period of such layers: 2 is every second layer", 2, least=1, most=1024)

    def lowered(self, graph: Graph, hardware: Hardware, *, decode: bool) -> Graph:  # noqa: ARG002
        def routed(block: Block) -> Block:
            return replace(block, name=f"{block.name}.routed", stream=thinned(self.share))

        def is_routed(layer: int) -> bool:
            return layer % self.every == self.every - 1

        return Graph(tuple(piece for block in graph.blocks for piece in split_layers(block, is_routed, routed)))

    def incompatibility(self, setting: SettingView, others: Sequence[Technique]) -> str:
        other = next((other for other in others if isinstance(other, EarlyExit)), None)
        if other:
            return f"{other.name} also lets tokens skip layers; give one of the two"
        if self.every > setting.model.graph.layers:
            return f"every must be at most the {setting.model.graph.layers} layers; got {self.every}"
        return partial_layers_reason(setting)


def part_of_tokens(block: Block, stream: Stream) -> Block:
    """Layers that only the tokens of `stream` run, while keys and values are computed for all."""
    filling = _kv_operators(block)
    operators = tuple(
        _for_all_tokens(op) if op in filling else op.with_tensors(_with_full_cache) for op in block.operators
    )
    return replace(block, operators=operators, stream=stream)


def _jump_block(graph: Graph) -> Block:
    """A linear from the hidden state at an exit to that of the last layer."""
    hidden = next(block.result for block in graph.blocks if block.main and block.layers)
    parts = Parts(format=resolved(HALF, hidden.format))
    x = replace(hidden, name=HIDDEN)
    return Block(name="jump", operators=(parts.linear("jump", x, x),), input=HIDDEN, output=HIDDEN)


def partial_layers_reason(setting: SettingView) -> str:
    """The reason why layers cannot run for a part of the tokens; "" if all of them process whole passes."""
    for block in setting.model.graph.blocks:
        operators = (op for op in block.operators if not isinstance(op, Place))  # images are placed only in the prefill
        rows = [t.rows for op in operators for t in (*op.inputs, *op.outputs)]
        parts = {block.stream, *(feature.stream for form in rows for feature, _ in form.terms)}
        if block.main and block.layers and parts != {WHOLE_PASS}:
            return f"layers of {setting.model.name} already process only a part of the tokens"
    return ""


def _kv_operators(block: Block) -> tuple[Operator, ...]:
    """The operators that compute keys and values, without those that only queries need."""
    needed_tensors = {t.name for op in block.operators for t in op.outputs if t.role in RETAINED_ROLES}
    operators: list[Operator] = []
    for op in reversed(block.operators):
        if any(t.name in needed_tensors for t in op.outputs) and not op.name.startswith("q_"):
            operators.append(op)
            needed_tensors |= {t.name for t in op.inputs if t.role not in RETAINED_ROLES}
    return tuple(operators)


def _for_all_tokens(op: Operator) -> Operator:
    """The operator `op` applied to all tokens of the pass."""

    def weight(w: Weight) -> Weight:
        rows = w.shape[0] * ONE if w.rows is None else w.rows
        return replace(w, rows=rows.on(_ALL))

    def tensor(t: Tensor) -> Tensor:
        return replace(_with_full_cache(t), rows=t.rows.on(_ALL))

    return op.with_tensors(tensor).with_weights(weight)


def _with_full_cache(t: Tensor) -> Tensor:
    """The tensor `t` with the cache or state of all tokens."""
    return (
        replace(t, retained_rows=(t.rows if t.retained_rows is None else t.retained_rows).on(_ALL))
        if t.role in RETAINED_ROLES
        else t
    )
