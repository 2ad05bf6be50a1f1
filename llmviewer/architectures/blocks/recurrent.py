"""Mixers that carry a state from token to token: Kimi delta attention, lightning attention, retention, RWKV, S4, S5,
GSS, H3, Hyena, CKConv.
"""

from __future__ import annotations

from dataclasses import replace

from ...forms import Form, longest_context
from ...operators.attention import Heads
from ...operators.base import Operator, Tensor, Weight
from ...operators.elementwise import Elementwise, Rope
from ...operators.linear import BlockLinear, Linear
from ...operators.recurrence import ImplicitConv, LongConv, MixedConv, ShortConv, TokenShift
from ...operators.state_space import CausalConv, Scan
from ...records import frozen
from .parts import NormKind, Parts, result
from .state_space import kept

_TANH = 1  # OPs of an element, as an exponential
SIGMOID = 4  # negate, exp, add one, divide


def linear_scan(
    parts: Parts,
    inputs: tuple[Tensor, ...],
    *,
    heads: int,
    key_dim: int,
    value_dim: int = 0,
    chunk: int,
    delta: bool = False,
    rule: str = "",
    weights: dict[str, int] | None = None,
) -> Scan:
    """S = decay S + k v^T and q . S for each head, in chunks, whose values are as wide as keys if nothing else is said;
    leaves "scan".

    OPs of a pair within a chunk: Q K^T and the result; of a token: Q S and K^T V (arXiv:2405.21060, section 6). The
    `delta` rule adds K K^T, W and U to the pair, and W S to the token (arXiv:2412.06464, section 3).
    """
    value_dim = value_dim or key_dim
    state = kept("scan_state", heads * key_dim * value_dim)
    return Scan(
        name="scan",
        inputs=(*inputs, state),
        outputs=(parts.tensor("scan", heads * value_dim), state),
        weights=tuple(parts.weight(name, size) for name, size in (weights or {}).items()),
        rule=rule,
        pair_ops=heads * ((6 * key_dim + 4 * value_dim) if delta else 2 * (key_dim + value_dim)),
        token_ops=heads * (6 if delta else 4) * key_dim * value_dim,
        chunk=chunk,
        heads=heads,
        groups=heads,
    )


@frozen(kw_only=True)
class Kda:
    """Kimi delta attention: a delta rule whose decay is each channel's own (arXiv:2510.26692, sections 3 and 4).

    The decay and the gate come through a rank as wide as a head.

    heads        heads
    head_dim     elements of a head
    taps         tokens of the convolution
    chunk        tokens of a chunk
    whole_gate   whether one projection computes the gate, without a low rank
    whole_decay  whether one projection computes the decay, without a low rank
    """

    heads: int
    head_dim: int
    taps: int
    chunk: int = 64
    whole_gate: bool = False
    whole_decay: bool = False

    def operators(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]:
        width = self.heads * self.head_dim
        qkv = [parts.project(f"{name}_proj", x, width) for name in "qkv"]
        state = kept("conv_state", 3 * width * (self.taps - 1), parts)
        conv = CausalConv(
            name="conv",
            inputs=(*(op.result for op in qkv), state),
            outputs=(parts.tensor("conv", 3 * width), state),
            weights=(parts.weight("conv.weight", 3 * width, self.taps),),
            taps=self.taps,
        )
        decay = self._made(parts, x, "f", width, full_rank=self.whole_decay)
        gate = self._made(parts, x, "g", width, full_rank=self.whole_gate)
        step = parts.project("b_proj", x, self.heads)
        scan = linear_scan(
            parts,
            (conv.result, result(decay), step.result),
            heads=self.heads,
            key_dim=self.head_dim,
            chunk=self.chunk,
            delta=True,
            rule="kda",
            weights={"A_log": self.heads, "dt_bias": width},
        )
        norm_weights = {"o_norm.weight": self.head_dim}  # RMSNorm, the sigmoid of the gate, and their product
        norm = parts.elementwise(
            "o_norm", scan.result, result(gate), ops=4 + SIGMOID + 1, weights=norm_weights, normed=self.head_dim
        )
        o_proj = parts.project("o_proj", norm.result, x.width)
        return (*qkv, conv, *decay, step, scan, *gate, norm, o_proj)

    def _made(self, parts: Parts, x: Tensor, name: str, width: int, *, full_rank: bool) -> tuple[Linear, ...]:
        if full_rank:
            return (parts.project(f"{name}_proj", x, width),)
        down = parts.project(f"{name}_a_proj", x, self.head_dim)
        return (down, parts.project(f"{name}_b_proj", down.result, width))


@frozen(kw_only=True)
class LightningAttention:
    """Linear attention with a decay for each head, SiLU of queries, keys and values, norm and gate (arXiv:2501.08313,
    section 2.2; arXiv:2401.04658).

    heads     heads
    head_dim  elements of a head
    act       activation function of queries, keys and values
    chunk     tokens of a chunk
    """

    heads: int
    head_dim: int
    act: str = "silu"
    chunk: int = 256

    def operators(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]:
        width = self.heads * self.head_dim
        qkv = parts.project("qkv_proj", x, 3 * width)
        act = parts.activate("qkv_act", self.act, qkv.result)
        scan = linear_scan(parts, (act.result,), heads=self.heads, key_dim=self.head_dim, chunk=self.chunk)
        gate = parts.project("output_gate", x, width)
        norm_weights = {"scan_norm.weight": width}
        norm = parts.elementwise(
            "scan_norm", scan.result, gate.result, ops=4 + SIGMOID + 1, weights=norm_weights, normed=width
        )
        return (qkv, act, scan, gate, norm, parts.project("out_proj", norm.result, x.width))


@frozen(kw_only=True)
class Retention:
    """Multi-scale retention: linear attention with rotated queries and keys, a decay for each head, a norm for each
    head and a SiLU gate (arXiv:2307.08621, section 2).

    heads        heads
    key_dim      elements of a key per head
    value_dim    elements of a value per head
    chunk        tokens of a chunk
    norm_weight  whether the norm has a weight, which heads share
    """

    heads: int
    key_dim: int
    value_dim: int
    chunk: int
    norm_weight: bool = False

    def operators(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]:
        keys, values = self.heads * self.key_dim, self.heads * self.value_dim
        widths = {"q_proj": keys, "k_proj": keys, "v_proj": values, "g_proj": values}
        q, k, v, g = projections = tuple(parts.project(name, x, width) for name, width in widths.items())
        rope = Rope(
            name="rope",
            inputs=(q.result, k.result),
            outputs=(parts.tensor("q_rope", keys), parts.tensor("k_rope", keys)),
            heads=Heads(num_heads=self.heads, num_kv_heads=self.heads, head_dim=self.key_dim),
            rotary_dim=self.key_dim,
        )
        scan = linear_scan(
            parts,
            (*rope.outputs, v.result),
            heads=self.heads,
            key_dim=self.key_dim,
            value_dim=self.value_dim,
            chunk=self.chunk,
        )
        norm_weights = {"group_norm.weight": self.value_dim} if self.norm_weight else {}
        ops = 3 + self.norm_weight + SIGMOID + 1  # SiLU counts as the sigmoid does
        norm = parts.elementwise(
            "group_norm", scan.result, g.result, ops=ops, weights=norm_weights, normed=self.value_dim
        )
        return (*projections, rope, scan, norm, parts.project("out_proj", norm.result, x.width))


def shifted(parts: Parts, x: Tensor, names: tuple[str, ...], prefix: str = "", *, delta: bool = False) -> TokenShift:
    """Mixtures of each token with the one before it, by weights of their own; with `delta` what is mixed in, too."""
    state = kept(f"{prefix}shift_state", x.width, parts)
    mixtures = tuple(parts.tensor(f"{prefix}x_{name}", x.width) for name in names)
    extra = (parts.tensor(f"{prefix}shift_delta", x.width),) if delta else ()
    return TokenShift(
        name=f"{prefix}shift",
        inputs=(x, state),
        outputs=(*mixtures, *extra, state),
        weights=tuple(parts.weight(f"{prefix}mix_{name}", x.width) for name in names),
        mixtures=len(names),
    )


@frozen(kw_only=True)
class Rwkv4:
    """RWKV-4: a weighted mean of values whose weights decay by channel, token by token on the vector units
    (arXiv:2305.13048, section 3.1).

    OPs of a token and channel, numerically safe: 12 for the mean (two maxima and differences, two exponentials, sums
    and the quotient) and 11 for its numerator, its denominator and the largest exponent, which are the state.

    width  channels
    """

    width: int

    def operators(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]:
        shift = shifted(parts, x, ("k", "v", "r"))
        k, v, r = (
            parts.project(name, mixed, self.width)
            for name, mixed in zip(("k_proj", "v_proj", "r_proj"), shift.outputs[:3], strict=True)
        )
        state = kept("scan_state", 3 * self.width)
        scan = Scan(
            name="scan",
            inputs=(k.result, v.result, state),
            outputs=(parts.tensor("scan", self.width), state),
            weights=tuple(parts.weight(name, self.width) for name in ("time_decay", "time_first")),
            token_ops=23 * self.width,
            heads=self.width,
            groups=self.width,
        )
        gated = parts.elementwise("receive", scan.result, r.result, ops=SIGMOID + 1)
        return (shift, k, v, r, scan, gated, parts.project("o_proj", gated.result, x.width))


@frozen(kw_only=True)
class Rwkv6:
    """RWKV-5 and 6: linear attention with a decay for each channel of a key and a bonus for the token itself, which is
    the pair that it makes with itself (arXiv:2404.05892, section 3).

    heads       heads
    head_dim    elements of a head
    mix_rank    rank of the projection that computes the weights of the token before; 0: only learned weights
    decay_rank  rank of the projection that computes decays; 0: only learned decays
    chunk       tokens of a chunk
    """

    heads: int
    head_dim: int
    mix_rank: int = 0
    decay_rank: int = 0
    chunk: int = 64

    def operators(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]:
        width = self.heads * self.head_dim
        names = ("k", "v", "r", "g", *(("w",) if self.decay_rank else ()))
        mixing = self._mixed(parts, x, names) if self.mix_rank else (shifted(parts, x, names),)
        mixed = dict(zip(names, mixing[-1].outputs, strict=False))
        projections = {name: parts.project(f"{name}_proj", mixed[name], width) for name in "rkvg"}
        decay = self._decay(parts, mixed["w"], width) if self.decay_rank else ()
        inputs = (*(projections[name].result for name in "rkv"), *(op.result for op in decay[-1:]))
        scan = linear_scan(
            parts,
            inputs,
            heads=self.heads,
            key_dim=self.head_dim,
            chunk=self.chunk,
            weights={"time_decay": width, "time_faaaa": width},
        )
        norm = parts.elementwise(
            "ln_x",
            scan.result,
            projections["g"].result,
            ops=7 + SIGMOID + 1,  # LayerNorm by head, SiLU of the gate, and their product
            weights={"ln_x.weight": width, "ln_x.bias": width},
            normed=self.head_dim,
        )
        out = parts.project("o_proj", norm.result, x.width)
        return (*mixing, *projections.values(), *decay, scan, norm, out)

    def _mixed(self, parts: Parts, x: Tensor, names: tuple[str, ...]) -> tuple[Operator, ...]:
        """X + (x before - x) (w + W2 tanh(W1 x')) for each name, where x' is mixed by learned weights."""
        shift = shifted(parts, x, ("x",), delta=True)
        inner = self.mix_rank * len(names)
        down = parts.project("mix_w1", shift.result, inner)
        tanh = parts.elementwise("mix_tanh", *down.outputs, ops=_TANH)
        up_proj = BlockLinear(
            name="mix_w2",
            inputs=tanh.outputs,
            outputs=tuple(parts.tensor(f"mix_{name}", x.width) for name in names),
            weights=(parts.weight("mix_w2.weight", len(names) * x.width, self.mix_rank),),
        )
        out = Elementwise(
            name="mix",
            inputs=(x, shift.outputs[1], *up_proj.outputs),
            outputs=tuple(parts.tensor(f"x_{name}", x.width) for name in names),
            weights=tuple(parts.weight(f"mix_{name}", x.width) for name in names),
            ops_per_element=3 * len(names),
        )
        return (shift, down, tanh, up_proj, out)

    def _decay(self, parts: Parts, x: Tensor, width: int) -> tuple[Operator, ...]:
        down = parts.project("decay_w1", x, self.decay_rank)
        tanh = parts.elementwise("decay_tanh", *down.outputs, ops=_TANH)
        return (down, tanh, parts.project("decay_w2", tanh.result, width))


@frozen(kw_only=True)
class Rwkv7:
    """RWKV-7: S = S (diag(w) - kk^T (a kk)) + v k^T, a delta rule with decays and learning rates by channel
    (arXiv:2503.14456, section 4).

    OPs of a pair within a chunk: R and -kk, each with K and a kk, and W of the keys' width, two products each for U and
    the result of the values' (the triangular inverse is left out); of a token: W S, R S, K^T V and (a kk)^T U.

    Layers but the first mix the first layer's values into their own: the gate of it is here, the reading of those
    values is not.

    heads       heads
    head_dim    elements of a head
    decay_rank  rank of the projection that computes decays
    rate_rank   rank of the projection that computes learning rates
    gate_rank   rank of the projection that computes the gate of the output
    value_rank  rank of the projection that computes the gate of the first layer's values; 0: none, as in that layer
    chunk       tokens of a chunk
    """

    heads: int
    head_dim: int
    decay_rank: int
    rate_rank: int
    gate_rank: int
    value_rank: int = 0
    chunk: int = 16

    def operators(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]:
        width = self.heads * self.head_dim
        shift = shifted(parts, x, ("r", "w", "k", "v", "a", "g"))
        mixed = dict(zip(("r", "w", "k", "v", "a", "g"), shift.outputs, strict=False))
        r, k, v = (parts.project(f"{name}_proj", mixed[name], width) for name in "rkv")
        ranks = {"w": self.decay_rank, "a": self.rate_rank, "g": self.gate_rank, "v": self.value_rank}
        low = {name: self._low(parts, mixed[name], name, rank, width) for name, rank in ranks.items() if rank}
        low_rank = {name: result(operators) for name, operators in low.items()}
        prepared = self._prepared(parts, k.result, v.result, low_rank)
        keys, *others = prepared.outputs
        values = others.pop() if self.value_rank else v.result
        scan = self._scan(parts, (r.result, keys, *others, values))
        norm = parts.elementwise(
            "g_norm",
            scan.result,
            r.result,
            keys,
            values,
            low_rank["g"],
            ops=7 + 5 + 1,  # LayerNorm by head, (r . r_k k) v added, and the gate
            weights={"r_k": width, "g_norm.weight": width, "g_norm.bias": width},
            normed=self.head_dim,
        )
        lows = tuple(op for operators in low.values() for op in operators)
        return (shift, r, k, v, *lows, prepared, scan, norm, parts.project("o_proj", norm.result, x.width))

    @staticmethod
    def _low(parts: Parts, x: Tensor, name: str, rank: int, width: int) -> tuple[Operator, ...]:
        """Two products with an activation between them: tanh for the decay, a sigmoid for the gate."""
        down = parts.project(f"{name}_lora_a", x, rank)
        ops = {"w": _TANH, "g": SIGMOID}.get(name)
        act = (parts.elementwise(f"{name}_lora_act", *down.outputs, ops=ops),) if ops else ()
        up_proj = parts.project(f"{name}_lora_b", result((down, *act)), width, bias=name != "g")
        return (down, *act, up_proj)

    def _prepared(self, parts: Parts, k: Tensor, v: Tensor, low_rank: dict[str, Tensor]) -> Elementwise:
        """Normalized keys (4 OPs), keys scaled by the learning rate (4) and its sigmoid (4), their product (1), the
        decay (6), and values between the first layer's and their own (7).
        """
        inputs = (k, low_rank["w"], low_rank["a"], v, *((low_rank["v"],) if self.value_rank else ()))
        names = ("k", "w", "kk", "b", *(("v",) if self.value_rank else ()))
        return Elementwise(
            name="prepare",
            inputs=inputs,
            outputs=tuple(parts.tensor(f"scan_{name}", k.width) for name in names),
            weights=tuple(parts.weight(name, k.width) for name in ("k_k", "k_a")),
            ops_per_element=19 + 7 * bool(self.value_rank),
        )

    def _scan(self, parts: Parts, inputs: tuple[Tensor, ...]) -> Scan:
        state = kept("scan_state", self.heads * self.head_dim**2)
        return Scan(
            name="scan",
            inputs=(*inputs, state),
            outputs=(parts.tensor("scan", self.heads * self.head_dim), state),
            pair_ops=self.heads * 18 * self.head_dim,
            token_ops=self.heads * 8 * self.head_dim**2,
            chunk=self.chunk,
            heads=self.heads,
            groups=self.heads,
        )


@frozen(kw_only=True)
class ChannelMix:
    """RWKV's feed-forward network: value(relu(key(x))^2) of tokens mixed with those before them.

    inner  width between the projections
    gated  whether the sigmoid of another mixture scales the result, as before RWKV-7
    """

    inner: int
    gated: bool = True

    def operators(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]:
        shift = shifted(parts, x, ("k", "r") if self.gated else ("k",), "mlp_")
        key = parts.project("up_proj", shift.result, self.inner)
        act = parts.activate("mlp_act", "relu2", key.result)
        value = parts.project("down_proj", act.result, x.width)
        if not self.gated:
            return (shift, key, act, value)
        gate = parts.project("mlp_r_proj", shift.outputs[1], x.width)
        scaled = parts.elementwise("mlp_receive", value.result, gate.result, ops=SIGMOID + 1)
        return (shift, key, act, value, gate, scaled)


@frozen(kw_only=True)
class Hyena:
    """A short convolution of three projections, then a long one of two of them, gated by the third
    (arXiv:2302.10866, section 3; the filter as modes: arXiv:2310.18780).

    taps        tokens of the short convolution
    states      modes of each channel's long filter: complex numbers that stay between passes
    groups      channels that share a long filter
    short_bias  whether the short convolution has a bias
    """

    taps: int
    states: int
    groups: int
    short_bias: bool = True

    def operators(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]:
        width = x.width
        projections = parts.project("projections", x, 3 * width, bias=True)
        short_state = kept("short_state", 3 * width * (self.taps - 1), parts)
        bias = (parts.weight("short_filter.bias", 3 * width),) if self.short_bias else ()
        short_conv = ShortConv(
            name="short_filter",
            inputs=(projections.result, short_state),
            outputs=(parts.tensor("short_filter", 3 * width), short_state),
            weights=(parts.weight("short_filter.weight", 3 * width, self.taps), *bias),
            taps=self.taps,
        )
        state = kept("long_state", 2 * width * self.states)
        modes = (width // self.groups, self.states, 2)
        long_conv = LongConv(
            name="long_filter",
            inputs=(short_conv.result, state),
            outputs=(parts.tensor("long_filter", width), state),
            weights=(parts.weight("D", width), parts.weight("poles", *modes), parts.weight("residues", *modes)),
            channels=width,
            states=self.states,
        )
        dense = parts.project("out_filter_dense", long_conv.result, width, bias=True)
        return (projections, short_conv, long_conv, dense)


@frozen(kw_only=True)
class StateSpace:
    """A state space for each channel, as S4 and S4D have it, then a gated product (arXiv:2111.00396, arXiv:2206.11893).

    The state is a few complex modes: a pass over several tokens is a long convolution, a single token one step of a
    recurrence.

    states  modes of each channel, half as many as elements of its state
    glu     whether the product after it makes a gate too
    """

    states: int
    glu: bool = True

    def operators(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]:
        width = x.width
        conv = modal_conv(parts, x, width, self.states)
        act = parts.activate("ssm_act", "gelu", conv.result)
        out = parts.project("out_proj", act.result, (1 + self.glu) * width, bias=True)
        gate = parts.elementwise("out_gate", out.result, ops=SIGMOID + 1, width=width)
        return (conv, act, out, gate) if self.glu else (conv, act, out)


@frozen(kw_only=True)
class S5:
    """A state space of all channels together, then a gate (arXiv:2208.04933, sections 3 and 5).

    Matrices bring the channels to complex modes and back; a token multiplies and adds each mode, 8 OPs.

    states  modes, half as many as elements of the state
    glu     whether a product after it makes a gate
    """

    states: int
    glu: bool = True

    def operators(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]:
        numbers = 2 * self.states  # real and imaginary parts
        b_proj = parts.project("b_proj", x, numbers)
        state = kept("ssm_state", numbers)
        scan = Scan(
            name="scan",
            inputs=(b_proj.result, state),
            outputs=(parts.tensor("scan", numbers), state),
            weights=(parts.weight("poles", self.states, 2),),
            token_ops=8 * self.states,
            heads=self.states,
            groups=self.states,
        )
        c_proj = parts.project("c_proj", scan.result, x.width)
        skip = parts.elementwise("skip", c_proj.result, x, ops=2, weights={"D": x.width})
        act = parts.activate("ssm_act", "gelu", skip.result)
        if not self.glu:
            return (b_proj, scan, c_proj, skip, act)
        gate = parts.project("gate", act.result, x.width, bias=True)
        gated = parts.elementwise("out_gate", act.result, gate.result, ops=SIGMOID + 1)
        return (b_proj, scan, c_proj, skip, act, gate, gated)


@frozen(kw_only=True)
class GatedStateSpace:
    """GSS: a state space of few channels, between a product to them and one to a wide gated product (arXiv:2206.13947,
    section 3; github.com/lucidrains/gated-state-spaces-pytorch).

    width   channels of the state space
    states  complex modes of each, with poles that all channels share
    inner   width of the gated product
    """

    width: int
    states: int
    inner: int

    def operators(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]:
        narrow, gate = parts.project("u_proj", x, self.width), parts.project("v_proj", x, self.inner)
        acts = tuple(parts.activate(f"{op.name}_act", "gelu", op.result) for op in (narrow, gate))
        norm = parts.norm("ssm_norm", acts[0].result, kind=NormKind.LAYER)
        conv = modal_conv(parts, norm.result, self.width, self.states, shared_poles=True)
        wide = parts.project("gate_proj", conv.result, self.inner)
        gated = parts.elementwise("gated", wide.result, acts[1].result, ops=1)
        out = parts.project("out_proj", gated.result, x.width, bias=True)
        return (narrow, gate, *acts, norm, conv, wide, gated, out)


@frozen(kw_only=True)
class H3:
    """Queries, and keys shifted by a short state space, times values, through a long one (arXiv:2212.14052, section 3).

    taps    tokens of the shift
    states  modes of each channel of the long state space
    """

    taps: int
    states: int

    def operators(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]:
        width = x.width
        query, value = (parts.project(f"{name}_proj", x, width, bias=True) for name in ("q", "v"))
        key = parts.project("k_proj", x, width, bias=True)
        shift_state = kept("shift_state", width * (self.taps - 1), parts)
        shifted = ShortConv(
            name="shift",
            inputs=(key.result, shift_state),
            outputs=(parts.tensor("shift", width), shift_state),
            weights=(parts.weight("shift.weight", width, self.taps), parts.weight("shift.D", width)),
            taps=self.taps,
        )
        conv = modal_conv(parts, shifted.result, width, self.states, query.result, value.result)
        return (query, key, value, shifted, conv, parts.project("out_proj", conv.result, width, bias=True))


def modal_conv(
    parts: Parts, x: Tensor, width: int, states: int, *gates: Tensor, name: str = "ssm", shared_poles: bool = False
) -> LongConv:
    """The long convolution of each channel of x by modes, with gates if given; leaves `name`. Residues are a channel's
    own; so are poles, if not all share them.
    """
    state = kept(f"{name}_state", 2 * width * states)
    return LongConv(
        name=name,
        inputs=(x, *gates, state),
        outputs=(parts.tensor(name, width), state),
        weights=(
            parts.weight("D", width),
            parts.weight("poles", 1 if shared_poles else width, states, 2),
            parts.weight("residues", width, states, 2),
        ),
        channels=width,
        states=states,
    )


@frozen(kw_only=True)
class ImplicitHyena:
    """Hyena with the filter of its paper: a small network makes its value at each position (arXiv:2302.10866).

    What is convolved stays in memory, a row for each token, and every pass convolves all of it.

    taps       tokens of the short convolution
    features   features of a position that the network reads
    inner      width of the network
    depth      layers of it between the first and the last
    """

    taps: int
    features: int = 33
    inner: int = 64
    depth: int = 2

    def operators(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]:
        width = x.width
        projections = parts.project("projections", x, 3 * width, bias=True)
        short_state = kept("short_state", 3 * width * (self.taps - 1), parts)
        gate = parts.tensor("gate", width)
        short_conv = ShortConv(
            name="short_filter",
            inputs=(projections.result, short_state),
            outputs=(parts.tensor("short_filter", 2 * width), gate, short_state),
            weights=(
                parts.weight("short_filter.weight", 3 * width, self.taps),
                parts.weight("short_filter.bias", 3 * width),
            ),
            taps=self.taps,
        )
        product = parts.elementwise("history_gate", short_conv.outputs[0], ops=1, width=width)
        product = replace(product, outputs=(parts.cached("history", width),))
        long_conv = ImplicitConv(
            name="long_filter",
            inputs=(gate, parts.cache("history", width)),
            outputs=(parts.tensor("long_filter", width),),
            weights=(
                parts.weight("D", width),
                *_filter_weights(parts, width, features=self.features, inner=self.inner, depth=self.depth),
            ),
        )
        return (
            projections,
            short_conv,
            product,
            long_conv,
            parts.project("out_proj", long_conv.result, width, bias=True),
        )


def _filter_weights(
    parts: Parts, width: int, *, features: int, inner: int, depth: int, last_bias: bool = False
) -> tuple[Weight, ...]:
    """The weights of a network that makes a filter, which stay, and the `width` values that it makes of the `features`
    of a position, of which a pass reads one row for each.
    """
    sizes = [(inner, features), *[(inner, inner)] * depth, (width, inner)]
    layers = [replace(parts.weight(f"filter.{n}.weight", *size), rows=Form()) for n, size in enumerate(sizes)]
    bias_sizes = [inner] * (depth + 1) + [width] * last_bias
    biases = [replace(parts.weight(f"filter.{n}.bias", size), rows=Form()) for n, size in enumerate(bias_sizes)]
    values = replace(parts.weight("filter", 1, width), tied=True, rows=longest_context())
    return (*layers, *biases, values)


@frozen(kw_only=True)
class ContinuousConv:
    """CKConv: a convolution as long as the context from all channels to all, whose filter a small network of the
    position makes (arXiv:2102.02611, section 4; github.com/dwromero/ckconv, ckconv/nn/ckconv.py).

    What is convolved stays in memory, a row for each token, and every pass convolves all of it.

    inner  width of the network, which has three layers with biases
    """

    inner: int = 32

    def operators(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]:
        history_copy = parts.elementwise("history_copy", x, ops=0)
        history_copy = replace(history_copy, outputs=(parts.cached("history", x.width),))
        filter_weights = _filter_weights(parts, x.width**2, features=1, inner=self.inner, depth=1, last_bias=True)
        conv = MixedConv(
            name="long_filter",
            inputs=(parts.cache("history", x.width),),
            outputs=(parts.tensor("long_filter", x.width),),
            weights=(parts.weight("bias", x.width), *filter_weights),
        )
        return (history_copy, conv)
