"""Designs of simulations: all combinations of settings and loads, each with several seeds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from inspect import signature
from math import inf, prod
from pathlib import Path
from typing import Any, Final, Self

from .. import __version__
from ..arguments import as_list, check_unique_names
from ..devices.files import load_hardware
from ..documents import path_exists
from ..errors import InputError, suggest
from ..model_files import load_model
from ..parameters import DEGREES
from ..records import frozen
from ..setting import whole_number
from ..sweeping.axes import DEVICE, check_distinct, check_values, parse_numbers, with_layouts
from ..sweeping.checks import check_changes
from ..sweeping.design import digest
from ..sweeping.shard_files import StoredDesign, hash_of
from ..techniques import parse_techniques
from .simulation import simulate

REAL_AXES: Final = ("rate", "scale_target")
NUMBER_AXES: Final = (
    "concurrency", "replicas", "prefill_replicas", "max_batch", "block", "requests", "system_prompt",
)  # fmt: skip
_ARGUMENTS: Final = {"prompt": "prompt_lengths", "gen": "gen_lengths"}  # of simulate(), by axis
_TEXT_AXES: Final = (
    "policy", "router", "mtbf", "notice", "recovery", "autoscale", "startup", *_ARGUMENTS, "session_turns",
    "think_time", "tenants", "quant", "layout", "engine", "library",
)  # fmt: skip
AXES: Final = (*REAL_AXES, *NUMBER_AXES, *_TEXT_AXES, *DEGREES)
_ALL_AXES: Final = (*AXES, *sorted(DEVICE))
DEFAULT_SEEDS: Final = 5
_FILES: Final = ("arrivals", "tasks", "profiles", *_ARGUMENTS.values())  # arguments that may name files
_MAX_SIMULATIONS: Final = 100_000  # shards of a folder


@frozen(kw_only=True)
class SimulationDesign(StoredDesign):
    """Simulations of all combinations of the values of axes, each with all seeds.

    Seeds vary slowest, so that an unfinished sweep has fewer of them for every combination, and the last axis fastest.

    axes     values of the model, the hardware and others of AXES, DEVICE and DEGREES
    seeds    random seeds
    options  other arguments of simulate() that are not the defaults
    digests  of models, devices and files when the design was made, by name
    """

    axes: Mapping[str, Sequence[Any]]
    seeds: Sequence[int]
    options: Mapping[str, Any]
    digests: Mapping[str, str]
    version: str = __version__

    @classmethod
    def of(
        cls,
        models: Sequence[str],
        hardware: Sequence[str],
        over: Mapping[str, Sequence[Any]],
        *,
        seeds: int | None = None,
        seed: int = 0,
        **options: Any,
    ) -> Self:
        """The design of arguments as users write them.

        seeds  number of seeds, from `seed` on; None: DEFAULT_SEEDS, or one with a trace of arrivals

        Raises InputError if a name or an axis is unknown, an argument is an axis too, or simulations are too many.
        """
        for axis, values in over.items():
            if axis not in _ALL_AXES:
                raise InputError(f"no axis {axis!r} to simulate over; {suggest(axis, _ALL_AXES)}")
            check_values(axis, values)
        changed = _changed(options)
        if seeds is None:
            seeds = 1 if "arrivals" in changed else DEFAULT_SEEDS
        simulations = prod(map(len, (models, hardware, *over.values()))) * whole_number("seeds", seeds)
        if simulations > _MAX_SIMULATIONS:
            raise InputError(f"over: must be at most {_MAX_SIMULATIONS} simulations, seeds included; got {simulations}")
        for axis, values in over.items():
            check_distinct(axis, values)
        merged = with_layouts(over)
        _check_other_options(changed, merged)
        check_changes(changed.get("hardware_set", ()), merged)
        axes = {
            "model": list(dict.fromkeys(models)), "hardware": list(dict.fromkeys(hardware)),
            **{axis: _typed(axis, values) for axis, values in merged.items()},
        }  # fmt: skip
        by_model = {name: load_model(name) for name in axes["model"]}
        changes = tuple(changed.get("hardware_set", ()))
        devices = {name: load_hardware(name, changes) for name in axes["hardware"]}
        check_unique_names((name, one.name) for name, one in by_model.items())
        check_unique_names((name, one.name) for name, one in devices.items())
        first = whole_number("seed", seed, least=0)
        return cls(
            axes=axes,
            seeds=list(range(first, first + seeds)),
            options=changed,
            digests={
                **{f"model {name}": digest(model) for name, model in by_model.items()},
                **{f"hardware {name}": digest(device) for name, device in devices.items()},
                **{f"file {path}": hash_of(path) for path in _files(axes, changed)},
            },
        )

    @property
    def sources(self) -> Mapping[str, str]:
        return self.digests

    def differences(self, other: Self) -> Iterator[tuple[str, Any, Any]]:
        yield "version", self.version, other.version
        for part in ("axes", "options"):
            own_values, other_values = getattr(self, part), getattr(other, part)
            for name in {**own_values, **other_values}:
                yield name, own_values.get(name), other_values.get(name)
        yield "seeds", self.seeds, other.seeds

    @property
    def combinations(self) -> int:
        return prod(map(len, self.axes.values()))

    @property
    def shards(self) -> int:
        """Number of simulations."""
        return self.combinations * len(self.seeds)

    def points_of(self, shard: int) -> int:  # noqa: ARG002
        return 1

    def combination(self, shard: int) -> dict[str, Any]:
        """The value of each axis in a simulation."""
        number, values = shard % self.combinations, {}
        for axis, values_on_axis in reversed(list(self.axes.items())):
            number, place = divmod(number, len(values_on_axis))
            values[axis] = values_on_axis[place]
        return {axis: values[axis] for axis in self.axes}

    def seed(self, shard: int) -> int:
        """The seed of a simulation."""
        return self.seeds[shard // self.combinations]

    def arguments(self, shard: int) -> dict[str, Any]:
        """Arguments of simulate() for a simulation."""
        values = self.combination(shard)
        changes = [f"{axis}={values.pop(axis)}" for axis in self.axes if axis in DEVICE]
        options = dict(self.options)
        if changes:
            options["hardware_set"] = [*options.get("hardware_set", ()), *changes]
        return (
            options | {_ARGUMENTS.get(axis, axis): value for axis, value in values.items()} | {"seed": self.seed(shard)}
        )

    @property
    def varied(self) -> tuple[str, ...]:
        """Axes with several values."""
        return tuple(axis for axis, values in self.axes.items() if len(values) > 1)


def parse_simulation_axis(text: str) -> tuple[str, list[Any]]:
    """(axis, values) of a text such as "rate=5,10,20", "replicas=1..8*2" or "policy=chunked:512;fcfs,order=sjf".

    Values of texts have commas between, or semicolons where they contain commas.

    Raises InputError if the text does not parse.
    """
    axis, equals, value_text = (part.strip() for part in text.partition("="))
    where = f"--over {text}"
    if not equals or axis not in _ALL_AXES:
        suggestion = suggest(axis, _ALL_AXES) if equals else ""
        if suggestion.startswith("did you mean"):
            raise InputError(f"{where}: no axis {axis!r}; {suggestion}")
        must = f"must be AXIS=VALUES, with an axis of {', '.join(AXES)}, such as rate=5,10,20 or replicas=1..8*2"
        raise InputError(f"{where}: {must}; or a what-if on the device, memory.bandwidth=1x,2x")
    if axis in (*NUMBER_AXES, *DEGREES):
        return axis, list(parse_numbers(value_text, where=where))
    if axis in REAL_AXES and ".." in value_text:
        return axis, _typed(axis, parse_numbers(value_text, where=where), where=where)
    values = [part.strip() for part in value_text.split(";" if ";" in value_text else ",")]
    if not all(values) and axis != "layout":
        raise InputError(f"{where}: must be values with commas or semicolons between; got {value_text!r}")
    return axis, _typed(axis, values, where=where)


def _typed(axis: str, values: Sequence[Any], where: str = "") -> list[Any]:
    """Values of an axis as numbers or texts."""
    if axis in REAL_AXES:
        numbers = []
        for value in values:
            try:
                numbers.append(float(value))
            except (TypeError, ValueError):
                numbers.append(inf)
            if not 0 < numbers[-1] < inf:
                raise InputError(f"{where or axis}: must be positive numbers; got {value!r}")
        return numbers
    if axis in NUMBER_AXES:
        return [whole_number(axis, value, least=0) for value in values]
    return list(map(str, values))


def _changed(options: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of simulate() that are not the defaults, as JSON has them."""
    defaults = {name: parameter.default for name, parameter in signature(simulate).parameters.items()}
    unknown = [name for name in options if name not in defaults]
    if unknown:
        raise InputError(f"no argument {unknown[0]!r}; {suggest(unknown[0], defaults)}")
    changed = {name: value for name, value in options.items() if value != defaults[name]}
    if "techniques" in changed:
        changed["techniques"] = list(map(str, parse_techniques(changed["techniques"])))
    return {name: _plain(value) for name, value in changed.items()}


def _plain(value: Any) -> Any:
    """A value that JSON has: a number or text, or a list of texts."""
    if isinstance(value, list | tuple):
        return list(map(str, value))
    return value if isinstance(value, bool | int | float | str) else str(value)


def _check_other_options(options: Mapping[str, Any], axes: Mapping[str, object]) -> None:
    """Raises InputError if an argument is also an axis."""
    for axis in axes:
        for name in ("layout", *DEGREES) if axis == "layout" else (_ARGUMENTS.get(axis, axis),):
            if name in options:
                raise InputError(f"{name}: the axis {axis} also sets it; give one of the two")
    for name in ("model", "hardware", "progress"):
        if name in options:
            raise InputError(f"{name}: must not be an option of a sweep of simulations")


def _files(axes: Mapping[str, Sequence[Any]], options: Mapping[str, Any]) -> Iterator[str]:
    """Files that arguments name."""
    by_argument = {_ARGUMENTS.get(axis, axis): values for axis, values in axes.items()}
    for name in _FILES:
        for value in (*by_argument.get(name, ()), *as_list(options.get(name, ()))):
            if Path(str(value)).suffix and path_exists(str(value)):
                yield str(value)
