"""Products with weights: which operators are one matrix multiplication, its sizes and its data type."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import numpy as np

from ...forms import Num, Stream, total
from ...operators.attention import Attention
from ...operators.base import Operator
from ...operators.elementwise import Quantize
from ...operators.fused import parts_of
from ...operators.kinds import OperatorGroup, kind_of
from ...operators.linear import ChosenLinear, Linear
from ...precision import HALF, Format
from ..engines import LaunchRules
from ..families import Implementation
from ..families.gemm import BATCHED
from ..formats import kernel_type
from ..profile import ANOTHER_TYPE
from ._kernel import KernelSequence, LibraryKernel
from ._movers import COPY
from ._work import LaunchWork

UNMERGED_LIBRARIES: Final = ("cublas", "pytorch", "pytorch-cpu")  # libraries that launch every operator separately
# Products whose activations come quantized, by static scales, from the norm, activation or all-reduce before them: of
# TensorRT-LLM (RESIDUAL_RMS_NORM_QUANT_FP8 of its cpp/tensorrt_llm/thop/allreduceOp.cpp). They keep the time of its
# bytes, but launch nothing for it; other libraries launch a quantization before each product, as tables do.
_PREQUANTIZED: Final = {"trtllm": ("fp8", "fp8_static")}
PREQUANTIZED_LIBRARIES: Final = tuple(_PREQUANTIZED)
# Products with int4 weights that have a scale for each group: TensorRT-LLM multiplies their inputs by those of AWQ in a
# launch of its own, but for few rows (enqueue() of weightOnlyGroupwiseQuantMatmulPlugin.cpp: apply_per_channel_scale,
# SMALL_M_FAST_PATH). Tables have its kernel with a scale for each column, which needs none.
_SCALED: Final = {"trtllm": "int4_wo"}
_UNSCALED_ROWS: Final = 4
_BY_COLUMN: Final = "as of weights with a scale for each column"
_GGUF_TYPE: Final = re.compile(r"[it]?q(\d)_\w+")


def products(works: Mapping[int, LaunchWork]) -> list[tuple[int, ...]]:
    """The linear layers that are one matrix multiplication each, with the conversion of their input.

    Products before and after an operator that mixes tokens stay apart, even if attention and MLP read the same tensor.
    """
    groups: list[list[int]] = []
    alike: dict[tuple[str, str, type[Operator], Stream], list[int]] = {}  # groups that further products may join
    waiting: list[int] = []  # a conversion that the next product may read
    for place, work in works.items():
        op = work.op
        if isinstance(op, Quantize):
            waiting = [place]
        elif linears := _linears(op):
            first = linears[0]
            dtype = product(first, work.half)
            converts = kernel_type(dtype).quantizes and not _is_prequantized(work.library, dtype)
            before = waiting if waiting and _reads(op, works[waiting[0]].op) and converts else []
            key = (first.inputs[0].name, dtype, type(op), work.stream)
            if key in alike and _plain(op):
                alike[key].append(place)
            else:
                groups.append([*before, place])
                alike |= {key: groups[-1]} if _plain(op) and work.library not in UNMERGED_LIBRARIES else {}
            waiting = []
        elif isinstance(op, Attention) or kind_of(op.kind).group is OperatorGroup.STATE:
            alike.clear()
    return [tuple(group) for group in groups]


def _is_prequantized(library: str, dtype: str) -> bool:
    return dtype in _PREQUANTIZED.get(library, ())


def _linears(op: Operator) -> tuple[Linear, ...]:
    """The products with dense weights in a launch of `op`; none if it has others, or none."""
    linears = tuple(part for part in parts_of(op) if isinstance(part, Linear))
    dense = all(original_linear(part).dense and not isinstance(original_linear(part), ChosenLinear) for part in linears)
    return linears if dense else ()


def _plain(op: Operator) -> bool:
    return isinstance(op, Linear) and type(original_linear(op)) is Linear and _shape(original_linear(op))[0] == 1


def original_linear(op: Linear) -> Linear:
    """The product that `op` is a part of or contains; `op` itself if it stands for none."""
    original = getattr(op, "of", None)
    return original_linear(original) if original else op


def _reads(op: Operator, writer: Operator) -> bool:
    return any(t.name == writer.outputs[0].name for t in op.inputs)


def _shape(op: Linear) -> tuple[int, float, float]:
    """The number of like products, columns of the result and elements of a row: heads and parts lie side by side."""
    size, rows, width = op.weight.numel, op.weight.shape[0], op.inputs[0].width
    max_batch = round(width * sum(t.width for t in op.outputs) / size)
    if width == size // rows or max_batch < 2:
        return 1, rows, size / rows
    batch = next(
        n for n in range(max_batch, 0, -1) if width % n == 0
    )  # outputs may include columns that are not multiplied
    return batch, size / width, width / batch


def gemm(members: tuple[int, ...], works: Mapping[int, LaunchWork], rules: LaunchRules) -> KernelSequence:
    linears = [(op, works[m]) for m in members for op in _linears(works[m].op)]
    first, work = linears[0]
    dense = original_linear(first)
    batch, n, k = _shape(dense)
    depth: Num = k
    if dense is not first:
        read = np.divide(work.of(total(w.nbytes for w in first.weights)), _bytes(dense))
        depth = k * np.where(np.greater(read, 0), read, 1.0)[()]
    ops = work.ops if work.op is first else work.of(total(first.arithmetic().values()))
    rows = np.maximum(np.divide(ops, 2.0 * batch * n * depth), 1)  # 0 if only weights are read
    columns: dict[str, float] = {}
    for op, _ in linears:
        dtype = product(op, work.half)
        columns[dtype] = columns.get(dtype, 0) + _shape(original_linear(op))[1]

    writer = _writer(first, works)
    scaled = [dtype for dtype in columns if _SCALED.get(work.library) == dtype and dense.weight.format.group]

    def shapes(n: float, dtype: str) -> dict[str, Num]:
        sizes: dict[str, Num] = {"M": rows, "N": n, "K": depth, "batch": batch}
        is_prequantized = _is_prequantized(work.library, dtype) or rules.quantizes(writer, dtype)
        return sizes | {"prequantized": 1.0} if is_prequantized else sizes

    multiplying = tuple(
        LibraryKernel(
            family="gemm",
            implementation=Implementation(library=work.library, dtype=dtype, kernel=BATCHED if batch > 1 else ""),
            shapes=shapes(n, dtype),
        )
        for dtype, n in columns.items()
    )
    remark = "" if dense is first else "as a dense product with equal OPs and weight bytes"
    remark = remark or (_BY_COLUMN if scaled else "")
    return KernelSequence(
        members=members,
        kernels=(*multiplying, *(_scaling(rows, batch * depth, work) for _ in scaled)),
        remark=remark,
        stand_in_class=ANOTHER_TYPE if remark else "",
    )


def _scaling(rows: Num, width: Num, work: LaunchWork) -> LibraryKernel:
    """The kernel that multiplies the inputs of a product by a scale for each element of a row."""
    moved = np.multiply(rows, width) * 2 * HALF.bits / 8
    implementation = Implementation(library=work.library, dtype="fp16", kernel=COPY)
    shapes = {"rows": rows, "bytes": moved, "cols": 1.0}
    return LibraryKernel(
        family="elementwise", implementation=implementation, shapes=shapes, where=np.greater(rows, _UNSCALED_ROWS)
    )


def _writer(op: Linear, works: Mapping[int, LaunchWork]) -> str:
    """The kind of the operator that writes the input of a product; "" if it is in another block."""
    name = op.inputs[0].name
    return next((work.op.kind for work in works.values() if name in {t.name for t in work.op.outputs}), "")


def _bytes(op: Linear) -> float:
    """The bytes of all its weights. [B]"""
    return sum(w.numel * w.format.stored_bits for w in op.weights) / 8


def product(op: Linear, half: str) -> str:
    """The data type of a product with a weight, as tables of measurements call it."""
    return _type(op.inputs[0].format, original_linear(op).weight.format, half)


def _type(x: Format, weight: Format, half: str) -> str:
    floats, bits = weight.compute.startswith("fp"), _code_bits(weight)
    if bits > 8:  # narrower activations are widened
        return "fp32" if bits > 16 else half
    if x.bits > 8:
        return _weights_only(weight, bits, floats=floats)
    if x.bits > 4 and x.compute == "fp8":
        return _with_fp8(weight, bits, floats=floats)
    if x.bits > 4:
        narrow = "w2a8_int8" if bits <= 2 else "w4a8_int8"
        return narrow if bits <= 4 else "w8a8_mixed" if floats else "sq"
    if floats:
        return "nvfp4" if weight.name == "nvfp4" else "fp4"
    return "w4a4_int4" if bits <= 4 else "sq"


def _weights_only(weight: Format, bits: float, *, floats: bool) -> str:
    """The type of products of narrow weights with activations of 16 bits."""
    if bits > 4:
        return "w6a16" if bits <= 6 else "w8a16_fp8" if floats else "int8_wo"
    if bits <= 3:
        return "w3a16" if bits > 2 else "w2a16"
    return "w4a16_nf4" if weight.compute == "table" else "w4a16_mxfp4" if floats else "int4_wo"


def _with_fp8(weight: Format, bits: float, *, floats: bool) -> str:
    """The type of products with activations in fp8."""
    if not floats:
        return "w4afp8" if bits <= 4 else "w8a8_mixed"
    if bits <= 6:
        return "w6a8_fp8" if bits > 4 else "w4a8_mxfp4_mxfp8"
    return "w8a8_mxfp8" if weight.name == "mxfp8" else "fp8_block" if weight.group else "fp8"


def _code_bits(weight: Format) -> float:
    """The bits of an element without its share of the block's scales. Types of GGUF files include that share, such as
    q4_0 with 4.5 bits, and have the bits of a code in their names.
    """
    named = _GGUF_TYPE.fullmatch(weight.name)
    return float(named[1]) if named else weight.bits
