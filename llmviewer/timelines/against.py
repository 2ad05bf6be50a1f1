"""What was recorded of a model beside what its analysis says: part by part of a pass."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from .. import __version__
from ..analyzing.analysis import Analysis
from ..analyzing.phases import OperatorResult, Phase
from ..errors import InputError
from ..setting import whole
from .kinds import Part, marks_a_layer, part_of_operator, parts_of
from .passes import Averaged, averaged
from .products import ProductOfPass, products_of
from .reading import Launches, read_timeline

SCHEMA_VERSION: Final = 1
IDLE: Final = "nothing runs"  # what the time between kernels is called beside the parts
_MIXING: Final = ("attention", "scan")  # kinds of operators that mix tokens
_BESIDE: Final = ("indexer",)  # those of them that no kernel of attention runs


@dataclass(frozen=True, kw_only=True)
class PartOfPass:
    """What kernels of a kind take in a pass, and what its operators take at least and as expected. [s]

    expected_s  None where only the bound of some of them is known
    """

    part: str
    launches: float
    measured_s: float
    bound_s: float
    expected_s: float | None
    expected_low_s: float | None
    expected_high_s: float | None


@dataclass(frozen=True, kw_only=True)
class KernelOfPass:
    """launches and measured_s are of all of that name in a pass. [s]"""

    name: str
    part: str
    launches: float
    measured_s: float


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """A pass as a profiler recorded it, beside its analysis.

    parts    those with kernels or operators, in the order of their measured times
    products matrix products in their order, where that tells kernels apart
    kernels  by name, in the order of their times
    layers   of the model that mix tokens, and `mixing` the launches of a pass that do
    devices  in the file, of which one is looked at
    """

    file: str
    phase: str
    analysis: Analysis = field(repr=False)
    passes: Averaged
    parts: tuple[PartOfPass, ...]
    products: tuple[ProductOfPass, ...] = field(repr=False)
    kernels: tuple[KernelOfPass, ...] = field(repr=False)
    layers: int
    devices: int

    @property
    def mixing(self) -> float:
        return sum(kernel.launches for kernel in self.kernels if marks_a_layer(kernel.name, Part(kernel.part)))

    @property
    def of_phase(self) -> Phase:
        return next(phase for name, phase in self.analysis.phases if name == self.phase)

    @property
    def time_s(self) -> float:
        """A pass, with what runs nothing, where that is known. [s]"""
        return self.passes.busy_s if self.passes.time_s is None else self.passes.time_s

    @property
    def idle_s(self) -> float | None:
        """In which nothing runs; None where only sums of kernels are known. [s]"""
        return None if self.passes.time_s is None else max(self.passes.time_s - self.passes.busy_s, 0.0)

    @property
    def inputs(self) -> dict[str, Any]:
        return {"file": self.file, "phase": self.phase, **asdict(self.analysis.inputs)}

    def rows(self) -> Iterator[dict[str, Any]]:
        """Parts, products, then kernels."""
        for part in self.parts:
            yield {"kind": "part", "name": part.part, **asdict(part)}
        for product in self.products:
            yield {
                "kind": "product", "name": "+".join(product.operators), "part": Part.PRODUCTS.value,
                "launches": product.launches, "measured_s": product.measured_s, "bound_s": product.bound_s,
                "expected_s": product.expected_s,
            }  # fmt: skip
        for kernel in self.kernels:
            yield {"kind": "kernel", **asdict(kernel)}

    def to_dict(self) -> dict[str, Any]:
        """The JSON document; docs/timeline.md has its keys."""
        total, each = self.of_phase.total, self.passes.each_s
        return {
            "schema_version": SCHEMA_VERSION,
            "llmviewer_version": __version__,
            "model": self.analysis.model.name,
            "hardware": self.analysis.hardware.name,
            "inputs": self.inputs,
            "passes": self.passes.passes,
            "passes_left_out": self.passes.others,
            "pass_time_s": self.passes.time_s,
            "pass_time_p20_s": float(np.quantile(each, 0.2)) if len(each) else None,
            "pass_time_p80_s": float(np.quantile(each, 0.8)) if len(each) else None,
            "busy_s": self.passes.busy_s,
            "idle_s": self.idle_s,
            "bound_time_s": total.bound_time_s,
            "expected_time_s": total.expected_time_s,
            "expected_low_s": total.expected_low_s,
            "expected_high_s": total.expected_high_s,
            "parts": [asdict(part) for part in self.parts],
            "products": [asdict(product) for product in self.products],
            "kernels": [asdict(kernel) for kernel in self.kernels],
        }


def recorded(file: str | Path, analysis: Analysis, *, phase: str = "decode", passes: int | None = None) -> Recorded:
    """What a profiler recorded of a pass, beside what it takes at least and as expected.

    file      of torch.profiler or Nsight Systems, as reading.FORMATS has them; of one rank where there are several
    analysis  of the model on the device, with batch, lengths, precision and layout as they were when it was recorded
    phase     "prefill" or "decode": which kind of passes is looked at where there are both
    passes    in the file; None to count the launches that mix tokens, or to take those that the engine named

    Raises InputError, one line of text, where something given cannot be used.
    """
    passes = None if passes is None else whole("passes", passes)
    found, shown = read_timeline(Path(file)), dict(analysis.phases)
    if phase not in shown:
        raise InputError(f"phase must be {' or '.join(shown)} of {analysis.model.name}; got {phase!r}")
    if shown[phase].stages > 1:
        raise InputError("pp must be 1: which layers of a pipeline a timeline is of is not known")
    operators = shown[phase].operators
    layers = sum(op.repeat for op in operators if op.kind in _MIXING and op.name not in _BESIDE)
    if not layers and not passes:
        raise InputError(f"passes must be given: {analysis.model.name} has no layers that mix tokens to count them by")
    parts = parts_of(set(found.names), operators)
    mean = averaged(found, parts, layers=layers, passes=passes, phase=phase)
    kernels = sorted(
        (
            KernelOfPass(name=name, part=parts[name], launches=mean.launches[name], measured_s=taken)
            for name, taken in mean.kernels_s.items()
        ),
        key=lambda kernel: -kernel.measured_s,
    )
    return Recorded(
        file=str(file),
        phase=phase,
        analysis=analysis,
        passes=mean,
        parts=_parts(kernels, operators),
        products=products_of(mean.products, analysis.model.graph, operators),
        kernels=tuple(kernels),
        layers=layers,
        devices=found.devices if isinstance(found, Launches) else 1,
    )


def _parts(kernels: Iterable[KernelOfPass], operators: Iterable[OperatorResult]) -> tuple[PartOfPass, ...]:
    own: dict[str, list[KernelOfPass]] = {part: [] for part in Part}
    for kernel in kernels:
        own[kernel.part].append(kernel)
    counted: dict[str, list[OperatorResult]] = {part: [] for part in Part}
    for op in operators:
        counted[part_of_operator(op)].append(op)
    found = (_part(part, own[part], counted[part]) for part in Part if own[part] or counted[part])
    return tuple(sorted(found, key=lambda part: -part.measured_s))


def _part(name: str, kernels: list[KernelOfPass], operators: list[OperatorResult]) -> PartOfPass:
    def total(key: str) -> float | None:
        values = [getattr(op, key) for op in operators]
        return sum(values) if values and None not in values else None

    return PartOfPass(
        part=name,
        launches=sum(kernel.launches for kernel in kernels),
        measured_s=sum(kernel.measured_s for kernel in kernels),
        bound_s=sum(op.bound_time_s for op in operators),
        expected_s=total("expected_time_s"),
        expected_low_s=total("expected_low_s"),
        expected_high_s=total("expected_high_s"),
    )
