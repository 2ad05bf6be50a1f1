"""Families of kernels, one file each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from .all_to_all import ExpertAllToAll
from .attention_layer import AttentionLayer
from .base import Family, FittedParameter, Implementation
from .collectives import Collectives
from .decode import Decode
from .elementwise import ElementwiseFamily
from .gemm import Gemm
from .moe import Moe
from .prefill import Prefill
from .scan import ScanFamily

FAMILIES: Final[Mapping[str, Family]] = {
    family.name: family
    for family in (
        Gemm(),
        Prefill(),
        Decode(),
        Moe(),
        ElementwiseFamily(),
        Collectives(),
        ScanFamily(),
        ExpertAllToAll(),
        AttentionLayer(),
    )
}

__all__ = ["FAMILIES", "Family", "FittedParameter", "Implementation"]
