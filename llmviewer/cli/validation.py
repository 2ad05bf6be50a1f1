"""`llmviewer calibrate` and `llmviewer validate`: parameters from measurements, and measurements against them."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from .. import __version__
from ..errors import InputError
from ..units import counted
from . import options as shared

if TYPE_CHECKING:
    import pandas as pd

    from ..expectation.families import Implementation
    from ..expectation.profile import KernelFit
    from ..expectation.rows import MeasuredRows
    from ..expectation.validate import Predictions, Validation

_SCHEMA_VERSION: Final = 1  # of the scores as JSON
_SUFFIXES: Final = {".txt": "text", ".json": "json", ".html": "html"}


@click.command()
@click.argument("files", nargs=-1, required=True, type=shared.PATH, metavar="FILE...")
@click.option(
    "-o", "--output", required=True, type=shared.PATH, metavar="FILE", help="Write the profile to a YAML file."
)
@click.option("--device", metavar="NAME", help="Only rows of this device.")
@click.option("--library", metavar="NAME", help="Only rows of this library: vllm, trtllm, sglang, triton, cublas.")
@click.option(
    "--from",
    "prior",
    type=shared.PATH,
    metavar="FILE",
    help="The profile that a fit to few rows leans on; those that ship if not given.",
)
@click.option(
    "--residual",
    is_flag=True,
    help="Of stacks with 1,000 rows or more, also keep how far the fit is off at each shape, to correct those between.",
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
    """Fit a profile of kernel times to measurements.

    Reads tables (`llmviewer docs measurements`) and writes a YAML file for --profile: parameters, their source and
    errors, also on families of shapes that were held out of the fit. A stack (a kernel of a library, and its data
    types) needs 20 rows: what they do not determine is taken from the profiles of its closest relatives. Rows that
    cannot be fitted are counted with the reason.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # of scipy, before it is loaded: matrices are small

    from ..expectation.calibrate import calibrate as run
    from ..expectation.device import find_device
    from ..expectation.index import index
    from ..expectation.profile import read_profiles, to_yaml
    from ..expectation.rows import joined, read
    from ..writing import write_text

    if output.suffix not in (".yaml", ".yml"):
        raise InputError(f"{output}: must end in .yaml, the format of a profile")
    _check_folder()
    device_name = find_device(device).name if device else None
    priors = [e for profile in read_profiles([prior]) for e in profile.fits] if prior else index().fits
    tables = [read(path) for path in files]
    measured = joined(group for table in tables for group in table.rows)
    selected = [
        group
        for group in measured
        if (device_name is None or group.device.name == device_name)
        and (library is None or group.implementation.library == library)
    ]
    if measured and not selected:
        available = sorted({f"{group.implementation.library} on {group.device.name}" for group in measured})
        query = " on ".join(filter(None, (library, device_name)))
        raise InputError(f"{files[0]}: no rows of {query}; available: {', '.join(available)}")
    unread = sum((Counter(table.unread) for table in tables), Counter[str]())
    rows = _fitting(selected, unread, files[0])
    profiles = run(
        rows,
        priors=priors,
        residual=residual,
        sources=source or tuple(path.name for path in files),
        progress=lambda fit: click.echo(_fitted(fit), err=True),
    )
    write_text(output, to_yaml(profiles))
    click.echo(f"{output}: {counted(sum(len(p.fits) for p in profiles), 'kernel fit')}", err=True)


def _fitting(groups: Iterable[MeasuredRows], unread: Counter[str], file: Path) -> list[MeasuredRows]:
    """Selects groups with enough rows for a fit; prints the reason for all other rows.

    Raises InputError where none has.
    """
    from ..expectation.calibrate import MIN_ROWS

    fittable: list[MeasuredRows] = []
    left, unfitted, fullest = unread.copy(), Counter[str](), 0
    for group in groups:
        reliable, unreliable = group.reliable()
        left.update(unreliable)
        fullest = max(fullest, len(reliable))
        if len(reliable) >= MIN_ROWS:
            fittable.append(reliable)
        elif len(reliable):
            implementation = _named(group.device.name, group.family.name, group.implementation)
            unfitted[f"fewer than {MIN_ROWS} rows of {implementation}"] += len(reliable)
    if not fittable:
        why, count = next(iter(left.most_common(1)), ("", 0))
        reason = (
            f"; {counted(count, 'row')} skipped: {why}" if count else f"; the largest has {fullest}" if fullest else ""
        )
        raise InputError(f"{file}: no kernel has the {MIN_ROWS} rows with a time_us that a fit needs{reason}")
    left.update(unfitted)
    for why, count in left.items():
        click.echo(f"skipped {counted(count, 'row')}: {why}", err=True)
    return fittable


def _fitted(fit: KernelFit) -> str:
    from ..expectation.profile import FEW_SHAPES

    few = f", as of kernels with {FEW_SHAPES[fit.shape_families]}" if fit.shape_families else ""
    error = f"error {fit.held_out.mape:.1%} on held-out shapes{few}"
    return f"{_named(fit.device, fit.family, fit.implementation)}: {counted(fit.rows, 'row')}, {error}"


def _named(device: str, family: str, implementation: Implementation) -> str:
    names = (
        device,
        implementation.library,
        family,
        implementation.dtype,
        implementation.kv_dtype,
        implementation.kernel,
    )
    return " ".join(filter(None, names))


@click.command()
@click.argument("files", nargs=-1, required=True, type=shared.PATH, metavar="FILE...")
@click.option(
    "--profile",
    "paths",
    multiple=True,
    type=shared.PATH,
    metavar="FILE",
    help="A profile, used before those that ship. May be repeated.",
)
@click.option(
    "--predictions-out",
    type=shared.PATH,
    metavar="FILE",
    help="Also write the rows with predictions (.csv, .parquet).",
)
@shared.report_format(("text", "json", "html"))
@click.option(
    "-o", "--output", type=shared.PATH, metavar="FILE", help="Write the scores to a file (.txt, .json, .html)."
)
@shared.hardware_path
def validate(
    files: tuple[Path, ...],
    paths: tuple[Path, ...],
    predictions_out: Path | None,
    form: str | None,
    output: Path | None,
) -> None:
    """Score bounds and expected times against measured kernels.

    Reads tables (`llmviewer docs measurements`). Gives errors by family, device and data type, rows measured faster
    than the bound, and the rows with the largest errors.
    """
    from ..expectation.index import index
    from ..expectation.profile import read_profiles
    from ..expectation.rows import read
    from ..expectation.validate import predict
    from ..expectation.validate import validate as run

    chosen = shared.form_of(form, output, _SUFFIXES)
    if predictions_out and predictions_out.suffix not in (".csv", ".parquet"):
        raise InputError(f"{predictions_out}: must end in .csv or .parquet, the formats of predictions")
    _check_folder()
    fits = (*(e for profile in read_profiles(paths) for e in profile.fits), *index().fits)
    predictions = [predict(read(path), fits) for path in files]
    if predictions_out:
        _write(predictions_out, predictions)
        click.echo(f"{predictions_out}: {sum(len(one.table.frame) for one in predictions)} rows", err=True)
    scores = run(predictions)
    if not scores.groups and not predictions_out:
        why, count = max(scores.skipped.items(), key=lambda one: one[1], default=("no measurement", 0))
        raise InputError(f"{files[0]}: no row can be scored; {counted(count, 'row')}: {why}")
    inputs = {"files": list(map(str, files)), "profiles": list(map(str, paths))}
    shared.emit(_report(scores, chosen, inputs, shared.width(output)), output)


def _check_folder() -> None:
    """Raises InputError where the folder of hardware files is none: of rows, only a device would be missing."""
    from ..devices.files import hardware_names

    hardware_names()


def _report(scores: Validation, form: str, inputs: Mapping[str, Sequence[str]], width: int) -> str:
    if form == "json":
        from ..analyzing.facts import finite

        fields = {k: v for k, v in asdict(scores).items() if k != "points"}
        document = {
            "schema_version": _SCHEMA_VERSION,
            "llmviewer_version": __version__,
            "inputs": dict(inputs),
            **fields,
        }
        return json.dumps(finite(document), indent=2) + "\n"
    from ..reports import validation

    return validation.render_html(scores, inputs) if form == "html" else validation.render_text(scores, inputs, width)


def _write(path: Path, predictions: Sequence[Predictions]) -> None:
    import pandas as pd

    from ..rows import csv_cell
    from ..writing import write

    frame = pd.concat([one.frame() for one in predictions], ignore_index=True)
    if path.suffix == ".csv":
        write(path, lambda destination: frame.map(csv_cell).to_csv(destination, index=False))
    else:
        frame = frame.apply(_of_one_type)
        write(path, lambda destination: frame.to_parquet(destination, index=False))


def _of_one_type(column: pd.Series[Any]) -> pd.Series[Any]:
    """Converts a column to text if Parquet has no type for it: files differ in type, or a number is too large."""
    import pyarrow as pa

    try:
        pa.array(column, from_pandas=True)
    except (pa.ArrowException, OverflowError):
        return column.astype(str).where(column.notna())
    return column
