"""Draft models of EAGLE (arXiv:2401.15077) and EAGLE-3 (arXiv:2503.01840), from configs whose class has that name.

They read hidden states of the model that they draft for, beside their own tokens. Shapes are those of SafeAILab/EAGLE,
cnets1.py and cnets.py, and of vLLM's llama_eagle.py and llama_eagle3.py. Not modeled: the fusion of EAGLE-3 runs for
every token here; later steps of one draft read the draft's own hidden state, which needs none.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ..documents import Section
from ..graph import Block, Graph
from ..operators.base import Operator, Tensor
from ..precision import Format
from ..records import frozen
from . import architecture
from .blocks.decoder import Decoder, Layer, UnnormedLayer
from .blocks.fields import attention, gated_mlp
from .blocks.parts import Parts

_FUSED: Final = 3  # layers of the model whose hidden states are joined
_LAYERS: Final = ("llama", "mistral", "eagle", "eagle3")
_EMBEDDED: Final = "embed_tokens"
_TARGET: Final = "target_hidden"


class FusingLayer(Layer):
    """A layer whose attention reads the embedding and the hidden state side by side, each after a norm."""

    def operators(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]:
        assert self.mixer
        assert self.feed_forward
        embedded = parts.tensor(_EMBEDDED, x.width)
        norms = [parts.norm(name, t) for name, t in (("embed_norm", embedded), ("hidden_norm", x))]
        joined_norm = replace(
            norms[0],
            name="attn_norm",
            inputs=(embedded, x),
            outputs=(parts.tensor("attn_norm", 2 * x.width),),
            weights=tuple(w for norm in norms for w in norm.weights),
        )
        *mixed, wide = self.mixer.operators(parts, joined_norm.result)
        o_proj = parts.project(wide.name, wide.inputs[0], x.width, bias=len(wide.weights) > 1)
        add = parts.add("attn_add", x, o_proj.result)
        return (joined_norm, *mixed, o_proj, add, *self._branch(parts, add.result, self.feed_forward, "mlp"))


@frozen(kw_only=True)
class Fusing(Decoder):
    """A decoder whose first layer reads hidden states of another model.

    fused     width of those, which are projected to one; 0: they are read as they are
    joined    whether the projection also reads the embedding, and the layers nothing but its result
    fc_bias   whether the projection has a bias
    """

    fused: int
    joined: bool = False
    fc_bias: bool = False

    def graph(self, fmt: Format) -> Graph:
        first, *others = super().graph(fmt).blocks
        if not self.fused:
            return Graph((first, *others))
        parts = Parts(format=fmt, norm_kind=self.norm)
        fc = parts.project("fc", parts.tensor(_TARGET, self.fused), self.hidden, bias=self.fc_bias)
        if self.joined:  # reads the embedding too
            fc = replace(fc, inputs=(parts.tensor(_EMBEDDED, self.fused),))
        read = _EMBEDDED if self.joined else _TARGET
        return Graph((first, Block(name="fusion", operators=(fc,), input=read, output="fc"), *others))


@architecture("eagle3")
def build_eagle3(config: Section, fmt: Format) -> Graph:
    """A fusing layer, further layers if any, and a head of the most frequent words."""
    _check_layers(config)
    config.ignore("norm_before_residual", "bias", "target_model_type")
    count = config.count("num_hidden_layers")
    plain = Layer(mixer=attention(config), feed_forward=gated_mlp(config))
    first = FusingLayer(mixer=plain.mixer, feed_forward=plain.feed_forward, name="fusing", given=(_EMBEDDED,))
    vocab = config.integer("vocab_size")
    return Fusing(
        vocab=vocab,
        hidden=config.integer("hidden_size"),
        layers=[first, *[plain] * (count - 1)],
        words=config.integer("draft_vocab_size", vocab),
        tied=False,
        fused=_fused_width(config),
    ).graph(fmt)


def _check_layers(config: Section) -> None:
    """Raises InputError for a draft made of other layers than Llama's."""
    if (kind := config.text("model_type")) not in _LAYERS:
        raise config.error("model_type", f"must be llama or mistral, whose layers drafts of EAGLE have; got {kind!r}")


def _fused_width(config: Section) -> int:
    """Width of the hidden states that are joined; 0 if the draft reads those of the last layer alone."""
    width = config.integer("target_hidden_size", config.integer("hidden_size"))
    if config.get("eagle_config") is None:
        return _FUSED * width
    section = config.section("eagle_config")
    if not section.flag("use_aux_hidden_state", default=True):
        return 0
    layers = section.get("eagle_aux_hidden_state_layer_ids")
    return width * (len(layers) if isinstance(layers, list) and layers else _FUSED)


@architecture("eagle")
def build_eagle(config: Section, fmt: Format) -> Graph:
    """A projection of embedding and hidden state, then layers, the first without a norm; the head is the model's."""
    _check_layers(config)
    plain = Layer(mixer=attention(config), feed_forward=gated_mlp(config))
    first = UnnormedLayer(mixer=plain.mixer, feed_forward=plain.feed_forward, name="first")
    hidden = config.integer("hidden_size")
    return Fusing(
        vocab=config.integer("vocab_size"),
        hidden=hidden,
        layers=[first, *[plain] * (config.count("num_hidden_layers") - 1)],
        tied=True,
        final_norm=False,
        fused=2 * hidden,
        joined=True,
        fc_bias=config.flag("bias", default=True),
    ).graph(fmt)
