"""Sliding windows, with or without attention sinks."""

from __future__ import annotations

from collections.abc import Sequence

from ..graph import Graph
from ..operators.masks import Causal
from ..records import frozen
from . import technique
from ._masks import causal_masks, replace_masks
from ._parameters import parameter
from ._technique import Kind, Requirement, SettingView, Technique


class Windowed(Technique):
    """Every layer attends to at most `tokens` tokens, and its cache keeps no more."""

    kind = Kind.ATTENTION
    requires = Requirement.OTHER_OUTPUT

    @property
    def tokens(self) -> int:
        """Maximum number of keys that a query sees."""
        raise NotImplementedError

    def network(self, graph: Graph, *, decode: bool) -> Graph:  # noqa: ARG002
        return replace_masks(graph, lambda mask: Causal(self.tokens) if self.tokens < mask.window else None)

    def incompatibility(self, setting: SettingView, others: Sequence[Technique]) -> str:
        for other in others:
            if isinstance(other, Windowed):
                return f"{other.name} is also a window; give the narrower one"
        if not any(self.tokens < mask.window for mask in causal_masks(setting.model.graph)):
            return f"no attention of {setting.model.name} sees more than {self.tokens} tokens"
        return ""


@technique("window")
@frozen(kw_only=True)
class Window(Windowed):
    """Sliding window: a token attends to the last `size` tokens, itself included.

    Effect: fewer query-key pairs, keys and values read. The cache does not outgrow the window.
    Formula: context s becomes min(s, size); the pairs of a prompt of n go from n (n + 1) / 2 to about n x size.
    Source: arXiv:2004.05150, section 3.1.
    Use when: the cache is a large part of memory or traffic: long contexts, large batches.
    Limits: no gain while contexts are shorter than the window. Weights are read as before. A layer sees nothing further
    back, so the model must be trained with the window.
    """

    size: int = parameter("last tokens that a query sees", unit="tokens", least=1)

    @property
    def tokens(self) -> int:
        return self.size


@technique("streaming")
@frozen(kw_only=True)
class Streaming(Windowed):
    """StreamingLLM: a sliding window and the first few tokens, the attention sinks.

    Effect: as a window of sinks + window tokens: fewer query-key pairs, keys and values read, and a smaller cache.
    Formula: context s becomes min(s, sinks + window).
    Source: arXiv:2309.17453, section 3.2.
    Use when: streams are endless: memory and step time stop growing. The sinks keep models stable that were trained
    without a window.
    Limits: evicted tokens are lost. Weights are read as before.
    """

    sinks: int = parameter("first tokens that always stay in the cache", 4, unit="tokens", least=0)
    window: int = parameter("last tokens that a query sees", 2044, unit="tokens", least=1)

    @property
    def tokens(self) -> int:
        return self.sinks + self.window
