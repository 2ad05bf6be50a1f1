"""The command line. Heavy modules are imported by the commands that need them."""

from __future__ import annotations

import atexit
import errno
import gc
import io
import json
import os
import shlex
import sys
import warnings
from collections import Counter
from collections.abc import Sequence
from importlib import import_module
from textwrap import fill

import click

from .. import __version__
from ..errors import CapacityError, InputError, shortened, suggest

_COMMANDS = {  # module of this package and summary, which the command's docstring begins with
    "advise": ("serving", "Rank techniques by their gain for MODEL on HARDWARE."),
    "afd": ("afd", "Decode with attention and experts on separate devices."),
    "analyze": ("analyze", "Analyze MODEL on HARDWARE, operator by operator."),
    "calibrate": ("validation", "Fit a profile of kernel times to measurements."),
    "choose": ("comparing", "Rank devices for a use of MODEL."),
    "compare": ("comparing", "Compare MODEL on several devices."),
    "docs": ("docs", "List the pages of the documentation, or show one."),
    "fit": ("fit", "List the models that run on HARDWARE, or on this machine."),
    "hardware": ("listings", "List devices, or show every number of one with its source."),
    "kernel": ("kernel", "Give the bound and the expected time of one kernel."),
    "measure": ("measure", "Measure this machine's bandwidths, matrix rates and kernels."),
    "models": ("listings", "List models, or show the facts or the graph of one."),
    "plan": ("serving", "Find the cheapest devices that serve MODEL at an arrival rate within latency targets."),
    "plot": ("comparing", 'Draw a figure of "LLM Inference Unveiled".'),
    "profiles": ("profiles", "List measured kernel libraries and their errors."),
    "search": ("search", "Search shapes of MODEL, such as depth and width, under latency targets."),
    "simulate": ("serving", "Simulate a server: requests that arrive over time at MODEL on HARDWARE."),
    "split": ("split", "Split MODEL between HARDWARE and a CPU or second GPU."),
    "sweep": ("sweep", "Compute a row for every combination of the values of --over."),
    "techniques": ("techniques", "List techniques for --with, or show one."),
    "timeline": ("timeline", "Compare a profiler trace of MODEL with bounds and expected times."),
    "validate": ("validation", "Score bounds and expected times against measured kernels."),
    "web": ("web", "Open the dashboard in a browser."),
}

# Allocations per garbage collection: there is hardly any garbage, and the default takes an eighth of a plan.
_GC_THRESHOLD = 100_000
_MATRIX_COMMANDS = {
    "calibrate",
    "measure",
}  # commands with matrix products; in others, numpy's threads only spin at start-up
_RENAMED_OPTIONS = {"--copies": "--replicas", "--readers": "--prefill-replicas"}  # until the next release
_SUBJECT_OPTIONS = ("--model", "--hardware")  # options that are positional arguments of other commands
_ARITHMETIC = "llmviewer|numpy"  # modules whose warnings concern arithmetic
_SUBJECTS = {"--device": "hardware", "--gpu": "hardware", "--hardware": "hardware", "--model": "model"}
_HELP = "`llmviewer --help` and `llmviewer COMMAND --help` list all."
_LISTING_COMMANDS = {"model": "models", "hardware": "hardware"}  # commands that list the values of an argument
_EQUIVALENT_OPTIONS = {  # options of other tools: the equivalent here
    "--concurrency": "--batch", "--context": "--kv-len", "--context-length": "--kv-len",
    "--data-parallel-size": "--dp", "--devices": "--tp", "--dp-size": "--dp", "--dtype": "--quant", "--ep-size": "--ep",
    "--gpus": "--tp", "--input-len": "--prompt", "--isl": "--prompt", "--kv-cache-dtype": "--quant",
    "--max-concurrency": "--batch", "--max-new-tokens": "--gen", "--max-num-seqs": "--max-batch",
    "--max-tokens": "--gen", "--num-gpus": "--tp", "--num-prompts": "--requests", "--osl": "--gen",
    "--output-len": "--gen", "--pipeline-parallel-size": "--pp", "--pp-size": "--pp", "--precision": "--quant",
    "--n-cpu-moe": "--on-host", "--n-gpu-layers": "--on-host",
    "--quantization": "--quant", "--random-input-len": "--prompt", "--random-output-len": "--gen",
    "--request-rate": "--rate", "--seq-len": "--prompt", "--tensor-parallel": "--tp",
    "--tensor-parallel-size": "--tp", "--tp-size": "--tp",
}  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit code.

    0, also where a request does not fit the memory; 2, with one line on stderr, where the input is at
    fault; 130 where it was interrupted.
    """
    argv = list(sys.argv[1:] if arguments is None else arguments)
    gc.set_threshold(_GC_THRESHOLD)
    atexit.unregister(gc.freeze)  # once in a process that calls main() often
    atexit.register(gc.freeze)  # what ends with the process need not be searched for garbage first
    if not set(argv[:1]) & _MATRIX_COMMANDS:
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    sys.stdout, sys.stderr = sys.stdout or _Closed(), sys.stderr or io.StringIO()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", category=RuntimeWarning, module=_ARITHMETIC)
            cli.main(args=argv or ["--help"], prog_name="llmviewer", standalone_mode=False)
        sys.stdout.flush()
    except (InputError, click.ClickException) as error:
        text = _usage_error(error) if isinstance(error, click.ClickException) else _with_option_names(error, argv)
        return _print_verdict(text, as_json=_as_json(argv)) if isinstance(error, CapacityError) else _print_error(text)
    except RuntimeWarning as warning:  # of numpy, where a result would be wrong or undefined
        return _print_error(f"{warning}: the numbers are too large or too small to be counted; give others")
    except (KeyboardInterrupt, click.Abort) as stop:
        progress = str(stop.__cause__ or stop)  # click raises Abort from the interrupt
        click.echo(f"llmviewer: stopped{f'; {progress}' if progress else ''}", err=True)
        return 130
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        sys.stderr.close()
        return 0
    except OSError as error:
        if error.filename is None and not isinstance(sys.stdout, _Closed):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the rest is flushed at exit
        return _print_error(f"{error.filename or 'cannot write to standard output'}: {error.strerror}")
    return 0


def _print_error(message: str) -> int:
    """Prints an error as one line; returns the exit code."""
    click.echo(f"llmviewer: {shortened(' '.join(message.split()))}", err=True)
    return 2


class _Closed(io.TextIOBase):
    """Standard output of a process that was started without one, as by `>&-`."""

    def write(self, _: str) -> int:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))


def _usage_error(error: click.ClickException) -> str:
    """Describes a usage error, and what to give instead."""
    message, context = error.format_message(), getattr(error, "ctx", None)
    if isinstance(error, click.NoSuchOption) and context:
        equivalent = _EQUIVALENT_OPTIONS.get(error.option_name)
        if any(equivalent in parameter.opts for parameter in context.command.params):
            return f"No such option '{error.option_name}'. Here it is {equivalent}."
        name = _SUBJECTS.get(error.option_name, "")
        subject = next((parameter for parameter in context.command.params if parameter.name == name), None)
        if subject:
            return f"No such option '{error.option_name}'. {_describe_place(subject, context)}"
    if isinstance(error, click.MissingParameter) and context and error.param:
        return f"{context.info_name} needs {_describe_missing(error.param, context)}"
    return message if "Did you mean" in message or not message.startswith("No such") else f"{message} {_HELP}"


def _describe_place(subject: click.Parameter, context: click.Context) -> str:
    """Describes how a command takes a model or a device: as an option, or as a positional argument."""
    if isinstance(subject, click.Option):
        return f"Here it is {max(subject.opts, key=len)}."
    _, *words = context.command.collect_usage_pieces(context)
    return f"Here it is the argument {subject.human_readable_name}: {context.command_path} {' '.join(words)}"


def _describe_missing(parameter: click.Parameter, context: click.Context) -> str:
    """Describes a missing parameter: its place, and where its values are listed."""
    if isinstance(parameter, click.Option):
        return f"{max(parameter.opts, key=len)} {parameter.metavar}: {parameter.help}"
    _, *words = context.command.collect_usage_pieces(context)
    listed = (
        f"; `llmviewer {_LISTING_COMMANDS[parameter.name]}` lists all" if parameter.name in _LISTING_COMMANDS else ""
    )
    return f"{parameter.human_readable_name}: {context.command_path} {' '.join(words)}{listed}"


def _as_json(arguments: Sequence[str]) -> bool:
    """Whether --format is json."""
    return "json" in arguments or "--format=json" in arguments


def _print_verdict(text: str, *, as_json: bool) -> int:
    """Prints that a request does not fit; there are no other results."""
    if as_json:
        click.echo(json.dumps({"fits": False, "reason": text}, indent=2))
    else:
        click.echo(fill(f"Does not fit: {text}", width=80, break_long_words=False, break_on_hyphens=False))
    return 0


def _with_option_names(error: InputError, arguments: Sequence[str]) -> str:
    """The text of an error with the names of options instead of Python arguments."""
    name, *_ = (*arguments, "")
    command = cli.get_command(click.Context(cli), name)
    from .options import with_option_names

    return with_option_names(str(error), command, arguments) if command else str(error)


class _Commands(click.Group):
    """Commands, imported when used, that refuse repeated options and misplaced arguments."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in _COMMANDS:
            return None
        module, _ = _COMMANDS[cmd_name]
        command: click.Command = getattr(import_module(f".{module}", __name__), cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Writes the summaries of all commands, without importing their modules."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in _COMMANDS.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in _COMMANDS and not ctx.resilient_parsing:
            raise InputError(
                f"no command {args[0]!r}: {suggest(args[0], _COMMANDS)} (`llmviewer --help` describes all)"
            )
        name, command, rest = super().resolve_command(ctx, args)
        if command:
            rest = _with_new_names(command, rest)
            _check(command, click.Context(command, info_name=name, parent=ctx), rest)
        return name, command, rest


def _with_new_names(command: click.Command, arguments: list[str]) -> list[str]:
    """Replaces options under their names of the last release, and says so on stderr."""
    options = {option for parameter in command.params for option in parameter.opts}

    def with_new_name(argument: str) -> str:
        name, equals, value = argument.partition("=")
        new_name = _RENAMED_OPTIONS.get(name)
        if new_name not in options:
            return argument
        click.echo(f"llmviewer: {name} is now {new_name}", err=True)
        return f"{new_name}{equals}{value}"

    return list(map(with_new_name, arguments))


def _check(command: click.Command, context: click.Context, arguments: list[str]) -> None:
    """Raises InputError for an option given twice, and for a positional argument that must be an option."""
    values, words, order = command.make_parser(context).parse_args(list(arguments))
    for parameter, times in Counter(order).items():
        if times > 1 and isinstance(parameter, click.Option) and not (parameter.multiple or parameter.is_flag):
            option = max(parameter.opts, key=len)
            raise InputError(f"{option} must be given once; got it {times} times")
    subject_options = [parameter.opts[0] for parameter in command.params if parameter.opts[0] in _SUBJECT_OPTIONS]
    if words and subject_options:
        raise InputError(
            f"{context.info_name} takes no {words[0]!r} by itself; give it as {' or '.join(subject_options)}"
        )
    if words and values.get("hardware"):
        raise InputError(
            f"{context.info_name} takes one HARDWARE; got {words[0]!r} as well: "
            + _command_for_several(str(context.info_name), values["model"], (values["hardware"], *words))
        )


def _command_for_several(command: str, model: str, devices: Sequence[str]) -> str:
    """Names the command that takes several devices."""
    device_list = ",".join(devices)
    alternative = {
        "analyze": ("compare", model, *devices),
        "simulate": ("plan", model, "--hardware", device_list, "--rate", "R"),
        "sweep": ("sweep", model, device_list, "--over", "AXIS=VALUES", "-o", "DIR/"),
    }.get(command)
    return f"`llmviewer {shlex.join(alternative)}` takes several" if alternative else "give each by itself"


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Start with: llmviewer analyze llama-2-7b rtx-a6000",
)
@click.version_option(__version__, message="llmviewer %(version)s")
def cli() -> None:
    """Roofline analysis of LLM inference: where the time goes, what bounds it, and what would make it faster."""
