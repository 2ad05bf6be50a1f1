"""Triton kernels that implement operators of the engine, to measure how close a GPU gets to its roofline, and to check
counts of OPs and bytes on running code. They need torch and triton: pip install 'llmviewer[kernels]'.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

from ..errors import InputError

if TYPE_CHECKING:
    from .base import Kernel

# The module of each kernel. Modules are imported when one of their kernels is loaded.
_MODULES: Final = {
    "copy": "stream",
    "triad": "stream",
    "gemm": "gemm",
    "gemv": "gemv",
    "gemm_fp8_block": "gemm_fp8_block",
    "gemm_w4a16": "gemm_weight_only",
    "gemm_w8a16": "gemm_weight_only",
    "gemm_mxfp4": "gemm_weight_only",
    "gemm_nvfp4": "gemm_block_scaled",
    "gemm_mxfp8": "gemm_block_scaled",
    "gemm_mxfp4_mxfp8": "gemm_block_scaled",
    "grouped_gemm": "grouped_gemm",
    "fused_moe": "fused_moe",
    "permute": "permute",
    "combine": "permute",
    "quantize": "quantize",
    "rms_norm": "norms",
    "layer_norm": "norms",
    "norm_quantize": "norm_quantize",
    "softmax": "softmax",
    "rope": "rope",
    "silu_and_mul": "gated",
    "gelu_and_mul": "gated",
    "gelu_tanh_and_mul": "gated",
    "gelu": "gated",
    "gelu_tanh": "gated",
    "relu2": "gated",
    "embedding": "embedding",
    "kv_write": "kv_write",
    "argmax": "sampling",
    "sample": "sampling",
    "flash_attention": "flash_attention",
    "decode_attention": "decode_attention",
    "mla_decode": "mla_decode",
    "sparse_indexer": "sparse_indexer",
    "causal_conv_update": "causal_conv_update",
    "mamba2_update": "mamba2_update",
    "mamba2_scan": "mamba2_scan",
    "gated_delta_update": "gated_delta_update",
    "gated_delta_scan": "gated_delta_scan",
    "rope_cache": "rope_cache",
    "decoder_layer": "decoder",
}


def kernel_names() -> tuple[str, ...]:
    """Names of all kernels."""
    return tuple(_MODULES)


def load_kernel(name: str) -> Kernel:
    """The kernel of that name.

    Raises InputError if there is none, or torch or triton is missing.
    """
    if name not in _MODULES:
        raise InputError(f"kernel must be one of {', '.join(_MODULES)}; got {name!r}")
    try:
        module = import_module(f".{_MODULES[name]}", __name__)
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "triton"):
            raise
        raise InputError(
            f"kernel {name!r} needs {error.name}; install it with pip install 'llmviewer[kernels]'"
        ) from None
    return next(kernel for kernel in module.KERNELS if kernel.name == name)  # type: ignore[no-any-return]
