"""A kernel by itself: work, lower bound and expected time at given sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, field, replace
from itertools import product
from math import inf
from typing import Any, Final, Unpack

import numpy as np

from .. import arguments
from ..architectures.blocks.attention import scored
from ..architectures.blocks.feed_forward import Experts
from ..architectures.blocks.parts import HIDDEN, Parts
from ..devices.files import loaded
from ..devices.hardware import Hardware
from ..documents import MAX_EXACT_INTEGER
from ..errors import InputError, suggest
from ..expectation.expected import ExpectedPass
from ..forms import Num
from ..graph import Block, Graph
from ..model import Model
from ..operators.attention import Heads
from ..operators.base import Operator
from ..operators.elementwise import Permute
from ..operators.fused import Fused
from ..operators.masks import Causal
from ..options import KernelOptions, document_options
from ..precision import NAMED
from ..records import frozen
from ..resource import matrix
from ..roofline import plan
from ..setting import Setting, opened
from ..workload import Workload

SCHEMA_VERSION: Final = 1  # of estimates as JSON
_Sizes = Mapping[str, int]
_MAX_ESTIMATES: Final = 10_000  # estimates of one call
_MAX_WITH_ZERO: Final[Mapping[str, float]] = {"window": inf, "gated": 1}  # sizes that may be 0, with their maximum


@frozen(kw_only=True)
class KernelKind:
    """A kernel that kernel() knows.

    what      what it computes
    needed    names of required sizes
    usual     other sizes with their defaults: a number, or the name of another size
    varied    sizes of the pass; the others are of weights and heads
    make      operators of the kernel, from Parts and sizes
    workload  the pass, from sizes (numbers or arrays)
    """

    what: str
    needed: tuple[str, ...]
    usual: Mapping[str, int | str] = field(default_factory=dict)
    varied: tuple[str, ...]
    make: Callable[[Parts, _Sizes], tuple[Operator, ...]]
    workload: Callable[[Mapping[str, Num]], Workload]


@frozen(kw_only=True)
class KernelEstimate:
    """Estimate of one kernel launch. [OP], [B], [s]

    bound              resource that sets the lower bound: memory, compute or link
    dtype              type it is computed in
    bound_time_s       with units at the highest clock of the device, and every tensor in memory at the start
    datasheet_time_s   the same at datasheet rates
    repeated_time_s    the bound of a launch that finds its tensors in the last cache, as far as they fit
    expected_time_s    expected time of a measured library's kernel; None if unknown
    expected_low_s, expected_high_s  80 % interval of measured times
    cache              name of the last cache before the memory; "" if unknown
    cache_bytes        its capacity; 0 if unknown [B]
    cache_bytes_per_s  its bandwidth; None if unknown, and repeated_time_s then counts none [B/s]
    latency            whether launch and other fixed costs dominate the expected time
    source             source of the expected time
    """

    kernel: str
    hardware: str
    quant: str
    sizes: Mapping[str, int]
    ops: float
    bytes: float
    intensity: float
    bound: str
    dtype: str
    bound_time_s: float
    datasheet_time_s: float
    repeated_time_s: float
    cache: str
    cache_bytes: float
    cache_bytes_per_s: float | None
    attainable_ops_per_s: float
    expected_time_s: float | None
    expected_low_s: float | None
    expected_high_s: float | None
    latency: bool
    source: str

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**asdict(self), "sizes": dict(self.sizes)}


@document_options(KernelOptions)
def kernel(
    kernel: str,
    hardware: str | Hardware | Setting,
    sizes: Mapping[str, int | Sequence[int]],
    **options: Unpack[KernelOptions],
) -> tuple[KernelEstimate, ...]:
    """Bound and expected time of one launch, for every combination of sizes; the last size of KINDS varies fastest.

    kernel    a key of KINDS, such as "gemm"
    sizes     by name, as in KINDS; each a number or several

    A Setting may replace hardware and options, which are as in analyze(); without `quant`, all is in 16 bits.
    Activations arrive in 16 bits, so the time to quantize them counts.

    Raises InputError if a size is missing, unknown or out of range, or the device is unknown.
    """
    if isinstance(hardware, Setting):
        _, hardware, options = opened(hardware, None, options, KernelOptions)
    arguments.check_types(kernel=kernel, hardware=hardware)
    values_by_option = arguments.with_defaults(options, KernelOptions)
    quant, library, profiles = values_by_option["quant"], values_by_option["library"], values_by_option["profiles"]
    kind = _kind(kernel)
    listed = _listed(kernel, kind, sizes)
    device = loaded(hardware, values_by_option["hardware_set"])
    estimates: list[KernelEstimate] = []
    fixed = [name for name in listed if name not in kind.varied]
    varied = [name for name in listed if name in kind.varied]
    for values in product(*(listed[name] for name in fixed)):
        fixed_sizes = dict(zip(fixed, values, strict=True))
        points = [dict(zip(varied, each, strict=True)) for each in product(*(listed[name] for name in varied))]
        varied_sizes = {name: np.array([point[name] for point in points], dtype=float) for name in varied}
        setting = Setting.of(
            _model(kernel, kind, fixed_sizes, device), device, quant=quant, library=library, profiles=profiles
        )
        named = quant or setting.model.format.name
        estimates += _estimates(
            setting, named, kind.workload(varied_sizes), [_resolved(kind, fixed_sizes | point) for point in points]
        )
    places = {name: {value: place for place, value in enumerate(values)} for name, values in listed.items()}
    return tuple(sorted(estimates, key=lambda each: [order[each.sizes[name]] for name, order in places.items()]))


def check_sizes(kernel: str, names: Iterable[str]) -> None:
    """Raises InputError if the kernel is unknown or has no size of one of `names`."""
    kind = _kind(kernel)
    size_names = (*kind.needed, *kind.usual)
    for name in names:
        if name not in size_names:
            quant = " (formats are --quant)" if name in ("dtype", "quant") else ""
            raise InputError(f"{kernel}: no size {name!r}; {suggest(name, size_names)}{quant}")


def _kind(kernel: str) -> KernelKind:
    if kernel not in KINDS:
        raise InputError(f"no kernel {kernel!r}; {suggest(kernel, KINDS)}")
    return KINDS[kernel]


def _listed(kernel: str, kind: KernelKind, sizes: Mapping[str, int | Sequence[int]]) -> dict[str, tuple[int, ...]]:
    if not isinstance(sizes, Mapping):
        raise InputError(f"{kernel}: sizes must be a mapping of names to numbers; got {sizes!r}")
    check_sizes(kernel, sizes)
    size_names = (*kind.needed, *kind.usual)
    missing = [name for name in kind.needed if name not in sizes]
    if missing:
        missing_options = " ".join(f"{name}=VALUES" for name in missing)
        raise InputError(f"{kernel}: sizes {', '.join(kind.needed)} are required; give {missing_options}")
    values_by_size: dict[str, tuple[int, ...]] = {}
    for name in size_names:
        value_or_values = sizes.get(name, kind.usual.get(name, 0))
        if name not in sizes and isinstance(value_or_values, str):  # equal to another size: _resolved()
            continue
        plain: Any = (
            value_or_values.tolist() if isinstance(value_or_values, np.ndarray | np.integer) else value_or_values
        )
        values = tuple(plain) if isinstance(plain, Sequence) and not isinstance(plain, str) else (plain,)
        minimum = 0 if name in _MAX_WITH_ZERO else 1
        for value in values:
            if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
                raise InputError(f"{kernel}: {name} must be a whole number of at least {minimum}; got {value!r}")
            if value > MAX_EXACT_INTEGER:
                raise InputError(
                    f"{kernel}: {name} must be at most {MAX_EXACT_INTEGER}, the largest that is counted exactly"
                )
            if value > _MAX_WITH_ZERO.get(name, value):
                raise InputError(f"{kernel}: {name} must be 0 or 1; got {value}")
        if len(set(values)) < len(values) or not values:
            got = ", ".join(map(str, values)) or "none"
            raise InputError(f"{kernel}: {name} must have one value or several different ones; got {got}")
        values_by_size[name] = values
    count = int(np.prod([float(len(values)) for values in values_by_size.values()]))
    if count > _MAX_ESTIMATES:
        raise InputError(f"{kernel}: combinations of sizes must be at most {_MAX_ESTIMATES}; got {count}")
    return values_by_size


def _resolved(kind: KernelKind, sizes: _Sizes) -> dict[str, int]:
    """All sizes, including those whose default is another size."""
    as_another = {
        name: sizes[other] for name, other in kind.usual.items() if isinstance(other, str) and name not in sizes
    }
    return {name: {**sizes, **as_another}[name] for name in (*kind.needed, *kind.usual)}


def _model(kernel: str, kind: KernelKind, sizes: _Sizes, device: Hardware) -> Model:
    half = NAMED["bf16" if matrix("bf16") in device.rates or matrix("fp16") not in device.rates else "fp16"]
    operators = kind.make(Parts(format=half), _resolved(kind, {**dict.fromkeys(kind.varied, 1), **sizes}))
    block = Block(name=kernel, operators=operators, input=HIDDEN, output=operators[-1].outputs[0].name, layers=(0,))
    return Model(name=kernel, title=kernel, model_type=kernel, graph=Graph((block,)), format=half)


def _estimates(
    setting: Setting, quant: str, workload: Workload, sizes: Sequence[Mapping[str, int]]
) -> Iterator[KernelEstimate]:
    rows = setting.plan.estimate(workload).operators
    graph = setting.graph if len(rows) == 1 else _fused(setting.graph)
    (launch,) = setting.planned(graph).estimate(workload).operators
    (rated,) = plan(graph, setting.linked.at_datasheet()).estimate(workload).operators
    if (max_ops := np.max(launch.ops)) > MAX_EXACT_INTEGER:
        must = f"OPs must be at most {MAX_EXACT_INTEGER}, the largest that is counted exactly"
        raise InputError(f"{setting.model.name}: {must}; got {max_ops:.3g}")
    expected_pass = setting.kernels.expect(rows, workload) if setting.kernels else None
    count = len(sizes)

    def each(values: Any) -> list[Any]:
        listed: list[Any] = np.broadcast_to(np.asarray(values), (count,)).tolist()
        return listed

    times = _times(expected_pass, count)
    cache, capacity = setting.hardware.last_cache
    reads = setting.hardware.numbers.get(f"{cache.lower()}.bandwidth")
    limits = np.broadcast_to(np.asarray(launch.limiting, dtype=object), (count,))
    bounds = (launch.time_s, rated.time_s, launch.repeated_s(setting.hardware))
    columns = (launch.ops, launch.bytes, launch.intensity, *bounds, launch.attainable, *times)
    for point, limit, (ops, moved, intensity, bound_s, at_datasheet, repeated, attainable, *expected, latency) in zip(
        sizes, limits, zip(*map(each, columns), strict=True), strict=True
    ):
        times_or_none = [None if np.isnan(time) else time for time in expected]
        yield KernelEstimate(
            kernel=setting.model.name, hardware=setting.hardware.name, quant=quant, sizes=point, ops=ops,
            bytes=moved, intensity=intensity, bound=limit.bound, dtype=launch.compute.dtype, bound_time_s=bound_s,
            datasheet_time_s=at_datasheet, repeated_time_s=repeated,
            cache=cache, cache_bytes=capacity, cache_bytes_per_s=reads,
            attainable_ops_per_s=attainable, expected_time_s=times_or_none[0], expected_low_s=times_or_none[1],
            expected_high_s=times_or_none[2], latency=latency, source=expected_pass.source if expected_pass else "",
        )  # fmt: skip


def _times(expected_pass: ExpectedPass | None, count: int) -> tuple[Num, Num, Num, Num]:
    """Expected, low, high and whether fixed costs are most of it; nan where only the bound is known."""
    if not expected_pass or not expected_pass.modelled:
        unknown = np.full(count, np.nan)
        return unknown, unknown, unknown, np.zeros(count, dtype=bool)
    total = expected_pass.total
    latency = np.any([np.broadcast_to(launch.latency, (count,)) for launch in expected_pass.launches], axis=0)
    return total.expected, total.low, total.high, latency


def _fused(graph: Graph) -> Graph:
    """All that a block does as one launch, which keeps on the chip what is between."""
    (block,) = graph.blocks
    fused = Fused.of(block.operators, kept_outputs={block.output})
    return Graph((replace(block, operators=(fused,)),))


def _gemm(parts: Parts, sizes: _Sizes) -> tuple[Operator, ...]:
    return (parts.project("gemm", parts.tensor(HIDDEN, sizes["K"]), sizes["N"]),)


def _attention(parts: Parts, sizes: _Sizes) -> tuple[Operator, ...]:
    q_heads, kv_heads, width, value = (sizes[name] for name in ("q_heads", "kv_heads", "head_dim", "v_head_dim"))
    if q_heads % kv_heads:
        raise InputError(f"attention: q_heads must be a multiple of kv_heads; got {q_heads} and {kv_heads}")
    if value > width:
        raise InputError(f"attention: v_head_dim must be at most head_dim; got {value} and {width}")
    mask = Causal(sizes["window"]) if sizes["window"] else Causal()
    heads = Heads(num_heads=q_heads, num_kv_heads=kv_heads, head_dim=width, value_dim=value, mask=mask)
    q = parts.tensor(HIDDEN, heads.q_width)
    if kv_heads == 1 and value < width:  # latent attention, absorbed: values are the first elements of the key
        latent = parts.cache("latent_cache", value, mask)
        return scored(parts, heads, q, (latent, parts.cache("rope_cache", width - value, mask)), latent)
    k, v = (parts.cache(f"{name}_cache", kv_heads * each, mask) for name, each in (("k", width), ("v", value)))
    return scored(parts, heads, q, (k,), v)


def _attended(sizes: Mapping[str, Num]) -> Workload:
    past = np.asarray(sizes["kv_len"]) - sizes["q_len"]
    if np.any(past < 0):
        raise InputError("attention: kv_len must be at least q_len, as it includes the tokens of q_len")
    return Workload.chunk(batch=sizes["batch"], chunk=sizes["q_len"], past=past)


def _moe(parts: Parts, sizes: _Sizes) -> tuple[Operator, ...]:
    if sizes["topk"] > sizes["experts"]:
        raise InputError(f"moe: topk must be at most experts; got {sizes['topk']} and {sizes['experts']}")
    operators = Experts(
        experts=sizes["experts"], chosen=sizes["topk"], inner=sizes["inter"], gated=bool(sizes["gated"])
    ).operators(parts, parts.tensor(HIDDEN, sizes["hidden"]))
    first = next(place for place, op in enumerate(operators) if isinstance(op, Permute))
    return operators[first:]


def _norm(parts: Parts, sizes: _Sizes) -> tuple[Operator, ...]:
    return (parts.norm("norm", parts.tensor(HIDDEN, sizes["cols"])),)


def _activation(parts: Parts, sizes: _Sizes) -> tuple[Operator, ...]:
    return (parts.activate("activation", "silu", *(parts.tensor(name, sizes["cols"]) for name in (HIDDEN, "up"))),)


def _add(parts: Parts, sizes: _Sizes) -> tuple[Operator, ...]:
    return (parts.add("add", *(parts.tensor(name, sizes["cols"]) for name in (HIDDEN, "residual"))),)


def _tokens(name: str) -> Callable[[Mapping[str, Num]], Workload]:
    return lambda sizes: Workload.prefill(batch=1, prompt=sizes[name])


KINDS: Final[Mapping[str, KernelKind]] = {
    "gemm": KernelKind(
        what="y[M, N] = x[M, K] w[N, K]^T", needed=("M", "N", "K"), varied=("M",), make=_gemm, workload=_tokens("M")
    ),
    "attention": KernelKind(
        what="causal attention of the last q_len of kv_len tokens of a sequence; one key head with narrower values is "
        "MLA, absorbed",
        needed=("kv_len", "q_heads", "head_dim"),
        usual={"batch": 1, "q_len": 1, "kv_heads": "q_heads", "v_head_dim": "head_dim", "window": 0},
        varied=("batch", "q_len", "kv_len"),
        make=_attention,
        workload=_attended,
    ),
    "moe": KernelKind(
        what="topk of the experts for each token, each a gated MLP, in one kernel; no router",
        needed=("tokens", "hidden", "inter", "experts", "topk"),
        usual={"gated": 1},
        varied=("tokens",),
        make=_moe,
        workload=_tokens("tokens"),
    ),
    "norm": KernelKind(
        what="RMSNorm of rows", needed=("rows", "cols"), varied=("rows",), make=_norm, workload=_tokens("rows")
    ),
    "activation": KernelKind(
        what="silu(x) * y", needed=("rows", "cols"), varied=("rows",), make=_activation, workload=_tokens("rows")
    ),
    "add": KernelKind(what="x + y", needed=("rows", "cols"), varied=("rows",), make=_add, workload=_tokens("rows")),
}
