"""What would change the answer: settings one step from the one asked, and what each of them would buy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from llmviewer.analyzing.advice import larger_batch
from llmviewer.analyzing.analysis import Analysis
from llmviewer.precision import Format, Scheme, parse_scheme
from llmviewer.reports.phrases import between
from llmviewer.reports.techniques import describe
from llmviewer.techniques import techniques
from llmviewer.transforms.quantize import AS_IT_IS, as_typed, parse_quantization
from llmviewer.units import counted, fold, seconds, si

from ..answers import Answer, answers, why_not
from ..state import State
from ..work import TooMuchWorkError, check_work

_PRECISIONS: Final = {
    "W4A16g128": "4-bit weights in groups of 128",
    "W8A8": "8-bit weights and activations",
    "fp8": "weights and activations in fp8",
    "nvfp4": "weights and activations in nvfp4",
    "KV8": "an 8-bit KV cache",
}
_DEGREES: Final = (2, 8)
_SAME: Final = 1.005  # gains nearer to 1 are none
_WORTH: Final = 1.05  # less than that is no help
_NO_TIME: Final = "one request takes no more of the server's time; choose fewer devices, or try again"


class Offer(NamedTuple):
    """A setting one step away. `name` is what its control calls the step."""

    name: str
    about: str
    state: State


@dataclass(frozen=True, kw_only=True)
class Change:
    """What an offer would buy on a device.

    gain      tokens per second over those without it, both at the bound
    expected  likewise as expected; None where it is not known of both
    time      the time that counts in the phase, at least and as expected, in words
    memory    what becomes of memory, in words; `fits` is the verdict, `mends` says that it did not before
    """

    offer: Offer
    gain: float
    expected: float | None
    time: str
    memory: str
    fits: bool
    mends: bool
    larger: bool  # of the batch

    @property
    def helps(self) -> bool:
        """Whether it is worth a line: it makes something faster, as expected where that is known, or fit."""
        return (self.expected or self.gain) >= _WORTH or self.mends

    @property
    def verdict(self) -> str:
        """Whether it fits, in a word or two."""
        return "then fits" if self.mends else "fits" if self.fits else "does not fit"

    @property
    def words(self) -> str:
        """Such as "3.7x faster" and "5.6x tokens/s"."""
        if self.gain >= _SAME:
            return f"{fold(self.gain)} {'tokens/s' if self.larger else 'faster'}"
        return "no faster" if self.gain > 1 / _SAME else f"{fold(1 / self.gain)} slower"


class Step(NamedTuple):
    """An offer, and what it would buy on each device on which it can be had, by their names."""

    offer: Offer
    bought: Mapping[str, Change]

    @property
    def helps(self) -> bool:
        """Whether it does on one of them."""
        return any(one.helps for one in self.bought.values())

    @property
    def said(self) -> str:
        """What it buys on all of them, such as "1.9x to 3.1x as fast, expect 1.2x to 1.8x, fits 7 of 8"."""
        each = list(self.bought.values())
        gains, expected = [one.gain for one in each], [one.expected for one in each if one.expected]
        return ", ".join((
            f"{_span(gains)} {'tokens/s' if each[0].larger else 'as fast'}",
            *([f"expect {_span(expected)}"] if expected else []),
            f"fits {sum(one.fits for one in each)} of {len(each)}",
        ))  # fmt: skip

    @property
    def most(self) -> float:
        """The gain where it is largest, as expected if that is known."""
        return max(one.expected or one.gain for one in self.bought.values())


def _span(values: Sequence[float]) -> str:
    low, high = fold(min(values)), fold(max(values))
    return low if low == high else f"{low} to {high}"


def steps(found: Sequence[Answer], state: State, *, every: bool) -> tuple[list[Step], list[str]]:
    """What would change the answers, the most first; and why other steps cannot be had, in a line for each reason.

    every  whether techniques are among them
    """
    state = replace(state, measured="")  # of what changes nothing was measured
    bought: dict[Offer, dict[str, Change]] = {}
    refused: dict[tuple[str, str], list[str]] = {}
    for answer in found:
        good, others = changes(answer, state, [*offers(answer, state), *(further(state) if every else ())])
        for one in good:
            bought.setdefault(one.offer, {})[answer.name] = one
        for offer, why in others:
            refused.setdefault((offer.name, why), []).append(answer.name)
    untried = sum(len(on) for (_, why), on in refused.items() if why == _NO_TIME)
    lines = [f"{counted(untried, 'step')} not tried: {_NO_TIME}"] * bool(untried)
    lines += [
        f"{name}: {why}" if len(on) == len(found) else f"{name} on {' and '.join(on)}: {why}"
        for (name, why), on in refused.items()
        if why != _NO_TIME
    ]
    return sorted((Step(*one) for one in bought.items()), key=lambda one: -one.most), lines


def offers(answer: Answer, state: State) -> Iterator[Offer]:
    """Steps in precision, attention, batch and devices."""
    stored = parse_quantization(state.quant).scheme if state.quant else AS_IT_IS.scheme
    for text, about in _PRECISIONS.items():
        if _formats(parse_scheme(text).over(stored)) != _formats(stored):
            quant = _joined(state.quant, text)
            yield Offer(quant, about, replace(state, quant=quant))
    if answer.analysis.inputs.attention == "eager":
        yield Offer("flash attention", "scores stay on the chip", replace(state, attention="flash"))
    most = answer.analysis.memory.max_batch
    batch = larger_batch(state.batch, most)
    if batch > state.batch:
        largest = ", as many as fit" if batch == most else ""
        yield Offer(f"batch {batch}", f"more sequences share a reading of the weights{largest}",
                    replace(state, batch=batch))  # fmt: skip
    if state.layout.devices == 1:
        for degree in _DEGREES:
            yield Offer(f"{degree} devices", f"tensor parallelism of {degree}", replace(state, tp=degree))


def further(state: State) -> Iterator[Offer]:
    """Every technique with its usual parameters that is not in use."""
    taken = {text.partition(":")[0].strip() for text in state.techniques}
    for name, kind in techniques().items():
        if name not in taken and all(not one["required"] for one in describe(kind)["parameters"]):
            about = describe(kind)["summary"].replace("`", "")
            yield Offer(name, about, replace(state, techniques=(*state.techniques, name)))


def changes(answer: Answer, state: State, asked: Sequence[Offer]) -> tuple[list[Change], list[tuple[Offer, str]]]:
    """What each of `asked` would buy, the most first; and why others cannot be had."""
    found: list[Change] = []
    refused: list[tuple[Offer, str]] = []
    for place, offer in enumerate(asked):
        alone = replace(offer.state, on=(answer.name,))
        try:
            check_work()
        except TooMuchWorkError:
            refused += [(one, _NO_TIME) for one in asked[place:]]
            break
        problem = why_not(alone)
        if problem:
            refused.append((offer, problem))
        else:
            found.append(_change(offer, answer.analysis, answers(alone)[0].analysis, state.phase))
    return sorted(found, key=lambda one: -(one.expected or one.gain)), refused


def _formats(scheme: Scheme) -> tuple[Format | None, ...]:
    return scheme.weight, scheme.activation, scheme.kv_cache


def _joined(quant: str, text: str) -> str:
    """`text` with what `quant` says of parts of the model and of the cache, or of all else where `text` is of that."""
    stored, asked = parse_quantization(quant) if quant else AS_IT_IS, parse_scheme(text)
    if asked.kv_cache:
        joined = as_typed(replace(stored.scheme, kv_cache=asked.kv_cache), stored.mixture)
    else:
        joined = as_typed(replace(asked, kv_cache=stored.scheme.kv_cache))
    return ",".join((joined, *(one.text for one in stored.overrides)))


def _change(offer: Offer, now: Analysis, then: Analysis, phase: str) -> Change:
    before, after = _pace(now, phase), _pace(then, phase)
    first, second = before.expected_s, after.expected_s
    share = then.inputs.batch / now.inputs.batch
    time = f"{seconds(after.time_s)}{after.what}"
    return Change(
        offer=offer,
        gain=share * before.time_s / after.time_s,
        expected=share * first / second if first and second else None,
        time=f"{time}; expect {after.interval}" if after.interval else time,
        memory=_memory(now, then),
        fits=then.memory.fits,
        mends=then.memory.fits and not now.memory.fits,
        larger=share > 1,
    )


class _Pace(NamedTuple):
    """The time that counts in a phase. [s]"""

    what: str
    time_s: float
    expected_s: float | None
    interval: str


def _pace(analysis: Analysis, phase: str) -> _Pace:
    whole = analysis.generation
    decode = phase == "decode" and whole.tpot_s is not None
    key, what = ("tpot", " per token") if decode else ("ttft", " to the first token")
    what = what if analysis.model.generates else " in all"
    expected = (getattr(whole, f"expected_{key}{end}_s") for end in ("", "_low", "_high"))
    first, low, high = expected
    return _Pace(what, getattr(whole, f"{key}_s"), first, between(first, low, high))


def _memory(now: Analysis, then: Analysis) -> str:
    size = f"{si(then.memory.total_bytes)}B"
    each = " on each" if then.inputs.devices > 1 else ""
    if not then.memory.fits:
        return f"needs {size}{each}, does not fit"
    verdict = "fits" if now.memory.fits else "then fits"
    most = then.memory.max_batch
    return f"{verdict}, {size}{each}" + (f", batch up to {most:,}" if most else "")
