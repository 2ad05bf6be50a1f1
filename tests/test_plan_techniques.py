"""Plans with speculative decoding or prefix caching: compared with single settings, and simulated."""

import json
import re

import numpy as np
import pytest

from llmviewer.cli import main
from llmviewer.comparing.fleet import WorkCache
from llmviewer.devices.files import load_hardware
from llmviewer.errors import InputError
from llmviewer.memory import weight_bytes
from llmviewer.reports.plans import REPORT
from llmviewer.serving import fleet_times
from llmviewer.serving.load import Load
from llmviewer.serving.outcome import Goals
from llmviewer.serving.placement import placements
from llmviewer.serving.simulation import simulate
from llmviewer.serving.steps import Steps
from llmviewer.setting import Setting
from llmviewer.workload import Spans

from .mean_plans import plan

DRAFT = "speculative:draft=qwen2.5-0.5b,gamma=3,alpha=0.7"
PREFIX = "prefix-cache:tokens=600"
DEVICES = ("h100-sxm", "a100-sxm-80gb", "rtx-4090")


def laid(model, layout, *techniques):
    """A setting, its load and what it is on all devices."""
    one = Setting.of(model, DEVICES[0], layout=layout, techniques=techniques)
    steps = Steps(one)
    load = Load(
        rate=1.0, prompt=1000, gen=200, cached_tokens=float(steps.cached_tokens(1000)),
        shared_prefix_tokens=float(steps.shared_prefix_tokens(1000)),
        acceptance_probabilities=steps.acceptance_probabilities, width=steps.width,
        goals=Goals(), limits=np.array([1.0, 4.0, 32.0]) * one.layout.dp,
        max_devices=16, years=None,
    )  # fmt: skip
    devices = [load_hardware(name) for name in DEVICES]
    return load, list(placements(one, devices, load, WorkCache(), include_too_large=True))


@pytest.mark.parametrize(
    ("model", "layout"), [("llama-3.1-8b", ""), ("llama-3.1-8b", "tp=2"), ("deepseek-v2-lite", "")]
)
@pytest.mark.parametrize("techniques", [(DRAFT,), ("eagle:nodes=5", PREFIX), ("retrieval",), ("medusa",), ("sparsity",),
                                        ("self-speculative", PREFIX), ()])  # fmt: skip
@pytest.mark.parametrize("expected", [False, True])
def test_vectorized_device_times_equal_those_of_single_devices(model, layout, techniques, expected):
    """Expected times are taken here as they are, and there as a line between some shapes."""
    load, found = laid(model, layout, *techniques)
    near = {"rel": 0.06 if expected else 1e-9}
    for own in found:
        settings = [Setting.of(model, device, layout=layout, techniques=techniques) for device in own.devices]
        times = own.bounds(load)
        if expected:
            kernels = {one.hardware.name: one.kernels for one in settings}
            (times,) = fleet_times.expected([(own, own.runnable)], load, kernels.__getitem__)
        for place, one in enumerate(settings):
            steps = Steps(one, expected)
            batch = load.limits / one.layout.dp
            assert times.step[place] == pytest.approx(steps.decode_s(batch=batch, kv_len=load.middle), **near)
            read = Spans(batch=1.0, q_len=load.new, kv_len=1000.0)
            assert times.single_prefill[place] == pytest.approx(float(steps.mixed_s((read,))), **near)


@pytest.mark.parametrize(
    ("model", "drafts"), [("deepseek-v2-lite", "retrieval:length=2,tau=2"), ("deepseek-v3", "mtp")]
)
def test_ranks_that_wait_for_each_other_draft_in_plans_as_in_steps(model, drafts):
    """One of them reads, and all work on the tokens that its experts get."""
    layout = "dp=8 ep=8"
    load, found = laid(model, layout, drafts, PREFIX)
    for own in found:
        times = own.bounds(load)
        for place, device in enumerate(own.devices):
            steps = Steps(Setting.of(model, device, layout=layout, techniques=[drafts]))
            each = steps.decode_s(batch=load.limits / 8, kv_len=load.middle)
            assert times.step[place] == pytest.approx(each, rel=1e-9)
            read = Spans(batch=1.0, q_len=load.new, kv_len=1000.0)
            assert times.single_prefill[place] == pytest.approx(steps.step_s([(read,), *[()] * 7]), rel=1e-3)


def test_plan_memory_counts_the_draft_model_and_one_shared_prefix():
    bare, drafted, common, own = (
        laid("llama-3.1-8b", "", *techniques)[1][0].needed.prefill_and_decode
        for techniques in ((), (DRAFT,), (PREFIX,), ("prefix-cache:tokens=600,common=false",))
    )
    draft = Setting.of("qwen2.5-0.5b", DEVICES[0], quant="W16A16")
    assert drafted[0] - bare[0] > weight_bytes(draft.graph)
    token = float(Steps(Setting.of("llama-3.1-8b", DEVICES[0])).cache_bytes(1.0))
    assert own[-1] - common[-1] == pytest.approx(31 * 600 * token)
    assert own[-1] <= bare[-1]  # as less is read at a time


@pytest.mark.parametrize("techniques", [[DRAFT], [PREFIX], ["retrieval:tau=2", "prefix-cache:hit=0.8"]])
def test_simulation_of_the_best_plan_has_its_planned_times(techniques):
    found = plan(
        "qwen2.5-7b", rate=12, hardware=["h100-sxm"], layouts=[""], quants=["published"], techniques=techniques,
        max_devices=1, bound=True,
    )  # fmt: skip
    run = simulate(**found.simulation(found.best), requests=600)
    assert np.mean(run.tpot_s) == pytest.approx(found.best.tpot_s, rel=0.05)
    assert np.mean(run.ttft_s) == pytest.approx(found.best.ttft_s, rel=0.08)
    assert run.closed.tpot_s == pytest.approx(found.best.tpot_s, rel=0.03)


def test_cached_prefixes_need_fewer_devices():
    asked = {"rate": 30, "ttft": 0.5, "prompt": 4000, "gen": 50, "hardware": ["l40s"], "layouts": [""], "by": "devices",
             "quants": ["fp8"], "bound": True}  # fmt: skip
    bare, hit = (plan("llama-3.1-8b", **asked, techniques=each).best for each in ((), ("prefix-cache:hit=0.75",)))
    assert hit.copies < bare.copies


def test_a_pipeline_is_left_out_where_passes_are_arranged():
    asked = {"rate": 1, "hardware": ["h100-sxm"], "quants": ["published"], "max_devices": 2, "bound": True}
    assert {one.layout.pp for one in plan("qwen2.5-7b", **asked).within_targets} == {1, 2}
    assert {one.layout.pp for one in plan("qwen2.5-7b", **asked, techniques=["retrieval"]).within_targets} == {1}
    assert {one.layout.pp for one in plan("qwen2.5-7b", **asked, techniques=[PREFIX]).within_targets} == {1, 2}
    with pytest.raises(InputError, match=r"^retrieval: is not supported in a pipeline"):
        plan("qwen2.5-7b", **asked, layouts=["pp=2"], techniques=["retrieval"])


@pytest.mark.parametrize(("text", "said"), [
    ("beam", r"^beam changes the passes of a request"),
    ("speculative:draft=qwen2.5-0.5b", r"^speculative: give alpha"),
    ("mtp", r"^mtp: qwen2.5-7b has no known multi-token prediction layers"),
    ("quantized:scheme=smoothquant", r"^quantized: sets .*, and plan tries precisions; give --quant"),
])  # fmt: skip
def test_techniques_that_cannot_be_planned_are_refused(text, said):
    with pytest.raises(InputError, match=said):
        plan("qwen2.5-7b", rate=1, hardware=["h100-sxm"], techniques=[text])


def test_plan_states_its_techniques_and_a_simulate_command(tmp_path, capsys):
    asked = ["plan", "qwen2.5-7b", "--rate", "4", "--hardware", "h100-sxm", "--quant", "published", "--layout", "",
             "--max-devices", "1", "--bound", "--with", PREFIX, "--with", "retrieval"]  # fmt: skip
    assert main([*asked, "-o", str(tmp_path / "found.json")]) == 0
    assert json.loads((tmp_path / "found.json").read_text())["inputs"]["techniques"] == [PREFIX, "retrieval"]
    capsys.readouterr()
    assert main(asked) == 0
    told = capsys.readouterr().out
    command = re.sub(r"\s*\\\n\s*", " ", told[told.index("  llmviewer simulate") :]).split()
    assert command.count("--with") == 2
    assert main([*command[1:], "--requests", "20"]) == 0
    assert PREFIX in REPORT.headline(
        plan(
            "qwen2.5-7b",
            rate=4,
            hardware=["h100-sxm"],
            layouts=[""],
            quants=["published"],
            techniques=[PREFIX],
            bound=True,
        )
    )


def test_cached_prefixes_are_planned_in_pipelines():
    load, found = laid("llama-3.1-8b", "pp=2", PREFIX)
    for own in found:
        times = own.bounds(load)
        for place, device in enumerate(own.devices):
            steps = Steps(Setting.of("llama-3.1-8b", device, layout="pp=2", techniques=[PREFIX]))
            assert times.single_prefill[place] == pytest.approx(
                float(steps.prefill_and_interval_s(1000.0, 600.0)[0]), rel=1e-9
            )
    asked = {"rate": 6, "requests": 200, "layout": "pp=2", "policy": "prefill-first", "bound": True}
    hit, bare = (simulate("llama-3.1-8b", "h100-sxm", **asked, techniques=each) for each in ([PREFIX], []))
    assert np.mean(hit.ttft_s) < 0.6 * np.mean(bare.ttft_s)
    assert np.mean(hit.ttft_s) == pytest.approx(hit.closed.ttft_s, rel=0.05)


def test_layouts_that_do_not_divide_a_draft_model_are_refused():
    asked = {"rate": 1, "hardware": ["h100-sxm"], "quants": ["published"], "max_devices": 8, "bound": True,
             "techniques": ["speculative:draft=llama-68m,alpha=0.6"]}  # fmt: skip
    assert {one.layout.tp for one in plan("llama-3.1-8b", **asked).within_targets} == {1, 2, 4}
    with pytest.raises(InputError, match=r"^llama-68m runs beside llama-3.1-8b in the same layout: tp=8 does not"):
        plan("llama-3.1-8b", **asked, layouts=["", "tp=8"])
