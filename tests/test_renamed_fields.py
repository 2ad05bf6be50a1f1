"""A config that transformers 5.23 writes is the model that it read: fields are renamed, moved or spelt out."""

from __future__ import annotations

import pytest

from llmviewer._layout import data_dir
from llmviewer.architectures import builder
from llmviewer.documents import Section, read_yaml
from llmviewer.errors import InputError
from llmviewer.graph import Graph
from llmviewer.model_files import load_model
from llmviewer.precision import BF16

# What it writes in the place of what it read; None where it leaves a field out. A function makes it of the old value.
WORDS = {"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe"}


def _words(config):
    return [WORDS[letter] for letter in config["hybrid_override_pattern"]]


def _wide_layers(**fields):
    def each(config):
        return {f"{index:02}": fields for index, kind in enumerate(config["layer_types"]) if kind == "full_attention"}

    return each


def _all_indexed(config):
    return ["indexed_attention"] * config["num_hidden_layers"]


NEMOTRON_H = {"hybrid_override_pattern": None, "num_hidden_layers": None, "layers_block_type": _words}
QWEN3_MOE = {"num_experts": None, "num_local_experts": lambda config: config["num_experts"]}
GEMMA_4 = {"global_head_dim": None, "num_global_key_value_heads": None}
REWRITTEN = {
    "qwen3-30b-a3b": QWEN3_MOE,
    "qwen3-235b-a22b": QWEN3_MOE,
    "qwen3-coder-480b-a35b": QWEN3_MOE,
    "qwen3-vl-30b-a3b": QWEN3_MOE,
    "nemotron-3-nano-30b-a3b": NEMOTRON_H,
    "nemotron-3-super-120b-a12b": NEMOTRON_H,
    "nemotron-nano-9b-v2": NEMOTRON_H,
    # It writes fields of experts of models that have none, and the class's other defaults with them.
    "nemotron-h-56b": NEMOTRON_H
    | {"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 7688, "moe_latent_size": None},
    "flan-t5-base": {"tie_word_embeddings": True, "scale_decoder_outputs": False},
    "glm-5": {"layer_types": _all_indexed},
    "glm-5.2": {"layer_types": _all_indexed},
    "deepseek-v3.2": {"layer_types": _all_indexed, "mlp_bias": False},
    "ling-3.0-flash": {
        "num_experts_per_tok": None,
        "num_experts_per_token": 8,
        "n_group": None,
        "num_expert_group": 8,
        "norm_topk_prob": None,
        "moe_renormalize": True,
        "head_dim": 64,
        "linear_head_dim": 128,
        "linear_num_heads": 32,
        "linear_conv_kernel_dim": 4,
    },
    "gemma-4-31b": GEMMA_4 | {"per_layer_config": _wide_layers(head_dim=512, num_key_value_heads=4)},
    "gemma-4-26b-a4b": GEMMA_4 | {"per_layer_config": _wide_layers(head_dim=512, num_key_value_heads=2)},
    "gemma-4-e2b": GEMMA_4 | {"per_layer_config": _wide_layers(head_dim=512)},
}


def _built(config):
    section = Section(config, "config.json")
    graph = builder(section)(section, BF16).check()
    return graph, section


def _published(name):
    return dict(read_yaml(data_dir("models") / f"{name}.yaml").section("config").data)


def _rewritten(name):
    config = _published(name)
    made = {key: new(config) if callable(new) else new for key, new in REWRITTEN[name].items()}
    return {key: value for key, value in (config | made).items() if value is not None}


@pytest.mark.parametrize("name", REWRITTEN)
def test_resaved_configs_give_the_same_model(name):
    graph, section = _built(_rewritten(name))
    assert Graph(graph.blocks).parameters == load_model(name).parameters
    assert graph == _built(_published(name))[0]
    assert not {key for key in REWRITTEN[name] if key in section.unread()}


def test_text_parts_have_their_other_names_too():
    config = _published("qwen3-vl-30b-a3b-vision")
    text = dict(config["text_config"])
    text["num_local_experts"] = text.pop("num_experts")
    assert _built(config | {"text_config": text})[0] == _built(config)[0]


def test_errors_name_fields_as_the_file_has_them():
    config = _rewritten("qwen3-30b-a3b") | {"num_local_experts": 0}
    with pytest.raises(InputError, match="num_local_experts: must be a whole number of at least 1"):
        _built(config)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        (
            "nemotron-nano-9b-v2",
            {"layers_block_type": ["full_attention", "conv"]},
            "layers_block_type: must be made of .*; got 'conv'",
        ),
        (
            "gemma-4-31b",
            {"per_layer_config": {"60": {"head_dim": 512}}},
            "per_layer_config.60: must be the index of one of the 60 layers",
        ),
        (
            "glm-5",
            {"layer_types": ["full_attention"] * 78},
            "layer_types: must be made of deepseek_sparse_attention and indexed_attention",
        ),
    ],
)
def test_invalid_per_layer_configs_are_refused(name, changes, message):
    with pytest.raises(InputError, match=message):
        _built(_rewritten(name) | changes)


def test_unread_per_layer_fields_are_reported():
    config = _rewritten("gemma-4-31b")
    each = {index: fields | {"sliding_window": 1} for index, fields in config["per_layer_config"].items()}
    _, section = _built(config | {"per_layer_config": each})
    assert "per_layer_config.05.sliding_window" in section.unread()


UNIFIED = {  # two layers of Gemma 4's unified text part, small
    "model_type": "gemma4_unified_text",
    "vocab_size": 100,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"],
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_global_key_value_heads": 1,
    "head_dim": 8,
    "global_head_dim": 16,
    "attention_k_eq_v": True,
}


def test_the_unified_model_has_no_embeddings_of_layers():
    """Per layer 4 norms of 32 and an MLP of 48; 4 + 2 x 2 heads of 8, and 4 + 1 of 16, whose values are its keys."""
    each = 4 * 32 + 3 * 32 * 48
    local = 32 * 8 * (2 * 4 + 2 * 2) + 2 * 8
    wide = 32 * 16 * (2 * 4 + 1) + 2 * 16
    graph, _ = _built(UNIFIED)
    assert graph.parameters == 100 * 32 + 32 + 2 * each + local + wide
    assert _built({"model_type": "gemma4_unified", "text_config": UNIFIED})[0] == graph
