"""`Design`: all combinations of settings and numbers of a sharded sweep, and their division into shards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cached_property
from inspect import signature
from math import prod
from typing import Any, Final, Self

from .. import __version__
from ..arguments import check_unique_names
from ..devices.files import load_hardware
from ..devices.hardware import Hardware
from ..errors import InputError
from ..expectation.profile import read_profiles
from ..model import Model
from ..model_files import load_model
from ..records import frozen
from ..setting import Setting, whole_number
from ..techniques import parse_techniques
from ..transforms.quantize import PUBLISHED, unless_published
from .axes import DEVICE, NUMBERS, check_distinct, parse_axis
from .checks import check_changes, check_expected, check_techniques
from .grid import sweep
from .shard_files import StoredDesign, hash_of, text_hash

SETTINGS: Final = ("model", "hardware", "quant", "attention", "layout", "offload")  # of sweep(), one graph per value
SHARD_POINTS: Final = 1_000_000
_DEFAULT_NUMBERS: Final = {"batch": [1], "prompt": [1024]}
_MAX_SETTINGS_PER_SHARD: Final = 500  # most settings per shard: lowering one takes as long as thousands of points

Numbers = Mapping[str, Sequence[int]]


@frozen(kw_only=True)
class Design(StoredDesign):
    """All combinations of settings and numbers; the last axis runs fastest.

    settings      values of each of SETTINGS, and of some of DEVICE, as users write them; "": the default of sweep()
    numbers       values of some of NUMBERS
    options       other arguments of sweep() that are not the defaults, the same for all
    digests       of the models, devices and profiles when the design was made, by name
    shard_points  most points per shard
    """

    settings: Mapping[str, Sequence[str]]
    numbers: Numbers
    options: Mapping[str, Any]
    digests: Mapping[str, str]
    shard_points: int = SHARD_POINTS
    version: str = __version__

    def __post_init__(self) -> None:
        whole_number("shard_points", self.shard_points)
        for axis, values in (*self.settings.items(), *self.numbers.items()):
            if not len(values):
                raise InputError(f"{axis}: nothing to sweep over")
        for axis, numbers in self.numbers.items():
            for value in numbers:
                whole_number(axis, value, least=0 if axis == "images" else 1)

    @classmethod
    def of(
        cls,
        models: Sequence[str],
        hardware: Sequence[str],
        over: Mapping[str, Sequence[int] | Sequence[str]],
        *,
        shard_points: int = SHARD_POINTS,
        **options: Any,
    ) -> Design:
        """The design of arguments as users write them; keys of `over` are in SETTINGS, NUMBERS and DEVICE.

        Raises InputError if a name is unknown or a value does not parse.
        """
        for axis in over:
            if axis not in (*SETTINGS[2:], *NUMBERS, *DEVICE):
                raise InputError(f"no axis {axis!r} to sweep over; there is {', '.join((*SETTINGS[2:], *NUMBERS))}")
            check_distinct(axis, over[axis])
        values_by_axis = {"model": models, "hardware": hardware, **over}
        axes = (*SETTINGS, *(axis for axis in over if axis in DEVICE))
        settings = {axis: list(map(str, dict.fromkeys(values_by_axis.get(axis, [""])))) for axis in axes}
        settings["quant"] = [unless_published(quant) or PUBLISHED for quant in settings["quant"]]
        defaults = {name: parameter.default for name, parameter in signature(sweep).parameters.items()}
        changed_options = {name: value for name, value in options.items() if value != defaults[name]}
        changes, expected = changed_options.pop("hardware_set", ()), changed_options.pop("expected", False)
        technique_list = parse_techniques(changed_options.pop("techniques", ()))
        check_techniques(technique_list, over, None)
        check_changes(changes, over)
        profiles = [str(path) for path in changed_options.pop("profiles", ())]
        fitted_profiles = read_profiles(profiles)
        check_expected(changed_options.get("library", ""), profiles, expected=expected)
        models_by_name = {f"model {name}": load_model(name) for name in settings["model"]}
        devices = {f"hardware {name}": load_hardware(name, changes) for name in settings["hardware"]}
        check_unique_names((name, one.name) for name, one in models_by_name.items())
        check_unique_names((name, one.name) for name, one in devices.items())
        for axis in axes[len(SETTINGS) :]:
            for value in settings[axis]:
                _check_change(settings["hardware"], changes, f"{axis}={value}")
        axis_options = ({axis: v} for axis in SETTINGS[2:] for v in settings[axis] if unless_published(v))
        parsed: list[dict[str, Any]] = [changed_options, *axis_options]
        for setting_options in parsed:
            Setting.of(
                next(iter(models_by_name.values())),
                next(iter(devices.values())),
                profiles=fitted_profiles,
                **setting_options,
            )
        numbers = {**_DEFAULT_NUMBERS, **over}
        return cls(
            settings=settings,
            numbers={axis: list(map(int, numbers[axis])) for axis in NUMBERS if axis in numbers},
            options={
                **changed_options,
                **({"hardware_set": list(changes)} if changes else {}),
                **({"techniques": list(map(str, technique_list))} if technique_list else {}),
                **({"expected": True} if expected else {}),
                **({"profiles": profiles} if profiles else {}),
            },
            digests={
                **{name: digest(source) for named in (models_by_name, devices) for name, source in named.items()},
                **{f"profile {path}": hash_of(path) for path in profiles},
            },
            shard_points=shard_points,
        )

    @property
    def sources(self) -> Mapping[str, str]:
        return self.digests

    def differences(self, other: Self) -> Iterator[tuple[str, Any, Any]]:
        yield "version", self.version, other.version
        for part in ("settings", "numbers", "options"):
            own_values, other_values = getattr(self, part), getattr(other, part)
            for name in NUMBERS if part == "numbers" else {**own_values, **other_values}:
                yield name, own_values.get(name), other_values.get(name)
        yield "shard_points", self.shard_points, other.shard_points

    @cached_property
    def shape(self) -> tuple[int, ...]:
        return tuple(map(len, self.settings.values()))

    @cached_property
    def blocks(self) -> tuple[Numbers, ...]:
        """The numbers as few grids of at most `shard_points` points."""
        return tuple(_cut(self.numbers, self.shard_points))

    @cached_property
    def together(self) -> int:
        """Number of settings per shard."""
        return min(max(1, self.shard_points // prod(map(len, self.numbers.values()))), _MAX_SETTINGS_PER_SHARD)

    @property
    def expects(self) -> bool:
        """Whether the sweep has columns of expected times."""
        return bool(self.options.get("expected"))

    @property
    def points(self) -> int:
        return prod(self.shape) * prod(map(len, self.numbers.values()))

    @property
    def shards(self) -> int:
        return -(-prod(self.shape) // self.together) * len(self.blocks)

    def setting(self, number: int) -> dict[str, str]:
        """The setting of an index."""
        values = {}
        for axis, values_on_axis in reversed(list(self.settings.items())):
            number, place = divmod(number, len(values_on_axis))
            values[axis] = values_on_axis[place]
        return {axis: values[axis] for axis in self.settings}

    def part(self, shard: int) -> tuple[range, Numbers]:
        """The indices of settings, and the numbers, of a shard."""
        group, block = divmod(shard, len(self.blocks))
        first = group * self.together
        return range(first, min(first + self.together, prod(self.shape))), self.blocks[block]

    def points_of(self, shard: int) -> int:
        settings, numbers = self.part(shard)
        return len(settings) * prod(map(len, numbers.values()))


def parse_over(text: str) -> tuple[str, list[int] | list[str]]:
    """(axis, values) of a text, see parse_axis(); also of "offload=...". Layouts and offloads may be empty."""
    axis, equals, values = (part.strip() for part in text.partition("="))
    if equals and axis in ("layout", "offload"):  # values may be empty
        return axis, [value.strip() for value in values.split(",")]
    return parse_axis(text)


def matching_names(text: str, names: Sequence[str], *, command: str) -> list[str]:
    """Names among `names` that "all" or patterns such as "llama-2-7b,qwen3*" match, each once.

    command  the command that lists the names, for errors

    Raises InputError if a pattern matches none.
    """
    matches: list[str] = []
    for item in filter(None, map(str.strip, text.split(","))):
        pattern = "*" if item == "all" else item.lower()
        is_pattern = bool(set("*?[") & set(pattern))
        matched = [name for name in names if fnmatchcase(name.lower(), pattern)] if is_pattern else [item]
        if not matched:
            raise InputError(f"{item!r} matches no name that `llmviewer {command}` lists")
        matches += matched
    return list(dict.fromkeys(matches))


def digest(source: Model | Hardware) -> str:
    """A hash of everything that results depend on."""
    if isinstance(source, Model):
        run = (
            (one.graph, one.quantization) for one in (source, source.with_prediction) if one
        )  # --mtp runs `predicting`
        return text_hash(repr((source.name, *run)))
    return text_hash(repr((source, source.numbers)))


def _cut(numbers: Numbers, max_points: int) -> Iterator[Numbers]:
    """The grid cut into grids of at most `most` points, in order."""
    if prod(map(len, numbers.values())) <= max_points:
        yield numbers
        return
    axis = next(axis for axis, values in numbers.items() if len(values) > 1)
    values = numbers[axis]
    inner = prod(map(len, numbers.values())) // len(values)
    step = max(1, max_points // inner)
    for start in range(0, len(values), step):
        yield from _cut({**numbers, axis: values[start : start + step]}, max_points)


def _check_change(devices: Sequence[str], changes: Sequence[str], change: str) -> None:
    """Raises InputError if a what-if applies to no device."""
    errors: list[InputError] = []
    for name in devices:
        try:
            load_hardware(name, (*changes, change))
        except InputError as error:
            errors.append(error)
        else:
            return
    raise errors[0]
