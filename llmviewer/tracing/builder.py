"""Segments -> operators and blocks of the graph."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import inf

from ..errors import InputError
from ..forms import SEQUENCES, TOKENS, Form, distinct_experts, table_rows
from ..forms import WITH_LOGITS as WANTED_ROWS
from ..graph import Block, Graph
from ..operators.base import Operator, Role, Tensor, Weight
from ..operators.convolution import Conv1d
from ..operators.embedding import Embedding
from ..operators.linear import ExpertsLinear, Linear, LMHead, Router
from ..operators.masks import CAUSAL, Bidirectional, Causal, Mask, UncachedCausal
from ..precision import Format
from .attention import recognize_attention
from .fitting import CACHED, FIXED, STEPS, at_logits, masked_ops, rows_and_width
from .naming import SHARED, SegmentNames
from .operators import Pointwise, StateStep, TracedProduct, format_of
from .program import Program, TracedLaunch
from .recording import Call
from .segments import Segment


@dataclass
class Builder:
    """Makes the operators of a program; remembers which parameters were read."""

    program: Program
    read_parameters: set[str] = field(default_factory=set)
    shared: int = -1  # the value that several blocks are given
    words: set[int] = field(default_factory=set)  # rows of tables that are looked up by what the module takes

    def graph(self, segments: list[Segment]) -> Graph:
        """Layers with the same operators are one block. Where there is no list of layers, what has most is one."""
        blocks: dict[object, Block] = {}
        place = 0
        for number, segment in enumerate(segments):
            block = self._block(segment, number, len(segments))
            if not segment.layer:
                blocks[number] = block
                continue
            key = (block.operators, block.input, block.output, block.side_inputs)
            same_block = blocks.get(key, replace(block, name=block.name if not place else f"{block.name}_{place}"))
            blocks[key] = replace(same_block, layers=(*same_block.layers, place))
            place += 1
        block_list = list(blocks.values())
        if not place:
            largest = max(range(len(block_list)), key=lambda n: len(block_list[n].operators))
            block_list[largest] = replace(block_list[largest], name="layer", layers=(0,))
        return Graph(tuple(block_list))

    def _block(self, segment: Segment, number: int, count: int) -> Block:
        naming = SegmentNames.of(self.program, segment, self.shared)
        operators = recognize_attention([self._operator(launch, naming) for launch in segment.launches])
        self._refuse_windows(segment, operators)
        head = number == count - 1
        if head:
            operators = _head(operators) if self._keeps else self._words(operators)
        if segment.shared >= 0:
            self.shared = segment.shared
            return Block(name=SHARED, operators=operators, input="", output=naming.output)
        first = number == int(self.shared >= 0)
        name = "layer" if segment.layer else "embedding" if first else "head" if head else f"between_{number}"
        shared_inputs = (SHARED,) if any(t.name == SHARED for op in operators for t in op.inputs) else ()
        return Block(
            name=name, operators=operators, input=naming.input, output=naming.output, side_inputs=shared_inputs
        )

    def _refuse_windows(self, segment: Segment, operators: tuple[Operator, ...]) -> None:
        """Raises InputError where a product that is no part of attention sees only a window of the cache."""
        for op in operators:
            if (
                isinstance(op, TracedProduct)
                and op.mask.is_cached
                and isinstance(op.mask, Causal)
                and op.mask.window < inf
            ):
                raise InputError(
                    f"{self.program.name}: {segment.layer}: {op.name} sees the last {op.mask.window} tokens; such "
                    "a window is followed only in attention: a product with keys, a softmax, a product with values"
                )

    def _words(self, operators: tuple[Operator, ...]) -> tuple[Operator, ...]:
        """A last product that puts out words is the prediction head, which schemes leave alone."""
        last = max((i for i, op in enumerate(operators) if type(op) is Linear), default=-1)
        if last < 0 or operators[last].weights[0].shape[0] not in self.words:
            return operators
        head = operators[last]
        lm_head = LMHead(name=head.name, inputs=head.inputs, outputs=head.outputs, weights=head.weights)
        return (*operators[:last], lm_head, *operators[last + 1 :])

    def _operator(self, launch: TracedLaunch, naming: SegmentNames) -> Operator:
        call = self.program.calls[launch.calls[-1]]
        name = naming.of_launch[launch]
        outside = self.program.inputs_of(launch)
        inputs = tuple(t for v in outside if not self._is_weight(v) for t in self._read(launch, v, naming))
        outputs = tuple(t for v in self.program.outputs_of(launch) for t in self._written(v, naming))
        weights = tuple(self._weight(launch, v) for v in outside if self._is_weight(v))
        if not self.program.is_product(launch.calls[-1]):
            ops = self.program.ops(launch)
            if any(t.role is Role.STATE for t in (*inputs, *outputs)):
                step = StateStep(name=name, inputs=inputs, outputs=outputs, weights=weights, ops=ops)
                return self._in_chunks(step, outside)
            return Pointwise(name=name, inputs=inputs, outputs=outputs, weights=weights, ops=ops)
        return self._product(
            call,
            TracedProduct(
                name=name,
                inputs=inputs,
                outputs=outputs,
                weights=weights,
                ops=self.program.ops(launch),
                mask=self._mask(call, launch),
            ),
        )

    def _in_chunks(self, step: StateStep, read: list[int]) -> StateStep:
        """Adds the chunked work of prompts: all tokens of a sequence but one, which counts as a step."""
        others = TOKENS + (-1) * SEQUENCES
        for chunks in (self.program.chunks[value] for value in read if value in self.program.chunks):
            step = replace(step, products=chunks.products * others, ops=step.ops + chunks.more * others)
        return step

    def _mask(self, call: Call, launch: TracedLaunch) -> Mask:
        """The mask of an attention product: causal over a cache, else bidirectional unless the module is causal."""
        index = launch.calls[-1]
        before, after = self.program.bands.get(index, (-1, -1))
        window = before + 1 if before >= 0 else inf
        if self._keeps:
            return Causal(min(self.program.windows.get(index, inf), window))
        if after == 0:
            return UncachedCausal(window)
        if before == after >= 0:
            return Bidirectional(before)
        return UncachedCausal() if call.causal and not self._sized else Bidirectional()

    def _product(self, call: Call, traced: TracedProduct) -> Operator:
        """A matmul-like call as the operator that it is."""
        name, inputs, outputs, weights = traced.name, traced.inputs, traced.outputs, traced.weights
        if call.name == "embedding" and not inputs:
            tables = tuple(replace(w, rows=table_rows(w.shape[0])) for w in weights)
            embedding = Embedding(name=name, inputs=(), outputs=outputs, weights=tables)
            self.words |= {table.shape[0] for table in tables if call.fed}
            return embedding
        weights = tuple(sorted(weights, key=lambda w: -len(w.shape)))
        plain = replace(traced, ops=masked_ops(traced.ops, CAUSAL if traced.mask.is_cached else traced.mask))
        if not inputs or not weights or len(weights[0].shape) < 2 or weights[0].rows is not None:
            return plain
        shape = _convolution if call.name == "convolution" else self._linear
        operator = shape(call, Linear(name=name, inputs=inputs[:1], outputs=outputs, weights=weights))
        if sum(operator.arithmetic().values(), Form()) != traced.ops or len(inputs) > 1:
            return plain
        return operator

    def _linear(self, call: Call, linear: Linear) -> Linear:
        """A linear with its weight as [n, k], which layouts and kernels expect, however the module stores it."""
        x, weight = linear.inputs[0], linear.weight
        inner = next(use.last for use in call.uses if not self._is_weight(use.value))
        rows = x.elements / inner
        linear = replace(linear, inputs=(replace(x, width=inner, rows=rows),))
        if call.name == "_grouped_mm":
            chosen = int(dict(rows.terms).get(TOKENS.terms[0][0], 0))
            experts = weight.shape[0]
            reached = distinct_experts(experts, chosen)
            weights = tuple(replace(w, rows=reached, active=chosen / experts) for w in linear.weights)
            return ExpertsLinear(name=linear.name, inputs=linear.inputs, outputs=linear.outputs, weights=weights)
        flat = replace(weight, shape=(weight.numel // inner, inner))
        linear = replace(linear, weights=(flat, *linear.weights[1:]))
        routes = {r for v in call.made for r in self.program.readers.get(v, ())}
        names = {self.program.calls[r].name for r in self._downstream(routes)}
        if "topk" in names:
            return Router(name=linear.name, inputs=linear.inputs, outputs=linear.outputs, weights=linear.weights)
        return linear

    def _downstream(self, calls: set[int]) -> set[int]:
        """Element-wise calls in the same module that depend on `calls`, with these."""
        reached, queue = set(calls), list(calls)
        while queue:
            index = queue.pop()
            call = self.program.calls[index]
            new = {r for v in call.made for r in self.program.readers.get(v, ())} - reached
            new = {r for r in new if not self.program.calls[r].matmul and self.program.calls[r].path == call.path}
            reached |= new
            queue += new
        return reached

    @property
    def _keeps(self) -> bool:
        """Whether passes leave something for those after them."""
        return self.program.basis in (CACHED, STEPS)

    @property
    def _sized(self) -> bool:
        """Whether all sequences have one size, so that only shapes tell rows from columns."""
        return self.program.basis is FIXED

    def _is_weight(self, value: int) -> bool:
        return self.program.values[value].learned

    def _format(self, value: int) -> Format:
        dtype = self.program.values[value].dtype
        fmt = format_of(dtype)
        if fmt is None:
            raise self.program.error(self.program.calls[0], f"leads to tensors of {dtype}, which has no format here")
        return fmt

    def _read(self, launch: TracedLaunch, value: int, naming: SegmentNames) -> tuple[Tensor, ...]:
        call = self.program.calls[launch.calls[-1]]
        uses = [use for use in call.uses if use.value == value]
        parts = self._parts(value, naming)
        if parts:
            ranges = {(use.low, use.high) for use in uses}
            return tuple(part for key, part in parts.items() if key in ranges)
        rows, width = rows_and_width(
            self.program.elements_read(launch, value), uses[0].last if self._sized and uses else 0
        )
        role = self._role(value)
        return (Tensor(name=naming.tensor(value), width=width, rows=rows, format=self._format(value), role=role),)

    def _written(self, value: int, naming: SegmentNames) -> tuple[Tensor, ...]:
        parts = self._parts(value, naming)
        if parts:
            return tuple(parts.values())
        form, name = self.program.elements(value), naming.tensor(value)
        role = self._role(value)
        if role is not Role.KV_CACHE:
            rows, width = rows_and_width(form, self.program.values[value].shape[-1] if self._sized else 0)
            return (Tensor(name=name, width=width, rows=rows, format=self._format(value), role=role),)
        width = rows_and_width(form)[1]  # of all that is cached; of that, the new tokens are written
        return (Tensor(name=name, width=width, format=self._format(value), role=role),)

    def _role(self, value: int) -> Role:
        if value in self.program.states:
            return Role.STATE
        return Role.KV_CACHE if value in self.program.cached else Role.ACTIVATION

    def _parts(self, value: int, naming: SegmentNames) -> dict[tuple[int, int], Tensor]:
        """Parts of a value that products of its block read separately, by their place in memory."""
        parts = {}
        for n, (index, place) in enumerate(self.program.parts(value) if value in naming.internal else (), start=1):
            use = self.program.calls[index].uses[place]
            rows, width = rows_and_width(self.program.elements_of_operand(index, place), use.last if self._sized else 0)
            name = f"{naming.tensor(value)}.part{n}"
            parts[use.low, use.high] = Tensor(name=name, width=width, rows=rows, format=self._format(value))
        return parts

    def _weight(self, launch: TracedLaunch, value: int) -> Weight:
        parameter = self.program.values[value]
        tied = parameter.source in self.read_parameters
        self.read_parameters.add(parameter.source)
        rows = None
        if self.program.calls[launch.calls[-1]].name != "embedding":
            read = self.program.elements_read(launch, value)
            elements = parameter.numel if read.terms else 0
            if elements and read != Form.of({read.terms[0][0]: float(elements)}):
                rows = read / (parameter.numel / parameter.shape[0])
        name = _relative(parameter.source)
        return Weight(name=name, shape=parameter.shape, format=self._format(value), rows=rows, tied=tied)


def _head(operators: tuple[Operator, ...]) -> tuple[Operator, ...]:
    """The last product with a parameter, and what follows it, at the positions whose logits are wanted."""
    last = max((i for i, op in enumerate(operators) if type(op) is Linear), default=-1)
    if last < 0:
        return operators

    def at_logit_rows(t: Tensor) -> Tensor:
        return replace(t, rows=at_logits(t.rows))

    head = operators[last].with_tensors(at_logit_rows)
    weights = tuple(replace(w, rows=w.shape[0] * WANTED_ROWS) if len(w.shape) > 1 else w for w in head.weights)
    lm_head = LMHead(name=head.name, inputs=head.inputs, outputs=head.outputs, weights=weights)
    after = (op.with_tensors(at_logit_rows) for op in operators[last + 1 :])
    rest = (replace(op, ops=at_logits(op.ops)) if isinstance(op, Pointwise) else op for op in after)
    return (*operators[:last], lm_head, *rest)


def _convolution(_: Call, op: Linear) -> Linear:
    """A convolution, whose filters are rows of its weight."""
    y, filters = op.result, op.weight.shape[0]
    out = replace(y, width=filters, rows=y.elements / filters)
    return Conv1d(name=op.name, inputs=op.inputs, outputs=(out,), weights=op.weights, left_as_published=False)


def _relative(path: str) -> str:
    """A parameter's name without the path of its layer, which is not the same in all layers of a block."""
    parts = path.split(".")
    last = max((i for i, part in enumerate(parts) if part.isdigit()), default=-1)
    return ".".join(parts[last + 1 :])
