"""Launch overhead of the host."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..expectation.launches import counted
from ..forms import Num, evaluate
from ..records import frozen
from ..roofline import Plan
from ..units import seconds
from ..workload import Workload
from . import technique
from ._parameters import parameter
from ._schedule import Run, Schedule
from ._technique import Finding, Kind, Requirement, SettingView, Technique


@technique("launches")
@frozen(kw_only=True)
class EagerLaunches(Technique):
    """Eager mode: the host launches kernels one at a time, where a CUDA graph needs one launch for a whole pass.

    Effect: every pass in which the host is slower than the device takes longer, drafts included.
    Formula: time of a pass = max(bound, launches x each).
    Source: arXiv:2404.14294, section 6.1.1; the default of 5 us is recalled.
    Use when: you want to quantify what CUDA graphs and fewer launches (`fusion`) save with small models, small batches
    and short prompts.
    Limits: no effect if the device takes longer than the launches, as in most prefills.
    Not modeled: the time of small kernels above their bound; the host's work between passes.
    """

    kind = Kind.GRAPH
    requires = Requirement.NOTHING
    order = 20  # after techniques that arrange passes

    each: float = parameter("host time per launch", 5.0, unit="us", least=0, open=True)

    def schedule(self, schedule: Schedule, setting: SettingView) -> Schedule:  # noqa: ARG002
        def launched(run: Run) -> Iterator[Run]:
            yield replace(run, host_s=run.parts * self._host_s(run.plan, run.workload))

        return schedule.map(first=launched, rest=launched)

    def _host_s(self, plan: Plan, workload: Workload) -> Num:
        return 1e-6 * self.each * evaluate(counted(plan), workload)

    def findings(self, setting: SettingView, step: Workload) -> tuple[Finding, ...]:
        plan = setting.decode_plan
        host, device = seconds(float(self._host_s(plan, step))), seconds(float(plan.time_s(step)))
        count = float(evaluate(counted(plan), step))
        text = f"a decode step has {count:.0f} launches: {host} of host time, at least {device} of device time"
        return (Finding(key="launches_per_step", value=count, text=text),)
