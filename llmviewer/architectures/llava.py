"""LLaVA 1.5: a CLIP tower, an MLP of two layers and a language model (arXiv:2310.03744).

The features are those of the layer before the last, so the last one and its norm are held but not run.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ..documents import Section
from ..graph import Graph
from ..precision import Format
from . import architecture
from ._parts import HIDDEN, activation
from ._tower import Tower, joined, language, projector, vision
from .clip import clip_tower
from .mistral3 import pixtral_tower
from .siglip import siglip_tower

_TEXT: Final = {  # what a text_config may leave out, as transformers.LlamaConfig has it
    "model_type": "llama",
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
}
_TOWERS: Final = {"clip_vision_model": clip_tower, "siglip_vision_model": siglip_tower, "pixtral": pixtral_tower}
_WITHOUT_LEARNED: Final = "default"


@architecture("llava")
def build(config: Section, fmt: Format) -> Graph:
    text, width = language(config, fmt, _TEXT)
    config.costless("image_seq_length", "pad_token_id", "projector_hidden_size")
    if config.get("vision_config") is None:
        return text
    tower = _tower(config)
    parts = tower.parts(fmt)
    act = activation(config, "projector_hidden_act", "gelu")
    tokens = tower.picture.patches if _select(config) == _WITHOUT_LEARNED else tower.tokens
    bias = config.flag("multimodal_projector_bias", default=True)
    project = projector(parts, parts.tensor(HIDDEN, tower.hidden), (width, width), act, bias=bias)
    return joined(tower.blocks(fmt, tower.stream), project, text, tokens=tokens)


def _select(config: Section) -> str:
    return config.choice("vision_feature_select_strategy", (_WITHOUT_LEARNED, "full"), _WITHOUT_LEARNED)


def _tower(config: Section) -> Tower:
    """The tower, of which all after the layer that features are taken from is held and not run."""
    section = vision(config)
    tower = _TOWERS[section.choice("model_type", _TOWERS)](section)
    layer, layers = config.get("vision_feature_layer"), len(tower.layers)
    layer = -2 if layer is None else layer
    if isinstance(layer, bool) or not isinstance(layer, int) or not -layers - 1 <= layer <= layers:
        raise config.error("vision_feature_layer", f"must be one of the {layers} layers; got {layer!r}")
    run = layer if layer >= 0 else layers + 1 + layer  # -1 is what the last layer leaves, 0 what the first reads
    return replace(tower, run=run)
