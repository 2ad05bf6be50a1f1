"""Laws that hold for any model, workload, precision and device."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from llmviewer.analyzing.analysis import analyze
from llmviewer.devices.files import load_hardware
from llmviewer.devices.hardware import Hardware
from llmviewer.forms import evaluate
from llmviewer.graph import Graph
from llmviewer.model_files import load_model, model_names
from llmviewer.operators.base import Role
from llmviewer.precision import parse_scheme
from llmviewer.resource import Resource, Unit
from llmviewer.roofline import Estimate, estimate, plan
from llmviewer.setting import Setting
from llmviewer.transforms.flash_attention import flash_attention
from llmviewer.transforms.quantize import parse_quantization, quantize
from llmviewer.transforms.survey import survey
from llmviewer.workload import Sequences, Workload

from .strategies import QUANTS, balanced_devices, devices, graphs, workloads

A100 = load_hardware("a100-sxm-80gb")
SUMS = ("ops", "weight_bytes", "activation_bytes", "kv_bytes")
quants = st.sampled_from(QUANTS)
lengths = st.integers(1, 60)


def _graph(graph: Graph, quant: str, *, flash: bool, on_chip_bytes: float = inf) -> Graph:
    transforms = (quantize(parse_quantization(quant)), *((flash_attention(on_chip_bytes),) if flash else ()))
    return graph.then(*transforms)


def _sums(graph: Graph, w: Workload, hardware: Hardware = A100) -> dict[str, float]:
    result = estimate(graph, w, hardware)
    return {name: float(result.sum(name)) for name in SUMS}


def _kv_written(graph: Graph, w: Workload) -> float:
    tensors = ((b.repeat, t) for b, op in graph for t in op.writes() if t.role is Role.KV_CACHE)
    return sum(n * evaluate(t.nbytes, w) for n, t in tensors)


def _chunks(batch: int, cuts: list[int]) -> list[Workload]:
    """A prompt in chunks of `cuts` tokens; logits are wanted of the last alone."""
    past, passes = 0, []
    for index, chunk in enumerate(cuts):
        logits = 1 if index == len(cuts) - 1 else 0
        passes.append(Workload((Sequences(batch=batch, q_len=chunk, kv_len=past + chunk, logits=logits),)))
        past += chunk
    return passes


@given(graphs(), quants, st.booleans(), st.integers(1, 4), st.lists(st.integers(1, 20), min_size=1, max_size=6))
def test_chunks_of_a_prefill_sum_to_the_whole_in_ops_and_in_cache_written(
    graph: Graph, quant: str, flash: bool, batch: int, cuts: list[int]
) -> None:
    cut = _graph(graph, quant, flash=flash)
    whole, passes = Workload.prefill(batch=batch, prompt=sum(cuts)), _chunks(batch, cuts)
    assert sum(_sums(cut, w)["ops"] for w in passes) == _sums(cut, whole)["ops"]
    # 2**-50 relative: bytes of a group of 128 are dyadic, those of 1.58 bits are not
    assert sum(_kv_written(cut, w) for w in passes) == pytest.approx(_kv_written(cut, whole), rel=1e-15)


@given(graphs(), quants, st.integers(1, 4), st.integers(0, 60))
def test_decode_is_the_last_chunk_of_prefill(graph: Graph, quant: str, batch: int, past: int) -> None:
    cut = _graph(graph, quant, flash=True)
    decode, chunk = Workload.decode(batch=batch, kv_len=past + 1), Workload.chunk(batch=batch, chunk=1, past=past)
    assert _sums(cut, decode) == _sums(cut, chunk)
    assert plan(cut, A100).time_s(decode) == plan(cut, A100).time_s(chunk)


@given(graphs(), quants, st.booleans(), balanced_devices(), st.data())
def test_a_scalar_equals_its_entry_in_an_array_to_the_last_bit(
    graph: Graph, quant: str, flash: bool, hardware: Hardware, data: st.DataObject
) -> None:
    laid_out = plan(_graph(graph, quant, flash=flash, on_chip_bytes=hardware.on_chip_bytes), hardware)
    points = data.draw(st.lists(st.tuples(lengths, lengths, st.integers(0, 60)), min_size=1, max_size=5))
    batch, q_len, past = (np.array(column) for column in zip(*points, strict=True))
    together = Workload.chunk(batch=batch, chunk=q_len, past=past)
    times, rows = laid_out.time_s(together), laid_out.estimate(together).operators
    for index, (b, q, p) in enumerate(points):
        alone = Workload.chunk(batch=b, chunk=q, past=p)
        assert laid_out.time_s(alone) == times[index]
        for one, many in zip(laid_out.estimate(alone).operators, rows, strict=True):
            for name in (*SUMS, "conversion_ops", "bytes", "time_s"):
                assert getattr(one, name) == np.broadcast_to(getattr(many, name), batch.shape)[index]
            assert one.limiting == np.broadcast_to(many.limiting, batch.shape)[index]


@given(graphs(), quants, workloads())
def test_flash_attention_moves_no_more_bytes_and_has_the_same_ops(graph: Graph, quant: str, w: Workload) -> None:
    eager, flash = (_sums(_graph(graph, quant, flash=flash), w) for flash in (False, True))
    assert flash["ops"] == eager["ops"]
    assert flash["weight_bytes"] == eager["weight_bytes"]
    assert flash["kv_bytes"] == eager["kv_bytes"]
    assert flash["activation_bytes"] < eager["activation_bytes"]


@pytest.mark.parametrize("model", ["llama-2-7b", "llama-3-8b", "falcon-7b", "gpt2", "mistral-7b-v0.1"])
@pytest.mark.parametrize("device", ["a100-sxm-80gb", "t4", "i9-13900k"])
def test_flash_attention_with_the_tiles_of_a_device_moves_fewer_bytes_at_any_length(model: str, device: str) -> None:
    hardware, graph = load_hardware(device), load_model(model).graph
    w = Workload.prefill(batch=1, prompt=2 ** np.arange(1, 21))
    flash = estimate(graph.then(flash_attention(hardware.on_chip_bytes)), w, hardware)
    assert np.all(flash.sum("bytes") < estimate(graph, w, hardware).sum("bytes"))


def _with_rate(hardware: Hardware, resource: Resource, factor: float) -> Hardware:
    return replace(hardware, rates={**hardware.rates, resource: hardware.rates[resource] * factor})


@given(graphs(), quants, st.booleans(), devices(), workloads(200), st.floats(0.05, 0.999), st.data())
def test_time_never_falls_when_a_rate_is_lowered_and_never_rises_when_it_is_raised(
    graph: Graph, quant: str, flash: bool, hardware: Hardware, w: Workload, factor: float, data: st.DataObject
) -> None:
    cut = _graph(graph, quant, flash=flash, on_chip_bytes=hardware.on_chip_bytes)
    resource = data.draw(st.sampled_from(sorted(hardware.rates)))
    as_it_is = plan(cut, hardware).time_s(w)
    assert plan(cut, _with_rate(hardware, resource, factor)).time_s(w) >= as_it_is
    assert plan(cut, _with_rate(hardware, resource, 1 / factor)).time_s(w) <= as_it_is


def test_a_vector_unit_that_overtakes_the_matrix_unit_does_not_slow_attention_down() -> None:
    v100 = load_hardware("v100-sxm2-32gb")  # bf16 is computed in fp16 on its matrix units, 125 TOP/s
    faster = _with_rate(v100, Resource(Unit.VECTOR, "fp32"), 126e12 / 15.7e12)
    graph = load_model("falcon-7b").graph.then(flash_attention(inf))
    w = Workload.prefill(batch=1, prompt=16384)
    (before,), (after,) = (
        [row for row in estimate(graph, w, device).operators if row.operator.name == "attention"]
        for device in (v100, faster)
    )
    assert after.time_s <= before.time_s


@given(graphs(), quants, st.sampled_from((inf, 1e5, 1e3)))
def test_quantize_and_flash_attention_commute(graph: Graph, quant: str, on_chip_bytes: float) -> None:
    first, second = quantize(parse_quantization(quant)), flash_attention(on_chip_bytes)
    assert graph.then(first, second) == graph.then(second, first)


@given(graphs(), quants, st.booleans(), balanced_devices(), workloads())
def test_totals_are_the_sums_of_their_parts(
    graph: Graph, quant: str, flash: bool, hardware: Hardware, w: Workload
) -> None:
    laid_out = plan(_graph(graph, quant, flash=flash, on_chip_bytes=hardware.on_chip_bytes), hardware)
    result = laid_out.estimate(w)
    for name in (*SUMS, "bytes", "time_s"):
        # 1e-13: sums of a few hundred terms in another order
        parts = sum(row.block.repeat * getattr(row, name) for row in result.operators)
        assert result.sum(name) == pytest.approx(parts, rel=1e-13)
    assert laid_out.time_s(w) == pytest.approx(result.time_s, rel=1e-13)
    for row in result.operators:
        assert row.bytes == row.weight_bytes + row.activation_bytes + row.kv_bytes


@given(graphs(), quants, st.booleans(), balanced_devices(), workloads())
def test_the_bound_is_the_largest_busy_time(
    graph: Graph, quant: str, flash: bool, hardware: Hardware, w: Workload
) -> None:
    for row in estimate(_graph(graph, quant, flash=flash), w, hardware).operators:
        assert row.time_s == max(row.busy_s.values()) == row.busy_s[row.limiting]
        assert row.time_s > 0 or (row.operator.kind == "lm_head" and not w.logits())


@given(graphs(), quants, st.booleans(), balanced_devices(), workloads())
def test_attainable_is_the_roofline_where_one_unit_does_all_the_ops(
    graph: Graph, quant: str, flash: bool, hardware: Hardware, w: Workload
) -> None:
    for row in estimate(_graph(graph, quant, flash=flash), w, hardware).operators:
        computing = [resource for resource in row.busy_s if resource.unit is not Unit.MEMORY]
        if row.ops and computing == [row.compute] and not row.conversion_ops:
            peak = hardware.limit(row.compute)
            roof = min(peak, row.intensity * hardware.bandwidth())
            assert row.attainable == pytest.approx(roof, rel=1e-14)  # three roundings
        if row.ops and row.operand_unit.unit is Unit.VECTOR:
            assert row.attainable <= hardware.limit(row.compute) * (1 + 1e-14)


@given(graphs(), st.booleans(), workloads(), st.data())
def test_fewer_bits_never_move_more_bytes_of_weights(
    graph: Graph, flash: bool, w: Workload, data: st.DataObject
) -> None:
    bits = (1, 1.58, 2, 3, 3.5, 4, 5, 6, 8, 16)
    few, many = sorted(data.draw(st.lists(st.sampled_from(bits), min_size=2, max_size=2, unique=True)))
    low, high = (_sums(_graph(graph, f"W{b}", flash=flash), w) for b in (few, many))
    assert low["weight_bytes"] < high["weight_bytes"]
    assert {**low, "weight_bytes": 0} == {**high, "weight_bytes": 0}


@given(graphs(), st.sampled_from(("W16A16", "W8", "W8A8KV8")), st.booleans())
def test_survey_and_faithful_accounting_share_names(graph: Graph, quant: str, flash: bool) -> None:
    fused = graph.then(flash_attention(inf)) if flash else graph
    surveyed = fused.then(survey(parse_scheme(quant)))
    faithful = {(b.name, op.name): op.kind for b, op in fused}
    assert {(b.name, op.name): op.kind for b, op in surveyed}.items() <= faithful.items()
    layers = {name for (block, name), kind in faithful.items() if block.endswith("layer") and kind != "rope"}
    assert {op.name for b, op in surveyed if b.name.endswith("layer")} == layers


@given(graphs(), quants, workloads(), workloads())
def test_a_mixed_batch_reads_weights_once_and_sums_everything_else(
    graph: Graph, quant: str, a: Workload, b: Workload
) -> None:
    cut = _graph(graph, quant, flash=True)
    rows = (estimate(cut, w, A100).operators for w in (a, b, a + b))
    for first, second, both in zip(*rows, strict=True):
        assert both.ops == first.ops + second.ops
        # 1e-14: bytes of 1.58-bit numbers are rounded
        assert both.activation_bytes == pytest.approx(first.activation_bytes + second.activation_bytes, rel=1e-14)
        assert both.kv_bytes == pytest.approx(first.kv_bytes + second.kv_bytes, rel=1e-14)
        if both.operator.kind == "embedding":  # a row for every token, but no more than the table has
            assert first.weight_bytes <= both.weight_bytes <= first.weight_bytes + second.weight_bytes
        elif both.operator.kind == "lm_head":  # not read where no logits are wanted
            assert both.weight_bytes == max(first.weight_bytes, second.weight_bytes)
        else:
            assert both.weight_bytes == first.weight_bytes == second.weight_bytes


@given(graphs(), quants, st.integers(1, 4), st.integers(0, 12), st.integers(0, 60))
def test_verifying_k_drafted_tokens_is_a_chunk_of_k_plus_1_with_as_mwith_logits(
    graph: Graph, quant: str, batch: int, draft: int, past: int
) -> None:
    cut = _graph(graph, quant, flash=True)
    verify, chunk = (
        Workload.verify(batch=batch, draft=draft, past=past),
        Workload.chunk(batch=batch, chunk=draft + 1, past=past),
    )
    for one, other in zip(estimate(cut, verify, A100).operators, estimate(cut, chunk, A100).operators, strict=True):
        if one.operator.kind == "lm_head":
            assert one.ops == (draft + 1) * other.ops
            assert one.activation_bytes == (draft + 1) * other.activation_bytes
            assert one.weight_bytes == other.weight_bytes
        else:
            assert {n: getattr(one, n) for n in SUMS} == {n: getattr(other, n) for n in SUMS}


@given(graphs(windows=False), quants, st.integers(1, 4), lengths, lengths)
def test_a_longer_context_or_a_larger_batch_never_takes_less(
    graph: Graph, quant: str, batch: int, prompt: int, more: int
) -> None:
    laid_out = plan(_graph(graph, quant, flash=True, on_chip_bytes=1e4), A100)
    at = laid_out.time_s(Workload.prefill(batch=batch, prompt=prompt))
    assert laid_out.time_s(Workload.prefill(batch=batch, prompt=prompt + more)) >= at
    assert laid_out.time_s(Workload.prefill(batch=batch + more, prompt=prompt)) >= at


@given(graphs(), st.integers(1, 4), lengths)
def test_a_batch_takes_no_longer_together_than_one_by_one(graph: Graph, batch: int, prompt: int) -> None:
    laid_out = plan(_graph(graph, "W16A16", flash=True), A100)
    together = laid_out.time_s(Workload.prefill(batch=batch, prompt=prompt))
    assert together <= batch * laid_out.time_s(Workload.prefill(batch=1, prompt=prompt)) * (1 + 1e-14)


@given(graphs(), st.booleans(), balanced_devices(), workloads())
def test_time_is_at_least_bytes_over_bandwidth_and_ops_over_all_peaks(
    graph: Graph, flash: bool, hardware: Hardware, w: Workload
) -> None:
    result: Estimate = estimate(_graph(graph, "W16A16", flash=flash), w, hardware)
    fastest = max(hardware.limit(resource) for resource in hardware.rates if resource.unit is not Unit.MEMORY)
    assert result.time_s >= result.sum("bytes") / hardware.bandwidth() * (1 - 1e-13)
    assert result.time_s >= result.sum("ops") / (len(hardware.rates) * fastest)


@given(
    st.sampled_from(model_names()),
    st.sampled_from(("flash", "eager")),
    st.integers(1, 8),
    st.integers(1, 300),
    st.integers(1, 5),
)
@example("llama-2-7b", "flash", 1, 1024, 128)
def test_an_analysis_adds_up(model: str, attention: str, batch: int, prompt: int, gen: int) -> None:
    asked = {"batch": batch, "prompt": prompt, "gen": gen, "attention": attention}
    result = analyze(model, "a100-sxm-80gb", quant="W4A16g128", **asked)
    for _, phase in result.phases:
        total = phase.total
        for name in (*SUMS, "bytes"):
            assert getattr(total, name) == pytest.approx(sum(getattr(op, name) for op in phase.operators), rel=1e-13)
            for op in phase.operators:
                assert getattr(op, name) == pytest.approx(op.repeat * getattr(op.per_call, name), rel=1e-14)
        assert total.bytes == pytest.approx(total.weight_bytes + total.activation_bytes + total.kv_bytes, rel=1e-13)
        assert total.bound_time_s == pytest.approx(sum(op.bound_time_s for op in phase.operators), rel=1e-13)
        assert sum(op.share for op in phase.operators) == pytest.approx(1, rel=1e-13)
        assert sum(total.time_by_bound_s.values()) == pytest.approx(total.bound_time_s, rel=1e-13)
        assert total.time_by_bound_s[total.bound] == max(total.time_by_bound_s.values())
    assert result.generation.ttft_s == pytest.approx(result.phases.prefill.total.bound_time_s, rel=1e-13)
    if gen == 2:  # one decode step, the one shown
        assert result.generation.tpot_s == pytest.approx(result.phases.decode.total.bound_time_s, rel=1e-12)


@given(st.sampled_from(("llama-2-7b", "gpt-j-6b", "falcon-7b")), quants, st.integers(1, 4), lengths)
def test_numbers_of_numpy_and_of_python_give_the_same(model: str, quant: str, batch: int, prompt: int) -> None:
    made = Setting.of(model, "a100-sxm-80gb", quant=quant).plan
    w, same = (Workload.prefill(batch=kind(batch), prompt=kind(prompt)) for kind in (int, np.int64))
    assert made.time_s(w) == made.time_s(same)


def test_narrow_integers_do_not_overflow() -> None:
    narrow = Workload.prefill(batch=np.array([65536], dtype=np.int32), prompt=65536)
    assert float(narrow.tokens()[0]) == 2.0**32


def test_learned_rows_are_read_at_most_once_each() -> None:
    """A prompt of more tokens than the vocabulary has entries reads no more than the table."""
    rows = estimate(load_model("gpt2").graph, Workload.prefill(batch=64, prompt=1024), A100).operators
    assert rows[0].operator.name == "embed_tokens"
    assert rows[0].weight_bytes <= (50257 + 1024) * 768 * 4


def test_no_head_is_read_where_no_logits_are_wanted() -> None:
    w = Workload((Sequences(batch=1, q_len=8, kv_len=8, logits=0),))
    head = estimate(load_model("llama-2-7b").graph, w, A100).operators[-1]
    assert (head.operator.name, head.ops) == ("lm_head", 0)
    assert head.weight_bytes == 0
