"""Models whose images or sound come through other encoders than plain vision towers, against transformers.

Parameters and OPs of the encoders are those of tests/oracle/multimodal.json, which make_multimodal.py counts with
torch's flop counter on the meta device.
"""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import pytest

from llmviewer.architectures import builder, model_types
from llmviewer.architectures._kinds import _KINDS, _LANGUAGE, kind_of
from llmviewer.documents import Section
from llmviewer.errors import InputError
from llmviewer.forms import evaluate, images
from llmviewer.model_files import load_model
from llmviewer.operators.attention import QK, SV
from llmviewer.operators.images import BatchedProduct, RelativePositions
from llmviewer.operators.linear import Linear
from llmviewer.precision import BF16
from llmviewer.workload import Workload

MODELS = json.loads((Path(__file__).parent / "oracle" / "multimodal.json").read_text(encoding="utf-8"))["models"]
PRODUCTS = (Linear, QK, SV, BatchedProduct, RelativePositions)


def graph_of(config):
    section = Section(config, "config.json")
    return builder(section)(section, BF16).check()


def products_of(graph, encoder=None):
    """OPs of matrix products of the encoders for one image or piece of sound."""
    w = Workload.prefill(batch=1, prompt=100_000, images=1)
    blocks = [b for b in graph.blocks if b.stream.name == "images" and b.stream != images(0)]
    if encoder:
        blocks = [b for b in blocks if b.name in encoder]
    return sum(
        b.repeat * Fraction(evaluate(op.work().ops.on(b.stream), w))
        for b in blocks
        for op in b.operators
        if isinstance(op, PRODUCTS)
    )


@pytest.mark.parametrize("name", MODELS)
def test_parameters_equal_those_of_transformers(name):
    assert graph_of(MODELS[name]["config"]).parameters == MODELS[name]["parameters"]


@pytest.mark.parametrize("name", MODELS)
def test_ops_of_an_encoder_equal_torchs(name):
    """Granite Speech counts its conformer alone: transformers runs the first query attention once for all windows."""
    encoder = {"audio_embedding", "audio_layer", "audio_characters"} if name == "granite_speech" else None
    assert products_of(graph_of(MODELS[name]["config"]), encoder) == MODELS[name]["flops"]


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("minicpm-v-2.6", 16_198_350_304 // 2),  # bytes of the checkpoint in bf16
        ("molmo-7b-d", 8_021_025_280),  # of the checkpoint on the hub
        ("chameleon-7b", 7_043_090_432),
        ("emu3", 8_762_751_807),
    ],
)
def test_totals_are_the_published_ones(name, parameters):
    assert load_model(name).parameters == parameters


@pytest.mark.parametrize(("name", "billions"), [("tiny", 3.37), ("small", 16.15), ("base", 27.48)])
def test_deepseek_vl2_has_the_published_sizes(name, billions):
    """arXiv:2412.10302, table 2: its language models have 3, 16 and 27 billion parameters."""
    sizes = {
        "tiny": (1280, 6848, 896, 64, 12, 10, 129280),
        "small": (2048, 10944, 1408, 64, 27, 16, 102400),
        "base": (2560, 12288, 1536, 72, 30, 32, 129280),
    }[name]
    keys = ("hidden_size", "intermediate_size", "moe_intermediate_size", "n_routed_experts", "num_hidden_layers",
            "num_attention_heads", "vocab_size")  # fmt: skip
    text = dict(zip(keys, sizes, strict=True)) | {"n_shared_experts": 2, "num_experts_per_tok": 6, "q_lora_rank": None,
            "first_k_dense_replace": 1, "num_key_value_heads": sizes[5], "use_mla": name != "tiny"}  # fmt: skip
    found = graph_of({"model_type": "deepseek_vl_v2", "language_config": text}).parameters
    assert round(found / 1e9, 2) == billions


@pytest.mark.parametrize(
    ("name", "tokens"),
    [
        ("chameleon-7b", 32 * 32),
        ("emu3", 90 * (90 + 1)),  # codes of a row, and a token that ends it
        ("florence-2-large", 24 * 24 + 1),
        ("kosmos-2", 64),
        ("instructblip-vicuna-7b", 32),
        ("granite-speech-3.3-8b", 30 * 10),
        ("qwen3-asr-1.7b", 30 * 13),
        ("minicpm-v-2.6", (1 + 2 * 3) * 64),  # 1024 x 1024 pixels are about six times 448 x 448
        ("deepseek-vl2", 14 * 15 + 1 + 3 * 14 * (3 * 14 + 1)),  # the whole, a separator, 3 x 3 tiles
        ("molmo-7b-d", 144 + 28 * 28),  # the whole, 3 x 3 crops with 16 patches of their own and 8 shared
    ],
)
def test_tokens_of_an_image_or_of_30_s_of_sound(name, tokens):
    assert load_model(name).image_tokens == tokens


@pytest.mark.parametrize(
    ("config", "what"),
    [
        ({"model_type": "minicpmv", "version": 3.1}, "version: must be one of 2.0, 2.5, 2.6, 4.0, 4.5; got 3.1"),
        ({"model_type": "qwen3_asr", "audio_config": {"n_window": 70}},
         "sound_seconds: must be whole chunks of 140 frames; got 3000 frames"),
        ({"model_type": "granite_speech", "window_size": 16}, "downsample_rate: must divide the window_size 16; got 5"),
        ({"model_type": "openvla", "timm_model_ids": ["resnet50"]},
         ("timm_model_ids: must begin with one of vit_large_patch14_reg4_dinov2, vit_so400m_patch14_siglip; got "
          "'resnet50'")),
    ],
)  # fmt: skip
def test_fields_that_no_encoder_has_are_refused(config, what):
    with pytest.raises(InputError) as error:
        graph_of(config)
    assert str(error.value) == f"config.json: {what}"


@pytest.mark.parametrize(
    ("model_type", "what"),
    [
        ("detr", "an object detector; give package.module:callable to trace its module"),
        ("timesfm", "a forecaster of time series; give package.module:callable to trace its module"),
        ("encodec", "a codec of speech or sound; give package.module:callable to trace its module"),
        ("sam_mask_decoder", ("a part of sam, a segmentation model; give package.module:callable to trace its module")),
        ("qwen3_vl_vision", "a part of qwen3_vl; give the config of the whole model"),
        ("act", "a policy for robots of a kind that is not modelled; give package.module:callable to trace its module"),
    ],
)
def test_model_of_an_unsupported_kind_is_refused_with_its_kind(model_type, what):
    with pytest.raises(InputError) as error:
        graph_of({"model_type": model_type, "hidden_size": 64})
    assert str(error.value) == f"config.json: model_type: no architecture for {model_type!r}, {what}"


@pytest.mark.parametrize(
    ("model_type", "parameters"),
    [
        ("granite_speech_plus", 6_990_441_514),
        ("metaclip_2", 151_277_313),
        ("metaclip_2_text_model", 63_165_952),
        ("metaclip_2_vision_model", 87_456_000),
        ("minicpm_ocr", 8_094_084_096),
        ("pp_chart2table", 560_528_640),
    ],
)
def test_types_that_differ_in_their_defaults_have_the_parameters_of_their_classes(tmp_path, model_type, parameters):
    """Parameters equal those that transformers 5.24 builds from each default config."""
    given = {"model_type": model_type} | (
        {"vision_config": {}} if model_type in ("minicpm_ocr", "pp_chart2table") else {}
    )
    (tmp_path / "config.json").write_text(json.dumps(given), encoding="utf-8")
    assert load_model(str(tmp_path)).parameters == parameters


def test_minicpm_ocr_keeps_four_times_the_tokens_of_a_picture(tmp_path):
    tokens = {}
    for model_type in ("minicpm_ocr", "minicpmv4_6"):
        (tmp_path / "config.json").write_text(
            json.dumps({"model_type": model_type, "vision_config": {}}), encoding="utf-8"
        )
        tokens[model_type] = load_model(str(tmp_path)).image_tokens
    assert tokens["minicpm_ocr"] > 3.5 * tokens["minicpmv4_6"]


def test_every_transformers_type_is_supported_or_classified():
    """Needs transformers, of the extra `oracle`."""
    auto = pytest.importorskip("transformers.models.auto.configuration_auto")
    known = {*model_types(), "xlstm"}
    assert [name for name in auto.CONFIG_MAPPING_NAMES if name not in known and not kind_of(name, known)] == []


def test_no_supported_type_is_classified_as_unsupported():
    listed = {name for table in (_KINDS, _LANGUAGE) for names in table.values() for name in names.split()}
    assert not listed.intersection(model_types())
