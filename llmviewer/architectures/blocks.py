"""The parts that decoders are built from. Weights bear short names; operators bear the names of LLaMA's."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import Final

from ..documents import Section
from ..forms import LOGITS, WANTED, cells, kv_tokens, table_rows
from ..graph import Block
from ..operators.attention import QK, SV, Heads, Softmax
from ..operators.base import Operator, Role, Tensor, Weight
from ..operators.elementwise import ACTIVATION_OPS, Activation, Add, Norm, Rope
from ..operators.embedding import Embedding
from ..operators.linear import Linear, LMHead
from ..precision import Format

HIDDEN = "hidden"  # what a block reads of the one before it

_ACTIVATIONS: Final = {  # Hugging Face names -> keys of ACTIVATION_OPS
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}


def activation(config: Section, key: str, default: str) -> str:
    """The activation function that a config names, as a key of ACTIVATION_OPS."""
    return _ACTIVATIONS[config.choice(key, _ACTIVATIONS, default)]


def heads_of(config: Section, hidden: int, key: str, *, num_kv_heads: int | None = None, window: float = inf) -> Heads:
    """The heads that a config describes: `key` says how many, head_dim how wide, or else they share `hidden`.

    Raises InputError where they cannot be: a width that is no whole number, or KV heads that cannot be shared evenly.
    """
    num_heads = config.integer(key)
    if config.get("head_dim") is None and hidden % num_heads:
        raise config.error(key, f"must divide the hidden size {hidden} where there is no head_dim; got {num_heads}")
    num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
    if num_heads % num_kv_heads:
        raise config.error(key, f"must be a multiple of the {num_kv_heads} key-value heads; got {num_heads}")
    head_dim = config.integer("head_dim", hidden // num_heads)
    return Heads(num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim, window=window)


@dataclass(frozen=True, kw_only=True)
class Parts:
    """Makes operators in the model's own format."""

    format: Format

    def tensor(self, name: str, width: int) -> Tensor:
        return Tensor(name=name, width=width, format=self.format)

    def cached(self, name: str, width: int) -> Tensor:
        """What a launch appends to the KV cache."""
        return Tensor(name=name, width=width, format=self.format, role=Role.KV_CACHE)

    def weight(self, name: str, *shape: int, tied: bool = False) -> Weight:
        return Weight(name=name, shape=shape, format=self.format, tied=tied)

    def linear(self, name: str, x: Tensor, *outputs: Tensor, bias: bool = False) -> Linear:
        width = sum(t.width for t in outputs)
        weights = [self.weight(f"{name}.weight", width, x.width)]
        if bias:
            weights.append(self.weight(f"{name}.bias", width))
        return Linear(name=name, inputs=(x,), outputs=outputs, weights=tuple(weights))

    def rms_norm(self, name: str, x: Tensor) -> Norm:
        weights = (self.weight(f"{name}.weight", x.width),)
        return Norm(name=name, inputs=(x,), outputs=(self.tensor(name, x.width),), weights=weights, ops_per_element=4)

    def layer_norm(self, name: str, x: Tensor) -> Norm:
        weights = (self.weight(f"{name}.weight", x.width), self.weight(f"{name}.bias", x.width))
        return Norm(name=name, inputs=(x,), outputs=(self.tensor(name, x.width),), weights=weights, ops_per_element=7)

    def add(self, name: str, *operands: Tensor) -> Add:
        out = self.tensor(name, operands[0].width)
        return Add(name=name, inputs=operands, outputs=(out,), ops_per_element=len(operands) - 1)

    def mlp(self, x: Tensor, *, inner: int, act: str, gated: bool = False, bias: bool = False) -> tuple[Operator, ...]:
        """down(act(gate(x)) * up(x)), or down(act(up(x))); leaves "down_proj"."""
        out = self.tensor("down_proj", x.width)
        up = self.linear("up_proj", x, self.tensor("up_proj", inner), bias=bias)
        first = (self.linear("gate_proj", x, self.tensor("gate_proj", inner), bias=bias), up) if gated else (up,)
        ops = ACTIVATION_OPS[act] + (1 if gated else 0)
        inputs = tuple(op.outputs[0] for op in first)
        mid = Activation(name="mlp_act", inputs=inputs, outputs=(self.tensor("mlp_act", inner),), ops_per_element=ops)
        return (*first, mid, self.linear("down_proj", mid.outputs[0], out, bias=bias))

    def attention(
        self,
        x: Tensor,
        heads: Heads,
        *,
        rotary_dim: int = 0,
        alibi: bool = False,
        fused_qkv: bool = False,
        qkv_bias: bool = False,
        o_bias: bool = False,
    ) -> tuple[Operator, ...]:
        """Self-attention with a KV cache, scores in memory; leaves "o_proj".

        Keys and values go straight to the cache from the projection that makes them, or from the rotation.
        """
        q = self.tensor("q_proj", heads.q_width)
        k = self.tensor("k_proj", heads.kv_width) if rotary_dim else self.cached("k_cache", heads.kv_width)
        v = self.cached("v_cache", heads.kv_width)
        named = (("qkv_proj", (q, k, v)),) if fused_qkv else (("q_proj", (q,)), ("k_proj", (k,)), ("v_proj", (v,)))
        projections = [self.linear(name, x, *outputs, bias=qkv_bias) for name, outputs in named]
        rotation: list[Operator] = []
        if rotary_dim:
            rotated = (self.tensor("q_rope", heads.q_width), self.cached("k_cache", heads.kv_width))
            rotation = [Rope(name="rope", inputs=(q, k), outputs=rotated, heads=heads, rotary_dim=rotary_dim)]
            q = rotated[0]
        out = self.tensor("o_proj", x.width)
        scored = self._scores(q, heads, alibi=alibi)
        return (*projections, *rotation, *scored, self.linear("o_proj", scored[-1].outputs[0], out, bias=o_bias))

    def _scores(self, q: Tensor, heads: Heads, *, alibi: bool) -> tuple[Operator, ...]:
        rows = cells(heads.window)
        scores, probs = (
            Tensor(name=name, width=heads.num_heads, rows=rows, format=self.format) for name in ("scores", "probs")
        )
        k, v = (replace(self.cached(n, heads.kv_width), rows=kv_tokens(heads.window)) for n in ("k_cache", "v_cache"))
        out = self.tensor("attention", heads.q_width)
        return (
            QK(name="qk_matmul", inputs=(q, k), outputs=(scores,), heads=heads),
            Softmax(name="softmax", inputs=(scores,), outputs=(probs,), heads=heads, bias=alibi),
            SV(name="sv_matmul", inputs=(probs, v), outputs=(out,), heads=heads),
        )

    def embedding(self, vocab_size: int, width: int, *, positions: int = 0) -> Block:
        """Token embeddings, with learned positions added where `positions` says how many there are."""
        tables = [self._table("embed_tokens.weight", vocab_size, width)]
        if positions:
            tables.append(self._table("embed_positions.weight", positions, width))
        out = self.tensor("embed_tokens", width)
        op = Embedding(name="embed_tokens", inputs=(), outputs=(out,), weights=tuple(tables))
        return Block(name="embedding", operators=(op,), input="", output=out.name)

    def _table(self, name: str, rows: int, width: int) -> Weight:
        return Weight(name=name, shape=(rows, width), format=self.format, rows=table_rows(rows))

    def head(self, x: Tensor, *before: Operator, vocab_size: int, tied: bool, bias: bool = False) -> Block:
        """What comes `before`, such as the last norm, over all tokens; then logits, where they are wanted."""
        hidden = replace(before[-1].outputs[0] if before else x, rows=LOGITS)
        weights = [
            replace(self.weight("lm_head.weight", vocab_size, hidden.width, tied=tied), rows=vocab_size * WANTED)
        ]
        if bias:
            weights.append(self.weight("lm_head.bias", vocab_size))
        logits = replace(self.tensor("logits", vocab_size), rows=LOGITS)
        op = LMHead(name="lm_head", inputs=(hidden,), outputs=(logits,), weights=tuple(weights))
        return Block(name="head", operators=(*before, op), input=x.name, output="logits")
