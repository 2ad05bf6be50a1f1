"""The work that a request to the dashboard may take."""

import json
import re
import time

import numpy as np
import pytest

pytest.importorskip("dash")

from llmviewer._layout import ROOT
from llmviewer.errors import InputError
from llmviewer.setting import Setting
from llmviewer.webapp import cpu_limit, results
from llmviewer.webapp.state import State
from llmviewer.webapp.views import changes

from .fuzz_page import CONFIG, Server

DRAFTED = "?model=llama-2-7b&gen=65536&techniques=speculative:draft=llama-68m,gamma=64,alpha=0.8"


@pytest.fixture(scope="module")
def server():
    return Server()


@pytest.fixture
def no_time():
    """A request over its CPU limit."""
    cpu_limit.start_limit(-1.0)
    yield
    cpu_limit.end_limit()


def test_link_with_many_draft_steps_takes_little_cpu_time(server):
    for output in ("answer.children", "content.children"):
        status, _, cpu_s = server.post(server.body(output, {("asked", "data"): DRAFTED}))
        assert status == 200
        assert cpu_s < 4  # as a rule 1; each of 4 million drafts by itself took 17


@pytest.mark.parametrize("technique", ["gamma=8,alpha=0.8", "tree=3x2x2,alpha=0.6"])
def test_drafts_of_equal_lengths_are_one_pass_repeated(technique):
    """By steps: the passes of each step are those of its draft, one by one."""
    setting = Setting.of("llama-2-7b", "h100-sxm", techniques=[f"speculative:draft=llama-68m,{technique}"])
    steps, prompt = 40, 300
    schedule = setting.schedule(batch=3, prompt=prompt, gen=steps + 1, images=0)
    (drafts,) = [run for run in schedule.rest if run.name.startswith("draft")]
    drafter = setting.techniques[0].drafter(setting)
    expected: dict[tuple[float, float], float] = {}
    tokens = setting.techniques[0].tokens
    for step in range(1, steps + 1):
        read = prompt + step
        for width, before in zip(drafter.widths, drafter.before, strict=True):
            key = (width, read + before + width - 1)
            expected[key] = expected.get(key, 0.0) + 1 / tokens
    (group,) = drafts.workload.groups
    widths = np.broadcast_to(group.q_len, np.shape(group.kv_len))
    found = {(q, kv): times for q, kv, times in zip(widths, group.kv_len, drafts.times, strict=True)}
    assert found == pytest.approx(expected)
    assert np.sum(drafts.passes) == pytest.approx(steps * len(drafter.widths) / tokens)


def test_cpu_limit_counts_the_time_of_its_thread_only(monkeypatch):
    cpu_limit.start_limit(0.05)
    try:
        cpu_limit.check_limit()
        time.sleep(0.1)  # others work
        cpu_limit.check_limit()
        until = time.thread_time() + 0.06
        while time.thread_time() < until:
            pass
        with pytest.raises(
            cpu_limit.CpuLimitError, match=r"^this takes more than 0\.05 s of server CPU time; choose fewer"
        ):
            cpu_limit.check_limit()
        cpu_limit.restart_limit()
        cpu_limit.check_limit()
    finally:
        cpu_limit.end_limit()
    cpu_limit.check_limit()


def test_request_over_the_cpu_limit_is_refused_in_one_line(no_time):
    assert results.problem_of(State(batch=78)).endswith(
        "choose fewer devices, pins or techniques, or fewer generated tokens"
    )


def test_link_over_the_cpu_limit_shows_partial_results(monkeypatch):
    def check_limit():
        if len(seen) > 1 and seen[-1] > 1:
            raise cpu_limit.CpuLimitError("this takes too long")

    seen = []
    monkeypatch.setattr(results, "check_limit", check_limit)
    monkeypatch.setattr(
        results,
        "_device_inputs",
        lambda state, name, of=results._device_inputs: seen.append(len(state.on)) or of(state, name),
    )
    found, notices = results.nearest_valid(State(on=("l4", "t4", "a10"), batch=79, techniques=("medusa",)))
    assert (found.on, found.batch) == (("l4",), 79)
    assert notices == ("link: on: this takes too long; the default is used",)


def test_each_request_has_its_own_cpu_limit(server):
    assert server.post(server.body("answer.children", {("asked", "data"): "?batch=80"}))[0] == 200
    cpu_limit.check_limit()
    assert cpu_limit._until_s.get() is None


def test_changes_skipped_for_lack_of_time_are_counted():
    state = State(batch=3)
    found = results.device_results(state)
    cpu_limit.start_limit(-1.0)
    try:
        steps, refused = changes.ranked_changes(found, state, with_techniques=True)
    finally:
        cpu_limit.end_limit()
    assert not steps
    (line,) = refused
    assert line.endswith("not tried: CPU-time limit of the request; choose fewer devices, or try again")
    assert int(line.split()[0]) > 40


def test_the_container_and_the_docs_start_the_same_server():
    commands = re.search(r"^CMD (\[.*\])", (ROOT / "Dockerfile").read_text().replace("\\\n", ""), re.MULTILINE)
    inside = json.loads(commands[1])
    outside = re.search(
        r"^gunicorn .*?(?=   #)", (ROOT / "docs" / "web.md").read_text().replace("\\\n", ""), re.MULTILINE
    )
    assert [one for one in inside if one not in ("--bind", "0.0.0.0:8050")] == outside[0].split()
    assert inside[inside.index("--worker-class") + 1] == "gthread"  # one request at a time would hold up all others


@pytest.mark.parametrize(
    ("patterns", "message"),
    [
        (
            [f"re:.*layers.{i}.*" for i in range(65)],
            "x.json: must have at most 64 patterns of module names on this page; has 65",
        ),
        (["re:(a+)+$"], "x.json: patterns of module names must repeat no group and have at most 4 of * and +"),
        (["re:.*.*.*.*.*x"], "x.json: patterns of module names must repeat no group and have at most 4 of * and +"),
    ],
)
def test_patterns_of_an_uploaded_model_are_limited(patterns, message):
    config = {**json.loads(CONFIG), "quantization_config": {"quant_method": "compressed-tensors", "ignore": patterns}}
    with pytest.raises(InputError) as error:
        results.parse_model_file("x.json", json.dumps(config))
    assert str(error.value).startswith(message)


def test_uploaded_model_is_limited_in_operators(monkeypatch):
    monkeypatch.setattr(results, "_MAX_OPERATORS", 10)
    with pytest.raises(
        InputError, match=r"^x\.json: must have at most 10 operators in distinct layers on this page; has 19; llmviewer"
    ):
        results.parse_model_file("x.json", CONFIG)
