"""Requests in flight: closed loops by hand, their laws, and the curve of throughput against speed."""

import json

import numpy as np
import pytest

import llmviewer
from llmviewer import concurrency_sweep, max_throughput, simulate
from llmviewer.cli import main
from llmviewer.errors import InputError
from llmviewer.reports.load_curve import REPORT
from llmviewer.serving.policy import POLICIES
from llmviewer.serving.steps import Steps

from .cases import first_fast

MODEL, DEVICE = "llama-3.1-8b", "h100-sxm"
ASKED = {"prompt_lengths": 800, "gen_lengths": 100, "requests": 80, "tpot": 0.01}
SPREAD = {"prompt_lengths": "uniform:200-1200", "gen_lengths": "uniform:1-300"}


def test_one_client_is_served_sequentially():
    asked = {"prompt_lengths": 700, "gen_lengths": 40, "policy": "prefill-first"}
    found = simulate(MODEL, DEVICE, concurrency=1, requests=5, bound=True, **asked)
    steps = Steps(found.setting)
    decoding = sum(float(steps.decode_s(batch=1.0, kv_len=700.0 + i)) for i in range(1, 40))
    alone_s = float(steps.prefill_s(700.0)) + decoding
    assert found.traffic.arrival_s == pytest.approx(alone_s * np.arange(5), rel=1e-4)
    assert found.finish_s == pytest.approx(alone_s * np.arange(1, 6), rel=1e-4)
    assert found.tokens_per_s == pytest.approx(40 / alone_s, rel=1e-4)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("layout", ["", "dp=2"])
def test_concurrency_stays_constant_until_the_last_request_arrives(policy, layout):
    found = simulate(MODEL, DEVICE, concurrency=12, requests=100, policy=policy, layout=layout, **SPREAD).likely
    moments, count = found.in_system
    lasting = np.diff(moments, append=np.inf) > 1e-9  # an answer and the request that it brings are at one moment
    before = lasting & (moments < np.median(found.traffic.arrival_s))
    assert set(count[before]) == {12}
    half = slice(0, 50)  # each answer brings the next request; towards the end, none
    assert np.sort(found.traffic.arrival_s)[12:][half] == pytest.approx(np.sort(found.finish_s)[half])


@pytest.mark.parametrize("clients", first_fast([1, 7, 40], "simulates thousands of requests"))
def test_littles_law(clients):
    """Requests in flight are their rate times how long each takes."""
    found = simulate(MODEL, DEVICE, concurrency=clients, requests=60 * clients, **SPREAD).likely
    assert found.requests_per_s * np.mean(found.latency_s) == pytest.approx(clients, rel=0.03)


def test_replicas_share_the_clients():
    both = simulate(MODEL, DEVICE, concurrency=8, requests=80, replicas=2, bound=True)
    one = simulate(MODEL, DEVICE, concurrency=4, requests=40, bound=True)
    assert both.tokens_per_s == pytest.approx(2 * one.tokens_per_s, rel=1e-6)
    few = simulate(MODEL, DEVICE, concurrency=1, requests=10, replicas=4, bound=True)
    assert few.utilization == pytest.approx(1 / 4, rel=1e-6)


@pytest.mark.slow("simulates thousands of requests")
def test_concurrency_at_the_batch_limit_reaches_maximum_throughput():
    """A full server, without the start and the end, in which fewer are in flight."""
    asked = {"prompt_lengths": "uniform:50-1000", "gen_lengths": "uniform:20-600", "policy": "chunked:2048"}
    most = max_throughput(MODEL, DEVICE, max_batch=64, **asked)
    loop = simulate(MODEL, DEVICE, concurrency=64, requests=64 * 40, **asked)
    assert loop.tokens_per_s == pytest.approx(most.bound.tokens_per_s, rel=0.03)
    assert loop.expected.tokens_per_s == pytest.approx(most.expected.tokens_per_s, rel=0.03)


def test_default_batch_limit_is_the_concurrency_and_requests_are_ten_per_client():
    found = simulate(MODEL, DEVICE, concurrency=400, gen_lengths=8, prompt_lengths=8, bound=True)
    assert (found.max_batch, len(found.traffic)) == (400, 4000)
    assert len(simulate(MODEL, DEVICE, concurrency=2, gen_lengths=2, prompt_lengths=8, bound=True).traffic) == 1000


def test_speculative_decoding_and_prefix_caching_speed_up_a_closed_loop():
    asked = {"concurrency": 8, "requests": 60, "prompt_lengths": 900, "gen_lengths": 100}
    plain, drafted = (simulate("deepseek-v3", "h200-sxm", layout="tp=8", techniques=t, **asked) for t in ((), ["mtp"]))
    assert drafted.expected.tokens_per_s > 1.1 * plain.expected.tokens_per_s
    known = simulate(MODEL, DEVICE, techniques=["prefix-cache:tokens=800"], **asked)
    assert np.mean(known.ttft_s) < np.mean(simulate(MODEL, DEVICE, **asked).ttft_s)


# --- the curve ---


@pytest.fixture(scope="module")
def curve():
    return concurrency_sweep(
        MODEL, DEVICE, concurrency=[16, 1, 4], prompt_lengths=800, gen_lengths=100, requests=80, tpot=0.01
    )


def test_higher_concurrency_raises_throughput_and_lowers_speed_per_request(curve):
    for points in (curve.bound, curve.expected):
        assert [point.concurrency for point in points] == [1, 4, 16]
        served, speed = ([getattr(point, name) for point in points] for name in ("per_device", "speed"))
        assert served == sorted(served)
        assert speed == sorted(speed, reverse=True)
    for bound, expected in zip(curve.bound, curve.expected, strict=True):
        assert bound.speed > expected.speed
        assert bound.per_device > expected.per_device


def test_a_point_is_its_simulation(curve):
    run = simulate(MODEL, DEVICE, concurrency=4, **ASKED)
    point = curve.expected[1]
    assert point.run.finish_s == pytest.approx(run.expected.finish_s)
    assert point.speed == pytest.approx(1 / np.mean(run.expected.tpot_s))
    assert point.read_and_written == pytest.approx(9 * point.per_device)  # 800 tokens are read for 100 that are written
    rows = curve.to_frame()
    assert list(rows["concurrency"]) == [1, 4, 16] * 2
    assert list(rows["times"].unique()) == ["bound", "expected"]


def test_throughput_per_device_divides_by_all_devices():
    one, four = (
        concurrency_sweep("llama-3.1-70b", "h200-sxm", concurrency=[4], layout=layout, requests=8, bound=True)
        for layout in ("tp=4", "tp=8")
    )
    assert one.bound[0].per_device == pytest.approx(one.runs[0].tokens_per_s / 4)
    assert four.bound[0].per_device == pytest.approx(four.runs[0].tokens_per_s / 8)


def test_the_report(capsys, tmp_path):
    asked = ["simulate", MODEL, DEVICE, "--concurrency", "1,4..16*2", "--requests", "32", "--ttft", "0.05"]
    assert main(asked) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    for words in ("concurrency 1 to 16", "/request", "within", "at concurrency 16:", "Highest concurrency with 90%"):
        assert words in text
    assert main([*asked, "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [point["concurrency"] for point in document["points"]] == [1, 4, 8, 16]
    assert document["inputs"]["concurrency"] == [1, 4, 8, 16]
    assert document["expected"][0]["tokens_per_s"] < document["points"][0]["tokens_per_s"]
    page = tmp_path / "curve.html"
    assert main([*asked, "-o", str(page)]) == 0
    assert 'id="load-curve"' in page.read_text()
    assert '<th scope="row" data-key="16" class="number">16</th>' in page.read_text()


def test_report_warns_when_too_few_requests_reach_steady_state():
    few, many = (
        " ".join(
            REPORT.text(concurrency_sweep(MODEL, DEVICE, concurrency=[1, 4], requests=count, bound=True, **how)).split()
        )
        for count, how in ((8, {"gen_lengths": 30}), (60, {"gen_lengths": "uniform:20-40"}))
    )
    assert "Drain: at concurrency 4, fewer requests are running in up to the last" in few
    assert "fewer requests are running" not in many
    assert ": concurrency 1 to 4, 1,024 input and 30 output tokens, as published" in few
    assert ", mean 1,024 input and 30 output tokens, as published" in many


def test_one_token_outputs_have_no_decode_speed(capsys):
    assert main(["simulate", MODEL, DEVICE, "--concurrency", "1,2", "--gen", "1", "--requests", "4", "--bound"]) == 0
    assert "nan" not in capsys.readouterr().out
    assert REPORT.html(concurrency_sweep(MODEL, DEVICE, concurrency=[1, 2], gen_lengths=1, requests=4, bound=True))


def test_one_number_is_a_simulation(capsys):
    assert main(["simulate", MODEL, DEVICE, "--concurrency", "4", "--requests", "20"]) == 0
    text = capsys.readouterr().out
    assert "concurrency 4" in text
    assert "closed form" not in text
    assert main(["simulate", MODEL, DEVICE, "--concurrency", "4", "--requests", "20", "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["inputs"]["concurrency"] == 4
    assert document["inputs"]["rate"] is None


@pytest.mark.parametrize(("options", "said"), [
    (["--concurrency", "0"], "concurrency must be a whole number of at least 1; got 0"),
    (["--concurrency", "many"], "--concurrency: must be whole numbers, or ranges"),
    (["--concurrency", "4,4"], "concurrency: 4 is given twice; give each once"),
    (["--concurrency", "1..65"], "concurrency must be 1 to 64 numbers; got 65"),
    (["--concurrency", "8", "--rate", "1"], "(--concurrency, a number of clients) must be given"),
    (["--concurrency", "8,16", "--rate", "1"], "several values of --concurrency exclude --rate and --arrivals"),
    (["--concurrency", "8", "--rate", "max"], "leave out --concurrency"),
    (["--concurrency", "8", "--requests", "4"], "requests must be at least the concurrency, 8; got 4"),
    (["--concurrency", "8", "--prefill-replicas", "1"], "concurrency must be left out with prefill_replicas"),
    (
        ["--concurrency", "200000"],
        "concurrency must be at most 100000 without requests, as each client then sends 10; got 200000",
    ),
    (["--concurrency", "9", "--requests", "2000000"], "requests must be at most 1000000; got 2000000"),
], ids=lambda value: " ".join(value) * isinstance(value, list))  # fmt: skip
def test_mistakes_get_one_line(capsys, options, said):
    assert main(["simulate", MODEL, DEVICE, *options]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert said in captured.err
    assert captured.err.count("\n") == 1


def test_empty_concurrency_list_is_refused():
    with pytest.raises(InputError, match="concurrency must be 1 to 64 numbers; got 0"):
        llmviewer.concurrency_sweep(MODEL, DEVICE, concurrency=[])
