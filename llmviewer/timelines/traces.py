"""Traces of torch.profiler: kernels of a GPU, or operators of a CPU if there are none."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from math import inf, nan, prod
from pathlib import Path
from typing import Any, Final

from ..documents import MAX_EXACT_INTEGER
from ..errors import InputError, quoted
from .host_calls import CALLS, HostCall, HostCalls, Origin, parse_call, parse_wait, with_modules
from .launches import Operands, RecordedLaunch, RecordedLaunches, of_busiest, steps_of

_KERNEL: Final = "kernel"
_ON_GPU: Final = ("kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset")  # categories; older ones have capitals
_NAMED_ON_GPU: Final = "gpu_user_annotation"  # ranges named by the host, with their times on the device
_ON_CPU: Final = "cpu_op"
_NAMED_ON_CPU: Final = "user_annotation"
_PYTHON: Final = "python_function"
_MODULE: Final = "nn.Module: "  # before the class and number of a module, among the functions of Python
_MAX_MODULE_CHARS: Final = 300  # characters of a module's name or path
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


def of_trace(events: Iterable[Any], path: Path, *, rank: int | None = None) -> RecordedLaunches:
    """The launches in a trace, kernels with the operands of the operators that launched them.

    rank  rank of the device, as the file names it

    Raises InputError if an event is invalid.
    """
    launches_by_kind: dict[str, list[RecordedLaunch]] = {
        kind: [] for kind in (_KERNEL, _NAMED_ON_GPU, _ON_CPU, _NAMED_ON_CPU, _PYTHON)
    }
    origins: list[Origin] = []
    calls: dict[int, HostCall] = {}
    externals: dict[int, RecordedLaunch] = {}
    host_waits: list[tuple[float, float]] = []
    for number, event in enumerate(events, 1):
        category = str(event.get("cat", "")).lower() if isinstance(event, dict) else ""
        if category in CALLS:
            if parsed := parse_call(event):
                calls[parsed[0]] = parsed[1]
            if wait := parse_wait(event):
                host_waits.append(wait)
        kind = _KERNEL if category in _ON_GPU else category
        if kind not in launches_by_kind or (kind == _PYTHON and not _is_module(event)):
            continue
        launch = _launch(event, number, path, host=kind in (_ON_CPU, _NAMED_ON_CPU, _PYTHON))
        launches_by_kind[kind].append(launch)
        if kind == _KERNEL:
            origins.append(Origin.of(_args(event)))
        elif kind == _ON_CPU and (external := Origin.of(_args(event)).external) is not None:
            externals[external] = launch
    kernels, named = launches_by_kind[_KERNEL], launches_by_kind[_NAMED_ON_CPU]
    modules = [one._replace(name=one.name.removeprefix(_MODULE)) for one in launches_by_kind[_PYTHON]]
    if not kernels:
        work = with_modules(_work(launches_by_kind[_ON_CPU], named), modules)
        return of_busiest(work, steps=steps_of(named), host=True, rank=rank)
    host = HostCalls(calls, launches_by_kind[_ON_CPU], externals, modules)
    kernels = [
        one._replace(operands=product, module=module, called=call.start if call else nan)
        for one, product, module, call in zip(
            kernels, host.operands(origins), host.modules_of(origins), host.calls_of(origins), strict=True
        )
    ]
    steps = steps_of(launches_by_kind[_NAMED_ON_GPU]) or host.steps(kernels, origins, named)
    return of_busiest(kernels, steps=steps, host_waits=host_waits, rank=rank)


def _is_module(event: dict[str, Any]) -> bool:
    """Whether a function of Python is the call of a module, with the times that a cut one lacks."""
    name, timed = event.get("name"), isinstance(event.get("dur"), int | float)
    return timed and isinstance(name, str) and name.startswith(_MODULE) and len(name) <= _MAX_MODULE_CHARS


def _args(event: dict[str, Any]) -> dict[str, Any]:
    args = event.get("args")
    return args if isinstance(args, dict) else {}


def _launch(event: dict[str, Any], number: int, path: Path, *, host: bool) -> RecordedLaunch:
    """A launch; `number` is that of its event in the file.

    Raises InputError if it has no name or no finite times.
    """
    args = _args(event)
    device = f"{event.get('pid')}, {event.get('tid')}" if host else event.get("pid")
    stream = "" if host else args.get("stream", event.get("tid"))
    try:
        launch = RecordedLaunch(
            device=sys.intern(str(args.get("device", device))), name=sys.intern(str(event["name"])),
            start=1e-6 * float(event["ts"]), duration=1e-6 * float(event["dur"]),
            operands=_operands(args, number), stream=sys.intern(str(stream)), module=_hierarchy(args),
        )  # fmt: skip
    except (KeyError, OverflowError, TypeError, ValueError):
        launch = None
    if launch is None or not launch.valid:
        raise InputError(f"{path}: event {number}: a {event['cat']} must have name, ts and dur; got {quoted(event)}")
    return launch


def _hierarchy(args: dict[str, Any]) -> str:
    """The modules around an operator of TorchScript, as with_modules=True records them."""
    path = args.get("Module Hierarchy")
    return sys.intern(path) if isinstance(path, str) and len(path) <= _MAX_MODULE_CHARS else ""


def _operands(args: dict[str, Any], call: int) -> Operands | None:
    """The operands of an operator, as record_shapes=True records them; None if it has no two matrices.

    Weights are a matrix that shares its inner size with the activations before it: some operators name their result
    first. Tensors of more dimensions, one matrix per sequence or head, are no weights.
    """
    shapes, types = args.get("Input Dims"), args.get("Input type")
    if not isinstance(shapes, list) or not isinstance(types, list):
        return None
    matrices = [
        (shape, str(dtype)) for shape, dtype in zip(shapes, types, strict=False)
        if isinstance(shape, list) and len(shape) >= _MATRIX
        and all(isinstance(size, int) and 0 <= size <= MAX_EXACT_INTEGER for size in shape)
    ]  # fmt: skip
    for (rows, dtype), (weights, _) in pairwise(matrices):
        if len(weights) > _MATRIX:
            return Operands(rows=prod(rows[:-1]), weights=0, dtype=dtype, call=call)
        if rows[-1] in weights:
            return Operands(rows=prod(rows[:-1]), weights=prod(weights), dtype=dtype, call=call)
    return None


def _work(operators: Iterable[RecordedLaunch], named: Iterable[RecordedLaunch]) -> Iterator[RecordedLaunch]:
    """Operators that move data: the outermost ones, and parts of compiled graphs between them."""
    threads: dict[str, list[RecordedLaunch]] = {}
    for one in operators:
        if _DISPATCHED.fullmatch(one.name):
            threads.setdefault(one.device, []).append(one)
    compiled = [one for one in named if _COMPILED.match(one.name)]
    for thread, thread_operators in threads.items():
        outer = list(_outermost(thread_operators))
        yield from (one for one in outer if one.name.split("::")[1] not in _VIEWS)
        for graph in _outermost(one for one in compiled if one.device == thread):
            yield from _between(outer, graph)


def _outermost(launches: Iterable[RecordedLaunch]) -> Iterator[RecordedLaunch]:
    """Launches not within another, in order."""
    end_s = -inf
    for one in sorted(launches, key=lambda one: (one.start, -one.duration)):
        if one.start >= end_s:
            end_s = one.start + one.duration
            yield one


def _between(operators: Sequence[RecordedLaunch], graph: RecordedLaunch) -> Iterator[RecordedLaunch]:
    """The parts of a graph's time in which no operator runs."""
    now, end = graph.start, graph.start + graph.duration
    inside = [one for one in operators if now <= one.start < end]
    for one in (*inside, RecordedLaunch(device=graph.device, name=graph.name, start=end, duration=0.0)):
        if one.start > now:
            yield RecordedLaunch(device=graph.device, name=_LOOPS, start=now, duration=one.start - now)
        now = max(now, one.start + one.duration)
