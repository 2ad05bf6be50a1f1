"""Launches -> operators and blocks of the graph."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from math import inf
from typing import Final

from ..errors import InputError
from ..forms import SEQUENCES, TOKENS, Form, distinct_experts, table_rows
from ..forms import WANTED as WANTED_ROWS
from ..graph import Block, Graph
from ..operators.attention import QK, SV, Attention, Heads, Softmax
from ..operators.base import Operator, Role, Tensor, Weight
from ..operators.convolution import Conv1d
from ..operators.embedding import Embedding
from ..operators.linear import ExpertsLinear, Linear, LMHead, Router
from ..operators.masks import CAUSAL, Causal, Everything, Mask, Once
from ..precision import BF16, FP16, FP32, NAMED, Format, product
from ..resource import Resource, matrix, vector
from .fitting import CACHED, FIXED, STEPS, masked, rows_and_width, wanted
from .program import Launch, Program, Segment
from .recording import Call

INPUT: Final = "hidden"  # what a block reads of the one before it
GIVEN: Final = "input"  # what it reads of what the module takes
SHARED: Final = "shared"  # what several read that is made of parameters alone
_FORMATS: Final = {
    "float64": NAMED["fp64"],
    "float32": FP32,
    "float16": FP16,
    "bfloat16": BF16,
    "float8_e4m3fn": NAMED["fp8_e4m3"],
    "float8_e5m2": NAMED["fp8_e5m2"],
}


@dataclass(frozen=True, kw_only=True)
class Pointwise(Operator):
    """Element-wise calls in one launch, an OP for every element of the largest tensor of each."""

    ops: Form

    kind: str = "elementwise"

    def arithmetic(self) -> dict[Resource, Form]:
        return {vector("fp32"): self.ops}


@dataclass(frozen=True, kw_only=True)
class Step(Operator):
    """What a step does with a state, in one launch: element-wise, and products that have one token each.

    ops       of a step, token by token
    products  OPs of matrix units, where a prompt is taken in chunks
    """

    ops: Form
    products: Form = field(default_factory=Form)

    kind: str = "scan"

    def arithmetic(self) -> dict[Resource, Form]:
        made = {matrix(self.outputs[0].format.compute): self.products} if self.products else {}
        return {**made, vector("fp32"): self.ops}


@dataclass(frozen=True, kw_only=True)
class Product(Operator):
    """A matmul-like call that is no product of a tensor with a whole parameter.

    mask  which pairs of its rows it needs, where it is a product of attention
    """

    ops: Form
    mask: Mask = CAUSAL

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
            key = (block.operators, block.input, block.output, block.given)
            known = blocks.get(key, replace(block, name=block.name if not place else f"{block.name}_{place}"))
            blocks[key] = replace(known, layers=(*known.layers, place))
            place += 1
        made = list(blocks.values())
        if not place:
            most = max(range(len(made)), key=lambda n: len(made[n].operators))
            made[most] = replace(made[most], name="layer", layers=(0,))
        return Graph(tuple(made))

    def _block(self, segment: Segment, number: int, count: int) -> Block:
        naming = _Naming.of(self.program, segment, self.shared)
        operators = tuple(self._operator(launch, naming) for launch in segment.launches)
        operators = tuple(_attention(operators))
        for op in operators:
            if isinstance(op, Product) and op.mask.keeps and isinstance(op.mask, Causal) and op.mask.window < inf:
                raise InputError(
                    f"{self.program.name}: {segment.layer}: {op.name} sees the last {op.mask.window} keys, and windows "
                    "are known of two products with the cache and a softmax between them"
                )
        head = number == count - 1
        if head:
            operators = _head(operators) if self._keeps else self._words(operators)
        if segment.shared >= 0:
            self.shared = segment.shared
            return Block(name=SHARED, operators=operators, input="", output=naming.output)
        first = number == int(self.shared >= 0)
        name = "layer" if segment.layer else "embedding" if first else "head" if head else f"between_{number}"
        given = (SHARED,) if any(t.name == SHARED for op in operators for t in op.inputs) else ()
        return Block(name=name, operators=operators, input=naming.input, output=naming.output, given=given)

    def _words(self, operators: tuple[Operator, ...]) -> tuple[Operator, ...]:
        """A last product that puts out words is the prediction head, which schemes leave alone."""
        last = max((i for i, op in enumerate(operators) if type(op) is Linear), default=-1)
        if last < 0 or operators[last].weights[0].shape[0] not in self.words:
            return operators
        head = operators[last]
        made = LMHead(name=head.name, inputs=head.inputs, outputs=head.outputs, weights=head.weights)
        return (*operators[:last], made, *operators[last + 1 :])

    def _operator(self, launch: Launch, naming: _Naming) -> Operator:
        call = self.program.calls[launch.calls[-1]]
        name = naming.of_launch[launch]
        outside = self.program.outside(launch)
        inputs = tuple(t for v in outside if not self._is_weight(v) for t in self._read(launch, v, naming))
        outputs = tuple(t for v in self.program.leaving(launch) for t in self._written(v, naming))
        weights = tuple(self._weight(launch, v) for v in outside if self._is_weight(v))
        if not self.program.apart(launch.calls[-1]):
            ops = self.program.ops(launch)
            if any(t.role is Role.STATE for t in (*inputs, *outputs)):
                made = Step(name=name, inputs=inputs, outputs=outputs, weights=weights, ops=ops)
                return self._in_chunks(made, outside)
            return Pointwise(name=name, inputs=inputs, outputs=outputs, weights=weights, ops=ops)
        return self._product(
            call,
            Product(
                name=name,
                inputs=inputs,
                outputs=outputs,
                weights=weights,
                ops=self.program.ops(launch),
                mask=self._mask(call, launch),
            ),
        )

    def _in_chunks(self, made: Step, read: list[int]) -> Step:
        """With what prompts do in chunks: all tokens of a sequence but one, which counts as a step."""
        others = TOKENS + (-1) * SEQUENCES
        for chunks in (self.program.chunks[value] for value in read if value in self.program.chunks):
            made = replace(made, products=chunks.products * others, ops=made.ops + chunks.more * others)
        return made

    def _mask(self, call: Call, launch: Launch) -> Mask:
        """What a product of attention sees: before it what is cached, else all, unless the module says otherwise."""
        index = launch.calls[-1]
        before, after = self.program.bands.get(index, (-1, -1))
        window = before + 1 if before >= 0 else inf
        if self._keeps:
            return Causal(min(self.program.windows.get(index, inf), window))
        if after == 0:
            return Once(window)
        if before == after >= 0:
            return Everything(before)
        return Once() if call.causal and not self._sized else Everything()

    def _product(self, call: Call, made: Product) -> Operator:
        """A matmul-like call as the operator that it is."""
        name, inputs, outputs, weights = made.name, made.inputs, made.outputs, made.weights
        if call.name == "embedding" and not inputs:
            tables = tuple(replace(w, rows=table_rows(w.shape[0])) for w in weights)
            found = Embedding(name=name, inputs=(), outputs=outputs, weights=tables)
            self.words |= {table.shape[0] for table in tables if call.fed}
            return found
        weights = tuple(sorted(weights, key=lambda w: -len(w.shape)))
        plain = replace(made, ops=masked(made.ops, CAUSAL if made.mask.keeps else made.mask))
        if not inputs or not weights or len(weights[0].shape) < 2 or weights[0].rows is not None:
            return plain
        shape = _convolution if call.name == "convolution" else self._linear
        operator = shape(call, Linear(name=name, inputs=inputs[:1], outputs=outputs, weights=weights))
        if sum(operator.arithmetic().values(), Form()) != made.ops or len(inputs) > 1:
            return plain
        return operator

    def _linear(self, call: Call, made: Linear) -> Linear:
        """With its weight as [n, k], as kernels of products and layouts read it, however the module keeps it."""
        x, weight = made.inputs[0], made.weight
        inner = next(use.last for use in call.uses if not self._is_weight(use.value))
        rows = x.elements / inner
        made = replace(made, inputs=(replace(x, width=inner, rows=rows),))
        if call.name == "_grouped_mm":
            chosen = int(dict(rows.terms).get(TOKENS.terms[0][0], 0))
            experts = weight.shape[0]
            reached = distinct_experts(experts, chosen)
            held = tuple(replace(w, rows=reached, active=chosen / experts) for w in made.weights)
            return ExpertsLinear(name=made.name, inputs=made.inputs, outputs=made.outputs, weights=held)
        flat = replace(weight, shape=(weight.numel // inner, inner))
        made = replace(made, weights=(flat, *made.weights[1:]))
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
        found = format_of(dtype)
        if found is None:
            raise self.program.error(self.program.calls[0], f"leads to tensors of {dtype}, which has no format here")
        return found

    def _read(self, launch: Launch, value: int, naming: _Naming) -> tuple[Tensor, ...]:
        call = self.program.calls[launch.calls[-1]]
        uses = [use for use in call.uses if use.value == value]
        parts = self._parts(value, naming)
        if parts:
            shown = {(use.low, use.high) for use in uses}
            return tuple(part for key, part in parts.items() if key in shown)
        rows, width = rows_and_width(self.program.read(launch, value), uses[0].last if self._sized and uses else 0)
        role = self._role(value)
        return (Tensor(name=naming.tensor(value), width=width, rows=rows, format=self._format(value), role=role),)

    def _written(self, value: int, naming: _Naming) -> tuple[Tensor, ...]:
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

    def _parts(self, value: int, naming: _Naming) -> dict[tuple[int, int], Tensor]:
        """What a value consists of that products of its block read apart, by its place in memory."""
        made = {}
        for n, (index, place) in enumerate(self.program.parts(value) if value in naming.inner else (), start=1):
            use = self.program.calls[index].uses[place]
            rows, width = rows_and_width(self.program.part((index, place)), use.last if self._sized else 0)
            name = f"{naming.tensor(value)}.part{n}"
            made[use.low, use.high] = Tensor(name=name, width=width, rows=rows, format=self._format(value))
        return made

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
    inner: frozenset[int]  # values that it makes and only it reads

    @classmethod
    def of(cls, program: Program, segment: Segment, shared: int) -> _Naming:
        used: Counter[str] = Counter()
        of_launch: dict[Launch, str] = {}
        names: dict[int, str] = {}
        for launch in segment.launches:
            call = program.calls[launch.calls[-1]]
            own = call.path[len(segment.layer) :].strip(".") or "layer"
            own = own if program.apart(launch.calls[-1]) else f"{own}.{_step(program, launch)}"
            used[own] += 1
            of_launch[launch] = own if used[own] == 1 else f"{own}.{used[own]}"
            leaving = [v for v in program.leaving(launch) if v not in program.states]
            touched = [v for v in (*program.outside(launch), *program.leaving(launch)) if v in program.states]
            places = sorted({program.states[v] for v in touched})
            names |= {v: f"{of_launch[launch]}.state{places.index(program.states[v]) + 1}" for v in touched}
            for n, value in enumerate(leaving):
                suffix = ".cache" if value in program.cached else ""
                names[value] = of_launch[launch] + suffix + (f".out{n + 1}" if len(leaving) > 1 else "")
        names |= {v: SHARED for v in (shared, segment.shared) if v >= 0}
        inside = {index for launch in segment.launches for index in launch.calls}
        kept = program.cached | program.states.keys() | program.results | {program.logits}
        inner = frozenset(v for v in names.keys() - kept if set(program.readers.get(v, ())) <= inside)
        return cls(of_launch, names, *_ends(program, segment, names), inner)

    def tensor(self, value: int) -> str:
        return self.names.get(value, self.input)


def _step(program: Program, launch: Launch) -> str:
    """What a fused launch is called after its module: "softmax" if it has one, else as its last call."""
    names = [program.calls[index].name.strip("_") for index in launch.calls]
    return "softmax" if any(name.endswith("softmax") for name in names) else names[-1]


def _ends(program: Program, segment: Segment, names: dict[int, str]) -> tuple[str, str]:
    """What a segment reads of the one before it and leaves to the next.

    Raises InputError where it leaves nothing, or more than one tensor.
    """
    inside = {index for launch in segment.launches for index in launch.calls}
    read = {v for launch in segment.launches for v in program.outside(launch) if program.values[v].moves}
    before = read - names.keys()
    given = any(program.values[v].source == "input" for v in before)
    after = [
        names[v]
        for v in names
        if program.writer.get(v) in inside
        and v not in program.states
        and (v == program.logits or (set(program.readers.get(v, ())) - inside and v not in program.cached))
    ]
    if len(after) != 1:
        raise program.error(program.calls[min(inside)], f"begins a part that leaves {len(after)} tensors; must be one")
    return (GIVEN if given else INPUT if before else "", after[0])


def _attention(operators: tuple[Operator, ...]) -> list[Operator]:
    """Two products and a softmax between them, as scores, softmax and weighted sum."""
    done: list[Operator] = []
    for op in operators:
        done.append(op)
        match done[-3:]:
            case [Product() as first, Pointwise() as middle, Product() as second]:
                if "softmax" not in middle.name or len(first.inputs) != 2 or len(second.inputs) != 2:
                    continue
                if first.inputs[1].rows.features() == SEQUENCES.features():
                    first, middle, second = _by_heads(first, middle, second)
                heads = _heads(first, middle, second)
                if heads:
                    done[-3:] = _scored(heads, first, middle, second)
    return done


@dataclass(frozen=True, kw_only=True)
class Sized(Everything):
    """All of an input of one size: `queries` x `keys` pairs of each sequence."""

    queries: int
    keys: int

    @property
    def pairs(self) -> Form:
        return self.queries * self.keys * SEQUENCES

    @property
    def cells(self) -> Form:
        return self.pairs

    @property
    def read(self) -> Form:
        return self.keys * SEQUENCES

    def __str__(self) -> str:
        return "pooling" if self.queries == 1 else super().__str__()


def _by_heads(first: Product, middle: Pointwise, second: Product) -> tuple[Product, Pointwise, Product]:
    """Products of a head's matrices as those of rows with all heads side by side, where sizes are fixed.

    What they see are [queries, dim] and [dim, keys], then [queries, keys] and [keys, dim], of as many heads.
    """
    (query, key), (_, value) = first.inputs, second.inputs
    scores, out = first.result, second.result
    dim, keys = query.width, key.width
    heads, rest = divmod(_each(key), max(dim * keys, 1))
    queries, left = divmod(_each(scores), max(heads * keys, 1))
    mask = Sized(queries=queries, keys=keys)
    rows = {query.name: queries, key.name: keys, value.name: keys, out.name: queries}

    def aside(t: Tensor) -> Tensor:
        if t.name not in rows:
            return replace(t, width=heads, rows=mask.pairs)
        return replace(t, width=_each(t) // rows[t.name], rows=rows[t.name] * SEQUENCES)

    fits = heads and queries and not rest and not left
    if not fits or any(_each(t) % rows.get(t.name, 1) for op in (first, second) for t in (*op.inputs, *op.outputs)):
        return first, middle, second
    first, second = (replace(op.with_tensors(aside), mask=mask) for op in (first, second))
    return first, middle.with_tensors(aside), second


def _each(t: Tensor) -> int:
    """Elements of one sequence."""
    return round(sum(c for _, c in t.elements.terms))


def _heads(first: Product, middle: Pointwise, second: Product) -> Heads | None:
    if first.mask != second.mask:
        return None
    query, key = first.inputs
    probs, value = second.inputs
    scores = first.result
    if first.mask.keeps and (key.role, value.role) != (Role.KV_CACHE, Role.KV_CACHE):
        return None
    if probs.name != middle.result.name:
        return None
    if {t.name for t in middle.inputs} - {SHARED} != {scores.name}:
        return None
    count = scores.width
    dim, out = query.width // count, second.result.width // count
    if not dim or key.width % dim or (key.width // dim) * out != value.width:
        return None
    made = Heads(num_heads=count, num_kv_heads=key.width // dim, head_dim=dim, value_dim=out if out != dim else 0)
    return made if first.mask.keeps else replace(made, mask=first.mask)


def _scored(heads: Heads, first: Product, middle: Pointwise, second: Product) -> list[Operator]:
    softmax = Softmax(
        name=middle.name, inputs=middle.inputs, outputs=middle.outputs, weights=middle.weights, heads=heads
    )
    made: list[Operator] = [
        QK(name=first.name, inputs=first.inputs, outputs=first.outputs, heads=heads),
        replace(softmax, bias=len(middle.inputs) > 1),
        SV(name=second.name, inputs=second.inputs, outputs=second.outputs, heads=heads),
    ]
    same = made[0].arithmetic() == first.arithmetic() and made[2].arithmetic() == second.arithmetic()
    if not same:
        return [first, middle, second]
    return [_under(op, first.mask) for op in made] if first.mask.keeps and first.mask != CAUSAL else made


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
    rest = (replace(op, ops=wanted(op.ops)) if isinstance(op, Pointwise) else op for op in after)
    return (*operators[:last], made, *rest)


def _convolution(_: Call, made: Linear) -> Linear:
    """A convolution, whose filters are rows of its weight."""
    y, filters = made.result, made.weight.shape[0]
    out = replace(y, width=filters, rows=y.elements / filters)
    return Conv1d(name=made.name, inputs=made.inputs, outputs=(out,), weights=made.weights, left_as_published=False)


def _relative(path: str) -> str:
    """A parameter's name without the path of its layer, which is not the same in all layers of a block."""
    parts = path.split(".")
    last = max((i for i, part in enumerate(parts) if part.isdigit()), default=-1)
    return ".".join(parts[last + 1 :])
