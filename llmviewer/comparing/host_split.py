"""split(): a model on a device and its host, by the number of layers that the host computes."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import field, replace
from typing import Any, ClassVar, Final, NamedTuple, Unpack

from .. import __version__, arguments
from ..analyzing.advice import time_by_side
from ..analyzing.facts import describe_hardware, describe_model, plain
from ..devices.hardware import Hardware
from ..errors import InputError
from ..model import Model
from ..operators.linear import ExpertsLinear
from ..options import GenerationOptions, SplitArguments, SplitOptions, document_options, only
from ..records import frozen
from ..request import Request
from ..rows import Rows
from ..setting import Setting
from ..transforms.host import HostPlacement, is_second_gpu
from ..variants.evaluation import Evaluation

SCHEMA_VERSION: Final = 1  # of to_dict()
PARTS: Final = ("experts", "layers", "attention")
_MAX_POINTS: Final = 13  # numbers of layers that are shown


class Sides(NamedTuple):
    """Time of a decode step at the bound by where it is spent. [s]"""

    device: float = 0.0
    host: float = 0.0
    link: float = 0.0


@frozen(kw_only=True)
class SplitPoint:
    """A number of layers whose part the host computes, 0 for none."""

    layers: int
    evaluation: Evaluation = field(repr=False)

    @property
    def on_host(self) -> str:
        """The placement as --on-host takes it; "" for none."""
        return str(self.evaluation.setting.placement)

    @property
    def fits(self) -> bool:
        return bool(self.evaluation.fits)

    @property
    def fits_device(self) -> bool:
        """Whether the device has room for the rest."""
        return bool(self.evaluation.memory_bytes <= self.evaluation.capacity_bytes)

    @property
    def fits_host(self) -> bool:
        """Whether the host has room for its part."""
        return self.evaluation.memory.fits_host

    @property
    def device_bytes(self) -> float:
        return float(self.evaluation.memory_bytes)

    @property
    def host_bytes(self) -> float:
        return self.evaluation.memory.host_bytes

    @property
    def tpot_s(self) -> float:
        """Expected time per output token; the bound if only that is known. [s]"""
        return float(self.evaluation.likely.tpot_s)

    @property
    def sides(self) -> Sides:
        """Time of the decode step on each side."""
        return Sides(**time_by_side(self.evaluation.estimate("decode")))

    @property
    def bound(self) -> str:
        """Side and resource that the decode step waits for longest at the bound, such as "memory of the host"."""
        times: dict[tuple[str, str], float] = {}
        for row in self.evaluation.estimate("decode").rows:
            bound = row.limiting.bound
            side = "" if bound == "link" else "host" if row.operator.on_host else "device"
            times[bound, side] = times.get((bound, side), 0.0) + float(row.repeat * row.time_s)
        bound, side = max(times, key=times.__getitem__)
        return f"{bound} of the {side}" if side else bound


@frozen(kw_only=True, repr=False)
class HostSplit(Rows):
    """The result of split().

    part    what the host computes of its layers: "experts", "layers" or "attention"
    points  by the number of layers, fewest first
    """

    report: ClassVar = "host_split"

    model: Model
    hardware: Hardware
    host: Hardware
    request: Request
    part: str
    points: tuple[SplitPoint, ...] = field(repr=False)

    @property
    def best(self) -> SplitPoint | None:
        """The fastest split that fits; None if none does."""
        return min((one for one in self.points if one.fits), key=lambda one: one.tpot_s, default=None)

    @property
    def inputs(self) -> dict[str, Any]:
        """The inputs of the JSON document."""
        setting = self.points[0].evaluation.setting
        fixed = {"on_host": "", "host": self.host.name, "host_set": tuple(self.host.changes), "part": self.part}
        return {**self.request.inputs(), **setting.inputs(), **fixed}

    def rows(self) -> Iterator[dict[str, Any]]:
        """A row for each number of layers, in SI units."""
        for one in self.points:
            bounds, expected = one.evaluation.bounds, one.evaluation.expected
            yield {
                "on_host": one.on_host,
                "layers": one.layers,
                "fits": one.fits,
                "device_bytes": one.device_bytes,
                "host_bytes": one.host_bytes,
                "ttft_s": float(bounds.ttft_s),
                "tpot_s": float(bounds.tpot_s),
                "expected_ttft_s": float(expected.ttft_s) if expected else None,
                "expected_tpot_s": float(expected.tpot_s) if expected else None,
                **{f"{side}_s": time_s for side, time_s in one.sides._asdict().items()},
                "bound": one.bound,
            }

    def to_dict(self) -> dict[str, Any]:
        """The JSON document."""
        return plain({
            "schema_version": SCHEMA_VERSION,
            "llmviewer_version": __version__,
            "model": describe_model(self.model),
            "hardware": describe_hardware(self.hardware),
            "host": describe_hardware(self.host),
            "inputs": self.inputs,
            "best": self.best.on_host if self.best else None,
            "points": list(self.rows()),
        })  # fmt: skip


@document_options(SplitArguments)
def split(
    model: str | Model,
    hardware: str | Hardware,
    *,
    part: str = "",
    **options: Unpack[SplitArguments],
) -> HostSplit:
    """Speeds and memory of `model` on `hardware` and `host`, by the number of layers of which the host computes a part.

    part  what the host computes: "experts" (default if the model has some and the host is a CPU), "layers" or
          "attention"

    Raises InputError if an argument is invalid.
    """
    if not options.get("host"):
        raise InputError("host must be given: a CPU such as ryzen-9-9950x, a second GPU, or a file of one")
    if part and part not in PARTS:
        raise InputError(f"part must be one of {', '.join(PARTS)}; got {part!r}")
    arguments.check_options(options, SplitArguments)
    first = Setting.of(model, hardware, **only(options, SplitOptions), on_host="layers=1")
    if not first.model.generates:
        raise InputError(f"{first.model.name} does not generate: it has no decode steps to split")
    has_experts = any(isinstance(op, ExpertsLinear) for _, op in first.model.graph)
    part = part or ("experts" if has_experts and not is_second_gpu(first.host) else "layers")
    request = Request.of(**only(options, GenerationOptions)).of_model(first.model)

    def point(layers: int) -> SplitPoint:
        placed = replace(first, placement=HostPlacement(**{part: layers}))
        return SplitPoint(layers=layers, evaluation=Evaluation.of(placed.agreed(), request))

    count = first.model.graph.layers
    least = bisect_left(range(count + 1), True, key=lambda layers: point(layers).fits_device)
    layer_counts = {round(count * step / (_MAX_POINTS - 2)) for step in range(_MAX_POINTS - 1)} | {min(least, count)}
    points = tuple(map(point, sorted(layer_counts)))
    for one in points:
        one.evaluation.expect_all()
    assert first.host
    return HostSplit(
        model=first.model, hardware=first.hardware, host=first.host, request=request, part=part, points=points
    )
