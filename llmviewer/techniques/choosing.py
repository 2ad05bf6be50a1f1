"""Sampling a token from the logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import log2
from typing import Final

from ..devices.hardware import Hardware
from ..graph import Block, Graph
from ..operators.base import Operator, Tensor
from ..operators.elementwise import Elementwise
from ..operators.linear import LMHead
from ..precision import FP32
from ..records import frozen
from . import technique
from ._parameters import parameter
from ._technique import Kind, Requirement, SettingView, Technique

_SOFTMAX = 5  # OPs per logit: maximum, subtract, exp, sum, divide
_DRAW = 2  # running sum, comparison with the random number
# Kinds of operators by method, as kernels that choose tokens are called where they were measured.
_KINDS: Final = {"greedy": "argmax", "temperature": "sampling", "top-k": "sample", "top-p": "sample"}


@technique("sampling")
@frozen(kw_only=True)
class Sampling(Technique):
    """Sampling: chooses each token from the logits, greedily or at random from all, the top k or the top p.

    Effect: a launch after the head, which reads the logits of each position that needs a token.
    Formula: OPs per logit, of V: 1 (greedy: a comparison); 1 + 5 + 2 (temperature, softmax, draw); with top-k or top-p
    also the log2(V) comparisons of a sort.
    Source: arXiv:1904.09751 (top p).
    Use when: the cost of sampling matters, which other analyses omit. At the bound it is small compared with the head;
    the measured kernel for top k and top p is expected to take some 70 times its bound for 64 sequences of Llama 3.1 8B
    on an H100, and more for fewer.
    Not modeled: synchronization with the host after each token, as in simple programs.
    """

    kind = Kind.DECODING
    requires = Requirement.OTHER_OUTPUT

    method: str = parameter(
        "how a token is chosen", "greedy", choices=("greedy", "temperature", "top-k", "top-p")
    )  # fmt: skip

    def lowered(self, graph: Graph, hardware: Hardware, *, decode: bool) -> Graph:  # noqa: ARG002
        return graph.map_blocks(self._chosen)

    def _chosen(self, block: Block) -> Block:
        operators: list[Operator] = []
        for op in block.operators:
            operators.append(op)
            if isinstance(op, LMHead):
                logits = op.result
                token = Tensor(name=f"{op.name}_token", width=1, format=FP32, rows=logits.rows)
                ops, kind = self._ops(logits.width) * logits.width, _KINDS[self.method]
                operators.append(
                    Elementwise(name="sample", kind=kind, inputs=(logits,), outputs=(token,), ops_per_element=ops)
                )
        return replace(block, operators=tuple(operators))

    def _ops(self, vocabulary: int) -> float:
        """OPs per logit."""
        if self.method == "greedy":
            return 1
        sort = log2(max(vocabulary, 2)) if self.method in ("top-k", "top-p") else 0
        return 1 + _SOFTMAX + _DRAW + sort

    def incompatibility(self, setting: SettingView, others: Sequence[Technique]) -> str:  # noqa: ARG002
        if not any(isinstance(op, LMHead) for _, op in setting.model.graph):
            return f"{setting.model.name} has no prediction head whose logits could be sampled"
        return ""
