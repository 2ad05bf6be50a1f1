"""The report on the models that run on a device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from llmviewer.comparing.machine_fit import Fitting, MachineFit
from llmviewer.units import counted, si

from .parts import Card, Command
from .report import Report
from .tables import DASH, Item, Table, digits, number_item

_OUTPUT: Final = 128  # tokens of the request of the printed command
_MAX_NAMES: Final = 5  # models that a remark names


def title(result: MachineFit) -> str:
    """The device whose models are listed."""
    return f"Models that run on {result.hardware.title}"


def headline(result: MachineFit) -> str:
    """Device, memory, engine, and how many models run."""
    origin = " (the GPU of this machine)" if result.is_local else ""
    target = f" at {result.target:g} tokens/s or more" if result.target else ""
    by = ", chosen for such a device; --engine names another" if result.is_default_engine else ""
    count = counted(sum(1 + len(one.others) for one in result.fitting), "model")
    engine = f"{result.engine.title}{by}" if result.engine else "none, as no kernels are known on it"
    largest = "the largest that run" if result.unevaluated else "all that run"
    found = f"{count}, {largest}, each in the widest of {', '.join(result.quants)} that fits"
    if not result.fitting:
        found = f"No model runs in any of {', '.join(result.quants)}"
    slot = f" ({' '.join(_one_slot(result))})" if result.engine else ""
    return (
        f"{title(result)}{origin}: {si(result.hardware.capacity)}B{_usable(result)}, "
        f"{si(result.hardware.bandwidth())}B/s, one sequence of {result.context:,} tokens{slot}{target}. {found}. "
        f"Engine: {engine}."
    )


def _usable(result: MachineFit) -> str:
    """Memory and free memory of a row together, which is less than that of the device."""
    if not result.engine or not result.fitting:
        return ""
    most = max(one.usable_bytes for one in result.fitting)
    return f" ({result.engine.title} uses up to {si(most)}B: memory + free)"


def _one_slot(result: MachineFit) -> tuple[str, ...]:
    """Options of a server that runs one sequence."""
    return ("--max-num-seqs", "1", "--max-model-len", str(result.context)) if result.engine else ()


def tables(result: MachineFit) -> list[Table]:
    """A row for each model."""
    if not result.fitting:
        return []
    return [
        Table(
            title="Models, the largest first",
            about="tokens/s: decode of one sequence at the end of the context, expected with its 80 % interval; <=: at "
            "the bound. Context: the most that fits, up to the model's own. Same shape: models with the same numbers.",
            head=("model", "params", "active", "quant", "memory", "free", "context", "tokens/s", "<=", "same shape"),
            words=("model", "quant", "same shape"),
            body=tuple(map(_row, result.fitting)),
            spare=("same shape", "active", "free"),
        ).without_constants("same shape")
    ]


def _row(one: Fitting) -> tuple[Item, ...]:
    step, facts = one.step_s, one.facts
    if step:
        low, high = 1 / float(step.high), 1 / float(step.low)
        speed = Item(text=f"{digits(one.tokens_per_s)} ({digits(low)}-{digits(high)})", key=one.tokens_per_s)
    else:
        speed = DASH
    active = Item(text=si(facts.active_parameters), key=facts.active_parameters)
    return (
        Item(text=facts.name),
        Item(text=si(facts.parameters), key=facts.parameters),
        active if facts.active_parameters != facts.parameters else DASH,
        Item(text=one.quant),
        _bytes(one.memory_bytes),
        _bytes(one.room_bytes),
        Item(text=f"{one.max_context:,}", key=one.max_context),
        speed,
        number_item(1 / one.bound_s),
        Item(text=", ".join(one.others) or "-"),
    )


def _bytes(number: float) -> Item:
    return Item(text=f"{si(number)}B", key=number)


def remarks(result: MachineFit) -> list[str]:
    """Models that were not evaluated, do not fit, are too slow, or have shorter contexts."""
    sentences = []
    if result.unevaluated:
        count = len(result.unevaluated)
        verb = "was" if count == 1 else "were"
        sentences.append(
            f"{counted(count, 'smaller model')} {verb} not evaluated: --all lists all, --model NAME those whose names "
            "begin with NAME."
        )
    if result.too_large:
        count = len(result.too_large)
        models = f"{count} models, from " * (count > _MAX_NAMES) + _some(result.too_large)
        sentences.append(f"Does not fit in any of these precisions: {models}.{_shorter(result)}")
    if result.too_slow:
        sentences.append(f"Fits, but is slower than {result.target:g} tokens/s: {_some(result.too_slow)}.")
    if result.refused:
        reasons = dict.fromkeys(reason for _, reason in result.refused)
        sentences.append(f"Cannot run: {_some([name for name, _ in result.refused])} ({'; '.join([*reasons][:2])}).")
    if result.short:
        count = len(result.short)
        verb = "has" if count == 1 else "have"
        sentences.append(f"{counted(count, 'model')} {verb} a shorter context than {result.context:,} tokens.")
    return sentences


def _shorter(result: MachineFit) -> str:
    """Shorter contexts with which models fit."""
    fits = [f"{one.model} in {one.quant} with --context {one.tokens}" for one in result.shorter]
    return f" A shorter context fits: {_some(fits)}." if fits else ""


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return ", ".join(names[:_MAX_NAMES]) + more


def basis(result: MachineFit) -> str:
    """The numbers of the table."""
    if result.engine is None:
        return "No expected times: speeds are bounds, and memory is what is physically possible."
    return f"Expected: times of {result.engine.title}. Bound: no kernel is faster. Accuracy is not considered."


def _cards(result: MachineFit) -> list[Card]:
    return [
        Card(label=label, value=one.facts.name, about=f"{one.quant}, {digits(one.tokens_per_s)} tokens/s")
        for label, one in _notable(result).items()
    ]


def _notable(result: MachineFit) -> dict[str, Fitting]:
    if not result.fitting:
        return {}
    return {"largest": result.fitting[0], "fastest": max(result.fitting, key=lambda one: one.tokens_per_s)}


def _more(result: MachineFit) -> list[Command]:
    """The analysis of the largest model."""
    if not result.fitting:
        return []
    first = result.fitting[0]
    quant = () if first.quant == "published" else ("--quant", first.quant)
    engine = ("--engine", result.engine.name) if result.engine else ()
    output = min(_OUTPUT, result.context // 2)
    request = ("--prompt", str(result.context - output), "--gen", str(output))
    changes = [word for change in result.hardware.changes for word in ("--hardware-set", change)]
    device = (result.hardware.name, *changes)
    words = ("llmviewer", "analyze", first.facts.name, *device, *quant, *engine, *_one_slot(result), *request)
    return [Command(purpose="One of them in detail:", words=words)]


REPORT: Final = Report[MachineFit](
    name="fit", title=title, headline=headline, tables=tables, remarks=remarks, basis=basis, cards=_cards, more=_more
)
