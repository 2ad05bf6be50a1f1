"""Denoising transformers of the diffusers library, by the class that their config.json names: FLUX.1, Stable Diffusion
3 and 3.5, PixArt and DiT (arXiv:2403.03206, arXiv:2310.00426, arXiv:2212.09748).

A pass is one step of denoising of the latents of `batch` images. Its prompt counts the patches of one latent: 4,096 for
1024 x 1024 pixels. Each image has `text_tokens` tokens of text beside them, a field of this program, by default the
number that the pipeline of the class pads prompts to. Encoders of text and the autoencoder are models of their own.
Guidance without a classifier takes two sequences for an image; the technique `denoising` counts steps and guidance.

The rows of image and text are one residual stream, as attention sees both; additions, norms and their modulation are
one launch for both. Fixed positions are not counted as parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from ..documents import Section
from ..forms import SEQUENCES, TOKENS, Form
from ..graph import Block, Graph
from ..operators.attention import Heads
from ..operators.base import Operator, Tensor
from ..operators.elementwise import Add, Elementwise, Rope
from ..operators.masks import Bidirectional, BidirectionalWithExtra, FixedKeys
from ..precision import Format
from ..records import frozen
from . import architecture
from .blocks.attention import scored
from .blocks.parts import HIDDEN, NormKind, Parts, result, with_rows

CLASSES: Final = (
    "DiTTransformer2DModel", "FluxTransformer2DModel", "PixArtTransformer2DModel", "SD3Transformer2DModel",
    "UNet2DConditionModel",
)  # fmt: skip
_TIME_WAVES: Final = 256
_CONDITION: Final = "condition"  # tensor of each sequence: its time, its pooled text, its class
_TEXT: Final = "text"  # tensor of the text tokens
_UNREAD: Final = "_class_name _diffusers_version _name_or_path _use_default_values"


@architecture("FluxTransformer2DModel")
def build_flux(config: Section, fmt: Format) -> Graph:
    """FLUX.1: layers with weights of their own for image and text, then layers with the same for both."""
    config.ignore(*_UNREAD.split(), "axes_dims_rope", "out_channels")
    heads, text = _heads(config, 24, 128), config.integer("text_tokens", 512)
    patch, channels = config.integer("patch_size", 1), config.integer("in_channels", 64)
    net = _Net(parts=_parts(fmt), hidden=heads.q_width, heads=heads, text=text, rotated=heads.head_dim, norms=True)
    return Graph(
        (
            net.text_block(config.integer("joint_attention_dim", 4096)),
            net.linear_embedding(channels),
            net.condition(
                pooled=config.integer("pooled_projection_dim", 768),
                guided=config.flag("guidance_embeds", default=False),
            ),
            net.block("double", net.double(), range(first := config.count("num_layers", 19))),
            net.block("single", net.single(), range(first, first + config.count("num_single_layers", 38))),
            net.head(patch**2 * config.integer("out_channels", channels)),
        )
    )


@architecture("SD3Transformer2DModel")
def build_sd3(config: Section, fmt: Format) -> Graph:
    """Stable Diffusion 3 and 3.5. The last layer leaves the text as it is; some layers of 3.5 medium attend to the
    image once more.
    """
    config.ignore(*_UNREAD.split(), "pos_embed_max_size", "caption_projection_dim")
    heads, text, layers = _heads(config, 18, 64), config.integer("text_tokens", 333), config.count("num_layers", 18)
    if config.integer("caption_projection_dim", heads.q_width) != heads.q_width:
        raise config.error("caption_projection_dim", f"must be the {heads.q_width} of all heads")
    norms = config.get("qk_norm") is not None and config.choice("qk_norm", ("rms_norm",)) == "rms_norm"
    net = _Net(parts=_parts(fmt), hidden=heads.q_width, heads=heads, text=text, norms=norms)
    dual = set(_indices(config, "dual_attention_layers", layers))
    kinds = {
        name: [index for index in range(layers) if (index in dual) == twice and (index == layers - 1) == last]
        for name, twice, last in _SD3_LAYERS
    }
    blocks = [
        net.block(name, net.double(twice=twice, leaves_text=last), kinds[name])
        for name, twice, last in _SD3_LAYERS
        if kinds[name]
    ]
    channels, patch = config.integer("in_channels", 16), config.integer("patch_size", 2)
    return Graph(
        (
            net.text_block(config.integer("joint_attention_dim", 4096)),
            net.patch_embedding(channels, patch, config.integer("sample_size", 128)),
            net.condition(pooled=config.integer("pooled_projection_dim", 2048)),
            *blocks,
            net.head(patch**2 * config.integer("out_channels", channels)),
        )
    )


_SD3_LAYERS: Final = (("dual", True, False), ("joint", False, False), ("dual_last", True, True), ("last", False, True))


@architecture("PixArtTransformer2DModel")
def build_pixart(config: Section, fmt: Format) -> Graph:
    """PixArt-alpha and -sigma: one modulation for all layers, to which each adds a table; attention to the image, then
    to the text.
    """
    config.ignore(*_BASIC.split())
    heads, size = _heads(config, 16, 72), config.integer("sample_size", 128)
    _fixed(config, heads)
    size_conditions = config.get("use_additional_conditions")
    sized = config.flag("use_additional_conditions", default=size == _SIZED)
    # Defaults of the pipelines of sigma and alpha.
    text = config.integer("text_tokens", 300 if size_conditions is False else 120)
    net = _Net(parts=_parts(fmt), hidden=heads.q_width, heads=heads, text=text, biased=_biased(config))
    channels, patch = config.integer("in_channels", 4), config.integer("patch_size", 2)
    return Graph(
        (
            net.caption(config.integer("caption_channels", 4096)),
            net.patch_embedding(channels, patch, size),
            net.shared_modulation(sized=sized),
            net.block("layer", net.tabled(), range(config.count("num_layers", 28)), _MODULATION, _CAPTION),
            net.tabled_head(patch**2 * config.integer("out_channels", 8)),
        )
    )


@architecture("DiTTransformer2DModel")
def build_dit(config: Section, fmt: Format) -> Graph:
    """DiT: every layer embeds time and class anew, with weights of its own."""
    config.ignore(*_BASIC.split())
    heads = _heads(config, 16, 72)
    _fixed(config, heads)
    net = _Net(parts=_parts(fmt), hidden=heads.q_width, heads=heads, biased=_biased(config))
    channels, patch = config.integer("in_channels", 4), config.integer("patch_size", 2)
    classes = config.integer("num_embeds_ada_norm", 1000) + 1  # and one for none
    layers = config.count("num_layers", 28)
    return Graph(
        (
            net.patch_embedding(channels, patch, config.integer("sample_size", 32)),
            net.block("layer", net.conditioned(classes), range(layers), side_inputs=()),
            net.conditioned_head(classes, patch**2 * config.integer("out_channels", channels)),
        )
    )


_BASIC: Final = (
    _UNREAD + " activation_fn dropout norm_elementwise_affine norm_eps norm_num_groups norm_type upcast_attention"
    " double_self_attention only_cross_attention num_vector_embeds use_linear_projection interpolation_scale"
    " attention_type num_embeds_ada_norm cross_attention_dim"
)
_SIZED: Final = 128  # sample_size of the class from which on PixArt-alpha is told the size of images
_MODULATION: Final = "modulation"
_CAPTION: Final = "caption"


def _parts(fmt: Format) -> Parts:
    return Parts(format=fmt, norm_kind=NormKind.PLAIN)


def _heads(config: Section, number: int, width: int) -> Heads:
    number = config.integer("num_attention_heads", number)
    return Heads(num_heads=number, num_kv_heads=number, head_dim=config.integer("attention_head_dim", width))


def _fixed(config: Section, heads: Heads) -> None:
    """Raises InputError for settings of the class that no published model has."""
    config.choice("activation_fn", ("gelu-approximate",), "gelu-approximate")
    if config.integer("cross_attention_dim", heads.q_width) != heads.q_width:
        raise config.error("cross_attention_dim", f"must be the {heads.q_width} of all heads")


def _biased(config: Section) -> bool:
    return config.flag("attention_bias", default=True)


def _indices(config: Section, key: str, layers: int) -> Sequence[int]:
    listed = config.get(key) or []
    if not isinstance(listed, list) or not all(isinstance(n, int) and 0 <= n < layers for n in listed):
        raise config.error(key, f"must be a list of layers from 0 to {layers - 1}")
    return listed


@frozen(kw_only=True)
class _Net:
    """Makes the blocks of a denoising transformer.

    text     text tokens of each image; 0: none
    rotated  elements of each head with rotary positions; 0: none
    norms    whether queries and keys have an RMSNorm
    biased   whether projections of attention have biases
    """

    parts: Parts
    hidden: int
    heads: Heads
    text: int = 0
    rotated: int = 0
    norms: bool = False
    biased: bool = True

    @property
    def words(self) -> Form:
        """Rows of text."""
        return self.text * SEQUENCES

    @property
    def rows(self) -> Form:
        """Rows of image and text."""
        return TOKENS + self.words

    def each(self, name: str, width: int) -> Tensor:
        """A tensor with a row for each sequence."""
        return with_rows(self.parts.tensor(name, width), SEQUENCES)

    def stream(self, name: str, width: int) -> Tensor:
        """A tensor with a row for each token of image and text."""
        return with_rows(self.parts.tensor(name, width), self.rows)

    def block(
        self,
        name: str,
        operators: tuple[Operator, ...],
        layers: Sequence[int],
        *more_outputs: str,
        side_inputs: tuple[str, ...] = (_CONDITION,),
    ) -> Block:
        out = result(operators).name
        return Block(
            name=name,
            operators=operators,
            input=HIDDEN,
            output=out,
            layers=tuple(layers),
            side_inputs=more_outputs or side_inputs,
        )

    # Blocks before the layers

    def text_block(self, width: int) -> Block:
        x = with_rows(self.parts.tensor(_TEXT, width), self.words)
        out = with_rows(self.parts.tensor("context_embedder", self.hidden), self.words)
        embed = self.parts.linear(out.name, x, out, bias=True)
        return Block(name="context", operators=(embed,), input=_TEXT, output=out.name)

    def caption(self, width: int) -> Block:
        """Two products of the text, which layers attend to."""
        x = with_rows(self.parts.tensor(_TEXT, width), self.words)
        wide = [with_rows(self.parts.tensor(name, self.hidden), self.words) for name in ("caption_linear_1", _CAPTION)]
        first = self.parts.linear("caption_linear_1", x, wide[0], bias=True)
        act = self.parts.activate("caption_act", "gelu_tanh", first.result)
        second = self.parts.linear("caption_linear_2", act.result, wide[1], bias=True)
        return Block(name="context", operators=(first, act, second), input=_TEXT, output=_CAPTION)

    def linear_embedding(self, channels: int) -> Block:
        embed = self.parts.project("x_embedder", self.parts.tensor("pixels", channels), self.hidden, bias=True)
        return Block(name="embedding", operators=(embed,), input="pixels", output=embed.result.name)

    def patch_embedding(self, channels: int, patch: int, size: int) -> Block:
        pixels = self.parts.tensor("pixels", channels * patch**2)
        embedding = self.parts.patches(
            "patch_embed", pixels, self.parts.tensor("patch_embed", self.hidden), (size // patch) ** 2
        )
        placed = self.parts.tensor("position_add", self.hidden)
        add = Add(name=placed.name, inputs=embedding.outputs, outputs=(placed,), ops_per_element=1)
        return Block(name="embedding", operators=(embedding, add), input="pixels", output=placed.name)

    def condition(self, *, pooled: int, guided: bool = False) -> Block:
        """The sum of embeddings of the time, of the scale of guidance, and of the pooled text."""
        text = self.each("pooled", pooled)
        embedded = [self._waved("time"), *([self._waved("guidance")] if guided else [])]
        embedded.append(self._two("text", text, self.hidden))
        out = self.each(_CONDITION, self.hidden)
        summed = tuple(result(embedder) for embedder in embedded)
        add = Add(name="condition_add", inputs=summed, outputs=(out,), ops_per_element=len(summed) - 1)
        operators = tuple(op for embedder in embedded for op in embedder)
        return Block(name="conditioning", operators=(*operators, add), input=text.name, output=_CONDITION)

    def shared_modulation(self, *, sized: bool) -> Block:
        """The embedding of the time, with those of the image's size, and six numbers per element made of it."""
        time = self._waved("time")
        out, operators = result(time), time
        if sized:  # height and width, and their ratio: a third of the width each
            third = self.hidden // 3
            size, ratio = self._waved("resolution", third, rows=2 * SEQUENCES), self._waved("aspect_ratio", third)
            out = self.each("condition_add", self.hidden)
            summed = (result(time), result(size), result(ratio))
            operators = (*time, *size, *ratio, Add(name=out.name, inputs=summed, outputs=(out,), ops_per_element=1))
        named = replace(out, name=_CONDITION)
        operators = (*operators[:-1], replace(operators[-1], outputs=(named,)))
        act = self.parts.activate("modulation_act", "silu", named)
        six = self.parts.linear(_MODULATION, act.result, self.each(_MODULATION, 6 * self.hidden), bias=True)
        return Block(name="conditioning", operators=(*operators, act, six), input="", output=_MODULATION)

    def _waved(self, name: str, width: int = 0, rows: Form = SEQUENCES) -> tuple[Operator, ...]:
        """Waves of a number, scaled and a sine or cosine each, and two products."""
        waves = with_rows(self.parts.tensor(f"{name}_waves", _TIME_WAVES), rows)
        sinusoids = Elementwise(name=waves.name, inputs=(), outputs=(waves,), ops_per_element=2)
        return (sinusoids, *self._two(name, waves, width or self.hidden))

    def _two(self, name: str, x: Tensor, width: int) -> tuple[Operator, ...]:
        first, second = (with_rows(self.parts.tensor(f"{name}_linear_{n}", width), x.rows) for n in (1, 2))
        up_proj = self.parts.linear(first.name, x, first, bias=True)
        act = self.parts.activate(f"{name}_act", "silu", up_proj.result)
        return (up_proj, act, self.parts.linear(second.name, act.result, second, bias=True))

    # Layers

    def double(self, *, twice: bool = False, leaves_text: bool = False) -> tuple[Operator, ...]:
        """Attention over image and text and an MLP for each, with weights of their own.

        twice        whether the image attends to itself once more
        leaves_text  whether the text stays as it is after attention
        """
        x, d = self.stream(HIDDEN, self.hidden), self.hidden
        act = self.parts.activate("modulation_act", "silu", self.each(_CONDITION, d))
        modulation = self._numbers("modulation", act.result, 9 if twice else 6)
        other = self._numbers("context_modulation", act.result, 2 if leaves_text else 6)
        operators: tuple[Operator, ...] = (act, modulation, other)
        normed = self._modulated("attn_norm", x, modulation, other)
        attended, out = self._joint(result(normed), leaves_text=leaves_text)
        rows = TOKENS if leaves_text else self.rows
        operators = (*operators, *normed, *attended)
        if twice:
            self_attended = self._attended("self_", with_rows(result(normed), TOKENS))
            operators, out = (*operators, *self_attended), (*out, result(self_attended))
        add = self._added("attn_add", x, out, modulation, other, rows=rows)
        mlp_in = self._modulated("mlp_norm", with_rows(add.result, rows), modulation, other)
        mlp = self._mlp("", with_rows(result(mlp_in), TOKENS))
        if not leaves_text:
            mlp = (*mlp, *self._mlp("context_", with_rows(result(mlp_in), self.words)))
        outs = tuple(op.result for op in mlp if op.name.endswith("down_proj"))
        return (*operators, add, *mlp_in, *mlp, self._added("mlp_add", add.result, outs, modulation, other, rows=rows))

    def _joint(self, x: Tensor, *, leaves_text: bool) -> tuple[tuple[Operator, ...], tuple[Tensor, ...]]:
        """Attention of image and text to both, and the results of its projections."""
        image, text = with_rows(x, TOKENS), with_rows(x, self.words)
        width = self.heads.q_width
        plain = [self._linear(f"{name}_proj", image, width) for name in "qkv"]
        context = [self._linear(f"context_{name}_proj", text, width) for name in "qkv"]
        q, k, v = (with_rows(op.result, self.rows) for op in plain)
        context_tensors = [
            with_rows(op.result, Form()) for op in context
        ]  # their rows are counted with those of the image
        prepared: tuple[Operator, ...] = ()
        if self.norms:
            norms = [
                self._normed(name, t, other)
                for name, t, other in (("q", q, context_tensors[0]), ("k", k, context_tensors[1]))
            ]
            q, k, prepared, context_tensors = norms[0].result, norms[1].result, tuple(norms), context_tensors[2:]
        if self.rotated:
            prepared, q, k = self._rotated(prepared, q, k)
        launches = self._scores(q, (k, *context_tensors[:-1]), (v, context_tensors[-1]))
        o_proj = self._linear("o_proj", with_rows(result(launches), TOKENS), self.hidden)
        operators = (*plain, *context, *prepared, *launches, o_proj)
        if leaves_text:
            return operators, (o_proj.result,)
        other = self._linear("context_o_proj", with_rows(result(launches), self.words), self.hidden)
        return (*operators, other), (o_proj.result, other.result)

    def single(self) -> tuple[Operator, ...]:
        """Attention and MLP side by side, with the same weights for image and text."""
        x = self.stream(HIDDEN, self.hidden)
        act = self.parts.activate("modulation_act", "silu", self.each(_CONDITION, self.hidden))
        modulation = self._numbers("modulation", act.result, 3)
        normed = self._modulated("attn_norm", x, modulation)
        q, k, v = (self._linear(f"{name}_proj", result(normed), self.heads.q_width) for name in "qkv")
        norms = tuple(self._normed(name, op.result) for name, op in (("q", q), ("k", k)))
        prepared, query, key = self._rotated(norms, norms[0].result, norms[1].result)
        operators = self._scores(query, (key,), (v.result,))
        up_proj = self._linear("up_proj", result(normed), 4 * self.hidden)
        mid = self.parts.activate("mlp_act", "gelu_tanh", up_proj.result)
        # one matrix for both, whose parts are two products here
        down = self._linear("down_proj", mid.result, self.hidden)
        o_proj = self.parts.linear("o_proj", result(operators), self.stream("o_proj", self.hidden))
        add = self._added("mlp_add", x, (o_proj.result, down.result), modulation)
        return (act, modulation, *normed, q, k, v, *prepared, *operators, up_proj, mid, o_proj, down, add)

    def tabled(self) -> tuple[Operator, ...]:
        """Attention to the image, to the text, and an MLP; modulated by the sum of shared numbers and a table."""
        numbers = self.each(_MODULATION, 6 * self.hidden)
        table = self.parts.elementwise("table_add", numbers, ops=1, weights={"scale_shift_table": 6 * self.hidden})
        table = replace(table, outputs=(self.each("table_add", 6 * self.hidden),))
        x = self.parts.tensor(HIDDEN, self.hidden)
        normed = self._modulated("attn_norm", x, table)
        attended = self._attended("", result(normed))
        first = self._added("attn_add", x, (result(attended),), table)
        crossed = self._crossed(first.result)
        second = self.parts.add("cross_add", first.result, result(crossed))
        mlp_in = self._modulated("mlp_norm", second.result, table)
        mlp = self._mlp("", result(mlp_in))
        last = self._added("mlp_add", second.result, (result(mlp),), table)
        return (table, *normed, *attended, first, *crossed, second, *mlp_in, *mlp, last)

    def conditioned(self, classes: int) -> tuple[Operator, ...]:
        """Embeddings of time and class, attention and an MLP."""
        embedded = self._class(classes)
        act = self.parts.activate("modulation_act", "silu", result(embedded))
        modulation = self._numbers("modulation", act.result, 6)
        x = self.parts.tensor(HIDDEN, self.hidden)
        normed = self._modulated("attn_norm", x, modulation)
        attended = self._attended("", result(normed))
        add = self._added("attn_add", x, (result(attended),), modulation)
        mlp_in = self._modulated("mlp_norm", add.result, modulation)
        mlp = self._mlp("", result(mlp_in))
        last = self._added("mlp_add", add.result, (result(mlp),), modulation)
        return (*embedded, act, modulation, *normed, *attended, add, *mlp_in, *mlp, last)

    # Heads

    def head(self, out: int) -> Block:
        act = self.parts.activate("modulation_act", "silu", self.each(_CONDITION, self.hidden))
        modulation = self._numbers("modulation", act.result, 2)
        return self._head((act, modulation), modulation, out, _CONDITION)

    def tabled_head(self, out: int) -> Block:
        """Norm and modulation by the embedding of the time, the first sixth of what layers get, and a table."""
        numbers = self.each(_MODULATION, self.hidden)
        table = self.parts.elementwise("table_add", numbers, ops=1, weights={"scale_shift_table": 2 * self.hidden})
        table = replace(table, outputs=(self.each("table_add", 2 * self.hidden),))
        return self._head((table,), table, out, _MODULATION)

    def conditioned_head(self, classes: int, out: int) -> Block:
        """Time and class are embedded by the weights of the first layer."""
        embedded = tuple(op.with_weights(lambda w: replace(w, tied=True)) for op in self._class(classes))
        act = self.parts.activate("modulation_act", "silu", result(embedded))
        modulation = self._numbers("modulation", act.result, 2)
        return self._head((*embedded, act, modulation), modulation, out)

    def _head(self, before: tuple[Operator, ...], modulation: Operator, out: int, *side_inputs: str) -> Block:
        normed = self._modulated("final_norm", self.parts.tensor(HIDDEN, self.hidden), modulation)
        last = self.parts.project("proj_out", result(normed), out, bias=True)
        return Block(
            name="head",
            operators=(*before, *normed, last),
            input=HIDDEN,
            output=last.result.name,
            side_inputs=side_inputs,
        )

    # Parts of layers

    def _linear(self, name: str, x: Tensor, width: int) -> Operator:
        bias = self.biased or "_proj" not in name or name.endswith(("o_proj", "up_proj", "down_proj"))
        return self.parts.linear(name, x, with_rows(self.parts.tensor(name, width), x.rows), bias=bias)

    def _numbers(self, name: str, act: Tensor, count: int) -> Operator:
        """`count` numbers for each element of a token, which all tokens of a sequence share."""
        return self.parts.linear(name, act, self.each(name, count * self.hidden), bias=True)

    def _modulated(self, name: str, x: Tensor, *numbers: Operator) -> tuple[Operator, ...]:
        """The norm of x, scaled and shifted."""
        norm = self.parts.norm(name, x)
        two = [self.each(op.result.name, 2 * self.hidden) for op in numbers]
        scaled = self.parts.elementwise(f"{name}_modulated", norm.result, *two, ops=2)
        return (norm, replace(scaled, outputs=(replace(scaled.result, rows=x.rows),)))

    def _added(
        self, name: str, x: Tensor, branches: tuple[Tensor, ...], *numbers: Operator, rows: Form | None = None
    ) -> Operator:
        """X plus branches, each scaled by a gate."""
        out = with_rows(self.parts.tensor(name, self.hidden), rows or x.rows)
        gates = [self.each(op.result.name, self.hidden) for op in numbers]
        x = with_rows(x, rows or x.rows)
        # branches of image and text have rows of their own: an Add would sum their parts on several devices
        kind = Add if len({branch.rows for branch in branches}) == 1 else Elementwise
        return kind(name=name, inputs=(x, *branches, *gates), outputs=(out,), ops_per_element=2)

    def _mlp(self, prefix: str, x: Tensor) -> tuple[Operator, ...]:
        up_proj = self._linear(f"{prefix}up_proj", x, 4 * self.hidden)
        act = self.parts.activate(f"{prefix}mlp_act", "gelu_tanh", up_proj.result)
        return (up_proj, act, self._linear(f"{prefix}down_proj", act.result, self.hidden))

    def _normed(self, name: str, x: Tensor, *extra_inputs: Tensor) -> Operator:
        """The norm of each head; text has weights of its own if it is among `extra_inputs`."""
        heads = self.heads
        norm = self.parts.norm(f"{name}_norm", x, shared=heads.num_heads, kind=NormKind.RMS)
        other = tuple(self.parts.weight(f"context_{name}_norm.weight", heads.head_dim) for _ in extra_inputs)
        return replace(norm, inputs=(x, *extra_inputs), weights=(*norm.weights, *other))

    def _rotated(
        self, before: tuple[Operator, ...], q: Tensor, k: Tensor
    ) -> tuple[tuple[Operator, ...], Tensor, Tensor]:
        turned = (replace(q, name="q_rope"), replace(k, name="k_rope"))
        rope = Rope(name="rope", inputs=(q, k), outputs=turned, heads=self.heads, rotary_dim=self.rotated)
        return (*before, rope), *turned

    def _scores(self, q: Tensor, keys: tuple[Tensor, ...], values: tuple[Tensor, ...]) -> tuple[Operator, ...]:
        """Attention of image and text to both."""
        heads = replace(self.heads, mask=BidirectionalWithExtra(self.text))
        qk, softmax, sv = scored(self.parts, heads, q, keys, values[0])
        out = with_rows(sv.result, self.rows)
        return (qk, softmax, replace(sv, inputs=(*sv.inputs, *values[1:]), outputs=(out,)))

    def _attended(self, prefix: str, x: Tensor) -> tuple[Operator, ...]:
        """Attention of the image to itself."""
        heads = replace(self.heads, mask=Bidirectional())
        q, k, v = projections = tuple(self._linear(f"{prefix}{name}_proj", x, heads.q_width) for name in "qkv")
        query, key = q.result, k.result
        norms: tuple[Operator, ...] = ()
        if prefix and self.norms:
            norms = tuple(self._normed(f"{prefix}{name}", op.result) for name, op in (("q", q), ("k", k)))
            query, key = (op.result for op in norms)
        operators = tuple(_called(op, prefix) for op in scored(self.parts, heads, query, (key,), v.result))
        return (*projections, *norms, *operators, self._linear(f"{prefix}o_proj", result(operators), self.hidden))

    def _crossed(self, x: Tensor) -> tuple[Operator, ...]:
        """Attention to the text."""
        heads = replace(self.heads, mask=FixedKeys(self.text))
        text = with_rows(self.parts.tensor(_CAPTION, self.hidden), self.words)
        q = self._linear("cross_q_proj", x, heads.q_width)
        k, v = (self._linear(f"cross_{name}_proj", text, heads.q_width) for name in "kv")
        operators = tuple(_called(op, "cross_") for op in scored(self.parts, heads, q.result, (k.result,), v.result))
        return (q, k, v, *operators, self._linear("cross_o_proj", result(operators), self.hidden))

    def _class(self, classes: int) -> tuple[Operator, ...]:
        time = self._waved("time")
        label = self.parts.embed("embed_class", {"embed_class.weight": classes}, self.hidden)
        label = label.with_tensors(lambda t: with_rows(t, SEQUENCES))
        embeddings = (result(time), label.result)
        out = self.each("condition_add", self.hidden)
        return (*time, label, Add(name=out.name, inputs=embeddings, outputs=(out,), ops_per_element=1))


def _called(op: Operator, prefix: str) -> Operator:
    """`op` with a prefix before its name and the tensors that attention makes."""
    internal_names = ("scores", "probs", "attention")

    def named(t: Tensor) -> Tensor:
        return replace(t, name=f"{prefix}{t.name}") if t.name in internal_names else t

    return replace(op.with_tensors(named), name=f"{prefix}{op.name}") if prefix else op
