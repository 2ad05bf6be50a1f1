"""A network as operators in launch order, equal layers folded into blocks that repeat, joined by tensor names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import reduce
from typing import TypeAlias

from .forms import TARGET, WHOLE, Stream
from .operators.base import KEPT, Operator, Tensor


@dataclass(frozen=True, kw_only=True)
class Block:
    """Operators that run one after another, once for each of its layers.

    input   name by which they read what the pass before them left; "" where they start from token ids
    output  name of the tensor that they leave for the next repetition or the next block
    layers  places of its layers among those of the model; empty where the block is no layer and runs once
    kept    tensors that stay in memory until the block ends, read again or not
    stream  the part of a pass that it sees: of an encoder or a tower, not all tokens
    stage   the stage of a pipeline that runs it
    given   tensors that blocks before have left, which every repetition reads besides its input
    """

    name: str
    operators: tuple[Operator, ...]
    input: str
    output: str
    layers: tuple[int, ...] = ()
    kept: tuple[str, ...] = ()
    stream: Stream = WHOLE
    given: tuple[str, ...] = ()
    stage: int = 0

    @property
    def repeat(self) -> int:
        """How often it runs in a pass."""
        return len(self.layers) or 1

    @property
    def main(self) -> bool:
        """Whether it works on the tokens that are written, and not beside them on an encoder's or on pictures."""
        return self.stream in (WHOLE, TARGET) or self.stream.name == "seeing"

    def map(self, f: Callable[[Operator], Operator]) -> Block:
        return replace(self, operators=tuple(map(f, self.operators)))


@dataclass(frozen=True)
class Graph:
    """Blocks, in the order of their first layers. Layers that are alike are one block wherever they stand, so
    alternating kinds of layer are two blocks. Names of operators are unique in a block.

    prediction  blocks that predict further tokens: no part of a pass until predicting() makes them one
    """

    blocks: tuple[Block, ...]
    prediction: tuple[Block, ...] = ()

    def __iter__(self) -> Iterator[tuple[Block, Operator]]:
        return ((block, op) for block in self.blocks for op in block.operators)

    def map(self, f: Callable[[Operator], Operator]) -> Graph:
        return Graph(tuple(block.map(f) for block in self.blocks))

    def map_blocks(self, f: Callable[[Block], Block]) -> Graph:
        return Graph(tuple(map(f, self.blocks)))

    def of_stage(self, stage: int) -> Graph:
        """The blocks that a stage of a pipeline runs."""
        return Graph(tuple(block for block in self.blocks if block.stage == stage))

    def then(self, *transforms: Transform) -> Graph:
        return reduce(lambda graph, transform: transform(graph), transforms, self)

    def predicting(self) -> Graph:
        """The graph whose passes also predict further tokens."""
        return Graph((*self.blocks, *self.prediction))

    @property
    def parameters(self) -> int:
        """Numbers that were learned, shared ones once."""
        return sum(b.repeat * sum(w.numel for w in op.weights if not w.tied) for b, op in self)

    @property
    def active_parameters(self) -> float:
        """Those that take part in one token."""
        return sum(b.repeat * sum(w.active * w.numel for w in op.weights if not w.tied) for b, op in self)

    @property
    def layers(self) -> int:
        """How many layers the model has, those of encoders and towers beside it apart."""
        return sum(len(block.layers) for block in self.blocks if block.main)

    def check(self) -> Graph:
        """Itself, if it can be run as it stands.

        Raises RuntimeError where a tensor is read before it is written, or written in one format and read in another:
        a mistake in an architecture or a transform.
        """
        left: dict[str, Tensor] = {}  # what blocks leave
        for block in self.blocks:
            known: dict[str, Tensor] = {}
            for name in block.given:
                if name not in left:
                    raise RuntimeError(f"{block.name} is given {name}, which no block before it leaves")
                known[name] = left[name]
            for op in block.operators:
                for t in op.inputs:
                    written = known.setdefault(t.name, t) if t.name == block.input or t.role in KEPT else None
                    written = written or known.get(t.name)
                    if written is None:
                        raise RuntimeError(f"{block.name}.{op.name} reads {t.name}, which nothing before it writes")
                    if written.format != t.format:
                        raise RuntimeError(
                            f"{block.name}.{op.name} reads {t.name} as {t.format}; it was written as {written.format}"
                        )
                for t in op.outputs:
                    known[t.name] = t
            if block.output not in known:
                raise RuntimeError(f"{block.name} leaves {block.output}, which nothing in it writes")
            left[block.output] = known[block.output]
        return self


Transform: TypeAlias = Callable[[Graph], Graph]
