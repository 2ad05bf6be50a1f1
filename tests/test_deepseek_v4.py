"""DeepSeek-V4: counts by hand, torch's on a small model (oracle/deepseek_v4.json), and published figures."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from llmviewer.devices.files import load_hardware
from llmviewer.documents import Section
from llmviewer.errors import InputError
from llmviewer.forms import evaluate
from llmviewer.generation import decode_s
from llmviewer.model import kv_cache_bytes
from llmviewer.model_files import load_model
from llmviewer.operators.attention import QK, SV
from llmviewer.operators.linear import ExpertsLinear, Linear
from llmviewer.operators.masks import Causal, Compressed, Joint
from llmviewer.resource import Unit, matrix
from llmviewer.roofline import plan
from llmviewer.setting import Setting
from llmviewer.stored.module_names import ModuleNames, Naming, layout_of
from llmviewer.transforms.quantize import parse_quantization, quantize
from llmviewer.workload import Workload

from .strategies import built

ORACLE = Path(__file__).parent / "oracle"
TORCH = json.loads((ORACLE / "deepseek_v4.json").read_text(encoding="utf-8"))
TINY = TORCH["config"]
OPERATORS = {  # names in transformers -> of operators
    "compressor.gate_proj": "compressed_gate_proj",
    "compressor.kv_proj": "compressed_kv_proj",
    "indexer.gate_proj": "index_gate_proj",
    "indexer.kv_proj": "index_kv_proj",
    "indexer.q_b_proj": "index_q_proj",
    "indexer.weights_proj": "index_weights",
    "shared_experts.down_proj": "shared_down_proj",
    "shared_experts.gate_proj": "shared_gate_proj",
    "shared_experts.up_proj": "shared_up_proj",
    "DeepseekV4Experts": "experts",
    "DeepseekV4HashRouter": "router",
    "DeepseekV4TopKRouter": "router",
    "DeepseekV4HyperConnection": "hyper_connection",
    "DeepseekV4HyperHead": "hyper_connection",
    "DeepseekV4Attention": "attention",
}
FUSED = ("DeepseekV4DecoderLayer", "DeepseekV4IndexerScorer")  # products that torch makes of element by element work


def _graph(**changes):
    return built(**TINY | changes)


def _products(graph, workload):
    """OPs on matrix units by operator, those of all layers together; experts together."""
    found = Counter()
    for block, op in graph:
        ops = sum(evaluate(f, workload) for r, f in op.work().amounts if r.unit is Unit.MATRIX)
        if ops and op.kind != "indexer":
            name = "attention" if isinstance(op, QK | SV) else op.name
            name = "experts" if isinstance(op, ExpertsLinear) else name
            found["hyper_connection" if op.kind == "hyper_connection" else name] += block.repeat * ops
    return found


def _by_torch(phase):
    found = Counter()
    for name, ops in TORCH[phase].items():
        if name not in FUSED:
            found[OPERATORS.get(name, name)] += ops
    return found


def _layer(graph, block, workload):
    """(OPs, bytes of the cache, weight bytes) of the operators of one layer of a block."""
    works = {op.name: op.work() for b, op in graph if b.name == block}
    return {n: tuple(evaluate(f, workload) for f in (w.ops, w.kv_bytes, w.weight_bytes)) for n, w in works.items()}


def test_parameters_equal_those_of_transformers():
    assert _graph().parameters == TORCH["parameters"]


def test_products_of_a_decode_step_equal_torchs_to_the_digit():
    ours = _products(_graph(), Workload.decode(batch=TORCH["batch"], kv_len=TORCH["length"]))
    ours.pop("indexer")
    assert ours == _by_torch("decode")


def test_products_of_a_prefill_equal_torchs_but_for_the_mask_and_the_head():
    ours = _products(_graph(), Workload.prefill(batch=TORCH["batch"], prompt=TORCH["length"]))
    torch = _by_torch("prefill")
    assert torch.pop("lm_head") == ours.pop("lm_head") * TORCH["length"]
    assert ours.pop("attention") < torch.pop("attention")
    ours.pop("indexer")
    assert ours == torch


@pytest.mark.slow("counts in torch again")
def test_deepseek_v4_json_equals_a_torch_recount(recounted):
    """Needs the extra `oracle`; skipped without it."""
    recounted("make_deepseek_v4.py")


def test_a_step_attends_to_a_window_and_to_chosen_entries():
    """At 100 tokens, groups of 4: the last 8 tokens and 6 of 25 entries, of 16 elements each, for 4 heads."""
    found = _layer(_graph(index_topk=6), "csa_moe", Workload.decode(batch=3, kv_len=100))
    assert found["qk_matmul"][:2] == (3 * (8 + 6) * 4 * 2 * 16, 3 * (8 + 6) * 16 * 2)
    assert found["sv_matmul"][0] == found["qk_matmul"][0]
    assert found["indexer"][:2] == (3 * 25 * (2 * 3 * (8 + 1) + 3 + 1), 3 * 25 * 8 * 4.25 / 8)


def test_a_step_attends_to_all_entries_where_none_are_chosen():
    found = _layer(_graph(), "hca_moe", Workload.decode(batch=1, kv_len=104))
    assert found["qk_matmul"][:2] == ((8 + 13) * 4 * 2 * 16, (8 + 13) * 16 * 2)


def test_entries_are_read_once_as_keys_and_as_values_in_one_launch():
    setting = Setting.of("deepseek-v4-flash", "h200-sxm")
    workload = Workload.decode(batch=1, kv_len=128 * 1000)
    found = _layer(setting.graph, "hca_moe", workload)
    assert found["attention"][1] == (128 + 1000) * 512 * 2
    assert _layer(setting.graph, "csa_moe", workload)["attention"][1] == (128 + 512) * 512 * 2


def test_a_prompt_leaves_pairs_of_window_and_of_entries():
    """30 tokens, a window of 8; groups of 8 count as the part that they have."""
    found = _layer(_graph(), "hca_moe", Workload.prefill(batch=1, prompt=30))
    near, all_before = 8 * 9 / 2 + 22 * 8, 30 * 31 / 2
    assert found["qk_matmul"][0] == (near + all_before / 8) * 4 * 2 * 16


def test_an_entry_takes_its_tokens_once():
    """Two series of 16 elements for each of 4 tokens: bias, softmax and sum; a norm, and half of it rotated."""
    found = _layer(_graph(), "csa_moe", Workload.prefill(batch=1, prompt=40))
    assert found["compressed_entries"][0] == 40 * 8 * 2 * 16 + 10 * (4 * 16 + 3 * 8)
    assert found["compressed_entries"][1] == 10 * 16 * 2  # entries, written to the cache
    assert found["compressed_entries"][2] == (4 * 2 * 16 + 16) * 2


def test_streams_are_mixed_by_weights_of_each_token():
    """3 streams of 64: 15 weights from one product; 4 rounds of columns and rows, but for the first, on 9 of them."""
    found = _layer(_graph(), "hca_moe", Workload.prefill(batch=1, prompt=10))
    vector = 5 * 192 + 2 * 6 * 3 + 9 * (7 + 2 * 7)
    assert found["attn_hc"][0] == 10 * (2 * 192 * 15 + vector)
    assert found["attn_add"][0] == 10 * 192 * 7
    assert found["attn_hc"][2] == (15 * 192 + 15 + 3) * 4


def test_no_token_is_compared_where_ids_choose_experts():
    """Softmax alone over 8 logits, against 2 more comparisons of each."""
    graph, workload = _graph(), Workload.prefill(batch=1, prompt=10)
    assert _layer(graph, "window_hash", workload)["route"][0] == 10 * 8 * 5
    assert _layer(graph, "hca_moe", workload)["route"][0] == 10 * 8 * 7


def test_the_cache_by_hand():
    """At 80 tokens: windows of 8, entries of 16, keys of the indexer of 8, and groups in the making."""
    window, csa, hca, keys = 8 * 16, 80 / 4 * 16, 80 / 8 * 16, 3 * 80 / 4 * 8
    csa_state = sum(2 * 4 * 2 * w + 2 * 4 * w for w in (16, 8))
    hca_state = 2 * 8 * 16
    elements = 5 * window + 3 * (csa + csa_state) + hca + hca_state
    assert kv_cache_bytes(_graph(), batch=1, context=80) == 2 * elements + keys * 4.25 / 8  # fp4, a scale of each 32


@pytest.mark.parametrize(("name", "gib"), [("deepseek-v4-flash", 6.72), ("deepseek-v4-pro", 9.62)])
def test_a_million_tokens_take_the_published_cache(name, gib):
    """vllm.ai/blog/deepseek-v4: 9.62 GiB of V4-Pro in bf16, compressed entries and indexer; 6.72 of V4-Flash alike."""
    graph = load_model(name).graph.then(quantize(parse_quantization("indexer=A16")))
    grown = kv_cache_bytes(graph, batch=1, context=2**20 + 2**16) - kv_cache_bytes(graph, batch=1, context=2**16)
    assert round(float(grown) / 2**30, 2) == gib


@pytest.mark.parametrize(
    ("name", "total", "active"), [("deepseek-v4-flash", 284e9, 13e9), ("deepseek-v4-pro", 1.6e12, 49e9)]
)
def test_parameters_are_those_published(name, total, active):
    """arXiv:2606.19348, abstract; of the active ones ours have both the embedding and the head."""
    model = load_model(name)
    assert model.parameters == pytest.approx(total, rel=0.02)
    embedding = next(w.numel for _, op in model.graph for w in op.weights if w.name == "embed_tokens.weight")
    assert model.active_parameters - embedding == pytest.approx(active, rel=0.03)


def test_steps_sum_up_to_the_decode_time():
    graph, device = _graph(), load_hardware("h100-sxm")
    found = plan(graph, device)
    steps = sum(float(found.time_s(Workload.decode(batch=2, kv_len=n))) for n in range(3, 200))
    assert decode_s(found, batch=2, first=np.array(3), last=np.array(199)) == pytest.approx(steps, rel=1e-12)


def test_experts_are_published_in_four_bits_and_the_rest_in_eight_but_for_compressors():
    formats = {op.name: op.weight.format.name for b, op in Setting.of("deepseek-v4-flash", "b200").graph
               if isinstance(op, Linear) and b.name == "csa_moe"}  # fmt: skip
    assert {n for n, f in formats.items() if f == "mxfp4"} == {
        "expert_gate_proj",
        "expert_up_proj",
        "expert_down_proj",
    }
    assert {n for n, f in formats.items() if f == "bf16"} == {
        "compressed_kv_proj", "compressed_gate_proj", "index_kv_proj", "index_gate_proj", "index_weights", "router",
    }  # fmt: skip
    assert {formats[name] for name in ("q_a_proj", "o_a_proj", "o_b_proj", "shared_up_proj")} == {"fp8_e4m3"}


def test_the_mixing_product_is_in_tf32_whatever_the_precision():
    for quant in (None, "W4A16", "fp8"):
        graph = Setting.of("deepseek-v4-flash", "h100-sxm", quant=quant).graph
        assert {op.work().operand_unit for _, op in graph if op.name == "attn_hc"} == {matrix("tf32")}


@pytest.mark.parametrize(
    ("said", "layers"),
    [
        ({"num_hidden_layers": 5}, "hhhch"),
        ({"compress_ratios": [0, 4, 128, 4, 0, 0]}, "wchcw"),
    ],
)
def test_layer_kinds_follow_the_config(said, layers):
    fields = {k: v for k, v in TINY.items() if k not in ("layer_types", "compress_rates")}
    graph = built(**fields | said)
    kinds = {place: block.name[0] for block in graph.blocks for place in block.layers}
    assert "".join(kinds[i] for i in range(5)) == layers


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_key_value_heads": 2}, "num_key_value_heads: must be 1"),
        ({"attention_bias": True}, "attention_bias: must be false"),
        ({"layer_types": None, "compress_ratios": [4]}, "compress_ratios: must have 5 entries or more"),
        ({"layer_types": None, "compress_ratios": [7] * 5}, "compress_ratios: must have 5 entries or more"),
        ({"layer_types": ["sliding_attention"]}, "layer_types: must have an entry for each of the 5 layers; got 1"),
        ({"mlp_layer_types": ["dense"] * 5}, "mlp_layer_types: must be made of hash_moe and moe"),
        ({"o_groups": 5}, "o_groups: must divide the 4 heads of 16; got 5"),
    ],
)
def test_invalid_deepseek_v4_configs_are_refused(changes, message):
    with pytest.raises(InputError, match=f"config.json: {message}"):
        _graph(**changes)


def test_joint_mask_sums_the_keys_of_its_masks():
    mask = Joint((Causal(8), Compressed(4, 6)))
    step = Workload.decode(batch=1, kv_len=100)
    assert evaluate(mask.keys_cached, step) == 8 + 25
    assert evaluate(mask.keys_read, step) == evaluate(mask.pairs, step) == 8 + 6
    assert str(mask) == "window 8 + 4:1 compressed top-6"


@pytest.mark.parametrize(
    ("module", "operator"),
    [
        ("model.layers.4.self_attn.compressor.kv_proj", "compressed_kv_proj"),
        ("model.layers.4.self_attn.compressor.indexer.gate_proj", "index_gate_proj"),
        ("model.layers.4.self_attn.compressor.indexer.scorer.weights_proj", "index_weights"),
        ("model.layers.4.self_attn.o_a_proj", "o_a_proj"),
        ("layers.4.attn.wkv", "kv_proj"),
    ],
)
def test_modules_of_checkpoints_are_known_by_their_names(module, operator):
    graph, names = load_model("deepseek-v4-flash").graph, ModuleNames.of((module,))
    naming = Naming(layout_of(Section(TINY, "config.json")), graph)
    named = {
        (op.name, layer)
        for block, op in graph
        for layer in block.layers
        if list(names.matching_entries(naming.modules(block, op, layer), layer))
    }
    assert named == {(operator, 4)}
