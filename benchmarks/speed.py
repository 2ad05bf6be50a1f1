"""Measures the speed of llmviewer as ratios within one run: `python benchmarks/speed.py [--check]`.

start     whole commands, against `python -c "import numpy"`, processes taken in turn, as the pace of a machine that
          others use changes; the median ratio: --help, models, hardware, `analyze` of LLaMA-3.1-8B, and of DeepSeek-V3
          with expert parallelism on an engine
analysis  one analyze() in a warm process
again     of the model with most blocks, an analysis with its advice of another batch against one of a device that is
          new, whose graphs are not there yet
extract   YAML to graph, of every model that ships, without torch or transformers; the slowest in turn with a
          process that imports numpy, which takes some 100 ms where 50 ms are allowed
expect    expectations per second of processor time, kernels of random shapes, by family, the fastest of five; and how
          much longer they take than logarithms and exponentials of as many numbers right before, in the median
simulate  10,000 requests, at the bound and expected, against ten million additions of Python
sweep     a million (batch, prompt, precision) points of LLaMA-2-7b: prefill, decode step and memory of each

--check exits with 1 where a limit is missed. The peak memory is that of the whole process.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from operator import itemgetter
from statistics import median

import numpy as np

import llmviewer
from llmviewer._layout import data_dir
from llmviewer.expectation.device import find_device
from llmviewer.expectation.families import FAMILIES, Implementation
from llmviewer.expectation.index import index
from llmviewer.expectation.transfer import Estimator, select_fits
from llmviewer.model_files import load_model, model_names

START_LIMITS = {  # times importing numpy; in six runs 0.54-0.56, 0.70-0.74, 0.68-0.72, 2.74-2.88, 3.62-3.88
    "--help": 0.65,
    "models": 0.9,
    "hardware": 0.9,
    "analyze": 3.0,
    "analyze DeepSeek-V3": 4.1,
}
EXTRACT_LIMIT = 0.5  # times importing numpy, for the slowest model: Kimi K3, few of whose 93 layers are alike
AGAIN_LIMIT = 0.8  # times an analysis whose graphs are new
SWEEP_LIMIT_S = 1.0
SIMULATE_LIMIT = 12.5  # times ten million additions: 8.9 to 9.8 in three runs; evaluated step by step it took 33
EXPECT_LIMITS = {"gemm": 700, "attention_prefill": 400, "attention_decode": 600}  # times logarithm and exponential
MEMORY_LIMIT = 2e9  # B
_NUM_SLOWEST = 5  # slowest models
_MODEL, _DEVICE = "llama-2-7b", "rtx-a6000"
_LONGEST = "kimi-k3"


def main() -> int:
    """Times start-up, analyses, sweeps, simulations and expectations; 1 if one is above its limit with --check."""
    extracted = extractions()
    slowest, _ = extracted[0]
    ratios = start_up(slowest)
    extract_ratio = ratios.pop("extract")
    points, sweep_s = million_points()
    rates = expectations()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    summary = ", ".join(f"{name} {ratio:.2f}x" for name, ratio in ratios.items())
    print(f"start     {summary} of importing numpy")
    print(f"analysis  {fastest(lambda: llmviewer.analyze(_MODEL, _DEVICE, prompt=2048), times=20) * 1e3:.1f} ms")
    new_s, again_s = analyses_again()
    print(f"again     {_LONGEST} {new_s * 1e3:.0f} ms, another batch {again_s * 1e3:.0f} ms, {again_s / new_s:.2f}x")
    summary = ", ".join(f"{name} {seconds * 1e3:.1f} ms" for name, seconds in extracted[:_NUM_SLOWEST])
    print(f"extract   {len(extracted)} models, the slowest {extract_ratio:.2f}x of importing numpy: {summary}")
    rate = points / sweep_s / 1e6
    simulate_s, additions_s = simulation()
    print(f"simulate  10,000 requests in {simulate_s:.2f} s, {simulate_s / additions_s:.1f}x of ten million additions")
    print(f"sweep     {points} points in {sweep_s:.2f} s on one core, {rate:.1f} M/s; {peak / 1e9:.2f} GB")
    summary = ", ".join(f"{name} {rate / 1e6:.2f} M/s ({ratio:.0f}x)" for name, (rate, ratio) in rates.items())
    print(f"expect    {summary} of one core")
    missed = [
        f"{name} takes {ratio:.2f}x of importing numpy, above {START_LIMITS[name]}x"
        for name, ratio in ratios.items()
        if ratio > START_LIMITS[name]
    ]
    if extract_ratio > EXTRACT_LIMIT:
        missed.append(f"{slowest} takes {extract_ratio:.2f}x of importing numpy, above {EXTRACT_LIMIT}x")
    if again_s > AGAIN_LIMIT * new_s:
        missed.append(f"another batch takes {again_s / new_s:.2f}x of new graphs, above {AGAIN_LIMIT}x")
    if heavy := {"torch", "transformers"} & sys.modules.keys():
        missed.append(f"models are not read without {' and '.join(sorted(heavy))}")
    if simulate_s > SIMULATE_LIMIT * additions_s:
        missed.append(f"10,000 requests take {simulate_s / additions_s:.1f}x of additions, above {SIMULATE_LIMIT}x")
    if sweep_s > SWEEP_LIMIT_S:
        missed.append(f"a million points take {sweep_s:.2f} s, above {SWEEP_LIMIT_S} s")
    for name, limit in EXPECT_LIMITS.items():
        if rates[name][1] > limit:
            missed.append(f"{name}: an expectation takes {rates[name][1]:.0f}x of exp(log(x)), above {limit}x")
    if peak > MEMORY_LIMIT:
        missed.append(f"the sweep takes {peak / 1e9:.2f} GB, above {MEMORY_LIMIT / 1e9} GB")
    for line in missed:
        print(f"MISSED    {line}")
    return 1 if missed and "--check" in sys.argv else 0


def start_up(model: str, rounds: int = 15) -> dict[str, float]:
    """CPU time of processes, and of the graph of `model` in this one, over that of the process beside each that imports
    numpy; in the median, as the pace of a machine that others use changes from one moment to the next.
    """
    extract = partial(load_model, str(data_dir("models") / f"{model}.yaml"))
    llm = [sys.executable, "-m", "llmviewer"]
    commands = {
        "numpy": [sys.executable, "-c", "import numpy"],
        "--help": [*llm, "--help"],
        "models": [*llm, "models"],
        "hardware": [*llm, "hardware"],
        "analyze": [*llm, "analyze", "llama-3.1-8b", "h100-sxm"],
        "analyze DeepSeek-V3": [*llm, "analyze", "deepseek-v3", "h200-sxm", "--tp=8", "--ep=8", "--engine=vllm"],
    }
    times_s: dict[str, list[float]] = {name: [] for name in (*commands, "extract")}
    with tempfile.TemporaryDirectory() as compiled:
        # A user's second run: bytecode is there, even where the environment forbids to write any beside the sources.
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": compiled}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        environment["OPENBLAS_NUM_THREADS"] = "1"  # as llmviewer sets it: threads that spin would flatter the ratio
        for _ in range(rounds):
            for name, command in commands.items():
                start = _children_s()
                subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
                times_s[name].append(_children_s() - start)
            times_s["extract"].append(fastest(extract, times=3))
    numpy = times_s.pop("numpy")
    return {
        name: median(time_s / numpy_s for time_s, numpy_s in zip(each, numpy, strict=True))
        for name, each in times_s.items()
    }


def _children_s() -> float:
    """CPU time of the processes that have ended. [s]"""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def extractions() -> list[tuple[str, float]]:
    """Models with the seconds that their graphs take, the slowest first."""
    files = {name: str(data_dir("models") / f"{name}.yaml") for name in model_names()}  # models by name are kept
    times_s = {name: fastest(partial(load_model, file), times=3) for name, file in files.items()}
    return sorted(times_s.items(), key=itemgetter(1), reverse=True)


def analyses_again(times: int = 3) -> tuple[float, float]:
    """CPU time of the fastest analysis with new graphs, and of another batch with the same graphs. [s]"""
    new, repeated_s = [], []
    for capacity in range(100, 100 + times):
        for batch, spent in ((1, new), (2, repeated_s)):
            start = time.process_time()
            changes = [f"memory.capacity={capacity} GB"]
            analysis = llmviewer.analyze(_LONGEST, "h200-sxm", batch=batch, layout="tp=8", hardware_set=changes)
            _ = [phase.advice for _, phase in analysis.phases]  # which is worked out when it is asked for
            spent.append(time.process_time() - start)
    return min(new), min(repeated_s)


def simulation(times: int = 3) -> tuple[float, float]:
    """CPU time of the fastest simulation of 10,000 requests, and of ten million additions. [s]"""
    simulated, added = [], []
    for _ in range(times):
        start = time.process_time()
        llmviewer.simulate("llama-3.1-8b", "h100-sxm", rate=20, requests=10_000)
        between, total = time.process_time(), 0
        for number in range(10_000_000):
            total += number
        simulated.append(between - start)
        added.append(time.process_time() - between)
    return min(simulated), min(added)


def million_points() -> tuple[int, float]:
    """Points of a sweep over precisions, batches and prompts, and its fastest time. [s]"""
    over = {
        "quant": ["W16A16", "W8A16", "W4A16g128", "W8A8", "W8A8KV8"],
        "batch": list(range(1, 201)),
        "prompt": list(range(10, 10_001, 10)),
    }
    points = len(llmviewer.sweep(_MODEL, _DEVICE, over))
    return points, fastest(lambda: llmviewer.sweep(_MODEL, _DEVICE, over), times=3)


def expectations(kernels: int = 100_000, chunk: int = 2048) -> dict[str, tuple[float, float]]:
    """Expectations per second of kernels on an H100, by family, and their time over that of logarithms and exponentials
    of as many numbers; in chunks that stay in a core's cache.
    """
    random = np.random.default_rng(0)
    attention = {"q_heads": 32, "kv_heads": 8, "head_dim": 128, "v_head_dim": 128}
    families = {
        "gemm": ("vllm", "bf16", "", {"M": (1, 8192), "N": (256, 20000), "K": (256, 20000)}),
        "attention_prefill": (
            "vllm",
            "bf16",
            "bf16",
            {"batch": (1, 16), "q_len": (1, 8000), "kv_len": 8000} | attention,
        ),
        "attention_decode": ("vllm", "bf16", "bf16", {"batch": (1, 256), "kv_len": (1, 100_000)} | attention),
        "moe": ("vllm", "bf16", "", {"tokens": (1, 8192), "hidden": 4096, "inter": 14336, "topk": 2, "experts": 8}),
        "elementwise": ("sarathi", "fp16", "", {"rows": (1, 8192), "bytes": (1, 10**8)}),
        "collectives": ("nccl", "fp16", "", {"num_gpus": 8, "bytes": (1, 10**8)}),
    }
    device, rates, numbers = find_device("h100-sxm"), {}, random.uniform(1, 1e6, kernels)
    for name, (library, dtype, kv_dtype, ranges) in families.items():
        family = FAMILIES[name]
        columns = {
            key: random.integers(*ends, kernels) if isinstance(ends, tuple) else np.full(kernels, ends)
            for key, ends in {**family.optional, **ranges}.items()
        }
        kernel = "nccl all_reduce" if name == "collectives" else "add" if name == "elementwise" else ""
        implementation = Implementation(library=library, dtype=dtype, kv_dtype=kv_dtype, kernel=kernel)
        estimator = Estimator(
            selection=select_fits(name, device, implementation, index().fits),
            device=device,
            implementation=implementation,
        )
        spent, ratios = [], []
        for _ in range(5):
            start = time.process_time()
            for i in range(0, kernels, chunk):
                np.exp(np.log(numbers[i : i + chunk]))
            between = time.process_time()
            for i in range(0, kernels, chunk):
                part = {key: column[i : i + chunk].astype(float) for key, column in columns.items()}
                estimator.expect(part)
            spent.append(time.process_time() - between)
            ratios.append(spent[-1] / (between - start))
        rates[name] = kernels / min(spent), median(ratios)
    return rates


def fastest(call: Callable[[], object], *, times: int) -> float:
    """CPU time of the fastest call. [s]"""
    best = float("inf")
    for _ in range(times):
        start = time.process_time()
        call()
        best = min(best, time.process_time() - start)
    return best


if __name__ == "__main__":
    raise SystemExit(main())
