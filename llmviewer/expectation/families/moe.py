"""Fused mixtures of experts: rows are sorted by expert, multiplied in two grouped products, and added up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar, Final

import numpy as np

from ..device import Device
from ..formats import kernel_type
from ._routing import TILES, even_tiles, local_loads
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

_HEIGHTS: Final = np.array(TILES, dtype=float)
_TUNED_ROWS: Final = (16, 32, 64, 128)  # rows of tiles that a kernel tuned for each shape has, and their columns
_WIDTHS: Final = (64, 128, 256)
_ROWS: Final = np.repeat([TILES.index(rows) for rows in _TUNED_ROWS], len(_WIDTHS))[None, :]
_COLUMNS: Final = np.tile(np.array(_WIDTHS, dtype=float), len(_TUNED_ROWS))[None, :]
_FEW_TOKENS: Final = 4  # that fill no tiles where vector units multiply them
_PASS_NAMES: Final = ("passes", "middle", "strangers")


class Moe(Family):
    """Fused MoE kernel of one device, without the router and the all-to-alls.

    variants  Tiles are the best of those that a kernel may be tuned to, or those that a rule of _RULES sets; each reads
              its weights and rows again from the L2 cache. "whole": if any copy of a token is on the device, all its
              copies are computed there, those of other devices' experts by the first expert, as in kernels that are not
              told where experts are
    """

    name = "moe"
    columns = ("tokens", "hidden", "inter", "topk", "experts")
    optional: ClassVar = {"tp": 1.0, "ep": 1.0, "gated": 1.0, "skew": 0.0, "reached": 0.0, "loop": 0.0}
    groups = ("hidden", "inter", "topk", "experts")
    memory_bound = True
    power_limited = True
    launches_as_algorithm = True
    variants = ("", "whole", "triton", "triton whole", "tokens", "mean", "marlin", "marlin whole", "tall")
    untuned_variants = ("tall",)
    parameters = (
        FittedParameter(name="alpha", prior=0.6, low=0.02, high=1, meaning="part of the peak that is reached"),
        FittedParameter(
            name="beta", prior=0.84, low=0.1, high=1, meaning="part of the memory bandwidth that is reached"
        ),
        FittedParameter(name="start_us", prior=30, low=1, high=500, meaning="launches [us]"),
        FittedParameter(name="tau_us", prior=2, low=0.02, high=60, meaning="start and end of a tile [us]"),
        FittedParameter(name="round", prior=0.5, low=0, high=1, meaning="whole waves rather than parts", linear=True),
        FittedParameter(
            name="pad", prior=0.5, low=0, high=1, meaning="empty rows of tiles that are computed", linear=True
        ),
        FittedParameter(
            name="kappa", prior=1, low=0.05, high=40, meaning="of the bandwidth that one core can use, x cores"
        ),
        FittedParameter(name="lambda", prior=3, low=0.5, high=15, meaning="bandwidth of the L2 cache / of the memory"),
        FittedParameter(name="passes", prior=4.5, low=0.1, high=60, meaning="over rows before and after, beside it"),
        FittedParameter(
            name="middle", prior=1, low=0.02, high=20, meaning="passes over rows between the multiplications"
        ),
        FittedParameter(
            name="strangers", prior=0.3, low=0.005, high=10, meaning="passes over rows of all devices' experts"
        ),
        FittedParameter(name="eta", prior=0.7, low=0.15, high=2, meaning="part of the L2 cache that is of use"),
        FittedParameter(
            name="held",
            prior=0.5,
            low=0,
            high=1,
            default=0,
            linear=True,
            meaning="of rows passed over, what the L2 cache still holds where they fit",
        ),
        FittedParameter(name="sharp", prior=2.5, low=1, high=20, meaning="power of the smooth maximum"),
        FittedParameter(name="expert_us", prior=0.03, low=0.001, high=3, meaning="an expert of the device [us]"),
    )

    def features(self, shapes: Shapes, device: Device, implementation: Implementation, variant: str) -> Features:
        kind = kernel_type(implementation.dtype)
        work = _amounts(shapes)
        work |= _all_copies(shapes, work) if "whole" in variant else {}
        rule = _RULES.get(variant.removesuffix("whole").strip())
        tile_places, wide = (_ROWS, _COLUMNS)
        if rule:
            tall, wide = (column[:, None] for column in rule(work))
            tile_places = np.searchsorted(TILES, tall)
        peak = device.peak(kind.arithmetic)
        tiled = device.has_matrix_units(kind.arithmetic)
        product_features: dict[str, Array] = {}
        all_bytes = np.zeros(len(work["rows"]))
        for name, n, k in (("up", work["up"], work["hidden"]), ("down", work["hidden"], work["inner"])):
            weights = work["reached"] * n * k * kind.weight
            rows = work["rows"] * (k * kind.activation + 2 * n)
            all_bytes = all_bytes + weights + rows
            tiles = work["tiles"][np.arange(len(n))[:, None], tile_places]
            padded = tiles * _HEIGHTS[tile_places]
            full = padded if tiled else np.where(work["tokens"][:, None] <= _FEW_TOKENS, work["rows"][:, None], padded)
            columns = np.ceil(n[:, None] / wide)
            touched = (weights + rows)[:, None]
            if rule:  # every tile reads its weights, and every column of tiles the rows
                touched = tiles * (n * k)[:, None] * kind.weight + columns * padded * k[:, None] * kind.activation
            product_features |= {
                f"{name} ops": (2 * work["rows"] * n * k / peak)[:, None],
                f"{name} padded": 2 * full * columns * wide * k[:, None] / peak,
                f"{name} waves": np.maximum(tiles * columns, 1) / device.cores,
                f"{name} weights": weights[:, None] / device.bandwidth,
                f"{name} rows": rows[:, None] / device.bandwidth,
                f"{name} l2": touched / device.bandwidth,
            }
        return {
            **product_features,
            "passes": 2 * work["hidden"] * (work["rows"] + work["tokens"]),
            "middle": 2 * (work["up"] + work["inner"]) * work["rows"],
            "strangers": 2 * (work["hidden"] + work["up"]) * work["all rows"],
            "bandwidth": device.bandwidth,
            "reuse": np.where(shapes["loop"] > 0, all_bytes, np.inf),
            "experts": work["local"],
            "size": device.l2,
        }

    def seconds(self, p: Parameters, features: Features) -> Array:
        f = features
        warm = uncached_fraction(f["reuse"], f["size"], p["eta"])[:, None]
        saved = p["held"] * max(1 - 1 / p["lambda"], 0)
        rest = {name: 1 - saved * (1 - uncached_fraction(f[name], f["size"], p["eta"])) for name in _PASS_NAMES}
        passes = sum(p[name] * f[name] * rest[name] for name in _PASS_NAMES) / f["bandwidth"]
        time = p["start_us"] * MICROSECOND + passes + f["experts"] * (p["expert_us"] * MICROSECOND)
        for name, part in (("up", rest["passes"]), ("down", rest["middle"])):
            waves = f[f"{name} waves"]
            rounds = p["round"] * np.ceil(waves) + (1 - p["round"]) * np.maximum(waves, 1)
            wide = np.minimum(1, p["kappa"] * waves)
            ops = (1 - p["pad"]) * f[f"{name} ops"] + p["pad"] * f[f"{name} padded"]
            compute = ops / p["alpha"] + rounds * (p["tau_us"] * MICROSECOND)
            memory = (f[f"{name} weights"] * warm + f[f"{name} rows"] * part[:, None]) / (p["beta"] * wide)
            l2 = f[f"{name} l2"] / (p["lambda"] * wide)
            largest = np.maximum(np.maximum(compute, memory), l2)
            place = np.argmin(compute * compute + memory * memory + l2 * l2, axis=1)
            best_tiles = np.arange(len(place)), place
            smooth = sum((t[best_tiles] / largest[best_tiles]) ** p["sharp"] for t in (compute, memory, l2))
            time = time + largest[best_tiles] * smooth ** (1 / p["sharp"])
        return np.asarray(time, dtype=float)

    def bound(self, shapes: Shapes, device: Device, implementation: Implementation) -> Array:
        """Roofline of the experts that tokens reach. [s]

        If some experts are more popular and there are fewer copies than experts, which of them are reached is chance.
        The bound then counts only what no routing avoids: on the device with most rows an equal part of the copies, and
        as many experts as those need, since a token goes to an expert once.
        """
        kind = kernel_type(implementation.dtype)
        work = _amounts(shapes)
        work |= _unavoidable(shapes, work)
        a_row = (work["up"] + work["inner"]) * work["hidden"]
        weights = work["reached"] * a_row * kind.weight
        rows = 2.0 * 2 * work["hidden"] * work["tokens"]
        moved = np.minimum(weights, from_memory(weights + rows, shapes["loop"], device.l2))
        ops = 2 * work["rows"] * a_row / device.limit(kind.arithmetic)
        return np.asarray(np.maximum(ops, moved / device.bandwidth))


_Work = Mapping[str, Array]


def _triton(work: _Work) -> tuple[Array, Array]:
    """SGLang and older vLLM: get_default_config, for shapes without a tuned table. vLLM's int4 kernels switch alike."""
    is_few_tokens = work["tokens"] <= work["local"]
    return np.where(is_few_tokens, 16, 64), np.where(is_few_tokens, 32, 64)


def _tokens(work: _Work) -> tuple[Array, Array]:
    """Newer vLLM: get_default_config, which looks at all tokens, however few reach an expert."""
    tokens = work["tokens"]
    return np.select([tokens <= 32, tokens <= 96, tokens <= 512], [16, 32, 64], 128), np.where(tokens <= 64, 64, 128)


def _mean(work: _Work) -> tuple[Array, Array]:
    """The power of two that an expert's mean fits in: make_default_opt_flags of triton_kernels; fits trtllm-gen too."""
    mean = np.floor(_copies(work))
    return np.clip(2 ** np.ceil(np.log2(np.maximum(mean, 1))), 16, 128), np.full_like(mean, 128)


def _marlin(work: _Work) -> tuple[Array, Array]:
    """The first block that an expert's mean fills to less than 0.9: fused_marlin_moe of vLLM and SGLang."""
    blocks, mean = np.array((8, 16, 32, 48, 64)), _copies(work)
    return blocks[np.searchsorted(blocks[:-1], mean / 0.9, side="right")], np.full_like(mean, 128)


def _tall(work: _Work) -> tuple[Array, Array]:
    """Times grow in steps of 128 rows of an expert: FlashInfer's CUTLASS on Hopper, which is untuned."""
    return np.full_like(work["tokens"], 128), np.full_like(work["tokens"], 128)


_RULES: Final[Mapping[str, Callable[[_Work], tuple[Array, Array]]]] = {  # rows and columns of tiles
    "triton": _triton,
    "tokens": _tokens,
    "mean": _mean,
    "marlin": _marlin,
    "tall": _tall,
}


def _copies(work: _Work) -> Array:
    """Copies of tokens per expert of the device, those for other devices included: kernels sort them out later."""
    return work["all rows"] / work["local"]


def _amounts(shapes: Shapes) -> dict[str, Array]:
    names = ("tokens", "hidden", "inter", "topk", "experts", "tp", "ep", "gated", "skew")
    tokens, hidden, inter, topk, experts, tp, ep, gated, skew = (np.asarray(shapes[c], dtype=float) for c in names)
    loads = local_loads(tokens, experts, topk, ep, skew)
    rows, reached, tiles = loads[:, 0], loads[:, 1], loads[:, 2:]
    known_experts = np.asarray(shapes["reached"], dtype=float)  # experts of the device that tokens reach; 0 if unknown
    differs = (known_experts > 0) & (known_experts != reached)
    reached = np.where(known_experts > 0, known_experts, reached)
    rows = np.maximum(rows, reached)
    tiles = np.where(differs[:, None], even_tiles(rows, reached), tiles)
    inner = inter / tp
    return {
        "tokens": tokens,
        "hidden": hidden,
        "inner": inner,
        "up": (1 + gated) * inner,
        "rows": rows,
        "all rows": tokens * topk,
        "reached": reached,
        "tiles": tiles,
        "local": np.maximum(experts / ep, 1),
    }


def _all_copies(shapes: Shapes, work: _Work) -> dict[str, Array]:
    """Tokens, rows and tiles if a device computes all copies of its tokens, with one expert for other devices."""
    topk, is_sharded = np.asarray(shapes["topk"], dtype=float), np.asarray(shapes["ep"]) > 1
    share = np.minimum(work["rows"] / work["all rows"], 1)  # but for rounding it is no more
    reaching = np.where(np.asarray(shapes["skew"]) > 0, 1 - (1 - share) ** topk, np.minimum(topk * share, 1))
    reaching = np.where(is_sharded, reaching, 1.0)
    rows = work["all rows"] * reaching
    tiles = work["tiles"] + np.ceil(np.maximum(rows - work["rows"], 0)[:, None] / _HEIGHTS)
    return {"tokens": work["tokens"] * reaching, "all rows": rows, "rows": rows, "tiles": tiles}


def _unavoidable(shapes: Shapes, work: _Work) -> dict[str, Array]:
    """Rows and experts that every routing reaches, as few tokens leave open which experts they reach."""
    lucky = (shapes["skew"] > 0) & (work["all rows"] < shapes["experts"])
    rows = np.ceil(work["all rows"] / shapes["ep"])
    minimum = {"rows": rows, "reached": np.ceil(rows / work["tokens"])}
    return {name: np.where(lucky, np.minimum(column, work[name]), work[name]) for name, column in minimum.items()}
