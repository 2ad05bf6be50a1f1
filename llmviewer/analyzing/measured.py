"""Rates times that a user measured against the bound and the expected time of an analysis."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from .. import arguments, units
from ..errors import InputError, suggest
from ..records import frozen
from ..setting import Setting
from ..units import fold, seconds, significant
from .generation import GenerationResult

QUANTITIES: Final[Mapping[str, str]] = {  # quantity: the phases whose advice applies to it
    "ttft": "prefill", "tpot": "decode", "latency": "prefill and decode", "tokens_per_s": "prefill and decode",
}  # fmt: skip
RATE: Final = "tokens_per_s"
_ONE_PASS_QUANTITIES: Final = ("latency", RATE)  # quantities of a model that does not generate
_ROUNDING: Final = 0.995  # a bound that was copied with three digits is not beaten
_CUDA_GRAPH_VENDORS: Final = ("nvidia", "amd")  # vendors of devices that replay launches


class Verdict(StrEnum):
    """Position of a measured time relative to the bound and the 80 % interval of measured kernels."""

    IMPOSSIBLE = "impossible"
    FASTER = "faster"
    INSIDE = "inside"
    SLOWER = "slower"
    UNKNOWN = "unknown"  # above the bound, without an expected time


@frozen(kw_only=True)
class RatedMeasurement:
    """A measured time, or rate of tokens, and what it means. [s], [1/s]

    quantity                 name of a field of GenerationResult, such as "tpot_s"
    expected, low, high      None if only the bound is known; low and high: the 80 % interval
    of_bound, of_expected    measured value over these; of a rate, less than 1 is slower
    said                     the verdict in words
    """

    quantity: str
    measured: float
    bound: float
    expected: float | None
    low: float | None
    high: float | None
    of_bound: float
    of_expected: float | None
    verdict: Verdict
    said: str


def check(measured: Mapping[str, float] | None) -> dict[str, float]:
    """Measured values by name in QUANTITIES.

    Raises InputError if a quantity is unknown, or not a positive number.
    """
    if not isinstance(measured, Mapping | None):
        raise InputError(f"measured must be a mapping of quantities to numbers; got {measured!r}")
    measurements = {
        check_quantity(str(name).removesuffix("_s") if name != RATE else RATE): number
        for name, number in (measured or {}).items()
    }
    arguments.check_positive(**{f"measured: {name}": value for name, value in measurements.items()})
    return measurements


def parse(text: str) -> dict[str, float]:
    """Reads measured quantities, as check() takes them, from a text such as "ttft=40ms, tpot=9ms". [s], [1/s]

    A time needs its unit: 25 could be seconds or milliseconds.

    Raises InputError if a part is no quantity with a value, or a quantity stands twice.
    """
    measurements: dict[str, float] = {}
    for part in (part.strip() for part in text.split(",")) if text.strip() else ():
        name, equals, value = map(str.strip, part.partition("="))
        if not equals:
            raise InputError(f"measured: must be QUANTITY=VALUE, such as tpot=25ms; got {part!r}")
        key = check_quantity(name) if name == RATE else f"{check_quantity(name)}_s"
        if key in measurements:
            raise InputError(f"measured: {name} is given twice; give it once")
        try:
            measurements[key] = float(value) if name == RATE else units.parse(value, "s")
        except ValueError:
            must = "a number, such as 1200" if name == RATE else "a time with its unit, such as 25ms"
            raise InputError(f"measured: {name} must be {must}; got {value!r}") from None
    return measurements


def check_quantity(name: str) -> str:
    """`name` if it is a quantity.

    Raises InputError otherwise.
    """
    if name not in QUANTITIES:
        raise InputError(f"measured: no quantity {name!r}; {suggest(name, QUANTITIES)}")
    return name


def rate_measurements(
    measured: Mapping[str, float], generation: GenerationResult, setting: Setting
) -> tuple[RatedMeasurement, ...]:
    """A verdict on each measured value, as check() returns them.

    Raises InputError if the generation has no such quantity.
    """
    return tuple(_rate_measurement(name, value, generation, setting) for name, value in measured.items())


def _rate_measurement(name: str, measured: float, generation: GenerationResult, setting: Setting) -> RatedMeasurement:
    if not setting.model.generates and name not in _ONE_PASS_QUANTITIES:
        explanation = f"{setting.model.name} runs one pass, whose time is latency"
        raise InputError(f"measured: {name} applies to models that generate; {explanation}")
    time_name, tokens = ("latency", generation.tokens_per_s * generation.latency_s) if name == RATE else (name, None)
    bound_s: float | None = getattr(generation, f"{time_name}_s")
    if bound_s is None:
        raise InputError(f"measured: {name} needs at least two generated tokens; leave it out")

    def turned(value: float | None) -> float | None:
        """Converts a token rate to the time of its tokens and back; times stay as they are."""
        return tokens / value if tokens and value else value

    time_s = turned(measured) or measured
    expected_s, *ends_s = (getattr(generation, f"expected_{time_name}{end}_s") for end in ("", "_low", "_high"))
    verdict = _verdict(time_s, bound_s, *ends_s)
    bound, expected = turned(bound_s) or bound_s, turned(expected_s)
    low, high = map(turned, reversed(ends_s) if tokens else ends_s)
    of_bound, of_expected = measured / bound, measured / expected if expected else None
    text = f"{significant(measured)} tokens/s" if tokens else seconds(measured)
    text += f": {fold(of_bound)} the bound"
    text += f", {fold(of_expected)} expected" if of_expected else ""
    return RatedMeasurement(
        quantity=name if tokens else f"{name}_s", measured=measured, bound=bound, expected=expected, low=low, high=high,
        of_bound=of_bound, of_expected=of_expected, verdict=verdict,
        said=f"{text}{_meaning(verdict, name, time_s - (expected_s or 0.0), setting)}",
    )  # fmt: skip


def _verdict(time_s: float, bound_s: float, low_s: float | None, high_s: float | None) -> Verdict:
    if time_s < _ROUNDING * bound_s:
        return Verdict.IMPOSSIBLE
    if low_s is None or high_s is None:
        return Verdict.UNKNOWN
    if time_s > high_s:
        return Verdict.SLOWER
    return Verdict.INSIDE if time_s >= low_s else Verdict.FASTER


def _meaning(verdict: Verdict, name: str, excess_s: float, setting: Setting) -> str:
    """Meaning of a verdict, and what to do next."""
    if verdict is Verdict.IMPOSSIBLE:
        differences = _possible_differences(name, setting)
        return f"; no kernel beats the bound, so the measured setting differs: check {differences}"
    if verdict is Verdict.UNKNOWN:
        return "" if setting.bound else "; no expected time is known here"
    if verdict is Verdict.SLOWER:
        excess = f", slower than 90 % of measured kernels; {seconds(excess_s)} above expected"
        return f"{excess}: {_uncounted_causes(setting)}; try {_next(name, setting)}"
    inside = "within the 80 % interval of measured kernels"
    place = inside if verdict is Verdict.INSIDE else "faster than 90 % of measured kernels"
    phase = QUANTITIES[name] if setting.model.generates else "the one pass"
    return f", {place}; to go faster, reduce the work: see the improvements of {phase}"


def _possible_differences(name: str, setting: Setting) -> str:
    """Inputs that may differ from the measured setting."""
    differences = ["unit", "batch", "lengths", "--quant"]
    if setting.layout.devices > 1:
        differences.append("number of devices")
    if setting.model.generates and not setting.techniques:
        cached = "cached prefixes (--with prefix-cache)"
        differences.append(cached if name == "ttft" else "speculative decoding (--with speculative)")
    return ", ".join(differences)


def _uncounted_causes(setting: Setting) -> str:
    """Causes of time besides the kernels that are counted."""
    causes = [] if setting.engine else ["gaps between launches", "host time"]
    causes += ["queueing"] if setting.model.generates else []
    causes += ["collectives"] if setting.layout.devices > 1 else []
    return f"{', '.join(causes)} or slower kernels" if causes else "slower kernels"


def _next(name: str, setting: Setting) -> str:
    steps = [] if setting.engine else ["--engine NAME"]
    if setting.hardware.vendor in _CUDA_GRAPH_VENDORS and setting.model.generates and name != "ttft":
        steps.append("CUDA graphs")
    if setting.model.generates:
        steps.append("`llmviewer simulate`")
    return f"{', '.join((*steps, '`llmviewer timeline TRACE ...`'))}"
