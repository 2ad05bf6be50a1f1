"""`Recording`: the aten calls of one pass of a torch module, and the values that they exchange."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from ..records import frozen
from .numbers import LazyValue

PLACES: Final = frozenset({"index_copy_", "index_put_", "copy_"})  # calls that write a part of what is there


@frozen(kw_only=True)
class Value:
    """A floating-point tensor that depends on parameters, the cache or what was made of them.

    source  "call"; "input", "cache" or the name of a parameter where it comes from outside
    """

    numel: int
    dtype: str
    source: str = "call"
    shape: tuple[int, ...] = ()

    @property
    def moves(self) -> bool:
        """Whether it is an activation, no parameter and no cache."""
        return self.source in ("call", "input")

    @property
    def floats(self) -> bool:
        return "float" in self.dtype

    @property
    def learned(self) -> bool:
        """Whether it is a parameter."""
        return self.source not in ("call", "input", "cache")


@frozen
class Use:
    """The part of a value that a call reads: that many elements, each once, between two places of its memory."""

    value: int
    elements: int
    low: int
    high: int
    last: int = 1  # the size of the last dimension as the call sees it


@frozen(kw_only=True)
class Call:
    """ops     OPs of a matmul-like call; elements of the largest tensor of another, none where it only moves them
    causal  the module says that a token sees none after it
    shows   of the keys that its mask leaves, how many before a query's own and how many after it at most; None without
            a mask that is known
    fed     it depends on what the module takes, and not on parameters and shapes alone
    """

    name: str
    path: str
    uses: tuple[Use, ...]
    made: tuple[int, ...]
    ops: int
    matmul: bool
    causal: bool = False
    fed: bool = True
    shows: LazyValue | None = None

    @property
    def where(self) -> str:
        return f"{self.path or 'the module itself'}: {self.name}"

    @property
    def wiring(self) -> tuple[object, ...]:
        """Properties that must not depend on the shapes: name, module and dataflow."""
        return (self.name, self.path, tuple(use.value for use in self.uses), self.made)


@dataclass(kw_only=True)
class Recording:
    """Calls whose results depend on tokens, in launch order. What depends on shapes alone (masks, angles, indices) is
    left out: it is computed on the fly.

    results  values that are returned; `logits` is the one that matters most
    kept     what the cache shows after the pass, in the order of its tensors
    deciding values that whole numbers, such as the places of experts, are made of or with
    """

    calls: list[Call] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    logits: int = -1
    results: frozenset[int] = frozenset()
    kept: tuple[int, ...] = ()
    deciding: set[int] = field(default_factory=set)

    @cached_property
    def writer(self) -> dict[int, int]:
        """The index of the call that makes each value."""
        return {v: index for index, call in enumerate(self.calls) for v in call.made}

    @cached_property
    def readers(self) -> dict[int, list[int]]:
        """The indices of the calls that read each value, one for each use."""
        found: dict[int, list[int]] = {}
        for index, call in enumerate(self.calls):
            for use in call.uses:
                found.setdefault(use.value, []).append(index)
        return found

    @property
    def products(self) -> list[tuple[str, str, int]]:
        return [(c.path, c.name, c.ops) for c in self.calls if c.matmul]

    def bands(self) -> list[tuple[int, int] | None]:
        """Band of scores that masks leave of each product, its own or of the scores that it reads; see
        ShapeValues.left().
        """
        shows = [call.shows() if call.shows else None for call in self.calls]
        found = {index: shows[index] for index, call in enumerate(self.calls) if call.matmul}
        for start, call in enumerate(self.calls):
            if shows[start] is None or call.matmul:
                continue
            size, queue, visited = self.values[call.made[0]].numel, [start], {start}
            while queue:  # all that is done with the same scores
                user = self.calls[queue.pop()]
                values = {v for v in (*user.made, *(use.value for use in user.uses)) if self.values[v].numel == size}
                near = {
                    i for v in values for i in (self.writer.get(v, -1), *self.readers.get(v, ())) if i >= 0
                } - visited
                visited |= near
                queue += [i for i in near if not self.calls[i].matmul]
            found |= {i: shows[start] for i in visited if self.calls[i].matmul}
        return [found[index] for index in sorted(found)]

    def written(self) -> dict[int, list[int]]:
        """Places of the calls that write a part of what the pass found in the cache, by the value that was found."""
        writing_calls: dict[int, list[int]] = {}
        origin = {v: v for v, value in enumerate(self.values) if value.source == "cache"}
        for index, call in enumerate(self.calls):
            if call.name in PLACES and call.uses[0].value in origin and self.placed(call):
                first = origin[call.uses[0].value]
                writing_calls.setdefault(first, []).append(index)
                origin |= dict.fromkeys(call.made, first)
        return writing_calls

    def placed(self, call: Call) -> int:
        """Elements that a call writes into a part of a value; 0 where it writes all of it."""
        elements = call.uses[0 if call.name == "copy_" else -1].elements
        return elements if elements < self.values[call.uses[0].value].numel else 0

    def projects(self, call: Call) -> bool:
        """Whether it is a product with parameters; a filter of each channel alone is none."""
        learned = [self.values[use.value] for use in call.uses if self.values[use.value].learned]
        is_depthwise = call.name == "convolution" and all(
            value.shape[1] == 1 for value in learned if len(value.shape) > 1
        )
        return call.matmul and bool(learned) and not is_depthwise
