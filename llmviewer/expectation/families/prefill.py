"""Attention over a prompt: every query of a sequence looks at the keys before it."""

from __future__ import annotations

from typing import ClassVar, Final

import numpy as np

from ..device import Device
from ..formats import cache_bytes, kernel_type
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
    smooth_max,
    uncached_fraction,
)

_SMALL_TILE_ROWS: Final = 64  # rows of the tile that kernels turn to for short prompts
# FlashAttention-3 on Hopper (hopper/tile_size.h): rows of a tile where heads are wider than so many columns. Caches in
# small pages are read with packed heads only (get_pack_gqa in hopper/flash_api.cpp).
_WIDE_HEAD: Final = 64
_WIDE_HEAD_ROWS: Final = 128
# Of an exponential's time, what kernels of Hopper and Blackwell for heads of several widths show: the median of fits.
_EXPOSED_EXPONENTIALS: Final = 0.75
# vLLM's reshape_and_cache_flash (csrc/cache_kernels.cu): a block for each token, with a thread for each element of its
# keys up to so many; a core holds so many threads.
_STORING: Final = "vllm"
_BLOCK: Final = 512
_THREADS: Final = 2048


class Prefill(Family):
    """A core takes a tile of queries and passes over the keys that they see.

    variants  rows of the tile, which kernels lower for short prompts. "only": they do not, as with the two tiles of 128
              in a block of FlashAttention-4, or the 16 rows of vLLM's Triton kernel; "width": fewer rows only for wide
              heads; "packed": query heads that share a key head are in one tile; "blind": keys that a window hides are
              passed over too
    """

    name = "attention_prefill"
    columns = ("batch", "q_len", "kv_len", "q_heads", "kv_heads", "head_dim", "v_head_dim")
    optional: ClassVar = {"window": 0.0, "causal": 1.0, "loop": 0.0}
    groups = ("q_heads", "kv_heads", "head_dim")
    rewritten_per_generation = True
    portable_kernels = ("triton", "vllm_triton_attn")
    power_limited = True
    cpu_parameters: ClassVar = {"alpha": 0.2}
    variants = ("64", "128", "128 packed", "192 packed", "256", "128 blind", "192 packed width", "128 only", "256 only",
                "32 only", "16 packed only")  # fmt: skip
    parameters = (
        FittedParameter(name="alpha", prior=0.7, low=0.02, high=1, meaning="part of the peak that is reached"),
        FittedParameter(
            name="beta", prior=0.86, low=0.1, high=1, meaning="part of the memory bandwidth that is reached"
        ),
        FittedParameter(name="start_us", prior=11, low=0.5, high=300, meaning="launch and first tile [us]"),
        FittedParameter(name="tau_us", prior=2, low=0.02, high=30, meaning="start and end of a tile [us]"),
        FittedParameter(
            name="softmax", prior=60, low=1, high=1500, meaning="a score's exponential, in columns of a head"
        ),
        FittedParameter(name="wide", prior=1, low=0.3, high=4, meaning="cost of columns of a head above 128, each"),
        FittedParameter(name="round", prior=0.6, low=0, high=1, meaning="whole waves rather than parts", linear=True),
        FittedParameter(
            name="tail", prior=0.2, low=0, high=1, meaning="of the longest tile, left at the end", linear=True
        ),
        FittedParameter(name="passes", prior=1.9, low=0.05, high=20, meaning="over queries, beside it"),
        FittedParameter(name="cache_passes", prior=2, low=0.05, high=20, meaning="over new keys and values, beside it"),
        FittedParameter(name="token_ns", prior=0.3, low=0.001, high=60, meaning="a new token, however many heads [ns]"),
        FittedParameter(
            name="store_us",
            prior=0.3,
            low=0.003,
            high=30,
            default=0,
            meaning="a block of threads that writes a token's keys and values to the cache [us]",
        ),
        FittedParameter(
            name="odd", prior=1.1, low=0.5, high=3, meaning="time / of others where a head's width is no power of two"
        ),
        FittedParameter(
            name="edge", prior=1, low=0.1, high=12, meaning="keys of a window that are seen in vain, in tiles"
        ),
        FittedParameter(
            name="lambda", prior=2.5, low=0.8, high=15, meaning="bandwidth of the L2 cache / of the memory"
        ),
        FittedParameter(name="eta", prior=0.6, low=0.15, high=2, meaning="part of the L2 cache that is of use"),
        FittedParameter(name="sharp", prior=6, low=1.2, high=20, meaning="power of the smooth maximum"),
    )

    def default_parameters(self, implementation: Implementation, device: Device) -> dict[str, float]:
        """Adds the exposed time of special function units, most of which shows where multiplication is fast."""
        parameters = super().default_parameters(implementation, device)
        if device.vendor == "nvidia" and device.kind == "gpu" and device.clock:
            columns = device.peak(kernel_type(implementation.dtype).arithmetic) / 2 / device.cores
            exposed = _EXPOSED_EXPONENTIALS * columns / (device.exponentials * device.clock)
            parameters["softmax"] = max(exposed, parameters["softmax"])
        return parameters

    def features(self, shapes: Shapes, device: Device, implementation: Implementation, variant: str) -> Features:
        b, q, kv, heads, kv_heads, dim, v_dim = (np.asarray(shapes[c], dtype=float)[:, None] for c in self.columns)
        window = np.where(shapes["window"] > 0, shapes["window"], np.inf)[:, None]
        causal = np.asarray(shapes["causal"], dtype=float)[:, None] > 0
        rows, *ways = (variant or self.variants[0]).split()
        packed = "packed" in ways
        window = np.full_like(window, np.inf) if "blind" in ways else window
        tile = np.where(("width" in ways) & (dim > _WIDE_HEAD), _WIDE_HEAD_ROWS, float(rows))
        if not {"only", "width"} & set(ways):
            tile = np.array(sorted({float(rows), _SMALL_TILE_ROWS}))[None, :]
        group = heads / kv_heads if packed else np.ones_like(heads)
        tiles = np.ceil(q * group / tile)
        blocks = b * (kv_heads if packed else heads) * tiles
        mean = np.where(causal, np.minimum(kv - q + (tiles + 1) / 2 * tile / group, kv), kv)
        read = b * kv * kv_heads * (dim + v_dim) * cache_bytes(implementation.kv_dtype or "bf16")
        peak = device.peak(kernel_type(implementation.dtype).arithmetic)
        moved = (2 * b * q * heads * (dim + v_dim) + read)[:, 0]
        threads = np.minimum(kv_heads * dim, _BLOCK) if implementation.library == _STORING else np.zeros_like(b)
        return {
            "waves": blocks / device.cores,
            "mean": mean,
            "last": kv,
            "window": window,
            "edge": tile / group,
            "odd": (np.log2(dim) % 1 > 0)[:, 0],
            "unit": 2 * tile * device.cores / peak,
            "narrow": np.minimum(dim, 128) + np.minimum(v_dim, 128),
            "wide": np.maximum(dim - 128, 0) + np.maximum(v_dim - 128, 0),
            "moved": moved / device.bandwidth,
            "reuse": np.where(shapes["loop"] > 0, moved, np.inf),
            "size": device.l2,
            "tokens": (b * q)[:, 0],
            "stores": (b * q * threads / (_THREADS * device.cores))[:, 0],
            "pass": (2 * b * q * heads * dim / device.bandwidth)[:, 0],
            "cache pass": (4 * b * q * kv_heads * dim / device.bandwidth)[:, 0],
        }

    def seconds(self, p: Parameters, features: Features) -> Array:
        f = features
        waves = f["waves"]
        key = f["unit"] * (f["narrow"] + p["wide"] * f["wide"] + p["softmax"]) / p["alpha"]
        rounds = p["round"] * np.ceil(waves) + (1 - p["round"]) * waves
        tau = p["tau_us"] * MICROSECOND
        window_keys = f["window"] + p["edge"] * f["edge"]
        longest = np.minimum(f["last"], window_keys)
        keys = np.maximum(rounds * np.minimum(f["mean"], window_keys) + p["tail"] * longest, longest)
        compute = np.min(keys * key + np.maximum(waves, 1) * tau, axis=1)
        compute = compute * np.where(f["odd"], p["odd"], 1)
        part = uncached_fraction(f["reuse"], f["size"], p["eta"])
        part = part + (1 - part) / p["lambda"]
        memory = f["moved"] * part / p["beta"]
        core = smooth_max(p["sharp"], compute, memory)
        passes = p["passes"] * f["pass"] + p["cache_passes"] * f["cache pass"]
        passes = passes * part + (p["token_ns"] * 1e-3 * f["tokens"] + p["store_us"] * f["stores"]) * MICROSECOND
        return np.asarray(p["start_us"] * MICROSECOND + core + passes, dtype=float)

    def bound(self, shapes: Shapes, device: Device, implementation: Implementation) -> Array:
        b, q, kv, heads, kv_heads, dim, v_dim = (np.asarray(shapes[c], dtype=float) for c in self.columns)
        ops = 2 * b * heads * _pairs(q, kv, shapes) * (dim + v_dim)
        read_keys = np.where(shapes["window"] > 0, np.minimum(kv, q + shapes["window"]), kv)
        read = b * read_keys * kv_heads * (dim + v_dim) * cache_bytes(implementation.kv_dtype or "bf16")
        moved = 2 * b * q * heads * (dim + v_dim) + read
        memory = from_memory(moved, shapes["loop"], device.l2) / device.bandwidth
        arithmetic = "fp8" if implementation.kv_dtype == "fp8" and device.vendor == "nvidia" else implementation.dtype
        types = (kernel_type(implementation.dtype).arithmetic, kernel_type(arithmetic).arithmetic)
        return np.asarray(np.maximum(ops / max(map(device.limit, types)), memory))

    def fittable(self, shapes: Shapes) -> Array:
        return np.asarray(shapes["q_len"] >= 128)


def _pairs(q: Array, kv: Array, shapes: Shapes) -> Array:
    """Queries times the keys that each of them sees, for one head."""
    window = np.where(shapes["window"] > 0, shapes["window"], np.inf)
    full = q * np.minimum(kv, window)
    before = kv - q  # keys that even the first query sees, beside its own
    grown = np.clip(np.minimum(window, kv) - before, 0, q)  # queries that see fewer keys than the window holds
    ramp = grown * before + grown * (grown + 1) / 2
    return np.asarray(np.where(shapes["causal"] > 0, ramp + (q - grown) * np.minimum(window, kv), full))
