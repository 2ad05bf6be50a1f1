"""`Parts`, which makes operators in a model's format, and readers of common config fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from enum import StrEnum
from math import inf
from typing import Final

from ...documents import Section
from ...forms import Form, table_rows
from ...operators.attention import Heads
from ...operators.base import Operator, Role, Tensor, Weight
from ...operators.elementwise import ACTIVATION_OPS, Activation, Add, Elementwise, Norm
from ...operators.embedding import Embedding
from ...operators.images import Patches
from ...operators.linear import Linear
from ...operators.masks import CAUSAL, Causal, Mask
from ...precision import Format
from ...records import frozen

HIDDEN = "hidden"  # name of the tensor that blocks pass on

ACTIVATIONS: Final = {  # Hugging Face names -> keys of ACTIVATION_OPS
    "relu": "relu",
    "relu2": "relu2",
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_tanh": "gelu_tanh",
    "situ": "situ",
    "xielu": "xielu",
}


def activation(config: Section, key: str, default: str) -> str:
    """The activation function that a config names, as a key of ACTIVATION_OPS."""
    return ACTIVATIONS[config.choice(key, ACTIVATIONS, default)]


def heads_of(
    config: Section,
    hidden: int = 0,
    key: str = "num_attention_heads",
    *,
    num_kv_heads: int | None = None,
    head_dim: int | None = None,
    window: float = inf,
) -> Heads:
    """The heads that a config describes: `key` says how many, and head_dim how wide; without it they are as wide as
    `head_dim`, the class's, or else share `hidden`, which is hidden_size where it is not given. Null shares it too.

    Raises InputError where they cannot be: a width that is no whole number, or KV heads that cannot be shared evenly.
    """
    num_heads, hidden = config.integer(key), hidden or config.integer("hidden_size")
    if "head_dim" in config and config.get("head_dim") is None:
        head_dim = None
    if config.get("head_dim") is None and head_dim is None and hidden % num_heads:
        raise config.error(key, f"must divide the hidden size {hidden} where there is no head_dim; got {num_heads}")
    num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
    if num_heads % num_kv_heads:
        raise config.error(key, f"must be a multiple of the {num_kv_heads} key-value heads; got {num_heads}")
    head_dim = config.integer("head_dim", head_dim or hidden // num_heads)
    return Heads(num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim, mask=Causal(window))


class NormKind(StrEnum):
    """Computation of a norm and its weights."""

    RMS = "rms"  # a weight
    LAYER = "layer"  # a weight and a bias
    LAYER_NO_BIAS = "layer_no_bias"  # a weight
    PLAIN = "plain"  # nothing
    UNIT = "unit"  # nothing, and no mean is taken off: square, sum, scale


_NORM_OPS: Final = {  # OPs of an element: see operators.elementwise.Norm
    NormKind.RMS: 4,
    NormKind.LAYER: 7,
    NormKind.LAYER_NO_BIAS: 6,
    NormKind.PLAIN: 5,
    NormKind.UNIT: 3,
}
_NORM_WEIGHTS: Final = {
    NormKind.RMS: ("weight",),
    NormKind.LAYER: ("weight", "bias"),
    NormKind.LAYER_NO_BIAS: ("weight",),
    NormKind.PLAIN: (),
    NormKind.UNIT: (),
}


@frozen(kw_only=True)
class Parts:
    """Makes tensors, weights and operators in the model's format."""

    format: Format
    norm_kind: NormKind = NormKind.RMS

    def tensor(self, name: str, width: int) -> Tensor:
        return Tensor(name=name, width=width, format=self.format)

    def cached(self, name: str, width: int) -> Tensor:
        """The rows that a launch appends to the KV cache."""
        return Tensor(name=name, width=width, format=self.format, role=Role.KV_CACHE)

    def kept(self, name: str, width: int, mask: Mask) -> Tensor:
        """The output that attention reads: appended to the KV cache, unless its mask keeps nothing."""
        return self.cached(name, width) if mask.is_cached else self.tensor(name.removesuffix("_cache"), width)

    def cache(self, name: str, width: int, mask: Mask = CAUSAL) -> Tensor:
        """The rows of the KV cache that attention reads, and those that are held."""
        if not mask.is_cached:
            return replace(self.kept(name, width, mask), rows=mask.keys_read)
        return replace(self.cached(name, width), rows=mask.keys_read, retained_rows=mask.keys_cached)

    def weight(self, name: str, *shape: int, tied: bool = False) -> Weight:
        return Weight(name=name, shape=shape, format=self.format, tied=tied)

    def linear(self, name: str, x: Tensor, *outputs: Tensor, bias: bool = False, kind: type[Linear] = Linear) -> Linear:
        width = sum(t.width for t in outputs)
        weights = [self.weight(f"{name}.weight", width, x.width)]
        if bias:
            weights.append(self.weight(f"{name}.bias", width))
        return kind(name=name, inputs=(x,), outputs=outputs, weights=tuple(weights))

    def project(self, name: str, x: Tensor, width: int, *, bias: bool = False, kind: type[Linear] = Linear) -> Linear:
        """A Linear with one output of its own name."""
        return self.linear(name, x, self.tensor(name, width), bias=bias, kind=kind)

    def patches(self, name: str, x: Tensor, out: Tensor, tokens: int, *, bias: bool = True) -> Patches:
        """The Linear over the pixels x of each patch of images of which `tokens` follow."""
        plain = self.linear(name, x, out, bias=bias)
        return Patches(name=name, inputs=plain.inputs, outputs=plain.outputs, weights=plain.weights, tokens=tokens)

    def norm(self, name: str, x: Tensor, *, shared: int = 1, kind: NormKind | None = None) -> Norm:
        """The norm of every `width / shared` elements of x, with what it has learned shared by all such groups."""
        kind = kind or self.norm_kind
        weights = tuple(self.weight(f"{name}.{part}", x.width // shared) for part in _NORM_WEIGHTS[kind])
        out = replace(x, name=name, role=Role.ACTIVATION)
        return Norm(
            name=name,
            inputs=(x,),
            outputs=(out,),
            weights=weights,
            ops_per_element=_NORM_OPS[kind],
            group=x.width // shared if shared > 1 else 0,
        )

    def add(self, name: str, *operands: Tensor) -> Add:
        out = self.tensor(name, operands[0].width)
        return Add(name=name, inputs=operands, outputs=(out,), ops_per_element=len(operands) - 1)

    def elementwise(
        self,
        name: str,
        *inputs: Tensor,
        ops: float,
        width: int = 0,
        weights: Mapping[str, int] | None = None,
        normed: int = 0,
    ) -> Elementwise:
        """`ops` OPs for each element of one output, which is as wide as the first input, or `width`; it normalizes
        `normed` elements together. `weights` says how long each is.
        """
        out = self.tensor(name, width or inputs[0].width)
        weight_tensors = tuple(self.weight(weight, size) for weight, size in (weights or {}).items())
        return Elementwise(
            name=name, inputs=inputs, outputs=(out,), weights=weight_tensors, ops_per_element=ops, normed=normed
        )

    def activate(self, name: str, act: str, *inputs: Tensor) -> Activation:
        """act(x), or act(gate) * up of two inputs."""
        ops = ACTIVATION_OPS[act] + len(inputs) - 1
        out = replace(inputs[0], name=name)
        return Activation(name=name, inputs=inputs, outputs=(out,), ops_per_element=ops)

    def embed(self, name: str, tables: dict[str, int], width: int) -> Operator:
        """The sum of a row of each table; `tables` says how many rows each has."""
        weights = tuple(replace(self.weight(t, rows, width), rows=table_rows(rows)) for t, rows in tables.items())
        return Embedding(name=name, inputs=(), outputs=(self.tensor(name, width),), weights=weights)


def result(operators: tuple[Operator, ...]) -> Tensor:
    """The result of operators: the first output of the last one."""
    return operators[-1].result


def with_rows(tensor: Tensor, rows: Form) -> Tensor:
    """The same tensor with `rows` in place of its number of rows."""
    return replace(tensor, rows=rows)


@frozen(kw_only=True)
class Reused(Weight):
    """A parameter of an earlier operator. It stays one where it is quantized, as schemes treat both uses alike."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "tied", True)


def reused_weight(weight: Weight) -> Reused:
    """Another use of `weight`."""
    return Reused(**{field.name: getattr(weight, field.name) for field in fields(weight)})
