"""`Model`: a graph and its metadata."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field
from functools import cached_property
from math import inf

import numpy as np

from .forms import TARGET, Form, Num, evaluate, total
from .graph import Actions, Block, Graph
from .operators.attention import QK
from .operators.base import Role, Tensor
from .operators.convolution import Conv1d, Conv2d
from .operators.embedding import Embedding
from .operators.images import Patches, Place
from .operators.linear import LatentExpansion, LMHead
from .operators.masks import Cross, Mask
from .precision import Format
from .records import frozen
from .transforms.quantize import UNQUANTIZED, Quantization, quantize
from .workload import Workload


@frozen(kw_only=True)
class Model:
    """A network as published, before any technique is applied.

    format       format of weights and activations, before quantization
    quantization published quantization, the default of an analysis
    checkpoints  published checkpoints with other formats, by their quantization
    max_context  longest context; 0: unknown
    max_answer   longest context of the decoder, if it differs
    notes        notes for the report, such as config fields that were not read
    unsupported_quantization  settings of its quantization that are not supported, so that the size of its weights is
                 unknown; "": none
    with_prediction  the model with its multi-token prediction layers; None if it has none
    unknown_prediction_layers  multi-token prediction layers of its config whose structure is not known
    actions      actions that one inference makes; None if it is no model for robots
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
    quantization: Quantization = UNQUANTIZED
    checkpoints: tuple[Quantization, ...] = ()
    unsupported_quantization: str = ""
    with_prediction: Model | None = field(default=None, repr=False)
    unknown_prediction_layers: int = 0
    actions: Actions | None = None

    def __hash__(self) -> int:
        """Hash of the name, because graphs are long."""
        return hash(self.name)

    def __repr__(self) -> str:
        """The name only, because results contain the model many times."""
        return f"Model({self.name!r})"

    @cached_property
    def published(self) -> Graph:
        """The graph in its published formats."""
        return self.graph if self.quantization == UNQUANTIZED else self.graph.then(quantize(self.quantization))

    @cached_property
    def parameters(self) -> int:
        return self.graph.parameters

    @cached_property
    def active_parameters(self) -> int:
        """Parameters used per token, with embedding tables and head; of experts, only the top_k."""
        return round(self.graph.active_parameters)

    @cached_property
    def looked_up_parameters(self) -> int:
        """Parameters of embedding tables that no head shares, of which a token reads one row."""
        tied = {w.shape for _, op in self.graph for w in op.weights if w.tied}
        tables = (w for _, op in self.graph if isinstance(op, Embedding) for w in op.weights)
        return sum(w.numel for w in tables if w.shape not in tied)

    @cached_property
    def attention(self) -> str:
        """Kinds of attention with their masks, such as "GQA window 4096"; "state" is a recurrent state."""
        kinds = [f"{kind} {mask}".rstrip() for kind, mask in self._heads]
        return ", ".join((*dict.fromkeys(kinds), *self._recurrent))

    @cached_property
    def attention_kinds(self) -> tuple[str, ...]:
        """Kinds of attention without masks: MHA, GQA, MQA, MLA, state."""
        return (*dict.fromkeys(kind for kind, _ in self._heads), *self._recurrent)

    @cached_property
    def _heads(self) -> list[tuple[str, Mask]]:
        """(kind of attention, mask) of every product of queries and keys."""
        heads = []
        for block in self.graph.blocks:
            latent = any(isinstance(op, LatentExpansion) for op in block.operators)
            block_heads = (op.heads for op in block.operators if isinstance(op, QK))
            heads += [("MLA" if latent else h.kind, h.mask) for h in block_heads]
        return heads

    @cached_property
    def _recurrent(self) -> tuple[str, ...]:
        has_state = any(t.role is Role.STATE for _, op in self.graph for t in op.inputs)
        return ("state",) if has_state else ()

    @cached_property
    def generates(self) -> bool:
        """Whether the model generates token by token or denoises step by step; encoders do neither."""
        states = (t for block, op in self.graph if block.main for t in op.state())
        return bool(self.actions) or any(t.retained_rows is None or t.retained_rows for t in states)

    @cached_property
    def image_tokens(self) -> int:
        """Tokens per image in the prompt; 0 without image input."""
        one = Workload.prefill(batch=1, prompt=1, images=1)
        rows = (evaluate(op.features.rows, one) for _, op in self.graph if isinstance(op, Place) and not op.adds)
        return int(next(rows, 0))

    @cached_property
    def has_tower(self) -> bool:
        """Whether the model has an image or audio tower."""
        return any(block.stream.name == "images" for block in self.graph.blocks)

    @cached_property
    def has_audio_tower(self) -> bool:
        """Whether the tower encodes audio."""
        towers = ((block, op) for block, op in self.graph if block.stream.name == "images")
        return any(isinstance(op, Conv1d) or block.name.startswith("audio_") for block, op in towers)

    @cached_property
    def image_input_tokens(self) -> int:
        """Tokens per image, if images are the only input; 0 if the model processes a prompt."""
        firsts = (op for block, op in self.graph if isinstance(op, Patches | Conv2d) and block.main)
        return next((op.tokens for op in firsts), 0)

    @cached_property
    def is_encoder_decoder(self) -> bool:
        """Whether the model is an encoder-decoder."""
        return any(block.stream == TARGET or block.stream.name == "denoising" for block in self.graph.blocks)

    @cached_property
    def has_cross_attention(self) -> bool:
        """Whether the model has cross-attention to an encoder or to images."""
        return any(isinstance(mask, Cross) for _, mask in self._heads)

    @property
    def no_prediction_reason(self) -> str:
        """Reason why no multi-token prediction layers can run; "" if they can."""
        if self.with_prediction:
            return ""
        if not self.unknown_prediction_layers:
            return f"{self.name} has no known multi-token prediction layers"
        layers = f"{self.name} has multi-token prediction layers ({self.unknown_prediction_layers})"
        return f"{layers} of a structure that is not known"

    @property
    def kv_bytes_per_token(self) -> float:
        """Growth of the cache per token of a sequence, within all windows, in published formats. [B]"""
        return self._cache_growth(1.0)

    @property
    def kv_bytes_per_token_beyond_windows(self) -> float:
        """Growth of the cache per token of a sequence that is longer than all windows, in published formats. [B]"""
        bounds = (f.arguments[-1] for f in kv_cache(self.published).features() if f.arguments)
        return self._cache_growth(max((bound for bound in bounds if bound < inf), default=0.0) + 1)

    def _cache_growth(self, context: float) -> float:
        """Bytes that one more token adds to the cache of `context` tokens, of the prompt if the model denoises."""
        lengths = np.array([context, context + 1])
        prompt = lengths if self.actions and self.actions.denoising else 0
        cache = kv_cache_bytes(self.published, batch=1, context=lengths, prompt=prompt)
        return float(np.diff(np.broadcast_to(cache, 2))[0])


def kv_cache(graph: Graph) -> Form:
    """The KV cache of the sequences of a decode step; layers with a window keep its last tokens. [B]"""
    return total(block.repeat * tensor.device_bytes.on(block.stream) for block, tensor in retained_tensors(graph))


def offloaded_kv_cache(graph: Graph) -> Form:
    """The offloaded part of the KV cache. [B]"""
    return total(
        block.repeat * tensor.offloaded * tensor.retained_bytes.on(block.stream)
        for block, tensor in retained_tensors(graph)
    )


def retained_tensors(graph: Graph) -> Iterable[tuple[Block, Tensor]]:
    """Tensors that stay in memory between passes, each once, with their blocks."""
    return {(id(block), t.name): (block, t) for block, op in graph for t in op.state()}.values()


def kv_cache_bytes(graph: Graph, *, batch: Num, context: Num, prompt: Num = 0, images: Num = 0) -> Num:
    """The KV cache of `batch` sequences of `context` tokens. [B]

    prompt  tokens processed by the encoder, if the model has one
    images  images per prompt
    """
    return evaluate(kv_cache(graph), Workload.decode(batch=batch, kv_len=context, prompt=prompt, images=images))


def vocabulary(model: Model) -> int:
    """Rows of the prediction head; 0 if there is none."""
    return next((op.weight.shape[0] for _, op in model.graph if isinstance(op, LMHead)), 0)
