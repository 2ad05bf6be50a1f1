"""A recorded pass beside its analysis, as text, Markdown, CSV, JSON and HTML."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePath
from statistics import fmean
from typing import Final

import numpy as np

from llmviewer.timelines.against import IDLE, PartOfPass, Recorded
from llmviewer.timelines.elementwise import ElementwiseOfPass
from llmviewer.timelines.kinds import Part, part_of_operator
from llmviewer.timelines.products import ProductOfPass
from llmviewer.units import counted, seconds

from .page_figures import Picture, picture
from .parts import Card
from .report import Report
from .tables import NOTHING, Item, Table, digits, time_item

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
_BELOW: Final = 0.97  # of its bound, from which a part is said to be below it


def title(found: Recorded) -> str:
    stage = f", stage {found.stage} of {found.of_phase.stages}" if found.stage else ""
    return f"{found.analysis.model.title} on {found.analysis.hardware.title}{stage}: {found.phase} as it was recorded"


def headline(found: Recorded) -> str:
    request, options, shown = found.analysis.request, found.analysis.inputs, found.of_phase
    length = f"context {shown.kv_len}" if found.phase == "decode" else f"{shown.q_len} tokens a prompt"
    layout = f"{options['layout']}, " if options["layout"] else ""
    return (
        f"{title(found)} in {PurePath(found.file).name}: batch {request.batch}, {length}, {layout}{options['quant']}. "
        f"A pass takes {_taken(found)}; at least {seconds(found.bound_s)}{_expect(found)}."
    )


def _expect(found: Recorded) -> str:
    if found.expected_s is None:
        return ""
    low, high = found.expected_low_s, found.expected_high_s
    sides = "" if low is None or high is None else f" ({seconds(low)} to {seconds(high)})"
    return f"; expect {seconds(found.expected_s)}{sides}"


def _taken(found: Recorded) -> str:
    if found.idle_s is None:
        return f"{seconds(found.time_s)} in kernels, of which the file has sums alone"
    return f"{seconds(found.time_s)}, in {found.idle_s / found.time_s:.0%} of which nothing runs"


def remarks(found: Recorded) -> list[str]:
    return [
        *_others(found), *_other_operands(found), *_partial(found), *_over(found), *_below(found),
        *_unidentified(found), *_without_operators(found), *_averaged(found),
    ]  # fmt: skip


def _others(found: Recorded) -> list[str]:
    """A remark where the engine named passes of another batch or length than the analysis has."""
    asked = found.analysis.request
    named = [step.decodes if found.phase == "decode" else step.prefills for step in found.passes.steps]
    if not named:
        return []
    number = fmean(each.number for each in named)
    tokens = [each.seen if found.phase == "decode" else each.new for each in named]
    known = [count for count in tokens if count is not None]
    length = sum(known) / sum(each.number for each in named) if known and len(known) == len(named) else None
    given = asked.kv_len if found.phase == "decode" else asked.prompt
    option = "--kv-len" if found.phase == "decode" else "--prompt"
    told = []
    if round(number) != asked.batch:
        told.append(f"{number:.4g} sequences (--batch {number:.0f}; the analysis has {asked.batch})")
    if length is not None and given is not None and abs(length - given) > max(1.0, _LENGTHS * length):
        told.append(f"{length:,.0f} tokens each ({option} {length:.0f}; the analysis has {given:,})")
    return [f"The engine named these passes as of {' of '.join(told)}."] if told else []


def _other_operands(found: Recorded) -> list[str]:
    """Where shapes were recorded, and are not those of what was asked for."""
    rows, shown = found.passes.rows, found.of_phase
    tokens, towers = shown.batch * shown.q_len, found.analysis.request.images
    types = {_TYPES.get(of.dtype, of.dtype) for of in found.passes.operands}
    asked = {op.operand_dtype for op in shown.operators if part_of_operator(op) is Part.PRODUCTS}
    told = []
    if rows and rows != tokens and not towers:
        wanted = counted(tokens, "token")
        told.append(f"Most matrix products have {counted(rows, 'row')}; a pass as asked has {wanted}.")
    if types and not types & asked:
        names = (" or ".join(sorted(names)) for names in (types, asked))
        told.append("Matrix products are of {}; asked was {} (--quant).".format(*names))
    return told


def _partial(found: Recorded) -> list[str]:
    """Where a pass has too few launches for the model."""
    if not 0 < found.mixing < found.layers:
        return []
    few = f"Passes have {found.mixing:.3g} launches that mix tokens, and {found.analysis.model.name} {found.layers}"
    return [f"{few} layers that do: they are parts of passes (--passes says how many there are), or another model's."]


def _over(found: Recorded) -> list[str]:
    """Where a pass takes longer than is expected, most first."""
    over = [
        (part.measured_s - part.expected_s, f"{part.part} {_times(part.measured_s, part.expected_s)}")
        for part in found.parts
        if part.expected_s and part.measured_s > (part.expected_high_s or part.expected_s)
    ]
    if found.idle_s is not None:
        over.append((found.idle_s - (found.host_s or 0.0), f"{IDLE}, as {_late(found)}"))
    told = [
        f"{text}, {seconds(more)} more" for more, text in sorted(over, reverse=True) if more > _BESIDE * found.time_s
    ]
    than = "has to be" if found.expected_s is None else "expected"
    return [f"Slower than {than}: {'; '.join(told)}."] if told else []


def _late(found: Recorded) -> str:
    if found.stage:
        return "it waits for the other stages, or the host is late"
    return "Python and the dispatcher take it" if found.host else "the host, or what it waits for, is late"


def _times(measured: float, expected: float) -> str:
    return f"{measured / expected:.2g} times what is expected"


def _below(found: Recorded) -> list[str]:
    """Where kernels are faster than can be; elementwise ones are, where they are fused."""
    parts = (part for part in found.parts if part.part != Part.ELEMENTWISE)
    below = [part.part for part in parts if 0 < part.measured_s < _BELOW * part.bound_s]
    why = "batch, lengths, precision or layout were others than those given, or operands stood in a cache"
    return [f"Faster than the bound: {' and '.join(below)}; {why}."] if below else []


def _unidentified(found: Recorded) -> list[str]:
    """Matrix products that were not identified, or whose time shows that they were identified wrongly."""
    identified = found.identified
    if identified.why_not:
        return [f"Matrix products are not listed one by one: {identified.why_not}."]
    told = []
    behind = [kernel.weights for kernel in identified.last if kernel.weights]
    heads = {op.weights[0].numel for _, op in found.analysis.model.graph if op.kind == "lm_head"}
    if heads and "lm_head" in identified.missing and behind and found.of_phase.devices == 1:
        name = found.analysis.model.name
        told.append(
            f"A product of {max(behind):,} weights was recorded in place of the head of {name}, which has "
            f"{max(heads):,}: it was another model."
        )
    elif identified.missing:
        told.append(f"No kernel was recorded of {', '.join(identified.missing)}: the pass ran without.")
    if identified.rest:
        names = dict.fromkeys(_short(kernel.name) for kernel in identified.rest)
        took = seconds(sum(kernel.time_s for kernel in identified.rest))
        told.append(f"Of no product of the model: {', '.join(list(names)[:_FEW])}, {took}.")
    below = [
        f"{', '.join(product.operators)} ({product.measured_s / product.bound_s:.2f}x)"
        for product in identified.products
        if product.measured_s < _BELOW * product.bound_s
    ]
    if below:
        told.append(
            f"Below their bounds: {'; '.join(dict.fromkeys(below))}. These kernels were identified wrongly, or the "
            "settings of the analysis are not those of the recording."
        )
    return told


def _without_operators(found: Recorded) -> list[str]:
    """The kernels of most time in the parts that no operator of the model has."""
    told = []
    for part in found.parts:
        if part.part in (Part.MOVES, Part.OTHER) and part.measured_s > _BESIDE_OPERATORS * found.time_s:
            own = [kernel for kernel in found.kernels if kernel.part == part.part]
            names = ", ".join(f"{_short(kernel.name)} {seconds(kernel.measured_s)}" for kernel in own[:_FEW])
            told.append(f"{_NAMED[part.part]}: {names}{', ...' * (len(own) > _FEW)}.")
    return told


def _averaged(found: Recorded) -> list[str]:
    mean, each = found.passes, found.passes.each_s
    left = f"; {counted(mean.others, 'other')}, of other kernels or cut off, left out" if mean.others else ""
    spread = ""
    if len(each) > 1:
        spread = f", {seconds(float(np.quantile(each, 0.2)))} to {seconds(float(np.quantile(each, 0.8)))} (p20 to p80)"
    what = "threads" if found.host else "devices"
    ranks = f" One of the {found.devices} {what} of the file." if found.devices > 1 else ""
    return [f"Mean of {counted(mean.passes, 'pass', 'passes')}{spread}{left}.{ranks}"]


def said(found: Recorded) -> str:
    counted_where = (
        "Operators are told apart by their names, and count with all that they call"
        if found.host
        else "Kernels are told apart by their names, and fused ones count where most of their work is"
    )
    of = "at least, as nothing is expected here" if found.expected_s is None else "expect"
    return (
        "at least: what no kernel beats; expect: what measured kernels take; of it: recorded as a multiple of "
        f"{of}. {counted_where} (`llmviewer docs timeline`)."
    )


def tables(found: Recorded) -> list[Table]:
    return [_parts(found), *_products(found), *_elementwise(found), _kernels(found)]


def _parts(found: Recorded) -> Table:
    rows = [_part(found, part) for part in found.parts]
    if found.idle_s is not None:
        rows.append((
            Item(text=IDLE), NOTHING, time_item(found.idle_s), _share(found.idle_s, found), NOTHING,
            NOTHING if found.host_s is None else time_item(found.host_s), NOTHING,
        ))  # fmt: skip
    return Table(
        title=f"Parts of a pass, {seconds(found.time_s)}",
        about="",
        head=("part", "launches", "recorded", "share", "at least", "expect", "of it"),
        words=("part",),
        body=tuple(rows),
    )


def _part(found: Recorded, part: PartOfPass) -> tuple[Item, ...]:
    return (
        Item(text=part.title),
        Item(text=digits(part.launches), key=part.launches),
        time_item(part.measured_s),
        _share(part.measured_s, found),
        time_item(part.bound_s) if part.bound_s else NOTHING,
        time_item(part.expected_s) if part.expected_s else NOTHING,
        _ratio(part, found),
    )


def _share(taken: float, found: Recorded) -> Item:
    return Item(text=f"{taken / found.time_s:.1%}", key=taken / found.time_s)


def _products(found: Recorded) -> list[Table]:
    several = len({product.block for product in found.products}) > 2
    rows = [
        (
            Item(text=f"{product.block}: " * several + ", ".join(product.operators)),
            Item(text=product.matched),
            Item(text=digits(product.launches), key=product.launches),
            time_item(product.measured_s / product.launches),
            time_item(product.bound_s / product.launches),
            time_item(product.expected_s / product.launches) if product.expected_s else NOTHING,
            _ratio(product, found),
        )
        for product in found.products
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


def _elementwise(found: Recorded) -> list[Table]:
    """Where kernels can be told apart."""
    rows = [
        (
            Item(text=", ".join(work.operators) or "others"),
            Item(text=digits(work.launches), key=work.launches),
            time_item(work.measured_s),
            time_item(work.bound_s) if work.bound_s else NOTHING,
            time_item(work.expected_s) if work.expected_s else NOTHING,
            _ratio(work, found),
        )
        for work in found.elementwise
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


def _ratio(row: PartOfPass | ProductOfPass | ElementwiseOfPass, found: Recorded) -> Item:
    """Of what is expected, or of the bound where nothing is expected of the pass."""
    of = row.bound_s if found.expected_s is None else row.expected_s
    if not of or not row.measured_s:
        return NOTHING
    ratio = row.measured_s / of
    return Item(text=f"{ratio:.2f}x" if ratio < _MANY else f"{ratio:.0f}x", key=ratio)


def _kernels(found: Recorded) -> Table:
    more = len(found.kernels) - _KERNELS
    rest = sum(kernel.measured_s for kernel in found.kernels[_KERNELS:])
    what = "operator" if found.host else "kernel"
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
                _share(kernel.measured_s, found),
            )
            for kernel in found.kernels[:_KERNELS]
        ),
    )


def _short(name: str) -> str:
    plain = _PLAIN.sub("", name)
    return plain if len(plain) <= _NAME else f"{plain[: _NAME - 3]}..."


def _cards(found: Recorded) -> list[Card]:
    others = {"at least": found.bound_s, "expected": found.expected_s, IDLE: found.idle_s}
    return [Card(label="a pass", value=seconds(found.time_s), about="recorded")] + [
        Card(label=label, value=seconds(taken), about=f"{taken / found.time_s:.0%} of it")
        for label, taken in others.items()
        if taken is not None
    ]


def _pictures(found: Recorded) -> list[list[Picture]]:
    from .timeline_figures import part_bars

    return [[picture(part_bars(found), "parts")]]


REPORT: Final = Report[Recorded](
    name="timeline",
    title=title,
    headline=headline,
    tables=tables,
    remarks=remarks,
    said=said,
    cards=_cards,
    pictures=_pictures,
)
