"""Types whose code is not in transformers, and xLSTM: structure by hand; totals are those of models/*.yaml."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import yaml

from llmviewer.errors import InputError
from llmviewer.forms import evaluate
from llmviewer.model import kv_cache_bytes
from llmviewer.model_files import load_model
from llmviewer.operators.linear import Linear
from llmviewer.operators.masks import Strided
from llmviewer.setting import Setting
from llmviewer.workload import Workload

MODELS = Path(__file__).parents[1] / "models"
NAMES = ("qwen-7b", "arctic", "openelm-270m", "phi-3-small-8k", "phi-4-mini-flash", "hunyuan-large", "xlstm-7b")


@pytest.fixture
def changed(tmp_path):
    """Loads the config of a shipped model with changes."""

    def load(name, **changes):
        config = yaml.safe_load((MODELS / f"{name}.yaml").read_text(encoding="utf-8"))["config"] | changes
        path = tmp_path / "config.json"
        path.write_text(json.dumps(config), encoding="utf-8")
        return load_model(str(path))

    return load


def layer_parameters(model, block):
    made = next(b for b in model.graph.blocks if b.name == block)
    return sum(w.numel for op in made.operators for w in op.weights if not w.tied)


def test_qwen_divides_its_width_between_gate_and_up():
    d = 4096
    assert layer_parameters(load_model("qwen-7b"), "layer") == 3 * d * d + 3 * d + d * d + 3 * d * 11008 + 2 * d


def test_arctic_has_a_dense_network_beside_its_experts(changed):
    d, inner = 7168, 4864
    attention = 2 * d * d + 2 * d * 1024
    assert layer_parameters(load_model("arctic"), "moe") == (
        attention + 3 * d * d + 128 * 3 * d * inner + 128 * d + 3 * d  # attention, dense, experts, router, norms
    )
    plain = changed("arctic", use_residual=False, moe_layer_frequency=2)
    assert layer_parameters(plain, "moe") == attention + 128 * 3 * d * inner + 128 * d + 2 * d
    assert layer_parameters(plain, "dense") == attention + 3 * d * inner + 2 * d


def test_layers_of_openelm_have_sizes_of_their_own(changed):
    model = load_model("openelm-270m")
    assert model.kv_bytes_per_token == 2 * 2 * 64 * (5 * 3 + 7 * 4 + 4 * 5)
    with pytest.raises(InputError, match=r"ffn_multipliers: must be a number above 0 for each of the 16 layers$"):
        changed("openelm-270m", ffn_multipliers=[0.5])
    with pytest.raises(InputError, match=r"num_query_heads: must be multiples of num_kv_heads; got 12 and 5$"):
        changed("openelm-270m", num_kv_heads=5)


def test_blocks_that_phi_3_small_attends_to():
    """Block-sparse attention against a count of blocks, which the mask takes as fractions."""
    mask = Strided(window=16 * 64, stride=8, blocks_read=4)
    length = 4096
    counted = (
        sum(
            sum(1 for key in range(0, query + 1, 64) if query // 64 - key // 64 < 16 or (key // 64 + 1) % 8 == 0) * 64
            for query in range(0, length, 64)
        )
        * 64
    )
    pairs = evaluate(mask.pairs, Workload.prefill(batch=1, prompt=length))
    assert pairs == pytest.approx(counted, rel=0.05)
    step = Workload.decode(batch=1, kv_len=length)
    assert evaluate(mask.keys_read, step) == 1024 + (length - 1024) / 2
    assert evaluate(mask.keys_cached, step) == length
    masks = [str(op.heads.mask) for _, op in load_model("phi-3-small-8k").graph if op.kind == "attention"]
    assert set(masks) == {"window 1024 + every 8th block", ""}


def test_every_other_layer_of_hunyuan_large_has_a_cache(changed):
    model = load_model("hunyuan-large")
    assert model.kv_bytes_per_token == 32 * 2 * 8 * 80 * 2
    assert changed("hunyuan-large", use_cla=False).kv_bytes_per_token == 2 * model.kv_bytes_per_token
    own, borrowing = (layer_parameters(model, name) for name in ("moe", "borrowing"))
    assert own - borrowing == 2 * 6400 * 640 + 80  # keys, values, and the norm of keys
    third = changed("hunyuan-large", cla_share_factor=4)
    assert third.kv_bytes_per_token == model.kv_bytes_per_token / 2
    plan = Setting.of("hunyuan-large", "h200-sxm", layout="tp=8 pp=4").decode_plan  # pairs stay in one stage
    assert plan.time_s(Workload.decode(batch=8, kv_len=1000)) > 0


def test_half_of_phi_4_mini_flash_layers_process_logit_positions_only():
    graph, d = load_model("phi-4-mini-flash").graph, 2560
    prompt = Workload.prefill(batch=2, prompt=1000)

    def ops(block, name, workload):
        made = next(b for b in graph.blocks if b.name == block)
        op = next(op for op in made.operators if op.name == name)
        return evaluate(op.work().on(made.stream).ops, workload)

    assert ops("mamba", "down_proj", prompt) == 2 * 2000 * d * 10240
    assert ops("cross", "down_proj", prompt) == ops("gated", "down_proj", prompt) == 2 * 2 * d * 10240
    assert ops("cross", "qk_matmul", prompt) == 2 * 2 * 1000 * d  # the last token of each prompt sees all of it
    chunk = Workload.chunk(batch=2, chunk=500, past=0)
    assert ops("head", "lm_head", prompt) == 2 * 2 * d * 200064
    step = Workload.decode(batch=2, kv_len=1000)
    assert ops("cross", "down_proj", step) == ops("mamba", "down_proj", step) == 2 * 2 * d * 10240
    assert ops("cross", "down_proj", chunk) == 2 * 2 * d * 10240
    shared = 2 * 20 * 64 * 2  # keys and values of one layer
    states = 9 * 5120 * (16 * 4 + 3 * 2)  # of scans in fp32, and of filters
    assert kv_cache_bytes(graph, batch=1, context=5000) == shared * (8 * 512 + 5000) + states


def test_memory_of_xlstm():
    """The matrix, the normalizer and the largest exponent of each of 8 heads in fp32, whatever the length."""
    model = load_model("xlstm-7b")
    assert model.attention == "state"
    cached = kv_cache_bytes(model.graph, batch=3, context=9000)
    assert cached == 3 * 32 * 8 * (256 * 512 + 256 + 1) * 4
    one = Workload.decode(batch=1, kv_len=100)
    products = sum(b.repeat * evaluate(op.work().ops, one) for b, op in model.graph if isinstance(op, Linear))
    matrices = sum(b.repeat * op.weight.numel for b, op in model.graph if isinstance(op, Linear))
    assert products == 2 * matrices


def test_step_3_7_may_have_the_fields_of_its_language_model_beside_the_others(changed):
    text = yaml.safe_load((MODELS / "step-3.5-flash.yaml").read_text(encoding="utf-8"))["config"]
    text.pop("model_type")
    whole = {"model_type": "step3p7", "torch_dtype": "bfloat16", "tie_word_embeddings": False, "text_config": text}
    flat, nested = changed("step-3.5-flash", model_type="step3p7"), changed("gpt2", **whole)
    assert flat.graph == nested.graph
    alone = changed("step-3.5-flash", model_type="step3p7", architectures=["Step3p5ForCausalLM"])
    assert alone.graph == load_model("step-3.5-flash").graph


WRONG = (0, -1, 3, 2**53, 1.5, float("nan"), "x", None, True, [], [1], {"a": 1}, 10**30)


@pytest.mark.parametrize("name", [*NAMES, "llada-8b", "llada-moe-7b-a1b", "dream-7b", "flux.1-dev", "sd3.5-medium"])
def test_mutated_configs_load_or_end_in_one_line(changed, name):
    rng = random.Random(name)
    keys = list(yaml.safe_load((MODELS / f"{name}.yaml").read_text(encoding="utf-8"))["config"])[2:]
    for _ in range(25):
        try:
            model = changed(name, **{rng.choice(keys): rng.choice(WRONG)})
            assert model.parameters > 0
        except InputError as error:
            message = str(error)
            assert "\n" not in message
