"""`llmviewer calibrate` and `llmviewer validate`: parameters from measurements, and measurements against them."""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from . import cli_options as shared
from .errors import InputError
from .units import counted, seconds

if TYPE_CHECKING:
    from .expectation.validate import Predictions, Validation

_FILE = click.Path(path_type=Path)


@click.command()
@click.argument("files", nargs=-1, required=True, type=_FILE, metavar="FILE...")
@click.option("-o", "--output", required=True, type=_FILE, metavar="FILE", help="Write the profile to a YAML file.")
@click.option("--device", metavar="NAME", help="Only rows of this device.")
@click.option("--library", metavar="NAME", help="Only rows of this library: vllm, trtllm, sglang, triton, cublas.")
@click.option(
    "--from",
    "prior",
    type=_FILE,
    metavar="FILE",
    help="The profile that few rows are drawn to; those that ship if not given.",
)
@click.option(
    "--residual",
    is_flag=True,
    help="Keep, of stacks with 1,000 rows or more, what the fit leaves of each shape: nearer to shapes between them.",
)
@click.option(
    "--source", multiple=True, metavar="TEXT", help="Where the measurements come from; the files if not given."
)
@shared.hardware_path
def calibrate(  # noqa: PLR0917 - click gives options by name
    files: tuple[Path, ...],
    output: Path,
    device: str | None,
    library: str | None,
    prior: Path | None,
    residual: bool,
    source: tuple[str, ...],
) -> None:
    """Fits how fast the kernels of a library are on a device, from measurements (docs/measurements.md).

    Parameters, where they come from and their errors, on shape families that were not fitted too, go to a YAML file
    that `llmviewer validate --profile` reads. A stack needs 20 rows: what they do not tell is taken from the profiles
    of its nearest relatives.
    """
    from .expectation.calibrate import LEAST
    from .expectation.calibrate import calibrate as run
    from .expectation.device import find
    from .expectation.profile import read as read_profile
    from .expectation.profile import shipped, to_yaml
    from .expectation.rows import read
    from .export import write_text

    _check_folder()
    wanted = find(device).name if device else None
    rows = [
        group
        for path in files
        for group in read(path).rows
        if (wanted is None or group.device.name == wanted) and (library is None or group.stack.library == library)
    ]
    priors = [e for profile in read_profile(prior) for e in profile.entries] if prior else shipped()
    profiles = run(
        rows,
        priors=priors,
        residual=residual,
        sources=source or tuple(path.name for path in files),
        progress=lambda e: click.echo(
            f"{e.device} {e.stack.library} {e.family} {' '.join(filter(None, (e.stack.dtype, e.stack.kv_dtype)))} "
            f"{e.stack.kernel}: {counted(e.rows, 'row')}, off by {e.held_out.mape:.1%} where held out",
            err=True,
        ),
    )
    if not profiles:
        raise InputError(f"{files[0]}: no stack has {LEAST} rows with a time_us, which a fit needs")
    write_text(output, to_yaml(profiles))
    click.echo(f"{output}: {counted(sum(len(p.entries) for p in profiles), 'stack')}", err=True)


@click.command()
@click.argument("files", nargs=-1, required=True, type=_FILE, metavar="FILE...")
@click.option(
    "--profile", "paths", multiple=True, type=_FILE, metavar="FILE", help="A profile, before those that ship."
)
@click.option("--predictions-out", type=_FILE, metavar="FILE", help="The rows with what is predicted (.csv, .parquet).")
@click.option(
    "--format",
    "form",
    type=click.Choice(("text", "json", "html")),
    help="What is printed; else what the file's name ends in, else text.",
)
@click.option("-o", "--output", type=_FILE, metavar="FILE", help="Write the scores to a file (.html, .json, others).")
@shared.hardware_path
def validate(
    files: tuple[Path, ...],
    paths: tuple[Path, ...],
    predictions_out: Path | None,
    form: str | None,
    output: Path | None,
) -> None:
    """Scores the bound and the expectation against measured kernels (docs/measurements.md).

    Errors by family, device and data type, rows measured faster than the bound, and those whose expectation is
    farthest off.
    """
    from .expectation.profile import read as read_profile
    from .expectation.profile import shipped
    from .expectation.rows import read
    from .expectation.validate import predict
    from .expectation.validate import validate as run
    from .export import write_text

    _check_folder()
    entries = (*(e for path in paths for profile in read_profile(path) for e in profile.entries), *shipped())
    predictions = [predict(read(path), entries) for path in files]
    if predictions_out:
        _write(predictions_out, predictions)
        click.echo(f"{predictions_out}: {sum(len(one.table.frame) for one in predictions)} rows", err=True)
    scores = run(predictions)
    ending = output.suffix.removeprefix(".") if output else ""
    text = _report(scores, form or ending, [path.name for path in files])
    if output:
        write_text(output, text)
        click.echo(f"{output}: written", err=True)
    else:
        click.echo(text, nl=False)


def _check_folder() -> None:
    """Raises InputError where the folder of hardware files is none: of rows, only a device would be missing."""
    from .hardware_files import hardware_names

    hardware_names()


def _report(scores: Validation, form: str, files: Sequence[str]) -> str:
    if form == "html":
        from .reports.validation import render_html

        return render_html(scores, files)
    if form == "json":
        return json.dumps(_plain({k: v for k, v in asdict(scores).items() if k != "points"}), indent=2) + "\n"
    return _table(scores)


def _write(path: Path, predictions: Sequence[Predictions]) -> None:
    import pandas as pd

    from .export import write

    if path.suffix not in (".csv", ".parquet"):
        raise InputError(f"{path}: must end in .csv or .parquet, the formats of predictions")
    frame = pd.concat([one.frame() for one in predictions], ignore_index=True)
    if path.suffix == ".csv":
        write(path, lambda to: frame.to_csv(to, index=False))
    else:
        write(path, lambda to: frame.to_parquet(to, index=False))


def _plain(value: Any) -> Any:
    """JSON has no nan."""
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _table(scores: Validation) -> str:
    """Percentages; errors of the expectation, and of the bound in its own column."""
    head = ("family", "device", "dtype", "from", "rows", "bound", "MAPE", "median", "<20us", ">20us", "bias", "rank",
            "<10%", "<20%", "in 80%", "under bound")  # fmt: skip
    lines: list[tuple[str, ...]] = [head]
    for g in scores.groups:
        e = g.expected
        shares = (g.bound.mape, e.mape, e.median, e.mape_short, e.mape_long, e.bias)
        rest = (e.within_10, e.within_20, e.covered)
        lines.append((
            g.family, g.device, g.dtype, g.source, str(e.rows), *map(_percent, shares), f"{e.rank:.3f}",
            *map(_percent, rest), str(g.violations),
        ))  # fmt: skip
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    text = [
        "  ".join(
            c.ljust(w) if i < 4 else c.rjust(w) for i, (c, w) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]
    text += ["", "Farthest off:"] if scores.worst else []
    text += [_row(row) for row in scores.worst]
    text += ["", "Not scored:"] if scores.skipped else []
    text += [f"  {counted(count, 'row')}: {reason}" for reason, count in scores.skipped.items()]
    return "\n".join(text) + "\n"


def _percent(value: float) -> str:
    return "-" if math.isnan(value) else f"{100 * value:.1f}"


def _row(row: dict[str, Any]) -> str:
    told = {key: value for key, value in row.items() if not key.endswith("_us") and str(value) != "nan"}  # not known
    facts = ", ".join(value if isinstance(value, str) else f"{key} {value:g}" for key, value in told.items())
    time, expected, bound = (seconds(row[f"{key}_us"] / 1e6) for key in ("time", "expected", "bound"))
    line = f"{facts}: {time} measured, {expected} expected, {bound} at the bound"
    return textwrap.fill(line, 80, initial_indent="  ", subsequent_indent="    ")


COMMANDS: Final = (calibrate, validate)
