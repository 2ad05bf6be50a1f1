"""The report on an analysis: bounds and expected times, memory, and the operators of each phase."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from llmviewer.analyzing.analysis import Analysis
from llmviewer.analyzing.facts import plain
from llmviewer.analyzing.phases import Phase
from llmviewer.analyzing.precision_effect import TOTAL, PrecisionEffect
from llmviewer.devices.hardware import Hardware
from llmviewer.expectation.engines import AS_SHIPPED, find_engine
from llmviewer.server_memory import Capacity
from llmviewer.units import counted, fold, seconds, si

from .operator_table import SMALL_SHARE, operator_table, rate, shortens, shows_calls
from .parts import Card, Command, Details, Line
from .phrases import (
    BOUNDS,
    between,
    bound_and_expected,
    effect_lines,
    expectation,
    expectation_basis,
    headline,
    largest,
    lower_bound,
    measured_label,
    memory_fix,
    memory_margin,
    memory_verdict,
    per_device,
    phase_title,
    sentence,
    subject,
    throughput,
    trained_context,
)
from .report import Report
from .tables import Item, Table

if TYPE_CHECKING:
    from .page_figures import Picture

_GREATER_EQUAL, _LESS_EQUAL = ">=", "<="
_THROUGHPUT: Final = "throughput"  # label of the line that only requests have which fit
_ALL_OPERATORS: Final = f"--all lists the operators under {SMALL_SHARE:.0%} of the time too."
_MIN_SHARE: Final = 0.01  # of a phase's time, from which operators with a change of bound are named
_OVERLAP: Final = (
    "At the bound, arithmetic and memory traffic of a launch overlap completely, and launches follow one another "
    "without a gap."
)


def report(*, per_call: bool | None = None, brief: bool = False, sources: bool = False) -> Report[Analysis]:
    """The report on an analysis.

    per_call  amounts and times of one launch of an operator, instead of all its launches
    brief     a text of a long table has one line for all operators that take little of the time
    sources   name where expected times of an engine come from
    """
    return Report[Analysis](
        name="analysis",
        title=subject,
        headline=headline,
        summary=summary,
        tables=partial(tables, per_call=per_call, brief=brief),
        remarks=partial(remarks, brief=brief, sources=sources),
        basis=basis,
        cards=cards,
        pictures=lambda analysis: pictures(analysis, [analysis]),
        details=lambda analysis: [method_details(analysis), *device_details([analysis.hardware])],
        more=_server,
        inputs=inputs,
    )


def _server(analysis: Analysis) -> list[Command]:
    """The launch command of the engine, if the request fits."""
    if not _is_launched(analysis):
        return []
    from .launching import server_commands

    return server_commands(analysis.setting, sequences=analysis.request.batch, tokens=_request_tokens(analysis))


def _is_launched(analysis: Analysis) -> bool:
    """Whether an engine can start a server for the request."""
    return analysis.setting.engine is not None and analysis.memory.fits and analysis.model.generates


def _request_tokens(analysis: Analysis) -> int:
    return analysis.request.prompt + (analysis.request.gen or 0)


def summary(analysis: Analysis) -> list[Line]:
    """Times, verdicts on measurements, gains of techniques, and memory, ahead of all if the request does not fit."""
    times = [
        *(line for line in _time_lines(analysis) if analysis.memory.fits or line.label != _THROUGHPUT),
        *(Line(measured_label(one), sentence(one.said), on_page=True) for one in analysis.measured),
        *_effect_lines(analysis),
        *_precision_lines(analysis),
    ]
    server = server_lines(analysis)
    memory = [memory_line(analysis)]
    if not server:
        memory.append(Line("largest that fits", _largest(analysis)))
    if not analysis.memory.fits or not analysis.capacity.starts:
        return [*server, *memory, *times]
    return [*times, *memory, *server]


def server_lines(analysis: Analysis) -> list[Line]:
    """Whether the server of the engine starts, its KV cache, and how many requests of this length run at once.

    Where the launch command of the report starts another server, its numbers follow.
    """
    engine, capacity = analysis.setting.engine, analysis.capacity
    if engine is None or engine.memory is None or capacity.kv_capacity_tokens is None:
        return []
    name = f"{engine.title} {engine.version}".rstrip()
    launched = _launched_text(analysis)
    if launched:
        shipped = replace(engine.options, version="") == AS_SHIPPED
        name += " with its defaults" if shipped else " with the given options"
    if not capacity.starts:
        return [Line("server", f"{name} does not start: {capacity.reason}{launched}", alarm=True, on_page=True)]
    cache = f"KV cache {capacity.kv_capacity_tokens:,} tokens ({si(capacity.kv_cache_bytes)}B{per_device(analysis)})"
    at_once = f"{counted(capacity.concurrency, 'request')} of {capacity.tokens:,} tokens at once"
    return [Line("server", f"{name}: {cache}; {at_once}, limited by {capacity.limiter}{launched}", on_page=True)]


def _launched_text(analysis: Analysis) -> str:
    """Such as "; with the command below: 32 requests at once"; "" if the command starts the same server."""
    request, setting_capacity = analysis.request, analysis.capacity
    if not _is_launched(analysis):
        return ""
    from .launching import launched_capacity

    launched = launched_capacity(analysis.setting, sequences=request.batch, tokens=_request_tokens(analysis))
    if launched is None or _served(launched) == _served(setting_capacity):
        return ""
    if not launched.starts:
        return f"; with the command below it does not start: {launched.reason}"
    changes_cache = launched.kv_capacity_tokens != setting_capacity.kv_capacity_tokens
    cache = f"KV cache {launched.kv_capacity_tokens:,} tokens, " * changes_cache
    starts = " it starts" * (not setting_capacity.starts)
    return f"; with the command below{starts}: {cache}{counted(launched.concurrency, 'request')} at once"


def _served(capacity: Capacity) -> tuple[bool, int | None, int]:
    """Numbers of the server line: whether it starts, tokens of its KV cache, and requests at once."""
    return capacity.starts, capacity.kv_capacity_tokens, capacity.concurrency


def _effect_lines(analysis: Analysis) -> list[Line]:
    """Passes and gains of techniques, which cards have too, and the conditions under which they pay."""
    lines = effect_lines(analysis.effect) if analysis.effect else ()
    cards = len(effect_cards(analysis))
    return [Line(label, text, on_page=i >= cards) for i, (label, text) in enumerate(lines)]


def _precision_lines(analysis: Analysis) -> list[Line]:
    """Gain of a precision over the published one, and the bounds of operators before and after, by phase."""
    effects = dict(analysis.precision_effect or {})
    if not effects:
        return []
    total = effects.pop(TOTAL, effects["prefill"])
    phases = ", ".join(f"{name} {fold(one.speed_up)} ({_shifts(one)})" for name, one in effects.items())
    return [Line("precision", f"E2E {fold(total.speed_up)} as fast at the bound as published: {phases}", on_page=True)]


def _shifts(effect: PrecisionEffect) -> str:
    """Such as "93% compute to compute, 7% memory to memory", or "memory to memory" if nearly all of it is."""
    shares = [(shift.share, f"{shift.before} to {shift.after}") for shift in effect.shifts if shift.share >= _MIN_SHARE]
    return shares[0][1] if len(shares) == 1 else ", ".join(f"{share:.0%} {bounds}" for share, bounds in shares)


def _time_lines(analysis: Analysis) -> list[Line]:
    generation, effect = analysis.generation, analysis.effect
    lines = [
        Line("TTFT", bound_and_expected(generation, "ttft")),
        Line("TPOT", bound_and_expected(generation, "tpot")),
        Line("E2E latency", bound_and_expected(generation, "latency")),
        Line(_THROUGHPUT, throughput(generation)),
    ]
    if analysis.model.generates:
        return lines
    if generation.tpot_s is not None:  # denoised by blocks
        return [lines[0]._replace(label="first block"), *lines[1:]]
    passes = sum(run.passes for run in effect.runs) if effect else 1
    return [lines[-2]._replace(label=f"{passes:,.0f} passes" if passes > 1 else "one pass"), lines[-1]]


def memory_line(analysis: Analysis) -> Line:
    """Whether the request fits, with the parts of its memory."""
    memory = analysis.memory
    offloaded = "".join(f"; {si(size)}B {where}" for where, size in _offloaded_bytes(analysis) if size)
    parts = (
        f"weights {si(memory.weight_bytes)}B, KV cache {si(memory.kv_cache_bytes)}B, "
        f"live activations {si(memory.activation_bytes)}B{offloaded}"
    )
    verdict = f"{'fits' if memory.fits else 'does not fit'}: {memory_verdict(analysis)}"
    texts = filter(None, (verdict, memory_fix(analysis), parts))
    return Line("memory", "; ".join(texts), alarm=not memory.fits)


def _offloaded_bytes(analysis: Analysis) -> tuple[tuple[str, float], ...]:
    """Data outside the device's memory. [B]"""
    memory = analysis.memory
    host = "" if memory.host_capacity_bytes is None else f"of {si(memory.host_capacity_bytes)}B "
    return ((f"{host}in host memory", memory.host_bytes), ("on storage", memory.storage_bytes))


def _largest(analysis: Analysis) -> str:
    memory, request = analysis.memory, analysis.request
    length = f"{request.longest:,} tokens"
    sequences = "any batch" if memory.max_batch is None else f"batch {memory.max_batch:,}"
    context = "any context" if memory.max_context is None else f"{memory.max_context:,} tokens"
    tokens = context if memory.max_context != 0 else "no context"
    batch = f"no sequence of {length}" if memory.max_batch == 0 else f"{sequences} at {length}"
    return f"{batch}; {tokens} at batch {request.batch}{trained_context(analysis)}"


def tables(analysis: Analysis, *, per_call: bool | None = None, brief: bool = False) -> list[Table]:
    """The operators of each phase."""
    calls = shows_calls(analysis, per_call)
    return [
        operator_table(
            phase, title=_table_title(analysis, name, phase, per_call=calls), subject=phase_title(analysis, name),
            conclusion=sentence(phase.advice), per_call=calls, brief=brief,
        )
        for name, phase in analysis.phases
    ]  # fmt: skip


def _table_title(analysis: Analysis, name: str, phase: Phase, *, per_call: bool) -> str:
    """The phase with its tokens and times, and the devices and launches of its table."""
    tokens = phase.batch * phase.q_len
    counted = ["one launch per row"] * per_call
    if phase.devices > 1:
        counted.append("one device" + " per stage" * (phase.stages > 1))
    amounts = f" ({', '.join(counted)})" if counted else ""
    part = f", one of {phase.micro_batches} micro-batches" if phase.micro_batches > 1 else ""
    return (
        f"{phase_title(analysis, name).capitalize()}: {tokens:,} token{'s'[: tokens > 1]} at context "
        f"{phase.kv_len:,}{part}, {lower_bound(phase.total.bound_time_s)}{_expected(phase)}{amounts}"
    )


def _expected(phase: Phase) -> str:
    """Such as ", expected 21.3 ms (19.9 to 23.0 ms; calibrated on h100-sxm vllm)"; "" where unknown."""
    total = phase.total
    if total.expected_time_s is None:
        return ""
    interval = between(total.expected_time_s, total.expected_low_s, total.expected_high_s)
    expected, bracket, ends = interval.partition(" (")
    gaps = f"; {seconds(total.host_s)} of host time" if total.host_s else ""
    within = f"{ends.removesuffix(')')}; " if bracket else ""
    return f", expected {expected} ({within}{total.expectation_source}{gaps})"


def remarks(analysis: Analysis, *, brief: bool = False, sources: bool = False) -> list[str]:
    """The notes, and for a brief text the option that lists all operators."""
    shortened = brief and any(shortens(phase) for _, phase in analysis.phases)
    return [
        *map(sentence, analysis.remarks),
        *([_ALL_OPERATORS] if shortened else []),
        *(_engine_sources(analysis) if sources else ()),
    ]


def _engine_sources(analysis: Analysis) -> tuple[str, ...]:
    """Sources of the launch times and the scheduler of the engine."""
    name = analysis.inputs["engine"]
    return (find_engine(name).description,) if name and analysis.generation.expected_latency_s is not None else ()


def basis(analysis: Analysis) -> str:
    """The sentence on the two numbers: bounds, and the origin of the expected times."""
    if analysis.generation.expected_latency_s is None:
        return f"{BOUNDS}."
    name = analysis.inputs["engine"]
    if not name:
        return expectation_basis("measured kernels without gaps")
    engine = find_engine(name)
    measured = "passes that its users measured" if engine.has_whole_passes else f"measured {engine.library} kernels"
    launches = any(phase.total.host_s for _, phase in analysis.phases) and engine.host.launch_range != (1.0, 1.0)
    return expectation_basis(f"{engine.title} on {measured}", host_range=launches)


def cards(analysis: Analysis) -> list[Card]:
    """Times, gains of techniques, and memory, which comes first if the request does not fit."""
    times, memory = [*time_cards(analysis), *effect_cards(analysis)], memory_cards(analysis)
    if analysis.memory.fits:
        return [*times, *memory]
    verdict, *largest = memory
    about = "; ".join(filter(None, (verdict.about, memory_fix(analysis))))
    return [verdict._replace(about=about), *largest, *times]


def time_cards(analysis: Analysis) -> list[Card]:
    """Times and tokens per second of a generation, or of the one pass of a model that does not generate."""
    request, generation = analysis.request, analysis.generation
    bounds = {name: phase.total.bound for name, phase in analysis.phases}
    expected_rate = rate(generation.expected_tokens_per_s) if generation.expected_tokens_per_s else ""
    throughput, latency = (
        (rate(generation.tokens_per_s), expected_rate),
        (generation.latency_s, expectation(generation, "latency")),
    )
    if not request.gen:
        tokens = f"over {request.batch} × {request.prompt} tokens"
        return [
            _time("one pass", *latency, about=tokens, bound=bounds["prefill"]),
            _throughput(*throughput, about="of all prompts"),
        ]
    steps = f"mean of {request.gen - 1} decode steps" if request.gen > 1 else "no decode steps"
    ttft, tpot = (expectation(generation, quantity) for quantity in ("ttft", "tpot"))
    prompts = f"prefill of {request.batch} × {request.prompt}"
    return [
        _time("TTFT", generation.ttft_s, ttft, about=prompts, bound=bounds["prefill"]),
        _time("TPOT", generation.tpot_s, tpot, about=steps, bound=bounds.get("decode", "")),
        _throughput(*throughput, about="generated, of all sequences"),
        _time("E2E latency", *latency, about=f"until token {request.gen}"),
    ]


def _time(label: str, time_s: float | None, expected: str, *, about: str, bound: str = "") -> Card:
    if time_s is None:
        return Card(label=label, value=seconds(time_s), about=about)
    return Card(label=label, value=seconds(time_s), about=about, sign=_GREATER_EQUAL, bound=bound, expected=expected)


def _throughput(value: str, expected: str, *, about: str) -> Card:
    return Card(label="tokens/s", value=value, about=about, sign=_LESS_EQUAL, expected=expected)


def effect_cards(analysis: Analysis) -> list[Card]:
    """Gain and passes of techniques."""
    if not analysis.effect:
        return []
    lines = dict(effect_lines(analysis.effect))
    gain = lines.get("with techniques", "")
    return [
        Card(label="passes", value=str(len(analysis.effect.runs)), about=lines["passes"]),
        *([Card(label="techniques", value=f"{fold(analysis.effect.speed_up)} as fast", about=gain)] if gain else []),
    ]


def memory_cards(analysis: Analysis) -> list[Card]:
    """Cards of the memory: whether the request fits, and the largest batch and context that do."""
    request, memory = analysis.request, analysis.memory
    tokens = f"tokens, at batch {request.batch}{trained_context(analysis)}"
    return [
        memory_card(analysis),
        Card(
            label="largest batch", value=largest(memory.max_batch), about=f"sequences of {request.longest:,} tokens",
            alarm=memory.max_batch == 0,
        ),
        Card(label="longest context", value=largest(memory.max_context), about=tokens, alarm=memory.max_context == 0),
    ]  # fmt: skip


def memory_card(analysis: Analysis, label: str = "memory") -> Card:
    """Whether the request fits, with its memory and the margin."""
    fits = analysis.memory.fits
    return Card(
        label=label, value="fits" if fits else "does not fit", about=memory_verdict(analysis), alarm=not fits
    )  # fmt: skip


def memory_table(analysis: Analysis) -> Table:
    """The parts of the memory at its peak."""
    memory = analysis.memory
    margin, word = memory_margin(memory)
    sizes = (
        ("weights", memory.weight_bytes),
        ("KV cache" + " of prompt and generated tokens" * analysis.model.generates, memory.kv_cache_bytes),
        ("live activations, at most", memory.activation_bytes),
        ("in all", memory.total_bytes),
        ("memory of the device", memory.capacity_bytes),
        (word, margin),
        *((f"besides, {where}", size) for where, size in _offloaded_bytes(analysis) if size),
    )
    body = tuple(
        (
            Item(text=name, alarm=name == word and not memory.fits),
            Item(text=f"{si(size)}B", key=size),
            Item(text=f"{size / memory.capacity_bytes:.1%}", key=size),
        )
        for name, size in sizes
    )
    return Table(
        title="Memory", about="", head=("memory at the peak of the request", "size", "of the device"),
        words=("memory at the peak of the request",), body=body,
    )  # fmt: skip


def pictures(analysis: Analysis, sides: Sequence[Analysis]) -> Sequence[Sequence[Picture | Table]]:
    """Rooflines, shares of time, and memory beside its table.

    sides  the analyses of the devices of prefill and decode, if those differ
    """
    from .analysis_figures import memory_bar, time_bars
    from .page_figures import picture
    from .rooflines import roofline

    place = dict(zip(("prefill", "decode"), (sides[0], sides[-1]), strict=True))
    rows: list[list[Picture | Table]] = [
        [picture(roofline(place[name], name), f"roofline-{name}") for name, _ in analysis.phases],
        [picture(time_bars(analysis), "time-bars")],
    ]
    for i, side in enumerate(sides):
        rows.append([picture(memory_bar(side), f"memory-bar{i or ''}"), memory_table(side)])
    return rows


def method_details(analysis: Analysis) -> Details:
    """Derivation of bounds, and of the expected times of an engine."""
    return Details(summary="How these times are derived", notes=(_OVERLAP, *_engine_sources(analysis)))


def device_details(hardware: Sequence[Hardware]) -> list[Details]:
    """The numbers of each device with their sources."""
    return [_device_details(device) for device in {device.name: device for device in hardware}.values()]


def _device_details(device: Hardware) -> Details:
    facts = Table(
        title="", about="", head=("key", "value", "source"), words=("key", "source"),
        body=tuple(
            (Item(text=fact.key), Item(text=fact.text),
             Item(text="; ".join(str(text) for text in (fact.source, fact.note) if text)))
            for fact in device.facts
        ),
    )  # fmt: skip
    sources = Table(
        title="", about="", head=("source", "published as"), words=("source", "published as"),
        body=tuple((Item(text=key), Item(text=str(one), url=one.url)) for key, one in device.sources.items()),
    )  # fmt: skip
    return Details(
        summary=f"Numbers of {device.title} and where they come from", tables=(facts, sources), notes=device.notes
    )  # fmt: skip


def inputs(analysis: Analysis) -> Mapping[str, Any]:
    """The arguments of an analysis."""
    return plain({"model": analysis.model.name, "hardware": analysis.hardware.name, **analysis.inputs})


REPORT: Final = report()
