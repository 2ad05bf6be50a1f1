"""Results of a simulation: times of each request, what limits them, and what they cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, field
from functools import cached_property
from math import inf, nan
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt

from .. import __version__
from ..analyzing.costs import per_dollar, per_joule
from ..analyzing.facts import finite
from ..arguments import check_numbers
from ..devices.hardware import Hardware
from ..errors import InputError
from ..options import PercentileTargetOptions, TargetOptions
from ..records import RenamedField, frozen
from ..rows import Rows
from ..setting import Setting
from ..units import TIME_EXAMPLES, seconds, significant, time_s
from .fleet import FleetLog
from .fleet_rules import FleetRules
from .lengths import Tokens
from .metrics import Usage
from .policy import Policy
from .steady import SteadyState
from .task_times import TaskTimes
from .traffic import Times, Traffic

SCHEMA_VERSION: Final = 1  # of to_dict()
PERCENTILES: Final = (50, 90, 95, 99)
LOCKSTEP_SHARE: Final = 0.5  # share of the busy time with prefills, from which ranks that wait for them are the limit
_USUAL_HOLD: Final = 60  # steps for which TensorRT-LLM's guides hold prefills back (engines/tensorrt-llm.yaml)
DEFAULT_MAX_BATCH: Final = 256  # running sequences per replica, without an engine's limit
_DEFAULT_STATISTIC: Final = "p90"  # of a goal that names none
_MAX_LINE_POINTS: Final = 400  # points of a line over time
_NOTABLE_SHARE: Final = 0.05  # share of the busy time from which a bottleneck is named
_PREFILL_BOUND_SHARE: Final = 0.5  # the same for steps that only prefill, of which every load has some
_VISIBLE_SHARE: Final = 0.005  # share of the time from which a kind of steps is listed


@frozen(kw_only=True)
class Goals:
    """Latency goals of a request; inf without one. [s]

    ttft_percentile, tpot_percentile  percentile of the requests that a goal limits; None: the mean
    """

    ttft_s: float = inf
    tpot_s: float = inf
    ttft_percentile: float | None = None
    tpot_percentile: float | None = None

    def __post_init__(self) -> None:
        for name in ("ttft_s", "tpot_s"):
            if not getattr(self, name) > 0:
                raise InputError(f"{name.removesuffix('_s')} must be a positive number; got {getattr(self, name):g}")

    @classmethod
    def of(cls, targets: TargetOptions) -> Goals:
        """Goals of each request.

        Raises InputError unless they are positive numbers.
        """
        ttft, tpot = (inf if limit is None else limit for limit in (targets.get("ttft"), targets.get("tpot")))
        check_numbers(ttft=ttft, tpot=tpot)
        return cls(ttft_s=ttft, tpot_s=tpot)

    @classmethod
    def parse(cls, targets: PercentileTargetOptions) -> Goals:
        """Goals of numbers [s] or texts: "p99=0.5", "mean=500 ms"; a time alone is that of the 90th percentile.

        Raises InputError if a text is neither.
        """
        (ttft_s, ttft_percentile), (tpot_s, tpot_percentile) = (
            _goal("ttft", targets.get("ttft")),
            _goal("tpot", targets.get("tpot")),
        )
        return cls(ttft_s=ttft_s, tpot_s=tpot_s, ttft_percentile=ttft_percentile, tpot_percentile=tpot_percentile)

    def texts(self) -> dict[str, str]:
        """The goals as parse() reads them; without those that limit nothing."""
        each = {"ttft": (self.ttft_s, self.ttft_percentile), "tpot": (self.tpot_s, self.tpot_percentile)}
        return {name: f"{percentile_name(q)}={time_s:g}" for name, (time_s, q) in each.items() if time_s < inf}


def percentile_name(percentile: float | None) -> str:
    """A percentile as text, such as "p99"; "mean" for None."""
    return "mean" if percentile is None else f"p{percentile:g}"


def at_percentile(values: Times, percentile: float | None) -> float:
    """A percentile of times of requests, or their mean for None; 0 without any. [s]"""
    if not len(values):
        return 0.0
    return float(np.mean(values) if percentile is None else np.percentile(values, percentile))


def _goal(name: str, value: object) -> tuple[float, float | None]:
    """Time of a goal [s], and the percentile that it limits."""
    limit_s = inf if value is None else value
    text = str(limit_s)
    *statistics, time = text.split("=")
    with suppress(ValueError):
        (percentile,) = map(_percentile, statistics or [_DEFAULT_STATISTIC])
        return inf if limit_s == inf else time_s(time), percentile
    raise InputError(
        f"{name} must be a positive time, {TIME_EXAMPLES}, of a percentile or the mean, p99=0.5 or mean=0.5; "
        f"got {text!r}"
    )


def _percentile(statistic: str) -> float | None:
    """The percentile of a text such as "p99"; None for "mean".

    Raises ValueError if the text is neither.
    """
    text = statistic.strip()
    if text == "mean":
        return None
    percentile = float(text.removeprefix("p"))
    if not text.startswith("p") or not 0 < percentile < 100:
        raise ValueError(text)
    return percentile


def waiting_for_prompts(policy: Policy, ranks: int, share: float) -> str:
    """The bottleneck where ranks wait for each other's prompts, with its cure."""
    return (
        f"Ranks that wait for each other's prompts ({share:.0%} of the time one of {ranks} ranks prefills and all "
        f"others wait for it; --policy {policy},hold={_USUAL_HOLD} holds prompts back until every rank has one)"
    )


def step_shares(usage: Usage, span_s: float) -> str:
    """Shares of a time span that kinds of steps take, the largest first."""
    times = {
        "prefill": usage.reading_s, "mixed prefill and decode": usage.mixed_s, "decode": usage.decoding_s,
    }  # fmt: skip
    kinds = sorted(times, key=lambda kind: -times[kind])
    return ", ".join(f"{times[kind] / span_s:.0%} {kind}" for kind in kinds if times[kind] > _VISIBLE_SHARE * span_s)


@frozen(kw_only=True, repr=False)
class Simulation(Rows):
    """Times of all requests, with steps at their lower bounds.

    expected  the same requests with steps at their expected times; None if there are none, for the reason `unknown`,
              and in the expected simulation itself
    setting   one replica; one that decodes, if prefills run on separate replicas
    reads     one replica that runs prefills, if these are separate
    router    name of the router to the replicas
    replicas  number of replicas, without the `prefill_replicas` for prefills alone
    servers   ranks of all replicas that take steps independently of each other
    client    name of the benchmark client whose requests these are, in a closed loop; "" if none was named
    closed    closed-form means for one replica; None with separate prefill replicas, or if ranks wait for each other
    cached    tokens of each prompt found in the prefix cache when it was admitted
    rules     failures and autoscaling of replicas; None without either. `replicas` is then the most at once
    fleet     what changed by these rules
    reading_utilization  share of the time until the last prefill ends in which a prefill replica is busy
    models    the requests of each model by its name, if several serve the calls of tasks; `setting` and the other
              fields of a server are then of the first, `replicas`, `servers` and `usage` of all
    usd_per_token  price of an input and an output token, of one of these models; None without [USD]
    """

    report: ClassVar = "serving"

    setting: Setting = field(repr=False)
    traffic: Traffic = field(repr=False)
    policy: Policy
    replicas: int
    router: str
    servers: int
    max_batch: int
    block: int
    seed: int | None
    goals: Goals
    client: str = ""
    years: float | None
    start_s: Times = field(repr=False)
    first_s: Times = field(repr=False)
    finish_s: Times = field(repr=False)
    gap_s: Times = field(repr=False)
    cached: Tokens = field(repr=False)
    preemptions: int
    usage: Usage
    closed: SteadyState | None
    expected: Simulation | None = None
    unknown: str = ""
    reads: Setting | None = field(default=None, repr=False)
    prefill_replicas: int = 0
    reading_utilization: float = 0.0
    rules: FleetRules | None = None
    fleet: FleetLog | None = None
    models: Mapping[str, Simulation] = field(default_factory=dict, repr=False)
    usd_per_token: tuple[float, float] | None = None

    copies = RenamedField("replicas")
    readers = RenamedField("prefill_replicas")

    @property
    def likely(self) -> Simulation:
        """The expected simulation if there is one, else that at the bound."""
        return self.expected or self

    @cached_property
    def finished(self) -> npt.NDArray[np.bool_]:
        """Whether each request finished; others failed with a replica, and have no times."""
        return np.isfinite(self.finish_s)

    @property
    def ttft_s(self) -> Times:
        return self.first_s - self.traffic.arrival_s

    @property
    def tpot_s(self) -> Times:
        """Times per output token of requests with more than one. [s]"""
        several = self.traffic.gen > 1
        return (self.finish_s - self.first_s)[several] / (self.traffic.gen[several] - 1)

    @property
    def latency_s(self) -> Times:
        return self.finish_s - self.traffic.arrival_s

    @property
    def wait_s(self) -> Times:
        """Time in the waiting queue. [s]"""
        return self.start_s - self.traffic.arrival_s

    @property
    def metrics(self) -> dict[str, Times]:
        """Times of finished requests by name."""
        finished, several = self.finished, self.traffic.gen > 1
        return {
            "wait_s": self.wait_s[finished], "ttft_s": self.ttft_s[finished],
            "tpot_s": self.tpot_s[finished[several]], "gap_s": self.gap_s[finished & several],
            "latency_s": self.latency_s[finished],
        }  # fmt: skip

    @cached_property
    def span_s(self) -> float:
        """Time from the first arrival to the last output token. [s]"""
        return float(np.nanmax(self.finish_s) - np.min(self.traffic.arrival_s))

    @property
    def decoding(self) -> float:
        """Mean decode batch of a replica, by Little's law."""
        decoding_s = float(np.nansum(self.finish_s - self.first_s)) - self.usage.paused_s
        return decoding_s / (self.mean_replicas * self.span_s)

    @property
    def drained(self) -> float:
        """Share of the span after the last arrival, which lowers rates; nan where it does not, as requests arrived
        faster than they were served, or all at once.
        """
        if self.traffic.rate == inf or (self.closed and not self.closed.stable):
            return nan
        return float(np.nanmax(self.finish_s) - np.max(self.traffic.arrival_s)) / self.span_s

    @property
    def tokens_per_s(self) -> float:
        """Output tokens of finished requests per second. [1/s]"""
        return float(np.sum(self.traffic.gen[self.finished])) / self.span_s

    @property
    def requests_per_s(self) -> float:
        """Requests that finish per second. [1/s]"""
        return int(np.count_nonzero(self.finished)) / self.span_s

    @cached_property
    def good(self) -> float:
        """Share of the requests within both goals, which those that failed are not; those of one token have no time per
        token.
        """
        several = self.traffic.gen > 1
        tpot = np.zeros(len(self.traffic))
        tpot[several] = self.tpot_s
        within = (self.ttft_s <= self.goals.ttft_s) & (tpot <= self.goals.tpot_s)
        return float(np.mean(within & self.finished))

    @property
    def mean_replicas(self) -> float:
        """Replicas that are paid for, on average over the run, with those that start."""
        return self.fleet.replica_s / self.span_s if self.fleet else float(self.replicas)

    @property
    def utilization(self) -> float:
        """Fraction of the time in which a replica works; a decode replica, if prefills run on separate replicas."""
        return self.usage.busy_s / (self.servers / self.replicas * self.mean_replicas * self.span_s)

    @property
    def sides(self) -> tuple[tuple[Setting, int], ...]:
        """Settings, with the number of replicas of each."""
        if self.models:
            return tuple(side for one in self.models.values() for side in one.sides)
        others = ((self.reads, self.prefill_replicas),) if self.reads else ()
        return ((self.setting, self.replicas), *others)

    @property
    def _paid_devices(self) -> tuple[tuple[Hardware, float], ...]:
        """Devices of each side, with their mean number."""
        share = self.mean_replicas / self.replicas
        return tuple((setting.hardware, count * setting.layout.devices * share) for setting, count in self.sides)

    @property
    def devices(self) -> int:
        """Devices of all replicas."""
        return sum(count * setting.layout.devices for setting, count in self.sides)

    @property
    def tokens_per_joule(self) -> float:
        """Output tokens per joule at the TDP of all devices; nan if unknown. [1/J]"""
        return float(per_joule(self.tokens_per_s, self._paid_devices))

    @property
    def tokens_per_dollar(self) -> float:
        """Output tokens per dollar at cloud prices, or at purchase prices over the years; nan if unknown. [1/USD]"""
        return float(per_dollar(self.tokens_per_s, self._paid_devices, self.years))

    @cached_property
    def tasks(self) -> TaskTimes | None:
        """Sessions of several turns, or tasks of several calls; None if each request is by itself."""
        if not self.traffic.calls:
            return None
        return TaskTimes.of(
            self.traffic.calls, arrival_s=self.traffic.arrival_s, finish_s=self.finish_s, prompt=self.traffic.prompt,
            cached=self.cached,
        )  # fmt: skip

    @property
    def tasks_per_s(self) -> float:
        """Sessions or tasks that finish per second; requests without calls. [1/s]"""
        return self.traffic.task_count / self.span_s

    @property
    def usd_per_task(self) -> float:
        """Cost of a session or task, with all devices paid for all the time; nan if unknown. [USD]"""
        return float(np.mean(self.traffic.gen)) * len(self.traffic) / self.traffic.task_count / self.tokens_per_dollar

    def by_model(self) -> Iterator[dict[str, Any]]:
        """Calls, times, load and cost of each model that serves calls of tasks."""
        assert self.traffic.models is not None or not self.models
        for number, (name, one) in enumerate(self.models.items()):
            traffic, setting = one.traffic, one.setting
            tasks = np.unique(self.traffic.task[self.traffic.models == number])
            yield {
                "name": name, "model": setting.model.name, "hardware": setting.hardware.name,
                "layout": str(setting.layout), "quant": str(setting.quantization), "replicas": one.replicas,
                "calls": len(traffic), "calls_per_task": len(traffic) / self.traffic.task_count,
                "tasks": len(tasks) / self.traffic.task_count,
                "input_tokens": int(np.sum(traffic.prompt)), "output_tokens": int(np.sum(traffic.gen)),
                "times": {metric: summary(values) for metric, values in one.metrics.items()},
                "utilization": one.usage.busy_s / (one.servers * self.span_s), "hit_rate": one.hit_rate,
                "preemptions": one.preemptions, "limit": one.limit,
                "usd_per_task": self._usd_per_task(one), "token_usd_per_task": one.token_usd / self.traffic.task_count,
            }  # fmt: skip

    def _usd_per_task(self, one: Simulation) -> float:
        """Cost per task of the devices of a model, paid for all the time; nan if unknown. [USD]"""
        tasks_per_s = self.traffic.task_count / self.span_s
        return 1 / float(per_dollar(tasks_per_s, one._paid_devices, self.years))

    @property
    def token_usd(self) -> float:
        """Cost of all requests at prices of tokens; nan without prices of all models. [USD]"""
        if self.models:
            return float(sum(one.token_usd for one in self.models.values()))
        if self.usd_per_token is None:
            return nan
        of_input, of_output = self.usd_per_token
        return float(of_input * np.sum(self.traffic.prompt) + of_output * np.sum(self.traffic.gen))

    @cached_property
    def in_system(self) -> tuple[Times, Times]:
        """Moments, and the number of unfinished requests from then on."""
        return _count_over_time(self.traffic.arrival_s[self.finished], self.finish_s[self.finished])

    @cached_property
    def waiting(self) -> tuple[Times, Times]:
        """Moments, and the number of waiting requests from then on."""
        return _count_over_time(self.traffic.arrival_s[self.finished], self.start_s[self.finished])

    def by_tenant(self) -> Iterator[dict[str, Any]]:
        """Requests, times and tokens per second of each tenant."""
        traffic = self.traffic
        for index, name in enumerate(traffic.tenant_names):
            of_tenant = (traffic.tenants == index) & self.finished
            yield {
                "tenant": name, "requests": int(np.count_nonzero(of_tenant)), "ttft_s": summary(self.ttft_s[of_tenant]),
                "latency_s": summary(self.latency_s[of_tenant]),
                "input_tokens_per_s": float(np.sum(traffic.prompt[of_tenant])) / self.span_s,
                "tokens_per_s": float(np.sum(traffic.gen[of_tenant])) / self.span_s,
            }  # fmt: skip

    @property
    def limit(self) -> str:
        """Bottleneck, in words; of several models that of the busiest."""
        if self.models:
            name, one = max(self.models.items(), key=lambda item: item[1].usage.busy_s / item[1].servers)
            return f"{name}: {one.limit}"
        return next(self._limits())

    def _limits(self) -> Iterator[str]:
        usage, busy = self.usage, max(self.usage.busy_s, 1e-300)
        queue_s, prefill_s = float(np.nanmean(self.wait_s)), float(np.nanmean(self.first_s - self.start_s))
        blocked_by_memory, blocked_by_limit, mixed = usage.full_s / busy, usage.crowded_s / busy, usage.mixed_s / busy
        if self.reads and self.reading_utilization > max(self.utilization, 1 - _NOTABLE_SHARE):
            yield f"Prefill replicas (busy {self.reading_utilization:.0%} of the time)."
        if self.closed and self.closed.max_rate <= self.traffic.rate / self.replicas < inf:
            cause = (
                f", with KV memory for {self.closed.max_batch} sequences on average"
                if blocked_by_memory > _NOTABLE_SHARE
                else ""
            )
            yield (
                f"Overload ({significant(self.traffic.rate / self.replicas)} req/s arrive per replica, which sustains "
                f"{significant(self.closed.max_rate)} req/s{cause}; the queue grows until arrivals end)."
            )
        ranks, prefilling = self.setting.layout.waiting_ranks, mixed + usage.reading_s / busy
        if ranks > 1 and self.policy.hold == 1 and prefilling > LOCKSTEP_SHARE:
            yield f"{waiting_for_prompts(self.policy, ranks, prefilling)}."
        if blocked_by_memory > max(blocked_by_limit, _NOTABLE_SHARE):
            yield f"KV-cache capacity (a request waits for KV memory {blocked_by_memory:.0%} of the busy time)."
        if blocked_by_limit > _NOTABLE_SHARE:
            yield f"Batch limit (a request waits at max batch {self.max_batch} for {blocked_by_limit:.0%} of the time)."
        if self.policy.drains and queue_s > prefill_s:
            yield f"Static batches (mean queue time {seconds(queue_s)}, until the batch before ends)."
        if queue_s > max(prefill_s, _NOTABLE_SHARE * float(np.nanmean(self.latency_s))):
            yield f"Queueing (mean queue time {seconds(queue_s)}, mean prefill time {seconds(prefill_s)})."
        if usage.written > len(self.traffic) and usage.reading_s / busy > _PREFILL_BOUND_SHARE:
            yield f"Prefill ({usage.reading_s / busy:.0%} of the busy time is prefill steps, which stall decoding)."
        yield f"Step time ({step_shares(usage, busy)}; busy {self.utilization:.0%} of the time)."

    @property
    def inputs(self) -> dict[str, Any]:
        """The arguments, as in the JSON document."""
        kernels = self.setting.kernels
        return finite({
            "quant": str(self.setting.quantization), "layout": str(self.setting.layout),
            "techniques": list(map(str, self.setting.techniques)), "policy": str(self.policy),
            "library": kernels.library if kernels and self.expected else None,
            "engine": self.setting.engine.name if self.setting.engine else None,
            "router": self.router, "replicas": self.replicas, "prefill_replicas": self.prefill_replicas,
            "copies": self.replicas, "readers": self.prefill_replicas,
            "prefill_hardware": self.reads.hardware.name if self.reads else None,
            "max_batch": self.max_batch, "block": self.block, "seed": self.seed, "requests": len(self.traffic),
            "empty_requests": self.traffic.empty,
            "later_requests": self.traffic.later,
            "rate": None if self.traffic.in_flight else self.traffic.task_rate, "concurrency": self.traffic.in_flight,
            "client": self.client or None,
            "tasks": self.traffic.task_count if self.traffic.calls else None,
            "mean_prompt": float(np.mean(self.traffic.prompt)),
            "mean_gen": float(np.mean(self.traffic.gen)), "ttft_s": self.goals.ttft_s,
            "tpot_s": self.goals.tpot_s, "years": self.years, "fleet": self.rules.inputs if self.rules else None,
        })  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """The JSON document; docs/serving.md has its keys."""
        return finite({
            "schema_version": SCHEMA_VERSION,
            "llmviewer_version": __version__,
            "model": self.setting.model.name,
            "hardware": self.setting.hardware.name,
            "inputs": self.inputs,
            "devices": self.devices,
            **self.numbers(),
            "expected": self.expected.numbers() if self.expected else None,
            "unknown": self.unknown or None,
        })  # fmt: skip

    def numbers(self) -> dict[str, Any]:
        """Results of the requests, for the JSON document."""
        return {
            "times": {name: summary(values) for name, values in self.metrics.items()},
            "span_s": self.span_s,
            "drained": self.drained,
            "tokens_per_s": self.tokens_per_s,
            "tokens_per_step": self.traffic.tokens_per_step,
            "requests_per_s": self.requests_per_s,
            "good": self.good,
            "goodput_requests_per_s": self.good * self.requests_per_s,
            "utilization": self.utilization,
            "reading_utilization": self.reading_utilization if self.prefill_replicas else None,
            "mean_running": self.usage.sequence_s / (self.mean_replicas * self.span_s),
            "mean_decoding": self.decoding,
            "preemptions": self.preemptions,
            "usage": asdict(self.usage),
            "repeated": self.traffic.repeated,
            "hit_rate": self.hit_rate,
            "hit_rate_at_most": self.usage.there_at_most if self._has_cache else None,
            "tasks": self._task_numbers(),
            "models": list(self.by_model()),
            "fleet": self._fleet_numbers(),
            "tokens_per_joule_at_tdp": self.tokens_per_joule,
            "tokens_per_dollar": self.tokens_per_dollar,
            "limit": self.limit,
            "closed_form": asdict(self.closed) if self.closed else None,
            "tenants": list(self.by_tenant()),
            "queue": [
                {"time_s": t, "waiting": n} for t, n in zip(*(c.tolist() for c in thinned(*self.waiting)), strict=True)
            ],
        }

    @property
    def hit_rate(self) -> float | None:
        """Share of the prompt tokens found in the prefix cache; None where hits do not follow from memory."""
        return self.usage.there if self._has_cache else None

    @property
    def _has_cache(self) -> bool:
        """Whether prefix-cache hits follow from memory."""
        return self.traffic.blocks is not None and self.reads is None

    def _fleet_numbers(self) -> dict[str, Any] | None:
        """Changes of replicas, for the JSON document."""
        if not self.fleet:
            return None
        changes = [{"time_s": time_s, "replicas": number} for time_s, number in self.fleet.serving[:_MAX_LINE_POINTS]]
        return {**asdict(self.fleet), "mean_replicas": self.mean_replicas, "serving": changes}

    def _task_numbers(self) -> dict[str, Any] | None:
        """Results of sessions or tasks, for the JSON document."""
        if not self.tasks:
            return None
        figures = {name: summary(values) for name, values in self.tasks.metrics.items()}
        return {
            "kind": self.tasks.kind, "count": len(self.tasks), **figures, "per_s": self.tasks_per_s,
            "usd": self.usd_per_task, "token_usd": self.token_usd / self.traffic.task_count,
        }  # fmt: skip

    def rows(self) -> Iterator[dict[str, Any]]:
        """Rows of the CSV table, one per request. [s], [tokens]"""
        columns = {"arrival_s": self.traffic.arrival_s, "prompt": self.traffic.prompt, "gen": self.traffic.gen}
        calls = self.traffic.calls
        if calls:
            columns = {calls.kind: calls.task} | columns
        if self.traffic.models is not None:
            columns["model"] = np.array(list(self.models))[self.traffic.models]
        for prefix, run in (("", self), ("expected_", self.expected)):
            if run:
                columns |= {
                    f"{prefix}{name}": getattr(run, name) for name in ("start_s", "first_s", "finish_s", "gap_s")
                }
            if run and calls:
                columns |= {f"{prefix}arrival_s": run.traffic.arrival_s, f"{prefix}cached": run.cached}
        for values in zip(*(column.tolist() for column in columns.values()), strict=True):
            yield dict(zip(columns, values, strict=True))


def summary(values: Times) -> dict[str, float | None]:
    """Mean, percentiles and maximum; None without values."""
    if not len(values):
        return dict.fromkeys(("mean", *(f"p{q}" for q in PERCENTILES), "max"))
    quantiles = np.percentile(values, PERCENTILES).tolist()
    named = {f"p{q}": value for q, value in zip(PERCENTILES, quantiles, strict=True)}
    return {"mean": float(np.mean(values)), **named, "max": float(np.max(values))}


def thinned(time_s: Times, values: Times) -> tuple[Times, Times]:
    """Evenly spaced points of a line, at most _MAX_LINE_POINTS, with its first and last."""
    if len(time_s) <= _MAX_LINE_POINTS:
        return time_s, values
    place = np.linspace(0, len(time_s) - 1, _MAX_LINE_POINTS).astype(int)
    return time_s[place], values[place]


def _count_over_time(arrival_s: Times, departure_s: Times) -> tuple[Times, Times]:
    """Moments of arrivals and departures, and the number of present requests from then on."""
    time_s = np.concatenate((arrival_s, departure_s))
    order = np.argsort(time_s, kind="stable")
    change = np.concatenate((np.ones(len(arrival_s)), -np.ones(len(departure_s))))
    return time_s[order], np.cumsum(change[order])
