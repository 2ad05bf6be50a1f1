"""Operators placed on the host: bytes moved there, bytes over the link, and published decode speeds."""

from __future__ import annotations

import csv
from itertools import pairwise

import numpy as np
import pytest

from llmviewer.analyzing.analysis import analyze
from llmviewer.comparing.host_split import split
from llmviewer.devices.files import load_hardware
from llmviewer.errors import InputError
from llmviewer.memory import weight_bytes
from llmviewer.reports.analysis import REPORT as ANALYSIS
from llmviewer.reports.host_split import REPORT as SPLIT
from llmviewer.setting import Setting
from llmviewer.transforms.host import HostPlacement, parse_host_placement
from llmviewer.workload import Workload

from .oracle import make_cpus

CPU = "ryzen-9-7950x"
GPU = "rtx-4080"
STEP = Workload.decode(batch=1, kv_len=1001)


def setting(model="qwen3-30b-a3b", on_host="experts", **options):
    return Setting.of(model, GPU, **{"quant": "W4A16"} | options, host=CPU, on_host=on_host)


def rows(one, workload=STEP, phase="decode"):
    return one.plan_of(phase).estimate(workload).rows


def seconds(one, workload=STEP):
    """(on the device, on the host, on the link) of a decode step at the bound. [s]"""
    sides = [0.0, 0.0, 0.0]
    for row in rows(one, workload):
        side = 2 if row.operator.kind == "transfer" else 1 if row.operator.on_host else 0
        sides[side] += float(row.repeat * row.time_s)
    return sides


@pytest.mark.parametrize(
    ("text", "placement"),
    [
        ("experts=36", HostPlacement(experts=36)),
        ("layers=20,attention=4", HostPlacement(layers=20, attention=4)),
        ("", HostPlacement()),
    ],
)
def test_host_placements_round_trip(text, placement):
    assert parse_host_placement(text) == placement
    assert parse_host_placement(str(placement)) == placement
    assert str(parse_host_placement("experts")) == "experts"


@pytest.mark.parametrize(
    "text", ["expert", "experts=0", "experts=-1", "experts=1.5", "experts=2,experts=3", "experts=", "=3"]
)
def test_other_placements_are_refused(text):
    with pytest.raises(InputError, match=r"^on_host .*: must be layers, experts or attention"):
        parse_host_placement(text)


def test_experts_of_36_layers_read_their_weights_from_the_memory_of_the_host():
    """8 of 128 experts of 3 x 2048 x 768 weights of 4 bits, in 36 of 48 layers, at 83.2 GB/s."""
    one = setting(on_host="experts=36")
    weights = 36 * 8 * 3 * 2048 * 768 * 4 / 8
    on_host = sum(row.repeat * row.weight_bytes for row in rows(one) if row.operator.on_host)
    assert on_host == pytest.approx(weights)
    activations = sum(row.repeat * row.activation_bytes for row in rows(one) if row.operator.on_host)
    assert seconds(one)[1] == pytest.approx((weights + activations) / 83.2e9, rel=1e-6)


def test_a_token_crosses_the_link_to_experts_and_back_once_a_layer():
    """Its hidden state of 2048 x 2 bytes there, with the chosen experts, and back."""
    crossing = [row for row in rows(setting(on_host="experts=36")) if row.operator.kind == "transfer"]
    sizes = {row.operator.name: float(row.link_bytes) for row in crossing}
    assert sum(row.repeat for row in crossing) == 2 * 36
    assert sizes["combine_from_host"] == 2048 * 2
    assert 2048 * 2 <= sizes["permute_to_host"] <= 2048 * 2 + 8 * 8


def test_weights_of_the_host_are_not_in_the_memory_of_the_device():
    whole = Setting.of("qwen3-30b-a3b", GPU, quant="W4A16")
    part = setting(on_host="experts=36")
    moved = 36 * 128 * 3 * 2048 * 768 * 4 / 8
    assert weight_bytes(whole.graph) - weight_bytes(part.graph) == pytest.approx(moved)
    memory = analyze("qwen3-30b-a3b", GPU, quant="W4A16", host=CPU, on_host="experts=36").memory
    assert memory.host_bytes == pytest.approx(moved)
    assert memory.host_capacity_bytes == load_hardware(CPU).capacity


def test_all_layers_on_the_host_take_as_long_as_on_the_cpu_alone():
    host = sum(seconds(setting("llama-3.1-8b", "layers", engine="")))
    alone = Setting.of("llama-3.1-8b", CPU, quant="W4A16")
    layers = sum(
        float(row.repeat * row.time_s) for row in alone.decode_plan.estimate(STEP).rows if row.block.layers
    )  # fmt: skip
    assert seconds(setting("llama-3.1-8b", "layers"))[1] == pytest.approx(layers, rel=1e-6)
    assert host > layers


def test_attention_on_the_host_reads_its_cache_there():
    """2 x 8 key heads of 128 x 2 bytes for each of 1001 tokens, in 32 layers; a new row of them crosses the link."""
    one = setting("llama-3.1-8b", "attention")
    cache = 32 * 2 * 8 * 128 * 2
    assert sum(row.repeat * row.kv_bytes for row in rows(one) if row.operator.on_host) == pytest.approx(1001 * cache)
    (crossing,) = (row for row in rows(one) if row.operator.name == "attention_to_host")
    assert crossing.link_bytes == (32 * 128 + 2 * 8 * 128) * 2
    footprint = one.footprint
    assert footprint.parts(batch=1, prompt=1000, gen=1)[1] == 0
    assert footprint.offloaded_bytes("host", batch=1, prompt=1000, gen=1) == pytest.approx(1001 * cache)


def test_the_time_is_the_sum_of_both_sides_which_wait_for_each_other():
    one = setting(on_host="experts=20")
    assert sum(seconds(one)) == pytest.approx(float(one.decode_plan.time_s(STEP)))


def test_more_layers_on_the_slower_side_take_longer_and_leave_more_memory():
    settings = [setting(on_host=f"experts={n}") for n in (0, 12, 24, 36, 48) if n]
    times = [float(one.decode_plan.time_s(STEP)) for one in settings]
    weights = [weight_bytes(one.decode_graph) for one in settings]
    assert all(first < second for first, second in pairwise(times))
    assert all(first > second for first, second in pairwise(weights))


def test_llama_cpp_streams_weights_of_prompts_to_the_device():
    """Its products of prompts run on the device: nothing but attention is on the host."""
    prompt = Workload.prefill(batch=1, prompt=512)
    streamed = setting(on_host="experts", quant="Q4_K_M", engine="llama.cpp")
    assert not any(row.operator.on_host for row in rows(streamed, prompt, "prefill"))
    weights = sum(
        row.repeat * row.weight_bytes for row in rows(streamed, prompt, "prefill") if row.operator.kind == "experts"
    )
    assert streamed.plan.time_s(prompt) >= weights / load_hardware(GPU).fact("host.bandwidth")
    assert any(row.operator.on_host for row in rows(setting(on_host="experts"), prompt, "prefill"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"on_host": "experts"}, "on_host and host_set need a host"),
        ({"host": CPU}, "on_host must say what the host computes"),
        ({"host": "tpu-v5e", "on_host": "layers=9"}, "host must be a CPU, or a second GPU; got tpu-v5e, a "),
        ({"host": CPU, "on_host": "experts"}, "on_host 'experts': the model has no experts"),
        ({"host": CPU, "on_host": "layers=2", "tp": 2}, "host: launches run on the host of one device"),
    ],
)
def test_invalid_host_placements_are_refused(options, message):
    with pytest.raises(InputError, match=f"^{message}"):
        analyze("llama-3.1-8b", "rtx-4090", **options)


def test_a_host_without_room_does_not_fit():
    memory = analyze("deepseek-v3", "rtx-4090", quant="Q4_K_M", host=CPU, on_host="experts").memory
    assert memory.total_bytes < memory.capacity_bytes
    assert not memory.fits


# Published decode speeds


def test_stored_factors_equal_a_fresh_fit():
    factors = make_cpus.fit([one for one in make_cpus.measured() if one.fitted])
    made = make_cpus.profile()["backends"]
    assert [one["weights"] for one in made] == pytest.approx([factors[title] for title in make_cpus.CLASSES], rel=1e-2)


def test_cpus_that_were_not_fitted_are_expected_within_a_fifth_in_the_median():
    """Eleven CPUs, of which five were fitted; the others are within the interval in three of four cases at least."""
    passes = make_cpus.measured()
    factors = make_cpus.fit([one for one in passes if one.fitted])
    others = [one for one in passes if not one.fitted]
    ratios = np.array(make_cpus.ratios(others, factors))
    assert {one.host for one in others}.isdisjoint({one.host for one in passes if one.fitted})
    assert np.median(np.abs(1 / ratios - 1)) < 0.2
    low, high = make_cpus.INTERVAL
    assert np.mean((ratios > low) & (ratios < high)) >= 0.75


def test_no_published_decode_step_beats_the_bound():
    with make_cpus.ROWS.open() as file:
        for row in csv.DictReader(file):
            one = make_cpus.setting_of(row)
            step = Workload.decode(batch=1, kv_len=max(int(row["past"]), 64) + 1)
            assert 1 / float(row["tokens_per_s"]) >= float(one.decode_plan.time_s(step)), row


def test_analyze_uses_the_fitted_factors():
    with make_cpus.ROWS.open() as file:
        row = next(csv.DictReader(file))
    analysis = analyze(row["model"], row["host"], quant=row["quant"], engine="llama.cpp", prompt=64, gen=2,
                       hardware_set=(f"memory.bandwidth={row['bandwidth_gb_s']}GB/s",))  # fmt: skip
    (one,) = (p for p in make_cpus.measured()[:1])
    factors = make_cpus.fit([p for p in make_cpus.measured() if p.fitted])
    assert analysis.generation.expected_tpot_s == pytest.approx(one.expected_s(factors), rel=0.02)


def test_host_weights_are_never_fetched():
    """Weights on the host are not fetched, whatever is offloaded besides."""
    text = str(analyze("qwen3-30b-a3b", "rtx-2080", quant="Q4_K_M", host=CPU, on_host="experts=20"))
    assert "does not fit" in text
    both = setting(on_host="experts=10", offload="weights=0.5")
    assert all(
        not row.operator.transfers for row in rows(both) if row.operator.on_host and row.operator.kind != "transfer"
    )


def test_engines_without_host_kernels_are_refused():
    with pytest.raises(InputError, match="vLLM computes nothing on the host"):
        setting("gpt-oss-20b", "experts", quant=None, engine="vllm")


def test_misfit_report_suggests_the_host_layers_that_fit():
    analysis = analyze("qwen3-30b-a3b", "rtx-2080", quant="Q4_K_M", engine="llama.cpp", host="core-i9-10900x",
                       on_host="experts=28")  # fmt: skip
    assert not analysis.memory.fits
    assert "fits with --on-host experts=31" in " ".join(str(analysis).split())


def test_launch_command_places_host_layers_and_experts():
    options = {"quant": "Q4_K_M", "engine": "llama.cpp", "host": CPU}
    experts = str(analyze("qwen3-30b-a3b", "rtx-4090", on_host="experts=36", **options))
    assert "--n-gpu-layers all --n-cpu-moe 36" in " ".join(experts.replace("\\\n", "").split())
    layers = str(analyze("llama-3.1-8b", "rtx-4090", on_host="layers=20", **options))
    assert "--n-gpu-layers 13 " in " ".join(layers.replace("\\\n", "").split())


@pytest.mark.parametrize("model", ["llama-3.1-8b", "llama-3.2-1b", "qwen3-30b-a3b"])
def test_layers_on_an_equal_second_gpu_are_the_even_pipeline(model):
    """The time of a step at the bound, the memory and the bytes between both are those of two stages, one batch at a
    time; llama-3.2-1b has tied embeddings, of which both stages have a copy.
    """
    pipeline = Setting.of(model, GPU, quant="W4A16", pp=2, micro_batches=1)
    half = f"layers={pipeline.model.graph.layers // 2}"
    both = Setting.of(model, GPU, quant="W4A16", host=GPU, on_host=half)
    for step in (STEP, Workload.decode(batch=16, kv_len=301)):
        assert both.decode_plan.time_s(step) == pytest.approx(pipeline.decode_plan.time_s(step), rel=1e-12)
    prompt = Workload.prefill(batch=1, prompt=500)
    assert both.plan.time_s(prompt) == pytest.approx(pipeline.plan.time_s(prompt), rel=1e-12)
    stages = {0: 0.0, 1: 0.0}
    for block, op in pipeline.graph:
        stages[block.stage] += block.repeat * sum(w.stored_bytes for w in op.weights)
    for block, op in both.graph:
        stages[0 if op.on_host else 1] -= block.repeat * sum(w.stored_bytes for w in op.weights)
    assert stages == pytest.approx({0: 0, 1: 0}, abs=1)


@pytest.mark.parametrize("part", ["experts", "attention"])
def test_parts_on_an_equal_second_gpu_take_the_time_of_one_gpu_and_of_the_link(part):
    alone = Setting.of("qwen3-30b-a3b", GPU, quant="W4A16")
    both = Setting.of("qwen3-30b-a3b", GPU, quant="W4A16", host=GPU, on_host=part)
    on_device_s, on_host_s, on_link_s = seconds(both)
    assert on_device_s + on_host_s == pytest.approx(float(alone.decode_plan.time_s(STEP)), rel=1e-9)
    assert min(on_device_s, on_host_s, on_link_s) > 0


def test_unlike_gpus_take_the_times_of_their_layers():
    """A published pair: GLM 4.7 Flash with llama.cpp, Q8_0 on an RTX 4090 (35 layers) and an RTX 5070 Ti (12), about
    105 tokens/s; Q4_K_M on the RTX 4090 alone about 140 (docs/bench-test-results.md of nerdpudding/llama_cpp at
    hub.lhzy.net).
    """
    options = {"engine": "llama.cpp", "prompt": 256, "gen": 256}
    one = analyze("glm-4.7-flash", "rtx-4090", quant="Q4_K_M", **options).generation
    two = analyze("glm-4.7-flash", "rtx-4090", quant="Q8_0", host="rtx-5070-ti", on_host="layers=12", **options)
    assert one.expected_tpot_s / two.generation.expected_tpot_s == pytest.approx(105 / 140, rel=0.05)
    assert two.generation.tpot_s < 1 / 105
    dense = analyze("llama-3.1-8b", "rtx-4090", quant="Q8_0", host="rtx-5070-ti", on_host="layers=12", **options)
    text = " ".join(str(dense).replace("\\\n", "").split())
    assert "--n-gpu-layers all --split-mode layer --tensor-split 12,21" in text
    assert "--n-cpu-moe" not in text
    bounds = analyze("llama-3.1-8b", "rtx-4090", host="rtx-5070-ti", on_host="layers=9")
    assert bounds.generation.expected_tpot_s is None


def test_pages_have_the_roofline_of_the_device_and_the_split():
    analysis = analyze("llama-3.1-8b", "rtx-4090", quant="W8A8", host="core-i9-10900x", on_host="layers=4")
    assert "on the host" in ANALYSIS.html(analysis)
    result = split("llama-3.1-8b", "rtx-2080", host=CPU, bound=True)
    page = SPLIT.html(result)
    assert "Fastest that fits" in page
    assert "Decode speed by the split" in page
    assert "No expected times: only bounds were requested." in page
    assert f"bound by {result.best.bound}" in page
    assert result.points[0].bound == "memory of the device"
    assert result.points[-1].bound == "memory of the host"
    rows = list(result.rows())
    assert [row["layers"] for row in rows] == sorted(row["layers"] for row in rows)
    assert result.best.fits
    assert result.to_dict()["best"] == result.best.on_host


def test_split_report_states_insufficient_host_memory():
    result = split("gpt-oss-120b", "rtx-4090", host=CPU, host_set=("memory.capacity=32GiB",), bound=True)
    assert result.best is None
    assert "The host has 34.4 GB" in SPLIT.headline(result)
