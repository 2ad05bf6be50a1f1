"""A roofline analyzer for LLM inference: times, their bounds and what would improve them.

>>> import llmviewer
>>> result = llmviewer.analyze("llama-2-7b", "rtx-a6000", prompt=2048)
>>> result.phases.decode.total.bound
'memory'
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ._layout import IN_CHECKOUT as _IN_CHECKOUT
from ._layout import ROOT as _ROOT

if TYPE_CHECKING:
    from .analyzing.afd import ExpertDisaggregation, afd
    from .analyzing.afd_splits import Splits, afd_splits
    from .analyzing.analysis import Analysis, analyze
    from .analyzing.disaggregation import Disaggregated, disaggregate
    from .analyzing.one_kernel import KernelEstimate, kernel
    from .comparing.choice import Choice, choose
    from .comparing.comparison import Comparison, compare
    from .comparing.host_split import HostSplit, split
    from .comparing.machine_fit import MachineFit, fit
    from .devices.files import hardware_names, load_hardware
    from .devices.hardware import Hardware
    from .errors import InputError
    from .model import Model
    from .model_files import load_model, model_names
    from .request import Request
    from .server_memory import Capacity, capacity
    from .serving.advice import Advice, advise
    from .serving.load_curve import LoadCurve, concurrency_sweep
    from .serving.outcome import Simulation
    from .serving.planning import plan
    from .serving.saturation import Saturation, max_throughput
    from .serving.service_plan import ServicePlan
    from .serving.simulation import simulate
    from .serving.simulation_sweep import SimulationSweep, simulation_sweep
    from .setting import Setting
    from .sweeping.grid import Sweep, sweep
    from .sweeping.search import ArchitectureSearch, search
    from .timelines.against import Timeline, timeline
    from .variants.evaluation import Evaluation, Objective
    from .variants.variant import Change, Variant, evaluate

if _IN_CHECKOUT:  # reports/ is a sibling of this folder
    __path__.append(str(_ROOT))

__version__ = "0.2.0"

_HOME = {
    "ExpertDisaggregation": "analyzing.afd",
    "afd": "analyzing.afd",
    "Splits": "analyzing.afd_splits",
    "afd_splits": "analyzing.afd_splits",
    "Capacity": "server_memory",
    "capacity": "server_memory",
    "Analysis": "analyzing.analysis",
    "analyze": "analyzing.analysis",
    "Choice": "comparing.choice",
    "choose": "comparing.choice",
    "Comparison": "comparing.comparison",
    "compare": "comparing.comparison",
    "HostSplit": "comparing.host_split",
    "split": "comparing.host_split",
    "MachineFit": "comparing.machine_fit",
    "fit": "comparing.machine_fit",
    "Disaggregated": "analyzing.disaggregation",
    "disaggregate": "analyzing.disaggregation",
    "Hardware": "devices.hardware",
    "hardware_names": "devices.files",
    "load_hardware": "devices.files",
    "InputError": "errors",
    "Model": "model",
    "load_model": "model_files",
    "model_names": "model_files",
    "KernelEstimate": "analyzing.one_kernel",
    "kernel": "analyzing.one_kernel",
    "Request": "request",
    "Setting": "setting",
    "Sweep": "sweeping.grid",
    "sweep": "sweeping.grid",
    "ArchitectureSearch": "sweeping.search",
    "search": "sweeping.search",
    "Advice": "serving.advice",
    "advise": "serving.advice",
    "ServicePlan": "serving.service_plan",
    "plan": "serving.planning",
    "Saturation": "serving.saturation",
    "max_throughput": "serving.saturation",
    "Timeline": "timelines.against",
    "timeline": "timelines.against",
    "LoadCurve": "serving.load_curve",
    "concurrency_sweep": "serving.load_curve",
    "Simulation": "serving.outcome",
    "simulate": "serving.simulation",
    "SimulationSweep": "serving.simulation_sweep",
    "simulation_sweep": "serving.simulation_sweep",
    "Evaluation": "variants.evaluation",
    "Objective": "variants.evaluation",
    "Change": "variants.variant",
    "Variant": "variants.variant",
    "evaluate": "variants.variant",
}
__all__ = [
    "Advice",
    "Analysis",
    "ArchitectureSearch",
    "Capacity",
    "Change",
    "Choice",
    "Comparison",
    "Disaggregated",
    "Evaluation",
    "ExpertDisaggregation",
    "Hardware",
    "HostSplit",
    "InputError",
    "KernelEstimate",
    "LoadCurve",
    "MachineFit",
    "Model",
    "Objective",
    "Request",
    "Saturation",
    "ServicePlan",
    "Setting",
    "Simulation",
    "SimulationSweep",
    "Splits",
    "Sweep",
    "Timeline",
    "Variant",
    "__version__",
    "advise",
    "afd",
    "afd_splits",
    "analyze",
    "capacity",
    "choose",
    "compare",
    "concurrency_sweep",
    "disaggregate",
    "evaluate",
    "fit",
    "hardware_names",
    "kernel",
    "load_hardware",
    "load_model",
    "max_throughput",
    "model_names",
    "plan",
    "search",
    "simulate",
    "simulation_sweep",
    "split",
    "sweep",
    "timeline",
]


_RENAMED = {  # until the next release
    "Recorded": "Timeline",
    "estimate_kernel": "kernel",
    "load_curve": "concurrency_sweep",
    "recorded": "timeline",
    "saturate": "max_throughput",
}


def __getattr__(name: str) -> Any:
    """Imports public names on first use, so that `import llmviewer` is fast."""
    if name == "recommend":
        from .deprecated import recommend

        return recommend
    if name in _RENAMED:
        from warnings import warn

        warn(f"llmviewer.{name} is now llmviewer.{_RENAMED[name]}", DeprecationWarning, stacklevel=2)
        return __getattr__(_RENAMED[name])
    if name not in _HOME:
        raise AttributeError(f"module 'llmviewer' has no attribute {name!r}")
    value = getattr(import_module(f".{_HOME[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
