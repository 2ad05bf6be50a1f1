"""Requests over time: queueing laws, hand-made cases, the closed form, reports and errors."""

import json
import math
import re
import time
from dataclasses import replace

import numpy as np
import pytest

from llmviewer.analyzing.analysis import analyze
from llmviewer.cli import main
from llmviewer.documents import read_json
from llmviewer.errors import InputError
from llmviewer.memory import weight_bytes
from llmviewer.model import kv_cache_bytes
from llmviewer.reports.serving import REPORT
from llmviewer.resource import Unit
from llmviewer.serving.demand import _grouped
from llmviewer.serving.kv_cache import Blocks
from llmviewer.serving.lengths import PUBLISHED, parse_lengths
from llmviewer.serving.outcome import summary
from llmviewer.serving.policy import POLICIES, parse_policy
from llmviewer.serving.scheduler import Scheduler
from llmviewer.serving.server import _steps_until, serve
from llmviewer.serving.simulation import simulate
from llmviewer.serving.steady import steady
from llmviewer.serving.steps import Steps
from llmviewer.serving.trace_files import read_traffic
from llmviewer.serving.traffic import Traffic, poisson, poisson_arrivals
from llmviewer.setting import Setting
from llmviewer.units import seconds, si
from llmviewer.workload import Spans, Workload

from .cases import first_fast

ALL = ("static", "decode-first", "prefill-first", "fcfs", "chunked:128", "prefill-chunks:128")
FLOWING = ("prefill-first", "fcfs", "chunked:512")
LENGTHS = {"prompt_lengths": "lognormal:mean=512,p95=1536", "gen_lengths": "uniform:1-300"}


@pytest.fixture(scope="module")
def steps():
    return Steps(Setting.of("llama-3.1-8b", "h100-sxm"))


def traffic(*requests):
    """Requests as (arrival, prompt, gen)."""
    arrival, prompt, gen = (np.array(column) for column in zip(*requests, strict=True))
    return Traffic(arrival_s=arrival.astype(float), prompt=prompt, gen=gen)


def served(steps, requests, policy="prefill-first", max_batch=64, block=16, **how):
    return serve(steps, requests, policy=parse_policy(policy), max_batch=max_batch, block=block, **how)


# --- single requests, by hand ---


def test_a_request_alone_takes_its_prefill_and_its_decode_steps(steps):
    found = served(steps, traffic((1.5, 700, 40)))
    plan = steps.setting.plan
    read = float(plan.time_s(Workload.prefill(batch=1, prompt=700)))
    decode = sum(float(plan.time_s(Workload.decode(batch=1, kv_len=700 + i))) for i in range(1, 40))
    assert found.first_s[0] == pytest.approx(1.5 + read)
    assert found.finish_s[0] == pytest.approx(1.5 + read + decode, rel=1e-4)


@pytest.mark.parametrize("policy", ALL)
def test_one_token_is_there_with_the_prefill(steps, policy):
    found = served(steps, traffic((0, 300, 1)), policy)
    assert found.first_s[0] == found.finish_s[0] > 0
    assert found.usage.decoding_s == 0


def test_long_prompt_blocks_short_ones_without_chunked_prefill(steps):
    """Head-of-line blocking: whole prompts block decodes, chunked prefill does not."""
    requests = traffic((0, 100, 200), (0.1, 60_000, 2), (0.11, 100, 2))
    whole = served(steps, requests, "prefill-first")
    parts = served(steps, requests, "chunked:512")
    long_s = float(steps.prefill_s(60_000.0))
    assert whole.first_s[2] - 0.11 > 0.95 * long_s
    assert whole.gap_s[0] > 0.95 * long_s
    assert parts.gap_s[0] < whole.gap_s[0] / 20
    assert parts.first_s[1] > whole.first_s[1]  # parts read the cache again


def test_parts_of_a_prompt_read_the_cache_again_as_the_engine_counts_it(steps):
    found = served(steps, traffic((0, 4096, 1)), "chunked:512")
    plan = steps.setting.plan
    parts = [Workload((Spans(batch=1, q_len=512, kv_len=512 * i, logits=float(i == 8)),)) for i in range(1, 9)]
    assert found.first_s[0] == pytest.approx(sum(float(plan.time_s(part)) for part in parts))
    assert found.first_s[0] > float(steps.prefill_s(4096.0))


def test_a_mixed_step_is_one_workload_of_two_groups(steps):
    groups = Spans(batch=8.0, q_len=1.0, kv_len=500.0), Spans(batch=1.0, q_len=256.0, kv_len=256.0)
    both = steps.step_s([groups])
    alone = float(steps.prefill_s(256.0)) + steps.decoding_s([(8, 500.0)])
    assert max(float(steps.prefill_s(256.0)), steps.decoding_s([(8, 500.0)])) < both < alone


def test_decode_first_prefills_nothing_while_requests_decode(steps):
    found = served(steps, traffic((0, 100, 500), (0.1, 100, 10)), "decode-first")
    assert found.start_s[1] == pytest.approx(found.finish_s[0])


def test_static_batches_end_together_and_are_padded(steps):
    requests = traffic((0, 100, 10), (0.001, 200, 20), (0.001, 300, 40))
    found = served(steps, requests, "static")
    assert found.finish_s[1] == found.finish_s[2] > found.finish_s[0]
    assert found.usage.padding == (300 - 200) + (40 - 20)
    plan = steps.setting.plan
    read = float(plan.time_s(Workload.prefill(batch=2, prompt=300)))
    decode = sum(float(plan.time_s(Workload.decode(batch=2, kv_len=300 + i))) for i in range(1, 40))
    assert found.finish_s[1] == pytest.approx(found.finish_s[0] + read + decode)


def test_running_batch_never_exceeds_the_limit(steps):
    requests = traffic(*((0, 100, 50) for _ in range(10)))
    found = served(steps, requests, max_batch=4)
    for moment in found.start_s:
        assert np.sum((found.start_s <= moment) & (found.finish_s > moment)) <= 4
    assert found.usage.crowded_s > 0
    assert found.usage.full_s == 0


# --- memory ---


@pytest.fixture(scope="module")
def tight():
    return Steps(Setting.of("llama-3.1-8b", "h100-sxm", hardware_set=["memory.capacity=18 GB"]))


def test_preempted_requests_are_recomputed_and_generate_every_token(tight):
    requests = traffic(*((0.001 * i, 1000, 800) for i in range(12)))
    found = served(tight, requests)
    assert found.preempted.sum() > 0
    assert found.usage.reread > 1000
    assert found.usage.read == 12_000
    assert found.usage.written == 12 * 800
    assert found.usage.full_s > 0
    assert 0.9 * found.usage.room_bytes < found.usage.peak_bytes <= found.usage.room_bytes
    assert found.preempted[0] == 0  # the first that came is never sent away
    assert not np.any(np.isnan(found.finish_s))


@pytest.mark.parametrize("policy", ["prefill-first", "chunked:128", "decode-first"])
def test_a_head_of_the_queue_without_room_is_tried_again_as_soon_as_it_could_be_admitted(tight, policy, monkeypatch):
    prompts, gens = parse_lengths("uniform:200-900", "prompts"), parse_lengths("uniform:1-300", "gens")
    requests = poisson(rate=40, prompts=prompts, gens=gens, requests=100, generator=np.random.default_rng(3))
    found = served(tight, requests, policy)
    assert found.usage.full_s + found.usage.crowded_s > 0
    admit = Scheduler.admit_waiting

    def always_tried(self, now_s):
        self._blocked = -1, -1, ""
        admit(self, now_s)

    monkeypatch.setattr(Scheduler, "admit_waiting", always_tried)
    monkeypatch.setattr(Scheduler, "max_used_bytes", Scheduler.used_bytes)
    tried = served(tight, requests, policy)
    assert np.array_equal(tried.finish_s, found.finish_s)
    assert tried.usage == found.usage


def test_draining_policies_never_preempt(tight):
    requests = traffic(*((0.001 * i, 1000, 800) for i in range(12)))
    for policy in ("static", "decode-first"):
        found = served(tight, requests, policy)
        assert found.preempted.sum() == 0
        assert found.usage.peak_bytes <= found.usage.room_bytes


def test_a_padded_batch_has_memory_for_the_longest_of_each(tight):
    """Activations of the whole batch read at once included, as analyze() counts them."""
    requests = traffic(*((0, 500 + 100 * (i % 3), 300) for i in range(40)))
    found = served(tight, requests, "static", max_batch=40)
    first = int(np.sum(found.start_s == found.start_s[0]))
    prompt = int(np.max(requests.prompt[:first]))
    needed = [tight.setting.footprint.total_bytes(batch=n, prompt=prompt, gen=300) for n in (first, first + 1)]
    assert needed[0] <= tight.setting.hardware.capacity < needed[1]
    assert found.usage.full_s > 0


def test_requests_of_one_token_have_no_times_between_tokens():
    """Half of the requests have one token: the others' times between tokens alone are summarized."""
    run = simulate(
        "llama-3.2-1b", "h100-sxm", rate=1, requests=20, prompt_lengths=100, gen_lengths="uniform:1-2", seed=1
    )
    several = run.traffic.gen > 1
    assert 0 < np.sum(several) < 20
    metrics = run.metrics
    assert metrics["gap_s"] == pytest.approx(metrics["tpot_s"])  # of two tokens there is one such time
    assert len(metrics["gap_s"]) == np.sum(several)


def test_the_longest_gap_is_the_longest_wait(steps):
    """Two steps of reading are in the way of one that decodes, one after the other."""
    found = served(steps, traffic((0, 100, 50), (0.05, 3000, 1), (0.05, 3000, 1)))
    stalled = 2 * float(steps.prefill_s(3000.0)) + steps.decoding_s([(1, 150.0)])
    assert found.gap_s[0] == pytest.approx(stalled, rel=1e-3)


def test_blocks_round_up_to_the_block_size(steps):
    blocks = Blocks.of(steps, room_bytes=1e9, size=16, longest=100)
    each = 32 * 2 * 8 * 128 * 2  # layers, keys and values, heads, their size, bytes
    assert [blocks.bytes_of_one(n) for n in (1, 16, 17, 100)] == [16 * each, 16 * each, 32 * each, 112 * each]
    assert blocks.bytes_of(np.array([1, 17])) == 48 * each


def test_larger_blocks_waste_more(tight):
    requests = traffic(*((0.001 * i, 1000, 300) for i in range(12)))
    ends = [served(tight, requests, block=block).finish_s.max() for block in (1, 16, 1024)]
    assert ends[0] <= ends[1] * 1.001 < ends[2]


def test_request_too_large_for_memory_is_refused_in_one_line(tight):
    with pytest.raises(
        InputError,
        match=r"with a request of 130000 tokens does not fit h100-sxm: on a device of 18\.0 GB, weights take",
    ) as error:
        served(tight, traffic((0, 100_000, 30_000)))
    assert "\n" not in str(error.value)


# --- laws ---


@pytest.mark.parametrize("policy", ALL)
@pytest.mark.parametrize("rate", first_fast([0.5, 10, 60], "simulates thousands of requests"))
def test_tokens_are_conserved_and_times_are_in_order(policy, rate):
    bounds = simulate("llama-3.1-8b", "h100-sxm", rate=rate, policy=policy, requests=200, **LENGTHS)
    asked = bounds.traffic
    least = np.asarray(bounds.setting.plan.time_s(Workload.prefill(batch=1, prompt=asked.prompt)))
    for found in (bounds, bounds.expected):
        assert found.usage.read == asked.prompt.sum()
        assert found.usage.written == asked.gen.sum()
        assert np.all(asked.arrival_s <= found.start_s)
        assert np.all(found.start_s < found.first_s)
        assert np.all(found.first_s <= found.finish_s)
        assert np.all((found.finish_s > found.first_s) | (asked.gen == 1) | (policy == "static"))
        assert 0 < found.utilization <= 1 + 1e-9
        assert np.all(found.ttft_s >= least * (1 - 1e-9))


@pytest.mark.parametrize("policy", first_fast(ALL, "simulates thousands of requests", 2))
def test_little_s_law(policy):
    """L = lambda W: for the queue, the whole system and the running requests."""
    bounds = simulate("llama-3.1-8b", "h100-sxm", rate=8, policy=policy, requests=400, **LENGTHS)
    for found in (bounds, bounds.expected):
        for (moments, count), stayed in ((found.in_system, found.latency_s), (found.waiting, found.wait_s)):
            length = float(np.sum(count[:-1] * np.diff(moments))) / found.span_s
            assert count[-1] == 0
            assert length == pytest.approx(found.requests_per_s * float(np.mean(stayed)))
        if policy != "static":  # where a request is worked on from when it is taken up until it has its last token
            running = found.usage.sequence_s / found.span_s
            worked = float(np.mean(found.finish_s - found.start_s))
            assert running == pytest.approx(found.requests_per_s * worked, rel=0.03)


@pytest.mark.parametrize("outputs", [([200], [1]), ([20, 740], [0.75, 0.25])], ids=["equal", "two lengths"])
def test_decoding_is_the_queue_m_g_1_with_processor_sharing(outputs):
    """Prompts are cached, so that requests only decode, n at a time in steps of s(n): processor sharing in which each
    proceeds at 1/s(n). The number in the system depends on the distribution of outputs through its mean alone:
    P(n) is in proportion to the product of rate x tokens x s(k)/k up to n (Cohen, Acta Informatica 12, 1979).
    """
    steps, rate, count, context = Steps(Setting.of("llama-3.1-8b", "h100-sxm", bound=True)), 15, 6000, 4000
    generator = np.random.default_rng(3)
    gen = generator.choice(outputs[0], size=count, p=outputs[1])
    prompt, passes = np.full(count, context), gen - 1
    requests = Traffic(
        arrival_s=poisson_arrivals(rate, count, generator), prompt=prompt, gen=gen, cached=prompt - 1
    )  # fmt: skip
    found = served(steps, requests, "chunked:512", max_batch=400, block=1)
    mean_context = context + float(np.mean(passes**2) / np.mean(passes)) / 2  # of a sequence in a step
    each = np.arange(1, 150)
    step_s = np.array([float(steps.decode_s(batch=float(n), kv_len=mean_context)) for n in each])
    weights = np.concatenate(([1.0], np.cumprod(rate * np.mean(passes) * step_s / each)))
    mean_number = np.sum(np.arange(150) * weights) / np.sum(weights)
    assert np.mean(found.finish_s - found.first_s) == pytest.approx(mean_number / rate, rel=0.03)


@pytest.mark.parametrize("policy", [*ALL, "chunked:512,order=sjf", "prefill-first,order=srpt", "fcfs,order=mlfq"])
def test_no_schedule_beats_the_bound_of_its_work(policy):
    """No request is faster than alone; and all together need the OPs of every token at the fastest unit, and at least
    the bytes of every decode step's caches and of the weights once at the memory's bandwidth.
    """
    run = simulate("llama-3.1-8b", "h100-sxm", rate=60, policy=policy, requests=120, bound=True, **LENGTHS)
    setting, asked = run.setting, run.traffic
    prefill = setting.plan.estimate(Workload.prefill(batch=1, prompt=asked.prompt.astype(float)))
    middle = asked.prompt + asked.gen / 2.0
    step = setting.decode_plan.estimate(Workload.decode(batch=1, kv_len=middle))
    passes = asked.gen - 1
    alone_s = prefill.time_s + passes * step.time_s
    assert np.all(run.latency_s >= alone_s * (1 - 1e-6))
    rates = [setting.hardware.limit(one) for one in setting.hardware.rates if one.unit in (Unit.MATRIX, Unit.VECTOR)]
    ops = prefill.sum("ops") + passes * step.sum("ops")
    nbytes = weight_bytes(setting.graph) / 2 + np.sum(passes * step.sum("kv_bytes"))
    assert run.usage.busy_s >= np.sum(ops) / max(rates)
    assert run.usage.busy_s >= nbytes / setting.hardware.bandwidth()


def test_equal_seeds_reproduce_a_simulation():
    one, same, other = (
        simulate("llama-3.1-8b", "h100-sxm", rate=8, requests=100, seed=seed, **LENGTHS).to_dict() for seed in (1, 1, 2)
    )
    assert one == same
    assert one["times"] != other["times"]


@pytest.mark.parametrize("policy", first_fast(FLOWING, "simulates thousands of requests"))
def test_more_requests_a_second_wait_longer(policy):
    found = [
        simulate("llama-3.1-8b", "h100-sxm", rate=rate, policy=policy, requests=200, **LENGTHS)
        for rate in (0.2, 2, 20, 45, 200)
    ]
    for runs in (found, [one.expected for one in found]):
        for values in ([np.mean(one.ttft_s) for one in runs], [np.mean(one.tpot_s) for one in runs]):
            assert values == sorted(values)


# --- what is said of serving (seed ledger) ---


def test_a_cache_of_8_bits_serves_more_where_it_limits_the_batch():
    """Q-S2-01, BOUND: measured 1.49 times with fp8; twice at most, as twice as many sequences fit."""
    rates = [
        simulate(
            "llama-2-13b", "a100-sxm-80gb", rate=1000, requests=400, prompt_lengths="1000", gen_lengths="500",
            max_batch=1000, quant=quant, bound=True,
        ).requests_per_s
        for quant in (None, "KV8")
    ]  # fmt: skip
    assert 1.1 < rates[1] / rates[0] < 2


def test_chunked_prefill_serves_more_than_whole_prompts():
    """Q-S2-02, PARAM: up to 1.33 times the throughput; a mixed step reads the weights once for both."""
    rates = [
        simulate(
            "llama-2-13b", "a100-sxm-80gb", rate=1000, requests=300, prompt_lengths="900", gen_lengths="100",
            policy=policy, max_batch=18, bound=True,
        ).requests_per_s
        for policy in ("prefill-first", "chunked:512")
    ]  # fmt: skip
    assert 1.02 < rates[1] / rates[0] < 1.5


def test_iteration_level_scheduling_serves_many_times_more_at_the_same_latency():
    """Orca (OSDI 2022) serves 36.9 times as many requests per second as FasterTransformer, which ends a batch before it
    begins the next, at a median latency of 190 ms per output token: GPT-3 175B on 16 A100, 32 to 512 input and 1 to
    128 output tokens. Here 8 times as many have a lower latency.
    """
    setting = Setting.of("gpt-3-175b", "a100-sxm-40gb", tp=8, pp=2)
    how = {"requests": 300, "prompt_lengths": "uniform:32-512", "gen_lengths": "uniform:1-128", "max_batch": 32}
    whole = simulate(setting, rate=0.5, policy="static", **how)
    steps = simulate(setting, rate=4, policy="fcfs", **how)
    for one, other in ((whole, steps), (whole.expected, steps.expected)):
        latencies = [np.median(run.latency_s / run.traffic.gen) for run in (one, other)]
        assert latencies[1] < latencies[0] < 0.19


def test_blocks_of_16_waste_less_than_a_hundredth_of_long_sequences(steps):
    """Q-S0-05, PARAM: half a block of each sequence."""
    blocks = Blocks.of(steps, room_bytes=1e12, size=16, longest=2000)
    lengths = np.arange(1000, 2001)
    used = float(np.sum(steps.cache_bytes(lengths.astype(float))))
    assert 0.003 < blocks.bytes_of(lengths) / used - 1 < 0.01


# --- the closed form ---


ALONE = [(policy, *lengths) for policy in ALL for lengths in ((512, 200), (2000, 100), (64, 2))]


@pytest.mark.parametrize(("policy", "prompt", "gen"), first_fast(ALONE, "simulates thousands of requests"))
def test_closed_form_equals_the_simulation_at_low_load(policy, prompt, gen):
    rate = 100 / (prompt + 20 * gen)  # a copy works a few hundredths of the time
    bounds = simulate(
        "llama-3.1-8b", "h100-sxm", rate=rate, prompt_lengths=str(prompt), gen_lengths=str(gen), policy=policy,
        requests=1500,
    )  # fmt: skip
    for found, exact in ((bounds, 0.01), (bounds.expected, 0.02)):  # of kernels, parts of a prompt are no line
        for values, mean in ((found.ttft_s, found.closed.ttft_s), (found.tpot_s, found.closed.tpot_s)):
            error = float(np.std(values)) / len(values) ** 0.5
            assert abs(float(np.mean(values)) - mean) < exact * mean + 4 * error
            assert error < 0.15 * mean
        assert found.utilization == pytest.approx(found.closed.utilization, rel=0.06)


@pytest.mark.parametrize("policy", first_fast(FLOWING, "simulates thousands of requests"))
def test_up_to_two_thirds_of_the_load_the_closed_form_is_near(policy):
    asked = {"policy": policy, "gen_lengths": "200", "bound": True}
    most = simulate("llama-3.1-8b", "h100-sxm", rate=1, requests=1, **asked).closed
    for share in (0.2, 0.4, 0.66):
        found = simulate("llama-3.1-8b", "h100-sxm", rate=share * most.max_rate, requests=1200, **asked)
        closed, running = found.closed, found.usage.sequence_s / found.span_s
        assert float(np.mean(found.tpot_s)) == pytest.approx(closed.tpot_s, rel=0.06)
        assert float(np.mean(found.ttft_s)) == pytest.approx(closed.ttft_s, rel=0.1)
        assert running == pytest.approx(closed.batch + found.traffic.rate * closed.ttft_s, rel=0.1)


@pytest.mark.parametrize(("lengths", "policy", "exact"), first_fast([
    ("sharegpt4", "prefill-first", 0.1), ("lmsys-chat", "prefill-first", 0.1), ("lmsys-chat", "chunked:512", 0.1),
    ("sharegpt4", "chunked:512", 0.2),
], "simulates thousands of requests"))  # fmt: skip
def test_the_closed_form_with_the_lengths_that_ship(steps, lengths, policy, exact):
    drawn = poisson(
        rate=1, prompts=parse_lengths(lengths, "prompt_lengths"), gens=parse_lengths(lengths, "gen_lengths"),
        requests=3000, generator=np.random.default_rng(3),
    )  # fmt: skip
    most = steady(steps, drawn, rate=1, policy=parse_policy(policy), max_batch=256).max_rate
    found = simulate(
        "llama-3.1-8b", "h100-sxm", rate=0.65 * most, prompt_lengths=lengths, gen_lengths=lengths, policy=policy,
        requests=3000, seed=3, bound=True,
    )  # fmt: skip
    assert float(np.mean(found.ttft_s)) == pytest.approx(found.closed.ttft_s, rel=exact / (1 - exact))
    rough = "up to 20 % too low" in " ".join(REPORT.text(found).split())
    assert rough == (exact > 0.1)


def test_the_closed_form_has_the_few_longest_prompts(steps):
    drawn = poisson(
        rate=1, prompts=parse_lengths("sharegpt4", "prompt_lengths"), gens=parse_lengths("200", "gen_lengths"),
        requests=5000, generator=np.random.default_rng(0),
    ).prompt.astype(float)  # fmt: skip
    groups, _, shares = _grouped(drawn, drawn)
    assert np.sum(shares) == pytest.approx(1)
    assert len(groups) <= 128
    assert np.sum(shares * groups) == pytest.approx(np.mean(drawn))
    assert np.sum(shares * groups**2) == pytest.approx(np.mean(drawn**2), rel=0.01)  # of 128 evenly drawn, a tenth less


def test_short_runs_are_not_reported_as_overload():
    asked = {"rate": 12, "gen_lengths": "500", "bound": True}
    short, long, beyond = (
        simulate("llama-3.1-8b", "h100-sxm", requests=requests, **{**asked, **more})
        for requests, more in ((60, {}), (1000, {}), (60, {"rate": 1000}))
    )
    last = float(np.max(short.finish_s) - short.traffic.arrival_s[-1])
    assert short.drained == pytest.approx(last / short.span_s)
    assert short.drained > 0.2 > 0.1 > long.drained
    assert math.isnan(beyond.drained)
    words = [" ".join(REPORT.text(one).split()) for one in (short, long, beyond)]
    assert f"in the last {short.drained:.0%} of the {seconds(short.span_s)}, no request arrives, which" in words[0]
    assert f"{short.requests_per_s:.3g} req/s finish, {short.traffic.rate:.3g} arrive. This is no" in words[0]
    assert not any("no request arrives" in text for text in words[1:])
    assert f"{short.drained:.0%} of the time is drain" in REPORT.html(short)
    together = Traffic(arrival_s=np.zeros(2), prompt=np.array([9, 9]), gen=np.array([9, 9]))
    assert math.isnan(replace(short, traffic=together).drained)


def test_requests_without_output_are_counted(tmp_path):
    path = tmp_path / "own.csv"
    path.write_text("timestamp,prompt,gen\n0,100,10\n1,100,0\n2,100,20\n3,5,0\n")
    found = simulate("llama-3.1-8b", "h100-sxm", arrivals=path, bound=True)
    assert (len(found.traffic), found.traffic.empty) == (2, 2)
    assert "Trace: 2 requests without output tokens not simulated." in REPORT.text(found)
    assert found.to_dict()["inputs"]["empty_requests"] == 2
    first = simulate("llama-3.1-8b", "h100-sxm", arrivals=path, requests=1, bound=True)
    assert "Trace: 1 later request not simulated (--requests)." in REPORT.text(first)
    assert first.to_dict()["inputs"]["later_requests"] == 1
    path.write_text("timestamp,prompt,gen\n0,100,10\n")
    assert "Trace:" not in REPORT.text(simulate("llama-3.1-8b", "h100-sxm", arrivals=path, bound=True))


@pytest.mark.parametrize("policy", first_fast(ALL, "simulates thousands of requests"))
def test_beyond_the_stability_limit_the_queue_grows_and_below_it_does_not(policy):
    asked = {"prompt_lengths": "1000", "gen_lengths": "100", "policy": policy, "max_batch": 32, "bound": True}
    limit = simulate("llama-3.1-8b", "h100-sxm", rate=1, requests=10, **asked).closed.max_rate
    below, beyond = (
        simulate("llama-3.1-8b", "h100-sxm", rate=factor * limit, requests=1500, **asked) for factor in (0.85, 1.2)
    )
    assert below.closed.stable
    assert not beyond.closed.stable
    assert beyond.limit.startswith("Overload ")
    memory = "which sustains .* req/s(, with KV memory for .* sequences on average)?; the queue grows"
    assert re.search(memory, beyond.limit)
    late = beyond.ttft_s[-300:].mean()
    assert late > 3 * beyond.ttft_s[50:250].mean()
    assert below.ttft_s[-300:].mean() < late / 3


@pytest.mark.parametrize(("prompt", "shared"), [(2000, False), (1000, True)])
def test_the_limit_is_the_time_that_a_request_takes_of_a_full_batch(steps, prompt, shared):
    """Where a step has room for two prompts, it prefills as many as outputs ended in the decode step before."""
    requests = traffic(*((0, prompt, 101) for _ in range(3)))
    found = steady(steps, requests, rate=1, policy=parse_policy("prefill-first"), max_batch=32)
    step = float(steps.decode_s(batch=32.0, kv_len=prompt + 50.5))
    assert found.max_batch == 32
    one, two = (float(steps.prefill_s(float(prompt), count)) for count in (1.0, 2.0))
    count = 0.32 / (1 - math.exp(-0.32)) if shared else 1.0  # if any end, which 32 of 100 steps each do at random
    read = one + (two - one) * (count - 1)
    assert found.max_rate == pytest.approx(1 / (read / count + 100 * step / 32))


@pytest.mark.parametrize("policy", first_fast(["prefill-first", "fcfs"], "simulates thousands of requests"))
@pytest.mark.parametrize("prompt", first_fast(["128", "512", "uniform:50-400"], "simulates thousands of requests"))
def test_short_prompts_share_steps_in_the_closed_form_too(policy, prompt):
    asked = {"policy": policy, "prompt_lengths": prompt, "max_batch": 2048, "bound": True}
    most = simulate("llama-3.1-8b", "h100-sxm", rate=1e6, requests=1500, **asked)
    assert most.requests_per_s == pytest.approx(most.closed.max_rate, rel=0.15)
    run = simulate("llama-3.1-8b", "h100-sxm", rate=0.6 * most.closed.max_rate, requests=1500, **asked)
    assert float(np.mean(run.ttft_s)) == pytest.approx(run.closed.ttft_s, rel=0.12)
    assert float(np.mean(run.tpot_s)) == pytest.approx(run.closed.tpot_s, rel=0.15)


def test_where_no_cache_fits_nothing_is_served():
    setting = Setting.of("llama-3.1-8b", "rtx-3080")
    found = steady(Steps(setting), traffic((0, 100, 10)), rate=1, policy=POLICIES["fcfs"], max_batch=8)
    assert (found.max_batch, found.max_rate, found.stable) == (0, 0, False)


# --- several devices ---


def test_prefill_workers_must_hold_the_weights():
    with pytest.raises(
        InputError, match=r"does not fit rtx-3080: on a device of 10\.7 GB, weights take 16\.1 GB; fits "
    ):
        simulate("llama-3.1-8b", "h100-sxm", rate=1, prefill_replicas=1, prefill_hardware="rtx-3080")


def test_a_request_that_does_not_fit_names_the_memory_that_the_engine_uses():
    """The parts are those of the server: its share of memory may be less than the weights."""
    asked = {"engine": "vllm", "memory_fraction": 0.1}
    server = analyze("llama-3.1-8b", "h100-sxm", **asked).capacity
    parts = f"weights {si(server.weight_bytes)}B, activations {si(server.activation_bytes)}B"
    with pytest.raises(InputError, match=f"vLLM uses {si(server.used_bytes)}B: {parts}, others"):
        simulate("llama-3.1-8b", "h100-sxm", rate=5, **asked)


def test_replicas_share_the_requests():
    one, two = (
        simulate("llama-3.1-8b", "h100-sxm", rate=40, requests=600, replicas=replicas, bound=True, **LENGTHS)
        for replicas in (1, 2)
    )
    assert two.devices == 2
    assert np.mean(two.tpot_s) < np.mean(one.tpot_s)
    assert two.usage.written == one.usage.written
    assert two.tokens_per_joule == pytest.approx(two.tokens_per_s / 1400)


def test_prefill_workers_shorten_the_longest_gap_between_tokens():
    asked = {"rate": 5, "prompt_lengths": "4000", "gen_lengths": "100", "requests": 300, "bound": True}
    apart = simulate("llama-3.1-8b", "h100-sxm", prefill_replicas=1, **asked)
    together = simulate("llama-3.1-8b", "h100-sxm", replicas=2, policy="prefill-first", **asked)
    assert apart.gap_s.max() < together.gap_s.max() / 2
    assert apart.usage.reading_s == apart.usage.mixed_s == 0
    assert apart.reading_utilization > 0.2
    assert apart.usage.written == 300 * 99
    travel = 4000 * 32 * 2 * 8 * 128 * 2 / apart.setting.hardware.fact("scale_out.bandwidth")
    read = float(Steps(apart.reads).prefill_s(4000.0))
    assert apart.ttft_s.min() == pytest.approx(read + travel)
    overlapped = simulate("llama-3.1-8b", "h100-sxm", prefill_replicas=1, kv_transfer="overlapped", **asked)
    assert overlapped.ttft_s.min() == pytest.approx(max(read, travel))


def test_prefill_workers_serve_in_order_one_prompt_each():
    found = simulate("llama-3.1-8b", "h100-sxm", rate=60, prefill_replicas=2, prompt_lengths="4000", requests=300)
    read = float(Steps(found.reads).prefill_s(4000.0))
    assert np.all(np.diff(found.start_s) >= 0)
    assert np.all(found.start_s[2:] - found.start_s[:-2] >= read - 1e-9)
    assert found.limit.startswith("Prefill replicas ")


def test_prefill_workers_have_a_layout_of_their_own():
    asked = {"rate": 4, "prompt_lengths": "1000", "requests": 50, "bound": True}
    run = simulate("llama-3.1-8b", "h100-sxm", prefill_replicas=2, layout="tp=2", prefill_layout="", **asked)
    assert run.devices == 2 * 1 + 2
    read = float(Steps(Setting.of("llama-3.1-8b", "h100-sxm")).prefill_s(1000.0))
    assert run.ttft_s.min() == pytest.approx(read + 1000 * 131072 / 50e9)
    with pytest.raises(InputError, match=r"^prefill_layout must be left out without prefill_replicas"):
        simulate("llama-3.1-8b", "h100-sxm", prefill_layout="tp=2", **asked)
    with pytest.raises(InputError, match=r"^l4:memory\.bandwidth=2x: l4 must be one of the devices given"):
        simulate("llama-3.1-8b", "h100-sxm", prefill_replicas=1, hardware_set=["l4:memory.bandwidth=2x"], **asked)


# --- lengths and arrivals ---


@pytest.mark.parametrize(
    ("text", "mean", "quantiles"),
    [
        ("512", 512, {50: 512}),
        ("uniform:100-300", 200, {50: 200, 95: 290}),
        ("lognormal:mean=512,p95=1536", 512, {95: 1536}),
        ("lognormal:mean=512,p50=300", 512, {50: 300}),
        ("lognormal:p50=1000,p90=3000", None, {50: 1000, 90: 3000}),
        ("lognormal:p90=3000,p99=9000", None, {90: 3000, 99: 9000}),
    ],
)
def test_drawn_lengths_have_the_requested_moments(text, mean, quantiles):
    found = parse_lengths(text, "prompt_lengths")
    drawn = found.draw(np.random.default_rng(3), 100_000)
    assert drawn.min() >= 1
    assert drawn.mean() == pytest.approx(found.mean, rel=0.02)
    assert mean is None or found.mean == pytest.approx(mean)
    for q, value in quantiles.items():
        assert np.percentile(drawn, q) == pytest.approx(value, rel=0.03)


def test_a_length_may_be_a_number():
    asked = {"rate": 2, "requests": 20, "bound": True}
    one, other = (simulate("gpt2", "l4", prompt_lengths=length, **asked) for length in (300, "300"))
    assert np.array_equal(one.ttft_s, other.ttft_s)


@pytest.mark.parametrize("given", [{"prompt_lengths": np.array([1, 2])}, {"gen_lengths": ""}, {"rate": "2"}])
def test_invalid_lengths_and_rates_are_refused(given):
    with pytest.raises(InputError, match="must be a number"):
        simulate("gpt2", "l4", **{"rate": 2, "requests": 20} | given)


def test_lengths_of_a_file(tmp_path):
    path = tmp_path / "lengths.txt"
    path.write_text("10\n20\n\n20\n")
    drawn = parse_lengths(str(path), "gen_lengths").draw(np.random.default_rng(0), 1000)
    assert set(drawn) == {10, 20}
    assert drawn.mean() == pytest.approx(50 / 3, rel=0.05)


def test_a_line_of_a_file_that_is_no_length_is_named(tmp_path):
    path = tmp_path / "lengths.txt"
    path.write_text("10\n\nabc\n")
    with pytest.raises(InputError) as error:
        parse_lengths(str(path), "prompt_lengths")
    assert str(error.value) == f"{path}:3: must be a length from 1 to 16777216; got 'abc'"


def test_poisson_arrivals():
    lengths = parse_lengths("1", "")
    found = poisson(rate=4, prompts=lengths, gens=lengths, requests=20_000, generator=np.random.default_rng(0))
    gaps = np.diff(found.arrival_s)
    assert gaps.mean() == pytest.approx(1 / 4, rel=0.02)
    assert gaps.std() == pytest.approx(1 / 4, rel=0.02)


def test_files_of_requests(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("timestamp,prompt,gen\n5,100,10\n3.5,200,20\n9,1,0\n")
    found = read_traffic(path)
    assert (found.arrival_s.tolist(), found.prompt.tolist(), found.gen.tolist()) == ([0, 1.5], [200, 100], [20, 10])
    azure = tmp_path / "azure.csv"
    azure.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n"
    )
    found = read_traffic(azure)
    assert found.arrival_s[1] == pytest.approx(4.314579)
    assert found.prompt.tolist() == [374, 396]


@pytest.mark.parametrize(
    ("stamps", "apart"),
    [
        (("2024-05-10 00:00:00.009930+00:00", "2024-05-10 02:00:01.009930+02:00"), 1),
        (("2024-05-10T00:00:00.0099301+00:00", "2024-05-10T00:00:02.0099301Z"), 2),
        (("2024-03-31 00:30:00", "2024-03-31 04:30:00"), 4 * 3600),  # the clock goes forward in between, in Europe
        (("2024-03-31 00:30:00Z", "2024-03-31 00:30:03"), 3),
    ],
)
def test_dates_have_a_zone_or_are_in_utc(tmp_path, monkeypatch, stamps, apart):
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    (tmp_path / "trace.csv").write_text("timestamp,prompt,gen\n" + "".join(f"{stamp},10,10\n" for stamp in stamps))
    found = read_traffic(tmp_path / "trace.csv").arrival_s.tolist()
    monkeypatch.undo()
    time.tzset()
    assert found == pytest.approx([0, apart], abs=1e-5)


def test_requests_of_one_time_stay_in_order(tmp_path):
    (tmp_path / "trace.csv").write_text("timestamp,prompt,gen\n1,30,1\n1,10,1\n0,50,1\n1,20,1\n")
    assert read_traffic(tmp_path / "trace.csv").prompt.tolist() == [50, 30, 10, 20]
    assert read_traffic(tmp_path / "trace.csv", 2).prompt.tolist() == [50, 30]


def test_the_mark_that_spreadsheets_begin_a_file_with_is_passed_over(tmp_path):
    (tmp_path / "trace.csv").write_text("timestamp,prompt,gen\n1,30,5\n", encoding="utf-8-sig")
    assert read_traffic(tmp_path / "trace.csv").prompt.tolist() == [30]
    (tmp_path / "a.json").write_text("{}", encoding="utf-8-sig")
    assert not list(read_json(tmp_path / "a.json"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("time,prompt,gen\n1,1,1\n", "timestamp: must be a column of the header, which has time, prompt, gen"),
        (
            "timestamp,prompt,gen\n1,1,1\n2,x,1\n",
            "csv:3: prompt must be a whole number from 1 to 16777216; got 'x'",
        ),
        ("timestamp,prompt,gen\n1,1,1\n\n\n2,x,1\n", "csv:5: prompt must be a whole number"),
        ('timestamp,prompt,gen,"by\nwhom"\n1,1,1,x\n2,x,1,x\n', "csv:4: prompt must be a whole number"),
        (f"timestamp,prompt,gen\n1,1,{'9' * 5000}\n", "csv:2: gen must be a whole number from 0 to 16777216; got"),
        ("timestamp,prompt,gen\nsoon,1,1\n", "trace.csv:2: timestamp must be seconds or a date and time; got 'soon'"),
        ("timestamp,prompt,gen\ninf,1,1\n", "trace.csv:2: timestamp must be finite; got 'inf'"),
        ("timestamp,prompt,gen\n1,1\n", "trace.csv:2: gen must be a whole number from 0 to 16777216; got ''"),
        ("timestamp,prompt,gen\n1,1,99999999999\n", "gen must be a whole number from 0 to 16777216; got '99999999999'"),
        ("timestamp,prompt,gen\n1,1,0\n", "has no request with output tokens"),
        ("", "timestamp: must be a column of the header, which has none"),
        ("timestamp,prompt,gen,sesion\n1,1,1,a\n", "sesion: unknown column; did you mean session"),
        ("timestamp,prompt,gen,Tenants\n1,1,1,a\n", "tenants: unknown column; did you mean tenant"),
    ],
)
def test_files_that_are_wrong(tmp_path, text, said):
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(InputError) as error:
        read_traffic(path)
    assert said in str(error.value)


def test_steps_that_fit_into_a_time():
    for first, slope in ((0.01, 0.0), (0.01, 1e-4), (0.003, 1e-9)):
        for count in (1, 2, 17, 400):
            total = count * first + slope * count * (count - 1) / 2
            assert _steps_until(total * 0.9999, first, slope) == count
            assert _steps_until(total * 1.0001, first, slope) == count + 1


@pytest.mark.parametrize("preset", PUBLISHED)
def test_published_lengths_have_the_percentiles_that_were_published(preset):
    known = PUBLISHED[preset]
    for name, (middle, long) in (("prompt_lengths", known.prompt), ("gen_lengths", known.gen)):
        drawn = parse_lengths(preset, name).draw(np.random.default_rng(3), 100_000)
        assert np.percentile(drawn, [50, 90]) == pytest.approx([middle, long], rel=0.03)
    assert "arXiv:" in known.source


def test_burstgpt_files_are_read_unchanged(tmp_path):
    path = tmp_path / "burst.csv"
    path.write_text(
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,472,18,490,API log\n"
        "45,ChatGPT,1087,230,1317,API log\n118,GPT-4,417,0,417,Conversation log\n"
    )
    found = read_traffic(path)
    assert found.arrival_s.tolist() == [0, 40]
    assert found.prompt.tolist() == [472, 1087]
    assert found.gen.tolist() == [18, 230]


def test_a_summary_of_nothing():
    assert set(summary(np.array([])).values()) == {None}


# --- what a user does ---


def test_cards_label_their_numbers():
    found = simulate("llama-3.1-8b", "h100-sxm", rate=20, requests=300, ttft=0.5)
    run, page = found.likely, REPORT.html(found)
    assert f"median; p99 {seconds(np.percentile(run.ttft_s, 99))}" in page
    max_rate = run.closed.max_rate * run.replicas
    assert f"of the time; {run.traffic.rate:.3g} req/s arrive, max {max_rate:.3g} req/s" in page
    one = simulate("llama-3.1-8b", "h100-sxm", rate=1, requests=1, gen_lengths="1")
    assert "Llama 3.1 8B on h100-sxm: 1 request" in REPORT.html(one)
    apart = simulate("llama-3.1-8b", "h100-sxm", rate=5, requests=50, prefill_replicas=1)
    assert "decode replicas busy" in REPORT.html(apart)


def test_the_report(capsys):
    asked = ["simulate", "llama-3.1-8b", "h100-sxm", "--rate", "10", "--requests", "200", "--ttft", "0.05"]
    assert main(asked) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    for words in (
        "TTFT",
        "E2E latency",
        "p99",
        "closed form",
        "Bottleneck:",
        "targets: TTFT <= 50.0 ms",
        "requests within targets",
        "roofline lower bound",
    ):
        assert words in text
    assert main([*asked, "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["times"]["ttft_s"]["p50"] < document["times"]["ttft_s"]["p99"]
    assert 0 < document["good"] <= 1
    assert document["closed_form"]["max_rate"] > 10
    assert document["expected"].keys() < document.keys()
    assert document["expected"]["times"]["tpot_s"]["mean"] > document["times"]["tpot_s"]["mean"]
    assert main([*asked, "--format", "csv"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 201
    assert {"first_s", "expected_first_s"} <= set(lines[0].split(","))


def test_the_page(tmp_path, capsys):
    path = tmp_path / "out.html"
    asked = ["simulate", "llama-3.1-8b", "h100-sxm", "--rate", "10", "--requests", "50", "--tpot", "0.02"]
    assert main([*asked, "-o", str(path)]) == 0
    page = path.read_text()
    assert 'id="queue"' in page
    assert 'id="spread"' in page
    assert "Bottleneck:" in page
    capsys.readouterr()


BAD = [
    (
        [],
        "and concurrency (--concurrency, a number of clients) must be given",
    ),
    (["--rate", "1", "--arrivals", "x.csv"], "one of rate (--rate, in req/s), arrivals (--arrivals, a trace file) and"),
    (["--rate", "0"], "rate must be a positive number of req/s; got 0"),
    (["--rate", "nan"], "rate must be a positive number of req/s; got nan"),
    (
        ["--rate", "1e-8"],
        "rate must put all arrivals within 1e+09 s, in which the clock resolves steps",
    ),
    (["--rate", "1e-310"], "the clock resolves steps; got inf s"),
    (["--arrivals", "/no/such.csv"], "/no/such.csv: no such file"),
    (["--rate", "1", "--policy", "lifo"], "decode-first, prefill-first, fcfs, chunked, prefill-chunks; got 'lifo'\n"),
    (["--rate", "1", "--policy", "static:3"], "policy static has no token budget, as it prefills a whole batch"),
    (["--rate", "1", "--policy", "fcfs:"], "policy fcfs:TOKENS must give a whole number from 1 to 16777216"),
    (["--rate", "1", "--policy", f"chunked:{'9' * 5000}"], "policy chunked:TOKENS must give a whole number"),
    (["--rate", "1", "--policy", "fcfs:9,hold=0"], "policy fcfs,hold=STEPS must give a whole number"),
    (
        ["--rate", "1", "--policy", "fcfs,wait=9"],
        "policy fcfs takes hold=STEPS, poll=STEPS, fill=SHARE, order=ORDER, bins=N after a comma",
    ),
    (["--rate", "1", "--policy", "fcfs,poll=0"], "policy fcfs,poll=STEPS must give a whole number"),
    (
        ["--rate", "1", "--policy", "fcfs,poll=2,poll=3"],
        "policy fcfs must give each of hold, poll, fill, order, bins once at most",
    ),
    (["--rate", "1", "--client", "inferencex"], "client must be left out without concurrency"),
    (["--concurrency", "2", "--client", "inference"], "no client 'inference'; did you mean inferencex?"),
    (
        ["--concurrency", "2", "--client", "vllm", "--prompt", "uniform:1-9"],
        "--prompt must be a whole number of tokens with client",
    ),
    (["--rate", "1", "--policy", "static,hold=9"], "policy static has no hold, as it prefills only when no "),
    (
        ["--rate", "1", "--policy", "fcfs,hold=9"],
        "policy must leave out hold where no ranks wait for each other, as those of dp do with ep above tp, or give",
    ),
    (
        ["--rate", "1", "--policy", "fcfs,fill=0.5"],
        "policy fcfs,fill=SHARE needs hold=STEPS, for which it waits at most",
    ),
    (
        ["--rate", "1", "--policy", "fcfs,hold=9,fill=2"],
        "policy fcfs,fill=SHARE must give a share of the tokens of a step",
    ),
    (["--rate", "1", "--policy", "chunked:0"], "policy chunked:TOKENS must give a whole number from 1 to 16777216"),
    (["--rate", "1", "--prompt-lengths", "many"], "--prompt-lengths: must be a number of tokens"),
    (["--rate", "1", "--prompt-lengths", "0"], "--prompt-lengths: must be a number of tokens"),
    (["--rate", "1", "--prompt-lengths", "9" * 5000], "--prompt-lengths: must be a number of tokens"),
    (["--rate", "1", "--prompt-lengths", "x" * 5000], "--prompt-lengths: must be a number of tokens"),
    (["--rate", "1", "--gen-lengths", "uniform:9-3"], "--gen-lengths: must be a number of tokens"),
    (["--rate", "1", "--gen-lengths", "lognormal:mean=512,p95=2048"], "p95 must be above the mean, and 1980 at most"),
    (["--rate", "1", "--gen-lengths", "lognormal:p50=9,p90=3"], "a higher percentile must be a greater length"),
    (["--rate", "1", "--gen-lengths", "lognormal:mean=512,p50=600"], "p50 must be below the mean"),
    (["--rate", "1", "--max-batch", "0"], "--max-batch must be a whole number of at least 1; got 0"),
    (["--rate", "1", "--requests", "2000000"], "requests must be at most 1000000; got 2000000"),
    (["--rate", "1", "--prefill-hardware", "l4"], "--prefill-hardware must be left out without prefill_replicas"),
    (["--rate", "1", "--kv-transfer", "after"], "--kv-transfer must be left out without prefill_replicas"),
    (["--rate", "1", "--prefill-replicas", "1", "--policy", "fcfs"], "policy must be left out with prefill_replicas"),
    (["--arrivals", "x.csv", "--gen-lengths", "9"], "--gen-lengths must be left out with arrivals"),
    (["--rate", "1", "--ttft", "0"], "must be a positive time: 0.5 (seconds), '500 ms' or '2 h'"),
    (["--rate", "1", "--depreciation", "-1"], "--depreciation must be a positive number; got -1"),
    (["--rate", "1", "--tp", "3"], "tp"),
    (["--rate", "1", "--bound", "--library", "vllm"], "without library, engine and profiles; leave them out"),
    (["--rate", "1", "--library", "vlm"], "no kernels of a library 'vlm' were measured; did you mean vllm?"),
    (["--rate", "1", "--engine", "vllm", "--library", "trtllm"], "library must be left out beside engine vllm"),
    (["--rate", "1", "--hardware-path", "/no/such"], "/no/such"),
    (["--rate", "1", "-o", "out.docx"], "out.docx: must end in one of .json, .csv, .md, .html, .txt; or give --format"),
]


@pytest.mark.parametrize(("options", "said"), BAD, ids=lambda value: " ".join(value)[:60] * isinstance(value, list))
def test_mistakes_get_one_line(capsys, tmp_path, monkeypatch, options, said):
    monkeypatch.chdir(tmp_path)
    few = [] if "--requests" in options else ["--requests", "20"]
    assert main(["simulate", "llama-3.1-8b", "h100-sxm", *few, *options]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("llmviewer: ")
    assert said in captured.err
    assert captured.err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_techniques_that_change_steps_are_simulated_and_those_that_change_passes_refused():
    plain, sparse = (
        simulate("llama-3.1-8b", "h100-sxm", rate=5, requests=50, techniques=techniques, bound=True)
        for techniques in ((), ["sparsity"])
    )
    assert np.mean(sparse.tpot_s) < 0.8 * np.mean(plain.tpot_s)
    with pytest.raises(InputError, match=r"^beam changes the passes of a request, .*; use llmviewer analyze$"):
        simulate("llama-3.1-8b", "h100-sxm", rate=5, techniques=["beam"])


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("bert-base-uncased", "does not generate, so there is nothing to serve"),
        ("t5-base", "has an encoder, which steps of prefill and decode do not include"),
    ],
)
def test_encoder_models_are_refused(model, said):
    with pytest.raises(InputError, match=said):
        simulate(model, "h100-sxm", rate=1)


@pytest.mark.parametrize("model", ["gemma-3-27b", "mamba-2.8b", "deepseek-v3", "mixtral-8x7b"])
def test_models_of_other_kinds_are_served(model):
    found = simulate(model, "b300", rate=3, requests=40, layout="tp=1" if model == "mamba-2.8b" else "tp=8")
    assert math.isfinite(found.tokens_per_s)
    assert found.usage.written == found.traffic.gen.sum()


# --- ranks and stages ---


@pytest.fixture(scope="module")
def ranks():
    return Steps(Setting.of("deepseek-v3", "h200-sxm", layout="dp=8 ep=8"))


def test_a_step_of_both_expands_the_latents_of_prompts_alone():
    """Sequences that decode read latents as they are, beside a prompt as alone."""
    for expected in (False, True):
        steps = Steps(Setting.of("deepseek-v3", "h200-sxm", layout="tp=8 ep=8"), expected)
        decode, read = Spans(batch=64.0, q_len=1.0, kv_len=16384.0), Spans(batch=1.0, q_len=512.0, kv_len=512.0)
        alone = steps.decoding_s([(64, 16384.0)]), float(steps.prefill_s(512.0))
        assert max(alone) < steps.step_s([(decode, read)]) < sum(alone)
        assert steps.step_s([(decode,)]) == pytest.approx(alone[0], rel=0.01)


@pytest.mark.parametrize("layout", ["dp=8 ep=8", "tp=2 dp=4 ep=8", "dp=4 pp=2 ep=4"])
@pytest.mark.parametrize("expected", [False, True])
def test_equally_loaded_ranks_take_the_time_of_the_setting(layout, expected):
    setting = Setting.of("deepseek-v3", "h200-sxm", layout=layout)
    steps = Steps(setting, expected)
    assert steps.ranks == setting.layout.dp
    read, decode = Workload.prefill(batch=1, prompt=2000), Workload.decode(batch=16, kv_len=2000)
    is_first = [i % steps.micro_batches == 0 for i in range(steps.running_batches)]
    for plan, workload, lane in (
        (setting.plan, read, steps.step_s([read.groups if first else () for first in is_first])),
        (
            setting.decode_plan,
            decode,
            steps.decoding_s([(16, 2000.0) if first else (0, 0.0) for first in is_first]),
        ),
    ):
        found = setting.kernels.expect_plan(plan, workload)
        wanted = float(np.sum(found.kernels.expected)) if expected else float(plan.time_s(workload))
        assert lane == pytest.approx(wanted, rel=0.07 if expected else 1e-9)


def test_prefill_on_one_rank_delays_all_ranks_less_than_prefills_on_all(ranks):
    read, decode = (Spans(batch=1.0, q_len=2048.0, kv_len=2048.0),), (Spans(batch=4.0, q_len=1.0, kv_len=500.0),)
    one, both, every = (ranks.step_s(lanes) for lanes in ([read, *[()] * 7], [read, *[decode] * 7], [read] * 8))
    assert one < both < every < 8 * one
    assert both < one + ranks.step_s([decode] * 8)
    found = served(ranks, traffic((0, 100, 300), (0.1, 16_000, 2)), "prefill-first")
    assert found.gap_s[0] > 0.8 * ranks.step_s([(Spans(batch=1.0, q_len=16e3, kv_len=16e3),), *[()] * 7])


def test_a_request_goes_to_the_rank_with_the_fewest(ranks):
    """Eight that come at once are read in one step, and nine in two."""
    times = [served(ranks, traffic(*[(0.0, 3000, 1)] * count)).finish_s.max() for count in (1, 8, 9)]
    alone = served(ranks, traffic((0.0, 3000, 1))).finish_s.max()
    assert times[0] == alone < times[1] < 2 * alone
    assert times[2] == pytest.approx(times[1] + alone)


@pytest.fixture(scope="module")
def two():
    """Two ranks that wait for each other."""
    return Steps(Setting.of("deepseek-v2-lite", "h100-sxm", layout="dp=2 ep=2"))


@pytest.mark.parametrize("hold", [1, 2, 9])
def test_hold_delays_a_prefill_by_the_given_number_of_steps(two, hold):
    """Two are read at once, and both decode; a third comes in their first step."""
    found = served(two, traffic((0, 400, 50), (0, 400, 50), (1e-6, 700, 1)), f"prefill-first,hold={hold}")
    both = two.step_s([(Spans(batch=1.0, q_len=400.0, kv_len=400.0),)] * 2)
    held_s = sum(two.decoding_s([(1, 401.0 + step)] * 2) for step in range(hold - 1))
    third = two.step_s([(Spans(batch=1.0, q_len=700.0, kv_len=700.0),), ()])
    assert found.start_s[2] == pytest.approx(both)
    assert found.first_s[2] == pytest.approx(both + held_s + third, rel=1e-4)


def test_prompts_are_read_at_once_where_every_rank_has_one_or_one_has_nothing_else(two):
    asked = {"policy": "fcfs,hold=1000", "max_batch": 8}
    every = served(two, traffic((0, 400, 50), (0, 400, 50), (1e-6, 700, 1), (1e-6, 700, 1)), **asked)
    both, more = (
        two.step_s([(*decode, Spans(batch=1.0, q_len=tokens, kv_len=tokens))] * 2)
        for tokens, decode in ((400.0, ()), (700.0, (two.decoding_group(1.0, 401.0),)))
    )
    assert every.first_s[2:] == pytest.approx(both + more)
    idle = served(two, traffic((0, 400, 50), (1e-6, 700, 2)), **asked)
    beside = two.step_s([(two.decoding_group(1.0, 401.0),), (Spans(batch=1.0, q_len=700.0, kv_len=700.0),)])
    assert idle.first_s[1] == pytest.approx(idle.first_s[0] + beside)


@pytest.mark.parametrize(
    "policy",
    first_fast(["prefill-first", "fcfs:4096", "chunked:512", "prefill-chunks:2048"], "simulates thousands of requests"),
)
@pytest.mark.parametrize("concurrency", [None, 24])
def test_hold_conserves_tokens_and_never_starves_a_prompt(policy, concurrency):
    asked = {"rate": None if concurrency else 60, "requests": 300, "bound": True, "concurrency": concurrency}
    asked |= {"prompt_lengths": "uniform:100-3000", "gen_lengths": "uniform:1-300", "layout": "dp=2 ep=2"}
    free, held = (simulate("deepseek-v2-lite", "h100-sxm", policy=policy + hold, **asked) for hold in ("", ",hold=40"))
    assert held.usage.read == held.traffic.prompt.sum()
    assert held.usage.written == held.traffic.gen.sum()
    assert np.all(held.finish_s >= held.first_s)
    moments, count = held.in_system
    assert np.sum(np.diff(moments) * count[:-1]) == pytest.approx(held.latency_s.sum())
    if concurrency:
        assert max(count[np.diff(moments, append=np.inf) > 1e-9]) == concurrency
    step_s = float(np.max(held.gap_s))  # nobody starves: of every 40 steps one reads, on each rank the first that came
    assert np.max(held.first_s - held.start_s) < 40 * step_s * max(count)
    once = simulate("deepseek-v2-lite", "h100-sxm", policy=f"{policy},hold=1", **asked)
    assert np.array_equal(once.finish_s, free.finish_s)


@pytest.mark.parametrize("hold", ["", ",hold=4"])
def test_step_filled_by_decodes_prefills_nothing(two, hold):
    """A prompt that waits for room in a step does not count as held back."""
    requests = traffic(*[(0.0, 8, 30)] * 16, *[(1e-6, 300, 2)] * 3)
    found = served(two, requests, f"chunked:8{hold}", max_batch=32)
    assert found.usage.written == requests.gen.sum()
    assert found.usage.read == requests.prompt.sum()


def test_hold_raises_throughput_for_long_prompts_on_many_ranks():
    """Otherwise each prompt makes seven other ranks wait."""
    asked = {"concurrency": 64, "requests": 300, "prompt_lengths": 8000, "gen_lengths": "uniform:200-400"}
    asked |= {"layout": "dp=8 ep=8", "bound": True}
    free, held = (
        simulate("deepseek-v3", "h200-sxm", policy=policy, **asked) for policy in ("fcfs:8192", "fcfs:8192,hold=60")
    )
    assert held.tokens_per_s > 1.3 * free.tokens_per_s
    assert np.mean(held.tpot_s) < np.mean(free.tpot_s)


def test_an_engine_holds_prompts_back_for_ranks_that_wait():
    asked = {"rate": 1, "requests": 2, "engine": "tensorrt-llm"}
    for layout, policy in (("dp=8 ep=8", "fcfs:8192,hold=60"), ("tp=8 ep=8", "fcfs:8192"), ("tp=8", "fcfs:8192")):
        found = simulate("deepseek-v3", "h200-sxm", layout=layout, **asked)
        assert str(found.policy) == found.inputs["policy"] == policy
        assert parse_policy(policy) == found.policy


def test_independent_ranks_equal_replicas():
    asked = {"rate": 12, "requests": 400, "seed": 3, "bound": True, **LENGTHS}
    ranks = simulate("llama-3.1-8b", "h100-sxm", layout="dp=2", **asked)
    replicas = simulate("llama-3.1-8b", "h100-sxm", replicas=2, **asked)
    assert np.array_equal(ranks.finish_s, replicas.finish_s)
    assert ranks.utilization == pytest.approx(replicas.utilization)
    assert (ranks.replicas, ranks.devices, replicas.devices) == (1, 2, 2)
    assert ranks.closed.max_rate == pytest.approx(2 * replicas.closed.max_rate)
    assert ranks.closed.ttft_s == pytest.approx(replicas.closed.ttft_s)


def test_a_request_alone_passes_all_stages_one_after_another():
    setting = Setting.of("llama-3.1-70b", "h200-sxm", layout="pp=4")
    found = served(Steps(setting), traffic((0, 700, 40)))
    read = float(setting.plan.time_s(Workload.prefill(batch=1, prompt=700)))
    decode = sum(float(setting.plan.time_s(Workload.decode(batch=1, kv_len=700 + i))) for i in range(1, 40))
    assert found.first_s[0] == pytest.approx(read)
    assert found.finish_s[0] == pytest.approx(read + decode, rel=1e-4)


def test_sets_of_sequences_take_turns_at_the_slowest_stage():
    setting = Setting.of("llama-3.1-70b", "h200-sxm", layout="pp=4")
    steps = Steps(setting)
    slowest = max(float(stage.time_s(Workload.decode(batch=8, kv_len=1000))) for stage in setting.plan.stages)
    assert steps.decoding_s([(8, 1000.0)] * 4) == pytest.approx(4 * slowest, rel=1e-4)
    through = float(setting.plan.time_s(Workload.decode(batch=8, kv_len=1000)))
    assert steps.decoding_s([(8, 1000.0), *[(0, 0.0)] * 3]) == pytest.approx(through, rel=1e-4)
    assert through < 4 * slowest


@pytest.mark.parametrize("layout", first_fast(["tp=2 pp=2", "tp=2 cp=2", "pp=4"], "simulates thousands of requests"))
def test_several_stages_and_parts_of_prompts_keep_to_the_closed_form(layout):
    found = simulate("llama-3.1-70b", "h100-sxm", quant="fp8", rate=2, requests=250, layout=layout)
    for run in (found, found.expected):
        assert float(np.mean(run.ttft_s)) == pytest.approx(run.closed.ttft_s, rel=0.1)
        assert float(np.mean(run.tpot_s)) == pytest.approx(run.closed.tpot_s, rel=0.12)


def test_caches_fill_the_memory_of_the_fullest_stage():
    """The last stage has the head, too, so that fewer sequences fit than beside the others' weights."""
    setting = Setting.of("llama-3.1-70b", "h100-sxm", layout="tp=2 pp=2")
    steps = Steps(setting)
    room = [
        (setting.hardware.capacity - weight_bytes(part)) / kv_cache_bytes(part, batch=1, context=1000)
        for part in (setting.graph.of_stage(0), setting.graph.of_stage(1))
    ]
    assert steps.kv_budget_bytes(1) / float(steps.cache_bytes(1000.0)) == pytest.approx(min(room), rel=0.01)


def test_prefill_workers_with_synchronized_ranks_are_refused():
    with pytest.raises(InputError, match="prefill replicas must not have ranks that wait for each other"):
        simulate("deepseek-v3", "h200-sxm", rate=1, layout="dp=8 ep=8", prefill_replicas=1)
    staged = simulate(
        "llama-3.1-70b", "h100-sxm", rate=4, requests=100, layout="tp=2 pp=2", prefill_replicas=1, bound=True
    )
    assert staged.reading_utilization < 1


def test_independent_ranks_of_prefill_workers_count_as_workers():
    how = {"rate": 60, "prompt_lengths": "4000", "requests": 300, "bound": True}
    ranks = simulate("llama-3.1-8b", "h100-sxm", layout="dp=2", prefill_replicas=2, replicas=2, **how)
    alone = simulate("llama-3.1-8b", "h100-sxm", prefill_replicas=4, replicas=4, **how)
    assert ranks.devices == alone.devices == 8
    assert ranks.start_s.tolist() == alone.start_s.tolist()
    assert ranks.reading_utilization == alone.reading_utilization


def test_prefill_workers_are_busy_until_the_last_prefill():
    found = simulate("llama-3.1-8b", "h100-sxm", rate=1e6, prefill_replicas=1, prompt_lengths="4000", requests=2)
    assert found.reading_utilization == pytest.approx(1, abs=1e-3)


# --- as expected of kernels ---


@pytest.fixture(scope="module")
def both():
    return simulate("llama-3.1-8b", "h100-sxm", rate=12, requests=600, seed=4, **LENGTHS)


def test_expected_run_has_the_same_requests_and_is_never_faster_than_the_bound(both):
    run = both.expected
    assert run.traffic is both.traffic
    assert both.unknown == ""
    assert both.likely is run
    assert np.all(run.first_s - run.start_s >= (both.first_s - both.start_s).min())
    for name in ("ttft_s", "tpot_s", "latency_s"):
        assert np.mean(getattr(run, name)) > 1.2 * np.mean(getattr(both, name))
    assert run.usage.written == both.usage.written
    assert run.closed.max_rate < both.closed.max_rate


def test_expected_run_matches_the_closed_form(both):
    run = both.expected
    assert float(np.mean(run.tpot_s)) == pytest.approx(run.closed.tpot_s, rel=0.05)
    assert float(np.mean(run.ttft_s)) == pytest.approx(run.closed.ttft_s, rel=0.1)


@pytest.mark.parametrize(("model", "quant"), [("llama-3.1-8b", None), ("llama-3.1-8b", "fp8"), ("mixtral-8x7b", "fp8")])
def test_mixed_step_times_match_the_sum_over_operators(model, quant):
    """Tables of a few shapes stand for all: within 13 % of the expectation of the very step, and never below its
    bound.
    """
    steps = Steps(Setting.of(model, "h100-sxm", quant=quant), expected=True)
    kernels, rng = steps.setting.kernels, np.random.default_rng(7)
    errors = []
    for _ in range(25):
        batch, kv_len = (float(round(10 ** rng.uniform(*ends))) for ends in ((0, 2.3), (1.5, 4)))
        read, past = float(round(10 ** rng.uniform(1, 3.5))), float(rng.choice([0, 512, 4000]))
        decode = Spans(batch=batch, q_len=1.0, kv_len=kv_len)
        prompt = Spans(batch=1.0, q_len=read, kv_len=read + past, logits=1.0)
        for groups in ((decode, prompt), (prompt,)):
            rows = steps.setting.plan.estimate(Workload(groups)).operators
            wanted = float(kernels.expect(rows, Workload(groups)).total.expected[0])
            errors.append(float(steps.mixed_s(groups)) / wanted - 1)
            assert steps.mixed_s(groups) >= Steps(steps.setting).mixed_s(groups)
    assert np.mean(np.abs(errors)) < 0.03
    assert np.max(np.abs(errors)) < 0.13


@pytest.mark.parametrize("device", ["h100-sxm", "l40s", "rtx-3090", "mi300x", "m3-max"])
def test_step_times_just_above_a_tile_match_the_sum_over_operators(device):
    """Tiles and kernels for few rows end at powers of two, where times jump."""
    steps = Steps(Setting.of("llama-3.1-8b", device), expected=True)
    kernels, plan, decode_plan = steps.setting.kernels, steps.setting.plan, steps.setting.decode_plan
    tokens = np.array([17.0, 34, 67, 130, 194, 260, 518])
    read = kernels.expect_plan(plan, Workload.prefill(batch=1.0, prompt=tokens)).total.expected
    assert steps.prefill_s(tokens) == pytest.approx(read, rel=0.08)
    written = kernels.expect_plan(decode_plan, Workload.decode(batch=tokens[:-1], kv_len=512.0)).total.expected
    assert steps.decode_s(batch=tokens[:-1], kv_len=512.0) == pytest.approx(written, rel=0.08)


def test_report_states_why_there_are_no_expected_times(capsys):
    found = simulate("llama-3.2-1b", "tpu-v5e", rate=1, requests=5)
    assert found.expected is None
    assert found.likely is found
    assert "no kernel was measured on tpu-v5e" in found.unknown
    assert main(["simulate", "llama-3.2-1b", "tpu-v5e", "--rate", "1", "--requests", "5"]) == 0
    assert "No expected times: no kernel was measured on tpu-v5e" in " ".join(capsys.readouterr().out.split())


def test_report_warns_of_requests_beyond_the_context_length():
    found = simulate("gpt2", "l4", rate=1, requests=3, bound=True)
    assert "1,152 tokens exceed the context length of gpt2, 1,024." in REPORT.remarks(found)


def test_bounds_alone():
    found = simulate("llama-3.1-8b", "h100-sxm", rate=5, requests=20, bound=True)
    assert found.expected is None
    assert found.unknown == ""


def test_library_changes_expected_times_but_not_bounds():
    one, other = (
        simulate("llama-3.1-8b", "h100-sxm", rate=5, requests=50, library=name) for name in ("vllm", "cublas")
    )
    assert np.array_equal(one.finish_s, other.finish_s)
    assert np.mean(one.expected.tpot_s) != np.mean(other.expected.tpot_s)


def test_rates_have_no_exponent(capsys):
    assert main(["simulate", "gpt2", "l4", "--rate", "2000", "--requests", "50", "--bound"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert " at 2,000 req/s, " in said
    assert "e+" not in said


@pytest.mark.parametrize(("bound", "replicas"), [(True, 1), (False, 2)])
def test_progress_counts_finished_requests_up_to_all(bound, replicas):
    told = []
    simulate(
        "llama-68m", "h100-sxm", rate=50, prompt_lengths=64, gen_lengths=8, requests=40, replicas=replicas, bound=bound,
        progress=lambda done, requests: told.append((done, requests)),
    )  # fmt: skip
    every = 40 if bound else 80
    assert {requests for _, requests in told} == {every}
    assert sorted(told) == told
    assert told[-1] == (every, every)


def test_long_simulation_prints_progress(monkeypatch, capsys):
    monkeypatch.setattr("llmviewer.cli.progress._FIRST_LINE_S", 0)
    monkeypatch.setattr("llmviewer.cli.progress._LINE_INTERVAL_S", 0)
    assert main(["simulate", "llama-68m", "h100-sxm", "--rate", "50", "--requests", "20", "--gen-lengths", "8"]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1] == "40 of 40 requests done"


@pytest.mark.parametrize(
    ("given", "last"),
    [(("--concurrency", "1,2"), "2 of 2 points done"), (("--rate", "max"), r"\d,\d{3} of 2,\d{3} requests done")],
)
def test_sweeps_of_simulations_print_progress(monkeypatch, capsys, given, last):
    monkeypatch.setattr("llmviewer.cli.progress._FIRST_LINE_S", 0)
    monkeypatch.setattr("llmviewer.cli.progress._LINE_INTERVAL_S", 0)
    more = ("--max-batch", "4", "--gen-lengths", "8") + (("--requests", "20") if "1,2" in given else ())
    assert main(["simulate", "llama-68m", "h100-sxm", *given, *more]) == 0
    assert re.fullmatch(last, capsys.readouterr().err.splitlines()[-1])
