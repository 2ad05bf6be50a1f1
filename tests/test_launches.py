"""Operators as the kernels that a library runs for them, and what a whole pass is expected to take."""

import json
import re
from dataclasses import fields, replace
from io import StringIO

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import llmviewer
from llmviewer import InputError, analyze, load_hardware
from llmviewer.cli import main
from llmviewer.devices.files import hardware_names
from llmviewer.expectation import index as index_file
from llmviewer.expectation.families import FAMILIES, Implementation
from llmviewer.expectation.kernels import Kernels
from llmviewer.expectation.launches import launches
from llmviewer.expectation.profile import KernelFit, Profile, shipped, to_yaml, transfer_errors
from llmviewer.expectation.times import KernelBounds
from llmviewer.expectation.transfer import Estimator
from llmviewer.forms import evaluate
from llmviewer.model_files import model_names
from llmviewer.resource import link
from llmviewer.setting import Setting
from llmviewer.techniques._spans import shared
from llmviewer.variants.changes import deployed_precisions
from llmviewer.variants.evaluation import Evaluation
from llmviewer.workload import Spans, Workload

from .cases import first_fast

DEVICES = ("h100-sxm", "b200", "l40s", "mi300x", "t4", "tpu-v5e")
TINY = 1 + 1e-12  # sums differ in their last digit


def found(model, workload, *, phase="decode", library="vllm", **asked):
    """{names of the members: the kernels of their launch} of one block each, and the launches."""
    setting = Setting.of(model, asked.pop("hardware", "h100-sxm"), **asked)
    rows = setting.plan_of(phase).estimate(workload).operators
    made = launches(rows, workload, library=library, half="bf16")
    assert sorted(place for launch in made for place in launch.members) == list(range(len(rows)))
    return {tuple(rows[m].operator.name for m in launch.members): launch for launch in made}


def shapes(launch):
    (kernel,) = launch.kernels
    return {key: float(np.max(value)) for key, value in kernel.shapes.items()}


def test_serving_libraries_fuse_linear_layers_with_a_common_input():
    workload = Workload.decode(batch=16, kv_len=1000)
    joint = found("llama-3-8b", workload)
    assert shapes(joint["q_proj", "k_proj", "v_proj"]) == {"M": 16, "N": 4096 + 2 * 1024, "K": 4096, "batch": 1}
    assert shapes(joint["gate_proj", "up_proj"]) == {"M": 16, "N": 2 * 14336, "K": 4096, "batch": 1}
    assert shapes(joint["down_proj",]) == {"M": 16, "N": 4096, "K": 14336, "batch": 1}
    assert shapes(joint["lm_head",])["N"] == 128256
    alone = found("llama-3-8b", workload, library="cublas")
    assert shapes(alone["k_proj",]) == {"M": 16, "N": 1024, "K": 4096, "batch": 1}


def test_linear_layers_on_both_sides_of_attention_are_apart_even_where_they_read_the_same():
    names = found("gpt-j-6b", Workload.decode(batch=1, kv_len=9))
    assert ("q_proj", "k_proj", "v_proj") in names
    assert ("up_proj",) in names


def test_fused_products_are_the_product_that_serving_libraries_run_anyway():
    workload = Workload.prefill(batch=1, prompt=700)
    for library in ("vllm", "cublas"):
        fused = found("llama-3-8b", workload, library=library, phase="prefill", techniques=("fusion",))
        assert shapes(fused["q+k+v+rope",]) == {"M": 700, "N": 4096 + 2 * 1024, "K": 4096, "batch": 1}
        assert shapes(fused["gate+up+act",]) == {"M": 700, "N": 2 * 14336, "K": 4096, "batch": 1}
        assert shapes(fused["down+add",]) == {"M": 700, "N": 4096, "K": 14336, "batch": 1}
    mixed = found("llama-3-8b", workload, phase="prefill", quant="W4A16,up_proj=W8A16", techniques=("fusion",))
    kernels = mixed["gate+up+act",].kernels
    assert [(kernel.implementation.dtype, kernel.shapes["N"]) for kernel in kernels] == [
        ("int4_wo", 14336),
        ("int8_wo", 14336),
    ]


def test_tensorrt_llm_scales_the_inputs_of_products_whose_int4_weights_have_a_scale_for_each_group():
    """As its plugin for AWQ does, from five rows on; its kernel with a scale for each column was measured."""

    def down(library, quant, workload):
        found_launches = found("llama-2-7b", workload, phase="prefill", library=library, quant=quant)
        return found_launches["down_proj",]

    two, eight = (Workload.prefill(batch=1, prompt=n) for n in (2, 8))
    grouped = down("trtllm", "W4A16g128", eight)
    product, scaling = grouped.kernels
    assert (product.implementation.dtype, scaling.family) == ("int4_wo", "elementwise")
    assert float(np.max(scaling.shapes["bytes"])) == 2 * 2 * 8 * 11008  # read and written
    assert np.all(scaling.where)
    assert not np.any(down("trtllm", "W4A16g128", two).kernels[1].where)
    assert grouped.stand_in_class
    for library, quant in (("trtllm", "W4A16"), ("trtllm", "W8A16"), ("vllm", "W4A16g128")):
        plain = down(library, quant, eight)
        assert (len(plain.kernels), plain.stand_in_class) == (1, "")


@pytest.mark.parametrize("attention", ["flash", "eager"])
def test_cross_attention_of_a_step_is_over_all_that_the_encoder_has_read(attention):
    step = Workload.decode(batch=4, kv_len=512, prompt=500)
    of = found("t5-large", step, attention=attention)
    name, size = ("cross_attention", "kv_len") if attention == "flash" else ("cross_qk_matmul", "N")
    kernels = next(launch.kernels for names, launch in of.items() if name in names)
    assert {float(kernel.shapes[size]) for kernel in kernels} == {500}


def test_an_indexer_is_as_attention_in_a_prompt_and_as_its_bytes_in_a_step():
    workload = Workload.prefill(batch=2, prompt=np.array([1.0, 9000.0]))
    rows = {
        row.operator.name: row
        for row in Setting.of("glm-5", "h200-sxm").plan_of("prefill").estimate(workload).operators
    }
    prompts, steps = found("glm-5", workload, phase="prefill")["indexer",].kernels
    assert (prompts.family, steps.family) == ("attention_prefill", "elementwise")
    assert [prompts.where.tolist(), steps.where.tolist()] == [[False, True], [True, False]]
    heads = rows["indexer"].operator.heads
    assert prompts.shapes["head_dim"] + prompts.shapes["v_head_dim"] == heads.head_dim == 128
    assert prompts.shapes["kv_heads"] == 1
    assert steps.shapes["bytes"].tolist() == rows["indexer"].bytes.tolist()


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_keys_that_have_left_a_window_take_no_time(phase):
    """A chunk of 512 tokens, or a single one, at a context of 8 thousand or of a million tokens."""
    own = Setting.of("mistral-7b-v0.1", "h100-sxm")
    chunk = 512 if phase == "prefill" else 1
    pass_ = Workload.chunk(batch=1, chunk=chunk, past=np.array([8192, 1 << 20]))
    times = own.kernels.expect(own.plan_of(phase).estimate(pass_).operators, pass_).total.expected
    assert times[0] == pytest.approx(times[1], rel=1e-9)


def test_attention_of_a_rank_of_context_parallelism_is_that_of_fewer_queries():
    workload = Workload.prefill(batch=2, prompt=4096)
    alone = found("llama-3-8b", workload, phase="prefill")["attention",].kernels
    shared = found("llama-3-8b", workload, phase="prefill", layout="cp=4")["attention",].kernels
    for one, other in zip(alone, shared, strict=True):
        assert one.implementation == other.implementation
        assert one.shapes["q_len"] == 4 * other.shapes["q_len"]
        pairs = one.shapes["q_len"] * (one.shapes["q_len"] + 1) / 2
        assert other.shapes["q_len"] * other.shapes["kv_len"] == pytest.approx(pairs / 4)


def test_elementwise_operators_use_the_kernel_of_their_kind():
    launch = found("llama-3-8b", Workload.prefill(batch=2, prompt=100))["attn_norm",]
    (kernel,) = launch.kernels
    assert kernel.implementation == Implementation(library="vllm", dtype="fp16", kernel="post_attention_layernorm")
    assert kernel.shapes["bytes"] == 2 * 2 * 200 * 4096 + 2 * 4096  # in, out and the weight
    assert kernel.shapes["rows"] == pytest.approx(200, rel=0.01)


def test_experts_are_one_fused_kernel():
    launch = found("mixtral-8x7b", Workload.prefill(batch=1, prompt=512))[
        "permute", "expert_gate_proj", "expert_up_proj", "expert_act", "expert_down_proj", "combine"
    ]
    wanted = {"tokens": 512, "hidden": 4096, "inter": 14336, "topk": 2, "experts": 8, "gated": 1, "reached": 8}
    assert shapes(launch) == pytest.approx(wanted)
    halves = found("mixtral-8x7b", Workload.prefill(batch=1, prompt=512), layout="tp=2", hardware="h100-sxm")
    cut = next(launch for names, launch in halves.items() if "expert_down_proj" in names)
    assert shapes(cut) == pytest.approx(wanted | {"inter": 7168})


def test_experts_that_few_tokens_reach_take_less_than_all_do():
    own = Setting.of("mixtral-8x7b", "h100-sxm", layout="tp=2")
    (launch,) = (l for n, l in found("mixtral-8x7b", Workload.decode(batch=4, kv_len=9)).items() if "combine" in n)
    assert shapes(launch)["reached"] == pytest.approx(8 * (1 - 0.75**4))
    step = Workload.decode(batch=np.array([4, 8, 64]), kv_len=100)
    rows = own.plan_of("decode").estimate(step).operators
    each = own.kernels.expect(rows, step)
    (place,) = (i for i, row in enumerate(rows) if row.operator.name == "expert_down_proj")
    few, more, all_of_them = each.launches[place].expected
    assert few / more == pytest.approx((1 - 0.75**4) / (1 - 0.75**8), rel=0.15)  # but for what parameters leave
    assert all_of_them < 1.3 * more


def test_attention_of_prompts_and_of_single_tokens_are_different_kernels():
    workload = Workload.prefill(batch=2, prompt=np.array([1.0, 700.0]))
    decode, prefill = found("gemma-2-9b", workload, phase="prefill")["attention",].kernels
    assert (decode.family, prefill.family) == ("attention_decode", "attention_prefill")
    assert decode.where.tolist() == [True, False]
    assert prefill.where.tolist() == [False, True]
    window = {names: launch for names, launch in found("mistral-7b-v0.1", workload).items() if "attention" in names}
    assert window["attention",].kernels[0].shapes["window"] == 4096


def test_latent_attention_is_another_kernel_where_its_cache_is_not_expanded():
    decode = found("deepseek-v3", Workload.decode(batch=4, kv_len=3000))
    kernel = next(k for names, launch in decode.items() if names == ("attention",) for k in launch.kernels)
    assert (kernel.family, kernel.implementation.kernel) == ("attention_decode", "mla_absorb")
    assert (kernel.shapes["kv_heads"], kernel.shapes["head_dim"], kernel.shapes["v_head_dim"]) == (1, 576, 512)
    assert any({"q_a_proj", "kv_a_proj"} <= set(names) for names in decode)  # with a norm and a product between them
    absorb = next(launch for names, launch in decode.items() if "q_absorb" in names)
    assert shapes(absorb) == {"M": 4, "N": 512, "K": 128, "batch": 128}
    prefill = found("deepseek-v3", Workload.prefill(batch=1, prompt=500), phase="prefill")["attention",].kernels[1]
    assert (prefill.implementation.kernel, prefill.shapes["head_dim"]) == ("mla_unabsorbed", 192)


def test_encoders_see_both_ways_and_scores_that_are_stored_are_products_of_every_head():
    kernel = found("bert-base-uncased", Workload.prefill(batch=3, prompt=200), phase="prefill")["attention",].kernels[1]
    assert (kernel.implementation.kernel, kernel.shapes["causal"], kernel.shapes["kv_len"]) == (
        "encoder_noncausal",
        0,
        200,
    )
    eager = found("llama-3-8b", Workload.decode(batch=3, kv_len=200), attention="eager")
    assert shapes(eager["qk_matmul",]) == {"M": 1, "N": 200, "K": 128, "batch": 3 * 32}
    assert shapes(eager["sv_matmul",]) == {"M": 1, "N": 128, "K": 200, "batch": 3 * 32}
    assert eager["softmax",].kernels[0].implementation.kernel == "softmax"
    assert {**shapes(eager["softmax",]), "bytes": 0} == {"rows": 3 * 32, "cols": 200, "bytes": 0}


@pytest.mark.parametrize(
    ("quant", "said"),
    [("KVfp8", ""), ("KV8", "stand-in: as with an fp8 cache, as no int8 cache was measured; "),
     ("KV4", "stand-in: as with an 8-bit cache, as no narrower one was measured; ")],
)  # fmt: skip
def test_source_label_notes_an_unmeasured_kv_cache_type(quant, said):
    operators = analyze("llama-3.1-8b", "h100-sxm", quant=quant, batch=64, prompt=4096).phases.decode.operators
    attention = next(op for op in operators if op.name == "attention")
    assert attention.expectation_source.startswith(f"{said}calibrated on h100-sxm")
    wide = attention.expected_high_s / attention.expected_time_s
    assert (wide >= transfer_errors()["attention_decode", "all", "another data type"].long[1] * 0.999) == bool(said)


def test_collectives_are_those_of_nccl_but_for_short_sums():
    made = found("llama-3-8b", Workload.decode(batch=np.array([1.0, 4096.0]), kv_len=9), layout="tp=4")
    own, nccl = made["o_proj_all_reduce",].kernels
    assert own.implementation.kernel == "vLLM_custom_graph all_reduce"
    assert (own.where.tolist(), nccl.where.tolist()) == ([True, False], [False, True])
    assert nccl.shapes["bytes"].tolist() == [8192, 8192 * 4096]
    assert nccl.shapes["num_gpus"] == 4


def test_collectives_of_devices_that_share_no_domain_are_bounds_alone():
    """Eight ranks of tensor parallelism fill a mesh, so that those of context parallelism meet beyond it."""
    asked = {"phase": "prefill", "hardware": "mi300x", "layout": "tp=8 cp=2"}
    gathered = found("llama-3-8b", Workload.prefill(batch=1, prompt=64), **asked)["k_cache_all_gather",]
    assert gathered.kernels == ()
    assert gathered.remark == "no collective between domains was measured"


def test_collectives_between_domains_take_at_least_their_time_within_one():
    across = found("llama-3-8b", Workload.decode(batch=1, kv_len=9), layout="tp=16")["o_proj_all_reduce",]
    assert across.partial
    assert "between domains" in across.remark
    assert {kernel.shapes["num_gpus"] for kernel in across.kernels} == {8}
    eight, sixteen = (analyze("llama-3-8b", "h100-sxm", layout=f"tp={n}").phases.decode.operators for n in (8, 16))
    inside, over = (next(op for op in ops if op.name == "o_proj_all_reduce") for ops in (eight, sixteen))
    assert over.expected_time_s == pytest.approx(inside.expected_time_s)
    assert inside.expected_time_s > inside.bound_time_s
    assert over.expectation_source.startswith("bound only: no collective between domains was measured, at least ")
    assert over.expected_high_s is None
    made = found("qwen3-30b-a3b", Workload.decode(batch=4, kv_len=9), layout="dp=16 ep=16")
    (sent,) = {float(launch.kernels[0].shapes["bytes"]) for names, launch in made.items() if "dispatch" in names}
    graph = Setting.of("qwen3-30b-a3b", "h100-sxm", layout="dp=16 ep=16").graph
    dispatch = next(op for _, op in graph if op.name == "dispatch")
    passed = evaluate(dispatch.link_traffic()[link("scale_up")], Workload.decode(batch=4, kv_len=9))
    assert sent * 7 / 8 == pytest.approx(passed)  # what stays in the domain, and what comes for others there


def test_stages_send_as_nccl_does_between_two_devices():
    sent = {}
    for layout in ("pp=2", "pp=4", "pp=16"):
        made = found("llama-3-8b", Workload.decode(batch=np.array([1.0, 64.0]), kv_len=9), layout=layout)
        sent[layout] = made["send",]
    for layout in ("pp=2", "pp=4"):
        (kernel,) = sent[layout].kernels
        assert (kernel.implementation.library, kernel.implementation.kernel) == ("nccl", "nccl send_recv")
        assert kernel.shapes["num_gpus"] == 2
        assert kernel.shapes["bytes"].tolist() == [2 * 4096, 2 * 4096 * 64]
    assert "between domains" in sent["pp=16"].remark


@pytest.mark.parametrize("library", ["", "vllm", "trtllm"])
@pytest.mark.parametrize(
    ("model", "quant"), [("llama-3-8b", None), ("gpt-oss-120b", None), ("deepseek-v3", "W4A16g128")]
)
def test_a_device_of_equal_numbers_is_expected_as_the_one_that_was_measured(model, quant, library):
    """With all the kernels of its library, of which the fastest is run, not with one of them; of no library that is
    named, as the fastest of all, in an interval that holds that of the device that was measured.
    """
    measured = Setting.of(model, load_hardware("b200"), quant=quant, library=library)
    other = replace(measured, hardware=replace(measured.hardware, name="b200-of-mine"))
    for phase, workload in (
        ("prefill", Workload.prefill(batch=1, prompt=2000)), ("decode", Workload.decode(batch=64, kv_len=3000)),
    ):  # fmt: skip
        one, two = (setting.expected_pass(phase, workload) for setting in (measured, other))
        assert two.source.startswith("transferred from b200")
        if library:
            assert two.total.expected == pytest.approx(one.total.expected)
        assert two.total.low <= two.total.expected <= one.total.expected * (1 + 1e-9)
        assert two.total.high > one.total.expected
    assert other.kernels.library == measured.kernels.library


def test_fused_kernel_time_is_split_in_proportion_to_operator_bounds():
    setting, workload = Setting.of("llama-3-8b", "h100"), Workload.decode(batch=8, kv_len=5000)
    rows = setting.decode_plan.estimate(workload).operators
    passed = setting.kernels.expect(rows, workload)
    shares = {r.operator.name: (r, e) for r, e in zip(rows, passed.launches, strict=True)}
    (q, of_q), (k, of_k), (v, of_v) = (shares[f"{name}_proj"] for name in "qkv")
    over = [float(each.expected[0] / row.time_s) for row, each in ((q, of_q), (k, of_k), (v, of_v))]
    assert over == pytest.approx([over[0]] * 3)
    kernels = setting.kernels
    gemm = kernels.expect([q], workload).launches[0].expected  # by itself: a launch for it alone
    assert of_q.expected < gemm
    assert of_q.expected + of_k.expected + of_v.expected > gemm


def assert_above_the_bounds(kernels, plan, workload):
    """Expected time of a pass; that of each operator is above the bound and within its interval."""
    rows = plan.estimate(workload).operators
    passed = kernels.expect(rows, workload)
    for row, each in zip(rows, passed.launches, strict=True):
        for less, more in ((row.time_s, each.low), (each.low, each.expected), (each.expected, each.high)):
            assert np.all(less <= more * TINY), (row.operator.name, each.source)
    return passed.total


@pytest.mark.parametrize("hardware", first_fast(DEVICES, "every model on every kind of device"))
def test_expected_times_of_shipped_models_are_never_below_the_bound(hardware):
    """Every model that ships on one of the devices, both phases, one sequence and many."""
    device = load_hardware(hardware)
    kernels = Kernels(device)
    for name in model_names()[DEVICES.index(hardware) :: len(DEVICES)]:
        setting = Setting.of(name, device)
        images = int(setting.model.has_tower and setting.model.image_tokens <= 1500)
        passes = [(setting.plan, Workload.prefill(batch=2, prompt=np.array([1500.0, 3000.0]), images=images))]
        if setting.model.generates:
            lengths = np.array([1600.0, 60000.0])
            passes.append((setting.decode_plan, Workload.decode(batch=lengths / 100, kv_len=lengths, prompt=1500)))
        for plan, workload in passes:
            total = assert_above_the_bounds(kernels, plan, workload)
            assert np.all(plan.time_s(workload) <= total.low * TINY)
            assert np.all((total.low <= total.expected * TINY) & (total.expected <= total.high * TINY))
            assert np.all(np.isfinite(total.high))


@settings(max_examples=40, deadline=None)
@given(
    model=st.sampled_from(["llama-3-8b", "deepseek-v3", "gemma-3-27b", "gpt-oss-120b", "mamba2-2.7b"]),
    hardware=st.sampled_from(sorted(hardware_names())),
    library=st.sampled_from(["", "vllm", "trtllm", "cublas"]),
    quant=st.sampled_from([None, "W4A16g128", "fp8", "W8A8KV8", "nvfp4"]),
    batch=st.integers(1, 300),
    prompt=st.integers(1, 20000),
)
def test_expected_times_of_random_settings_are_above_the_bound(model, hardware, library, quant, batch, prompt):
    try:
        result = analyze(model, hardware, library=library, quant=quant, batch=batch, prompt=prompt, gen=20)
    except InputError:
        return  # a type that the device has no unit for
    whole = result.generation
    for _, phase in result.phases:
        if phase.total.expected_time_s is None:
            assert phase.total.expectation_source.startswith("bound only: ")
            continue
        assert phase.total.bound_time_s <= phase.total.expected_low_s * (1 + 1e-12)
        assert phase.total.expected_low_s <= phase.total.expected_time_s <= phase.total.expected_high_s
        assert phase.time_s <= phase.expected_time_s
        regimes = sum(phase.total.time_by_regime_s.values())
        assert regimes == pytest.approx(phase.total.expected_time_s)
    if whole.expected_ttft_s:
        assert whole.ttft_s <= whole.expected_ttft_low_s <= whole.expected_ttft_s <= whole.expected_ttft_high_s
        assert whole.tpot_s <= whole.expected_tpot_low_s * (1 + 1e-12)
        assert whole.expected_latency_s == pytest.approx(whole.expected_ttft_s + 19 * whole.expected_tpot_s)


@pytest.mark.parametrize(
    ("model", "hardware", "batch", "prompt", "gen"),
    [
        ("llama-3-8b", "h100", 1, 1024, 512),
        ("gemma-3-27b", "b200", 8, 500, 3000),
        ("llama-2-7b", "rtx-4090", 1, 10, 900),
    ],
)
def test_a_generation_is_the_sum_of_its_steps(model, hardware, batch, prompt, gen):
    setting = Setting.of(model, hardware)
    evaluation = Evaluation(setting=setting, batch=batch, prompt=prompt, gen=gen)
    every = Workload.decode(batch=batch, kv_len=prompt + np.arange(1.0, gen), prompt=prompt)
    each = setting.expected_time("decode", every, batch)
    assert evaluation.expected.decoding_s == pytest.approx(float(np.sum(each.expected)), rel=1e-3)


def test_errors_of_one_stack_add_and_those_of_different_ones_add_in_squares():
    setting, workload = Setting.of("llama-3-8b", "h100"), Workload.decode(batch=8, kv_len=5000)
    rows = setting.decode_plan.estimate(workload).operators
    passed = setting.kernels.expect(rows, workload)
    above = {}
    for row, each in zip(rows, passed.launches, strict=True):
        above[each.implementations] = above.get(each.implementations, 0) + row.repeat * (
            each.high[0] - each.expected[0]
        )
    assert len(above) == 7  # products, attention, and five kinds that move bytes
    whole = passed.total
    assert whole.high[0] - whole.expected[0] == pytest.approx(sum(side**2 for side in above.values()) ** 0.5)


def test_pipelines_wait_for_their_slowest_stage():
    result = analyze("llama-3-8b", "h100", batch=8, layout="tp=2 pp=2")
    prefill, decode = result.phases.prefill, result.phases.decode
    assert prefill.expected_time_s > prefill.total.expected_time_s
    assert result.generation.expected_ttft_s == pytest.approx(prefill.expected_time_s)
    assert decode.expected_time_s > decode.total.expected_time_s


def test_source_states_why_expected_times_are_missing():
    survey = analyze("llama-2-7b", "rtx-a6000", accounting="survey")
    assert survey.generation.expected_ttft_s is None
    assert survey.phases.decode.operators[0].regime is None
    assert survey.phases.decode.total.expectation_source == ("bound only: survey accounting counts what no kernel does")
    tpu = analyze("llama-2-7b", "tpu-v5e")
    assert tpu.phases.prefill.total.expected_time_s is None
    unknown = "no kernel was measured on tpu-v5e, nor on a similar device"
    assert f"bounds only: {unknown}" in tpu.notes


def test_note_names_operators_without_a_measured_kernel():
    result = analyze("whisper-base", "h100", quant="fp32")
    share = result.phases.prefill.total.unmodelled_share
    assert share > 0.01
    (note,) = (note for note in result.notes if "is bounds: no measured kernel for" in note and "prefill" in note)
    assert note.startswith(f"{share:.0%} of the expected prefill time")
    alone = [op for op in result.phases.prefill.operators if op.expected_high_s is None]
    assert alone
    assert all(op.expected_time_s == op.expected_low_s == op.bound_time_s for op in alone)
    assert all(op.expectation_source.startswith("bound only: ") for op in alone)


def test_library_changes_expected_times_but_not_bounds():
    vllm, cublas = (analyze("llama-3-8b", "h100", library=name) for name in ("vllm", "cublas"))
    assert vllm.inputs["library"] == "vllm"
    assert vllm.generation.ttft_s == cublas.generation.ttft_s
    assert vllm.generation.expected_tpot_s != cublas.generation.expected_tpot_s
    assert vllm.phases.decode.total.expectation_source == "calibrated on h100-sxm vllm"
    with pytest.raises(InputError, match=r"no kernels of a library 'vlm' were measured; did you mean vllm\?"):
        analyze("llama-3-8b", "h100", library="vlm")


@pytest.fixture
def mine(tmp_path):
    """Profile of a user's library whose linear layers take three times as long as vLLM's."""
    vllm = Implementation(library="vllm", dtype="bf16")
    (other,) = (e for e in shipped() if (e.device, e.family, e.implementation) == ("h100-sxm", "gemm", vllm))
    slow = {name: other.parameters[name] / 3 for name in ("alpha", "beta", "lambda")}
    kernel_fit = replace(
        other,
        implementation=Implementation(library="mine", dtype="fp16"),
        version="1",
        parameters={**other.parameters, **slow},
    )
    path = tmp_path / "mine.yaml"
    path.write_text(to_yaml([Profile(device="h100-sxm", library="mine", sources=("made up",), fits=(kernel_fit,))]))
    return path


def test_user_profiles_rank_before_shipped_ones(mine):
    asked = {"batch": 4, "prompt": 4096}
    own, vllm = (analyze("llama-3-8b", "h100", profiles=files, **asked) for files in ([mine], []))
    sources = {op.name: op.expectation_source for op in own.phases.prefill.operators}
    assert own.inputs["library"] == "mine"
    assert sources["down_proj"].endswith("h100-sxm mine 1 in fp16")  # its twin, as the device's own
    assert sources["attention"].startswith("calibrated on h100-sxm ")
    assert own.generation.ttft_s == vllm.generation.ttft_s
    assert own.generation.expected_ttft_s > 1.5 * vllm.generation.expected_ttft_s
    other = analyze("llama-3-8b", "h100", profiles=[mine], library="vllm", **asked)
    assert other.phases.prefill.total.expectation_source == "calibrated on h100-sxm vllm"
    frame = llmviewer.sweep("llama-3-8b", "h100", {"batch": [4]}, prompt=4096, expected=True, profiles=[mine])
    assert frame.to_frame()["expected_ttft_s"][0] == pytest.approx(own.generation.expected_ttft_s, rel=1e-6)


def test_unusable_profile_is_refused_in_one_line(mine, tmp_path, capsys):
    command = ["analyze", "llama-3-8b", "h100", "--profile"]
    assert main([*command, str(mine)]) == 0
    assert "calibrated on h100-sxm mine" in " ".join(capsys.readouterr().out.split())
    text, path = mine.read_text(), tmp_path / "other.yaml"
    for wrong, problem in (
        (None, "no such file"),
        (text.replace("device: h100-sxm", "device: h100"), "device: must be the name h100-sxm; got 'h100'"),
        (text.replace("family: gemm", "family: gem"), "entries[0].family: must be one of"),
        (text.replace("device: h100-sxm", "device: my-gpu"), "device: no hardware 'my-gpu'"),
        (text.replace("  sizes:\n    M: [", "  sizes:\n    M: [9e9, "), "entries[0].sizes.M: must be the least and"),
    ):
        if wrong:
            path.write_text(wrong)
        assert main([*command, str(path)]) == 2
        error = capsys.readouterr().err
        assert error.startswith(f"llmviewer: {path}: {problem}")
        assert error.count("\n") == 1
    assert main([*command, str(mine), "--library", "min"]) == 2
    assert "no kernels of a library 'min' were measured; did you mean mine?" in capsys.readouterr().err


def test_fastest_measured_kernel_is_expected_at_each_shape():
    of_moe = [e for e in shipped() if (e.device, e.family, e.implementation.dtype) == ("h100-sxm", "moe", "bf16")]
    base = next(e for e in of_moe if e.implementation.library == "vllm")
    sizes = {**base.sizes, "tokens": (1.0, 65536.0), "hidden": (256.0, 16384.0), "inter": (64.0, 65536.0)}
    sizes |= {"topk": (1.0, 16.0), "experts": (1.0, 512.0)}
    known = {"tokens": (1.0, 600.0)}

    def kernel(name, times, **sizes_of):
        start, alpha = base.parameters["start_us"] * times, base.parameters["alpha"] * times
        return replace(
            base, implementation=Implementation(library="mine", dtype="bf16", kernel=name),
            parameters={**base.parameters, "start_us": start, "alpha": alpha}, sizes={**sizes, **sizes_of},
        )  # fmt: skip

    workload = Workload.decode(batch=np.array([1.0, 512.0, 20000.0]), kv_len=9)
    setting = Setting.of("mixtral-8x7b", "h100")
    rows = setting.decode_plan.estimate(workload).operators
    place = next(i for i, row in enumerate(rows) if row.operator.name == "expert_down_proj")

    def expected(*fits):
        profile = Profile(device="h100-sxm", library="mine", sources=(), fits=fits)
        each = Kernels(setting.hardware, profiles=[profile]).expect(rows, workload).launches[place]
        return each.expected, each.source

    (early, _), (strong, _) = expected(kernel("early", 0.5)), expected(kernel("strong", 1.0))
    assert early[0] < strong[0]
    assert early[2] > strong[2]
    both, source = expected(kernel("early", 0.5), kernel("strong", 1.0))
    assert both == pytest.approx(np.minimum(early, strong))
    assert " mine " in source
    covered, _ = expected(kernel("early", 0.5), kernel("strong", 1.0, tokens=known["tokens"]))
    assert covered == pytest.approx(np.where([True, True, False], both, early))  # nothing is known of the other there


def test_latency_limited_operators_get_their_own_regime_and_advice():
    small, large = (analyze("qwen2.5-0.5b", "h100", batch=batch) for batch in (1, 512))
    regimes = {op.name: op.regime for op in small.phases.decode.operators}
    assert regimes["rope"] == regimes["attention"] == "latency"
    assert {op.name: op.bound for op in small.phases.decode.operators}["rope"] == "memory"
    share = small.phases.decode.total.time_by_regime_s["latency"] / small.phases.decode.total.expected_time_s
    assert f"{share:.0%} of the expected time is fixed cost of short kernels" in small.phases.decode.advice
    assert "latency" not in large.phases.prefill.advice


def test_advice_marks_gains_of_the_bound_that_kernels_do_not_reach():
    low = analyze("qwen3-0.6b", "h100", quant="W4A16g128").phases.decode.total
    plain = analyze("qwen3-0.6b", "h100").phases.decode
    gain = plain.total.expected_time_s / low.expected_time_s
    assert gain < 1
    told = plain.advice.partition("; little or no gain expected: ")
    assert "4-bit" not in told[0]
    assert told[2].startswith("4-bit weights (--quant W4A16g128)")
    assert f", {gain:.2g}x expected)" in told[2]


@pytest.mark.parametrize("layout", ["", "tp=2 pp=2"])
def test_advice_states_the_expected_gain_of_each_change(layout):
    asked = {"prompt": 512, "gen": 2, "layout": layout}
    plain, low, many = (analyze("qwen2.5-7b", "h100", **asked, **own)
                        for own in ({}, {"quant": "W4A16g128"}, {"batch": 16}))  # fmt: skip
    now, fewer = (one.phases.decode.total.expected_time_s for one in (plain, low))
    one, larger = (found.phases.decode.expected_time_s for found in (plain, many))
    told = plain.phases.decode.advice
    assert f"x at the bound, {now / fewer:.2g}x expected)" in told
    assert f"x decode throughput at the bound, {16 * one / larger:.2g}x expected)" in told
    assert "expect" not in analyze("qwen2.5-7b", "tpu-v5e", **asked).phases.decode.advice


def test_sweep_has_the_expected_times_of_analyze():
    over = {"batch": [1, 7, 64], "prompt": [1, 100, 5000]}
    asked = {"layout": "tp=2 pp=2", "library": "vllm"}
    frame = llmviewer.sweep("mixtral-8x7b", "h100", over, expected=True, **asked).to_frame()
    assert "expected_ttft_s" not in llmviewer.sweep("mixtral-8x7b", "h100", over, layout="tp=2 pp=2").columns
    for row in frame.itertuples():
        result = analyze("mixtral-8x7b", "h100", batch=row.batch, prompt=row.prompt, gen=2, **asked)
        for column, value in (
            ("ttft", result.generation.expected_ttft_s),
            ("ttft_low", result.generation.expected_ttft_low_s),
            ("ttft_high", result.generation.expected_ttft_high_s),
            ("decode_step", result.phases.decode.expected_time_s),
            ("decode_step_high", result.phases.decode.expected_high_s),
        ):
            assert getattr(row, f"expected_{column}_s") == pytest.approx(value, rel=1e-6)  # gemm counts in 32 bits
    nothing = llmviewer.sweep("llama-3-8b", "tpu-v5e", {"batch": [1, 2]}, expected=True).to_frame()
    assert nothing["expected_ttft_s"].isna().all()
    with pytest.raises(InputError, match="expected: survey accounting counts what no kernel does"):
        llmviewer.sweep("llama-3-8b", "h100", {"batch": [1]}, expected=True, accounting="survey")


def test_profile_index_matches_the_profiles():
    """If not: python -m llmviewer.expectation.index"""
    assert index_file.PATH.read_text() == index_file.to_json()
    indexed = [
        KernelFit(**{one.name: getattr(fit, one.name) for one in fields(fit)}) for fit in index_file.index().fits
    ]
    assert list(map(repr, indexed)) == list(map(repr, shipped()))
    assert repr(index_file.index().errors) == repr(dict(transfer_errors()))


@pytest.mark.parametrize("name", FAMILIES)
def test_fixed_costs_are_below_the_expected_time(name):
    from tests.test_expectation import H100, IMPLEMENTATIONS
    from tests.test_expectation import shapes as columns

    family, implementation = FAMILIES[name], IMPLEMENTATIONS[name]
    features = family.features(columns(name), H100, implementation, family.variants[0])
    p = family.default_parameters(implementation, H100)
    assert 0 < np.max(family.fixed_seconds(p, features)) < family.seconds(p, features)[0]


def test_the_command_line_shows_both_numbers_in_eighty_columns(capsys):
    assert main(["analyze", "llama-3-8b", "h100", "--library", "vllm"]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    assert ", expected " in out
    assert "calibrated on h100-sxm vllm" in " ".join(out.split())
    assert ">=time expected share" in out
    assert main(["analyze", "llama-3-8b", "h100", "--library", "vllmm"]) == 2
    assert capsys.readouterr().err == "llmviewer: no kernels of a library 'vllmm' were measured; did you mean vllm?\n"
    assert main(["sweep", "llama-3-8b", "h100", "--over", "batch=1,2", "--expected"]) == 0
    assert pd.read_csv(StringIO(capsys.readouterr().out))["expected_decode_step_s"].notna().all()


def test_profiles_are_listed(capsys):
    assert main(["profiles"]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    assert "h100-sxm" in out
    assert "error: mean error of expected times on held-out shapes" in " ".join(out.split())
    assert main(["profiles", "h100-sxm", "--format", "json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert {kernel_fit["device"] for kernel_fit in listed} == {"h100-sxm"}
    assert len(listed) == sum(e.device == "h100-sxm" for e in shipped())
    assert {"library", "family", "dtype", "rows", "held_out", "source"} <= listed[0].keys()
    assert main(["profiles", "vllm"]) == 0
    assert main(["profiles", "h100-sx"]) == 2
    assert "did you mean h100-sxm?" in capsys.readouterr().err


def of_block(launch_by_names, name):
    """The launch of the operator called `name` of the last block that has one."""
    return [launch for names, launch in launch_by_names.items() if name in names][-1]


@pytest.mark.parametrize("batch", [1, 4, 64])
def test_a_layer_that_tokens_skip_by_chance_runs_where_any_comes(batch):
    """With as many tokens as come on average where any does, which have a quarter of the context before them."""
    workload = Workload.decode(batch=batch, kv_len=1001)
    routed = found("llama-3-8b", workload, techniques=["mixture-of-depths:share=0.25"])
    often, gemm = 1 - 0.75**batch, of_block(routed, "down_proj")
    assert gemm.run_probability == pytest.approx(often)
    assert shapes(gemm)["M"] == pytest.approx(batch * 0.25 / often)
    attention = of_block(routed, "attention").kernels[0].shapes
    assert (attention["q_len"], attention["kv_len"]) == (1, 251)
    assert attention["batch"] == pytest.approx(batch * 0.25 / often)
    prefill = found("llama-3-8b", Workload.prefill(batch=batch, prompt=1000), phase="prefill",
                    techniques=["mixture-of-depths:share=0.25"])  # fmt: skip
    assert of_block(prefill, "down_proj").run_probability == pytest.approx(1)
    assert shapes(of_block(prefill, "down_proj"))["M"] == pytest.approx(250 * batch)
    queries = of_block(prefill, "attention").kernels[1].shapes
    assert [float(queries[key]) for key in ("batch", "q_len", "kv_len")] == pytest.approx([batch, 250, 250])


@pytest.mark.parametrize(("by", "often", "rows"), [("token", 1 - 0.7**8, 2.4), ("batch", 0.3, 2.4)])
def test_layers_beyond_an_exit_run_where_any_token_stays_and_keys_are_made_of_all(by, often, rows):
    beyond = found("llama-3-8b", Workload.decode(batch=8, kv_len=100), techniques=[f"early-exit:stay=0.3,by={by}"])
    for name in ("q_proj", "gate_proj", "down_proj", "attention", "mlp_add"):
        assert of_block(beyond, name).run_probability == pytest.approx(often)
    assert shapes(of_block(beyond, "gate_proj"))["M"] == pytest.approx(rows / often)
    keys = beyond["k_proj", "v_proj"]  # not with those of queries, which some alone have
    assert (keys.run_probability, shapes(keys)["M"]) == (1, 8)


def gains(asked, *, batch, phase="decode", **others):
    """(what is expected, the bound) of a step or prefill: times shorter with a technique."""
    plain, found = (
        getattr(analyze("llama-3-8b", "h100", batch=batch, techniques=techniques, **others).phases, phase)
        for techniques in ([], [asked])
    )
    return plain.expected_time_s / found.expected_time_s, plain.time_s / found.time_s


@pytest.mark.parametrize("asked", ["mixture-of-depths", "early-exit", "early-exit:by=batch"])
def test_skipped_layers_of_one_sequence_save_their_launches(asked):
    """Launches too, so that as much is gained as at the bound; by large batches, what fewer tokens gain."""
    expected, bound = gains(asked, batch=1)
    assert bound > 1.3
    assert expected == pytest.approx(bound, rel=0.03)
    crowd, least = gains(asked, batch=16)
    assert crowd < expected or asked == "early-exit:by=batch"
    assert crowd == pytest.approx(least, rel=0.05)


def test_of_many_tokens_a_layer_takes_the_time_of_its_share():
    asked = {"batch": 8, "prompt": 4096}
    plain, routed = (
        {op.block: op for op in analyze("llama-3-8b", "h100", techniques=techniques, **asked).phases.prefill.operators
         if op.name == "down_proj"}
        for techniques in ([], ["mixture-of-depths:share=0.125"])
    )  # fmt: skip
    whole, part = plain["layer"].expected_time_s / 32, routed["layer.routed"].expected_time_s / 16
    assert part == pytest.approx(0.125 * whole, rel=0.05)


def test_an_engine_launches_fewer_where_layers_are_skipped():
    plain, routed = (
        analyze("llama-2-7b", "a100-sxm-80gb", engine="huggingface", techniques=techniques).phases.decode
        for techniques in ([], ["mixture-of-depths:share=0.001"])
    )
    half = (len(plain.operators) - 4) / 2 * 32  # embedding, norm, head and their like are none of a layer
    assert plain.expected_time_s - routed.expected_time_s == pytest.approx(half * 49.1e-6, rel=0.1)


@pytest.mark.parametrize(
    ("asked", "read", "done"),
    [
        ("sparsity", 9 / 16, 0.5),
        ("pruning:sparsity=0.5,format=bitmap", 9 / 16, 1.0),
        ("contextual-sparsity:active=0.25,rank=0", 1 - 0.75**4, 0.25),
        ("quantized:scheme=llm.int8", 1.0, 1.0),
    ],
)
def test_a_product_of_some_weights_is_one_of_as_many_ops_and_bytes(asked, read, done):
    workload = Workload.decode(batch=4, kv_len=100)
    part = of_block(found("llama-3-8b", workload, techniques=[asked]), "up_proj")
    size = shapes(part)
    assert size["K"] == pytest.approx(4096 * read, rel=0.01)
    assert size["M"] * size["K"] == pytest.approx(4 * 4096 * done, rel=0.01)
    assert part.remark == "as a dense product with equal OPs and weight bytes"
    assert part.stand_in_class == "another data type"


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_sparse_weights_gain_no_more_than_at_the_bound(phase):
    """2:4 in units that have it: dense kernels do not reach their bounds either."""
    expected, bound = gains("sparsity", batch=1, phase=phase)
    assert 1.3 < expected < bound


def test_token_copies_per_rank_reach_as_many_experts():
    """With a fourth of the experts of Mixtral on each device, no token has both of its two on one of them."""
    moe = next(launch for names, launch in found("mixtral-8x7b", Workload.decode(batch=1, kv_len=9),
               layout="tp=4 ep=4").items() if "expert_down_proj" in names)  # fmt: skip
    assert (shapes(moe)["tokens"], shapes(moe)["topk"], shapes(moe)["experts"]) == (1, 1, 2)


SOME = ("mixture-of-depths", "mixture-of-depths:share=0.001,every=1", "early-exit:stay=0.05", "early-exit:by=batch",
        "contextual-sparsity:active=0.05,heads=0.3", "sparsity", "pruning:sparsity=0.9,format=bitmap",
        "low-rank:ratio=0.1", "lora:adapters=9")  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(
    asked=st.sets(st.sampled_from(SOME), min_size=1, max_size=2),
    model=st.sampled_from(["llama-3-8b", "mixtral-8x7b", "mamba2-2.7b", "t5-base"]),
    hardware=st.sampled_from(["h100", "rtx-4090", "mi300x", "t4"]),
    engine=st.sampled_from(["", "huggingface"]),
    batch=st.integers(1, 300),
    prompt=st.integers(1, 9000),
)
def test_expected_times_under_techniques_are_above_the_bound(asked, model, hardware, engine, batch, prompt):
    try:
        setting = Setting.of(model, hardware, techniques=sorted(asked), engine=engine)
        passes = (
            (setting.plan, setting.prefill(Workload.prefill(batch=batch, prompt=prompt))),
            (setting.decode_plan, setting.step(Workload.decode(batch=batch, kv_len=prompt + 1, prompt=prompt))),
        )
    except InputError:
        return  # they make no sense together, or there
    for plan, workload in passes:
        assert_above_the_bounds(setting.kernels, plan, workload)


def all_reduce(hardware, layout, **asked):
    """(bound, low, expected, high [s], source) of one sum over ranks, of 1024 tokens of Llama 3 8B."""
    result = analyze("llama-3-8b", hardware, layout=layout, **asked)
    op = next(op for op in result.phases.prefill.operators if op.name == "o_proj_all_reduce")
    times = (op.bound_time_s, op.expected_low_s, op.expected_time_s, op.expected_high_s)
    return (*(time_s / op.repeat for time_s in times), op.expectation_source)


def test_unmeasured_host_links_get_wide_intervals():
    """Bus bandwidths that were reported are within: 28 GB/s of eight RTX 5090 (github.com/NVIDIA/nccl, issue 1639), and
    20 GB/s of A100 in bridges, three of them (github.com/NVIDIA/nccl-tests, issue 178).
    """
    for name, degree, reported in (("rtx-5090", 8, 28e9), ("a100-pcie-80gb", 4, 20e9)):
        bound, low, expected, high, source = all_reduce(name, f"tp={degree}")
        assert source == "transferred from l40s nccl, on another host"
        measured = 2 * (degree - 1) / degree * 1024 * 4096 * 2 / reported
        assert bound < low < measured < expected < high
    _, low, _, high, _ = all_reduce("rtx-4090", "tp=8")
    assert high / low > 20
    _, low, _, high, source = all_reduce("l40s", "tp=8")
    assert source.startswith("calibrated on l40s nccl")
    assert source.endswith(", on another host")
    assert low < 9988e-6 < high  # as measured of 8 MiB by aiconfigurator, on two sockets


def test_cards_in_bridges_talk_over_the_host_beyond_them():
    """A ring of all leaves each bridge once, so half as many are in each other's way as where there are none."""
    bound, low, expected, high, source = all_reduce("rtx-3090", "tp=8")
    assert source == "transferred from l40s nccl, on another host"
    assert bound < low < expected < high
    without = all_reduce("rtx-4090", "tp=8")
    assert expected == pytest.approx(without[2] / 2**0.25, rel=0.05)
    pair = all_reduce("rtx-3090", "tp=2")
    assert pair[-1] == "transferred from l40s nccl"
    assert pair[2] < all_reduce("rtx-4090", "tp=2")[2]  # over the bridge, not over the host
    assert all_reduce("h100-pcie", "tp=4")[-1] == "transferred from l40s nccl, on another host"
    assert all_reduce("v100-pcie-16gb", "tp=4")[-1] == "transferred from l40s nccl, on another host"


@pytest.mark.parametrize("hardware", ["mi300x", "v100-sxm2-32gb"])
def test_collectives_of_part_of_a_mesh_are_as_far_above_the_bound_as_full_ones(hardware):
    """As expected, sums of few members of a mesh or cube are as far above their bound as those of all."""
    over = []
    for degree in (2, 4, 8):
        ops = analyze(
            "llama-3-8b", hardware, layout=f"tp={degree}", batch=8, prompt=4096, gen=1
        ).phases.prefill.operators
        sums = [op for op in ops if op.kind == "communication" and op.name != "embed_all_reduce"]
        over.append(sum(op.expected_time_s for op in sums) / sum(op.bound_time_s for op in sums))
    assert min(over) > 1.2
    assert max(over) / min(over) < 1.2


@pytest.mark.parametrize(
    ("hardware", "quant"), [("t4", "W4A16g128"), ("jetson-agx-orin-64gb", "W8A16"), ("a16", "W8A8"), ("a10", "W8A16")]
)
def test_kernels_for_few_rows_are_not_slower_than_those_for_more_where_they_were_not_measured(hardware, quant):
    setting = Setting.of("llama-2-7b", hardware, quant=quant, library="trtllm")
    step = Workload.decode(batch=np.arange(1.0, 10.0), kv_len=1024)
    found = setting.kernels.expect(setting.decode_plan.estimate(step).operators, step)
    assert "transferred" in found.source
    assert np.all(np.diff(found.total.expected) > 0)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("model", "asked"),
    [
        ("vit-huge", {"quant": "W8A8", "library": "trtllm", "prompt": 1, "batch": 16}),  # a token of no image
        ("glm-5.2", {"library": "trtllm", "prompt": 128, "layout": "tp=8", "gen": 2, "expert_skew": 2}),
        ("kimi-linear-48b-a3b", {"library": "sglang", "techniques": ["mixture-of-depths:share=0.01,every=1"]}),
    ],
)
def test_shapes_at_the_edge_are_no_reason_to_warn(model, asked):
    phases = analyze(model, "a100-sxm-80gb", **asked).phases
    assert all(phase.bound_time_s <= phase.expected_time_s < np.inf for phase in (p.total for _, p in phases))


@pytest.mark.parametrize("library", ["vllm", "sglang", "trtllm"])
def test_libraries_add_up_over_a_host_with_nccl_but_between_two(library):
    workload = Workload.decode(batch=1, kv_len=9)
    for name, degree, kernel in (("rtx-4090", 2, f"{library}"), ("rtx-4090", 4, "nccl"), ("rtx-3090", 8, "nccl")):
        asked = {"hardware": name, "layout": f"tp={degree}", "library": library}
        kernels = found("llama-3-8b", workload, **asked)["o_proj_all_reduce",].kernels
        assert kernels[0].implementation.library == kernel
        assert all(each.hosted for each in kernels)
    assert not any(each.hosted for each in found("llama-3-8b", workload, layout="tp=4")["o_proj_all_reduce",].kernels)


def alone(kernels, kernel):
    """Time of a kernel by itself."""
    (time,) = kernels.times([KernelBounds(kernel, np.array([1e-9]))])
    return time


def asked_of(setting):
    """Kernels of passes of several lengths, some of which are not run in all of their workloads."""
    lengths = np.array([0.0, 1.0, 40.0, 3000.0])
    for spans in (
        Spans(batch=np.array([1.0, 9.0, 0.0, 300.0]), q_len=1.0, kv_len=lengths + 5),
        Spans(batch=2.0, q_len=lengths, kv_len=lengths + 17),
    ):
        rows = setting.plan.estimate(Workload((spans,))).operators
        for launch in setting.kernels.launches_for(rows, Workload((spans,))):
            bound = sum(np.broadcast_to(rows[m].time_s, lengths.shape) for m in launch.members)
            yield from (KernelBounds(kernel, bound) for kernel in launch.all_kernels)


@pytest.mark.parametrize(
    ("model", "device", "asked"),
    [
        ("deepseek-v3", "h200-sxm", {"layout": "tp=8"}),
        ("mixtral-8x7b", "mi300x", {"quant": "fp8"}),
        ("llama-3-8b", "l40s", {"layout": "tp=4", "quant": "W4A16g128"}),
        ("gemma-2-9b", "a100-sxm-80gb", {"library": "trtllm"}),
        ("mamba2-2.7b", "rtx-4090", {}),
    ],
)
def test_kernels_evaluated_together_equal_each_alone(model, device, asked):
    setting = Setting.of(model, device, **asked)
    every = list(asked_of(setting))
    together = list(Kernels(setting.hardware, setting.library).times(every))
    for one, found in zip(every, together, strict=True):
        (single,) = Kernels(setting.hardware, setting.library).times([one])
        assert (found is None) == (single is None)
        if found and single:
            assert (found.source, found.implementations) == (single.source, single.implementations)
            for key in ("expected", "low", "high", "latency"):
                assert np.array_equal(getattr(found, key), getattr(single, key))
    assert any(together)


def test_kernels_of_a_stack_are_worked_out_once_for_all_passes(monkeypatch):
    setting, implementations = Setting.of("deepseek-v3", "h200-sxm", layout="tp=8"), []
    whole = Estimator.expect

    def counted(own, shapes):
        crowd = own.selection.fits[0].parameters.get("crowd")
        implementations.append((own.family.name, own.implementation, own.device.name, crowd))
        return whole(own, shapes)

    monkeypatch.setattr(Estimator, "expect", counted)
    list(Kernels(setting.hardware).times(list(asked_of(setting))))
    assert len(implementations) == len(set(implementations)) > 5


def test_unknown_link_times_do_not_affect_other_kernels():
    """Without link data in a hardware file, only the times of messages are unknown."""
    setting = Setting.of("llama-3-8b", "h100-sxm", layout="tp=2")
    every = list(asked_of(setting))
    sends = [one.kernel.family == "collectives" for one in every]
    links = ("scale_up", "host")
    facts = tuple(fact for fact in setting.hardware.facts if not fact.key.startswith(links))
    kernels = Kernels(replace(setting.hardware, facts=facts))
    found = list(kernels.times(every))
    assert any(sends)
    assert not any(one for one, sent in zip(found, sends, strict=True) if sent)
    assert all(one for one, sent, ask in zip(found, sends, every, strict=True) if not sent and ask.chosen.any())
    assert "how devices are linked" in kernels.reason(every[sends.index(True)].kernel)


def test_formats_without_matrix_units_run_as_weight_only_kernels():
    """On Hopper as weights of 4 bits and activations of 16 are; on Blackwell, and where it was measured, as such."""
    hopper, blackwell = (Kernels(load_hardware(name), library="trtllm") for name in ("h200-sxm", "b200"))
    asked = found("llama-3-8b", Workload.decode(batch=1, kv_len=9), quant="nvfp4", library="trtllm")
    (kernel,) = asked["down_proj",].kernels
    assert kernel.implementation.dtype == "nvfp4"
    times = {kernels: alone(kernels, kernel) for kernels in (hopper, blackwell)}
    assert times[hopper].source == "stand-in on h200-sxm: another data type (trtllm 1.2.0rc5, kernels for int4_wo)"
    assert times[blackwell].source.startswith("calibrated on b200")
    four = replace(kernel, implementation=replace(kernel.implementation, dtype="int4_wo"))
    plain = alone(hopper, four)
    assert plain.expected < times[hopper].expected < 1.1 * plain.expected  # a scale for 16 weights, not for 128
    measured = next(e for e in shipped() if e.family == "gemm" and e.implementation.dtype == "nvfp4")
    mine = replace(measured, device="h200-sxm", implementation=replace(measured.implementation, library="trtllm"))
    own = Profile(device="h200-sxm", library="trtllm", sources=(), fits=(mine,))
    after = alone(Kernels(load_hardware("h200-sxm"), library="trtllm", profiles=(own,)), kernel)
    assert after.source.startswith("calibrated on h200-sxm trtllm")


def test_fp8_before_it_has_units_is_weights_of_eight_bits():
    """Expected times of experts by the kernels of 16-bit ones, which widen weights on the way."""
    ampere, hopper = (Kernels(load_hardware(name), library="trtllm") for name in ("a100-sxm-80gb", "h200-sxm"))
    asked = found(
        "mixtral-8x7b", Workload.prefill(batch=1, prompt=3000), phase="prefill", quant="fp8", library="trtllm"
    )
    (linear,), experts = asked["o_proj",].kernels, next(l for names, l in asked.items() if "expert_up_proj" in names)
    assert linear.implementation.dtype == "fp8"
    eight = replace(linear, implementation=replace(linear.implementation, dtype="int8_wo"))
    assert alone(ampere, linear).expected == alone(ampere, eight).expected
    own, other = (alone(ampere, one) for one in (linear, eight))
    assert own.source == "stand-in on a100-sxm-80gb: another data type (trtllm 1.0.0, kernels for int8_wo)"
    assert other.source == "calibrated on a100-sxm-80gb trtllm 1.0.0"
    assert own.high / own.low > 1.5 * other.high / other.low
    assert alone(hopper, linear).expected != alone(hopper, eight).expected
    (kernel,) = experts.kernels
    half = replace(kernel, implementation=replace(kernel.implementation, dtype="bf16"))
    assert 0.9 < alone(ampere, kernel).expected / alone(ampere, half).expected < 1


@pytest.mark.parametrize(("device", "library"), [("h100-sxm", "vllm"), ("a100-sxm-80gb", "vllm"), ("b200", "sglang")])
def test_few_tokens_of_a_sequence_cut_a_long_cache_as_single_ones_do(device, library):
    """The tile of a decode kernel has them beside each other: keys are read once, by all cores."""
    setting = Setting.of("llama-3.1-8b", device, library=library)

    def attention(queries, keys):
        spans = Spans(batch=1.0, q_len=queries, kv_len=keys)
        found = setting.kernels.expect_plan(setting.plan, Workload((spans,)))
        each = {row.operator.name: launch for row, launch in zip(found.operators, found.launches, strict=True)}
        return each["attention"]

    for keys in (1024.0, 131072.0):
        one, four, sixteen, many = (float(attention(n, keys).expected[0]) for n in (1.0, 4.0, 16.0, 128.0))
        assert 0.9 * one < four < 1.1 * one
        assert four < 1.02 * sixteen
        assert sixteen < 1.35 * one
        assert many > sixteen
    assert many > 5 * one
    assert "few queries as further heads" in attention(4.0, keys).source
    together = attention(np.array([1.0, 4.0, 128.0]), keys)
    alone = [float(attention(n, keys).expected[0]) for n in (1.0, 4.0, 128.0)]
    assert together.expected == pytest.approx(alone, rel=1e-6)


@pytest.mark.parametrize(("device", "library"), [("l40s", "sglang"), ("a100-sxm-80gb", "vllm")])
def test_few_queries_of_latent_attention_take_no_longer_than_the_fewest_measured_of_prompts(device, library):
    """From 127 to 128 queries after 4,096 cached tokens, expected times do not fall, nor for any fewer."""
    setting = Setting.of("deepseek-v3", device, library=library)
    queries = np.arange(100.0, 130.0)
    found = setting.kernels.expect_plan(setting.decode_plan, Workload.chunk(batch=1, chunk=queries, past=4096))
    attention = [i for i, row in enumerate(found.operators) if row.operator.name == "attention"]
    times = np.broadcast_to(found.launches[attention[0]].expected, queries.shape)
    assert np.all(times[1:] >= times[:-1] * (1 - 1e-9))


def test_a_prompt_that_answers_read_once_is_a_launch_of_its_own():
    """Cascade attention: the prompt with the heads of all answers, and each answer's tokens with its own."""
    shapes = {}
    for how in ("shared", "read-once"):
        setting = Setting.of("llama-3-8b", "h100-sxm", techniques=[f"best-of:n=8,prompt={how}"], library="vllm")
        step = setting.step(Workload.decode(batch=2, kv_len=4096 + 100, prompt=4096))
        rows = setting.decode_plan.estimate(step).operators
        (attention,) = (
            launch for launch in launches(rows, step, library="vllm", half="bf16")
            if rows[launch.members[0]].operator.name == "attention"
        )  # fmt: skip
        shapes[how] = [
            tuple(float(np.squeeze(kernel.shapes[name])) for name in ("batch", "q_heads", "kv_heads", "kv_len"))
            for kernel in attention.kernels
            if kernel.family == "attention_decode" and np.all(kernel.where)
        ]
    assert shapes["shared"] == [(16, 32, 8, 4196)]
    assert shapes["read-once"] == [(2, 256, 8, 4096), (16, 32, 8, 100)]


def test_prefixes_within_prefixes_are_read_by_all_that_share_them():
    """A system prompt of 2 sequences, then the prompt of 4 answers each: 8 answers share the first, 4 the second."""
    spans = shared(Spans(batch=6, q_len=1, kv_len=500), copies=1, prefix=100, common=True, among=2)
    answers = shared(spans, copies=4, prefix=300, common=True)
    assert [(prefix, float(sharing)) for prefix, sharing in answers.prefixes] == [(100, 8), (300, 4)]


@pytest.mark.parametrize(
    ("model", "device", "quant", "engine"),
    [("qwen3-14b", "rtx-4090", "fp8", "vllm"), ("llama-3.1-8b", "h100-sxm", None, "vllm"),
     ("llama-3.1-8b", "rtx-4090", None, "llama.cpp")],
)  # fmt: skip
def test_advice_offers_the_precisions_that_the_engine_runs(model, device, quant, engine):
    """vLLM has no kernels with int4 activations; llama.cpp runs files in GGUF's types."""
    result = analyze(model, device, quant=quant, engine=engine)
    run = {change.options["quant"] for change in deployed_precisions(result.setting)}
    phases = (result.phases.prefill, result.phases.decode)
    offered = {quant for one in phases for quant in re.findall(r"--quant ([\w.]+)", one.advice)}
    assert offered <= run
    without = analyze(model, device, quant=quant)
    plain = (without.phases.prefill, without.phases.decode)
    assert {quant for one in plain for quant in re.findall(r"--quant ([\w.]+)", one.advice)} - run


@pytest.mark.parametrize(
    ("engine", "device", "caches"),
    [
        ("vllm", "h100-sxm", {"KVfp8": "an fp8 KV cache"}),
        ("llama.cpp", "rtx-4090", {"KVq8_0": "an 8-bit KV cache"}),
        ("mlx", "m4-max", {"KV8g64z16": "an 8-bit KV cache"}),
    ],
)
def test_advice_offers_the_caches_that_the_engine_has(engine, device, caches):
    changes = deployed_precisions(Setting.of("llama-3.1-8b", device, engine=engine))
    assert {one.name: one.about for one in changes if one.name.startswith("KV")} == caches
