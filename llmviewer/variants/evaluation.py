"""Evaluation of a generation on a setting: bounds, expected times, memory and work, of one batch or of many at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from enum import StrEnum
from functools import cached_property, partial
from operator import add
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from ..expectation.expected import ExpectedPass, Interval
from ..expectation.kernels import Kernels, PassLaunches
from ..expectation.launches import counted
from ..forms import Num
from ..generation import decoding_s, prefill_s
from ..memory import Memory, memory
from ..parameters import MAX_SEQUENCES
from ..records import frozen
from ..request import Request
from ..roofline import Estimate, OperatorEstimate, Plan
from ..server_memory import Server, reserves_memory, server_of
from ..setting import Setting, changes_passes
from ..techniques import Run, Schedule
from ..transforms.offload import HOST
from ..workload import Workload

ZERO_INTERVAL: Final = Interval(expected=0.0, low=0.0, high=0.0)
_STEP_POINTS: Final = 8  # decode steps of a generation whose expected times are evaluated
_MAX_STEPS_AT_ONCE: Final = 1 << 18  # decode steps, of all batches, evaluated together
_MAX_FOLD: Final = 1e6  # of a pool that a batch would fill
_STEPS: Final = "steps"  # all decode steps of a generation, beside the passes "prefill" and "decode"


class Objective(StrEnum):
    """Time or rate of a generation to improve."""

    LATENCY = "latency"
    TTFT = "ttft"
    TPOT = "tpot"
    THROUGHPUT = "throughput"


@frozen(kw_only=True)
class Times:
    """Times of a generation; numbers, or arrays over batches.

    ttft_s      time to first token; time of the one pass of a model that does not generate [s]
    decoding_s  time from the first token to the last [s]
    steps       tokens of each sequence after the first
    tokens      generated tokens of all sequences; processed tokens if the model does not generate
    """

    ttft_s: Num
    decoding_s: Num
    steps: Num
    tokens: Num

    @property
    def tpot_s(self) -> Num:
        """Mean time per token after the first; nan if there is none. [s]"""
        with np.errstate(invalid="ignore"):
            return np.divide(self.decoding_s, self.steps)

    @property
    def latency_s(self) -> Num:
        return self.ttft_s + self.decoding_s

    @property
    def tokens_per_s(self) -> Num:
        return self.tokens / self.latency_s

    def rate(self, objective: Objective) -> Num:
        """The figure that an objective maximizes: the inverse of a time, or the throughput. [1/s]"""
        if objective is Objective.THROUGHPUT:
            return self.tokens_per_s
        times = {Objective.LATENCY: self.latency_s, Objective.TTFT: self.ttft_s, Objective.TPOT: self.tpot_s}
        return 1 / times[objective]

    def numbers(self) -> dict[str, Any]:
        """The times and the throughput of a single batch, by name; tpot_s is None if there is no step."""
        times = {name: float(getattr(self, name)) for name in ("ttft_s", "tpot_s", "latency_s", "tokens_per_s")}
        return {**times, "tpot_s": times["tpot_s"] if self.steps else None}


@frozen(kw_only=True)
class Evaluation:
    """A generation on a setting. Everything is computed on first use.

    batch   sequences on all devices together, or an array of such numbers
    gen     generated tokens of each sequence; 0 if the model does not generate
    kv_len  tokens that the decode step shown attends to; None if no step is shown
    given, given_bytes  lower bounds and peak memory, if they are known, the latter with the server of the engine
    """

    setting: Setting = field(repr=False)
    batch: Num
    prompt: int
    gen: int
    images: int = 0
    kv_len: int | None = None
    given: Times | None = field(default=None, repr=False)
    given_bytes: Num | None = field(default=None, repr=False)
    given_server: Server | None = field(default=None, repr=False)
    _estimates: dict[str, Estimate] = field(default_factory=dict, init=False, repr=False, compare=False)
    _launched: dict[str, PassLaunches] = field(default_factory=dict, init=False, repr=False, compare=False)
    _passes: dict[str, ExpectedPass | None] = field(default_factory=dict, init=False, repr=False, compare=False)

    @classmethod
    def of(cls, setting: Setting, request: Request) -> Self:
        """The generation of a request on a setting.

        Raises InputError if a number of the request is invalid, or impossible for the model.
        """
        numbers = request.of_model(setting.model)
        return cls(
            setting=setting, batch=numbers.batch, prompt=numbers.prompt, gen=numbers.gen or 0, images=numbers.images,
            kv_len=numbers.kv_len,
        )  # fmt: skip

    def changed(self, setting: Setting, batch: Num | None = None) -> Evaluation:
        """The same request on another setting, or with another batch."""
        batch = self.batch if batch is None else batch
        return replace(self, setting=setting, batch=batch, given=None, given_bytes=None, given_server=None)

    def in_library(self, setting: Setting) -> Evaluation:
        """The same request on `setting`, which differs in its kernel library alone: operators have the same bounds."""
        other = self.changed(setting)
        other._estimates.update(self._estimates)  # noqa: SLF001  # of the same class
        return other

    @property
    def _lengths(self) -> dict[str, int]:
        return {"prompt": self.prompt, "images": self.images}

    @cached_property
    def bounds(self) -> Times:
        """Lower bounds."""
        if self.given:
            return self.given
        if changes_passes(self.setting.techniques):
            return self._scheduled()
        setting, layout, lengths = self.setting, self.setting.layout, {"batch": self.batch, **self._lengths}
        gen = self.gen or 1
        return Times(
            ttft_s=prefill_s(setting.plan, layout, **lengths),
            decoding_s=decoding_s(setting.decode_plan, layout, gen=gen, **lengths) if gen > 1 else 0.0 * self.batch,
            steps=gen - 1,
            tokens=self.batch * (self.gen or self.prompt),
        )

    def _scheduled(self) -> Times:
        """Lower bounds of passes that techniques arrange."""
        gen = self.gen or 1
        if not np.ndim(self.batch):
            return _times(self.schedule, ())
        longest = max(_MAX_STEPS_AT_ONCE // gen, 1)
        starts = range(0, np.size(self.batch), longest)
        batches = [np.asarray(self.batch)[start : start + longest] for start in starts]
        # The last axis of arrays in a schedule is that of passes.
        parts = [
            _times(self.setting.schedule(batch=batch[:, None], gen=gen, **self._lengths), np.shape(batch))
            for batch in batches
        ]
        names = ("ttft_s", "decoding_s", "steps", "tokens")
        return Times(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names})

    @cached_property
    def schedule(self) -> Schedule:
        """The passes of the generation, of a single batch."""
        return self.setting.schedule(batch=self.batch, gen=self.gen or 1, **self._lengths)

    @cached_property
    def intervals(self) -> tuple[Interval, Interval] | None:
        """Expected times until the first token and after it; None if only bounds are known. [s]

        A total adds end by end: both times have the same kernels, so their errors correlate.
        """
        kernels = self.setting.kernels
        if kernels is None or kernels.is_unknown:
            return None
        if changes_passes(self.setting.techniques):
            return self._runs_expected(kernels)
        several = self.gen > 1
        self.expect(*self.generation_passes)
        first, rest = self.expected_pass("prefill"), self.expected_pass(_STEPS) if several else None
        if first is None or (several and rest is None):
            return None
        until_first = self.setting.expected("prefill", first, self.batch)
        return self._shaped(until_first), self._shaped(self._steps_expected(rest)) if rest else ZERO_INTERVAL

    def _steps_expected(self, evaluated: ExpectedPass) -> Interval:
        """The total of all decode steps, from those evaluated."""
        steps = self.gen - 1
        passes = self.setting.expected("decode", evaluated, self._step_points[0])
        return passes.map(lambda s: np.mean(np.reshape(s, (-1, min(steps, _STEP_POINTS))), axis=1) * steps)

    @property
    def _step_points(self) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """(batch, context) of the decode steps that are evaluated.

        Up to _STEP_POINTS steps are evaluated each; more are split into as many equal parts, each evaluated at its
        middle. That is exact if times are linear in the context, as they nearly are between changes of kernels.
        """
        steps = self.gen - 1
        points = min(steps, _STEP_POINTS)
        lengths = self.prompt + 0.5 + (np.arange(points) + 0.5) * steps / points
        each, context = (grid.ravel() for grid in np.meshgrid(np.atleast_1d(self.batch), lengths, indexing="ij"))
        return each, context

    def _runs_expected(self, kernels: Kernels) -> tuple[Interval, Interval] | None:
        """The same of passes that techniques arrange."""
        sides: list[tuple[Interval, Interval]] = []
        for batch in np.atleast_1d(self.batch).tolist():
            one = self if not np.ndim(self.batch) else replace(self, batch=batch, given=None)
            passes = runs_expected(kernels, one.schedule.first), runs_expected(kernels, one.schedule.rest)
            if passes[0] is None or passes[1] is None:
                return None
            sides.append((passes[0], passes[1]))
        first, rest = (self._shaped(_stacked(side)) for side in zip(*sides, strict=True))
        return first, rest

    def _shaped(self, interval: Interval) -> Interval:
        """The interval as numbers if the batch is one."""
        if np.ndim(self.batch):
            return interval
        expected, low, high = interval.numbers()
        return Interval(expected=expected, low=low, high=high)

    @cached_property
    def expected(self) -> Times | None:
        """Expected times; None if only bounds are known."""
        if self.intervals is None:
            return None
        first, rest = self.intervals
        return replace(self.bounds, ttft_s=first.expected, decoding_s=rest.expected)

    @property
    def expected_ttft(self) -> Interval | None:
        """Expected time to first token, with its interval; None if only the bound is known. [s]"""
        return self.intervals[0] if self.intervals else None

    @property
    def expected_tpot(self) -> Interval | None:
        """Expected time per token, with its interval; None if only the bound is known or there is no step. [s]"""
        steps = self.bounds.steps
        return self.intervals[1].map(lambda s: s / steps) if self.intervals and np.all(steps) else None

    @property
    def likely(self) -> Times:
        """Expected times, or bounds where only those are known."""
        return self.expected or self.bounds

    def workload(self, phase: str) -> Workload:
        """The pass "prefill", or the decode step shown, as one device runs it for one micro-batch."""
        share = self.setting.layout.micro_batch_size(self.batch)
        share = share if np.ndim(share) else int(share)
        if phase == "prefill":
            return self.setting.prefill(Workload.prefill(batch=share, **self._lengths))
        assert self.kv_len is not None
        return self.setting.step(Workload.decode(batch=share, kv_len=self.kv_len, **self._lengths))

    def estimate(self, phase: str) -> Estimate:
        """Lower bounds of the operators that run in a pass of a single batch."""
        if phase not in self._estimates:
            total = self.setting.plan_of(phase).estimate(self.workload(phase))
            self._estimates[phase] = Estimate(
                operators=tuple(row for row in total.operators if row.unprefetched_s > 0),
                exposed=tuple(row for row in total.exposed if row.time_s > 0),
            )
        return self._estimates[phase]

    def pass_s(self, phase: str) -> Num:
        """Lower bound of a pass of the whole batch. [s]"""
        return self.setting.time_s(phase, self.workload(phase), self.batch)

    def expect(self, *passes: str) -> None:
        """Evaluates the kernels of passes together, which takes less time than one after another."""
        _expect((self, name) for name in passes)

    @property
    def generation_passes(self) -> tuple[str, ...]:
        """The passes whose expected times make those of the generation; none if techniques arrange passes."""
        if changes_passes(self.setting.techniques):
            return ()
        return ("prefill", _STEPS) if self.gen > 1 else ("prefill",)

    @property
    def is_expected(self) -> bool:
        """Whether the kernels of all passes of the generation were evaluated."""
        return all(name in self._passes for name in self.generation_passes)

    @property
    def phases(self) -> tuple[str, ...]:
        """The passes shown: the prefill and, if the model generates, a decode step."""
        return ("prefill", "decode") if self.kv_len else ("prefill",)

    def expect_all(self) -> None:
        """expect() of the passes shown and, unless techniques arrange them, of all passes of the generation."""
        self.expect(*dict.fromkeys((*self.phases, *self.generation_passes)))

    def launched(self, name: str, kernels: Kernels) -> PassLaunches:
        """A pass as launches of the library of `kernels`."""
        if name not in self._launched:
            rows, workload = self._operators(name)
            self._launched[name] = PassLaunches.of(rows, kernels.launches_for(rows, workload), workload)
        return self._launched[name]

    def pass_workload(self, name: str) -> tuple[str, Workload]:
        """Phase and workload of a pass whose kernels are evaluated, as one device runs it for one micro-batch."""
        if name != _STEPS:
            return name, self.workload(name)
        batch, context = self._step_points
        share = self.setting.layout.micro_batch_size(batch)
        return "decode", Workload.decode(batch=share, kv_len=context, **self._lengths)

    def take_launches(self, name: str, launched: PassLaunches) -> None:
        """Takes the launches of a pass that are known from other devices."""
        self._launched[name] = launched

    def _operators(self, name: str) -> tuple[Sequence[OperatorEstimate], Workload]:
        """Operators and workload of a pass, for its kernels."""
        phase, workload = self.pass_workload(name)
        if name == _STEPS or np.ndim(self.batch):
            return self.setting.plan_of(phase).estimate(workload).operators, workload
        return self.estimate(name).operators, workload

    def operators_expected(self, phase: str) -> ExpectedPass | None:
        """Expected times of the operators of a pass, some or all of which may be bounds; None without kernels."""
        self.expect(phase)
        return self._passes[phase]

    def expected_pass(self, phase: str) -> ExpectedPass | None:
        """Expected times of the operators of a pass; None if only bounds are known."""
        pass_ = self.operators_expected(phase)
        return pass_ if pass_ and pass_.modelled else None

    def expected_pass_s(self, phase: str) -> Interval | None:
        """Expected time of a pass of the whole batch; None if only the bound is known. [s]"""
        pass_ = self.expected_pass(phase)
        return self._shaped(self.setting.expected(phase, pass_, self.batch)) if pass_ else None

    @property
    def _longest(self) -> dict[str, Any]:
        """Sequences whose memory is counted: the whole generation, or a longer context of the step shown."""
        gen = max(self.gen, self.kv_len - self.prompt) if self.kv_len else self.gen
        return {"batch": self.batch, "gen": gen, **self._lengths}

    @cached_property
    def server(self) -> Server | None:
        """The server of an engine that divides memory by its own rules; None without one."""
        if self.given_bytes is not None:
            return self.given_server
        return server_of(self.setting) if reserves_memory(self.setting) else None

    @property
    def tokens(self) -> int:
        """Tokens of the sequences whose memory is counted."""
        return int(self._longest["prompt"] + self._longest["gen"])

    @cached_property
    def memory_bytes(self) -> Num:
        """Peak memory of a device; with an engine, what its server uses. [B]"""
        if self.server:
            return self.server.fixed_bytes + self._pool_bytes(self.server)
        return self.given_bytes if self.given_bytes is not None else self.setting.footprint.total_bytes(**self._longest)

    def _pool_bytes(self, server: Server) -> Num:
        """Memory of the batch in the cache of a server; of the smallest request where none has room. [B]"""
        held_requests = server.requests(self.tokens)
        if held_requests:
            return np.minimum(self.batch / held_requests, _MAX_FOLD) * server.pool.size
        return self.setting.footprint.parts(**self._longest)[1]

    @property
    def weight_bytes(self) -> Num:
        """Weights on the device with the largest peak. [B]"""
        return self.setting.footprint.parts(**self._longest)[0]

    @property
    def fits(self) -> Any:
        """Whether the peaks of the device and, if one was given, of its host are within their capacities."""
        fits = np.less_equal(self.memory_bytes, self.capacity_bytes)
        host = self.setting.host
        if host:
            fits &= np.less_equal(self.setting.footprint.offloaded_bytes(HOST, **self._longest), host.capacity)
        return fits[()]

    @property
    def capacity_bytes(self) -> float:
        """Memory that may be used on a device; with an engine, its share. [B]"""
        return self.server.budget.used if self.server else self.setting.hardware.capacity

    @cached_property
    def memory(self) -> Memory:
        """Peak memory by kind, and the largest batch and context that fit, of a single batch."""
        host = self.setting.host
        host_capacity = host.capacity if host else None
        physical = memory(
            self.setting.footprint, self.setting.hardware.capacity, host_capacity=host_capacity, **self._longest
        )
        server = self.server
        if server is None:
            return physical
        budget, batch = server.budget, float(self.batch)
        return replace(
            physical, weight_bytes=budget.weights, kv_cache_bytes=float(self._pool_bytes(server)),
            activation_bytes=server.fixed_bytes - budget.weights, capacity_bytes=budget.used,
            max_batch=_whole(server.requests(self.tokens)), max_context=server.longest(batch),
        )  # fmt: skip

    def amount(self, name: str) -> float:
        """OPs or bytes of all passes of a single batch, on one device of each stage."""
        return float(sum(run.amount(name) for run in (*self.schedule.first, *self.schedule.rest)))

    def prefill_amount(self, name: str) -> Num:
        """OPs or bytes of all passes until the first token, on one device of each stage."""
        batch = np.asarray(self.batch)[:, None] if np.ndim(self.batch) else self.batch
        schedule = self.setting.schedule(batch=batch, gen=1, **self._lengths)
        return _column(sum(run.amount(name) for run in schedule.first), np.shape(self.batch))

    @cached_property
    def per_token(self) -> Mapping[str, float]:
        """Work of a single batch: OPs, bytes and launches of a device per generated token, and passes of the model per
        token of a sequence after the first.
        """
        runs, tokens = (*self.schedule.first, *self.schedule.rest), float(self.schedule.answer)
        launches = float(sum(run.total(counted(run.plan)) for run in runs))
        return {
            "ops": self.amount("ops") / tokens, "bytes": self.amount("bytes") / tokens, "launches": launches / tokens,
            "passes": 1 / float(self.schedule.tokens_per_step),
        }  # fmt: skip

    @cached_property
    def prefill_bound(self) -> str:
        """The bound of most of the time of the prefill."""
        return _bound(self.setting.plan, self.workload("prefill"))

    @cached_property
    def decode_bound(self) -> str:
        """The bound of most of the time of the decode step in the middle of the generation."""
        middle = replace(self, kv_len=self.prompt + self.gen // 2)
        return _bound(self.setting.decode_plan, middle.workload("decode"))


def _whole(requests: float) -> int | None:
    """A number of requests; None without a limit."""
    return int(requests) if requests < MAX_SEQUENCES else None


def expect_together(evaluations: Iterable[Evaluation]) -> None:
    """Evaluates the kernels of several generations, which takes less time than one after another."""
    _expect((one, name) for one in evaluations for name in one.generation_passes)


def _expect(passes: Iterable[tuple[Evaluation, str]]) -> None:
    """Evaluates the passes that are not known yet, those of the same kernels together."""
    by_kernels: dict[int, list[tuple[Evaluation, str]]] = {}
    for one, name in passes:
        if name not in one._passes:  # noqa: SLF001
            by_kernels.setdefault(id(one.setting.kernels), []).append((one, name))
    for new in by_kernels.values():
        kernels = new[0][0].setting.kernels
        launched = [one.launched(name, kernels) for one, name in new] if kernels else []
        estimates = kernels.expect_passes(launched) if kernels else [None] * len(new)
        for (one, name), estimate in zip(new, estimates, strict=True):
            one._passes[name] = estimate  # noqa: SLF001


def _times(schedule: Schedule, shape: tuple[int, ...]) -> Times:
    each = {"ttft_s": schedule.ttft_s, "decoding_s": schedule.decoding_s, "steps": schedule.steps}
    each["tokens"] = schedule.answer
    return Times(**{name: _column(value, shape) for name, value in each.items()})


def _column(value: Num, shape: tuple[int, ...]) -> Num:
    """A quantity of a schedule as one number per batch."""
    return np.broadcast_to(np.reshape(value, -1), shape) if shape else float(value)


def _stacked(each: Sequence[Interval]) -> Interval:
    expected, low, high = np.array([one.numbers() for one in each]).T
    return Interval(expected=expected, low=low, high=high)


def runs_expected(kernels: Kernels | None, runs: Sequence[Run]) -> Interval | None:
    """Expected total time of passes, one after another; None if only a bound is known for one. [s]"""
    if kernels is None:
        return None
    total = ZERO_INTERVAL
    evaluated = kernels.expect_each([(run.plan.estimate(run.workload).operators, run.workload) for run in runs])
    for run, passes in zip(runs, evaluated, strict=True):
        if not passes.modelled:
            return None
        bound = np.sum(run.plan.time_s(run.workload) * np.asarray(run.times))
        for_each = replace(run, host_s=0.0, parts=1).time_s / bound  # passes alike may have one entry for all
        each = passes.pipelined_s(run.parts, autoregressive=run.autoregressive)
        expected, most = (over * run.host_s for over in run.host_range)
        launched = each.join(Interval(expected=expected, low=run.host_s, high=most), np.maximum)
        times = launched.map(partial(np.multiply, run.times)).map(np.sum)
        total = total.join(times.map(partial(np.multiply, for_each)), add)
    return total


def _bound(plan: Plan, workload: Workload) -> str:
    """The bound of most of the time of a pass."""
    times = plan.estimate(workload).seconds_by_bound
    return max(times, key=times.__getitem__)
