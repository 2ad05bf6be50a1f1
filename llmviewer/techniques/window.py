"""Attention to the last tokens alone, and to a few first ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..graph import Graph
from ..operators.masks import Causal
from . import technique
from ._masks import causal, masked
from ._parameters import parameter
from ._technique import Kind, Machine, Technique, Touches


@dataclass(frozen=True, kw_only=True)
class Windowed(Technique):
    """Every layer attends to so many tokens at most, and its cache keeps no more."""

    kind = Kind.ATTENTION
    touches = Touches.ANSWERS

    @property
    def tokens(self) -> int:
        """Keys that a query sees at most."""
        raise NotImplementedError

    def network(self, graph: Graph, *, decode: bool) -> Graph:  # noqa: ARG002
        return masked(graph, lambda mask: Causal(self.tokens) if self.tokens < mask.window else None)

    def refuses(self, machine: Machine, others: Sequence[Technique]) -> str:
        for other in others:
            if isinstance(other, Windowed):
                return f"{other.name} is a window too; give the narrower one"
        if not any(self.tokens < mask.window for mask in causal(machine.model.graph)):
            return f"no attention of {machine.model.name} sees more than {self.tokens} tokens"
        return ""


@technique("window")
@dataclass(frozen=True, kw_only=True)
class Window(Windowed):
    """Sliding window: a token attends to the last `size` tokens, its own among them.

    Changes: pairs of attention, keys and values read, and the cache kept, which grows no further than the window.
    Formula: context s becomes min(s, size); pairs of a prompt of n go from n (n + 1) / 2 to about n x size.
    Source: arXiv:2004.05150, section 3.1.
    Helps: where the cache is a large part of what is read or held: long contexts, large batches.
    Cannot: make anything faster while contexts are shorter than the window; weights are read as before. What lies
    further back is out of reach of one layer, so a model has to be trained with it.
    """

    size: int = parameter("tokens that a query sees", unit="tokens", least=1)

    @property
    def tokens(self) -> int:
        return self.size


@technique("streaming")
@dataclass(frozen=True, kw_only=True)
class Streaming(Windowed):
    """StreamingLLM: a sliding window beside the first few tokens, the attention sinks.

    Changes: as a window of sinks + window tokens: pairs, keys and values read, the cache kept.
    Formula: context s becomes min(s, sinks + window).
    Source: arXiv:2309.17453, section 3.2.
    Helps: endless streams, as memory and time of a step stop growing; the sinks keep models stable that were trained
    without a window.
    Cannot: bring back what was evicted; weights are read as before.
    """

    sinks: int = parameter("first tokens that always stay", 4, unit="tokens", least=0)
    window: int = parameter("last tokens that a query sees", 2044, unit="tokens", least=1)

    @property
    def tokens(self) -> int:
        return self.sinks + self.window
