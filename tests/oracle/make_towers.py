"""Count parameters of models that see and matrix-product FLOPs of their towers with an independent counter; write
towers.json.

For each model of `MODELS` the `config` of `models/NAME.yaml` is built by transformers on the meta device (shapes only,
no weights), and its tower and projector are run on images under `torch.utils.flop_counter.FlopCounterMode`. The
numbers come from the executed aten operators, so they share no formula with the package; tests compare its operator
graph with the committed JSON and need neither torch nor transformers.

A multiply-accumulate is 2 FLOPs. Convolutions (the patches), products with weights and products of attention are kept
apart. Images are of the size that the config says, of SIDES where the model takes any, and of PIXELS where it cuts
them into tiles. A tower for texts runs on sequences of TEXT tokens. All layers of a tower are run, also those whose
result is not used (LLaVA). Of a language model that looks at images from layers of its own (Llama 3.2 Vision) a
prefill and a decode step are counted too, by module, with images and without.

    python tests/oracle/make_towers.py           rewrite towers.json
    python tests/oracle/make_towers.py --check   exit 1 with one line for each difference from towers.json
    ... --check --only llava-1.5-7b              of this model
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import torch
import transformers
import yaml
from make_flops import chosen, options, own_flops, settle
from make_parameters import TWINS, twin
from torch.utils.flop_counter import FlopCounterMode
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForImageClassification,
    AutoModelForImageTextToText,
    DynamicCache,
    PreTrainedModel,
    vision_utils,
)
from transformers.models.llava_next.modeling_llava_next import image_size_to_num_patches
from transformers.models.mllama import modeling_mllama

HERE = Path(__file__).resolve().parent
MODEL_FILES = HERE.parent.parent / "models"
ORACLE = HERE / "towers.json"
MODELS: Final = (
    "llava-1.5-7b",
    "llava-1.5-13b",
    "qwen2-vl-2b",
    "qwen2-vl-7b",
    "qwen2-vl-72b",
    "qwen2.5-vl-3b",
    "qwen2.5-vl-7b",
    "qwen2.5-vl-32b",
    "qwen2.5-vl-72b",
    "qwen3-vl-2b",
    "qwen3-vl-4b",
    "qwen3-vl-8b",
    "qwen3-vl-32b",
    "qwen3-vl-30b-a3b-vision",
    "qwen3-vl-235b-a22b",
    "qwen3.5-9b-vision",
    "gemma-3-4b-vision",
    "gemma-3-12b-vision",
    "gemma-3-27b-vision",
    "llama-4-scout-vision",
    "llama-4-maverick-vision",
    "kimi-k2.5-vision",
    "mistral-small-3.1-24b",
    "smolvlm-2.2b",
    "internvl3-1b",
    "paligemma-3b",
    "llava-1.6-mistral-7b",
    "glm-4.5v",
    "llama-3.2-11b-vision",
    "vit-base",
    "vit-large",
    "vit-huge",
    "dinov2-base",
    "dinov2-large",
    "clip-vit-base-patch32",
    "clip-vit-large-patch14",
    "clip-vit-large-patch14-336",
    "siglip-so400m",
)
SIDES: Final = {
    "qwen2_vl": 72,
    "qwen2_5_vl": 72,
    "qwen3_vl": 64,
    "qwen3_vl_moe": 64,
    "qwen3_5": 64,
    "kimi_k25": 72,
    "glm4v_moe": 72,
}  # patches to a side
PIXELS: Final = (1024, 1024)  # of an image that is cut into tiles
TILES: Final = {  # which the processors make of it, and one of all of it
    "internvl": 3 * 3 + 1,
    "idefics3": 4 * 4 + 1,
    "llama4": 4 * 4 + 1,
}
TEXT: Final = 32
ATTENTION: Final = "eager"
KINDS: Final = {  # of aten operators
    "convolution": "patches",
    "mm": "weights",
    "addmm": "weights",
    "bmm": "attention",
    "baddbmm": "attention",
}


def build(name: str) -> tuple[PreTrainedModel, dict[str, Any]]:
    """The model of models/NAME.yaml on the meta device, before it is quantized, and its config."""
    fields = yaml.safe_load((MODEL_FILES / f"{name}.yaml").read_text(encoding="utf-8"))["config"]
    for section in (fields, fields.get("text_config", {})):
        section.pop("quantization_config", None)
    if fields["model_type"] == "kimi_k25":  # the class has names of its own
        fields["text_config"]["model_type"] = "deepseek_v3"
        fields["vision_config"] = {k.removeprefix("vt_"): v for k, v in fields["vision_config"].items()}
    if fields["model_type"] in TWINS:
        fields = twin(fields)
    kind = AutoModel
    if "ForImageClassification" in "".join(fields.get("architectures", ())):
        kind = AutoModelForImageClassification
    elif "vision_config" in fields and fields["model_type"] not in ("clip", "siglip"):
        kind = AutoModelForImageTextToText
    with torch.device("meta"):
        model = kind.from_config(AutoConfig.for_model(**fields), attn_implementation=ATTENTION).eval()
    model.tie_weights()
    return model, fields


def tower_of(model: PreTrainedModel, fields: dict[str, Any]) -> Callable[[int], object]:
    """Runs the tower of a model, with all that brings its result to the prompt, on some images."""
    vision = fields.get("vision_config", fields)
    dtype = next(model.parameters()).dtype
    side = SIDES.get(fields["model_type"])

    def fixed(pictures: int) -> object:
        tiles = tiles_of(fields)
        shape = (pictures * tiles, 3, vision["image_size"], vision["image_size"])
        pixels = torch.empty(shape, device="meta", dtype=dtype)
        if fields["model_type"] == "llava_next":
            return model.get_image_features(pixel_values=pixels, image_sizes=[list(PIXELS)] * pictures)
        if fields["model_type"] == "mistral3":
            sizes = [shape[2:]] * pictures
            seen = model.model.vision_tower(pixels, image_sizes=sizes).last_hidden_state
            return model.model.multi_modal_projector(seen.squeeze(0), sizes)
        if fields["model_type"] == "idefics3":
            tower = model.model.vision_model  # places of patches are looked up in a mask that has no data here
            patches = tower.embeddings.patch_embedding(pixels).flatten(2).transpose(1, 2).contiguous()
            seen = tower.encoder(inputs_embeds=patches)
            return model.model.connector(seen.last_hidden_state)
        if fields["model_type"] == "mllama":
            modeling_mllama._prepare_aspect_ratio_attention_mask = lambda **_: None  # a product, of what is masked
            seen = model.model.vision_model(*pictures_of(vision, (1, pictures), dtype)).last_hidden_state
            return model.model.multi_modal_projector(seen)
        see = getattr(model, "get_image_features", model)
        seen = see(pixel_values=pixels)
        if fields["model_type"] == "llama4":
            return model.multi_modal_projector(seen.last_hidden_state)
        return seen

    def any_size(pictures: int) -> object:
        assert side
        grid = torch.tensor([[1, side, side]] * pictures)
        known: dict[str, Any] = {
            "position_ids": vision_utils.get_vision_position_ids(grid, vision.get("spatial_merge_size", 1)).to("meta"),
            "cu_seqlens": vision_utils.get_vision_cu_seqlens(grid),
        }
        if fields["model_type"] == "qwen2_5_vl":
            window = (vision["spatial_merge_size"], vision["window_size"], vision["patch_size"])
            index, lengths = vision_utils.get_vision_window_index(grid, *window)
            known |= {"window_index": index.to("meta"), "cu_window_seqlens": lengths}
        if fields["model_type"].startswith("qwen3"):
            index, weights = vision_utils.get_vision_interpolation_indices_and_weights(
                grid, num_grid_per_side=48, mode="bilinear", align_corners=True, spatial_merge_size=2
            )
            known |= {"interp_indices": index.to("meta"), "interp_weights": weights.to("meta")}
        if fields["model_type"].startswith("glm4v"):
            model.model.visual.embeddings.forward = lambda patches, *_: patches  # positions, whose data are not here
        pixels = torch.empty((pictures * side**2, model.model.visual.patch_embed.proj.weight[0].numel()), device="meta")
        return model.model.visual(pixels.to(dtype), grid, **known)

    return any_size if side else fixed


def pictures_of(vision: dict[str, Any], shape: tuple[int, int], dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """As many images of all tiles as `shape` says of each sequence, which shape their tiles have, and their mask."""
    tiles, side = vision["max_num_tiles"], vision["image_size"]
    pixels = torch.empty((*shape, tiles, 3, side, side), device="meta", dtype=dtype)
    shapes = torch.zeros(shape, device="meta", dtype=torch.long)
    return pixels, shapes, torch.ones((*shape, tiles), device="meta", dtype=torch.long)


def crossing(model: PreTrainedModel, fields: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A prefill and a step after it, of a language model that looks at images, without the tower."""
    vision, text = fields["vision_config"], fields["text_config"]
    dtype, width = next(model.parameters()).dtype, text["hidden_size"]
    each = vision["max_num_tiles"] * ((vision["image_size"] // vision["patch_size"]) ** 2 + 1)
    for batch, pictures in ((2, 0), (2, 1), (1, 3)):
        tokens = torch.zeros((batch, TEXT + 1), dtype=torch.long, device="meta")
        features = torch.empty((batch, pictures * each, width), device="meta", dtype=dtype) if pictures else None
        cache = DynamicCache(config=model.config)
        for new, states in ((tokens[:, :-1], features), (tokens[:, -1:], None)):
            with torch.no_grad(), FlopCounterMode(display=False) as counter:
                model(new, cross_attention_states=states, past_key_values=cache, use_cache=True)
            case = {"batch": batch, "images": pictures, "q_len": new.shape[1], "kv_len": TEXT + (new.shape[1] == 1)}
            yield {**case, "by_module": own_flops(counter)}


def tiles_of(fields: dict[str, Any]) -> int:
    """Tiles that an image of PIXELS is cut into."""
    if fields["model_type"] == "llava_next":
        side = fields["vision_config"]["image_size"]
        return image_size_to_num_patches(PIXELS, fields["image_grid_pinpoints"], side)
    return TILES.get(fields["model_type"], 1)


def counted(run: Callable[[], object]) -> dict[str, int]:
    """FLOPs of what `run` does, by kind."""
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        run()
    found = dict.fromkeys(KINDS.values(), 0)
    for op, flops in counter.get_flop_counts()["Global"].items():
        found[KINDS[str(op).removeprefix("aten.")]] += flops
    return found


def count(name: str) -> dict[str, Any]:
    """Parameters of one model, and the cases of its tower."""
    model, fields = build(name)
    found: dict[str, Any] = {"parameters": sum(parameter.numel() for parameter in model.parameters())}
    if fields["model_type"] == "kimi_k25":
        return found
    see = tower_of(model, fields)
    together = fields["model_type"] == "mistral3"  # whose images are one sequence under a mask of blocks
    found["cases"] = [{"images": n, **counted(lambda n=n: see(n))} for n in ((1,) if together else (1, 2))]
    if fields["model_type"] == "mllama":
        found["crossing"] = list(crossing(model, fields))
    if fields["model_type"] in ("clip", "siglip"):
        tokens = torch.zeros((2, TEXT), dtype=torch.long, device="meta")
        found["text"] = {"batch": 2, "tokens": TEXT, **counted(lambda: model.text_model(input_ids=tokens))}
    return found


def make(only: Sequence[str] = ()) -> dict[str, Any]:
    """The whole content of towers.json, or that of some models."""
    return {
        "meta": {"torch": torch.__version__, "transformers": transformers.__version__, "attn": ATTENTION},
        "models": {name: count(name) for name in chosen(MODELS, only)},
    }


def main() -> int:
    args = options("Make or check tests/oracle/towers.json.")
    return settle(ORACLE, make(args.only), ("models",), args=args)


if __name__ == "__main__":
    sys.exit(main())
