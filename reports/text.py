"""The report of an analysis on a terminal, 80 columns wide."""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Collection
from itertools import pairwise
from typing import TYPE_CHECKING, Final, TypeAlias

import click

from llmviewer.analyzing.analysis import Analysis
from llmviewer.analyzing.generation import GenerationResult
from llmviewer.analyzing.measured import RATE, Rated
from llmviewer.analyzing.phases import Phase
from llmviewer.expectation.engines import find_engine
from llmviewer.precision import AS_PUBLISHED
from llmviewer.units import fold, seconds, si

from .columns import WIDTH, columns
from .operator_table import COLUMNS, LITTLE, rate, rows, shortens, shows_calls

if TYPE_CHECKING:
    from llmviewer.analyzing.effect import Effect

Lines: TypeAlias = tuple[tuple[str, str], ...]  # (label, value)

_NARROW: Final = 40  # columns of lines of words at least
_COLOR: Final = {"memory": "red", "compute": "green", "link": "blue"}
_SHORT: Final = {"weights": "wts.", "activ.": "act."}  # where there are more columns
_LEFT: Final = ("operator", "bound", "in")
_TYPED: Final = re.compile(r"[._=\d]")  # in a word that is typed: a key, an option, a model or a device
_LEFT_OUT: Final = f"--all lists the operators that take less than {LITTLE:.0%} of the time too"
_ROOM: Final = 12  # letters for a name, for which numbers are written closer
_LEAST: Final = 8  # letters of a name, however many columns there are


def render_text(analysis: Analysis, *, width: int = 0, per_call: bool | None = None, brief: bool = False) -> str:
    """The whole report with its colours.

    width  that of the terminal, where names that have no room are broken; 0 where there is none. [columns]
    brief  of a long table, operators that take little of the time are one line
    """
    calls = shows_calls(analysis, per_call)
    alarms = set() if analysis.memory.fits else {"memory"}
    said = headline(analysis), summary(analysis)
    return report(*said, analysis, width=width, calls=calls, brief=brief, alarms=alarms)


def report(
    head: str, lines: Lines, analysis: Analysis, *, width: int, calls: bool, brief: bool, alarms: Collection[str] = ()
) -> str:
    """The phases of `analysis` under `head` and `lines`, of which those that `alarms` names are verdicts against it."""
    table_width, width = max(width, WIDTH) if width else sys.maxsize, max(width or WIDTH, _NARROW)
    parts = [click.style(_wrapped(head, width), bold=True), _listed(lines, width, alarms)]
    for name, phase in analysis.phases:
        line = phase_line(called(analysis, name), phase, per_call=calls)
        parts += ["", click.style(_wrapped(line, width), bold=True)]
        table = _table(phase, per_call=calls, width=table_width, brief=brief)
        parts += [table, _wrapped(sentence(phase.advice), width)]
    left_out = [_LEFT_OUT] if brief and any(shortens(phase) for _, phase in analysis.phases) else []
    if remarks := [*analysis.remarks, *left_out]:
        parts += ["", *(_wrapped(f"Note: {note}.", width) for note in remarks)]
    return "\n".join(parts) + "\n"


def headline(analysis: Analysis) -> str:
    """What was asked, in one line."""
    asked = analysis.inputs
    written = f"{asked.gen} generated, " if asked.gen else ""
    away = f", offloaded {asked.offload}" if asked.offload else ""
    with_them = f", with {' and '.join(asked.techniques)}" if asked.techniques else ""
    return (
        f"{subject(analysis)}: {sequences(analysis)}, prompt {asked.prompt}, "
        f"{written}{precision(analysis)}, {asked.attention} attention{away}{with_them}{launched(analysis)}"
    )


def subject(analysis: Analysis) -> str:
    """Of what it was asked: a model on devices."""
    return f"{analysis.model.title} on {devices(analysis)}"


def sequences(analysis: Analysis) -> str:
    """The batch, and whether it is one that was found."""
    asked = analysis.inputs
    goal = f" within {seconds(asked.tpot_goal_s)} a token" if asked.tpot_goal_s else ""
    return f"batch {asked.batch}{', the largest that fits' if asked.batch_found else ''}{goal}"


def launched(analysis: Analysis) -> str:
    """The engine, and whose kernels it runs if not its own, such as ", engine openppl with kernels of cublas"."""
    asked = analysis.inputs
    if not asked.engine:
        return ""
    return f", engine {asked.engine}" + (f" with kernels of {asked.library}" if asked.library != asked.engine else "")


def devices(analysis: Analysis) -> str:
    """Such as "8 x NVIDIA H100 SXM5 80 GB (tp=8)"."""
    asked, title = analysis.inputs, analysis.hardware.title
    return f"{asked.devices} x {title} ({asked.layout})" if asked.devices > 1 else title


def called(analysis: Analysis, phase: str) -> str:
    """What a phase is called: that of a model which does not generate is all there is."""
    return phase if analysis.model.generates else "one pass"


def precision(analysis: Analysis) -> str:
    """The scheme asked for, and what the model is published in."""
    quant, fmt = analysis.inputs.quant, analysis.model.format.name
    return f"{fmt} {quant}" if quant == AS_PUBLISHED.text else f"{quant} ({fmt} model)"


def memory_line(analysis: Analysis) -> str:
    """The verdict, its parts, and what more would fit."""
    memory = analysis.memory
    spare = memory.capacity_bytes - memory.total_bytes
    verdict = f"fits, {si(spare)}B to spare" if memory.fits else f"does not fit, {si(-spare)}B too much"
    parts = (
        f"weights {si(memory.weight_bytes)}B, KV cache {si(memory.kv_cache_bytes)}B, "
        f"live activations {si(memory.activation_bytes)}B"
    )
    elsewhere = (("in host memory", memory.host_bytes), ("on storage", memory.storage_bytes))
    away = "".join(f"; {si(size)}B {where}" for where, size in elsewhere if size)
    return f"{si(memory.total_bytes)}B of {si(memory.capacity_bytes)}B{of_each(analysis)}: {verdict}; {parts}{away}"


def of_each(analysis: Analysis) -> str:
    """Of which of several devices the memory is told; nothing where there is one."""
    if analysis.inputs.devices == 1:
        return ""
    return " of the fullest device" if analysis.phases.prefill.stages > 1 else " of each device"


def largest_line(analysis: Analysis) -> str:
    """How far batch and context can grow."""
    memory, asked = analysis.memory, analysis.inputs
    length = f"{asked.longest:,} tokens"
    sequences = "any batch" if memory.max_batch is None else f"batch {memory.max_batch:,}"
    context = "any context" if memory.max_context is None else f"{memory.max_context:,} tokens"
    tokens = context if memory.max_context != 0 else "no context"
    batch = f"not one sequence of {length}" if memory.max_batch == 0 else f"{sequences} at {length}"
    return f"{batch}; {tokens} at batch {asked.batch}{made_for(analysis)}"


def made_for(analysis: Analysis) -> str:
    """The positions that the model has, where memory has room for more."""
    room, positions = analysis.memory.max_context, analysis.model.max_context
    return f"; the model is made for {positions:,}" if positions and (room is None or room > positions) else ""


def phase_line(name: str, phase: Phase, *, per_call: bool) -> str:
    """What a phase is, and of which devices its table is."""
    tokens = phase.batch * phase.q_len
    amounts = "OPs, bytes and times of " + ("one launch, in the total of all" if per_call else "all launches")
    if phase.devices > 1:
        amounts += ", of one device" + " in each stage" * (phase.stages > 1)
    part = f", one of {phase.micro_batches} micro-batches" if phase.micro_batches > 1 else ""
    return (
        f"{name.capitalize()}: {tokens} token{'s'[: tokens > 1]} at a context of {phase.kv_len}{part}, at least "
        f"{seconds(phase.total.bound_time_s)}{_expected(phase)} ({amounts})"
    )


def _expected(phase: Phase) -> str:
    """Such as "; expect 21.3 ms (19.9 to 23.0 ms; calibrated on h100-sxm vllm)"; nothing where it is not known."""
    total = phase.total
    if total.expected_time_s is None:
        return ""
    expected, bracket, ends = between(total.expected_time_s, total.expected_low_s, total.expected_high_s).partition(
        " ("
    )
    gaps = f"; {seconds(total.host_s)} of it without a kernel" if total.host_s else ""
    within = f"{ends.removesuffix(')')}; " if bracket else ""
    return f"; expect {expected} ({within}{total.expectation_source}{gaps})"


def between(expected: float | None, low: float | None, high: float | None) -> str:
    """Such as "21.3 ms (19.9 to 23.0 ms)"; without a bracket where its ends are the same."""
    if expected is None or low is None or high is None:
        return ""
    start, end = seconds(low), seconds(high)
    if start == end:
        return seconds(expected)
    value, _, unit = start.partition(" ")
    return f"{seconds(expected)} ({value if end.endswith(unit) else start} to {end})"


def sentence(text: str) -> str:
    """`text` with a full stop, and a capital unless it begins with a key or a name, which have to be typed as they are.

    >>> sentence("scale_up.latency is not known"), sentence("decode is memory-bound")
    ('scale_up.latency is not known.', 'Decode is memory-bound.')
    """
    first = text.split(maxsplit=1)[0].rstrip(":,")
    return f"{text}." if _TYPED.search(first) else f"{text[0].upper()}{text[1:]}."


def summary(analysis: Analysis) -> Lines:
    """The headline numbers."""
    return (
        *_whole_times(analysis),
        *((measured_label(one), one.said) for one in analysis.measured),
        *(effect_lines(analysis.effect) if analysis.effect else ()),
        ("memory", memory_line(analysis)),
        ("largest that fits", largest_line(analysis)),
        ("these times", f"lower bounds: {unbeaten(analysis)}" + _what_is_expected(analysis)),
    )


def _whole_times(analysis: Analysis) -> Lines:
    whole, effect = analysis.generation, analysis.effect
    each: Lines = (
        ("time to first token", seconds(whole.ttft_s) + also_expected(whole, "ttft")),
        ("time per output token", seconds(whole.tpot_s) + also_expected(whole, "tpot")),
        ("generation", pace(whole)),
    )
    if analysis.model.generates:
        return each
    passes = sum(run.passes for run in effect.runs) if effect else 1
    if whole.tpot_s is not None:  # denoised by blocks
        return (("first block", each[0][1]), *each[1:])
    return ((f"{passes:,.0f} passes" if passes > 1 else "one pass", pace(whole)),)


def measured_label(one: Rated) -> str:
    """What the user measured, such as "measured tpot"."""
    return f"measured {'tokens/s' if one.quantity == RATE else one.quantity.removesuffix('_s')}"


def unbeaten(analysis: Analysis) -> str:
    """Describes what the bounds hold for: a launch per operator, which fused kernels undercut, and cold caches."""
    shared = any(name.startswith("fusion") for name in analysis.inputs.techniques)
    promised = "no kernel of one operator is faster with its tensors in memory"
    return promised + ("" if shared else "; fused ones may be (--with fusion)")


def expectation(whole: GenerationResult, what: str) -> str:
    """What to expect of "ttft", "tpot" or "latency"; nothing where bounds alone are known."""
    return between(*(getattr(whole, f"expected_{what}{end}_s") for end in ("", "_low", "_high")))


def pace(whole: GenerationResult) -> str:
    """How long all of it takes, and tokens a second."""
    said = f"{seconds(whole.latency_s)}, {rate(whole.tokens_per_s)} tokens/s"
    if whole.expected_latency_s and whole.expected_tokens_per_s:
        said += f"; expect {seconds(whole.expected_latency_s)}, {rate(whole.expected_tokens_per_s)} tokens/s"
    return said


def also_expected(whole: GenerationResult, what: str) -> str:
    """That, behind a bound."""
    found = expectation(whole, what)
    return f"; expect {found}" if found else ""


def _what_is_expected(analysis: Analysis) -> str:
    if analysis.generation.expected_latency_s is None:
        return ""
    name = analysis.inputs.engine
    engine = find_engine(name) if name else None
    gaps = engine.said if engine else "without gaps between launches"
    if engine and not engine.whole:
        gaps += " Brackets are of kernels alone"
    return f"; expected: measured kernels, 80 % interval in brackets; {gaps}"


def effect_lines(effect: Effect) -> Lines:
    """What techniques make of the generation, and what it would be without them."""
    found, bare = effect.result, effect.without
    counted = (f"{run.name} {_times(run.passes)} ({seconds(run.time_s)})" for run in effect.runs)
    several = effect.tokens_per_step is not None and effect.tokens_per_step > 1
    each = f"{effect.tokens_per_step:.3g} tokens a pass; " if several else ""
    hoped = f" (expect {fold(effect.expected_speed_up)})" if effect.expected_speed_up else ""
    ratios = [f"generation {fold(effect.speed_up)} as fast{hoped}", f"first token {fold(bare.ttft_s / found.ttft_s)}"]
    if found.tpot_s and bare.tpot_s:
        ratios.append(f"further ones {fold(bare.tpot_s / found.tpot_s)}")
    amounts = (("OPs", "ops"), ("bytes", "bytes"), ("memory", "memory_bytes"))
    others = (f"{fold(getattr(found, key) / getattr(bare, key))} the {name}" for name, key in amounts)
    lines = [("passes", f"{each}{', '.join(counted)}")]
    if found != bare:
        lines.append(("techniques gain", f"{', '.join((*ratios, *others))}"))
    return (*lines, *((("" if i else "to know"), text) for i, text in enumerate(effect.said)))


def _times(count: float) -> str:
    return "once" if count == 1 else f"{count:.4g} times"


def _listed(lines: Lines, width: int, alarms: Collection[str]) -> str:
    margin = max(len(label) for label, _ in lines) + 2
    texts = []
    for label, value in lines:
        text = textwrap.fill(value, width - margin, break_on_hyphens=False).replace("\n", "\n" + margin * " ")
        texts.append(label.ljust(margin) + (click.style(text, fg="red") if label in alarms else text))
    return "\n".join(texts)


def _table(phase: Phase, *, per_call: bool, width: int, brief: bool) -> str:
    left_out = "expect" if phase.total.expected_time_s is None else "OP/s"  # there is no room for all
    names = [name for name in COLUMNS if name != left_out]
    shown = [COLUMNS.index(name) for name in names]
    found = (COLUMNS, *(row.cells for row in rows(phase, per_call=per_call, brief=brief)))
    texts = [[cells[at] for at in shown] for cells in found]
    if "expect" in names or _beside(texts) > width - _ROOM:
        texts = [[head, *(_SHORT.get(text, text.replace(" ", "")) for text in cells)] for head, *cells in texts]
    lines: list[list[str]] = []
    heads = _fitted([head for head, *_ in texts], width - _beside(texts))
    for (first, *more), (_, *cells) in zip(heads, texts, strict=True):
        lines += [[first, *cells], *([text, *len(cells) * [""]] for text in more)]

    def style(line: int, column: int, text: str) -> str:
        if line == 0:
            return click.style(text, dim=True)
        color = _COLOR.get(text.strip()) if names[column] == "bound" else None
        whole = line == len(lines) - 1
        return click.style(text, fg=color, bold=whole) if color or whole else text

    return columns(lines, left=[names.index(name) for name in _LEFT], gap=" ", style=style).rstrip("\n")


def _beside(texts: list[list[str]]) -> int:
    """Columns that all but the names take."""
    return sum(1 + max(map(len, column)) for column in zip(*(cells[1:] for cells in texts), strict=True))


def _fitted(names: list[str], width: int) -> list[list[str]]:
    """Lines of each name: without that of the line before, or of the last that stands whole, which theirs begins with,
    and those that are longer than `width` in several.

    >>> _fitted(["o_proj", "o_proj_lora_in", "o_proj_lora_out", "logits_all_gather"], 12)
    [['o_proj'], ['  lora_in'], ['  lora_out'], ['logits_all_', ' gather']]
    """
    if max(map(len, names)) <= width:
        return [[name] for name in names]
    width = max(width, _LEAST)
    lines = []
    whole = ""
    for before, name in pairwise(("", *names)):
        above = next((one for one in (before, whole) if one and name.startswith(f"{one}_")), "")
        lines.append(_broken(f"  {name.removeprefix(f'{above}_')}" if above else name, width))
        whole = whole if above else name
    return lines


def _broken(name: str, width: int) -> list[str]:
    """Lines of a name, which end at a space, or after an underscore or a comma."""
    if len(name) <= width:
        return [name]
    indent = len(name) - len(name.lstrip()) + 1
    spaced = re.sub(r"([_,])(?=.)", r"\1 ", name)
    lines = textwrap.wrap(spaced, width, subsequent_indent=indent * " ", break_on_hyphens=False)
    return [re.sub(r"([_,]) ", r"\1", line) for line in lines]


def _wrapped(text: str, width: int) -> str:
    return textwrap.fill(text, width, break_on_hyphens=False)
