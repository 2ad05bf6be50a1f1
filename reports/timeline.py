"""The report on a recorded pass beside its analysis."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePath
from statistics import fmean
from typing import Final

import numpy as np

from llmviewer.timelines.against import Timeline
from llmviewer.timelines.elementwise import ElementwiseOfPass
from llmviewer.timelines.kinds import IDLE, Part, PartOfPass, part_of_operator
from llmviewer.timelines.products import ProductOfPass
from llmviewer.units import counted, fold, seconds

from .page_figures import Picture, picture
from .parts import Card
from .report import Report
from .tables import DASH, Item, Table, digits, time_item

_KERNELS: Final = 15  # in words
_NAME: Final = 33  # characters of a kernel's name
_PLAIN: Final = re.compile(r"^(?:void |std::enable_if<.*?>::type )+")
_TYPES: Final = {"float": "fp32", "c10::BFloat16": "bf16", "c10::Half": "fp16"}  # as torch names them
_BESIDE: Final = 0.05  # of a pass, below which nothing is worth a word
_MANY: Final = 100  # times, of which no fraction is told
_BESIDE_OPERATORS: Final = 0.01  # of a pass, from which kernels without an operator are named
_FEW: Final = 3  # kernels named in a remark
_NAMED: Final[Mapping[str, str]] = {Part.MOVES: "Data is moved by", Part.OTHER: "Kernels of no known part"}
_LENGTHS: Final = 0.02  # difference of lengths that is not worth a word
_BELOW: Final = 0.97  # share of its bound below which a part is faster than possible


def title(result: Timeline) -> str:
    stage = f", stage {result.stage} of {result.of_phase.stages}" if result.stage else ""
    return (
        f"{result.analysis.model.title} on {result.analysis.hardware.title}{stage}: {result.phase} as it was recorded"
    )


def headline(result: Timeline) -> str:
    request, options, shown = result.analysis.request, result.analysis.inputs, result.of_phase
    length = f"context {shown.kv_len}" if result.phase == "decode" else f"{shown.q_len} tokens a prompt"
    layout = f"{options['layout']}, " if options["layout"] else ""
    return (
        f"{title(result)} in {PurePath(result.file).name}: batch {request.batch}, {length}, {layout}"
        f"{options['quant']}. A pass takes {_taken(result)}; at least {seconds(result.bound_s)}{_expect(result)}."
    )


def _expect(result: Timeline) -> str:
    if result.expected_s is None:
        return ""
    low, high = result.expected_low_s, result.expected_high_s
    sides = "" if low is None or high is None else f" ({seconds(low)} to {seconds(high)})"
    return f"; expect {seconds(result.expected_s)}{sides}"


def _taken(result: Timeline) -> str:
    if result.idle_s is None:
        return f"{seconds(result.time_s)} in kernels, of which the file has sums alone"
    return f"{seconds(result.time_s)}, in {result.idle_s / result.time_s:.0%} of which nothing runs"


def remarks(result: Timeline) -> list[str]:
    return [
        *_others(result), *_other_operands(result), *_partial(result), *_over(result), *_next(result), *_below(result),
        *_unidentified(result), *_without_operators(result), *_averaged(result),
    ]  # fmt: skip


def _others(result: Timeline) -> list[str]:
    """A remark if the engine recorded passes of another batch or length than the analysis."""
    asked = result.analysis.request
    named = [step.decodes if result.phase == "decode" else step.prefills for step in result.passes.steps]
    if not named:
        return []
    number = fmean(each.number for each in named)
    tokens = [each.seen if result.phase == "decode" else each.new for each in named]
    known = [count for count in tokens if count is not None]
    length = sum(known) / sum(each.number for each in named) if known and len(known) == len(named) else None
    given = asked.kv_len if result.phase == "decode" else asked.prompt
    option = "--kv-len" if result.phase == "decode" else "--prompt"
    told = []
    if round(number) != asked.batch:
        told.append(f"{number:.4g} sequences (--batch {number:.0f}; the analysis has {asked.batch})")
    if length is not None and given is not None and abs(length - given) > max(1.0, _LENGTHS * length):
        told.append(f"{length:,.0f} tokens each ({option} {length:.0f}; the analysis has {given:,})")
    return [f"The engine named these passes as of {' of '.join(told)}."] if told else []


def _other_operands(result: Timeline) -> list[str]:
    """A remark if the recorded shapes are not those of the analysis."""
    rows, shown = result.passes.rows, result.of_phase
    tokens, towers = shown.batch * shown.q_len, result.analysis.request.images
    types = {_TYPES.get(of.dtype, of.dtype) for of in result.passes.operands}
    asked = {op.operand_dtype for op in shown.operators if part_of_operator(op) is Part.PRODUCTS}
    told = []
    if rows and rows != tokens and not towers:
        wanted = counted(tokens, "token")
        told.append(f"Most matrix products have {counted(rows, 'row')}; a pass as asked has {wanted}.")
    if types and not types & asked:
        names = (" or ".join(sorted(names)) for names in (types, asked))
        told.append("Matrix products are of {}; asked was {} (--quant).".format(*names))
    return told


def _partial(result: Timeline) -> list[str]:
    """A remark if a pass has too few launches for the model."""
    if not 0 < result.mixing < result.layers:
        return []
    few = f"Passes have {result.mixing:.3g} launches that mix tokens, and {result.analysis.model.name} {result.layers}"
    return [f"{few} layers that do: they are parts of passes (--passes says how many there are), or another model's."]


def _over(result: Timeline) -> list[str]:
    """Parts of a pass that take longer than expected, the longest first."""
    over = [
        (part.measured_s - part.expected_s, f"{part.part} {_times(part.measured_s, part.expected_s)}")
        for part in result.parts
        if part.expected_s and part.measured_s > (part.expected_high_s or part.expected_s)
    ]
    if result.idle_s is not None:
        over.append((result.idle_s - (result.host_s or 0.0), f"{IDLE}, as {_late(result)}"))
    told = [
        f"{text}, {seconds(more)} more" for more, text in sorted(over, reverse=True) if more > _BESIDE * result.time_s
    ]
    than = "has to be" if result.expected_s is None else "expected"
    return [f"Slower than {than}: {'; '.join(told)}."] if told else []


def _next(result: Timeline) -> list[str]:
    """Remedies of the largest gaps, with the gain of each."""
    of = "bound" if result.expected_s is None else "expected time"
    return [
        f"{number}. Up to {fold(step.speed_up)} faster: {step.remedy}; {step.part}: {seconds(step.gap_s)} beyond the "
        f"{of}."
        for number, step in enumerate(result.next_steps, 1)
    ]


def _late(result: Timeline) -> str:
    if result.stage:
        return "it waits for the other stages, or the host is late"
    return "Python and the dispatcher take it" if result.host else "the host, or what it waits for, is late"


def _times(measured: float, expected: float) -> str:
    return f"{measured / expected:.2g} times what is expected"


def _below(result: Timeline) -> list[str]:
    """Parts whose kernels are faster than their bound, as fused elementwise ones are."""
    parts = (part for part in result.parts if part.part != Part.ELEMENTWISE)
    below = [part.part for part in parts if 0 < part.measured_s < _BELOW * part.bound_s]
    why = "batch, lengths, precision or layout were others than those given, or operands stood in a cache"
    return [f"Faster than the bound: {' and '.join(below)}; {why}."] if below else []


def _unidentified(result: Timeline) -> list[str]:
    """Matrix products that were not identified, or identified wrongly by their times."""
    identified = result.identified
    if identified.why_not:
        return [f"Matrix products are not listed one by one: {identified.why_not}."]
    sentences = []
    behind = [kernel.weights for kernel in identified.last if kernel.weights]
    heads = {op.weights[0].numel for _, op in result.analysis.model.graph if op.kind == "lm_head"}
    if heads and "lm_head" in identified.missing and behind and result.of_phase.devices == 1:
        name = result.analysis.model.name
        sentences.append(
            f"A product of {max(behind):,} weights was recorded in place of the head of {name}, which has "
            f"{max(heads):,}: it was another model."
        )
    elif identified.missing:
        sentences.append(f"No kernel was recorded of {', '.join(identified.missing)}: the pass ran without.")
    if identified.rest:
        names = dict.fromkeys(_short(kernel.name) for kernel in identified.rest)
        took = seconds(sum(kernel.time_s for kernel in identified.rest))
        sentences.append(f"Of no product of the model: {', '.join(list(names)[:_FEW])}, {took}.")
    below = [
        f"{', '.join(product.operators)} ({product.measured_s / product.bound_s:.2f}x)"
        for product in identified.products
        if product.measured_s < _BELOW * product.bound_s
    ]
    if below:
        sentences.append(
            f"Below their bounds: {'; '.join(dict.fromkeys(below))}. These kernels were identified wrongly, or the "
            "settings of the analysis are not those of the recording."
        )
    return sentences


def _without_operators(result: Timeline) -> list[str]:
    """The longest kernels of parts without an operator of the model."""
    told = []
    for part in result.parts:
        if part.part in (Part.MOVES, Part.OTHER) and part.measured_s > _BESIDE_OPERATORS * result.time_s:
            own = [kernel for kernel in result.kernels if kernel.part == part.part]
            names = ", ".join(f"{_short(kernel.name)} {seconds(kernel.measured_s)}" for kernel in own[:_FEW])
            told.append(f"{_NAMED[part.part]}: {names}{', ...' * (len(own) > _FEW)}.")
    return told


def _averaged(result: Timeline) -> list[str]:
    mean, each = result.passes, result.passes.each_s
    left = f"; {counted(mean.others, 'other')}, of other kernels or cut off, left out" if mean.others else ""
    spread = ""
    if len(each) > 1:
        spread = f", {seconds(float(np.quantile(each, 0.2)))} to {seconds(float(np.quantile(each, 0.8)))} (p20 to p80)"
    what = "threads" if result.host else "devices"
    ranks = f" One of the {result.devices} {what} of the file." if result.devices > 1 else ""
    return [f"Mean of {counted(mean.passes, 'pass', 'passes')}{spread}{left}.{ranks}"]


def basis(result: Timeline) -> str:
    counted_where = (
        "Operators are told apart by their names, and count with all that they call"
        if result.host
        else "Kernels are told apart by their names, and fused ones count where most of their work is"
    )
    of = "at least, as nothing is expected here" if result.expected_s is None else "expect"
    return (
        "at least: what no kernel beats; expect: what measured kernels take; of it: recorded as a multiple of "
        f"{of}. {counted_where} (`llmviewer docs timeline`)."
    )


def tables(result: Timeline) -> list[Table]:
    return [_parts(result), *_products(result), *_elementwise(result), _kernels(result)]


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
        head=("part", "launches", "recorded", "share", "at least", "expect", "of it"),
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


def _share(taken: float, result: Timeline) -> Item:
    return Item(text=f"{taken / result.time_s:.1%}", key=taken / result.time_s)


def _products(result: Timeline) -> list[Table]:
    several = len({product.block for product in result.products}) > 2
    rows = [
        (
            Item(text=f"{product.block}: " * several + ", ".join(product.operators)),
            Item(text=product.matched),
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
            title="Matrix products, each",
            about="Identified by the shape of their weights, or by their order between launches that mix tokens.",
            head=("products", "by", "launches", "recorded", "at least", "expect", "of it"),
            words=("products", "by"),
            body=tuple(rows),
        )
    ][: len(rows)]


def _elementwise(result: Timeline) -> list[Table]:
    """Elementwise kernels, if they can be told from each other."""
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
            about="Kinds of operators that the same kernels do stand together.",
            head=("operators", "launches", "recorded", "at least", "expect", "of it"),
            words=("operators",),
            body=tuple(rows),
        )
    ][: len(rows) - 1]


def _ratio(row: PartOfPass | ProductOfPass | ElementwiseOfPass, result: Timeline) -> Item:
    """Timeline over expected time; over the bound if no expected time is known."""
    of = row.bound_s if result.expected_s is None else row.expected_s
    if not of or not row.measured_s:
        return DASH
    ratio = row.measured_s / of
    return Item(text=f"{ratio:.2f}x" if ratio < _MANY else f"{ratio:.0f}x", key=ratio)


def _kernels(result: Timeline) -> Table:
    more = len(result.kernels) - _KERNELS
    rest = sum(kernel.measured_s for kernel in result.kernels[_KERNELS:])
    what = "operator" if result.host else "kernel"
    about = f"{counted(more, what)} more: {seconds(rest)}; -o FILE.csv or .json has all." if more > 0 else ""
    return Table(
        title=f"{what.capitalize()}s of a pass",
        about=about,
        head=(what, "part", "launches", "each", "all", "share"),
        words=(what, "part"),
        body=tuple(
            (
                Item(text=_short(kernel.name)),
                Item(text=kernel.part),
                Item(text=digits(kernel.launches), key=kernel.launches),
                time_item(kernel.measured_s / kernel.launches),
                time_item(kernel.measured_s),
                _share(kernel.measured_s, result),
            )
            for kernel in result.kernels[:_KERNELS]
        ),
    )


def _short(name: str) -> str:
    plain = _PLAIN.sub("", name)
    return plain if len(plain) <= _NAME else f"{plain[: _NAME - 3]}..."


def _cards(result: Timeline) -> list[Card]:
    others = {"at least": result.bound_s, "expected": result.expected_s, IDLE: result.idle_s}
    return [Card(label="a pass", value=seconds(result.time_s), about="recorded")] + [
        Card(label=label, value=seconds(taken), about=f"{taken / result.time_s:.0%} of it")
        for label, taken in others.items()
        if taken is not None
    ]


def _pictures(result: Timeline) -> list[list[Picture]]:
    from .timeline_figures import part_bars

    return [[picture(part_bars(result), "parts")]]


REPORT: Final = Report[Timeline](
    name="timeline",
    title=title,
    headline=headline,
    tables=tables,
    remarks=remarks,
    basis=basis,
    cards=_cards,
    pictures=_pictures,
)
