"""Kimi K3: attention residuals, experts in a latent space and gates, by hand; its checkpoint's shapes and bytes."""

from __future__ import annotations

import pytest

from llmviewer._layout import data_dir
from llmviewer.architectures import builder
from llmviewer.documents import Section, read_yaml
from llmviewer.errors import InputError
from llmviewer.forms import evaluate
from llmviewer.memory import live_bytes, weight_bytes
from llmviewer.model_files import load_model
from llmviewer.operators.attention_residuals import Sources
from llmviewer.precision import BF16
from llmviewer.setting import Setting
from llmviewer.workload import Workload

from .strategies import built

HIDDEN = 7168
TINY = {
    "model_type": "kimi_linear",
    "vocab_size": 300,
    "hidden_size": 96,
    "intermediate_size": 160,
    "moe_intermediate_size": 48,
    "num_hidden_layers": 7,
    "num_attention_heads": 4,
    "kv_lora_rank": 40,
    "q_lora_rank": 24,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 20,
    "num_experts": 8,
    "num_experts_per_token": 2,
    "num_shared_experts": 1,
    "first_k_dense_replace": 1,
    "hidden_act": "situ",
    "activation_situ_beta": 4.0,
    "activation_situ_linear_beta": 25.0,
    "routed_expert_hidden_size": 32,
    "latent_moe_use_norm": True,
    "mla_use_nope": True,
    "mla_use_output_gate": True,
    "attn_res_block_size": 3,
    "linear_attn_config": {
        "num_heads": 3,
        "head_dim": 12,
        "short_conv_kernel_size": 4,
        "full_attn_layers": [4],
        "kda_layers": [1, 2, 3, 5, 6, 7],
        "use_full_rank_gate": True,
        "gate_lower_bound": -5.0,
    },
}


def _graph(**changes):
    return built(BF16, **TINY | changes)


def _operators(graph, name):
    return {op.name: op for block in graph.blocks if block.name == name for op in block.operators}


def _amount(form, workload):
    return float(evaluate(form, workload))


def test_parameters_are_those_of_the_checkpoints_tensors():
    """Their shapes, of the language model: 69 layers of the delta rule, 24 of latent attention, 92 with experts."""
    wide = 96 * 128
    kda = 5 * wide * HIDDEN + 96 * HIDDEN + 128 * (HIDDEN + wide) + wide + 3 * wide * 4 + 128 + 96
    q = 1536 * HIDDEN + 1536 + 96 * 192 * 1536
    mla = q + 576 * HIDDEN + 512 + 96 * 256 * 512 + 2 * wide * HIDDEN
    experts = 896 * 3 * 3072 * 3584
    moe = experts + 896 * HIDDEN + 2 * 3584 * HIDDEN + 3584 + 3 * 6144 * HIDDEN
    rest = 93 * 6 * HIDDEN + 3 * 33792 * HIDDEN + 2 * 163840 * HIDDEN + 3 * HIDDEN
    total = 69 * kda + 24 * mla + 92 * moe + rest
    assert load_model("kimi-k3").parameters == total
    tower = 27 * (2 * 4096 * 1024 + 1024 * 1536 + 4608 * 1024 + 2 * 1024) + 1024 + 64 * 64 * 1024 + 1024 * 3 * 14 * 14
    whole = total + tower + 4096 * 4096 + HIDDEN * 4096 + HIDDEN
    assert load_model("kimi-k3-vision").parameters == whole
    stored = whole - 92 * experts * (1 - 1 / 2 - 1 / 32)  # bytes of two numbers, and a scale for 32
    corrections, idle = 92 * 896, 69 * 32  # of routers, and of decays that no head has
    assert stored + corrections + idle == 1_503_647_073_024  # elements of all tensors of the checkpoint


def test_weights_take_the_bytes_of_the_checkpoint():
    """Total_size of its index; convolutions and decays are in fp32 there, and in bf16 here."""
    held = weight_bytes(Setting.of("kimi-k3-vision", "b300").graph)
    fp32 = 69 * (3 * 12288 * 4 + 12288 + 96 + 128) * 2
    beside = (92 * 896 + 69 * 32) * 4
    assert held + fp32 + beside == pytest.approx(1_560_860_324_864, rel=1e-9)


def test_experts_alone_are_in_four_bits():
    graph = Setting.of("kimi-k3", "b300").graph
    formats = {op.name: op.weights[0].format.name for block in graph.blocks for op in block.operators if op.weights}
    small = {name for name, form in formats.items() if form == "mxfp4"}
    assert small == {"expert_gate_proj", "expert_up_proj", "expert_down_proj"}


def test_a_layer_mixes_the_embedding_and_what_runs_before_it_left():
    graph = _graph()
    inputs = {
        block.name: [[t.name for t in op.inputs] for op in block.operators if isinstance(op, Sources)]
        for block in graph.blocks
    }
    assert inputs == {
        "embedding": [],
        "kda_dense_0_first": [["hidden"], ["hidden", "o_proj"]],
        "kda_sparse_0": [["embed_tokens", "hidden"], ["embed_tokens", "attn_add"]],
        "kda_sparse_0_last": [["embed_tokens", "hidden"], ["embed_tokens", "attn_add"]],
        "mla_sparse_1_first": [["embed_tokens", "hidden"], ["embed_tokens", "hidden", "o_proj"]],
        "kda_sparse_1": [["embed_tokens", "run_0", "hidden"], ["embed_tokens", "run_0", "attn_add"]],
        "kda_sparse_1_last": [["embed_tokens", "run_0", "hidden"], ["embed_tokens", "run_0", "attn_add"]],
        "kda_sparse_2_first": [["embed_tokens", "run_0", "hidden"], ["embed_tokens", "run_0", "hidden", "o_proj"]],
        "head": [["embed_tokens", "run_0", "run_1", "hidden"]],
    }
    left = {block.name: block.output for block in graph.blocks if block.name.endswith("last")}
    assert left == {"kda_sparse_0_last": "run_0", "kda_sparse_1_last": "run_1"}


def test_every_layer_of_kimi_k3_has_as_many_sources_as_runs_have_begun():
    graph = load_model("kimi-k3").graph
    for block in graph.blocks[1:-1]:
        first, second = (op for op in block.operators if isinstance(op, Sources))
        for layer in block.layers:
            before = -(-layer // 12)
            assert len(first.inputs) == before + 1
            assert len(second.inputs) == before + 1 + (layer % 12 == 0)
    assert len(graph.blocks[-1].operators[0].inputs) == 8 + 1


def test_a_mixture_of_sources_by_hand():
    """Three of 96 elements: norm 4, product 2 and sum 2 an element, a softmax of 5; read once each, one written."""
    op = _operators(_graph(), "kda_sparse_1")["attn_sources"]
    work, tokens = op.work(), 10
    prefill = Workload.prefill(batch=2, prompt=5)
    assert _amount(work.ops, prefill) == tokens * 3 * (8 * 96 + 5)
    assert _amount(work.activation_bytes, prefill) == tokens * (3 + 1) * 96 * 2
    assert _amount(work.weight_bytes, prefill) == 2 * 96 * 2
    assert work.operand_unit.unit.value == "vector"


def test_sources_stay_in_memory_while_layers_read_them():
    block = next(b for b in _graph().blocks if b.name == "kda_sparse_1")
    prefill = Workload.prefill(batch=1, prompt=7)
    live = {op.name: _amount(form, prefill) for op, form in zip(block.operators, live_bytes(block), strict=True)}
    assert live["attn_sources"] == 7 * 96 * 2 * (2 + 1 + 1)  # the embedding, a run, the run at hand and the result
    assert live["mlp_add"] == 7 * 96 * 2 * (2 + 3)  # the two stay; two summands and the sum


def test_gates_and_experts_in_a_latent_space_by_hand():
    one = Workload.decode(batch=1, kv_len=9)
    ops = {name: op.work() for name, op in _operators(_graph(), "mla_sparse_1_first").items()}
    assert _amount(ops["g_proj"].ops, one) == 2 * 96 * 4 * 20
    assert _amount(ops["gated_attention"].ops, one) == 5 * 4 * 20
    assert _amount(ops["fc1_latent_proj"].ops, one) == _amount(ops["fc2_latent_proj"].ops, one) == 2 * 96 * 32
    assert _amount(ops["latent_norm"].ops, one) == 4 * 32
    assert _amount(ops["expert_up_proj"].ops, one) == 2 * 2 * 32 * 48
    assert _amount(ops["expert_act"].ops, one) == 2 * 48 * 12  # 8 for the gate, 3 for what it scales, their product
    delta = {name: op.work() for name, op in _operators(_graph(), "kda_sparse_1").items()}
    assert _amount(delta["g_proj"].ops, one) == 2 * 96 * 36
    assert not {"g_a_proj", "g_b_proj"} & delta.keys()


@pytest.mark.parametrize("layout", ["tp=8", "tp=8 ep=8", "tp=4 pp=2", "ep=8 dp=8"])
def test_layouts_run(layout):
    setting = Setting.of("kimi-k3", "b300", layout=layout)
    setting.graph.check()
    assert setting.decode_plan.time_s(Workload.decode(batch=8, kv_len=1000)) > 0


def test_a_stage_of_a_pipeline_hands_on_what_runs_before_it_left():
    graph = Setting.of("kimi-k3", "b300", layout="tp=4 pp=2").graph
    send = next(op for _, op in graph if op.name == "send")
    assert [t.name for t in send.inputs] == ["mlp_add", "embed_tokens", "run_0", "run_1", "run_2"]


def test_pictures_are_a_source_too():
    graph = load_model("kimi-k3-vision").graph.check()
    assert all("embed_tokens" not in block.side_inputs for block in graph.blocks)
    reading = sum("seen" in block.side_inputs for block in graph.blocks)
    assert reading == len(graph.blocks) - 6  # but three of the tower, the projector, the embedding and the first layer


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mm_hidden_size": 512}, "vision_config.mm_hidden_size: must be the 1024 of vt_hidden_size"),
        ({"qkv_hidden_size": 1000}, "vision_config.qkv_hidden_size: must be a multiple of the 12 heads; got 1000"),
        ({"mm_projector_type": "mlp"}, "vision_config.mm_projector_type: must be one of patchmergerv2; got 'mlp'"),
    ],
)
def test_invalid_kimi_k3_tower_configs_are_refused(changes, message):
    config = read_yaml(data_dir("models") / "kimi-k3-vision.yaml").section("config").data
    section = Section({**config, "vision_config": {**config["vision_config"], **changes}}, "config.json")
    with pytest.raises(InputError) as error:
        builder(section)(section, BF16)
    assert message in str(error.value)
