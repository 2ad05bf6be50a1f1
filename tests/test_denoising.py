"""Denoising transformers of images and diffusion language models: parameters and OPs by another count, and passes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from llmviewer import analyze, sweep
from llmviewer.errors import InputError
from llmviewer.forms import evaluate
from llmviewer.model_files import load_model
from llmviewer.operators.attention import QK, SV
from llmviewer.operators.linear import Linear
from llmviewer.setting import Setting
from llmviewer.workload import Workload

MODELS = Path(__file__).parents[1] / "models"
SD3 = {
    "_class_name": "SD3Transformer2DModel",
    "attention_head_dim": 64,
    "caption_projection_dim": 1536,
    "num_attention_heads": 24,
    "num_layers": 24,
}
PIXART = {"_class_name": "PixArtTransformer2DModel", "attention_bias": True, "_diffusers_version": "0.25.0"}
DIT = {"_class_name": "DiTTransformer2DModel", "attention_bias": True, "out_channels": 8}
FLUX = {"_class_name": "FluxTransformer2DModel", "guidance_embeds": True, "axes_dims_rope": [16, 56, 56]}
SD15 = {
    "_class_name": "UNet2DConditionModel",
    "block_out_channels": [320, 640, 1280, 1280],
    "cross_attention_dim": 768,
    "attention_head_dim": 8,
}
SD21 = SD15 | {"cross_attention_dim": 1024, "attention_head_dim": [5, 10, 20, 20], "use_linear_projection": True}
SDXL = {
    "_class_name": "UNet2DConditionModel",
    "block_out_channels": [320, 640, 1280],
    "cross_attention_dim": 2048,
    "attention_head_dim": [5, 10, 20],
    "transformer_layers_per_block": [1, 2, 10],
    "down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"],
    "up_block_types": ["CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"],
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": 256,
    "projection_class_embeddings_input_dim": 2816,
}
COUNTED = [
    # parameters and OPs of matrix products for one image of so many patches, as diffusers 0.42.1 builds these classes
    # on the meta device and torch.utils.flop_counter counts a pass with as many tokens of text as `text_tokens`
    (FLUX, 4096, 11_901_408_320, 74_384_653_418_496),
    (SD3, 4096, 2_028_328_000, 8_904_337_539_072),
    (
        SD3 | {"num_layers": 38, "num_attention_heads": 38, "caption_projection_dim": 2432, "qk_norm": "rms_norm"},
        4096,
        8_056_627_520,
        31_121_114_907_648,
    ),
    (SD3 | {"qk_norm": "rms_norm", "dual_attention_layers": [*range(13)]}, 4096, 2_243_171_520, 11_249_573_707_776),
    (PIXART, 4096, 611_349_152, 6_509_523_566_592),
    (PIXART | {"use_additional_conditions": False}, 4096, 610_856_096, 6_633_579_773_952),
    (DIT, 256, 749_826_464, 237_333_676_032),
    (SD15, 4096, 859_520_964, 803_273_441_280),
    (SD21, 9216, 865_910_724, 2_149_105_745_920),
    (SDXL, 16384, 2_567_463_684, 6_761_236_398_080),
]


@pytest.fixture
def loaded(tmp_path):
    def load(config):
        path = tmp_path / "config.json"
        path.write_text(json.dumps(config), encoding="utf-8")
        return load_model(str(path))

    return load


@pytest.mark.parametrize(("config", "patches", "parameters", "ops"), COUNTED)
def test_diffusers_classes_are_counted_as_diffusers_does(loaded, config, patches, parameters, ops):
    model, one = loaded(config), Workload.prefill(batch=1, prompt=patches)
    products = (b.repeat * op.work().ops.on(b.stream) for b, op in model.graph if isinstance(op, Linear | QK | SV))
    assert model.parameters == parameters
    assert sum(evaluate(product, one) for product in products) == ops
    assert not model.generates
    assert not [note for note in model.notes if "nothing here reads" in note]


def test_text_stands_beside_every_image(loaded):
    """A pass of two images has text of each; twice the text doubles the products of text alone."""
    few, many = (loaded(FLUX | {"text_tokens": tokens}) for tokens in (256, 512))
    two = Workload.prefill(batch=2, prompt=4096)

    def ops(model, name):
        return next(evaluate(op.work().ops, two) for block, op in model.graph if op.name == name)

    assert ops(many, "context_q_proj") == 2 * ops(few, "context_q_proj") == 2 * 2 * 512 * 3072 * 3072
    assert ops(many, "q_proj") == ops(few, "q_proj") == 2 * 2 * 4096 * 3072 * 3072
    pairs = 2 * (4096 + 512) ** 2
    assert ops(many, "qk_matmul") == 2 * pairs * 3072


def test_other_classes_of_diffusers_are_named(loaded):
    for name in ("UNet3DConditionModel", "AutoencoderKL"):
        with pytest.raises(InputError) as caught:
            loaded({"_class_name": name, "_diffusers_version": "0.6.0"})
        known = "DiTTransformer2DModel, FluxTransformer2DModel, PixArtTransformer2DModel, SD3Transformer2DModel, "
        known += "UNet2DConditionModel are"
        said = f"_class_name: is a diffusers config of {name}, which is not analyzed; {known}"
        assert str(caught.value).endswith(said)


def test_the_folder_of_a_pipeline_is_its_transformer(tmp_path):
    (tmp_path / "transformer").mkdir()
    (tmp_path / "model_index.json").write_text("{}", encoding="utf-8")
    (tmp_path / "transformer" / "config.json").write_text(json.dumps(FLUX), encoding="utf-8")
    assert load_model(str(tmp_path)).parameters == 11_901_408_320


def test_the_folder_of_a_pipeline_is_its_u_net(tmp_path):
    (tmp_path / "unet").mkdir()
    (tmp_path / "model_index.json").write_text("{}", encoding="utf-8")
    (tmp_path / "unet" / "config.json").write_text(json.dumps(SD15), encoding="utf-8")
    assert load_model(str(tmp_path)).parameters == 859_520_964


def test_u_nets_that_are_built_otherwise_are_refused(loaded):
    published = {"dual_cross_attention": False, "conv_in_kernel": 3, "mid_block_type": "UNetMidBlock2DCrossAttn"}
    assert loaded(SD15 | published).parameters == 859_520_964
    for key, value in (("dual_cross_attention", True), ("time_embedding_dim", 512), ("conv_in_kernel", 5)):
        with pytest.raises(InputError, match=f"{key}: must be .*, as in Stable Diffusion; got {value}"):
            loaded(SD15 | {key: value})
    for changed, error in (
        ({"attention_head_dim": 7}, "must divide the width 320 of its level; got 7"),
        ({"attention_head_dim": [8, 8]}, "must be a number for each of the 4 levels"),
        ({"block_out_channels": [320, -1]}, "must be whole numbers of at least 1"),
        ({"down_block_types": ["DownBlock2D"]}, "must be 4 of CrossAttnDownBlock2D"),
    ):
        with pytest.raises(InputError, match=error):
            loaded(SD15 | changed)


def test_levels_of_a_u_net_have_a_quarter_of_the_positions_each():
    """The last level of Stable Diffusion 1.5 has 8 x 8 of 64 x 64 positions; text has 77 tokens at every level."""
    one = Workload.prefill(batch=2, prompt=4096)
    ops = {(b.name, op.name): evaluate(op.work().ops.on(b.stream), one) for b, op in load_model("sd1.5").graph}
    assert ops["down_0_0", "conv_2"] == 2 * 2 * 4096 * 9 * 320**2
    assert ops["down_3_0", "conv_2"] == ops["mid_0", "conv_2"] == 2 * 2 * 64 * 9 * 1280**2
    assert ops["down_2_0_attended", "cross_k_proj"] == 2 * 2 * 77 * 768 * 1280
    assert ops["down_2_0_attended", "qk_matmul"] == 2 * 2 * 256**2 * 1280
    assert ops["up_3_0", "conv_1"] == 2 * 2 * 64 * 9 * 2560 * 1280  # what comes up, and what went down


# Milliseconds of U-Net passes of SDXL, 1024 x 1024 pixels: 4 steps of a student (LCM), which takes one sequence, and
# all of a pipeline of 30 guided steps less its autoencoder, by TensorRT: the card of
# huggingface.co/stabilityai/stable-diffusion-xl-1.0-tensorrt, which does not say which A100 and H100.
SDXL_MEASURED = [("a100-sxm-80gb", 192.02, 2742 - 228.34), ("h100-sxm", 102.8, 1471 - 126.95)]


@pytest.mark.parametrize(("device", "student", "teacher"), SDXL_MEASURED)
def test_step_distillation_of_sdxl_is_between_the_bound_and_as_expected(device, student, teacher):
    asked = {"prompt": 16384, "techniques": ["denoising:steps=4,teacher=30,guided_teacher=true"]}
    found = analyze("sdxl-base-1.0", device, **asked)
    few, many = found.generation, found.effect.without
    assert 1000 * few.latency_s < student < 1000 * few.expected_latency_high_s
    assert 1000 * few.expected_latency_s == pytest.approx(student, rel=0.15)
    assert 1000 * many.latency_s < teacher
    assert found.effect.speed_up == pytest.approx(2 * 30 / 4, rel=0.03)  # nearly compute-bound, so by sequences
    assert found.effect.expected_speed_up == pytest.approx(teacher / student, rel=0.1)


def test_llada_attends_to_all_tokens_and_keeps_none():
    model = load_model("llada-8b")
    d, inner = 4096, 12288
    assert model.parameters == 2 * 126464 * d + 32 * (4 * d * d + 3 * d * inner + 2 * d) + d
    assert (model.attention, model.generates, model.kv_bytes_per_token) == ("MHA bidirectional", False, 0)


@pytest.mark.parametrize(("name", "named"), [("dream-7b", "DreamModel"), ("llada-8b", "LLaDAModelLM")])
def test_classes_of_diffusion_language_models_have_a_head(loaded, name, named):
    config = yaml.safe_load((MODELS / f"{name}.yaml").read_text(encoding="utf-8"))["config"]
    model = loaded(config | {"architectures": [named]})
    assert model.parameters == load_model(name).parameters
    assert not model.notes


def test_fields_of_llada_that_no_model_has_are_refused(loaded):
    config = {"model_type": "llada", "d_model": 64, "n_heads": 4, "n_layers": 2, "vocab_size": 100}
    assert loaded(config).parameters == 2 * 100 * 64 + 2 * (4 * 64 * 64 + 3 * 64 * 256 + 2 * 64) + 64
    with pytest.raises(InputError, match=r"alibi: must be false; no published model has it$"):
        loaded(config | {"alibi": True})
    with pytest.raises(
        InputError, match=r"n_heads: must divide d_model, 64, and be a multiple of n_kv_heads, 5; got 5$"
    ):
        loaded(config | {"n_heads": 5})


def test_text_denoising_runs_one_pass_per_step_over_prompt_and_masked_tokens():
    text = "denoising:steps=64,tokens=128,block=32,guidance=true"
    found = analyze("llada-8b", "h100-sxm", batch=2, prompt=512, techniques=[text])
    one = analyze("llada-8b", "h100-sxm", batch=4, prompt=512 + 128).phases.prefill.total.bound_time_s
    assert found.generation.latency_s == pytest.approx(64 * one, rel=1e-12)
    assert found.generation.ttft_s == pytest.approx(16 * one, rel=1e-12)  # of 4 blocks
    assert found.generation.tpot_s == pytest.approx(48 * one / (128 - 32), rel=1e-12)
    assert found.generation.tokens_per_s == pytest.approx(2 * 128 / (64 * one), rel=1e-12)
    assert found.effect.speed_up == 1
    assert [run.passes for run in found.effect.runs] == [16, 48]
    expected = found.generation
    assert expected.expected_ttft_s < expected.expected_latency_s == pytest.approx(4 * expected.expected_ttft_s)
    assert found.memory.kv_cache_bytes == 0


def test_image_denoising_runs_one_pass_per_step():
    found = analyze("flux.1-schnell", "h100-sxm", prompt=4096, techniques=["denoising:steps=4"])
    assert not any("no effect" in note for note in found.notes)
    one = analyze("flux.1-schnell", "h100-sxm", prompt=4096)
    assert found.generation.latency_s == pytest.approx(4 * one.generation.latency_s, rel=1e-12)
    assert found.generation.tpot_s is None
    assert not [note for note in found.notes if "one pass" in note]


def test_sweeps_count_the_passes_too():
    asked = ["denoising:steps=64,tokens=128,block=32"]
    rows = sweep("llada-8b", "h100-sxm", {"batch": [1, 2]}, prompt=512, techniques=asked, expected=True)
    found = analyze("llada-8b", "h100-sxm", batch=2, prompt=512, techniques=asked).generation
    for name in ("ttft_s", "tpot_s", "latency_s", "tokens_per_s"):
        assert rows.columns[name][1] == pytest.approx(getattr(found, name), rel=1e-12)
        assert rows.columns[f"expected_{name}"][1] == pytest.approx(getattr(found, f"expected_{name}"), rel=1e-9)


@pytest.mark.parametrize(
    ("model", "asked", "error"),
    [
        ("llama-2-7b", "", "llama-2-7b generates token by token; denoising is for models without a KV cache"),
        ("flux.1-dev", ":tokens=8", "tokens must be 0: flux.1-dev has no prediction head"),
        ("llada-8b", ":tokens=100,block=32", "block must divide the 100 tokens; got 32"),
        ("llada-8b", ":tokens=96,block=32,steps=50", "steps must be a multiple of the 3 blocks; got 50"),
        ("sd1.5", ":teacher=50", "teacher must take more than the 50 steps of its student; got 50"),
        (
            "sd1.5",
            ":steps=4,guided_teacher=true",
            "guided_teacher needs a teacher, and no guidance of the student; give teacher=50",
        ),
    ],
)
def test_invalid_denoising_parameters_are_refused(model, asked, error):
    with pytest.raises(InputError, match=f"^denoising: {error}$"):
        Setting.of(model, "h100-sxm", techniques=[f"denoising{asked}"])


@pytest.mark.parametrize(("name", "tokens"), [("sd1.5", 64**2), ("sdxl-base-1.0", 128**2)])
def test_notes_say_how_many_tokens_an_image_is(name, tokens):
    note = f"encodes an image as {tokens} tokens: --prompt {tokens} counts one image"
    assert any(note in each for each in analyze(name, "h100-sxm").notes)
    assert not any("counts one image" in each for each in analyze(name, "h100-sxm", prompt=tokens).notes)
