"""`llmviewer docs`: the pages of the documentation, which ship with every installation."""

from __future__ import annotations

import click

from .._layout import data_dir
from ..errors import InputError, suggest
from . import options as shared


@click.command()
@click.argument("page", required=False, callback=shared.nonempty)
def docs(page: str | None) -> None:
    """List the pages of the documentation, or show one.

    Pages are Markdown; `llmviewer docs PAGE | less` shows one screen after another.
    """
    folder = data_dir("docs")
    paths = (*sorted(folder.glob("*.md")), *sorted(folder.glob("tutorials/*.md")))
    pages = {path.relative_to(folder).with_suffix("").as_posix(): path for path in paths}
    if page is None:
        from ..reports.tables import filled

        width = max(map(len, pages))
        heads = {name: path.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ") for name, path in pages.items()}
        lines = (
            filled(head, shared.table_width(), first=f"{name:<{width}}  ", others=" " * (width + 2))
            for name, head in heads.items()
        )
        shared.emit("".join(f"{line}\n" for line in lines), None)
        return
    name = page.removesuffix(".md").removeprefix("docs/")
    if name not in pages:
        raise InputError(f"no page {page!r}: {suggest(page, pages)}")
    shared.emit(pages[name].read_text(encoding="utf-8"), None)
