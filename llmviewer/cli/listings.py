"""`llmviewer models` and `llmviewer hardware`: shipped models and devices, and files of the user."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import click

from ..errors import InputError
from ..units import counted
from . import options as shared

if TYPE_CHECKING:
    from ..devices.hardware import Hardware
    from ..devices.index import DeviceRow
    from ..model import Model
    from ..model_index import ModelFacts

S = TypeVar("S")
T = TypeVar("T")

_GRAPH_SUFFIXES: Final = {".txt": "text", ".json": "json", ".dot": "dot", ".mmd": "mermaid", ".mermaid": "mermaid"}
_DEVICE_SUFFIXES: Final = {".txt": "text", ".json": "json", ".yaml": "yaml", ".yml": "yaml"}


@click.command()
@click.argument("name", required=False, callback=shared.nonempty)
@click.option("--graph", is_flag=True, help="The operators of NAME with their tensors and weights.")
@click.option("--add", metavar="NEW", help="Add NAME, a config.json or org/name, to those that ship, as NEW.")
@click.option("--parameters", type=int, help="--add: the published number of parameters, which must be the graph's.")
@click.option("--repository", default="", help="--add: where a local config.json is published, such as org/name.")
@click.option("--title", default="", help="--add: the name in lists and reports.  [default: NEW]")
@shared.report_format(("text", "json", "dot", "mermaid"), help_prefix="dot and mermaid draw the graph. ")
@shared.output(subject="the list")
def models(
    name: str | None,
    form: str | None,
    output: Path | None,
    *,
    graph: bool,
    add: str | None,
    parameters: int | None,
    repository: str,
    title: str,
) -> None:
    """List models, or show the facts or the graph of one.

    NAME is the name of a model, or what analyze takes as MODEL; or a part of the names of several, such as qwen3.
    """
    from ..model_index import all_facts

    def names(model: ModelFacts) -> Sequence[str]:
        return model.name, model.title, *model.aliases

    form = shared.form_of(form, output, _GRAPH_SUFFIXES)
    if add:
        _add(name, add, parameters, repository=repository, title=title)
        return
    if graph or form in ("dot", "mermaid"):
        if not name:
            raise InputError("--graph needs one model: give its name, such as `llmviewer models gpt2 --graph`")
        from ..model_files import load_model
        from ..reports.graph import render

        shared.emit(render(load_model(name), form, shared.width(output)), output)
        return
    matches = _find(name, _model, partial(all_facts, lambda each: _facts(_model(each))), names)
    if form == "json":
        facts = [each.to_dict() for each in matches] if isinstance(matches, list) else _facts(matches).to_dict()
        shared.emit(json.dumps(facts, indent=2) + "\n", output)
        return
    width = shared.width(output)
    if isinstance(matches, list):
        from ..reports.models import model_list

        shared.emit(model_list(matches, width), output)
        return
    from ..reports.catalogue import model_card

    shared.emit(model_card(matches, width), output)


@click.command()
@click.argument("name", required=False, callback=shared.nonempty)
@click.option("--check", is_flag=True, help="Check the numbers of NAME, or of every device, for consistency.")
@click.option("--local", is_flag=True, help="Draft the YAML of the CPU and the GPUs of this machine.")
@shared.hardware_path
@shared.report_format(
    ("text", "json", "yaml"),
    help_prefix="yaml: the file of NAME, as a start for your own (`llmviewer docs hardware`), named as --output. ",
)
@shared.output(subject="the list")
def hardware(name: str | None, form: str | None, output: Path | None, *, check: bool, local: bool) -> None:
    """List devices, or show every number of one with its source.

    NAME is the name of a device, or the path of a YAML file; or a vendor, an architecture, or a part of the names
    of several devices, such as rtx.
    """
    from ..devices.files import hardware_yaml, load_hardware
    from ..devices.index import device_rows

    def names(device: DeviceRow) -> Sequence[str]:
        return device.name, device.title, device.vendor, device.architecture, *device.aliases

    form = shared.form_of(form, output, _DEVICE_SUFFIXES)
    if check and (local or output or form != "text"):
        raise InputError("--check is for the screen; leave out --local, --format and -o")
    if local:
        if name or form == "json":
            raise InputError(f"--local drafts a YAML file of this machine; leave out {name or '--format json'}")
        from ..devices.local import draft

        shared.emit(draft(), output)
        return
    if form == "yaml":
        if name is None:
            raise InputError("--format yaml needs one device; give its NAME")
        shared.emit(hardware_yaml(name, output.stem if output else ""), output)
        return
    matches = _find(name, load_hardware, device_rows, names)
    if form == "text" and not check:
        shared.emit(_hardware_text(matches, shared.width(output)), output)
        return
    devices = [load_hardware(row.name) for row in matches] if isinstance(matches, list) else [matches]
    if check:
        _check(devices)
        return
    from ..analyzing.facts import hardware_facts

    facts = [*map(hardware_facts, devices)]
    shared.emit(json.dumps(facts if isinstance(matches, list) else facts[0], indent=2) + "\n", output)


def _hardware_text(matches: Hardware | list[DeviceRow], width: int) -> str:
    """A list of devices, or the facts of one."""
    if isinstance(matches, list):
        from ..reports.device_list import hardware_list

        return hardware_list(matches, width)
    from ..reports.catalogue import hardware_card

    return hardware_card(matches, width)


def _add(source: str | None, name: str, parameters: int | None, *, repository: str, title: str) -> None:
    """Adds a model to the shipped ones."""
    if not source or not parameters:
        raise InputError("--add needs a config.json or org/name, and the published number of --parameters; "
                         f"such as `llmviewer models config.json --add {name} --parameters 8030261248`")  # fmt: skip
    from ..model_records import add_model

    path, unread = add_model(source, name, parameters=parameters, title=title, repository=repository)
    unread_note = f"; left out, as nothing reads them: {', '.join(unread)}" if unread else ""
    shared.emit(f"{path} is written, and its line in models/index.json{unread_note}\n", None)


def _model(name: str) -> Model:
    from ..model_files import load_model

    return load_model(name)


def _facts(model: Model) -> ModelFacts:
    from ..model_files import model_facts

    return model_facts(model)


def _find(
    name: str | None, load: Callable[[str], T], every: Callable[[], list[S]], names: Callable[[S], Sequence[str]]
) -> T | list[S]:
    """Loads `name`; else lists the entries of `every` with it in one of their `names`; without a name, all."""
    if not name:
        return every()
    try:
        return load(name)
    except InputError:
        if "/" in name:  # a path, or a name of the hub
            raise
        name_part = _hyphened(name)  # not by `plain`: qwen3 is no part of qwen-32b
        if matches := [each for each in every() if any(name_part in _hyphened(alias) for alias in names(each))]:
            return matches
        raise


def _hyphened(name: str) -> str:
    return "-".join(name.lower().split())


def _check(devices: Sequence[Hardware]) -> None:
    """Prints violations, or ok, for each device, and the checks at the end if all pass."""
    from ..devices.checks import CHECKS, name_clashes, violations
    from ..devices.files import hardware_aliases

    aliases, num_problems = hardware_aliases(), 0
    for device in devices:
        problems = (*violations(device), *name_clashes(device, aliases))
        num_problems += len(problems)
        counts = f"{counted(len(device.facts), 'fact')}, {counted(len(device.sources), 'source')}"
        click.echo("\n".join(f"{device.name}: {line}" for line in problems) or f"{device.name}: ok: {counts}")
    if num_problems:
        raise InputError(f"--check: {counted(num_problems, 'violation')}")
    click.echo(click.wrap_text(f"Checked: {'; '.join((*CHECKS, 'names'))}.", shared.width()))
