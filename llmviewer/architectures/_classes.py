"""Classes that a config names in `architectures`: the head that a model has, and whether it generates.

Builders of decoders make a causal language model; `as_named` gives it the head of the class. A class without a head, or
with another than words, reads its input in one pass and keeps no cache. Encoders build the head of their class
themselves, by `blocks.encoder.task`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import inf
from typing import Final

from ..documents import Section
from ..forms import SEQUENCES, TARGET, TOKENS, Form
from ..graph import Block, Graph
from ..operators.attention import Attention
from ..operators.base import Operator, Role, Tensor
from ..operators.elementwise import Rope
from ..operators.linear import LMHead
from ..operators.masks import Bidirectional, Causal, Mask, UncachedCausal
from ..precision import Format
from ..records import frozen
from ._names import draft_type
from .blocks.fields import labels_of, require_false
from .blocks.parts import Parts, result, with_rows

_GENERATING: Final = (  # endings of classes with a LM head
    "CausalLM", "LMHeadModel", "LMHead", "ForConditionalGeneration", "ForImageTextToText", "ForVision2Seq",
    "ForSpeechSeq2Seq", "ForSeq2SeqLM", "ForMultimodalLM", "ForMaskedLM", "ForPreTraining", "MTModel", "VLChatModel",
    "ModelLM",
)  # fmt: skip
_CLASSES_WITH_HEAD: Final = (  # classes that have a LM head though they are named as those without
    "ChatGLMModel", "AquilaModel", "Qwen2_5OmniModel", "GritLM", "NVLM_D_Model", "Blip2Model",
    "DreamModel",
)  # fmt: skip
_DRAFTS: Final = {  # by what the name of a class has: how such a draft is modelled
    "Medusa": "heads that draft; give the model itself, --with medusa:heads=N",
    "NextN": "prediction layers of a model; give the model itself and --mtp",
    "MTP": "prediction layers of a model; give the model itself and --mtp",
    "Speculator": "a draft that reads hidden states of a model; give the model itself, --with eagle or --with medusa",
}
_GEMMA_FLAG: Final = "use_bidirectional_attention"
_BOTH_WAYS: Final = ("Bidirectional", "EncoderModel", "BiForMNTP", "BiModel")  # in names: arXiv:2404.05961


@frozen(kw_only=True)
class OutputHead:
    """The head that stands in for the one of words.

    rows     rows of its input: tokens, or the one token of a sequence that it classifies
    hidden   width of a projection with ReLU before it; 0: none
    classes  number of outputs; 0: hidden states are the result
    """

    rows: Form = TOKENS
    hidden: bool = False
    classes: int = 0
    bias: bool = False
    name: str = "score"

    def operators(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]:
        x = with_rows(x, self.rows)
        launches: tuple[Operator, ...] = ()
        if self.hidden:
            inner = parts.linear(f"{self.name}_dense", x, replace(x, name=f"{self.name}_dense"), bias=True)
            launches = (inner, parts.activate(f"{self.name}_act", "relu", inner.result))
            x = result(launches)
        out = with_rows(parts.tensor(self.name, self.classes), self.rows)
        return (*launches, parts.linear(self.name, x, out, bias=self.bias))


_BARE: Final = OutputHead()
_HEADS: Final[dict[str, Callable[[Section], OutputHead]]] = {  # by the ending of a class
    "ModernBertDecoderForSequenceClassification": lambda config: OutputHead(
        rows=SEQUENCES, classes=labels_of(config), bias=config.flag("classifier_bias", default=False)
    ),
    # transformers' GenericForSequenceClassification scores every token and keeps the last: one is enough.
    "ForSequenceClassification": lambda config: OutputHead(rows=SEQUENCES, classes=labels_of(config)),
    "ForTokenClassification": lambda config: OutputHead(
        classes=labels_of(config), bias=config.flag("token_classification_bias", default=True)
    ),
    "ForQuestionAnswering": lambda _: OutputHead(classes=2, bias=True, name="qa_outputs"),
    "InternLM2ForRewardModel": lambda _: OutputHead(classes=1, name="v_head"),
    # Qwen2.5-Math-RM-72B and PRM-7B: a score of a solution, or two of every step.
    "Qwen2ForRewardModel": lambda config: OutputHead(hidden=True, classes=config.integer("num_labels", 1), bias=True),
    "ForProcessRewardModel": lambda _: OutputHead(hidden=True, classes=2, bias=True),
    "ForMultimodalEmbedding": lambda _: _BARE,
    "ForEmbedding": lambda _: _BARE,
    "ForTextEncoding": lambda _: _BARE,
    "Encoder": lambda _: _BARE,
    "Model": lambda _: _BARE,
}


def as_named(config: Section, graph: Graph, fmt: Format) -> tuple[Graph, tuple[str, ...]]:
    """The graph of the class that `architectures` names, and notes about it.

    Raises InputError for a class that is part of a model, and for bidirectional attention that is not known.
    """
    read = "architectures" in config.read_keys  # by the builder, which then made the head
    named = next(iter(config.texts("architectures")), "")
    if any(block.stream == TARGET for block in graph.blocks):
        config.ignore("add_cross_attention")
    else:
        require_false(config, "add_cross_attention", "cross-attention of a decoder by itself is not known")
    notes: tuple[str, ...] = ()
    if _both_ways(config, named):
        bidirectional = partial(_seen_both_ways, halved=_halved(config))
        causal, graph = graph, Graph(tuple(map(partial(_one_pass, config=config, mask=bidirectional), graph.blocks)))
        if graph != causal:  # else it is that of an encoder
            notes = ("every token attends to all of the input: one pass, no decode",)
    if draft_type(config):
        return graph, (f"{named} drafts for another model: --with speculative:draft={config.file}", *notes)
    words = any(isinstance(op, LMHead) for block, op in graph if block.main)
    if not words and named and not read and not named.endswith(("Model", *_GENERATING)):
        return graph, (
            *notes,
            f"the class {named} is not known: counts as the bare model of {config.text('model_type')}",
        )
    if not words or not named or named in _CLASSES_WITH_HEAD or named.endswith(_GENERATING):
        return graph, notes
    for part, instead in _DRAFTS.items():
        if part in named:
            raise config.error("architectures", f"{named} is {instead}")
    ending = next((ending for ending in _HEADS if named.endswith(ending)), None)
    if ending is None:
        return graph, (*notes, f"the class {named} is not known: counts as a causal language model")
    head = _HEADS[ending](config)
    blocks = (_headed(block, fmt, head) for block in graph.blocks)
    graph = Graph(tuple(_one_pass(block, config=config, mask=_unkept) for block in blocks if block.operators))
    if head == _BARE:
        notes = (f"the class {named} has no head: one pass, no decode", *notes)
    return graph, notes


def _both_ways(config: Section, named: str) -> bool:
    """Whether a decoder attends to later tokens too: is_causal is read by vLLM and by code in repositories."""
    if config.get(_GEMMA_FLAG) in (True, "all"):
        return True
    causal = config.flag("is_causal", default=True) and config.flag("causal", default=True)
    bidirectional = config.flag("bidirectional", default=False) or any(part in named for part in _BOTH_WAYS)
    return bidirectional or not causal


def _halved(config: Section) -> bool:
    """Whether a window is that of both sides together, as in Gemma 3 and 4 where they attend both ways."""
    return bool(config.get(_GEMMA_FLAG)) and config.text("model_type").startswith(("gemma3", "gemma4"))


def _headed(block: Block, fmt: Format, head: OutputHead) -> Block:
    """`block` with `head` in place of the LM head; without operators if nothing is left of it."""
    words = next((op for op in block.operators if isinstance(op, LMHead)), None)
    if words is None or not block.main:
        return block
    before = tuple(op for op in block.operators[: block.operators.index(words)] if head.classes or not _of_words(op))
    launches = head.operators(Parts(format=fmt), words.inputs[0]) if head.classes else ()
    operators = (*before, *launches)
    return replace(block, operators=operators, output=result(operators).name) if operators else _EMPTY


def _of_words(op: Operator) -> bool:
    """Whether an operator belongs to the LM head, as a projection before it does."""
    return op.name.startswith("head_")


_EMPTY: Final = Block(name="head", operators=(), input="", output="")


def _unkept(mask: Mask) -> Mask:
    return UncachedCausal(mask.window) if type(mask) is Causal else mask


def _seen_both_ways(mask: Mask, *, halved: bool) -> Mask | None:
    """A causal mask without its direction; None if it is not causal. Everything() has what is seen to either side."""
    if not mask.is_cached:
        return mask
    if type(mask) is not Causal:
        return None
    if mask.window == inf:
        return Bidirectional()
    return Bidirectional(mask.window // 2 if halved else mask.window - 1)


def _one_pass(block: Block, *, config: Section, mask: Callable[[Mask], Mask | None]) -> Block:
    """`block` without caches, under other masks; states of recurrences end with the pass."""
    written = frozenset(t.name for op in block.operators for t in op.outputs)

    def changed(op: Operator) -> Operator:
        if not isinstance(op, Attention | Rope):
            return op.with_tensors(partial(_dropped, written=written, read=None))
        new_mask = mask(op.heads.mask)
        if new_mask is None:
            raise config.error("is_causal", f"must be true: attention to {op.heads.mask} is not known both ways")
        masked: Operator = replace(op, heads=replace(op.heads, mask=new_mask))
        return masked.with_tensors(partial(_dropped, written=written, read=new_mask.keys_read))

    return block.map(changed)


def _dropped(tensor: Tensor, written: frozenset[str], read: Form | None) -> Tensor:
    """`tensor` without rows that stay; keys and values are of this pass, or of a block before it if not `written`."""
    if tensor.role is Role.STATE:
        return replace(tensor, retained_rows=Form())
    if tensor.role is not Role.KV_CACHE:
        return tensor
    rows = tensor.rows if read is None or tensor.retained_rows is None else read
    if tensor.name not in written:
        return replace(tensor, retained_rows=Form(), rows=rows)
    return replace(tensor, role=Role.ACTIVATION, retained_rows=None, rows=rows)
