"""Bounds of operators in the published precision and in a chosen one: arXiv:2402.16363, section 3.1.1."""

from __future__ import annotations

import pytest

from llmviewer.analyzing.analysis import analyze
from llmviewer.analyzing.precision_effect import TOTAL


def shifts(analysis, phase):
    return {(one.before, one.after): one.share for one in analysis.precision_effect[phase].shifts}


def test_the_published_precision_has_no_effect():
    assert analyze("llama-2-7b", "a100-sxm-80gb").precision_effect is None


def test_one_token_stays_memory_bound_and_gains_as_its_bytes_shrink():
    """W4A16 without groups: a quarter of the bytes of all weights but the head, and the same bytes of the cache."""
    analysis = analyze("llama-2-7b", "a100-sxm-80gb", quant="W4A16", gen=64)
    assert shifts(analysis, "decode") == {("memory", "memory"): pytest.approx(1)}
    assert 3 < analysis.precision_effect["decode"].speed_up < 4


def test_weights_in_4_bits_leave_a_long_prompt_compute_bound_without_gain():
    analysis = analyze("llama-2-7b", "a100-sxm-80gb", quant="W4A16", prompt=2048, batch=8)
    assert shifts(analysis, "prefill")["compute", "compute"] > 0.9
    assert analysis.precision_effect["prefill"].speed_up == pytest.approx(1, abs=0.02)


def test_between_the_ridges_a_batch_goes_from_memory_to_compute():
    """The ridge is 312e12 / 2.04e12 = 153 OPs/B; 96 rows have 96 OPs/B of 16-bit weights, 384 of 4-bit ones."""
    analysis = analyze("llama-2-7b", "a100-sxm-80gb", quant="W4A16", batch=96, prompt=16)
    products = shifts(analysis, "decode")["memory", "compute"]
    assert products > 0.5
    assert 1 < analysis.precision_effect["decode"].speed_up < 4


def test_the_generation_is_its_phases_by_their_time():
    analysis = analyze("llama-2-7b", "a100-sxm-80gb", quant="W8A8", gen=128)
    before = analyze("llama-2-7b", "a100-sxm-80gb", gen=128).generation
    effect = analysis.precision_effect
    assert effect[TOTAL].speed_up == pytest.approx(before.latency_s / analysis.generation.latency_s)
    part = before.ttft_s / before.latency_s
    moved = part * shifts(analysis, "prefill")["compute", "compute"]
    assert shifts(analysis, TOTAL)["compute", "compute"] == pytest.approx(moved, rel=1e-6)
    for name in effect:
        assert sum(shifts(analysis, name).values()) == pytest.approx(1)


def test_document_and_report_state_the_precision_effect():
    analysis = analyze("llama-2-7b", "a100-sxm-80gb", quant="W8A8")
    first = analysis.to_dict()["precision_effect"]["prefill"]["shifts"][0]
    assert (first["before"], first["after"]) == ("compute", "compute")
    assert "compute to compute" in str(analysis)


def test_without_the_published_precision_there_is_no_effect():
    """Survey accounting has one precision for all operators; gpt-oss is published in several."""
    assert analyze("gpt-oss-20b", "h100-sxm", quant="W16A16", accounting="survey").precision_effect is None
