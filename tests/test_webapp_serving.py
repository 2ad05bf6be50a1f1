"""The serving tab: loops that the browser asks for one by one, their Pareto front within targets, and the figure."""

import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

pytest.importorskip("dash")

import numpy as np
from dash.exceptions import PreventUpdate

from llmviewer.cli import cli
from llmviewer.errors import InputError
from llmviewer.reports.serving import REPORT
from llmviewer.reports.serving_front import LoadPoint, Targets, figure, front, front_lines
from llmviewer.serving.simulation import simulate
from llmviewer.units import seconds
from llmviewer.webapp import traffic
from llmviewer.webapp.app import create
from llmviewer.webapp.results import parse_task_file, problem_of
from llmviewer.webapp.state import State
from llmviewer.webapp.tabs import serving as tab
from llmviewer.webapp.views import plan, serving

ASKED = State(model="gpt2", prompt=64, gen=8, tab="serving")


@pytest.fixture(scope="module")
def rows():
    return [serving.simulated(ASKED, place) for place in range(len(serving.concurrencies(ASKED)))]


def loop(place, speed, per_device, *, ttft_s=0.1, basis="expected", name="a"):
    times = {f"{key}_p{p}_s": value for p in (50, 90, 99) for key, value in (("ttft", ttft_s), ("tpot", 1 / speed))}
    numbers = {"speed": speed, "per_device": per_device, "tokens_per_s": per_device, "usd_per_million": 1.0,
               "joules_per_token": float("nan"), **times}  # fmt: skip
    return LoadPoint(name=name, place=place, basis=basis, concurrency=place + 1, numbers=numbers)


def test_closed_loop_point_equals_simulate(rows):
    run = simulate("gpt2", "h100-sxm", concurrency=16, prompt_lengths=64, gen_lengths=8, requests=160)
    shown = rows[serving.concurrencies(ASKED).index(16)]
    for name, side in (("bound", run), ("expected", run.expected)):
        assert shown[name]["tokens_per_s"] == pytest.approx(side.tokens_per_s)
        assert shown[name]["speed"] == pytest.approx(1 / np.mean(side.tpot_s))
        assert shown[name]["ttft_p90_s"] == pytest.approx(np.percentile(side.ttft_s, 90), abs=1e-9)
        assert shown[name]["usd_per_million"] == pytest.approx(1e6 / side.tokens_per_dollar)
        assert shown[name]["joules_per_token"] == pytest.approx(1 / side.tokens_per_joule)
    assert shown["bound"]["speed"] > shown["expected"]["speed"]


def test_collected_results_are_drawn_and_damaged_ones_refused(rows):
    loops, reasons = serving.loads_of(json.dumps(rows), ASKED)
    assert len(loops) == 2 * len(rows)
    assert reasons == []
    assert serving.loads_of(None, ASKED) == ([], [])
    for damaged in (
        "{",
        "3",
        '[{"place": 0}]',
        '[{"place": 999, "reason": "x"}]',
        '[{"place": 1e400, "reason": "x"}]',
        '[{"place": 0, "reason": "", "bound": 3}]',
    ):
        with pytest.raises(InputError, match="are damaged; reload the page"):
            serving.loads_of(damaged, ASKED)


def test_impossible_settings_carry_a_reason():
    places = {(one.device, one.tp): i for i, one in enumerate(serving.load_settings(ASKED))}
    assert places.keys() == {("h100-sxm", tp) for tp in (1, 2, 4, 8)}
    row = serving.simulated(ASKED, places["h100-sxm", 8])
    assert "tp=8 does not divide the 12 heads" in row["reason"]
    assert serving.loads_of(json.dumps([row]), ASKED) == ([], [f"h100-sxm tp=8: {row['reason']}"])


def test_simulations_depend_on_lengths_not_on_targets_or_batch():
    link = serving.loads_link(ASKED)
    assert serving.loads_link(replace(ASKED, ttft=10, tpot=5, within="p99", batch=7, phase="prefill")) == link
    assert serving.loads_link(replace(ASKED, prompt=65)) != link


def test_pareto_front_holds_undominated_points_within_targets():
    targets = Targets(ttft_s=1.0, tpot_s=0.1, percentile=90)
    loops = [
        loop(0, 100, 100), loop(1, 50, 180), loop(2, 40, 170), loop(3, 20, 400, ttft_s=2.0), loop(4, 5, 900),
        loop(0, 200, 250, basis="bound"), loop(5, 12, 300, basis="bound", name="b"),
    ]  # fmt: skip
    assert [one.place for one in front(loops, targets)] == [0, 1, 5]
    looser = Targets(ttft_s=3.0, tpot_s=1.0, percentile=90)
    assert [one.place for one in front(loops, looser)] == [0, 1, 3, 4]
    lines = front_lines(loops, targets)
    assert lines[0][4:6] == ("TTFT p90", "TPOT p90")
    assert lines[3][0] == "b (bound)"
    assert lines[1][-1] == "-"
    chart = figure(loops, targets)
    (ring,) = [trace for trace in chart.data if trace.name == "Pareto front"]
    assert list(ring.x) == [100, 50, 12]
    (expected,) = [trace for trace in chart.data if trace.name == "a" and trace.line.dash == "solid"]
    assert [color == expected.line.color for color in expected.marker.color] == [True, True, True, False, False]


def test_points_of_the_front_link_to_their_setting_and_to_a_plan(rows):
    loops, reasons = serving.loads_of(json.dumps(rows), ASKED)
    text = json.dumps(tab._result(loops, reasons, ASKED), default=lambda part: part.to_plotly_json())
    assert "batch=256" in text
    assert '"href": "?model=gpt2&prompt=64&gen=8&tab=serving&plan_rate=' in text
    none = json.dumps(
        tab._result(loops, [], replace(ASKED, ttft=1, tpot=1)), default=lambda part: part.to_plotly_json()
    )
    assert "No simulated point is within the targets" in none


SERVED = (
    State(model="gpt2", prompt=20, gen=8, traffic="sessions", session_turns=3, think_time="exponential:2",
          system_prompt=100, replicas=2, router="session"),
    State(model="llama-3.2-1b", traffic="tasks", replicas=2, router="prefix-aware", quant="fp8", engine="vllm"),
    State(model="gpt2", prompt=64, gen=8, replicas=3, router="least-loaded", on=("l40s",), tp=2,
          set=("l40s:memory.bandwidth=2x",)),
    State(model="gpt2", prompt=64, gen=8, load="rates", rates="40, 10", tenants="1,2", order="vtc"),
    State(model="gpt2", prompt=64, gen=8, load="rates", rates="10, 40", prefill_replicas=2, replicas=2),
    State(model="gpt2", prompt=20, gen=8, load="rates", rates="1, 2", traffic="sessions", order="srpt", engine="vllm"),
)  # fmt: skip


@pytest.mark.parametrize("state", SERVED, ids=lambda state: f"{state.traffic}-{state.load}-{state.order}")
def test_commands_print_the_numbers_of_the_page(state, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "research.yaml").write_text(traffic.example_text())
    place = 1
    command = shlex.split(serving.simulate_command(state, serving.load_settings(state)[place]))
    result = CliRunner().invoke(cli, [*command[1:], "--format", "json"])
    assert result.exit_code == 0, result.output
    printed, shown = json.loads(result.output), serving.simulated(state, place)
    for name, numbers in (("bound", printed), ("expected", printed["expected"])):
        assert shown[name]["tokens_per_s"] == pytest.approx(numbers["tokens_per_s"])
        assert shown[name]["ttft_p90_s"] == pytest.approx(numbers["times"]["ttft_s"]["p90"], abs=1e-9)
        if state.traffic != "requests":
            assert shown[name]["task_p90_s"] == pytest.approx(numbers["tasks"]["latency_s"]["p90"], abs=1e-9)
            assert shown[name]["usd_per_task"] == pytest.approx(numbers["tasks"]["usd"], abs=1e-9)


def test_arrivals_at_rates_are_points_of_the_front():
    state = SERVED[3]
    assert [one.rate for one in serving.load_settings(state)[:2]] == [10, 40]
    loads, reasons = serving.loads_of(json.dumps([serving.simulated(state, place) for place in range(2)]), state)
    assert not reasons
    assert [one.load for one in loads if one.basis == "expected"] == ["10 req/s", "40 req/s"]
    assert front_lines(loads, serving.targets(state))[0][1] == "arrivals/s"
    assert serving.loads_link(state) != serving.loads_link(replace(state, rates="10"))
    assert "shares 1,2, waiting requests: fair shares" in tab._about(state)


def test_the_front_of_sessions_and_tasks_has_their_time_hits_and_cost():
    state = SERVED[0]
    rows = [serving.simulated(state, place) for place in range(3)]
    loops, _ = serving.loads_of(json.dumps(rows), state)
    head, first, *_ = front_lines(loops, serving.targets(state))
    assert head[-3:] == ("E2E of a session p90", "cache hits", "USD per session")
    best = front(loops, serving.targets(state))[0].numbers
    assert first[-3:-1] == (seconds(best["task_p90_s"]), f"{best['hit_rate']:.0%}")
    hovers = [text for trace in figure(loops, serving.targets(state)).data for text in trace.hovertext or ()]
    assert sum(f"session: {seconds(best['task_p90_s'])}" in text for text in hovers) == 1
    content = json.dumps(tab._result(loops, [], state), default=lambda part: part.to_plotly_json())
    assert "llmviewer plan" not in content


def test_a_point_has_the_report_of_its_simulation():
    state = SERVED[1]
    one = serving.load_settings(state)[1]
    run = serving.simulation(state, one)
    content = json.dumps(tab._report(state, 1), default=lambda part: part.to_plotly_json())
    for table in REPORT.tables(run):
        assert json.dumps(table.title) in content
        assert all(json.dumps(cell) in content for line in table.lines() for cell in line)
    assert "llmviewer simulate llama-3.2-1b h100-sxm --concurrency 4 --tasks research.yaml --replicas 2" in content


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"router": "session"}, "Router session needs sessions or tasks"),
        ({"load": "rates", "rates": "2, fast"}, "Arrivals [1/s] must be 1 to 8 numbers above 0"),
        ({"load": "rates", "rates": "1, nan, 2"}, "Arrivals [1/s] must be 1 to 8 numbers above 0"),
        ({"tenants": "1,-2"}, "Tenants must be 1 to"),
        ({"load": "rates", "prefill_replicas": 1, "order": "vtc"}, "Waiting requests must be by arrival with Prefill"),
        ({"traffic": "sessions", "think_time": "soon"}, "Think time [s] must be a time, 0.5"),
        ({"traffic": "tasks", "tasks": "file:mine.yaml"}, "file:mine.yaml: the file is not on this page"),
    ],
)
def test_what_clients_cannot_send_is_an_error(changes, told):
    assert problem_of(replace(ASKED, **changes)).startswith(told)
    assert problem_of(replace(ASKED, traffic="sessions", router="session")) == ""


def test_a_dropped_task_names_no_file_of_the_server_and_is_limited(tmp_path):
    lengths = tmp_path / "lengths.txt"
    lengths.write_text("77\n")
    call = "calls: {a: {prompt: %s, gen: 1, parallel: %s}}"
    file = parse_task_file("Mine.yaml", call % (10, 1))
    assert (file.name, file.control) == ("mine.yaml", "tasks")
    state = State(traffic="tasks", tasks="file:mine.yaml", files=(file,))
    assert traffic.mean_calls(state) == 1
    assert State.of_link(state.link)[0] == state
    for text, told in (
        (call % (lengths, 1), "must be a number of tokens"),
        (call % (10_000_000, 1000), "at most 20,000 calls and 500,000 blocks"),
        ("calls: []", "calls"),
    ):
        with pytest.raises(InputError, match=told):
            parse_task_file("mine.yaml", text)


def test_documentation_has_the_example_task():
    page = (Path(__file__).resolve().parent.parent / "docs" / "serving.md").read_text()
    block = page.partition("```yaml\nname: research\n")[2].partition("```")[0]
    assert traffic.example_text().endswith(f"name: research\n{block}")


def test_points_of_earlier_settings_are_not_drawn(rows):
    app = create()
    draw = next(one["callback"].__wrapped__ for key, one in app.callback_map.items() if "serving-result" in key)
    text = f"{serving.loads_link(ASKED)}#{json.dumps(rows)}"
    assert draw(text, ASKED.link, [])
    sessions = replace(ASKED, traffic="sessions")  # which has fewer points
    with pytest.raises(PreventUpdate):
        draw(text, sessions.link, [])


PLANNED = State(model="gpt2", prompt=64, gen=8, on=("h100-sxm", "l40s"), quant="fp8", engine="vllm", plan_rate=2000,
                set=("l40s:price.cloud=9 USD/h",))  # fmt: skip


@pytest.fixture(scope="module")
def searched():
    return [plan.planned(PLANNED, place) for place in range(len(plan.searches(PLANNED)))]


def test_plans_are_those_of_the_command_line_and_link_to_a_replica(searched):
    plans = plan.plans_of(json.dumps(searched), PLANNED)
    assert plans.is_complete
    command = shlex.split(plan.plan_command(PLANNED))
    result = CliRunner().invoke(cli, [*command[1:], "--format", "json"])
    assert result.exit_code == 0, result.output
    printed, first = json.loads(result.output)["best"], plans.lowest[0]
    assert (first.device, first.quant) == (printed["hardware"], printed["quant"])
    assert first.numbers == {name: pytest.approx(printed[name]) for name in first.numbers}
    assert [one.device for one in plans.lowest] == ["h100-sxm", "l40s"]
    for one in plans.lowest:
        (_, simulation), (_, server) = one.commands
        assert simulation.startswith("llmviewer simulate gpt2 ")
        assert server.startswith("vllm serve ")
        replica, notices = State.of_link(one.link)
        assert (replica.on, replica.tab, notices) == ((one.device,), "overview", ())
        assert not problem_of(replica)


def test_plans_name_what_is_impossible_and_damaged_ones_are_refused(searched):
    assert not plan.plans_of(json.dumps(searched[:1]), PLANNED).is_complete
    few = replace(PLANNED, plan_most=1, plan_rate=9000)
    reasons = plan.plans_of(json.dumps([plan.planned(few, place) for place in range(2)]), few).reasons
    assert [one.partition(":")[0] for one in reasons] == ["h100-sxm", "l40s"]
    assert all("9000" in one for one in reasons)
    for damaged in (
        "{",
        "3",
        '[{"place": 0}]',
        '[{"place": 0, "reason": "", "numbers": {}}]',
        '[{"place": 1e400, "reason": ""}]',
    ):
        with pytest.raises(InputError, match="plan: the results are damaged; reload the page"):
            plan.plans_of(damaged, PLANNED)


def test_all_priced_devices_and_precisions_are_searched_after_the_chosen_ones():
    everywhere = plan.searches(replace(PLANNED, quant="", plan_on="priced"))
    devices = list(dict.fromkeys(one.device for one in everywhere))
    assert devices[:2] == ["h100-sxm", "l40s"]
    assert {"b200", "mi300x"} <= set(devices)
    assert "fp8" in {one.quant for one in everywhere}
    assert plan.plan_link(replace(PLANNED, plan_rate=1)) != plan.plan_link(replace(PLANNED, tenants="1,2", batch=9))
