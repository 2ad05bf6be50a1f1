"""Time to first token: what lies between clients and steps by hand, its laws, and InferenceX's published times."""

from statistics import median

import numpy as np
import pytest

import llmviewer
from llmviewer import simulate
from llmviewer.expectation.engines import DIRECT, IDLE, Frontend, Host, find_engine
from llmviewer.serving.clients import CLIENTS
from llmviewer.serving.policy import parse_policy
from llmviewer.serving.server import serve
from llmviewer.serving.steps import Steps
from llmviewer.serving.traffic import Traffic
from llmviewer.setting import Setting
from llmviewer.workload import Workload

from .inferencex import ROWS, found, is_scored

SERVED = ("vllm", "sglang", "tensorrt-llm")
PROMPT = 512


@pytest.fixture(scope="module")
def steps():
    return Steps(Setting.of("llama-3.1-8b", "h100-sxm"))


def served(steps, requests, policy="prefill-first", **how):
    """Served requests, given as (arrival, output tokens); all prompts are equal."""
    arrival, gen = (np.array(column) for column in zip(*requests, strict=True))
    traffic = Traffic(arrival_s=arrival.astype(float), prompt=np.full(len(gen), PROMPT), gen=gen)
    return serve(steps, traffic, policy=parse_policy(policy), max_batch=64, block=16, **how)


def decode_s(steps, number):
    """The decode step after `number` others of a sequence alone."""
    return steps.decoding_s([(1, PROMPT + 1.0 + number)])


# --- by hand ---


def test_a_request_alone_adds_the_time_of_the_frontend(steps):
    frontend = Frontend(request_s=0.003, token_s=1e-6, response_s=0.002)
    run = served(steps, [(1.5, 1), (9.0, 3)], frontend=frontend)
    own_s = 0.003 + PROMPT * 1e-6 + 0.002
    assert run.first_s - run.arrival_s == pytest.approx([own_s + float(steps.prefill_s(float(PROMPT)))] * 2)
    assert run.finish_s[1] - run.first_s[1] == pytest.approx(decode_s(steps, 0) + decode_s(steps, 1), rel=1e-6)


def test_prompts_are_accepted_one_after_another(steps):
    """Ten that come together: the first is read while the others are tokenized, the last is seen after all of them."""
    frontend = Frontend(request_s=0.05, token_s=1e-4)
    run = served(steps, [(0.0, 1)] * 10, frontend=frontend)
    each_s = 0.05 + PROMPT * 1e-4
    assert run.start_s == pytest.approx(each_s * np.arange(1, 11))  # each takes longer than a prefill
    assert run.first_s == pytest.approx(each_s * np.arange(1, 11) + float(steps.prefill_s(float(PROMPT))))


@pytest.mark.parametrize("ahead", [False, True])
def test_a_step_launched_ahead_goes_first(steps, ahead):
    """A request that comes in the third decode step joins the next one, or that after the one launched already."""
    prefill_s = float(steps.prefill_s(float(PROMPT)))
    third_s = prefill_s + sum(decode_s(steps, i) for i in range(2))
    run = served(steps, [(0.0, 50), (third_s + 1e-5, 1)], frontend=Frontend(ahead=ahead))
    assert run.start_s[1] == pytest.approx(third_s + sum(decode_s(steps, i) for i in (2, 3)[: 1 + ahead]), rel=1e-6)
    assert run.first_s[1] == pytest.approx(run.start_s[1] + prefill_s, rel=1e-6)


@pytest.mark.parametrize(("poll", "seen_after"), [(1, 3), (2, 4), (10, 10)])
def test_rarely_polling_scheduler_admits_a_request_late(steps, poll, seen_after):
    """It comes in the third of the decode steps; a scheduler looks after every `poll` of them, and after a prefill."""
    third_s = float(steps.prefill_s(float(PROMPT))) + sum(decode_s(steps, i) for i in range(2))
    run = served(steps, [(0.0, 50), (third_s + 1e-5, 1)], f"prefill-first,poll={poll}")
    until_s = third_s + sum(decode_s(steps, i) for i in range(2, seen_after))
    assert run.start_s[1] == pytest.approx(until_s, rel=1e-6)


@pytest.mark.parametrize(("policy", "steps_waited"), [("hold=40,fill=0.4", 40), ("hold=5,fill=0.4", 5), ("", 1)])
def test_a_prompt_waits_for_others_to_fill_the_step(steps, policy, steps_waited):
    """As TensorRT-LLM's batch_wait_timeout_iters: it waits for all but one step; the count begins with it."""
    third_s = float(steps.prefill_s(float(PROMPT))) + sum(decode_s(steps, i) for i in range(2))
    run = served(steps, [(0.0, 300), (third_s + 1e-5, 1)], f"fcfs:8192,{policy}".rstrip(","))
    until_s = third_s + sum(decode_s(steps, i) for i in range(2, 2 + steps_waited))
    own_s = run.first_s[1] - until_s - float(steps.prefill_s(float(PROMPT)))  # of the step with a decoding sequence
    assert 0 < own_s < 0.9 * decode_s(steps, 0)


def test_prompts_that_fill_the_step_wait_no_longer(steps):
    """Seven of 512 tokens and a sequence that decodes are 0.4 of 8192; one is read where nothing decodes."""
    third_s = float(steps.prefill_s(float(PROMPT))) + decode_s(steps, 0)
    many = served(steps, [(0.0, 300), *[(third_s, 1)] * 7], "fcfs:8192,hold=1000,fill=0.4")
    assert np.ptp(many.first_s[1:]) == 0
    assert many.first_s[1] < 1.5 * (third_s + float(steps.prefill_s(7.0 * PROMPT)))
    assert served(steps, [(0.0, 3)], "fcfs:8192,hold=1000,fill=0.4").first_s == pytest.approx(
        [float(steps.prefill_s(float(PROMPT)))]
    )


def test_idle_scheduler_admits_at_once(steps):
    run = served(steps, [(0.0, 2), (7.0, 2)], "prefill-first,poll=1000", frontend=Frontend(ahead=True))
    assert run.start_s.tolist() == [0.0, 7.0]


def test_each_scheduler_poll_admits_all_new_arrivals(steps):
    """Waits are those of one request, and prompts share the step."""
    late = [(0.04 + i / 1e4, 1) for i in range(3)]
    run = served(steps, [(0.0, 300), *late], "prefill-chunks:8192,poll=50")
    assert len(set(run.start_s[1:])) == len(set(run.first_s[1:])) == 1


def test_launches_of_prefills_take_the_host_where_kernels_are_shorter():
    host = Host(prefill_launch_s=5e-5, step_s=1e-3)
    assert host.of_step(prefills=True).time_s(0.01, 300) == pytest.approx(0.016)
    assert host.of_step(prefills=True).time_s(0.1, 300) == pytest.approx(0.101)
    assert host.of_step(prefills=False).time_s(0.01, 300) == pytest.approx(0.011)
    assert Host(prefill_launch_s=5e-5).of_step(prefills=False) is IDLE
    assert Workload.chunk(batch=1, chunk=8, past=0).prefills
    assert not Workload.decode(batch=3, kv_len=9).prefills
    assert not Workload.verify(batch=3, draft=4, past=9).prefills


def test_a_prefill_of_sglang_takes_as_long_as_its_launches_did():
    """82.6 ms for one token of DeepSeek-V3 (github.com/sgl-project/sglang, pull 12160)."""
    setting = Setting.of("deepseek-v3", "h200-sxm", layout="tp=8", engine="sglang")
    assert float(Steps(setting, expected=True).prefill_s(2.0)) == pytest.approx(0.0826, rel=0.01)
    (ttft, plain) = (
        llmviewer.analyze("deepseek-v3", "h200-sxm", tp=8, prompt=64, gen=2, **how).generation.expected_ttft_s
        for how in ({"engine": "sglang"}, {"library": "sglang"})
    )
    assert float(ttft) == pytest.approx(0.0826, rel=0.01)
    assert float(plain) < 0.06


def test_benchmark_clients_send_as_in_their_source_code():
    assert [client.count(64) for client in CLIENTS.values()] == [640, 1000, 1000]
    assert CLIENTS["vllm"].count(4000) == 4000  # no fewer than come at once
    assert [client.lengths(1024) for client in CLIENTS.values()] == ["uniform:819-1024", "1024", "uniform:1-1024"]
    run = simulate(
        "llama-3.1-8b", "h100-sxm", concurrency=3, client="inferencex", prompt_lengths=100, gen_lengths=20, bound=True
    )
    assert (len(run.traffic), run.client, run.inputs["client"]) == (30, "inferencex", "inferencex")
    assert run.traffic.arrival_s[:3].tolist() == [0, 0, 0]
    assert {run.traffic.prompt.min(), run.traffic.prompt.max()} <= set(range(80, 101))
    assert len(simulate("llama-3.1-8b", "h100-sxm", concurrency=2, client="vllm", requests=9, bound=True).traffic) == 9


# --- laws ---


@pytest.mark.parametrize("engine", SERVED)
def test_no_first_token_is_sooner_than_its_prefill(engine):
    found_run = simulate("llama-3.1-8b", "h100-sxm", concurrency=8, client="inferencex", engine=engine)
    run, steps = found_run.expected, Steps(found_run.setting, expected=True)
    own = find_engine(engine).frontend
    least_s = steps.prefill_s(run.traffic.prompt.astype(float))
    least_s = least_s + own.request_s + own.token_s * run.traffic.prompt + own.response_s
    assert np.min(run.ttft_s / least_s) > 0.999
    assert np.min(found_run.ttft_s / Steps(found_run.setting).prefill_s(run.traffic.prompt.astype(float))) > 0.999


@pytest.mark.parametrize("engine", SERVED)
def test_more_clients_never_get_first_tokens_sooner(engine):
    """Equal requests of a closed loop."""
    means = [
        float(
            np.mean(simulate("llama-3.1-8b", "h100-sxm", concurrency=n, engine=engine, requests=10 * n).expected.ttft_s)
        )
        for n in (1, 2, 4, 8, 16, 32)
    ]
    assert means == sorted(means)


@pytest.mark.parametrize("policy", ["chunked:8192", "prefill-chunks:8192,poll=30"])
def test_littles_law_with_a_frontend(policy):
    """Each client has a request in flight, on its way or in the server, until no more are sent."""
    asked = {"prompt_lengths": "uniform:200-1200", "gen_lengths": "uniform:1-300", "requests": 600, "engine": "sglang"}
    run = simulate("llama-3.1-8b", "h100-sxm", concurrency=10, policy=policy, **asked).expected
    assert run.requests_per_s * np.mean(run.latency_s) == pytest.approx(10, rel=0.03)
    assert np.sort(run.traffic.arrival_s)[10:] == pytest.approx(np.sort(run.finish_s)[:-10])


def test_bound_excludes_host_time():
    asked = {"concurrency": 6, "requests": 60, "prompt_lengths": 700, "gen_lengths": 30, "policy": "chunked:8192"}
    with_engine, without = (
        simulate("llama-3.1-8b", "h100-sxm", engine=engine, block=16, max_batch=9, **asked) for engine in ("vllm", "")
    )
    assert with_engine.ttft_s.tolist() == without.ttft_s.tolist()
    assert Steps(with_engine.setting).frontend is DIRECT


# --- published times ---


def published(engine, *, most):
    """Expected over published TTFTs of an engine with up to `most` requests in flight, of the half on which nothing was
    developed.
    """
    rows = [row for row in ROWS if row["engine"] == engine and not row["decoding"] and is_scored(row)]
    rows = [row for row in rows if int(row["concurrency"]) <= most]
    return [found(row).first[1] for row in rows[:: max(len(rows) // 12, 1)]]


@pytest.mark.parametrize("engine", SERVED)
def test_published_first_tokens_of_few_clients_are_near(engine):
    ratios = published(engine, most=4)
    assert len(ratios) >= 5
    assert median(abs(ratio - 1) for ratio in ratios) < 0.35
    assert 1 / 1.5 < median(ratios) < 1.3


@pytest.mark.slow("serves published loads")
@pytest.mark.parametrize("engine", SERVED)
def test_published_first_tokens_are_near(engine):
    """A sample of docs/inferencex.md."""
    ratios = published(engine, most=64)
    assert len(ratios) >= 12
    assert median(abs(ratio - 1) for ratio in ratios) < 0.4
    assert 1 / 1.5 < median(ratios) < 1.3
