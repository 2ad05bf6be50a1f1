"""Fields that a config leaves out are those of its class in transformers (blocks/class_defaults.json)."""

import json

import pytest

from llmviewer.model_files import load_model

LLAMA_7B = 6_738_415_616  # of the defaults of LlamaConfig
SMALL = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}


@pytest.fixture
def read(tmp_path):
    def load(**config):
        path = tmp_path / "config.json"
        path.write_text(json.dumps({"torch_dtype": "bfloat16", **config}))
        return load_model(str(path))

    return load


def test_empty_config_has_the_class_defaults(read):
    model = read(model_type="llama")
    assert model.parameters == LLAMA_7B
    (note,) = model.notes
    assert "hidden_size 4096" in note
    assert "num_hidden_layers 32" in note
    assert "left out of" in note


@pytest.mark.parametrize(
    ("config", "left_out"),
    [
        ({"model_type": "qwen2_moe", "num_attention_heads": 32}, {"num_key_value_heads": 16}),
        ({"model_type": "gemma3_text", "num_attention_heads": 8}, {"num_key_value_heads": 4, "head_dim": 256}),
        ({"model_type": "falcon_h1", **SMALL, "num_attention_heads": 8}, {"mamba_d_ssm": 1024, "mamba_d_state": 256}),
        ({"model_type": "falcon", **SMALL}, {"multi_query": True, "bias": False, "alibi": False}),
    ],
)
def test_fields_left_out_count_as_if_they_were_written(read, config, left_out):
    assert read(**config).parameters == read(**config, **left_out).parameters


def test_a_field_under_another_name_of_its_class_is_found(read):
    named = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 32, "vocab_size": 100}
    renamed = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 32}
    model = read(model_type="gpt2", vocab_size=100, **renamed)
    assert model.parameters == read(**named).parameters
    assert model.notes == ()


def test_a_section_left_out_of_a_section_is_of_its_class(read):
    text = {"model_type": "qwen2", **SMALL, "num_key_value_heads": 2, "vocab_size": 100}
    known = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
    short, long = ({"model_type": "clip_vision_model", **given} for given in ({}, known))
    one, other = (read(model_type="llava", text_config=text, vision_config=vision) for vision in (short, long))
    assert one.parameters != other.parameters  # CLIPVisionConfig: 768 wide, 12 layers


def test_null_is_no_default(read):
    assert "window" not in read(model_type="mistral", **SMALL, num_key_value_heads=2, sliding_window=None).attention
    assert read(model_type="mistral", **SMALL, num_key_value_heads=2).attention.endswith("4096")
