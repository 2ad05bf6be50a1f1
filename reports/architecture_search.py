"""The report on a search for shapes of a model: the Pareto front of time and parameters."""

from __future__ import annotations

import shlex
from math import isnan
from typing import Final

import numpy as np

from llmviewer.options import SearchOptions
from llmviewer.setting import options_of
from llmviewer.sweeping.search import ArchitectureSearch, Shape
from llmviewer.units import counted, seconds, si
from llmviewer.variants.evaluation import Objective

from .page_figures import Picture, picture
from .parts import Card, Command, option_words
from .phrases import BOUNDS, between
from .report import Report
from .tables import DASH, Item, Table, time_item

_TIMES: Final = {Objective.TTFT: "TTFT", Objective.TPOT: "TPOT", Objective.LATENCY: "E2E"}
_PROXIES: Final = {"layers": "parameters of layers", "active": "active parameters of layers", "all": "parameters"}


def title(result: ArchitectureSearch) -> str:
    """The model whose shape is searched, and the device."""
    return f"Shapes of {result.space.name} on {result.hardware.title}"


def headline(result: ArchitectureSearch) -> str:
    """The request, the space, and the largest shape within the targets."""
    request = result.request
    generated = f", {request.gen} generated" if request.gen else ""
    axes = ", ".join(f"{axis} {_values(values)}" for axis, values in result.space.axes.items())
    targets = " and ".join(
        f"{_TIMES[Objective(name.removesuffix('_s'))]} <= {seconds(limit)}"
        for name, limit in result.targets.given().items()
    )
    within = f"{result.within:,} fit and meet {targets}" if targets else f"{result.fitting:,} fit"
    return (
        f"{title(result)}: batch {request.batch}, prompt {request.prompt}{generated}. "
        f"{counted(result.candidates, 'combination')} of {axes}: {within}. {_outcome(result)}"
    )


def _values(values: tuple[int, ...]) -> str:
    return f"{values[0]}" if len(values) == 1 else f"{min(values)} to {max(values)} ({len(values)})"


def _outcome(result: ArchitectureSearch) -> str:
    largest, expected = result.largest, result.largest_expected
    if largest is None:
        smallest = min(map(float, result.numbers.total_bytes))
        if smallest > result.hardware.capacity:
            return f"Does not fit: the smallest needs {si(smallest)}B of {si(result.hardware.capacity)}B."
        fits = result.numbers.total_bytes <= result.hardware.capacity
        lowest = " and ".join(
            f"the lowest {_TIMES[Objective(name.removesuffix('_s'))]} is >= "
            f"{seconds(float(np.min(getattr(result.numbers, name)[fits])))}"
            for name in result.targets.given()
        )
        return f"None is within the targets: of the shapes that fit, {lowest}."
    if not result.targets.given():
        return f"Largest: {_named(largest)}, {_size(largest, result)}."
    sentence = f"Largest at the bound: {_named(largest)}, {_size(largest, result)}."
    if largest.evaluation.expected is None:
        return sentence
    if expected is None:
        return f"{sentence} None that was evaluated meets the targets as expected."
    return f"{sentence} Largest as expected: {_named(expected)}, {_size(expected, result)}."


def _named(one: Shape) -> str:
    return ", ".join(f"{axis} {value}" for axis, value in one.axes.items())


def _size(one: Shape, result: ArchitectureSearch) -> str:
    return f"{si(one.proxy)} {_PROXIES[result.proxy]}"


def tables(result: ArchitectureSearch) -> list[Table]:
    """A row for each evaluated shape of the front, and for the model itself."""
    if not result.front:
        return []
    time = _TIMES[result.by]
    met = " and meet the targets at the bound" if result.targets.given() else ""
    has_other = len(result.shapes) > len(result.front)
    extent = f"{len(result.front)} of {counted(result.front_size, 'shape')}" if _is_part(result) else "All shapes"
    return [
        Table(
            title=f"Pareto front at the bound{', and the largest as expected' * has_other}, the fastest first",
            about=f"{extent} that fit{met}, with no other shape both faster and larger. Size: "
            f"{_PROXIES[result.proxy]}.{' Within: whether it meets the targets as expected.' * bool(met)}",
            head=(*result.space.axes, "size", "params", f"{time} >=", "expected", "within", "memory"),
            words=("within",),
            body=tuple(_row(one, result) for one in result.shapes),
        ).without(*(() if met else ("within",)))
    ]


def _is_part(result: ArchitectureSearch) -> bool:
    return len(result.front) < result.front_size


def _row(one: Shape, result: ArchitectureSearch) -> tuple[Item, ...]:
    evaluation = one.evaluation
    total = float(evaluation.memory_bytes)
    expected = one.expected(result.by)
    is_within = bool(result.targets.met(evaluation.likely))
    return (
        *(Item(text=str(value), key=value) for value in one.axes.values()),
        Item(text=si(one.proxy), key=one.proxy),
        Item(text=si(one.model.parameters), key=one.model.parameters),
        time_item(one.bound_s(result.by)),
        Item(text=between(*expected.numbers()), key=float(expected.expected)) if expected else DASH,
        Item(text="yes" if is_within else "no", alarm=not is_within) if expected else DASH,
        Item(text=f"{si(total)}B", key=total),
    )


def remarks(result: ArchitectureSearch) -> list[str]:
    """The model itself, fields that follow the width, and combinations that are no model."""
    base = result.base
    bound, expected = base.bound_s(result.by), base.expected(result.by)
    about = f", expected {between(*expected.numbers())}" if expected else ""
    size = f"{si(base.proxy)} {_PROXIES[result.proxy]}"
    sentences = [f"{result.space.name} itself: {size}, {_TIMES[result.by]} >= {seconds(bound)}{about}."]
    followers = [axis for axis in result.space.columns if axis not in result.space.axes]
    if followers:
        sentences.append(f"Not varied, so they follow: {', '.join(followers)} (`llmviewer docs sweeps`).")
    if result.refused:
        sentences.append(
            f"{counted(result.refused, 'combination')} left out: the heads do not divide the width, or the config "
            "contradicts itself."
        )
    return sentences


def basis(_: ArchitectureSearch) -> str:
    """The meaning of the numbers."""
    return (
        f"{BOUNDS}. Parameters stand for quality, which is not computed (arXiv:2203.02094 measured how well they rank "
        "decoders)."
    )


def _cards(result: ArchitectureSearch) -> list[Card]:
    if result.largest is None:
        return [Card(label="shapes", value="none", about="fits and meets the targets", alarm=True)]
    shapes = {"largest at the bound": result.largest}
    if result.targets.given() and result.largest_expected and result.largest_expected.evaluation.expected:
        shapes["largest as expected"] = result.largest_expected
    return [
        Card(label=label, value=si(one.proxy), about=f"{_PROXIES[result.proxy]}: {_named(one)}")
        for label, one in shapes.items()
    ]


def _pictures(result: ArchitectureSearch) -> list[list[Picture | Table]]:
    times = getattr(result.numbers, f"{result.by}_s")
    if not result.front or all(map(isnan, times)):
        return []
    from .search_figures import front_figure

    return [[picture(front_figure(result, _TIMES[result.by], _PROXIES[result.proxy]), "front")]]


def _more(result: ArchitectureSearch) -> list[Command]:
    """A finer search around the largest shape."""
    largest, setting = result.largest_expected or result.largest, result.base.evaluation.setting
    if largest is None or setting.profiles:  # the files of profiles are not known
        return []
    over = tuple(_near(axis, values, largest) for axis, values in result.space.axes.items())
    if not any(".." in axis for axis in over):
        return []
    targets = {name.removesuffix("_s"): limit for name, limit in result.targets.given().items()}
    request = {"batch": result.request.batch, "prompt": result.request.prompt, "gen": result.request.gen}
    arguments = {
        "over": over, **targets, "by": result.by if result.by != next(iter(targets), "tpot") else None,
        "proxy": result.proxy if result.proxy != "layers" else None, **request,
        **options_of(setting, SearchOptions), "hardware_set": result.hardware.changes,
    }  # fmt: skip
    subject = f"llmviewer search {shlex.quote(result.space.name)} {shlex.quote(result.hardware.name)}"
    words = [subject, *option_words({name: value for name, value in arguments.items() if value is not None})]
    return [Command(purpose="A finer search around the largest:", words=words)]


def _near(axis: str, values: tuple[int, ...], largest: Shape) -> str:
    """The axis at finer steps between the neighbours of its value."""
    ordered, value = sorted(values), largest.axes[axis]
    place = ordered.index(value)
    low, high = ordered[max(place - 1, 0)], ordered[min(place + 1, len(ordered) - 1)]
    step = next((s for s in (128, 64, 32, 16, 8, 4, 2, 1) if s * 4 <= high - low and not (high - low) % s), 0)
    return f"{axis}={low}..{high}+{step}" if step else f"{axis}={value}"


REPORT: Final = Report[ArchitectureSearch](
    name="search", title=title, headline=headline, tables=tables, remarks=remarks, basis=basis, cards=_cards,
    pictures=_pictures, more=_more,
)  # fmt: skip
