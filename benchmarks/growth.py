"""Growth of cost with the size of the question: `python benchmarks/growth.py [--large] [--write docs/speed.md]`.

Each row is one process of the command line: processor time of it and its workers, and peak memory of the largest. With
--large, sizes up to those that users have: a million requests, 10^8 settings, a trace of 200 MB.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from llmviewer.devices.files import hardware_names

_KERNELS_PER_LAYER: Final = (
    ("rms_norm_kernel", 3.0), ("nvjet_tst_qkv", 12.0), ("rotary_kernel", 3.0), ("flash_fwd_kernel", 9.0),
    ("nvjet_tst_o", 9.0), ("rms_norm_kernel", 3.0), ("nvjet_tst_gate_up", 30.0), ("silu_and_mul", 4.0),
    ("nvjet_tst_down", 18.0),
)  # fmt: skip
_LAYERS: Final = 32
_BYTES_PER_LAUNCH: Final = 300  # of a kernel and of its call on the host, in a trace
_TABLE: Final = "| command | grows with | size | processor time [s] | peak memory [GB] |\n|---|---|---:|---:|---:|\n"


class Run(NamedTuple):
    """One command: what its cost grows with, how large that is, and its arguments."""

    command: str
    grows_with: str
    size: int
    arguments: tuple[str, ...]


def main() -> int:
    """Runs all commands and prints, or writes, the table."""
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    cost(("analyze", "gpt2", "t4"))  # compiles the modules
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for run in runs(Path(folder), large="--large" in sys.argv):
            cpu_s, peak_bytes = cost(run.arguments)
            rows.append(f"| `{run.command}` | {run.grows_with} | {run.size:,} | {cpu_s:.2f} | {peak_bytes / 1e9:.2f} |")
            print(rows[-1], flush=True)
    if "--write" in sys.argv:
        path = Path(sys.argv[sys.argv.index("--write") + 1])
        before, begin, after = path.read_text(encoding="utf-8").partition("| command | grows with |")
        _, end, rest = (begin + after).partition("\n\n")
        path.write_text(before + _TABLE + "\n".join(rows) + ("\n" + end[1:] + rest if end else "\n"), encoding="utf-8")
    return 0


def runs(folder: Path, *, large: bool) -> Iterator[Run]:
    """The commands, each in growing sizes."""
    for model, layers in (("gpt2", 12), ("llama-3.1-70b", 80), ("llama-3.1-405b", 126)):
        yield Run("analyze", "layers", layers, ("analyze", model, "gb300"))
    names = hardware_names()
    for devices in (1, 16, len(names)):
        yield Run("compare", "devices", devices, ("compare", "llama-3.1-8b", *names[:devices]))
    for requests in (1_000, 10_000, 100_000, *((1_000_000,) if large else ())):
        served = ("simulate", "llama-3.1-8b", "h100-sxm", "--rate", "20", "--requests", str(requests))
        yield Run("simulate", "requests", requests, served)
    for requests in (10_000, 100_000, *((1_000_000,) if large else ())):
        served = ("simulate", "llama-3.1-8b", "h100-sxm", "--rate", "2000", "--replicas", "100")
        for router in ("round-robin", "least-loaded"):
            routed = (*served, "--requests", str(requests), "--router", router)
            yield Run("simulate --replicas 100", f"requests, {router}", requests, routed)
    for exponent in (5, 6, 7, *((8,) if large else ())):
        settings = 10**exponent
        axes = ("--over", f"batch=1..{settings // 1000}", "--over", "prompt=1..1000")
        output = folder / f"sweep-{exponent}"
        yield Run("sweep", "settings", settings, ("sweep", "llama-2-7b", "a100-sxm-80gb", *axes, "-o", f"{output}/"))
    for megabytes in (2, 20, *((200,) if large else ())):
        trace = folder / f"{megabytes}.json"
        write_trace(trace, launches=megabytes * 10**6 // _BYTES_PER_LAUNCH)
        size = trace.stat().st_size
        yield Run("timeline", "bytes of a trace", size, ("timeline", str(trace), "llama-3.1-8b", "h100-sxm"))


def cost(arguments: tuple[str, ...]) -> tuple[float, float]:
    """Processor time [s] of a command and its workers, and peak memory [B] of the largest process."""
    command = [sys.executable, "-m", "llmviewer", *arguments]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ends with {process.returncode}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024


def write_trace(path: Path, launches: int) -> None:
    """Writes a trace as torch.profiler records one, of decode passes of about so many launches."""
    events, now_us = [], 0.0
    for _ in range(max(launches // (_LAYERS * len(_KERNELS_PER_LAYER)), 1)):
        now_us += 400
        for name, duration_us in (*_KERNELS_PER_LAYER * _LAYERS, ("nvjet_tst_lm_head", 250.0)):
            place = {"pid": 0, "tid": 7, "ts": now_us, "dur": duration_us}
            correlation = len(events)
            args = {"device": 0, "stream": 7, "correlation": correlation}
            events.append({"ph": "X", "cat": "kernel", "name": name, **place, "args": args})
            call = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1}
            events.append({**call, "ts": now_us - 20, "dur": 3, "args": {"correlation": correlation}})
            now_us += duration_us + 1
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
