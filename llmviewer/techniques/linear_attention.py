"""Linear attention: a state replaces the cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..forms import SEQUENCES
from ..graph import Block, Graph
from ..operators.attention import QK, SV, Softmax
from ..operators.base import Operator, Role, Tensor
from ..operators.masks import Causal
from ..operators.state_space import LinearScan
from ..precision import FP32
from ..records import frozen
from . import technique
from ._masks import causal_masks
from ._parameters import parameter
from ._technique import Kind, Requirement, SettingView, Technique
from .split_kv import SplitKv


@technique("linear-attention")
@frozen(kw_only=True)
class LinearAttention(Technique):
    """Linear attention: without a softmax, keys and values sum up in a state of fixed size.

    Effect: a state replaces cache and query-key pairs: each key head keeps a feature x value matrix and a normalizer
    vector, which every pass reads and writes. Prompts are processed in chunks, within which pairs are computed.
    Formula: out = phi(Q) (phi(K)^T V): 2 x features x (value + 1) OPs per token, once for each key head and once for
    each query head, 4 per feature for phi and 2 x key x features to project on directions (Performer, RFA), and 2 x
    (features + value) per pair within a chunk and query head.
    Source: arXiv:2006.16236, equations 4 to 6; in chunks: arXiv:2312.06635; random features: arXiv:2009.14794.
    Use when: contexts are long: step time and memory do not grow with them.
    Limits: the model must be trained with it. At short contexts a step reads more state than it would read cache.
    """

    kind = Kind.ATTENTION
    requires = Requirement.NEW_WEIGHTS

    chunk: int = parameter("tokens of a prompt per chunk", 64, unit="tokens", least=1)
    features: int = parameter("features of a head, of random or learned directions; 0: one per element", 0, least=0)

    def network(self, graph: Graph, *, decode: bool) -> Graph:  # noqa: ARG002
        return graph.map_blocks(self._linear)

    def _linear(self, block: Block) -> Block:
        operators: list[Operator] = []
        cached: set[str] = set()
        for op in block.operators:
            operators.append(op)
            match operators[-3:]:
                case [QK() as qk, Softmax(), SV() as sv] if type(qk.heads.mask) is Causal and len(qk.inputs) == 2:
                    operators[-3:] = [self._scan(qk, sv)]
                    cached |= {t.name for t in (*qk.inputs, *sv.inputs) if t.role is Role.KV_CACHE}

        def used(t: Tensor) -> Tensor:
            return replace(t, role=Role.ACTIVATION, retained_rows=None) if t.name in cached else t

        return replace(block, operators=tuple(op.with_tensors(used) for op in operators))

    def _scan(self, qk: QK, sv: SV) -> LinearScan:
        heads, (query, key), value, out = qk.heads, qk.inputs, sv.inputs[1], sv.result
        width = heads.num_kv_heads * (self.features or heads.head_dim) * (heads.out_dim + 1)
        state = Tensor(name="scan_state", width=width, format=FP32, rows=SEQUENCES, role=Role.STATE)
        inputs = (query, *(replace(t, rows=query.rows) for t in (key, value)), state)
        return LinearScan(
            name="scan", inputs=inputs, outputs=(out, state), heads=heads, chunk=self.chunk, features=self.features
        )

    def incompatibility(self, setting: SettingView, others: Sequence[Technique]) -> str:
        if not list(causal_masks(setting.model.graph)):
            return f"{setting.model.name} has no causal attention to replace"
        other = next((other for other in others if other.kind is Kind.ATTENTION or isinstance(other, SplitKv)), None)
        return f"{other.name} needs a cache" if other else ""
