"""Timelines: real names and a real profile, made ones whose parts are known, and laws."""

import csv
import gzip
import io
import json
import re
from itertools import count

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmviewer._layout import ROOT
from llmviewer.analyzing.analysis import analyze
from llmviewer.cli import main
from llmviewer.errors import InputError
from llmviewer.reports.phrases import interval
from llmviewer.reports.timeline import REPORT
from llmviewer.timelines.against import timeline
from llmviewer.timelines.kinds import Part, marks_a_layer, mixes, parts_of
from llmviewer.timelines.launches import RecordedSequences, parse_step
from llmviewer.timelines.modules import agrees
from llmviewer.timelines.passes import MatrixProduct, named_request
from llmviewer.timelines.products import identify
from llmviewer.timelines.reading import read_timeline
from llmviewer.units import seconds

# As vLLM 0.7 to 0.30, SGLang, TensorRT-LLM, llama.cpp and PyTorch name them in profiles that their users published.
NAMES = {
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1": Part.PRODUCTS,
    "nvjet_sm100_tss_64x16_64x16_2x4_2cta_h_bz_splitK_TNT": Part.PRODUCTS,
    "void cublasLt::splitKreduce_kernel<32, 16, int, float, float, float, float, false>": Part.PRODUCTS,
    "ampere_bf16_s16816gemm_bf16_64x64_sliced1x2_ldg8_f2f_stages_64x6_tn": Part.PRODUCTS,
    "void cutlass::Kernel2<cutlass_80_tensorop_s16816gemm_bf16_64x64_64x6_tn_align8>(T1::Params)": Part.PRODUCTS,
    "void deep_gemm::sm90_fp8_gemm_1d2d_impl<4096u, 7168u>": Part.PRODUCTS,
    "kernel_cutlass_kernel_flashinfergemmkernelsdense_blockscaled_gemm_sm100Sm100BlockScaled": Part.PRODUCTS,
    "internal::gemvx::kernel": Part.PRODUCTS,
    "void mul_mat_vec_q<(ggml_type)12, 1, false>": Part.PRODUCTS,
    "dequant_q4_k_f16": Part.PRODUCTS,
    "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT128x128x64": Part.PRODUCTS,
    "fused_moe_kernel": Part.EXPERTS,
    "void marlin_moe_wna16::Marlin<(long)1125899906909960, (long)562949953487106>": Part.EXPERTS,
    "bmm_MxE4m3_MxE2m1MxE4m3_Fp32_Ab32_Bb32_Cb32_t128x32x256_s5_et128x32_m128x32x32": Part.EXPERTS,
    "void moe::dev::routing::routingCustom::routingIndicesClusterKernel<moe::dev::routing>": Part.EXPERTS,
    "void vllm::moe::topkGatingSoftmax<8, 128, 4, 16, 32, int, float>": Part.EXPERTS,
    "_matmul_ogs_NNT_bf16xbf16xmxfp4_16x256x128": Part.EXPERTS,
    "void flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<128, 64, 128, 4>>": Part.ATTENTION,
    "void flash_fwd_splitkv_combine_kernel<Flash_fwd_kernel_traits<128, 64, 128, 4>>": Part.ATTENTION,
    "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<flash::": Part.ATTENTION,
    "void flashinfer::BatchDecodeWithPagedKVCacheKernel<flashinfer::PosEncodingMode>": Part.ATTENTION,
    "void flashinfer::PersistentVariableLengthMergeStatesKernel<8, 16, 8, 4>": Part.ATTENTION,
    "fmhaSm100fKernel_QkvE4m3OBfloat16HQk576HV512PagedKvDenseStaticTokenSparseP1VarSeqQ32Kv128Pers": Part.ATTENTION,
    "void vllm::paged_attention_v1_kernel<uint16_t, uint16_t, 128, 16, 128>": Part.ATTENTION,
    "kernel_unified_attention_2d": Part.ATTENTION,
    "_fwd_grouped_kernel_stage1": Part.ATTENTION,
    "_fwd_kernel_stage2": Part.ATTENTION,
    "flash_attn_vec_ext_f16<128, 1, 1, (ggml_type)1>": Part.ATTENTION,
    "void selective_scan_fwd_kernel<Selective_Scan_fwd_kernel_traits<128, 16>>": Part.STATE,
    "_causal_conv1d_update_kernel": Part.STATE,
    "fused_recurrent_gated_delta_rule_fwd_kernel": Part.STATE,
    "void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16, __nv_bfloat16>": Part.ELEMENTWISE,
    "void flashinfer::norm::RMSNormKernel<8u, __nv_bfloat16>": Part.ELEMENTWISE,
    "std::enable_if<T2>(int)0&&vllm::_typeConvert<T1>::exists, void>::type vllm::fused_add_rms": Part.ELEMENTWISE,
    "void vllm::act_and_mul_kernel<c10::BFloat16, &vllm::silu_kernel<c10::BFloat16>, (bool)1>": Part.ELEMENTWISE,
    "void vllm::rotary_embedding_kernel<c10::BFloat16, (bool)1>(const long *, T1 *": Part.ELEMENTWISE,
    "void vllm::scaled_fp8_quant_kernel<c10::BFloat16>": Part.ELEMENTWISE,
    "kernel_cutlass_kernel_flashinferquantizationkernelsmxfp8_quantizeMXFP8QuantizeSwizzledKernel": Part.ELEMENTWISE,
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>": Part.ELEMENTWISE,
    "void at::native::(anonymous namespace)::indexSelectSmallIndex<c10::BFloat16, long>": Part.ELEMENTWISE,
    "triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_2": Part.ELEMENTWISE,
    "_q_kv_norm_quant_kernel": Part.ELEMENTWISE,
    "quantize_q8_1(float const*, void*, long)": Part.ELEMENTWISE,
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)": Part.COMMUNICATION,
    "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>": Part.COMMUNICATION,
    "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<(flashinfer": Part.COMMUNICATION,
    "void deep_ep::internode_ll::dispatch<false, 3, 10, 7168>": Part.COMMUNICATION,
    "void flashinfer::sampling::TopKTopPSamplingFromProbKernel<1024>": Part.SAMPLING,
    "void at::native::(anonymous namespace)::cunn_SoftMaxForward<4, float, float, float>": Part.SAMPLING,
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::ArgMaxOps<float>>>": Part.SAMPLING,
    "[CUDA memcpy Device-to-Device]": Part.MOVES,
    "Memset (Device)": Part.MOVES,
    "mhc_post_tilelang_kernel": Part.OTHER,
    "aten::linear": Part.PRODUCTS, "aten::addmm": Part.PRODUCTS, "mkldnn::_linear_pointwise": Part.PRODUCTS,
    "aten::_weight_int8pack_mm": Part.PRODUCTS, "aten::_grouped_mm": Part.EXPERTS, "aten::mul": Part.ELEMENTWISE,
    "aten::_scaled_dot_product_flash_attention_for_cpu": Part.ATTENTION, "aten::multinomial": Part.SAMPLING,
    "aten::rms_norm": Part.ELEMENTWISE, "c10d::allreduce_": Part.COMMUNICATION,
}  # fmt: skip
LAYERS = 32
LAYER = (  # (kernel, its duration, the pause before it) of a decode step on LLaMA 3.1 8B [us]
    ("void vllm::fused_add_rms_norm_kernel<c10::BFloat16>", 3, 0), ("nvjet_qkv", 20, 1),
    ("void vllm::rotary_embedding_kernel<c10::BFloat16>", 2, 0), ("vllm::reshape_and_cache_flash_kernel", 2, 0),
    ("void flash_fwd_splitkv_kernel<128>", 10, 1), ("void flash_fwd_splitkv_combine_kernel<128>", 4, 0),
    ("nvjet_o_splitK", 10, 0), ("void cublasLt::splitKreduce_kernel<32, 16>", 5, 0), ("nvjet_gate_up", 70, 0),
    ("void vllm::act_and_mul_kernel<c10::BFloat16>", 3, 0), ("nvjet_down", 40, 1),
)  # fmt: skip
HEAD = (("nvjet_lm_head", 320, 2), ("void flashinfer::sampling::TopKSampling", 30, 5))
PROMPT = tuple((name.replace("splitkv", "prompt"), 20 * duration, pause) for name, duration, pause in LAYER)
EXACT = {"abs": 1e-12}


def laid(passes, between=400.0):
    """(name, start, duration) of passes with so long a pause before each. [us]"""
    now = 5e6
    for layer in passes:
        now += between
        for name, duration, pause in [*(layer * LAYERS), *HEAD]:
            yield name, now + pause, duration
            now += pause + duration


def traced(launches, steps=(), device=0):
    kernels = [
        {"ph": "X", "cat": "gpu_memcpy" if "emcpy" in name else "kernel", "name": name, "pid": device, "tid": 7,
         "ts": start, "dur": duration, "args": {"device": device, "stream": 7}}
        for name, start, duration in launches
    ]  # fmt: skip
    named = [
        {"ph": "X", "cat": "gpu_user_annotation", "name": name, "pid": 0, "tid": 7, "ts": start, "dur": 60}
        for name, start in steps
    ]
    host = [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 99, "tid": 1, "ts": 1, "dur": 9e6}, "not an event"]
    return {"schemaVersion": 1, "traceEvents": [*host, *named, *kernels]}


def written(path, launches, **more):
    path.write_bytes(gzip.compress(json.dumps(traced(launches, **more)).encode()))
    return path


@pytest.fixture(scope="module")
def llama():
    return analyze("llama-3.1-8b", "h100-sxm", batch=8)


def of(found):
    return {part.part: part.measured_s for part in found.parts if part.measured_s}


@pytest.mark.parametrize("name", NAMES, ids=lambda name: name[:40])
def test_kernel_names_determine_the_part_of_a_pass(name, llama):
    assert parts_of([name], llama.phases.decode.operators) == {name: NAMES[name]}


def test_kernels_after_attention_do_not_mark_a_layer():
    said = {name: marks_a_layer(name, part) for name, part in NAMES.items()}
    marked = [name for name, marks in said.items() if marks]
    assert len(marked) == 11
    assert not any("combine" in name or "Merge" in name or "stage2" in name or "conv1d" in name for name in marked)


def test_activations_are_the_experts_where_a_model_has_no_others():
    found = analyze("gpt-oss-20b", "h100-sxm").phases.decode.operators
    assert parts_of(["act_and_mul_kernel"], found) == {"act_and_mul_kernel": Part.EXPERTS}


def test_steps_come_back_as_they_were_made(tmp_path, llama):
    """All but the first and the last of nine, by hand."""
    path = written(tmp_path / "trace.json.gz", laid([LAYER] * 9))
    found = timeline(path, llama)
    assert of(found) == pytest.approx({
        "matrix products": 1e-6 * (145 * LAYERS + 320), "attention": 1e-6 * 14 * LAYERS,
        "elementwise": 1e-6 * 10 * LAYERS, "sampling": 30e-6,
    }, **EXACT)  # fmt: skip
    assert (found.passes.passes, found.passes.others) == (7, 2)
    assert found.idle_s == pytest.approx(1e-6 * (3 * LAYERS + 7 + 400), **EXACT)
    assert found.time_s == pytest.approx(1e-6 * (172 * LAYERS + 757), **EXACT)
    launches = {kernel.name: kernel.launches for kernel in found.kernels}
    assert launches["nvjet_down"] == LAYERS
    assert launches["nvjet_lm_head"] == 1


def test_products_are_those_of_the_model_in_their_order(tmp_path, llama):
    """By hand: q, k and v at once, gate and up too; what sums a split product up is its."""
    found = timeline(written(tmp_path / "t.json.gz", laid([LAYER] * 5)), llama)
    assert {product.operators: (product.kernels, round(1e6 * product.measured_s)) for product in found.products} == {
        ("q_proj", "k_proj", "v_proj"): (("nvjet_qkv",), 20 * LAYERS),
        ("o_proj",): (("nvjet_o_splitK",), 15 * LAYERS),
        ("gate_proj", "up_proj"): (("nvjet_gate_up",), 70 * LAYERS),
        ("down_proj",): (("nvjet_down",), 40 * LAYERS),
        ("lm_head",): (("nvjet_lm_head",), 320),
    }
    known = {op.name: op for op in llama.phases.decode.operators}
    assert found.products[0].bound_s == pytest.approx(sum(known[f"{name}_proj"].bound_time_s for name in "qkv"))
    assert "gate_proj, up_proj" in REPORT.text(found)


@pytest.mark.parametrize(("model", "each"), [("gemma-3-27b", 4), ("gemma-3-27b", 7), ("gemma-3-27b", 6)])
def test_alternating_layers_are_identified(model, each):
    """Each product of layer n takes n seconds; 6 are q, k, v, o, gate and up at once, down."""
    analysis = analyze(model, "h100-sxm")
    layers = {place: block.name for block in analysis.model.graph.blocks for place in block.layers}
    before = each - (4 if each == 7 else 3)  # q, k and v, or one kernel for them
    of_layer = [[MatrixProduct("nvjet", float(place))] * each for place in sorted(layers)]
    segments = [of_layer[0][:before]]
    for own, following in zip(of_layer, [*of_layer[1:], [MatrixProduct("nvjet", 0.5)]], strict=True):
        segments.append(own[before:] + (following[:before] if following is not of_layer[-1][:0] else following))
    found = identify(segments, analysis.setting.decode_graph, analysis.phases.decode.operators, lambda place: None)
    for product in found.products[:-1]:
        assert product.measured_s == sum(place for place, name in layers.items() if name == product.block)
    assert len(found.products) == 2 * each + 1
    assert not found.missing
    for wrong in (segments[:-1], [*segments[:5], segments[5][1:], *segments[6:]]):
        other = identify(wrong, analysis.setting.decode_graph, analysis.phases.decode.operators, lambda place: None)
        assert (other.products, other.why_not != "") == ((), True)


def test_bounds_and_expectations_are_those_of_the_analysis(tmp_path, llama):
    found = timeline(written(tmp_path / "t.json.gz", laid([LAYER] * 3)), llama)
    total = llama.phases.decode.total
    assert sum(part.bound_s for part in found.parts) == pytest.approx(total.bound_time_s)
    assert sum(part.expected_s or 0 for part in found.parts) == pytest.approx(total.expected_time_s)


def test_prefills_and_decode_steps_of_one_trace_are_separated(tmp_path, llama):
    path = written(tmp_path / "trace.json.gz", laid([LAYER, PROMPT, LAYER, LAYER, PROMPT, LAYER, LAYER]))
    decode, prefill = (timeline(path, llama, phase=phase) for phase in ("decode", "prefill"))
    assert of(decode)["attention"] == pytest.approx(1e-6 * 14 * LAYERS, **EXACT)
    assert of(prefill)["attention"] == pytest.approx(20e-6 * 14 * LAYERS, **EXACT)
    assert (decode.passes.passes, prefill.passes.passes) == (3, 2)


@pytest.mark.parametrize(
    ("names", "phase", "kept"),
    [
        (
            ["execute_context_0(0)_generation_4(4)", "execute_model context_1(sq512sk512) generation_7(7)"],
            "decode",
            "DUDDU",
        ),
        (["step[DECODE bs=8]", "step[EXTEND bs=8 toks=512]"], "prefill", "DUDDU"),
    ],
)
def test_passes_that_an_engine_named_are_taken_as_named(tmp_path, llama, names, phase, kept):
    """Whatever their kernels are: there are none of attention here."""
    launches = [("nvjet_a", 100.0 * i + 10 * j, 5 + (kept[i] == "U")) for i in range(5) for j in range(3)]
    steps = [(names[letter == "U"], 100.0 * i) for i, letter in enumerate(kept)]
    steps += [(name, start + 30) for name, start in steps]  # as a second stream has them
    found = timeline(written(tmp_path / "t.gz", launches, steps=steps), llama, phase=phase)
    assert of(found)["matrix products"] == pytest.approx(15e-6 if phase == "decode" else 18e-6, **EXACT)
    assert found.passes.passes == (2 if phase == "decode" else 1)
    assert ("analyzed: 8)" in REPORT.markdown(found)) == (phase == "decode")


@pytest.mark.parametrize(
    ("name", "prefills", "decodes"),
    [
        (
            "execute_context_0(0)_generation_8(8)",
            RecordedSequences(number=0, new=0),
            RecordedSequences(number=8, new=8),
        ),
        (
            "execute_context_1(888_788544)_generation_0(0)",
            RecordedSequences(number=1, new=888),
            RecordedSequences(number=0, new=0),
        ),
        (
            "execute_8192_context_9(sq8155sk8430sqsq7475785sqsk7671310)_generation_37(sq37sk34489sqsq37sqsk34489)",
            RecordedSequences(number=9, new=8155, context_tokens=8430),
            RecordedSequences(number=37, new=37, context_tokens=34489),
        ),
        ("step[DECODE bs=8]", RecordedSequences(number=0), RecordedSequences(number=8)),
        ("step[EXTEND bs=15 toks=15360]", RecordedSequences(number=15, new=15360), RecordedSequences(number=0)),
    ],
)
def test_names_of_passes_have_sequences_and_tokens(name, prefills, decodes):
    step = parse_step(name, 0.0)
    assert (step.prefills, step.decodes) == (prefills, decodes)


def hosted(launches, ranges, shapes, modules=None):
    """A trace as AMD GPUs have it: ranges on the host alone, kernels joined to calls by correlation. [us]

    ranges   (name, first launch, one after the last)
    shapes   operands of the operator that calls the kernel of a name
    modules  classes of modules around the call of the kernel of a name, the outermost first
    """
    events, late = [], 1e4  # kernels run later than they are launched
    for number, (name, start, duration) in enumerate(launches):
        called = 10.0 * number
        args = {"device": 0, "correlation": number}
        events.append({"ph": "X", "cat": "kernel", "name": name, "ts": start + late, "dur": duration, "args": args})
        call = {"ph": "X", "cat": "cuda_runtime", "name": "hipLaunchKernel", "pid": 5, "tid": 5}
        events.append({**call, "ts": called + 2, "dur": 1, "args": {"correlation": number}})
        for depth, module in enumerate((modules or {}).get(name, "").split()):
            own = {"ts": called - 1 + 0.1 * depth, "dur": 9 - 0.2 * depth}
            events.append({**call, **own, "cat": "python_function", "name": f"nn.Module: {module}_{number}"})
        operator = {"ph": "X", "cat": "cpu_op", "pid": 5, "tid": 5, "ts": called, "dur": 8}
        if name in shapes:
            dims = [list(shape) for shape in shapes[name]]
            args = {"Input Dims": dims, "Input type": ["c10::BFloat16"] * len(dims)}
            events.append({**operator, "name": "aten::linear", "args": args})
            events.append({**operator, "name": "aten::mm", "ts": called + 1, "dur": 6, "args": args})
    for name, first, stop in ranges:
        own = {"ts": 10.0 * first - 1, "dur": 10.0 * (stop - first)}
        events.append({"ph": "X", "cat": "user_annotation", "name": name, "pid": 5, "tid": 5, **own})
    return {"traceEvents": events}


def test_ranges_of_the_host_name_the_kernels_that_they_launched(tmp_path):
    """The names have batch and context, which stand for options that are not given; a mixed pass is of no phase."""
    launches = list(laid([LAYER] * 4))
    own = len(launches) // 4
    names = ["step[DECODE bs=8]", "execute_9_context_1(sq5sk5sqsq25sqsk25)_generation_8(sq8sk4000sqsq8sqsk4000)",
             "execute_8_context_0(sq0sk0sqsq0sqsk0)_generation_8(sq8sk16000sqsq8sqsk16000)",
             "execute_8_context_0(sq0sk0sqsq0sqsk0)_generation_8(sq8sk16080sqsq8sqsk16080)"]  # fmt: skip
    ranges = [(name, own * place, own * (place + 1)) for place, name in enumerate(names)]
    path = tmp_path / "t.json"
    path.write_text(json.dumps(hosted(launches, ranges, {})))
    found = read_timeline(path, "decode")
    assert [step.start_s for step in found.steps] == [found.start_s[own * place] for place in range(4)]
    assert [step.phases for step in found.steps] == [("decode",), ("prefill", "decode"), ("decode",), ("decode",)]
    assert named_request(found, "decode") == {"batch": 8, "kv_len": 2005}
    with pytest.raises(
        InputError,
        match=r"none of the 4 .* is a prefill alone: 8 decodes; 1 prompt \(5 tokens\) and .*--phase decode or mixed ",
    ):
        timeline(path, analyze("llama-3.1-8b", "h100-sxm"), phase="prefill")


def test_mixed_passes_are_compared_with_their_sequences(tmp_path):
    """By hand: two passes of 2 prompts (200 and 400 tokens, of which 100 and 200 are new) and 8 decodes. OPs are those
    of both groups; matrix products have as many rows as tokens.
    """
    launches = list(laid([LAYER] * 3))
    own = len(launches) // 3
    names = ["execute_208_context_2(sq200sk400sqsq0sqsk0)_generation_8(sq8sk16000sqsq8sqsk16000)",
             "execute_408_context_2(sq400sk800sqsq0sqsk0)_generation_8(sq8sk16000sqsq8sqsk16000)",
             "step[DECODE bs=8]"]  # fmt: skip
    steps = [(name, launches[own * place][1]) for place, name in enumerate(names)]
    path = written(tmp_path / "t.json", launches, steps=steps)
    analysis = analyze("llama-3.1-8b", "h100-sxm")
    found = timeline(path, analysis, phase="mixed")
    assert found.passes.passes == 1  # the first begins the file
    prefills, decodes = found.of_phase.workload.groups
    assert (prefills.batch, prefills.q_len, prefills.kv_len) == (2, 200, 400)
    assert (decodes.batch, decodes.q_len, decodes.kv_len) == (8, 1, 2000)
    qkv = next(op for op in found.operators if op.name == "q_proj")
    assert qkv.ops == 32 * 2 * (2 * 200 + 8) * 4096 * 4096
    attention = next(op for op in found.operators if op.kind == "attention")
    pairs = 2 * (200 * 200 + 200 * 201 / 2) + 8 * 2000
    assert attention.ops == pytest.approx(32 * 4 * 4096 * pairs, rel=0.05)  # softmax too
    head = next(op for op in found.operators if op.name == "lm_head")
    assert head.ops == 2 * (2 + 8) * 4096 * 128256
    assert found.of_phase.total.bound_time_s == pytest.approx(found.bound_s)
    assert found.bound_s < found.expected_s
    assert "2 prompts of 200 tokens, 8 decodes with context 2,000" in " ".join(REPORT.text(found).split())
    with pytest.raises(InputError, match="phase mixed needs passes that the engine named"):
        timeline(path, analysis, phase="mixed", passes=3)
    sums = tmp_path / "sums.csv"
    sums.write_text("Name,Instances,Total Time (ns)\nflash_fwd_kernel,32,9999\n")
    with pytest.raises(InputError, match="phase mixed needs launches in time; the file has sums by kernel"):
        timeline(sums, analysis, phase="mixed")


SHAPES = {"nvjet_qkv": (6144, 4096), "nvjet_o_splitK": (4096, 4096), "nvjet_gate_up": (28672, 4096),
          "nvjet_down": (4096, 14336), "nvjet_lm_head": (128256, 4096)}  # fmt: skip


def test_products_are_identified_by_the_shapes_of_their_operators(tmp_path, llama):
    """Whatever else is among them: a product of rotary angles, one that no model has, a head that did not run."""
    shapes = {name: ((8, weights[1]), weights) for name, weights in SHAPES.items()}
    shapes |= {"simt_sgemm": ((8, 64, 1), (8, 1, 1)), "lora_gemm": ((8, 4096), (16, 4096))}
    layer = (*LAYER[:2], ("lora_gemm", 7, 0), *LAYER[2:])
    launches = [("simt_sgemm", 5e6, 3), *laid([layer])]
    launches = [one for one in launches if one[0] != "nvjet_lm_head"]
    path = tmp_path / "t.json"
    path.write_text(json.dumps(hosted(launches, [], shapes)))
    found = timeline(path, llama)
    assert {product.operators: round(1e6 * product.measured_s) for product in found.products} == {
        ("q_proj", "k_proj", "v_proj"): 20 * LAYERS, ("o_proj",): 15 * LAYERS, ("gate_proj", "up_proj"): 70 * LAYERS,
        ("down_proj",): 40 * LAYERS,
    }  # fmt: skip
    assert {product.matched for product in found.products} == {"shape"}
    assert {product.evidence["order"] for product in found.products} == {0.0}  # with another one among them
    assert found.identified.missing == ("lm_head",)
    assert {kernel.name for kernel in found.identified.rest} >= {"lora_gemm"}
    said = REPORT.text(found)
    assert "No kernel was recorded for lm_head" in said


MODULES = {"nvjet_qkv": "LlamaDecoderLayer LlamaAttention QKVParallelLinear", "nvjet_o_splitK":
           "LlamaDecoderLayer LlamaAttention RowParallelLinear", "nvjet_gate_up":
           "LlamaDecoderLayer LlamaMLP MergedColumnParallelLinear", "nvjet_down":
           "LlamaDecoderLayer LlamaMLP RowParallelLinear", "nvjet_lm_head": "LogitsProcessor",
           "simt_sgemm": "LlamaDecoderLayer LlamaRotaryEmbedding",
           "own_kernel": "LlamaDecoderLayer FusedMoE"}  # fmt: skip


def test_products_are_identified_by_the_modules_that_called(tmp_path, llama):
    """A product of rotary angles in each layer shifts them by order alone, which their times show; a kernel of an
    unknown name is one of experts where only FusedMoE calls it.
    """
    layer = (("simt_sgemm", 3, 0), *LAYER, ("own_kernel", 1, 0))
    path = tmp_path / "t.json"
    path.write_text(json.dumps(hosted(list(laid([layer])), [], {})))
    shifted = {product.operators: product.score for product in timeline(path, llama).products}
    assert shifted["q_proj", "k_proj", "v_proj"] < 0.6
    path.write_text(json.dumps(hosted(list(laid([layer])), [], {}, MODULES)))
    found = timeline(path, llama)
    assert {product.operators: (product.matched, product.score) for product in found.products} == dict.fromkeys(
        [("q_proj", "k_proj", "v_proj"), ("o_proj",), ("gate_proj", "up_proj"), ("down_proj",), ("lm_head",)],
        ("module", 0.8),
    )
    assert {kernel.name for kernel in found.identified.rest} == {"simt_sgemm"}
    assert found.part_by_name["own_kernel"] is Part.EXPERTS
    assert "module 4/5" in REPORT.text(found)
    swapped = {**MODULES, "nvjet_down": MODULES["nvjet_o_splitK"]}
    document = hosted(list(laid([layer])), [], {}, swapped)
    document["traceEvents"].append({"ph": "X", "cat": "python_function", "name": "nn.Module: Cut_0", "ts": 5})
    path.write_text(json.dumps(document))
    assert {p.score for p in timeline(path, llama).products if p.operators == ("down_proj",)} == {0.6}


@pytest.mark.parametrize(
    ("path", "operators", "mergeable", "agreed"),
    [
        ("TOP()::<forward op>.3(Layer)::forward.mlp(MLP)::forward.up_proj(Linear)::forward.", ("up_proj",), True, True),
        ("TOP()::<forward op>.3(Layer)::forward.mlp(MLP)::forward.up_proj(Linear)::f.", ("gate_proj",), True, False),
        ("TOP()::<forward op>.3(Layer)::forward.mlp(MLP)::forward.up_proj(Linear)::forward.", ("q_proj",), True, False),
        ("GPTModel_0.DecoderLayer_3.Attention_3.QKVParallelLinear_3", ("q_proj",), True, False),
        ("GPTModel_0.DecoderLayer_3.Attention_3.QKVParallelLinear_3", ("q_proj", "k_proj", "v_proj"), False, True),
        ("GPTModel_0.DecoderLayer_3", ("q_proj",), True, None),
        ("GraphModule_0", ("q_proj",), True, None),
        ("", ("q_proj",), True, None),
    ],
)
def test_module_paths_agree_with_products(path, operators, mergeable, agreed):
    """As torch 2 records with_modules=True for TorchScript, and with_stack=True in eager mode."""
    assert agrees(path, operators, in_layer=True, mergeable=mergeable) is agreed


def test_next_steps_name_the_largest_gaps_and_their_remedies(tmp_path, llama):
    """By hand: a pause of 40 ms before each pass, attention of 1 ms in each layer."""
    longer = {"void flash_fwd_splitkv_kernel<128>": 1000}
    layer = tuple((name, longer.get(name, duration), pause) for name, duration, pause in LAYER)
    found = timeline(written(tmp_path / "t.json", laid([layer] * 4, between=40_000.0)), llama)
    idle, attention = found.next_steps
    assert (idle.part, attention.part) == ("idle", "attention")
    assert idle.gap_s == pytest.approx(found.idle_s - found.host_s)
    own = next(part for part in found.parts if part.part == "attention")
    assert attention.gap_s == pytest.approx(own.measured_s - own.expected_s)
    assert attention.speed_up == pytest.approx(found.time_s / (found.time_s - attention.gap_s))
    said = " ".join(REPORT.text(found).split())
    gains = r"Expected \S+x faster, \S+x at the bound"
    assert re.search(rf"1\. {gains}: CUDA graphs, .*; idle \(unknown\): \S+ ms above expected\.", said)
    options = "(vLLM and SGLang: --attention-backend; TensorRT-LLM: attn_backend)"
    assert f"another attention backend {options}; attention: " in said
    assert attention.bound_speed_up == pytest.approx(found.time_s / (found.time_s - own.measured_s + own.bound_s))
    assert attention.bound_speed_up > attention.speed_up


def test_next_steps_without_expected_times_have_gains_at_the_bound_alone(tmp_path):
    longer = {"void flash_fwd_splitkv_kernel<128>": 1000}
    layer = tuple((name, longer.get(name, duration), pause) for name, duration, pause in LAYER)
    analysis = analyze("llama-3.1-8b", "h100-sxm", batch=8, bound=True)
    found = timeline(written(tmp_path / "t.json", laid([layer] * 4)), analysis)
    said = " ".join(REPORT.text(found).split())
    gain = f"{found.next_steps[0].bound_speed_up:.3g}x faster at the bound"
    assert re.search(rf"1\. {gain}: another attention backend .*; attention: \S+ ms above the bound\.", said)
    assert "xpected" not in said


def test_next_steps_name_the_options_of_the_engine(tmp_path):
    """Next steps also name the matrix products with most of the gap."""
    longer = {"nvjet_down": 400}
    layer = tuple((name, longer.get(name, duration), pause) for name, duration, pause in LAYER)
    path = written(tmp_path / "t.json", laid([layer] * 4))
    found = timeline(path, analyze("llama-3.1-8b", "h100-sxm", batch=8, engine="sglang", quant="fp8"))
    said = " ".join(REPORT.text(found).split())
    assert re.search(r"these shapes \(SGLang: --fp8-gemm-backend\); matrix products: .* of it in down_proj\.", said)
    assert "vLLM" not in said.split("1. Expected")[1]


@pytest.mark.parametrize(
    ("engine", "quant", "options"),
    [
        ("sglang", None, ""), ("vllm", None, ""), ("tensorrt-llm", None, " (TensorRT-LLM: enable_autotuner)"),
        ("vllm", "W4A16", " (vLLM: --linear-backend)"), ("sglang", "nvfp4", " (SGLang: --fp4-gemm-backend)"),
    ],
)  # fmt: skip
def test_remedies_name_options_for_the_formats_of_the_weights(tmp_path, engine, quant, options):
    """vLLM's and SGLang's options choose kernels of quantized weights alone."""
    layer = tuple((name, 900 if name == "nvjet_down" else duration, pause) for name, duration, pause in LAYER)
    analysis = analyze("llama-3.1-8b", "b200", batch=8, engine=engine, quant=quant)
    found = timeline(written(tmp_path / "t.json", laid([layer] * 4)), analysis)
    products = next(step for step in found.next_steps if step.part == Part.PRODUCTS)
    assert products.remedy == "another kernel library, or tuned tile sizes for these shapes" + options


def test_a_large_gap_within_its_interval_is_named_with_it(tmp_path):
    """Matrix products at the middle between their expected time and the upper end of its interval."""
    analysis = analyze("llama-3.1-8b", "mi300x", batch=8, engine="vllm")

    def recorded(scale):
        laid_out = [
            tuple((name, duration * scale if "nvjet" in name else duration, pause) for name, duration, pause in LAYER)
        ] * 4
        found = timeline(written(tmp_path / "t.json", laid(laid_out)), analysis)
        return found, next(part for part in found.parts if part.part == Part.PRODUCTS)

    _, once = recorded(1)
    _, twice = recorded(2)
    middle_s = (once.expected_s + once.expected_high_s) / 2
    found, part = recorded(1 + (middle_s - once.measured_s) / (twice.measured_s - once.measured_s))
    assert part.expected_s < part.measured_s < part.expected_high_s
    assert part.measured_s - part.expected_s > 0.05 * found.time_s
    assert Part.PRODUCTS not in [step.part for step in found.next_steps]
    said = " ".join(REPORT.text(found).split())
    ends = f"{interval(part.expected_low_s, part.expected_high_s)}; {found.references[Part.PRODUCTS]}"
    more = f"{seconds(part.measured_s - part.expected_s)} more"
    assert (
        f"within the interval: matrix products {part.measured_s / part.expected_s:.2g}x expected, {more} ({ends})"
        in said
    )


@pytest.mark.parametrize(
    ("name", "phase"),
    [
        ("step[EXTEND bs=8 toks=512]", "prefill"), ("step[DECODE bs=8]", "decode"),
        ("execute_context_1(64)_generation_7(7)", "mixed"),
    ],
)  # fmt: skip
def test_the_only_recorded_phase_is_the_default(tmp_path, capsys, name, phase):
    launches = list(laid([LAYER] * 3))
    path = written(tmp_path / "t.json", launches, steps=[(name, launches[0][1] - 1)])
    assert main(["timeline", str(path), "llama-3.1-8b", "h100-sxm"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert f"recorded {phase} in t.json" in said
    assert f"the only recorded phase is {phase}." in said
    other = "prefill" if phase == "decode" else "decode"
    assert main(["timeline", str(path), "llama-3.1-8b", "h100-sxm", "--phase", other]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"llmviewer: {path}: phase must be of recorded passes")
    assert f"--phase {phase} compares" in error


def test_fused_attention_is_not_compared_with_eager_attention(tmp_path):
    path = written(tmp_path / "t.json", laid([LAYER] * 3))
    with pytest.raises(InputError, match=r"t\.json: has kernels of fused attention \(.*flash_fwd.*--attention flash$"):
        timeline(path, analyze("llama-3.1-8b", "h100-sxm", batch=8, engine="huggingface"))


def test_eager_attention_mixes_tokens_once_in_each_layer():
    operators = analyze("llama-3.1-8b", "h100-sxm", attention="eager").phases.decode.operators
    assert sum(op.repeat for op in operators if mixes(op)) == LAYERS


def test_a_layout_with_communication_is_doubted_if_none_was_recorded(tmp_path):
    found = timeline(written(tmp_path / "t.json", laid([LAYER] * 3)), analyze("llama-3.1-8b", "h100-sxm", tp=2))
    said = " ".join(REPORT.text(found).split())
    assert "No kernel of communication was recorded; analyzed: tp=2. Give the recorded layout (--tp, --ep)." in said


def test_a_trace_of_a_larger_model_is_refused(tmp_path):
    """Passes that the engine names, of 32 layers with 30 products each; the model has 145 products."""
    layer = (*LAYER, *(("nvjet_more", 5, 0),) * 20)
    launches = list(laid([layer] * 2))
    steps = [("step[DECODE bs=8]", launches[i * len(launches) // 2][1]) for i in range(2)]
    path = written(tmp_path / "t.json", launches, steps=steps)
    with pytest.raises(InputError, match=r"t\.json: a pass has 769 matrix-product kernels, llama-3.1-8b 225: give"):
        timeline(path, analyze("llama-3.1-8b", "h100-sxm", batch=8))


def test_report_marks_products_below_their_bound_as_misidentified(tmp_path, llama):
    launches = [(name, start, duration / (20 if "down" in name else 1)) for name, start, duration in laid([LAYER] * 3)]
    said = " ".join(REPORT.text(timeline(written(tmp_path / "t.json", launches), llama)).split())
    assert re.search(r"Below their bounds: down_proj \(0\.0\dx\)\. They were misidentified", said)


@pytest.mark.parametrize(("cut", "passes"), [(1, 2), (40, 1), (350, 1)])
def test_one_whole_pass_is_found_behind_a_cut_one(tmp_path, llama, cut, passes):
    """By hand, of passes without a pause between them; kernels of the end of the pass before it do not count."""
    layer = tuple((name, duration, 0) for name, duration, _ in LAYER)
    launches = list(laid([layer] * 2, between=0.0))[cut:]
    found = timeline(written(tmp_path / "t.json", launches), llama)
    assert (found.passes.passes, found.mixing) == (passes, LAYERS)
    assert of(found)["matrix products"] == pytest.approx(1e-6 * (145 * LAYERS + 320))


def test_separate_launches_are_expected_as_such(tmp_path, llama):
    """q, k and v in three launches take longer than thirds of one."""
    split = [("nvjet_q", 12, 0), ("nvjet_k", 4, 0), ("nvjet_v", 4, 0)]
    layer = (LAYER[0], *split, *LAYER[2:])
    merged, apart = (timeline(written(tmp_path / f"{len(one)}.json", laid([one] * 3)), llama) for one in (LAYER, layer))
    whole = merged.products[0].expected_s
    each = [product.expected_s for product in apart.products[:3]]
    known = {op.name: op for op in llama.phases.decode.operators}
    assert whole == pytest.approx(sum(known[f"{name}_proj"].expected_time_s for name in "qkv"))
    assert sum(each) > 1.1 * whole
    assert all(one > known[f"{name}_proj"].expected_time_s for one, name in zip(each, "qkv", strict=True))


def test_partial_passes_are_reported_as_partial(tmp_path, llama):
    """As of decode graphs in pieces, each of which has the name of the step."""
    launches = list(laid([LAYER] * 4))
    own, eight = len(launches) // 4, 8 * len(LAYER)
    steps = [("step[DECODE bs=8]", launches[own * i + eight * j][1]) for i in range(4) for j in range(4)]
    path = written(tmp_path / "t.gz", launches, steps=steps)
    parts, whole = timeline(path, llama), timeline(path, llama, passes=4)
    assert "Passes have 8 attention or state launches for 32 layers of llama-3.1-8b" in REPORT.markdown(parts)
    assert "Passes have" not in REPORT.markdown(whole)


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize(("first", "last"), [(5, 1), (130, 7), (350, 340)])
def test_passes_that_repeat_are_found_wherever_a_file_begins(tmp_path, llama, named, first, last):
    """Cut within its first and its last pass, of kernels of attention by name or by none that is known."""
    kernels = [
        (name if named else name.replace("flash_fwd_splitkv", "mine"), start, duration)
        for name, start, duration in laid([LAYER] * 6)
    ]
    path = written(tmp_path / "t.json", kernels[first:-last])
    found = timeline(path, llama)
    assert found.passes.passes == 4
    assert of(found)["matrix products"] == pytest.approx(1e-6 * (145 * LAYERS + 320))
    assert of(found)["attention" if named else "other"] == pytest.approx(1e-6 * 14 * LAYERS)


def test_layers_that_repeat_are_no_passes(tmp_path, llama):
    kernels = [(name.replace("flash_fwd_splitkv", "mine"), *rest) for name, *rest in laid([LAYER])]
    with pytest.raises(InputError, match=r"t\.json: the number of recorded passes is unknown: no kernel"):
        timeline(written(tmp_path / "t.json", kernels), llama)


def test_concurrent_kernels_are_counted_once(tmp_path, llama):
    launches = list(laid([LAYER] * 5))
    beside = [
        ("ncclDevKernel_AllReduce", start + 1, duration - 2) for name, start, duration in launches if "down" in name
    ]
    alone, both = (timeline(written(tmp_path / "t.gz", one), llama) for one in (launches, launches + beside))
    assert both.time_s == pytest.approx(alone.time_s)
    assert both.idle_s == pytest.approx(alone.idle_s)
    assert {part.part: part.launches for part in both.parts}["communication"] == LAYERS


@settings(max_examples=20)
@given(data=st.data())
def test_kernel_and_idle_times_sum_to_the_pass_in_any_event_order(tmp_path_factory, llama, data):
    pauses = data.draw(st.lists(st.floats(100, 1e4), min_size=3, max_size=6))
    launches, now = [], 0.0
    for pause in pauses:
        own = list(laid([LAYER], between=0))
        launches += [(name, now + pause + start - 5e6, duration) for name, start, duration in own]
        now = launches[-1][1] + launches[-1][2]
    path = tmp_path_factory.mktemp("t") / "t.json.gz"
    found = timeline(written(path, data.draw(st.permutations(launches))), llama)
    assert sum(of(found).values()) + found.idle_s == pytest.approx(found.time_s)
    assert found.passes.each_s == pytest.approx([(172 * LAYERS + 357 + pause) * 1e-6 for pause in pauses[2:]])


def nsys(launches, unit="ns", scale=1e3):
    out = io.StringIO("\nNOTICE: Existing SQLite export found\n")
    out.seek(0, io.SEEK_END)
    head = f"Start ({unit}),Duration ({unit}),CorrId,GrdX,Bytes (MB),Device,Ctx,GreenCtx,Strm,Name"
    rows = csv.writer(out)
    rows.writerow(head.split(","))
    for number, (name, start, duration) in zip(count(), launches, strict=False):
        rows.writerow([start * scale, duration * scale, number, 1, "", "NVIDIA H100 (0)", 1, "", 7, name])
    return out.getvalue()


@pytest.mark.parametrize(("unit", "scale"), [("ns", 1e3), ("us", 1.0), ("ms", 1e-3)])
def test_nsight_systems_csv_equals_the_trace(tmp_path, unit, scale):
    launches = list(laid([LAYER] * 5))
    (tmp_path / "t.csv").write_text(nsys(launches, unit, scale))
    files = (written(tmp_path / "t.gz", launches), tmp_path / "t.csv")
    ours, theirs = (read_timeline(file, "decode") for file in files)
    assert ours.names == theirs.names
    np.testing.assert_allclose(ours.start_s, theirs.start_s)
    np.testing.assert_allclose(ours.duration_s, theirs.duration_s)


def test_of_several_devices_the_busiest_is_looked_at(tmp_path, llama):
    events = traced(laid([LAYER] * 3))["traceEvents"] + traced([("nvjet_a", 1, 1)], device=1)["traceEvents"]
    (tmp_path / "t.json").write_text(json.dumps(events))
    found = timeline(tmp_path / "t.json", llama)
    assert (found.devices, found.passes.passes) == (2, 1)
    assert "One of 2 devices in the file" in REPORT.markdown(found)


def test_a_published_profile_by_hand():
    """A prompt of 476 tokens, LLaMA 3.1 8B in Q4_K_M on an RTX 4090, dotLLM's first kernels by `nsys stats --report
    cuda_gpu_kern_sum` (github.com/LittleLittleCloud/dotLLM-Optimization): its authors found attention to be at
    fault, and a gemm after dequantization.
    """
    analysis = analyze("llama-3.1-8b", "rtx-4090", quant="Q4_K_M", prompt=476)
    found = timeline(ROOT / "reports" / "examples" / "timeline.csv", analysis, phase="prefill")
    products = 37727461 + 32179988 + 12416202 + 9815058 + 2682577 + 2049307
    others = 992557 + 775922 + 385787 + 15328 + 7168 + 5952
    assert of(found) == pytest.approx({
        "attention": 99385786e-9, "matrix products": products * 1e-9, "elementwise": others * 1e-9,
        "data movement": (70302 + 1632) * 1e-9,
    })  # fmt: skip
    assert found.passes.passes == 1
    assert found.idle_s is None
    said = REPORT.text(found)
    assert "Slower than expected: attention" in said
    assert "Faster than the bound:" not in said
    assert "Faster than the bound: attention and matrix products; batch" in REPORT.markdown(
        timeline(ROOT / "reports" / "examples" / "timeline.csv", analyze("llama-3.1-8b", "rtx-4090", prompt=50_000),
                 phase="prefill")
    )  # fmt: skip
    assert "(the file has only sums by kernel)" in " ".join(said.split())


def test_kernels_that_are_listed_for_each_grid_are_one(tmp_path, llama):
    """Two passes: 64 launches of attention in two rows, as older versions of Nsight Systems have them."""
    (tmp_path / "t.csv").write_text("Time(%),Total Time (us),Instances,GridXYZ,Name\n"
        "50,600,40,1 1 1,flash_fwd\n25,300,24,2 1 1,flash_fwd\n25,300,6,1 1 1,nvjet\n")  # fmt: skip
    found = timeline(tmp_path / "t.csv", llama)
    assert {k.name: (k.launches, round(1e6 * k.measured_s)) for k in found.kernels} == {
        "flash_fwd": (32, 450), "nvjet": (3, 150),
    }  # fmt: skip
    assert found.passes.passes == 2


def test_missing_or_misplaced_trace_is_refused_before_the_analysis(capsys):
    assert main(["timeline", "gpt2", "t4", "trace.json"]) == 2
    told = "gpt2: no such file; the trace comes first: llmviewer timeline FILE MODEL HARDWARE"
    assert capsys.readouterr().err == f"llmviewer: {told}\n"


@pytest.mark.parametrize(
    ("text", "more", "wrong"),
    [
        ("{", [], "is not valid JSON, perhaps cut off"),
        ("{}", [], "has no traceEvents; must be a trace of torch.profiler"),
        ("some,csv\n1,2\n", [], "must be a trace of torch.profiler (.json, .json.gz), what `nsys export"),
        (json.dumps(traced([])), [], "has operators of a CPU, and no kernel of a GPU; hardware must be the"),
        ("[]", [], "has no kernel that ran; record CUDA activities, or CPU activities of a CPU"),
        ('[{"cat": "kernel", "name": "a", "ts": "x", "dur": 1}]', [], "a kernel must have name, ts and dur; got"),
        ("Start (ns),Duration (ns),Name\n1,many,a\n", [], "Start and Duration must be numbers; got 1,many,a"),
        (json.dumps(traced(list(laid([LAYER]))[:-100])), [], "unknown: 23 launches of attention or of a state "),
        (json.dumps(traced([("nvjet", 1, 1)])), [], "the number of recorded passes is unknown: no kernel has a"),
        (json.dumps(traced([("a", 1, 1)], [("step[DECODE bs=8]", 0)])), ["--phase", "prefill"], "none of the 1 that"),
        (json.dumps(traced(laid([LAYER] * 2))), ["--passes", "3"], "passes must divide the 64 recorded launches"),
        (json.dumps(traced(laid([LAYER] * 2))), ["--passes", "0"], "passes must be a whole number of at least 1"),
    ],
)  # fmt: skip
def test_unusable_traces_are_refused_in_one_line(tmp_path, capsys, text, more, wrong):
    path = tmp_path / "t.json"
    path.write_text(text)
    assert main(["timeline", str(path), "llama-3.1-8b", "h100-sxm", *more]) == 2
    said = capsys.readouterr().err
    assert wrong in said
    assert said.count("\n") == 1


def test_a_missing_file_and_a_phase_there_is_not(tmp_path, llama):
    with pytest.raises(InputError, match=r"t\.json: no such file$"):
        timeline(tmp_path / "t.json", llama)
    path = written(tmp_path / "t.gz", laid([LAYER] * 3))
    with pytest.raises(InputError, match=r"^phase must be prefill of bert-base-uncased; got 'decode'$"):
        timeline(path, analyze("bert-base-uncased", "h100-sxm"), phase="decode")


@pytest.mark.parametrize("stage", [1, 2])
def test_a_stage_of_a_pipeline_is_beside_its_own_layers(tmp_path, stage):
    """By hand: 16 of 32 layers each, the embedding and the send in the first, the head in the second."""
    piped = analyze("llama-3.1-8b", "h100-sxm", layout="pp=2")
    launches, now = [], 0.0
    for _ in range(4):
        now += 500
        for name, duration, pause in (*(LAYER * (LAYERS // 2)), *(HEAD if stage == 2 else ())):
            launches.append((name, now + pause, duration))
            now += pause + duration
    found = timeline(written(tmp_path / "t.gz", launches), piped, stage=stage)
    assert (found.layers, found.passes.passes, found.host_s) == (LAYERS // 2, 2, None)
    operators = piped.phases.decode.operators
    blocks = {1: ("embedding", "layer.0-15", "send.0"), 2: ("layer.16-31", "head")}
    own = [op for op in operators if op.block in blocks[stage]]
    assert sum(part.bound_s for part in found.parts) == pytest.approx(found.bound_s)
    assert found.bound_s == pytest.approx(sum(op.bound_time_s for op in own))
    assert found.expected_s == pytest.approx(sum(op.expected_time_s for op in own))
    layer = {"q_proj, k_proj, v_proj": 20, "o_proj": 15, "gate_proj, up_proj": 70, "down_proj": 40}  # as above
    taken = {names: each * LAYERS // 2 for names, each in layer.items()} | ({"lm_head": 320} if stage == 2 else {})
    assert {", ".join(one.operators): round(1e6 * one.measured_s) for one in found.products} == taken
    assert sum(one.bound_s for one in found.products) == pytest.approx(
        sum(op.bound_time_s for op in own if op.kind in ("linear", "lm_head"))
    )
    said = " ".join(REPORT.text(found).split())
    assert f"stage {stage} of 2" in said
    assert "idle (waiting for other stages, or for the host)" in said


@pytest.mark.parametrize(("layout", "stage"), [("pp=2", None), ("pp=2", 0), ("pp=2", 3), ("", 1)])
def test_stages_there_are_not(tmp_path, layout, stage):
    path = written(tmp_path / "t.gz", laid([LAYER] * 3))
    with pytest.raises(InputError, match=r"^stage must be (1 to 2, the pipeline stage|left out without)"):
        timeline(path, analyze("llama-3.1-8b", "h100-sxm", layout=layout), stage=stage)


def test_operators_of_a_fused_kernel_share_a_row(tmp_path, llama):
    """By hand: additions with norms, RoPE with the cache; copies in every layer are not the one embedding."""
    layer = (*LAYER, ("void at::native::vectorized_elementwise_kernel<4, copy>", 2, 0))
    found = timeline(written(tmp_path / "t.gz", laid([layer] * 4)), llama)
    assert {work.operators: (len(work.kernels), round(1e6 * work.measured_s)) for work in found.elementwise} == {
        ("norm", "add"): (1, 3 * LAYERS), ("rope",): (2, 4 * LAYERS), ("activation",): (1, 3 * LAYERS),
        ("embedding",): (0, 0), (): (1, 2 * LAYERS),
    }  # fmt: skip
    part = next(part for part in found.parts if part.part == "elementwise")
    for key in ("launches", "measured_s", "bound_s", "expected_s"):
        assert sum(getattr(work, key) or 0 for work in found.elementwise) == pytest.approx(getattr(part, key))
    assert "norm, add" in REPORT.text(found)


def test_operators_are_grouped_by_the_kernel_that_runs_them(tmp_path, llama):
    """Eager attention: products of scores are among the others, and steps are as the engine named them."""
    layer = tuple((name.replace("flash_fwd", "gemm"), duration, pause) for name, duration, pause in LAYER)
    launches = list(laid([layer] * 3))
    steps = [("step[DECODE bs=8]", launches[i * len(launches) // 3][1]) for i in range(3)]
    found = timeline(written(tmp_path / "t.gz", launches, steps=steps), llama)
    products = next(part for part in found.parts if part.part == "matrix products")
    assert products.covers == ("attention",)
    kinds = ("linear", "lm_head", "attention")
    own = [op.bound_time_s for op in llama.phases.decode.operators if op.kind in kinds]
    assert products.bound_s == pytest.approx(sum(own))
    assert "matrix products, attention" in REPORT.text(found)


def test_reports_of_all_formats(tmp_path, capsys):
    path = str(written(tmp_path / "trace.json.gz", laid([LAYER] * 9)))
    command = ["timeline", path, "llama-3.1-8b", "h100-sxm", "--batch", "8"]
    assert main(command) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    assert "Mean of 7 passes" in text
    assert main([*command, "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["pass_time_s"] == pytest.approx(document["busy_s"] + document["idle_s"])
    assert main([*command, "-o", str(tmp_path / "folder")]) == 0
    rows = list(csv.DictReader(io.StringIO((tmp_path / "folder" / "timeline.csv").read_text())))
    assert {row["kind"] for row in rows} == {"part", "product", "elementwise", "kernel"}
    assert "nvjet_down" in (tmp_path / "folder" / "timeline.html").read_text()
    assert "nvjet_down" in (tmp_path / "folder" / "timeline.md").read_text()


def test_the_expected_time_of_a_pass_is_that_of_its_launches(tmp_path, llama):
    """As analyzed for launches that are merged as the library merges them; separate ones add what they take longer."""
    merged = timeline(written(tmp_path / "t.json", laid([LAYER] * 4)), llama)
    total = llama.phases.decode.total
    products = sum(product.expected_s for product in merged.products)
    analyzed = sum(op.expected_time_s for op in llama.phases.decode.operators if op.kind in ("linear", "lm_head"))
    assert merged.expected_s == pytest.approx(total.expected_time_s + products - analyzed)
    part = next(part for part in merged.parts if part.part == Part.PRODUCTS)
    assert part.expected_s == pytest.approx(products)
    apart = tuple(
        one for kernel in LAYER for one in ([kernel] if kernel[0] != "nvjet_qkv" else [("nvjet_q", 9, 0)] * 3)
    )
    separate = timeline(written(tmp_path / "s.json", laid([apart] * 4)), llama)
    three = next(part for part in separate.parts if part.part == Part.PRODUCTS)
    assert len(separate.products) == len(merged.products) + 2
    assert three.expected_s == pytest.approx(sum(product.expected_s for product in separate.products))
    assert separate.expected_s - merged.expected_s == pytest.approx(three.expected_s - part.expected_s)
    assert three.expected_s > part.expected_s
    ratio = separate.expected_s / total.expected_time_s
    assert separate.expected_low_s == pytest.approx(total.expected_low_s * ratio)
    assert separate.expected_high_s == pytest.approx(total.expected_high_s * ratio)


def test_mixed_passes_whose_sequences_are_not_divided_are_of_no_phase(tmp_path, llama):
    """SGLang's MIXED batches have one number for prompts and decodes."""
    step = parse_step("step[MIXED bs=12 toks=530]", 1.0)
    assert (step.phases, str(step)) == (("prefill", "decode"), "12 mixed sequences (530 tokens)")
    path = written(tmp_path / "t.json", laid([LAYER]), steps=[("step[MIXED bs=12 toks=530]", 0)])
    for phase in ("prefill", "decode", "mixed"):
        with pytest.raises(
            InputError, match=r"none of the 1 that the engine named .*: 12 mixed sequences \(530 tokens\)$"
        ):
            timeline(path, llama, phase=phase)
