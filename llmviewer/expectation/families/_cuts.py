"""Into how many parts attention kernels cut the caches of a decode step, following each library's source."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from ...records import frozen
from .base import Array

# TensorRT-LLM's XQA kernels (computeMultiBlockCount and the constants beside it): a part has 128 keys or more, parts
# are no more than the square root of 8 times as many, and blocks no more than 8 waves.
_XQA_KEYS: Final = 128
_XQA_WAVES: Final = 8
# They take turns at tiles of so many keys (cpp/kernels/xqa/mha.cu: four warps of 64; mha_sm90.cu, Hopper's kernel for
# caches of 8 bits). Where 4 times the blocks do not fill the device, masked attention is called instead
# (DecoderXQARunner::mayHavePerfGain), but not for a cache of 8 bits.
_XQA_TILE: Final = 256
_XQA_TILE_SM90: Final = 64
_XQA_GAIN: Final = 4
# TensorRT-LLM's masked attention (decoderMaskedMultiheadAttentionLaunch.h): a core holds so many threads; a block has
# from so few of them to all, as many as fill the device, and takes 8 keys at a time for every thread of 8 columns.
_MASKED_THREADS: Final = 1024
_MASKED_LEAST: Final = 256
_MASKED_KEYS: Final = 8
_MASKED_COLUMNS: Final = 8
# TensorRT-LLM's generated kernels for Blackwell, which FlashInfer has too (fmhaKernels.h, computeNumCtas): as many
# parts as the cores hold at once, of two steps of keys or more.
_GENERATED_KEYS: Final = 256
_GENERATED_STEPS: Final = 2
# FlashAttention-3 (hopper/tile_size.h, flash_prepare_scheduler.cu): keys of a block up to a width of a head; work is
# dealt out as if there were a tenth more, and CUDA graphs of vLLM have room for so many parts.
_FA3_KEYS: Final = ((64, 192), (128, 128), (192, 96), (np.inf, 80))
_FA3_MARGIN: Final = 1.1
_FA3_MOST: Final = 32
# FlashAttention-2 (csrc/flash_attn/flash_api.cpp, num_splits_heuristic): keys of a block; there is place for two on a
# core. Nothing is cut that fills so much of the places; else the fewest parts do whose waves are so full, of the best.
_FA2_KEYS: Final = ((64, 256), (128, 128), (np.inf, 64))
_FA2_PLACES: Final = 2
_FA2_FULL: Final = 0.8
_FA2_GOOD: Final = 0.85
_FA2_PARTS: Final = np.arange(1, 129, dtype=float)[None]
# FlashInfer (attention/scheduler.cuh, PrefillPlanImpl, whose kernels decode on matrix units): as many parts as fill two
# places on each core, of so many keys or more.
_FILLED_KEYS: Final = 128
_FILLED_PLACES: Final = 2
# vLLM's Triton kernel (triton_unified_attention.py): segments, where sequences x key heads are no more than so many;
# none is shorter than the keys of one byte that a loop takes, and those beyond the last key end at once.
_SEGMENTS: Final = 16
_SEGMENTS_HEADS: Final = 128
_SEGMENTS_KEYS: Final = 32
# SGLang's Triton kernels (get_num_kv_splits_triton): as many as fill the cores once for every doubling of so many keys.
_GRADUAL_KEYS: Final = 64
_GRADUAL_MOST: Final = 8


@frozen(kw_only=True)
class DecodeCaches:
    """The caches of a decode step. Arrays have a row for each shape.

    heads   key heads of all sequences
    tiles   query tiles of all sequences; each has every part of its cache to read
    shared  whether the query heads that share a key head are in one tile
    keys    keys that are read
    cached_keys  keys of the cache, including those before a window
    width   columns of a head
    """

    heads: Array
    tiles: Array
    shared: Array
    keys: Array
    cached_keys: Array
    width: Array
    cores: float


@frozen(kw_only=True)
class Cut:
    """The number of parts of each cache, and how many of them have work.

    keys    of the longest part
    places  parts that a core runs at a time, for kernels that run in whole waves; 0 for those where the next part
            starts as soon as one ends
    idle    parts that are launched beyond the last key and end at once
    """

    parts: Array
    used: Array
    keys: Array
    places: Array | float = 0.0
    idle: Array | float = 0.0


def _xqa(c: DecodeCaches) -> Cut:
    """Parts follow from the length of the whole cache, so under a window most of them have nothing to do."""
    max_parts = np.maximum(np.floor(c.cached_keys / _XQA_KEYS), 1)
    parts = np.minimum(max_parts, np.round(np.sqrt(8 * max_parts)))
    waves = c.heads * parts / c.cores
    parts = np.maximum(np.floor(parts / np.maximum(waves / _XQA_WAVES, 1)), 1)
    return _even(c, parts, np.minimum(np.ceil(c.keys / c.cached_keys * parts), parts))


def _dealt(c: DecodeCaches, tile: float) -> Cut:
    parts = _xqa(c).parts
    tiles = np.ceil(c.keys / tile)
    return _tiled(c, parts, np.minimum(parts, tiles), tiles, tile)


def _generated(c: DecodeCaches) -> Cut:
    full = np.maximum(np.floor(c.cores / c.tiles), 1)
    parts = np.minimum(np.ceil(c.keys / (_GENERATED_STEPS * _GENERATED_KEYS)), full)
    return _tiled(c, parts, parts, np.ceil(c.keys / _GENERATED_KEYS), _GENERATED_KEYS)


def xqa_fills_device(heads: Array, cache_keys: Array, cores: float) -> Array:
    """Whether TensorRT-LLM calls its XQA kernels: whether they fill the device."""
    return np.asarray(_XQA_GAIN * heads * np.maximum(np.floor(cache_keys / _XQA_KEYS), 1) >= cores)


def _tiled(c: DecodeCaches, parts: Array, used: Array, tiles: Array, tile: float) -> Cut:
    return Cut(parts=parts, used=used, keys=np.minimum(np.ceil(tiles / used) * tile, c.keys))


def _even(c: DecodeCaches, parts: Array, used: Array, places: Array | float = 0.0) -> Cut:
    return Cut(parts=parts, used=used, keys=c.keys / used, places=places)


def _masked(c: DecodeCaches) -> Cut:
    """Blocks grow to their largest size before a cache is cut into more of them."""
    fewest = _MASKED_THREADS // _MASKED_LEAST
    larger = np.minimum(np.ceil(fewest * c.cores / c.tiles), fewest)
    threads = _MASKED_LEAST * 2.0 ** np.floor(np.log2(larger))
    places = _MASKED_THREADS / threads
    keys = np.floor(threads / (2 ** np.ceil(np.log2(c.width)) / _MASKED_COLUMNS))
    loop = _MASKED_KEYS * np.maximum(keys, 1)  # heads are at most as wide as a block; others have no such kernel
    parts = np.clip(np.ceil(places * c.cores / c.tiles), 1, np.ceil((c.keys + 1) / loop))
    return _even(c, parts, parts, places)


def _listed(c: DecodeCaches) -> Cut:
    blocks = np.ceil(c.keys / _size_for_width(c.width, _FA3_KEYS))
    each = np.ceil(_FA3_MARGIN * c.tiles * blocks / c.cores)
    parts = np.minimum(np.ceil(blocks / each), _FA3_MOST)
    return _even(c, parts, parts)


def _waves(c: DecodeCaches) -> Cut:
    """FlashAttention-2: cuts only caches of key heads that several query heads share."""
    slots = _FA2_PLACES * c.cores
    cut_rows = np.flatnonzero(c.shared & (c.tiles < _FA2_FULL * slots))
    blocks = np.ceil(c.keys / _size_for_width(c.width, _FA2_KEYS))[cut_rows]
    waves = c.tiles[cut_rows] * _FA2_PARTS / slots
    each = np.ceil(blocks / _FA2_PARTS)
    fewer = np.diff(each, axis=1, prepend=np.inf) < 0  # else they are as long as if there were one part less
    full = np.where(fewer, waves / np.ceil(waves), 0)
    parts = np.ones_like(c.tiles)
    parts[cut_rows] = 1 + np.argmax(full >= _FA2_GOOD * np.max(full, axis=1, keepdims=True), axis=1)[:, None]
    return _even(c, parts, parts)


def _filled(c: DecodeCaches) -> Cut:
    max_parts = np.maximum(np.floor(_FILLED_PLACES * c.cores / c.tiles), 1)
    keys = np.minimum(np.maximum(np.ceil(c.keys / max_parts), _FILLED_KEYS), c.keys)
    parts = np.ceil(c.keys / keys)
    return Cut(parts=parts, used=parts, keys=keys)


def _segments(c: DecodeCaches) -> Cut:
    launched = np.where(c.heads <= _SEGMENTS_HEADS, _SEGMENTS, 1)
    each = np.maximum(c.cached_keys / launched, _SEGMENTS_KEYS)
    parts, used = (np.minimum(np.ceil(keys / each), launched) for keys in (c.cached_keys, c.keys))
    return replace(_even(c, parts, used), idle=launched - parts)


def _gradual(c: DecodeCaches) -> Cut:
    cores = np.floor(c.cores * np.maximum(np.log2(c.keys / _GRADUAL_KEYS), 1))
    parts = np.minimum(np.ceil(cores / c.tiles), _GRADUAL_MOST)
    return _even(c, parts, parts)


def _size_for_width(width: Array, sizes: tuple[tuple[float, float], ...]) -> Array:
    """The size that belongs to the first limit not below a width."""
    return np.asarray(np.select([width <= limit for limit, _ in sizes], [size for _, size in sizes]))


RULES: Final[Mapping[str, Callable[[DecodeCaches], Cut]]] = {
    "rule": _xqa,
    "masked": _masked,
    "listed": _listed,
    "waves": _waves,
    "filled": _filled,
    "segments": _segments,
    "gradual": _gradual,
    "dealt": lambda c: _dealt(c, _XQA_TILE),
    "dealt64": lambda c: _dealt(c, _XQA_TILE_SM90),
    "gen": _generated,
}
WINDOW_SKIPPING: Final = frozenset({"rule", "dealt", "dealt64"})  # that begin where a window does
