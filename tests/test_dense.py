"""Dense decoders: what sets each family apart from LLaMA, against counts by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from llmviewer.architectures.blocks.family import DecoderFamily, ExpertFields
from llmviewer.architectures.llama import FAMILIES
from llmviewer.errors import InputError
from llmviewer.forms import evaluate
from llmviewer.graph import Graph
from llmviewer.model import kv_cache_bytes
from llmviewer.model_files import load_model, model_names
from llmviewer.operators.attention import QK, Softmax
from llmviewer.operators.base import Operator, Role
from llmviewer.operators.elementwise import Add, Norm, Rope
from llmviewer.operators.masks import CAUSAL, Causal
from llmviewer.workload import Workload

from .cases import for_each
from .strategies import built

SMALL = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
}


def small(**config: object) -> Graph:
    return built(**SMALL | config)


def layer(graph: Graph, name: str = "layer") -> dict[str, Operator]:
    """The operators of one kind of layer."""
    (block,) = (block for block in graph.blocks if block.name == name)
    return {op.name: op for op in block.operators}


def layers(graph: Graph) -> dict[str, int]:
    """How many layers there are of each kind."""
    return {block.name: block.repeat for block in graph.blocks if block.layers}


def shape(op: Operator, part: str = "weight") -> tuple[int, ...]:
    return next(w.shape for w in op.weights if w.name == f"{op.name}.{part}")


@for_each("name", model_names)
def test_kinds_of_layer_have_names_of_their_own(name: str) -> None:
    names = [block.name for block in load_model(name).graph.blocks]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("name", "local", "everywhere", "window"),
    [
        ("gemma-2-2b", 13, 13, 4096),  # every other one of 26
        ("gemma-2-9b", 21, 21, 4096),
        ("gemma-3-1b", 22, 4, 512),  # 26 = 4 * 6 + 2: five local ones and a global one, four times, then two local
        ("gemma-3-27b", 52, 10, 1024),  # 62 = 10 * 6 + 2
        ("command-r7b", 24, 8, 4096),  # three local ones and a global one, eight times
        ("olmo-3-7b", 24, 8, 4096),
        ("exaone-4.0-32b", 48, 16, 4096),
    ],
)
def test_layers_with_a_window_and_layers_without(name: str, local: int, everywhere: int, window: int) -> None:
    graph = load_model(name).graph
    assert layers(graph) == {"local": local, "global": everywhere}
    assert layer(graph, "local")["qk_matmul"].heads.mask == Causal(window)
    assert layer(graph, "global")["qk_matmul"].heads.mask == CAUSAL


@pytest.mark.parametrize(
    ("name", "context", "expected"),
    [
        # (layers * tokens kept) * kv heads * head * (key and value) * 2 B
        ("gemma-2-9b", 2048, (42 * 2048) * 8 * 256 * 2 * 2),
        ("gemma-2-9b", 32768, (21 * 4096 + 21 * 32768) * 8 * 256 * 2 * 2),
        ("gemma-3-27b", 131072, (52 * 1024 + 10 * 131072) * 16 * 128 * 2 * 2),
        ("gemma-3-1b", 32768, (22 * 512 + 4 * 32768) * 1 * 256 * 2 * 2),
        ("command-r7b", 131072, (24 * 4096 + 8 * 131072) * 8 * 128 * 2 * 2),
        ("olmo-3-7b", 65536, (24 * 4096 + 8 * 65536) * 32 * 128 * 2 * 2),
        ("phi-3-mini-4k", 4096, (32 * 2047) * 32 * 96 * 2 * 2),  # all layers have the window
        ("starcoder2-3b", 16384, (30 * 4096) * 2 * 128 * 2 * 2),
        ("smollm3-3b", 65536, (36 * 65536) * 4 * 128 * 2 * 2),  # layers without positions keep all
        ("starcoder", 8192, (40 * 8192) * 1 * 128 * 2 * 2),
    ],
)
def test_kv_cache_at_a_long_context(name: str, context: int, expected: int) -> None:
    assert kv_cache_bytes(load_model(name).graph, batch=1, context=context) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gemma-2-9b", 42 * 8 * 256 * 2 * 2),
        ("qwen3-0.6b", 28 * 8 * 128 * 2 * 2),  # heads of 128 at a width of 1024 / 16
        ("chatglm3-6b", 28 * 2 * 128 * 2 * 2),
        ("minitron-4b", 32 * 8 * 128 * 2 * 2),
        ("stablelm-2-12b", 40 * 8 * 160 * 2 * 2),
        ("command-r", 40 * 64 * 128 * 2 * 2),
        ("mpt-7b", 32 * 32 * 128 * 2 * 2),
    ],
)
def test_kv_bytes_per_token_within_any_window(name: str, expected: int) -> None:
    assert load_model(name).kv_bytes_per_token == expected


@pytest.mark.parametrize(
    ("name", "rotated", "head"),
    [
        ("phi-2", 32, 80),
        ("phi-4-mini", 96, 128),
        ("pythia-160m", 16, 64),
        ("redpajama-incite-3b", 80, 80),
        ("stablelm-2-1.6b", 16, 64),
        ("glm-4-9b", 64, 128),
        ("chatglm3-6b", 64, 128),
        ("minitron-4b", 64, 128),
        ("codegen-350m", 32, 64),
        ("qwen3-0.6b", 128, 128),
    ],
)
def test_part_of_a_head_is_rotated(name: str, rotated: int, head: int) -> None:
    rope = layer(load_model(name).graph)["rope"]
    heads = rope.heads
    assert (rope.rotary_dim, heads.head_dim) == (rotated, head)
    decode = Workload.decode(batch=3, kv_len=7)
    assert evaluate(rope.work().ops, decode) == 3 * 3 * (heads.num_heads + heads.num_kv_heads) * rotated


@pytest.mark.parametrize(
    ("name", "out", "width", "bias"),
    [
        ("phi-3-mini-4k", 3 * 3072, 3072, False),
        ("phi-4", 5120 + 2 * 10 * 128, 5120, False),
        ("starcoder", 6144 + 2 * 128, 6144, True),  # one key-value head
        ("chatglm3-6b", 4096 + 2 * 2 * 128, 4096, True),
        ("internlm2-7b", 4096 + 2 * 8 * 128, 4096, False),
        ("baichuan2-13b", 3 * 5120, 5120, False),
        ("mpt-7b", 3 * 4096, 4096, False),
        ("pythia-160m", 3 * 768, 768, True),
        ("codegen-350m", 3 * 1024, 1024, False),
    ],
)
def test_queries_keys_and_values_from_one_projection(name: str, out: int, width: int, *, bias: bool) -> None:
    operators = layer(load_model(name).graph)
    assert shape(operators["qkv_proj"]) == (out, width)
    assert len(operators["qkv_proj"].weights) == 1 + bias
    assert not {"q_proj", "k_proj", "v_proj"} & operators.keys()


@pytest.mark.parametrize(
    ("name", "inner", "width"),
    [("phi-3-mini-4k", 8192, 3072), ("glm-4-9b", 13696, 4096), ("chatglm3-6b", 13696, 4096)],
)
def test_gate_and_up_from_one_projection(name: str, inner: int, width: int) -> None:
    operators = layer(load_model(name).graph)
    assert shape(operators["gate_up_proj"]) == (2 * inner, width)
    assert [t.name for t in operators["mlp_act"].inputs] == ["gate_proj", "up_proj"]


def places(graph: Graph, name: str = "layer") -> list[str]:
    """Norms of the whole width and additions of one layer, in their order."""
    width = graph.blocks[0].operators[-1].outputs[0].width
    found = (op for op in layer(graph, name).values() if isinstance(op, Norm | Add))
    return [op.name for op in found if op.outputs[0].width == width and op.name not in ("q_norm", "k_norm")]


PRE = ["attn_norm", "attn_add", "mlp_norm", "mlp_add"]
SANDWICH = ["attn_norm", "attn_post_norm", "attn_add", "mlp_norm", "mlp_post_norm", "mlp_add"]


@pytest.mark.parametrize(
    ("name", "kind", "expected"),
    [
        ("qwen3-8b", "layer", PRE),
        ("stablelm-2-1.6b", "layer", PRE),
        ("redpajama-incite-3b", "layer", PRE),
        ("phi-2", "layer", ["attn_norm", "mlp_add"]),  # one norm for both branches, one sum of three
        ("stablelm-2-12b", "layer", ["attn_norm", "mlp_add"]),
        ("command-r-plus", "layer", ["attn_norm", "mlp_add"]),
        ("command-r7b", "global", ["attn_norm", "mlp_add"]),
        ("pythia-1b", "layer", ["attn_norm", "mlp_norm", "mlp_add"]),  # a norm for each branch
        ("olmo-2-7b", "layer", ["attn_norm", "attn_add", "mlp_norm", "mlp_add"]),  # norms after the branches
        ("gemma-2-2b", "local", SANDWICH),
        ("gemma-3-4b", "global", SANDWICH),
        ("glm-4-32b-0414", "layer", SANDWICH),
    ],
)
def test_norms_and_additions_follow_the_family_order(name: str, kind: str, expected: list[str]) -> None:
    assert places(load_model(name).graph, kind) == expected


def test_olmo_2_normalizes_branch_outputs_not_inputs() -> None:
    operators = layer(load_model("olmo-2-7b").graph)
    assert [t.name for t in operators["q_proj"].inputs] == ["hidden"]
    assert [t.name for t in operators["attn_norm"].inputs] == ["o_proj"]
    assert [t.name for t in operators["attn_add"].inputs] == ["hidden", "attn_norm"]


def test_branches_in_parallel_read_the_same_and_are_added_at_once() -> None:
    one, two = layer(load_model("phi-2").graph), layer(load_model("pythia-1b").graph)
    assert one["q_proj"].inputs == one["up_proj"].inputs == one["attn_norm"].outputs
    assert two["qkv_proj"].inputs == two["attn_norm"].outputs
    assert two["up_proj"].inputs == two["mlp_norm"].outputs
    for operators in (one, two):
        assert [t.name for t in operators["mlp_add"].inputs] == ["hidden", "o_proj", "down_proj"]


@pytest.mark.parametrize(
    ("name", "kind", "weights"),
    [
        ("qwen3-8b", "layer", {"q_norm.weight": (128,), "k_norm.weight": (128,)}),  # shared by all heads
        ("gemma-3-4b", "local", {"q_norm.weight": (256,), "k_norm.weight": (256,)}),
        ("olmo-2-7b", "layer", {"q_norm.weight": (4096,), "k_norm.weight": (4096,)}),  # all heads together
        ("command-r-plus", "layer", {"q_norm.weight": (96 * 128,), "k_norm.weight": (8 * 128,)}),  # each its own
        ("stablelm-2-12b", "layer", {"q_norm.weight": (32 * 160,), "k_norm.weight": (8 * 160,)}),
    ],
)
def test_norms_of_queries_and_keys(name: str, kind: str, weights: dict[str, tuple[int, ...]]) -> None:
    operators = layer(load_model(name).graph, kind)
    found = {w.name: w.shape for op in ("q_norm", "k_norm") for w in operators[op].weights}
    assert found == weights


@pytest.mark.parametrize(
    ("name", "learned", "ops"),
    [
        ("olmo-7b", [], 5),  # mean, subtract, square, sum, scale
        ("command-r", ["weight"], 6),
        ("mpt-7b", ["weight"], 6),
        ("minitron-4b", ["weight", "bias"], 7),
        ("stablelm-3b", ["weight", "bias"], 7),
        ("gemma-2b", ["weight"], 4),  # square, sum, scale, weight: 1 + weight is known before
    ],
)
def test_norms_have_the_learned_weights_of_their_family(name: str, learned: list[str], ops: int) -> None:
    norm = layer(load_model(name).graph)["attn_norm"]
    assert [w.name.split(".")[1] for w in norm.weights] == learned
    assert norm.ops_per_element == ops


@pytest.mark.parametrize(
    ("name", "kinds"),
    [("smollm3-3b", {"rope": 27, "nope": 9}), ("command-r7b", {"local": 24, "global": 8})],
)
def test_layers_without_positions_cache_keys_as_they_are_projected(name: str, kinds: dict[str, int]) -> None:
    graph = load_model(name).graph
    assert layers(graph) == kinds
    rotated, plain = (layer(graph, kind) for kind in kinds)
    assert rotated["k_proj"].outputs[0].role is Role.ACTIVATION
    assert rotated["rope"].outputs[1].role is Role.KV_CACHE
    assert not [op for op in plain.values() if isinstance(op, Rope)]
    assert plain["k_proj"].outputs[0].role is Role.KV_CACHE


def test_the_fourth_the_eighth_and_so_on_of_smollm3_are_those_without_positions() -> None:
    (block,) = (block for block in load_model("smollm3-3b").graph.blocks if block.name == "nope")
    assert block.layers == (3, 7, 11, 15, 19, 23, 27, 31, 35)


@pytest.mark.parametrize(
    ("name", "alibi"),
    [
        ("baichuan-7b", False),
        ("baichuan-13b", True),
        ("baichuan2-7b", False),
        ("baichuan2-13b", True),
        ("mpt-7b", True),
    ],
)
def test_positions_as_biases_on_the_scores(name: str, *, alibi: bool) -> None:
    operators = layer(load_model(name).graph)
    assert ("rope" in operators) is not alibi
    softmax = operators["softmax"]
    assert isinstance(softmax, Softmax)
    assert softmax.bias is alibi


@pytest.mark.parametrize(
    ("name", "gated", "ops"),
    [
        ("gemma-2b", True, 9 + 1),  # GeLU by tanh, times up
        ("qwen3-8b", True, 4 + 1),
        ("minitron-4b", False, 2),  # max(x, 0) squared
        ("pythia-1b", False, 5),
        ("starcoder2-3b", False, 9),
    ],
)
def test_activations(name: str, *, gated: bool, ops: int) -> None:
    operators = layer(load_model(name).graph)
    assert ("gate_proj" in operators) is gated
    assert operators["mlp_act"].ops_per_element == ops


def test_the_head_of_phi_2_has_a_bias_and_that_of_gemma_is_the_embedding() -> None:
    biased, tied = (load_model(name).graph.blocks[-1].operators[-1] for name in ("phi-2", "gemma-7b"))
    assert [w.shape for w in biased.weights] == [(51200, 2560), (51200,)]
    assert [w.tied for w in tied.weights] == [True]


def test_parameters_of_mimo_are_those_of_its_checkpoint_less_the_layer_that_predicts_a_second_token() -> None:
    """7,833,409,536 with it: a layer like the others, a projection of two hidden states to one, and three norms."""
    graph = load_model("mimo-7b").graph
    one = sum(w.numel for op in layer(graph).values() for w in op.weights)
    assert graph.parameters + one + 2 * 4096 * 4096 + 3 * 4096 == 7833409536


def test_windows_of_qwen3_begin_after_the_full_layers() -> None:
    graph = small(model_type="qwen3", use_sliding_window=True, sliding_window=16, max_window_layers=5)
    assert layers(graph) == {"global": 5, "local": 3}
    assert kv_cache_bytes(graph, batch=1, context=100) == (5 * 100 + 3 * 16) * 2 * 128 * 2 * 2
    assert layers(small(model_type="qwen3", use_sliding_window=False, sliding_window=16)) == {"layer": 8}


@pytest.mark.parametrize("model_type", ["gemma2", "gemma3_text", "cohere2", "olmo3"])
def test_layer_types_select_the_layers_with_a_window(model_type: str) -> None:
    kinds = ["full_attention", "sliding_attention"] * 3 + ["full_attention"] * 2
    graph = small(model_type=model_type, layer_types=kinds, sliding_window=16)
    assert layers(graph) == {"global": 5, "local": 3}
    assert {block.name: block.layers for block in graph.blocks}["local"] == (1, 3, 5)


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [("LLLG", {"local": 6, "global": 2}), ("LG", {"local": 4, "global": 4}), (2, {"local": 4, "global": 4})],
)
def test_exaone_4_spells_its_pattern(pattern: str | int, expected: dict[str, int]) -> None:
    assert layers(small(model_type="exaone4", sliding_window=16, sliding_window_pattern=pattern)) == expected


def test_exaone_4_without_a_window_rotates_everywhere() -> None:
    graph = small(model_type="exaone4", sliding_window=None)
    assert layers(graph) == {"layer": 8}
    assert "rope" in layer(graph)


def test_partial_rotary_factor_is_read_from_rope_parameters() -> None:
    nested = small(model_type="glm", head_dim=16, rope_parameters={"rope_theta": 1.0, "partial_rotary_factor": 0.25})
    assert layer(nested)["rope"].rotary_dim == 4
    assert layer(small(model_type="glm", head_dim=16))["rope"].rotary_dim == 8


def test_kv_heads_of_mpt() -> None:
    def heads(**attn: object) -> int:
        graph = small(model_type="mpt", d_model=64, n_heads=4, n_layers=2, attn_config=attn)
        return layer(graph)["qk_matmul"].heads.num_kv_heads

    assert heads() == 4
    assert heads(attn_type="multiquery_attention") == 1
    assert heads(attn_type="grouped_query_attention", kv_n_heads=2) == 2


def test_mpt_without_alibi_has_a_table_of_positions_or_rotates() -> None:
    sizes = {"model_type": "mpt", "d_model": 64, "n_heads": 4, "n_layers": 2, "max_seq_len": 50}
    without = small(**sizes, attn_config={"alibi": False})
    assert without.parameters == small(**sizes).parameters + 50 * 64
    rotated = small(**sizes, attn_config={"rope": True})
    assert rotated.parameters == small(**sizes).parameters
    assert layer(rotated)["rope"].rotary_dim == 16


def test_the_text_part_of_gemma_3_with_pictures(tmp_path) -> None:
    """text_config holds what differs from the class; the class of a language model needs no vision_config."""
    text = {"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34}
    config = {
        "model_type": "gemma3",
        "architectures": ["Gemma3ForCausalLM"],
        "torch_dtype": "bfloat16",
        "mm_tokens_per_image": 256,
        "text_config": text | {"sliding_window": 1024},
    }
    path = tmp_path / "gemma.json"
    path.write_text(json.dumps(config))
    model = load_model(str(path))
    assert model.graph == load_model("gemma-3-4b").graph
    assert model.notes == ("without vision_config: counts as the rest of the model alone",)


@pytest.mark.parametrize(
    "fields",
    [
        {"model_type": "gemma2", "cache_implementation": "hybrid", "hidden_act": "gelu_pytorch_tanh"},
        {"model_type": "gemma3_text", "rope_local_base_freq": 10000, "attn_logit_softcapping": None},
        {"model_type": "phi3", "original_max_position_embeddings": 4096, "full_attn_mod": 1, "lm_head_bias": False},
        {"model_type": "starcoder2", "mlp_type": "default", "norm_type": "layer_norm", "residual_dropout": 0.1},
        {"model_type": "cohere", "logit_scale": 0.0625, "use_qk_norm": False},
        {"model_type": "granite", "embedding_multiplier": 12.0, "logits_scaling": 16.0, "mlp_bias": False},
        {"model_type": "minicpm", "scale_emb": 12, "dim_model_base": 256, "scale_depth": 1.4},
        {"model_type": "internlm2", "attn_implementation": "eager", "bias": False},
        {"model_type": "baichuan", "model_max_length": 4096, "_from_model_config": True},
        {"model_type": "gpt_neox", "num_key_value_heads": None, "rotary_emb_base": 10000, "classifier_dropout": 0.1},
        {"model_type": "olmo", "clip_qkv": 8.0},
        {"model_type": "nemotron", "kv_channels": 16, "rope_percent": 0.5, "partial_rotary_factor": 0.5},
        {"model_type": "smollm3", "layer_types": ["full_attention"] * 8, "no_rope_layers": [1, 1, 1, 0] * 2},
    ],
    ids=lambda fields: fields["model_type"],
)
def test_fields_of_published_files_that_cost_nothing_are_not_reported(tmp_path, fields: dict[str, object]) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(SMALL | {"torch_dtype": "float16"} | fields))
    assert load_model(str(path)).notes == ()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"model_type": "gemma2", "layer_types": ["full_attention"] * 7},
            "config.json: layer_types: must be 8 of sliding_attention and full_attention; got 7 of them",
        ),
        (
            {"model_type": "olmo3", "layer_types": ["chunked_attention"] * 8},
            "config.json: layer_types: must be 8 of sliding_attention and full_attention; got 'chunked_attention'",
        ),
        (
            {"model_type": "phi", "partial_rotary_factor": 1.5},
            "config.json: partial_rotary_factor: must be a share from 0 to 1; got 1.5",
        ),
        (
            {"model_type": "glm4", "rope_parameters": {"partial_rotary_factor": -1}},
            "config.json: rope_parameters.partial_rotary_factor: must be a share from 0 to 1; got -1",
        ),
        (
            {"model_type": "smollm3", "no_rope_layers": [1, 0]},
            "config.json: no_rope_layers: must be a list of 8 times 0 or 1",
        ),
        (
            {"model_type": "exaone4", "sliding_window_pattern": "LXG"},
            "config.json: sliding_window_pattern: must be a whole number or letters L and G; got 'LXG'",
        ),
        (
            {"model_type": "minicpm", "num_experts": 8},
            "config.json: num_experts: no architecture for a MiniCPM with experts",
        ),
        (
            {"model_type": "phi3", "mlp_bias": True},
            "config.json: mlp_bias: must be false: no model of this architecture has a bias",
        ),
        (
            {"model_type": "mimo", "use_sliding_window": True},
            "config.json: use_sliding_window: must be false: no published model of this architecture has a window",
        ),
        (
            {"model_type": "codegen", "n_embd": 64, "n_head": 4, "n_layer": 2, "rotary_dim": 32},
            "config.json: rotary_dim: must be at most the 16 of a head; got 32",
        ),
        ({"model_type": "chatglm", "num_layers": 2}, "config.json: ffn_hidden_size: is missing"),  # the first ChatGLM
        (
            {"model_type": "stablelm", "num_key_value_heads": 3},
            "config.json: num_attention_heads: must be a multiple of the 3 key-value heads; got 4",
        ),
    ],
    ids=lambda value: value["model_type"] if isinstance(value, dict) else "",
)
def test_invalid_dense_configs_are_refused_in_one_line(fields: dict[str, object], message: str) -> None:
    with pytest.raises(InputError) as raised:
        small(**fields)
    assert str(raised.value) == message


def test_window_reduces_bytes_and_ops_of_a_decode_step() -> None:
    graph = load_model("gemma-3-1b").graph
    step = Workload.decode(batch=1, kv_len=32768)
    scores = {name: layer(graph, name)["qk_matmul"] for name in ("local", "global")}
    assert all(isinstance(op, QK) for op in scores.values())
    ops = {name: evaluate(op.work().ops, step) for name, op in scores.items()}
    read = {name: evaluate(op.work().kv_bytes, step) for name, op in scores.items()}
    assert ops == {"local": 2 * 4 * 256 * 512, "global": 2 * 4 * 256 * 32768}
    assert read == {"local": 2 * 256 * 512, "global": 2 * 256 * 32768}


def test_each_row_of_the_table_of_families_is_a_network_of_its_own() -> None:
    rows = [repr(replace(family, also=())) for family in FAMILIES.values()]
    assert len(rows) == len(set(rows))
    assert repr(DecoderFamily()) == repr(replace(FAMILIES["llama"], also=()))


@pytest.mark.parametrize(
    ("row", "wrong"),
    [
        ({"act": "gelu_erf"}, "act must be one of relu, .*; got 'gelu_erf'"),
        ({"gated": False, "fused_mlp": True}, "fused_mlp is for a gated MLP"),
        ({"experts": ExpertFields(), "gated": False}, "fused_mlp and gated are for an MLP"),
        ({"fused_kqv": True}, "unexpected keyword argument"),
    ],
)  # fmt: skip
def test_a_row_with_flags_that_contradict_each_other_or_are_unknown_is_an_error(row: Any, wrong: str) -> None:
    with pytest.raises((ValueError, TypeError), match=wrong):
        DecoderFamily(**row)


def test_layers_of_a_family_with_windows_are_alike_where_the_window_is_null() -> None:
    assert layers(small(model_type="gemma2", sliding_window=None)) == {"layer": 8}


def test_shared_layers_of_mobilellm_run_twice_and_are_held_once() -> None:
    """With layer_sharing: the same parameters, a cache for each of six runs, and twice the OPs of layers."""
    config: dict[str, Any] = {
        "model_type": "mobilellm", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 100, "share_embedding": True,
    }  # fmt: skip
    once, twice = (built(**config, layer_sharing=sharing) for sharing in (False, True))
    assert once.parameters == twice.parameters == 100 * 64 + 3 * (64 * (2 * 64 + 2 * 32) + 3 * 64 * 128 + 2 * 64) + 64
    assert twice.layers == 2 * once.layers == 6
    assert kv_cache_bytes(twice, batch=1, context=100) == 2 * kv_cache_bytes(once, batch=1, context=100)
