"""Options that several commands share, and output of reports."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from click.core import ParameterSource

from .._layout import PATH_VARIABLE
from ..errors import InputError

if TYPE_CHECKING:
    from ..reports.report import Report, Result
    from ..setting import Setting

AS_NAMED: Final = "Default: text, or by the suffix of the output file"  # help of a --format
MAX: Final = "max"  # in place of a number: the largest possible
FORMATS: Final = ("text", "json", "csv", "markdown", "html")
SUFFIXES: Final = {".json": "json", ".csv": "csv", ".md": "markdown", ".html": "html", ".txt": "text"}

_WIDTH, _NARROW = 80, 40  # of a text, and of one on a narrow terminal [columns]
_MAX_NUMBERS: Final = 1000  # values of one option
_NUMBER_LIST: Final = re.compile(r"\d(\.\.|,)\d")  # a range or a list of numbers

_F = TypeVar("_F", bound=Callable[..., object])
_R = TypeVar("_R", bound="Result")
_A = TypeVar("_A")
_V = TypeVar("_V", str | None, tuple[str, ...])


class WholeNumber(click.types.IntParamType):
    """Whole numbers from `minimum` to `maximum`; the error for a list names the command that takes one."""

    def __init__(self, minimum: int | None = None, maximum: int | None = None) -> None:
        self.minimum, self.maximum = minimum, maximum

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            number = int(value)
        except ValueError:
            self.fail(f"must be a whole number; got {value!r}{_sweep_hint(param, value)}", param, ctx)
        if self.minimum is not None and number < self.minimum:
            self.fail(f"must be a whole number of at least {self.minimum}; got {value}", param, ctx)
        if self.maximum is not None and number > self.maximum:
            self.fail(f"must be a whole number of at most {self.maximum}; got {value}", param, ctx)
        return number


class _Number(click.types.FloatParamType):
    """Finite numbers."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            number = float(value)
        except ValueError:
            self.fail(f"must be a number; got {value!r}", param, ctx)
        if not isfinite(number):
            self.fail(f"must be a finite number; got {value!r}", param, ctx)
        return number


class _Path(click.Path):
    """Paths that are not empty; an empty one would be the current folder."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, str) and not value.strip():
            hint = param.get_error_hint(ctx).replace("'", "").removesuffix("...") if param else "a path"
            raise InputError(f"{hint} must not be empty; give a path, such as ./name")
        return super().convert(value, param, ctx)


def _sweep_hint(parameter: click.Parameter | None, value: str) -> str:
    """Hint at `llmviewer sweep` if `value` lists several values of a sweep axis; else ""."""
    from ..parameters import DEGREES
    from ..sweeping.axes import NUMBERS

    name = parameter.name if parameter else None
    return (
        f"; `llmviewer sweep` takes --over {name}={value}"
        if name in (*NUMBERS, *DEGREES) and _NUMBER_LIST.search(value)
        else ""
    )


WHOLE_NUMBER: Final = WholeNumber()
NUMBER: Final = _Number()
PATH: Final = _Path()


def _set_hardware_path(context: click.Context, _: click.Parameter, value: str | None) -> None:
    """Sets the variable while the command runs, as every loader of devices reads it."""
    if value is not None:
        before = os.environ.get(PATH_VARIABLE)
        os.environ[PATH_VARIABLE] = value
        context.call_on_close(lambda: _restore_hardware_path(before))


def _restore_hardware_path(folder: str | None) -> None:
    if folder is None:
        os.environ.pop(PATH_VARIABLE, None)
    else:
        os.environ[PATH_VARIABLE] = folder


def seconds(context: click.Context, parameter: click.Parameter, value: object) -> float | None:
    """Reads a time; a default stays as it is. [s]"""
    from ..units import time_s

    if value is None or value == parameter.default:
        return value  # type: ignore[return-value]
    try:
        return time_s(str(value))
    except ValueError as error:
        raise click.BadParameter(str(error), context, parameter) from None


def or_max(number: Callable[[str], float], requirement: str) -> Callable[..., Any]:
    """A callback that parses a number or max; errors state the `requirement`."""

    def read(context: click.Context, parameter: click.Parameter, value: object) -> float | str | None:
        if value is None or value == MAX:
            return value
        try:
            return number(str(value))
        except ValueError:
            message = f"must be {requirement}; got {str(value)!r}{_sweep_hint(parameter, str(value))}"
            raise click.BadParameter(message, context, parameter) from None

    return read


def whole_numbers(context: click.Context, parameter: click.Parameter, value: object) -> list[int] | None:
    """Parses numbers, such as 1,8,64 or 1..64*2, each of which is an analysis of its own."""
    if value is None or context.resilient_parsing:
        return None
    from ..sweeping.axes import parse_numbers

    return parse_numbers(str(value), where=f"--{parameter.name}={value}", max_values=_MAX_NUMBERS)


def whole_numbers_or_max(context: click.Context, parameter: click.Parameter, value: object) -> list[int] | str | None:
    """Parses numbers, or max."""
    return MAX if value == MAX else whole_numbers(context, parameter, value)


def number(name: str, help_text: str, *, default: int | None = None) -> Callable[[_F], _F]:
    """An option whose value is a whole number."""
    return click.option(name, type=WHOLE_NUMBER, default=default, show_default=default is not None, help=help_text)


def choice(
    name: str, *names: str, choices: Sequence[str], help_text: str, default: str | None = None
) -> Callable[[_F], _F]:
    """An option whose value is one of `choices`."""
    choice_type = click.Choice(choices)
    return click.option(
        name, *names, type=choice_type, default=default, show_default=default is not None, help=help_text
    )


def report_format(formats: Sequence[str], *, help_prefix: str = "") -> Callable[[_F], _F]:
    """The option --format; `help_prefix` precedes the rule for its default."""
    return click.option("--format", "form", type=click.Choice(formats), help=f"{help_prefix}{AS_NAMED}.")


hardware_path = click.option(
    "--hardware-path",
    metavar="DIR",
    is_eager=True,
    expose_value=False,
    callback=_set_hardware_path,
    help=f"A folder of your own hardware YAML files, read before those that ship. {PATH_VARIABLE} sets it too.",
)


def add_options(command: _F, *options: Callable[[_F], _F]) -> _F:
    """Adds options to `command`, in the order of its help."""
    for option in reversed(options):
        command = option(command)
    return command


def _emit(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    """Checks engine and form before anything is computed."""
    if value is not None:
        from ..serving.launch_commands import parse_emit

        parse_emit(value)
    return value


def emit_option(command: _F) -> _F:
    """Adds the option --emit."""
    return click.option(
        "--emit",
        metavar="ENGINE[:FORM]",
        callback=_emit,
        help="Write the command that starts such a server instead of the report, with the reason for each option: "
        "vllm, sglang, tensorrt-llm, llama.cpp or mlx; vllm:compose for Docker Compose, vllm:kubernetes "
        "for a manifest.",
    )(command)


def report_options(command: _F) -> _F:
    """Adds the options of reports that can be a folder of files."""
    return add_options(
        command,
        report_format(FORMATS),
        click.option(
            "-o",
            "--output",
            type=PATH,
            metavar="FILE|DIR",
            help="Write the report to a file, or HTML, Markdown and CSV to a folder.",
        ),
    )


def shard_options(*, workers: str) -> Callable[[_F], _F]:
    """Adds the options of commands that write shards; `workers` is the help of --workers."""
    return lambda command: add_options(
        command,
        click.option("--workers", type=WholeNumber(1), help=workers),
        click.option("--shard", metavar="I/N", help="Write only every N-th shard, from the I-th on."),
        click.option(
            "--dask",
            metavar="ADDRESS",
            callback=nonempty,
            help="Write shards on a Dask cluster, such as tcp://HOST:8786.",
        ),
    )


def notice(line: str) -> None:
    """Prints a line on standard error."""
    click.echo(line, err=True)


def parse_shard(text: str) -> tuple[int, int]:
    """Parses "3/40" as (3, 40)."""
    i, _, n = text.partition("/")
    if not (i.isdecimal() and n.isdecimal() and 1 <= int(i) <= int(n)):
        raise InputError(f"--shard must be I/N with I from 1 to N, such as 3/40; got {text!r}")
    return int(i), int(n)


def output(*, subject: str) -> Callable[[_F], _F]:
    """The option --output for a single file."""
    return click.option("-o", "--output", type=PATH, metavar="FILE", help=f"Write {subject} to a file.")


def distinct_axes(parsed: Iterable[tuple[str, _A]], over: Sequence[str]) -> dict[str, _A]:
    """The axes of --over, parsed.

    Raises InputError if one is given twice.
    """
    axes = dict(parsed)
    if len(axes) < len(over):
        raise InputError(f"--over: an axis is given twice; got {', '.join(over)}")
    return axes


def check_output(form: str | None, output: Path | None, emit: str | None = None) -> None:
    """Raises InputError if format and output contradict each other, before anything is computed.

    emit  value of --emit, with which any file may be written; None without it
    """
    if emit is not None:
        if form:
            raise InputError("--emit writes a launch command, which has no other formats; leave out --format")
    elif output and (output.suffix or form) and not output.is_dir():
        form_of(form, output)


def form_of(form: str | None, output: Path | None, suffixes: Mapping[str, str] = SUFFIXES) -> str:
    """The output format: of --format, else of the file's suffix, else text.

    Raises InputError if they contradict each other, or the suffix is unknown.
    """
    ending = output.suffix.lower() if output else ""
    form_by_suffix = suffixes.get(ending)
    if form and form_by_suffix not in (None, "text", form):
        raise InputError(f"{output}: ends in {ending}, and --format is {form}; leave one of them out")
    if output and not form and not form_by_suffix and not output.is_dir():  # which writing to it tells
        raise InputError(f"{output}: must end in one of {', '.join(suffixes)}; or give --format")
    return form or form_by_suffix or "text"


def nonempty(context: click.Context, parameter: click.Parameter, value: _V) -> _V:
    """Checks that an option or argument, if given, is not empty."""
    if value is None or context.get_parameter_source(parameter.name or "") is ParameterSource.DEFAULT:
        return value
    texts = value if isinstance(value, tuple) else (value,)
    if not all(map(str.strip, texts)) and not context.resilient_parsing:
        raise InputError(f"{parameter.get_error_hint(context)} must not be empty; leave it out".replace("'", ""))
    return value


def precision(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """The value of --quant; None for the precision of the model, also if given by name."""
    scheme = nonempty(context, parameter, value)
    if scheme is None:
        return None
    from ..transforms.quantize import unless_published

    return unless_published(scheme)


def with_option_names(message: str, command: click.Command, arguments: Sequence[str]) -> str:
    """Replaces the Python name of an option at the start of `message` by the option as typed, or as declared."""
    argument_names = [argument.partition("=")[0] for argument in arguments]
    for parameter in command.params:
        typed_option = next((name for name in argument_names if name in parameter.opts), "")
        option = typed_option or max(parameter.opts, key=len)
        if isinstance(parameter, click.Option) and (typed_option or option != f"--{parameter.name}"):
            message = re.sub(rf"^{parameter.name}(?=:| must | is )", option, message)
    return message


def emit_report(report: Report[_R], result: _R, form: str | None, output: Path | None) -> None:
    """Writes the report on `result` to standard output, a file, or a folder of files named after the report."""
    from ..writing import write_text

    if output and not form and (output.is_dir() or not output.suffix):
        _make_folder(output)
        for suffix in (".html", ".md", ".csv"):
            write_text(output / f"{report.name}{suffix}", getattr(report, SUFFIXES[suffix])(result))
        click.echo(f"{output}: {report.name}.html, {report.name}.md, {report.name}.csv", err=True)
        return
    output_form = form_of(form, output)
    if output_form == "text":
        text = report.text(
            result, width(output), table_width=table_width(output), colored=output is None and shows_colors()
        )
        emit(text, output)
    else:
        emit(getattr(report, output_form)(result), output)


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: cannot be made: {error.strerror}") from None


def shows_colors() -> bool:
    """Whether standard output is a terminal that shows colors; NO_COLOR (https://no-color.org) disables them."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def terminal_columns() -> int:
    """Columns of the terminal, or of the variable COLUMNS; 0 without either."""
    if not sys.stdout.isatty() and "COLUMNS" not in os.environ:
        return 0
    from shutil import get_terminal_size  # which imports compressors too

    return get_terminal_size()[0]


def width(output: Path | None = None) -> int:
    """Columns for the words of a text: 80, or those of a narrower terminal, at least 40."""
    return max(min(terminal_columns() or _WIDTH, _WIDTH), _NARROW) if output is None else _WIDTH


def table_width(output: Path | None = None) -> int:
    """Columns for tables: those of the terminal, at least 80; any number in a file."""
    columns = terminal_columns() if output is None else 0
    return max(columns, _WIDTH) if columns else sys.maxsize


def emit_command(setting: Setting, form: str, output: Path | None, *, sequences: int, tokens: int) -> None:
    """Writes the launch command of a setting in the form that --emit names.

    sequences, tokens  as in launch_command()
    """
    from ..reports.launching import emitted

    emit(emitted(setting, form, sequences=sequences, tokens=tokens), output)


def emit(text: str, output: Path | None) -> None:
    """Writes `text` to standard output or to a file."""
    if output is None:
        click.echo(text, nl=False, color=True)
        return
    from ..writing import write_text

    write_text(output, text)
    click.echo(f"{output}: written", err=True)
