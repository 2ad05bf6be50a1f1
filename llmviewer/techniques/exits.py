"""Exits between the layers of an encoder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from ..architectures.blocks.encoder import Head
from ..architectures.blocks.parts import Parts, result
from ..devices.hardware import Hardware
from ..forms import WHOLE_PASS, sampled_sequences
from ..graph import Block, Graph
from ..operators.attention import FlashAttention, Heads
from ..operators.base import Operator, Tensor
from ..operators.masks import Bidirectional
from ..records import frozen
from . import technique
from ._layers import shares_left
from ._parameters import Condition, parameter
from ._technique import Kind, Requirement, SettingView, Technique

_STUDENT_HEADS: Final = 2


@technique("encoder-exit")
@frozen(kw_only=True)
class EncoderExit(Technique):
    """Early exit of encoders (FastBERT, DeeBERT, PABEE): sequences leave at the first classifier that is sure.

    Effect: after every `every` layers but the last, a classifier with weights of its own reads the sequences that are
    left, and the same fraction of them leaves at each, such that a sequence runs the fraction `layers` of the layers on
    average. A layer is launched, and its weights read, with the probability that any sequence of the batch is left. A
    classifier is linear, a linear after a pooler, or a `student`: a layer of attention `width` wide.
    Formula: sequences left after n exits = stay^n; their mean over layers is `layers`. A student has 2 d width + 10
    width^2 OPs for each token, beside its attention.
    Source: arXiv:2004.02178, section 3 (FastBERT: student); arXiv:2004.12993 (DeeBERT: pooler); arXiv:2006.04152
    (PABEE: linear).
    Use when: an encoder classifies sequences one by one, or in large batches whose hard sequences go on together.
    Limits: no gain in weights read by batches of which some sequence always stays. Weights and exits are all held in
    memory.
    Not modeled: taking sequences out of a batch. Live activations are those of the mean batch.
    """

    kind = Kind.DECODING
    requires = Requirement.NEW_WEIGHTS
    order = -3  # before techniques that change layers, so that they change all parts

    layers: float = parameter("mean fraction of the layers that a sequence runs", 0.5, least=0, most=1, open=True)
    every: int = parameter("layers between exits", 1, least=1, most=1024)
    classifier: str = parameter("classifier of an exit", "pooler", choices=("linear", "pooler", "student"))
    classes: int = parameter("classes of a classifier", 2, least=1, most=100_000)
    width: int = parameter(
        "width of a student", 128, least=_STUDENT_HEADS, most=65_536, condition=Condition("classifier", ("student",))
    )

    def lowered(self, graph: Graph, hardware: Hardware, *, decode: bool) -> Graph:  # noqa: ARG002
        total = graph.layers
        left = shares_left(self.layers, self.every, total)

        def pieces() -> Iterator[Block]:
            is_after_layers = False
            for block in graph.blocks:
                if not (block.main and block.layers):
                    is_head = block.main and is_after_layers
                    yield replace(block, stream=sampled_sequences(left[-1])) if is_head else block
                    continue
                is_after_layers = True
                for layer in block.layers:
                    stream = sampled_sequences(left[layer // self.every])
                    name = f"{block.name}.{layer}"
                    yield replace(block, name=name, layers=(layer,), stream=stream)
                    if (layer + 1) % self.every == 0 and layer + 1 < total:
                        exit_operators = self._exit(block.result)
                        yield Block(
                            name=f"exit.{layer}", operators=exit_operators, input=block.output,
                            output=result(exit_operators).name, stream=stream,
                        )  # fmt: skip

        return Graph(tuple(pieces()))

    def _exit(self, hidden: Tensor) -> tuple[Operator, ...]:
        """The classifier that reads `hidden`."""
        parts = Parts(format=hidden.format)
        if self.classifier != "student":
            dense = hidden.width if self.classifier == "pooler" else 0
            return Head(first=True, dense=dense, classes=self.classes).operators(parts, hidden)
        narrow = parts.project("student_in", hidden, self.width, bias=True)
        query, key, value = (
            parts.project(f"student_{name}", narrow.result, self.width, bias=True) for name in ("q", "k", "v")
        )
        heads = Heads(
            num_heads=_STUDENT_HEADS, num_kv_heads=_STUDENT_HEADS, head_dim=self.width // _STUDENT_HEADS,
            mask=Bidirectional(),
        )  # fmt: skip
        keys_and_values = (replace(op.result, rows=heads.mask.keys_read) for op in (key, value))
        attention = FlashAttention(
            name="student_attention", inputs=(query.result, *keys_and_values), heads=heads,
            outputs=(parts.tensor("student_attention", self.width),),
        )  # fmt: skip
        joined = parts.project("student_o", attention.result, self.width, bias=True)
        last = parts.project("student_dense", joined.result, self.width, bias=True)
        classes = Head(first=True, classes=self.classes).operators(parts, last.result)
        return (narrow, query, key, value, attention, joined, last, *classes)

    def incompatibility(self, setting: SettingView, others: Sequence[Technique]) -> str:  # noqa: ARG002
        model = setting.model
        streams = {block.stream for block in model.graph.blocks if block.layers}
        if model.generates or model.is_encoder_decoder or streams != {WHOLE_PASS}:
            return f"{model.name} is no encoder of text alone; give early-exit for models that generate"
        least = self.every / model.graph.layers
        if self.layers <= least or self.every >= model.graph.layers:
            return f"layers must be above {least:.3g}, those before the first exit; got {self.layers:g}"
        return ""
