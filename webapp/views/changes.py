"""Changes to a setting, one at a time: precision, attention, batch, devices and techniques, with their gains."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from llmviewer.errors import InputError
from llmviewer.records import frozen
from llmviewer.reports.phrases import between
from llmviewer.setting import changes_passes
from llmviewer.units import counted, fold, seconds, si
from llmviewer.variants.changes import flash_attention, fullest_batch, further_techniques, more_devices, precisions
from llmviewer.variants.evaluation import Evaluation, Objective
from llmviewer.variants.variant import MIN_GAIN, MIN_OFFERED_GAIN, Change, Variant

from ..cpu_limit import CpuLimitError
from ..errors import error_line
from ..results import DeviceResult, evaluation_of
from ..state import State
from ..words import LOWER_BOUND_SIGN

_DEGREES: Final = (2, 8)
_CPU_LIMIT_REACHED: Final = "CPU-time limit of the request; choose fewer devices, or try again"


@frozen(kw_only=True)
class PassVariant(Variant):
    """A variant whose gain is that of one pass, as the sentence and the figures show it.

    pass_gains  factors by which the pass gets faster, per sequence, at the bound and expected; None if that is unknown
    """

    phase: str
    pass_gains: tuple[float, float | None]

    @property
    def gain(self) -> float:
        return self.pass_gains[0]

    @property
    def expected_gain(self) -> float | None:
        return self.pass_gains[1]


class CandidateChange(NamedTuple):
    """A change and the state with it. `name` is the value of the changed control."""

    name: str
    change: Change
    state: State

    @property
    def about(self) -> str:
        return self.change.about


class CandidateGains(NamedTuple):
    """A change and its variant on each device where it is possible, by device name."""

    candidate: CandidateChange
    variants: Mapping[str, Variant]

    @property
    def is_worthwhile(self) -> bool:
        """Whether it helps on at least one device."""
        return any(is_worthwhile(one) for one in self.variants.values())

    @property
    def summary(self) -> str:
        """Gains on all devices, such as "1.9x to 3.1x as fast, expected 1.2x to 1.8x, fits on 7 of 8"."""
        each = list(self.variants.values())
        gains = [one.gain for one in each]
        expected = [gain for one in each if (gain := one.expected_gain)]
        return ", ".join((
            f"{_range_text(gains)} {'tokens/s' if self.candidate.change.batch else 'as fast'}",
            *([f"expected {_range_text(expected)}"] if expected else []),
            f"fits on {sum(one.fits for one in each)} of {len(each)}",
        ))  # fmt: skip

    @property
    def largest_gain(self) -> float:
        """Largest gain on any device: the expected one if known."""
        return max(one.likely_gain for one in self.variants.values())


def _range_text(values: Sequence[float]) -> str:
    low, high = fold(min(values)), fold(max(values))
    return low if low == high else f"{low} to {high}"


def ranked_changes(
    results: Sequence[DeviceResult], state: State, *, with_techniques: bool
) -> tuple[list[CandidateGains], list[str]]:
    """Changes by their largest gain, and the reasons why others are not possible, one line each.

    with_techniques  whether to try every technique as well
    """
    state = replace(state, measured="")  # measurements are of the current setting only
    variants: dict[CandidateChange, dict[str, Variant]] = {}
    impossible: dict[tuple[str, str], list[str]] = {}
    for result in results:
        candidates_to_try = [
            *candidates(result, state),
            *(technique_candidates(result, state) if with_techniques else ()),
        ]
        possible_variants, impossible_candidates = evaluated(result, state, candidates_to_try)
        for candidate, variant in possible_variants:
            variants.setdefault(candidate, {})[result.name] = variant
        for candidate, reason in impossible_candidates:
            impossible.setdefault((candidate.name, reason), []).append(result.name)
    untried_count = sum(len(devices) for (_, reason), devices in impossible.items() if reason == _CPU_LIMIT_REACHED)
    lines = [f"{counted(untried_count, 'change')} not tried: {_CPU_LIMIT_REACHED}"] * bool(untried_count)
    lines += [
        f"{name}: {reason}" if len(devices) == len(results) else f"{name} on {' and '.join(devices)}: {reason}"
        for (name, reason), devices in impossible.items()
        if reason != _CPU_LIMIT_REACHED
    ]
    return sorted((CandidateGains(*one) for one in variants.items()), key=lambda one: -one.largest_gain), lines


def _variant(change: Change, base: Evaluation, result: Evaluation, phase: str) -> Variant:
    """The variant by the pass of a phase; by TPOT or TTFT where techniques make passes differ in what they yield.

    Raises InputError if the change is impossible.
    """
    if any(changes_passes(one.setting.techniques) for one in (base, result)):
        objective = Objective.TPOT if phase == "decode" and base.gen > 1 else Objective.TTFT
        _ = result.bounds, result.intervals  # raise what makes it impossible
        return Variant(changes=(change,), base=base, result=result, objective=objective)
    plain = Variant(changes=(change,), base=base, result=result)
    gains = plain.pass_gain(phase), plain.expected_pass_gain(phase)
    return PassVariant(changes=(change,), base=base, result=result, phase=phase, pass_gains=gains)


def candidates(result: DeviceResult, state: State) -> Iterator[CandidateChange]:
    """Changes of precision, attention, batch and number of devices."""
    setting = result.setting
    for change in (*precisions(setting), *flash_attention(setting)):
        yield _candidate(change, result, state)
    for change in fullest_batch(state.batch, result.analysis.memory.max_batch):
        yield _candidate(change, result, state)
    if state.layout.devices == 1:
        for change in more_devices(_DEGREES):
            yield _candidate(change, result, state)


def technique_candidates(result: DeviceResult, state: State) -> Iterator[CandidateChange]:
    """Every technique that is not in use, with default parameters."""
    for change in further_techniques([one.name for one in result.setting.techniques]):
        yield _candidate(change, result, state)


def _candidate(change: Change, result: DeviceResult, state: State) -> CandidateChange:
    """A change with the state that has it."""
    options = change.merged(result.setting)
    name = options.get("quant") or (f"{options['tp']} devices" if "tp" in options else change.name)
    next_state = replace(
        state, batch=change.batch or state.batch, quant=options.get("quant", state.quant),
        attention=options.get("attention", state.attention), tp=options.get("tp", state.tp),
        techniques=tuple(map(str, options.get("techniques", state.techniques))),
    )  # fmt: skip
    return CandidateChange(name, change, next_state)


def evaluated(
    result: DeviceResult, state: State, candidates_to_try: Sequence[CandidateChange]
) -> tuple[list[tuple[CandidateChange, Variant]], list[tuple[CandidateChange, str]]]:
    """Variants of the possible candidates, the largest gain first, and the reasons why others are not possible."""
    variants: list[tuple[CandidateChange, Variant]] = []
    impossible: list[tuple[CandidateChange, str]] = []
    phase = result.phase_name(state.phase)
    for place, candidate in enumerate(candidates_to_try):
        one_device = replace(candidate.state, on=(result.name,))
        try:
            variant = _variant(candidate.change, result.evaluation, evaluation_of(one_device), phase)
        except CpuLimitError:
            impossible += [(one, _CPU_LIMIT_REACHED) for one in candidates_to_try[place:]]
            break
        except InputError as error:
            impossible.append((candidate, error_line(error)))
        else:
            variants.append((candidate, variant))
    return sorted(variants, key=lambda one: -one[1].likely_gain), impossible


def is_worthwhile(variant: Variant) -> bool:
    """Whether a variant is faster, by its expected gain if known, or makes the request fit."""
    return variant.likely_gain >= MIN_OFFERED_GAIN or variant.mends


def memory_verdict(variant: Variant) -> str:
    """Verdict on the memory with the change."""
    return "then fits" if variant.mends else "fits" if variant.fits else "does not fit"


def gain_text(variant: Variant) -> str:
    """Gain at the bound, such as "3.7x faster" and "5.6x tokens/s"."""
    gain = variant.gain
    if gain >= MIN_GAIN:
        return f"{fold(gain)} {'tokens/s' if variant.changes[0].batch else 'faster'}"
    return "no faster" if gain > 1 / MIN_GAIN else f"{fold(1 / gain)} slower"


def time_text(variant: Variant) -> str:
    """Bound and expected time of the pass, or of the objective, such as "decode step >= 13.1 ms, expected 20.1 ms"."""
    result, objective = variant.result, variant.objective
    generates = result.setting.model.generates
    if isinstance(variant, PassVariant):
        name = {"decode": "decode step", "prefill": "TTFT" if generates else "one pass"}[variant.phase]
        bound_s, expected = float(result.pass_s(variant.phase)), result.expected_pass_s(variant.phase)
    else:
        name = "TPOT" if objective is Objective.TPOT else "TTFT" if generates else "one pass"
        bound_s = result.bounds.numbers()[f"{objective}_s"]
        expected = result.expected_tpot if objective is Objective.TPOT else result.expected_ttft
    bound = f"{name} {LOWER_BOUND_SIGN} {seconds(bound_s)}"
    interval = between(*expected.numbers()) if expected else ""
    return f"{bound}, expected {interval}" if interval else bound


def memory_text(variant: Variant) -> str:
    """Memory with the change, and the verdict."""
    result: Evaluation = variant.result
    each = " per device" if result.setting.layout.devices > 1 else ""
    size = f"{si(float(result.memory_bytes))}B{each}"
    if not variant.fits:
        return f"does not fit, needs {size}"
    max_batch = result.memory.max_batch
    return f"{memory_verdict(variant)}, {size}" + (f", batch up to {max_batch:,}" if max_batch else "")
