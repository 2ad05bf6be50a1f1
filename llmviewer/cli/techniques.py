"""`llmviewer techniques`: what can be switched on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import click

from ..errors import InputError, suggest
from . import options as shared

_FORMATS: Final = {".txt": "text", ".json": "json", ".md": "markdown"}


@click.command()
@click.argument("name", required=False, callback=shared.given)
@shared.report_format(tuple(_FORMATS.values()))
@shared.output(what="the list")
def techniques(name: str | None, form: str | None, output: Path | None) -> None:
    """List techniques for --with, or show one.

    A technique is shown with its parameters, its formula and its limits.
    """
    from ..reports import techniques as report
    from ..techniques import techniques as known_ones

    form, known = shared.form_of(form, output, _FORMATS), known_ones()
    if name is not None and name not in known:
        raise InputError(f"no technique {name!r}: {suggest(name, known)}")
    shown = {name: known[name]} if name else dict(known)
    width = shared.width(output)
    if form == "json":
        text = json.dumps([report.describe(kind) for kind in shown.values()], indent=2) + "\n"
    elif form == "markdown":
        text = report.render_markdown(shown)
    else:
        text = report.render_card(shown[name], width) if name else report.render_list(shown, width)
    shared.emit(text, output)
