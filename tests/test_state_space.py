"""States instead of caches: convolutions and scans by hand, and what stays between passes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmviewer.forms import evaluate
from llmviewer.model_files import load_model
from llmviewer.operators.base import Role
from llmviewer.setting import Setting
from llmviewer.workload import Sequences, Workload

PREFILL, DECODE = Workload.prefill(batch=2, prompt=100), Workload.decode(batch=2, kv_len=101)


def operators(name, block=1):
    return {op.name: op for op in load_model(name).graph.blocks[block].operators}


def counted(op, workload):
    work = op.work()
    return tuple(float(evaluate(form, workload)) for form in (work.ops, work.weight_bytes, work.kv_bytes))


@given(st.integers(1, 400), st.integers(1, 130))
def test_pairs_within_chunks_are_those_of_a_loop(tokens, chunk):
    pairs = sum(1 for q in range(tokens) for k in range(q + 1) if q // chunk == k // chunk)
    assert Sequences(batch=1, q_len=tokens, kv_len=tokens).chunk_pairs(chunk) == pairs


def test_a_convolution_multiplies_and_adds_each_tap():
    conv = operators("mamba-130m")["conv"]  # 1536 channels, 4 taps with a bias, fp32
    state = 2 * 1536 * 3 * 4  # two sequences keep three tokens
    assert counted(conv, PREFILL) == (200 * 1536 * (2 * 4 + 4), 1536 * 5 * 4, 2 * state)
    assert counted(conv, DECODE) == (2 * 1536 * (2 * 4 + 4), 1536 * 5 * 4, 2 * state)


def test_a_selective_scan_goes_token_by_token():
    scan = operators("mamba-130m")["scan"]  # 16 elements of state a channel
    state = 2 * 1536 * 16 * 4
    assert counted(scan, PREFILL) == (200 * 1536 * (8 * 16 + 12), 1536 * 17 * 4, 2 * state)
    assert counted(scan, DECODE)[0] == 2 * 1536 * (8 * 16 + 12)


def test_a_scan_in_chunks_has_products_within_a_chunk_and_states_between():
    scan = operators("mamba2-2.7b")["scan"]  # 80 heads of 64, state of 128, one group, chunks of 256
    pairs = 2 * (100 * 101 / 2)
    within, between = 2 * 128 + 2 * 80 * 64, 4 * 80 * 64 * 128
    assert counted(scan, PREFILL)[0] == pairs * within + 200 * between
    assert counted(scan, DECODE)[0] == 2 * (within + between)
    assert counted(scan, DECODE)[2] == 2 * 2 * 80 * 64 * 128 * 4  # read and written, in fp32


def test_a_delta_rule_keeps_a_matrix_for_every_value_head():
    scan = operators("qwen3-next-80b-a3b")["scan"]  # 32 value heads, keys and values of 128, chunks of 64
    pairs = 2 * (64 * 65 / 2 + 36 * 37 / 2)
    assert counted(scan, PREFILL)[0] == pairs * 32 * (6 * 128 + 4 * 128) + 200 * 32 * 6 * 128 * 128
    assert counted(scan, DECODE)[2] == 2 * 2 * 32 * 128 * 128 * 4


@pytest.mark.parametrize(
    ("name", "a_token", "state"),
    [
        ("mamba2-2.7b", 0, 64 * (80 * 64 * 128 * 4 + 5376 * 3 * 4)),  # fp32 checkpoint: conv state in fp32 too
        ("jamba-v0.1", 4 * 2 * 8 * 128 * 2, 28 * (8192 * 16 * 4 + 8192 * 3 * 2)),  # 4 of 32 layers attend
        ("qwen3-next-80b-a3b", 12 * 2 * 2 * 256 * 2, 36 * (32 * 128 * 128 * 4 + 8192 * 3 * 2)),
        ("nemotron-3-nano-30b-a3b", 6 * 2 * 2 * 128 * 2, 23 * (64 * 64 * 128 * 4 + 6144 * 3 * 2)),
    ],
)
def test_a_state_does_not_grow_with_the_context_and_a_cache_does(name, a_token, state):
    model = load_model(name)
    assert model.kv_bytes_per_token == a_token
    footprint = Setting.of(name, "h100-sxm").footprint
    for context in (1, 1000):
        _, cache, _ = footprint.parts(batch=3, prompt=context, gen=0)
        assert cache == 3 * (state + context * a_token)


def test_precision_schemes_leave_states_alone():
    graph = Setting.of("qwen3-next-80b-a3b", "h100-sxm", quant="W8A8KV8").graph.check()
    kept = {t.format.name for _, op in graph for t in op.inputs if t.role is Role.STATE and t.name == "delta_state"}
    assert kept == {"fp32"}
    assert {t.format.name for _, op in graph for t in op.inputs if t.role is Role.KV_CACHE} == {"int8"}


@pytest.mark.parametrize("name", ["mamba-2.8b", "mamba2-2.7b", "jamba-v0.1", "nemotron-h-56b", "qwen3.5-27b"])
@pytest.mark.parametrize("quant", ["W16A16", "W4A16g128", "fp8"])
def test_every_hybrid_runs_under_every_technique(name, quant):
    for attention in ("flash", "eager"):
        setting = Setting.of(name, "h100-sxm", quant=quant, attention=attention)
        setting.graph.check()
        steps = setting.decode_plan.time_s(Workload.decode(batch=np.arange(1, 9), kv_len=500))
        assert np.all(np.diff(steps) > 0)


def test_decode_of_a_state_space_model_does_not_slow_down_with_the_context():
    plan = Setting.of("mamba-2.8b", "h100-sxm").decode_plan
    assert plan.time_s(Workload.decode(batch=1, kv_len=10)) == plan.time_s(Workload.decode(batch=1, kv_len=100_000))
