"""Count parameters and matrix-product FLOPs of encoders of images and sound with an independent counter; write
multimodal.json.

Each model of `MODELS` is built by transformers on the meta device (shapes only, no weights) from the fields here, and
what brings one image or one piece of sound to the language model is run under
`torch.utils.flop_counter.FlopCounterMode`. The numbers come from the executed aten operators, so they share no formula
with the package; tests compare its operator graph with the committed JSON and need neither torch nor transformers.

A multiply-accumulate is 2 FLOPs. Convolutions, products with weights and products of attention are added up.

    python tests/oracle/make_multimodal.py           rewrite multimodal.json
    python tests/oracle/make_multimodal.py --check   exit 1 with one line for each difference from multimodal.json
    ... --check --only kosmos-2                      of this model
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch
import transformers
from make_flops import chosen, options, settle
from torch.utils.flop_counter import FlopCounterMode
from transformers import CONFIG_MAPPING, PreTrainedModel

ORACLE = Path(__file__).resolve().parent / "multimodal.json"
_WORDS: Final = {"vocabulary_map": {"<image>": 5}}  # which two classes look up as they are built
_QFORMER: Final = {
    "model_type": "blip_2_qformer", "hidden_size": 1024, "num_hidden_layers": 2, "num_attention_heads": 16,
    "intermediate_size": 4096, "encoder_hidden_size": 1024, "cross_attention_frequency": 1,
}  # fmt: skip
_SQUARE: Final = {
    "model_type": "siglip_vision_model", "hidden_size": 96, "intermediate_size": 200, "num_hidden_layers": 3,
    "num_attention_heads": 4, "image_size": 64, "patch_size": 16, "vision_use_head": False,
}  # fmt: skip
_SAM: Final = {  # whole windows, so that none is filled up
    "hidden_size": 64, "output_channels": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "image_size": 448,
    "patch_size": 16, "window_size": 14, "global_attn_indexes": [2], "mlp_dim": 100,
}  # fmt: skip


def _pixels(*shape: int) -> torch.Tensor:
    return torch.empty(shape, device="meta")


def _instructed(model: Any) -> object:
    """The tower and the Q-Former, with 32 words behind the queries and nothing masked."""
    patches = model.vision_model(_pixels(1, 3, 224, 224)).last_hidden_state
    embedded = model.qformer.embeddings(
        input_ids=torch.zeros((1, 32), dtype=torch.long, device="meta"), query_embeds=_pixels(1, 32, 768)
    )
    seen = model.qformer.encoder(embedded, None, patches, None, query_length=32).last_hidden_state
    return model.language_projection(seen[:, :32])


def _heard(model: Any) -> object:
    """The audio tower on ten seconds; lengths are known, so that nothing is read from tensors without data."""
    tower, frames = model.model.audio_tower, 1000
    x = _pixels(frames // 100, 1, 128, 100)
    for convolution in (tower.conv2d1, tower.conv2d2, tower.conv2d3):
        x = convolution(x)
    x = tower.conv_out(x.permute(0, 3, 1, 2).flatten(2)).reshape(-1, tower.config.d_model)
    ends = torch.tensor([0, 104, x.shape[0]], dtype=torch.int32)
    for layer in tower.layers:
        x = layer(x, ends)[0]
    return model.model.multi_modal_projector(x)


# name: (fields, class, what brings one image or piece of sound to the prompt)
MODELS: Final[Mapping[str, tuple[dict[str, Any], str, Callable[[Any], object]]]] = {
    "chameleon": (
        {"model_type": "chameleon"},
        "ChameleonForConditionalGeneration",
        lambda model: model.model.vqmodel.encode(_pixels(1, 3, 512, 512)),
    ),
    "deepseek_vl_hybrid": (
        {"model_type": "deepseek_vl_hybrid", "vision_config": _SQUARE, "high_res_vision_config": _SAM},
        "DeepseekVLHybridForConditionalGeneration",
        lambda model: model.model.get_image_features(_pixels(1, 3, 64, 64), _pixels(1, 3, 448, 448)),
    ),
    "emu3": (
        {"model_type": "emu3", "picture_size": [128, 256]},
        "Emu3ForConditionalGeneration",
        lambda model: model.model.vqmodel.encode(_pixels(1, 3, 128, 256), torch.tensor([[128, 256]])),
    ),
    "florence2": (
        {"model_type": "florence2", "picture_size": [500, 700]},
        "Florence2ForConditionalGeneration",
        lambda model: model.get_image_features(_pixels(1, 3, 500, 700)),
    ),
    "granite_speech": (
        {"model_type": "granite_speech", "text_config": {}, "projector_config": _QFORMER, "sound_seconds": 7},
        "GraniteSpeechForConditionalGeneration",
        lambda model: model.model.encoder(_pixels(1, 350, 160)),
    ),
    "instructblip": (
        {"model_type": "instructblip"},
        "InstructBlipForConditionalGeneration",
        _instructed,
    ),
    "kosmos-2": (
        {"model_type": "kosmos-2"},
        "Kosmos2ForConditionalGeneration",
        lambda model: model.get_image_features(_pixels(1, 3, 224, 224)),
    ),
    "kosmos-2.5": (
        {"model_type": "kosmos-2.5"},
        "Kosmos2_5ForConditionalGeneration",
        lambda model: model.get_image_features(_pixels(1, 4096, 770)),
    ),
    "qwen3_asr": (
        {"model_type": "qwen3_asr", "sound_seconds": 10},
        "Qwen3ASRForConditionalGeneration",
        _heard,
    ),
}


def build(fields: Mapping[str, Any], name: str) -> PreTrainedModel:
    kept = {key: value for key, value in fields.items() if key not in ("model_type", "picture_size", "sound_seconds")}
    words = _WORDS if fields["model_type"] in ("chameleon", "emu3") else {}
    with torch.device("meta"):
        model = getattr(transformers, name)(CONFIG_MAPPING[fields["model_type"]](**kept, **words)).eval()
    model.set_attn_implementation("eager")
    return model


def count(name: str) -> dict[str, Any]:
    fields, kind, run = MODELS[name]
    model = build(fields, kind)
    with FlopCounterMode(display=False) as counter:
        run(model)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return {"config": fields, "parameters": parameters, "flops": counter.get_total_flops()}


def make(only: Sequence[str] = ()) -> dict[str, Any]:
    """The whole content of multimodal.json, or that of some models."""
    return {
        "meta": {"torch": torch.__version__, "transformers": transformers.__version__},
        "models": {name: count(name) for name in chosen(MODELS, only)},
    }


def main() -> int:
    args = options("Make or check tests/oracle/multimodal.json.")
    return settle(ORACLE, make(args.only), ("models",), args=args)


if __name__ == "__main__":
    sys.exit(main())
