"""Hybrids and what came with them: OPs and parameters against transformers; states, caches and operators by hand."""

from __future__ import annotations

import json
from collections import Counter
from fractions import Fraction
from math import floor
from pathlib import Path

import numpy as np
import pytest

from llmviewer._layout import data_dir
from llmviewer.architectures import builder
from llmviewer.architectures.blocks.feed_forward import Experts, Mlp
from llmviewer.architectures.blocks.parts import Parts
from llmviewer.architectures.blocks.state_space import GatedLinearRecurrence, Mamba2, ShortConvMixer
from llmviewer.documents import Section, read_yaml
from llmviewer.errors import InputError
from llmviewer.forms import evaluate
from llmviewer.memory import weight_bytes
from llmviewer.model import kv_cache_bytes
from llmviewer.model_files import load_model, model_names
from llmviewer.operators.attention import QK, SV
from llmviewer.operators.linear import ExpertsLinear, Linear
from llmviewer.precision import FP16
from llmviewer.setting import Setting
from llmviewer.workload import Workload

from .cases import for_each
from .strategies import built

ORACLE = json.loads((Path(__file__).parent / "oracle" / "flops.json").read_text(encoding="utf-8"))["hybrids"]
CASES = [(name, case) for name, model in ORACLE.items() for case in model["cases"]]
MODEL_TYPES = (
    "falcon_h1", "zamba2", "bamba", "granitemoehybrid", "lfm2", "lfm2_moe", "recurrent_gemma", "gemma4_text",
    "gemma3n_text",
)  # fmt: skip


def _config(name):
    return dict(read_yaml(data_dir("models") / f"{name}.yaml").section("config").data)


MODELS = [
    *(name for name in model_names() if _config(name)["model_type"] in MODEL_TYPES),
    "nemotron-3-super-120b-a12b",
]
OPERATOR = {  # last parts of a module's path in transformers -> name of the operator
    "self_attn": "attention",
    "mixer": "attention",
    "temporal_block": "attention",
    "self_attn.out_proj": "o_proj",
    "feed_forward.w1": "gate_proj",
    "feed_forward.w2": "down_proj",
    "feed_forward.w3": "up_proj",
    "shared_experts.up_proj": "shared_up_proj",
    "shared_experts.down_proj": "shared_down_proj",
    "gate": "router",
    "router.proj": "router",
    "rg_lru": "gates",
}
SHARED_MLP = {"input_linear": "gate_up_proj", "output_linear": "down_proj"}
OURS = {"input_gate": "gates", "recurrent_gate": "gates", "modality_router_again": "modality_router"}

PARTS = Parts(format=FP16)
X = PARTS.tensor("x", 8)
PREFILL = Workload.prefill(batch=2, prompt=5)  # 10 tokens
DECODE = Workload.decode(batch=2, kv_len=6)  # 2 tokens


def _counted(op, w):
    work = op.work()
    return tuple(evaluate(form, w) for form in (work.ops, work.weight_bytes, work.activation_bytes, work.kv_bytes))


def _operator(path, *, mixture):
    parts = path.split(".")
    if parts[-1] in SHARED_MLP:
        return f"shared_{SHARED_MLP[parts[-1]]}" if mixture else SHARED_MLP[parts[-1]]
    if parts[-1] == "*":
        return "adapters" if "adapter" in path else parts[-2]
    return OPERATOR.get(".".join(parts[-2:])) or OPERATOR.get(parts[-1], parts[-1])


def _counted_by_torch(case):
    mixture = any("experts" in path for path in case["by_module"])
    counted = Counter()
    for path, ops in case["by_module"].items():
        counted[_operator(path, mixture=mixture)] += ops
    return counted


def _counted_by_us(name, w):
    """OPs by operator in the counter's conventions: all cells of a prefill, and the head at every position."""
    everywhere = Fraction(int(w.tokens()), int(w.logits()))
    prefill = w.tokens() > w.sequences()
    counted = Counter()
    for block, op in load_model(name).graph:
        ops = block.repeat * Fraction(evaluate(op.work().ops, w))
        if isinstance(op, QK | SV):
            pairs = Fraction(evaluate(op.heads.mask.pairs, w))
            counted["attention"] += ops * (Fraction(w.cells(float("inf"))) / pairs if prefill else 1)
        elif isinstance(op, ExpertsLinear):
            counted["experts"] += ops
        elif isinstance(op, Linear):
            name_here = "adapters" if "adapter" in op.name else OURS.get(op.name, op.name)
            counted[name_here] += ops * (everywhere if op.name == "lm_head" else 1)
    return counted


@for_each("name, case", CASES)
def test_ops_of_every_matrix_product_equal_torchs_to_the_digit(name, case):
    w = Workload.chunk(batch=case["batch"], chunk=case["q_len"], past=case["kv_len"] - case["q_len"])
    ours = _counted_by_us(name, w)
    assert ours == _counted_by_torch(case)
    assert sum(ours.values()) == case["flops"]


@pytest.mark.parametrize("name", ORACLE)
def test_parameters_equal_those_of_transformers(name):
    assert load_model(name).parameters == ORACLE[name]["parameters"]


@pytest.mark.parametrize("name", MODELS)
def test_every_field_is_read_and_every_technique_runs(name):
    assert load_model(name).notes == ()
    for quant in ("W16A16", "W4A16g128", "fp8", "W8A8KV8"):
        for attention in ("flash", "eager"):
            setting = Setting.of(name, "h100-sxm", quant=quant, attention=attention)
            setting.graph.check()
            steps = setting.decode_plan.time_s(Workload.decode(batch=np.arange(1, 9), kv_len=500))
            assert np.all(np.diff(steps) > 0)
    survey = Setting.of(name, "h100-sxm", quant="W16A16", accounting="survey")
    assert survey.decode_plan.time_s(Workload.decode(batch=1, kv_len=500)) > 0


@pytest.mark.parametrize("name", MODELS)
def test_matrices_stay_as_many_where_they_are_quantized(name):
    graph = load_model(name).graph
    quantized = Setting.of(name, "h100-sxm", quant="W4A16g128").graph
    assert graph.parameters == quantized.parameters
    assert weight_bytes(quantized) < 0.71 * weight_bytes(graph)  # tables stay as they are, and are half of Gemma 4 E2B


# Published figures, of parameters and of those that one token uses. [billions]
@pytest.mark.parametrize(
    ("name", "parameters", "active"),
    [
        ("nemotron-3-super-120b-a12b", "120", "12"),
        ("granite-4.0-h-small", "32", "9"),
        ("granite-4.0-h-tiny", "7", "1"),
        ("lfm2-8b-a1b", "8.3", "1.5"),
        ("gemma-4-26b-a4b", "25.2", "3.8"),
        ("gemma-4-31b", "30.7", "30.7"),
        ("zamba2-1.2b", "1.2", "1.2"),
        ("zamba2-2.7b", "2.7", "2.7"),
        ("bamba-9b", "9.78", "9.78"),
    ],
)
def test_parameters_are_those_published(name, parameters, active):
    """To the digits that are published, which some round and some cut off."""
    model = load_model(name)
    for published, count in ((parameters, model.parameters), (active, model.active_parameters)):
        unit = 10 ** len(published.partition(".")[2])
        assert float(published) in (round(count / 1e9 * unit) / unit, floor(count / 1e9 * unit) / unit)


def test_gemma_4_e2b_has_two_billion_parameters_beside_the_embeddings_of_its_layers():
    model = load_model("gemma-4-e2b")
    (table,) = (op.weights[0] for _, op in model.graph if op.name == "embed_tokens_per_layer")
    assert table.shape == (262144, 35 * 256)
    assert round((model.parameters - table.numel) / 1e9, 1) == 2.3


@pytest.mark.parametrize(
    ("name", "a_token", "state"),
    [
        # 8 of 88 layers attend with 2 KV heads of 128; 40 keep 128 heads' states of 64 x 128 in fp32, and 3 tokens
        ("nemotron-3-super-120b-a12b", 8 * 2 * 2 * 128 * 2, 40 * (128 * 64 * 128 * 4 + (8192 + 2 * 8 * 128) * 3 * 2)),
        # all 36 layers do both
        ("falcon-h1-0.5b", 36 * 2 * 2 * 64 * 2, 36 * (24 * 64 * 128 * 4 + (1536 + 2 * 128) * 3 * 2)),
        # 6 of 38 layers have the shared block, with 32 heads of 128; all have a state
        ("zamba2-1.2b", 6 * 2 * 32 * 128 * 2, 38 * (64 * 64 * 128 * 4 + (4096 + 2 * 128) * 3 * 2)),
        ("bamba-9b", 3 * 2 * 8 * 128 * 2, 29 * (128 * 64 * 128 * 4 + (8192 + 2 * 128) * 3 * 2)),
        ("granite-4.0-h-small", 4 * 2 * 8 * 128 * 2, 36 * (128 * 64 * 128 * 4 + (8192 + 2 * 128) * 3 * 2)),
        ("lfm2-8b-a1b", 6 * 2 * 8 * 64 * 2, 18 * 2048 * 2 * 2),  # a filter of 3 keeps 2 tokens
        ("recurrentgemma-2b", 8 * 2 * 256 * 2, 18 * 2560 * (4 + 3 * 2)),  # until its window is full
    ],
)
def test_caches_grow_with_the_context_and_states_do_not(name, a_token, state):
    graph = load_model(name).graph
    for context in (1, 1000):
        assert kv_cache_bytes(graph, batch=3, context=context) == 3 * (state + context * a_token)


def test_layers_that_borrow_a_cache_hold_none_and_read_it():
    graph = load_model("gemma-4-e2b").graph
    local, everywhere = 12 * 2 * 256 * 2, 3 * 2 * 512 * 2  # of 15 layers that cache, each fifth sees all [B a token]
    for context in (100, 10_000):
        cached = kv_cache_bytes(graph, batch=1, context=context)
        assert cached == local * min(context, 512) + everywhere * context
    blocks = {block.name: (len(block.layers), {op.name: op for op in block.operators}) for block in graph.blocks}
    assert {name: count for name, (count, _) in blocks.items() if count} == {
        "local": 12, "global": 3, "local_borrowing": 16, "global_borrowing": 4,
    }  # fmt: skip
    step = Workload.decode(batch=1, kv_len=1000)
    for kind, names in (("local", {"k_proj", "v_proj", "k_norm", "v_norm"}), ("global", {"k_proj", "v_norm"})):
        own, borrowing = blocks[kind][1], blocks[f"{kind}_borrowing"][1]
        assert names <= own.keys()
        assert not {"k_proj", "v_proj", "k_norm", "v_norm"} & borrowing.keys()
        assert _counted(own["qk_matmul"], step) == _counted(borrowing["qk_matmul"], step)


def test_a_layer_of_gemma_3n_computes_one_of_its_streams_by_hand():
    """2048 wide, four streams; what a token reads and writes beside the computed one, in bf16."""
    block = next(block for block in load_model("gemma-3n-e2b").graph.blocks if block.name == "local")
    operators = {op.name: op for op in block.operators}
    h, token = 2048, 2 * 2
    by_hand = {
        "router_norm": (4 * 2 * h, 2 * h, token * 2 * h),
        "modality_router": (2 * 2 * h * 4, 2 * h * 4, token * (h + 4)),
        "prediction_coefs": (2 * 2 * 4 * 16, 2 * 4 * 16, token * (4 + 16)),
        "predict": (2 * 4 * h * 9, 0, token * (4 * h + 16 + 4 * h)),
        "correct": (2 * (2 * 4 * h + h), 0, token * (4 * h + h + 4 + 4 * h)),
        "per_layer_act": (2 * 256 * 10, 0, token * 3 * 256),  # of 30 x 256, the layer's own part
        "streams_add": (2 * 3 * h, 0, token * (3 * h + h + 3 * h)),
    }
    assert {name: _counted(operators[name], DECODE) for name in by_hand} == {
        name: (*counted, 0) for name, counted in by_hand.items()
    }
    cut = next(block for block in load_model("gemma-3n-e2b").graph.blocks if block.name == "local_cut")
    acts = [next(op for op in b.operators if op.name == "mlp_act") for b in (block, cut)]
    assert [op.ops_per_element for op in acts] == [10, 16]


def test_gemma_4_takes_values_from_keys_where_it_sees_all():
    blocks = {block.name: block for block in load_model("gemma-4-31b").graph.blocks}
    names = {kind: [op.name for op in blocks[kind].operators] for kind in ("local", "global")}
    assert "v_proj" in names["local"]
    assert "v_proj" not in names["global"]
    (qk,) = (op for op in blocks["global"].operators if op.name == "qk_matmul")
    assert (qk.heads.num_heads, qk.heads.num_kv_heads, qk.heads.head_dim) == (32, 4, 512)


def test_parameters_of_a_shared_block_are_held_once_and_read_by_each_layer():
    graph = load_model("zamba2-2.7b").graph
    blocks = {block.name: block for block in graph.blocks}
    assert {name: blocks[name].layers for name in ("hybrid", "hybrid_again")} == {
        "hybrid": (6, 12), "hybrid_again": (18, 24, 30, 36, 42, 47, 51),
    }  # fmt: skip
    first, again = ({op.name: op for op in blocks[name].operators} for name in ("hybrid", "hybrid_again"))
    for name, op in first.items():
        assert _counted(op, DECODE) == _counted(again[name], DECODE)
        own = "adapter" in name or name in ("linear", "mamba_norm", "in_proj", "conv", "scan", "gated_norm", "out_proj")
        assert [w.tied for w in again[name].weights] == [not own] * len(op.weights), name


def test_a_shared_block_sees_the_embedding_beside_the_layer_before():
    concat = next(op for _, op in load_model("zamba2-1.2b").graph if op.name == "concat")
    assert _counted(concat, DECODE) == (0, 0, 2 * 2 * (2048 + 2048 + 4096), 0)


def test_an_adapter_adds_to_gate_and_up_by_hand():
    operators = {op.name: op for op in load_model("zamba2-1.2b").graph.blocks[2].operators}
    assert {name: _counted(operators[name], DECODE) for name in ("gate_up_adapter_up", "gate_up_add", "mlp_act")} == {
        "gate_up_adapter_up": (2 * 2 * 128 * 16384, 2 * 128 * 16384, 2 * 2 * (128 + 16384), 0),
        "gate_up_add": (2 * 16384, 0, 2 * 2 * 3 * 16384, 0),
        "mlp_act": (2 * 8192 * (5 + 1), 0, 2 * 2 * 3 * 8192, 0),
    }


def test_experts_in_a_latent_space_by_hand():
    """8 wide, brought to 3 for 4 experts of two 3 x 6 matrices, 2 for each token; a shared one 10 wide."""
    shared = Mlp(inner=10, act="relu2")
    mixture = Experts(experts=4, chosen=2, inner=6, act="relu2", gated=False, latent=3, shared=shared)
    operators = {op.name: op for op in mixture.operators(PARTS, X)}
    reached = 4 * (1 - 1 / 2**2)  # by two tokens
    by_hand = {  # 2 tokens in fp16
        "router": (2 * 2 * 8 * 4, 2 * 8 * 4, 2 * 2 * (8 + 4)),
        "route": ((5 + 2) * 2 * 4, 0, 2 * 2 * (4 + 2)),
        "fc1_latent_proj": (2 * 2 * 8 * 3, 2 * 8 * 3, 2 * 2 * (8 + 3)),
        "permute": (0, 0, 2 * 2 * (3 + 2 + 2 * 3)),
        "expert_up_proj": (2 * 4 * 3 * 6, 2 * reached * 3 * 6, 2 * 4 * (3 + 6)),
        "expert_act": (2 * 4 * 6, 0, 2 * 4 * 2 * 6),
        "expert_down_proj": (2 * 4 * 6 * 3, 2 * reached * 6 * 3, 2 * 4 * (6 + 3)),
        "shared_up_proj": (2 * 2 * 8 * 10, 2 * 8 * 10, 2 * 2 * (8 + 10)),
        "shared_act": (2 * 2 * 10, 0, 2 * 2 * 2 * 10),
        "shared_down_proj": (2 * 2 * 10 * 8, 2 * 10 * 8, 2 * 2 * (10 + 8)),
        "combine": (2 * 2 * 2 * 3, 0, 2 * 2 * (2 * 3 + 2 + 3)),
        "fc2_latent_proj": (2 * 2 * 3 * 8, 2 * 3 * 8, 2 * 2 * (3 + 8)),
        "shared_add": (2 * 8, 0, 2 * 2 * (8 + 8 + 8)),
    }
    assert {name: _counted(op, DECODE) for name, op in operators.items()} == {
        name: (*counted, 0) for name, counted in by_hand.items()
    }
    alone = Experts(experts=4, chosen=2, inner=6, latent=3).operators(PARTS, X)
    assert [op.name for op in alone[-2:]] == ["combine", "fc2_latent_proj"]


def test_a_short_convolution_by_hand():
    operators = {op.name: op for op in ShortConvMixer(taps=3).operators(PARTS, X)}
    kept = 2 * 2 * 2 * 8 * 2  # read and written: two tokens of two sequences in fp16
    t = 10
    assert {name: _counted(op, PREFILL) for name, op in operators.items()} == {
        "in_proj": (2 * t * 8 * 24, 2 * 8 * 24, 2 * t * (8 + 24), 0),
        "gated_in": (t * 8, 0, 2 * t * 24, 0),
        "conv": (2 * 3 * t * 8, 2 * 8 * 3, 2 * t * 16, kept),
        "gated_out": (t * 8, 0, 2 * t * 24, 0),
        "out_proj": (2 * t * 8 * 8, 2 * 8 * 8, 2 * t * 16, 0),
    }


def test_a_gated_linear_recurrence_by_hand():
    recurrence = GatedLinearRecurrence(inner=6, blocks=2, taps=4, act="gelu_tanh")
    operators = {op.name: op for op in recurrence.operators(PARTS, X)}
    gate = (2 * 2 * 6 * 3, 2 * (6 * 3 + 6), 2 * 2 * (6 + 6), 0)  # two blocks of 3 x 3
    assert {name: _counted(op, DECODE) for name, op in operators.items()} == {
        "linear_y": (2 * 2 * 8 * 6, 2 * (8 * 6 + 6), 2 * 2 * (8 + 6), 0),
        "linear_x": (2 * 2 * 8 * 6, 2 * (8 * 6 + 6), 2 * 2 * (8 + 6), 0),
        "conv": (2 * 4 * 2 * 6, 2 * (6 * 4 + 6), 2 * 2 * (6 + 6), 2 * 2 * 3 * 6 * 2),
        "input_gate": gate,
        "recurrent_gate": gate,
        "scan": (17 * 2 * 6, 2 * 6, 2 * 2 * 4 * 6, 2 * 2 * 6 * 4),  # a state in fp32
        "gated": (10 * 2 * 6, 0, 2 * 2 * 3 * 6, 0),
        "linear_out": (2 * 2 * 6 * 8, 2 * (6 * 8 + 8), 2 * 2 * (6 + 8), 0),
    }


def test_a_result_is_gated_with_a_norm_or_without():
    sizes = {"inner": 8, "heads": 2, "head_dim": 4, "state": 3, "groups": 1, "taps": 4, "chunk": 16}
    ops = {norm: Mamba2(**sizes, norm=norm).operators(PARTS, X)[3] for norm in (True, False)}
    assert {norm: (op.name, *_counted(op, DECODE)[:2]) for norm, op in ops.items()} == {
        True: ("gated_norm", 9 * 2 * 8, 2 * 8),
        False: ("gated", 5 * 2 * 8, 0),
    }


def _built(name, **changes):
    fields = _config(name) | changes
    return built(**{key: value for key, value in fields.items() if value != "absent"})


def test_layer_kinds_follow_the_config():
    def layers(name, **changes):
        return {block.name: block.layers for block in _built(name, **changes).blocks[1:-1]}

    few = {"num_hidden_layers": 4}
    assert layers("bamba-9b", **few, attn_layer_indices=[1]) == {"mamba": (0, 2, 3), "attention": (1,)}
    assert layers("bamba-9b", **few, attn_layer_indices=None) == {"mamba": (0, 1, 2, 3)}
    assert layers("granite-4.0-h-tiny", **few, layer_types=None) == {"mamba": (0, 1, 2, 3)}
    assert layers("lfm2-1.2b", **few, full_attn_idxs=[2]) == {"conv": (0, 1, 3), "attention": (2,)}
    assert layers("lfm2-1.2b", **few, full_attn_idxs="absent") == {"attention": (0, 1, 2, 3)}
    kinds = ["conv", "conv", "full_attention", "conv"]
    assert layers("lfm2-8b-a1b", **few, layer_types=kinds) == {
        "conv_dense": (0, 1), "attention_moe": (2,), "conv_moe": (3,),
    }  # fmt: skip
    assert layers("recurrentgemma-2b", **few) == {"recurrent": (0, 1, 3), "attention": (2,)}
    silent = {"layer_types": None, "activation_sparsity_pattern": None, "num_kv_shared_layers": 0}
    assert layers("gemma-3n-e2b", num_hidden_layers=5, **silent) == {
        "per_layer": (), "streams": (), "local": (0, 1, 2, 3), "global": (4,),
    }  # fmt: skip
    assert layers("gemma-4-31b", num_hidden_layers=6, layer_types=None) == {"local": (0, 1, 2, 3, 4), "global": (5,)}


def test_the_text_part_of_a_pair_is_the_one_that_ships():
    text = _config("gemma-4-e2b")
    pair = Section({"model_type": "gemma4", "text_config": text, "vision_config": {"a": 1}}, "config.json")
    assert builder(pair)(pair, FP16) == _built("gemma-4-e2b")
    known = ("torch_dtype", "model_type", "max_position_embeddings", "rms_norm_eps", "rope_parameters")
    assert pair.unread(known) == ["vision_config"]  # which the user is told


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("nemotron-3-super-120b-a12b", {"num_experts_per_tok": 600},
         "num_experts_per_tok: must be at most the 512 experts of n_routed_experts; got 600"),
        ("falcon-h1-0.5b", {"mamba_n_heads": 7}, "mamba_n_heads: must divide the inner width 1536; got 7"),
        ("falcon-h1-0.5b", {"mamba_d_head": 32}, "mamba_d_head: times 24 heads must be the inner width 1536; got 32"),
        ("falcon-h1-0.5b", {"projectors_bias": True},
         "projectors_bias: must be as mamba_proj_bias: a bias of one projection is not modelled"),
        ("falcon-h1-0.5b", {"attn_layer_indices": [1]}, "attn_layer_indices: must be null: every layer attends"),
        ("falcon-h1-0.5b", {"mamba_use_mlp": False}, "mamba_use_mlp: must be true: every layer has an MLP"),
        ("zamba2-1.2b", {"layers_block_type": None},
         "layers_block_type: is missing; it says which layers have a shared block"),
        ("zamba2-1.2b", {"num_hidden_layers": 3}, "layers_block_type: must be 3 of mamba and hybrid; got 38 of them"),
        ("zamba2-1.2b", {"n_mamba_heads": 7}, "n_mamba_heads: must divide the inner width 4096; got 7"),
        ("zamba2-1.2b", {"num_attention_heads": 7, "num_key_value_heads": 7},
         "num_attention_heads: must divide twice the hidden size 2048 and be a multiple of 7 key-value heads; got 7"),
        ("granite-4.0-h-tiny", {"layer_types": ["mamba"]},
         "layer_types: must have an entry for each of the 40 layers; got 1"),
        ("granite-4.0-h-tiny", {"num_hidden_layers": 1, "layer_types": ["conv"]},
         "layer_types: must be made of mamba, linear_attention, attention, full_attention; got 'conv'"),
        ("lfm2-8b-a1b", {"num_hidden_layers": 1, "layer_types": ["mamba"]},
         "layer_types: must be made of conv and full_attention; got 'mamba'"),
        ("recurrentgemma-2b", {"block_types": ["mamba"]},
         "block_types: must be made of recurrent and attention; got 'mamba'"),
        ("recurrentgemma-2b", {"intermediate_size": 3},
         "intermediate_size: must be even, as gate and up share it; got 3"),
        ("recurrentgemma-2b", {"lru_width": 7}, "lru_width: must be a multiple of the 10 heads; got 7"),
        ("gemma-4-e2b", {"num_kv_shared_layers": 33},
         "num_kv_shared_layers: must leave a layer of each kind with a cache of its own"),
        ("gemma-4-31b", {"num_hidden_layers": 1, "layer_types": ["sliding_attention"]},
         "layer_types: must end with full_attention"),
        ("gemma-4-31b", {"num_global_key_value_heads": 5},
         "num_attention_heads: must be a multiple of the 5 key-value heads; got 32"),
        ("gemma-3n-e2b", {"intermediate_size": [8192]},
         "intermediate_size: must have an entry for each of the 30 layers; got 1"),
        ("gemma-3n-e2b", {"activation_sparsity_pattern": [2]},
         "activation_sparsity_pattern: must be parts from 0 to below 1; got [2]"),
        ("gemma-4-26b-a4b", {"top_k_experts": 129},
         "top_k_experts: must be at most the 128 experts of num_experts; got 129"),
    ],
)  # fmt: skip
def test_invalid_hybrid_configs_are_refused(name, changes, message):
    with pytest.raises(InputError) as caught:
        _built(name, **changes)
    assert str(caught.value) == f"config.json: {message}"
