"""max_throughput(): the maximum throughput of replicas of a model, whose queue is never empty."""

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
from ..options import ServedOptions, document_options, only
from ..records import RenamedField, frozen
from ..rows import Rows
from ..setting import Setting, setting_of, whole_number
from .lengths import Lengths, Tokens
from .metrics import Span
from .offered_traffic import check_requests, length_distributions
from .options import SaturationArguments
from .outcome import LOCKSTEP_SHARE, step_shares, summary, waiting_for_prompts
from .policy import FIRST_COME_FIRST_SERVED, Policy, parse_policy
from .scheduler import WATERMARK
from .server import serve_saturated
from .simulation import check_server_options, scheduling_options
from .steady import SteadyState, steady
from .steps import OUTPUT_SAMPLES, Steps
from .traffic import Traffic

SCHEMA_VERSION: Final = 1  # of to_dict()
_DEFAULT_MAX_BATCH: Final = 2048  # running sequences per rank, if memory allows
_MIN_ROUNDS: Final = 6  # requests per running sequence; warm-up and drain take about one round each
_MIN_REQUESTS: Final = 1000
_KV_MARGIN_DEVIATIONS: Final = 3.0  # KV memory above its mean use, in standard deviations of the total
CHUNKS: Final = (512, 1024, 2048, 4096, 8192)  # token budgets of a step that are tried without a policy
_NEAR_MAX_THROUGHPUT: Final = 0.99  # share of the highest throughput from which a smaller budget is preferred
_FLAT_THROUGHPUT: Final = 0.95  # share of the throughput with half the sequences, from which memory is no bottleneck
_PREFILL_BOUND_SHARE: Final = 0.5  # share of running sequences that decode, below which prefill is the bottleneck


@frozen(kw_only=True)
class Sustained:
    """Sustained throughput of all replicas together.

    policy    scheduling policy of each replica
    capped    whether concurrent sequences are limited by max_batch, not by memory
    running   mean sequences in progress per replica; `decoding`: those that decode, by Little's law
    halved    throughput with half as many concurrent sequences over this one, in closed form
    span_s    measured time span of one server, without the steps in which it fills or drains
    ranks     ranks that wait for each other in every step
    closed    closed form of one replica; None if ranks wait for each other
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
    ranks: int
    closed: SteadyState | None

    @property
    def limit(self) -> str:
        """Bottleneck, in words."""
        usage, busy = self.span.usage, self.span_s
        blocked_by_memory, blocked_by_limit = usage.full_s / busy, usage.crowded_s / busy
        prefilling = (usage.reading_s + usage.mixed_s) / busy
        if self.ranks > 1 and self.policy.hold == 1 and prefilling > LOCKSTEP_SHARE:
            bottleneck = waiting_for_prompts(self.policy, self.ranks, prefilling)
        elif self.ranks > 1 and usage.reading_s / busy > _PREFILL_BOUND_SHARE:
            bottleneck = f"Prefill (all ranks prefill {usage.reading_s / busy:.0%} of the time)"
        elif self.policy.drains:
            bottleneck = f"Static batches (no request is admitted until all {self.running:.0f} running ones finish)"
        elif self.decoding < _PREFILL_BOUND_SHARE * self.running:
            bottleneck = (
                f"Prefill ({self.decoding:.0f} of {self.running:.0f} running requests per replica decode, the "
                "others are in prefill, so more KV memory would change little)"
            )
        elif self.halved > _FLAT_THROUGHPUT:
            bottleneck = (
                f"Step time (half of the {self.running:.0f} running requests would give "
                f"{min(self.halved, 1):.0%} of the throughput, so more KV memory would change little)"
            )
        elif blocked_by_memory >= blocked_by_limit or not self.capped:
            blocked_share = blocked_by_memory if self.capped else blocked_by_memory + blocked_by_limit
            bottleneck = f"KV-cache capacity (a request waits for KV memory {blocked_share:.0%} of the time)"
        else:
            bottleneck = f"Batch limit (a request waits at max batch {blocked_by_limit:.0%} of the time; --max-batch)"
        return f"{bottleneck}. Step time: {step_shares(usage, busy)}."

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
    """Maximum throughput of replicas: at the bound, and as expected if expected times are known.

    searched  whether the policy was searched, as none was given
    traffic   requests of one server (a replica, or a rank that takes steps independently), which stands for all
    unknown   why there are no expected times; "" if there are, or if only bounds were requested
    """

    report: ClassVar = "saturation"

    setting: Setting = field(repr=False)
    policy: Policy
    searched: bool
    replicas: int
    max_batch: int
    block: int
    seed: int
    traffic: Traffic = field(repr=False)
    years: float | None
    bound: Sustained
    expected: Sustained | None
    unknown: str

    copies = RenamedField("replicas")

    @property
    def likely(self) -> Sustained:
        """Expected throughput, or that at the bound if unknown."""
        return self.expected or self.bound

    @property
    def devices(self) -> int:
        return self.setting.layout.devices * self.replicas

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
            "engine": setting.engine.name if setting.engine else None, "replicas": self.replicas,
            "copies": self.replicas,
            "max_batch": self.max_batch, "block": self.block, "seed": self.seed, "requests": len(self.traffic),
            "mean_prompt": float(np.mean(self.traffic.prompt)), "mean_gen": float(np.mean(self.traffic.gen)),
            "years": self.years,
        })  # fmt: skip

    def rows(self) -> Iterator[dict[str, Any]]:
        """Rows of the CSV table: at the bound, and expected."""
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


@arguments.renamed_arguments(copies="replicas")
@document_options(SaturationArguments)
def max_throughput(
    model: str | Model | Setting,
    hardware: str | Hardware | None = None,
    *,
    progress: Callable[[int, int], object] = lambda finished, requests: None,
    **options: Unpack[SaturationArguments],
) -> Saturation:
    """Simulates the maximum throughput of `replicas` of a model, with all requests queued at the start.

    The throughput is measured from when the requests admitted first have finished until the queue is empty.

    progress  called with the number of finished requests, and of all; they are served twice unless `bound`

    The options of the setting are as in analyze(); a Setting may replace model, hardware and these.

    Raises InputError if an argument is invalid, a request does not fit the memory, or there are too few requests.
    """
    values = arguments.with_defaults(options, SaturationArguments)
    policy, max_batch, requests, years = (
        values["policy"],
        values["max_batch"],
        values["requests"],
        values["years"],
    )
    arguments.check_positive(years=years)
    max_batch = None if max_batch is None else whole_number("max_batch", max_batch)
    replicas, seed = (
        whole_number("replicas", values["replicas"]),
        whole_number("seed", values["seed"], least=0),
    )
    setting = setting_of(model, hardware, **only(options, ServedOptions))
    bound = setting.bound
    search_policy = policy is None and setting.engine is None
    device = loaded(hardware) if hardware is not None else setting.hardware
    parsed_policy, block, limit = scheduling_options(setting.engine, values, device, setting.layout)
    if parsed_policy.order != FIRST_COME_FIRST_SERVED:
        raise InputError(f"policy must leave out order where all requests are queued at the start; got {policy!r}")
    steps = Steps(setting)
    lengths = length_distributions(values)
    sample = all_at_start(lengths, _MIN_REQUESTS, seed).with_acceptance(steps.acceptance_probabilities, seed)
    check_server_options(setting.engine, values, int(np.max(sample.prompt + sample.gen)))
    unknown = "" if bound else steps.unknown
    runs = (steps,) if bound or unknown else (steps, Steps(setting, expected=True))
    if search_policy:
        parsed_policy, _ = best_chunks(runs[-1], sample, block=block, max_batch=max_batch)
    limit = limit or _DEFAULT_MAX_BATCH
    running_limit = (
        min(_sequences_that_fit(steps, sample, parsed_policy, block), limit) if max_batch is None else max_batch
    )
    capped = max_batch is not None or running_limit == limit
    traffic, spans = _measure(
        runs,
        lengths,
        requests,
        policy=parsed_policy,
        max_batch=running_limit,
        block=block,
        seed=seed,
        progress=progress,
    )
    bounds, *expected = (
        _sustained(run, span, traffic, parsed_policy, max_batch=running_limit, replicas=replicas, capped=capped)
        for run, span in zip(runs, spans, strict=True)
    )
    return Saturation(
        setting=setting, policy=parsed_policy, searched=search_policy, replicas=replicas, max_batch=running_limit,
        block=block, seed=seed, traffic=traffic, years=years, bound=bounds, expected=expected[0] if expected else None,
        unknown=unknown,
    )  # fmt: skip


def _measure(
    runs: Sequence[Steps],
    lengths: Sequence[Lengths],
    requests: int | None,
    *,
    policy: Policy,
    max_batch: int,
    block: int,
    seed: int,
    progress: Callable[[int, int], object],
) -> tuple[Traffic, list[Span]]:
    """Simulates requests that are all queued at the start, and returns them with the measured span of each run.

    requests  None: as many as the measurement takes

    Raises InputError for too few requests.
    """
    num_running = runs[0].ranks * max_batch
    count = max(_MIN_REQUESTS, _MIN_ROUNDS * num_running) if requests is None else requests
    while True:
        traffic = all_at_start(lengths, check_requests(count), seed).with_acceptance(
            runs[0].acceptance_probabilities, seed
        )
        waiting = _with_running(traffic, 0 if policy.drains else num_running, seed)
        num_requests = len(waiting[0])
        results = [
            serve_saturated(
                run,
                *waiting,
                policy=policy,
                max_batch=max_batch,
                block=block,
                progress=partial(_report_progress, progress, place * num_requests, len(runs) * num_requests),
            )
            for place, run in enumerate(runs)
        ]
        spans = [span for span in results if span]
        if len(spans) == len(runs):
            return traffic, spans
        if requests is not None:
            raise InputError(
                f"requests must be more than {count}: the queue is empty before a replica with max batch {max_batch} "
                "is past its warm-up; leave requests out for as many as the measurement takes"
            )
        count *= 2


def _report_progress(progress: Callable[[int, int], object], before: int, requests: int, finished: int) -> None:
    """Reports the progress of one of several runs."""
    progress(before + finished, requests)


def all_at_start(lengths: Sequence[Lengths], count: int, seed: int) -> Traffic:
    """Requests that all arrive at the start."""
    generator = np.random.default_rng(seed)
    prompts, gens = (each.draw(generator, count) for each in lengths)
    return Traffic(arrival_s=np.zeros(count), prompt=prompts, gen=gens)


def best_chunks(
    steps: Steps, traffic: Traffic, *, block: int, max_batch: int | None = None
) -> tuple[Policy, SteadyState]:
    """The smallest chunked-prefill budget near the highest throughput, since small chunks delay decoding least, and its
    steady state.
    """
    states: dict[Policy, SteadyState] = {}
    for tokens in CHUNKS:
        policy = parse_policy(f"chunked:{tokens}")
        limit = _sequences_that_fit(steps, traffic, policy, block) if max_batch is None else max_batch
        states[policy] = steady(steps, traffic, rate=np.inf, policy=policy, max_batch=limit)
    best = max(each.max_rate for each in states.values())
    return next((policy, each) for policy, each in states.items() if each.max_rate >= _NEAR_MAX_THROUGHPUT * best)


def _with_running(traffic: Traffic, count: int, seed: int) -> tuple[Traffic, Tokens]:
    """Prepends `count` running requests to the traffic, and returns it with their completed passes.

    They are those of a busy server at a random time, when long outputs are more frequent than among arrivals. Equal
    requests that all started together would also finish together, again and again.
    """
    generator = np.random.default_rng(seed)
    passes = traffic.progress.passes
    running = generator.choice(len(traffic), size=count, p=passes / np.sum(passes))
    completed_passes = (generator.random(count) * passes[running]).astype(np.int64)
    return traffic.only(np.concatenate((running, np.arange(len(traffic))))), completed_passes


def _sequences_that_fit(steps: Steps, traffic: Traffic, policy: Policy, block: int) -> int:
    """Number of sequences, each anywhere in its output, that fit the KV budget of a rank nearly always; more cause
    preemptions.
    """
    common = np.broadcast_to(steps.shared_prefix_tokens(traffic.prompt), len(traffic)) // block * block
    budget_bytes = steps.kv_budget_bytes(policy.most_read(int(np.max(traffic.prompt)))) - steps.shared_prefix_bytes(
        traffic.prompt
    )
    budget_bytes *= 1 - WATERMARK
    weights = traffic.gen / np.sum(traffic.gen)
    output_fraction = (np.arange(OUTPUT_SAMPLES) + 0.5) / OUTPUT_SAMPLES
    tokens = (
        (traffic.prompt - common)[:, None] + output_fraction * traffic.gen[:, None] + block / 2 + steps.draft_tokens
    )
    each = np.broadcast_to(steps.cache_bytes(tokens), tokens.shape)
    mean = float(weights @ np.mean(each, axis=1))
    spread = sqrt(float(weights @ np.mean((each - mean) ** 2, axis=1)))
    count = (
        (sqrt((_KV_MARGIN_DEVIATIONS * spread) ** 2 + 4 * mean * max(budget_bytes, 0)) - _KV_MARGIN_DEVIATIONS * spread)
        / (2 * mean)
    ) ** 2
    return int(min(max(count, 1), _DEFAULT_MAX_BATCH))


def _sustained(
    steps: Steps, span: Span, traffic: Traffic, policy: Policy, *, max_batch: int, replicas: int, capped: bool
) -> Sustained:
    """Throughput from the time of prefill and mixed steps per prompt, and of decode steps per output.

    A span that ends within a wave of equal requests has more of one than of the other.
    """
    usage, gen = span.usage, float(np.mean(traffic.gen))
    busy, answers = usage.busy_s, usage.written / gen
    closed, half = (
        steady(steps, traffic, rate=np.inf, policy=policy, max_batch=max_rate_limit)
        for max_rate_limit in (max_batch, -(-max_batch // 2))
    )
    requests = steps.rank_sets / ((usage.reading_s + usage.mixed_s) / span.begun + usage.decoding_s / answers)
    return Sustained(
        policy=policy, capped=capped, tokens_per_s=replicas * requests * gen, requests_per_s=replicas * requests,
        running=steps.rank_sets * span.usage.sequence_s / busy, decoding=requests * span.decoding_s,
        halved=half.max_rate / closed.max_rate, span_s=busy, span=span, ranks=steps.ranks,
        closed=closed if steps.ranks == 1 else None,
    )  # fmt: skip
