"""`llmviewer techniques`: techniques for --with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import click

from ..errors import InputError, suggest
from . import options as shared

_FORMATS: Final = {".txt": "text", ".json": "json", ".md": "markdown"}


@click.command()
@click.argument("name", required=False, callback=shared.nonempty)
@shared.report_format(tuple(_FORMATS.values()))
@shared.output(subject="the list")
def techniques(name: str | None, form: str | None, output: Path | None) -> None:
    """List techniques for --with, or show one.

    A technique is shown with its parameters, its formula and its limits.
    """
    from ..reports import techniques as report
    from ..techniques import techniques as known_ones

    form, by_name = shared.form_of(form, output, _FORMATS), known_ones()
    if name is not None and name not in by_name:
        raise InputError(f"no technique {name!r}: {suggest(name, by_name)}")
    selection = {name: by_name[name]} if name else dict(by_name)
    width = shared.width(output)
    if form == "json":
        text = json.dumps([report.describe(kind) for kind in selection.values()], indent=2) + "\n"
    elif form == "markdown":
        text = report.render_markdown(selection)
    else:
        text = report.render_card(selection[name], width) if name else report.render_list(selection, width)
    shared.emit(text, output)
