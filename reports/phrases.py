"""Phrases that reports and the page share: settings, bounds and expected values, verdicts, effects of techniques."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from llmviewer.analyzing.analysis import Analysis
from llmviewer.analyzing.generation import GenerationResult
from llmviewer.analyzing.measured import RATE, RatedMeasurement
from llmviewer.memory import Memory
from llmviewer.precision import AS_PUBLISHED
from llmviewer.units import fold, seconds, si

from .operator_table import rate

if TYPE_CHECKING:
    from llmviewer.analyzing.effect import Effect  # few analyses have techniques

BOUNDS: Final = ">=, <=: roofline bounds"  # the first of the two numbers; the second: expectation_basis()

_TYPED: Final = re.compile(r"[._=\d]")  # in words that are typed: keys, options, names of models and devices


def subject(analysis: Analysis) -> str:
    """The model and its devices."""
    return f"{analysis.model.title} on {devices(analysis)}"


def headline(analysis: Analysis) -> str:
    """The request in one line."""
    request, options = analysis.request, analysis.inputs
    generated = f"{request.gen} generated, " if request.gen else ""
    offload = f", offloaded {options['offload']}" if options["offload"] else ""
    if analysis.setting.host:
        offload += f", {options['on_host']} on {analysis.setting.host.title}"
    techniques = f", with {' and '.join(options['techniques'])}" if options["techniques"] else ""
    return (
        f"{subject(analysis)}: {batch(analysis)}, prompt {request.prompt}, {generated}{precision(analysis)}, "
        f"{analysis.setting.attention} attention{offload}{techniques}{engine(analysis)}"
    )


def batch(analysis: Analysis) -> str:
    """The batch, and the goal by which it was found."""
    request = analysis.request
    goal = f", TPOT <= {seconds(request.tpot_s)}" if request.tpot_s else ""
    return f"batch {request.batch}{', the largest that fits' if request.largest else ''}{goal}"


def engine(analysis: Analysis) -> str:
    """The engine, the library of its kernels where that differs, and what is fitted: ", engine huggingface with kernels
    of pytorch (time for a launch fitted)".
    """
    one, library = analysis.setting.engine, analysis.inputs["library"]
    if one is None:
        return ""
    kernels = f" with kernels of {library}" if library != one.name else ""
    return f", engine {one.name}{kernels}" + (f" ({one.caveat})" if one.caveat else "")


def devices(analysis: Analysis) -> str:
    """Such as "8 x NVIDIA H100 SXM5 80 GB (tp=8)"."""
    layout, title = analysis.setting.layout, analysis.hardware.title
    return f"{layout.devices} x {title} ({layout})" if layout.devices > 1 else title


def phase_title(analysis: Analysis, phase: str) -> str:
    """The name of a phase; "one pass" of a model that does not generate."""
    return phase if analysis.model.generates else "one pass"


def precision(analysis: Analysis) -> str:
    """The precision scheme, and the format in which the model is published."""
    quant, fmt = analysis.inputs["quant"], analysis.model.format.name
    return f"{fmt} {quant}" if quant == AS_PUBLISHED.text else f"{quant} ({fmt} model)"


def memory_margin(memory: Memory) -> tuple[float, str]:
    """Free or lacking memory of the device, and the words for which of the two. [B]"""
    margin = memory.capacity_bytes - memory.total_bytes
    return abs(margin), "free" if memory.fits else "too much"


def memory_verdict(analysis: Analysis) -> str:
    """Such as "14.8 GB of 51.5 GB, 36.8 GB free"."""
    memory = analysis.memory
    margin, word = memory_margin(memory)
    missing = memory.host_bytes - memory.host_capacity_bytes if memory.host_capacity_bytes is not None else 0.0
    host = f"; the host lacks {si(missing)}B" if missing > 0 else ""
    return (
        f"{si(memory.total_bytes)}B of {si(memory.capacity_bytes)}B{per_device(analysis)}, {si(margin)}B {word}{host}"
    )


def memory_fix(analysis: Analysis) -> str:
    """Options with which a request fits, such as "fits with --tp 8 or --offload weights=0.83"; "" if none is known."""
    fixes = analysis.memory_fixes
    options = " or ".join(variant.typed for variant in fixes.found) if fixes else ""
    return f"fits with {options}" if options else ""


def per_device(analysis: Analysis) -> str:
    """The device, of several, whose memory is given; "" where there is one."""
    if analysis.setting.layout.devices == 1:
        return ""
    return " of the fullest device" if analysis.phases.prefill.stages > 1 else " of each device"


def largest(number: int | None) -> str:
    """The largest batch or context that fits."""
    if number is None:
        return "no limit"
    return f"{number:,}" if number else "none"


def trained_context(analysis: Analysis) -> str:
    """The longest context of the model, where memory allows more."""
    fitting, positions = analysis.memory.max_context, analysis.model.max_context
    longer = positions and (fitting is None or fitting > positions)
    return f"; model maximum {positions:,}" if longer else ""


def between(expected: float | None, low: float | None, high: float | None) -> str:
    """Such as "21.3 ms (19.9 to 23.0 ms)"; without an interval whose ends read the same; "" where unknown."""
    if expected is None or low is None or high is None:
        return ""
    return seconds(expected) if seconds(low) == seconds(high) else f"{seconds(expected)} ({interval(low, high)})"


def interval(low: float, high: float) -> str:
    """An interval of times with a common unit once, such as "19.9 to 23.0 ms"."""
    start, end = seconds(low), seconds(high)
    value, _, unit = start.partition(" ")
    return f"{value if end.endswith(unit) else start} to {end}"


def expectation(generation: GenerationResult, quantity: str) -> str:
    """The expected "ttft", "tpot" or "latency" with its interval; "" where only the bound is known."""
    return between(*(getattr(generation, f"expected_{quantity}{end}_s") for end in ("", "_low", "_high")))


def bound_and_expected(generation: GenerationResult, quantity: str) -> str:
    """Such as ">= 3.22 s, expected 6.12 s (5.40 to 7.00 s)" of "ttft", "tpot" or "latency"."""
    bound, expected = getattr(generation, f"{quantity}_s"), expectation(generation, quantity)
    return f"{lower_bound(bound)}, expected {expected}" if expected else lower_bound(bound)


def lower_bound(time_s: float | None) -> str:
    """A lower bound of a time; "-" where there is none."""
    return f">= {seconds(time_s)}" if time_s is not None else seconds(time_s)


def expectation_basis(source: str, *, host_range: bool = False) -> str:
    """The sentence on the two numbers of a report: bounds, and times expected of `source`.

    host_range  whether intervals also reach from the shortest to the longest launch of measured hosts
    """
    hosts = " of kernels, with the shortest to the longest launch of measured hosts" if host_range else ""
    return f"{BOUNDS}. Expected: {source}, 80 % interval{hosts}."


def throughput(generation: GenerationResult) -> str:
    """Such as "<= 50.41 tokens/s, expected 37.32"."""
    expected = f", expected {rate(generation.expected_tokens_per_s)}" if generation.expected_tokens_per_s else ""
    return f"<= {rate(generation.tokens_per_s)} tokens/s{expected}"


def measured_label(one: RatedMeasurement) -> str:
    """The quantity that the user measured, such as "measured tpot"."""
    return f"measured {'tokens/s' if one.quantity == RATE else one.quantity.removesuffix('_s')}"


def effect_lines(effect: Effect) -> tuple[tuple[str, str], ...]:
    """The passes of a generation with techniques, and their gains; (label, text)."""
    result, without = effect.result, effect.without
    passes = ", ".join(f"{run.name} {_times(run.passes)} ({seconds(run.time_s)})" for run in effect.runs)
    several = effect.tokens_per_step is not None and effect.tokens_per_step > 1
    tokens = f"{effect.tokens_per_step:.3g} tokens per pass; " if several else ""
    expected = f" ({fold(effect.expected_speed_up)} expected)" if effect.expected_speed_up else ""
    gains = [
        f"E2E {fold(effect.speed_up)} as fast at the bound{expected}",
        f"TTFT {fold(without.ttft_s / result.ttft_s)}",
    ]
    if result.tpot_s and without.tpot_s:
        gains.append(f"TPOT {fold(without.tpot_s / result.tpot_s)}")
    amounts = (("OPs", "ops"), ("bytes", "bytes"), ("memory", "memory_bytes"))
    work = ", ".join(f"{name} {fold(getattr(result, key) / getattr(without, key))}" for name, key in amounts)
    lines = [("passes", f"{tokens}{passes}")]
    if result != without:
        lines.append(("with techniques", f"{', '.join(gains)}; {work}"))
    return (*lines, *((("" if i else "notes"), text) for i, text in enumerate(effect.said)))


def _times(count: float) -> str:
    return "once" if count == 1 else f"{count:.4g} times"


def below(title: str, headline: str) -> str:
    """A headline without the title that stands above it."""
    return headline.removeprefix(title).lstrip(",:; ")


def sentence(text: str) -> str:
    """`text` with a full stop, and a capital unless it begins with a key or a name, which are typed as they are.

    >>> sentence("scale_up.latency is not known"), sentence("decode is memory-bound")
    ('scale_up.latency is not known.', 'Decode is memory-bound.')
    """
    first = text.split(maxsplit=1)[0].rstrip(":,")
    return f"{text}." if _TYPED.search(first) else f"{text[0].upper()}{text[1:]}."
