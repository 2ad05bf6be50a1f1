"""Options of a setting on the command line, each made from its declaration."""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import click

from ..errors import InputError, suggest
from ..options import DegreeOptions, LayoutOptions, TransferOptions
from ..parameters import DEGREES, Algorithm, kind_of
from . import options as shared

if TYPE_CHECKING:
    from ..documents import Section
    from ..parallel.layout import Layout

SIDES: Final = ("prefill", "decode")
_MAX_DEGREES: Final = 64  # values of one degree of parallelism that are compared at once
_NOT_IN_SCENARIOS: Final = ("output", "help", "scenario")  # options that a scenario does not set
_CLICK_ARGUMENTS: Final[Mapping[str, Mapping[str, Any]]] = {  # of options whose values are neither text nor numbers
    "quant": {"callback": shared.precision},
    "quants": {"callback": shared.nonempty},
    "offload": {"callback": shared.nonempty},
    "profiles": {"type": shared.PATH},
    "tasks": {"type": shared.PATH},
    "techniques": {"type": click.UNPROCESSED},  # a file gives them as objects
}

_CLICK_ARGUMENTS_BY_KIND: Final[Mapping[Any, Mapping[str, Any]]] = {
    int: {"type": shared.WHOLE_NUMBER},
    "int | None": {"type": shared.WHOLE_NUMBER},
    "str | Path | None": {"type": shared.PATH},
    float: {"type": shared.NUMBER},
    "float | None": {"type": shared.NUMBER},
    "float | str | None": {"type": click.UNPROCESSED},
    "int | str": {
        "type": click.UNPROCESSED,
        "callback": shared.or_max(int, "a whole number, or max for the largest that fits"),
    },
    "int | Sequence[int]": {"type": click.UNPROCESSED, "callback": shared.whole_numbers},
    "int | str | Sequence[int]": {"type": click.UNPROCESSED, "callback": shared.whole_numbers_or_max},
    bool: {"is_flag": True, "show_default": False},
}
_TIME: Final[Mapping[str, Any]] = {"type": click.UNPROCESSED, "callback": shared.seconds}
_TIMES: Final = "In seconds, or as '500 ms'."

_F = TypeVar("_F", bound=Callable[..., object])


def declared_options(options: type, **changes: dict[str, Any]) -> Callable[[_F], _F]:
    """Adds the options of a TypedDict, which the command gets as one argument `options`, with those of others.

    changes  arguments of option() by the name of an option
    """
    hints = options.__annotations__
    decorators = [option(name, hint, **changes.get(name, {})) for name, hint in hints.items()]
    if "hardware_set" in hints:
        decorators.append(shared.hardware_path)

    def decorator(command: _F) -> _F:
        @functools.wraps(command)
        def with_options(*arguments: Any, **values: Any) -> object:
            options = {name: values.pop(name) for name in hints}
            return command(*arguments, options={**values.pop("options", {}), **options}, **values)

        return shared.add_options(cast("_F", with_options), *decorators)

    return decorator


def option(name: str, hint: Any, *, more: str | None = None, also: str = "", **changes: Any) -> Callable[[_F], _F]:
    """The option of a parameter, from its annotation.

    more     in place of that of the declaration
    also     a sentence at the end of the help
    changes  of arguments of click
    """
    (parameter,), kind = hint.__metadata__, kind_of(hint)
    is_time = (kind, parameter.unit) == ("float | None", "s")
    sentences = (parameter.about, parameter.more if more is None else more, _TIMES if is_time else "", also)
    click_arguments: dict[str, Any] = {
        "help": " ".join(filter(None, sentences)),
        "default": parameter.default,
        "metavar": parameter.metavar or "|".join(parameter.choices) or None,
        "multiple": isinstance(parameter.default, tuple),
        "show_default": parameter.default not in (None, "", ()),
        **(_TIME if is_time else _CLICK_ARGUMENTS_BY_KIND.get(kind, {})),
        **_CLICK_ARGUMENTS.get(name, {}),
    }
    flags = parameter.flag.split() or [f"--{name.replace('_', '-')}"]
    return click.option(*flags, name, **{**click_arguments, **changes})


def layouts(command: _F) -> _F:
    """Adds options of layouts, which the command gets as a list of all combinations of the degrees."""
    degrees = DegreeOptions.__annotations__
    layout_options = {
        name: hint for name, hint in LayoutOptions.__annotations__.items() if name not in (*degrees, "layout")
    }

    @functools.wraps(command)
    def with_layouts(*arguments: Any, **values: Any) -> object:
        return command(
            *arguments,
            layout=_layout_combinations({name: values.pop(name) for name in (*degrees, *layout_options)}),
            **values,
        )

    number_list: dict[str, Any] = {"type": str, "metavar": "NUMBERS", "default": "1"}
    return shared.add_options(
        cast("_F", with_layouts),
        *(option(name, hint, **number_list, more="Several: 1,2,4.") for name, hint in degrees.items()),
        *(option(name, hint) for name, hint in layout_options.items()),
    )


def _layout_combinations(values: Mapping[str, Any]) -> list[Layout]:
    """A layout for every combination of degrees."""
    from ..arguments import enum_member
    from ..parallel.layout import layouts
    from ..sweeping.axes import parse_numbers

    numbers = [
        parse_numbers(values[name], where=f"--{name} {values[name]}", max_values=_MAX_DEGREES) for name in DEGREES
    ]
    each = (dict(zip(DEGREES, combined, strict=True)) for combined in itertools.product(*numbers))
    layout_options = {name: value for name, value in values.items() if name not in DEGREES}
    return layouts(each, **layout_options | {"collective": enum_member("collective", values["collective"], Algorithm)})


def disaggregation(command: _F) -> _F:
    """Adds options of separate prefill and decode workers, which the command gets as `sides`."""

    @functools.wraps(command)
    def with_sides(*arguments: Any, **options: Any) -> object:
        names = [f"{side}_{field}" for side in SIDES for field in ("hardware", "layout")]
        values = {name: options.pop(name) for name in (*names, *TransferOptions.__annotations__)}
        sides = {name: value for name, value in values.items() if value is not None}
        if sides and not sides.keys() & set(names):
            option = next(iter(sides)).replace("_", "-")
            raise InputError(
                f"--{option} needs separate prefill and decode workers; give --prefill-hardware or --decode-hardware"
            )
        return command(*arguments, sides=sides, **options)

    options = [
        click.option(f"--{side}-{field}", metavar=metavar, help=help_text.format(side))
        for side in SIDES
        for field, metavar, help_text in (
            ("hardware", "HARDWARE", "Device of {} workers, if not HARDWARE."),
            ("layout", "DEGREES", "Layout of a {} worker, such as 'tp=4 pp=2'."),
        )
    ]
    transfers = (option(*each) for each in TransferOptions.__annotations__.items())
    return shared.add_options(cast("_F", with_sides), *options, *transfers)


scenario = click.option(
    "--scenario",
    metavar="FILE",
    is_eager=True,
    expose_value=False,
    callback=lambda context, _, value: _load_scenario(context, value),
    help="A YAML file with model, hardware and any of these options by name; the command line overrides it.",
)


def _load_scenario(context: click.Context, value: str | None) -> None:
    """Makes the file's values the defaults of the command."""
    if value is None:
        return
    from ..documents import read_yaml
    from ..techniques import parse_technique

    file = read_yaml(Path(value))
    parameters = {
        option.lstrip("-"): p for p in context.command.params if p.name not in _NOT_IN_SCENARIOS for option in p.opts
    }
    defaults: dict[str, Any] = {}
    for key in file:
        parameter = parameters.get(str(key).replace("_", "-"))
        if parameter is None:
            raise file.error(str(key), f"unknown key; {suggest(str(key), parameters)}")
        entry, name = file.get(key), parameter.name or ""
        is_list = getattr(parameter, "multiple", False)
        if name == "techniques":
            defaults[name] = [parse_technique(one) for one in (entry if isinstance(entry, list) else [entry])]
            for technique in defaults[name]:
                _check_no_code(file, str(key), vars(technique).values())
        elif isinstance(entry, Mapping) or isinstance(entry, list) != is_list:
            must = "a list" if is_list else "one value"
            raise file.error(str(key), f"must be {must}; got {json.dumps(entry, default=str)}")
        elif entry is not None:
            try:
                defaults[name] = [_convert(one, parameter) for one in entry] if is_list else _convert(entry, parameter)
                _check_no_code(file, str(key), (entry,) if name == "model" else ())
            except click.BadParameter as error:
                raise file.error(str(key), error.message) from None
    context.default_map = {**(context.default_map or {}), **defaults}


def _check_no_code(file: Section, key: str, values: Iterable[object]) -> None:
    """Raises InputError if one of the values names a callable as a model: a file must not run code."""
    from ..model_files import names_code

    for value in values:
        if isinstance(value, str) and names_code(value):
            raise file.error(key, f"must not name code, which a file never runs; got {value!r}; give it as an option")


def _convert(value: object, parameter: click.Parameter) -> object:
    """Converts a value of a file as if it was typed: click would truncate the number 2.9 to 2."""
    text = f"{value:.0f}" if isinstance(value, float) and value.is_integer() else str(value)
    return parameter.type(text, parameter)
