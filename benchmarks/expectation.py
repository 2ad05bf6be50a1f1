"""Measures expected times per second on one core, by kernel family, on shapes that all differ."""

from __future__ import annotations

import time
from collections.abc import Mapping

import numpy as np

from llmviewer.expectation.device import find_device
from llmviewer.expectation.families import FAMILIES, Implementation
from llmviewer.expectation.profile import shipped
from llmviewer.expectation.transfer import expect

_ROWS = 4_000
_RUNS = 5
_IMPLEMENTATIONS = {
    "gemm": Implementation(library="vllm", dtype="bf16"),
    "attention_prefill": Implementation(library="vllm", dtype="bf16", kv_dtype="bf16"),
    "attention_decode": Implementation(library="vllm", dtype="bf16", kv_dtype="bf16"),
    "moe": Implementation(library="vllm", dtype="bf16"),
    "elementwise": Implementation(library="sarathi", dtype="fp16", kernel="add"),
    "collectives": Implementation(library="nccl", dtype="fp16", kernel="nccl all_reduce"),
}
_SIZES = {
    "gemm": {"M": (1, 8192), "N": (256, 32768), "K": (256, 32768)},
    "attention_prefill": {"batch": (1, 64), "q_len": (128, 8192), "kv_len": (8192, 32768)},
    "attention_decode": {"batch": (1, 512), "kv_len": (64, 131072)},
    "moe": {"tokens": (1, 32768)},
    "elementwise": {"rows": (1, 32768), "bytes": (1e4, 1e9)},
    "collectives": {"bytes": (1e3, 1e9)},
}
_FIXED = {
    "gemm": {},
    "attention_prefill": {"q_heads": 32, "kv_heads": 8, "head_dim": 128, "v_head_dim": 128},
    "attention_decode": {"q_heads": 32, "kv_heads": 8, "head_dim": 128, "v_head_dim": 128},
    "moe": {"hidden": 4096, "inter": 1536, "topk": 8, "experts": 128, "ep": 8},
    "elementwise": {},
    "collectives": {"num_gpus": 8},
}  # fmt: skip


def expectation_rates() -> Mapping[str, float]:
    """Expectations a second, by family: bound, features and time of shapes, in arrays of 4,000; processor time."""
    device, fits = find_device("h100"), shipped()
    rates = {}
    for name in _SIZES:
        shapes = _shapes(name)
        expect(name, shapes, device, _IMPLEMENTATIONS[name], fits)
        times = []
        for _ in range(_RUNS):
            start = time.process_time()
            expect(name, shapes, device, _IMPLEMENTATIONS[name], fits)
            times.append(time.process_time() - start)
        rates[name] = _ROWS / min(times)
    return rates


def _shapes(name: str) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    sizes = {
        key: np.exp(random.uniform(np.log(low), np.log(high), _ROWS)).round()
        for key, (low, high) in _SIZES[name].items()
    }
    fixed = {**FAMILIES[name].optional, **_FIXED[name]}
    return {**{key: np.full(_ROWS, float(value)) for key, value in fixed.items()}, **sizes}


if __name__ == "__main__":
    for family, rate in expectation_rates().items():
        print(f"{family:20s} {rate / 1e6:.2f} M/s")
