"""simulate(): requests that arrive over time at copies of a model: what each waits, and what holds them up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property, partial
from math import inf, isfinite, nan
from pathlib import Path
from typing import Any, Final

import numpy as np

from .. import __version__, given
from ..costs import per_dollar, per_joule
from ..disaggregation import KvTransfer
from ..errors import InputError
from ..expectation.engines import find_engine
from ..expectation.profile import Profile
from ..facts import finite
from ..hardware import Hardware
from ..layout import ALONE, Layout
from ..model import Model
from ..setting import Setting, member, whole
from ..techniques import Technique
from ..units import seconds
from .lengths import Lengths, parse_lengths
from .policy import POLICIES, Policy, parse_policy
from .pools import prefill, transfer_s
from .simulation import Served, Usage, serve
from .steady import Steady, steady
from .steps import Steps
from .traffic import Times, Traffic, poisson, read_traffic

SCHEMA_VERSION: Final = 1  # of to_dict()
PERCENTILES: Final = (50, 90, 95, 99)
_POLICY: Final = "chunked:512"  # where nothing is said; the block and the lengths likewise
_BLOCK: Final = 16
_LENGTHS: Final = {"prompt_lengths": "1024", "gen_lengths": "128"}
_REQUESTS: Final = 1000
_MAX_BATCH: Final = 256
_MOST_REQUESTS: Final = 1_000_000
_POINTS: Final = 400  # of a line over time
_FEW: Final = 0.05  # a share of the time that is worth a word
_STALLED: Final = 0.1


@dataclass(frozen=True, kw_only=True)
class Goals:
    """What an answer has to keep to; inf where anything goes. [s]"""

    ttft_s: float = inf
    tpot_s: float = inf

    def __post_init__(self) -> None:
        for name in ("ttft_s", "tpot_s"):
            if not getattr(self, name) > 0:
                raise InputError(f"{name.removesuffix('_s')} must be a positive number; got {getattr(self, name):g}")


@dataclass(frozen=True, kw_only=True)
class Simulation:
    """What became of all requests where steps take as long as their lower bounds.

    expected  the same requests where steps take as long as is expected of kernels; None where nothing is expected of
              them, for the reason `unknown`, and of what is expected itself
    setting   of one copy of the model; of those that decode, where others read the prompts
    reads     of one copy that reads prompts, where those are others
    readers   copies that do
    copies    of the model, the readers apart
    servers   of them and of their ranks, those that take steps of their own
    closed    means in closed form, as one copy has them; None where prompts are read elsewhere, and where ranks wait
              for each other

    reading_utilization is the part of the time, until the last prompt is read, in which a reader works.
    """

    setting: Setting = field(repr=False)
    traffic: Traffic = field(repr=False)
    policy: Policy
    copies: int
    servers: int
    max_batch: int
    block: int
    seed: int | None
    goals: Goals
    years: float | None
    start_s: Times = field(repr=False)
    first_s: Times = field(repr=False)
    finish_s: Times = field(repr=False)
    gap_s: Times = field(repr=False)
    preemptions: int
    usage: Usage
    closed: Steady | None
    expected: Simulation | None = None
    unknown: str = ""
    reads: Setting | None = field(default=None, repr=False)
    readers: int = 0
    reading_utilization: float = 0.0

    @property
    def likely(self) -> Simulation:
        """What is expected, where something is."""
        return self.expected or self

    @property
    def ttft_s(self) -> Times:
        return self.first_s - self.traffic.arrival_s

    @property
    def tpot_s(self) -> Times:
        """Of requests with more than one token."""
        several = self.traffic.gen > 1
        return (self.finish_s - self.first_s)[several] / (self.traffic.gen[several] - 1)

    @property
    def latency_s(self) -> Times:
        return self.finish_s - self.traffic.arrival_s

    @property
    def wait_s(self) -> Times:
        """Until the prompt is taken up."""
        return self.start_s - self.traffic.arrival_s

    @property
    def metrics(self) -> dict[str, Times]:
        """Times of requests by name."""
        return {
            "wait_s": self.wait_s, "ttft_s": self.ttft_s, "tpot_s": self.tpot_s, "gap_s": self.gap_s,
            "latency_s": self.latency_s,
        }  # fmt: skip

    @cached_property
    def span_s(self) -> float:
        """From the first arrival to the last answer."""
        return float(np.max(self.finish_s) - self.traffic.arrival_s[0])

    @property
    def decoding(self) -> float:
        """Sequences that decode at a time in each copy, by Little's law."""
        return float(np.sum(self.finish_s - self.first_s)) / (self.copies * self.span_s)

    @property
    def drained(self) -> float:
        """The part of the span after the last arrival, where rates over it are lower for that: nan where they are not,
        as requests came faster than they were served, or all at once.
        """
        if self.traffic.rate == inf or (self.closed and not self.closed.stable):
            return nan
        return float(np.max(self.finish_s) - self.traffic.arrival_s[-1]) / self.span_s

    @property
    def tokens_per_s(self) -> float:
        return float(np.sum(self.traffic.gen)) / self.span_s

    @property
    def requests_per_s(self) -> float:
        return len(self.traffic) / self.span_s

    @cached_property
    def good(self) -> float:
        """The part of the requests that keep to both goals; those of one token have no time per token."""
        several = self.traffic.gen > 1
        tpot = np.zeros(len(self.traffic))
        tpot[several] = self.tpot_s
        return float(np.mean((self.ttft_s <= self.goals.ttft_s) & (tpot <= self.goals.tpot_s)))

    @property
    def utilization(self) -> float:
        """The part of the time in which a copy works; of those that decode, where others read the prompts."""
        return self.usage.busy_s / (self.servers * self.span_s)

    @property
    def sides(self) -> tuple[tuple[Setting, int], ...]:
        """Settings and how many copies there are of each."""
        others = ((self.reads, self.readers),) if self.reads else ()
        return ((self.setting, self.copies), *others)

    @property
    def _devices(self) -> tuple[tuple[Hardware, int], ...]:
        """Devices of each side, and how many there are."""
        return tuple((setting.hardware, count * setting.layout.devices) for setting, count in self.sides)

    @property
    def devices(self) -> int:
        return sum(count for _, count in self._devices)

    @property
    def tokens_per_joule(self) -> float:
        """At the TDP of all devices all the time; nan where a file does not say it. [1/J]"""
        return float(per_joule(self.tokens_per_s, self._devices))

    @property
    def tokens_per_dollar(self) -> float:
        """Of a cloud's prices, or of purchases spread over the years; nan where a file has none. [1/USD]"""
        return float(per_dollar(self.tokens_per_s, self._devices, self.years))

    @cached_property
    def in_system(self) -> tuple[Times, Times]:
        """Moments, and the requests that have arrived but are not answered from then on."""
        return _counted(self.traffic.arrival_s, self.finish_s)

    @cached_property
    def waiting(self) -> tuple[Times, Times]:
        """Moments, and the requests that have arrived but are not taken up from then on."""
        return _counted(self.traffic.arrival_s, self.start_s)

    @property
    def limit(self) -> str:
        """What holds requests up most, in words."""
        return next(self._limits())

    def _limits(self) -> Iterator[str]:
        usage, busy = self.usage, max(self.usage.busy_s, 1e-300)
        wait, read = float(np.mean(self.wait_s)), float(np.mean(self.first_s - self.start_s))
        full, crowded, mixed = usage.full_s / busy, usage.crowded_s / busy, usage.mixed_s / busy
        if self.reads and self.reading_utilization > max(self.utilization, 1 - _FEW):
            yield f"The devices that read prompts, which work {self.reading_utilization:.0%} of the time."
        if self.closed and self.closed.max_rate <= self.traffic.rate / self.copies < inf:
            cause = f", as memory has room for {self.closed.max_batch} caches on average" if full > _FEW else ""
            yield (
                f"Load: {self.traffic.rate / self.copies:.3g} requests a second come to each copy, which serves "
                f"{self.closed.max_rate:.3g} at most{cause}. The queue grows for as long as they come."
            )
        if full > max(crowded, _FEW):
            yield f"Memory: in {full:.0%} of the busy time the next request waits for room for its cache."
        if crowded > _FEW:
            yield f"The batch: in {crowded:.0%} of the busy time all {self.max_batch} places of it are taken."
        if self.policy.drains and wait > read:
            yield f"Batches that end together: a request waits {seconds(wait)} on average for the one before its own."
        if wait > read:
            yield f"Queueing: a prompt waits {seconds(wait)} on average for the device and is read in {seconds(read)}."
        if usage.written > len(self.traffic) and usage.reading_s / busy > _STALLED:
            share = f"{usage.reading_s / busy:.0%} of the busy time"
            yield f"Prompts: for {share} one is read and those that decode wait."
        if mixed > _STALLED:
            yield f"Prompts: {mixed:.0%} of the busy time are steps that read one beside those that decode."
        yield f"The steps themselves: nobody waits for long, and the device works {self.utilization:.0%} of the time."

    def to_dict(self) -> dict[str, Any]:
        """The JSON document; docs/serving.md has its keys."""
        kernels = self.setting.kernels
        return finite({
            "schema_version": SCHEMA_VERSION,
            "llmviewer_version": __version__,
            "model": self.setting.model.name,
            "hardware": self.setting.hardware.name,
            "inputs": {
                "quant": str(self.setting.quantization), "layout": str(self.setting.layout),
                "techniques": list(map(str, self.setting.techniques)), "policy": str(self.policy),
                "library": kernels.library if kernels and self.expected else None,
                "engine": self.setting.engine.name if self.setting.engine else None,
                "copies": self.copies, "readers": self.readers,
                "prefill_hardware": self.reads.hardware.name if self.reads else None,
                "max_batch": self.max_batch, "block": self.block, "seed": self.seed, "requests": len(self.traffic),
                "empty_requests": self.traffic.empty,
                "rate": self.traffic.rate, "mean_prompt": float(np.mean(self.traffic.prompt)),
                "mean_gen": float(np.mean(self.traffic.gen)), "ttft_s": self.goals.ttft_s,
                "tpot_s": self.goals.tpot_s, "years": self.years,
            },
            "devices": self.devices,
            **self.numbers(),
            "expected": self.expected.numbers() if self.expected else None,
            "unknown": self.unknown or None,
        })  # fmt: skip

    def numbers(self) -> dict[str, Any]:
        """What became of the requests."""
        return {
            "times": {name: summary(values) for name, values in self.metrics.items()},
            "span_s": self.span_s,
            "drained": self.drained,
            "tokens_per_s": self.tokens_per_s,
            "requests_per_s": self.requests_per_s,
            "good": self.good,
            "goodput_requests_per_s": self.good * self.requests_per_s,
            "utilization": self.utilization,
            "reading_utilization": self.reading_utilization if self.readers else None,
            "mean_running": self.usage.sequence_s / (self.copies * self.span_s),
            "mean_decoding": self.decoding,
            "preemptions": self.preemptions,
            "usage": asdict(self.usage),
            "tokens_per_joule_at_tdp": self.tokens_per_joule,
            "tokens_per_dollar": self.tokens_per_dollar,
            "limit": self.limit,
            "closed_form": asdict(self.closed) if self.closed else None,
            "queue": [
                {"time_s": t, "waiting": n} for t, n in zip(*(c.tolist() for c in thinned(*self.waiting)), strict=True)
            ],
        }

    def rows(self) -> Iterator[dict[str, Any]]:
        """One for each request. [s], [tokens]"""
        columns = {"arrival_s": self.traffic.arrival_s, "prompt": self.traffic.prompt, "gen": self.traffic.gen}
        for prefix, found in (("", self), ("expected_", self.expected)):
            names = ("start_s", "first_s", "finish_s", "gap_s") if found else ()
            columns |= {f"{prefix}{name}": getattr(found, name) for name in names}
        for values in zip(*(column.tolist() for column in columns.values()), strict=True):
            yield dict(zip(columns, values, strict=True))


def simulate(
    model: str | Model,
    hardware: str | Hardware,
    *,
    rate: float | None = None,
    arrivals: str | Path | None = None,
    prompt_lengths: int | str | None = None,
    gen_lengths: int | str | None = None,
    policy: str | None = None,
    requests: int | None = None,
    seed: int = 0,
    max_batch: int | None = None,
    block: int | None = None,
    copies: int = 1,
    readers: int = 0,
    prefill_hardware: str | Hardware | None = None,
    kv_transfer: str | None = None,
    ttft: float = inf,
    tpot: float = inf,
    years: float | None = None,
    quant: str | None = None,
    attention: str | None = None,
    mla: str = "auto",
    expert_skew: float = 0,
    layout: str | Layout = ALONE,
    hardware_set: Sequence[str] = (),
    techniques: Sequence[str | Mapping[str, object] | Technique] = (),
    library: str = "",
    engine: str = "",
    profiles: Sequence[str | Path | Profile] = (),
    bound: bool = False,
) -> Simulation:
    """`requests` that arrive at random, `rate` a second, or those of a file, served step by step: with steps as long as
    their lower bounds, and the same requests again with steps as long as is expected of kernels.

    arrivals          a CSV file with timestamp, prompt and gen, in place of rate and lengths
    prompt_lengths    a number, uniform:LEAST-MOST, lognormal:mean=..,p95=.. or a file; 1024 if None [tokens]
    gen_lengths       likewise; 128 if None [tokens]
    policy            one of POLICIES; "chunked:512", the default, reads and decodes 512 tokens in a step
    requests          1000 if None
    max_batch, block  sequences at a time, 256 if None; tokens of a block of the cache
    copies            of the model, each on the devices of `layout`, which get requests in turn
    readers           copies that read prompts, so that the others decode only, on `prefill_hardware` if given
    kv_transfer       as of disaggregate(); "after" if None
    ttft, tpot        goals that requests are held to [s]
    years             over which a purchase is spread where a device has no cloud price
    techniques        those that change what a step does, not which steps are taken
    library           whose kernels are expected; of which most was measured on the device if ""
    engine            one of ENGINES, whose steps are expected, and whose policy and block are meant where none are
                      given
    profiles          files that `llmviewer calibrate` wrote, before those that ship
    bound             lower bounds alone

    Raises InputError where something given cannot be used, or where a request does not fit.
    """
    if rate is not None:
        given.number(rate=rate)
    given.number(ttft=ttft, tpot=tpot)
    requests = check_requests(_REQUESTS if requests is None else requests)
    lengths = {"prompt_lengths": prompt_lengths, "gen_lengths": gen_lengths}
    apart = {"prefill_hardware": prefill_hardware, "kv_transfer": kv_transfer}
    _check_use(arrivals=arrivals, lengths=lengths, readers=readers, apart=apart, policy=policy)
    check_bound(bound, library, engine, profiles)
    chosen, block = scheduler(engine, policy, block)
    max_batch = whole("max_batch", _MAX_BATCH if max_batch is None else max_batch)
    copies = whole("copies", copies)
    readers, seed = whole("readers", readers, least=0), whole("seed", seed, least=0)
    if (rate is None) == (arrivals is None):
        raise InputError(
            "rate (--rate) or arrivals (--arrivals) must be given, and not both: requests a second, or a file"
        )
    if rate is not None and not (0 < rate < inf):
        raise InputError(f"rate must be a positive number of requests a second; got {rate:g}")
    goals = Goals(ttft_s=ttft, tpot_s=tpot)
    given.positive(years=years)
    when = member(KvTransfer, "kv_transfer", kv_transfer or KvTransfer.AFTER)
    asked: dict[str, Any] = {
        "quant": quant, "attention": attention, "mla": mla, "expert_skew": expert_skew, "layout": layout,
        "hardware_set": hardware_set, "techniques": techniques, "library": library, "engine": engine,
        "profiles": profiles,
    }  # fmt: skip
    setting = Setting.of(model, hardware, **asked)
    if rate is None:
        traffic = read_traffic(Path(str(arrivals)), requests)
    else:
        prompts, gens = drawn_from(prompt_lengths, gen_lengths)
        generator = np.random.default_rng(seed)
        traffic = poisson(rate=rate, prompts=prompts, gens=gens, requests=requests, generator=generator)
    common: dict[str, Any] = {
        "traffic": traffic, "copies": copies, "max_batch": max_batch, "block": block, "goals": goals, "years": years,
        "seed": None if rate is None else seed,
    }  # fmt: skip
    if readers:
        reads = Setting.of(model, prefill_hardware or hardware, **asked)
        run = partial(_apart, reads, replace(setting, decodes_only=True), readers, when, common)
    else:
        run = partial(_alone, setting, chosen, common)
    unknown = "" if bound else Steps(setting).unknown or (Steps(reads).unknown if readers else "")
    found = run(expected=False)
    return replace(found, unknown=unknown, expected=None if bound or unknown else run(expected=True))


def scheduler(engine: str, policy: str | None, block: int | None) -> tuple[Policy, int]:
    """The policy and the tokens of a block that were given, or those of the engine."""
    made = find_engine(engine) if engine else None
    usual, size = (made.policy, made.block) if made else (_POLICY, _BLOCK)
    return parse_policy(policy or usual), whole("block", size if block is None else block)


def drawn_from(prompts: int | str | None, gens: int | str | None) -> tuple[Lengths, Lengths]:
    """The lengths of prompts and answers that were given, or the usual ones."""
    asked = {"prompt_lengths": prompts, "gen_lengths": gens}
    texts = {name: str(value) if isinstance(value, int) else value for name, value in asked.items()}
    found = [parse_lengths(_LENGTHS[name] if text is None else text, name) for name, text in texts.items()]
    return found[0], found[1]


def check_requests(count: int) -> int:
    """Raises InputError where so many requests are none, or too many."""
    if whole("requests", count) > _MOST_REQUESTS:
        raise InputError(f"requests must be at most {_MOST_REQUESTS}; got {count}")
    return count


def check_bound(bound: bool, *kernels: object) -> None:
    """Raises InputError where lower bounds alone are asked for, and kernels too."""
    if bound and any(kernels):
        raise InputError("bound is of steps that no kernel beats; leave out library, engine and profiles")


def _check_use(
    *, arrivals: object, lengths: Mapping[str, object], readers: int, apart: Mapping[str, object], policy: object
) -> None:
    """Raises InputError where something is given that would change nothing."""
    for name, value in lengths.items():
        if arrivals is not None and value is not None:
            raise InputError(f"{name} must be left out beside arrivals, a file that has the length of each request")
    for name, value in apart.items():
        if not readers and value is not None:
            raise InputError(
                f"{name} must be left out without readers, copies of the model that read prompts apart from the others"
            )
    if readers and policy is not None:
        raise InputError("policy must be left out beside readers: no device both reads and decodes")


def _alone(setting: Setting, policy: Policy, common: dict[str, Any], *, expected: bool) -> Simulation:
    """Every copy reads and decodes."""
    steps, traffic = Steps(setting, expected), common["traffic"]
    most: dict[str, Any] = {"policy": policy, "max_batch": common["max_batch"]}
    servers, offered = common["copies"] * steps.apart, traffic.rate / common["copies"]
    served = _shared(steps, traffic, servers, block=common["block"], **most)
    closed = steady(steps, traffic, rate=offered, **most) if isfinite(offered) and steps.ranks == 1 else None
    return Simulation(
        setting=setting, servers=servers, policy=policy, closed=closed, start_s=served.start_s, first_s=served.first_s,
        finish_s=served.finish_s, gap_s=served.gap_s, preemptions=int(np.sum(served.preempted)), usage=served.usage,
        **common,
    )  # fmt: skip


def _apart(
    reads: Setting, writes: Setting, readers: int, when: KvTransfer, common: dict[str, Any], *, expected: bool
) -> Simulation:
    """Prompts are read by some, and answered by others."""
    traffic: Traffic = common["traffic"]
    policy = POLICIES["prefill-first"]  # of what lost its cache and is read again
    travel = transfer_s(reads, writes, traffic)
    reader, writer = (Steps(side, expected) for side in (reads, writes))
    read = prefill(
        reader, traffic, copies=readers, transfer_s=travel, overlapped=when is KvTransfer.OVERLAPPED
    )  # fmt: skip
    order = np.argsort(read.ready_s, kind="stable")
    ready = replace(traffic.only(order), arrival_s=read.ready_s[order])
    servers = common["copies"] * writer.apart
    served = _shared(
        writer, ready, servers, policy=policy, max_batch=common["max_batch"], block=common["block"],
        read_elsewhere=True,
    )  # fmt: skip
    back = np.argsort(order)
    return Simulation(
        setting=writes, servers=servers, policy=policy, closed=None, reads=reads, readers=readers,
        reading_utilization=read.utilization, start_s=read.start_s, first_s=served.first_s[back],
        finish_s=served.finish_s[back], gap_s=served.gap_s[back],
        preemptions=int(np.sum(served.preempted)), usage=served.usage, **common,
    )  # fmt: skip


def _shared(steps: Steps, traffic: Traffic, copies: int, **how: Any) -> Served:
    """What several copies make of the requests, which they get in turn."""
    each = [np.arange(copy, len(traffic), copies) for copy in range(min(copies, len(traffic)))]
    parts = [serve(steps, traffic.only(own), **how) for own in each]
    if len(parts) == 1:
        return parts[0]
    columns = {}
    for f in fields(Served):
        if f.name != "usage":
            column = np.empty(len(traffic), dtype=getattr(parts[0], f.name).dtype)
            for own, part in zip(each, parts, strict=True):
                column[own] = getattr(part, f.name)
            columns[f.name] = column
    usage = Usage(**{f.name: sum(getattr(part.usage, f.name) for part in parts) for f in fields(Usage)})
    return Served(usage=usage, **columns)


def summary(values: Times) -> dict[str, float | None]:
    """Mean, percentiles and the largest; None where there is nothing."""
    if not len(values):
        return dict.fromkeys(("mean", *(f"p{q}" for q in PERCENTILES), "max"))
    quantiles = np.percentile(values, PERCENTILES).tolist()
    named = {f"p{q}": value for q, value in zip(PERCENTILES, quantiles, strict=True)}
    return {"mean": float(np.mean(values)), **named, "max": float(np.max(values))}


def thinned(time_s: Times, values: Times) -> tuple[Times, Times]:
    """At most _POINTS of them, evenly, the first and the last included."""
    if len(time_s) <= _POINTS:
        return time_s, values
    place = np.linspace(0, len(time_s) - 1, _POINTS).astype(int)
    return time_s[place], values[place]


def _counted(come: Times, go: Times) -> tuple[Times, Times]:
    """When those who have come and not gone change in number, and how many they are from then on."""
    time_s = np.concatenate((come, go))
    order = np.argsort(time_s, kind="stable")
    change = np.concatenate((np.ones(len(come)), -np.ones(len(go))))
    return time_s[order], np.cumsum(change[order])
