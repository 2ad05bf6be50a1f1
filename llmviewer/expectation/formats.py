"""Data types of measured kernels: how wide weights and activations are, and what multiplies them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from ..errors import InputError
from ..records import frozen


@frozen(kw_only=True)
class KernelType:
    """A data type of matrix-multiplication kernels.

    weight, activation  size of an element with its share of scales [B]
    arithmetic          data type of the matrix units
    quantizes           whether 16-bit activations are quantized by a kernel before
    """

    weight: float
    activation: float
    arithmetic: str
    quantizes: bool = False


TYPES: Final[Mapping[str, KernelType]] = {
    "fp32": KernelType(weight=4, activation=4, arithmetic="fp32"),
    "bf16": KernelType(weight=2, activation=2, arithmetic="bf16"),
    "fp16": KernelType(weight=2, activation=2, arithmetic="fp16"),
    "fp8": KernelType(weight=1, activation=1, arithmetic="fp8", quantizes=True),
    "fp8_static": KernelType(weight=1, activation=1, arithmetic="fp8", quantizes=True),
    "fp8_block": KernelType(weight=1, activation=1, arithmetic="fp8", quantizes=True),
    "int8": KernelType(weight=1, activation=1, arithmetic="int8"),
    "int8_dynamic": KernelType(weight=1, activation=1, arithmetic="int8", quantizes=True),
    "sq": KernelType(weight=1, activation=1, arithmetic="int8"),
    "int8_wo": KernelType(weight=1, activation=2, arithmetic="bf16"),
    "int4_wo": KernelType(weight=0.5 + 2 / 128, activation=2, arithmetic="bf16"),
    "nvfp4": KernelType(weight=0.5 + 1 / 16, activation=0.5 + 1 / 16, arithmetic="fp4", quantizes=True),
    "nvfp4_wo": KernelType(weight=0.5 + 1 / 16, activation=2, arithmetic="bf16"),
    "fp4": KernelType(weight=0.5 + 1 / 32, activation=0.5 + 1 / 32, arithmetic="fp4"),
    "w4a16_mxfp4": KernelType(weight=0.5 + 1 / 32, activation=2, arithmetic="bf16"),
    "w4a8_mxfp4_mxfp8": KernelType(weight=0.5 + 1 / 32, activation=1 + 1 / 32, arithmetic="fp8", quantizes=True),
    "w4afp8": KernelType(weight=0.5 + 2 / 128, activation=1, arithmetic="fp8", quantizes=True),
    # Of which no kernel was measured; those of SIMILAR stand in, with these sizes and units.
    "w8a16_fp8": KernelType(weight=1, activation=2, arithmetic="bf16"),
    "w6a16": KernelType(weight=0.75 + 2 / 128, activation=2, arithmetic="bf16"),
    "w4a16_nf4": KernelType(weight=0.5 + 4 / 64, activation=2, arithmetic="bf16"),
    "w3a16": KernelType(weight=0.375 + 2 / 128, activation=2, arithmetic="bf16"),
    "w2a16": KernelType(weight=0.25 + 2 / 128, activation=2, arithmetic="bf16"),
    "w8a8_mixed": KernelType(weight=1, activation=1, arithmetic="bf16", quantizes=True),
    "w8a8_mxfp8": KernelType(weight=1 + 1 / 32, activation=1 + 1 / 32, arithmetic="fp8", quantizes=True),
    "w6a8_fp8": KernelType(weight=0.75 + 1 / 32, activation=1, arithmetic="fp8", quantizes=True),
    "w4a8_int8": KernelType(weight=0.5 + 2 / 128, activation=1, arithmetic="int8"),
    "w2a8_int8": KernelType(weight=0.25, activation=1, arithmetic="int8"),
    "w4a4_int4": KernelType(weight=0.5, activation=0.5, arithmetic="int4"),
}
# Types that libraries run if no matrix unit multiplies a type: only its weights are narrow, and widened on load.
# vLLM does so with fp8 before Ada (docs.vllm.ai, FP8 W8A8: "weight-only W8A16, utilizing FP8 Marlin").
WEIGHTS_ONLY: Final[Mapping[str, str]] = {
    "nvfp4": "nvfp4_wo", "fp4": "w4a16_mxfp4", **dict.fromkeys(("fp8", "fp8_static", "fp8_block"), "w8a16_fp8"),
}  # fmt: skip
# Names in torch and vLLM, and names of --quant for products.
_FP8: Final = re.compile(r"^(?:float8|fp8)_e[45]m[23](?:fn|fnuz)?$")
_SYNONYMS: Final = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32"}
SCHEMES: Final[Mapping[str, str]] = {
    "int4": "int4_wo", "w4a16": "int4_wo", "w8a16": "int8_wo", "mxfp4": "w4a16_mxfp4",
}  # fmt: skip
CACHE_BYTES: Final[Mapping[str, float]] = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "int8": 1}
EQUAL_COST_TYPES: Final = (
    {"bf16", "fp16"},
    {"fp8", "fp8_static"},
    {"int8", "sq"},
)  # types that take equally long on a device
STAND_IN_TYPES: Final[
    Mapping[str, tuple[str, ...]]
] = {  # types that stand in for one that was not measured, the most similar first
    "bf16": ("fp16",),
    "fp16": ("bf16",),
    "fp8": ("fp8_static", "fp8_block", "bf16"),
    "fp8_static": ("fp8", "fp8_block", "bf16"),
    "fp8_block": ("fp8", "fp8_static", "bf16"),
    "nvfp4": ("fp4", "fp8", "bf16"),
    "nvfp4_wo": ("int4_wo", "w4a16_mxfp4", "int8_wo", "bf16"),
    "fp4": ("nvfp4", "fp8", "bf16"),
    "int8": ("sq", "fp8", "bf16"),
    "int8_dynamic": ("sq", "int8", "fp8", "bf16"),
    "sq": ("int8", "fp8", "bf16"),
    "int8_wo": ("bf16", "int4_wo"),
    "int4_wo": ("int8_wo", "w4a16_mxfp4", "bf16"),
    "w4a16_mxfp4": ("int4_wo", "bf16"),
    "w4a8_mxfp4_mxfp8": ("nvfp4", "fp8", "w4afp8"),
    "w4afp8": ("int4_wo", "fp8"),
    "w8a16_fp8": ("int8_wo", "bf16", "int4_wo"),
    "w6a16": ("int8_wo", "int4_wo", "bf16"),
    **dict.fromkeys(("w4a16_nf4", "w3a16", "w2a16"), ("int4_wo", "w4a16_mxfp4", "int8_wo", "bf16")),
    "w8a8_mixed": ("int8_wo", "fp8", "bf16"),
    "w8a8_mxfp8": ("fp8_block", "fp8", "fp8_static", "bf16"),
    "w6a8_fp8": ("fp8", "w4afp8", "fp8_static", "bf16"),
    **dict.fromkeys(("w4a8_int8", "w2a8_int8", "w4a4_int4"), ("sq", "int8", "int8_dynamic", "fp8", "bf16")),
    "fp32": (),
}


def plain_name(name: str) -> str:
    """A data type as it is called here: bf16 for "torch.bfloat16", fp8 for "float8_e4m3fn"."""
    lower = _FP8.sub("fp8", name.strip().lower().removeprefix("torch."))
    return _SYNONYMS.get(lower, lower)


def kernel_type(name: str) -> KernelType:
    """Raises InputError, which names all there are, for a type that is not known."""
    if name not in TYPES:
        raise InputError(f"dtype must be one of {', '.join(TYPES)}; got {name!r}")
    return TYPES[name]


def cache_bytes(name: str) -> float:
    """[B] an element of a KV cache. Raises InputError for a type that is not known."""
    if name not in CACHE_BYTES:
        raise InputError(f"kv_dtype must be one of {', '.join(CACHE_BYTES)}; got {name!r}")
    return CACHE_BYTES[name]
