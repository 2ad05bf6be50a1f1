"""Tokens and heads that are pruned from layer to layer, and tokens that skip attention."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import floor
from typing import ClassVar, Final

from ..architectures.blocks.parts import Parts
from ..architectures.blocks.recurrent import modal_conv
from ..devices.hardware import Hardware
from ..forms import ONE, SINGLE, Form, Stream, any_of, thinned
from ..graph import Block, Graph
from ..operators.attention import Attention
from ..operators.base import Operator, Tensor, Weight
from ..operators.elementwise import Add, Norm
from ..operators.linear import Linear
from ..operators.masks import Causal, DerivedMask
from ..records import frozen
from . import technique
from ._layers import shares_left
from ._linears import is_main_layer
from ._masks import causal_masks, replace_masks, replace_self_attention_mask
from ._parameters import parameter
from ._sparse import SparseAttention
from ._technique import Kind, Requirement, SettingView, Technique
from .depth import EarlyExit, Halting, MixtureOfDepths, partial_layers_reason
from .sparsity import sparse_linear
from .window import Windowed

_HEAD_LINEARS: Final = ("q_proj", "k_proj", "v_proj", "qkv_proj", "q_b_proj", "o_proj")
_WHOLE_FOR_TOKENS: Final = 0.15  # fraction of the layers, at the start, that keep all tokens
_WHOLE_FOR_HEADS: Final = 0.3
_STATES: Final = 8  # complex modes of a channel, 16 elements of state
_CHOICES: Final = 2  # scores of a token: to attend or not
_DEPTH_TECHNIQUES: Final = (EarlyExit, Halting, MixtureOfDepths)


@frozen
class PartOfMask(DerivedMask):
    """The fraction `share` of the pairs and keys of a mask."""

    share: float

    def amount(self, form: Form) -> Form:
        return self.share * form

    def __str__(self) -> str:
        return f"{self.share:.3g} of {self.mask or 'all'}"


class UncachedPartOfMask(PartOfMask):
    """The part of a mask of an encoder."""

    is_cached: ClassVar[bool] = False


@frozen
class OnStream(DerivedMask):
    """A mask on a part of the pass."""

    stream: Stream

    def amount(self, form: Form) -> Form:
        return form.on(self.stream)

    def __str__(self) -> str:
        return f"{self.stream} {self.mask}".rstrip()


@technique("token-pruning")
@frozen(kw_only=True)
class TokenPruning(Technique):
    """Cascade pruning (SpAtten): tokens and heads that a layer drops are gone from all layers after it.

    Effect: in prompts, layers process the tokens that are left, which attend to each other. Steps process every new
    token, which attends to the keys that are left. Heads that were dropped have no projections, pairs or keys. The
    first 15 % of the layers keep all tokens and the first 30 % all heads; from there on each layer drops the same
    fraction of those that are left, such that layers have `tokens` and `heads` of them on average.
    Formula: linears x left, pairs x left^2 and cache x left in a prompt; keys x left in a step; heads: projections,
    pairs and keys x left. A batch reads the projections of 1 - (1 - heads)^sequences of the heads.
    Source: arXiv:2012.09852: 1.9 times fewer tokens and 1.1 times fewer heads on average, 3.8 times fewer tokens with
    GPT-2 (heads=0.909,tokens=0.263). Of the layers that keep all, 15 % is in github.com/kssteven418/LTP
    (prune_modules.py, where they are three at least), and 30 % is recalled.
    Use when: prompts are long or encoders classify texts, much of which does not matter.
    Limits: no gain in weights of feed-forward networks, nor in memory for weights.
    Not modeled: adding up the scores that rank tokens and heads, one OP per pair, which fused attention kernels do not
    expose; gathering the tokens that are left; dropping bits of keys.
    """

    kind = Kind.ATTENTION
    requires = Requirement.OTHER_OUTPUT
    separate_decode_graph = True
    one_pass = True
    order = 2  # after techniques that change masks and linears

    tokens: float = parameter("mean fraction of the tokens that a layer has", 0.526, least=0.001, most=1)
    heads: float = parameter("mean fraction of the heads that a layer has", 0.909, least=0.001, most=1)

    def network(self, graph: Graph, *, decode: bool) -> Graph:
        tokens, heads = self._left(graph.layers)

        def pieces() -> Iterator[Block]:
            for block in graph.blocks:
                if not (block.main and block.layers):
                    yield block
                    continue
                for layer in block.layers:
                    share = heads[layer] * (tokens[layer] if decode else 1.0)
                    part = replace(block, layers=(layer,))
                    yield part if share == 1 else _with_part(part, share)

        return Graph(tuple(pieces()))

    def lowered(self, graph: Graph, hardware: Hardware, *, decode: bool) -> Graph:  # noqa: ARG002
        tokens, heads = self._left(graph.layers)

        def changed(block: Block) -> Block:
            if not (block.main and block.layers):
                return block
            (layer,) = block.layers
            fewer = block.map(lambda op: _with_heads(op, heads[layer])) if heads[layer] < 1 else block
            return fewer if decode or tokens[layer] == 1 else replace(fewer, stream=thinned(tokens[layer]))

        return graph.map_blocks(changed)

    def _left(self, layers: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Fractions of the tokens and of the heads that each layer has."""
        return (
            _cascade(self.tokens, floor(_WHOLE_FOR_TOKENS * layers), layers),
            _cascade(self.heads, floor(_WHOLE_FOR_HEADS * layers), layers),
        )

    def incompatibility(self, setting: SettingView, others: Sequence[Technique]) -> str:
        layers = setting.model.graph.layers
        for name, whole_share in (("tokens", _WHOLE_FOR_TOKENS), ("heads", _WHOLE_FOR_HEADS)):
            least = (floor(whole_share * layers) + 1) / layers
            if getattr(self, name) <= least:
                return f"{name} must be above {least:.3g}, of the layers that keep all; got {getattr(self, name):g}"
        if self.tokens == self.heads == 1:
            return "give tokens or heads below 1"
        return _layers_reason(setting, others)


@technique("sparse-activation")
@frozen(kw_only=True)
class SparseActivation(Technique):
    """Sparse activation of attention (SeqBoat): a state space chooses, in each layer, the tokens that attend.

    Effect: projections and attention of a layer run for the fraction `share` of its tokens, and only their keys and
    values are cached; with `window`, they attend to the last of them. All tokens run the feed-forward network and,
    before attention, a state space and a linear that score each token. A step reads the projections with the
    probability that any of its tokens attends.
    Formula: projections x share, pairs x share^2, cache x share; state space: 16 elements of state per channel, and
    2 d OPs for each of two scores.
    Source: arXiv:2306.11197, section 3; 16 elements: github.com/renll/SeqBoat (examples/seqboat). Its model has gated
    attention without a feed-forward network; shares differ from task to task, so none is assumed.
    Use when: contexts are long, and few of their tokens need attention.
    Limits: the model must be trained with it. Memory for weights grows by the state spaces.
    Not modeled: gathering the tokens that attend.
    """

    kind = Kind.ATTENTION
    requires = Requirement.NEW_WEIGHTS
    order = -3  # before techniques that change layers, so that they change all parts

    share: float = parameter("fraction of the tokens that attend", least=0.001, most=1)
    window: int = parameter("tokens among them that one attends to; 0: all", 0, unit="tokens", least=0)

    def network(self, graph: Graph, *, decode: bool) -> Graph:  # noqa: ARG002
        scored = graph.map_blocks(lambda block: _with_scores(block) if is_main_layer(block) else block)
        reach = self.window / self.share  # positions among which there are so many
        return replace_masks(scored, lambda mask: Causal(reach) if reach and reach < mask.window else None)

    def lowered(self, graph: Graph, hardware: Hardware, *, decode: bool) -> Graph:  # noqa: ARG002
        return graph.map_blocks(lambda block: self._thinned(block) if is_main_layer(block) else block)

    def _thinned(self, block: Block) -> Block:
        stream = thinned(self.share)
        inside = {op.name for op in _attention_operators(block)}
        return block.map(lambda op: _on(op, stream) if op.name in inside else op)

    def incompatibility(self, setting: SettingView, others: Sequence[Technique]) -> str:
        if not list(causal_masks(setting.model.graph)):
            return f"{setting.model.name} has no causal attention"
        other = next((one for one in others if isinstance(one, SparseAttention | Windowed)), None)
        if self.window and other:
            return f"{other.name} also selects the keys that queries see; leave out window, or {other.name}"
        return _layers_reason(setting, others)


def _cascade(mean: float, whole_layers: int, layers: int) -> tuple[float, ...]:
    """Fractions of what each layer has: all at first, then the same part less in each; `mean` of all layers."""
    if mean == 1:
        return (1.0,) * layers
    rest = (mean * layers - whole_layers) / (layers - whole_layers)  # mean of the layers that drop
    return (1.0,) * whole_layers + shares_left(rest, 1, layers - whole_layers)


def _with_part(block: Block, share: float) -> Block:
    """The block whose attention has the fraction `share` of its pairs and keys."""
    return replace_self_attention_mask(
        block, lambda mask: (PartOfMask if mask.is_cached else UncachedPartOfMask)(mask, share)
    )


def _with_heads(op: Operator, heads: float) -> Operator:
    """The projection of the fraction `heads` of the heads, which the sequences of a batch choose independently."""
    if op.name not in _HEAD_LINEARS or not isinstance(op, Linear):
        return op
    return sparse_linear(op, heads, any_of(heads).on(SINGLE))


def _with_scores(block: Block) -> Block:
    """The block with a state space and a linear that score each token, before its attention."""
    inside = _attention_operators(block)
    if not inside:
        return block
    first = inside[0]
    x = first.inputs[0]
    parts = Parts(format=x.format)
    conv = modal_conv(parts, x, x.width, _STATES, name="activation_ssm")
    scores = (conv, parts.project("activation_scores", conv.result, _CHOICES, bias=True))
    place = block.operators.index(first)
    return replace(block, operators=(*block.operators[:place], *scores, *block.operators[place:]))


def _attention_operators(block: Block) -> list[Operator]:
    """Attention with what only it needs: its projections before and after, between a norm and the residual addition."""
    producers = {t.name: op for op in block.operators for t in op.outputs}
    inside = {op.name for op in block.operators if isinstance(op, Attention)}
    for op in reversed(block.operators):
        if op.name in inside:
            before = (producers[t.name] for t in op.inputs if t.name in producers)
            inside |= {one.name for one in before if not _starts(one, producers)}
    for op in block.operators:
        if op.name in inside:
            names = {t.name for t in op.outputs}
            inside |= {
                one.name for one in block.operators
                if not isinstance(one, Add) and names & {t.name for t in one.inputs}
            }  # fmt: skip
    return [op for op in block.operators if op.name in inside]


def _starts(op: Operator, producers: dict[str, Operator]) -> bool:
    """Whether `op` norms or adds to the hidden state, which all tokens need."""
    is_norm_of_projection = isinstance(op, Norm) and isinstance(producers.get(op.inputs[0].name), Linear)
    return isinstance(op, Norm | Add) and not is_norm_of_projection


def _on(op: Operator, stream: Stream) -> Operator:
    """The operator on a part of the pass."""

    def tensor(t: Tensor) -> Tensor:
        retained = t.retained_rows and t.retained_rows.on(stream)
        return replace(t, rows=t.rows.on(stream), retained_rows=retained)

    def weight(w: Weight) -> Weight:
        rows = w.shape[0] * ONE if w.rows is None else w.rows
        return replace(w, rows=rows.on(stream))

    part = op.with_tensors(tensor).with_weights(weight)
    if not isinstance(part, Attention):
        return part
    return replace(part, heads=replace(part.heads, mask=OnStream(part.heads.mask, stream)))


def _layers_reason(setting: SettingView, others: Sequence[Technique]) -> str:
    """The reason why layers cannot leave out tokens; "" if they can."""
    other = next((one for one in others if isinstance(one, (*_DEPTH_TECHNIQUES, TokenPruning, SparseActivation))), None)
    if other:
        return f"{other.name} also leaves out tokens in layers; give one of the two"
    return partial_layers_reason(setting)
