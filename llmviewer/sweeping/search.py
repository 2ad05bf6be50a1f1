"""search(): shapes of a model under latency targets, with the roofline as the oracle and parameters as the proxy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from math import inf
from operator import add
from typing import Any, ClassVar, Final, Unpack

import numpy as np

from .. import __version__, arguments
from ..analyzing.facts import describe_hardware, describe_model, plain
from ..devices.hardware import Hardware
from ..errors import InputError
from ..expectation.expected import Interval
from ..model import Model
from ..options import GenerationOptions, SearchArguments, SearchOptions, document_options, only
from ..records import frozen
from ..request import Request
from ..rows import Rows
from ..setting import Setting
from ..variants.evaluation import Evaluation, Objective, Times, expect_together
from .shapes import ShapeSpace
from .stacking import Columns, Indices, numbers_of, stacked

SCHEMA_VERSION: Final = 1  # of to_dict()
PROXIES: Final[Mapping[str, str]] = {  # proxies of quality: columns of the candidates
    "layers": "layer_parameters", "active": "active_parameters", "all": "parameters",
}  # fmt: skip
_MAX_SHOWN: Final = 12  # shapes of the front that are evaluated
_MAX_TRIED: Final = 48  # shapes that are evaluated for the largest within the targets as expected
_TRIED_TOGETHER: Final = 6  # of them at once
_MIN_FITTED: Final = 3  # shapes from which expected times are predicted
_MARGIN: Final = 1.05  # over the target up to which a predicted time is worth a try
_MAX_LOWERED: Final = 20_000  # candidates that are lowered one by one: some minutes


@frozen(kw_only=True)
class ShapeTargets:
    """Limits on the time to first token, per output token and of the whole request; inf: none. [s]"""

    ttft_s: float = inf
    tpot_s: float = inf
    latency_s: float = inf

    def met(self, times: Times | Columns) -> Any:
        """Whether times are within all limits; a time that does not exist is."""
        within = [~np.greater(getattr(times, name), limit) for name, limit in vars(self).items()]
        return within[0] & within[1] & within[2]

    def given(self) -> dict[str, float]:
        """The limits that were given."""
        return {name: limit for name, limit in vars(self).items() if limit < inf}


@frozen(kw_only=True)
class Shape:
    """A candidate, evaluated on its own.

    axes   its values of the axes; empty for the model itself
    place  its place among the numbers of all candidates; -1 for the model itself
    proxy  its parameters that stand for quality
    """

    axes: Mapping[str, int]
    place: int
    proxy: int
    evaluation: Evaluation = field(repr=False)

    @property
    def model(self) -> Model:
        return self.evaluation.setting.model

    def bound_s(self, by: Objective) -> float:
        """A time at the bound. [s]"""
        return float(getattr(self.evaluation.bounds, f"{by}_s"))

    def expected(self, by: Objective) -> Interval | None:
        """A time as expected; None if only its bound is known. [s]"""
        if by is Objective.LATENCY:
            first, rest = self.evaluation.intervals or (None, None)
            return first.join(rest, add) if first and rest else None
        return self.evaluation.expected_ttft if by is Objective.TTFT else self.evaluation.expected_tpot


@frozen(kw_only=True, repr=False)
class ArchitectureSearch(Rows):
    """The result of search().

    by          time of the front
    proxy       name of the parameters that stand for quality
    base        the model itself
    candidates  number of combinations
    refused     combinations that are no model: heads that do not divide the width, or that no graph has
    numbers     bounds, memory and parameters of the others, and `indices` of them among all combinations
    front       shapes that fit and meet the targets, none of which another beats in time and proxy; fastest first
    front_size  number of shapes on the front, of which `front` has some
    largest_expected  the largest evaluated shape that meets the targets as expected, of the front or not; None if none
                does
    """

    report: ClassVar = "architecture_search"

    space: ShapeSpace = field(repr=False)
    hardware: Hardware
    request: Request
    targets: ShapeTargets
    by: Objective
    proxy: str
    base: Shape
    refused: int
    numbers: Columns = field(repr=False)
    indices: Indices = field(repr=False)
    front: tuple[Shape, ...] = field(repr=False)
    front_size: int
    largest_expected: Shape | None = field(repr=False)

    @property
    def candidates(self) -> int:
        return self.indices.size + self.refused

    @property
    def fitting(self) -> int:
        """Number of candidates that fit the memory."""
        return int(np.count_nonzero(self.numbers.total_bytes <= self.hardware.capacity))

    @property
    def within(self) -> int:
        """Number of candidates that fit and meet the targets at the bound."""
        return int(np.count_nonzero(_within(self.numbers, self.targets, self.hardware)))

    @property
    def largest(self) -> Shape | None:
        """The largest shape that meets the targets at the bound; None if none does."""
        return self.front[-1] if self.front else None

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """The evaluated shapes of the front and the largest as expected, fastest first."""
        best = self.largest_expected
        every = {one.place: one for one in (*self.front, *((best,) if best else ()))}
        return tuple(sorted(every.values(), key=lambda one: (one.bound_s(self.by), one.proxy)))

    @property
    def inputs(self) -> dict[str, Any]:
        """The inputs of the JSON document."""
        over = {axis: list(values) for axis, values in self.space.axes.items()}
        return {
            **self.request.inputs(), **self.base.evaluation.setting.inputs(), "over": over, "by": self.by,
            "proxy": self.proxy, **self.targets.given(),
        }  # fmt: skip

    def rows(self) -> Iterator[dict[str, Any]]:
        """A row for each of `shapes`, in SI units."""
        on_front = {one.place for one in self.front}
        for one in self.shapes:
            bounds, expected = one.evaluation.bounds.numbers(), one.evaluation.expected
            times = expected.numbers() if expected else dict.fromkeys(bounds)
            yield {
                **one.axes,
                "on_front": one.place in on_front,
                "parameters": one.model.parameters,
                "proxy_parameters": one.proxy,
                **bounds,
                **{f"expected_{name}": value for name, value in times.items()},
                "total_bytes": float(one.evaluation.memory_bytes),
                "meets_targets_as_expected": bool(self.targets.met(one.evaluation.likely)),
            }

    def to_dict(self) -> dict[str, Any]:
        """The JSON document."""
        return plain({
            "schema_version": SCHEMA_VERSION,
            "llmviewer_version": __version__,
            "model": describe_model(self.space.model),
            "hardware": describe_hardware(self.hardware),
            "inputs": self.inputs,
            "candidates": self.candidates,
            "refused": self.refused,
            "fitting": self.fitting,
            "within_targets": self.within,
            "front_size": self.front_size,
            "largest": dict(self.largest.axes) if self.largest else None,
            "largest_expected": dict(self.largest_expected.axes) if self.largest_expected else None,
            "shapes": list(self.rows()),
        })  # fmt: skip


@document_options(SearchArguments)
def search(
    model: str,
    hardware: str | Hardware,
    over: Mapping[str, Sequence[int]],
    *,
    by: str = "",
    proxy: str = "layers",
    **options: Unpack[SearchArguments],
) -> ArchitectureSearch:
    """Shapes of `model` under latency targets on `hardware`: those with the most parameters for their time.

    over                axes and their values: depth, width, heads, kv_heads, ffn, expert_ffn, experts, top_k, vocab, or
                        any whole number of the config; what follows the width is in ShapeSpace
    by                  time of the front: "tpot", "ttft" or "latency"; "": of the first target, else tpot
    proxy               parameters that stand for quality: of "layers", the "active" ones of layers, or "all"

    Raises InputError if an argument is invalid.
    """
    all_options = arguments.with_defaults(options, SearchArguments)
    limits = {name: all_options[name] for name in ("ttft", "tpot", "latency")}
    arguments.check_positive(**limits)
    if proxy not in PROXIES:
        raise InputError(f"proxy must be one of {', '.join(PROXIES)}; got {proxy!r}")
    space = ShapeSpace.of(model, over)
    setting_options = only(options, SearchOptions)
    base = Setting.of(space.model, hardware, **setting_options)
    request = Request.of(**only(options, GenerationOptions)).of_model(base.model)
    targets = ShapeTargets(**{f"{name}_s": limit or inf for name, limit in limits.items()})
    objective = _objective(by, targets, base.model, request.gen or 0)
    shared = {name: value for name, value in setting_options.items() if name != "hardware_set"}

    def lower(index: int) -> Setting:
        return Setting.of(space.candidate(index), base.hardware, **shared)  # type: ignore[arg-type]

    numbers, indices = _numbers(space, lower, request)
    times, sizes = getattr(numbers, f"{objective}_s"), getattr(numbers, PROXIES[proxy])
    within = np.flatnonzero(_within(numbers, targets, base.hardware))
    front = _front(times, sizes, within)

    def shape(place: int) -> Shape:
        index = int(indices[place])
        axes = {axis: int(space.columns[axis][index]) for axis in space.axes}
        return Shape(
            axes=axes, place=place, proxy=round(float(sizes[place])), evaluation=Evaluation.of(lower(index), request)
        )

    front_shapes = [shape(int(front[position])) for position in _spread(front.size)]
    itself = Shape(axes={}, place=-1, proxy=_proxy(base, request, proxy), evaluation=Evaluation.of(base, request))
    expect_together([itself.evaluation, *(one.evaluation for one in front_shapes)])
    tried = [*front_shapes, *_tried(numbers, within, sizes, shape, front=front_shapes, targets=targets, by=objective)]
    meeting = [one for one in tried if targets.met(one.evaluation.likely)]
    return ArchitectureSearch(
        space=space, hardware=base.hardware, request=request, targets=targets, by=objective, proxy=proxy, base=itself,
        refused=len(space.refused) - indices.size, numbers=numbers, indices=indices, front=tuple(front_shapes),
        front_size=front.size, largest_expected=max(meeting, key=lambda one: one.proxy, default=None),
    )  # fmt: skip


def _tried(
    numbers: Columns,
    within: Indices,
    sizes: Any,
    shape: Callable[[int], Shape],
    *,
    front: Sequence[Shape],
    targets: ShapeTargets,
    by: Objective,
) -> list[Shape]:
    """Shapes that may be the largest within the targets as expected, evaluated until one is.

    They are tried in the order of their size. Which are worth a try is predicted from their bound and number of
    launches, by the least squares of the shapes of the front; no prediction is shown.
    """
    limit = getattr(targets, f"{by}_s")
    times = [(one.expected(by), one.place) for one in front]
    expected_times = [(interval.expected, place) for interval, place in times if interval]
    if limit == inf or len(expected_times) < _MIN_FITTED:
        return []
    causes = np.stack([getattr(numbers, f"{by}_s"), numbers.launches], axis=1)
    factors, *_ = np.linalg.lstsq(
        causes[[place for _, place in expected_times]], np.array([s for s, _ in expected_times]), rcond=None
    )
    promising = within[causes[within] @ factors <= _MARGIN * limit]
    order = promising[np.argsort(-sizes[promising], kind="stable")][:_MAX_TRIED]
    tried: list[Shape] = []
    for start in range(0, order.size, _TRIED_TOGETHER):
        group = [shape(int(place)) for place in order[start : start + _TRIED_TOGETHER]]
        expect_together(one.evaluation for one in group)
        tried += group
        if any(targets.met(one.evaluation.likely) for one in group):
            break
    return tried


def _objective(by: str, targets: ShapeTargets, model: Model, gen: int) -> Objective:
    """The time of the front, by default that of the first target, else TPOT where there are decode steps."""
    timed = (Objective.TPOT, Objective.TTFT, Objective.LATENCY)
    if by and by not in timed:
        raise InputError(f"by must be one of {', '.join(timed)}; got {by!r}")
    if not model.generates and (by == Objective.TPOT or targets.tpot_s < inf):
        raise InputError(f"{model.name} does not generate: it has no time per output token; give ttft")
    if gen == 1 and (by == Objective.TPOT or targets.tpot_s < inf):
        raise InputError("gen must be at least 2 for a time per output token: one token has no decode step; got 1")
    first_target = next((name.removesuffix("_s") for name in targets.given()), "")
    return Objective(by or first_target or (Objective.TPOT if gen > 1 else Objective.TTFT))


def _numbers(space: ShapeSpace, lower: Callable[[int], Setting], request: Request) -> tuple[Columns, Indices]:
    """The numbers of all candidates that can run, and their indices.

    Raises InputError if none can, with the reason of the first, or if too many have to be lowered one by one.
    """
    lowered = 0

    def counted(index: int) -> Setting:
        nonlocal lowered
        lowered += 1
        if lowered > _MAX_LOWERED:
            raise InputError(
                f"over: {space.name} has layers of several kinds, in a pattern that these values break, so candidates "
                f"are evaluated one by one, at most {_MAX_LOWERED:,}; give fewer, or a depth in whole patterns"
            )
        return lower(index)

    parts, groups, reasons = [], [], list[InputError]()
    for group in space.groups():
        try:
            parts.append(stacked(space, group, counted, request))
            groups.append(group)
        except InputError as error:
            if lowered > _MAX_LOWERED:
                raise
            reasons.append(error)
    if not parts:
        raise (
            reasons[0]
            if reasons
            else InputError(
                f"over: no combination is a model: heads must divide the width, and kv_heads the heads, of {space.name}"
            )
        )
    return Columns.joined(parts), np.concatenate(groups)


def _within(numbers: Columns, targets: ShapeTargets, hardware: Hardware) -> Any:
    """Whether candidates fit the memory and meet the targets at the bound."""
    return targets.met(numbers) & (numbers.total_bytes <= hardware.capacity)


def _front(times: Any, sizes: Any, within: Indices) -> Any:
    """Candidates of `within` that no other beats in time and size, fastest first."""
    order = within[np.lexsort((-sizes[within], times[within]))]
    largest_before = np.concatenate([[-inf], np.maximum.accumulate(sizes[order])[:-1]]) if order.size else order
    return order[sizes[order] > largest_before]


def _spread(count: int) -> list[int]:
    """Positions over a front of `count` shapes, with both its ends."""
    return sorted(set(np.linspace(0, count - 1, min(count, _MAX_SHOWN)).round().astype(int).tolist()))


def _proxy(setting: Setting, request: Request, proxy: str) -> int:
    return round(float(getattr(numbers_of(setting, request), PROXIES[proxy])[0]))
