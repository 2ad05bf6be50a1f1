"""Aligned recordings -> launches: matmul-like calls, and what is fused between them, each in its layer."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import inf
from typing import Any, Final

from ..errors import InputError
from ..forms import Form, cells
from .fitting import Basis, Shape
from .recording import Call, Recording, Use, Value

_INDEX: Final = re.compile(r"\.(\d+)(?=\.|$)")


@dataclass(frozen=True)
class Launch:
    """Places of the calls that one kernel makes: a matmul-like one, or element-wise ones that are joined."""

    calls: tuple[int, ...]


@dataclass(frozen=True)
class Segment:
    """Launches of one layer, or of what stands between layers. `layer` is its module's path, "" where it is none.

    joined  layers that are here together, as they hand on more than one value
    shared  the value that it makes of parameters alone for several of those after it; -1 where it does not
    """

    layer: str
    launches: tuple[Launch, ...]
    joined: int = 0
    shared: int = -1


class Program:
    """What all passes have in common, and the forms of what differs."""

    def __init__(self, name: str, basis: Basis, recordings: Sequence[Recording]) -> None:
        self.name = name
        self.basis = basis
        first = recordings[0]
        self.values, self.logits, self.results = first.values, first.logits, first.results
        self._align(recordings)
        read = self._read(first)
        self.recordings = [replace(r, calls=[r.calls[index] for index in read]) for r in recordings]
        self.calls = self.recordings[0].calls
        self.cached = {v for c in self.calls for v in self._appended(c)}  # values that are the cache after this pass
        self.writer = {v: index for index, call in enumerate(self.calls) for v in call.made}
        self.windows: dict[int, int] = {}  # keys that a matmul-like call sees at most, where that is not all
        self.readers: dict[int, list[int]] = {}
        for index, call in enumerate(self.calls):
            for use in call.uses:
                self.readers.setdefault(use.value, []).append(index)

    def error(self, call: Call, problem: str) -> InputError:
        return InputError(f"{self.name}: {call.where} {problem}")

    def form(self, call: Call, what: str, count: Callable[[Recording], int]) -> Form:
        """What `count` gives for all passes, as a form."""
        return self.basis.form(self._solved(call, what, count))

    def _solved(self, call: Call, what: str, count: Callable[[Recording], int]) -> tuple[int, ...]:
        counts = [count(recording) for recording in self.recordings]
        found = self.basis.solve(counts)
        if found is None:
            raise self.error(
                call,
                f"has {what} that are no sum of whole multiples of {self.basis.told}: "
                f"{', '.join(map(str, counts[:4]))}, ...",
            )
        return found

    def elements(self, value: int) -> Form:
        call = self.calls[self.writer[value]]
        return self.form(call, "results", lambda r: r.values[value].numel)

    def ops(self, launch: Launch) -> Form:
        return self.form(
            self.calls[launch.calls[-1]], "OPs", lambda r: sum(r.calls[index].ops for index in launch.calls)
        )

    def said(self, index: int, shape: Shape) -> int:
        """The OPs of a matmul-like call in a pass of `shape`."""
        seen = min(shape.past, self.windows.get(index, shape.past + 1) - 1)
        found = self._solved(self.calls[index], "OPs", lambda r: r.calls[index].ops)
        return self.basis.amount(found, Shape(shape.batch, shape.q_len, seen))

    def narrowed(self, index: int, shape: Shape, ops: int) -> bool:
        """Whether `ops` are those of fewer keys than there are, which is then the call's window."""
        form, said = self.ops(Launch((index,))), self.said(index, shape)
        keys, left = divmod(ops * (shape.past + shape.q_len), said)
        if [feature for feature, _ in form.terms] != [cells().terms[0][0]] or left or not 0 < ops < said:
            return False
        self.windows[index] = keys
        return True

    def read(self, launch: Launch, value: int) -> Form:
        """Elements of a value that a launch reads, each once."""
        call = self.calls[launch.calls[0]]
        return self.form(call, "operands", lambda r: _distinct(_uses(r, launch, value), r.values[value]))

    def parts(self, value: int) -> tuple[tuple[int, int], ...]:
        """Uses, by call and operand, of the parts of a value that products read apart, such as queries, keys and values
        of one projection; none where it is no more than those parts, or read otherwise.
        """
        found: dict[tuple[int, int], tuple[int, int]] = {}
        elements = 0
        for index in dict.fromkeys(self.readers.get(value, ())):
            for place, use in enumerate(self.calls[index].uses):
                if use.value != value:
                    continue
                if not self.calls[index].matmul or use.elements == self.values[value].numel:
                    return ()
                elements += use.elements if (use.low, use.high) not in found else 0
                found.setdefault((use.low, use.high), (index, place))
        whole = elements == self.values[value].numel
        return tuple(found[key] for key in sorted(found)) if whole else ()

    def part(self, at: tuple[int, int]) -> Form:
        """Elements of an operand, by call and place in it."""
        index, place = at
        return self.form(self.calls[index], "operands", lambda r: r.calls[index].uses[place].elements)

    def outside(self, launch: Launch) -> list[int]:
        """Values that a launch reads and did not make; the cache it appends to stays where it is."""
        own = {v for index in launch.calls for v in self.calls[index].made}
        uses = [use.value for index in launch.calls for use in self.calls[index].uses]
        return [v for v in dict.fromkeys(uses) if v not in own and self.values[v].source != "cache"]

    def leaving(self, launch: Launch) -> list[int]:
        """Values that a launch makes for others."""
        own = set(launch.calls)
        made = (v for index in launch.calls for v in self.calls[index].made)
        left = self.cached | self.results | {self.logits}
        kept = (v for v in made if v in left or set(self.readers.get(v, ())) - own)
        return list(kept)

    def segments(self, lists: set[str]) -> list[Segment]:
        """The launches of each layer, a layer being an entry of one of the modules `lists`.

        A segment ends where one value alone goes on. What several read that is made of parameters alone comes first.
        """
        keys = [_layer(call.path, lists) for call in self.calls]
        shared, before = self._shared(keys)
        done = [Segment("", tuple(self._launches(before)), shared=shared)] if before else []
        rest = [index for index in range(len(self.calls)) if index not in set(before)]
        runs = groupby(rest, key=lambda index: keys[index])
        layers: list[str] = []
        places: list[int] = []
        for layer, run in runs:
            layers.append(layer)
            places += run
            passed = self._passed(places[-1] + 1) - {shared}
            alone = len(passed) == 1 and self.writer.get(*passed) in places
            if alone or places[-1] == rest[-1]:
                joined = len(layers) > 1
                own = "" if joined else layer
                deep = sum(bool(one) for one in layers) if joined else 0
                done.append(Segment(own, tuple(self._launches(places)), deep))
                layers, places = [], []
        return done

    def _shared(self, keys: Sequence[str]) -> tuple[int, list[int]]:
        """A value that is made of parameters alone and read in several places, such as a bias of all layers, and the
        calls that make it; none where that is more than one value.
        """
        alone = {index for index, call in enumerate(self.calls) if not call.fed}
        made = (v for index in alone for v in self.calls[index].made)
        found = [v for v in made if len({keys[r] for r in self.readers.get(v, ())}) > 1]
        if len(found) != 1:
            return -1, []
        makes, ahead = set(), [self.writer[found[0]]]
        while ahead:
            index = ahead.pop()
            makes.add(index)
            ahead += [self.writer[use.value] for use in self.calls[index].uses if use.value in self.writer]
        left = {v for index in makes for v in self.calls[index].made if set(self.readers.get(v, ())) - makes}
        return (found[0], sorted(makes)) if left == set(found) else (-1, [])

    def _passed(self, place: int) -> set[int]:
        """Values, caches and parameters apart, that calls from `place` on read of those before."""
        made = (v for v, value in enumerate(self.values) if value.moves and self.writer.get(v, -1) < place)
        return {v for v in made if v not in self.cached and max(self.readers.get(v, ()), default=-1) >= place}

    def _align(self, recordings: Sequence[Recording]) -> None:
        calls = recordings[0].calls
        for recording in recordings[1:]:
            for ours, theirs in zip(calls, recording.calls, strict=False):
                if ours.wiring != theirs.wiring:
                    raise self.error(theirs, f"is made for one shape where {ours.where} is for another")
            if len(calls) != len(recording.calls):
                raise InputError(
                    f"{self.name}: makes {len(calls)} calls for one shape and {len(recording.calls)} for another; "
                    "a trace needs the same calls for all (is there a loop over tokens?)"
                )

    def _read(self, recording: Recording) -> list[int]:
        """Places of calls, element-wise ones apart of which nothing is read or returned: compilers leave them out."""
        needed = {self.logits, *self.results, *recording.deciding}
        read = []
        for index, call in reversed(list(enumerate(recording.calls))):
            if call.matmul or needed & set(call.made) or self._appended(call):
                needed |= {use.value for use in call.uses}
                read.append(index)
        return read[::-1]

    def _appended(self, call: Call) -> tuple[int, ...]:
        old = [use for use in call.uses if self.values[use.value].source == "cache"]
        if not old:
            return ()
        if call.name != "cat" or len(call.uses) != 2:
            raise self.error(call, "reads the cache that a pass finds; a trace knows caches that cat() appends to")
        return call.made

    def _launches(self, places: list[int]) -> Iterable[Launch]:
        """A segment's launches in order: an element-wise call goes to the last place where it is not too late."""
        due: dict[int, float] = {}
        for index in reversed(places):
            readers = (r for v in self.calls[index].made for r in self.readers.get(v, ()))
            due[index] = index if self.calls[index].matmul else min((due[r] for r in readers if r in due), default=inf)
        first: list[tuple[float, Launch]] = []
        for place in sorted({due[index] for index in places}):
            joined = [index for index in places if due[index] == place and not self.calls[index].matmul]
            first += [(place, Launch(tuple(group))) for group in self._components(joined)]
            if place < inf:
                first.append((place, Launch((int(place),))))
        return self._appends_first([launch for _, launch in first])

    def _components(self, places: list[int]) -> list[list[int]]:
        """Calls that hand each other values, together."""
        groups: list[list[int]] = []
        for index in places:
            read = {use.value for use in self.calls[index].uses} - self.cached  # what is cached is read from memory
            near = [g for g in groups if any(read & set(self.calls[i].made) for i in g)]
            groups = [g for g in groups if g not in near] + [sorted([index, *(i for g in near for i in g)])]
        return groups

    def _appends_first(self, launches: list[Launch]) -> list[Launch]:
        """What goes to the cache goes there as soon as it is made, so that attention is three launches in a row."""
        done: list[Launch] = []
        for launch in launches:
            if not any(v in self.cached for v in self.leaving(launch)):
                done.append(launch)
                continue
            needed = set(self.outside(launch))
            after = [i for i, other in enumerate(done) if needed & set(self.leaving(other))]
            place = max(after, default=-1) + 1
            while place < len(done) and any(v in self.cached for v in self.leaving(done[place])):
                place += 1
            done.insert(place, launch)
        return done


def layer_lists(module: Any) -> set[str]:
    """Paths of modules whose numbered children are layers: lists, and sequences of modules that have modules."""
    found = set()
    for path, part in module.named_modules():
        children = dict(part.named_children())
        if children and all(name.isdigit() for name in children):
            deep = [child for child in children.values() if any(True for _ in child.children())]
            if type(part).__name__ == "ModuleList" or len({type(c) for c in deep}) < len(deep):
                found.add(path)
    return found


def _layer(path: str, lists: set[str]) -> str:
    for match in _INDEX.finditer(f".{path}"):
        if path[: max(match.start() - 1, 0)] in lists:
            return path[: match.end() - 1]
    return ""


def _uses(recording: Recording, launch: Launch, value: int) -> set[Use]:
    return {use for index in launch.calls for use in recording.calls[index].uses if use.value == value}


def _distinct(uses: set[Use], value: Value) -> int:
    """Elements that some parts of a value have together: parts of parts are none of their own."""
    parts = {(use.low, use.high): use.elements for use in sorted(uses, key=lambda u: u.elements)}
    whole = [
        n
        for (low, high), n in parts.items()
        if not any(a <= low and high <= b and (a, b) != (low, high) for a, b in parts)
    ]
    return min(sum(whole), value.numel)
