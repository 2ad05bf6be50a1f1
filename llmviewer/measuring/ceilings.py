"""Measured ceilings of a machine: bandwidths, matrix rates and launch latencies."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from math import ceil
from time import perf_counter
from typing import Any, Final

from ..expectation.formats import TYPES
from ..records import frozen
from .timing import Call, Clock, TimingSample, fastest

_MIN_STREAM_BYTES: Final = 2**16  # smallest stream [B]
_MEMORY_STREAM_RATIO: Final = 4  # size of a stream over that of the last cache, from which it measures memory
_MAX_STREAM_BYTES: Final = 2**31  # largest stream on a GPU; its start and end are a small part of a launch [B]
_STREAM_TENSORS: Final = {
    "read": 1,
    "write": 1,
    "copy": 2,
    "triad": 3,
}  # tensors, as STREAM counts them (McCalpin 1995)
_SIDES: Final = {"cpu": (1024, 2048), "cuda": (4096, 8192, 16384)}  # of square matrices
_LAUNCHES: Final = 1000
_LINK_BYTES: Final = 2**28


@frozen(kw_only=True)
class Ceiling:
    """Measured ceiling of a device.

    what       such as "copy", "matrix bf16", "launch in a graph", "host to device"
    size       bytes of a stream, or rows of a square matrix; 0 if it has no size
    unit       unit of value: "B/s", "OP/s" or "s"
    disturbed  whether other programs used the cores in every repetition; the true ceiling may be higher
    """

    what: str
    size: int
    value: float
    unit: str
    disturbed: bool = False

    @property
    def name(self) -> tuple[str, int]:
        return self.what, self.size


def disturbed(measured_ceilings: Collection[Ceiling]) -> dict[tuple[str, int], None]:
    """Names of ceilings that were disturbed in every measurement, in order."""
    undisturbed = {one.name for one in measured_ceilings if not one.disturbed}
    return {one.name: None for one in measured_ceilings if one.name not in undisturbed}


def ceilings(
    device: str,
    clock: Clock,
    *,
    cache: float,
    dtypes: Sequence[str],
    limit_s: float,
    known_names: Collection[tuple[str, int]] = (),
) -> Iterator[Ceiling]:
    """Measures the ceilings of "cpu" or "cuda", one by one.

    cache    size of the last cache [B]
    dtypes   types of matrix products
    limit_s  time limit for each ceiling [s]
    known_names  names of ceilings to skip
    """
    timed = _Timed(clock=clock, limit_s=limit_s, known=known_names)
    yield from _launches(device, timed)
    yield from _streams(device, timed, cache)
    for dtype in dtypes:
        for n in _SIDES[device]:
            with suppress(RuntimeError):  # torch has no such product on this device
                if call := _product(device, dtype, n):
                    yield from timed(f"matrix {dtype}", n, call, work=2 * n**3, unit="OP/s")
    if device == "cuda":
        with suppress(RuntimeError):  # no pinned memory
            yield from _links(timed)


@frozen(kw_only=True)
class _Timed:
    """Measures the ceiling of a call, unless it is known."""

    clock: Clock
    limit_s: float
    known: Collection[tuple[str, int]]

    def __call__(self, name: str, size: int, call: Call, *, work: float, unit: str) -> Iterator[Ceiling]:
        if (name, size) not in self.known:
            call()
            shortest = fastest(self.clock.sampler((call,)), self.limit_s)
            yield Ceiling(what=name, size=size, value=work / shortest.seconds, unit=unit, disturbed=shortest.disturbed)

    def seconds(self, name: str, sample: Callable[[], TimingSample]) -> Iterator[Ceiling]:
        if (name, 0) not in self.known:
            shortest = fastest(sample, self.limit_s)
            yield Ceiling(what=name, size=0, value=shortest.seconds, unit="s", disturbed=shortest.disturbed)


def _streams(device: str, timed: _Timed, cache: float) -> Iterator[Ceiling]:
    import torch

    random_numbers = torch.randn(_MIN_STREAM_BYTES // 4, device=device)
    for size in sizes(device, cache):
        numbers = random_numbers.repeat(size // _MIN_STREAM_BYTES)
        for name, tensors in _STREAM_TENSORS.items():
            a, *others = numbers[: numbers.numel() // tensors * tensors].chunk(tensors)
            moved = 4 * tensors * a.numel()
            yield from timed(name, moved, _stream(name, a, *others), work=moved, unit="B/s")


def sizes(device: str, cache: float) -> list[int]:
    """Sizes of streams: each four times the one before, the last just large enough for all streams to measure memory;
    on a GPU also _MAX_STREAM_BYTES. [B]
    """
    last = max(ceil(_MEMORY_STREAM_RATIO * cache / _MIN_STREAM_BYTES), 1) * _MIN_STREAM_BYTES
    stream_sizes = [_MIN_STREAM_BYTES]
    while stream_sizes[-1] < last:
        stream_sizes.append(min(4 * stream_sizes[-1], last))
    if device == "cuda" and last < _MAX_STREAM_BYTES:
        stream_sizes.append(_MAX_STREAM_BYTES)
    return stream_sizes


def _stream(name: str, a: Any, *others: Any) -> Call:
    import torch

    if name == "read":
        return a.sum  # type: ignore[no-any-return]
    if name == "write":
        return partial(a.fill_, 1.5)
    if name == "copy":
        (source,) = others
        return copying(source, a)
    b, c = others
    return partial(torch.add, b, c, alpha=3.0, out=a)


def copying(source: Any, destination: Any) -> Call:
    """Reads as many bytes as it writes, on a GPU by a kernel: in a graph, copies of 1 and 2 GB by the driver moved 2.8
    TB/s on an H200, a kernel's 4.2.
    """
    import torch

    return partial(torch.neg, source, out=destination) if destination.is_cuda else partial(destination.copy_, source)


def _product(device: str, dtype: str, n: int) -> Call | None:
    """Product of square random matrices; None if torch has none of this type."""
    import torch

    x, y = (torch.randn(n, n, device=device) for _ in range(2))
    if dtype in ("bf16", "fp16", "fp32", "tf32"):
        float_dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(dtype, torch.float32)
        a, b = x.to(float_dtype), y.to(float_dtype)
        call: Call = lambda: a @ b  # noqa: E731
        return call if dtype != "tf32" else lambda: _in_tf32(call)
    if device == "cpu":
        return None
    if dtype == "fp8":
        one, a, b = torch.ones((), device=device), x.to(torch.float8_e4m3fn), y.to(torch.float8_e4m3fn).T
        mm = partial(torch._scaled_mm, out_dtype=torch.bfloat16, use_fast_accum=True)  # noqa: SLF001 - no public name
        return lambda: mm(a, b, one, one)  # the units' own sums; more exact ones take other units, too
    if dtype == "int8":
        a, b = (z.mul(40).clamp(-127, 127).to(torch.int8) for z in (x, y.T))
        return lambda: torch._int_mm(a, b)  # noqa: SLF001
    return None


def _in_tf32(call: Call) -> Any:
    import torch

    matmul = torch.backends.cuda.matmul
    matmul.allow_tf32, before = True, matmul.allow_tf32
    try:
        return call()
    finally:
        matmul.allow_tf32 = before


def _launches(device: str, timed: _Timed) -> Iterator[Ceiling]:
    """Measures the launch latency of adding one number."""
    import torch

    x = torch.zeros(1, device=device)

    def call() -> Any:
        return x.add_(1.0)

    call()
    if device == "cpu":
        yield from timed.seconds("launch", timed.clock.sampler((call,)))
        return

    def in_a_row() -> TimingSample:
        torch.cuda.synchronize()
        start = perf_counter()
        for _ in range(_LAUNCHES):
            call()
        torch.cuda.synchronize()
        return TimingSample((perf_counter() - start) / _LAUNCHES)

    def awaited() -> TimingSample:
        start = perf_counter()
        call()
        torch.cuda.synchronize()
        return TimingSample(perf_counter() - start)

    yield from timed.seconds("launch", in_a_row)
    yield from timed.seconds("launch and wait", awaited)
    yield from timed.seconds("launch in a graph", timed.clock.sampler((call,)))


def _links(timed: _Timed) -> Iterator[Ceiling]:
    import torch

    host = torch.empty(_LINK_BYTES, dtype=torch.uint8, pin_memory=True)
    on_device = torch.empty(_LINK_BYTES, dtype=torch.uint8, device="cuda")
    ways = {"host to device": (on_device, host), "device to host": (host, on_device)}
    for name, (destination, source) in ways.items():
        call = partial(destination.copy_, source, non_blocking=True)
        yield from timed(name, _LINK_BYTES, call, work=_LINK_BYTES, unit="B/s")


def rates(
    measured_ceilings: Sequence[Ceiling], rows: Sequence[Mapping[str, Any]] = (), *, kind: str, cache: float
) -> dict[str, float]:
    """Measured rates by the keys of a hardware file. [B/s, OP/s]

    A CPU has its matrix rates from vector units, as far as torch tells; a GPU's fp32 is one of vector units.

    rows  measured kernels: what a product of theirs reached raises the ceiling of its type
    """
    named: dict[str, float] = {}
    longest = {
        one.what: max(other.size for other in measured_ceilings if other.what == one.what) for one in measured_ceilings
    }
    for one in measured_ceilings:
        key = _key(one, kind, cache)
        if key and not (one.what in _STREAM_TENSORS and one.size < longest[one.what]):
            named[key] = max(one.value, named.get(key, 0.0))
    for row in rows:
        key = _unit(TYPES[row["dtype"]].arithmetic, kind) if row["family"] == "gemm" else ""
        if key in named:
            named[key] = max(named[key], 2.0 * row["M"] * row["N"] * row["K"] / (row["time_us"] * 1e-6))
    return named


def disturbed_rates(measured_ceilings: Sequence[Ceiling], *, kind: str, cache: float) -> frozenset[str]:
    """Keys of rates() that rest on a ceiling which other programs disturbed in every measurement: lower limits."""
    names = disturbed(measured_ceilings)
    return frozenset(filter(None, (_key(one, kind, cache) for one in measured_ceilings if one.name in names)))


def _key(one: Ceiling, kind: str, cache: float) -> str:
    if one.what in _STREAM_TENSORS:
        return "memory.bandwidth" if one.size >= _MEMORY_STREAM_RATIO * cache * 0.99 else ""
    if one.what.startswith("matrix "):
        return _unit(one.what.removeprefix("matrix "), kind)
    return "host.bandwidth" if one.what == "host to device" else ""


def _unit(dtype: str, kind: str) -> str:
    return f"{'vector' if kind == 'cpu' or dtype == 'fp32' else 'matrix'}.{dtype}"
