"""Agents' tasks as graphs of calls: what a file describes is drawn, simulated and reported."""

import json
import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from llmviewer import simulate
from llmviewer.cli import main
from llmviewer.documents import parse_yaml
from llmviewer.errors import InputError
from llmviewer.serving.calls import CallLimits
from llmviewer.serving.task_files import parse_task, read_task
from llmviewer.setting import Setting

from .cases import for_each
from .test_sessions import check_arrivals, check_tokens

DOCS = Path(__file__).parents[1] / "docs"
MODEL, DEVICE = "llama-3.2-1b", "h100-sxm"
RESEARCH = """
name: research
system_prompt: 700
calls:
  plan: {prompt: 100, gen: "uniform:20-80"}
  search: {continues: plan, parallel: "uniform:2-4", wait: "exponential:0.5", prompt: 900, gen: 60}
  check: {after: search, probability: 0.4, prompt: 300, gen: 40}
  loop: {continues: check, after: search, wait: 100 ms, prompt: 200, gen: 50, repeat: 0.7, at_most: 5}
  answer: {continues: loop, prompt: 50, gen: 120}
"""


MODELS = """
models:
  large: {price: {input: 24.7, output: 24.7}}
  small: {model: llama-3.2-1b, hardware: l4, price: {input: 0.24, output: 0.24}}
"""


@pytest.fixture
def task_file(tmp_path):
    def write(text):
        path = tmp_path / "task.yaml"
        path.write_text(text)
        return path

    return write


def drawn(path, *, requests=2000, seed=0, **asked):
    asked = {"rate": 1.0, "in_flight": None} | asked
    return read_task(path).traffic(requests=requests, generator=np.random.default_rng(seed), **asked)


@pytest.mark.parametrize("extra", [
    {"rate": 3}, {"rate": 3, "layout": "dp=2"}, {"rate": 3, "replicas": 2}, {"concurrency": 4},
    {"rate": 3, "policy": "static"},
    {"rate": 20, "hardware_set": ["memory.capacity=3.2 GB"]},
])  # fmt: skip
def test_calls_come_after_answers_and_waits_and_tokens_are_conserved(task_file, extra):
    run = simulate(MODEL, DEVICE, tasks=task_file(RESEARCH), requests=200, **extra)
    for each in (run, run.expected):
        check_arrivals(each)
        check_tokens(each)
        assert each.usage.known <= each.usage.known_at_most + 1e-6
        assert np.all(each.tasks.serving_s <= each.tasks.latency_s + 1e-9)
        assert each.tasks.calls.sum() == len(each.traffic)
        assert each.tasks.cached.sum() == each.cached.sum()
    assert ("hardware_set" in extra) == (run.usage.evicted > 0)


def test_a_chain_of_calls_is_a_session(task_file):
    """The same times as sessions of three turns, whose system prompt, lengths and think times are those of the file."""
    turn = "prompt: 120, gen: 40"
    chain = f"""
    system_prompt: 500
    calls:
      first: {{{turn}}}
      second: {{continues: first, wait: 2, {turn}}}
      third: {{continues: second, wait: 2 s, {turn}}}
    """
    asked = {"rate": 4, "requests": 90, "bound": True}
    tasks = simulate(MODEL, DEVICE, tasks=task_file(chain), **asked)
    sessions = simulate(
        MODEL, DEVICE, session_turns=3, think_time=2, system_prompt=500, prompt_lengths=120, gen_lengths=40, **asked
    )
    for name in ("start_s", "first_s", "finish_s", "cached"):
        assert np.array_equal(getattr(tasks, name), getattr(sessions, name))
    assert (tasks.tasks.kind, sessions.tasks.kind) == ("task", "session")


def test_graph_of_one_task_by_hand(task_file):
    """Branches run at once, the join waits for the last, and a call that is not made passes on what it waits for."""
    text = """
    calls:
      start: {prompt: 100, gen: 10}
      short: {continues: start, prompt: 10, gen: 5, wait: 1}
      long: {continues: start, prompt: 10, gen: 50, wait: 3}
      never: {continues: long, after: [short], probability: 0, prompt: 10, gen: 10}
      join: {continues: never, prompt: 30, gen: 5}
      again: {continues: start, prompt: 5, gen: 5, repeat: 1, at_most: 3}
    """
    run = simulate(MODEL, DEVICE, tasks=task_file(text), rate=1, requests=1, bound=True)
    assert run.traffic.calls.parents == ((), (0,), (0,), (1, 2), (0,), (4,), (5,))
    assert run.traffic.prompt.tolist() == [100, 120, 120, 200, 115, 125, 135]
    assert run.cached.tolist() == [0, 96, 96, 160, 96, 112, 128]  # full blocks of 16 of the conversation
    start, short, long, join, *loop = run.traffic.arrival_s
    ends = run.finish_s
    assert [short, long] == pytest.approx([ends[0] + 1, ends[0] + 3])
    assert join == pytest.approx(ends[2])
    assert loop == pytest.approx([ends[0], ends[4], ends[5]])
    chain = (ends[0] - start) + (ends[2] - long) + (ends[3] - join)
    assert run.tasks.serving_s == pytest.approx([chain])
    assert run.tasks.latency_s == pytest.approx([chain + 3])


def test_calls_are_drawn_with_their_probabilities(task_file):
    """Shares of made calls, branches and lengths of loops have the means of their distributions."""
    text = """
    calls:
      small: {prompt: 11, gen: 5}
      large: {after: small, probability: 0.3, prompt: 12, gen: 5}
      tools: {after: large, parallel: "uniform:1-3", prompt: 13, gen: 5}
      loop: {after: tools, prompt: 14, gen: 5, repeat: 0.6, at_most: 4}
    """
    traffic = drawn(task_file(text), requests=40_000)
    tasks = traffic.task_count
    first = np.array(
        [
            not parents or traffic.task[parents[0]] == at
            for at, parents in zip(traffic.task, traffic.calls.parents, strict=True)
        ]
    )
    assert np.all(first)
    count = {tokens: np.count_nonzero(traffic.prompt == tokens) / tasks for tokens in (11, 12, 13, 14)}
    assert count[11] == count[14] == 1
    assert count[12] == pytest.approx(0.3, abs=0.015)
    assert count[13] == pytest.approx(2, abs=0.03)
    loops = (len(traffic) / tasks) - sum(count.values())  # calls after the first of a loop
    assert loops == pytest.approx(0.6 + 0.6**2 + 0.6**3, abs=0.03)
    assert np.all(np.diff(traffic.task) >= 0)
    waits = [traffic.calls.parents[at] for at in np.flatnonzero(traffic.prompt == 13)]
    assert {traffic.prompt[parents[0]] for parents in waits} == {11, 12}  # of the small model if the large is not asked


def test_a_seed_draws_the_same_tasks(task_file):
    path = task_file(RESEARCH)
    one, same, other = (drawn(path, seed=seed) for seed in (1, 1, 2))
    assert np.array_equal(one.prompt, same.prompt)
    assert one.calls.parents == same.calls.parents
    assert one.blocks == same.blocks
    assert not np.array_equal(one.prompt[:500], other.prompt[:500])
    assert one.task_rate == pytest.approx(1)
    loop = drawn(path, rate=None, in_flight=3, requests=10)
    assert loop.task_count >= 3


def test_report_and_document_have_tasks(task_file, capsys):
    asked = ["simulate", MODEL, DEVICE, "--rate", "2", "--tasks", str(task_file(RESEARCH)), "--requests", "100"]
    assert main([*asked, "--bound"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    for each in ("tasks that begin at 2 per second", "Tasks at the bound per task", "tasks per second", "USD per task"):
        assert each in text
    assert main([*asked, "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["tasks"]["kind"] == "task"
    assert document["tasks"]["calls"]["mean"] * document["tasks"]["count"] == pytest.approx(
        document["inputs"]["requests"]
    )
    assert main(["simulate", MODEL, DEVICE, "--rate", "max", "--tasks", "t.yaml"]) == 2
    assert "--tasks" in capsys.readouterr().err


def test_the_file_in_the_documentation_is_read(task_file):
    document = (DOCS / "serving.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"```yaml\n(name: research.*?)```", document, re.DOTALL)
    task = read_task(task_file(text))
    assert [call.name for call in task.calls] == ["plan", "search", "check", "loop", "answer"]
    assert (task.name, task.system_tokens) == ("research", 1500)
    assert [call.after for call in task.calls] == [(), ("plan",), ("search",), ("search", "check"), ("loop",)]


@for_each("path", sorted(DOCS.glob("tasks/*.yaml")))
def test_examples_in_the_documentation_are_simulated(path):
    run = simulate(MODEL, DEVICE, tasks=path, rate=1, requests=40, bound=True)
    assert np.all(run.finished)
    assert f"tasks/{path.name}" in (DOCS / "serving.md").read_text(encoding="utf-8")


def test_a_data_set_gives_outputs_of_its_own_lengths(task_file):
    calls = drawn(task_file("calls: {a: {prompt: sharegpt4, gen: sharegpt4}}"), requests=4000)
    assert np.median(calls.prompt) == pytest.approx(1730, rel=0.1)
    assert np.median(calls.gen) == pytest.approx(415, rel=0.1)


def test_more_tasks_at_once_take_longer_each_and_finish_more(task_file):
    runs = [
        simulate(MODEL, DEVICE, tasks=task_file(RESEARCH), concurrency=n, requests=300, bound=True) for n in (1, 8, 64)
    ]
    for less, more in pairwise(runs):
        assert np.mean(less.tasks.serving_s) < np.mean(more.tasks.serving_s)
        assert less.tasks_per_s < more.tasks_per_s


def test_models_of_a_task_serve_as_each_does_alone(task_file, tmp_path):
    """The calls of each model take the times of a simulation of this model with requests that come when they do."""
    text = f"""{MODELS}
calls:
  hard: {{probability: 0.4, prompt: "uniform:50-900", gen: "uniform:1-90"}}
  easy: {{model: small, unless: hard, prompt: "uniform:50-900", gen: "uniform:1-90"}}
"""
    both = simulate("llama-3.1-8b", DEVICE, tasks=task_file(text), rate=25, requests=150)
    assert both.traffic.models.tolist() != sorted(both.traffic.models.tolist())
    check_tokens(both)
    for name, model, device in (("large", "llama-3.1-8b", DEVICE), ("small", MODEL, "l4")):
        for run, expected in ((both.models[name], False), (both.expected.models[name], True)):
            trace = tmp_path / "trace.csv"
            columns = (run.traffic.arrival_s, run.traffic.prompt, run.traffic.gen)
            rows = ["timestamp,prompt,gen", *map("{0!r},{1},{2}".format, *(each.tolist() for each in columns))]
            trace.write_text("\n".join(rows))
            alone = simulate(model, device, arrivals=trace)
            alone = alone.expected if expected else alone
            offset_s = run.traffic.arrival_s[0]
            assert alone.finish_s + offset_s == pytest.approx(run.finish_s, abs=1e-4)  # traces round to microseconds
            assert alone.usage.busy_s == pytest.approx(run.usage.busy_s, abs=1e-4)
    assert sum(one.usage.busy_s for one in both.models.values()) == pytest.approx(both.usage.busy_s)


def test_a_cascade_takes_the_expected_time_and_cost_of_its_calls_at_low_load(task_file):
    """Mean time of a task: that of a small answer and, by the share that escalates, of a large one. FrugalGPT's cost,
    the sum over models of the share of tasks that reach each and its price (arXiv:2305.05176, section 3).
    """
    text = f"""{MODELS}
calls:
  ask: {{model: small, prompt: 300, gen: 60}}
  escalate: {{after: ask, probability: 0.27, prompt: 400, gen: 80}}
"""
    run = simulate("llama-3.1-8b", DEVICE, tasks=task_file(text), rate=1e-4, requests=1000)
    share = len(run.models["large"].traffic) / run.traffic.task_count
    assert share == pytest.approx(0.27, abs=0.03)
    for each in (run, run.expected):
        small, large = (one.latency_s for one in (each.models["small"], each.models["large"]))
        assert np.mean(each.tasks.serving_s) == pytest.approx(small[0] + share * large[0], rel=1e-3)
    assert run.token_usd / run.traffic.task_count == pytest.approx((360 * 0.24 + share * 480 * 24.7) / 1e6)
    alone = simulate(MODEL, "l4", rate=0.01, requests=1, prompt_lengths=300, gen_lengths=60)
    assert alone.expected.latency_s[0] == pytest.approx(run.expected.models["small"].latency_s[0], rel=1e-6)


def test_a_router_saves_what_routellm_publishes(task_file):
    """Cost at 95 % of the quality of the large model, by its share of the calls: 13.40 % of GPT-4 with RouteLLM's best
    router for MT Bench, 49.03 % at random (arXiv:2406.18665, table 1), at 24.7 and 0.24 USD per million tokens.
    Published: 85 % less than GPT-4 alone (github.com/lm-sys/RouteLLM), and 3.66 times less than at random.
    """
    cost = {}
    for share in (0.1340, 0.4903, 1):
        text = f"""{MODELS}
calls:
  strong: {{probability: {share}, prompt: 100, gen: "uniform:100-300"}}
  weak: {{model: small, unless: strong, prompt: 100, gen: "uniform:100-300"}}
"""
        traffic = drawn(task_file(text), requests=20_000)
        in_calls = [np.count_nonzero(traffic.models == number) for number in (0, 1)]
        assert traffic.task_count == len(traffic) == sum(in_calls)
        tokens = [np.sum((traffic.prompt + traffic.gen)[traffic.models == number]) for number in (0, 1)]
        cost[share] = (24.7 * tokens[0] + 0.24 * tokens[1]) / traffic.task_count
    assert 1 - cost[0.1340] / cost[1] == pytest.approx(0.85, abs=0.015)
    assert cost[0.4903] / cost[0.1340] == pytest.approx(3.66, rel=0.06)


@pytest.mark.parametrize("options", [{"library": "cublas"}, {"engine": "sglang", "max_num_seqs": 9}, {"bound": True}])
def test_engine_library_and_bound_hold_for_all_models(task_file, options):
    text = f"{MODELS}calls: {{a: {{prompt: 90, gen: 9}}, b: {{model: small, after: a, prompt: 9, gen: 9}}}}"
    setting = Setting.of("llama-3.1-8b", DEVICE, **options)
    for model in ((setting,), ("llama-3.1-8b", DEVICE)):
        run = simulate(*model, tasks=task_file(text), rate=2, requests=6, **({} if model[0] is setting else options))
        for name in ("library", "engine", "bound"):
            assert getattr(run.models["small"].setting, name) == getattr(setting, name)


def test_a_conversation_is_cached_only_by_models_that_served_it(task_file):
    text = f"""{MODELS}
system_prompt: 640
calls:
  first: {{prompt: 100, gen: 61}}
  other: {{model: small, continues: first, prompt: 40, gen: 20}}
  back: {{continues: other, prompt: 30, gen: 5}}
  never: {{model: small, if: first, probability: 0, prompt: 9, gen: 9}}
"""
    run = simulate("llama-3.1-8b", DEVICE, tasks=task_file(text), rate=0.1, requests=6, bound=True)
    assert run.traffic.prompt.tolist()[:3] == [740, 841, 891]
    assert run.cached.tolist() == [
        0,
        0,
        800,
        640,
        640,
        800,
    ]  # blocks of 16: the system prompt, 740 + 61 - 1 tokens
    assert run.traffic.cached.tolist() == [0, 0, 800, 640, 640, 800]


def test_models_are_reported_and_what_they_exclude_is_one_line(task_file, capsys):
    text = f"{MODELS}calls: {{a: {{prompt: 90, gen: 9}}, b: {{model: small, after: a, prompt: 9, gen: 9}}}}"
    asked = ["simulate", "llama-3.1-8b", DEVICE, "--rate", "2", "--requests", "40", "--tasks", str(task_file(text))]
    assert main(asked) == 0
    report = " ".join(capsys.readouterr().out.split())
    assert "large (Llama 3.1 8B) on h100-sxm, small (Llama 3.2 1B) on l4: 40 requests of 20 tasks" in report
    assert "Models, expected" in report
    assert main([*asked, "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    large, small = document["expected"]["models"]
    assert (large["model"], small["hardware"], document["devices"]) == ("llama-3.1-8b", "l4", 2)
    assert large["usd_per_task"] + small["usd_per_task"] == pytest.approx(document["expected"]["tasks"]["usd"])
    assert main([*[word for word in asked if word not in ("--rate", "2")], "--concurrency", "1,2", "--bound"]) == 0
    assert "large (Llama 3.1 8B) on h100-sxm, small (Llama 3.2 1B) on l4: concur" in capsys.readouterr().out
    for extra, message in (
        (["--mtbf", "60"], "mtbf and autoscale must be left out with tasks of several models"),
        (["--policy", "static"], "policy must not be static with tasks of several models"),
    ):
        assert main([*asked, *extra]) == 2
        assert message in capsys.readouterr().err
    rare = (
        f"{MODELS}calls: {{a: {{prompt: 9, gen: 9}}, b: {{model: small, after: a, probability: 0, prompt: 9, gen: 9}}}}"
    )
    with pytest.raises(InputError, match="requests must be more: of 5 calls, small serves none"):
        simulate("llama-3.1-8b", DEVICE, tasks=task_file(rare), rate=2, requests=5, bound=True)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("calls: {}", "calls: must have 1 to 100 calls; got 0"),
        ("name: x", "calls: is missing"),
        ("calls: {a: {prompt: 1}}", "calls.a.gen: is missing"),
        ("calls: {a: {prompt: 0, gen: 1}}", "calls.a.prompt: must be a number of tokens"),
        ("calls: {a: {prompt: [1], gen: 1}}", "calls.a.prompt: must be a number or a distribution; got [1]"),
        ("calls: {a: {prompt: 1, gen: 1, wait: -2}}", "calls.a.wait must be a time"),
        ("calls: {a: {prompt: 1, gen: 1, after: b}}", "before it, but this is the first call; got 'b'"),
        ("calls: {a: {prompt: 1, gen: 1, after: 3}}", "calls.a.after: must be a call, or a list of calls; got 3"),
        ("calls: {a: {prompt: 1, gen: 1}, b: {prompt: 1, gen: 1, continues: b}}", "b.continues: must name calls"),
        ("calls: {a: {prompt: 1, gen: 1, parallel: 2}, b: {prompt: 1, gen: 1, continues: a}}", "a is parallel"),
        ("calls: {a: {prompt: 1, gen: 1, parallel: 0}}", "calls.a.parallel: must be a number of calls"),
        ("calls: {a: {prompt: 1, gen: 1, parallel: 2000}}", "parallel calls of a must be at most 1000; got 2000"),
        ("calls: {a: {prompt: 1, gen: 1, repeat: 0.5}}", "calls.a.repeat: must be given with at_most"),
        ("calls: {a: {prompt: 1, gen: 1, repeat: 0.5, at_most: 2000}}", "calls.a.at_most: must be at most 1000"),
        ("calls: {a: {prompt: 1, gen: 1, repeat: 1.5, at_most: 2}}", "a.repeat: must be a probability from 0 to 1"),
        ("calls: {a: {prompt: 1, gen: 1, probability: 0.5}}", "calls: must have a call without after"),
        (
            "calls: {a: {prompt: 1, gen: 1, probability: 0.5}, b: {if: a, prompt: 1, gen: 1}}",
            "calls: must have a call without after, continues, if and probability",
        ),
        ("calls: {a: {prompt: 1, gen: 1, color: x}}", "calls.a.color: unknown key"),
        ("calls: {a: {prompt: 1, gen: 1, model: x}}", "calls.a.model: must be a name under models, but models is"),
        ("calls: {a: {prompt: 1, gen: 1, if: b}}", "calls.a.if: must name calls before it, but this is the first"),
        ("models: {a: {}, b: {}}\ncalls: {c: {prompt: 1, gen: 1}}", "models: must have one entry without model"),
        ("models: {a: {}}\ncalls: {c: {prompt: 1, gen: 1}}", "models: must have 2 to 20 models; got 1"),
        ("models: {a: {quant: fp8}, b: {model: c}}\ncalls: {c: {prompt: 1, gen: 1}}", "a.quant: must be left out wit"),
        ("models: {a: {}, b: {model: c}}\ncalls: {c: {prompt: 1, gen: 1}}", "models: b must serve a call"),
        (f"{MODELS}calls: {{c: {{prompt: 1, gen: 1, model: x}}}}", "under models, one of large, small; got 'x'"),
        ("calls: {1: {prompt: 1, gen: 1}}", "calls: names must be text; got 1"),
        ("calls: {a: 3}", "calls.a: must be a mapping; got 3"),
        ("calls: [", "is not YAML"),
        ("system_prompt: -1\ncalls: {a: {prompt: 1, gen: 1}}", "system_prompt: must be a whole number of at least 0"),
        ("calls: {" + ", ".join(f"c{i}: {{prompt: 1, gen: 1}}" for i in range(101)) + "}", "got 101"),
    ],
)  # fmt: skip
def test_invalid_files_are_one_line(task_file, text, told):
    path = task_file(text)
    with pytest.raises(InputError) as caught:
        simulate(MODEL, DEVICE, tasks=path, rate=1, requests=10, bound=True)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_parsed_task_is_simulated_as_its_file(task_file):
    task = parse_task(parse_yaml(RESEARCH, "research.yaml"), reads_files=False)
    runs = [simulate(MODEL, DEVICE, tasks=one, rate=3, requests=60, bound=True) for one in (task, task_file(RESEARCH))]
    assert runs[0].to_dict() == runs[1].to_dict()


def test_a_task_of_a_stranger_reads_no_file_and_has_limits(tmp_path):
    lengths = tmp_path / "lengths.txt"
    lengths.write_text("77\n")
    text = f"calls: {{a: {{prompt: {lengths}, gen: 1}}}}"
    assert parse_task(parse_yaml(text, "t.yaml")).calls[0].prompt(np.random.default_rng(0), 1) == [77]
    with pytest.raises(InputError, match=r"t\.yaml: calls\.a\.prompt: must be a number of tokens"):
        parse_task(parse_yaml(text, "t.yaml"), reads_files=False)
    for limits in (CallLimits(calls=20, blocks=10**6), CallLimits(calls=10**6, blocks=50)):
        task = parse_task(parse_yaml(RESEARCH, "t.yaml"), limits=limits)
        with pytest.raises(InputError, match=f"at most {limits.calls:,} calls and {limits.blocks:,} blocks"):
            simulate(MODEL, DEVICE, tasks=task, rate=3, requests=60, bound=True)


@pytest.mark.parametrize(
    ("extra", "told"),
    [
        ({"session_turns": 2}, "session_turns must be left out with tasks"),
        ({"prompt_lengths": 2}, "prompt_lengths must be left out with tasks"),
        ({"think_time": 2}, "think_time must be left out without session_turns"),
        ({"rate": None, "arrivals": "x.csv"}, "sessions or tasks must be left out with arrivals"),
        ({"prefill_replicas": 1}, "tasks must be left out with prefill_replicas"),
        (
            {"techniques": ["prefix-cache:hit=0.5"]},
            "must be left out with sessions or tasks, from which follow the cached",
        ),
    ],
)
def test_arguments_that_tasks_exclude(task_file, extra, told):
    with pytest.raises(InputError, match=told):
        simulate(MODEL, DEVICE, tasks=task_file(RESEARCH), **{"rate": 1} | extra)
