"""Settings along the batch or the length: their times, what bounds them, and where one gets faster than another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from itertools import combinations
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from llmviewer.errors import InputError
from llmviewer.forms import Num
from llmviewer.records import frozen
from llmviewer.reports.curves import crossings
from llmviewer.roofline import Plan
from llmviewer.setting import Setting
from llmviewer.workload import Workload

from ..answers import Answer
from ..state import State

PRECISIONS: Final = ("W16A16", "W8A16", "W4A16", "W2A16", "W1A16")  # those of the paper's figures 7 and 8
LONGEST: Final = 1 << 17  # of a model that does not say how many tokens it was made for
_BATCHES: Final = (1, 1024)
_SHORTEST: Final = 16  # [tokens]
_POINTS, _FEW = 97, 17  # of bounds, and of what is expected, which takes longer
_FAN: Final = 64  # points looked at together in a search

Array = npt.NDArray[Any]


@frozen(kw_only=True, eq=False)
class SweepCurve:
    """One setting, along x = batches or tokens of the prompt. Times are lower bounds. [s], [B]

    Decode steps are the first after the prompt, or at the context asked for where the batch runs.
    """

    name: str
    setting: Setting
    state: State
    x: Array

    def pass_(self, phase: str, x: Num) -> Workload:
        """Sequences on one device."""
        share = self.setting.layout.micro_batch_size(self._batch(x))
        read = {"prompt": self._prompt(x), "images": self.state.images}
        if phase == "prefill":
            return self.setting.prefill(Workload.prefill(batch=share, **read))
        return self.setting.step(Workload.decode(batch=share, kv_len=self.context(x), **read))

    def time_s(self, phase: str, x: Num) -> Array:
        """Time to first token, or of a decode step."""
        found = self.setting.time_s(phase, self.pass_(phase, x), self._batch(x))
        return np.broadcast_to(found, np.shape(x))

    def expected_s(self, phase: str, x: Array) -> Array | None:
        """Expected times; None where only bounds are known."""
        found = self.setting.expected_pass(phase, self.pass_(phase, x))
        if not found:
            return None
        whole = self.setting.expected(phase, found, self._batch(x))
        return np.asarray(np.broadcast_to(whole.expected, np.shape(x)))

    def bounds(self, phase: str, x: Array) -> list[str]:
        """Bound of most of a pass's time."""
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

    def context(self, x: Num) -> Num:
        asked = self.state.context if self.state.sweep == "batch" else 0
        return asked or self._prompt(x) + 1

    def _written(self, x: Num) -> Num:
        longest = np.maximum(self.state.gen, self.context(x) - self._prompt(x))
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
    found["link"] = found["link"] + plan.exposed_s(values)
    return found


def lines(found: Sequence[Answer], state: State) -> tuple[list[SweepCurve], tuple[str, ...]]:
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
    return [SweepCurve(name=name, setting=one, state=state, x=x) for name, one in named.items()], tuple(problems)


def _places(setting: Setting, state: State) -> Array:
    """Points at which curves are computed, including the present setting."""
    if state.sweep == "batch":
        low, high, now = *_BATCHES, state.batch
    else:
        low = max(_SHORTEST, state.images * setting.model.image_tokens)
        high, now = max(setting.model.max_context or LONGEST, low + 1), state.prompt
    powers = [2.0**i for i in range(18) if low <= 2**i <= high]
    return np.unique(np.concatenate([np.geomspace(low, high, _POINTS).round(), powers, [float(now)]]))


@lru_cache(maxsize=64)
def turns(line: SweepCurve, phase: str) -> list[tuple[float, float, str]]:
    """Points at which the bound of a pass changes, to the sequence or token."""
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


def meets(own: Sequence[SweepCurve], phase: str) -> list[tuple[float, float, str]]:
    """Points at which one line becomes faster than another."""
    found = []
    for a, b in combinations(own, 2):
        times = a.time_s(phase, a.x), b.time_s(phase, b.x)
        for i in crossings(*times):
            slow = times[0][i] > times[1][i]  # a, before they cross

            def changed(xs: Array, a: SweepCurve = a, b: SweepCurve = b, slow: bool = slow) -> Sequence[bool]:
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
