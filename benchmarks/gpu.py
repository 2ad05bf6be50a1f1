"""The kernels on this GPU: what they compute, and how fast each way to cut their work up is at sizes that decide.

python benchmarks/gpu.py check
python benchmarks/gpu.py step time
python benchmarks/gpu.py time KERNEL
python benchmarks/gpu.py compile
python benchmarks/gpu.py all MINUTES FOLDER

Without a name check, step and time, in turn. Where llmviewer is not installed, PYTHONPATH=. from its checkout.

Checks every case of every kernel against its reference, in bf16 as well and at larger sizes, for which Triton's
interpreter is too slow, and those in all alternative tilings; takes decode steps of whole models as graphs; then times,
for a few sizes of Llama 3.1 8B, the rule's tiling and all that tuning tries, beside torch and the bandwidth of a copy.
`time KERNEL` does so for sizes that decide its rule. `compile` fills Triton's cache with the launches of `llmviewer
measure`, so that none of its minutes go to compilers. `all` is for a GPU lent for some minutes: check and compile at
once, `llmviewer measure --no-tune`, the steps, and `time KERNEL` for as many kernels with untimed tilings as there is
time for, about a minute; their output and the rows are in a folder, each line as soon as it is known, so that a GPU
taken back early leaves what was found. Each part is a process of its own with a time limit: a launch that breaks the
GPU or never ends takes that only, and what was found before it is printed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from math import inf
from pathlib import Path
from signal import SIGKILL, SIGTERM
from statistics import median
from time import monotonic

from llmviewer.errors import InputError
from llmviewer.kernels import kernel_names, load_kernel
from llmviewer.kernels.base import Launch, Target, case
from llmviewer.kernels.decoder import decode_step
from llmviewer.measuring.backend import LaunchError, Sets, breaks
from llmviewer.measuring.ceilings import copying
from llmviewer.measuring.problems import Problem, problems
from llmviewer.measuring.session import DTYPES, MODELS, in_order, words
from llmviewer.measuring.timing import Call, GpuClock, HungError, TimingSample, settled
from llmviewer.measuring.torch_backend import TorchBackend
from llmviewer.measuring.triton_backend import TritonBackend, check_case, own_problem, parts

_MODEL = "llama-3.1-8b"
_PARTS = ["check", "step", "time"]
_ALL_PARTS = [*_PARTS, "compile"]
_NUM_PROCESSES = 8  # processes that check, and that compile
_LIMIT_S = {"check": 240, "step": 150, "time": 90, "compile": 240}  # of a process
_WRONG = 3  # what a process ends with that found something wrong and said what
_BRIEF_S = 0.1  # of a timing
_NUM_REPEATS = 3
_MEMORY = 16e9  # bytes of the tensors of a launch, at most
_COPIED = 2**30
_RESERVED_S = 145  # time that `all` reserves after measuring, whose last rows are worth least: steps, then tilings
_LAST_S = 15  # least time that `all` starts to time a kernel with, and what measuring may take beyond its minutes
_WRITING_S = 5  # from SIGTERM to SIGKILL
_UNTIMED_KERNELS = (  # kernels with tilings that no GPU has timed, those first whose time counts most
    "decode_attention", "mla_decode", "gemm", "gemm_w4a16", "sample", "rope_cache", "flash_attention", "gemm_w8a16",
    "mamba2_scan", "gated_delta_scan", "sparse_indexer", "norm_quantize", "rms_norm", "permute", "combine",
)  # fmt: skip
_STEPS = (  # model, sequences, tokens of each
    ("llama-3.1-8b", 16, 4096),
    ("llama-3.1-8b", 1, 1024),
    ("llama-3.1-8b", 64, 4096),
    ("llama-3.1-8b", 256, 1024),
    ("qwen3-30b-a3b", 16, 4096),
    ("qwen3-30b-a3b", 1, 1024),
    ("qwen3-30b-a3b", 256, 1024),
)
_LARGER = {  # tiles of full size whose loops go round their stages more than once: too much for the interpreter
    "gemm": [case(dtype, M=500, N=1008, K=1104) for dtype in ("bf16", "fp8_e4m3", "int8")],
    "gemm_fp8_block": [case("fp8_e4m3", M=500, N=1008, K=1152)],
    **{
        name: [case("bf16", M=500, N=1008, K=1152), case("bf16", M=16, N=4096, K=4096)]
        for name in ("gemm_nvfp4", "gemm_mxfp8", "gemm_mxfp4_mxfp8")
    },
    "grouped_gemm": [case("bf16", M=600, N=640, K=1152, experts=3, chosen=2)],
    "fused_moe": [case("bf16", M=600, N=640, K=1152, experts=3, chosen=2)],
    "permute": [
        case("bf16", M=5000, K=264, experts=128, chosen=8),
        case("bf16", M=900, K=2500, experts=512, chosen=10),
    ],
    "norm_quantize": [case("fp8_e4m3", M=300, N=7168, group=group, residual=1) for group in (128, 7168)],
    "sparse_indexer": [
        case("bf16", B=3, heads=64, dim=128, kv=70000, page=64, chosen=2048, ragged=30000),
        case("bf16", B=1, heads=64, dim=128, kv=200000, page=64, chosen=2048),
        case("bf16", B=2, q=300, heads=64, dim=128, kv=3000, page=64, chosen=512, ragged=1000),
    ],
    "mamba2_scan": [case("bf16", B=2, T=700, heads=16, dim=80, state=128, groups=2)],
    "gated_delta_scan": [
        case("bf16", B=2, T=700, heads=8, key_heads=4, key_dim=128, dim=128),
        case("bf16", B=2, T=700, heads=8, key_heads=8, key_dim=128, dim=128, channels=1),
    ],
    "gemm_w4a16": [case("bf16", M=600, N=4104, K=1152, group=128, dequantized=1)],
    "gemm_w8a16": [case("bf16", M=600, N=4104, K=1152, dequantized=1)],
    "gemm_mxfp4": [case("bf16", M=600, N=4104, K=1152, dequantized=1)],
    "rope_cache": [case("bf16", B=600, heads=32, kv_heads=8, dim=128, kv=50, page=16, norm=norm) for norm in (0, 1)],
    "argmax": [case("bf16", rows=64, vocab=128256)],
    "sample": [case(dtype, rows=64, vocab=128256, k=50, percent=90) for dtype in ("bf16", "fp32")],
    "flash_attention": [
        case("bf16", B=2, heads=4, kv_heads=2, dim=128, q=1000, kv=1300, ragged=90),
        case("bf16", B=2, heads=4, kv_heads=2, dim=64, q=1000, kv=1300, ragged=90, window=300),
        case("bf16", B=2, heads=4, kv_heads=2, dim=256, q=900, kv=900, ragged=90),
    ],
    "decode_attention": [
        case("bf16", B=2, heads=8, kv_heads=2, dim=128, kv=5000, page=64, ragged=900, **bits)
        for bits in ({}, {"kv_bits": 8}, {"kv_bits": 4, "group": 64})
    ]
    + [case("bf16", B=1, heads=8, kv_heads=4, dim=256, kv=20000, page=64, kv_bits=8)],
    "mla_decode": [case("bf16", B=2, heads=heads, latent=512, rope=64, kv=3000, page=64) for heads in (16, 128)],
}
_NARROW = ((1, 14336, 4096), (2048, 14336, 4096), (1, 4096, 14336))  # M, N, K of products with narrow weights
_DECIDING_CASES = {  # sizes, in place of those of `full_size`, at which tilings may be faster than the rule's
    "gemm": [
        case("bf16", M=m, N=n, K=k)
        for m, n, k in (
            (64, 3840, 4096), (32, 2816, 2048), (512, 6144, 4096), (64, 512, 2048), (2048, 2816, 2048), (512, 64, 2048),
            (64, 4096, 4096), (32, 4096, 4096), (128, 4096, 4096), (256, 4096, 14336),
        )
    ],
    "gemm_w4a16": [case("bf16", M=m, N=n, K=k, group=128) for m, n, k in _NARROW],
    "gemm_w8a16": [case("bf16", M=m, N=n, K=k) for m, n, k in _NARROW],
    "sample": [case("bf16", rows=rows, vocab=128256, k=50, percent=90) for rows in (64, 256, 8)],
    "rope_cache": [
        case("bf16", B=batch, heads=32, kv_heads=8, dim=128, kv=128, page=64) for batch in (64, 1024, 4096)
    ],
}  # fmt: skip
_TIMED = (  # one of each goal of docs/measuring.md first
    {"family": "gemm", "dtype": "bf16", "M": 8192, "N": 14336, "K": 4096},
    {"family": "attention_prefill", "dtype": "bf16", "batch": 2, "q_len": 8192},
    {"family": "attention_decode", "dtype": "bf16", "kv_dtype": "bf16", "batch": 64, "kv_len": 4096},
    {"family": "gemm", "dtype": "bf16", "M": 16, "N": 14336, "K": 4096},
    {"family": "gemm", "dtype": "bf16", "M": 1, "N": 14336, "K": 4096},
    {"family": "gemm", "dtype": "int4_wo", "M": 1, "N": 14336, "K": 4096},
    {"family": "gemm", "dtype": "bf16", "M": 2048, "N": 4096, "K": 4096},
    {"family": "gemm", "dtype": "bf16", "M": 4096, "N": 4096, "K": 14336},
    {"family": "attention_prefill", "dtype": "bf16", "batch": 8, "q_len": 1024},
    {"family": "attention_decode", "dtype": "bf16", "kv_dtype": "bf16", "batch": 1, "kv_len": 32768},
    {"family": "attention_decode", "dtype": "bf16", "kv_dtype": "fp8", "batch": 64, "kv_len": 4096},
    {"family": "gemm", "dtype": "bf16", "M": 16, "N": 4096, "K": 14336},
    {"family": "gemm", "dtype": "bf16", "M": 1, "N": 4096, "K": 14336},
    {"family": "gemm", "dtype": "int4_wo", "M": 1, "N": 4096, "K": 14336},
    {"family": "gemm", "dtype": "bf16", "M": 128, "N": 4096, "K": 4096},
    {"family": "gemm", "dtype": "int4_wo", "M": 2048, "N": 14336, "K": 4096},
)


def check(name: str) -> Iterator[str]:
    """Yields the errors of a kernel, case by case, with the case most likely to hang last; larger cases also in all
    alternative tilings. The current case goes to stderr, in case the kernel hangs.
    """
    import torch

    kernel, target = load_kernel(name), Target.of(torch.device("cuda"))
    cases = [*kernel.cases, *(replace(one, dtype="bf16") for one in kernel.cases if one.dtype == "fp16")]
    larger_cases = _LARGER.get(name, [])
    able = [one for one in (*cases, *larger_cases) if kernel.min_sm(one) <= target.sm]
    for one in sorted(able, key=lambda one: one.get("specialized")):
        print(one, file=sys.stderr, flush=True)
        try:
            check_case(kernel, one, "cuda", GpuClock(), kernel.tilings(target, one) if one in larger_cases else ())
        except LaunchError as error:
            yield str(error)
        except Exception as error:  # the others are checked, too
            yield f"{name} at {one}: {error}"
            if breaks(error):
                raise


def stepped(number: int) -> Iterator[str]:
    """Checks a decode step: its CUDA graph gives the results of its launches; prints its time and the bound by its
    bytes.
    """
    import torch

    model, batch, kv_len = _STEPS[number]
    step, clock = decode_step(model, batch=batch, kv_len=kv_len), GpuClock()
    launch_outputs = [output.clone() for output in step()]
    graph = step.capture()
    graph.replay()
    torch.cuda.synchronize()
    same = all(torch.equal(ours, launched) for ours, launched in zip(step.plan.outputs, launch_outputs, strict=True))
    seconds = settled(clock.sampler([graph.replay]), _BRIEF_S).median
    share = step.nbytes / seconds / _copy(clock)
    yield f"decode step of {model}, batch {batch}, kv_len {kv_len}: {seconds * 1e3:.3f} ms, {share:.2f} of copy"
    yield f"  as a graph: {'the same' if same else 'SOMETHING ELSE'} as launch by launch"


def compiled(number: int) -> Iterator[str]:
    """Compiles one of every `_NUM_PROCESSES` launches of `llmviewer measure`; yields errors, and their number."""
    count = 0
    for count, (name, launch) in enumerate(_measured_launches(), 1):
        if count % _NUM_PROCESSES == number:
            try:
                launch.warmup()
            except Exception as error:  # noqa: BLE001 - the others are compiled, too
                yield f"{name}: {str(error).strip().partition(chr(10))[0]}"
    yield f"compile {number}: every {_NUM_PROCESSES}th of {count} launches"


def _measured_launches() -> Iterator[tuple[str, Launch]]:
    """Yields the distinct launches of `llmviewer measure`, with the names of their kernels, in about its order."""
    import torch

    target = Target.of(torch.device("cuda"))
    kinds: dict[tuple[str, ...], list[Problem]] = {}
    for problem in (*problems(MODELS["gpu"], DTYPES["gpu"]), *TritonBackend().own()):
        kinds.setdefault(problem.kind, []).append(problem)
    in_turn = (problem for turn in zip_longest(*map(in_order, kinds.values())) for problem in turn if problem)
    yielded_keys = set()
    for part in (part for problem in in_turn for part in parts(problem)):
        kernel, sizes = load_kernel(part.kernel), case(part.dtype, **part.sizes)
        if kernel.min_sm(sizes) > target.sm:
            continue
        try:
            launches = kernel.launches(sizes, target)
        except InputError:  # a size that the kernel refuses, as measuring reports
            continue
        for launch in launches:
            if launch.code_key not in yielded_keys:
                yielded_keys.add(launch.code_key)
                yield f"{part.kernel} {part.dtype}", launch


def timed_kernel(name: str) -> Iterator[str]:
    """Lines on the full-size cases of a kernel, or on sizes that decide its rule; of gemm beside torch."""
    kernel = load_kernel(name)
    for one in _DECIDING_CASES.get(name, kernel.full_size):
        if name == "gemm":
            yield from timed_problem(Problem(family="gemm", op="gemm", dtype=one.dtype, sizes=one.sizes))
        else:
            yield from timed_problem(own_problem(kernel, one))


def timed(number: int) -> Iterator[str]:
    """Lines on one of the sizes of `_TIMED`."""
    return timed_problem(_problem(number))


def timed_problem(problem: Problem) -> Iterator[str]:
    """Lines on one size: each way to compute it as soon as its time is known, then all, the fastest first. What
    is being tried goes to stderr.
    """
    clock = GpuClock()
    copy, ops = _copy(clock), _ops(problem)
    times_by_name: list[tuple[float, str]] = []
    best: dict[str, tuple[float, str, Callable[[], TimingSample]]] = {}

    def line(seconds: float, name: str) -> str:
        rate = problem.nbytes / seconds
        return f"  {seconds * 1e6:9.1f} us {ops / seconds / 1e12:6.0f} TOP/s {rate / copy:5.2f} of copy  {name}"

    def fastest() -> list[str]:
        return ["the fastest first:", *(line(*one) for one in sorted(times_by_name))]

    op = problem.op if problem.moved else problem.family
    yield f"{op} {problem.dtype} {' '.join(f'{name}={size}' for name, size in problem.sizes)}"
    for origin, name, make in _ways(problem):
        print(name, file=sys.stderr, flush=True)
        try:
            sample = clock.sampler(make())
            times_by_name.append((settled(sample, _BRIEF_S).median, name))
        except Exception as error:  # the others are timed, too
            yield f"  {name}: {(str(error) or type(error).__name__).strip().splitlines()[0]}"
            if breaks(error):
                yield from fastest()
                raise
        else:
            yield line(*times_by_name[-1])
            best[origin] = min(best.get(origin, (inf,)), (*times_by_name[-1], sample))
    yield from fastest()
    if len(best) > 1:  # whose ratios are not to follow what clocks did meanwhile
        yield f"the fastest of each, in turn, the median of {_NUM_REPEATS}:"
        medians = [[settled(sample, _BRIEF_S).median for _, _, sample in best.values()] for _ in range(_NUM_REPEATS)]
        for (_, name, _), times in zip(best.values(), zip(*medians, strict=True), strict=True):
            yield line(median(times), name)


def _ways(problem: Problem) -> Iterator[tuple[str, str, Callable[[], Sequence[Call]]]]:
    """The rule's, torch's, and all that tuning tries: whose they are, names, and what makes their launches."""
    import torch

    ours, theirs = TritonBackend(), TorchBackend("cuda")
    (kernel,) = ours.kernels(problem)
    room, cache = ours.room(problem, kernel, _MEMORY), torch.cuda.get_device_properties(0).L2_cache_size
    count = Sets.of(problem.nbytes, cache, room).count
    yield "rule", f"{kernel} by its rule", partial(ours.calls, problem, kernel, count)
    for name in () if problem.moved else theirs.kernels(problem):
        yield "torch", f"torch {name}".rstrip(), partial(theirs.calls, problem, name, count)
    for tiling in ours.tilings(problem, kernel):
        yield "tuning", words(tiling), partial(ours.calls, problem, kernel, count, tiling)


def _problem(number: int) -> Problem:
    sizes = dict(_TIMED[number])
    family, dtype, kv_dtype = sizes.pop("family"), sizes.pop("dtype"), sizes.pop("kv_dtype", None)
    return next(
        one
        for one in problems([_MODEL], [str(dtype)])
        if one.family == family and kv_dtype in (None, one.kv_dtype) and sizes.items() <= dict(one.sizes).items()
    )


def _ops(problem: Problem) -> float:
    sizes = dict(problem.sizes)
    if problem.moved:
        (part,) = parts(problem)
        return load_kernel(part.kernel).ops(case(part.dtype, **part.sizes))
    if problem.family == "gemm":
        return 2.0 * sizes["M"] * sizes["N"] * sizes["K"]
    keys_per_sequence = (sizes["q_len"] + 1) / 2 * sizes["q_len"] if "q_len" in sizes else sizes["kv_len"]
    return 2.0 * sizes["batch"] * sizes["q_heads"] * (sizes["head_dim"] + sizes["v_head_dim"]) * keys_per_sequence


def _copy(clock: GpuClock) -> float:
    """Bytes a second, read and written."""
    import torch

    x, y = torch.randn(2, _COPIED // 8, device="cuda")
    return _COPIED / settled(clock.sampler([copying(x, y)]), _BRIEF_S).median


_NUMBERED: Mapping[str, Callable[[int], Iterator[str]]] = {"step": stepped, "time": timed, "compile": compiled}


def _process(*arguments: str) -> int:
    """A part in a process of its own, which prints what it finds at once; 0 where all is well."""
    limit_s = _LIMIT_S[arguments[0]]
    try:
        process = subprocess.run(
            [sys.executable, __file__, *arguments], stderr=subprocess.PIPE, timeout=limit_s, check=False
        )
        code, stderr, how = process.returncode, process.stderr, f"ended by {process.returncode}"
    except subprocess.TimeoutExpired as error:
        code, stderr, how = 1, error.stderr or b"", f"took more than {limit_s} s"
    if code not in (0, _WRONG):
        last = stderr.decode(errors="replace").strip().splitlines()[-1:]  # nothing, of a child that was killed at once
        print(": ".join((" ".join(arguments), how, *last)), flush=True)
    return code


def everything(minutes: float, folder: Path) -> int:
    """Runs all parts within `minutes`, each with its output in a file of `folder`; 1 if any failed."""
    folder.mkdir(parents=True, exist_ok=True)
    end = monotonic() + 60 * minutes

    def begin(name: str, *arguments: str) -> subprocess.Popen[bytes]:
        with (folder / f"{name}.txt").open("wb") as file:
            command = [sys.executable, *arguments]
            return subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, start_new_session=True)

    def fails(name: str, process: subprocess.Popen[bytes], seconds: float) -> bool:
        """Waits for a process and ends it after `seconds`, with all processes that it began; True if it failed."""
        try:
            ending = f"ended by {process.wait(max(seconds, 1))}"
        except subprocess.TimeoutExpired:
            ending = "took too long"
        for ending_signal in (SIGTERM, SIGKILL):  # between them, measuring writes its tables
            with suppress(ProcessLookupError, subprocess.TimeoutExpired):
                os.killpg(process.pid, ending_signal)
                process.wait(_WRITING_S)
        print(f"{name}: {ending}, {end - monotonic():.0f} s left", flush=True)
        return bool(process.returncode)

    compiling, checking = begin("compile", __file__, "compile"), begin("check", __file__, "check")
    failed = fails("check", checking, (end - monotonic()) / 4)
    failed |= fails("compile", compiling, (end - monotonic()) / 16)
    seconds = end - monotonic() - _RESERVED_S
    arguments = ["--no-tune", "--minutes", f"{max(seconds / 60, 0.05):.2f}", "-o", str(folder / "measured")]
    failed |= fails("measure", begin("measure", "-m", "llmviewer", "measure", *arguments), seconds + _LAST_S)
    failed |= fails("step", begin("step", __file__, "step"), end - monotonic())
    for name in _UNTIMED_KERNELS:
        if end - monotonic() > _LAST_S:
            failed |= fails(f"time_{name}", begin(f"time_{name}", __file__, "time", name), end - monotonic())
    return int(failed)


def _show(lines: Iterable[str]) -> int:
    """Prints them as they come; how many there were."""
    count = 0
    for count, line in enumerate(lines, 1):  # noqa: B007
        print(line, flush=True)
    return count


def _in_this_process(arguments: Sequence[str]) -> int | None:
    """Runs one check, step, timing or compilation, or all; None if the arguments are no such part."""
    match arguments:
        case ["check", name] if name in kernel_names():
            if _show(check(name)):
                return _WRONG
            print(f"{name}: is right", flush=True)
            return 0
        case ["time", name] if name in kernel_names():
            _show(timed_kernel(name))
            return 0
        case ["all", minutes, folder]:
            return everything(float(minutes), Path(folder))
        case [part, number] if part in _NUMBERED and number.isdecimal():
            _show(_NUMBERED[part](int(number)))
            return 0
        case _:
            return None


def main(arguments: list[str]) -> int:
    """Runs what the arguments name: one item of a part here, whole parts in processes of their own."""
    code = _in_this_process(arguments)
    if code is not None:
        return code
    chosen_parts = arguments or _PARTS
    if not {*chosen_parts} <= {*_ALL_PARTS}:
        sys.exit(f"arguments must be some of {', '.join(_ALL_PARTS)}; got {' '.join(chosen_parts)}")
    import torch

    if not torch.cuda.is_available():
        sys.exit("there is no GPU that torch can use")
    failed = False
    for part, items, num_processes in (
        ("check", kernel_names(), _NUM_PROCESSES),
        ("compile", range(_NUM_PROCESSES), _NUM_PROCESSES),
        ("step", range(len(_STEPS)), 1),
        ("time", range(len(_TIMED)), 1),
    ):
        if part in chosen_parts:
            with ThreadPoolExecutor(num_processes) as pool:
                failed |= any([*pool.map(partial(_process, part), map(str, items))])
    return failed


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except HungError as error:
        print(error, file=sys.stderr, flush=True)
        os._exit(1)  # any other end, and whatever frees what the error holds, waits for the launch
