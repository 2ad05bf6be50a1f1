"""Speculative decoding without a second model: parts of the model, heads on it, or text that was seen before."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil

from ..architectures._parts import HIDDEN, Parts
from ..forms import LOGITS
from ..graph import Block, Graph
from ..model import Model
from ..operators.base import Tensor
from ..operators.linear import Linear
from ..roofline import Plan
from . import technique
from ._drafting import Drafting, vocabulary
from ._linears import tied
from ._parameters import parameter
from ._technique import Drafter, Machine, Technique, Touches


@dataclass(frozen=True, kw_only=True)
class _Layers:
    """Some layers of a machine's model."""

    machine: Machine
    change: Callable[[Block], Block]

    @property
    def graph(self) -> Graph:
        return self.machine.graph.map_blocks(self.change)

    @property
    def decode_graph(self) -> Graph:
        return self.machine.decode_graph.map_blocks(self.change)

    @property
    def plan(self) -> Plan:
        return self.machine.planned(self.graph)

    @property
    def decode_plan(self) -> Plan:
        return self.machine.planned(self.decode_graph)


@technique("self-speculative")
@dataclass(frozen=True, kw_only=True)
class SelfSpeculative(Drafting):
    """Self-speculative decoding: some of the model's own layers draft, all of them verify.

    Changes: gamma steps of a part of the layers and one pass of all of them leave several tokens. Nothing is held
    besides: weights and cache are the model's.
    Formula: time a token = (gamma x part of a step + verification) / tokens, tokens as for `speculative`.
    Source: arXiv:2309.08168; the usual 1.69 tokens a pass are in the middle of the 1.64 to 1.74 of arXiv:2404.14294,
    table 5.
    Helps: where no small model of the same vocabulary exists, or no memory for it.
    Cannot: gain much, as its drafts are expensive: it needs tokens > 1 + gamma x layers.
    """

    usual = 1.69

    layers: float = parameter("part of the layers that drafts", 0.5, least=0, most=1, open=True)
    gamma: int = parameter("tokens drafted before each verification", 1, least=1, most=64)

    @property
    def depth(self) -> int:
        return self.gamma

    def drafter(self, machine: Machine) -> Drafter:
        network = _Layers(machine=machine, change=self._part)
        return Drafter(name="draft by some layers", network=network, widths=(1,) * self.gamma, reads=False)

    def beside(self, machine: Machine) -> tuple[Graph, ...]:  # noqa: ARG002
        return ()

    def _part(self, block: Block) -> Block:
        return replace(block, layers=block.layers[: ceil(self.layers * len(block.layers))]) if block.main else block


@technique("medusa")
@dataclass(frozen=True, kw_only=True)
class Medusa(Drafting):
    """Medusa: further heads on the last hidden state propose the tokens after the next, as a tree of candidates.

    Changes: heads run once after each pass, for one token of each sequence, and their weights are held; a pass verifies
    all nodes of the tree.
    Formula: a head is a linear of d x d, an activation, an addition, and a linear of d x vocabulary; tokens a pass =
    (1 - alpha^(heads+1)) / (1 - alpha) along one path, or `tau`.
    Source: arXiv:2401.10774, section 2.1; the usual 2.57 tokens a pass are in the middle of the 2.52 to 2.62 of
    arXiv:2404.14294, table 5.
    Helps: small batches, without a second model.
    Cannot: help large batches, as a tree has many times the tokens that it leaves; large vocabularies make heads heavy.
    Left out: that a node of the tree sees its ancestors alone: all nodes before it are counted.
    """

    usual = 2.57
    touches = Touches.MODEL

    heads: int = parameter("heads, each for one token further on", 4, least=1, most=64)
    nodes: int = parameter("candidates in the tree", 64, least=1, most=4096)

    @property
    def depth(self) -> int:
        return self.heads

    @property
    def proposed(self) -> int:
        return self.nodes

    def drafter(self, machine: Machine) -> Drafter:
        network = machine.helper(beside_model(machine.model, (self._block(machine.model),)), "W16A16")
        return Drafter(name="heads", network=network, widths=(1,), reads=False)

    def refuses(self, machine: Machine, others: Sequence[Technique]) -> str:
        if self.nodes < self.heads:
            return f"a tree of {self.nodes} nodes has no path of {self.heads} tokens; give nodes={self.heads} or more"
        return super().refuses(machine, others)

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


@technique("eagle")
@dataclass(frozen=True, kw_only=True)
class Eagle(Drafting):
    """EAGLE: one more layer drafts, from the last hidden states and the embeddings of the tokens that followed.

    Changes: `depth` steps of a linear of 2d x d, one layer like the model's last and its head come before each pass,
    which verifies all nodes of a tree; the layer and its cache are held besides.
    Formula: time a token = (depth x (layer + head) + verification) / tokens; tokens as for `speculative`, or `tau`.
    Source: arXiv:2401.15077, section 3; the usual 3.6 tokens a pass are in the middle of the 3.47 to 3.72 of
    arXiv:2404.14294, table 5.
    Helps: small batches; its drafts are cheaper than a model's and more often right than separate heads.
    Cannot: help large batches; the head is run for every draft, which weighs where vocabularies are large.
    Left out: as for `medusa`; depth and nodes are to be set as they are run.
    """

    usual = 3.6
    touches = Touches.MODEL

    draft_depth: int = parameter("tokens drafted one after the other", 5, least=1, most=64)
    nodes: int = parameter("candidates in the tree", 25, least=1, most=4096)

    @property
    def depth(self) -> int:
        return self.draft_depth

    @property
    def proposed(self) -> int:
        return self.nodes

    def drafter(self, machine: Machine) -> Drafter:
        widths = (ceil(self.nodes / self.depth),) * self.depth
        return Drafter(name="draft layer", network=self._layer(machine), widths=widths)

    def refuses(self, machine: Machine, others: Sequence[Technique]) -> str:
        if self.nodes < self.depth:
            return f"a tree of {self.nodes} nodes has no path of {self.depth} tokens; give nodes={self.depth} or more"
        if machine.model.encodes:
            return f"{machine.model.name} reads its prompt with an encoder, which a draft layer does not see"
        return super().refuses(machine, others)

    def _layer(self, machine: Machine) -> Machine:
        model = machine.model
        parts, hidden = Parts(format=model.format), width(model)
        both = parts.tensor("joined", 2 * hidden)
        joined = parts.linear("draft_proj", both, parts.tensor(HIDDEN, hidden))
        last = [block for block in model.graph.blocks if block.main and block.layers][-1]
        head = [block.map(tied) for block in model.graph.blocks if block.main and not block.layers and block.input]
        blocks = (
            Block(name="draft_input", operators=(joined,), input="joined", output=HIDDEN),
            replace(last, name="draft_layer", layers=(0,)),
            *head,
        )
        return machine.helper(beside_model(model, blocks), "W16A16")


@technique("lookahead")
@dataclass(frozen=True, kw_only=True)
class Lookahead(Drafting):
    """Lookahead decoding: Jacobi iterations collect n-grams, which the same pass verifies.

    Changes: a pass takes (window + guesses) x (ngram - 1) tokens of each sequence. No draft, nothing held besides.
    Formula: time a token = time of such a pass / tokens.
    Source: arXiv:2402.02057, section 3; the usual 2.03 tokens a pass are in the middle of the 1.92 to 2.14 of
    arXiv:2404.14294, table 5.
    Helps: one sequence at a time on a device with OPs to spare; needs no training.
    Cannot: help where those tokens already keep the matrix units busy, soon with more than one sequence.
    """

    usual = 2.03

    window: int = parameter("n-grams that a pass works on", 15, least=1, most=1024)
    ngram: int = parameter("tokens of an n-gram", 5, least=2, most=64)
    guesses: int = parameter("n-grams that a pass verifies", 15, least=1, most=1024)

    @property
    def depth(self) -> int:
        return self.ngram - 1

    @property
    def proposed(self) -> int:
        return (self.window + self.guesses) * (self.ngram - 1) - 1


@technique("retrieval")
@dataclass(frozen=True, kw_only=True)
class Retrieval(Drafting):
    """Drafts from text seen before: n-grams of the prompt, of earlier answers, or of a datastore (LLMA, REST).

    Changes: a pass verifies all candidates found; finding them takes no time on the device.
    Formula: time a token = verification / tokens.
    Source: arXiv:2304.04487; arXiv:2311.08252; the usual 2.25 tokens a pass are in the middle of the 2.18 to 2.31 of
    arXiv:2404.14294, table 5.
    Helps: answers that repeat what was there, such as code, quotations and edits; nothing is trained or held.
    Cannot: help where nothing like the answer was seen, nor large batches.
    """

    usual = 2.25

    length: int = parameter("tokens of the longest candidate", 10, least=1, most=1024)
    nodes: int | None = parameter(
        "tokens of all candidates, as a tree; one candidate if not given", None, least=1, most=4096
    )

    @property
    def depth(self) -> int:
        return self.length

    @property
    def proposed(self) -> int:
        return self.nodes or self.length

    def refuses(self, machine: Machine, others: Sequence[Technique]) -> str:
        if self.proposed < self.length:
            return f"a tree of {self.nodes} nodes has no path of {self.length} tokens"
        return super().refuses(machine, others)


@technique("mtp")
@dataclass(frozen=True, kw_only=True)
class Predicting(Drafting):
    """Multi-token prediction: the layers that a model was trained with to predict further tokens draft them.

    Changes: gamma steps of such a layer come before each pass, which verifies; they are held besides.
    Formula: time a token = (gamma x layer + verification) / tokens, tokens as for `speculative`.
    Source: arXiv:2412.19437, section 2.2; the usual 1.85 tokens a pass are those of one token accepted in 85 of 100
    cases, the least that its section 5.4.3 tells.
    Helps: models published with such layers, as DeepSeek-V3, GLM-4.5 and Qwen3-Next; small to middling batches.
    Cannot: be used with others. A mixture of experts reads more of them to verify two tokens than for one.
    """

    usual = 1.85
    predicts = True

    gamma: int = parameter("tokens drafted before each verification", 1, least=1, most=64)

    @property
    def depth(self) -> int:
        return self.gamma

    def drafter(self, machine: Machine) -> Drafter:
        return Drafter(name="prediction layer", network=self._layers(machine), widths=(1,) * self.gamma)

    def refuses(self, machine: Machine, others: Sequence[Technique]) -> str:
        if machine.model.predicting is None:
            return f"{machine.model.name} has no layers that predict further tokens, or none that are known"
        return super().refuses(machine, others)

    def _layers(self, machine: Machine) -> Machine:
        model = machine.model
        whole = model.predicting.graph.blocks if model.predicting else ()
        one = (replace(block, layers=block.layers[:1]) for block in whole[len(model.graph.blocks) :])
        return machine.helper(beside_model(model, tuple(one)), None)


def width(model: Model) -> int:
    """Of the hidden state that blocks pass on."""
    layer = next(block for block in model.graph.blocks if block.main and block.layers)
    found: Tensor = next(t for op in layer.operators for t in op.inputs if t.name == layer.input)
    return found.width


def beside_model(model: Model, blocks: tuple[Block, ...]) -> Model:
    """What runs beside a model and shares its embedding and head."""
    return replace(model, graph=Graph(blocks), predicting=None)
