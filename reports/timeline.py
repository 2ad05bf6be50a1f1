"""The report on a recorded pass, compared with its analysis."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import isclose
from pathlib import PurePath
from statistics import fmean
from typing import Final

import numpy as np

from llmviewer.timelines.against import Timeline
from llmviewer.timelines.elementwise import ElementwiseOfPass
from llmviewer.timelines.kinds import IDLE, Part, PartOfPass, part_of_operator
from llmviewer.timelines.launches import KernelSums
from llmviewer.timelines.next_steps import NextStep
from llmviewer.timelines.passes import MIXED, sole_phase
from llmviewer.timelines.products import BY_SHAPE, ProductOfPass
from llmviewer.units import counted, fold, seconds

from .page_figures import Picture, picture
from .parts import Card
from .phrases import BOUNDS, interval
from .report import Report
from .tables import DASH, Item, Table, digits, time_item

_MAX_KERNEL_ROWS: Final = 15  # of a text
_MAX_NAME_CHARS: Final = 33  # characters of a kernel's name
_NAME_PREFIX: Final = re.compile(r"^(?:void |std::enable_if<.*?>::type )+")
_TYPES: Final = {"float": "fp32", "c10::BFloat16": "bf16", "c10::Half": "fp16"}  # as torch names them
_MIN_EXCESS_SHARE: Final = 0.05  # of a pass, from which an excess is a remark
_MAX_DECIMAL_RATIO: Final = 100  # ratios from here on have no decimals
_MIN_UNMATCHED_SHARE: Final = 0.01  # of a pass, from which kernels without an operator are named
_MAX_NAMED_KERNELS: Final = 3  # kernels named in a remark
_UNMATCHED_TITLES: Final[Mapping[str, str]] = {Part.MOVES: "Data movement", Part.OTHER: "Unclassified kernels"}
_LENGTH_TOLERANCE: Final = 0.02  # relative difference of lengths that is no remark
_MIN_SHARE_OF_BOUND: Final = 0.97  # of a bound, below which a part is impossibly fast


def title(result: Timeline) -> str:
    """Model, device, pipeline stage and phase of a recording."""
    stage = f", stage {result.stage} of {result.of_phase.stages}" if result.stage else ""
    return f"{result.analysis.model.title} on {result.analysis.hardware.title}{stage}: recorded {result.phase}"


def headline(result: Timeline) -> str:
    """The recorded request, and its time per pass beside the bound and the expected time."""
    request, options, phase = result.analysis.request, result.analysis.inputs, result.of_phase
    if result.phase == MIXED:
        prefills, decodes = phase.workload.groups
        sequences = (
            f"{prefills.batch:.4g} prompts of {prefills.q_len:,.0f} tokens, {decodes.batch:.4g} decodes with context "
            f"{decodes.kv_len:,.0f}"
        )
    else:
        length = f"context {phase.kv_len}" if result.phase == "decode" else f"{phase.q_len} tokens per prompt"
        sequences = f"batch {request.batch}, {length}"
    layout = f"{options['layout']}, " if options["layout"] else ""
    return (
        f"{title(result)} in {PurePath(result.file).name}: {sequences}, {layout}"
        f"{options['quant']}. A pass takes {_recorded_text(result)}; >= {seconds(result.bound_s)}"
        f"{_expected_text(result)}."
    )


def _expected_text(result: Timeline) -> str:
    if result.expected_s is None:
        return ""
    low, high = result.expected_low_s, result.expected_high_s
    sides = "" if low is None or high is None else f" ({interval(low, high)})"
    return f", expected {seconds(result.expected_s)}{sides}"


def _recorded_text(result: Timeline) -> str:
    if result.idle_s is None:
        return f"{seconds(result.time_s)} in kernels (the file has only sums by kernel)"
    return f"{seconds(result.time_s)}, {result.idle_s / result.time_s:.0%} of it idle"


def remarks(result: Timeline) -> list[str]:
    """Differences from the analyzed request, the largest gaps, and launches that were not identified."""
    return [
        *_other_request(result), *_other_operands(result), *missing_communication(result), *_partial_passes(result),
        *gaps(result), *_faster_than_bound(result), *_elementwise_below_bounds(result),
        *_unidentified(result), *_without_operators(result), *_averaged(result),
    ]  # fmt: skip


def gaps(result: Timeline, subject: str = "") -> list[str]:
    """Parts that are slower than expected, gaps within the intervals, and numbered remedies of the largest gaps.

    subject  begins each sentence, after its number
    """
    steps = (f"{number}. {subject}{_next_step(result, step)}" for number, step in enumerate(result.next_steps, 1))
    return [*(f"{subject}{one}" for one in (*_slower_parts(result), *_uncertain_gaps(result))), *steps]


def _other_request(result: Timeline) -> list[str]:
    """A remark if the recorded batch or length differs from the analyzed one."""
    request = result.analysis.request
    named = [step.decodes if result.phase == "decode" else step.prefills for step in result.passes.steps]
    if not named or result.phase == MIXED:  # which has the recorded ones
        return []
    number = fmean(each.number for each in named)
    tokens = [each.context_tokens if result.phase == "decode" else each.new for each in named]
    token_counts = [count for count in tokens if count is not None]
    length = (
        sum(token_counts) / sum(each.number for each in named)
        if token_counts and len(token_counts) == len(named)
        else None
    )
    analyzed_length = request.kv_len if result.phase == "decode" else request.prompt
    option = "--kv-len" if result.phase == "decode" else "--prompt"
    differences = []
    if round(number) != request.batch:
        differences.append(f"{number:.4g} sequences (--batch {number:.0f}; analyzed: {request.batch})")
    if (
        length is not None
        and analyzed_length is not None
        and abs(length - analyzed_length) > max(1.0, _LENGTH_TOLERANCE * length)
    ):
        differences.append(f"{length:,.0f} tokens each ({option} {length:.0f}; analyzed: {analyzed_length:,})")
    return [f"Recorded passes have {' of '.join(differences)}."] if differences else []


def _other_operands(result: Timeline) -> list[str]:
    """A remark if the recorded shapes or types differ from the analyzed ones."""
    rows, phase = result.passes.rows, result.of_phase
    tokens, towers = round(float(phase.workload.tokens())), result.analysis.request.images
    types = {_TYPES.get(operand.dtype, operand.dtype) for operand in result.passes.operands}
    analyzed_types = {op.operand_dtype for op in phase.operators if part_of_operator(op) is Part.PRODUCTS}
    sentences = []
    shaped = {product.operators for product in result.products if product.matched == BY_SHAPE}
    head_alone = shaped == {("lm_head",)}  # which has a row for each sequence
    if rows and rows != tokens and not towers and not head_alone:
        analyzed_rows = counted(tokens, "token")
        request = result.analysis.request
        prefill = result.phase == "decode" and rows == request.batch * request.prompt
        hint = ", a prefill as many rows (--phase prefill)" if prefill else ""
        sentences.append(
            f"Most matrix products have {counted(rows, 'row')}; the analyzed pass has {analyzed_rows}{hint}."
        )
    if types and not types & analyzed_types:
        names = (" or ".join(sorted(names)) for names in (types, analyzed_types))
        sentences.append("Matrix products are in {}; analyzed: {} (--quant).".format(*names))
    return sentences


def _partial_passes(result: Timeline) -> list[str]:
    """A remark if the attention or state launches of a pass are not those of the model's layers."""
    rounds = round(result.mixing / result.layers) if result.layers else 0
    if not result.mixing or (rounds and isclose(result.mixing, rounds * result.layers)):
        return []
    counts = (
        f"{result.mixing:.3g} attention or state launches for {result.layers} layers of {result.analysis.model.name}"
    )
    return [f"Passes have {counts}: give the number of passes (--passes), or the model that was recorded."]


def _slower_parts(result: Timeline) -> list[str]:
    """Parts of a pass that take longer than expected, the longest first."""
    excesses = [
        (part.measured_s - part.expected_s, f"{part.part} {_multiple_text(part.measured_s, part.expected_s)}")
        for part in result.parts
        if part.expected_s and part.measured_s > (part.expected_high_s or part.expected_s)
    ]
    if result.idle_s is not None:
        excesses.append((result.idle_s - (result.host_s or 0.0), f"{IDLE} ({_idle_causes(result)})"))
    texts = [
        f"{text}, {seconds(excess_s)} more"
        for excess_s, text in sorted(excesses, reverse=True)
        if excess_s > _MIN_EXCESS_SHARE * result.time_s
    ]
    reference = "expected" if _any_expected(result) else "the bound"
    return [f"Slower than {reference}: {'; '.join(texts)}."] if texts else []


def _any_expected(result: Timeline) -> bool:
    """Whether the expected time of any part is known."""
    return any(part.expected_s for part in result.parts)


def _uncertain_gaps(result: Timeline) -> list[str]:
    """Large gaps of parts within the intervals of their expected times, which are no evidence of slow kernels."""
    references = result.references
    excesses = [
        (part.measured_s - part.expected_s, _uncertain_gap(part, references.get(part.part, "")))
        for part in result.parts
        if part.expected_s and part.expected_high_s and part.measured_s <= part.expected_high_s
    ]
    texts = [text for excess_s, text in sorted(excesses, reverse=True) if excess_s > _MIN_EXCESS_SHARE * result.time_s]
    return [f"Slower than expected, within the interval: {'; '.join(texts)}."] if texts else []


def _uncertain_gap(part: PartOfPass, reference: str) -> str:
    expected_s = part.expected_s or 0.0
    ends = interval(part.expected_low_s or 0.0, part.expected_high_s or 0.0)
    source = f"; {reference}" if reference else ""
    return (
        f"{part.part} {_multiple_text(part.measured_s, expected_s)}, {seconds(part.measured_s - expected_s)} more "
        f"({ends}{source})"
    )


def missing_communication(result: Timeline) -> list[str]:
    """A remark if the analyzed layout has communication and the recording has none."""
    part = next((part for part in result.parts if part.part == Part.COMMUNICATION), None)
    if part is None or part.launches or not part.bound_s:
        return []
    layout = result.analysis.inputs["layout"]
    return [f"No kernel of communication was recorded; analyzed: {layout}. Give the recorded layout (--tp, --ep)."]


def _next_step(result: Timeline, step: NextStep) -> str:
    """A remedy of a gap, with its gain."""
    gain, reference = f"{fold(step.bound_speed_up)} faster at the bound", "the bound"
    if step.reference or result.expected_s is not None:
        gain = f"Expected {fold(step.speed_up)} faster, {fold(step.bound_speed_up)} at the bound"
        reference = "expected"
    part = f"{step.part} ({step.cause})" if step.cause else step.part
    source = f" ({step.reference})" * bool(step.reference)
    gap = f"{seconds(step.gap_s)} above {reference}{source}{_largest_product(result, step)}"
    return f"{gain}: {step.remedy}; {part}: {gap}."


def _largest_product(result: Timeline, step: NextStep) -> str:
    """The matrix products with the largest share of the gap."""
    if step.part != Part.PRODUCTS:
        return ""
    gaps = [
        (product.measured_s - (product.bound_s if product.expected_s is None else product.expected_s), product)
        for product in result.products
    ]
    gap_s, product = max(gaps, key=lambda gap: gap[0], default=(0.0, None))
    return f", {seconds(gap_s)} of it in {', '.join(product.operators)}" if product and gap_s > 0 else ""


def _idle_causes(result: Timeline) -> str:
    """Causes of idle time, the longest first."""
    if result.stage:
        return "waiting for other stages, or for the host"
    if result.host:
        return "Python and the dispatcher"
    texts = [
        f"{cause} {seconds(time_s)}"
        for cause, time_s in result.idle_by_cause.items()
        if time_s > _MIN_EXCESS_SHARE * (result.idle_s or 0.0)
    ]
    return ", ".join(texts)


def _multiple_text(measured: float, expected: float) -> str:
    return f"{fold(measured / expected, 2)} expected"


def _faster_than_bound(result: Timeline) -> list[str]:
    """Parts whose kernels are faster than their bound, as fused elementwise ones are."""
    parts = (part for part in result.parts if part.part != Part.ELEMENTWISE)
    below = [part.part for part in parts if 0 < part.measured_s < _MIN_SHARE_OF_BOUND * part.bound_s]
    why = "batch, lengths, precision or layout differ from the analyzed ones, or operands were cached"
    return [f"Faster than the bound: {' and '.join(below)}; {why}."] if below else []


def _elementwise_below_bounds(result: Timeline) -> list[str]:
    """Elementwise kernels faster than their operators one by one."""
    rows = result.elementwise if len(result.elementwise) > 1 else ()
    below = [
        f"{', '.join(work.operators)} ({work.measured_s / work.bound_s:.2f}x)"
        for work in rows
        if 0 < work.measured_s < _MIN_SHARE_OF_BOUND * work.bound_s
    ]
    part = next((part for part in result.parts if part.part == Part.ELEMENTWISE), None)
    if not below and part and 0 < part.measured_s < _MIN_SHARE_OF_BOUND * part.bound_s:
        below = [f"{part.title} ({part.measured_s / part.bound_s:.2f}x)"]
    if not below:
        return []
    why = "their kernels are fused, or operands were cached"
    return [f"Faster than the bound of separate operators: {'; '.join(below)}; {why}."]


def _unidentified(result: Timeline) -> list[str]:
    """Matrix products that were not identified, or identified wrongly by their times."""
    identified = result.identified
    if identified.why_not:
        return [f"Matrix products are not identified: {identified.why_not}."]
    sentences = []
    behind = [kernel.weights for kernel in identified.last if kernel.weights]
    heads = {op.weights[0].numel for _, op in result.analysis.model.graph if op.kind == "lm_head"}
    if heads and "lm_head" in identified.missing and behind and result.of_phase.devices == 1:
        name = result.analysis.model.name
        sentences.append(
            f"The recorded LM head has {max(behind):,} weights, that of {name} {max(heads):,}: another model was "
            "recorded."
        )
    elif identified.missing:
        sentences.append(f"No kernel was recorded for {', '.join(identified.missing)}.")
    if identified.rest:
        names = dict.fromkeys(_short_name(kernel.name) for kernel in identified.rest)
        took = seconds(sum(kernel.time_s for kernel in identified.rest))
        sentences.append(
            f"Matrix-product kernels that match no operator: {', '.join(list(names)[:_MAX_NAMED_KERNELS])}, {took}."
        )
    below = [
        f"{', '.join(product.operators)} ({product.measured_s / product.bound_s:.2f}x)"
        for product in identified.products
        if product.measured_s < _MIN_SHARE_OF_BOUND * product.bound_s
    ]
    if below:
        sentences.append(
            f"Below their bounds: {'; '.join(dict.fromkeys(below))}. They were misidentified, or the analyzed settings "
            "differ from the recording."
        )
    return sentences


def _without_operators(result: Timeline) -> list[str]:
    """The longest kernels of parts without an operator of the model."""
    sentences = []
    for part in result.parts:
        if part.part in (Part.MOVES, Part.OTHER) and part.measured_s > _MIN_UNMATCHED_SHARE * result.time_s:
            kernels = [kernel for kernel in result.kernels if kernel.part == part.part]
            names = ", ".join(
                f"{_short_name(kernel.name)} {seconds(kernel.measured_s)}" for kernel in kernels[:_MAX_NAMED_KERNELS]
            )
            sentences.append(f"{_UNMATCHED_TITLES[part.part]}: {names}{', ...' * (len(kernels) > _MAX_NAMED_KERNELS)}.")
    return sentences


def _averaged(result: Timeline) -> list[str]:
    mean, each = result.passes, result.passes.each_s
    excluded = f"; {counted(mean.others, 'other')}, with other kernels or cut off, excluded" if mean.others else ""
    spread = ""
    if len(each) > 1:
        spread = f", {interval(*map(float, np.quantile(each, (0.2, 0.8))))} (p20 to p80)"
    unit = "threads" if result.host else "devices"
    ranks = f" One of {result.devices} {unit} in the file." if result.devices > 1 else ""
    only = f"; the only recorded phase is {result.phase}" if sole_phase(result.recording) == result.phase else ""
    return [f"Mean of {counted(mean.passes, 'pass', 'passes')}{spread}{excluded}{only}.{ranks}"]


def basis(result: Timeline) -> str:
    """Rules by which recorded launches are classified, and what they are compared with."""
    counted_where = (
        "Operators are classified by name, with all that they call"
        if result.host
        else "Kernels are classified by name, fused ones by most of their work"
    )
    reference = "" if result.expected_s is None else " Expected: measured kernels."
    return f"{BOUNDS}.{reference} {counted_where} (`llmviewer docs timeline`)."


def _ratio_heading(result: Timeline) -> str:
    """Heading of recorded times as a multiple of expected ones, or of bounds."""
    return "x bound" if result.expected_s is None else "x expected"


def tables(result: Timeline) -> list[Table]:
    """Parts of a pass, matrix products, elementwise launches, and single kernels."""
    unknown = () if _any_expected(result) else ("expected",)
    all_tables = (_parts(result), *_products(result), *_elementwise(result), _kernels(result))
    return [table.without(*unknown) for table in all_tables]


def _parts(result: Timeline) -> Table:
    rows = [_part(result, part) for part in result.parts]
    if result.idle_s is not None:
        rows.append((
            Item(text=IDLE), DASH, time_item(result.idle_s), _share(result.idle_s, result), DASH,
            DASH if result.host_s is None else time_item(result.host_s), DASH,
        ))  # fmt: skip
    return Table(
        title=f"Parts of a pass, {seconds(result.time_s)}",
        about="",
        head=("part", "launches", "recorded", "share", ">= bound", "expected", _ratio_heading(result)),
        words=("part",),
        body=tuple(rows),
    )


def _part(result: Timeline, part: PartOfPass) -> tuple[Item, ...]:
    return (
        Item(text=part.title),
        Item(text=digits(part.launches), key=part.launches),
        time_item(part.measured_s),
        _share(part.measured_s, result),
        time_item(part.bound_s) if part.bound_s else DASH,
        time_item(part.expected_s) if part.expected_s else DASH,
        _ratio(part, result),
    )


def _share(time_s: float, result: Timeline) -> Item:
    return Item(text=f"{time_s / result.time_s:.1%}", key=time_s / result.time_s)


def _products(result: Timeline) -> list[Table]:
    several = len({product.block for product in result.products}) > 2
    rows = [
        (
            Item(text=f"{product.block}: " * several + ", ".join(product.operators)),
            Item(text=_evidence_text(product)),
            Item(text=digits(product.launches), key=product.launches),
            time_item(product.measured_s / product.launches),
            time_item(product.bound_s / product.launches),
            time_item(product.expected_s / product.launches) if product.expected_s else DASH,
            _ratio(product, result),
        )
        for product in result.products
    ]
    return [
        Table(
            title="Matrix products, one launch",
            about="Identified by the shape of their weights, the modules that called them, or their order between "
            "attention or state launches; the score counts the evidence that agrees (shape, module, equal kernels in "
            "all layers, order, a time from the bound on).",
            head=("products", "by", "launches", "recorded", ">= bound", "expected", _ratio_heading(result)),
            words=("products", "by"),
            body=tuple(rows),
        )
    ][: len(rows)]


def _evidence_text(product: ProductOfPass) -> str:
    """The strongest evidence of the kernels of a product, and how many kinds agree."""
    kinds = len(product.evidence)
    return f"{product.matched} {kinds * product.score:.2g}/{kinds}"


def _elementwise(result: Timeline) -> list[Table]:
    """Elementwise kernels, if more than one group of them is known."""
    rows = [
        (
            Item(text=", ".join(work.operators) or "others"),
            Item(text=digits(work.launches), key=work.launches),
            time_item(work.measured_s),
            time_item(work.bound_s) if work.bound_s else DASH,
            time_item(work.expected_s) if work.expected_s else DASH,
            _ratio(work, result),
        )
        for work in result.elementwise
    ]
    return [
        Table(
            title="Elementwise work",
            about="Kinds of operators that the same kernels run share a row.",
            head=("operators", "launches", "recorded", ">= bound", "expected", _ratio_heading(result)),
            words=("operators",),
            body=tuple(rows),
        )
    ][: len(rows) - 1]


def _ratio(row: PartOfPass | ProductOfPass | ElementwiseOfPass, result: Timeline) -> Item:
    """Recorded over expected time; over the bound if no expected time is known."""
    reference_s = row.bound_s if result.expected_s is None else row.expected_s
    if not reference_s or not row.measured_s:
        return DASH
    ratio = row.measured_s / reference_s
    return Item(text=f"{ratio:.2f}x" if ratio < _MAX_DECIMAL_RATIO else f"{ratio:.0f}x", key=ratio)


def _kernels(result: Timeline) -> Table:
    num_omitted = len(result.kernels) - _MAX_KERNEL_ROWS
    rest = sum(kernel.measured_s for kernel in result.kernels[_MAX_KERNEL_ROWS:])
    noun = "operator" if result.host else "kernel"
    about = (
        f"{counted(num_omitted, noun)} more: {seconds(rest)}; -o FILE.csv or .json has all." if num_omitted > 0 else ""
    )
    return Table(
        title=f"{noun.capitalize()}s of a pass",
        about=about,
        head=(noun, "part", "launches", "each", "all", "share"),
        words=(noun, "part"),
        body=tuple(
            (
                Item(text=_short_name(kernel.name)),
                Item(text=kernel.part),
                Item(text=digits(kernel.launches), key=kernel.launches),
                time_item(kernel.measured_s / kernel.launches),
                time_item(kernel.measured_s),
                _share(kernel.measured_s, result),
            )
            for kernel in result.kernels[:_MAX_KERNEL_ROWS]
        ),
    )


def _short_name(name: str) -> str:
    plain = _NAME_PREFIX.sub("", name)
    return plain if len(plain) <= _MAX_NAME_CHARS else f"{plain[: _MAX_NAME_CHARS - 3]}..."


def _cards(result: Timeline) -> list[Card]:
    others = {"bound": result.bound_s, "expected": result.expected_s, IDLE: result.idle_s}
    return [Card(label="pass", value=seconds(result.time_s), about="recorded")] + [
        Card(label=label, value=seconds(time_s), about=f"{time_s / result.time_s:.0%} of the pass")
        for label, time_s in others.items()
        if time_s is not None
    ]


def _pictures(result: Timeline) -> list[list[Picture]]:
    from .timeline_figures import part_bars
    from .timeline_lanes import lane_figure, report_script

    lanes = lane_figure(result)
    drawn = [] if lanes is None else [[picture(lanes, "lanes", script=report_script(), scrollZoom=True)]]
    return [[picture(part_bars(result), "parts")], *drawn]


def _undrawn(result: Timeline) -> list[str]:
    """A remark if the figure of launches leaves some out."""
    from .timeline_lanes import drawn_launches

    first, stop = drawn_launches(result)
    count = stop if isinstance(result.recording, KernelSums) else len(result.recording.names)
    return [f"{count - (stop - first):,} of {count:,} launches are not drawn."] if stop - first < count else []


REPORT: Final = Report[Timeline](
    name="timeline",
    title=title,
    headline=headline,
    tables=tables,
    remarks=remarks,
    basis=basis,
    cards=_cards,
    pictures=_pictures,
    undrawn=_undrawn,
)
