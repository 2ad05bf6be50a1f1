"""Formats by operator and layer, and bytes to the bit, from quantization_config of a config.json."""

from __future__ import annotations

import json

import pytest

from llmviewer._layout import data_dir
from llmviewer.analyzing.analysis import analyze
from llmviewer.analyzing.facts import describe_model
from llmviewer.architectures import builder
from llmviewer.documents import Section, read_yaml
from llmviewer.errors import InputError
from llmviewer.memory import weight_bytes
from llmviewer.model_files import load_model
from llmviewer.operators.base import Role
from llmviewer.operators.linear import Linear
from llmviewer.precision import BF16
from llmviewer.reports.catalogue import model_card
from llmviewer.setting import Setting
from llmviewer.stored.formats import Rule, Stored
from llmviewer.stored.module_names import Matching, ModuleNames, Naming, layout_of

HIDDEN, INNER, VOCAB, LAYERS = 1024, 2048, 1000, 4
DENSE = {
    "model_type": "llama",
    "torch_dtype": "bfloat16",
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 8,
    "vocab_size": VOCAB,
}
ATTENTION, MLP = 4 * HIDDEN * HIDDEN, 3 * HIDDEN * INNER  # weights of a layer
WIDE = 2 * (2 * VOCAB * HIDDEN + (2 * LAYERS + 1) * HIDDEN)  # bytes of what no method here quantizes
MIXTURE = {  # 2 of 4 experts and a shared one, but for a dense first layer; latent attention
    "model_type": "deepseek_v3",
    "torch_dtype": "bfloat16",
    "hidden_size": 512,
    "intermediate_size": 1024,
    "moe_intermediate_size": 256,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "n_routed_experts": 4,
    "n_group": 1,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "q_lora_rank": 128,
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 32,
    "v_head_dim": 64,
    "vocab_size": 1000,
}
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": [128, 128]}
INT4_G128 = 4 + 16 / 128
QUARK4 = {"dtype": "fp4", "qscheme": "per_group", "group_size": 32, "scale_format": "e8m0"}
QUARK8 = {"dtype": "fp8_e4m3", "qscheme": "per_tensor", "is_dynamic": False}
INT4_ZERO_G128 = 4 + 20 / 128
FLOAT4 = {"num_bits": 4, "type": "float", "group_size": 16, "dynamic": False}
FLOAT8 = {"num_bits": 8, "type": "float", "dynamic": False}


@pytest.fixture
def load(tmp_path):
    """Loads a config.json with the quantization_config given, with hf_quant_config.json beside it if given."""

    def write(quantization=None, *, of=None, beside=None):
        fields = dict(of or DENSE)
        if quantization is not None:
            fields["quantization_config"] = quantization
        (tmp_path / "config.json").write_text(json.dumps(fields), encoding="utf-8")
        if beside is not None:
            (tmp_path / "hf_quant_config.json").write_text(json.dumps(beside), encoding="utf-8")
        return load_model(str(tmp_path))

    return write


def _graph(model, quant=None):
    return Setting.of(model, "h100-sxm", quant=quant).graph


def _bits(model):
    """{operator: {stored bits of its matrix: layers}}"""
    found = {}
    for block, op in _graph(model):
        if isinstance(op, Linear):
            layers = found.setdefault(op.name, {}).setdefault(op.weight.format.stored_bits, [])
            layers.extend(block.layers or (None,))
    return {name: {bits: sorted(layers, key=str) for bits, layers in places.items()} for name, places in found.items()}


def _formats(model):
    """{(operator, layer): (format of the matrix, format of what it is multiplied with)}"""
    return {
        (op.name, layer): (str(op.weight.format), str(op.inputs[0].format))
        for block, op in _graph(model)
        if isinstance(op, Linear)
        for layer in block.layers or (None,)
    }


def _torchao(kind, **data):
    return {"quant_method": "torchao", "quant_type": {"default": {"_type": kind, "_version": 1, "_data": data}}}


@pytest.mark.parametrize(
    ("quantization", "bits", "text"),
    [
        ({"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True, "desc_act": True}, INT4_G128,
         "published: GPTQ int4 g128 weights"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": False}, INT4_G128 + 4 / 128,
         "published: GPTQ int4 g128 weights"),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1, "sym": True}, 8, "published: GPTQ int8 weights"),
        ({"quant_method": "gptq", "bits": 3, "group_size": 32}, 3.5, "published: GPTQ int3 g32 weights"),
        ({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm",
          "modules_to_not_convert": None}, INT4_G128 + 4 / 128, "published: AWQ int4 g128 weights"),
        ({"quant_method": "awq", "w_bit": 4, "q_group_size": 64, "zero_point": False}, 4.25,
         "published: AWQ int4 g64 weights"),
        ({"quant_method": "auto-round", "bits": 4, "group_size": 128, "sym": True}, INT4_G128,
         "published: AutoRound int4 g128 weights"),
        (FP8, 8 + 32 / 16384, "published: fp8 blocks of 128x128"),
        ({**FP8, "weight_block_size": [64, 32]}, 8 + 32 / 2048, "published: fp8 blocks of 64x32"),
        ({"quant_method": "fp8", "activation_scheme": "static"}, 8, "published: fp8 per tensor"),
        ({"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}, 8, "published: fp8 per channel"),
        ({"quant_method": "mxfp4"}, 4.25, "published: mxfp4 weights"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16}, 4.5,
         "published: nvfp4 weights and activations"),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, 8, "published: fp8 per tensor"),
        ({"quant_algo": "W4A16_AWQ", "group_size": 128}, INT4_G128, "published: int4 g128 weights"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}, 4.5,
         "published: bitsandbytes nf4 weights"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "fp4",
          "bnb_4bit_use_double_quant": True}, 4 + (8 + 32 / 256) / 64,
         "published: bitsandbytes fp4 weights, quantized twice"),
        ({"quant_method": "hqq", "skip_modules": ["lm_head"],
          "quant_config": {"weight_quant_params": {"nbits": 4, "group_size": 64, "axis": 1}}}, 4.5,
         "published: HQQ int4 g64 weights"),
        ({"quant_method": "quanto", "weights": "int4"}, 4.25, "published: Quanto int4 g128 weights"),
        ({"quant_method": "quanto", "weights": "float8", "activations": "float8"}, 8,
         "published: Quanto fp8_e4m3 weights"),
        ({"quant_method": "eetq", "weights": "int8"}, 8, "published: EETQ int8 weights"),
        ({"quant_method": "aqlm", "in_group_size": 8, "out_group_size": 1, "num_codebooks": 1,
          "nbits_per_codebook": 16, "linear_weights_not_to_quantize": ["lm_head.weight"]}, 2,
         "published: AQLM weights of 2 bits"),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True, "llm_int8_threshold": 6.0}, 8,
         "published: LLM.int8() weights and activations"),
        ({"quant_method": "compressed-tensors", "config_groups": {"group_0": {"targets": ["Linear"], "weights": {
            "num_bits": 4, "type": "int", "strategy": "group", "group_size": 128, "symmetric": True}}},
          "ignore": ["lm_head"]}, INT4_G128, "published: int4 g128 weights"),
        ({"quant_method": "compressed-tensors", "config_groups": {"group_0": {"targets": ["Linear"], "weights": {
            "num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True}, "input_activations": {
            "num_bits": 8, "type": "int", "strategy": "token", "dynamic": True}}}}, 8,
         "published: int8 weights and activations"),
        ({"quant_method": "compressed-tensors", "config_groups": {"group_0": {"targets": ["Linear"], "weights": {
            **FLOAT8, "strategy": "block", "block_structure": [128, 128]}, "input_activations": {
            **FLOAT8, "strategy": "group", "group_size": 128}}}}, 8 + 32 / 16384,
         "published: fp8_e4m3 g16384 weights, fp8_e4m3 g128 activations"),
        ({"quant_method": "compressed-tensors", "config_groups": {"group_0": {"targets": ["Linear"],
            "weights": FLOAT4, "input_activations": FLOAT4}}}, 4.5, "published: nvfp4 weights and activations"),
        ({"quant_method": "quark", "global_quant_config": {"weight": QUARK4, "input_tensors": QUARK4 | {
            "is_dynamic": True}}, "exclude": ["*lm_head"], "export": {"pack_method": "reorder"}}, 4.25,
         "published: mxfp4 weights and activations"),
        ({"quant_method": "quark", "global_quant_config": {"weight": [QUARK8, {"dtype": "int4",
            "qscheme": "per_channel"}], "input_tensors": QUARK8}, "exclude": ["lm_head"]}, 4,
         "published: int4 weights, fp8_e4m3 activations"),
        ({"quant_method": "intel/auto-round", "bits": 4, "group_size": 128, "sym": True, "data_type": "int"}, INT4_G128,
         "published: AutoRound int4 g128 weights"),
        ({"load_in_8bit": True}, 8, "published: LLM.int8() weights and activations"),
        (_torchao("Int4WeightOnlyConfig", group_size=64, int4_packing_format="plain"), 4.5,
         "published: int4 g64 weights"),
        (_torchao("Int8WeightOnlyConfig", group_size=None), 8, "published: int8 weights"),
        (_torchao("Float8WeightOnlyConfig", weight_dtype={"_type": "torch.dtype", "_data": "float8_e4m3fn"}), 8,
         "published: fp8_e4m3 weights"),
        (_torchao("Float8DynamicActivationFloat8WeightConfig", granularity=[{"_type": "PerRow", "_data": {}}]), 8,
         "published: fp8_e4m3 weights and activations"),
        ({"quant_method": "torchao", "quant_type": "int4_weight_only", "quant_type_kwargs": {"group_size": 128}},
         4 + 32 / 128, "published: int4 g128 weights"),
        ({"quant_method": "torchao", "quant_type": "int8_dynamic_activation_int8_weight"}, 8,
         "published: int8 weights and activations"),
    ],
)  # fmt: skip
def test_every_matrix_is_stored_in_the_bits_published_but_the_head(load, quantization, bits, text):
    model = load(quantization)
    assert weight_bytes(_graph(model)) == WIDE + LAYERS * (ATTENTION + MLP) * bits / 8
    assert str(model.quantization) == text
    assert model.notes == ()
    assert analyze(model, "h100-sxm").inputs["quant"] == text


def test_config_without_quantization_is_as_published(load):
    model = load()
    assert str(model.quantization) == "as published"
    assert weight_bytes(_graph(model)) == WIDE + 2 * LAYERS * (ATTENTION + MLP)


@pytest.mark.parametrize("key", ["quantization", "quantization_config"])
def test_mlx_quantizes_head_and_embedding_too(load, key):
    said = {"group_size": 64, "bits": 4, "model.layers.0.mlp.down_proj": {"group_size": 64, "bits": 8}}
    model = load(of=DENSE | {key: said})
    norms = WIDE - 2 * 2 * VOCAB * HIDDEN
    own = norms + (LAYERS * (ATTENTION + MLP) + 2 * VOCAB * HIDDEN) * 4.5 / 8 + HIDDEN * INNER * 4 / 8
    assert (weight_bytes(_graph(model)), model.notes) == (own, ())
    tied = load(of=DENSE | {key: said, "tie_word_embeddings": True})
    assert weight_bytes(_graph(tied)) == own - VOCAB * HIDDEN * 4.5 / 8


def test_quark_per_module_settings_apply(load):
    model = load({"quant_method": "quark", "layer_quant_config": {"*mlp*": {"weight": QUARK8, "input_tensors": None}},
                  "kv_cache_quant_config": {"*k_proj": {"output_tensors": QUARK8}}})  # fmt: skip
    formats = _formats(model)
    assert (formats["q_proj", 0][0], formats["up_proj", 0][0]) == ("bf16", "fp8_e4m3")
    assert str(model.quantization.scheme.kv_cache) == "fp8_e4m3"
    odd = {"quant_method": "quark", "global_quant_config": {"weight": QUARK4 | {"group_size": 16}}}
    assert load(odd).unsupported_quantization.endswith(
        "global_quant_config.weight: fp4 in groups of 16 is not supported"
    )


def test_activations_have_a_scale_per_block_of_their_own(load):
    (x,) = {op.inputs[0].format for _, op in _graph(load(FP8)) if op.name == "q_proj"}
    assert (x.name, x.stored_bits) == ("fp8_e4m3", 8 + 32 / 128)


def test_weights_alone_are_multiplied_in_the_models_format(load):
    formats = _formats(load({"quant_method": "awq", "bits": 4, "group_size": 128}))
    assert formats["q_proj", 0] == ("int4 g128", "bf16")
    assert formats["lm_head", None] == ("bf16", "bf16")


def test_requested_precision_replaces_the_published_one(load):
    model = load(FP8)
    assert weight_bytes(_graph(model, "W4A16")) == WIDE + LAYERS * (ATTENTION + MLP) / 2
    assert weight_bytes(_graph(model, "W16A16")) == WIDE + LAYERS * (ATTENTION + MLP) * 2
    assert analyze(model, "h100-sxm", quant="W4A16").inputs["quant"] == "W4A16"


def test_precision_without_weights_leaves_weights_as_published(load):
    model = load(FP8)
    assert weight_bytes(_graph(model, "KV8")) == weight_bytes(_graph(model))
    assert analyze(model, "h100-sxm", quant="KV8").inputs["quant"] == "published: fp8 blocks of 128x128, KV8"
    mixed = weight_bytes(_graph(model)) + LAYERS * HIDDEN * INNER * (2 - 1 - 4 / 16384)
    assert weight_bytes(_graph(model, "down_proj=W16A16")) == mixed
    said = "published: fp8 blocks of 128x128, down_proj=W16A16"
    assert analyze(model, "h100-sxm", quant="down_proj=W16A16").inputs["quant"] == said


@pytest.mark.parametrize(
    ("scheme", "text"),
    [
        ({"kv_cache_scheme": {"num_bits": 8, "type": "float", "dynamic": False}}, "fp8_e4m3"),
        ({"kv_cache_scheme": "FP8"}, "fp8_e4m3"),
        ({"kv_cache_quant_algo": "FP8"}, "fp8_e4m3"),
        ({"kv_cache_quant_algo": "NVFP4"}, "nvfp4"),
        ({"kv_cache_scheme": {"num_bits": 8, "type": "int", "symmetric": True}}, "int8"),
        ({"kv_cache_quant_algo": None}, "bf16"),
    ],
)
def test_the_cache_is_in_the_format_published(load, scheme, text):
    model = load({"quant_method": "modelopt", "quant_algo": "FP8", **scheme})
    found = {str(t.format) for _, op in _graph(model) for t in op.inputs if t.role is Role.KV_CACHE}
    assert found == {text}


LLAMA = {**DENSE, "num_hidden_layers": 11}
QWEN = {
    **DENSE, "model_type": "qwen3_next", "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 64, "head_dim": 64, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "linear_key_head_dim": 16, "linear_value_head_dim": 16,
}  # fmt: skip
MIXTRAL = {**DENSE, "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}
GPT2 = {"model_type": "gpt2", "n_embd": 64, "n_head": 4, "n_layer": 4, "n_positions": 64, "vocab_size": 100}
OPT = {"model_type": "opt", "hidden_size": 64, "ffn_dim": 64, "num_attention_heads": 4, "num_hidden_layers": 4,
       "max_position_embeddings": 64, "vocab_size": 100}  # fmt: skip
GLOB, REGEX, MARKED = Matching.GLOB, Matching.REGEX, Matching.MARKED
SKIPPED, INSIDE = Matching.SKIPPED, Matching.INSIDE
EVERY = set(range(11))
NAMES = [
    (LLAMA, GLOB, "model.layers.1.self_attn.q_proj", {"q_proj": {1}}),
    (LLAMA, GLOB, "model.layers.1.self_attn", {key: {1} for key in ("q_proj", "k_proj", "v_proj", "o_proj")}),
    (LLAMA, GLOB, "model.language_model.layers.1.mlp.gate_proj", {"gate_proj": {1}}),
    (LLAMA, GLOB, "language_model.model.layers.1.mlp*", {key: {1} for key in ("gate_proj", "up_proj", "down_proj")}),
    (LLAMA, GLOB, "model.layers.*.mlp.up_proj", {"up_proj": EVERY}),
    (LLAMA, GLOB, "model.layers.1*.mlp.up_proj", {"up_proj": {1, 10}}),
    (LLAMA, GLOB, "*mlp.up*", {"up_proj": EVERY}),
    (LLAMA, GLOB, "model.layers.2.self_attn.qkv_proj", {key: {2} for key in ("q_proj", "k_proj", "v_proj")}),
    (LLAMA, GLOB, "mlp.gate", {}),
    (LLAMA, GLOB, "layers.2.ffn.w1", {}),
    (LLAMA, GLOB, "model.visual.blocks.0.attn.qkv", {}),
    (LLAMA, GLOB, "*lm_head*", {"lm_head": {None}}),
    (LLAMA, MARKED, "language_model.lm_head", {"lm_head": {None}}),
    (LLAMA, MARKED, r"re:model\.layers\.(1|2)\.self_attn.o", {"o_proj": {1, 2}}),
    (LLAMA, MARKED, r"re:.*mlp\.(gate|up|gate_up)_proj.*", dict.fromkeys(("gate_proj", "up_proj"), EVERY)),
    (LLAMA, MARKED, "re:.*mlp.gate$", {}),
    (LLAMA, REGEX, r".*\.1\..*down", {"down_proj": {1}}),
    (LLAMA, REGEX, r"layers\.1\.mlp\.up_proj", {"up_proj": {1}}),  # a name may begin without "model."
    (LLAMA, SKIPPED, "model.layers.1.mlp.up_proj", {"up_proj": {1}}),
    (LLAMA, SKIPPED, r"model\.layers\.1.*up", {}),  # up to the end of a part
    (LLAMA, SKIPPED, "model.layers.*.mlp.up_proj", {"up_proj": EVERY}),
    (LLAMA, SKIPPED, "o_proj", {"o_proj": EVERY}),
    (LLAMA, SKIPPED, "own_proj", {"down_proj": EVERY}),
    (LLAMA, INSIDE, "mlp.gate", {"gate_proj": EVERY}),
    (LLAMA, INSIDE, "own_p", {"down_proj": EVERY}),
    (GPT2, GLOB, "transformer.h.2.attn.c_attn", {"qkv_proj": {2}}),
    (GPT2, GLOB, "h.2.mlp.c_proj", {"down_proj": {2}}),
    (OPT, GLOB, "model.decoder.layers.2.fc1", {"up_proj": {2}}),
    (MIXTRAL, GLOB, "model.layers.2.block_sparse_moe.gate", {"router": {2}}),
    (MIXTRAL, GLOB, "model.layers.2.block_sparse_moe.experts.0.w1", {"expert_gate_proj": {2}}),
    (MIXTRAL, GLOB, "model.layers.2.block_sparse_moe.experts.3.w1", {}),
    (MIXTRAL, MARKED, r"re:.*experts\.\d+\.w2", {"expert_down_proj": {0, 1, 2, 3}}),
    (MIXTRAL, SKIPPED, "gate", {"router": {0, 1, 2, 3}}),
    (MIXTRAL, INSIDE, "gate", {"router": {0, 1, 2, 3}}),  # w1 is no gate_proj
    (QWEN, GLOB, "model.layers.2.mlp.shared_expert_gate", {"shared_gate": {2}}),
    (QWEN, GLOB, "*.layers.2.mlp.shared_expert.*",
     {key: {2} for key in ("shared_gate_proj", "shared_up_proj", "shared_down_proj")}),
    (QWEN, GLOB, "model.layers.2.linear_attn*", {key: {2} for key in ("qkvz_proj", "ba_proj", "out_proj")}),
    (QWEN, GLOB, "model.layers.2.linear_attn.in_proj_ba", {"ba_proj": {2}}),
    (QWEN, GLOB, "mtp*", {}),
    (QWEN, REGEX, r".*mlp\.gate$", {"router": {0, 1, 2, 3}}),
]  # fmt: skip


@pytest.mark.parametrize(("config", "matching", "pattern", "named"), NAMES)
def test_an_entry_of_a_list_names_modules_of_the_architecture(config, matching, pattern, named):
    section = Section(config, "config.json")
    stored = Stored(rules=(Rule(None, ModuleNames.of([pattern], matching)),), layout=layout_of(section))
    graph = builder(section)(section, BF16)
    naming, (rule,) = Naming(stored.layout, graph), stored.rules
    found = {}
    for block, op in graph:
        for layer in block.layers or (None,):
            if isinstance(op, Linear) and any(rule.names.matching_entries(naming.modules(block, op, layer), layer)):
                found.setdefault(op.name, set()).add(layer)
    assert found == named


def test_layers_that_predict_further_tokens_have_names_of_their_own(load):
    modelopt = {"quant_method": "modelopt", "quant_algo": "NVFP4"}
    config = {**MIXTURE, "num_nextn_predict_layers": 1}
    for names, fmt in ((["mtp*"], "bf16"), (["model.layers.3*"], "bf16"), (["model.layers.1*"], "nvfp4")):
        graph = load({**modelopt, "exclude_modules": names}, of=config).with_prediction.published
        (block,) = (block for block in graph.blocks if block.name == "mtp")
        found = {str(op.weight.format) for op in block.operators if op.name in ("eh_proj", "o_proj", "expert_up_proj")}
        assert found == {fmt}


def test_an_entry_that_names_no_module_is_reported(load):
    skipped = ["lm_head", "model.layers.0.mlp.gate", "model.visual", "mtp.fc", "layers.3.attn.wq"]
    model = load({**FP8, "modules_to_not_convert": skipped})
    (note,) = model.notes
    assert note.endswith(
        "config.json: quantization_config: names no module of the model: model.layers.0.mlp.gate, layers.3.attn.wq"
    )
    assert load({**FP8, "modules_to_not_convert": ["model.layers.0.mlp"]}).notes == ()


def test_modules_to_not_convert_keep_their_format(load):
    model = load({**FP8, "modules_to_not_convert": ["model.layers.1.mlp.down_proj", "model.layers.0.self_attn"]})
    low, high = 8 + 32 / 16384, 16
    assert _bits(model)["down_proj"] == {low: [0, 2, 3], high: [1]}
    assert _bits(model)["o_proj"] == {low: [1, 2, 3], high: [0]}
    assert _bits(model)["up_proj"] == {low: [0, 1, 2, 3]}
    assert _formats(model)["o_proj", 0] == ("bf16", "bf16")
    assert str(model.quantization) == (
        "published: fp8 blocks of 128x128; bf16: q_proj of 1 layer, k_proj of 1 layer, v_proj of 1 layer, "
        "o_proj of 1 layer, down_proj of 1 layer"
    )
    assert weight_bytes(_graph(model)) == (
        WIDE + (LAYERS * (ATTENTION + MLP) - ATTENTION - HIDDEN * INNER) * low / 8 + (ATTENTION + HIDDEN * INNER) * 2
    )


def test_a_head_is_quantized_where_a_config_names_it(load):
    gptq = {"quant_method": "gptq", "bits": 4, "group_size": 128, "lm_head": True}
    assert _bits(load(gptq))["lm_head"] == {INT4_G128: [None]}
    listed = {"lm_head": {"quant_algo": "W4A16_NVFP4", "group_size": 16}}
    mixed = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": listed}
    assert _bits(load(mixed))["lm_head"] == {4.5: [None]}
    assert _bits(load(mixed))["q_proj"] == {16: [0, 1, 2, 3]}


def test_layers_of_two_algorithms(load):
    layers = {f"model.layers.{i}.self_attn.{p}_proj": {"quant_algo": "FP8"} for i in range(LAYERS) for p in "qkvo"}
    mlp = {f"model.layers.{i}.mlp.{p}_proj": {"quant_algo": "W4A16_NVFP4"} for i in (0, 2) for p in ("gate", "up")}
    quantization = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": {**layers, **mlp}}
    model = load(quantization)
    assert _bits(model)["k_proj"] == {8: [0, 1, 2, 3]}
    assert _bits(model)["up_proj"] == {4.5: [0, 2], 16: [1, 3]}
    assert _bits(model)["down_proj"] == {16: [0, 1, 2, 3]}
    assert _formats(model)["q_proj", 1] == ("fp8_e4m3", "fp8_e4m3")
    assert _formats(model)["up_proj", 2] == ("nvfp4", "bf16")


def test_groups_of_compressed_tensors_have_modules_of_their_own(load):
    groups = {
        "group_0": {"targets": ["re:.*self_attn.*"], "weights": FLOAT8, "input_activations": FLOAT8},
        "group_1": {"targets": ["re:.*mlp.*"], "weights": FLOAT4, "input_activations": None},
    }
    model = load({"quant_method": "compressed-tensors", "config_groups": groups, "ignore": ["re:.*layers.3.mlp.*"]})
    assert _bits(model)["q_proj"] == {8: [0, 1, 2, 3]}
    assert _bits(model)["gate_proj"] == {4.5: [0, 1, 2], 16: [3]}
    assert _formats(model)["gate_proj", 0] == ("nvfp4", "bf16")


def test_parts_of_gptq(load):
    dynamic = {r"-:.*\.0\..*": {}, r"+:.*down_proj": {"bits": 8, "group_size": 64}}
    quantization = {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True, "dynamic": dynamic}
    bits = _bits(load(quantization))
    assert bits["q_proj"] == {16: [0], INT4_G128: [1, 2, 3]}
    assert bits["down_proj"] == {16: [0], 8.25: [1, 2, 3]}  # the first that speaks of it
    columns = {"quant_method": "gptq", "bits": 4, "group_size": 128, "dynamic": {".*down_proj": {"group_size": -1}}}
    assert _bits(load(columns))["down_proj"] == {4: [0, 1, 2, 3]}  # scales of whole columns are too few to count
    only = {"quant_method": "gptq", "bits": 4, "group_size": 128, "modules_in_block_to_quantize": [["mlp.up_proj"]]}
    bits = _bits(load(only))
    assert (bits["up_proj"], bits["q_proj"]) == ({INT4_G128: [0, 1, 2, 3]}, {16: [0, 1, 2, 3]})


def test_layers_of_auto_round(load):
    extra = {"model.layers.0.mlp.down_proj": {"bits": 16}, "model.layers.1.mlp.down_proj": {"bits": 8}}
    quantization = {"quant_method": "auto-round", "bits": 4, "group_size": 128, "sym": True, "extra_config": extra}
    assert _bits(load(quantization))["down_proj"] == {16: [0], 8.125: [1], INT4_G128: [2, 3]}


def test_a_mixture_keeps_router_and_head_in_16_bits(load):
    model = load(FP8, of=MIXTURE)
    bits = _bits(model)
    low = 8 + 32 / 16384
    assert (bits["router"], bits["lm_head"]) == ({16: [1, 2]}, {16: [None]})
    assert bits["expert_up_proj"] == bits["shared_down_proj"] == {low: [1, 2]}
    assert (bits["gate_proj"], bits["kv_b_proj"]) == ({low: [0]}, {low: [0, 1, 2]})


def test_a_mixture_whose_experts_alone_are_quantized(load):
    ignore = ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", r"re:.*mlp\.(gate|up|gate_up|down)_proj.*"]
    weights = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True}
    groups = {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": None}}
    model = load({"quant_method": "compressed-tensors", "config_groups": groups, "ignore": ignore}, of=MIXTURE)
    quantized = {name for name, places in _bits(model).items() if 4.5 in places}
    assert quantized == {"expert_gate_proj", "expert_up_proj", "expert_down_proj"}
    assert all(16 in places for name, places in _bits(model).items() if name not in quantized)


def test_experts_in_four_bits_of_a_model_in_eight(load):
    layers = {f"model.layers.{i}.mlp.experts": {"quant_algo": "NVFP4", "group_size": 16} for i in (1, 2)}
    extra = {"quantized_layers": layers, "moe_quant_algo": "NVFP4", "quant_algo": "MIXED_PRECISION"}
    bits = _bits(load({**FP8, **extra, "ignore": ["*.self_attn.*", "head"]}, of=MIXTURE))
    assert (bits["expert_up_proj"], bits["shared_up_proj"]) == ({4.5: [1, 2]}, {8 + 32 / 16384: [1, 2]})
    assert bits["o_proj"] == {8 + 32 / 16384: [0, 1, 2]}  # `ignore` is of the four bits


def _shipped(name):
    return read_yaml(data_dir("models") / f"{name}.yaml").section("config").data


def test_experts_of_gemma_4_are_quantized_where_its_other_modules_are_not(load):
    """nvidia/Gemma-4-26B-A4B-NVFP4: MLP, router and experts are siblings."""
    listed = [f"model.language_model.layers.{i}.{part}*" for i in range(30) for part in ("mlp", "router", "self_attn")]
    model = load({"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": listed}, of=_shipped("gemma-4-26b-a4b"))
    experts = 30 * 128 * 3 * 2816 * 704
    assert weight_bytes(model.published) == experts * 4.5 / 8 + (model.parameters - experts) * 2


LINEAR = [i for i in range(60) if i % 4 != 3]  # layers of Qwen3.5-397B with linear attention
QKV = 4096 * (2 * 16 * 128 + 64 * 128)  # weights of in_proj_qkv in each
FIRST = {
    "qkv_proj": QKV,
    "z_proj": 4096 * 64 * 128,
    "b_proj": 4096 * 64,
    "a_proj": 4096 * 64,
    "out_proj": 64 * 128 * 4096,
}


@pytest.mark.parametrize(
    ("method", "names", "operators"),
    [
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "model.language_model.layers.{}.linear_attn*", FIRST),
        ({"quant_method": "fp8"}, "model.language_model.layers.{}.linear_attn.in_proj_qkv", ("qkv_proj",)),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "model.layers.{}.linear_attn.in_proj_z", ("z_proj",)),
        ({"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": FLOAT8}}},
         "re:.*layers.{}.linear_attn.in_proj_[ab]$", ("a_proj", "b_proj")),
    ],
)  # fmt: skip
def test_linear_attention_of_qwen_is_skipped_by_its_module_names(load, method, names, operators):
    key = {"modelopt": "exclude_modules", "fp8": "modules_to_not_convert", "bitsandbytes": "llm_int8_skip_modules"}
    listed = {key.get(method["quant_method"], "ignore"): [names.format(i) for i in LINEAR]}
    config = _shipped("qwen3.5-397b-a17b")
    model, whole = load({**method, **listed}, of=config), load(method, of=config)
    assert model.notes == whole.notes
    skipped = len(LINEAR) * sum(FIRST[name] for name in operators)
    assert weight_bytes(model.published) - weight_bytes(whole.published) == skipped  # a byte more for each


def test_bitsandbytes_quantizes_layers_of_a_vision_tower_unless_it_is_skipped(load):
    config = _shipped("qwen2.5-vl-7b")
    nf4 = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
    whole = load({**nf4, "llm_int8_skip_modules": ["lm_head", "merger"]}, of=config)
    skipped = load({**nf4, "llm_int8_skip_modules": ["lm_head", "visual"]}, of=config)
    layers = 32 * (4 * 1280 * 1280 + 3 * 1280 * 3420)  # attention and MLP of the tower
    assert weight_bytes(skipped.published) - weight_bytes(whole.published) == layers * (16 - 4.5) / 8
    awq = load({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}, of=config)
    assert {w.format for b, op in awq.published if op.name == "vision_o_proj" for w in op.weights} == {BF16}


def test_hf_quant_config_beside_a_config(load):
    file = {
        "producer": {"name": "modelopt", "version": "0.19.0"},
        "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]},
    }
    model = load(beside=file)
    assert str(model.quantization) == "published: fp8 per tensor, fp8_e4m3 KV cache"
    assert str(load({"quant_method": "mxfp4"}, beside=file).quantization) == "published: mxfp4 weights"
    model = load({"quant_method": "modelopt", "quant_algo": "NVFP4"}, beside=file)  # the cache is only in the file
    assert str(model.quantization) == "published: nvfp4 weights and activations, fp8_e4m3 KV cache"


def test_the_quantization_of_the_text_part_of_a_config(load):
    model = load(of={**DENSE, "text_config": {"quantization_config": FP8}})
    assert str(model.quantization) == "published: fp8 blocks of 128x128"


GPT_OSS = {  # openai/gpt-oss-20b config.json
    "model_type": "gpt_oss", "torch_dtype": "bfloat16", "hidden_size": 2880, "intermediate_size": 2880,
    "num_hidden_layers": 24, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "sliding_window": 128,
    "num_local_experts": 32, "num_experts_per_tok": 4, "attention_bias": True, "hidden_act": "silu",
    "vocab_size": 201088, "tie_word_embeddings": False,
    "layer_types": ["sliding_attention", "full_attention"] * 12,
}  # fmt: skip
DEEPSEEK_V3 = {  # deepseek-ai/DeepSeek-V3 config.json
    **MIXTURE, "hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048, "num_hidden_layers": 61,
    "num_attention_heads": 128, "num_key_value_heads": 128, "n_routed_experts": 256, "num_experts_per_tok": 8,
    "first_k_dense_replace": 3, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "v_head_dim": 128, "vocab_size": 129280,
}  # fmt: skip


def test_gpt_oss_20b_takes_the_memory_published(load):
    names = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
    model = load({"quant_method": "mxfp4", "modules_to_not_convert": names}, of=GPT_OSS)
    experts = 24 * 32 * 3 * 2880 * 2880
    nbytes = weight_bytes(Setting.of(model, "h100-sxm", attention="eager").graph)
    assert nbytes == experts * 4.25 / 8 + 2 * (model.parameters - experts)
    assert round(nbytes / 2**30, 1) == 12.8  # arXiv:2508.10925, table 1
    assert str(model.quantization) == "published: mxfp4 weights; bf16: q_proj, k_proj, v_proj, o_proj"
    assert {bits for places in (_bits(model)[n] for n in ("router", "lm_head", "q_proj")) for bits in places} == {16}


def test_deepseek_v3_takes_a_byte_a_weight_and_its_scales(load):
    model = load(FP8, of=DEEPSEEK_V3)
    norms = 61 * (2 * 7168 + 1536 + 512) + 7168
    wide = 2 * 129280 * 7168 + norms + 58 * 256 * 7168  # head, embedding, norms and routers
    low = model.parameters - wide
    assert weight_bytes(_graph(model)) == 2 * wide + low * (1 + 4 / 16384)
    assert model.parameters == 671_026_404_352


METHODS = (
    "aqlm, auto-round, awq, bitsandbytes, compressed-tensors, eetq, fbgemm_fp8, fp8, gptq, hqq, mlx, modelopt, mxfp4, "
    "quanto, quark, torchao"
)


def test_torchao_may_have_a_config_for_each_module(load):
    """An own name wins over an expression, and an expression over the whole; null is not quantized."""
    fp8, int4 = {"_type": "Float8WeightOnlyConfig", "_data": {}}, {"_type": "Int4WeightOnlyConfig", "_data": {}}
    names = {"model.layers.0.mlp.up_proj": None, "_default": int4, r"re:model\.layers\..*\.mlp\..*": fp8}
    model = load(_torchao("FqnToConfig", fqn_to_config=names))
    bits = _bits(model)
    assert bits["q_proj"] == {4.25: [0, 1, 2, 3]}
    assert bits["down_proj"] == {8: [0, 1, 2, 3]}
    assert bits["up_proj"] == {16: [0], 8: [1, 2, 3]}


def test_torchao_unknown_formats_are_reported_and_its_head_option_is_read(load):
    unknown = load(_torchao("IntxWeightOnlyConfig")).unsupported_quantization
    assert "quant_type.default._type 'IntxWeightOnlyConfig' is not supported" in unknown
    whole = _torchao("Int8WeightOnlyConfig", group_size=None) | {"include_input_output_embeddings": True}
    assert _bits(load(whole))["lm_head"] == {8: [None]}


@pytest.mark.parametrize(
    ("quantization", "said"),
    [
        ({"quant_method": "vptq", "nbits": 4}, f"quant_method 'vptq' is not supported ({METHODS})"),
        ({"bits": 4}, "names no quant_method"),
        ({}, "names no quant_method"),
    ],
)  # fmt: skip
def test_a_method_that_is_not_known_is_refused_unless_a_precision_is_given(load, tmp_path, quantization, said):
    model = load(quantization)
    what = f"{tmp_path}/config.json: quantization_config {said}"
    assert (model.unsupported_quantization, model.notes) == (what, ())
    for quant in (None, "KV8"):
        with pytest.raises(InputError) as caught:
            analyze(model, "h100-sxm", quant=quant)
        assert str(caught.value) == f"{what}: its weights may be of any size; give --quant, such as W4A16g128"
    found = analyze(model, "h100-sxm", quant="W4A16g128")
    assert f"{what}: weights are counted in the format of --quant" in found.notes
    assert found.memory.weight_bytes == WIDE + INT4_ZERO_G128 / 8 * LAYERS * (ATTENTION + MLP)
    assert describe_model(model)["weight_bytes"] is None
    assert f"note                  {tmp_path}"[:30] in model_card(model)


def test_unknown_algorithm_is_reported_as_unsupported(load):
    unknown = load({"quant_method": "modelopt", "quant_algo": "W3A5"}).unsupported_quantization
    assert "quantization_config.quant_algo 'W3A5' is not supported (FP8, " in unknown


def test_unread_quantization_fields_are_noted(load, tmp_path):
    model = load({**FP8, "sparsity": "2:4", "fmt": "e4m3", "more": None})
    said = f"fields of {tmp_path}/config.json that nothing here reads: quantization_config.sparsity"
    assert model.notes == (said,)


def test_unknown_format_is_reported_as_unsupported(load, tmp_path):
    groups = {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 5, "type": "float"}}}
    model = load({"quant_method": "compressed-tensors", "config_groups": groups})
    where = f"{tmp_path}/config.json: quantization_config.config_groups.group_0.weights"
    assert model.unsupported_quantization == f"{where}: has an unsupported format"


def test_weights_without_their_zeros_are_not_known(load, tmp_path):
    groups = {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float"}}}
    fields = {"quant_method": "compressed-tensors", "config_groups": groups}
    where = f"{tmp_path}/config.json: quantization_config"
    sparse = {**fields, "sparsity_config": {"format": "sparse-24-bitmask", "sparsity_structure": "2:4"}}
    assert load(sparse).unsupported_quantization == (
        f"{where}.sparsity_config.format: 'sparse-24-bitmask' omits zeros, which is not supported"
    )
    packed = load({**fields, "format": "marlin-24"})
    assert packed.unsupported_quantization == f"{where}.format: 'marlin-24' omits zeros, which is not supported"
    dense = load({**fields, "sparsity_config": {"format": "dense", "sparsity_structure": "2:4"}})
    assert (dense.unsupported_quantization, dense.notes) == ("", ())


@pytest.mark.parametrize(
    ("quantization", "error"),
    [
        ("int8", "quantization_config: must be a mapping; got 'int8'"),
        ({"quant_method": "gptq"}, "quantization_config.bits: is missing"),
        ({"quant_method": "gptq", "bits": "four"},
         "quantization_config.bits: must be a whole number of at least 1; got 'four'"),
        ({"quant_method": "gptq", "bits": 16}, "quantization_config.bits: must be at most 8; got 16"),
        ({"quant_method": "gptq", "bits": 4, "group_size": -2},
         "quantization_config.group_size: must be a whole number of at least -1; got -2"),
        ({"quant_method": "fp8", "weight_block_size": 128},
         "quantization_config.weight_block_size: must be two whole numbers, rows and columns; got 128"),
        ({"quant_method": "fp8", "weight_block_size": [128, 0]},
         "quantization_config.weight_block_size: must be two whole numbers, rows and columns; got [128, 0]"),
        ({"quant_method": "fp8", "activation_scheme": "x"},
         "quantization_config.activation_scheme: must be one of dynamic, static; got 'x'"),
        ({"quant_method": "fp8", "modules_to_not_convert": "lm_head"},
         "quantization_config.modules_to_not_convert: must be a list of texts; got 'lm_head'"),
        ({"quant_method": "compressed-tensors", "config_groups": {}, "ignore": ["re:("]},
         "quantization_config: '(' is not a regular expression: missing ), unterminated subpattern"),
        ({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": {"lm_head": "FP8"}},
         "quantization_config.quantized_layers.lm_head: must be a mapping; got 'FP8'"),
    ],
)  # fmt: skip
def test_invalid_quantization_config_is_refused(load, tmp_path, quantization, error):
    with pytest.raises(InputError) as caught:
        load(quantization)
    assert str(caught.value) == f"{tmp_path}/config.json: {error}"


def test_the_surveys_accounting_has_one_precision(load):
    uniform = load(FP8)
    assert analyze(uniform, "h100-sxm", accounting="survey").inputs["quant"] == "published: fp8 blocks of 128x128"
    mixed = load({**FP8, "modules_to_not_convert": ["self_attn"]})
    with pytest.raises(InputError) as caught:
        analyze(mixed, "h100-sxm", accounting="survey")
    assert str(caught.value) == (
        f"accounting survey has one precision for all operators, and {mixed.name} is published in several; "
        "give one with --quant, such as W16A16"
    )
    assert analyze(mixed, "h100-sxm", accounting="survey", quant="W16A16").inputs["quant"] == "W16A16"
