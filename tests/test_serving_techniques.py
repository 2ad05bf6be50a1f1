"""Speculative decoding and prefix caching of requests over time: held to brute force, `analyze` and hand counts."""

import json
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from llmviewer import analyze
from llmviewer.cli import main
from llmviewer.errors import InputError
from llmviewer.memory import weight_bytes
from llmviewer.model import kv_cache_bytes
from llmviewer.reports.serving import REPORT
from llmviewer.serving.kv_cache import Caches
from llmviewer.serving.policy import POLICIES, parse_policy
from llmviewer.serving.progress import Progress, mean_passes
from llmviewer.serving.saturation import max_throughput
from llmviewer.serving.server import serve
from llmviewer.serving.simulation import simulate
from llmviewer.serving.steady import steady
from llmviewer.serving.steps import Steps
from llmviewer.serving.trace_files import read_traffic
from llmviewer.serving.traffic import Traffic
from llmviewer.setting import Setting
from llmviewer.techniques import parse_technique
from llmviewer.workload import Spans, Workload

MODEL, DEVICE = "llama-3.1-8b", "h100-sxm"
DRAFT = "speculative:draft=llama-68m,gamma=4,alpha=0.7"
SPECULATIVE = (
    DRAFT, "speculative:draft=llama-68m,tree=4x2,alpha=0.5", "eagle", "medusa", "retrieval", "lookahead",
    "kangaroo", "parallel-draft", "self-speculative",
)  # fmt: skip


def steps_of(*techniques, expected=False):
    return Steps(Setting.of(MODEL, DEVICE, techniques=techniques), expected)


def traffic(*requests):
    """Requests as (arrival, prompt, gen)."""
    arrival, prompt, gen = (np.array(column) for column in zip(*requests, strict=True))
    return Traffic(arrival_s=arrival.astype(float), prompt=prompt, gen=gen)


def served(steps, requests, policy="prefill-first", max_batch=64, block=16, seed=0):
    drawn = requests.with_acceptance(steps.acceptance_probabilities, seed)
    return serve(steps, drawn, policy=parse_policy(policy), max_batch=max_batch, block=block)


# --- how answers grow ---


@pytest.mark.parametrize("text", SPECULATIVE)
def test_acceptance_probabilities_sum_to_the_tokens_per_pass(text):
    technique = parse_technique(text)
    leaves = technique.acceptance_probabilities
    assert sum(leaves) == pytest.approx(technique.tokens)
    assert all(one >= other for one, other in pairwise(leaves))
    assert len(leaves) == technique.depth + 1


@pytest.mark.parametrize(("alpha", "gamma"), [(0.0, 4), (0.3, 1), (0.7, 4), (0.9, 8), (1.0, 3)])
def test_tokens_of_a_step_are_those_of_the_closed_form(alpha, gamma):
    """(1 - alpha^(gamma+1)) / (1 - alpha), arXiv:2211.17192, equation 1."""
    leaves = parse_technique(f"speculative:draft=llama-68m,gamma={gamma},alpha={alpha}").acceptance_probabilities
    expected = gamma + 1 if alpha == 1 else (1 - alpha ** (gamma + 1)) / (1 - alpha)
    drawn = traffic((0, 10, 100_001)).with_acceptance(leaves, 3)
    assert sum(leaves) == pytest.approx(expected)
    assert drawn.tokens_per_step == pytest.approx(expected, rel=0.01)


def test_outputs_end_at_the_requested_length_and_grow_in_every_pass():
    gen = np.array([1, 2, 3, 50, 500])
    drawn = Progress.drawn(gen, [parse_technique(DRAFT).acceptance_probabilities], np.random.default_rng(1))
    for request, count in enumerate(gen):
        passes = np.arange(drawn.passes[request] + 1)
        written = drawn.written(np.full(len(passes), request), passes)
        assert written[:2].tolist() == [0, 1]
        assert written[-1] == count
        assert np.all(np.diff(written) >= 1)
        assert np.max(np.diff(written), initial=1) <= 5
    assert drawn.only(np.array([3])).written(np.array([0]), drawn.passes[[3]]).tolist() == [50]


@pytest.mark.parametrize("leaves", [(1.0,), (1.0, 0.7, 0.49, 0.343), (1.0, 0.0), (1.0, 1.0, 1.0)])
@pytest.mark.parametrize("tokens", [0, 1, 2, 7, 40, 1000])
def test_passes_of_an_answer_by_brute_force(leaves, tokens):
    drawn = Progress.drawn(np.full(2000, tokens + 1), [leaves], np.random.default_rng(5))
    assert mean_passes(tokens, leaves) == pytest.approx(np.mean(drawn.passes) - 1, rel=0.02, abs=1e-9)


def test_accepted_tokens_depend_on_the_seed_alone():
    first, again, other = (
        simulate(MODEL, DEVICE, rate=1, requests=20, techniques=[DRAFT], seed=seed) for seed in (1, 1, 2)
    )
    assert np.array_equal(first.traffic.progress.ends, first.expected.traffic.progress.ends)
    assert np.array_equal(first.finish_s, again.finish_s)
    assert first.traffic.tokens_per_step != other.traffic.tokens_per_step


# --- steps ---


def test_steps_of_speculative_decoding_by_hand():
    """Four drafts at contexts n .. n + 3, and five tokens at once, of all sequences; the draft reads prompts too."""
    steps = steps_of(DRAFT)
    plan, draft = steps.setting.plan, Setting.of("llama-68m", DEVICE, quant="W16A16").plan
    drafting = sum(float(draft.time_s(Workload.decode(batch=8, kv_len=500 + i))) for i in range(4))
    verified = Spans(batch=8.0, q_len=5.0, kv_len=504.0, logits=5.0)
    assert steps.decoding_group(8.0, 500.0) == verified
    alone = float(plan.time_s(Workload((verified,))))
    assert float(steps.decode_s(batch=8.0, kv_len=500.0)) == pytest.approx(alone + drafting)
    assert steps.decoding_s([(8, 500.0)]) == pytest.approx(alone + drafting, rel=1e-4)
    part = Spans(batch=1.0, q_len=256.0, kv_len=256.0)
    mixed = float(plan.time_s(Workload((verified, part)))) + float(draft.time_s(Workload((part,)))) + drafting
    assert steps.step_s([(verified, part)]) == pytest.approx(mixed, rel=1e-4)
    assert float(steps.mixed_s((verified, part))) == pytest.approx(mixed)


@pytest.mark.parametrize("text", SPECULATIVE)
@pytest.mark.parametrize("expected", [False, True])
def test_single_sequence_latency_equals_the_analysis(text, expected):
    """Except for the last step, which may yield surplus tokens, and random acceptance."""
    gen = 3001
    asked = analyze(MODEL, DEVICE, prompt=1000, gen=gen, techniques=[text]).generation
    steps = steps_of(text, expected=expected)
    found = served(steps, traffic((0, 1000, gen)))
    tokens = traffic((0, 1000, gen)).with_acceptance(steps.acceptance_probabilities, 0).tokens_per_step
    tpot = (found.finish_s[0] - found.first_s[0]) / (gen - 1) * tokens / sum(steps.acceptance_probabilities)
    assert tpot == pytest.approx(asked.expected_tpot_s if expected else asked.tpot_s, rel=0.02 if expected else 0.002)
    assert tokens == pytest.approx(sum(steps.acceptance_probabilities), rel=0.03)


@pytest.mark.parametrize(("alpha", "tokens"), [(0, 1), (1, 5)])
def test_acceptance_0_and_1_are_deterministic(alpha, tokens):
    text = f"retrieval:length=4,alpha={alpha}"
    one, other = (served(steps_of(text), traffic((0, 500, 201)), seed=seed) for seed in (1, 2))
    assert one.finish_s[0] == other.finish_s[0]
    steps = steps_of(text)
    each = [float(steps.decode_s(batch=1.0, kv_len=500.0 + 1 + tokens * i)) for i in range(200 // tokens)]
    assert one.finish_s[0] - one.first_s[0] == pytest.approx(sum(each), rel=1e-4)


def test_drafts_that_are_never_accepted_change_nothing_else():
    """With alpha 0 and free drafts, steps only verify more tokens."""
    requests = traffic(*((0.01 * i, 300, 50) for i in range(20)))
    bare = served(steps_of(), requests)
    drafted = served(steps_of("retrieval:length=1,alpha=0"), requests)
    assert drafted.usage.written == bare.usage.written
    assert bare.finish_s[-1] <= drafted.finish_s[-1] < 1.02 * bare.finish_s[-1]


def test_draft_model_takes_memory_from_the_kv_budget():
    bare, drafted = steps_of(), steps_of(DRAFT)
    draft = Setting.of("llama-68m", DEVICE, quant="W16A16")
    assert bare.kv_budget_bytes(512) - drafted.kv_budget_bytes(512) == pytest.approx(weight_bytes(draft.graph))
    cache = kv_cache_bytes(draft.graph, batch=1, context=100.0, prompt=100.0)
    assert float(drafted.cache_bytes(100.0) - bare.cache_bytes(100.0)) == pytest.approx(float(cache))


@pytest.mark.parametrize("policy", [*POLICIES, "chunked:128"])
def test_every_policy_serves_every_token(policy):
    generator = np.random.default_rng(4)
    requests = traffic(*zip(np.sort(generator.random(60)) * 3, generator.integers(20, 800, 60),
                            generator.integers(1, 90, 60), strict=True))  # fmt: skip
    for techniques in ([DRAFT], ["prefix-cache:hit=0.6"], [DRAFT, "prefix-cache:tokens=100,common=false"]):
        steps = steps_of(*techniques)
        found = served(steps, requests, policy, max_batch=8)
        usage = found.usage
        assert np.all(found.first_s >= found.start_s)
        assert np.all(found.finish_s >= found.first_s)
        assert usage.written == np.sum(requests.gen)
        assert usage.read + usage.reread + usage.known >= np.sum(requests.prompt)
        if not np.any(found.preempted) and policy != "static":
            assert usage.read + usage.known == np.sum(requests.prompt)


@pytest.mark.parametrize(("policy", "techniques"), [
    ("prefill-first", [DRAFT]), ("prefill-first", ["prefix-cache:tokens=600"]),
    ("chunked:512", ["retrieval:length=4", "prefix-cache"]),
])  # fmt: skip
def test_the_closed_form_is_near_at_half_of_the_limit(policy, techniques):
    found = simulate(
        MODEL, DEVICE, rate=8, prompt_lengths=900, gen_lengths=150, policy=policy, techniques=techniques, requests=300,
    )  # fmt: skip
    for run in (found, found.expected):
        assert np.mean(run.tpot_s) == pytest.approx(run.closed.tpot_s, rel=0.04)
        assert np.mean(run.ttft_s) == pytest.approx(run.closed.ttft_s, rel=0.06)
        assert run.decoding == pytest.approx(run.closed.batch, rel=0.06)


def test_maximum_throughput_matches_the_closed_form():
    for techniques in ([DRAFT], ["prefix-cache:hit=0.5"]):
        found = max_throughput(
            MODEL, DEVICE, techniques=techniques, policy="prefill-first", max_batch=32, gen_lengths=64, requests=300,
            bound=True,
        )  # fmt: skip
        assert found.bound.requests_per_s == pytest.approx(found.bound.closed.max_rate, rel=0.03)
        mean = sum(steps_of(*techniques).acceptance_probabilities)
        assert found.to_dict()["tokens_per_step"] == pytest.approx(mean, rel=0.03)


@pytest.mark.parametrize(("batch", "measured"), [(1.0, 1.8), (32.0, 1.5)])
def test_prediction_layer_speedup_matches_the_measured_one(batch, measured):
    """DeepSeek-V3 on eight H200 (tp=8), SGLang's documentation; tokens of a pass are the usual ones of `mtp`."""
    bare, drafted = (
        Steps(Setting.of("deepseek-v3", "h200-sxm", layout="tp=8", techniques=techniques), expected=True)
        for techniques in ([], ["mtp"])
    )
    plain_s, step_s = (float(steps.decode_s(batch=batch, kv_len=2000.0)) for steps in (bare, drafted))
    assert sum(drafted.acceptance_probabilities) * plain_s / step_s == pytest.approx(measured, rel=0.06)


# --- prompts that are there already ---


def test_partly_cached_prompt_prefills_only_the_rest():
    steps = steps_of("prefix-cache:tokens=600")
    found = served(steps, traffic((0, 1000, 1), (10, 300, 1)))
    plan = steps.setting.plan
    for request, (new, prompt) in enumerate([(400, 1000), (1, 300)]):
        read = Workload((Spans(batch=1, q_len=new, kv_len=prompt),))
        assert found.first_s[request] - 10 * request == pytest.approx(float(plan.time_s(read)))
    assert (found.usage.read, found.usage.known) == (401, 899)
    assert found.usage.there == pytest.approx(899 / 1300)


def test_single_request_prefill_time_equals_the_analysis():
    asked = analyze(MODEL, DEVICE, prompt=2000, gen=1, techniques=["prefix-cache:hit=0.8"]).generation.ttft_s
    found = served(steps_of("prefix-cache:hit=0.8"), traffic((0, 2000, 1)))
    assert found.first_s[0] == pytest.approx(asked)


def test_common_prefix_is_stored_once_and_private_prefixes_per_request():
    requests = traffic(*((0, 2000, 10) for _ in range(4)))
    token = float(steps_of().cache_bytes(1.0))
    peak = {}
    for common in ("true", "false"):
        steps = steps_of(f"prefix-cache:tokens=1600,common={common}")
        caches = Caches.of(steps, requests, POLICIES["prefill-first"], 16)
        usage = served(steps, requests).usage
        once = steps.kv_budget_bytes(2048) - caches.blocks.room_bytes
        assert once == pytest.approx(1600 * token if common == "true" else 0, abs=1)
        peak[common] = usage.peak_bytes + once
    each = 2016 * token  # in whole blocks
    assert peak["false"] == pytest.approx(4 * each)
    assert peak["true"] == pytest.approx(1600 * token + 4 * (each - 1600 * token))


def test_blocks_of_a_common_beginning_are_whole():
    steps = steps_of("prefix-cache:tokens=1000")
    requests = traffic((0, 1500, 10), (0, 900, 10))
    caches = Caches.of(steps, requests, POLICIES["fcfs"], 64)
    assert caches.cached.tolist() == [1000, 899]
    assert caches.common.tolist() == [960, 896]


def test_preempted_request_hits_only_shared_blocks():
    for common in (True, False):
        steps = with_room(steps_of(f"prefix-cache:hit=0.5,common={str(common).lower()}"), 2200)
        found = served(steps, traffic((0, 800, 600), (0, 800, 600)), max_batch=2)
        assert found.preempted.tolist() == [0, 1]
        assert found.usage.read == 800
        assert found.usage.known == (1200 if common else 800)
        assert found.usage.reread > (400 if common else 800)


def with_room(steps, tokens):
    """The same steps with KV-cache capacity for `tokens` tokens in addition to a step of 2048."""
    setting = steps.setting
    less = steps.kv_budget_bytes(2048) - tokens * float(steps.cache_bytes(1.0))
    return Steps(Setting.of(
        MODEL, DEVICE, techniques=setting.techniques,
        hardware_set=[f"memory.capacity={setting.hardware.capacity - less:.0f} B"],
    ))  # fmt: skip


def test_request_files_give_cached_tokens_per_prompt(tmp_path):
    path = tmp_path / "requests.csv"
    path.write_text("timestamp,prompt,gen,cached_tokens\n0,1000,1,600\n5,1000,1,0\n9,300,1,300\n")
    found = simulate(MODEL, DEVICE, arrivals=path, policy="prefill-first", bound=True)
    plan = found.setting.plan
    for request, (new, prompt) in enumerate([(400, 1000), (1000, 1000), (1, 300)]):
        read = Workload((Spans(batch=1, q_len=new, kv_len=prompt),))
        assert found.ttft_s[request] == pytest.approx(float(plan.time_s(read)))
    assert found.usage.known == 899
    apart = simulate(MODEL, DEVICE, arrivals=path, prefill_replicas=1, bound=True)
    assert apart.ttft_s[0] < 0.6 * apart.ttft_s[1]


def test_blocks_of_a_trace_are_found_again(tmp_path):
    """As in Mooncake's traces: milliseconds, and ids of blocks of 512 tokens, the last of them not full."""
    path = tmp_path / "trace.jsonl"
    rows = [(0, 1200, [1, 2, 3]), (2000, 1500, [1, 2, 4]), (2500, 1200, [1, 2, 3]), (9000, 400, [9])]
    lines = ({"timestamp": t, "input_length": n, "output_length": 5, "hash_ids": ids} for t, n, ids in rows)
    path.write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    found = read_traffic(path)
    assert found.arrival_s.tolist() == [0, 2, 2.5, 9]
    assert found.cached.tolist() == [0, 1024, 1199, 0]
    assert read_traffic(path, 2).prompt.tolist() == [1200, 1500]
    path.write_text('{"timestamp": 0, "input_length": 10, "output_length": 5}\n')
    assert read_traffic(path).cached is None


@pytest.mark.parametrize(("line", "said"), [
    ("nothing", r":1: must be an object in JSON; got 'nothing'$"),
    ('{"timestamp": 0, "output_length": 5}', r":1: prompt must be a whole number from 1 to .*; got ''$"),
    ('{"timestamp": "x", "input_length": 9, "output_length": 5}', r":1: timestamp must be milliseconds; got 'x'$"),
    ('{"timestamp": 0, "input_length": 9, "output_length": 5, "hash_ids": [[]]}', r":1: hash_ids must be a list of"),
])  # fmt: skip
def test_invalid_trace_lines_are_refused(tmp_path, line, said):
    path = tmp_path / "trace.jsonl"
    path.write_text(line)
    with pytest.raises(InputError, match=said):
        read_traffic(path)


def test_file_hits_equal_prefix_cache_hits_of_the_same_length(tmp_path):
    path = tmp_path / "requests.csv"
    moments = np.sort(np.random.default_rng(3).random(150)) * 15
    path.write_text("timestamp,prompt,gen,cached\n" + "".join(f"{t:.4f},800,60,500\n" for t in moments))
    one = simulate(MODEL, DEVICE, arrivals=path, bound=True)
    path.write_text("timestamp,prompt,gen\n" + "".join(f"{t:.4f},800,60\n" for t in moments))
    other = simulate(MODEL, DEVICE, arrivals=path, techniques=["prefix-cache:tokens=500,common=false"], bound=True)
    assert np.array_equal(one.finish_s, other.finish_s)
    assert one.closed == other.closed


@pytest.mark.parametrize(("rows", "said"), [
    ("0,10,5,11\n", r":2: cached must be at most the 10 tokens of the prompt; got 11$"),
    ("0,10,5,x\n", r":2: cached must be a whole number from 0 to .*; got 'x'$"),
    ("0,10,5,5\n", r"^prefix-cache must be left out with arrivals, a trace file with the cached tokens of each prompt"),
])  # fmt: skip
def test_invalid_hits_in_a_file_are_refused(tmp_path, rows, said):
    path = tmp_path / "requests.csv"
    path.write_text("timestamp,prompt,gen,cached\n" + rows)
    with pytest.raises(InputError, match=said):
        simulate(MODEL, DEVICE, arrivals=path, techniques=["prefix-cache"], bound=True)


def test_only_uncached_tokens_are_transferred_to_decode_workers():
    times = {}
    for name, techniques in {
        "bare": [],
        "common": ["prefix-cache:hit=0.5"],
        "own": ["prefix-cache:common=false"],
    }.items():
        found = simulate(MODEL, DEVICE, rate=1, requests=20, prefill_replicas=1, techniques=techniques, bound=True)
        read = Workload((Spans(batch=1, q_len=512 if techniques else 1024, kv_len=1024),))
        times[name] = float(np.min(found.ttft_s)) - float(found.reads.plan.time_s(read))
    assert times["common"] == pytest.approx(times["bare"] / 2, rel=1e-6)
    assert times["own"] == pytest.approx(times["bare"], rel=1e-6)


def test_synchronized_ranks_run_speculative_decoding():
    found = {
        techniques: simulate(
            "deepseek-v2-lite", DEVICE, rate=4, requests=60, layout="dp=2 ep=2", techniques=techniques, bound=True
        )
        for techniques in ((), ("retrieval:length=2,tau=2",), (DRAFT.replace("llama-68m", "qwen2.5-0.5b"),))
    }
    plain, free, drafted = (float(np.mean(one.tpot_s)) for one in found.values())
    assert free < plain < 3 * free
    assert drafted > free / 1.4


# --- what users give and read ---


@pytest.mark.parametrize(("text", "said"), [
    ("prefix-cache:hit=0.5,tokens=10", r"^prefix-cache: give hit \(a fraction of each prompt\) or tokens"),
    ("chunked-prefill", r"^chunked-prefill changes the passes of a request, which continuous batching does not"),
    ("beam", r"^beam changes the passes of a request"),
    ("mtp", r"^mtp: llama-3.1-8b has no known multi-token prediction layers"),
    ("speculative:draft=llama-68m", r"^speculative: give alpha \(acceptance rate\) or tau"),
])  # fmt: skip
def test_techniques_that_cannot_be_served_are_refused(text, said):
    with pytest.raises(InputError, match=said):
        simulate(MODEL, DEVICE, rate=1, techniques=[text])


def test_encoder_model_error_precedes_missing_technique_parameters():
    with pytest.raises(
        InputError, match=r"^speculative: bert-base-uncased does not generate, so it has no decode passes to change$"
    ):
        Setting.of("bert-base-uncased", DEVICE, techniques=["speculative:draft=llama-68m"])


def test_report_states_tokens_per_step_and_prefix_hits(tmp_path, capsys):
    asked = ["simulate", MODEL, DEVICE, "--rate", "5", "--requests", "50", "--bound", "--with", DRAFT]
    asked += ["--with", "prefix-cache:tokens=512"]
    assert main([*asked, "-o", str(tmp_path / "found.json")]) == 0
    document = json.loads((tmp_path / "found.json").read_text())
    assert document["tokens_per_step"] == pytest.approx(2.77, rel=0.05)
    assert document["usage"]["known"] == 50 * 512
    assert document["inputs"]["techniques"] == ["prefix-cache:tokens=512", str(parse_technique(DRAFT))]
    assert main(asked) == 0
    told = capsys.readouterr().out
    assert "output tokens per decode step" in told
    assert "prefix-cache hit rate" in told
    headline = REPORT.headline(simulate(MODEL, DEVICE, rate=5, requests=5, techniques=[DRAFT], bound=True))
    assert headline.count(str(parse_technique(DRAFT))) == 1


def test_closed_form_detects_overload():
    steps = steps_of("retrieval:length=4,tau=4")
    requests = traffic(*((i, 500, 200) for i in range(300))).with_acceptance(steps.acceptance_probabilities, 0)
    one, plain = (
        steady(each, own, rate=1.0, policy=parse_policy("prefill-first"), max_batch=16)
        for each, own in ((steps, requests), (steps_of(), replace(requests, drafted=None)))
    )
    assert 1.5 < one.max_rate / plain.max_rate < 4


PUBLISHED = [  # model, device, degrees, draft, batch, published speed-up, expected one of docs/serving.md
    (
        "deepseek-v3",
        "h200-sxm",
        {"tp": 8},
        "mtp",
        1,
        1.8,
        1.72,
    ),  # github.com/sgl-project/sglang, docs/basic_usage/deepseek_v3.md
    ("deepseek-v3", "h200-sxm", {"tp": 8}, "mtp", 32, 1.5, 1.45),
    ("llama-3.1-8b", "h100-sxm", {}, "eagle", 64, 1.38, 1.82),  # arXiv:2503.01840, abstract
]


@pytest.mark.parametrize(("model", "device", "degrees", "draft", "batch", "published", "documented"), PUBLISHED)
def test_deployed_draft_speedups_match_published_ones(model, device, degrees, draft, batch, published, documented):
    asked = {"engine": "sglang", "batch": batch, "prompt": 256, "gen": 512, **degrees}
    plain, drafted = (
        analyze(model, device, techniques=some, **asked).generation.expected_tpot_s for some in ([], [draft])
    )
    assert plain / drafted == pytest.approx(documented, abs=0.02)
    assert plain / drafted == pytest.approx(published, rel=0.05 if draft == "mtp" else 0.35)
