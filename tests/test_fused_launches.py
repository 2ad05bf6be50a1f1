"""Launches that engines fuse, as their files state them."""

from copy import copy
from dataclasses import replace

import numpy as np
import pytest

from llmviewer import analyze
from llmviewer.expectation.engines import engine_names, find_engine
from llmviewer.expectation.launches import launches
from llmviewer.forms import evaluate
from llmviewer.operators.fused import Fused
from llmviewer.parallel.layout import parse_layout
from llmviewer.setting import Setting
from llmviewer.workload import Workload

FUSED = ("o_proj_all_reduce", "attn_add", "mlp_norm")
NEXT_LAYER = ("down_proj_all_reduce", "mlp_add", "attn_norm")


def launched(model, device, tokens, *, engine="vllm", phase="decode", **asked):
    """The launch of each operator of one kind of layer, by the operators that it has, and those by name."""
    setting = Setting.of(model, device, engine=engine, **asked)
    decode = Workload.decode(batch=tokens, kv_len=512)
    workload = decode if phase == "decode" else Workload.prefill(batch=1, prompt=tokens)
    rows = setting.plan_of(phase).estimate(workload).operators
    made = setting.kernels.launches_for(rows, workload)
    assert sorted(place for launch in made for place in launch.members) == list(range(len(rows)))
    return {tuple(rows[m].operator.name for m in launch.members): launch for launch in made}, rows


def layer_time_s(model, device, tp, tokens, engine):
    """Expected time of the launch after attention, with the ends of its interval. [s]"""
    found = analyze(model, device, tp=tp, batch=tokens, prompt=8, gen=8, engine=engine)
    operators = [op for op in dict(found.phases)["decode"].operators if op.name in FUSED]
    ends = ("expected_time_s", "expected_low_s", "expected_high_s")
    first = {op.name: op for op in reversed(operators)}.values()
    return tuple(sum(getattr(op, end) / op.repeat for op in first) for end in ends)


def bytes_of(launch, where=0):
    """Bytes of the element-wise kernels of a launch that run at a point. [B]"""
    kernels = [kernel for kernel in launch.kernels if kernel.family == "elementwise"]
    runs = [np.atleast_1d(kernel.where)[where if np.size(kernel.where) > 1 else 0] for kernel in kernels]
    return sum(float(np.ravel(kernel.shapes["bytes"])[where]) for kernel, run in zip(kernels, runs, strict=True) if run)


def test_additions_and_norms_are_one_launch_also_across_layers():
    found, rows = launched("llama-3-8b", "a100-sxm-80gb", 16)
    assert {("attn_add", "mlp_norm"), ("mlp_add", "attn_norm")} <= found.keys()
    names = {row.operator.name: row.operator for row in rows}
    parts = names["attn_add"], names["mlp_norm"]
    whole = Fused.of(parts, kept_outputs={names["attn_add"].outputs[0].name, names["mlp_norm"].outputs[0].name})
    workload = Workload.decode(batch=16, kv_len=512)
    for members in (("attn_add", "mlp_norm"), ("mlp_add", "attn_norm")):
        assert bytes_of(found[members]) == pytest.approx(float(np.sum(evaluate(whole.work().nbytes, workload))))
        assert sorted(kernel.shapes["joined"] for kernel in found[members].kernels) == [0, 1]
    plain = Setting.of("llama-3-8b", "a100-sxm-80gb", library="vllm")
    assert all(len(one.members) in (1, 2, 3) for one in plain.kernels.launches_for(rows, workload))
    assert ("attn_add", "mlp_norm") not in {
        tuple(rows[m].operator.name for m in one.members)
        for one in launches(rows, workload, library="vllm", half="bf16")
    }


@pytest.mark.parametrize("model", ["llama-3-8b", "qwen3-32b", "gpt-oss-120b", "deepseek-v3"])
@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm"])
def test_fused_launches_of_few_tokens_are_faster_than_their_parts_and_above_the_bound(model, engine):
    setting = Setting.of(model, "h100-sxm", engine=engine, layout="tp=8")
    unfused = copy(setting.kernels)
    unfused.launching = replace(unfused.launching, fusions=())
    for batch in (1, 16, 300):
        workload = Workload.decode(batch=batch, kv_len=700)
        rows = setting.plan_of("decode").estimate(workload).operators
        fused, separate = (
            float(np.sum(one.expect(rows, workload).total.expected)) for one in (setting.kernels, unfused)
        )
        bound = sum(float(np.sum(row.block.repeat * row.time_s)) for row in rows)
        assert bound < fused
        assert fused < separate or batch == 300  # TensorRT-LLM's kernel for longer messages is slower than others


def test_all_reduces_are_fused_up_to_the_length_that_the_engine_states():
    for tokens, fits in ((256, True), (257, False)):  # of 8192 elements: 4 MiB on four GPUs
        found, _ = launched("llama-3.1-70b", "h100-sxm", tokens // 2, layout="tp=4")
        first, *_ = found[FUSED].kernels
        assert first.implementation.kernel == "TRTLLM all_reduce"
        found, _ = launched("llama-3.1-70b", "h100-sxm", tokens, layout="tp=4")
        assert bool(np.all(found[FUSED].kernels[0].where)) is False
        assert bytes_of(found[FUSED]) > 0
        blackwell, _ = launched("llama-3.1-70b", "b200", 8 * tokens, layout="tp=4")
        assert bool(np.all(blackwell[FUSED].kernels[0].where)) is fits


def test_where_an_all_reduce_is_fused_depends_on_device_version_and_model():
    assert {FUSED, NEXT_LAYER} <= launched("llama-3.1-70b", "h100-sxm", 4, layout="tp=4")[0].keys()
    for elsewhere in (
        {"device": "a100-sxm-80gb"}, {"engine_version": "0.13"}, {"engine": "sglang"}, {"device": "mi300x"},
    ):  # fmt: skip
        asked = {"device": "h100-sxm", **elsewhere}
        found, _ = launched("llama-3.1-70b", asked.pop("device"), 4, layout="tp=4", **asked)
        assert FUSED not in found
        assert FUSED[1:] in found
    assert FUSED in launched("qwen3-235b-a22b", "h100-sxm", 4, layout="tp=4", engine="sglang")[0]
    assert FUSED not in launched("llama-3.1-70b", "h100-sxm", 4, layout="tp=4", engine="huggingface")[0]
    overlapped, _ = launched(
        "llama-3.1-70b", "h100-sxm", 64, layout=replace(parse_layout("tp=4"), overlap=True), engine="tensorrt-llm"
    )
    assert not any("all_reduce" in names[0] for names in overlapped if len(names) > 1 and "norm" in names[-1])


def test_norms_and_activations_quantize_for_products_where_the_engine_does():
    def prequantized(model, device, **asked):
        found, _ = launched(model, device, 16, **asked)
        return {
            names[-1] for names, one in found.items() for kernel in one.kernels if kernel.shapes.get("prequantized")
        }

    assert prequantized("llama-3-8b", "h100-sxm", quant="fp8") == {"v_proj", "up_proj", "down_proj"}
    assert prequantized("llama-3-8b", "h100-sxm", quant="fp8", engine="sglang") == set()
    assert prequantized("llama-3-8b", "h100-sxm") == set()
    assert prequantized("llama-3-8b", "b200", quant="nvfp4") == {"down_proj"}


def test_cache_writes_are_launches_of_their_own_where_the_engine_has_them():
    found, _ = launched("llama-3-8b", "h100-sxm", 16)
    write = found["attention",].kernels[-1]
    assert write.family == "elementwise"
    keys_and_values = 2 * 16 * 8 * 128 * 2
    assert float(np.ravel(write.shapes["bytes"])[0]) == 2 * keys_and_values
    other, _ = launched("llama-3-8b", "h100-sxm", 16, engine="tensorrt-llm")
    assert {kernel.family for kernel in other["attention",].kernels} == {"attention_decode", "attention_prefill"}


@pytest.mark.parametrize(
    ("model", "device", "tp", "tokens", "engine", "published_us"),
    [
        ("llama-3.1-70b", "h100-sxm", 2, 32, "vllm", 10),  # github.com/vllm-project/vllm, pull 22086
        ("llama-3.1-70b", "h100-sxm", 2, 64, "vllm", 16),
        ("deepseek-r1", "b200", 8, 16, "sglang", 8.7),  # github.com/sgl-project/sglang, pull 7621
    ],
)
def test_published_times_of_fused_all_reduces_are_within_the_interval(model, device, tp, tokens, engine, published_us):
    _, low, high = layer_time_s(model, device, tp, tokens, engine)
    assert low < published_us * 1e-6 < high


def test_every_engine_names_the_source_of_its_fusions():
    stated = {name: find_engine(name).launching for name in engine_names()}
    assert {name for name, one in stated.items() if one.fusions} == {"vllm", "sglang", "tensorrt-llm", "atom"}
    assert {name for name, one in stated.items() if one.has_cache_writes} == {"vllm", "sglang"}
