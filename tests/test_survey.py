"""Numbers printed in "LLM Inference Unveiled" (arXiv:2402.16363), and of the public tool that made its figures."""

from __future__ import annotations

import numpy as np
import pytest

from llmviewer.analyzing.analysis import analyze
from llmviewer.forms import evaluate
from llmviewer.memory import activation_bytes, weight_bytes
from llmviewer.model import kv_cache
from llmviewer.resource import MEMORY
from llmviewer.setting import Setting
from llmviewer.workload import Workload

from .survey import BATCHES, FIGURE_6, FIGURE_7, FIGURE_8, LENGTHS, TABLE_1, TOOL


@pytest.fixture(scope="module")
def table_1():
    result = analyze(
        "llama-2-7b", "rtx-a6000", prompt=2048, kv_len=2048, accounting="survey",
        hardware_set=("matrix.fp16=155 TOP/s",),
    )  # fmt: skip
    return {(phase, op.name): op for phase, found in result.phases for op in found.operators}


@pytest.mark.parametrize(("phase", "name", "ops", "nbytes", "intensity", "attainable", "bound", "time_us"), TABLE_1)
def test_table_1_of_the_paper(table_1, phase, name, ops, nbytes, intensity, attainable, bound, time_us):
    op = table_1[phase, name]
    assert (op.per_call.ops, op.per_call.bytes, op.bound) == (ops, nbytes, bound)
    assert round(op.intensity, 4) == intensity
    assert round(op.attainable_ops_per_s / 1e12, 4) == attainable
    assert round(op.per_call.bound_time_s * 1e6, 3) == time_us
    assert op.repeat == 32


def test_both_norms_and_both_additions_are_alike(table_1):
    for phase in ("prefill", "decode"):
        for name in ("norm", "add"):
            assert table_1[phase, f"attn_{name}"].per_call == table_1[phase, f"mlp_{name}"].per_call


def test_most_of_prefill_is_compute_bound_and_all_of_decode_memory_bound():
    assert [row[6] for row in TABLE_1 if row[0] == "prefill"].count("compute") == 7
    assert {row[6] for row in TABLE_1 if row[0] == "decode"} == {"memory"}


def test_totals_of_the_public_tool():
    result = analyze("llama-2-7b", "rtx-a6000", prompt=2048, kv_len=2048, accounting="survey", hardware_set=TOOL)
    assert round(result.phases.prefill.total.bound_time_s * 1e3, 6) == 226.878591
    assert round(result.phases.decode.total.bound_time_s * 1e3, 6) == 18.636915


def _plan(quant):
    setting = Setting.of("llama-2-13b", "rtx-a6000", quant=quant, accounting="survey", hardware_set=TOOL)
    return setting.plan


@pytest.mark.parametrize(
    ("quant", "times_ms"),
    FIGURE_7,
)
def test_figure_7_decode_time_by_batch(quant, times_ms):
    step = Workload.decode(batch=np.array(BATCHES), kv_len=1024)
    assert tuple(np.round(_plan(quant).time_s(step) * 1e3, 2)) == times_ms


@pytest.mark.parametrize(
    ("quant", "times_ms"),
    FIGURE_8,
)
def test_figure_8_prefill_time_by_length(quant, times_ms):
    prompts = Workload.prefill(batch=1, prompt=np.array(LENGTHS))
    assert tuple(np.round(_plan(quant).time_s(prompts) * 1e3, 2)) == times_ms


@pytest.mark.parametrize(
    ("quant", "q_proj", "gate_proj"),
    [("W16", 219, 214), ("W8", 110, 107), ("W4", 55, 54), ("W2", 28, 27), ("W1", 14, 14)],
)
def test_the_batch_at_which_weights_become_compute_bound(quant, q_proj, gate_proj):
    batches = np.arange(1, 300)
    rows = _plan(quant).estimate(Workload.decode(batch=batches, kv_len=1024)).operators
    memory_bound = {row.operator.name: [limit == MEMORY for limit in row.limiting] for row in rows}
    for name, first in (("q_proj", q_proj), ("gate_proj", gate_proj)):
        assert memory_bound[name] == [True] * (first - 1) + [False] * (299 - first + 1)


@pytest.mark.parametrize(
    ("stage", "batch", "n", "total_gb", "split", "w4", "w4kv4", "w4a4kv4"),
    FIGURE_6,
)
def test_figure_6_memory_relative_to_fp16(stage, batch, n, total_gb, split, w4, w4kv4, w4a4kv4):
    w = Workload.decode(batch=batch, kv_len=n) if stage == "decode" else Workload.prefill(batch=batch, prompt=n)

    def parts(quant):
        graph = Setting.of("llama-2-13b", "rtx-a6000", quant=quant, accounting="survey").graph
        cache = evaluate(kv_cache(graph), Workload.decode(batch=batch, kv_len=n))
        return weight_bytes(graph), cache, activation_bytes(graph, w)

    fp16 = parts("W16")
    assert round(sum(fp16) / 1e9, 2) == total_gb
    assert tuple(round(part / sum(fp16), 3) for part in fp16) == split
    for quant, share in (("W4", w4), ("W4KV4", w4kv4), ("W4A4KV4", w4a4kv4)):
        assert round(sum(parts(quant)) / sum(fp16), 3) == share


@pytest.mark.parametrize(
    ("quant", "dtype"),
    [("W8A8", "fp16"), ("W8A8KV8", "int8"), ("W4A8KV8", "int8"), ("W8A16KV8", "fp16"), ("W4", "fp16")],
)
def test_the_low_bit_peak_needs_weights_activations_and_cache_in_few_bits(quant, dtype):
    result = analyze("llama-2-7b", "rtx-a6000", quant=quant, accounting="survey")
    assert {op.compute_dtype for _, phase in result.phases for op in phase.operators} == {dtype}


def test_overrides_have_no_place_in_the_surveys_accounting():
    with pytest.raises(ValueError, match=r"^accounting survey has one precision for all operators; drop the overrides"):
        analyze("llama-2-7b", "rtx-a6000", quant="W4,down_proj=W8", accounting="survey")


@pytest.mark.parametrize(("quant", "weight", "activation"), [("W16A16", 16, 16), ("W8A8", 8, 8), ("W4A16", 4, 16)])
def test_experts_are_in_the_precision_of_all_others(quant, weight, activation):
    found = analyze("mixtral-8x7b", "h200", quant=quant, accounting="survey", prompt=512)
    hidden, inner, heads, kv_heads = 4096, 14336, 32 * 128, 8 * 128
    each = hidden * (2 * heads + 2 * kv_heads) + 8 * hidden + 8 * 3 * hidden * inner
    assert found.memory.weight_bytes == 32 * each * weight / 8
    up = next(op for op in found.phases.prefill.operators if op.name == "expert_up_proj")
    assert up.per_call.ops == 2 * 2 * 512 * hidden * inner  # of each token two experts
    assert up.per_call.activation_bytes == 2 * 512 * (hidden + inner) * activation / 8
    copies = next(op for op in found.phases.prefill.operators if op.name == "permute")
    assert copies.per_call.activation_bytes == (512 * hidden + 2 * 512 * (hidden + 1)) * activation / 8
