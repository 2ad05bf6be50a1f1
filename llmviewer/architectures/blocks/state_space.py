"""Mixers with a state of fixed size instead of a KV cache. Each leaves its result in "out_proj"."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ...forms import SEQUENCES, Form
from ...operators.base import Operator, Role, Tensor
from ...operators.elementwise import Elementwise
from ...operators.linear import BlockLinear, Linear
from ...operators.state_space import CausalConv, Scan
from ...precision import FP32
from ...records import frozen
from .parts import NormKind, Parts


def kept(name: str, width: int, parts: Parts | None = None) -> Tensor:
    """A state of every sequence: in fp32, or in the model's format where `parts` are given."""
    return Tensor(name=name, width=width, format=parts.format if parts else FP32, rows=SEQUENCES, role=Role.STATE)


def unfinished(name: str, width: int, parts: Parts) -> Tensor:
    """State of each sequence for tokens whose group is not full. Its occasional reads are not counted."""
    return replace(kept(name, width, parts), rows=Form(), retained_rows=SEQUENCES)


def convolved(parts: Parts, x: Tensor, taps: int, *, bias: bool) -> CausalConv:
    """Each channel's filter over the last `taps` tokens, then SiLU; leaves "conv"."""
    plain = filtered(parts, x, taps, bias=bias)
    return CausalConv(name="conv", inputs=plain.inputs, outputs=plain.outputs, weights=plain.weights, taps=taps)


def filtered(parts: Parts, x: Tensor, taps: int, *, bias: bool) -> Elementwise:
    """The filter alone: a multiply-add for each tap; leaves "conv"."""
    weights = [parts.weight("conv.weight", x.width, taps)]
    if bias:
        weights.append(parts.weight("conv.bias", x.width))
    state = kept("conv_state", x.width * (taps - 1), parts)
    out = replace(x, name="conv")
    return Elementwise(
        name="conv",
        inputs=(x, state),
        outputs=(out, state),
        weights=tuple(weights),
        ops_per_element=2 * taps,
        kind="conv",
    )


SILU: Final = ("silu", "swish")  # names of the activation that state-space mixers have


@frozen(kw_only=True)
class Mamba:
    """Selective state spaces, token by token on the vector units (arXiv:2312.00752).

    OPs of a token, channel and element of state: step times decay, exp, times h; step times x times B, added; C times
    h, added: 8; and for each channel softplus of the step, D x added and the gate: 12.

    inner      channels
    state      elements of state per channel
    taps       tokens of the convolution
    step_rank  rank of the projection of the step
    conv_bias  whether the convolution has a bias
    bias       whether the projections in and out have biases
    norms      whether step, B and C have an RMSNorm (Jamba)
    heads      parts of the channels; the step, B and C of a part are projected from its own channels alone
    """

    inner: int
    state: int
    taps: int
    step_rank: int
    conv_bias: bool = True
    bias: bool = False
    norms: bool = False
    heads: int = 1

    def operators(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]:
        gate = parts.tensor("gate", self.inner)
        in_proj = parts.linear("in_proj", x, parts.tensor("in_proj", self.inner), gate, bias=self.bias)
        conv = convolved(parts, in_proj.result, self.taps, bias=self.conv_bias)
        widths = {"step_in": self.heads * self.step_rank, "bc": self.heads * 2 * self.state}
        parted = (parts.tensor(name, width) for name, width in widths.items())
        x_proj = self._by_head(parts.linear("x_proj", conv.result, *parted))
        norms = tuple(parts.norm(f"{t.name}_norm", t, kind=NormKind.RMS) for t in x_proj.outputs) if self.norms else ()
        step_in, bc = (op.result for op in norms) if norms else x_proj.outputs
        dt_proj = self._by_head(parts.project("dt_proj", step_in, self.inner, bias=True))
        state = kept("ssm_state", self.inner * self.state)
        # Channels that share step, B and C have to stay together.
        num_parts = self.heads if self.heads > 1 else self.inner
        weights = (parts.weight("A_log", self.inner, self.state), parts.weight("D", self.inner))
        scan = Scan(
            name="scan",
            inputs=(conv.result, dt_proj.result, bc, gate, state),
            outputs=(parts.tensor("scan", self.inner), state),
            weights=weights,
            heads=num_parts,
            groups=num_parts,
            token_ops=self.inner * (8 * self.state + 12),
        )
        out_proj = parts.project("out_proj", scan.result, x.width, bias=self.bias)
        return (in_proj, conv, x_proj, *norms, dt_proj, scan, out_proj)

    def _by_head(self, plain: Linear) -> Linear:
        """The projection in which what a head makes comes of its own part of what is projected."""
        if self.heads == 1:
            return plain
        wide, narrow = plain.weight.shape
        head_weights = (replace(plain.weight, shape=(wide, narrow // self.heads)), *plain.weights[1:])
        return BlockLinear(name=plain.name, inputs=plain.inputs, outputs=plain.outputs, weights=head_weights)


@frozen(kw_only=True)
class Mamba2:
    """State spaces with a scalar decay for each head, in chunks (arXiv:2405.21060, section 6).

    OPs of a pair within a chunk: B . C for each group, and its weight times x for each head; of a token: its part in
    the chunk's state, and the state's part in its result.

    inner      channels: heads x head_dim
    heads      heads
    head_dim   channels of a head
    state      elements of state per channel
    groups     groups of heads that share B and C
    taps       tokens of the convolution
    chunk      tokens of a chunk
    conv_bias  whether the convolution has a bias
    bias       whether the projections in and out have biases
    norm       whether an RMSNorm follows the gate; else the result is only gated
    """

    inner: int
    heads: int
    head_dim: int
    state: int
    groups: int
    taps: int
    chunk: int
    conv_bias: bool = True
    bias: bool = False
    norm: bool = True

    def operators(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]:
        shared = 2 * self.groups * self.state
        gate, xbc, step = (
            parts.tensor(name, width)
            for name, width in (("gate", self.inner), ("xbc", self.inner + shared), ("step", self.heads))
        )
        in_proj = parts.linear("in_proj", x, gate, xbc, step, bias=self.bias)
        conv = convolved(parts, xbc, self.taps, bias=self.conv_bias)
        state = kept("ssm_state", self.heads * self.head_dim * self.state)
        out = parts.tensor("scan", self.inner)
        scan = Scan(
            name="scan",
            inputs=(conv.result, step, state),
            outputs=(out, state),
            weights=tuple(parts.weight(name, self.heads) for name in ("A_log", "D", "dt_bias")),
            rule="mamba2",
            pair_ops=2 * self.groups * self.state + 2 * self.heads * self.head_dim,
            token_ops=4 * self.heads * self.head_dim * self.state,
            chunk=self.chunk,
            heads=self.heads,
            groups=self.groups,
        )
        normed = gated_norm(parts, out, gate, weights=self.inner, over=self.inner // self.groups)
        gated = normed if self.norm else parts.activate("gated", "silu", gate, out)
        return (in_proj, conv, scan, gated, parts.project("out_proj", gated.result, x.width, bias=self.bias))


@frozen(kw_only=True)
class ShortConvMixer:
    """A filter over the last `taps` tokens between two gates, all three from one projection (LFM2).

    taps  tokens of the filter
    bias  whether filter and projections have biases
    """

    taps: int
    bias: bool = False

    def operators(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]:
        before, after, inner = (parts.tensor(name, x.width) for name in ("gate_in", "gate_out", "conv_in"))
        in_proj = parts.linear("in_proj", x, before, after, inner, bias=self.bias)
        gated_in = parts.elementwise("gated_in", before, inner, ops=1)
        conv = filtered(parts, gated_in.result, self.taps, bias=self.bias)
        gated_out = parts.elementwise("gated_out", after, conv.result, ops=1)
        return (
            in_proj,
            gated_in,
            conv,
            gated_out,
            parts.project("out_proj", gated_out.result, x.width, bias=self.bias),
        )


@frozen(kw_only=True)
class GatedLinearRecurrence:
    """RG-LRU behind a filter, times a gate of its own (arXiv:2402.19427, section 2.4).

    Gates of input and recurrence are products with matrices of `inner` / `blocks` squared, one for each block of
    channels. OPs of a channel: two sigmoids of 4; log of the decay, exp, its square, 1 less it, root; input times its
    gate, times that root; decay times h, added: 17.

    inner   channels
    blocks  blocks of channels, each with gate matrices of its own
    taps    tokens of the filter
    act     activation function of the gate
    """

    inner: int
    blocks: int
    taps: int
    act: str

    def operators(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]:
        gate = parts.project("linear_y", x, self.inner, bias=True)
        linear_x = parts.project("linear_x", x, self.inner, bias=True)
        conv = filtered(parts, linear_x.result, self.taps, bias=True)
        gates = tuple(self._gate(parts, name, conv.result) for name in ("input_gate", "recurrent_gate"))
        state = kept("lru_state", self.inner)
        scan = Scan(
            name="scan",
            inputs=(conv.result, *(op.result for op in gates), state),
            outputs=(parts.tensor("scan", self.inner), state),
            weights=(parts.weight("recurrent_param", self.inner),),
            token_ops=17 * self.inner,
            heads=self.inner,
            groups=self.inner,
        )
        gated = parts.activate("gated", self.act, gate.result, scan.result)
        out = parts.project("linear_out", gated.result, x.width, bias=True)
        return (gate, linear_x, conv, *gates, scan, gated, out)

    def _gate(self, parts: Parts, name: str, x: Tensor) -> BlockLinear:
        weights = (
            parts.weight(f"{name}.weight", self.inner, self.inner // self.blocks),
            parts.weight(f"{name}.bias", self.inner),
        )
        return BlockLinear(name=name, inputs=(x,), outputs=(parts.tensor(name, self.inner),), weights=weights)


@frozen(kw_only=True)
class GatedDeltaNet:
    """Linear attention with a gated delta rule, in chunks (arXiv:2412.06464, section 3).

    OPs of a pair within a chunk and value head: K K^T, Q K^T and W of the keys' width, U and the result of the values'
    (the triangular inverse, of a chunk's width a pair, is left out); of a token: W S, Q S and K^T U.

    key_heads    heads of queries and keys
    value_heads  heads of values
    key_dim      elements of a key per head
    value_dim    elements of a value per head
    taps         tokens of the convolution
    chunk        tokens of a chunk
    fused        whether one projection computes queries, keys, values and gate, and another step and decay; else four
                 projections do
    """

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    taps: int
    chunk: int = 64
    fused: bool = True

    def operators(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]:
        keys, values = self.key_heads * self.key_dim, self.value_heads * self.value_dim
        qkv, gate = parts.tensor("qkv", 2 * keys + values), parts.tensor("gate", values)
        steps = tuple(parts.tensor(name, self.value_heads) for name in ("beta", "decay"))
        if self.fused:
            projections = [parts.linear("qkvz_proj", x, qkv, gate), parts.linear("ba_proj", x, *steps)]
        else:
            named = (("qkv_proj", qkv), ("z_proj", gate), ("b_proj", steps[0]), ("a_proj", steps[1]))
            projections = [parts.linear(name, x, out) for name, out in named]
        conv = convolved(parts, qkv, self.taps, bias=False)
        state = kept("delta_state", self.value_heads * self.key_dim * self.value_dim)
        out = parts.tensor("scan", values)
        scan = Scan(
            name="scan",
            inputs=(conv.result, *steps, state),
            outputs=(out, state),
            weights=tuple(parts.weight(name, self.value_heads) for name in ("A_log", "dt_bias")),
            rule="gdn",
            pair_ops=self.value_heads * (6 * self.key_dim + 4 * self.value_dim),
            token_ops=self.value_heads * 6 * self.key_dim * self.value_dim,
            chunk=self.chunk,
            heads=self.value_heads,
            groups=self.key_heads,
        )
        norm = gated_norm(parts, out, gate, weights=self.value_dim, over=self.value_dim)
        return (*projections, conv, scan, norm, parts.project("out_proj", norm.result, x.width))


def gated_norm(parts: Parts, x: Tensor, gate: Tensor, *, weights: int, over: int) -> Elementwise:
    """RMSNorm of `over` elements of x at a time, and SiLU of the gate times it: 4 + 4 + 1 OPs an element."""
    return parts.elementwise("gated_norm", x, gate, ops=9, weights={"gated_norm.weight": weights}, normed=over)
