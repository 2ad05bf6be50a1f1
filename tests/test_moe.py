"""Mixtures of experts and latent attention: hand counts, active parameters of the papers, caches, and bad configs.

OPs of every matrix product and parameters are held against transformers in test_oracle.py.
"""

from __future__ import annotations

import json
from math import floor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmviewer._layout import data_dir
from llmviewer.analyzing.analysis import analyze
from llmviewer.architectures import builder
from llmviewer.architectures.blocks.attention import LatentAttention
from llmviewer.architectures.blocks.feed_forward import Experts, Mlp
from llmviewer.architectures.blocks.parts import Parts
from llmviewer.cli import main
from llmviewer.documents import Section, read_yaml
from llmviewer.errors import InputError
from llmviewer.forms import distinct_experts, evaluate
from llmviewer.memory import live_bytes, weight_bytes
from llmviewer.model import kv_cache_bytes
from llmviewer.model_files import load_model, model_names
from llmviewer.model_index import index
from llmviewer.operators.linear import ExpertsLinear
from llmviewer.operators.masks import CAUSAL, Chunked
from llmviewer.precision import FP16
from llmviewer.setting import Setting
from llmviewer.sweeping.grid import sweep
from llmviewer.transforms.flash_attention import flash_attention
from llmviewer.transforms.quantize import parse_quantization, quantize
from llmviewer.workload import Workload

from .cases import for_each

MODEL_TYPES = (
    "mixtral", "phimoe", "olmoe", "minimax_m2", "granitemoe", "qwen2_moe", "qwen3_moe", "qwen3_vl_moe_text", "dbrx",
    "grok-1", "deepseek_v2", "deepseek_v3", "kimi_k2", "glm4_moe_lite", "glm4_moe", "dots1", "gpt_oss", "llama4_text",
    "ernie4_5_moe", "hunyuan_v1_moe",
)  # fmt: skip
MODELS = [name for name in model_names() if index()[name].model_type in MODEL_TYPES]
ONE_OF_EACH = sorted({index()[name].model_type: name for name in MODELS}.values())

SCOUT = {  # the text_config of meta-llama/Llama-4-Scout-17B-16E-Instruct; with every field that it has
    "model_type": "llama4_text",
    "attention_bias": False,
    "attention_chunk_size": 8192,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 5120,
    "interleave_moe_layer_step": 1,
    "intermediate_size": 8192,
    "intermediate_size_mlp": 16384,
    "max_position_embeddings": 10485760,
    "num_attention_heads": 40,
    "num_experts_per_tok": 1,
    "num_hidden_layers": 48,
    "num_key_value_heads": 8,
    "num_local_experts": 16,
    "rms_norm_eps": 1e-05,
    "rope_theta": 500000.0,
    "torch_dtype": "bfloat16",
    "use_qk_norm": True,
    "vocab_size": 202048,
}
MAVERICK = SCOUT | {"interleave_moe_layer_step": 2, "num_local_experts": 128, "use_qk_norm": False}
UNSAID = {key: value for key, value in SCOUT.items() if key != "attention_chunk_size"}
UNSHIPPED = {"llama-4-scout": SCOUT, "llama-4-maverick": MAVERICK, "llama-4-unsaid": UNSAID}

PARTS = Parts(format=FP16)
X = PARTS.tensor("x", 8)
PREFILL = Workload.prefill(batch=1, prompt=3)  # 3 tokens
DECODE = Workload.decode(batch=1, kv_len=5)  # 1 token
BATCH = Workload.decode(batch=2, kv_len=5)  # 2 tokens
# 8 wide, 4 experts of which each token takes 2, each of three 8 x 6 matrices; a shared one 10 wide with a gate.
MIXTURE = Experts(experts=4, chosen=2, inner=6, shared=Mlp(inner=10, act="silu", gated=True), shared_gate=True)
OPERATORS = {op.name: op for op in MIXTURE.operators(PARTS, X)}
REACHED = {1: 2, 2: 3, 3: 3.5}  # of 4 experts, by tokens: 4 (1 - 1/2^t)


def _counted(op, w):
    work = op.work()
    return tuple(evaluate(form, w) for form in (work.ops, work.weight_bytes, work.activation_bytes, work.kv_bytes))


@pytest.mark.parametrize(("w", "t"), [(PREFILL, 3), (DECODE, 1), (BATCH, 2)])
def test_every_operator_of_a_mixture_by_hand(w, t):
    reached = REACHED[t]
    by_hand = {
        # [t, 8] @ [8, 4]; fp16 is 2 B
        "router": (2 * t * 8 * 4, 2 * 8 * 4, 2 * t * (8 + 4)),
        # softmax of 4 logits, and a comparison of each for either place; 2 weights out
        "route": ((5 + 2) * t * 4, 0, 2 * t * (4 + 2)),
        # a row and its choice in, two rows out
        "permute": (0, 0, 2 * t * (8 + 2 + 2 * 8)),
        # [2 t, 8] @ [8, 6] with the matrices of the experts that are reached
        "expert_gate_proj": (2 * 2 * t * 8 * 6, 2 * reached * 8 * 6, 2 * 2 * t * (8 + 6)),
        "expert_up_proj": (2 * 2 * t * 8 * 6, 2 * reached * 8 * 6, 2 * 2 * t * (8 + 6)),
        "expert_act": (5 * 2 * t * 6, 0, 2 * 2 * t * 3 * 6),
        "expert_down_proj": (2 * 2 * t * 6 * 8, 2 * reached * 6 * 8, 2 * 2 * t * (6 + 8)),
        "shared_gate": (2 * t * 8, 2 * 8, 2 * t * (8 + 1)),
        "shared_gate_proj": (2 * t * 8 * 10, 2 * 8 * 10, 2 * t * (8 + 10)),
        "shared_up_proj": (2 * t * 8 * 10, 2 * 8 * 10, 2 * t * (8 + 10)),
        "shared_act": (5 * t * 10, 0, 2 * t * 3 * 10),
        "shared_down_proj": (2 * t * 10 * 8, 2 * 10 * 8, 2 * t * (10 + 8)),
        # two rows scaled and summed, with the shared one's; two weights and a gate in
        "combine": (2 * 2 * t * 8, 0, 2 * t * (2 * 8 + 2 + 8 + 1 + 8)),
    }
    assert {name: _counted(op, w) for name, op in OPERATORS.items()} == {
        name: (ops, weights, activations, 0) for name, (ops, weights, activations) in by_hand.items()
    }


def test_experts_without_gate_and_with_biases():
    mixture = Experts(experts=4, chosen=2, inner=6, act="relu", gated=False, bias=True, router_bias=True)
    operators = {op.name: op for op in mixture.operators(PARTS, X)}
    assert "expert_gate_proj" not in operators
    assert _counted(operators["router"], DECODE) == (2 * 8 * 4, 2 * (8 * 4 + 4), 2 * (8 + 4), 0)
    assert _counted(operators["expert_up_proj"], BATCH) == (2 * 4 * 8 * 6, 2 * 3 * (8 * 6 + 6), 2 * 4 * (8 + 6), 0)
    assert _counted(operators["expert_act"], BATCH) == (4 * 6, 0, 2 * 4 * 2 * 6, 0)


@pytest.mark.parametrize(
    ("tokens", "experts"), [(1, 2.00), (2, 3.50), (4, 5.47), (8, 7.20), (16, 7.92), (32, 8.00), (10**6, 8.00)]
)
def test_mixtral_reads_the_experts_that_its_tokens_reach_and_holds_all(tokens, experts):
    graph = load_model("mixtral-8x7b").graph
    one = 2 * 4096 * 14336  # [B]
    for w in (Workload.decode(batch=tokens, kv_len=100), Workload.prefill(batch=1, prompt=tokens)):
        for _, op in graph:
            if isinstance(op, ExpertsLinear):
                assert evaluate(op.work().weight_bytes, w) / one == pytest.approx(experts, abs=0.005)
    held = 32 * 3 * 8 * one
    assert held < weight_bytes(graph) == 2 * 46_702_792_704 < held + 2 * 2e9


@for_each("name", MODELS)
def test_experts_take_as_many_ops_as_their_active_weights_whatever_the_batch(name):
    for w, tokens in ((Workload.prefill(batch=2, prompt=300), 600), (Workload.decode(batch=7, kv_len=99), 7)):
        for block, op in load_model(name).graph:
            if isinstance(op, ExpertsLinear):
                active = op.weight.active * op.weight.numel
                assert evaluate(op.work().ops, w) == pytest.approx(2 * tokens * active), (block.name, op.name)


def test_experts_whose_popularity_falls_with_their_rank_by_hand():
    """4 experts of which each token takes 1: 1, 1/2, 1/3 and 1/4 of 25/12, which is 0.48, 0.24, 0.16 and 0.12."""
    reached = distinct_experts(4, 1, 1.0)
    for tokens, by_hand in ((1, 1), (2, 4 - 0.52**2 - 0.76**2 - 0.84**2 - 0.88**2), (10**6, 4)):
        for w in (Workload.decode(batch=tokens, kv_len=5), Workload.prefill(batch=1, prompt=tokens)):
            assert evaluate(reached, w) == pytest.approx(by_hand, rel=1e-12)


def test_an_expert_that_every_token_takes_is_taken_once():
    """Popularities 1, 1/4, 1/9: the first would get 2 x 36/49 of the tokens; the second gets 9/13 of what is left."""
    by_hand = 1 + (1 - (4 / 13) ** 2) + (1 - (9 / 13) ** 2)
    assert evaluate(distinct_experts(3, 2, 2.0), BATCH) == pytest.approx(by_hand, rel=1e-12)


SKEWS = st.floats(0, 8, allow_subnormal=False) | st.floats(8, 1e300)


@given(st.integers(1, 64), st.data(), SKEWS, SKEWS, st.integers(1, 500))
def test_more_skew_never_reaches_more_experts(experts, data, less, more, tokens):
    chosen, (less, more) = data.draw(st.integers(1, experts)), sorted((less, more))
    w = Workload.decode(batch=tokens, kv_len=1)
    fewer, most = (evaluate(distinct_experts(experts, chosen, skew), w) for skew in (more, less))
    assert chosen * (1 - 1e-12) <= fewer <= most * (1 + 1e-12)
    assert most <= min(experts, chosen * tokens) * (1 + 1e-12)


@given(st.integers(1, 64), st.data(), SKEWS)
def test_one_token_reaches_as_many_experts_as_it_chooses(experts, data, skew):
    chosen = data.draw(st.integers(1, experts))
    w = Workload.decode(batch=1, kv_len=1)
    assert evaluate(distinct_experts(experts, chosen, skew), w) == pytest.approx(chosen, rel=1e-12)


def test_the_limit_of_skew_is_that_all_tokens_take_the_same_experts():
    w = Workload.decode(batch=1000, kv_len=1)
    assert [evaluate(distinct_experts(60, 4, skew), w) for skew in (1e4, 1e5, 1e308)] == [4, 4, 4]
    skews = (0, 0.5, 1, 2, 5, 20, 100, 1e3, 1e5, 1e300)
    times = [
        analyze("qwen1.5-moe-a2.7b", "h100-sxm", batch=64, prompt=16, gen=2, expert_skew=skew).generation.tpot_s
        for skew in skews
    ]
    assert times == sorted(times, reverse=True)


def test_without_skew_nothing_changes():
    assert distinct_experts(8, 2, 0) == distinct_experts(8, 2)
    tokens = np.arange(1.0, 200.0)
    w = Workload.decode(batch=tokens, kv_len=9)
    assert np.array_equal(w.distinct_experts(8, 2, 0), 8 * (1 - (1 - 2 / 8) ** tokens))
    plain, none = Setting.of("mixtral-8x7b", "h100-sxm"), Setting.of("mixtral-8x7b", "h100-sxm", expert_skew=0)
    assert plain.graph == none.graph


def test_skew_changes_expert_weight_reads_only():
    plain, skewed = (Setting.of("mixtral-8x7b", "h100-sxm", expert_skew=skew).graph for skew in (0, 1.2))
    w = Workload.decode(batch=3, kv_len=9)
    for (_, op), (_, other) in zip(plain, skewed, strict=True):
        (ops, weights, *rest), (ops_too, weights_too, *rest_too) = _counted(op, w), _counted(other, w)
        assert (ops, rest) == (ops_too, rest_too)
        assert (weights > weights_too) == isinstance(op, ExpertsLinear)
    assert weight_bytes(plain) == weight_bytes(skewed)


def test_skew_lowers_the_time_of_a_step_and_is_noted():
    even, skewed = (
        analyze("mixtral-8x7b", "h100-sxm", batch=4, quant="W4A16g128", expert_skew=skew) for skew in (0, 1.5)
    )
    assert skewed.generation.tpot_s < even.generation.tpot_s
    assert skewed.setting.expert_skew == 1.5
    note = "expert skew 1.5: the n-th most popular expert is chosen in proportion to n^-1.5"
    assert note in skewed.notes
    dense = analyze("llama-2-7b", "h100-sxm", expert_skew=1.5, layout="tp=2 ep=2").notes
    assert {f"{what} has no effect: llama-2-7b has no experts" for what in ("expert skew 1.5", "ep=2")} <= set(dense)
    points = [sweep("mixtral-8x7b", "h100-sxm", {"batch": [4]}, expert_skew=skew) for skew in (0, 1.5)]
    assert points[0].columns["decode_step_s"] > points[1].columns["decode_step_s"]


@pytest.mark.parametrize("skew", [-1.0, float("nan"), float("inf")])
def test_invalid_expert_skew_is_refused(skew):
    with pytest.raises(InputError) as caught:
        analyze("mixtral-8x7b", "h100-sxm", expert_skew=skew)
    assert str(caught.value) == f"expert_skew must be a finite number of at least 0; got {skew:g}"


def test_skew_on_the_command_line(capsys):
    base = ["analyze", "mixtral-8x7b", "h100-sxm", "--batch", "4", "--format", "json"]
    documents = []
    for more in ([], ["--expert-skew", "1.5"]):
        assert main([*base, *more]) == 0
        documents.append(json.loads(capsys.readouterr().out))
    even, skewed = (document["generation"]["tpot_s"] for document in documents)
    assert skewed < even
    assert main([*base, "--expert-skew", "-1"]) == 2
    assert capsys.readouterr().err == "llmviewer: --expert-skew must be a finite number of at least 0; got -1\n"


# Published figures, and what they leave out of our count, which has both the embedding and the head.
@pytest.mark.parametrize(
    ("name", "published", "without"),
    [
        ("mixtral-8x7b", "12.9", 0),  # arXiv:2401.04088
        ("mixtral-8x22b", "39", 0),
        ("qwen1.5-moe-a2.7b", "2.7", 0),
        ("qwen2-57b-a14b", "14", 0),
        ("qwen3-30b-a3b", "3.3", 0),
        ("qwen3-235b-a22b", "22", 0),
        ("qwen3-coder-480b-a35b", "35", 0),
        ("dbrx", "36", 0),
        ("phi-3.5-moe", "6.6", 0),
        ("olmoe-1b-7b", "1.3", 0),
        ("deepseek-v2", "21", 0),  # and 21 without the embedding
        ("deepseek-v2-lite", "2.4", 1),
        ("deepseek-v3", "37", 1),  # 37.6 with it
        ("kimi-k2", "32", 1),
        ("gpt-oss-20b", "3.61", 1),  # arXiv:2508.10925, table 1: the head is counted, the embedding is not
        ("gpt-oss-120b", "5.13", 1),
        ("glm-4.5", "32", 2),  # arXiv:2508.06471, table 1: neither embedding nor head
        ("glm-4.5-air", "12", 2),
        ("glm-4.7-flash", "3", 1),
        ("dots.llm1", "14", 0),
        ("minimax-m2", "10", 1),
        ("ernie-4.5-21b-a3b", "3", 0),
        ("ernie-4.5-300b-a47b", "47", 0),
        ("hunyuan-a13b", "13", 0),
        ("granite-3.1-3b-a800m", "0.8", 0),
        ("granite-3.1-1b-a400m", "0.4", 0),
    ],
)
def test_active_parameters_are_those_of_the_papers(name, published, without):
    """To the digits that are published, which some round and some cut off."""
    model = load_model(name)
    (table,) = (op.weights[0] for _, op in model.graph if op.name == "embed_tokens")
    billions = (model.active_parameters - without * table.numel) / 1e9
    unit = 10 ** len(published.partition(".")[2])
    assert float(published) in (round(billions * unit) / unit, floor(billions * unit) / unit)


@for_each("name", MODELS)
def test_a_mixture_has_fewer_active_parameters_than_parameters(name):
    model = load_model(name)
    assert 0.02 < model.active_parameters / model.parameters < 0.4


def test_deepseek_v3_counts_no_layer_that_predicts_further_tokens():
    model = load_model("deepseek-v3")
    assert model.parameters == 671_026_404_352
    assert [(block.name, block.repeat) for block in model.graph.blocks[1:-1]] == [("dense", 3), ("moe", 58)]


def test_latent_attention_by_hand():
    """8 wide, 2 heads of 4 + 2 and values of 3, latents of 5 for queries and 6 for keys and values."""
    attention = LatentAttention(num_heads=2, q_rank=5, kv_rank=6, nope_dim=4, rope_dim=2, value_dim=3)
    operators = {op.name: op for op in attention.operators(PARTS, X)}
    by_hand = {  # one token that attends to 5: OPs, and bytes of weights, activations, cache
        "q_a_proj": (2 * 8 * 5, 2 * 8 * 5, 2 * (8 + 5), 0),
        "q_a_norm": (4 * 5, 2 * 5, 2 * 2 * 5, 0),
        "q_b_proj": (2 * 5 * 12, 2 * 5 * 12, 2 * (5 + 12), 0),
        "kv_a_proj": (2 * 8 * 8, 2 * 8 * 8, 2 * (8 + 6 + 2), 0),
        "kv_a_norm": (4 * 6, 2 * 6, 2 * 6, 2 * 6),
        "rope": (3 * (2 + 1) * 2, 0, 2 * (4 + 4 + 2), 2 * 2),  # two elements of each query, and the one key
        "kv_b_proj": (2 * 5 * 6 * 14, 2 * 6 * 14, 2 * 5 * 14, 2 * 5 * 6),  # of all 5 cached tokens
        "qk_matmul": (2 * 2 * 5 * 6, 0, 2 * (12 + 5 * 8 + 2 * 5), 2 * 5 * 2),
        "softmax": (5 * 2 * 5, 0, 2 * 2 * 2 * 5, 0),
        "sv_matmul": (2 * 2 * 5 * 3, 0, 2 * (2 * 5 + 5 * 6 + 6), 0),
        "o_proj": (2 * 6 * 8, 2 * 6 * 8, 2 * (6 + 8), 0),
    }
    assert {name: _counted(op, DECODE) for name, op in operators.items()} == by_hand


def test_queries_without_a_latent_are_projected_directly():
    operators = LatentAttention(num_heads=2, q_rank=0, kv_rank=6, nope_dim=4, rope_dim=2, value_dim=3).operators(
        PARTS, X
    )
    assert [op.name for op in operators][:2] == ["q_proj", "kv_a_proj"]


def test_latents_are_all_that_deepseek_caches():
    model = load_model("deepseek-v3")
    assert model.kv_bytes_per_token == (512 + 64) * 61 * 2 == 70_272
    assert kv_cache_bytes(model.graph, batch=3, context=10_000) == 3 * 10_000 * 70_272


@pytest.mark.parametrize(("name", "layers"), [("gpt-oss-20b", 24), ("gpt-oss-120b", 36)])
def test_half_of_gpt_oss_caches_128_tokens(name, layers):
    graph, token = load_model(name).graph, 2 * 8 * 64 * 2  # keys and values of 8 heads of 64 in a layer [B]
    for context in (1, 100, 128, 129, 131_072):
        cached = kv_cache_bytes(graph, batch=1, context=context)
        assert cached == layers / 2 * token * (context + min(context, 128))
    assert [block.name for block in graph.blocks] == ["embedding", "local", "global", "head"]
    assert [block.layers[:2] for block in graph.blocks[1:3]] == [(0, 2), (1, 3)]


def test_a_decode_step_of_gpt_oss_attends_to_its_windows():
    ops = {
        (block.name, op.name): evaluate(op.work().ops, Workload.decode(batch=1, kv_len=10_000))
        for block, op in load_model("gpt-oss-20b").graph
    }
    assert ops["local", "qk_matmul"] == 2 * 64 * 64 * 128
    assert ops["global", "qk_matmul"] == 2 * 64 * 64 * 10_000


@for_each("name", MODELS, fast=ONE_OF_EACH)
@pytest.mark.parametrize("quant", ["W16A16", "W4A16g128", "W8A8KV8", "fp8", "mxfp4,router=W8A8"])
@pytest.mark.parametrize("on_chip_bytes", [None, 1e7])
def test_every_model_can_be_quantized_and_fused(name, quant, on_chip_bytes):
    graph = load_model(name).graph.check()
    fused = () if on_chip_bytes is None else (flash_attention(on_chip_bytes),)
    changed = graph.then(quantize(parse_quantization(quant)), *fused).check()
    matrices = [
        sum(b.repeat * w.numel for b, op in g for w in op.weights if len(w.shape) > 1 and not w.tied)
        for g in (graph, changed)
    ]
    assert matrices[0] == matrices[1]
    experts = {op.weight.format for _, op in changed if isinstance(op, ExpertsLinear)}
    assert len(experts) == 1
    assert (experts.pop().bits < 16) == (quant != "W16A16")


@for_each("name", MODELS)
def test_every_tensor_lives_until_it_is_read_last(name):
    for block in load_model(name).graph.blocks:
        for op, form in zip(block.operators, live_bytes(block), strict=True):
            moved = [t for t in (*op.inputs, *op.outputs) if t.role == "activation"]
            needed = {t.name: t for t in moved}.values()
            for w in (PREFILL, BATCH):
                assert evaluate(form, w) >= sum(evaluate(t.nbytes, w) for t in needed) * (1 - 1e-12)


def _config(name, **changes):
    config = UNSHIPPED.get(name) or dict(read_yaml(data_dir("models") / f"{name}.yaml").section("config").data)
    return Section(config | changes, "config.json")


def _built(config):
    return builder(config)(config, FP16).check()


def _blocks(name, **changes):
    return [(block.name, block.layers) for block in _built(_config(name, **changes)).blocks[1:-1]]


def test_expert_layers_follow_the_config():
    few = {"num_hidden_layers": 4}
    assert _blocks("qwen3-30b-a3b", **few) == [("moe", (0, 1, 2, 3))]
    assert _blocks("qwen3-30b-a3b", **few, decoder_sparse_step=2) == [("dense", (0, 2)), ("moe", (1, 3))]
    assert _blocks("qwen1.5-moe-a2.7b", **few, mlp_only_layers=[0, 3]) == [("dense", (0, 3)), ("moe", (1, 2))]
    assert _blocks("deepseek-v2-lite", **few) == [("dense", (0,)), ("moe", (1, 2, 3))]
    assert _blocks("glm-4.7-flash", **few, mlp_layer_types=["dense", "sparse"] * 2)[1] == ("moe", (1, 3))
    assert _blocks("ernie-4.5-21b-a3b", **few, moe_layer_end_index=-1)[1] == ("moe", (1, 2, 3))
    assert _blocks("ernie-4.5-21b-a3b", **few, moe_layer_end_index=2, moe_layer_interval=2)[1] == ("moe", (1,))
    assert _blocks("llama-4-maverick", **few) == [("local_dense", (0, 2)), ("local_moe", (1,)), ("global_moe", (3,))]
    assert _blocks("llama-4-maverick", **few, moe_layers=[0], no_rope_layers=[0, 1, 1, 1]) == [
        ("global_moe", (0,)),
        ("local_dense", (1, 2, 3)),
    ]
    assert _blocks("gpt-oss-20b", **few, layer_types=None) == [("local", (0, 2)), ("global", (1, 3))]
    alike = {"num_hidden_layers": 2, "moe_intermediate_size": 5, "num_shared_expert": 1}
    assert _blocks("hunyuan-a13b", **alike, moe_topk=3) == [("moe", (0, 1))]
    assert _blocks("hunyuan-a13b", **alike, moe_topk=[1, 2]) == [("moe", (0,)), ("moe", (1,))]


def test_windows_of_qwen_are_those_of_every_second_layer():
    changes = {"num_hidden_layers": 4, "use_sliding_window": True, "sliding_window": 7, "max_window_layers": 2}
    assert _blocks("qwen1.5-moe-a2.7b", **changes) == [("local_moe", (0,)), ("moe", (1, 2, 3))]


@pytest.mark.parametrize(("name", "nested"), [("kimi-k2.5", "kimi_k25"), ("llama-4-scout", "llama4")])
def test_the_language_model_of_a_pair_is_the_one_that_ships(name, nested):
    text = _config(name)
    assert _built(Section({"model_type": nested, "text_config": text.data}, "config.json")) == _built(text)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("mixtral-8x7b", {"num_experts_per_tok": 9},
         "num_experts_per_tok: must be at most the 8 experts of num_local_experts; got 9"),
        ("mixtral-8x7b", {"num_local_experts": 0}, "num_local_experts: must be a whole number of at least 1; got 0"),
        ("dbrx", {"ffn_config": {"moe_num_experts": 2, "moe_top_k": 4, "ffn_hidden_size": 8}},
         "ffn_config.moe_top_k: must be at most the 2 experts of moe_num_experts; got 4"),
        ("qwen3-30b-a3b", {"mlp_only_layers": ["a"]}, "mlp_only_layers: must be a list of whole numbers; got ['a']"),
        ("qwen3-30b-a3b", {"shared_expert_intermediate_size": 5},
         "shared_expert_intermediate_size: must be absent, 0 or false: qwen3_moe has no such thing"),
        ("qwen3-30b-a3b", {"use_qk_norm": False}, "use_qk_norm: must be true: qwen3_moe always has the norms"),
        ("jamba-v0.1", {"num_experts_per_tok": 17},
         "num_experts_per_tok: must be at most the 16 experts of num_experts; got 17"),
        ("qwen3-next-80b-a3b", {"num_experts_per_tok": 513},
         "num_experts_per_tok: must be at most the 512 experts of num_experts; got 513"),
        ("deepseek-v3", {"moe_layer_freq": 2}, "moe_layer_freq: must be 1; got 2"),
        ("deepseek-v2", {"mlp_bias": True}, "mlp_bias: must be false: biases of these MLPs are not modelled"),
        ("deepseek-v3", {"kv_lora_rank": None}, "kv_lora_rank: is missing"),
        ("glm-4.7-flash", {"mlp_layer_types": ["dense"]},
         "mlp_layer_types: must have an entry for each of the 47 layers; got 1"),
        ("glm-4.7-flash", {"num_hidden_layers": 1, "mlp_layer_types": ["x"]},
         "mlp_layer_types: must be made of dense and sparse"),
        ("gpt-oss-20b", {"layer_types": ["full_attention"]},
         "layer_types: must be 24 of sliding_attention and full_attention; got 1 of them"),
        ("minimax-m2", {"rotary_dim": 200}, "rotary_dim: must be at most the 128 of a head; got 200"),
        ("minimax-m3", {"rotary_dim": 200}, "rotary_dim: must be at most the 128 of a head; got 200"),
        ("ling-mini-2.0", {"rotary_dim": 200}, "rotary_dim: must be at most the 128 of a head; got 200"),
        ("qwen3-next-80b-a3b", {"partial_rotary_factor": 10},
         "partial_rotary_factor: must be a share from 0 to 1; got 10"),
        ("deepseek-v4-flash", {"partial_rotary_factor": 10},
         "partial_rotary_factor: must be a share from 0 to 1; got 10"),
        ("minimax-m2", {"attn_type_list": [0, 1]},
         "attn_type_list: must be ones, for softmax attention; linear attention is not modelled"),
        ("minimax-m2", {"shared_intermediate_size": 8},
         "shared_intermediate_size: must be 0: minimax_m2 has no shared expert"),
        ("dots.llm1", {"sliding_window": 8, "max_window_layers": 2},
         "sliding_window: must leave all layers without a window; others are not modelled"),
        ("ernie-4.5-21b-a3b", {"use_bias": True}, "use_bias: must be false; biases of ERNIE 4.5 are not modelled"),
        ("hunyuan-a13b", {"moe_topk": [8]}, "moe_topk: must have an entry for each of the 32 layers; got 1"),
        ("hunyuan-a13b", {"moe_topk": [0] * 32}, "moe_topk: must be at least 1 in every layer; got 0"),
        ("hunyuan-a13b", {"moe_layer_num_skipped": 1}, "moe_layer_num_skipped: must be 0: every layer has experts"),
        ("deepseek-v2", {"n_group": 7}, "n_group: must divide the 160 experts; got 7"),
        ("deepseek-v2", {"n_group": 80, "topk_group": 2},
         "topk_group: must be groups of 2 with the 6 experts of a token between them; got 2"),
        ("llama-4-scout", {"no_rope_layers": [1]},
         "no_rope_layers: must have an entry for each of the 48 layers; got 1"),
    ],
)  # fmt: skip
def test_invalid_mixture_configs_are_refused(name, changes, message):
    with pytest.raises(InputError) as caught:
        _built(_config(name, **changes))
    assert str(caught.value) == f"config.json: {message}"


@pytest.mark.parametrize(
    ("name", "parameters"), [("llama-4-scout", 107_769_861_120), ("llama-4-maverick", 400_711_848_960)]
)
def test_llama_4_has_the_parameters_of_transformers_and_17_billion_active(name, parameters):
    graph = _built(_config(name))
    assert graph.parameters == parameters
    assert round(graph.active_parameters / 1e9) == 17


def test_norms_of_llama_4_are_of_rotated_heads_and_have_no_weights():
    for block in _built(_config("llama-4-scout", num_hidden_layers=4)).blocks[1:-1]:
        norms = [op for op in block.operators if op.name in ("q_norm", "k_norm")]
        assert len(norms) == (2 if block.name == "local_moe" else 0)
        assert [(op.weights, op.ops_per_element) for op in norms] == [((), 3)] * len(norms)
    assert all(op.name != "q_norm" for _, op in _built(_config("llama-4-maverick")))


def test_llama_4_attends_within_chunks_where_it_rotates():
    graph = _built(Section(SCOUT, "config.json"))
    masks = {block.name: op.heads.mask for block, op in graph if op.name == "qk_matmul"}
    assert masks == {"local_moe": Chunked(8192), "global_moe": CAUSAL}
    assert _built(Section(UNSAID, "config.json")) == graph  # the default of the class
    without = _built(Section({**SCOUT, "attention_chunk_size": None}, "config.json"))
    assert {op.heads.mask for _, op in without if op.name == "qk_matmul"} == {CAUSAL}


def test_flash_attention_keeps_the_sinks():
    for attention in ("flash", "eager"):
        assert Setting.of("gpt-oss-20b", "h100-sxm", attention=attention).graph.parameters == 20914757184
