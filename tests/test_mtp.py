"""Multi-token prediction layers: counts by hand and published figures."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from llmviewer import analyze, sweep
from llmviewer.errors import InputError
from llmviewer.forms import evaluate
from llmviewer.memory import weight_bytes
from llmviewer.model import kv_cache_bytes
from llmviewer.model_files import load_model, model_names
from llmviewer.setting import Setting
from llmviewer.workload import Workload

from .cases import for_each
from .strategies import built

TINY = {
    "model_type": "glm4_moe",
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "moe_intermediate_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "num_nextn_predict_layers": 2,
}
EXPERTS = 8 * 3 * 64 * 32 + 3 * 64 * 32 + 8 * 64  # routed, shared, router
LAYER = 64 * (4 + 2 + 2 + 4) * 16 + EXPERTS + 2 * 64  # with q, k, v, o and two norms
FURTHER = LAYER + 64 * 2 * 64 + 3 * 64  # with the projection of two, and norms before and after
MODELS = Path(__file__).parents[1] / "models"


def predicting():
    return [name for name in model_names() if load_model(name).with_prediction]


def load_config(name):
    """The config of a shipped model."""
    return yaml.safe_load((MODELS / f"{name}.yaml").read_text(encoding="utf-8"))["config"]


def _graph(**changes):
    return built(**TINY | changes)


def _of(graph, name, workload):
    op = next(op for block, op in graph if block.name == "mtp" and op.name == name)
    work = op.work()
    return evaluate(work.ops, workload), evaluate(work.weight_bytes, workload)


def test_prediction_layers_run_only_with_the_mtp_option():
    graph = _graph().check()
    assert "mtp" not in [block.name for block in graph.blocks]
    assert graph.layers == 3
    assert graph.predicting().check().layers == 5


def test_each_prediction_layer_has_a_layer_a_projection_and_three_norms():
    """Embedding and head are the model's, and held once."""
    graph = _graph()
    assert graph.predicting().parameters - graph.parameters == 2 * FURTHER
    assert _graph(num_nextn_predict_layers=1).predicting().parameters - graph.parameters == FURTHER


def test_a_pass_runs_each_over_all_its_tokens_and_the_head_where_logits_are_wanted():
    graph, workload = _graph().predicting(), Workload.prefill(batch=2, prompt=10)
    assert _of(graph, "eh_proj", workload) == (20 * 2 * 64 * 128, 64 * 128 * 2)
    assert _of(graph, "eh_norm", workload) == (20 * 4 * 128, 2 * 64 * 2)
    assert _of(graph, "lm_head", workload) == (2 * 2 * 64 * 100, 64 * 100 * 2)
    assert _of(graph, "embed_tokens", workload)[1] == 20 * 64 * 2
    assert next(block.repeat for block in graph.blocks if block.name == "mtp") == 2


def test_each_prediction_layer_has_its_own_kv_cache():
    assert kv_cache_bytes(_graph(), batch=1, context=10) == 3 * 10 * 2 * 2 * 16 * 2
    assert kv_cache_bytes(_graph().predicting(), batch=1, context=10) == 5 * 10 * 2 * 2 * 16 * 2


def test_the_last_kind_of_layer_predicts_with_full_attention_in_a_hybrid():
    ops = [op.name for op in load_model("qwen3.5-35b-a3b").with_prediction.graph.blocks[-1].operators]
    assert "qk_matmul" in ops
    assert "router" in ops


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("deepseek-v3", 684.5),  # README_WEIGHTS: 671 billion, 11.5 of the module, 0.9 each of embedding and head
        ("glm-4.5-air", 110.5),  # its checkpoint holds both once more too
        ("glm-4.5", 358.3),
    ],
)
def test_checkpoint_sizes_count_prediction_layers_with_embedding_and_head(name, billions):
    model = load_model(name)
    again = 2 * next(w.numel for _, op in model.graph for w in op.weights if w.name == "embed_tokens.weight")
    assert round((model.with_prediction.parameters + again) / 1e9, 1) == billions


def test_deepseek_v3_has_11_5_billion_prediction_layer_parameters():
    model = load_model("deepseek-v3")
    assert model.with_prediction.parameters - model.parameters == pytest.approx(11.5e9, rel=0.01)


@for_each("name", predicting)
def test_every_model_with_prediction_layers_runs_with_mtp(name):
    model = load_model(name)
    assert model.with_prediction.parameters > model.parameters
    setting = Setting.of(model, "b200", mtp=True)
    plain = Setting.of(model, "b200")
    step = Workload.decode(batch=4, kv_len=1000)
    assert setting.decode_plan.time_s(step) > plain.decode_plan.time_s(step)
    assert weight_bytes(setting.graph) > weight_bytes(plain.graph)


def test_models_of_many_families_have_prediction_layers():
    named = {"deepseek-v3", "deepseek-v3.2", "deepseek-v4-pro", "glm-4.5", "glm-5", "mimo-7b", "minimax-m2.5"}
    named |= {"qwen3-next-80b-a3b", "hy3-preview", "glm-ocr", "nemotron-3-super-120b-a12b", "minimax-m3"}
    assert named <= set(predicting())


def test_prediction_layers_are_those_of_public_code():
    """Parameters of one layer, by hand; embedding and head are the model's.

    MiMo-V2-Flash: a window and an MLP; its README says 0.33 billion (vLLM, mimo_v2_flash_mtp.py). K-EXAONE: attention
    and an MLP (exaone_moe_mtp.py). Step 3.5: a window, gates and an MLP (step3p5_mtp.py).
    Nemotron 3 Super: attention and experts with a norm for each (nemotron_h_mtp.py). MiniMax-M3: sparse attention with
    its indexer, and experts. LongCat-Flash: latent attention and an MLP (longcat_flash_mtp.py).
    """

    def each(name):
        model, further = load_model(name), load_model(name).with_prediction
        return (further.parameters - model.parameters) / (further.graph.layers - model.graph.layers)

    def joined(d):
        return 2 * d * d + 5 * d  # projection of two, two norms before it, two of the layer, one before the head

    mimo = 4096 * (64 * 192 + 8 * (192 + 128) + 64 * 128 + 3 * 16384) + 64  # and a sink per head
    exaone = 6144 * (128 * (64 + 8 + 8 + 64) + 3 * 18432) + 2 * 128
    step = 4096 * (128 * (96 + 8 + 8 + 96) + 96 + 3 * 11264) + 2 * 128
    experts = 512 * 2 * 1024 * 2688 + 4096 * (512 + 2 * 1024 + 2 * 5376)  # two latent projections, a shared expert
    super_ = 4096 * 128 * (32 + 2 + 2 + 32) + experts
    m3 = 6144 * (128 * (64 + 4 + 4 + 64 + 4 + 1) + 128 + 129 * 3 * 3072) + 4 * 128  # also indexer, router, experts
    longcat = 6144 * (1536 + 576 + 64 * 128 + 3 * 12288) + 1536 * (1 + 64 * 192) + 512 * (1 + 64 * 256)
    assert each("mimo-v2-flash") == mimo + joined(4096) == 329_273_408
    assert each("k-exaone-236b-a23b") == exaone + joined(6144)
    assert each("step-3.5-flash") == step + joined(4096)
    assert each("nemotron-3-super-120b-a12b") == super_ + joined(4096)
    assert each("minimax-m3") == m3 + joined(6144)
    assert each("longcat-flash") == longcat + joined(6144)


def test_prediction_layers_of_unknown_structure_are_refused_as_such():
    message = "qwen3.8-flash-next has multi-token prediction layers (1) of a structure that is not known"
    with pytest.raises(InputError, match=f"^mtp: {re.escape(message)}$"):
        Setting.of("qwen3.8-flash-next", "h100-sxm", mtp=True)
    with pytest.raises(InputError, match=f"^mtp: {re.escape(message)}$"):
        Setting.of("qwen3.8-flash-next", "h100-sxm", techniques=["mtp"])


def test_nemotron_reads_the_parts_of_its_layer(tmp_path):
    plain = load_config("nemotron-3-super-120b-a12b")
    path = tmp_path / "config.json"

    def own(**changes):
        path.write_text(json.dumps(plain | changes), encoding="utf-8")
        model = load_model(str(path))
        return model.with_prediction.parameters - model.parameters

    words = {"mtp_hybrid_override_pattern": None, "mtp_layers_block_type": ["attention", "moe"]}
    assert own() == own(**words) == own(mtp_hybrid_override_pattern=None)
    attention = 4096 * 128 * (32 + 2 + 2 + 32)
    assert own(mtp_hybrid_override_pattern="*") == attention + 2 * 4096**2 + 4 * 4096
    with pytest.raises(InputError, match=r"mtp_hybrid_override_pattern: must be one of .* got 'E\*'$"):
        own(mtp_hybrid_override_pattern="E*")


def test_published_formats_are_those_of_their_own_layer():
    """DeepSeek-V3 has them in the blocks of all layers, the projection too."""
    graph = Setting.of("deepseek-v3", "h200-sxm", mtp=True).graph
    formats = {op.name: op.weights[0].format.name for b, op in graph if b.name == "mtp" and op.kind == "linear"}
    assert set(formats.values()) == {"fp8_e4m3"}
    assert "eh_proj" in formats


def test_analyze_and_sweep_take_the_mtp_option():
    plain, further = (analyze("mimo-7b", "h100-sxm", mtp=mtp) for mtp in (False, True))
    assert (plain.setting.mtp, further.setting.mtp) == (False, True)
    assert further.model.parameters - plain.model.parameters == 210790400
    assert further.generation.tpot_s > plain.generation.tpot_s
    assert further.memory.kv_cache_bytes == plain.memory.kv_cache_bytes * 37 / 36
    rows = sweep("mimo-7b", "h100-sxm", {"batch": [1, 2]}, mtp=True)
    assert rows.columns["decode_step_s"][0] == pytest.approx(further.phases.decode.total.bound_time_s, rel=1e-12)


def test_survey_accounting_counts_prediction_layers():
    further = analyze("mimo-7b", "h100-sxm", accounting="survey", mtp=True)
    act = [op for op in further.phases.decode.operators if op.name == "mlp_act"]
    assert act[-1].per_call.ops == act[0].per_call.ops > 0


def test_layers_are_run_in_every_pass_or_draft():
    message = "mtp: runs in every pass the layers that --with mtp drafts with between passes; leave one out"
    with pytest.raises(InputError, match=f"^{message}$"):
        Setting.of("deepseek-v3", "h200-sxm", layout="tp=8", mtp=True, techniques=["mtp:gamma=2"])


def test_mtp_without_prediction_layers_is_refused():
    message = "mtp: llama-2-7b has no known multi-token prediction layers"
    with pytest.raises(InputError, match=message):
        Setting.of("llama-2-7b", "h100-sxm", mtp=True)
