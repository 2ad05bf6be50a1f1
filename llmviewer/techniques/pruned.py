"""Structured pruning: fewer heads, neurons, experts and layers, less hidden width."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from ..forms import Feature, Form
from ..graph import Block, Graph
from ..operators.attention import QK, SV, Attention, Heads, Softmax
from ..operators.base import Operator, Tensor, Weight
from ..operators.elementwise import Activation, Add, Elementwise, Norm, Rope, Route
from ..operators.embedding import Embedding
from ..operators.linear import ChosenLinear, ExpertsLinear, Linear, Router
from ..operators.routing import UNGROUPED
from ..records import frozen
from . import technique
from ._layers import by_layer_problem, change_by_layer, parse_by_layer, split_layers
from ._linears import is_main_layer, is_plain_linear
from ._parameters import parameter
from ._technique import Kind, Requirement, SettingView, Technique

_NARROWABLE: Final = (Norm, Add, Linear, Embedding)  # operators on the hidden state that can be narrowed


@technique("structured-pruning")
@frozen(kw_only=True)
class StructuredPruning(Technique):
    """Structured pruning (LLM-Pruner, Sheared LLaMA, SEER-MoE): removes heads, neurons, experts, layers, hidden width.

    Effect: a smaller network, without what the removed parts read, compute, hold and cache.
    Formula: projections, cache and pairs x heads; feed-forward networks x ffn; all of a layer x layers; one side of
    every matrix, embedding and head x hidden. Query heads go together with the keys and values that they share. Of
    experts as many are chosen as before, at most all that stay. Layers at either end can keep all heads, neurons and
    experts, as with LLM-Pruner (LLaMA 7B to 5.42 billion parameters: heads=0.75,ffn=0.75,first=4,last=2). With `mix`,
    each layer keeps its own fraction of the neurons, as MatFormer's nested networks can be mixed and matched.
    Source: arXiv:2305.11627; arXiv:2310.06694; arXiv:2401.15024; experts: arXiv:2404.05089; mixed
    layers: arXiv:2310.07707.
    Use when: prefill, decode and memory should all shrink, on any device.
    Limits: neurons of experts, and attention with latents or states, are not pruned.
    """

    kind = Kind.COMPRESSION
    requires = Requirement.NEW_WEIGHTS
    order = -6  # before all others, which then change the pruned network

    heads: float = parameter("fraction of the attention heads that stays", 1.0, least=0, most=1)
    ffn: float = parameter("fraction of the feed-forward neurons that stays", 1.0, least=0, most=1)
    mix: str = parameter("fraction of the neurons that stays in consecutive layers, such as 16x0.5+16x1", "")
    experts: float = parameter("fraction of the routed experts that stays", 1.0, least=0, most=1)
    layers: float = parameter("fraction of the layers that stays", 1.0, least=0, most=1)
    hidden: float = parameter("fraction of the hidden width that stays", 1.0, least=0, most=1)
    first: int = parameter("layers at the start that keep all heads, neurons and experts", 0, least=0)
    last: int = parameter("layers at the end that keep all heads, neurons and experts", 0, least=0)

    def network(self, graph: Graph, *, decode: bool) -> Graph:  # noqa: ARG002
        num_layers = max(round(self.layers * graph.layers), 1)
        blocks = (
            replace(block, layers=tuple(n for n in block.layers if n < num_layers)) if is_main_layer(block) else block
            for block in graph.blocks
        )
        remaining = (new for new, old in zip(blocks, graph.blocks, strict=True) if new.layers or not old.layers)
        pruned = range(self.first, num_layers - self.last)
        parts = [part for block in remaining for part in split_layers(block, pruned.__contains__, self.thinner)]
        mixed = change_by_layer(
            parts,
            self.mix,
            lambda ffn: replace(self, ffn=ffn, heads=1.0, experts=1.0, mix="").thinner,
            unchanged=1.0,
        )
        return Graph(tuple(_narrower(part, self.hidden) if part.main and self.hidden < 1 else part for part in mixed))

    def thinner(self, block: Block) -> Block:
        """The layers with fewer heads, neurons and experts."""
        if not is_main_layer(block):
            return block
        fractions = {**self._heads(block), **self.neurons(block)}
        resized = block.map(lambda op: _resized(op, fractions, self.heads)) if fractions else block
        return _with_fewer_experts(resized, self.experts) if self.experts < 1 else resized

    def neurons(self, block: Block) -> dict[str, float]:
        """Fraction of their width that tensors inside feed-forward networks keep, by name."""
        acts = (op for op in block.operators if isinstance(op, Activation)) if self.ffn < 1 else ()
        fractions: dict[str, float] = {}
        for act in acts:
            names = {t.name for t in (*act.inputs, *act.outputs)}
            around = [op for op in block.operators if op is not act and names & {t.name for t in _tensors(op)}]
            if all(is_plain_linear(op) for op in around):
                width = act.result.width
                fractions |= dict.fromkeys(names, max(round(self.ffn * width), 1) / width)
        return fractions

    def _heads(self, block: Block) -> dict[str, float]:
        """Fraction of their width that tensors of attention keep, by name."""
        if self.heads == 1 or not _has_prunable_heads(block):
            return {}
        fractions: dict[str, float] = {}
        for op in block.operators:
            if isinstance(op, QK | SV):
                queries, keys = _head_fractions(op.heads, self.heads)
                asking = op.inputs[:1] if isinstance(op, QK) else op.outputs
                fractions |= dict.fromkeys((t.name for t in (*asking, *op.outputs)), queries)
                fractions |= dict.fromkeys((t.name for t in op.inputs[1:]), keys)
            if isinstance(op, Softmax):
                fractions |= dict.fromkeys((t.name for t in _tensors(op)), _head_fractions(op.heads, self.heads)[0])
        for op in reversed(block.operators):  # operators before the attention
            if isinstance(op, Norm | Rope):
                pairs = zip(op.inputs, op.outputs, strict=True)
                fractions |= {before.name: fractions[after.name] for before, after in pairs if after.name in fractions}
        for op in block.operators:  # operators after it
            if isinstance(op, Elementwise) and not isinstance(op, Norm | Activation):
                input_fractions = {fractions[t.name] for t in op.inputs if t.name in fractions}
                fractions |= (
                    dict.fromkeys((t.name for t in _tensors(op)), input_fractions.pop())
                    if len(input_fractions) == 1
                    else {}
                )
        return fractions

    def _fractions_problem(self, layers: int) -> str:
        """The reason why fractions do not fit a model of so many layers; "" if they do."""
        left = (self.heads, self.ffn, self.experts, self.layers, self.hidden)
        mixed = parse_by_layer(self.mix)
        if self.mix and (problem := by_layer_problem(self.mix, layers)):
            return f"mix {problem}"
        if self.mix and (self.ffn < 1 or self.layers < 1 or 0.0 in mixed):
            return "mix has the neurons of all layers, above 0; drop ffn and layers"
        if not all(left) or min((*left, *mixed)) == 1:
            return "give heads, ffn, experts, layers or hidden below 1" + ", and none as 0" * (not all(left))
        return self._layers_problem(layers)

    def _layers_problem(self, layers: int) -> str:
        """The reason why no layer is removed, or none left to prune; "" if neither is so."""
        left = round(self.layers * layers)
        if self.layers < 1 and left == layers:
            return f"layers must leave out one of {layers}; got {self.layers:g}"
        if (self.first or self.last) and min(self.heads, self.ffn, self.experts) == 1:
            return "first and last keep heads, neurons and experts, but heads, ffn and experts are 1; leave both out"
        return f"first and last leave none of the {left} layers to prune" if self.first + self.last >= left else ""

    def incompatibility(self, setting: SettingView, others: Sequence[Technique]) -> str:  # noqa: ARG002
        graph = setting.model.graph
        if problem := self._fractions_problem(graph.layers):
            return problem
        between = {op.name: op for block in graph.blocks if block.main for op in _hidden_operators(block)}
        strange = [
            name for name, op in between.items() if not isinstance(op, _NARROWABLE) or isinstance(op, ChosenLinear)
        ]
        if self.hidden < 1 and strange:
            return f"hidden cannot narrow {strange[0]} of {setting.model.name}; drop hidden"
        if self.heads < 1 and not any(is_main_layer(block) and _has_prunable_heads(block) for block in graph.blocks):
            return f"{setting.model.name} has no attention whose heads can be pruned; drop heads"
        heads = {op.heads for block, op in graph if is_main_layer(block) and isinstance(op, QK)}
        if self.heads < 1 and all(_head_fractions(one, self.heads)[0] == 1 for one in heads):
            return f"heads must leave out a head of {setting.model.name}; got {self.heads:g}"
        narrower = replace(self, ffn=min((self.ffn, *parse_by_layer(self.mix))), mix="")
        if narrower.ffn < 1 and not any(is_main_layer(block) and narrower.neurons(block) for block in graph.blocks):
            return f"{setting.model.name} has no dense feed-forward network; drop ffn"
        routes = [op for _, op in graph if isinstance(op, Route)] if self.experts < 1 else []
        grouped = any(op.groups != UNGROUPED for op in routes)
        reason = "chooses groups of experts first" if grouped else "has no routed experts" if not routes else ""
        return f"{setting.model.name} {reason}; drop experts" if reason and self.experts < 1 else ""


def _narrower(block: Block, hidden: float) -> Block:
    """The block with that fraction of the hidden width."""
    fractions = dict.fromkeys(_hidden_tensors(block), hidden)
    return block.map(lambda op: _resized(op, fractions, 1.0))


def _with_fewer_experts(block: Block, fraction: float) -> Block:
    """The block with that fraction of its routed experts, from which each token chooses as many as before."""
    experts = [op for op in block.operators if isinstance(op, ExpertsLinear)]
    if not experts:
        return block
    count = experts[0].weight.shape[0]
    chosen = round(experts[0].weight.active * count)
    left = max(round(fraction * count), chosen)
    scores = {t.name for op in block.operators if isinstance(op, Router) for t in op.outputs}

    def weight(w: Weight) -> Weight:
        if w.shape[0] != count:
            return w
        rows = w.rows and Form(tuple((_among(feature, left), number) for feature, number in w.rows.terms))
        return replace(w, shape=(left, *w.shape[1:]), rows=rows, active=min(w.active * count / left, 1.0))

    def tensor(t: Tensor) -> Tensor:
        return replace(t, width=left) if t.name in scores else t

    def operator(op: Operator) -> Operator:
        return op.with_weights(weight) if isinstance(op, ExpertsLinear | Router) else op

    return block.map(lambda op: operator(op).with_tensors(tensor))


def _among(feature: Feature, experts: int) -> Feature:
    """The feature with so many experts to choose from."""
    if feature.name != "distinct_experts":
        return feature
    _, *others = feature.arguments
    return feature._replace(arguments=(experts, *others))


def _hidden_tensors(block: Block) -> set[str]:
    """Names of the tensors of the hidden width: embeddings, norms and additions of the hidden state."""
    names = {block.input, block.output} - {"logits"}
    before: set[str] = set()
    while names != before:
        before = set(names)
        for op in block.operators:
            operator_names = {t.name for t in _tensors(op)}
            keeps_width = isinstance(op, Add) or (isinstance(op, Norm) and not op.group)
            if isinstance(op, Embedding) or (keeps_width and operator_names & names):
                names |= operator_names
    return names


def _hidden_operators(block: Block) -> Iterator[Operator]:
    """The operators that read or write tensors of the hidden width."""
    stream = _hidden_tensors(block)
    return (op for op in block.operators if stream & {t.name for t in _tensors(op)})


def _has_prunable_heads(block: Block) -> bool:
    """Whether attention heads can be pruned, as in plain attention with one key tensor."""
    attention = [op for op in block.operators if isinstance(op, Attention)]
    return bool(attention) and all(
        isinstance(op, QK | Softmax | SV) and (not isinstance(op, QK) or len(op.inputs) == 2) for op in attention
    )


def _head_fractions(heads: Heads, target: float) -> tuple[float, float]:
    """Fractions of query and key heads that stay. Whole groups go, or only query heads if all share a key."""
    if heads.num_kv_heads == 1:
        return max(round(target * heads.num_heads), 1) / heads.num_heads, 1.0
    fraction = max(round(target * heads.num_kv_heads), 1) / heads.num_kv_heads
    return fraction, fraction


def _tensors(op: Operator) -> tuple[Tensor, ...]:
    return (*op.inputs, *op.outputs)


def _resized(op: Operator, fractions: dict[str, float], head_fraction: float) -> Operator:
    """`op` with widths scaled by `fractions`, and weights and heads to match."""
    new = op.with_tensors(lambda t: replace(t, width=max(round(t.width * fractions.get(t.name, 1.0)), 1)))
    if all(t.name not in fractions for t in _tensors(op)):
        return op
    if isinstance(new, Linear):
        rows = sum(t.width for t in new.outputs) / sum(t.width for t in op.outputs)
        columns = new.inputs[0].width / op.inputs[0].width

        def weight(w: Weight) -> Weight:
            return replace(w, shape=(round(w.shape[0] * rows), *(round(n * columns) for n in w.shape[1:])))

        return new.with_weights(weight)
    if isinstance(new, Embedding):
        return new.with_weights(lambda w: replace(w, shape=(w.shape[0], new.result.width)))
    if isinstance(new, Norm) and not new.group:
        return new.with_weights(lambda w: replace(w, shape=(new.inputs[0].width,)))
    if isinstance(new, QK | Softmax | SV | Rope):
        queries, keys = _head_fractions(new.heads, head_fraction)
        heads = replace(
            new.heads,
            num_heads=round(queries * new.heads.num_heads),
            num_kv_heads=round(keys * new.heads.num_kv_heads),
        )
        return replace(new, heads=heads)
    return new
