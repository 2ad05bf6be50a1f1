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

from .test_sessions import check_arrivals, check_tokens

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
    document = (Path(__file__).parents[1] / "docs/serving.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"```yaml\n(name: research.*?)```", document, re.DOTALL)
    task = read_task(task_file(text))
    assert [call.name for call in task.calls] == ["plan", "search", "check", "loop", "answer"]
    assert (task.name, task.system_tokens) == ("research", 1500)
    assert [call.after for call in task.calls] == [(), ("plan",), ("search",), ("search", "check"), ("loop",)]


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
        ("calls: {a: {prompt: 1, gen: 1, model: x}}", "calls.a.model: unknown key"),
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
