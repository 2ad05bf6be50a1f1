"""`Graph`: operators in launch order, joined by tensor names, with equal layers folded into repeating blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import reduce
from typing import Final, TypeAlias

from .forms import TARGET, WHOLE_PASS, Stream
from .operators.base import RETAINED_ROLES, Operator, Tensor
from .operators.fused import parts_of
from .records import frozen

_MAIN_STREAMS: Final = ("with_images", "denoising", "logit_tokens", "resized")  # of the generated sequence


@frozen(kw_only=True)
class Block:
    """Operators that run in sequence, once per layer of the block.

    input   name of the tensor from the block or repetition before; "": starts from token ids
    output  name of the tensor for the next repetition or block
    layers  indices of its layers in the model; empty: no layer, runs once
    live_tensors  tensors that stay in memory until the block ends
    stream  the part of a pass that it processes; not all tokens in encoders and towers
    stage   pipeline stage that runs it
    side_inputs   outputs of earlier blocks that every repetition reads, other than `input`
    """

    name: str
    operators: tuple[Operator, ...]
    input: str
    output: str
    layers: tuple[int, ...] = ()
    live_tensors: tuple[str, ...] = ()
    stream: Stream = WHOLE_PASS
    side_inputs: tuple[str, ...] = ()
    stage: int = 0

    @property
    def repeat(self) -> int:
        """Number of runs per pass."""
        return len(self.layers) or 1

    @property
    def main(self) -> bool:
        """Whether the block processes the generated sequence, not the input of an encoder or images."""
        return self.stream in (WHOLE_PASS, TARGET) or self.stream.name in _MAIN_STREAMS

    @property
    def result(self) -> Tensor:
        """The output tensor."""
        return next(t for op in reversed(self.operators) for t in op.outputs if t.name == self.output)

    def map(self, f: Callable[[Operator], Operator]) -> Block:
        return replace(self, operators=tuple(map(f, self.operators)))


@frozen(kw_only=True)
class Actions:
    """Actions of a robot that one inference computes.

    count      actions per inference
    steps      tokens generated, or denoising steps
    denoising  whether every step refines all actions; else a token is generated per step
    """

    count: int
    steps: int
    denoising: bool = True

    @property
    def unit(self) -> str:
        return "denoising step" if self.denoising else "token"


@frozen
class Graph:
    """Blocks in the order of their first layers.

    Equal layers are one block even if not adjacent, so two alternating kinds of layers are two blocks. Operator names
    are unique within a block.

    prediction  multi-token prediction blocks, part of a pass only after predicting()
    actions     actions per inference of a model for robots; None for other models
    """

    blocks: tuple[Block, ...]
    prediction: tuple[Block, ...] = ()
    actions: Actions | None = None

    def __iter__(self) -> Iterator[tuple[Block, Operator]]:
        return ((block, op) for block in self.blocks for op in block.operators)

    def parts(self) -> Iterator[tuple[Block, Operator]]:
        """Yields operators with their blocks, those of a fused launch one by one."""
        return ((block, part) for block, op in self for part in parts_of(op))

    def map(self, f: Callable[[Operator], Operator]) -> Graph:
        return Graph(tuple(block.map(f) for block in self.blocks))

    def map_blocks(self, f: Callable[[Block], Block]) -> Graph:
        return Graph(tuple(map(f, self.blocks)))

    def of_stage(self, stage: int) -> Graph:
        """The blocks of a pipeline stage."""
        return Graph(tuple(block for block in self.blocks if block.stage == stage))

    def then(self, *transforms: Transform) -> Graph:
        return reduce(lambda graph, transform: transform(graph), transforms, self)

    def predicting(self) -> Graph:
        """The graph with multi-token prediction blocks in every pass."""
        return Graph((*self.blocks, *self.prediction))

    @property
    def parameters(self) -> int:
        """Number of parameters; shared ones count once."""
        return sum(b.repeat * sum(w.numel for w in op.weights if not w.tied) for b, op in self)

    @property
    def active_parameters(self) -> float:
        """Number of parameters used per token."""
        return sum(b.repeat * sum(w.active * w.numel for w in op.weights if not w.tied) for b, op in self)

    @property
    def layers(self) -> int:
        """Number of layers, without those of encoders and towers."""
        return sum(len(block.layers) for block in self.blocks if block.main)

    def check(self) -> Graph:
        """The graph itself, after a consistency check.

        Raises InputError if a size is not positive, as from a config with a wrong field. Raises RuntimeError if a
        tensor is read before it is written, or in another format than written: a bug in an architecture or a transform.
        """
        block_outputs: dict[str, Tensor] = {}  # outputs of blocks
        for block in self.blocks:
            tensors: dict[str, Tensor] = {}
            for name in block.side_inputs:
                if name not in block_outputs:
                    raise RuntimeError(f"{block.name} reads {name}, which no block before it writes")
                tensors[name] = block_outputs[name]
            for op in block.operators:
                op.check_sizes()
                for t in op.inputs:
                    written = (
                        tensors.setdefault(t.name, t) if t.name == block.input or t.role in RETAINED_ROLES else None
                    )
                    written = written or tensors.get(t.name)
                    if written is None:
                        raise RuntimeError(f"{block.name}.{op.name} reads {t.name}, which nothing before it writes")
                    if written.format != t.format:
                        raise RuntimeError(
                            f"{block.name}.{op.name} reads {t.name} as {t.format}; it was written as {written.format}"
                        )
                for t in op.outputs:
                    tensors[t.name] = t
            if block.output not in tensors:
                raise RuntimeError(f"{block.name} must write its output {block.output}; no operator does")
            block_outputs[block.output] = tensors[block.output]
        return self


Transform: TypeAlias = Callable[[Graph], Graph]
