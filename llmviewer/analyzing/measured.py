"""Times that a user measured, beside the bound and the expected time of an analysis."""

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

QUANTITIES: Final[Mapping[str, str]] = {  # what can be measured, and what is advised on where it is as it can be
    "ttft": "prefill", "tpot": "decode", "latency": "prefill and decode", "tokens_per_s": "prefill and decode",
}  # fmt: skip
RATE: Final = "tokens_per_s"
_OF_PASS: Final = ("latency", RATE)  # quantities of a model that does not generate
_ROUNDED: Final = 0.995  # a bound that was copied with three digits is not beaten
_GRAPHS: Final = ("nvidia", "amd")  # vendors of devices that replay launches


class Verdict(StrEnum):
    """Where a measured time lies. The interval is that of 80 % of measured kernels."""

    IMPOSSIBLE = "impossible"
    FASTER = "faster"
    INSIDE = "inside"
    SLOWER = "slower"
    UNKNOWN = "unknown"  # above the bound, which is all that is known


@frozen(kw_only=True)
class Rated:
    """A measured time, or rate of tokens, and what it means. [s], [1/s]

    quantity                 name of a field of GenerationResult, such as "tpot_s"
    expected, low, high      None if only the bound is known; low and high: the 80 % interval
    of_bound, of_expected    measured value over these; of a rate, less than 1 is slower
    said                     all of it in words
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
    """What was measured, by name in QUANTITIES.

    Raises InputError if a quantity is unknown, or not a positive number.
    """
    if not isinstance(measured, Mapping | None):
        raise InputError(f"measured must be a mapping of quantities to numbers; got {measured!r}")
    found = {named(str(name).removesuffix("_s") if name != RATE else RATE): at for name, at in (measured or {}).items()}
    arguments.check_positive(**{f"measured: {name}": value for name, value in found.items()})
    return found


def parse(text: str) -> dict[str, float]:
    """Reads measured quantities, as check() takes them, from a text such as "ttft=40ms, tpot=9ms". [s], [1/s]

    A time needs its unit: 25 could be seconds or milliseconds.

    Raises InputError if a part is no quantity with a value, or a quantity stands twice.
    """
    found: dict[str, float] = {}
    for part in (part.strip() for part in text.split(",")) if text.strip() else ():
        name, equals, value = map(str.strip, part.partition("="))
        if not equals:
            raise InputError(f"measured: must be QUANTITY=VALUE, such as tpot=25ms; got {part!r}")
        key = named(name) if name == RATE else f"{named(name)}_s"
        if key in found:
            raise InputError(f"measured: {name} is given twice; give it once")
        try:
            found[key] = float(value) if name == RATE else units.parse(value, "s")
        except ValueError:
            must = "a number, such as 1200" if name == RATE else "a time with its unit, such as 25ms"
            raise InputError(f"measured: {name} must be {must}; got {value!r}") from None
    return found


def named(name: str) -> str:
    """Raises InputError if there is no such quantity."""
    if name not in QUANTITIES:
        raise InputError(f"measured: no quantity {name!r}; {suggest(name, QUANTITIES)}")
    return name


def rate(measured: Mapping[str, float], whole: GenerationResult, setting: Setting) -> tuple[Rated, ...]:
    """A verdict on each of what check() returned, of the generation `whole`.

    Raises InputError if the generation has no such quantity.
    """
    return tuple(_rated(name, value, whole, setting) for name, value in measured.items())


def _rated(name: str, measured: float, whole: GenerationResult, setting: Setting) -> Rated:
    if not setting.model.generates and name not in _OF_PASS:
        made = f"{setting.model.name} makes one pass, whose time is latency"
        raise InputError(f"measured: {name} is of models that generate; {made}")
    of, tokens = ("latency", whole.tokens_per_s * whole.latency_s) if name == RATE else (name, None)
    bound_s: float | None = getattr(whole, f"{of}_s")
    if bound_s is None:
        raise InputError(f"measured: {name} needs at least two generated tokens; leave it out")

    def turned(value: float | None) -> float | None:
        """A rate as the time that it takes, and the other way round; times as they are."""
        return tokens / value if tokens and value else value

    time_s = turned(measured) or measured
    expected_s, *ends_s = (getattr(whole, f"expected_{of}{end}_s") for end in ("", "_low", "_high"))
    verdict = _verdict(time_s, bound_s, *ends_s)
    bound, expected = turned(bound_s) or bound_s, turned(expected_s)
    low, high = map(turned, reversed(ends_s) if tokens else ends_s)
    of_bound, of_expected = measured / bound, measured / expected if expected else None
    said = f"{significant(measured)} tokens/s" if tokens else seconds(measured)
    said += f": {fold(of_bound)} the bound"
    said += f", {fold(of_expected)} the expected {'rate' if tokens else 'time'}" if of_expected else ""
    return Rated(
        quantity=name if tokens else f"{name}_s", measured=measured, bound=bound, expected=expected, low=low, high=high,
        of_bound=of_bound, of_expected=of_expected, verdict=verdict,
        said=f"{said}, {_meaning(verdict, name, time_s - (expected_s or 0.0), setting)}",
    )  # fmt: skip


def _verdict(time_s: float, bound_s: float, low_s: float | None, high_s: float | None) -> Verdict:
    if time_s < _ROUNDED * bound_s:
        return Verdict.IMPOSSIBLE
    if low_s is None or high_s is None:
        return Verdict.UNKNOWN
    if time_s > high_s:
        return Verdict.SLOWER
    return Verdict.INSIDE if time_s >= low_s else Verdict.FASTER


def _meaning(verdict: Verdict, name: str, excess_s: float, setting: Setting) -> str:
    if verdict is Verdict.IMPOSSIBLE:
        return f"which no kernel reaches: the setting differs from what is counted; check {_differs(name, setting)}"
    if verdict is Verdict.UNKNOWN:
        return f"and what kernels take is {'left out (--bound)' if setting.bound else 'not known'}"
    if verdict is Verdict.SLOWER:
        more = f"slower than 90 % of kernels; the {seconds(excess_s)} beyond it"
        return f"{more} are {_causes(setting)}; try {_next(name, setting)}"
    inside = "inside the 80 % interval, as good as measured kernels"
    where = inside if verdict is Verdict.INSIDE else "faster than 90 % of kernels"
    part = QUANTITIES[name] if setting.model.generates else "the one pass"
    return f"{where}; only changes of the work help (the advice on {part})"


def _differs(name: str, setting: Setting) -> str:
    """What may be other than it was said."""
    what = ["unit", "batch", "lengths", "--quant"]
    if setting.layout.devices > 1:
        what.append("number of devices")
    if setting.model.generates and not setting.techniques:
        cached = "cached prefixes (--with prefix-cache)"
        what.append(cached if name == "ttft" else "speculative decoding (--with speculative)")
    return ", ".join(what)


def _causes(setting: Setting) -> str:
    """What takes time besides the kernels that are counted."""
    causes = [] if setting.engine else ["gaps between launches", "the host"]
    causes += ["waiting for other requests"] if setting.model.generates else []
    causes += ["collectives"] if setting.layout.devices > 1 else []
    return f"{', '.join(causes)} or slower kernels" if causes else "slower kernels"


def _next(name: str, setting: Setting) -> str:
    steps = [] if setting.engine else ["--engine NAME"]
    if setting.hardware.vendor in _GRAPHS and setting.model.generates and name != "ttft":
        steps.append("CUDA graphs")
    if setting.model.generates:
        steps.append("`llmviewer simulate`")
    return f"{', '.join((*steps, '`llmviewer timeline TRACE ...`'))}"
