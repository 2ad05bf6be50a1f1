"""HRM-Text: a slow and a fast stack of layers, which a forward pass runs in turn and several times (arXiv:2506.21734).

Every run of a layer has a cache of its own. Where the other stack's state stands still it is held beside the one that
runs, as the embedding is named here.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ..documents import Section
from ..graph import Block, Graph
from ..operators.base import Operator, Tensor
from ..operators.masks import Prefix
from ..precision import Format
from ..records import frozen
from . import architecture
from .blocks.attention import SelfAttention
from .blocks.decoder import Decoder, Layer
from .blocks.encoder import holding
from .blocks.fields import gated_mlp, grouped_heads, require_false
from .blocks.parts import NormKind, Parts, result, reused_weight

_OTHER: Final = "embed_tokens"  # the state of the stack that does not run
_IGNORED: Final = "L_bp_cycles embedding_scale num_hidden_layers num_key_value_heads"


@frozen(kw_only=True)
class StackLayer(Layer):
    """A layer of a stack.

    first   both states are added before it
    last    a norm follows it
    reused  its parameters are those of an earlier run
    """

    first: bool
    last: bool
    reused: bool

    def operators(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]:
        before = (parts.add("state_add", x, parts.tensor(_OTHER, x.width)),) if self.first else ()
        launches = (*before, *super().operators(parts, result(before) if before else x))
        launches = (*launches, parts.norm("stack_norm", result(launches))) if self.last else launches
        return tuple(op.with_weights(reused_weight) for op in launches) if self.reused else launches


class TwoStacks(Decoder):
    """A decoder whose fast stack starts from a state that is learned."""

    def _embedding(self, parts: Parts) -> Block:
        return super()._embedding(parts).map(lambda op: holding(op, parts, {"first_state": (self.hidden,)}))


@architecture("hrm_text")
def build(config: Section, fmt: Format) -> Graph:
    """HRM-Text: a slow and a fast stack of layers, run in turn, with a KV cache for each run."""
    config.ignore(*_IGNORED.split())
    require_false(config, "attention_bias", "biases of this attention are not modelled")
    heads = replace(grouped_heads(config), num_kv_heads=config.integer("num_attention_heads"))
    if config.flag("prefix_lm", default=True):
        heads = replace(heads, mask=Prefix())
    plain = Layer(
        mixer=SelfAttention(heads=heads, rotary_dim=heads.head_dim, gates=heads.q_width), feed_forward=gated_mlp(config)
    )
    return TwoStacks(
        vocab=config.integer("vocab_size"),
        hidden=config.integer("hidden_size"),
        layers=_runs(config, plain),
        norm=NormKind.UNIT,
        tied=config.flag("tie_word_embeddings", default=False),
        final_norm=False,
    ).graph(fmt)


def _runs(config: Section, plain: Layer) -> list[StackLayer]:
    """Layers in the order in which they run: the fast stack L_cycles times, then the slow one, H_cycles times."""
    layers = config.count(config.first("num_layers_per_stack", "num_hidden_layers"))
    slow = config.count("H_cycles", 2, times=layers)
    fast = config.count("L_cycles", 3, times=layers * slow)
    reused = [cycle > 0 or run not in (0, fast) for cycle in range(slow) for run in range(fast + 1)]

    def layer(place: int, *, reused: bool) -> StackLayer:
        first, last = place == 0, place == layers - 1
        return StackLayer(
            mixer=plain.mixer,
            feed_forward=plain.feed_forward,
            name=f"layer{'_first' if first else ''}{'_last' if last else ''}{'_again' if reused else ''}",
            given=(_OTHER,) if first else (),
            first=first,
            last=last,
            reused=reused,
        )

    return [layer(place, reused=is_reused) for is_reused in reused for place in range(layers)]
