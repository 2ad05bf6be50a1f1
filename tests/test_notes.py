"""Notes under a report: each is there where it is true, and nowhere else."""

from __future__ import annotations

import re

import pytest

import llmviewer
from llmviewer import analyze
from llmviewer.devices.files import load_hardware
from llmviewer.errors import InputError
from llmviewer.expectation.kernels import Kernels
from llmviewer.reports.operator_table import COLUMNS, rows
from llmviewer.units import si

_STANDS_IN = "no measured kernel for "
_MOST = "q_proj, k_proj, v_proj, o_proj and 3 more"


def notes(begin, *asked, **more):
    return [note for note in analyze(*asked, **more).notes if note.startswith(begin)]


@pytest.mark.parametrize(
    ("quant", "wanted", "told"),
    [
        ("W2A16", "int2 weights and bf16", "int4_wo kernels, with 4-bit weights and 16-bit"),
        ("W1.58A8", "int1.58 weights and int8", "sq kernels, with 8-bit weights and 8-bit"),
        ("W3A16g128", "int3 weights and bf16", "int4_wo kernels, with 4-bit weights and 16-bit"),
        ("W5A16", "int5 weights and bf16", "int8_wo kernels, with 8-bit weights and 16-bit"),
        ("W6A16", "int6 weights and bf16", "int8_wo kernels, with 8-bit weights and 16-bit"),
        ("nf4", "nf4 weights and bf16", "int4_wo kernels, with 4-bit weights and 16-bit"),
        ("W4A8g128", "int4 weights and int8", "sq kernels, with 8-bit weights and 8-bit"),
        ("nvfp4", "nvfp4 weights and nvfp4", "int4_wo kernels, with 4-bit weights and 16-bit"),
        ("W4Afp8", "int4 weights and fp8_e4m3", "int4_wo kernels, with 4-bit weights and 16-bit"),
        ("W4A4", "int4 weights and int4", "sq kernels, with 8-bit weights and 8-bit"),
    ],
)
def test_note_names_the_stand_in_for_an_unmeasured_format(quant, wanted, told):
    (note,) = notes(_STANDS_IN, "llama-3.1-8b", "h100-sxm", quant=quant)
    formats = wanted.replace(" and ", " with ")
    assert note == (
        f"no measured kernel for {formats} activations ({_MOST}): expected at the efficiency of {told} activations"
    )


@pytest.mark.parametrize("quant", ["W4A16g128", "W8A16", "W8A8", "fp8", "mxfp8", "mxfp4", "fp32", None])
def test_formats_that_were_measured_need_no_note(quant):
    assert not notes(_STANDS_IN, "llama-3.1-8b", "h100-sxm", quant=quant)


def test_stand_in_notes_name_the_experts_and_layers_concerned():
    (note,) = notes(_STANDS_IN, "mixtral-8x7b", "h100-sxm", quant="W16A16,expert_*=W3A16")
    assert "(expert_gate_proj, expert_up_proj, expert_down_proj): expected at the efficiency of int4" in note
    (note,) = notes(_STANDS_IN, "llama-3.1-8b", "h100-sxm", quant="W4A16g128,down_proj=W6A16")
    assert "(down_proj): expected at the efficiency of int8_wo kernels" in note


def test_note_names_the_library_used_where_the_requested_one_was_not_measured():
    asked = "llama-3.1-8b", "h100-sxm"
    begin = "no measured "
    assert notes(begin, *asked, quant="W4A16g128", library="vllm") == [
        f"no measured vllm kernels for {_MOST}: expected times use trtllm"
    ]
    assert not notes(begin, *asked, library="vllm")
    assert not notes(begin, *asked, quant="W4A16g128", library="trtllm")
    assert not notes(begin, *asked, quant="W4A16g128")  # none was asked for
    assert notes(begin, "llama-3.1-8b", "a100-sxm-80gb", library="trtllm") == [
        "no measured trtllm kernels for attention: expected times use sglang and vllm"
    ]
    totals = analyze("llama-3.1-8b", "a100-sxm-80gb", library="trtllm").phases.decode.operators
    (attention,) = (row for row in totals if row.name == "attention")
    own = "sglang 0.5.10 flash_attention and vllm 0.14.0 vllm_flash_attn"
    source = f"stand-in on a100-sxm-80gb: another library ({own})"
    assert attention.expectation_source == source
    sizes = {"kv_len": 1024, "q_heads": 32, "kv_heads": 8, "head_dim": 128}
    (kernel,) = llmviewer.kernel("attention", "a100-sxm-80gb", sizes)
    assert kernel.source == source


def test_no_stand_in_note_without_expected_times():
    assert not notes(_STANDS_IN, "llama-3.1-8b", "tpu-v5e", quant="W3A16")
    assert not notes(_STANDS_IN, "llama-2-7b", "h100-sxm", quant="W3A3", accounting="survey")


def test_fp32_models_get_a_note_on_16_bit_serving():
    assert notes("gpt2 is", "gpt2", "h100-sxm") == [
        "gpt2 is published in fp32; it is usually served in 16 bits (--quant bf16)"
    ]
    for quant in ("bf16", "fp32", "fp8"):
        assert not notes("gpt2 is", "gpt2", "h100-sxm", quant=quant)
    assert not notes("llama-3.1-8b comes", "llama-3.1-8b", "h100-sxm")


def test_note_counts_ranks_without_a_sequence():
    assert notes("batch ", "llama-3.1-8b", "h100-sxm", batch=4, layout="dp=8") == [
        "batch 4 is less than dp=8: 4 of 8 devices have no sequence and are idle"
    ]
    assert notes("batch ", "llama-3.1-8b", "h100-sxm", batch=1, layout="dp=4 tp=2") == [
        "batch 1 is less than dp=4: 6 of 8 devices have no sequence and are idle"
    ]
    assert notes("batch ", "deepseek-v3", "h200-sxm", batch=4, layout="dp=8 ep=8") == [
        "batch 4 is less than dp=8: 4 of 8 devices have no sequence and are idle but for their experts"
    ]
    assert not notes("batch ", "llama-3.1-8b", "h100-sxm", batch=8, layout="dp=8")


def test_note_names_the_kernel_library_of_an_engine():
    usual = Kernels(load_hardware("h100-sxm")).library
    other, same = ("openppl", "cublas"), {"vllm": "vllm", "sglang": "lightllm", "trtllm": "tensorrt-llm"}.get(usual)
    assert notes("expected times use ", "gpt2", "h100-sxm", engine=other[0]) == [
        f"expected times use {other[1]} kernels; without --engine, {usual} kernels"
    ]
    assert same
    assert not notes("expected times use ", "gpt2", "h100-sxm", engine=same)
    assert not notes("expected times use ", "gpt2", "h100-sxm")


def test_note_warns_of_little_free_memory_at_a_given_batch():
    kept = "allocators, engines and drivers (0.3 to 1 GB for a CUDA context) are not counted"
    asked = {"prompt": 1024, "layout": "tp=8"}
    assert notes("138 MB", "deepseek-v3", "h100-sxm", **asked) == [f"138 MB free may be too little: {kept}"]
    assert not any(kept in note for note in notes("", "deepseek-v3", "h200-sxm", **asked))
    assert not any(kept in note for note in notes("", "llama-3.1-8b", "h100-sxm", batch="max"))


def test_note_names_models_that_fit_in_the_last_level_cache():
    small = analyze("llama-68m", "mi300x", quant="bf16")
    held = small.memory.weight_bytes + small.memory.kv_cache_bytes
    assert held < 256 * 2**20
    (note,) = (note for note in small.notes if "fit in the" in note)
    assert note == (
        f"weights and KV cache, {si(held)}B, fit in the 256 MiB L3 of mi300x: passes that hit this cache can beat the "
        "bounds, which read from memory"
    )
    for larger in ({}, {"quant": "bf16", "batch": 64}, {"quant": "bf16", "offload": "weights=0.5"}):
        assert not any("fit in the" in note for note in analyze("llama-68m", "mi300x", **larger).notes)


def test_slow_newest_kernels_of_experts_are_named_with_the_option_of_the_server():
    """vLLM's per-tensor fp8 experts on Hopper: rows of 0.24 take up to six times as long as those of 0.22."""

    def told(*asked, **more):
        return notes("experts take", *asked, **more)

    (shown,) = told("qwen3-30b-a3b", "h200-sxm", quant="fp8", batch=32, engine="vllm")
    assert "0.24.0 (vllm_modeloptfp8moe_flashinfer_cutlass_flashinferexperts), as expected here" in shown
    assert " in that of 0.22.0 (vllm_fused_moe); --moe-backend chooses another kernel" in shown
    assert not told("qwen3-30b-a3b", "h200-sxm", quant="fp8", batch=32, engine="vllm", experts_kernel="fused_moe")
    with pytest.raises(InputError, match="must be part of the name of a kernel that was measured for these experts, "):
        analyze("qwen3-30b-a3b", "h200-sxm", quant="fp8", engine="vllm", experts_kernel="marlin")
    (idle,) = notes("experts kernel", "llama-3.1-8b", "h200-sxm", engine="vllm", experts_kernel="marlin")
    assert idle == "experts kernel marlin has no effect: llama-3.1-8b has no experts"
    slow, fast = (float(one) for one in re.findall(r"([\d.]+) ms", shown)[-2:])
    assert slow > 4 * fast
    assert not told("qwen3-30b-a3b", "h200-sxm", batch=32, engine="vllm")  # bf16: both versions are as fast
    assert not told("qwen3-30b-a3b", "b200", quant="fp8", batch=32, engine="vllm")  # the newest is the fastest
    assert not told("qwen3-30b-a3b", "h200-sxm", quant="fp8", batch=32)


def test_operators_that_an_engine_runs_in_one_launch_are_named():
    shown = " ".join(analyze("qwen3-32b", "h100-sxm", quant="fp8", layout="tp=2", engine="vllm").notes)
    assert "one launch of vLLM each" in shown
    products, fused = ("q_proj+k_proj+v_proj", "gate_proj+up_proj"), ("attn_add+mlp_norm", "mlp_add+attn_norm")
    assert all(launch in shown for launch in (*products, *fused))
    assert "down_proj_all_reduce+mlp_add+attn_norm of the next layer" in shown
    assert "one launch" not in " ".join(analyze("qwen3-32b", "h100-sxm", layout="tp=2").notes)
    assert "one launch" not in " ".join(analyze("qwen3-8b", "rtx-4090", quant="Q4_K_M", engine="llama.cpp").notes)
    alone = " ".join(analyze("llama-2-7b", "a100-sxm-80gb", engine="huggingface").notes)
    assert "one launch" not in alone  # PyTorch launches every operator by itself


def test_tables_mark_operators_in_the_launch_of_another():
    """Each launch of an engine has one number in the column of launches, that of its first operator, which may be one
    of the layer before.
    """
    engine, plain = (analyze("qwen3-32b", "h100-sxm", layout="tp=2", engine=name) for name in ("vllm", ""))
    phase = engine.phases.decode
    shared = {op.name: op.shared_launch for op in phase.operators if op.shared_launch}
    launches = (
        "q_proj+k_proj+v_proj", "o_proj_all_reduce+attn_add+mlp_norm", "gate_proj+up_proj",
        "down_proj_all_reduce+mlp_add+attn_norm",
    )  # fmt: skip
    assert shared == {name: launch for launch in launches for name in launch.split("+")}
    column = COLUMNS.index("x")
    marked = [row[0].text for row in rows(phase, per_call=False) if row[column].text == "+"]
    assert marked == ["attn_norm", "k_proj", "v_proj", "attn_add", "mlp_norm", "up_proj", "mlp_add"]
    assert {op.shared_launch for op in plain.phases.decode.operators} == {""}
    assert not any(row[column].text == "+" for row in rows(plain.phases.decode, per_call=False))
