"""Curves along the batch or the length, for devices or precisions, where they cross, and maps of what bounds a pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import combinations
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from llmviewer.errors import InputError
from llmviewer.forms import Num
from llmviewer.reports import figures
from llmviewer.reports.contrasts import share_map, tokens
from llmviewer.reports.curves import Curve, crossings, curves
from llmviewer.reports.shown import Shown, shown
from llmviewer.roofline import Plan
from llmviewer.setting import Setting
from llmviewer.units import seconds, si
from llmviewer.workload import Workload

from ..answers import Answer
from ..state import State

PRECISIONS: Final = ("W16A16", "W8A16", "W4A16", "W2A16", "W1A16")  # those of the paper's figures 7 and 8
_BATCHES: Final = (1, 1024)
_SHORTEST, _LONGEST = 16, 1 << 17  # [tokens]
_POINTS, _FEW = 97, 17  # of bounds, and of what is expected, which takes longer
_FAN: Final = 64  # points looked at together in a search
_MAPPED: Final = tuple(2**i for i in range(11))  # batches of a map
_MAPS: Final = 4  # devices that have one

Array = npt.NDArray[Any]


@dataclass(frozen=True, kw_only=True, eq=False)
class Line:
    """One setting, along x = batches or tokens of the prompt. Times are lower bounds. [s], [B]

    Decode steps are the first after the prompt, or at the context asked for where the batch runs.
    """

    name: str
    setting: Setting
    state: State
    x: Array

    def pass_(self, phase: str, x: Num) -> Workload:
        """What one device runs at a time."""
        share = self.setting.layout.share(self._batch(x))
        read = {"prompt": self._prompt(x), "images": self.state.images}
        if phase == "prefill":
            return self.setting.prefill(Workload.prefill(batch=share, **read))
        return self.setting.step(Workload.decode(batch=share, kv_len=self._context(x), **read))

    def time_s(self, phase: str, x: Num) -> Array:
        """Time to first token, or of a decode step."""
        found = self.setting.time_s(phase, self.pass_(phase, x), self._batch(x))
        return np.broadcast_to(found, np.shape(x))

    def expected_s(self, phase: str, x: Array) -> Array | None:
        """What to expect of real kernels; None where only bounds are known."""
        found = self.setting.expected_pass(phase, self.pass_(phase, x))
        if not found:
            return None
        whole = self.setting.expected(phase, found, self._batch(x))
        return np.asarray(np.broadcast_to(whole.expected, np.shape(x)))

    def bounds(self, phase: str, x: Array) -> list[str]:
        """What most of the time of a pass is bound by."""
        times = waits(self.setting.plan_of(phase), self.pass_(phase, x))
        names = list(times)
        stacked = np.stack([np.broadcast_to(time, np.shape(x)) for time in times.values()])
        return [names[place] for place in np.argmax(stacked, axis=0)]

    def memory(self, x: Num) -> Array:
        """Weights, cache and live activations, at the end of the answer."""
        needed = self.setting.footprint.total_bytes(
            batch=self._batch(x), prompt=self._prompt(x), gen=self._written(x), images=self.state.images
        )
        return np.broadcast_to(needed, np.shape(x))

    @cached_property
    def few(self) -> Array:
        """The places where what is expected is worked out."""
        chosen: Array = self.x[np.unique(np.linspace(0, len(self.x) - 1, _FEW).round().astype(int))]
        return chosen

    def _batch(self, x: Num) -> Num:
        return x if self.state.sweep == "batch" else self.state.batch

    def _prompt(self, x: Num) -> Num:
        return self.state.prompt if self.state.sweep == "batch" else x

    def _context(self, x: Num) -> Num:
        asked = self.state.context if self.state.sweep == "batch" else 0
        return asked or self._prompt(x) + 1

    def _written(self, x: Num) -> Num:
        longest = np.maximum(self.state.gen, self._context(x) - self._prompt(x))
        return longest if self.setting.model.generates else 0


def waits(plan: Plan, pass_: Workload) -> dict[str, Num]:
    """Time of a pass by what bounds it. [s]"""
    found: dict[str, Num] = {"memory": 0.0, "compute": 0.0, "link": 0.0}
    values = plan.values(pass_)
    for row in plan.operators:
        busy = {resource: form(values) for resource, form in row.busy_s.items()}
        longest = np.max(np.stack(np.broadcast_arrays(*busy.values())), axis=0)
        taken: Num = np.zeros(np.shape(longest), dtype=bool)
        for resource, time_s in busy.items():  # the first of those that are equal, as an estimate has it
            own = np.equal(time_s, longest) & np.logical_not(taken)
            taken = np.logical_or(taken, own)
            found[resource.bound] = found[resource.bound] + row.block.repeat * np.where(own, longest, 0.0)
    return found


def lines(found: Sequence[Answer], state: State) -> tuple[list[Line], tuple[str, ...]]:
    """A line for each device, or for each precision on the first of them; and which of those cannot be had, and why."""
    first = found[0]
    problems: list[str] = []
    named: dict[str, Setting] = {one.name: one.setting for one in found}
    if state.curves == "precisions":
        named = {}
        for quant in state.quants or PRECISIONS:
            try:
                setting = first.setting.having(quant=quant)
                setting.plan_of("decode")
                setting.plan_of("prefill")
            except InputError as error:
                problems.append(f"{quant}: {error}")
            else:
                named[quant] = setting
    x = _places(first.setting, state)
    return [Line(name=name, setting=one, state=state, x=x) for name, one in named.items()], tuple(problems)


def _places(setting: Setting, state: State) -> Array:
    """Where curves are worked out, the present setting's place among them."""
    if state.sweep == "batch":
        low, high, now = *_BATCHES, state.batch
    else:
        low = max(_SHORTEST, state.images * setting.model.image_tokens)
        high, now = max(setting.model.max_context or _LONGEST, low + 1), state.prompt
    powers = [2.0**i for i in range(18) if low <= 2**i <= high]
    return np.unique(np.concatenate([np.geomspace(low, high, _POINTS).round(), powers, [float(now)]]))


def pictures(own: Sequence[Line], state: State) -> dict[str, Shown]:
    """Decode time, tokens/s, time to first token and memory, by the ids of their figures."""
    if not own:
        return {}
    along, at = _along(state)
    where = _where(own[0], state)
    named: dict[str, Any] = {"axis": along, "at": float(at), "place": str if state.sweep == "batch" else tokens}
    found: dict[str, Shown] = {}
    if own[0].setting.model.generates:
        steps = {line.name: _curve(line, "decode") for line in own}
        found["sweep-decode"] = shown(curves(
            "Time of a decode step", f"at least; {where}", steps, unit="time", text=seconds, **named,
            meets=_meets(own, "decode"),
        ))  # fmt: skip
        if not state.techniques:  # with which a pass may yield more tokens, or fewer
            rates = {line.name: _rate(line, steps[line.name]) for line in own}
            found["sweep-rate"] = shown(curves(
                "Tokens a second", f"at most, in decode; {where}", rates, unit="tokens/s",
                text=lambda y: si(y).strip(), **named,
            ))  # fmt: skip
    found["sweep-prefill"] = shown(curves(
        "Time to first token", f"at least; {where}", {line.name: _curve(line, "prefill") for line in own},
        unit="time", text=seconds, **named, meets=_meets(own, "prefill"),
    ))  # fmt: skip
    found["sweep-memory"] = shown(curves(
        "Memory", f"with KV cache and activations; {where}", _sizes(own), unit="memory", text=lambda y: f"{si(y)}B",
        limits={line.setting.hardware.name: line.setting.hardware.capacity for line in own}, **named,
    ))  # fmt: skip
    return found


def _sizes(own: Sequence[Line]) -> dict[str, Curve]:
    """What a request takes of memory, once where it is the same on all devices."""
    sizes = {line.name: Curve(x=line.x, y=line.memory(line.x)) for line in own}
    first, *others = sizes.values()
    return {"needed": first} if others and all(np.array_equal(first.y, one.y) for one in others) else sizes


def points(own: Sequence[Line]) -> list[tuple[Any, ...]]:
    """All places of the curves, in SI units: a line of heads, then one for each line and place."""
    axis = own[0].state.sweep if own else "batch"
    heads = ("of", "batch" if axis == "batch" else "prompt", "decode_step_s", "ttft_s", "total_bytes", "fits")
    rows: list[tuple[Any, ...]] = [heads]
    for line in own:
        steps = line.time_s("decode", line.x) if line.setting.model.generates else np.full(len(line.x), np.nan)
        columns = (steps, line.time_s("prefill", line.x), line.memory(line.x))
        for x, step, ttft, size in zip(line.x, *columns, strict=True):
            decode = "" if np.isnan(step) else float(step)
            rows.append((
                line.name, int(x), decode, float(ttft), float(size), bool(size <= line.setting.hardware.capacity)
            ))  # fmt: skip
    return rows


def crossing_table(own: Sequence[Line], state: State) -> list[tuple[str, ...]]:
    """Where bounds change and where curves cross: heads, then a line for each."""
    axis = "batch" if state.sweep == "batch" else "prompt"
    rows: list[tuple[str, ...]] = [(axis, "pass", "what changes")]
    for phase in _phases(own):
        name = "decode step" if phase == "decode" else "prefill"
        marks = [(x, said) for line in own for x, _, said in _turns(line, phase)]
        marks += [(x, said) for x, _, said in _meets(own, phase)]
        rows += [(f"{x:,.0f}", name, said) for x, said in sorted(marks)]
    return rows


def maps(found: Sequence[Answer], state: State) -> list[Shown]:
    """What bounds the phase over batch and length, for each of the first devices."""
    return [_map(one, state) for one in found[:_MAPS]]


def preset(found: Sequence[Answer], state: State) -> Shown:
    """A figure of "LLM Inference Unveiled" (arXiv:2402.16363), for the present model on the first device.

    Raises InputError where a precision cannot be had, and where the model has no such phase.
    """
    first = found[0]
    one, phase = first.setting, first.phase_name(state.phase)
    if state.sweep == "figure-4":
        return shown(figures.roofline(first.analysis, phase))
    if state.sweep == "figure-5":
        return shown(figures.roofline_dtypes(one.hardware))
    counted: dict[str, Any] = {"attention": str(one.attention), "accounting": str(one.accounting), "mla": str(one.mla)}
    quants = state.quants or None
    if state.sweep == "figure-6":
        return shown(figures.memory_bars(one.model, one.hardware, quants=quants, **counted))
    if state.sweep == "figure-7":
        return shown(figures.decode_time(one.model, one.hardware, quants=quants, kv_len=state.prompt, **counted))
    return shown(figures.prefill_time(one.model, one.hardware, quants=quants, batch=state.batch, **counted))


def _phases(own: Sequence[Line]) -> list[str]:
    return [] if not own else ["decode", "prefill"] if own[0].setting.model.generates else ["prefill"]


def _along(state: State) -> tuple[str, int]:
    return ("batch [sequences]", state.batch) if state.sweep == "batch" else ("prompt [tokens]", state.prompt)


def _where(line: Line, state: State) -> str:
    if state.sweep == "batch":
        return f"prompt {state.prompt}, context {line._context(0)}" if state.context else f"prompt {state.prompt}"  # noqa: SLF001
    return f"batch {state.batch}"


def _curve(line: Line, phase: str) -> Curve:
    expected = line.expected_s(phase, line.few)
    return Curve(
        x=line.x, y=line.time_s(phase, line.x), turns=_turns(line, phase),
        expected=None if expected is None else (line.few, expected),
    )  # fmt: skip


def _rate(line: Line, step: Curve) -> Curve:
    """Tokens a second of decode steps."""
    batch = line.x if line.state.sweep == "batch" else np.full(len(line.x), float(line.state.batch))
    few = None
    if step.expected:
        x, time_s = step.expected
        few = (x, (x if line.state.sweep == "batch" else line.state.batch) / time_s)
    return Curve(x=line.x, y=batch / step.y, expected=few)


@lru_cache(maxsize=64)
def _turns(line: Line, phase: str) -> list[tuple[float, float, str]]:
    """Where a pass starts to be bound by something else, to the sequence or token."""
    seen = line.bounds(phase, line.x)
    found = []
    for i in range(len(seen) - 1):
        if seen[i] != seen[i + 1]:
            before, after = seen[i], seen[i + 1]

            def changed(xs: Array, before: str = before) -> Sequence[bool]:
                return [one != before for one in line.bounds(phase, xs)]

            x = _between(line.x[i], line.x[i + 1], changed)
            y = float(line.time_s(phase, np.array([x]))[0])
            found.append((x, y, f"{line.name}: from {before}- to {after}-bound"))
    return found


def _meets(own: Sequence[Line], phase: str) -> list[tuple[float, float, str]]:
    """Where one line gets faster than another."""
    found = []
    for a, b in combinations(own, 2):
        times = a.time_s(phase, a.x), b.time_s(phase, b.x)
        for i in crossings(*times):
            slow = times[0][i] > times[1][i]  # a, before they cross

            def changed(xs: Array, a: Line = a, b: Line = b, slow: bool = slow) -> Sequence[bool]:
                left, right = a.time_s(phase, xs), b.time_s(phase, xs)
                return list(left < right) if slow else list(left > right)

            x = _between(a.x[i], a.x[i + 1], changed)
            faster, other = (a, b) if slow else (b, a)
            found.append((x, float(a.time_s(phase, np.array([x]))[0]), f"{faster.name} gets faster than {other.name}"))
    return found


def _between(low: float, high: float, changed: Callable[[Array], Sequence[bool]]) -> float:
    """The first whole number after `low`, at most `high`, where something has changed, as it has at `high`."""
    while high - low > 1:
        tried = np.unique(np.round(np.linspace(low, high, _FAN)))
        place = next((i for i, now in enumerate(changed(tried)) if now and i), len(tried) - 1)
        low, high = tried[place - 1], tried[place]
    return float(high)


def _map(one: Answer, state: State) -> Shown:
    setting, phase = one.setting, one.phase_name(state.phase)
    lengths = list(_lengths(setting, state))
    batch, length = (grid.ravel() for grid in np.meshgrid(np.asarray(_MAPPED, float), np.asarray(lengths, float)))
    share = setting.layout.share(batch)
    if phase == "prefill":
        prompt, gen = length, np.zeros(len(length))
        pass_ = setting.prefill(Workload.prefill(batch=share, prompt=length, images=state.images))
    else:
        prompt = np.minimum(state.prompt, length - 1)
        gen = length - prompt
        pass_ = setting.step(Workload.decode(batch=share, kv_len=length, prompt=prompt, images=state.images))
    times = waits(setting.plan_of(phase), pass_)
    whole = np.broadcast_to(sum(times.values(), start=0.0), batch.shape)
    shape = (len(lengths), len(_MAPPED))
    needed = setting.footprint.total_bytes(batch=batch, prompt=prompt, gen=gen, images=state.images)
    beyond = np.broadcast_to(np.greater(needed, setting.hardware.capacity), batch.shape).reshape(shape)
    figure = share_map(
        one.name, phase, batches=_MAPPED, lengths=lengths, beyond=beyond.tolist(),
        share=np.broadcast_to(times["memory"] / whole, batch.shape).reshape(shape),
        others="link or compute" if np.any(np.greater(times["link"], 0)) else "compute",
    )  # fmt: skip
    return shown(figure)._replace(title=one.name, subtitle="")  # what they share is said once, above them


def _lengths(setting: Setting, state: State) -> Iterator[int]:
    """Powers of two that the model can have; more than a prompt whose pictures or encoder need so many."""
    most = setting.model.max_context or _LONGEST
    least = max(state.images * setting.model.image_tokens, state.prompt if setting.model.encodes else 0)
    found = [n for n in (2**i for i in range(7, 18)) if least < n <= most]
    yield from found or [max(most, least + 1)]
