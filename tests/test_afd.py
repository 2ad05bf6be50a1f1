"""Attention on one kind of device, experts on another: what goes between them, and how long a step takes."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmviewer import afd, afd_splits
from llmviewer.analyzing.afd import Busy, expert_operators
from llmviewer.cli import main
from llmviewer.errors import InputError
from llmviewer.setting import Setting
from llmviewer.workload import Workload

from .cases import first_fast

NODES = ["scale_out.bandwidth=50 GB/s"]


def _found(**changes):
    question = {"attention_layout": "dp=4", "expert_devices": 8, "batch": [64, 256], "hardware_set": NODES, **changes}
    return afd("mixtral-8x7b", "h100-sxm", "h100-sxm", **question)


# By hand.


def test_dispatch_and_collect_times_equal_bytes_over_bandwidth():
    found = _found(micro_batches=1)
    each = 32 * 4096 * 2  # layers, hidden, bytes
    assert found.copies == pytest.approx(2)  # experts, of which every device has one
    assert found.bound.dispatch == pytest.approx([n * each * max(2 / 4, 2 / 8) / 50e9 for n in (64, 256)])
    assert found.bound.collect == pytest.approx(found.bound.dispatch)


def test_a_token_goes_once_to_a_device_with_several_of_its_experts():
    found = _found(expert_devices=2, micro_batches=1)
    reached = 1 - 6 / 28  # of 28 pairs of eight experts, 6 are of the four that a device does not have
    assert found.copies == pytest.approx(2 * reached)
    assert found.bound.dispatch[0] == pytest.approx(64 * 32 * 4096 * 2 * max(2 * reached / 4, reached) / 50e9)


def test_tokens_go_in_the_format_of_the_experts_operands_and_come_back_in_16_bits():
    found = _found(quant="fp8", micro_batches=1)
    assert found.bound.collect / found.bound.dispatch == pytest.approx(2)


def test_link_latency_delays_a_step_without_adding_link_busy_time():
    plain, late = (_found(micro_batches=1, hardware_set=[*NODES, *more]) for more in ([], ["scale_out.latency=50 us"]))
    waits = 32 * 2 * 50e-6  # layers, ways
    assert late.bound.alone - plain.bound.alone == pytest.approx([waits, waits])
    assert late.bound.links == pytest.approx(plain.bound.links)
    assert late.expected.expected.alone - plain.expected.expected.alone == pytest.approx([32 * 2 * 23e-6] * 2)
    assert late.expected.expected.dispatch == pytest.approx(late.bound.dispatch / 0.87)


def test_shared_experts_and_routers_stay_with_attention():
    block = next(b for b in Setting.of("deepseek-v3", "h200-sxm").decode_graph.blocks if b.name == "moe")
    apart = [op.name for op in expert_operators(block)]
    assert apart == ["permute", "expert_gate_proj", "expert_up_proj", "expert_act", "expert_down_proj", "combine"]


def test_step_time_is_the_largest_busy_time():
    times = Busy(**{
        name: np.array([value])
        for name, value in {"attention": 3, "experts": 5, "dispatch": 1, "collect": 2, "alone": 4}.items()
    })  # fmt: skip
    assert (times.step_s, times.limits) == ([5], ["experts"])


# Laws.


@pytest.mark.parametrize("name", ["mixtral-8x7b", "deepseek-v3", "gpt-oss-120b", "qwen3-235b-a22b", "jamba-v0.1"])
def test_attention_and_expert_sides_sum_to_one_device(name):
    free = ["scale_out.bandwidth=1e24 B/s"]
    found = afd(name, "h200-sxm", "h200-sxm", batch=[1, 64], micro_batches=1, hardware_set=free)
    setting = Setting.of(name, "h200-sxm")
    whole = setting.decode_plan.time_s(Workload.decode(batch=np.array([1.0, 64.0]), kv_len=4096))
    assert found.bound.attention + found.bound.experts == pytest.approx(whole)
    assert found.bound.step_s == pytest.approx(whole)
    held = setting.footprint.stages[0].weight_bytes
    weights = [side.footprint.stages[0].weight_bytes for side in (found.attention, found.experts)]
    assert weights == [held, held]  # of which each side has a part
    cache = setting.footprint.parts(batch=1, prompt=4096, gen=0)[1]
    assert found.attention_bytes[0] + found.expert_bytes[0] == pytest.approx(held + cache, rel=2e-3)  # and activations


@pytest.mark.parametrize("changes", [{}, {"expert_skew": 0.8}, {"kv_len": 100}, {"attention_layout": "tp=2 dp=2"}])
def test_the_number_of_micro_batches_is_the_best_of_all(changes):
    best = _found(**changes)
    each = [_found(micro_batches=n, **changes).likely.step_s for n in range(1, 9)]
    assert best.likely.step_s == pytest.approx(np.min(each, axis=0))
    assert list(best.micro_batches) == [1 + n for n in np.argmin(each, axis=0)]


def test_there_are_no_more_micro_batches_than_sequences():
    found = _found(batch=np.array([1, 3, 64]), micro_batches=4)
    assert list(found.micro_batches) == [1, 3, 4]


def test_expected_step_time_and_interval_are_not_below_the_bound():
    found = _found(batch=[1, 8, 64, 512, 4096])
    ends = [found.expected.low, found.expected.expected, found.expected.high]
    for faster, slower in zip([found.bound, *ends], ends, strict=False):
        assert np.all(faster.step_s <= slower.step_s * (1 + 1e-9))


def test_skew_sends_more_to_the_busiest_device():
    even, skewed = (_found(expert_skew=skew, micro_batches=1, attention_layout="dp=64") for skew in (0, 1.0))
    assert np.all(skewed.bound.dispatch > even.bound.dispatch)
    assert np.all(skewed.bound.experts >= even.bound.experts * (1 - 1e-9))


# Against a schedule worked out event by event.


def _scheduled(stages, parts, layers, steps, latency=0):
    """Time from one step to the next when every part takes the first place that is free, in turns; on its way it is
    `latency` more, which keeps no place.
    """
    free = [0.0] * len(stages)
    ready = [0.0] * parts
    ends = []
    for _ in range(steps):
        for _ in range(layers):
            for part in range(parts):
                for place, time in enumerate(stages):
                    free[place] = max(ready[part], free[place]) + time
                    ready[part] = free[place] + latency * (place % 2)
        ends.append(max(ready))
    return (ends[-1] - ends[steps // 2 - 1]) / (steps - steps // 2)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 20), min_size=4, max_size=4), st.integers(1, 8), st.integers(1, 6), st.integers(0, 9))
def test_alternating_micro_batches_reach_the_bound(stages, parts, layers, latency):
    names = ("attention", "dispatch", "experts", "collect")
    whole = {name: np.array([parts * layers * time]) for name, time in zip(names, stages, strict=True)}
    times = Busy(**whole, alone=np.array([layers * (sum(stages) + 2 * latency)]))
    assert _scheduled(stages, parts, layers, 40, latency) == pytest.approx(float(times.step_s[0]))


# Splits of devices.


def test_the_best_split_is_that_of_all_tried_one_by_one():
    """All splits of 9 devices, with every batch; the search takes batches between which little changes."""
    asked = {"hardware_set": NODES, "kv_len": 16384}
    found = afd_splits("mixtral-8x7b", "h100-sxm", "h100-sxm", devices=9, tpot=0.03, **asked)
    most = {}
    for many in (1, 2, 4, 8):
        for tp in (1, 2, 4, 8):
            if (9 - many) % tp == 0:
                layout = {"attention_layout": f"tp={tp} dp={(9 - many) // tp}", "expert_devices": many}
                one = _found(**asked, **layout, batch=np.arange(1, 120) * ((9 - many) // tp))
                able = one.fits & (one.likely.step_s <= 0.03)
                most[f"{one.attention.layout}", many] = np.max(one.tokens_per_s, where=able, initial=0)
    assert found.tried == len(most)
    for split in found.splits:
        row = split.row()
        best = most[row["attention_layout"], row["expert_devices"]]
        assert 0.97 * best <= split.tokens_per_s <= best * (1 + 1e-5)
    assert found.splits[0].tokens_per_s >= 0.97 * max(most.values())


@pytest.mark.slow("tries every split")
def test_xdeepserve_is_not_above_the_bound():
    """arXiv:2508.02520, abstract: 2,400 tokens a second and Ascend 910C, of 384, within about 50 ms."""
    asked = {"devices": 384, "tpot": 0.05, "redundant_experts": 32, "quant": "W8A8", "link": "scale-up", "bound": True}
    best = afd_splits("deepseek-v3", "ascend-910c", "ascend-910c", **asked).splits[0]
    assert best.tokens_per_s == pytest.approx(5001, rel=1e-3)  # as the page has it
    assert best.tokens_per_s > 2400


@pytest.mark.parametrize("tpot", first_fast([None, 0.03, 0.1], "tries every split"))
def test_splits_use_all_devices_and_meet_the_tpot_target(tpot):
    found = afd_splits("qwen3-30b-a3b", "h100-sxm", "h20-sxm", devices=12, tpot=tpot, redundant_experts=16)
    speeds = [split.tokens_per_s for split in found.splits]
    assert speeds == sorted(speeds, reverse=True)
    for split in found.splits:
        sides = split.result.attention.layout.devices, split.result.experts.layout.devices
        assert sum(sides) == 12
        assert 144 % sides[1] == 0  # experts and copies
        assert split.result.fits[split.place]
        assert tpot is None or split.result.likely.step_s[split.place] <= tpot


def test_a_report_of_splits(tmp_path, capsys):
    asked = ["afd", "mixtral-8x7b", "h100-sxm", "l40s", "--devices", "10", "--tpot", "0.05"]
    assert main(asked) == 0
    text = capsys.readouterr().out
    assert text.startswith("Mixtral 8x7B on 10 devices: attention on h100-sxm, experts on l40s: decode")
    assert max(map(len, text.splitlines())) <= 80
    for suffix in (".json", ".csv"):
        assert main([*asked, "-o", str(tmp_path / f"report{suffix}")]) == 0
    document = json.loads((tmp_path / "report.json").read_text())
    rows = list(csv.DictReader((tmp_path / "report.csv").read_text().splitlines()))
    assert [int(row["expert_devices"]) for row in rows] == [one["expert_devices"] for one in document["splits"]]
    assert document["inputs"]["tpot"] == 0.05


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (["--tpot", "0.05"], "--tpot is for --devices, which finds the best split"),
        (["--devices", "9", "--batch", "64"], "--batch and --devices exclude each other; leave one out"),
        (["--devices", "1"], "--devices must be a whole number of at least 2; got 1"),
        (
            ["--devices", "9", "--tpot", "0.0001"],
            "no split of 9 devices fits in memory with a step of at most 0.0001 s; give more devices or a longer tpot",
        ),
    ],
)
def test_models_that_cannot_be_split_are_refused(more, told, capsys):
    assert main(["afd", "mixtral-8x7b", "h100-sxm", "h100-sxm", *more]) == 2
    assert capsys.readouterr().err == f"llmviewer: {told}\n"


# What a user sees.


def test_report_states_the_balanced_device_ratio(capsys):
    assert main(["afd", "deepseek-v3", "h200-sxm", "h20-sxm", "--expert-devices", "32", "--quant", "fp8"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("DeepSeek-V3: attention on 8 x h200-sxm, experts on 32 x h20-sxm: decode at\ncontext 4096")
    assert "expert devices per attention device would balance" in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 80


def test_report_formats_agree(tmp_path, capsys):
    asked = ["afd", "mixtral-8x7b", "h100-sxm", "l40s", "--batch", "64,256", "-o"]
    for suffix in (".json", ".csv", ".md", ".html"):
        assert main([*asked, str(tmp_path / f"report{suffix}")]) == 0
    capsys.readouterr()
    document = json.loads((tmp_path / "report.json").read_text())
    rows = list(csv.DictReader((tmp_path / "report.csv").read_text().splitlines()))
    assert [float(row["bound_step_s"]) for row in rows] == [step["bound_step_s"] for step in document["steps"]]
    assert [step["batch"] for step in document["steps"]] == [64, 256]
    assert "Mixtral" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize(
    ("question", "told"),
    [
        ({"attention_layout": "dp=2 ep=2"}, "attention_layout must have degrees of tp and dp only; got dp=2 ep=2"),
        ({"expert_devices": 3}, "expert_devices must divide the 8 experts; got 3; try 2 or 4"),
        ({"expert_devices": 0}, "expert_devices must be a whole number of at least 1; got 0"),
        ({"batch": [0]}, "batch must be a whole number of at least 1; got 0"),
        (
            {"link": "scale-up"},
            "link must be scale-out unless both sides fit in one scale-up domain; got 4 x h100-sxm and 8 x h100-sxm",
        ),
        ({"link": "air"}, "link must be one of scale-out, scale-up; got 'air'"),
    ],
)  # fmt: skip
def test_invalid_arguments_are_refused(question, told):
    with pytest.raises(InputError) as error:
        _found(**question)
    assert str(error.value) == told


def test_a_model_without_experts_is_refused():
    with pytest.raises(InputError, match=r"^llama-2-7b has no routed experts to put on separate devices$"):
        afd("llama-2-7b", "h100-sxm", "h100-sxm")
