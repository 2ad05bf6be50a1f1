"""Attention to a window of recent tokens and to compressed earlier tokens (arXiv:2606.19348, section 2.3)."""

from __future__ import annotations

from dataclasses import replace
from math import inf

from ...forms import SEQUENCES, TOKENS, Form
from ...operators.attention import Heads, Indexer
from ...operators.base import Operator, Role, Tensor
from ...operators.compression import Compress, Turn
from ...operators.elementwise import Norm, Rope
from ...operators.linear import BlockLinear, Linear, Router
from ...operators.masks import Causal, Compressed, Joint, Mask
from ...precision import FP32
from ...records import frozen
from .attention import Index, scored
from .parts import NormKind, Parts, result


@frozen(kw_only=True)
class CompressedAttention:
    """Attention with one entry per token as key and value of all heads; the result is "o_b_proj".

    Entries are rotated, so results are rotated back.

    window    tokens attended to without compression
    ratio     tokens per compressed entry; 0: only the window
    index     indexer that chooses compressed entries, which then overlap; None: all are attended to
    o_groups  groups of heads whose results are projected to `o_rank` elements each before the output projection
    """

    num_heads: int
    head_dim: int
    rope_dim: int
    q_rank: int
    window: int
    o_groups: int
    o_rank: int
    ratio: int = 0
    index: Index | None = None

    @property
    def masks(self) -> tuple[Mask, ...]:
        """Masks of the window and of compressed entries, if there are any."""
        near = Causal(self.window)
        return (near, Compressed(self.ratio, self.index.chosen if self.index else inf)) if self.ratio else (near,)

    @property
    def heads(self) -> Heads:
        mask = Joint(self.masks) if self.ratio else self.masks[0]
        return Heads(num_heads=self.num_heads, num_kv_heads=1, head_dim=self.head_dim, mask=mask)

    def operators(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]:
        heads = self.heads
        queries = self._queries(parts, x)
        kv_proj = parts.project("kv_proj", x, self.head_dim)
        kv_norm = parts.norm("kv_norm", kv_proj.result, kind=NormKind.RMS)
        rotated = (parts.tensor("q_rope", heads.q_width), parts.cached("kv_cache", self.head_dim))
        rope = Rope(
            name="rope",
            inputs=(result(queries), kv_norm.result),
            outputs=rotated,
            heads=heads,
            rotary_dim=self.rope_dim,
        )
        compressed = self._compressed(parts, x, queries[1].result) if self.ratio else ()
        names = ("kv_cache", "compressed_cache")
        entries = tuple(parts.cache(name, self.head_dim, mask) for name, mask in zip(names, self.masks, strict=False))
        qk, softmax, sv = scored(parts, heads, rotated[0], entries, entries[0])
        softmax = replace(softmax, weights=(parts.weight("sinks", self.num_heads),))
        sv = replace(sv, inputs=(sv.inputs[0], *entries))
        out = self._output(parts, sv.result, x.width)
        return (*queries, kv_proj, kv_norm, rope, *compressed, qk, softmax, sv, *out)

    def _queries(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]:
        """Through a latent, which the indexer's come from too; heads are scaled to unit length, without weights."""
        down = parts.project("q_a_proj", x, self.q_rank)
        norm = parts.norm("q_a_norm", down.result, kind=NormKind.RMS)
        up_proj = parts.project("q_b_proj", norm.result, self.heads.q_width)
        unit = replace(up_proj.result, name="q_b_norm")
        scaled = Norm(name=unit.name, inputs=up_proj.outputs, outputs=(unit,), ops_per_element=3, group=self.head_dim)
        return (down, norm, up_proj, scaled)

    def _compressed(self, parts: Parts, x: Tensor, latent: Tensor) -> tuple[Operator, ...]:
        operators = self._compressor(parts, x, "compressed", self.head_dim)
        return (*operators, *self._indexer(parts, x, latent, self.index)) if self.index else operators

    def _compressor(self, parts: Parts, x: Tensor, name: str, width: int) -> tuple[Operator, ...]:
        """Values and gates of each token, and the entries that groups of them make, in the cache `name`_cache.

        Where entries overlap, a token has values for its own group's and others for the next one's: twice the width.
        What it needs of the past is a group of each, and of the group before the half that overlaps.
        """
        each = 2 * width if self.index else width
        kv, gate = (_as_published(parts.project(f"{name}_{part}_proj", x, each)) for part in ("kv", "gate"))
        past = 2 * self.ratio * each + (2 * self.ratio * width if self.index else 0)
        state = Tensor(
            name=f"{name}_state",
            width=past,
            rows=Form(),
            retained_rows=SEQUENCES,
            role=Role.STATE,
            format=parts.format,
        )
        cached = replace(parts.cached(f"{name}_cache", width), rows=TOKENS / self.ratio)
        compress = Compress(
            name=f"{name}_entries",
            inputs=(kv.result, gate.result, state),
            outputs=(self.index.own(cached) if self.index and name == "index" else cached,),
            weights=(
                parts.weight(f"{name}.position_bias", self.ratio, each),
                parts.weight(f"{name}.norm.weight", width),
            ),
            rotary_dim=self.rope_dim,
        )
        return (kv, gate, compress)

    def _indexer(self, parts: Parts, x: Tensor, latent: Tensor, index: Index) -> tuple[Operator, ...]:
        """Queries from the `latent` of attention's own, compressed keys and the heads' weights from x."""
        mask = Compressed(self.ratio)
        heads = Heads(num_heads=index.num_heads, num_kv_heads=1, head_dim=index.head_dim, mask=mask)
        q = parts.project("index_q_proj", latent, heads.q_width)
        weights = parts.project("index_weights", x, index.num_heads, kind=Router)
        turned = index.own(replace(q.result, name="index_q_rope"))
        rope = Turn(
            name="index_rope",
            inputs=q.outputs,
            outputs=(turned,),
            num_heads=index.num_heads,
            rotary_dim=self.rope_dim,
        )
        chosen = Tensor(name="index_choice", width=1, rows=self.masks[1].pairs, format=FP32)
        indexer = Indexer(
            name="indexer",
            inputs=(turned, index.own(parts.cache("index_cache", index.head_dim, mask)), weights.result),
            outputs=(chosen,),
            heads=heads,
        )
        return (*self._compressor(parts, x, "index", index.head_dim), q, weights, rope, indexer)

    def _output(self, parts: Parts, attended: Tensor, hidden: int) -> tuple[Operator, ...]:
        turned = replace(attended, name="o_rope")
        rope = Turn(
            name="o_rope",
            inputs=(attended,),
            outputs=(turned,),
            num_heads=self.num_heads,
            rotary_dim=self.rope_dim,
        )
        down = BlockLinear(
            name="o_a_proj",
            inputs=(turned,),
            outputs=(parts.tensor("o_a_proj", self.o_groups * self.o_rank),),
            weights=(parts.weight("o_a_proj.weight", self.o_groups * self.o_rank, attended.width // self.o_groups),),
        )
        return (rope, down, parts.project("o_b_proj", down.result, hidden))


def _as_published(linear: Linear) -> Linear:
    """Checkpoints in 8 bits leave compressors in 16."""
    return replace(linear, left_as_published=True)
