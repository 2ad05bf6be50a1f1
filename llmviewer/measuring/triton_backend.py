"""The Triton kernels of this package, at shapes of models."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from ..kernels import kernel_names, load_kernel
from ..records import frozen
from .backend import COMPARED_ELEMENTS, LaunchError, compare
from .problems import Problem
from .timing import Call, Clock, GpuClock

if TYPE_CHECKING:
    from ..kernels.base import Case, Kernel, Target

_PAGE: Final = 64  # tokens per page of a cache
_CHECKED_CASES: Final = 2  # cases checked per kernel
_CHECK_PROCESSORS: Final = 3  # multiprocessors assumed in a check, so that persistent programs take many tiles
_GEMM: Final[Mapping[str, str]] = {
    "bf16": "gemm", "fp16": "gemm", "sq": "gemm", "int4_wo": "gemm_w4a16", "int8_wo": "gemm_w8a16",
    "w4a16_mxfp4": "gemm_mxfp4",
}  # fmt: skip
# Families whose kernels run problems of models, or whole layers; those of all others are measured at full size.
_OF_MODELS: Final = (
    "stream", "gemm", "moe", "quantize", "softmax", "rope", "activation", "embedding", "attention", "layer", "scan",
    "permute",
)  # fmt: skip
_ROWS: Final = ("rows", "tokens", "M", "B")  # names of the size that is the number of rows
_GROUP: Final = 128  # elements of k per scale
_Sizes = Mapping[str, int]


def _norm_quantize(sizes: _Sizes, group: int) -> _Sizes:
    return {"M": sizes["rows"], "N": sizes["cols"], "group": group, "residual": 1}


def _chosen(sizes: _Sizes) -> _Sizes:
    return {"M": sizes["rows"], "K": sizes["cols"], "experts": sizes["experts"], "chosen": sizes["topk"]}


def _mamba2(sizes: _Sizes) -> _Sizes:
    return {
        "heads": sizes["v_heads"], "dim": sizes["v_dim"], "state": sizes["k_dim"], "groups": sizes["k_heads"],
    }  # fmt: skip


def _delta(sizes: _Sizes) -> _Sizes:
    return {
        "heads": sizes["v_heads"], "key_heads": sizes["k_heads"], "key_dim": sizes["k_dim"], "dim": sizes["v_dim"],
        **({"channels": 1} if sizes.get("channels") else {}),
    }  # fmt: skip


_ELEMENTWISE: Final[Mapping[str, tuple[str, Callable[[_Sizes], _Sizes]]]] = {  # kernels and their own names of sizes
    "norm": ("rms_norm", lambda s: {"M": s["rows"], "N": s["cols"]}),
    "add_norm": ("rms_norm", lambda s: {"M": s["rows"], "N": s["cols"], "residual": 1}),
    "add_norm_quantize": ("norm_quantize", lambda s: _norm_quantize(s, s["cols"])),
    "add_norm_quantize_group": ("norm_quantize", lambda s: _norm_quantize(s, _GROUP)),
    "activation": ("silu_and_mul", lambda s: {"M": s["rows"], "N": s["cols"]}),
    "quantize": ("quantize", lambda s: {"M": s["rows"], "K": s["cols"], "group": s["cols"]}),
    "softmax": ("softmax", lambda s: {"B": 1, "heads": 1, "q": s["rows"], "kv": s["cols"]}),
    "embedding": ("embedding", lambda s: {"tokens": s["rows"], "vocab": s["table"], "width": s["cols"]}),
    "rope": ("rope", lambda s: {
        "tokens": s["rows"], "heads": s["heads"], "kv_heads": s["kv_heads"], "dim": s["dim"], "rotary": s["dim"],
    }),
    "permute": ("permute", _chosen),
    "combine": ("combine", _chosen),
}  # fmt: skip
_SCANS: Final[Mapping[str, tuple[str, Callable[[_Sizes], _Sizes]]]] = {
    "mamba2_scan_prefill": ("mamba2_scan", lambda s: {"B": s["batch"], "T": s["q_len"], **_mamba2(s)}),
    "mamba2_scan_step": ("mamba2_update", lambda s: {"B": s["batch"], **_mamba2(s)}),
    "gdn_scan_prefill": ("gated_delta_scan", lambda s: {"B": s["batch"], "T": s["q_len"], **_delta(s)}),
    "kda_scan_prefill": ("gated_delta_scan", lambda s: {"B": s["batch"], "T": s["q_len"], **_delta(s)}),
    "delta_scan_step": ("gated_delta_update", lambda s: {"B": s["batch"], **_delta(s)}),
}
_EIGHT_BITS: Final = ("quantize", "norm_quantize")  # kernels whose data type is that of codes


@frozen
class _KernelPart:
    """A kernel with data type and sizes."""

    kernel: str
    dtype: str
    sizes: Mapping[str, int]


def parts(problem: Problem) -> tuple[_KernelPart, ...]:
    """The kernels that solve a problem, one after another; empty if there are none."""
    sizes = dict(problem.sizes)
    if problem.moved:
        own_sizes = {name.removeprefix("size_"): size for name, size in sizes.items() if name.startswith("size_")}
        return (_KernelPart(problem.op, problem.dtype, own_sizes),)
    if problem.family == "gemm":
        return tuple(_gemm(problem.dtype, sizes))
    if problem.dtype not in ("bf16", "fp16"):
        return ()
    return tuple(_others(problem, sizes))


def _gemm(dtype: str, sizes: Mapping[str, int]) -> Iterator[_KernelPart]:
    """fp8 GEMM with quantization of activations, whose time tables of measurements include."""
    m, k = sizes["M"], sizes["K"]
    if dtype in ("fp8", "fp8_block"):
        yield _KernelPart("quantize", "fp8_e4m3", {"M": m, "K": k, "group": k if dtype == "fp8" else _GROUP})
        yield _KernelPart("gemm" if dtype == "fp8" else "gemm_fp8_block", "fp8_e4m3", sizes)
    elif m == 1 and dtype in ("bf16", "fp16"):
        yield _KernelPart("gemv", dtype, sizes)
    elif dtype in _GEMM:
        group = {"group": _GROUP} if dtype == "int4_wo" else {}
        kernel_dtype = {"sq": "int8", "fp16": "fp16"}.get(dtype, "bf16")
        yield _KernelPart(_GEMM[dtype], kernel_dtype, {**sizes, **group})


def _others(problem: Problem, sizes: Mapping[str, int]) -> Iterator[_KernelPart]:
    if problem.family == "moe" and sizes["gated"]:
        experts = {"experts": sizes["experts"], "chosen": sizes["topk"]}
        tokens = {"M": sizes["tokens"], "N": sizes["inter"], "K": sizes["hidden"]}
        yield _KernelPart("fused_moe", problem.dtype, tokens | experts)
    elif problem.family.startswith("attention"):
        yield from _attention(problem, sizes)
    elif problem.op in _ELEMENTWISE:
        name, arguments = _ELEMENTWISE[problem.op]
        yield _KernelPart(name, "fp8_e4m3" if name in _EIGHT_BITS else problem.dtype, arguments(sizes))
    elif problem.family == "scan":
        name, arguments = _SCANS[problem.op]
        yield _KernelPart(name, problem.dtype, arguments(sizes))


def _attention(problem: Problem, sizes: Mapping[str, int]) -> Iterator[_KernelPart]:
    dtype, kv_dtype = problem.dtype, problem.kv_dtype
    common = {"B": sizes["batch"], "heads": sizes["q_heads"], "kv": sizes["kv_len"]}
    if problem.op == "mla_absorb" and kv_dtype == dtype:
        latent = {"latent": sizes["v_head_dim"], "rope": sizes["head_dim"] - sizes["v_head_dim"]}
        yield _KernelPart("mla_decode", dtype, {**common, **latent, "page": _PAGE})
    if problem.op != "gqa":
        return
    common |= {"kv_heads": sizes["kv_heads"], "dim": sizes["head_dim"]}
    common |= {"window": sizes["window"]} if sizes["window"] else {}
    if problem.family == "attention_prefill":
        yield _KernelPart("flash_attention", dtype, common | {"q": sizes["q_len"]})
    elif kv_dtype in (dtype, "fp8"):
        yield _KernelPart(
            "decode_attention", dtype, common | {"page": _PAGE} | ({"kv_bits": 8} if kv_dtype == "fp8" else {})
        )


class TritonBackend:
    """Triton kernels on "cuda"; on "cpu" in Triton's interpreter, for tests of results only.

    Raises InputError where triton is not installed.
    """

    framework = "triton"

    def __init__(self, device: str = "cuda", clock: Clock | None = None) -> None:
        load_kernel("copy")
        import torch
        import triton

        from ..kernels.base import Target

        self._device, self._target = device, Target.of(torch.device(device))
        self.version = str(triton.__version__)
        self.versions: Mapping[str, str] = {"torch": str(torch.__version__), "triton": self.version}
        self.clock: Clock = clock or GpuClock()

    def own(self) -> Sequence[Problem]:
        """Kernels for which models give no problem, at full size."""
        is_included = {name for name, _ in (*_ELEMENTWISE.values(), *_SCANS.values())}
        kernels = (load_kernel(name) for name in kernel_names() if name not in is_included)
        others = (kernel for kernel in kernels if kernel.family not in _OF_MODELS)
        return [own_problem(kernel, case) for kernel in others for case in kernel.full_size]

    def kernels(self, problem: Problem) -> Sequence[str]:
        kernel_parts = [load_kernel(part.kernel) for part in parts(problem) if part.kernel in kernel_names()]
        cases = [_case(part) for part in parts(problem)]
        able = all(k.min_sm(case) <= self._target.sm for k, case in zip(kernel_parts, cases, strict=True))
        return (" ".join(kernel.name for kernel in kernel_parts),) if kernel_parts and able else ()

    def check(self, problem: Problem, kernel: str) -> None:  # noqa: ARG002 - the problem tells
        for part in parts(problem):
            kernels = load_kernel(part.kernel)
            alike = [case for case in kernels.cases if case.get("kv_bits") == part.sizes.get("kv_bits", 0)]
            loaded_kernel = [case for case in alike if case.dtype == part.dtype]
            if (
                not loaded_kernel and self._device == "cuda"
            ):  # the interpreter cannot do all of bf16, which most cases are not of
                loaded_kernel = [replace(case, dtype=part.dtype) for case in alike if case.dtype == "fp16"]
            for case in (loaded_kernel or alike)[:_CHECKED_CASES]:
                check_case(kernels, case, self._device, self.clock)

    def tilings(self, problem: Problem, kernel: str) -> Sequence[Any]:  # noqa: ARG002
        """Tilings of the last kernel, which takes most time; compiled in parallel where possible."""
        part = parts(problem)[-1]
        kernels: Sequence[Any] = load_kernel(part.kernel).tilings(self._target, _case(part))
        if self._device == "cuda" and kernels:
            _compile(part, self._target, kernels)
        return kernels

    def room(self, problem: Problem, kernel: str, memory: float) -> int:  # noqa: ARG002
        from ..kernels.base import tensors

        first = extra_bytes = 0
        for part in parts(problem):
            kernel_parts = load_kernel(part.kernel)
            one = kernel_parts.make(_case(part), "meta", 0)
            budget = {id(tensor): tensor for tensor in tensors(one)}
            first += sum(tensor.nbytes for tensor in budget.values())
            extra_bytes += sum(
                tensor.nbytes for tensor in tensors(kernel_parts.next_inputs(one, 1)) if id(tensor) not in budget
            )
        return 1 + int((memory - first) / max(extra_bytes, 1)) if first <= memory else 0

    def calls(self, problem: Problem, kernel: str, sets: int, tiling: Any = None) -> Sequence[Call]:  # noqa: ARG002
        *before, last = parts(problem)
        plans = [list(self._plans(part, sets)) for part in before]
        plans.append(list(self._plans(last, sets, tiling)))
        if tiling is not None:
            _agree(load_kernel(last.kernel), _case(last), plans[-1][0], next(self._plans(last, 1)), self.clock)

        def call(number: int) -> Call:
            inputs = [of_part[number] for of_part in plans]
            return inputs[0] if len(inputs) == 1 else lambda: [plan() for plan in inputs][-1]

        return [call(number) for number in range(sets)]

    def _plans(self, part: _KernelPart, sets: int, tiling: Any = None) -> Iterator[Call]:
        kernel = load_kernel(part.kernel)
        chosen = {} if tiling is None else {"tile": tiling}
        inputs = kernel.make(_case(part), self._device, 0)
        for number in range(sets):
            yield kernel.plan(self._target, **(kernel.next_inputs(inputs, number) if number else inputs) | chosen)

    def finite(self, outputs: Any) -> bool:
        self.clock.wait()
        pieces = (piece for output in outputs for piece in output.flatten().split(COMPARED_ELEMENTS))
        return all(bool(piece.float().isfinite().all()) for piece in pieces)


def own_problem(kernel: Kernel, case: Case) -> Problem:
    """A case of a kernel as a problem, which no model gives."""
    rows = next((case[name] for name in _ROWS if case.get(name)), 1)
    moved = int(kernel.nbytes(case))
    sizes = {"rows": rows, "cols": moved // rows} | {f"size_{name}": size for name, size in case.sizes}
    return Problem(family="elementwise", op=kernel.name, dtype=case.dtype, sizes=tuple(sizes.items()), moved=moved)


def _case(part: _KernelPart) -> Case:
    from ..kernels.base import case

    return case(part.dtype, **part.sizes)


def check_case(kernel: Kernel, case: Case, device: str, clock: Clock, tilings: Sequence[Any] = ()) -> None:
    """Checks a case as launched on this GPU, as launched on one with few multiprocessors, and in other `tilings`.

    Raises LaunchError where it gives something else than its reference.
    """
    import torch

    from ..kernels.base import Target

    target, inputs = Target.of(torch.device(device)), kernel.make(case, device, 1)
    reference = kernel.reference(**inputs)  # before a launch that writes to its inputs, such as a cache
    for count in {target.multiprocessors, _CHECK_PROCESSORS}:
        result = kernel.plan(replace(target, multiprocessors=count), **inputs)()
        clock.wait()
        _compare(kernel, case, result, reference)
    for tiling in tilings:
        result = kernel.plan(target, **inputs | {"tile": tiling})()
        clock.wait()
        try:
            _compare(kernel, case, result, reference)
        except LaunchError as error:
            raise LaunchError(f"{error}, in {tiling}") from None


def _agree(kernel: Kernel, case: Case, tiled: Call, ruled: Call, clock: Clock) -> None:
    """Compares with twice the tolerance, as each may differ from the reference."""
    result, reference = tiled(), ruled()
    clock.wait()
    _compare(kernel, case, result, reference, times=2)


def _compare(kernel: Kernel, case: Case, result: Any, reference: Any, times: float = 1) -> None:
    relative, absolute = kernel.tolerance(case)
    for ours, theirs in zip(result, reference, strict=True):
        try:
            compare(ours, theirs, times * relative, times * absolute)
        except LaunchError as error:
            raise LaunchError(f"{kernel.name} at {case}: {error}") from None


def _compile(part: _KernelPart, target: Target, tilings: Sequence[Any]) -> None:
    """Compiles in parallel, one thread each. Errors are ignored here, as the launch raises them again."""
    import triton

    kernel, case = load_kernel(part.kernel), _case(part)
    with ThreadPoolExecutor() as pool, triton.AsyncCompileMode(pool, ignore_errors=True):
        for tiling in tilings:
            for launch in kernel.launches(case, target, tiling):
                with suppress(Exception):
                    launch.warmup()
