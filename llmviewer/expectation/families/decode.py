"""Attention of one new token of each sequence to its cache."""

from __future__ import annotations

from collections.abc import Collection
from typing import ClassVar, Final

import numpy as np

from ...records import frozen
from ..device import Device
from ..formats import cache_bytes
from ._cuts import RULES, WINDOW_SKIPPING, DecodeCaches, xqa_fills_device
from .base import (
    MICROSECOND,
    Array,
    Family,
    Features,
    FittedParameter,
    Implementation,
    Parameters,
    Shapes,
    from_memory,
    uncached_fraction,
)

_SPLITS: Final = np.array([[1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64]], dtype=float)
_MIN_PART_KEYS: Final = 64  # keys of a part of the cache
_FEW_PARTS: Final = 8  # that kernels without a heuristic cut a cache into
_CONSTANT_PARTS: Final = 32
_FEW_HEADS: Final = 8  # heads that share keys and fill no more than half of the smallest tile
_LARGEST_TILE_HEADS: Final = 128  # heads of the largest tile
_NARROW_HEAD: Final = 64  # columns of a narrow head
_COLUMNS: Final = 128  # and of a usual one
_LATENT_WIDTH: Final = 512  # columns that keys and values of latent attention share
# Of the part of the L2 cache that is of use, what lies between a loop's bytes all staying there and none of them. Read
# in turn, what does not fit is gone all at once from a cache in one piece, as NVIDIA's are without stacked memory: on
# L40S all comes from it at 1.0 of its size, none at 1.4.
_EVICTION_WIDTH: Final = 0.6
_UNIFIED_EVICTION_WIDTH: Final = 0.3


class Decode(Family):
    """A core takes a key head and a part of its cache; the parts' results are added up afterwards.

    variants  The number is the most query heads of a key head that share a tile. If more share it, each goes alone;
              with 128, the largest tile, they take more tiles instead. Of tiles: "narrow": small for up to twice as
              many heads; "short": always of 16 heads; "tall": always of 64; "apart": heads go alone under a window. Of
              the parts of a cache: "few": at most 8; "one": 1; "whole": 1 if no heads share keys; "always": 32, however
              short the cache, as a CUDA graph for all lengths has. Parts as a library's source sets them: "rule": XQA
              of TensorRT-LLM, from the length of the whole cache; "dealt", "dealt64": its parts take turns at tiles of
              256 or 64 keys (64: 8-bit caches on Hopper); "worth": XQA is only called if it fills the device; "masked":
              TensorRT-LLM's masked attention, for heads that go alone; "gen": TensorRT-LLM's kernels for Blackwell;
              "listed": FlashAttention-3, which walks a list of sequences; "waves": FlashAttention-2, which turns heads
              that share keys into rows, but not under a window; "filled": FlashInfer; "triton": a core works on several
              parts at a time, "segments" of the whole cache in vLLM, "gradual" ones in SGLang. "shared": all of this is
              for heads that share keys; others have a kernel of their own
    """

    name = "attention_decode"
    columns = ("batch", "kv_len", "q_heads", "kv_heads", "head_dim", "v_head_dim")
    optional: ClassVar = {"window": 0.0, "loop": 0.0, "splits": 0.0}
    groups = ("q_heads", "kv_heads", "head_dim")
    rewritten_per_generation = True
    portable_kernels = ("triton", "vllm_triton_attn", "flashinfer")
    memory_bound = True
    latency_limited = True
    cpu_parameters: ClassVar = {"alpha": 0.008}  # each head alone, without matrix units
    parameters = (
        FittedParameter(name="alpha", prior=0.3, low=0.0005, high=1, meaning="part of the peak that is reached"),
        FittedParameter(
            name="beta", prior=0.87, low=0.05, high=1, meaning="part of the memory bandwidth that is reached"
        ),
        FittedParameter(name="start_us", prior=8.5, low=0.5, high=300, meaning="launch and first tile [us]"),
        FittedParameter(
            name="kappa", prior=2, low=0.3, high=30, meaning="of the bandwidth that one core can use, x cores"
        ),
        FittedParameter(
            name="lambda", prior=1.8, low=0.5, high=15, meaning="bandwidth of the L2 cache / of the memory"
        ),
        FittedParameter(name="split_us", prior=4, low=0.1, high=60, meaning="adding up parts of the cache [us]"),
        FittedParameter(name="tau_us", prior=1.5, low=0.02, high=30, meaning="start and end of a part [us]"),
        FittedParameter(name="eta", prior=0.6, low=0.15, high=2, meaning="part of the L2 cache that is of use"),
        FittedParameter(name="sharp", prior=8, low=1.2, high=20, meaning="power of the smooth maximum"),
        FittedParameter(
            name="key_ns", prior=0.5, low=0.01, high=400, meaning="a key of a part, whatever its width [ns]"
        ),
        FittedParameter(name="single", prior=1, low=0.2, high=8, meaning="time / of others where a head goes alone"),
        FittedParameter(name="single_us", prior=0.3, low=0.01, high=40, meaning="and as much more [us]"),
        FittedParameter(
            name="wide", prior=1, low=0.2, high=100, meaning="arithmetic / of fewer where many heads share keys"
        ),
        FittedParameter(
            name="broad", prior=1, low=0.3, high=4, meaning="time / of others where a head is wider than 128"
        ),
        FittedParameter(
            name="thin",
            prior=1,
            low=0.4,
            high=2.5,
            default=1,
            meaning="launch and first tile / those of others where a head is no wider than 64",
        ),
        FittedParameter(
            name="odd", prior=1.1, low=0.5, high=3, meaning="time / of others where a head's width is no power of two"
        ),
        FittedParameter(name="odd_us", prior=0.3, low=0.01, high=40, meaning="and as much more [us]"),
        FittedParameter(
            name="pad", prior=0.3, low=0, high=1, meaning="empty rows of tiles that are computed", linear=True
        ),
        FittedParameter(name="window_us", prior=1, low=0.01, high=60, meaning="finding a window's keys [us]"),
        FittedParameter(
            name="passed_ns", prior=0.02, low=0.0002, high=20, meaning="a key before the window, of a core [ns]"
        ),
        FittedParameter(
            name="ramp_us",
            prior=4,
            low=0.05,
            high=60,
            default=0,
            meaning="more for the first bytes, as many as the L2 cache holds [us]",
        ),
        FittedParameter(
            name="overlap",
            prior=0.3,
            low=0,
            high=1,
            default=0,
            meaning="of starts and ends, what others hide",
            linear=True,
        ),
        FittedParameter(
            name="part_us", prior=0.05, low=0.001, high=5, default=0, meaning="adding up, for each part [us]"
        ),
        FittedParameter(
            name="row_ns",
            prior=5,
            low=0.05,
            high=1000,
            default=0,
            meaning="start and end of a part, for each head of its tile that is 128 columns wide [ns]",
        ),
        FittedParameter(
            name="token_ns",
            prior=2,
            low=0.05,
            high=1000,
            variant_word="listed",
            meaning="a new token, however many heads [ns]",
        ),
        FittedParameter(
            name="turned_us",
            prior=4,
            low=0.1,
            high=60,
            variant_word="waves",
            meaning="copies of queries and results, to make heads that share keys rows of one [us]",
        ),
        FittedParameter(
            name="nearer",
            prior=2,
            low=1,
            high=8,
            default=2,
            variant_word="waves",
            meaning="what a core reads in a second from the L2 cache / from memory",
        ),
        FittedParameter(
            name="masked_us",
            prior=2,
            low=0.01,
            high=30,
            default=0,
            variant_word="masked",
            meaning="more for a block of masked attention [us]",
        ),
        FittedParameter(
            name="summed_us",
            prior=2,
            low=0.01,
            high=30,
            default=0,
            variant_word="masked",
            meaning="and for adding up its parts [us]",
        ),
        FittedParameter(
            name="masked_ns",
            prior=0.3,
            low=0.01,
            high=200,
            default=0,
            variant_word="masked",
            meaning="and for a key [ns]",
        ),
        FittedParameter(
            name="resident",
            prior=1.5,
            low=1,
            high=8,
            variant_word="triton",
            meaning="parts that a core works at together",
        ),
        FittedParameter(
            name="idle",
            prior=0.3,
            low=0.01,
            high=1,
            default=1,
            variant_word="segments",
            meaning="start and end of a part beyond the last key / of others",
        ),
    )
    variants = (
        "128",
        "32",
        "8",
        "128 whole",
        "32 whole",
        "128 apart",
        "32 apart",
        "128 whole apart",
        "128 narrow",
        "128 few",
        "128 apart few",
        "128 whole few",
        "128 one",
        "128 always",
        "128 short",
        "128 short few",
        "128 short always",
        "128 tall",
        "128 tall one",
        "32 shared",
        "32 shared one",
        "32 shared rule",
        "32 shared rule masked",
        "128 listed",
        "128 tall waves",
        "128 triton segments",
        "128 short triton gradual",
        "32 shared dealt masked worth",
        "32 shared dealt64 masked",
        "32 shared one masked",
        "128 gen",
        "32 gen masked",
        "128 filled",
    )

    def features(self, shapes: Shapes, device: Device, implementation: Implementation, variant: str) -> Features:
        b, cache_keys, heads, kv_heads, dim, v_dim = (np.asarray(shapes[c], dtype=float)[:, None] for c in self.columns)
        windowed = shapes["window"] > 0
        passed = np.where(windowed[:, None], np.maximum(cache_keys - shapes["window"][:, None], 0), 0)
        max_heads, *ways = (variant or self.variants[0]).split()
        cache, queries, ops = _work(shapes, cache_bytes(implementation.kv_dtype or "bf16"))
        group = heads / kv_heads
        fills = xqa_fills_device(b * kv_heads, cache_keys, device.cores)
        tile = _tile(group, int(max_heads), ways, windowed=windowed[:, None], fills=fills)
        groups = np.ceil(group / tile.heads)
        tiles = b * kv_heads * groups
        caches = DecodeCaches(
            heads=b * kv_heads,
            tiles=tiles,
            shared=(group > 1) & ~tile.is_single,
            keys=cache_keys - passed,
            cached_keys=cache_keys,
            width=dim,
            cores=device.cores,
        )
        splits = np.asarray(shapes["splits"], dtype=float)[:, None]
        cut = _with_splits(_cut(caches, ways, single=group <= 1, other=tile.other), caches, splits)
        waves, busy, filled = _rounds(caches, cut)
        masked = tile.other & ("masked" in ways)
        skipped = bool(WINDOW_SKIPPING & set(ways)) & ~tile.other
        parted = np.where(cut.parts > 1, 8 * cut.parts * b * heads * v_dim, 0)
        return {
            "waves": waves,
            "idle": caches.tiles * cut.idle / device.cores,
            "busy": busy,
            "filled": filled,
            "keys": cut.keys,
            "rows": np.zeros_like(b) if _latent(implementation) else np.minimum(group, tile.heads) * dim / _COLUMNS,
            "cache": cache / device.bandwidth,
            "queries": queries / device.bandwidth,
            "l2": (cache[:, None] * groups + queries[:, None] + parted) / device.bandwidth,
            "compute": ops / device.peak("bf16"),
            "padded": ops / device.peak("bf16") * (tile.heads * groups / group)[:, 0],
            "passed": np.where(skipped, 0, passed * np.maximum(tiles / device.cores, 1))[:, 0],
            "windowed": windowed & (passed[:, 0] > 0),
            "odd": (np.log2(v_dim) % 1 > 0)[:, 0],
            "thin": ((dim <= _NARROW_HEAD) & ~masked)[:, 0],
            "broad": ((v_dim > 128) & (v_dim < _LATENT_WIDTH))[:, 0],
            "split": np.where(cut.able, (cut.parts > 1) & (splits == 0), np.inf),
            "parts": np.where((cut.parts > 1) & (splits == 0), cut.parts, 0),
            "tokens": b[:, 0],
            "turned": (caches.shared & (b > 1) & (kv_heads > 1))[:, 0],
            "reuse": np.where(shapes["loop"][:, None] > 0, (cache + queries)[:, None] + parted / 2, np.inf),
            "size": device.l2,
            "fading": _EVICTION_WIDTH if device.stacked or device.vendor != "nvidia" else _UNIFIED_EVICTION_WIDTH,
            "ramp": -np.expm1(-cache / device.l2),
            "single": (tile.other | (("shared" not in ways) & (group <= 1)))[:, 0],
            "masked": masked,
            "wide": (group[:, 0] > min(float(max_heads), _FEW_HEADS)) & ~_latent(implementation),
        }

    def seconds(self, p: Parameters, features: Features) -> Array:
        f = features
        wide = np.minimum(1, p["kappa"] * f["filled"])
        missed = uncached_fraction(f["reuse"], f["size"], p["eta"], f["fading"])
        memory = (f["cache"][:, None] * missed + f["queries"][:, None]) / (p["beta"] * wide)
        nearer = p.get("nearer", p["lambda"] / p["beta"])
        l2 = f["l2"] / np.minimum(p["lambda"], p["beta"] * nearer * p["kappa"] * f["filled"])
        ops = ((1 - p["pad"]) * f["compute"] + p["pad"] * f["padded"]) * np.where(f["wide"], p["wide"], 1)
        compute = (ops / p["alpha"])[:, None] / np.minimum(1, f["filled"])
        resident = p.get("resident", 1.0)
        begun = f["waves"] + p.get("idle", 1.0) * f["idle"]
        ends = np.maximum(begun / resident, 1) * (p["tau_us"] + p["row_ns"] * 1e-3 * f["rows"]) * MICROSECOND
        masked = f["waves"] * p.get("masked_us", 0.0) + f["busy"] * f["keys"] * p.get("masked_ns", 0.0) * 1e-3
        rounds = ends + np.maximum(f["busy"] / resident, 1) * f["keys"] * (p["key_ns"] * 1e-3 * MICROSECOND)
        rounds = rounds + masked * f["masked"] * MICROSECOND
        hidden = p["overlap"] * rounds
        largest = np.maximum(np.maximum(memory, l2), np.maximum(compute, hidden))
        power = p["sharp"]
        adding = p["split_us"] + f["masked"] * p.get("summed_us", 0.0)
        sums = (f["split"] * adding + f["parts"] * p["part_us"]) * MICROSECOND
        total_s = largest + (rounds - hidden) + sums
        place = np.argmin(total_s, axis=1)
        best_cut = np.arange(len(place)), place
        smooth = sum(
            (np.broadcast_to(t, total_s.shape)[best_cut] / largest[best_cut]) ** power
            for t in (memory, l2, compute, hidden)
        )
        core = largest[best_cut] * smooth ** (1 / power) + (total_s - largest)[best_cut]
        core = core * np.where(f["single"], p["single"], 1) * np.where(f["odd"], p["odd"], 1)
        core = core * np.where(f["broad"], p["broad"], 1)
        core = core + (f["odd"] * p["odd_us"] + f["single"] * p["single_us"]) * MICROSECOND
        window = f["windowed"] * p["window_us"] * MICROSECOND + f["passed"] * p["passed_ns"] * 1e-3 * MICROSECOND
        start = (p["start_us"] * np.where(f["thin"], p["thin"], 1) + p["ramp_us"] * f["ramp"]) * MICROSECOND
        before = p.get("turned_us", 0.0) * f["turned"] + p.get("token_ns", 0.0) * 1e-3 * f["tokens"]
        return np.asarray(start + core + window + before * MICROSECOND, dtype=float)

    def bound(self, shapes: Shapes, device: Device, implementation: Implementation) -> Array:
        cache, queries, ops = _work(shapes, cache_bytes(implementation.kv_dtype or "bf16"))
        moved = from_memory(cache + queries, shapes["loop"], device.l2)
        arithmetic = max(device.limit("bf16"), device.limit("fp8") if implementation.kv_dtype == "fp8" else 0)
        return np.maximum(ops / arithmetic, moved / device.bandwidth)

    def default_parameters(self, implementation: Implementation, device: Device) -> dict[str, float]:
        return super().default_parameters(implementation, device) | ({"alpha": 0.9} if _latent(implementation) else {})

    def fittable(self, shapes: Shapes) -> Array:
        return np.asarray((shapes["kv_len"] >= 64) & (shapes["batch"] <= 512))


@frozen(kw_only=True)
class _Tile:
    """Tiles of query heads that share a key head. Arrays have a row for each shape.

    heads  that a tile has room for, some of which may be empty; 1 if each goes alone
    is_single  whether each head goes alone
    other  whether a separate kernel takes heads that go alone
    """

    heads: Array
    is_single: Array
    other: Array


def _tile(group: Array, max_heads: int, ways: Collection[str], *, windowed: Array, fills: Array) -> _Tile:
    """The tile for `group` heads, of which at most `most` share one.

    fills  whether XQA's kernel fills the device
    """
    smallest = 32 if "narrow" in ways else 16  # heads that the smallest tile takes, twice if need be
    heads = np.where(group <= smallest, 16, np.where(group <= 64, 64, _LARGEST_TILE_HEADS))
    heads = np.where("short" in ways, 16, np.where("tall" in ways, 64, heads))
    is_single = group > (max_heads if max_heads < _LARGEST_TILE_HEADS else np.inf)
    is_single = is_single | (windowed & bool({"apart", "waves"} & set(ways))) | (("worth" in ways) & ~fills)
    other = (is_single & bool({"shared", "masked"} & set(ways))) | ((group <= 1) & ("shared" in ways))
    return _Tile(heads=np.where(is_single, 1, heads), is_single=is_single, other=other)


@frozen(kw_only=True)
class _Cut:
    """Splits of the KV cache. Arrays have a row for each shape and a column for each number of splits considered.

    able    whether the kernel may choose that number
    parts   of a cache
    used    parts that have work
    keys    of the longest part
    places  parts that the device runs at a time, for kernels that count on it; 0 for others
    idle    parts that are launched beyond the last key and end at once
    """

    able: Array
    parts: Array
    used: Array
    keys: Array
    places: Array
    idle: Array


def _cut(caches: DecodeCaches, ways: Collection[str], *, single: Array, other: Array) -> _Cut:
    """All numbers of parts that leave enough keys in each; or the number that a library's rule sets.

    single  whether no heads share keys
    other   whether a separate kernel takes heads that go alone
    """
    max_parts = np.where(other, np.inf, 1 if "one" in ways else _FEW_PARTS if "few" in ways else np.inf)
    is_long_enough = (caches.keys / _SPLITS >= _MIN_PART_KEYS) & (max_parts >= _SPLITS) & ~(("whole" in ways) & single)
    able = (
        np.broadcast_to(_SPLITS == _CONSTANT_PARTS, is_long_enough.shape)
        if "always" in ways
        else (_SPLITS == 1) | is_long_enough
    )
    parts = used = _SPLITS
    keys, places, idle = caches.keys / used, np.zeros_like(caches.keys), np.zeros_like(caches.keys)
    for way in ways:
        if way in RULES:
            ruled, rule = (other if way == "masked" else ~other), RULES[way](caches)
            left = slice(1 if np.all(ruled) else None)  # one number is enough where a rule has it
            able = np.where(ruled, (_SPLITS == 1)[:, left], able[:, left])
            parts = np.where(ruled, rule.parts, parts[:, left])
            used = np.where(ruled, rule.used, used[:, left])
            keys = np.where(ruled, rule.keys, keys[:, left])
            places, idle = np.where(ruled, rule.places, places), np.where(ruled, rule.idle, idle)
    return _Cut(able=able, parts=parts, used=used, keys=keys, places=places, idle=idle)


def _with_splits(cut: _Cut, caches: DecodeCaches, splits: Array) -> _Cut:
    """`cut` with the number of parts that is given, where it is not 0; another launch adds up their results."""
    is_given = splits > 0
    if not np.any(is_given):
        return cut
    parts = np.where(is_given, splits, cut.parts)
    return _Cut(
        able=np.where(is_given, np.arange(cut.able.shape[1]) == 0, cut.able),
        parts=parts,
        used=np.where(is_given, np.minimum(splits, caches.keys), cut.used),
        keys=np.where(is_given, caches.keys / np.minimum(splits, caches.keys), cut.keys),
        places=np.where(is_given, 0, cut.places),
        idle=np.where(is_given, 0, cut.idle),
    )


def _rounds(caches: DecodeCaches, cut: _Cut) -> tuple[Array, Array, Array]:
    """Parts that start on a core, those of them with work, and how full the device is of the latter."""
    waves, busy = caches.tiles * cut.parts / caches.cores, caches.tiles * cut.used / caches.cores
    if not np.any(cut.places > 0):
        return waves, busy, busy
    rounds = waves / np.maximum(cut.places, 1)
    filled = np.where(cut.places > 0, rounds / np.ceil(rounds), busy)
    waves, busy = (np.where(cut.places > 0, np.ceil(rounds), parts_per_core) for parts_per_core in (waves, busy))
    return waves, busy, filled


def _latent(implementation: Implementation) -> bool:
    """Whether this is latent attention: all heads share one key head, and any number of heads fills matrix units."""
    return implementation.kernel.endswith("mla_absorb")


def _work(shapes: Shapes, width: float) -> tuple[Array, Array, Array]:
    """Bytes of the cache that are read; bytes of queries and results; OPs."""
    b, kv, heads, kv_heads, dim, v_dim = (np.asarray(shapes[c], dtype=float) for c in Decode.columns)
    kv = np.where(shapes["window"] > 0, np.minimum(kv, shapes["window"]), kv)
    latent = (kv_heads == 1) & (v_dim == _LATENT_WIDTH) & (dim > v_dim)
    cache = b * kv_heads * kv * np.where(latent, dim, dim + v_dim) * width
    return cache, 2 * b * heads * (dim + v_dim), 2 * b * heads * kv * (dim + v_dim)
