"""Parts of a pass, and their assignment to kernels by name and to operators by kind.

Names are those of PyTorch, cuBLAS, CUTLASS, FlashAttention, FlashInfer, vLLM, SGLang, TensorRT-LLM, DeepGEMM, Triton,
llama.cpp and NCCL, as profiles of 2024 to 2026 have them (tests/test_timelines.py), and of PyTorch's operators.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Final

from ..analyzing.phases import OperatorResult
from ..operators.kinds import OperatorGroup, kind_of


class Part(StrEnum):
    """Parts of a pass. A fused kernel counts in the part of most of its work."""

    PRODUCTS = "matrix products"
    EXPERTS = "experts"
    ATTENTION = "attention"
    STATE = "state space"
    ELEMENTWISE = "elementwise"
    COMMUNICATION = "communication"
    SAMPLING = "sampling"
    COPIES = "copies"
    OTHER = "other"


@dataclass(frozen=True, kw_only=True)
class KernelOfPass:
    """All kernels of one name in a pass: number of launches, and total time. [s]"""

    name: str
    part: str
    launches: float
    measured_s: float


_ACTIVATION: Final = "activation"
_LIBRARY: Final = re.compile(r"flashinfer|flash_infer", re.IGNORECASE)  # has kernels of all parts
# The first pattern found in a name decides.
_NAMES: Final = tuple(
    (what, re.compile("|".join(patterns), re.IGNORECASE))
    for what, patterns in (
        (Part.COPIES, (r"^\[?(cuda )?mem(cpy|set)",)),
        (Part.ELEMENTWISE, ("reshape_and_cache", "concat_and_cache", "append_?paged", "fullcache", r"(store|set)_kv")),
        (Part.COMMUNICATION, (
            "nccl", "rccl", "all_?reduce", "all_?gather", "reduce_?scatter", "all_?to_?all", "cross_device_reduce",
            "deep_?ep", "nvshmem", "multimem", "mscclpp",
        )),
        (Part.EXPERTS, (
            "moe", "expert", "grouped?_?(gemm|mm)", "groupproblemshape", r"^(void )?bmm_", "routing", "matmul_ogs",
            "bitmatrix", "topk_?(gating|softmax|sigmoid|forward)", "grouped_topk", "mul_mat_(vec_)?id",
        )),
        (_ACTIVATION, ("act_and_mul", "silu", "swiglu", "gelu", "gated_op")),
        (Part.ELEMENTWISE, (
            "rms_?norm", "layer_?norm", "_norm_", "norm_kernel", "rotary", "rope", "(?<!de)quantiz(?!ed_ge)", "_quant_",
            "quant_kernel",
        )),
        (Part.STATE, (
            "selective_scan", "mamba", "ssm_", "ssd_", "causal_conv1d", "delta_rule", "gated_delta", "fused_recurrent",
            "wkv", "chunk_(scan|state|fwd|local|scaled|cumsum)",
        )),
        (Part.ATTENTION, (
            "flash", "fmha", "attention", "attn", "mla(_|::|kernel)", "batch_?(decode|prefill)", "merge_?states?",
            "paged_?kv", "softmax_warp", "mqa_logits", "sparse_(indices|mla)", "_fwd_(grouped_)?kernel",
            "reduce_segments",
        )),
        (Part.SAMPLING, (
            "sampl", "argmax", "soft_?max", "top_?[kp]", "radix", "sort", "multinomial", "penalt", "exponential",
        )),
        (Part.PRODUCTS, (
            "gemm", "gemv", "nvjet", "matmul", "mul_mat", "cutlass", "xmma", "s16816", "s1688", "split_?k", "marlin",
            "machete", "dequant", "cijk_", "_mm_", "triton_tem", "awq", "gptq", "bitblas", r"::\w*linear",
            r"::\w*mm(_|$)",
        )),
        (Part.ELEMENTWISE, (
            "elementwise", "quant", "cvt_", "convert", "embedding", "index", "gather", "scatter", "copy", "cpy",
            "cat_?array", "reduce_kernel", "triton_(poi|red|per)", "cast", "fill", "add_", "mul_", "norm", "get_rows",
            "^aten::", "compiledfxgraph",
        )),
    )
)  # fmt: skip
_MOST: Final = 0.5  # share of the layers that mix tokens
_MINOR: Final = re.compile(
    r"combine|merge|reduce|prepare|sched|metadata|mqa_logits|indices|stage_?2|conv1d|cumsum", re.IGNORECASE
)
OPENS: Final = re.compile("^aten::embedding")  # the first operator of a pass on a CPU
SUMS_UP: Final = re.compile(r"split_?k_?reduce|reduce_?split", re.IGNORECASE)  # beside the product itself
_GROUPS: Final[Mapping[OperatorGroup, Part]] = {
    OperatorGroup.LINEAR: Part.PRODUCTS, OperatorGroup.HEAD: Part.PRODUCTS, OperatorGroup.EXPERTS: Part.EXPERTS,
    OperatorGroup.ATTENTION: Part.ATTENTION, OperatorGroup.STATE: Part.STATE,
    OperatorGroup.ELEMENTWISE: Part.ELEMENTWISE, OperatorGroup.COMMUNICATION: Part.COMMUNICATION,
}  # fmt: skip


# Parts that cover another one without kernels: eager attention runs as matrix products, a stepwise scan as elementwise.
COVERED_BY: Final[Mapping[Part, Part]] = {
    Part.ATTENTION: Part.PRODUCTS, Part.EXPERTS: Part.PRODUCTS, Part.ELEMENTWISE: Part.PRODUCTS,
    Part.STATE: Part.ELEMENTWISE,
}  # fmt: skip


def part_of_operator(op: OperatorResult) -> Part:
    if op.kind == "activation" and op.name.startswith("expert_"):
        return Part.EXPERTS
    kind = kind_of(op.kind)
    return Part.PRODUCTS if kind.product else _GROUPS[kind.group]


def parts_of(names: Iterable[str], operators: Iterable[OperatorResult]) -> dict[str, Part]:
    """The part of each kernel; activations belong to experts if the model has no other activations."""
    kinds = {part_of_operator(op) for op in operators if op.kind == "activation"}
    activation = Part.EXPERTS if kinds == {Part.EXPERTS} else Part.ELEMENTWISE
    return {name: activation if (what := _what(name)) == _ACTIVATION else Part(what) for name in names}


def in_layers(
    parts: Mapping[str, Part], launches: Mapping[str, float], operators: Iterable[OperatorResult], layers: int
) -> dict[str, Part]:
    """The part of each kernel of a pass; softmax and top-k launched by most layers are not sampling, but routing or
    attention.
    """
    counted = {part_of_operator(op) for op in operators}
    beside = Part.ATTENTION if Part.ATTENTION in parts.values() else COVERED_BY[Part.ATTENTION]
    owner = Part.EXPERTS if Part.EXPERTS in counted else beside
    often = _MOST * max(layers, 1)
    return {name: owner if parts[name] is Part.SAMPLING and n > often else parts[name] for name, n in launches.items()}


def known_sum(values: Iterable[float | None]) -> float | None:
    """The sum; None if a value is unknown or there are none."""
    found = list(values)
    known = [value for value in found if value is not None]
    return sum(known) if known and len(known) == len(found) else None


def marks_a_layer(name: str, part: Part) -> bool:
    """Whether a kernel is the one per layer that mixes tokens, rather than a step before or after it."""
    return part in (Part.ATTENTION, Part.STATE) and not _MINOR.search(name)


@cache
def _what(name: str) -> str:
    plain = _LIBRARY.sub("", name)
    return next((what for what, pattern in _NAMES if pattern.search(plain)), Part.OTHER)
