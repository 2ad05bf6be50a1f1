"""The serving tab: loops that the browser asks for one by one, their Pareto front within targets, and the figure."""

import json
from dataclasses import replace

import pytest

pytest.importorskip("dash")

import numpy as np

from llmviewer.errors import InputError
from llmviewer.reports.serving_front import ClosedLoop, Targets, figure, front, front_lines
from llmviewer.serving.simulation import simulate
from llmviewer.webapp.state import State
from llmviewer.webapp.tabs import serving as tab
from llmviewer.webapp.views import serving

ASKED = State(model="gpt2", prompt=64, gen=8, tab="serving")


@pytest.fixture(scope="module")
def rows():
    return [serving.simulated(ASKED, place) for place in range(len(serving.CONCURRENCIES))]


def loop(place, speed, per_device, *, ttft_s=0.1, basis="expected", name="a"):
    times = {f"{key}_p{p}_s": value for p in (50, 90, 99) for key, value in (("ttft", ttft_s), ("tpot", 1 / speed))}
    numbers = {"speed": speed, "per_device": per_device, "tokens_per_s": per_device, "usd_per_million": 1.0,
               "joules_per_token": float("nan"), **times}  # fmt: skip
    return ClosedLoop(name=name, place=place, basis=basis, concurrency=place + 1, numbers=numbers)


def test_closed_loop_point_equals_simulate(rows):
    run = simulate("gpt2", "h100-sxm", concurrency=16, prompt_lengths=64, gen_lengths=8, requests=160)
    shown = rows[serving.CONCURRENCIES.index(16)]
    for name, side in (("bound", run), ("expected", run.expected)):
        assert shown[name]["tokens_per_s"] == pytest.approx(side.tokens_per_s)
        assert shown[name]["speed"] == pytest.approx(1 / np.mean(side.tpot_s))
        assert shown[name]["ttft_p90_s"] == pytest.approx(np.percentile(side.ttft_s, 90), abs=1e-9)
        assert shown[name]["usd_per_million"] == pytest.approx(1e6 / side.tokens_per_dollar)
        assert shown[name]["joules_per_token"] == pytest.approx(1 / side.tokens_per_joule)
    assert shown["bound"]["speed"] > shown["expected"]["speed"]


def test_collected_results_are_drawn_and_damaged_ones_refused(rows):
    loops, reasons = serving.loops_of(json.dumps(rows), ASKED)
    assert len(loops) == 2 * len(rows)
    assert reasons == []
    assert serving.loops_of(None, ASKED) == ([], [])
    for damaged in (
        "{",
        "3",
        '[{"place": 0}]',
        '[{"place": 999, "reason": "x"}]',
        '[{"place": 0, "reason": "", "bound": 3}]',
    ):
        with pytest.raises(InputError, match="are damaged; reload the page"):
            serving.loops_of(damaged, ASKED)


def test_impossible_settings_carry_a_reason():
    places = {(one.device, one.tp): i for i, one in enumerate(serving.loop_settings(ASKED))}
    assert places.keys() == {("h100-sxm", tp) for tp in (1, 2, 4, 8)}
    row = serving.simulated(ASKED, places["h100-sxm", 8])
    assert "tp=8 does not divide the 12 heads" in row["reason"]
    assert serving.loops_of(json.dumps([row]), ASKED) == ([], [f"h100-sxm, tp=8: {row['reason']}"])


def test_simulations_depend_on_lengths_not_on_targets_or_batch():
    link = serving.loops_link(ASKED)
    assert serving.loops_link(replace(ASKED, ttft=10, tpot=5, within="p99", batch=7, phase="prefill")) == link
    assert serving.loops_link(replace(ASKED, prompt=65)) != link


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
    loops, reasons = serving.loops_of(json.dumps(rows), ASKED)
    text = json.dumps(tab._result(loops, reasons, ASKED), default=lambda part: part.to_plotly_json())
    assert "batch=256" in text
    assert "llmviewer plan gpt2 --hardware h100-sxm --rate" in text
    assert "--ttft p90=2.048 --tpot p90=0.064" in text
    changed = replace(ASKED, quant="fp8", engine="vllm", max_num_seqs=64, techniques=("kv-quant",),
                      set=("h100-sxm:memory.bandwidth=2x",))  # fmt: skip
    command = tab._command(loops[0], changed)
    assert " --quant fp8 --engine vllm --max-num-seqs 64 " in command
    assert command.endswith(" --with kv-quant --hardware-set memory.bandwidth=2x")
    none = json.dumps(
        tab._result(loops, [], replace(ASKED, ttft=1, tpot=1)), default=lambda part: part.to_plotly_json()
    )
    assert "No simulated point is within the targets" in none
