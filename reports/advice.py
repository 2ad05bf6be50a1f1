"""The report on techniques that speed a setting up."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Final

from llmviewer.analyzing.notes import server_notes
from llmviewer.serving.advice import Advice, assumptions
from llmviewer.serving.steps import Steps
from llmviewer.techniques import Requirement
from llmviewer.units import seconds, si
from llmviewer.variants.changes import TAU
from llmviewer.variants.evaluation import Objective
from llmviewer.variants.variant import Change, Variant

from .columns import WIDTH, columns
from .launching import server_commands
from .operator_table import rate
from .parts import Card, Command
from .report import Report
from .serving import beyond, kernels, unknown
from .tables import Item, Table, filled, time_item

_MAX_ROWS: Final = {True: 12, False: 6}  # rows of combinations, by whether research was asked for
_MIN_NAME_WIDTH: Final = 16  # characters of the column of names
_DEFAULTS: Final = "Techniques have their default parameters; their effect on output quality is not considered."
_SUBJECTS: Final = {True: "Techniques", False: "Changes"}  # by whether research was asked for
_LEFT_NOTE: Final = " Left: the bound of a decode step then."
_REQUIRES_NOTE: Final = (
    "Requires: answers (changed outputs), draft (a draft model or trained heads), model (retrained or converted "
    "weights); -: nothing."
)
_MISSING_PARAMETER: Final = re.compile(r"give ([^:]*)|(\w+) must be given(: .*)")
_NAMES: Final = {
    Objective.LATENCY: "E2E latency", Objective.TTFT: "TTFT", Objective.TPOT: "TPOT",
    Objective.THROUGHPUT: "throughput",
}  # fmt: skip


def basis(result: Advice) -> str:
    """The kernels and bounds that the gains are relative to."""
    setting = result.base.setting
    if not result.base.expected:
        why = unknown(Steps(setting).unknown)
        return f"Gains compare roofline lower bounds. {why} {_DEFAULTS}"
    library = setting.engine.title if setting.engine else kernels(setting)
    return f"Expected: times of {library}. Bound: roofline lower bounds. {_DEFAULTS}"


def title(result: Advice) -> str:
    """Model, device and layout whose techniques are ranked."""
    setting = result.base.setting
    device, layout = setting.hardware.title, setting.layout
    devices = f"{layout.devices} x {device} ({layout})" if layout.devices > 1 else device
    return f"{_SUBJECTS[result.research]} that speed up {setting.model.title} on {devices}"


def headline(result: Advice) -> str:
    """The request, and its present times."""
    base, times = result.base, result.base.likely.numbers()
    in_use = f", with {', '.join(result.techniques)}" if result.techniques else ""
    capacity = base.capacity_bytes
    each = " of each device" * (base.setting.layout.devices > 1)
    memory = f"{si(float(base.memory_bytes))}B of {si(capacity)}B{each}"
    fits = "" if base.fits else f" Does not fit: needs {memory}; gains compare with its times as if it did."
    at_bound = f" (at the bound {rate(base.bounds.numbers()['tokens_per_s'])})" if base.expected else ""
    return (
        f"{title(result)}: batch {result.batch}, prompt {result.prompt}, {result.gen} generated, "
        f"{base.setting.quantization}{in_use}.{fits} Objective: {_NAMES[result.wanted]}. Now: "
        f"TTFT {seconds(times['ttft_s'])}, TPOT {seconds(times['tpot_s'])}, "
        f"{rate(times['tokens_per_s'])} tokens/s{at_bound}; decode is {base.decode_bound}-bound, "
        f"prefill {base.prefill_bound}-bound."
    )


def remarks(result: Advice) -> list[str]:
    """Assumptions, changes without room or beyond the targets, and of research those without gain or refused."""
    prompt_tokens = result.batch * result.prompt
    limits = server_notes(result.base.setting, result.batch, prompt_tokens=prompt_tokens)
    sentences = [*(f"{line[0].upper()}{line[1:]}." for line in limits), *_assumed(result)]
    if result.no_gain and result.research:
        sentences.append(f"No gain: {', '.join(line.name for line in result.no_gain)}.")
    if result.too_large:
        sentences.append(f"Does not fit: {', '.join(line.name for line in result.too_large)}.")
    if result.too_slow:
        sentences.append(f"Misses the targets: {', '.join(line.name for line in result.too_slow)}.")
    lines = (*result.alone, *(result.no_gain if result.research else ()))
    if any(name.startswith("speculative:") for line in lines for name in _techniques(line.changes[0])):
        sentences.append(
            f"Drafts: assumes {TAU} tokens per pass of the model, the middle of measured ones (arXiv:2404.14294, table "
            "5). With the acceptance rate of your draft model: --with speculative:draft=NAME,alpha=RATE."
        )
    if result.research:
        sentences += _refused(result)
    else:
        sentences.append("--research also ranks techniques and precisions that no engine runs today.")
    return [*sentences, *beyond(result.base.setting.model, result.prompt + result.gen)]


def _assumed(result: Advice) -> Iterator[str]:
    """Assumptions about the requests."""
    assumed = {name: text for line in result.alone for name, text in assumptions(line).items()}
    if assumed:
        yield f"Depends on the requests: {'; '.join(f'{name} assumes {text}' for name, text in assumed.items())}."


def _server(result: Advice) -> list[Command]:
    """The launch command with the best changes that need nothing and assume nothing of the requests."""
    if not (result.base.fits or result.alone):
        return []
    return server_commands(
        result.recommended_setting, sequences=result.recommended_batch, tokens=result.prompt + result.gen,
        changes=result.recommended.name if result.recommended else "",
    )  # fmt: skip


def _refused(result: Advice) -> Iterator[str]:
    """Techniques that were not tried: those that require a parameter, and those that do not apply, by reason."""
    wanting: list[str] = []
    alike: dict[str, list[str]] = {}
    for change, reason in result.refused:
        technique = str(next(iter(_techniques(change)), change.name)).partition(":")[0]
        why = reason.removeprefix(f"{technique}: ")
        if wants := _MISSING_PARAMETER.match(why):
            wanting.append(f"{change.name} ({''.join(filter(None, wants.groups()))})")
        else:
            alike.setdefault(_why(result, technique, why), []).append(change.name)
    if wanting:
        yield f"Not tried, because they need a parameter (--with NAME:PARAMETER=VALUE): {'; '.join(wanting)}."
    if alike:
        reasons = (f"{', '.join(names)} ({why})" for why, names in alike.items())
        yield f"Not possible here: {'; '.join(reasons)}."


def _why(result: Advice, name: str, reason: str) -> str:
    """A reason without the names of technique and model."""
    used, _, cause = reason.partition(": ")
    if used in (text.partition(":")[0] for text in result.techniques):
        reason = f"with {used}: {cause.partition('; ')[0]}"
    return re.sub(rf"\b{re.escape(name)}\b", "it", reason).removeprefix(f"{result.base.setting.model.name} has ")


class Folded(Table):
    """A table whose long names, in its first column, wrap in a text."""

    def text(self, width: int = WIDTH, table_width: int = sys.maxsize) -> str:  # noqa: ARG002 (names wrap at `width`)
        names, *others = zip(*self.lines(), strict=True)
        left = [i for i, head in enumerate(self.head[1:]) if head in self.words]
        rest = columns(list(zip(*others, strict=True)), left=left, gap=" ").splitlines()
        name_width = max(width - 1 - max(map(len, rest)), _MIN_NAME_WIDTH)
        parts = [filled(name, name_width, others="  ").split("\n") for name in names]
        wide = max(len(part) for each in parts for part in each)
        lines = [filled(self.title, width)]
        for (first, *further_lines), numbers in zip(parts, rest, strict=True):
            lines += [f"{first:<{wide}} {numbers}", *further_lines]
        return "\n".join((*lines, self.below(width)))


def tables(result: Advice) -> list[Table]:
    """Techniques alone, grouped by what they require, then combinations; each with its speed-up."""
    columns_shown = "Expected, bound" if result.base.expected else "Bound"
    about = f"{columns_shown}: speed-up. Relieves: work per token that falls most; passes: of the model.{_LEFT_NOTE}"
    groups = [(needs, list(same)) for needs, same in groupby(result.alone, key=lambda line: line.requires.description)]
    single_tables = [
        _table(f"Single, {needs}", result, same, ("TTFT", "TPOT"), about if same[-1] is result.alone[-1] else "")
        for needs, same in groups
    ]
    times = ("TTFT",) if result.wanted is Objective.TTFT else ("TPOT",)
    combined = _table(
        "Combined, each better than its parts",
        result,
        result.together[: _MAX_ROWS[result.research]],
        times,
        f"{_REQUIRES_NOTE}{_LEFT_NOTE}",
    )
    shorter = [
        *(table.without_constants("left", "requires") for table in single_tables),
        combined.without_constants("left"),
    ]
    folded: list[Table] = [Folded(**vars(table)) for table in shorter if table.body]
    return [t if "left" in t.head else replace(t, about=t.about.removesuffix(_LEFT_NOTE)) for t in folded]


def _table(name: str, result: Advice, lines: Sequence[Variant], time_columns: Sequence[str], about: str) -> Table:
    gains = ("expected", "bound") if result.base.expected else ("bound",)
    return Table(
        title=name,
        about=about,
        head=("technique", *gains, *time_columns, "requires", "relieves", "left"),
        words=("technique", "requires", "relieves", "left"),
        body=tuple(
            (
                Item(text=line.name),
                *(_gain(line.expected_gain if gain == "expected" else line.gain) for gain in gains),
                *(time_item(getattr(line.result.likely, f"{key.lower()}_s")) for key in time_columns),
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
            label="best single" if line in result.alone else "best combined",
            value=f"{line.likely_gain:.2f}x",
            about=f"{line.name}, {line.requires.description}",
        )
        for line in best
    ]  # fmt: skip


REPORT: Final = Report[Advice](
    name="advice",
    title=title,
    headline=headline,
    tables=tables,
    remarks=remarks,
    basis=basis,
    cards=_cards,
    more=_server,
)
