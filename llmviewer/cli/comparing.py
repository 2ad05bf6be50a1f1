"""`llmviewer compare`, `choose` and `plot`: settings side by side."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import click

from ..errors import InputError, suggest
from ..options import ChoiceArguments, ComparisonArguments, FigureArguments
from . import inputs
from . import options as shared
from .progress import with_progress_bar

FIGURES: Final = ("roofline", "dtypes", "memory", "decode-time", "prefill-time")

hardware_option = click.option(
    "--hardware", metavar="all|NAMES", default=("all",), show_default=True, multiple=True,
    help="Devices to choose from: h100-sxm,l40s. May be repeated. all: except those that are only announced.",
)  # fmt: skip


def named(hardware: Sequence[str]) -> list[str] | None:
    """Names of devices from values of the option; None for all."""
    return _or_all([name.strip() for each in hardware for name in each.split(",") if name.strip()])


def _or_all(names: list[str]) -> list[str] | None:
    """`names`; None for all.

    Raises InputError if other names are given with `all`.
    """
    if "all" in names and len(names) > 1:
        raise InputError("all includes every device; leave out the other names")
    return None if names == ["all"] else names


def _split(text: str) -> list[str]:
    """Names separated by commas; the path of a file may contain commas."""
    return [text] if Path(text).exists() else [name.strip() for name in text.split(",") if name.strip()]


@click.command()
@click.argument("model")
@click.argument("hardware", nargs=-1, required=True)
@click.option("--also", metavar="MODEL", multiple=True, help="Another model to compare. May be repeated.")
@inputs.layouts
@inputs.declared_options(ComparisonArguments)
@shared.report_options
def compare(
    *,
    model: str,
    hardware: tuple[str, ...],
    also: tuple[str, ...],
    options: ComparisonArguments,
    form: str | None,
    output: Path | None,
    **question: Any,
) -> None:
    """Compare MODEL on several devices.

    Gives times, memory, throughput, and where the bottleneck moves. HARDWARE is one or more names of `llmviewer
    hardware` or YAML files, separated by spaces or commas, or `all`. --tp, --pp, --ep, --dp and --cp set the layout on
    several devices of a kind; several numbers are compared in all combinations.
    """
    shared.check_output(form, output)
    from ..comparing.comparison import compare as run
    from ..devices.files import hardware_names
    from ..reports.comparison import REPORT

    names = _or_all([name for text in hardware for name in _split(text)])
    devices = hardware_names() if names is None else names
    models = [name for text in (model, *also) for name in _split(text)]
    result = run(models, devices, **question, **options)
    shared.emit_report(REPORT, result, form, output)


@click.command()
@click.argument("model")
@click.option(
    "--users", type=shared.WholeNumber(1), default=1, show_default=True, help="Users who send their prompts at once."
)
@hardware_option
@shared.choice(
    "--by",
    choices=("speed", "cost", "energy"),
    help_text="Ranking: tokens per second, per dollar or per joule.",
    default="speed",
)
@click.option("--budget", metavar="USD", type=shared.NUMBER, help="Highest price of all devices together.")
@click.option("--power", metavar="W", type=shared.NUMBER, help="Highest TDP of all devices together.")
@click.option("--native", is_flag=True, help="Only precisions that the matrix units of the device support.")
@inputs.declared_options(ChoiceArguments)
@shared.report_options
def choose(
    *,
    options: ChoiceArguments,
    hardware: tuple[str, ...],
    form: str | None,
    output: Path | None,
    **question: Any,
) -> None:
    """Rank devices for a use of MODEL.

    Devices that do not qualify are listed with the reason.
    """
    shared.check_output(form, output)
    from ..comparing.choice import choose as run
    from ..reports.choice import REPORT

    question["hardware"] = named(hardware)
    result = with_progress_bar("layouts and precisions", functools.partial(run, **question, **options))
    shared.emit_report(REPORT, result, form, output)


@click.command()
@click.argument("figure", metavar=f"{{{'|'.join(FIGURES)}}}")
@click.argument("model")
@click.argument("hardware")
@inputs.declared_options(FigureArguments)
@shared.choice("--phase", choices=("prefill", "decode"), help_text="Phase of the roofline.", default="prefill")
@shared.output(subject="the figure: .html, or .png, .svg, .pdf (with the extra `images`)")
def plot(figure: str, options: FigureArguments, output: Path | None, **question: Any) -> None:
    """Draw a figure of "LLM Inference Unveiled".

    roofline: the operators under the roof, memory-bound and compute-bound zones (Figure 4); dtypes: the roofs of all
    data types (5); memory: weights, cache and activations by precision (6); decode-time against batch (7);
    prefill-time against prompt length (8). The last three compare the precisions of --quant, separated by semicolons.
    """
    if figure not in FIGURES:
        raise InputError(f"no figure {figure!r}: {suggest(figure, FIGURES)}")
    from ..reports.plot import draw, write

    path = output or Path(f"{figure}.html")
    write(draw(figure, **question, **options), path)
    click.echo(f"{path}: {figure}", err=True)
