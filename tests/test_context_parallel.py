"""Context parallelism: attention stays one launch, ranks' work sums to the whole, and what they send each other."""

from __future__ import annotations

from collections import Counter

import pytest

from llmviewer import analyze
from llmviewer.devices.files import load_hardware
from llmviewer.forms import evaluate
from llmviewer.model import kv_cache
from llmviewer.model_files import load_model
from llmviewer.operators.attention import QK, SV, FlashAttention, Softmax
from llmviewer.operators.base import Role
from llmviewer.operators.collectives import AllGather, Collective
from llmviewer.operators.linear import LatentExpansion, LMHead
from llmviewer.setting import Setting
from llmviewer.workload import Workload

from .cases import for_each, one_per_type

H100 = "h100-sxm"
PROMPT = Workload.prefill(batch=1, prompt=4096)
STEP = Workload.decode(batch=2, kv_len=4096, prompt=2048)


def generating():
    return [name for name in one_per_type() if load_model(name).generates]


def _pair(name: str, ranks: int = 2, **asked: str) -> tuple[Setting, Setting]:
    one, shared = (Setting.of(name, H100, layout=text, **asked) for text in ("", f"cp={ranks}"))
    return one, shared


def _launches(graph) -> Counter[str]:
    return Counter(f"{block.name}.{type(op).__name__}" for block, op in graph if not isinstance(op, Collective))


def _shared_ops(graph, workload) -> float:
    """OPs of what ranks share out: not the head, expansions of latents and towers for images."""
    return sum(
        block.repeat * float(evaluate(op.work().ops.on(block.stream), workload))
        for block, op in graph
        if not isinstance(op, LatentExpansion | LMHead | Collective) and block.stream.name != "images"
    )


@for_each("name", one_per_type)
def test_ranks_launch_the_prefill_kernels_of_one_device_on_their_tokens(name):
    one, shared = _pair(name)
    assert _launches(shared.graph.check()) == _launches(one.graph)
    assert 2 * _shared_ops(shared.graph, PROMPT) == pytest.approx(_shared_ops(one.graph, PROMPT))


@for_each("name", generating)
def test_ranks_hold_equal_parts_of_the_cache_and_have_the_same_of_it_in_both_passes(name):
    one, shared = _pair(name)
    states = {
        (block.name, t.name): block.repeat * float(evaluate(t.device_bytes, STEP))
        for block, op in one.graph
        for t in op.state()
        if t.role is Role.STATE
    }
    state = sum(states.values())  # on every rank
    whole, part, stepped = (
        float(evaluate(kv_cache(graph), STEP)) for graph in (one.graph, shared.graph, shared.decode_graph.check())
    )
    assert stepped == pytest.approx(part)
    assert part == pytest.approx(state + (whole - state) / 2)


def test_attention_of_a_prefill_is_one_launch_that_reads_all_keys_after_they_have_come():
    (gather, attention), *_ = (
        [op for op in block.operators if isinstance(op, AllGather | FlashAttention)]
        for block in _pair("llama-3.1-8b", 4)[1].graph.blocks
        if block.layers
    )
    keys_and_values = 2 * 4096 * 1024 * 2
    assert evaluate(gather.payload(), PROMPT) == keys_and_values
    assert gather.traffic(4, inside=True) == (3 / 4, 1.0)
    assert evaluate(attention.work().kv_bytes, PROMPT) == keys_and_values
    assert evaluate(attention.work().activation_bytes, PROMPT) == 2 * 4096 / 4 * 4096 * 2  # queries and results


@pytest.mark.parametrize("ranks", [2, 4])
def test_within_a_window_too_every_rank_needs_all_keys_as_ranks_take_turns_at_tokens(ranks):
    prompt, window = 64, 9  # a small prompt, counted key by key
    for rank in range(ranks):
        seen = {key for query in range(rank, prompt, ranks) for key in range(max(query - window + 1, 0), query + 1)}
        assert len(seen) >= prompt - ranks  # the last rank's queries end last
    (gather, *_) = (op for _, op in _pair("mistral-7b-v0.1", ranks)[1].graph if isinstance(op, AllGather))
    long = Workload.prefill(batch=1, prompt=16384)  # four windows
    assert evaluate(gather.payload(), long) == 2 * 16384 * 1024 * 2


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("name", ["llama-3.1-8b", "gpt-oss-20b", "deepseek-v3.2"])
def test_with_links_that_cost_nothing_n_ranks_take_the_nth_part_of_a_long_prefill(name, ranks):
    free = load_hardware(H100, ["scale_up.bandwidth=1e9 GB/s"])
    asked = {"prompt": 100_000, "gen": 1}
    one, shared = (analyze(name, free, layout=text, **asked) for text in ("", f"cp={ranks}"))
    assert 1 <= ranks * shared.generation.ttft_s / one.generation.ttft_s < 1.1
    assert shared.memory.activation_bytes < one.memory.activation_bytes / 1.9


def test_latents_are_gathered_and_expanded_on_every_rank():
    one, shared = _pair("deepseek-v2-lite")
    sent = [op for _, op in shared.graph if isinstance(op, AllGather)]
    assert {evaluate(op.payload(), PROMPT) for op in sent} == {4096 * (512 + 64) * 2}
    expanded = [
        [evaluate(op.work().ops, PROMPT) for _, op in setting.graph if isinstance(op, LatentExpansion)]
        for setting in (one, shared)
    ]
    assert expanded[0] == expanded[1] != []
    one, shared = _pair("deepseek-v2-lite", mla="absorbed")
    assert not [op for _, op in shared.graph if isinstance(op, LatentExpansion)]
    assert _launches(shared.graph) == _launches(one.graph)


def test_encoders_send_the_keys_and_values_that_they_do_not_keep():
    (gather,) = (op for _, op in _pair("bert-base-uncased")[1].graph if isinstance(op, AllGather))
    assert evaluate(gather.payload(), PROMPT) == 2 * 4096 * 768 * load_model("bert-base-uncased").format.bits / 8


def test_vision_tower_is_replicated_on_every_rank():
    one, shared = _pair("gemma-3-4b-vision")
    towers = [[b for b in setting.graph.blocks if b.stream.name == "images"] for setting in (one, shared)]
    assert towers[0] == towers[1] != []


def test_decode_attention_is_sharded_by_keys_and_merged():
    one, shared = _pair("llama-3.1-8b", 4, attention="eager")
    for kind in (QK, Softmax, SV):
        ops = [
            next(evaluate(op.work().ops, STEP) for _, op in setting.decode_graph if isinstance(op, kind))
            for setting in (one, shared)
        ]
        assert ops[0] == 4 * ops[1]
    (softmax,) = (op for _, op in shared.decode_graph if isinstance(op, Softmax))
    assert evaluate(softmax.outputs[0].elements, STEP) == 2 * 4096 / 4 * 32
    (gather,) = (op for _, op in shared.decode_graph if isinstance(op, AllGather))
    assert evaluate(gather.payload(), STEP) == 2 * 4 * (4096 + 32) * 4  # every head's sum beside its result, in fp32


def test_an_indexer_scores_the_keys_of_its_rank_and_the_best_of_all_are_kept():
    one, shared = _pair("deepseek-v3.2", 4)
    scored = [
        [evaluate(op.work().ops, STEP) for _, op in setting.decode_graph if op.name == "indexer"]
        for setting in (one, shared)
    ]
    assert scored[0] == [4 * ops for ops in scored[1]] != []
    sent = [op for _, op in shared.decode_graph if op.name == "index_choice_all_gather"]
    assert {evaluate(op.payload(), STEP) for op in sent} == {2 * 2048 * 4}


@pytest.mark.parametrize(("prompt", "seconds"), [(128_000, 3.8), (1_000_000, 77)])
def test_published_prefills_of_sixteen_nodes_take_longer_than_the_bound(prompt, seconds):
    """Llama 3 405B on 128 H100 (arXiv:2411.01783, abstract). That its feed-forward networks were in fp8, and tensors
    cut within nodes, is recalled; it is what takes least time.
    """
    asked = {"layout": "tp=8 cp=16", "quant": "gate_proj=fp8,up_proj=fp8,down_proj=fp8", "prompt": prompt, "gen": 1}
    assert 1.3 < seconds / analyze("llama-3.1-405b", H100, **asked).generation.ttft_s < 3.5
