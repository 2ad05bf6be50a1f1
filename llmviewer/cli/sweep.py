"""`llmviewer sweep`: many settings, to a file or to shards in a folder."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Sequence
from math import prod
from pathlib import Path
from typing import Any, Final

import click
from click.core import ParameterSource

from ..errors import InputError
from ..options import LayoutOptions, SweepOptions
from ..parameters import DEGREES
from ..units import counted
from . import inputs
from . import options as shared
from .progress import Ticker, rewritable

_SUMMARIES: Final = {".txt": "text", ".csv": "csv", ".json": "json"}
_PROGRESS_BAR_POINTS: Final = 200_000  # points of a sweep that take long enough for a progress bar


@click.command()
@click.argument("model", required=False)
@click.argument("hardware", required=False)
@click.option(
    "--over",
    metavar="AXIS=VALUES",
    multiple=True,
    help="An axis and its values: batch=1..256, batch=1..256*2, prompt=128,512,2048, kv_len=128..4096+128, gen=..., "
    "images=0..4, quant=published,W4A16g128, attention=eager,flash, tp=1,2,4 and pp, ep, dp, cp, 'layout=tp=8,tp=4 "
    "pp=2'; what-ifs on the device: memory.bandwidth=1x,2x,4x, matrix.bf16=1x,2x. May be repeated: all combinations.",
)
@inputs.declared_options(SweepOptions, images={"default": None, "show_default": False})
@inputs.scenario
@click.option(
    "-o",
    "--output",
    metavar="FILE|DIR/",
    callback=shared.nonempty,
    help="Write the points to a file (.csv or .parquet), or shards to a folder.",
)
@shared.shard_options(workers="Processes that write shards.")
@click.option("--shard-points", type=shared.WholeNumber(1), help="Maximum points per shard; a million if not given.")
@click.option("--summary", type=shared.PATH, metavar="DIR", help="Summarize the sweep in a folder.")
@click.option("--by", metavar="AXES", default="model", show_default=True, help="Axes that a summary groups by.")
@shared.report_format(tuple(_SUMMARIES.values()), help_prefix="Format of a summary. ")
def sweep(
    *,
    model: str | None,
    hardware: str | None,
    options: SweepOptions,
    over: tuple[str, ...],
    output: str | None,
    summary: Path | None,
    by: str,
    form: str | None,
    **running: Any,
) -> None:
    """Compute a row for every combination of the values of --over.

    With -o DIR/, MODEL and HARDWARE may be lists (llama-3-8b,qwen3*) or all, and points are written as shards; the same
    command resumes an interrupted sweep. --summary DIR then ranks the points.
    """
    if summary:
        _summarize(summary, model, by, form, Path(output) if output else None, expected=options["expected"])
        return
    if form:
        raise InputError(
            "--format applies to --summary; points are written by the suffix of the output file, or as CSV"
        )
    if model is None or hardware is None:
        raise InputError(
            f"sweep needs {'MODEL' if model is None else 'HARDWARE'}: llmviewer sweep MODEL HARDWARE --over AXIS=VALUES"
        )
    if any(running.values()) or (output and (output.endswith(("/", os.sep)) or Path(output).is_dir())):
        _write_shards(model, hardware, over, output, options, **running)
        return
    if not over:
        raise InputError("sweep needs --over AXIS=VALUES, such as --over batch=1..256*2")
    for text in (model, hardware):
        if (text == "all" or set(",*?") & set(text)) and not Path(text).exists():
            raise InputError(f"{text}: several models or devices need a folder; give one with -o DIR/")
    from ..sweeping.axes import parse_axis

    axes = _unique_axes(map(parse_axis, over), over)
    path = Path(output) if output else None
    if path and path.suffix not in (".csv", ".parquet"):
        raise InputError(
            f"{path}: must end in .csv or .parquet, the formats a sweep is written in, or in / for a folder"
        )
    _write_points(model, hardware, axes, path, options)


def _write_points(
    model: str, hardware: str, axes: dict[str, Sequence[Any]], path: Path | None, options: SweepOptions
) -> None:
    """Writes the points of a sweep to a file, or to standard output as CSV."""
    from ..sweeping.export import sweep_csv, write_sweep
    from ..sweeping.grid import sweep as run
    from ..sweeping.grid import sweep_blocks

    points = prod(map(len, axes.values()))
    shows_bar = points >= _PROGRESS_BAR_POINTS and rewritable()
    with click.progressbar(length=points, label=counted(points, "point"), file=sys.stderr, hidden=not shows_bar) as bar:

        def progress(finished_count: int, _: int) -> None:
            bar.update(finished_count - bar.pos)

        if path:
            blocks = sweep_blocks(model, hardware, axes, progress=progress, **options)
            written: int | bytes = write_sweep(path, blocks)
        else:
            written = sweep_csv(run(model, hardware, axes, progress=progress, **options))
    if isinstance(written, int):
        click.echo(f"{path}: {counted(written, 'point')}", err=True)
    else:
        click.echo(written, nl=False)


def _write_shards(
    model: str,
    hardware: str,
    over: Sequence[str],
    output: str | None,
    sweep_options: SweepOptions,
    *,
    workers: int | None,
    shard: str | None,
    dask: str | None,
    shard_points: int | None,
) -> None:
    """Computes and writes shards of a sweep."""
    from ..devices.files import hardware_names
    from ..model_files import model_names
    from ..parallel.layout import ONE_DEVICE, parse_layout
    from ..setting import layout_of, offload_of
    from ..sweeping.axes import NUMBERS
    from ..sweeping.design import SHARD_POINTS, Design, matching_names, parse_over
    from ..sweeping.shard_files import run_shards
    from ..sweeping.shards import write_shard

    if output is None:
        raise InputError("-o DIR/ must name the folder that --workers, --shard and --dask write to")
    if workers and dask:
        raise InputError("--workers and --dask exclude each other: a Dask cluster has workers of its own")
    layout, offload = layout_of(sweep_options), str(offload_of(sweep_options))
    options: dict[str, Any] = {
        name: value
        for name, value in sweep_options.items()
        if name not in (*LayoutOptions.__annotations__, "offload", "offload_sync")
    }
    text = "" if layout == ONE_DEVICE else str(layout)
    if parse_layout(text) != layout:
        option_names = "--micro-batches, --collective, --hierarchical-all-to-all and --overlap"
        raise InputError(f"{option_names} are not for sweeps in a folder")
    numbers = {name: options.pop(name) for name in NUMBERS}
    axes: dict[str, Any] = {name: [value] for name, value in numbers.items() if value is not None}
    axes |= {name: [value] for name in ("quant", "attention") if (value := options.pop(name))}
    axes |= {"layout": [text], "offload": [offload]}
    swept = _unique_axes(map(parse_over, over), over)
    design = Design.of(
        matching_names(model, model_names(), command="models"),
        matching_names(hardware, hardware_names(), command="hardware"),
        {**axes, **swept},
        shard_points=shard_points or SHARD_POINTS,
        **options,
    )
    folder, shard_slice, sweep_progress = Path(output), shared.parse_shard(shard or "1/1"), _SweepProgress()
    try:
        run_shards(
            folder,
            design,
            write_shard,
            workers=workers or 1,
            shard=shard_slice,
            dask=dask,
            progress=sweep_progress,
            notice=shared.notice,
        )
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"finished shards are in {folder}; the same command resumes") from None
    shards = len(range(shard_slice[0] - 1, design.shards, shard_slice[1]))
    click.echo(f"{folder}: {counted(sweep_progress.points, 'point')} in {counted(shards, 'shard')}", err=True)


def _unique_axes(parsed: Iterable[tuple[str, Sequence[Any]]], over: Sequence[str]) -> dict[str, Sequence[Any]]:
    """The axes of --over.

    Raises InputError if one is given twice, or an option sets the same, unless a scenario sets it, which --over
    overrides.
    """
    from ..sweeping.axes import with_layouts

    axes, context = shared.distinct_axes(parsed, over), click.get_current_context()
    axes_source = context.get_parameter_source("over")
    for axis in axes:
        for name in DEGREES if axis in ("layout", *DEGREES) else (axis,):
            if context.get_parameter_source(name) in (ParameterSource.COMMANDLINE, axes_source):
                option = f"--{name.replace('_', '-')}"
                raise InputError(f"{option}: the axis {axis} of --over sets it too; give one of them")
    return with_layouts(axes)


class _SweepProgress:
    """Prints the progress of a sweep, and the remaining time."""

    def __init__(self) -> None:
        self.points = self.first = 0
        self.start = 0.0
        self.ticker = Ticker()

    def __call__(self, finished_count: int, points: int) -> None:
        if not self.points:
            self.points, self.first, self.start = points, finished_count, time.monotonic()
            return
        if not self.ticker.due():
            return
        rate = (finished_count - self.first) / max(self.ticker.last_line_s - self.start, 1e-9)
        remaining_s = (points - finished_count) / rate if rate else 0
        hours, rest = divmod(round(remaining_s), 3600)
        line = f"{finished_count:,} of {points:,} points, {rate:,.0f}/s, {hours}:{rest // 60:02}:{rest % 60:02} left"
        self.ticker.print(line, last=finished_count == points)


def _summarize(
    folder: Path, model: str | None, axis_list: str, form: str | None, output: Path | None, *, expected: bool
) -> None:
    from ..reports.sweeps import render
    from ..sweeping.summary import summarize

    if model:
        raise InputError(f"--summary reads a folder; leave out {model}")
    axes = [axis.strip() for axis in axis_list.split(",") if axis.strip()]
    form = shared.form_of(form, output, _SUMMARIES)
    shared.emit(render(summarize(folder, axes, expected=expected), form, shared.width(output)), output)
