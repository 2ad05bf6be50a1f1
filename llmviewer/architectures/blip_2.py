"""BLIP-2: a Q-Former of 32 learned queries, which cross-attend to the patches of a vision tower in every second layer,
before a decoder such as OPT or an encoder-decoder such as Flan-T5 (arXiv:2301.12597).

InstructBLIP's queries also see the instruction (arXiv:2305.06500). Its length, which no config has, is that of the
field instruction_tokens, _INSTRUCTION tokens without it. InstructBLIP for video reads each frame as an image.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ..documents import Section
from ..forms import TOKENS, images
from ..graph import Block, Graph
from ..operators.base import Operator, Tensor
from ..operators.elementwise import Permute
from ..precision import Format
from ..records import frozen
from . import architecture
from .blocks.attention import SelfAttention
from .blocks.class_defaults import TOWERS
from .blocks.decoder import Layer, Residual
from .blocks.encoder import CrossLayer, bidirectional, stack
from .blocks.feed_forward import Mlp
from .blocks.fields import filled, require_false
from .blocks.parts import HIDDEN, NormKind, Parts, activation, heads_of, result, with_rows
from .blocks.resampler import FEATURES, Looking, queried
from .blocks.tower import Tower, image_rows, joined, language, part, patch_grid, vision, vit

QUERIES: Final = {  # as transformers.Blip2QFormerConfig has it
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
_IGNORED: Final = "image_text_hidden_size num_query_tokens use_decoder_only_language_model is_encoder_decoder"
_INSTRUCTION: Final = 32  # tokens of an instruction
_WORDS: Final = {
    "vocab_size": 30522,
    "max_position_embeddings": 512,
}  # as transformers.InstructBlipQFormerConfig has it
_QUERIES_IGNORED: Final = "vocab_size max_position_embeddings use_qformer_text_input model_type encoder_hidden_size"


@architecture("blip-2")
def build(config: Section, fmt: Format) -> Graph:
    """BLIP-2: a ViT and a Q-Former of learned queries before OPT or Flan-T5."""
    text, width = language(_with_text(config), fmt, "opt")
    config.ignore(*_IGNORED.split())
    if config.get("vision_config") is None:
        return text
    tower = _tower(filled(vision(config), TOWERS["Blip2VisionConfig"]))
    section, queries = part(config, "qformer_config"), config.integer("num_query_tokens", 32)
    section.ignore(*_QUERIES_IGNORED.split())
    require_false(section, "use_qformer_text_input", "words that queries are matched with belong to retrieval")
    section = filled(section, QUERIES, instead={"encoder_hidden_size": tower.hidden})
    hidden = section.integer("hidden_size")
    parts = Parts(format=fmt, norm_kind=NormKind.LAYER)
    *before, last = tower.blocks(fmt, tower.stream)
    blocks = (*before, _left(last), *queried(parts, qformer_layers(section, tower.tokens), queries, hidden, norm=True))
    project = parts.project("language_projection", parts.tensor(HIDDEN, hidden), width, bias=True)
    return joined(blocks, (project,), text, tokens=queries)


@architecture("instructblip", "instructblipvideo")
def build_instruct(config: Section, fmt: Format) -> Graph:
    """InstructBLIP: BLIP-2 whose Q-Former also reads the instruction."""
    text, width = language(_with_text(config), fmt, "opt")
    config.ignore(*_IGNORED.split(), "video_token_index", "image_token_index")
    tower = _tower(filled(part(config, "vision_config"), TOWERS["Blip2VisionConfig"]))
    section = part(config, "qformer_config")
    section.ignore(*_QUERIES_IGNORED.split())
    section = filled(section, QUERIES | _WORDS, instead={"encoder_hidden_size": tower.hidden})
    queries, words = config.integer("num_query_tokens", 32), config.integer("instruction_tokens", _INSTRUCTION)
    hidden, parts = section.integer("hidden_size"), Parts(format=fmt, norm_kind=NormKind.LAYER)
    *before, last = tower.blocks(fmt, tower.stream)
    blocks = (*before, _left(last), *_instructed(parts, section, tower, queries, words))
    x = with_rows(parts.tensor(HIDDEN, hidden), image_rows(queries))
    project = parts.project("language_projection", x, width, bias=True)
    return joined(blocks, (project,), text, tokens=queries)


@frozen(kw_only=True)
class Named:
    """An MLP beside another one, whose names begin with `prefix`."""

    mlp: Mlp
    prefix: str

    def operators(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]:
        return self.mlp.operators(parts, x, prefix=self.prefix, act_name=f"{self.prefix}act")


@frozen(kw_only=True)
class InstructedLayer(Layer):
    """A layer over queries and the words behind them: all attend to each other, and each side has an MLP of its own.

    queries, words  tokens of each side
    cross           attention of queries to the image; None: none in this layer
    reading         MLP of the words
    """

    queries: int
    words: int
    cross: Looking | None
    reading: Named

    def operators(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]:
        if not self.mixer or not self.feed_forward:
            raise RuntimeError("a layer of a Q-Former without attention or MLP")
        attended = self._branch(parts, x, self.mixer, "attn")
        side = with_rows(result(attended), image_rows(self.queries))
        launches: tuple[Operator, ...] = ()
        for name, run in (("cross", self.cross), ("mlp", self.feed_forward)):
            if run:
                branch = self._branch(parts, result(launches) if launches else side, run, name)
                launches = (*launches, *_with_tokens(branch, self.queries))
        words = with_rows(result(attended), image_rows(self.words))
        read = _with_tokens(self._branch(parts, words, self.reading, "words_mlp"), self.words)
        out = parts.tensor("sides", x.width)
        return (
            *attended,
            *launches,
            *read,
            Permute(name=out.name, inputs=(result(launches), result(read)), outputs=(out,)),
        )


def _with_tokens(operators: tuple[Operator, ...], tokens: int) -> tuple[Operator, ...]:
    """`operators` over `tokens` tokens of each image."""
    rows = image_rows(tokens)
    return tuple(op.with_tensors(lambda t: with_rows(t, rows) if t.rows == TOKENS else t) for op in operators)


def _instructed(parts: Parts, config: Section, tower: Tower, queries: int, words: int) -> tuple[Block, ...]:
    """Embeddings of queries and words side by side, a norm, and the layers of the Q-Former."""
    hidden = config.integer("hidden_size")
    embed = parts.embed("queries", {"queries.weight": queries}, hidden)
    tables = {
        "words.weight": config.integer("vocab_size"),
        "positions.weight": config.integer("max_position_embeddings"),
    }
    read = parts.embed("words", tables, hidden)
    sides = (*_with_tokens((embed,), queries), *_with_tokens((read,), words))
    joined_tensor = parts.tensor("sides", hidden)
    join = Permute(name=joined_tensor.name, inputs=tuple(op.result for op in sides), outputs=(joined_tensor,))
    norm = parts.norm("queries_norm", joined_tensor)
    stream = images(queries + words)
    first = Block(name="queries", operators=(*sides, join, norm), input="", output=norm.name, stream=stream)
    act = activation(config, "hidden_act", "gelu")
    reading = Named(mlp=Mlp(inner=config.integer("intermediate_size"), act=act, bias=True), prefix="words_")
    layers = [
        _instructed_layer(layer, queries, words, reading)
        for layer in qformer_layers(config, tower.tokens, attending=queries)
    ]
    blocks = stack(parts, layers, hidden, stream=stream)
    return (first, *(replace(block, name=f"qformer_{block.name}", side_inputs=(FEATURES,)) for block in blocks))


def _instructed_layer(layer: Layer, queries: int, words: int, reading: Named) -> InstructedLayer:
    cross = layer.cross if isinstance(layer, CrossLayer) and isinstance(layer.cross, Looking) else None
    return InstructedLayer(
        mixer=layer.mixer,
        feed_forward=layer.feed_forward,
        residual=layer.residual,
        name=layer.name,
        queries=queries,
        words=words,
        cross=cross,
        reading=reading,
    )


def _with_text(config: Section) -> Section:
    """Adds defaults of OPT to the config of the language model, if it is one."""
    text_config = {} if config.get("text_config") is None else config.get("text_config")
    kind = text_config.get("model_type", "opt") if isinstance(text_config, dict) else ""
    return filled(config, instead={"text_config": {**_TEXT, **text_config}}) if kind == "opt" else config


def _left(norm: Block) -> Block:
    """The last norm of the tower, which leaves what queries attend to."""
    (op,) = norm.operators
    return replace(norm, operators=(replace(op, outputs=(replace(op.result, name=FEATURES),)),), output=FEATURES)


def _tower(section: Section) -> Tower:
    grid, bias = patch_grid(section), section.flag("qkv_bias", default=True)
    return vit(
        section, grid, "gelu", fused_qkv=True, qkv_bias=bias, patch_bias=True, learned=1, positions=grid.patches + 1,
        post_norm=True,
    )  # fmt: skip


def qformer_layers(config: Section, features: int, *, attending: int = 0, tiles: int = 1) -> list[Layer]:
    """Layers of BERT; the first of every cross_attention_frequency also attends to `features` features per tile.

    attending  queries that do so, where words follow them; 0: all tokens
    """
    heads = bidirectional(heads_of(config))
    attention = SelfAttention(heads=heads, qkv_bias=True, o_bias=True)
    act = activation(config, "hidden_act", "gelu")
    mlp = Mlp(inner=config.integer("intermediate_size"), act=act, bias=True)
    width, every = config.integer("encoder_hidden_size"), config.integer("cross_attention_frequency", 2)
    cross = Looking(heads=heads, features=features, width=width, bias=True, attending=attending, tiles=tiles)
    looking = CrossLayer(mixer=attention, cross=cross, feed_forward=mlp, residual=Residual.POST, name="looking")
    plain = Layer(mixer=attention, feed_forward=mlp, residual=Residual.POST)
    return [plain if index % every else looking for index in range(config.count("num_hidden_layers"))]
