"""The operators of one block on one rank of tensor parallelism (arXiv:1909.08053, section 3).

Every tensor is whole (replicated on all ranks), cut (each rank has a part of its width) or partial (each rank has a
summand). An operator that reads a cut tensor computes its part, a matrix product over a cut tensor yields a partial
one, and a collective makes a tensor whole where an operator needs it. No rule is specific to an architecture: each
operator states its `sharding`. The first of two products through a narrow tensor is replicated if the second is cut.
"""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from math import ceil

from ..errors import InputError
from ..graph import Block
from ..operators.attention import QK, Heads
from ..operators.base import RETAINED_ROLES, Operator, Role, Sharding, Tensor, Weight
from ..operators.collectives import AllGather, AllReduce, Group
from ..operators.elementwise import Add, Combine, Elementwise, Norm, Permute, Rope
from ..operators.linear import ExpertsLinear, Linear
from ..operators.state_space import Scan
from ..precision import FP32
from ..records import frozen
from .experts import ExpertPlaces
from .layout import nearest_divisors


class _State(StrEnum):
    REPLICATED = "whole"
    CUT = "cut"
    PARTIAL = "partial"


@frozen(kw_only=True)
class _Split:
    """A division of a tensor into equal parts.

    units   number of parts
    shared  elements that several parts need, such as B and C of a Mamba-2 scan
    groups  groups of parts; each group needs an equal share of `shared`
    """

    units: int
    shared: int = 0
    groups: int = 1

    def width(self, full_width: int, ranks: int) -> int:
        """Elements of one rank, of `wide`; with fewer parts or groups than ranks, those of one part or group."""
        return (full_width - self.shared) // min(self.units, ranks) + self.shared // min(self.groups, ranks)

    def takes(self, width: int, full_width: int, ranks: int) -> bool:
        """Whether a rank with `width` of `full_width` elements has a whole number of units."""
        unshared_width = width - self.shared // min(self.groups, ranks)
        return self.units % ((full_width - self.shared) // unshared_width) == 0


@frozen(kw_only=True)
class _Placed:
    tensor: Tensor  # as wide as one rank has it
    state: _State
    share: float = 1.0  # of the rows, if they are divided among ranks


class BlockSharding:
    """Shards a block, operator by operator; `operators` holds those done so far."""

    def __init__(self, block: Block, group: Group, experts: ExpertPlaces) -> None:
        self.block = block
        self.group = group
        self.experts = experts
        self.operators: list[Operator] = []
        self._places: dict[str, _Placed] = {}
        self._readers: dict[str, list[tuple[Operator, int]]] = {}
        for op in block.operators:
            for index, t in enumerate(op.inputs):
                self._readers.setdefault(t.name, []).append((op, index))

    def placed(self) -> Block:
        """The block of one rank."""
        for op in self.block.operators:
            self._place(op)
        self._whole(self.block.output)
        return replace(self.block, operators=tuple(self.operators))

    # How tensors can be cut.

    def _split(self, t: Tensor) -> _Split | None:
        """The finest cut of `t` that all its readers support; None if there is none."""
        if t.name == self.block.output or t.name not in self._readers:
            return None
        splits = [self._split_for(op, index, t) for op, index in self._readers[t.name]]
        possible_splits = [split for split in splits if split]
        return (
            min(possible_splits, key=lambda split: (split.units, -split.shared))
            if len(possible_splits) == len(splits)
            else None
        )

    def _split_for(self, op: Operator, index: int, t: Tensor) -> _Split | None:
        """The finest cut of `t`, input number `index` of `op`, that `op` supports; None if there is none."""
        split = None
        match op:
            case QK() if index > 1 and op.inputs[1].width < op.heads.kv_width:
                pass  # the part of keys that all heads share
            case Operator(sharding=Sharding.HEADS):
                split = _Split(units=_heads(op).num_kv_heads if index else _heads(op).num_heads)
            case Scan(sharding=Sharding.SCAN) if op.has_part(t):
                split = _Split(units=op.heads, shared=0 if index else op.shared, groups=op.groups)
            case Norm():
                after = self._split(op.outputs[0])
                split = after if after and (op.group or after.units < op.outputs[0].width) else None
            case Operator(sharding=Sharding.ELEMENTS | Sharding.SUM):
                split = self._after(op, t, op.units(t))
            case Operator(sharding=Sharding.PRODUCT | Sharding.EXPERTS):
                narrow = t.width <= sum(out.width for out in op.outputs) and any(map(self._split, op.outputs))
                split = None if narrow else _Split(units=t.width)
        return split

    def _after(self, op: Operator, t: Tensor, units: int) -> _Split | None:
        """The cut of `t` that follows from those of the outputs of `op`, with at most `units` parts."""
        splits = [self._split(out) for out in op.outputs if out.role is not Role.STATE]
        possible_splits = [split for split in splits if split]
        if len(possible_splits) < len(splits):
            return None
        coarsest = min(possible_splits, key=lambda split: split.units)
        alike = t.width == op.outputs[0].width
        split = replace(coarsest, units=min(coarsest.units, units), shared=coarsest.shared if alike else 0)
        return split if (t.width - split.shared) % split.units == 0 else None

    def _is_key(self, t: Tensor) -> bool:
        """Whether `t` is keys or values, whose heads are replicated if there are fewer than ranks."""
        return any(
            self._is_key(op.outputs[0]) if isinstance(op, Norm) else index > 0 and op.sharding is Sharding.HEADS
            for op, index in self._readers[t.name]
        )

    def _cut(self, t: Tensor) -> Tensor:
        """`t` on one rank: its share of the parts, or a copy of one key head if there are fewer than ranks."""
        ranks, split = self.group.size, self._split(t)
        if split is None or (split.units < ranks and split.units == t.width):  # narrower than the ranks are many
            return t
        units, groups = split.units, split.groups
        if units % ranks == 0 and split.shared and groups % ranks and ranks % groups:
            near = nearest_divisors(groups, ranks)
            divided_things = (
                f"tp={ranks} and the {groups} groups of heads that share a part of {t.name} in {self.block.name}"
            )
            raise InputError(f"{divided_things} do not divide each other", hint=f"try tp={near}")
        if units % ranks == 0:
            return replace(t, width=split.width(t.width, ranks))
        if ranks % units == 0 and self._is_key(t):
            return replace(t, width=t.width // units)
        divided_things = f"{units} heads" if units < t.width else f"{t.width} elements"
        near = nearest_divisors(units, ranks)
        where = f"the {divided_things} of {t.name} in {self.block.name}"
        raise InputError(f"tp={ranks} does not divide {where}", hint=f"try tp={near}")

    # The state of tensors on ranks.

    def _have(self, t: Tensor) -> _Placed:
        """The state of `t`; tensors from outside of the block are whole."""
        placed = self._places.get(t.name)
        if placed is None:
            return _Placed(tensor=t, state=_State.REPLICATED)
        return replace(placed, tensor=replace(t, width=placed.tensor.width, rows=t.rows * placed.share))

    def _put(self, before: Tensor, after: Tensor, state: _State | None = None, share: float = 1.0) -> Tensor:
        state = state or (_State.CUT if after.width < before.width else _State.REPLICATED)
        if self.group.size == 1:
            state = _State.REPLICATED
        self._places[before.name] = _Placed(tensor=after, state=state, share=share)
        return after

    def _whole(self, name: str) -> None:
        """Makes a tensor whole on all ranks."""
        placed = self._places.get(name)
        if placed is None or placed.state is _State.REPLICATED or placed.tensor.role is not Role.ACTIVATION:
            return
        written = max(i for i, op in enumerate(self.operators) if any(t.name == name for t in op.outputs))
        writer = self.operators[written]
        if placed.state is _State.CUT:
            self._collect(written, (name,), AllGather, "part", "all_gather")
        else:  # all summands of one product travel together
            summands = (t.name for t in writer.outputs)
            names = tuple(n for n in summands if self._places[n].state is _State.PARTIAL)
            self._collect(written, names, AllReduce, "sum", "all_reduce")

    def _collect(
        self, written: int, names: tuple[str, ...], kind: type[AllReduce | AllGather], suffix: str, verb: str
    ) -> None:
        """Makes tensors that operator `written` leaves whole."""
        writer = self.operators[written]
        parts = {name: replace(self._places[name].tensor, name=f"{name}_{suffix}") for name in names}
        outputs = tuple(replace(t, name=parts[t.name].name) if t.name in parts else t for t in writer.outputs)
        self.operators[written] = replace(writer, outputs=outputs)
        times = self.group.size if kind is AllGather else 1
        whole_tensors = tuple(replace(part, name=name, width=times * part.width) for name, part in parts.items())
        label = names[0] if len(names) == 1 else writer.name
        collective = kind(name=f"{label}_{verb}", inputs=tuple(parts.values()), outputs=whole_tensors, group=self.group)
        self.operators.append(collective)
        for t in whole_tensors:
            self._places[t.name] = _Placed(tensor=t, state=_State.REPLICATED)

    def _none_partial(self, op: Operator) -> None:
        for t in op.inputs:
            if self._have(t).state is _State.PARTIAL:
                self._whole(t.name)

    # Kinds of operators.

    def _place(self, op: Operator) -> None:
        match op:
            case Operator(sharding=Sharding.TABLE):
                self._table(op)
            case Operator(sharding=Sharding.COMBINE):
                self._combine(op)
            case ExpertsLinear(sharding=Sharding.EXPERTS):
                self._none_partial(op)
                self._experts(op)
            case Permute(sharding=Sharding.DISPATCH) if self.experts.choice.experts:
                self._run_whole(op)
                self._dispatched(op)
            case Operator(sharding=Sharding.LOGITS):
                self._none_partial(op)
                self._logits(op)
            case Linear(sharding=Sharding.PRODUCT | Sharding.COLUMNS):
                self._none_partial(op)
                self._linear(op)
            case Operator(sharding=Sharding.HEADS):
                self._none_partial(op)
                self._attention(op)
            case Scan(sharding=Sharding.SCAN):
                self._none_partial(op)
                self._scan(op)
            case Add(sharding=Sharding.SUM):
                self._add(op)
            case Operator(sharding=Sharding.ELEMENTS) if op.inputs:
                self._none_partial(op)
                self._elementwise(op)
            case _:
                self._run_whole(op)

    def _run_whole(self, op: Operator) -> None:
        for t in op.inputs:
            self._whole(t.name)
        self.operators.append(op)
        for t in op.outputs:
            self._put(t, t)

    def _table(self, op: Operator) -> None:
        """Each rank has a part of the rows and looks up the tokens in it."""
        ranks = self.group.size

        def part(w: Weight) -> Weight:
            rows = w.rows / ranks if w.rows else None
            return replace(w, shape=(ceil(w.shape[0] / ranks), *w.shape[1:]), rows=rows)

        self.operators.append(op.with_weights(part))
        self._put(op.outputs[0], op.outputs[0], _State.PARTIAL)

    def _linear(self, op: Linear) -> None:
        x = self._have(op.inputs[0])
        if x.state is _State.CUT:  # the matrix is cut along its inputs
            op = replace(op, inputs=(x.tensor,), weights=(_narrow(op.weight, x.tensor.width), *op.weights[1:]))
            for t in op.outputs:
                self._put(t, t, _State.PARTIAL)
        else:
            outputs = tuple(self._put(t, self._cut(t)) for t in op.outputs)
            wide, width = (sum(t.width for t in ts) for ts in (op.outputs, outputs))
            op = replace(op, outputs=outputs, weights=tuple(_share(w, wide, width) for w in op.weights))
        self.operators.append(op)

    def _logits(self, op: Operator) -> None:
        """Each rank computes logits of a part of the vocabulary."""
        self._whole(op.inputs[0].name)
        ranks, logits = self.group.size, op.outputs[0]
        width = ceil(logits.width / ranks)

        def part(w: Weight) -> Weight:
            return replace(w, shape=(width, *w.shape[1:]), rows=w.rows / logits.width * width if w.rows else None)

        out = self._put(logits, replace(logits, width=width), _State.CUT)
        self.operators.append(replace(op.with_weights(part), outputs=(out,)))

    def _attention(self, op: Operator) -> None:
        """Heads are divided if those of the queries are."""
        first = self._have(op.inputs[0])
        if first.state is _State.REPLICATED:
            self._run_whole(op)
            return
        heads, ranks = _heads(op), self.group.size
        local = replace(heads, num_heads=heads.num_heads // ranks, num_kv_heads=max(heads.num_kv_heads // ranks, 1))
        inputs = tuple(self._have(self._borrowed(t, heads, local)).tensor for t in op.inputs)
        if isinstance(op, Rope):
            outputs = tuple(self._put(t, replace(t, width=x.width)) for t, x in zip(op.outputs, inputs, strict=True))
        else:
            result, *others = op.outputs
            width = result.width * local.num_heads // heads.num_heads
            caches = tuple(self._borrowed(t, heads, local) for t in others)
            outputs = (self._put(result, replace(result, width=width)), *caches)
        weights = tuple(_share(w, heads.num_heads, local.num_heads) for w in op.weights)
        self.operators.append(replace(op, inputs=inputs, outputs=outputs, weights=weights, heads=local))  # type: ignore[call-arg]

    def _borrowed(self, t: Tensor, heads: Heads, local: Heads) -> Tensor:
        """The part of a cache written by another layer; cut as a cache of this layer would be."""
        if t.role is Role.ACTIVATION or t.name in self._places:
            return t
        return replace(t, width=t.width * local.num_kv_heads // heads.num_kv_heads)

    def _scan(self, op: Scan) -> None:
        """Heads are divided, each with its part of the state."""
        if not op.heads or self._have(op.inputs[0]).state is not _State.CUT:
            self._run_whole(op)
            return
        local = op.part(self.group.size)
        self._put(op.outputs[0], local.outputs[0])
        self.operators.append(local)

    def _elementwise(self, op: Operator) -> None:
        """Each rank works on its part if an input is cut; of whole inputs beside it, a rank reads the same part."""
        placed_inputs = [self._have(t) for t in op.inputs]
        cut = next((i for i, placed in enumerate(placed_inputs) if placed.state is _State.CUT), None)
        if cut is None:
            wide = part = 1
        else:
            wide, part = op.inputs[cut].width, placed_inputs[cut].tensor.width
            split = self._split_for(op, cut, op.inputs[cut])
            if split is None or not split.takes(part, wide, self.group.size):
                self._run_whole(op)
                return
            if isinstance(op, Elementwise) and self._spans_ranks(op):
                self._sum_of_squares(op)

        def shard(t: Tensor) -> Tensor:
            return replace(t, width=t.width * part // wide)

        inputs = tuple(
            shard(p.tensor) if p.tensor.width == wide or p.tensor.role in RETAINED_ROLES else p.tensor
            for p in placed_inputs
        )
        share, state = placed_inputs[0].share, _State.REPLICATED if cut is None else _State.CUT
        outputs = tuple(self._put(t, replace(shard(t), rows=t.rows * share), state, share) for t in op.outputs)
        by_head = isinstance(op, Elementwise)  # weights that heads or groups share are narrower than the output
        weights = tuple(
            w if by_head and w.shape[0] < op.outputs[0].width else _share(w, wide, part) for w in op.weights
        )
        self.operators.append(replace(op.cut(part, wide), inputs=inputs, outputs=outputs, weights=weights))

    def _spans_ranks(self, op: Elementwise) -> bool:
        """Whether `op` normalizes over elements of several ranks."""
        if isinstance(op, Norm):
            return not op.group
        return op.normed > self._have(op.inputs[0]).tensor.width

    def _sum_of_squares(self, op: Elementwise) -> None:
        """Adds an all-reduce of sums of squares, one number per token, for a norm over elements of all ranks."""
        inputs = tuple(self._have(t).tensor for t in op.inputs)
        local_square = Tensor(name=f"{op.name}_square", width=1, format=FP32, rows=inputs[0].rows)
        mean = replace(local_square, name=f"{op.name}_mean")
        square = Elementwise(
            name=local_square.name, inputs=inputs, outputs=(local_square,), ops_per_element=2 * inputs[0].width
        )
        self.operators.append(square)
        self.operators.append(
            AllReduce(name=f"{op.name}_all_reduce", inputs=(local_square,), outputs=(mean,), group=self.group)
        )

    def _add(self, op: Add) -> None:
        """Partial sums of several branches are added before one all-reduce."""
        if any(self._have(t).state is _State.CUT for t in op.inputs):
            self._none_partial(op)
            self._elementwise(op)
            return
        partial = [t for t in op.inputs if self._have(t).state is _State.PARTIAL]
        if len(partial) == len(op.inputs):
            self.operators.append(op)
            self._put(op.outputs[0], op.outputs[0], _State.PARTIAL)
            return
        if len(partial) > 1:
            out = replace(partial[0], name=f"{op.name}_partial")
            self.operators.append(
                Add(name=out.name, inputs=tuple(partial), outputs=(out,), ops_per_element=len(partial) - 1)
            )
            self._put(out, out, _State.PARTIAL)
            rest = tuple(t for t in op.inputs if t not in partial)
            op = replace(op, inputs=(*rest, out), ops_per_element=len(rest))
        self._run_whole(op)

    # Experts.

    def _dispatched(self, op: Permute) -> None:
        """Adds the dispatch of tokens to experts."""
        placed, sent = self.experts.dispatched(op)
        self.operators[-1] = placed
        self.operators.extend(sent)
        out = (sent[-1] if sent else placed).outputs[0]
        self._put(op.outputs[0], replace(out, name=op.outputs[0].name), share=self.experts.expert_share)

    def _experts(self, op: ExpertsLinear) -> None:
        x = self._have(op.inputs[0])
        inner = 1 if self.experts.sends_tokens else self.group.size // self.experts.degree

        def local_experts(w: Weight, shape: tuple[int, ...]) -> Weight:
            return self.experts.local_weight(replace(w, shape=shape))

        if x.state is _State.CUT or (inner > 1 and self._leaves(op)):
            shape = (*op.weight.shape[:2], x.tensor.width)
            out, state = op.outputs[0], _State.PARTIAL
        else:
            units = 1 if self._leaves(op) else inner
            width = op.outputs[0].width // units
            if op.outputs[0].width % units:
                near = nearest_divisors(op.outputs[0].width, inner)
                expert_elements = f"the {op.outputs[0].width} elements of an expert"
                raise InputError(f"tp/ep={inner} does not divide {expert_elements}", hint=f"try {near}")
            shape = (op.weight.shape[0], width, op.weight.shape[2])
            out = replace(op.outputs[0], width=width)
            partial = not self.experts.sends_tokens and self._leaves(op)
            state = _State.PARTIAL if partial else _State.CUT if units > 1 else _State.REPLICATED
        bias = tuple(local_experts(b, (b.shape[0], shape[1], *b.shape[2:])) for b in op.weights[1:])
        out = replace(out, rows=out.rows * x.share)
        weights = (local_experts(op.weight, shape), *bias)
        self.operators.append(replace(op, inputs=(x.tensor,), outputs=(out,), weights=weights))
        self._put(op.outputs[0], out, state, x.share)
        if self._leaves(op):
            self.operators.extend(self.experts.combined(out))

    def _leaves(self, op: ExpertsLinear) -> bool:
        """Whether the result of `op` is combined over the experts of a token."""
        return any(isinstance(reader, Combine) for reader, _ in self._readers.get(op.outputs[0].name, []))

    def _combine(self, op: Operator) -> None:
        states = [self._have(t).state for t in op.inputs]
        experts, *others = op.inputs
        shared = [t for t in others if t.width == op.outputs[0].width]
        all_partial = states[0] is _State.PARTIAL and all(self._have(t).state is _State.PARTIAL for t in shared)
        for t in op.inputs:
            if not (all_partial and (t == experts or t in shared)):
                self._whole(t.name)
        inputs = self.experts.combine_inputs(op.inputs)
        placed = replace(op, inputs=inputs)
        out = op.outputs[0]
        if self.experts.sends_tokens and self.group.size > 1:  # a share of the tokens on each rank
            part = replace(out, name=f"{out.name}_part", rows=out.rows / self.group.size)
            self.operators.append(replace(placed, outputs=(part,)))
            gather = AllGather(name=f"{out.name}_all_gather", inputs=(part,), outputs=(out,), group=self.group)
            self.operators.append(gather)
            self._put(out, out)
            return
        self.operators.append(placed)
        self._put(out, out, _State.PARTIAL if all_partial else _State.REPLICATED)


def _heads(op: Operator) -> Heads:
    """The heads of an operator that is sharded by them."""
    heads: Heads = op.heads  # type: ignore[attr-defined]
    return heads


def _narrow(weight: Weight, width: int) -> Weight:
    return replace(weight, shape=(*weight.shape[:-1], width))


def _share(weight: Weight, wide: int, width: int) -> Weight:
    """The part of a weight of `wide` rows or elements on a rank that has `width` of them."""
    rows = weight.rows * (width / wide) if weight.rows else None
    return replace(weight, shape=(weight.shape[0] * width // wide, *weight.shape[1:]), rows=rows)
