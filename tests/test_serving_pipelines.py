"""Pipelines that serve: steps of all turns together, against turns that go on by themselves, and in closed form."""

import numpy as np
import pytest

from llmviewer import max_throughput, simulate
from llmviewer.serving.markov_chain import held_up_s, saturated_s
from llmviewer.serving.policy import parse_policy
from llmviewer.serving.steps import Steps
from llmviewer.workload import Spans

from .cases import first_fast

SETTING = {"model": "llama-3.1-70b", "hardware": "h100-sxm", "quant": "fp8"}
ALIKE = {"prompt_lengths": "2048", "gen_lengths": "128"}
VARIED = {"prompt_lengths": "uniform:500-2500", "gen_lengths": "uniform:50-250"}
WAYS = [("tp=4 pp=2", "prefill-first"), ("tp=2 pp=4", "fcfs"), ("tp=2 pp=4", "chunked:512")]


class FlowShop:
    """Turns that begin a step once their last one has left the last stage and the first stage is free, and enter each
    stage once it is free: one step of one turn at a time.
    """

    def __init__(self, steps, policy):
        self.stages, self.policy = steps._stages, policy
        self.free, self.ready = [0.0] * len(self.stages), [0.0] * steps.micro_batches
        self.read, self.ids, self.flies = ([kind() for _ in self.ready] for kind in (dict, list, list))

    def serve(self, traffic):
        """When each has its first token, and its last. [s]"""
        self.traffic, self.written, come = traffic, np.zeros(len(traffic), dtype=int), 0
        self.first, self.finish = np.full((2, len(traffic)), np.nan)
        while np.any(np.isnan(self.finish)):
            events = [
                (self.ready[turn], 0, turn) if self.flies[turn] else (max(self.ready[turn], self.free[0]), 2, turn)
                for turn in range(len(self.ready))
                if self.read[turn] or self.ids[turn]
            ]
            if come < len(traffic):
                events.append((traffic.arrival_s[come], 1, come))
            now, kind, at = min(events)
            if kind == 0:
                self.land(at, now)
            elif kind == 1:
                turn = min(range(len(self.ready)), key=lambda t: (len(self.read[t]) + len(self.ids[t]), self.ready[t]))
                self.read[turn][at] = 0
                self.ready[turn] = max(self.ready[turn], now)
                come += 1
            else:
                self.start(at, now)
        return self.first, self.finish

    def start(self, turn, now):
        policy, prompt = self.policy, self.traffic.prompt
        budget, groups = policy.budget - (len(self.ids[turn]) if policy.cuts else 0), []
        for one, read in self.read[turn].items():
            rest = int(prompt[one]) - read
            take = min(rest, budget) if policy.cuts else rest
            if take < 1 or (groups and take > budget):
                break
            budget -= take
            self.read[turn][one] += take
            groups.append(Spans(batch=1.0, q_len=float(take), kv_len=float(read + take), logits=float(take == rest)))
        decode = list(self.ids[turn]) if policy.mixes or not groups else []
        if decode:
            mean = float(np.mean(prompt[decode] + self.written[decode]))
            groups.insert(0, Spans(batch=float(len(decode)), q_len=1.0, kv_len=mean))
        for stage, each in enumerate(self.stages):
            now = self.free[stage] = max(now, self.free[stage]) + each.time_s([tuple(groups)])
        self.ready[turn] = now
        self.flies[turn] = [True, *decode]

    def land(self, turn, now):
        done = [one for one, read in self.read[turn].items() if read == self.traffic.prompt[one]]
        decoded, self.flies[turn] = self.flies[turn][1:], []
        for one in done:
            del self.read[turn][one]
            self.first[one] = now
            self.ids[turn].append(one)
        for one in (*done, *decoded):
            self.written[one] += 1
            if self.written[one] == self.traffic.gen[one]:
                self.finish[one] = now
                self.ids[turn].remove(one)


def at_load(share, layout, policy, lengths, requests):
    asked = {**SETTING, **lengths, "layout": layout, "policy": policy}
    most = simulate(**asked, rate=1, requests=500, bound=True).closed.max_rate
    return simulate(**asked, rate=share * most, requests=requests, bound=True)


def test_the_flow_shop_by_hand():
    """Two turns of one stage each way: the second enters each stage as the first leaves it."""
    found = simulate(**SETTING, layout="pp=2", rate=1e9, requests=2, prompt_lengths="1000", gen_lengths="1", bound=True)
    steps = Steps(found.setting)
    stages = [stage.time_s([(Spans(batch=1.0, q_len=1000.0, kv_len=1000.0, logits=1.0),)]) for stage in steps._stages]
    first, finish = FlowShop(steps, parse_policy("prefill-first")).serve(found.traffic)
    assert finish == pytest.approx(first)
    assert sorted(finish) == pytest.approx([sum(stages), sum(stages) + max(stages)], rel=1e-6)


@pytest.mark.parametrize(("layout", "policy"), first_fast(WAYS, "simulates thousands of requests"))
@pytest.mark.parametrize(
    ("lengths", "tpot", "ttft"),
    first_fast([(ALIKE, 0.06, 0.12), (VARIED, 0.12, 0.17)], "simulates thousands of requests"),
)
def test_synchronous_pipeline_steps_match_an_asynchronous_flow_shop(layout, policy, lengths, tpot, ttft):
    """Steps after a prompt wait for it at every stage, and those behind the last microbatch for the first one."""
    found = at_load(0.66, layout, policy, lengths, 250)
    first, finish = FlowShop(Steps(found.setting), found.policy).serve(found.traffic)
    own = (finish - first) / (found.traffic.gen - 1)
    assert np.mean(found.tpot_s) == pytest.approx(np.mean(own), rel=tpot)
    assert np.mean(found.ttft_s) == pytest.approx(np.mean(first - found.traffic.arrival_s), rel=ttft)


@pytest.mark.parametrize(("layout", "policy"), first_fast(WAYS, "simulates thousands of requests"))
@pytest.mark.parametrize(
    ("share", "exact"), first_fast([(0.02, 0.02), (0.3, 0.08), (0.66, 0.2)], "simulates thousands of requests")
)
def test_the_closed_form_is_near(layout, policy, share, exact):
    found = at_load(share, layout, policy, ALIKE, 400)
    closed = found.closed
    assert float(np.mean(found.tpot_s)) == pytest.approx(closed.tpot_s, rel=exact)
    assert float(np.mean(found.ttft_s)) == pytest.approx(closed.ttft_s, rel=max(exact, 0.09))
    assert found.decoding == pytest.approx(closed.batch, rel=exact + 0.06)
    assert found.usage.read == found.traffic.prompt.sum()
    assert found.usage.written == found.traffic.gen.sum()
    assert found.decoding == pytest.approx(found.requests_per_s * float(np.mean(found.finish_s - found.first_s)))


@pytest.mark.parametrize(("layout", "policy"), first_fast(WAYS, "simulates thousands of requests"))
@pytest.mark.parametrize("prompt", ["256", "2048"])
def test_maximum_throughput_of_a_pipeline_matches_the_closed_form(layout, policy, prompt):
    found = max_throughput(
        **SETTING, layout=layout, policy=policy, prompt_lengths=prompt, gen_lengths="uniform:50-450", max_batch=128,
        bound=True,
    )  # fmt: skip
    assert found.bound.requests_per_s == pytest.approx(found.bound.closed.max_rate, rel=0.05)


def test_saturated_microbatch_interval_equals_a_monte_carlo_estimate():
    """Lanes that read where an answer ended in their last step, and hold up the others."""
    lanes, ends, alone, step = 4, 0.3, 5.0, 1.0
    generator = np.random.default_rng(0)
    clock, served, reads = 0.0, 0, np.zeros(lanes, dtype=bool)
    for _ in range(100_000):
        clock += alone if reads.any() else step
        served += int(reads.sum())
        reads = ~reads & (generator.random(lanes) < -np.expm1(-ends))
    count = ends / -np.expm1(-ends)
    taken = saturated_s(np.array([ends]), alone, alone / lanes / 8, step, most=8 * lanes, lanes=lanes)
    assert held_up_s(np.array(5.0), np.array(1.0), lanes) == 5
    assert taken[0] * served * count / lanes == pytest.approx(clock, rel=0.02)
