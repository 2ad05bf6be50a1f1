"""`--with` and `--scenario` of commands that ask about a model on a device, and `llmviewer techniques`."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from .errors import InputError, suggest

_F = TypeVar("_F", bound=Callable[..., object])
_WITH: Final = "with"  # what the option is called; `techniques` where it is a name in Python
_UNSET: Final = ("output", "help", "scenario")  # what a scenario does not say


def techniques_alone(command: _F) -> _F:
    """What the command gets as `techniques`."""
    return click.option(
        f"--{_WITH}",
        "techniques",
        type=click.UNPROCESSED,  # a file says them as objects
        metavar="TECHNIQUE",
        multiple=True,
        help="Such as sparsity or speculative:draft=llama-68m,gamma=4,alpha=0.7; see `llmviewer techniques`. May "
        "be repeated.",
    )(command)


def with_techniques(command: _F) -> _F:
    """That, and a file that can say it and the rest."""
    options = (
        techniques_alone,
        click.option(
            "--scenario",
            metavar="FILE",
            is_eager=True,
            expose_value=False,
            callback=_scenario,
            help="A YAML file with any of these options by name, and model and hardware; the command line comes first.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def _scenario(context: click.Context, _: click.Parameter, value: str | None) -> None:
    """Takes the file's values as the defaults of the command."""
    if value is None:
        return
    from .documents import read_yaml
    from .techniques import parse_technique

    file = read_yaml(Path(value))
    names = {p.name or "": p for p in context.command.params if p.name not in _UNSET}
    spelt = {(_WITH if name == "techniques" else name).replace("_", "-"): name for name in names}
    defaults: dict[str, Any] = {}
    for key in file:
        name = spelt.get(str(key).replace("_", "-"))
        if name is None:
            raise file.error(str(key), f"unknown key; {suggest(str(key), spelt)}")
        given = file.get(key)
        if name == "techniques":
            several = given if isinstance(given, list) else [given]
            defaults[name] = [parse_technique(one) for one in several]
        elif isinstance(given, Mapping) or isinstance(given, list) != getattr(names[name], "multiple", False):
            must = "a list" if getattr(names[name], "multiple", False) else "one value"
            raise file.error(str(key), f"must be {must}; got {json.dumps(given, default=str)}")
        elif given is not None:
            defaults[name] = given
    context.default_map = {**(context.default_map or {}), **defaults}


@click.command()
@click.argument("name", required=False)
@click.option("--format", "form", type=click.Choice(("text", "json", "markdown")), help="Text if not given.")
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help="Write the list to a file.")
def techniques(name: str | None, form: str | None, output: Path | None) -> None:
    """What can be switched on with --with: all techniques, or one with its parameters, its formula and its limits."""
    from .export import write_text
    from .reports import techniques as report
    from .techniques import techniques as all_of_them

    known = all_of_them()
    if name is not None and name not in known:
        raise InputError(f"no technique {name!r}: {suggest(name, known)}")
    shown = {name: known[name]} if name else dict(known)
    chosen = form or ("markdown" if output and output.suffix == ".md" else "text")
    width = shutil.get_terminal_size()[0] if sys.stdout.isatty() and not output else 80
    if chosen == "json":
        text = json.dumps([report.describe(kind) for kind in shown.values()], indent=2) + "\n"
    elif chosen == "markdown":
        text = report.render_markdown(shown)
    else:
        text = report.render_card(shown[name], width) if name else report.render_list(shown, width)
    if output:
        write_text(output, text)
        click.echo(f"{output}: written", err=True)
    else:
        click.echo(text, nl=False)


COMMANDS: Final = (techniques,)
