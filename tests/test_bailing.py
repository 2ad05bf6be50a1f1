"""Ling before 3.0: counts by hand."""

from __future__ import annotations

import pytest

from llmviewer.errors import InputError
from llmviewer.forms import evaluate
from llmviewer.model import kv_cache_bytes
from llmviewer.model_files import load_model
from llmviewer.workload import Workload

from .strategies import built

H, V = 64, 100
LING = {
    "model_type": "bailing_moe",
    "vocab_size": V,
    "hidden_size": H,
    "intermediate_size": 96,
    "moe_intermediate_size": 24,
    "moe_shared_expert_intermediate_size": 28,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "first_k_dense_replace": 1,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "num_shared_experts": 2,
    "use_qk_norm": True,
    "partial_rotary_factor": 0.5,
}
LATENT = {
    "architectures": ["BailingMoeV2_5ForCausalLM"],
    "kv_lora_rank": 16,
    "q_lora_rank": 20,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 4,
    "v_head_dim": 10,
}
LINEAR = {"layer_group_size": 2, "group_norm_size": 2}
DENSE = 3 * H * 96
EXPERTS = 8 * H + 8 * 3 * H * 24 + 3 * H * 56
SOFTMAX = H * 12 * (4 + 2 + 2) + 4 * 12 * H + 2 * 12
LIGHTNING = H * 3 * 48 + 2 * H * 48 + 48 + 2 * 12  # q, k and v; gate and way out; norms
LATENTLY = H * 20 + 20 + 20 * 4 * 16 + H * (16 + 4) + 16 + 16 * 4 * (12 + 10) + 4 * 10 * H
AROUND = 2 * V * H + H + 5 * 2 * H + DENSE + 4 * EXPERTS


def _graph(**changes):
    return built(**LING | changes)


def test_ling_2_by_hand():
    graph = _graph()
    assert graph.parameters == AROUND + 5 * SOFTMAX
    assert kv_cache_bytes(graph, batch=1, context=9) == 9 * 5 * 2 * 2 * 12 * 2
    rope = next(op for _, op in graph if op.name == "rope")
    assert rope.rotary_dim == 6
    assert _graph(use_qk_norm=False).parameters == AROUND + 5 * (SOFTMAX - 24)
    assert _graph(model_type="bailing_moe_v2") == graph


def test_layers_after_the_last_group_have_softmax_too():
    """Layers 0 and 2 of five are linear: each group's last one is not, nor is what is left over."""
    graph = _graph(model_type="bailing_moe_linear", **LINEAR)
    assert graph.parameters == AROUND + 2 * LIGHTNING + 3 * SOFTMAX
    state = 2 * 4 * 12 * 12 * 4
    assert kv_cache_bytes(graph, batch=1, context=9) == 9 * 3 * 2 * 2 * 12 * 2 + state
    names = {block.name: block.layers for block in graph.blocks if block.layers}
    assert names == {"linear_dense": (0,), "full_moe": (1, 3, 4), "linear_moe": (2,)}


def test_ling_2_5_has_latent_attention_in_their_place():
    graph = _graph(model_type="bailing_hybrid", **LINEAR, **LATENT)
    assert graph.parameters == AROUND + 2 * LIGHTNING + 3 * LATENTLY
    assert kv_cache_bytes(graph, batch=1, context=9) == 9 * 3 * (16 + 4) * 2 + 2 * 4 * 12 * 12 * 4


def test_a_step_of_lightning_attention():
    """Four heads of 12: q S and k^T v, a rotation of 6 elements of each of 8 heads, norm and gate of 48."""
    graph = _graph(model_type="bailing_moe_linear", **LINEAR)
    step = Workload.decode(batch=3, kv_len=50)
    ops = {op.name: evaluate(op.work().ops, step) for block, op in graph if block.name == "linear_moe"}
    assert ops["rope"] == 3 * 3 * 6 * (4 + 4)
    assert ops["g_norm"] == 3 * 48 * (4 + 4 + 1)
    assert ops["qkv_proj"] == 3 * 2 * H * 3 * 48
    assert ops["scan"] >= 3 * 4 * 4 * 12 * 12


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"group_norm_size": 3}, "group_norm_size: must divide the 4 heads; got 3"),
        ({"linear_silu": True}, "linear_silu: must be false"),
        ({"architectures": ["Other"]}, "architectures: must be BailingMoeV3ForCausalLM or BailingMoeV2_5ForCausalLM"),
    ],
)
def test_unsupported_bailing_fields_are_refused(changes, message):
    with pytest.raises(InputError, match=message):
        _graph(model_type="bailing_hybrid", **(LINEAR | LATENT | changes))


@pytest.mark.parametrize(
    ("name", "total", "active"),
    [("ling-lite-1.5", 16.8e9, 2.75e9), ("ling-mini-2.0", 16.26e9, 1.43e9), ("ling-flash-2.0", 102.9e9, 6.1e9)],
)
def test_published_totals(name, total, active):
    """The READMEs of inclusionAI/Ling and Ling-V2; of Ling-flash-2.0 100B and 6.1B are published."""
    model = load_model(name)
    assert model.parameters == pytest.approx(total, rel=2e-3)
    assert model.active_parameters == pytest.approx(active, rel=1e-2)
