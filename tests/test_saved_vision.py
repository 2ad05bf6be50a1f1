"""Configs of models that see, as they are written and as transformers saves them again, against the parameters of its
classes on the meta device. Needs the extra `oracle`; skipped without it.
"""

from __future__ import annotations

import json
import warnings

import pytest

from llmviewer.precision import BF16

from .strategies import built

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "vocab_size": 100,
}
SEEN = {"hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 5, "num_attention_heads": 4}
CLIP = {**SEEN, "model_type": "clip_vision_model", "image_size": 28, "patch_size": 14}
SIGLIP = {**SEEN, "model_type": "siglip_vision_model", "image_size": 28, "patch_size": 14, "vision_use_head": False}
INTERN = {**SEEN, "model_type": "internvl_vision", "image_size": [56, 56], "patch_size": [14, 14]}
GLM = {"depth": 3, "hidden_size": 64, "num_heads": 4, "out_hidden_size": 96, "intermediate_size": 80}
QWEN = {"depth": 2, "hidden_size": 48, "num_heads": 4, "out_hidden_size": 64, "intermediate_size": 80}
DELTA = {"num_key_value_heads": 2, "head_dim": 32, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
         "linear_key_head_dim": 16, "linear_value_head_dim": 16}  # fmt: skip
EXPERTS = {"moe_intermediate_size": 32, "n_routed_experts": 8, "num_experts_per_tok": 2}


def _qwen(**more):
    return {"model_type": "qwen2", **SIZES, "num_key_value_heads": 2, "tie_word_embeddings": False, **more}


CONFIGS = {
    "internvl": {"text_config": _qwen(), "vision_config": INTERN, "tie_word_embeddings": False},
    "internvl tied": {"text_config": _qwen(tie_word_embeddings=True), "vision_config": INTERN},
    "internvl of 6B": {
        "text_config": {**_qwen(), "model_type": "qwen3", "head_dim": 32},
        "vision_config": {**INTERN, "attention_bias": True, "use_qk_norm": True, "norm_type": "rms_norm",
                          "use_mask_token": True, "use_absolute_position_embeddings": False},
        "tie_word_embeddings": False,
    },
    "paligemma": {"text_config": {"model_type": "gemma", **SIZES, "num_key_value_heads": 1}, "vision_config": SIGLIP,
                  "projection_dim": 64},
    "paligemma 2": {"text_config": {"model_type": "gemma2", **SIZES, "num_key_value_heads": 2}, "vision_config": SIGLIP,
                    "projection_dim": 64},
    "llava_next": {"text_config": {"model_type": "mistral", **SIZES, "num_key_value_heads": 2}, "vision_config": CLIP,
                   "image_grid_pinpoints": [[28, 56], [56, 56]]},
    "llava_next of text by default": {"text_config": {"model_type": "mistral", "num_hidden_layers": 2},
                                      "vision_config": CLIP, "image_grid_pinpoints": [[28, 28]]},
    "llava_next of several layers": {
        "text_config": {"model_type": "granite", **SIZES, "tie_word_embeddings": True}, "vision_config": SIGLIP,
        "tie_word_embeddings": True, "vision_feature_layer": [-4, -2, -1], "vision_feature_select_strategy": "full",
        "image_grid_pinpoints": [[28, 56], [56, 56]],
    },
    "llava_onevision": {"text_config": _qwen(tie_word_embeddings=True), "vision_config": {**SIGLIP, "image_size": 384},
                        "tie_word_embeddings": False},
    "qwen3_5": {"text_config": {**SIZES, **DELTA}, "vision_config": QWEN},
    "qwen3_5 tied": {"text_config": {**SIZES, **DELTA}, "vision_config": QWEN, "tie_word_embeddings": True},
    "glm4v": {"text_config": {**SIZES, "num_key_value_heads": 2}, "vision_config": GLM},
    "glm4v tied": {"text_config": {**SIZES, "num_key_value_heads": 2}, "tie_word_embeddings": True,
                   "vision_config": {**GLM, "attention_bias": True, "spatial_merge_size": 3, "image_size": 56}},
    "glm4v_moe": {"text_config": {**SIZES, **EXPERTS, "num_key_value_heads": 2, "head_dim": 32}, "vision_config": GLM},
    "glm46v": {"text_config": {"model_type": "glm4v_moe_text", **SIZES, **EXPERTS, "num_key_value_heads": 2},
               "vision_config": {"model_type": "glm4v_moe_vision", **GLM}},
}  # fmt: skip


@pytest.mark.parametrize("name", CONFIGS)
def test_parameters_equal_those_of_transformers_however_a_config_is_saved(name):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    import torch
    from transformers import AutoConfig, AutoModelForImageTextToText

    fields = {"model_type": name.partition(" ")[0], **CONFIGS[name]}
    with warnings.catch_warnings(action="ignore"), torch.device("meta"):
        config = AutoConfig.for_model(**json.loads(json.dumps(fields)))
        model = AutoModelForImageTextToText.from_config(config)
        model.tie_weights()
    theirs = sum(parameter.numel() for parameter in model.parameters())
    for saved in (fields, config.to_diff_dict(), config.to_dict()):
        assert built(BF16, **json.loads(json.dumps(saved, default=str))).parameters == theirs
