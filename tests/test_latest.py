"""Models of 2025 and 2026 that are neither of one kind of layer nor told elsewhere: counts by hand."""

from __future__ import annotations

import pytest

from llmviewer.architectures import builder
from llmviewer.documents import Section
from llmviewer.errors import InputError
from llmviewer.forms import evaluate
from llmviewer.model import kv_cache_bytes
from llmviewer.model_files import load_model
from llmviewer.precision import FP16
from llmviewer.workload import Workload

LLAMA = {
    "model_type": "nemotron-nas",
    "vocab_size": 100,
    "hidden_size": 768,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "block_configs": [
        {"attention": {"n_heads_in_group": 4}, "ffn": {"ffn_mult": 1.5}},
        {"attention": {"no_op": True}, "ffn": {"ffn_mult": 0.75}},
        {"attention": {"replace_with_linear": True}, "ffn": {"no_op": True}},
        {"attention": {"n_heads_in_group": 8}, "ffn": {"replace_with_linear": True}},
    ],
}
M3 = {
    "model_type": "minimax_m3",
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 32,
    "dense_intermediate_size": 96,
    "shared_intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rotary_dim": 8,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "moe_layer_freq": [0, 1, 1],
    "sparse_attention_config": {
        "sparse_attention_freq": [0, 1, 1],
        "sparse_index_dim": 12,
        "sparse_num_index_heads": 2,
        "sparse_topk_blocks": 3,
        "sparse_block_size": 4,
    },
}


def _graph(config, **changes):
    section = Section({**config, **changes}, "config.json")
    return builder(section)(section, FP16).check()


def _layer(graph, block, workload):
    """(OPs, bytes of the cache) of the operators of one layer of a block."""
    works = {op.name: op.work() for b, op in graph if b.name == block}
    return {name: (evaluate(w.ops, workload), evaluate(w.kv_bytes, workload)) for name, w in works.items()}


def test_every_layer_of_a_searched_network_is_as_its_block_says():
    """MLPs of 2/3 x 1.5 x 768 and 2/3 x 0.75 x 768, the latter rounded up to 512; a norm before what there is."""
    h = 768
    kept = 2 * h * h + 2 * h * 2 * 96 + 3 * h * 768 + 2 * h
    without = 3 * h * 512 + h
    linear = h * h + h
    last = 2 * h * h + 2 * h * 96 + h * h + 2 * h
    assert _graph(LLAMA).parameters == 2 * 100 * h + h + kept + without + linear + last
    assert [block.name for block in _graph(LLAMA).blocks] == [
        "embedding", "full_768", "none_512", "linear_none", "full_linear", "head",
    ]  # fmt: skip


def test_layers_without_attention_keep_nothing():
    assert kv_cache_bytes(_graph(LLAMA), batch=1, context=10) == 10 * 2 * (2 + 1) * 96 * 2
    assert load_model("llama-3.3-nemotron-super-49b").kv_bytes_per_token == 49 * 2 * 8 * 128 * 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_hidden_layers": 3}, "block_configs: must have an entry for each of the 3 layers; got 4"),
        (
            {"block_configs": [{"attention": {"n_heads_in_group": 3}, "ffn": {"ffn_mult": 1}}] * 4},
            "n_heads_in_group: must divide the 8 heads; got 3",
        ),
        (
            {"block_configs": [{"attention": {"n_heads_in_group": 8, "window_length": 9}, "ffn": {"ffn_mult": 1}}] * 4},
            "window_length: is not modelled; got 9",
        ),
        ({"attention_bias": True}, "attention_bias: must be false"),
    ],
)
def test_what_a_searched_network_cannot_say(changes, message):
    with pytest.raises(InputError, match=message):
        _graph(LLAMA, **changes)


def test_a_query_looks_at_blocks_that_its_indexer_chooses():
    """At 50 tokens: 2 index heads of 12 elements over 50 keys; 8 heads over 3 blocks of 4 keys."""
    found = _layer(_graph(M3), "sparse_moe", Workload.decode(batch=2, kv_len=50))
    assert found["indexer"] == (2 * 50 * 2 * (2 * 12 + 1), 2 * 50 * 12 * 2)
    assert found["qk_matmul"] == (2 * 12 * 8 * 2 * 16, 2 * 12 * 2 * 16 * 2)
    assert kv_cache_bytes(_graph(M3), batch=1, context=50) == 50 * (3 * 2 * 2 * 16 + 2 * 12) * 2


def test_dense_layers_look_at_all_keys():
    found = _layer(_graph(M3), "full_dense", Workload.decode(batch=1, kv_len=50))
    assert found["qk_matmul"] == (50 * 8 * 2 * 16, 50 * 2 * 16 * 2)
    assert "indexer" not in found


def test_the_dialect_of_transformers_says_the_same_of_blocks():
    fields = {k: v for k, v in M3.items() if k not in ("sparse_attention_config", "moe_layer_freq")}
    theirs = {
        "layer_types": ["full_attention", "minimax_m3_sparse", "minimax_m3_sparse"],
        "mlp_layer_types": ["dense", "sparse", "sparse"],
        "index_n_heads": 2,
        "index_head_dim": 12,
        "index_topk_blocks": 3,
        "index_block_size": 4,
    }
    assert _graph(fields, **theirs) == _graph(M3)


def test_windows_have_twice_the_heads_and_values_are_narrower_than_keys():
    """MiMo-V2-Flash at 1000 tokens: 9 layers see all of 4 heads, 39 the last 129 of 8, of 192 and 128 elements."""
    graph = load_model("mimo-v2-flash").graph
    elements = 9 * 1000 * 4 * (192 + 128) + 39 * 129 * 8 * (192 + 128)
    assert kv_cache_bytes(graph, batch=1, context=1000) == 2 * elements
    sinks = {block.name: any("sinks" in w.name for op in block.operators for w in op.weights) for block in graph.blocks}
    assert sinks == {
        "embedding": False, "global_dense": False, "local_moe": True, "global_moe": False, "head": False,
    }  # fmt: skip


def test_layers_that_see_all_have_no_positions():
    """Trinity and K-EXAONE: those with a window rotate, the others do not."""
    for name in ("trinity-nano", "k-exaone-236b-a23b"):
        for block in load_model(name).graph.blocks:
            if block.layers:
                assert any(op.name == "rope" for op in block.operators) is block.name.startswith("local")


@pytest.mark.parametrize(
    ("name", "total", "active"),
    [
        ("k-exaone-236b-a23b", 236, 23),  # transformers' documentation of EXAONE MoE
        ("mimo-v2-flash", 309, 15),  # arXiv:2601.02780, abstract
    ],
)
def test_parameters_are_those_published(name, total, active):
    """In billions."""
    model = load_model(name)
    assert model.parameters / 1e9 == pytest.approx(total, abs=1)
    assert model.active_parameters / 1e9 == pytest.approx(active, abs=1)
