"""Attention to the keys and values of an earlier layer."""

from __future__ import annotations

from dataclasses import replace

from ...forms import Form
from ...operators.base import Operator, Tensor
from ...operators.masks import Mask
from .attention import SelfAttention, query_rope, scored
from .parts import Parts, result


def borrowed(parts: Parts, name: str, width: int, mask: Mask) -> Tensor:
    """A cache that an earlier layer holds."""
    return replace(parts.cache(name, width, mask), retained_rows=Form())


class BorrowedAttention(SelfAttention):
    """Self-attention whose keys and values an earlier layer computed and cached (arXiv:2405.12981)."""

    def operators(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]:
        heads = self.heads
        q_proj = parts.project("q_proj", x, heads.q_width, bias=self.qkv_bias)
        launches: tuple[Operator, ...] = (q_proj,)
        if self.qk_norm:
            shared = 1 if self.qk_norm_whole else heads.num_heads
            launches = (*launches, parts.norm("q_norm", q_proj.result, shared=shared, kind=self.qk_norm))
        if self.rotary_dim:
            launches = (*launches, query_rope(parts, result(launches), heads.num_heads * self.rotary_dim))
        k = borrowed(parts, "k_cache", heads.kv_width, heads.mask)
        v = borrowed(parts, "v_cache", heads.num_kv_heads * heads.out_dim, heads.mask)
        attended = scored(parts, heads, result(launches), (k,), v)
        return (*launches, *attended, parts.project("o_proj", result(attended), x.width, bias=self.o_bias))
