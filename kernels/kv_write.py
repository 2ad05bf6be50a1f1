"""k_cache[slot[token]] = k[token] and v_cache[slot[token]] = v[token]: new keys and values into a cache that stays.

A slot is a page and a place in it (PagedAttention, arXiv:2309.06180, section 4.1); a cache in one piece for each
sequence has pages as long as a sequence may get. Any strides do, so heads may lie outside of a page's tokens or inside.
A token whose slot is negative is none: batches of graphs are padded. A cache in fp8 has a scale for all of it, whose
quotients saturate at 448, the largest number of e4m3 (arXiv:2209.05433, table 1), beyond which there is NaN alone.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..operators.base import Operator, Role, Tensor
from ..operators.elementwise import Elementwise
from ..precision import NAMED
from ..workload import Workload
from .base import Case, Inputs, Kernel, Launch, LaunchPlan, Random, Target, case, cdiv, pow2

_ELEMENTS_PER_PROGRAM = 2048  # of each of k and v in a program


@triton.jit
def _store_converted(x_ptr, cache_ptr, scale_ptr, x_at, cache_at, mask):
    x = tl.load(x_ptr + x_at, mask)
    if scale_ptr is not None:
        x = x.to(tl.float32) / tl.load(scale_ptr)
        x = tl.clamp(x, -448.0, 448.0)
    tl.store(cache_ptr + cache_at, x.to(cache_ptr.dtype.element_ty), mask)


@triton.jit
def _kv_write(
    k_ptr, v_ptr, k_cache_ptr, v_cache_ptr, slot_ptr, k_scale_ptr, v_scale_ptr, tokens, k_token, v_token,
    page_stride, place_stride, head_stride,
    PAGE: tl.constexpr, WIDTH: tl.constexpr, DIM: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_W: tl.constexpr,
):  # fmt: skip
    """BLOCK_T tokens and BLOCK_W elements of all heads of each, of DIM elements."""
    rows = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    columns = tl.program_id(1) * BLOCK_W + tl.arange(0, BLOCK_W)
    slot = tl.load(slot_ptr + rows, rows < tokens, -1).to(tl.int64)
    mask = (slot >= 0)[:, None] & (columns[None, :] < WIDTH)
    head, within = columns // DIM, columns % DIM
    cache_at = (slot // PAGE * page_stride + slot % PAGE * place_stride)[:, None]
    cache_at += (head * head_stride + within)[None, :]
    rows = rows.to(tl.int64)[:, None]
    _store_converted(k_ptr, k_cache_ptr, k_scale_ptr, rows * k_token + columns[None, :], cache_at, mask)
    _store_converted(v_ptr, v_cache_ptr, v_scale_ptr, rows * v_token + columns[None, :], cache_at, mask)


def plan(
    target: Target,  # noqa: ARG001
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slots: torch.Tensor,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
) -> LaunchPlan:
    """New k and v[tokens, kv_heads, dim], whose tokens may lie apart, into k_cache and v_cache[pages, page, kv_heads,
    dim], which are strided alike, at slots[tokens] = page number * page + place.
    """
    (tokens, kv_heads, dim), page = k.shape, k_cache.shape[1]
    width = kv_heads * dim
    block_w = min(pow2(width), _ELEMENTS_PER_PROGRAM)
    block_t = min(_ELEMENTS_PER_PROGRAM // block_w, pow2(tokens))
    page_stride, place_stride, head_stride, _ = k_cache.stride()
    launch = Launch(
        function=_kv_write,
        grid=(cdiv(tokens, block_t), cdiv(width, block_w)),
        arguments={
            "k_ptr": k, "v_ptr": v, "k_cache_ptr": k_cache, "v_cache_ptr": v_cache, "slot_ptr": slots,
            "k_scale_ptr": k_scale, "v_scale_ptr": v_scale, "tokens": tokens,
            "k_token": k.stride(0), "v_token": v.stride(0),
            "page_stride": page_stride, "place_stride": place_stride, "head_stride": head_stride,
            "PAGE": page, "WIDTH": width, "DIM": dim, "BLOCK_T": block_t, "BLOCK_W": block_w,
        },
    )  # fmt: skip
    return LaunchPlan(launches=(launch,), outputs=(k_cache, v_cache))


def reference(
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slots: torch.Tensor,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
) -> tuple[torch.Tensor, ...]:
    """The contents of the caches after the writes; k_cache and v_cache are not changed."""
    real, page = slots >= 0, k_cache.shape[1]
    caches = []
    for new, cache, scale in ((k, k_cache, k_scale), (v, v_cache, v_scale)):
        codes = new.float() if scale is None else (new.float() / scale).clamp(-448.0, 448.0)
        after = cache.float().clone()
        after[slots[real].long() // page, slots[real].long() % page] = codes[real].to(cache.dtype).float()
        caches.append(after)
    return tuple(caches)


def _make(case: Case, device: str, seed: int) -> Inputs:
    """Slots in no order, every one of which is another, among twice as many; `padded` tokens at the end have none."""
    random, dtype, tokens, page = Random(device, seed), case.torch_dtype, case["tokens"], case["page"]
    cache_dtype = torch.float8_e4m3fn if case.get("kv_bits") == 8 else dtype
    heads, dim, pages = case["kv_heads"], case["dim"], cdiv(2 * tokens, page)
    slots = random.uniform(pages * page, low=0, high=1).argsort()[:tokens].to(torch.int32)
    if case.get("padded"):
        slots[-case["padded"] :] = -1
    inner, outer = (page, heads) if case.get("heads_outside") else (heads, page)
    caches = [random.normal(pages, outer, inner, dim, dtype=cache_dtype) for _ in "kv"]
    caches = [cache.transpose(1, 2) if case.get("heads_outside") else cache for cache in caches]
    inputs: Inputs = {name: random.normal(tokens, heads, dim, dtype=dtype, scale=100.0) for name in "kv"}
    inputs |= {"k_cache": caches[0], "v_cache": caches[1], "slots": slots}
    if case.get("kv_bits") == 8:
        inputs |= {name: random.uniform(1, low=0.3, high=1.5) for name in ("k_scale", "v_scale")}
    return inputs


def _operators(case: Case) -> tuple[Operator, ...]:
    """The cost of a separate launch; in a model's graph, the operators that compute keys and values write the cache."""
    width, cache_format = case["kv_heads"] * case["dim"], NAMED["fp8_e4m3"] if case.get("kv_bits") == 8 else case.format
    new = tuple(Tensor(name=name, width=width, format=case.format) for name in "kv")
    caches = tuple(Tensor(name=f"{name}_cache", width=width, format=cache_format, role=Role.KV_CACHE) for name in "kv")
    return (Elementwise(name="kv_write", inputs=new, outputs=caches, ops_per_element=0),)


KERNELS = (
    Kernel(
        name="kv_write", family="kv_write",
        cases=(
            case("fp16", tokens=5, kv_heads=2, dim=64, page=16),
            case("bf16", tokens=37, kv_heads=3, dim=40, page=8, padded=4),
            case("fp16", tokens=9, kv_heads=2, dim=32, page=16, heads_outside=1),
            case("fp16", tokens=6, kv_heads=2, dim=1100, page=40),
            case("fp16", tokens=12, kv_heads=2, dim=64, page=16, kv_bits=8, padded=1),
        ),
        full_size=(
            case("bf16", tokens=8192, kv_heads=8, dim=128, page=16),
            case("bf16", tokens=64, kv_heads=8, dim=128, page=16),
            case("bf16", tokens=8192, kv_heads=8, dim=128, page=16, heads_outside=1),
            case("bf16", tokens=8192, kv_heads=8, dim=128, page=16, kv_bits=8),
        ),
        make=_make, plan=plan, reference=reference,
        # Copies are copies. Quotients may differ in their last bit, which at the middle between two codes decides.
        tolerance=lambda case: (2**-3, 2**-9) if case.get("kv_bits") == 8 else (0.0, 0.0),
        operators=_operators,
        workload=lambda case: Workload.prefill(batch=1, prompt=case["tokens"] - case.get("padded")),
        min_sm=lambda case: 89 if case.get("kv_bits") == 8 else 80,
    ),
)  # fmt: skip
