"""Launches -> operators and blocks of the graph."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from math import inf
from typing import Final

from ..errors import InputError
from ..forms import TOKENS, Form, distinct_experts, table_rows
from ..forms import WANTED as WANTED_ROWS
from ..graph import Block, Graph
from ..operators.attention import QK, SV, Attention, Heads, Softmax
from ..operators.base import Operator, Role, Tensor, Weight
from ..operators.embedding import Embedding
from ..operators.linear import ExpertsLinear, Linear, LMHead, Router
from ..operators.masks import CAUSAL, Causal, Mask
from ..precision import BF16, FP16, FP32, NAMED, Format, product
from ..resource import Resource, matrix, vector
from .fitting import masked, rows_and_width, wanted
from .program import Launch, Program, Segment
from .recording import Call

INPUT: Final = "hidden"  # what a block reads of the one before it
_FORMATS: Final = {
    "float64": NAMED["fp64"],
    "float32": FP32,
    "float16": FP16,
    "bfloat16": BF16,
    "float8_e4m3fn": NAMED["fp8_e4m3"],
    "float8_e5m2": NAMED["fp8_e5m2"],
}


@dataclass(frozen=True, kw_only=True)
class Fused(Operator):
    """Element-wise calls in one launch, an OP for every element of the largest tensor of each."""

    ops: Form

    kind: str = "elementwise"

    def arithmetic(self) -> dict[Resource, Form]:
        return {vector("fp32"): self.ops}


@dataclass(frozen=True, kw_only=True)
class Product(Operator):
    """A matmul-like call that is no product of a tensor with a whole parameter.

    window  keys that it sees at most, where it is a product with the cache
    """

    ops: Form
    window: float = inf

    kind: str = "matmul"

    def arithmetic(self) -> dict[Resource, Form]:
        formats = [*(t.format for t in self.inputs), *(w.format for w in self.weights)]
        return {matrix(product(formats[0], formats[-1])): self.ops}


def format_of(dtype: str) -> Format | None:
    return _FORMATS.get(dtype)


@dataclass
class Builder:
    """Makes the operators of a program; remembers which parameters were read."""

    program: Program
    held: set[str] = field(default_factory=set)

    def graph(self, segments: list[Segment]) -> Graph:
        """Layers with the same operators are one block."""
        blocks: dict[object, Block] = {}
        place = 0
        for number, segment in enumerate(segments):
            made = self._block(segment, number, len(segments))
            if not segment.layer:
                blocks[number] = made
                continue
            key = (made.operators, made.input, made.output)
            known = blocks.get(key, replace(made, name=made.name if not place else f"{made.name}_{place}"))
            blocks[key] = replace(known, layers=(*known.layers, place))
            place += 1
        return Graph(tuple(blocks.values()))

    def _block(self, segment: Segment, number: int, count: int) -> Block:
        naming = _Naming.of(self.program, segment)
        operators = tuple(self._operator(launch, naming) for launch in segment.launches)
        operators = tuple(_attention(operators))
        lost = next((op for op in operators if isinstance(op, Product) and op.window < inf), None)
        if lost:
            raise InputError(
                f"{self.program.name}: {segment.layer}: {lost.name} sees the last {lost.window} keys, and windows are "
                "known of two products with the cache and a softmax between them"
            )
        head = number == count - 1
        if head:
            operators = _head(operators)
        name = "layer" if segment.layer else "embedding" if not number else "head" if head else f"between_{number}"
        return Block(name=name, operators=operators, input=naming.input, output=naming.output)

    def _operator(self, launch: Launch, naming: _Naming) -> Operator:
        call = self.program.calls[launch.calls[-1]]
        name = naming.of_launch[launch]
        outside = self.program.outside(launch)
        inputs = tuple(self._read(launch, v, naming) for v in outside if self._is_tensor(v))
        outputs = tuple(self._written(v, naming) for v in self.program.leaving(launch))
        weights = tuple(self._weight(launch, v) for v in outside if not self._is_tensor(v))
        if not call.matmul:
            ops = self.program.ops(launch)
            return Fused(name=name, inputs=inputs, outputs=outputs, weights=weights, ops=ops)
        return self._product(
            call,
            Product(
                name=name,
                inputs=inputs,
                outputs=outputs,
                weights=weights,
                ops=self.program.ops(launch),
                window=self.program.windows.get(launch.calls[-1], inf),
            ),
        )

    def _product(self, call: Call, made: Product) -> Operator:
        """A matmul-like call as the operator that it is."""
        name, inputs, outputs, weights = made.name, made.inputs, made.outputs, made.weights
        if call.name == "embedding" and not inputs:
            tables = tuple(replace(w, rows=table_rows(w.shape[0])) for w in weights)
            return Embedding(name=name, inputs=(), outputs=outputs, weights=tables)
        weights = tuple(sorted(weights, key=lambda w: -len(w.shape)))
        if not inputs or not weights or len(weights[0].shape) < 2 or weights[0].rows is not None:
            return replace(made, ops=masked(made.ops))
        operator = self._linear(call, Linear(name=name, inputs=inputs[:1], outputs=outputs, weights=weights))
        if sum(operator.arithmetic().values(), Form()) != made.ops or len(inputs) > 1:
            return replace(made, ops=masked(made.ops))
        return operator

    def _linear(self, call: Call, made: Linear) -> Linear:
        x, shape = made.inputs[0], made.weight.shape
        inner = next(use.last for use in call.uses if self.program.values[use.value].source == "call")
        rows = x.elements / inner
        made = replace(made, inputs=(replace(x, width=inner, rows=rows),))
        if call.name == "_grouped_mm":
            chosen = int(dict(rows.terms).get(TOKENS.terms[0][0], 0))
            reached = distinct_experts(shape[0], chosen)
            held = tuple(replace(w, rows=reached, active=chosen / shape[0]) for w in made.weights)
            return ExpertsLinear(name=made.name, inputs=made.inputs, outputs=made.outputs, weights=held)
        routes = {r for v in call.made for r in self.program.readers.get(v, ())}
        names = {self.program.calls[r].name for r in self._downstream(routes)}
        if "topk" in names:
            return Router(name=made.name, inputs=made.inputs, outputs=made.outputs, weights=made.weights)
        return made

    def _downstream(self, calls: set[int]) -> set[int]:
        """Element-wise calls in the same module that depend on `calls`, with these."""
        found, ahead = set(calls), list(calls)
        while ahead:
            index = ahead.pop()
            call = self.program.calls[index]
            new = {r for v in call.made for r in self.program.readers.get(v, ())} - found
            new = {r for r in new if not self.program.calls[r].matmul and self.program.calls[r].path == call.path}
            found |= new
            ahead += new
        return found

    def _is_tensor(self, value: int) -> bool:
        return self.program.values[value].source == "call"

    def _format(self, value: int) -> Format:
        dtype = self.program.values[value].dtype
        found = format_of(dtype)
        if found is None:
            raise self.program.error(self.program.calls[0], f"leads to tensors of {dtype}, which has no format here")
        return found

    def _read(self, launch: Launch, value: int, naming: _Naming) -> Tensor:
        rows, width = rows_and_width(self.program.read(launch, value))
        role = Role.KV_CACHE if value in self.program.cached else Role.ACTIVATION
        return Tensor(name=naming.tensor(value), width=width, rows=rows, format=self._format(value), role=role)

    def _written(self, value: int, naming: _Naming) -> Tensor:
        form = self.program.elements(value)
        if value not in self.program.cached:
            rows, width = rows_and_width(form)
            return Tensor(name=naming.tensor(value), width=width, rows=rows, format=self._format(value))
        width = rows_and_width(form)[1]  # of all that is cached; of that, the new tokens are written
        return Tensor(name=naming.tensor(value), width=width, format=self._format(value), role=Role.KV_CACHE)

    def _weight(self, launch: Launch, value: int) -> Weight:
        parameter = self.program.values[value]
        tied = parameter.source in self.held
        self.held.add(parameter.source)
        rows = None
        if self.program.calls[launch.calls[-1]].name != "embedding":
            read = self.program.read(launch, value)
            whole = parameter.numel if read.terms else 0
            if whole and read != Form.of({read.terms[0][0]: float(whole)}):
                rows = read / (parameter.numel / parameter.shape[0])
        name = _relative(parameter.source)
        return Weight(name=name, shape=parameter.shape, format=self._format(value), rows=rows, tied=tied)


@dataclass(frozen=True)
class _Naming:
    """Names within a block: of its launches by module, of its tensors by the launch that writes them."""

    of_launch: dict[Launch, str]
    names: dict[int, str]
    input: str
    output: str

    @classmethod
    def of(cls, program: Program, segment: Segment) -> _Naming:
        used: Counter[str] = Counter()
        of_launch: dict[Launch, str] = {}
        names: dict[int, str] = {}
        for launch in segment.launches:
            call = program.calls[launch.calls[-1]]
            own = call.path[len(segment.layer) :].strip(".") or "layer"
            own = own if call.matmul else f"{own}.{_step(program, launch)}"
            used[own] += 1
            of_launch[launch] = own if used[own] == 1 else f"{own}.{used[own]}"
            leaving = program.leaving(launch)
            for n, value in enumerate(leaving):
                suffix = ".cache" if value in program.cached else ""
                names[value] = of_launch[launch] + suffix + (f".out{n + 1}" if len(leaving) > 1 else "")
        return cls(of_launch, names, *_ends(program, segment, names))

    def tensor(self, value: int) -> str:
        return self.names.get(value, INPUT)


def _step(program: Program, launch: Launch) -> str:
    """What a fused launch is called after its module: "softmax" if it has one, else as its last call."""
    names = [program.calls[index].name.strip("_") for index in launch.calls]
    return "softmax" if any(name.endswith("softmax") for name in names) else names[-1]


def _ends(program: Program, segment: Segment, names: dict[int, str]) -> tuple[str, str]:
    """What a segment reads of the one before it and leaves to the next.

    Raises InputError where that is more than one tensor.
    """
    inside = {index for launch in segment.launches for index in launch.calls}
    read = {v for launch in segment.launches for v in program.outside(launch) if program.values[v].source == "call"}
    before = read - names.keys()
    after = {
        v
        for v in names
        if v == program.logits or (set(program.readers.get(v, ())) - inside and v not in program.cached)
    }
    first = program.calls[min(inside)]
    for found, what in ((before, "reads"), (after, "leaves")):
        if len(found) > 1:
            raise program.error(first, f"begins a part that {what} {len(found)} tensors; layers must hand on one")
    if not after:
        raise program.error(first, "begins a part of which nothing is read")
    return (INPUT if before else "", names[next(iter(after))])


def _attention(operators: tuple[Operator, ...]) -> list[Operator]:
    """Two products with the cache and a softmax between them, as scores, softmax and weighted sum."""
    done: list[Operator] = []
    for op in operators:
        done.append(op)
        match done[-3:]:
            case [Product() as first, Fused() as middle, Product() as second]:
                heads = _heads(first, middle, second)
                if heads:
                    done[-3:] = _scored(heads, first, middle, second)
    return done


def _heads(first: Product, middle: Fused, second: Product) -> Heads | None:
    if "softmax" not in middle.name or len(first.inputs) != 2 or len(second.inputs) != 2:
        return None
    if first.window != second.window:
        return None
    query, key = first.inputs
    probs, value = second.inputs
    scores = first.outputs[0]
    if key.role is not Role.KV_CACHE or value.role is not Role.KV_CACHE or probs.name != middle.outputs[0].name:
        return None
    if [t.name for t in middle.inputs] != [scores.name]:
        return None
    count = scores.width
    dim, out = query.width // count, second.outputs[0].width // count
    if key.width % dim or not count or (key.width // dim) * out != value.width:
        return None
    return Heads(num_heads=count, num_kv_heads=key.width // dim, head_dim=dim, value_dim=out if out != dim else 0)


def _scored(heads: Heads, first: Product, middle: Fused, second: Product) -> list[Operator]:
    made: list[Operator] = [
        QK(name=first.name, inputs=first.inputs, outputs=first.outputs, heads=heads),
        Softmax(name=middle.name, inputs=middle.inputs, outputs=middle.outputs, weights=middle.weights, heads=heads),
        SV(name=second.name, inputs=second.inputs, outputs=second.outputs, heads=heads),
    ]
    same = made[0].arithmetic() == first.arithmetic() and made[2].arithmetic() == second.arithmetic()
    if not same:
        return [first, middle, second]
    return [_under(op, Causal(first.window)) for op in made] if first.window < inf else made


def _under(op: Operator, mask: Mask) -> Operator:
    """A part of attention that saw all keys, under `mask`."""
    rows = {CAUSAL.read: mask.read, CAUSAL.cells: mask.cells}
    masked = op.with_tensors(lambda t: replace(t, rows=rows.get(t.rows, t.rows)))
    return replace(masked, heads=replace(masked.heads, mask=mask)) if isinstance(masked, Attention) else masked


def _head(operators: tuple[Operator, ...]) -> tuple[Operator, ...]:
    """The last product with a parameter, and what follows it, at the positions whose logits are wanted."""
    last = max((i for i, op in enumerate(operators) if type(op) is Linear), default=-1)
    if last < 0:
        return operators

    def few(t: Tensor) -> Tensor:
        return replace(t, rows=wanted(t.rows))

    head = operators[last].with_tensors(few)
    weights = tuple(replace(w, rows=w.shape[0] * WANTED_ROWS) if len(w.shape) > 1 else w for w in head.weights)
    made = LMHead(name=head.name, inputs=head.inputs, outputs=head.outputs, weights=weights)
    after = (op.with_tensors(few) for op in operators[last + 1 :])
    rest = (replace(op, ops=wanted(op.ops)) if isinstance(op, Fused) else op for op in after)
    return (*operators[:last], made, *rest)


def _relative(path: str) -> str:
    """A parameter's name without the path of its layer, which is not the same in all layers of a block."""
    parts = path.split(".")
    last = max((i for i, part in enumerate(parts) if part.isdigit()), default=-1)
    return ".".join(parts[last + 1 :])
