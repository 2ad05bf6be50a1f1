"""Traces of torch.profiler: kernels of a GPU, or operators of a CPU if there are none."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from math import inf, prod
from pathlib import Path
from typing import Any, Final

from ..documents import LARGEST
from ..errors import InputError, shown
from .launches import Launch, Launches, Operands, of_busiest, steps_of

_ON_GPU: Final = ("kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset")  # categories; older ones have capitals
_NAMED_ON_GPU: Final = "gpu_user_annotation"  # ranges named by the host, with their times on the device
_ON_CPU: Final = "cpu_op"
_NAMED_ON_CPU: Final = "user_annotation"
_DISPATCHED: Final = re.compile(r"\w+::\w+")  # operators of torch; compilers and loaders name ranges differently
_COMPILED: Final = re.compile(r"## Call CompiledFxGraph")
_LOOPS: Final = "loops of a CompiledFxGraph"
_MATRIX: Final = 2  # least dimensions of a matrix
# Operators that move no data; those that may (reshape, contiguous, to) are not among them.
_VIEWS: Final = frozenset((
    "alias", "as_strided", "chunk", "detach", "detach_", "diagonal", "empty", "empty_like", "empty_strided", "expand",
    "expand_as", "is_nonzero", "item", "lift_fresh", "_local_scalar_dense", "movedim", "narrow", "new_empty", "permute",
    "resize_", "resolve_conj", "resolve_neg", "select", "set_", "slice", "split", "split_with_sizes", "squeeze",
    "swapaxes", "t", "transpose", "unbind", "unsqueeze", "_unsafe_view", "view", "view_as",
))  # fmt: skip


def of_trace(events: Iterable[Any], path: Path) -> Launches:
    """The launches in a trace.

    Raises InputError if an event is invalid.
    """
    found: dict[str, list[Launch]] = {kind: [] for kind in (*_ON_GPU, _NAMED_ON_GPU, _ON_CPU, _NAMED_ON_CPU)}
    for number, event in enumerate(events, 1):
        kind = str(event.get("cat", "")).lower() if isinstance(event, dict) else ""
        if kind in found:
            found[kind].append(_launch(event, f"{path}: event {number}", host=kind in (_ON_CPU, _NAMED_ON_CPU)))
    kernels = [one for kind in _ON_GPU for one in found[kind]]
    if kernels:
        return of_busiest(kernels, steps=steps_of(found[_NAMED_ON_GPU]))
    named = found[_NAMED_ON_CPU]
    return of_busiest(_work(found[_ON_CPU], named), steps=steps_of(named), host=True)


def _launch(event: dict[str, Any], where: str, *, host: bool) -> Launch:
    given = event.get("args")
    args = given if isinstance(given, dict) else {}
    device = f"{event.get('pid')}, {event.get('tid')}" if host else event.get("pid")
    try:
        launch = Launch(
            device=str(args.get("device", device)), name=str(event["name"]), start=1e-6 * float(event["ts"]),
            duration=1e-6 * float(event["dur"]), operands=_operands(args),
        )  # fmt: skip
    except (KeyError, OverflowError, TypeError, ValueError):
        launch = None
    if launch is None or not launch.valid:
        raise InputError(f"{where}: a {event['cat']} must have name, ts and dur; got {shown(event)}")
    return launch


def _operands(args: dict[str, Any]) -> Operands | None:
    """The first two matrices of an operator, recorded by record_shapes=True; None if the second is not a weight matrix,
    but one per sequence or head.
    """
    shapes, types = args.get("Input Dims"), args.get("Input type")
    if not isinstance(shapes, list) or not isinstance(types, list):
        return None
    matrices = [
        (shape, str(dtype)) for shape, dtype in zip(shapes, types, strict=False)
        if isinstance(shape, list) and len(shape) >= _MATRIX
        and all(isinstance(size, int) and 0 <= size <= LARGEST for size in shape)
    ]  # fmt: skip
    if len(matrices) < _MATRIX:
        return None
    (rows, dtype), (weights, _), *_ = matrices
    if len(weights) > _MATRIX:
        return None
    return Operands(rows=prod(rows[:-1]), weights=prod(weights), dtype=dtype)


def _work(operators: Iterable[Launch], named: Iterable[Launch]) -> Iterator[Launch]:
    """Operators that move data: the outermost ones, and parts of compiled graphs between them."""
    threads: dict[str, list[Launch]] = {}
    for one in operators:
        if _DISPATCHED.fullmatch(one.name):
            threads.setdefault(one.device, []).append(one)
    compiled = [one for one in named if _COMPILED.match(one.name)]
    for thread, own in threads.items():
        outer = list(_outermost(own))
        yield from (one for one in outer if one.name.split("::")[1] not in _VIEWS)
        for graph in _outermost(one for one in compiled if one.device == thread):
            yield from _between(outer, graph)


def _outermost(found: Iterable[Launch]) -> Iterator[Launch]:
    """Launches not within another, in order."""
    until = -inf
    for one in sorted(found, key=lambda one: (one.start, -one.duration)):
        if one.start >= until:
            until = one.start + one.duration
            yield one


def _between(operators: Sequence[Launch], graph: Launch) -> Iterator[Launch]:
    """The parts of a graph's time in which no operator runs."""
    now, end = graph.start, graph.start + graph.duration
    inside = [one for one in operators if now <= one.start < end]
    for one in (*inside, Launch(device=graph.device, name=graph.name, start=end, duration=0.0)):
        if one.start > now:
            yield Launch(device=graph.device, name=_LOOPS, start=now, duration=one.start - now)
        now = max(now, one.start + one.duration)
