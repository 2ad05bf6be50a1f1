"""Models of 2025 and 2026 with several kinds of layers: counts by hand."""

from __future__ import annotations

import json
import re
from collections import Counter
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from llmviewer._layout import data_dir
from llmviewer.documents import read_yaml
from llmviewer.errors import InputError
from llmviewer.forms import evaluate
from llmviewer.model import kv_cache_bytes
from llmviewer.model_files import load_model
from llmviewer.operators.attention import QK, SV, Indexer
from llmviewer.operators.linear import ChosenLinear
from llmviewer.resource import Unit, matrix, vector
from llmviewer.setting import Setting
from llmviewer.workload import Workload

from .cases import for_each
from .strategies import built

ORACLE = Path(__file__).parent / "oracle"

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
    return built(**config | changes)


def _layer(graph, block, workload):
    """(OPs, bytes of the cache) of the operators of one layer of a block."""
    works = {op.name: op.work() for b, op in graph if b.name == block}
    return {name: (evaluate(w.ops, workload), evaluate(w.kv_bytes, workload)) for name, w in works.items()}


def test_searched_network_layers_follow_their_block_config():
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
def test_invalid_searched_network_configs_are_refused(changes, message):
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


def test_transformers_config_dialect_gives_the_same_blocks():
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


def test_a_tower_brings_patches_to_the_width_of_the_model_and_four_together_to_a_token():
    """An image has 4 x 4 patches, 3 x 2 x 2 x 2 numbers each: 2 layers 24 wide, 2 heads of 12."""
    vision = {
        "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 8,
        "patch_size": 2, "temporal_patch_size": 2, "spatial_merge_size": 2,
    }  # fmt: skip
    pair = {"model_type": "minimax_m3_vl", "text_config": M3, "projector_hidden_size": 32}
    graph, h = _graph(pair, vision_config=vision), 24
    layer = 4 * (h * h + h) + 2 * 2 * h + 2 * h * 40 + 40 + h
    project = h * 32 + 32 + 32 * 64 + 64 + 4 * 64 * 32 + 32 + 32 * 64 + 64
    assert graph.parameters - _graph(M3).parameters == 24 * h + 2 * h + 2 * layer + project
    assert _graph(pair) == _graph(M3)
    prompt = Workload.prefill(batch=1, prompt=9, images=1)
    towered = [(block, op) for block, op in graph if op.name.startswith("vision_")]
    ops = {op.name: evaluate(op.work().on(block.stream).ops, prompt) for block, op in towered}
    assert ops["vision_linear_1"] == 2 * 16 * 24 * 32
    assert ops["vision_linear_2"] == 2 * 16 * 32 * 64
    assert ops["vision_merge_linear_1"] == 2 * 4 * 256 * 32
    assert ops["vision_merge_linear_2"] == 2 * 4 * 32 * 64
    assert ops["vision_rope"] == 3 * 16 * 2 * 2 * 12


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


TORCH = json.loads((ORACLE / "latest.json").read_text(encoding="utf-8"))
PASSES = {
    "prefill": Workload.prefill(batch=TORCH["batch"], prompt=TORCH["length"]),
    "decode": Workload.decode(batch=TORCH["batch"], kv_len=TORCH["length"] + 1),
}
SHIPPED = ("longcat-flash", "ling-3.0-flash", "north-mini-code", "hy4-preview", "step-3.5-flash")
MODULES = {  # the end of a module's path in transformers -> name of the operator
    "self_attn.gate_proj": "g_proj",
    **{f"{name}_proj.linear": f"{name}_proj" for name in "qkvo"},
    "relative_position_bias.linear": "r_proj",
    "relative_position_bias": "positions",
    "o_proj.gate_proj": "g_proj",
    "sconv.weight_proj": "taps_proj",
    "pre_expert_proj": "fc1_latent_proj",
    "post_expert_proj": "fc2_latent_proj",
    "indexer.weights_proj": "index_weights",
    "indexer.wk": "index_k_proj",
    "indexer.wq_b": "index_q_proj",
    "shared_experts.down_proj": "shared_down_proj",
    "shared_experts.gate_proj": "shared_gate_proj",
    "shared_experts.up_proj": "shared_up_proj",
    "shared_expert.down_proj": "shared_down_proj",
    "shared_expert.gate_proj": "shared_gate_proj",
    "shared_expert.up_proj": "shared_up_proj",
    "kv_a_proj_with_mqa": "kv_a_proj",
    "gate": "router",
    "ffn_hc": "mlp_hc",
    "self_attn": "attention",
    "self_attention": "attention",
    "gate.down_proj": "router_down",
    "rel_logits_proj": "positions",
    "router_mlp.fc1": "router_fc1",
    "router_mlp.fc2": "router_fc2",
    "router_mlp.out_proj": "router",
    "shared_mlp.input_linear": "shared_gate_up_proj",
    "shared_mlp.output_linear": "shared_down_proj",
    "w1": "gate_proj",
    "w2": "down_proj",
    "w3": "up_proj",
    "fc1": "up_proj",
    "fc2": "down_proj",
    "query_key_value": "qkv_proj",
    "dense": "o_proj",
    "lm_head.dense": "head_dense",
    "decoder": "lm_head",
    "attn.Wo": "o_proj",
    "mlp.Wo": "down_proj",
    "Wi": "gate_up_proj",
    "attn": "attention",
    "dense_h_to_4h": "up_proj",
    "dense_4h_to_h": "down_proj",
    "shared_expert_gate": "shared_gate",
    "linear_attn": "scan",
    "in_proj_a": "a_proj",
    "in_proj_b": "b_proj",
    "in_proj_qkv": "qkv_proj",
    "in_proj_z": "z_proj",
    "ple.key_proj": "ngrams_k_proj",
    "ple.value_proj": "ngrams_v_proj",
    **{
        f"{theirs}.{part}": f"{ours}_{end}"
        for theirs, ours in (
            ("attn_hyper_connection", "attn_hc"),
            ("mlp_hyper_connection", "mlp_hc"),
            ("hyper_connection_mixer", "hc_head"),
        )
        for part, end in (
            ("input_mix_weight_down", "down"),
            ("input_mix_weight_up", "up"),
            ("block_inject_weight", "back"),
        )
    },
}

HEADLESS = (
    "step3p5",
    "mistral_large4_text",
    "glm5_next_text",
    "muse_glimmer_text",
    "muse_spark_text",
)  # classes without a head
HEADS = ("head_dense", "lm_head")  # which run where words are wanted


def _type(name):
    return name.split(maxsplit=1)[0]


def _by_torch(found):
    """OPs by operator."""
    counted = Counter()
    for path, ops in found.items():
        *_, parent, last = ("", *(part for part in path.split(".") if part != "*"))
        counted[MODULES.get(f"{parent}.{last}", MODULES.get(last, last))] += ops
    return counted


def _by_us(graph, w):
    """OPs on matrix units by operator, with what torch does otherwise: all cells of a prefill, the head everywhere."""
    counted = Counter()
    cells = Fraction(int(w.cells(np.inf)), int(w.pairs(np.inf)))
    for block, op in graph:
        ops = block.repeat * sum(Fraction(evaluate(f, w)) for r, f in op.work().amounts if r.unit is Unit.MATRIX)
        name = op.name.removeprefix("second_")
        if isinstance(op, QK | SV | Indexer):
            counted["indexer" if isinstance(op, Indexer) else "attention"] += ops * cells
        elif isinstance(op, ChosenLinear):
            counted["experts"] += ops
        elif ops:
            counted[name] += ops * (Fraction(int(w.tokens()), int(w.logits())) if name in HEADS else 1)
    return counted


@pytest.mark.parametrize("phase", PASSES)
@pytest.mark.parametrize("name", TORCH["models"])
def test_products_of_small_models_equal_torchs_to_the_digit(name, phase):
    ours = _by_us(_graph(TORCH["models"][name]["config"]), PASSES[phase])
    if name == "longcat_flash":
        assert ours.pop("experts") == 3 * 2 * PASSES[phase].tokens() * 2 * 3 * 64 * 32  # 2 of 3 have matrices
    if name == "granitemoe_swa":  # whose class makes both with one product
        ours["shared_gate_up_proj"] = ours.pop("shared_gate_proj") + ours.pop("shared_up_proj")
    if name == "axk2":  # whose gates of norms have products that are called as some MLPs have them
        for half, called in (("down", "up_proj"), ("up", "down_proj")):
            ours[called] += sum(ours.pop(f"{norm}_gate_{half}") for norm in ("attn", "mlp"))
    if name.startswith("glm5_next"):  # gates without a module; keys of whole groups alone, which are 6 of 4 tokens here
        ours["indexer"] *= Fraction(24, TORCH["length"] + (phase == "decode"))
        ours["indexer"] += ours.pop("index_gate_proj")
    if name == "qwen4_exp_text":  # whose keys are those of whole groups of four alone; its scan is a reference
        seen = range(1, 25) if phase == "prefill" else [25]
        ours["indexer"] *= Fraction(4 * sum(keys // 4 for keys in seen), len(seen) * max(seen))
    if _type(name) in HEADLESS:
        assert ours.pop("lm_head") == PASSES[phase].tokens() * 2 * 96 * 64
    theirs = _by_torch(TORCH["models"][name][phase])
    if name in ("qwen4_exp_text", "lara_mini"):
        assert ours.pop("scan") > 0 <= theirs.pop("scan", 0)
    if name == "zamba":  # whose products with parts of channels have no modules, nor has that of state and C
        made = 9 * PASSES[phase].tokens() * 2 * 128 * 6
        assert theirs.pop("mamba") == ours.pop("x_proj") + ours.pop("dt_proj") + made
    if name == "zaya":  # whose heads have a filter each, and half of whose values begin with a row of nothing
        assert ours.pop("qk_mix") == 3 * PASSES[phase].tokens() * 2 * (4 + 2) * 16 * 16 * 2
        theirs["v_proj_delayed"] *= Fraction(24, 25) if phase == "prefill" else 1
    if name == "inkling_text":  # whose shared experts are one module
        ours["shared_experts"] = sum(ours.pop(f"shared_{part}_proj") for part in ("gate", "up", "down"))
    if name == "inkling2_loop_text":
        for ours_of, theirs_of in (
            ("down", "down_proj"),
            ("forget", "forget_gate_proj"),
            ("gate", "message_gate_proj"),
        ):
            assert theirs.pop(theirs_of) == sum(ours.pop(f"{read}_told_{ours_of}") for read in ("q", "k", "v", "mlp"))
        assert theirs.pop("message_input") > 0
    if name.startswith("inkling2"):  # whose mixtures of sources are products with a few rows
        ours["taps_proj"] = ours.pop("k_taps_proj") + ours.pop("v_taps_proj")
        assert all(theirs.pop(f"{where}_input") > 0 for where in ("attention", "mlp", "final"))
    if name == "jetmoe":  # both of whose mixtures have modules of the same names
        theirs["experts"] = theirs.pop("input_linear") + theirs.pop("output_linear")
        ours["layer"] = ours.pop("router") + ours.pop("attn_router")
    if name == "diffllama":  # whose class makes scores twice, once for each half of the values
        theirs["attention"] *= Fraction(3, 4)
    if _type(name) == "glm5_next_text":  # streams are mixed after both halves of each of 5 layers: vector OPs here
        assert theirs.pop("layers") == 5 * 2 * PASSES[phase].tokens() * 2 * 4**2 * 64
    if name == "glm5_next_text":  # whose class counts its reference of delta attention, and latent attention, as one
        assert ours.pop("scan") + ours.pop("attention") > 0 < theirs.pop("attention")
    assert ours == theirs


@for_each("name", TORCH["models"])
def test_parameters_of_small_models_equal_those_of_transformers(name):
    head = 96 * 64 if _type(name) in HEADLESS else 0
    assert _graph(TORCH["models"][name]["config"]).parameters == TORCH["models"][name]["parameters"] + head


def test_laguna_rotates_half_of_each_head_where_there_is_no_window():
    config = TORCH["models"]["laguna"]["config"]
    rope = {"full_attention": {"partial_rotary_factor": 0.5}, "sliding_attention": {"partial_rotary_factor": 1.0}}
    graph = _graph(config, rope_parameters=rope, partial_rotary_factor=0.5)
    found = {b.name: (op.rotary_dim, op.heads.num_heads) for b, op in graph if op.name == "rope"}
    assert found == {"global_dense": (8, 4), "local_moe": (16, 6), "global_moe": (8, 4)}
    assert kv_cache_bytes(graph, batch=1, context=50) == 2 * 2 * 2 * 16 * (2 * 50 + 2 * 30)
    gates = {gating: _graph(config, gating=gating).parameters for gating in (True, "per-element")}
    assert gates["per-element"] - gates[True] == 64 * (4 + 6 + 6 + 4) * (16 - 1)


def test_layers_of_lfm3_take_turns_where_they_are_not_listed():
    graph = _graph(TORCH["models"]["lfm3"]["config"], num_hidden_layers=9)
    assert {b.name: b.layers for b in graph.blocks if b.layers} == {
        "conv": (0, 1, 3, 5, 7), "global": (2, 6), "local": (4, 8),
    }  # fmt: skip


LARGE4 = TORCH["models"]["mistral_large4_text"]["config"]


def test_mistral_large_4_keeps_latents_where_they_are_made_and_keys_of_indexers_where_there_is_one():
    """Layers 0, 1 and 4 keep 20 numbers and 8 that are rotated, layer 3 the 20; 0, 1 and 3 choose with keys of 16."""
    assert kv_cache_bytes(_graph(LARGE4), batch=1, context=50) == 2 * 50 * (3 * (20 + 8) + 20 + 3 * 16)
    alone = _graph({k: v for k, v in LARGE4.items() if k != "kv_source_layers"})
    assert kv_cache_bytes(alone, batch=1, context=50) == 2 * 50 * (6 * (20 + 8) + 2 * 20 + 3 * 16)


def test_mistral_large_4_rotates_three_layers_of_four():
    rotated = {b.layers for b, op in _graph(LARGE4) if op.name == "rope"}
    assert sorted(layer for layers in rotated for layer in layers) == [0, 1, 2, 4, 5, 6]


def test_mistral_large_4_borrows_of_its_own_kind():
    with pytest.raises(InputError, match="kv_source_layers: must name, for layer 7, itself or an earlier layer with"):
        _graph(LARGE4, kv_source_layers=[0, 1, 1, 3, 4, 4, 4, 4])


def test_flint_and_north_micro_rotate_where_there_is_a_window():
    for name, windowed in (("flint", {2, 3, 4}), ("cohere_compass_text", {0, 1, 2})):
        graph = _graph(TORCH["models"][name]["config"])
        assert {place for b, op in graph if op.name == "rope" for place in b.layers} == windowed
        others = TORCH["models"][name]["config"]["num_hidden_layers"] - 3
        assert kv_cache_bytes(graph, batch=1, context=50) == 2 * 2 * 2 * 16 * (3 * 30 + others * 50)
    assert {b.layers for b, op in graph if op.name == "q_proj"} == {(0, 1, 2), (3,)}
    silent = _graph({k: v for k, v in TORCH["models"][name]["config"].items() if k != "rope_parameters"})
    assert all(any(op.name == "rope" for op in b.operators) for b in silent.blocks if b.layers)


DOTS3 = TORCH["models"]["dots3_note_text"]["config"]


def test_layers_of_dots_3_with_a_window_have_latents_of_their_own():
    """At 50 tokens, 3 layers of 5 keep the last 30: 14 and 6 numbers each; the others 20 and 8, and keys of an indexer:
    16 in 8 bits, and a scale of 32.
    """
    latents = 2 * (3 * 30 * (14 + 6) + 2 * 50 * (20 + 8))
    assert kv_cache_bytes(_graph(DOTS3), batch=1, context=50) == latents + 2 * 50 * (16 + 4)
    assert kv_cache_bytes(_graph(DOTS3, use_dsa=False), batch=1, context=50) == latents


def test_dots_3_config_dialects_are_equivalent():
    own = {k.removeprefix("swa_"): v for k, v in DOTS3.items() if k.startswith("swa_") and k != "swa_head_dim"}
    own |= {"qk_rope_head_dim": 6, "head_dim": 22}
    kinds = ["indexed_attention"] * 2 + ["sliding_attention"] * 3
    saved = {k: v for k, v in DOTS3.items() if not k.startswith("swa_")}
    saved |= {"per_layer_config": {"02": own, "03": own, "04": own}, "layer_types": kinds}
    plain = _graph(DOTS3)
    assert _graph(saved) == plain
    assert _graph({"model_type": "dots3_note", "text_config": saved, "vision_config": {}}) == plain
    assert _graph(DOTS3, moe_layer_freq=[0, 1, 1, 1, 1]) == plain


GLM5 = TORCH["models"]["glm5_next_text"]["config"]


def test_glm_5_3_keeps_a_key_for_four_tokens_and_those_of_a_group_that_is_not_full():
    """The fourth of 5 layers alone attends: 20 numbers a token, 16 for four, and the tokens of a group that fills."""
    graph = _graph(GLM5)
    held = [kv_cache_bytes(graph, batch=1, context=context) for context in (48, 96)]
    assert held[1] - held[0] == 2 * 48 * (20 + 16 // 4)
    attending = [op for b, op in graph if b.name == "mla_moe"]
    assert {t.width for op in attending for t in op.inputs if t.name == "index_state"} == {2 * 4 * 16}
    assert {b.name: b.layers for b in graph.blocks if b.layers} == {
        "kda_dense": (0, 1, 2), "mla_moe": (3,), "kda_moe": (4,),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"index_topk": 42}, "index_topk: must be a multiple of index_kpool, 4; got 42"),
        ({"qk_rope_head_dim": 8}, "qk_rope_head_dim: must be 0: this attention has no positions"),
        ({"indexer_types": ["shared"] * 5}, "indexer_types: must give layer 3 an indexer of its own"),
    ],
)
def test_invalid_glm_5_3_configs_are_refused(changes, message):
    with pytest.raises(InputError, match=message):
        _graph(GLM5, **changes)


QWEN4 = TORCH["models"]["qwen4_exp_text"]["config"]


def test_qwen4_keeps_a_mean_of_four_keys_and_those_of_a_group_that_is_not_full():
    """The fourth of 5 layers attends: 2 heads of 16, twice, a token, and 16 for four. The others keep a state."""
    graph = _graph(QWEN4)
    held = [kv_cache_bytes(graph, batch=1, context=context) for context in (48, 96)]
    assert held[1] - held[0] == 2 * 48 * (2 * 2 * 16 + 16 // 4)
    delta = 4 * (4 * 8 * 12 * 4 + 3 * (2 * 2 * 8 + 4 * 12) * 2)  # in fp32, and three tokens before a filter
    assert 2 * held[0] - held[1] == delta + 4 * 16 * 2 + 3 * 3 * 4 * 64 * 2  # and nine of the filter of looked up ones


def test_qwen4_looks_up_the_last_tokens_in_tables_of_prime_numbers_of_rows():
    """Eight tables of 4 numbers a row, of two tokens and of three, filled up to a multiple of 128."""
    (table,) = (w for b, op in _graph(QWEN4) if op.name == "ngrams" for w in op.weights)
    assert table.shape == (640, 4)
    assert 53 + 59 + 61 + 67 + 71 + 73 + 79 + 83 == 546
    one = Workload.decode(batch=1, kv_len=20)
    assert evaluate(table.nbytes, one) == 8 * 4 * 2
    assert table.active * table.numel == 8 * 4
    assert [b.layers for b, op in _graph(QWEN4) if op.name == "ngrams"] == [(1,)]


def test_stacks_of_hrm_keep_what_each_of_their_runs_makes():
    """Two slow cycles of three fast runs and a slow one, of three layers each: 24 caches of 4 heads of 16, twice."""
    config = TORCH["models"]["hrm_text"]["config"]
    graph = _graph(config)
    assert kv_cache_bytes(graph, batch=1, context=50) == 2 * 50 * 24 * 2 * 64
    held = {b.name: (b.repeat, sum(w.numel for op in b.operators for w in op.weights if not w.tied))
            for b in graph.blocks if b.layers}  # fmt: skip
    own = 5 * 64 * 64 + 3 * 64 * 80
    assert held == {
        "layer_first": (2, own), "layer": (2, own), "layer_last": (2, own), "layer_first_again": (6, 0),
        "layer_again": (6, 0), "layer_last_again": (6, 0),
    }  # fmt: skip
    saved = config | {"num_hidden_layers": 24, "num_layers_per_stack": 3}
    assert _graph(saved) == graph
    (mask,) = {op.heads.mask for _, op in _graph(config, prefix_lm=True) if isinstance(op, QK)}
    assert evaluate(mask.pairs, Workload.prefill(batch=2, prompt=30)) == 2 * 30**2


def test_zaya_keeps_rows_before_its_filters_and_half_a_value():
    """Three layers, one of which sees 30 tokens; 2 heads of 16, twice; 3 rows of 6 heads, and half of the 2 heads."""
    graph = _graph(TORCH["models"]["zaya"]["config"])
    states = 3 * (3 * 6 * 16 + 16)
    assert kv_cache_bytes(graph, batch=1, context=50) == 2 * ((50 + 30 + 50) * 2 * 2 * 16 + states)


def test_inkling_keeps_rows_before_its_filters():
    """At 50 tokens, two layers of the last 30 with 3 heads of 12, two of all with 2 of 16; three rows in fp32 of keys,
    of values, and of what attention and the network leave.
    """
    config = TORCH["models"]["inkling_text"]["config"]
    graph = _graph(config)
    rows = 2 * (2 * 36 + 2 * 64) + 2 * (2 * 32 + 2 * 64)
    assert kv_cache_bytes(graph, batch=1, context=50) == 2 * 2 * 2 * (30 * 36 + 50 * 32) + 3 * rows * 4
    silent = {key: value for key, value in config.items() if "layer_types" not in key}
    older = silent | {"dense_mlp_idx": 1, "local_layer_ids": [0, 2], "sconv_kernel_size": 4}
    older |= {"dense_intermediate_size": 80, "intermediate_size": 32}
    whole = {"model_type": "inkling_mm_model", "text_config": older}
    assert _graph(whole) == graph
    assert [b.layers for b in _graph(silent, num_hidden_layers=7).blocks if b.layers] == [(0, 1, 2, 3, 4, 6), (5,)]


def test_heads_of_jetmoe_are_those_of_the_experts_that_a_token_chooses():
    """2 heads of 12 keys; 3 of 8 experts make two queries each. Experts that 2 tokens reach are read."""
    graph = _graph(TORCH["models"]["jetmoe"]["config"])
    assert kv_cache_bytes(graph, batch=1, context=50) == 2 * 50 * 3 * 2 * 24
    works = {op.name: op.work() for op in graph.blocks[1].operators}
    step = Workload.decode(batch=2, kv_len=50)
    assert evaluate(works["qk_matmul"].ops, step) == 2 * 50 * 2 * 6 * 12
    reached = 8 * (1 - (5 / 8) ** 2)
    assert evaluate(works["expert_q_proj"].weight_bytes, step) == pytest.approx(2 * reached * 24 * 64)


def test_the_block_of_zamba_is_held_once_and_heads_of_its_mamba_make_their_own_steps():
    """The third and the eighth of nine layers have it; 128 channels keep 6 numbers in fp32 and three rows."""
    graph = _graph(TORCH["models"]["zamba"]["config"])
    assert {b.name: b.layers for b in graph.blocks if b.layers} == {
        "mamba": (0, 1, 3, 4, 5, 6, 8), "hybrid": (2,), "hybrid_again": (7,),
    }  # fmt: skip
    held = kv_cache_bytes(graph, batch=1, context=50)
    assert held == 2 * 50 * 2 * 2 * 128 + 9 * (128 * 6 * 4 + 128 * 3 * 2)
    shapes = {w.name: w.shape for op in graph.blocks[1].operators for w in op.weights}
    assert shapes["x_proj.weight"] == (2 * (5 + 2 * 6), 64)
    assert shapes["dt_proj.weight"] == (128, 5)


def test_means_of_keys_of_qwen4_by_hand():
    """A token adds 16 numbers to the mean; a quarter of an entry has a norm and rotates 4. Scores of 3 heads are cut at
    zero and added, and their sum compared.
    """
    ops = {op.name: op.work() for b, op in _graph(QWEN4) if b.name == "indexed"}
    step = Workload.decode(batch=1, kv_len=40)
    assert evaluate(ops["index_entries"].ops, step) == 16 + (4 * 16 + 3 * 4) / 4
    amounts = {resource: evaluate(form, step) for resource, form in ops["indexer"].amounts}
    assert amounts[vector("fp32")] == (3 * 2 + 1) * 40 / 4
    assert amounts[matrix("fp16")] == 2 * 3 * 16 * 40 / 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"indexer_kv_heads": 2}, "indexer_kv_heads: must be 1: all heads of this indexer share a key"),
        ({"indexer_budget": 42}, "indexer_budget: must be a multiple of indexer_compress_ratio, 4; got 42"),
        ({"ple_layer_ids": [6]}, "ple_layer_ids: must be numbers of the 5 layers, the first of which is 1"),
        ({"ple_embed_dim": 36}, "ple_embed_dim: must be a multiple of the 8 tables; got 36"),
        ({"ngram_size": 1}, "ngram_size: must be a whole number of at least 2; got 1"),
    ],
)
def test_invalid_qwen4_configs_are_refused(changes, message):
    with pytest.raises(InputError, match=message):
        _graph(QWEN4, **changes)


def test_every_run_of_a_looped_layer_has_a_cache():
    """Four of 8 layers run three times; three of 8 runs of full attention, of 2 heads x 16, are of the last layer."""
    config = TORCH["models"]["inkling2_loop_text"]["config"]
    full = [kind == "hybrid" for kind in config["layer_types"]]
    runs = sum(full[:2]) + 3 * sum(full[2:6]) + sum(full[6:])
    wide = kv_cache_bytes(_graph(config), batch=1, context=1001) - kv_cache_bytes(_graph(config), batch=1, context=1000)
    assert wide == runs * 2 * 2 * 16 * 2
    dory = TORCH["models"]["dory"]["config"]  # 1 layer, 3 that run three times, and 2: full attention in layer 4
    assert kv_cache_bytes(_graph(dory), batch=1, context=1001) - kv_cache_bytes(
        _graph(dory), batch=1, context=1000
    ) == (3 * 2 * 2 * 16 * 2)


def test_dory_counts_attention_and_mlp_of_published_files_as_one_layer():
    config = TORCH["models"]["dory"]["config"]
    kinds = [kind for layer in range(6) for kind in ("full_attention" if layer == 3 else "sliding_attention", "mlp")]
    twice = {"num_hidden_layers": 12, "n_input_layers": 2, "n_output_layers": 4, "layer_types": kinds}
    assert _graph(config, **twice).parameters == _graph(config).parameters


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        (
            "inkling2_loop_text",
            {"loop_layer_index_start": 3},
            "loop_layer_index_start: must, as loop_layer_index_end, be ",
        ),
        (
            "dory",
            {"n_recurrent_layers": 2},
            "n_recurrent_layers: must, with 1 layers before and 2 after, make 6; got 2",
        ),
        ("dory", {"recurrent_kv_cache_mode": "last_loop"}, "recurrent_kv_cache_mode: must be "),
        ("muse_spark_text", {"layer_rope_theta": 5}, "layer_rope_theta: must be a list of numbers; got 5"),
        (
            "apertus1p5_text",
            {"tie_word_embeddings": True},
            "output_vocab_size: must be null where the head is the embed",
        ),
    ],
)
def test_unsupported_fields_of_new_model_types_are_refused(name, changes, message):
    with pytest.raises(InputError, match=re.escape(message)):
        _graph(TORCH["models"][name]["config"], **changes)


def test_apertus_vision_counts_as_its_language_model():
    text = TORCH["models"]["apertus1p5_text"]["config"]
    assert built(model_type="apertus1p5", text_config=text, audio_config={}).parameters == _graph(text).parameters


@pytest.mark.parametrize("text", ["text_config", "llm_config"])  # of transformers, and of published files
def test_nemotron_omni_is_its_language_model(text):
    own = dict(read_yaml(data_dir("models") / "nemotron-3-nano-30b-a3b.yaml").section("config").data)
    graph = built(model_type="nemotron_h_omni", **{text: own}, vision_config={}, sound_config={})
    assert graph.parameters == load_model("nemotron-3-nano-30b-a3b").graph.parameters


@pytest.mark.slow("counts in torch again")
def test_latest_json_equals_a_torch_recount(recounted):
    """Needs the extra `oracle`; skipped without it."""
    recounted("make_latest.py")


def test_some_experts_of_longcat_leave_a_token_as_it_is():
    """12 of 768 are chosen, of which 512 have matrices: 8 of 12 on average."""
    ops = {op.name: op for op in load_model("longcat-flash").graph.blocks[1].operators}
    step, h = Workload.decode(batch=64, kv_len=100), 6144
    works = {name: op.work() for name, op in ops.items()}
    assert evaluate(works["router"].ops, step) == 64 * 2 * 768 * h
    assert evaluate(works["route"].ops, step) == 64 * (5 + 12) * 768
    assert evaluate(works["expert_up_proj"].ops, step) == 64 * 8 * 2 * 2048 * h
    assert evaluate(works["combine"].ops, step) == 64 * 2 * (8 + 1) * h  # and the token itself
    assert evaluate(works["combine"].activation_bytes, step) == 64 * 2 * (8 * h + 12 + h + h)
    reached = 512 * (1 - (1 - 12 / 768) ** 64)
    assert evaluate(works["expert_up_proj"].weight_bytes, step) == pytest.approx(reached * 2048 * h * 2)


def test_a_layer_of_longcat_attends_twice_and_adds_experts_at_its_end():
    model = load_model("longcat-flash")
    assert model.kv_bytes_per_token == 28 * 2 * (512 + 64) * 2
    layer = model.graph.blocks[1]
    assert (layer.repeat, layer.output) == (28, "second_mlp_add")
    reads = {op.name: [t.name for t in op.inputs] for op in layer.operators}
    assert reads["router"] == reads["gate_proj"] == ["mlp_norm"]
    assert reads["second_attn_norm"] == ["mlp_add"]
    assert reads["second_mlp_add"] == ["second_attn_add", "second_down_proj", "combine"]
    assert reads["second_qk_matmul"] == ["second_q_rope", "second_k_nope", "second_rope_cache"]


def test_streams_of_hy4_are_not_mixed_with_each_other():
    """Four of 6144: weights by one product with 8 rows, a sum, eight sigmoids; each stream with the result added."""
    ops = {op.name: op.work() for op in load_model("hy4-preview").graph.blocks[1].operators}
    step = Workload.decode(batch=3, kv_len=100)
    amounts = {r: evaluate(f, step) for r, f in ops["attn_hc"].amounts}
    assert amounts[matrix("tf32")] == 3 * 2 * 8 * 4 * 6144
    assert amounts[vector("fp32")] == 3 * (5 * 4 * 6144 + 6 * 8)
    assert evaluate(ops["attn_add"].ops, step) == 3 * 2 * 4 * 6144
    assert evaluate(ops["g_proj"].ops, step) == 3 * 2 * 6144 * 64 * 256
    assert evaluate(ops["gated_attention"].ops, step) == 3 * 5 * 64 * 256
    assert evaluate(ops["softmax"].weight_bytes, step) == 64 * 2


def test_indexers_of_hy4_are_those_of_the_checkpoint():
    own = [n for b in load_model("hy4-preview").graph.blocks if "shared" not in b.name for n in b.layers]
    assert sorted(own) == [0, *range(1, 78, 4)]


def test_north_rotates_where_it_has_a_window_or_no_experts():
    blocks = {block.name: block for block in load_model("north-mini-code").graph.blocks}
    assert {name: block.repeat for name, block in blocks.items()} == {
        "embedding": 1, "global_dense": 1, "local_moe": 36, "global_moe": 12, "head": 1,
    }  # fmt: skip
    rotated = {name for name, block in blocks.items() if any(op.kind == "rope" for op in block.operators)}
    assert rotated == {"global_dense", "local_moe"}
    layers = load_model("north-mini-code").graph.blocks
    listed = {b.name: b.layers for b in layers}
    config = {**read_yaml(data_dir("models") / "north-mini-code.yaml").section("config").data, "layer_types": None}
    patterned = {b.name: b.layers for b in _graph(config).blocks}
    assert patterned["global_dense"] == listed["global_dense"] == (0,)
    assert patterned["global_moe"] == tuple(n for n in range(1, 49) if n % 4 == 0) == listed["global_moe"]


def test_layers_of_step_with_a_window_have_more_heads_and_are_rotated_whole():
    blocks = {block.name: block for block in load_model("step-3.5-flash").graph.blocks}
    assert {name: block.repeat for name, block in blocks.items() if block.layers} == {
        "global_dense": 1, "local_dense": 2, "local_moe": 31, "global_moe": 11,
    }  # fmt: skip
    for name, heads, rotated in (("global_moe", 64, 64), ("local_moe", 96, 128)):
        ops = {op.name: op for op in blocks[name].operators}
        assert ops["q_proj"].outputs[0].width == heads * 128
        assert ops["g_proj"].outputs[0].width == heads
        assert ops["rope"].rotary_dim == rotated
        assert evaluate(ops["qk_matmul"].work().kv_bytes, Workload.decode(batch=1, kv_len=2000)) == 2 * 8 * 128 * (
            512 if heads == 96 else 2000
        )


def test_layers_of_step_that_predict_are_not_among_those_listed():
    config = read_yaml(data_dir("models") / "step-3.5-flash.yaml").section("config").data
    longer = {**config, "layer_types": [*config["layer_types"], *["sliding_attention"] * 3]}
    whole = {"model_type": "step3p7", "text_config": {**longer, "num_nextn_predict_layers": 3}}
    assert _graph(whole) == _graph(config)


@pytest.mark.parametrize(("kind", "gates"), [("head_wise", 32), ("element_wise", 32 * 128)])
def test_gates_of_ling_are_one_a_head_or_one_an_element(kind, gates):
    config = read_yaml(data_dir("models") / "ling-3.0-flash.yaml").section("config").data
    graph = _graph({**config, "gated_attention_proj_granularity_type": kind})
    ops = {op.name: op.work() for b in graph.blocks if b.name == "mla_sparse" for op in b.operators}
    one = Workload.decode(batch=1, kv_len=10)
    assert evaluate(ops["g_proj"].ops, one) == 2 * 2560 * gates
    assert evaluate(ops["gated_attention"].ops, one) == 32 * 128 + 4 * gates


def test_parameters_of_ling_tiny_by_hand():
    h, heads, d = 1536, 16, 128
    wide = heads * d
    kda = 6 * h * wide + heads * h + 3 * wide * 4 + heads + wide + d
    mla = 256 * h + 256 + 256 * heads * 192 + 576 * h + 512 + 512 * heads * 256 + wide * h + heads * h
    moe = 128 * 3 * h * 512 + 128 * h + 3 * h * 512
    total = 18 * kda + 6 * mla + 3 * h * 4608 + 23 * moe + 24 * 2 * h + h + 2 * 157184 * h
    assert load_model("ling-3.0-tiny").parameters == total
    assert total == pytest.approx(7.9e9, rel=2e-3)  # published


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("longcat-flash", {"zero_expert_num": 100}, "zero_expert_num: must leave a whole number of the 12 experts"),
        ("longcat-flash", {"zero_expert_type": "copy"}, "zero_expert_type: must be one of identity; got 'copy'"),
        ("longcat-flash", {"attention_method": "GQA"}, "attention_method: must be one of MLA, mla; got 'GQA'"),
        ("longcat-flash", {"emb_neighbor_num": 3}, "emb_neighbor_num: must be absent"),
        ("ling-3.0-flash", {"architectures": ["BailingMoeV4ForCausalLM"]}, "architectures: must be BailingMoeV3"),
        ("ling-3.0-flash", {"no_kda_lora": None}, "no_kda_lora: must be true"),
        ("ling-3.0-flash", {"use_mla_nope": True}, "use_mla_nope: is not known for this architecture; got True"),
        ("ling-3.0-flash", {"num_nextn_predict_layers": 10**9}, "num_nextn_predict_layers: must be at most 10000"),
        ("ling-3.0-flash", {"layer_group_size": 5}, "layer_group_size: must divide the 42 layers; got 5"),
        ("hy4-preview", {"enable_ihc": False}, "enable_ihc: must be true"),
        ("hy4-preview", {"indexer_types": ["shared"] * 78}, "indexer_types: must give the first layer an indexer"),
        ("north-mini-code", {"use_qk_norm": True}, "use_qk_norm: must be false"),
        ("zaya1-8b", {"num_hidden_layers": 80, "ffn_hidden_size": 4096}, "ffn_hidden_size: must be absent: its format"),
        ("step-3.5-flash", {"use_head_wise_attn_gate": False}, "use_head_wise_attn_gate: must be true"),
        ("step-3.5-flash", {"sink": True}, "sink: must be false"),
        ("step-3.5-flash", {"att_impl_type": "MFA"}, "att_impl_type: must be one of GQA; got 'MFA'"),
        ("step-3.5-flash", {"moe_layers_enum": "3,x"}, "moe_layers_enum: must be numbers of layers; got '3,x'"),
        ("step-3.5-flash", {"layer_types": ["full_attention"]}, "layer_types: must have an entry for each of the 45"),
        (
            "step-3.5-flash",
            {"partial_rotary_factors": [2.0] * 45},
            "partial_rotary_factors: must be a share from 0 to 1",
        ),
    ],
)
def test_unsupported_changes_of_shipped_configs_are_refused(name, changes, message):
    config = read_yaml(data_dir("models") / f"{name}.yaml").section("config").data
    with pytest.raises(InputError) as error:
        _graph({**config, **changes})
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("quant", ["W16A16", "W4A16g128", "fp8"])
@pytest.mark.parametrize("layout", ["tp=8", "tp=8 ep=8", "ep=8 dp=8", "pp=2"])
@pytest.mark.parametrize("name", SHIPPED)
def test_layouts_and_precisions_run(name, layout, quant):
    if name == "north-mini-code" and layout == "tp=8":
        layout = "tp=4"
    setting = Setting.of(name, "b300", layout=layout, quant=quant)
    setting.graph.check()
    assert setting.decode_plan.time_s(Workload.decode(batch=8, kv_len=1000)) > 0


@pytest.mark.parametrize(
    ("name", "total", "active"),
    [
        ("kimi-k3", 2.78e12, 104.2e9),
        ("longcat-flash", 560e9, 27e9),
        ("hy4-preview", 770e9, 49e9),
        ("step-3.5-flash", 196e9, 11.5e9),
        ("ling-3.0-flash", 127e9 - 3.06e9, 5.1e9),  # a layer that predicts is among those published
    ],
)
def test_parameters_are_close_to_published_figures(name, total, active):
    """Active parameters of a token exclude embedding tables."""
    model = load_model(name)
    looked_up = model.graph.blocks[0].operators[0].weights[0].numel
    assert model.parameters == pytest.approx(total, rel=5e-3)
    assert model.graph.active_parameters - looked_up == pytest.approx(active, rel=0.02)


def test_a_config_without_a_model_type_counts_as_its_class_is_named(tmp_path):
    """As LongCat-Flash's."""
    config = read_yaml(data_dir("models") / "longcat-flash.yaml").section("config").data
    config = {**config, "model_type": None, "architectures": ["LongcatFlashForCausalLM"]}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    model = load_model(str(tmp_path / "config.json"))
    assert model.graph == load_model("longcat-flash").graph
    assert model.notes == ("no model_type in its config: counts as longcat_flash, as its class is named",)
    (tmp_path / "config.json").write_text(json.dumps({**config, "architectures": ["NoSuchModel"]}), encoding="utf-8")
    with pytest.raises(InputError, match="model_type: is missing"):
        load_model(str(tmp_path / "config.json"))
