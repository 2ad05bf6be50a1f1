"""Changes to an answer, one step at a time: precision, attention, batch, devices and techniques, with their gains."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from llmviewer.reports.phrases import between
from llmviewer.units import counted, fold, seconds, si
from llmviewer.variants.changes import flash_attention, fullest_batch, further_techniques, more_devices, precisions
from llmviewer.variants.evaluation import Evaluation, Objective
from llmviewer.variants.variant import EQUAL, WORTH, Change, Variant

from ..answers import Answer, answers, why_not
from ..state import State
from ..work import TooMuchWorkError, check_work

_DEGREES: Final = (2, 8)
_NO_TIME: Final = "one request takes no more of the server's time; choose fewer devices, or try again"


class Offer(NamedTuple):
    """A change and the state with it. `name` is that of the value in its control."""

    name: str
    change: Change
    state: State

    @property
    def about(self) -> str:
        return self.change.about


class Step(NamedTuple):
    """An offer, and its variant on each device where it is possible, by name of the device."""

    offer: Offer
    variants: Mapping[str, Variant]

    @property
    def helps(self) -> bool:
        """Whether it helps on one of them."""
        return any(helps(one) for one in self.variants.values())

    @property
    def said(self) -> str:
        """The gains on all of them, such as "1.9x to 3.1x as fast, expect 1.2x to 1.8x, fits 7 of 8"."""
        each = list(self.variants.values())
        gains = [one.gain for one in each]
        expected = [gain for one in each if (gain := one.expected_gain)]
        return ", ".join((
            f"{_span(gains)} {'tokens/s' if self.offer.change.batch else 'as fast'}",
            *([f"expect {_span(expected)}"] if expected else []),
            f"fits {sum(one.fits for one in each)} of {len(each)}",
        ))  # fmt: skip

    @property
    def most(self) -> float:
        """The largest gain, as expected if that is known."""
        return max(one.likely_gain for one in self.variants.values())


def _span(values: Sequence[float]) -> str:
    low, high = fold(min(values)), fold(max(values))
    return low if low == high else f"{low} to {high}"


def steps(found: Sequence[Answer], state: State, *, every: bool) -> tuple[list[Step], list[str]]:
    """Steps that would change the answers, the largest gain first; and why others are not possible, one line each.

    every  whether techniques are among them
    """
    state = replace(state, measured="")  # changed settings were not measured
    variants: dict[Offer, dict[str, Variant]] = {}
    refused: dict[tuple[str, str], list[str]] = {}
    for answer in found:
        tried = [*offers(answer, state), *(further(answer, state) if every else ())]
        possible, others = evaluated(answer, state, tried)
        for offer, variant in possible:
            variants.setdefault(offer, {})[answer.name] = variant
        for offer, why in others:
            refused.setdefault((offer.name, why), []).append(answer.name)
    untried = sum(len(on) for (_, why), on in refused.items() if why == _NO_TIME)
    lines = [f"{counted(untried, 'step')} not tried: {_NO_TIME}"] * bool(untried)
    lines += [
        f"{name}: {why}" if len(on) == len(found) else f"{name} on {' and '.join(on)}: {why}"
        for (name, why), on in refused.items()
        if why != _NO_TIME
    ]
    return sorted((Step(*one) for one in variants.items()), key=lambda one: -one.most), lines


def objective(answer: Answer, state: State) -> Objective:
    """The time that counts in the phase shown."""
    decode = state.phase == "decode" and answer.evaluation.gen > 1
    return Objective.TPOT if decode else Objective.TTFT


def offers(answer: Answer, state: State) -> Iterator[Offer]:
    """Steps in precision, attention, batch and devices."""
    setting = answer.setting
    for change in (*precisions(setting), *flash_attention(setting)):
        yield _offer(change, answer, state)
    for change in fullest_batch(state.batch, answer.analysis.memory.max_batch):
        yield _offer(change, answer, state)
    if state.layout.devices == 1:
        for change in more_devices(_DEGREES):
            yield _offer(change, answer, state)


def further(answer: Answer, state: State) -> Iterator[Offer]:
    """Every technique with its default parameters that is not in use."""
    for change in further_techniques([one.name for one in answer.setting.techniques]):
        yield _offer(change, answer, state)


def _offer(change: Change, answer: Answer, state: State) -> Offer:
    """The change with the state in which it is made."""
    options = change.merged(answer.setting)
    name = options.get("quant") or (f"{options['tp']} devices" if "tp" in options else change.name)
    then = replace(
        state, batch=change.batch or state.batch, quant=options.get("quant", state.quant),
        attention=options.get("attention", state.attention), tp=options.get("tp", state.tp),
        techniques=tuple(map(str, options.get("techniques", state.techniques))),
    )  # fmt: skip
    return Offer(name, change, then)


def evaluated(
    answer: Answer, state: State, tried: Sequence[Offer]
) -> tuple[list[tuple[Offer, Variant]], list[tuple[Offer, str]]]:
    """The variant of each offer, the largest gain first; and why others are not possible."""
    found: list[tuple[Offer, Variant]] = []
    refused: list[tuple[Offer, str]] = []
    aim = objective(answer, state)
    for place, offer in enumerate(tried):
        alone = replace(offer.state, on=(answer.name,))
        try:
            check_work()
        except TooMuchWorkError:
            refused += [(one, _NO_TIME) for one in tried[place:]]
            break
        if problem := why_not(alone):
            refused.append((offer, problem))
        else:
            (changed,) = answers(alone)
            variant = Variant(changes=(offer.change,), base=answer.evaluation, result=changed.evaluation, objective=aim)
            found.append((offer, variant))
    return sorted(found, key=lambda one: -one[1].likely_gain), refused


def helps(variant: Variant) -> bool:
    """Whether a variant is worth a line: it is faster, as expected if that is known, or makes the request fit."""
    return variant.likely_gain >= WORTH or variant.mends


def verdict(variant: Variant) -> str:
    """Whether it fits, in a word or two."""
    return "then fits" if variant.mends else "fits" if variant.fits else "does not fit"


def words(variant: Variant) -> str:
    """The gain, such as "3.7x faster" and "5.6x tokens/s"."""
    gain = variant.gain
    if gain >= EQUAL:
        return f"{fold(gain)} {'tokens/s' if variant.changes[0].batch else 'faster'}"
    return "no faster" if gain > 1 / EQUAL else f"{fold(1 / gain)} slower"


def time(variant: Variant) -> str:
    """The time that counts in the phase shown, at the bound and as expected."""
    result, aim = variant.result, variant.objective
    what = " per token" if aim is Objective.TPOT else " to the first token"
    what = what if result.setting.model.generates else " in all"
    bound = f"{seconds(result.bounds.numbers()[f'{aim}_s'])}{what}"
    expected = result.expected_tpot if aim is Objective.TPOT else result.expected_ttft
    interval = between(*expected.numbers()) if expected else ""
    return f"{bound}; expect {interval}" if interval else bound


def memory(variant: Variant) -> str:
    """The memory with the change, and the verdict."""
    result: Evaluation = variant.result
    each = " on each" if result.setting.layout.devices > 1 else ""
    size = f"{si(float(result.memory_bytes))}B{each}"
    if not variant.fits:
        return f"needs {size}, does not fit"
    most = result.memory.max_batch
    return f"{verdict(variant)}, {size}" + (f", batch up to {most:,}" if most else "")
