"""Models that see and do not ship: parameters as transformers counts them of small configs, OPs of towers and
projectors as torch's flop counter has them when the classes run on an image, and what an image puts into the prompt.
"""

from __future__ import annotations

import json
from fractions import Fraction

import pytest

from llmviewer import analyze
from llmviewer.errors import InputError
from llmviewer.forms import evaluate
from llmviewer.model import kv_cache_bytes
from llmviewer.model_files import load_model
from llmviewer.operators.attention import QK, SV
from llmviewer.operators.convolution import Convolution
from llmviewer.operators.images import Patches, Place, RelativePositions
from llmviewer.operators.linear import Linear
from llmviewer.workload import Workload

from .strategies import built

TEXT = {"vocab_size": 1000, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2}  # fmt: skip
TOWER = {"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 3, "num_attention_heads": 2, "image_size": 32,
         "patch_size": 8}  # fmt: skip
SOUND = {"d_model": 16, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 40, "num_mel_bins": 10,
         "output_dim": 64, "downsample_hidden_size": 6}  # fmt: skip
CONFIGS = {
    "phi4_multimodal": TEXT | {
        "picture_size": [600, 1000],
        "vision_config": {"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 3, "num_attention_heads": 2,
                          "image_size": 448, "patch_size": 56, "crop_size": 448},
        "audio_config": {"hidden_size": 16, "intermediate_size": 12, "num_blocks": 2, "num_attention_heads": 2,
                         "ext_pw_out_channel": 16, "depthwise_separable_out_channel": 16, "nemo_conv_channels": 8,
                         "bias_max_distance": 10, "input_size": 10, "time_reduction": 4, "kernel_size": 3},
    },
    "ernie4_5_vl_moe": {
        "text_config": TEXT | {"num_hidden_layers": 3, "moe_intermediate_size": [24, 16], "moe_k": 2,
                               "moe_num_experts": 8, "moe_num_shared_experts": 2},
        "vision_config": {"hidden_size": 24, "intermediate_size": 40, "depth": 3, "num_heads": 2, "patch_size": 8,
                          "image_size": [64, 96]},
    },
    "cohere_compass": {
        "text_config": TEXT | {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1e4}}},
        "vision_config": {"hidden_size": 24, "intermediate_size": 40, "depth": 3, "num_heads": 2, "patch_size": 8,
                          "image_size": [64, 96], "out_hidden_size": 64, "num_position_embeddings": 64,
                          "deepstack_visual_indexes": [0, 2]},
    },
    "vipllava": {
        "text_config": TEXT | {"model_type": "llama"}, "vision_feature_layer": [-2, -3, 1],
        "vision_config": TOWER | {"model_type": "clip_vision_model"},
    },
    "video_llava": {
        "text_config": TEXT | {"model_type": "llama"}, "vision_config": TOWER | {"model_type": "clip_vision_model"},
    },
    "aya_vision": {
        "text_config": TEXT | {"head_dim": 16, "sliding_window": 6}, "alignment_intermediate_size": 48,
        "vision_config": TOWER | {"model_type": "siglip_vision_model"}, "picture_size": [70, 90],
    },
    "paddleocr_vl": {"text_config": TEXT | {"head_dim": 16}, "vision_config": TOWER, "picture_size": [50, 70]},
    "lighton_ocr": {"text_config": TEXT | {"head_dim": 16}, "vision_config": TOWER | {"head_dim": 12}},
    "llava_next_video": {
        "text_config": TEXT | {"head_dim": 16}, "vision_config": TOWER | {"model_type": "clip_vision_model"},
        "image_grid_pinpoints": [[32, 64], [64, 64]], "picture_size": [50, 64],
    },
    "qwen2_audio": {
        "text_config": TEXT | {"model_type": "qwen2"},
        "audio_config": {"num_mel_bins": 10, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 48,
                         "d_model": 12, "max_source_positions": 20},
    },
    "voxtral": {
        "text_config": TEXT | {"head_dim": 16},
        "audio_config": {"num_mel_bins": 10, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48,
                         "hidden_size": 12, "max_source_positions": 20},
    },
    "qwen2_5_omni": {
        "thinker_config": {
            "text_config": TEXT,
            "vision_config": {"hidden_size": 24, "intermediate_size": 40, "depth": 3, "num_heads": 2, "patch_size": 8,
                              "image_size": [64, 96], "out_hidden_size": 64, "window_size": 32,
                              "fullatt_block_indexes": [1]},
            "audio_config": SOUND,
        },
    },
    "qwen3_omni_moe": {
        "thinker_config": {
            "text_config": TEXT | {"head_dim": 16, "moe_intermediate_size": 24, "num_experts": 8,
                                   "num_experts_per_tok": 2},
            "vision_config": {"hidden_size": 24, "intermediate_size": 40, "depth": 3, "num_heads": 2, "patch_size": 8,
                              "image_size": [64, 96], "out_hidden_size": 64, "num_position_embeddings": 64,
                              "deepstack_visual_indexes": [0, 2]},
            "audio_config": SOUND,
        },
    },
    "glm_ocr": {
        "text_config": TEXT | {"head_dim": 24}, "picture_size": [50, 70],
        "vision_config": {"hidden_size": 24, "intermediate_size": 40, "depth": 3, "num_heads": 2, "patch_size": 8,
                          "out_hidden_size": 64},
    },
    "glm5_next": {
        "text_config": TEXT | {"num_attention_heads": 4, "q_lora_rank": 24, "kv_lora_rank": 20, "qk_nope_head_dim": 12,
                               "v_head_dim": 10, "n_routed_experts": 8, "num_experts_per_tok": 2, "index_topk": 32,
                               "moe_intermediate_size": 16, "linear_num_heads": 2, "linear_head_dim": 16,
                               "index_n_heads": 3, "index_head_dim": 16, "num_key_value_heads": 4,
                               "layer_types": ["linear_attention", "indexed_attention"], "pad_token_id": 0},
        "picture_size": [50, 70],
        "vision_config": {"hidden_size": 24, "intermediate_size": 40, "depth": 3, "num_heads": 2, "patch_size": 8,
                          "out_hidden_size": 64, "projection_intermediate_size": 56},
    },
    "qwen4_exp": {
        "text_config": TEXT | {"head_dim": 16, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
                               "shared_expert_intermediate_size": 24, "linear_num_key_heads": 2, "hc_lowrank": 6,
                               "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 12,
                               "full_attention_interval": 2, "indexer_n_heads": 2, "indexer_head_dim": 16,
                               "indexer_budget": 8, "indexer_compress_ratio": 4,
                               "rope_parameters": {"partial_rotary_factor": 0.25}},
        "vision_config": {"hidden_size": 24, "intermediate_size": 40, "depth": 3, "num_heads": 2, "patch_size": 8,
                          "image_size": [64, 96], "out_hidden_size": 64, "num_position_embeddings": 64},
    },
    "hyperclovax_vision_v2": {
        "text_config": TEXT | {"head_dim": 16},
        "vision_config": {"hidden_size": 24, "intermediate_size": 40, "depth": 3, "num_heads": 2, "patch_size": 8,
                          "image_size": [64, 96], "out_hidden_size": 48, "window_size": 32,
                          "fullatt_block_indexes": [1]},
    },
    "lfm3_vl": {
        "text_config": TEXT | {"model_type": "lfm3"}, "projector_hidden_size": 48,
        "vision_config": {"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 5, "num_attention_heads": 2,
                          "num_key_value_heads": 1, "patch_size": 8, "image_size": [64, 96]},
    },
    "hunyuan_vl": {
        "text_config": TEXT | {"head_dim": 16},
        "vision_config": {"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 3, "num_attention_heads": 2,
                          "patch_size": 8, "max_image_size": 64, "text_hidden_size": 64, "image_size": [64, 96]},
    },
    "hy_v4_vl": {
        "text_config": TEXT | {"num_attention_heads": 4, "q_lora_rank": 24, "kv_lora_rank": 20, "qk_nope_head_dim": 12,
                               "qk_rope_head_dim": 8, "v_head_dim": 10, "n_routed_experts": 8,
                               "num_experts_per_tok": 2, "moe_intermediate_size": 16, "index_n_heads": 3,
                               "index_head_dim": 16, "index_topk": 32, "hc_mult": 3, "num_key_value_heads": 4},
        "vision_config": {"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 3, "num_attention_heads": 2,
                          "patch_size": 8, "max_image_size": 64, "out_hidden_size": 64, "image_size": [64, 96]},
    },
    "muse_glimmer": {
        "text_config": TEXT | {"head_dim": 16}, "out_hidden_size": 96, "projector_hidden_size": 48,
        "vision_config": {"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 5, "num_attention_heads": 2,
                          "patch_size": 8, "pos_emb_height": 5, "pos_emb_width": 5, "image_size": [64, 96]},
    },
    "idefics2": {
        "text_config": TEXT | {"model_type": "mistral"}, "picture_size": 392,
        "vision_config": TOWER | {"image_size": 392, "patch_size": 56},
        "perceiver_config": {"hidden_size": 64, "resampler_n_latents": 6, "resampler_depth": 2, "resampler_n_heads": 4,
                             "resampler_head_dim": 12, "num_key_value_heads": 2},
    },
    "blip-2": {
        "text_config": {"model_type": "opt", "vocab_size": 1000, "hidden_size": 64, "word_embed_proj_dim": 64,
                        "ffn_dim": 96, "num_hidden_layers": 2, "num_attention_heads": 4},
        "vision_config": TOWER, "num_query_tokens": 5,
        "qformer_config": {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4,
                           "intermediate_size": 48, "encoder_hidden_size": 24},
    },
    "ovis2": {
        "text_config": TEXT | {"model_type": "qwen2"}, "hidden_size": 64, "vocab_size": 1000,
        "vision_config": TOWER | {"vocab_size": 90, "hidden_stride": 2},
    },
    "janus": {
        "text_config": TEXT | {"model_type": "llama"},
        "vision_config": {"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 2, "image_size": 32,
                          "patch_size": 8, "projection_dim": 64},
        "vq_config": {"base_channels": 32, "latent_channels": 16, "num_embeddings": 50, "projection_dim": 20,
                      "image_token_embed_dim": 64, "channel_multiplier": [1, 2, 4]},
    },
    "deepseek_vl": {
        "text_config": TEXT | {"model_type": "llama"},
        "vision_config": TOWER | {"model_type": "siglip_vision_model", "vision_use_head": False},
    },
    "fuyu": {
        "text_config": {key: value for key, value in TEXT.items() if key != "num_key_value_heads"},
        "patch_size": 8, "picture_size": 32,
    },
    "got_ocr2": {
        "text_config": TEXT | {"model_type": "qwen2"},
        "vision_config": {"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 2, "image_size": 64,
                          "patch_size": 8, "mlp_dim": 40, "window_size": 4, "global_attn_indexes": [2],
                          "output_channels": 10},
    },
    "molmo2": {
        "text_config": TEXT | {"head_dim": 16, "additional_vocab_size": 7}, "picture_size": 80,
        "vision_config": TOWER | {"head_dim": 12, "image_size": [80, 80], "num_hidden_layers": 4},
        "adapter_config": {"vision_feature_layer": [3, 1], "hidden_size": 24, "num_attention_heads": 2,
                           "num_key_value_heads": 2, "head_dim": 12, "intermediate_size": 40, "text_hidden_size": 64},
    },
    "exaone4_5": {
        "text_config": TEXT | {"head_dim": 16},
        "vision_config": {"hidden_size": 32, "intermediate_size": 40, "depth": 3, "num_heads": 4, "patch_size": 8,
                          "num_key_value_heads": 2, "image_size": [64, 96], "out_hidden_size": 64, "window_size": 32,
                          "fullatt_block_indexes": [1]},
    },
    "qianfan_ocr": {"text_config": TEXT | {"head_dim": 16}, "vision_config": TOWER, "picture_size": 32},
    "minicpmv4_6": {
        "text_config": TEXT | {"head_dim": 16, "full_attention_interval": 2, "linear_num_key_heads": 2,
                               "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 12},
        "vision_config": TOWER | {"num_hidden_layers": 4, "image_size": 112, "patch_size": 14}, "insert_layer_id": 1,
    },
    "deepseek_ocr2": {
        "text_config": TEXT | {"num_key_value_heads": 4, "n_routed_experts": 8, "num_experts_per_tok": 2,
                               "moe_intermediate_size": 24, "mlp_layer_types": ["dense", "sparse"]},
        "vision_config": {
            "sam_config": {"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 2, "mlp_dim": 40,
                           "window_size": 16, "global_attn_indexes": [2], "output_channels": 10,
                           "downsample_channels": [12, 32]},
            "encoder_config": {"hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2,
                               "num_attention_heads": 4, "num_key_value_heads": 2},
        },
    },
    "lfm2_vl": {
        "text_config": TEXT | {"layer_types": ["conv", "full_attention"]}, "projector_hidden_size": 48,
        "vision_config": TOWER | {"num_patches": 16, "vision_use_head": False},
        "picture_size": 64, "tile_size": 64, "min_image_tokens": 1, "max_image_tokens": 16,
    },
}  # fmt: skip
COUNTED = {  # parameters, tokens of an image, and OPs of convolutions, of products with weights, and of attention
    "phi4_multimodal": (459360, 125, (202309632, 13837312, 8300544)),
    "ernie4_5_vl_moe": (334352, 24, (884736, 4939776, 2654208)),
    "cohere_compass": (260840, 24, (1769472, 4644864, 2654208)),
    "vipllava": (217312, 16, (147456, 709376, 83232)),
    "video_llava": (232672, 16, (147456, 611072, 83232)),
    "aya_vision": (150584, 13 * 4, (13 * 147456, 13 * 454656, 13 * 73728)),  # in 3 x 4 tiles, and one of all of it
    "paddleocr_vl": (159832, 12, (442368, 1585152, 663552)),
    "lighton_ocr": (154112, 4, (147456, 561152, 73728)),
    "llava_next_video": (214160, 70, (737280, 3055360, 416160)),
    "qwen2_audio": (195672, 10, (46080, 153600, 38400)),
    "voxtral": (201752, 5, (46080, 209920, 38400)),
    "qwen2_5_omni": (238544, 24, (1769472, 3723264, 1179648)),
    "qwen3_omni_moe": (306200, 24, (1769472, 4644864, 2654208)),
    "glm_ocr": (275232, 12, (884736, 2623488, 663552)),  # the convolution over four patches is a product here
    "glm5_next": (260522, 12, (884736, 1996800, 663552)),
    "qwen4_exp": (304252, 24, (1769472, 3170304, 2654208)),
    "hyperclovax_vision_v2": (168656, 24, (1769472, 3796992, 1179648)),
    "lfm3_vl": (177888, 24, (1769472, 5124096, 1769472)),  # less its filters, which are no matrix products
    "hunyuan_vl": (161400, 30, (884736, 3219456, 2654208)),  # whose merging convolution is a product here
    "hy_v4_vl": (244524, 28, (884736, 3170304, 2654208)),
    "muse_glimmer": (240504, 24, (1769472, 4534272, 2298240)),  # in windows of 5 x 5 patches and what is left over
    "idefics2": (558560, 6, (22127616, 4298496, 818208)),
    "blip-2": (304968, 5, (147456, 811776, 114592)),
    "ovis2": (160866, 4, (147456, 609024, 73728)),
    "janus": (3995681, 16, (147456, 843776, 73728)),
    "deepseek_vl": (150024, 16, (147456, 585728, 73728)),
    "fuyu": (199296, 16, (393216, 0, 0)),  # where patches are a product there, as in Molmo2
    "got_ocr2": (164980, 4, (885504, 1654784, 688128)),
    "molmo2": (223832, 50, (1843200, 8300800, 7699200)),
    "exaone4_5": (248464, 24, (2359296, 5160960, 1572864)),
    "qianfan_ocr": (219032, 4, (147456, 512768, 83232)),
    "minicpmv4_6": (265092, 424, (191471616, 252690432, 1344552960)),  # 32 x 32 patches, and six of 24 x 40
    "deepseek_ocr2": (395652, 833, (534024192, 386793472, 4563927040 - 56909824)),  # less what is masked there
    "lfm2_vl": (218008, 16, (589824, 1867776, 1179648)),  # and there that over the pixels of a patch
}


def _graph(kind, **changes):
    return built(**{"model_type": kind} | CONFIGS[kind] | changes)


@pytest.mark.parametrize("kind", CONFIGS)
def test_parameters_are_those_of_transformers(kind):
    assert _graph(kind).parameters == COUNTED[kind][0]


@pytest.mark.parametrize("kind", CONFIGS)
def test_tokens_that_a_picture_puts_into_the_prompt(kind):
    w = Workload.prefill(batch=2, prompt=1000, images=3)
    (place,) = (op for _, op in _graph(kind) if isinstance(op, Place) and not op.adds)
    assert evaluate(place.features.rows, w) == 2 * 3 * COUNTED[kind][1]


@pytest.mark.parametrize("kind", CONFIGS)
def test_ops_of_a_tower_equal_torchs_to_the_digit(kind):
    """The classes run the whole tower, including layers whose output is unused."""
    found = [Fraction(0)] * 3
    graph, w = _graph(kind), Workload.prefill(batch=1, prompt=1000, images=1)
    first = (b for b, op in graph if isinstance(op, Patches | Convolution) and not b.name.startswith("film"))
    stream = next(first).stream
    for block, op in graph:
        own = stream if "unused" in block.name else block.stream
        attends = isinstance(op, QK | SV | RelativePositions)
        kinds = (isinstance(op, Patches | Convolution), isinstance(op, Linear), attends)
        if any(kinds) and not block.main:
            found[kinds.index(True)] += block.repeat * Fraction(evaluate(op.work().ops.on(own), w))
    assert tuple(found) == COUNTED[kind][2]


@pytest.mark.parametrize("kind", CONFIGS)
def test_decode_steps_read_nothing_of_a_tower(kind):
    step = Workload.decode(batch=2, kv_len=1000, prompt=999, images=1)
    beside = [(b, op) for b, op in _graph(kind) if not b.main]
    assert beside
    assert all(evaluate(op.work().on(b.stream).nbytes, step) == 0 for b, op in beside)


def test_fields_of_a_language_model_may_stand_beside_those_of_the_tower():
    nested = CONFIGS["paddleocr_vl"]
    flat = (
        {"model_type": "paddleocr_vl"} | nested["text_config"] | {k: v for k, v in nested.items() if k != "text_config"}
    )
    assert built(**flat) == _graph("paddleocr_vl")


@pytest.mark.parametrize(("size", "tiles"), [(32, 1), (33, 5), ([32, 64], 3), (1024, 10)])
def test_command_a_vision_splits_images_into_tiles(size, tiles):
    text = {"model_type": "cohere2", "head_dim": 16, "sliding_window": 6} | TEXT
    given = {"model_type": "cohere2_vision", "text_config": text, "vision_config": TOWER, "picture_size": size}
    graph, w = built(**given), Workload.prefill(batch=1, prompt=100, images=1)
    (place,) = (op for _, op in graph if isinstance(op, Place))
    assert evaluate(place.features.rows, w) == tiles * 4


@pytest.mark.parametrize(
    ("size", "squares", "tokens"),
    [
        (448, 1, 4 * 5 + 1 + 20),
        ([448, 896], 2, 4 * 9 + 1 + 20),
        ([600, 1000], 6, 8 * 13 + 1 + 20),  # of 16 rows of patches the last is padding
        ([4000, 4000], 36, 24 * 25 + 1 + 20),  # more than 36 squares
    ],
)
def test_squares_of_a_picture_of_phi_4(size, squares, tokens):
    graph, w = _graph("phi4_multimodal", picture_size=size), Workload.prefill(batch=1, prompt=1000, images=1)
    ((block, patches),) = ((b, op) for b, op in graph if isinstance(op, Patches))
    assert evaluate(patches.outputs[0].rows.on(block.stream), w) == (squares + 1) * 64
    (place,) = (op for _, op in graph if isinstance(op, Place))
    assert evaluate(place.features.rows, w) == tokens


@pytest.mark.parametrize("kind", ["phi4_multimodal", "qwen2_5_omni", "qwen3_omni_moe"])
def test_audio_encoder_weights_are_stored_but_never_run(kind):
    held = [(b, op) for b, op in _graph(kind) if b.name.startswith("hearing")]
    assert {b.name: b.repeat for b, _ in held} == {"hearing": 1, "hearing_layer": 2}
    w = Workload.prefill(batch=1, prompt=1000, images=1)
    assert all(evaluate(op.work().on(b.stream).nbytes, w) == 0 for b, op in held)
    assert sum(w.active for _, op in held for w in op.weights) == 0


@pytest.mark.parametrize(
    ("size", "patches"), [(1024, 70 * 70), ([500, 700], 35 * 50), ([100, 300], 27 * 27), ([980, 2000], 34 * 70)]
)
def test_queries_of_idefics2_are_as_many_whatever_they_look_at(size, patches):
    tower = TOWER | {"image_size": 980, "patch_size": 14}
    graph = _graph("idefics2", vision_config=tower, picture_size=size)
    w = Workload.prefill(batch=2, prompt=1000, images=3)
    ((block, op),) = ((b, op) for b, op in graph if isinstance(op, Patches))
    assert evaluate(op.outputs[0].rows.on(block.stream), w) == 6 * patches
    ((block, op),) = ((b, op) for b, op in graph if op.name == "vision_cross_qk_matmul")
    assert evaluate(op.heads.mask.pairs.on(block.stream), w) == 6 * 6 * (patches + 6)


@pytest.mark.parametrize("kind", ["idefics2", "blip-2"])
def test_keys_and_values_of_image_queries_are_computed_once(kind, tmp_path):
    config = {"model_type": kind, "torch_dtype": "bfloat16"} | CONFIGS[kind]
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    one, two = (analyze(str(tmp_path), "h100-sxm", prompt=2000, gen=4, images=n) for n in (1, 2))
    ops = [{op.name: op.per_call.ops for op in found.phases.prefill.operators} for found in (one, two)]
    assert ops[1]["vision_cross_k_proj"] == 2 * ops[0]["vision_cross_k_proj"]
    assert one.phases.decode == two.phases.decode


@pytest.mark.parametrize("kind", ["blip-2", "voxtral", "lighton_ocr"])
def test_language_model_section_may_omit_class_defaults(kind, tmp_path):
    config = {"model_type": kind, "torch_dtype": "bfloat16", "text_config": {}, "vision_config": {}}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    assert load_model(str(tmp_path)).parameters == built(**config).parameters


def test_the_thinker_of_an_omni_model_is_one_by_itself():
    for kind in ("qwen2_5_omni", "qwen3_omni_moe"):
        assert built(**{"model_type": f"{kind}_thinker"} | CONFIGS[kind]["thinker_config"]) == _graph(kind)


def test_the_original_format_of_phi_4_counts_as_that_of_transformers():
    text = {key: value for key, value in CONFIGS["phi4_multimodal"].items() if "config" not in key}
    assert built(model_type="phi4mm", embd_layer={}, **text) == built(model_type="phi4_multimodal", **text)


@pytest.mark.parametrize(
    ("size", "tokens"),
    [
        (512, 256),
        ([300, 500], 144),
        (100, 64),
        ([720, 1280], 2 * 256 + 252),  # two tiles, and all of it in 12 x 21 tokens
        (1024, 4 * 256 + 256),
        ([1000, 700], 6 * 256 + 247),
        (3000, 9 * 256 + 256),
    ],
)
def test_tiles_of_a_picture_of_lfm2(size, tokens):
    """Tile counts equal those of the processor of transformers."""
    tower = TOWER | {"patch_size": 16, "num_patches": 16, "vision_use_head": False}
    text = CONFIGS["lfm2_vl"]["text_config"]
    graph = built(model_type="lfm2_vl", text_config=text, vision_config=tower, picture_size=size)
    w = Workload.prefill(batch=1, prompt=5000, images=1)
    (place,) = (op for _, op in graph if isinstance(op, Place))
    assert evaluate(place.features.rows, w) == tokens


@pytest.mark.parametrize(
    ("size", "mode", "tokens"),
    [
        (300, "16x", 64),  # as many pixels as a slice has
        (300, "4x", 256),
        ([500, 2000], "16x", (16 * 64 + 4 * 32 * 32) // 16),  # 16 x 64 patches, and four slices of 32 x 32
        ([3000, 1000], "16x", (56 * 20 + 8 * 40 * 28) // 16),
    ],
)
def test_slices_of_minicpm(size, mode, tokens):
    """Slice counts equal those of the processor of transformers."""
    graph = _graph("minicpmv4_6", picture_size=size, downsample_mode=mode)
    (place,) = (op for _, op in graph if isinstance(op, Place))
    assert evaluate(place.features.rows, Workload.prefill(batch=1, prompt=5000, images=1)) == tokens
    assert graph.parameters == COUNTED["minicpmv4_6"][0]


@pytest.mark.parametrize(("size", "tokens"), [(700, 257), ([700, 1500], 256 + 2 * 144 + 1), (3000, 833)])
def test_tiles_of_deepseek_ocr_2_are_read_by_the_same_weights(size, tokens):
    graph = _graph("deepseek_ocr2", picture_size=size)
    (place,) = (op for _, op in graph if isinstance(op, Place))
    assert evaluate(place.features.rows, Workload.prefill(batch=1, prompt=5000, images=1)) == tokens
    assert graph.parameters == COUNTED["deepseek_ocr2"][0]


@pytest.mark.parametrize(
    ("size", "crops", "tokens"),
    [
        (378, 1, 2 * 196),
        (1024, 4, 196 + 23**2),  # 2 x 2 of 27 patches to a side, 8 of which two share: 46
        ([400, 1600], 6, 196 + 14 * 61),
    ],
)
def test_crops_of_molmo2_overlap(size, crops, tokens):
    """As many as the processor of transformers makes, besides all of the image."""
    tower = TOWER | {"image_size": [378, 378], "patch_size": 14, "num_hidden_layers": 25}
    graph = _graph("molmo2", picture_size=size, vision_config=tower)
    w = Workload.prefill(batch=1, prompt=5000, images=1)
    (place,) = (op for _, op in graph if isinstance(op, Place))
    assert evaluate(place.features.rows, w) == tokens
    ((block, op),) = ((b, op) for b, op in graph if isinstance(op, Patches))
    assert evaluate(op.outputs[0].rows.on(block.stream), w) == (crops + 1) * 27 * 27


def test_molmo2_field_names_of_published_files_count_the_same():
    """Three layers of 27 before the last one are where features are taken from first; those after have no weights."""
    sizes = TOWER | {"num_hidden_layers": 27}
    older = {key: value for key, value in sizes.items() if key not in ("image_size", "patch_size")}
    older |= {"image_default_input_size": [80, 80], "image_patch_size": 8, "image_num_pos": 100}
    adapter = {key: value for key, value in CONFIGS["molmo2"]["adapter_config"].items() if "layer" not in key}
    text = {key: CONFIGS["molmo2"][key] for key in ("text_config", "picture_size")}
    named = built(model_type="molmo2", vit_config=older, adapter_config=adapter | {"vit_layers": [-3, -9]}, **text)
    tower = sizes | {"num_hidden_layers": 25, "image_size": [80, 80]}
    assert named == _graph("molmo2", vision_config=tower, adapter_config=adapter | {"vision_feature_layer": [24, 18]})


def test_windows_of_segment_anything_are_filled_up_at_the_edge():
    """8 x 8 patches in windows of 5 x 5: each of 64 sees 25 keys; 2 heads of 12, in two layers of three."""
    vision = CONFIGS["got_ocr2"]["vision_config"] | {"window_size": 5}
    w = Workload.prefill(batch=1, prompt=100, images=1)
    ops = {f"{b.name}.{op.name}": b.repeat * evaluate(op.work().on(b.stream).ops, w)
           for b, op in _graph("got_ocr2", vision_config=vision) if not b.main}  # fmt: skip
    assert ops["vision_local.vision_qk_matmul"] == 2 * 2 * 24 * 64 * 25
    assert ops["vision_local.vision_positions"] == 2 * 2 * 24 * 64 * (5 + 5)
    assert ops["vision_global.vision_positions"] == 2 * 24 * 64 * (8 + 8)


def test_model_types_with_a_shared_class_count_the_same():
    """These models have the classes in transformers of the others."""
    gpt = {"vocab_size": 1000, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 50}
    assert built(model_type="gpt-sw3", **gpt) == built(model_type="gpt2", **gpt)
    shield = {"text_config": TEXT | {"head_dim": 16}, "vision_config": TOWER | {"vision_use_head": False}}
    shield |= {"mm_tokens_per_image": 4}
    assert built(model_type="shieldgemma2", **shield) == built(model_type="gemma3", **shield)
    assert _graph("minicpmv4_6") == built(model_type="minicpmv4_7", **CONFIGS["minicpmv4_6"])
    glm = {"text_config": TEXT | {"model_type": "glm4v_text"}, "vision_config": CONFIGS["glm_ocr"]["vision_config"]}
    assert built(model_type="glmga", **glm) == built(model_type="glm46v", **glm)


def test_text_and_image_tokens_have_separate_experts():
    """An image is 24 of 40 tokens and 2 more stand around it; two of three layers have experts, of which a token
    takes two: products of 64 x 24 and 64 x 16. Both OPs and the router's are those that torch counts.
    """
    w = Workload.prefill(batch=1, prompt=40, images=1)
    graph = _graph("ernie4_5_vl_moe")
    ops = {op.name: b.repeat * evaluate(op.work().on(b.stream).ops, w) for b, op in graph if b.name == "moe"}
    products = ("expert_gate_proj", "expert_up_proj", "expert_down_proj")
    assert sum(ops[name] for name in products) == 2 * 3 * 2 * 14 * 2 * 64 * 24 == 516096
    assert sum(ops[f"vision_{name}"] for name in products) == 2 * 3 * 2 * 26 * 2 * 64 * 16 == 638976
    assert (ops["router"], ops["vision_router"]) == (28672, 53248)
    assert ops["shared_up_proj"] == 2 * 2 * 40 * 64 * 48


def test_image_experts_are_idle_without_images():
    graph, step = _graph("ernie4_5_vl_moe"), Workload.decode(batch=2, kv_len=50, prompt=40, images=1)
    (block,) = (b for b in graph.blocks if b.name == "moe")
    moved = {op.name: evaluate(op.work().on(block.stream).nbytes, step) for op in block.operators}
    seen = {name for name in moved if name.startswith("vision_")}
    assert len(seen) == 8
    assert all((moved[name] == 0) == (name in seen) for name in moved)
    assert graph.active_parameters < graph.parameters - 2 * 8 * 3 * 64 * 16


def test_text_and_image_experts_run_in_two_launches(tmp_path):
    config = {"model_type": "ernie4_5_vl_moe", "torch_dtype": "bfloat16", "text_config": {}, "vision_config": {}}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    found = analyze(str(tmp_path), "h100-sxm", prompt=4000, gen=4, images=2, layout="tp=2")
    experts = [op for op in found.phases.prefill.operators if "expert" in op.name and "proj" in op.name]
    assert len(experts) == 6
    assert all(op.expected_time_s >= op.bound_time_s for op in experts)
    assert found.memory.weight_bytes < 0.6 * 2 * found.model.parameters


def test_audio_clips_use_the_images_option(tmp_path):
    config = {"model_type": "qwen2_audio", "torch_dtype": "bfloat16", "audio_config": {}, "text_config": {}}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    two, none = (analyze(str(tmp_path), "h100-sxm", prompt=2000, gen=4, images=n) for n in (2, 0))
    assert two.phases.prefill.total.ops > none.phases.prefill.total.ops
    assert two.phases.decode == none.phases.decode
    what = "text only: to count audio clips of 30 s and their encoder, give --images"
    assert none.notes == (f"{what}; each adds 750 tokens to the prompt",)
    with pytest.raises(InputError, match=r"^prompt must be at least 1500, the 750 tokens of each of 2 images of "):
        analyze(str(tmp_path), "h100-sxm", prompt=1400, images=2)


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("paddleocr_vl", {"picture_size": 10}, "picture_size: must be at least a token, 16 x 16; got 10 x 10"),
        ("llava_next_video", {"spatial_pool_mode": "conv"},
         "spatial_pool_mode: must be one of average, max; got 'conv'"),
        ("aya_vision", {"vision_feature_layer": [-1, -2]}, "vision_feature_layer: must be one layer; got 2"),
        ("aya_vision", {"vision_feature_select_strategy": "default"},
         "vision_feature_select_strategy: must be one of full; got 'default'"),
        ("aya_vision", {"alignment_intermediate_size": 5},
         "alignment_intermediate_size: must be even, for its halves; got 5"),
        ("voxtral", {"audio_config": CONFIGS["voxtral"]["audio_config"] | {"intermediate_size": 50}},
         "audio_config.intermediate_size: must be a width that 20 tokens of 12 can be put into"),
        ("ernie4_5_vl_moe", {"text_config": TEXT | {"moe_intermediate_size": [24], "moe_num_experts": 8}},
         "text_config.moe_intermediate_size: must be the widths of experts for text and for images; got [24]"),
        ("lfm2_vl", {"vision_config": TOWER},
         "vision_config.vision_use_head: must be false beside a language model; got true"),
        ("muse_glimmer", {"audio_config": {"hidden_sizes": [16, 24]}},
         "audio_config.hidden_sizes: must have as many entries as patch_sizes and depths"),
        ("phi4_multimodal", {"vision_config": {"image_size": [448, 224]}},
         "vision_config.image_size: must be that of a square, whose features are those of one layer"),
    ],
)  # fmt: skip
def test_invalid_vision_language_configs_are_refused(kind, changes, message):
    with pytest.raises(InputError) as caught:
        _graph(kind, **changes)
    assert str(caught.value) == f"config.json: {message}"


def test_an_encoder_reads_the_pictures_of_blip_2_where_its_language_model_has_one(tmp_path):
    """32 of the 100 tokens of a prompt are queries; the decoder has caches of all 100, of 10 tokens and a first one."""
    t5 = {"model_type": "t5", "d_model": 64, "d_kv": 16, "d_ff": 96, "num_layers": 2, "num_heads": 4, "vocab_size": 200,
          "feed_forward_proj": "gated-gelu"}  # fmt: skip
    tower = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 56, "patch_size": 14}
    config = {"model_type": "blip-2", "torch_dtype": "bfloat16", "text_config": t5, "vision_config": tower,
              "qformer_config": {"num_hidden_layers": 4}}  # fmt: skip
    path = tmp_path / "blip.json"
    path.write_text(json.dumps(config))
    model = load_model(str(path))
    assert model.parameters == 34_743_744  # as transformers counts Blip2ForConditionalGeneration
    assert model.image_tokens == 32
    placed = [block.name for block, op in model.graph if isinstance(op, Place)]
    assert placed == ["encoder_embedding"]
    assert kv_cache_bytes(model.graph, batch=1, context=110, prompt=100) == 2 * 2 * 2 * 64 * (100 + 10 + 1)
