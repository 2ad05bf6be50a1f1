"""Footprints by hand: weights, cache, live activations, and what fits."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from llmviewer.analyzing.analysis import analyze
from llmviewer.cli import main
from llmviewer.devices.files import load_hardware
from llmviewer.errors import InputError
from llmviewer.forms import evaluate
from llmviewer.memory import live_bytes, weight_bytes
from llmviewer.model_files import load_model
from llmviewer.reports.analysis import REPORT
from llmviewer.setting import Setting
from llmviewer.workload import Workload

LLAMA_2_7B = 6738415616
MATRICES = 32 * (4 * 4096**2 + 3 * 4096 * 11008)  # what a scheme without overrides quantizes


@pytest.mark.parametrize(
    ("quant", "nbytes"),
    [
        (None, 2 * LLAMA_2_7B),
        ("W8", 2 * (LLAMA_2_7B - MATRICES) + MATRICES),
        ("W4", 2 * (LLAMA_2_7B - MATRICES) + MATRICES / 2),
        ("W4g128", 2 * (LLAMA_2_7B - MATRICES) + MATRICES * 4.15625 / 8),
        ("W4A16,lm_head=W4", 2 * (LLAMA_2_7B - MATRICES - 32000 * 4096) + (MATRICES + 32000 * 4096) / 2),
        ("KV8", 2 * LLAMA_2_7B),
    ],
)
def test_weights_of_llama_2_7b(quant, nbytes):
    assert weight_bytes(Setting.of("llama-2-7b", "a100-sxm-80gb", quant=quant).graph) == nbytes


def test_a_tied_head_is_held_once():
    assert weight_bytes(load_model("gpt2").graph) == 4 * 124439808  # fp32


@pytest.mark.parametrize(
    ("model", "quant", "nbytes"),
    [
        ("llama-2-7b", None, 3 * 1000 * 524288),
        ("llama-2-7b", "KV8", 3 * 1000 * 262144),
        ("llama-2-7b", "KV4g64", 3 * 1000 * 2 * 32 * 4096 * (4 + 20 / 64) / 8),
        ("llama-3-8b", None, 3 * 1000 * 131072),
        ("llama-2-7b", "layers.0-15=KV8", 3 * 1000 * 524288 * 3 / 4),
    ],
)
def test_cache_of_prompt_and_generated_tokens(model, quant, nbytes):
    """3 sequences of 900 tokens and 100 more."""
    assert analyze(model, "a100-sxm-80gb", batch=3, prompt=900, gen=100, quant=quant).memory.kv_cache_bytes == nbytes


def test_a_window_keeps_its_last_tokens():
    model = load_model("mistral-7b-v0.1")  # a window of 4096
    result = analyze(model, "a100-sxm-80gb", batch=2, prompt=10_000, gen=1)
    assert result.memory.kv_cache_bytes == 2 * 4096 * 131072
    assert analyze(model, "a100-sxm-80gb", prompt=100, gen=28).memory.kv_cache_bytes == 128 * 131072


def _layer(model, **kwargs):
    graph = Setting.of(model, "a100-sxm-80gb", **kwargs).graph
    (block,) = (b for b in graph.blocks if b.layers)
    return block


def test_live_activations_of_a_layer_of_llama_2_7b():
    """In numbers a token: the residual is 4096 wide, the MLP 11008. The residual stays until it is added to."""
    block = _layer("llama-2-7b")
    w = Workload.prefill(batch=1, prompt=7)
    found = {op.name: evaluate(form, w) / (7 * 2) for op, form in zip(block.operators, live_bytes(block), strict=True)}
    assert found == {
        "attn_norm": 2 * 4096,  # residual, normed
        "q_proj": 3 * 4096,  # residual, normed, q
        "k_proj": 4 * 4096,  # residual, normed, q, k
        "v_proj": 4 * 4096,  # residual, normed, q, k; v is in the cache
        "rope": 4 * 4096,  # residual, q, k, rotated q; rotated k is in the cache
        "attention": 3 * 4096,  # residual, rotated q, attention
        "o_proj": 3 * 4096,  # residual, attention, o
        "attn_add": 3 * 4096,  # residual, o, their sum
        "mlp_norm": 2 * 4096,  # sum, normed
        "gate_proj": 2 * 4096 + 11008,
        "up_proj": 2 * 4096 + 2 * 11008,
        "mlp_act": 4096 + 3 * 11008,  # sum, gate, up, product
        "down_proj": 2 * 4096 + 11008,
        "mlp_add": 3 * 4096,
    }


def test_live_activations_with_scores_in_memory():
    block = _layer("llama-2-7b", attention="eager")
    w = Workload.prefill(batch=2, prompt=100)
    found = {op.name: evaluate(form, w) / 2 for op, form in zip(block.operators, live_bytes(block), strict=True)}
    assert found["qk_matmul"] == 200 * 2 * 4096 + 2 * 32 * 100 * 100  # residual, q; scores
    assert found["softmax"] == 200 * 4096 + 2 * 2 * 32 * 100 * 100  # residual; scores, probabilities
    assert found["sv_matmul"] == 200 * 2 * 4096 + 2 * 32 * 100 * 100


def test_the_residual_of_parallel_attention_and_mlp_stays_until_both_are_added():
    block = _layer("gpt-j-6b")
    w = Workload.decode(batch=1, kv_len=9)
    size = load_model("gpt-j-6b").format.bits / 8
    found = {op.name: evaluate(form, w) / size for op, form in zip(block.operators, live_bytes(block), strict=True)}
    assert found["up_proj"] == 3 * 4096 + 16384  # residual, normed, o; the MLP's own
    assert found["mlp_act"] == 2 * 4096 + 2 * 16384  # residual, o
    assert found["mlp_add"] == 4 * 4096  # residual, o, down, their sum


def test_the_peak_of_a_long_prefill_is_in_the_mlp_and_of_a_short_one_in_the_logits():
    long = analyze("llama-2-7b", "a100-sxm-80gb", prompt=1000, gen=1).memory
    assert long.activation_bytes == 1000 * 2 * (4096 + 3 * 11008)
    vocabulary = analyze("llama-3-8b", "a100-sxm-80gb", prompt=1, gen=1).memory
    assert vocabulary.activation_bytes == 2 * (4096 + 128256)  # normed, logits of one token


def test_total_bytes_max_batch_and_max_context_by_hand():
    found = analyze("llama-2-7b", "rtx-4090", batch=4, prompt=1000, gen=24).memory
    total = 2 * LLAMA_2_7B + 4 * 1024 * 524288 + 4 * 1000 * 2 * (4096 + 3 * 11008)
    assert found.total_bytes == total
    assert found.capacity_bytes == 24564 * 2**20
    assert found.fits
    spare = 24564 * 2**20 - 2 * LLAMA_2_7B
    assert found.max_batch == spare // (1024 * 524288 + 1000 * 2 * (4096 + 3 * 11008))
    tokens = (spare - 4 * 24 * 524288) // (4 * (524288 + 2 * (4096 + 3 * 11008)))
    assert found.max_context == tokens + 24


def test_memory_need_equal_to_capacity_fits():
    device = load_hardware("a100-sxm-80gb")
    need = analyze("llama-2-7b", device, prompt=100, gen=10).memory.total_bytes
    exact, short = (
        analyze("llama-2-7b", replace(device, capacity=c), prompt=100, gen=10).memory for c in (need, need - 1)
    )
    assert (exact.fits, exact.max_batch, exact.max_context) == (True, 1, 110)
    assert (short.fits, short.max_batch, short.max_context) == (False, 0, 109)


def test_a_device_that_is_too_small_holds_nothing():
    found = analyze("llama-2-70b", "rtx-4090").memory
    assert (found.fits, found.max_batch, found.max_context) == (False, 0, 0)


def test_a_window_sets_no_limit_to_the_cache_but_the_prompt_is_still_read_at_once():
    found = analyze("mistral-7b-v0.1", "a100-sxm-80gb", prompt=100, gen=10).memory
    spare = 80 * 2**30 - found.weight_bytes - 4096 * 131072
    assert found.max_context == spare // (2 * (4096 + 3 * 14336)) + 10


def test_activations_of_a_prompt_include_the_keys_and_values_that_its_window_will_drop():
    """Attention is a launch of its own, so all keys and values of a layer are in memory before it."""
    found = analyze("mistral-7b-v0.1", "a100-sxm-80gb", prompt=50_000, gen=1).memory
    cached = 4096 * 131072
    of_one_layer = (50_000 - 4096) * 131072 / 32
    # when attention runs: residual, rotated queries, its output; keys and values that the other layers will not hold
    at_attention = cached + of_one_layer + 50_000 * 2 * 3 * 4096
    assert found.kv_cache_bytes + found.activation_bytes >= at_attention


def test_memory_is_that_of_the_longest_context_shown():
    """A decode step that attends to 100000 tokens needs their cache."""
    found = analyze("llama-2-7b", "a100-sxm-80gb", prompt=1, gen=1, kv_len=100_000)
    assert found.phases.decode.kv_len == 100_000
    assert found.memory.kv_cache_bytes >= 100_000 * 524288


@pytest.mark.parametrize(
    ("model", "device", "asked"),
    [
        ("llama-3.1-8b", "h100-sxm", {}),
        ("llama-3.1-8b", "l4", {"quant": "W4A16g128KV8", "prompt": 4000, "gen": 1}),
        ("mixtral-8x7b", "h100-sxm", {"layout": "dp=4 ep=4"}),
        ("llama-3.1-70b", "h100-sxm", {"layout": "tp=2 pp=2", "kv_len": 9000}),
        ("mamba-2.8b", "l4", {}),
        ("bert-base-uncased", "l4", {"prompt": 512}),
        ("llama-3.1-8b", "h100-sxm", {"techniques": ["speculative:draft=llama-3.2-1b,gamma=4,alpha=0.7"]}),
    ],
)
def test_the_largest_batch_fits_and_one_more_does_not(model, device, asked):
    found = analyze(model, device, batch="max", **asked)
    batch = found.request.batch
    assert found.request.largest
    assert found.memory.fits
    assert batch == found.memory.max_batch
    assert not analyze(model, device, batch=batch + 1, **asked).memory.fits
    same = analyze(model, device, batch=batch, **asked)
    assert not same.request.largest
    assert (found.phases, found.generation, found.memory) == (same.phases, same.generation, same.memory)
    assert [note for note in found.notes if note not in same.notes] == [found.notes[0]]
    assert found.notes[0].startswith(f"batch max: {batch} sequences of ")


@pytest.mark.parametrize(
    "asked",
    [
        {"layout": "tp=8", "engine": "vllm", "tpot": 0.01},
        {"layout": "dp=4", "bound": True, "tpot": 0.008},
        {"techniques": ["speculative:draft=llama-3.2-1b,gamma=4,alpha=0.7"], "tpot": 0.01},
    ],
)
def test_largest_batch_within_a_tpot_target_meets_it_and_one_more_misses_it(asked):
    found = analyze("llama-3.1-8b", "h100-sxm", batch="max", **asked)
    goal, batch = asked.pop("tpot"), found.request.batch
    assert (found.request.largest, found.request.tpot_s) == (True, goal)
    assert 1 < batch < found.memory.max_batch
    here, more = (analyze("llama-3.1-8b", "h100-sxm", batch=size, **asked).generation for size in (batch, batch + 1))
    assert found.generation == here
    name = "tpot_s" if "bound" in asked else "expected_tpot_s"
    assert getattr(here, name) <= goal < getattr(more, name)
    assert not re.search(r"\bbatch \d", found.phases.decode.advice)  # no more, which would take longer


def test_loose_tpot_target_does_not_change_the_largest_batch():
    found, most = (analyze("llama-3.1-8b", "l4", batch="max", **asked).request.batch for asked in ({"tpot": 9}, {}))
    assert found == most


def test_batch_max_is_refused_in_one_line_when_nothing_fits():
    with pytest.raises(InputError) as small:
        analyze("llama-3.1-70b", "rtx-4090", batch="max", quant="W8A16")
    assert str(small.value) == (
        "batch max: llama-3.1-70b with one sequence of 1152 tokens does not fit rtx-4090: it needs 73.2 GB (weights "
        "72.7 GB, KV cache 377 MB, live activations 193 MB) and has 25.8 GB; use fewer bits (--quant), more devices "
        "(--tp) or larger ones"
    )
    endless = replace(load_hardware("l4"), capacity=float("inf"))
    with pytest.raises(InputError, match=r"^batch max: the memory of l4 does not limit the batch; give a number$"):
        analyze("gpt2", endless, batch="max")
    with pytest.raises(InputError, match=r"^batch must be a whole number of at least 1; got 'most'$"):
        analyze("gpt2", "l4", batch="most")
    for asked, error in (
        ({"batch": 8, "tpot": 1}, "tpot must come with batch max, which it limits; give batch max or leave out tpot"),
        ({"batch": "max", "tpot": 0}, "tpot must be a positive number; got 0"),
        ({"batch": "max", "tpot": 1, "gen": 1},
         "tpot needs at least two generated tokens; got 1; leave it out"),
        ({"batch": "max", "tpot": 1e-6, "bound": True},
         "batch max: with one sequence, a token takes 1.92 ms, longer than tpot, 1.00 us"),
    ):  # fmt: skip
        with pytest.raises(InputError) as told:
            analyze("gpt2", "l4", **asked)
        assert str(told.value) == error


@pytest.mark.parametrize("form", ["text", "markdown"])
def test_report_states_the_model_maximum_when_memory_fits_a_longer_context(capsys, form):
    assert main(["analyze", "gpt2", "l4", "--format", form]) == 0
    most = analyze("gpt2", "l4").memory.max_context
    words = " ".join(capsys.readouterr().out.split())
    assert f"{most:,} tokens at batch 1; model maximum 1,024" in words
    assert main(["analyze", "llama-3.1-70b", "l4", "--format", form]) == 0
    assert "model maximum" not in capsys.readouterr().out


def test_the_largest_batch_on_the_command_line(capsys, tmp_path):
    assert main(["analyze", "gpt2", "l4", "--batch", "max"]) == 0
    batch = analyze("gpt2", "l4").memory.max_batch
    words = " ".join(capsys.readouterr().out.split())
    assert f"on NVIDIA L4: batch {batch}, the largest that fits, prompt 1024" in words
    assert f"Batch max: {batch:,} sequences of 1,152 tokens fit 24.2 GB: weights, KV cache, " in words
    scenario = tmp_path / "most.yaml"
    scenario.write_text("batch: max\ngen: 1\n")
    assert main(["analyze", "gpt2", "l4", "--scenario", str(scenario), "--format", "markdown"]) == 0
    assert "the largest that fits" in capsys.readouterr().out
    refused = {
        ("--batch", "most"): "must be a whole number, or max for the largest that fits; got 'most'",
        ("--batch", "0"): "batch must be a whole number of at least 1; got 0",
        ("--batch", "max", "--decode-hardware", "a10"): "batch max is not supported with two kinds of device",
    }
    for options, why in refused.items():
        assert main(["analyze", "gpt2", "l4", *options]) == 2
        assert why in capsys.readouterr().err
    assert main(["sweep", "gpt2", "l4", "--over", "batch=max"]) == 2
    assert "--over batch=max: must be whole numbers" in capsys.readouterr().err


def test_the_largest_batch_is_of_sequences_as_long_as_the_context_that_is_given():
    found = analyze("llama-2-13b", "rtx-a6000", kv_len=30_000)
    assert found.request.longest == 30_000
    assert found.memory.max_batch == analyze("llama-2-13b", "rtx-a6000", gen=30_000 - 1024).memory.max_batch == 1
    assert "batch 1 at 30,000 tokens" in " ".join(REPORT.text(found).split())
    assert analyze("llama-2-13b", "rtx-a6000").request.longest == 1024 + 128
