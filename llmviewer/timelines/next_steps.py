"""The largest gaps between a recorded pass and what is expected of it, and what closes them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from .kinds import IDLE, Part, PartOfPass

MAX_STEPS: Final = 3
_MIN_GAP_SHARE: Final = 0.03  # share of a pass below which closing a gap is not worth a step
# What closes a gap, with the options of serving engines as vLLM 0.25 (docs.vllm.ai, engine arguments and attention
# backends) and SGLang (docs.sglang.io, server arguments) document them.
_IDLE: Final = (
    "CUDA graphs and scheduling ahead of the device (vLLM: without --enforce-eager; SGLang: without "
    "--disable-cuda-graph and --disable-overlap-schedule)"
)
_REMEDIES: Final[Mapping[str, str]] = {
    Part.PRODUCTS: "another library of kernels, or tuned tile sizes for these shapes",
    Part.EXPERTS: "a fused kernel of experts that is tuned for these shapes (SGLang: --moe-runner-backend)",
    Part.ATTENTION: "another attention backend (vLLM and SGLang: --attention-backend)",
    Part.STATE: "fused kernels of the scan",
    Part.ELEMENTWISE: "kernels that fuse element-wise work (torch.compile; vLLM: without --enforce-eager; SGLang: "
    "--enable-torch-compile)",
    Part.COMMUNICATION: "a custom all-reduce (vLLM and SGLang: without --disable-custom-all-reduce), or overlap with "
    "computation",
    Part.MOVES: "kernels that take the layouts and types they are given (torch.compile fuses casts and copies)",
    Part.SAMPLING: "a fused sampling kernel",
}  # fmt: skip


class NextStep(NamedTuple):
    """A gap of a pass.

    part      part of the pass; IDLE for the time between kernels
    gap_s     recorded time above the expected one, or above the bound if none is expected [s]
    speed_up  time of a pass over its time without the gap
    remedy    what closes the gap
    """

    part: str
    gap_s: float
    speed_up: float
    remedy: str


def next_steps(parts: Iterable[PartOfPass], *, time_s: float, idle_s: float) -> tuple[NextStep, ...]:
    """The largest gaps of a recorded pass that are worth closing, the largest first.

    time_s  time of a pass [s]
    idle_s  idle time beyond the expected one [s]
    """
    gaps = sorted([*_gaps(parts), (IDLE, idle_s, _IDLE)], key=lambda gap: -gap[1])
    return tuple(
        NextStep(part=part, gap_s=gap_s, speed_up=time_s / (time_s - gap_s), remedy=remedy)
        for part, gap_s, remedy in gaps[:MAX_STEPS]
        if gap_s > _MIN_GAP_SHARE * time_s
    )


def _gaps(parts: Iterable[PartOfPass]) -> Iterator[tuple[str, float, str]]:
    """(part, time beyond the expected one, remedy) of each part that takes longer than its interval."""
    for part in parts:
        if part.part not in _REMEDIES:
            continue
        reference_s = part.bound_s if part.expected_s is None else part.expected_s
        if part.measured_s > (part.expected_high_s or reference_s):
            yield part.part, part.measured_s - reference_s, _REMEDIES[part.part]
