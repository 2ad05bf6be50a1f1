"""Launch overhead of the host."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from ..expectation.engines import IDLE
from ..expectation.launches import counted
from ..forms import evaluate
from ..records import frozen
from ..units import seconds
from ..workload import Workload
from . import technique
from ._parameters import parameter
from ._schedule import Run, Schedule
from ._technique import Finding, Kind, Requirement, SettingView, Technique

_EAGER_LAUNCH_S: Final = 19e-6  # least of those below
_EAGER_RANGE: Final = 28 / 19, 57 / 19  # what is expected and the most, over it


@technique("launches")
@frozen(kw_only=True)
class EagerLaunches(Technique):
    """Eager mode: the host launches kernels one at a time, where a CUDA graph needs one launch for a whole pass.

    Effect: every pass in which the host is slower than the device takes longer, drafts included.
    Formula: time of a pass = max(bound, launches x each). Without `each` it is what the engine's file states, as of
    --engine huggingface; without that at least 19 us, 28 expected, 57 at most, by program and host.
    Source: arXiv:2404.14294, section 6.1.1. Launches as counted here in measured passes: Llama 3.1 8B on an H100, 451
    in 8.4 ms (cloudai.pt/tag/cuda-graphs); Qwen3-4B, 579 in 16.5 ms (github.com/wejoncy/sfllm, pull 46); Qwen2.5-7B on
    an A800, vLLM without graphs, 395 in 22.5 ms (github.com/vllm-project/vllm-omni, issue 7960).
    Use when: you want to quantify what CUDA graphs and fewer launches (`fusion`) save with small models, small batches
    and short prompts.
    Limits: no effect if the device takes longer than the launches, as in most prefills.
    Not modeled: the time of small kernels above their bound; the host's work between passes. Layers of some programs
    have more kernels than are counted here, which is part of `each`.
    """

    kind = Kind.GRAPH
    requires = Requirement.NOTHING
    order = 20  # after techniques that arrange passes

    each: float | None = parameter(
        "host time per launch; that of the engine if not given, or a range", None, unit="us", least=0, open=True
    )

    def schedule(self, schedule: Schedule, setting: SettingView) -> Schedule:
        each_s, spread = self._each_s(setting)

        def launched(run: Run) -> Iterator[Run]:
            host_s = run.parts * each_s * evaluate(counted(run.plan), run.workload)
            yield replace(run, host_s=host_s, host_range=spread)

        return schedule.map(first=launched, rest=launched)

    def _each_s(self, setting: SettingView) -> tuple[float, tuple[float, float]]:
        """Least host time of a launch, and what is expected and the most over it. [s]"""
        if self.each is not None:
            return 1e-6 * self.each, (1.0, 1.0)
        host = setting.engine.host if setting.engine else IDLE
        stated_s = max(host.launch_s, host.prefill_launch_s)
        return (stated_s, (1.0, 1.0)) if stated_s else (_EAGER_LAUNCH_S, _EAGER_RANGE)

    def findings(self, setting: SettingView, step: Workload) -> tuple[Finding, ...]:
        plan = setting.decode_plan
        count, (least_s, (expected, most)) = float(evaluate(counted(plan), step)), self._each_s(setting)
        each = seconds(expected * least_s) + (f" ({seconds(least_s)} to {seconds(most * least_s)})" if most > 1 else "")
        host, device = seconds(count * expected * least_s), seconds(float(plan.time_s(step)))
        text = (
            f"a decode step has {count:.0f} launches of {each}: {host} of host time, at least {device} of device time"
        )
        return (Finding(key="launches_per_step", value=count, text=text),)
