"""Decode attention split along the context."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ..devices.hardware import Hardware
from ..forms import TOKENS
from ..graph import Block, Graph
from ..operators.attention import QK, FlashAttention
from ..operators.base import Operator, Role, Tensor
from ..operators.elementwise import Elementwise
from ..precision import FP32
from ..records import frozen
from ..workload import Workload
from . import technique
from ._parameters import parameter
from ._technique import Finding, Kind, Requirement, SettingView, Technique


@technique("split-kv")
@frozen(kw_only=True)
class SplitKv(Technique):
    """FlashDecoding: the attention of a decode step is split along the context, and partial results are combined.

    Effect: in decode, each split writes its partial result in fp32, with its largest score and sum, and a second launch
    combines them. Expected times are those of the library's kernel with this number of parts, of which those without
    the technique choose their own; with splits=1, each key head is read by one core.
    Formula: batch x heads x splits x (head size + 2) x 4 bytes, written and read; busy cores = min(1, batch x key heads
    x splits / cores).
    Source: arXiv:2404.14294, section 6.1.1; pytorch.org/blog/flash-decoding (2023).
    Use when: batches are small and contexts long, so that one core per key head would leave most cores idle. The
    expected time has the gain. The bound may not: it holds for any kernel, and a kernel can split keys, or the elements
    of a head, among all cores whatever the batch; so it assumes that all are busy, and shows only the cost.
    Limits: no gain if batch x key heads is at least the number of cores.
    """

    kind = Kind.GRAPH
    requires = Requirement.NOTHING
    separate_decode_graph = True

    splits: int = parameter("splits of the context", 8, least=1, most=4096)

    def lowered(self, graph: Graph, hardware: Hardware, *, decode: bool) -> Graph:  # noqa: ARG002
        return graph.map_blocks(self._split) if decode else graph

    def _split(self, block: Block) -> Block:
        operators: list[Operator] = []
        for op in block.operators:
            if not (isinstance(op, FlashAttention) and any(t.role is Role.KV_CACHE for t in op.inputs)):
                operators.append(op)
                continue
            attention = replace(op, splits=self.splits)
            if self.splits == 1:
                operators.append(attention)
                continue
            width = op.heads.num_heads * (op.heads.out_dim + 2) * self.splits
            parts = Tensor(name=f"{op.name}_parts", width=width, format=FP32, rows=TOKENS)
            operators.append(replace(attention, outputs=(parts,)))
            operators.append(
                Elementwise(
                    name=f"{op.name}_join",
                    kind="reduction",
                    inputs=(parts,),
                    outputs=op.outputs,
                    ops_per_element=3 * self.splits,  # scale, add, sum of weights
                )
            )
        return replace(block, operators=tuple(operators))

    def findings(self, setting: SettingView, step: Workload) -> tuple[Finding, ...]:
        cores = setting.hardware.numbers.get("cores.count")
        heads = [op.heads.num_kv_heads for _, op in setting.decode_graph if isinstance(op, FlashAttention)]
        if not cores or not heads:
            return ()
        unsplit, split = (min(1.0, float(np.max(step.sequences())) * min(heads) * n / cores) for n in (1, self.splits))
        text = f"decode attention uses {split:.0%} of {cores:.0f} cores, {unsplit:.0%} without splits"
        return (Finding(key="busy_cores", value=split, text=text),)

    def incompatibility(self, setting: SettingView, others: Sequence[Technique]) -> str:  # noqa: ARG002
        if not setting.model.generates:
            return f"{setting.model.name} does not generate: it has no decode step"
        if setting.attention == "eager" or not any(isinstance(op, QK) for _, op in setting.model.graph):
            return f"{setting.model.name} has no flash attention to split"
        return ""
