"""plan(): equal to an exhaustive search; rejection reasons, reports and errors."""

import csv
import io
import json
import math
import re
import shlex
from collections import Counter
from functools import partial
from itertools import pairwise, product

import numpy as np
import pytest

from llmviewer.analyzing.costs import Criterion, hourly
from llmviewer.cli import main
from llmviewer.devices.files import hardware_names, load_hardware
from llmviewer.errors import InputError
from llmviewer.generation import prefill_s
from llmviewer.model_files import load_model
from llmviewer.parallel.layout import Layout, Network, parse_layout
from llmviewer.reports.pareto_figures import pareto_front
from llmviewer.reports.plans import REPORT
from llmviewer.serving import placement, search
from llmviewer.serving.confirmation import confirmed
from llmviewer.serving.outcome import Goals
from llmviewer.serving.planning import BATCHES, LAYOUTS, QUANTS, _ranking_key, default_layouts
from llmviewer.serving.simulation import simulate
from llmviewer.setting import Setting
from llmviewer.workload import Workload

from .cases import first_fast
from .mean_plans import plan

DEVICES = ("h100-sxm", "a100-sxm-80gb", "l40s", "mi355x", "rtx-4090", "trainium1")
GOALS = {"rate": 4, "ttft": 0.5, "tpot": 0.03}


@pytest.fixture(scope="module")
def found():
    return plan("llama-3.1-70b", hardware=DEVICES, **GOALS)


def step_s(setting, *, batch, kv_len):
    """Between two tokens of a sequence."""
    workload = Workload.decode(batch=setting.layout.micro_batch_size(batch), kv_len=kv_len)
    return float(setting.time_s("decode", workload, batch))


def by_hand(model, device, layout, quant, *, rate, ttft, tpot, prompt, gen, most, limits, expected):
    """The fewest replicas that meet the targets, one number at a time: (copies, limit, times); None if none does."""
    try:
        setting = Setting.of(model, device, layout=layout, quant=None if quant == "published" else quant)
        plans = setting.plan, setting.decode_plan
    except InputError:
        return None
    laid = setting.layout
    if expected:
        workload = Workload.prefill(batch=1.0, prompt=prompt)
        read = setting.kernels.expect(plans[0].estimate(workload).operators, workload)
        through = read.total.numbers()[0]
        every = read.slowest.numbers()[0] if laid.pp > 1 else through
        lengths = {"kv_len": prompt + gen / 2}
        decode = ((float(b), Workload.decode(batch=laid.micro_batch_size(float(b)), **lengths)) for b in limits)
        steps = [setting.expected_time("decode", step, b).numbers()[0] for b, step in decode]
    else:
        through = float(prefill_s(plans[0], laid, batch=1, prompt=prompt))
        values = plans[0].values(Workload.prefill(batch=1, prompt=prompt))
        every = max(float(stage.seconds(values)) for stage in plans[0].stages) if laid.pp > 1 else through
        steps = [step_s(setting, batch=float(b), kv_len=prompt + gen / 2) for b in limits]
    for copies in range(1, most // laid.devices + 1):
        own = rate / copies
        if own * every >= 1:
            continue
        each = [by_turns(own, through, every, step, laid.pp)[0] for step in steps]
        missing = [own * (gen - 1) * one - (b - 1) for b, one in zip(limits, each, strict=True)]
        place = next((i for i, value in enumerate(missing) if value <= 0), None)
        if place is None:
            continue
        part = missing[place - 1] / (missing[place - 1] - missing[place]) if place else 0.0
        before = max(place - 1, 0)
        batch = limits[before] - 1 + part * (limits[place] - limits[before])
        step = steps[before] + part * (steps[place] - steps[before])
        each = each[before] + part * (each[place] - each[before])
        _, busy_s, idle_s = by_turns(own, through, every, step, laid.pp)
        first = busy_s + (1 - math.exp(-batch)) * idle_s
        fall = (missing[place - 1] - missing[place]) / (limits[place] - limits[place - 1]) if place else 1.0
        limit = next((b for b in limits if b >= 1 + batch + 3.09 * math.sqrt(batch / max(fall, 0.05))), None)
        if limit is None or first > ttft or each > tpot:
            continue
        weights, cache, _ = setting.footprint.parts(batch=float(limit), prompt=prompt, gen=gen)
        reading = setting.footprint.parts(batch=float(laid.pp), prompt=prompt, gen=gen)[2]
        writing = setting.footprint.parts(batch=float(limit), prompt=1, gen=prompt + gen - 1)[2]
        if weights + cache + max(reading, writing) <= setting.hardware.capacity:
            return copies, limit, first, each
    return None


def by_turns(rate, through, every, step, turns):
    """Time per token, time to a first token beside others that are read, and what one waits for those who decode: of
    prompts that share no step of a turn.
    """
    if turns == 1:
        busy = rate * every
        return step / (1 - busy), through + rate * every**2 / 2 / (1 - busy), step / 2
    alone = max(through, (through + (turns - 1) * step) / turns)
    read, comes = alone, 1 - math.exp(-rate * step)
    for _ in range(3):
        often = comes / (comes + math.exp(-rate * read))
        prompts = min(max(rate * (often * read + (1 - often) * step) / often, 1), turns)
        read = alone + (every * turns - alone) * (prompts - 1) / (turns - 1)
    busy = rate * read / prompts
    decoding = (1 - busy) / step + rate / prompts * (1 - prompts / turns)  # steps a second in which one decodes
    left = 1 - busy * prompts / turns
    return 1 / decoding, read + busy * read / 2 / left, (1 - busy) * step / 2 / left


@pytest.mark.slow("tries every setting by hand")
@pytest.mark.parametrize("expected", [False, True], ids=["bound", "expected"])
def test_plan_equals_an_exhaustive_search(expected):
    devices, layouts = ("h100-sxm", "l40s", "mi300x", "rtx-4090"), ("", "tp=2", "tp=4", "pp=2")
    quants, limits = ("published", "fp8", "W4A16g128"), (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128)
    for goals in (GOALS, {"rate": 0.3, "ttft": 0.3, "tpot": 0.05}, {"rate": 12, "ttft": 2, "tpot": 0.1}):
        asked = {"prompt": 1500, "gen": 200, **goals}
        found = plan(
            "llama-3.1-70b", hardware=devices, layouts=layouts, quants=quants, batches=limits, max_devices=12,
            bound=not expected, **asked,
        )  # fmt: skip
        ours = {(one.hardware.name, str(one.layout), one.quant): one for one in found.within_targets}
        assert len(ours) == len(found.within_targets)
        tried = 0
        for device, layout, quant in product(devices, layouts, quants):
            hand = by_hand("llama-3.1-70b", device, layout, quant, most=12, limits=limits, expected=expected, **asked)
            one = ours.get((device, str(parse_layout(layout)), quant))
            assert (hand is None) == (one is None), (device, layout, quant, goals)
            if hand:
                tried += 1
                assert (one.copies, one.limit) == hand[:2]
                assert (one.ttft_s, one.tpot_s) == pytest.approx(hand[2:])
        assert tried
        prices = [one.usd_per_h for one in found.within_targets if not math.isnan(one.usd_per_h)]
        assert prices[0] == min(prices) == found.best.usd_per_h


def test_expected_plans_need_no_fewer_devices_than_the_bound(found):
    for one in found.within_targets:
        least = one.at_bound
        assert one.copies >= least.copies
        assert one.devices >= found.cheapest_at_bound.devices or one.usd_per_h >= found.cheapest_at_bound.usd_per_h
        if one.copies == least.copies:
            assert one.ttft_s >= least.ttft_s
            assert one.tpot_s >= least.tpot_s
        assert one.max_rate / one.copies <= least.max_rate / least.copies
        assert one.rate_within / one.copies <= least.rate_within / least.copies
    bounds = plan("llama-3.1-70b", hardware=DEVICES, bound=True, **GOALS)
    assert bounds.best == found.cheapest_at_bound
    assert bounds.unmeasured == ()
    assert len(bounds.within_targets) > len(found.within_targets)
    assert not [one for one in found.within_targets if one.hardware.name == "trainium1"]
    assert found.combinations == bounds.combinations


@pytest.mark.slow("plans over many settings")
def test_devices_without_measured_kernels_are_listed():
    found = plan("llama-3.1-8b", hardware=["h100-sxm", "trainium2", "tpu-v6e"], rate=4, tpot=0.05)
    assert {one.hardware.name for one in found.unmeasured} == {"trainium2", "tpu-v6e"}
    assert all(one.at_bound is None for one in found.unmeasured)
    assert found.rejected == ()
    assert found.best.hardware.name == "h100-sxm"


def test_report_falls_back_to_bounds_without_measured_kernels(capsys):
    assert main(["plan", "llama-3.1-8b", "--rate", "4", "--hardware", "tpu-v6e", "--layout", "", "--quant", "fp8"]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert "No plan is known to meet the targets. At the bound, 1 x tpu-v6e, fp8" in words
    assert "without measured kernels" in words


def test_an_engine_is_planned_for():
    asked = {"hardware": ["a100-sxm-80gb"], "rate": 2, "tpot": 0.05, "quants": ["published"], "layouts": [""]}
    fast, slow = (plan("llama-2-7b", engine=name, **asked) for name in ("tensorrt-llm", "huggingface"))
    assert fast.best.copies <= slow.best.copies
    assert fast.best.tpot_s < slow.best.tpot_s
    assert slow.best.tpot_s > 0.02  # its host launches kernel by kernel
    assert fast.kernels == "TensorRT-LLM"


def test_plans_meet_targets_and_device_limit(found):
    for one in found.within_targets:
        assert one.ttft_s <= 0.5
        assert one.tpot_s <= 0.03
        assert one.devices <= 16
        assert one.memory <= 1
        assert one.utilization < 1
        assert one.batch < one.limit
        assert 4 <= one.rate_within <= one.max_rate
    assert found.combinations == sum(6 * 64 * len(QUANTS) * (16 // parse_layout(layout).devices) for layout in LAYOUTS)


def test_the_cheapest_comes_first_and_those_without_a_price_last(found):
    prices = [one.usd_per_h for one in found.within_targets]
    known = [price for price in prices if not math.isnan(price)]
    assert known == sorted(known)
    assert all(math.isnan(price) for price in prices[len(known) :])
    assert found.by is Criterion.COST
    assert found.best is found.within_targets[0]
    assert found.best.usd_per_h == pytest.approx(found.best.devices * hourly(load_hardware("h100-sxm"), None))
    assert set(found.unpriced) == {"mi355x"}


def test_no_plan_dominates_the_pareto_front(found):
    def least(one):
        numbers = (one.usd_per_h, one.watts, one.devices, one.ttft_s, one.tpot_s, -one.rate_within)
        return [math.inf if math.isnan(x) else x for x in numbers]

    best = [least(one) for one in found.front]
    for own in best:
        assert not any(np.all(np.less_equal(o, own)) and o != own for o in map(least, found.within_targets))
    for own in map(least, found.within_targets):
        assert any(np.all(np.less_equal(o, own)) for o in best)


def test_a_phone_has_room_for_the_times_of_the_figure(found):
    for key in ("ttft_s", "tpot_s"):
        assert 2 <= len(pareto_front(found, key, key).layout.xaxis.tickvals) <= 4
    alone = plan("llama-3.1-8b", hardware=["h100-sxm"], quants=["fp8"], layouts=[""], rate=0.1, bound=True)
    assert 2 <= len(pareto_front(alone, "tpot_s", "").layout.xaxis.tickvals) <= 4


def test_simulated_plan_meets_its_targets(found):
    best = found.best
    asked = found.simulation(best)
    quant = {} if best.quant == "published" else {"quant": best.quant}
    assert asked == quant | {
        "model": "llama-3.1-70b", "hardware": "h100-sxm", "rate": 4 / best.copies, "prompt_lengths": "1024",
        "gen_lengths": "256", "policy": "prefill-first", "max_batch": max(best.limit, 256),
        "layout": str(best.layout), "ttft": 0.5, "tpot": 0.03,
    }  # fmt: skip
    run = simulate(**asked, requests=1500)
    run = run.expected
    assert float(np.mean(run.ttft_s)) == pytest.approx(best.ttft_s, rel=0.2)  # some wait for a place
    assert float(np.mean(run.tpot_s)) == pytest.approx(best.tpot_s, rel=0.05)
    assert run.usage.crowded_s < 0.03 * run.usage.busy_s


def test_recommended_plan_meets_its_targets_in_simulation():
    asked = {"rate": 4, "hardware": ["h100-sxm"], "quants": ["fp8", "W4A16g128"], "engine": "vllm"}
    found = plan("llama-3.1-70b", ttft="p99=0.5", tpot="p95=0.03", confirm=True, **asked)
    best = found.recommended
    assert best.candidate is found.best
    assert best.run.policy.name == "chunked"  # the engine's
    assert np.percentile(best.run.ttft_s, 99) == best.ttft_s <= 0.5
    assert np.percentile(best.run.tpot_s, 95) == best.tpot_s <= 0.03
    again = simulate(**found.simulation(found.best)).expected
    assert np.percentile(again.ttft_s, 99) == pytest.approx(best.ttft_s)
    assert [one.within for one in found.simulations] == [False] * (len(found.simulations) - 1) + [True]
    row = found.to_dict()["simulated"][-1]
    assert (row["within"], row["ttft_at_target_s"]) == (True, best.ttft_s)
    assert row["times"]["ttft_s"]["p99"] == best.ttft_s
    mean = plan("llama-3.1-70b", ttft="mean=0.5", tpot="mean=0.03", confirm=True, **asked)
    assert mean.best.usd_per_h <= found.best.usd_per_h


def test_candidate_missing_targets_in_simulation_retries_with_more_replicas():
    found = plan("llama-3.1-8b", rate=20, tpot=0.03, hardware=["l40s"], quants=["fp8"], layouts=[""], max_devices=64)
    first = found.within_targets[0]
    runs = []

    def simulated(candidate):
        runs.append(candidate)
        return simulate(**found.simulation(candidate), requests=300).likely

    strict = Goals(tpot_s=0.95 * first.tpot_s, tpot_percentile=90)
    order = partial(_ranking_key, found.by)
    tried = confirmed([first], simulated, strict, order=order, max_devices=100, years=1)
    assert [one.copies for one in runs] == [one.candidate.copies for one in tried]
    assert len(tried) > 1
    assert tried[-1].within
    assert all(more.copies > fewer.copies for fewer, more in pairwise(runs))
    assert runs[-1].watts == pytest.approx(first.watts * runs[-1].copies / first.copies)
    assert all(one.tpot_s > strict.tpot_s for one in tried[:-1])


@pytest.mark.parametrize(("layout", "near"), [("", 0.02), ("tp=2 pp=2", 0.05)])
@pytest.mark.parametrize(("prompt", "rate"), [(1024, 8), (128, 40)])
def test_plans_have_the_closed_form_of_a_single_replica(layout, near, prompt, rate):
    """Between batches that are tried, decode steps are interpolated here and evaluated there. In a pipeline a plan has
    equal micro-batches, where a replica has one more sequence in that of a sequence itself.
    """
    asked = {"hardware": ["h100-sxm"], "layouts": [layout], "quants": ["published"], "max_devices": 4}
    found = plan("llama-3.1-8b", rate=rate, prompt=prompt, bound=True, **asked)
    (one,) = found.within_targets
    closed = simulate(**found.simulation(one) | {"rate": rate}, requests=1).closed
    assert (one.copies, closed.stable) == (1, True)
    assert (one.ttft_s, one.tpot_s, one.batch) == pytest.approx((closed.ttft_s, closed.tpot_s, closed.batch), rel=near)


@pytest.mark.parametrize("percentile", [90, 99])
def test_percentiles_in_closed_form_are_near_those_simulated(percentile):
    goals = {"ttft": f"p{percentile}=10", "tpot": f"p{percentile}=1"}
    for model, device, layout, rate in (("llama-3.1-8b", "l40s", "", 3), ("llama-3.1-70b", "h100-sxm", "tp=4", 4)):
        found = plan(model, rate=rate, hardware=[device], quants=["fp8"], layouts=[layout], **goals)
        (one,) = found.within_targets
        run = simulate(**found.simulation(one), requests=3000).expected
        assert one.ttft_quantile_s == pytest.approx(np.percentile(run.ttft_s, percentile), rel=0.35)
        assert one.tpot_quantile_s == pytest.approx(np.percentile(run.tpot_s, percentile), rel=0.15)


@pytest.mark.slow("plans over many settings")
def test_harder_goals_never_cost_less():
    costs = []
    for tpot in (0.1, 0.03, 0.01, 0.004):
        best = plan("llama-3.1-70b", hardware=DEVICES, quants=["fp8"], rate=4, ttft=0.5, tpot=tpot).best
        costs.append(best.usd_per_h if best else math.inf)
    assert costs == sorted(costs)
    rates = [
        plan("llama-3.1-8b", hardware=DEVICES, quants=["fp8"], rate=r, tpot=0.03).best.usd_per_h
        for r in (1, 20, 100, 200)
    ]
    assert rates == sorted(rates)
    assert rates[-1] > rates[0]


@pytest.mark.parametrize(
    ("device", "options", "reason"),
    [
        ("rtx-4090", {"layouts": [""]}, "memory: 151 GB for 23 concurrent sequences, 5.87x the 25.8 GB of each device"),
        ("rtx-4090", {"layouts": [""], "rate": 1000}, "memory: 142 GB for 1 concurrent sequence, 5.51x the 25.8 GB"),
        ("h100-sxm", {"layouts": ["tp=4"], "tpot": 0.001}, "time per token: "),
        ("h100-sxm", {"layouts": ["tp=4"], "ttft": 0.001}, "time to first token: "),
        ("h100-sxm", {"layouts": ["tp=4"], "rate": 1000}, "rate: "),
        ("b100", {"layouts": ["tp=16"]}, "link: b100 has no scale_out.bandwidth"),
        ("h100-sxm", {"layouts": ["tp=8"], "batches": [1, 2], "rate": 40}, "rate: "),
        ("h100-sxm", {"layouts": ["tp=4"], "batches": [2, 3], "rate": 0.6}, "batch: "),
    ],
)
def test_rejection_names_the_exceeded_limit(device, options, reason):
    found = plan("llama-3.1-70b", hardware=[device], quants=["published"], bound=True, **{"rate": 4, **options})
    assert found.within_targets == ()
    assert found.best is None
    (one,) = found.rejected
    assert one.reason.startswith(reason)
    assert one.excess > 1


def test_stated_maximum_rate_is_the_highest_for_the_replica_count():
    asked = {"hardware": ["h100-sxm", "l40s"], "layouts": ["tp=2", "tp=4"], "quants": ["fp8", "W4A16g128"]}
    goals = {"ttft": 0.5, "tpot": 0.03, "max_devices": 8}
    found = plan("llama-3.1-70b", rate=2, **asked, **goals)
    tried = 0
    for one in found.within_targets:
        own = {"hardware": [one.hardware], "layouts": [str(one.layout)], "quants": [one.quant]}
        below, above = (plan("llama-3.1-70b", rate=f * one.rate_within, **own, **goals) for f in (0.999, 1.002))
        assert [each.copies for each in below.within_targets] == [one.copies]
        assert all(each.copies > one.copies for each in above.within_targets)
        tried += 1
    assert tried >= 3


def test_plan_uses_expert_parallelism_when_cheaper():
    asked = {"rate": 24, "ttft": 2, "tpot": 0.1, "hardware": ["h200-sxm"], "max_devices": 64}
    found, plain = (
        plan("deepseek-v3", layouts=layouts, quants=["fp8"], **asked) for layouts in (("dp=8 ep=8", "tp=4"), LAYOUTS)
    )
    assert found.best.layout == Layout(dp=8, ep=8)
    assert found.best.devices == 16
    assert plain.best.devices == 24


@pytest.mark.parametrize(
    ("model", "layout", "rate"),
    first_fast([("deepseek-v3", "dp=8 ep=8", 1), ("deepseek-v3", "dp=8 ep=8", 12), ("deepseek-v3", "tp=2 dp=4 ep=8", 6),
     ("llama-3.1-70b", "tp=2 pp=2", 3), ("llama-3.1-70b", "tp=2 dp=2", 3)], "simulates what is planned"),
)  # fmt: skip
def test_ranks_and_stages_wait_for_each_other_as_they_do_when_simulated(model, layout, rate):
    """Markov chains, and queues in turn, stand for what happens step by step.

    With fewer requests than ranks, the closed form counts a token on every rank, and more experts than are read.
    """
    found = plan(model, rate=rate, hardware=["h200-sxm"], layouts=[layout], quants=["fp8"], max_devices=8)
    one = found.best
    assert one.copies in (1, 2)
    run = simulate(**found.simulation(one), requests=800).likely
    few = one.batch < one.layout.dp
    assert one.tpot_s * (0.75 if few else 0.8) <= float(np.mean(run.tpot_s)) <= 1.2 * one.tpot_s
    assert float(np.mean(run.ttft_s)) == pytest.approx(one.ttft_s, rel=0.25)


@pytest.mark.parametrize(
    ("model", "parts"),
    [("llama-3.1-8b", ()), ("mixtral-8x7b", (2, 4, 8)), ("deepseek-v3", (2, 4, 8, 16)), ("qwen1.5-moe-a2.7b", (2, 4))],
)
def test_expert_parallel_degree_divides_the_experts(model, parts):
    usual = default_layouts(load_model(model).published)
    assert usual[: len(LAYOUTS)] == LAYOUTS
    assert set(usual[len(LAYOUTS) :]) == {f"{name}={n} ep={n}" for name in ("tp", "dp") for n in parts}


def test_suggested_command_simulates_the_best_plan(capsys):
    asked = ["--ttft", "0.5", "--tpot", "0.03", "--hardware", "h100-sxm", "--hardware-set", "memory.bandwidth=1.5x"]
    assert main(["plan", "llama-3.1-8b", "--rate", "40", "--quant", "fp8", "--layout", "tp=2", *asked]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    command = shlex.split(text[text.index("llmviewer simulate") :].replace("\\\n", ""))
    assert main([*command[1:], "--requests", "50", "--format", "json"]) == 0
    inputs = json.loads(capsys.readouterr().out)["inputs"]
    best = plan(
        "llama-3.1-8b", rate=40, ttft=0.5, tpot=0.03, hardware=["h100-sxm"], quants=["fp8"], layouts=["tp=2"],
        hardware_set=["memory.bandwidth=1.5x"],
    ).best  # fmt: skip
    assert (inputs["layout"], inputs["max_batch"], inputs["tpot_s"]) == ("tp=2", max(best.limit, 256), 0.03)
    assert inputs["policy"] == "prefill-first"


def test_names_of_many_devices_stay_within_a_terminal():
    found = plan(
        "deepseek-v3", rate=30, tpot=0.2, hardware=["h200-sxm"], layouts=["tp=8 ep=8", "dp=8 ep=8"], max_devices=64,
        quants=["published", "W4A16g128"],
    )  # fmt: skip
    assert max(one.copies for one in found.within_targets) > 1
    assert max(map(len, REPORT.text(found).splitlines())) <= 80


def test_repr_of_a_plan_is_short(found):
    assert len(repr(found)) < 1000
    assert repr(found).startswith("Serving Llama 3.1 70B: 4 requests/s")


def test_maximum_rate_of_a_device_is_limited_by_memory():
    found = plan("llama-3.1-70b", hardware=["l40s"], quants=["fp8"], layouts=["", "tp=2"], rate=200, bound=True)
    (one,) = found.rejected
    setting = Setting.of("llama-3.1-70b", "l40s", quant="fp8", layout="tp=2")  # one device has no room for the weights
    held = [sum(setting.footprint.parts(batch=float(b), prompt=1024, gen=256)[:2]) for b in BATCHES]
    room = max(b for b, held_bytes in zip(BATCHES, held, strict=True) if held_bytes <= setting.hardware.capacity)
    assert one.limit in (room, BATCHES[BATCHES.index(room) - 1])  # activations need some of it too
    step = step_s(setting, batch=float(one.limit), kv_len=1024 + 128)
    each = float(prefill_s(setting.plan, setting.layout, batch=2, prompt=1024)) / 2 + 255 * step / (one.limit - 1)
    assert one.max_rate == pytest.approx(8 / each, rel=2e-3)  # two prompts share a step, but not each
    assert one.reason.startswith(
        f"rate: at most {one.max_rate:.4g} requests/s on 16 devices (KV-cache capacity: {one.limit:,} sequences per "
    )


@pytest.mark.parametrize(("factor", "even"), [(0.5, True), (1.1, False)])
def test_report_separates_targets_below_the_bound_from_targets_measured_kernels_miss(factor, even):
    asked = {"hardware": ["h100-sxm"], "quants": ["published"], "layouts": [""], "rate": 0.1, "max_devices": 1}
    bound = plan("llama-3.1-8b", bound=True, **asked).best.tpot_s
    text = " ".join(REPORT.text(plan("llama-3.1-8b", tpot=factor * bound, **asked)).split())
    assert "No plan meets the targets." in text
    assert "h100-sxm published one device time per token: " in text
    assert ("allowed, even at the bound" in text) == even
    assert ("At the bound, 1 x h100-sxm, published: 3.2 USD/h: no kernels need less." in text) != even


def test_devices_without_a_price_are_not_called_cheapest():
    asked = {"hardware": ["rtx-pro-5000"], "quants": ["published"], "layouts": [""], "rate": 0.1, "max_devices": 1}
    bound = plan("llama-3.1-8b", bound=True, **asked).best.tpot_s
    text = " ".join(REPORT.text(plan("llama-3.1-8b", tpot=1.1 * bound, **asked)).split())
    assert "No plan meets the targets. At the bound 1 x rtx-pro-5000, published would meet the targets." in text


def test_announced_devices_are_left_out_unless_named():
    asked = {"rate": 1, "quants": ["fp8"], "layouts": [""], "bound": True}
    every, named = plan("llama-3.1-8b", by="devices", **asked), plan("llama-3.1-8b", hardware=["b100", "l4"], **asked)
    looked_at = {one.hardware.name for one in (*every.within_targets, *every.rejected)}
    assert "b100" in every.unavailable
    assert not looked_at & set(every.unavailable)
    assert looked_at | set(every.unavailable) == set(hardware_names())
    assert every.considered == len(looked_at)
    words = " ".join(REPORT.text(every).split())
    assert f"{', '.join(every.unavailable)} (announced, not yet available; --hardware NAME includes one)." in words
    assert (named.unavailable, named.best.hardware.name) == ((), "l4")
    assert {one.hardware.name for one in named.within_targets} == {"b100", "l4"}


def test_text_lists_the_nearest_rejected_devices_and_files_list_all():
    found = plan(
        "llama-3.1-70b", rate=1, ttft=0.2, tpot=0.02, quants=["fp8"], layouts=["", "tp=2"], bound=True, by="devices"
    )
    names = [one.hardware.name for one in found.rejected]
    assert len(names) > 30
    text, page, table = REPORT.text(found), REPORT.markdown(found), REPORT.csv(found)
    own = text.partition("Devices that miss the targets")[2]
    assert [name for name in names if f"\n{name} " in own] == names[:5]
    words = " ".join(own.split())
    assert f"{len(names) - 5} more: -o FILE.html, .md, .csv or .json has all." in words
    for factor, count in Counter(one.factor for one in found.rejected).items():
        assert re.search(rf"closest first\. Ruled out by [^.]*\b{factor}: {count}\b", words)
    assert all(f"| {name} |" in page and f",{name}," in table for name in names)
    near = [one.excess for one in found.rejected if one.max_rate > 0]
    assert near == sorted(near)


def test_a_text_has_the_first_rows_of_long_tables_and_files_have_all():
    found = plan("llama-3.1-8b", rate=1, quants=["fp8"], layouts=["", "tp=2"], bound=True)
    text, page = REPORT.text(found), REPORT.markdown(found)
    each, front = (len(rows) for rows in (found.best_by_device, found.front))
    assert min(each, front) > 10
    assert len(text.splitlines()) < 75
    for more in (each - 10, front - 6):
        assert f"{more} more: -o FILE.html, .md, .csv or .json has all." in " ".join(text.split())
    tables = re.findall(r"(?s)## .*?\n\n(.*?)\n\n", page)
    assert [table.count("\n|") - 1 for table in tables[:2]] == [each, front]


def test_devices_without_a_price_are_evaluated_only_where_none_with_one_meets_the_targets():
    asked = {"rate": 1, "quants": ["fp8"], "layouts": [""], "bound": True}
    found = plan("llama-3.1-8b", **asked)
    assert found.considered == found.priced == len(hardware_names()) - len(found.without_price) - len(found.unavailable)
    assert {one.hardware.name for one in found.within_targets}.isdisjoint(found.without_price)
    assert f"Not evaluated: {len(found.without_price)} devices without a price." in " ".join(REPORT.text(found).split())
    best = plan("llama-3.1-8b", hardware=list(hardware_names()), **asked).best
    assert (found.best.hardware.name, found.best.usd_per_h) == (best.hardware.name, best.usd_per_h)
    fast = plan("llama-3.1-8b", tpot="mean=0.0004", **asked)
    assert not fast.without_price
    assert fast.considered > found.considered


def test_headline_states_how_many_devices_have_a_price():
    asked = {"rate": 1, "quants": ["fp8"], "layouts": [""]}
    some = plan("llama-3.1-8b", hardware=["h100-sxm", "rtx-pro-5000"], **asked)
    assert (some.priced, some.considered) == (1, 2)
    assert REPORT.headline(some).endswith(
        "1 of the 2 devices considered has a price, and only these are ranked; --by energy or --by devices ranks the "
        "others too."
    )
    none = plan("llama-3.1-8b", hardware=["rtx-pro-5000", "a30"], by="cost", **asked)
    assert "try --depreciation, --by energy or --by devices. 0 of the 2 devices considered have a price." in (
        REPORT.headline(none)
    )
    assert REPORT.tables(none)[0].title == "Devices that meet the targets"
    assert not {"USD/h", "bound"} & set(REPORT.tables(none)[0].head)
    watts = plan("llama-3.1-8b", hardware=["rtx-pro-5000", "a30"], **asked)
    assert REPORT.headline(watts).endswith(
        "Ranked by W at TDP, as no plan that meets the targets has a price; 0 of the 2 devices considered have one."
    )
    all_known = plan("llama-3.1-8b", hardware=["h100-sxm"], **asked)
    assert "considered" not in REPORT.headline(all_known)


@pytest.mark.slow("plans over many settings")
def test_default_criterion_depends_on_known_prices_and_powers():
    asked = {"rate": 1, "tpot": 0.05, "quants": ["fp8"]}
    assert plan("llama-3.1-8b", hardware=["rtx-pro-5000", "a30"], **asked).by is Criterion.ENERGY
    bought = plan("llama-3.1-8b", hardware=["rtx-pro-5000", "rtx-4080"], years=3, **asked)
    assert bought.best.hardware.name == "rtx-4080"
    by_devices = plan("llama-3.1-8b", hardware=["l40s", "h100-sxm"], by="devices", **asked)
    assert by_devices.best.devices == 1
    priceless = plan("llama-3.1-8b", hardware=["rtx-pro-5000"], by="cost", **asked)
    assert priceless.best is None
    assert priceless.within_targets


def test_experts_and_latent_attention_are_planned_for():
    found = plan(
        "deepseek-v3", hardware=["h200-sxm", "mi325x"], rate=2, tpot=0.05, layouts=["tp=8", "dp=8 ep=8"], quants=["fp8"]
    )
    assert {str(one.layout) for one in found.within_targets} >= {"tp=8"}


def test_progress_counts_combinations_once():
    told = []
    found = plan(
        "llama-3.1-8b", hardware=["l4", "l4"], rate=1, layouts=["", "tp=2"], quants=["fp8", "KV8", "fp8"],
        progress=lambda *at: told.append(at),
    )  # fmt: skip
    assert told == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert found.combinations == 2 * (16 + 8) * 64  # what is given twice is tried once


def test_the_sizes_that_are_searched():
    assert (len(LAYOUTS), len(QUANTS), len(BATCHES)) == (8, 8, 64)
    assert list(BATCHES) == sorted(BATCHES)


ASKED = [
    "plan",
    "llama-3.1-8b",
    "--rate",
    "5",
    "--ttft",
    "0.2",
    "--tpot",
    "0.02",
    "--hardware",
    "h100-sxm,rtx-pro-5000,p100-sxm2",
]


@pytest.mark.slow("plans over many settings")
def test_placements_too_large_for_memory_do_not_change_the_plan(monkeypatch):
    asked = {"hardware": ["t4", "l4", "rtx-4090", "h100-sxm", "trainium1"], "max_devices": 8, **GOALS}
    found = plan("llama-3.1-70b", **asked)
    whole, tried = search.placements, []

    def every(one, devices, load, known, *, include_too_large):
        tried.append(include_too_large)
        return whole(one, devices, load, known, include_too_large=True)

    monkeypatch.setattr(search, "placements", every)
    assert plan("llama-3.1-70b", **asked).to_dict() == found.to_dict()
    assert {one.hardware.name for one in found.rejected} >= {"t4"}
    assert not any(tried)  # nothing is left to look at a second time
    assert all(one.reason for one in found.rejected)


@pytest.mark.parametrize("model", ["llama-3.1-8b", "deepseek-v3"])
@pytest.mark.parametrize(
    "layout",
    ["tp=4", "pp=2", "tp=2 pp=2", "tp=16", "tp=2 dp=2", "tp=2 cp=2", "tp=4 ep=4", "dp=16 ep=16", "tp=2 dp=8 ep=16"],
)
def test_a_graph_with_other_links_is_that_of_the_device_that_has_them(model, layout):
    devices = [load_hardware(name) for name in ("h100-sxm", "l40s", "gaudi-3", "tpu-v5e", "rtx-3090")]
    one = Setting.of(model, devices[0], layout=layout)
    first = placement._Lowered.of(one, devices[0])
    for device in devices[1:]:
        assert first.relinked(Network.of(device, one.layout)) == placement._Lowered.of(one, device)


def test_one_of_something_is_not_called_several():
    found = plan("llama-3.1-8b", rate=1, gen=1, hardware=["h100-sxm", "t4"], max_devices=1, by="devices")
    page = REPORT.html(found)  # without a figure of times per token, of which there are none
    assert "front-ttft" in page
    assert "front-tpot" not in page
    for said in (
        REPORT.text(found),
        REPORT.markdown(found),
        re.sub(r"(?s)<script.*?</script>", "", page),
    ):
        assert re.search(r"\b1 output token\b", said)
        assert not re.search(r"\b1 (devices|tokens|copies|settings)\b", said)


def test_what_if_prices_apply_to_the_named_device_only():
    asked = {"hardware": ["h100-sxm", "l40s", "nvidia-l4"], "quants": ["fp8"], "rate": 1, "bound": True}
    changes = ["l40s:price.cloud=0.5 USD/h", "l4:price.cloud=9 USD/h", "nvidia-l4:power.tdp=2x"]
    found = plan("llama-3.1-8b", hardware_set=changes, **asked)
    paid = {one.hardware.name: (one.usd_per_h / one.devices, one.hardware.changes) for one in found.within_targets}
    assert paid == {
        "h100-sxm": (3.2, ()),
        "l40s": (0.5, ("price.cloud=0.5 USD/h",)),
        "l4": (9.0, ("price.cloud=9 USD/h", "power.tdp=2x")),
    }
    assert found.best.hardware.name == "l40s"
    assert found.simulation(found.best)["hardware_set"] == ("price.cloud=0.5 USD/h",)
    assert f"devices, what if {', '.join(changes)}. Lowest in USD/h: 1 x l40s" in REPORT.headline(found)
    for changes, said in (
        (["t4:price.cloud=1 USD/h"], "t4:price.cloud=1 USD/h: t4 must be one of the devices given"),
        ([":price.cloud=1 USD/h"], "no hardware ''"),
    ):
        with pytest.raises(InputError, match=f"^{said}"):
            plan("llama-3.1-8b", hardware_set=changes, **asked)


@pytest.fixture(scope="module")
def small():
    """The plan of ASKED."""
    asked = {"rate": 5, "hardware": ["h100-sxm", "rtx-pro-5000", "p100-sxm2"]}
    return plan("llama-3.1-8b", ttft="p90=0.2", tpot="p90=0.02", confirm=True, **asked)


def test_the_report(capsys, small):
    assert main(ASKED) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert captured.out == REPORT.text(small)
    assert max(map(len, captured.out.splitlines())) <= 80
    words = " ".join(captured.out.split())
    for said in (
        "Lowest in USD/h: 1 x h100-sxm, published: 3.2 USD/h, 0.694 USD per million output tokens. Simulated, p90 ",
        "Pareto front (",
        "Cloud prices of 2026-10.",
        (
            "Not ranked, because their files have no price: rtx-pro-5000. --hardware-set "
            "'rtx-pro-5000:price.cloud=3 USD/h' sets it, as does a device file of your own (`llmviewer hardware NAME "
            "--format yaml`)."
        ),
    ):
        assert said in words


def test_the_formats(small):
    document = json.loads(REPORT.json(small))
    assert document["best"]["hardware"] == "h100-sxm"
    assert document["inputs"]["ttft_s"] == 0.2
    assert all(row["factor"] is None for row in document["candidates"])
    rows = list(csv.DictReader(io.StringIO(REPORT.csv(small))))
    assert len(rows) == len(document["candidates"]) + len(document["rejected"])
    assert rows[0]["rank"] == "1"
    assert any(row["pareto"] == "True" for row in rows)
    page = REPORT.html(small)
    assert 'id="front-tpot"' in page
    assert 'id="front-ttft"' in page
    assert "Lowest in USD/h" in page


BAD = [
    (["--rate", "0"], "rate must be a positive number of requests a second; got 0"),
    (
        ["--ttft", "-1"],
        "'500 ms' or '2 h', of a percentile or the mean, p99=0.5 or mean=0.5; got '-1'",
    ),
    (
        ["--tpot", "nan"],
        "'500 ms' or '2 h', of a percentile or the mean, p99=0.5 or mean=0.5; got 'nan'",
    ),
    (
        ["--tpot", "inf"],
        "'500 ms' or '2 h', of a percentile or the mean, p99=0.5 or mean=0.5; got 'inf'",
    ),
    (["--hardware", "h1000"], "no hardware 'h1000'"),
    (["--layout", "xp=2"], "layout 'xp=2': must be degrees of"),
    (["--layout", "tp=3"], "tp=3 does not divide the 32 heads of q_proj in layer; try tp=2 or 4"),
    (["--layout", "tp=2", "--layout", "tp=3"], "tp=3 does not divide the 32 heads of q_proj in layer; try tp=2 or 4"),
    (["--hardware-set", "memory.bandwith=2x"], "memory.bandwith"),
    (["--layout", "tp=32"], "--max-devices must be at least 32, which the layouts need; got 16"),
    (["--quant", "W99"], "bits must be 16, 32 or between 1 and 8"),
    (["--max-devices", "0"], "--max-devices must be a whole number of at least 1; got 0"),
    (["--max-devices", "1000000"], "--max-devices must be at most 100000; got 1000000"),
    (["--gen", "0"], "gen must be a whole number of at least 1; got 0"),
    (["--prompt", "12.5"], "--prompt must be a whole number of tokens; got '12.5'\n"),
    (["--prompt", "sharegpt4"], "equal requests; sharegpt4 has mean 2666, and llmviewer simulate takes it as "),
    (["--gen", "uniform:100-300"], "uniform:100-300 has mean 200, and llmviewer simulate takes it as --gen-leng"),
    (["--depreciation", "0"], "--depreciation must be a positive number; got 0"),
    (["--bound", "--engine", "vllm"], "without library, engine and profiles; leave them out"),
    (["--library", "vlm"], "no kernels of a library 'vlm' were measured; did you mean vllm?"),
    (["--engine", "vlm"], "no engine 'vlm'; did you mean vllm"),
    (["--engine", "vllm", "--library", "trtllm"], "library must be left out beside engine vllm"),
    (["-o", "plan.docx"], "plan.docx: must end in one of"),
]


@pytest.mark.parametrize(("options", "said"), BAD, ids=lambda value: " ".join(value) if isinstance(value, list) else "")
def test_mistakes_get_one_line(capsys, options, said):
    command, usual = ASKED[:2], zip(ASKED[2::2], ASKED[3::2], strict=True)
    assert main([*command, *(text for pair in usual if pair[0] not in options for text in pair), *options]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("llmviewer: ")
    assert said in captured.err
    assert captured.err.count("\n") == 1


def test_devices_may_be_named_in_several_options_or_in_one(capsys):
    once, twice = ([*ASKED[:-1], names, "--format", "json"] for names in ("h100-sxm,l40s", "h100-sxm"))
    found = []
    for asked in (once, [*twice, "--hardware", "l40s"]):
        assert main([*asked, "--quant", "fp8", "--layout", ""]) == 0
        found.append(json.loads(capsys.readouterr().out)["considered"])
    assert found == [2, 2]
    assert main([*ASKED[:-1], ","]) == 2
    assert "hardware: nothing to plan with" in capsys.readouterr().err


def test_encoder_models_and_invalid_options_are_refused():
    with pytest.raises(InputError, match="t5-base does not generate token by token"):
        plan("t5-base", rate=1, hardware=["l4"])
    with pytest.raises(InputError, match="batches must have a number above 1"):
        plan("llama-3.1-8b", rate=1, hardware=["l4"], batches=[1])
    with pytest.raises(InputError, match="by must be one of cost, energy, devices; got 'beauty'"):
        plan("llama-3.1-8b", rate=1, hardware=["l4"], by="beauty")


@pytest.mark.parametrize(("bound", "many"), [(False, 20), (True, 40)])
def test_bits_are_given_up_only_where_that_saves(bound, many):
    asked = {"rate": 4, "ttft": 0.5, "tpot": 0.03, "hardware": ["h100-sxm"], "layouts": [""], "bound": bound}
    lossy = ["W4A8g128", "W8A8", "W4A16g128", "KV8"]
    found = plan("llama-3.1-8b", quants=[*lossy, "published"], **asked)
    assert [one.quant for one in found.within_targets] == ["published", "KV8", "W8A8", "W4A16g128", "W4A8g128"]
    assert len({one.usd_per_h for one in found.within_targets}) == 1
    assert (found.best.quant, found.cheapest_at_bound.quant) == ("published", "published")
    assert found.best.tpot_s > found.within_targets[-1].tpot_s
    asked |= {"rate": many}
    more, fewer = (
        plan("llama-3.1-8b", quants=quants, **asked).best for quants in (["published"], ["published", "fp8"])
    )
    assert (more.devices, fewer.devices, fewer.quant) == (2, 1, "fp8")


def test_a_single_batch_may_be_tried():
    found = plan("llama-3.1-8b", rate=0.5, hardware=["h100-sxm"], quants=["published"], batches=[8], bound=True)
    assert found.best
    assert found.best.limit == 8
    assert not plan("llama-3.1-8b", rate=50, hardware=["h100-sxm"], batches=[8], max_devices=1, bound=True).best


def test_rejection_for_rate_states_a_rate_below_the_requested_one():
    """Steps that are always full serve more than a steady state sustains, in which some are not."""
    asked = {"hardware": ["l4"], "layouts": ["tp=4 pp=2"], "quants": ["fp8KV8"], "prompt": 1024, "gen": 256}
    (full,) = plan("llama-3.1-8b", rate=15, max_devices=8, **asked).rejected
    rate = 0.98 * full.max_rate
    (slow,) = plan("llama-3.1-8b", rate=rate, max_devices=8, **asked).rejected
    assert slow.factor == full.factor == "rate"
    assert 0.8 * rate < slow.max_rate < rate
    assert slow.reason.endswith(f"requests/s on 8 devices; {rate:.4g} requested")
    (able,) = plan("llama-3.1-8b", rate=0.99 * slow.max_rate, max_devices=8, **asked).within_targets
    assert able.rate_within == pytest.approx(slow.max_rate, rel=0.01)


def test_the_batch_limit_of_the_closed_form_is_not_called_that_of_the_server():
    found = plan("llama-3.1-8b", rate=4, hardware="h100-sxm", engine="vllm", confirm=True)
    text = " ".join(REPORT.text(found).split())
    assert found.best.limit < found.recommended.run.max_batch
    assert f"(batch limit {found.best.limit})" in text
    assert f"max_num_seqs {found.recommended.run.max_batch}, that of vLLM" in text
    assert "< max_num_seqs" not in text
