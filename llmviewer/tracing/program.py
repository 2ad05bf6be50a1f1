"""Aligned recordings -> launches: matmul-like calls, and what is fused between them, each in its layer."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import inf
from typing import Any, Final

from ..errors import InputError
from ..forms import ONE, SEQUENCES, TOKENS, Form, cells, total
from .fitting import ONCE, STEPS, Basis, Shape, at_rest, spread
from .recording import Call, Recording, Use, Value

_STILL: Final = (ONE + TOKENS + SEQUENCES).features()  # of what does not grow with the cache
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


@dataclass(frozen=True)
class Chunks:
    """What a prompt does in a scan for each token: OPs of products within chunks, and of all else that its module does,
    of which `steps` are those that steps do there.
    """

    products: float
    others: float
    steps: float

    @property
    def more(self) -> float:
        """OPs of all else that prompts have, and steps have not."""
        return self.others - self.steps


class Program:
    """What all passes have in common, and the forms of what differs."""

    def __init__(self, name: str, basis: Basis, recordings: Sequence[Recording], places: Iterable[int] = ()) -> None:
        self.name = name
        self.basis = basis
        self.places = frozenset(places)
        first = recordings[0]
        self.values, self.logits, self.results = first.values, first.logits, first.results
        self._align(recordings)
        self.states = self._states(recordings)  # values that are as large after any number of tokens, by their place
        self.lengths = self._lengths(recordings)  # places for tokens in a cache that passes write into
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
        self.wide_calls: dict[int, int] = {}  # those that take all places of such a cache, and how many these are
        self.wide: dict[int, int] = {}  # values with a number for each place
        self._widen()
        self.stateful = self._stateful()
        self.inner = {index for index in self.stateful if self.calls[index].matmul}
        self.bands: dict[int, tuple[int, int]] = {}  # keys before and after its own that a query sees; -1 is all
        self.chunks: dict[int, Chunks] = {}  # by the state that a scan keeps

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
        form = self._tokenwise(value, self.form(call, "results", lambda r: r.values[value].numel))
        return at_rest(form) if value in self.states else form

    def ops(self, launch: Launch) -> Form:
        return total(self._ops(launch, length) for length in {self.wide_calls.get(index, 0) for index in launch.calls})

    def _ops(self, launch: Launch, length: int) -> Form:
        """OPs of those calls of a launch that take all `length` places of a cache; of those that take none where 0."""
        own = [index for index in launch.calls if self.wide_calls.get(index, 0) == length]
        form = self.form(self.calls[own[-1]], "OPs", lambda r: sum(self.done(r, index) for index in own))
        return spread(form, length) if length else form

    def done(self, recording: Recording, index: int) -> int:
        """The OPs of a call; of a filter at the end of what is kept those of the results that are read."""
        call = recording.calls[index]
        if index not in self.inner or call.name != "convolution":
            return call.ops
        made = call.made[0]
        read = max((use.elements for r in self.readers.get(made, ()) for use in recording.calls[r].uses
                    if use.value == made), default=0)  # fmt: skip
        return call.ops * read // recording.values[made].numel

    def chunked(self, path: str, products: float, others: float) -> bool:
        """Remembers what the scan of a module does with a prompt: that of the largest state it reads, if any."""
        here = [index for index, call in enumerate(self.calls) if call.path == path]
        steps = [index for index in here if not self.apart(index) and self.calls[index].name != "convolution"]
        read = (use.value for index in self.stateful & set(here) for use in self.calls[index].uses)
        found = [value for value in read if value in self.states and self.values[value].source == "cache"]
        per_token = self._solved(self.calls[here[0]], "OPs", lambda r: sum(r.calls[index].ops for index in steps))
        made = Chunks(products, others, per_token[self.basis.monomials.index(3)])
        self.chunks |= dict.fromkeys(sorted(found, key=lambda value: self.values[value].numel)[-1:], made)
        return bool(found)

    def apart(self, index: int) -> bool:
        """Whether a call is a launch of its own."""
        return self.calls[index].matmul and index not in self.inner

    def said(self, index: int, shape: Shape) -> int:
        """The OPs of a matmul-like call in a pass of `shape`."""
        seen = min(shape.past, self.windows.get(index, shape.past + 1) - 1)
        found = self._solved(self.calls[index], "OPs", lambda r: r.calls[index].ops)
        return self.basis.amount(found, Shape(shape.batch, shape.q_len, seen))

    def masked(self, recording: Recording) -> list[str]:
        """Takes over the bands of keys that masks leave in a long pass, where those of the fitted ones are the same;
        modules of products where they are not.
        """
        products = [index for index, call in enumerate(self.calls) if call.matmul]
        short = [(shape, r.bands()) for shape, r in zip(self.basis.shapes, self.recordings, strict=True)]
        odd = set()
        for place, (index, band) in enumerate(zip(products, recording.bands(), strict=True)):
            # a single token at the end of what is cached sees all of it under a causal mask
            said = (-1, 0) if band is None and self.basis is not ONCE else band
            found = [(bands[place], shape.clipped(said)) for shape, bands in short if bands[place] or said is band]
            if all(one == other for one, other in found):
                self.bands |= {index: band} if band else {}
            elif index not in self.windows:
                odd.add(self.calls[index].path)
        return sorted(odd)

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
        form = self.form(call, "operands", lambda r: _distinct(_uses(r, launch, value), r.values[value]))
        form = self._tokenwise(value, form) if form.features() <= _STILL else form
        return at_rest(form) if value in self.states or value in self.cached else form

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
        found = (v for v in dict.fromkeys(uses) if v not in own)
        return [v for v in found if self.values[v].source != "cache" or v in self.states]

    def leaving(self, launch: Launch) -> list[int]:
        """Values that a launch makes for others."""
        own = set(launch.calls)
        made = (v for index in launch.calls for v in self.calls[index].made)
        left = self.cached | self.states.keys() | self.results | {self.logits}
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
        kept = self.cached | self.states.keys()
        return {v for v in made if v not in kept and max(self.readers.get(v, ()), default=-1) >= place}

    def _align(self, recordings: Sequence[Recording]) -> None:
        calls = recordings[0].calls
        for recording in recordings[1:]:
            for ours, theirs in zip(calls, recording.calls, strict=False):
                if ours.wiring != theirs.wiring:
                    other = self.error(theirs, f"is made for one shape where {ours.where} is for another")
                    raise self._mixed(recordings) or other
            if len(calls) != len(recording.calls):
                raise InputError(
                    f"{self.name}: makes {len(calls)} calls for one shape and {len(recording.calls)} for another; "
                    "a trace needs the same calls for all (is there a loop over tokens?)"
                )

    def _mixed(self, recordings: Sequence[Recording]) -> InputError | None:
        """What is wrong where a product with parameters has more OPs for each sequence the more there are."""
        first, few = recordings[0], self.basis.shapes[0]
        for shape, recording in zip(self.basis.shapes, recordings, strict=True):
            if replace(shape, batch=few.batch) != few:
                continue
            for ours, theirs in zip(first.calls, recording.calls, strict=False):
                if ours.wiring != theirs.wiring:
                    break
                if first.projects(ours) and theirs.ops * few.batch > ours.ops * shape.batch:
                    problem = "mixes the sequences of a batch, and a trace needs each by itself"
                    return self.error(ours, f"{problem}: {ours.ops} OPs for {few}, {theirs.ops} for {shape}")
        return None

    def _read(self, recording: Recording) -> list[int]:
        """Places of calls, element-wise ones apart of which nothing is read or returned: compilers leave them out."""
        needed = {self.logits, *self.results, *recording.deciding, *self.states}
        read = []
        for index, call in reversed(list(enumerate(recording.calls))):
            if call.matmul or needed & set(call.made) or self._appended(call):
                needed |= {use.value for use in call.uses}
                read.append(index)
        return read[::-1]

    def _appended(self, call: Call) -> tuple[int, ...]:
        old = [use for use in call.uses if self.values[use.value].source == "cache" and use.value not in self.states]
        if not old:
            return ()
        if call.uses[0].value in self.lengths or (call.name == "cat" and len(call.uses) == 2):
            return call.made
        problem = "reads the cache that a pass finds; a trace knows caches that cat() appends to"
        raise self.error(call, f"{problem}, or that tokens are written into")

    def _states(self, recordings: Sequence[Recording]) -> dict[int, int]:
        """Values that stay for the next step and are no longer after more tokens, found or left, and their places in
        the cache.

        Raises InputError where one is written in parts.
        """
        if self.basis is not STEPS:
            return {}
        first, *_ = recordings
        found = [v for v, value in enumerate(first.values) if value.source == "cache"]
        for value, calls in first.written().items():
            if found.index(value) not in self.places:
                problem = "writes a part of what it keeps; a trace knows states that are written whole"
                raise self.error(first.calls[calls[0]], f"{problem}, and caches that tokens are written into")
        grown = self.basis.monomials.index(4)
        states: dict[int, int] = {}
        for values in (found, first.kept):
            for place, value in enumerate(values):
                sizes = self.basis.solve([r.values[value].numel for r in recordings]) if value >= 0 else None
                still = sizes and not any(sizes[grown:]) and place not in self.places
                if still and first.values[value].floats and not first.values[value].learned:
                    states.setdefault(value, place)
        return states

    def _lengths(self, recordings: Sequence[Recording]) -> dict[int, int]:
        """Places for tokens in each value of a cache that passes write into.

        Raises InputError where there are not as many for any batch.
        """
        first, *_ = recordings
        found = [v for v, value in enumerate(first.values) if value.source == "cache"]
        lengths: dict[int, int] = {}
        for value, calls in first.written().items():
            if found.index(value) not in self.places:
                continue
            index, *more = calls
            if more:
                raise self.error(first.calls[more[0]], "writes again into a cache; keys and values must be two tensors")
            sizes = {
                r.values[value].numel * shape.q_len / r.placed(r.calls[index])
                for r, shape in zip(recordings, self.basis.shapes, strict=True)
            }
            if len(sizes) > 1:
                problem = "writes into a cache that must be as large for each sequence of any batch, and is not"
                raise self.error(first.calls[index], problem)
            lengths |= dict.fromkeys((value, *first.calls[index].made), round(sizes.pop()))
        return lengths

    def _widen(self) -> None:
        """Finds what is done with all places of a cache, up to products of two such operands."""
        for index, call in enumerate(self.calls):
            if self.cached & set(call.made):
                continue
            spans = [self._span(index, place) for place in range(len(call.uses))]
            length = max(spans, default=0)
            if length:
                self.wide_calls[index] = length
            if length and not (call.matmul and min(spans)):
                self.wide |= {v: length for v in call.made if self.values[v].shape[-1:] == (length,)}

    def _span(self, index: int, place: int) -> int:
        """All places of a cache, where an operand has them whatever was written there; else 0."""
        value = self.calls[index].uses[place].value
        length = self.lengths.get(value, 0) or self.wide.get(value, 0)
        sizes = self.basis.solve([r.calls[index].uses[place].elements for r in self.recordings]) if length else None
        return length if sizes and not any(sizes[self.basis.monomials.index(4) :]) else 0

    def _tokenwise(self, value: int, form: Form) -> Form:
        """Elements of all places of a cache, or numbers for each, as those of tokens."""
        length = self.lengths.get(value, 0) or self.wide.get(value, 0)
        return spread(form, length) if length else form

    def _stateful(self) -> set[int]:
        """Calls that do something with a state or what a step has made of it, up to a product with parameters; and
        others that are for them alone, such as a key's product with a value.
        """
        near, found = set(self.states), set()
        alone = [self._is_alone(call) for call in self.calls]
        for index, call in enumerate(self.calls):
            if alone[index] and near & {use.value for use in call.uses}:
                near |= set(call.made)
                found.add(index)
        for index in reversed(range(len(self.calls))):
            readers = {r for v in self.calls[index].made for r in self.readers.get(v, ())}
            if alone[index] and readers and readers <= found:
                found.add(index)
        return found

    def _is_alone(self, call: Call) -> bool:
        """Whether a call has neither a product with parameters nor keys and values that are cached."""
        return not self.recordings[0].projects(call) and not {use.value for use in call.uses} & self.cached

    def _launches(self, places: list[int]) -> Iterable[Launch]:
        """A segment's launches in order: an element-wise call goes to the last place where it is not too late."""
        due: dict[int, float] = {}
        for index in reversed(places):
            readers = (r for v in self.calls[index].made for r in self.readers.get(v, ()))
            due[index] = index if self.apart(index) else min((due[r] for r in readers if r in due), default=inf)
        self._keep_near(due)
        first: list[tuple[float, Launch]] = []
        for place in sorted({due[index] for index in places}):
            joined = [index for index in places if due[index] == place and not self.apart(index)]
            first += [(place, Launch(tuple(group))) for group in self._components(joined)]
            if place < inf:
                first.append((place, Launch((int(place),))))
        return self._appends_first([launch for _, launch in first])

    def _keep_near(self, due: dict[int, float]) -> None:
        """What is only for the next step goes where other calls read what it is made of."""
        for group in self._components([index for index, place in due.items() if place == inf]):
            if not any(v in self.states for index in group for v in self.calls[index].made):
                continue
            uses = (use.value for index in group for use in self.calls[index].uses)
            read = {value for value in uses if not self.values[value].learned}
            made = [self.writer[value] for value in read if value in self.writer]
            beside = (due[r] for r in (*made, *(r for value in read for r in self.readers[value])) if r in due)
            last = max((place for place in beside if place < inf), default=inf)
            if last > max(made, default=-1):
                due.update(dict.fromkeys(group, last))

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
