"""The largest gaps between a recorded pass and its expected time, and what closes them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import yaml

from ..variants.variant import MIN_GAIN
from .idle import IdleCause
from .kinds import IDLE, PartOfPass

MAX_STEPS: Final = 3
_REMEDIES: Final = Path(__file__).with_name("remedies.yaml")
_ENGINES: Final[Mapping[str, str]] = {"vllm": "vLLM", "sglang": "SGLang", "tensorrt-llm": "TensorRT-LLM"}


class NextStep(NamedTuple):
    """A gap of a pass.

    part            part of the pass; IDLE for the time between kernels
    gap_s           recorded time above the expected one, or above the bound if none is expected [s]
    speed_up        time of a pass over its time without the gap
    remedy          what closes the gap, with the options of engines
    cause           cause of idle time; "" for kernels
    bound_speed_up  time of a pass over its time if this part took its bound
    reference       source of the expected time: the library whose kernels were measured; "" for idle time
    """

    part: str
    gap_s: float
    speed_up: float
    remedy: str
    cause: str = ""
    bound_speed_up: float = 1.0
    reference: str = ""


class _Gap(NamedTuple):
    """Recorded time of a part above the expected one and above its bound. [s]"""

    part: str
    cause: str
    gap_s: float
    above_bound_s: float


def next_steps(
    parts: Iterable[PartOfPass],
    *,
    time_s: float,
    idle_s: Mapping[IdleCause, float],
    host_s: float = 0.0,
    engine: str = "",
    references: Mapping[str, str] = MappingProxyType({}),
    weight_formats: Mapping[str, Collection[str]] = MappingProxyType({}),
) -> tuple[NextStep, ...]:
    """The largest gaps of a recorded pass that are worth closing, the largest first.

    time_s  time of a pass [s]
    idle_s  idle time by cause [s]
    host_s  expected idle time [s]
    engine  the engine whose options are named; "": all
    references  source of the expected time of each part
    weight_formats  names of the formats of weights in each part, which some options are for
    """
    gaps = sorted([*_gaps(parts), *_idle_gaps(idle_s, host_s)], key=lambda gap: -gap.gap_s)
    return tuple(
        NextStep(
            part=gap.part,
            gap_s=gap.gap_s,
            speed_up=time_s / (time_s - gap.gap_s),
            remedy=_remedy(
                f"{gap.part}: {gap.cause}" if gap.cause else gap.part, engine, weight_formats.get(gap.part, ())
            ),
            cause=gap.cause,
            bound_speed_up=time_s / (time_s - gap.above_bound_s),
            reference=references.get(gap.part, ""),
        )
        for gap in gaps[:MAX_STEPS]
        if time_s > MIN_GAIN * (time_s - gap.gap_s)
    )


def _gaps(parts: Iterable[PartOfPass]) -> Iterator[_Gap]:
    """Gaps of parts that take longer than their interval."""
    for part in parts:
        reference_s = part.bound_s if part.expected_s is None else part.expected_s
        if part.part in _remedies() and part.measured_s > (part.expected_high_s or reference_s):
            yield _Gap(part.part, "", part.measured_s - reference_s, part.measured_s - part.bound_s)


def _idle_gaps(idle_s: Mapping[IdleCause, float], host_s: float) -> Iterator[_Gap]:
    """Idle time by cause; the expected part is that of the host, as far as it has any."""
    expected_s = host_s
    for cause in sorted(idle_s, key=lambda cause: cause not in (IdleCause.HOST, IdleCause.UNKNOWN)):
        covered_s = min(expected_s, idle_s[cause])
        expected_s -= covered_s
        yield _Gap(IDLE, cause.value, idle_s[cause] - covered_s, idle_s[cause])


def _remedy(name: str, engine: str, weight_formats: Collection[str]) -> str:
    """Text on closing a gap, with the options of an engine, or of all; those that share one are named together."""
    texts = _remedies()[name]
    engines_by_option: dict[str, list[str]] = {}
    for key, title in _ENGINES.items():
        if engine in ("", key) and (option := _option(texts.get(key, ""), weight_formats)):
            engines_by_option.setdefault(option, []).append(title)
    options = "; ".join(f"{' and '.join(titles)}: {option}" for option, titles in engines_by_option.items())
    remedy: str = texts["remedy"]
    return f"{remedy} ({options})" if options else remedy


def _option(option: str | Mapping[str, str], weight_formats: Collection[str]) -> str:
    """The option of an engine; of options by format, those for the formats of the weights; "" if there is none."""
    if isinstance(option, str):
        return option
    return " and ".join(dict.fromkeys(text for name, text in option.items() if name in weight_formats))


@cache
def _remedies() -> Mapping[str, Mapping[str, Any]]:
    """Texts by part and by cause of idle time."""
    remedies: Mapping[str, Mapping[str, Any]] = yaml.safe_load(_REMEDIES.read_text(encoding="utf-8"))
    return remedies
