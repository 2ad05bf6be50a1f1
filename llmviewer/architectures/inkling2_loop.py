"""Text part of Inkling 2 Mini: Inkling 2 with some layers looped.

Every pass over them starts from what the layers before have left. From the second on, the inputs of a layer are mixed
with messages: mixtures of what the pass before has left. Each run of a layer has a cache of its own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ..documents import Section
from ..graph import Graph
from ..operators.base import Operator, Tensor
from ..precision import Format
from ..records import frozen
from . import architecture
from .blocks.attention_residuals import SourcedDecoder, mixed, side_tensors
from .blocks.decoder import Layer, Mixer
from .blocks.fields import filled
from .blocks.parts import NormKind, Parts, result, reused_weight
from .inkling2 import ClippedLayer, attended, attention_of, plain_decoder

_FIELDS: Final = {
    "vocab_size": 201024, "hidden_size": 2304, "num_hidden_layers": 24, "num_attention_heads": 24,
    "num_key_value_heads": 8, "head_dim": 128, "swa_num_attention_heads": 24, "swa_num_key_value_heads": 8,
    "swa_head_dim": 128, "moe_intermediate_size": 1152, "n_routed_experts": 128, "num_experts_per_tok": 8,
}  # fmt: skip
_READS: Final = ("q", "k", "v")
_GATE_OPS: Final = 6  # of an element: two hyperbolic tangents, and (1 - forget) h + gate m


@frozen(kw_only=True)
class Loop:
    """Layers from `start` to before `end` that run `passes` times.

    run    layers whose results are one source
    rank   of the gates of messages
    count  all layers
    """

    start: int
    end: int
    passes: int
    rank: int
    run: int
    count: int

    @classmethod
    def of(cls, config: Section) -> Loop:
        inner = config.section("loop_config") if config.get("loop_config") is not None else Section({}, config.file)
        run, count = config.integer("n_layers_per_attn_res_block", 6), config.count("num_hidden_layers")

        def loop_field(key: str, other: str, default: int) -> int:
            return inner.integer(other, config.integer(key, default))

        loop = cls(
            start=loop_field("loop_layer_index_start", "core_start", 6),
            end=loop_field("loop_layer_index_end", "core_end", 18),
            passes=loop_field("loop_num_passes", "num_passes", 3),
            rank=loop_field("loop_gate_rank", "gate_rank", 64),
            run=run,
            count=count,
        )
        if loop.start % run or loop.end % run or not loop.start < loop.end <= count:
            raise config.error(
                "loop_layer_index_start",
                f"must, as loop_layer_index_end, be a multiple of {run}, and both in order within {count} layers; "
                f"got {loop.start} and {loop.end}",
            )
        return loop

    def source(self, place: int, turn: int) -> str:
        """The name of source `place`, which runs before it have left; in the loop, of pass `turn`."""
        if not place:
            return "embed_norm"
        looped = self.start // self.run < place <= self.end // self.run
        return f"run_{place - 1}" + (f"_pass_{turn}" if looped and turn < self.passes - 1 else "")

    def sources(self, count: int, turn: int) -> tuple[str, ...]:
        return tuple(self.source(place, turn) for place in range(count))

    def messages(self, turn: int) -> tuple[str, ...]:
        """Names of what the pass before `turn` has left."""
        places = range(self.start // self.run + 1, self.end // self.run + 1)
        return tuple(self.source(place, turn - 1) for place in places) if turn else ()

    def runs(self) -> list[tuple[int, int]]:
        """Layers in the order in which they run, with their pass; layers after the loop are of its last pass."""
        inner = [(index, turn) for turn in range(self.passes) for index in range(self.start, self.end)]
        after = [(index, self.passes - 1) for index in range(self.end, self.count)]
        return [*((index, 0) for index in range(self.start)), *inner, *after]


@frozen(kw_only=True)
class LoopedLayer(ClippedLayer):
    """A layer in a pass after the first.

    turn      number of the pass
    rank      of the gates of messages
    messages  how many names at the end of `given` are of sources of messages
    restarts  it reads the last source before those in the place of its input
    """

    turn: int
    rank: int
    messages: int
    restarts: bool

    def operators(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]:
        source_names, left = self.given[: -self.messages], self.given[-self.messages :]
        if self.restarts:
            x = parts.tensor(source_names[-1], x.width)
        names = [f"{name}_message" for name in (*_READS, "mlp")]
        messages = mixed(parts, "messages", side_tensors(parts, left, x), names, learned=False)
        launches = (messages, *super().operators(parts, x))
        return tuple(op if self.turn == 1 and _of_messages(op) else op.with_weights(reused_weight) for op in launches)

    def _sources(self, parts: Parts, x: Tensor) -> tuple[Tensor, ...]:
        return side_tensors(parts, self.given[: -self.messages - self.restarts], x)

    def _attending(self, parts: Parts, mixer: Mixer, sources: tuple[Tensor, ...]) -> tuple[Operator, ...]:
        separate_caches = attention_of(mixer)[1].made
        names = [f"{name}_sources" for name in (_READS if separate_caches else ("attn",))]
        mixed_sources = mixed(parts, "attn_sources", sources, names, learned=False)
        operators: tuple[Operator, ...] = (mixed_sources,)
        inputs = []
        for name, x in zip(
            _READS, mixed_sources.outputs if separate_caches else mixed_sources.outputs * len(_READS), strict=True
        ):
            gated = self._told(parts, name, x)
            norm = parts.norm(f"{name}_norm_in", result(gated))
            operators = (*operators, *gated, norm)
            inputs.append(norm.result)
        return (*operators, *attended(parts, mixer, inputs))

    def _seen(self, parts: Parts, sources: tuple[Tensor, ...]) -> tuple[Operator, ...]:
        mixed_sources = super()._seen(parts, sources)
        return (*mixed_sources, *self._told(parts, "mlp", result(mixed_sources)))

    def _told(self, parts: Parts, name: str, x: Tensor) -> tuple[Operator, ...]:
        """X and its message, weighed by channel by what a narrow network makes of both."""
        message = parts.tensor(f"{name}_message", x.width)
        norm = parts.norm(f"{name}_told_norm", x, kind=NormKind.UNIT)
        joined_tensor = replace(
            norm, inputs=(x, message), outputs=(parts.tensor(norm.name, 2 * x.width),), group=x.width
        )
        down = parts.project(f"{name}_told_down", joined_tensor.result, self.rank)
        forget, gate = (parts.project(f"{name}_told_{purpose}", down.result, x.width) for purpose in ("forget", "gate"))
        merged = parts.elementwise(f"{name}_told", x, message, forget.result, gate.result, ops=_GATE_OPS)
        return (joined_tensor, down, forget, gate, merged)


def _of_messages(op: Operator) -> bool:
    """Whether its parameters are of messages, which the first pass does not read."""
    return op.name == "messages" or "_told_" in op.name


@architecture("inkling2_loop_text")
def build_text(config: Section, fmt: Format) -> Graph:
    """Inkling 2 Mini's language model: layers that run several times, each run with a KV cache of its own."""
    config = filled(config, _FIELDS)
    loop, plain = Loop.of(config), plain_decoder(config)
    layers = [_layer(loop, plain.layers[index], index, turn) for index, turn in loop.runs()]
    sources = loop.sources((loop.count - 1) // loop.run + 1, loop.passes - 1)
    return SourcedDecoder(**(vars(plain) | {"layers": layers}), sources=sources, learned=False).graph(fmt)


def _layer(loop: Loop, plain: Layer, index: int, turn: int) -> ClippedLayer:
    run_index, place = divmod(index, loop.run)
    looped = turn > 0 and index < loop.end
    first, restarts = place == 0, looped and index == loop.start
    has_successor = index < loop.count - 1 or turn < loop.passes - 1
    last = place == loop.run - 1 and has_successor
    sources = loop.sources(run_index if first and not restarts else run_index + 1, turn)
    messages = loop.messages(turn) if looped else ()
    ends = ("_first" if first else "", "_last" if last else "", f"_pass_{turn}" if looped else "")
    layer = ClippedLayer(
        mixer=plain.mixer,
        feed_forward=plain.feed_forward,
        name=f"{plain.name}_{run_index}{''.join(ends)}",
        given=(*sources, *messages),
        first=first,
        leaves=loop.source(run_index + 1, turn) if last else "",
    )
    if not looped:
        return layer
    return LoopedLayer(**vars(layer), turn=turn, rank=loop.rank, messages=len(messages), restarts=restarts)
