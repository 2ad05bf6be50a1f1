"""The cache of a module: keys and values that grow with the tokens, and states that do not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from ..records import frozen
from .alignment import problem_at
from .fitting import STEPS, Basis
from .recording import Call, Recording

_PROBLEM: Final = "reads the cache that a pass finds; a trace knows caches that cat() appends to"


@frozen
class Cache:
    """The cache of aligned recordings, by value.

    states  values whose size does not depend on the number of tokens, found or left by a pass, with their index in
            the cache
    slots   values of a preallocated cache, into which passes write their tokens, with the number of token slots
    """

    states: Mapping[int, int]
    slots: Mapping[int, int]

    @classmethod
    def of(cls, name: str, basis: Basis, recordings: Sequence[Recording], preallocated: frozenset[int]) -> Cache:
        """Preallocated  indices of the tensors of the cache into which passes write their tokens

        Raises InputError where a state is written in part, or a preallocated cache more than once.
        """
        states = _states(name, basis, recordings, preallocated) if basis is STEPS else {}
        return cls(states, _slots(name, basis, recordings, preallocated))

    def appended(self, name: str, recording: Recording, call: Call) -> tuple[int, ...]:
        """The values of a call that are the cache after the pass: its results where it adds tokens to the cache.

        Raises InputError where it reads the cache that the pass found in any other way.
        """
        if not any(recording.values[use.value].source == "cache" and use.value not in self.states for use in call.uses):
            return ()
        if call.uses[0].value in self.slots or (call.name == "cat" and len(call.uses) == 2):
            return call.made
        raise problem_at(name, call, f"{_PROBLEM}, or that tokens are written into")


def _cache_values(recording: Recording) -> list[int]:
    """The values that a pass finds in the cache, in the order of its tensors."""
    return [v for v, value in enumerate(recording.values) if value.source == "cache"]


def _states(name: str, basis: Basis, recordings: Sequence[Recording], preallocated: frozenset[int]) -> dict[int, int]:
    first, *_ = recordings
    cache_values = _cache_values(first)
    for value, calls in first.written().items():
        if cache_values.index(value) not in preallocated:
            problem = "writes a part of what it keeps; a trace knows states that are written whole"
            raise problem_at(name, first.calls[calls[0]], f"{problem}, and caches that tokens are written into")
    states: dict[int, int] = {}
    for values in (cache_values, first.kept):
        for place, value in enumerate(values):
            if value < 0 or place in preallocated:
                continue
            constant = basis.is_constant([r.values[value].numel for r in recordings])
            if constant and first.values[value].floats and not first.values[value].learned:
                states.setdefault(value, place)
    return states


def _slots(name: str, basis: Basis, recordings: Sequence[Recording], preallocated: frozenset[int]) -> dict[int, int]:
    first, *_ = recordings
    cache_values = _cache_values(first)
    slots: dict[int, int] = {}
    for value, calls in first.written().items():
        if cache_values.index(value) not in preallocated:
            continue
        index, *other_calls = calls
        if other_calls:
            problem = "writes again into a cache; keys and values must be two tensors"
            raise problem_at(name, first.calls[other_calls[0]], problem)
        counts = {
            r.values[value].numel * shape.q_len / r.placed(r.calls[index])
            for r, shape in zip(recordings, basis.shapes, strict=True)
        }
        if len(counts) > 1:
            problem = "writes into a cache that must be as large for each sequence of any batch, and is not"
            raise problem_at(name, first.calls[index], problem)
        slots |= dict.fromkeys((value, *first.calls[index].made), round(counts.pop()))
    return slots


@frozen
class SlotUse:
    """Calls and values that span all slots of a preallocated cache, empty ones too, with the number of slots.

    calls   by index
    values  made by such calls, with an element per slot
    """

    calls: Mapping[int, int]
    values: Mapping[int, int]

    @classmethod
    def of(cls, basis: Basis, recordings: Sequence[Recording], slots: Mapping[int, int], cached: set[int]) -> SlotUse:
        """Follows `slots` through the calls up to products of two operands that have them.

        cached  values that are the cache after the pass
        """
        first, *_ = recordings
        calls: dict[int, int] = {}
        values: dict[int, int] = {}

        def spanned(index: int, place: int) -> int:
            """Slots that an operand has whatever the number of tokens, else 0."""
            value = first.calls[index].uses[place].value
            length = slots.get(value, 0) or values.get(value, 0)
            sizes = [r.calls[index].uses[place].elements for r in recordings]
            return length if length and basis.is_constant(sizes) else 0

        for index, call in enumerate(first.calls):
            if cached & set(call.made):
                continue
            spans = [spanned(index, place) for place in range(len(call.uses))]
            length = max(spans, default=0)
            if length:
                calls[index] = length
            if length and not (call.matmul and min(spans)):
                values |= {v: length for v in call.made if first.values[v].shape[-1:] == (length,)}
        return cls(calls, values)


def state_calls(recording: Recording, states: Mapping[int, int], cached: set[int]) -> set[int]:
    """Indices of the calls that work on a state or on what a step made of it, up to a product with parameters, and of
    those that work for them alone, such as the product of a key with a value.
    """

    def recurrent(call: Call) -> bool:
        """Whether it has neither a product with parameters nor cached keys and values."""
        return not recording.projects(call) and not {use.value for use in call.uses} & cached

    state_values, indices = set(states), set()
    possible = [recurrent(call) for call in recording.calls]
    for index, call in enumerate(recording.calls):
        if possible[index] and state_values & {use.value for use in call.uses}:
            state_values |= set(call.made)
            indices.add(index)
    for index in reversed(range(len(recording.calls))):
        readers = {r for v in recording.calls[index].made for r in recording.readers.get(v, ())}
        if possible[index] and readers and readers <= indices:
            indices.add(index)
    return indices
