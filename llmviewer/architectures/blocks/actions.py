"""Models for robots that denoise actions: a vision-language model reads the prompt once, and an expert refines a chunk
of actions in several passes that read the prompt's keys and values (arXiv:2410.24164).

A token generated stands for one denoising step, and the first one is part of the prefill. The prompt holds the tokens
of all images, the instruction and, in some models, the robot's state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from ...forms import ONE, SEQUENCES, SOURCE, TOKENS, WHOLE_PASS, Form, Stream, source_kv
from ...graph import Block, Graph
from ...operators.attention import Attention, Heads
from ...operators.base import Operator, Role, Tensor
from ...operators.compression import Turn
from ...operators.elementwise import Elementwise, Permute, Rope
from ...operators.linear import LMHead
from ...operators.masks import Causal, Cross, Joint, Mask, Tiled, WholePrompt
from ...records import frozen
from .attention import scored
from .decoder import FeedForward, Layer, Mixer
from .parts import NormKind, Parts, result, with_rows

WAVE_OPS: Final = 2  # per element of a time embedding: scale, sine or cosine
CONDITION: Final = "condition"  # embedding of the time that modulates layers


def prefix(vlm: Graph, mask: Mask | None = None) -> tuple[Block, ...]:
    """The blocks of a vision-language model as the encoder of a prompt, whose head does not run.

    mask  of attention to the prompt; None: all tokens attend to each other, and keys and values are kept
    """
    return tuple(_read_once(block, mask or WholePrompt()) for block in vlm.blocks)


def _read_once(block: Block, mask: Mask) -> Block:
    if block.stream != WHOLE_PASS:
        return block
    operators = tuple(_masked(op, mask) for op in block.operators if not isinstance(op, LMHead))
    return replace(block, operators=operators, output=operators[-1].result.name, stream=SOURCE)


def _masked(op: Operator, mask: Mask) -> Operator:
    def cache(t: Tensor) -> Tensor:
        unchanged = mask.is_cached or t.role is not Role.KV_CACHE
        return t if unchanged else replace(t, role=Role.ACTIVATION, retained_rows=None)

    op = op.with_tensors(cache)
    if not isinstance(op, Attention) or not isinstance(op.heads.mask, Causal):
        return op

    def rows(t: Tensor) -> Tensor:
        if t.name in ("scores", "probs"):
            return with_rows(t, mask.cells)
        if t.name not in ("k_cache", "v_cache"):
            return t
        return replace(t, rows=mask.keys_read, retained_rows=mask.keys_cached if mask.is_cached else None)

    return replace(op, heads=replace(op.heads, mask=mask)).with_tensors(rows)


@frozen(kw_only=True)
class ActionAttention:
    """Attention of action tokens to each other and to the cached keys and values of the prompt.

    own        (query, key) pairs among action tokens; 0: the prompt alone
    projected  width of the prompt's keys and values, which are projected once before the first step; 0: read as cached
    """

    heads: Heads
    own: int
    projected: int = 0

    def operators(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]:
        heads = self.heads
        masks = (Cross(), Tiled(self.own)) if self.own else (Cross(),)
        heads = replace(heads, mask=Joint(masks) if self.own else Cross())
        projections, q, keys, values = self._own(parts, x)
        name = "cross_" if self.projected else ""
        k, v = (self._cached(parts, f"{name}{kind}_cache") for kind in "kv")
        before = self._projected(parts) if self.projected else ()
        qk, softmax, sv = scored(parts, heads, q, (k, *keys), v)
        attended = (qk, softmax, replace(sv, inputs=(*sv.inputs, *values)))
        return (*projections, *before, *attended, parts.project("o_proj", sv.result, x.width))

    def _own(
        self, parts: Parts, x: Tensor
    ) -> tuple[tuple[Operator, ...], Tensor, tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Queries, and keys and values of action tokens if they attend to each other."""
        heads = self.heads
        q = parts.project("q_proj", x, heads.q_width)
        turned = parts.tensor("q_rope", heads.q_width)
        if not self.own:
            turn = Turn(
                name="rope", inputs=q.outputs, outputs=(turned,), num_heads=heads.num_heads, rotary_dim=heads.head_dim
            )
            return (q, turn), turned, (), ()
        k, v = (parts.project(f"{kind}_proj", x, heads.kv_width) for kind in "kv")
        key = parts.tensor("k_rope", heads.kv_width)
        rope = Rope(
            name="rope",
            inputs=(q.result, k.result),
            outputs=(turned, key),
            heads=heads,
            rotary_dim=heads.head_dim,
        )
        return (q, k, v, rope), turned, (key,), (v.result,)

    def _cached(self, parts: Parts, name: str) -> Tensor:
        """Keys or values of the prompt; those that the vision-language model wrote are held by its blocks."""
        cached = replace(parts.cached(name, self.heads.kv_width), rows=source_kv())
        return replace(cached, retained_rows=Cross().keys_cached if self.projected else Form())

    def _projected(self, parts: Parts) -> tuple[Operator, ...]:
        """Projections of the prompt's keys and values to those of the expert."""
        rows = TOKENS.on(SOURCE)
        operators = []
        for kind in "kv":
            source = replace(parts.cached(f"{kind}_cache", self.projected), rows=rows, retained_rows=Form())
            out = with_rows(parts.cached(f"cross_{kind}_cache", self.heads.kv_width), rows)
            linear = parts.linear(f"cross_{kind}_proj", source, out)
            operators.append(linear.with_weights(lambda w: replace(w, rows=w.shape[0] * ONE.on(SOURCE))))
        return tuple(operators)


@frozen(kw_only=True)
class Modulated(Layer):
    """A layer whose norms are scaled and shifted by projections of CONDITION, and whose branches are gated by them.

    gates  whether branches are gated; else only the first norm is modulated, and the second has nothing learned
    """

    norm: NormKind = NormKind.UNIT
    gates: bool = True
    condition: int = 0

    def operators(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]:
        launches: tuple[Operator, ...] = ()
        for name, run in (("attn", self.mixer), ("mlp", self.feed_forward)):
            if run:
                branch = self._modulated(parts, name, result(launches) if launches else x, run)
                launches = (*launches, *branch)
        return launches

    def _modulated(self, parts: Parts, name: str, x: Tensor, run: Mixer | FeedForward) -> tuple[Operator, ...]:
        norm = parts.norm(f"{name}_norm", x, kind=self.norm)
        if not self.gates and name == "mlp":
            operators = (norm, *run.operators(parts, norm.result))
            return (*operators, parts.add("mlp_add", x, result(operators)))
        first, numbers = modulation(parts, name, self.condition, (2 + self.gates) * x.width, act=not self.gates)
        scaled = parts.elementwise(f"{name}_modulated", norm.result, replace(numbers, width=2 * x.width), ops=2)
        operators = (*first, norm, scaled, *run.operators(parts, scaled.result))
        if not self.gates:
            return (*operators, parts.add(f"{name}_add", x, result(operators)))
        gate = replace(numbers, width=x.width)
        return (*operators, parts.elementwise(f"{name}_add", x, result(operators), gate, ops=2))


def modulation(
    parts: Parts, name: str, condition: int, width: int, *, act: bool = False
) -> tuple[tuple[Operator, ...], Tensor]:
    """A projection of CONDITION to `width` numbers per sequence, behind SiLU if `act`."""
    x = with_rows(parts.tensor(CONDITION, condition), SEQUENCES)
    before = (parts.activate(f"{name}_condition_act", "silu", x),) if act else ()
    x = result(before) if before else x
    numbers = with_rows(parts.tensor(f"{name}_modulation", width), SEQUENCES)
    return (*before, parts.linear(numbers.name, x, numbers, bias=True)), numbers


def per_sequence(parts: Parts, name: str, width: int) -> Tensor:
    """Tensor with one row of `width` per sequence, whatever the number of tokens."""
    return with_rows(parts.tensor(name, width), SEQUENCES)


def waves(parts: Parts, width: int) -> Elementwise:
    """Sines and cosines of the time of each sequence."""
    return Elementwise(
        name="time_waves", inputs=(), outputs=(per_sequence(parts, "time_waves", width),), ops_per_element=WAVE_OPS
    )


def project(parts: Parts, name: str, x: Tensor, width: int) -> Operator:
    """A projection with bias of as many rows as x has."""
    return parts.linear(name, x, with_rows(parts.tensor(name, width), x.rows), bias=True)


def side_by_side(parts: Parts, name: str, rows: Form, *inputs: Tensor, width: int = 0) -> Permute:
    """`inputs` in one tensor: along tokens, or along the width if it is given."""
    out = with_rows(parts.tensor(name, width or inputs[0].width), rows)
    return Permute(name=name, inputs=inputs, outputs=(out,))


def acting_blocks(blocks: Sequence[Block], stream: Stream) -> tuple[Block, ...]:
    """The blocks of an expert, which run in every denoising step."""
    return tuple(replace(block, name=f"expert_{block.name}", stream=stream).map(_of_expert) for block in blocks)


def _of_expert(op: Operator) -> Operator:
    return replace(op, name=f"expert_{op.name}").with_weights(lambda w: replace(w, name=f"expert_{w.name}"))
