"""Parts of a pass, and their assignment to kernels by name and to operators by kind.

kernel_names.yaml has the names, as profiles of 2024 to 2026 have them (tests/test_timelines.py), and those of PyTorch's
operators on a CPU.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Final

import yaml

from ..analyzing.phases import OperatorResult
from ..operators.attention import Attention
from ..operators.kinds import OperatorGroup, kind_of
from ..operators.state_space import LinearScan
from ..records import frozen

IDLE: Final = "idle"  # name of the time between kernels


class Part(StrEnum):
    """Parts of a pass. A fused kernel counts in the part of most of its work."""

    PRODUCTS = "matrix products"
    EXPERTS = "experts"
    ATTENTION = "attention"
    STATE = "state space"
    ELEMENTWISE = "elementwise"
    COMMUNICATION = "communication"
    SAMPLING = "sampling"
    MOVES = "data movement"
    OTHER = "other"


@frozen(kw_only=True)
class KernelOfPass:
    """All kernels of one name in a pass: number of launches, and total time. [s]"""

    name: str
    part: str
    launches: float
    measured_s: float


@frozen(kw_only=True)
class PartOfPass:
    """Part of a pass: measured time of its kernels; bound and expected time of its operators. [s]

    covers      other parts whose operators count here, as they have no kernels of their own
    expected_s  None if only the bound is known for some operators
    """

    part: str
    covers: tuple[str, ...]
    launches: float
    measured_s: float
    bound_s: float
    expected_s: float | None
    expected_low_s: float | None
    expected_high_s: float | None

    @property
    def title(self) -> str:
        """The names of this part and of those it covers."""
        return ", ".join((self.part, *self.covers))


_ACTIVATION: Final = "activation"
_LIBRARY: Final = re.compile(r"flashinfer|flash_infer", re.IGNORECASE)  # has kernels of all parts
_NAMES: Final = Path(__file__).with_name("kernel_names.yaml")
_MIN_LAYER_SHARE: Final = 0.5  # share of the layers that mix tokens
_AUXILIARY: Final = re.compile(
    r"combine|merge|reduce|prepare|sched|metadata|mqa_logits|indices|stage_?2|conv1d|cumsum", re.IGNORECASE
)
OPENS: Final = re.compile("^aten::embedding")  # the first operator of a pass on a CPU
EMBEDS: Final = re.compile(r"^aten::embedding|(?<!rotary_)embedding_?kernel|indexSelect|gather_kernel", re.IGNORECASE)
SUMS_UP: Final = re.compile(r"split_?k_?reduce|reduce_?split", re.IGNORECASE)  # beside the product itself
_MIXERS: Final = (Attention.kind, LinearScan.kind)
_BESIDE_MIXERS: Final = ("indexer",)  # operators of these kinds that choose tokens for one that mixes them
_EAGER_SCORES: Final = ("qk_matmul", "softmax")  # ends of names of operators before the one that mixes tokens
_GROUPS: Final[Mapping[OperatorGroup, Part]] = {
    OperatorGroup.LINEAR: Part.PRODUCTS, OperatorGroup.HEAD: Part.PRODUCTS, OperatorGroup.EXPERTS: Part.EXPERTS,
    OperatorGroup.ATTENTION: Part.ATTENTION, OperatorGroup.STATE: Part.STATE,
    OperatorGroup.ELEMENTWISE: Part.ELEMENTWISE, OperatorGroup.COMMUNICATION: Part.COMMUNICATION,
}  # fmt: skip


# Parts that cover another one without kernels: eager attention runs as matrix products, a stepwise scan as elementwise.
COVERED_BY: Final[Mapping[Part, Part]] = {
    Part.ATTENTION: Part.PRODUCTS, Part.EXPERTS: Part.PRODUCTS, Part.ELEMENTWISE: Part.PRODUCTS,
    Part.STATE: Part.ELEMENTWISE,
}  # fmt: skip


def part_of_operator(op: OperatorResult) -> Part:
    """The part that an operator counts in."""
    if op.kind == "activation" and op.name.startswith("expert_"):
        return Part.EXPERTS
    kind = kind_of(op.kind)
    return Part.PRODUCTS if kind.product else _GROUPS[kind.group]


def mixes(op: OperatorResult) -> bool:
    """Whether an operator mixes tokens in one launch per layer, by which layers are counted."""
    return op.kind in _MIXERS and op.name not in _BESIDE_MIXERS and not op.name.endswith(_EAGER_SCORES)


def parts_of(
    names: Iterable[str], operators: Iterable[OperatorResult], by_module: Mapping[str, str] = MappingProxyType({})
) -> dict[str, Part]:
    """The part of each kernel; activations belong to experts if the model has no other activations.

    by_module  parts that modules give to names, for those that no pattern knows
    """
    kinds = {part_of_operator(op) for op in operators if op.kind == "activation"}
    activation = Part.EXPERTS if kinds == {Part.EXPERTS} else Part.ELEMENTWISE
    parts = {name: activation if (part := _part_name(name)) == _ACTIVATION else Part(part) for name in names}
    return {name: Part(by_module.get(name, part)) if part is Part.OTHER else part for name, part in parts.items()}


def in_layers(
    parts: Mapping[str, Part], launches: Mapping[str, float], operators: Iterable[OperatorResult], layers: int
) -> dict[str, Part]:
    """The part of each kernel of a pass; softmax and top-k launched by most layers are not sampling, but routing or
    attention.
    """
    counted = {part_of_operator(op) for op in operators}
    fallback = Part.ATTENTION if Part.ATTENTION in parts.values() else COVERED_BY[Part.ATTENTION]
    owner = Part.EXPERTS if Part.EXPERTS in counted else fallback
    min_launches = _MIN_LAYER_SHARE * max(layers, 1)
    return {
        name: owner if parts[name] is Part.SAMPLING and n > min_launches else parts[name]
        for name, n in launches.items()
    }


def known_sum(values: Iterable[float | None]) -> float | None:
    """The sum; None if a value is unknown or there are none."""
    items = list(values)
    numbers = [value for value in items if value is not None]
    return sum(numbers) if numbers and len(numbers) == len(items) else None


def marks_a_layer(name: str, part: Part) -> bool:
    """Whether a kernel is the one per layer that mixes tokens, rather than a step before or after it, or one whose name
    is unknown.
    """
    return part in (Part.ATTENTION, Part.STATE) and not _AUXILIARY.search(name) and _part_name(name) == part


@cache
def _part_name(name: str) -> str:
    """The part of a kernel's name, or _ACTIVATION; the first pattern found in the name decides."""
    plain = _LIBRARY.sub("", name)
    return next((part for part, pattern in _patterns() if pattern.search(plain)), Part.OTHER)


@cache
def _patterns() -> tuple[tuple[str, re.Pattern[str]], ...]:
    """(part or _ACTIVATION, pattern of names), in order."""
    entries = yaml.safe_load(_NAMES.read_text(encoding="utf-8"))
    return tuple(
        (
            entry.pop("part"),
            re.compile("|".join(pattern for patterns in entry.values() for pattern in patterns), re.IGNORECASE),
        )
        for entry in entries
    )
