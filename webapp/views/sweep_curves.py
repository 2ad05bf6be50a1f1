"""Curves over batch size or prompt length: times, memory, bounds, and crossings between settings."""

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

from ..errors import error_line
from ..results import DeviceResult
from ..state import State

PRECISIONS: Final = ("W16A16", "W8A16", "W4A16", "W2A16", "W1A16")  # of figures 7 and 8 of arXiv:2402.16363
DEFAULT_MAX_CONTEXT: Final = 1 << 17  # for models without a maximum context
_BATCHES: Final = (1, 1024)
_MIN_PROMPT: Final = 16  # [tokens]
_POINTS, _EXPECTED_POINTS = 97, 17  # of bounds, and of expected times, which take longer
_POINTS_PER_STEP: Final = 64  # evaluated together in each step of a search

Array = npt.NDArray[Any]


@frozen(kw_only=True, eq=False)
class SweepCurve:
    """A setting over x, which is batch sizes or prompt lengths. Times are lower bounds. [s], [B]

    Decode steps are the first ones after the prompt; over batch sizes, at the chosen context if there is one.
    """

    name: str
    setting: Setting
    state: State
    x: Array

    def workload(self, phase: str, x: Num) -> Workload:
        """Workload of one pass on one device."""
        share = self.setting.layout.micro_batch_size(self._batch(x))
        read = {"prompt": self._prompt(x), "images": self.state.images}
        if phase == "prefill":
            return self.setting.prefill(Workload.prefill(batch=share, **read))
        return self.setting.step(Workload.decode(batch=share, kv_len=self.context(x), **read))

    def time_s(self, phase: str, x: Num) -> Array:
        """Bound of the TTFT, or of a decode step. [s]"""
        pass_s = self.setting.time_s(phase, self.workload(phase, x), self._batch(x))
        return np.broadcast_to(pass_s, np.shape(x))

    def expected_s(self, phase: str, x: Array) -> Array | None:
        """Expected times; None if only bounds are known. [s]"""
        expected_pass = self.setting.expected_pass(phase, self.workload(phase, x))
        if not expected_pass:
            return None
        estimate = self.setting.expected(phase, expected_pass, self._batch(x))
        return np.asarray(np.broadcast_to(estimate.expected, np.shape(x)))

    def bounds(self, phase: str, x: Array) -> list[str]:
        """Bound with the largest share of the time of a pass, at each x."""
        times = time_by_bound(self.setting.plan_of(phase), self.workload(phase, x))
        names = list(times)
        stacked = np.stack([np.broadcast_to(time, np.shape(x)) for time in times.values()])
        return [names[place] for place in np.argmax(stacked, axis=0)]

    def memory(self, x: Num) -> Array:
        """Weights, KV cache and live activations after the last token. [B]"""
        total_bytes = self.setting.footprint.total_bytes(
            batch=self._batch(x), prompt=self._prompt(x), gen=self._generated(x), images=self.state.images
        )
        return np.broadcast_to(total_bytes, np.shape(x))

    @cached_property
    def expected_x(self) -> Array:
        """Points at which expected times are evaluated."""
        chosen: Array = self.x[np.unique(np.linspace(0, len(self.x) - 1, _EXPECTED_POINTS).round().astype(int))]
        return chosen

    def _batch(self, x: Num) -> Num:
        return x if self.state.sweep == "batch" else self.state.batch

    def _prompt(self, x: Num) -> Num:
        return self.state.prompt if self.state.sweep == "batch" else x

    def context(self, x: Num) -> Num:
        """Tokens attended to in the decode step."""
        fixed_context = (self.state.kv_len or 0) if self.state.sweep == "batch" else 0
        return fixed_context or self._prompt(x) + 1

    def _generated(self, x: Num) -> Num:
        longest = np.maximum(self.state.gen, self.context(x) - self._prompt(x))
        return longest if self.setting.model.generates else 0


def time_by_bound(plan: Plan, pass_: Workload) -> dict[str, Num]:
    """Time of a pass by bound. [s]"""
    times: dict[str, Num] = {"memory": 0.0, "compute": 0.0, "link": 0.0}
    values = plan.values(pass_)
    for row in plan.operators:
        busy = {resource: form(values) for resource, form in row.busy_s.items()}
        longest = np.max(np.stack(np.broadcast_arrays(*busy.values())), axis=0)
        is_bound: Num = np.zeros(np.shape(longest), dtype=bool)
        for resource, time_s in busy.items():  # the first of equal ones, as in an estimate
            is_longest = np.equal(time_s, longest) & np.logical_not(is_bound)
            is_bound = np.logical_or(is_bound, is_longest)
            times[resource.bound] = times[resource.bound] + row.block.repeat * np.where(is_longest, longest, 0.0)
    times["link"] = times["link"] + plan.exposed_s(values)
    return times


def sweep_curves(results: Sequence[DeviceResult], state: State) -> tuple[list[SweepCurve], tuple[str, ...]]:
    """A curve per device, or per precision on the first device; and the errors of impossible precisions."""
    first = results[0]
    problems: list[str] = []
    named: dict[str, Setting] = {one.name: one.setting for one in results}
    if state.curves == "precisions":
        named = {}
        for quant in state.quants or PRECISIONS:
            try:
                setting = first.setting.having(quant=quant)
                setting.plan_of("decode")
                setting.plan_of("prefill")
            except InputError as error:
                problems.append(f"{quant}: {error_line(error)}")
            else:
                named[quant] = setting
    x = _sample_points(first.setting, state)
    return [SweepCurve(name=name, setting=one, state=state, x=x) for name, one in named.items()], tuple(problems)


def _sample_points(setting: Setting, state: State) -> Array:
    """Points at which curves are computed, including the current setting."""
    if state.sweep == "batch":
        low, high, now = *_BATCHES, state.batch
    else:
        low = max(_MIN_PROMPT, state.images * setting.model.image_tokens)
        high, now = max(setting.model.max_context or DEFAULT_MAX_CONTEXT, low + 1), state.prompt
    powers = [2.0**i for i in range(18) if low <= 2**i <= high]
    return np.unique(np.concatenate([np.geomspace(low, high, _POINTS).round(), powers, [float(now)]]))


@lru_cache(maxsize=64)
def bound_changes(line: SweepCurve, phase: str) -> list[tuple[float, float, str]]:
    """(x, time, text) where the bound of a pass changes, exact to one sequence or token."""
    bounds = line.bounds(phase, line.x)
    changes = []
    for i in range(len(bounds) - 1):
        if bounds[i] != bounds[i + 1]:
            before, after = bounds[i], bounds[i + 1]

            def changed(xs: Array, before: str = before) -> Sequence[bool]:
                return [one != before for one in line.bounds(phase, xs)]

            x = _first_after_change(line.x[i], line.x[i + 1], changed)
            y = float(line.time_s(phase, np.array([x]))[0])
            changes.append((x, y, f"{line.name}: from {before}- to {after}-bound"))
    return changes


def curve_crossings(curves: Sequence[SweepCurve], phase: str) -> list[tuple[float, float, str]]:
    """(x, time, text) where one setting becomes faster than another."""
    crossing_points = []
    for a, b in combinations(curves, 2):
        times = a.time_s(phase, a.x), b.time_s(phase, b.x)
        for i in crossings(*times):
            slow = times[0][i] > times[1][i]  # whether a is slower before the crossing

            def changed(xs: Array, a: SweepCurve = a, b: SweepCurve = b, slow: bool = slow) -> Sequence[bool]:
                left, right = a.time_s(phase, xs), b.time_s(phase, xs)
                return list(left < right) if slow else list(left > right)

            x = _first_after_change(a.x[i], a.x[i + 1], changed)
            faster, other = (a, b) if slow else (b, a)
            crossing_points.append(
                (x, float(a.time_s(phase, np.array([x]))[0]), f"{faster.name} becomes faster than {other.name}")
            )
    return crossing_points


def _first_after_change(low: float, high: float, changed: Callable[[Array], Sequence[bool]]) -> float:
    """Smallest whole number in (low, high] at which `changed` is true, as it is at `high`."""
    while high - low > 1:
        candidates = np.unique(np.round(np.linspace(low, high, _POINTS_PER_STEP)))
        place = next((i for i, now in enumerate(changed(candidates)) if now and i), len(candidates) - 1)
        low, high = candidates[place - 1], candidates[place]
    return float(high)
