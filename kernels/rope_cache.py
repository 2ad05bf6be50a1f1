"""q = rotate(norm(q)), and k = rotate(norm(k)) and v into a paged cache, of one new token of each sequence.

What stands between the projection of queries, keys and values and `decode_attention`, in one launch: RMSNorm of each
head where the model has it (Qwen3, arXiv:2505.09388, section 2), rotary embedding by halves of a head
(arXiv:2104.09864; GPT-NeoX's pairs), and the writing of the cache (PagedAttention, arXiv:2309.06180, section 4.1). A
program takes some heads of one kind of one token. Angles are those of `rope`.
"""

from __future__ import annotations

from math import pi

import torch
import triton
import triton.language as tl

from llmviewer.records import frozen

from ..operators.attention import Heads
from ..operators.base import Operator, Role, Tensor, Weight
from ..operators.elementwise import Elementwise, Norm, Rope
from ..operators.fused import Fused
from ..workload import Workload
from .base import (
    EPSILON,
    Case,
    Inputs,
    Kernel,
    Launch,
    LaunchPlan,
    Random,
    Target,
    case,
    cdiv,
    cloned_inputs,
    poisoned,
    pow2,
)
from .rope import _cos_sin
from .rope import frequencies as frequencies_of

_EPSILON = 1e-6
_NORM_OPS = 4  # square, sum, scale, weight


@triton.jit
def _rotated(low, high, weight_ptr, frequency_ptr, position, columns, inside, half, epsilon, NORM: tl.constexpr):
    """Both halves of heads, normalized where NORM says so, and rotated as the position asks."""
    low, high = low.to(tl.float32), high.to(tl.float32)
    if NORM:
        scale = 1 / tl.sqrt((tl.sum(low * low, 1) + tl.sum(high * high, 1)) / (2 * half) + epsilon)
        low *= scale[:, None] * tl.load(weight_ptr + columns, inside, 0.0).to(tl.float32)[None, :]
        high *= scale[:, None] * tl.load(weight_ptr + half + columns, inside, 0.0).to(tl.float32)[None, :]
    angle = (position.to(tl.int64) * tl.load(frequency_ptr + columns, inside, 0)) >> 32
    cos, sin = _cos_sin(angle.to(tl.int32)[None, :])
    return low * cos - high * sin, high * cos + low * sin


@triton.jit
def _move(
    qkv_ptr, out_ptr, weight_ptr, frequency_ptr, share, heads, position, half, epsilon,
    ROTATE: tl.constexpr, NORM: tl.constexpr, BLOCK_H: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    """A share of `heads` heads, to where they are to be: BLOCK_H of one token, which have the same angles."""
    columns, head = tl.arange(0, HALF), share * BLOCK_H + tl.arange(0, BLOCK_H)
    inside = columns < half
    mask = (head < heads)[:, None] & inside[None, :]
    offsets = head[:, None] * (2 * half) + columns[None, :]
    low, high = tl.load(qkv_ptr + offsets, mask, 0.0), tl.load(qkv_ptr + offsets + half, mask, 0.0)
    if ROTATE:
        low, high = _rotated(low, high, weight_ptr, frequency_ptr, position, columns, inside, half, epsilon, NORM)
    tl.store(out_ptr + offsets, low.to(out_ptr.dtype.element_ty), mask)
    tl.store(out_ptr + offsets + half, high.to(out_ptr.dtype.element_ty), mask)


@triton.jit
def _rope_cache(
    qkv_ptr, q_weight_ptr, k_weight_ptr, frequency_ptr, table_ptr, length_ptr, q_ptr, k_ptr, v_ptr,
    heads, kv_heads, half, pages, epsilon,
    NORM: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_KV: tl.constexpr, HALF: tl.constexpr, PAGE: tl.constexpr,
):  # fmt: skip
    sequence, share = tl.program_id(1).to(tl.int64), tl.program_id(0)
    of_q, of_k = tl.cdiv(heads, BLOCK_Q), tl.cdiv(kv_heads, BLOCK_KV)
    qkv_ptr += sequence * (heads + 2 * kv_heads) * (2 * half)
    position = tl.load(length_ptr + sequence) - 1
    if share < of_q:
        q_ptr += sequence * heads * (2 * half)
        _move(
            qkv_ptr, q_ptr, q_weight_ptr, frequency_ptr, share, heads, position, half, epsilon,
            True, NORM, BLOCK_Q, HALF,
        )  # fmt: skip
    else:
        page = tl.load(table_ptr + sequence * pages + position // PAGE).to(tl.int64)
        slot = (page * PAGE + position % PAGE) * kv_heads * (2 * half)
        k_share = share - of_q
        qkv_ptr += heads * (2 * half)
        if k_share < of_k:
            _move(
                qkv_ptr, k_ptr + slot, k_weight_ptr, frequency_ptr, k_share, kv_heads, position, half, epsilon,
                True, NORM, BLOCK_KV, HALF,
            )  # fmt: skip
        else:
            _move(
                qkv_ptr + kv_heads * (2 * half), v_ptr + slot, None, frequency_ptr, k_share - of_k, kv_heads, position,
                half, epsilon, False, False, BLOCK_KV, HALF,
            )  # fmt: skip


@frozen(kw_only=True)
class RopeTiling:
    """Heads of queries that a program takes, or of keys or values, at most, and its warps."""

    block_q: int
    block_kv: int
    num_warps: int


_TILING = RopeTiling(block_q=8, block_kv=8, num_warps=2)
_ALTERNATIVE_TILINGS = (
    RopeTiling(block_q=32, block_kv=8, num_warps=2),
    RopeTiling(block_q=16, block_kv=8, num_warps=2),
    RopeTiling(block_q=32, block_kv=16, num_warps=4),
    RopeTiling(block_q=16, block_kv=8, num_warps=1),
)


def plan(
    target: Target,  # noqa: ARG001
    qkv: torch.Tensor,
    frequencies: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    table: torch.Tensor,
    lengths: torch.Tensor,
    q_weight: torch.Tensor | None = None,
    k_weight: torch.Tensor | None = None,
    tile: RopeTiling = _TILING,
) -> LaunchPlan:
    """qkv[sequences, (heads + 2 kv_heads) dim]; frequencies[dim / 2] as in `rope`; k and v[pages, page, kv_heads, dim],
    table[sequences, pages] and lengths[sequences] as in `decode_attention`, the new tokens counted; weights[dim] of
    norms. It gives q[sequences, heads, dim] and the caches, written where they are.
    """
    sequences, (_, page, kv_heads, dim) = qkv.shape[0], k.shape
    heads = qkv.shape[1] // dim - 2 * kv_heads
    q = poisoned(sequences, heads, dim, dtype=qkv.dtype, device=qkv.device)
    block_q, block_kv = min(pow2(heads), tile.block_q), min(pow2(kv_heads), tile.block_kv)
    launch = Launch(
        function=_rope_cache,
        grid=(cdiv(heads, block_q) + 2 * cdiv(kv_heads, block_kv), sequences),
        arguments={
            "qkv_ptr": qkv, "q_weight_ptr": q_weight, "k_weight_ptr": k_weight, "frequency_ptr": frequencies,
            "table_ptr": table, "length_ptr": lengths, "q_ptr": q, "k_ptr": k, "v_ptr": v, "heads": heads,
            "kv_heads": kv_heads, "half": dim // 2, "pages": table.shape[1], "epsilon": _EPSILON,
            "NORM": q_weight is not None, "BLOCK_Q": block_q, "BLOCK_KV": block_kv,
            "HALF": pow2(dim // 2), "PAGE": page,
        },
        num_warps=tile.num_warps,
    )  # fmt: skip
    return LaunchPlan(launches=(launch,), outputs=(q, k, v))


def reference(
    qkv: torch.Tensor,
    frequencies: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    table: torch.Tensor,
    lengths: torch.Tensor,
    q_weight: torch.Tensor | None = None,
    k_weight: torch.Tensor | None = None,
) -> tuple[torch.Tensor, ...]:
    """Rotated queries, and the cache with the rotated key and the value of each sequence's last token; in fp32."""
    sequences, (_, page, kv_heads, dim) = qkv.shape[0], k.shape
    positions = lengths.long() - 1
    angles = positions.double()[:, None] * frequencies.double() * (2 * pi * 2.0**-64)
    cos, sin = (f(angles).float().repeat(1, 2)[:, None] for f in (torch.cos, torch.sin))
    parts = qkv.float().view(sequences, -1, dim).split((qkv.shape[1] // dim - 2 * kv_heads, kv_heads, kv_heads), dim=1)
    rotated = []
    for x, weight in zip(parts, (q_weight, k_weight), strict=False):
        if weight is not None:
            x = x * (x.square().mean(2, keepdim=True) + _EPSILON).rsqrt() * weight.float()  # noqa: PLW2901
        low, high = x.chunk(2, dim=2)
        rotated.append(x * cos + torch.cat((-high, low), dim=2) * sin)
    caches = [k.float().clone(), v.float().clone()]
    pages = table.long()[torch.arange(sequences, device=qkv.device), positions // page]
    for cache, new in zip(caches, (rotated[1], parts[2]), strict=True):
        cache[pages, positions % page] = new
    return (rotated[0], *caches)


def _make(case: Case, device: str, seed: int) -> Inputs:
    random, dtype, dim, page, batch = Random(device, seed), case.torch_dtype, case["dim"], case["page"], case["B"]
    pages = cdiv(case["kv"], page)
    slots = (batch * pages, page, case["kv_heads"], dim)
    shuffled = random.uniform(batch * pages, low=0, high=1).argsort()
    inputs: Inputs = {
        "qkv": random.normal(batch, (case["heads"] + 2 * case["kv_heads"]) * dim, dtype=dtype),
        "frequencies": frequencies_of(dim).to(device),
        "k": random.normal(*slots, dtype=dtype),
        "v": random.normal(*slots, dtype=dtype),
        "table": shuffled.to(torch.int32).view(batch, pages),
        "lengths": random.integers(batch, low=1, high=case["kv"] + 1, dtype=torch.int32),
    }
    if case.get("norm"):
        inputs |= {name: random.normal(dim, dtype=dtype) for name in ("q_weight", "k_weight")}
    return inputs


def _next_inputs(inputs: Inputs, number: int) -> Inputs:
    """Tokens at other places of the same caches."""
    shared = {name: inputs[name] for name in ("k", "v", "table")}
    new_inputs = {name: value for name, value in inputs.items() if name not in shared}
    capacity = inputs["table"].shape[1] * inputs["k"].shape[1]
    return cloned_inputs(new_inputs, number) | shared | {"lengths": (inputs["lengths"] - 1 + number) % capacity + 1}


def _operators(case: Case) -> tuple[Operator, ...]:
    """Norms and the Rope, and v as it is, in one launch."""
    dim = case["dim"]
    heads = Heads(num_heads=case["heads"], num_kv_heads=case["kv_heads"], head_dim=dim)
    q, k, v = (Tensor(name=f"{name}_proj", width=heads.kv_width, format=case.format) for name in "qkv")
    q = Tensor(name="q_proj", width=heads.q_width, format=case.format)
    caches = [
        Tensor(name=f"{name}_cache", width=heads.kv_width, format=case.format, role=Role.KV_CACHE) for name in "kv"
    ]
    parts: list[Operator] = []
    if case.get("norm"):
        for x in (q, k):
            weight = Weight(name=f"{x.name}.norm", shape=(dim,), format=case.format)
            normed = Tensor(name=f"{x.name}_norm", width=x.width, format=case.format)
            norm = Norm(
                name=normed.name,
                inputs=(x,),
                outputs=(normed,),
                weights=(weight,),
                ops_per_element=_NORM_OPS,
                group=dim,
            )
            parts.append(norm)
        q, k = (norm.outputs[0] for norm in parts)
    turned = Tensor(name="q_rope", width=heads.q_width, format=case.format)
    rope = Rope(name="rope", inputs=(q, k), outputs=(turned, caches[0]), heads=heads, rotary_dim=dim)
    return (Fused.of((*parts, rope, v_write(v, caches[1])), kept_outputs=("q_rope",)),)


def v_write(v: Tensor, cache: Tensor) -> Elementwise:
    """Values on their way to the cache, as they are."""
    return Elementwise(name="v_write", inputs=(v,), outputs=(cache,), ops_per_element=0)


KERNELS = (
    Kernel(
        name="rope_cache", family="rope_cache",
        cases=(
            case("fp16", B=3, heads=4, kv_heads=2, dim=32, kv=50, page=16),
            case("fp32", B=2, heads=3, kv_heads=1, dim=40, kv=20, page=16, norm=1),
            case("fp16", B=1, heads=16, kv_heads=8, dim=64, kv=9, page=16, norm=1),
        ),
        full_size=(
            case("bf16", B=64, heads=32, kv_heads=8, dim=128, kv=4096, page=64),
            case("bf16", B=1, heads=32, kv_heads=4, dim=128, kv=4096, page=64, norm=1),
        ),
        make=_make, plan=plan, reference=reference,
        tolerance=lambda case: (EPSILON[case.dtype], max(EPSILON[case.dtype], 8 * EPSILON["fp32"])),
        operators=_operators,
        workload=lambda case: Workload.decode(batch=case["B"], kv_len=case["kv"]),
        next_inputs=_next_inputs, tilings=lambda target, case: _ALTERNATIVE_TILINGS,
    ),
)  # fmt: skip
