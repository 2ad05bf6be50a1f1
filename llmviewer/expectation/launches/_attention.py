"""Attention: one kernel for prompts and one for single tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import inf
from typing import Final, TypeVar

import numpy as np

from ...forms import Num, evaluate
from ...operators.attention import QK, SV, Attention, FlashAttention, Indexer
from ...operators.base import RETAINED_ROLES
from ...operators.block_sparse import BlockIndexer
from ...operators.masks import Causal, Mask, PoolingMask, ShardedKeys, ShardedQueries, ShardedSequences, Tiled
from ...workload import Spans, Workload
from ..families import Implementation
from ._kernel import LibraryKernel
from ._movers import COPY, mover
from ._work import LaunchWork

_Attention = TypeVar("_Attention", bound=Attention)
_MIN_PROMPT_QUERIES: Final = 128  # queries of a sequence in the shortest measured prompts


def attention(op: FlashAttention, alike: Workload, work: LaunchWork, sharing: Num = 1) -> Iterator[LibraryKernel]:
    """Yields a prefill and a decode kernel for a group of equal sequences; the workload decides which of them runs.

    A few new tokens, as in the verification of a draft, may run as further heads of a single token in the decode
    kernel, which splits a long cache among cores. With latent attention they may also run one by one, and take at most
    as long as the shortest measured prompt. A prefix that sequences share and read once is a launch of its own, whose
    single token has the heads of all of them (cascade attention, arXiv:2402.05099).

    sharing  sequences whose queries are heads of one
    """
    (spans,) = alike.groups
    op = _of_its_sequences(op)
    if spans.prefixes and isinstance(op.heads.mask, Causal) and np.all(np.less_equal(spans.q_len, 1)):
        for segment, copies in _segments(spans, op.heads.mask.window):
            yield from attention(op, Workload((segment,)), work, copies)
        return
    heads, mask, cache = op.heads, op.heads.mask, op.inputs[1].format
    batch, queries, keys, causal = _measured_terms(mask, alike)
    window = getattr(mask, "window", inf)
    shapes: dict[str, Num] = {
        "batch": batch,
        "q_len": queries,
        "kv_len": keys,
        "q_heads": heads.num_heads * sharing,
        "kv_heads": heads.num_kv_heads,
        "head_dim": heads.head_dim,
        "v_head_dim": heads.out_dim,
        "window": window if window < inf else 0.0,
        "causal": float(causal),
        "splits": float(op.splits),
    }
    latent = heads.out_dim != heads.head_dim
    absorbed = latent and heads.num_kv_heads == 1
    kind = "mla_absorb" if absorbed else "mla_unabsorbed" if latent else ""
    unsharded = mask.mask if isinstance(mask, ShardedKeys) else mask
    kind = kind if isinstance(unsharded, Causal) else "encoder_noncausal" if not mask.is_cached else ""
    bits = op.inputs[0].format.bits
    dtype = "fp32" if bits > 16 else "fp8" if bits <= 8 else work.half
    is_single_query = np.less_equal(queries, 1)
    narrow = "bf16" if dtype == "fp16" else dtype
    stored = "fp8" if cache.bits <= 8 else "bf16"
    single = Implementation(
        library=work.library, dtype="bf16" if narrow == "fp8" else narrow, kv_dtype=stored,
        kernel="mla_absorb" if absorbed else "",
    )  # fmt: skip
    yield LibraryKernel(family="attention_decode", implementation=single, shapes=shapes, where=is_single_query)
    prompts = Implementation(library=work.library, dtype=narrow, kv_dtype=stored, kernel=kind)
    alternative, is_prompt = None, ~is_single_query
    if causal and kind != "mla_unabsorbed":
        side = {**shapes, "q_heads": shapes["q_heads"] * np.maximum(queries, 1)}
        is_few_queries = ~is_single_query & np.less(queries, _MIN_PROMPT_QUERIES)
        alternative = LibraryKernel(family="attention_decode", implementation=single, shapes=side, where=is_few_queries)
        if absorbed:
            per_query_shapes = {**shapes, "batch": batch * np.maximum(queries, 1)}
            padded = np.maximum(_MIN_PROMPT_QUERIES - queries, 0)
            prompt_shapes = {**shapes, "q_len": queries + padded, "kv_len": keys + padded}
            yield replace(
                alternative,
                per_query=LibraryKernel(
                    family="attention_decode", implementation=single, shapes=per_query_shapes, where=is_few_queries
                ),
                alternative=LibraryKernel(
                    family="attention_prefill", implementation=prompts, shapes=prompt_shapes, where=is_few_queries
                ),
            )
            alternative, is_prompt = None, is_prompt & ~is_few_queries
    yield LibraryKernel(
        family="attention_prefill", implementation=prompts, shapes=shapes, where=is_prompt, alternative=alternative
    )


def _of_its_sequences(op: _Attention) -> _Attention:
    """An operator as one rank runs it on its sequences, which LaunchWork.groups holds."""
    mask = op.heads.mask
    return replace(op, heads=replace(op.heads, mask=mask.mask)) if isinstance(mask, ShardedSequences) else op


def _segments(spans: Spans, window: float) -> Iterator[tuple[Spans, Num]]:
    """Yields segments of the cache that differ in the number of sequences that share them, and that number.

    Tokens that have left a window are not counted.
    """
    visible = np.minimum(spans.kv_len, window)
    before: Num = 0.0
    for prefix, sharing in (*spans.prefixes, (spans.kv_len, 1)):
        tokens = np.clip(visible - (spans.kv_len - prefix), 0, prefix)
        fields = {"batch": np.divide(spans.batch, sharing), "kv_len": np.maximum(tokens - before, spans.q_len)}
        yield Spans(q_len=spans.q_len, logits=spans.logits, **fields), sharing
        before = tokens


def _measured_terms(mask: Mask, alike: Workload) -> tuple[Num, Num, Num, bool]:
    """Sequences, queries and keys of each, and whether the mask is causal, in the terms of measured kernels.

    Keys that have left a window are not counted. Under other masks, every query sees the mean number of keys.
    """
    (spans,) = alike.groups
    if isinstance(mask, Causal):
        return spans.batch, spans.q_len, np.minimum(spans.kv_len, mask.window + spans.q_len - 1), True
    if isinstance(mask, PoolingMask):
        return spans.batch, np.minimum(spans.q_len, 1), spans.q_len, False
    any_query = np.minimum(spans.q_len, 1)
    queries = (
        np.maximum(np.divide(spans.q_len, mask.ranks), any_query) if isinstance(mask, ShardedQueries) else spans.q_len
    )
    tokens = np.multiply(spans.batch, queries)
    pairs = evaluate(mask.pairs, alike)
    each = np.divide(pairs, np.maximum(tokens, 1))
    if isinstance(mask, Tiled):
        return tokens / np.maximum(each, 1), each, each, False
    return spans.batch, queries, np.maximum(each, any_query), False


def cache_write(op: FlashAttention, works: Mapping[int, LaunchWork]) -> Iterator[LibraryKernel]:
    """Yields the kernel that copies new keys and values to the cache, if the block of the operator makes any."""
    cached_names = {t.name for t in op.inputs if t.role in RETAINED_ROLES}
    written_tensors = [(work, t) for work in works.values() for t in work.op.writes() if t.name in cached_names]
    if written_tensors:
        work, first = written_tensors[0]
        moved = 2 * sum((work.of(t.nbytes) for work, t in written_tensors), start=np.zeros(1))
        shapes = {"rows": np.maximum(work.of(first.rows), 1), "bytes": np.maximum(moved, 1), "cols": 1}
        implementation = Implementation(library=work.library, dtype="fp16", kernel=COPY)
        yield LibraryKernel(family="elementwise", implementation=implementation, shapes=shapes)


def scores(op: QK | SV, alike: Workload, work: LaunchWork) -> LibraryKernel:
    """A product per head: of queries with keys, or of scores with values."""
    heads, (spans,) = _of_its_sequences(op).heads, alike.groups
    tokens = np.maximum(np.multiply(spans.batch, spans.q_len), 1)
    keys = np.maximum(np.divide(evaluate(heads.mask.cells, alike), tokens), 1)
    n, k = (keys, heads.head_dim) if isinstance(op, QK) else (heads.out_dim, keys)
    shapes = {"M": spans.q_len, "N": n, "K": k, "batch": np.multiply(spans.batch, heads.num_heads)}
    return LibraryKernel(
        family="gemm", implementation=Implementation(library=work.library, dtype=work.half), shapes=shapes
    )


def indexer(op: Indexer | BlockIndexer, work: LaunchWork) -> Iterator[LibraryKernel]:
    """The indexer of sparse attention. For prompts it counts as attention, since its scores stay on the chip: half of a
    key taken as key and half as value have as many OPs and bytes as the key. Single tokens wait for the bytes of
    keys.
    """
    halves = replace(op.heads, head_dim=op.heads.head_dim // 2)
    halved = FlashAttention(name=op.name, inputs=op.inputs, outputs=op.outputs, heads=halves)
    is_single_query: Num = True
    for spans in work.groups:
        kernels = attention(halved, work.part(spans), work)
        prompts = next(kernel for kernel in kernels if kernel.family == "attention_prefill")
        is_single_query = np.logical_and(is_single_query, np.logical_not(prompts.where))
        yield prompts
    yield mover(op, work, where=is_single_query)
