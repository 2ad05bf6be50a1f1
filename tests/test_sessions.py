"""Sessions of several turns: arrivals after think times, growing prompts, hits in the prefix cache, and their laws."""

import csv
import io
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmviewer import simulate
from llmviewer.analyzing.costs import usd_per_h
from llmviewer.cli import main
from llmviewer.errors import InputError
from llmviewer.reports.serving import REPORT
from llmviewer.serving.arrivals import Arrivals
from llmviewer.serving.calls import CallLimits
from llmviewer.serving.delays import parse_delays
from llmviewer.serving.policy import POLICIES
from llmviewer.serving.steps import Steps
from llmviewer.serving.trace_files import read_traffic
from llmviewer.serving.traffic import Calls, Traffic

MODEL, DEVICE = "llama-3.2-1b", "h100-sxm"
BLOCK = 16
ASKED = {
    "session_turns": "uniform:1-6", "think_time": "exponential:3", "system_prompt": 700,
    "prompt_lengths": "uniform:20-400", "gen_lengths": "uniform:1-200", "requests": 150,
}  # fmt: skip


def check_arrivals(run):
    """Every turn comes a think time after the answer to the last, and no earlier than its session."""
    calls = run.traffic.calls
    for request, parents in enumerate(calls.parents):
        if parents:
            answered = max(run.finish_s[list(parents)])
            assert run.traffic.arrival_s[request] == pytest.approx(answered + calls.delay_s[request])
    assert np.all(run.start_s >= run.traffic.arrival_s)


def check_tokens(run):
    """Prompts are computed or cached, once; all output is generated."""
    usage = run.usage
    assert usage.written == run.traffic.gen.sum()
    assert np.all(run.cached <= run.traffic.cached)
    assert np.all(run.cached < run.traffic.prompt)
    assert usage.peak_bytes <= usage.room_bytes
    if not run.preemptions:
        assert usage.known + usage.read == run.traffic.prompt.sum()
        assert usage.known == run.cached.sum()
        assert usage.reread == 0


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("extra", [{}, {"layout": "dp=2"}, {"layout": "pp=2"}, {"replicas": 3}, {"max_batch": 2}])
def test_turns_come_after_think_times_and_tokens_are_conserved(policy, extra):
    run = simulate(MODEL, DEVICE, rate=5, policy=policy, bound=True, **ASKED, **extra)
    check_arrivals(run)
    check_tokens(run)
    assert len(run.traffic) >= 150
    assert np.mean(run.latency_s) * run.requests_per_s == pytest.approx(np.sum(run.latency_s) / run.span_s)


@pytest.mark.parametrize("extra", [{}, {"hardware_set": ["memory.capacity=3.2 GB"]}, {"techniques": ["eagle"]}])
def test_laws_hold_as_expected_and_with_little_memory_and_drafts(extra):
    model = MODEL if "techniques" not in extra else "llama-3.1-8b"
    run = simulate(model, DEVICE, rate=20, **ASKED, **extra)
    for each in (run, run.expected):
        check_arrivals(each)
        check_tokens(each)
    assert ("hardware_set" in extra) == (run.usage.evicted > 0)


def test_sessions_of_one_turn_are_requests():
    """The same arrivals and steps as without sessions: names of blocks that nobody shares change nothing."""
    asked = {"rate": 30, "requests": 300, "prompt_lengths": 300, "gen_lengths": 60}
    one, plain = (simulate(MODEL, DEVICE, **asked, **extra) for extra in ({"session_turns": 1}, {}))
    for each, other in ((one, plain), (one.expected, plain.expected)):
        for name in ("start_s", "first_s", "finish_s", "gap_s"):
            assert np.array_equal(getattr(each, name), getattr(other, name))
    assert one.usage.known == 0
    assert one.tasks.latency_s == pytest.approx(one.latency_s)


def test_one_session_by_hand():
    """Each turn computes what is not in full blocks of the conversation so far."""
    run = simulate(
        MODEL, DEVICE, rate=1, session_turns=3, think_time=2, system_prompt=100, prompt_lengths=50, gen_lengths=30,
        requests=3, policy="prefill-first", bound=True,
    )  # fmt: skip
    steps = Steps(run.setting)
    assert run.traffic.prompt.tolist() == [150, 230, 310]
    hits = [0, 179 // BLOCK * BLOCK, 259 // BLOCK * BLOCK]  # the last output token is not computed
    assert run.cached.tolist() == hits
    prefill = [
        float(steps.prefill_and_interval_s(float(p), float(h))[0]) for p, h in zip((150, 230, 310), hits, strict=True)
    ]
    assert run.ttft_s == pytest.approx(prefill, rel=1e-4)
    decode = [sum(float(steps.decode_s(batch=1.0, kv_len=float(p + i))) for i in range(1, 30)) for p in (150, 230, 310)]
    serving_s = sum(prefill) + sum(decode)
    assert run.tasks.serving_s == pytest.approx([serving_s], rel=1e-4)
    assert run.tasks.latency_s == pytest.approx([serving_s + 4], rel=1e-4)
    assert (run.tasks.calls.tolist(), run.tasks.prompt.tolist(), run.tasks.cached.tolist()) == ([3], [690], [sum(hits)])
    assert run.usd_per_task == pytest.approx(usd_per_h([(run.setting.hardware, 1)], None) * run.span_s / 3600)


def test_all_sessions_share_the_system_prompt():
    run = simulate(
        MODEL,
        DEVICE,
        rate=1,
        session_turns=1,
        system_prompt=1000,
        prompt_lengths=50,
        gen_lengths=2,
        requests=20,
        bound=True,
    )
    assert run.cached.tolist() == [0] + [1000 // BLOCK * BLOCK] * 19
    assert run.traffic.repeated == pytest.approx(19 * 1000 / (20 * 1050))


@pytest.mark.parametrize("users", [1, 7])
def test_closed_loop_has_as_many_sessions_as_users(users):
    run = simulate(MODEL, DEVICE, concurrency=users, bound=True, **ASKED)
    check_arrivals(run)
    check_tokens(run)
    task, count = run.traffic.task, run.traffic.task_count
    first = np.array([run.traffic.arrival_s[task == i].min() for i in range(count)])
    last = np.array([run.finish_s[task == i].max() for i in range(count)])
    assert np.count_nonzero(first == 0) == users
    assert np.sort(first)[users:] == pytest.approx(np.sort(last)[: count - users])  # each brings the next


def test_longer_think_times_need_no_more_memory_and_lose_no_hits_with_room():
    runs = [simulate(MODEL, DEVICE, rate=2, bound=True, **ASKED | {"think_time": think}) for think in (0, 30)]
    assert runs[0].usage.known == pytest.approx(runs[1].usage.known, rel=0.02)
    small = [
        simulate(
            MODEL, DEVICE, rate=20, bound=True, hardware_set=["memory.capacity=3.2 GB"], **ASKED | {"think_time": think}
        )
        for think in (0, 30)
    ]  # others take the memory meanwhile
    assert small[1].usage.there < small[0].usage.there - 0.05


def test_replicas_serve_whole_sessions():
    run = simulate(MODEL, DEVICE, rate=5, replicas=3, bound=True, **ASKED | {"system_prompt": 0})
    alone = simulate(MODEL, DEVICE, rate=5, bound=True, **ASKED | {"system_prompt": 0})
    assert run.usage.known == alone.usage.known == run.cached.sum()


@st.composite
def graphs(draw):
    """Tasks of calls that wait for earlier ones of the same task."""
    tasks, parents, task = draw(st.integers(1, 5)), [], []
    for each in range(tasks):
        begin = len(task)
        for _ in range(draw(st.integers(1, 5))):
            parents.append(
                tuple(draw(st.sets(st.integers(begin, len(task) - 1), max_size=3))) if len(task) > begin else ()
            )
            task.append(each)
    starts = sorted(draw(st.lists(st.integers(0, 20), min_size=tasks, max_size=tasks)))
    delays = draw(st.lists(st.integers(0, 9), min_size=len(task), max_size=len(task)))
    times = draw(st.lists(st.integers(1, 9), min_size=len(task), max_size=len(task)))
    in_flight = draw(st.one_of(st.none(), st.integers(1, tasks)))
    return parents, np.array(task), starts, np.array(delays, dtype=float), times, in_flight


@given(graphs())
@settings(deadline=None)
def test_arrivals_are_those_of_the_recursion(drawn):
    """Each call takes a given time, however many run: arrivals follow from those before them."""
    parents, task, starts, delay_s, times, in_flight = drawn
    count = len(task)
    start = [np.inf if in_flight and at >= in_flight else 0.0 if in_flight else float(starts[at]) for at in task]
    start = [0.0 if waits else at for waits, at in zip(parents, start, strict=True)]
    if in_flight:
        delay_s *= [bool(waits) for waits in parents]  # tasks begin at once
    traffic = Traffic(
        arrival_s=np.array(start), prompt=np.ones(count, dtype=int), gen=np.ones(count, dtype=int), in_flight=in_flight,
        calls=Calls(kind="task", task=task, parents=tuple(parents), delay_s=delay_s),
    )  # fmt: skip
    arrivals, running, order = Arrivals(traffic), [], []
    while running or arrivals.next_ready_s < np.inf:
        if running and min(running)[0] <= arrivals.next_ready_s:
            moment, request = min(running)
            running.remove((moment, request))
            arrivals.answer(request, moment)
        else:
            moment = arrivals.next_ready_s
            request = arrivals.take()
            order.append((moment, request))
            running.append((moment + times[request], request))
    assert sorted(request for _, request in order) == list(range(count)) == sorted(set(range(count)))
    assert [moment for moment, _ in order] == sorted(moment for moment, _ in order)
    assert [arrivals.place[request] for _, request in order] == list(range(count))
    at = dict(map(reversed, order))
    ended = {request: at[request] + times[request] for request in at}
    for request in range(count):
        if parents[request]:
            assert at[request] == max(ended[parent] for parent in parents[request]) + delay_s[request]
        elif not in_flight:
            assert at[request] == start[request] + delay_s[request]
    if in_flight:
        spans = [(min(at[r] for r in members), max(ended[r] for r in members)) for members in (
            [r for r in range(count) if task[r] == each] for each in range(task[-1] + 1))]  # fmt: skip
        moments = sorted({begin for begin, _ in spans})
        last = max(begin for begin, _ in spans)
        assert all(sum(b <= moment < e for b, e in spans) == in_flight for moment in moments if moment < last)


@pytest.mark.parametrize(
    ("text", "mean"), [("10", 10), ("500 ms", 0.5), ("2 min", 120), ("exponential:2", 2), ("uniform:1-5", 3), ("0", 0)]
)
def test_think_times_have_their_means(text, mean):
    delays = parse_delays(text, "think_time")
    drawn = delays.draw(np.random.default_rng(0), 20_000)
    assert delays.mean_s == mean
    assert np.mean(drawn) == pytest.approx(mean, rel=0.03)
    assert np.all(drawn >= 0)


@pytest.mark.parametrize(
    ("extra", "told"),
    [
        ({"think_time": "-1"}, "think_time must be a time, 0.5 (seconds), '500 ms' or '2 h', exponential:MEAN"),
        ({"think_time": "nan"}, "got 'nan'"),
        ({"think_time": "exponential:"}, "got 'exponential:'"),
        ({"session_turns": "0"}, "session_turns: must be a number of turns"),
        ({"session_turns": "arxiv"}, "session_turns: must be a number of turns, uniform:LEAST-MOST or lognormal:"),
        ({"session_turns": "many"}, "got 'many'"),
        (
            {"session_turns": None, "think_time": "3"},
            "think_time must be left out without session_turns, the turns of a session; got '3'",
        ),
        ({"session_turns": None, "system_prompt": 3}, "system_prompt must be left out without session_turns"),
        ({"system_prompt": -1}, "system_prompt must be a whole number"),
        ({"prefill_replicas": 1}, "sessions must be left out with prefill_replicas"),
        ({"techniques": ["prefix-cache:hit=0.5"]}, "must be left out with sessions or tasks"),
        ({"session_turns": 1000, "requests": 1_000_000}, "sessions must have at most"),
        ({"session_turns": 2, "prompt_lengths": 10_000_000}, "a session grows to 20"),
    ],
)
def test_invalid_sessions_are_one_line(extra, told):
    with pytest.raises(InputError) as caught:
        simulate(MODEL, DEVICE, rate=1, bound=True, **ASKED | {"think_time": None, "system_prompt": None} | extra)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_memory_for_names_of_blocks_is_limited(monkeypatch):
    monkeypatch.setattr("llmviewer.serving.calls.CALL_LIMITS", CallLimits(calls=1_000_000, blocks=100))
    with pytest.raises(InputError, match="sessions must have at most 1,000,000 calls and 100 blocks of prompts in all"):
        simulate(MODEL, DEVICE, rate=1, bound=True, **ASKED)


def test_traces_exclude_turns(tmp_path):
    (tmp_path / "t.csv").write_text("timestamp,prompt,gen\n0,10,10\n")
    with pytest.raises(InputError, match="sessions or tasks must be left out with arrivals"):
        simulate(MODEL, DEVICE, arrivals=tmp_path / "t.csv", session_turns=2)


def test_report_and_document_have_sessions(capsys):
    asked = [
        "simulate",
        MODEL,
        DEVICE,
        "--rate",
        "5",
        "--session-turns",
        "3",
        "--think-time",
        "1",
        "--prompt",
        "100",
        "--gen",
        "20",
    ]
    asked += ["--requests", "60", "--system-prompt", "500"]
    assert main(asked) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "60 requests of 20 sessions that begin at 5 per second" in text
    for each in ("Sessions, expected per session", "sessions per second", "USD per session"):
        assert each in text
    assert main([*asked, "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    sessions = document["tasks"]
    assert (sessions["kind"], sessions["count"], sessions["calls"]["mean"]) == ("session", 20, 3)
    assert sessions["latency_s"]["mean"] == pytest.approx(sessions["serving_s"]["mean"] + 2)
    assert sessions["per_s"] == pytest.approx(20 / document["span_s"])
    assert sessions["usd"] * 20 == pytest.approx(60 * 20 / document["tokens_per_dollar"])
    assert document["inputs"]["rate"] == pytest.approx(5)
    assert document["inputs"]["tasks"] == 20
    assert main([*asked, "--format", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert {row["session"] for row in rows} == {str(i) for i in range(20)}
    assert all(float(row["expected_arrival_s"]) >= float(row["arrival_s"]) - 1e-9 for row in rows)
    plain = simulate(MODEL, DEVICE, rate=5, requests=10, bound=True)
    assert plain.to_dict()["tasks"] is None
    assert "Sessions" not in REPORT.text(plain)


def test_maximum_throughput_refuses_sessions(capsys):
    assert main(["simulate", MODEL, DEVICE, "--rate", "max", "--session-turns", "3"]) == 2
    assert "--session-turns" in capsys.readouterr().err


# --- traces with sessions ---


def read(path, rows):
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return read_traffic(path)


def test_qwen_bailian_turns_come_at_their_times_or_with_the_answer(tmp_path):
    """Parents before the trace are not waited for; blocks have 16 tokens, and timestamps are seconds."""
    fields = ("chat_id", "parent_chat_id", "timestamp", "input_length", "output_length", "turn", "hash_ids")
    rows = [
        (10, -1, 5.0, 40, 500, 1, [1, 2, 3]),
        (11, 3, 5.0625, 33, 4, 2, [7, 8, 9]),
        (12, 10, 5.125, 600, 5, 2, [1, 2, *range(20, 56)]),
        (13, 12, 90.0, 40, 5, 3, [1, 2, 4]),
    ]  # fmt: skip
    traffic = read(tmp_path / "t.jsonl", [dict(zip(fields, row, strict=True)) for row in rows])
    assert traffic.calls.parents == ((), (), (0,), (2,))
    assert traffic.task.tolist() == [0, 1, 0, 0]
    assert traffic.arrival_s.tolist() == [0, 0.0625, 0.125, 85]
    assert traffic.cached.tolist() == [0, 0, 32, 32]
    run = simulate(MODEL, DEVICE, arrivals=tmp_path / "t.jsonl", bound=True)
    assert run.traffic.arrival_s[2] == pytest.approx(run.finish_s[0])
    assert run.finish_s[0] > 0.125
    assert run.traffic.arrival_s[3] == 85
    assert run.cached.tolist() == [0, 0, 32, 32]
    assert run.tasks.calls.tolist() == [3, 1]


def test_dynamo_agentic_rows_wait_for_others_and_tools(tmp_path):
    rows = [
        {"request_id": "a", "wait_for": [], "timestamp": 1000, "input_length": 600, "output_length": 20,
         "hash_ids": [1, 2]},
        {"request_id": "b", "wait_for": ["a"], "delay": 100, "tool_wait_ms": 400, "input_length": 700,
         "output_length": 9, "hash_ids": [1, 3]},
        {"request_id": "failed", "wait_for": ["a"], "input_length": 7, "output_length": 0},
        {"request_id": "d", "wait_for": ["b", "failed"], "tool_wait_ms": 2000, "input_length": 700, "output_length": 9},
        {"request_id": "e", "wait_for": [], "timestamp": 1500, "input_length": 70, "output_length": 9},
    ]  # fmt: skip
    traffic = read(tmp_path / "t.jsonl", rows)
    assert traffic.calls.kind == "task"
    assert traffic.calls.parents == ((), (0,), (1, 0), ())
    assert traffic.calls.delay_s.tolist() == [0, 0.5, 2, 0]
    assert (traffic.task.tolist(), traffic.empty) == ([0, 0, 0, 1], 1)
    run = simulate(MODEL, DEVICE, arrivals=tmp_path / "t.jsonl", bound=True)
    check_arrivals(run)
    assert run.traffic.arrival_s[[0, 3]].tolist() == [0, 0.5]
    assert run.cached.tolist() == [0, 512, 0, 0]


def test_session_rows_follow_each_other_and_repeat_the_conversation(tmp_path):
    csv_path = tmp_path / "t.csv"
    csv_path.write_text(
        "Timestamp,Session ID,Request tokens,Response tokens\n0,x,100,28\n0,y,100,28\n1,x,200,8\n2,x,50,8\n3,,50,8\n"
    )
    rows = [
        {"session_id": "x", "timestamp": 0, "input_length": 100, "output_length": 28},
        {"session_id": "y", "timestamp": 0, "input_length": 100, "output_length": 28},
        {"session_id": "x", "delay": 1000, "input_length": 200, "output_length": 8},
        {"session_id": "x", "delay": 2000, "input_length": 50, "output_length": 8},
        {"timestamp": 3000, "input_length": 50, "output_length": 8},
    ]
    table, lines = read_traffic(csv_path), read(tmp_path / "t.jsonl", rows)
    for traffic in (table, lines):
        assert traffic.calls.parents == ((), (), (0,), (2,), ())
        assert traffic.cached.tolist() == [0, 0, 127, 0, 0]
    assert table.arrival_s.tolist() == [0, 0, 1, 2, 3]
    assert lines.arrival_s[[0, 1, 4]].tolist() == [0, 0, 3]
    assert lines.calls.delay_s.tolist() == [0, 0, 1, 2, 0]
    run = simulate(MODEL, DEVICE, arrivals=csv_path, bound=True)
    assert run.cached.tolist() == [0, 0, 112, 0, 0]
    run = simulate(MODEL, DEVICE, arrivals=tmp_path / "t.jsonl", bound=True)
    check_arrivals(run)


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"wait_for": ["z"], "request_id": 1}, "2: wait_for must name request_ids of lines before; got 'z'"),
        ({"wait_for": "a", "request_id": 1}, "2: wait_for must be a list of request_ids; got 'a'"),
        ({"wait_for": [], "request_id": "a"}, "2: a request of a session must have a name of its own; got 'a'"),
        ({"chat_id": 1, "parent_chat_id": [1]}, "2: parent_chat_id must be a number or text; got [1]"),
        ({"chat_id": [1]}, "2: a request of a session must have a name of its own; got [1]"),
        ({"wait_for": []}, "2: a request of a session must have a name of its own; got None"),
        ({"wait_for": ["a"], "request_id": 1, "delay": -1}, "2: delay must be 0 to 1e+09 ms; got -1"),
        ({"wait_for": ["a"], "request_id": 1, "tool_wait_ms": "3"}, "2: delay must be 0 to 1e+09 ms; got '3'"),
    ],
)
def test_invalid_session_rows_name_their_line(tmp_path, row, told):
    first = {"request_id": "a", "wait_for": [], "timestamp": 0, "input_length": 6, "output_length": 2}
    with pytest.raises(InputError, match=r"t\.jsonl:") as caught:
        read(tmp_path / "t.jsonl", [first, {"timestamp": 1, "input_length": 6, "output_length": 2} | row])
    assert told in str(caught.value)


def test_traces_with_sessions_exclude_prefill_replicas(tmp_path):
    read(tmp_path / "t.jsonl", [{"session_id": "x", "timestamp": 0, "input_length": 100, "output_length": 28}])
    with pytest.raises(InputError, match="sessions must be left out with prefill_replicas"):
        simulate(MODEL, DEVICE, arrivals=tmp_path / "t.jsonl", prefill_replicas=1)


def test_one_session_of_a_trace_has_no_arrival_rate(tmp_path):
    trace = tmp_path / "trace.csv"
    trace.write_text("timestamp,prompt,gen,session\n0,100,20,a\n1,150,20,a\n", encoding="utf-8")
    result = simulate(MODEL, DEVICE, arrivals=trace, bound=True)
    assert "2 requests of 1 session all at the start," in REPORT.headline(result)
