"""Recurrences with a state of fixed size: gated delta rules and state spaces, in chunks or token by token."""

from __future__ import annotations

from typing import ClassVar, Final

import numpy as np

from ...resource import vector
from ..device import Device
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

_ELEMENT: Final = 2.0  # queries, keys, values and results [B]
_STATE_ELEMENT: Final = 4.0  # states in fp32, as engines keep them [B]
# OPs of the recurrent form per element of state and token: decay and update, and the product with the query (state
# spaces, arXiv:2405.21060); the delta rule first takes off what the key recalls (arXiv:2412.06464).
_STEP_OPS: Final = {"mamba2": 4.0}
_DELTA_OPS: Final = 6.0
# Tokens of a pass up to which kernels are fitted, the most that engines run unless told otherwise (vLLM's
# max_num_batched_tokens, SGLang's chunked_prefill_size). Beyond, Triton's on Hopper take up to twice as long, or not.
_MAX_TOKENS: Final = 16384


class ScanFamily(Family):
    """Products within chunks on all cores, then states from chunk to chunk, one head after another on each core.

    Kernels pass intermediate results through memory: tensors as wide as keys and values, and the state of each chunk.
    A chunk of one token is the recurrent form, which keeps the state in registers.

    variants  "": heads in excess of the cores share them; "rounds": they wait for a whole round
    """

    name = "scan"
    columns = ("batch", "q_len", "k_heads", "k_dim", "v_heads", "v_dim")
    optional: ClassVar = {"chunk": 64.0, "loop": 0.0}
    groups = ("k_heads", "v_heads")
    variants = ("", "rounds")
    names_operations = True
    parameters = (
        FittedParameter(name="alpha", prior=0.3, low=0.01, high=1, meaning="part of the peak that is reached"),
        FittedParameter(
            name="beta", prior=0.75, low=0.05, high=1, meaning="part of the memory bandwidth that is reached"
        ),
        FittedParameter(name="start_us", prior=8, low=0.5, high=200, meaning="launches of all kernels [us]"),
        FittedParameter(
            name="passes", prior=2, low=0, high=30, linear=True, meaning="further moves of queries, keys and values"
        ),
        FittedParameter(
            name="states", prior=0.5, low=0, high=20, linear=True, meaning="moves of the state of each chunk"
        ),
        FittedParameter(name="chunk_us", prior=1.5, low=0.005, high=60, meaning="one chunk of one head [us]"),
        FittedParameter(name="blocks", prior=1, low=0.02, high=16, meaning="blocks of threads of a head / of a core"),
        FittedParameter(
            name="lambda", prior=2.5, low=0.8, high=12, meaning="bandwidth of the L2 cache / of the memory"
        ),
        FittedParameter(name="eta", prior=0.8, low=0.1, high=3, meaning="part of the L2 cache that is of use"),
        FittedParameter(name="sharp", prior=2, low=1, high=12, meaning="power of the smooth maximum"),
    )

    def features(self, shapes: Shapes, device: Device, implementation: Implementation, variant: str) -> Features:
        batch, q_len, _, k_dim, heads, v_dim, chunk = (
            np.asarray(shapes[name], dtype=float) for name in (*self.columns, "chunk")
        )
        chunks = np.ceil(q_len / chunk)
        streamed, state = _moved(shapes)
        pairs = chunk * (3 * k_dim + 2 * v_dim)
        tokens = batch * chunks * chunk
        chunked_s = tokens * heads * (pairs + _DELTA_OPS * k_dim * v_dim) / device.peak(implementation.dtype)
        recurrent_s = tokens * heads * _DELTA_OPS * k_dim * v_dim / device.hardware.rates[vector("fp32")]
        return {
            "compute": np.where(chunk > 1, chunked_s, recurrent_s),
            "streamed": streamed,
            "state": 2 * state,
            "carried": np.where(chunk > 1, chunks * state, 0.0),
            "chunks": chunks,
            "heads": batch * heads / device.cores,
            "repeated": np.broadcast_to(np.asarray(shapes["loop"]) > 0, batch.shape),
            "bandwidth": device.bandwidth,
            "size": device.l2,
            "rounds": variant == "rounds",
        }

    def seconds(self, p: Parameters, features: Features) -> Array:
        f = features
        outer = f["streamed"] + f["state"]
        inner = p["passes"] * f["streamed"] + p["states"] * f["carried"]
        uncached = uncached_fraction(outer + inner, f["size"], p["eta"])
        outer_part, inner_part = (
            part + (1 - part) / p["lambda"] for part in (np.where(f["repeated"], uncached, 1.0), uncached)
        )
        memory = (outer * outer_part + inner * inner_part) / (p["beta"] * f["bandwidth"])
        rounds = f["heads"] * p["blocks"]
        rounds = np.ceil(rounds) if f["rounds"] else np.maximum(rounds, 1.0)
        serial = f["chunks"] * rounds * (p["chunk_us"] * MICROSECOND)
        parallel_s = smooth_max(p["sharp"], np.maximum(f["compute"] / p["alpha"], 1e-12), memory)
        return np.asarray(parallel_s + serial + p["start_us"] * MICROSECOND)

    def fittable(self, shapes: Shapes) -> Array:
        return np.asarray(shapes["batch"] * shapes["q_len"] <= _MAX_TOKENS)

    def is_common(self, implementation: Implementation) -> bool:  # noqa: ARG002
        return False

    def bound(self, shapes: Shapes, device: Device, implementation: Implementation) -> Array:
        batch, q_len, _, k_dim, heads, v_dim = (np.asarray(shapes[name], dtype=float) for name in self.columns)
        streamed, state = _moved(shapes)
        moved = streamed + np.where(np.asarray(shapes["chunk"], dtype=float) > 1, 1.0, 2.0) * state
        rule = implementation.operation.partition("_")[0]
        ops = _STEP_OPS.get(rule, _DELTA_OPS) * batch * q_len * heads * k_dim * v_dim
        moved = from_memory(moved, np.asarray(shapes["loop"]), device.l2)
        return np.asarray(np.maximum(ops / device.limit(implementation.dtype), moved / device.bandwidth))


def _moved(shapes: Shapes) -> tuple[Array, Array]:
    """Bytes of queries, keys, values and results, and of the states of all sequences. [B]"""
    batch, q_len, k_heads, k_dim, heads, v_dim = (np.asarray(shapes[name], dtype=float) for name in ScanFamily.columns)
    streamed = batch * q_len * (2 * k_heads * k_dim + 2 * heads * v_dim) * _ELEMENT
    return streamed, batch * heads * k_dim * v_dim * _STATE_ELEMENT
