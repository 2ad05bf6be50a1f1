"""Attention to keys that an indexer chooses: DeepSeek-V3.2 and GLM-5, against counts by hand."""

from __future__ import annotations

import pytest

from llmviewer.errors import InputError
from llmviewer.forms import evaluate
from llmviewer.model import kv_cache_bytes
from llmviewer.model_files import load_model
from llmviewer.setting import Setting
from llmviewer.workload import Workload

from .strategies import built

TINY = {
    "model_type": "glm_moe_dsa",
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "moe_intermediate_size": 32,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "kv_lora_rank": 16,
    "q_lora_rank": 24,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 12,
    "v_head_dim": 10,
    "index_n_heads": 3,
    "index_head_dim": 20,
    "index_topk": 5,
}


def _graph(**changes):
    return built(**TINY | changes)


def _by_name(graph, workload):
    """(OPs, bytes of the cache) of an operator of one layer."""
    works = {op.name: op.work() for block, op in graph if block.layers}
    return {name: (evaluate(w.ops, workload), evaluate(w.kv_bytes, workload)) for name, w in works.items()}


def test_a_step_scores_all_keys_and_attends_to_the_chosen_ones():
    """At 100 tokens: 3 index heads of 20 elements, and a weight for each, over 100 keys; 4 heads over 5 keys."""
    found = _by_name(_graph(), Workload.decode(batch=2, kv_len=100))
    assert found["indexer"][0] == 2 * 100 * (2 * 3 * (20 + 1) + 3 + 1)
    assert found["indexer"][1] == 2 * 100 * (20 + 4)  # in fp8, with a scale in fp32
    assert found["qk_matmul"][0] == 2 * 5 * 4 * 2 * (12 + 8)
    assert found["qk_matmul"][1] == 2 * 5 * 8 * 2  # rotated keys; the others are expanded from the latent
    assert found["sv_matmul"][0] == 2 * 5 * 4 * 2 * 10
    assert found["kv_b_proj"][1] == 2 * 100 * 16 * 2


def test_a_prompt_shorter_than_the_choice_sees_all():
    found = _by_name(_graph(index_topk=64), Workload.prefill(batch=1, prompt=30))
    assert found["qk_matmul"][0] == 30 * 31 / 2 * 4 * 2 * 20


def test_queries_of_a_long_prompt_see_no_more_than_the_choice():
    found = _by_name(_graph(), Workload.prefill(batch=1, prompt=30))
    assert found["qk_matmul"][0] == (1 + 2 + 3 + 4 + 26 * 5) * 4 * 2 * 20
    assert found["indexer"][0] == 30 * 31 / 2 * (2 * 3 * 21 + 4)


def test_all_tokens_stay_in_the_cache_with_a_key_for_the_indexer():
    assert kv_cache_bytes(_graph(), batch=1, context=100) == 6 * 100 * ((16 + 8) * 2 + 20 + 4)


def test_layers_that_share_a_choice_have_no_indexer():
    graph = _graph(indexer_types=["full", "shared", "shared", "full", "shared", "shared"])
    having = {block.name: any(op.name == "indexer" for op in block.operators) for block in graph.blocks}
    assert having == {"embedding": False, "dense": True, "dense_shared": False, "moe": True, "moe_shared": False,
                      "head": False}  # fmt: skip
    assert kv_cache_bytes(graph, batch=1, context=100) == 100 * (6 * (16 + 8) * 2 + 2 * (20 + 4))
    assert {op.heads.mask.count for _, op in graph if op.name == "qk_matmul"} == {5}


@pytest.mark.parametrize(
    ("said", "own"),
    [
        ({}, [0, 1, 2, 3, 4, 5]),
        ({"index_topk_freq": 4, "index_skip_topk_offset": 2}, [0, 1, 5]),
        ({"index_topk_pattern": "FSSFSF"}, [0, 3, 5]),
    ],
)
def test_indexer_layers_follow_the_config(said, own):
    graph = _graph(**said)
    layers = [b.layers for b in graph.blocks if any(op.name == "indexer" for op in b.operators)]
    assert sorted(sum(layers, ())) == own


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"indexer_types": ["shared"] * 6}, "indexer_types: must give the first layer an indexer of its own"),
        ({"indexer_types": ["full"]}, "indexer_types: must have an entry for each of the 6 layers; got 1"),
        ({"index_topk_pattern": "FX"}, "index_topk_pattern: must be 6 letters F and S; got 'FX'"),
        ({"q_lora_rank": None}, "q_lora_rank: must not be null: the indexer takes its queries from their latent"),
    ],
)
def test_invalid_sparse_attention_configs_are_refused(changes, message):
    with pytest.raises(InputError, match="config.json: " + message.split("'")[0]):
        _graph(**changes)


def test_queries_go_to_the_latent_in_both_phases_where_keys_are_chosen():
    """Each query looks at other keys, so none are expanded for all."""
    setting = Setting.of("deepseek-v3.2", "h200-sxm")
    assert setting.graph is setting.decode_graph
    names = [op.name for _, op in setting.graph]
    assert "q_absorb" in names
    assert "kv_b_proj" not in names
    naive = Setting.of("deepseek-v3.2", "h200-sxm", mla="naive")
    assert "kv_b_proj" in [op.name for _, op in naive.decode_graph]


def test_an_absorbed_step_reads_the_chosen_rows_of_the_latent():
    setting = Setting.of("deepseek-v3.2", "h200-sxm", quant="W16A16")
    work = next(op.work() for b, op in setting.decode_graph if b.name == "moe" and op.name == "attention")
    assert evaluate(work.kv_bytes, Workload.decode(batch=1, kv_len=100_000)) == 2048 * (512 + 64) * 2


def test_a_long_context_costs_the_published_cache():
    """V3.2 keeps V3's 576 elements a layer and 128 of the indexer, those in fp8 with a scale in fp32."""
    v3, v32 = (load_model(name).kv_bytes_per_token for name in ("deepseek-v3", "deepseek-v3.2"))
    assert (v3, v32) == (61 * 576 * 2, 61 * (576 * 2 + 132))


def _indexer(quant):
    """Data type of the products of V3.2's indexer, and the bytes of one of its keys."""
    graph = Setting.of("deepseek-v3.2", "h200-sxm", quant=quant).decode_graph
    indexer = next(op for block, op in graph if block.name == "moe" and op.name == "indexer")
    writer = next(op for block, op in graph if block.name == "moe" and op.name == "index_rope")
    assert writer.outputs[1].format == indexer.inputs[1].format
    return indexer.work().operand_unit.dtype, indexer.inputs[1].width * indexer.inputs[1].format.stored_bits / 8


@pytest.mark.parametrize(
    ("quant", "dtype", "key"),
    [
        (None, "fp8", 132),
        ("W16A16", "fp8", 132),
        ("W8A8KV8", "fp8", 132),
        ("layers.0-60=W4A16", "fp8", 132),
        ("published,indexer=A16", "bf16", 256),
        ("indexer=fp8", "fp8", 128),
        ("W16A16,layers.3-60.indexer=A4", "int4", 64),
    ],
)
def test_the_indexer_keeps_its_format_unless_it_is_named(quant, dtype, key):
    assert _indexer(quant) == (dtype, key)


def test_no_weights_are_multiplied_by_the_indexer():
    with pytest.raises(InputError, match="'indexer=W4' matches no matrix product"):
        _indexer("indexer=W4")
