"""LLaVA 1.5: a CLIP tower, an MLP of two layers and a language model (arXiv:2310.03744).

The features are those of the layer before the last, so the last one and its norm are held but not run. ViP-LLaVA takes
those of five layers, which a norm precedes the MLP of (arXiv:2312.00784).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ..documents import Section
from ..graph import Graph
from ..operators.base import Operator
from ..operators.elementwise import Permute
from ..precision import Format
from . import architecture
from ._parts import HIDDEN, NormKind, Parts, activation, result
from ._tower import UNUSED, Tower, beside, filled, joined, language, layers_run, projector, vision
from .clip import clip_tower
from .mistral3 import pixtral_tower
from .siglip import siglip_tower

_TOWERS: Final = {"clip_vision_model": clip_tower, "siglip_vision_model": siglip_tower, "pixtral": pixtral_tower}
_VIP_LAYERS: Final = [-2, -5, -8, -11, 6]  # as transformers.VipLlavaConfig has it
WITHOUT_LEARNED: Final = "default"


@architecture("llava")
def build(config: Section, fmt: Format) -> Graph:
    text, width = language(config, fmt, "llama")
    config.costless("image_seq_length", "pad_token_id", "projector_hidden_size")
    if config.get("vision_config") is None:
        return text
    tower, taken = seen_tower(config)
    tokens = tower.picture.patches if selected(config) == WITHOUT_LEARNED else tower.tokens
    project = projected(config, tower, tower.parts(fmt), width, taken)
    return joined(tower.blocks(fmt, tower.stream), project, text, tokens=tokens)


@architecture("vipllava")
def build_vip(config: Section, fmt: Format) -> Graph:
    text, width = language(config, fmt, "llama")
    config.costless("image_seq_length", "projector_layernorm_eps")
    if config.get("vision_config") is None:
        return text
    config = filled(config, {"vision_feature_layer": _VIP_LAYERS})
    tower, taken = seen_tower(config)
    parts = tower.parts(fmt)
    gathered, *linears = projected(config, tower, parts, width, taken)
    norm = parts.norm("merge_norm", gathered.outputs[0], kind=NormKind.LAYER)
    first = replace(linears[0], inputs=norm.outputs)
    project = (gathered, norm, first, *linears[1:])
    return joined(tower.blocks(fmt, tower.stream), project, text, tokens=tower.picture.patches)


@architecture("video_llava")
def build_video(config: Section, fmt: Format) -> Graph:
    """A tower more, for films, is held and not run (arXiv:2311.10122)."""
    config.costless("image_seq_length", "video_seq_length")
    seen = build(config, fmt)
    if config.get("vision_config") is None:
        return seen
    tower, _ = seen_tower(config)
    films = (beside(replace(b, stream=UNUSED), name="film") for b in replace(tower, run=None).blocks(fmt, UNUSED))
    return Graph((*films, *seen.blocks))


def selected(config: Section, default: str = WITHOUT_LEARNED) -> str:
    """Which tokens of the tower become features: all, or those that are no class token."""
    return config.choice("vision_feature_select_strategy", (WITHOUT_LEARNED, "full"), default)


def seen_tower(config: Section, layer: int = -2) -> tuple[Tower, int]:
    """The tower, of which all after the last layer that features are taken from is held and not run, and how many
    layers they are taken from; `layer` where the config does not say which.
    """
    section = vision(config)
    tower = _TOWERS[section.choice("model_type", _TOWERS)](section)
    taken = layers_run(config, "vision_feature_layer", len(tower.layers), layer)
    return replace(tower, run=max(taken)), len(taken)


def projected(config: Section, tower: Tower, parts: Parts, width: int, taken: int) -> tuple[Operator, ...]:
    """Two linears of the features of `taken` layers side by side."""
    act = activation(config, "projector_hidden_act", "gelu")
    bias = config.flag("multimodal_projector_bias", default=True)
    x = parts.tensor(HIDDEN, taken * tower.hidden)
    gathered: tuple[Operator, ...] = ()
    if taken > 1:
        gathered = (Permute(name="features", inputs=(x,), outputs=(parts.tensor("features", x.width),)),)
        x = result(gathered)
    return (*gathered, *projector(parts, x, (width, width), act, bias=bias))
