"""TTFT, TPOT and latency by hand."""

from __future__ import annotations

import numpy as np
import pytest

from llmviewer.analyzing.analysis import analyze
from llmviewer.generation import generation
from llmviewer.setting import Setting
from llmviewer.workload import Workload


def _plan(**kwargs):
    return Setting.of("llama-2-7b", "a100-sxm-80gb", **kwargs).plan


def test_the_first_token_comes_with_the_prefill():
    found = analyze("llama-2-7b", "a100-sxm-80gb", prompt=500, gen=1)
    assert (
        found.generation.ttft_s
        == found.generation.latency_s
        == float(_plan().time_s(Workload.prefill(batch=1, prompt=500)))
    )


def test_one_token_takes_no_decode_step():
    found = analyze("llama-2-7b", "a100-sxm-80gb", batch=4, prompt=500, gen=1).generation
    assert found.tpot_s is None
    assert found.tokens_per_s == 4 / found.ttft_s


def test_each_further_token_takes_a_step_that_attends_to_all_before_it_and_itself():
    plan = _plan()
    steps = [float(plan.time_s(Workload.decode(batch=3, kv_len=n))) for n in (11, 12, 13)]
    found = analyze("llama-2-7b", "a100-sxm-80gb", batch=3, prompt=10, gen=4).generation
    assert found.latency_s == pytest.approx(found.ttft_s + sum(steps), rel=1e-14)
    assert found.tpot_s == pytest.approx(sum(steps) / 3, rel=1e-14)
    assert found.tokens_per_s == pytest.approx(3 * 4 / found.latency_s, rel=1e-14)


def test_the_first_step_is_the_one_shown():
    found = analyze("llama-2-7b", "a100-sxm-80gb", prompt=10, gen=2)
    assert found.phases.decode.kv_len == 11
    assert found.generation.tpot_s == pytest.approx(found.phases.decode.total.bound_time_s, rel=1e-14)


def test_the_weights_alone_bound_a_decode_step_by_hand():
    """All weights but the embedding cross the bus each step; 2039 GB/s."""
    weights = 2 * (6738415616 - 32000 * 4096)
    found = analyze("llama-2-7b", "a100-sxm-80gb", prompt=1, gen=2).generation
    assert 1 < found.tpot_s / (weights / 2039e9) < 1.002  # activations and a cache of two tokens come on top


def test_a_step_grows_by_the_reading_of_one_more_cached_token():
    plan = _plan()
    step = [float(plan.time_s(Workload.decode(batch=1, kv_len=n))) for n in (1000, 1001)]
    assert step[1] - step[0] == pytest.approx(524288 / 2039e9, rel=1e-6)  # a small difference of large numbers


def test_a_full_window_stops_the_growth():
    plan = Setting.of("mistral-7b-v0.1", "a100-sxm-80gb").plan
    full, longer = (float(plan.time_s(Workload.decode(batch=1, kv_len=n))) for n in (4096, 100_000))
    assert full == longer


def test_arrays_of_lengths_have_nan_where_no_step_is_taken():
    found = generation(_plan(), batch=1, prompt=np.array([5, 5]), gen=np.array([1, 2]))
    assert np.isnan(found.tpot_s[0])
    assert found.tpot_s[1] > 0
    assert found.latency_s[0] == found.ttft_s[0]


def test_a_larger_batch_gives_more_tokens_a_second():
    one, many = (analyze("llama-2-7b", "a100-sxm-80gb", batch=b).generation for b in (1, 8))
    assert one.tokens_per_s < many.tokens_per_s < 8 * one.tokens_per_s
