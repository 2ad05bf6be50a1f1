"""A model: its graph, and the few facts about it that are not in the graph."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from .forms import TARGET, Form, Num, evaluate, total
from .graph import Block, Graph
from .operators.attention import QK
from .operators.base import Role, Tensor
from .operators.convolution import Conv1d
from .operators.embedding import Embedding
from .operators.linear import LatentExpansion
from .operators.masks import Across, Mask
from .operators.pictures import Patches, Place
from .precision import Format
from .transforms.quantize import AS_IT_IS, Quantization, quantize
from .workload import Workload


@dataclass(frozen=True, kw_only=True)
class Model:
    """A network as published, before any technique is applied.

    format       what weights and activations are stored in, or were before they were quantized
    quantization what was quantized when it was published; an analysis that asks for no other uses it
    max_context  tokens that its positions are made for; 0 where it says nothing
    max_answer   those of its decoder, where they are others
    notes        what a reader of the results should know, such as fields of its file that nothing read
    unknown      what of its quantization is not known here, so that its weights may be of another size; "" where all is
    predicting   the same with its layers that predict further tokens; None where there are none
    """

    name: str
    title: str
    model_type: str
    graph: Graph = field(repr=False)
    format: Format
    max_context: int = 0
    max_answer: int = 0
    aliases: tuple[str, ...] = ()
    source: str = ""
    notes: tuple[str, ...] = ()
    quantization: Quantization = AS_IT_IS
    unknown: str = ""
    predicting: Model | None = field(default=None, repr=False)

    def __hash__(self) -> int:
        """By its name, as graphs are long."""
        return hash(self.name)

    def __repr__(self) -> str:
        """Its name, as what is found of it holds it many times."""
        return f"Model({self.name!r})"

    @cached_property
    def published(self) -> Graph:
        """The graph in the formats that it was published in."""
        return self.graph if self.quantization == AS_IT_IS else self.graph.then(quantize(self.quantization))

    @cached_property
    def parameters(self) -> int:
        return self.graph.parameters

    @cached_property
    def active_parameters(self) -> int:
        """Parameters that take part in one token: all of a dense model's, the chosen experts of a sparse one's; tables
        and the head among them.
        """
        return round(self.graph.active_parameters)

    @cached_property
    def looked_up_parameters(self) -> int:
        """Of those, the tables of which a token takes a row and no more, as no head shares them."""
        tied = {w.shape for _, op in self.graph for w in op.weights if w.tied}
        tables = (w for _, op in self.graph if isinstance(op, Embedding) for w in op.weights)
        return sum(w.numel for w in tables if w.shape not in tied)

    @cached_property
    def attention(self) -> str:
        """Its kinds of attention with their windows, and state where some layers keep one."""
        kinds = [f"{kind} {mask}".rstrip() for kind, mask in self._heads]
        return ", ".join((*dict.fromkeys(kinds), *self._recurrent))

    @cached_property
    def attention_kinds(self) -> tuple[str, ...]:
        """MHA, GQA, MQA or MLA, and state."""
        return (*dict.fromkeys(kind for kind, _ in self._heads), *self._recurrent)

    @cached_property
    def _heads(self) -> list[tuple[str, Mask]]:
        """The kind of attention and the mask of every product of queries and keys."""
        found = []
        for block in self.graph.blocks:
            latent = any(isinstance(op, LatentExpansion) for op in block.operators)
            heads = (op.heads for op in block.operators if isinstance(op, QK))
            found += [("MLA" if latent else h.kind, h.mask) for h in heads]
        return found

    @cached_property
    def _recurrent(self) -> tuple[str, ...]:
        kept = any(t.role is Role.STATE for _, op in self.graph for t in op.inputs)
        return ("state",) if kept else ()

    @cached_property
    def generates(self) -> bool:
        """Whether it writes token by token: some of a pass stays for the next one. An encoder reads and is done."""
        return any(op.state() for block, op in self.graph if block.main)

    @cached_property
    def image_tokens(self) -> int:
        """Tokens that one picture puts into the prompt; 0 where there are none."""
        one = Workload.prefill(batch=1, prompt=1, images=1)
        rows = (evaluate(op.features.rows, one) for _, op in self.graph if isinstance(op, Place) and not op.adds)
        return int(next(rows, 0))

    @cached_property
    def sees(self) -> bool:
        """Whether a tower for pictures, or for sound, stands beside what reads the prompt."""
        return any(block.stream.name == "images" for block in self.graph.blocks)

    @cached_property
    def hears(self) -> bool:
        """Whether what it sees is sound."""
        return any(isinstance(op, Conv1d) and block.stream.name == "images" for block, op in self.graph)

    @cached_property
    def picture(self) -> int:
        """Tokens of a picture, where that is what the model reads; 0 where it reads a prompt."""
        return next((op.tokens for block, op in self.graph if isinstance(op, Patches) and block.main), 0)

    @cached_property
    def encodes(self) -> bool:
        """Whether an encoder reads the prompt, and a decoder beside it writes."""
        return any(block.stream == TARGET for block in self.graph.blocks)

    @cached_property
    def crosses(self) -> bool:
        """Whether some of its attention is to what an encoder has read, or to pictures, beside the prompt's tokens."""
        return any(isinstance(mask, Across) for _, mask in self._heads)

    @property
    def kv_bytes_per_token(self) -> float:
        """What the cache grows by with every token of one sequence, within any window, as published. [B]"""
        cache = kv_cache_bytes(self.published, batch=1, context=np.array([1.0, 2.0]))
        return float(np.diff(np.broadcast_to(cache, 2))[0])


def kv_cache(graph: Graph) -> Form:
    """The KV cache of a decode step's sequences; layers with a window keep its last tokens. [B]"""
    return total(block.repeat * tensor.held_bytes.on(block.stream) for block, tensor in _kept(graph))


def kv_cache_away(graph: Graph) -> Form:
    """What of it lies outside of device memory. [B]"""
    return total(block.repeat * tensor.away * tensor.kept_bytes.on(block.stream) for block, tensor in _kept(graph))


def _kept(graph: Graph) -> Iterable[tuple[Block, Tensor]]:
    return {(id(block), t.name): (block, t) for block, op in graph for t in op.state()}.values()


def kv_cache_bytes(graph: Graph, *, batch: Num, context: Num, prompt: Num = 0, images: Num = 0) -> Num:
    """The KV cache of `batch` sequences of `context` tokens. [B]

    prompt  tokens of it that an encoder has read, where the model has one
    images  pictures that each prompt had
    """
    return evaluate(kv_cache(graph), Workload.decode(batch=batch, kv_len=context, prompt=prompt, images=images))
