"""`llmviewer search`: shapes of a model under latency targets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ..errors import InputError
from ..options import SearchArguments
from . import inputs
from . import options as shared


@click.command()
@click.argument("model")
@click.argument("hardware")
@click.option(
    "--over",
    metavar="AXIS=VALUES",
    multiple=True,
    help="An axis of the shape and its values: depth=16..48+8, width=2048..8192+512, heads, kv_heads, ffn, expert_ffn, "
    "experts=8,16, top_k, vocab, or any whole number of its config.json by name. May be repeated: all combinations.",
)
@shared.choice(
    "--by",
    choices=("tpot", "ttft", "latency"),
    help_text="Time of the Pareto front. Default: that of the first target, else tpot.",
)
@shared.choice(
    "--proxy",
    choices=("layers", "active", "all"),
    help_text="Parameters that stand for quality: of all layers, those of layers that a token uses, or all.",
    default="layers",
)
@inputs.declared_options(SearchArguments)
@shared.report_options
def search(
    *, options: SearchArguments, over: tuple[str, ...], by: str | None, form: str | None, output: Path | None,
    **question: Any,
) -> None:  # fmt: skip
    """Search shapes of MODEL, such as depth and width, under latency targets.

    Every combination of the values of --over is a model with the layers of MODEL. The roofline gives its times and
    memory; parameters stand for quality. What is not varied follows the width: heads of the same size, feed-forward
    networks in proportion, key-value heads in groups of as many queries.
    """
    shared.check_output(form, output)
    if not over:
        raise InputError("search needs --over AXIS=VALUES, such as --over depth=16..48+8 --over width=2048..8192+512")
    from ..reports.architecture_search import REPORT
    from ..sweeping.search import search as run
    from ..sweeping.shapes import parse_shape_axis

    axes = shared.distinct_axes(map(parse_shape_axis, over), over)
    shared.emit_report(REPORT, run(over=axes, by=by or "", **question, **options), form, output)
