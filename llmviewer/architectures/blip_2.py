"""BLIP-2: 32 learned queries of a small BERT look at the patches of a tower in every second layer, and stand for the
picture before a language model that only reads on, such as OPT (arXiv:2301.12597).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ..documents import Section
from ..graph import Block, Graph
from ..precision import Format
from . import architecture
from ._attention import SelfAttention
from ._class_defaults import TOWERS
from ._decoder import Layer, Residual
from ._encoder import CrossLayer, both_ways
from ._feed_forward import Mlp
from ._parts import HIDDEN, NormKind, Parts, activation, heads_of
from ._resampler import FEATURES, Looking, queried
from ._tower import Tower, filled, joined, language, part, picture, vision, vit

_QUERIES: Final = {  # as transformers.Blip2QFormerConfig has it
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "encoder_hidden_size": 1408,
}
_TEXT: Final = {  # as transformers.OPTConfig has it
    "vocab_size": 50272,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "ffn_dim": 3072,
    "max_position_embeddings": 2048,
    "num_attention_heads": 12,
}
_PAIRS: Final = ("t5", "mt5")
_COSTLESS: Final = "image_text_hidden_size num_query_tokens use_decoder_only_language_model is_encoder_decoder"
_QUERIES_COSTLESS: Final = "vocab_size max_position_embeddings use_qformer_text_input model_type"


@architecture("blip-2")
def build(config: Section, fmt: Format) -> Graph:
    text, width = language(_with_text(config), fmt, "opt")
    config.costless(*_COSTLESS.split())
    if config.get("vision_config") is None:
        return text
    tower = _tower(filled(vision(config), TOWERS["Blip2VisionConfig"]))
    section, queries = part(config, "qformer_config"), config.integer("num_query_tokens", 32)
    section.costless(*_QUERIES_COSTLESS.split())
    section = filled(section, _QUERIES)
    hidden = section.integer("hidden_size")
    parts = Parts(format=fmt, norm_kind=NormKind.LAYER)
    *before, last = tower.blocks(fmt, tower.stream)
    blocks = (*before, _left(last), *queried(parts, _layers(section, tower), queries, hidden, norm=True))
    project = parts.project("language_projection", parts.tensor(HIDDEN, hidden), width, bias=True)
    return joined(blocks, (project,), text, tokens=queries)


def _with_text(config: Section) -> Section:
    """What the config of the language model leaves out, where that is OPT.

    Raises InputError where it has an encoder of its own.
    """
    said = {} if config.get("text_config") is None else config.get("text_config")
    kind = said.get("model_type", "opt") if isinstance(said, dict) else ""
    if kind in _PAIRS:
        raise config.error("text_config", f"must be that of a decoder, such as opt; got {kind}")
    return filled(config, instead={"text_config": {**_TEXT, **said}}) if kind == "opt" else config


def _left(norm: Block) -> Block:
    """The last norm of the tower, which leaves what queries look at."""
    (op,) = norm.operators
    return replace(norm, operators=(replace(op, outputs=(replace(op.result, name=FEATURES),)),), output=FEATURES)


def _tower(section: Section) -> Tower:
    seen, bias = picture(section), section.flag("qkv_bias", default=True)
    return vit(
        section, seen, "gelu", fused_qkv=True, qkv_bias=bias, patch_bias=True, learned=1, positions=seen.patches + 1,
        post_norm=True,
    )  # fmt: skip


def _layers(config: Section, tower: Tower) -> list[Layer]:
    """As BERT's; of every few, cross_attention_frequency, the first looks at the patches too."""
    heads = both_ways(heads_of(config))
    attention = SelfAttention(heads=heads, qkv_bias=True, o_bias=True)
    act = activation(config, "hidden_act", "gelu")
    mlp = Mlp(inner=config.integer("intermediate_size"), act=act, bias=True)
    width, every = config.integer("encoder_hidden_size"), config.integer("cross_attention_frequency", 2)
    cross = Looking(heads=heads, features=tower.tokens, width=width, bias=True)
    looking = CrossLayer(mixer=attention, cross=cross, feed_forward=mlp, residual=Residual.POST, name="looking")
    plain = Layer(mixer=attention, feed_forward=mlp, residual=Residual.POST)
    return [plain if index % every else looking for index in range(config.integer("num_hidden_layers"))]
