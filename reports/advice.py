"""The report on techniques that would help."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Final

from llmviewer.serving.advice import Advice
from llmviewer.serving.steps import Steps
from llmviewer.techniques import Requirement
from llmviewer.units import seconds, si
from llmviewer.variants.changes import TAU
from llmviewer.variants.evaluation import Objective
from llmviewer.variants.variant import Change, Variant

from .columns import WIDTH, columns
from .operator_table import rate
from .parts import Card
from .report import Report
from .serving import beyond, kernels, unknown
from .tables import Item, Table, filled, time_item

_MOST: Final = 12  # combinations in words
_LEAST: Final = 16  # columns of names beside numbers
_USUAL: Final = "Techniques have their usual parameters; how much they change the answers is not weighed."
_LEFT: Final = " Left: what bounds a decode step then."
_TOUCHES: Final = (
    "Touches: the last of these that one of them does: answers (others are written), draft (there has to be a draft "
    "model, or heads trained for this one), model (weights that were trained or converted for it); - for none of them."
)
_WANTS: Final = re.compile(r"give ([^:]*)|(\w+) must be given(: .*)")
_NAMES: Final = {
    Objective.LATENCY: "the whole answer", Objective.TTFT: "the time to first token",
    Objective.TPOT: "the time per token", Objective.THROUGHPUT: "tokens per second",
}  # fmt: skip


def basis(result: Advice) -> str:
    """The kernels and bounds that the gains are relative to."""
    setting = result.base.setting
    if not result.base.expected:
        why = unknown(Steps(setting).unknown)
        return f"A gain is that of lower bounds, which no kernel beats. {why} {_USUAL}"
    whose = setting.engine.title if setting.engine else kernels(setting)
    return f"Expected: of {whose}. Bound: if no kernel were slower than it must. {_USUAL}"


def title(result: Advice) -> str:
    setting = result.base.setting
    device, layout = setting.hardware.title, setting.layout
    on = f"{layout.devices} x {device} ({layout})" if layout.devices > 1 else device
    return f"What would help {setting.model.title} on {on}"


def headline(result: Advice) -> str:
    """The request, and its present times."""
    base, times = result.base, result.base.likely.numbers()
    using = f", with {', '.join(result.given)}" if result.given else ""
    there = base.setting.hardware.capacity
    each = " of each device" * (base.setting.layout.devices > 1)
    large = f" It does not fit: {si(float(base.memory_bytes))}B of {si(there)}B{each}; gains are over its bound."
    fits = "" if base.fits else large
    least = f" (at the bound {rate(base.bounds.numbers()['tokens_per_s'])})" if base.expected else ""
    return (
        f"{title(result)}: batch {result.batch}, prompt {result.prompt}, {result.gen} generated, "
        f"{base.setting.quantization}{using}. {_NAMES[result.wanted].capitalize()} is to be better. Without more: "
        f"first token {seconds(times['ttft_s'])}, {seconds(times['tpot_s'])} a token, "
        f"{rate(times['tokens_per_s'])} tokens/s{least}; decode steps are {base.decode_bound}-bound, "
        f"the prefill {base.prefill_bound}-bound.{fits}"
    )


def remarks(result: Advice) -> list[str]:
    sentences = []
    if result.idle:
        sentences.append(f"Would not help here: {', '.join(line.name for line in result.idle)}.")
    if result.large:
        sentences.append(f"Would not fit the memory: {', '.join(line.name for line in result.large)}.")
    lines = (*result.alone, *result.idle, *result.large)
    if any(name.startswith("speculative:") for line in lines for name in _techniques(line.changes[0])):
        sentences.append(
            f"Of a draft it is assumed that {TAU} tokens come of each pass of the model, in the middle of what was "
            "measured (arXiv:2404.14294, table 5). Better drafts gain more: --with speculative:draft=NAME,alpha=RATE."
        )
    return [*sentences, *_refused(result), *beyond(result.base.setting.model, result.prompt + result.gen)]


def _refused(result: Advice) -> Iterator[str]:
    """Techniques that were not tried: those that require a parameter, and those that do not apply, by reason."""
    wanting: list[str] = []
    alike: dict[str, list[str]] = {}
    for change, reason in result.refused:
        technique = str(next(iter(_techniques(change)), change.name)).partition(":")[0]
        why = reason.removeprefix(f"{technique}: ")
        if wants := _WANTS.match(why):
            wanting.append(f"{change.name} ({''.join(filter(None, wants.groups()))})")
        else:
            alike.setdefault(_why(result, technique, why), []).append(change.name)
    if wanting:
        yield f"Not tried, as they need a choice of yours (--with NAME:PARAMETER=VALUE): {'; '.join(wanting)}."
    if alike:
        reasons = (f"{', '.join(names)} ({why})" for why, names in alike.items())
        yield f"Not possible here: {'; '.join(reasons)}."


def _why(result: Advice, name: str, reason: str) -> str:
    """A reason without the names of technique and model."""
    used, _, cause = reason.partition(": ")
    if used in (text.partition(":")[0] for text in result.given):
        reason = f"beside {used}, as {cause.partition('; ')[0]}"
    return re.sub(rf"\b{re.escape(name)}\b", "it", reason).removeprefix(f"{result.base.setting.model.name} has ")


class Folded(Table):
    """A table whose long names, in its first column, wrap in a text."""

    def text(self, width: int = WIDTH) -> str:
        names, *others = zip(*self.lines(), strict=True)
        left = [i for i, head in enumerate(self.head[1:]) if head in self.words]
        rest = columns(list(zip(*others, strict=True)), left=left, gap=" ").splitlines()
        room = max(width - 1 - max(map(len, rest)), _LEAST)
        parts = [filled(name, room, others="  ").split("\n") for name in names]
        wide = max(len(part) for each in parts for part in each)
        lines = [filled(self.title, width)]
        for (first, *more), numbers in zip(parts, rest, strict=True):
            lines += [f"{first:<{wide}} {numbers}", *more]
        return "\n".join((*lines, self.below(width)))


def tables(result: Advice) -> list[Table]:
    known = "Expected, bound" if result.base.expected else "Bound"
    about = f"{known}: times better. Relieves: of a device, for each token; passes are those of the model.{_LEFT}"
    groups = [(needs, list(same)) for needs, same in groupby(result.alone, key=lambda line: line.requires.description)]
    alone = [
        _table(f"Alone, {needs}", result, same, ("TTFT", "TPOT"), about if same[-1] is result.alone[-1] else "")
        for needs, same in groups
    ]
    times = ("TTFT",) if result.wanted is Objective.TTFT else ("TPOT",)
    together = _table(
        "Together, each better than its parts", result, result.together[:_MOST], times, f"{_TOUCHES}{_LEFT}"
    )
    shorter = [*(table.without_constants("left", "touches") for table in alone), together.without_constants("left")]
    folded: list[Table] = [Folded(**vars(table)) for table in shorter if table.body]
    return [t if "left" in t.head else replace(t, about=t.about.removesuffix(_LEFT)) for t in folded]


def _table(name: str, result: Advice, lines: Sequence[Variant], shown: Sequence[str], about: str) -> Table:
    gains = ("expected", "bound") if result.base.expected else ("bound",)
    return Table(
        title=name,
        about=about,
        head=("technique", *gains, *shown, "touches", "relieves", "left"),
        words=("technique", "touches", "relieves", "left"),
        body=tuple(
            (
                Item(text=line.name),
                *(_gain(line.expected_gain if gain == "expected" else line.gain) for gain in gains),
                *(time_item(getattr(line.result.likely, f"{key.lower()}_s")) for key in shown),
                Item(text="-" if line.requires is Requirement.NOTHING else str(line.requires)),
                Item(text=line.relieves.replace("memory traffic", "bytes")),
                Item(text=line.result.decode_bound, bound=line.result.decode_bound),
            )
            for line in lines
        ),
    )


def _gain(times: float | None) -> Item:
    return Item(text="-", key=0.0) if times is None else Item(text=f"{times:.2f}x", key=times)


def _techniques(change: Change) -> tuple[str, ...]:
    """Techniques that a change adds."""
    return tuple(map(str, change.options.get("techniques", ())))


def _cards(result: Advice) -> list[Card]:
    best = [line for lines in (result.alone, result.together) for line in lines[:1]]
    return [
        Card(
            label="best alone" if line in result.alone else "best together",
            value=f"{line.likely_gain:.2f}x",
            about=f"{line.name}, {line.requires.description}",
        )
        for line in best
    ]  # fmt: skip


REPORT: Final = Report[Advice](
    name="advice", title=title, headline=headline, tables=tables, remarks=remarks, basis=basis, cards=_cards
)
