"""The same traces in Meta's Holistic Trace Analysis and here: `python benchmarks/holistic_trace.py PYTHON TRACE...`.

PYTHON is that of an environment with `pip install HolisticTraceAnalysis` (PyPI, MIT). Prints, for each torch.profiler
trace of one rank, the time in kernels, the idle time, and the longest kernels by name of both, as a Markdown table.
Holistic Trace Analysis rounds the times of each kernel to whole microseconds.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from llmviewer.timelines.reading import read_timeline
from llmviewer.units import seconds

KERNELS = 5  # longest kernels compared
_NAME_CHARS = 40
_ANALYZE = """
import json, sys, tempfile
from hta.trace_analysis import TraceAnalysis
analysis = TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir=tempfile.mkdtemp())
kernels = analysis.get_gpu_kernel_breakdown(visualize=False, num_kernels=1000, duration_ratio=1.0)[1]
whole = analysis.get_temporal_breakdown(visualize=False).iloc[0]
print(json.dumps({
    "idle_us": float(whole["idle_time(us)"]),
    "kernels_us": {str(row["name"]): float(row["sum (us)"]) for _, row in kernels.iterrows()},
}))
"""


def main(arguments: list[str]) -> int:
    """Prints a table for each trace."""
    if len(arguments) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    python, *paths = arguments
    for path in map(Path, paths):
        print(f"\n| {path.name} | HTA | llmviewer |\n|---|---|---|")
        theirs = _holistic(python, path)
        recording = read_timeline(path, "decode")
        totals_s: Counter[str] = Counter()
        for name, duration_s in zip(recording.names, recording.duration_s, strict=True):
            totals_s[name] += float(duration_s)
        idle_s = float(recording.pauses_s.clip(min=0).sum())
        print(f"| all kernels | {_time(theirs and sum(theirs['kernels_us'].values()))} | {seconds(totals_s.total())} |")
        print(f"| idle | {_time(theirs and theirs['idle_us'])} | {seconds(idle_s)} |")
        for name, time_s in totals_s.most_common(KERNELS):
            print(
                f"| `{name[:_NAME_CHARS]}` | {_time(theirs and theirs['kernels_us'].get(name))} | {seconds(time_s)} |"
            )
    return 0


def _holistic(python: str, path: Path) -> dict[str, Any] | None:
    """Times of a trace by Holistic Trace Analysis; None if it fails."""
    finished_run = subprocess.run([python, "-c", _ANALYZE, str(path)], capture_output=True, text=True, check=False)
    lines = finished_run.stdout.splitlines()
    return json.loads(lines[-1]) if finished_run.returncode == 0 and lines else None


def _time(us: float | None) -> str:
    return "fails" if us is None else seconds(1e-6 * us)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
