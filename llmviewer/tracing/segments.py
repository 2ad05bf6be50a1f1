"""The launches of each layer: element-wise calls fused between matmul-like ones."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby
from math import inf
from typing import Any, Final

from ..records import frozen
from .program import Program, TracedLaunch

_INDEX: Final = re.compile(r"\.(\d+)(?=\.|$)")


@frozen
class Segment:
    """Launches of one layer, or of what stands between layers.

    layer   path of its module; "" where it is no layer
    joined  number of layers that are one segment, because they hand on more than one value
    shared  a value made of parameters alone that several later segments read; -1 where it makes none
    """

    layer: str
    launches: tuple[TracedLaunch, ...]
    joined: int = 0
    shared: int = -1


def segments_of(program: Program, lists: set[str]) -> list[Segment]:
    """The program cut where a single value goes on; layers are the entries of the modules `lists`.

    What makes a value of parameters alone that several layers read comes first.
    """
    layers_of = [_layer(call.path, lists) for call in program.calls]
    shared, makers = _shared(program, layers_of)
    segments = [Segment("", _launches(program, makers), shared=shared)] if makers else []
    rest = [index for index in range(len(program.calls)) if index not in set(makers)]
    layers: list[str] = []
    calls: list[int] = []
    for layer, run in groupby(rest, key=lambda index: layers_of[index]):
        layers.append(layer)
        calls += run
        passed = _passed(program, calls[-1] + 1) - {shared}
        single = len(passed) == 1 and program.writer.get(*passed) in calls
        if single or calls[-1] == rest[-1]:
            joined = len(layers) > 1
            path = "" if joined else layer
            deep = sum(bool(one) for one in layers) if joined else 0
            segments.append(Segment(path, _launches(program, calls), deep))
            layers, calls = [], []
    return segments


def layer_lists(module: Any) -> set[str]:
    """Paths of modules whose numbered children are layers: lists, and sequences of modules that have modules."""
    paths = set()
    for path, part in module.named_modules():
        children = dict(part.named_children())
        if children and all(name.isdigit() for name in children):
            deep = [child for child in children.values() if any(True for _ in child.children())]
            if type(part).__name__ == "ModuleList" or len({type(c) for c in deep}) < len(deep):
                paths.add(path)
    return paths


def _layer(path: str, lists: set[str]) -> str:
    """The part of a path that is a layer."""
    for match in _INDEX.finditer(f".{path}"):
        if path[: max(match.start() - 1, 0)] in lists:
            return path[: match.end() - 1]
    return ""


def _shared(program: Program, layers_of: Sequence[str]) -> tuple[int, list[int]]:
    """A value made of parameters alone that several layers read, such as a bias, and the calls that make it; none where
    there are several such values.
    """
    constant = {index for index, call in enumerate(program.calls) if not call.fed}
    constants = (v for index in constant for v in program.calls[index].made)
    shared_values = [v for v in constants if len({layers_of[r] for r in program.readers.get(v, ())}) > 1]
    if len(shared_values) != 1:
        return -1, []
    makers, ahead = set(), [program.writer[shared_values[0]]]
    while ahead:
        index = ahead.pop()
        makers.add(index)
        ahead += [program.writer[use.value] for use in program.calls[index].uses if use.value in program.writer]
    left = {v for index in makers for v in program.calls[index].made if set(program.readers.get(v, ())) - makers}
    return (shared_values[0], sorted(makers)) if left == set(shared_values) else (-1, [])


def _passed(program: Program, start: int) -> set[int]:
    """Activations made before the call `start` that it or later calls read."""
    activations = (v for v, value in enumerate(program.values) if value.moves and program.writer.get(v, -1) < start)
    cached_values = program.cached | program.states.keys()
    return {v for v in activations if v not in cached_values and max(program.readers.get(v, ()), default=-1) >= start}


def _launches(program: Program, calls: Sequence[int]) -> tuple[TracedLaunch, ...]:
    """The launches of a segment in order. An element-wise call runs as late as its readers allow."""
    due: dict[int, float] = {}  # the product before which a call runs; inf where nothing in the segment reads it
    for index in reversed(calls):
        readers = (r for v in program.calls[index].made for r in program.readers.get(v, ()))
        due[index] = index if program.is_product(index) else min((due[r] for r in readers if r in due), default=inf)
    _place_state_updates(program, due)
    launches: list[TracedLaunch] = []
    for product in sorted({due[index] for index in calls}):
        fused = [index for index in calls if due[index] == product and not program.is_product(index)]
        launches += [TracedLaunch(tuple(group)) for group in _connected(program, fused)]
        if product < inf:
            launches.append(TracedLaunch((int(product),)))
    return tuple(_appends_first(program, launches))


def _place_state_updates(program: Program, due: dict[int, float]) -> None:
    """Moves calls that only the next step reads to where other calls read what they are made of."""
    for group in _connected(program, [index for index, product in due.items() if product == inf]):
        if not any(v in program.states for index in group for v in program.calls[index].made):
            continue
        uses = (use.value for index in group for use in program.calls[index].uses)
        read = {value for value in uses if not program.values[value].learned}
        writers = [program.writer[value] for value in read if value in program.writer]
        due_products = (due[r] for r in (*writers, *(r for value in read for r in program.readers[value])) if r in due)
        last = max((product for product in due_products if product < inf), default=inf)
        if last > max(writers, default=-1):
            due.update(dict.fromkeys(group, last))


def _connected(program: Program, calls: Sequence[int]) -> list[list[int]]:
    """Calls grouped by values that they hand to each other; what is cached is read from memory, and joins none."""
    groups: list[list[int]] = []
    for index in calls:
        read = {use.value for use in program.calls[index].uses} - program.cached
        near = [g for g in groups if any(read & set(program.calls[i].made) for i in g)]
        groups = [g for g in groups if g not in near] + [sorted([index, *(i for g in near for i in g)])]
    return groups


def _appends_first(program: Program, launches: Sequence[TracedLaunch]) -> list[TracedLaunch]:
    """Moves launches that write the cache to right after their inputs, so that attention is three launches in a row."""

    def appends(launch: TracedLaunch) -> bool:
        return any(v in program.cached for v in program.outputs_of(launch))

    ordered: list[TracedLaunch] = []
    for launch in launches:
        if not appends(launch):
            ordered.append(launch)
            continue
        inputs = set(program.inputs_of(launch))
        after = [i for i, other in enumerate(ordered) if inputs & set(program.outputs_of(other))]
        place = max(after, default=-1) + 1
        while place < len(ordered) and appends(ordered[place]):
            place += 1
        ordered.insert(place, launch)
    return ordered
