"""Families of 2024 to 2026 that are near others: parameters as transformers 5.23 counts them on the meta device, and
what they do otherwise by hand.
"""

from __future__ import annotations

import pytest

from llmviewer.errors import InputError
from llmviewer.forms import evaluate
from llmviewer.model import kv_cache_bytes
from llmviewer.operators.attention import QK
from llmviewer.workload import Workload

from .strategies import built

SIZES = {"vocab_size": 1000, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4,
         "num_attention_heads": 4, "num_key_value_heads": 2}  # fmt: skip
LATENT = {"q_lora_rank": 24, "kv_lora_rank": 16, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 10}
DELTA = {"linear_num_key_heads": 4, "linear_num_value_heads": 4, "linear_key_head_dim": 12,
         "linear_value_head_dim": 24}  # fmt: skip
KINDS = ["linear_attention", "linear_attention", "linear_attention", "full_attention"]
WINDOWS = ["full_attention", "sliding_attention", "sliding_attention", "full_attention"]
TOWER = {"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 2,
         "image_size": 32, "patch_size": 8, "model_type": "siglip_vision_model"}  # fmt: skip
CONFIGS = {
    "apertus": {},
    "internlm3": {"head_dim": 16},
    "bitnet": {},
    "minicpm3": LATENT,
    "granite_swa": {"layer_types": WINDOWS, "sliding_window": 6, "layer_rope_theta": [0, 1e4, 1e4, 0]},
    "olmo_hybrid": {"layer_types": KINDS} | DELTA,
    "cohere2_vision": {"vision_config": TOWER, "alignment_intermediate_size": 48, "picture_size": 32},
}
COUNTED = {  # by transformers
    "apertus": 227016,
    "internlm3": 251456,
    "bitnet": 252096,
    "minicpm3": 174304,
    "granite_swa": 187472,
    "olmo_hybrid": 292352,
    "cohere2_vision": 211936,
}


def _config(kind, **changes):
    if kind != "cohere2_vision":
        return {"model_type": kind} | SIZES | CONFIGS[kind] | changes
    text = {"model_type": "cohere2"} | SIZES | {"head_dim": 16, "sliding_window": 6}
    return {"model_type": kind, "text_config": text} | CONFIGS[kind] | changes


def _graph(kind, **changes):
    return built(**_config(kind, **changes))


def _layer(graph, block, workload):
    """OPs of the operators of one layer of a block."""
    made = next(b for b in graph.blocks if b.name == block)
    return {op.name: evaluate(op.work().on(made.stream).ops, workload) for op in made.operators}


@pytest.mark.parametrize("kind", CONFIGS)
def test_parameters_are_those_of_transformers(kind):
    assert _graph(kind).parameters == COUNTED[kind]


@pytest.mark.parametrize(
    ("kind", "held"),
    [
        ("apertus", 4 * 2 * 2 * 16 * 9),
        ("bitnet", 4 * 2 * 2 * 16 * 9),
        ("minicpm3", 4 * (16 + 8) * 9),
        ("granite_swa", 2 * 2 * 2 * 16 * (9 + 6)),
        ("cohere2_vision", 2 * 2 * 16 * (3 * 6 + 9)),
    ],
)
def test_kv_cache_of_nine_tokens_by_hand(kind, held):
    """In elements of two bytes: keys and values of two heads of 16, a latent and its key, windows of six."""
    assert kv_cache_bytes(_graph(kind), batch=1, context=9) == 2 * held


def test_delta_rule_cache_holds_states_and_convolution_taps():
    """A full layer's keys and values; of three others states in fp32, and three taps of queries, keys and values."""
    held = 9 * 2 * 2 * 16 * 2 + 3 * (4 * 12 * 24 * 4 + 3 * (2 * 48 + 96) * 2)
    assert kv_cache_bytes(_graph("olmo_hybrid"), batch=1, context=9) == held


def test_a_learned_activation_has_two_numbers_and_six_ops():
    step = Workload.decode(batch=3, kv_len=9)
    assert _layer(_graph("apertus"), "layer", step)["mlp_act"] == 3 * 96 * 6
    assert _graph("apertus").parameters - _graph("apertus", hidden_act="relu2").parameters == 4 * 2


def test_norms_before_the_ways_out():
    ops = _layer(_graph("bitnet"), "layer", Workload.decode(batch=3, kv_len=9))
    assert ops["attn_sub_norm"] == 3 * 64 * 4
    assert ops["mlp_sub_norm"] == 3 * 96 * 4


def test_layers_without_a_theta_are_not_rotated():
    graph = _graph("granite_swa")
    rotated = {block.name: any(op.name == "rope" for op in block.operators) for block in graph.blocks if block.layers}
    assert rotated == {"global_unrotated": False, "local": True}
    assert {op.heads.mask.window for block, op in graph if block.name == "local" and isinstance(op, QK)} == {6}


def test_the_first_of_every_four_layers_of_granite_has_no_window():
    graph = _graph("granite_swa", layer_types=None, layer_rope_theta=None)
    assert {block.name: block.layers for block in graph.blocks if block.layers} == {"global": (0,), "local": (1, 2, 3)}


def test_four_patches_become_a_token_through_a_gate():
    """An image of 4 x 4 patches of 24 numbers each: 48 made of 96, 24 gated, 64 of the text."""
    prompt = Workload.prefill(batch=1, prompt=9, images=1)
    ops = _layer(_graph("cohere2_vision"), "vision_projector", prompt)
    assert ops == {"vision_linear_1": 4 * 2 * 96 * 48, "vision_projector_act": 4 * 24 * 5,
                   "vision_linear_2": 4 * 2 * 24 * 64}  # fmt: skip
    assert not any("unused" in op.name for _, op in _graph("cohere2_vision", vision_config=None))


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("internlm3", {"bias": True}, "bias: must be as that of the projections of attention"),
        ("granite_swa", {"layer_rope_theta": [1]}, "layer_rope_theta: must be a list of 4 numbers"),
        ("cohere2_vision", {"alignment_intermediate_size": 5}, "alignment_intermediate_size: must be even"),
        ("olmo_hybrid", {"layer_types": ["conv"] * 4}, "must be made of linear_attention and full_attention"),
    ],
)
def test_invalid_configs_of_newer_families_are_refused(kind, changes, message):
    with pytest.raises(InputError, match=message):
        _graph(kind, **changes)
