"""FlashAttention: scores, softmax and the weighted sum in one launch (arXiv:2205.14135, arXiv:2307.08691)."""

from __future__ import annotations

from ..graph import Block, Transform
from ..operators.attention import QK, SV, FlashAttention, Softmax
from ..operators.base import Operator
from ..records import copied


def flash_attention(on_chip_bytes: float) -> Transform:
    """A transform that fuses consecutive QK, Softmax and SV; `on_chip_bytes` limits the tiles. [B]"""

    def one(block: Block) -> Block:
        operators: list[Operator] = []
        for op in block.operators:
            operators.append(op)
            match operators[-3:]:
                case [QK() as qk, Softmax() as softmax, SV() as sv]:
                    read = (*qk.inputs, *sv.inputs[1:])  # a tensor that is both key and value is read once
                    fused = FlashAttention(
                        name=qk.name.replace("qk_matmul", "attention"),
                        inputs=tuple(dict.fromkeys(read)),
                        outputs=sv.outputs,
                        weights=softmax.weights,
                        heads=qk.heads,
                        bias=softmax.bias,
                        on_chip_bytes=on_chip_bytes,
                    )
                    operators[-3:] = [fused]
        return copied(block, operators=tuple(operators))

    return lambda graph: graph.map_blocks(one)
