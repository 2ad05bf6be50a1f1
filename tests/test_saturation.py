"""Maximum throughput of replicas: against the closed form, a whole batch, long runs, and by hand."""

from __future__ import annotations

import json

import numpy as np
import pytest

import llmviewer
from llmviewer import max_throughput
from llmviewer.cli import main
from llmviewer.errors import InputError
from llmviewer.reports.saturation import REPORT
from llmviewer.serving.policy import POLICIES
from llmviewer.serving.server import serve
from llmviewer.serving.steps import Steps

from .cases import first_fast

MODEL, DEVICE = "llama-3.1-8b", "h100-sxm"


def test_batch_1_throughput_is_the_inverse_of_prefill_plus_decode_time():
    found = max_throughput("gpt2", "l4", prompt_lengths=500, gen_lengths=8, max_batch=1, bound=True)
    steps = Steps(found.setting)
    read = float(steps.prefill_s(500.0))
    decoding = sum(float(steps.decode_s(batch=1.0, kv_len=500.0 + i)) for i in range(1, 8))
    assert found.bound.requests_per_s == pytest.approx(1 / (read + decoding), rel=1e-3)
    assert found.bound.tokens_per_s == pytest.approx(8 / (read + decoding), rel=1e-3)
    assert found.bound.running == pytest.approx(1)
    assert found.bound.span.tpot_s == pytest.approx(decoding / 7, rel=1e-3)


def test_static_batch_equals_the_largest_batch_of_analyze():
    found = max_throughput(MODEL, DEVICE, policy="static")
    whole = llmviewer.analyze(MODEL, DEVICE, batch="max")
    assert found.bound.running == pytest.approx(whole.request.batch)
    assert found.bound.tokens_per_s == pytest.approx(whole.generation.tokens_per_s, rel=1e-3)
    assert found.expected.tokens_per_s == pytest.approx(whole.generation.expected_tokens_per_s, rel=0.02)


@pytest.mark.parametrize("policy", first_fast([*POLICIES, "chunked:2048"], "simulates thousands of requests"))
def test_the_closed_form_is_near(policy):
    found = max_throughput(MODEL, DEVICE, policy=policy)
    for run in (found.bound, found.expected):
        assert run.requests_per_s == pytest.approx(run.closed.max_rate, rel=0.05)
    assert found.expected.requests_per_s < found.bound.requests_per_s


@pytest.mark.parametrize(("policy", "prompt", "gen"), first_fast([
    ("chunked:512", 128, 1024), ("chunked:4096", 128, 1024), ("prefill-first", 128, 1024),
    ("chunked:1024", 294, 294), ("fcfs", 294, 294), ("chunked:2048", 2000, 200),
    ("chunked:4096", "uniform:50-1000", "uniform:20-600"), ("fcfs", "uniform:50-1000", "uniform:20-600"),
], "simulates thousands of requests"))  # fmt: skip
def test_saturated_servers_keep_the_closed_form_rate_without_preemption(policy, prompt, gen):
    """No oscillation and no preemption, whatever the step size."""
    run = max_throughput(MODEL, DEVICE, policy=policy, prompt_lengths=prompt, gen_lengths=gen, bound=True).bound
    assert run.requests_per_s == pytest.approx(run.closed.max_rate, rel=0.05)
    assert run.span.preemptions == 0


@pytest.mark.slow("simulates thousands of requests")
def test_default_policy_maximizes_throughput_over_chunk_sizes():
    device, asked = "l4", {"prompt_lengths": 2048, "gen_lengths": 256}
    found = max_throughput(MODEL, device, **asked)
    others = [
        max_throughput(MODEL, device, policy=f"chunked:{tokens}", **asked) for tokens in (512, 1024, 2048, 4096, 8192)
    ]
    assert found.policy in [each.policy for each in others]
    assert found.expected.tokens_per_s > 0.97 * max(each.expected.tokens_per_s for each in others)
    assert max_throughput(MODEL, device, engine="vllm", max_batch=4, **asked).policy.budget == 2048


@pytest.mark.parametrize("asked", first_fast([
    {"policy": "prefill-first"},
    {"prompt_lengths": "uniform:100-900", "gen_lengths": "uniform:50-350"},
    {"layout": "dp=2"},
    {"layout": "pp=2", "gen_lengths": "uniform:50-350"},  # alike, all turns would read at once, again and again
], "simulates thousands of requests"))  # fmt: skip
def test_a_long_run_has_the_same_pace(asked):
    """Filling up and running empty are a small part of it."""
    found = max_throughput(MODEL, DEVICE, max_batch=64, bound=True, **asked)
    many = max_throughput(MODEL, DEVICE, max_batch=64, bound=True, requests=1500, **asked)
    assert found.bound.tokens_per_s == pytest.approx(many.bound.tokens_per_s, rel=0.02)
    steps = Steps(many.setting)
    whole = serve(steps, many.traffic, policy=many.policy, max_batch=64, block=16)
    pace = steps.rank_sets * np.sum(many.traffic.gen) / np.max(whole.finish_s)
    assert many.bound.tokens_per_s == pytest.approx(pace, rel=0.03)


@pytest.mark.slow("simulates thousands of requests")
def test_independent_replicas_and_ranks_multiply_throughput():
    one, replicas, ranks = (max_throughput(MODEL, DEVICE, max_batch=16, bound=True, **how)
                          for how in ({}, {"replicas": 3}, {"layout": "dp=3"}))  # fmt: skip
    assert replicas.bound.tokens_per_s == pytest.approx(3 * one.bound.tokens_per_s)
    assert ranks.bound.tokens_per_s == pytest.approx(3 * one.bound.tokens_per_s, rel=1e-3)
    assert (one.devices, replicas.devices, ranks.devices) == (1, 3, 3)
    assert ranks.bound.running == pytest.approx(3 * one.bound.running)
    assert replicas.tokens_per_joule(replicas.bound) == pytest.approx(one.tokens_per_joule(one.bound))


@pytest.mark.slow("simulates thousands of requests")
def test_default_batch_limit_follows_from_kv_memory():
    """A batch limit from half-generated outputs causes few preemptions."""
    asked = {"prompt_lengths": "uniform:64-192", "gen_lengths": "uniform:500-1500", "bound": True, "requests": 2400}
    found, more = max_throughput(MODEL, "l40s", **asked), max_throughput(MODEL, "l40s", max_batch=800, **asked)
    assert found.max_batch == found.bound.closed.max_batch < 420
    assert found.bound.span.preemptions < more.bound.span.preemptions / 4
    assert found.bound.tokens_per_s == pytest.approx(more.bound.tokens_per_s, rel=0.05)
    assert max_throughput("gpt2", "b200", bound=True, prompt_lengths=16, gen_lengths=4).max_batch == 2048


@pytest.mark.parametrize(("asked", "said"), first_fast([
    ({"policy": "chunked:512"}, "Prefill (57 of 476 running requests per replica decode"),
    ({"policy": "chunked:4096"}, "Step time (half of the 473 running requests would give 9"),
    ({"prompt_lengths": 64, "gen_lengths": "uniform:1000-3000"}, "KV-cache capacity (a request waits for KV memory "),
    ({"max_batch": 8}, "Batch limit (a request waits at max batch 100% of the time; --max-batch)"),
    ({"policy": "decode-first"}, "Static batches (no request is admitted until all "),
], "simulates thousands of requests", 2))  # fmt: skip
def test_limit_names_the_bottleneck_and_the_step_time(asked, said):
    limit = max_throughput(MODEL, DEVICE, bound=True, **asked).bound.limit
    assert limit.startswith(said)
    assert ". Step time: " in limit


@pytest.mark.slow("simulates thousands of requests")
def test_default_request_count_reaches_steady_state():
    asked = {"gen_lengths": "lognormal:mean=100,p95=380", "bound": True, "max_batch": 160, "policy": "prefill-first"}
    found = max_throughput(MODEL, DEVICE, **asked)
    assert len(found.traffic) > 1000
    assert found.bound.requests_per_s == pytest.approx(found.bound.closed.max_rate, rel=0.05)
    with pytest.raises(InputError, match=r"^requests must be more than 200: the queue is empty before a replica "):
        max_throughput(MODEL, DEVICE, requests=200, **asked)
    with pytest.raises(InputError, match=r"^requests must be a whole number"):
        max_throughput(MODEL, DEVICE, requests=0)


@pytest.mark.slow("simulates thousands of requests")
def test_report_of_maximum_throughput_does_not_depend_on_the_request_count(capsys, tmp_path):
    assert main(["simulate", MODEL, DEVICE, "--rate", "max"]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    words = " ".join(text.split())
    assert "as KV memory allows Maximum throughput" in words
    assert words.startswith("Llama 3.1 8B on h100-sxm, maximum throughput: 1,024 input and 128 output tokens")
    assert "Bottleneck: Step time (half of" in words
    assert "mean TTFT" not in words
    assert "E2E latency" not in words
    found = max_throughput(MODEL, DEVICE)
    assert f"output token throughput (tok/s) {found.bound.tokens_per_s:,.0f}" in words
    told = json.loads(REPORT.json(found))
    assert told["inputs"]["rate"] == "max"
    assert told["tokens_per_s"] == pytest.approx(found.bound.tokens_per_s)
    assert told["expected"]["requests_per_s"] == pytest.approx(found.expected.requests_per_s)
    assert not {"times", "queue", "drained"} & {*told, *told["expected"]}
    least = max_throughput(MODEL, DEVICE, bound=True)
    assert main(["simulate", MODEL, DEVICE, "--rate", "max", "--bound", "-o", str(tmp_path)]) == 0
    for name in ("saturation.html", "saturation.md", "saturation.csv"):
        assert f"{least.bound.tokens_per_s:,.0f}" in (tmp_path / name).read_text() or name.endswith("csv")
    capsys.readouterr()
    assert main(["simulate", MODEL, "tpu-v5e", "--rate", "max"]) == 0
    assert "No expected times: no kernel was measured on tpu-v5e" in " ".join(capsys.readouterr().out.split())


QUEUES = "--rate max queues all requests at the start, on replicas that prefill and decode; leave out --"


@pytest.mark.parametrize(("options", "said"), [
    (["--prefill-replicas", "1"], f"{QUEUES}prefill-replicas"),
    (["--ttft", "1"], f"{QUEUES}ttft"),
    (["--tpot", "1"], f"{QUEUES}tpot"),
    (["--arrivals", "x.csv"], f"{QUEUES}arrivals"),
    (["--prefill-hardware", "l4"], f"{QUEUES}prefill-hardware"),
    (["--max-batch", "0"], "--max-batch must be a whole number of at least 1; got 0"),
    (["--requests", "20"], "requests must be more than 20"),
    (["--requests", "2000000"], "requests must be at most 1000000"),
])  # fmt: skip
def test_mistakes_get_one_line(capsys, options, said):
    assert main(["simulate", MODEL, DEVICE, "--rate", "max", *options]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert said in captured.err
    assert captured.err.count("\n") == 1


def test_a_rate_is_a_number_or_max(capsys):
    assert main(["simulate", MODEL, DEVICE, "--rate", "most"]) == 2
    assert "must be a number of req/s, or max for the maximum throughput" in capsys.readouterr().err
    with pytest.raises(InputError, match="must be a number"):
        llmviewer.simulate(MODEL, DEVICE, rate="max")
