"""Recurrences: counts against transformers and by hand, states of fixed size, and what configs may say."""

from __future__ import annotations

import json
from collections import Counter
from fractions import Fraction
from math import log2
from pathlib import Path

import numpy as np
import pytest

from llmviewer.architectures import builder
from llmviewer.documents import Section
from llmviewer.errors import InputError
from llmviewer.forms import evaluate
from llmviewer.model_files import load_model
from llmviewer.operators.attention import QK, SV
from llmviewer.operators.base import RETAINED_ROLES, Role
from llmviewer.operators.linear import ExpertsLinear, Linear
from llmviewer.operators.state_space import Scan
from llmviewer.precision import BF16
from llmviewer.setting import Setting
from llmviewer.workload import Workload

from .strategies import built

ORACLE = Path(__file__).parent / "oracle"
COUNTED = json.loads((ORACLE / "recurrent.json").read_text(encoding="utf-8"))
BATCH, PROMPT = COUNTED["meta"]["batch"], COUNTED["meta"]["prompt"]
PASSES = {
    "prefill": Workload.prefill(batch=BATCH, prompt=PROMPT),
    "decode": Workload.decode(batch=BATCH, kv_len=PROMPT + 1),
}
MODELS = {
    **{f"tiny-{name}": found for name, found in COUNTED["tiny"].items()},
    **COUNTED["shipped"],
}
OPERATOR = {  # the end of a module's path in transformers -> name of the operator
    "shared_experts.gate_proj": "shared_gate_proj",
    "shared_experts.up_proj": "shared_up_proj",
    "shared_experts.down_proj": "shared_down_proj",
    "attention.key": "k_proj",
    "attention.value": "v_proj",
    "attention.receptance": "r_proj",
    "attention.output": "o_proj",
    "feed_forward.key": "up_proj",
    "feed_forward.value": "down_proj",
    "feed_forward.receptance": "mlp_r_proj",
    "kv_a_proj_with_mqa": "kv_a_proj",
    "gate": "router",
    "head": "lm_head",
    "self_attn": "products",
}
FAMILIES = (
    "kimi-linear-48b-a3b", "minimax-text-01", "minimax-m1", "rwkv-4-169m", "rwkv-4-430m", "rwkv-4-3b", "rwkv-4-7b",
    "rwkv-4-14b", "rwkv-5-world-7b", "rwkv-6-world-3b", "rwkv-6-world-7b", "rwkv-7-pile-168m", "rwkv-7-world-0.4b",
    "rwkv-7-world-1.5b", "rwkv-7-world-2.9b", "retnet-1.3b", "retnet-2.7b", "retnet-7b", "stripedhyena-7b", "kimi-k3",
    "ling-3.0-flash", "ling-3.0-tiny",
)  # fmt: skip
PURE = [name for name in FAMILIES if name.startswith(("rwkv", "retnet"))]  # no layer attends


def graph(name):
    if not name.startswith("tiny-"):
        return load_model(name).graph
    config = Section(MODELS[name]["config"], name)
    return builder(config)(config, BF16).check()


def operators(name, block=1):
    return {op.name: op for op in load_model(name).graph.blocks[block].operators}


def amount(form, workload):
    return float(evaluate(form, workload))


def by_torch(found):
    """OPs by operator, as modules did them."""
    counted = Counter()
    for path, ops in found.items():
        *_, parent, last = ("", *path.split("."))
        counted[OPERATOR.get(f"{parent}.{last}", OPERATOR.get(last, last))] += ops
    return counted


def of_scan(op, workload):
    """Matrix products of a linear recurrence as transformers takes it: in whole chunks, a single token by itself.

    A channel's decay of its own makes products of queries and keys no matrix products: there are sums instead, and all
    of a single token.
    """
    if op.name != "scan" or not op.chunk:
        return 0
    tokens = workload.tokens()
    channels = any(w.name == "dt_bias" for w in op.weights)
    if tokens == BATCH:
        return 0 if channels else op.token_ops * tokens
    length = op.chunk if channels else PROMPT
    width = op.outputs[0].width
    pair = op.pair_ops - 4 * width if channels else op.pair_ops
    return BATCH * (pair * length**2 + op.token_ops * length)


def by_us(model, workload):
    """OPs by operator, with what the counter does otherwise: the head at all positions, scores of all cells."""
    counted = Counter()
    for block, op in model:
        ops = block.repeat * Fraction(evaluate(op.work().ops, workload))
        if isinstance(op, QK | SV):
            counted["products"] += ops * Fraction(int(workload.cells(np.inf)), int(workload.pairs(np.inf)))
        elif isinstance(op, Scan):
            counted["products"] += block.repeat * int(of_scan(op, workload))
        elif isinstance(op, ExpertsLinear):
            counted["experts"] += ops
        elif isinstance(op, Linear):
            everywhere = Fraction(int(workload.tokens()), int(workload.logits()))
            counted[op.name] += ops * (everywhere if op.name == "lm_head" else 1)
    return Counter({name: ops for name, ops in counted.items() if ops})


@pytest.mark.parametrize("phase", PASSES)
@pytest.mark.parametrize("name", MODELS)
def test_ops_of_every_matrix_product_equal_torchs_to_the_digit(name, phase):
    assert by_us(graph(name), PASSES[phase]) == by_torch(MODELS[name][phase])


@pytest.mark.parametrize("name", MODELS)
def test_parameters_equal_those_of_transformers(name):
    assert graph(name).parameters == MODELS[name]["parameters"]


@pytest.mark.slow("counts in torch again")
def test_recurrent_json_equals_a_torch_recount(recounted):
    """The tiny models are recounted: versions are pinned. Needs the extra `oracle`; skipped without it."""
    recounted("make_recurrent.py", "kimi_linear", "minimax", "rwkv")


def test_parameters_of_rwkv_are_those_of_the_papers_formulas():
    v, d, layers = 65536, 4096, 32  # arXiv:2404.05892, appendix: of Eagle, and what Finch has besides
    eagle = 13 * d * d * layers + 14 * d * layers + 4 * d + 2 * d * v
    assert load_model("rwkv-5-world-7b").parameters == eagle == 7_518_044_160
    finch = layers * (2 * d + 2 * d * 5 * 64 + 2 * d * 128)  # x' and decay of a mixture more, two low ranks
    assert load_model("rwkv-6-world-7b").parameters == eagle + finch
    d, w, a, v_rank, g = 2560, 96, 96, 64, 320  # arXiv:2503.14456, appendix: of Goose
    goose = 2 * d * v + 4 * d + layers * d * (12 * d + 2 * (w + a + v_rank + g) + 19) - (2 * d * v_rank + d)
    assert load_model("rwkv-7-world-2.9b").parameters == goose == 2_947_735_040


def test_parameters_of_retention_by_hand():
    d, layers, inner, value = 2560, 32, 3584, 512
    layer = 8 * d * d + 3 * d * inner + 2 * d + value  # queries and keys; values, gate and result of twice the width
    assert load_model("retnet-2.7b").parameters == layers * layer + d + 2 * 32000 * d
    d, inner = 4096, 6912
    layer = 2 * d * d + 3 * d * inner + 3 * d * inner + 2 * d
    assert load_model("retnet-7b").parameters == layers * layer + 2 * d + 2 * 50257 * d


def test_parameters_of_striped_hyena_by_hand():
    d, inner, vocab = 4096, 14336, 32000
    shared = 3 * d * inner + 2 * d
    attention = d * (d + 2 * d // 4) + d * d
    hyena = 3 * d * d + 3 * d + 3 * d * 3 + 3 * d + d + 2 * (d * 2 * 2) + d * d + d
    total = 32 * shared + 16 * attention + 16 * hyena + d + 2 * vocab * d
    assert load_model("stripedhyena-7b").parameters == total
    assert 2 * total == pytest.approx(15.29e9, rel=5e-4)  # its two files: 9.89 GB and 5.4 GB


@pytest.mark.parametrize(
    ("name", "a_token", "state"),
    [
        # 7 of 27 layers attend; the others keep matrices of 32 heads and 3 tokens of the convolution
        ("kimi-linear-48b-a3b", 7 * (512 + 64) * 2, 20 * (32 * 128 * 128 * 4 + 3 * 4096 * 3 * 2)),
        ("kimi-k3", 24 * (512 + 64) * 2, 69 * (96 * 128 * 128 * 4 + 3 * 12288 * 3 * 2)),
        ("ling-3.0-flash", 7 * (512 + 64) * 2, 35 * (32 * 128 * 128 * 4 + 3 * 4096 * 3 * 2)),
        ("minimax-text-01", 10 * 2 * 8 * 128 * 2, 70 * 64 * 128 * 128 * 4),
        ("rwkv-4-169m", 0, 12 * (3 * 768 * 4 + 2 * 768 * 4)),  # an fp32 checkpoint
        ("rwkv-5-world-7b", 0, 32 * (64 * 64 * 64 * 4 + 2 * 4096 * 2)),
        ("rwkv-6-world-7b", 0, 32 * (64 * 64 * 64 * 4 + 2 * 4096 * 2)),
        ("rwkv-7-world-2.9b", 0, 32 * (40 * 64 * 64 * 4 + 2 * 2560 * 2)),
        ("retnet-2.7b", 0, 32 * 10 * 256 * 512 * 4),
        ("stripedhyena-7b", 16 * 2 * 8 * 128 * 2, 16 * (4096 * 2 * 8 + 3 * 4096 * 2 * 2)),
    ],
)
def test_states_do_not_grow_with_the_context(name, a_token, state):
    model = load_model(name)
    assert model.kv_bytes_per_token == a_token
    kept = sum(
        block.repeat * amount(t.nbytes, PASSES["decode"])
        for block, op in model.graph
        for t in op.outputs
        if t.role is Role.STATE
    )
    assert kept == BATCH * state


@pytest.mark.parametrize("name", FAMILIES)
def test_every_state_is_read_and_written_by_one_operator(name):
    for block in load_model(name).graph.blocks:
        states = [t.name for op in block.operators for t in op.inputs if t.role is Role.STATE]
        assert len(states) == len(set(states))
        for op in block.operators:
            read, written = ({t.name for t in side if t.role is Role.STATE} for side in (op.inputs, op.outputs))
            assert read == written


@pytest.mark.parametrize("name", FAMILIES)
def test_a_prompt_of_one_token_takes_the_ops_of_a_step(name):
    first, step = Workload.prefill(batch=3, prompt=1), Workload.decode(batch=3, kv_len=1)
    for _, op in load_model(name).graph:
        work = op.work()
        assert amount(work.ops, first) == amount(work.ops, step), op.name
        assert amount(work.nbytes, first) == amount(work.nbytes, step), op.name


@pytest.mark.parametrize("name", PURE)
def test_a_step_does_not_slow_down_with_the_context(name):
    plan = Setting.of(name, "h100-sxm").decode_plan
    assert plan.time_s(Workload.decode(batch=1, kv_len=10)) == plan.time_s(Workload.decode(batch=1, kv_len=100_000))


def test_a_token_shift_reads_a_token_and_the_one_before():
    shift = operators("rwkv-4-169m")["shift"]  # three mixtures of 768, fp32
    prefill = Workload.prefill(batch=2, prompt=100)
    work = shift.work()
    assert amount(work.ops, prefill) == 200 * 768 * (1 + 2 * 3)
    assert amount(work.activation_bytes, prefill) == 200 * 768 * 4 * 4
    assert amount(work.kv_bytes, prefill) == 2 * 2 * 768 * 4
    assert amount(work.weight_bytes, prefill) == 3 * 768 * 4


def test_mixtures_made_from_each_token_take_two_thin_products():
    ops = operators("rwkv-6-world-7b")
    one = Workload.decode(batch=1, kv_len=1)
    assert amount(ops["mix_w1"].work().ops, one) == 2 * 4096 * 5 * 64
    assert amount(ops["mix_w2"].work().ops, one) == 2 * 64 * 4096 * 5
    assert amount(ops["mix"].work().ops, one) == 4096 * 3 * 5


@pytest.mark.parametrize(
    ("name", "block", "pair", "token", "chunk"),
    [
        ("kimi-linear-48b-a3b", 1, 32 * 10 * 128, 32 * 6 * 128 * 128, 64),
        ("minimax-text-01", 1, 64 * 4 * 128, 64 * 4 * 128 * 128, 256),
        ("rwkv-6-world-7b", 1, 64 * 4 * 64, 64 * 4 * 64 * 64, 64),
        ("rwkv-7-world-2.9b", 2, 40 * (10 + 8) * 64, 40 * 8 * 64 * 64, 16),
        ("retnet-2.7b", 1, 10 * 2 * (256 + 512), 10 * 4 * 256 * 512, 64),
    ],
)
def test_a_recurrence_in_chunks_has_products_within_and_between_them(name, block, pair, token, chunk):
    work = operators(name, block)["scan"].work()
    full, rest = divmod(100, chunk)
    pairs = 2 * (full * chunk * (chunk + 1) / 2 + rest * (rest + 1) / 2)
    assert amount(work.ops, Workload.prefill(batch=2, prompt=100)) == pairs * pair + 200 * token
    assert amount(work.ops, Workload.decode(batch=2, kv_len=101)) == 2 * (pair + token)


def test_the_first_layer_of_rwkv_7_has_no_values_before_it():
    first, others = load_model("rwkv-7-world-2.9b").graph.blocks[1:3]
    assert (first.repeat, others.repeat) == (1, 31)
    names = {op.name for op in others.operators} - {op.name for op in first.operators}
    assert names == {"v_lora_a", "v_lora_b"}


def test_a_long_convolution_is_two_transforms_or_a_recurrence():
    work = operators("stripedhyena-7b")["long_filter"].work()  # 4096 channels of two modes
    for prompt in (2, 1000, 4096):
        points = 2 * prompt
        ops = 2 * 4096 * (2 * 2.5 * points * log2(points) + prompt * (11 * 2 + 4))
        assert amount(work.ops, Workload.prefill(batch=2, prompt=prompt)) == pytest.approx(ops, rel=1e-12)
    assert amount(work.ops, Workload.decode(batch=2, kv_len=4096)) == 2 * 4096 * (11 * 2 + 4)


def test_transforms_of_an_array_are_those_of_its_entries():
    lengths = np.array([1, 2, 7, 4096])
    alone = [Workload.chunk(batch=3, chunk=int(n), past=5).fft() for n in lengths]
    assert np.array_equal(Workload.chunk(batch=3, chunk=lengths, past=5).fft(), alone)


def test_latent_attention_of_kimi_linear_rotates_nothing():
    blocks = {block.name: block for block in load_model("kimi-linear-48b-a3b").graph.blocks}
    assert {name: block.repeat for name, block in blocks.items()} == {
        "embedding": 1, "kda_dense": 1, "kda_sparse": 19, "mla_sparse": 7, "head": 1,
    }  # fmt: skip
    ops = {op.name: op for op in blocks["mla_sparse"].operators}
    assert "rope" not in ops
    assert ops["kv_a_proj"].outputs[1].role in RETAINED_ROLES
    assert [t.name for t in ops["qk_matmul"].inputs] == ["q_proj", "k_nope", "rope_cache"]


def test_norms_of_minimax_stand_after_additions():
    names = [block.name for block in load_model("minimax-m1").graph.blocks]
    assert names == ["embedding", "linear", "full", "head"]
    blocks = load_model("minimax-m1").graph.blocks
    assert [op.name for op in blocks[0].operators] == ["embed_tokens", "embed_norm"]
    assert [op.name for op in blocks[-1].operators] == ["lm_head"]
    before = built(BF16, **{**MODELS["tiny-minimax"]["config"], "model_type": "minimax_m1"})
    assert before.parameters == MODELS["tiny-minimax"]["parameters"]
    assert [op.name for op in before.blocks[-1].operators] == ["final_norm", "lm_head"]


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("quant", ["W16A16", "W4A16g128", "fp8"])
def test_every_model_runs_under_every_technique(name, quant):
    setting = Setting.of(name, "h100-sxm", quant=quant)
    setting.graph.check()
    steps = setting.decode_plan.time_s(Workload.decode(batch=np.arange(1, 9), kv_len=500))
    assert np.all(np.diff(steps) > 0)
    prompts = setting.plan.time_s(Workload.prefill(batch=1, prompt=np.array([1, 100, 1000])))
    assert np.all(np.diff(prompts) > 0)


KIMI = {**MODELS["tiny-kimi_linear"]["config"]}
RWKV7 = {"model_type": "rwkv7", "vocab_size": 300, "hidden_size": 128, "num_hidden_layers": 2}
RETNET = {"model_type": "retnet", "vocab_size": 300, "hidden_size": 128, "num_hidden_layers": 2, "num_heads": 4}
TORCHSCALE = {"model_type": "retnet", "vocab_size": 300, "decoder_embed_dim": 128, "decoder_retention_heads": 4}
HYENA = {
    "model_type": "stripedhyena", "vocab_size": 300, "hidden_size": 128, "num_layers": 2, "num_attention_heads": 4,
    "hyena_layer_idxs": [0], "attn_layer_idxs": [1],
}  # fmt: skip


def test_kimi_linear_config_dialects_are_equivalent():
    checkpoint = {key: value for key, value in KIMI.items() if not key.startswith(("linear", "n_shared", "num_local"))}
    checkpoint |= {"num_experts": 8, "num_experts_per_token": 2, "num_shared_experts": 2}
    del checkpoint["num_experts_per_tok"]
    linear = {"num_heads": 3, "head_dim": 12, "short_conv_kernel_size": 3, "full_attn_layers": [5]}
    checkpoint["linear_attn_config"] = {**linear, "kda_layers": [1, 2, 3, 4, 6]}
    assert built(BF16, **checkpoint) == built(BF16, **KIMI)


def test_rwkv_6_config_dialects_are_equivalent():
    fields = {"model_type": "rwkv6", "vocab_size": 300, "hidden_size": 4096, "num_hidden_layers": 2}
    ranks = {"num_heads": 64, "proj_low_rank_dim": 64, "gate_low_rank_dim": 128, "hidden_ratio": 3.5}
    assert built(BF16, **fields, **ranks) == built(BF16, **fields, head_size=64)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({**KIMI, "attn_res_block_size": -1}, "attn_res_block_size: must be a whole number of at least 0; got -1"),
        ({**KIMI, "hidden_act": "situ"}, "activation_situ_linear_beta: is missing"),
        ({**KIMI, "mla_use_nope": False}, "mla_use_nope: must be true"),
        ({**KIMI, "layer_types": ["full_attention"]}, "layer_types: must have an entry for each of the 6 layers"),
        (
            {**KIMI, "linear_attn_config": {"full_attn_layers": [4], "kda_layers": [1, 2, 3]}},
            "linear_attn_config.full_attn_layers: must be, with kda_layers, each of 1 to 6 once",
        ),
        ({**MODELS["tiny-minimax"]["config"], "shared_intermediate_size": 64}, "shared_intermediate_size: must be 0"),
        ({**MODELS["tiny-minimax"]["config"], "attn_type_list": [0, 1, 2, 0, 1]}, "attn_type_list: must be made of 0"),
        ({**RWKV7, "value_dim": 256}, "value_dim: must be 128 in every layer"),
        ({**RWKV7, "attn": {"layers": [1]}}, "attn: must be null"),
        ({**RWKV7, "head_dim": 96}, "head_dim: must divide the 128 of all heads; got 96"),
        ({**RWKV7, "model_type": "rwkv6", "expand_k": 0.5}, "expand_k: must be 1; got 0.5"),
        ({**RWKV7, "model_type": "rwkv5", "model_version": "5_1"}, "model_version: must be 5_2; got '5_1'"),
        ({**RETNET, "num_kv_heads": 2}, "num_kv_heads: must be the 4 of num_heads; got 2"),
        ({**RETNET, "num_heads": 3}, "num_heads: must divide the 128 of all heads; got 3"),
        ({**RETNET, "use_short_conv": True}, "use_short_conv: must be false"),
        ({**TORCHSCALE, "use_glu": False}, "use_glu: must be true"),
        ({**TORCHSCALE, "deepnorm": True}, "deepnorm: must be false"),
        ({**HYENA, "smeared_gqa": True}, "smeared_gqa: must be false"),
        ({**HYENA, "hyena_layer_idxs": []}, "hyena_layer_idxs: must have, with attn_layer_idxs, layer 0"),
        ({**HYENA, "proj_groups": 3}, "proj_groups: must divide the 4 heads; got 3"),
        ({**HYENA, "hyena_filter_groups": 3}, "hyena_filter_groups: must divide the hidden size 128; got 3"),
    ],
)
def test_unsupported_recurrent_configs_are_refused_in_one_line(config, said):
    with pytest.raises(InputError) as error:
        built(BF16, **config)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", FAMILIES)
def test_every_field_of_the_models_is_read(name):
    assert not load_model(name).notes
