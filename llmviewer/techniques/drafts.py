"""Speculative decoding without a second model: drafts by layers or heads of the model, or from known text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from math import ceil, gcd
from operator import mul
from typing import Final, NamedTuple

from ..architectures.blocks.attention import SelfAttention
from ..architectures.blocks.parts import HIDDEN, Parts
from ..forms import LOGITS
from ..graph import Block, Graph
from ..model import Model, vocabulary
from ..operators.attention import QK, Heads
from ..operators.base import Operator, Tensor
from ..operators.linear import Linear, LMHead
from ..operators.masks import CAUSAL
from ..records import frozen
from ..roofline import Plan
from ..workload import Spans, Workload
from . import technique
from ._drafting import NUM_TOKENS, ChainDrafting, Drafting, drafted_tokens
from ._linears import with_tied_weights
from ._parameters import Condition, parameter
from ._technique import Drafter, Finding, GraphView, Requirement, SettingView, Technique

_OWN_TOKENS: Final = 2  # tokens of a draft and its verification that are the model's own


@frozen(kw_only=True)
class _Layers:
    """A draft network that consists of some layers of a setting's model, and of the layers `after` them."""

    setting: SettingView
    change: Callable[[Block], Block]
    after: GraphView | None = None

    @property
    def graph(self) -> Graph:
        return self._changed(self.setting.graph, self.after.graph if self.after else None)

    @property
    def decode_graph(self) -> Graph:
        return self._changed(self.setting.decode_graph, self.after.decode_graph if self.after else None)

    def _changed(self, graph: Graph, after: Graph | None) -> Graph:
        blocks = tuple(map(self.change, graph.blocks))
        last = max((place for place, block in enumerate(blocks) if block.main and block.layers), default=-1)
        return Graph((*blocks[: last + 1], *(after.blocks if after else ()), *blocks[last + 1 :]))

    @property
    def plan(self) -> Plan:
        return self.setting.planned(self.graph)

    @property
    def decode_plan(self) -> Plan:
        return self.setting.planned(self.decode_graph)


@technique("self-speculative")
@frozen(kw_only=True)
class SelfSpeculative(ChainDrafting):
    """Self-speculative decoding: some of the model's own layers draft, and all of them verify.

    Effect: gamma steps through the fraction `layers` of the layers precede each pass through all of them. No additional
    memory is needed: weights and cache are the model's.
    Formula: time per token = (gamma x partial step + verification) / tokens per pass, which are as for `speculative`.
    Source: arXiv:2309.08168; the default of 1.69 tokens per pass is the midpoint of 1.64 to 1.74 in arXiv:2404.14294,
    table 5, of whose largest gain, 1.23 with 1.74 tokens, the default of `layers` is the most that the bound allows.
    Use when: there is no small model with the same vocabulary, or no memory for one.
    Limits: drafts are expensive: there is a gain only if tokens per pass exceed 1 + gamma x layers.
    """

    default_tokens_per_pass = 1.69

    layers: float = parameter("fraction of the layers that drafts", 0.4, least=0, most=1, open=True)

    def drafter(self, setting: SettingView) -> Drafter:
        network = _Layers(setting=setting, change=self._part)
        return Drafter(name="draft by some layers", network=network, widths=(1,) * self.gamma, reads=False)

    def auxiliary_graphs(self, setting: SettingView) -> tuple[Graph, ...]:  # noqa: ARG002
        return ()

    def _part(self, block: Block) -> Block:
        return replace(block, layers=block.layers[: ceil(self.layers * len(block.layers))]) if block.main else block


@technique("kangaroo")
@frozen(kw_only=True)
class Kangaroo(ChainDrafting):
    """Kangaroo: the model's first layers draft, with an attention layer of their own before the model's head.

    Effect: gamma steps through the first layers, up to the fraction `exit`, the adapter and the head precede each pass
    through all layers. The adapter, multi-head attention as wide as the model between two norms, is held in memory with
    its cache; the other layers are the model's.
    Formula: time per token = (gamma x (first layers + adapter + head) + verification) / tokens per pass, which are as
    for `speculative`; the adapter has 4 d^2 parameters.
    Source: arXiv:2404.18911; exit after 2 of 32 layers and 6 drafted tokens: github.com/Equationliu/Kangaroo. The
    default of 2.61 tokens per pass is the fewest with which the bound allows its largest gain, 1.68 with Vicuna 7B.
    Use when: there is no draft model; the adapter has a ninth of the parameters of Medusa's heads.
    Limits: no gain for large batches; each draft runs the whole head.
    Not modeled: the adapter's pass over the prompt, which fills its cache; drafts that end early, when the adapter is
    not sure; and that a verification could go on from the hidden states of the first layers, whose weights it reads
    again for the last drafted token anyway.
    """

    requires = Requirement.DRAFT_MODEL
    default_tokens_per_pass = 2.61

    exit: float = parameter("fraction of the layers before the adapter", 0.0625, least=0, most=1, open=True)
    gamma: int = drafted_tokens(6)

    def drafter(self, setting: SettingView) -> Drafter:
        first = ceil(self.exit * setting.model.graph.layers)

        def cut(block: Block) -> Block:
            return replace(block, layers=tuple(n for n in block.layers if n < first)) if block.main else block

        network = _Layers(setting=setting, change=cut, after=self._adapter(setting))
        return Drafter(name="draft by the first layers", network=network, widths=(1,) * self.gamma, reads=False)

    def auxiliary_graphs(self, setting: SettingView) -> tuple[Graph, ...]:
        return (self._adapter(setting).decode_graph,)

    def _adapter(self, setting: SettingView) -> SettingView:
        """A layer of attention between two norms."""
        model = setting.model
        parts, hidden = Parts(format=model.format), width(model)
        head_dim = gcd(hidden, next(op.heads.head_dim for _, op in model.graph if isinstance(op, QK)))
        count = hidden // head_dim
        heads = Heads(num_heads=count, num_kv_heads=count, head_dim=head_dim, mask=CAUSAL)
        x = parts.tensor(HIDDEN, hidden)
        norm = parts.norm("adapter_norm", x)
        attention = SelfAttention(heads=heads, rotary_dim=head_dim).operators(parts, norm.result)
        added = parts.add("adapter_add", x, attention[-1].result)
        last = parts.norm("adapter_out", added.result)
        block = Block(
            name="adapter",
            operators=(norm, *attention, added, replace(last, outputs=(x,))),
            input=HIDDEN,
            output=HIDDEN,
            layers=(0,),
        )
        return setting.helper(auxiliary_model(model, (block,)), "W16A16")

    def incompatibility(self, setting: SettingView, others: Sequence[Technique]) -> str:
        if not any(isinstance(op, QK) for _, op in setting.model.graph):
            return f"{setting.model.name} has no attention like the adapter's"
        if setting.model.is_encoder_decoder:
            return f"{setting.model.name} has an encoder, which the adapter does not read"
        return super().incompatibility(setting, others)


@technique("parallel-draft")
@frozen(kw_only=True)
class ParallelDraft(Drafting):
    """Parallel speculative sampling (PaSS): the model drafts several tokens in one pass, from look-ahead tokens.

    Effect: a pass over the last token and `gamma` learned look-ahead tokens drafts gamma + 1 tokens of each sequence,
    of which the first is the model's own; the next pass verifies them. Nothing but the embeddings of look-ahead tokens
    is held in memory.
    Formula: time per token = two such passes / tokens that both yield = 2 + alpha + ... + alpha^gamma, or `tau`.
    Source: arXiv:2311.13581, section 3; the default of 2.6 tokens is that of its largest gain, 1.3, if passes take as
    long as decode steps.
    Use when: one sequence runs at a time and there is no draft model; only embeddings are trained.
    Limits: a gain of more than half of tokens is not possible, as each draft takes a pass of the whole model.
    """

    requires = Requirement.DRAFT_MODEL
    default_tokens_per_pass = 2.6

    gamma: int = parameter("look-ahead tokens", 4, least=1, most=64, aliases=NUM_TOKENS)

    @property
    def depth(self) -> int:
        return self.gamma + 1

    def reached(self, alpha: float) -> tuple[float, ...]:
        return (1.0, *accumulate([alpha] * self.gamma, mul, initial=1.0))

    def drafter(self, setting: SettingView) -> Drafter:
        network = _Layers(setting=setting, change=lambda block: block)
        return Drafter(name="draft by look-ahead tokens", network=network, widths=(self.gamma + 1,), reads=False)

    def auxiliary_graphs(self, setting: SettingView) -> tuple[Graph, ...]:  # noqa: ARG002
        return ()

    def incompatibility(self, setting: SettingView, others: Sequence[Technique]) -> str:
        if self.tau is not None and self.tau < _OWN_TOKENS:
            return f"tokens of both passes are at least {_OWN_TOKENS}; got tau={self.tau:g}"
        return super().incompatibility(setting, others)


@technique("medusa")
@frozen(kw_only=True)
class Medusa(Drafting):
    """Medusa: extra heads on the last hidden state propose the following tokens as a tree of candidates.

    Effect: the heads run once per pass, for one token of each sequence, and the pass verifies all nodes of the tree.
    The weights of the heads are held in memory.
    Formula: a head is a linear of d x d, an activation, an addition, and a linear of d x vocabulary; tokens per pass =
    (1 - alpha^(heads+1)) / (1 - alpha) along one path, or `tau`.
    Source: arXiv:2401.10774, section 2.1; the default of 2.57 tokens per pass is the midpoint of 2.52 to 2.62 in
    arXiv:2404.14294, table 5.
    Use when: batches are small and there is no draft model.
    Limits: no gain for large batches, as a tree has many times the tokens that are accepted. Heads are expensive with a
    large vocabulary.
    Not modeled: the tree mask: a node attends to all nodes before it, not only to its ancestors.
    """

    default_tokens_per_pass = 2.57
    requires = Requirement.DRAFT_MODEL

    heads: int = parameter("heads, each for one more token ahead", 4, least=1, most=64, aliases=NUM_TOKENS)
    nodes: int = parameter("candidates in the tree", 64, least=1, most=4096)

    @property
    def depth(self) -> int:
        return self.heads

    @property
    def proposed(self) -> int:
        return self.nodes

    def drafter(self, setting: SettingView) -> Drafter:
        network = setting.helper(auxiliary_model(setting.model, (self._block(setting.model),)), "W16A16")
        return Drafter(name="heads", network=network, widths=(1,), reads=False)

    def incompatibility(self, setting: SettingView, others: Sequence[Technique]) -> str:
        if self.nodes < self.heads:
            return f"a tree of {self.nodes} nodes has no path of {self.heads} tokens; give nodes={self.heads} or more"
        return super().incompatibility(setting, others)

    def _block(self, model: Model) -> Block:
        parts = Parts(format=model.format)
        x = replace(parts.tensor(HIDDEN, width(model)), rows=LOGITS)

        def at_logits(*operators: Linear) -> Iterator[Linear]:
            for op in operators:
                yield op.with_tensors(lambda t: replace(t, rows=LOGITS))

        (first,) = at_logits(parts.project("medusa_proj", x, x.width, bias=True))
        added = parts.activate("medusa_act", "silu", first.result, x)  # an activation and an addition
        (head,) = at_logits(parts.project("medusa_head", added.result, vocabulary(model)))
        return Block(
            name="medusa",
            operators=(first, added, head),
            input=HIDDEN,
            output="medusa_head",
            layers=tuple(range(self.heads)),
        )


class _Shape(NamedTuple):
    """Draft of a version of EAGLE.

    gamma       tokens drafted in sequence
    nodes       candidates in the tree; None: a chain
    tokens      measured tokens per pass with this tree
    acceptance  measured acceptance rate of chains, which trees reach at least
    """

    gamma: int
    nodes: int | None = None
    tokens: float | None = None
    acceptance: float | None = None


_EAGLE: Final = {1: _Shape(5, 25, tokens=3.6), 2: _Shape(6, 60, tokens=4.75), 3: _Shape(3, acceptance=0.71)}


@technique("eagle")
@frozen(kw_only=True)
class Eagle(Drafting):
    """EAGLE: one extra layer drafts from hidden states and the embeddings of the tokens that followed.

    Effect: before each pass, `gamma` draft steps run a linear that joins hidden states and embedding, one layer like
    the model's last and a head. Version 3, as vLLM, SGLang and TensorRT-LLM deploy it, drafts a chain of 3 tokens from
    the hidden states of three layers with a head of `draft_vocabulary` words; versions 1 and 2 draft trees of 25 and 60
    candidates, 5 and 6 deep, with the head of the model. With `nodes`, each step drafts ceil(nodes / gamma) tokens of a
    sequence, and the pass verifies all nodes. The layer and its cache are held in memory.
    Formula: time per token = (gamma x (layer + head) + verification) / tokens per pass, which are as for `speculative`,
    or `tau`, of the draft that is given.
    Source: version 1: arXiv:2401.15077, section 3, and 3.6 tokens per pass, the midpoint of 3.47 to 3.72 in
    arXiv:2404.14294, table 5; version 2: arXiv:2406.16858, section 5, and 4.75 tokens, the midpoint of its 4 to 5.5;
    version 3: arXiv:2503.01840, section 3, and an acceptance rate of 0.71, that of the mean of 3.23 tokens with chains
    of 7 by public heads of Llama 3.1 8B and 3.3 70B (huggingface.co/nebius/EAGLE3-Llama-3.3-70B-Instruct).
    Use when: there is a draft head for the model. Chains help up to medium batches, trees at small ones.
    Limits: no gain for large batches. A measured `tau` belongs to the draft it was measured with.
    Not modeled: the tree mask: a node attends to all nodes before it, not only to its ancestors. Heads of mixtures of
    experts have a dense layer; here it is the model's.
    """

    requires = Requirement.DRAFT_MODEL

    version: int = parameter("EAGLE-1, EAGLE-2 or EAGLE-3", 3, least=1, most=3)
    gamma: int | None = parameter(
        "tokens drafted in sequence; as the version is published if not given",
        None, least=1, most=64, aliases=(*NUM_TOKENS, "draft_depth"),
    )  # fmt: skip
    nodes: int | None = parameter(
        "candidates in the tree; a chain if not given, or the tree of versions 1 and 2 if gamma is not given either",
        None, least=1, most=4096,
    )  # fmt: skip
    draft_vocabulary: int = parameter(
        "words of the draft's head, if the model has more", 32_000, least=1, condition=Condition("version", (3,))
    )

    @property
    def depth(self) -> int:
        return self.gamma or _EAGLE[self.version].gamma

    @property
    def proposed(self) -> int:
        return self._nodes or self.depth

    @property
    def _nodes(self) -> int | None:
        return self.nodes or (None if self.gamma else _EAGLE[self.version].nodes)

    @property
    def _published_acceptance(self) -> float | None:
        return _EAGLE[self.version].acceptance

    @property
    def _published_tokens(self) -> float | None:
        shape = _EAGLE[self.version]
        return shape.tokens if (self.depth, self._nodes) == (shape.gamma, shape.nodes) else None

    def drafter(self, setting: SettingView) -> Drafter:
        widths = (ceil(self.proposed / self.depth),) * self.depth
        return Drafter(name="draft layer", network=self._layer(setting), widths=widths)

    def incompatibility(self, setting: SettingView, others: Sequence[Technique]) -> str:
        if self.proposed < self.depth:
            return f"a tree of {self.nodes} nodes has no path of {self.depth} tokens; give nodes={self.depth} or more"
        if setting.model.is_encoder_decoder:
            return f"{setting.model.name} processes its prompt in an encoder, whose cache a draft layer does not have"
        return super().incompatibility(setting, others)

    def _layer(self, setting: SettingView) -> SettingView:
        model = setting.model
        parts, hidden = Parts(format=model.format), width(model)
        joined_input = parts.tensor("joined", (3 if self.version == 3 else 2) * hidden)
        joined = parts.linear("draft_proj", joined_input, parts.tensor(HIDDEN, hidden))
        last = [block for block in model.graph.blocks if block.main and block.layers][-1]
        head = [
            block.map(self._head) for block in model.graph.blocks if block.main and not block.layers and block.input
        ]
        blocks = (
            Block(name="draft_input", operators=(joined,), input="joined", output=HIDDEN),
            replace(last, name="draft_layer", layers=(0,)),
            *head,
        )
        return setting.helper(auxiliary_model(model, blocks), "W16A16")

    def _head(self, op: Operator) -> Operator:
        """An operator of the model's head, whose weights the draft shares unless it has a smaller vocabulary."""
        words = self.draft_vocabulary
        if self.version < 3 or not isinstance(op, LMHead) or op.result.width <= words:
            return with_tied_weights(op)
        weights = tuple(replace(weight, shape=(words, *weight.shape[1:])) for weight in op.weights)
        return replace(op, outputs=(replace(op.result, width=words),), weights=weights)


@technique("lookahead")
@frozen(kw_only=True)
class Lookahead(Drafting):
    """Lookahead decoding: Jacobi iterations collect n-grams, which the same pass verifies.

    Effect: a pass takes (window + guesses) x (ngram - 1) tokens of each sequence. There is no draft model, and nothing
    more is held in memory.
    Formula: time per token = time of such a pass / tokens per pass.
    Source: arXiv:2402.02057, section 3; the default of 2.03 tokens per pass is the midpoint of 1.92 to 2.14 in
    arXiv:2404.14294, table 5.
    Use when: one sequence runs at a time on a device with spare OP/s. No training is needed.
    Limits: no gain where these tokens saturate the compute units, often with more than one sequence.
    """

    default_tokens_per_pass = 2.03

    window: int = parameter("n-grams that a pass generates", 15, least=1, most=1024)
    ngram: int = parameter("tokens per n-gram", 5, least=2, most=64)
    guesses: int = parameter("n-grams that a pass verifies", 15, least=1, most=1024)

    @property
    def depth(self) -> int:
        return self.ngram - 1

    @property
    def proposed(self) -> int:
        return (self.window + self.guesses) * (self.ngram - 1) - 1


@technique("retrieval")
@frozen(kw_only=True)
class Retrieval(Drafting):
    """N-gram speculation (prompt lookup, LLMA, REST): drafts from the prompt, earlier outputs or a datastore.

    Effect: a pass verifies all candidates found.
    Formula: time per token = verification / tokens per pass.
    Source: arXiv:2304.04487; arXiv:2311.08252; the default of 2.25 tokens per pass is the midpoint of 2.18 to 2.31 in
    arXiv:2404.14294, table 5.
    Use when: outputs repeat known text, such as code, quotations and edits. Nothing is trained or stored in memory.
    Limits: no gain for outputs unlike any known text, nor for large batches.
    Not modeled: the search, which takes no device time.
    """

    default_tokens_per_pass = 2.25
    assumption = "outputs that repeat known text, with 2.25 tokens per pass"

    length: int = parameter("tokens in the longest candidate", 5, least=1, most=1024, aliases=NUM_TOKENS)
    nodes: int | None = parameter(
        "tokens in all candidates, as a tree; one candidate if not given", None, least=1, most=4096
    )

    @property
    def depth(self) -> int:
        return self.length

    @property
    def proposed(self) -> int:
        return self.nodes or self.length

    def incompatibility(self, setting: SettingView, others: Sequence[Technique]) -> str:
        if self.proposed < self.length:
            return f"a tree of {self.nodes} nodes has no path of {self.length} tokens; give nodes={self.length} or more"
        return super().incompatibility(setting, others)


@technique("phrase-copying")
@frozen(kw_only=True)
class PhraseCopying(Drafting):
    """Phrase copying (copy-generator): a step appends a whole phrase of known texts, or a word.

    Effect: the head scores the vectors of `phrases` beside the words. The next step processes the tokens of the phrase,
    which nothing verifies.
    Formula: time per token = step of ceil(tau) tokens with a head of vocabulary + phrases rows / tau. With `alpha`
    instead, the fraction of steps that append a phrase, phrases have two tokens: tau = 1 + alpha.
    Source: arXiv:2307.06962.
    Use when: outputs repeat phrases of a collection whose vectors were computed before.
    Limits: the model must be trained with it. A large table costs more than it saves: each step reads it whole.
    Not modeled: choosing the documents whose phrases are scored.
    """

    requires = Requirement.NEW_WEIGHTS

    phrases: int = parameter("phrases that a step scores", least=1, most=10**9)

    @property
    def depth(self) -> int:
        return max(ceil(self.tau or 2) - 1, 1)

    def network(self, graph: Graph, *, decode: bool) -> Graph:  # noqa: ARG002
        return graph.map_blocks(self._with_phrases)

    def _with_phrases(self, block: Block) -> Block:
        """A block with the scores of phrases beside those of words."""
        operators: list[Operator] = []
        for op in block.operators:
            operators.append(op)
            if isinstance(op, LMHead):
                scores = replace(op.result, name="phrase_scores", width=self.phrases)
                matrix = replace(op.weight, tied=False)
                table = replace(matrix, name="phrases", shape=(self.phrases, *op.weight.shape[1:]), rows=None)
                operators.append(replace(op, name="phrase_scores", outputs=(scores,), weights=(table,)))
        return replace(block, operators=tuple(operators))

    def _verified(self, s: Spans) -> Spans:
        return replace(super()._verified(s), logits=1)

    def findings(self, setting: SettingView, step: Workload) -> tuple[Finding, ...]:  # noqa: ARG002
        return ()


@technique("mtp")
@frozen(kw_only=True)
class Predicting(ChainDrafting):
    """Multi-token prediction: layers that the model was trained with to predict further tokens draft them.

    Effect: gamma steps of such a layer run before each pass, which verifies their tokens. The layer and its cache are
    held in memory.
    Formula: time per token = (gamma x layer + verification) / tokens per pass, which are as for `speculative`.
    Source: arXiv:2412.19437, section 2.2; the default acceptance rate of 0.85 is the lowest in its section 5.4.3, of
    one drafted token; that of further ones is assumed to be the same.
    Use when: the model is published with such layers (DeepSeek-V3, GLM-4.5, Qwen3-Next) and batches are small to
    medium.
    Limits: other models have no such layers. A mixture of experts reads more experts to verify two tokens than for one.
    """

    default_acceptance = 0.85
    runs_mtp_layers = True

    def drafter(self, setting: SettingView) -> Drafter:
        return Drafter(name="prediction layer", network=self._layers(setting), widths=(1,) * self.gamma)

    def incompatibility(self, setting: SettingView, others: Sequence[Technique]) -> str:
        if setting.model.with_prediction is None:
            return setting.model.no_prediction_reason
        return super().incompatibility(setting, others)

    def _layers(self, setting: SettingView) -> SettingView:
        model = setting.model
        blocks = model.with_prediction.graph.blocks if model.with_prediction else ()
        (first, *_) = blocks[len(model.graph.blocks) :]
        return setting.helper(auxiliary_model(model, (replace(first, layers=first.layers[:1]),)), None)


def width(model: Model) -> int:
    """Width of the hidden state between layers."""
    layer = next(block for block in model.graph.blocks if block.main and block.layers)
    hidden: Tensor = next(t for op in layer.operators for t in op.inputs if t.name == layer.input)
    return hidden.width


def auxiliary_model(model: Model, blocks: tuple[Block, ...]) -> Model:
    """A model of `blocks` that shares embedding and head with `model`."""
    return replace(model, graph=Graph(blocks), with_prediction=None)
