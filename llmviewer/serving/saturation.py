"""saturate(): the maximum throughput of copies of a model, with requests always waiting."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, field
from functools import partial
from math import sqrt
from typing import Any, ClassVar, Final, Unpack

import numpy as np

from .. import __version__, arguments
from ..analyzing.costs import per_dollar, per_joule
from ..analyzing.facts import finite
from ..devices.files import loaded
from ..devices.hardware import Hardware
from ..errors import InputError
from ..model import Model
from ..options import ServedOptions, document_options
from ..records import frozen
from ..rows import Rows
from ..setting import Setting, setting_of, whole_number
from .lengths import Lengths, Tokens
from .metrics import Span
from .outcome import summary
from .policy import Policy, parse_policy
from .scheduler import WATERMARK
from .server import saturate as span_of
from .simulation import check_requests, drawn_from, scheduler
from .steady import SteadyState, steady
from .steps import PARTS, Steps
from .traffic import Traffic

SCHEMA_VERSION: Final = 1  # of to_dict()
_MOST: Final = 2048  # sequences at a time, if memory has room and nothing else is said
_ROUNDS: Final = 6  # requests over those at a time: in the last it runs empty, the others are measured
_LEAST: Final = 1000  # requests
_SURE: Final = 3.0  # standard deviations of all caches together for which there is room above their mean
CHUNKS: Final = (512, 1024, 2048, 4096, 8192)  # tokens of a step, if nothing is said
_ABOUT: Final = 0.99  # of the most
_NEARLY: Final = 0.95  # of what is served, with half of the sequences
_MOSTLY: Final = 0.5  # of the sequences that are worked on, when more of them would change nothing


@frozen(kw_only=True)
class Sustained:
    """Sustained throughput of all copies together.

    policy    scheduling policy of each copy
    capped    whether concurrent sequences are limited by max_batch, not by memory
    running   mean sequences in progress per copy; `decoding`: those that decode, by Little's law
    halved    throughput with half as many concurrent sequences over this one, in closed form
    span_s    measured time span of one server, without the steps in which it fills or drains
    closed    closed form of one copy; None if ranks wait for each other
    """

    policy: Policy
    capped: bool
    tokens_per_s: float
    requests_per_s: float
    running: float
    decoding: float
    halved: float
    span_s: float
    span: Span = field(repr=False)
    closed: SteadyState | None

    @property
    def limit(self) -> str:
        """Bottleneck, in words."""
        usage, busy = self.span.usage, self.span_s
        full, crowded = usage.full_s / busy, usage.crowded_s / busy
        if self.policy.drains:
            room = f"Batches that end together: nobody is taken up before all {self.running:.0f} others are answered"
        elif self.decoding < _MOSTLY * self.running:
            room = (
                f"Reading prompts: of {self.running:.0f} sequences at a time in each copy {self.decoding:.0f} decode, "
                "and the others are read or wait for it, so that room for more would change little"
            )
        elif self.halved > _NEARLY:
            room = (
                f"The steps themselves: half of the {self.running:.0f} sequences at a time would serve "
                f"{min(self.halved, 1):.0%} of it, so that room for more would change little"
            )
        elif full >= crowded or not self.capped:
            waits = full if self.capped else full + crowded
            room = f"Memory: in {waits:.0%} of the time the next request waits for room for its cache"
        else:
            room = f"The batch: in {crowded:.0%} of the time all places of it are taken (--max-batch)"
        parts = {
            "read prompts while nobody decodes": usage.reading_s,
            "read prompts beside those that decode": usage.mixed_s,
            "decode alone": usage.decoding_s,
        }
        steps = ", ".join(f"{time_s / busy:.0%} are steps that {what}" for what, time_s in parts.items() if time_s)
        return f"{room}. Of the time {steps}."

    def numbers(self) -> dict[str, Any]:
        """Results, for the JSON document."""
        closed = {"max_rate": self.closed.max_rate, "max_batch": self.closed.max_batch} if self.closed else None
        return {
            "span_s": self.span_s,
            "answered": self.span.answered,
            "tokens_per_s": self.tokens_per_s,
            "requests_per_s": self.requests_per_s,
            "mean_running": self.running,
            "mean_decoding": self.decoding,
            "tpot_s": summary(self.span.tpot_s),
            "gap_s": summary(self.span.gap_s),
            "preemptions": self.span.preemptions,
            "usage": asdict(self.span.usage),
            "limit": self.limit,
            "closed_form": closed,
        }


@frozen(kw_only=True, repr=False)
class Saturation(Rows):
    """Maximum throughput of copies: at the bound, and as expected if expected times are known.

    searched  whether the policy was searched, as none was given
    traffic   requests of one server (a copy, or a rank that takes steps independently), which stands for all
    unknown   why there are no expected times; "" if there are, or if only bounds were requested
    """

    report: ClassVar = "saturation"

    setting: Setting = field(repr=False)
    policy: Policy
    searched: bool
    copies: int
    max_batch: int
    block: int
    seed: int
    traffic: Traffic = field(repr=False)
    years: float | None
    bound: Sustained
    expected: Sustained | None
    unknown: str

    @property
    def likely(self) -> Sustained:
        """Expected throughput, or that at the bound if unknown."""
        return self.expected or self.bound

    @property
    def devices(self) -> int:
        return self.setting.layout.devices * self.copies

    def tokens_per_joule(self, run: Sustained) -> float:
        """Output tokens per joule at the TDP of all devices; nan if unknown. [1/J]"""
        return float(per_joule(run.tokens_per_s, [(self.setting.hardware, self.devices)]))

    def tokens_per_dollar(self, run: Sustained) -> float:
        """Output tokens per dollar at cloud prices, or at purchase prices over the years; nan if unknown. [1/USD]"""
        return float(per_dollar(run.tokens_per_s, [(self.setting.hardware, self.devices)], self.years))

    @property
    def inputs(self) -> dict[str, Any]:
        """The arguments, as in the JSON document."""
        setting = self.setting
        return finite({
            "rate": "max", "quant": str(setting.quantization), "layout": str(setting.layout),
            "techniques": list(map(str, setting.techniques)), "policy": str(self.policy),
            "library": setting.kernels.library if setting.kernels and self.expected else None,
            "engine": setting.engine.name if setting.engine else None, "copies": self.copies,
            "max_batch": self.max_batch, "block": self.block, "seed": self.seed, "requests": len(self.traffic),
            "mean_prompt": float(np.mean(self.traffic.prompt)), "mean_gen": float(np.mean(self.traffic.gen)),
            "years": self.years,
        })  # fmt: skip

    def rows(self) -> Iterator[dict[str, Any]]:
        """One at the bound, and one as expected."""
        for name, run in (("bound", self.bound), ("expected", self.expected)):
            if run:
                tpot = {f"tpot_{key}_s": value for key, value in summary(run.span.tpot_s).items()}
                yield {
                    "times": name, "devices": self.devices, "tokens_per_s": run.tokens_per_s,
                    "requests_per_s": run.requests_per_s, "mean_running": run.running, "mean_decoding": run.decoding,
                    **tpot, "preemptions": run.span.preemptions, "limit": run.limit,
                }  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """The JSON document; docs/serving.md has its keys."""
        return finite({
            "schema_version": SCHEMA_VERSION,
            "llmviewer_version": __version__,
            "model": self.setting.model.name,
            "hardware": self.setting.hardware.name,
            "inputs": self.inputs,
            "devices": self.devices,
            "tokens_per_step": self.traffic.tokens_per_step,
            **self._numbers(self.bound),
            "expected": self._numbers(self.expected) if self.expected else None,
            "unknown": self.unknown or None,
        })  # fmt: skip

    def _numbers(self, run: Sustained) -> dict[str, Any]:
        return run.numbers() | {
            "tokens_per_joule_at_tdp": self.tokens_per_joule(run), "tokens_per_dollar": self.tokens_per_dollar(run),
        }  # fmt: skip


@document_options(ServedOptions)
def saturate(
    model: str | Model | Setting,
    hardware: str | Hardware | None = None,
    *,
    prompt_lengths: int | str | None = None,
    gen_lengths: int | str | None = None,
    policy: str | None = None,
    requests: int | None = None,
    seed: int = 0,
    max_batch: int | None = None,
    block: int | None = None,
    copies: int = 1,
    years: float | None = None,
    progress: Callable[[int, int], object] = lambda finished, requests: None,
    **options: Unpack[ServedOptions],
) -> Saturation:
    """The maximum throughput of `copies`, with all requests waiting from the start.

    It is measured from the end of the first sequences (of the first batch, if the policy serves whole batches) until no
    request waits.

    policy     None: that of the engine; without an engine, chunks of the size with the highest throughput
    requests   requests per copy; None: at least six times the concurrent sequences, and at least 1000
    max_batch  most concurrent sequences; None: as many as fit the memory, up to the limit of the engine, or 2048
    progress   called with the number of finished requests, and of all; they are served twice unless `bound`
    The other arguments and the options are as in simulate(); a Setting may replace model, hardware and options.

    Raises InputError if an argument is invalid, a request does not fit the memory, or there are too few requests.
    """
    arguments.check_positive(years=years)
    arguments.check_options(options, ServedOptions)
    max_batch = None if max_batch is None else whole_number("max_batch", max_batch)
    copies, seed = whole_number("copies", copies), whole_number("seed", seed, least=0)
    setting = setting_of(model, hardware, **options)
    engine, bound = setting.engine.name if setting.engine else "", setting.bound
    free = policy is None and not engine
    device = loaded(hardware) if hardware is not None else setting.hardware
    chosen, block, limit = scheduler(engine, policy, block, device, setting.layout)
    steps = Steps(setting)
    lengths = drawn_from(prompt_lengths, gen_lengths)
    some = at_once(lengths, _LEAST, seed).leaving(steps.leaves, seed)
    unknown = "" if bound else steps.unknown
    runs = (steps,) if bound or unknown else (steps, Steps(setting, expected=True))
    if free:
        chosen, _ = fullest(runs[-1], some, block=block, max_batch=max_batch)
    limit = limit or _MOST
    most = min(_fitting(steps, some, chosen, block), limit) if max_batch is None else max_batch
    capped = max_batch is not None or most == limit
    traffic, spans = _busy(runs, lengths, requests, policy=chosen, most=most, block=block, seed=seed, progress=progress)
    bounds, *expected = (
        _sustained(run, span, traffic, chosen, max_batch=most, copies=copies, capped=capped)
        for run, span in zip(runs, spans, strict=True)
    )
    return Saturation(
        setting=setting, policy=chosen, searched=free, copies=copies, max_batch=most, block=block, seed=seed,
        traffic=traffic, years=years, bound=bounds, expected=expected[0] if expected else None, unknown=unknown,
    )  # fmt: skip


def _busy(
    runs: Sequence[Steps],
    lengths: Sequence[Lengths],
    requests: int | None,
    *,
    policy: Policy,
    most: int,
    block: int,
    seed: int,
    progress: Callable[[int, int], object],
) -> tuple[Traffic, list[Span]]:
    """Requests that all wait from the start, as many as it takes if None, and the span of each run that is measured.

    Raises InputError where there are too few of them.
    """
    together = runs[0].ranks * most
    count = max(_LEAST, _ROUNDS * together) if requests is None else requests
    while True:
        traffic = at_once(lengths, check_requests(count), seed).leaving(runs[0].leaves, seed)
        waiting = _midway(traffic, 0 if policy.drains else together, seed)
        every = len(waiting[0])
        found = [
            span_of(
                run,
                *waiting,
                policy=policy,
                max_batch=most,
                block=block,
                progress=partial(_of_runs, progress, place * every, len(runs) * every),
            )
            for place, run in enumerate(runs)
        ]
        spans = [span for span in found if span]
        if len(spans) == len(runs):
            return traffic, spans
        if requests is not None:
            raise InputError(
                f"requests must be more than {count}: nobody waits any more before a copy with up to {most} at a time "
                "is past its start; leave it out for as many as it takes"
            )
        count *= 2


def _of_runs(progress: Callable[[int, int], object], before: int, requests: int, finished: int) -> None:
    """Reports progress of one run as that of several."""
    progress(before + finished, requests)


def at_once(lengths: Sequence[Lengths], count: int, seed: int) -> Traffic:
    """Requests that are all there at the start."""
    generator = np.random.default_rng(seed)
    prompts, gens = (each.draw(generator, count) for each in lengths)
    return Traffic(arrival_s=np.zeros(count), prompt=prompts, gen=gens)


def fullest(steps: Steps, traffic: Traffic, *, block: int, max_batch: int | None = None) -> tuple[Policy, SteadyState]:
    """The smallest chunks with which about as much is served as with any, since they keep others waiting least; and the
    closed form of what is served at most with them.
    """
    found: dict[Policy, SteadyState] = {}
    for tokens in CHUNKS:
        policy = parse_policy(f"chunked:{tokens}")
        most = _fitting(steps, traffic, policy, block) if max_batch is None else max_batch
        found[policy] = steady(steps, traffic, rate=np.inf, policy=policy, max_batch=most)
    best = max(each.max_rate for each in found.values())
    return next((policy, each) for policy, each in found.items() if each.max_rate >= _ABOUT * best)


def _midway(traffic: Traffic, count: int, seed: int) -> tuple[Traffic, Tokens]:
    """The traffic after `count` running requests, with the passes that these have completed: the state of a busy server
    at a random time, in which long outputs are more frequent. Equal requests that all started together would also
    finish together, again and again.
    """
    generator = np.random.default_rng(seed)
    passes = traffic.progress.passes
    some = generator.choice(len(traffic), size=count, p=passes / np.sum(passes))
    taken = (generator.random(count) * passes[some]).astype(np.int64)
    return traffic.only(np.concatenate((some, np.arange(len(traffic))))), taken


def _fitting(steps: Steps, some: Traffic, policy: Policy, block: int) -> int:
    """Sequences that mostly fit the KV budget of a rank, each anywhere in its output; with more, some are preempted."""
    common = np.broadcast_to(steps.in_common(some.prompt), len(some)) // block * block
    room = steps.room_bytes(policy.most_read(int(np.max(some.prompt)))) - steps.common_bytes(some.prompt)
    room *= 1 - WATERMARK
    often = some.gen / np.sum(some.gen)
    part = (np.arange(PARTS) + 0.5) / PARTS
    tokens = (some.prompt - common)[:, None] + part * some.gen[:, None] + block / 2 + steps.ahead
    each = np.broadcast_to(steps.cache_bytes(tokens), tokens.shape)
    mean = float(often @ np.mean(each, axis=1))
    spread = sqrt(float(often @ np.mean((each - mean) ** 2, axis=1)))
    count = ((sqrt((_SURE * spread) ** 2 + 4 * mean * max(room, 0)) - _SURE * spread) / (2 * mean)) ** 2
    return int(min(max(count, 1), _MOST))


def _sustained(
    steps: Steps, span: Span, traffic: Traffic, policy: Policy, *, max_batch: int, copies: int, capped: bool
) -> Sustained:
    """Throughput from the time of prefills per prompt, mixed steps included, and of other decode steps per output: a
    span that ends within a wave has more of one than of the other.
    """
    usage, gen = span.usage, float(np.mean(traffic.gen))
    busy, answers = usage.busy_s, usage.written / gen
    closed, half = (
        steady(steps, traffic, rate=np.inf, policy=policy, max_batch=most) for most in (max_batch, -(-max_batch // 2))
    )
    requests = steps.apart / ((usage.reading_s + usage.mixed_s) / span.begun + usage.decoding_s / answers)
    return Sustained(
        policy=policy, capped=capped, tokens_per_s=copies * requests * gen, requests_per_s=copies * requests,
        running=steps.apart * span.usage.sequence_s / busy, decoding=requests * span.decoding_s,
        halved=half.max_rate / closed.max_rate, span_s=busy, span=span, closed=closed if steps.ranks == 1 else None,
    )  # fmt: skip
